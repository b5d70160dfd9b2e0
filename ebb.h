/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#define EBB_INSIDE

#include "tensor/dtype.h"
#include "tensor/error.h"
#include "tensor/macros.h"
#include "tensor/version.h"

#undef EBB_INSIDE
