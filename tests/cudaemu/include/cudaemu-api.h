/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Around the functions that a stand-in declares: gives them C's linkage and makes them visible, so that their
 * definitions need not say so. */

#ifdef __cplusplus
#define CUDAEMU_BEGIN_API                             \
  _Pragma ("GCC visibility push(default)") extern "C" \
  {
#define CUDAEMU_END_API \
  }                     \
  _Pragma ("GCC visibility pop")
#else
#define CUDAEMU_BEGIN_API
#define CUDAEMU_END_API
#endif
