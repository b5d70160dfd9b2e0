/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Failures that tests request. */
#include "common/ranks/fault.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#define GROWTH ((gsize) 64 << 20)

static gboolean
run_op (GError **error)
{
  const gint64 size = 4096;
  g_autoptr (EbbTensor) zeros = ebb_zeros (&size, 1, EBB_DTYPE_F32, NULL, error);

  return zeros != NULL;
}

static gboolean
grow (void)
{
  static char *memory;

  if (memory == NULL)
    memory = memset (g_malloc (GROWTH), 1, GROWTH);
  return TRUE;
}

static gboolean
surge (void)
{
  g_free (memset (g_malloc (GROWTH), 1, GROWTH));
  return TRUE;
}

/* Keeps one more tensor. */
static gboolean
leak (GError **error)
{
  static GPtrArray *held;
  const gint64 size = 1000;
  EbbTensor *zeros = ebb_zeros (&size, 1, EBB_DTYPE_F32, NULL, error);

  if (zeros == NULL)
    return FALSE;
  if (held == NULL)
    held = g_ptr_array_new ();
  g_ptr_array_add (held, zeros);
  return TRUE;
}

static gboolean
meet (const char *wanted,
      const char *here,
      GError **error)
{
  if (!g_str_has_prefix (wanted, here))
    return TRUE;
  if (g_str_has_suffix (wanted, ":leak"))
    return leak (error);
  if (ebb_is_dry_run () && strstr (here, ":check:") == NULL)
    return TRUE;
  if (g_str_has_suffix (wanted, ":kill"))
    raise (SIGKILL);
  while (g_str_has_suffix (wanted, ":hang"))
    pause ();
  if (g_str_has_suffix (wanted, ":op"))
    return run_op (error);
  if (g_str_has_suffix (wanted, ":grow"))
    return grow ();
  if (g_str_has_suffix (wanted, ":surge"))
    return surge ();
  g_set_error (error, EBB_ERROR, g_str_has_suffix (wanted, ":memory") ? EBB_ERROR_NO_MEMORY : EBB_ERROR_STATE,
               "a failure was asked for, at %s", here);
  return FALSE;
}

gboolean
fault_meet (const Ranks *ranks,
            const char *phase,
            gint64 step,
            GError **error)
{
  const char *wanted = g_getenv ("EBB_GPT_JOB_FAULT");
  g_autofree char *here = NULL;
  g_auto (GStrv) all = NULL;
  gboolean ok = TRUE;

  if (wanted == NULL)
    return TRUE;
  here = g_strdup_printf ("%u:%s:%" G_GINT64_FORMAT ":", ranks != NULL ? ranks->rank : 0, phase, step);
  all = g_strsplit (wanted, ",", -1);
  for (guint i = 0; ok && all[i] != NULL; i++)
    ok = meet (all[i], here, error);
  return ok;
}
