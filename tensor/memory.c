/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/memory.h"

#include "tensor/backend/backend-private.h"
#include "tensor/cpu/host-allocator-private.h"
#include "tensor/cpu/machine-memory-private.h"
#include "tensor/error-private.h"
#include "tensor/memory-account-private.h"
#include "tensor/thread-private.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Bytes are counted as they are asked for, when they are asked for: what a strategy saves shows here exactly, whatever
 * an allocator rounds or keeps. */

#define TOTAL EBB_N_PURPOSES

struct _EbbMemoryStats
{
  guint64 current[EBB_N_PURPOSES + 1];
  guint64 peak[EBB_N_PURPOSES + 1];
  guint64 reserved;
  guint64 system_calls;
};

G_STATIC_ASSERT (G_N_ELEMENTS (((EbbDevice *) NULL)->current) == EBB_N_PURPOSES + 1);

static const char *const purpose_names[EBB_N_PURPOSES] = { "parameters", "gradients", "optimizer",
                                                           "activations", "cache", "workspace" };

const char *
ebb_purpose_get_name (EbbPurpose purpose)
{
  return purpose_names[purpose];
}

/* Signed, since an account may lose what was never counted to it: memory that a store passes on. */
static void
count (guint64 *current,
       guint64 *peaks,
       guint which,
       gint64 n_bytes)
{
  gint64 now = (gint64) __atomic_add_fetch (&current[which], (guint64) n_bytes, __ATOMIC_RELAXED);
  guint64 peak;

  if (n_bytes <= 0)
    return;
  peak = __atomic_load_n (&peaks[which], __ATOMIC_RELAXED);
  while (now > (gint64) peak
         && !__atomic_compare_exchange_n (&peaks[which], &peak, (guint64) now, TRUE, __ATOMIC_RELAXED,
                                          __ATOMIC_RELAXED))
    ;
}

/* -- accounts ------------------------------------------------------------------------------------------------------ */

/* Of memory that belongs to no account. */
static EbbMemoryObserver *process_observers;
/* Held while observers are changed or called, and while bytes are counted that they see: so they see changes in the
 * order in which they were counted. What they do may be counted itself. */
static pthread_mutex_t observers_lock;

static void
make_observers_lock (void)
{
  pthread_mutexattr_t attributes;

  pthread_mutexattr_init (&attributes);
  pthread_mutexattr_settype (&attributes, PTHREAD_MUTEX_RECURSIVE);
  pthread_mutex_init (&observers_lock, &attributes);
  pthread_mutexattr_destroy (&attributes);
}

static void
lock_observers (void)
{
  static pthread_once_t once = PTHREAD_ONCE_INIT;

  pthread_once (&once, make_observers_lock);
  pthread_mutex_lock (&observers_lock);
}

static void
unlock_observers (void)
{
  pthread_mutex_unlock (&observers_lock);
}

static EbbMemoryObserver **
get_observers (EbbMemoryAccount *account)
{
  return account != NULL ? &account->observers : &process_observers;
}

void
ebb_memory_account_push_observer (EbbMemoryAccount *account,
                                  EbbMemoryObserver *observer)
{
  EbbMemoryObserver **observers = get_observers (account);

  lock_observers ();
  observer->outer = *observers;
  __atomic_store_n (observers, observer, __ATOMIC_RELEASE);
  unlock_observers ();
  ebb_thread_watch ();
}

void
ebb_memory_account_pop_observer (EbbMemoryAccount *account,
                                 EbbMemoryObserver *observer)
{
  EbbMemoryObserver **place = get_observers (account);

  lock_observers ();
  while (*place != observer)
    place = &(*place)->outer;
  __atomic_store_n (place, observer->outer, __ATOMIC_RELEASE);
  unlock_observers ();
  ebb_thread_unwatch ();
}

void
ebb_memory_lock_observers (void)
{
  lock_observers ();
}

void
ebb_memory_unlock_observers (void)
{
  unlock_observers ();
}

static void
notify_observers (EbbMemoryAccount *account,
                  EbbDevice *device,
                  const void *data,
                  guint8 from,
                  guint8 to,
                  gsize n_bytes)
{
  for (EbbMemoryObserver *observer = *get_observers (account); observer != NULL; observer = observer->outer)
    if (observer->changed != NULL)
      observer->changed (observer, device, data, from, to, n_bytes);
}

EbbMemoryAccount *
ebb_memory_account_new (void)
{
  EbbMemoryAccount *self = g_new0 (EbbMemoryAccount, 1);

  self->ref_count = 1;
  return self;
}

EbbMemoryAccount *
ebb_memory_account_ref (EbbMemoryAccount *self)
{
  __atomic_add_fetch (&self->ref_count, 1, __ATOMIC_RELAXED);
  return self;
}

void
ebb_memory_account_unref (EbbMemoryAccount *self)
{
  if (__atomic_sub_fetch (&self->ref_count, 1, __ATOMIC_ACQ_REL) != 0)
    return;
  for (guint i = 0; i < EBB_MAX_DEVICES; i++)
    g_clear_pointer (&self->heaps[i], ebb_host_heap_free);
  g_free (self);
}

static void
change_counts (guint64 *current,
               guint64 *peaks,
               guint8 from,
               guint8 to,
               gsize n_bytes)
{
  if (from != EBB_N_PURPOSES)
    count (current, peaks, from, -(gint64) n_bytes);
  else
    count (current, peaks, TOTAL, (gint64) n_bytes);
  if (to != EBB_N_PURPOSES)
    count (current, peaks, to, (gint64) n_bytes);
  else
    count (current, peaks, TOTAL, -(gint64) n_bytes);
}

static void
count_change (EbbDevice *device,
              guint8 from,
              guint8 to,
              gsize n_bytes,
              EbbMemoryAccount *account)
{
  if (G_LIKELY (account == NULL || !account->is_dry))
    change_counts (device->current, device->peak, from, to, n_bytes);
  if (G_UNLIKELY (account != NULL))
    change_counts (account->devices[device->number].current, account->devices[device->number].peak, from, to, n_bytes);
}

void
ebb_device_change (EbbDevice *device,
                   const void *data,
                   guint8 from,
                   guint8 to,
                   gsize n_bytes,
                   EbbMemoryAccount *account)
{
  if (G_LIKELY (__atomic_load_n (get_observers (account), __ATOMIC_ACQUIRE) == NULL))
    {
      count_change (device, from, to, n_bytes, account);
      return;
    }
  lock_observers ();
  count_change (device, from, to, n_bytes, account);
  notify_observers (account, device, data, from, to, n_bytes);
  unlock_observers ();
}

void
ebb_device_count (EbbDevice *device,
                  guint8 purpose,
                  gint64 n_bytes)
{
  if (n_bytes >= 0)
    ebb_device_change (device, NULL, EBB_N_PURPOSES, purpose, (gsize) n_bytes, ebb_thread.account);
  else
    ebb_device_change (device, NULL, purpose, EBB_N_PURPOSES, (gsize) -n_bytes, ebb_thread.account);
}

void
ebb_device_recount (EbbDevice *device,
                    guint8 from,
                    guint8 to,
                    gsize n_bytes)
{
  ebb_device_change (device, NULL, from, to, n_bytes, ebb_thread.account);
}

/* -- limits -------------------------------------------------------------------------------------------------------- */

static guint64
get_capacity (EbbDevice *device)
{
  return device->backend->get_capacity != NULL ? device->backend->get_capacity (device->index) : G_MAXUINT64;
}

/* The machine's memory stands in where no limit was set, so that a request that can't be met is an error and not the
 * system's killer. */
static guint64
effective_limit (EbbDevice *device)
{
  static guint64 physical;
  const guint64 limit = __atomic_load_n (&device->limit, __ATOMIC_RELAXED);

  if (limit != G_MAXUINT64 || !device->backend->host_memory)
    return limit;
  if (__atomic_load_n (&physical, __ATOMIC_RELAXED) == 0)
    __atomic_store_n (&physical, ebb_machine_get_memory (), __ATOMIC_RELAXED);
  return physical;
}

typedef struct
{
  const char *name;
  guint64 n_bytes;
} User;

static int
compare_users (gconstpointer a,
               gconstpointer b)
{
  const User *x = a, *y = b;

  return x->n_bytes > y->n_bytes ? -1 : x->n_bytes < y->n_bytes;
}

/* "activations 4096, parameters 512": the largest first. */
static char *
list_users (EbbDevice *device)
{
  GString *text = g_string_new (NULL);
  User users[EBB_N_PURPOSES];

  for (guint i = 0; i < EBB_N_PURPOSES; i++)
    users[i] = (User){ purpose_names[i], __atomic_load_n (&device->current[i], __ATOMIC_RELAXED) };
  qsort (users, EBB_N_PURPOSES, sizeof (User), compare_users);
  for (guint i = 0; i < EBB_N_PURPOSES && users[i].n_bytes > 0; i++)
    g_string_append_printf (text, "%s%s %" G_GUINT64_FORMAT, i > 0 ? ", " : "", users[i].name, users[i].n_bytes);
  if (text->len == 0)
    g_string_append (text, "nothing");
  return g_string_free (text, FALSE);
}

static void
set_no_memory (EbbDevice *device,
               gsize size,
               guint64 total,
               GError **error)
{
  g_autofree char *users = list_users (device);
  guint64 limit = effective_limit (device);

  ebb_error_set (error, EBB_ERROR_NO_MEMORY,
                 "out of memory on %s: %" G_GSIZE_FORMAT " bytes asked for, %" G_GUINT64_FORMAT " of %" G_GUINT64_FORMAT
                 " free; in use: %s",
                 device->name, size, limit > total ? limit - total : 0, limit, users);
}

/* Allocates from the device; if it fails, the error adds the device's own report and who uses the memory. */
static void *
alloc_or_explain (EbbDevice *device,
                  gsize size,
                  GError **error)
{
  GError *failure = NULL;
  /* Without a place for the error the device reports nothing. */
  void *data = device->backend->alloc (device->index, size, error != NULL ? &failure : NULL);

  if (data != NULL)
    return data;
  if (!device->backend->host_memory && g_error_matches (failure, EBB_ERROR, EBB_ERROR_NO_MEMORY))
    {
      g_autofree char *users = list_users (device);

      ebb_error_set (error, EBB_ERROR_NO_MEMORY, "out of memory on %s: %s; in use: %s", device->name, failure->message,
                     users);
      g_error_free (failure);
    }
  else if (failure != NULL)
    g_propagate_error (error, failure);
  return NULL;
}

gboolean
ebb_device_check_limit (EbbDevice *device,
                        gsize size,
                        guint64 beside,
                        GError **error)
{
  const guint64 total = __atomic_load_n (&device->current[TOTAL], __ATOMIC_RELAXED) + beside;

  if (G_UNLIKELY (ebb_is_dry ()))
    return TRUE;
  if (G_LIKELY (size <= effective_limit (device) && total <= effective_limit (device) - size))
    return TRUE;
  set_no_memory (device, size, total, error);
  return FALSE;
}

/* The heap of @device: placed as the device's own, in addresses that cost nothing. */
static EbbHostHeap *
get_heap (EbbMemoryAccount *account,
          EbbDevice *device)
{
  EbbHostHeap **heap = &account->heaps[device->number];

  if (*heap == NULL)
    *heap = ebb_host_heap_new ();
  return *heap;
}

void *
ebb_memory_account_alloc_dry (EbbMemoryAccount *account,
                              EbbDevice *device,
                              gsize size,
                              GError **error)
{
  EbbHostHeap *heap = get_heap (account, device);
  void *data = ebb_host_heap_alloc (heap, size, error);

  if (data == NULL || !ebb_thread.computes_dry || ebb_host_heap_map (heap, data, size, error))
    return data;
  ebb_host_heap_release (heap, data, size);
  return NULL;
}

void *
ebb_device_alloc (EbbDevice *device,
                  gsize size,
                  guint8 purpose,
                  GError **error)
{
  EbbMemoryAccount *account = ebb_thread.account;
  void *data;

  if (G_UNLIKELY (ebb_is_dry ()))
    data = ebb_memory_account_alloc_dry (account, device, size, error);
  else
    data = ebb_device_check_limit (device, size, 0, error) ? alloc_or_explain (device, size, error) : NULL;
  if (data != NULL)
    ebb_device_change (device, data, EBB_N_PURPOSES, purpose, size, account);
  return data;
}

static void
notify_of_launch (EbbDevice *device,
                  const EbbLaunch *launch)
{
  lock_observers ();
  for (EbbMemoryObserver *observer = *get_observers (ebb_thread.account); observer != NULL; observer = observer->outer)
    if (observer->launched != NULL)
      observer->launched (observer, device, launch);
  unlock_observers ();
}

void
ebb_memory_note_copy (EbbDevice *device,
                      const EbbCopyEvent *event)
{
  lock_observers ();
  for (EbbMemoryObserver *observer = *get_observers (ebb_thread.account); observer != NULL; observer = observer->outer)
    if (observer->copied != NULL)
      observer->copied (observer, device, event);
  unlock_observers ();
}

/* Nothing runs in a dry run, but its observers learn of the launch. */
static gboolean
enqueue (EbbDevice *device,
         EbbLaunch *launch,
         GError **error)
{
  if (G_UNLIKELY (__atomic_load_n (get_observers (ebb_thread.account), __ATOMIC_ACQUIRE) != NULL))
    notify_of_launch (device, launch);
  if (G_UNLIKELY (ebb_is_dry () && !ebb_thread.computes_dry))
    return TRUE;
  if (device->backend->launch == NULL)
    return device->kernels[launch->kernel](launch, error);
  return device->backend->launch (device->index, launch, error);
}

static gboolean
launch_with_workspace (EbbDevice *device,
                       EbbLaunch *launch,
                       gsize size,
                       GError **error)
{
  gboolean ok;

  launch->workspace = ebb_device_alloc (device, size, EBB_PURPOSE_WORKSPACE, error);
  if (launch->workspace == NULL)
    return FALSE;
  launch->workspace_size = size;
  ok = enqueue (device, launch, error);
  /* Work that is enqueued for computing later may use it at once. */
  ebb_device_free (device, launch->workspace, size, EBB_PURPOSE_WORKSPACE);
  return ok;
}

gboolean
ebb_device_launch (EbbDevice *device,
                   EbbLaunch *launch,
                   GError **error)
{
  const gsize size = device->backend->get_workspace ? device->backend->get_workspace (device->index, launch) : 0;

  if (size > 0)
    return launch_with_workspace (device, launch, size, error);
  launch->workspace = NULL;
  launch->workspace_size = 0;
  return enqueue (device, launch, error);
}

void
ebb_device_free (EbbDevice *device,
                 void *data,
                 gsize size,
                 guint8 purpose)
{
  ebb_device_free_of (device, data, size, purpose, ebb_thread.account);
}

void
ebb_device_free_uncounted (EbbDevice *device,
                           void *data,
                           gsize size,
                           EbbMemoryAccount *account)
{
  if (G_UNLIKELY (account != NULL && account->is_dry))
    ebb_host_heap_release (account->heaps[device->number], data, size);
  else
    device->backend->free (device->index, data, size);
}

void
ebb_device_free_of (EbbDevice *device,
                    void *data,
                    gsize size,
                    guint8 purpose,
                    EbbMemoryAccount *account)
{
  ebb_device_free_uncounted (device, data, size, account);
  ebb_device_change (device, data, purpose, EBB_N_PURPOSES, size, account);
}

/* The counters of the account of this thread, or of the device. */
static void
get_counters (EbbDevice *device,
              guint64 **current,
              guint64 **peak)
{
  if (ebb_thread.account != NULL)
    {
      *current = ebb_thread.account->devices[device->number].current;
      *peak = ebb_thread.account->devices[device->number].peak;
    }
  else
    {
      *current = device->current;
      *peak = device->peak;
    }
}

G_DEFINE_BOXED_TYPE (EbbMemoryStats, ebb_memory_stats, ebb_memory_stats_copy, ebb_memory_stats_free)

/**
 * ebb_memory_get_stats:
 * @device: (nullable): a device; %NULL for the CPU
 *
 * Takes a snapshot of a device's counters: on a thread of ebb_run_ranks() of what was made on that thread and by those
 * who work for it, elsewhere of the whole process. What the host's allocator took is always the process'.
 *
 * Returns: (transfer full): the counters now
 */
EbbMemoryStats *
ebb_memory_get_stats (EbbDevice *device)
{
  EbbMemoryStats *stats = g_new0 (EbbMemoryStats, 1);
  guint64 *current, *peak;

  if (device == NULL)
    device = ebb_device_get_cpu ();
  get_counters (device, &current, &peak);
  for (guint i = 0; i <= TOTAL; i++)
    {
      stats->current[i] = (guint64) MAX (0, (gint64) __atomic_load_n (&current[i], __ATOMIC_RELAXED));
      stats->peak[i] = (guint64) MAX (0, (gint64) __atomic_load_n (&peak[i], __ATOMIC_RELAXED));
    }
  stats->reserved = ebb_host_get_reserved ();
  if (device->backend->get_taken != NULL)
    device->backend->get_taken (device->index, &stats->reserved, NULL);
  stats->system_calls = ebb_host_get_system_calls ();
  return stats;
}

/**
 * ebb_memory_stats_copy:
 * @stats: counters
 *
 * Returns: (transfer full): a copy
 */
EbbMemoryStats *
ebb_memory_stats_copy (EbbMemoryStats *stats)
{
  return stats ? g_memdup2 (stats, sizeof *stats) : NULL;
}

/**
 * ebb_memory_stats_free:
 * @stats: (transfer full): counters
 *
 * Frees counters.
 */
void
ebb_memory_stats_free (EbbMemoryStats *stats)
{
  g_free (stats);
}

/**
 * ebb_memory_stats_get_current:
 * @stats: counters
 * @purpose: a purpose
 *
 * Returns: bytes in use for @purpose when the snapshot was taken
 */
guint64
ebb_memory_stats_get_current (EbbMemoryStats *stats,
                              EbbPurpose purpose)
{
  g_return_val_if_fail (stats != NULL && (guint) purpose < EBB_N_PURPOSES, 0);

  return stats->current[purpose];
}

/**
 * ebb_memory_stats_get_peak:
 * @stats: counters
 * @purpose: a purpose
 *
 * Returns: the most bytes in use for @purpose at one time since the start or ebb_memory_reset_peaks()
 */
guint64
ebb_memory_stats_get_peak (EbbMemoryStats *stats,
                           EbbPurpose purpose)
{
  g_return_val_if_fail (stats != NULL && (guint) purpose < EBB_N_PURPOSES, 0);

  return stats->peak[purpose];
}

/**
 * ebb_memory_stats_get_total:
 * @stats: counters
 *
 * Returns: bytes in use for all purposes
 */
guint64
ebb_memory_stats_get_total (EbbMemoryStats *stats)
{
  g_return_val_if_fail (stats != NULL, 0);

  return stats->current[TOTAL];
}

/**
 * ebb_memory_stats_get_peak_total:
 * @stats: counters
 *
 * Returns: the most bytes in use for all purposes together at one time
 */
guint64
ebb_memory_stats_get_peak_total (EbbMemoryStats *stats)
{
  g_return_val_if_fail (stats != NULL, 0);

  return stats->peak[TOTAL];
}

/**
 * ebb_memory_stats_get_reserved:
 * @stats: counters
 *
 * Returns: bytes that the allocator of tensors ever took: on a GPU of its memory, elsewhere from the system, by the
 *   host's allocator
 */
guint64
ebb_memory_stats_get_reserved (EbbMemoryStats *stats)
{
  g_return_val_if_fail (stats != NULL, 0);

  return stats->reserved;
}

/**
 * ebb_memory_stats_get_system_calls:
 * @stats: counters
 *
 * Returns: how often the host's allocator has asked the system for memory; constant in steady state
 */
guint64
ebb_memory_stats_get_system_calls (EbbMemoryStats *stats)
{
  g_return_val_if_fail (stats != NULL, 0);

  return stats->system_calls;
}

/**
 * ebb_memory_reset_peaks:
 * @device: (nullable): a device; %NULL for the CPU
 *
 * Makes the present use the peak, to measure what comes; on a thread of ebb_run_ranks() that of its rank alone.
 */
void
ebb_memory_reset_peaks (EbbDevice *device)
{
  guint64 *current, *peak;

  get_counters (device != NULL ? device : ebb_device_get_cpu (), &current, &peak);
  for (guint i = 0; i <= TOTAL; i++)
    __atomic_store_n (&peak[i], __atomic_load_n (&current[i], __ATOMIC_RELAXED), __ATOMIC_RELAXED);
}

/**
 * ebb_memory_set_limit:
 * @device: (nullable): a device; %NULL for the CPU
 * @n_bytes: the most bytes that tensors may use; 0 for all memory of the machine or of the device
 *
 * Sets a budget: an allocation beyond it fails with %EBB_ERROR_NO_MEMORY. On the CPU the allocator keeps its resident
 * memory below it, too, as far as whole pages of 2 MiB in which tensors lie allow: before an allocation would pass it,
 * memory between tensors is given back to the system.
 */
void
ebb_memory_set_limit (EbbDevice *device,
                      guint64 n_bytes)
{
  if (device == NULL)
    device = ebb_device_get_cpu ();
  if (n_bytes == 0)
    n_bytes = get_capacity (device);
  __atomic_store_n (&device->limit, n_bytes, __ATOMIC_RELAXED);
  if (device == ebb_device_get_cpu ())
    ebb_host_heap_set_bound (ebb_host_heap_get_own (), n_bytes);
}

/**
 * ebb_memory_get_limit:
 * @device: (nullable): a device; %NULL for the CPU
 *
 * Returns: the most bytes that tensors may use
 */
guint64
ebb_memory_get_limit (EbbDevice *device)
{
  return effective_limit (device ? device : ebb_device_get_cpu ());
}

/**
 * ebb_memory_get_available:
 * @device: (nullable): a device; %NULL for the CPU
 *
 * What of the limit no tensor uses; on the CPU no more than the machine, or the control groups of the process, could
 * still give.
 *
 * Returns: the bytes that tensors could take besides those that they have
 */
guint64
ebb_memory_get_available (EbbDevice *device)
{
  guint64 limit, total, available;

  if (device == NULL)
    device = ebb_device_get_cpu ();
  limit = effective_limit (device);
  total = __atomic_load_n (&device->current[TOTAL], __ATOMIC_RELAXED);
  available = limit > total ? limit - total : 0;
  return device == ebb_device_get_cpu () ? MIN (available, ebb_machine_get_available_memory ()) : available;
}

/**
 * ebb_memory_trim:
 * @device: (nullable): a device; %NULL for the CPU
 *
 * Gives cached memory that no tensor uses back to the system. On the CPU that is malloc()'s, too, from which libraries
 * take what they pack matrices into.
 */
void
ebb_memory_trim (EbbDevice *device)
{
  if (device == NULL || device->backend->host_memory)
    ebb_host_trim ();
}
