/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/args.h"
#include "dist/mpu-private.h"

/* The keys of DeepSpeed's "activation_checkpointing", from its JSON and from the arguments of its function. */

G_BEGIN_DECLS

typedef struct
{
  guint partition, cpu, contiguous; /* 1 or 0 */
  guint n_checkpoints;              /* 0: null */
  guint synchronize, profile;       /* 1 or 0 */
} EbbCheckpointingConfig;

/* Sets in @config the keys that @json has: the text of an object, or the path of a file. */
gboolean ebb_checkpointing_config_read_json (EbbCheckpointingConfig *config,
                                             const char *json,
                                             GError **error);
/* The same with a dictionary of arguments; those that are null are ignored. */
gboolean ebb_checkpointing_config_read_args (EbbCheckpointingConfig *config,
                                             EbbArgs *args,
                                             GError **error);
/* FALSE with an error if its values contradict each other or the ranks. */
gboolean ebb_checkpointing_config_check (const EbbCheckpointingConfig *config,
                                         const EbbMpu *mpu,
                                         GError **error);
/* A dictionary with the names of the JSON. */
EbbArgs *ebb_checkpointing_config_to_args (const EbbCheckpointingConfig *config);

G_END_DECLS
