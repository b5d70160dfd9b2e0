/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/error.h"

/* clang-format off */
G_DEFINE_QUARK (ebb-error-quark, ebb_error)
/* clang-format on */
