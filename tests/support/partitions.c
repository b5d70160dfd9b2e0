/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/partitions.h"

#include "support/stores.h"
#include "support/tensors.h"

const char *const test_behind_names[TEST_N_BEHIND] = { "nothing", "keep", "host",
                                                       "disk", "contiguous", "contiguous-host",
                                                       "contiguous-disk" };

/* -- stores -------------------------------------------------------------------------------------------------------- */

static EbbSavedTensorHooks *
contiguous_new (EbbSavedTensorHooks *next)
{
  GError *error = NULL;
  EbbSavedTensorHooks *store = ebb_contiguous_store_new (TEST_PARTITION_BLOCKS, (EbbActivationStore *) next, &error);

  g_assert_no_error (error);
  g_object_set (store, "grow", TRUE, NULL);
  g_clear_object (&next);
  return store;
}

static EbbSavedTensorHooks *
next_new (TestBehind behind)
{
  switch (behind)
    {
    case TEST_BEHIND_KEEP: return ebb_keep_store_new ();
    case TEST_BEHIND_HOST: return ebb_host_store_new ();
    case TEST_BEHIND_DISK: return test_disk_store_new (g_get_tmp_dir ());
    case TEST_BEHIND_CONTIGUOUS: return contiguous_new (NULL);
    case TEST_BEHIND_CONTIGUOUS_HOST: return contiguous_new (ebb_host_store_new ());
    case TEST_BEHIND_CONTIGUOUS_DISK: return contiguous_new (test_disk_store_new (g_get_tmp_dir ()));
    default: return NULL;
    }
}

EbbSavedTensorHooks *
test_partitioned_store_new (EbbProcessGroup *group,
                            TestBehind behind)
{
  g_autoptr (EbbSavedTensorHooks) next = next_new (behind);
  GError *error = NULL;
  EbbSavedTensorHooks *store = ebb_partitioned_store_new (group, (EbbActivationStore *) next, &error);

  g_assert_no_error (error);
  g_object_set (store, "least-size", (guint64) 1, NULL);
  return store;
}

/* -- a store that is watched --------------------------------------------------------------------------------------- */

typedef struct
{
  EbbActivationStore parent_instance;
  guint failing_get, n_gets, n_prefetched;
} TestWatchedStore;

typedef struct
{
  EbbActivationStoreClass parent_class;
} TestWatchedStoreClass;

static GType test_watched_store_get_type (void);

G_DEFINE_TYPE (TestWatchedStore, test_watched_store, EBB_TYPE_ACTIVATION_STORE)

static EbbTensor *
test_watched_store_get (EbbActivationStore *store,
                        EbbHandle *handle,
                        GError **error)
{
  TestWatchedStore *self = (TestWatchedStore *) store;

  if (++self->n_gets != self->failing_get)
    return EBB_ACTIVATION_STORE_CLASS (test_watched_store_parent_class)->get (store, handle, error);
  g_set_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY, "no room for get %u", self->n_gets);
  return NULL;
}

static void
test_watched_store_prefetch (EbbActivationStore *store,
                             EbbHandle *handle)
{
  ((TestWatchedStore *) store)->n_prefetched++;
}

static void
test_watched_store_class_init (TestWatchedStoreClass *klass)
{
  EBB_ACTIVATION_STORE_CLASS (klass)->get = test_watched_store_get;
  EBB_ACTIVATION_STORE_CLASS (klass)->prefetch = test_watched_store_prefetch;
}

static void
test_watched_store_init (TestWatchedStore *self)
{
}

EbbSavedTensorHooks *
test_watched_store_new (guint failing_get)
{
  TestWatchedStore *self = g_object_new (test_watched_store_get_type (), NULL);

  self->failing_get = failing_get;
  return EBB_SAVED_TENSOR_HOOKS (self);
}

guint
test_watched_store_get_n_prefetched (EbbSavedTensorHooks *store)
{
  return ((TestWatchedStore *) store)->n_prefetched;
}

/* -- blocks -------------------------------------------------------------------------------------------------------- */

static void
append (EbbModule *sequential,
        EbbModule *module)
{
  g_autoptr (GError) error = NULL;

  g_assert_nonnull (module);
  ebb_sequential_append (EBB_SEQUENTIAL (sequential), module, &error);
  g_assert_no_error (error);
  g_object_unref (module);
}

EbbModule *
test_partition_block_new (guint seed)
{
  EbbModule *block = ebb_sequential_new ();

  ebb_manual_seed (seed);
  append (block, ebb_linear_new (TEST_PARTITION_WIDTH, TEST_PARTITION_WIDTH, TRUE, NULL));
  append (block, ebb_dropout_new (0.2, NULL));
  append (block, ebb_mlp_new (TEST_PARTITION_WIDTH, 2 * TEST_PARTITION_WIDTH, EBB_ACTIVATION_GELU_TANH, NULL));
  return block;
}

EbbCheckpointOptions *
test_partition_options_new (EbbSavedTensorHooks *store)
{
  EbbCheckpointOptions *options = ebb_checkpoint_options_new ();

  ebb_checkpoint_options_set_store (options, store);
  return options;
}

EbbModule *
test_partition_model_new (EbbCheckpointOptions *options)
{
  EbbModule *model = ebb_sequential_new ();

  for (guint i = 0; i < TEST_PARTITION_BLOCKS; i++)
    {
      EbbModule *block = test_partition_block_new (i);

      if (options != NULL)
        g_object_unref (ebb_checkpoint_wrapper (block, options, NULL));
      append (model, block);
    }
  return model;
}

EbbTensor *
test_partition_input (guint seed)
{
  return test_randn (seed, 5, 7, TEST_PARTITION_WIDTH, -1);
}

EbbTensor *
test_partition_forward (EbbModule *model,
                        EbbTensor *input,
                        GError **error)
{
  g_autoptr (EbbTensor) output = NULL;
  g_autoptr (EbbTensor) squares = NULL;

  ebb_manual_seed (29);
  output = ebb_module_call1 (model, input, error);
  squares = output != NULL ? ebb_mul (output, output, error) : NULL;
  return squares != NULL ? ebb_mean (squares, NULL, 0, FALSE, error) : NULL;
}

void
test_partition_assert_same_grads (EbbModule *a,
                                  EbbModule *b)
{
  guint n, m;
  g_autofree EbbTensor **ours = ebb_module_get_parameters (a, TRUE, &n);
  g_autofree EbbTensor **theirs = ebb_module_get_parameters (b, TRUE, &m);

  g_assert_cmpuint (n, ==, m);
  for (guint i = 0; i < n; i++)
    {
      g_autoptr (EbbTensor) one = ebb_tensor_get_grad (ours[i]);
      g_autoptr (EbbTensor) other = ebb_tensor_get_grad (theirs[i]);

      g_assert_true (one != NULL && other != NULL && ebb_tensor_equal (one, other));
      ebb_tensor_unref (ours[i]);
      ebb_tensor_unref (theirs[i]);
    }
  ebb_module_zero_grad (a);
  ebb_module_zero_grad (b);
}
