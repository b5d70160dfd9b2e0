/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Names the files that need one, and removes those that killed processes left behind. */
#include "offload/disk/name-private.h"

#include "tensor/util/checksum-private.h"

#include <errno.h>
#include <glib/gstdio.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PREFIX "ebb-activations-"

/* When a process started, in ticks since the machine did; 0 if it can't be known. Field 22 of its stat, counted from
 * behind the name, which may hold anything. */
static guint64
get_start (gint64 pid)
{
  g_autofree char *path = g_strdup_printf ("/proc/%" G_GINT64_FORMAT "/stat", pid);
  g_autofree char *text = NULL;
  const char *at;

  if (!g_file_get_contents (path, &text, NULL, NULL))
    return 0;
  at = strrchr (text, ')');
  for (guint field = 2; at != NULL && field < 22; field++)
    at = strchr (at + 1, ' ');
  return at ? g_ascii_strtoull (at + 1, NULL, 10) : 0;
}

/* Where numbers of processes mean the same: a run of a machine, and a name space in it. 0 if it can't be known. */
static guint64
get_world (void)
{
  g_autofree char *boot = NULL;
  g_autofree char *space = g_file_read_link ("/proc/self/ns/pid", NULL);
  g_autofree char *both = NULL;

  if (space == NULL || !g_file_get_contents ("/proc/sys/kernel/random/boot_id", &boot, NULL, NULL))
    return 0;
  both = g_strconcat (boot, space, NULL);
  return ebb_checksum_of (both, strlen (both));
}

char *
ebb_disk_name_new (const char *folder)
{
  g_autofree char *name = g_strdup_printf (PREFIX "%016" G_GINT64_MODIFIER "x-%" G_GINT64_FORMAT "-%" G_GUINT64_FORMAT
                                                  "-XXXXXX",
                                           get_world (), (gint64) getpid (), get_start (getpid ()));

  return g_build_filename (folder, name, NULL);
}

static gboolean
is_left_over (const char *name,
              guint64 world)
{
  guint64 its_world, start, start_now;
  gint64 pid;
  int length = 0;

  if (sscanf (name, PREFIX "%16" G_GINT64_MODIFIER "x-%" G_GINT64_FORMAT "-%" G_GUINT64_FORMAT "-%n", &its_world, &pid,
              &start, &length)
          != 3
      || strlen (name) != (gsize) length + 6)
    return FALSE;
  if (its_world != world || pid <= 0 || start == 0)
    return FALSE;
  if (kill ((pid_t) pid, 0) != 0 && errno == ESRCH)
    return TRUE;
  start_now = get_start (pid); /* the number may have been given again */
  return start_now != 0 && start_now != start;
}

void
ebb_disk_name_remove_leftovers (const char *folder)
{
  g_autoptr (GDir) dir = g_dir_open (folder, 0, NULL);
  const guint64 world = get_world ();
  const char *name;

  if (dir == NULL || world == 0)
    return;
  while ((name = g_dir_read_name (dir)) != NULL)
    if (is_left_over (name, world))
      {
        g_autofree char *path = g_build_filename (folder, name, NULL);

        g_unlink (path);
      }
}
