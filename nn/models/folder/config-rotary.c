/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/models/folder/config-private.h"

#include "nn/layers/rotary-private.h"

#include <string.h>

/* Rotary positions in config.json, in both forms of `transformers`: "rope_theta" and "rope_scaling" as separate keys,
 * and from its version 5 on "rope_parameters" with both inside, one for each kind of layer if these differ. */

#define FULL "full_attention"
#define SLIDING "sliding_attention"
#define ORIGINAL "original_max_position_embeddings"

#define BIT(scaling) (1u << EBB_ROTARY_##scaling)

static const struct
{
  const char *name;
  EbbRotaryScaling scaling;
} types[] = {
  { "default", EBB_ROTARY_DEFAULT },
  { "linear", EBB_ROTARY_LINEAR },
  { "dynamic", EBB_ROTARY_DYNAMIC },
  { "llama3", EBB_ROTARY_LLAMA3 },
  { "yarn", EBB_ROTARY_YARN },
  { "longrope", EBB_ROTARY_LONGROPE },
};

/* Numbers beside "rope_theta" and "rope_type". */
static const struct
{
  const char *name;
  gsize offset;
  guint scalings, required; /* sets of EbbRotaryScaling */
  double initial;
  gboolean is_zero_initial; /* 0 and null stand for the initial value */
} numbers[] = {
  { "partial_rotary_factor", G_STRUCT_OFFSET (EbbRotaryConfig, partial), ~0u, 0, 1, FALSE },
  { "factor", G_STRUCT_OFFSET (EbbRotaryConfig, factor), ~BIT (DEFAULT), BIT (LINEAR) | BIT (DYNAMIC) | BIT (LLAMA3), 0,
    TRUE },
  { "low_freq_factor", G_STRUCT_OFFSET (EbbRotaryConfig, low_freq_factor), BIT (LLAMA3), BIT (LLAMA3), 0, FALSE },
  { "high_freq_factor", G_STRUCT_OFFSET (EbbRotaryConfig, high_freq_factor), BIT (LLAMA3), BIT (LLAMA3), 0, FALSE },
  { "beta_fast", G_STRUCT_OFFSET (EbbRotaryConfig, beta_fast), BIT (YARN), 0, 32, TRUE },
  { "beta_slow", G_STRUCT_OFFSET (EbbRotaryConfig, beta_slow), BIT (YARN), 0, 1, TRUE },
  { "attention_factor", G_STRUCT_OFFSET (EbbRotaryConfig, attention_factor), BIT (YARN) | BIT (LONGROPE), 0, 0, TRUE },
  { "mscale", G_STRUCT_OFFSET (EbbRotaryConfig, mscale), BIT (YARN), 0, 0, TRUE },
  { "mscale_all_dim", G_STRUCT_OFFSET (EbbRotaryConfig, mscale_all_dim), BIT (YARN), 0, 0, TRUE },
};

#define NUMBER_OF(rotary, i) ((double *) ((char *) (rotary) + numbers[i].offset))

/* -- reading ------------------------------------------------------------------------------------------------------- */

static gboolean
read_type (const EbbConfigSource *source,
           const char *scope,
           const EbbJson *object,
           EbbRotaryScaling *scaling,
           GError **error)
{
  const EbbJson *value = ebb_json_get (object, "rope_type");
  const char *key = value != NULL ? "rope_type" : "type", *name = NULL;
  const gboolean is_phi = source->architecture->original_context > 0;

  value = value != NULL ? value : ebb_json_get (object, "type");
  *scaling = EBB_ROTARY_DEFAULT;
  if (value == NULL)
    return TRUE;
  ebb_json_as_string (value, &name);
  /* The name in Phi-3's first files. */
  if (g_strcmp0 (name, "su") == 0 || (is_phi && g_strcmp0 (name, "yarn") == 0))
    name = "longrope";
  for (guint i = 0; i < G_N_ELEMENTS (types); i++)
    if (g_strcmp0 (name, types[i].name) == 0
        && (!is_phi || types[i].scaling == EBB_ROTARY_DEFAULT || types[i].scaling == EBB_ROTARY_LONGROPE))
      {
        *scaling = types[i].scaling;
        return TRUE;
      }
  return ebb_config_refuse (source, scope, key, value,
                            is_phi ? "default or longrope" : "default, linear, dynamic, llama3, yarn or longrope",
                            error);
}

static gboolean
read_number (const EbbConfigSource *source,
             const char *scope,
             const char *key,
             const EbbJson *value,
             double *number,
             GError **error)
{
  return (ebb_json_as_double (value, number) && *number >= 0 && *number < G_MAXFLOAT)
         || ebb_config_refuse (source, scope, key, value, "a number of at least 0", error);
}

static gboolean
read_factors (const EbbConfigSource *source,
              const char *scope,
              const char *key,
              const EbbJson *object,
              double *factors,
              int *n_factors,
              GError **error)
{
  const EbbJson *list = ebb_json_get (object, key);
  gboolean ok = list != NULL && list->kind == EBB_JSON_LIST && list->n_items <= EBB_ROTARY_MAX_FACTORS
                && (*n_factors == 0 || list->n_items == (gsize) *n_factors);

  for (gsize i = 0; ok && i < list->n_items; i++)
    ok = ebb_json_as_double (&list->items[i], &factors[i]);
  if (!ok)
    return ebb_config_refuse (source, scope, key, list,
                              "a list of numbers, one for each of at most 128 frequencies, as long as the other list",
                              error);
  *n_factors = (int) list->n_items;
  return TRUE;
}

/* The context that the model was first trained with; one beside the rotary positions counts more. */
static gboolean
read_original (const EbbConfigSource *source,
               const char *scope,
               const EbbJson *object,
               int *original,
               GError **error)
{
  const EbbJson *beside = ebb_json_get (source->document, ORIGINAL);
  const EbbJson *value = beside != NULL ? beside : ebb_json_get (object, ORIGINAL);
  gint64 number = beside == NULL ? source->architecture->original_context : 0;

  if (beside == NULL && source->architecture->original_context > 0)
    value = NULL;
  if (value != NULL && value->kind != EBB_JSON_NULL
      && (!ebb_json_as_int (value, &number) || number < 1 || number > G_MAXINT))
    return ebb_config_refuse (source, beside != NULL ? NULL : scope, ORIGINAL, value, "a whole number of at least 1",
                              error);
  *original = (int) number;
  return TRUE;
}

/* @object may be NULL: nothing but theta. */
static gboolean
read_object (const EbbConfigSource *source,
             const char *scope,
             const EbbJson *object,
             double theta,
             EbbRotaryConfig *rotary,
             GError **error)
{
  const EbbJson *value = ebb_json_get (object, "rope_theta");
  const EbbJson *beside = ebb_json_get (source->document, "partial_rotary_factor");

  *rotary = EBB_ROTARY_CONFIG_INITIAL;
  rotary->theta = theta;
  if (!read_type (source, scope, object, &rotary->scaling, error)
      || (value != NULL && !read_number (source, scope, "rope_theta", value, &rotary->theta, error)))
    return FALSE;
  for (guint i = 0; i < G_N_ELEMENTS (numbers); i++)
    {
      double *number = NUMBER_OF (rotary, i);
      const guint bit = 1u << rotary->scaling;

      if (!(numbers[i].scalings & bit))
        continue;
      value = ebb_json_get (object, numbers[i].name);
      if (value == NULL && i == 0)
        value = beside;
      if (value != NULL && value->kind == EBB_JSON_NULL && (numbers[i].is_zero_initial || i == 0))
        value = NULL;
      *number = numbers[i].initial;
      if (value == NULL && (numbers[i].required & bit))
        return ebb_config_refuse (source, scope, numbers[i].name, NULL, "there", error);
      if (value != NULL && !read_number (source, scope, numbers[i].name, value, number, error))
        return FALSE;
      if (*number == 0 && numbers[i].is_zero_initial)
        *number = numbers[i].initial;
    }
  /* Other models of transformers read it and rotate whole heads, or fail. */
  if (source->architecture->original_context == 0 && rotary->partial != 1)
    {
      value = ebb_json_get (object, "partial_rotary_factor");
      return ebb_config_refuse (source, value != NULL ? scope : NULL, "partial_rotary_factor",
                                value != NULL ? value : beside, "1 in this architecture", error);
    }
  value = ebb_json_get (object, "truncate");
  if (rotary->scaling == EBB_ROTARY_YARN && value != NULL && !ebb_json_as_boolean (value, &rotary->truncate))
    return ebb_config_refuse (source, scope, "truncate", value, "true or false", error);
  if (rotary->scaling >= EBB_ROTARY_LLAMA3
      && !read_original (source, scope, object, &rotary->original_context, error))
    return FALSE;
  return rotary->scaling != EBB_ROTARY_LONGROPE
         || (read_factors (source, scope, "short_factor", object, rotary->short_factors, &rotary->n_factors, error)
             && read_factors (source, scope, "long_factor", object, rotary->long_factors, &rotary->n_factors, error));
}

/* The member @key of @parent if it is an object. FALSE with an error if it is anything but that and null. */
static gboolean
get_object (const EbbConfigSource *source,
            const char *scope,
            const EbbJson *parent,
            const char *key,
            const EbbJson **object,
            GError **error)
{
  *object = ebb_json_get (parent, key);
  if (*object != NULL && (*object)->kind == EBB_JSON_NULL)
    *object = NULL;
  return *object == NULL || (*object)->kind == EBB_JSON_OBJECT
         || ebb_config_refuse (source, scope, key, *object, "an object", error);
}

static gboolean
read_theta (const EbbConfigSource *source,
            const char *key,
            double initial,
            double *theta,
            GError **error)
{
  const EbbJson *value = ebb_json_get (source->document, key);

  *theta = initial;
  return value == NULL || value->kind == EBB_JSON_NULL || read_number (source, NULL, key, value, theta, error);
}

gboolean
ebb_config_read_rotary (const EbbConfigSource *source,
                        EbbGptConfig *config,
                        GError **error)
{
  const EbbArchitecture *architecture = source->architecture;
  const EbbJson *scaling, *parameters, *full, *sliding;
  double theta, local_theta;

  config->local_rotary.theta = 0;
  if (!get_object (source, NULL, source->document, "rope_scaling", &scaling, error)
      || !get_object (source, NULL, source->document, "rope_parameters", &parameters, error)
      || !read_theta (source, "rope_theta", architecture->theta, &theta, error)
      || !read_theta (source, "rope_local_base_freq", architecture->local_theta, &local_theta, error))
    return FALSE;
  if (scaling != NULL && scaling->n_items > 0)
    {
      if (!read_object (source, "rope_scaling", scaling, theta, &config->rotary, error))
        return FALSE;
      parameters = architecture->local_theta > 0 ? parameters : NULL;
    }
  else if (architecture->local_theta == 0)
    return read_object (source, "rope_parameters", parameters, theta, &config->rotary, error);
  if (architecture->local_theta == 0)
    return TRUE;
  if (!get_object (source, "rope_parameters", parameters, FULL, &full, error)
      || !get_object (source, "rope_parameters", parameters, SLIDING, &sliding, error))
    return FALSE;
  if (parameters != NULL && parameters->n_items > 0 && full == NULL && sliding == NULL)
    return ebb_config_refuse (source, NULL, "rope_parameters", parameters,
                              "an object with " FULL " and " SLIDING, error);
  return ((scaling != NULL && scaling->n_items > 0)
          || read_object (source, "rope_parameters." FULL, full, theta, &config->rotary, error))
         && read_object (source, "rope_parameters." SLIDING, sliding, local_theta, &config->local_rotary, error);
}

/* -- comparing ----------------------------------------------------------------------------------------------------- */

static gboolean
is_equal (const EbbRotaryConfig *a,
          const EbbRotaryConfig *b)
{
  const gsize n_bytes = (gsize) a->n_factors * sizeof (double);

  if (a->scaling != b->scaling || a->theta != b->theta)
    return FALSE;
  for (guint i = 0; i < G_N_ELEMENTS (numbers); i++)
    if ((numbers[i].scalings & (1u << a->scaling)) && *NUMBER_OF (a, i) != *NUMBER_OF (b, i))
      return FALSE;
  if (a->scaling >= EBB_ROTARY_LLAMA3 && a->original_context != b->original_context)
    return FALSE;
  if (a->scaling == EBB_ROTARY_YARN && !a->truncate != !b->truncate)
    return FALSE;
  return a->scaling != EBB_ROTARY_LONGROPE
         || (a->n_factors == b->n_factors && memcmp (a->short_factors, b->short_factors, n_bytes) == 0
             && memcmp (a->long_factors, b->long_factors, n_bytes) == 0);
}

gboolean
ebb_config_rotary_is_equal (const EbbGptConfig *a,
                            const EbbGptConfig *b)
{
  if (a->positions != EBB_POSITIONS_ROTARY || b->positions != EBB_POSITIONS_ROTARY)
    return TRUE;
  return is_equal (&a->rotary, &b->rotary)
         && is_equal (a->local_rotary.theta > 0 ? &a->local_rotary : &a->rotary,
                      b->local_rotary.theta > 0 ? &b->local_rotary : &b->rotary);
}

/* -- writing ------------------------------------------------------------------------------------------------------- */

static void
append_factors (GString *json,
                const char *key,
                const double *factors,
                int n)
{
  g_string_append_printf (json, ", \"%s\": [", key);
  for (int i = 0; i < n; i++)
    {
      g_string_append (json, i > 0 ? ", " : "");
      ebb_config_append_number (json, factors[i]);
    }
  g_string_append_c (json, ']');
}

/* @is_old: as the value of "rope_scaling". */
static void
append_object (GString *json,
               const EbbRotaryConfig *rotary,
               gboolean is_old)
{
  g_string_append_printf (json, "{\"rope_type\": \"%s\"", types[rotary->scaling].name);
  if (is_old)
    g_string_append_printf (json, ", \"type\": \"%s\"", types[rotary->scaling].name);
  else
    {
      g_string_append (json, ", \"rope_theta\": ");
      ebb_config_append_number (json, rotary->theta);
    }
  for (guint i = is_old ? 1 : 0; i < G_N_ELEMENTS (numbers); i++)
    if ((numbers[i].scalings & (1u << rotary->scaling)) && *NUMBER_OF (rotary, i) != numbers[i].initial)
      {
        g_string_append_printf (json, ", \"%s\": ", numbers[i].name);
        ebb_config_append_number (json, *NUMBER_OF (rotary, i));
      }
  if (rotary->scaling >= EBB_ROTARY_LLAMA3 && rotary->original_context > 0)
    g_string_append_printf (json, ", \"" ORIGINAL "\": %d", rotary->original_context);
  if (rotary->scaling == EBB_ROTARY_YARN && !rotary->truncate)
    g_string_append (json, ", \"truncate\": false");
  if (rotary->scaling == EBB_ROTARY_LONGROPE)
    {
      append_factors (json, "short_factor", rotary->short_factors, rotary->n_factors);
      append_factors (json, "long_factor", rotary->long_factors, rotary->n_factors);
    }
  g_string_append_c (json, '}');
}

static void
set_number (EbbJson *document,
            const char *key,
            double value)
{
  g_autoptr (GString) json = g_string_new (NULL);

  ebb_config_append_number (json, value);
  ebb_json_set (document, key, json->str);
}

static void
write_old (const EbbArchitecture *architecture,
           const EbbGptConfig *config,
           EbbJson *document)
{
  g_autoptr (GString) json = g_string_new (NULL);

  set_number (document, "rope_theta", config->rotary.theta);
  if (config->rotary.partial != 1 || ebb_json_get (document, "partial_rotary_factor") != NULL)
    set_number (document, "partial_rotary_factor", config->rotary.partial);
  if (architecture->local_theta > 0)
    set_number (document, "rope_local_base_freq",
                config->local_rotary.theta > 0 ? config->local_rotary.theta : config->rotary.theta);
  if (config->rotary.scaling != EBB_ROTARY_DEFAULT)
    append_object (json, &config->rotary, TRUE);
  else
    g_string_append (json, "null");
  ebb_json_set (document, "rope_scaling", json->str);
}

void
ebb_config_write_rotary (const EbbArchitecture *architecture,
                         const EbbGptConfig *config,
                         EbbJson *document)
{
  g_autoptr (GString) json = g_string_new (NULL);

  if (config->positions != EBB_POSITIONS_ROTARY)
    return;
  if (architecture->original_context > 0 || ebb_json_get (document, ORIGINAL) != NULL)
    if (config->rotary.original_context > 0)
      {
        g_autofree char *text = g_strdup_printf ("%d", config->rotary.original_context);

        ebb_json_set (document, ORIGINAL, text);
      }
  if (ebb_json_get (document, "rope_parameters") == NULL
      && (ebb_json_get (document, "rope_theta") != NULL || ebb_json_get (document, "rope_scaling") != NULL))
    {
      write_old (architecture, config, document);
      return;
    }
  if (architecture->local_theta > 0)
    {
      g_string_append (json, "{\"" FULL "\": ");
      append_object (json, &config->rotary, FALSE);
      g_string_append (json, ", \"" SLIDING "\": ");
      append_object (json, config->local_rotary.theta > 0 ? &config->local_rotary : &config->rotary, FALSE);
      g_string_append_c (json, '}');
    }
  else
    append_object (json, &config->rotary, FALSE);
  ebb_json_set (document, "rope_parameters", json->str);
  if (ebb_json_get (document, "rope_scaling") != NULL)
    ebb_json_set (document, "rope_scaling", "null");
}
