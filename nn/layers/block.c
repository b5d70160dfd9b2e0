/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/layers/block-private.h"

/* The choices of a transformer block, and its inputs as arguments. */

EbbBlockConfig *
ebb_block_config_new (void)
{
  EbbBlockConfig *self = g_atomic_rc_box_new0 (EbbBlockConfig);

  self->heads = 1;
  self->attention_dropout = -1;
  self->activation = EBB_ACTIVATION_GELU_TANH;
  self->norm_eps = 1e-5;
  self->bias = TRUE;
  return self;
}

EbbBlockConfig *
ebb_block_config_ref (EbbBlockConfig *self)
{
  return g_atomic_rc_box_acquire (self);
}

void
ebb_block_config_unref (EbbBlockConfig *self)
{
  g_atomic_rc_box_release (self);
}

EbbArgs *
ebb_block_inputs_to_args (const EbbBlockInputs *self, EbbTensor *x)
{
  EbbArgs *args = ebb_args_new (EBB_ARGS_TUPLE);

  ebb_args_add_tensor (args, NULL, x);
  if (self->mask != NULL)
    ebb_args_add_tensor (args, "mask", self->mask);
  if (self->starts != NULL)
    ebb_args_add_tensor (args, "starts", self->starts);
  if (self->cache != NULL)
    ebb_args_add_object (args, "cache", G_OBJECT (self->cache));
  return args;
}
