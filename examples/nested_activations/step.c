/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* One training step of a small model, wrapped in one of several ways, and its memory. */
#include "step.h"

static EbbModule *
make_model (const Sizes *sizes,
            GError **error)
{
  g_autoptr (EbbModule) model = ebb_sequential_new ();

  ebb_manual_seed (1);
  for (int i = 0; i < sizes->blocks; i++)
    {
      g_autoptr (EbbModule) block =
          ebb_transformer_block_new (sizes->width, sizes->heads, sizes->dropout, TRUE, TRUE, error);

      if (block == NULL || !ebb_sequential_append (EBB_SEQUENTIAL (model), block, error))
        return NULL;
    }
  return ebb_module_to_device (model, sizes->device, error) ? g_steal_pointer (&model) : NULL;
}

/* -- wrapping ------------------------------------------------------------------------------------------------------ */

static gboolean
is_part (EbbModule *module)
{
  return EBB_IS_MULTI_HEAD_ATTENTION (module) || EBB_IS_MLP (module);
}

static gboolean
pick_part (EbbModule *module,
           const char *name,
           gpointer user_data)
{
  return is_part (module);
}

static gboolean
wrap_model (EbbModule *model,
            EbbCheckpointOptions *options,
            GError **error)
{
  g_autoptr (EbbModule) same = ebb_checkpoint_wrapper (model, options, error);

  return same != NULL;
}

/* @store is NULL for none. */
static gboolean
wrap (EbbModule *model,
      const Way *way,
      EbbSavedTensorHooks *store,
      GError **error)
{
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();

  ebb_checkpoint_options_set_store (options, store);
  return (!(way->what & WRAP_PARTS) || ebb_checkpoint_wrap_if (model, pick_part, NULL, NULL, error))
         && (!(way->what & WRAP_BLOCKS)
             || ebb_checkpoint_wrap_each (model, EBB_TYPE_TRANSFORMER_BLOCK, options, error))
         && (!(way->what & WRAP_MODEL) || wrap_model (model, options, error));
}

static gboolean
count_call (EbbModule *module,
            EbbArgs *args,
            EbbArgs *result,
            gpointer user_data,
            GError **error)
{
  (*(guint *) user_data)++;
  return TRUE;
}

/* Recomputes are forwards, too, and hooks see them. */
static void
count_forwards (EbbModule *model,
                Step *step)
{
  guint n;
  g_autofree EbbModule **modules = ebb_module_get_modules (model, &n);

  for (guint i = 0; i < n; i++)
    {
      if (EBB_IS_TRANSFORMER_BLOCK (modules[i]))
        ebb_module_add_forward_pre_hook (modules[i], count_call, &step->n_blocks, NULL);
      else if (is_part (modules[i]))
        ebb_module_add_forward_pre_hook (modules[i], count_call, &step->n_parts, NULL);
      g_object_unref (modules[i]);
    }
}

/* -- measuring ----------------------------------------------------------------------------------------------------- */

static guint64
get_activation_bytes (EbbDevice *device)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (device);

  return ebb_memory_stats_get_current (stats, EBB_PURPOSE_ACTIVATION);
}

static guint64
get_bytes (EbbDevice *device)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (device);

  return ebb_memory_stats_get_total (stats);
}

static guint64
get_peak (EbbDevice *device)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (device);

  return ebb_memory_stats_get_peak_total (stats);
}

/* The bytes that the wrappers hold, in any place. */
static guint64
sum_saved_bytes (EbbModule *model)
{
  guint n;
  g_autofree EbbModule **modules = ebb_module_get_modules (model, &n);
  guint64 sum = 0;

  for (guint i = 0; i < n; i++)
    {
      g_autoptr (EbbCheckpointStats) stats = ebb_checkpoint_get_stats (modules[i]);

      sum += stats != NULL ? stats->saved_bytes : 0;
      g_object_unref (modules[i]);
    }
  return sum;
}

/* Copies gradients to host memory, to compare them. */
static gboolean
take_gradients (Step *self,
                EbbModule *model,
                GError **error)
{
  guint n;
  g_autofree EbbTensor **parameters = ebb_module_get_parameters (model, TRUE, &n);
  gboolean ok = TRUE;

  self->names = ebb_module_get_parameter_names (model, TRUE);
  for (guint i = 0; i < n; i++)
    {
      g_autoptr (EbbTensor) gradient = ebb_tensor_get_grad (parameters[i]);
      EbbTensor *copy = ok ? ebb_to_device (gradient, NULL, error) : NULL;

      ok = copy != NULL;
      if (ok)
        g_ptr_array_add (self->gradients, copy);
      ebb_tensor_unref (parameters[i]);
    }
  return ok;
}

/* The sum of the model's result for random numbers. Nobody else holds the input afterwards, so a store can free its
 * memory. */
static EbbTensor *
run_forward (EbbModule *model,
             const Sizes *sizes,
             GError **error)
{
  const gint64 shape[] = { sizes->batch, sizes->tokens, sizes->width };
  g_autoptr (EbbTensor) input = ebb_randn (shape, G_N_ELEMENTS (shape), EBB_DTYPE_F32, sizes->device, NULL, error);
  g_autoptr (EbbTensor) output = ebb_module_call1 (model, input, error);

  return ebb_sum (output, NULL, 0, FALSE, error);
}

/* The bytes that a store moved, without those that it left in place. */
static guint64
get_moved_bytes (EbbSavedTensorHooks *store)
{
  if (store == NULL || ebb_activation_store_get_bytes_put (EBB_ACTIVATION_STORE (store)) == 0)
    return 0;
  return ebb_activation_store_get_bytes_held (EBB_ACTIVATION_STORE (store));
}

/* Existing gradients must not count in the next step. */
static gboolean
make_gradients (EbbModule *model,
                const Sizes *sizes,
                GError **error)
{
  g_autoptr (EbbTensor) loss = run_forward (model, sizes, error);

  return ebb_tensor_backward (loss, error);
}

static gboolean
measure (Step *self,
         EbbModule *model,
         const Sizes *sizes,
         EbbSavedTensorHooks *store,
         GError **error)
{
  guint64 before = get_activation_bytes (sizes->device), all_before = get_bytes (sizes->device);
  g_autoptr (EbbTensor) loss = run_forward (model, sizes, error);

  if (loss == NULL)
    return FALSE;
  self->in_store = get_moved_bytes (store);
  self->outer = sum_saved_bytes (model) - self->in_store;
  self->inner = get_activation_bytes (sizes->device) - before - self->outer;
  if (!ebb_tensor_backward (loss, error))
    return FALSE;
  self->at_most = get_peak (sizes->device) - all_before;
  return take_gradients (self, model, error);
}

gboolean
step_run (Step *self,
          const Sizes *sizes,
          const Way *way,
          GError **error)
{
  g_autoptr (EbbModule) model = make_model (sizes, error);
  g_autoptr (EbbSavedTensorHooks) store = NULL;

  *self = (Step){ .gradients = g_ptr_array_new_with_free_func ((GDestroyNotify) ebb_tensor_unref) };
  if (model == NULL)
    return FALSE;
  if (way->where != STAY)
    {
      store = way->where == TO_HOST ? ebb_host_store_new () : ebb_disk_store_new (sizes->folder, error);
      if (store == NULL)
        return FALSE;
      g_object_set (store, "least-size", (guint64) 0, NULL);
      /* Sources in flight are on the device too; without any the columns add up. */
      g_object_set (store, "in-flight", 0, NULL);
    }
  if (!wrap (model, way, store, error) || !make_gradients (model, sizes, error))
    return FALSE;
  count_forwards (model, self);
  ebb_memory_reset_peaks (sizes->device);
  return measure (self, model, sizes, store, error);
}

void
step_clear (Step *self)
{
  g_clear_pointer (&self->names, g_strfreev);
  g_clear_pointer (&self->gradients, g_ptr_array_unref);
}

const char *
step_find_difference (const Step *self,
                      const Step *other)
{
  for (guint i = 0; i < self->gradients->len; i++)
    if (!ebb_tensor_equal (g_ptr_array_index (self->gradients, i), g_ptr_array_index (other->gradients, i)))
      return self->names[i];
  return NULL;
}
