/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers */
#include <ebb/ebb.h>

#include <stdio.h>

/* Runs ops on one thread for instructions.py, which counts the instructions between two calls of mark ():
 *
 *     instructions [CASE…]
 *
 * prints a line for each case: its name, and the work that its instructions are divided by. */

typedef struct
{
  EbbTensor *x[3];
  EbbModule *module;
} Operands;

typedef EbbTensor *(*OpFunc) (const Operands *self,
                              GError **error);

static EbbTensor *
matmul (const Operands *self,
        GError **error)
{
  return ebb_matmul (self->x[0], self->x[1], error);
}

static EbbTensor *
softmax (const Operands *self,
         GError **error)
{
  return ebb_softmax (self->x[0], -1, error);
}

static EbbTensor *
gelu (const Operands *self,
      GError **error)
{
  return ebb_gelu (self->x[0], EBB_GELU_TANH, error);
}

static EbbTensor *
layer_norm (const Operands *self,
            GError **error)
{
  return ebb_layer_norm (self->x[0], self->x[1], self->x[2], 1e-5, error);
}

static EbbTensor *
dropout (const Operands *self,
         GError **error)
{
  return ebb_dropout (self->x[0], 0.1, TRUE, NULL, error);
}

static EbbTensor *
attention (const Operands *self,
           GError **error)
{
  return ebb_scaled_dot_product_attention (self->x[0], self->x[1], self->x[2], NULL, TRUE, 0.125, 0.0, NULL, error);
}

static EbbTensor *
call_module (const Operands *self,
             GError **error)
{
  return ebb_module_call1 (self->module, self->x[0], error);
}

typedef enum
{
  NONE,
  VECTORS, /* weight and bias, as long as the rows */
  MATRIX,  /* [columns, outputs], read across: a weight */
  SAME,    /* two tensors of its shape */
  INT8,    /* a layer with a weight in that format */
  NF4
} Others;

static const struct
{
  const char *name;
  OpFunc func;
  EbbDType dtype;
  gint64 shape[4];
  guint n_dims;
  Others others;
  gint64 outputs;
  const char *unit;
} cases[] = {
  { "product-f32", matmul, EBB_DTYPE_F32, { 48, 128 }, 2, MATRIX, 64, "multiply-add" },
  { "product-bf16", matmul, EBB_DTYPE_BF16, { 48, 128 }, 2, MATRIX, 64, "multiply-add" },
  { "product-int8", call_module, EBB_DTYPE_F32, { 48, 128 }, 2, INT8, 64, "multiply-add" },
  { "row-f32", matmul, EBB_DTYPE_F32, { 1, 1024 }, 2, MATRIX, 64, "multiply-add" },
  { "row-bf16", matmul, EBB_DTYPE_BF16, { 1, 1024 }, 2, MATRIX, 64, "multiply-add" },
  { "row-int8", call_module, EBB_DTYPE_F32, { 1, 1024 }, 2, INT8, 64, "multiply-add" },
  { "row-nf4", call_module, EBB_DTYPE_F32, { 1, 1024 }, 2, NF4, 64, "multiply-add" },
  { "attention-f32", attention, EBB_DTYPE_F32, { 1, 1, 64, 64 }, 4, SAME, 64, "multiply-add" },
  { "attention-bf16", attention, EBB_DTYPE_BF16, { 1, 1, 64, 64 }, 4, SAME, 64, "multiply-add" },
  { "softmax-f32", softmax, EBB_DTYPE_F32, { 16, 768 }, 2, NONE, 0, "element" },
  { "gelu-f32", gelu, EBB_DTYPE_F32, { 16, 768 }, 2, NONE, 0, "element" },
  { "gelu-bf16", gelu, EBB_DTYPE_BF16, { 16, 768 }, 2, NONE, 0, "element" },
  { "layer-norm-f32", layer_norm, EBB_DTYPE_F32, { 16, 768 }, 2, VECTORS, 0, "element" },
  { "layer-norm-bf16", layer_norm, EBB_DTYPE_BF16, { 16, 768 }, 2, VECTORS, 0, "element" },
  { "dropout-f32", dropout, EBB_DTYPE_F32, { 16, 768 }, 2, NONE, 0, "element" },
};

/* What the instructions of case @which are divided by. Causal attention multiplies half of the pairs twice. */
static gint64
get_work (guint which)
{
  gint64 n = cases[which].func == attention ? 1 : MAX (cases[which].outputs, 1);

  for (guint i = 0; i < cases[which].n_dims; i++)
    n *= cases[which].shape[i];
  return cases[which].func == attention ? n * cases[which].shape[2] : n;
}

static gboolean
operands_init (Operands *self,
               guint which,
               GError **error)
{
  const gint64 *shape = cases[which].shape, width = shape[cases[which].n_dims - 1], outputs = cases[which].outputs;
  const Others others = cases[which].others;

  self->x[0] = ebb_ones (shape, cases[which].n_dims, cases[which].dtype, NULL, error);
  if (others == SAME)
    for (int i = 1; i < 3; i++)
      self->x[i] = ebb_ones (shape, cases[which].n_dims, cases[which].dtype, NULL, error);
  if (others == VECTORS)
    for (int i = 1; i < 3; i++)
      self->x[i] = ebb_ones (&width, 1, EBB_DTYPE_F32, NULL, error);
  if (others == MATRIX)
    {
      g_autoptr (EbbTensor) weight =
          ebb_ones ((const gint64[]){ outputs, width }, 2, cases[which].dtype, NULL, error);

      self->x[1] = ebb_transpose (weight, 0, 1, error);
    }
  if (others == INT8 || others == NF4)
    {
      self->module = ebb_linear_new (width, outputs, FALSE, error);
      return self->module != NULL && ebb_module_set_requires_grad (self->module, FALSE, error)
             && ebb_quantize (self->module, others == INT8 ? EBB_QUANTIZATION_INT8 : EBB_QUANTIZATION_NF4, error);
    }
  return *error == NULL;
}

static void
operands_clear (Operands *self)
{
  for (int i = 0; i < 3; i++)
    g_clear_pointer (&self->x[i], ebb_tensor_unref);
  g_clear_object (&self->module);
}

static void __attribute__ ((noinline))
mark (void)
{
  __asm__ volatile("");
}

/* The first run makes what later ones find: oneDNN's plans, memory. */
static gboolean
run (guint which,
     GError **error)
{
  Operands operands = { 0 };
  gboolean ok = operands_init (&operands, which, error);

  for (int i = 0; ok && i < 3; i++)
    {
      EbbTensor *y;

      if (i == 2)
        mark ();
      y = cases[which].func (&operands, error);
      if (i == 2)
        mark ();
      ok = y != NULL;
      g_clear_pointer (&y, ebb_tensor_unref);
    }
  operands_clear (&operands);
  return ok;
}

static gboolean
is_wanted (const char *name,
           char **names)
{
  return *names == NULL || g_strv_contains ((const char *const *) names, name);
}

int
main (int argc,
      char **argv)
{
  g_autoptr (GError) error = NULL;

  ebb_set_num_threads (1);
  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      if (!is_wanted (cases[i].name, argv + 1))
        continue;
      if (!run (i, &error))
        {
          fprintf (stderr, "instructions: %s: %s\n", cases[i].name, error->message);
          return 1;
        }
      printf ("%s %" G_GINT64_FORMAT " %s\n", cases[i].name, get_work (i), cases[i].unit);
    }
  return 0;
}
