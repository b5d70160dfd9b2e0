/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/version.h"

/* The version of the library. */

/**
 * ebb_get_version_string:
 *
 * The version of the library that runs, which may be newer than the headers that a program was compiled with.
 *
 * Returns: (transfer none): the version, such as "0.1.0"
 */
const char *
ebb_get_version_string (void)
{
  return EBB_VERSION_STRING;
}

/**
 * ebb_check_version:
 * @required_major: the major version that the caller needs
 * @required_minor: the minor version that the caller needs
 * @required_micro: the micro version that the caller needs
 *
 * Asks whether the library that runs is of the given version or a newer one.
 *
 * Returns: %TRUE if it is
 */
gboolean
ebb_check_version (unsigned int required_major, unsigned int required_minor, unsigned int required_micro)
{
  const unsigned int version[] = { EBB_MAJOR_VERSION, EBB_MINOR_VERSION, EBB_MICRO_VERSION };
  const unsigned int required[] = { required_major, required_minor, required_micro };

  for (unsigned int i = 0; i < G_N_ELEMENTS (version); i++)
    if (version[i] != required[i])
      return version[i] > required[i];
  return TRUE;
}
