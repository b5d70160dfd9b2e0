/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only */
/* The limits of control groups, as the kernel shows them in folders. */
#include "support/device.h"
#include "tensor/cpu/machine-memory-private.h"

#include <glib/gstdio.h>

static void
put (const char *root, const char *folder, const char *name, const char *text)
{
  g_autofree char *path = g_build_filename (root, folder, NULL);
  g_autofree char *file = g_build_filename (path, name, NULL);

  g_assert_cmpint (g_mkdir_with_parents (path, 0700), ==, 0);
  g_assert_true (g_file_set_contents (file, text, -1, NULL));
}

static void
take_away (const char *path)
{
  GDir *dir = g_dir_open (path, 0, NULL);

  for (const char *name = dir != NULL ? g_dir_read_name (dir) : NULL; name != NULL; name = g_dir_read_name (dir))
    {
      g_autofree char *inner = g_build_filename (path, name, NULL);

      take_away (inner);
    }
  g_clear_pointer (&dir, g_dir_close);
  g_remove (path);
}

static void
limits_of_groups (void)
{
  const char *second = "0::/user.slice/job.scope\n", *container = "0::/\n";
  const char *first = "12:cpu,cpuacct:/x\n7:memory:/slurm/job_5\n";
  g_autofree char *root = g_dir_make_tmp ("ebb-groups-XXXXXX", NULL);

  g_assert_cmpuint (ebb_machine_read_groups (second, root, FALSE), ==, G_MAXUINT64);
  put (root, "user.slice/job.scope", "memory.max", "max\n");
  g_assert_cmpuint (ebb_machine_read_groups (second, root, FALSE), ==, G_MAXUINT64);
  put (root, "user.slice", "memory.max", "3000\n");
  put (root, "user.slice", "memory.current", "1000\n");
  g_assert_cmpuint (ebb_machine_read_groups (second, root, FALSE), ==, 3000);
  g_assert_cmpuint (ebb_machine_read_groups (second, root, TRUE), ==, 2000);
  put (root, "user.slice/job.scope", "memory.max", "2500\n");
  put (root, "user.slice/job.scope", "memory.current", "100\n");
  g_assert_cmpuint (ebb_machine_read_groups (second, root, FALSE), ==, 2500);
  g_assert_cmpuint (ebb_machine_read_groups (second, root, TRUE), ==, 2000);
  put (root, "user.slice/job.scope", "memory.current", "9999\n");
  g_assert_cmpuint (ebb_machine_read_groups (second, root, TRUE), ==, 0);

  g_assert_cmpuint (ebb_machine_read_groups (container, root, FALSE), ==, G_MAXUINT64);
  put (root, "", "memory.max", "700\n");
  g_assert_cmpuint (ebb_machine_read_groups (container, root, FALSE), ==, 700);

  g_assert_cmpuint (ebb_machine_read_groups (first, root, FALSE), ==, G_MAXUINT64);
  put (root, "memory/slurm", "memory.limit_in_bytes", "500\n");
  put (root, "memory/slurm", "memory.usage_in_bytes", "400\n");
  g_assert_cmpuint (ebb_machine_read_groups (first, root, FALSE), ==, 500);
  g_assert_cmpuint (ebb_machine_read_groups (first, root, TRUE), ==, 100);
  g_assert_cmpuint (ebb_machine_read_groups ("", root, TRUE), ==, G_MAXUINT64);
  take_away (root);
}

static void
this_machine (void)
{
  g_assert_cmpuint (ebb_machine_get_memory (), >, 64 << 20);
  g_assert_cmpuint (ebb_machine_get_available_memory (), <=, ebb_machine_get_memory ());
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/machine-memory/groups", limits_of_groups);
  g_test_add_func ("/machine-memory/this-machine", this_machine);
  return g_test_run ();
}
