/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/tensors.h"

#include <fcntl.h>
#include <glib/gstdio.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define N_STEPS 8
#define HALF 4

/* A small GPT with dropout, trained on bytes with clipping and a schedule. */
typedef struct
{
  EbbModule *model;
  EbbOptimizer *optimizer;
  EbbTextDataset *dataset;
  EbbSchedule *schedule;
  EbbTrainingState *state;
} Training;

static void
training_start (Training *self, guint64 seed, int layers)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbGptConfig) config = ebb_gpt_config_new_preset ("tiny");
  g_autoptr (EbbTokenizer) tokenizer = ebb_byte_tokenizer_new ();
  g_autoptr (GString) text = g_string_new (NULL);
  g_autoptr (GBytes) bytes = NULL;

  for (int i = 0; i < 100; i++)
    g_string_append_printf (text, "line %d squared is %d\n", i, i * i);
  bytes = g_bytes_new (text->str, text->len);
  ebb_manual_seed (seed);
  config->width = 16;
  config->heads = 2;
  config->layers = layers;
  config->context = 16;
  config->dropout = 0.1;
  self->model = ebb_gpt_new (config, &error);
  g_assert_no_error (error);
  self->optimizer = ebb_adamw_new (self->model, 1e-2, &error);
  g_assert_no_error (error);
  ebb_optimizer_exclude_from_decay (self->optimizer, &error);
  self->dataset = ebb_text_dataset_new_from_bytes (bytes, tokenizer, seed, &error);
  g_assert_no_error (error);
  self->schedule = ebb_cosine_schedule_new (2, N_STEPS, 0.1);
  self->state = ebb_training_state_new (self->model, self->optimizer, EBB_DATASET (self->dataset));
}

static void
training_clear (Training *self)
{
  g_clear_object (&self->model);
  g_clear_object (&self->optimizer);
  g_clear_object (&self->dataset);
  g_clear_object (&self->schedule);
  g_clear_object (&self->state);
}

static void
training_run (Training *self, int first, int n, double *losses)
{
  for (int step = first; step < first + n; step++)
    {
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbTensor) batch = NULL;
      g_autoptr (EbbTensor) nexts = NULL;
      g_autoptr (EbbTensor) tokens = NULL;
      g_autoptr (EbbTensor) targets = NULL;
      g_autoptr (EbbTensor) loss = NULL;

      ebb_text_dataset_get_batch (self->dataset, 3, 16, &batch, &nexts, &error);
      tokens = test_move (batch);
      targets = test_move (nexts);
      loss = ebb_gpt_loss (EBB_GPT (self->model), tokens, targets, &error);
      g_assert_no_error (error);
      ebb_tensor_get_item (loss, &losses[step], &error);
      ebb_tensor_backward (loss, &error);
      test_clip_grad (self->optimizer, 1, 2, NULL, &error);
      ebb_schedule_apply (self->schedule, self->optimizer);
      ebb_optimizer_step (self->optimizer, &error);
      g_assert_no_error (error);
      ebb_optimizer_zero_grad (self->optimizer);
    }
}

static char *
make_folder (void)
{
  g_autoptr (GError) error = NULL;
  char *folder = g_dir_make_tmp ("ebb-state-XXXXXX", &error);

  g_assert_no_error (error);
  return folder;
}

static guint
list_files (const char *folder, gboolean delete)
{
  GDir *dir = g_dir_open (folder, 0, NULL);
  const char *name;
  guint n = 0;

  while ((name = g_dir_read_name (dir)) != NULL)
    {
      g_autofree char *path = g_build_filename (folder, name, NULL);

      if (delete)
        g_remove (path);
      n++;
    }
  g_dir_close (dir);
  if (delete)
    g_rmdir (folder);
  return n;
}

static void
assert_same_state (EbbModule *a, EbbModule *b)
{
  g_autoptr (EbbArgs) x = ebb_module_get_state_dict (a);
  g_autoptr (EbbArgs) y = ebb_module_get_state_dict (b);

  g_assert_cmpuint (ebb_args_get_length (x), ==, ebb_args_get_length (y));
  for (guint i = 0; i < ebb_args_get_length (x); i++)
    {
      g_autoptr (EbbTensor) p = ebb_args_get_tensor (x, i);
      g_autoptr (EbbTensor) q = ebb_args_get_tensor (y, i);

      g_assert_true (ebb_tensor_equal (p, q));
    }
}

static void
a_resumed_run_continues_bit_for_bit (void)
{
  g_autofree char *base = make_folder ();
  g_autofree char *folder = g_build_filename (base, "new", "folder", NULL);
  g_autofree char *parent = g_path_get_dirname (folder);
  g_autoptr (EbbArgs) values = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (EbbArgs) loaded_values = NULL;
  g_autoptr (GError) error = NULL;
  g_autofree char *config = NULL;
  g_autoptr (EbbGenerator) sampler = ebb_generator_new (99);
  g_autoptr (EbbGenerator) other_sampler = ebb_generator_new (5);
  Training whole, resumed;
  double losses[N_STEPS], other_losses[N_STEPS];
  gint64 step;

  training_start (&whole, 11, 2);
  training_run (&whole, 0, HALF, losses);
  ebb_generator_set_state (sampler, G_MAXUINT64, G_MAXUINT64 - 7);
  ebb_training_state_add_generator (whole.state, "sampler", sampler);
  g_object_set (whole.state, "config", "{ \"width\": 16 }\n", NULL);
  ebb_args_add_double (values, "best", 0.1);
  ebb_args_add_int (values, "large", G_MININT64);
  g_object_set (whole.state, "values", values, NULL);
  g_assert_true (ebb_training_state_save (whole.state, folder, HALF, &error));
  g_assert_no_error (error);
  training_run (&whole, HALF, N_STEPS - HALF, losses);

  config = ebb_training_state_read_config (folder, &error);
  g_assert_no_error (error);
  g_assert_cmpstr (config, ==, "{ \"width\": 16 }\n");

  training_start (&resumed, 12, 2);
  ebb_training_state_add_generator (resumed.state, "sampler", other_sampler);
  g_assert_true (ebb_training_state_load (resumed.state, folder, &step, &error));
  g_assert_no_error (error);
  g_assert_cmpint (step, ==, HALF);
  training_run (&resumed, HALF, N_STEPS - HALF, other_losses);
  for (int i = HALF; i < N_STEPS; i++)
    g_assert_cmpfloat (losses[i], ==, other_losses[i]);
  assert_same_state (whole.model, resumed.model);
  g_assert_cmpuint (ebb_generator_get_seed (other_sampler), ==, G_MAXUINT64);
  g_assert_cmpuint (ebb_generator_get_offset (other_sampler), ==, G_MAXUINT64 - 7);
  test_assert_text (resumed.state, "config", "{ \"width\": 16 }\n");
  g_object_get (resumed.state, "values", &loaded_values, NULL);
  g_assert_cmpfloat (ebb_args_get_double (loaded_values, 0), ==, 0.1);
  g_assert_cmpint (ebb_args_get_int (loaded_values, 1), ==, G_MININT64);
  training_clear (&whole);
  training_clear (&resumed);
  list_files (folder, TRUE);
  g_rmdir (parent);
  g_rmdir (base);
}

/* A file of the only rank. */
static char *
state_path (const char *folder, const char *kind, int number)
{
  g_autofree char *name = g_strdup_printf ("%s-%08d-00001-of-00001.safetensors", kind, number);

  return g_build_filename (folder, name, NULL);
}

#define N_FILES 4 /* of a state: the index, the model, the optimizer, the rest */

static void
write_over (const char *path, const char *contents, gsize size)
{
  g_autoptr (GError) error = NULL;

  g_remove (path);
  g_file_set_contents_full (path, contents, (gssize) size, G_FILE_SET_CONTENTS_NONE, 0600, &error);
  g_assert_no_error (error);
}

static void
the_newest_whole_state_wins (void)
{
  g_autofree char *folder = make_folder ();
  g_autofree char *third = state_path (folder, "optimizer", 3);
  g_autofree char *index = g_build_filename (folder, "index.json", NULL);
  g_autofree char *left =
      g_build_filename (folder, "model-00000009-00001-of-00001.safetensors.01234567.ebb-partial", NULL);
  g_autofree char *contents = NULL;
  g_autofree char *text = NULL;
  g_autoptr (GError) error = NULL;
  Training training;
  double losses[N_STEPS];
  gsize size;
  gint64 step;

  training_start (&training, 3, 1);
  training_run (&training, 0, 1, losses);
  for (int i = 10; i <= 30; i += 10)
    g_assert_true (ebb_training_state_save (training.state, folder, i, &error));
  g_assert_cmpuint (list_files (folder, FALSE), ==, 2 * N_FILES);
  g_assert_true (ebb_training_state_load (training.state, folder, &step, &error));
  g_assert_cmpint (step, ==, 30);

  /* The newest is cut, damaged in a tensor, or in its index. */
  g_assert_true (g_file_get_contents (third, &contents, &size, NULL));
  write_over (third, contents, size / 2);
  g_test_expect_message ("Ebb", G_LOG_LEVEL_MESSAGE, "a saved state is passed over: *optimizer-00000003*truncated*");
  g_assert_true (ebb_training_state_load (training.state, folder, &step, &error));
  g_test_assert_expected_messages ();
  g_assert_cmpint (step, ==, 20);
  contents[size - 100] ^= 1;
  write_over (third, contents, size);
  g_test_expect_message ("Ebb", G_LOG_LEVEL_MESSAGE, "a saved state is passed over: *another checksum*");
  g_assert_true (ebb_training_state_load (training.state, folder, &step, &error));
  g_test_assert_expected_messages ();
  g_assert_cmpint (step, ==, 20);
  contents[size - 100] ^= 1;
  write_over (third, contents, size);
  g_assert_true (g_file_get_contents (index, &text, &size, NULL));
  text[size / 2] ^= 1;
  write_over (index, text, size);
  g_test_expect_message ("Ebb", G_LOG_LEVEL_MESSAGE, "a saved state is passed over: *index.json*another checksum*");
  g_assert_true (ebb_training_state_load (training.state, folder, &step, &error));
  g_test_assert_expected_messages ();
  g_assert_cmpint (step, ==, 20);

  /* The next save goes on behind it and cleans up. */
  g_assert_true (g_file_set_contents (left, "x", 1, NULL));
  g_assert_true (ebb_training_state_save (training.state, folder, 40, &error));
  g_assert_no_error (error);
  g_assert_true (ebb_training_state_load (training.state, folder, &step, &error));
  g_assert_cmpint (step, ==, 40);
  g_assert_true (ebb_training_state_save (training.state, folder, 50, &error));
  g_assert_cmpuint (list_files (folder, FALSE), ==, 2 * N_FILES);
  training_clear (&training);
  list_files (folder, TRUE);
}

static void
a_state_of_another_model_changes_nothing (void)
{
  g_autofree char *folder = make_folder ();
  g_autoptr (GError) error = NULL;
  Training training, other, same;
  double losses[N_STEPS];
  guint64 offset;

  training_start (&training, 3, 1);
  training_run (&training, 0, 2, losses);
  g_assert_true (ebb_training_state_save (training.state, folder, 2, &error));

  training_start (&same, 4, 2);
  training_start (&other, 4, 2);
  training_run (&same, 0, 1, losses);
  ebb_manual_seed (4);
  offset = ebb_generator_get_offset (ebb_generator_get_default ());
  g_assert_false (ebb_training_state_load (other.state, folder, NULL, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_STATE);
  g_assert_null (strchr (error->message, '\n'));
  g_assert_cmpint (ebb_optimizer_get_n_steps (other.optimizer), ==, 0);
  g_assert_cmpfloat (test_get_double (other.dataset, "position"), ==, 0);
  g_assert_cmpuint (ebb_generator_get_offset (ebb_generator_get_default ()), ==, offset);
  training_clear (&training);
  training_clear (&other);
  training_clear (&same);
  list_files (folder, TRUE);
}

static EbbArgs *
copy_tensors (EbbArgs *args)
{
  EbbArgs *copy = ebb_args_new (EBB_ARGS_DICT);

  for (guint i = 0; i < ebb_args_get_length (args); i++)
    {
      g_autoptr (EbbTensor) tensor = ebb_args_get_tensor (args, i);
      g_autoptr (EbbArgs) nested = tensor == NULL ? ebb_args_get_args (args, i) : NULL;
      g_autoptr (EbbTensor) tensor_copy = tensor != NULL ? ebb_copy (tensor, NULL) : NULL;
      g_autoptr (EbbArgs) nested_copy = nested != NULL ? copy_tensors (nested) : NULL;

      if (tensor_copy != NULL)
        ebb_args_add_tensor (copy, ebb_args_get_key (args, i), tensor_copy);
      else if (nested_copy != NULL)
        ebb_args_add_args (copy, ebb_args_get_key (args, i), nested_copy);
    }
  return copy;
}

static void
assert_same_tensors (EbbArgs *a, EbbArgs *b, guint *n)
{
  g_assert_cmpuint (ebb_args_get_length (a), ==, ebb_args_get_length (b));
  for (guint i = 0; i < ebb_args_get_length (a); i++)
    {
      g_autoptr (EbbTensor) x = ebb_args_get_tensor (a, i);
      g_autoptr (EbbTensor) y = ebb_args_get_tensor (b, i);
      g_autoptr (EbbArgs) p = x == NULL ? ebb_args_get_args (a, i) : NULL;
      g_autoptr (EbbArgs) q = y == NULL ? ebb_args_get_args (b, i) : NULL;

      g_assert_cmpstr (ebb_args_get_key (a, i), ==, ebb_args_get_key (b, i));
      if (x != NULL)
        {
          g_assert_true (ebb_tensor_equal (x, y));
          (*n)++;
        }
      else
        assert_same_tensors (p, q, n);
    }
}

/* All that a load may change. */
typedef struct
{
  EbbArgs *weights, *moments;
  gint64 n_steps, position;
  guint64 seed, offset, own_seed, own_offset;
} Everything;

static void
everything_take (Everything *self, Training *training, EbbGenerator *own)
{
  EbbGenerator *generator = ebb_generator_get_default ();
  g_autoptr (EbbArgs) weights = ebb_module_get_state_dict (training->model);
  g_autoptr (EbbArgs) optimizer = ebb_optimizer_get_state (training->optimizer);
  g_autoptr (EbbArgs) moments = ebb_args_get_args (optimizer, (guint) ebb_args_find (optimizer, "state"));

  self->weights = copy_tensors (weights);
  self->moments = copy_tensors (moments);
  self->n_steps = ebb_optimizer_get_n_steps (training->optimizer);
  g_object_get (training->dataset, "position", &self->position, NULL);
  self->seed = ebb_generator_get_seed (generator);
  self->offset = ebb_generator_get_offset (generator);
  self->own_seed = ebb_generator_get_seed (own);
  self->own_offset = ebb_generator_get_offset (own);
}

static void
everything_assert_same (const Everything *a, const Everything *b)
{
  guint n_weights = 0, n_moments = 0;

  assert_same_tensors (a->weights, b->weights, &n_weights);
  assert_same_tensors (a->moments, b->moments, &n_moments);
  g_assert_cmpuint (n_weights, >, 10);
  g_assert_cmpuint (n_moments, >, 20);
  g_assert_cmpint (a->n_steps, ==, b->n_steps);
  g_assert_cmpint (a->position, ==, b->position);
  g_assert_cmphex (a->seed, ==, b->seed);
  g_assert_cmphex (a->offset, ==, b->offset);
  g_assert_cmphex (a->own_seed, ==, b->own_seed);
  g_assert_cmphex (a->own_offset, ==, b->own_offset);
}

static void
everything_clear (Everything *self)
{
  g_clear_pointer (&self->weights, ebb_args_unref);
  g_clear_pointer (&self->moments, ebb_args_unref);
}

/* The text is looked at before anything is changed: weights, moments, steps, generators, place, config and values. */
static void
a_state_of_another_text_changes_nothing (void)
{
  g_autofree char *folder = make_folder ();
  g_autoptr (EbbTokenizer) tokenizer = ebb_byte_tokenizer_new ();
  g_autoptr (GBytes) bytes = g_bytes_new_static ("another text, which is long enough for a window or two", 54);
  g_autoptr (EbbGenerator) own = ebb_generator_new (77);
  g_autoptr (EbbArgs) values = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (EbbArgs) values_after = NULL;
  g_autoptr (GError) error = NULL;
  Training training, other;
  Everything before, after;
  double losses[N_STEPS];
  gint64 step = 99;

  training_start (&training, 3, 1);
  training_run (&training, 0, 2, losses);
  ebb_generator_set_state (own, 1, 2);
  ebb_training_state_add_generator (training.state, "own", own);
  g_object_set (training.state, "config", "saved", NULL);
  g_assert_true (ebb_training_state_save (training.state, folder, 2, &error));
  g_assert_no_error (error);

  training_start (&other, 4, 1);
  training_run (&other, 0, 1, losses);
  g_clear_object (&other.dataset);
  g_clear_object (&other.state);
  other.dataset = ebb_text_dataset_new_from_bytes (bytes, tokenizer, 3, &error);
  other.state = ebb_training_state_new (other.model, other.optimizer, EBB_DATASET (other.dataset));
  ebb_generator_set_state (own, 3, 4);
  ebb_training_state_add_generator (other.state, "own", own);
  g_object_set (other.state, "config", "before", NULL);
  g_object_set (other.state, "values", values, NULL);
  everything_take (&before, &other, own);
  g_assert_false (ebb_training_state_load (other.state, folder, &step, &error));
  test_assert_error (error, EBB_ERROR_STATE, "54 tokens, but the state is of a text of");
  everything_take (&after, &other, own);
  everything_assert_same (&before, &after);
  g_object_get (other.state, "values", &values_after, NULL);
  g_assert_true (values_after == values);
  test_assert_text (other.state, "config", "before");
  g_assert_cmpint (step, ==, 0);
  everything_clear (&before);
  everything_clear (&after);
  training_clear (&training);
  training_clear (&other);
  list_files (folder, TRUE);
}

/* Bits all over the part of a file that is not tensors' data, which has checksums of its own. */
static void
damage_head (EbbTrainingState *state, const char *folder, const char *path, gboolean is_text)
{
  g_autofree char *contents = NULL;
  g_autoptr (GError) error = NULL;
  guint64 n_header;
  gsize size, end;

  g_assert_true (g_file_get_contents (path, &contents, &size, &error));
  memcpy (&n_header, contents, 8);
  end = is_text ? size : 8 + GUINT64_FROM_LE (n_header);
  for (gsize i = 0; i < end; i += 3)
    {
      g_autoptr (GError) failure = NULL;
      char old = contents[i];
      gint64 step;

      if (old == ' ' && !is_text) /* behind the head's JSON, where any blank may stand */
        continue;
      contents[i] ^= (char) (1 << i % 8);
      write_over (path, contents, size);
      if (ebb_training_state_load (state, folder, &step, &failure))
        g_error ("%s: bit %zu of byte %zu, which was '%c', was not seen", path, i % 8, i, old);
      contents[i] = old;
    }
  write_over (path, contents, size);
}

static void
a_damaged_head_is_never_loaded_as_another (void)
{
  static const char *const kinds[] = { "model", "optimizer", "state" };
  g_autofree char *folder = make_folder ();
  g_autofree char *index = g_build_filename (folder, "index.json", NULL);
  g_autoptr (EbbTensor) x = NULL;
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) loss = NULL;
  g_autoptr (EbbModule) module = NULL;
  g_autoptr (EbbOptimizer) optimizer = NULL;
  g_autoptr (EbbTrainingState) state = NULL;
  g_autoptr (GError) error = NULL;

  module = ebb_linear_new (3, 2, TRUE, &error);
  optimizer = ebb_adamw_new (module, 1e-2, &error);
  x = test_randn (1, 4, 3, -1);
  y = ebb_module_call1 (module, x, &error);
  loss = ebb_sum (y, NULL, 0, FALSE, &error);
  ebb_tensor_backward (loss, &error);
  ebb_optimizer_step (optimizer, &error);
  state = ebb_training_state_new (module, optimizer, NULL);
  g_assert_true (ebb_training_state_save (state, folder, 5, &error));
  g_assert_no_error (error);
  damage_head (state, folder, index, TRUE);
  for (guint i = 0; i < G_N_ELEMENTS (kinds); i++)
    {
      g_autofree char *path = state_path (folder, kinds[i], 1);

      damage_head (state, folder, path, FALSE);
    }
  g_assert_true (ebb_training_state_load (state, folder, NULL, &error));
  list_files (folder, TRUE);
}

static void
a_full_disk_leaves_the_older_state (void)
{
  g_autofree char *folder = make_folder ();
  g_autoptr (GError) error = NULL;
  struct rlimit old, small;
  Training training;
  double losses[N_STEPS];
  gint64 step;

  training_start (&training, 3, 1);
  training_run (&training, 0, 1, losses);
  g_assert_true (ebb_training_state_save (training.state, folder, 1, &error));
  /* Past the limit the kernel sends SIGXFSZ, whose default is the end of the process. */
  g_assert_true (signal (SIGXFSZ, SIG_DFL) != SIG_ERR);
  getrlimit (RLIMIT_FSIZE, &old);
  small = old;
  small.rlim_cur = 20000;
  setrlimit (RLIMIT_FSIZE, &small);
  g_assert_false (ebb_training_state_save (training.state, folder, 2, &error));
  setrlimit (RLIMIT_FSIZE, &old);
  g_assert_error (error, EBB_ERROR, EBB_ERROR_IO);
  g_clear_error (&error);
  g_assert_cmpuint (list_files (folder, FALSE), ==, N_FILES);
  g_assert_true (ebb_training_state_load (training.state, folder, &step, &error));
  g_assert_cmpint (step, ==, 1);
  training_clear (&training);
  list_files (folder, TRUE);
}

/* They go first, so that a save has the room that it needs even where it fails. */
static void
leftovers_of_the_dead_go_before_a_save (void)
{
  g_autofree char *folder = make_folder ();
  g_autofree char *dead =
      g_build_filename (folder, "state-00000007-00001-of-00001.safetensors.01234567.ebb-partial", NULL);
  g_autofree char *alive =
      g_build_filename (folder, "model-00000008-00001-of-00001.safetensors.89abcdef.ebb-partial", NULL);
  g_autofree char *weights = g_build_filename (folder, "w", NULL);
  g_autofree char *left = g_strconcat (weights, ".01234567.ebb-partial", NULL);
  g_autofree char *others = g_build_filename (folder, "w2.01234567.ebb-partial", NULL);
  const char *const files[] = { dead, alive, left, others };
  g_autoptr (EbbArgs) nothing = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (GError) error = NULL;
  struct rlimit old, small;
  Training training;
  int fd;

  training_start (&training, 3, 1);
  g_assert_true (ebb_training_state_save (training.state, folder, 1, &error));
  for (guint i = 0; i < G_N_ELEMENTS (files); i++)
    g_assert_true (g_file_set_contents (files[i], "x", 1, NULL));
  fd = g_open (alive, O_RDWR, 0);
  g_assert_cmpint (flock (fd, LOCK_EX), ==, 0);
  signal (SIGXFSZ, SIG_IGN);
  getrlimit (RLIMIT_FSIZE, &old);
  small = old;
  small.rlim_cur = 20000;
  setrlimit (RLIMIT_FSIZE, &small);
  g_assert_false (ebb_training_state_save (training.state, folder, 2, &error));
  setrlimit (RLIMIT_FSIZE, &old);
  g_assert_error (error, EBB_ERROR, EBB_ERROR_IO);
  g_clear_error (&error);
  g_assert_false (g_file_test (dead, G_FILE_TEST_EXISTS));
  g_assert_true (g_file_test (alive, G_FILE_TEST_EXISTS));
  close (fd);

  /* A file of one name has those of that name alone. */
  g_assert_true (ebb_save_safetensors (weights, nothing, NULL, &error));
  g_assert_false (g_file_test (left, G_FILE_TEST_EXISTS));
  g_assert_true (g_file_test (others, G_FILE_TEST_EXISTS));
  training_clear (&training);
  list_files (folder, TRUE);
}

/* It may be whole: to go on from an older one would lose steps, to begin anew would lose them all. */
static void
a_state_that_cant_be_read_is_an_error (void)
{
  g_autofree char *folder = make_folder ();
  g_autofree char *second = state_path (folder, "model", 2);
  g_autoptr (GError) error = NULL;
  Training training;
  gint64 step;

  training_start (&training, 3, 1);
  for (int i = 1; i <= 2; i++)
    g_assert_true (ebb_training_state_save (training.state, folder, i, &error));
  g_remove (second);
  g_assert_cmpint (g_mkdir (second, 0700), ==, 0);
  g_assert_false (ebb_training_state_load (training.state, folder, &step, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_IO);
  g_assert_nonnull (strstr (error->message, second));
  g_rmdir (second);
  training_clear (&training);
  list_files (folder, TRUE);
}

static void
a_folder_has_one_owner (void)
{
  g_autofree char *above = make_folder ();
  g_autofree char *folder = g_build_filename (above, "new", NULL);
  g_autofree char *owner = g_strdup_printf ("%s is in use by process %ld on %s:", folder, (long) getpid (),
                                            g_get_host_name ());
  g_autoptr (EbbFolderLock) lock = NULL;
  g_autoptr (GError) error = NULL;

  for (int i = 0; i < 2; i++)
    {
      g_autoptr (EbbFolderLock) first = ebb_folder_lock_new (folder, &error);

      g_assert_no_error (error);
      g_assert_null (ebb_folder_lock_new (folder, &error));
      g_assert_error (error, EBB_ERROR, EBB_ERROR_STATE);
      g_assert_nonnull (strstr (error->message, owner));
      g_clear_error (&error);
    }
  /* Nothing was saved, and nothing is left. */
  g_assert_false (g_file_test (folder, G_FILE_TEST_EXISTS));
  g_assert_null (ebb_folder_lock_new ("/proc/ebb", &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_IO);
  g_clear_error (&error);

  /* The lock file of a killed process locks nothing. */
  g_assert_cmpint (g_mkdir (folder, 0700), ==, 0);
  g_free (owner);
  owner = g_build_filename (folder, ".ebb-lock", NULL);
  g_assert_true (g_file_set_contents (owner, "process 1 on elsewhere\n", -1, NULL));
  lock = ebb_folder_lock_new (folder, &error);
  g_assert_no_error (error);
  ebb_folder_lock_release (lock);
  ebb_folder_lock_release (lock);
  g_assert_cmpuint (list_files (folder, FALSE), ==, 0);
  g_rmdir (folder);
  g_rmdir (above);
}

/* It has the object, and what it does with it leaves the parent's lock alone. */
static void
a_child_unlocks_nothing (void)
{
  g_autofree char *folder = make_folder ();
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbFolderLock) lock = ebb_folder_lock_new (folder, &error);
  int status = -1;
  pid_t child;

  g_assert_no_error (error);
  child = fork ();
  g_assert_cmpint (child, >=, 0);
  if (child == 0)
    {
      ebb_folder_lock_release (lock);
      _exit (0);
    }
  g_assert_cmpint (waitpid (child, &status, 0), ==, child);
  g_assert_cmpint (status, ==, 0);
  g_assert_null (ebb_folder_lock_new (folder, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_STATE);
  ebb_folder_lock_release (lock);
  g_assert_cmpuint (list_files (folder, TRUE), ==, 0);
}

static void
what_is_no_state_is_named (void)
{
  g_autofree char *folder = make_folder ();
  g_autofree char *missing = g_build_filename (folder, "missing", NULL);
  g_autofree char *path = g_build_filename (folder, "state-00000001.safetensors", NULL); /* as version 1.0 wrote */
  g_autoptr (EbbTrainingState) state = ebb_training_state_new (NULL, NULL, NULL);
  g_autoptr (EbbArgs) nothing = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (GError) error = NULL;

  g_assert_false (ebb_training_state_load (state, missing, NULL, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_IO);
  g_assert_nonnull (strstr (error->message, missing));
  g_clear_error (&error);
  g_assert_false (ebb_training_state_load (state, folder, NULL, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_IO);
  g_assert_true (g_str_has_suffix (error->message, ": no training was saved there"));
  g_clear_error (&error);

  g_assert_true (ebb_save_safetensors (path, nothing, NULL, &error));
  g_assert_null (ebb_training_state_read_config (folder, &error));
  test_assert_error (error, EBB_ERROR_FORMAT, path, "no saved training");
  list_files (folder, TRUE);
}

/* The generators of the thread's tracker, without being asked for. */
static void
named_generators_go_on (void)
{
  g_autofree char *folder = make_folder ();
  EbbGeneratorTracker *tracker = ebb_generator_tracker_get_default ();
  g_autoptr (GError) error = NULL;
  Training training;
  gint64 step;

  ebb_generator_tracker_add (tracker, "rng", 3, &error);
  g_assert_no_error (error);
  training_start (&training, 11, 1);
  ebb_generator_set_state (ebb_generator_tracker_get_generator (tracker, "rng"), G_MAXUINT64, 12);
  g_assert_true (ebb_training_state_save (training.state, folder, 1, &error));
  g_assert_no_error (error);

  ebb_generator_tracker_reset (tracker);
  ebb_generator_tracker_add (tracker, "rng", 4, &error);
  ebb_generator_tracker_add (tracker, "other", 5, &error);
  g_assert_true (ebb_training_state_load (training.state, folder, &step, &error));
  g_assert_no_error (error);
  g_assert_cmphex (ebb_generator_get_seed (ebb_generator_tracker_get_generator (tracker, "rng")), ==, G_MAXUINT64);
  g_assert_cmphex (ebb_generator_get_offset (ebb_generator_tracker_get_generator (tracker, "rng")), ==, 12);
  g_assert_false (ebb_generator_tracker_has (tracker, "other"));
  ebb_generator_tracker_reset (tracker);
  training_clear (&training);
  list_files (folder, TRUE);
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/training-state/a-resumed-run-continues-bit-for-bit", a_resumed_run_continues_bit_for_bit);
  g_test_add_func ("/training-state/the-newest-whole-state-wins", the_newest_whole_state_wins);
  g_test_add_func ("/training-state/a-state-of-another-model-changes-nothing",
                   a_state_of_another_model_changes_nothing);
  g_test_add_func ("/training-state/a-state-of-another-text-changes-nothing", a_state_of_another_text_changes_nothing);
  g_test_add_func ("/training-state/a-damaged-head-is-never-loaded-as-another",
                   a_damaged_head_is_never_loaded_as_another);
  g_test_add_func ("/training-state/a-full-disk-leaves-the-older-state", a_full_disk_leaves_the_older_state);
  g_test_add_func ("/training-state/leftovers-of-the-dead-go-before-a-save", leftovers_of_the_dead_go_before_a_save);
  g_test_add_func ("/training-state/a-state-that-cant-be-read-is-an-error", a_state_that_cant_be_read_is_an_error);
  g_test_add_func ("/training-state/a-folder-has-one-owner", a_folder_has_one_owner);
  g_test_add_func ("/training-state/a-child-unlocks-nothing", a_child_unlocks_nothing);
  g_test_add_func ("/training-state/named-generators-go-on", named_generators_go_on);
  g_test_add_func ("/training-state/what-is-no-state-is-named", what_is_no_state_is_named);
  return g_test_run ();
}
