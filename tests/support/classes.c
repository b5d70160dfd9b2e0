/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/classes.h"

#include <ebb/ebb.h>

void
test_classes_make (void)
{
#ifdef __SANITIZE_THREAD__
  const GType types[] = {
#include "test-types.inc"
  };

  for (guint i = 0; i < G_N_ELEMENTS (types); i++)
    if (G_TYPE_IS_CLASSED (types[i]))
      g_type_class_ref (types[i]); /* for good */
#endif
}
