/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Lets threads wait for host memory, and detects that no other thread can return any. */
#include "offload/host/wait-private.h"

#include "tensor/util/lock-private.h"

struct _EbbHostOwner
{
  int ref_count;
  /* under the lock */
  gboolean waits, has_ended;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t change;
static guint n_waiting; /* threads between begin and end; also read without the lock */

static void thread_ended (gpointer data);
static GPrivate own = G_PRIVATE_INIT (thread_ended);

/* -- threads ------------------------------------------------------------------------------------------------------- */

EbbHostOwner *
ebb_host_owner_get (void)
{
  EbbHostOwner *owner = g_private_get (&own);

  if (owner == NULL)
    {
      owner = g_new0 (EbbHostOwner, 1);
      owner->ref_count = 1;
      g_private_set (&own, owner);
    }
  __atomic_add_fetch (&owner->ref_count, 1, __ATOMIC_RELAXED);
  return owner;
}

void
ebb_host_owner_unref (EbbHostOwner *owner)
{
  if (__atomic_sub_fetch (&owner->ref_count, 1, __ATOMIC_ACQ_REL) == 0)
    g_free (owner);
}

static void
thread_ended (gpointer data)
{
  EbbHostOwner *owner = data;

  pthread_mutex_lock (&lock);
  owner->has_ended = TRUE;
  pthread_cond_broadcast (&change);
  pthread_mutex_unlock (&lock);
  ebb_host_owner_unref (owner);
}

gboolean
ebb_host_owner_may_give (EbbHostOwner *owner)
{
  return owner != g_private_get (&own) && !owner->has_ended && !owner->waits;
}

/* -- waiting ------------------------------------------------------------------------------------------------------- */

static void __attribute__ ((constructor))
make_condition (void)
{
  ebb_cond_init (&change);
}

void
ebb_host_wait_begin (void)
{
  pthread_mutex_lock (&lock);
  __atomic_add_fetch (&n_waiting, 1, __ATOMIC_SEQ_CST);
}

void
ebb_host_wait_end (void)
{
  __atomic_sub_fetch (&n_waiting, 1, __ATOMIC_SEQ_CST);
  pthread_mutex_unlock (&lock);
}

gboolean
ebb_host_wait (gint64 deadline)
{
  EbbHostOwner *owner = ebb_host_owner_get ();
  gboolean in_time;

  owner->waits = TRUE;
  in_time = ebb_cond_wait_until (&change, &lock, deadline);
  owner->waits = FALSE;
  ebb_host_owner_unref (owner);
  return in_time;
}

void
ebb_host_announce (void)
{
  /* A thread that begins after this looks at its pool after this change of it. */
  if (__atomic_load_n (&n_waiting, __ATOMIC_SEQ_CST) == 0)
    return;
  EBB_AUTO_LOCK (&lock);
  pthread_cond_broadcast (&change);
}
