/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "store.h"

#include <string.h>

#define MIB (1024.0 * 1024.0)

static const char *const store_names[] = { "keep", "host", "disk", NULL };

/* -- options ------------------------------------------------------------------------------------------------------- */

static gboolean
has_file (const Options *options)
{
  return options->store_kind == STORE_DISK;
}

gboolean
store_check (Options *options,
             GError **error)
{
  if (!options_check_name ("store", options->store, store_names, error))
    return FALSE;
  options->store_kind = (StoreKind) options_find_name (store_names, options->store);
  /* A training that is resumed may have another store than the command line says so far. */
  if (options->resume != NULL && !options->saved_taken)
    return TRUE;
  if (options->store_folder != NULL && !has_file (options))
    return options_refuse (error, "--store-folder %s: it needs --store disk, not %s", options->store_folder,
                           options->store);
  if (options->store_limit > 0 && !has_file (options))
    return options_refuse (error, "--store-limit %d: it needs --store disk, not %s", options->store_limit,
                           options->store);
  return TRUE;
}

gboolean
store_leaves (const Options *options,
              EbbDevice *device)
{
  return options->store_kind == STORE_DISK
         || (options->store_kind == STORE_HOST && device != ebb_device_get_cpu ());
}

/* -- making -------------------------------------------------------------------------------------------------------- */

static EbbSavedTensorHooks *
make_disk_store (const Options *options,
                 GError **error)
{
  EbbSavedTensorHooks *store = ebb_disk_store_new (options->store_folder, error);

  if (store == NULL)
    g_prefix_error (error, "--store disk: ");
  else if (options->store_limit > 0)
    ebb_disk_store_set_byte_limit (EBB_DISK_STORE (store), (guint64) options->store_limit << 20);
  return store;
}

EbbSavedTensorHooks *
store_make (const Options *options,
            GError **error)
{
  switch (options->store_kind)
    {
    case STORE_HOST:
      return ebb_host_store_new ();
    case STORE_DISK:
      return make_disk_store (options, error);
    case STORE_KEEP:
    default:
      return ebb_keep_store_new ();
    }
}

/* -- telling ------------------------------------------------------------------------------------------------------- */

static void
add_integer (JsonBuilder *builder,
             const char *name,
             guint64 value)
{
  json_builder_set_member_name (builder, name);
  json_builder_add_int_value (builder, (gint64) value);
}

void
store_add_json (EbbSavedTensorHooks *store,
                const Options *options,
                JsonBuilder *builder)
{
  EbbActivationStore *self = EBB_ACTIVATION_STORE (store);

  json_builder_begin_object (builder);
  json_builder_set_member_name (builder, "kind");
  json_builder_add_string_value (builder, options->store);
  add_integer (builder, "bytes_put", ebb_activation_store_get_bytes_put (self));
  add_integer (builder, "bytes_got", ebb_activation_store_get_bytes_got (self));
  add_integer (builder, "bytes_peak", ebb_activation_store_get_bytes_peak (self));
  add_integer (builder, "tensors_packed", ebb_activation_store_get_n_packed (self));
  add_integer (builder, "tensors_unpacked", ebb_activation_store_get_n_unpacked (self));
  add_integer (builder, "tensors_kept", ebb_activation_store_get_n_kept (self));
  json_builder_end_object (builder);
}

char *
store_tell (EbbSavedTensorHooks *store,
            const Options *options)
{
  EbbActivationStore *self = EBB_ACTIVATION_STORE (store);
  double put = (double) ebb_activation_store_get_bytes_put (self) / MIB;
  double got = (double) ebb_activation_store_get_bytes_got (self) / MIB;

  if (options->store_kind == STORE_KEEP)
    return NULL;
  if (put == 0)
    return g_strdup_printf ("Store (%s): no activation was moved", options->store);
  return g_strdup_printf ("Store (%s): %.1f MiB of activations at one time; %.1f MiB moved there, %.1f MiB back",
                          options->store, (double) ebb_activation_store_get_bytes_peak (self) / MIB, put, got);
}
