/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/checkpointing-config-private.h"

#include "nn/json-scanner-private.h"

#include <json-glib/json-glib.h>
#include <string.h>

#define SECTION "activation_checkpointing"
#define MAX_CHECKPOINTS G_MAXINT32
#define N_KEYS EBB_N_CHECKPOINTING_KEYS

static const struct
{
  const char *name, *argument;
  gboolean is_number;
} keys[N_KEYS] = {
  [EBB_CHECKPOINTING_PARTITION] = { "partition_activations", "partition_activations", FALSE },
  [EBB_CHECKPOINTING_CPU] = { "cpu_checkpointing", "checkpoint_in_cpu", FALSE },
  [EBB_CHECKPOINTING_CONTIGUOUS] = { "contiguous_memory_optimization", "contiguous_checkpointing", FALSE },
  [EBB_CHECKPOINTING_NUMBER] = { "number_checkpoints", "num_checkpoints", TRUE },
  [EBB_CHECKPOINTING_SYNCHRONIZE] = { "synchronize_checkpoint_boundary", "synchronize", FALSE },
  [EBB_CHECKPOINTING_PROFILE] = { "profile", "profile", FALSE },
};

static int
find_key (const char *name,
          gboolean argument)
{
  for (int i = 0; i < N_KEYS; i++)
    if (strcmp (argument ? keys[i].argument : keys[i].name, name) == 0)
      return i;
  return -1;
}

static char *
list_keys (gboolean argument)
{
  GString *text = g_string_new (NULL);

  for (guint i = 0; i < N_KEYS; i++)
    g_string_append_printf (text, "%s%s", i == 0 ? "" : (i + 1 < N_KEYS ? ", " : " and "),
                            argument ? keys[i].argument : keys[i].name);
  return g_string_free (text, FALSE);
}

static gboolean
refuse_value (const char *where,
              const char *key,
              gboolean is_number,
              const char *value,
              GError **error)
{
  if (is_number)
    g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                 "%s: %s is %s: it must be a whole number from 1 to %d, or null", where, key, value, MAX_CHECKPOINTS);
  else
    g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "%s: %s is %s: it must be true or false", where, key,
                 value);
  return FALSE;
}

/* -- JSON ---------------------------------------------------------------------------------------------------------- */

typedef struct
{
  GHashTable *members; /* "object's address name" of all that were met */
  char *repeated;      /* NULL: none was met twice */
} Names;

static void
note_member (JsonParser *parser,
             JsonObject *object,
             const char *name,
             gpointer user_data)
{
  Names *names = user_data;

  if (!g_hash_table_add (names->members, g_strdup_printf ("%p %s", (void *) object, name)) && names->repeated == NULL)
    names->repeated = ebb_json_quote (name);
}

/* What comes after the object that @text begins with: the end of @text if it isn't closed. */
static const char *
skip_object (const char *text)
{
  gboolean in_string = FALSE;
  guint depth = 0;

  for (; *text != '\0'; text++)
    if (in_string && *text == '\\' && text[1] != '\0')
      text++;
    else if (*text == '"')
      in_string = !in_string;
    else if (!in_string && *text == '{')
      depth++;
    else if (!in_string && *text == '}' && --depth == 0)
      return text + 1;
  return text;
}

/* The parser keeps the last of two members of one name, and of two objects one after the other: which of them was
 * meant, nobody knows. It loses the memory of the first of two objects, so they don't get to it. */
static gboolean
parse (JsonParser *parser,
       const char *text,
       const char *where,
       GError **error)
{
  Names names = { .members = g_hash_table_new_full (g_str_hash, g_str_equal, g_free, NULL) };
  g_autoptr (GError) local = NULL;
  const char *rest = skip_object (text);
  gboolean ok;

  while (g_ascii_isspace (*rest))
    rest++;
  if (*rest != '\0')
    {
      g_hash_table_unref (names.members);
      g_set_error (error, EBB_ERROR, EBB_ERROR_FORMAT, "%s is not JSON: something comes after its object", where);
      return FALSE;
    }
  g_signal_connect (parser, "object-member", G_CALLBACK (note_member), &names);
  ok = json_parser_load_from_data (parser, text, -1, &local);
  g_signal_handlers_disconnect_by_data (parser, &names);
  if (!ok)
    {
      g_autofree char *line = g_strdelimit (g_strdup (local->message), "\r\n", ' ');

      g_set_error (error, EBB_ERROR, EBB_ERROR_FORMAT, "%s is not JSON: %s", where, line);
    }
  else if (names.repeated != NULL)
    g_set_error (error, EBB_ERROR, EBB_ERROR_FORMAT, "%s: the key %s stands twice in one object", where,
                 names.repeated);
  ok = ok && names.repeated == NULL;
  g_hash_table_unref (names.members);
  g_free (names.repeated);
  return ok;
}

static char *
describe_node (JsonNode *node)
{
  g_autofree char *text = json_to_string (node, FALSE);
  const char *cut = strlen (text) > 60 ? g_utf8_find_prev_char (text, text + 58) : NULL;

  return cut != NULL ? g_strdup_printf ("%.*s...", (int) (cut - text), text) : g_steal_pointer (&text);
}

static gboolean
is_boolean (JsonNode *node)
{
  return JSON_NODE_HOLDS_VALUE (node) && json_node_get_value_type (node) == G_TYPE_BOOLEAN;
}

static gboolean
read_node (EbbCheckpointingConfig *config,
           int key,
           JsonNode *node,
           const char *where,
           GError **error)
{
  g_autofree char *value = NULL;

  if (!keys[key].is_number && is_boolean (node))
    {
      config->values[key] = json_node_get_boolean (node) != FALSE;
      return TRUE;
    }
  if (keys[key].is_number && JSON_NODE_HOLDS_NULL (node))
    {
      config->values[key] = 0;
      return TRUE;
    }
  if (keys[key].is_number && JSON_NODE_HOLDS_VALUE (node) && json_node_get_value_type (node) == G_TYPE_INT64
      && json_node_get_int (node) >= 1 && json_node_get_int (node) <= MAX_CHECKPOINTS)
    {
      config->values[key] = (guint) json_node_get_int (node);
      return TRUE;
    }
  value = describe_node (node);
  return refuse_value (where, keys[key].name, keys[key].is_number, value, error);
}

static gboolean
read_section (EbbCheckpointingConfig *config,
              JsonObject *section,
              const char *where,
              GError **error)
{
  g_autoptr (GList) names = json_object_get_members (section);
  g_autofree char *inside = g_strdup_printf ("%s: " SECTION, where);

  for (GList *item = names; item != NULL; item = item->next)
    {
      const char *name = item->data;
      int key = find_key (name, FALSE);

      if (key < 0)
        {
          g_autofree char *quoted = ebb_json_quote (name);
          g_autofree char *list = list_keys (FALSE);
          g_autofree char *value = describe_node (json_object_get_member (section, name));

          g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "%s has no key %s (which is %s): its keys are %s",
                       inside, quoted, value, list);
          return FALSE;
        }
      if (!read_node (config, key, json_object_get_member (section, name), inside, error))
        return FALSE;
    }
  return TRUE;
}

static gboolean
read_root (EbbCheckpointingConfig *config,
           JsonNode *root,
           const char *where,
           GError **error)
{
  JsonObject *object = json_node_get_object (root);
  JsonNode *section;
  g_autofree char *value = NULL;

  /* Left there it would do nothing, and nothing would say so. */
  for (guint i = 0; i < N_KEYS; i++)
    if (json_object_has_member (object, keys[i].name))
      {
        g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                     "%s: %s stands outside of \"" SECTION "\": it must be {\"" SECTION "\": {\"%s\": ...}}", where,
                     keys[i].name, keys[i].name);
        return FALSE;
      }
  section = json_object_get_member (object, SECTION);
  if (section == NULL)
    return TRUE;
  if (JSON_NODE_HOLDS_OBJECT (section))
    return read_section (config, json_node_get_object (section), where, error);
  value = describe_node (section);
  g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "%s: " SECTION " is %s: it must be an object", where,
               value);
  return FALSE;
}

static gboolean
read_file (const char *path,
           char **text,
           GError **error)
{
  g_autoptr (GError) local = NULL;
  g_autofree char *quoted = ebb_json_quote (path);
  gsize length;

  if (!g_file_get_contents (path, text, &length, &local))
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_IO,
                   "the configuration %s is no JSON object, which begins with \"{\", nor a file that can be read: %s",
                   quoted, local->message);
      return FALSE;
    }
  if (strlen (*text) == length)
    return TRUE;
  g_clear_pointer (text, g_free);
  g_set_error (error, EBB_ERROR, EBB_ERROR_FORMAT, "%s is not JSON: it has a zero byte", quoted);
  return FALSE;
}

gboolean
ebb_checkpointing_config_read_json (EbbCheckpointingConfig *config,
                                    const char *json,
                                    GError **error)
{
  g_autoptr (JsonParser) parser = json_parser_new_immutable ();
  g_autofree char *contents = NULL;
  g_autofree char *where = NULL;
  const char *text = json;

  while (g_ascii_isspace (*text))
    text++;
  if (*text != '{')
    {
      if (!read_file (json, &contents, error))
        return FALSE;
      where = ebb_json_quote (json);
      for (text = contents; g_ascii_isspace (*text);)
        text++;
    }
  else
    where = g_strdup ("the configuration");
  if (*text != '{')
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_FORMAT, "%s holds no JSON object: it must be {\"" SECTION "\": {...}}",
                   where);
      return FALSE;
    }
  return parse (parser, text, where, error) && read_root (config, json_parser_get_root (parser), where, error);
}

/* -- arguments ----------------------------------------------------------------------------------------------------- */

static char *
describe_value (EbbArgs *args,
                guint index)
{
  switch (ebb_args_get_value_kind (args, index))
    {
    case EBB_VALUE_NONE:
      return g_strdup ("null");
    case EBB_VALUE_BOOL:
      return g_strdup (ebb_args_get_boolean (args, index) ? "true" : "false");
    case EBB_VALUE_INT:
      return g_strdup_printf ("%" G_GINT64_FORMAT, ebb_args_get_int (args, index));
    case EBB_VALUE_DOUBLE:
      return g_strdup_printf ("%g", ebb_args_get_double (args, index));
    case EBB_VALUE_STRING:
      return ebb_json_quote (ebb_args_get_string (args, index));
    case EBB_VALUE_TENSOR:
      return g_strdup ("a tensor");
    case EBB_VALUE_ARGS:
      return g_strdup ("a container");
    case EBB_VALUE_OBJECT:
    default:
      return g_strdup ("an object");
    }
}

static gboolean
read_argument (EbbCheckpointingConfig *config,
               EbbArgs *args,
               guint index,
               GError **error)
{
  const char *name = ebb_args_get_key (args, index);
  int key = name != NULL ? find_key (name, TRUE) : -1;
  EbbValueKind kind = ebb_args_get_value_kind (args, index);
  g_autofree char *value = NULL;

  if (key >= 0 && kind == EBB_VALUE_NONE)
    return TRUE;
  if (key >= 0 && !keys[key].is_number && kind == EBB_VALUE_BOOL)
    {
      config->values[key] = ebb_args_get_boolean (args, index) != FALSE;
      return TRUE;
    }
  if (key >= 0 && keys[key].is_number && kind == EBB_VALUE_INT && ebb_args_get_int (args, index) >= 1
      && ebb_args_get_int (args, index) <= MAX_CHECKPOINTS)
    {
      config->values[key] = (guint) ebb_args_get_int (args, index);
      return TRUE;
    }
  value = describe_value (args, index);
  if (key < 0)
    {
      g_autofree char *quoted = name != NULL ? ebb_json_quote (name) : g_strdup ("without a name");
      g_autofree char *list = list_keys (TRUE);

      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                   "there is no argument %s (which is %s): the arguments are %s", quoted, value, list);
      return FALSE;
    }
  return refuse_value ("the arguments", name, keys[key].is_number, value, error);
}

gboolean
ebb_checkpointing_config_read_args (EbbCheckpointingConfig *config,
                                    EbbArgs *args,
                                    GError **error)
{
  for (guint i = 0; i < ebb_args_get_length (args); i++)
    if (!read_argument (config, args, i, error))
      return FALSE;
  return TRUE;
}

/* -- the whole ----------------------------------------------------------------------------------------------------- */

gboolean
ebb_checkpointing_config_check (const EbbCheckpointingConfig *config,
                                guint world_size,
                                GError **error)
{
  if (config->values[EBB_CHECKPOINTING_CONTIGUOUS] && config->values[EBB_CHECKPOINTING_NUMBER] == 0)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                   "contiguous_memory_optimization (contiguous_checkpointing) is true and number_checkpoints "
                   "(num_checkpoints) is null: it must be a whole number from 1 to %d, how many checkpoints a "
                   "forward pass has",
                   MAX_CHECKPOINTS);
      return FALSE;
    }
  if (!config->values[EBB_CHECKPOINTING_PARTITION])
    return TRUE;
  if (world_size < 2)
    g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                 "partition_activations is true and %s: it divides activations among model-parallel ranks, of which "
                 "there must be at least 2; one process alone takes false",
                 world_size == 0 ? "there is no mpu" : "mpu has one rank");
  else
    g_set_error (error, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED,
                 "partition_activations is true and mpu has %u ranks: this version of Ebb can't divide activations "
                 "among ranks, it must be false",
                 world_size);
  return FALSE;
}

EbbArgs *
ebb_checkpointing_config_to_args (const EbbCheckpointingConfig *config)
{
  EbbArgs *args = ebb_args_new (EBB_ARGS_DICT);

  for (guint i = 0; i < N_KEYS; i++)
    if (!keys[i].is_number)
      ebb_args_add_boolean (args, keys[i].name, config->values[i] != 0);
    else if (config->values[i] != 0)
      ebb_args_add_int (args, keys[i].name, config->values[i]);
    else
      ebb_args_add_none (args, keys[i].name);
  return args;
}
