/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/ranks.h"
#include "support/tensors.h"
#include "support/training.h"

#include <string.h>

/* Named generators, and forks that a recompute comes by again. */

static EbbGeneratorTracker *
new_tracker (void)
{
  EbbGeneratorTracker *tracker = ebb_generator_tracker_new ();
  g_autoptr (GError) error = NULL;

  g_assert_true (ebb_generator_tracker_add (tracker, "a", 5, &error));
  g_assert_true (ebb_generator_tracker_add (tracker, "b", 6, &error));
  g_assert_no_error (error);
  return tracker;
}

static void
fork_to (EbbGeneratorTracker *tracker,
         const char *name)
{
  g_autoptr (GError) error = NULL;

  g_assert_true (ebb_generator_tracker_fork (tracker, name, &error));
  g_assert_no_error (error);
}

static EbbTensor *
draw (EbbGenerator *generator)
{
  const gint64 n = 10;
  g_autoptr (GError) error = NULL;
  EbbTensor *tensor = ebb_rand (&n, 1, EBB_DTYPE_F32, NULL, generator, &error);

  g_assert_no_error (error);
  return tensor;
}

/* -- names and seeds ----------------------------------------------------------------------------------------------- */

static void
a_name_or_a_seed_used_twice_is_refused (void)
{
  g_autoptr (EbbGeneratorTracker) tracker = new_tracker ();
  g_autoptr (GError) error = NULL;
  g_auto (GStrv) names = NULL;

  g_assert_false (ebb_generator_tracker_add (tracker, "a", 7, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "\"a\"", "reset");
  g_clear_error (&error);
  g_assert_false (ebb_generator_tracker_add (tracker, "c", 6, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "\"c\"", "seed 6", "\"b\"");
  /* An error that is set is left alone. */
  g_assert_false (ebb_generator_tracker_add (tracker, "d", 8, &error));
  g_assert_false (ebb_generator_tracker_fork (tracker, "a", &error));
  g_clear_error (&error);
  g_assert_false (ebb_generator_tracker_fork (tracker, "c", &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "\"c\"", "model-parallel-rng");
  g_assert_false (ebb_generator_tracker_add (tracker, NULL, 8, NULL));
  g_assert_false (ebb_generator_tracker_fork (tracker, NULL, NULL));
  g_assert_false (ebb_generator_tracker_has (tracker, NULL));
  g_assert_null (ebb_generator_tracker_get_generator (tracker, "c"));
  names = ebb_generator_tracker_get_names (tracker);
  g_assert_cmpuint (g_strv_length (names), ==, 2);
  g_assert_cmpstr (names[0], ==, "a");
  g_assert_cmpstr (names[1], ==, "b");
}

static void
after_a_reset_names_and_seeds_are_free (void)
{
  g_autoptr (EbbGeneratorTracker) tracker = new_tracker ();
  g_autoptr (EbbGenerator) same = g_object_ref (ebb_generator_tracker_get_generator (tracker, "a"));
  g_autoptr (EbbTensor) drawn = draw (same);
  g_autoptr (GError) error = NULL;

  ebb_generator_tracker_reset (tracker);
  g_assert_false (ebb_generator_tracker_has (tracker, "a"));
  g_assert_null (ebb_generator_tracker_get_generator (tracker, "b"));
  g_assert_false (ebb_generator_tracker_fork (tracker, "a", &error));
  g_clear_error (&error);
  g_assert_true (ebb_generator_tracker_add (tracker, "a", 6, &error));
  g_assert_no_error (error);
  /* Code that holds the generator of a name goes on with it. */
  g_assert_true (ebb_generator_tracker_get_generator (tracker, "a") == same);
  g_assert_cmpuint (ebb_generator_get_seed (same), ==, 6);
  g_assert_cmpuint (ebb_generator_get_offset (same), ==, 0);
}

/* -- forks --------------------------------------------------------------------------------------------------------- */

static void
forks_nest_and_each_generator_goes_on_where_it_was (void)
{
  g_autoptr (EbbGeneratorTracker) tracker = new_tracker ();
  g_autoptr (EbbGenerator) a = ebb_generator_new (5);
  g_autoptr (EbbGenerator) b = ebb_generator_new (6);
  g_autoptr (EbbGenerator) outside = ebb_generator_new (9);
  EbbGenerator *before = ebb_generator_get_default ();

  ebb_manual_seed (9);
  for (guint round = 0; round < 3; round++)
    for (guint step = 0; step < 5; step++)
      {
        g_autoptr (EbbTensor) drawn = NULL;
        g_autoptr (EbbTensor) expected = draw (step == 2 ? b : step == 1 || step == 3 ? a
                                                                                      : outside);

        if (step == 1)
          fork_to (tracker, "a");
        if (step == 2)
          fork_to (tracker, "b");
        if (step >= 3)
          ebb_generator_tracker_join (tracker);
        drawn = draw (NULL);
        g_assert_true (ebb_tensor_equal (drawn, expected));
      }
  g_assert_true (ebb_generator_get_default () == before);
}

static void
a_fork_outlives_its_tracker (void)
{
  g_autoptr (EbbGenerator) a = ebb_generator_new (5);
  g_autoptr (EbbTensor) expected = draw (a);
  EbbGeneratorTracker *tracker = new_tracker ();
  g_autoptr (EbbTensor) drawn = NULL;

  fork_to (tracker, "a");
  ebb_generator_tracker_reset (tracker);
  drawn = draw (NULL);
  g_assert_true (ebb_tensor_equal (drawn, expected));
  ebb_generator_tracker_join (tracker);
  g_object_unref (tracker);
}

/* -- states -------------------------------------------------------------------------------------------------------- */

static void
states_put_all_generators_back (void)
{
  g_autoptr (EbbGeneratorTracker) tracker = new_tracker ();
  g_autoptr (EbbGeneratorTracker) other = ebb_generator_tracker_new ();
  g_autoptr (EbbTensor) skipped = draw (ebb_generator_tracker_get_generator (tracker, "b"));
  g_autoptr (EbbArgs) states = ebb_generator_tracker_get_states (tracker);
  g_autoptr (EbbTensor) expected = draw (ebb_generator_tracker_get_generator (tracker, "b"));
  EbbGenerator *const b = ebb_generator_tracker_get_generator (tracker, "b");
  g_autoptr (EbbTensor) drawn = NULL;
  g_autoptr (EbbTensor) elsewhere = NULL;
  g_autoptr (EbbArgs) again = NULL;
  g_autoptr (GError) error = NULL;

  ebb_generator_tracker_reset (tracker);
  g_assert_true (ebb_generator_tracker_add (tracker, "c", 11, &error));
  g_assert_true (ebb_generator_tracker_set_states (tracker, states, &error));
  g_assert_no_error (error);
  g_assert_false (ebb_generator_tracker_has (tracker, "c"));
  g_assert_true (ebb_generator_tracker_get_generator (tracker, "b") == b);
  drawn = draw (b);
  g_assert_true (ebb_tensor_equal (drawn, expected));
  g_assert_true (ebb_generator_tracker_set_states (other, states, &error));
  elsewhere = draw (ebb_generator_tracker_get_generator (other, "b"));
  g_assert_true (ebb_tensor_equal (elsewhere, expected));
  g_assert_true (ebb_generator_tracker_set_states (other, states, &error));
  again = ebb_generator_tracker_get_states (other);
  test_assert_args_equal (again, states);
  /* Its seeds are in use again. */
  g_assert_false (ebb_generator_tracker_add (other, "d", 5, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "seed 5");
}

/* The seed that a generator was added with stays its own, though it was seeded again since. */
static void
states_know_the_first_seeds (void)
{
  g_autoptr (EbbGeneratorTracker) tracker = new_tracker ();
  g_autoptr (EbbArgs) states = NULL;
  g_autoptr (GError) error = NULL;

  ebb_generator_set_state (ebb_generator_tracker_get_generator (tracker, "a"), 99, 0);
  states = ebb_generator_tracker_get_states (tracker);
  g_assert_true (ebb_generator_tracker_set_states (tracker, states, &error));
  g_assert_no_error (error);
  g_assert_false (ebb_generator_tracker_add (tracker, "c", 5, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "5");
  g_assert_true (ebb_generator_tracker_add (tracker, "c", 99, NULL));
}

static void
what_are_no_states_changes_nothing (void)
{
  g_autoptr (EbbGeneratorTracker) tracker = new_tracker ();
  g_autoptr (EbbArgs) before = ebb_generator_tracker_get_states (tracker);

  for (guint i = 0; i < 3; i++)
    {
      g_autoptr (EbbArgs) states = ebb_generator_tracker_get_states (tracker);
      g_autoptr (EbbArgs) state = ebb_args_new (EBB_ARGS_DICT);
      g_autoptr (EbbArgs) after = NULL;
      g_autoptr (GError) error = NULL;

      ebb_args_add_int (state, "seed", 3);
      if (i == 1)
        ebb_args_add_double (state, "offset", 3);
      if (i == 2)
        ebb_args_add_int (states, "c", 3);
      else
        ebb_args_add_args (states, "c", state);
      g_assert_false (ebb_generator_tracker_set_states (tracker, states, &error));
      test_assert_error (error, EBB_ERROR_STATE, "entry 2", "c");
      after = ebb_generator_tracker_get_states (tracker);
      test_assert_args_equal (after, before);
    }
  g_assert_false (ebb_generator_tracker_set_states (tracker, NULL, NULL));
}

/* -- recomputes ---------------------------------------------------------------------------------------------------- */

/* Dropout outside, inside a fork, inside another one, and outside again. */
static EbbTensor *
drop_in_forks (EbbModule *self,
               EbbTensor *x,
               gpointer data,
               GError **error)
{
  static const char *const names[] = { NULL, "a", "b", NULL, "a" };
  EbbGeneratorTracker *tracker = data != NULL ? data : ebb_generator_tracker_get_default ();
  g_autoptr (EbbTensor) gain = ebb_module_get_parameter (self, "gain");
  EbbTensor *y = ebb_mul (x, gain, error);

  for (guint i = 0; i < G_N_ELEMENTS (names); i++)
    {
      g_autoptr (EbbTensor) before = g_steal_pointer (&y);
      g_autoptr (EbbTensor) dropped = NULL;

      if (names[i] != NULL && !ebb_generator_tracker_fork (tracker, names[i], error))
        return NULL;
      dropped = ebb_dropout (before, 0.3, TRUE, NULL, error);
      y = ebb_sin (dropped, error);
      if (names[i] != NULL)
        ebb_generator_tracker_join (tracker);
    }
  return y;
}

static void
reseed (EbbGeneratorTracker *tracker)
{
  ebb_generator_tracker_reset (tracker);
  g_assert_true (ebb_generator_tracker_add (tracker, "a", 5, NULL));
  g_assert_true (ebb_generator_tracker_add (tracker, "b", 6, NULL));
}

static void
a_recompute_forks_again (const TestMode *mode)
{
  g_autoptr (EbbGeneratorTracker) tracker = new_tracker ();
  g_autoptr (EbbModule) inner = test_with_gain (test_lambda1_new (drop_in_forks, tracker), 2);
  g_autoptr (EbbModule) model =
      test_chain_new (test_with_gain (test_lambda1_new (drop_in_forks, tracker), 3), g_object_ref (inner),
                      ebb_dropout_new (0.5, NULL), NULL);
  g_autoptr (EbbTensor) x = test_input_in (mode, 5);
  g_autoptr (TestOutcome) plain = NULL;
  g_autoptr (EbbArgs) states = NULL;

  ebb_module_to_dtype (model, mode->dtype, NULL);
  plain = test_train1 (model, x);
  states = ebb_generator_tracker_get_states (tracker);
  for (guint depth = 0; depth < 3; depth++)
    {
      g_autoptr (TestOutcome) wrapped = NULL;
      g_autoptr (EbbArgs) after = NULL;

      test_wrap (depth == 0 ? inner : model, NULL);
      reseed (tracker);
      wrapped = test_train1 (model, x);
      test_assert_same_outcome (plain, wrapped);
      after = ebb_generator_tracker_get_states (tracker);
      test_assert_args_equal (after, states);
    }
}

static EbbArgs *
changes_modes (EbbArgs *args, gpointer tracker, GError **error)
{
  g_autoptr (EbbTensor) x = ebb_args_get_tensor (args, 0);
  g_autoptr (EbbTensor) y = ebb_sin (x, error);

  ebb_generator_tracker_join (tracker);
  ebb_push_checkpointing_disabled ();
  ebb_push_autocast (TRUE, EBB_DTYPE_BF16);
  return ebb_args_new_for_tensor (y);
}

/* As they do without a checkpoint: the fork around it ends inside, and what is pushed inside is popped after it. */
static void
modes_that_a_checkpointed_forward_changes_stay_changed (void)
{
  g_autoptr (EbbGeneratorTracker) tracker = new_tracker ();
  g_autoptr (EbbTensor) x = test_randn (2, 4, 8, -1);
  g_autoptr (EbbArgs) args = ebb_args_new_for_tensor (x);
  g_autoptr (EbbArgs) result = NULL;
  g_autoptr (GError) error = NULL;
  EbbGenerator *outside = ebb_generator_get_default ();

  ebb_tensor_set_requires_grad (x, TRUE, NULL);
  fork_to (tracker, "a");
  result = ebb_checkpoint (changes_modes, tracker, NULL, args, NULL, &error);
  g_assert_no_error (error);
  g_assert_true (ebb_generator_get_default () == outside);
  g_assert_true (ebb_is_autocast_enabled ());
  ebb_pop_autocast ();
  g_assert_false (ebb_is_autocast_enabled ());
  ebb_pop_checkpointing_disabled ();
}

/* Forward inside a fork, backward outside of it, or inside another one. */
static void
a_forward_inside_a_fork_is_recomputed_inside_it (void)
{
  g_autoptr (EbbGeneratorTracker) tracker = new_tracker ();
  g_autoptr (EbbModule) mlp = test_mlp_new (1);
  g_autoptr (EbbTensor) x = test_randn (2, 30, 8, -1);
  g_autoptr (TestOutcome) plain = NULL;

  for (guint i = 0; i < 3; i++)
    {
      g_autoptr (EbbTensor) y = NULL;
      g_autoptr (EbbTensor) loss = NULL;
      g_autoptr (TestOutcome) outcome = NULL;
      g_autoptr (GError) error = NULL;

      if (i == 1)
        test_wrap (mlp, NULL);
      reseed (tracker);
      ebb_manual_seed (3);
      fork_to (tracker, "a");
      y = ebb_module_call1 (mlp, x, &error);
      g_assert_no_error (error);
      ebb_generator_tracker_join (tracker);
      loss = test_loss (y);
      if (i == 2)
        fork_to (tracker, "b");
      test_backward (loss);
      if (i == 2)
        {
          g_assert_true (ebb_generator_get_default () == ebb_generator_tracker_get_generator (tracker, "b"));
          ebb_generator_tracker_join (tracker);
        }
      g_assert_cmpuint (ebb_generator_get_offset (ebb_generator_get_default ()), ==, 0);
      g_assert_cmpuint (ebb_generator_get_offset (ebb_generator_tracker_get_generator (tracker, "b")), ==, 0);
      outcome = test_outcome_new (mlp, NULL);
      if (i == 0)
        plain = g_steal_pointer (&outcome);
      else
        test_assert_same_outcome (plain, outcome);
      ebb_module_zero_grad (mlp);
    }
}

/* As a training does that seeds anew at each step, with a backward that comes late. */
static void
a_reset_before_backward_changes_nothing (gconstpointer data)
{
  const gboolean adds_again = data != NULL;
  g_autoptr (EbbGeneratorTracker) tracker = new_tracker ();
  g_autoptr (EbbModule) module = test_with_gain (test_lambda1_new (drop_in_forks, tracker), 3);
  g_autoptr (EbbTensor) x = test_randn (2, 30, 8, -1);
  g_autoptr (TestOutcome) plain = test_train1 (module, x);
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) loss = NULL;
  g_autoptr (TestOutcome) wrapped = NULL;

  reseed (tracker);
  y = test_forward1 (test_wrap (module, NULL), x);
  loss = test_loss (y);
  ebb_generator_tracker_reset (tracker);
  if (adds_again)
    g_assert_true (ebb_generator_tracker_add (tracker, "b", 77, NULL));
  test_backward (loss);
  wrapped = test_outcome_new (module, NULL);
  for (guint i = 0; i < wrapped->tensors->len; i++)
    g_assert_true (ebb_tensor_equal (wrapped->tensors->pdata[i], plain->tensors->pdata[i]));
  if (!adds_again)
    return;
  g_assert_cmpuint (ebb_generator_get_seed (ebb_generator_tracker_get_generator (tracker, "b")), ==, 77);
  g_assert_cmpuint (ebb_generator_get_offset (ebb_generator_tracker_get_generator (tracker, "b")), ==, 0);
}

static gboolean
has_own_generators (void)
{
  return ebb_generator_tracker_has (ebb_generator_tracker_get_default (), "a");
}

static void *
run_backward (void *loss)
{
  g_autoptr (GError) error = NULL;

  ebb_tensor_backward (loss, &error);
  g_assert_no_error (error);
  g_assert_false (has_own_generators ());
  return NULL;
}

/* On a thread that has a tracker already. */
static void *
run_backward_beside (void *loss)
{
  g_assert_false (has_own_generators ());
  return run_backward (loss);
}

/* Layers ask for the thread's own tracker: that of the forward's thread. */
static void
backward_on_another_thread_forks_to_the_forwards_generators (void)
{
  EbbGeneratorTracker *tracker = ebb_generator_tracker_get_default ();
  g_autoptr (EbbModule) module = test_with_gain (test_lambda1_new (drop_in_forks, NULL), 3);
  g_autoptr (EbbTensor) x = test_randn (2, 30, 8, -1);
  g_autoptr (TestOutcome) plain = NULL;
  g_autoptr (EbbArgs) states = NULL;

  reseed (tracker);
  plain = test_train1 (module, x);
  states = ebb_generator_tracker_get_states (tracker);
  test_wrap (module, NULL);
  for (guint i = 0; i < 2; i++)
    {
      g_autoptr (EbbTensor) y = NULL;
      g_autoptr (EbbTensor) loss = NULL;
      g_autoptr (TestOutcome) wrapped = NULL;
      g_autoptr (EbbArgs) after = NULL;
      pthread_t thread;

      reseed (tracker);
      y = test_forward1 (module, x);
      loss = test_loss (y);
      test_thread_create (&thread, i == 0 ? run_backward : run_backward_beside, loss);
      pthread_join (thread, NULL);
      wrapped = test_outcome_new (module, NULL);
      for (guint k = 0; k < wrapped->tensors->len; k++)
        g_assert_true (ebb_tensor_equal (wrapped->tensors->pdata[k], plain->tensors->pdata[k]));
      after = ebb_generator_tracker_get_states (tracker);
      test_assert_args_equal (after, states);
      ebb_module_zero_grad (module);
      g_assert_true (tracker == ebb_generator_tracker_get_default ());
    }
  ebb_generator_tracker_reset (tracker);
}

static EbbTensor *
fork_and_stumble (EbbModule *self,
                  EbbTensor *x,
                  gpointer data,
                  GError **error)
{
  g_autoptr (EbbTensor) gain = ebb_module_get_parameter (self, "gain");
  g_autoptr (EbbTensor) y = ebb_mul (x, gain, error);
  const gboolean *always = data;

  if (!ebb_generator_tracker_fork (ebb_generator_tracker_get_default (), "a", error))
    return NULL;
  if (*always || ebb_is_recomputing ())
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_CALLBACK, "the power went");
      return NULL;
    }
  ebb_generator_tracker_join (ebb_generator_tracker_get_default ());
  return ebb_sin (y, error);
}

static void
a_fork_that_a_failure_leaves_open_is_ended (gconstpointer data)
{
  const gboolean always = data != NULL;
  EbbGenerator *before = ebb_generator_get_default ();
  g_autoptr (EbbModule) module = test_with_gain (test_lambda1_new (fork_and_stumble, (gpointer) &always), 3);
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
  g_autoptr (EbbTensor) x = test_randn (2, 3, 8, -1);
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (GError) error = NULL;

  g_object_set (options, "early-stop", FALSE, NULL);
  reseed (ebb_generator_tracker_get_default ());
  y = ebb_module_call1 (test_wrap (module, options), x, &error);
  g_assert_true ((y == NULL) == always);
  if (!always)
    {
      g_autoptr (EbbTensor) loss = test_loss (y);

      g_assert_false (ebb_tensor_backward (loss, &error));
    }
  test_assert_error (error, EBB_ERROR_CALLBACK, "the power went");
  g_assert_true (ebb_generator_get_default () == before);
  ebb_generator_tracker_reset (ebb_generator_tracker_get_default ());
}

/* -- ranks --------------------------------------------------------------------------------------------------------- */

static gboolean
seed_rank (EbbProcessGroup *group,
           gpointer user_data,
           GError **error)
{
  const guint rank = ebb_process_group_get_rank (group);
  EbbGeneratorTracker *tracker = ebb_generator_tracker_get_default ();
  g_autoptr (EbbTensor) alike = NULL;
  g_autoptr (EbbTensor) apart = NULL;
  g_autoptr (EbbTensor) all_alike = NULL;
  g_autoptr (EbbTensor) all_apart = NULL;
  g_autoptr (GError) refused = NULL;

  g_assert_true (ebb_model_parallel_manual_seed (7, G_OBJECT (group), error));
  g_assert_cmpuint (ebb_generator_get_seed (ebb_generator_get_default ()), ==, 7);
  g_assert_cmpuint (
      ebb_generator_get_seed (ebb_generator_tracker_get_generator (tracker, EBB_MODEL_PARALLEL_RNG)), ==,
      7 + 2718 + rank);
  alike = draw (NULL);
  fork_to (tracker, EBB_MODEL_PARALLEL_RNG);
  g_assert_false (ebb_model_parallel_manual_seed (7, G_OBJECT (group), &refused));
  test_assert_error (refused, EBB_ERROR_INVALID_ARGUMENT, "fork");
  apart = draw (NULL);
  ebb_generator_tracker_join (tracker);
  all_alike = ebb_process_group_all_gather (group, alike, error);
  all_apart = ebb_process_group_all_gather (group, apart, error);
  for (guint r = 0; r < ebb_process_group_get_size (group); r++)
    {
      g_autoptr (EbbTensor) its_alike = ebb_narrow (all_alike, 0, 10 * (gint64) r, 10, error);
      g_autoptr (EbbTensor) its_apart = ebb_narrow (all_apart, 0, 10 * (gint64) r, 10, error);

      g_assert_true (ebb_tensor_equal (alike, its_alike));
      g_assert_true (ebb_tensor_equal (apart, its_apart) == (r == rank));
    }
  /* Again, for another number of steps: all is where it was. */
  g_assert_true (ebb_model_parallel_manual_seed (7, G_OBJECT (group), error));
  g_clear_pointer (&apart, ebb_tensor_unref);
  apart = draw (NULL);
  g_assert_true (ebb_tensor_equal (alike, apart));
  return TRUE;
}

static void
default_generators_of_ranks_agree_and_named_ones_differ (void)
{
  for (guint n_ranks = 1; n_ranks <= 4; n_ranks *= 2)
    test_ranks_run (n_ranks, seed_rank, NULL);
}

/* Four ranks, two and two of which share a model. */
typedef struct
{
  const char *const *names;
  guint model_dim;
  gboolean divides, passes_mesh, passes_group;
  guint64 alike[4], apart[4]; /* seeds by rank */
} Grid;

static const char *const usual_names[] = { "data", "tensor" };
static const char *const other_names[] = { "replica", "mp" };
static const char *const first_names[] = { "tensor", "data" };

static gboolean
seed_grid (EbbProcessGroup *group,
           gpointer user_data,
           GError **error)
{
  static const gint64 sizes[] = { 2, 2 };
  Grid *grid = user_data;
  const guint rank = ebb_process_group_get_rank (group);
  const char *name = grid->names[grid->model_dim];
  EbbGeneratorTracker *tracker = ebb_generator_tracker_get_default ();
  g_autoptr (EbbMesh) mesh = ebb_mesh_new (group, grid->names, sizes, 2, error);
  g_autoptr (EbbModule) mlp = ebb_mlp_new (8, 16, EBB_ACTIVATION_GELU, error);
  g_autoptr (EbbParallelPlan) plan = ebb_parallel_plan_new ();
  g_autoptr (EbbParallelOptions) options = ebb_parallel_options_new ();
  GObject *mpu = NULL;

  if (grid->passes_mesh)
    mpu = G_OBJECT (mesh);
  else if (grid->passes_group)
    mpu = G_OBJECT (ebb_mesh_get_group (mesh, name));
  ebb_parallel_plan_add (plan, "c_fc", EBB_PARALLEL_STYLE_COLUMN, error);
  ebb_parallel_plan_add (plan, "c_proj", EBB_PARALLEL_STYLE_ROW, error);
  g_object_set (options, "plan", plan, NULL);
  if (grid->divides)
    g_clear_object (&(EbbModule *){ ebb_parallelize (mlp, ebb_mesh_get_group (mesh, name), options, error) });
  else if (grid->names == other_names)
    ebb_mesh_set_model_dim (mesh, name, error);
  if (!ebb_model_parallel_manual_seed (7, mpu, error))
    return FALSE;
  g_assert_cmpstr (ebb_mesh_get_model_dim (mesh), ==, name);
  grid->alike[rank] = ebb_generator_get_seed (ebb_generator_get_default ());
  grid->apart[rank] =
      ebb_generator_get_seed (ebb_generator_tracker_get_generator (tracker, EBB_MODEL_PARALLEL_RNG));
  return TRUE;
}

static void
one_call_seeds_the_ranks_of_a_mesh (void)
{
  Grid grids[] = {
    { .names = usual_names, .model_dim = 1 },
    { .names = usual_names, .model_dim = 1, .passes_mesh = TRUE },
    { .names = usual_names, .model_dim = 1, .passes_group = TRUE },
    { .names = usual_names, .model_dim = 1, .divides = TRUE },
    { .names = first_names, .model_dim = 0 },
    { .names = other_names, .model_dim = 1 },
    { .names = other_names, .model_dim = 0, .passes_mesh = TRUE },
    { .names = other_names, .model_dim = 1, .divides = TRUE },
    { .names = other_names, .model_dim = 1, .divides = TRUE, .passes_mesh = TRUE },
  };

  for (guint i = 0; i < G_N_ELEMENTS (grids); i++)
    {
      const Grid *grid = &grids[i];

      g_test_message ("grid %u", i);
      test_ranks_run (4, seed_grid, &grids[i]);
      g_assert_cmpuint (grid->alike[0], ==, 7);
      for (guint a = 0; a < 4; a++)
        {
          const guint place[] = { a / 2, a % 2 };

          g_assert_cmpuint (grid->apart[a], ==, 7 + 2718 + place[grid->model_dim]);
          for (guint b = 0; b < 4; b++)
            {
              const guint other[] = { b / 2, b % 2 };

              g_assert_true ((grid->alike[a] == grid->alike[b])
                             == (place[1 - grid->model_dim] == other[1 - grid->model_dim]));
            }
        }
    }
}

static gboolean
seed_unknown (EbbProcessGroup *group,
              gpointer user_data,
              GError **error)
{
  static const gint64 two[] = { 2, 2 }, four[] = { 1, 4 };
  const guint64 before = ebb_generator_get_seed (ebb_generator_get_default ());
  g_autoptr (EbbMesh) of_two = NULL;
  g_autoptr (EbbMesh) of_four = NULL;
  g_autoptr (GError) refused = NULL;

  g_assert_false (ebb_model_parallel_manual_seed (7, NULL, &refused));
  test_assert_error (refused, EBB_ERROR_STATE, "model_parallel_manual_seed", "of 4", "nothing says", "pass the mesh");
  g_clear_error (&refused);
  of_two = ebb_mesh_new (group, other_names, two, 2, error);
  g_assert_false (ebb_model_parallel_manual_seed (7, G_OBJECT (of_two), &refused));
  test_assert_error (refused, EBB_ERROR_INVALID_ARGUMENT, "a mesh of replica=2 mp=2", "\"tensor\"", "set_model_dim");
  g_clear_error (&refused);
  g_assert_false (ebb_mesh_set_model_dim (of_two, "tensor", &refused));
  test_assert_error (refused, EBB_ERROR_INVALID_ARGUMENT, "no dimension \"tensor\"", "\"mp\"");
  g_clear_error (&refused);
  g_assert_true (ebb_mesh_set_model_dim (of_two, "mp", error));
  of_four = ebb_mesh_new (group, usual_names, four, 2, error);
  g_assert_false (ebb_model_parallel_manual_seed (7, NULL, &refused));
  test_assert_error (refused, EBB_ERROR_STATE, "different groups", "pass the mesh");
  g_assert_cmpuint (ebb_generator_get_seed (ebb_generator_get_default ()), ==, before);
  g_clear_object (&of_two);
  g_clear_object (&of_four);
  of_two = ebb_mesh_new (group, usual_names, two, 2, error); /* those before are gone */
  return ebb_model_parallel_manual_seed (7, NULL, error);
}

static void
a_rank_of_several_is_not_taken_for_one_alone (void)
{
  test_ranks_run (4, seed_unknown, NULL);
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
#define TEST(name, func) g_test_add_func ("/generator-tracker/" name, func)
  TEST ("a-name-or-a-seed-used-twice-is-refused", a_name_or_a_seed_used_twice_is_refused);
  TEST ("after-a-reset-names-and-seeds-are-free", after_a_reset_names_and_seeds_are_free);
  TEST ("forks-nest-and-each-generator-goes-on-where-it-was", forks_nest_and_each_generator_goes_on_where_it_was);
  TEST ("a-fork-outlives-its-tracker", a_fork_outlives_its_tracker);
  TEST ("states-put-all-generators-back", states_put_all_generators_back);
  TEST ("states-know-the-first-seeds", states_know_the_first_seeds);
  TEST ("what-are-no-states-changes-nothing", what_are_no_states_changes_nothing);
  test_add_modes ("/generator-tracker/a-recompute-forks-again", a_recompute_forks_again);
  TEST ("a-forward-inside-a-fork-is-recomputed-inside-it", a_forward_inside_a_fork_is_recomputed_inside_it);
  TEST ("modes-that-a-checkpointed-forward-changes-stay-changed",
        modes_that_a_checkpointed_forward_changes_stay_changed);
  g_test_add_data_func ("/generator-tracker/a-reset-before-backward-changes-nothing", NULL,
                        a_reset_before_backward_changes_nothing);
  g_test_add_data_func ("/generator-tracker/a-reset-before-backward-changes-nothing/and-another-seed", "",
                        a_reset_before_backward_changes_nothing);
  TEST ("backward-on-another-thread-forks-to-the-forwards-generators",
        backward_on_another_thread_forks_to_the_forwards_generators);
  g_test_add_data_func ("/generator-tracker/a-fork-that-a-failure-leaves-open-is-ended/in-forward", "",
                        a_fork_that_a_failure_leaves_open_is_ended);
  g_test_add_data_func ("/generator-tracker/a-fork-that-a-failure-leaves-open-is-ended/in-recompute", NULL,
                        a_fork_that_a_failure_leaves_open_is_ended);
  TEST ("default-generators-of-ranks-agree-and-named-ones-differ",
        default_generators_of_ranks_agree_and_named_ones_differ);
  TEST ("one-call-seeds-the-ranks-of-a-mesh", one_call_seeds_the_ranks_of_a_mesh);
  TEST ("a-rank-of-several-is-not-taken-for-one-alone", a_rank_of_several_is_not_taken_for_one_alone);
  return g_test_run ();
}
