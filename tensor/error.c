/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/error.h"

/* Ranks that are threads may meet their first error at the same time. */
GQuark
ebb_error_quark (void)
{
  static GQuark quark;
  GQuark value = __atomic_load_n (&quark, __ATOMIC_RELAXED);

  if (G_UNLIKELY (value == 0))
    {
      value = g_quark_from_static_string ("ebb-error-quark");
      __atomic_store_n (&quark, value, __ATOMIC_RELAXED);
    }
  return value;
}
