/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/gradient-sync.h"

/* Switches the reduction of gradients over ranks off for the backward passes of a thread. */

#define INNERMOST G_GUINT64_CONSTANT (1)

/* One bit for each push, the innermost lowest; set where gradients are not reduced. */
static __thread guint64 disabled __attribute__ ((tls_model ("initial-exec")));
static __thread guint depth __attribute__ ((tls_model ("initial-exec")));

/**
 * ebb_push_gradient_sync:
 * @sync: whether backward passes reduce gradients over ranks
 *
 * Sets whether backward passes of this thread reduce the gradients of modules that are replicated or sharded over ranks
 * (see ebb_replicate() and ebb_fully_shard()), until ebb_pop_gradient_sync(); pushes nest, 64 deep at most. The mode of
 * the backward pass counts, not that of the forward.
 *
 * Passes without sync accumulate this rank's gradients alone. The next pass with sync, or ebb_optimizer_step(), reduces
 * the sum, so several passes cost one reduction. Sharded modules that don't reshard after forward (see
 * #EbbFullyShardOptions:reshard-after-forward) stay unsharded between passes without sync, unless a shard has changed
 * meanwhile. All ranks must set the same.
 */
void
ebb_push_gradient_sync (gboolean sync)
{
  g_return_if_fail (depth < 64);

  disabled = disabled << 1 | (sync ? 0 : INNERMOST);
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

  disabled >>= 1;
  depth--;
}

/**
 * ebb_is_gradient_sync_enabled:
 *
 * Returns: whether backward passes of this thread reduce gradients over ranks now; %TRUE by default
 */
gboolean
ebb_is_gradient_sync_enabled (void)
{
  return (disabled & INNERMOST) == 0;
}
