/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "dist/group/process-group.h"

G_BEGIN_DECLS

/**
 * EbbReshard:
 * @EBB_RESHARD_AUTO: after each forward, but for the root's, whose backward comes first
 * @EBB_RESHARD_ALWAYS: after each forward
 * @EBB_RESHARD_NEVER: after the backward alone
 *
 * When the whole parameters of a sharded module are let go after its forward.
 */
typedef enum
{
  EBB_RESHARD_AUTO,
  EBB_RESHARD_ALWAYS,
  EBB_RESHARD_NEVER
} EbbReshard;

#define EBB_TYPE_FULLY_SHARD_OPTIONS (ebb_fully_shard_options_get_type ())

EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbFullyShardOptions, ebb_fully_shard_options, EBB, FULLY_SHARD_OPTIONS, GObject)

EBB_AVAILABLE_IN_ALL
EbbFullyShardOptions *ebb_fully_shard_options_new (void);

EBB_AVAILABLE_IN_ALL
EbbReshard ebb_fully_shard_options_get_reshard_after_forward (EbbFullyShardOptions *self);

EBB_AVAILABLE_IN_ALL
void ebb_fully_shard_options_set_reshard_after_forward (EbbFullyShardOptions *self,
                                                        EbbReshard reshard);

EBB_AVAILABLE_IN_ALL
gboolean ebb_fully_shard_options_get_flatten (EbbFullyShardOptions *self);

EBB_AVAILABLE_IN_ALL
void ebb_fully_shard_options_set_flatten (EbbFullyShardOptions *self,
                                          gboolean flatten);

EBB_AVAILABLE_IN_ALL
gboolean ebb_fully_shard_options_get_prefetch (EbbFullyShardOptions *self);

EBB_AVAILABLE_IN_ALL
void ebb_fully_shard_options_set_prefetch (EbbFullyShardOptions *self,
                                           gboolean prefetch);

EBB_AVAILABLE_IN_ALL
gboolean ebb_fully_shard_options_get_offload (EbbFullyShardOptions *self);

EBB_AVAILABLE_IN_ALL
void ebb_fully_shard_options_set_offload (EbbFullyShardOptions *self,
                                          gboolean offload);

EBB_AVAILABLE_IN_ALL
gboolean ebb_fully_shard_options_get_synchronize_weights (EbbFullyShardOptions *self);

EBB_AVAILABLE_IN_ALL
void ebb_fully_shard_options_set_synchronize_weights (EbbFullyShardOptions *self,
                                                      gboolean synchronize);

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

EBB_AVAILABLE_IN_ALL
double ebb_fully_shard_options_get_predivide_factor (EbbFullyShardOptions *self);

EBB_AVAILABLE_IN_ALL
void ebb_fully_shard_options_set_predivide_factor (EbbFullyShardOptions *self,
                                                   double factor);

EBB_AVAILABLE_IN_ALL
EbbProcessGroup *ebb_fully_shard_options_get_replicate_group (EbbFullyShardOptions *self);

EBB_AVAILABLE_IN_ALL
void ebb_fully_shard_options_set_replicate_group (EbbFullyShardOptions *self,
                                                  EbbProcessGroup *group);

G_END_DECLS
