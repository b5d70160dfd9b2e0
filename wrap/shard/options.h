/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "dist/group/process-group.h"

G_BEGIN_DECLS

/**
 * EbbReshard:
 * @EBB_RESHARD_AUTO: after each forward, except the root's, whose backward comes first
 * @EBB_RESHARD_ALWAYS: after each forward
 * @EBB_RESHARD_NEVER: after the backward only
 *
 * When the full parameters of a sharded module are freed after its forward.
 */
typedef enum
{
  EBB_RESHARD_AUTO,
  EBB_RESHARD_ALWAYS,
  EBB_RESHARD_NEVER
} EbbReshard;

#define EBB_TYPE_RESHARD (ebb_reshard_get_type ())

EBB_AVAILABLE_IN_ALL
GType ebb_reshard_get_type (void);

#define EBB_TYPE_FULLY_SHARD_OPTIONS (ebb_fully_shard_options_get_type ())

EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbFullyShardOptions, ebb_fully_shard_options, EBB, FULLY_SHARD_OPTIONS, GObject)

EBB_AVAILABLE_IN_ALL
EbbFullyShardOptions *ebb_fully_shard_options_new (void);

EBB_AVAILABLE_IN_ALL
gboolean ebb_fully_shard_options_get_compute_dtype (EbbFullyShardOptions *self,
                                                    EbbDType *dtype);

EBB_AVAILABLE_IN_ALL
gboolean ebb_fully_shard_options_set_compute_dtype (EbbFullyShardOptions *self,
                                                    EbbDType dtype,
                                                    GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_fully_shard_options_get_reduce_dtype (EbbFullyShardOptions *self,
                                                   EbbDType *dtype);

EBB_AVAILABLE_IN_ALL
gboolean ebb_fully_shard_options_set_reduce_dtype (EbbFullyShardOptions *self,
                                                   EbbDType dtype,
                                                   GError **error);

G_END_DECLS
