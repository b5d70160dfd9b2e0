/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include <ebb/ebb.h>

/* A module of one's own in C: a residual around another module, with a gain that is learned. It is checkpointed like
 * any other module. Compile: gcc own_module.c $(pkg-config --cflags --libs ebb-1.0) */

G_DECLARE_FINAL_TYPE (Residual, residual, MY, RESIDUAL, EbbModule)

struct _Residual
{
  EbbModule parent_instance;
};

G_DEFINE_TYPE (Residual, residual, EBB_TYPE_MODULE)

/* [..., width] -> [..., width]: x + gain * inner (x). A call whose operand is NULL returns NULL and sets an error. */
static EbbTensor *
residual_forward1 (EbbModule *module, EbbTensor *x, GError **error)
{
  g_autoptr (EbbModule) inner = ebb_module_get_child (module, "inner");
  g_autoptr (EbbTensor) gain = ebb_module_get_parameter (module, "gain");
  g_autoptr (EbbTensor) y = ebb_module_call1 (inner, x, error);
  g_autoptr (EbbTensor) scaled = ebb_mul (y, gain, error);

  return ebb_add (x, scaled, error);
}

static void
residual_class_init (ResidualClass *klass)
{
  EBB_MODULE_CLASS (klass)->forward1 = residual_forward1;
}

static void
residual_init (Residual *self)
{
}

static EbbModule *
residual_new (EbbModule *inner, GError **error)
{
  g_autoptr (EbbModule) self = g_object_new (residual_get_type (), NULL);
  g_autoptr (EbbTensor) gain = ebb_ones ((gint64[]){ 1 }, 1, EBB_DTYPE_F32, NULL, error);

  return ebb_module_register_parameter (self, "gain", gain, error)
                 && ebb_module_register_child (self, "inner", inner, error)
             ? g_steal_pointer (&self)
             : NULL;
}

int
main (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) linear = ebb_linear_new (64, 64, TRUE, &error);
  g_autoptr (EbbModule) model = residual_new (linear, &error);
  g_autoptr (EbbModule) wrapped = ebb_checkpoint_wrapper (model, NULL, &error); /* the same object */
  g_autoptr (EbbTensor) x = ebb_randn ((gint64[]){ 8, 64 }, 2, EBB_DTYPE_F32, NULL, NULL, &error);
  g_autoptr (EbbTensor) y = ebb_module_call1 (model, x, &error);
  g_autoptr (EbbTensor) loss = ebb_sum (y, NULL, 0, FALSE, &error);
  g_autofree char *text = NULL;

  if (!ebb_tensor_backward (loss, &error))
    {
      g_printerr ("%s\n", error->message);
      return 1;
    }
  text = ebb_module_to_string (model);
  g_print ("%s\n", text);
  return wrapped == model ? 0 : 1;
}
