/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Failures that tests request. */
#include "fault.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

gboolean
fault_meet (const Ranks *ranks,
            const char *phase,
            gint64 step,
            GError **error)
{
  const char *wanted = g_getenv ("EBB_GPT_JOB_FAULT");
  g_autofree char *here = NULL;

  if (wanted == NULL || ranks == NULL)
    return TRUE;
  here = g_strdup_printf ("%u:%s:%" G_GINT64_FORMAT ":", ranks->rank, phase, step);
  if (!g_str_has_prefix (wanted, here))
    return TRUE;
  if (g_str_has_suffix (wanted, ":kill"))
    raise (SIGKILL);
  while (g_str_has_suffix (wanted, ":hang"))
    pause ();
  g_set_error (error, EBB_ERROR, EBB_ERROR_STATE, "a failure was asked for, at %s", here);
  return FALSE;
}
