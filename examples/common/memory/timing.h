/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "common/options/options.h"

G_BEGIN_DECLS

/* From now on a line on the terminal shows how many kernels have been timed, while kernels are timed. --quiet and
 * standard error that is no terminal show nothing. */
void timing_show (const Options *options);

G_END_DECLS
