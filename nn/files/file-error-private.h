/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/error-private.h"

/* Errors about what is in a file or a folder. */

/* Sets an EBB_ERROR_FORMAT "PATH: ...", with the path as messages show it. Always FALSE. */
#define ebb_file_fail(path, error, format, ...) \
  ebb_fail (error, EBB_ERROR_FORMAT, "%s: " format, ebb_show_text (path), ##__VA_ARGS__)
