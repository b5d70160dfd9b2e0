/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/fuzz.h"

#include <string.h>

/* The emulated device's sizes and the names of devices. A device that is open stays so: the last setting is one that
 * makes each opening fail, and a case counts as taken if that is what the error names. */

static const char *const variables[] = { "EBB_SIM_MEMORY", "EBB_SIM_BANDWIDTH", "EBB_SIM_LATENCY", "EBB_SIM_FAIL" };
static const char *const values[][4] = { { "64M", "1.5G", "1000000", "64" },
                                         { "8G", "8G,4G", "1e9", ".5T,1k" },
                                         { "0", "20", "1e7", "2.5" },
                                         { "launch:100", "to-host:3,alloc:7", "alloc-host:1", "from-host:9" } };
static const char *const words[] = { "K", "T", "t", "P", ".", ",", ":", "-", "+", "e", "e400", "0x1p9", "nan", "inf",
                                     " ", "\n", "\xff", "18446744073709551616", "1e-320", "99999999999", "\xc3\xa9" };

static void
damage_text (GString *text)
{
  gsize at = fuzz_draw ((guint32) text->len + 1);

  switch (fuzz_draw (4))
    {
    case 0:
      g_string_truncate (text, at);
      break;
    case 1:
      if (at < text->len)
        g_string_erase (text, (gssize) at, 1);
      break;
    case 2:
      g_string_insert (text, (gssize) at, text->str);
      break;
    default:
      g_string_insert (text, (gssize) at, words[fuzz_draw (G_N_ELEMENTS (words))]);
    }
}

static gboolean
try_name (GString *input, GError **error)
{
  g_string_append (input, fuzz_draw (2) ? "cpu:0" : "cpu");
  if (fuzz_draw (3) > 0)
    damage_text (input);
  return ebb_device_get (input->str, error) != NULL;
}

static gboolean
try_case (GString *input, GError **error)
{
  guint which = fuzz_draw (G_N_ELEMENTS (variables) + 1);
  g_autofree char *name = NULL;
  g_autoptr (GError) local = NULL;

  if (which == G_N_ELEMENTS (variables))
    return try_name (input, error);
  for (guint i = 0; i < G_N_ELEMENTS (variables); i++)
    g_unsetenv (variables[i]);
  g_string_append (input, values[which][fuzz_draw (4)]);
  for (guint n = fuzz_draw (4); n > 0; n--)
    damage_text (input);
  if (which == 3)
    g_string_append (input, ",none:1");
  else
    g_setenv (variables[3], "none:1", TRUE);
  g_setenv (variables[which], input->str, TRUE);
  name = g_strdup_printf ("sim:%u", fuzz_draw (1000));
  if (ebb_device_get (name, &local) != NULL)
    g_error ("a device was opened");
  if (which != 3 && strstr (local->message, variables[3]) != NULL)
    return TRUE;
  g_propagate_error (error, g_steal_pointer (&local));
  return FALSE;
}

int
main (int argc, char **argv)
{
  g_autoptr (GError) error = NULL;

  g_setenv (variables[3], "none:1", TRUE);
  ebb_device_get ("sim:1", &error);
  if (error == NULL || strstr (error->message, variables[3]) == NULL)
    {
      g_printerr ("there is no emulated device: %s\n", error != NULL ? error->message : "it was opened");
      return 77;
    }
  return fuzz_run (argc, argv, "settings", 50000, try_case);
}
