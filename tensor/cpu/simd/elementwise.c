/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "tensor/cpu/simd/elementwise-private.h"

#include "tensor/cpu/parallel-private.h"
#include "tensor/error-private.h"

/* Runs elementwise kernels over views: chunks, threads and conversions to f32 and back. */

/* Everything is f32 and contiguous, or one number: no buffers. */
typedef struct
{
  const EbbElementwise *work;
  float uniform[EBB_ELEMENTWISE_MAX_INPUTS][EBB_VEC_WIDTH];
  EbbBlockF32 block;
} Direct;

typedef struct
{
  const EbbElementwise *work;
  EbbCursor output;
  EbbCursor inputs[EBB_ELEMENTWISE_MAX_INPUTS];
} Strided;

static void
run_direct (gint64 begin,
            gint64 end,
            void *data)
{
  const Direct *direct = data;
  EbbBlockF32 block = direct->block;

  block.n = end - begin;
  block.y += begin;
  for (guint k = 0; k < direct->work->n_inputs; k++)
    block.in[k] += begin * block.step[k];
  direct->work->func_f32 (&block);
}

static gboolean
try_direct (const EbbElementwise *work,
            gint64 n)
{
  Direct direct;

  if (work->output->dtype != EBB_DTYPE_F32 || !ebb_view_is_contiguous (work->output))
    return FALSE;
  for (guint k = 0; k < work->n_inputs; k++)
    {
      const EbbView *view = work->inputs[k].view;

      if (view == NULL)
        {
          for (int lane = 0; lane < EBB_VEC_WIDTH; lane++)
            direct.uniform[k][lane] = (float) work->inputs[k].value;
          direct.block.in[k] = direct.uniform[k];
          direct.block.step[k] = 0;
        }
      else if (view->dtype == EBB_DTYPE_F32 && ebb_view_is_contiguous (view))
        {
          direct.block.in[k] = view->data;
          direct.block.step[k] = 1;
        }
      else
        return FALSE;
    }
  direct.work = work;
  direct.block.y = work->output->data;
  direct.block.params = work->params;
  ebb_cpu_parallel_for_units (n, EBB_VEC_WIDTH, work->grain, run_direct, &direct);
  return TRUE;
}

/* The numbers that stand for operand k in [begin, end), if they are all the same, are loaded once. */
#define PREPARE_INPUT(k, from_double, load)                                       \
  G_STMT_START                                                                    \
  {                                                                               \
    block.in[k] = buffers[k];                                                     \
    block.step[k] = 1;                                                            \
    if (work->inputs[k].view == NULL)                                             \
      {                                                                           \
        for (int lane = 0; lane < EBB_VEC_WIDTH; lane++)                          \
          buffers[k][lane] = from_double (work->inputs[k].value);                 \
        block.step[k] = 0;                                                        \
      }                                                                           \
    else                                                                          \
      {                                                                           \
        inputs[k] = strided->inputs[k];                                           \
        ebb_cursor_seek (&inputs[k], begin);                                      \
        if (ebb_cursor_is_uniform (&inputs[k]))                                   \
          {                                                                       \
            load (inputs[k].dtype, inputs[k].data, 0, EBB_VEC_WIDTH, buffers[k]); \
            block.step[k] = 0;                                                    \
          }                                                                       \
      }                                                                           \
  }                                                                               \
  G_STMT_END

static void
run_strided_f32 (gint64 begin,
                 gint64 end,
                 void *data)
{
  const Strided *strided = data;
  const EbbElementwise *work = strided->work;
  EbbCursor output = strided->output;
  EbbCursor inputs[EBB_ELEMENTWISE_MAX_INPUTS];
  float buffers[EBB_ELEMENTWISE_MAX_INPUTS][EBB_CURSOR_BLOCK];
  float result[EBB_CURSOR_BLOCK];
  gboolean writes_directly = output.dtype == EBB_DTYPE_F32 && ebb_cursor_is_contiguous (&output);
  EbbBlockF32 block = { .params = work->params };

  for (guint k = 0; k < work->n_inputs; k++)
    PREPARE_INPUT (k, (float), ebb_run_to_f32);
  ebb_cursor_seek (&output, begin);
  for (gint64 i = begin; i < end; i += block.n)
    {
      block.n = MIN (end - i, EBB_CURSOR_BLOCK);
      for (guint k = 0; k < work->n_inputs; k++)
        if (block.step[k] != 0)
          block.in[k] = ebb_cursor_read_f32 (&inputs[k], block.n, buffers[k]);
      block.y = writes_directly ? (float *) output.data + i : result;
      work->func_f32 (&block);
      if (!writes_directly)
        ebb_cursor_store_f32 (&output, block.n, result);
    }
}

static void
run_strided_i64 (gint64 begin,
                 gint64 end,
                 void *data)
{
  const Strided *strided = data;
  const EbbElementwise *work = strided->work;
  EbbCursor output = strided->output;
  EbbCursor inputs[EBB_ELEMENTWISE_MAX_INPUTS];
  gint64 buffers[EBB_ELEMENTWISE_MAX_INPUTS][EBB_CURSOR_BLOCK];
  gint64 result[EBB_CURSOR_BLOCK];
  EbbBlockI64 block = { .params = work->params, .y = result };

  for (guint k = 0; k < work->n_inputs; k++)
    PREPARE_INPUT (k, ebb_double_to_i64, ebb_run_to_i64);
  for (guint k = work->n_inputs; k < EBB_ELEMENTWISE_MAX_INPUTS; k++)
    block.in[k] = block.in[0];
  ebb_cursor_seek (&output, begin);
  for (gint64 i = begin; i < end; i += block.n)
    {
      block.n = MIN (end - i, EBB_CURSOR_BLOCK);
      for (guint k = 0; k < work->n_inputs; k++)
        if (block.step[k] != 0)
          ebb_cursor_load_i64 (&inputs[k], block.n, buffers[k]);
      work->func_i64 (&block);
      ebb_cursor_store_i64 (&output, block.n, result);
    }
}

gboolean
ebb_elementwise (const EbbElementwise *work,
                 GError **error)
{
  gint64 n = ebb_view_count_elements (work->output);
  Strided strided;

  if (G_UNLIKELY (work->is_float ? work->func_f32 == NULL : work->func_i64 == NULL))
    return ebb_fail (error, EBB_ERROR_DTYPE, "This operation is not defined for %s elements",
                     work->is_float ? "floating" : "integer");
  if (n == 0 || (work->is_float && try_direct (work, n)))
    return TRUE;

  strided.work = work;
  ebb_cursor_init (&strided.output, work->output);
  for (guint k = 0; k < work->n_inputs; k++)
    if (work->inputs[k].view != NULL)
      ebb_cursor_init (&strided.inputs[k], work->inputs[k].view);
  ebb_cpu_parallel_for_units (n, EBB_CURSOR_BLOCK, work->grain / 2, work->is_float ? run_strided_f32 : run_strided_i64,
                              &strided);
  return TRUE;
}
