/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/module-instance-private.h"

EbbProfileMark
ebb_module_open_profile (EbbModule *self)
{
  g_autofree char *path = ebb_module_get_path (self);

  return ebb_profiler_open (EBB_EVENT_MODULE, ebb_module_get_type_name (self), EBB_PHASE_FORWARD,
                            g_quark_from_string (path));
}
