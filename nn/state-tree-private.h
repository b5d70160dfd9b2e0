/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/args.h"

/* Any nesting of values as a flat dictionary of tensors and one text, as a safetensors file can hold them. In the text,
 * numbers, strings and null stand for themselves; everything else is an object with one member that says what it is:
 * {"dict": {...}}, {"list": [...]}, {"tuple": [...]}, {"bare": [...]}, {"int": "..."} (64 bits), {"double": "inf"},
 * {"tensor": name, "sum": checksum}. */

G_BEGIN_DECLS

/* Appends the tensors of @tree to the dictionary @tensors and returns the text. */
char *ebb_state_tree_flatten (EbbArgs *tree,
                              EbbArgs *tensors,
                              GError **error);
/* The tree again, with the tensors out of @tensors; each is compared with its checksum. @what names it in errors. */
EbbArgs *ebb_state_tree_restore (const char *text,
                                 EbbArgs *tensors,
                                 const char *what,
                                 GError **error);

guint64 ebb_state_checksum (const void *bytes,
                            gsize size);

G_END_DECLS
