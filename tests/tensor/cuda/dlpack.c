/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: cpu-only */
#include "support/tensors.h"

#include <dlfcn.h>

/* Memory that another library was shown stays as it is until that library's work is done, in streams that Ebb doesn't
 * know, however early the library lets go of it. */

#define N 1000
#define DEVICE_TO_HOST 2 /* cudaMemcpyDeviceToHost */

/* What the other library calls of CUDA. */
typedef struct
{
  int (*create_stream) (void **stream,
                        unsigned int flags);
  int (*alloc_host) (void **data,
                     size_t size,
                     unsigned int flags);
  int (*copy) (void *destination,
               const void *source,
               size_t size,
               int kind,
               void *stream);
  int (*synchronize) (void *stream);
} Runtime;

static void *
find (const char *name)
{
  void *runtime = dlopen ("libcudaemu.so", RTLD_LAZY | RTLD_NOLOAD), *function;

  g_assert_nonnull (runtime);
  function = dlsym (runtime, name);
  g_assert_nonnull (function);
  return function;
}

static void
runtime_init (Runtime *self)
{
  *(void **) (void *) &self->create_stream = find ("cudaStreamCreateWithFlags");
  *(void **) (void *) &self->alloc_host = find ("cudaHostAlloc");
  *(void **) (void *) &self->copy = find ("cudaMemcpyAsync");
  *(void **) (void *) &self->synchronize = find ("cudaStreamSynchronize");
}

static void
released_memory_waits_for_other_streams (void)
{
  const gint64 n = N;
  g_autoptr (GError) error = NULL;
  EbbDevice *device = ebb_device_get ("cudaemu", &error);
  EbbTensor *x = ebb_full (&n, 1, 7, EBB_DTYPE_F32, device, &error);
  const guint64 shown = ebb_tensor_to_dlpack (x, &error);
  g_autoptr (EbbTensor) next = NULL;
  void *stream = NULL, *here = NULL;
  const void *data;
  Runtime cuda;

  g_assert_no_error (error);
  ebb_tensor_unref (x);
  data = *(const void **) (gsize) shown; /* the first of a DLTensor */
  runtime_init (&cuda);
  g_assert_cmpint (cuda.create_stream (&stream, 1), ==, 0);
  g_assert_cmpint (cuda.alloc_host (&here, N * sizeof (float), 0), ==, 0);
  g_assert_cmpint (cuda.copy (here, data, N * sizeof (float), DEVICE_TO_HOST, stream), ==, 0);
  ebb_dlpack_release (shown);
  next = ebb_full (&n, 1, 9, EBB_DTYPE_F32, device, &error);
  g_assert_no_error (error);
  g_assert_cmpfloat (test_at (next, 0), ==, 9);
  g_assert_cmpint (cuda.synchronize (stream), ==, 0);
  g_assert_cmpfloat (((const float *) here)[0], ==, 7);
  g_assert_cmpfloat (((const float *) here)[N - 1], ==, 7);
}

int
main (int argc,
      char **argv)
{
  g_test_init (&argc, &argv, NULL);
  g_test_add_func ("/cuda/dlpack/released-memory-waits-for-other-streams", released_memory_waits_for_other_streams);
  return g_test_run ();
}
