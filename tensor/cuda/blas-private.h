/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* cuBLASLt, or the stand-in's declarations of the same names; runtime-private.h lists what is used of it. */

#include "tensor/cuda/runtime-private.h"

#ifdef EBB_CUDA_STANDIN_BLAS
#include EBB_CUDA_STANDIN_BLAS
#else
#include <cublasLt.h>
#endif
