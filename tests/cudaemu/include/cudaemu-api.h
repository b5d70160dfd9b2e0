/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Around the functions that a stand-in declares: what defines them needs to say no more of their linkage and
 * visibility. */

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
