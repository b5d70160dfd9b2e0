/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: one-thread */
#include "support/device.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <stdio.h>
#include <unistd.h>

/* Thousands of checkpointed steps, some of which fail or are given up: memory stays where it was after the first. */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define N_STEPS 2000
#define WATCHES_PROCESS FALSE /* a sanitizer keeps freed memory */
#else
#define N_STEPS 10000
#define WATCHES_PROCESS TRUE
#endif
#define N_STEPS_ELSEWHERE 4000 /* where each reading of a value waits for the device */
#define N_FIRST_ELSEWHERE 1000 /* lists of freed blocks of more threads fill up */
#define N_FIRST 100
#define WIDTH 8

typedef struct
{
  EbbModule *model;
  EbbOptimizer *optimizer;
  EbbTensor *x;
  gboolean policy_fails, recompute_fails;
} Training;

typedef struct
{
  guint64 total, reserved, system_calls;
  gint64 heap;     /* bytes that malloc has given out, where that can be asked */
  gint64 resident; /* bytes of the process in memory */
} Use;

static Use
measure (void)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (test_device ());
  g_autofree char *text = NULL;
  long pages = 0;
  Use use = { ebb_memory_stats_get_total (stats), ebb_memory_stats_get_reserved (stats),
              ebb_memory_stats_get_system_calls (stats), 0, 0 };

  /* Work that is still enqueued holds memory. */
  g_assert_true (ebb_device_synchronize (test_device (), NULL));

#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 33)
  use.heap = (gint64) mallinfo2 ().uordblks;
#endif
  if (g_file_get_contents ("/proc/self/statm", &text, NULL, NULL) && sscanf (text, "%*d %ld", &pages) == 1)
    use.resident = (gint64) pages * sysconf (_SC_PAGESIZE);
  return use;
}

/* -- a model ------------------------------------------------------------------------------------------------------- */

static EbbCheckpointPolicy
keep_every_third (const char *op,
                  guint ordinal,
                  guint64 n_bytes,
                  gpointer user_data,
                  GError **error)
{
  Training *self = user_data;

  if (self->policy_fails && ordinal == 5)
    g_set_error (error, G_IO_ERROR, G_IO_ERROR_FAILED, "the policy fails");
  return ordinal % 3 == 0 ? EBB_CHECKPOINT_POLICY_MUST_SAVE : EBB_CHECKPOINT_POLICY_PREFER_RECOMPUTE;
}

static gboolean
recompute_begins (EbbModule *module,
                  EbbRecomputePhase phase,
                  gpointer user_data,
                  GError **error)
{
  Training *self = user_data;

  if (!self->recompute_fails || phase != EBB_RECOMPUTE_BEGIN)
    return TRUE;
  g_set_error (error, G_IO_ERROR, G_IO_ERROR_FAILED, "the recompute fails");
  return FALSE;
}

static void
append (EbbModule *sequence,
        EbbModule *module)
{
  ebb_sequential_append (EBB_SEQUENTIAL (sequence), module, NULL);
  g_object_unref (module);
}

static void
set_up (Training *self)
{
  const gint64 shape[] = { 2, 4, WIDTH };
  g_autoptr (EbbCheckpointOptions) inner = ebb_checkpoint_options_new ();
  g_autoptr (EbbCheckpointOptions) outer = ebb_checkpoint_options_new ();
  GError *error = NULL;

  *self = (Training){ 0 };
  ebb_manual_seed (1);
  self->model = ebb_sequential_new ();
  append (self->model, ebb_transformer_block_new (WIDTH, 2, 0.1, TRUE, TRUE, &error));
  append (self->model, ebb_transformer_block_new (WIDTH, 2, 0.1, TRUE, FALSE, &error));
  g_assert_no_error (error);
  ebb_checkpoint_options_set_policy (inner, keep_every_third, self, NULL);
  ebb_checkpoint_options_set_recompute_func (inner, recompute_begins, self, NULL);
  g_object_set (outer, "determinism-check", EBB_DETERMINISM_CHECK_VALUES, NULL);
  ebb_checkpoint_wrap_each (self->model, EBB_TYPE_TRANSFORMER_BLOCK, inner, &error);
  ebb_checkpoint_wrap_each (self->model, EBB_TYPE_MLP, outer, &error);
  g_object_unref (ebb_checkpoint_wrapper (self->model, outer, &error));
  self->optimizer = ebb_adamw_new (self->model, 1e-3, &error);
  self->x = ebb_randn (shape, 3, EBB_DTYPE_F32, NULL, NULL, &error);
  g_assert_no_error (error);
}

static void
tear_down (Training *self)
{
  g_object_unref (self->model);
  g_object_unref (self->optimizer);
  ebb_tensor_unref (self->x);
}

/* -- steps --------------------------------------------------------------------------------------------------------- */

static EbbTensor *
forward (Training *self,
         GError **error)
{
  g_autoptr (EbbTensor) y = ebb_module_call1 (self->model, self->x, error);
  g_autoptr (EbbTensor) square = ebb_square (y, error);

  return ebb_mean (square, NULL, 0, FALSE, error);
}

static void
step (Training *self,
      guint i)
{
  GError *error = NULL;
  g_autoptr (EbbTensor) loss = NULL;
  gboolean ok;

  self->policy_fails = i % 50 == 17;
  self->recompute_fails = i % 50 == 33;
  ebb_push_autocast (i % 5 == 4, EBB_DTYPE_BF16);
  loss = forward (self, &error);
  ebb_pop_autocast ();
  g_assert_true ((loss == NULL) == self->policy_fails);
  if (loss != NULL && i % 7 == 3 && !self->recompute_fails) /* the graph goes without a backward pass */
    return;
  ok = loss != NULL && (i % 11 != 5 || ebb_backward (&loss, 1, NULL, 0, NULL, 0, TRUE, &error))
       && ebb_tensor_backward (loss, &error);
  if (self->policy_fails || self->recompute_fails)
    g_assert_error (error, G_IO_ERROR, G_IO_ERROR_FAILED);
  else
    g_assert_no_error (error);
  g_clear_error (&error);
  if (ok)
    g_assert_true (ebb_optimizer_step (self->optimizer, NULL));
  ebb_optimizer_zero_grad (self->optimizer);
}

static void
memory_is_flat_over_thousands_of_steps (void)
{
  Training training;
  guint n_steps = N_STEPS;
  const guint n_first = test_device_is_cpu () ? N_FIRST : N_FIRST_ELSEWHERE;
  Use early = { 0 }, late;

  ebb_set_num_threads (1);
  set_up (&training);
  if (!test_device_is_cpu ())
    n_steps = N_STEPS_ELSEWHERE;
  for (guint i = 0; i < n_steps; i++)
    {
      step (&training, i);
      if (i + 1 == n_first)
        early = measure ();
    }
  late = measure ();
  g_test_message ("%u steps: %" G_GUINT64_FORMAT " bytes in use, %" G_GUINT64_FORMAT " reserved, %" G_GINT64_FORMAT
                  " resident; %" G_GINT64_FORMAT " more in the heap and %" G_GINT64_FORMAT
                  " more resident than after %u",
                  n_steps, late.total, late.reserved, late.resident, late.heap - early.heap,
                  late.resident - early.resident, n_first);
  g_assert_cmpuint (late.total, ==, early.total);
  if (test_device_is_cpu ()) /* a device's threads take workspace beside the program's, in no fixed order */
    {
      g_assert_cmpuint (late.reserved, ==, early.reserved);
      g_assert_cmpuint (late.system_calls, ==, early.system_calls);
    }
  /* A thread's own lists of freed blocks fill up late, and count as given out. The smallest block in each step would be
   * more than twice this. */
  if (WATCHES_PROCESS)
    {
      g_assert_cmpint (late.heap - early.heap, <=, (gint64) n_steps * 13);
      if (test_device_is_cpu ()) /* pages of a device's own memory become resident when they are first used */
        g_assert_cmpint (late.resident - early.resident, <=, (gint64) n_steps * 26);
    }
  g_assert_cmpuint (ebb_module_get_forward_counter (training.model), ==, 0);
  tear_down (&training);
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/checkpoint/memory-is-flat-over-thousands-of-steps", memory_is_flat_over_thousands_of_steps);
  return g_test_run ();
}
