/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only cudaemu one-thread */

/* The list of op cases in its modes:
 *
 *   /op-cases/reference/OP         a device's results and gradients against those of the float64 reference
 *   /op-cases/gradient/OP          its gradients against finite differences of the reference
 *   /op-cases/stopped/OP           after the early stop of a recompute: the same shapes and draws, no data, no failure
 *   /op-cases/DEVICE-and-cpu/OP    another device's results and gradients against the CPU's, for each that there is
 *
 * EBB_TEST_DEVICE or --device NAME asks for another device than the CPU in all of them; --time [OP] measures instead of
 * testing. */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/op-runs-private.h"
#include "tensor/tensor-private.h"
#include "tensor/thread-private.h"

#define GRADIENT_TOLERANCE 1e-3
#define STEP 0.02 /* of a finite difference; error of the fourth order */

static void
compare_devices (const OpCase *op_case,
                 EbbDevice *device,
                 EbbDevice *other)
{
  for (const OpVariant *variant = op_case->variants; variant->operands != NULL; variant++)
    op_run_compare (op_case, variant, device, other);
}

static void
agrees_with_reference (gconstpointer data)
{
  compare_devices (data, op_run_tested, op_run_reference);
}

typedef struct
{
  const OpCase *op_case;
  EbbDevice *device;
} Pair;

static void
agrees_with_cpu (gconstpointer data)
{
  const Pair *pair = data;

  compare_devices (pair->op_case, pair->device, ebb_device_get_cpu ());
}

/* -- finite differences ------------------------------------------------------------------------------------------- */

/* The outputs times their random gradients, summed in double. */
static double
project (OpRun *run)
{
  g_autoptr (GError) error = NULL;
  double sum = 0.0;

  for (guint k = 0; k < OP_CASE_MAX_OUTPUTS; k++)
    if (op_run_can_flow (run->y[k]))
      {
        g_autoptr (EbbTensor) weights = op_case_make_normal (run->y[k], 1000 + k, &error);
        g_autofree double *y = op_case_read (run->y[k], &error);
        g_autofree double *w = op_case_read (weights, &error);

        g_assert_no_error (error);
        for (gint64 i = 0; i < ebb_tensor_get_n_elements (run->y[k]); i++)
          sum += y[i] * w[i];
      }
  return sum;
}

static double
project_moved (OpRun *run,
               const OpCase *op_case,
               const OpVariant *variant,
               float *element,
               double distance)
{
  float old = *element;
  double sum;

  *element = (float) (old + distance);
  op_run_forward (run, op_case, variant);
  sum = project (run);
  *element = old;
  return sum;
}

static gint64
get_offset (EbbTensor *tensor,
            gint64 position)
{
  guint n_dims;
  const gint64 *shape = ebb_tensor_get_shape (tensor, &n_dims);
  const gint64 *strides = ebb_tensor_get_strides (tensor, NULL);
  gint64 offset = 0;

  for (guint i = n_dims; i-- > 0;)
    {
      offset += position % shape[i] * strides[i];
      position /= shape[i];
    }
  return offset;
}

/* Large operands are sampled. */
static void
check_gradient (const OpCase *op_case,
                const OpVariant *variant,
                guint index,
                EbbTensor *grad,
                OpRun *moved)
{
  g_autoptr (GError) error = NULL;
  g_autofree double *values = op_case_read (grad, &error);
  float *data = ebb_tensor_get_data (moved->x[index], &error);
  gint64 n = ebb_tensor_get_n_elements (grad);
  double allowed = GRADIENT_TOLERANCE * MAX (op_run_find_greatest (values, n), 0.1);

  g_assert_no_error (error);
  for (gint64 i = 0; i<n; i += n> 60 ? n / 41 : 1)
    {
      float *element = data + get_offset (moved->x[index], i);
      double near = project_moved (moved, op_case, variant, element, STEP)
                    - project_moved (moved, op_case, variant, element, -STEP);
      double far = project_moved (moved, op_case, variant, element, 2 * STEP)
                   - project_moved (moved, op_case, variant, element, -2 * STEP);
      double expected = (8.0 * near - far) / (12.0 * STEP);

      if (!op_run_is_close (values[i], expected, allowed))
        g_error ("%s (%s): gradient of operand %u, element %" G_GINT64_FORMAT
                 ", is %.7g; finite differences give %.7g, up to %.3g",
                 op_case->name, variant->operands, index, i, values[i], expected, allowed);
    }
}

/* NULL if there is none. */
static double *
read_gradient (EbbTensor *leaf)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) grad = leaf != NULL ? ebb_tensor_get_grad (leaf) : NULL;
  double *values = grad != NULL ? op_case_read (grad, &error) : NULL;

  g_assert_no_error (error);
  return values;
}

/* A second backward pass adds the same gradients to those of the first. */
static void
check_accumulation (const OpCase *op_case,
                    const OpVariant *variant,
                    OpRun *run)
{
  double *once[OP_CASE_MAX_INPUTS] = { NULL };

  for (guint i = 0; i < run->n_inputs; i++)
    once[i] = read_gradient (run->x[i]);
  op_run_forward (run, op_case, variant);
  op_run_backward (run);
  for (guint i = 0; i < run->n_inputs; i++)
    if (once[i] != NULL)
      {
        g_autofree double *twice = read_gradient (run->x[i]);
        gint64 n = ebb_tensor_get_n_elements (run->x[i]);
        double allowed = OP_RUN_TOLERANCE * op_run_find_greatest (once[i], n);

        for (gint64 k = 0; k < n; k++)
          if (!op_run_is_close (twice[k], 2.0 * once[i][k], allowed))
            g_error ("%s (%s): gradient of operand %u, element %" G_GINT64_FORMAT
                     ", is %.9g after two passes and %.9g after one",
                     op_case->name, variant->operands, i, k, twice[k], once[i][k]);
        g_free (once[i]);
      }
}

static void
agrees_with_differences (gconstpointer data)
{
  const OpCase *op_case = data;

  for (const OpVariant *variant = op_case->variants; variant->operands != NULL; variant++)
    {
      OpRun run, moved;

      if (strpbrk (variant->operands, "hqs") != NULL)
        continue;
      g_test_message ("%s (%s)", op_case->name, variant->operands);
      op_run_on (&run, op_case, variant, op_run_tested);
      if (!op_run_wants_gradient (op_case, &run))
        {
          op_run_clear (&run);
          continue;
        }
      op_run_backward (&run);
      op_run_on (&moved, op_case, variant, op_run_reference);
      for (guint i = 0; i < run.n_inputs; i++)
        if (run.x[i] != NULL && ebb_tensor_get_requires_grad (run.x[i]))
          {
            g_autoptr (EbbTensor) grad = ebb_tensor_get_grad (run.x[i]);

            g_assert_nonnull (grad);
            check_gradient (op_case, variant, i, grad, &moved);
          }
      check_accumulation (op_case, variant, &run);
      op_run_clear (&run);
      op_run_clear (&moved);
    }
}

/* -- after the early stop of a recompute -------------------------------------------------------------------------- */

static void
goes_on_without_data (gconstpointer data)
{
  const OpCase *op_case = data;
  g_autoptr (GError) error = NULL;

  for (const OpVariant *variant = op_case->variants; variant->operands != NULL; variant++)
    {
      OpRun run;
      EbbTensor *y[OP_CASE_MAX_OUTPUTS];
      guint64 offset;

      op_run_on (&run, op_case, variant, op_run_tested);
      offset = ebb_generator_get_offset (ebb_generator_get_default ());
      ebb_modes.stopped = 1;
      op_case_run (op_case, variant, run.x, y, &error);
      ebb_modes.stopped = 0;
      g_assert_no_error (error);
      g_assert_cmpuint (ebb_generator_get_offset (ebb_generator_get_default ()), ==, offset);
      for (guint i = 0; i < OP_CASE_MAX_OUTPUTS; i++)
        {
          g_assert_true ((y[i] == NULL) == (run.y[i] == NULL));
          if (y[i] == NULL)
            continue;
          op_run_assert_same_shape (op_case->name, y[i], run.y[i]);
          if (!ebb_tensor_shares_storage (y[i], run.x[0]) && ebb_tensor_get_n_elements (y[i]) > 0)
            g_assert_true (y[i]->storage->placeholder);
        }
      op_case_clear (y, OP_CASE_MAX_OUTPUTS);
      op_run_clear (&run);
    }
}

/* -- the list is whole -------------------------------------------------------------------------------------------- */

static void
each_public_op_has_a_case (void)
{
  g_autofree char *folder = g_build_filename (g_getenv ("EBB_SOURCE_DIR") ?: ".", "tensor", "ops", NULL);
  g_autoptr (GRegex) prototype = g_regex_new ("^EbbTensor [* ]+ebb_([a-z0-9_]+) \\(|^gboolean ebb_([a-z0-9_]+) \\(",
                                              G_REGEX_MULTILINE, 0, NULL);
  g_autoptr (GDir) dir = g_dir_open (folder, 0, NULL);
  const char *file;
  guint n = 0;

  if (dir == NULL)
    {
      g_test_skip ("EBB_SOURCE_DIR does not name the source tree");
      return;
    }
  while ((file = g_dir_read_name (dir)) != NULL)
    {
      g_autofree char *path = g_build_filename (folder, file, NULL);
      g_autofree char *text = NULL;
      g_autoptr (GMatchInfo) match = NULL;

      if (!g_str_has_suffix (file, ".h") || g_str_has_suffix (file, "-private.h"))
        continue;
      g_assert_true (g_file_get_contents (path, &text, NULL, NULL));
      for (g_regex_match (prototype, text, 0, &match); g_match_info_matches (match); g_match_info_next (match, NULL))
        {
          g_autofree char *first = g_match_info_fetch (match, 1);
          g_autofree char *second = g_match_info_fetch (match, 2);
          const char *name = first != NULL && *first != '\0' ? first : second;

          if (op_cases_find (name) == NULL)
            g_error ("ebb_%s () in %s has no entry in tests/support/op-cases*.c", name, file);
          n++;
        }
    }
  g_assert_cmpuint (n, >, 90);
}

/* -- timing ------------------------------------------------------------------------------------------------------- */

static double
count_bytes (EbbTensor **tensors,
             guint n)
{
  double sum = 0.0;

  for (guint i = 0; i < n; i++)
    if (tensors[i] != NULL)
      sum += (double) ebb_tensor_get_n_bytes (tensors[i]);
  return sum;
}

/* The median of some runs, in seconds; of the backward pass alone if @backward. */
static double
measure (const OpCase *op_case,
         OpRun *run,
         gboolean backward)
{
  double times[15];
  guint n = 0;
  gint64 end;

  op_run_forward (run, op_case, &op_case->timing);
  if (backward)
    op_run_backward (run);
  end = g_get_monotonic_time () + G_USEC_PER_SEC;
  while (n < G_N_ELEMENTS (times) && (n < 3 || g_get_monotonic_time () < end))
    {
      gint64 start = g_get_monotonic_time ();

      op_run_forward (run, op_case, &op_case->timing);
      if (backward)
        {
          start = g_get_monotonic_time ();
          op_run_backward (run);
        }
      times[n++] = (double) (g_get_monotonic_time () - start) / G_USEC_PER_SEC;
    }
  for (guint i = 1; i < n; i++)
    for (guint k = i; k > 0 && times[k] < times[k - 1]; k--)
      {
        double time = times[k];

        times[k] = times[k - 1];
        times[k - 1] = time;
      }
  return times[n / 2];
}

static void
print_rate (double seconds,
            double bytes,
            double operations)
{
  printf ("  %11.0f", seconds * 1e9);
  if (operations > 0.0)
    printf (" %8.1f GFLOP/s", operations / seconds * 1e-9);
  else
    printf (" %8.1f GB/s   ", bytes / seconds * 1e-9);
}

static int
print_times (const char *wanted)
{
  printf ("%-30s %-50s  %11s %16s  %11s\n", "op", "operands", "ns", "", "ns backward");
  for (const OpCase *const *op_case = op_cases_get_all (); *op_case != NULL; op_case++)
    {
      OpRun run;
      double bytes, operations;

      if ((*op_case)->timing.operands == NULL || (wanted != NULL && strcmp (wanted, (*op_case)->name) != 0))
        continue;
      op_run_on (&run, *op_case, &(*op_case)->timing, op_run_tested);
      bytes = count_bytes (run.x, OP_CASE_MAX_INPUTS) + count_bytes (run.y, OP_CASE_MAX_OUTPUTS);
      operations = (*op_case)->count_operations != NULL ? (*op_case)->count_operations (run.x, run.y) : 0.0;
      printf ("%-30s %-50s", (*op_case)->name, (*op_case)->timing.operands);
      print_rate (measure (*op_case, &run, FALSE), bytes, operations);
      if (op_run_wants_gradient (*op_case, &run))
        print_rate (measure (*op_case, &run, TRUE), bytes, 2.0 * operations);
      printf ("\n");
      fflush (stdout);
      op_run_clear (&run);
    }
  return EXIT_SUCCESS;
}

/* -- main --------------------------------------------------------------------------------------------------------- */

static void
add_device_tests (const char *name)
{
  EbbDevice *device = ebb_device_get (name, NULL);

  if (device == NULL || device == ebb_device_get_cpu ())
    return;
  for (const OpCase *const *op_case = op_cases_get_all (); *op_case != NULL; op_case++)
    {
      g_autofree char *path = g_strdup_printf ("/op-cases/%s-and-cpu/%s", name, (*op_case)->name);
      Pair *pair = g_new (Pair, 1);

      *pair = (Pair){ *op_case, device };
      g_test_add_data_func_full (path, pair, (GTestDataFunc) agrees_with_cpu, g_free);
    }
}

int
main (int argc, char **argv)
{
  gboolean times = FALSE;
  g_autofree char *device = NULL;
  g_autoptr (GError) error = NULL;
  const GOptionEntry entries[] = { { "time", 0, 0, G_OPTION_ARG_NONE, &times, "measure instead of testing", NULL },
                                   { "device", 0, 0, G_OPTION_ARG_STRING, &device, "the device to test", "NAME" },
                                   { NULL } };
  g_autoptr (GOptionContext) options = g_option_context_new ("[OP]");

  g_option_context_add_main_entries (options, entries, NULL);
  g_option_context_set_ignore_unknown_options (options, TRUE);
  if (!g_option_context_parse (options, &argc, &argv, &error))
    g_error ("%s", error->message);
  op_run_set_up (device);
  if (times)
    return print_times (argc > 1 ? argv[1] : NULL);

  op_run_init (&argc, &argv);
  g_test_add_func ("/op-cases/each-public-op-has-a-case", each_public_op_has_a_case);
  op_run_add_tests ("reference", (GTestDataFunc) agrees_with_reference);
  op_run_add_tests ("gradient", (GTestDataFunc) agrees_with_differences);
  op_run_add_tests ("stopped", (GTestDataFunc) goes_on_without_data);
  if (op_run_tested != ebb_device_get_cpu ())
    add_device_tests (ebb_device_get_name (op_run_tested));
  else
    {
      add_device_tests ("sim");
      add_device_tests ("cuda");
    }
  return g_test_run ();
}
