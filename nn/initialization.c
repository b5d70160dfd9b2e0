/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/initialization-private.h"

#include "tensor/thread-private.h"

/* Lets a thread make models without drawing initial weights that it will load over. */

/* Of the thread, like grad mode. */
static __thread int depth __attribute__ ((tls_model ("initial-exec")));
static __thread gboolean is_unset __attribute__ ((tls_model ("initial-exec")));
static __thread gboolean has_no_memory __attribute__ ((tls_model ("initial-exec")));
static __thread EbbDType unset_dtype __attribute__ ((tls_model ("initial-exec")));

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

void
ebb_push_parameters_unset (EbbDType dtype, gboolean is_described)
{
  g_return_if_fail (!is_unset);

  is_unset = TRUE;
  unset_dtype = dtype;
  has_no_memory = is_described;
  /* As after the early stop of a recompute: storages are placeholders, and filling them does nothing. */
  ebb_modes.stopped += is_described;
}

void
ebb_pop_parameters_unset (void)
{
  ebb_modes.stopped -= has_no_memory;
  is_unset = has_no_memory = FALSE;
}

gboolean
ebb_get_parameters_unset (EbbDType *dtype)
{
  *dtype = is_unset ? unset_dtype : EBB_DTYPE_F32;
  return is_unset;
}
