/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <glib.h>

/* f32 to bf16 and back, on the host. */

G_BEGIN_DECLS

/* To the nearest, ties to even; a NaN stays one, with its sign. Gives the largest relative error: infinite where a
 * number becomes infinite, 1 where one becomes 0. @to may be @from. */
float ebb_round_to_bf16 (const float *from,
                         gsize n,
                         guint16 *to);
/* @to may be @from minus 2 n bytes, that is @from its second half. */
void ebb_widen_bf16 (const guint16 *from,
                     gsize n,
                     float *to);

G_END_DECLS
