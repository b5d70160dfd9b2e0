/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers */
#include "dist/tensor-parallel/partition-private.h"
#include "support/device.h"
#include "support/ranks.h"
#include "support/tensor-parallel.h"
#include "support/tensors.h"
#include "tensor/tensor-private.h"

#include <string.h>

/* The parameters of a tensor-parallel model: frozen ones, converted ones, those with gradients already, those
 * that ranks of another dimension shard. */

#define TOLERANCE 1e-5

/* -- frozen -------------------------------------------------------------------------------------------------------- */

static gboolean
freeze (const TestParallel *self, EbbModule *model, EbbProcessGroup *group, GError **error)
{
  for (const char *const *name = self->data; *name != NULL; name++)
    {
      g_autoptr (EbbTensor) parameter = ebb_module_get_parameter (model, *name);

      g_assert_nonnull (parameter);
      if (!ebb_tensor_set_requires_grad (parameter, FALSE, error))
        return FALSE;
    }
  return TRUE;
}

static void
test_frozen (gconstpointer data)
{
  static const char *const names[] = { "wte.weight", "wpe.weight", "h.0.attn.c_attn.weight",
                                       "h.0.mlp.c_proj.bias", "h.1.ln_1.weight", "h.1.ln_2.bias",
                                       "h.1.attn.c_proj.weight", NULL };
  TestParallel settings = { .n_ranks = 2, .prepare = freeze, .data = names };
  g_autoptr (TestParallelResult) divided = NULL;
  g_autoptr (TestParallelResult) whole = NULL;

  settings.is_sequence_parallel = GPOINTER_TO_INT (data);
  divided = test_parallel_run (&settings);
  settings.is_full = TRUE;
  whole = test_parallel_run (&settings);
  test_parallel_assert_near (divided, whole, TOLERANCE);
  for (guint i = 0; divided->names[i] != NULL; i++)
    g_assert_true ((divided->gradients[i] == NULL) == g_strv_contains (names, divided->names[i]));
}

/* -- gradients that are asked for ---------------------------------------------------------------------------------- */

static gboolean
run_grad (EbbProcessGroup *group, gpointer is_sequence_parallel, GError **error)
{
  TestParallel settings = { .n_ranks = 2, .is_sequence_parallel = GPOINTER_TO_INT (is_sequence_parallel) };
  g_autoptr (EbbModule) model = test_parallel_model (&settings, error);
  g_autoptr (EbbTensor) loss = NULL;
  guint n, n_grads;
  g_autofree EbbTensor **parameters = NULL;
  g_autofree EbbTensor **grads = NULL;

  if (!test_parallel_divide (&settings, model, group, error))
    return FALSE;
  loss = test_parallel_loss (&settings, model, 0, error);
  if (loss == NULL)
    return FALSE;
  parameters = ebb_module_get_parameters (model, TRUE, &n);
  grads = ebb_grad (&loss, 1, parameters, n, NULL, 0, TRUE, &n_grads, error);
  if (grads == NULL || !ebb_tensor_backward (loss, error))
    return FALSE;
  for (guint i = 0; i < n; i++)
    {
      g_assert_nonnull (parameters[i]->grad);
      test_assert_near (grads[i], parameters[i]->grad, 1e-7); /* sums in another order */
      ebb_tensor_unref (grads[i]);
      ebb_tensor_unref (parameters[i]);
    }
  return TRUE;
}

static void
test_grad (gconstpointer is_sequence_parallel)
{
  test_ranks_run (2, run_grad, (gpointer) is_sequence_parallel);
}

/* -- converted, and with gradients --------------------------------------------------------------------------------- */

static gboolean
run_conversion (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  TestParallel settings = { .n_ranks = 2 };
  g_autoptr (EbbModule) model = test_parallel_model (&settings, error);
  g_autoptr (EbbTensor) weight = ebb_module_get_parameter (model, "h.0.mlp.c_fc.weight");
  g_autoptr (EbbTensor) detached = ebb_tensor_detach (weight);
  g_autoptr (EbbTensor) before = ebb_copy (detached, error);
  g_autoptr (EbbTensor) gathered = NULL;
  g_autoptr (EbbTensor) loss = NULL;
  EbbDevice *device = ebb_tensor_get_device (weight);

  if (!test_parallel_divide (&settings, model, group, error) || !ebb_module_to_dtype (model, EBB_DTYPE_BF16, error))
    return FALSE;
  g_assert_cmpint (weight->view.dtype, ==, EBB_DTYPE_BF16);
  g_assert_nonnull (weight->partition);
  loss = test_parallel_loss (&settings, model, 0, error);
  if (loss == NULL || !ebb_tensor_backward (loss, error))
    return FALSE;
  g_clear_pointer (&loss, ebb_tensor_unref);
  if (!ebb_module_to_dtype (model, EBB_DTYPE_F32, error)
      || !ebb_module_to_device (model, ebb_device_get_cpu (), error)
      || !ebb_module_to_device (model, device, error))
    return FALSE;
  g_assert_cmpint (weight->grad->view.dtype, ==, EBB_DTYPE_F32);
  gathered = test_parallel_gather (weight, weight->partition, error);
  if (gathered == NULL)
    return FALSE;
  test_assert_near (gathered, before, 1e-2);
  return TRUE;
}

static void
test_conversion (void)
{
  test_ranks_run (2, run_conversion, NULL);
}

/* A gradient that was there is divided with its parameter. */
static gboolean
run_gradient (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  TestParallel settings = { .n_ranks = 2 };
  g_autoptr (EbbModule) model = test_parallel_model (&settings, error);
  g_autoptr (EbbTensor) weight = ebb_module_get_parameter (model, "h.0.attn.c_attn.weight");
  g_autoptr (EbbTensor) loss = test_parallel_loss (&settings, model, 0, error);
  g_autoptr (EbbTensor) gradient = NULL;
  g_autoptr (EbbTensor) gathered = NULL;

  if (loss == NULL || !ebb_tensor_backward (loss, error))
    return FALSE;
  g_clear_pointer (&loss, ebb_tensor_unref);
  gradient = ebb_tensor_ref (weight->grad);
  if (!test_parallel_divide (&settings, model, group, error))
    return FALSE;
  g_assert_cmpint (ebb_tensor_get_dim (weight->grad, 0), ==, 48);
  gathered = test_parallel_gather (weight->grad, weight->partition, error);
  if (gathered == NULL)
    return FALSE;
  test_assert_near (gathered, gradient, 0);
  return TRUE;
}

static void
test_gradient (void)
{
  test_ranks_run (2, run_gradient, NULL);
}

/* -- sharded besides ----------------------------------------------------------------------------------------------- */

static guint64
count_parameters (void)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (test_device ());

  return ebb_memory_stats_get_current (stats, EBB_PURPOSE_PARAMETER);
}

typedef struct
{
  gboolean is_sequence_parallel;
  guint64 n_bytes; /* of parameters that the first rank has after the forward */
} Sharded;

static gboolean
run_sharded (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  static const char *const names[] = { "shard", "tensor" };
  static const gint64 sizes[] = { 2, 2 };
  Sharded *self = user_data;
  TestParallel settings = { .n_ranks = 2, .n_layers = 4, .is_sequence_parallel = self->is_sequence_parallel };
  g_autoptr (EbbMesh) mesh = ebb_mesh_new (group, names, sizes, 2, error);
  g_autoptr (EbbModule) model = test_parallel_model (&settings, error);
  g_autoptr (EbbModule) h = ebb_module_get_child (model, "h");
  g_autoptr (EbbTensor) loss = NULL;

  if (mesh == NULL || !test_parallel_divide (&settings, model, ebb_mesh_get_group (mesh, "tensor"), error)
      || !ebb_fully_shard_wrap_each (h, EBB_TYPE_TRANSFORMER_BLOCK, ebb_mesh_get_group (mesh, "shard"), NULL, error))
    return FALSE;
  loss = test_parallel_loss (&settings, model, 0, error);
  if (loss == NULL)
    return FALSE;
  if (ebb_process_group_get_rank (group) == 0)
    self->n_bytes = count_parameters ();
  return ebb_tensor_backward (loss, error);
}

/* Sharded data parallel takes the memory of parameters away after a block's forward: a node of a normalisation must
 * keep the parameter itself, not a view of what is gathered. */
static void
test_sharded (void)
{
  Sharded without = { FALSE, 0 }, with = { TRUE, 0 };

  if (!test_device_is_cpu ()) /* other devices' memory is counted for all ranks */
    return;
  test_ranks_run (4, run_sharded, &without);
  test_ranks_run (4, run_sharded, &with);
  g_assert_cmpuint (with.n_bytes, ==, without.n_bytes);
}

/* -- as many rows as ranks ----------------------------------------------------------------------------------------- */

static gboolean
run_one_row_each (EbbProcessGroup *group, gpointer data, GError **error)
{
  g_autoptr (EbbTensor) parameter = test_randn (1, 2, 3, -1);
  EbbCut *cut = ebb_cut_new (parameter, "weight", 0, 1, group, error);

  g_clear_pointer (&cut, ebb_cut_unref);
  return error == NULL || *error == NULL;
}

static void
test_one_row_each (void)
{
  test_ranks_run (2, run_one_row_each, NULL);
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_data_func ("/parallel-parameters/frozen", GINT_TO_POINTER (FALSE), test_frozen);
  g_test_add_data_func ("/parallel-parameters/frozen-sequence-sharded", GINT_TO_POINTER (TRUE), test_frozen);
  g_test_add_data_func ("/parallel-parameters/grad-gives-the-same", GINT_TO_POINTER (FALSE), test_grad);
  g_test_add_data_func ("/parallel-parameters/grad-gives-the-same-sequence-sharded", GINT_TO_POINTER (TRUE),
                        test_grad);
  g_test_add_func ("/parallel-parameters/converted", test_conversion);
  g_test_add_func ("/parallel-parameters/gradients-are-sharded", test_gradient);
  g_test_add_func ("/parallel-parameters/one-row-each", test_one_row_each);
  g_test_add_func ("/parallel-parameters/sharded-memory-goes-after-the-forward", test_sharded);
  return g_test_run ();
}
