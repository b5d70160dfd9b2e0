/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/waits.h"

#include "tensor/backend/backend-private.h"

/* The device's table of functions is replaced by one whose functions count before they call the others. */

static guint n_copies, n_synchronized;
static const EbbBackend *real;

static gboolean
counting_copy (int index,
               void *destination,
               const void *source,
               gsize size,
               gboolean to_host,
               GError **error)
{
  __atomic_add_fetch (&n_copies, 1, __ATOMIC_RELAXED);
  return real->copy (index, destination, source, size, to_host, error);
}

static gboolean
counting_synchronize (int index,
                      GError **error)
{
  __atomic_add_fetch (&n_synchronized, 1, __ATOMIC_RELAXED);
  return real->synchronize (index, error);
}

static gboolean
counting_synchronize_event (gpointer event,
                            GError **error)
{
  __atomic_add_fetch (&n_synchronized, 1, __ATOMIC_RELAXED);
  return real->streams->synchronize_event (event, error);
}

void
test_waits_begin (EbbDevice *device)
{
  static EbbBackend backend;
  static EbbStreamFuncs streams;

  if (real == NULL)
    {
      real = device->backend;
      backend = *real;
      streams = *real->streams;
      backend.copy = counting_copy;
      backend.synchronize = counting_synchronize;
      backend.streams = &streams;
      streams.synchronize_event = counting_synchronize_event;
      device->backend = &backend;
    }
  test_waits_reset ();
}

void
test_waits_reset (void)
{
  __atomic_store_n (&n_copies, 0, __ATOMIC_RELAXED);
  __atomic_store_n (&n_synchronized, 0, __ATOMIC_RELAXED);
}

guint
test_waits_get_n (void)
{
  return __atomic_load_n (&n_copies, __ATOMIC_RELAXED) + test_waits_get_n_synchronized ();
}

guint
test_waits_get_n_synchronized (void)
{
  return __atomic_load_n (&n_synchronized, __ATOMIC_RELAXED);
}
