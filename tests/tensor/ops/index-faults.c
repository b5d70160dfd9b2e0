/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"

/* Each kernel that reads an index finds one that is out of range, and says the op, the value, the position and the
 * limit: at once on the CPU, else by the next call that can say it. Nothing that lasts is changed by then, and
 * afterwards the device computes as if nothing had been. */

#define SHAPE(...) (const gint64[]){ __VA_ARGS__ }, G_N_ELEMENTS (((const gint64[]){ __VA_ARGS__ }))

static EbbTensor *
make (EbbDType dtype, const gint64 *shape, guint n_dims)
{
  g_autoptr (GError) error = NULL;
  EbbTensor *tensor = ebb_ones (shape, n_dims, dtype, NULL, &error);

  g_assert_no_error (error);
  return tensor;
}

/* Zeros but for @value at @position. */
static EbbTensor *
make_indices (EbbDType dtype, gint64 value, guint position, const gint64 *shape, guint n_dims)
{
  g_autoptr (GError) error = NULL;
  gint64 n = 1;
  g_autofree gint64 *values = NULL;
  g_autoptr (EbbTensor) wide = NULL;
  EbbTensor *indices;

  for (guint i = 0; i < n_dims; i++)
    n *= shape[i];
  values = g_new0 (gint64, n);
  values[position] = value;
  wide = ebb_tensor_new_from_ints (values, (gsize) n, shape, n_dims, &error);
  indices = ebb_cast (wide, dtype, &error);
  g_assert_no_error (error);
  return indices;
}

/* Takes @result. */
static void
assert_fault (EbbTensor *result, GError **error, const char *text)
{
  g_autoptr (EbbTensor) sum = NULL;
  g_autoptr (EbbTensor) x = NULL;

  g_assert_null (test_await_failure (result, error));
  g_assert_error (*error, EBB_ERROR, EBB_ERROR_INDEX);
  g_assert_cmpstr ((*error)->message, ==, text);
  g_clear_error (error);
  x = make (EBB_DTYPE_F32, SHAPE (4));
  sum = ebb_add (x, x, error);
  g_assert_no_error (*error);
  g_assert_cmpfloat (((const float *) test_read (sum))[3], ==, 2);
}

static void
ops_name_the_index (void)
{
  static const EbbDType dtypes[] = { EBB_DTYPE_I64, EBB_DTYPE_I32 };
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) x = make (EBB_DTYPE_F32, SHAPE (5, 3));
  g_autoptr (EbbTensor) long_one = make (EBB_DTYPE_F32, SHAPE (5, 2000));
  g_autoptr (EbbTensor) turned = ebb_transpose (x, 0, 1, &error);
  g_autoptr (EbbTensor) empty = make (EBB_DTYPE_F32, SHAPE (0, 3));

  for (guint i = 0; i < G_N_ELEMENTS (dtypes); i++)
    {
      g_autoptr (EbbTensor) high = make_indices (dtypes[i], 5, 4, SHAPE (2, 3));
      g_autoptr (EbbTensor) negative = make_indices (dtypes[i], -3, 2, SHAPE (3));
      g_autoptr (EbbTensor) far = make_indices (dtypes[i], 7, 1999, SHAPE (1, 2000));
      g_autoptr (EbbTensor) fine = make_indices (dtypes[i], 4, 4, SHAPE (2, 3));
      g_autoptr (EbbTensor) last = ebb_embedding (x, fine, &error);

      g_assert_nonnull (last);
      assert_fault (ebb_embedding (x, high, &error), &error,
                    "embedding: index 5 at position 4 is out of range; indices must be in [0, 5)");
      assert_fault (ebb_embedding (empty, fine, &error), &error,
                    "embedding: index 0 at position 0 is out of range; indices must be in [0, 0)");
      assert_fault (ebb_index_select (x, 1, negative, &error), &error,
                    "index_select: index -3 at position 2 is out of range; indices must be in [0, 3)");
      assert_fault (ebb_gather (x, 0, high, &error), &error,
                    "gather: index 5 at position 4 is out of range; indices must be in [0, 5)");
      assert_fault (ebb_gather (long_one, 0, far, &error), &error,
                    "gather: index 7 at position 1999 is out of range; indices must be in [0, 5)");
      assert_fault (ebb_scatter_add (x, 0, high, x, &error), &error,
                    "scatter_add: index 5 at position 4 is out of range; indices must be in [0, 5)");
      assert_fault (ebb_gather (turned, 0, high, &error), &error,
                    "gather: index 5 at position 4 is out of range; indices must be in [0, 3)");
    }
}

static void
losses_name_the_target (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) logits = make (EBB_DTYPE_F32, SHAPE (4, 3));
  g_autoptr (EbbTensor) targets = make_indices (EBB_DTYPE_I64, 3, 2, SHAPE (4));
  g_autoptr (EbbTensor) ignored = make_indices (EBB_DTYPE_I64, -100, 2, SHAPE (4));
  g_autoptr (EbbTensor) fine = ebb_cross_entropy (logits, ignored, &error);

  g_assert_nonnull (fine);
  assert_fault (ebb_cross_entropy (logits, targets, &error), &error,
                "cross_entropy: index 3 at position 2 is out of range; indices must be in [0, 3)");
  assert_fault (ebb_cross_entropy_full (logits, ignored, 5, 0, EBB_REDUCTION_NONE, &error), &error,
                "cross_entropy: index -100 at position 2 is out of range; indices must be in [0, 3)");
}

/* The position counts all targets, not those of a chunk of the fused loss, of which 16 rows is the least. */
static void
fused_losses_count_all_rows (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) x = make (EBB_DTYPE_F32, SHAPE (40, 1));
  g_autoptr (EbbTensor) weight = make (EBB_DTYPE_F32, SHAPE (1 << 20, 1));
  g_autoptr (EbbTensor) targets = make_indices (EBB_DTYPE_I64, 1 << 20, 39, SHAPE (40));

  assert_fault (ebb_fused_linear_cross_entropy (x, weight, NULL, targets, -100, 0, EBB_REDUCTION_MEAN, &error), &error,
                "fused_linear_cross_entropy: index 1048576 at position 39 is out of range; indices must be in "
                "[0, 1048576)");
}

/* Meets a bad index that an accelerator has yet to report. */
static void
begin_fault (GError **error)
{
  g_autoptr (EbbTensor) x = make (EBB_DTYPE_F32, SHAPE (5, 3));
  g_autoptr (EbbTensor) indices = make_indices (EBB_DTYPE_I64, 5, 0, SHAPE (1));
  g_autoptr (EbbTensor) rows = ebb_embedding (x, indices, error);
}

/* sim does no work between a failure and its report, so tensors that are made meanwhile get no values. */
static gboolean
device_drops_work (void)
{
  return strcmp (ebb_device_get_name (test_device ()), "sim") == 0;
}

static void
await_fault (GError **error)
{
  if (*error == NULL)
    ebb_device_synchronize (test_device (), error);
  g_assert_error (*error, EBB_ERROR, EBB_ERROR_INDEX);
  g_clear_error (error);
}

/* A step after an embedding with a bad index leaves the weights as they were, whichever call reports it. The moments
 * that it makes are those of a first step all the same. */
static void
weights_stay (gconstpointer data)
{
  const gboolean sgd = GPOINTER_TO_INT (data);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) module = ebb_linear_new (4, 4, FALSE, &error);
  g_autoptr (EbbOptimizer) optimizer = sgd ? ebb_sgd_new (module, 1, &error) : ebb_adamw_new (module, 1, &error);
  g_autoptr (EbbTensor) weight = ebb_module_get_parameter (module, "weight");
  g_autoptr (EbbTensor) before = ebb_copy (weight, &error);
  g_autoptr (EbbTensor) grad = make (EBB_DTYPE_F32, SHAPE (4, 4));
  gboolean has_failed_at_once;

  if (sgd)
    g_object_set (optimizer, "momentum", 0.5, NULL);
  g_assert_true (ebb_tensor_set_grad (weight, grad, &error));
  begin_fault (&error);
  has_failed_at_once = error != NULL;
  if (error == NULL)
    ebb_optimizer_step (optimizer, &error);
  await_fault (&error);
  g_assert_cmpmem (test_read (weight), 64, test_read (before), 64);
  g_assert_true (ebb_optimizer_step (optimizer, &error));
  g_assert_no_error (error);
  for (guint i = 0; i < 16; i++)
    {
      const float moved = ((const float *) test_read (before))[i] - ((const float *) test_read (weight))[i];

      if (device_drops_work ())
        g_assert_cmpfloat (moved, !=, 0);
      else if (sgd || has_failed_at_once)
        g_assert_cmpfloat_with_epsilon (moved, 1, sgd ? 1e-6 : 0.02); /* AdamW decays */
      else /* by the count it is the second step, from moments of 0 */
        g_assert_cmpfloat_with_epsilon (moved, 0.74, 0.02);
    }
}

typedef gboolean (*ChangeFunc) (EbbTensor *tensor, EbbTensor *other, GError **error);

static gboolean
fill (EbbTensor *tensor, EbbTensor *other, GError **error)
{
  return ebb_tensor_fill (tensor, 7, error);
}

static gboolean
fill_uniform (EbbTensor *tensor, EbbTensor *other, GError **error)
{
  return ebb_tensor_fill_uniform (tensor, 2, 3, NULL, error);
}

static gboolean
fill_normal (EbbTensor *tensor, EbbTensor *other, GError **error)
{
  return ebb_tensor_fill_normal (tensor, 5, 0.1, NULL, error);
}

static gboolean
add_scaled (EbbTensor *tensor, EbbTensor *other, GError **error)
{
  return ebb_tensor_add_scaled (tensor, other, 2, error);
}

static gboolean
scale (EbbTensor *tensor, EbbTensor *other, GError **error)
{
  return ebb_tensor_scale (tensor, 2, error);
}

static gboolean
add_scalar (EbbTensor *tensor, EbbTensor *other, GError **error)
{
  return ebb_tensor_add_scalar_in_place (tensor, 2, error);
}

static const struct
{
  const char *name;
  ChangeFunc func;
} changes[] = {
  { "fill", fill },
  { "copy-from", ebb_tensor_copy_from },
  { "fill-uniform", fill_uniform },
  { "fill-normal", fill_normal },
  { "add-scaled", add_scaled },
  { "scale", scale },
  { "add-in-place", ebb_tensor_add_in_place },
  { "add-scalar-in-place", add_scalar },
};

/* In place of values that were there, and of none. */
static void
changes_in_place_wait_for_the_report (gconstpointer data)
{
  const ChangeFunc func = changes[GPOINTER_TO_INT (data)].func;
  g_autoptr (GError) error = NULL;

  for (int step = 1; step <= 2; step++)
    {
      g_autoptr (EbbTensor) wide = make (EBB_DTYPE_F32, SHAPE (6, 4 * step));
      g_autoptr (EbbTensor) x = ebb_slice (wide, 1, 0, 4 * step, step, &error);
      g_autoptr (EbbTensor) other = ebb_full ((const gint64[]){ 6, 4 }, 2, 3, EBB_DTYPE_F32, NULL, &error);
      gboolean done;

      g_assert_no_error (error);
      begin_fault (&error);
      if (error == NULL)
        func (x, other, &error);
      await_fault (&error);
      for (guint i = 0; i < 24; i++)
        g_assert_cmpfloat (((const float *) test_read (x))[i], ==, 1);
      done = func (x, other, &error);
      g_assert_no_error (error);
      g_assert_true (done);
      for (guint i = 0; i < 24; i++)
        g_assert_cmpfloat (((const float *) test_read (x))[i], >, 1.5);
    }
}

/* Where the device has yet to report the fault. */
static void
new_tensors_get_their_values (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) x = make (EBB_DTYPE_F32, SHAPE (6, 4));
  g_autoptr (EbbTensor) turned = ebb_transpose (x, 0, 1, &error);
  g_autoptr (EbbTensor) zeros = NULL;
  g_autoptr (EbbTensor) copy = NULL;
  g_autoptr (EbbTensor) cast = NULL;
  g_autoptr (EbbTensor) dense = NULL;
  g_autoptr (EbbTensor) empty = NULL;
  g_autoptr (EbbTensor) range = NULL;

  g_assert_no_error (error);
  begin_fault (&error);
  if (error != NULL)
    {
      g_assert_error (error, EBB_ERROR, EBB_ERROR_INDEX);
      return;
    }
  if (device_drops_work ())
    {
      await_fault (&error);
      return;
    }
  zeros = ebb_zeros ((const gint64[]){ 6, 4 }, 2, EBB_DTYPE_F32, NULL, &error);
  copy = ebb_copy (x, &error);
  cast = ebb_cast (x, EBB_DTYPE_BF16, &error);
  dense = ebb_contiguous (turned, &error);
  range = ebb_arange (1, 25, 1, EBB_DTYPE_F32, NULL, &error);
  empty = ebb_tensor_new_empty ((const gint64[]){ 6, 4 }, 2, EBB_DTYPE_F32, NULL, error != NULL ? NULL : &error);
  if (empty != NULL)
    ebb_tensor_fill (empty, 4, &error);
  await_fault (&error);
  /* On a device that reports at once some of these are missing. */
  for (guint i = 0; i < 24; i++)
    {
      g_assert_true (zeros == NULL || ((const float *) test_read (zeros))[i] == 0);
      g_assert_true (copy == NULL || ((const float *) test_read (copy))[i] == 1);
      g_assert_true (cast == NULL || ((const guint16 *) test_read (cast))[i] == 0x3f80);
      g_assert_true (dense == NULL || ((const float *) test_read (dense))[i] == 1);
      g_assert_true (range == NULL || ((const float *) test_read (range))[i] == (float) (i + 1));
      g_assert_true (empty == NULL || ((const float *) test_read (empty))[i] == 4);
    }
}

/* Of each slice the first ones: later ones are changes. */
static void
slices_of_new_tensors_get_their_values (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) whole = ebb_tensor_new_empty ((const gint64[]){ 6, 4 }, 2, EBB_DTYPE_F32, NULL, &error);
  g_autoptr (EbbTensor) first = ebb_narrow (whole, 0, 0, 3, &error);
  g_autoptr (EbbTensor) last = ebb_narrow (whole, 0, 3, 3, &error);
  const float *values;

  begin_fault (&error);
  if (error != NULL || device_drops_work ())
    {
      await_fault (&error);
      return;
    }
  ebb_tensor_fill (first, 1, NULL);
  ebb_tensor_fill (last, 2, NULL);
  ebb_tensor_fill (last, 9, NULL); /* a change, which waits for the report */
  await_fault (&error);
  values = test_read (whole);
  for (guint i = 0; i < 24; i++)
    g_assert_cmpfloat (values[i], ==, 1 + i / 12);
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/index-faults/ops-name-the-index", ops_name_the_index);
  g_test_add_func ("/index-faults/losses-name-the-target", losses_name_the_target);
  g_test_add_func ("/index-faults/fused-losses-count-all-rows", fused_losses_count_all_rows);
  g_test_add_data_func ("/index-faults/weights-stay-adamw", GINT_TO_POINTER (FALSE), weights_stay);
  g_test_add_data_func ("/index-faults/weights-stay-sgd", GINT_TO_POINTER (TRUE), weights_stay);
  for (gsize i = 0; i < G_N_ELEMENTS (changes); i++)
    {
      g_autofree char *path = g_strdup_printf ("/index-faults/changes-wait-for-the-report/%s", changes[i].name);

      g_test_add_data_func (path, GINT_TO_POINTER ((int) i), changes_in_place_wait_for_the_report);
    }
  g_test_add_func ("/index-faults/new-tensors-get-their-values", new_tensors_get_their_values);
  g_test_add_func ("/index-faults/slices-of-new-tensors-get-their-values", slices_of_new_tensors_get_their_values);
  return g_test_run ();
}
