/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers */
#include "support/device.h"
#include "support/tensors.h"
#include "tensor/backend/backend-private.h"
#include "tensor/tensor-private.h"

#include <string.h>

/* Hooks that give back something other than what they were handed: an error that says so, and no kernel reads it. */

typedef EbbTensor *(*Give) (EbbTensor *packed,
                            GError **error);

G_DECLARE_FINAL_TYPE (CrookedHooks, crooked_hooks, TEST, CROOKED_HOOKS, EbbSavedTensorHooks)
struct _CrookedHooks
{
  EbbSavedTensorHooks parent_instance;
  Give give;
};
G_DEFINE_FINAL_TYPE (CrookedHooks, crooked_hooks, EBB_TYPE_SAVED_TENSOR_HOOKS)

static EbbTensor *
crooked_hooks_unpack (EbbSavedTensorHooks *self,
                      EbbHandle *handle,
                      GError **error)
{
  g_autoptr (EbbTensor) tensor = ebb_handle_get_tensor (handle);

  return TEST_CROOKED_HOOKS (self)->give (tensor, error);
}

static void
crooked_hooks_class_init (CrookedHooksClass *klass)
{
  EBB_SAVED_TENSOR_HOOKS_CLASS (klass)->unpack = crooked_hooks_unpack;
}

static void
crooked_hooks_init (CrookedHooks *self)
{
}

static EbbDevice *elsewhere;

static EbbTensor *
give_same (EbbTensor *packed,
           GError **error)
{
  return ebb_tensor_ref (packed);
}

static EbbTensor *
give_part (EbbTensor *packed,
           GError **error)
{
  return ebb_narrow (packed, 0, 0, 1, error);
}

static EbbTensor *
give_other_order (EbbTensor *packed,
                  GError **error)
{
  return ebb_transpose (packed, 0, 1, error);
}

static EbbTensor *
give_flat (EbbTensor *packed,
           GError **error)
{
  return ebb_flatten (packed, 0, -1, error);
}

static EbbTensor *
give_half (EbbTensor *packed,
           GError **error)
{
  return ebb_cast (packed, EBB_DTYPE_BF16, error);
}

static EbbTensor *
give_elsewhere (EbbTensor *packed,
                GError **error)
{
  return ebb_tensor_new_uninitialized (packed->view.shape, (guint) packed->view.n_dims, packed->view.dtype, elsewhere,
                                       error);
}

/* The same values in memory that lies the other way round. */
static EbbTensor *
give_turned (EbbTensor *packed,
             GError **error)
{
  g_autoptr (EbbTensor) turned = ebb_transpose (packed, 0, -1, error);
  g_autoptr (EbbTensor) laid = ebb_contiguous (turned, error);

  return ebb_transpose (laid, 0, -1, error);
}

/* layer_norm (x) * weight, backward: norms read rows, which have to be contiguous. Returns the gradient of x. */
static EbbTensor *
run (Give give,
     gboolean turned,
     GError **error)
{
  g_autoptr (CrookedHooks) hooks = g_object_new (crooked_hooks_get_type (), NULL);
  g_autoptr (EbbTensor) x = test_randn (1, 5, 3, -1);
  g_autoptr (EbbTensor) other = test_randn (2, 5, 3, -1);
  g_autoptr (EbbTensor) normalized = NULL;
  g_autoptr (EbbTensor) product = NULL;
  g_autoptr (EbbTensor) loss = NULL;
  GError *local = NULL;

  if (turned)
    {
      EbbTensor *laid = give_turned (other, &local);

      ebb_tensor_unref (other);
      other = laid;
    }
  g_assert_true (ebb_tensor_set_requires_grad (x, TRUE, &local));
  hooks->give = give;
  ebb_push_saved_tensor_hooks (EBB_SAVED_TENSOR_HOOKS (hooks));
  normalized = ebb_layer_norm (x, NULL, NULL, 1e-5, &local);
  product = ebb_mul (normalized, other, &local);
  loss = ebb_sum (product, NULL, 0, FALSE, &local);
  ebb_pop_saved_tensor_hooks ();
  g_assert_no_error (local);
  if (!ebb_tensor_backward (loss, error))
    {
      g_autoptr (EbbTensor) none = ebb_tensor_get_grad (x);

      g_assert_null (none);
      return NULL;
    }
  return ebb_tensor_get_grad (x);
}

static void
what_is_of_another_kind_is_refused (void)
{
  const struct
  {
    Give give;
    EbbError code;
    const char *text;
  } cases[] = {
    { give_part, EBB_ERROR_SHAPE, "gave f32 [1, 3] on HERE for the f32 [5, 3] on HERE that was packed" },
    { give_other_order, EBB_ERROR_SHAPE, "gave f32 [3, 5] on HERE for the f32 [5, 3] on HERE" },
    { give_flat, EBB_ERROR_SHAPE, "gave f32 [15] on HERE for the f32 [5, 3] on HERE" },
    { give_half, EBB_ERROR_DTYPE, "gave bf16 [5, 3] on HERE for the f32 [5, 3] on HERE" },
    { give_elsewhere, EBB_ERROR_DEVICE, "gave f32 [5, 3] on elsewhere for the f32 [5, 3] on HERE" },
  };

  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_auto (GStrv) parts = g_strsplit (cases[i].text, "HERE", -1);
      g_autofree char *text = g_strjoinv (ebb_device_get_name (test_device ()), parts);
      GError *error = NULL;

      g_assert_null (run (cases[i].give, FALSE, &error));
      test_assert_error (error, cases[i].code, "mul: unpack of CrookedHooks ", text);
      g_clear_error (&error);
    }
}

static void
the_layout_in_memory_is_free (void)
{
  GError *error = NULL;

  for (int turned = FALSE; turned <= TRUE; turned++)
    {
      g_autoptr (EbbTensor) expected = run (give_same, turned, &error);
      g_autoptr (EbbTensor) grad = run (give_turned, turned, &error);

      g_assert_no_error (error);
      g_assert_true (ebb_tensor_equal (expected, grad));
    }
}

static void
a_store_of_a_checkpoint_is_held_to_it (void)
{
  GError *error = NULL;
  g_autoptr (CrookedHooks) hooks = g_object_new (crooked_hooks_get_type (), NULL);
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
  g_autoptr (EbbModule) layer = ebb_linear_new (3, 4, TRUE, &error);
  g_autoptr (EbbModule) wrapped = NULL;
  g_autoptr (EbbTensor) x = test_randn (1, 5, 3, -1);
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) loss = NULL;

  hooks->give = give_part;
  ebb_checkpoint_options_set_store (options, EBB_SAVED_TENSOR_HOOKS (hooks));
  wrapped = ebb_checkpoint_wrapper (layer, options, &error);
  y = ebb_module_call1 (wrapped, x, &error);
  loss = ebb_sum (y, NULL, 0, FALSE, &error);
  g_assert_no_error (error);
  g_assert_false (ebb_tensor_backward (loss, &error));
  test_assert_error (error, EBB_ERROR_SHAPE, "unpack of CrookedHooks gave f32 [", " that was packed");
  g_clear_error (&error);
}

int
main (int argc, char **argv)
{
  static EbbBackend backend;

  test_init (&argc, &argv);
  backend = ebb_cpu_backend;
  backend.name = "elsewhere";
  ebb_backend_register (&backend);
  elsewhere = ebb_device_get ("elsewhere", NULL);
  g_assert_nonnull (elsewhere);
  g_test_add_func ("/unpack/what-is-of-another-kind-is-refused", what_is_of_another_kind_is_refused);
  g_test_add_func ("/unpack/the-layout-in-memory-is-free", the_layout_in_memory_is_free);
  g_test_add_func ("/unpack/a-store-of-a-checkpoint-is-held-to-it", a_store_of_a_checkpoint_is_held_to_it);
  return g_test_run ();
}
