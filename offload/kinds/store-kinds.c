/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The kinds of stores: programs, the planner, and the bindings ask this table, and name no kind themselves. */
#include "offload/kinds/store-kinds-private.h"

#include "offload/activation-store-private.h"
#include "offload/contiguous/store.h"
#include "offload/disk/store.h"
#include "offload/host/store.h"
#include "offload/keep-store.h"
#include "tensor/error-private.h"

#include <gio/gio.h>
#include <pthread.h>
#include <string.h>

G_DEFINE_ENUM_TYPE (EbbMemoryPlace,
                    ebb_memory_place,
                    G_DEFINE_ENUM_VALUE (EBB_MEMORY_PLACE_DEVICE, "device"),
                    G_DEFINE_ENUM_VALUE (EBB_MEMORY_PLACE_HOST, "host"),
                    G_DEFINE_ENUM_VALUE (EBB_MEMORY_PLACE_DISK, "disk"),
                    G_DEFINE_ENUM_VALUE (EBB_MEMORY_PLACE_PARTITIONED, "partitioned"))

/* The settings of a kind are the properties of its class. A class with a property "next" may stand in front of each
 * class that can reserve a room. Partitioned stores are no row: they need ranks. */
typedef struct
{
  const char *name;
  GType (*get_type) (void);
  EbbMemoryPlace place; /* where its bytes lie, for the planner; a plan moves nothing to a store on the device */
  const char *summary;  /* for help texts; NULL: the name says it */
  GObjectClass *klass;  /* set by fill_table () */
} StoreRow;

static StoreRow rows[] = {
  { "keep", ebb_keep_store_get_type, EBB_MEMORY_PLACE_DEVICE, "in place" },
  { "host", ebb_host_store_get_type, EBB_MEMORY_PLACE_HOST, NULL },
  { "disk", ebb_disk_store_get_type, EBB_MEMORY_PLACE_DISK, NULL },
  { "contiguous", ebb_contiguous_store_get_type, EBB_MEMORY_PLACE_DEVICE, "in one buffer on the device" },
};

#define N_ROWS G_N_ELEMENTS (rows)
#define N_MOST (N_ROWS * (N_ROWS + 1)) /* alone, and in front of each other */

/* A row alone, or one in front of another. */
typedef struct
{
  const StoreRow *links[2]; /* from the front */
  guint n_links;
} Kind;

static struct
{
  Kind kinds[N_MOST];
  const char *names[N_MOST + 1];
  guint n;
} table;

static void
add_kind (const StoreRow *front,
          const StoreRow *behind)
{
  table.kinds[table.n] = (Kind){ { front, behind }, behind != NULL ? 2 : 1 };
  table.names[table.n++] = behind != NULL ? g_strconcat (front->name, "+", behind->name, NULL) : front->name;
}

static void
fill_table (void)
{
  for (guint i = 0; i < N_ROWS; i++)
    {
      rows[i].klass = g_type_class_ref (rows[i].get_type ());
      add_kind (&rows[i], NULL);
    }
  for (guint i = 0; i < N_ROWS; i++)
    for (guint j = 0; j < N_ROWS && g_object_class_find_property (rows[i].klass, "next") != NULL; j++)
      if (ebb_activation_store_can_reserve (EBB_ACTIVATION_STORE_CLASS (rows[j].klass)))
        add_kind (&rows[i], &rows[j]);
}

/* By pthread_once (), as ThreadSanitizer can't see GLib's locks. */
static void
require_table (void)
{
  static pthread_once_t filled = PTHREAD_ONCE_INIT;

  pthread_once (&filled, fill_table);
}

static const Kind *
find_kind (const char *name)
{
  require_table ();
  for (guint i = 0; i < table.n; i++)
    if (g_strcmp0 (table.names[i], name) == 0)
      return &table.kinds[i];
  return NULL;
}

/* -- asking -------------------------------------------------------------------------------------------------------- */

/**
 * ebb_store_kind_get_names:
 *
 * Lists the kinds of stores that ebb_store_kind_make() makes: `keep`, `host`, `disk`, `contiguous`, and those in which
 * one stands in front of another, as `contiguous+host`.
 *
 * Returns: (transfer none) (array zero-terminated=1): the names
 */
const char *const *
ebb_store_kind_get_names (void)
{
  require_table ();
  return table.names;
}

/**
 * ebb_store_kind_get_gtype:
 * @kind: the name of a kind
 *
 * Returns: the class of its stores, of the one in front if there are two; %G_TYPE_INVALID if there is no such kind
 */
GType
ebb_store_kind_get_gtype (const char *kind)
{
  const Kind *found = find_kind (kind);

  return found != NULL ? found->links[0]->get_type () : G_TYPE_INVALID;
}

/**
 * ebb_store_kind_get_place:
 * @kind: the name of a kind
 *
 * Says where the bytes of a kind's stores lie. Host memory is the device's own on the CPU.
 *
 * Returns: the place; the device if there is no such kind
 */
EbbMemoryPlace
ebb_store_kind_get_place (const char *kind)
{
  const Kind *found = find_kind (kind);

  return found != NULL ? found->links[found->n_links - 1]->place : EBB_MEMORY_PLACE_DEVICE;
}

/**
 * ebb_store_kind_get_summary:
 * @kind: the name of a kind
 *
 * Returns: (nullable): a phrase for a help text: where tensors wait; %NULL if the name says it
 */
const char *
ebb_store_kind_get_summary (const char *kind)
{
  const Kind *found = find_kind (kind);

  return found != NULL && found->n_links == 1 ? found->links[0]->summary : NULL;
}

/* The property of the first store of @kind that can be made with it; @link: which one that is. */
static GParamSpec *
find_setting (const Kind *kind,
              const char *setting,
              guint *link)
{
  for (*link = 0; *link < kind->n_links && strcmp (setting, "next") != 0; (*link)++)
    {
      GParamSpec *spec = g_object_class_find_property (kind->links[*link]->klass, setting);

      if (spec != NULL && (spec->flags & G_PARAM_WRITABLE) != 0)
        return spec;
    }
  return NULL;
}

/**
 * ebb_store_kind_has_setting:
 * @kind: the name of a kind
 * @setting: the name of a property, as `byte-limit`
 *
 * Returns: whether ebb_store_kind_make() takes @setting for stores of @kind
 */
gboolean
ebb_store_kind_has_setting (const char *kind,
                            const char *setting)
{
  const Kind *found = find_kind (kind);
  guint link;

  g_return_val_if_fail (setting != NULL, FALSE);

  return found != NULL && find_setting (found, setting, &link) != NULL;
}

EbbMemoryPlace
ebb_store_kind_find_place (EbbSavedTensorHooks *store)
{
  for (guint i = 0; i < N_ROWS; i++)
    if (G_OBJECT_TYPE (store) == rows[i].get_type ())
      return rows[i].place;
  return EBB_MEMORY_PLACE_DEVICE;
}

char *
ebb_store_kind_join_moving (const char *separator)
{
  GString *text = g_string_new (NULL);

  for (guint i = 0; i < N_ROWS; i++)
    if (rows[i].place != EBB_MEMORY_PLACE_DEVICE)
      g_string_append_printf (text, "%s%s", text->len > 0 ? separator : "", rows[i].name);
  return g_string_free (text, FALSE);
}

/* -- making -------------------------------------------------------------------------------------------------------- */

/* Values of enumerations are given by their nicks, too. */
static gboolean
transform (GParamSpec *spec,
           const GValue *given,
           GValue *value)
{
  g_value_init (value, spec->value_type);
  if (G_IS_PARAM_SPEC_ENUM (spec) && G_VALUE_HOLDS_STRING (given) && g_value_get_string (given) != NULL)
    {
      GEnumValue *found =
          g_enum_get_value_by_nick (G_PARAM_SPEC_ENUM (spec)->enum_class, g_value_get_string (given));

      if (found != NULL)
        g_value_set_enum (value, found->value);
      return found != NULL;
    }
  return g_value_transform (given, value) && !g_param_value_validate (spec, value);
}

/* A negative number, for example, becomes another one in an unsigned property. */
static gboolean
is_same_number (const GValue *given,
                const GValue *value)
{
  g_auto (GValue) before = G_VALUE_INIT;
  g_auto (GValue) after = G_VALUE_INIT;

  g_value_init (&before, G_TYPE_DOUBLE);
  g_value_init (&after, G_TYPE_DOUBLE);
  return !g_value_transform (given, &before) || !g_value_transform (value, &after)
         || g_value_get_double (&before) == g_value_get_double (&after);
}

/* Whether @kind has the setting @name, and @given is a value of it. */
static gboolean
check_setting (const Kind *kind,
               const char *kind_name,
               const char *name,
               const GValue *given,
               GError **error)
{
  guint link;
  GParamSpec *spec = find_setting (kind, name, &link);
  g_auto (GValue) value = G_VALUE_INIT;
  g_autofree char *shown = NULL;

  if (spec == NULL)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "store kind %s: it has no setting %s; its settings are the properties of %s", kind_name, name,
                     g_type_name (kind->links[0]->get_type ()));
  if (transform (spec, given, &value) && is_same_number (given, &value))
    return TRUE;
  shown = g_strdup_value_contents (given);
  return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                   "store kind %s: %s is %s: it must be a %s in the range of that property", kind_name, name, shown,
                   g_type_name (spec->value_type));
}

static GValue *
append_value (GArray *values)
{
  g_array_set_size (values, values->len + 1);
  return &g_array_index (values, GValue, values->len - 1);
}

/* Makes the store @link of @kind with the settings that are its own, in front of @next, which it takes over. */
static EbbSavedTensorHooks *
make_link (const Kind *kind,
           guint link,
           EbbSavedTensorHooks *next,
           const char *const *names,
           const GValue *given,
           guint n,
           GError **error)
{
  g_autofree const char **own = g_new (const char *, n + 1);
  g_autoptr (GArray) values = g_array_new (FALSE, TRUE, sizeof (GValue));
  GObject *store;

  g_array_set_clear_func (values, (GDestroyNotify) g_value_unset);
  for (guint i = 0, at; i < n; i++)
    {
      GParamSpec *spec = find_setting (kind, names[i], &at);

      if (at != link)
        continue;
      own[values->len] = spec->name;
      transform (spec, &given[i], append_value (values));
    }
  if (next != NULL)
    {
      own[values->len] = "next";
      g_value_take_object (g_value_init (append_value (values), EBB_TYPE_ACTIVATION_STORE), next);
    }
  store = g_object_new_with_properties (kind->links[link]->get_type (), values->len, own,
                                        (const GValue *) (gpointer) values->data);
  if (G_IS_INITABLE (store) && !g_initable_init (G_INITABLE (store), NULL, error))
    g_clear_object (&store);
  return (EbbSavedTensorHooks *) store;
}

/**
 * ebb_store_kind_make:
 * @kind: the name of a kind, see ebb_store_kind_get_names()
 * @names: (nullable) (array zero-terminated=1): names of properties of its stores, as `byte-limit`; %NULL: none
 * @values: (nullable) (array length=n_values): their values; one of an enumeration may be its nick, as `spill`
 * @n_values: how many there are
 * @error: return location for an error
 *
 * Makes a store of a kind that is known by its name. Of two stores, the one in front takes each setting that it has,
 * and the one behind takes the others.
 *
 * Returns: (transfer full) (nullable): the store; %NULL with %EBB_ERROR_INVALID_ARGUMENT if there is no such kind or
 *   setting, or with the error of the store
 */
EbbSavedTensorHooks *
ebb_store_kind_make (const char *kind,
                     const char *const *names,
                     const GValue *values,
                     guint n_values,
                     GError **error)
{
  const guint n_names = names != NULL ? g_strv_length ((char **) names) : 0;
  EbbSavedTensorHooks *store = NULL;
  const Kind *found;

  EBB_RETURN_UNLESS_BEGUN (NULL, error, kind);
  found = find_kind (kind);
  if (found == NULL)
    {
      g_autofree char *known = g_strjoinv (", ", (char **) table.names);

      return ebb_fail_null (error, EBB_ERROR_INVALID_ARGUMENT, "store kind %s: it must be one of %s", kind, known);
    }
  if (n_names != n_values)
    return ebb_fail_null (error, EBB_ERROR_INVALID_ARGUMENT,
                          "store kind %s: %u names of settings and %u values: each name must have a value", kind,
                          n_names, n_values);
  for (guint i = 0; i < n_values; i++)
    if (!check_setting (found, kind, names[i], &values[i], error))
      return NULL;
  for (guint link = found->n_links; link-- > 0;)
    {
      store = make_link (found, link, store, names, values, n_values, error);
      if (store == NULL)
        return NULL;
    }
  return store;
}

EbbSavedTensorHooks *
ebb_store_kind_make_at (EbbMemoryPlace place,
                        GError **error)
{
  for (guint i = 0; i < N_ROWS; i++)
    if (rows[i].place == place)
      return ebb_store_kind_make (rows[i].name, NULL, NULL, 0, error);
  return NULL;
}
