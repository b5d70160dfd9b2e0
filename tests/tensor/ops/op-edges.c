/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only */

/* The list of op cases where there is nothing to do, and where memory ends:
 *
 *   /op-cases/empties-are-pytorchs what PyTorch makes of nothing
 *   /op-cases/empty/OP             dimensions have size zero: an error, or the results and gradients of the reference
 *   /op-cases/out-of-memory/OP     each allocation of the two passes fails, and all after it: one error, nothing stays
 *
 * --device NAME asks for another device than the CPU in the first two. */

#include <math.h>
#include <string.h>

#include "support/op-runs-private.h"
#include "support/stores.h"

/* -- nothing to do ------------------------------------------------------------------------------------------------ */

/* Writes the operands to @text with size zero for each dimension of size @size of each operand if @which is
 * -1, or for dimension @dim of operand @which alone. FALSE if there is no such dimension. */
static gboolean
write_empty (const char *operands,
             gint64 size,
             int which,
             int dim,
             GString *text)
{
  int operand = 0, position = -1;
  gboolean any = FALSE;

  g_string_truncate (text, 0);
  for (const char *at = operands; *at != '\0';)
    {
      gint64 value = g_ascii_isdigit (*at) ? g_ascii_strtoll (at, (char **) &at, 10) : -1;
      gboolean is_size = value >= 0 && position >= 0;

      if (is_size && (which < 0 ? value == size : which == operand && position == dim))
        {
          any = TRUE;
          value = 0;
        }
      if (value >= 0)
        {
          g_string_append_printf (text, "%" G_GINT64_FORMAT, value);
          position += is_size;
          continue;
        }
      if (*at == ':')
        position = 0;
      else if (*at == ' ')
        {
          operand++;
          position = -1;
        }
      g_string_append_c (text, *at++);
    }
  return any;
}

static void
assert_all (const char *what,
            EbbTensor *tensor,
            double value)
{
  g_autoptr (GError) error = NULL;
  g_autofree double *values = op_case_read (tensor, &error);

  g_assert_no_error (error);
  for (gint64 i = 0; i < ebb_tensor_get_n_elements (tensor); i++)
    if (!op_run_is_close (values[i], value, 0))
      g_error ("%s: element %" G_GINT64_FORMAT " is %g and must be %g", what, i, values[i], value);
}

/* Whether @device did it, or said why not. */
static gboolean
try_on (OpRun *run,
        const OpCase *op_case,
        const OpVariant *variant,
        EbbDevice *device)
{
  g_autoptr (GError) error = NULL;
  gboolean done;

  memset (run, 0, sizeof *run);
  op_case_make_inputs (variant, 7, device, run->x, &run->n_inputs, &error);
  g_assert_no_error (error);
  done = op_case_run (op_case, variant, run->x, run->y, &error);
  g_assert_true (done == (error == NULL));
  return done;
}

static void
compare_empty (const OpCase *op_case,
               const OpVariant *variant)
{
  OpRun run, right;

  g_test_message ("%s (%s)", op_case->name, variant->operands);
  if (!try_on (&run, op_case, variant, op_run_tested))
    {
      g_assert_false (try_on (&right, op_case, variant, op_run_reference));
      op_run_clear (&run);
      op_run_clear (&right);
      return;
    }
  op_run_clear (&run);
  op_run_compare (op_case, variant, op_run_tested, op_run_reference);
}

static void
does_nothing_where_nothing_is (gconstpointer data)
{
  const OpCase *op_case = data;
  g_autoptr (GString) text = g_string_new (NULL);

  for (const OpVariant *variant = op_case->variants; variant->operands != NULL; variant++)
    {
      OpVariant empty = *variant;

      for (gint64 size = 1; size < 80; size++)
        if (write_empty (variant->operands, size, -1, 0, text))
          {
            empty.operands = text->str;
            compare_empty (op_case, &empty);
          }
      for (int which = 0; which < OP_CASE_MAX_INPUTS; which++)
        for (int dim = 0; write_empty (variant->operands, 0, which, dim, text); dim++)
          {
            empty.operands = text->str;
            compare_empty (op_case, &empty);
          }
    }
}

/* The results are those of PyTorch 2.15. Gradients of operands with elements are 0. */
static void
empties_are_pytorchs (void)
{
  static const struct
  {
    const char *op;
    OpVariant variant;
    const char *shape; /* of the first result; NULL: an error */
    double value;      /* of all its elements */
  } cases[] = {
    { "sum", { "n:4x0t", { 0, 0 } }, "[]", 0 },
    { "sum", { "n:0x4", { 0, 1, 0 } }, "[4]", 0 },
    { "sum", { "n:0x4", { 0, 1, 1 } }, "[0]", 0 },
    { "mean", { "n:0x4", { 0, 0 } }, "[]", NAN },
    { "mean", { "n:0x4", { 0, 1, 0 } }, "[4]", NAN },
    { "mean", { "n:0x4", { 0, 1, 1 } }, "[0]", 0 },
    { "var", { "n:0x4", { 0, 0, 0, 0, 1 } }, "[]", NAN },
    { "var", { "n:0x4", { 0, 1, 0, 0, 1 } }, "[4]", NAN },
    { "norm", { "n:4x0t" }, "[]", 0 },
    { "max", { "n:0x4", { 0, 0 } }, NULL, 0 },
    { "max", { "n:0x4", { 0, 1, 0 } }, NULL, 0 },
    { "max", { "n:0x4", { 0, 1, 1 } }, "[0]", 0 },
    { "min", { "n:0x4", { 0, 0 } }, NULL, 0 },
    { "argmax", { "n:0x4", { 0, 0 } }, NULL, 0 },
    { "argmax", { "n:0x4", { 1, 0 } }, "[0]", 0 },
    { "max_along", { "n:0x4", { 0, 0 } }, NULL, 0 },
    { "max_along", { "n:0x4", { 1, 0 } }, "[0]", 0 },
    { "topk", { "n:0x4", { 2, 1 } }, "[0, 2]", 0 },
    { "topk", { "n:4x0", { 2, 1 } }, NULL, 0 },
    { "softmax", { "n:0x4", { 0 } }, "[0, 4]", 0 },
    { "log_softmax", { "n:4x0", { 1 } }, "[4, 0]", 0 },
    { "matmul", { "n:3x0 n:0x5" }, "[3, 5]", 0 },
    { "matmul", { "n:0x3 n:3x5" }, "[0, 5]", 0 },
    { "matmul", { "n:0 n:0" }, "[]", 0 },
    { "matmul", { "n:2x0x3 n:3x4" }, "[2, 0, 4]", 0 },
    { "linear", { "n:0x4 n:5x4 n:5" }, "[0, 5]", 0 },
    { "linear", { "n:3x4 n:0x4 n:0" }, "[3, 0]", 0 },
    { "bias_gelu", { "n:0x8 n:8", { 0 } }, "[0, 8]", 0 },
    { "layer_norm", { "n:2x0x8 n:8 n:8" }, "[2, 0, 8]", 0 },
    { "layer_norm", { "n:2x3x0 n:0 n:0" }, "[2, 3, 0]", 0 },
    { "rms_norm", { "n:2x0x8 n:8" }, "[2, 0, 8]", 0 },
    { "batch_norm", { "n:0x3 n:3 n:3 c:3 v:3", { 1, 0.1 } }, "[0, 3]", 0 },
    { "batch_norm", { "n:4x3x0 n:3 n:3 c:3 v:3", { 1, 0.1 } }, "[4, 3, 0]", 0 },
    { "residual_dropout_layer_norm", { "n:0x8 n:0x8 n:8 n:8", { 0, 1 } }, "[0, 8]", 0 },
    { "cross_entropy", { "n:0x5 i5:0" }, "[]", NAN },
    { "cross_entropy_full", { "n:0x5 i5:0", { -100, 0.1, 1 } }, "[]", 0 },
    { "cross_entropy_full", { "n:0x5 i5:0", { -100, 0, 2 } }, "[0]", 0 },
    { "cross_entropy_full", { "n:3x0 i5:3", { -100, 0, 0 } }, NULL, 0 },
    { "fused_linear_cross_entropy", { "n:0x4 n:7x4 n:7 i7:0", { -100, 0, 0 } }, "[]", NAN },
    { "fused_linear_cross_entropy", { "n:0x4 n:7x4 - i7:0", { -100, 0, 1 } }, "[]", 0 },
    { "scaled_dot_product_attention", { "n:1x1x5x4 n:1x1x0x4 n:1x1x0x4 -" }, "[1, 1, 5, 4]", 0 },
    { "scaled_dot_product_attention", { "n:1x1x5x4 n:1x1x0x4 n:1x1x0x4 -", { 1 } }, "[1, 1, 5, 4]", 0 },
    { "scaled_dot_product_attention", { "n:1x1x0x4 n:1x1x5x4 n:1x1x5x4 -" }, "[1, 1, 0, 4]", 0 },
    { "scaled_dot_product_attention", { "n:1x0x5x4 n:1x3x5x4 n:1x3x5x4 -" }, NULL, 0 },
    { "self_attention", { "n:2x0x12 -", { 0, 0, 0, 2 } }, "[2, 0, 4]", 0 },
    { "embedding", { "n:7x4 i7:0" }, "[0, 4]", 0 },
    { "embedding", { "n:7x0 i7:2" }, "[2, 0]", 0 },
    { "embedding", { "n:0x4 i7:0" }, "[0, 4]", 0 },
    { "embedding", { "n:0x4 i7:2" }, NULL, 0 },
    { "index_select", { "n:7x4 i7:0", { 0 } }, "[0, 4]", 0 },
    { "index_select", { "n:0x4 i7:2", { 0 } }, NULL, 0 },
    { "gather", { "n:7x4 i7:0x4", { 0 } }, "[0, 4]", 0 },
    { "gather", { "n:7x4 i7:3x0", { 0 } }, "[3, 0]", 0 },
    { "gather", { "n:0x4 i7:3x4", { 0 } }, NULL, 0 },
    { "scatter_add", { "n:0x4 i7:3x4 n:3x4", { 0 } }, NULL, 0 },
    { "stack", { "n:0x3 n:0x3", { 0 } }, "[2, 0, 3]", 0 },
    { "reshape", { "n:0x4", { 2, -1, 4 } }, "[0, 4]", 0 },
    { "reshape", { "n:0x4", { 2, 5, 0 } }, "[5, 0]", 0 },
    { "reshape", { "n:0x4", { 2, 0, -1 } }, NULL, 0 },
    { "view", { "n:4x0t", { 2, 0, 9 } }, "[0, 9]", 0 },
    { "view", { "n:0x3x4t", { 2, 0, 12 } }, "[0, 12]", 0 },
    { "view", { "n:0x3x4t", { 4, 7, 0, 2, 2 } }, "[7, 0, 2, 2]", 0 },
    { "reshape", { "n:0x3x4t", { 2, 12, 0 } }, "[12, 0]", 0 },
    { "reshape", { "n:0x3x4t", { 4, 7, 0, 2, 2 } }, "[7, 0, 2, 2]", 0 },
    { "flatten", { "n:0x3x4t", { 0, -1 } }, "[0]", 0 },
    { "view", { "n:4x0t", { 3, 2, 2, 0 } }, "[2, 2, 0]", 0 },
    { "expand", { "n:1x0", { 2, 3, 0 } }, "[3, 0]", 0 },
    { "expand", { "n:1x4", { 2, 0, 4 } }, "[0, 4]", 0 },
    { "flatten", { "n:2x0x3", { 0, -1 } }, "[0]", 0 },
    { "split", { "n:0x4", { 2, 0 } }, "[0, 4]", 0 },
    { "split", { "n:0x4", { 2, 1 } }, "[0, 2]", 0 },
    { "chunk", { "n:0x4", { 3, 0 } }, "[0, 4]", 0 },
    { "narrow", { "n:5x4", { 0, 0, 0 } }, "[0, 4]", 0 },
    { "select", { "n:0x4", { 0, 0 } }, NULL, 0 },
    { "slice", { "n:5x4", { 0, 3, 1, 1 } }, "[0, 4]", 0 },
    { "where", { "b:0x4 n:0x4 n:4" }, "[0, 4]", 0 },
    { "add", { "n:0x4 n:4" }, "[0, 4]", 0 },
    { "add", { "n:0x1 n:1x4" }, "[0, 4]", 0 },
    { "add", { "n:0x4 n:3x4" }, NULL, 0 },
    { "mul", { "n:0x4 n:1" }, "[0, 4]", 0 },
    { "tril", { "n:0x4", { 0 } }, "[0, 4]", 0 },
    { "clamp", { "n:0x4", { 0, 1 } }, "[0, 4]", 0 },
    { "dropout", { "n:0x4", { 0.5, 1 } }, "[0, 4]", 0 },
  };

  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      const OpCase *op_case = op_cases_find (cases[i].op);
      g_autofree char *what = g_strdup_printf ("%s (%s)", cases[i].op, cases[i].variant.operands);
      g_autofree char *shape = NULL;
      gboolean backward;
      OpRun run;

      g_test_message ("%s", what);
      if (try_on (&run, op_case, &cases[i].variant, op_run_tested))
        {
          shape = ebb_tensor_shape_to_string (run.y[0]);
          assert_all (what, run.y[0], cases[i].value);
          backward = op_run_wants_gradient (op_case, &run);
          if (backward)
            op_run_backward (&run);
          for (guint k = 0; backward && k < run.n_inputs; k++)
            if (run.x[k] != NULL && ebb_tensor_get_requires_grad (run.x[k]))
              {
                g_autoptr (EbbTensor) grad = ebb_tensor_get_grad (run.x[k]);

                op_run_assert_same_shape (what, grad, run.x[k]);
                assert_all (what, grad, 0);
              }
        }
      g_assert_cmpstr (shape, ==, cases[i].shape);
      op_run_clear (&run);
    }
}

/* -- when memory ends --------------------------------------------------------------------------------------------- */

/* Both passes; the gradients that are sent back are made beforehand. */
static gboolean
try_passes (const OpCase *op_case,
            const OpVariant *variant,
            OpRun *run,
            gboolean backward,
            GError **error)
{
  EbbTensor *outputs[OP_CASE_MAX_OUTPUTS], *grads[OP_CASE_MAX_OUTPUTS];
  guint n = 0;

  if (!op_case_run (op_case, variant, run->x, run->y, error))
    return FALSE;
  for (guint i = 0; i < OP_CASE_MAX_OUTPUTS; i++)
    if (op_run_can_flow (run->y[i]))
      {
        outputs[n] = run->y[i];
        grads[n++] = run->grads[i];
      }
  return !backward || ebb_backward (outputs, n, grads, n, NULL, 0, FALSE, error);
}

static void
fails_once_when_memory_ends (gconstpointer data)
{
  const OpCase *op_case = data;

  for (const OpVariant *variant = op_case->variants; variant->operands != NULL; variant++)
    {
      gboolean backward, done = FALSE;
      OpRun run;

      g_test_message ("%s (%s)", op_case->name, variant->operands);
      op_run_on (&run, op_case, variant, ebb_device_get_cpu ());
      backward = op_run_wants_gradient (op_case, &run);
      if (backward)
        op_run_backward (&run);
      for (guint n_granted = 0; !done; n_granted++)
        {
          g_autoptr (GError) error = NULL;
          guint64 held;

          op_case_clear (run.y, OP_CASE_MAX_OUTPUTS);
          for (guint i = 0; i < run.n_inputs; i++)
            if (run.x[i] != NULL)
              ebb_tensor_set_grad (run.x[i], NULL, NULL);
          held = test_bytes_in_use ();
          op_run_count_allocations (n_granted);
          done = try_passes (op_case, variant, &run, backward, &error);
          g_assert_true (done == (op_run_stop_counting () <= n_granted));
          if (done)
            break;
          g_assert_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY);
          op_case_clear (run.y, OP_CASE_MAX_OUTPUTS);
          g_assert_cmpuint (test_bytes_in_use (), ==, held);
        }
      op_run_clear (&run);
    }
}

/* -- main --------------------------------------------------------------------------------------------------------- */

int
main (int argc,
      char **argv)
{
  g_autofree char *device = NULL;
  g_autoptr (GError) error = NULL;
  const GOptionEntry entries[] = { { "device", 0, 0, G_OPTION_ARG_STRING, &device, "the device to test", "NAME" },
                                   { NULL } };
  g_autoptr (GOptionContext) options = g_option_context_new (NULL);

  g_option_context_add_main_entries (options, entries, NULL);
  g_option_context_set_ignore_unknown_options (options, TRUE);
  if (!g_option_context_parse (options, &argc, &argv, &error))
    g_error ("%s", error->message);
  op_run_set_up (device);
  op_run_init (&argc, &argv);
  g_test_add_func ("/op-cases/empties-are-pytorchs", empties_are_pytorchs);
  op_run_add_tests ("empty", (GTestDataFunc) does_nothing_where_nothing_is);
  op_run_add_tests ("out-of-memory", (GTestDataFunc) fails_once_when_memory_ends);
  return g_test_run ();
}
