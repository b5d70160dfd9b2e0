/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/tensor-parallel.h"
#include "support/tensors.h"

/* Run by mpirun: processes that share each product give, bit for bit, what as many ranks give that are threads of one
 * process, which each process runs beside. */

static EbbProcessGroup *world;

/* The results of one rank, in order. */
typedef struct
{
  GPtrArray *tensors; /* NULL where there is none */
  guint64 n_calls[EBB_N_COLLECTIVES];
} Outcome;

typedef gboolean (*Program) (EbbProcessGroup *group,
                             gconstpointer data,
                             Outcome *outcome,
                             GError **error);

static void
unref_tensor (gpointer tensor)
{
  if (tensor != NULL)
    ebb_tensor_unref (tensor);
}

static void
outcome_init (Outcome *self)
{
  *self = (Outcome){ .tensors = g_ptr_array_new_with_free_func (unref_tensor) };
}

static void
outcome_clear (Outcome *self)
{
  g_ptr_array_unref (self->tensors);
}

static void
note (Outcome *self,
      EbbTensor *tensor)
{
  g_ptr_array_add (self->tensors, tensor != NULL ? ebb_tensor_detach (tensor) : NULL);
}

static void
assert_same (const Outcome *a,
             const Outcome *b)
{
  g_assert_cmpuint (a->tensors->len, ==, b->tensors->len);
  g_assert_cmpuint (a->tensors->len, >, 0);
  for (guint i = 0; i < a->tensors->len; i++)
    {
      EbbTensor *first = g_ptr_array_index (a->tensors, i), *second = g_ptr_array_index (b->tensors, i);

      g_assert_true ((first == NULL) == (second == NULL));
      if (first != NULL && !ebb_tensor_equal (first, second))
        g_error ("tensor %u of %u differs by %g", i, a->tensors->len, test_difference (first, second));
    }
  g_assert_cmpmem (a->n_calls, sizeof a->n_calls, b->n_calls, sizeof b->n_calls);
}

typedef struct
{
  Program program;
  gconstpointer data;
  Outcome *outcome; /* of the rank that this process is */
} Threads;

static gboolean
run (EbbProcessGroup *group,
     Program program,
     gconstpointer data,
     Outcome *outcome,
     GError **error)
{
  ebb_process_group_reset_counters (group);
  if (!program (group, data, outcome, error))
    return FALSE;
  for (guint i = 0; i < EBB_N_COLLECTIVES; i++)
    outcome->n_calls[i] = ebb_process_group_get_n_calls (group, (EbbCollective) i);
  return TRUE;
}

static gboolean
run_thread (EbbProcessGroup *group,
            gpointer user_data,
            GError **error)
{
  const Threads *threads = user_data;
  Outcome others;
  gboolean done;

  if (ebb_process_group_get_rank (group) == ebb_process_group_get_rank (world))
    return run (group, threads->program, threads->data, threads->outcome, error);
  outcome_init (&others);
  done = run (group, threads->program, threads->data, &others, error);
  outcome_clear (&others);
  return done;
}

static void
compare (Program program,
         gconstpointer data)
{
  Outcome of_processes, of_threads;
  Threads threads = { program, data, &of_threads };
  g_autoptr (GError) error = NULL;

  outcome_init (&of_processes);
  outcome_init (&of_threads);
  run (world, program, data, &of_processes, &error);
  g_assert_no_error (error);
  ebb_run_ranks (ebb_process_group_get_size (world), run_thread, &threads, &error);
  g_assert_no_error (error);
  assert_same (&of_processes, &of_threads);
  outcome_clear (&of_processes);
  outcome_clear (&of_threads);
}

/* -- ops ----------------------------------------------------------------------------------------------------------- */

static EbbTensor *
apply (guint op,
       EbbTensor *x,
       int dim,
       EbbProcessGroup *group,
       GError **error)
{
  switch (op)
    {
    case 0: return ebb_parallel_copy (x, group, error);
    case 1: return ebb_parallel_reduce (x, group, error);
    case 2: return ebb_parallel_scatter (x, dim, group, error);
    case 3: return ebb_parallel_gather (x, dim, FALSE, group, error);
    case 4: return ebb_parallel_gather (x, dim, TRUE, group, error);
    default: return ebb_parallel_reduce_scatter (x, dim, group, error);
    }
}

static gboolean
run_op (guint op,
        int dim,
        EbbProcessGroup *group,
        EbbDType dtype,
        Outcome *outcome,
        GError **error)
{
  const guint rank = ebb_process_group_get_rank (group);
  /* A gathered tensor has the size of a shard: of 20, 5 or 6 on two and on four ranks. */
  const int gathered[] = { 20, 6, 8 };
  int shape[] = { 20, 5, 6 };
  g_autoptr (EbbTensor) wide = NULL;
  g_autoptr (EbbTensor) x = NULL;
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) wide_dy = NULL;
  g_autoptr (EbbTensor) dy = NULL;
  g_autoptr (EbbTensor) dx = NULL;
  const gint64 *result;

  if (op == 3 || op == 4)
    shape[dim] = gathered[dim];
  wide = test_randn (op == 0 || op == 2 ? 3 : 3 + rank, shape[0], shape[1], shape[2], -1);
  x = ebb_cast (wide, dtype, error);
  ebb_tensor_set_requires_grad (x, TRUE, error);
  y = apply (op, x, dim, group, error);
  if (y == NULL)
    return FALSE;
  result = ebb_tensor_get_shape (y, NULL);
  wide_dy = test_randn (op == 1 || op == 3 ? 9 : 9 + rank, (int) result[0], (int) result[1], (int) result[2], -1);
  dy = ebb_cast (wide_dy, dtype, error);
  if (!ebb_backward (&y, 1, &dy, 1, NULL, 0, FALSE, error))
    return FALSE;
  dx = ebb_tensor_get_grad (x);
  note (outcome, y);
  note (outcome, dx);
  return TRUE;
}

static gboolean
run_ops (EbbProcessGroup *group,
         gconstpointer data,
         Outcome *outcome,
         GError **error)
{
  const EbbDType dtypes[] = { EBB_DTYPE_F32, EBB_DTYPE_BF16, EBB_DTYPE_F16 };

  for (guint i = 0; i < G_N_ELEMENTS (dtypes); i++)
    for (guint op = 0; op < 6; op++)
      for (int dim = 0; dim < 3; dim++)
        if (!run_op (op, dim, group, dtypes[i], outcome, error))
          return FALSE;
  return TRUE;
}

static void
ops_give_what_they_give_on_threads (void)
{
  compare (run_ops, NULL);
}

/* -- models -------------------------------------------------------------------------------------------------------- */

typedef struct
{
  const char *name;
  TestParallel settings;
  gboolean is_partitioned;
} Case;

static EbbModule *
make_model (const Case *test,
            EbbProcessGroup *group,
            GError **error)
{
  g_autoptr (EbbModule) model = test_parallel_model (&test->settings, error);
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();

  if (model == NULL || !test_parallel_divide (&test->settings, model, group, error))
    return NULL;
  if (test->is_partitioned)
    {
      g_autoptr (EbbSavedTensorHooks) store = ebb_partitioned_store_new (group, NULL, error);

      g_object_set (store, "least-size", (guint64) 0, NULL);
      ebb_checkpoint_options_set_store (options, store);
    }
  if (test->settings.is_checkpointed
      && !ebb_checkpoint_wrap_each (model, EBB_TYPE_TRANSFORMER_BLOCK, options, error))
    return NULL;
  return g_steal_pointer (&model);
}

/* Two steps, of which the second has what the first has learnt. */
static gboolean
run_model (EbbProcessGroup *group,
           gconstpointer data,
           Outcome *outcome,
           GError **error)
{
  const Case *test = data;
  g_autoptr (EbbModule) model = make_model (test, group, error);
  g_autoptr (EbbOptimizer) optimizer = model != NULL ? ebb_adamw_new (model, 1e-3, error) : NULL;
  guint n;
  g_autofree EbbTensor **parameters = NULL;

  if (optimizer == NULL || !ebb_model_parallel_manual_seed (5, G_OBJECT (group), error))
    return FALSE;
  parameters = ebb_module_get_parameters (model, TRUE, &n);
  for (guint i = 0; i < 2; i++)
    {
      g_autoptr (EbbTensor) loss = NULL;

      if (test->settings.is_bf16)
        ebb_push_autocast (TRUE, EBB_DTYPE_BF16);
      loss = test_parallel_loss (&test->settings, model, i, error);
      if (test->settings.is_bf16)
        ebb_pop_autocast ();
      note (outcome, loss);
      if (loss == NULL || !ebb_tensor_backward (loss, error))
        return FALSE;
      for (guint k = 0; k < n; k++)
        {
          g_autoptr (EbbTensor) grad = ebb_tensor_get_grad (parameters[k]);

          note (outcome, grad);
        }
      if (!ebb_optimizer_step (optimizer, error))
        return FALSE;
      ebb_optimizer_zero_grad (optimizer);
    }
  for (guint k = 0; k < n; k++)
    {
      note (outcome, parameters[k]);
      ebb_tensor_unref (parameters[k]);
    }
  return TRUE;
}

static void
model_learns_what_threads_learn (gconstpointer data)
{
  compare (run_model, data);
}

int
main (int argc,
      char **argv)
{
  static const Case cases[] = {
    { "tensor", { .dropout = 0.1 }, FALSE },
    { "sequence", { .dropout = 0.1, .is_sequence_parallel = TRUE }, FALSE },
    { "checkpointed", { .dropout = 0.1, .is_checkpointed = TRUE }, FALSE },
    { "partitioned", { .dropout = 0.1, .is_checkpointed = TRUE }, TRUE },
    { "sequence-checkpointed", { .dropout = 0.1, .is_sequence_parallel = TRUE, .is_checkpointed = TRUE }, FALSE },
    { "bf16", { .is_bf16 = TRUE, .is_untied = TRUE }, FALSE },
    { "bert", { .is_bert = TRUE, .has_mask = TRUE, .dropout = 0.1, .is_checkpointed = TRUE }, FALSE },
  };
  g_autoptr (GError) error = NULL;
  int status;

  test_init (&argc, &argv);
  world = ebb_init_process_group ("auto", &error);
  g_assert_no_error (error);
  g_test_add_func ("/mpi/parallel/ops-give-what-they-give-on-threads", ops_give_what_they_give_on_threads);
  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_autofree char *path = g_strconcat ("/mpi/parallel/model-learns-what-threads-learn/", cases[i].name, NULL);

      g_test_add_data_func (path, &cases[i], model_learns_what_threads_learn);
    }
  status = g_test_run ();
  g_clear_object (&world);
  ebb_destroy_process_group ();
  return status;
}
