/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Which ranks are known to share a model: ebb_parallelize () or a mesh has said so. */
#include "dist/mpu-private.h"

#include "dist/group/group-private.h"
#include "dist/init.h"

#include <pthread.h>

gboolean
ebb_mpu_init_group (EbbMpu *self,
                    EbbProcessGroup *group)
{
  *self = (EbbMpu){
    .group = g_object_ref (group),
    .world_size = ebb_process_group_get_size (group),
    .rank = ebb_process_group_get_rank (group),
    .model = ebb_process_group_get_state (group)->first,
  };
  return TRUE;
}

void
ebb_mpu_clear (EbbMpu *self)
{
  g_clear_object (&self->group);
}

/* Each rank's default group remembers them; several threads of a process may ask. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void
ebb_mpu_note_group (EbbProcessGroup *group,
                    GObject *owner,
                    gboolean is_model)
{
  EbbGroupState *all = ebb_process_group_get_state (ebb_process_group_get_default ());
  EbbGroupState *state = ebb_process_group_get_state (group);
  EbbModelRanks *known = &all->known[is_model ? 0 : 1];
  g_autoptr (GObject) before = g_weak_ref_get (&known->owner);

  EBB_AUTO_LOCK (&lock);
  known->several = before != NULL && before != owner
                   && (known->several || known->size != state->size || known->rank != state->rank
                       || known->first != state->first);
  known->size = state->size;
  known->rank = state->rank;
  known->first = state->first;
  g_weak_ref_set (&known->owner, owner);
  if (is_model)
    state->has_model = TRUE;
}

gboolean
ebb_mpu_init_known (EbbMpu *self,
                    GError **error)
{
  EbbProcessGroup *all = ebb_process_group_get_default ();
  EbbGroupState *state = ebb_process_group_get_state (all);
  gboolean found = FALSE, several = FALSE;

  *self = (EbbMpu){ .rank = -1, .model = -1 };
  for (guint i = 0; !found && i < G_N_ELEMENTS (state->known); i++)
    {
      const EbbModelRanks *known = &state->known[i];
      g_autoptr (GObject) owner = g_weak_ref_get (&state->known[i].owner);

      pthread_mutex_lock (&lock);
      found = owner != NULL;
      several = found && known->several;
      if (found)
        *self = (EbbMpu){ .world_size = known->size, .rank = known->rank, .model = known->first };
      pthread_mutex_unlock (&lock);
    }
  if (found && !several)
    return TRUE;
  if (!found && state->size == 1)
    return ebb_mpu_init_group (self, all);
  return ebb_fail (error, EBB_ERROR_STATE,
                   "this is rank %u of %u, and %s: pass the mesh, or the group of the ranks that share a model%s",
                   state->rank, state->size,
                   several ? "models were sharded over different groups of them"
                           : "nothing says which of them share a model",
                   several ? "" : ", or call ebb_parallelize () or ebb_initialize () first");
}
