/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/stores.h"
#include "support/tensors.h"

#include <glib/gstdio.h>

/* Two threads train a model each, on a device each, and put activations into stores of their own and into one that they
 * share. Each does to the bit what it does alone. */

#define N_STEPS 12
#define WIDTH 16
#define N_BLOCKS 4

typedef enum
{
  HOST,
  DISK,
  CONTIGUOUS,
  COMPRESSED,
  N_KINDS
} Kind;

static const char *const kind_names[N_KINDS] = { "host", "disk", "contiguous", "compressed" };

typedef struct
{
  EbbDevice *device;
  guint64 seed;
  EbbSavedTensorHooks *own, *shared;
  pthread_barrier_t *start; /* NULL: alone */
  GPtrArray *seen;          /* losses, then parameters */
} Training;

static char *scratch;

static EbbSavedTensorHooks *
make_store (Kind kind)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbSavedTensorHooks) next = NULL;
  EbbSavedTensorHooks *store = NULL;

  switch (kind)
    {
    case HOST: store = ebb_host_store_new (); break;
    case DISK: store = ebb_disk_store_new (scratch, &error); break;
    case CONTIGUOUS:
      next = ebb_host_store_new ();
      store = ebb_contiguous_store_new (N_BLOCKS, EBB_ACTIVATION_STORE (next), &error);
      g_assert_no_error (error);
      ebb_contiguous_store_set_grow (EBB_CONTIGUOUS_STORE (store), TRUE);
      break;
    case COMPRESSED:
      next = ebb_host_store_new ();
      store = ebb_compressed_store_new (EBB_ACTIVATION_STORE (next), &error);
      break;
    case N_KINDS: g_assert_not_reached ();
    }
  g_assert_no_error (error);
  ebb_activation_store_set_least_size (EBB_ACTIVATION_STORE (store), 1);
  return store;
}

/* Every second block's input goes to the shared store; one block recomputes nothing. */
static EbbModule *
make_model (Training *self)
{
  EbbModule *model = ebb_sequential_new ();
  g_autoptr (GError) error = NULL;

  for (guint i = 0; i < N_BLOCKS; i++)
    {
      g_autoptr (EbbModule) block = ebb_transformer_block_new (WIDTH, 2, 0.1, TRUE, TRUE, &error);
      g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
      EbbSavedTensorHooks *store = i % 2 ? self->shared : self->own;

      ebb_checkpoint_options_set_store (options, store);
      ebb_sequential_append (EBB_SEQUENTIAL (model), block, &error);
      if (i == 2)
        g_object_unref (ebb_offload_wrapper (block, self->shared, &error));
      else
        g_object_unref (ebb_checkpoint_wrapper (block, options, &error));
      g_assert_no_error (error);
    }
  return model;
}

static void
train_step (Training *self,
            EbbModule *model,
            EbbOptimizer *optimizer)
{
  const gint64 shape[] = { 2, 6, WIDTH };
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) x = ebb_randn (shape, 3, EBB_DTYPE_F32, NULL, NULL, &error);
  g_autoptr (EbbTensor) y = ebb_module_call1 (model, x, &error);
  g_autoptr (EbbTensor) square = ebb_square (y, &error);
  g_autoptr (EbbTensor) loss = ebb_mean (square, NULL, 0, FALSE, &error);

  ebb_tensor_backward (loss, &error);
  g_assert_no_error (error);
  ebb_optimizer_step (optimizer, &error);
  g_assert_no_error (error);
  ebb_optimizer_zero_grad (optimizer);
  g_ptr_array_add (self->seen, ebb_tensor_detach (loss));
}

static void *
train (void *data)
{
  Training *self = data;
  g_autoptr (EbbModule) model = NULL;
  g_autoptr (EbbOptimizer) optimizer = NULL;
  g_autofree EbbTensor **parameters = NULL;
  guint n;

  ebb_set_default_device (self->device);
  ebb_set_num_threads (1);
  ebb_manual_seed (self->seed);
  model = make_model (self);
  optimizer = ebb_adamw_new (model, 1e-2, NULL);
  if (self->start != NULL)
    pthread_barrier_wait (self->start);
  for (guint i = 0; i < N_STEPS; i++)
    train_step (self, model, optimizer);
  parameters = ebb_module_get_parameters (model, TRUE, &n);
  for (guint i = 0; i < n; i++)
    g_ptr_array_add (self->seen, parameters[i]);
  return NULL;
}

static void
training_init (Training *self,
               guint index,
               Kind own,
               EbbSavedTensorHooks *shared,
               pthread_barrier_t *start)
{
  g_autofree char *name = g_strdup_printf ("sim:%u", index + 1);
  g_autoptr (GError) error = NULL;

  *self = (Training){ .seed = 5 + index, .own = make_store (own), .shared = shared, .start = start };
  self->device = ebb_device_get (name, &error);
  g_assert_no_error (error);
  self->seen = g_ptr_array_new_with_free_func ((GDestroyNotify) ebb_tensor_unref);
}

static void
training_clear (Training *self)
{
  g_autoptr (EbbMemoryStats) stats = NULL;

  g_assert_cmpuint (test_held (self->own), ==, 0);
  g_assert_cmpuint (ebb_activation_store_get_n_packed (EBB_ACTIVATION_STORE (self->own)), >, 0);
  g_object_unref (self->own);
  g_ptr_array_unref (self->seen);
  stats = ebb_memory_get_stats (self->device);
  g_assert_cmpuint (ebb_memory_stats_get_current (stats, EBB_PURPOSE_ACTIVATION), ==, 0);
}

static void
assert_same (const Training *a,
             const Training *b)
{
  g_assert_cmpuint (a->seen->len, ==, b->seen->len);
  for (guint i = 0; i < a->seen->len; i++)
    g_assert_true (ebb_tensor_equal (g_ptr_array_index (a->seen, i), g_ptr_array_index (b->seen, i)));
}

static void
each_does_what_it_does_alone (gconstpointer data)
{
  const Kind kind = (Kind) GPOINTER_TO_UINT (data);
  g_autoptr (EbbSavedTensorHooks) shared = make_store (kind);
  Training alone[2], together[2];
  pthread_barrier_t start;
  pthread_t threads[2];

  pthread_barrier_init (&start, NULL, 2);
  for (guint i = 0; i < 2; i++)
    {
      Kind own = i == 0 ? HOST : DISK;

      training_init (&alone[i], i, own, shared, NULL);
      train (&alone[i]);
      training_init (&together[i], i, own, shared, &start);
    }
  ebb_set_default_device (NULL);
  for (guint i = 0; i < 2; i++)
    g_assert_cmpint (pthread_create (&threads[i], NULL, train, &together[i]), ==, 0);
  for (guint i = 0; i < 2; i++)
    pthread_join (threads[i], NULL);
  g_assert_cmpuint (test_held (shared), ==, 0);
  for (guint i = 0; i < 2; i++)
    assert_same (&alone[i], &together[i]);
  if (EBB_IS_CONTIGUOUS_STORE (shared))
    ebb_contiguous_store_reset (EBB_CONTIGUOUS_STORE (shared));
  for (guint i = 0; i < 2; i++)
    {
      training_clear (&alone[i]);
      training_clear (&together[i]);
    }
  pthread_barrier_destroy (&start);
}

int
main (int argc,
      char **argv)
{
  int status;

  g_test_init (&argc, &argv, NULL);
  scratch = g_dir_make_tmp ("ebb-threads-XXXXXX", NULL);
  g_assert_nonnull (scratch);
  for (guint kind = 0; kind < N_KINDS; kind++)
    {
      g_autofree char *path = g_strdup_printf ("/store-threads/each-does-what-it-does-alone/%s", kind_names[kind]);

      g_test_add_data_func (path, GUINT_TO_POINTER (kind), each_does_what_it_does_alone);
    }
  status = g_test_run ();
  g_assert_cmpint (g_rmdir (scratch), ==, 0); /* nothing is left in it */
  g_free (scratch);
  return status;
}
