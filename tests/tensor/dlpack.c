/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Tensors that go out by DLPack and come back: the same memory, on the host and on a device that has a type there. */
#include "support/device.h"
#include "support/tensors.h"

#include <string.h>

static EbbTensor *
make_numbers (void)
{
  return test_floats ((const float[]){ 1, 2, 3, 4, 5, 6 }, 2, 3, -1);
}

/* Whether other libraries can use the test's device. */
static gboolean
is_shared (EbbTensor *tensor)
{
  int index = -1;
  const int type = ebb_tensor_get_dlpack_device (tensor, &index);

  g_assert_cmpint (index, ==, 0);
  if (test_device_is_cpu ())
    g_assert_cmpint (type, ==, 1);
  return type != 0;
}

static double
get_element (EbbTensor *tensor, gint64 row, gint64 column)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) line = ebb_select (tensor, 0, row, &error);
  g_autoptr (EbbTensor) one = ebb_select (line, 0, column, &error);
  double value = 0;

  g_assert_true (ebb_tensor_get_item (one, &value, &error));
  g_assert_no_error (error);
  return value;
}

static void
comes_back (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) tensor = make_numbers (), back = NULL;
  guint64 address;

  if (!is_shared (tensor))
    {
      g_test_skip ("no other library can use this device");
      return;
    }
  address = ebb_tensor_to_dlpack (tensor, &error);
  g_assert_no_error (error);
  back = ebb_tensor_new_from_dlpack (address, &error);
  g_assert_no_error (error);
  g_assert_true (ebb_tensor_get_device (back) == test_device ());
  g_assert_cmpfloat (get_element (back, 1, 2), ==, 6);
  /* It is the same memory. */
  g_assert_true (ebb_tensor_fill (tensor, 7, &error));
  g_assert_no_error (error);
  g_assert_cmpfloat (get_element (back, 0, 1), ==, 7);
  /* The memory lives as long as one of them does. */
  g_clear_pointer (&tensor, ebb_tensor_unref);
  g_assert_cmpfloat (get_element (back, 1, 0), ==, 7);
}

static void
strides_come_along (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) tensor = make_numbers (), turned = NULL, back = NULL;

  if (!is_shared (tensor))
    {
      g_test_skip ("no other library can use this device");
      return;
    }
  turned = ebb_transpose (tensor, 0, 1, &error);
  g_assert_no_error (error);
  back = ebb_tensor_new_from_dlpack (ebb_tensor_to_dlpack (turned, &error), &error);
  g_assert_no_error (error);
  g_assert_cmpfloat (get_element (back, 2, 0), ==, 3);
}

/* As PyTorch's pin_memory () has it: DLPack's device of type 3. */
static void
pinned_memory_is_the_hosts (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) tensor = make_numbers (), back = NULL;
  const gint32 pinned = 3;
  guint64 address;

  if (!test_device_is_cpu ())
    {
      g_test_skip ("no host memory is pinned for it");
      return;
    }
  address = ebb_tensor_to_dlpack (tensor, &error);
  g_assert_no_error (error);
  memcpy ((char *) (gsize) address + sizeof (gpointer), &pinned, sizeof pinned);
  back = ebb_tensor_new_from_dlpack (address, &error);
  g_assert_no_error (error);
  g_assert_true (ebb_tensor_get_device (back) == test_device ());
  g_assert_cmpfloat (get_element (back, 1, 2), ==, 6);
}

static void
refuses_what_it_cannot_share (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) tensor = make_numbers ();

  if (is_shared (tensor))
    {
      g_test_skip ("other libraries can use this device");
      return;
    }
  g_assert_cmpuint (ebb_tensor_to_dlpack (tensor, &error), ==, 0);
  g_assert_error (error, EBB_ERROR, EBB_ERROR_DEVICE);
}

/* A binding that has no address of Python's functions releases nothing. */
static void
destructors_need_both_functions (void)
{
  guint64 address = ebb_dlpack_get_capsule_destructor (0, 0);
  void (*destroy) (gpointer capsule);

  memcpy (&destroy, &address, sizeof destroy);
  destroy (&address);
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/dlpack/comes-back", comes_back);
  g_test_add_func ("/dlpack/strides-come-along", strides_come_along);
  g_test_add_func ("/dlpack/pinned-memory-is-the-hosts", pinned_memory_is_the_hosts);
  g_test_add_func ("/dlpack/refuses-what-it-cannot-share", refuses_what_it_cannot_share);
  g_test_add_func ("/dlpack/destructors-need-both-functions", destructors_need_both_functions);
  return g_test_run ();
}
