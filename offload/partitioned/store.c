/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "offload/partitioned/store.h"

#include "dist/group/process-group-private.h"
#include "offload/partitioned/block-private.h"
#include "tensor/error-private.h"
#include "tensor/tensor-private.h"
#include "tensor/thread-private.h"

#include <gio/gio.h>

/**
 * EbbPartitionedStore:
 *
 * Keeps one rank's shard of each tensor, for tensors that are the same on all ranks of a group: the inputs of
 * checkpointed blocks under tensor parallelism. Of n elements on N ranks each rank keeps n / N, rounded up at most, and
 * up to 32 more to compare. When backward asks for the tensor the ranks gather it (one all_gather), overlapped with
 * computing if it was prefetched. Tensors that the same outermost module call has put are prefetched, see
 * #EbbActivationStore:prefetch; for functions that are checkpointed outside of any module's call nothing is gathered
 * ahead.
 *
 * Each rank of the group has its own such store and runs the same program: all ranks put the same tensors and request
 * them in the same order. If a rank requests another tensor, none, or lacks memory, all fail with
 * %EBB_ERROR_PROCESS_GROUP. Dropping a graph, a handle or a tensor that was brought back communicates nothing: a rank
 * may keep those of other module calls, and any tensor, for any time.
 *
 * A local shard, such as the input of a sequence-parallel block, can't be divided once more: as an input of a
 * checkpoint it is an error (%EBB_ERROR_INVALID_ARGUMENT), any other one is kept full. So are integers and masks,
 * results that a checkpoint's policy saves, of which one rank may ask for fewer than another, and tensors of so few
 * elements that a shard with its sample would not be smaller, or of fewer than #EbbPartitionedStore:least-elements. A
 * filter, ebb_activation_store_set_filter(), leaves a tensor where it is.
 *
 * The shards go to the next store (a contiguous, host, disk or keep store), or stay on the tensor's device.
 * A shard that the next store can't take goes to its fallback or to this one's; one rank may do so while others don't.
 * In a group of one rank tensors are kept full. The bytes held are those that this rank keeps, and gathered tensors
 * until they are asked for.
 */
struct _EbbPartitionedStore
{
  EbbActivationStore parent_instance;

  EbbPartitionState partition;
  guint64 least_elements;
  EbbPartitionCheck check;
};

static void ebb_partitioned_store_initable_init (GInitableIface *iface);

G_DEFINE_FINAL_TYPE_WITH_CODE (EbbPartitionedStore,
                               ebb_partitioned_store,
                               EBB_TYPE_ACTIVATION_STORE,
                               G_IMPLEMENT_INTERFACE (G_TYPE_INITABLE, ebb_partitioned_store_initable_init))

G_DEFINE_ENUM_TYPE (EbbPartitionCheck,
                    ebb_partition_check,
                    G_DEFINE_ENUM_VALUE (EBB_PARTITION_CHECK_NONE, "none"),
                    G_DEFINE_ENUM_VALUE (EBB_PARTITION_CHECK_SAMPLE, "sample"),
                    G_DEFINE_ENUM_VALUE (EBB_PARTITION_CHECK_VALUES, "values"))

/* -- packing ------------------------------------------------------------------------------------------------------- */

static gboolean
is_for_checkpoint (void)
{
  return ebb_modes.saving != NULL && g_str_equal (ebb_modes.saving->name, "checkpoint");
}

static gboolean
check_group (const EbbPartitionState *self,
             GError **error)
{
  return self->group != NULL
         || ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                      "partitioned store: group is missing; it must have the ranks that share tensors");
}

/* However small it is, so that no size decides whether a program works. */
static gboolean
check_apart (EbbPartitionedStore *self,
             EbbTensor *tensor,
             GError **error)
{
  GError *local = NULL;

  if (!tensor->is_local_shard || !ebb_dtype_is_floating_point (tensor->view.dtype) || tensor->is_parameter
      || tensor->is_buffer || ebb_is_stopped () || !is_for_checkpoint ()
      || ebb_process_group_get_size (self->partition.group) == 1)
    return TRUE;
  if (ebb_activation_store_passes_filter (EBB_ACTIVATION_STORE (self), tensor, &local))
    {
      g_autofree char *shape = ebb_tensor_shape_to_string (tensor);

      return ebb_fail (
          error, EBB_ERROR_INVALID_ARGUMENT,
          "partitioned store: %s %s is one rank's part already, not the same on the %u ranks of the group: "
          "under sequence parallelism leave partitioning out, or leave this tensor out by a filter; or checkpoint the "
          "block rather than the layer inside it",
          ebb_dtype_get_name (tensor->view.dtype), shape, ebb_process_group_get_size (self->partition.group));
    }
  if (local == NULL)
    return TRUE;
  g_propagate_error (error, local);
  return FALSE;
}

static EbbHandle *
ebb_partitioned_store_pack (EbbSavedTensorHooks *hooks,
                            EbbTensor *tensor,
                            GError **error)
{
  EbbPartitionedStore *self = EBB_PARTITIONED_STORE (hooks);

  return check_group (&self->partition, error) && check_apart (self, tensor, error)
             ? EBB_SAVED_TENSOR_HOOKS_CLASS (ebb_partitioned_store_parent_class)->pack (hooks, tensor, error)
             : NULL;
}

/* -- as a store ---------------------------------------------------------------------------------------------------- */

/* Without a group every put fails, rather than that nothing is stored. */
static gboolean
ebb_partitioned_store_moves (EbbActivationStore *store,
                             EbbDevice *device)
{
  EbbPartitionState *self = &EBB_PARTITIONED_STORE (store)->partition;

  return self->group == NULL || ebb_process_group_get_size (self->group) > 1
         || (self->next != NULL && EBB_ACTIVATION_STORE_GET_CLASS (self->next)->moves (self->next, device));
}

/* TRUE if even the largest rank's shard, with the sample behind it, is smaller than the full. */
static gboolean
is_smaller_in_shards (EbbTensor *tensor,
                      guint64 n_ranks,
                      gboolean is_sampled)
{
  const guint64 n = (guint64) tensor->n_elements;
  guint64 n_sampled;
  EbbView sample;

  ebb_partition_sample (&tensor->view, &sample);
  n_sampled = is_sampled ? (guint64) ebb_view_count_elements (&sample) : 0;
  return n / n_ranks + (n % n_ranks != 0) + n_sampled < n;
}

/* The tensor that @block is put for, if it is to be divided.
 *
 * Integers and masks are not: they are small, and the same wherever they come from; DeepSpeed and Megatron-LM divide
 * floating-point tensors alone. Results that a policy saves are not: a frame sees by addresses, which differ from rank
 * to rank, whether one was read and so will be asked for. Nor is a block that another store in front has made of a
 * tensor, since other ranks may have a different one. */
static EbbTensor *
find_divisible (EbbPartitionedStore *self,
                EbbTensor *block,
                EbbPartitionCheck check)
{
  const EbbPacking *packing = ebb_activation_store_get_packing ();
  const guint64 n_ranks = ebb_process_group_get_size (self->partition.group);
  EbbTensor *tensor = packing->store != NULL ? packing->tensor : NULL;

  if (tensor == NULL || tensor->storage != block->storage || tensor->is_local_shard
      || ebb_save_has_hint (EBB_SAVE_HINT_RESULT) || !ebb_dtype_is_floating_point (tensor->view.dtype))
    return NULL;
  if (packing->store != EBB_ACTIVATION_STORE (self) && tensor->n_elements != block->n_elements)
    return NULL;
  return n_ranks > 1 && (guint64) block->n_elements >= MAX (EBB_READ (self->least_elements), n_ranks)
                 && is_smaller_in_shards (tensor, n_ranks, check != EBB_PARTITION_CHECK_NONE)
             ? tensor
             : NULL;
}

static EbbHandle *
ebb_partitioned_store_put (EbbActivationStore *store,
                           EbbTensor *block,
                           GError **error)
{
  EbbPartitionedStore *self = EBB_PARTITIONED_STORE (store);
  const EbbPartitionCheck check =
      ebb_save_has_hint (EBB_SAVE_HINT_COMPARE_VALUES) ? EBB_PARTITION_CHECK_VALUES : EBB_READ (self->check);
  EbbTensor *tensor;

  if (!check_group (&self->partition, error))
    return NULL;
  tensor = find_divisible (self, block, check);
  if (tensor != NULL && check == EBB_PARTITION_CHECK_VALUES
      && !ebb_partition_compare_values (self->partition.group, tensor, error))
    return NULL;
  if (tensor != NULL)
    ebb_activation_store_note_sharded ();
  return tensor != NULL ? ebb_partitioned_block_new (store, &self->partition, block, tensor,
                                                     check != EBB_PARTITION_CHECK_NONE, error)
                        : ebb_partitioned_block_new_full (store, &self->partition, block, error);
}

static gboolean
ebb_partitioned_store_synchronize (EbbActivationStore *store,
                                   GError **error)
{
  EbbPartitionState *self = &EBB_PARTITIONED_STORE (store)->partition;

  if (self->group != NULL)
    ebb_process_group_flush (self->group);
  return self->next == NULL || ebb_activation_store_synchronize (self->next, error);
}

static void
ebb_partitioned_store_reset_stats (EbbActivationStore *store)
{
  EbbPartitionState *self = &EBB_PARTITIONED_STORE (store)->partition;

  EBB_AUTO_LOCK (&self->lock);
  self->n_partitioned = self->n_gathers = 0;
}

/* -- object -------------------------------------------------------------------------------------------------------- */

static gboolean
ebb_partitioned_store_initable_init_instance (GInitable *initable,
                                              GCancellable *cancellable,
                                              GError **error)
{
  EbbPartitionState *self = &EBB_PARTITIONED_STORE (initable)->partition;

  if (!check_group (self, error))
    return FALSE;
  return !EBB_IS_PARTITIONED_STORE (self->next)
         || ebb_fail (error, EBB_ERROR_NOT_SUPPORTED,
                      "partitioned store: next is an EbbPartitionedStore, which would divide shards once more, but "
                      "these differ among its ranks; it must be a store of another kind, or null");
}

static void
ebb_partitioned_store_initable_init (GInitableIface *iface)
{
  iface->init = ebb_partitioned_store_initable_init_instance;
}

/* Counters are fields too, but under the lock. */
static void
ebb_partitioned_store_get_property (GObject *object,
                                    guint id,
                                    GValue *value,
                                    GParamSpec *pspec)
{
  EbbPartitionState *self = &EBB_PARTITIONED_STORE (object)->partition;

  EBB_AUTO_LOCK (&self->lock);
  ebb_setting_get_property (object, id, value, pspec);
}

static void
ebb_partitioned_store_finalize (GObject *object)
{
  EbbPartitionState *self = &EBB_PARTITIONED_STORE (object)->partition;

  pthread_mutex_destroy (&self->lock);
  g_clear_object (&self->next);
  g_clear_object (&self->group);
  G_OBJECT_CLASS (ebb_partitioned_store_parent_class)->finalize (object);
}

static void
install_settings (GObjectClass *klass)
{
  const GParamFlags flags = G_PARAM_READWRITE | G_PARAM_STATIC_STRINGS;

  /**
   * EbbPartitionedStore:group:
   *
   * The ranks that share tensors, as those of a tensor-parallel model.
   */
  g_object_class_install_property (
      klass, offsetof (EbbPartitionedStore, partition.group),
      g_param_spec_object ("group", NULL, NULL, EBB_TYPE_PROCESS_GROUP, flags | G_PARAM_CONSTRUCT_ONLY));
  /**
   * EbbPartitionedStore:next:
   *
   * Where the shards go. None: they stay on the device of the tensors.
   */
  g_object_class_install_property (
      klass, offsetof (EbbPartitionedStore, partition.next),
      g_param_spec_object ("next", NULL, NULL, EBB_TYPE_ACTIVATION_STORE, flags | G_PARAM_CONSTRUCT_ONLY));
  /**
   * EbbPartitionedStore:least-elements:
   *
   * Tensors of fewer elements are kept full, as those that would not be smaller in shards always are. The same on all
   * ranks. Tensors below #EbbActivationStore:least-size stay where they are before that.
   */
  g_object_class_install_property (
      klass, offsetof (EbbPartitionedStore, least_elements),
      g_param_spec_uint64 ("least-elements", NULL, NULL, 0, G_MAXUINT64, 0, flags | G_PARAM_EXPLICIT_NOTIFY));
  /**
   * EbbPartitionedStore:check:
   *
   * How tensors are compared between the ranks; the same on all ranks. The inputs of a checkpoint that checks values
   * (%EBB_DETERMINISM_CHECK_VALUES) are compared by values, whatever this is.
   */
  g_object_class_install_property (klass, offsetof (EbbPartitionedStore, check),
                                   g_param_spec_enum ("check", NULL, NULL, EBB_TYPE_PARTITION_CHECK,
                                                      EBB_PARTITION_CHECK_SAMPLE, flags | G_PARAM_EXPLICIT_NOTIFY));
}

static void
install_counters (GObjectClass *klass)
{
  const GParamFlags flags = G_PARAM_READABLE | G_PARAM_STATIC_STRINGS;

  /**
   * EbbPartitionedStore:bytes-full:
   *
   * Bytes of the tensors of which shards are held now.
   */
  g_object_class_install_property (klass, offsetof (EbbPartitionedStore, partition.bytes_full),
                                   g_param_spec_uint64 ("bytes-full", NULL, NULL, 0, G_MAXUINT64, 0, flags));
  /**
   * EbbPartitionedStore:bytes-kept:
   *
   * Bytes of this rank's shards of them.
   */
  g_object_class_install_property (klass, offsetof (EbbPartitionedStore, partition.bytes_kept),
                                   g_param_spec_uint64 ("bytes-kept", NULL, NULL, 0, G_MAXUINT64, 0, flags));
  /**
   * EbbPartitionedStore:n-partitioned:
   *
   * How many tensors were put in shards so far.
   */
  g_object_class_install_property (klass, offsetof (EbbPartitionedStore, partition.n_partitioned),
                                   g_param_spec_uint64 ("n-partitioned", NULL, NULL, 0, G_MAXUINT64, 0, flags));
  /**
   * EbbPartitionedStore:n-gathers:
   *
   * How many gathers were begun so far.
   */
  g_object_class_install_property (klass, offsetof (EbbPartitionedStore, partition.n_gathers),
                                   g_param_spec_uint64 ("n-gathers", NULL, NULL, 0, G_MAXUINT64, 0, flags));
}

static void
ebb_partitioned_store_class_init (EbbPartitionedStoreClass *klass)
{
  EbbActivationStoreClass *store_class = EBB_ACTIVATION_STORE_CLASS (klass);
  GObjectClass *object_class = G_OBJECT_CLASS (klass);

  object_class->get_property = ebb_partitioned_store_get_property;
  object_class->set_property = ebb_setting_set_property;
  object_class->finalize = ebb_partitioned_store_finalize;
  EBB_SAVED_TENSOR_HOOKS_CLASS (klass)->pack = ebb_partitioned_store_pack;
  store_class->moves = ebb_partitioned_store_moves;
  store_class->put = ebb_partitioned_store_put;
  store_class->synchronize = ebb_partitioned_store_synchronize;
  store_class->reset_stats = ebb_partitioned_store_reset_stats;
  install_settings (object_class);
  install_counters (object_class);
}

static void
ebb_partitioned_store_init (EbbPartitionedStore *self)
{
  ebb_activation_store_set_shards (EBB_ACTIVATION_STORE (self));
  pthread_mutex_init (&self->partition.lock, NULL);
  EBB_WRITE (self->check, EBB_PARTITION_CHECK_SAMPLE);
}

/**
 * ebb_partitioned_store_new:
 * @group: the ranks that share tensors
 * @next: (nullable): where the shards go; %NULL: they stay on the device of the tensors
 * @error: return location for an error
 *
 * Makes a store that keeps one rank's part of each tensor. All ranks of @group make one; nothing is called for that.
 *
 * Returns: (transfer full) (type EbbPartitionedStore) (nullable): the store; %NULL with %EBB_ERROR_NOT_SUPPORTED if
 *   @next is a partitioned store
 */
EbbSavedTensorHooks *
ebb_partitioned_store_new (EbbProcessGroup *group,
                           EbbActivationStore *next,
                           GError **error)
{
  g_return_val_if_fail (next == NULL || EBB_IS_ACTIVATION_STORE (next), NULL);

  EBB_RETURN_UNLESS_BEGUN (NULL, error, group);
  return g_initable_new (EBB_TYPE_PARTITIONED_STORE, NULL, error, "group", group, "next", next, NULL);
}
