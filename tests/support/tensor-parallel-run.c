/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/tensor-parallel.h"

#include "dist/tensor-parallel/partition-private.h"
#include "support/device.h"
#include "tensor/tensor-private.h"

#include <math.h>
#include <string.h>

typedef struct
{
  TestParallel settings;
  EbbDevice *device;
  double *losses; /* [rank][pass] */
  TestParallelResult *result;
} Run;

EbbTensor *
test_parallel_gather (EbbTensor *shard, const EbbPartition *partition, GError **error)
{
  const int dim = (int) partition->dim;
  const gint64 n = ebb_tensor_get_dim (shard, dim) / partition->n_sections;
  g_autoptr (EbbTensor) detached = ebb_tensor_detach (shard);
  EbbTensor *sections[4] = { NULL }, *full = NULL;

  g_assert_cmpuint (partition->n_sections, <=, G_N_ELEMENTS (sections));
  for (guint i = 0; i < partition->n_sections; i++)
    {
      g_autoptr (EbbTensor) section = ebb_narrow (detached, dim, i * n, n, error);

      sections[i] = ebb_parallel_gather (section, dim, FALSE, partition->ranks, error);
    }
  if (error == NULL || *error == NULL)
    full = ebb_cat (sections, partition->n_sections, dim, error);
  for (guint i = 0; i < partition->n_sections; i++)
    g_clear_pointer (&sections[i], ebb_tensor_unref);
  return full;
}

/* -- one rank ------------------------------------------------------------------------------------------------------ */

/* The whole gradient, f32 on the CPU. */
static float *
take_gradient (EbbTensor *parameter, gsize *length, GError **error)
{
  g_autoptr (EbbTensor) gradient = parameter->grad != NULL ? ebb_tensor_detach (parameter->grad) : NULL;
  g_autoptr (EbbTensor) cast = NULL;
  g_autoptr (EbbTensor) dense = NULL;
  g_autoptr (EbbTensor) host = NULL;

  if (gradient == NULL)
    return NULL;
  if (parameter->partition != NULL)
    {
      EbbTensor *whole = test_parallel_gather (gradient, parameter->partition, error);

      ebb_tensor_unref (gradient);
      gradient = whole;
    }
  cast = gradient != NULL ? ebb_cast (gradient, EBB_DTYPE_F32, error) : NULL;
  dense = ebb_contiguous (cast, error);
  host = ebb_to_device (dense, ebb_device_get_cpu (), error);
  if (host == NULL)
    return NULL;
  *length = (gsize) ebb_tensor_get_n_elements (host);
  return g_memdup2 (ebb_tensor_get_data (host, NULL), *length * sizeof (float));
}

static gboolean
take_gradients (Run *run, EbbModule *model, guint rank, GError **error)
{
  TestParallelResult *result = run->result;
  guint n;
  g_autofree EbbTensor **parameters = ebb_module_get_parameters (model, TRUE, &n);
  gboolean ok = TRUE;

  if (rank == 0)
    {
      result->names = ebb_module_get_parameter_names (model, TRUE);
      result->gradients = g_new0 (float *, n + 1);
      result->lengths = g_new0 (gsize, n + 1);
    }
  for (guint i = 0; i < n; i++)
    {
      GError *local = NULL;
      gsize length = 0;
      float *values = ok ? take_gradient (parameters[i], &length, &local) : NULL;

      if (local != NULL)
        {
          ok = FALSE;
          g_propagate_error (error, local);
        }
      if (rank == 0)
        {
          result->gradients[i] = values;
          result->lengths[i] = length;
        }
      else
        g_free (values);
      ebb_tensor_unref (parameters[i]);
    }
  return ok;
}

static gboolean
run_pass (Run *run, EbbModule *model, guint rank, guint pass, GError **error)
{
  g_autoptr (EbbTensor) loss = NULL;

  if (run->settings.is_bf16)
    ebb_push_autocast (TRUE, EBB_DTYPE_BF16);
  loss = test_parallel_loss (&run->settings, model, pass, error);
  if (run->settings.is_bf16)
    ebb_pop_autocast ();
  return loss != NULL && ebb_tensor_get_item (loss, &run->losses[rank * run->settings.n_passes + pass], error)
         && ebb_tensor_backward (loss, error);
}

static gboolean
run_rank (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  Run *run = user_data;
  const TestParallel *settings = &run->settings;
  guint rank = ebb_process_group_get_rank (group);
  g_autoptr (EbbModule) model = NULL;

  ebb_set_default_device (run->device);
  model = test_parallel_model (settings, error);
  if (model == NULL || !test_parallel_divide (settings, model, group, error)
      || (settings->is_checkpointed
          && !ebb_checkpoint_wrap_each (model, EBB_TYPE_TRANSFORMER_BLOCK, NULL, error))
      || (settings->prepare != NULL && !settings->prepare (settings, model, group, error))
      || !ebb_model_parallel_manual_seed (77, G_OBJECT (group), error))
    return FALSE;
  ebb_process_group_reset_counters (group);
  for (guint pass = 0; pass < settings->n_passes; pass++)
    if (!run_pass (run, model, rank, pass, error))
      return FALSE;
  for (guint i = 0; rank == 0 && i < EBB_N_COLLECTIVES; i++)
    run->result->n_calls[i] = ebb_process_group_get_n_calls (group, (EbbCollective) i);
  return take_gradients (run, model, rank, error);
}

/* -- all ranks ----------------------------------------------------------------------------------------------------- */

TestParallelResult *
test_parallel_run (const TestParallel *self)
{
  Run run = { .settings = *self, .device = test_device () };
  TestParallelResult *result = g_new0 (TestParallelResult, 1);
  g_autofree double *losses = NULL;
  g_autoptr (GError) error = NULL;
  guint n_ranks = MAX (self->n_ranks, 1);

  run.settings.n_ranks = n_ranks;
  run.settings.n_passes = result->n_passes = MAX (self->n_passes, 1);
  run.result = result;
  run.losses = losses = g_new0 (double, (gsize) n_ranks * result->n_passes);
  ebb_run_ranks (n_ranks, run_rank, &run, &error);
  g_assert_no_error (error);
  for (guint i = 0; i < n_ranks * result->n_passes; i++)
    g_assert_cmpfloat (losses[i], ==, losses[i % result->n_passes]);
  result->losses = g_memdup2 (losses, result->n_passes * sizeof (double));
  return result;
}

void
test_parallel_result_free (TestParallelResult *self)
{
  for (guint i = 0; self->names[i] != NULL; i++)
    g_free (self->gradients[i]);
  g_strfreev (self->names);
  g_free (self->gradients);
  g_free (self->lengths);
  g_free (self->losses);
  g_free (self);
}

/* -- comparing ----------------------------------------------------------------------------------------------------- */

static double
get_greatest (const float *values, gsize n)
{
  double greatest = 0;

  for (gsize i = 0; i < n; i++)
    greatest = MAX (greatest, fabs ((double) values[i]));
  return greatest;
}

static void
assert_gradient_near (const char *name, const float *a, const float *b, gsize n, double tolerance)
{
  double scale = MAX (get_greatest (a, n), get_greatest (b, n));

  for (gsize i = 0; i < n; i++)
    if (!(fabs ((double) a[i] - (double) b[i]) <= tolerance * scale))
      g_error ("the gradient of %s differs at %" G_GSIZE_FORMAT ": %.9g and %.9g; the greatest is %.9g", name, i,
               (double) a[i], (double) b[i], scale);
}

void
test_parallel_assert_near (const TestParallelResult *a, const TestParallelResult *b, double tolerance)
{
  g_assert_cmpuint (a->n_passes, ==, b->n_passes);
  for (guint i = 0; i < a->n_passes; i++)
    if (!(fabs (a->losses[i] - b->losses[i]) <= tolerance * fabs (b->losses[i])))
      g_error ("the losses of pass %u differ: %.9g and %.9g", i, a->losses[i], b->losses[i]);
  g_assert_cmpstrv ((const char *const *) a->names, (const char *const *) b->names);
  for (guint i = 0; a->names[i] != NULL; i++)
    {
      g_assert_cmpuint (a->lengths[i], ==, b->lengths[i]);
      g_assert_true ((a->gradients[i] == NULL) == (b->gradients[i] == NULL));
      if (a->gradients[i] != NULL)
        assert_gradient_near (a->names[i], a->gradients[i], b->gradients[i], a->lengths[i], tolerance);
    }
}

void
test_parallel_assert_same (const TestParallelResult *a, const TestParallelResult *b)
{
  g_assert_cmpuint (a->n_passes, ==, b->n_passes);
  g_assert_cmpmem (a->losses, a->n_passes * sizeof (double), b->losses, b->n_passes * sizeof (double));
  g_assert_cmpstrv ((const char *const *) a->names, (const char *const *) b->names);
  for (guint i = 0; a->names[i] != NULL; i++)
    if (a->lengths[i] != b->lengths[i]
        || (a->lengths[i] > 0 && memcmp (a->gradients[i], b->gradients[i], a->lengths[i] * sizeof (float)) != 0))
      g_error ("the gradient of %s is not the same", a->names[i]);
}
