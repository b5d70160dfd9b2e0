/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/args.h"
#include "dist/mpu-private.h"

/* The keys of DeepSpeed's "activation_checkpointing", from its JSON and from the arguments of its function. */

G_BEGIN_DECLS

typedef enum
{
  EBB_CHECKPOINTING_PARTITION,
  EBB_CHECKPOINTING_CPU,
  EBB_CHECKPOINTING_CONTIGUOUS,
  EBB_CHECKPOINTING_NUMBER,
  EBB_CHECKPOINTING_SYNCHRONIZE,
  EBB_CHECKPOINTING_PROFILE,
  EBB_N_CHECKPOINTING_KEYS
} EbbCheckpointingKey;

/* Of a key that is on or off: 1 or 0. Of the number of checkpoints: itself, 0 for none. */
typedef struct
{
  guint values[EBB_N_CHECKPOINTING_KEYS];
} EbbCheckpointingConfig;

/* What @config is, changed by what @json says: the text of an object, or the path of a file. */
gboolean ebb_checkpointing_config_read_json (EbbCheckpointingConfig *config,
                                             const char *json,
                                             GError **error);
/* The same by a dictionary of arguments; those that are none leave @config alone. */
gboolean ebb_checkpointing_config_read_args (EbbCheckpointingConfig *config,
                                             EbbArgs *args,
                                             GError **error);
/* Whether all of it can be had together. */
gboolean ebb_checkpointing_config_check (const EbbCheckpointingConfig *config,
                                         const EbbMpu *mpu,
                                         GError **error);
/* A dictionary with the names of the JSON. */
EbbArgs *ebb_checkpointing_config_to_args (const EbbCheckpointingConfig *config);

G_END_DECLS
