/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The options of ranks, sharding and tensor parallelism. */
#include "rank-options.h"

#include "launcher.h"
#include "options.h"

#include <math.h>
#include <string.h>

#define MAX_RANKS 1024
#define NOT_GIVEN G_MININT

static const char *const backend_names[] = { "auto", "single", "thread", "mpi", "nccl", NULL };
static const char *const shard_names[] = { "full", "none", "hybrid", NULL };
static const char *const reshard_names[] = { "auto", "always", "never", NULL };
static const char *const nesting_names[] = { "shard-outside", "checkpoint-outside", NULL };
static const char *const reduce_names[] = { "auto", "step", "batch", NULL };
static const char *const dtype_names[] = { "none", "f32", "bf16", NULL };

void
rank_options_init (RankOptions *self)
{
  *self = (RankOptions){ .n_ranks = NOT_GIVEN, .shard_size = NOT_GIVEN, .tensor_parallel = 1 };
}

void
rank_options_clear (RankOptions *self)
{
  char **texts[] = { &self->backend, &self->shard, &self->wrap, &self->reshard, &self->nesting, &self->reduce,
                     &self->compute_dtype, &self->reduce_dtype };

  for (guint i = 0; i < G_N_ELEMENTS (texts); i++)
    g_clear_pointer (texts[i], g_free);
}

void
rank_options_add_group (RankOptions *self,
                        GOptionContext *context)
{
  const GOptionEntry entries[] = {
    { "backend", 0, 0, G_OPTION_ARG_STRING, &self->backend,
      "How ranks run and communicate: thread, mpi, single, nccl if each has a GPU, or auto: as the environment says "
      "(auto)",
      "NAME" },
    { "ranks", 0, 0, G_OPTION_ARG_INT, &self->n_ranks,
      "Number of ranks with --backend thread; otherwise mpirun or Slurm sets it", "N" },
    { "shard", 0, 0, G_OPTION_ARG_STRING, &self->shard,
      "How parameters, gradients and optimizer state are sharded: full: over all ranks; none: each rank has all of "
      "them; hybrid: over --shard-size ranks, replicated over the other groups (full)",
      "HOW" },
    { "shard-size", 0, 0, G_OPTION_ARG_INT, &self->shard_size,
      "Ranks that share one model with --shard hybrid; N must divide the number of ranks", "N" },
    { "wrap", 0, 0, G_OPTION_ARG_STRING, &self->wrap,
      "Unit that is unsharded at one time: a block, the whole model, or a module with at least N parameters (block)",
      "block|model|N" },
    { "reshard", 0, 0, G_OPTION_ARG_STRING, &self->reshard,
      "Whether a unit is sharded again after its forward: always, never, auto: all units but the root (auto)", "WHEN" },
    { "flatten", 0, 0, G_OPTION_ARG_NONE, &self->flatten,
      "Shard all elements of a unit in a row instead of the rows of each parameter (no)", NULL },
    { "compute-dtype", 0, 0, G_OPTION_ARG_STRING, &self->compute_dtype,
      "Type in which parameters are gathered and computed: none: their own; f32, bf16 (none)", "NAME" },
    { "reduce-dtype", 0, 0, G_OPTION_ARG_STRING, &self->reduce_dtype,
      "Type in which gradients are sent: none: their own; f32, bf16 (none)", "NAME" },
    { "offload-parameters", 0, 0, G_OPTION_ARG_NONE, &self->offload_parameters,
      "Keep this rank's shards, their gradients and optimizer state in host memory (no)", NULL },
    { "nesting", 0, 0, G_OPTION_ARG_STRING, &self->nesting,
      "Which wrapper goes around the other with --checkpoint: shard-outside, checkpoint-outside (shard-outside)",
      "HOW" },
    { "reduce", 0, 0, G_OPTION_ARG_STRING, &self->reduce,
      "With --accumulate, when gradients are reduced: step: once a step, which sends least; batch: after each batch, "
      "which holds least; auto: step with --shard none, otherwise batch (auto)",
      "WHEN" },
    { "timeout", 0, 0, G_OPTION_ARG_DOUBLE, &self->timeout,
      "Seconds that ranks wait for each other; 0: the library's default (0)", "S" },
    { NULL }
  };
  GOptionGroup *group = g_option_group_new ("ranks", "Ranks:", "", NULL, NULL);

  g_option_group_add_entries (group, entries);
  g_option_context_add_group (context, group);
}

void
rank_options_add_tensor_group (RankOptions *self,
                               gboolean on_ranks,
                               GOptionContext *context)
{
  const GOptionEntry entries[] = {
    { "tensor-parallel", 0, 0, G_OPTION_ARG_INT, &self->tensor_parallel,
      on_ranks ? "Neighbouring ranks that share the layers of one model and its rows; other models have other rows (1)"
               : "Ranks that share the layers of the model: N threads, or the processes that mpirun started (1)",
      "N" },
    { "sequence-parallel", 0, 0, G_OPTION_ARG_NONE, &self->sequence_parallel,
      "Tensor ranks also share norms, dropout and the residual stream, by tokens (no)", NULL },
    { "no-sequence-parallel", 0, G_OPTION_FLAG_REVERSE, G_OPTION_ARG_NONE, &self->sequence_parallel,
      "Turn off --sequence-parallel for a resumed run that had it", NULL },
    { "partition", 0, 0, G_OPTION_ARG_NONE, &self->partition,
      "With --checkpoint full each tensor rank keeps its part of the blocks' inputs, in the --store (no)", NULL },
    { "no-partition", 0, G_OPTION_FLAG_REVERSE, G_OPTION_ARG_NONE, &self->partition,
      "Turn off --partition for a resumed run that had it", NULL },
    { NULL }
  };
  GOptionGroup *group = g_option_group_new ("tensor", "Tensor ranks:", "", NULL, NULL);

  g_option_group_add_entries (group, entries);
  g_option_context_add_group (context, group);
}

/* A count that was not given is 0 from here on, which nobody can type. */
static gboolean
take_count (const char *option,
            int *count,
            GError **error)
{
  if (*count == NOT_GIVEN)
    *count = 0;
  else if (*count < 1 || *count > MAX_RANKS)
    return options_refuse (error, "--%s %d: it must be from 1 to %d", option, *count, MAX_RANKS);
  return TRUE;
}

gboolean
rank_options_fill (RankOptions *self,
                   GError **error)
{
  if (self->backend == NULL)
    self->backend = g_strdup (self->n_ranks != NOT_GIVEN ? "thread" : "auto");
  if (self->reshard == NULL)
    self->reshard = g_strdup ("auto");
  self->nesting_given = self->nesting != NULL;
  if (self->nesting == NULL)
    self->nesting = g_strdup ("shard-outside");
  if (self->tensor_parallel < 1 || self->tensor_parallel > MAX_RANKS)
    return options_refuse (error, "--tensor-parallel %d: it must be from 1 to %d", self->tensor_parallel, MAX_RANKS);
  if (!isfinite (self->timeout) || self->timeout < 0)
    return options_refuse (error, "--timeout %g: it must be 0 or more", self->timeout);
  return take_count ("ranks", &self->n_ranks, error) && take_count ("shard-size", &self->shard_size, error);
}

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

/* How many ranks there are, as far as the command line and the launcher say it; 0: not known yet. */
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

/* What only shards have. */
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
rank_options_check (RankOptions *self,
                    gboolean all_known,
                    GError **error)
{
  if (!options_check_name ("backend", self->backend, backend_names, error)
      || !options_check_name ("shard", self->shard, shard_names, error)
      || !options_check_name ("reshard", self->reshard, reshard_names, error)
      || !options_check_name ("nesting", self->nesting, nesting_names, error)
      || !options_check_name ("reduce", self->reduce, reduce_names, error)
      || !options_check_name ("compute-dtype", self->compute_dtype, dtype_names, error)
      || !options_check_name ("reduce-dtype", self->reduce_dtype, dtype_names, error) || !check_wrap (self, error))
    return FALSE;
  self->shard_kind = (ShardKind) options_find_name (shard_names, self->shard);
  self->reshard_kind = (EbbReshard) options_find_name (reshard_names, self->reshard);
  self->checkpoint_outside = strcmp (self->nesting, "checkpoint-outside") == 0;
  self->reduces_each_batch = strcmp (self->reduce, "auto") == 0 ? self->shard_kind != SHARD_NONE
                                                                : strcmp (self->reduce, "batch") == 0;
  return check_models (self, error)
         && (!all_known || (check_counts (self, error) && check_shards (self, error)));
}

gboolean
rank_options_check_alone (RankOptions *self,
                          GError **error)
{
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

static void
add_text (JsonBuilder *builder,
          const char *name,
          const char *value)
{
  json_builder_set_member_name (builder, name);
  json_builder_add_string_value (builder, value);
}

void
rank_options_add_json (const RankOptions *self,
                       JsonBuilder *builder)
{
  add_text (builder, "backend", self->backend);
  add_text (builder, "shard", self->shard);
  add_text (builder, "wrap", self->wrap);
  add_text (builder, "reshard", self->reshard);
  add_text (builder, "nesting", self->nesting);
  add_text (builder, "reduce", self->reduce);
  add_text (builder, "compute_dtype", self->compute_dtype);
  add_text (builder, "reduce_dtype", self->reduce_dtype);
  json_builder_set_member_name (builder, "ranks");
  json_builder_add_int_value (builder, self->n_ranks);
  json_builder_set_member_name (builder, "shard_size");
  json_builder_add_int_value (builder, self->shard_size);
  json_builder_set_member_name (builder, "flatten");
  json_builder_add_boolean_value (builder, self->flatten);
  json_builder_set_member_name (builder, "offload_parameters");
  json_builder_add_boolean_value (builder, self->offload_parameters);
  json_builder_set_member_name (builder, "timeout");
  json_builder_add_double_value (builder, self->timeout);
}
