/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: cpu-only */
#include "support/device.h"

static void
headers_and_library_agree (void)
{
  g_assert_cmpstr (ebb_get_version_string (), ==, EBB_VERSION_STRING);
  g_assert_true (ebb_check_version (EBB_MAJOR_VERSION, EBB_MINOR_VERSION, EBB_MICRO_VERSION));
}

static void
newer_is_refused (void)
{
  g_assert_false (ebb_check_version (EBB_MAJOR_VERSION, EBB_MINOR_VERSION, EBB_MICRO_VERSION + 1));
  g_assert_false (ebb_check_version (EBB_MAJOR_VERSION, EBB_MINOR_VERSION + 1, 0));
  g_assert_false (ebb_check_version (EBB_MAJOR_VERSION + 1, 0, 0));
}

static void
older_is_accepted (void)
{
  g_assert_true (ebb_check_version (0, 0, 0));
  g_assert_true (ebb_check_version (EBB_MAJOR_VERSION, 0, EBB_MICRO_VERSION + 100) == (EBB_MINOR_VERSION > 0));
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/version/headers-and-library-agree", headers_and_library_agree);
  g_test_add_func ("/version/newer-is-refused", newer_is_refused);
  g_test_add_func ("/version/older-is-accepted", older_is_accepted);
  return g_test_run ();
}
