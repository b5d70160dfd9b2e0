/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/tensors.h"
#include "support/training.h"

#include <string.h>

/* A recompute that is not what the forward was is found, and the error says where. */

typedef enum
{
  TRANSPOSED,  /* other strides */
  OTHER_OP,    /* that saves a tensor of the same looks */
  OTHER_VALUE, /* from outside Ebb's generators */
  SHORTER,     /* saves less */
  LONGER,      /* saves more */
  STEADY
} Change;

typedef struct
{
  Change change;
  guint calls;
} Plan;

static EbbArgs *
wander (EbbArgs *args,
        gpointer user_data,
        GError **error)
{
  Plan *plan = user_data;
  gboolean again = plan->calls++ > 0;
  g_autoptr (EbbTensor) x = ebb_args_get_tensor (args, 0);
  g_autoptr (EbbTensor) grown = ebb_add_scalar (x, again && plan->change == OTHER_VALUE ? 1 : 0, error);
  g_autoptr (EbbTensor) turned = ebb_transpose (grown, 0, 1, error);
  EbbTensor *seen = again && plan->change == TRANSPOSED ? turned : grown;
  g_autoptr (EbbTensor) first =
      again && plan->change == OTHER_OP ? ebb_sin (seen, error) : ebb_square (seen, error);
  g_autoptr (EbbTensor) second = plan->change == SHORTER && again ? ebb_neg (first, error) : ebb_square (first, error);
  g_autoptr (EbbTensor) third = plan->change == LONGER && again ? ebb_square (second, error) : ebb_neg (second, error);

  return third ? ebb_args_new_for_tensor (third) : NULL;
}

static gboolean
run (Change change,
     EbbDeterminismCheck check,
     GError **error)
{
  Plan plan = { change, 0 };
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
  g_autoptr (EbbTensor) x = test_randn (1, 4, 4, -1);
  g_autoptr (EbbArgs) args = ebb_args_new_for_tensor (x);
  g_autoptr (EbbArgs) result = NULL;
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) loss = NULL;

  ebb_tensor_set_requires_grad (x, TRUE, NULL);
  g_object_set (options, "determinism-check", check, "early-stop", FALSE, NULL);
  result = ebb_checkpoint (wander, &plan, NULL, args, options, error);
  g_assert_nonnull (result);
  y = ebb_args_get_tensor (result, 0);
  loss = ebb_sum (y, NULL, 0, FALSE, error);
  return ebb_tensor_backward (loss, error);
}

static void
assert_found (Change change,
              EbbDeterminismCheck check,
              const char *const *words)
{
  g_autoptr (GError) error = NULL;

  g_assert_false (run (change, check, &error));
  test_assert_error (error, EBB_ERROR_RECOMPUTE, "recompute of a checkpointed function: ",
                     "was an input changed in place, are there random numbers from outside Ebb's generators, or a "
                     "branch on a state");
  for (; *words != NULL; words++)
    if (strstr (error->message, *words) == NULL)
      g_error ("\"%s\" does not say \"%s\"", error->message, *words);
}

static void
assert_not_found (Change change,
                  EbbDeterminismCheck check)
{
  g_autoptr (GError) error = NULL;

  g_assert_true (run (change, check, &error));
  g_assert_no_error (error);
}

#define found(change, check, ...) assert_found (change, check, (const char *const[]){ __VA_ARGS__, NULL })

static void
each_level_finds_what_it_promises (void)
{
  const EbbDeterminismCheck none = EBB_DETERMINISM_CHECK_NONE, standard = EBB_DETERMINISM_CHECK_DEFAULT,
                            values = EBB_DETERMINISM_CHECK_VALUES;

  for (EbbDeterminismCheck check = none; check <= values; check++)
    {
      found (SHORTER, check, "saves 1 of the 2 tensors of the forward", "the next was saved by square");
      found (LONGER, check, "square saves a tensor", "which saved 2");
      assert_not_found (STEADY, check);
    }
  assert_not_found (TRANSPOSED, none);
  assert_not_found (OTHER_OP, none);
  found (TRANSPOSED, standard, "saved tensor 0 was f32 of shape [4, 4], strides [4, 1] on ", ", saved by square",
         "and is f32 of shape [4, 4], strides [1, 4] on ");
  found (OTHER_OP, standard, "saved by square, and is", "saved by sin in the recompute");
  assert_not_found (OTHER_VALUE, standard);
  found (OTHER_VALUE, values, "saved tensor 0 was f32 of shape [4, 4]", "with other values in the recompute");
}

/* [3] that lie side by side, or with others between them: the last one fills no word of the checksum. */
typedef struct
{
  gboolean is_column;
  int changed; /* the one that differs in the recompute, -1: none */
  guint calls;
} Elements;

static EbbArgs *
change_one_element (EbbArgs *args,
                    gpointer user_data,
                    GError **error)
{
  Elements *elements = user_data;
  const gint64 shape[] = { 3, elements->is_column ? 2 : 1 };
  float values[6] = { 0 };
  g_autoptr (EbbTensor) x = ebb_args_get_tensor (args, 0);
  g_autoptr (EbbTensor) change = NULL;
  g_autoptr (EbbTensor) sum = NULL;
  g_autoptr (EbbTensor) column = NULL;
  g_autoptr (EbbTensor) y = NULL;

  if (elements->calls++ > 0 && elements->changed >= 0)
    values[elements->changed * shape[1]] = 1;
  change = test_floats (values, 3, elements->is_column ? 2 : 1, -1);
  sum = ebb_add (x, change, error);
  column = ebb_narrow (sum, 1, 0, 1, error);
  y = ebb_square (column, error);
  return y ? ebb_args_new_for_tensor (y) : NULL;
}

static void
each_element_is_compared (gconstpointer data)
{
  const gboolean is_column = GPOINTER_TO_INT (data);

  for (int changed = -1; changed < 3; changed++)
    {
      Elements elements = { is_column, changed, 0 };
      g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
      g_autoptr (EbbTensor) x = test_randn (1, 3, is_column ? 2 : 1, -1);
      g_autoptr (EbbArgs) args = ebb_args_new_for_tensor (x);
      g_autoptr (EbbArgs) result = NULL;
      g_autoptr (EbbTensor) y = NULL;
      g_autoptr (EbbTensor) loss = NULL;
      g_autoptr (GError) error = NULL;

      ebb_tensor_set_requires_grad (x, TRUE, NULL);
      g_object_set (options, "determinism-check", EBB_DETERMINISM_CHECK_VALUES, "early-stop", FALSE, NULL);
      result = ebb_checkpoint (change_one_element, &elements, NULL, args, options, &error);
      g_assert_no_error (error);
      y = ebb_args_get_tensor (result, 0);
      loss = ebb_sum (y, NULL, 0, FALSE, &error);
      g_assert_true (ebb_tensor_backward (loss, &error) == (changed < 0));
      if (changed >= 0)
        test_assert_error (error, EBB_ERROR_RECOMPUTE, "saved tensor 0 was f32 of shape [3, 1]", "with other values");
    }
}

/* -- what is read from outside ------------------------------------------------------------------------------------- */

/* tanh (x + user_data): nothing saves either of them. */
static EbbArgs *
add_found (EbbArgs *args,
           gpointer user_data,
           GError **error)
{
  g_autoptr (EbbTensor) x = ebb_args_get_tensor (args, 0);
  g_autoptr (EbbTensor) sum = ebb_add (x, user_data, error);
  g_autoptr (EbbTensor) y = ebb_square (sum, error);

  return y ? ebb_args_new_for_tensor (y) : NULL;
}

static gboolean
change_between (EbbTensor *x,
                EbbTensor *other,
                EbbTensor *changed,
                EbbDeterminismCheck check,
                GError **error)
{
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
  g_autoptr (EbbArgs) args = ebb_args_new_for_tensor (x);
  g_autoptr (EbbArgs) result = NULL;
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) loss = NULL;

  g_object_set (options, "determinism-check", check, NULL);
  result = ebb_checkpoint (add_found, other, NULL, args, options, error);
  g_assert_nonnull (result);
  y = ebb_args_get_tensor (result, 0);
  loss = ebb_sum (y, NULL, 0, FALSE, error);
  ebb_push_grad_enabled (FALSE);
  g_assert_true (changed == NULL || ebb_tensor_fill (changed, 3, NULL));
  ebb_pop_grad_enabled ();
  return ebb_tensor_backward (loss, error);
}

static void
a_change_of_what_was_only_read_is_found (void)
{
  g_autoptr (EbbTensor) x = test_randn (1, 4, -1);
  g_autoptr (EbbTensor) other = test_randn (2, 4, -1);
  g_autoptr (GError) error = NULL;

  ebb_tensor_set_requires_grad (x, TRUE, NULL);
  g_assert_true (change_between (x, other, NULL, EBB_DETERMINISM_CHECK_DEFAULT, &error));
  g_assert_false (change_between (x, other, other, EBB_DETERMINISM_CHECK_DEFAULT, &error));
  test_assert_error (error, EBB_ERROR_VERSION, "recompute of a checkpointed function: ",
                     "add reads a tensor of shape [4] that was changed in place since the forward read it");
  g_clear_error (&error);
  /* Without the check, values aren't compared; a saved input is compared in any case. */
  g_assert_true (change_between (x, other, other, EBB_DETERMINISM_CHECK_NONE, &error));
}

static void
a_buffer_that_the_forward_reads_and_changes_is_found (void)
{
  g_autoptr (EbbModule) norm = ebb_batch_norm1d_new (4, 1e-5, 0.1, NULL);
  g_autoptr (EbbTensor) mean = ebb_module_get_buffer (norm, "running_mean");
  g_autoptr (EbbTensor) x = test_randn (1, 4, -1);
  g_autoptr (GError) error = NULL;

  ebb_tensor_set_requires_grad (x, TRUE, NULL);
  g_assert_false (change_between (x, mean, mean, EBB_DETERMINISM_CHECK_DEFAULT, &error));
  test_assert_error (error, EBB_ERROR_VERSION, "add reads a buffer of shape [4]");
}

/* -- paths --------------------------------------------------------------------------------------------------------- */

/* An input that another device's store would have brought back as it was, here by hand: a pack that gives other values.
 */
G_DECLARE_FINAL_TYPE (Forgetful, forgetful, TEST, FORGETFUL, EbbSavedTensorHooks)
struct _Forgetful
{
  EbbSavedTensorHooks parent_instance;
};
G_DEFINE_FINAL_TYPE (Forgetful, forgetful, EBB_TYPE_SAVED_TENSOR_HOOKS)

static EbbTensor *
forgetful_unpack (EbbSavedTensorHooks *self,
                  EbbHandle *handle,
                  GError **error)
{
  g_autoptr (EbbTensor) tensor = ebb_handle_get_tensor (handle);

  return ebb_tensor_get_requires_grad (tensor) ? ebb_tensor_ref (tensor) : ebb_add_scalar (tensor, 1, error);
}

static void
forgetful_class_init (ForgetfulClass *klass)
{
  EBB_SAVED_TENSOR_HOOKS_CLASS (klass)->unpack = forgetful_unpack;
}

static void
forgetful_init (Forgetful *self)
{
}

static gboolean
train_with_forgetful_store (EbbModule *model,
                            EbbDeterminismCheck check,
                            GError **error)
{
  g_autoptr (EbbModule) wrapped = ebb_module_get_child (model, "1.0");
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
  g_autoptr (EbbSavedTensorHooks) store = g_object_new (forgetful_get_type (), NULL);
  g_autoptr (EbbTensor) x = test_randn (1, 3, 4, -1);
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) loss = NULL;

  g_object_set (options, "determinism-check", check, NULL);
  ebb_checkpoint_options_set_store (options, store);
  while (ebb_checkpoint_unwrap (wrapped))
    ;
  g_object_unref (ebb_checkpoint_wrapper (wrapped, options, NULL));
  y = ebb_module_call1 (model, x, error);
  loss = ebb_sum (y, NULL, 0, FALSE, error);
  return ebb_tensor_backward (loss, error);
}

static void
an_input_of_other_values_is_found_and_the_module_named (void)
{
  g_autoptr (EbbModule) model = ebb_sequential_new ();
  g_autoptr (EbbModule) before = ebb_linear_new (4, 4, TRUE, NULL);
  g_autoptr (EbbModule) part = ebb_sequential_new ();
  g_autoptr (EbbModule) inner = ebb_mlp_new (4, 8, EBB_ACTIVATION_GELU_TANH, NULL);
  g_autoptr (GError) error = NULL;

  ebb_sequential_append (EBB_SEQUENTIAL (part), inner, NULL);
  ebb_sequential_append (EBB_SEQUENTIAL (model), before, NULL);
  ebb_sequential_append (EBB_SEQUENTIAL (model), part, NULL);
  g_assert_true (train_with_forgetful_store (model, EBB_DETERMINISM_CHECK_DEFAULT, &error));
  g_assert_false (train_with_forgetful_store (model, EBB_DETERMINISM_CHECK_VALUES, &error));
  test_assert_error (error, EBB_ERROR_RECOMPUTE, "recompute of 1.0 (EbbMlp): argument 0, f32 of shape [3, 4]",
                     "has other values than in the forward", "was an input changed in place");
}

/* -- shapes, kept results, changed inputs -------------------------------------------------------------------------- */

static EbbTensor *
new_input (int rows,
           int columns,
           gboolean requires_grad)
{
  EbbTensor *x = test_randn (7, rows, columns, -1);

  g_assert_true (ebb_tensor_set_requires_grad (x, requires_grad, NULL));
  return x;
}

static void
input_changed_in_place_is_an_error (void)
{
  GError *error = NULL;
  g_autoptr (EbbModule) mlp = test_mlp_new (1);
  g_autoptr (EbbTensor) x = new_input (3, 8, FALSE);
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) loss = NULL;

  g_object_unref (ebb_checkpoint_wrapper (mlp, NULL, &error));
  y = ebb_module_call1 (mlp, x, &error);
  loss = test_loss (y);
  g_assert_true (ebb_tensor_fill (x, 1.0, &error));
  g_assert_false (ebb_tensor_backward (loss, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_VERSION);
  g_assert_nonnull (strstr (error->message, "changed in place"));
  g_clear_error (&error);
  g_assert_cmpuint (ebb_module_get_forward_counter (mlp), <=, 1);
}

/* Gives a different shape each time. */
static EbbArgs *
shrink (EbbArgs *args,
        gpointer user_data,
        GError **error)
{
  g_autoptr (EbbTensor) x = ebb_args_get_tensor (args, 0);
  g_autoptr (EbbTensor) part = ebb_narrow (x, 0, 0, 1 + (*(gint64 *) user_data)++, error);
  g_autoptr (EbbTensor) y = ebb_exp (part, error);
  g_autoptr (EbbTensor) z = ebb_exp (y, error);

  return z ? ebb_args_new_for_tensor (z) : NULL;
}

static void
recompute_that_differs_is_an_error (void)
{
  GError *error = NULL;
  gint64 calls = 0;
  g_autoptr (EbbTensor) x = new_input (4, 4, TRUE);
  g_autoptr (EbbArgs) args = ebb_args_new_for_tensor (x);
  g_autoptr (EbbArgs) result = ebb_checkpoint (shrink, &calls, NULL, args, NULL, &error);
  g_autoptr (EbbTensor) z = ebb_args_get_tensor (result, 0);
  g_autoptr (EbbTensor) loss = test_loss (z);

  g_assert_false (ebb_tensor_backward (loss, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_RECOMPUTE);
  g_assert_nonnull (strstr (error->message, "shape [1, 4]"));
  g_assert_nonnull (strstr (error->message, "shape [2, 4]"));
  g_clear_error (&error);
}

typedef struct
{
  guint calls;
} Changing;

/* A product first; in the recompute, another op of two results. */
static EbbArgs *
change_op (EbbArgs *args,
           gpointer user_data,
           GError **error)
{
  Changing *changing = user_data;
  g_autoptr (EbbTensor) x = ebb_args_get_tensor (args, 0);
  g_autoptr (EbbTensor) y = changing->calls++ == 0 ? ebb_matmul (x, x, error) : ebb_softmax (x, 1, error);
  g_autoptr (EbbTensor) z = ebb_exp (y, error);

  return z ? ebb_args_new_for_tensor (z) : NULL;
}

/* A product whose result has another shape in the recompute. */
static EbbArgs *
change_shape (EbbArgs *args,
              gpointer user_data,
              GError **error)
{
  Changing *changing = user_data;
  g_autoptr (EbbTensor) x = ebb_args_get_tensor (args, 0);
  g_autoptr (EbbTensor) part = ebb_narrow (x, 0, 0, changing->calls++ == 0 ? 1 : 4, error);
  g_autoptr (EbbTensor) y = ebb_matmul (part, x, error);
  g_autoptr (EbbTensor) z = ebb_exp (y, error);

  return z ? ebb_args_new_for_tensor (z) : NULL;
}

/* A sum first; in the recompute a difference, of the same looks: neither saves anything that could be compared. */
static EbbArgs *
change_sum (EbbArgs *args,
            gpointer user_data,
            GError **error)
{
  Changing *changing = user_data;
  g_autoptr (EbbTensor) x = ebb_args_get_tensor (args, 0);
  g_autoptr (EbbTensor) y = changing->calls++ == 0 ? ebb_add (x, x, error) : ebb_sub (x, x, error);
  g_autoptr (EbbTensor) z = ebb_exp (y, error);

  return z ? ebb_args_new_for_tensor (z) : NULL;
}

static EbbCheckpointPolicy
keep_all (const char *op,
          guint ordinal,
          guint64 n_bytes,
          gpointer user_data,
          GError **error)
{
  return EBB_CHECKPOINT_POLICY_MUST_SAVE;
}

static void
assert_kept_result_is_refused (EbbCheckpointFunc func)
{
  GError *error = NULL;
  Changing changing = { 0 };
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
  g_autoptr (EbbTensor) x = new_input (4, 4, TRUE);
  g_autoptr (EbbArgs) args = ebb_args_new_for_tensor (x);
  g_autoptr (EbbArgs) result = NULL;
  g_autoptr (EbbTensor) z = NULL;
  g_autoptr (EbbTensor) loss = NULL;

  ebb_checkpoint_options_set_policy (options, keep_all, NULL, NULL);
  g_object_set (options, "early-stop", FALSE, NULL);
  result = ebb_checkpoint (func, &changing, NULL, args, options, &error);
  z = ebb_args_get_tensor (result, 0);
  loss = test_loss (z);
  g_assert_false (ebb_tensor_backward (loss, &error));
  test_assert_error (error, EBB_ERROR_RECOMPUTE, "op 0, whose result was saved, was ");
  g_clear_error (&error);
}

static void
kept_result_stands_in_for_its_own_op_alone (void)
{
  assert_kept_result_is_refused (change_op);
  assert_kept_result_is_refused (change_sum);
  assert_kept_result_is_refused (change_shape);
}

/* Backward reads beyond the end of a tensor that came back smaller, whatever checks were asked for. */
static void
smaller_tensor_is_refused_without_checks (void)
{
  GError *error = NULL;
  gint64 calls = 1;
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
  g_autoptr (EbbTensor) x = new_input (4, 4, TRUE);
  g_autoptr (EbbArgs) args = ebb_args_new_for_tensor (x);
  g_autoptr (EbbArgs) result = NULL;
  g_autoptr (EbbTensor) z = NULL;
  g_autoptr (EbbTensor) loss = NULL;

  g_object_set (options, "determinism-check", EBB_DETERMINISM_CHECK_NONE, NULL);
  result = ebb_checkpoint (shrink, &calls, NULL, args, options, &error);
  z = ebb_args_get_tensor (result, 0);
  loss = test_loss (z);
  calls = 0;
  g_assert_false (ebb_tensor_backward (loss, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_RECOMPUTE);
  g_clear_error (&error);
}

/* Changes its argument before anything is kept. */
static EbbArgs *
change_argument (EbbArgs *args,
                 gpointer user_data,
                 GError **error)
{
  g_autoptr (EbbTensor) x = ebb_args_get_tensor (args, 0);
  gboolean changed = ebb_tensor_scale (x, 2, error);
  g_autoptr (EbbTensor) y = changed ? ebb_add (x, user_data, error) : NULL;
  g_autoptr (EbbTensor) z = ebb_exp (y, error);

  return z ? ebb_args_new_for_tensor (z) : NULL;
}

static void
assert_changed_argument_is_refused (EbbSavedTensorHooks *store)
{
  GError *error = NULL;
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
  g_autoptr (EbbTensor) x = new_input (4, 4, FALSE);
  g_autoptr (EbbTensor) weight = new_input (4, 4, TRUE);
  g_autoptr (EbbArgs) args = ebb_args_new_for_tensor (x);
  g_autoptr (EbbArgs) result = NULL;
  g_autoptr (EbbTensor) z = NULL;
  g_autoptr (EbbTensor) loss = NULL;

  ebb_checkpoint_options_set_store (options, store);
  result = ebb_checkpoint (change_argument, weight, NULL, args, options, &error);
  z = ebb_args_get_tensor (result, 0);
  loss = test_loss (z);
  g_assert_no_error (error);
  g_assert_false (ebb_tensor_backward (loss, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_VERSION);
  g_clear_error (&error);
}

static void
argument_changed_inside_is_an_error (void)
{
  GError *error = NULL;
  g_autoptr (EbbSavedTensorHooks) disk = ebb_disk_store_new (NULL, &error);

  g_assert_no_error (error);
  g_object_set (disk, "least-size", (guint64) 0, NULL);
  assert_changed_argument_is_refused (NULL);
  assert_changed_argument_is_refused (disk);
}

static EbbArgs *
exp_of_product (EbbArgs *args,
                gpointer user_data,
                GError **error)
{
  g_autoptr (EbbTensor) x = ebb_args_get_tensor (args, 0);
  g_autoptr (EbbTensor) y = ebb_mul (x, user_data, error);
  g_autoptr (EbbTensor) z = ebb_exp (y, error);

  return z ? ebb_args_new_for_tensor (z) : NULL;
}

/* A view that begins inside an input and ends beyond it can't be restored from that input's block in a store. */
static void
rows_beyond_an_input_come_back (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbSavedTensorHooks) disk = ebb_disk_store_new (NULL, &error);
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
  g_autoptr (EbbTensor) all = new_input (3, 4, FALSE);
  g_autoptr (EbbTensor) x = ebb_narrow (all, 0, 0, 2, &error);
  g_autoptr (EbbTensor) last = ebb_narrow (all, 0, 1, 2, &error);
  EbbTensor *grads[2];

  g_assert_true (ebb_tensor_set_requires_grad (x, TRUE, &error));
  g_object_set (disk, "least-size", (guint64) 0, NULL);
  ebb_checkpoint_options_set_store (options, disk);
  for (int checkpointed = 0; checkpointed < 2; checkpointed++)
    {
      g_autoptr (EbbArgs) args = ebb_args_new_for_tensor (x);
      g_autoptr (EbbArgs) result = checkpointed ? ebb_checkpoint (exp_of_product, last, NULL, args, options, &error)
                                                : exp_of_product (args, last, &error);
      g_autoptr (EbbTensor) z = ebb_args_get_tensor (result, 0);
      g_autoptr (EbbTensor) loss = test_loss (z);

      g_assert_true (ebb_activation_store_synchronize (EBB_ACTIVATION_STORE (disk), &error));
      ebb_tensor_set_grad (x, NULL, &error);
      ebb_tensor_backward (loss, &error);
      g_assert_no_error (error);
      grads[checkpointed] = ebb_tensor_get_grad (x);
    }
  g_assert_true (ebb_tensor_equal (grads[0], grads[1]));
  ebb_tensor_unref (grads[0]);
  ebb_tensor_unref (grads[1]);
}

/* Changes in place what the exp before saved. */
static EbbArgs *
change_what_was_used (EbbArgs *args,
                      gpointer user_data,
                      GError **error)
{
  g_autoptr (EbbTensor) x = ebb_args_get_tensor (args, 0);
  g_autoptr (EbbTensor) y = ebb_exp (x, error);
  g_autoptr (EbbTensor) z = NULL;
  gboolean changed;

  ebb_push_grad_enabled (FALSE);
  changed = y != NULL && ebb_tensor_scale (y, 2, error);
  ebb_pop_grad_enabled ();
  z = changed ? ebb_square (y, error) : NULL;
  return z ? ebb_args_new_for_tensor (z) : NULL;
}

/* As without a checkpoint: what a recompute saves may not change either before backward uses it. */
static void
what_was_used_and_changed_is_an_error (void)
{
  for (int checkpointed = 0; checkpointed < 2; checkpointed++)
    {
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbTensor) x = new_input (4, 4, TRUE);
      g_autoptr (EbbArgs) args = ebb_args_new_for_tensor (x);
      g_autoptr (EbbArgs) result = checkpointed
                                       ? ebb_checkpoint (change_what_was_used, NULL, NULL, args, NULL, &error)
                                       : change_what_was_used (args, NULL, &error);
      g_autoptr (EbbTensor) z = ebb_args_get_tensor (result, 0);
      g_autoptr (EbbTensor) loss = test_loss (z);

      g_assert_no_error (error);
      g_assert_false (ebb_tensor_backward (loss, &error));
      test_assert_error (error, EBB_ERROR_VERSION, "shape [4, 4] that backward needs was changed in place");
    }
}

/* The norm's result is no saved tensor: backward makes it again from the norm's weight, which code outside of Ebb has
 * changed meanwhile. */
static void
a_rematerialized_result_of_other_values_is_found (void)
{
  for (EbbDeterminismCheck check = EBB_DETERMINISM_CHECK_DEFAULT; check <= EBB_DETERMINISM_CHECK_VALUES; check++)
    {
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
      g_autoptr (EbbModule) chain = test_chain_new (ebb_layer_norm_new (8, 1e-5, TRUE, NULL),
                                                    ebb_linear_new (8, 8, TRUE, NULL), NULL);
      g_autoptr (EbbModule) norm = ebb_module_get_child (chain, "0");
      g_autoptr (EbbTensor) weight = ebb_module_get_parameter (norm, "weight");
      float *data = ebb_tensor_get_data (weight, &error);
      g_autoptr (EbbTensor) x = new_input (4, 8, TRUE);
      g_autoptr (EbbTensor) y = NULL;
      g_autoptr (EbbTensor) loss = NULL;

      g_object_set (options, "determinism-check", check, NULL);
      test_wrap (chain, options);
      y = ebb_module_call1 (chain, x, &error);
      loss = test_loss (y);
      g_assert_no_error (error);
      data[3] += 1;
      if (check == EBB_DETERMINISM_CHECK_VALUES)
        {
          g_assert_false (ebb_tensor_backward (loss, &error));
          test_assert_error (error, EBB_ERROR_RECOMPUTE, "linear: its operand, f32 of shape [4, 8]", "other values");
        }
      else
        g_assert_true (ebb_tensor_backward (loss, &error));
    }
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/checkpoint/determinism/each-level-finds-what-it-promises", each_level_finds_what_it_promises);
  g_test_add_data_func ("/checkpoint/determinism/each-element-is-compared/contiguous", GINT_TO_POINTER (FALSE),
                        each_element_is_compared);
  g_test_add_data_func ("/checkpoint/determinism/each-element-is-compared/strided", GINT_TO_POINTER (TRUE),
                        each_element_is_compared);
  g_test_add_func ("/checkpoint/determinism/a-change-of-what-was-only-read-is-found",
                   a_change_of_what_was_only_read_is_found);
  g_test_add_func ("/checkpoint/determinism/a-buffer-that-is-read-and-changed-is-found",
                   a_buffer_that_the_forward_reads_and_changes_is_found);
  g_test_add_func ("/checkpoint/determinism/an-input-of-other-values-is-found-and-the-module-named",
                   an_input_of_other_values_is_found_and_the_module_named);
  g_test_add_func ("/checkpoint/determinism/input-changed-in-place-is-an-error",
                   input_changed_in_place_is_an_error);
  g_test_add_func ("/checkpoint/determinism/recompute-of-another-shape-is-an-error",
                   recompute_that_differs_is_an_error);
  g_test_add_func ("/checkpoint/determinism/kept-result-stands-in-for-its-own-op-alone",
                   kept_result_stands_in_for_its_own_op_alone);
  g_test_add_func ("/checkpoint/determinism/smaller-tensor-is-refused-without-checks",
                   smaller_tensor_is_refused_without_checks);
  g_test_add_func ("/checkpoint/determinism/rows-beyond-an-input-come-back", rows_beyond_an_input_come_back);
  g_test_add_func ("/checkpoint/determinism/what-was-used-and-changed-is-an-error",
                   what_was_used_and_changed_is_an_error);
  g_test_add_func ("/checkpoint/determinism/argument-changed-inside-is-an-error",
                   argument_changed_inside_is_an_error);
  if (test_device_is_cpu ())
    g_test_add_func ("/checkpoint/determinism/a-rematerialized-result-of-other-values-is-found",
                     a_rematerialized_result_of_other_values_is_found);
  return g_test_run ();
}
