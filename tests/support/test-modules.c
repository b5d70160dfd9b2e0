/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/test-modules.h"

#include "support/tensors.h"
#include "support/training.h"

/* -- scale --------------------------------------------------------------------------------------------------------- */

G_DEFINE_TYPE (TestScale, test_scale, EBB_TYPE_MODULE)

static EbbTensor *
test_scale_forward1 (EbbModule *module, EbbTensor *input, GError **error)
{
  g_autoptr (EbbTensor) gain = ebb_module_get_parameter (module, "gain");

  return ebb_mul (input, gain, error);
}

static void
test_scale_class_init (TestScaleClass *klass)
{
  EBB_MODULE_CLASS (klass)->forward1 = test_scale_forward1;
}

static void
test_scale_init (TestScale *self)
{
}

static EbbModule *
set_gain (EbbModule *module, float gain)
{
  g_autoptr (EbbTensor) tensor = test_floats (&gain, 1, -1);
  g_autoptr (EbbTensor) calls = test_floats ((float[]){ 0 }, 1, -1);
  g_autoptr (GError) error = NULL;

  ebb_module_register_parameter (module, "gain", tensor, &error);
  ebb_module_register_buffer (module, "calls", calls, TRUE, &error);
  g_assert_no_error (error);
  return module;
}

EbbModule *
test_scale_new (float gain)
{
  return set_gain (g_object_new (test_scale_get_type (), NULL), gain);
}

/* -- flexible ------------------------------------------------------------------------------------------------------ */

struct _TestFlexible
{
  EbbModule parent_instance;
};

G_DEFINE_TYPE (TestFlexible, test_flexible, EBB_TYPE_MODULE)

static EbbArgs *
test_flexible_forward (EbbModule *module, EbbArgs *args, GError **error)
{
  g_autoptr (EbbTensor) x = ebb_args_get_tensor (args, 0);
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbArgs) info = NULL;
  EbbArgs *result;
  int factor = ebb_args_find (args, "factor");

  if (ebb_args_get_length (args) == 1)
    {
      y = ebb_neg (x, error);
      return y != NULL ? ebb_args_new_for_tensor (y) : NULL;
    }
  y = ebb_mul_scalar (x, ebb_args_get_double (args, (guint) factor), error);
  if (y == NULL)
    return NULL;
  info = ebb_args_new (EBB_ARGS_DICT);
  ebb_args_add_int (info, "n", 2);
  result = ebb_args_new (EBB_ARGS_TUPLE);
  ebb_args_add_tensor (result, NULL, y);
  ebb_args_add_args (result, NULL, info);
  return result;
}

static void
test_flexible_class_init (TestFlexibleClass *klass)
{
  EBB_MODULE_CLASS (klass)->forward = test_flexible_forward;
}

static void
test_flexible_init (TestFlexible *self)
{
}

EbbModule *
test_flexible_new (void)
{
  return g_object_new (test_flexible_get_type (), NULL);
}

/* -- shifted ------------------------------------------------------------------------------------------------------- */

struct _TestShifted
{
  TestScale parent_instance;
};

G_DEFINE_TYPE (TestShifted, test_shifted, test_scale_get_type ())

static EbbArgs *
test_shifted_forward (EbbModule *module, EbbArgs *args, GError **error)
{
  g_autoptr (EbbArgs) scaled = EBB_MODULE_CLASS (test_shifted_parent_class)->forward (module, args, error);
  g_autoptr (EbbTensor) x = scaled != NULL ? ebb_args_get_tensor (scaled, 0) : NULL;
  g_autoptr (EbbTensor) y = ebb_add_scalar (x, 100, error);

  return y != NULL ? ebb_args_new_for_tensor (y) : NULL;
}

static void
test_shifted_class_init (TestShiftedClass *klass)
{
  EBB_MODULE_CLASS (klass)->forward = test_shifted_forward;
}

static void
test_shifted_init (TestShifted *self)
{
}

EbbModule *
test_shifted_new (float gain)
{
  return set_gain (g_object_new (test_shifted_get_type (), NULL), gain);
}

/* -- empty, silent, loop ------------------------------------------------------------------------------------------- */

struct _TestEmpty
{
  EbbModule parent_instance;
};

G_DEFINE_TYPE (TestEmpty, test_empty, EBB_TYPE_MODULE)

static void
test_empty_class_init (TestEmptyClass *klass)
{
}

static void
test_empty_init (TestEmpty *self)
{
}

EbbModule *
test_empty_new (void)
{
  return g_initable_new (test_empty_get_type (), NULL, NULL, NULL);
}

struct _TestSilent
{
  EbbModule parent_instance;
};

G_DEFINE_TYPE (TestSilent, test_silent, EBB_TYPE_MODULE)

static EbbArgs *
test_silent_forward (EbbModule *module, EbbArgs *args, GError **error)
{
  return NULL;
}

static void
test_silent_class_init (TestSilentClass *klass)
{
  EBB_MODULE_CLASS (klass)->forward = test_silent_forward;
}

static void
test_silent_init (TestSilent *self)
{
}

EbbModule *
test_silent_new (void)
{
  return g_initable_new (test_silent_get_type (), NULL, NULL, NULL);
}

struct _TestLoop
{
  EbbModule parent_instance;
};

G_DEFINE_TYPE (TestLoop, test_loop, EBB_TYPE_MODULE)

static EbbArgs *
test_loop_forward (EbbModule *module, EbbArgs *args, GError **error)
{
  return EBB_MODULE_CLASS (test_loop_parent_class)->forward (module, args, error);
}

static EbbTensor *
test_loop_forward1 (EbbModule *module, EbbTensor *input, GError **error)
{
  return EBB_MODULE_CLASS (test_loop_parent_class)->forward1 (module, input, error);
}

static void
test_loop_class_init (TestLoopClass *klass)
{
  EBB_MODULE_CLASS (klass)->forward = test_loop_forward;
  EBB_MODULE_CLASS (klass)->forward1 = test_loop_forward1;
}

static void
test_loop_init (TestLoop *self)
{
}

EbbModule *
test_loop_new (void)
{
  return g_object_new (test_loop_get_type (), NULL);
}

/* -- outer --------------------------------------------------------------------------------------------------------- */

struct _TestOuter
{
  EbbModule parent_instance;
};

G_DEFINE_TYPE (TestOuter, test_outer, EBB_TYPE_MODULE)

static EbbTensor *
test_outer_forward1 (EbbModule *module, EbbTensor *input, GError **error)
{
  g_autoptr (EbbModule) inner = ebb_module_get_child (module, "inner");

  return ebb_module_call1 (inner, input, error);
}

static void
test_outer_class_init (TestOuterClass *klass)
{
  EBB_MODULE_CLASS (klass)->forward1 = test_outer_forward1;
}

static void
test_outer_init (TestOuter *self)
{
}

EbbModule *
test_outer_new (EbbModule *inner)
{
  EbbModule *self = g_object_new (test_outer_get_type (), NULL);
  g_autoptr (GError) error = NULL;

  ebb_module_register_child (self, "inner", inner, &error);
  g_assert_no_error (error);
  return self;
}

/* -- stumbling ----------------------------------------------------------------------------------------------------- */

static EbbTensor *
stumble (EbbModule *self,
         EbbTensor *x,
         gpointer data,
         GError **error)
{
  g_autoptr (EbbTensor) y = ebb_sin (x, error);

  g_set_error (error, EBB_ERROR, EBB_ERROR_CALLBACK, "stumbled");
  return NULL;
}

EbbModule *
test_stumbling_new (void)
{
  return test_lambda1_new (stumble, NULL);
}
