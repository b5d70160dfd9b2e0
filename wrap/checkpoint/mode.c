/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Whether a thread is inside a checkpointed forward, and whether checkpointing is disabled on it. */
#include "wrap/checkpoint/frame-private.h"
#include "wrap/checkpoint/wrapper.h"

guint ebb_checkpoint_slot;

gboolean
ebb_checkpoint_is_plain (void)
{
  return ebb_modes.no_grad || GPOINTER_TO_UINT (ebb_modes.slots[ebb_checkpoint_slot]) >= EBB_CHECKPOINT_DISABLED;
}

static void __attribute__ ((constructor))
register_slot (void)
{
  ebb_checkpoint_slot = ebb_modes_register_slot (NULL, NULL);
}

static void
count_disabled (int delta)
{
  gpointer *slot = &ebb_modes.slots[ebb_checkpoint_slot];

  *slot = GSIZE_TO_POINTER (GPOINTER_TO_SIZE (*slot) + (gsize) (delta * (int) EBB_CHECKPOINT_DISABLED));
}

/**
 * ebb_push_checkpointing_disabled:
 *
 * Makes wrapped modules that this thread calls run their plain forward, until ebb_pop_checkpointing_disabled().
 */
void
ebb_push_checkpointing_disabled (void)
{
  count_disabled (1);
}

/**
 * ebb_pop_checkpointing_disabled:
 *
 * Undoes the last ebb_push_checkpointing_disabled() of this thread.
 */
void
ebb_pop_checkpointing_disabled (void)
{
  g_return_if_fail (GPOINTER_TO_UINT (ebb_modes.slots[ebb_checkpoint_slot]) >= EBB_CHECKPOINT_DISABLED);

  count_disabled (-1);
}

/**
 * ebb_is_checkpointing:
 *
 * Returns: %TRUE inside the forward of a wrapped module, whose backward will run it again
 */
gboolean
ebb_is_checkpointing (void)
{
  return (GPOINTER_TO_UINT (ebb_modes.slots[ebb_checkpoint_slot]) & EBB_CHECKPOINT_INSIDE) != 0;
}

/**
 * ebb_is_recomputing:
 *
 * Returns: %TRUE inside a forward that repeats an earlier one, where side effects must not happen again
 */
gboolean
ebb_is_recomputing (void)
{
  return ebb_modes.recomputing > 0;
}
