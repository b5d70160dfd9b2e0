/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: cpu-only */
#include "support/stores.h"
#include "support/tensors.h"
#include "support/training.h"

#include <string.h>

/* Stores behind stores, under nested wrappers, on the CPU and on sim: bit for bit what a plain module on the CPU gives,
 * whatever fails or is dropped on the way, and whatever observes the run. */

enum
{
  ROWS = 16,
  WIDTH = 64,
  N_BLOCKS = 6
};

#define INPUT_BYTES ((guint64) ROWS * WIDTH * 4)

typedef enum
{
  CONTIGUOUS,
  CONTIGUOUS_HOST,
  CONTIGUOUS_DISK,
  FALLBACKS,
  N_CHAINS
} Chain;

static const char *const chain_names[] = { "contiguous", "contiguous-host", "contiguous-disk", "fallbacks" };

static EbbActivationStore *
as_store (EbbSavedTensorHooks *hooks)
{
  g_assert_nonnull (hooks);
  g_object_set (hooks, "least-size", (guint64) 1, NULL);
  return EBB_ACTIVATION_STORE (hooks);
}

static EbbActivationStore *
new_contiguous (EbbActivationStore *next)
{
  EbbActivationStore *store = as_store (ebb_contiguous_store_new (2, next, NULL));

  g_object_set (store, "grow", TRUE, NULL);
  g_clear_object (&next);
  return store;
}

static EbbActivationStore *
new_disk (void)
{
  return as_store (ebb_disk_store_new (g_get_tmp_dir (), NULL));
}

/* Room for two in host memory, for one more on the disk; the rest stays. */
static EbbActivationStore *
new_fallbacks (void)
{
  EbbActivationStore *host = as_store (ebb_host_store_new ());
  g_autoptr (EbbActivationStore) disk = new_disk ();
  g_autoptr (EbbActivationStore) keep = as_store (ebb_keep_store_new ());

  g_object_set (host, "byte-limit", (guint64) (2 * INPUT_BYTES), NULL);
  g_object_set (disk, "byte-limit", (guint64) INPUT_BYTES, NULL);
  g_assert_true (ebb_activation_store_set_fallback (host, disk, NULL));
  g_assert_true (ebb_activation_store_set_fallback (disk, keep, NULL));
  return host;
}

static EbbActivationStore *
new_chain (Chain chain)
{
  switch (chain)
    {
    case CONTIGUOUS:
      return new_contiguous (NULL);
    case CONTIGUOUS_HOST:
      return new_contiguous (as_store (ebb_host_store_new ()));
    case CONTIGUOUS_DISK:
      return new_contiguous (new_disk ());
    case FALLBACKS:
    default:
      return new_fallbacks ();
    }
}

/* -- a model ------------------------------------------------------------------------------------------------------- */

/* A call that is to fail. */
typedef struct
{
  gint left; /* atomic */
} Failing;

static EbbTensor *
bend (EbbModule *self,
      EbbTensor *x,
      gpointer data,
      GError **error)
{
  Failing *failing = data;
  g_autoptr (EbbTensor) gain = ebb_module_get_parameter (self, "gain");
  g_autoptr (EbbTensor) scaled = ebb_mul (x, gain, error);
  g_autoptr (EbbTensor) dropped = ebb_dropout (scaled, 0.1, TRUE, NULL, error);
  g_autoptr (EbbTensor) bent = ebb_sin (dropped, error);

  if (bent != NULL && failing != NULL && g_atomic_int_dec_and_test (&failing->left))
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_CALLBACK, "this block is tired");
      return NULL;
    }
  return ebb_tanh (bent, error);
}

static EbbModule *
new_model (EbbDevice *device,
           Failing *failing)
{
  EbbModule *model = ebb_sequential_new ();

  for (guint half = 0; half < 2; half++)
    {
      g_autoptr (EbbModule) part = ebb_sequential_new ();

      for (guint i = 0; i < N_BLOCKS / 2; i++)
        {
          g_autoptr (EbbModule) block = test_lambda1_new (bend, failing);
          g_autoptr (EbbTensor) gain = test_randn (10 * half + i, WIDTH, -1);
          const char name[] = { (char) ('0' + i), 0 };

          ebb_module_register_parameter (block, "gain", gain, NULL);
          ebb_module_register_child (part, name, block, NULL);
        }
      ebb_module_register_child (model, half == 0 ? "0" : "1", part, NULL);
    }
  g_assert_true (ebb_module_to_device (model, device, NULL));
  return model;
}

/* The first half is a checkpoint of checkpoints; of the second, what its blocks keep is offloaded. */
static void
wrap (EbbModule *model,
      EbbActivationStore *store)
{
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
  g_autoptr (EbbModule) first = ebb_module_get_child (model, "0");
  g_autoptr (EbbModule) second = ebb_module_get_child (model, "1");
  g_autoptr (EbbModule) same = NULL;

  ebb_checkpoint_options_set_store (options, EBB_SAVED_TENSOR_HOOKS (store));
  test_wrap_leaves (first, options);
  test_wrap (first, options);
  same = ebb_offload_wrapper (second, EBB_SAVED_TENSOR_HOOKS (store), NULL);
  g_assert_nonnull (same);
}

static EbbTensor *
forward (EbbModule *model,
         EbbDevice *device,
         GError **error)
{
  g_autoptr (EbbTensor) here = test_randn (9, ROWS, WIDTH, -1);
  g_autoptr (EbbTensor) start = ebb_to_device (here, device, error);
  g_autoptr (EbbTensor) x = NULL;
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) square = NULL;

  ebb_manual_seed (3);
  x = start != NULL ? ebb_copy (start, error) : NULL;
  y = x != NULL ? ebb_module_call1 (model, x, error) : NULL;
  square = y != NULL ? ebb_mul (y, y, error) : NULL;
  return square != NULL ? ebb_sum (square, NULL, 0, FALSE, error) : NULL;
}

/* Through one graph as often as that. */
static gboolean
train (EbbModule *model,
       EbbDevice *device,
       guint n_backwards,
       GError **error)
{
  g_autoptr (EbbTensor) loss = forward (model, device, error);

  for (guint i = 0; loss != NULL && i < n_backwards; i++)
    if (!ebb_backward (&loss, 1, NULL, 0, NULL, 0, i + 1 < n_backwards, error))
      return FALSE;
  return loss != NULL;
}

static GPtrArray *
take_grads (EbbModule *model)
{
  GPtrArray *grads = g_ptr_array_new_with_free_func ((GDestroyNotify) ebb_tensor_unref);
  guint n;
  g_autofree EbbTensor **parameters = ebb_module_get_parameters (model, TRUE, &n);

  for (guint i = 0; i < n; i++)
    {
      g_autoptr (EbbTensor) grad = ebb_tensor_get_grad (parameters[i]);
      EbbTensor *here = grad != NULL ? ebb_to_device (grad, ebb_device_get_cpu (), NULL) : NULL;

      g_assert_nonnull (here);
      g_ptr_array_add (grads, here);
      ebb_tensor_unref (parameters[i]);
    }
  ebb_module_zero_grad (model);
  return grads;
}

static GPtrArray *
take_plain_grads (guint n_backwards)
{
  g_autoptr (EbbModule) plain = new_model (ebb_device_get_cpu (), NULL);

  g_assert_true (train (plain, ebb_device_get_cpu (), n_backwards, NULL));
  return take_grads (plain);
}

static void
assert_grads (EbbModule *model,
              GPtrArray *expected)
{
  g_autoptr (GPtrArray) grads = take_grads (model);

  g_assert_cmpuint (grads->len, ==, expected->len);
  for (guint i = 0; i < grads->len; i++)
    g_assert_true (ebb_tensor_equal (grads->pdata[i], expected->pdata[i]));
}

/* -- bits ---------------------------------------------------------------------------------------------------------- */

typedef struct
{
  const char *device;
  Chain chain;
} Case;

static void
gradients_are_those_of_a_plain_module (gconstpointer data)
{
  const Case *which = data;
  EbbDevice *device = ebb_device_get (which->device, NULL);
  g_autoptr (EbbActivationStore) store = new_chain (which->chain);
  g_autoptr (EbbModule) model = new_model (device, NULL);

  wrap (model, store);
  for (guint n = 1; n < 4; n++)
    {
      g_autoptr (GPtrArray) expected = take_plain_grads (n);
      g_autoptr (GError) error = NULL;

      g_assert_true (train (model, device, n, &error));
      g_assert_no_error (error);
      assert_grads (model, expected);
      g_assert_true (ebb_activation_store_synchronize (store, &error));
      g_assert_no_error (error);
      g_assert_cmpuint (ebb_activation_store_get_bytes_held (store), ==, 0);
    }
  if (which->chain != FALLBACKS || strcmp (which->device, "cpu") != 0)
    g_assert_cmpuint (ebb_activation_store_get_bytes_put (store), >, 0);
  if (which->chain == FALLBACKS && strcmp (which->device, "sim") == 0)
    {
      EbbActivationStore *disk = ebb_activation_store_get_fallback (store);

      g_assert_cmpuint (ebb_activation_store_get_bytes_spilled (store), >, 0);
      g_assert_cmpuint (ebb_activation_store_get_bytes_put (disk), >, 0);
      g_assert_cmpuint (ebb_activation_store_get_bytes_spilled (disk), >, 0);
    }
}

static void
what_fails_or_is_dropped_leaves_nothing (gconstpointer data)
{
  const Case *which = data;
  EbbDevice *device = ebb_device_get (which->device, NULL);
  g_autoptr (GPtrArray) expected = take_plain_grads (1);
  g_autoptr (EbbActivationStore) store = new_chain (which->chain);
  Failing failing = { 0 };
  g_autoptr (EbbModule) model = new_model (device, &failing);

  wrap (model, store);
  for (gint n = 1; n < 20; n++)
    {
      g_autoptr (GError) error = NULL;
      gboolean ok;

      g_atomic_int_set (&failing.left, n); /* in the forward, or in a recompute */
      ok = train (model, device, 1, &error);
      g_atomic_int_set (&failing.left, 0);
      g_assert_true (ok == (error == NULL));
      if (!ok)
        test_assert_error (error, EBB_ERROR_CALLBACK, "tired");
      ebb_module_zero_grad (model);
      g_assert_cmpuint (ebb_activation_store_get_bytes_held (store), ==, 0);
      {
        g_autoptr (EbbTensor) dropped = forward (model, device, NULL);

        g_assert_nonnull (dropped);
      }
      g_assert_cmpuint (ebb_activation_store_get_bytes_held (store), ==, 0);
      if (ok)
        break;
      g_assert_cmpint (n, <, 19);
    }
  g_assert_true (train (model, device, 1, NULL));
  assert_grads (model, expected);
}

/* -- who leads where ----------------------------------------------------------------------------------------------- */

static void
refuse_fallback (EbbActivationStore *store,
                 EbbActivationStore *fallback)
{
  g_autoptr (EbbActivationStore) before = ebb_activation_store_get_fallback (store);
  g_autoptr (GError) error = NULL;

  if (before != NULL)
    g_object_ref (before);
  g_assert_false (ebb_activation_store_set_fallback (store, fallback, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "fallback", "leads back");
  g_assert_true (ebb_activation_store_get_fallback (store) == before);
}

static void
a_fallback_that_leads_back_is_refused (void)
{
  g_autoptr (EbbActivationStore) host = as_store (ebb_host_store_new ());
  g_autoptr (EbbActivationStore) keep = as_store (ebb_keep_store_new ());
  g_autoptr (EbbActivationStore) outer = as_store (ebb_keep_store_new ());
  g_autoptr (EbbActivationStore) contiguous = new_contiguous (g_object_ref (host));
  g_autofree char *report = NULL;

  refuse_fallback (host, host);
  refuse_fallback (host, contiguous);
  g_assert_true (ebb_activation_store_set_fallback (keep, contiguous, NULL));
  refuse_fallback (host, keep);
  g_assert_true (ebb_activation_store_set_fallback (outer, keep, NULL));
  refuse_fallback (host, outer);
  g_test_expect_message ("Ebb", G_LOG_LEVEL_WARNING, "*leads back*");
  g_object_set (host, "fallback", keep, NULL);
  g_test_assert_expected_messages ();
  g_assert_null (ebb_activation_store_get_fallback (host));
  report = ebb_activation_store_report (keep);
  g_assert_nonnull (strstr (report, "next EbbHostStore: "));
  g_assert_true (ebb_activation_store_synchronize (keep, NULL));
}

static void
seconds_behind_are_counted_once (void)
{
  g_autoptr (EbbActivationStore) host = as_store (ebb_host_store_new ());
  g_autoptr (EbbActivationStore) store = new_contiguous (g_object_ref (host));
  double moving, waited;

  g_assert_true (ebb_activation_store_set_fallback (store, host, NULL)); /* by both ways */
  ebb_activation_store_count_seconds (host, 0.5, 0.25);
  ebb_activation_store_count_seconds (store, 1, 0.125);
  ebb_activation_store_get_chain_seconds (store, &moving, &waited);
  g_assert_cmpfloat (moving, ==, 1.5);
  g_assert_cmpfloat (waited, ==, 0.375);
}

/* -- threads ------------------------------------------------------------------------------------------------------- */

typedef struct
{
  EbbActivationStore *store;
  gint n_done; /* atomic */
} Shared;

static gpointer
train_beside_others (gpointer data)
{
  Shared *shared = data;
  EbbDevice *sim = ebb_device_get ("sim", NULL);
  g_autoptr (EbbModule) model = new_model (sim, NULL);
  g_autoptr (GPtrArray) expected = take_plain_grads (1); /* of its own: a tensor belongs to one thread */

  wrap (model, shared->store);
  for (guint i = 0; i < 12; i++)
    {
      g_autoptr (GError) error = NULL;

      if (train (model, sim, 1, &error))
        assert_grads (model, expected);
      else /* there was a limit, and just then no fallback */
        g_assert_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY);
      ebb_module_zero_grad (model);
    }
  g_atomic_int_inc (&shared->n_done);
  return NULL;
}

static void
change_and_look (EbbActivationStore *store,
                 EbbActivationStore *fallback,
                 guint i)
{
  g_autofree char *text = NULL;
  g_autofree char *json = NULL;

  g_object_set (store, "byte-limit", (guint64) (i % 3 == 0 ? 3 * INPUT_BYTES : G_MAXUINT64), NULL);
  ebb_activation_store_set_fallback (store, i % 4 == 0 ? NULL : fallback, NULL);
  g_object_set (store, "prefetch", i % 3, NULL);
  g_object_set (store, "in-flight", i % 3, NULL);
  g_object_set (store, "least-size", (guint64) (i % 2 * INPUT_BYTES), NULL);
  text = ebb_activation_store_report (store);
  json = ebb_activation_store_report_json (store);
  g_assert_true (strlen (text) > 0 && strlen (json) > 0);
  g_thread_yield ();
}

static void
others_may_look_and_change_settings_meanwhile (void)
{
  g_autoptr (EbbActivationStore) store = as_store (ebb_host_store_new ());
  Shared shared = { store, 0 };
  GThread *threads[2];
  guint i = 0;

  /* Once alone: the sanitizer doesn't see the lock under which a class is made. */
  train_beside_others (&shared);
  shared.n_done = 0;
  for (guint t = 0; t < G_N_ELEMENTS (threads); t++)
    threads[t] = g_thread_new (NULL, train_beside_others, &shared);
  while (g_atomic_int_get (&shared.n_done) < (gint) G_N_ELEMENTS (threads))
    {
      g_autoptr (EbbActivationStore) disk = new_disk (); /* goes while blocks of it live */

      for (guint n = 0; n < 20; n++)
        change_and_look (store, disk, i++);
    }
  for (guint t = 0; t < G_N_ELEMENTS (threads); t++)
    g_thread_join (threads[t]);
  g_object_set (store, "byte-limit", G_MAXUINT64, NULL);
  g_assert_cmpuint (ebb_activation_store_get_bytes_held (store), ==, 0);
  shared.n_done = 0;
  train_beside_others (&shared);
}

int
main (int argc, char **argv)
{
  static Case cases[2 * N_CHAINS];
  GError *error = NULL;

  g_test_init (&argc, &argv, NULL);
  g_setenv ("EBB_SIM_MEMORY", "64M", TRUE);
  g_assert_nonnull (ebb_device_get ("sim", &error));
  g_assert_no_error (error);
  for (guint i = 0; i < 2 * N_CHAINS; i++)
    {
      g_autofree char *bits = NULL;
      g_autofree char *nothing = NULL;

      cases[i] = (Case){ i % 2 == 0 ? "cpu" : "sim", i / 2 };
      bits = g_strdup_printf ("/stores-together/%s/%s/gradients-are-those-of-a-plain-module", cases[i].device,
                              chain_names[cases[i].chain]);
      nothing = g_strdup_printf ("/stores-together/%s/%s/what-fails-or-is-dropped-leaves-nothing", cases[i].device,
                                 chain_names[cases[i].chain]);
      g_test_add_data_func (bits, &cases[i], gradients_are_those_of_a_plain_module);
      g_test_add_data_func (nothing, &cases[i], what_fails_or_is_dropped_leaves_nothing);
    }
  g_test_add_func ("/stores-together/a-fallback-that-leads-back-is-refused", a_fallback_that_leads_back_is_refused);
  g_test_add_func ("/stores-together/seconds-behind-are-counted-once", seconds_behind_are_counted_once);
  g_test_add_func ("/stores-together/others-may-look-and-change-settings",
                   others_may_look_and_change_settings_meanwhile);
  return g_test_run ();
}
