/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/initialization.h"

/* Lets a thread make models without drawing initial weights that it will load over. */

/* Of the thread, like grad mode. */
static __thread int depth __attribute__ ((tls_model ("initial-exec")));

/**
 * ebb_push_initialization_skipped:
 *
 * Until ebb_pop_initialization_skipped(), layers and models that this thread makes do not draw their initial weights:
 * random values are left undrawn, since the caller loads weights right after. What starts as a constant,
 * norms and biases mostly, is set as ever. Generators advance as if the weights had been drawn, so that the numbers
 * after them are the same. Calls nest.
 */
void
ebb_push_initialization_skipped (void)
{
  depth++;
}

/**
 * ebb_pop_initialization_skipped:
 *
 * Undoes the last ebb_push_initialization_skipped() of this thread.
 */
void
ebb_pop_initialization_skipped (void)
{
  g_return_if_fail (depth > 0);

  depth--;
}

/**
 * ebb_is_initialization_skipped:
 *
 * Returns: whether weights are left undrawn, see ebb_push_initialization_skipped()
 */
gboolean
ebb_is_initialization_skipped (void)
{
  return depth > 0;
}
