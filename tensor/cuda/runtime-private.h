/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The one place that includes CUDA: its runtime, and the few functions of the driver that the runtime lacks. The
 * emulated GPU finds headers of the same names in tests/cudaemu/include, which declare all functions that this backend
 * calls. */

#include <cuda.h>
#include <cuda_runtime_api.h>
