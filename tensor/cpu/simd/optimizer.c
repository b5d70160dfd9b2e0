/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "tensor/cpu/parallel-private.h"
#include "tensor/cpu/simd/moment-private.h"
#include "tensor/cpu/simd/simd-private.h"
#include "tensor/cpu/simd/vec-private.h"

/* One pass over parameters, their gradients and their states. The order of operations is PyTorch's, except that AdamW
 * multiplies by the reciprocal of the second moment's correction: a second division would limit the kernel. */

typedef struct
{
  EbbDType grad_dtype, dtype, moment_dtype;
  const void *grad;
  void *parameter;
  void *exp_avg, *exp_avg_sq; /* momentum: exp_avg */
  float *absmax[2];           /* of each block of 8-bit moments */
  float grad_scale;
  gint64 first_element;       /* in the full parameter */
  EbbPhilox philox, rounding; /* of the second moment in bf16; of a parameter in bf16 */
  gboolean rounds_at_random;
  const guint32 *draws; /* SGD: of the elements of this call */

  float beta1_rest, beta2, beta2_rest, eps, decay, l2, step_size, inverse_correction2; /* AdamW */
  float lr, momentum, weight_decay, dampening_rest;                                    /* SGD */
  gboolean nesterov, first;
} Update;

EBB_VEC_INLINE gsize
get_size (EbbDType moment_dtype)
{
  switch (moment_dtype)
    {
    case EBB_DTYPE_F32: return 4;
    case EBB_DTYPE_BF16: return 2;
    default: return 1;
    }
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

/* The parameter's elements [i, i + n), of which the first is element @k of those that @draws is for; NULL: rounded to
 * the nearest. */
EBB_VEC_INLINE void
store_parameter (EbbDType dtype,
                 void *parameter,
                 gint64 i,
                 gint64 n,
                 EbbVec p,
                 const guint32 *draws,
                 gint64 k)
{
  if (dtype == EBB_DTYPE_BF16 && draws != NULL)
    vec_store_u16 ((guint16 *) parameter + i, vec_to_bf16_stochastic (p, vec_moment_draw (draws, k)), n);
  else
    vec_store_as (dtype, parameter, i, n, p);
}

/* -- AdamW --------------------------------------------------------------------------------------------------------- */

/* Elements [begin, begin + n) of the parameter; the moments are their own, and the draws, for the second moment and for
 * the parameter, those of the block, if any. */
EBB_VEC_INLINE void
adamw_elements (const Update *u,
                EbbDType grad_dtype,
                EbbDType dtype,
                EbbDType moment_dtype,
                gint64 begin,
                gint64 n,
                void *exp_avg,
                void *exp_avg_sq,
                const guint32 *draws,
                const guint32 *rounding)
{
  EbbVec beta1_rest = vec_set1 (u->beta1_rest), beta2_rest = vec_set1 (u->beta2_rest);

  EBB_VEC_FOR (i, k, n)
    {
      EbbVec g = u->grad_scale * vec_load_as (grad_dtype, u->grad, begin + i, k);
      EbbVec w = vec_load_as (dtype, u->parameter, begin + i, k);
      EbbVec p = u->decay * w;
      EbbVec m = vec_load_as (moment_dtype, exp_avg, i, k);
      EbbVec v = vec_load_as (moment_dtype, exp_avg_sq, i, k);

      if (u->l2 != 0.0f)
        g = vec_fma (vec_set1 (u->l2), w, g);
      m = vec_fma (beta1_rest, g - m, m);
      v = vec_fma (beta2_rest * g, g, vec_rounded (u->beta2 * v));
      p -= u->step_size * m / (vec_sqrt (v) * u->inverse_correction2 + u->eps);
      store_parameter (dtype, u->parameter, begin + i, k, p, rounding, i);
      vec_store_as (moment_dtype, exp_avg, i, k, m);
      if (moment_dtype == EBB_DTYPE_BF16)
        vec_store_u16 ((guint16 *) exp_avg_sq + i, vec_to_bf16_stochastic (v, vec_moment_draw (draws, i)), k);
      else
        vec_store_as (moment_dtype, exp_avg_sq, i, k, v);
    }
}

/* The 8-bit moments of one block at a time are unpacked beside it. */
EBB_VEC_INLINE void
adamw_block (const Update *u,
             EbbDType grad_dtype,
             EbbDType dtype,
             EbbDType moment_dtype,
             gint64 block,
             gint64 n)
{
  gint64 begin = block * EBB_MOMENT_BLOCK;
  char *exp_avg = (char *) u->exp_avg + begin * (gint64) get_size (moment_dtype);
  char *exp_avg_sq = (char *) u->exp_avg_sq + begin * (gint64) get_size (moment_dtype);
  float m[EBB_MOMENT_BLOCK], v[EBB_MOMENT_BLOCK];
  guint32 draws[EBB_MOMENT_WORDS], words[EBB_MOMENT_WORDS], *rounding = NULL;

  if (moment_dtype == EBB_DTYPE_BF16)
    ebb_moment_draw (&u->philox, u->first_element + begin, draws);
  if (dtype == EBB_DTYPE_BF16 && u->rounds_at_random)
    ebb_moment_draw (&u->rounding, u->first_element + begin, rounding = words);
  if (moment_dtype != EBB_DTYPE_U8)
    {
      adamw_elements (u, grad_dtype, dtype, moment_dtype, begin, n, exp_avg, exp_avg_sq, draws, rounding);
      return;
    }
  ebb_moment_decode_block (TRUE, (const guint8 *) exp_avg, u->absmax[0][block], n, m);
  ebb_moment_decode_block (FALSE, (const guint8 *) exp_avg_sq, u->absmax[1][block], n, v);
  adamw_elements (u, grad_dtype, dtype, EBB_DTYPE_F32, begin, n, m, v, NULL, rounding);
  ebb_moment_encode_block (TRUE, m, n, (guint8 *) exp_avg, &u->absmax[0][block]);
  ebb_moment_encode_block (FALSE, v, n, (guint8 *) exp_avg_sq, &u->absmax[1][block]);
}

EBB_VEC_INLINE void
adamw_blocks (const Update *u,
              EbbDType grad_dtype,
              EbbDType dtype,
              EbbDType moment_dtype,
              gint64 begin,
              gint64 end)
{
  for (gint64 i = begin; i < end; i += EBB_MOMENT_BLOCK)
    adamw_block (u, grad_dtype, dtype, moment_dtype, i / EBB_MOMENT_BLOCK, MIN (end - i, EBB_MOMENT_BLOCK));
}

EBB_VEC_INLINE void
adamw_f32 (const Update *u,
           EbbDType grad_dtype,
           EbbDType dtype,
           gint64 begin,
           gint64 end)
{
  if (dtype == EBB_DTYPE_BF16 && u->rounds_at_random)
    adamw_blocks (u, grad_dtype, dtype, EBB_DTYPE_F32, begin, end);
  else
    adamw_elements (u, grad_dtype, dtype, EBB_DTYPE_F32, begin, end - begin, (float *) u->exp_avg + begin,
                    (float *) u->exp_avg_sq + begin, NULL, NULL);
}

EBB_VEC_INLINE void
adamw_bf16 (const Update *u,
            EbbDType grad_dtype,
            EbbDType dtype,
            gint64 begin,
            gint64 end)
{
  adamw_blocks (u, grad_dtype, dtype, EBB_DTYPE_BF16, begin, end);
}

EBB_VEC_INLINE void
adamw_u8 (const Update *u,
          EbbDType grad_dtype,
          EbbDType dtype,
          gint64 begin,
          gint64 end)
{
  adamw_blocks (u, grad_dtype, dtype, EBB_DTYPE_U8, begin, end);
}

static void
adamw_elements_of (const Update *update,
                   gint64 begin,
                   gint64 end)
{
  if (update->moment_dtype == EBB_DTYPE_F32)
    SPECIALIZE (adamw_f32, update, begin, end);
  else if (update->moment_dtype == EBB_DTYPE_BF16)
    SPECIALIZE (adamw_bf16, update, begin, end);
  else
    SPECIALIZE (adamw_u8, update, begin, end);
}

/* All items, whose blocks are counted one item after another. */
typedef struct
{
  const EbbLaunch *launch;
  Update update; /* of any of them */
} AdamW;

static gint64
count_blocks (const EbbLaunchItem *item)
{
  return (item->n_elements + EBB_MOMENT_BLOCK - 1) / EBB_MOMENT_BLOCK;
}

static void
adamw_range (gint64 begin,
             gint64 end,
             void *data)
{
  const AdamW *self = data;

  for (guint i = 0; i < self->launch->n_items && end > 0; i++)
    {
      const EbbLaunchItem *item = &self->launch->items[i];
      const gint64 n_blocks = count_blocks (item);
      Update update = self->update;

      if (begin < n_blocks)
        {
          update.grad = item->data[0];
          update.parameter = item->data[1];
          update.exp_avg = item->data[2];
          update.exp_avg_sq = item->data[3];
          update.absmax[0] = item->data[4];
          update.absmax[1] = item->data[5];
          update.first_element = item->first_element;
          update.philox.seed ^= item->philox_seed;
          update.rounding.seed ^= item->philox_seed;
          adamw_elements_of (&update, MAX (begin, 0) * EBB_MOMENT_BLOCK,
                             MIN (end * EBB_MOMENT_BLOCK, item->n_elements));
        }
      begin -= n_blocks;
      end -= n_blocks;
    }
}

/* The gradient's scale: of the host, times that of the device. */
static float
get_scale (const EbbLaunch *launch,
           double scale)
{
  const EbbView *factor = ebb_launch_get_input (launch, 0);

  return (float) (factor != NULL ? scale * (double) *(const float *) factor->data : scale);
}

/* Loshchilov, Hutter: Decoupled weight decay regularization, 2019: algorithm 2 */
EBB_SIMD_KERNEL (adamw)
{
  double lr = launch->params.adamw.lr;
  double beta1 = launch->params.adamw.beta1, beta2 = launch->params.adamw.beta2;
  double step = (double) launch->params.adamw.step;
  AdamW self = { .launch = launch };
  Update *update = &self.update;
  gint64 n_blocks = 0;

  update->grad_dtype = launch->params.adamw.grad_dtype;
  update->dtype = launch->params.adamw.dtype;
  update->moment_dtype = launch->params.adamw.moment_dtype;
  update->philox = launch->params.adamw.philox;
  update->rounding = launch->params.adamw.rounding;
  update->rounds_at_random = launch->params.adamw.rounds_at_random;
  update->grad_scale = get_scale (launch, launch->params.adamw.grad_scale);
  update->beta1_rest = (float) (1.0 - beta1);
  update->beta2 = (float) beta2;
  update->beta2_rest = (float) (1.0 - beta2);
  update->eps = (float) launch->params.adamw.eps;
  update->decay = (float) (1.0 - lr * launch->params.adamw.weight_decay);
  update->l2 = (float) launch->params.adamw.l2;
  update->step_size = (float) (lr / (1.0 - pow (beta1, step)));
  update->inverse_correction2 = (float) (1 / sqrt (1.0 - pow (beta2, step)));
  for (guint i = 0; i < launch->n_items; i++)
    n_blocks += count_blocks (&launch->items[i]);
  ebb_cpu_parallel_for (n_blocks, EBB_CPU_GRAIN / 4 / EBB_MOMENT_BLOCK, adamw_range, &self);
  return TRUE;
}

/* -- moments in 8 bits and back ------------------------------------------------------------------------------------ */

typedef struct
{
  float *values;
  guint8 *codes;
  float *absmax;
  gint64 n;
  gboolean is_signed, encodes;
} Conversion;

static void
convert_blocks (gint64 begin,
                gint64 end,
                void *data)
{
  const Conversion *c = data;

  for (gint64 block = begin; block < end; block++)
    {
      gint64 first = block * EBB_MOMENT_BLOCK;
      gint64 n = MIN (c->n - first, EBB_MOMENT_BLOCK);
      float values[EBB_MOMENT_BLOCK] = { 0 };

      if (c->encodes)
        {
          memcpy (values, c->values + first, (gsize) n * sizeof (float));
          ebb_moment_encode_block (c->is_signed, values, n, c->codes + first, &c->absmax[block]);
        }
      else
        {
          ebb_moment_decode_block (c->is_signed, c->codes + first, c->absmax[block], n, values);
          memcpy (c->values + first, values, (gsize) n * sizeof (float));
        }
    }
}

static void
convert (Conversion *conversion)
{
  gint64 n_blocks = (conversion->n + EBB_MOMENT_BLOCK - 1) / EBB_MOMENT_BLOCK;

  ebb_cpu_parallel_for (n_blocks, EBB_CPU_GRAIN / EBB_MOMENT_BLOCK, convert_blocks, conversion);
}

EBB_SIMD_KERNEL (moment_encode)
{
  Conversion conversion = { .values = launch->inputs[0]->data,
                            .codes = launch->outputs[0]->data,
                            .absmax = launch->outputs[1]->data,
                            .n = ebb_view_count_elements (launch->inputs[0]),
                            .is_signed = launch->params.moment.is_signed,
                            .encodes = TRUE };

  convert (&conversion);
  return TRUE;
}

EBB_SIMD_KERNEL (moment_decode)
{
  Conversion conversion = { .values = launch->outputs[0]->data,
                            .codes = launch->inputs[0]->data,
                            .absmax = launch->inputs[1]->data,
                            .n = ebb_view_count_elements (launch->outputs[0]),
                            .is_signed = launch->params.moment.is_signed };

  convert (&conversion);
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
      store_parameter (dtype, u->parameter, i, n, vec_fma (vec_set1 (-u->lr), g, p), u->draws, i - begin);
    }
}

static void
sgd_range (gint64 begin,
           gint64 end,
           void *data)
{
  const Update *update = data;
  Update block = *update;
  guint32 draws[EBB_MOMENT_WORDS];

  if (!update->rounds_at_random)
    {
      SPECIALIZE (sgd_elements, update, begin, end);
      return;
    }
  block.draws = draws;
  for (gint64 i = begin; i < end; i += EBB_MOMENT_BLOCK)
    {
      ebb_moment_draw (&update->rounding, update->first_element + i, draws);
      SPECIALIZE (sgd_elements, &block, i, MIN (end, i + EBB_MOMENT_BLOCK));
    }
}

EBB_SIMD_KERNEL (sgd)
{
  const EbbView *grad = launch->inputs[1], *parameter = launch->outputs[0];
  Update update = { .grad_dtype = grad->dtype,
                    .dtype = parameter->dtype,
                    .grad = grad->data,
                    .parameter = parameter->data };

  if (launch->n_outputs > 1 && launch->outputs[1])
    update.exp_avg = launch->outputs[1]->data;
  update.grad_scale = get_scale (launch, launch->params.sgd.grad_scale);
  update.lr = (float) launch->params.sgd.lr;
  update.momentum = (float) launch->params.sgd.momentum;
  update.weight_decay = (float) launch->params.sgd.weight_decay;
  update.dampening_rest = (float) (1.0 - launch->params.sgd.dampening);
  update.nesterov = launch->params.sgd.nesterov;
  update.first = launch->params.sgd.first;
  update.rounds_at_random = parameter->dtype == EBB_DTYPE_BF16 && launch->params.sgd.rounds_at_random;
  update.rounding = launch->params.sgd.rounding;
  update.first_element = launch->params.sgd.first_element;
  ebb_cpu_parallel_for_units (ebb_view_count_elements (parameter), 64, EBB_CPU_GRAIN / 4, sgd_range, &update);
  return TRUE;
}
