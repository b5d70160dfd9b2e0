/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <ebb/ebb.h>

/* The one list of op cases. Each public op of tensor/ops has an entry; tests run it against the float64 reference,
 * against finite differences, backend against backend, and programs time it. */

G_BEGIN_DECLS

#define OP_CASE_MAX_INPUTS 6
#define OP_CASE_MAX_OUTPUTS 6
#define OP_CASE_MAX_VARIANTS 16
#define OP_CASE_MAX_NUMBERS 5

typedef struct _OpCase OpCase;

/* Operands are words, as "n:2x3x4 n:4 i7:5 -": a kind, a colon, the shape; "-" for one that is left out, and "t" behind
 * a shape for memory in which the last two dimensions are swapped. The kinds, of which n, d, p, s, h and q require a
 * gradient:
 *
 *   n    f32, normal, not near 0           c    f32, as n
 *   d    f32, far from one another         v    f32, as p
 *   p    f32, in [0.5, 1.5)                h    bf16, as n
 *   s    f32: NaN, infinities, 0, -0, 1    q    bf16, as p
 *   iN   i64 in [0, N)                     jN   i32 in [0, N)
 *   b    bool                                                                                                      */
typedef struct
{
  const char *operands;
  double numbers[OP_CASE_MAX_NUMBERS]; /* whatever else the op takes */
} OpVariant;

typedef gboolean (*OpCaseFunc) (EbbTensor **x,
                                const double *numbers,
                                EbbTensor **y,
                                GError **error);

typedef enum
{
  OP_CASE_CONSTANT = 1 << 0, /* not differentiable */
  OP_CASE_EXACT = 1 << 1,    /* only moves data: results are equal bit for bit */
  OP_CASE_DISCRETE = 1 << 2  /* rounding may change a result as a whole, so seldom differences are let pass */
} OpCaseFlags;

struct _OpCase
{
  const char *name; /* of the public function, without "ebb_" */
  OpCaseFlags flags;
  double tolerance; /* relative to the greatest result, f32; 0 for the usual */
  /* One of these: */
  EbbTensor *(*unary) (EbbTensor *x,
                       GError **error);
  EbbTensor *(*binary) (EbbTensor *a,
                        EbbTensor *b,
                        GError **error);
  EbbTensor *(*scalar) (EbbTensor *a,
                        double b,
                        GError **error);
  OpCaseFunc run; /* fills y; NULL after the last */
  OpVariant variants[OP_CASE_MAX_VARIANTS];
  OpVariant timing; /* at the size of a small transformer's step; none: the op is not timed */
  double (*count_operations) (EbbTensor **x,
                              EbbTensor **y); /* floating-point operations, where they are what takes time */
};

extern const OpCase op_cases_pointwise[], op_cases_shape[], op_cases_layers[]; /* end with no name */

/* All cases, in the order above, ends with NULL. */
const OpCase *const *op_cases_get_all (void);

const OpCase *op_cases_find (const char *name); /* NULL if there is none */

/* Makes the operands of @variant on @device: the same values for the same seed. */
gboolean op_case_make_inputs (const OpVariant *variant,
                              guint seed,
                              EbbDevice *device,
                              EbbTensor **x,
                              guint *n_inputs,
                              GError **error);
/* Runs the op; its random numbers are the same each time. */
gboolean op_case_run (const OpCase *self,
                      const OpVariant *variant,
                      EbbTensor **x,
                      EbbTensor **y,
                      GError **error);
void op_case_clear (EbbTensor **tensors,
                    guint n_tensors);
/* The values in row-major order, from whatever device. */
double *op_case_read (EbbTensor *tensor,
                      GError **error);
/* Normal numbers of the shape, dtype and device of @like. */
EbbTensor *op_case_make_normal (EbbTensor *like,
                                guint seed,
                                GError **error);

G_END_DECLS
