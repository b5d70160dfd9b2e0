/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/ops/pointwise.h"
#include "tensor/autograd/op-support-private.h"
#include "tensor/error-private.h"

/* Comparisons, and operations on truth values and on bits. They have no gradient. */

static const EbbOp comparison_ops[] = {
  [EBB_BINARY_EQ] = { "eq", EBB_OP_POINTWISE, EBB_KERNEL_BINARY, NULL, NULL },
  [EBB_BINARY_NE] = { "ne", EBB_OP_POINTWISE, EBB_KERNEL_BINARY, NULL, NULL },
  [EBB_BINARY_LT] = { "lt", EBB_OP_POINTWISE, EBB_KERNEL_BINARY, NULL, NULL },
  [EBB_BINARY_LE] = { "le", EBB_OP_POINTWISE, EBB_KERNEL_BINARY, NULL, NULL },
  [EBB_BINARY_GT] = { "gt", EBB_OP_POINTWISE, EBB_KERNEL_BINARY, NULL, NULL },
  [EBB_BINARY_GE] = { "ge", EBB_OP_POINTWISE, EBB_KERNEL_BINARY, NULL, NULL },
  [EBB_BINARY_AND] = { "logical_and", EBB_OP_POINTWISE, EBB_KERNEL_BINARY, NULL, NULL },
  [EBB_BINARY_OR] = { "logical_or", EBB_OP_POINTWISE, EBB_KERNEL_BINARY, NULL, NULL },
};

static const EbbOp scalar_ops[] = {
  [EBB_BINARY_EQ] = { "eq_scalar", EBB_OP_POINTWISE, EBB_KERNEL_BINARY_SCALAR, NULL, NULL },
  [EBB_BINARY_NE] = { "ne_scalar", EBB_OP_POINTWISE, EBB_KERNEL_BINARY_SCALAR, NULL, NULL },
  [EBB_BINARY_LT] = { "lt_scalar", EBB_OP_POINTWISE, EBB_KERNEL_BINARY_SCALAR, NULL, NULL },
  [EBB_BINARY_LE] = { "le_scalar", EBB_OP_POINTWISE, EBB_KERNEL_BINARY_SCALAR, NULL, NULL },
  [EBB_BINARY_GT] = { "gt_scalar", EBB_OP_POINTWISE, EBB_KERNEL_BINARY_SCALAR, NULL, NULL },
  [EBB_BINARY_GE] = { "ge_scalar", EBB_OP_POINTWISE, EBB_KERNEL_BINARY_SCALAR, NULL, NULL },
};

/* Compares or joins @a and @b, both cast to @dtype first. */
static EbbTensor *
finish_binary (EbbOpCall *call, EbbBinaryOp which, EbbDType dtype, GError **error)
{
  gint64 shape[EBB_MAX_DIMS];
  guint n_dims;

  if (!ebb_op_check_not_f16 (call, error) || !ebb_op_cast (call, 0, dtype, error)
      || !ebb_op_cast (call, 1, dtype, error) || !ebb_op_broadcast (call, 0, 1, shape, &n_dims, error))
    return NULL;
  call->params.binary.op = which;
  ebb_op_add_output (call, EBB_DTYPE_BOOL, shape, n_dims);
  return ebb_op_finish1 (call, error);
}

static EbbTensor *
compare (EbbBinaryOp which, EbbTensor *a, EbbTensor *b, GError **error)
{
  EbbOpCall call;
  EbbDType dtype;

  if (!ebb_op_begin (&call, &comparison_ops[which], error, 2, a, b))
    return NULL;
  dtype = ebb_op_promote (&call, 0, 1);
  return finish_binary (&call, which, dtype == EBB_DTYPE_BOOL ? EBB_DTYPE_U8 : dtype, error);
}

static EbbTensor *
join (EbbBinaryOp which, EbbTensor *a, EbbTensor *b, GError **error)
{
  EbbOpCall call;

  if (!ebb_op_begin (&call, &comparison_ops[which], error, 2, a, b))
    return NULL;
  return finish_binary (&call, which, EBB_DTYPE_BOOL, error);
}

static EbbTensor *
compare_scalar (EbbBinaryOp which, EbbTensor *a, double b, GError **error)
{
  EbbOpCall call;

  if (!ebb_op_begin (&call, &scalar_ops[which], error, 1, a) || !ebb_op_check_not_f16 (&call, error)
      || !ebb_op_promote_to_scalar (&call, b, error))
    return NULL;
  call.params.binary.op = which;
  call.params.binary.value = b;
  call.params.binary.reverse = FALSE;
  ebb_op_add_output (&call, EBB_DTYPE_BOOL, EBB_FULL_SHAPE (a));
  return ebb_op_finish1 (&call, error);
}

/**
 * ebb_eq:
 * @a: a tensor of any dtype but f16
 * @b: a tensor of any dtype but f16, whose shape broadcasts with that of @a
 * @error: return location for an error
 *
 * Compares element by element: whether @a is equal to @b. Different dtypes are cast as ebb_dtype_promote () says.
 *
 * Fails with %EBB_ERROR_SHAPE when the shapes do not broadcast, and with %EBB_ERROR_DTYPE for f16.
 *
 * Returns: (transfer full) (nullable): a tensor of bool of the broadcast shape, or %NULL with @error set
 */
EbbTensor *
ebb_eq (EbbTensor *a, EbbTensor *b, GError **error)
{
  return compare (EBB_BINARY_EQ, a, b, error);
}

/**
 * ebb_ne:
 * @a: a tensor of any dtype but f16
 * @b: a tensor of any dtype but f16, whose shape broadcasts with that of @a
 * @error: return location for an error
 *
 * Compares element by element: whether @a is not equal to @b. Different dtypes are cast as ebb_dtype_promote () says.
 *
 * Fails with %EBB_ERROR_SHAPE when the shapes do not broadcast, and with %EBB_ERROR_DTYPE for f16.
 *
 * Returns: (transfer full) (nullable): a tensor of bool of the broadcast shape, or %NULL with @error set
 */
EbbTensor *
ebb_ne (EbbTensor *a, EbbTensor *b, GError **error)
{
  return compare (EBB_BINARY_NE, a, b, error);
}

/**
 * ebb_lt:
 * @a: a tensor of any dtype but f16
 * @b: a tensor of any dtype but f16, whose shape broadcasts with that of @a
 * @error: return location for an error
 *
 * Compares element by element: whether @a is less than @b. Different dtypes are cast as ebb_dtype_promote () says.
 *
 * Fails with %EBB_ERROR_SHAPE when the shapes do not broadcast, and with %EBB_ERROR_DTYPE for f16.
 *
 * Returns: (transfer full) (nullable): a tensor of bool of the broadcast shape, or %NULL with @error set
 */
EbbTensor *
ebb_lt (EbbTensor *a, EbbTensor *b, GError **error)
{
  return compare (EBB_BINARY_LT, a, b, error);
}

/**
 * ebb_le:
 * @a: a tensor of any dtype but f16
 * @b: a tensor of any dtype but f16, whose shape broadcasts with that of @a
 * @error: return location for an error
 *
 * Compares element by element: whether @a is less than @b or equal to it. Different dtypes are cast as
 * ebb_dtype_promote
 * () says.
 *
 * Fails with %EBB_ERROR_SHAPE when the shapes do not broadcast, and with %EBB_ERROR_DTYPE for f16.
 *
 * Returns: (transfer full) (nullable): a tensor of bool of the broadcast shape, or %NULL with @error set
 */
EbbTensor *
ebb_le (EbbTensor *a, EbbTensor *b, GError **error)
{
  return compare (EBB_BINARY_LE, a, b, error);
}

/**
 * ebb_gt:
 * @a: a tensor of any dtype but f16
 * @b: a tensor of any dtype but f16, whose shape broadcasts with that of @a
 * @error: return location for an error
 *
 * Compares element by element: whether @a is greater than @b. Different dtypes are cast as ebb_dtype_promote () says.
 *
 * Fails with %EBB_ERROR_SHAPE when the shapes do not broadcast, and with %EBB_ERROR_DTYPE for f16.
 *
 * Returns: (transfer full) (nullable): a tensor of bool of the broadcast shape, or %NULL with @error set
 */
EbbTensor *
ebb_gt (EbbTensor *a, EbbTensor *b, GError **error)
{
  return compare (EBB_BINARY_GT, a, b, error);
}

/**
 * ebb_ge:
 * @a: a tensor of any dtype but f16
 * @b: a tensor of any dtype but f16, whose shape broadcasts with that of @a
 * @error: return location for an error
 *
 * Compares element by element: whether @a is greater than @b or equal to it. Different dtypes are cast as
 * ebb_dtype_promote () says.
 *
 * Fails with %EBB_ERROR_SHAPE when the shapes do not broadcast, and with %EBB_ERROR_DTYPE for f16.
 *
 * Returns: (transfer full) (nullable): a tensor of bool of the broadcast shape, or %NULL with @error set
 */
EbbTensor *
ebb_ge (EbbTensor *a, EbbTensor *b, GError **error)
{
  return compare (EBB_BINARY_GE, a, b, error);
}

/**
 * ebb_logical_and:
 * @a: a tensor of any dtype but f16; what is not 0 is true
 * @b: a tensor of any dtype but f16, whose shape broadcasts with that of @a
 * @error: return location for an error
 *
 * Whether both are true, element by element.
 *
 * Fails with %EBB_ERROR_SHAPE when the shapes do not broadcast, and with %EBB_ERROR_DTYPE for f16.
 *
 * Returns: (transfer full) (nullable): a tensor of bool of the broadcast shape, or %NULL with @error set
 */
EbbTensor *
ebb_logical_and (EbbTensor *a, EbbTensor *b, GError **error)
{
  return join (EBB_BINARY_AND, a, b, error);
}

/**
 * ebb_logical_or:
 * @a: a tensor of any dtype but f16; what is not 0 is true
 * @b: a tensor of any dtype but f16, whose shape broadcasts with that of @a
 * @error: return location for an error
 *
 * Whether at least one is true, element by element.
 *
 * Fails with %EBB_ERROR_SHAPE when the shapes do not broadcast, and with %EBB_ERROR_DTYPE for f16.
 *
 * Returns: (transfer full) (nullable): a tensor of bool of the broadcast shape, or %NULL with @error set
 */
EbbTensor *
ebb_logical_or (EbbTensor *a, EbbTensor *b, GError **error)
{
  return join (EBB_BINARY_OR, a, b, error);
}

/**
 * ebb_logical_not:
 * @x: a tensor of any dtype but f16; what is not 0 is true
 * @error: return location for an error
 *
 * Whether each element is false.
 *
 * Fails with %EBB_ERROR_DTYPE for f16.
 *
 * Returns: (transfer full) (nullable): a tensor of bool of the shape of @x, or %NULL with @error set
 */
EbbTensor *
ebb_logical_not (EbbTensor *x, GError **error)
{
  EbbOpCall call;

  if (!ebb_op_begin (&call, &ebb_unary_ops[EBB_UNARY_LOGICAL_NOT].op, error, 1, x)
      || !ebb_op_check_not_f16 (&call, error) || !ebb_op_cast (&call, 0, EBB_DTYPE_BOOL, error))
    return NULL;
  call.params.unary.op = EBB_UNARY_LOGICAL_NOT;
  ebb_op_add_output (&call, EBB_DTYPE_BOOL, EBB_FULL_SHAPE (x));
  return ebb_op_finish1 (&call, error);
}

/**
 * ebb_eq_scalar:
 * @a: a tensor of any dtype but f16
 * @b: a number
 * @error: return location for an error
 *
 * Compares each element of @a with a number: whether it is equal to @b. Integers are compared as f32 when @b is not an
 * integer of their dtype.
 *
 * Fails with %EBB_ERROR_DTYPE for f16.
 *
 * Returns: (transfer full) (nullable): a tensor of bool of the shape of @a, or %NULL with @error set
 */
EbbTensor *
ebb_eq_scalar (EbbTensor *a, double b, GError **error)
{
  return compare_scalar (EBB_BINARY_EQ, a, b, error);
}

/**
 * ebb_ne_scalar:
 * @a: a tensor of any dtype but f16
 * @b: a number
 * @error: return location for an error
 *
 * Compares each element of @a with a number: whether it is not equal to @b. Integers are compared as f32 when @b is not
 * an integer of their dtype.
 *
 * Fails with %EBB_ERROR_DTYPE for f16.
 *
 * Returns: (transfer full) (nullable): a tensor of bool of the shape of @a, or %NULL with @error set
 */
EbbTensor *
ebb_ne_scalar (EbbTensor *a, double b, GError **error)
{
  return compare_scalar (EBB_BINARY_NE, a, b, error);
}

/**
 * ebb_lt_scalar:
 * @a: a tensor of any dtype but f16
 * @b: a number
 * @error: return location for an error
 *
 * Compares each element of @a with a number: whether it is less than @b. Integers are compared as f32 when @b is not an
 * integer of their dtype.
 *
 * Fails with %EBB_ERROR_DTYPE for f16.
 *
 * Returns: (transfer full) (nullable): a tensor of bool of the shape of @a, or %NULL with @error set
 */
EbbTensor *
ebb_lt_scalar (EbbTensor *a, double b, GError **error)
{
  return compare_scalar (EBB_BINARY_LT, a, b, error);
}

/**
 * ebb_le_scalar:
 * @a: a tensor of any dtype but f16
 * @b: a number
 * @error: return location for an error
 *
 * Compares each element of @a with a number: whether it is less than @b or equal to it. Integers are compared as f32
 * when @b is not an integer of their dtype.
 *
 * Fails with %EBB_ERROR_DTYPE for f16.
 *
 * Returns: (transfer full) (nullable): a tensor of bool of the shape of @a, or %NULL with @error set
 */
EbbTensor *
ebb_le_scalar (EbbTensor *a, double b, GError **error)
{
  return compare_scalar (EBB_BINARY_LE, a, b, error);
}

/**
 * ebb_gt_scalar:
 * @a: a tensor of any dtype but f16
 * @b: a number
 * @error: return location for an error
 *
 * Compares each element of @a with a number: whether it is greater than @b. Integers are compared as f32 when @b is not
 * an integer of their dtype.
 *
 * Fails with %EBB_ERROR_DTYPE for f16.
 *
 * Returns: (transfer full) (nullable): a tensor of bool of the shape of @a, or %NULL with @error set
 */
EbbTensor *
ebb_gt_scalar (EbbTensor *a, double b, GError **error)
{
  return compare_scalar (EBB_BINARY_GT, a, b, error);
}

/**
 * ebb_ge_scalar:
 * @a: a tensor of any dtype but f16
 * @b: a number
 * @error: return location for an error
 *
 * Compares each element of @a with a number: whether it is greater than @b or equal to it. Integers are compared as f32
 * when @b is not an integer of their dtype.
 *
 * Fails with %EBB_ERROR_DTYPE for f16.
 *
 * Returns: (transfer full) (nullable): a tensor of bool of the shape of @a, or %NULL with @error set
 */
EbbTensor *
ebb_ge_scalar (EbbTensor *a, double b, GError **error)
{
  return compare_scalar (EBB_BINARY_GE, a, b, error);
}

/* -- bits of integers; a bool has one ------------------------------------------------------------------------------ */

static const EbbOp and_op = { "bitwise_and", EBB_OP_POINTWISE, EBB_KERNEL_BINARY, NULL, NULL };
static const EbbOp or_op = { "bitwise_or", EBB_OP_POINTWISE, EBB_KERNEL_BINARY, NULL, NULL };

static gboolean
check_integers (EbbOpCall *call, GError **error)
{
  for (guint i = 0; i < call->n_inputs; i++)
    if (ebb_dtype_is_floating_point (call->inputs[i]->view.dtype))
      return ebb_op_fail (call, error, EBB_ERROR_DTYPE, "needs integers or bool, not %s; compare first, as with ne",
                          ebb_dtype_get_name (call->inputs[i]->view.dtype));
  return TRUE;
}

static EbbTensor *
join_bits (const EbbOp *op, EbbBinaryOp which, EbbTensor *a, EbbTensor *b, GError **error)
{
  EbbOpCall call;
  EbbDType dtype;
  gint64 shape[EBB_MAX_DIMS];
  guint n_dims;

  if (!ebb_op_begin (&call, op, error, 2, a, b) || !check_integers (&call, error))
    return NULL;
  dtype = ebb_op_promote (&call, 0, 1);
  if (!ebb_op_cast (&call, 0, dtype, error) || !ebb_op_cast (&call, 1, dtype, error)
      || !ebb_op_broadcast (&call, 0, 1, shape, &n_dims, error))
    return NULL;
  call.params.binary.op = which;
  ebb_op_add_output (&call, dtype, shape, n_dims);
  return ebb_op_finish1 (&call, error);
}

/**
 * ebb_bitwise_and:
 * @a: a tensor of integers or bool
 * @b: a tensor of integers or bool, whose shape broadcasts with that of @a
 * @error: return location for an error
 *
 * The bits that are set in both, element by element. Different dtypes are cast as ebb_dtype_promote () says.
 *
 * Fails with %EBB_ERROR_SHAPE when the shapes do not broadcast, and with %EBB_ERROR_DTYPE for floating-point tensors.
 *
 * Returns: (transfer full) (nullable): a tensor of the broadcast shape, or %NULL with @error set
 */
EbbTensor *
ebb_bitwise_and (EbbTensor *a, EbbTensor *b, GError **error)
{
  return join_bits (&and_op, EBB_BINARY_AND, a, b, error);
}

/**
 * ebb_bitwise_or:
 * @a: a tensor of integers or bool
 * @b: a tensor of integers or bool, whose shape broadcasts with that of @a
 * @error: return location for an error
 *
 * The bits that are set in at least one, element by element. Different dtypes are cast as ebb_dtype_promote () says.
 *
 * Fails with %EBB_ERROR_SHAPE when the shapes do not broadcast, and with %EBB_ERROR_DTYPE for floating-point tensors.
 *
 * Returns: (transfer full) (nullable): a tensor of the broadcast shape, or %NULL with @error set
 */
EbbTensor *
ebb_bitwise_or (EbbTensor *a, EbbTensor *b, GError **error)
{
  return join_bits (&or_op, EBB_BINARY_OR, a, b, error);
}

/**
 * ebb_bitwise_not:
 * @x: a tensor of integers or bool
 * @error: return location for an error
 *
 * Changes each bit of each element: -1 - x for signed integers, 255 - x for u8.
 *
 * Fails with %EBB_ERROR_DTYPE for a floating-point tensor.
 *
 * Returns: (transfer full) (nullable): a tensor of the shape and dtype of @x, or %NULL with @error set
 */
EbbTensor *
ebb_bitwise_not (EbbTensor *x, GError **error)
{
  EBB_RETURN_UNLESS_BEGUN (NULL, error, x);
  if (x->view.dtype == EBB_DTYPE_BOOL)
    return ebb_logical_not (x, error);
  if (!ebb_dtype_is_floating_point (x->view.dtype))
    return ebb_rsub_scalar (x, x->view.dtype == EBB_DTYPE_U8 ? 255.0 : -1.0, error);
  return ebb_fail_null (error, EBB_ERROR_DTYPE,
                        "bitwise_not: needs integers or bool, not %s; compare first, as with ne",
                        ebb_dtype_get_name (x->view.dtype));
}
