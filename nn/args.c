/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/args-private.h"

#include <string.h>

/* A container of arguments or results: positional and named values of all kinds, nested at will. */

typedef struct
{
  char *key; /* NULL: positional */
  EbbValueKind kind;
  union
  {
    gboolean boolean;
    gint64 integer;
    double real;
    char *string;
    EbbTensor *tensor;
    EbbArgs *args;
    GObject *object;
  } as;
} Entry;

struct _EbbArgs
{
  int ref_count;
  EbbArgsKind kind;
  guint n_entries;
  guint n_positional; /* they come first */
  guint n_allocated;
  Entry *entries;    /* @few until there are more */
  GHashTable *index; /* of many keys: to the place behind the positional ones, plus 1; NULL while they are few */
  EbbArgs *doomed;   /* the next one that waits to be freed */
  Entry few[2];      /* a call with one or two tensors allocates once */
};

#define MANY_KEYS 32

G_DEFINE_BOXED_TYPE (EbbArgs, ebb_args, ebb_args_ref, ebb_args_unref)

static void entry_clear (Entry *entry);

/**
 * ebb_args_new:
 * @kind: what the container was in the language that made it
 *
 * Makes an empty container. The arguments of a call are an %EBB_ARGS_TUPLE; its result is an %EBB_ARGS_BARE with one
 * value, or a container that stands for itself.
 *
 * Returns: (transfer full): the container
 */
EbbArgs *
ebb_args_new (EbbArgsKind kind)
{
  EbbArgs *self = g_slice_new (EbbArgs);

  self->ref_count = 1;
  self->kind = kind;
  self->n_entries = 0;
  self->n_positional = 0;
  self->n_allocated = G_N_ELEMENTS (self->few);
  self->entries = self->few;
  self->index = NULL;
  return self;
}

/**
 * ebb_args_new_for_tensor:
 * @tensor: a tensor
 *
 * Makes an %EBB_ARGS_BARE that holds one tensor: the arguments, or the result, of a call with one tensor in and one
 * out.
 *
 * Returns: (transfer full): the container
 */
EbbArgs *
ebb_args_new_for_tensor (EbbTensor *tensor)
{
  EbbArgs *self;

  g_return_val_if_fail (tensor != NULL, NULL);

  self = ebb_args_new (EBB_ARGS_BARE);
  self->few[0].key = NULL;
  self->few[0].kind = EBB_VALUE_TENSOR;
  self->few[0].as.tensor = ebb_tensor_ref (tensor);
  self->n_entries = self->n_positional = 1;
  return self;
}

/**
 * ebb_args_ref:
 * @self: a container
 *
 * Takes a reference.
 *
 * Returns: (transfer full): @self
 */
EbbArgs *
ebb_args_ref (EbbArgs *self)
{
  g_return_val_if_fail (self != NULL, NULL);

  g_atomic_int_inc (&self->ref_count);
  return self;
}

/**
 * ebb_args_get_kind:
 * @self: a container
 *
 * Returns: what the container was in the language that made it
 */
EbbArgsKind
ebb_args_get_kind (EbbArgs *self)
{
  g_return_val_if_fail (self != NULL, EBB_ARGS_BARE);

  return self->kind;
}

/**
 * ebb_args_get_length:
 * @self: a container
 *
 * Returns: how many values it holds, those with keys included
 */
guint
ebb_args_get_length (EbbArgs *self)
{
  g_return_val_if_fail (self != NULL, 0);

  return self->n_entries;
}

/**
 * ebb_args_get_n_positional:
 * @self: a container
 *
 * Returns: how many values have no key; they come first
 */
guint
ebb_args_get_n_positional (EbbArgs *self)
{
  g_return_val_if_fail (self != NULL, 0);

  return self->n_positional;
}

/**
 * ebb_args_get_key:
 * @self: a container
 * @index: the position of a value
 *
 * Returns: (nullable) (transfer none): its key, %NULL if it has none
 */
const char *
ebb_args_get_key (EbbArgs *self, guint index)
{
  g_return_val_if_fail (self != NULL, NULL);
  g_return_val_if_fail (index < self->n_entries, NULL);

  return self->entries[index].key;
}

/**
 * ebb_args_find:
 * @self: a container
 * @key: a key
 *
 * Returns: the position of the value with that key, -1 if there is none
 */
int
ebb_args_find (EbbArgs *self, const char *key)
{
  g_return_val_if_fail (self != NULL, -1);
  g_return_val_if_fail (key != NULL, -1);

  if (self->index != NULL)
    {
      guint place = GPOINTER_TO_UINT (g_hash_table_lookup (self->index, key));

      return place > 0 ? (int) (self->n_positional + place - 1) : -1;
    }
  for (guint i = self->n_positional; i < self->n_entries; i++)
    if (strcmp (self->entries[i].key, key) == 0)
      return (int) i;
  return -1;
}

/**
 * ebb_args_get_value_kind:
 * @self: a container
 * @index: the position of a value
 *
 * Returns: what the value is
 */
EbbValueKind
ebb_args_get_value_kind (EbbArgs *self, guint index)
{
  g_return_val_if_fail (self != NULL, EBB_VALUE_NONE);
  g_return_val_if_fail (index < self->n_entries, EBB_VALUE_NONE);

  return self->entries[index].kind;
}

/**
 * ebb_args_get_boolean:
 * @self: a container
 * @index: the position of a value
 *
 * Returns: the truth value; of an integer, whether it is not zero; %FALSE for anything else
 */
gboolean
ebb_args_get_boolean (EbbArgs *self, guint index)
{
  g_return_val_if_fail (self != NULL, FALSE);
  g_return_val_if_fail (index < self->n_entries, FALSE);

  switch (self->entries[index].kind)
    {
    case EBB_VALUE_BOOL: return self->entries[index].as.boolean;
    case EBB_VALUE_INT: return self->entries[index].as.integer != 0;
    default: return FALSE;
    }
}

/**
 * ebb_args_get_int:
 * @self: a container
 * @index: the position of a value
 *
 * Returns: the integer; 1 or 0 of a truth value; 0 for anything else
 */
gint64
ebb_args_get_int (EbbArgs *self, guint index)
{
  g_return_val_if_fail (self != NULL, 0);
  g_return_val_if_fail (index < self->n_entries, 0);

  switch (self->entries[index].kind)
    {
    case EBB_VALUE_INT: return self->entries[index].as.integer;
    case EBB_VALUE_BOOL: return self->entries[index].as.boolean;
    default: return 0;
    }
}

/**
 * ebb_args_get_double:
 * @self: a container
 * @index: the position of a value
 *
 * Returns: the number, an integer as a double; 0 for anything else
 */
double
ebb_args_get_double (EbbArgs *self, guint index)
{
  g_return_val_if_fail (self != NULL, 0);
  g_return_val_if_fail (index < self->n_entries, 0);

  if (self->entries[index].kind == EBB_VALUE_DOUBLE)
    return self->entries[index].as.real;
  return (double) ebb_args_get_int (self, index);
}

/**
 * ebb_args_get_string:
 * @self: a container
 * @index: the position of a value
 *
 * Returns: (nullable) (transfer none): the string; %NULL for anything else
 */
const char *
ebb_args_get_string (EbbArgs *self, guint index)
{
  g_return_val_if_fail (self != NULL, NULL);
  g_return_val_if_fail (index < self->n_entries, NULL);

  return self->entries[index].kind == EBB_VALUE_STRING ? self->entries[index].as.string : NULL;
}

EbbTensor *
ebb_args_peek_tensor (EbbArgs *self, guint index)
{
  if (self == NULL || index >= self->n_entries || self->entries[index].kind != EBB_VALUE_TENSOR)
    return NULL;
  return self->entries[index].as.tensor;
}

EbbArgs *
ebb_args_peek_args (EbbArgs *self, guint index)
{
  if (self == NULL || index >= self->n_entries || self->entries[index].kind != EBB_VALUE_ARGS)
    return NULL;
  return self->entries[index].as.args;
}

EbbTensor *
ebb_args_peek_only_tensor (EbbArgs *self)
{
  return self != NULL && self->n_entries == 1 && self->n_positional == 1 ? ebb_args_peek_tensor (self, 0) : NULL;
}

/**
 * ebb_args_get_tensor:
 * @self: a container
 * @index: the position of a value
 *
 * Returns: (nullable) (transfer full): the tensor; %NULL for anything else
 */
EbbTensor *
ebb_args_get_tensor (EbbArgs *self, guint index)
{
  EbbTensor *tensor;

  g_return_val_if_fail (self != NULL, NULL);
  g_return_val_if_fail (index < self->n_entries, NULL);

  tensor = ebb_args_peek_tensor (self, index);
  return tensor != NULL ? ebb_tensor_ref (tensor) : NULL;
}

/**
 * ebb_args_get_args:
 * @self: a container
 * @index: the position of a value
 *
 * Returns: (nullable) (transfer full): the nested container; %NULL for anything else
 */
EbbArgs *
ebb_args_get_args (EbbArgs *self, guint index)
{
  EbbArgs *args;

  g_return_val_if_fail (self != NULL, NULL);
  g_return_val_if_fail (index < self->n_entries, NULL);

  args = ebb_args_peek_args (self, index);
  return args != NULL ? ebb_args_ref (args) : NULL;
}

GObject *
ebb_args_peek_object (EbbArgs *self, guint index)
{
  return self->entries[index].kind == EBB_VALUE_OBJECT ? self->entries[index].as.object : NULL;
}

/**
 * ebb_args_get_object:
 * @self: a container
 * @index: the position of a value
 *
 * Returns: (nullable) (transfer full) (type GObject.Object): the object; %NULL for anything else
 */
GObject *
ebb_args_get_object (EbbArgs *self, guint index)
{
  g_return_val_if_fail (self != NULL, NULL);
  g_return_val_if_fail (index < self->n_entries, NULL);

  return self->entries[index].kind == EBB_VALUE_OBJECT ? g_object_ref (self->entries[index].as.object) : NULL;
}

/* Keeps the search for a key short where there are many, as in a state dict. */
static void
args_index (EbbArgs *self)
{
  guint n_keys = self->n_entries - self->n_positional;
  guint first = n_keys - 1;

  if (n_keys < MANY_KEYS)
    return;
  if (self->index == NULL)
    {
      self->index = g_hash_table_new (g_str_hash, g_str_equal);
      first = 0;
    }
  for (guint i = first; i < n_keys; i++)
    g_hash_table_insert (self->index, self->entries[self->n_positional + i].key, GUINT_TO_POINTER (i + 1));
}

/* The entry to fill for @key: the one of that key, which is replaced, or a new one behind those of its kind. */
static Entry *
args_add (EbbArgs *self, const char *key, EbbValueKind kind)
{
  Entry *entry;
  guint position;

  if (key != NULL)
    {
      int old = ebb_args_find (self, key);

      if (old >= 0)
        {
          entry_clear (&self->entries[old]);
          self->entries[old].kind = kind;
          return &self->entries[old];
        }
    }
  if (self->n_entries == self->n_allocated)
    {
      self->n_allocated *= 2;
      if (self->entries == self->few)
        {
          self->entries = g_new (Entry, self->n_allocated);
          memcpy (self->entries, self->few, sizeof self->few);
        }
      else
        self->entries = g_renew (Entry, self->entries, self->n_allocated);
    }
  position = key != NULL ? self->n_entries : self->n_positional++;
  entry = &self->entries[position];
  memmove (entry + 1, entry, (self->n_entries - position) * sizeof *entry);
  self->n_entries++;
  entry->key = g_strdup (key);
  entry->kind = kind;
  if (key != NULL)
    args_index (self);
  return entry;
}

/* Lists have no keys, dictionaries nothing else, and a bare one holds a single value. */
static gboolean
args_accepts (EbbArgs *self, const char *key)
{
  switch (self->kind)
    {
    case EBB_ARGS_BARE: return key == NULL && self->n_entries == 0;
    case EBB_ARGS_LIST: return key == NULL;
    case EBB_ARGS_DICT: return key != NULL;
    case EBB_ARGS_TUPLE: break;
    }
  return TRUE;
}

/**
 * ebb_args_add_none:
 * @self: a container
 * @key: (nullable): the value's key, %NULL for the next positional value
 *
 * Adds nothing, as a value. A value whose key exists replaces the old one.
 */
void
ebb_args_add_none (EbbArgs *self, const char *key)
{
  g_return_if_fail (self != NULL);
  g_return_if_fail (args_accepts (self, key));

  args_add (self, key, EBB_VALUE_NONE);
}

/**
 * ebb_args_add_boolean:
 * @self: a container
 * @key: (nullable): the value's key, %NULL for the next positional value
 * @value: a truth value
 *
 * Adds a truth value.
 */
void
ebb_args_add_boolean (EbbArgs *self, const char *key, gboolean value)
{
  g_return_if_fail (self != NULL);
  g_return_if_fail (args_accepts (self, key));

  args_add (self, key, EBB_VALUE_BOOL)->as.boolean = value != FALSE;
}

/**
 * ebb_args_add_int:
 * @self: a container
 * @key: (nullable): the value's key, %NULL for the next positional value
 * @value: an integer
 *
 * Adds an integer.
 */
void
ebb_args_add_int (EbbArgs *self, const char *key, gint64 value)
{
  g_return_if_fail (self != NULL);
  g_return_if_fail (args_accepts (self, key));

  args_add (self, key, EBB_VALUE_INT)->as.integer = value;
}

/**
 * ebb_args_add_double:
 * @self: a container
 * @key: (nullable): the value's key, %NULL for the next positional value
 * @value: a number
 *
 * Adds a number.
 */
void
ebb_args_add_double (EbbArgs *self, const char *key, double value)
{
  g_return_if_fail (self != NULL);
  g_return_if_fail (args_accepts (self, key));

  args_add (self, key, EBB_VALUE_DOUBLE)->as.real = value;
}

/**
 * ebb_args_add_string:
 * @self: a container
 * @key: (nullable): the value's key, %NULL for the next positional value
 * @value: a string in UTF-8
 *
 * Adds a copy of a string.
 */
void
ebb_args_add_string (EbbArgs *self, const char *key, const char *value)
{
  char *copy;
  g_return_if_fail (self != NULL);
  g_return_if_fail (value != NULL);
  g_return_if_fail (args_accepts (self, key));

  copy = g_strdup (value);
  args_add (self, key, EBB_VALUE_STRING)->as.string = copy;
}

/**
 * ebb_args_add_tensor:
 * @self: a container
 * @key: (nullable): the value's key, %NULL for the next positional value
 * @value: a tensor
 *
 * Adds a tensor; the container takes its own reference.
 */
void
ebb_args_add_tensor (EbbArgs *self, const char *key, EbbTensor *value)
{
  g_return_if_fail (self != NULL);
  g_return_if_fail (value != NULL);
  g_return_if_fail (args_accepts (self, key));

  ebb_tensor_ref (value); /* before an old value goes, which may be the same */
  args_add (self, key, EBB_VALUE_TENSOR)->as.tensor = value;
}

/**
 * ebb_args_add_args:
 * @self: a container
 * @key: (nullable): the value's key, %NULL for the next positional value
 * @value: another container, which does not hold @self
 *
 * Adds a nested container; the outer one takes its own reference.
 */
void
ebb_args_add_args (EbbArgs *self, const char *key, EbbArgs *value)
{
  g_return_if_fail (self != NULL);
  g_return_if_fail (value != NULL && value != self);
  g_return_if_fail (args_accepts (self, key));

  ebb_args_ref (value);
  args_add (self, key, EBB_VALUE_ARGS)->as.args = value;
}

/**
 * ebb_args_add_object:
 * @self: a container
 * @key: (nullable): the value's key, %NULL for the next positional value
 * @value: (type GObject.Object): any object
 *
 * Adds an object, which travels as it is; the container takes its own reference.
 */
void
ebb_args_add_object (EbbArgs *self, const char *key, GObject *value)
{
  g_return_if_fail (self != NULL);
  g_return_if_fail (G_IS_OBJECT (value));
  g_return_if_fail (args_accepts (self, key));

  g_object_ref (value);
  args_add (self, key, EBB_VALUE_OBJECT)->as.object = value;
}

void
ebb_args_add_value (EbbArgs *self, const char *key, EbbArgs *other, guint index)
{
  const Entry *entry = index < other->n_entries ? &other->entries[index] : NULL;

  switch (entry != NULL ? entry->kind : EBB_VALUE_NONE)
    {
    case EBB_VALUE_NONE: ebb_args_add_none (self, key); break;
    case EBB_VALUE_BOOL: ebb_args_add_boolean (self, key, entry->as.boolean); break;
    case EBB_VALUE_INT: ebb_args_add_int (self, key, entry->as.integer); break;
    case EBB_VALUE_DOUBLE: ebb_args_add_double (self, key, entry->as.real); break;
    case EBB_VALUE_STRING: ebb_args_add_string (self, key, entry->as.string); break;
    case EBB_VALUE_TENSOR: ebb_args_add_tensor (self, key, entry->as.tensor); break;
    case EBB_VALUE_ARGS: ebb_args_add_args (self, key, entry->as.args); break;
    case EBB_VALUE_OBJECT: ebb_args_add_object (self, key, entry->as.object); break;
    }
}

/* -- freeing ------------------------------------------------------------------------------------------------------- */

static void
entry_clear (Entry *entry)
{
  switch (entry->kind)
    {
    case EBB_VALUE_STRING: g_free (entry->as.string); break;
    case EBB_VALUE_TENSOR: ebb_tensor_unref (entry->as.tensor); break;
    case EBB_VALUE_ARGS: ebb_args_unref (entry->as.args); break;
    case EBB_VALUE_OBJECT: g_object_unref (entry->as.object); break;
    case EBB_VALUE_NONE:
    case EBB_VALUE_BOOL:
    case EBB_VALUE_INT:
    case EBB_VALUE_DOUBLE: break;
    }
  entry->kind = EBB_VALUE_NONE;
}

static void
args_free (EbbArgs *self)
{
  for (guint i = 0; i < self->n_entries; i++)
    {
      entry_clear (&self->entries[i]);
      g_free (self->entries[i].key);
    }
  if (self->entries != self->few)
    g_free (self->entries);
  g_clear_pointer (&self->index, g_hash_table_unref);
  g_slice_free (EbbArgs, self);
}

/**
 * ebb_args_unref:
 * @self: (transfer full): a container
 *
 * Drops a reference; the last one frees the container and drops its values.
 */
void
ebb_args_unref (EbbArgs *self)
{
  /* Those that wait while one that holds them is freed: however deep they are nested, no stack must hold them all. */
  static _Thread_local EbbArgs *doomed;
  static _Thread_local gboolean dooming;

  g_return_if_fail (self != NULL);

  if (!g_atomic_int_dec_and_test (&self->ref_count))
    return;
  self->doomed = doomed;
  doomed = self;
  if (dooming)
    return;
  dooming = TRUE;
  while (doomed != NULL)
    {
      self = doomed;
      doomed = self->doomed;
      args_free (self);
    }
  dooming = FALSE;
}
