/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "offload/compressed/store.h"

#include "offload/compressed/compress-queue-private.h"
#include "offload/contiguous/store.h"
#include "offload/partitioned/store.h"
#include "tensor/error-private.h"

#include <gio/gio.h>

#define DEFAULT_STAGING (32ul << 20)

/**
 * EbbCompressedStore:
 *
 * Compresses activations on their way to another store: a keep store or a host store, which have them in host memory,
 * or a disk store.
 *
 * Every bit comes back. Of a float little else than sign and exponent can be compressed: the bytes of an array are
 * sorted by their place in the element, and those that gain nothing are stored as they are. A thread of the store
 * compresses beside computing, with zstd; it also decompresses ahead what backward will ask for. Only when asked
 * (`lossy`) numbers are rounded before that, with the largest relative error reported.
 *
 * What is put is first copied to staging memory, of which #EbbCompressedStore:staging-limit bytes are in use at most,
 * and goes to the next store when something that is put needs its place. So what was put last is still there when
 * backward asks for it first, and which memory is in use is the same in every run. Where the next store fails, the
 * tensor that is put is refused with its error, and the bytes stay in staging memory: nothing is lost.
 */
struct _EbbCompressedStore
{
  EbbActivationStore parent_instance;

  EbbActivationStore *next;
  EbbCompressQueue *queue; /* NULL while there is no next store */
  guint level;
  EbbLossy lossy;
  guint64 staging_limit;
};

enum
{
  PROP_NEXT = 1,
  PROP_LEVEL,
  PROP_LOSSY,
  PROP_STAGING_LIMIT,
  PROP_BYTES_RAW,
  PROP_BYTES_STORED,
  PROP_RATIO,
  PROP_LARGEST_ERROR,
  N_PROPS
};

static GParamSpec *properties[N_PROPS];

static void ebb_compressed_store_initable_init (GInitableIface *iface);

G_DEFINE_FINAL_TYPE_WITH_CODE (EbbCompressedStore,
                               ebb_compressed_store,
                               EBB_TYPE_ACTIVATION_STORE,
                               G_IMPLEMENT_INTERFACE (G_TYPE_INITABLE, ebb_compressed_store_initable_init))

GType
ebb_lossy_get_type (void)
{
  static gsize type = 0;

  if (g_once_init_enter (&type))
    {
      static const GEnumValue values[] = { { EBB_LOSSY_NONE, "EBB_LOSSY_NONE", "none" },
                                           { EBB_LOSSY_BF16, "EBB_LOSSY_BF16", "bf16" },
                                           { 0, NULL, NULL } };

      g_once_init_leave (&type, g_enum_register_static ("EbbLossy", values));
    }
  return type;
}

/* -- as a store ---------------------------------------------------------------------------------------------------- */

/* No two compressed tensors need be of one size, so side by side they can't be kept; nor compressed once more; nor by
 * ranks in pieces, which comes before compressing. */
static gboolean
check (EbbCompressedStore *self,
       GError **error)
{
  if (self->next == NULL)
    {
      g_set_error_literal (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                           "compressed store: next is missing: must be the store that compressed bytes go to, as an "
                           "EbbHostStore or EbbDiskStore");
      return FALSE;
    }
  if (!EBB_IS_CONTIGUOUS_STORE (self->next) && !EBB_IS_COMPRESSED_STORE (self->next)
      && !EBB_IS_PARTITIONED_STORE (self->next))
    return TRUE;
  g_set_error (error, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED,
               "compressed store: next is an %s, which can't take compressed bytes: must be a store of tensors of any "
               "size, as EbbHostStore and EbbDiskStore",
               G_OBJECT_TYPE_NAME (self->next));
  return FALSE;
}

static EbbHandle *
ebb_compressed_store_put (EbbActivationStore *store,
                          EbbTensor *block,
                          GError **error)
{
  EbbCompressedStore *self = EBB_COMPRESSED_STORE (store);
  EbbCompressRecord *record;
  gboolean is_rounded;

  if (!check (self, error) || !ebb_compress_queue_start (self->queue, error))
    return NULL;
  is_rounded = EBB_READ (self->lossy) == EBB_LOSSY_BF16;
  record = ebb_compress_record_new (self->queue, block, EBB_READ (self->level), is_rounded,
                                    EBB_READ (self->staging_limit), error);
  ebb_compress_queue_count_seconds (self->queue);
  return record != NULL ? ebb_handle_new_for_data (record, (GDestroyNotify) ebb_compress_record_free) : NULL;
}

static EbbTensor *
ebb_compressed_store_get (EbbActivationStore *store,
                          EbbHandle *handle,
                          GError **error)
{
  EbbCompressedStore *self = EBB_COMPRESSED_STORE (store);
  EbbTensor *block;

  if (!ebb_compress_queue_start (self->queue, error))
    return NULL;
  block = ebb_compress_record_get (ebb_handle_get_data (handle), error);
  ebb_compress_queue_count_seconds (self->queue);
  return block;
}

static void
ebb_compressed_store_prefetch (EbbActivationStore *store,
                               EbbHandle *handle)
{
  ebb_compress_record_prefetch (ebb_handle_get_data (handle));
}

static gboolean
ebb_compressed_store_synchronize (EbbActivationStore *store,
                                  GError **error)
{
  EbbCompressedStore *self = EBB_COMPRESSED_STORE (store);
  gboolean ok;

  if (self->queue == NULL)
    return TRUE;
  ok = ebb_compress_queue_start (self->queue, error) && ebb_compress_queue_flush (self->queue, error)
       && ebb_activation_store_synchronize (self->next, error);
  ebb_compress_queue_count_seconds (self->queue);
  return ok;
}

static void
ebb_compressed_store_reset_stats (EbbActivationStore *store)
{
  EbbCompressQueue *queue = EBB_COMPRESSED_STORE (store)->queue;

  if (queue == NULL)
    return;
  pthread_mutex_lock (&queue->worker.lock);
  queue->bytes_raw = queue->bytes_stored = 0;
  queue->worst = 0;
  queue->worker.moving = queue->worker.waited = 0;
  pthread_mutex_unlock (&queue->worker.lock);
}

/* -- object -------------------------------------------------------------------------------------------------------- */

static gboolean
ebb_compressed_store_initable_init_instance (GInitable *initable,
                                             GCancellable *cancellable,
                                             GError **error)
{
  return check (EBB_COMPRESSED_STORE (initable), error);
}

static void
ebb_compressed_store_initable_init (GInitableIface *iface)
{
  iface->init = ebb_compressed_store_initable_init_instance;
}

static void
set_next (EbbCompressedStore *self,
          EbbActivationStore *next)
{
  if (next == NULL)
    return;
  self->next = g_object_ref (next);
  self->queue = ebb_compress_queue_new (EBB_ACTIVATION_STORE (self), next);
}

static void
ebb_compressed_store_get_property (GObject *object,
                                   guint id,
                                   GValue *value,
                                   GParamSpec *pspec)
{
  EbbCompressedStore *self = EBB_COMPRESSED_STORE (object);

  switch (id)
    {
    case PROP_NEXT:
      g_value_set_object (value, self->next);
      break;
    case PROP_LEVEL:
      g_value_set_uint (value, EBB_READ (self->level));
      break;
    case PROP_LOSSY:
      g_value_set_enum (value, (gint) EBB_READ (self->lossy));
      break;
    case PROP_STAGING_LIMIT:
      g_value_set_uint64 (value, EBB_READ (self->staging_limit));
      break;
    case PROP_BYTES_RAW:
      g_value_set_uint64 (value, ebb_compressed_store_get_bytes_raw (self));
      break;
    case PROP_BYTES_STORED:
      g_value_set_uint64 (value, ebb_compressed_store_get_bytes_stored (self));
      break;
    case PROP_RATIO:
      g_value_set_double (value, ebb_compressed_store_get_ratio (self));
      break;
    case PROP_LARGEST_ERROR:
      g_value_set_double (value, ebb_compressed_store_get_largest_error (self));
      break;
    default:
      G_OBJECT_WARN_INVALID_PROPERTY_ID (object, id, pspec);
    }
}

static void
ebb_compressed_store_set_property (GObject *object,
                                   guint id,
                                   const GValue *value,
                                   GParamSpec *pspec)
{
  EbbCompressedStore *self = EBB_COMPRESSED_STORE (object);

  switch (id)
    {
    case PROP_NEXT:
      set_next (self, g_value_get_object (value));
      break;
    case PROP_LEVEL:
      ebb_compressed_store_set_level (self, g_value_get_uint (value));
      break;
    case PROP_LOSSY:
      ebb_compressed_store_set_lossy (self, (EbbLossy) g_value_get_enum (value));
      break;
    case PROP_STAGING_LIMIT:
      ebb_compressed_store_set_staging_limit (self, g_value_get_uint64 (value));
      break;
    default:
      G_OBJECT_WARN_INVALID_PROPERTY_ID (object, id, pspec);
    }
}

static void
ebb_compressed_store_finalize (GObject *object)
{
  EbbCompressedStore *self = EBB_COMPRESSED_STORE (object);

  g_clear_pointer (&self->queue, ebb_compress_queue_free);
  g_clear_object (&self->next);
  G_OBJECT_CLASS (ebb_compressed_store_parent_class)->finalize (object);
}

static void
install_settings (void)
{
  const GParamFlags flags = G_PARAM_READWRITE | G_PARAM_STATIC_STRINGS;

  /**
   * EbbCompressedStore:next:
   *
   * Where compressed bytes go, as tensors of u8 on the CPU.
   */
  properties[PROP_NEXT] =
      g_param_spec_object ("next", NULL, NULL, EBB_TYPE_ACTIVATION_STORE, flags | G_PARAM_CONSTRUCT_ONLY);
  /**
   * EbbCompressedStore:level:
   *
   * The level of zstd. 1 codes each byte by how frequent it is and looks for little else than runs of zeros; for
   * floats it is the fastest and the best. Others search for what repeats.
   */
  properties[PROP_LEVEL] =
      g_param_spec_uint ("level", NULL, NULL, 1, EBB_CODEC_MAX_LEVEL, 1, flags | G_PARAM_EXPLICIT_NOTIFY);
  /**
   * EbbCompressedStore:lossy:
   *
   * What may be lost: nothing at first.
   */
  properties[PROP_LOSSY] =
      g_param_spec_enum ("lossy", NULL, NULL, EBB_TYPE_LOSSY, EBB_LOSSY_NONE, flags | G_PARAM_EXPLICIT_NOTIFY);
  /**
   * EbbCompressedStore:staging-limit:
   *
   * How much host memory, in bytes, what is on the way to the next store may take.
   */
  properties[PROP_STAGING_LIMIT] = g_param_spec_uint64 (
      "staging-limit", NULL, NULL, 0, G_MAXUINT64, DEFAULT_STAGING, flags | G_PARAM_EXPLICIT_NOTIFY);
}

static void
install_counters (void)
{
  const GParamFlags flags = G_PARAM_READABLE | G_PARAM_STATIC_STRINGS;

  /**
   * EbbCompressedStore:bytes-raw:
   *
   * Bytes of the tensors that were compressed.
   */
  properties[PROP_BYTES_RAW] = g_param_spec_uint64 ("bytes-raw", NULL, NULL, 0, G_MAXUINT64, 0, flags);
  /**
   * EbbCompressedStore:bytes-stored:
   *
   * Bytes that were left of them.
   */
  properties[PROP_BYTES_STORED] = g_param_spec_uint64 ("bytes-stored", NULL, NULL, 0, G_MAXUINT64, 0, flags);
  /**
   * EbbCompressedStore:ratio:
   *
   * The former by the latter; 1 while nothing was compressed.
   */
  properties[PROP_RATIO] = g_param_spec_double ("ratio", NULL, NULL, 0, G_MAXDOUBLE, 1, flags);
  /**
   * EbbCompressedStore:largest-error:
   *
   * The largest relative error of a rounded number: at most 2^-8 of one that bf16 has the range for, 1 of one that
   * became 0, infinite of one that became infinite.
   */
  properties[PROP_LARGEST_ERROR] = g_param_spec_double ("largest-error", NULL, NULL, 0, G_MAXDOUBLE, 0, flags);
}

static void
ebb_compressed_store_class_init (EbbCompressedStoreClass *klass)
{
  EbbActivationStoreClass *store_class = EBB_ACTIVATION_STORE_CLASS (klass);
  GObjectClass *object_class = G_OBJECT_CLASS (klass);

  object_class->get_property = ebb_compressed_store_get_property;
  object_class->set_property = ebb_compressed_store_set_property;
  object_class->finalize = ebb_compressed_store_finalize;
  store_class->put = ebb_compressed_store_put;
  store_class->get = ebb_compressed_store_get;
  store_class->prefetch = ebb_compressed_store_prefetch;
  store_class->synchronize = ebb_compressed_store_synchronize;
  store_class->reset_stats = ebb_compressed_store_reset_stats;
  install_settings ();
  install_counters ();
  g_object_class_install_properties (object_class, N_PROPS, properties);
}

static void
ebb_compressed_store_init (EbbCompressedStore *self)
{
  EBB_WRITE (self->level, 1);
  EBB_WRITE (self->staging_limit, DEFAULT_STAGING);
}

/**
 * ebb_compressed_store_new:
 * @next: where compressed bytes go
 * @error: return location for an error
 *
 * Makes a store that compresses, without loss, what goes to @next.
 *
 * Returns: (transfer full) (type EbbCompressedStore) (nullable): the store; %NULL with %EBB_ERROR_NOT_SUPPORTED if
 *   @next is a contiguous, a compressed or a partitioned store
 */
EbbSavedTensorHooks *
ebb_compressed_store_new (EbbActivationStore *next,
                          GError **error)
{
  g_return_val_if_fail (next == NULL || EBB_IS_ACTIVATION_STORE (next), NULL);

  if (!EBB_MAY_BEGIN (error, next))
    return NULL;
  return g_initable_new (EBB_TYPE_COMPRESSED_STORE, NULL, error, "next", next, NULL);
}

/**
 * ebb_compressed_store_get_next:
 * @self: a compressed store
 *
 * Returns: (transfer none) (nullable): where compressed bytes go
 */
EbbActivationStore *
ebb_compressed_store_get_next (EbbCompressedStore *self)
{
  g_return_val_if_fail (EBB_IS_COMPRESSED_STORE (self), NULL);

  return self->next;
}

/**
 * ebb_compressed_store_get_level:
 * @self: a compressed store
 *
 * Returns: the level of zstd
 */
guint
ebb_compressed_store_get_level (EbbCompressedStore *self)
{
  g_return_val_if_fail (EBB_IS_COMPRESSED_STORE (self), 0);

  return EBB_READ (self->level);
}

/**
 * ebb_compressed_store_set_level:
 * @self: a compressed store
 * @level: 1 to 19, 1 at first
 *
 * Sets how hard zstd tries with what is put from now on; see #EbbCompressedStore:level.
 */
void
ebb_compressed_store_set_level (EbbCompressedStore *self,
                                guint level)
{
  g_return_if_fail (EBB_IS_COMPRESSED_STORE (self));
  g_return_if_fail (level >= 1 && level <= EBB_CODEC_MAX_LEVEL);

  if (EBB_READ (self->level) == level)
    return;
  EBB_WRITE (self->level, level);
  g_object_notify_by_pspec (G_OBJECT (self), properties[PROP_LEVEL]);
}

/**
 * ebb_compressed_store_get_lossy:
 * @self: a compressed store
 *
 * Returns: what may be lost
 */
EbbLossy
ebb_compressed_store_get_lossy (EbbCompressedStore *self)
{
  g_return_val_if_fail (EBB_IS_COMPRESSED_STORE (self), EBB_LOSSY_NONE);

  return EBB_READ (self->lossy);
}

/**
 * ebb_compressed_store_set_lossy:
 * @self: a compressed store
 * @lossy: what may be lost; nothing at first
 *
 * Sets what may be lost of that which is put from now on. Gradients then differ from those without the store.
 */
void
ebb_compressed_store_set_lossy (EbbCompressedStore *self,
                                EbbLossy lossy)
{
  g_return_if_fail (EBB_IS_COMPRESSED_STORE (self));
  g_return_if_fail ((guint) lossy <= EBB_LOSSY_BF16);

  if (EBB_READ (self->lossy) == lossy)
    return;
  EBB_WRITE (self->lossy, lossy);
  g_object_notify_by_pspec (G_OBJECT (self), properties[PROP_LOSSY]);
}

/**
 * ebb_compressed_store_get_staging_limit:
 * @self: a compressed store
 *
 * Returns: how many bytes of host memory may be in use on the way to the next store
 */
guint64
ebb_compressed_store_get_staging_limit (EbbCompressedStore *self)
{
  g_return_val_if_fail (EBB_IS_COMPRESSED_STORE (self), 0);

  return EBB_READ (self->staging_limit);
}

/**
 * ebb_compressed_store_set_staging_limit:
 * @self: a compressed store
 * @n_bytes: bytes of host memory, 32 MiB at first
 *
 * Sets how much host memory tensors may take on the way to the next store. With more of it compression can lag behind a
 * burst of tensors for longer, and more of what was put last need not be had back from there. A tensor that is larger
 * is stored before the call that puts it returns: with 0, each is.
 */
void
ebb_compressed_store_set_staging_limit (EbbCompressedStore *self,
                                        guint64 n_bytes)
{
  g_return_if_fail (EBB_IS_COMPRESSED_STORE (self));

  if (EBB_READ (self->staging_limit) == n_bytes)
    return;
  EBB_WRITE (self->staging_limit, n_bytes);
  g_object_notify_by_pspec (G_OBJECT (self), properties[PROP_STAGING_LIMIT]);
}

/* -- counters ------------------------------------------------------------------------------------------------------ */

static void
get_bytes (EbbCompressedStore *self,
           guint64 *raw,
           guint64 *stored)
{
  *raw = *stored = 0;
  if (self->queue == NULL)
    return;
  pthread_mutex_lock (&self->queue->worker.lock);
  *raw = self->queue->bytes_raw;
  *stored = self->queue->bytes_stored;
  pthread_mutex_unlock (&self->queue->worker.lock);
}

/**
 * ebb_compressed_store_get_bytes_raw:
 * @self: a compressed store
 *
 * What was dropped before its turn came was never compressed and does not count.
 *
 * Returns: the bytes of the tensors that were compressed so far
 */
guint64
ebb_compressed_store_get_bytes_raw (EbbCompressedStore *self)
{
  guint64 raw, stored;

  g_return_val_if_fail (EBB_IS_COMPRESSED_STORE (self), 0);

  get_bytes (self, &raw, &stored);
  return raw;
}

/**
 * ebb_compressed_store_get_bytes_stored:
 * @self: a compressed store
 *
 * Returns: the bytes that were left of them
 */
guint64
ebb_compressed_store_get_bytes_stored (EbbCompressedStore *self)
{
  guint64 raw, stored;

  g_return_val_if_fail (EBB_IS_COMPRESSED_STORE (self), 0);

  get_bytes (self, &raw, &stored);
  return stored;
}

/**
 * ebb_compressed_store_get_ratio:
 * @self: a compressed store
 *
 * Returns: how many bytes became one; 1 while nothing was compressed
 */
double
ebb_compressed_store_get_ratio (EbbCompressedStore *self)
{
  guint64 raw, stored;

  g_return_val_if_fail (EBB_IS_COMPRESSED_STORE (self), 0);

  get_bytes (self, &raw, &stored);
  return stored > 0 ? (double) raw / (double) stored : 1;
}

/**
 * ebb_compressed_store_get_largest_error:
 * @self: a compressed store
 *
 * Returns: the largest relative error of a number that was rounded, see #EbbCompressedStore:largest-error; 0 if none
 *   was
 */
double
ebb_compressed_store_get_largest_error (EbbCompressedStore *self)
{
  float worst = 0;

  g_return_val_if_fail (EBB_IS_COMPRESSED_STORE (self), 0);

  if (self->queue == NULL)
    return 0;
  pthread_mutex_lock (&self->queue->worker.lock);
  worst = self->queue->worst;
  pthread_mutex_unlock (&self->queue->worker.lock);
  return (double) worst;
}
