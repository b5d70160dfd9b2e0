/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/args.h"

/* A safetensors file that holds a tree of values with checksums. */

G_BEGIN_DECLS

gboolean ebb_state_file_write (const char *path,
                               EbbArgs *tree,
                               GError **error);
EbbArgs *ebb_state_file_read (const char *path,
                              GError **error);

G_END_DECLS
