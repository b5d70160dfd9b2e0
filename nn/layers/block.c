/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The interface of blocks, the choices of which transformer blocks are made, and the inputs of a block as arguments. */
#include "nn/layers/block.h"

#include "nn/layers/block-private.h"

/**
 * EbbBlock:
 *
 * One of the repeated modules that make up a model, such as #EbbTransformerBlock. Memory plans choose for each block.
 * ebb_checkpoint_wrap_each(), ebb_fully_shard_wrap_each() and their like wrap each if their type is #EbbBlock.
 * Configurations of other systems and the programs find blocks in the same way. A class of your own takes part as soon
 * as it implements the interface; none of its functions is required.
 */
G_DEFINE_INTERFACE (EbbBlock, ebb_block, EBB_TYPE_MODULE)

static void
ebb_block_default_init (EbbBlockInterface *interface)
{
}

/**
 * ebb_block_list_parallel_rules: (virtual list_parallel_rules)
 * @self: a block
 *
 * Lists how tensor ranks divide the block: rules as ebb_parallel_plan_to_string() writes them, `mlp.c_fc: column`, with
 * the path from the block on. ebb_parallel_plan_new_for() makes the plan of a model of the rules of its blocks.
 *
 * Returns: (transfer full) (array zero-terminated=1): the rules; none if each rank has all of the block
 */
char **
ebb_block_list_parallel_rules (EbbBlock *self)
{
  EbbBlockInterface *interface;
  char **rules = NULL;

  g_return_val_if_fail (EBB_IS_BLOCK (self), NULL);

  interface = EBB_BLOCK_GET_IFACE (self);
  if (interface->list_parallel_rules != NULL)
    rules = interface->list_parallel_rules (self);
  return rules != NULL ? rules : g_new0 (char *, 1);
}

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
