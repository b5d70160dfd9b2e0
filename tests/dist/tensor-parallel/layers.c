/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers */
#include "dist/tensor-parallel/partition-private.h"
#include "nn/module-private.h"
#include "support/device.h"
#include "support/ranks.h"
#include "support/tensor-parallel.h"
#include "support/tensors.h"
#include "tensor/tensor-private.h"

#include <math.h>
#include <string.h>

/* Divided layers by themselves beside whole ones that were drawn from the same seed. */

#define SEED 5
#define TOLERANCE 2e-5

typedef EbbModule *(*MakeFunc) (gconstpointer settings, EbbProcessGroup *group, GError **error); /* NULL: whole */

typedef struct
{
  MakeFunc make;
  gconstpointer settings;
  gboolean takes_part, gives_part; /* of the last dimension */
  gint64 n_tokens;                 /* the input is indices; 0: it is [3, 4, in] */
  gint64 in;
} Case;

/* -- comparing ----------------------------------------------------------------------------------------------------- */

static EbbTensor *
make_input (const Case *self, GError **error)
{
  g_autoptr (EbbTensor) x = NULL;

  if (self->n_tokens > 0)
    return test_tokens (3, self->n_tokens, 3, 8, -1);
  x = test_randn (4, 3, 4, (int) self->in, -1);
  return ebb_tensor_set_requires_grad (x, TRUE, error) ? g_steal_pointer (&x) : NULL;
}

/* f (x) and the gradients of the sum of its squares. */
static EbbTensor *
run (const Case *self, EbbModule *layer, EbbTensor *x, EbbProcessGroup *group, GError **error)
{
  g_autoptr (EbbTensor) part = self->takes_part && group != NULL ? ebb_parallel_scatter (x, -1, group, error)
                                                                 : ebb_tensor_ref (x);
  g_autoptr (EbbTensor) y = ebb_module_call1 (layer, part, error);
  g_autoptr (EbbTensor) whole = NULL;
  g_autoptr (EbbTensor) square = NULL;
  g_autoptr (EbbTensor) sum = NULL;

  whole = y == NULL                           ? NULL
          : self->gives_part && group != NULL ? ebb_parallel_gather (y, -1, FALSE, group, error)
                                              : ebb_tensor_ref (y);
  square = ebb_square (whole, error);
  sum = ebb_sum (square, NULL, 0, FALSE, error);
  return sum != NULL && ebb_tensor_backward (sum, error) ? g_steal_pointer (&whole) : NULL;
}

static gboolean
assert_gradients (EbbModule *layer, EbbModule *whole, GError **error)
{
  g_auto (GStrv) names = ebb_module_get_parameter_names (layer, TRUE);
  g_auto (GStrv) whole_names = ebb_module_get_parameter_names (whole, TRUE);

  g_assert_cmpstrv ((const char *const *) names, (const char *const *) whole_names);
  for (guint i = 0; names[i] != NULL; i++)
    {
      g_autoptr (EbbTensor) parameter = ebb_module_get_parameter (layer, names[i]);
      g_autoptr (EbbTensor) expected = ebb_module_get_parameter (whole, names[i]);
      g_autoptr (EbbTensor) values = NULL;
      g_autoptr (EbbTensor) gradient = NULL;

      g_assert_nonnull (parameter->grad);
      g_assert_true (parameter->is_local_shard == (parameter->partition != NULL));
      if (parameter->partition != NULL)
        {
          values = test_parallel_gather (parameter, parameter->partition, error);
          gradient = test_parallel_gather (parameter->grad, parameter->partition, error);
        }
      else
        {
          values = ebb_tensor_ref (parameter);
          gradient = ebb_tensor_ref (parameter->grad);
        }
      if (values == NULL || gradient == NULL)
        return FALSE;
      test_assert_near (values, expected, 0);
      test_assert_near (gradient, expected->grad, TOLERANCE * 50);
    }
  return TRUE;
}

static gboolean
run_rank (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  const Case *self = user_data;
  g_autoptr (EbbModule) whole = NULL;
  g_autoptr (EbbModule) layer = NULL;
  g_autoptr (EbbTensor) x = make_input (self, error);
  g_autoptr (EbbTensor) same_x = make_input (self, error);
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) expected = NULL;

  ebb_manual_seed (SEED);
  whole = self->make (self->settings, NULL, error);
  ebb_manual_seed (SEED);
  layer = self->make (self->settings, group, error);
  if (whole == NULL || layer == NULL)
    return FALSE;
  y = run (self, layer, x, group, error);
  expected = run (self, whole, same_x, NULL, error);
  if (y == NULL || expected == NULL)
    return FALSE;
  test_assert_near (y, expected, TOLERANCE);
  if (self->n_tokens == 0)
    test_assert_near (x->grad, same_x->grad, TOLERANCE * 50);
  return assert_gradients (layer, whole, error);
}

static void
test_layer (gconstpointer data)
{
  for (guint n_ranks = 1; n_ranks <= 4; n_ranks++)
    test_ranks_run (n_ranks, run_rank, (gpointer) data);
}

/* Heads and so attention are divided evenly alone. */
static void
test_even_layer (gconstpointer data)
{
  for (guint n_ranks = 1; n_ranks <= 4; n_ranks *= 2)
    test_ranks_run (n_ranks, run_rank, (gpointer) data);
}

/* -- layers -------------------------------------------------------------------------------------------------------- */

typedef struct
{
  int in, out;
  gboolean bias, flag; /* gather-output, input-is-parallel */
} Sizes;

static EbbModule *
make_column (gconstpointer settings, EbbProcessGroup *group, GError **error)
{
  const Sizes *sizes = settings;

  return group == NULL ? ebb_linear_new (sizes->in, sizes->out, sizes->bias, error)
                       : ebb_column_parallel_linear_new (sizes->in, sizes->out, sizes->bias, sizes->flag, group, error);
}

static EbbModule *
make_row (gconstpointer settings, EbbProcessGroup *group, GError **error)
{
  const Sizes *sizes = settings;

  return group == NULL ? ebb_linear_new (sizes->in, sizes->out, sizes->bias, error)
                       : ebb_row_parallel_linear_new (sizes->in, sizes->out, sizes->bias, sizes->flag, group, error);
}

static EbbModule *
make_embedding (gconstpointer settings, EbbProcessGroup *group, GError **error)
{
  const Sizes *sizes = settings;

  return group == NULL ? ebb_embedding_new (sizes->in, sizes->out, error)
                       : ebb_vocab_parallel_embedding_new (sizes->in, sizes->out, group, error);
}

static EbbModule *
make_attention (gconstpointer settings, EbbProcessGroup *group, GError **error)
{
  const Sizes *sizes = settings;

  return group == NULL ? ebb_multi_head_attention_new (sizes->in, 4, 0, TRUE, error)
                       : ebb_parallel_attention_new (sizes->in, 4, 0, TRUE, group, error);
}

static EbbModule *
make_mlp (gconstpointer settings, EbbProcessGroup *group, GError **error)
{
  const Sizes *sizes = settings;

  return group == NULL ? ebb_mlp_new (sizes->in, sizes->out, EBB_ACTIVATION_GELU, error)
                       : ebb_parallel_mlp_new (sizes->in, sizes->out, EBB_ACTIVATION_GELU, group, error);
}

/* -- cross attention ----------------------------------------------------------------------------------------------- */

#define CROSS_WIDTH 16
#define CROSS_HEADS 4
#define CONTEXT_WIDTH 10 /* unlike the width, and no multiple of the ranks */

/* Attends from x to a context, both with gradients, and backpropagates the sum of squares. */
static EbbTensor *
attend_across (EbbModule *attention, EbbTensor *x, EbbTensor *context, GError **error)
{
  g_autoptr (EbbArgs) args = ebb_args_new (EBB_ARGS_TUPLE);
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) square = NULL;
  g_autoptr (EbbTensor) sum = NULL;

  g_assert_true (ebb_tensor_set_requires_grad (x, TRUE, error) && ebb_tensor_set_requires_grad (context, TRUE, error));
  ebb_args_add_tensor (args, NULL, x);
  ebb_args_add_tensor (args, "context", context);
  y = ebb_module_call_for_tensor (attention, args, error);
  square = ebb_square (y, error);
  sum = ebb_sum (square, NULL, 0, FALSE, error);
  return sum != NULL && ebb_tensor_backward (sum, error) ? g_steal_pointer (&y) : NULL;
}

static EbbModule *
make_cross_attention (EbbProcessGroup *group, GError **error)
{
  g_autoptr (EbbModule) attention = NULL;
  g_autoptr (EbbParallelPlan) plan = ebb_parallel_plan_new ();
  g_autoptr (EbbParallelOptions) options = ebb_parallel_options_new ();

  ebb_manual_seed (SEED);
  attention = ebb_multi_head_attention_new_cross (CROSS_WIDTH, CROSS_HEADS, CONTEXT_WIDTH, 0, error);
  if (attention == NULL || group == NULL)
    return g_steal_pointer (&attention);
  ebb_parallel_plan_add (plan, "q_attn", EBB_PARALLEL_STYLE_COLUMN, error);
  ebb_parallel_plan_add (plan, "c_attn", EBB_PARALLEL_STYLE_COLUMN_QKV, error);
  ebb_parallel_plan_add (plan, "c_proj", EBB_PARALLEL_STYLE_ROW, error);
  g_object_set (options, "plan", plan, NULL);
  return ebb_parallelize (attention, group, options, error);
}

static gboolean
cross (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  g_autoptr (EbbModule) whole = make_cross_attention (NULL, error);
  g_autoptr (EbbModule) attention = make_cross_attention (group, error);
  g_autoptr (EbbTensor) x = test_randn (4, 3, 5, CROSS_WIDTH, -1), same_x = test_randn (4, 3, 5, CROSS_WIDTH, -1);
  g_autoptr (EbbTensor) context = test_randn (5, 3, 7, CONTEXT_WIDTH, -1);
  g_autoptr (EbbTensor) same_context = test_randn (5, 3, 7, CONTEXT_WIDTH, -1);
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) expected = NULL;

  if (whole == NULL || attention == NULL)
    return FALSE;
  y = attend_across (attention, x, context, error);
  expected = attend_across (whole, same_x, same_context, error);
  if (y == NULL || expected == NULL)
    return FALSE;
  test_assert_near (y, expected, TOLERANCE);
  test_assert_near (x->grad, same_x->grad, TOLERANCE * 50);
  test_assert_near (context->grad, same_context->grad, TOLERANCE * 50);
  return assert_gradients (attention, whole, error);
}

static void
test_cross_attention (void)
{
  for (guint n_ranks = 1; n_ranks <= 4; n_ranks *= 2)
    test_ranks_run (n_ranks, cross, NULL);
}

/* -- what they refuse ---------------------------------------------------------------------------------------------- */

static gboolean
refuse (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  g_autoptr (GError) local = NULL;
  g_autoptr (EbbModule) embedding = NULL;
  g_autoptr (EbbTensor) tokens = NULL;
  guint64 n_calls;

  g_assert_null (ebb_parallel_attention_new (12, 3, 0, FALSE, group, &local));
  test_assert_error (local, EBB_ERROR_INVALID_ARGUMENT, "3 heads can't be divided among 2 ranks");
  g_clear_error (&local);
  g_assert_null (ebb_column_parallel_linear_new (4, 1, TRUE, FALSE, group, &local));
  test_assert_error (local, EBB_ERROR_INVALID_ARGUMENT, "weight [1, 4]", "2 ranks");
  g_clear_error (&local);
  g_assert_null (ebb_row_parallel_linear_new (1, 4, TRUE, FALSE, group, &local));
  test_assert_error (local, EBB_ERROR_INVALID_ARGUMENT, "weight [4, 1]", "2 ranks");
  g_clear_error (&local);
  g_assert_null (ebb_row_parallel_linear_new (0, 4, TRUE, FALSE, group, &local));
  test_assert_error (local, EBB_ERROR_INVALID_ARGUMENT, "in-features is 0");
  g_clear_error (&local);

  /* An index that no rank has is refused on all, before they wait for one another. Ranks that share a device which
   * works behind their backs may hear of each other's. */
  if (!test_device_is_cpu ())
    return TRUE;
  embedding = ebb_vocab_parallel_embedding_new (6, 2, group, error);
  tokens = test_tokens (1, 1, 2, -1);
  g_assert_true (ebb_tensor_fill (tokens, 6, error));
  n_calls = ebb_process_group_get_n_calls (group, EBB_COLLECTIVE_ALL_REDUCE);
  g_assert_null (ebb_module_call1 (embedding, tokens, &local));
  test_assert_error (local, EBB_ERROR_INDEX, "index 6 at position 0 is out of range", "[0, 6)");
  g_assert_cmpuint (ebb_process_group_get_n_calls (group, EBB_COLLECTIVE_ALL_REDUCE), ==, n_calls);
  return TRUE;
}

static void
test_bad_sizes_are_refused (void)
{
  test_ranks_run (2, refuse, NULL);
}

/* -- parts and wholes ---------------------------------------------------------------------------------------------- */

static gboolean
take_and_gather (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  static const struct
  {
    gint64 shape[2];
    guint n_dims, dim, n_sections;
  } cases[] = { { { 12, 5 }, 2, 0, 1 }, { { 13, 5 }, 2, 0, 1 }, { { 5, 14 }, 2, 1, 1 },
                { { 15, 2 }, 2, 0, 3 }, { { 3, 18 }, 2, 1, 2 }, { { 21 }, 1, 0, 3 } };

  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_autoptr (EbbGenerator) generator = ebb_generator_new (i);
      g_autoptr (EbbTensor) whole = ebb_randn (cases[i].shape, cases[i].n_dims, EBB_DTYPE_F32, NULL, generator, error);
      g_autoptr (EbbTensor) parameter = ebb_tensor_detach (whole);
      g_autoptr (EbbCut) cut = NULL;
      g_autoptr (EbbTensor) part = NULL;
      g_autoptr (EbbTensor) again = NULL;
      gint64 shape[EBB_MAX_DIMS];
      const EbbPartition *partition;

      cut = ebb_cut_new (parameter, "it", cases[i].dim, cases[i].n_sections, group, error);
      if (cut == NULL || !ebb_cut_take (cut, error))
        return FALSE;
      g_assert_null (parameter->partition);
      ebb_cut_apply (cut);
      partition = parameter->partition;
      ebb_partition_get_part_shape (partition, shape);
      g_assert_cmpint (shape[cases[i].dim], ==, ebb_tensor_get_dim (parameter, (int) cases[i].dim));
      part = ebb_partition_take (whole, partition, error);
      again = test_parallel_gather (parameter, partition, error);
      if (part == NULL || again == NULL)
        return FALSE;
      test_assert_near (part, parameter, 0);
      test_assert_near (again, whole, 0);
      g_clear_pointer (&cut, ebb_cut_unref);
      g_assert_null (parameter->partition);
    }
  return TRUE;
}

static void
test_parts_make_the_whole (void)
{
  for (guint n_ranks = 1; n_ranks <= 5; n_ranks++)
    test_ranks_run (n_ranks, take_and_gather, NULL);
}

/* As a norm does it: numbers of 64 bits in a tensor. */
static void
reduce (EbbTensor *weight, EbbReduceKind op, double values[2])
{
  g_autoptr (GError) error = NULL;
  const gint64 two = 2;
  gint64 bits[2];
  g_autoptr (EbbTensor) tensor = NULL;

  memcpy (bits, values, sizeof bits);
  tensor = ebb_tensor_new_from_ints (bits, 2, &two, 1, &error);
  g_assert_true (weight->partition->funcs->reduce (weight->partition, op, tensor, &error));
  g_assert_no_error (error);
  memcpy (values, test_read (tensor), sizeof bits);
}

static gboolean
drop (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  EbbModule *layer = ebb_column_parallel_linear_new (4, 6, TRUE, FALSE, group, error);
  g_autoptr (EbbTensor) weight = ebb_module_get_parameter (layer, "weight");
  double values[] = { ebb_process_group_get_rank (group) + 1, 0.5 };

  g_assert_nonnull (weight->partition);
  reduce (weight, EBB_REDUCE_SUM, values);
  g_assert_cmpfloat (values[0], ==, 3);
  g_assert_cmpfloat (values[1], ==, 1);
  values[0] = ebb_process_group_get_rank (group) == 0 ? 5 : 4;
  values[1] = ebb_process_group_get_rank (group) == 0 ? (double) NAN : 2;
  reduce (weight, EBB_REDUCE_MAX, values);
  g_assert_cmpfloat (values[0], ==, 5);
  g_assert_true (isnan (values[1]));
  g_object_unref (layer);
  g_assert_null (weight->partition);
  return TRUE;
}

static void
test_partitions_go_with_their_layer (void)
{
  test_ranks_run (2, drop, NULL);
}

int
main (int argc, char **argv)
{
  static const Sizes even = { 8, 12, TRUE, FALSE }, uneven = { 5, 7, TRUE, FALSE },
                     without_bias = { 5, 7, FALSE, FALSE }, flagged = { 7, 9, TRUE, TRUE },
                     table = { 11, 3, FALSE, FALSE }, wide = { 16, 0, TRUE, FALSE }, hidden = { 6, 10, TRUE, FALSE };
  static const Case column = { make_column, &even, FALSE, TRUE, 0, 8 },
                    column_uneven = { make_column, &uneven, FALSE, TRUE, 0, 5 },
                    column_without_bias = { make_column, &without_bias, FALSE, TRUE, 0, 5 },
                    column_gathered = { make_column, &flagged, FALSE, FALSE, 0, 7 },
                    row = { make_row, &uneven, FALSE, FALSE, 0, 5 },
                    row_of_parts = { make_row, &flagged, TRUE, FALSE, 0, 7 },
                    embedding = { make_embedding, &table, FALSE, FALSE, 11, 0 },
                    attention = { make_attention, &wide, FALSE, FALSE, 0, 16 },
                    mlp = { make_mlp, &hidden, FALSE, FALSE, 0, 6 };

  test_init (&argc, &argv);
  g_test_add_data_func ("/parallel-layers/column-is-the-whole-layer", &column, test_layer);
  g_test_add_data_func ("/parallel-layers/uneven-column-is-the-whole-layer", &column_uneven, test_layer);
  g_test_add_data_func ("/parallel-layers/column-without-bias-is-the-whole-layer", &column_without_bias, test_layer);
  g_test_add_data_func ("/parallel-layers/gathered-column-is-the-whole-layer", &column_gathered, test_layer);
  g_test_add_data_func ("/parallel-layers/row-of-the-whole-is-the-whole-layer", &row, test_layer);
  g_test_add_data_func ("/parallel-layers/row-of-parts-is-the-whole-layer", &row_of_parts, test_layer);
  g_test_add_data_func ("/parallel-layers/embedding-is-the-whole-table", &embedding, test_layer);
  g_test_add_data_func ("/parallel-layers/attention-is-the-whole-layer", &attention, test_even_layer);
  g_test_add_data_func ("/parallel-layers/mlp-is-the-whole-layer", &mlp, test_layer);
  g_test_add_func ("/parallel-layers/cross-attention-is-the-whole-layer", test_cross_attention);
  g_test_add_func ("/parallel-layers/bad-sizes-are-refused", test_bad_sizes_are_refused);
  g_test_add_func ("/parallel-layers/parts-make-the-whole", test_parts_make_the_whole);
  g_test_add_func ("/parallel-layers/partitions-go-with-their-layer", test_partitions_go_with_their_layer);
  return g_test_run ();
}
