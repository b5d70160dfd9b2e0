/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "offload/activation-store-private.h"
#include "tensor/dry-run-private.h"

#include "tensor/tensor-private.h"
#include "tensor/thread-private.h"

/* Frees the sources of copies that leave a device, once computing was ordered after the copies; that costs nothing if
 * they are done by then. It happens at a fixed point of the program, not when a copy happens to be done, so peaks are
 * the same in every run. A source that could not be copied stays where it is. */

struct _EbbInFlight
{
  EbbStorageWatch watch;
  int ref_count; /* of the list, and of the handle that was put */
  EbbActivationStore *store;
  EbbStorage *storage; /* alive as long as it is held */
  EbbTransfer *transfer;
  guint64 group;
  guint version;
  /* under the lock */
  EbbHandle *held;    /* of the block; NULL: freed */
  gboolean in_flight; /* in the list */
  EbbInFlight *previous, *next;
};

/* -- failures ------------------------------------------------------------------------------------------------------ */

void
ebb_activation_store_note_failure (EbbActivationStore *self,
                                   GError *error)
{
  EbbActivationStorePrivate *priv = ebb_activation_store_peek (self);
  GError *later = NULL;

  if (error == NULL)
    return;
  pthread_mutex_lock (&priv->flight_lock);
  if (priv->failure == NULL)
    priv->failure = error;
  else
    later = error;
  pthread_mutex_unlock (&priv->flight_lock);
  g_clear_error (&later);
}

gboolean
ebb_activation_store_return_failure (EbbActivationStore *self,
                                     GError **error)
{
  EbbActivationStorePrivate *priv = ebb_activation_store_peek (self);
  GError *failure = NULL;
  gboolean is_some;

  pthread_mutex_lock (&priv->flight_lock);
  is_some = priv->failure != NULL;
  if (error != NULL) /* else it is left for a caller that takes it */
    failure = g_steal_pointer (&priv->failure);
  pthread_mutex_unlock (&priv->flight_lock);
  if (failure != NULL)
    g_propagate_error (error, failure);
  return !is_some;
}

/* -- freeing sources ----------------------------------------------------------------------------------------------- */

static void
in_flight_unref (EbbInFlight *self)
{
  if (__atomic_sub_fetch (&self->ref_count, 1, __ATOMIC_ACQ_REL) != 0)
    return;
  ebb_transfer_unref (self->transfer);
  g_free (self);
}

/* Under the lock. */
static void
leave_list (EbbInFlight *self)
{
  EbbActivationStorePrivate *priv = ebb_activation_store_peek (self->store);

  if (self->previous != NULL)
    self->previous->next = self->next;
  else
    priv->oldest = self->next;
  if (self->next != NULL)
    self->next->previous = self->previous;
  else
    priv->youngest = self->previous;
  self->in_flight = FALSE;
}

/* Outside of the lock. */
static void
free_source (EbbInFlight *self,
             EbbHandle *held)
{
  ebb_storage_remove_watch (self->storage, &self->watch);
  ebb_handle_unref (held);
}

/* Takes the sources of failed copies out of the list: their error was returned once, and the stored block keeps them.
 * FALSE if there is none. Under the lock. */
static gboolean
leave_failed (EbbActivationStorePrivate *priv)
{
  EbbInFlight *next;
  gboolean some = FALSE;

  for (EbbInFlight *source = priv->oldest; source != NULL; source = next)
    {
      next = source->next;
      if (!ebb_transfer_is_over (source->transfer) || ebb_transfer_finish (source->transfer, NULL))
        continue;
      leave_list (source);
      __atomic_sub_fetch (&source->ref_count, 1, __ATOMIC_RELAXED); /* the handle has another one */
      some = TRUE;
    }
  return some;
}

/* NULL where @error is set already: the next failure is left for another caller. */
static GError **
unless_set (GError **error)
{
  return error != NULL && *error == NULL ? error : NULL;
}

/* Frees the oldest source from before group @end. If its copy failed, takes the sources of failed copies out of the
 * list and sets @ok to FALSE. FALSE if there is none of either. */
static gboolean
release_one (EbbActivationStorePrivate *priv,
             guint64 end,
             gboolean *ok,
             GError **error)
{
  EbbInFlight *source;
  EbbHandle *held = NULL;
  gboolean some = FALSE;

  pthread_mutex_lock (&priv->flight_lock);
  source = priv->oldest;
  if (source == NULL || source->group >= end)
    source = NULL;
  else if (ebb_transfer_order (source->transfer, error))
    {
      leave_list (source);
      held = g_steal_pointer (&source->held);
    }
  else
    {
      *ok = FALSE;
      some = leave_failed (priv);
    }
  pthread_mutex_unlock (&priv->flight_lock);
  if (held == NULL)
    return some;
  free_source (source, held);
  in_flight_unref (source);
  return TRUE;
}

static gboolean
release (EbbActivationStorePrivate *priv,
         guint64 end,
         GError **error)
{
  gboolean ok = TRUE;

  while (release_one (priv, end, &ok, unless_set (error)))
    ;
  return ok;
}

/* The group that a pack now belongs to; under the lock. */
static guint64
enter_group (EbbPackGroup *group)
{
  if (group->thread != &ebb_thread || group->n_launches != ebb_thread.n_launches)
    group->number++;
  group->thread = &ebb_thread;
  group->n_launches = ebb_thread.n_launches;
  return group->number;
}

guint64
ebb_activation_store_get_group (EbbActivationStore *self)
{
  EbbActivationStorePrivate *priv = ebb_activation_store_peek (self);
  guint64 group;

  pthread_mutex_lock (&priv->flight_lock);
  group = priv->group.number;
  pthread_mutex_unlock (&priv->flight_lock);
  return group;
}

/* -- dry runs ------------------------------------------------------------------------------------------------------ */

static void
clear_dry_memory (gpointer data)
{
  EbbActivationStore *self = data;

  ebb_activation_store_peek (self)->is_dry_cache = FALSE;
  ebb_activation_store_synchronize (self, NULL);
  if (EBB_ACTIVATION_STORE_GET_CLASS (self)->end_dry_run != NULL)
    EBB_ACTIVATION_STORE_GET_CLASS (self)->end_dry_run (self);
}

static void
leave_dry_run (gpointer data)
{
  EbbActivationStore *self = data;
  EbbActivationStorePrivate *priv = ebb_activation_store_peek (self);

  clear_dry_memory (self);
  priv->counters = priv->before;
  priv->run = NULL;
  g_object_unref (self);
}

/* Memory of the run and real memory never meet in a store: it is empty when a run begins, but for what nodes still
 * hold, and when the run ends. */
static void
join_dry_run (EbbActivationStore *self)
{
  EbbActivationStorePrivate *priv = ebb_activation_store_peek (self);
  EbbDryRun *run = ebb_dry_run_get_current ();
  EbbMemoryAccount *account;

  if (run == NULL)
    return;
  if (!priv->is_dry_cache && EBB_ACTIVATION_STORE_GET_CLASS (self)->end_dry_run != NULL)
    {
      priv->is_dry_cache = TRUE;
      ebb_dry_run_add_cache (run, clear_dry_memory, self);
    }
  if (priv->run == run)
    return;
  account = ebb_thread_enter_account (ebb_dry_run_get_outer_account (run));
  ebb_activation_store_synchronize (self, NULL);
  ebb_thread_enter_account (account);
  priv->run = run;
  priv->before = priv->counters;
  ebb_dry_run_at_end (run, leave_dry_run, g_object_ref (self));
}

gboolean
ebb_activation_store_begin_put (EbbActivationStore *self,
                                GError **error)
{
  EbbActivationStorePrivate *priv = ebb_activation_store_peek (self);
  const guint in_flight = EBB_READ (priv->in_flight);
  guint64 group;

  join_dry_run (self);
  ebb_activation_store_sweep (self);
  if (error != NULL && !ebb_activation_store_return_failure (self, error))
    return FALSE;
  pthread_mutex_lock (&priv->flight_lock);
  group = enter_group (&priv->group);
  pthread_mutex_unlock (&priv->flight_lock);
  return group < in_flight || release (priv, group - in_flight + 1, error);
}

/* -- sources ----------------------------------------------------------------------------------------------------- */

/* The memory is about to be overwritten, which must come after it was read. */
static gpointer
take_reader (EbbStorageWatch *watch)
{
  return ebb_transfer_ref (((EbbInFlight *) watch)->transfer);
}

static void
come_after_reader (gpointer reader)
{
  ebb_transfer_settle (reader);
  ebb_transfer_unref (reader);
}

EbbInFlight *
ebb_activation_store_hold (EbbActivationStore *self,
                           EbbTensor *block,
                           EbbTransfer *transfer)
{
  EbbActivationStorePrivate *priv = ebb_activation_store_peek (self);
  EbbInFlight *source;

  if (block->storage->device->backend->streams == NULL)
    return NULL;
  source = g_new0 (EbbInFlight, 1);
  *source = (EbbInFlight){ .watch.take = take_reader,
                           .watch.before_write = come_after_reader,
                           .ref_count = 2,
                           .store = self,
                           .storage = block->storage,
                           .transfer = ebb_transfer_ref (transfer),
                           .version = block->storage->version,
                           .held = ebb_handle_new (block),
                           .in_flight = TRUE };
  ebb_storage_add_watch (block->storage, &source->watch);
  pthread_mutex_lock (&priv->flight_lock);
  source->group = priv->group.number;
  source->previous = priv->youngest;
  if (priv->youngest != NULL)
    priv->youngest->next = source;
  else
    priv->oldest = source;
  priv->youngest = source;
  pthread_mutex_unlock (&priv->flight_lock);
  if (EBB_READ (priv->in_flight) == 0)
    release (priv, source->group + 1, NULL);
  return source;
}

static EbbTensor *
get_held (EbbInFlight *self)
{
  EbbActivationStorePrivate *priv = ebb_activation_store_peek (self->store);
  EbbTensor *block = NULL;

  pthread_mutex_lock (&priv->flight_lock);
  if (self->held != NULL && self->storage->version == self->version)
    block = ebb_handle_get_tensor (self->held);
  pthread_mutex_unlock (&priv->flight_lock);
  return block;
}

EbbTensor *
ebb_in_flight_get (EbbInFlight *self)
{
  EbbTensor *block = self != NULL ? get_held (self) : NULL;

  /* Backward has come to a source that was freed: no group will begin at which the younger ones would be freed. A
   * device's error is left for a caller that can return it. */
  if (self != NULL && block == NULL)
    release (ebb_activation_store_peek (self->store), G_MAXUINT64, NULL);
  return block;
}

gboolean
ebb_in_flight_is_held (EbbInFlight *self)
{
  g_autoptr (EbbTensor) block = self != NULL ? get_held (self) : NULL;

  return block != NULL;
}

void
ebb_in_flight_free (EbbInFlight *self)
{
  EbbActivationStorePrivate *priv;
  EbbHandle *held;
  gboolean was_in_flight;

  if (self == NULL)
    return;
  priv = ebb_activation_store_peek (self->store);
  pthread_mutex_lock (&priv->flight_lock);
  held = g_steal_pointer (&self->held);
  was_in_flight = self->in_flight;
  if (was_in_flight)
    leave_list (self);
  pthread_mutex_unlock (&priv->flight_lock);
  if (held != NULL)
    {
      ebb_transfer_settle (self->transfer);
      free_source (self, held);
    }
  if (was_in_flight)
    in_flight_unref (self);
  in_flight_unref (self);
}

/* -- transfers ----------------------------------------------------------------------------------------------------- */

static void
count_times (EbbActivationStore *self,
             EbbTransfer *transfer)
{
  double seconds, waited;

  ebb_transfer_get_times (transfer, &seconds, &waited);
  ebb_activation_store_count_seconds (self, seconds, waited);
  ebb_transfer_unref (transfer);
}

void
ebb_activation_store_count_transfer (EbbActivationStore *self,
                                     EbbTransfer *transfer)
{
  EbbActivationStorePrivate *priv = ebb_activation_store_peek (self);

  pthread_mutex_lock (&priv->flight_lock);
  g_queue_push_tail (&priv->transfers, ebb_transfer_ref (transfer));
  pthread_mutex_unlock (&priv->flight_lock);
}

/* A thread that waits for a transfer which has just ended may not have noted how long: so transfers that are done now
 * are counted by the next sweep. Under the lock. */
static void
take_settled (EbbActivationStorePrivate *priv,
              GQueue *settled)
{
  EbbTransfer *transfer;

  *settled = priv->settled;
  g_queue_init (&priv->settled);
  while ((transfer = g_queue_peek_head (&priv->transfers)) != NULL && ebb_transfer_is_over (transfer))
    g_queue_push_tail (&priv->settled, g_queue_pop_head (&priv->transfers));
}

static void
count_all (EbbActivationStore *self,
           GQueue *transfers)
{
  EbbTransfer *transfer;

  while ((transfer = g_queue_pop_head (transfers)) != NULL)
    count_times (self, transfer);
}

void
ebb_activation_store_sweep (EbbActivationStore *self)
{
  EbbActivationStorePrivate *priv = ebb_activation_store_peek (self);
  GQueue settled;

  pthread_mutex_lock (&priv->flight_lock);
  take_settled (priv, &settled);
  pthread_mutex_unlock (&priv->flight_lock);
  count_all (self, &settled);
}

/* Also waits until computing that waits for the transfers has gone on: a mark that is enqueued now is reached. */
static gboolean
finish (GQueue *transfers,
        GError **error)
{
  EbbDevice *last = NULL;
  gboolean ok = TRUE;

  for (GList *l = transfers->head; l != NULL; l = l->next)
    ok = ebb_transfer_finish (l->data, unless_set (error)) && ok;
  for (GList *l = transfers->head; l != NULL; l = l->next)
    {
      EbbDevice *device = ebb_transfer_get_device (l->data);
      EbbTransfer *mark;

      if (device == last)
        continue;
      last = device;
      mark = ebb_transfer_mark (device, unless_set (error));
      ok = mark != NULL && ebb_transfer_finish (mark, unless_set (error)) && ok;
      g_clear_pointer (&mark, ebb_transfer_unref);
    }
  return ok;
}

gboolean
ebb_activation_store_wait (EbbActivationStore *self,
                           GError **error)
{
  EbbActivationStorePrivate *priv = ebb_activation_store_peek (self);
  GQueue transfers;
  gboolean ok;

  pthread_mutex_lock (&priv->flight_lock);
  transfers = priv->settled;
  g_queue_init (&priv->settled);
  while (!g_queue_is_empty (&priv->transfers))
    g_queue_push_tail (&transfers, g_queue_pop_head (&priv->transfers));
  pthread_mutex_unlock (&priv->flight_lock);
  ok = finish (&transfers, error);
  count_all (self, &transfers);
  return ok && ebb_activation_store_return_failure (self, error);
}
