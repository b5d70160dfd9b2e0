/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* --resume and --save of a model that is divided among ranks. */
#include "common/train/rank-state.h"

#include "common/ranks/fault.h"
#include "common/train/adapter.h"
#include "common/train/model.h"
#include "common/train/tokenizer.h"

/* -- the state ----------------------------------------------------------------------------------------------------- */

gboolean
rank_state_seed (Trainer *self,
                 GError **error)
{
  EbbGenerator *generator = ebb_generator_get_default ();
  const guint64 seed = (guint64) self->options->seed, offset = ebb_generator_get_offset (generator);

  if (!(self->ranks->tensor != NULL ? ebb_model_parallel_manual_seed (seed, G_OBJECT (self->ranks->tensor), error)
                                    : ebb_seed_rank (seed, self->ranks->data, error)))
    return FALSE;
  ebb_generator_set_state (generator, ebb_generator_get_seed (generator), offset);
  return TRUE;
}

gboolean
rank_state_save (Trainer *self,
                 GError **error)
{
  GError *failure = NULL;

  if (!fault_meet (self->ranks, "save", self->step, error))
    return FALSE;
  if (!ebb_training_state_save_sharded (self->state, self->options->resume, self->step, &failure))
    {
      /* All ranks fail together, unless one is gone; then the weights are still saved. */
      self->ranks->failure_shared = !g_error_matches (failure, EBB_ERROR, EBB_ERROR_PROCESS_GROUP);
      g_propagate_prefixed_error (error, failure, "--resume: ");
      return FALSE;
    }
  return TRUE;
}

/* -- the weights --------------------------------------------------------------------------------------------------- */

gboolean
rank_state_save_weights (Trainer *self,
                         const char *path,
                         GError **error)
{
  const Options *options = self->options;
  gboolean sharded = options->ranks.shard_kind != SHARD_NONE || self->ranks->tensor != NULL, ok = TRUE;
  g_autoptr (EbbArgs) state = NULL;
  g_autoptr (EbbModule) full = NULL;

  if (sharded && options->model[0] != '\0') /* weight by weight */
    return model_save (self->model, options, path, error);
  if (sharded)
    {
      state = ebb_get_full_state_dict (self->model, TRUE, error);
      if (state == NULL)
        return FALSE;
    }
  if (self->ranks->rank == 0)
    {
      full = sharded ? model_make_full (self->model, state, error) : g_object_ref (self->model);
      if (full != NULL)
        tokenizer_attach (self->tokenizer, full, options);
      ok = full != NULL && model_save (full, options, path, error);
    }
  return ranks_agree (self->ranks, ok, error);
}
