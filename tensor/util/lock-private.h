/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <errno.h>
#include <glib.h>
#include <pthread.h>

/* Locks that end with their scope, and waits with a deadline on the monotonic clock. */

G_BEGIN_DECLS

static inline pthread_mutex_t *
ebb_auto_lock (pthread_mutex_t *mutex)
{
  pthread_mutex_lock (mutex);
  return mutex;
}

static inline void
ebb_auto_unlock (pthread_mutex_t **mutex)
{
  pthread_mutex_unlock (*mutex);
}

/* Holds @mutex from here to the end of the scope; the value to return is computed before the end. */
#define EBB_AUTO_LOCK(mutex) \
  pthread_mutex_t *locked __attribute__ ((cleanup (ebb_auto_unlock), unused)) = ebb_auto_lock (mutex)

/* Makes a condition for ebb_cond_wait_until (). */
static inline void
ebb_cond_init (pthread_cond_t *condition)
{
  pthread_condattr_t attributes;

  pthread_condattr_init (&attributes);
  pthread_condattr_setclock (&attributes, CLOCK_MONOTONIC);
  pthread_cond_init (condition, &attributes);
  pthread_condattr_destroy (&attributes);
}

/* FALSE: @deadline, in microseconds of g_get_monotonic_time (), has passed. */
static inline gboolean
ebb_cond_wait_until (pthread_cond_t *condition,
                     pthread_mutex_t *mutex,
                     gint64 deadline)
{
  const struct timespec until = { .tv_sec = deadline / G_USEC_PER_SEC, .tv_nsec = deadline % G_USEC_PER_SEC * 1000 };

  return pthread_cond_timedwait (condition, mutex, &until) != ETIMEDOUT;
}

G_END_DECLS
