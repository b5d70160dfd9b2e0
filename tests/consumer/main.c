/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include <ebb/ebb.h>

int
main (void)
{
  g_print ("libebb %s\n", ebb_get_version_string ());
  return ebb_check_version (EBB_MAJOR_VERSION, EBB_MINOR_VERSION, EBB_MICRO_VERSION) ? 0 : 1;
}
