/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only cudaemu */
#include "support/device.h"
#include "support/op-runs-private.h"
#include "tensor/n-threads-private.h"

/* Every op case gives the same bits in each of its runs, forward and backward: on the CPU by any number of threads, on
 * the emulated GPU in any order of blocks, warps and lanes. */

#define N_RUNS_ON_CPU 4
#define N_RUNS 20

static guint
get_n_runs (void)
{
  return test_device_is_cpu () ? N_RUNS_ON_CPU : N_RUNS;
}

static void
begin_run (guint number)
{
  g_autofree char *order = g_strdup_printf ("%u", number);

  ebb_cpu_set_n_threads ((int) number + 1);
  g_setenv ("EBB_CUDAEMU_ORDER", order, TRUE);
}

/* -- one run ------------------------------------------------------------------------------------------------------- */

static void
add_bytes (GPtrArray *results,
           EbbTensor *tensor)
{
  g_autoptr (GError) error = NULL;

  g_ptr_array_add (results, ebb_tensor_get_bytes (tensor, &error));
  g_assert_no_error (error);
}

/* The bytes of results, then those of gradients. */
static GPtrArray *
run_once (const OpCase *op_case,
          const OpVariant *variant)
{
  GPtrArray *results = g_ptr_array_new_with_free_func ((GDestroyNotify) g_bytes_unref);
  OpRun run;

  op_run_on (&run, op_case, variant, op_run_tested);
  for (guint i = 0; i < OP_CASE_MAX_OUTPUTS && run.y[i] != NULL; i++)
    add_bytes (results, run.y[i]);
  if (op_run_wants_gradient (op_case, &run))
    {
      op_run_backward (&run);
      for (guint i = 0; i < run.n_inputs; i++)
        if (run.x[i] != NULL && ebb_tensor_get_requires_grad (run.x[i]))
          {
            g_autoptr (EbbTensor) gradient = ebb_tensor_get_grad (run.x[i]);

            add_bytes (results, gradient);
          }
    }
  op_run_clear (&run);
  return results;
}

static void
gives_the_same_bits (gconstpointer data)
{
  const OpCase *op_case = data;

  for (const OpVariant *variant = op_case->variants; variant->operands != NULL; variant++)
    {
      g_autoptr (GPtrArray) first = NULL;

      for (guint run = 0; run < get_n_runs (); run++)
        {
          g_autoptr (GPtrArray) results = NULL;

          begin_run (run);
          results = run_once (op_case, variant);
          if (first == NULL)
            first = g_steal_pointer (&results);
          for (guint i = 0; results != NULL && i < results->len; i++)
            if (!g_bytes_equal (results->pdata[i], first->pdata[i]))
              g_error ("%s (%s): run %u differs in result or gradient %u", op_case->name, variant->operands, run, i);
        }
    }
}

int
main (int argc,
      char **argv)
{
  op_run_set_up (NULL);
  op_run_init (&argc, &argv);
  op_run_add_tests ("equal-runs", gives_the_same_bits);
  return g_test_run ();
}
