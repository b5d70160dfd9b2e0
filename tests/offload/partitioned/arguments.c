/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/partitions.h"
#include "support/stores.h"
#include "support/ranks.h"
#include "support/tensors.h"

/* Tensors that all ranks have, kept in pieces: arguments of a checkpoint, of any form. */

/* ([x, {"scale": s}], mask) to x * s + mask, twice over */
static EbbArgs *
combine (EbbArgs *args,
         gpointer user_data,
         GError **error)
{
  g_autoptr (EbbArgs) list = ebb_args_get_args (args, 0);
  g_autoptr (EbbArgs) dict = ebb_args_get_args (list, 1);
  g_autoptr (EbbTensor) x = ebb_args_get_tensor (list, 0);
  g_autoptr (EbbTensor) scale = ebb_args_get_tensor (dict, 0);
  g_autoptr (EbbTensor) mask = ebb_args_get_tensor (args, 1);
  g_autoptr (EbbTensor) product = ebb_mul (x, scale, error);
  g_autoptr (EbbTensor) dropped = ebb_dropout (product, 0.3, TRUE, NULL, error);
  g_autoptr (EbbTensor) gelu = ebb_gelu (dropped, EBB_GELU_TANH, error);
  g_autoptr (EbbTensor) masked = ebb_mul (gelu, mask, error);
  g_autoptr (EbbArgs) result = ebb_args_new (EBB_ARGS_TUPLE);

  if (masked == NULL)
    return NULL;
  ebb_args_add_tensor (result, NULL, masked);
  return g_steal_pointer (&result);
}

static void
run_combined (EbbSavedTensorHooks *store,
              EbbTensor **x_grad,
              EbbTensor **scale_grad)
{
  g_autoptr (EbbCheckpointOptions) options = test_partition_options_new (store);
  g_autoptr (EbbTensor) base = test_randn (1, 6, 13, -1);
  g_autoptr (EbbTensor) scale_base = test_randn (2, 6, 13, -1);
  g_autoptr (EbbTensor) x = ebb_transpose (base, 0, 1, NULL);
  g_autoptr (EbbTensor) scale = ebb_transpose (scale_base, 0, 1, NULL);
  g_autoptr (EbbTensor) mask = test_randn (3, 13, 6, -1);
  g_autoptr (EbbArgs) args = ebb_args_new (EBB_ARGS_TUPLE);
  g_autoptr (EbbArgs) list = ebb_args_new (EBB_ARGS_LIST);
  g_autoptr (EbbArgs) dict = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (EbbArgs) result = NULL;
  g_autoptr (EbbTensor) output = NULL;
  g_autoptr (EbbTensor) loss = NULL;
  g_autoptr (GError) error = NULL;

  ebb_tensor_set_requires_grad (base, TRUE, &error);
  ebb_tensor_set_requires_grad (scale_base, TRUE, &error);
  g_clear_pointer (&x, ebb_tensor_unref);
  g_clear_pointer (&scale, ebb_tensor_unref);
  x = ebb_transpose (base, 0, 1, NULL);
  scale = ebb_transpose (scale_base, 0, 1, NULL);
  ebb_args_add_tensor (list, NULL, x);
  ebb_args_add_tensor (dict, "scale", scale);
  ebb_args_add_args (list, NULL, dict);
  ebb_args_add_args (args, NULL, list);
  ebb_args_add_tensor (args, NULL, mask);
  ebb_manual_seed (5);
  result = store != NULL ? ebb_checkpoint (combine, NULL, NULL, args, options, &error) : combine (args, NULL, &error);
  g_assert_no_error (error);
  output = ebb_args_get_tensor (result, 0);
  loss = ebb_sum (output, NULL, 0, FALSE, &error);
  ebb_tensor_backward (loss, &error);
  g_assert_no_error (error);
  *x_grad = ebb_tensor_get_grad (base);
  *scale_grad = ebb_tensor_get_grad (scale_base);
}

static gboolean
combine_on_rank (EbbProcessGroup *group,
                 gpointer user_data,
                 GError **error)
{
  g_autoptr (EbbSavedTensorHooks) store = test_partitioned_store_new (group, TEST_BEHIND_HOST);
  g_autoptr (EbbTensor) x = NULL;
  g_autoptr (EbbTensor) scale = NULL;
  g_autoptr (EbbTensor) plain_x = NULL;
  g_autoptr (EbbTensor) plain_scale = NULL;

  run_combined (store, &x, &scale);
  run_combined (NULL, &plain_x, &plain_scale);
  g_assert_true (ebb_tensor_equal (x, plain_x));
  g_assert_true (ebb_tensor_equal (scale, plain_scale));
  g_assert_cmpuint (test_get_double (store, "n-gathers"), ==, 3);
  return TRUE;
}

static void
tensors_are_found_anywhere_in_the_arguments (void)
{
  test_ranks_run (4, combine_on_rank, NULL);
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_get_tmp_dir (); /* made once, before there are threads */
  g_test_add_func ("/partitioned/tensors-are-found-anywhere-in-the-arguments",
                   tensors_are_found_anywhere_in_the_arguments);
  return g_test_run ();
}
