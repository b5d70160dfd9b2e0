/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/tensors.h"
#include "support/training.h"

#include <glib/gstdio.h>
#include <json-glib/json-glib.h>
#include <string.h>

#define WIDTH 8

/* -- what is recorded ---------------------------------------------------------------------------------------------- */

static JsonObject *
parse (const char *text,
       JsonParser **parser)
{
  GError *error = NULL;

  *parser = json_parser_new ();
  json_parser_load_from_data (*parser, text, -1, &error);
  g_assert_no_error (error);
  return json_node_get_object (json_parser_get_root (*parser));
}

static JsonObject *
get_json (EbbProfiler *profiler,
          JsonParser **parser)
{
  g_autofree char *text = ebb_profiler_get_json (profiler);

  return parse (text, parser);
}

/* The object of @array whose @member is @value; NULL if there is none. */
static JsonObject *
find (JsonObject *object,
      const char *array,
      const char *member,
      const char *value)
{
  JsonArray *items = json_object_get_array_member (object, array);

  for (guint i = 0; i < json_array_get_length (items); i++)
    {
      JsonObject *item = json_array_get_object_element (items, i);

      if (strcmp (json_object_get_string_member (item, member), value) == 0)
        return item;
    }
  return NULL;
}

static gint64
get_op_number (JsonObject *object,
               const char *phase,
               const char *name,
               const char *member)
{
  JsonArray *ops = json_object_get_array_member (object, "ops");

  for (guint i = 0; i < json_array_get_length (ops); i++)
    {
      JsonObject *op = json_array_get_object_element (ops, i);

      if (strcmp (json_object_get_string_member (op, "phase"), phase) == 0
          && strcmp (json_object_get_string_member (op, "name"), name) == 0)
        return json_object_get_int_member (op, member);
    }
  g_error ("no op %s in phase %s", name, phase);
}

static void
start (EbbProfiler *profiler)
{
  GError *error = NULL;

  g_assert_true (ebb_profiler_start (profiler, &error));
  g_assert_no_error (error);
}

/* Forward, backward of the mean square, and a step of the optimizer, if there is one. */
static void
train (EbbModule *module,
       EbbTensor *x,
       EbbOptimizer *optimizer)
{
  GError *error = NULL;
  g_autoptr (EbbTensor) y = ebb_module_call1 (module, x, &error);
  g_autoptr (EbbTensor) square = ebb_square (y, &error);
  g_autoptr (EbbTensor) loss = ebb_mean (square, NULL, 0, FALSE, &error);

  ebb_tensor_backward (loss, &error);
  if (optimizer != NULL)
    ebb_optimizer_step (optimizer, &error);
  g_assert_no_error (error);
}

static EbbProfiler *
profile (EbbModule *module,
         EbbTensor *x)
{
  EbbProfiler *profiler = ebb_profiler_new ();

  start (profiler);
  train (module, x, NULL);
  ebb_profiler_stop (profiler);
  return profiler;
}

static void
every_op_of_a_step_is_counted_in_its_phase (void)
{
  static const char *const names[] = { "linear", "tanh", "dropout", "square", "mean" };
  static const guint calls[] = { 2, 1, 1, 1, 1 };
  g_autoptr (EbbProfiler) profiler = ebb_profiler_new ();
  g_autoptr (EbbModule) module = test_mlp_new (1);
  GError *error = NULL;
  g_autoptr (EbbOptimizer) optimizer = ebb_adamw_new (module, 1e-3, &error);
  g_autoptr (EbbTensor) x = NULL;

  g_assert_no_error (error);
  start (profiler);
  x = test_randn (2, 4, WIDTH, -1);
  train (module, x, optimizer);
  ebb_profiler_stop (profiler);
  for (guint i = 0; i < G_N_ELEMENTS (names); i++)
    {
      g_assert_cmpuint (ebb_profiler_count_ops (profiler, EBB_PHASE_FORWARD, names[i]), ==, calls[i]);
      g_assert_cmpuint (ebb_profiler_count_ops (profiler, EBB_PHASE_BACKWARD, names[i]), ==, calls[i]);
    }
  g_assert_cmpuint (ebb_profiler_count_ops (profiler, EBB_PHASE_FORWARD, NULL), ==, 6);
  g_assert_cmpuint (ebb_profiler_count_ops (profiler, EBB_PHASE_RECOMPUTE, NULL), ==, 0);
  g_assert_cmpuint (ebb_profiler_count_ops (profiler, EBB_PHASE_OTHER, "normal"), ==, 1);
  g_assert_cmpuint (ebb_profiler_count_ops (profiler, EBB_PHASE_OTHER, NULL), ==, 1);
  g_assert_cmpuint (ebb_profiler_count_ops (profiler, EBB_PHASE_OPTIMIZER, NULL), >, 0);
  g_assert_cmpuint (ebb_profiler_get_n_steps (profiler), ==, 1);
}

static void
times_add_up (void)
{
  g_autoptr (EbbModule) module = test_mlp_new (1);
  g_autoptr (EbbTensor) x = test_randn (2, 4, WIDTH, -1);
  g_autoptr (EbbProfiler) profiler = profile (module, x);
  g_autoptr (JsonParser) parser = NULL;
  JsonObject *object = get_json (profiler, &parser);
  JsonArray *ops = json_object_get_array_member (object, "ops");
  double seconds = ebb_profiler_get_seconds (profiler), of_ops = 0, of_phases = 0;

  for (guint i = 0; i < json_array_get_length (ops); i++)
    of_ops += json_object_get_double_member (json_array_get_object_element (ops, i), "seconds");
  for (int phase = EBB_PHASE_FORWARD; phase <= EBB_PHASE_OTHER; phase++)
    of_phases += ebb_profiler_get_phase_seconds (profiler, (EbbPhase) phase);
  g_assert_cmpfloat_with_epsilon (of_ops, of_phases, 1e-9);
  g_assert_cmpfloat_with_epsilon (of_ops, json_object_get_double_member (object, "op_seconds"), 1e-9);
  g_assert_cmpfloat_with_epsilon (of_ops + json_object_get_double_member (object, "outside_seconds"), seconds, 1e-9);
  g_assert_cmpfloat (of_ops, >, 0);
  g_assert_cmpfloat (ebb_profiler_get_product_seconds (profiler), <=, of_ops);
}

/* -- checkpointing ------------------------------------------------------------------------------------------------- */

static EbbModule *
make_blocks (EbbCheckpointOptions *options)
{
  GError *error = NULL;
  EbbModule *blocks;

  ebb_manual_seed (3);
  blocks = test_chain_new (ebb_transformer_block_new (WIDTH, 2, 0.1, TRUE, TRUE, &error),
                           ebb_transformer_block_new (WIDTH, 2, 0.1, TRUE, TRUE, &error), NULL);
  g_assert_no_error (error);
  if (options != NULL)
    ebb_checkpoint_wrap_each (blocks, EBB_TYPE_TRANSFORMER_BLOCK, options, &error);
  g_assert_no_error (error);
  return blocks;
}

static void
what_is_recomputed_is_a_phase (void)
{
  for (int early_stop = 0; early_stop < 2; early_stop++)
    {
      g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
      g_autoptr (EbbModule) blocks = NULL;
      g_autoptr (EbbTensor) x = test_randn (2, 2, 4, WIDTH, -1);
      g_autoptr (EbbProfiler) profiler = NULL;

      ebb_checkpoint_options_set_early_stop (options, early_stop);
      blocks = make_blocks (options);
      profiler = profile (blocks, x);
      /* Four products a block; what the last one and the sum after it give, backward does not need. */
      g_assert_cmpuint (ebb_profiler_count_ops (profiler, EBB_PHASE_FORWARD, "linear"), ==, 8);
      g_assert_cmpuint (ebb_profiler_count_ops (profiler, EBB_PHASE_RECOMPUTE, "linear"), ==, early_stop ? 6 : 8);
      g_assert_cmpuint (ebb_profiler_count_ops (profiler, EBB_PHASE_RECOMPUTE, "residual_dropout"), ==,
                        early_stop ? 0 : 2);
      g_assert_cmpuint (ebb_profiler_count_ops (profiler, EBB_PHASE_RECOMPUTE, "self_attention"), ==, 2);
      g_assert_cmpuint (ebb_profiler_count_ops (profiler, EBB_PHASE_BACKWARD, "linear"), ==, 8);
      g_assert_cmpuint (ebb_profiler_count_ops (profiler, EBB_PHASE_BACKWARD, "self_attention"), ==, 2);
      g_assert_cmpfloat (ebb_profiler_get_phase_seconds (profiler, EBB_PHASE_RECOMPUTE), >, 0);
    }
}

static EbbCheckpointPolicy
keep_attention (const char *op,
                guint ordinal,
                guint64 n_bytes,
                gpointer user_data,
                GError **error)
{
  return strcmp (op, "self_attention") == 0 ? EBB_CHECKPOINT_POLICY_MUST_SAVE
                                            : EBB_CHECKPOINT_POLICY_PREFER_RECOMPUTE;
}

static void
what_is_kept_is_not_recomputed (void)
{
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
  g_autoptr (EbbModule) blocks = NULL;
  g_autoptr (EbbTensor) x = test_randn (2, 2, 4, WIDTH, -1);
  g_autoptr (EbbProfiler) profiler = NULL;

  ebb_checkpoint_options_set_policy (options, keep_attention, NULL, NULL);
  blocks = make_blocks (options);
  profiler = profile (blocks, x);
  g_assert_cmpuint (ebb_profiler_count_ops (profiler, EBB_PHASE_RECOMPUTE, "linear"), ==, 6);
  g_assert_cmpuint (ebb_profiler_count_ops (profiler, EBB_PHASE_FORWARD, "self_attention"), ==, 2);
  g_assert_cmpuint (ebb_profiler_count_ops (profiler, EBB_PHASE_RECOMPUTE, "self_attention"), ==, 0);
}

static void
ops_know_their_module_in_every_phase (void)
{
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
  g_autoptr (EbbModule) blocks = make_blocks (options);
  g_autoptr (EbbTensor) x = test_randn (2, 2, 4, WIDTH, -1);
  g_autoptr (EbbProfiler) profiler = profile (blocks, x);
  g_autoptr (JsonParser) parser = NULL;
  JsonObject *object = get_json (profiler, &parser);
  JsonObject *attention = find (object, "modules", "path", "1.attn");

  g_assert_nonnull (attention);
  g_assert_nonnull (find (object, "modules", "path", "0.mlp"));
  g_assert_cmpfloat (json_object_get_double_member (attention, "forward"), >, 0);
  g_assert_cmpfloat (json_object_get_double_member (attention, "recompute"), >, 0);
  g_assert_cmpfloat (json_object_get_double_member (attention, "backward"), >, 0);
}

static void
a_profiler_changes_no_bit (void)
{
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
  g_autoptr (EbbModule) blocks = make_blocks (options);
  g_autoptr (EbbTensor) x = test_randn (2, 2, 4, WIDTH, -1);
  g_autoptr (TestOutcome) plain = test_train1 (blocks, x);
  g_autoptr (TestOutcome) profiled = NULL;
  g_autoptr (EbbProfiler) profiler = ebb_profiler_new ();

  start (profiler);
  profiled = test_train1 (blocks, x);
  ebb_profiler_stop (profiler);
  test_assert_same_outcome (plain, profiled);
}

/* -- the trace ----------------------------------------------------------------------------------------------------- */

#define MAX_DEPTH 64

/* Each event begins and ends within the one around it: kernels in ops, ops never in kernels. */
static void
check_nesting (JsonArray *events)
{
  struct
  {
    double end;
    const char *category;
  } open[MAX_DEPTH];
  guint depth = 0, n_kernels = 0;

  for (guint i = 0; i < json_array_get_length (events); i++)
    {
      JsonObject *event = json_array_get_object_element (events, i);
      double begin, end;

      if (strcmp (json_object_get_string_member (event, "ph"), "X") != 0)
        continue;
      begin = json_object_get_double_member (event, "ts");
      end = begin + json_object_get_double_member (event, "dur");
      /* Times are whole nanoseconds in microseconds. */
      while (depth > 0 && begin >= open[depth - 1].end - 1e-4)
        depth--;
      g_assert_cmpuint (depth, <, MAX_DEPTH);
      if (depth > 0)
        {
          g_assert_cmpfloat (end, <=, open[depth - 1].end + 1e-4);
          g_assert_cmpstr (open[depth - 1].category, !=, "kernel");
        }
      open[depth].end = end;
      open[depth].category = json_object_get_string_member (event, "cat");
      if (strcmp (open[depth].category, "kernel") == 0)
        {
          g_assert_cmpuint (depth, >, 0);
          g_assert_cmpstr (open[depth - 1].category, ==, "op");
          n_kernels++;
        }
      depth++;
    }
  g_assert_cmpuint (n_kernels, >, 0);
}

static guint
count_events (JsonArray *events,
              const char *category,
              const char *name)
{
  guint n = 0;

  for (guint i = 0; i < json_array_get_length (events); i++)
    {
      JsonObject *event = json_array_get_object_element (events, i);

      n += json_object_has_member (event, "cat")
           && strcmp (json_object_get_string_member (event, "cat"), category) == 0
           && strcmp (json_object_get_string_member (event, "name"), name) == 0;
    }
  return n;
}

static void
a_trace_nests_phases_modules_ops_and_kernels (void)
{
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
  g_autoptr (EbbModule) blocks = make_blocks (options);
  g_autoptr (EbbTensor) x = test_randn (2, 2, 4, WIDTH, -1);
  g_autoptr (EbbProfiler) profiler = profile (blocks, x);
  g_autofree char *folder = g_dir_make_tmp ("ebb-profiler-XXXXXX", NULL);
  g_autofree char *path = g_build_filename (folder, "trace.json", NULL);
  g_autofree char *text = NULL;
  g_autoptr (JsonParser) parser = NULL;
  GError *error = NULL;
  JsonArray *events;

  ebb_profiler_save_trace (profiler, path, &error);
  g_assert_no_error (error);
  g_assert_true (g_file_get_contents (path, &text, NULL, NULL));
  events = json_object_get_array_member (parse (text, &parser), "traceEvents");
  check_nesting (events);
  g_assert_cmpuint (count_events (events, "phase", "backward"), ==, 1);
  g_assert_cmpuint (count_events (events, "phase", "recompute"), ==, 2);
  g_assert_cmpuint (count_events (events, "module", "0.attn"), ==, 2); /* forward, and recomputed */
  g_assert_cmpuint (count_events (events, "op", "linear"), ==, 8 + 6 + 8);
  g_assert_cmpuint (count_events (events, "kernel", "attention_grad"), ==, 2);
  g_unlink (path);
  g_assert_cmpint (g_rmdir (folder), ==, 0); /* nothing else was left there */
}

static void
a_trace_that_cannot_be_written_is_an_error (void)
{
  g_autoptr (EbbProfiler) profiler = ebb_profiler_new ();
  g_autofree char *folder = g_dir_make_tmp ("ebb-profiler-XXXXXX", NULL);
  g_autofree char *path = g_build_filename (folder, "none", "trace.json", NULL);
  g_autoptr (GError) error = NULL;
  g_autoptr (GError) is_folder = NULL;

  g_assert_false (ebb_profiler_save_trace (profiler, path, &error));
  test_assert_error (error, EBB_ERROR_IO, path);
  g_assert_false (ebb_profiler_save_trace (profiler, folder, &is_folder));
  test_assert_error (is_folder, EBB_ERROR_IO, folder);
  g_assert_cmpint (g_rmdir (folder), ==, 0);
}

/* -- products ------------------------------------------------------------------------------------------------------ */

static void
flop_of_products_is_two_for_each_multiplication (void)
{
  g_autoptr (EbbModule) module = test_mlp_new (1);
  g_autoptr (EbbTensor) x = test_randn (2, 4, WIDTH, -1);
  g_autoptr (EbbProfiler) profiler = profile (module, x);
  g_autoptr (JsonParser) parser = NULL;
  JsonObject *object = get_json (profiler, &parser);
  const gint64 one = 2 * 4 * WIDTH * 2 * WIDTH;

  /* Backward has a product less: nobody wants the gradient of x. */
  g_assert_cmpint (get_op_number (object, "forward", "linear", "flop"), ==, 2 * one);
  g_assert_cmpint (get_op_number (object, "backward", "linear", "flop"), ==, 3 * one);
  g_assert_cmpint (get_op_number (object, "forward", "tanh", "flop"), ==, 4 * 2 * WIDTH);
}

static void
bytes_are_those_of_the_operands (void)
{
  g_autoptr (EbbModule) module = test_mlp_new (1);
  g_autoptr (EbbTensor) x = test_randn (2, 4, WIDTH, -1);
  g_autoptr (EbbProfiler) profiler = profile (module, x);
  g_autoptr (JsonParser) parser = NULL;
  JsonObject *object = get_json (profiler, &parser);
  const gint64 first = 4 * WIDTH + 2 * WIDTH * WIDTH + 2 * WIDTH + 4 * 2 * WIDTH;
  const gint64 second = 4 * 2 * WIDTH + 2 * WIDTH * WIDTH + WIDTH + 4 * WIDTH;

  g_assert_cmpint (get_op_number (object, "forward", "linear", "bytes"), ==, 4 * (first + second));
  g_assert_cmpint (get_op_number (object, "forward", "tanh", "bytes"), ==, 4 * 2 * 4 * 2 * WIDTH);
}

/* How often each kind of product was recorded: those that add to their result, and the others. */
static void
count_products (EbbProfiler *profiler,
                guint *n_kinds,
                gint64 *n_plain,
                gint64 *n_adding)
{
  g_autoptr (JsonParser) parser = NULL;
  JsonArray *products = json_object_get_array_member (get_json (profiler, &parser), "products");

  *n_kinds = json_array_get_length (products);
  *n_plain = *n_adding = 0;
  for (guint i = 0; i < *n_kinds; i++)
    {
      JsonObject *product = json_array_get_object_element (products, i);
      gint64 count = json_object_get_int_member (product, "count");

      if (json_object_get_boolean_member (product, "accumulate"))
        *n_adding += count;
      else
        *n_plain += count;
    }
}

static void
products_are_counted_by_shape_layout_and_accumulation (void)
{
  g_autoptr (EbbProfiler) profiler = ebb_profiler_new ();
  g_autoptr (EbbModule) module = NULL;
  g_autoptr (EbbTensor) x = test_randn (2, 4, WIDTH, -1);
  g_autoptr (EbbTensor) longer = test_randn (2, 5, WIDTH, -1);
  GError *error = NULL;
  guint n_kinds;
  gint64 n_plain, n_adding;

  module = ebb_linear_new (WIDTH, WIDTH, TRUE, &error);
  g_assert_no_error (error);
  start (profiler);
  train (module, x, NULL);
  count_products (profiler, &n_kinds, &n_plain, &n_adding);
  g_assert_cmpuint (n_kinds, ==, 2); /* x W^T + b; dy^T x */
  g_assert_cmpint (n_plain, ==, 2);
  train (module, x, NULL); /* the weight has a gradient now, to which its product adds */
  train (module, x, NULL);
  count_products (profiler, &n_kinds, &n_plain, &n_adding);
  g_assert_cmpuint (n_kinds, ==, 3);
  g_assert_cmpint (n_plain, ==, 4);
  g_assert_cmpint (n_adding, ==, 2);
  train (module, longer, NULL);
  count_products (profiler, &n_kinds, &n_plain, &n_adding);
  g_assert_cmpuint (n_kinds, ==, 5);
  ebb_profiler_stop (profiler);
}

/* -- the floor ----------------------------------------------------------------------------------------------------- */

static void
the_floor_is_measured_once_for_each_product (void)
{
  g_autoptr (EbbModule) module = test_mlp_new (1);
  g_autoptr (EbbTensor) x = test_randn (2, 4, WIDTH, -1);
  g_autoptr (EbbTensor) longer = test_randn (2, 5, WIDTH, -1);
  g_autoptr (EbbProfiler) profiler = profile (module, x);
  GError *error = NULL;
  double floor;

  g_assert_cmpfloat (ebb_profiler_get_floor_seconds (profiler), ==, -1);
  g_assert_cmpfloat (ebb_profiler_get_floor_share (profiler), ==, -1);
  ebb_profiler_measure_floor (profiler, &error);
  g_assert_no_error (error);
  floor = ebb_profiler_get_floor_seconds (profiler);
  g_assert_cmpfloat (floor, >, 0);
  g_assert_cmpfloat (ebb_profiler_get_attention_floor_seconds (profiler), ==, 0);
  g_assert_cmpfloat_with_epsilon (ebb_profiler_get_floor_share (profiler), floor / ebb_profiler_get_seconds (profiler),
                                  1e-12);
  /* What was measured is kept, to the last bit; what is new is not measured yet. */
  ebb_profiler_measure_floor (profiler, &error);
  g_assert_cmpfloat (ebb_profiler_get_floor_seconds (profiler), ==, floor);
  start (profiler);
  train (module, longer, NULL);
  ebb_profiler_stop (profiler);
  g_assert_cmpfloat (ebb_profiler_get_floor_seconds (profiler), ==, -1);
  ebb_profiler_measure_floor (profiler, &error);
  g_assert_no_error (error);
  g_assert_cmpfloat (ebb_profiler_get_floor_seconds (profiler), >, floor);
}

static void
attention_has_a_floor_of_its_own (void)
{
  g_autoptr (EbbModule) blocks = make_blocks (NULL);
  g_autoptr (EbbTensor) x = test_randn (2, 2, 4, WIDTH, -1);
  g_autoptr (EbbProfiler) profiler = profile (blocks, x);
  g_autoptr (JsonParser) parser = NULL;
  g_autofree char *table = NULL;
  g_autofree char *products = NULL;
  GError *error = NULL;
  JsonArray *attention;

  ebb_profiler_measure_floor (profiler, &error);
  g_assert_no_error (error);
  g_assert_cmpfloat (ebb_profiler_get_floor_seconds (profiler), >, 0);
  g_assert_cmpfloat (ebb_profiler_get_attention_floor_seconds (profiler), >, 0);
  attention = json_object_get_array_member (get_json (profiler, &parser), "attention");
  g_assert_cmpuint (json_array_get_length (attention), ==, 2); /* forward and backward, of equal blocks */
  for (guint i = 0; i < 2; i++)
    g_assert_cmpint (json_object_get_int_member (json_array_get_object_element (attention, i), "count"), ==, 2);
  /* 2 sequences of 4 positions, width 8; two products forward, five backward; two blocks; causal: half. */
  g_assert_cmpint (json_object_get_int_member (json_array_get_object_element (attention, 0), "flop"), ==,
                   2 * (2 * 2 * (2 * 4 * 4 * WIDTH)) / 2);
  g_assert_cmpint (json_object_get_int_member (json_array_get_object_element (attention, 1), "flop"), ==,
                   2 * (5 * 2 * (2 * 4 * 4 * WIDTH)) / 2);
  table = ebb_profiler_get_table (profiler);
  g_assert_nonnull (strstr (table, "floor, with those inside attention"));
  products = ebb_profiler_get_product_table (profiler);
  g_assert_nonnull (strstr (products, "f32 [8, 8] x [8, 24] + bias, b transposed\n"));
  g_assert_nonnull (strstr (products, "f32 [2, 2, 4, 4] to [2, 2, 4, 4], causal\n"));
}

static void
the_floor_takes_what_products_take (void)
{
  const gint64 shape[] = { 2, 4, 6, WIDTH };
  GError *error = NULL;
  g_autoptr (EbbTensor) query = ebb_randn (shape, 4, EBB_DTYPE_BF16, NULL, NULL, &error);
  g_autoptr (EbbTensor) key = ebb_randn ((gint64[]){ 2, 2, 5, WIDTH }, 4, EBB_DTYPE_BF16, NULL, NULL, &error);
  g_autoptr (EbbTensor) vector = ebb_randn ((gint64[]){ WIDTH }, 1, EBB_DTYPE_F32, NULL, NULL, &error);
  g_autoptr (EbbTensor) matrix = ebb_randn ((gint64[]){ 3, WIDTH, 4 }, 3, EBB_DTYPE_F32, NULL, NULL, &error);
  g_autoptr (EbbTensor) expanded = ebb_expand (vector, (gint64[]){ 3, 6, WIDTH }, 3, &error);
  g_autoptr (EbbTensor) empty = ebb_zeros ((gint64[]){ 0, WIDTH }, 2, EBB_DTYPE_F32, NULL, &error);
  g_autoptr (EbbProfiler) profiler = ebb_profiler_new ();
  g_autoptr (EbbTensor) grouped = NULL;
  g_autoptr (EbbTensor) vectors = NULL;
  g_autoptr (EbbTensor) broadcast = NULL;
  g_autoptr (EbbTensor) nothing = NULL;

  g_assert_no_error (error);
  start (profiler);
  /* Heads that share keys; a vector; a batch that is one matrix; no rows at all. */
  grouped = ebb_scaled_dot_product_attention (query, key, key, NULL, FALSE, 0, 0, NULL, &error);
  vectors = ebb_matmul (vector, matrix, &error);
  broadcast = ebb_matmul (expanded, matrix, &error);
  nothing = ebb_matmul (empty, matrix, &error);
  ebb_profiler_stop (profiler);
  ebb_profiler_measure_floor (profiler, &error);
  g_assert_no_error (error);
  g_assert_cmpfloat (ebb_profiler_get_floor_seconds (profiler), >, 0);
  g_assert_cmpfloat (ebb_profiler_get_attention_floor_seconds (profiler), >, 0);
}

/* -- starting and stopping ----------------------------------------------------------------------------------------- */

static void
nothing_is_recorded_after_stop (void)
{
  g_autoptr (EbbModule) module = test_mlp_new (1);
  g_autoptr (EbbTensor) x = test_randn (2, 4, WIDTH, -1);
  g_autoptr (EbbProfiler) profiler = profile (module, x);
  guint64 n = ebb_profiler_count_ops (profiler, EBB_PHASE_FORWARD, NULL);
  double seconds = ebb_profiler_get_seconds (profiler);

  g_assert_false (ebb_profiler_is_running (profiler));
  train (module, x, NULL);
  ebb_profiler_stop (profiler);
  g_assert_cmpuint (ebb_profiler_count_ops (profiler, EBB_PHASE_FORWARD, NULL), ==, n);
  g_assert_cmpfloat (ebb_profiler_get_seconds (profiler), ==, seconds);
  start (profiler);
  train (module, x, NULL);
  ebb_profiler_stop (profiler);
  g_assert_cmpuint (ebb_profiler_count_ops (profiler, EBB_PHASE_FORWARD, NULL), ==, 2 * n);
  ebb_profiler_clear (profiler);
  g_assert_cmpuint (ebb_profiler_count_ops (profiler, EBB_PHASE_FORWARD, NULL), ==, 0);
  g_assert_cmpfloat (ebb_profiler_get_seconds (profiler), ==, 0);
}

static void
one_profiler_runs_on_a_thread (void)
{
  g_autoptr (EbbProfiler) first = ebb_profiler_new ();
  g_autoptr (EbbProfiler) second = ebb_profiler_new ();
  g_autoptr (GError) twice = NULL;
  g_autoptr (GError) another = NULL;
  g_autoptr (GError) floor = NULL;

  start (first);
  g_assert_true (ebb_profiler_is_running (first));
  g_assert_false (ebb_profiler_start (first, &twice));
  test_assert_error (twice, EBB_ERROR_INVALID_ARGUMENT, "runs already");
  g_assert_false (ebb_profiler_start (second, &another));
  test_assert_error (another, EBB_ERROR_INVALID_ARGUMENT, "another one", "stop it first");
  g_assert_false (ebb_profiler_start (second, &another)); /* an error that is set already stays */
  g_assert_false (ebb_profiler_measure_floor (first, &floor));
  test_assert_error (floor, EBB_ERROR_INVALID_ARGUMENT, "stop it");
  ebb_profiler_stop (first);
  start (second);
  ebb_profiler_stop (second);
}

typedef enum
{
  START,
  STOP,
  CLEAR
} Deed;

typedef struct
{
  EbbProfiler *profiler;
  Deed deed;
} Meddling;

static EbbTensor *
meddle (EbbModule *self,
        EbbTensor *x,
        gpointer data,
        GError **error)
{
  Meddling *meddling = data;

  if (meddling->deed == START)
    start (meddling->profiler);
  else if (meddling->deed == STOP)
    ebb_profiler_stop (meddling->profiler);
  else
    ebb_profiler_clear (meddling->profiler);
  return ebb_tanh (x, error);
}

static void
it_may_start_stop_and_be_cleared_inside_a_module (void)
{
  static const guint counts[] = { 2, 1, 2 };

  for (int deed = START; deed <= CLEAR; deed++)
    {
      Meddling meddling = { ebb_profiler_new (), (Deed) deed };
      g_autoptr (EbbModule) module = test_chain_new (ebb_tanh_new (), test_lambda1_new (meddle, &meddling),
                                                     ebb_tanh_new (), NULL);
      g_autoptr (EbbTensor) x = test_randn (2, 4, WIDTH, -1);
      g_autoptr (EbbTensor) y = NULL;
      g_autofree char *table = NULL;
      GError *error = NULL;

      if (deed != START)
        start (meddling.profiler);
      y = ebb_module_call1 (module, x, &error);
      g_assert_no_error (error);
      ebb_profiler_stop (meddling.profiler);
      g_assert_cmpuint (ebb_profiler_count_ops (meddling.profiler, EBB_PHASE_FORWARD, "tanh")
                            + ebb_profiler_count_ops (meddling.profiler, EBB_PHASE_OTHER, "tanh"),
                        ==, counts[deed]);
      table = ebb_profiler_get_table (meddling.profiler);
      g_assert_nonnull (table);
      g_object_unref (meddling.profiler);
    }
}

/* -- threads ------------------------------------------------------------------------------------------------------- */

static gpointer
run_thread (gpointer data)
{
  g_autoptr (EbbModule) module = test_mlp_new (1);
  g_autoptr (EbbTensor) x = test_randn (2, 4, WIDTH, -1);

  return profile (module, x);
}

static void
each_thread_has_its_own (void)
{
  g_autoptr (EbbProfiler) own = ebb_profiler_new ();
  g_autoptr (EbbProfiler) other = NULL;
  g_autoptr (EbbTensor) x = test_randn (2, 4, WIDTH, -1);
  g_autoptr (EbbTensor) y = NULL;
  GThread *thread;
  GError *error = NULL;

  start (own);
  thread = g_thread_new ("other", run_thread, NULL);
  y = ebb_sqrt (x, &error);
  other = g_thread_join (thread);
  ebb_profiler_stop (own);
  g_assert_no_error (error);
  g_assert_cmpuint (ebb_profiler_count_ops (own, EBB_PHASE_FORWARD, NULL), ==, 0);
  g_assert_cmpuint (ebb_profiler_count_ops (own, EBB_PHASE_OTHER, NULL), ==, 1);
  g_assert_cmpuint (ebb_profiler_count_ops (other, EBB_PHASE_FORWARD, NULL), ==, 6);
  g_assert_cmpuint (ebb_profiler_count_ops (other, EBB_PHASE_FORWARD, "sqrt"), ==, 0);
}

static gpointer
start_alone (gpointer data)
{
  start (data);
  return NULL;
}

static void
a_thread_that_ends_lets_go (void)
{
  EbbProfiler *profiler = ebb_profiler_new ();

  g_thread_join (g_thread_new ("ends", start_alone, profiler));
  g_assert_false (ebb_profiler_is_running (profiler));
  start (profiler);
  ebb_profiler_stop (profiler);
  g_object_add_weak_pointer (G_OBJECT (profiler), (gpointer *) &profiler);
  g_object_unref (profiler);
  g_assert_null (profiler);
}

int
main (int argc,
      char **argv)
{
  g_test_init (&argc, &argv, NULL);
  g_test_add_func ("/profiler/every-op-of-a-step-is-counted-in-its-phase", every_op_of_a_step_is_counted_in_its_phase);
  g_test_add_func ("/profiler/times-add-up", times_add_up);
  g_test_add_func ("/profiler/what-is-recomputed-is-a-phase", what_is_recomputed_is_a_phase);
  g_test_add_func ("/profiler/what-is-kept-is-not-recomputed", what_is_kept_is_not_recomputed);
  g_test_add_func ("/profiler/ops-know-their-module-in-every-phase", ops_know_their_module_in_every_phase);
  g_test_add_func ("/profiler/changes-no-bit", a_profiler_changes_no_bit);
  g_test_add_func ("/profiler/trace/nests", a_trace_nests_phases_modules_ops_and_kernels);
  g_test_add_func ("/profiler/trace/cannot-be-written", a_trace_that_cannot_be_written_is_an_error);
  g_test_add_func ("/profiler/flop-of-products", flop_of_products_is_two_for_each_multiplication);
  g_test_add_func ("/profiler/bytes-of-operands", bytes_are_those_of_the_operands);
  g_test_add_func ("/profiler/products-are-counted-by-kind", products_are_counted_by_shape_layout_and_accumulation);
  g_test_add_func ("/profiler/floor/is-measured-once-for-each-product", the_floor_is_measured_once_for_each_product);
  g_test_add_func ("/profiler/floor/of-attention", attention_has_a_floor_of_its_own);
  g_test_add_func ("/profiler/floor/takes-what-products-take", the_floor_takes_what_products_take);
  g_test_add_func ("/profiler/nothing-is-recorded-after-stop", nothing_is_recorded_after_stop);
  g_test_add_func ("/profiler/one-runs-on-a-thread", one_profiler_runs_on_a_thread);
  g_test_add_func ("/profiler/starts-and-stops-inside-a-module", it_may_start_stop_and_be_cleared_inside_a_module);
  g_test_add_func ("/profiler/each-thread-has-its-own", each_thread_has_its_own);
  g_test_add_func ("/profiler/a-thread-that-ends-lets-go", a_thread_that_ends_lets_go);
  return g_test_run ();
}
