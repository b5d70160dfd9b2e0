/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/gradient-sync.h"

#define INNERMOST G_GUINT64_CONSTANT (1)

/* One bit for each push, the innermost lowest, TRUE where gradients are left as they are. */
static __thread guint64 left_alone __attribute__ ((tls_model ("initial-exec")));
static __thread guint depth __attribute__ ((tls_model ("initial-exec")));

/**
 * ebb_push_gradient_sync:
 * @sync: whether backward passes bring the gradients of ranks together
 *
 * Says whether backward passes of this thread reduce the gradients of modules that are replicated or sharded over ranks
 * (see ebb_replicate() and ebb_fully_shard()), until ebb_pop_gradient_sync(); pushes nest, 64 deep at most. What counts
 * is the mode of the backward pass, not that of the forward.
 *
 * Passes without it add up this rank's gradients alone, and the next pass with it, or ebb_optimizer_step(), reduces the
 * sum: gradients are accumulated over several passes for the price of one reduction. Sharded modules that don't reshard
 * after forward (see #EbbFullyShardOptions:reshard-after-forward) stay gathered between passes without it, unless a
 * shard was changed meanwhile. All ranks do the same.
 */
void
ebb_push_gradient_sync (gboolean sync)
{
  g_return_if_fail (depth < 64);

  left_alone = left_alone << 1 | (sync ? 0 : INNERMOST);
  depth++;
}

/**
 * ebb_pop_gradient_sync:
 *
 * Undoes the last ebb_push_gradient_sync() of this thread.
 */
void
ebb_pop_gradient_sync (void)
{
  g_return_if_fail (depth > 0);

  left_alone >>= 1;
  depth--;
}

/**
 * ebb_is_gradient_sync_enabled:
 *
 * Returns: whether backward passes of this thread reduce gradients over ranks now; %TRUE unless told otherwise
 */
gboolean
ebb_is_gradient_sync_enabled (void)
{
  return (left_alone & INNERMOST) == 0;
}
