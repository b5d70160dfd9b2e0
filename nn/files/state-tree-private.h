/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/args.h"

/* Nested values as a flat dictionary of tensors and one text, as a safetensors file can hold them. The text is
 * {"sum": checksum, "tree": value}, in this order; the checksum is that of the value's text. In a value, strings, true,
 * false and null stand for themselves; everything else is an object with one member, whose name is the type:
 * {"dict": {...}}, {"list": [...]}, {"tuple": [...]}, {"bare": [...]}, {"int": "..."} (64 bits), {"double": "inf"};
 * a tensor is {"tensor": name, "sum": checksum}. The root is a container. */

G_BEGIN_DECLS

/* How deep containers may be nested, the root counted, when a state is saved and when it is loaded. */
#define EBB_STATE_MAX_DEPTH 64
/* Counts of steps, of windows and of files are read up to here: exact as doubles, and sums of two don't overflow. */
#define EBB_STATE_MAX_COUNT ((gint64) 1 << 53)

/* Appends the tensors of @tree to the dictionary @tensors and returns the text. */
char *ebb_state_tree_flatten (EbbArgs *tree,
                              EbbArgs *tensors,
                              GError **error);
/* The tree again, with the tensors out of @tensors; each is compared with its checksum. @what names it in errors. */
EbbArgs *ebb_state_tree_restore (const char *text,
                                 EbbArgs *tensors,
                                 const char *what,
                                 GError **error);

/* The text with its checksum of a value's text. */
char *ebb_state_tree_seal (const char *tree);

/* The checksum of a tensor's data in the host's memory, its dtype and its shape. */
guint64 ebb_state_checksum_tensor (const void *bytes,
                                   gsize size,
                                   EbbDType dtype,
                                   const gint64 *shape,
                                   guint n_dims);

G_END_DECLS
