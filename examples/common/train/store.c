/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* --store: makes the activation store that the options describe, and describes what it did. */
#include "common/train/store.h"

#include <string.h>

#define MIB (1024.0 * 1024.0)

/* -- options ------------------------------------------------------------------------------------------------------- */

gboolean
store_has_file (const Options *options)
{
  return options->store_kind == STORE_DISK || options->store_kind == STORE_CONTIGUOUS_DISK
         || strcmp (options->store_fallback, "disk") == 0;
}

/* A contiguous store has parts of fixed sizes. */
static gboolean
takes_any_size (const Options *options)
{
  return options->store_kind == STORE_HOST || options->store_kind == STORE_DISK;
}

static gboolean
has_limit (const Options *options)
{
  return options->store_kind != STORE_KEEP && options->store_kind != STORE_CONTIGUOUS;
}

gboolean
store_check (const Options *options,
             GError **error)
{
  if (options->store_folder != NULL && !store_has_file (options))
    return options_refuse (error, "--store-folder %s: it needs --store disk, not %s", options->store_folder,
                           options->store);
  if (options->store_limit > 0 && !has_limit (options))
    return options_refuse (error, "--store-limit %s: it needs --store host or disk, not %s", options->store_limit_text,
                           options->store);
  if (strcmp (options->store_fallback, "none") != 0 && !takes_any_size (options))
    return options_refuse (error, "--store-fallback %s: it needs --store host or disk, not %s",
                           options->store_fallback, options->store);
  if (strcmp (options->store_fallback, options->store) == 0)
    return options_refuse (error, "--store-fallback %s: it must be another store than --store",
                           options->store_fallback);
  return TRUE;
}

EbbSavedTensorHooks *
store_for_plan (const Options *options,
                EbbSavedTensorHooks *store)
{
  const gboolean wraps =
      options->checkpoint_kind == CHECKPOINT_SELECTIVE || options->checkpoint_kind == CHECKPOINT_FULL;

  return options_have_plan (options) && !wraps && takes_any_size (options) ? store : NULL;
}

gboolean
store_leaves (const Options *options,
              EbbDevice *device)
{
  switch (options->store_kind)
    {
    case STORE_DISK:
    case STORE_CONTIGUOUS_DISK:
      return TRUE;
    case STORE_HOST:
    case STORE_CONTIGUOUS_HOST:
      return device != ebb_device_get_cpu ();
    default:
      return FALSE;
    }
}

/* -- making -------------------------------------------------------------------------------------------------------- */

static EbbSavedTensorHooks *
make_disk_store (const Options *options,
                 gboolean limited,
                 GError **error)
{
  EbbSavedTensorHooks *store = ebb_disk_store_new (options->store_folder, error);

  if (store != NULL && limited && options->store_limit > 0)
    g_object_set (store, "byte-limit", (guint64) options->store_limit, NULL);
  return store;
}

/* A tensor without room goes to the fallback at once: nothing else would make room. */
static EbbSavedTensorHooks *
make_host_store (const Options *options,
                 gboolean limited)
{
  EbbSavedTensorHooks *store = ebb_host_store_new ();

  g_object_set (store, "when-full", EBB_WHEN_FULL_SPILL, NULL);
  if (limited && options->store_limit > 0)
    g_object_set (store, "byte-limit", (guint64) options->store_limit, NULL);
  return store;
}

/* With full checkpointing each block keeps one input. What else is kept is of several sizes, of each as many as the
 * model happens to have. */
static EbbSavedTensorHooks *
make_contiguous_store (const Options *options,
                       EbbSavedTensorHooks *next,
                       GError **error)
{
  EbbSavedTensorHooks *store = ebb_contiguous_store_new (
      (guint) options->layers, next != NULL ? EBB_ACTIVATION_STORE (next) : NULL, error);

  if (store != NULL)
    g_object_set (store, "grow", options->checkpoint_kind != CHECKPOINT_FULL, NULL);
  return store;
}

static EbbSavedTensorHooks *
make_store (const Options *options,
            GError **error)
{
  g_autoptr (EbbSavedTensorHooks) next = NULL;

  switch (options->store_kind)
    {
    case STORE_HOST:
      return make_host_store (options, TRUE);
    case STORE_DISK:
      return make_disk_store (options, TRUE, error);
    case STORE_CONTIGUOUS:
      return make_contiguous_store (options, NULL, error);
    case STORE_CONTIGUOUS_HOST:
      next = make_host_store (options, TRUE);
      return make_contiguous_store (options, next, error);
    case STORE_CONTIGUOUS_DISK:
      next = make_disk_store (options, TRUE, error);
      return next != NULL ? make_contiguous_store (options, next, error) : NULL;
    case STORE_KEEP:
    default:
      return ebb_keep_store_new ();
    }
}

/* FALSE with an error if it can't be made. */
static gboolean
add_fallback (EbbSavedTensorHooks *store,
              const Options *options,
              GError **error)
{
  g_autoptr (EbbSavedTensorHooks) fallback = NULL;

  if (strcmp (options->store_fallback, "keep") == 0)
    fallback = ebb_keep_store_new ();
  else if (strcmp (options->store_fallback, "host") == 0)
    fallback = make_host_store (options, FALSE);
  else if (strcmp (options->store_fallback, "disk") == 0)
    fallback = make_disk_store (options, FALSE, error);
  else
    return TRUE;
  if (fallback == NULL)
    return FALSE;
  return ebb_activation_store_set_fallback (EBB_ACTIVATION_STORE (store), EBB_ACTIVATION_STORE (fallback), error);
}

/* A partitioned store in front of @store, which it takes over, unless @store leaves tensors in place. */
static EbbSavedTensorHooks *
partition (EbbSavedTensorHooks *store,
           const Options *options,
           EbbProcessGroup *tensor_ranks,
           GError **error)
{
  EbbActivationStore *next = options->store_kind != STORE_KEEP ? EBB_ACTIVATION_STORE (store) : NULL;
  EbbSavedTensorHooks *front;

  if (!options->ranks.partition)
    return store;
  front = ebb_partitioned_store_new (tensor_ranks, next, error);
  if (front != NULL)
    g_object_set (front, "least-size", (guint64) 0, NULL);
  g_object_unref (store);
  return front;
}

EbbSavedTensorHooks *
store_make (const Options *options,
            EbbProcessGroup *tensor_ranks,
            GError **error)
{
  g_autoptr (EbbSavedTensorHooks) store = make_store (options, error);

  if (store == NULL)
    {
      g_prefix_error (error, "--store %s: ", options->store);
      return NULL;
    }
  if (!add_fallback (store, options, error))
    {
      g_prefix_error (error, "--store-fallback %s: ", options->store_fallback);
      return NULL;
    }
  store = partition (g_steal_pointer (&store), options, tensor_ranks, error);
  if (store != NULL)
    g_object_set (store, "prefetch", (guint) options->prefetch, NULL);
  return g_steal_pointer (&store);
}

/* -- describing --------------------------------------------------------------------------------------------------- */

void
store_add_json (EbbSavedTensorHooks *store,
                const Options *options,
                JsonBuilder *builder)
{
  g_autofree char *text = NULL;
  g_autoptr (JsonNode) node = NULL;

  text = ebb_activation_store_report_json (EBB_ACTIVATION_STORE (store));
  node = json_from_string (text, NULL);
  json_object_set_string_member (json_node_get_object (node), "kind", options->store);
  json_builder_add_value (builder, g_steal_pointer (&node));
}

/* Buffers on the device itself need no copies to the host. */
static gboolean
stays_on_device (const Options *options,
                 EbbDevice *device)
{
  return options->store_kind == STORE_CONTIGUOUS
         || (options->store_kind == STORE_CONTIGUOUS_HOST && !store_leaves (options, device));
}

static char *
describe_spilled (EbbActivationStore *self,
                  const Options *options)
{
  const double spilled = (double) ebb_activation_store_get_bytes_spilled (self) / MIB;

  return spilled > 0 ? g_strdup_printf ("; %.1f MiB found no room and went to --store-fallback %s", spilled,
                                        options->store_fallback)
                     : g_strdup ("");
}

static char *
describe_moves (EbbActivationStore *self,
                const Options *options,
                EbbDevice *device)
{
  const double peak = (double) ebb_activation_store_get_bytes_peak (self) / MIB;
  const double put = (double) ebb_activation_store_get_bytes_put (self) / MIB;
  const double got = (double) ebb_activation_store_get_bytes_got (self) / MIB;
  g_autofree char *spilled = describe_spilled (self, options);
  double moving, waited;
  GString *text;

  if (put == 0 || !(store_leaves (options, device) || stays_on_device (options, device)))
    return g_strdup_printf ("Store (%s): no activation was moved%s", options->store, spilled);
  if (stays_on_device (options, device))
    return g_strdup_printf ("Store (%s): %.1f MiB of activations at one time; %.1f MiB copied within the memory of %s",
                            options->store, peak, put, ebb_device_get_name (device));
  ebb_activation_store_get_chain_seconds (self, &moving, &waited);
  text = g_string_new (NULL);
  g_string_printf (text, "Store (%s): %.1f MiB of activations at one time; %.1f MiB moved there and %.1f MiB back, "
                         "copied for %.3f s in all, of which compute waited %.3f s: %.0f %% hidden%s",
                   options->store, peak, put, got, moving, waited,
                   moving > 0 ? 100 * CLAMP (1 - waited / moving, 0, 1) : 100, spilled);
  return g_string_free (text, FALSE);
}

/* Describes the shards of one model's activations, and what the store behind does with them. */
static char *
describe_partition (EbbPartitionedStore *self,
                    const Options *options,
                    EbbDevice *device)
{
  EbbActivationStore *next = ebb_activation_store_get_next (EBB_ACTIVATION_STORE (self));
  const double peak = (double) ebb_activation_store_get_bytes_peak (EBB_ACTIVATION_STORE (self)) / MIB;
  g_autofree char *rest = next != NULL ? describe_moves (next, options, device) : NULL;

  return g_strdup_printf ("Partition: each of %d ranks keeps %.1f MiB of activations at one time%s%s",
                          options->ranks.tensor_parallel, peak, rest != NULL ? "\n" : "", rest != NULL ? rest : "");
}

char *
store_describe (EbbSavedTensorHooks *store,
                const Options *options,
                EbbDevice *device)
{
  if (EBB_IS_PARTITIONED_STORE (store))
    return describe_partition (EBB_PARTITIONED_STORE (store), options, device);
  return options->store_kind != STORE_KEEP ? describe_moves (EBB_ACTIVATION_STORE (store), options, device) : NULL;
}
