/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/initialization-private.h"

#include "tensor/thread-private.h"

/* How a thread makes the parameters of layers: drawn or left undrawn, since it will load others over them, and of which
 * dtype. */

/* Of the thread, like grad mode. */
static __thread int depth __attribute__ ((tls_model ("initial-exec")));
static __thread gboolean is_unset __attribute__ ((tls_model ("initial-exec")));
static __thread EbbUnset unset_memory __attribute__ ((tls_model ("initial-exec")));
static __thread EbbDType unset_dtype __attribute__ ((tls_model ("initial-exec")));

static GPrivate dtypes = G_PRIVATE_INIT ((GDestroyNotify) g_array_unref); /* of EbbDType: those that were pushed */

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

/**
 * ebb_push_parameter_dtype:
 * @dtype: f32 or bf16
 *
 * Until ebb_pop_parameter_dtype(), layers and models that this thread makes have their parameters in @dtype, in place
 * of f32: no f32 copy of them ever exists. They are drawn from the same numbers; buffers stay f32. Calls nest.
 */
void
ebb_push_parameter_dtype (EbbDType dtype)
{
  g_return_if_fail (dtype == EBB_DTYPE_F32 || dtype == EBB_DTYPE_BF16);

  if (g_private_get (&dtypes) == NULL)
    g_private_set (&dtypes, g_array_new (FALSE, FALSE, sizeof (EbbDType)));
  g_array_append_val ((GArray *) g_private_get (&dtypes), dtype);
}

/**
 * ebb_pop_parameter_dtype:
 *
 * Undoes the last ebb_push_parameter_dtype() of this thread.
 */
void
ebb_pop_parameter_dtype (void)
{
  GArray *all = g_private_get (&dtypes);

  g_return_if_fail (all != NULL && all->len > 0);

  g_array_set_size (all, all->len - 1);
}

static EbbDType
get_parameter_dtype (void)
{
  GArray *all = g_private_get (&dtypes);

  return all != NULL && all->len > 0 ? g_array_index (all, EbbDType, all->len - 1) : EBB_DTYPE_F32;
}

void
ebb_push_parameters_unset (EbbDType dtype, EbbUnset memory)
{
  g_return_if_fail (!is_unset);

  is_unset = TRUE;
  unset_dtype = dtype;
  unset_memory = memory;
  /* As after the early stop of a recompute: storages are placeholders, and filling them does nothing. */
  ebb_modes.stopped += memory == EBB_UNSET_DESCRIBED;
}

void
ebb_pop_parameters_unset (void)
{
  ebb_modes.stopped -= unset_memory == EBB_UNSET_DESCRIBED;
  unset_memory = EBB_UNSET_WITH_MEMORY;
  is_unset = FALSE;
}

gboolean
ebb_get_parameters_unset (EbbDType *dtype)
{
  *dtype = is_unset ? unset_dtype : get_parameter_dtype ();
  return is_unset;
}

gboolean
ebb_are_parameters_absent (void)
{
  return unset_memory == EBB_UNSET_PARAMETERS_ABSENT;
}
