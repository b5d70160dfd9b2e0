/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "offload/activation-store.h"
#include "tensor/error-private.h"
#include "tensor/tensor-private.h"

/* Large buffers that are handed out in parts of one size, a set of buffers for each kind of tensor. A part belongs to
 * its holder, and its buffer stays as long as one of its parts is held, even if the pool is freed. Safe to use from
 * several threads. */

G_BEGIN_DECLS

typedef struct _EbbBufferPool EbbBufferPool;
typedef struct _EbbBufferPart EbbBufferPart;

typedef struct
{
  guint n_buffers;
  guint n_used; /* parts that are held */
  guint n_peak; /* at one time */
} EbbBufferCounts;

EbbBufferPool *ebb_buffer_pool_new (void);
void ebb_buffer_pool_unref (EbbBufferPool *pool);
/* Releases all buffers: those with parts that are held are freed with the last of these, and nothing more is put there.
 */
void ebb_buffer_pool_reset (EbbBufferPool *pool);
/* In the run: frees its buffers. */
void ebb_buffer_pool_end_dry_run (EbbBufferPool *pool);
void ebb_buffer_pool_get_counts (EbbBufferPool *pool,
                                 EbbBufferCounts *counts);

/* Holds a copy of @block, which lies on its device, or in @next if that is not NULL: @inner is its handle there. A
 * buffer has @n_parts parts; where all are held the pool adds one if @grow, and returns EBB_ERROR_NO_MEMORY if not. */
EbbBufferPart *ebb_buffer_pool_put (EbbBufferPool *pool,
                                    EbbActivationStore *next,
                                    EbbTensor *block,
                                    guint n_parts,
                                    gboolean grow,
                                    EbbHandle **inner,
                                    GError **error);
/* Of a part on its own device: the part itself as a tensor, which holds it too. */
EbbTensor *ebb_buffer_part_show (EbbBufferPart *part,
                                 GError **error);
/* The holder needs it no longer; tensors that show it still hold it. */
void ebb_buffer_part_drop (EbbBufferPart *part);

G_END_DECLS
