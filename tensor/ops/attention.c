/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/ops/attention.h"

#include <math.h>
#include <string.h>

#include "tensor/autograd/op-support-private.h"
#include "tensor/backend/backend-private.h"
#include "tensor/ops/product-private.h"
#include "tensor/ops/shape.h"

/* All ops give the kernel the same views: q, k, v, o as [B, H, T, D], whatever tensors they lie in. */

/* -- the form ----------------------------------------------------------------------------------------------------- */

G_DEFINE_BOXED_TYPE (EbbAttentionForm, ebb_attention_form, ebb_attention_form_copy, ebb_attention_form_free)

/**
 * ebb_attention_form_new:
 *
 * Makes the form of plain attention, all zeros, to be changed at will.
 *
 * Returns: (transfer full): the form
 */
EbbAttentionForm *
ebb_attention_form_new (void)
{
  return g_new0 (EbbAttentionForm, 1);
}

/**
 * ebb_attention_form_copy:
 * @self: a form
 *
 * Returns: (transfer full): a copy
 */
EbbAttentionForm *
ebb_attention_form_copy (const EbbAttentionForm *self)
{
  g_return_val_if_fail (self != NULL, NULL);

  return g_memdup2 (self, sizeof *self);
}

/**
 * ebb_attention_form_free:
 * @self: (transfer full): a form
 *
 * Frees a form.
 */
void
ebb_attention_form_free (EbbAttentionForm *self)
{
  g_free (self);
}

/* Positions up to here never overflow. */
#define MAX_POSITION ((gint64) 1 << 40)

static gboolean
set_parameters (EbbOpCall *call,
                const gint64 scores[4],
                gint64 width,
                const EbbAttentionForm *form,
                EbbGenerator *generator,
                GError **error)
{
  const EbbDevice *device = EBB_DEVICE_OF (call->inputs[0]);
  const gint64 most_width = device->backend->most_head_width;
  double p = form->dropout_p;

  if (most_width > 0 && width > most_width)
    return ebb_op_fail (call, error, EBB_ERROR_NOT_SUPPORTED,
                        "heads are %" G_GINT64_FORMAT " wide; on %s they must be at most %" G_GINT64_FORMAT
                        " wide; compute them on cpu",
                        width, device->name, most_width);
  if (!(p >= 0.0 && p <= 1.0))
    return ebb_op_fail (call, error, EBB_ERROR_INVALID_ARGUMENT, "dropout_p is %g; must be in [0, 1]", p);
  if (!(form->softcap >= 0.0 && isfinite (form->softcap)))
    return ebb_op_fail (call, error, EBB_ERROR_INVALID_ARGUMENT,
                        "softcap is %g; must be positive, or 0 for no cap", form->softcap);
  if (form->window < 0)
    return ebb_op_fail (call, error, EBB_ERROR_INVALID_ARGUMENT,
                        "window is %" G_GINT64_FORMAT "; must be positive, or 0 for no window", form->window);
  if (form->first_query < 0 || form->first_query > MAX_POSITION)
    return ebb_op_fail (call, error, EBB_ERROR_INVALID_ARGUMENT,
                        "first_query is %" G_GINT64_FORMAT "; must be the position of a key, 0 or more",
                        form->first_query);
  memset (&call->params, 0, sizeof call->params);
  call->params.attention.causal = form->causal != FALSE;
  call->params.attention.first_query = form->first_query;
  call->params.attention.window = form->window;
  call->params.attention.softcap = form->softcap;
  call->params.attention.scale = form->scale > 0.0 ? form->scale : 1.0 / sqrt ((double) MAX (width, 1));
  call->params.attention.p = p;
  if (p > 0.0)
    call->params.attention.philox =
        ebb_generator_take (generator, (guint64) (scores[0] * scores[1] * scores[2] * scores[3]));
  return TRUE;
}

/* -- mask and starts ---------------------------------------------------------------------------------------------- */

/* The mask as [B, H or 1, T or 1, S]; NULL if there is none. */
static const EbbView *
view_mask (EbbView *view,
           EbbTensor *mask,
           gint64 n_batches,
           gint64 n_keys)
{
  int missing;

  if (mask == NULL)
    return NULL;
  missing = 4 - mask->view.n_dims;
  *view = mask->view;
  view->n_dims = 4;
  for (int i = 0; i < 4; i++)
    {
      view->shape[i] = i < missing ? 1 : mask->view.shape[i - missing];
      view->strides[i] = view->shape[i] == 1 ? 0 : mask->view.strides[i - missing];
    }
  view->shape[0] = n_batches;
  view->shape[3] = n_keys;
  return view;
}

static gboolean
check_mask (EbbOpCall *call,
            guint index,
            const gint64 scores[4],
            GError **error)
{
  EbbTensor *mask = call->inputs[index];
  gboolean fits;

  if (mask == NULL)
    return TRUE;
  fits = mask->view.n_dims <= 4;
  for (int i = 0; fits && i < mask->view.n_dims; i++)
    {
      gint64 size = mask->view.shape[i];

      fits = size == 1 || size == scores[4 - mask->view.n_dims + i];
    }
  if (!fits)
    return ebb_op_fail (call, error, EBB_ERROR_SHAPE, "mask is %s; must broadcast to [B, H, T, S], here %s",
                        ebb_show_shape (mask), ebb_in_message (ebb_shape_to_string (scores, 4)));
  if (mask->view.dtype != EBB_DTYPE_BOOL && mask->view.dtype != EBB_DTYPE_F32 && mask->view.dtype != EBB_DTYPE_BF16)
    return ebb_op_fail (call, error, EBB_ERROR_DTYPE,
                        "mask is %s; must be bool (true: attend), or f32 or bf16 (added to the scores)",
                        ebb_dtype_get_name (mask->view.dtype));
  if (call->needs_grad && ebb_tensor_needs_grad (mask))
    return ebb_op_fail (call, error, EBB_ERROR_NOT_SUPPORTED,
                        "mask requires a gradient, which is not computed; detach it");
  return TRUE;
}

/* The starts as [B, T]; NULL if there are none. */
static const EbbView *
view_starts (EbbView *view,
             EbbTensor *starts,
             const EbbView *q)
{
  gint64 shape[] = { q->shape[0], q->shape[2] };

  if (starts == NULL)
    return NULL;
  ebb_view_expand_to (view, &starts->view, shape, 2);
  return view;
}

static gboolean
check_starts (EbbOpCall *call,
              guint index,
              const gint64 scores[4],
              GError **error)
{
  EbbTensor *starts = call->inputs[index];
  const gint64 shape[] = { scores[0], scores[2] };
  gboolean fits;

  if (starts == NULL)
    return TRUE;
  fits = starts->view.n_dims <= 2;
  for (int i = 0; fits && i < starts->view.n_dims; i++)
    {
      gint64 size = starts->view.shape[i];

      fits = size == 1 || size == shape[2 - starts->view.n_dims + i];
    }
  if (!fits)
    return ebb_op_fail (call, error, EBB_ERROR_SHAPE, "starts is %s; must broadcast to [B, T], here %s",
                        ebb_show_shape (starts), ebb_in_message (ebb_shape_to_string (shape, 2)));
  if (starts->view.dtype != EBB_DTYPE_I64 && starts->view.dtype != EBB_DTYPE_I32)
    return ebb_op_fail (call, error, EBB_ERROR_DTYPE,
                        "starts is %s; must be i64 or i32 (for each token where its document begins)",
                        ebb_dtype_get_name (starts->view.dtype));
  return TRUE;
}

/* Adds logsumexp as the second result, saves the first @n_inputs operands and both results, and runs the op. */
static EbbTensor *
finish (EbbOpCall *call,
        guint n_inputs,
        const gint64 scores[4],
        GError **error)
{
  ebb_op_add_output (call, EBB_DTYPE_F32, (gint64[]){ scores[0], scores[1], scores[2], 2 }, 4);
  call->non_differentiable = 1u << 1;
  for (guint i = 0; i < n_inputs; i++)
    if (call->inputs[i] != NULL)
      ebb_op_save_input (call, i);
    else
      ebb_op_save_nothing (call);
  ebb_op_save_output (call, 0);
  ebb_op_save_output (call, 1);
  return ebb_op_finish1 (call, error);
}

/* -- launches ----------------------------------------------------------------------------------------------------- */

typedef struct
{
  EbbView q, k, v, o;
} Views;

static gboolean
launch_forward (EbbDevice *device,
                const EbbKernelParams *params,
                Views *views,
                EbbTensor *mask,
                EbbTensor *starts,
                EbbTensor *logsumexp,
                GError **error)
{
  EbbView mask_view, starts_view;

  return EBB_LAUNCH_VIEWS (device, EBB_KERNEL_ATTENTION, params, 5, error, &views->q, &views->k, &views->v,
                           view_mask (&mask_view, mask, views->q.shape[0], views->k.shape[2]),
                           view_starts (&starts_view, starts, &views->q), &views->o, &logsumexp->view);
}

static gboolean
launch_backward (EbbDevice *device,
                 const EbbKernelParams *params,
                 const EbbView *grad,
                 Views *views,
                 EbbTensor *mask,
                 EbbTensor *starts,
                 EbbTensor *logsumexp,
                 EbbView *dq,
                 EbbView *dk,
                 EbbView *dv,
                 GError **error)
{
  EbbView mask_view, starts_view;

  return EBB_LAUNCH_VIEWS (device, EBB_KERNEL_ATTENTION_GRAD, params, 8, error, grad, &views->q, &views->k, &views->v,
                           &views->o, &logsumexp->view,
                           view_mask (&mask_view, mask, views->q.shape[0], views->k.shape[2]),
                           view_starts (&starts_view, starts, &views->q), dq, dk, dv);
}

/* The gradient of the output as the kernel reads it: any strides but the last, which is 1. Owned. */
static EbbTensor *
take_output_grad (EbbBackward *ctx,
                  EbbDType dtype,
                  GError **error)
{
  EbbTensor *grad = ctx->grad_outputs[0];

  if (grad->view.dtype == dtype && grad->view.n_dims > 0 && grad->view.strides[grad->view.n_dims - 1] == 1)
    return ebb_backward_steal_grad (ctx, 0);
  return ebb_backward_take_grad (ctx, 0, dtype, error);
}

/* -- attention and scaled_dot_product_attention ------------------------------------------------------------------- */

enum
{
  SDPA_QUERY,
  SDPA_KEY,
  SDPA_VALUE,
  SDPA_MASK,
  SDPA_STARTS,
  SDPA_OUTPUT,
  SDPA_LOGSUMEXP
};

/* The result [B, H, T, D] in its memory, which is [B, T, H, D] if @by_token. */
static void
view_output (EbbView *view,
             EbbTensor *output,
             gboolean by_token)
{
  *view = output->view;
  if (!by_token)
    return;
  for (int i = 1; i < 3; i++)
    {
      view->shape[i] = output->view.shape[3 - i];
      view->strides[i] = output->view.strides[3 - i];
    }
}

static gboolean
sdpa_run (EbbOpCall *call,
          GError **error)
{
  Views views = { .q = call->inputs[0]->view, .k = call->inputs[1]->view, .v = call->inputs[2]->view };

  view_output (&views.o, call->outputs[0], call->extra.i[0] != 0);
  return launch_forward (EBB_DEVICE_OF (call->outputs[0]), &call->params, &views, call->inputs[3], call->inputs[4],
                         call->outputs[1], error);
}

/* New memory for the gradient of @like [B, H, T, D], with heads and positions in the order in memory that @like has:
 * where that is a transposed view, the gradient becomes dense again when it passes the transposition. */
static EbbTensor *
new_head_grad (EbbTensor *like,
               EbbDType dtype,
               GError **error)
{
  const gint64 *s = like->view.shape;
  gint64 shape[4] = { s[0], s[1], s[2], s[3] };
  gboolean swap = like->view.strides[1] < like->view.strides[2];
  g_autoptr (EbbTensor) dense = NULL;

  if (swap)
    {
      shape[1] = s[2];
      shape[2] = s[1];
    }
  dense = ebb_tensor_new_uninitialized (shape, 4, dtype, EBB_DEVICE_OF (like), error);
  if (dense == NULL || !swap)
    return g_steal_pointer (&dense);
  return ebb_tensor_new_view (dense->storage, 0, s, (gint64[]){ s[1] * s[2] * s[3], s[3], s[1] * s[3], 1 }, 4, dtype);
}

static gboolean
sdpa_backward (EbbBackward *ctx,
               GError **error)
{
  Views views;
  g_autoptr (EbbTensor) grad = NULL;
  EbbView *outputs[3], grad_view;

  if (ctx->grad_outputs[0] == NULL)
    return TRUE;
  views.q = ctx->saved[SDPA_QUERY]->view;
  views.k = ctx->saved[SDPA_KEY]->view;
  views.v = ctx->saved[SDPA_VALUE]->view;
  view_output (&views.o, ctx->saved[SDPA_OUTPUT], ctx->extra_i[0] != 0);
  grad = take_output_grad (ctx, views.q.dtype, error);
  if (grad == NULL)
    return FALSE;
  for (guint i = 0; i < 3; i++)
    {
      ctx->grad_inputs[i] = new_head_grad (ctx->saved[i], views.q.dtype, error);
      if (ctx->grad_inputs[i] == NULL)
        return FALSE;
      outputs[i] = &ctx->grad_inputs[i]->view;
    }
  view_output (&grad_view, grad, ctx->extra_i[0] != 0);
  if (!launch_backward (EBB_DEVICE_OF (grad), ctx->params, &grad_view, &views, ctx->saved[SDPA_MASK],
                        ctx->saved[SDPA_STARTS], ctx->saved[SDPA_LOGSUMEXP], outputs[0], outputs[1], outputs[2],
                        error))
    return FALSE;
  for (guint i = 0; i < 3; i++)
    if (!(ctx->needs & (1u << i)))
      g_clear_pointer (&ctx->grad_inputs[i], ebb_tensor_unref);
  return TRUE;
}

static const EbbOp op_attention = { "attention", EBB_OP_ATTENTION, EBB_KERNEL_ATTENTION, sdpa_run, sdpa_backward };
static const EbbOp op_sdpa = {
  "scaled_dot_product_attention", EBB_OP_ATTENTION, EBB_KERNEL_ATTENTION, sdpa_run, sdpa_backward
};

static gboolean
sdpa_check (EbbOpCall *call,
            GError **error)
{
  const EbbView *q = &call->inputs[0]->view, *k = &call->inputs[1]->view, *v = &call->inputs[2]->view;
  gboolean fits = q->n_dims == 4 && k->n_dims == 4 && ebb_shapes_equal (k, v);

  fits = fits && q->shape[0] == k->shape[0] && q->shape[3] == k->shape[3] && q->shape[3] > 0;
  fits = fits && (q->shape[1] > 0 ? k->shape[1] > 0 && q->shape[1] % k->shape[1] == 0 : k->shape[1] == 0);
  if (!fits)
    return ebb_op_fail (call, error, EBB_ERROR_SHAPE,
                        "query is %s, key %s, value %s; must be [B, H, T, D], [B, G, S, D], [B, G, S, D] with H a "
                        "multiple of G",
                        ebb_show_shape (call->inputs[0]), ebb_show_shape (call->inputs[1]),
                        ebb_show_shape (call->inputs[2]));
  return TRUE;
}

/* The result in memory as [B, T, H, D] if @by_token, else as [B, H, T, D]. */
static EbbTensor *
attend (const EbbOp *op,
        gboolean by_token,
        EbbTensor *query,
        EbbTensor *key,
        EbbTensor *value,
        EbbTensor *mask,
        EbbTensor *starts,
        const EbbAttentionForm *form,
        EbbGenerator *generator,
        GError **error)
{
  EbbOpCall call;
  EbbDType dtype;
  gint64 scores[4], shape[4];

  if (!ebb_op_begin (&call, op, error, 3, query, key, value) || !ebb_op_add_optional (&call, mask, error)
      || !ebb_op_add_optional (&call, starts, error) || !sdpa_check (&call, error))
    return NULL;
  memcpy (scores, query->view.shape, sizeof scores);
  scores[3] = key->view.shape[2];
  if (!check_mask (&call, 3, scores, error) || !check_starts (&call, 4, scores, error)
      || !ebb_op_cast_for_product (&call, 3, &dtype, error))
    return NULL;
  for (guint i = 0; i < 3; i++)
    if (call.inputs[i]->view.strides[3] != 1 && !ebb_op_contiguous (&call, i, error))
      return NULL;
  if (!set_parameters (&call, scores, query->view.shape[3], form, generator, error))
    return NULL;
  call.extra.i[0] = by_token;
  memcpy (shape, query->view.shape, sizeof shape);
  shape[1] = query->view.shape[by_token ? 2 : 1];
  shape[2] = query->view.shape[by_token ? 1 : 2];
  ebb_op_add_output (&call, dtype, shape, 4);
  return finish (&call, 5, scores, error);
}

/**
 * ebb_attention:
 * @query: (nullable): [B, H, T, D]
 * @key: (nullable): [B, G, S, D], H a multiple of G: each of the G heads serves H / G heads of @query in turn
 * @value: (nullable): [B, G, S, D]
 * @mask: (nullable): as for ebb_scaled_dot_product_attention()
 * @starts: (nullable): i64 or i32, broadcast to [B, T]: for each query the position of the first key that it may attend
 *   to, as where documents are packed in a row or prompts begin with padding
 * @form: (nullable): the kind of attention; %NULL for plain attention
 * @generator: (nullable): where dropout draws from; %NULL for the thread's default
 * @error: return location for an error
 *
 * Computes softmax (scale Q K^T + mask) V as ebb_scaled_dot_product_attention() does, with more choices. Keys are
 * numbered by position from 0 on, and query t has position first_query + t. With a window w, the query at position p
 * attends to keys from p - w + 1 on. If causal, it attends to keys up to p. With @starts it attends to keys from its
 * start on. A negative start counts as 0; a query before its own start attends to nothing and gives 0. Keys that no
 * query attends to cost no time, and there is no mask of all queries and keys. With a soft cap, the mask is added to
 * capped scores.
 *
 * Where the heads of a token lie side by side in memory in @query, a transposed [B, T, H, D], they do so in the result:
 * then ebb_transpose() and ebb_reshape() to [B, T, H D] copy nothing.
 *
 * Returns: (transfer full) (nullable): [B, H, T, D]; %NULL with %EBB_ERROR_SHAPE, %EBB_ERROR_DTYPE,
 *   %EBB_ERROR_INVALID_ARGUMENT for a value in @form that is out of range, %EBB_ERROR_NOT_SUPPORTED for a mask that
 *   requires a gradient
 */
EbbTensor *
ebb_attention (EbbTensor *query,
               EbbTensor *key,
               EbbTensor *value,
               EbbTensor *mask,
               EbbTensor *starts,
               const EbbAttentionForm *form,
               EbbGenerator *generator,
               GError **error)
{
  static const EbbAttentionForm plain = { 0 };
  gboolean by_token = query != NULL && query->view.n_dims == 4 && query->view.strides[1] < query->view.strides[2];
  g_autoptr (EbbTensor) result = attend (&op_attention, by_token, query, key, value, mask, starts,
                                         form != NULL ? form : &plain, generator, error);

  return by_token ? ebb_transpose (result, 1, 2, error) : g_steal_pointer (&result);
}

/**
 * ebb_scaled_dot_product_attention:
 * @query: (nullable): [B, H, T, D]
 * @key: (nullable): [B, G, S, D], H a multiple of G: each of the G heads serves H / G heads of @query in turn
 * @value: (nullable): [B, G, S, D]
 * @mask: (nullable): broadcast to [B, H, T, S]: bool, where true means that the query may attend to the key, or f32 or
 *   bf16, which is added to the scaled scores
 * @causal: whether query t attends to keys s <= t only
 * @scale: what scores are multiplied by; 0 or less for 1 / sqrt (D)
 * @dropout_p: the probability in [0, 1] with which a weight of attention is dropped; the others are divided by 1 - p
 * @generator: (nullable): where dropout draws from; %NULL for the thread's default
 * @error: return location for an error
 *
 * Computes softmax (scale Q K^T + mask) V (Vaswani et al., 2017, equation 1) without ever holding the T x S scores
 * (Dao et al., FlashAttention, 2022). Any strides will do; the data is not copied if the last one is 1. A query that
 * may attend to no key gives 0. All are cast to the dtype of autocast when that is on, else to f32 if one is f32.
 * Backward keeps @query, @key, @value, the result and f32 [B, H, T, 2]. No gradient is computed for @mask.
 *
 * Returns: (transfer full) (nullable): [B, H, T, D]; %NULL with %EBB_ERROR_SHAPE, %EBB_ERROR_DTYPE,
 *   %EBB_ERROR_INVALID_ARGUMENT for a probability out of range, %EBB_ERROR_NOT_SUPPORTED for a mask that requires a
 *   gradient
 */
EbbTensor *
ebb_scaled_dot_product_attention (EbbTensor *query,
                                  EbbTensor *key,
                                  EbbTensor *value,
                                  EbbTensor *mask,
                                  gboolean causal,
                                  double scale,
                                  double dropout_p,
                                  EbbGenerator *generator,
                                  GError **error)
{
  EbbAttentionForm form = { .causal = causal, .scale = scale, .dropout_p = dropout_p };

  return attend (&op_sdpa, FALSE, query, key, value, mask, NULL, &form, generator, error);
}

/* -- self_attention ----------------------------------------------------------------------------------------------- */

enum
{
  SELF_QKV,
  SELF_MASK,
  SELF_STARTS,
  SELF_OUTPUT,
  SELF_LOGSUMEXP
};

/* The @part-th of the @n_parts that lie side by side in the last dimension of @packed [B, T, n_parts C], as [B, H, T,
 * D].
 * @packed may have any strides but the last. */
static void
view_heads (EbbView *view,
            EbbTensor *packed,
            gint64 n_heads,
            gint64 part,
            gint64 n_parts)
{
  const EbbView *p = &packed->view;
  gint64 width = p->shape[2] / n_parts;

  view->data = (char *) p->data + part * width * (gint64) ebb_dtype_get_size (p->dtype);
  view->dtype = p->dtype;
  view->n_dims = 4;
  view->shape[0] = p->shape[0];
  view->shape[1] = n_heads;
  view->shape[2] = p->shape[1];
  view->shape[3] = width / n_heads;
  view->strides[0] = p->strides[0];
  view->strides[1] = width / n_heads;
  view->strides[2] = p->strides[1];
  view->strides[3] = 1;
}

static void
view_packed (Views *views,
             EbbTensor *qkv,
             EbbTensor *output,
             gint64 n_heads)
{
  view_heads (&views->q, qkv, n_heads, 0, 3);
  view_heads (&views->k, qkv, n_heads, 1, 3);
  view_heads (&views->v, qkv, n_heads, 2, 3);
  view_heads (&views->o, output, n_heads, 0, 1);
}

static gboolean
self_run (EbbOpCall *call,
          GError **error)
{
  Views views;

  view_packed (&views, call->inputs[0], call->outputs[0], call->extra.i[0]);
  return launch_forward (EBB_DEVICE_OF (call->outputs[0]), &call->params, &views, call->inputs[1], call->inputs[2],
                         call->outputs[1], error);
}

static gboolean
self_backward (EbbBackward *ctx,
               GError **error)
{
  EbbTensor *qkv = ctx->saved[SELF_QKV];
  gint64 n_heads = ctx->extra_i[0];
  g_autoptr (EbbTensor) grad = NULL;
  EbbView grad_view;
  Views views, grads;

  if (ctx->grad_outputs[0] == NULL)
    return TRUE;
  grad = take_output_grad (ctx, qkv->view.dtype, error);
  if (grad == NULL)
    return FALSE;
  ctx->grad_inputs[0] =
      ebb_tensor_new_uninitialized (EBB_FULL_SHAPE (qkv), qkv->view.dtype, EBB_DEVICE_OF (qkv), error);
  if (ctx->grad_inputs[0] == NULL)
    return FALSE;
  view_packed (&views, qkv, ctx->saved[SELF_OUTPUT], n_heads);
  view_packed (&grads, ctx->grad_inputs[0], ctx->saved[SELF_OUTPUT], n_heads);
  view_heads (&grad_view, grad, n_heads, 0, 1);
  return launch_backward (EBB_DEVICE_OF (grad), ctx->params, &grad_view, &views, ctx->saved[SELF_MASK],
                          ctx->saved[SELF_STARTS], ctx->saved[SELF_LOGSUMEXP], &grads.q, &grads.k, &grads.v, error);
}

static const EbbOp op_self = { "self_attention", EBB_OP_ATTENTION, EBB_KERNEL_ATTENTION, self_run, self_backward };

/**
 * ebb_self_attention_full:
 * @qkv: (nullable): [B, T, 3 C]: queries, keys and values side by side, each of @n_heads heads of C / @n_heads
 * @n_heads: how many heads
 * @mask: (nullable): broadcast to [B, H, T, T]; see ebb_scaled_dot_product_attention()
 * @starts: (nullable): i64 or i32, broadcast to [B, T]; see ebb_attention()
 * @form: (nullable): the kind of attention, in which positions begin with 0; %NULL for plain attention
 * @generator: (nullable): where dropout draws from; %NULL for the thread's default
 * @error: return location for an error
 *
 * Does what ebb_self_attention() does, with the choices of ebb_attention().
 *
 * Returns: (transfer full) (nullable): [B, T, C]; %NULL with %EBB_ERROR_INVALID_ARGUMENT if @form has a first query
 *   other than 0, and the errors of ebb_self_attention() and ebb_attention()
 */
EbbTensor *
ebb_self_attention_full (EbbTensor *qkv,
                         guint n_heads,
                         EbbTensor *mask,
                         EbbTensor *starts,
                         const EbbAttentionForm *form,
                         EbbGenerator *generator,
                         GError **error)
{
  static const EbbAttentionForm plain = { 0 };
  EbbOpCall call;
  EbbDType dtype;
  gint64 scores[4];
  const gint64 *s;

  if (form == NULL)
    form = &plain;
  if (!ebb_op_begin (&call, &op_self, error, 1, qkv) || !ebb_op_add_optional (&call, mask, error)
      || !ebb_op_add_optional (&call, starts, error))
    return NULL;
  s = qkv->view.shape;
  if (qkv->view.n_dims != 3 || n_heads == 0 || s[2] == 0 || s[2] % (3 * (gint64) n_heads) != 0)
    return ebb_op_fail_null (&call, error, EBB_ERROR_SHAPE,
                             "qkv is %s with %u heads; must be [B, T, 3 C] with C a multiple of the heads",
                             ebb_show_shape (qkv), n_heads);
  if (form->first_query != 0)
    return ebb_op_fail_null (&call, error, EBB_ERROR_INVALID_ARGUMENT,
                             "first_query is %" G_GINT64_FORMAT
                             "; must be 0 where keys and queries are of the same tokens",
                             form->first_query);
  scores[0] = s[0];
  scores[1] = n_heads;
  scores[2] = scores[3] = s[1];
  if (!check_mask (&call, 1, scores, error) || !check_starts (&call, 2, scores, error)
      || !ebb_op_cast_for_product (&call, 1, &dtype, error)
      || (call.inputs[0]->view.strides[2] != 1 && !ebb_op_contiguous (&call, 0, error))
      || !set_parameters (&call, scores, s[2] / 3 / n_heads, form, generator, error))
    return NULL;
  call.extra.i[0] = n_heads;
  ebb_op_add_output (&call, dtype, (gint64[]){ s[0], s[1], s[2] / 3 }, 3);
  return finish (&call, 3, scores, error);
}

/**
 * ebb_self_attention:
 * @qkv: (nullable): [B, T, 3 C]: queries, keys and values side by side, each of @n_heads heads of C / @n_heads
 * @n_heads: how many heads
 * @mask: (nullable): broadcast to [B, H, T, T]; see ebb_scaled_dot_product_attention()
 * @causal: whether position t attends to positions up to t only
 * @scale: what scores are multiplied by; 0 or less for 1 / sqrt (C / @n_heads)
 * @dropout_p: the probability in [0, 1] with which a weight of attention is dropped
 * @generator: (nullable): where dropout draws from; %NULL for the thread's default
 * @error: return location for an error
 *
 * Multi-head attention of a sequence to itself (Vaswani et al., 2017, section 3.2.2), between the projection to @qkv
 * and the one of the result: ebb_scaled_dot_product_attention() on views of @qkv, without splitting, transposing or
 * joining anything. Draws and results are the same. Backward keeps @qkv, the result and f32 [B, H, T, 2].
 *
 * Returns: (transfer full) (nullable): [B, T, C]; %NULL with %EBB_ERROR_SHAPE if @qkv is of another shape or its heads
 * do not come out even, and the errors of ebb_scaled_dot_product_attention()
 */
EbbTensor *
ebb_self_attention (EbbTensor *qkv,
                    guint n_heads,
                    EbbTensor *mask,
                    gboolean causal,
                    double scale,
                    double dropout_p,
                    EbbGenerator *generator,
                    GError **error)
{
  EbbAttentionForm form = { .causal = causal, .scale = scale, .dropout_p = dropout_p };

  return ebb_self_attention_full (qkv, n_heads, mask, NULL, &form, generator, error);
}
