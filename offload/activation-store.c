/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "offload/shared-block-private.h"

#include "tensor/autograd/autograd-private.h"
#include "tensor/backend/backend-private.h"
#include "tensor/dry-run-private.h"
#include "tensor/error-private.h"
#include "tensor/tensor-private.h"
#include "tensor/thread-private.h"
#include "tensor/util/property-private.h"

/* The base class of stores as hooks: which saved tensors are stored, and how their handles lead back to them. */

G_DEFINE_ABSTRACT_TYPE_WITH_PRIVATE (EbbActivationStore, ebb_activation_store, EBB_TYPE_SAVED_TENSOR_HOOKS)

#define DEFAULT_LEAST_SIZE (64 * 1024)
#define PRIVATE(self) ((EbbActivationStorePrivate *) ebb_activation_store_get_instance_private (self))

/* The handle that pack returns: how the tensor looked, and where its bytes are. */
typedef struct
{
  EbbHandle handle; /* keeps the tensor itself, if the block stays in place */
  EbbSharedBlock *block;
  EbbView view;
  gsize offset; /* bytes, from the block's start */
  gboolean is_local_shard;
} PackedHandle;

EbbActivationStorePrivate *
ebb_activation_store_peek (EbbActivationStore *self)
{
  return PRIVATE (self);
}

void
ebb_activation_store_lock (EbbActivationStore *self)
{
  pthread_mutex_lock (&PRIVATE (self)->lock);
}

void
ebb_activation_store_unlock (EbbActivationStore *self)
{
  pthread_mutex_unlock (&PRIVATE (self)->lock);
}

void
ebb_activation_store_set_shards (EbbActivationStore *self)
{
  PRIVATE (self)->shards = TRUE;
}

void
ebb_activation_store_count_held (EbbActivationStore *self,
                                 gint64 n_bytes)
{
  EbbStoreCounters *counters = &PRIVATE (self)->counters;

  EBB_AUTO_LOCK (&PRIVATE (self)->lock);
  counters->held += (guint64) n_bytes;
  counters->peak = MAX (counters->peak, counters->held);
}

/* -- saved tensors ------------------------------------------------------------------------------------------------- */

/* Tensors of the model or the optimizer, those whose memory code outside looks at, and small ones stay as they are.
 * After the early stop of a recompute no tensor will be asked for. */
static gboolean
is_worth_storing (EbbActivationStore *self,
                  EbbTensor *tensor,
                  GError **error)
{
  const EbbStorage *storage = tensor->storage;
  const EbbPurpose purpose = ebb_storage_get_purpose (storage);

  return !tensor->is_parameter && !tensor->is_buffer && !storage->placeholder && !storage->pinned && !ebb_is_stopped ()
         && (purpose == EBB_PURPOSE_WORKSPACE || purpose == EBB_PURPOSE_ACTIVATION)
         && tensor->n_elements > 0 && ebb_tensor_get_n_bytes (tensor) >= EBB_READ (PRIVATE (self)->least_size)
         && ebb_activation_store_passes_filter (self, tensor, error);
}

static void
packed_handle_clear (gpointer data)
{
  ebb_shared_block_leave (((PackedHandle *) data)->block);
}

static EbbHandle *
pack_block (EbbActivationStore *self,
            EbbTensor *tensor,
            gboolean *in_place,
            GError **error)
{
  EbbSharedBlock *block = ebb_shared_block_enter (self, tensor, error);
  PackedHandle *packed;

  if (block == NULL)
    return NULL;
  *in_place = block->key.in_place;
  packed = ebb_handle_alloc (sizeof *packed, packed_handle_clear);
  packed->block = block;
  packed->view = tensor->view;
  packed->view.data = NULL;
  packed->is_local_shard = tensor->is_local_shard;
  packed->offset = (gsize) tensor->offset * ebb_dtype_get_size (tensor->view.dtype) - block->key.start;
  if (*in_place)
    ebb_handle_keep (&packed->handle, tensor);
  return &packed->handle;
}

static EbbHandle *
ebb_activation_store_pack (EbbSavedTensorHooks *hooks,
                           EbbTensor *tensor,
                           GError **error)
{
  EbbActivationStore *self = EBB_ACTIVATION_STORE (hooks);
  GError *local = NULL;
  gboolean stores = is_worth_storing (self, tensor, &local), in_place = TRUE;
  EbbHandle *handle = NULL;

  if (local != NULL)
    g_propagate_error (error, local);
  else
    handle = stores ? pack_block (self, tensor, &in_place, error) : ebb_handle_new (tensor);
  if (handle == NULL)
    return NULL;
  EBB_AUTO_LOCK (&PRIVATE (self)->lock);
  PRIVATE (self)->counters.n_packed++;
  PRIVATE (self)->counters.n_kept += in_place;
  return handle;
}

static EbbTensor *
get_view (PackedHandle *self,
          GError **error)
{
  const int stopped = ebb_modes.stopped;
  EbbTensor *tensor;

  /* A tensor that comes back has data, even where a recompute needs nothing more. */
  ebb_modes.stopped = 0;
  tensor = ebb_shared_block_get_view (self->block, &self->view, self->offset, error);
  ebb_modes.stopped = stopped;
  if (tensor != NULL)
    tensor->is_local_shard = self->is_local_shard != FALSE;
  return tensor;
}

static EbbTensor *
ebb_activation_store_unpack (EbbSavedTensorHooks *hooks,
                             EbbHandle *handle,
                             GError **error)
{
  EbbActivationStore *self = EBB_ACTIVATION_STORE (hooks);
  PackedHandle *packed = handle->destroy == packed_handle_clear ? (PackedHandle *) handle : NULL;
  EbbTensor *tensor = NULL;

  if (packed != NULL ? packed->block->store != self : handle->tensor == NULL)
    ebb_error_set (error, EBB_ERROR_INVALID_ARGUMENT, "this %s did not return the handle", G_OBJECT_TYPE_NAME (self));
  else
    tensor = handle->tensor != NULL ? ebb_handle_get_tensor (handle) : get_view (packed, error);
  if (tensor == NULL)
    return NULL;
  EBB_AUTO_LOCK (&PRIVATE (self)->lock);
  PRIVATE (self)->counters.n_unpacked++;
  return tensor;
}

static gboolean
ebb_activation_store_moves (EbbActivationStore *self,
                            EbbDevice *device)
{
  return TRUE;
}

static EbbHandle *
ebb_activation_store_put (EbbActivationStore *self,
                          EbbTensor *block,
                          GError **error)
{
  return ebb_handle_new (block);
}

static EbbHandle *
ebb_activation_store_real_reserve (EbbActivationStore *self,
                                   EbbDevice *device,
                                   guint64 n_bytes,
                                   GError **error)
{
  return ebb_fail_null (error, EBB_ERROR_NOT_SUPPORTED,
                        "%s can't reserve a room, here of %" G_GUINT64_FORMAT " bytes for %s; use a host or disk store",
                        G_OBJECT_TYPE_NAME (self), n_bytes, ebb_device_get_name (device));
}

static EbbHandle *
ebb_activation_store_real_put_at (EbbActivationStore *self,
                                  EbbHandle *room,
                                  guint64 offset,
                                  EbbTensor *block,
                                  GError **error)
{
  return ebb_fail_null (error, EBB_ERROR_NOT_SUPPORTED, "%s can't put a block into a reserved room",
                        G_OBJECT_TYPE_NAME (self));
}

gboolean
ebb_activation_store_can_reserve (const EbbActivationStoreClass *klass)
{
  return klass->reserve != ebb_activation_store_real_reserve && klass->put_at != ebb_activation_store_real_put_at;
}

/* -- seconds of copies --------------------------------------------------------------------------------------------- */

/**
 * ebb_activation_store_count_seconds:
 * @self: a store
 * @moving: seconds that moving bytes has taken
 * @waited: how long of them computing, or the thread that asked, stood waiting
 *
 * Adds to the counters; for kinds of stores.
 */
void
ebb_activation_store_count_seconds (EbbActivationStore *self,
                                    double moving,
                                    double waited)
{
  EbbActivationStorePrivate *priv;

  g_return_if_fail (EBB_IS_ACTIVATION_STORE (self));

  priv = PRIVATE (self);
  EBB_AUTO_LOCK (&PRIVATE (self)->lock);
  priv->counters.moving += moving;
  priv->counters.waited += waited;
}

/* -- sources in flight --------------------------------------------------------------------------------------------- */

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
  GList link;
};

/* -- failures ------------------------------------------------------------------------------------------------------ */

void
ebb_activation_store_note_failure (EbbActivationStore *self,
                                   GError *error)
{
  EbbActivationStorePrivate *priv = ebb_activation_store_peek (self);

  EBB_AUTO_LOCK (&priv->flight_lock);
  if (priv->failure == NULL)
    priv->failure = error;
  else
    g_clear_error (&error);
}

gboolean
ebb_activation_store_return_failure (EbbActivationStore *self,
                                     GError **error)
{
  EbbActivationStorePrivate *priv = ebb_activation_store_peek (self);

  EBB_AUTO_LOCK (&priv->flight_lock);
  if (priv->failure == NULL)
    return TRUE;
  if (error != NULL) /* else it is left for a caller that takes it */
    g_propagate_error (error, g_steal_pointer (&priv->failure));
  return FALSE;
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
  g_queue_unlink (&ebb_activation_store_peek (self->store)->sources, &self->link);
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
  gboolean some = FALSE;

  for (GList *l = priv->sources.head, *next; l != NULL; l = next)
    {
      EbbInFlight *source = l->data;

      next = l->next;
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
  source = g_queue_peek_head (&priv->sources);
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

/* The group that a pack now belongs to. */
static guint64
enter_group (EbbActivationStorePrivate *priv)
{
  EbbPackGroup *group = &priv->group;

  EBB_AUTO_LOCK (&priv->flight_lock);
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

  EBB_AUTO_LOCK (&priv->flight_lock);
  return priv->group.number;
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
  group = enter_group (priv);
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
                           .in_flight = TRUE,
                           .link.data = source };
  ebb_storage_add_watch (block->storage, &source->watch);
  pthread_mutex_lock (&priv->flight_lock);
  source->group = priv->group.number;
  g_queue_push_tail_link (&priv->sources, &source->link);
  pthread_mutex_unlock (&priv->flight_lock);
  if (EBB_READ (priv->in_flight) == 0)
    release (priv, source->group + 1, NULL);
  return source;
}

static EbbTensor *
get_held (EbbInFlight *self)
{
  EbbActivationStorePrivate *priv = ebb_activation_store_peek (self->store);

  EBB_AUTO_LOCK (&priv->flight_lock);
  return self->held != NULL && self->storage->version == self->version ? ebb_handle_get_tensor (self->held) : NULL;
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

  EBB_AUTO_LOCK (&priv->flight_lock);
  g_queue_push_tail (&priv->transfers, ebb_transfer_ref (transfer));
}

/* A thread that waits for a transfer which has just ended may not have noted how long: so transfers that are done now
 * are counted by the next sweep. */
static GQueue
take_settled (EbbActivationStorePrivate *priv)
{
  EbbTransfer *transfer;
  GQueue settled;

  EBB_AUTO_LOCK (&priv->flight_lock);
  settled = priv->settled;
  g_queue_init (&priv->settled);
  while ((transfer = g_queue_peek_head (&priv->transfers)) != NULL && ebb_transfer_is_over (transfer))
    g_queue_push_tail (&priv->settled, g_queue_pop_head (&priv->transfers));
  return settled;
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
  GQueue settled = take_settled (ebb_activation_store_peek (self));

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

/* -- settings ------------------------------------------------------------------------------------------------------ */

struct _EbbStoreFilter
{
  EbbActivationFilterFunc func;
  gpointer data;
  GDestroyNotify destroy;
};

/* -- filter -------------------------------------------------------------------------------------------------------- */

static void filter_unref (EbbStoreFilter *self);

gboolean
ebb_activation_store_passes_filter (EbbActivationStore *self,
                                    EbbTensor *tensor,
                                    GError **error)
{
  EbbStoreFilter *filter;
  GError *local = NULL;
  gboolean passes;

  ebb_activation_store_lock (self);
  filter = PRIVATE (self)->filter != NULL ? g_atomic_rc_box_acquire (PRIVATE (self)->filter) : NULL;
  ebb_activation_store_unlock (self);
  if (filter == NULL)
    return TRUE;
  passes = filter->func (tensor, ebb_modes.saving ? ebb_modes.saving->name : "", filter->data, &local);
  filter_unref (filter);
  if (local == NULL)
    return passes;
  g_propagate_error (error, local);
  return FALSE;
}

/* -- properties ---------------------------------------------------------------------------------------------------- */

void
ebb_setting_get_property (GObject *object,
                          guint id,
                          GValue *value,
                          GParamSpec *spec)
{
  gpointer field = ebb_property_get_pointer (object, id);

  switch (G_TYPE_FUNDAMENTAL (spec->value_type))
    {
    case G_TYPE_BOOLEAN: g_value_set_boolean (value, EBB_READ (*(gboolean *) field)); break;
    case G_TYPE_UINT: g_value_set_uint (value, EBB_READ (*(guint *) field)); break;
    case G_TYPE_ENUM: g_value_set_enum (value, EBB_READ (*(int *) field)); break;
    case G_TYPE_UINT64: g_value_set_uint64 (value, EBB_READ (*(guint64 *) field)); break;
    default: ebb_property_get_field (object, id, value, spec); /* never changes */
    }
}

#define EXCHANGE(type, value) (__atomic_exchange_n ((type *) field, value, __ATOMIC_RELAXED) != (value))

void
ebb_setting_set_property (GObject *object,
                          guint id,
                          const GValue *value,
                          GParamSpec *spec)
{
  gpointer field = ebb_property_get_pointer (object, id);
  gboolean changes = FALSE;

  switch (G_TYPE_FUNDAMENTAL (spec->value_type))
    {
    case G_TYPE_BOOLEAN: changes = EXCHANGE (gboolean, g_value_get_boolean (value)); break;
    case G_TYPE_UINT: changes = EXCHANGE (guint, g_value_get_uint (value)); break;
    case G_TYPE_ENUM: changes = EXCHANGE (int, g_value_get_enum (value)); break;
    case G_TYPE_UINT64: changes = EXCHANGE (guint64, g_value_get_uint64 (value)); break;
    default: ebb_property_set_field (object, id, value, spec);
    }
  if (changes)
    g_object_notify_by_pspec (object, spec);
}

/* -- stores behind a store ----------------------------------------------------------------------------------------- */

const char *const ebb_store_links[EBB_N_LINKS] = { "next", "fallback" };

EbbActivationStore *
ebb_activation_store_ref_behind (EbbActivationStore *self,
                                 guint i)
{
  GParamSpec *spec = g_object_class_find_property (G_OBJECT_GET_CLASS (self), ebb_store_links[i]);
  EbbActivationStore *store = NULL;

  if (spec != NULL && g_type_is_a (spec->value_type, EBB_TYPE_SAVED_TENSOR_HOOKS))
    g_object_get (self, ebb_store_links[i], &store, NULL);
  if (store != NULL && !EBB_IS_ACTIVATION_STORE (store))
    g_clear_object (&store);
  return store;
}

GPtrArray *
ebb_activation_store_get_chain (EbbActivationStore *self)
{
  GPtrArray *chain = g_ptr_array_new_with_free_func (g_object_unref);

  g_ptr_array_add (chain, g_object_ref (self));
  for (guint n = 0; n < chain->len; n++)
    for (guint i = 0; i < EBB_N_LINKS; i++)
      {
        EbbActivationStore *store = ebb_activation_store_ref_behind (chain->pdata[n], i);

        if (store != NULL && !g_ptr_array_find (chain, store, NULL))
          g_ptr_array_add (chain, store);
        else
          g_clear_object (&store);
      }
  return chain;
}

/* -- getters and setters ------------------------------------------------------------------------------------------- */

/**
 * ebb_activation_store_get_next:
 * @self: a store
 *
 * Returns: (transfer none) (nullable): the store that @self stands in front of
 */
EbbActivationStore *
ebb_activation_store_get_next (EbbActivationStore *self)
{
  EbbActivationStore *next;

  g_return_val_if_fail (EBB_IS_ACTIVATION_STORE (self), NULL);

  next = ebb_activation_store_ref_behind (self, 0);
  if (next != NULL)
    g_object_unref (next); /* @self holds it */
  return next;
}

/**
 * ebb_activation_store_get_fallback:
 * @self: a store
 *
 * Returns: (transfer none) (nullable): the store for tensors that this store can't take
 */
EbbActivationStore *
ebb_activation_store_get_fallback (EbbActivationStore *self)
{
  g_return_val_if_fail (EBB_IS_ACTIVATION_STORE (self), NULL);

  EBB_AUTO_LOCK (&PRIVATE (self)->lock);
  return PRIVATE (self)->fallback;
}

EbbActivationStore *
ebb_activation_store_ref_fallback (EbbActivationStore *self)
{
  EBB_AUTO_LOCK (&PRIVATE (self)->lock);
  return PRIVATE (self)->fallback != NULL ? g_object_ref (PRIVATE (self)->fallback) : NULL;
}

/* FALSE with @error set if @store leads to @self. */
static gboolean
check_fallback (EbbActivationStore *self,
                EbbActivationStore *fallback,
                GError **error)
{
  g_autoptr (GPtrArray) chain = ebb_activation_store_get_chain (fallback);

  return !g_ptr_array_find (chain, self, NULL)
         || ebb_fail (
             error, EBB_ERROR_INVALID_ARGUMENT,
             "fallback of %s: this %s leads back to this store itself, by its own fallback or its next store; it "
             "must be a store that does not",
             G_OBJECT_TYPE_NAME (self), G_OBJECT_TYPE_NAME (fallback));
}

/**
 * ebb_activation_store_set_fallback:
 * @self: a store
 * @fallback: (nullable): another one, from which neither its fallback nor its next store leads back to
 *   @self; %NULL: none
 * @error: return location for an error
 *
 * Sets the store for tensors that this store has no room for or can't write, so that training goes on. Tensors that are
 * stored already stay where they are.
 *
 * To set #EbbActivationStore:fallback as a property does the same, but there is no place for an error: a store that
 * leads back is refused with a warning.
 *
 * Returns: %FALSE with %EBB_ERROR_INVALID_ARGUMENT if @fallback leads back to @self; nothing is changed then
 */
gboolean
ebb_activation_store_set_fallback (EbbActivationStore *self,
                                   EbbActivationStore *fallback,
                                   GError **error)
{
  static pthread_mutex_t setting = PTHREAD_MUTEX_INITIALIZER; /* two threads could else tie a knot */
  EbbActivationStore *old = NULL;
  gboolean changes = FALSE, ok;

  g_return_val_if_fail (fallback == NULL || EBB_IS_ACTIVATION_STORE (fallback), FALSE);

  EBB_RETURN_UNLESS_BEGUN (FALSE, error, self);
  pthread_mutex_lock (&setting);
  ok = fallback == NULL || check_fallback (self, fallback, error);
  if (ok)
    {
      ebb_activation_store_lock (self);
      old = PRIVATE (self)->fallback;
      changes = old != fallback;
      PRIVATE (self)->fallback = fallback != NULL ? g_object_ref (fallback) : NULL;
      ebb_activation_store_unlock (self);
    }
  pthread_mutex_unlock (&setting);
  g_clear_object (&old);
  if (changes)
    g_object_notify (G_OBJECT (self), "fallback");
  return ok;
}

/**
 * ebb_activation_store_set_filter:
 * @self: a store
 * @filter: (nullable) (scope notified) (closure user_data) (destroy destroy): decides whether a tensor is stored;
 * %NULL: all are
 * @user_data: user data
 * @destroy: frees @user_data
 *
 * Has a function asked about each tensor that would be stored: not about parameters, buffers and those below the least
 * size, which are kept anyway.
 */
void
ebb_activation_store_set_filter (EbbActivationStore *self,
                                 EbbActivationFilterFunc filter,
                                 gpointer user_data,
                                 GDestroyNotify destroy)
{
  EbbStoreFilter *made = NULL, *old;

  g_return_if_fail (EBB_IS_ACTIVATION_STORE (self));

  if (filter != NULL)
    {
      made = g_atomic_rc_box_new0 (EbbStoreFilter);
      *made = (EbbStoreFilter){ filter, user_data, destroy };
    }
  ebb_activation_store_lock (self);
  old = PRIVATE (self)->filter;
  PRIVATE (self)->filter = made;
  ebb_activation_store_unlock (self);
  g_clear_pointer (&old, filter_unref);
}

void
ebb_activation_store_set_spills (EbbActivationStore *self,
                                 gboolean spills)
{
  EBB_WRITE (PRIVATE (self)->never_spills, !spills);
}

/* -- freeing ------------------------------------------------------------------------------------------------------- */

static void
filter_clear (gpointer data)
{
  EbbStoreFilter *self = data;

  if (self->destroy != NULL)
    self->destroy (self->data);
}

static void
filter_unref (EbbStoreFilter *self)
{
  g_atomic_rc_box_release_full (self, filter_clear);
}

void
ebb_activation_store_dispose_settings (EbbActivationStore *self)
{
  EbbActivationStorePrivate *priv = PRIVATE (self);
  EbbActivationStore *fallback;
  EbbStoreFilter *filter;

  ebb_activation_store_lock (self);
  fallback = g_steal_pointer (&priv->fallback);
  filter = g_steal_pointer (&priv->filter);
  ebb_activation_store_unlock (self);
  g_clear_object (&fallback);
  g_clear_pointer (&filter, filter_unref);
}

/* -- object -------------------------------------------------------------------------------------------------------- */

/* The fallback is under the lock. */
static void
get_property (GObject *object,
              guint id,
              GValue *value,
              GParamSpec *spec)
{
  if (id == (guint) G_PRIVATE_OFFSET (EbbActivationStore, fallback))
    g_value_take_object (value, ebb_activation_store_ref_fallback (EBB_ACTIVATION_STORE (object)));
  else
    ebb_setting_get_property (object, id, value, spec);
}

static void
set_property (GObject *object,
              guint id,
              const GValue *value,
              GParamSpec *spec)
{
  g_autoptr (GError) refused = NULL;

  if (id != (guint) G_PRIVATE_OFFSET (EbbActivationStore, fallback))
    ebb_setting_set_property (object, id, value, spec);
  else if (!ebb_activation_store_set_fallback (EBB_ACTIVATION_STORE (object), g_value_get_object (value), &refused))
    g_warning ("%s", refused->message);
}

static void
install_settings (GObjectClass *object_class)
{
  const GParamFlags flags = G_PARAM_READWRITE | G_PARAM_STATIC_STRINGS | G_PARAM_EXPLICIT_NOTIFY;

  /**
   * EbbActivationStore:least-size:
   *
   * Tensors of fewer bytes are kept where they are.
   */
  g_object_class_install_property (
      object_class, G_PRIVATE_OFFSET (EbbActivationStore, least_size),
      g_param_spec_uint64 ("least-size", NULL, NULL, 0, G_MAXUINT64, DEFAULT_LEAST_SIZE, flags));
  /**
   * EbbActivationStore:prefetch:
   *
   * How many groups of tensors are brought back ahead of the one that backward asks for. A group is the tensors that
   * were stored between two kernels, as the inputs of one checkpointed module. So at most `prefetch` + 1 groups lie in
   * the memory of the device; with 0, computing waits for each.
   */
  g_object_class_install_property (object_class, G_PRIVATE_OFFSET (EbbActivationStore, prefetch),
                                   g_param_spec_uint ("prefetch", NULL, NULL, 0, G_MAXUINT, 1, flags));
  /**
   * EbbActivationStore:in-flight:
   *
   * How many groups of tensors, see #EbbActivationStore:prefetch, may lie in the memory of the device while they are
   * copied away. When another one comes, computing waits for the oldest copy, and its source is freed. With 1 a copy
   * overlaps the module that follows; where single ops store, some more give the copies time. With 0 nothing overlaps.
   */
  g_object_class_install_property (object_class, G_PRIVATE_OFFSET (EbbActivationStore, in_flight),
                                   g_param_spec_uint ("in-flight", NULL, NULL, 0, G_MAXUINT, 1, flags));
  /**
   * EbbActivationStore:fallback:
   *
   * The store for tensors that this store has no room for, or can't write. Without one they are an error.
   */
  g_object_class_install_property (object_class, G_PRIVATE_OFFSET (EbbActivationStore, fallback),
                                   g_param_spec_object ("fallback", NULL, NULL, EBB_TYPE_ACTIVATION_STORE, flags));
}

static void
ebb_activation_store_dispose (GObject *object)
{
  ebb_activation_store_dispose_settings (EBB_ACTIVATION_STORE (object));
  G_OBJECT_CLASS (ebb_activation_store_parent_class)->dispose (object);
}

/* Every block holds a reference to the store, so none is left. */
static void
ebb_activation_store_finalize (GObject *object)
{
  EbbActivationStorePrivate *priv = PRIVATE (EBB_ACTIVATION_STORE (object));

  g_hash_table_unref (priv->blocks);
  g_queue_clear_full (&priv->transfers, (GDestroyNotify) ebb_transfer_unref);
  g_queue_clear_full (&priv->settled, (GDestroyNotify) ebb_transfer_unref);
  g_clear_error (&priv->failure);
  pthread_mutex_destroy (&priv->flight_lock);
  pthread_mutex_destroy (&priv->lock);
  G_OBJECT_CLASS (ebb_activation_store_parent_class)->finalize (object);
}

static void
ebb_activation_store_class_init (EbbActivationStoreClass *klass)
{
  EbbSavedTensorHooksClass *hooks_class = EBB_SAVED_TENSOR_HOOKS_CLASS (klass);
  GObjectClass *object_class = G_OBJECT_CLASS (klass);

  object_class->get_property = get_property;
  object_class->set_property = set_property;
  object_class->dispose = ebb_activation_store_dispose;
  object_class->finalize = ebb_activation_store_finalize;
  hooks_class->pack = ebb_activation_store_pack;
  hooks_class->unpack = ebb_activation_store_unpack;
  klass->moves = ebb_activation_store_moves;
  klass->put = ebb_activation_store_put;
  klass->get = ebb_activation_store_real_get;
  klass->prefetch = ebb_activation_store_real_prefetch;
  klass->reserve = ebb_activation_store_real_reserve;
  klass->put_at = ebb_activation_store_real_put_at;
  install_settings (object_class);
}

static void
ebb_activation_store_init (EbbActivationStore *self)
{
  EbbActivationStorePrivate *priv = PRIVATE (self);

  priv->least_size = DEFAULT_LEAST_SIZE;
  priv->prefetch = priv->in_flight = 1;
  priv->blocks = g_hash_table_new (ebb_shared_block_hash, ebb_shared_block_equal);
  pthread_mutex_init (&priv->lock, NULL);
  pthread_mutex_init (&priv->flight_lock, NULL);
}

/* -- hints --------------------------------------------------------------------------------------------------------- */

static guint hints_slot;

static void __attribute__ ((constructor))
register_hints (void)
{
  hints_slot = ebb_modes_register_slot (NULL, NULL);
}

gboolean
ebb_save_has_hint (EbbSaveHint hint)
{
  return (GPOINTER_TO_UINT (ebb_modes.slots[hints_slot]) & hint) != 0;
}

void
ebb_modes_set_save_hints (EbbModes *modes,
                          guint hints)
{
  modes->slots[hints_slot] = GUINT_TO_POINTER (hints);
}
