/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only */
#include "support/device.h"
#include "tensor/backend/backend-private.h"

#include <string.h>

/* What the CUDA backend takes for tensors is hardly more than they need: of the GPU's memory over whole training steps,
 * and of pinned memory while a store holds what they keep. The emulated GPU does no work here, so models have the sizes
 * that are trained, and no memory is touched. */

#define MOST_OF_DEVICE 1.03
#define MOST_OF_PLENTY 1.1
#define MOST_OF_HOST 1.05
#define MEMORY (G_GUINT64_CONSTANT (32) << 30)
#define N_STEPS 2

typedef struct
{
  const char *name;
  int layers;
  gint64 batch, context;
  gboolean is_llama, checkpoint, selective, offload, bf16;
} Case;

static const Case cases[] = {
  { "gpt-selective", .layers = 6, .batch = 8, .context = 1024, .checkpoint = TRUE, .selective = TRUE, .bf16 = TRUE },
  { "gpt-offloaded", .layers = 6, .batch = 8, .context = 1024, .offload = TRUE },
  { "llama-offloaded", .layers = 8, .batch = 4, .context = 2048, .is_llama = TRUE, .checkpoint = TRUE, .offload = TRUE,
    .bf16 = TRUE },
};

static EbbDevice *device; /* each training has one of its own, since a device keeps what it took */

static EbbModule *
make_model (const Case *c,
            gint64 *vocab)
{
  g_autoptr (EbbGptConfig) config = ebb_gpt_config_new ();
  g_autoptr (GError) error = NULL;
  EbbModule *model;

  config->context = (int) c->context;
  config->dropout = 0;
  config->layers = c->layers;
  config->vocab = 16000;
  if (c->is_llama)
    {
      config->layout = EBB_GPT_LAYOUT_LLAMA;
      config->width = 1024;
      config->heads = 16;
      config->kv_heads = 4;
      config->hidden = 2816;
      config->activation = EBB_ACTIVATION_SILU;
      config->gated = TRUE;
      config->norm = EBB_NORM_RMS;
      config->bias = FALSE;
      config->positions = EBB_POSITIONS_ROTARY;
    }
  *vocab = config->vocab;
  model = ebb_gpt_new (config, &error);
  g_assert_no_error (error);
  return model;
}

static void
wrap (const Case *c,
      EbbModule *model,
      EbbSavedTensorHooks *store)
{
  g_autoptr (EbbCheckpointOptions) options =
      c->selective ? ebb_checkpoint_options_new_selective () : ebb_checkpoint_options_new ();
  g_autoptr (GError) error = NULL;

  ebb_checkpoint_options_set_store (options, store);
  g_assert_true (ebb_checkpoint_wrap_each (model, EBB_TYPE_TRANSFORMER_BLOCK, options, &error));
}

static void
check_host (EbbActivationStore *store)
{
  const guint64 held = ebb_activation_store_get_bytes_held (store);
  guint64 pinned = 0;

  device->backend->get_taken (device->index, NULL, &pinned);
  g_test_message ("%.1f MiB in the store, %.4f of it pinned", (double) held / (1 << 20),
                  (double) pinned / (double) held);
  g_assert_cmpuint (held, >, 0);
  g_assert_cmpfloat ((double) pinned, <=, (double) held * MOST_OF_HOST);
}

static void
take_step (const Case *c,
           EbbModule *model,
           EbbOptimizer *optimizer,
           EbbTensor *tokens,
           EbbSavedTensorHooks *store)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) loss = NULL;

  if (store != NULL && !c->checkpoint)
    ebb_push_saved_tensor_hooks (store);
  ebb_push_autocast (c->bf16, EBB_DTYPE_BF16);
  loss = ebb_gpt_loss (EBB_GPT (model), tokens, tokens, &error);
  ebb_pop_autocast ();
  if (store != NULL && !c->checkpoint)
    ebb_pop_saved_tensor_hooks ();
  g_assert_no_error (error);
  if (store != NULL)
    check_host (EBB_ACTIVATION_STORE (store));
  g_assert_true (ebb_tensor_backward (loss, &error));
  g_assert_true (ebb_optimizer_step (optimizer, &error));
  ebb_optimizer_zero_grad (optimizer);
}

/* The most that a training takes and that is counted, on a device of @memory bytes. */
static guint64
train (const Case *c,
       guint64 memory,
       guint64 *peak)
{
  static int n_devices;
  const gint64 shape[] = { c->batch, c->context };
  g_autofree char *name = g_strdup_printf ("cudaemu:%d", n_devices++);
  g_autofree char *limit = g_strdup_printf ("%" G_GUINT64_FORMAT, memory);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) model = NULL;
  g_autoptr (EbbSavedTensorHooks) store = c->offload ? ebb_host_store_new () : NULL;
  g_autoptr (EbbTensor) tokens = NULL;
  g_autoptr (EbbOptimizer) optimizer = NULL;
  g_autoptr (EbbMemoryStats) stats = NULL;
  gint64 vocab;

  g_setenv ("EBB_CUDA_MEMORY", limit, TRUE);
  device = ebb_device_get (name, &error);
  g_assert_no_error (error);
  ebb_set_default_device (device);
  model = make_model (c, &vocab);
  tokens = ebb_randint (0, vocab, shape, 2, EBB_DTYPE_I64, device, NULL, &error);
  g_assert_no_error (error);
  if (c->checkpoint)
    wrap (c, model, store);
  optimizer = ebb_adamw_new (model, 1e-3, &error);
  g_assert_no_error (error);
  for (int i = 0; i < N_STEPS; i++)
    take_step (c, model, optimizer, tokens, store);
  stats = ebb_memory_get_stats (device);
  *peak = ebb_memory_stats_get_peak_total (stats);
  return ebb_memory_stats_get_reserved (stats);
}

/* In a process of its own, as some pinned memory stays for the next store.
 *
 * Where memory is plentiful, gaps between blocks keep theirs. Where it is short, they don't: a training runs in hardly
 * more than its peak. Its loss takes larger chunks on a larger device, so the peak is one of a device that is short of
 * memory as well. */
static void
little_is_taken_beyond_what_is_counted (gconstpointer data)
{
  const Case *c = data;
  guint64 peak, short_peak, peak_at_limit, taken, limit;

  if (!g_test_subprocess ())
    {
      g_test_trap_subprocess (NULL, 0, G_TEST_SUBPROCESS_DEFAULT);
      g_test_trap_assert_passed ();
      return;
    }
  taken = train (c, MEMORY, &peak);
  g_test_message ("%.1f MiB at most, %.4f of it taken", (double) peak / (1 << 20), (double) taken / (double) peak);
  g_assert_cmpfloat ((double) taken, <=, (double) peak * MOST_OF_PLENTY);
  train (c, peak + peak / 16, &short_peak);
  limit = (guint64) ((double) short_peak * MOST_OF_DEVICE);
  taken = train (c, limit, &peak_at_limit);
  g_test_message ("%.1f MiB at most where memory is short, %.4f of it taken", (double) peak_at_limit / (1 << 20),
                  (double) taken / (double) peak_at_limit);
  g_assert_cmpuint (peak_at_limit, <=, short_peak);
  g_assert_cmpuint (taken, <=, limit + ((guint64) 2 << 20));
}

/* Batches of ever other lengths: what stores gave back and what the backend keeps are bounded together. */
static void
lengths_that_differ_pin_little (void)
{
  g_autoptr (EbbSavedTensorHooks) store = NULL;
  g_autoptr (GRand) rand = g_rand_new_with_seed (3);
  guint64 most = 0, pinned = 0;

  if (!g_test_subprocess ())
    {
      g_test_trap_subprocess (NULL, 0, G_TEST_SUBPROCESS_DEFAULT);
      g_test_trap_assert_passed ();
      return;
    }
  device = ebb_device_get ("cudaemu", NULL);
  store = ebb_host_store_new ();
  for (guint i = 0; i < 40; i++)
    {
      const gint64 shape[] = { g_rand_int_range (rand, 1500, 6000), i < 20 ? 1024 : 4096 };
      EbbHandle *handles[10];

      for (guint k = 0; k < G_N_ELEMENTS (handles); k++)
        {
          g_autoptr (EbbTensor) tensor = ebb_zeros (shape, 2, EBB_DTYPE_F32, device, NULL);

          handles[k] = ebb_saved_tensor_hooks_pack (store, tensor, NULL);
          g_assert_nonnull (handles[k]);
        }
      most = MAX (most, ebb_activation_store_get_bytes_held (EBB_ACTIVATION_STORE (store)));
      device->backend->get_taken (device->index, NULL, &pinned);
      g_assert_cmpuint (pinned, <=, MAX (most + ((guint64) 96 << 20), (guint64) ((double) most * MOST_OF_HOST)));
      for (guint k = 0; k < G_N_ELEMENTS (handles); k++)
        ebb_handle_unref (handles[k]);
    }
  g_test_message ("%.1f MiB in the store at most, %.4f of it pinned", (double) most / (1 << 20),
                  (double) pinned / (double) most);
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_setenv ("EBB_CUDAEMU_IDLE", "1", TRUE);
  g_setenv ("EBB_CUDAEMU_MEMORY", "64G", TRUE);
  g_setenv ("EBB_CUDAEMU_DEVICES", "16", TRUE);
  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_autofree char *path = g_strdup_printf ("/cuda/memory/%s", cases[i].name);

      g_test_add_data_func (path, &cases[i], little_is_taken_beyond_what_is_counted);
    }
  g_test_add_func ("/cuda/memory/lengths-that-differ-pin-little", lengths_that_differ_pin_little);
  return g_test_run ();
}
