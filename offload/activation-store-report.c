/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "offload/block-private.h"

#include <json-glib/json-glib.h>

/* The counters of a store, and how a person or a program looks at them. */

#define PRIVATE(self) ebb_activation_store_peek (self)

static guint64
read_counter (EbbActivationStore *self,
              gsize offset)
{
  guint64 value;

  g_return_val_if_fail (EBB_IS_ACTIVATION_STORE (self), 0);

  ebb_blocks_lock ();
  value = *(guint64 *) ((char *) PRIVATE (self) + offset);
  ebb_blocks_unlock ();
  return value;
}

/**
 * ebb_activation_store_get_bytes_held:
 * @self: a store
 *
 * The bytes that the store answers for now, memory that several tensors share counted once. Parameters, buffers and
 * small tensors are not among them.
 *
 * Returns: bytes
 */
guint64
ebb_activation_store_get_bytes_held (EbbActivationStore *self)
{
  return read_counter (self, G_STRUCT_OFFSET (EbbActivationStorePrivate, held));
}

/**
 * ebb_activation_store_get_bytes_peak:
 * @self: a store
 *
 * Returns: the most bytes held at one time
 */
guint64
ebb_activation_store_get_bytes_peak (EbbActivationStore *self)
{
  return read_counter (self, G_STRUCT_OFFSET (EbbActivationStorePrivate, peak));
}

/**
 * ebb_activation_store_get_bytes_put:
 * @self: a store
 *
 * Returns: how many bytes were moved into the store; none where tensors stay where they are
 */
guint64
ebb_activation_store_get_bytes_put (EbbActivationStore *self)
{
  return read_counter (self, G_STRUCT_OFFSET (EbbActivationStorePrivate, put));
}

/**
 * ebb_activation_store_get_bytes_got:
 * @self: a store
 *
 * Returns: how many bytes were moved back out of the store
 */
guint64
ebb_activation_store_get_bytes_got (EbbActivationStore *self)
{
  return read_counter (self, G_STRUCT_OFFSET (EbbActivationStorePrivate, got));
}

/**
 * ebb_activation_store_get_n_packed:
 * @self: a store
 *
 * Returns: how many tensors came in, those that were kept included
 */
guint64
ebb_activation_store_get_n_packed (EbbActivationStore *self)
{
  return read_counter (self, G_STRUCT_OFFSET (EbbActivationStorePrivate, n_packed));
}

/**
 * ebb_activation_store_get_n_unpacked:
 * @self: a store
 *
 * Returns: how many tensors were given back
 */
guint64
ebb_activation_store_get_n_unpacked (EbbActivationStore *self)
{
  return read_counter (self, G_STRUCT_OFFSET (EbbActivationStorePrivate, n_unpacked));
}

/**
 * ebb_activation_store_get_n_kept:
 * @self: a store
 *
 * Returns: how many of the tensors that came in were left where they are
 */
guint64
ebb_activation_store_get_n_kept (EbbActivationStore *self)
{
  return read_counter (self, G_STRUCT_OFFSET (EbbActivationStorePrivate, n_kept));
}

/**
 * ebb_activation_store_get_bytes_spilled:
 * @self: a store
 *
 * Returns: how many bytes went to the fallback, since there was no room or they could not be written
 */
guint64
ebb_activation_store_get_bytes_spilled (EbbActivationStore *self)
{
  return read_counter (self, G_STRUCT_OFFSET (EbbActivationStorePrivate, spilled));
}

/* -- seconds ------------------------------------------------------------------------------------------------------- */

/**
 * ebb_activation_store_count_seconds:
 * @self: a store
 * @moving: seconds that moving bytes has taken
 * @waited: how long of them computing, or the thread that asked, stood waiting
 *
 * Adds to the counters; for kinds of stores.
 */
void
ebb_activation_store_count_seconds (EbbActivationStore *self,
                                    double moving,
                                    double waited)
{
  EbbActivationStorePrivate *priv;

  g_return_if_fail (EBB_IS_ACTIVATION_STORE (self));

  priv = PRIVATE (self);
  ebb_blocks_lock ();
  priv->moving += moving;
  priv->waited += waited;
  ebb_blocks_unlock ();
}

static void
read_seconds (EbbActivationStore *self,
              double *moving,
              double *waited)
{
  EbbActivationStorePrivate *priv = PRIVATE (self);

  ebb_activation_store_sweep (self);
  ebb_blocks_lock ();
  *moving = priv->moving;
  *waited = priv->waited;
  ebb_blocks_unlock ();
}

/**
 * ebb_activation_store_get_seconds_moving:
 * @self: a store
 *
 * How long bytes were on their way, both ways added up; of what is done by now, so exact after
 * ebb_activation_store_synchronize().
 *
 * Returns: seconds
 */
double
ebb_activation_store_get_seconds_moving (EbbActivationStore *self)
{
  double moving, waited;

  g_return_val_if_fail (EBB_IS_ACTIVATION_STORE (self), 0);

  read_seconds (self, &moving, &waited);
  return moving;
}

/**
 * ebb_activation_store_get_seconds_waited:
 * @self: a store
 *
 * Returns: how long, in seconds, computing stood waiting for bytes on their way
 */
double
ebb_activation_store_get_seconds_waited (EbbActivationStore *self)
{
  double moving, waited;

  g_return_val_if_fail (EBB_IS_ACTIVATION_STORE (self), 0);

  read_seconds (self, &moving, &waited);
  return waited;
}

static double
get_share (double moving,
           double waited)
{
  return moving > 0 ? CLAMP (1 - waited / moving, 0, 1) : 1;
}

/**
 * ebb_activation_store_get_hidden_share:
 * @self: a store
 *
 * Returns: which part of the time that bytes were on their way was hidden behind computing: 1 is all of it, and what it
 *   is if none were
 */
double
ebb_activation_store_get_hidden_share (EbbActivationStore *self)
{
  double moving, waited;

  g_return_val_if_fail (EBB_IS_ACTIVATION_STORE (self), 0);

  read_seconds (self, &moving, &waited);
  return get_share (moving, waited);
}

/**
 * ebb_activation_store_reset_stats:
 * @self: a store
 *
 * Sets the counters to 0, and the peak to the bytes held now. What is still on its way is counted when it is done.
 */
void
ebb_activation_store_reset_stats (EbbActivationStore *self)
{
  EbbActivationStorePrivate *priv;

  g_return_if_fail (EBB_IS_ACTIVATION_STORE (self));

  priv = PRIVATE (self);
  ebb_activation_store_sweep (self);
  if (EBB_ACTIVATION_STORE_GET_CLASS (self)->reset_stats != NULL)
    EBB_ACTIVATION_STORE_GET_CLASS (self)->reset_stats (self);
  ebb_blocks_lock ();
  priv->peak = priv->held;
  priv->put = priv->got = priv->spilled = 0;
  priv->moving = priv->waited = 0;
  priv->n_packed = priv->n_unpacked = priv->n_kept = 0;
  ebb_blocks_unlock ();
}

/* -- reports ------------------------------------------------------------------------------------------------------- */

static const struct
{
  const char *name;
  gsize offset;
} counters[] = {
#define COUNTER(name, field)                                 \
  {                                                          \
    name, G_STRUCT_OFFSET (EbbActivationStorePrivate, field) \
  }
  COUNTER ("bytes_held", held),
  COUNTER ("bytes_peak", peak),
  COUNTER ("bytes_put", put),
  COUNTER ("bytes_got", got),
  COUNTER ("bytes_spilled", spilled),
  COUNTER ("n_packed", n_packed),
  COUNTER ("n_unpacked", n_unpacked),
  COUNTER ("n_kept", n_kept),
};

/* The stores that stand behind @self, with references; NULL: none of that name. */
static EbbActivationStore *
get_behind (EbbActivationStore *self,
            const char *name)
{
  GParamSpec *spec = g_object_class_find_property (G_OBJECT_GET_CLASS (self), name);
  EbbActivationStore *store = NULL;

  if (spec != NULL && g_type_is_a (spec->value_type, EBB_TYPE_SAVED_TENSOR_HOOKS))
    g_object_get (self, name, &store, NULL);
  if (store != NULL && !EBB_IS_ACTIVATION_STORE (store))
    g_clear_object (&store);
  return store;
}

static const char *const behind[] = { "next", "fallback" };

/* The next one of the counters that a kind of store has itself: numbers that are properties and can't be set. */
static gboolean
next_own_counter (EbbActivationStore *self,
                  GParamSpec **specs,
                  guint n_specs,
                  guint *i,
                  double *value)
{
  for (; *i < n_specs; (*i)++)
    {
      g_auto (GValue) number = G_VALUE_INIT;

      if (specs[*i]->flags & G_PARAM_WRITABLE || !g_value_type_transformable (specs[*i]->value_type, G_TYPE_DOUBLE))
        continue;
      g_value_init (&number, G_TYPE_DOUBLE);
      g_object_get_property (G_OBJECT (self), specs[*i]->name, &number);
      *value = g_value_get_double (&number);
      return TRUE;
    }
  return FALSE;
}

static void
add_own_counters (EbbActivationStore *self,
                  JsonBuilder *builder)
{
  guint n_specs;
  g_autofree GParamSpec **specs = g_object_class_list_properties (G_OBJECT_GET_CLASS (self), &n_specs);
  double value;

  for (guint i = 0; next_own_counter (self, specs, n_specs, &i, &value); i++)
    {
      g_autofree char *name = g_strdelimit (g_strdup (specs[i]->name), "-", '_');

      json_builder_set_member_name (builder, name);
      if (specs[i]->value_type == G_TYPE_DOUBLE)
        json_builder_add_double_value (builder, value);
      else
        json_builder_add_int_value (builder, (gint64) value);
    }
}

static void
append_own_counters (EbbActivationStore *self,
                     GString *text)
{
  guint n_specs;
  g_autofree GParamSpec **specs = g_object_class_list_properties (G_OBJECT_GET_CLASS (self), &n_specs);
  double value;

  for (guint i = 0; next_own_counter (self, specs, n_specs, &i, &value); i++)
    g_string_append_printf (text, "; %s %.4g", specs[i]->name, value);
}

static JsonNode *
make_report (EbbActivationStore *self)
{
  g_autoptr (JsonBuilder) builder = json_builder_new ();
  double moving, waited;

  read_seconds (self, &moving, &waited);
  json_builder_begin_object (builder);
  json_builder_set_member_name (builder, "store");
  json_builder_add_string_value (builder, G_OBJECT_TYPE_NAME (self));
  for (guint i = 0; i < G_N_ELEMENTS (counters); i++)
    {
      json_builder_set_member_name (builder, counters[i].name);
      json_builder_add_int_value (builder, (gint64) read_counter (self, counters[i].offset));
    }
  json_builder_set_member_name (builder, "seconds_moving");
  json_builder_add_double_value (builder, moving);
  json_builder_set_member_name (builder, "seconds_waited");
  json_builder_add_double_value (builder, waited);
  json_builder_set_member_name (builder, "hidden_share");
  json_builder_add_double_value (builder, get_share (moving, waited));
  add_own_counters (self, builder);
  for (guint i = 0; i < G_N_ELEMENTS (behind); i++)
    {
      g_autoptr (EbbActivationStore) store = get_behind (self, behind[i]);

      if (store == NULL)
        continue;
      json_builder_set_member_name (builder, behind[i]);
      json_builder_add_value (builder, make_report (store));
    }
  json_builder_end_object (builder);
  return json_builder_get_root (builder);
}

/**
 * ebb_activation_store_report_json:
 * @self: a store
 *
 * The counters as a JSON object: "store", the type; "bytes_held", "bytes_peak", "bytes_put", "bytes_got",
 * "bytes_spilled", "n_packed", "n_unpacked", "n_kept", "seconds_moving", "seconds_waited", "hidden_share", each as its
 * getter gives it; what a kind of store counts itself, by the names of its properties; "next" and "fallback", such
 * objects of the stores behind, if there are any.
 *
 * Returns: (transfer full): JSON in one line
 */
char *
ebb_activation_store_report_json (EbbActivationStore *self)
{
  g_autoptr (JsonNode) node = NULL;

  g_return_val_if_fail (EBB_IS_ACTIVATION_STORE (self), NULL);

  node = make_report (self);
  return json_to_string (node, FALSE);
}

static void
append_bytes (GString *text,
              const char *before,
              guint64 n_bytes)
{
  g_autofree char *size = g_format_size_full (n_bytes, G_FORMAT_SIZE_IEC_UNITS);

  g_string_append_printf (text, "%s%s", before, size);
}

static void
append_report (EbbActivationStore *self,
               const char *before,
               GString *text)
{
  EbbActivationStorePrivate *priv = PRIVATE (self);
  EbbActivationStorePrivate now;
  double moving, waited;

  read_seconds (self, &moving, &waited);
  ebb_blocks_lock ();
  now = *priv;
  ebb_blocks_unlock ();
  g_string_append_printf (text, "%s%s: ", before, G_OBJECT_TYPE_NAME (self));
  append_bytes (text, "", now.held);
  append_bytes (text, " held (peak ", now.peak);
  append_bytes (text, "), ", now.put);
  append_bytes (text, " put, ", now.got);
  g_string_append_printf (text,
                          " got; %.3f s moving, %.3f s waited (%.1f %% hidden); %" G_GUINT64_FORMAT
                          " tensors packed, of which %" G_GUINT64_FORMAT " were kept in place",
                          moving, waited, 100 * get_share (moving, waited), now.n_packed, now.n_kept);
  if (now.spilled > 0)
    append_bytes (text, "; spilled ", now.spilled);
  append_own_counters (self, text);
  g_string_append_c (text, '\n');
  for (guint i = 0; i < G_N_ELEMENTS (behind); i++)
    {
      g_autoptr (EbbActivationStore) store = get_behind (self, behind[i]);
      g_autofree char *name = g_strdup_printf ("%s  %s ", before, behind[i]);

      if (store != NULL)
        append_report (store, name, text);
    }
}

/**
 * ebb_activation_store_report:
 * @self: a store
 *
 * Describes the counters for a person: a line for the store and one for each store behind it.
 *
 * Returns: (transfer full): lines of text
 */
char *
ebb_activation_store_report (EbbActivationStore *self)
{
  GString *text;

  g_return_val_if_fail (EBB_IS_ACTIVATION_STORE (self), NULL);

  text = g_string_new (NULL);
  append_report (self, "", text);
  return g_string_free (text, FALSE);
}
