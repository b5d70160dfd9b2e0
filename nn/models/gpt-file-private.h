/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/args.h"

/* Tensors in the format of the published GPT-2 file, whose names may begin with a prefix. */

G_BEGIN_DECLS

#define EBB_GPT2_PREFIX "transformer."

/* FALSE also where there is no memory to compare them. */
gboolean ebb_weights_have_same_bits (EbbTensor *first,
                                     EbbTensor *second);

G_END_DECLS
