/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "tensor/cpu/parallel-private.h"
#include "tensor/cpu/simd/simd-private.h"
#include "tensor/cpu/simd/vec-private.h"

/* One pass over a parameter, its gradient and its state. The order of operations is PyTorch's. */

typedef struct
{
  EbbDType grad_dtype, dtype;
  const void *grad;
  void *parameter;
  float *exp_avg, *exp_avg_sq; /* momentum: exp_avg */
  float grad_scale;

  float beta1_rest, beta2, beta2_rest, eps, decay, step_size, correction2; /* AdamW */
  float lr, momentum, weight_decay, dampening_rest;                        /* SGD */
  gboolean nesterov, first;
} Update;

static gint64
count_elements (const EbbView *view)
{
  gint64 n = 1;

  for (int i = 0; i < view->n_dims; i++)
    n *= view->shape[i];
  return n;
}

/* With constant dtypes, so that loads and stores are specialised. */
#define SPECIALIZE(function, update, begin, end)                                   \
  G_STMT_START                                                                     \
  {                                                                                \
    if ((update)->grad_dtype == EBB_DTYPE_F32 && (update)->dtype == EBB_DTYPE_F32) \
      function (update, EBB_DTYPE_F32, EBB_DTYPE_F32, begin, end);                 \
    else if ((update)->grad_dtype == EBB_DTYPE_F32)                                \
      function (update, EBB_DTYPE_F32, EBB_DTYPE_BF16, begin, end);                \
    else if ((update)->dtype == EBB_DTYPE_F32)                                     \
      function (update, EBB_DTYPE_BF16, EBB_DTYPE_F32, begin, end);                \
    else                                                                           \
      function (update, EBB_DTYPE_BF16, EBB_DTYPE_BF16, begin, end);               \
  }                                                                                \
  G_STMT_END

/* -- AdamW --------------------------------------------------------------------------------------------------------- */

EBB_VEC_INLINE void
adamw_elements (const Update *u,
                EbbDType grad_dtype,
                EbbDType dtype,
                gint64 begin,
                gint64 end)
{
  EbbVec beta1_rest = vec_set1 (u->beta1_rest), beta2_rest = vec_set1 (u->beta2_rest);

  for (gint64 i = begin; i < end; i += EBB_VEC_WIDTH)
    {
      gint64 n = MIN (end - i, EBB_VEC_WIDTH);
      EbbVec g = u->grad_scale * vec_load_as (grad_dtype, u->grad, i, n);
      EbbVec p = u->decay * vec_load_as (dtype, u->parameter, i, n);
      EbbVec m = vec_load_as (EBB_DTYPE_F32, u->exp_avg, i, n);
      EbbVec v = vec_load_as (EBB_DTYPE_F32, u->exp_avg_sq, i, n);

      m = vec_fma (beta1_rest, g - m, m);
      v = vec_fma (beta2_rest * g, g, vec_rounded (u->beta2 * v));
      p -= u->step_size * m / (vec_sqrt (v) / u->correction2 + u->eps);
      vec_store_as (dtype, u->parameter, i, n, p);
      vec_store_as (EBB_DTYPE_F32, u->exp_avg, i, n, m);
      vec_store_as (EBB_DTYPE_F32, u->exp_avg_sq, i, n, v);
    }
}

static void
adamw_range (gint64 begin,
             gint64 end,
             void *data)
{
  const Update *update = data;

  SPECIALIZE (adamw_elements, update, begin, end);
}

/* Loshchilov, Hutter: Decoupled weight decay regularization, 2019: algorithm 2 */
gboolean
EBB_SIMD_NAME (ebb_cpu_adamw) (const EbbLaunch *launch,
                               GError **error)
{
  const EbbView *grad = launch->inputs[0], *parameter = launch->outputs[0];
  double lr = launch->params.adamw.lr;
  double beta1 = launch->params.adamw.beta1, beta2 = launch->params.adamw.beta2;
  double step = (double) launch->params.adamw.step;
  Update update = { .grad_dtype = grad->dtype,
                    .dtype = parameter->dtype,
                    .grad = grad->data,
                    .parameter = parameter->data };

  update.exp_avg = launch->outputs[1]->data;
  update.exp_avg_sq = launch->outputs[2]->data;
  update.grad_scale = (float) launch->params.adamw.grad_scale;
  update.beta1_rest = (float) (1.0 - beta1);
  update.beta2 = (float) beta2;
  update.beta2_rest = (float) (1.0 - beta2);
  update.eps = (float) launch->params.adamw.eps;
  update.decay = (float) (1.0 - lr * launch->params.adamw.weight_decay);
  update.step_size = (float) (lr / (1.0 - pow (beta1, step)));
  update.correction2 = (float) sqrt (1.0 - pow (beta2, step));
  ebb_cpu_parallel_for_units (count_elements (parameter), 64, EBB_CPU_GRAIN / 4, adamw_range, &update);
  return TRUE;
}

/* -- stochastic gradient descent ----------------------------------------------------------------------------------- */

EBB_VEC_INLINE void
sgd_elements (const Update *u,
              EbbDType grad_dtype,
              EbbDType dtype,
              gint64 begin,
              gint64 end)
{
  EbbVec decay = vec_set1 (u->weight_decay), momentum = vec_set1 (u->momentum);

  for (gint64 i = begin; i < end; i += EBB_VEC_WIDTH)
    {
      gint64 n = MIN (end - i, EBB_VEC_WIDTH);
      EbbVec p = vec_load_as (dtype, u->parameter, i, n);
      EbbVec g = vec_fma (decay, p, u->grad_scale * vec_load_as (grad_dtype, u->grad, i, n));

      if (u->exp_avg)
        {
          EbbVec m = g;

          if (!u->first)
            m = vec_fma (vec_set1 (u->dampening_rest), g,
                         vec_rounded (momentum * vec_load_as (EBB_DTYPE_F32, u->exp_avg, i, n)));
          vec_store_as (EBB_DTYPE_F32, u->exp_avg, i, n, m);
          g = u->nesterov ? vec_fma (momentum, m, g) : m;
        }
      vec_store_as (dtype, u->parameter, i, n, vec_fma (vec_set1 (-u->lr), g, p));
    }
}

static void
sgd_range (gint64 begin,
           gint64 end,
           void *data)
{
  const Update *update = data;

  SPECIALIZE (sgd_elements, update, begin, end);
}

gboolean
EBB_SIMD_NAME (ebb_cpu_sgd) (const EbbLaunch *launch,
                             GError **error)
{
  const EbbView *grad = launch->inputs[0], *parameter = launch->outputs[0];
  Update update = { .grad_dtype = grad->dtype,
                    .dtype = parameter->dtype,
                    .grad = grad->data,
                    .parameter = parameter->data };

  if (launch->n_outputs > 1 && launch->outputs[1])
    update.exp_avg = launch->outputs[1]->data;
  update.grad_scale = (float) launch->params.sgd.grad_scale;
  update.lr = (float) launch->params.sgd.lr;
  update.momentum = (float) launch->params.sgd.momentum;
  update.weight_decay = (float) launch->params.sgd.weight_decay;
  update.dampening_rest = (float) (1.0 - launch->params.sgd.dampening);
  update.nesterov = launch->params.sgd.nesterov;
  update.first = launch->params.sgd.first;
  ebb_cpu_parallel_for_units (count_elements (parameter), 64, EBB_CPU_GRAIN / 4, sgd_range, &update);
  return TRUE;
}
