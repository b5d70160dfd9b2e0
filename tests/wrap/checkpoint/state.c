/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/tensors.h"
#include "support/training.h"

#include <pthread.h>

/* A recompute runs under the modes and random state of its forward, and afterwards the user's are restored. */

/* -- random numbers ------------------------------------------------------------------------------------------------ */

enum
{
  N_GENERATORS = 3
};

/* Dropout from the default generator and from each of several others in turn. */
static EbbTensor *
drop_often (EbbModule *self, EbbTensor *x, gpointer data, GError **error)
{
  EbbGenerator **generators = data;
  g_autoptr (EbbTensor) gain = ebb_module_get_parameter (self, "gain");
  EbbTensor *y = ebb_mul (x, gain, error);

  for (guint i = 0; i < 2 * (N_GENERATORS + 1); i++)
    {
      guint which = i % (N_GENERATORS + 1);
      g_autoptr (EbbTensor) dropped =
          ebb_dropout (y, 0.2, TRUE, which == N_GENERATORS ? NULL : generators[which], error);

      g_clear_pointer (&y, ebb_tensor_unref);
      y = ebb_sin (dropped, error);
    }
  return y;
}

static void
reseed (EbbGenerator **generators)
{
  for (guint i = 0; i < N_GENERATORS; i++)
    ebb_generator_set_state (generators[i], 100 + i, 1000 * i);
}

static void
every_generator_draws_again_and_is_put_back (const TestMode *mode)
{
  EbbGenerator *generators[N_GENERATORS];
  guint64 offsets[N_GENERATORS];
  g_autoptr (EbbModule) inner = NULL;
  g_autoptr (EbbModule) model = NULL;
  g_autoptr (EbbTensor) x = test_input_in (mode, 5);
  g_autoptr (TestOutcome) plain = NULL;

  for (guint i = 0; i < N_GENERATORS; i++)
    generators[i] = ebb_generator_new (0);
  inner = test_with_gain (test_lambda1_new (drop_often, generators), 2);
  model = test_chain_new (test_with_gain (test_lambda1_new (drop_often, generators), 3), g_object_ref (inner),
                          ebb_dropout_new (0.5, NULL), NULL);
  ebb_module_to_dtype (model, mode->dtype, NULL);
  reseed (generators);
  plain = test_train1 (model, x);
  for (guint i = 0; i < N_GENERATORS; i++)
    offsets[i] = ebb_generator_get_offset (generators[i]);
  for (guint depth = 0; depth < 3; depth++)
    {
      g_autoptr (TestOutcome) wrapped = NULL;

      test_wrap (depth == 0 ? inner : model, NULL);
      reseed (generators);
      wrapped = test_train1 (model, x);
      test_assert_same_outcome (plain, wrapped);
      for (guint i = 0; i < N_GENERATORS; i++)
        {
          g_assert_cmpuint (ebb_generator_get_seed (generators[i]), ==, 100 + i);
          g_assert_cmpuint (ebb_generator_get_offset (generators[i]), ==, offsets[i]);
        }
    }
  for (guint i = 0; i < N_GENERATORS; i++)
    g_object_unref (generators[i]);
}

/* Where the user has put them meanwhile, they stay. */
static void
generators_moved_before_backward_stay_where_they_are (void)
{
  g_autoptr (EbbModule) mlp = test_mlp_new (1);
  g_autoptr (EbbTensor) x = test_randn (2, 3, 8, -1);
  g_autoptr (TestOutcome) plain = test_train1 (mlp, x);
  g_autoptr (TestOutcome) wrapped = NULL;
  g_autoptr (EbbTensor) y = test_forward1 (test_wrap (mlp, NULL), x);
  g_autoptr (EbbTensor) loss = test_loss (y);
  EbbGenerator *generator = ebb_generator_get_default ();

  ebb_generator_set_state (generator, 4711, 17);
  test_backward (loss);
  g_assert_cmpuint (ebb_generator_get_seed (generator), ==, 4711);
  g_assert_cmpuint (ebb_generator_get_offset (generator), ==, 17);
  wrapped = test_outcome_new (mlp, NULL);
  for (guint i = 0; i < wrapped->tensors->len; i++)
    g_assert_true (ebb_tensor_equal (wrapped->tensors->pdata[i], plain->tensors->pdata[i]));
}

typedef struct
{
  EbbGenerator *generator;
  guint calls;
} Late;

static EbbTensor *
draw_when_recomputing (EbbModule *self, EbbTensor *x, gpointer data, GError **error)
{
  Late *late = data;
  g_autoptr (EbbTensor) gain = ebb_module_get_parameter (self, "gain");
  g_autoptr (EbbTensor) y = NULL;

  if (late->calls++ > 0)
    ebb_tensor_unref (ebb_rand ((const gint64[]){ 100 }, 1, EBB_DTYPE_F32, NULL, late->generator, NULL));
  y = ebb_mul (x, gain, error);
  return ebb_sin (y, error);
}

static void
generator_that_only_the_recompute_draws_from_is_put_back (void)
{
  Late late = { ebb_generator_new (5), 0 };
  g_autoptr (EbbModule) module = test_with_gain (test_lambda1_new (draw_when_recomputing, &late), 1);
  g_autoptr (EbbTensor) x = test_randn (2, 3, 8, -1);

  test_outcome_free (test_train1 (test_wrap (module, NULL), x));
  g_assert_cmpuint (late.calls, ==, 2);
  g_assert_cmpuint (ebb_generator_get_offset (late.generator), ==, 0);
  g_object_unref (late.generator);
}

static void
without_preserving_another_mask_is_drawn (void)
{
  g_autoptr (EbbModule) mlp = test_mlp_new (1);
  g_autoptr (EbbTensor) x = test_randn (2, 30, 8, -1);
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
  g_autoptr (TestOutcome) plain = test_train1 (mlp, x);
  g_autoptr (TestOutcome) wrapped = NULL;

  g_object_set (options, "preserve-rng-state", FALSE, NULL);
  g_assert_false (test_get_flag (options, "preserve-rng-state"));
  wrapped = test_train1 (test_wrap (mlp, options), x);
  test_assert_other_outcome (plain, wrapped);
  g_assert_cmpuint (wrapped->offset, >, plain->offset); /* it goes on from where the forward had ended */
}

/* -- modes --------------------------------------------------------------------------------------------------------- */

typedef struct
{
  guint calls;
  gboolean grad_enabled[4], autocast[4], training[4];
} Modes;

static EbbTensor *
note_modes (EbbModule *self, EbbTensor *x, gpointer data, GError **error)
{
  Modes *modes = data;
  g_autoptr (EbbTensor) gain = ebb_module_get_parameter (self, "gain");
  g_autoptr (EbbTensor) y = NULL;

  g_assert_cmpuint (modes->calls, <, 4);
  modes->grad_enabled[modes->calls] = ebb_is_grad_enabled ();
  modes->autocast[modes->calls] = ebb_is_autocast_enabled ();
  modes->training[modes->calls] = ebb_module_get_training (self);
  modes->calls++;
  y = ebb_mul (x, gain, error);
  return ebb_sin (y, error);
}

static void
gradients_are_on_in_the_recompute_alone (void)
{
  Modes modes = { 0 };
  g_autoptr (EbbModule) module = test_with_gain (test_lambda1_new (note_modes, &modes), 1);
  g_autoptr (EbbTensor) x = test_randn (2, 3, 8, -1);
  g_autoptr (TestOutcome) plain = test_train1 (module, x);
  g_autoptr (TestOutcome) wrapped = NULL;
  g_autoptr (EbbTensor) y = test_forward1 (test_wrap (module, NULL), x);
  g_autoptr (EbbTensor) loss = test_loss (y);

  ebb_push_grad_enabled (FALSE);
  test_backward (loss);
  g_assert_false (ebb_is_grad_enabled ());
  ebb_pop_grad_enabled ();
  g_assert_true (ebb_is_grad_enabled ());
  g_assert_cmpuint (modes.calls, ==, 3);
  g_assert_true (modes.grad_enabled[1] && modes.grad_enabled[2]);
  wrapped = test_outcome_new (module, NULL);
  g_assert_true (ebb_tensor_equal (plain->tensors->pdata[0], wrapped->tensors->pdata[0]));
}

static void
autocast_is_that_of_the_forward (void)
{
  for (guint forward = 0; forward < 2; forward++)
    for (guint backward = 0; backward < 2; backward++)
      {
        Modes modes = { 0 };
        g_autoptr (EbbModule) noting = test_with_gain (test_lambda1_new (note_modes, &modes), 1);
        g_autoptr (EbbModule) model = test_chain_new (test_mlp_new (1), g_object_ref (noting), test_mlp_new (2), NULL);
        g_autoptr (EbbTensor) x = test_randn (2, 3, 8, -1);
        TestOutcome *outcomes[2];

        for (guint wrapped = 0; wrapped < 2; wrapped++)
          {
            g_autoptr (EbbTensor) y = NULL;
            g_autoptr (EbbTensor) loss = NULL;

            if (wrapped)
              test_wrap (model, NULL);
            ebb_push_autocast (forward, EBB_DTYPE_BF16);
            y = test_forward1 (model, x);
            ebb_pop_autocast ();
            loss = test_loss (y);
            ebb_push_autocast (backward, EBB_DTYPE_BF16);
            test_backward (loss);
            g_assert_cmpint (ebb_is_autocast_enabled (), ==, backward);
            ebb_pop_autocast ();
            outcomes[wrapped] = test_outcome_new (model, NULL);
          }
        g_assert_cmpuint (modes.calls, ==, 3);
        for (guint i = 0; i < 3; i++)
          g_assert_cmpint (modes.autocast[i], ==, forward);
        test_assert_same_outcome (outcomes[0], outcomes[1]);
        test_outcome_free (outcomes[0]);
        test_outcome_free (outcomes[1]);
      }
}

/* One part in evaluation inside a whole in training, and everything the other way round when backward comes. */
static void
training_flags_are_those_of_the_forward (void)
{
  Modes of_first = { 0 }, of_second = { 0 };
  EbbModule *first = test_with_gain (test_lambda1_new (note_modes, &of_first), 1);
  EbbModule *second = test_with_gain (test_lambda1_new (note_modes, &of_second), 2);
  g_autoptr (EbbModule) model = test_chain_new (first, ebb_dropout_new (0.5, NULL), second, NULL);
  g_autoptr (EbbModule) dropout = ebb_module_get_child (model, "1");
  g_autoptr (EbbTensor) x = test_randn (2, 3, 8, -1);
  g_autoptr (TestOutcome) plain = NULL;
  g_autoptr (TestOutcome) wrapped = NULL;
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) loss = NULL;

  ebb_module_set_training (second, FALSE);
  plain = test_train1 (model, x);
  y = test_forward1 (test_wrap (model, NULL), x);
  loss = test_loss (y);
  ebb_module_set_training (model, FALSE);
  ebb_module_set_training (second, TRUE);
  test_backward (loss);
  for (guint i = 0; i < 3; i++)
    g_assert_true (of_first.training[i] && !of_second.training[i]);
  g_assert_true (ebb_module_get_training (second));
  g_assert_false (ebb_module_get_training (model) || ebb_module_get_training (first)
                  || ebb_module_get_training (dropout));
  wrapped = test_outcome_new (model, NULL);
  g_assert_true (ebb_tensor_equal (plain->tensors->pdata[0], wrapped->tensors->pdata[0]));
}

typedef struct
{
  guint64 offset;
  guint n_told;
} Outside;

static gboolean
check_outside (EbbModule *module, EbbRecomputePhase phase, gpointer data, GError **error)
{
  Outside *outside = data;

  outside->n_told++;
  g_assert_false (ebb_is_grad_enabled () || ebb_is_autocast_enabled ());
  g_assert_false (ebb_is_checkpointing () || ebb_is_recomputing ());
  g_assert_false (ebb_module_get_training (module));
  g_assert_cmpuint (ebb_generator_get_offset (ebb_generator_get_default ()), ==, outside->offset);
  return TRUE;
}

/* Whatever runs next in the backward pass, as a callback or a store, finds the modes of the backward pass. */
static void
all_is_put_back_as_soon_as_the_recompute_ends (void)
{
  Outside outside = { 0 };
  g_autoptr (EbbModule) model = test_mlp_new (1);
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
  g_autoptr (EbbTensor) x = test_randn (2, 3, 8, -1);
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) loss = NULL;

  ebb_checkpoint_options_set_recompute_func (options, check_outside, &outside, NULL);
  ebb_push_autocast (TRUE, EBB_DTYPE_BF16);
  y = test_forward1 (test_wrap (model, options), x);
  ebb_pop_autocast ();
  ebb_module_set_training (model, FALSE);
  loss = test_loss (y);
  outside.offset = ebb_generator_get_offset (ebb_generator_get_default ());
  test_backward (loss);
  g_assert_cmpuint (outside.n_told, ==, 2);
}

/* -- on error too -------------------------------------------------------------------------------------------------- */

typedef struct
{
  int calls_left;
  EbbGenerator *generator;
} Failing;

static EbbTensor *
fail_after_drawing (EbbModule *self, EbbTensor *x, gpointer data, GError **error)
{
  Failing *failing = data;
  g_autoptr (EbbTensor) gain = ebb_module_get_parameter (self, "gain");
  g_autoptr (EbbTensor) y = ebb_mul (x, gain, error);
  g_autoptr (EbbTensor) once = ebb_dropout (y, 0.5, TRUE, NULL, error);
  g_autoptr (EbbTensor) twice = ebb_dropout (once, 0.5, TRUE, failing->generator, error);

  if (failing->calls_left-- == 0)
    {
      g_set_error (error, G_IO_ERROR, G_IO_ERROR_BUSY, "told so");
      return NULL;
    }
  return ebb_sin (twice, error);
}

static void
all_is_put_back_on_error (void)
{
  for (guint preserve = 0; preserve < 2; preserve++)
    for (int fail = 0; fail < 2; fail++)
      {
        Failing failing = { fail, ebb_generator_new (5) };
        g_autoptr (GError) error = NULL;
        g_autoptr (EbbModule) module = test_with_gain (test_lambda1_new (fail_after_drawing, &failing), 1);
        g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
        g_autoptr (EbbTensor) x = test_randn (2, 3, 8, -1);
        g_autoptr (EbbTensor) y = NULL;
        g_autoptr (EbbTensor) loss = NULL;
        guint64 offset;
        TestState before;

        g_object_set (options, "preserve-rng-state", preserve, NULL);
        test_wrap (module, options);
        if (fail > 0)
          {
            y = test_forward1 (module, x);
            loss = test_loss (y);
          }
        ebb_module_set_training (module, FALSE);
        ebb_push_autocast (TRUE, EBB_DTYPE_BF16);
        before = test_state_now ();
        offset = ebb_generator_get_offset (failing.generator);
        if (loss != NULL)
          g_assert_false (ebb_tensor_backward (loss, &error));
        else
          g_assert_null (ebb_module_call1 (module, x, &error));
        g_assert_error (error, G_IO_ERROR, G_IO_ERROR_BUSY);
        test_assert_state (before);
        g_assert_cmpuint (ebb_generator_get_offset (failing.generator), ==, offset);
        g_assert_false (ebb_module_get_training (module));
        ebb_pop_autocast ();
        g_object_unref (failing.generator);
      }
}

/* -- side effects -------------------------------------------------------------------------------------------------- */

static EbbModule *
new_normalized (void)
{
  ebb_manual_seed (3);
  return test_chain_new (ebb_linear_new (8, 8, TRUE, NULL), ebb_batch_norm1d_new (8, 1e-5, 0.1, NULL), ebb_tanh_new (),
                         ebb_batch_norm1d_new (8, 1e-5, 0.3, NULL), ebb_linear_new (8, 8, TRUE, NULL), NULL);
}

static void
running_statistics_move_once_a_step (const TestMode *mode)
{
  g_autoptr (EbbTensor) x = test_input_in (mode, 6);
  TestOutcome *outcomes[4];

  for (guint depth = 0; depth < G_N_ELEMENTS (outcomes); depth++)
    {
      g_autoptr (EbbModule) model = new_normalized ();

      for (guint i = 0; i < 5; i += 4) /* batch norms compute in f32 */
        {
          g_autofree char *name = g_strdup_printf ("%u", i);
          g_autoptr (EbbModule) linear = ebb_module_get_child (model, name);

          ebb_module_to_dtype (linear, mode->dtype, NULL);
        }
      if (depth >= 2)
        test_wrap_leaves (model, NULL);
      if (depth & 1)
        test_wrap (model, NULL);
      for (guint step = 0; step < 2; step++)
        test_outcome_free (test_train1 (model, x));
      outcomes[depth] = test_train1 (model, x);
      if (depth > 0)
        test_assert_same_outcome (outcomes[0], outcomes[depth]);
    }
  for (guint depth = 0; depth < G_N_ELEMENTS (outcomes); depth++)
    test_outcome_free (outcomes[depth]);
}

static void
running_statistics_move_once_however_often_backward_comes (void)
{
  g_autoptr (EbbModule) plain = new_normalized ();
  g_autoptr (EbbModule) wrapped = test_wrap (new_normalized (), NULL);
  EbbModule *both[] = { plain, wrapped };
  g_autoptr (EbbTensor) x = test_randn (1, 6, 8, -1);
  TestOutcome *outcomes[2];

  for (guint i = 0; i < 2; i++)
    {
      g_autoptr (EbbTensor) y = test_forward1 (both[i], x);
      EbbTensor *loss = test_loss (y);

      for (guint times = 0; times < 3; times++)
        g_assert_true (ebb_backward (&loss, 1, NULL, 0, NULL, 0, TRUE, NULL));
      ebb_tensor_unref (loss);
      outcomes[i] = test_outcome_new (both[i], NULL);
    }
  g_assert_cmpuint (ebb_checkpoint_get_n_recomputes (wrapped), ==, 3);
  test_assert_same_outcome (outcomes[0], outcomes[1]);
  test_outcome_free (outcomes[0]);
  test_outcome_free (outcomes[1]);
}

/* -- where am I ---------------------------------------------------------------------------------------------------- */

typedef struct
{
  GString *log;
  const char *name;
} Place;

static void *
check_not_here (void *data)
{
  g_assert_false (ebb_is_checkpointing ());
  g_assert_false (ebb_is_recomputing ());
  return NULL;
}

static EbbTensor *
say_where (EbbModule *self, EbbTensor *x, gpointer data, GError **error)
{
  const Place *place = data;
  g_autoptr (EbbModule) child = ebb_module_get_child (self, "child");
  g_autoptr (EbbTensor) y = ebb_sin (x, error);
  g_autoptr (EbbTensor) z = child != NULL ? ebb_module_call1 (child, y, error) : ebb_tensor_ref (y);
  pthread_t thread;

  g_string_append_printf (place->log, "%s%s%s ", place->name, ebb_is_checkpointing () ? "c" : "",
                          ebb_is_recomputing () ? "r" : "");
  test_thread_create (&thread, check_not_here, NULL);
  pthread_join (thread, NULL);
  return ebb_exp (z, error);
}

static EbbModule *
new_nest (const Place *places, guint depth)
{
  EbbModule *module = NULL;

  for (guint i = depth; i > 0; i--)
    {
      EbbModule *outer = test_lambda1_new (say_where, (gpointer) &places[i - 1]);

      if (module != NULL)
        ebb_module_register_child (outer, "child", module, NULL);
      g_clear_object (&module);
      module = outer;
    }
  return module;
}

static void
nested_forwards_know_where_they_are (void)
{
  g_autoptr (GString) log = g_string_new (NULL);
  const Place places[] = { { log, "a" }, { log, "b" }, { log, "c" } };
  g_autoptr (EbbModule) outer = new_nest (places, 3);
  g_autoptr (EbbModule) middle = ebb_module_get_child (outer, "child");
  g_autoptr (EbbTensor) x = test_randn (1, 3, 8, -1);

  ebb_tensor_set_requires_grad (x, TRUE, NULL);
  test_outcome_free (test_train1 (outer, x));
  g_assert_cmpstr (log->str, ==, "c b a ");
  g_string_truncate (log, 0);
  test_wrap (middle, NULL);
  test_outcome_free (test_train1 (outer, x));
  g_assert_cmpstr (log->str, ==, "cc bc a cr br ");
  g_string_truncate (log, 0);
  /* The outer one's backward runs the middle one as a checkpointed forward inside a recompute. */
  test_wrap (outer, NULL);
  test_outcome_free (test_train1 (outer, x));
  g_assert_cmpstr (log->str, ==, "cc bc ac ccr bcr ar cr br ");
  g_string_truncate (log, 0);
  ebb_push_checkpointing_disabled ();
  test_outcome_free (test_train1 (outer, x));
  ebb_pop_checkpointing_disabled ();
  g_assert_cmpstr (log->str, ==, "c b a ");
  g_assert_false (ebb_is_checkpointing () || ebb_is_recomputing ());
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
#define TEST(name, func) g_test_add_func ("/checkpoint/state/" name, func)
  test_add_modes ("/checkpoint/state/every-generator-draws-again-and-is-put-back",
                  every_generator_draws_again_and_is_put_back);
  TEST ("generators-moved-before-backward-stay", generators_moved_before_backward_stay_where_they_are);
  TEST ("generator-that-only-the-recompute-draws-from-is-put-back",
        generator_that_only_the_recompute_draws_from_is_put_back);
  TEST ("without-preserving-another-mask-is-drawn", without_preserving_another_mask_is_drawn);
  TEST ("gradients-are-on-in-the-recompute-alone", gradients_are_on_in_the_recompute_alone);
  TEST ("autocast-is-that-of-the-forward", autocast_is_that_of_the_forward);
  TEST ("training-flags-are-those-of-the-forward", training_flags_are_those_of_the_forward);
  TEST ("all-is-put-back-as-soon-as-the-recompute-ends", all_is_put_back_as_soon_as_the_recompute_ends);
  TEST ("all-is-put-back-on-error", all_is_put_back_on_error);
  test_add_modes ("/checkpoint/state/running-statistics-move-once-a-step", running_statistics_move_once_a_step);
  TEST ("running-statistics-move-once-however-often-backward-comes",
        running_statistics_move_once_however_often_backward_comes);
  TEST ("nested-forwards-know-where-they-are", nested_forwards_know_where_they_are);
  return g_test_run ();
}
