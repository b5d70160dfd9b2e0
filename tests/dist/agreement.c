/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Ranks whose modules differ in one property: each way of training on ranks names the tensor on every rank. */
/* test: cpu-only */
#include "support/device.h"
#include "support/ranks.h"
#include "support/tensors.h"

typedef enum
{
  SHAPE,
  DTYPE,
  ORDER,
  PARAMETER,
  BUFFER,
  BUFFER_DTYPE,
  BUFFER_NAME,
  FROZEN,
  N_DIFFERENCES
} Difference;
typedef enum
{
  FULLY_SHARD,
  REPLICATE,
  PARALLELIZE,
  N_WAYS
} Way;

typedef struct
{
  Way way;
  Difference difference;
} Case;

static const char *const ways[] = { "fully-shard", "replicate", "parallelize" };
static const struct
{
  const char *name, *says;
} differences[] = { { "shape", "down" },       { "dtype", "down.bias" },     { "order", "scale" },
                    { "parameter", "extra" },  { "buffer", "table" },        { "buffer-dtype", "mean" },
                    { "buffer-name", "mean" }, { "frozen", "[6, 8] frozen" } };

static EbbTensor *
make_vector (gint64 n, EbbDType dtype)
{
  return ebb_ones (&n, 1, dtype, NULL, NULL);
}

static void
add_parameter (EbbModule *module, const char *name)
{
  g_autoptr (EbbTensor) parameter = make_vector (4, EBB_DTYPE_F32);

  g_assert_true (ebb_tensor_set_requires_grad (parameter, TRUE, NULL));
  g_assert_true (ebb_module_register_parameter (module, name, parameter, NULL));
}

static void
add_buffer (EbbModule *module, const char *name, EbbDType dtype)
{
  g_autoptr (EbbTensor) buffer = make_vector (4, dtype);

  g_assert_true (ebb_module_register_buffer (module, name, buffer, TRUE, NULL));
}

static void
add_layer (EbbModule *module, const char *name, int in, int out)
{
  g_autoptr (EbbModule) layer = ebb_linear_new (in, out, TRUE, NULL);

  g_assert_true (ebb_module_register_child (module, name, layer, NULL));
}

/* A tree with two layers, two vectors and a buffer, of which one thing differs; N_DIFFERENCES: nothing. */
static EbbModule *
make_module (Difference difference)
{
  EbbModule *module = ebb_sequential_new ();
  g_autoptr (EbbModule) scale = g_object_new (EBB_TYPE_MODULE, NULL);

  ebb_manual_seed (3);
  add_layer (module, "up", 6, 8);
  add_layer (module, "down", 8, difference == SHAPE ? 10 : 6);
  add_parameter (scale, difference == ORDER ? "b" : "a");
  add_parameter (scale, difference == ORDER ? "a" : "b");
  g_assert_true (ebb_module_register_child (module, "scale", scale, NULL));
  add_buffer (module, difference == BUFFER_NAME ? "moments" : "mean",
              difference == BUFFER_DTYPE ? EBB_DTYPE_BF16 : EBB_DTYPE_F32);
  if (difference == PARAMETER)
    add_parameter (module, "extra");
  if (difference == BUFFER)
    add_buffer (module, "table", EBB_DTYPE_F32);
  if (difference == FROZEN || difference == DTYPE)
    {
      g_autoptr (EbbModule) down = ebb_module_get_child (module, "down");
      g_autoptr (EbbTensor) parameter = ebb_module_get_parameter (down, difference == DTYPE ? "bias" : "weight");
      g_autoptr (EbbTensor) narrow = NULL;

      if (difference == FROZEN)
        g_assert_true (ebb_tensor_set_requires_grad (parameter, FALSE, NULL));
      else
        {
          ebb_push_grad_enabled (FALSE);
          narrow = ebb_cast (parameter, EBB_DTYPE_BF16, NULL);
          ebb_pop_grad_enabled ();
          g_assert_true (ebb_tensor_set_requires_grad (narrow, TRUE, NULL));
          g_assert_true (ebb_module_register_parameter (down, "bias", narrow, NULL));
        }
    }
  return module;
}

static EbbModule *
wrap (Way way, EbbModule *module, EbbProcessGroup *group, GError **error)
{
  g_autoptr (EbbParallelPlan) plan = ebb_parallel_plan_new ();
  g_autoptr (EbbParallelOptions) options = ebb_parallel_options_new ();

  switch (way)
    {
    case FULLY_SHARD:
      return ebb_fully_shard (module, group, NULL, error);
    case REPLICATE:
      return ebb_replicate (module, group, NULL, error);
    default:
      g_assert_true (ebb_parallel_plan_add (plan, "up", EBB_PARALLEL_STYLE_COLUMN, NULL));
      g_assert_true (ebb_parallel_plan_add (plan, "down", EBB_PARALLEL_STYLE_ROW, NULL));
      g_object_set (options, "plan", plan, NULL);
      return ebb_parallelize (module, group, options, error);
    }
}

static gboolean
run_rank (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  const Case *self = user_data;
  const gboolean is_last = ebb_process_group_get_rank (group) + 1 == ebb_process_group_get_size (group);
  g_autoptr (EbbModule) module = make_module (is_last ? self->difference : N_DIFFERENCES);
  g_autoptr (EbbModule) same = make_module (N_DIFFERENCES);
  g_autoptr (EbbModule) wrapped = NULL;
  g_autoptr (GError) local = NULL;

  g_assert_null (wrap (self->way, module, group, &local));
  test_assert_error (local, EBB_ERROR_PROCESS_GROUP, "must be the same on all ranks",
                     differences[self->difference].says);
  g_assert_null (strchr (local->message, '\n'));
  /* The group still works, and modules that are alike are taken. */
  wrapped = wrap (self->way, same, group, error);
  return wrapped != NULL;
}

static void
difference_is_named (gconstpointer data)
{
  for (guint n_ranks = 2; n_ranks <= 3; n_ranks++)
    test_ranks_run (n_ranks, run_rank, (gpointer) data);
}

int
main (int argc, char **argv)
{
  static Case cases[N_WAYS * N_DIFFERENCES];
  guint n = 0;

  test_init (&argc, &argv);
  for (guint way = 0; way < N_WAYS; way++)
    for (guint difference = 0; difference < N_DIFFERENCES; difference++)
      {
        g_autofree char *path = g_strdup_printf ("/agreement/%s/%s", ways[way], differences[difference].name);

        cases[n] = (Case){ way, difference };
        g_test_add_data_func (path, &cases[n++], difference_is_named);
      }
  return g_test_run ();
}
