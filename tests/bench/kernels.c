/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include <ebb/ebb.h>

#include <json-glib/json-glib.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Times the kernels of a device by its own clock: bytes a second of those that memory limits, operations a second of
 * products and attention, and bytes a second of copies to pinned memory and back. The figure is the median of the
 * rounds. A kernel's bytes are those of its operands, each read or written once, so a share of what `copy` moves says
 * how much is left to gain. */

static int rounds = 9, rows = 32 * 1024, width = 768, vocab = 50257, context = 1024, head_width = 64;
static char *device_name;
static gboolean as_json;

static const GOptionEntry entries[] = {
  { "device", 0, 0, G_OPTION_ARG_STRING, &device_name, "cuda (default), cudaemu, sim", "NAME" },
  { "rounds", 0, 0, G_OPTION_ARG_INT, &rounds, "Rounds of which the median is taken (9)", "N" },
  { "rows", 0, 0, G_OPTION_ARG_INT, &rows, "Tokens (32768)", "N" },
  { "width", 0, 0, G_OPTION_ARG_INT, &width, "Size of a token's vector (768)", "N" },
  { "vocab", 0, 0, G_OPTION_ARG_INT, &vocab, "Different tokens (50257)", "N" },
  { "context", 0, 0, G_OPTION_ARG_INT, &context, "Tokens of a sequence (1024)", "N" },
  { "head-width", 0, 0, G_OPTION_ARG_INT, &head_width, "Size of a head's vector (64)", "N" },
  { "json", 0, 0, G_OPTION_ARG_NONE, &as_json, "Print one JSON object: GB/s (_gbs) and TFLOP/s (_tflops)", NULL },
  G_OPTION_ENTRY_NULL,
};

/* -- what is run --------------------------------------------------------------------------------------------------- */

typedef struct
{
  EbbDevice *device;
  EbbTensor *x, *other;      /* bf16 [rows, width] */
  EbbTensor *weight, *bias;  /* f32 [width] */
  EbbTensor *square;         /* bf16 [width, 4 * width] */
  EbbTensor *table, *tokens; /* f32 [vocab, width], i64 [rows] */
  EbbTensor *logits;         /* bf16 [rows / 8, vocab] */
  EbbTensor *targets;        /* i64 [rows / 8] */
  EbbTensor *q;              /* bf16 [rows / context, width / head_width, context, head_width] */
  EbbModule *linear;         /* f32 [4 * width, width], without bias */
  EbbOptimizer *optimizer;   /* of linear */
} Operands;

typedef EbbTensor *(*OpFunc) (const Operands *operands,
                              GError **error);

static EbbTensor *
copy (const Operands *operands,
      GError **error)
{
  return ebb_copy (operands->x, error);
}

static EbbTensor *
add (const Operands *operands,
     GError **error)
{
  return ebb_add (operands->x, operands->other, error);
}

static EbbTensor *
gelu (const Operands *operands,
      GError **error)
{
  return ebb_gelu (operands->x, EBB_GELU_TANH, error);
}

static EbbTensor *
softmax (const Operands *operands,
         GError **error)
{
  return ebb_softmax (operands->x, -1, error);
}

static EbbTensor *
layer_norm (const Operands *operands,
            GError **error)
{
  return ebb_layer_norm (operands->x, operands->weight, operands->bias, 1e-5, error);
}

static EbbTensor *
rms_norm (const Operands *operands,
          GError **error)
{
  return ebb_rms_norm (operands->x, operands->weight, 1e-5, error);
}

static EbbTensor *
cross_entropy (const Operands *operands,
               GError **error)
{
  return ebb_cross_entropy (operands->logits, operands->targets, error);
}

static EbbTensor *
embedding (const Operands *operands,
           GError **error)
{
  return ebb_embedding (operands->table, operands->tokens, error);
}

static EbbTensor *
product (const Operands *operands,
         GError **error)
{
  return ebb_matmul (operands->x, operands->square, error);
}

static EbbTensor *
attention (const Operands *operands,
           GError **error)
{
  return ebb_scaled_dot_product_attention (operands->q, operands->q, operands->q, NULL, TRUE, 0, 0, NULL, error);
}

/* Gradients as large as the weight, and AdamW. */
static EbbTensor *
adamw (const Operands *operands,
       GError **error)
{
  guint n;
  g_autofree EbbTensor **parameters = ebb_module_get_parameters (operands->linear, TRUE, &n);
  EbbTensor *weight = parameters[0];
  g_autoptr (EbbTensor) grad = ebb_copy (weight, error);
  gboolean ok = grad != NULL && ebb_tensor_set_grad (weight, grad, error)
                && ebb_optimizer_step (operands->optimizer, error);

  return ok ? weight : (ebb_tensor_unref (weight), NULL);
}

/* -- what is measured ---------------------------------------------------------------------------------------------- */

typedef enum
{
  ROWS,   /* of x */
  LOGITS, /* elements of logits */
  TABLE,  /* of the table, beside rows of x */
  WEIGHT, /* of linear */
  PRODUCT,
  SCORES /* products of attention */
} Unit;

/* Bytes for each element of the unit, or operations for each of its products. */
static const struct
{
  const char *name, *kernel;
  OpFunc run;
  Unit unit;
  gboolean backward;
  double each;
} cases[] = {
  { "copy", "copy", copy, ROWS, FALSE, 4 },
  { "add", "binary", add, ROWS, FALSE, 6 },
  { "gelu", "unary", gelu, ROWS, FALSE, 4 },
  { "gelu_grad", "unary_grad", gelu, ROWS, TRUE, 6 },
  { "softmax", "softmax", softmax, ROWS, FALSE, 4 },
  { "softmax_grad", "softmax_grad", softmax, ROWS, TRUE, 6 },
  { "layer_norm", "layer_norm", layer_norm, ROWS, FALSE, 4 },
  { "layer_norm_grad", "layer_norm_grad", layer_norm, ROWS, TRUE, 6 },
  { "rms_norm", "rms_norm", rms_norm, ROWS, FALSE, 4 },
  { "rms_norm_grad", "rms_norm_grad", rms_norm, ROWS, TRUE, 6 },
  { "cross_entropy", "cross_entropy", cross_entropy, LOGITS, FALSE, 2 },
  { "cross_entropy_grad", "cross_entropy_grad", cross_entropy, LOGITS, TRUE, 4 },
  { "embedding", "index_select", embedding, ROWS, FALSE, 8 },
  { "embedding_grad", "index_add", embedding, TABLE, TRUE, 4 },
  { "adamw", "adamw", adamw, WEIGHT, FALSE, 28 },
  { "matmul", "matmul", product, PRODUCT, FALSE, 2 },
  { "attention", "attention", attention, SCORES, FALSE, 2 },
  { "attention_grad", "attention_grad", attention, SCORES, TRUE, 5 },
};

static double
count (Unit unit)
{
  const double elements = (double) rows * width;

  switch (unit)
    {
    case ROWS: return elements;
    case LOGITS: return (double) (rows / 8) * vocab;
    case TABLE: return elements + (double) vocab * width; /* reads gradients, writes the table's */
    case WEIGHT: return 4.0 * width * width;
    case PRODUCT: return elements * 4 * width;
    case SCORES: return elements * context; /* both products of it, half of each behind the diagonal */
    }
  return 0;
}

static gboolean
is_limited_by_memory (Unit unit)
{
  return unit < PRODUCT;
}

static gboolean
run_once (guint which,
          const Operands *operands,
          GError **error)
{
  g_autoptr (EbbTensor) y = cases[which].run (operands, error);
  g_autoptr (EbbTensor) sum = NULL;

  if (y == NULL || !cases[which].backward)
    return y != NULL;
  sum = ebb_sum (y, NULL, 0, FALSE, error);
  return sum != NULL && ebb_tensor_backward (sum, error) && ebb_tensor_set_grad (operands->x, NULL, error)
         && ebb_tensor_set_grad (operands->table, NULL, error) && ebb_tensor_set_grad (operands->q, NULL, error)
         && ebb_tensor_set_grad (operands->logits, NULL, error);
}

static int
compare (const void *a,
         const void *b)
{
  double x = *(const double *) a, y = *(const double *) b;

  return x < y ? -1 : x > y;
}

/* The rows of a trace. */
enum
{
  COMPUTE = 1,
  TO_HOST,
  FROM_HOST
};

/* The seconds of each event of @category in a row of @trace, those called @name if that isn't NULL. */
static GArray *
read_seconds (const char *trace,
              gint64 row,
              const char *category,
              const char *name)
{
  g_autoptr (JsonParser) parser = json_parser_new ();
  GArray *seconds = g_array_new (FALSE, FALSE, sizeof (double));
  JsonArray *events;

  if (!json_parser_load_from_data (parser, trace, -1, NULL))
    return seconds;
  events = json_object_get_array_member (json_node_get_object (json_parser_get_root (parser)), "traceEvents");
  for (guint i = 0; i < json_array_get_length (events); i++)
    {
      JsonObject *event = json_array_get_object_element (events, i);
      double length;

      if (json_object_get_int_member (event, "tid") != row
          || strcmp (json_object_get_string_member_with_default (event, "cat", ""), category) != 0
          || (name != NULL && strcmp (json_object_get_string_member (event, "name"), name) != 0))
        continue;
      length = json_object_get_double_member (event, "dur") * 1e-6;
      g_array_append_val (seconds, length);
    }
  return seconds;
}

static double
take_median (GArray *seconds)
{
  if (seconds->len == 0)
    return 0;
  qsort (seconds->data, seconds->len, sizeof (double), compare);
  return g_array_index (seconds, double, seconds->len / 2);
}

/* @run a few times, then @rounds times while the device is traced. */
static char *
trace (const Operands *operands,
       guint which,
       gboolean (*run) (guint which,
                        const Operands *operands,
                        GError **error),
       GError **error)
{
  for (int i = -2; i < rounds; i++)
    if ((i == 0 && !ebb_stream_trace_start (operands->device, error)) || !run (which, operands, error))
      return NULL;
  return ebb_stream_trace_stop (operands->device, error);
}

/* -- results ------------------------------------------------------------------------------------------------------- */

static gboolean is_first = TRUE;

static void
print_rate (const char *name,
            double seconds,
            double amount,
            gboolean is_bytes)
{
  const double rate = seconds > 0 ? amount / seconds * (is_bytes ? 1e-9 : 1e-12) : 0;

  if (as_json)
    printf ("%s\"%s_%s\": %.5g", is_first ? "{" : ", ", name, is_bytes ? "gbs" : "tflops", rate);
  else
    printf ("%-20s %10.1f us %10.4g %s\n", name, seconds * 1e6, rate, is_bytes ? "GB/s" : "TFLOP/s");
  is_first = FALSE;
}

static gboolean
measure (guint which,
         const Operands *operands,
         GError **error)
{
  g_autofree char *events = trace (operands, which, run_once, error);
  g_autoptr (GArray) seconds = NULL;

  if (events == NULL)
    return FALSE;
  seconds = read_seconds (events, COMPUTE, "kernel", cases[which].kernel);
  if (seconds->len == 0)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "%s ran no kernel %s", cases[which].name,
                   cases[which].kernel);
      return FALSE;
    }
  print_rate (cases[which].name, take_median (seconds), count (cases[which].unit) * cases[which].each,
              is_limited_by_memory (cases[which].unit));
  return TRUE;
}

/* What three activations save goes to pinned memory and comes back, but the last, which backward needs at once. */
static gboolean
offload_once (guint which,
              const Operands *operands,
              GError **error)
{
  g_autoptr (EbbSavedTensorHooks) store = ebb_host_store_new ();
  g_autoptr (EbbTensor) x = ebb_mul_scalar (operands->x, 1, error);
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) sum = NULL;

  ebb_push_saved_tensor_hooks (store);
  for (int i = 0; i < 3 && x != NULL; i++)
    {
      y = ebb_gelu (x, EBB_GELU_TANH, error);
      ebb_tensor_unref (x);
      x = g_steal_pointer (&y);
    }
  ebb_pop_saved_tensor_hooks ();
  sum = x != NULL ? ebb_sum (x, NULL, 0, FALSE, error) : NULL;
  return sum != NULL && ebb_activation_store_synchronize (EBB_ACTIVATION_STORE (store), error)
         && ebb_tensor_backward (sum, error) && ebb_tensor_set_grad (operands->x, NULL, error);
}

static gboolean
measure_copies (const Operands *operands,
                GError **error)
{
  g_autofree char *events = trace (operands, 0, offload_once, error);
  static const char *const names[] = { [TO_HOST] = "to_host", [FROM_HOST] = "from_host" };

  if (events == NULL)
    return FALSE;
  for (int row = TO_HOST; row <= FROM_HOST; row++)
    {
      g_autoptr (GArray) seconds = read_seconds (events, row, "copy", NULL);

      /* Stores leave small tensors where they are. */
      if (seconds->len > 0)
        print_rate (names[row], take_median (seconds), count (ROWS) * 2, TRUE);
    }
  return TRUE;
}

/* -- operands ------------------------------------------------------------------------------------------------------ */

static EbbTensor *
make (const gint64 *shape,
      guint n_dims,
      EbbDType dtype,
      gboolean is_leaf,
      GError **error)
{
  EbbTensor *tensor = *error == NULL ? ebb_randn (shape, n_dims, dtype, NULL, NULL, error) : NULL;

  if (tensor != NULL && is_leaf)
    ebb_tensor_set_requires_grad (tensor, TRUE, error);
  return tensor;
}

static gboolean
operands_init (Operands *self,
               GError **error)
{
  const gint64 x[] = { rows, width }, square[] = { width, 4 * width }, table[] = { vocab, width };
  const gint64 logits[] = { rows / 8, vocab };
  const gint64 heads[] = { rows / context, width / head_width, context, head_width };

  self->device = ebb_device_get (device_name != NULL ? device_name : "cuda", error);
  if (self->device == NULL)
    return FALSE;
  ebb_set_default_device (self->device);
  self->x = make (x, 2, EBB_DTYPE_BF16, TRUE, error);
  self->other = make (x, 2, EBB_DTYPE_BF16, FALSE, error);
  self->weight = make (x + 1, 1, EBB_DTYPE_F32, FALSE, error);
  self->bias = make (x + 1, 1, EBB_DTYPE_F32, FALSE, error);
  self->square = make (square, 2, EBB_DTYPE_BF16, FALSE, error);
  self->table = make (table, 2, EBB_DTYPE_F32, TRUE, error);
  self->logits = make (logits, 2, EBB_DTYPE_BF16, TRUE, error);
  self->q = make (heads, 4, EBB_DTYPE_BF16, TRUE, error);
  if (*error != NULL)
    return FALSE;
  self->tokens = ebb_randint (0, vocab, x, 1, EBB_DTYPE_I64, NULL, NULL, error);
  self->targets = *error == NULL ? ebb_randint (0, vocab, logits, 1, EBB_DTYPE_I64, NULL, NULL, error) : NULL;
  self->linear = *error == NULL ? ebb_linear_new (width, 4 * width, FALSE, error) : NULL;
  self->optimizer = *error == NULL ? ebb_adamw_new (self->linear, 1e-4, error) : NULL;
  return *error == NULL;
}

static void
operands_clear (Operands *self)
{
  EbbTensor **tensors[] = { &self->x, &self->other, &self->weight, &self->bias, &self->square,
                            &self->table, &self->tokens, &self->logits, &self->targets, &self->q };

  for (guint i = 0; i < G_N_ELEMENTS (tensors); i++)
    g_clear_pointer (tensors[i], ebb_tensor_unref);
  g_clear_object (&self->optimizer);
  g_clear_object (&self->linear);
}

static gboolean
check (GError **error)
{
  if (rounds >= 1 && width >= 1 && vocab >= 1 && head_width >= 1 && width % head_width == 0 && context >= 1
      && rows >= 8 && rows % context == 0)
    return TRUE;
  g_set_error (
      error, G_OPTION_ERROR, G_OPTION_ERROR_BAD_VALUE,
      "--rows %d --context %d --width %d --head-width %d --vocab %d --rounds %d: all must be 1 or more, rows a "
      "multiple of context from 8 on, width one of head-width",
      rows, context, width, head_width, vocab, rounds);
  return FALSE;
}

int
main (int argc,
      char **argv)
{
  g_autoptr (GOptionContext) options = g_option_context_new ("- what the kernels of a device reach");
  g_autoptr (GError) error = NULL;
  Operands operands = { NULL };
  gboolean ok;

  g_option_context_add_main_entries (options, entries, NULL);
  if (!g_option_context_parse (options, &argc, &argv, &error) || !check (&error))
    {
      fprintf (stderr, "kernels: %s\n", error->message);
      return 2;
    }
  ok = operands_init (&operands, &error);
  for (guint i = 0; ok && i < G_N_ELEMENTS (cases); i++)
    ok = measure (i, &operands, &error);
  ok = ok && measure_copies (&operands, &error);
  operands_clear (&operands);
  if (!ok)
    {
      fprintf (stderr, "kernels: %s\n", error->message);
      return 1;
    }
  if (as_json)
    printf ("}\n");
  return 0;
}
