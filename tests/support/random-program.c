/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/random-program.h"

#include "support/device.h"
#include "support/random-wrapping.h"
#include "support/stores.h"
#include "support/tensors.h"

#include <string.h>

typedef struct
{
  TestTree tree;
  TestWrapping *wrapping;
  TestTrace *trace;
  TestDice dice;
  guint64 seed;
  EbbDType dtype;
  gboolean autocast;
  gint64 length; /* T */
  EbbTensor **parameters;
  guint n_parameters;
  EbbTensor **buffers;
  guint n_buffers;
  guint64 base; /* bytes in use before the first step */
  gboolean failed;
} Program;

typedef struct
{
  EbbTensor *x;
  EbbArgs *result;
  GPtrArray *outputs; /* those that require a gradient */
} Pass;

/* -- what is seen -------------------------------------------------------------------------------------------------- */

static void
see (Program *self,
     char *label,
     char *text)
{
  test_trace_see (self->trace, label, text);
}

static void
see_tensor (Program *self,
            char *label,
            EbbTensor *tensor)
{
  test_trace_see_tensor (self->trace, label, tensor);
}

static void
see_grad (Program *self,
          char *label,
          EbbTensor *tensor)
{
  g_autoptr (EbbTensor) grad = ebb_tensor_get_grad (tensor);

  see_tensor (self, label, grad);
}

/* -- the state of things ------------------------------------------------------------------------------------------- */

static EbbGenerator *
generator (Program *self,
           guint index)
{
  return index < TEST_N_GENERATORS ? self->tree.generators[index] : ebb_generator_get_default ();
}

static char *
describe_generators (Program *self)
{
  GString *text = g_string_new (NULL);

  for (guint i = 0; i <= TEST_N_GENERATORS; i++)
    g_string_append_printf (text, " %" G_GUINT64_FORMAT ":%" G_GUINT64_FORMAT,
                            ebb_generator_get_seed (generator (self, i)),
                            ebb_generator_get_offset (generator (self, i)));
  return g_string_free (text, FALSE);
}

static guint64
activation_bytes (EbbDevice *device)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (device);

  return ebb_memory_stats_get_current (stats, EBB_PURPOSE_ACTIVATION);
}

static guint64
bytes_in_use (Program *self)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (self->wrapping->device);

  return ebb_memory_stats_get_total (stats);
}

/* Records the modes that are the same at any time, wrapped or not. */
static void
see_modes (Program *self,
           const char *when)
{
  g_autoptr (GString) flags = g_string_new (NULL);
  guint n;
  g_autofree EbbModule **modules = test_tree_get_modules (&self->tree, &n);

  for (guint i = 0; i < n; i++)
    {
      g_string_append_c (flags, ebb_module_get_training (modules[i]) ? 't' : 'e');
      g_object_unref (modules[i]);
    }
  see (self, g_strdup_printf ("%s training flags", when), g_strdup (flags->str));
  see (self, g_strdup_printf ("%s modes", when),
       g_strdup_printf ("checkpointing %d, recomputing %d, gradients %d, autocast %d", ebb_is_checkpointing (),
                        ebb_is_recomputing (), ebb_is_grad_enabled (), ebb_is_autocast_enabled ()));
  see (self, g_strdup_printf ("%s generators", when), describe_generators (self));
}

/* And between steps, when no graph is left. */
static void
see_order (Program *self,
           const char *when)
{
  g_autoptr (GString) counters = g_string_new (NULL);
  g_auto (GStrv) names = ebb_module_get_module_names (self->tree.root);
  guint n;
  g_autofree EbbModule **modules = test_tree_get_modules (&self->tree, &n);

  see_modes (self, when);
  for (guint i = 0; i < n; i++)
    {
      if (ebb_module_get_forward_counter (modules[i]) != 0)
        g_string_append_printf (counters, " %s %d", names[i], (int) ebb_module_get_forward_counter (modules[i]));
      g_object_unref (modules[i]);
    }
  see (self, g_strdup_printf ("%s forward counters", when), g_strdup (counters->str));
  test_stores_settle (self->wrapping->stores);
  see (self, g_strdup_printf ("%s activations in memory", when),
       g_strdup_printf ("%" G_GUINT64_FORMAT, activation_bytes (self->wrapping->device)));
  see (self, g_strdup_printf ("%s activations in memory of the host", when),
       g_strdup_printf ("%" G_GUINT64_FORMAT, activation_bytes (NULL)));
  for (guint i = 0; i < TEST_N_STORES; i++)
    see (self, g_strdup_printf ("%s bytes in store %s", when, self->wrapping->stores->names[i]),
         g_strdup_printf ("%" G_GUINT64_FORMAT, test_held (self->wrapping->stores->stores[i])));
  see (self, g_strdup_printf ("%s recomputes that did not end", when),
       g_strdup_printf ("%d", (int) (self->wrapping->n_begun - self->wrapping->n_ended)));
}

static void
see_state (Program *self,
           guint step)
{
  g_autofree char *when = g_strdup_printf ("step %u:", step);
  g_auto (GStrv) names = ebb_module_get_parameter_names (self->tree.root, TRUE);
  g_auto (GStrv) buffer_names = ebb_module_get_buffer_names (self->tree.root, TRUE);

  see_order (self, when);
  see (self, g_strdup_printf ("%s memory in use", when),
       g_strdup_printf ("%" G_GINT64_FORMAT, (gint64) (bytes_in_use (self) - self->base)));
  for (guint i = 0; i < self->n_parameters; i++)
    {
      see_tensor (self, g_strdup_printf ("%s parameter %s", when, names[i]), self->parameters[i]);
      see_grad (self, g_strdup_printf ("%s gradient of %s", when, names[i]), self->parameters[i]);
    }
  for (guint i = 0; i < TEST_N_CLOSURES; i++)
    see_grad (self, g_strdup_printf ("%s gradient of closure %u", when, i), self->tree.closures[i]);
  for (guint i = 0; i < self->n_buffers; i++)
    see_tensor (self, g_strdup_printf ("%s buffer %s", when, buffer_names[i]), self->buffers[i]);
}

static void
fail (Program *self,
      const char *what,
      GError *error)
{
  see (self, g_strdup_printf ("failure of %s", what), g_strdup (error ? error->message : "no error"));
  self->failed = TRUE;
  g_clear_error (&error);
}

/* -- forward ------------------------------------------------------------------------------------------------------- */

static EbbTensor *
make_input (Program *self,
            guint index)
{
  g_autoptr (EbbTensor) plain = test_randn (self->seed + 100 + index, 2, (int) self->length, TEST_WIDTH, -1);
  EbbTensor *x = ebb_cast (plain, self->dtype, NULL);

  g_assert_nonnull (x);
  return x;
}

static EbbArgs *
call_root (Program *self,
           EbbTensor *x,
           GError **error)
{
  g_autoptr (EbbArgs) args = ebb_args_new_for_tensor (x);
  EbbArgs *result;

  ebb_push_autocast (self->autocast, EBB_DTYPE_BF16);
  if (self->wrapping->outside != NULL)
    ebb_push_saved_tensor_hooks (self->wrapping->outside);
  if (self->wrapping->disabled)
    ebb_push_checkpointing_disabled ();
  result = ebb_module_call (self->tree.root, args, error);
  if (self->wrapping->disabled)
    ebb_pop_checkpointing_disabled ();
  if (self->wrapping->outside != NULL)
    ebb_pop_saved_tensor_hooks ();
  ebb_pop_autocast ();
  return result;
}

static void
keep_those_with_gradients (Pass *pass)
{
  for (guint i = pass->outputs->len; i-- > 0;)
    if (!ebb_tensor_get_requires_grad (g_ptr_array_index (pass->outputs, i)))
      g_ptr_array_remove_index (pass->outputs, i);
}

static void
forward (Program *self,
         guint index,
         Pass *pass)
{
  g_autofree char *path = g_strdup_printf ("output of forward %u", index);
  GError *error = NULL;

  *pass = (Pass){ .x = make_input (self, index) };
  ebb_tensor_set_requires_grad (pass->x, test_dice_chance (&self->dice, 60), NULL);
  if (self->failed)
    return;
  pass->result = call_root (self, pass->x, &error);
  if (pass->result == NULL)
    {
      fail (self, "a forward", error);
      return;
    }
  test_trace_see_args (self->trace, path, pass->result, self->tree.parts);
  pass->outputs = test_args_list_floats (pass->result);
  keep_those_with_gradients (pass);
}

static void
pass_clear (Pass *pass)
{
  g_clear_pointer (&pass->x, ebb_tensor_unref);
  g_clear_pointer (&pass->result, ebb_args_unref);
  g_clear_pointer (&pass->outputs, g_ptr_array_unref);
}

static void
see_and_clear (Program *self,
               Pass *pass)
{
  see_grad (self, g_strdup ("gradient of the input"), pass->x);
  pass_clear (pass);
}

/* -- backward ------------------------------------------------------------------------------------------------------ */

/* Of the outputs from @from to before @to. */
static EbbTensor *
loss_of (Pass *pass,
         guint from,
         guint to)
{
  EbbTensor *loss = NULL;
  GError *error = NULL;

  for (guint i = from; pass->outputs != NULL && i < MIN (to, pass->outputs->len); i++)
    {
      g_autoptr (EbbTensor) before = loss;
      g_autoptr (EbbTensor) cast = ebb_cast (g_ptr_array_index (pass->outputs, i), EBB_DTYPE_F32, &error);
      g_autoptr (EbbTensor) square = ebb_square (cast, &error);
      g_autoptr (EbbTensor) scaled = ebb_mul_scalar (square, 0.25 + 0.125 * i, &error);
      g_autoptr (EbbTensor) sum = ebb_sum (scaled, NULL, 0, FALSE, &error);

      loss = before ? ebb_add (before, sum, &error) : g_steal_pointer (&sum);
      g_assert_no_error (error);
    }
  return loss;
}

typedef struct
{
  EbbModule **modules;
  gboolean *flags;
  guint n;
} Flags;

static Flags
take_flags (Program *self)
{
  Flags flags;

  flags.modules = test_tree_get_modules (&self->tree, &flags.n);
  flags.flags = g_new (gboolean, flags.n);
  for (guint i = 0; i < flags.n; i++)
    flags.flags[i] = ebb_module_get_training (flags.modules[i]);
  return flags;
}

/* Setting one sets all below it, which may be shared with one that comes later. */
static void
give_flags_back (Flags *flags)
{
  for (guint round = 0; round < flags->n; round++)
    for (guint i = 0; i < flags->n; i++)
      if (ebb_module_get_training (flags->modules[i]) != flags->flags[i])
        ebb_module_set_training (flags->modules[i], flags->flags[i]);
  for (guint i = 0; i < flags->n; i++)
    g_object_unref (flags->modules[i]);
  g_free (flags->modules);
  g_free (flags->flags);
}

static gboolean
calls_functions (Program *self)
{
  for (guint i = 0; i < self->tree.parts->len; i++)
    if (g_str_equal (test_part_get_kind (g_ptr_array_index (self->tree.parts, i), NULL, NULL, NULL), "with-function"))
      return TRUE;
  return FALSE;
}

/* In a world that has moved on since the forward, which a recompute must not notice. */
static gboolean
backward_elsewhere (Program *self,
                    EbbTensor *loss,
                    gboolean retain,
                    GError **error)
{
  const gint64 three = 3;
  g_autoptr (EbbTensor) drawn = ebb_rand (&three, 1, EBB_DTYPE_F32, NULL, NULL, NULL);
  g_autoptr (EbbTensor) drawn_too = ebb_rand (&three, 1, EBB_DTYPE_F32, NULL, self->tree.generators[0], NULL);
  gboolean training = test_dice_chance (&self->dice, 50), autocast = test_dice_chance (&self->dice, 50);
  gboolean gradients = test_dice_chance (&self->dice, 70), disabled = test_dice_chance (&self->dice, 30);
  gboolean switches = !calls_functions (self); /* whose modules a checkpoint doesn't know */
  Flags flags = take_flags (self);
  gboolean ok;

  if (switches)
    ebb_module_set_training (self->tree.root, training);
  ebb_push_autocast (autocast, EBB_DTYPE_BF16);
  ebb_push_grad_enabled (gradients);
  if (disabled)
    ebb_push_checkpointing_disabled ();
  ok = ebb_backward (&loss, 1, NULL, 0, NULL, 0, retain, error);
  if (disabled)
    ebb_pop_checkpointing_disabled ();
  ebb_pop_grad_enabled ();
  ebb_pop_autocast ();
  for (guint i = 0; i < flags.n; i++)
    if (ebb_module_get_training (flags.modules[i]) != (switches ? training : flags.flags[i]))
      see (self, g_strdup ("training flag after backward"), g_strdup ("another"));
  give_flags_back (&flags);
  return ok;
}

static void
backward (Program *self,
          EbbTensor *loss,
          gboolean retain)
{
  gboolean elsewhere = test_dice_chance (&self->dice, 30);
  GError *error = NULL;

  if (self->failed || loss == NULL)
    return;
  if (!(elsewhere ? backward_elsewhere (self, loss, retain, &error)
                  : ebb_backward (&loss, 1, NULL, 0, NULL, 0, retain, &error)))
    fail (self, "a backward", error);
  see_modes (self, "after a backward:");
}

static void
backward_of_all (Program *self,
                 Pass *pass,
                 gboolean retain)
{
  g_autoptr (EbbTensor) loss = loss_of (pass, 0, G_MAXUINT);

  backward (self, loss, retain);
}

/* Each output with its own gradient. */
static void
backward_of_each (Program *self,
                  Pass *pass)
{
  g_autoptr (GPtrArray) grads = g_ptr_array_new_with_free_func ((GDestroyNotify) ebb_tensor_unref);
  GError *error = NULL;

  if (self->failed || pass->outputs->len == 0)
    return;
  for (guint i = 0; i < pass->outputs->len; i++)
    {
      guint n;
      EbbTensor *output = g_ptr_array_index (pass->outputs, i);
      const gint64 *shape = ebb_tensor_get_shape (output, &n);

      g_ptr_array_add (grads, ebb_full (shape, n, 0.5 + i, ebb_tensor_get_dtype (output), NULL, &error));
      g_assert_no_error (error);
    }
  if (!ebb_backward ((EbbTensor **) pass->outputs->pdata, pass->outputs->len, (EbbTensor **) grads->pdata, grads->len,
                     NULL, 0, FALSE, &error))
    fail (self, "a backward of each", error);
}

/* ebb_grad () for some of all that may have a gradient. */
static void
chosen_gradients (Program *self,
                  Pass *pass,
                  gboolean retain)
{
  g_autoptr (GPtrArray) inputs = g_ptr_array_new ();
  g_autoptr (EbbTensor) loss = loss_of (pass, 0, G_MAXUINT);
  g_autofree EbbTensor **grads = NULL;
  guint n = 0, percent = test_dice_chance (&self->dice, 50) ? 100 : 30;
  GError *error = NULL;

  for (guint i = 0; i < self->n_parameters; i++)
    if (ebb_tensor_get_requires_grad (self->parameters[i]) && test_dice_chance (&self->dice, percent))
      g_ptr_array_add (inputs, self->parameters[i]);
  if (ebb_tensor_get_requires_grad (pass->x) && test_dice_chance (&self->dice, 70))
    g_ptr_array_add (inputs, pass->x);
  if (test_dice_chance (&self->dice, 30))
    g_ptr_array_add (inputs, self->tree.closures[0]);
  if (self->failed || loss == NULL || inputs->len == 0)
    return;
  grads = ebb_grad (&loss, 1, (EbbTensor **) inputs->pdata, inputs->len, NULL, 0, retain, &n, &error);
  if (grads == NULL)
    fail (self, "ebb_grad", error);
  for (guint i = 0; i < n; i++)
    {
      see_tensor (self, g_strdup_printf ("chosen gradient %u", i), grads[i]);
      if (grads[i] != NULL)
        ebb_tensor_unref (grads[i]);
    }
}

/* -- a step -------------------------------------------------------------------------------------------------------- */

static void
step_once (Program *self,
           guint index)
{
  Pass pass;

  forward (self, index, &pass);
  if (test_dice_chance (&self->dice, 50))
    backward_of_all (self, &pass, FALSE);
  else
    backward_of_each (self, &pass);
  see_and_clear (self, &pass);
}

static void
step_retained (Program *self,
               guint index)
{
  g_autoptr (EbbTensor) loss = NULL;
  Pass pass;

  forward (self, index, &pass);
  loss = loss_of (&pass, 0, G_MAXUINT);
  backward (self, loss, TRUE);
  if (test_dice_chance (&self->dice, 30))
    backward (self, loss, TRUE);
  if (test_dice_chance (&self->dice, 70))
    backward (self, loss, FALSE);
  see_and_clear (self, &pass);
}

static void
step_with_chosen_gradients (Program *self,
                            guint index)
{
  gboolean retain = test_dice_chance (&self->dice, 50);
  Pass pass;

  forward (self, index, &pass);
  chosen_gradients (self, &pass, retain);
  if (retain)
    backward_of_all (self, &pass, FALSE);
  see_and_clear (self, &pass);
}

static void
step_in_parts (Program *self,
               guint index)
{
  g_autoptr (EbbTensor) first = NULL;
  g_autoptr (EbbTensor) rest = NULL;
  Pass pass;

  forward (self, index, &pass);
  first = loss_of (&pass, 0, 1);
  rest = loss_of (&pass, 1, G_MAXUINT);
  if (test_dice_chance (&self->dice, 50))
    g_clear_pointer (&pass.result, ebb_args_unref);
  if (test_dice_chance (&self->dice, 50))
    {
      EbbTensor *exchanged = first;

      first = rest;
      rest = exchanged;
    }
  backward (self, first, TRUE);
  g_clear_pointer (&first, ebb_tensor_unref);
  if (test_dice_chance (&self->dice, 60))
    backward (self, rest, FALSE);
  see_and_clear (self, &pass);
}

static void
step_with_two_forwards (Program *self,
                        guint index)
{
  g_autoptr (EbbTensor) first = NULL;
  g_autoptr (EbbTensor) second = NULL;
  g_autoptr (EbbTensor) both = NULL;
  Pass a, b;

  forward (self, index, &a);
  forward (self, index + 50, &b);
  first = loss_of (&a, 0, G_MAXUINT);
  second = loss_of (&b, 0, G_MAXUINT);
  switch (test_dice_roll (&self->dice, 4))
    {
    case 0: /* in either order */
      backward (self, first, FALSE);
      backward (self, second, FALSE);
      break;
    case 1:
      backward (self, second, FALSE);
      backward (self, first, FALSE);
      break;
    case 2: /* one dropped */
      g_clear_pointer (&first, ebb_tensor_unref);
      g_clear_pointer (&a.outputs, g_ptr_array_unref);
      g_clear_pointer (&a.result, ebb_args_unref);
      backward (self, second, FALSE);
      break;
    default: /* at once */
      both = first && second ? ebb_add (first, second, NULL) : NULL;
      backward (self, both, FALSE);
      break;
    }
  see_and_clear (self, &a);
  see_and_clear (self, &b);
}

static void
step_dropped (Program *self,
              guint index)
{
  gboolean quiet = test_dice_chance (&self->dice, 50);
  Pass pass;

  if (quiet)
    ebb_push_grad_enabled (FALSE);
  forward (self, index, &pass);
  if (quiet)
    ebb_pop_grad_enabled ();
  see_and_clear (self, &pass);
}

static void
update_parameters (Program *self)
{
  GError *error = NULL;

  ebb_push_grad_enabled (FALSE);
  for (guint i = 0; i < self->n_parameters; i++)
    {
      g_autoptr (EbbTensor) grad = ebb_tensor_get_grad (self->parameters[i]);
      g_autoptr (EbbTensor) bounded = grad ? ebb_tanh (grad, &error) : NULL;

      if (grad != NULL)
        ebb_tensor_add_scaled (self->parameters[i], bounded, -0.05, &error);
      g_assert_no_error (error);
    }
  ebb_pop_grad_enabled ();
}

static void
zero_gradients (Program *self)
{
  ebb_module_zero_grad (self->tree.root);
  for (guint i = 0; i < TEST_N_CLOSURES; i++)
    ebb_tensor_set_grad (self->tree.closures[i], NULL, NULL);
}

static void
run_step (Program *self,
          guint index)
{
  static void (*const steps[]) (Program *, guint) = {
    step_once, step_once, step_retained, step_with_chosen_gradients, step_in_parts, step_with_two_forwards, step_dropped
  };

  steps[test_dice_roll (&self->dice, G_N_ELEMENTS (steps))](self, index);
  see_state (self, index);
  if (test_dice_chance (&self->dice, 60))
    update_parameters (self);
  if (test_dice_chance (&self->dice, 70))
    zero_gradients (self);
}

/* -- a step that fails first --------------------------------------------------------------------------------------- */

/* Forward, and backward if that comes; one of the parts fails on the way, wherever that is. */
static void
fail_somewhere (Program *self,
                int fuse)
{
  g_autoptr (EbbTensor) x = make_input (self, 0);
  g_autoptr (EbbTensor) loss = NULL;
  g_autofree char *before = describe_generators (self);
  g_autofree char *after = NULL;
  GError *error = NULL;
  gboolean ok;
  Pass pass = { 0 };

  test_parts_set_fuse (fuse);
  pass.result = call_root (self, x, &error);
  ok = pass.result != NULL;
  if (ok)
    {
      g_free (before);
      before = describe_generators (self);
      pass.outputs = test_args_list_floats (pass.result);
      keep_those_with_gradients (&pass);
      loss = loss_of (&pass, 0, G_MAXUINT);
      ok = loss == NULL || ebb_tensor_backward (loss, &error);
    }
  test_parts_set_fuse (-1);
  after = describe_generators (self);
  if (!ok && (error == NULL || strstr (error->message, "the fuse blew") == NULL))
    see (self, g_strdup ("a failure with another error"), g_strdup (error ? error->message : "none"));
  if (!ok && (loss != NULL || (ebb_checkpoint_is_wrapped (self->tree.root) && !self->wrapping->disabled))
      && !g_str_equal (before, after))
    see (self, g_strdup ("generators after a failure"), g_strdup (after));
  g_clear_error (&error);
  pass_clear (&pass);
}

/* Nothing of it may be seen afterwards. */
static void
fail_first (Program *self)
{
  TestDice dice = test_dice_new (self->wrapping->seed + 1);
  guint64 states[TEST_N_GENERATORS + 1][2];
  g_autofree EbbTensor **buffers = g_new (EbbTensor *, self->n_buffers + 1);
  TestTrace order, *trace = self->trace;
  char *difference;

  for (guint i = 0; i <= TEST_N_GENERATORS; i++)
    {
      states[i][0] = ebb_generator_get_seed (generator (self, i));
      states[i][1] = ebb_generator_get_offset (generator (self, i));
    }
  for (guint i = 0; i < self->n_buffers; i++)
    buffers[i] = ebb_copy (self->buffers[i], NULL);

  fail_somewhere (self, (int) test_dice_roll (&dice, 3 * self->tree.parts->len + 1));

  for (guint i = 0; i <= TEST_N_GENERATORS; i++)
    ebb_generator_set_state (generator (self, i), states[i][0], states[i][1]);
  for (guint i = 0; i < self->n_buffers; i++)
    {
      ebb_tensor_copy_from (self->buffers[i], buffers[i], NULL);
      ebb_tensor_unref (buffers[i]);
    }
  zero_gradients (self);
  test_trace_init (&order);
  self->trace = &order;
  self->wrapping->n_begun = self->wrapping->n_ended;
  see_order (self, "before the first step:");
  self->trace = trace;
  difference = test_trace_compare_begin (trace, &order);
  if (difference != NULL)
    see (self, g_strdup ("after a step that failed"), difference);
  test_trace_clear (&order);
}

/* -- a program ----------------------------------------------------------------------------------------------------- */

/* Batch norm stays in f32. */
static void
convert (Program *self)
{
  guint n;
  g_autofree EbbModule **modules = test_tree_get_modules (&self->tree, &n);
  GError *error = NULL;

  ebb_module_to_dtype (self->tree.root, self->dtype, &error);
  for (guint i = 0; i < n; i++)
    {
      if (EBB_IS_BATCH_NORM1D (modules[i]))
        ebb_module_to_dtype (modules[i], EBB_DTYPE_F32, &error);
      g_object_unref (modules[i]);
    }
  g_assert_no_error (error);
}

static void
set_up (Program *self,
        guint64 seed,
        TestWrapping *wrapping,
        TestTrace *trace)
{
  guint precision;

  *self = (Program){ .seed = seed, .wrapping = wrapping, .trace = trace, .dice = test_dice_new (seed + 1000000007) };
  precision = test_dice_roll (&self->dice, 4);
  test_tree_init (&self->tree, seed);
  self->dtype = precision == 2 ? EBB_DTYPE_BF16 : EBB_DTYPE_F32;
  self->autocast = precision == 3;
  self->length = 3 + test_dice_roll (&self->dice, 2);
  ebb_set_num_threads (1 + (int) test_dice_roll (&self->dice, 2));
  convert (self);
  self->parameters = ebb_module_get_parameters (self->tree.root, TRUE, &self->n_parameters);
  self->buffers = ebb_module_get_buffers (self->tree.root, TRUE, &self->n_buffers);
  if (wrapping->seed != 0)
    test_wrapping_apply (wrapping, &self->tree);
  ebb_manual_seed (seed + 5);
  self->base = bytes_in_use (self);
}

static void
tear_down (Program *self)
{
  for (guint i = 0; i < self->n_parameters; i++)
    ebb_tensor_unref (self->parameters[i]);
  for (guint i = 0; i < self->n_buffers; i++)
    ebb_tensor_unref (self->buffers[i]);
  g_free (self->parameters);
  g_free (self->buffers);
  test_tree_clear (&self->tree);
}

void
test_program_run (guint64 seed,
                  TestWrapping *wrapping,
                  TestTrace *trace)
{
  EbbDevice *default_device = ebb_get_default_device ();
  Program self = { .wrapping = wrapping };
  guint64 before = bytes_in_use (&self);
  EbbModule *root;
  guint n_steps;

  ebb_set_default_device (wrapping->device);
  set_up (&self, seed, wrapping, trace);
  see_order (&self, "before the first step:");
  if (wrapping->fails_first)
    fail_first (&self);
  n_steps = 1 + test_dice_roll (&self.dice, 3);
  for (guint i = 0; i < n_steps && !self.failed; i++)
    run_step (&self, i);
  root = self.tree.root;
  g_object_add_weak_pointer (G_OBJECT (root), (gpointer *) &root);
  tear_down (&self);
  see (&self, g_strdup ("after all: the model"), g_strdup (root ? "lives on" : "is gone"));
  see (&self, g_strdup ("after all: memory"),
       g_strdup_printf ("%" G_GINT64_FORMAT " bytes more", (gint64) (bytes_in_use (&self) - before)));
  ebb_set_default_device (default_device);
}

char *
test_program_describe (guint64 seed)
{
  TestTree tree;
  GString *text = g_string_new (NULL);
  g_autofree char *root = NULL;

  test_tree_init (&tree, seed);
  root = ebb_module_to_string (tree.root);
  g_string_append_printf (text, "%s\n", root);
  for (guint i = 0; i < tree.parts->len; i++)
    {
      g_autofree char *path = test_tree_get_path (&tree, g_ptr_array_index (tree.parts, i));

      g_string_append_printf (text, "part %u, \"%s\": %s\n", i, path,
                              test_part_get_kind (g_ptr_array_index (tree.parts, i), NULL, NULL, NULL));
    }
  test_tree_clear (&tree);
  return g_string_free (text, FALSE);
}
