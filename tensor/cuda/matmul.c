/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Matrix products by cuBLASLt, by the plan of their shape; operands that it does not take go through workspace. */
#include "tensor/cuda/matmul-private.h"

EBB_CUDA_KERNEL (copy);
EBB_CUDA_KERNEL (fill);
EBB_CUDA_KERNEL (binary);

/* -- workspace ----------------------------------------------------------------------------------------------------- */

/* Offsets of what lies in workspace, after cuBLASLt's own; -1: nothing. An operand that does not begin at a multiple of
 * 16 bytes is copied as it stands, gaps and all: the plan then is the one of its shape. Storages begin at multiples of
 * EBB_DEVICE_ALIGNMENT, so this follows from where the view begins in its storage, wherever that lies. */
typedef struct
{
  gint64 a, b, c, bias;
  gsize size;
} Places;

static gboolean
is_misaligned (const void *data)
{
  return (gsize) data % EBB_CUDA_BLAS_ALIGNMENT != 0;
}

static gint64
place (Places *self,
       gsize size)
{
  const gsize offset = self->size;

  self->size += (size + EBB_CUDA_ALIGNMENT - 1) / EBB_CUDA_ALIGNMENT * EBB_CUDA_ALIGNMENT;
  return (gint64) offset;
}

static gint64
place_matrix (Places *self,
              const EbbCudaPlan *plan,
              const EbbCudaMatrix *matrix,
              gboolean is_wanted)
{
  if (!is_wanted)
    return -1;
  return place (self, (gsize) ebb_cuda_matrix_get_extent (matrix, &plan->product)
                          * ebb_cuda_dtype_get_size (matrix->dtype));
}

static void
places_init (Places *self,
             const EbbCudaPlan *plan,
             const EbbLaunch *launch)
{
  const EbbView *bias = launch->n_inputs > 2 ? launch->inputs[2] : NULL;

  self->size = 0;
  place (self, plan->workspace);
  self->a = place_matrix (self, plan, &plan->a, plan->copies_a || is_misaligned (launch->inputs[0]->data));
  self->b = place_matrix (self, plan, &plan->b, plan->copies_b || is_misaligned (launch->inputs[1]->data));
  self->c = place_matrix (self, plan, &plan->c, plan->copies_c || is_misaligned (launch->outputs[0]->data));
  self->bias = -1;
  if (bias != NULL && (plan->copies_bias || is_misaligned (bias->data)))
    self->bias = place (self, (gsize) plan->product.n * ebb_cuda_dtype_get_size (plan->c.dtype));
}

static gboolean
is_empty (const EbbView *view)
{
  for (int i = 0; i < view->n_dims; i++)
    if (view->shape[i] == 0)
      return TRUE;
  return FALSE;
}

static gboolean
has_no_terms (const EbbLaunch *launch)
{
  return launch->inputs[0]->shape[launch->inputs[0]->n_dims - 1] == 0;
}

/* A sum without terms that adds a bias of another dtype: both in f32, rounded once. */
static gboolean
adds_converted_bias (const EbbLaunch *launch)
{
  return has_no_terms (launch) && launch->params.matmul.accumulate && launch->n_inputs > 2 && launch->inputs[2] != NULL
         && launch->inputs[2]->dtype != launch->outputs[0]->dtype;
}

/* @view as f32, dense, without data. */
static EbbView
get_dense (const EbbView *view)
{
  EbbView dense = *view;
  gint64 stride = 1;

  dense.data = NULL;
  dense.dtype = EBB_DTYPE_F32;
  for (int i = dense.n_dims - 1; i >= 0; i--)
    {
      dense.strides[i] = stride;
      stride *= dense.shape[i];
    }
  return dense;
}

static void
places_init_without_terms (Places *self,
                           const EbbLaunch *launch)
{
  const EbbView c = get_dense (launch->outputs[0]);

  *self = (Places){ .a = -1, .b = -1 };
  self->c = place (self, (gsize) (c.shape[0] * c.strides[0]) * sizeof (float));
  self->bias = place (self, (gsize) c.shape[c.n_dims - 1] * sizeof (float));
}

gsize
ebb_cuda_matmul_get_workspace (EbbCudaDevice *device,
                               const EbbLaunch *launch)
{
  const EbbCudaPlan *plan;
  Places places = { .size = 0 };
  int previous;

  if (is_empty (launch->outputs[0]))
    return 0;
  if (adds_converted_bias (launch))
    places_init_without_terms (&places, launch);
  if (has_no_terms (launch) || !ebb_cuda_begin (device, &previous, NULL))
    return places.size;
  plan = ebb_cuda_plan_find (device, launch);
  if (plan != NULL)
    places_init (&places, plan, launch);
  ebb_cuda_end (device, previous);
  return places.size;
}

/* -- copies -------------------------------------------------------------------------------------------------------- */

static cudaError_t
copy (const EbbView *x,
      EbbView *y,
      const EbbCudaQueue *queue)
{
  const EbbLaunch launch = {
    .kernel = EBB_KERNEL_COPY,
    .n_inputs = 1,
    .n_outputs = 1,
    .inputs = { x },
    .outputs = { y }
  };

  return ebb_cuda_copy (&launch, queue);
}

static cudaError_t
fill_with_zeros (EbbView *y,
                 const EbbCudaQueue *queue)
{
  const EbbLaunch launch = { .kernel = EBB_KERNEL_FILL, .n_outputs = 1, .outputs = { y } };

  return ebb_cuda_fill (&launch, queue);
}

/* y = a + b: a sum is the first of the operations. */
static cudaError_t
add (const EbbView *a,
     const EbbView *b,
     EbbView *y,
     const EbbCudaQueue *queue)
{
  const EbbLaunch launch = {
    .kernel = EBB_KERNEL_BINARY,
    .n_inputs = 2,
    .n_outputs = 1,
    .inputs = { a, b },
    .outputs = { y }
  };

  return ebb_cuda_binary (&launch, queue);
}

/* All that @matrix has, without the dimensions of the batch over which it does not vary. */
static void
get_view (EbbView *view,
          const EbbCudaMatrix *matrix,
          const EbbCudaProduct *product,
          void *data)
{
  int n = 0;

  *view = (EbbView){ .data = data, .dtype = (EbbDType) matrix->dtype };
  for (gint64 i = 0; i < product->n_batch; i++)
    if (matrix->batch[i] != 0)
      {
        view->shape[n] = product->batch[i];
        view->strides[n++] = matrix->batch[i];
      }
  view->shape[n] = matrix->rows;
  view->strides[n++] = matrix->row;
  view->shape[n] = matrix->columns;
  view->strides[n++] = matrix->column;
  view->n_dims = n;
}

/* From @source with the strides of @from to @destination with those of @to. */
static cudaError_t
copy_matrix (const EbbCudaProduct *product,
             const EbbCudaMatrix *from,
             const void *source,
             const EbbCudaMatrix *to,
             void *destination,
             gboolean as_it_stands,
             const EbbCudaQueue *queue)
{
  EbbView x, y;

  if (as_it_stands)
    return cudaMemcpyAsync (destination, source,
                            (gsize) ebb_cuda_matrix_get_extent (from, product) * ebb_cuda_dtype_get_size (from->dtype),
                            cudaMemcpyDeviceToDevice, queue->stream);
  get_view (&x, from, product, (void *) source);
  get_view (&y, to, product, destination);
  return copy (&x, &y, queue);
}

/* *data becomes the operand's copy in workspace, if it has a place there. */
static cudaError_t
bring (const EbbCudaPlan *plan,
       const EbbCudaMatrix *from,
       const EbbCudaMatrix *to,
       gboolean changes,
       gint64 offset,
       const EbbLaunch *launch,
       const void **data,
       const EbbCudaQueue *queue)
{
  char *copy = (char *) launch->workspace + offset;
  const void *source = *data;

  if (offset < 0)
    return cudaSuccess;
  *data = copy;
  return copy_matrix (&plan->product, from, source, to, copy, !changes, queue);
}

static cudaError_t
bring_bias (const EbbCudaPlan *plan,
            gint64 offset,
            const EbbLaunch *launch,
            const void **data,
            const EbbCudaQueue *queue)
{
  const EbbView x = { .data = (void *) *data,
                      .dtype = (EbbDType) plan->product.bias_dtype,
                      .n_dims = 1,
                      .shape = { plan->product.n },
                      .strides = { plan->product.bias_stride } };
  EbbView y = x;

  if (offset < 0)
    return cudaSuccess;
  y.data = (char *) launch->workspace + offset;
  y.dtype = (EbbDType) plan->c.dtype;
  y.strides[0] = 1;
  *data = y.data;
  return copy (&x, &y, queue);
}

/* -- running ------------------------------------------------------------------------------------------------------- */

static cudaError_t
check (EbbCudaDevice *device,
       cublasStatus_t status)
{
  if (G_LIKELY (status == CUBLAS_STATUS_SUCCESS))
    return cudaSuccess;
  device->blas_status = cublasLtGetStatusName (status);
  switch (status)
    {
    case CUBLAS_STATUS_NOT_SUPPORTED: return cudaErrorNotSupported;
    case CUBLAS_STATUS_ALLOC_FAILED: return cudaErrorMemoryAllocation;
    case CUBLAS_STATUS_INVALID_VALUE: return cudaErrorInvalidValue;
    default: return cudaErrorUnknown;
    }
}

/* Elements from the start of the batch to matrix @index of the outer dimensions. */
static gint64
get_offset (const EbbCudaPlan *plan,
            const EbbCudaMatrix *matrix,
            gint64 index)
{
  gint64 offset = 0;

  for (int i = plan->n_outer - 1; i >= 0; i--)
    {
      offset += index % plan->product.batch[i] * matrix->batch[i];
      index /= plan->product.batch[i];
    }
  return offset * (gint64) ebb_cuda_dtype_get_size (matrix->dtype);
}

/* One part of the product: a call for each matrix of the outer dimensions. */
static cudaError_t
multiply_part (EbbCudaDevice *device,
               const EbbCudaPlan *plan,
               const EbbCudaPart *part,
               const EbbLaunch *launch,
               const char *a,
               const char *b,
               char *c,
               const char *bias,
               const EbbCudaQueue *queue)
{
  const float one = 1, beta = launch->params.matmul.accumulate || part->adds ? 1 : 0;
  const gsize size = ebb_cuda_dtype_get_size (plan->a.dtype), result_size = ebb_cuda_dtype_get_size (plan->c.dtype);
  gint64 n_calls = 1;

  if (part->has_bias)
    {
      const char *of_part = bias + (gsize) part->offset_bias * result_size;
      cudaError_t status =
          check (device, cublasLtMatmulDescSetAttribute (part->description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &of_part,
                                                         sizeof of_part));

      if (status != cudaSuccess)
        return status;
    }
  a += (gsize) part->offset_a * size;
  b += (gsize) part->offset_b * size;
  c += (gsize) part->offset_c * result_size;
  for (int i = 0; i < plan->n_outer; i++)
    n_calls *= plan->product.batch[i];
  for (gint64 i = 0; i < n_calls; i++)
    {
      char *result = c + get_offset (plan, &plan->c, i);
      cudaError_t status =
          check (device, cublasLtMatmul (device->blas->handle, part->description, &one,
                                         b + get_offset (plan, &plan->b, i), part->left,
                                         a + get_offset (plan, &plan->a, i), part->right, &beta, result, part->result,
                                         result, part->result, &part->algorithm, launch->workspace, plan->workspace,
                                         queue->stream));

      if (status != cudaSuccess)
        return status;
    }
  return cudaSuccess;
}

static cudaError_t
multiply (EbbCudaDevice *device,
          const EbbCudaPlan *plan,
          const EbbLaunch *launch,
          const void *a,
          const void *b,
          void *c,
          const void *bias,
          const EbbCudaQueue *queue)
{
  cudaError_t status = cudaSuccess;

  for (int i = 0; i < plan->n_parts && status == cudaSuccess; i++)
    status = multiply_part (device, plan, &plan->parts[i], launch, a, b, c, bias, queue);
  return status;
}

/* @bias is expanded to @c. */
static cudaError_t
add_converted_bias (const EbbLaunch *launch,
                    EbbView *c,
                    const EbbView *bias,
                    const EbbCudaQueue *queue)
{
  const int last = c->n_dims - 1;
  EbbView sum = get_dense (c), row = { .dtype = bias->dtype, .n_dims = 1 }, dense_row, expanded = *bias;
  cudaError_t status;
  Places places;

  places_init_without_terms (&places, launch);
  if (places.size > launch->workspace_size)
    return cudaErrorInvalidValue;
  row.data = bias->data;
  row.shape[0] = c->shape[last];
  row.strides[0] = bias->strides[last];
  dense_row = get_dense (&row);
  sum.data = (char *) launch->workspace + places.c;
  dense_row.data = expanded.data = (char *) launch->workspace + places.bias;
  expanded.dtype = EBB_DTYPE_F32;
  expanded.strides[last] = 1;
  status = copy (c, &sum, queue);
  if (status == cudaSuccess)
    status = copy (&row, &dense_row, queue);
  if (status == cudaSuccess)
    status = add (&sum, &expanded, &sum, queue);
  return status == cudaSuccess ? copy (&sum, c, queue) : status;
}

/* A sum without terms: the bias, or nothing. */
static cudaError_t
run_without_terms (const EbbLaunch *launch,
                   const EbbCudaQueue *queue)
{
  EbbView *c = launch->outputs[0];
  EbbView bias = *c;

  if (launch->n_inputs < 3 || launch->inputs[2] == NULL)
    return launch->params.matmul.accumulate ? cudaSuccess : fill_with_zeros (c, queue);
  for (int i = 0; i < c->n_dims; i++)
    bias.strides[i] = 0;
  bias.data = launch->inputs[2]->data;
  bias.dtype = launch->inputs[2]->dtype;
  bias.strides[c->n_dims - 1] = launch->inputs[2]->strides[launch->inputs[2]->n_dims - 1];
  if (!launch->params.matmul.accumulate)
    return copy (&bias, c, queue);
  if (bias.dtype == c->dtype)
    return add (c, &bias, c, queue);
  return add_converted_bias (launch, c, &bias, queue);
}

static cudaError_t
run_plan (EbbCudaDevice *device,
          const EbbCudaPlan *plan,
          const EbbLaunch *launch,
          const EbbCudaQueue *queue)
{
  const EbbView *bias_view = launch->n_inputs > 2 ? launch->inputs[2] : NULL;
  const EbbCudaProduct *product = &plan->product;
  const void *a = launch->inputs[0]->data, *b = launch->inputs[1]->data;
  const void *bias = bias_view != NULL ? bias_view->data : NULL;
  void *c = launch->outputs[0]->data, *result = c;
  cudaError_t status;
  Places places;

  places_init (&places, plan, launch);
  if (places.size > launch->workspace_size)
    return cudaErrorInvalidValue;
  if (places.c >= 0)
    result = (char *) launch->workspace + places.c;
  status = bring (plan, &product->a, &plan->a, plan->copies_a, places.a, launch, &a, queue);
  if (status == cudaSuccess)
    status = bring (plan, &product->b, &plan->b, plan->copies_b, places.b, launch, &b, queue);
  if (status == cudaSuccess && bias != NULL)
    status = bring_bias (plan, places.bias, launch, &bias, queue);
  /* A copy back as it stands includes the gaps between rows, which keep their contents. */
  if (status == cudaSuccess && places.c >= 0 && (product->accumulate || !plan->copies_c))
    status = copy_matrix (product, &product->c, c, &plan->c, result, !plan->copies_c, queue);
  if (status == cudaSuccess)
    status = multiply (device, plan, launch, a, b, result, bias, queue);
  if (status == cudaSuccess && places.c >= 0)
    status = copy_matrix (product, &plan->c, result, &product->c, c, !plan->copies_c, queue);
  return status;
}

EBB_CUDA_KERNEL (matmul)
{
  EbbCudaDevice *device = ebb_cuda_device_get (queue->device);
  const EbbCudaPlan *plan;

  device->blas_status = NULL;
  if (is_empty (launch->outputs[0]))
    return cudaSuccess;
  if (has_no_terms (launch))
    return run_without_terms (launch, queue);
  plan = ebb_cuda_plan_find (device, launch);
  return plan != NULL ? run_plan (device, plan, launch, queue) : cudaErrorNotSupported;
}
