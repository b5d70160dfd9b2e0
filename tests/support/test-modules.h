/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <ebb/ebb.h>

/* Modules that a user might write. */

G_BEGIN_DECLS

/* x * gain, by forward1; a parameter "gain", a buffer "calls" that counts. */
G_DECLARE_DERIVABLE_TYPE (TestScale, test_scale, TEST, SCALE, EbbModule)
struct _TestScaleClass
{
  EbbModuleClass parent_class;
};
EbbModule *test_scale_new (float gain);

/* (x, *, factor=1) to (x * factor, {"n": 2}), by forward alone; a lone tensor gives a lone tensor, negated. */
G_DECLARE_FINAL_TYPE (TestFlexible, test_flexible, TEST, FLEXIBLE, EbbModule)
EbbModule *test_flexible_new (void);

/* A TestScale whose forward is overridden: 100 + what its parent gives. */
G_DECLARE_FINAL_TYPE (TestShifted, test_shifted, TEST, SHIFTED, TestScale)
EbbModule *test_shifted_new (float gain);

/* Neither forward nor forward1; and one that fails without a word. */
G_DECLARE_FINAL_TYPE (TestEmpty, test_empty, TEST, EMPTY, EbbModule)
EbbModule *test_empty_new (void);
G_DECLARE_FINAL_TYPE (TestSilent, test_silent, TEST, SILENT, EbbModule)
EbbModule *test_silent_new (void);

/* Both, each chaining up to what is not there. */
G_DECLARE_FINAL_TYPE (TestLoop, test_loop, TEST, LOOP, EbbModule)
EbbModule *test_loop_new (void);

/* A parent that calls its child "inner". */
G_DECLARE_FINAL_TYPE (TestOuter, test_outer, TEST, OUTER, EbbModule)
EbbModule *test_outer_new (EbbModule *inner);

/* Fails, "stumbled", when it has computed something. */
EbbModule *test_stumbling_new (void);

G_END_DECLS
