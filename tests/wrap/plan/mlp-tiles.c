/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers one-thread */
/* A plan's tiles of MLPs: put on and taken off, with the bits of no tiles, and the bytes that they save. */
#include "wrap/plan/memory-plan-private.h"
#include "wrap/plan/mlp-tiles-private.h"

#include "support/device.h"
#include "support/tensors.h"
#include "support/training.h"

#include <glib/gstdio.h>
#include <string.h>

#define ROWS 960 /* of a tile on one thread */
#define BATCH 6
#define CONTEXT 640
#define WIDTH 16
#define N_LAYERS 2

static EbbModule *
make_gpt (void)
{
  g_autoptr (EbbGptConfig) config = ebb_gpt_config_new ();
  g_autoptr (GError) error = NULL;
  EbbModule *gpt;

  config->layers = N_LAYERS;
  config->width = WIDTH;
  config->heads = 2;
  config->context = CONTEXT;
  config->vocab = 50;
  config->dropout = 0.1;
  ebb_manual_seed (5);
  gpt = ebb_gpt_new (config, &error);
  g_assert_no_error (error);
  return gpt;
}

/* A plan with tiles; its blocks are checkpoints or keep everything. */
static EbbMemoryPlan *
make_plan (EbbModule *gpt,
           gint64 n_rows,
           gboolean is_checkpoint)
{
  EbbMemoryPlan *plan = ebb_memory_plan_new_empty (gpt);

  for (guint i = 0; i < N_LAYERS; i++)
    {
      const EbbPlanRow row = { .path = g_strdup_printf ("h.%u", i), .is_checkpoint = is_checkpoint };

      ebb_memory_plan_add_row (plan, &row);
    }
  if (n_rows != 0)
    ebb_memory_plan_add_rung (plan, EBB_PLAN_MLP_TILES, n_rows);
  return plan;
}

static EbbModule *
get_mlp (EbbModule *gpt,
         guint i)
{
  g_autoptr (EbbModule) h = ebb_module_get_child (gpt, "h");
  g_autoptr (EbbModule) block = ebb_module_list_get (EBB_MODULE_LIST (h), i);
  g_autoptr (EbbModule) mlp = ebb_module_get_child (block, "mlp");

  return mlp; /* the block holds it */
}

static guint
count_tiled (EbbModule *gpt)
{
  guint n = 0;

  for (guint i = 0; i < N_LAYERS; i++)
    n += ebb_tile_is_wrapped (get_mlp (gpt, i));
  return n;
}

/* -- steps --------------------------------------------------------------------------------------------------------- */

typedef struct
{
  EbbTensor **grads;
  guint n_grads;
  double loss;
  guint64 peak; /* of activations, in bytes */
} Step;

static void
step_clear (Step *step)
{
  for (guint i = 0; i < step->n_grads; i++)
    ebb_tensor_unref (step->grads[i]);
  g_free (step->grads);
}

G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (Step, step_clear)

static gboolean
run (EbbModule *gpt,
     gpointer data,
     GError **error)
{
  g_autoptr (EbbTensor) tokens = test_tokens (1, 50, BATCH, CONTEXT, -1);
  g_autoptr (EbbTensor) loss = ebb_gpt_loss (EBB_GPT (gpt), tokens, tokens, error);
  Step *step = data;

  if (loss == NULL || (step != NULL && !ebb_tensor_get_item (loss, &step->loss, error)))
    return FALSE;
  return ebb_tensor_backward (loss, error);
}

static Step
take_step (EbbModule *gpt)
{
  g_autoptr (EbbMemoryStats) stats = NULL;
  g_autofree EbbTensor **parameters = NULL;
  g_autoptr (GError) error = NULL;
  Step step = { 0 };

  ebb_manual_seed (6);
  ebb_module_zero_grad (gpt);
  ebb_memory_reset_peaks (test_device ());
  run (gpt, &step, &error);
  g_assert_no_error (error);
  stats = ebb_memory_get_stats (test_device ());
  step.peak = ebb_memory_stats_get_peak (stats, EBB_PURPOSE_ACTIVATION);
  parameters = ebb_module_get_parameters (gpt, TRUE, &step.n_grads);
  step.grads = g_new0 (EbbTensor *, step.n_grads);
  for (guint i = 0; i < step.n_grads; i++)
    {
      g_autoptr (EbbTensor) grad = ebb_tensor_get_grad (parameters[i]);

      step.grads[i] = ebb_copy (grad, &error);
      g_assert_no_error (error);
      ebb_tensor_unref (parameters[i]);
    }
  return step;
}

static void
assert_same (const Step *a,
             const Step *b)
{
  const gboolean is_exact = !g_str_has_prefix (ebb_device_get_name (test_device ()), "cuda");

  g_assert_cmpfloat (ABS (a->loss - b->loss), <=, is_exact ? 0 : 1e-4);
  g_assert_cmpuint (a->n_grads, ==, b->n_grads);
  for (guint i = 0; i < a->n_grads; i++)
    test_assert_near (a->grads[i], b->grads[i], is_exact ? 0 : 1e-3);
}

/* -- tests --------------------------------------------------------------------------------------------------------- */

static void
test_bits_and_bytes (gconstpointer data)
{
  const gboolean is_checkpoint = GPOINTER_TO_INT (data);
  /* In checkpoints one block's hidden tensor is there at a time; else each block keeps its own. */
  const guint64 hidden = (guint64) BATCH * CONTEXT * 4 * WIDTH * sizeof (float);
  g_autoptr (EbbModule) gpt = make_gpt ();
  g_autoptr (EbbMemoryPlan) without = make_plan (gpt, 0, is_checkpoint);
  g_autoptr (EbbMemoryPlan) with = make_plan (gpt, ROWS, is_checkpoint);
  g_auto (Step) plain = { 0 };
  g_auto (Step) tiled = { 0 };
  g_auto (Step) after = { 0 };
  g_autoptr (GError) error = NULL;

  g_assert_true (ebb_memory_plan_apply (without, &error));
  plain = take_step (gpt);
  ebb_memory_plan_unapply (without);

  g_assert_true (ebb_memory_plan_apply (with, &error));
  g_assert_no_error (error);
  g_assert_cmpuint (count_tiled (gpt), ==, N_LAYERS);
  g_assert_cmpint (ebb_tile_get_rows (get_mlp (gpt, 0)), ==, ROWS);
  tiled = take_step (gpt);
  assert_same (&plain, &tiled);
  g_assert_cmpuint (tiled.peak + (is_checkpoint ? 1 : N_LAYERS) * hidden / 4, <, plain.peak);

  ebb_memory_plan_unapply (with);
  g_assert_cmpuint (count_tiled (gpt), ==, 0);
  ebb_memory_plan_apply (without, &error);
  g_assert_no_error (error);
  after = take_step (gpt);
  assert_same (&plain, &after);
  g_assert_cmpuint (after.peak, ==, plain.peak);
}

/* A plan that was made for f32 changes no bits under autocast either. */
static void
test_autocast (void)
{
  g_autoptr (EbbModule) gpt = make_gpt ();
  g_autoptr (EbbMemoryPlan) plan = make_plan (gpt, ROWS, FALSE);
  g_auto (Step) plain = { 0 };
  g_auto (Step) tiled = { 0 };
  g_autoptr (GError) error = NULL;

  ebb_push_autocast (TRUE, EBB_DTYPE_BF16);
  plain = take_step (gpt);
  g_assert_true (ebb_memory_plan_apply (plan, &error));
  tiled = take_step (gpt);
  ebb_pop_autocast ();
  assert_same (&plain, &tiled);
}

/* A dry step of the planned model has the bytes of the real one. */
static void
test_dry_steps (void)
{
  g_autoptr (EbbModule) gpt = make_gpt ();
  g_autoptr (EbbMemoryPlan) plan = make_plan (gpt, ROWS, TRUE);
  g_autoptr (EbbMemoryEstimate) estimate = NULL;
  g_auto (Step) warm = { 0 };
  g_auto (Step) step = { 0 };
  g_autoptr (GError) error = NULL;

  g_assert_true (ebb_memory_plan_apply (plan, &error));
  warm = take_step (gpt);
  step = take_step (gpt);
  estimate = ebb_memory_estimate_new (gpt, test_device (), run, NULL, &error);
  g_assert_no_error (error);
  g_assert_cmpuint (ebb_memory_estimate_get_peak (estimate, EBB_PURPOSE_ACTIVATION), ==, step.peak);
}

static void
test_files_and_table (void)
{
  g_autofree char *folder = g_dir_make_tmp ("ebb-tiles-XXXXXX", NULL);
  g_autofree char *path = g_build_filename (folder, "plan.json", NULL);
  g_autoptr (EbbModule) gpt = make_gpt ();
  g_autoptr (EbbMemoryPlan) plan = make_plan (gpt, 2 * ROWS, FALSE), loaded = NULL;
  g_autofree char *text = NULL;
  g_autoptr (GError) error = NULL;

  g_assert_true (ebb_memory_plan_save (plan, path, &error));
  loaded = ebb_memory_plan_load (gpt, path, &error);
  g_assert_no_error (error);
  g_remove (path);
  g_rmdir (folder);
  text = ebb_memory_plan_to_string (loaded);
  g_assert_nonnull (strstr (text, "\nmlp-tiles: each MLP on 1920 rows at a time\n"));
  g_assert_true (ebb_memory_plan_apply (loaded, &error));
  g_assert_cmpint (ebb_tile_get_rows (get_mlp (gpt, 1)), ==, 2 * ROWS);
  ebb_memory_plan_unapply (loaded);
  g_assert_cmpuint (count_tiled (gpt), ==, 0);
}

static void
check_refused (EbbMemoryPlan *plan,
               EbbModule *gpt,
               const char *a,
               const char *b)
{
  const guint n_tiled = count_tiled (gpt);
  g_autoptr (GError) error = NULL;

  g_assert_false (ebb_memory_plan_apply (plan, &error));
  test_assert_error (error, EBB_ERROR_STATE, a, b);
  g_assert_cmpuint (count_tiled (gpt), ==, n_tiled);
}

/* The user's tiles stay, and sizes that would change bits are refused. */
static void
test_what_is_kept_and_refused (void)
{
  g_autoptr (EbbModule) gpt = make_gpt ();
  g_autoptr (EbbMemoryPlan) plan = make_plan (gpt, ROWS, FALSE);
  g_autoptr (EbbMemoryPlan) uneven = make_plan (gpt, ROWS + 1, FALSE);
  g_autoptr (EbbMemoryPlan) unknown = make_plan (gpt, 0, FALSE);
  g_autoptr (EbbMemoryPlan) other = make_plan (gpt, ROWS, FALSE);
  g_autoptr (GError) error = NULL;

  g_object_unref (ebb_tile_wrapper (get_mlp (gpt, 1), 2 * ROWS, &error));
  g_assert_true (ebb_memory_plan_apply (plan, &error));
  g_assert_cmpint (ebb_tile_get_rows (get_mlp (gpt, 0)), ==, ROWS);
  g_assert_cmpint (ebb_tile_get_rows (get_mlp (gpt, 1)), ==, 2 * ROWS);
  ebb_memory_plan_unapply (plan);
  g_assert_false (ebb_tile_is_wrapped (get_mlp (gpt, 0)));
  g_assert_cmpint (ebb_tile_get_rows (get_mlp (gpt, 1)), ==, 2 * ROWS);

  if (ebb_plan_mlp_tiles_keep_bits (gpt, test_device ()))
    {
      check_refused (uneven, gpt, "961 rows", "multiple of 960");
      ebb_set_num_threads (2);
      if (ebb_get_num_threads () == 2) /* with ThreadSanitizer there is always one */
        check_refused (plan, gpt, "960 rows", "2 threads");
      ebb_set_num_threads (1);
    }
  ebb_memory_plan_add_rung (unknown, "half-the-width", 1);
  check_refused (unknown, gpt, "\"half-the-width\"", "doesn't know");
  /* A row that doesn't fit takes the tiles off again. */
  g_array_index (other->rows, EbbPlanRow, 1).is_taken = TRUE;
  check_refused (other, gpt, "h.1", "not wrapped now");
}

static void
test_sizes (void)
{
  g_autoptr (EbbModule) gpt = make_gpt ();
  g_autoptr (EbbModule) linear = ebb_linear_new (4, 4, TRUE, NULL);
  g_autoptr (GError) error = NULL;

  g_assert_cmpint (ebb_plan_mlp_tiles_choose (gpt, 2 * ROWS - 1), ==, 0);
  g_assert_cmpint (ebb_plan_mlp_tiles_choose (gpt, 2 * ROWS), ==, ROWS);
  g_assert_cmpint (ebb_plan_mlp_tiles_choose (gpt, 8 * ROWS), ==, ROWS);
  g_assert_cmpint (ebb_plan_mlp_tiles_choose (gpt, 8 * ROWS + 1), ==, 2 * ROWS);
  g_assert_cmpint (ebb_plan_mlp_tiles_choose (gpt, 20 * ROWS), ==, 3 * ROWS);
  g_assert_cmpint (ebb_plan_mlp_tiles_choose (linear, 9 * ROWS), ==, 0);
  g_assert_true (ebb_plan_mlp_tiles_keep_bits (gpt, ebb_device_get_cpu ()));
  ebb_module_to_dtype (gpt, EBB_DTYPE_BF16, &error);
  g_assert_no_error (error);
  g_assert_false (ebb_plan_mlp_tiles_keep_bits (gpt, ebb_device_get_cpu ()));
  g_assert_true (ebb_tile_wrap_each (gpt, EBB_TYPE_MLP, 0, &error));
  g_assert_cmpint (ebb_plan_mlp_tiles_choose (gpt, 9 * ROWS), ==, 0);
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  ebb_set_num_threads (1);
  if (!test_device_is_slow ()) /* steps of thousands of rows */
    {
      g_test_add_data_func ("/plan/mlp-tiles/bits-and-bytes/keep", GINT_TO_POINTER (FALSE), test_bits_and_bytes);
      g_test_add_data_func ("/plan/mlp-tiles/bits-and-bytes/checkpoint", GINT_TO_POINTER (TRUE), test_bits_and_bytes);
      g_test_add_func ("/plan/mlp-tiles/dry-steps", test_dry_steps);
      g_test_add_func ("/plan/mlp-tiles/autocast", test_autocast);
    }
  g_test_add_func ("/plan/mlp-tiles/files-and-table", test_files_and_table);
  g_test_add_func ("/plan/mlp-tiles/what-is-kept-and-refused", test_what_is_kept_and_refused);
  g_test_add_func ("/plan/mlp-tiles/sizes", test_sizes);
  return g_test_run ();
}
