/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Bounds of logits that are small enough to bite: the fused loss of every head beside the cap by separate ops. */
/* test: private-headers */
#include "nn/layers/layer-private.h"
#include "support/device.h"
#include "support/ranks.h"
#include "support/tensors.h"

#define SOFTCAP 0.6
#define N_ROWS 7
#define WIDTH 64
#define N_CLASSES 24
#define TOLERANCE 2e-6

typedef enum
{
  WHOLE,
  COLUMN,
  GATHERED_COLUMN,
  ROW
} Division;

typedef struct
{
  Division division;
  EbbQuantization quantization;
  gboolean has_adapter;
  gboolean has_bias;
} Case;

static EbbModule *
make_head (const Case *self, EbbProcessGroup *group, GError **error)
{
  switch (self->division)
    {
    case COLUMN:
    case GATHERED_COLUMN:
      return ebb_column_parallel_linear_new (WIDTH, N_CLASSES, self->has_bias, self->division == GATHERED_COLUMN, group,
                                             error);
    case ROW:
      return ebb_row_parallel_linear_new (WIDTH, N_CLASSES, self->has_bias, FALSE, group, error);
    case WHOLE:
    default:
      return ebb_linear_new (WIDTH, N_CLASSES, self->has_bias, error);
    }
}

/* A container with the head, quantized and wrapped as the case says, with factors that aren't zero. */
static EbbModule *
make_model (const Case *self, EbbProcessGroup *group, GError **error)
{
  g_autoptr (EbbModule) model = ebb_sequential_new ();
  g_autoptr (EbbModule) head = NULL;
  g_autoptr (EbbModule) wrapped = NULL;
  g_autoptr (EbbLoraOptions) options = ebb_lora_options_new ();
  g_autoptr (EbbGenerator) generator = ebb_generator_new (7);
  g_autofree EbbTensor **parameters = NULL;
  guint n;

  ebb_manual_seed (5);
  head = make_head (self, group, error);
  if (head == NULL || !ebb_sequential_append (EBB_SEQUENTIAL (model), head, error))
    return NULL;
  if (self->quantization != EBB_QUANTIZATION_NONE && !ebb_quantize (model, self->quantization, error))
    return NULL;
  if (!self->has_adapter)
    return g_steal_pointer (&model);
  g_object_set (options, "rank", 3, "alpha", 5.0, NULL);
  wrapped = ebb_lora_wrap (model, options, error);
  if (wrapped == NULL)
    return NULL;
  parameters = ebb_module_get_parameters (model, TRUE, &n);
  ebb_push_grad_enabled (FALSE);
  for (guint i = 0; i < n; i++)
    {
      if (ebb_tensor_get_requires_grad (parameters[i]))
        g_assert_true (ebb_tensor_fill_normal (parameters[i], 0, 0.2, generator, NULL));
      ebb_tensor_unref (parameters[i]);
    }
  ebb_pop_grad_enabled ();
  return g_steal_pointer (&model);
}

/* c tanh (x / c) of all logits, then the cross entropy, each by an op of its own. */
static EbbTensor *
compute_plainly (const Case *self,
                 EbbModule *head,
                 EbbTensor *x,
                 EbbTensor *targets,
                 EbbProcessGroup *group,
                 EbbTensor **capped,
                 GError **error)
{
  g_autoptr (EbbTensor) part = ebb_module_call1 (head, x, error);
  g_autoptr (EbbTensor) whole =
      self->division == COLUMN ? ebb_parallel_gather (part, -1, FALSE, group, error) : NULL;
  g_autoptr (EbbTensor) divided = ebb_mul_scalar (whole != NULL ? whole : part, 1 / SOFTCAP, error);
  g_autoptr (EbbTensor) bent = ebb_tanh (divided, error);

  *capped = ebb_mul_scalar (bent, SOFTCAP, error);
  return ebb_cross_entropy (*capped, targets, error);
}

static gboolean
compare (EbbModule *model, EbbModule *other)
{
  guint n, m, n_compared = 0;
  g_autofree EbbTensor **parameters = ebb_module_get_parameters (model, TRUE, &n);
  g_autofree EbbTensor **others = ebb_module_get_parameters (other, TRUE, &m);

  g_assert_cmpuint (n, ==, m);
  for (guint i = 0; i < n; i++)
    {
      g_autoptr (EbbTensor) a = ebb_tensor_get_grad (parameters[i]);
      g_autoptr (EbbTensor) b = ebb_tensor_get_grad (others[i]);

      g_assert_true ((a != NULL) == ebb_tensor_get_requires_grad (parameters[i]));
      g_assert_true ((b != NULL) == (a != NULL));
      if (a != NULL)
        test_assert_near (a, b, TOLERANCE);
      n_compared += a != NULL;
      ebb_tensor_unref (parameters[i]);
      ebb_tensor_unref (others[i]);
    }
  return n_compared > 0;
}

static gboolean
run_rank (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  const Case *self = user_data;
  g_autoptr (EbbModule) fused = make_model (self, group, error);
  g_autoptr (EbbModule) plain = make_model (self, group, error);
  g_autoptr (EbbModule) fused_head = NULL;
  g_autoptr (EbbModule) plain_head = NULL;
  g_autoptr (EbbTensor) targets = test_tokens (3, N_CLASSES, N_ROWS, -1);
  g_autoptr (EbbTensor) loss = NULL;
  g_autoptr (EbbTensor) plain_loss = NULL;
  g_autoptr (EbbTensor) capped = NULL;
  g_autoptr (EbbTensor) uncapped = NULL;
  g_autoptr (EbbTensor) same = NULL;
  EbbTensor *x[2];

  if (fused == NULL || plain == NULL)
    return FALSE;
  fused_head = ebb_module_get_child (fused, "0");
  plain_head = ebb_module_get_child (plain, "0");
  for (int i = 0; i < 2; i++)
    {
      x[i] = test_randn (4, N_ROWS, WIDTH, -1);
      g_assert_true (ebb_tensor_set_requires_grad (x[i], TRUE, NULL));
    }
  loss = ebb_linear_call_for_loss (fused_head, x[0], targets, SOFTCAP, error);
  plain_loss = compute_plainly (self, plain_head, x[1], targets, group, &capped, error);
  if (loss == NULL || plain_loss == NULL || !ebb_tensor_backward (loss, error)
      || !ebb_tensor_backward (plain_loss, error))
    return FALSE;
  test_assert_near (loss, plain_loss, TOLERANCE);
  {
    g_autoptr (EbbTensor) a = ebb_tensor_get_grad (x[0]);
    g_autoptr (EbbTensor) b = ebb_tensor_get_grad (x[1]);

    test_assert_near (a, b, TOLERANCE);
  }
  g_assert_true (compare (fused, plain) || self->quantization != EBB_QUANTIZATION_NONE);
  /* The cap bites: without it the loss is another one. The op of its own gives the logits of the formula. */
  ebb_push_grad_enabled (FALSE);
  uncapped = ebb_linear_call_for_loss (fused_head, x[0], targets, 0, error);
  g_assert_cmpfloat (ABS (test_at (uncapped, 0) - test_at (loss, 0)), >, 0.01);
  if (self->division != COLUMN)
    {
      g_autoptr (EbbTensor) logits = ebb_module_call1 (fused_head, x[0], error);

      same = ebb_soft_cap (logits, SOFTCAP, error);
      test_assert_near (same, capped, TOLERANCE);
    }
  ebb_pop_grad_enabled ();
  ebb_tensor_unref (x[0]);
  ebb_tensor_unref (x[1]);
  return TRUE;
}

static void
caps_are_those_of_separate_ops (gconstpointer data)
{
  const Case *self = data;

  for (guint n_ranks = 1; n_ranks <= (self->division == WHOLE ? 1 : 3); n_ranks++)
    test_ranks_run (n_ranks, run_rank, (gpointer) self);
}

int
main (int argc, char **argv)
{
  static const char *const divisions[] = { "whole", "column", "gathered-column", "row" };
  static const char *const quantizations[] = { "f32", "int8", "nf4" };
  static Case cases[4 * 3 * 2];
  guint n = 0;

  test_init (&argc, &argv);
  for (guint division = WHOLE; division <= ROW; division++)
    for (guint quantization = 0; quantization < (division == WHOLE ? 3 : 1); quantization++)
      for (gboolean has_adapter = FALSE; has_adapter <= TRUE; has_adapter++)
        {
          Case *self = &cases[n++];
          g_autofree char *path = g_strdup_printf ("/softcap/%s/%s%s", divisions[division], quantizations[quantization],
                                                   has_adapter ? "/adapter" : "");

          *self = (Case){ .division = division,
                          .quantization = quantization,
                          .has_adapter = has_adapter,
                          .has_bias = n % 3 != 0 };
          g_test_add_data_func (path, self, caps_are_those_of_separate_ops);
        }
  return g_test_run ();
}
