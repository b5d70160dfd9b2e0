/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/dtype.h"

#include "tensor/error-private.h"

#include <string.h>

/* The types of elements: names, sizes, and the type in which two meet. */

static const struct
{
  const char *name;
  gsize size;
} dtypes[EBB_N_DTYPES] = {
  [EBB_DTYPE_F32] = { "f32", 4 },
  [EBB_DTYPE_BF16] = { "bf16", 2 },
  [EBB_DTYPE_F16] = { "f16", 2 },
  [EBB_DTYPE_I32] = { "i32", 4 },
  [EBB_DTYPE_I64] = { "i64", 8 },
  [EBB_DTYPE_U8] = { "u8", 1 },
  [EBB_DTYPE_BOOL] = { "bool", 1 },
};

/**
 * ebb_dtype_get_size:
 * @dtype: an element type
 *
 * Returns: the bytes of one element
 */
gsize
ebb_dtype_get_size (EbbDType dtype)
{
  g_return_val_if_fail ((guint) dtype < EBB_N_DTYPES, 0);

  return dtypes[dtype].size;
}

/**
 * ebb_dtype_get_name:
 * @dtype: an element type
 *
 * Returns: its name: "f32", "bf16", "f16", "i32", "i64", "u8" or "bool"
 */
const char *
ebb_dtype_get_name (EbbDType dtype)
{
  g_return_val_if_fail ((guint) dtype < EBB_N_DTYPES, NULL);

  return dtypes[dtype].name;
}

/**
 * ebb_dtype_from_name:
 * @name: a name as of ebb_dtype_get_name()
 * @dtype: (out): return location for the element type
 * @error: return location for an error
 *
 * Looks an element type up by name.
 *
 * Returns: %FALSE with %EBB_ERROR_DTYPE if there is none of that name
 */
gboolean
ebb_dtype_from_name (const char *name,
                     EbbDType *dtype,
                     GError **error)
{
  g_return_val_if_fail (dtype != NULL, FALSE);

  for (guint i = 0; name != NULL && i < EBB_N_DTYPES; i++)
    if (strcmp (name, dtypes[i].name) == 0)
      {
        *dtype = i;
        return TRUE;
      }
  return ebb_fail (error, EBB_ERROR_DTYPE, "no dtype \"%s\"; there are f32, bf16, f16, i32, i64, u8 and bool",
                   name ? name : "(null)");
}

/**
 * ebb_dtype_is_floating_point:
 * @dtype: an element type
 *
 * Returns: %TRUE for f32, bf16 and f16, whose tensors can require a gradient
 */
gboolean
ebb_dtype_is_floating_point (EbbDType dtype)
{
  return dtype <= EBB_DTYPE_F16;
}

/* Row and column in the enum's order. Floating beats integer beats bool; two different 16-bit floats meet in f32. */
#define F EBB_DTYPE_F32
#define B EBB_DTYPE_BF16
#define H EBB_DTYPE_F16
#define I EBB_DTYPE_I32
#define L EBB_DTYPE_I64
#define U EBB_DTYPE_U8
#define O EBB_DTYPE_BOOL
static const guint8 promotion[EBB_N_DTYPES][EBB_N_DTYPES] = {
  { F, F, F, F, F, F, F },
  { F, B, F, B, B, B, B },
  { F, F, H, H, H, H, H },
  { F, B, H, I, L, I, I },
  { F, B, H, L, L, L, L },
  { F, B, H, I, L, U, U },
  { F, B, H, I, L, U, O },
};
#undef F
#undef B
#undef H
#undef I
#undef L
#undef U
#undef O

/**
 * ebb_dtype_promote:
 * @a: an element type
 * @b: another
 *
 * The type in which an op of both is done: f32 beats the 16-bit floats, floats beat integers, wider integers beat
 * narrower ones, all beat bool; bf16 with f16 gives f32.
 *
 * Returns: the common type
 */
EbbDType
ebb_dtype_promote (EbbDType a,
                   EbbDType b)
{
  return promotion[a][b];
}
