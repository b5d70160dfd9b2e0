/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* --shard: shards or replicates the model. */
#include "common/ranks/shard.h"

#include <string.h>

guint
shard_get_size (const RankOptions *options,
                guint n_ranks)
{
  switch (options->shard_kind)
    {
    case SHARD_NONE:
      return 1;
    case SHARD_HYBRID:
      return (guint) options->shard_size;
    default:
      return n_ranks;
    }
}

/* Neighbouring ranks, which are most likely those of one machine, share a model. */
static gboolean
make_mesh (const RankOptions *options,
           Ranks *ranks,
           GError **error)
{
  static const char *const names[] = { "data", "shard" };
  const gint64 sizes[] = { -1, options->shard_size };

  if (options->shard_kind != SHARD_HYBRID)
    return TRUE;
  if (ranks->n_models % (guint) options->shard_size != 0)
    {
      ranks->failure_shared = TRUE;
      return options_refuse (error, "--shard-size %d: it must divide the %u %s", options->shard_size, ranks->n_models,
                             ranks->tensor != NULL ? "models" : "ranks");
    }
  ranks->mesh = ebb_mesh_new (ranks->data, names, sizes, G_N_ELEMENTS (sizes), error);
  return ranks->mesh != NULL;
}

static EbbDType
find_dtype (const char *name)
{
  return strcmp (name, "bf16") == 0 ? EBB_DTYPE_BF16 : EBB_DTYPE_F32;
}

static EbbFullyShardOptions *
make_options (const RankOptions *options,
              Ranks *ranks,
              GError **error)
{
  g_autoptr (EbbFullyShardOptions) how = ebb_fully_shard_options_new ();

  g_object_set (how, "reshard-after-forward", options->reshard_kind, "flatten", options->flatten, "offload",
                options->offload_parameters, NULL);
  if (strcmp (options->compute_dtype, "none") != 0
      && !ebb_fully_shard_options_set_compute_dtype (how, find_dtype (options->compute_dtype), error))
    return NULL;
  if (strcmp (options->reduce_dtype, "none") != 0
      && !ebb_fully_shard_options_set_reduce_dtype (how, find_dtype (options->reduce_dtype), error))
    return NULL;
  if (ranks->mesh != NULL)
    g_object_set (how, "replicate-group", ebb_mesh_get_group (ranks->mesh, "data"), NULL);
  return g_steal_pointer (&how);
}

gboolean
shard_wrap (EbbModule *model,
            const Options *options,
            Ranks *ranks,
            GError **error)
{
  const RankOptions *self = &options->ranks;
  g_autoptr (EbbFullyShardOptions) how = NULL;
  g_autoptr (EbbModule) same = NULL;
  EbbProcessGroup *group;

  if (!program_may_shard (options->program))
    return TRUE;
  if (self->shard_kind == SHARD_NONE)
    {
      same = ebb_replicate (model, ranks->data, NULL, error);
      return same != NULL;
    }
  if (!make_mesh (self, ranks, error))
    return FALSE;
  how = make_options (self, ranks, error);
  if (how == NULL)
    return FALSE;
  group = ranks->mesh != NULL ? ebb_mesh_get_group (ranks->mesh, "shard") : ranks->data;
  if (self->wraps_blocks)
    return ebb_fully_shard_wrap_each (model, EBB_TYPE_BLOCK, group, how, error);
  if (self->wrap_least > 0)
    {
      if (!ebb_fully_shard_auto_wrap (model, self->wrap_least, group, how, error))
        return FALSE;
      if (ebb_fully_shard_is_wrapped (model))
        return TRUE;
    }
  same = ebb_fully_shard (model, group, how, error);
  return same != NULL;
}
