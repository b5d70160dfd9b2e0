/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/files/safetensors-reader-private.h"
#include "tensor/util/atomic-file-private.h"

/* The parts of which a safetensors file is written: its header, then its tensors in the header's order. */

G_BEGIN_DECLS

/* @entries: with their ranges, one after the other. @metadata: a dictionary of strings, or NULL. */
GString *ebb_safetensors_make_header (const char *path,
                                      const EbbTensorEntry *entries,
                                      gsize n_entries,
                                      EbbArgs *metadata,
                                      GError **error);
gboolean ebb_safetensors_write_header (EbbAtomicFile *file,
                                       GString *header,
                                       GError **error);
/* The tensor's data, from any device. */
gboolean ebb_safetensors_write_tensor (EbbAtomicFile *file,
                                       EbbTensor *tensor,
                                       GError **error);

G_END_DECLS
