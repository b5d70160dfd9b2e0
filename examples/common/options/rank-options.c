/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The options of ranks, sharding and tensor parallelism. */
#include "common/options/rank-options.h"

#include "common/launcher.h"
#include "common/options/options.h"

#include <string.h>

static gboolean
check_wrap (RankOptions *self,
            GError **error)
{
  char *end;

  self->wraps_blocks = strcmp (self->wrap, "block") == 0;
  self->wrap_least = 0;
  if (self->wraps_blocks || strcmp (self->wrap, "model") == 0)
    return TRUE;
  self->wrap_least = g_ascii_strtoull (self->wrap, &end, 10);
  if (g_ascii_isdigit (self->wrap[0]) && *end == '\0' && self->wrap_least > 0 && self->wrap_least < G_MAXINT64)
    return TRUE;
  return options_refuse (error, "--wrap %s: it must be block, model, or how many parameters a unit has at least",
                         self->wrap);
}

static gboolean
check_counts (RankOptions *self,
              GError **error)
{
  gboolean is_thread = strcmp (self->backend, "thread") == 0, is_hybrid = self->shard_kind == SHARD_HYBRID;

  if ((is_thread || strcmp (self->backend, "single") == 0) && launcher_count () > 1)
    return options_refuse (error,
                           "--backend %s: %d processes were started together, each of which would train by itself: "
                           "leave --backend and --ranks out",
                           self->backend, launcher_count ());
  if (self->n_ranks > 0 && !is_thread)
    return options_refuse (error, "--ranks %d: it needs --backend thread, not %s; with others the launcher says it",
                           self->n_ranks, self->backend);
  if (is_thread && self->n_ranks == 0)
    return options_refuse (error, "--backend thread: --ranks is missing: say how many");
  if (self->shard_size > 0 && !is_hybrid)
    return options_refuse (error, "--shard-size %d: it needs --shard hybrid, not %s", self->shard_size, self->shard);
  if (is_hybrid && self->shard_size == 0)
    return options_refuse (error, "--shard hybrid: --shard-size is missing: say how many ranks share one model");
  if (is_hybrid && self->n_ranks > 0 && self->n_ranks / self->tensor_parallel % self->shard_size != 0)
    return self->tensor_parallel > 1
               ? options_refuse (error, "--shard-size %d: it must divide the %d models of --ranks %d and "
                                        "--tensor-parallel %d",
                                 self->shard_size, self->n_ranks / self->tensor_parallel, self->n_ranks,
                                 self->tensor_parallel)
               : options_refuse (error, "--shard-size %d: it must divide --ranks %d", self->shard_size, self->n_ranks);
  return TRUE;
}

/* The number of ranks according to the command line and the launcher; 0: not known yet. */
static int
count_ranks (const RankOptions *self)
{
  static const char *const names[] = { "PMIX_RANK", "PMI_RANK", "WORLD_SIZE" };
  gboolean by_itself = TRUE;

  if (self->n_ranks > 0)
    return self->n_ranks;
  if (strcmp (self->backend, "single") == 0)
    return 1;
  for (guint i = 0; i < G_N_ELEMENTS (names); i++)
    by_itself = by_itself && g_getenv (names[i]) == NULL;
  return launcher_count () > 1 ? launcher_count () : by_itself && strcmp (self->backend, "auto") == 0 ? 1
                                                                                                      : 0;
}

static gboolean
check_models (const RankOptions *self,
              GError **error)
{
  const int n_ranks = count_ranks (self), n = self->tensor_parallel;

  if (n_ranks == 1 && self->n_ranks == 0 && n > 1)
    return options_refuse (error, "--tensor-parallel %d: there is one rank alone: say --ranks %d, or start it with "
                                  "mpirun -n %d",
                           n, n, n);
  if (n_ranks % n == 0)
    return TRUE;
  return self->n_ranks > 0 ? options_refuse (error, "--tensor-parallel %d: it must divide --ranks %d", n, n_ranks)
                           : options_refuse (error, "--tensor-parallel %d: it must divide the %d ranks that were "
                                                    "started together",
                                             n, n_ranks);
}

/* Options that need sharding. */
static gboolean
check_shards (const RankOptions *self,
              GError **error)
{
  const struct
  {
    const char *option;
    gboolean is_set;
  } needs[] = {
    { "flatten", self->flatten },
    { "offload-parameters", self->offload_parameters },
    { "compute-dtype", strcmp (self->compute_dtype, "none") != 0 },
    { "reduce-dtype", strcmp (self->reduce_dtype, "none") != 0 },
  };

  for (guint i = 0; self->shard_kind == SHARD_NONE && i < G_N_ELEMENTS (needs); i++)
    if (needs[i].is_set)
      return options_refuse (error, "--%s: it needs --shard full or hybrid, not none", needs[i].option);
  return TRUE;
}

gboolean
rank_options_check (Options *options,
                    gboolean all_known,
                    GError **error)
{
  RankOptions *self = &options->ranks;

  if (!check_wrap (self, error))
    return FALSE;
  self->shard_kind = (ShardKind) OPTION_CHOICE (options, ranks.shard);
  self->reshard_kind = (EbbReshard) OPTION_CHOICE (options, ranks.reshard);
  self->checkpoint_outside = strcmp (self->nesting, "checkpoint-outside") == 0;
  self->reduces_each_batch = strcmp (self->reduce, "auto") == 0 ? self->shard_kind != SHARD_NONE
                                                                : strcmp (self->reduce, "batch") == 0;
  return check_models (self, error)
         && (!all_known || (check_counts (self, error) && check_shards (self, error)));
}

gboolean
rank_options_check_alone (Options *options,
                          GError **error)
{
  RankOptions *self = &options->ranks;
  const int n_launched = launcher_count ();

  self->shard_kind = SHARD_NONE;
  if (self->tensor_parallel == 1 && n_launched > 1)
    return options_refuse (error,
                           "%d processes were started together, each of which would train by itself: give "
                           "--tensor-parallel %d, so that they share one model, or start ebb-fsdp-gpt",
                           n_launched, n_launched);
  if (self->tensor_parallel == 1)
    return TRUE;
  if (n_launched > 1 && n_launched != self->tensor_parallel)
    return options_refuse (error,
                           "--tensor-parallel %d: %d processes were started together: here they are the ranks of one "
                           "model; fsdp_gpt trains with more",
                           self->tensor_parallel, n_launched);
  self->n_ranks = n_launched > 1 ? 0 : self->tensor_parallel;
  g_free (self->backend);
  self->backend = g_strdup (n_launched > 1 ? "auto" : "thread");
  return TRUE;
}

gboolean
rank_options_check_tensor (const RankOptions *self,
                           gboolean checkpoints_all,
                           GError **error)
{
  if (self->sequence_parallel && self->tensor_parallel == 1)
    return options_refuse (error, "--sequence-parallel: it needs --tensor-parallel 2 or more");
  if (self->partition && self->tensor_parallel == 1)
    return options_refuse (error, "--partition: it needs --tensor-parallel 2 or more");
  if (self->sequence_parallel && self->partition)
    return options_refuse (error, "--partition and --sequence-parallel: what blocks keep is divided among the ranks "
                                  "by tokens already: leave --partition out");
  if (self->partition && !checkpoints_all)
    return options_refuse (error, "--partition: it needs --checkpoint full");
  return TRUE;
}
