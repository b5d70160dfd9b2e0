/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/error.h"

/* Lossless compression of arrays of numbers. The bytes of an element are told apart by what they say: those of all
 * elements at one place, the exponents say, lie together (a plane), and a plane that gains nothing stays as it is. Of a
 * float that is all but the highest, so little else than exponents is compressed at all. */

G_BEGIN_DECLS

#define EBB_CODEC_MAX_LEVEL 19

/* For one thread at a time. */
typedef struct _EbbCodec EbbCodec;

EbbCodec *ebb_codec_new (GError **error);
void ebb_codec_free (EbbCodec *codec);

/* @level: of zstd, 1 to 19; 1 codes bytes by how frequent they are, with almost no search for what repeats. Writes at
 * most @size bytes to @out and returns how many; @size if compression gains less than a sixteenth, and then @out holds
 * nothing of use. 0 with @error set on failure. @element: bytes of an element (1, 2, 4 or 8), of which @size is a
 * multiple. */
gsize ebb_codec_compress (EbbCodec *codec,
                          guint level,
                          const void *data,
                          gsize size,
                          gsize element,
                          void *out,
                          GError **error);
/* The other way, from what ebb_codec_compress () wrote. */
gboolean ebb_codec_decompress (EbbCodec *codec,
                               const void *stored,
                               gsize stored_size,
                               void *data,
                               gsize size,
                               gsize element,
                               GError **error);

G_END_DECLS
