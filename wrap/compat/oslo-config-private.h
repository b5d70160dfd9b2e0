/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "wrap/compat/json-config-private.h"

G_BEGIN_DECLS

/* OSLO's configuration, as it takes effect: a section that is not enabled has none. */
typedef struct
{
  gboolean is_parallel;    /* model_parallelism is enabled */
  guint n_tensor_ranks;    /* 1 unless it is */
  gboolean checkpoints;    /* activation_checkpointing is enabled */
  gboolean host;           /* cpu_checkpointing */
  gboolean is_partitioned; /* partitioned_checkpointing */
  gboolean is_contiguous;  /* contiguous_checkpointing */
} EbbInitializeConfig;

/* @json: the text of an object, or the path of a file. */
gboolean ebb_initialize_config_read (EbbInitializeConfig *self,
                                     const char *json,
                                     GError **error);
/* A line for each key, for ranks to compare. */
char *ebb_initialize_config_to_string (const EbbInitializeConfig *self);

G_END_DECLS
