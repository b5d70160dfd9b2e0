/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers */
#include "support/tensor-parallel.h"

#include "support/device.h"
#include "support/ranks.h"

#include <string.h>

/* Each layer is a unit of its own, so its parameters are sharded as soon as its call ends, while frames, stores and
 * rematerialized results of the block around it still need them. */

#define N_RANKS 2
#define N_STEPS 2

typedef enum
{
  AS_IT_IS,
  RECOMPUTED,
  SELECTIVE,
  STORED,
  RECOMPUTED_AND_STORED,
  N_WAYS
} Way;

typedef struct
{
  const char *name;
  gboolean flatten, lowers, autocast;
  EbbReshard reshard;
} Sharding;

static const Sharding shardings[] = {
  { .name = "rows" },
  { .name = "flat", .flatten = TRUE },
  { .name = "bf16", .lowers = TRUE },
  { .name = "flat-bf16", .flatten = TRUE, .lowers = TRUE },
  { .name = "autocast", .autocast = TRUE },
  { .name = "never", .reshard = EBB_RESHARD_NEVER },
  { .name = "flat-never", .flatten = TRUE, .reshard = EBB_RESHARD_NEVER },
};

static const TestParallel models[] = {
  { .is_untied = TRUE },
  { .is_bert = TRUE },
  { .decoder = "llama2" },
  { .decoder = "qwen3" },
  { .decoder = "gemma3" },
};

/* -- wrapping ------------------------------------------------------------------------------------------------------ */

static gboolean
is_layer (EbbModule *module, const char *name, gpointer user_data)
{
  return EBB_IS_LINEAR (module) || EBB_IS_EMBEDDING (module) || EBB_IS_LAYER_NORM (module) || EBB_IS_RMS_NORM (module);
}

static gboolean
is_block (EbbModule *module, const char *name, gpointer user_data)
{
  return EBB_IS_TRANSFORMER_BLOCK (module);
}

static gboolean
shard (EbbModule *model, const Sharding *how, EbbProcessGroup *group, GError **error)
{
  g_autoptr (EbbFullyShardOptions) options = ebb_fully_shard_options_new ();

  g_object_set (options, "flatten", how->flatten, "reshard-after-forward", how->reshard, NULL);
  if (how->lowers && !ebb_fully_shard_options_set_compute_dtype (options, EBB_DTYPE_BF16, error))
    return FALSE;
  return ebb_fully_shard_wrap_if (model, is_layer, NULL, group, options, error);
}

static gboolean
checkpoint (EbbModule *model, Way way, GError **error)
{
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();

  if (way == AS_IT_IS || way == STORED)
    return TRUE;
  g_object_set (options, "determinism-check", EBB_DETERMINISM_CHECK_VALUES, NULL);
  if (way == SELECTIVE)
    ebb_checkpoint_options_set_policy_selective (options);
  return ebb_checkpoint_wrap_if (model, is_block, NULL, options, error);
}

/* -- steps --------------------------------------------------------------------------------------------------------- */

/* What is seen of a step: the loss, then the gradients of this rank's shards, in order. */
static gboolean
look (EbbTensor *tensor, GByteArray *seen, GError **error)
{
  g_autoptr (EbbTensor) host = ebb_to_device (tensor, ebb_device_get_cpu (), error);
  const guint8 *data = host != NULL ? ebb_tensor_get_data (host, error) : NULL;

  if (data == NULL)
    return FALSE;
  g_byte_array_append (seen, data, (guint) ebb_tensor_get_n_bytes (host));
  return TRUE;
}

static gboolean
look_at_gradients (EbbModule *model, GByteArray *seen, GError **error)
{
  guint n;
  g_autofree EbbTensor **parameters = ebb_module_get_parameters (model, TRUE, &n);
  gboolean ok = TRUE;

  for (guint i = 0; i < n; i++)
    {
      g_autoptr (EbbTensor) parameter = parameters[i];
      g_autoptr (EbbTensor) grad = ebb_tensor_get_grad (parameter);

      ok = ok && (grad == NULL || ebb_tensor_get_n_elements (grad) == 0 || look (grad, seen, error));
    }
  return ok;
}

static gboolean
take_step (const TestParallel *settings,
           EbbModule *model,
           guint step,
           const Sharding *how,
           Way way,
           GByteArray *seen,
           GError **error)
{
  g_autoptr (EbbSavedTensorHooks) store = NULL;
  g_autoptr (EbbTensor) loss = NULL;

  if (way == STORED || way == RECOMPUTED_AND_STORED)
    {
      store = ebb_host_store_new ();
      g_object_set (store, "least-size", (guint64) 0, NULL);
      ebb_push_saved_tensor_hooks (store);
    }
  ebb_push_autocast (how->autocast, EBB_DTYPE_BF16);
  loss = test_parallel_loss (settings, model, step, error);
  ebb_pop_autocast ();
  if (store != NULL)
    ebb_pop_saved_tensor_hooks ();
  if (loss == NULL || !look (loss, seen, error) || !ebb_tensor_backward (loss, error)
      || !look_at_gradients (model, seen, error))
    return FALSE;
  ebb_module_zero_grad (model);
  return TRUE;
}

typedef struct
{
  const TestParallel *settings;
  const Sharding *how;
} Case;

static gboolean
run (const Case *self, Way way, EbbProcessGroup *group, GByteArray *seen, GError **error)
{
  g_autoptr (EbbModule) model = test_parallel_model (self->settings, error);
  gboolean ok = model != NULL && checkpoint (model, way, error) && shard (model, self->how, group, error);

  for (guint i = 0; ok && i < N_STEPS; i++)
    ok = take_step (self->settings, model, i, self->how, way, seen, error);
  return ok;
}

static gboolean
compare_ways (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  g_autoptr (GByteArray) expected = g_byte_array_new ();

  if (!run (user_data, AS_IT_IS, group, expected, error))
    return FALSE;
  for (Way way = RECOMPUTED; way < N_WAYS; way++)
    {
      g_autoptr (GByteArray) seen = g_byte_array_new ();

      if (!run (user_data, way, group, seen, error))
        return FALSE;
      g_assert_cmpmem (seen->data, seen->len, expected->data, expected->len);
    }
  return TRUE;
}

static void
ways_are_alike (gconstpointer data)
{
  const guint n_models = test_device_is_cpu () ? G_N_ELEMENTS (models) : 1;

  for (guint i = 0; i < n_models; i++)
    test_ranks_run (N_RANKS, compare_ways, &(Case){ &models[i], data });
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  for (guint i = 0; i < G_N_ELEMENTS (shardings); i++)
    {
      g_autofree char *path = g_strdup_printf ("/fully-shard/checkpointed-units/%s", shardings[i].name);

      g_test_add_data_func (path, &shardings[i], ways_are_alike);
    }
  return g_test_run ();
}
