/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* How much memory the machine has for this process, and how much of it is left: what the kernel says, and the limits of
 * the control groups that the process is in. */
#include "tensor/cpu/machine-memory-private.h"

#include <string.h>
#include <unistd.h>

/* The number in a file below /sys/fs/cgroup. */
static guint64
read_number (const char *folder,
             const char *name)
{
  g_autofree char *path = g_build_filename (folder, name, NULL);
  g_autofree char *text = NULL;
  guint64 value;

  if (!g_file_get_contents (path, &text, NULL, NULL))
    return G_MAXUINT64;
  g_strchomp (text);
  return g_ascii_string_to_unsigned (text, 10, 1, G_MAXUINT64, &value, NULL) ? value : G_MAXUINT64;
}

/* The limit of one group, or what it may still take. Its page cache, some of which would give way, counts as taken. */
static guint64
read_group (const char *folder,
            const char *most,
            const char *used)
{
  const guint64 limit = read_number (folder, most);
  guint64 taken;

  if (limit == G_MAXUINT64 || used == NULL)
    return limit;
  taken = read_number (folder, used);
  return taken == G_MAXUINT64 ? limit : limit > taken ? limit - taken
                                                      : 0;
}

/* The least of a group and of those that it is in, up to @root. */
static guint64
read_groups (const char *root,
             const char *group,
             const char *most,
             const char *used)
{
  g_autofree char *path = g_strdup (group);
  guint64 least = G_MAXUINT64;

  for (;;)
    {
      g_autofree char *folder = g_build_filename (root, path, NULL);
      char *slash = strrchr (path, '/');

      least = MIN (least, read_group (folder, most, used));
      if (slash == NULL)
        return least;
      *slash = '\0';
    }
}

guint64
ebb_machine_read_groups (const char *groups,
                         const char *root,
                         gboolean is_left)
{
  g_auto (GStrv) lines = g_strsplit (groups, "\n", -1);
  g_autofree char *first_version = g_build_filename (root, "memory", NULL);
  guint64 least = G_MAXUINT64;

  /* Within a container the groups may be named as outside of it: then only the root has files. */
  for (guint i = 0; lines[i] != NULL; i++)
    {
      g_auto (GStrv) parts = g_strsplit (lines[i], ":", 3);

      if (g_strv_length (parts) < 3)
        continue;
      if (*parts[1] == '\0')
        least = MIN (least, read_groups (root, parts[2], "memory.max", is_left ? "memory.current" : NULL));
      else if (strcmp (parts[1], "memory") == 0)
        least = MIN (least, read_groups (first_version, parts[2], "memory.limit_in_bytes",
                                         is_left ? "memory.usage_in_bytes" : NULL));
    }
  return least;
}

static guint64
read_own_groups (gboolean is_left)
{
  g_autofree char *groups = NULL;

  return g_file_get_contents ("/proc/self/cgroup", &groups, NULL, NULL)
             ? ebb_machine_read_groups (groups, "/sys/fs/cgroup", is_left)
             : G_MAXUINT64;
}

/* A line of /proc/meminfo, in bytes. */
static guint64
read_meminfo (const char *name)
{
  g_autofree char *text = NULL;
  const char *line;
  guint64 n_kib;

  if (!g_file_get_contents ("/proc/meminfo", &text, NULL, NULL) || (line = strstr (text, name)) == NULL)
    return G_MAXUINT64;
  n_kib = g_ascii_strtoull (line + strlen (name), NULL, 10);
  return n_kib > 0 ? n_kib << 10 : G_MAXUINT64;
}

guint64
ebb_machine_get_memory (void)
{
  const guint64 physical = (guint64) sysconf (_SC_PHYS_PAGES) * (guint64) sysconf (_SC_PAGESIZE);

  return MIN (physical, read_own_groups (FALSE));
}

guint64
ebb_machine_get_available_memory (void)
{
  return MIN (read_meminfo ("MemAvailable:"), read_own_groups (TRUE));
}
