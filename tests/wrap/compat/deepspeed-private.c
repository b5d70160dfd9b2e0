/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only */
#include "support/card.h"
#include "support/stores.h"
#include "support/tensors.h"
#include "support/training.h"

/* The effect of each key of "activation_checkpointing", each on its own device. */

enum
{
  ROWS = 16,
  WIDTH = 16,
  N_BLOCKS = 3
};

#define INPUT_BYTES ((guint64) ROWS * WIDTH * 4)

static EbbDevice *card;

static guint64
activations (EbbDevice *device)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (device);

  return ebb_memory_stats_get_current (stats, EBB_PURPOSE_ACTIVATION);
}

static void
configure (const char *section)
{
  g_autoptr (GError) error = NULL;
  g_autofree char *json = g_strdup_printf ("{\"activation_checkpointing\": {%s}}", section);

  g_assert_true (ebb_checkpointing_configure (NULL, json, NULL, &error));
  g_assert_no_error (error);
}

/* -- log ----------------------------------------------------------------------------------------------------------- */

static GPtrArray *lines; /* "checkpoint pass", of the messages of checkpoints */

static const char *
get_field (const GLogField *fields, gsize n_fields, const char *name)
{
  for (gsize i = 0; i < n_fields; i++)
    if (g_str_equal (fields[i].key, name))
      return fields[i].value;
  return NULL;
}

static GLogWriterOutput
write_log (GLogLevelFlags level, const GLogField *fields, gsize n_fields, gpointer user_data)
{
  const char *who = get_field (fields, n_fields, "EBB_CHECKPOINT"), *pass = get_field (fields, n_fields, "EBB_PASS");
  const char *message = get_field (fields, n_fields, "MESSAGE");
  g_autofree char *expected = NULL;

  if (who == NULL)
    return g_log_writer_default (level, fields, n_fields, user_data);
  g_assert_cmpint (level & G_LOG_LEVEL_MASK, ==, G_LOG_LEVEL_MESSAGE);
  g_assert_cmpstr (get_field (fields, n_fields, "GLIB_DOMAIN"), ==, "Ebb");
  expected = g_strdup_printf ("checkpoint of %s: %s %s s", who, pass, get_field (fields, n_fields, "EBB_SECONDS"));
  g_assert_cmpstr (message, ==, expected);
  g_assert_cmpfloat (g_ascii_strtod (get_field (fields, n_fields, "EBB_SECONDS"), NULL), >=, 0);
  g_ptr_array_add (lines, g_strdup_printf ("%s %s", who, pass));
  return G_LOG_WRITER_HANDLED;
}

/* -- a model whose activations can be told in bytes ---------------------------------------------------------------- */

/* sin (x * gain) keeps x and the product: one outer, one inner activation. */
static EbbTensor *
scale_and_bend (EbbModule *self, EbbTensor *x, gpointer data, GError **error)
{
  g_autoptr (EbbTensor) gain = ebb_module_get_parameter (self, "gain");
  g_autoptr (EbbTensor) scaled = ebb_mul (x, gain, error);
  g_autoptr (EbbTensor) dropped = ebb_dropout (scaled, 0.25, TRUE, NULL, error);

  return ebb_sin (dropped, error);
}

static EbbModule *
new_model (EbbDevice *device)
{
  EbbModule *model = ebb_sequential_new ();

  for (guint i = 0; i < N_BLOCKS; i++)
    {
      g_autoptr (EbbModule) block = test_lambda1_new (scale_and_bend, NULL);
      g_autoptr (EbbTensor) gain = test_randn (i, WIDTH, -1);
      g_autofree char *name = g_strdup_printf ("%u", i);

      ebb_module_register_parameter (block, "gain", gain, NULL);
      ebb_module_register_child (model, name, block, NULL);
    }
  g_assert_true (ebb_module_to_device (model, device, NULL));
  return model;
}

/* A module as a function. */
static EbbArgs *
call_module (EbbArgs *args, gpointer module, GError **error)
{
  return ebb_module_call (module, args, error);
}

typedef enum
{
  PLAIN,
  WRAPPED,  /* each block, with the configured options */
  FUNCTIONS /* each block by ebb_checkpointing_checkpoint () */
} Way;

static EbbTensor *
forward (EbbModule *model, Way way, EbbDevice *device, GError **error)
{
  g_autoptr (EbbTensor) here = test_randn (9, ROWS, WIDTH, -1);
  g_autoptr (EbbTensor) there = ebb_to_device (here, device, NULL);
  g_autoptr (EbbArgs) args = NULL;
  EbbTensor *x = ebb_copy (there, NULL); /* as inputs within a model are, the result of something */

  ebb_manual_seed (5);
  args = ebb_args_new_for_tensor (x);
  ebb_tensor_unref (x);
  for (guint i = 0; args != NULL && i < N_BLOCKS; i++)
    {
      g_autofree char *name = g_strdup_printf ("%u", i);
      g_autoptr (EbbModule) block = ebb_module_get_child (model, name);
      EbbArgs *result;

      if (way == FUNCTIONS)
        result = ebb_checkpointing_checkpoint (call_module, g_object_ref (block), g_object_unref, args, error);
      else
        result = ebb_module_call (block, args, error);
      ebb_args_unref (args);
      args = result;
    }
  return args != NULL ? ebb_args_get_tensor (args, 0) : NULL;
}

static void
wrap_blocks (EbbModule *model, Way way)
{
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpointing_get_options ();

  if (way == WRAPPED)
    test_wrap_leaves (model, options);
}

static GPtrArray *
take_grads (EbbModule *model)
{
  GPtrArray *grads = g_ptr_array_new_with_free_func ((GDestroyNotify) ebb_tensor_unref);
  guint n;
  g_autofree EbbTensor **parameters = ebb_module_get_parameters (model, TRUE, &n);

  for (guint i = 0; i < n; i++)
    {
      g_autoptr (EbbTensor) grad = ebb_tensor_get_grad (parameters[i]);

      g_assert_nonnull (grad);
      g_ptr_array_add (grads, ebb_to_device (grad, ebb_device_get_cpu (), NULL));
      ebb_tensor_unref (parameters[i]);
    }
  return grads;
}

typedef struct
{
  guint64 on_card, on_host; /* after the forward */
  guint in_forward, in_all; /* waits for the card */
} Seen;

static GPtrArray *
step (EbbModule *model, Way way, Seen *seen)
{
  GError *error = NULL;
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) loss = NULL;

  test_card.n_synchronized = 0;
  y = forward (model, way, card, &error);
  g_assert_no_error (error);
  *seen = (Seen){ activations (card), activations (NULL), test_card.n_synchronized, 0 };
  loss = ebb_sum (y, NULL, 0, FALSE, &error);
  test_backward (loss);
  seen->in_all = test_card.n_synchronized;
  g_assert_cmpuint (activations (card) + activations (NULL), ==, 0);
  test_assert_counters (model, 0);
  return take_grads (model);
}

static void
assert_same (GPtrArray *a, GPtrArray *b)
{
  g_assert_cmpuint (a->len, ==, b->len);
  for (guint i = 0; i < a->len; i++)
    g_assert_true (ebb_tensor_equal (a->pdata[i], b->pdata[i]));
}

/* -- what the keys do ---------------------------------------------------------------------------------------------- */

static void
each_key_acts (void)
{
  static const struct
  {
    const char *section;
    guint64 on_card, on_host; /* inputs of a block, after the forward */
    guint waits;              /* in a forward, of each block */
    guint n_lines;            /* of each block */
  } cases[] = {
    { "", N_BLOCKS, 0, 0, 0 },
    { "\"cpu_checkpointing\": true", 0, N_BLOCKS, 0, 0 },
    { "\"synchronize_checkpoint_boundary\": true", N_BLOCKS, 0, 2, 0 },
    { "\"profile\": true", N_BLOCKS, 0, 2, 2 },
    { "\"cpu_checkpointing\": true, \"synchronize_checkpoint_boundary\": true, \"profile\": true", 0, N_BLOCKS, 2, 2 },
  };
  g_autoptr (EbbModule) plain = new_model (card);
  Seen seen;
  g_autoptr (GPtrArray) expected = step (plain, PLAIN, &seen);

  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    for (Way way = WRAPPED; way <= FUNCTIONS; way++)
      {
        g_autoptr (EbbModule) model = new_model (card);
        g_autoptr (GPtrArray) grads = NULL;

        g_test_message ("%s, way %d", cases[i].section, way);
        configure (cases[i].section);
        wrap_blocks (model, way);
        g_ptr_array_set_size (lines, 0);
        grads = step (model, way, &seen);
        assert_same (grads, expected);
        g_assert_cmpuint (seen.on_card, ==, cases[i].on_card * INPUT_BYTES);
        g_assert_cmpuint (seen.on_host, ==, cases[i].on_host * INPUT_BYTES);
        g_assert_cmpuint (seen.in_forward, ==, cases[i].waits * N_BLOCKS);
        g_assert_cmpuint (seen.in_all, ==, 2 * cases[i].waits * N_BLOCKS);
        g_assert_cmpuint (lines->len, ==, cases[i].n_lines * N_BLOCKS);
      }
}

/* The configured store, which holds tensors of any size. */
static EbbContiguousStore *
get_contiguous_store (void)
{
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpointing_get_options ();
  EbbSavedTensorHooks *store = ebb_checkpoint_options_get_store (options);

  g_assert_true (EBB_IS_CONTIGUOUS_STORE (store));
  g_object_set (store, "least-size", (guint64) 1, NULL);
  return g_object_ref (EBB_CONTIGUOUS_STORE (store));
}

static void
contiguous_buffers_are_filled_and_given_back (void)
{
  g_autoptr (EbbModule) plain = new_model (card);
  Seen seen;
  g_autoptr (GPtrArray) expected = step (plain, PLAIN, &seen);

  for (Way way = WRAPPED; way <= FUNCTIONS; way++)
    {
      g_autoptr (EbbModule) model = new_model (card);
      g_autoptr (EbbContiguousStore) store = NULL;

      configure ("\"contiguous_memory_optimization\": true, \"number_checkpoints\": 3");
      store = get_contiguous_store ();
      g_assert_cmpuint (test_get_double (store, "n-checkpoints"), ==, 3);
      g_assert_null (ebb_activation_store_get_next (EBB_ACTIVATION_STORE (store)));
      wrap_blocks (model, way);
      for (guint i = 0; i < 2; i++)
        {
          g_autoptr (GError) error = NULL;
          g_autoptr (GPtrArray) grads = NULL;
          g_autoptr (EbbTensor) y = forward (model, way, card, &error);
          g_autoptr (EbbTensor) loss = ebb_sum (y, NULL, 0, FALSE, &error);

          g_assert_no_error (error);
          g_assert_cmpuint (test_get_double (store, "n-buffers"), ==, 1);
          g_assert_cmpuint (test_get_double (store, "n-parts"), ==, N_BLOCKS);
          ebb_module_zero_grad (model);
          test_backward (loss);
          g_assert_cmpuint (test_get_double (store, "n-parts"), ==, 0);
          grads = take_grads (model);
          assert_same (grads, expected);
        }
    }
}

/* With both keys the buffers lie on the host. */
static void
contiguous_buffers_lie_on_the_host (void)
{
  g_autoptr (EbbModule) plain = new_model (card);
  g_autoptr (EbbModule) model = new_model (card);
  g_autoptr (EbbContiguousStore) store = NULL;
  g_autoptr (GError) error = NULL;
  g_autoptr (GPtrArray) grads = NULL;
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) loss = NULL;
  Seen seen;
  g_autoptr (GPtrArray) expected = step (plain, PLAIN, &seen);

  configure ("\"contiguous_memory_optimization\": true, \"number_checkpoints\": 3, \"cpu_checkpointing\": true");
  store = get_contiguous_store ();
  g_assert_true (ebb_activation_store_get_next (EBB_ACTIVATION_STORE (store))
                 == EBB_ACTIVATION_STORE (ebb_host_store_get_default ()));
  wrap_blocks (model, WRAPPED);
  y = forward (model, WRAPPED, card, &error);
  g_assert_no_error (error);
  g_assert_cmpuint (test_get_double (store, "n-parts"), ==, N_BLOCKS);
  g_assert_cmpuint (activations (card), ==, 0);
  g_assert_cmpuint (activations (NULL), >=, N_BLOCKS * INPUT_BYTES);
  loss = ebb_sum (y, NULL, 0, FALSE, &error);
  test_backward (loss);
  g_assert_cmpuint (test_get_double (store, "n-parts"), ==, 0);
  grads = take_grads (model);
  assert_same (grads, expected);
  ebb_checkpointing_reset ();
  g_assert_cmpuint (activations (NULL), ==, 0);
}

static void
too_few_parts_are_an_error_and_reset_begins_anew (void)
{
  g_autoptr (EbbModule) model = new_model (card);
  g_autoptr (EbbContiguousStore) store = NULL;
  g_autoptr (EbbTensor) first = NULL;
  g_autoptr (EbbTensor) loss = NULL;
  g_autoptr (GError) error = NULL;

  configure ("\"contiguous_memory_optimization\": true, \"number_checkpoints\": 3");
  store = get_contiguous_store ();
  wrap_blocks (model, WRAPPED);
  first = forward (model, WRAPPED, card, &error);
  g_assert_null (forward (model, WRAPPED, card, &error));
  test_assert_error (error, EBB_ERROR_NO_MEMORY, "3");
  g_clear_error (&error);
  for (guint i = 0; i < 4; i++)
    {
      g_autoptr (EbbTensor) y = NULL;

      ebb_checkpointing_reset ();
      y = forward (model, WRAPPED, card, &error);
      g_assert_no_error (error);
      g_assert_cmpuint (test_get_double (store, "n-parts"), ==, 2 * N_BLOCKS); /* those of the first as well */
    }
  loss = ebb_sum (first, NULL, 0, FALSE, &error); /* of before */
  test_backward (loss);
}

static void
what_is_wrapped_keeps_its_options (void)
{
  g_autoptr (EbbModule) model = new_model (card);
  g_autoptr (GPtrArray) grads = NULL;
  Seen seen;

  configure ("\"synchronize_checkpoint_boundary\": true");
  wrap_blocks (model, WRAPPED);
  configure ("\"cpu_checkpointing\": true");
  grads = step (model, WRAPPED, &seen);
  g_assert_cmpuint (seen.on_card, ==, N_BLOCKS * INPUT_BYTES);
  g_assert_cmpuint (seen.in_all, ==, 4 * N_BLOCKS);
}

/* -- synchronizing ------------------------------------------------------------------------------------------------- */

static gboolean
try_step (EbbModule *model, gboolean retain, GError **error)
{
  g_autoptr (EbbTensor) y = forward (model, WRAPPED, card, error);
  g_autoptr (EbbTensor) loss = y != NULL ? ebb_sum (y, NULL, 0, FALSE, error) : NULL;

  return loss != NULL && ebb_backward (&loss, 1, NULL, 0, NULL, 0, retain, error);
}

static void
a_failure_is_told_wherever_it_is_met (void)
{
  for (guint retain = 0; retain < 2; retain++)
    for (guint at = 1; at <= 4 * N_BLOCKS + 1; at++)
      {
        g_autoptr (GError) error = NULL;
        g_autoptr (EbbModule) model = new_model (card);
        gboolean ok;

        configure ("\"synchronize_checkpoint_boundary\": true");
        wrap_blocks (model, WRAPPED);
        test_card.n_synchronized = 0;
        test_card.fails_at = at;
        ok = try_step (model, retain, &error);
        test_card.fails_at = 0;
        if (at > 4 * N_BLOCKS)
          {
            g_assert_true (ok);
            continue;
          }
        g_assert_false (ok);
        test_assert_error (error, EBB_ERROR_DEVICE, "card: its work has failed");
        test_assert_counters (model, 0);
        g_assert_cmpuint (activations (card) + activations (NULL), ==, 0);
        g_clear_error (&error);
        test_card.n_synchronized = 0;
        g_assert_true (try_step (model, retain, &error));
        g_assert_cmpuint (test_card.n_synchronized, ==, 4 * N_BLOCKS);
      }
}

static void
the_boundaries_hold_for_every_graph (void)
{
  GError *error = NULL;
  g_autoptr (EbbModule) model = new_model (card);
  g_autoptr (EbbCheckpointOptions) options = NULL;
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) loss = NULL;

  configure ("\"synchronize_checkpoint_boundary\": true");
  options = ebb_checkpointing_get_options ();
  wrap_blocks (model, WRAPPED);
  y = forward (model, WRAPPED, card, &error);
  loss = ebb_sum (y, NULL, 0, FALSE, &error);
  for (guint i = 0; i < 3; i++) /* each pass has its boundaries */
    {
      test_card.n_synchronized = 0;
      g_assert_true (ebb_backward (&loss, 1, NULL, 0, NULL, 0, i < 2, &error));
      g_assert_cmpuint (test_card.n_synchronized, ==, 2 * N_BLOCKS);
    }

  /* Inside a recompute there are none. */
  test_wrap (model, options);
  test_card.n_synchronized = 0;
  g_clear_pointer (&y, ebb_tensor_unref);
  g_clear_pointer (&loss, ebb_tensor_unref);
  {
    g_autoptr (EbbTensor) here = test_randn (9, ROWS, WIDTH, -1);
    g_autoptr (EbbTensor) x = ebb_to_device (here, card, NULL);

    y = ebb_module_call1 (model, x, &error);
  }
  g_assert_cmpuint (test_card.n_synchronized, ==, 2 * (N_BLOCKS + 1));
  loss = ebb_sum (y, NULL, 0, FALSE, &error);
  test_backward (loss);
  g_assert_cmpuint (test_card.n_synchronized, ==, 4 * (N_BLOCKS + 1));

  /* A graph that is dropped has no backward, and a forward without gradients is no checkpoint. */
  test_card.n_synchronized = 0;
  g_clear_pointer (&y, ebb_tensor_unref);
  g_clear_pointer (&loss, ebb_tensor_unref);
  ebb_checkpoint_unwrap (model);
  y = forward (model, WRAPPED, card, &error);
  g_clear_pointer (&y, ebb_tensor_unref);
  g_assert_cmpuint (test_card.n_synchronized, ==, 2 * N_BLOCKS);
  ebb_push_grad_enabled (FALSE);
  y = forward (model, WRAPPED, card, &error);
  ebb_pop_grad_enabled ();
  g_assert_cmpuint (test_card.n_synchronized, ==, 2 * N_BLOCKS);
}

/* -- profile ------------------------------------------------------------------------------------------------------- */

static void
each_forward_and_backward_is_one_line (void)
{
  static const char *const expected[] = { "0 (Lambda1) forward", "1 (Lambda1) forward", "2 (Lambda1) forward",
                                          "2 (Lambda1) backward", "1 (Lambda1) backward", "0 (Lambda1) backward" };
  GError *error = NULL;
  g_autoptr (EbbModule) model = new_model (ebb_device_get_cpu ());
  g_autoptr (EbbModule) first = ebb_module_get_child (model, "0");
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) loss = NULL;
  g_autoptr (EbbArgs) profile = NULL;
  g_autoptr (EbbCheckpointStats) stats = NULL;
  g_autofree char *report = NULL;

  configure ("\"profile\": true");
  wrap_blocks (model, WRAPPED);
  g_ptr_array_set_size (lines, 0);
  y = forward (model, WRAPPED, ebb_device_get_cpu (), &error);
  loss = ebb_sum (y, NULL, 0, FALSE, &error);
  test_backward (loss);
  g_assert_cmpuint (lines->len, ==, G_N_ELEMENTS (expected));
  for (guint i = 0; i < lines->len; i++)
    {
      const char *line = g_ptr_array_index (lines, i);

      g_assert_true (g_str_has_suffix (line, strchr (expected[i], ')') + 1) && line[0] == expected[i][0]);
    }
  profile = ebb_checkpointing_get_profile ();
  g_assert_cmpint (ebb_args_get_int (profile, (guint) ebb_args_find (profile, "forwards")), ==, N_BLOCKS);
  g_assert_cmpint (ebb_args_get_int (profile, (guint) ebb_args_find (profile, "backwards")), ==, N_BLOCKS);
  g_assert_cmpfloat (ebb_args_get_double (profile, (guint) ebb_args_find (profile, "forward_seconds")), >, 0);
  stats = ebb_checkpoint_get_stats (first);
  g_assert_cmpfloat (stats->forward_seconds, >, 0);
  /* The recompute is a part of it. */
  g_assert_cmpfloat (stats->backward_seconds, >=,
                     stats->recompute_seconds);
  g_assert_cmpfloat (ebb_args_get_double (profile, (guint) ebb_args_find (profile, "backward_seconds")), >=,
                     stats->backward_seconds);
  report = ebb_checkpoint_report_json (model);
  g_assert_nonnull (strstr (report, "backward_seconds"));
  ebb_checkpoint_reset_stats (model);
  g_clear_pointer (&stats, ebb_checkpoint_stats_free);
  stats = ebb_checkpoint_get_stats (first);
  g_assert_cmpfloat (stats->forward_seconds, ==, 0);
  g_assert_cmpfloat (stats->backward_seconds, ==, 0);

  configure ("\"profile\": true"); /* counts begin anew */
  g_clear_pointer (&profile, ebb_args_unref);
  profile = ebb_checkpointing_get_profile ();
  g_assert_cmpint (ebb_args_get_int (profile, (guint) ebb_args_find (profile, "forwards")), ==, 0);
}

/* -- threads ------------------------------------------------------------------------------------------------------- */

static GPtrArray *
train_on_cpu (Way way)
{
  GError *error = NULL;
  g_autoptr (EbbModule) model = new_model (ebb_device_get_cpu ());
  g_autoptr (EbbTensor) y = forward (model, way, ebb_device_get_cpu (), &error);
  g_autoptr (EbbTensor) loss = ebb_sum (y, NULL, 0, FALSE, &error);

  test_backward (loss);
  return take_grads (model);
}

static gpointer
train_meanwhile (gpointer data)
{
  g_autoptr (GPtrArray) expected = train_on_cpu (PLAIN);

  for (guint i = 0; i < 40; i++)
    {
      g_autoptr (GPtrArray) grads = train_on_cpu (FUNCTIONS);

      assert_same (grads, expected);
    }
  return NULL;
}

static void
threads_may_configure_and_train (void)
{
  /* The last reference goes when the threads are done: ThreadSanitizer doesn't see how GObject counts them. */
  g_autoptr (GPtrArray) used = g_ptr_array_new_with_free_func (g_object_unref);
  GThread *threads[2];

  g_ptr_array_add (used, ebb_checkpointing_get_options ());
  for (guint i = 0; i < G_N_ELEMENTS (threads); i++)
    threads[i] = g_thread_new (NULL, train_meanwhile, NULL);
  for (guint i = 0; i < 200; i++)
    {
      configure (i % 2 ? "\"cpu_checkpointing\": true" : "\"synchronize_checkpoint_boundary\": true");
      ebb_checkpointing_reset ();
      g_ptr_array_add (used, ebb_checkpointing_get_options ());
    }
  for (guint i = 0; i < G_N_ELEMENTS (threads); i++)
    g_thread_join (threads[i]);
}

static void
what_is_missing_is_refused (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) module = test_mlp_new (1);

  g_assert_null (ebb_checkpointing_checkpoint (call_module, g_object_ref (module), g_object_unref, NULL, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "ebb_checkpoint: args is NULL");
  g_assert_cmpuint (G_OBJECT (module)->ref_count, ==, 1);
}

int
main (int argc, char **argv)
{
  g_test_init (&argc, &argv, NULL);
  lines = g_ptr_array_new_with_free_func (g_free);
  g_log_set_writer_func (write_log, NULL, NULL);
  card = test_card_open ();
  g_object_set (ebb_host_store_get_default (), "least-size", (guint64) 1, NULL);
#define TEST(name, func) g_test_add_func ("/checkpointing/" name, func)
  TEST ("each-key-acts", each_key_acts);
  TEST ("contiguous-buffers-are-filled-and-given-back", contiguous_buffers_are_filled_and_given_back);
  TEST ("contiguous-buffers-lie-on-the-host", contiguous_buffers_lie_on_the_host);
  TEST ("too-few-parts-are-an-error-and-reset-begins-anew", too_few_parts_are_an_error_and_reset_begins_anew);
  TEST ("what-is-wrapped-keeps-its-options", what_is_wrapped_keeps_its_options);
  TEST ("a-failure-is-told-wherever-it-is-met", a_failure_is_told_wherever_it_is_met);
  TEST ("the-boundaries-hold-for-every-graph", the_boundaries_hold_for_every_graph);
  TEST ("each-forward-and-backward-is-one-line", each_forward_and_backward_is_one_line);
  TEST ("threads-may-configure-and-train", threads_may_configure_and_train);
  TEST ("what-is-missing-is-refused", what_is_missing_is_refused);
  return g_test_run ();
}
