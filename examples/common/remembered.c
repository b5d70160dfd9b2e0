/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Options that a resumed training keeps unless the command line sets them. */
#include "remembered.h"

#include <string.h>

/* What stands for a number that was not given; none of them is in range. */
#define NO_INT G_MININT
#define NO_INT64 G_MININT64
#define NO_DOUBLE (-G_MAXDOUBLE)

typedef enum
{
  KIND_INT,
  KIND_INT64,
  KIND_DOUBLE,
  KIND_TEXT,
  KIND_FLAG
} Kind;

static const struct
{
  const char *name; /* in the JSON */
  Kind kind;
  gsize place;
  double number;
  const char *text;
  gboolean is_late;      /* a state saved before the option existed takes the default */
  const char *late_text; /* or so */
} remembered[] = {
  { "tokenizer", KIND_TEXT, G_STRUCT_OFFSET (Options, tokenizer), 0, "byte" },
  { "dropout", KIND_DOUBLE, G_STRUCT_OFFSET (Options, dropout), 0.1, NULL },
  { "batch", KIND_INT, G_STRUCT_OFFSET (Options, batch), 8, NULL },
  { "accumulate", KIND_INT, G_STRUCT_OFFSET (Options, accumulate), 1, NULL },
  { "lr", KIND_DOUBLE, G_STRUCT_OFFSET (Options, lr), 3e-4, NULL },
  { "schedule", KIND_TEXT, G_STRUCT_OFFSET (Options, schedule), 0, "constant" },
  { "warmup", KIND_INT64, G_STRUCT_OFFSET (Options, warmup), 0, NULL },
  { "min_lr", KIND_DOUBLE, G_STRUCT_OFFSET (Options, min_lr), 0, NULL },
  { "weight_decay", KIND_DOUBLE, G_STRUCT_OFFSET (Options, weight_decay), 0.01, NULL },
  { "decayed", KIND_TEXT, G_STRUCT_OFFSET (Options, decayed), 0, "matrices", TRUE, "all" },
  { "clip", KIND_DOUBLE, G_STRUCT_OFFSET (Options, clip), 0, NULL },
  { "dtype", KIND_TEXT, G_STRUCT_OFFSET (Options, dtype), 0, "f32" },
  { "checkpoint", KIND_TEXT, G_STRUCT_OFFSET (Options, checkpoint), 0, "none" },
  { "store", KIND_TEXT, G_STRUCT_OFFSET (Options, store), 0, "keep" },
  { "residual", KIND_TEXT, G_STRUCT_OFFSET (Options, residual), 0, "f32", TRUE },
  { "moments", KIND_TEXT, G_STRUCT_OFFSET (Options, moments), 0, "f32", TRUE },
  { "step_in_backward", KIND_FLAG, G_STRUCT_OFFSET (Options, step_in_backward), 0, NULL, TRUE },
  { "sequence_parallel", KIND_FLAG, G_STRUCT_OFFSET (Options, ranks.sequence_parallel), 0, NULL, TRUE },
  { "partition", KIND_FLAG, G_STRUCT_OFFSET (Options, ranks.partition), 0, NULL, TRUE },
  { "shard", KIND_TEXT, G_STRUCT_OFFSET (Options, ranks.shard), 0, "full", TRUE },
  { "wrap", KIND_TEXT, G_STRUCT_OFFSET (Options, ranks.wrap), 0, "block", TRUE },
  { "flatten", KIND_FLAG, G_STRUCT_OFFSET (Options, ranks.flatten), 0, NULL, TRUE },
  { "reduce", KIND_TEXT, G_STRUCT_OFFSET (Options, ranks.reduce), 0, "auto", TRUE },
  { "compute_dtype", KIND_TEXT, G_STRUCT_OFFSET (Options, ranks.compute_dtype), 0, "none", TRUE },
  { "reduce_dtype", KIND_TEXT, G_STRUCT_OFFSET (Options, ranks.reduce_dtype), 0, "none", TRUE },
};

#define AT(type, i) ((type *) G_STRUCT_MEMBER_P (self, remembered[i].place))

static gboolean
is_given (Options *self,
          guint i)
{
  switch (remembered[i].kind)
    {
    case KIND_INT:
    case KIND_FLAG:
      return *AT (int, i) != NO_INT;
    case KIND_INT64:
      return *AT (gint64, i) != NO_INT64;
    case KIND_DOUBLE:
      return *AT (double, i) != NO_DOUBLE;
    default:
      return *AT (char *, i) != NULL;
    }
}

static void
set (Options *self,
     guint i,
     gint64 integer,
     double number,
     const char *text)
{
  switch (remembered[i].kind)
    {
    case KIND_INT:
    case KIND_FLAG:
      *AT (int, i) = (int) CLAMP (integer, G_MININT, G_MAXINT);
      break;
    case KIND_INT64:
      *AT (gint64, i) = integer;
      break;
    case KIND_DOUBLE:
      *AT (double, i) = number;
      break;
    default:
      g_free (*AT (char *, i));
      *AT (char *, i) = g_strdup (text);
    }
}

void
remembered_init (Options *self)
{
  for (guint i = 0; i < G_N_ELEMENTS (remembered); i++)
    set (self, i, remembered[i].kind == KIND_INT64 ? NO_INT64 : NO_INT, NO_DOUBLE, NULL);
}

static gboolean
was_given (const Options *self,
           gsize place)
{
  for (guint i = 0; i < G_N_ELEMENTS (remembered); i++)
    if (remembered[i].place == place)
      return (self->given & 1U << i) != 0;
  g_return_val_if_reached (FALSE);
}

#define WAS_GIVEN(member) was_given (self, G_STRUCT_OFFSET (Options, member))

gboolean
remembered_was_dropout_given (const Options *self)
{
  return WAS_GIVEN (dropout);
}

void
remembered_settle (Options *self)
{
  RankOptions *ranks = &self->ranks;

  if (!WAS_GIVEN (ranks.partition)
      && ((WAS_GIVEN (ranks.sequence_parallel) && ranks->sequence_parallel)
          || (WAS_GIVEN (checkpoint) && strcmp (self->checkpoint, "full") != 0)))
    ranks->partition = FALSE;
  if (!WAS_GIVEN (ranks.sequence_parallel) && WAS_GIVEN (ranks.partition) && ranks->partition)
    ranks->sequence_parallel = FALSE;
  if (!WAS_GIVEN (step_in_backward)
      && ((WAS_GIVEN (clip) && self->clip > 0) || (WAS_GIVEN (accumulate) && self->accumulate > 1)))
    self->step_in_backward = FALSE;
}

void
remembered_fill (Options *self)
{
  for (guint i = 0; i < G_N_ELEMENTS (remembered); i++)
    if (is_given (self, i))
      self->given |= 1U << i;
    else
      set (self, i, (gint64) remembered[i].number, remembered[i].number, remembered[i].text);
}

/* FALSE if @node is not of the kind that option @i has. */
static gboolean
take (Options *self,
      guint i,
      JsonNode *node)
{
  GType type = node != NULL && JSON_NODE_HOLDS_VALUE (node) ? json_node_get_value_type (node) : G_TYPE_INVALID;

  if (node == NULL && remembered[i].late_text != NULL)
    set (self, i, 0, 0, remembered[i].late_text);
  if (node == NULL && remembered[i].is_late)
    return TRUE;
  if (remembered[i].kind == KIND_TEXT ? type != G_TYPE_STRING
      : remembered[i].kind == KIND_FLAG
          ? type != G_TYPE_BOOLEAN
          : type != G_TYPE_INT64 && (type != G_TYPE_DOUBLE || remembered[i].kind != KIND_DOUBLE))
    return FALSE;
  if (remembered[i].kind == KIND_TEXT)
    set (self, i, 0, 0, json_node_get_string (node));
  else if (remembered[i].kind == KIND_FLAG)
    set (self, i, json_node_get_boolean (node), 0, NULL);
  else
    set (self, i, json_node_get_int (node), json_node_get_double (node), NULL);
  return TRUE;
}

/* json-glib recurses as deep as objects are nested; those that are saved hardly are. */
#define MOST_BRACKETS 1000

JsonNode *
remembered_parse (const char *saved)
{
  g_autoptr (JsonNode) root = NULL;
  guint n = 0;

  for (const char *p = saved; *p != '\0'; p++)
    n += *p == '{' || *p == '[';
  root = n <= MOST_BRACKETS ? json_from_string (saved, NULL) : NULL;
  return root != NULL && JSON_NODE_HOLDS_OBJECT (root) ? g_steal_pointer (&root) : NULL;
}

gboolean
remembered_take (Options *self,
                 const char *saved,
                 GError **error)
{
  g_autoptr (JsonNode) root = remembered_parse (saved);
  JsonObject *object = root != NULL ? json_node_get_object (root) : NULL;

  for (guint i = 0; i < G_N_ELEMENTS (remembered); i++)
    if ((self->given & 1U << i) == 0
        && (object == NULL || !take (self, i, json_object_get_member (object, remembered[i].name))))
      {
        g_set_error (error, EBB_ERROR, EBB_ERROR_STATE,
                     "--resume %s: that state was not saved by %s: it has no %s", self->resume, g_get_prgname (),
                     remembered[i].name);
        return FALSE;
      }
  return TRUE;
}
