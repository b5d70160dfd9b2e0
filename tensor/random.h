/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "tensor/tensor.h"

G_BEGIN_DECLS

#define EBB_TYPE_GENERATOR (ebb_generator_get_type ())

/**
 * EbbGenerator:
 *
 * A counter-based source of random numbers (Philox4x32-10). Its whole state is a seed and an offset: a draw is named
 * by both, so it can be drawn again at any time.
 */
EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbGenerator, ebb_generator, EBB, GENERATOR, GObject)

EBB_AVAILABLE_IN_ALL
EbbGenerator *ebb_generator_new (guint64 seed);

EBB_AVAILABLE_IN_ALL
EbbGenerator *ebb_generator_get_default (void);

EBB_AVAILABLE_IN_ALL
guint64 ebb_generator_get_seed (EbbGenerator *self);

EBB_AVAILABLE_IN_ALL
guint64 ebb_generator_get_offset (EbbGenerator *self);

EBB_AVAILABLE_IN_ALL
void ebb_generator_set_state (EbbGenerator *self,
                              guint64 seed,
                              guint64 offset);

EBB_AVAILABLE_IN_ALL
void ebb_manual_seed (guint64 seed);

G_END_DECLS
