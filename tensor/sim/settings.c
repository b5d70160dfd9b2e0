/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Reads the settings of an emulated device from the environment. */
#include "tensor/sim/sim-private.h"

#include <math.h>
#include <string.h>

/* Read anew for each device that is opened: sim, sim:1, ... */

#define DEFAULT_MEMORY ((gint64) 1 << 30)
#define MOST_MEMORY ((guint64) 1 << 46)

static gboolean
fail (const char *variable,
      const char *value,
      const char *right,
      GError **error)
{
  g_autofree char *shown = g_strescape (value, NULL);

  return ebb_fail (error, EBB_ERROR_DEVICE, "%s is \"%s\"; it must be %s", variable, shown, right);
}

/* Bytes per second: a positive number and one of K, M, G, T, each 1000 times the one before. */
static gboolean
parse_rate (const char *text,
            double *amount)
{
  static const char suffixes[] = "KMGT";
  char *end;
  const char *suffix;

  if (!g_ascii_isdigit (*text) && *text != '.')
    return FALSE;
  *amount = g_ascii_strtod (text, &end);
  if (*end != '\0')
    {
      suffix = strchr (suffixes, g_ascii_toupper (*end));
      if (suffix == NULL || end[1] != '\0')
        return FALSE;
      *amount *= pow (1000, (double) (suffix - suffixes + 1));
    }
  return isfinite (*amount) && *amount > 0;
}

static gboolean
read_memory (SimDevice *device,
             GError **error)
{
  const char *value = g_getenv ("EBB_SIM_MEMORY");
  guint64 n_bytes;

  device->memory = DEFAULT_MEMORY;
  if (value == NULL || *value == '\0')
    return TRUE;
  if (!sim_host->parse_size (value, &n_bytes, NULL) || n_bytes < SIM_ALIGNMENT || n_bytes > MOST_MEMORY)
    return fail ("EBB_SIM_MEMORY", value, "a size from 64 bytes to 64TiB, as 1000000, 1500MB or 1.5GiB", error);
  device->memory = (gint64) n_bytes / SIM_ALIGNMENT * SIM_ALIGNMENT;
  return TRUE;
}

static gboolean
read_bandwidth (SimDevice *device,
                GError **error)
{
  const char *value = g_getenv ("EBB_SIM_BANDWIDTH");
  g_auto (GStrv) parts = NULL;
  double *rates = device->bytes_per_second;
  guint n;
  gboolean ok;

  if (value == NULL || *value == '\0')
    return TRUE;
  parts = g_strsplit (value, ",", -1);
  n = g_strv_length (parts);
  ok = n <= 2 && parse_rate (parts[0], &rates[EBB_STREAM_TO_HOST]);
  rates[EBB_STREAM_FROM_HOST] = rates[EBB_STREAM_TO_HOST];
  ok = ok && (n < 2 || parse_rate (parts[1], &rates[EBB_STREAM_FROM_HOST]));
  return ok || fail ("EBB_SIM_BANDWIDTH", value, "bytes per second, as 8G, or 8G,4G to and from the host", error);
}

static gboolean
read_latency (SimDevice *device,
              GError **error)
{
  const char *value = g_getenv ("EBB_SIM_LATENCY");
  char *end;
  double amount;

  if (value == NULL || *value == '\0')
    return TRUE;
  amount = g_ascii_strtod (value, &end);
  if (*end != '\0' || !g_ascii_isdigit (*value) || !(amount >= 0 && amount <= 1e7))
    return fail ("EBB_SIM_LATENCY", value, "microseconds for each copy, from 0 to 10000000", error);
  device->latency = (gint64) (amount * 1000);
  return TRUE;
}

static gboolean
read_failures (SimDevice *device,
               GError **error)
{
  static const char *const names[EBB_N_FAILURES] = { "alloc", "alloc-host", "launch", "to-host", "from-host" };
  const char *value = g_getenv ("EBB_SIM_FAIL");
  g_auto (GStrv) parts = g_strsplit (value != NULL ? value : "", ",", -1);

  for (guint i = 0; parts[i] != NULL; i++)
    {
      char *number = strchr (parts[i], ':');
      guint what = 0;

      if (number != NULL)
        *number++ = '\0';
      while (what < EBB_N_FAILURES && strcmp (names[what], parts[i]) != 0)
        what++;
      if (number == NULL || what == EBB_N_FAILURES
          || !g_ascii_string_to_unsigned (number, 10, 1, G_MAXUINT64, &device->fails[what], NULL))
        return fail (
            "EBB_SIM_FAIL", value,
            "an operation that fails and its number from now on, as launch:100 or to-host:3,alloc:7; there are alloc, "
            "alloc-host, launch, to-host and from-host",
            error);
    }
  return TRUE;
}

gboolean
sim_settings_read (SimDevice *device,
                   GError **error)
{
  return read_memory (device, error) && read_bandwidth (device, error) && read_latency (device, error)
         && read_failures (device, error);
}
