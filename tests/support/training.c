/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/training.h"

#include "support/stores.h"
#include "support/tensors.h"

#include <stdarg.h>
#include <string.h>

/* -- modules ------------------------------------------------------------------------------------------------------- */

static void
append (EbbModule *sequence, EbbModule *module)
{
  g_autoptr (GError) error = NULL;
  g_auto (GStrv) names = ebb_module_get_child_names (sequence);
  g_autofree char *name = g_strdup_printf ("%u", g_strv_length (names));

  g_assert_nonnull (module);
  ebb_module_register_child (sequence, name, module, &error);
  g_assert_no_error (error);
  g_object_unref (module);
}

EbbModule *
test_chain_new (EbbModule *first, ...)
{
  EbbModule *sequence = ebb_sequential_new ();
  va_list list;

  va_start (list, first);
  for (EbbModule *module = first; module != NULL; module = va_arg (list, EbbModule *))
    append (sequence, module);
  va_end (list);
  return sequence;
}

EbbModule *
test_mlp_new (guint64 seed)
{
  EbbModule *first, *dropout, *second;

  ebb_manual_seed (seed);
  first = ebb_linear_new (8, 16, TRUE, NULL);
  dropout = ebb_dropout_new (0.3, NULL);
  second = ebb_linear_new (16, 8, TRUE, NULL);
  return test_chain_new (first, ebb_tanh_new (), dropout, second, NULL);
}

G_DECLARE_FINAL_TYPE (TestLambda, test_lambda, TEST, LAMBDA, EbbModule)

struct _TestLambda
{
  EbbModule parent_instance;

  TestForward forward;
  TestForward1 forward1;
  gpointer data;
};

G_DEFINE_TYPE (TestLambda, test_lambda, EBB_TYPE_MODULE)

static EbbArgs *
test_lambda_forward (EbbModule *module, EbbArgs *args, GError **error)
{
  TestLambda *self = TEST_LAMBDA (module);
  g_autoptr (EbbTensor) x = NULL;
  g_autoptr (EbbTensor) y = NULL;

  if (self->forward != NULL)
    return self->forward (module, args, self->data, error);
  x = ebb_args_get_tensor (args, 0);
  y = self->forward1 (module, x, self->data, error);
  return y != NULL ? ebb_args_new_for_tensor (y) : NULL;
}

static void
test_lambda_class_init (TestLambdaClass *klass)
{
  EBB_MODULE_CLASS (klass)->forward = test_lambda_forward;
}

static void
test_lambda_init (TestLambda *self)
{
}

EbbModule *
test_lambda1_new (TestForward1 forward, gpointer data)
{
  TestLambda *self = g_initable_new (test_lambda_get_type (), NULL, NULL, NULL);

  self->forward1 = forward;
  self->data = data;
  return EBB_MODULE (self);
}

EbbModule *
test_lambda_new (TestForward forward, gpointer data)
{
  TestLambda *self = g_initable_new (test_lambda_get_type (), NULL, NULL, NULL);

  self->forward = forward;
  self->data = data;
  return EBB_MODULE (self);
}

EbbModule *
test_with_gain (EbbModule *module, guint64 seed)
{
  g_autoptr (EbbTensor) gain = test_randn (seed, 8, -1);
  g_autoptr (GError) error = NULL;

  ebb_module_register_parameter (module, "gain", gain, &error);
  g_assert_no_error (error);
  return module;
}

static EbbTensor *
count_and_scale (EbbModule *self, EbbTensor *x, gpointer data, GError **error)
{
  g_autoptr (EbbTensor) gain = ebb_module_get_parameter (self, "gain");
  g_autoptr (EbbTensor) product = ebb_mul (x, gain, error);

  ++*(guint *) data;
  return ebb_tanh (product, error);
}

EbbModule *
test_counting_new (guint64 seed, guint *calls)
{
  return test_with_gain (test_lambda1_new (count_and_scale, calls), seed);
}

EbbModule *
test_wrap (EbbModule *module, EbbCheckpointOptions *options)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) same = ebb_checkpoint_wrapper (module, options, &error);

  g_assert_no_error (error);
  g_assert_true (same == module);
  return module;
}

void
test_wrap_leaves (EbbModule *root, EbbCheckpointOptions *options)
{
  guint n;
  g_autofree EbbModule **modules = ebb_module_get_modules (root, &n);

  for (guint i = 0; i < n; i++)
    {
      g_auto (GStrv) children = ebb_module_get_child_names (modules[i]);

      if (children[0] == NULL)
        test_wrap (modules[i], options);
      g_object_unref (modules[i]);
    }
}

void
test_assert_counters (EbbModule *root, guint expected)
{
  guint n;
  g_autofree EbbModule **modules = ebb_module_get_modules (root, &n);

  for (guint i = 0; i < n; i++)
    {
      g_assert_cmpuint (ebb_module_get_forward_counter (modules[i]), ==, expected);
      g_object_unref (modules[i]);
    }
}

/* -- modes --------------------------------------------------------------------------------------------------------- */

static const TestMode modes[] = {
  { "f32-1", EBB_DTYPE_F32, FALSE, 1 },
  { "f32-2", EBB_DTYPE_F32, FALSE, 2 },
  { "bf16-1", EBB_DTYPE_BF16, FALSE, 1 },
  { "bf16-2", EBB_DTYPE_BF16, FALSE, 2 },
  { "autocast-1", EBB_DTYPE_F32, TRUE, 1 },
  { "autocast-2", EBB_DTYPE_F32, TRUE, 2 },
};

typedef struct
{
  const TestMode *mode;
  void (*func) (const TestMode *mode);
  void (*func_data) (const TestMode *mode, gconstpointer data);
  gconstpointer data;
} ModeCase;

static void
run_in_mode (gconstpointer data)
{
  const ModeCase *self = data;
  int before = ebb_get_num_threads ();

  ebb_set_num_threads (self->mode->n_threads);
  if (self->mode->autocast)
    ebb_push_autocast (TRUE, EBB_DTYPE_BF16);
  if (self->func != NULL)
    self->func (self->mode);
  else
    self->func_data (self->mode, self->data);
  if (self->mode->autocast)
    ebb_pop_autocast ();
  ebb_set_num_threads (before);
}

static void
add_modes (const char *path, ModeCase pattern)
{
  for (guint i = 0; i < G_N_ELEMENTS (modes); i++)
    {
      g_autofree char *full = g_strdup_printf ("%s/%s", path, modes[i].name);
      ModeCase *self = g_new (ModeCase, 1);

      *self = pattern;
      self->mode = &modes[i];
      g_test_add_data_func_full (full, self, run_in_mode, g_free);
    }
}

void
test_add_modes (const char *path, void (*func) (const TestMode *mode))
{
  add_modes (path, (ModeCase){ .func = func });
}

void
test_add_modes_data (const char *path, void (*func) (const TestMode *mode, gconstpointer data), gconstpointer data)
{
  add_modes (path, (ModeCase){ .func_data = func, .data = data });
}

EbbTensor *
test_input_in (const TestMode *mode, int rows)
{
  g_autoptr (EbbTensor) start = test_randn (1, rows, 8, -1);

  return ebb_cast (start, mode->dtype, NULL);
}

/* -- a step -------------------------------------------------------------------------------------------------------- */

EbbTensor *
test_loss (EbbTensor *y)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) wide = ebb_cast (y, EBB_DTYPE_F32, &error);
  g_autoptr (EbbTensor) square = ebb_mul (wide, wide, &error);
  EbbTensor *loss = ebb_sum (square, NULL, 0, FALSE, &error);

  g_assert_no_error (error);
  return loss;
}

static EbbTensor *
add_to_loss (EbbTensor *tensor, gpointer user_data, GError **error)
{
  EbbTensor **loss = user_data;

  if (ebb_tensor_get_requires_grad (tensor))
    {
      EbbTensor *part = test_loss (tensor);

      if (*loss != NULL)
        {
          EbbTensor *sum = ebb_add (*loss, part, error);

          ebb_tensor_unref (part);
          ebb_tensor_unref (*loss);
          part = sum;
        }
      *loss = part;
    }
  return ebb_tensor_ref (tensor);
}

EbbTensor *
test_loss_of_args (EbbArgs *result)
{
  g_autoptr (GError) error = NULL;
  EbbTensor *loss = NULL;

  ebb_args_unref (ebb_args_map_tensors (result, add_to_loss, &loss, &error));
  g_assert_no_error (error);
  return loss;
}

static void
note (TestOutcome *self, const char *prefix, const char *name, EbbTensor *tensor)
{
  g_ptr_array_add (self->names, g_strconcat (prefix, name, NULL));
  g_ptr_array_add (self->tensors, tensor);
}

static EbbTensor *
note_output (EbbTensor *tensor, gpointer user_data, GError **error)
{
  note (user_data, "output", "", ebb_tensor_detach (tensor));
  return ebb_tensor_ref (tensor);
}

static EbbTensor *
note_input (EbbTensor *tensor, gpointer user_data, GError **error)
{
  if (ebb_tensor_is_leaf (tensor) && ebb_tensor_get_requires_grad (tensor))
    note (user_data, "gradient of input", "", ebb_tensor_get_grad (tensor));
  return ebb_tensor_ref (tensor);
}

static void
unref_tensor (gpointer tensor)
{
  if (tensor != NULL)
    ebb_tensor_unref (tensor);
}

TestOutcome *
test_outcome_new (EbbModule *module, EbbArgs *args)
{
  TestOutcome *self = g_new0 (TestOutcome, 1);
  guint n_parameters, n_buffers;
  g_autofree EbbTensor **parameters = ebb_module_get_parameters (module, TRUE, &n_parameters);
  g_autofree EbbTensor **buffers = ebb_module_get_buffers (module, TRUE, &n_buffers);
  g_auto (GStrv) names = ebb_module_get_parameter_names (module, TRUE);
  EbbGenerator *generator = ebb_generator_get_default ();

  self->names = g_ptr_array_new_with_free_func (g_free);
  self->tensors = g_ptr_array_new_with_free_func (unref_tensor);
  for (guint i = 0; i < n_parameters; i++)
    {
      note (self, "gradient of ", names[i], ebb_tensor_get_grad (parameters[i]));
      ebb_tensor_unref (parameters[i]);
    }
  for (guint i = 0; i < n_buffers; i++)
    {
      note (self, "buffer", "", ebb_copy (buffers[i], NULL));
      ebb_tensor_unref (buffers[i]);
    }
  if (args != NULL)
    ebb_args_unref (ebb_args_map_tensors (args, note_input, self, NULL));
  self->seed = ebb_generator_get_seed (generator);
  self->offset = ebb_generator_get_offset (generator);
  return self;
}

void
test_outcome_free (TestOutcome *outcome)
{
  g_ptr_array_unref (outcome->names);
  g_ptr_array_unref (outcome->tensors);
  g_free (outcome);
}

static gboolean
same_tensor (EbbTensor *a, EbbTensor *b)
{
  return a == NULL || b == NULL ? a == b : ebb_tensor_equal (a, b);
}

void
test_compare_outcomes (const char *where, const TestOutcome *a, const TestOutcome *b, gboolean want_same)
{
  const char *difference = NULL;

  g_assert_cmpuint (a->tensors->len, ==, b->tensors->len);
  for (guint i = 0; i < a->tensors->len; i++)
    {
      g_assert_cmpstr (a->names->pdata[i], ==, b->names->pdata[i]);
      if (!same_tensor (a->tensors->pdata[i], b->tensors->pdata[i]))
        difference = a->names->pdata[i];
    }
  if (difference == NULL && (a->seed != b->seed || a->offset != b->offset))
    difference = "generator";
  if (want_same && difference != NULL)
    g_error ("%s: other values: %s", where, difference);
  if (!want_same && difference == NULL)
    g_error ("%s: all values are the same", where);
}

static EbbTensor *
clear_grad (EbbTensor *tensor, gpointer user_data, GError **error)
{
  if (ebb_tensor_is_leaf (tensor) && ebb_tensor_get_requires_grad (tensor))
    ebb_tensor_set_grad (tensor, NULL, error);
  return ebb_tensor_ref (tensor);
}

void
test_backward (EbbTensor *loss)
{
  g_autoptr (GError) error = NULL;
  gboolean ok = ebb_tensor_backward (loss, &error);

  g_assert_no_error (error);
  g_assert_true (ok);
}

TestOutcome *
test_train (EbbModule *module, EbbArgs *args)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbArgs) result = NULL;
  g_autoptr (EbbTensor) loss = NULL;
  TestOutcome *outcome;

  ebb_manual_seed (99);
  ebb_module_zero_grad (module);
  ebb_args_unref (ebb_args_map_tensors (args, clear_grad, NULL, NULL));
  result = ebb_module_call (module, args, &error);
  g_assert_no_error (error);
  loss = test_loss_of_args (result);
  test_backward (loss);
  outcome = test_outcome_new (module, args);
  ebb_args_unref (ebb_args_map_tensors (result, note_output, outcome, NULL));
  return outcome;
}

TestOutcome *
test_train1 (EbbModule *module, EbbTensor *x)
{
  g_autoptr (EbbArgs) args = ebb_args_new_for_tensor (x);

  return test_train (module, args);
}

EbbTensor *
test_forward1 (EbbModule *module, EbbTensor *x)
{
  g_autoptr (GError) error = NULL;
  EbbTensor *y;

  ebb_manual_seed (99);
  ebb_module_zero_grad (module);
  if (ebb_tensor_is_leaf (x) && ebb_tensor_get_requires_grad (x))
    ebb_tensor_set_grad (x, NULL, NULL);
  y = ebb_module_call1 (module, x, &error);
  g_assert_no_error (error);
  return y;
}

/* -- containers ---------------------------------------------------------------------------------------------------- */

static EbbTensor *
same (EbbTensor *tensor, gpointer user_data, GError **error)
{
  return ebb_tensor_ref (tensor);
}

EbbArgs *
test_args_copy (EbbArgs *args)
{
  return ebb_args_map_tensors (args, same, NULL, NULL);
}

static gboolean args_equal (EbbArgs *a, EbbArgs *b);

static gboolean
values_equal (EbbArgs *a, EbbArgs *b, guint i)
{
  switch (ebb_args_get_value_kind (a, i))
    {
    case EBB_VALUE_NONE: return TRUE;
    case EBB_VALUE_BOOL: return ebb_args_get_boolean (a, i) == ebb_args_get_boolean (b, i);
    case EBB_VALUE_INT: return ebb_args_get_int (a, i) == ebb_args_get_int (b, i);
    case EBB_VALUE_STRING: return g_str_equal (ebb_args_get_string (a, i), ebb_args_get_string (b, i));
    case EBB_VALUE_DOUBLE:
      {
        double x = ebb_args_get_double (a, i), y = ebb_args_get_double (b, i);

        return memcmp (&x, &y, sizeof x) == 0; /* minus zero and NaN too */
      }
    case EBB_VALUE_TENSOR:
      {
        g_autoptr (EbbTensor) x = ebb_args_get_tensor (a, i);
        g_autoptr (EbbTensor) y = ebb_args_get_tensor (b, i);
        guint n;

        return ebb_tensor_equal (x, y) && ebb_tensor_get_requires_grad (x) == ebb_tensor_get_requires_grad (y)
               && memcmp (ebb_tensor_get_strides (x, &n), ebb_tensor_get_strides (y, &n),
                          ebb_tensor_get_n_dims (x) * sizeof (gint64))
                      == 0;
      }
    case EBB_VALUE_ARGS:
      {
        g_autoptr (EbbArgs) x = ebb_args_get_args (a, i);
        g_autoptr (EbbArgs) y = ebb_args_get_args (b, i);

        return args_equal (x, y);
      }
    case EBB_VALUE_OBJECT:
      {
        g_autoptr (GObject) x = ebb_args_get_object (a, i);
        g_autoptr (GObject) y = ebb_args_get_object (b, i);

        return x == y;
      }
    }
  return FALSE;
}

static gboolean
args_equal (EbbArgs *a, EbbArgs *b)
{
  if (ebb_args_get_kind (a) != ebb_args_get_kind (b) || ebb_args_get_length (a) != ebb_args_get_length (b)
      || ebb_args_get_n_positional (a) != ebb_args_get_n_positional (b))
    return FALSE;
  for (guint i = 0; i < ebb_args_get_length (a); i++)
    if (g_strcmp0 (ebb_args_get_key (a, i), ebb_args_get_key (b, i)) != 0
        || ebb_args_get_value_kind (a, i) != ebb_args_get_value_kind (b, i) || !values_equal (a, b, i))
      return FALSE;
  return TRUE;
}

void
test_assert_args_equal (EbbArgs *a, EbbArgs *b)
{
  if (!args_equal (a, b))
    {
      g_autofree char *x = ebb_args_to_string (a);
      g_autofree char *y = ebb_args_to_string (b);

      g_error ("%s\nis not\n%s", x, y);
    }
}

/* -- what a failure leaves ----------------------------------------------------------------------------------------- */

TestState
test_state_now (void)
{
  EbbGenerator *generator = ebb_generator_get_default ();

  return (TestState){
    .bytes = test_bytes_in_use (),
    .seed = ebb_generator_get_seed (generator),
    .offset = ebb_generator_get_offset (generator),
    .grad_enabled = ebb_is_grad_enabled (),
    .autocast = ebb_is_autocast_enabled (),
    .checkpointing = ebb_is_checkpointing (),
    .recomputing = ebb_is_recomputing (),
  };
}

void
test_assert_state (TestState expected)
{
  TestState now = test_state_now ();

  g_assert_cmpuint (now.bytes, ==, expected.bytes);
  g_assert_cmpuint (now.seed, ==, expected.seed);
  g_assert_cmpuint (now.offset, ==, expected.offset);
  g_assert_cmpint (now.grad_enabled, ==, expected.grad_enabled);
  g_assert_cmpint (now.autocast, ==, expected.autocast);
  g_assert_cmpint (now.checkpointing, ==, expected.checkpointing);
  g_assert_cmpint (now.recomputing, ==, expected.recomputing);
}

gboolean
test_get_flag (gpointer object,
               const char *name)
{
  gboolean value;

  g_object_get (object, name, &value, NULL);
  return value;
}
