/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Bounds of logits that are small enough to bite: the fused loss of every head, whole or divided, beside the cap of the
 * whole head by separate ops. */
/* test: private-headers */
#include "dist/tensor-parallel/partition-private.h"
#include "nn/layers/layer-private.h"
#include "support/device.h"
#include "support/ranks.h"
#include "support/tensor-parallel.h"
#include "support/tensors.h"
#include "tensor/tensor-private.h"

#define SOFTCAP 0.6
#define N_ROWS 7
#define WIDTH 384 /* two and three ranks have whole blocks of nf4 of each row */
#define N_CLASSES 24
#define TOLERANCE 5e-6

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

static gboolean
divide (const Case *self, EbbModule *model, EbbProcessGroup *group, GError **error)
{
  static const EbbParallelStyle styles[] = { [COLUMN] = EBB_PARALLEL_STYLE_COLUMN,
                                             [GATHERED_COLUMN] = EBB_PARALLEL_STYLE_COLUMN_GATHERED,
                                             [ROW] = EBB_PARALLEL_STYLE_ROW_SCATTERED };
  g_autoptr (EbbParallelPlan) plan = ebb_parallel_plan_new ();
  g_autoptr (EbbParallelOptions) options = ebb_parallel_options_new ();
  g_autoptr (EbbModule) same = NULL;

  if (!ebb_parallel_plan_add (plan, "0", styles[self->division], error))
    return FALSE;
  g_object_set (options, "plan", plan, NULL);
  same = ebb_parallelize (model, group, options, error);
  return same != NULL;
}

/* Factors that aren't zero. Ranks draw whole factors and take their shards. */
static gboolean
adapt (EbbModule *model, GError **error)
{
  g_autoptr (EbbLoraOptions) options = ebb_lora_options_new ();
  g_autoptr (EbbGenerator) generator = ebb_generator_new (7);
  g_autoptr (EbbModule) same = NULL;
  g_autofree EbbTensor **parameters = NULL;
  gboolean ok;
  guint n;

  g_object_set (options, "rank", 3, "alpha", 5.0, NULL);
  same = ebb_lora_wrap (model, options, error);
  ok = same != NULL;
  parameters = ebb_module_get_parameters (model, TRUE, &n);
  ebb_push_grad_enabled (FALSE);
  for (guint i = 0; i < n; i++)
    {
      g_autoptr (EbbTensor) factor = parameters[i];
      const EbbPartition *partition = factor->partition;
      g_autoptr (EbbTensor) full = NULL;
      g_autoptr (EbbTensor) part = NULL;

      if (!ok || !ebb_tensor_get_requires_grad (factor))
        continue;
      full = ebb_zeros (partition != NULL ? partition->shape : factor->view.shape, (guint) factor->view.n_dims,
                        EBB_DTYPE_F32, ebb_tensor_get_device (factor), error);
      ok = full != NULL && ebb_tensor_fill_normal (full, 0, 0.05, generator, error);
      part = ok && partition != NULL ? ebb_partition_take (full, partition, error) : NULL;
      ok = ok && ebb_tensor_copy_from (factor, part != NULL ? part : full, error);
    }
  ebb_pop_grad_enabled ();
  return ok;
}

/* A container with the head, quantized, divided and wrapped as the case says. Without @group it is whole. */
static EbbModule *
make_model (const Case *self, EbbProcessGroup *group, GError **error)
{
  g_autoptr (EbbModule) model = ebb_sequential_new ();
  g_autoptr (EbbModule) head = NULL;

  ebb_manual_seed (5);
  head = ebb_linear_new (WIDTH, N_CLASSES, self->has_bias, error);
  if (head == NULL || !ebb_sequential_append (EBB_SEQUENTIAL (model), head, error)
      || (self->quantization != EBB_QUANTIZATION_NONE && !ebb_quantize (model, self->quantization, error))
      || (group != NULL && self->division != WHOLE && !divide (self, model, group, error))
      || (self->has_adapter && !adapt (model, error)))
    return NULL;
  return g_steal_pointer (&model);
}

/* c tanh (x / c) of all logits, then the cross entropy, each by an op of its own. */
static EbbTensor *
compute_plainly (EbbModule *head, EbbTensor *x, EbbTensor *targets, EbbTensor **capped, GError **error)
{
  g_autoptr (EbbTensor) logits = ebb_module_call1 (head, x, error);
  g_autoptr (EbbTensor) divided = ebb_mul_scalar (logits, 1 / SOFTCAP, error);
  g_autoptr (EbbTensor) bent = ebb_tanh (divided, error);

  *capped = ebb_mul_scalar (bent, SOFTCAP, error);
  return ebb_cross_entropy (*capped, targets, error);
}

static EbbTensor *
compute_logits (const Case *self, EbbModule *head, EbbTensor *x, EbbProcessGroup *group, GError **error)
{
  g_autoptr (EbbTensor) logits = ebb_module_call1 (head, x, error);

  return self->division == COLUMN ? ebb_parallel_gather (logits, -1, FALSE, group, error)
                                  : g_steal_pointer (&logits);
}

/* The gradients of the parameters of @model, which ranks may divide, and of @whole. */
static gboolean
compare (EbbModule *model, EbbModule *whole, guint *n_compared, GError **error)
{
  guint n, m;
  g_autofree EbbTensor **parameters = ebb_module_get_parameters (model, TRUE, &n);
  g_autofree EbbTensor **others = ebb_module_get_parameters (whole, TRUE, &m);
  gboolean ok = TRUE;

  g_assert_cmpuint (n, ==, m);
  for (guint i = 0; i < n; i++)
    {
      g_autoptr (EbbTensor) parameter = parameters[i];
      g_autoptr (EbbTensor) other = others[i];
      g_autoptr (EbbTensor) grad = ebb_tensor_get_grad (parameter);
      g_autoptr (EbbTensor) expected = ebb_tensor_get_grad (other);
      g_autoptr (EbbTensor) gathered = NULL;

      g_assert_true ((grad != NULL) == ebb_tensor_get_requires_grad (parameter));
      g_assert_true ((expected != NULL) == (grad != NULL));
      if (grad == NULL || !ok)
        continue;
      if (parameter->partition != NULL)
        gathered = test_parallel_gather (grad, parameter->partition, error);
      ok = parameter->partition == NULL || gathered != NULL;
      if (ok)
        test_assert_near (gathered != NULL ? gathered : grad, expected, TOLERANCE);
      (*n_compared)++;
    }
  return ok;
}

/* The cap bites: without it the loss is another one. The op of its own gives the logits of the formula. */
static gboolean
check_logits (const Case *self,
              EbbModule *head,
              EbbTensor *x,
              EbbTensor *targets,
              EbbTensor *loss,
              EbbTensor *capped,
              EbbProcessGroup *group,
              GError **error)
{
  g_autoptr (EbbTensor) uncapped = ebb_linear_call_for_loss (head, x, targets, 0, error);
  g_autoptr (EbbTensor) logits = compute_logits (self, head, x, group, error);
  g_autoptr (EbbTensor) same = ebb_soft_cap (logits, SOFTCAP, error);

  if (uncapped == NULL || same == NULL)
    return FALSE;
  g_assert_cmpfloat (ABS (test_at (uncapped, 0) - test_at (loss, 0)), >, 0.01);
  test_assert_near (same, capped, TOLERANCE);
  return TRUE;
}

static gboolean
run_rank (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  const Case *self = user_data;
  g_autoptr (EbbModule) fused = make_model (self, group, error);
  g_autoptr (EbbModule) plain = make_model (self, NULL, error);
  g_autoptr (EbbModule) fused_head = fused != NULL ? ebb_module_get_child (fused, "0") : NULL;
  g_autoptr (EbbModule) plain_head = plain != NULL ? ebb_module_get_child (plain, "0") : NULL;
  g_autoptr (EbbTensor) targets = test_tokens (3, N_CLASSES, N_ROWS, -1);
  g_autoptr (EbbTensor) x = test_randn (4, N_ROWS, WIDTH, -1);
  g_autoptr (EbbTensor) plain_x = test_randn (4, N_ROWS, WIDTH, -1);
  g_autoptr (EbbTensor) loss = NULL;
  g_autoptr (EbbTensor) plain_loss = NULL;
  g_autoptr (EbbTensor) capped = NULL;
  g_autoptr (EbbTensor) grad = NULL;
  g_autoptr (EbbTensor) plain_grad = NULL;
  guint n_compared = 0;
  gboolean ok;

  if (fused == NULL || plain == NULL || !ebb_tensor_set_requires_grad (x, TRUE, error)
      || !ebb_tensor_set_requires_grad (plain_x, TRUE, error))
    return FALSE;
  loss = ebb_linear_call_for_loss (fused_head, x, targets, SOFTCAP, error);
  plain_loss = compute_plainly (plain_head, plain_x, targets, &capped, error);
  if (loss == NULL || plain_loss == NULL || !ebb_tensor_backward (loss, error)
      || !ebb_tensor_backward (plain_loss, error))
    return FALSE;
  test_assert_near (loss, plain_loss, TOLERANCE);
  grad = ebb_tensor_get_grad (x);
  plain_grad = ebb_tensor_get_grad (plain_x);
  test_assert_near (grad, plain_grad, TOLERANCE);
  if (!compare (fused, plain, &n_compared, error))
    return FALSE;
  g_assert_true (n_compared > 0 || self->quantization != EBB_QUANTIZATION_NONE);
  ebb_push_grad_enabled (FALSE);
  ok = check_logits (self, fused_head, x, targets, loss, capped, group, error);
  ebb_pop_grad_enabled ();
  return ok;
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
    for (guint quantization = 0; quantization < 3; quantization++)
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
