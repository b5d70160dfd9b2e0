/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "offload/activation-store-private.h"
#include "tensor/util/json-writer-private.h"

/* The counters of a store, and reports of them for people and programs. */

#define PRIVATE(self) ebb_activation_store_peek (self)

static guint64
read_counter (EbbActivationStore *self,
              gsize offset)
{
  g_return_val_if_fail (EBB_IS_ACTIVATION_STORE (self), 0);

  EBB_AUTO_LOCK (&PRIVATE (self)->lock);
  return *(guint64 *) ((char *) &PRIVATE (self)->counters + offset);
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
  return read_counter (self, G_STRUCT_OFFSET (EbbStoreCounters, held));
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
  return read_counter (self, G_STRUCT_OFFSET (EbbStoreCounters, peak));
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
  return read_counter (self, G_STRUCT_OFFSET (EbbStoreCounters, put));
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
  return read_counter (self, G_STRUCT_OFFSET (EbbStoreCounters, got));
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
  return read_counter (self, G_STRUCT_OFFSET (EbbStoreCounters, n_packed));
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
  return read_counter (self, G_STRUCT_OFFSET (EbbStoreCounters, n_unpacked));
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
  return read_counter (self, G_STRUCT_OFFSET (EbbStoreCounters, n_kept));
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
  return read_counter (self, G_STRUCT_OFFSET (EbbStoreCounters, spilled));
}

/* -- seconds ------------------------------------------------------------------------------------------------------- */

/* All of them as they were at one time, with the transfers that are done by now. */
static EbbStoreCounters
take_snapshot (EbbActivationStore *self)
{
  ebb_activation_store_sweep (self);
  EBB_AUTO_LOCK (&PRIVATE (self)->lock);
  return PRIVATE (self)->counters;
}

/**
 * ebb_activation_store_get_seconds_moving:
 * @self: a store
 *
 * How long bytes were on their way, both ways added up; of transfers that are done by now, so exact after
 * ebb_activation_store_synchronize().
 *
 * Returns: seconds
 */
double
ebb_activation_store_get_seconds_moving (EbbActivationStore *self)
{
  g_return_val_if_fail (EBB_IS_ACTIVATION_STORE (self), 0);

  return take_snapshot (self).moving;
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
  g_return_val_if_fail (EBB_IS_ACTIVATION_STORE (self), 0);

  return take_snapshot (self).waited;
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
  EbbStoreCounters now;

  g_return_val_if_fail (EBB_IS_ACTIVATION_STORE (self), 0);

  now = take_snapshot (self);
  return get_share (now.moving, now.waited);
}

/**
 * ebb_activation_store_get_chain_seconds:
 * @self: a store
 * @moving: (out) (optional): seconds that bytes were on their way
 * @waited: (out) (optional): seconds that computing, or the thread that asked, stood waiting for them
 *
 * The seconds of the store and of all stores behind it, each counted once: of one that it stands in front of, and of
 * fallbacks. A store that only hands bytes on has no seconds of its own.
 */
void
ebb_activation_store_get_chain_seconds (EbbActivationStore *self,
                                        double *moving,
                                        double *waited)
{
  EbbStoreCounters sum = { 0 };
  g_autoptr (GPtrArray) chain = NULL;

  g_return_if_fail (EBB_IS_ACTIVATION_STORE (self));

  chain = ebb_activation_store_get_chain (self);
  for (guint i = 0; i < chain->len; i++)
    {
      const EbbStoreCounters now = take_snapshot (chain->pdata[i]);

      sum.moving += now.moving;
      sum.waited += now.waited;
    }
  if (moving != NULL)
    *moving = sum.moving;
  if (waited != NULL)
    *waited = sum.waited;
}

/**
 * ebb_activation_store_reset_stats:
 * @self: a store
 *
 * Sets the counters to 0, and the peak to the bytes held now. Transfers that still run are counted when they are done.
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
  EBB_AUTO_LOCK (&PRIVATE (self)->lock);
  priv->counters.peak = priv->counters.held;
  priv->counters.put = priv->counters.got = priv->counters.spilled = 0;
  priv->counters.moving = priv->counters.waited = 0;
  priv->counters.n_packed = priv->counters.n_unpacked = priv->counters.n_kept = 0;
}

/* -- reports ------------------------------------------------------------------------------------------------------- */

static const struct
{
  const char *name;
  gsize offset;
} counters[] = {
#define COUNTER(name, field)                        \
  {                                                 \
    name, G_STRUCT_OFFSET (EbbStoreCounters, field) \
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
                  EbbJsonWriter *writer)
{
  guint n_specs;
  g_autofree GParamSpec **specs = g_object_class_list_properties (G_OBJECT_GET_CLASS (self), &n_specs);
  double value;

  for (guint i = 0; next_own_counter (self, specs, n_specs, &i, &value); i++)
    {
      g_autofree char *name = g_strdelimit (g_strdup (specs[i]->name), "-", '_');

      if (specs[i]->value_type == G_TYPE_DOUBLE)
        ebb_json_writer_add_double (writer, name, value);
      else
        ebb_json_writer_add_int (writer, name, (gint64) value);
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

static void
add_report (EbbActivationStore *self,
            const char *name,
            EbbJsonWriter *writer)
{
  const EbbStoreCounters now = take_snapshot (self);

  ebb_json_writer_begin (writer, name, '{');
  ebb_json_writer_add_string (writer, "store", G_OBJECT_TYPE_NAME (self));
  for (guint i = 0; i < G_N_ELEMENTS (counters); i++)
    {
      ebb_json_writer_add_int (writer, counters[i].name,
                               (gint64) * (const guint64 *) ((const char *) &now + counters[i].offset));
    }
  ebb_json_writer_add_double (writer, "seconds_moving", now.moving);
  ebb_json_writer_add_double (writer, "seconds_waited", now.waited);
  ebb_json_writer_add_double (writer, "hidden_share", get_share (now.moving, now.waited));
  add_own_counters (self, writer);
  for (guint i = 0; i < EBB_N_LINKS; i++)
    {
      g_autoptr (EbbActivationStore) store = ebb_activation_store_ref_behind (self, i);

      if (store != NULL)
        add_report (store, ebb_store_links[i], writer);
    }
  ebb_json_writer_end (writer);
}

/**
 * ebb_activation_store_report_json:
 * @self: a store
 *
 * The counters as a JSON object: "store", the type; "bytes_held", "bytes_peak", "bytes_put", "bytes_got",
 * "bytes_spilled", "n_packed", "n_unpacked", "n_kept", "seconds_moving", "seconds_waited", "hidden_share", each as its
 * getter returns it; the own counters of a kind of store, by the names of its properties; "next" and "fallback", such
 * objects of the stores behind, if there are any.
 *
 * Returns: (transfer full): JSON in one line
 */
char *
ebb_activation_store_report_json (EbbActivationStore *self)
{
  g_auto (EbbJsonWriter) writer = { NULL };

  g_return_val_if_fail (EBB_IS_ACTIVATION_STORE (self), NULL);

  add_report (self, NULL, &writer);
  return ebb_json_writer_finish (&writer);
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
  const EbbStoreCounters now = take_snapshot (self);

  g_string_append_printf (text, "%s%s: ", before, G_OBJECT_TYPE_NAME (self));
  append_bytes (text, "", now.held);
  append_bytes (text, " held (peak ", now.peak);
  append_bytes (text, "), ", now.put);
  append_bytes (text, " put, ", now.got);
  g_string_append_printf (text,
                          " got; %.3f s moving, %.3f s waited (%.1f %% hidden); %" G_GUINT64_FORMAT
                          " tensors packed, of which %" G_GUINT64_FORMAT " were kept in place",
                          now.moving, now.waited, 100 * get_share (now.moving, now.waited), now.n_packed, now.n_kept);
  if (now.spilled > 0)
    append_bytes (text, "; spilled ", now.spilled);
  append_own_counters (self, text);
  g_string_append_c (text, '\n');
  for (guint i = 0; i < EBB_N_LINKS; i++)
    {
      g_autoptr (EbbActivationStore) store = ebb_activation_store_ref_behind (self, i);
      g_autofree char *name = g_strdup_printf ("%s  %s ", before, ebb_store_links[i]);

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
