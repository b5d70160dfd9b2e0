/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* --store: makes the activation store that the options describe, and describes what it did. */
#include "common/train/store.h"

#include <string.h>

#define MIB (1024.0 * 1024.0)

/* -- options ------------------------------------------------------------------------------------------------------- */

#define KEEP "keep" /* the kind that stands for no store */

typedef gboolean (*KindFunc) (const char *kind);

static gboolean
has_folder (const char *kind)
{
  return ebb_store_kind_has_setting (kind, "folder");
}

static gboolean
has_limit (const char *kind)
{
  return ebb_store_kind_has_setting (kind, "byte-limit");
}

/* Stores to which plans move tensors. One that stands in front of another has parts of fixed sizes. */
static gboolean
takes_any_size (const char *kind)
{
  return ebb_store_kind_get_place (kind) != EBB_MEMORY_PLACE_DEVICE && strchr (kind, '+') == NULL;
}

static gboolean
may_be_fallback (const char *kind)
{
  return strcmp (kind, KEEP) == 0 || takes_any_size (kind);
}

/* The kinds of one store for which @func is true. */
static char *
join_kinds (KindFunc func,
            const char *separator)
{
  GString *text = g_string_new (NULL);

  for (const char *const *kind = ebb_store_kind_get_names (); *kind != NULL; kind++)
    if (strchr (*kind, '+') == NULL && func (*kind))
      g_string_append_printf (text, "%s%s", text->len > 0 ? separator : "", *kind);
  return g_string_free (text, FALSE);
}

const char *
store_get_help (void)
{
  g_autofree char *moving = join_kinds (takes_any_size, " or ");
  g_autoptr (GString) text = g_string_new ("Where saved activations wait for backward");

  for (const char *const *kind = ebb_store_kind_get_names (); *kind != NULL; kind++)
    {
      const char *summary = ebb_store_kind_get_summary (*kind);

      g_string_append_printf (text, "%s%s", kind == ebb_store_kind_get_names () ? ": " : "; ", *kind);
      if (summary != NULL)
        g_string_append_printf (text, ": %s", summary);
    }
  g_string_append_printf (text, ". Blocks of a plan use a %s store where that is faster", moving);
  return g_intern_string (text->str);
}

const char *const *
store_get_fallback_names (void)
{
  static char **names;
  g_autofree char *kinds = NULL;
  g_autofree char *all = NULL;

  if (g_once_init_enter (&names))
    {
      kinds = join_kinds (may_be_fallback, " ");
      all = g_strconcat ("none ", kinds, NULL);
      g_once_init_leave (&names, g_strsplit (all, " ", -1));
    }
  return (const char *const *) names;
}

const char *
store_get_fallback_help (void)
{
  g_autofree char *names = g_strjoinv (", ", (char **) store_get_fallback_names ());
  g_autofree char *text =
      g_strdup_printf ("Store for activations that the first store has no room for or can't write: %s", names);

  return g_intern_string (text);
}

gboolean
store_is_used (const Options *options)
{
  return strcmp (options->store, KEEP) != 0;
}

gboolean
store_has_file (const Options *options)
{
  return has_folder (options->store) || has_folder (options->store_fallback);
}

static gboolean
refuse_kind (const Options *options,
             const char *option,
             const char *value,
             KindFunc func,
             GError **error)
{
  g_autofree char *kinds = join_kinds (func, " or ");

  return options_refuse (error, "--%s %s: it needs --store %s, not %s", option, value, kinds, options->store);
}

gboolean
store_check (const Options *options,
             GError **error)
{
  if (options->store_folder != NULL && !store_has_file (options))
    return refuse_kind (options, "store-folder", options->store_folder, has_folder, error);
  if (options->store_limit > 0 && !has_limit (options->store))
    return refuse_kind (options, "store-limit", options->store_limit_text, has_limit, error);
  if (strcmp (options->store_fallback, "none") != 0 && !takes_any_size (options->store))
    return refuse_kind (options, "store-fallback", options->store_fallback, takes_any_size, error);
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

  return options_have_plan (options) && !wraps && takes_any_size (options->store) ? store : NULL;
}

gboolean
store_leaves (const Options *options,
              EbbDevice *device)
{
  const EbbMemoryPlace place = ebb_store_kind_get_place (options->store);

  return place == EBB_MEMORY_PLACE_DISK || (place == EBB_MEMORY_PLACE_HOST && device != ebb_device_get_cpu ());
}

/* -- making -------------------------------------------------------------------------------------------------------- */

#define N_SETTINGS 5

typedef struct
{
  const char *names[N_SETTINGS + 1];
  GValue values[N_SETTINGS];
  guint n;
} Settings;

/* NULL: stores of @kind don't have it. */
static GValue *
add_setting (Settings *self,
             const char *kind,
             const char *name,
             GType type)
{
  if (!ebb_store_kind_has_setting (kind, name))
    return NULL;
  self->names[self->n] = name;
  return g_value_init (&self->values[self->n++], type);
}

/* A tensor without room goes to the fallback at once: nothing else would make room. With full checkpointing each block
 * keeps one input. What else is kept is of several sizes, of each as many as the model happens to have. */
static EbbSavedTensorHooks *
make_kind (const Options *options,
           const char *kind,
           guint64 limit,
           GError **error)
{
  Settings settings = { 0 };
  EbbSavedTensorHooks *store;
  GValue *value;

  if ((value = add_setting (&settings, kind, "folder", G_TYPE_STRING)) != NULL)
    g_value_set_string (value, options->store_folder);
  if (limit > 0 && (value = add_setting (&settings, kind, "byte-limit", G_TYPE_UINT64)) != NULL)
    g_value_set_uint64 (value, limit);
  if ((value = add_setting (&settings, kind, "when-full", EBB_TYPE_WHEN_FULL)) != NULL)
    g_value_set_enum (value, EBB_WHEN_FULL_SPILL);
  if ((value = add_setting (&settings, kind, "n-checkpoints", G_TYPE_UINT)) != NULL)
    g_value_set_uint (value, (guint) options->layers);
  if ((value = add_setting (&settings, kind, "grow", G_TYPE_BOOLEAN)) != NULL)
    g_value_set_boolean (value, options->checkpoint_kind != CHECKPOINT_FULL);
  store = ebb_store_kind_make (kind, settings.names, settings.values, settings.n, error);
  while (settings.n > 0)
    g_value_unset (&settings.values[--settings.n]);
  return store;
}

/* FALSE with an error if it can't be made. */
static gboolean
add_fallback (EbbSavedTensorHooks *store,
              const Options *options,
              GError **error)
{
  g_autoptr (EbbSavedTensorHooks) fallback = NULL;

  if (strcmp (options->store_fallback, "none") == 0)
    return TRUE;
  fallback = make_kind (options, options->store_fallback, 0, error);
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
  EbbActivationStore *next = store_is_used (options) ? EBB_ACTIVATION_STORE (store) : NULL;
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
  g_autoptr (EbbSavedTensorHooks) store = make_kind (options, options->store, options->store_limit, error);

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

  if (put == 0 || !EBB_ACTIVATION_STORE_GET_CLASS (self)->moves (self, device))
    return g_strdup_printf ("Store (%s): no activation was moved%s", options->store, spilled);
  if (!store_leaves (options, device)) /* buffers on the device itself need no copies to the host */
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
  return store_is_used (options) ? describe_moves (EBB_ACTIVATION_STORE (store), options, device) : NULL;
}
