/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: cpu-only */
#include "support/tensors.h"

/* The current device and its context belong to a thread, and a context takes some hundred MiB of its GPU: a new thread
 * computes as others do, and a GPU that nobody asked for gets no context. */

#define N 8

typedef struct
{
  EbbTensor *x;
  gboolean is_product; /* else a sum */
} Operand;

static EbbTensor *
compute (const Operand *self,
         GError **error)
{
  return self->is_product ? ebb_matmul (self->x, self->x, error) : ebb_add (self->x, self->x, error);
}

static gpointer
compute_first (gpointer data)
{
  const Operand *self = data;
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) y = compute (self, &error);

  g_assert_no_error (error);
  g_assert_cmpfloat (test_at (y, N * N - 1), ==, self->is_product ? 4 * N : 4);
  return NULL;
}

/* Its first call of CUDA may be cuBLASLt's: memory and plan are there. */
static void
a_new_thread_computes (void)
{
  const gint64 shape[] = { N, N };
  g_autoptr (GError) error = NULL;
  EbbDevice *device = ebb_device_get (g_getenv ("EBB_TEST_DEVICE") ? g_getenv ("EBB_TEST_DEVICE") : "cudaemu", &error);
  g_autoptr (EbbTensor) x = ebb_full (shape, 2, 2, EBB_DTYPE_F32, device, &error);

  g_assert_no_error (error);
  for (int is_product = 0; is_product <= 1; is_product++)
    {
      Operand operand = { x, is_product };

      compute_first (&operand);
      g_thread_join (g_thread_new ("new", compute_first, &operand));
    }
}

static void
a_device_that_nobody_uses_has_no_context (void)
{
  if (g_test_subprocess ())
    {
      const gint64 shape[] = { N, N };
      g_autoptr (GError) error = NULL;
      EbbDevice *device;
      g_autoptr (EbbTensor) x = NULL;

      g_setenv ("EBB_CUDAEMU_DEVICES", "3", TRUE);
      g_setenv ("EBB_CUDAEMU_CONTEXTS", "1", TRUE);
      device = ebb_device_get ("cudaemu:1", &error);
      x = ebb_full (shape, 2, 2, EBB_DTYPE_F32, device, &error);
      g_assert_no_error (error);
      for (int is_product = 0; is_product <= 1; is_product++)
        {
          Operand operand = { x, is_product };

          compute_first (&operand);
          g_thread_join (g_thread_new ("new", compute_first, &operand));
        }
      return;
    }
  g_test_trap_subprocess (NULL, 0, G_TEST_SUBPROCESS_DEFAULT);
  g_test_trap_assert_passed ();
}

/* By one thread. */
static void
two_devices_take_turns (void)
{
  if (g_test_subprocess ())
    {
      const gint64 shape[] = { N, N };
      g_autoptr (GError) error = NULL;

      g_setenv ("EBB_CUDAEMU_DEVICES", "2", TRUE);
      for (int i = 0; i < 6; i++)
        {
          EbbDevice *device = ebb_device_get (i % 2 == 0 ? "cudaemu" : "cudaemu:1", &error);
          g_autoptr (EbbTensor) x = ebb_full (shape, 2, 2, EBB_DTYPE_F32, device, &error);
          Operand operand = { x, TRUE };

          g_assert_no_error (error);
          compute_first (&operand);
        }
      return;
    }
  g_test_trap_subprocess (NULL, 0, G_TEST_SUBPROCESS_DEFAULT);
  g_test_trap_assert_passed ();
}

int
main (int argc,
      char **argv)
{
  g_test_init (&argc, &argv, NULL);
  g_test_add_func ("/cuda/threads/a-new-thread-computes", a_new_thread_computes);
  if (g_getenv ("EBB_TEST_DEVICE") != NULL && !g_str_equal (g_getenv ("EBB_TEST_DEVICE"), "cudaemu"))
    return g_test_run ();
  g_test_add_func ("/cuda/threads/a-device-that-nobody-uses-has-no-context", a_device_that_nobody_uses_has_no_context);
  g_test_add_func ("/cuda/threads/two-devices-take-turns", two_devices_take_turns);
  return g_test_run ();
}
