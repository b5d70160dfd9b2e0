/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/module.h"

G_BEGIN_DECLS

#define EBB_TYPE_BLOCK (ebb_block_get_type ())

EBB_AVAILABLE_IN_ALL
G_DECLARE_INTERFACE (EbbBlock, ebb_block, EBB, BLOCK, EbbModule)

/**
 * EbbBlockInterface:
 * @list_parallel_rules: how tensor ranks divide the block, as ebb_block_list_parallel_rules() returns it; %NULL: they
 *   don't
 *
 * The functions of a block. All of them may be %NULL.
 */
struct _EbbBlockInterface
{
  GTypeInterface parent_interface;

  char **(*list_parallel_rules) (EbbBlock *self);
};

EBB_AVAILABLE_IN_ALL
char **ebb_block_list_parallel_rules (EbbBlock *self);

G_END_DECLS
