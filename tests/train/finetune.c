/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/model-folders.h"
#include "support/tensors.h"

#include <glib/gstdio.h>
#include <json-glib/json-glib.h>
#include <math.h>
#include <string.h>

/* Finetuning in one call: what is opened, chosen, trained, and saved. */

#define N_CHATS 24
#define CONTEXT 64

static char *model, *chats;

static void
write_chats (void)
{
  g_autoptr (GString) text = g_string_new (NULL);

  for (int n = 0; n < N_CHATS; n++)
    g_string_append_printf (text,
                            "{\"messages\": [{\"role\": \"user\", \"content\": \"What is %d?\"}, "
                            "{\"role\": \"assistant\", \"content\": \"%d it is.\"}]}\n",
                            n, n);
  test_folder_write (test_scratch_folder (), "chats.jsonl", text->str);
}

/* @name, and the properties that follow up to NULL, in place of the defaults. */
static EbbFinetuneOptions *
make_options (const char *name, ...)
{
  EbbFinetuneOptions *options = ebb_finetune_options_new ();
  va_list args;

  g_object_set (options, "context", (gint64) CONTEXT, NULL);
  va_start (args, name);
  g_object_set_valist (G_OBJECT (options), name, args);
  va_end (args);
  return options;
}

/* Takes @options. */
static EbbTrainer *
tune (const char *folder, const char *out, EbbFinetuneOptions *options)
{
  const char *data[] = { chats, NULL };
  g_autofree char *path = out != NULL ? test_scratch_path (out) : NULL;
  g_autoptr (GError) error = NULL;
  EbbTrainer *trainer = ebb_finetune (folder, data, path, options, NULL, &error);

  g_assert_no_error (error);
  g_assert_true (EBB_IS_TRAINER (trainer));
  g_object_unref (options);
  return trainer;
}

static JsonNode *
read_report (EbbTrainer *trainer)
{
  g_autofree char *text = ebb_trainer_to_json (trainer);

  return json_from_string (text, NULL);
}

static EbbModule *
get_model (EbbTrainer *trainer)
{
  EbbModule *found;

  g_object_get (trainer, "model", &found, NULL);
  g_object_unref (found); /* the trainer has it */
  return found;
}

/* The weights of a model that was saved, with an adapter merged. */
static EbbModule *
open_saved (const char *out, gboolean is_adapter)
{
  g_autofree char *path = test_scratch_path (out);
  EbbModule *saved = test_model_open (is_adapter ? model : path);
  g_autoptr (GError) error = NULL;

  if (is_adapter)
    {
      g_autoptr (EbbModule) same = ebb_lora_load (saved, path, NULL, &error);

      g_assert_no_error (error);
    }
  return saved;
}

static void
an_adapter_is_trained_and_saved_alone (void)
{
  g_autofree char *before = test_folder_read (model, "config.json");
  g_autoptr (EbbTrainer) trainer = tune (model, "adapter", make_options ("lora-rank", 4, NULL));
  g_autoptr (JsonNode) root = read_report (trainer);
  JsonArray *losses = json_object_get_array_member (json_node_get_object (root), "losses");
  g_autofree char *out = test_scratch_path ("adapter");
  g_autofree char *after = test_folder_read (model, "config.json");
  g_autoptr (EbbModule) saved = open_saved ("adapter", TRUE);
  double first = 0, last = 0;

  g_assert_cmpuint (json_array_get_length (losses), ==, N_CHATS); /* an epoch of rows of one chat */
  for (guint i = 0; i < 6; i++)
    {
      first += json_array_get_double_element (losses, i);
      last += json_array_get_double_element (losses, N_CHATS - 6 + i);
    }
  g_assert_cmpfloat (last, <, first);
  g_assert_true (test_folder_has (out, "adapter_config.json"));
  g_assert_false (test_folder_has (out, "config.json"));
  g_assert_cmpstr (before, ==, after);
  test_assert_same_weights (get_model (trainer), saved);
}

static JsonObject *
get_evaluation (JsonNode *report, guint i)
{
  return json_array_get_object_element (
      json_object_get_array_member (json_node_get_object (report), "evaluations"), i);
}

static void
what_is_saved_has_the_least_held_out_loss (void)
{
  g_autofree char *out = test_scratch_path ("best");
  /* So large that it soon gets worse. */
  g_autoptr (EbbTrainer) trainer =
      tune (model, "best",
            make_options ("lora-rank", 4, "held-out", "0.25", "evaluate-every", (gint64) 1, "learning-rate", 0.2,
                          "steps", (gint64) 12, NULL));
  g_autoptr (JsonNode) report = read_report (trainer);
  g_autoptr (EbbTrainer) again =
      tune (model, NULL, make_options ("adapter", out, "held-out", "0.25", "steps", (gint64) 0, NULL));
  g_autoptr (JsonNode) measured = read_report (again);
  JsonObject *object = json_node_get_object (report);
  gint64 best_step, last_step;

  g_object_get (trainer, "best-step", &best_step, "step", &last_step, NULL);
  g_assert_cmpint (json_object_get_int_member (get_evaluation (report, 0), "step"), ==, 0); /* before the first */
  g_assert_cmpint (best_step, >, 0);
  g_assert_cmpint (best_step, <, last_step);
  g_assert_cmpfloat (json_object_get_double_member (get_evaluation (measured, 0), "loss"), ==,
                     json_object_get_double_member (object, "best_loss"));
}

static EbbDType
get_dtype (EbbModule *module)
{
  guint n;
  g_autofree EbbTensor **parameters = ebb_module_get_parameters (module, TRUE, &n);
  const EbbDType dtype = ebb_tensor_get_dtype (parameters[0]);

  for (guint i = 0; i < n; i++)
    ebb_tensor_unref (parameters[i]);
  return dtype;
}

static EbbMomentFormat
get_moment_format (EbbTrainer *trainer)
{
  g_autoptr (EbbOptimizer) optimizer = NULL;
  EbbMomentFormat format;

  g_object_get (trainer, "optimizer", &optimizer, NULL);
  g_object_get (optimizer, "moment-format", &format, NULL);
  return format;
}

/* Also of a model that is trained in another type, whose folder may be replaced by a later training of it. */
static void
a_model_keeps_the_type_of_its_folder (void)
{
  g_autofree char *folder = test_scratch_path ("bf16");
  g_autoptr (EbbModule) f32 = test_model_open (model);
  g_autoptr (GError) error = NULL;
  const EbbDType trained[] = { EBB_DTYPE_BF16, EBB_DTYPE_F32 };

  g_assert_true (ebb_model_save_full (f32, folder, EBB_DTYPE_BF16, 0, &error));
  g_assert_no_error (error);
  for (guint i = 0; i < G_N_ELEMENTS (trained); i++)
    {
      g_autoptr (EbbTrainer) trainer = tune (folder, "tuned",
                                             make_options ("dtype", i == 0 ? NULL : "f32", "steps", (gint64) 3, NULL));
      g_autofree char *out = test_scratch_path ("tuned");
      g_autoptr (EbbModule) saved = ebb_model_open_full (out, EBB_MODEL_KEEP_DTYPE, &error);

      g_assert_no_error (error);
      g_assert_cmpint (get_dtype (get_model (trainer)), ==, trained[i]);
      g_assert_cmpint (get_dtype (saved), ==, EBB_DTYPE_BF16);
      g_assert_cmpint (get_moment_format (trainer), ==, EBB_MOMENT_FORMAT_EIGHT_BIT);
    }
}

static void
what_is_left_open_is_chosen (void)
{
  g_autofree char *log = test_scratch_path ("log");
  g_autoptr (EbbTrainer) adapter = tune (model, NULL, make_options ("lora-rank", 2, "log", log, NULL));
  g_autoptr (EbbTrainer) whole = tune (model, NULL,
                                       make_options ("epochs", 0.5, "batch-size", (gint64) 2, "accumulate", (gint64) 3,
                                                     NULL));
  g_autofree char *lines = test_folder_read (log, "steps.jsonl");
  gint64 steps;
  double rate;

  g_assert_cmpint (get_moment_format (adapter), ==, EBB_MOMENT_FORMAT_F32);
  g_assert_nonnull (strstr (lines, "\"lr\": 0.00020000000000000001,")); /* the first step */
  g_object_get (whole, "steps", &steps, "learning-rate", &rate, NULL);
  g_assert_cmpint (steps, ==, N_CHATS / 2 / 6);
  g_assert_cmpfloat_with_epsilon (rate, 1e-5 * (1 + cos (G_PI / 2)) / 2, 1e-12); /* half of a cosine of two steps */
}

/* A schedule that cancels the training in a step. */
typedef struct
{
  EbbSchedule parent_instance;
  GCancellable *cancellable;
  gint64 step;
} Canceller;

typedef EbbScheduleClass CancellerClass;

static GType canceller_get_type (void);
G_DEFINE_TYPE (Canceller, canceller, EBB_TYPE_SCHEDULE)

static double
canceller_get_factor (EbbSchedule *schedule, gint64 step)
{
  const Canceller *self = (Canceller *) (gpointer) schedule;

  if (step == self->step)
    g_cancellable_cancel (self->cancellable);
  return 1;
}

static void
canceller_class_init (CancellerClass *klass)
{
  klass->get_factor = canceller_get_factor;
}

static void
canceller_init (Canceller *self G_GNUC_UNUSED)
{
}

/* Trains up to 10 steps, of which the one that @step is the number of, from 0, is the last. */
static void
tune_cancelled (const char *out, const char *resume, gint64 step)
{
  const char *data[] = { chats, NULL };
  g_autoptr (GCancellable) cancellable = g_cancellable_new ();
  g_autoptr (EbbSchedule) schedule = g_object_new (canceller_get_type (), NULL);
  g_autoptr (EbbFinetuneOptions) options =
      make_options ("lora-rank", 4, "schedule", schedule, "resume", resume, "steps", (gint64) 10, NULL);
  g_autofree char *path = test_scratch_path (out);
  g_autoptr (EbbTrainer) trainer = NULL;
  g_autoptr (GError) error = NULL;

  *(Canceller *) (gpointer) schedule =
      (Canceller){ ((Canceller *) (gpointer) schedule)->parent_instance, cancellable, step };
  trainer = ebb_finetune (model, data, path, options, cancellable, &error);
  if (step < 10)
    {
      g_assert_null (trainer);
      g_assert_error (error, G_IO_ERROR, G_IO_ERROR_CANCELLED);
    }
  else
    g_assert_no_error (error);
}

static void
a_cancelled_training_is_saved_and_goes_on (void)
{
  g_autofree char *state = test_scratch_path ("state");
  g_autoptr (EbbModule) straight = NULL;
  g_autoptr (EbbModule) cancelled = NULL;
  g_autoptr (EbbModule) rest = NULL;

  tune_cancelled ("straight", NULL, 10);
  tune_cancelled ("cancelled", state, 4);
  cancelled = open_saved ("cancelled", TRUE); /* after 5 steps */
  tune_cancelled ("rest", state, 10);
  straight = open_saved ("straight", TRUE);
  rest = open_saved ("rest", TRUE);
  test_assert_same_weights (straight, rest);
}

static void
note (EbbTrainer *trainer G_GNUC_UNUSED, const char *text, gpointer notes)
{
  g_string_append (notes, text);
}

static void
another_seed_is_noted (void)
{
  const char *data[] = { chats, NULL };
  g_autofree char *state = test_scratch_path ("seeds");
  g_autoptr (EbbTrainer) first = NULL;
  g_autoptr (EbbTrainer) second = NULL;
  g_autoptr (EbbFinetuneOptions) options =
      make_options ("lora-rank", 2, "seed", G_GUINT64_CONSTANT (6), "resume", state, "steps", (gint64) 3, NULL);
  g_autoptr (GString) notes = g_string_new (NULL);
  g_autoptr (GError) error = NULL;

  first = tune (model, NULL,
                make_options ("lora-rank", 2, "seed", G_GUINT64_CONSTANT (5), "resume", state, "steps", (gint64) 2,
                              NULL));
  second = ebb_finetune_new (model, data, NULL, options, &error);
  g_assert_no_error (error);
  g_signal_connect (second, "note", G_CALLBACK (note), notes);
  g_assert_true (ebb_trainer_run (second, NULL, &error));
  g_assert_nonnull (strstr (notes->str, "begun with seed 5 and goes on with it, not with 6"));
}

/* Takes @options. */
static void
refuse (const char *folder, const char *out, EbbFinetuneOptions *options, const char *message)
{
  const char *data[] = { chats, NULL };
  g_autoptr (GError) error = NULL;

  g_assert_null (ebb_finetune (folder, data, out, options, NULL, &error));
  g_assert_nonnull (error);
  if (strstr (error->message, message) == NULL || strchr (error->message, '\n') != NULL)
    g_error ("\"%s\" does not say \"%s\"", error->message, message);
  g_object_unref (options);
}

/* Takes @budget, which limits the tensors of the tested device. */
static EbbFinetuneOptions *
make_budgeted (EbbMemoryBudget *budget)
{
  EbbFinetuneOptions *options = make_options ("lora-rank", 4, "batch-size", (gint64) 8, "steps", (gint64) 3, "budget",
                                              budget, NULL);

  if (budget != NULL)
    g_object_set (budget, "scope", EBB_MEMORY_SCOPE_DEVICE, NULL);
  g_clear_object (&budget);
  return options;
}

static guint64
get_bytes (gboolean is_peak)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (test_device ());

  return is_peak ? ebb_memory_stats_get_peak_total (stats) : ebb_memory_stats_get_total (stats);
}

/* Returns the most bytes of tensors once the training is prepared: planning measures the rates of copies. */
static guint64
train_budgeted (const char *out, guint64 n_bytes)
{
  const char *data[] = { chats, NULL };
  g_autofree char *path = test_scratch_path (out);
  g_autoptr (EbbFinetuneOptions) options = make_budgeted (ebb_memory_budget_new (n_bytes));
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTrainer) trainer = ebb_finetune_new (model, data, path, options, &error);

  g_assert_no_error (error);
  g_assert_true (ebb_trainer_prepare (trainer, NULL, &error));
  ebb_memory_reset_peaks (test_device ());
  g_assert_true (ebb_trainer_run (trainer, NULL, &error));
  g_assert_no_error (error);
  return get_bytes (TRUE);
}

static void
a_budget_is_kept_with_the_same_bits (void)
{
  g_autofree char *out = test_scratch_path ("tight");
  g_autoptr (EbbModule) plain = NULL;
  g_autoptr (EbbModule) tight = NULL;
  EbbMemoryBudget *small = ebb_memory_budget_new (1000);
  const guint64 before = get_bytes (FALSE);
  EbbFinetuneOptions *options = make_budgeted (g_object_ref (small));
  g_autoptr (EbbMemoryStats) stats = NULL;
  guint64 need, least;

  ebb_memory_reset_peaks (test_device ());
  g_object_unref (tune (model, "plain", make_budgeted (NULL)));
  need = get_bytes (TRUE);
  ebb_memory_reset_peaks (test_device ());
  refuse (model, out, options, "");
  stats = ebb_memory_get_stats (test_device ());
  g_assert_cmpuint (ebb_memory_stats_get_peak (stats, EBB_PURPOSE_PARAMETER), ==, 0); /* no weight was there */
  g_object_get (small, "least-bytes", &least, NULL);
  g_object_unref (small);
  g_assert_cmpuint (least, >, before);
  g_assert_cmpuint (least, <, need);
  g_assert_cmpuint (train_budgeted ("tight", least), <=, least);
  plain = open_saved ("plain", TRUE);
  tight = open_saved ("tight", TRUE);
  test_assert_same_weights (plain, tight);
}

/* What a budget doesn't allow is not chosen either. */
static void
a_budget_allows_what_changes_values (void)
{
  g_autofree char *folder = test_scratch_path ("bf16-budget");
  g_autoptr (EbbModule) f32 = test_model_open (model);
  const EbbConcessions both = EBB_CONCESSIONS_BF16_WEIGHTS | EBB_CONCESSIONS_EIGHT_BIT_MOMENTS;
  g_autoptr (GError) error = NULL;

  g_assert_true (ebb_model_save_full (f32, folder, EBB_DTYPE_BF16, 0, &error));
  g_assert_no_error (error);
  for (guint i = 0; i < 2; i++)
    {
      g_autoptr (EbbMemoryBudget) budget = ebb_memory_budget_new ((guint64) 1 << 30);
      g_autoptr (EbbTrainer) trainer = NULL;

      g_object_set (budget, "scope", EBB_MEMORY_SCOPE_DEVICE, "allow", i == 0 ? EBB_CONCESSIONS_NONE : both, NULL);
      trainer = tune (folder, NULL, make_options ("steps", (gint64) 2, "budget", budget, NULL));
      g_assert_cmpint (get_dtype (get_model (trainer)), ==, i == 0 ? EBB_DTYPE_F32 : EBB_DTYPE_BF16);
      g_assert_cmpint (get_moment_format (trainer), ==,
                       i == 0 ? EBB_MOMENT_FORMAT_F32 : EBB_MOMENT_FORMAT_EIGHT_BIT);
    }
}

static void
contradictions_are_refused (void)
{
  g_autoptr (EbbLoraOptions) lora = ebb_lora_options_new ();
  g_autoptr (EbbDataset) text = NULL;
  g_autoptr (GBytes) bytes = g_bytes_new_static ("some text", 9);
  g_autoptr (EbbTokenizer) tokenizer = ebb_byte_tokenizer_new ();
  g_autofree char *bert = test_model_copy ("bert");
  const char *const files[] = { "tokenizer.json", "tokenizer_config.json" };

  for (guint i = 0; i < G_N_ELEMENTS (files); i++)
    {
      g_autofree char *content = test_folder_read (model, files[i]);

      test_folder_write (bert, files[i], content);
    }
  text = EBB_DATASET (ebb_text_dataset_new_from_bytes (bytes, tokenizer, 1, NULL));
  refuse (model, NULL, make_options ("lora-rank", 3, "lora", lora, NULL), "lora-rank 3 and lora: the options of lora");
  refuse (model, NULL, make_options ("lora-rank", 3, "adapter", "x", NULL), "adapter x and lora-rank: the folder says");
  refuse (model, NULL, make_options ("lora", lora, "adapter", "x", NULL), "adapter x and lora: the folder says");
  refuse (model, NULL, make_options ("base", "nf4", NULL), "base nf4: quantized weights have no gradient");
  refuse (model, NULL, make_options ("base", "int4", "lora-rank", 3, NULL), "base: no quantisation \"int4\"");
  refuse (model, NULL, make_options ("held-out", "0.1", "evaluate", text, NULL), "held-out 0.1 and evaluate");
  refuse (model, "out", make_options ("held-out", "0.1", "save-best", "x", NULL),
          "save-best x and held-out 0.1: out, out, gets the best weights");
  refuse (model, NULL, make_options ("steps", (gint64) 3, "epochs", 2.0, NULL), "steps 3 and epochs 2");
  refuse (model, NULL, make_options ("held-out", "1.5", NULL), "held-out 1.5: a share of the text must be");
  refuse (model, NULL, make_options ("context", (gint64) 9999, NULL), "context 9999: the model");
  refuse (model, model, make_options ("lora-rank", 3, NULL), "it is the model, which is only read");
  refuse ("absent", NULL, make_options ("lora-rank", 3, NULL), "absent");
  refuse (bert, NULL, make_options ("lora-rank", 3, NULL), "it has a masked language model");
}

static EbbFinetuneOptions *
make_short (int rank)
{
  return make_options ("lora-rank", rank, "steps", (gint64) 1, NULL);
}

static void
other_folders_are_not_replaced (void)
{
  g_autofree char *notes = test_scratch_path ("notes");
  g_autofree char *state = test_scratch_path ("beside");
  g_autofree char *adapter = test_scratch_path ("of-rank-2");
  g_autofree char *other = test_model_copy ("qwen2");
  EbbFinetuneOptions *beside = make_short (2);

  g_mkdir (notes, 0777);
  test_folder_write (notes, "model.safetensors", "mine");
  refuse (model, notes, make_short (2), "it is a folder with files that are not an adapter's");
  refuse (model, notes, make_short (0), "it is a folder with files that are not a model's");
  g_object_unref (tune (model, "of-rank-2", make_short (2)));
  refuse (model, adapter, make_short (3), "its adapter_config.json is not this adapter's");
  g_object_unref (tune (model, "of-rank-2", make_short (2)));
  refuse (model, other, make_short (0), "its config.json is not this model's");
  /* What a training writes is in nobody's way. */
  g_object_set (beside, "resume", state, "log", state, NULL);
  g_object_unref (tune (model, "other-out", g_object_ref (beside)));
  g_object_unref (tune (model, "beside", beside));
}

int
main (int argc, char **argv)
{
  int status;

  test_init (&argc, &argv);
  test_scratch_begin ();
  model = g_test_build_filename (G_TEST_DIST, "fixtures", "chat-model", NULL);
  chats = test_scratch_path ("chats.jsonl");
  write_chats ();
  g_test_add_func ("/finetune/an-adapter-is-trained-and-saved-alone", an_adapter_is_trained_and_saved_alone);
  g_test_add_func ("/finetune/what-is-saved-has-the-least-held-out-loss", what_is_saved_has_the_least_held_out_loss);
  g_test_add_func ("/finetune/a-model-keeps-the-type-of-its-folder", a_model_keeps_the_type_of_its_folder);
  g_test_add_func ("/finetune/what-is-left-open-is-chosen", what_is_left_open_is_chosen);
  g_test_add_func ("/finetune/a-cancelled-training-is-saved-and-goes-on", a_cancelled_training_is_saved_and_goes_on);
  g_test_add_func ("/finetune/another-seed-is-noted", another_seed_is_noted);
  g_test_add_func ("/finetune/a-budget-is-kept-with-the-same-bits", a_budget_is_kept_with_the_same_bits);
  g_test_add_func ("/finetune/a-budget-allows-what-changes-values", a_budget_allows_what_changes_values);
  g_test_add_func ("/finetune/contradictions-are-refused", contradictions_are_refused);
  g_test_add_func ("/finetune/other-folders-are-not-replaced", other_folders_are_not_replaced);
  status = g_test_run ();
  test_scratch_end ();
  g_free (model);
  g_free (chats);
  return status;
}
