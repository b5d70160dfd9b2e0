/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"

#include "support/classes.h"

#include <pthread.h>
#include <stdlib.h>

static EbbDevice *device;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static GPtrArray *read_so_far; /* of GBytes */

static void
forget_what_was_read (void)
{
  g_clear_pointer (&read_so_far, g_ptr_array_unref);
}

guint
test_stride (void)
{
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  return 5;
#else
  return g_getenv ("EBB_LONG") != NULL ? 1 : 3;
#endif
}

void
test_init (int *argc,
           char ***argv)
{
  g_autoptr (GError) error = NULL;

  if (g_getenv ("EBB_TEST_IS_LONG") != NULL && g_getenv ("EBB_LONG") == NULL)
    exit (77);
  g_test_init (argc, argv, NULL);
  test_classes_make ();
  device = ebb_device_get (g_getenv ("EBB_TEST_DEVICE"), &error);
  g_assert_no_error (error);
  ebb_set_default_device (device);
}

EbbDevice *
test_device (void)
{
  return device != NULL ? device : ebb_device_get_cpu ();
}

gboolean
test_device_is_cpu (void)
{
  return test_device () == ebb_device_get_cpu ();
}

EbbDevice *
test_device_of_same_bits (void)
{
  gboolean computes_as_cpu = test_device_is_cpu () || g_str_has_prefix (ebb_device_get_name (test_device ()), "sim");

  return computes_as_cpu ? ebb_device_get_cpu () : test_device ();
}

gboolean
test_device_is_slow (void)
{
  return g_str_has_prefix (ebb_device_get_name (test_device ()), "cudaemu");
}

typedef struct
{
  void *(*func) (void *data);
  void *data;
} Start;

static void *
run_on_device (void *data)
{
  Start start = *(Start *) data;

  g_free (data);
  ebb_set_default_device (test_device ());
  return start.func (start.data);
}

void
test_thread_create (pthread_t *thread,
                    void *(*func) (void *data),
                    void *data)
{
  Start *start = g_new (Start, 1);

  *start = (Start){ func, data };
  g_assert_cmpint (pthread_create (thread, NULL, run_on_device, start), ==, 0);
}

gconstpointer
test_read (EbbTensor *tensor)
{
  g_autoptr (GError) error = NULL;
  GBytes *bytes;
  gconstpointer data;

  g_assert_nonnull (tensor);
  if (ebb_tensor_get_device (tensor) == ebb_device_get_cpu () && ebb_tensor_is_contiguous (tensor))
    {
      data = ebb_tensor_get_data (tensor, &error);
      g_assert_no_error (error);
      return data;
    }
  bytes = ebb_tensor_get_bytes (tensor, &error);
  g_assert_no_error (error);
  pthread_mutex_lock (&lock);
  if (read_so_far == NULL)
    {
      read_so_far = g_ptr_array_new_with_free_func ((GDestroyNotify) g_bytes_unref);
      atexit (forget_what_was_read);
    }
  g_ptr_array_add (read_so_far, bytes);
  pthread_mutex_unlock (&lock);
  return g_bytes_get_data (bytes, NULL);
}

EbbTensor *
test_move (EbbTensor *tensor)
{
  g_autoptr (GError) error = NULL;
  EbbTensor *moved = ebb_to_device (tensor, test_device (), &error);

  g_assert_no_error (error);
  return moved;
}

EbbTensor *
test_await_failure (EbbTensor *result,
                    GError **error)
{
  if (*error != NULL || test_device_is_cpu () || ebb_device_synchronize (test_device (), error))
    return result;
  g_clear_pointer (&result, ebb_tensor_unref);
  return NULL;
}

/* Takes @tensor. */
static gboolean
read_norm (EbbTensor *tensor,
           double *norm,
           GError **error)
{
  gboolean ok = tensor != NULL;

  if (norm != NULL)
    *norm = 0;
  if (ok && norm != NULL)
    ok = ebb_tensor_get_item (tensor, norm, error);
  g_clear_pointer (&tensor, ebb_tensor_unref);
  return ok;
}

gboolean
test_clip_grad (EbbOptimizer *optimizer,
                double max_norm,
                double p,
                double *norm,
                GError **error)
{
  return read_norm (ebb_optimizer_clip_grad_p_norm (optimizer, max_norm, p, error), norm, error);
}

gboolean
test_clip_grads_of (EbbTensor **parameters,
                    guint n_parameters,
                    double max_norm,
                    double p,
                    double *norm,
                    GError **error)
{
  return read_norm (ebb_clip_grad_p_norm (parameters, n_parameters, max_norm, p, error), norm, error);
}
