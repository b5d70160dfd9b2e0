/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Lists the ops that a checkpoint policy can decide on. */
#include "tensor/autograd/op-names-private.h"

#include <stdlib.h>
#include <string.h>

/* Sorted. Views, casts and copies are not among them: they cost nothing worth deciding on. */
static const char *const names[] = {
  /* clang-format off */
  "abs", "add", "add_linear", "add_scalar", "argmax", "attention", "batch_norm", "bias_gelu", "bitwise_and",
  "bitwise_or", "clamp", "cos",
  "cross_entropy", "div", "div_scalar", "dropout", "embedding", "eq", "eq_scalar", "exp", "fused_linear_cross_entropy",
  "gated_activation", "gather", "ge", "ge_scalar", "gelu", "gt", "gt_scalar", "index_select", "layer_norm", "le",
  "le_scalar", "linear", "log", "log_softmax", "logical_and", "logical_not", "logical_or", "lt", "lt_scalar",
  "matmul", "max", "max_along", "maximum", "mean", "min", "minimum", "mul", "mul_scalar", "multinomial", "ne",
  "ne_scalar", "neg", "norm", "parallel_gather", "parallel_reduce", "parallel_reduce_scatter", "pow", "pow_scalar",
  "rdiv_scalar", "relu", "residual_dropout", "residual_dropout_layer_norm", "residual_dropout_rms_norm", "rms_norm",
  "rotary", "rsqrt", "rsub_scalar", "scaled_dot_product_attention", "scatter_add", "self_attention", "sigmoid",
  "silu", "sin", "soft_cap", "softmax", "sqrt", "square", "sub", "sub_scalar", "sum", "tanh", "topk", "tril", "triu",
  "var", "vocab_parallel_cross_entropy", "vocab_parallel_linear_cross_entropy", "where"
  /* clang-format on */
};

/**
 * ebb_op_list_names:
 *
 * The names of all ops that a checkpoint policy can decide on, as "linear" or "self_attention", in alphabetical order.
 * Views, casts and copies, which cost next to nothing, have no part in that.
 *
 * Returns: (transfer full) (array zero-terminated=1): the names
 */
char **
ebb_op_list_names (void)
{
  char **list = g_new0 (char *, G_N_ELEMENTS (names) + 1);

  for (guint i = 0; i < G_N_ELEMENTS (names); i++)
    list[i] = g_strdup (names[i]);
  return list;
}

static int
compare (const void *name,
         const void *element)
{
  return strcmp (name, *(const char *const *) element);
}

gboolean
ebb_op_is_name (const char *name)
{
  return bsearch (name, names, G_N_ELEMENTS (names), sizeof names[0], compare) != NULL;
}
