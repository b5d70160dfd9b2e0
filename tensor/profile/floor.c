/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/profile/profiler-private.h"

#include "tensor/error-private.h"
#include "tensor/profile/rerun-private.h"

#include <string.h>

/* The floor: what the products of a profile would take alone. Each is run again on random data, in a loop of its own,
 * as the very launch that it was; the median counts. */

#define N_LEFT_OUT 2
#define N_AT_LEAST 5
#define TIME_AT_LEAST 50e-3 /* seconds */
#define MOST_ON_DEVICE 10000
/* Scores of attention that are held at a time: about what a cache holds, since nobody need write them to memory. */
#define SCORES_SIZE ((gint64) 16 << 20)

/* -- operands ------------------------------------------------------------------------------------------------------ */

/* The memory behind operands of a launch. */
typedef struct
{
  EbbDevice *device;
  GPtrArray *tensors;
  guint64 seed;
} Operands;

/* Gives @view random data of its own, in [-1, 1). */
static gboolean
operands_fill (Operands *self,
               EbbView *view,
               GError **error)
{
  gint64 extent = (gint64) (ebb_rerun_get_extent (view) / ebb_dtype_get_size (view->dtype));
  EbbTensor *tensor = ebb_tensor_new_uninitialized (&extent, 1, view->dtype, self->device, error);

  if (tensor == NULL)
    return FALSE;
  g_ptr_array_add (self->tensors, tensor);
  view->data = tensor->view.data;
  return ebb_rerun_fill_random (self->device, &tensor->view, ++self->seed, error);
}

static void
operands_init (Operands *self,
               EbbDevice *device)
{
  self->device = device;
  self->tensors = g_ptr_array_new_with_free_func ((GDestroyNotify) ebb_tensor_unref);
  self->seed = 0;
}

static void
operands_clear (Operands *self)
{
  g_ptr_array_unref (self->tensors);
}

/* -- timing -------------------------------------------------------------------------------------------------------- */

static double
take_median (GArray *times)
{
  return ebb_rerun_take_median ((double *) (void *) times->data, times->len);
}

/* By the device's own clock: as many runs as last long enough, going by the first of them. */
static gboolean
time_on_device (EbbDevice *device,
                EbbLaunch *launch,
                GArray *times,
                double *seconds,
                GError **error)
{
  double first[N_LEFT_OUT + N_AT_LEAST], sum = 0;
  guint n;

  if (!ebb_rerun_time_on_device (device, launch, G_N_ELEMENTS (first), first, error))
    return FALSE;
  for (guint i = N_LEFT_OUT; i < G_N_ELEMENTS (first); i++)
    sum += first[i];
  n = (guint) CLAMP (TIME_AT_LEAST / MAX (sum / N_AT_LEAST, 1e-7), N_AT_LEAST, MOST_ON_DEVICE);
  g_array_set_size (times, n);
  if (!ebb_rerun_time_on_device (device, launch, n, (double *) (void *) times->data, error))
    return FALSE;
  *seconds = take_median (times);
  return TRUE;
}

static gboolean
time_launch (EbbDevice *device,
             EbbLaunch *launch,
             double *seconds,
             GError **error)
{
  g_autoptr (GArray) times = g_array_new (FALSE, FALSE, sizeof (double));
  double sum = 0;

  if (device->backend->time_launches != NULL)
    return time_on_device (device, launch, times, seconds, error);
  for (guint i = 0; i < N_LEFT_OUT + N_AT_LEAST || sum < TIME_AT_LEAST; i++)
    {
      gint64 began = ebb_profiler_get_time ();
      double time;

      if (!ebb_rerun_launch (device, launch, error))
        return FALSE;
      time = (double) (ebb_profiler_get_time () - began) * 1e-9;
      if (i < N_LEFT_OUT)
        continue;
      sum += time;
      g_array_append_val (times, time);
    }
  *seconds = take_median (times);
  return TRUE;
}

/* c = a b with @params, each operand as its view says, the last one written. */
static gboolean
time_product (Operands *operands,
              EbbView views[4],
              const EbbKernelParams *params,
              double *seconds,
              GError **error)
{
  EbbLaunch launch;

  ebb_launch_init (&launch, EBB_KERNEL_MATMUL);
  launch.params = *params;
  launch.n_inputs = 3;
  for (guint i = 0; i < 3; i++)
    launch.inputs[i] = views[i].n_dims >= 0 ? &views[i] : NULL;
  launch.outputs[0] = &views[3];
  launch.n_outputs = 1;
  return time_launch (operands->device, &launch, seconds, error);
}

/* -- products ------------------------------------------------------------------------------------------------------ */

static gboolean
measure_product (EbbOpWork *work,
                 GError **error)
{
  EbbView views[4];
  Operands operands;
  gboolean ok = TRUE;

  memcpy (views, work->key.views, sizeof views);
  operands_init (&operands, work->key.device);
  for (guint i = 0; ok && i < 4; i++)
    if (views[i].n_dims >= 0)
      ok = operands_fill (&operands, &views[i], error);
  ok = ok && time_product (&operands, views, &work->key.params, &work->floor, error);
  operands_clear (&operands);
  return ok;
}

/* -- attention ----------------------------------------------------------------------------------------------------- */

/* A view [B, H, T, D] with heads in groups that share keys: [B, G, H / G, T, D]; keys [B, G, S, D] are broadcast. */
static void
view_groups (EbbView *view,
             const EbbView *heads,
             gint64 n_groups,
             gint64 group_size)
{
  gint64 in_group = heads->shape[1] / n_groups; /* 1 of keys and values */

  *view = *heads;
  view->n_dims = 5;
  view->shape[1] = n_groups;
  view->shape[2] = group_size;
  view->strides[1] = heads->strides[1] * in_group;
  view->strides[2] = in_group == group_size ? heads->strides[1] : 0;
  for (int i = 3; i < 5; i++)
    {
      view->shape[i] = heads->shape[i - 1];
      view->strides[i] = heads->strides[i - 1];
    }
}

static void
view_dense (EbbView *view,
            const EbbView *like,
            gint64 rows,
            gint64 columns)
{
  gint64 stride = 1;

  *view = *like;
  view->shape[3] = rows;
  view->shape[4] = columns;
  for (int i = 4; i >= 0; i--)
    {
      view->strides[i] = stride;
      stride *= view->shape[i];
    }
}

static EbbView
transpose (const EbbView *view)
{
  EbbView result = *view;

  result.shape[3] = view->shape[4];
  result.shape[4] = view->shape[3];
  result.strides[3] = view->strides[4];
  result.strides[4] = view->strides[3];
  return result;
}

typedef struct
{
  EbbView q, k, v, o, scores, key_grad;
  double n_times; /* how many times what is measured is in the whole */
} Attention;

/* As many batches and heads as SCORES_SIZE holds. */
static void
attention_init (Attention *self,
                const EbbWorkKey *key)
{
  const EbbView *q = &key->views[0], *k = &key->views[1];
  gint64 n_groups = k->shape[1], group_size = n_groups > 0 ? q->shape[1] / n_groups : 0;
  gint64 size = group_size * q->shape[2] * k->shape[2] * (gint64) ebb_dtype_get_size (q->dtype);
  gint64 n_fitting = MAX (1, SCORES_SIZE / MAX (size, 1));
  gint64 groups = MIN (n_groups, n_fitting), batches = MIN (q->shape[0], MAX (1, n_fitting / groups));
  EbbView *views[] = { &self->q, &self->k, &self->v, &self->o };

  for (guint i = 0; i < G_N_ELEMENTS (views); i++)
    {
      view_groups (views[i], &key->views[i], n_groups, group_size);
      views[i]->shape[0] = batches;
      views[i]->shape[1] = groups;
    }
  view_dense (&self->scores, &self->q, q->shape[2], k->shape[2]);
  view_dense (&self->key_grad, &self->q, k->shape[2], q->shape[3]);
  self->n_times = (double) (q->shape[0] * n_groups) / (double) (batches * groups);
}

static gboolean
add_product (Operands *operands,
             const EbbView *a,
             const EbbView *b,
             const EbbView *c,
             double *sum,
             GError **error)
{
  EbbView views[4] = { *a, *b, { .n_dims = -1 }, *c };
  EbbKernelParams params;
  double seconds;

  memset (&params, 0, sizeof params);
  if (!time_product (operands, views, &params, &seconds, error))
    return FALSE;
  *sum += seconds;
  return TRUE;
}

/* Q K^T and P V; for the gradient Q K^T again, dO V^T, P^T dO, dS K, dS^T Q. */
static gboolean
measure_attention (EbbOpWork *work,
                   GError **error)
{
  Attention self;
  Operands operands;
  EbbView *views[] = { &self.q, &self.k, &self.v, &self.o, &self.scores, &self.key_grad };
  EbbView keys, values, scores;
  const EbbView *q = &work->key.views[0], *k = &work->key.views[1];
  double sum = 0, n_halves = 2.0 * (double) q->shape[2] * (double) k->shape[2];
  gboolean ok = TRUE;

  attention_init (&self, &work->key);
  operands_init (&operands, work->key.device);
  for (guint i = 0; ok && i < G_N_ELEMENTS (views); i++)
    ok = operands_fill (&operands, views[i], error);
  keys = transpose (&self.k);
  values = transpose (&self.v);
  scores = transpose (&self.scores);
  ok = ok && add_product (&operands, &self.q, &keys, &self.scores, &sum, error);
  if (work->key.kernel == EBB_KERNEL_ATTENTION)
    ok = ok && add_product (&operands, &self.scores, &self.v, &self.o, &sum, error);
  else
    ok = ok && add_product (&operands, &self.o, &values, &self.scores, &sum, error)
         && add_product (&operands, &scores, &self.o, &self.key_grad, &sum, error)
         && add_product (&operands, &self.scores, &self.k, &self.q, &sum, error)
         && add_product (&operands, &scores, &self.q, &self.key_grad, &sum, error);
  operands_clear (&operands);
  if (ok)
    work->floor = sum * self.n_times
                  * (double) ebb_attention_count_flop (&work->key.params, q->shape[2], k->shape[2], 2)
                  / MAX (n_halves, 1);
  return ok;
}

/* -- the floor ----------------------------------------------------------------------------------------------------- */

/**
 * ebb_profiler_measure_floor:
 * @self: a profiler that does not run
 * @error: return location for an error
 *
 * Measures what the recorded matrix products would take if there were nothing but them: each different one (shape,
 * strides, dtypes, bias, whether it adds to its result) is run on random data, at least seven times and for 50 ms, of
 * which the first two runs are left out; the floor is the sum of how often it was recorded times the median. The
 * products inside attention, two forward and five in the gradient, which computes the scores again, are measured too,
 * as products over batches and heads, by the share of queries and keys that see each other: half where attention is
 * causal, less with a window; they are a number of their own. What was
 * measured before is kept. It should have the machine, and the number of threads, that was recorded.
 *
 * Returns: %FALSE with %EBB_ERROR_INVALID_ARGUMENT if @self runs, %EBB_ERROR_NO_MEMORY if there is no room for the
 *   operands of a product
 */
gboolean
ebb_profiler_measure_floor (EbbProfiler *self,
                            GError **error)
{
  EBB_RETURN_UNLESS_BEGUN (FALSE, error, self);
  g_return_val_if_fail (EBB_IS_PROFILER (self), FALSE);

  if (self->thread != NULL)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "profiler: it runs; stop it before the floor is measured");
  for (guint i = 0; i < self->works->len; i++)
    {
      EbbOpWork *work = ebb_profiler_get_work (self, i);

      if (work->flop == 0)
        work->floor = 0;
      if (work->floor >= 0)
        continue;
      if (ebb_work_is_product (work) ? !measure_product (work, error) : !measure_attention (work, error))
        {
          g_autofree char *text = ebb_work_to_string (work);

          g_prefix_error (error, "profiler: the floor of %s: ", text);
          return FALSE;
        }
    }
  return TRUE;
}

/* -1 as long as one of them was not measured. */
static double
sum_floors (EbbProfiler *self,
            gboolean products)
{
  double sum = 0;

  for (guint i = 0; i < self->works->len; i++)
    {
      const EbbOpWork *work = ebb_profiler_get_work (self, i);

      if (ebb_work_is_product (work) != products)
        continue;
      if (work->floor < 0)
        return -1;
      sum += work->floor * (double) work->count;
    }
  return sum;
}

/**
 * ebb_profiler_get_floor_seconds:
 * @self: a profiler
 *
 * Returns: the floor of all recorded products, without those inside attention, in seconds; -1 until
 *   ebb_profiler_measure_floor() has measured it
 */
double
ebb_profiler_get_floor_seconds (EbbProfiler *self)
{
  g_return_val_if_fail (EBB_IS_PROFILER (self), -1);

  return sum_floors (self, TRUE);
}

/**
 * ebb_profiler_get_attention_floor_seconds:
 * @self: a profiler
 *
 * Returns: the floor of the products inside attention, in seconds; -1 until ebb_profiler_measure_floor() has measured
 *   it
 */
double
ebb_profiler_get_attention_floor_seconds (EbbProfiler *self)
{
  g_return_val_if_fail (EBB_IS_PROFILER (self), -1);

  return sum_floors (self, FALSE);
}

/**
 * ebb_profiler_get_floor_share:
 * @self: a profiler
 *
 * Returns: the floor of products, without those inside attention, as a share of the recorded time, from 0 to about 1;
 *   -1 until ebb_profiler_measure_floor() has measured it
 */
double
ebb_profiler_get_floor_share (EbbProfiler *self)
{
  double floor = ebb_profiler_get_floor_seconds (self), seconds = ebb_profiler_get_seconds (self);

  return floor >= 0 && seconds > 0 ? floor / seconds : -1;
}
