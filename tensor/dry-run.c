/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/dry-run-private.h"

#include "tensor/backend/backend-private.h"
#include "tensor/cpu/host-allocator-private.h"

/* Dry runs: their scope, the parameters that they adopt, and their end. */

EbbDryRun *
ebb_dry_run_new (void)
{
  EbbDryRun *self = g_new0 (EbbDryRun, 1);

  self->account = ebb_memory_account_new ();
  self->account->is_dry = TRUE;
  self->account->run = self;
  self->generator = ebb_generator_new (0);
  self->storages = g_hash_table_new_full (NULL, NULL, (GDestroyNotify) ebb_storage_unref,
                                          (GDestroyNotify) ebb_storage_unref);
  self->replaced = g_hash_table_new (NULL, NULL);
  self->caches = g_array_new (FALSE, FALSE, sizeof (EbbAtEnd));
  self->at_end = g_array_new (FALSE, FALSE, sizeof (EbbAtEnd));
  return self;
}

void
ebb_dry_run_enter (EbbDryRun *self,
                   EbbDryScope *outer)
{
  outer->modes = ebb_modes;
  outer->account = ebb_thread_enter_account (self->account);
  self->outer_account = outer->account;
  ebb_modes.generator = self->generator;
  ebb_modes.forks = NULL;
}

void
ebb_dry_run_leave (EbbDryRun *self,
                   const EbbDryScope *outer)
{
  ebb_modes_leave (&outer->modes);
  ebb_thread_enter_account (outer->account);
}

EbbMemoryAccount *
ebb_dry_run_get_account (EbbDryRun *self)
{
  return self->account;
}

EbbMemoryAccount *
ebb_dry_run_get_outer_account (EbbDryRun *self)
{
  return self->outer_account;
}

guint64
ebb_dry_run_get_extent (EbbDryRun *self,
                        EbbDevice *device)
{
  EbbHostHeap *heap = self->account->heaps[device->number];
  guint64 extent = heap != NULL ? ebb_host_heap_get_extent (heap) : 0;

  for (guint i = 0; self->is_counted[device->number] && i < EBB_N_PURPOSES; i++)
    extent += self->outside[device->number][i];
  return extent;
}

void
ebb_dry_run_trim (EbbDryRun *self)
{
  for (guint i = 0; i < EBB_MAX_DEVICES; i++)
    if (self->account->heaps[i] != NULL)
      ebb_host_heap_trim (self->account->heaps[i]);
}

/* -- for callers --------------------------------------------------------------------------------------------------- */

typedef struct _Pushed Pushed;

struct _Pushed
{
  Pushed *below;
  EbbDryRun *run;
  EbbDryScope outer;
};

static __thread Pushed *pushed __attribute__ ((tls_model ("initial-exec")));

/**
 * ebb_push_dry_run:
 *
 * What this thread does from now on is a dry run, until ebb_pop_dry_run(): modules, ops, backward passes, wrappers,
 * stores and optimizers work as ever, and ebb_memory_get_stats() counts the bytes of the run alone, to the byte; but
 * nothing is computed, copied, read or written, and memory costs next to nothing. So a model that doesn't fit can be
 * made, and ebb_memory_estimate_new() says what its training needs.
 *
 * Tensors whose values a kernel would have computed have none: reading them is %EBB_ERROR_DRY_RUN. A model that was
 * made in a dry run may be given to ebb_memory_estimate_new() later; otherwise its tensors are of no use outside.
 */
void
ebb_push_dry_run (void)
{
  Pushed *self = g_new0 (Pushed, 1);

  self->below = pushed;
  self->run = ebb_dry_run_new ();
  ebb_dry_run_enter (self->run, &self->outer);
  pushed = self;
}

/**
 * ebb_pop_dry_run:
 *
 * Ends the dry run that the last ebb_push_dry_run() of this thread has begun.
 */
void
ebb_pop_dry_run (void)
{
  Pushed *self = pushed;

  g_return_if_fail (self != NULL);

  pushed = self->below;
  ebb_dry_run_leave (self->run, &self->outer);
  ebb_dry_run_free (self->run);
  g_free (self);
}

/**
 * ebb_is_dry_run:
 *
 * Returns: %TRUE in a dry run, where a step leaves out what needs values, such as writing the loss to a log
 */
gboolean
ebb_is_dry_run (void)
{
  return ebb_is_dry ();
}

/* -- what is in use outside ---------------------------------------------------------------------------------------- */

static gboolean
counts_in (const EbbMemoryAccount *outer,
           const EbbMemoryAccount *account)
{
  return account == outer || (outer == NULL && !account->is_dry);
}

void
ebb_dry_run_replace (EbbDryRun *self,
                     gpointer owner,
                     EbbDevice *device,
                     EbbPurpose purpose,
                     guint64 n_bytes,
                     EbbMemoryAccount *account)
{
  guint64 *outside = &self->outside[device->number][purpose];

  if (!counts_in (self->outer_account, account) || !g_hash_table_add (self->replaced, owner))
    return;
  if (!self->is_counted[device->number])
    {
      *outside += n_bytes;
      return;
    }
  n_bytes = MIN (n_bytes, *outside);
  *outside -= n_bytes;
  ebb_device_change (device, NULL, (guint8) purpose, EBB_N_PURPOSES, n_bytes, self->account);
}

void
ebb_dry_run_replace_tensor (EbbDryRun *self,
                            EbbTensor *tensor)
{
  EbbStorage *storage = tensor->storage;

  ebb_dry_run_replace (self, storage, storage->device, ebb_storage_get_purpose (storage), storage->size,
                       storage->account);
}

void
ebb_dry_run_count_outside (EbbDryRun *self,
                           EbbDevice *device)
{
  const EbbMemoryAccount *outer = self->outer_account;
  const guint64 *current = outer != NULL ? outer->devices[device->number].current : device->current;

  if (self->is_counted[device->number])
    return;
  self->is_counted[device->number] = TRUE;
  for (guint8 i = 0; i < EBB_N_PURPOSES; i++)
    {
      /* Signed, as counters are: an account may lose what was never counted to it. */
      const gint64 rest = (gint64) (__atomic_load_n (&current[i], __ATOMIC_RELAXED) - self->outside[device->number][i]);

      self->outside[device->number][i] = (guint64) MAX (rest, 0);
      ebb_device_change (device, NULL, EBB_N_PURPOSES, i, (gsize) MAX (rest, 0), self->account);
    }
}

/* -- adopted tensors ----------------------------------------------------------------------------------------------- */

typedef struct
{
  EbbTensor *tensor;
  EbbStorage *storage;
  EbbTensor *grad, *shadow;
} Adopted;

static void
set_storage (EbbTensor *tensor,
             EbbStorage *storage)
{
  tensor->storage = storage;
  tensor->view.data = storage->data != NULL ? (char *) storage->data
                                                  + tensor->offset * (gint64) ebb_dtype_get_size (tensor->view.dtype)
                                            : NULL;
}

static void
give_back (gpointer data)
{
  Adopted *self = data;
  EbbTensor *tensor = self->tensor;

  ebb_storage_unref (tensor->storage);
  set_storage (tensor, self->storage);
  g_clear_pointer (&tensor->grad, ebb_tensor_unref);
  g_clear_pointer (&tensor->shadow, ebb_tensor_unref);
  tensor->grad = self->grad;
  tensor->shadow = self->shadow;
  ebb_tensor_unref (tensor);
  g_free (self);
}

static EbbStorage *
find_storage (EbbDryRun *self,
              EbbStorage *original,
              EbbDevice *device,
              GError **error)
{
  EbbStorage *storage = g_hash_table_lookup (self->storages, original);

  if (storage != NULL)
    return ebb_storage_ref (storage);
  storage = ebb_storage_new (device, original->size, error);
  if (storage == NULL)
    return NULL;
  storage->no_data = TRUE;
  ebb_storage_set_purpose (storage, ebb_storage_get_purpose (original));
  g_hash_table_insert (self->storages, ebb_storage_ref (original), ebb_storage_ref (storage));
  return storage;
}

gboolean
ebb_dry_run_adopt (EbbDryRun *self,
                   EbbTensor *tensor,
                   EbbDevice *device,
                   GError **error)
{
  EbbStorage *storage;
  Adopted *adopted;

  if (tensor->storage->account == self->account)
    return TRUE;
  storage = find_storage (self, tensor->storage, device, error);
  if (storage == NULL)
    return FALSE;
  ebb_dry_run_replace_tensor (self, tensor);
  if (tensor->grad != NULL)
    ebb_dry_run_replace_tensor (self, tensor->grad);
  if (tensor->shadow != NULL)
    ebb_dry_run_replace_tensor (self, tensor->shadow);
  adopted = g_new0 (Adopted, 1);
  *adopted = (Adopted){ ebb_tensor_ref (tensor), tensor->storage, g_steal_pointer (&tensor->grad),
                        g_steal_pointer (&tensor->shadow) };
  set_storage (tensor, storage);
  ebb_dry_run_at_end (self, give_back, adopted);
  return TRUE;
}

gboolean
ebb_dry_run_has_adopted (EbbDryRun *self)
{
  return g_hash_table_size (self->storages) > 0;
}

/* -- caches -------------------------------------------------------------------------------------------------------- */

void
ebb_dry_run_add_cache (EbbDryRun *self,
                       void (*clear) (gpointer object),
                       gpointer object)
{
  const EbbAtEnd cache = { clear, object };

  g_array_append_val (self->caches, cache);
}

gboolean
ebb_dry_run_has_caches (EbbDryRun *self)
{
  return self->caches->len > 0;
}

void
ebb_dry_run_clear_caches (EbbDryRun *self)
{
  for (guint i = 0; i < self->caches->len; i++)
    {
      const EbbAtEnd *cache = &g_array_index (self->caches, EbbAtEnd, i);

      cache->func (cache->data);
    }
  g_array_set_size (self->caches, 0);
}

void
ebb_dry_run_note_collective (EbbDryRun *self)
{
  self->has_collectives = TRUE;
}

gboolean
ebb_dry_run_has_collectives (EbbDryRun *self)
{
  return self->has_collectives;
}

/* -- the end ------------------------------------------------------------------------------------------------------- */

void
ebb_dry_run_free (EbbDryRun *self)
{
  EbbDryScope outer;

  ebb_dry_run_enter (self, &outer);
  while (self->at_end->len > 0)
    {
      const EbbAtEnd last = g_array_index (self->at_end, EbbAtEnd, self->at_end->len - 1);

      g_array_set_size (self->at_end, self->at_end->len - 1);
      last.func (last.data);
    }
  g_hash_table_unref (self->storages);
  g_hash_table_unref (self->replaced);
  ebb_dry_run_leave (self, &outer);
  g_array_unref (self->caches);
  g_array_unref (self->at_end);
  g_object_unref (self->generator);
  self->account->run = NULL;
  ebb_memory_account_unref (self->account);
  g_free (self);
}
