/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The tokens of a model: how they are spelt, and their numbers. */
#include "nn/data/tokenizer/vocabulary-private.h"

#include "nn/data/tokenizer/characters-private.h"
#include "nn/data/utf8-private.h"
#include "tensor/error-private.h"
#include "tensor/util/json-scanner-private.h"

/* Ids may leave a few numbers out; tables are by id, so that a large one can't ask for all memory. */
#define MAX_ID(n_tokens) (2 * (gint64) (n_tokens) + 65536)

static gboolean
fail_token (const EbbJson *item,
            GError **error,
            const char *problem)
{
  return ebb_fail (error, EBB_ERROR_FORMAT, "the token %s: the id %s %s", ebb_in_message (ebb_json_quote (item->key)),
                   ebb_in_message (ebb_json_quote (item->text != NULL ? item->text : "")), problem);
}

/* Fills in the sizes of the tables. */
static gboolean
measure (EbbVocabulary *self,
         const EbbJson *json,
         gsize *n_bytes,
         GError **error)
{
  gint64 id;

  *n_bytes = 0;
  for (gsize i = 0; i < json->n_items; i++)
    {
      const EbbJson *item = &json->items[i];
      gsize length = strlen (item->key);

      if (!ebb_json_as_int (item, &id) || id < 0)
        return fail_token (item, error, "must be an integer of 0 or more");
      if (id >= MAX_ID (json->n_items))
        return ebb_fail (error, EBB_ERROR_FORMAT,
                         "the token %s: the id %" G_GINT64_FORMAT " is too large for a vocabulary of %" G_GSIZE_FORMAT
                         " tokens",
                         ebb_in_message (ebb_json_quote (item->key)), id, json->n_items);
      self->size = MAX (self->size, (guint32) id + 1);
      self->has_nul |= strstr (item->key, EBB_JSON_NUL) != NULL;
      self->max_length = MAX (self->max_length, (guint32) MIN (length, G_MAXUINT32));
      *n_bytes += length + 1;
    }
  if (*n_bytes >= G_MAXUINT32)
    return ebb_fail (error, EBB_ERROR_FORMAT, "the vocabulary has 4 GiB of text or more");
  self->n_tokens = (guint32) json->n_items;
  return TRUE;
}

static void
add (EbbVocabulary *self,
     guint32 id)
{
  guint64 slot = ebb_hash_bytes (self->spellings + self->offsets[id] - 1, self->lengths[id]) & self->mask;

  while (self->slots[slot] != 0)
    slot = (slot + 1) & self->mask;
  self->slots[slot] = id + 1;
}

gboolean
ebb_vocabulary_read (EbbVocabulary *self,
                     const EbbJson *json,
                     GError **error)
{
  gsize n_bytes, used = 0;
  guint64 n_slots = 16;

  if (json == NULL || json->kind != EBB_JSON_OBJECT)
    return ebb_fail (error, EBB_ERROR_FORMAT, "the vocabulary must be an object");
  if (!measure (self, json, &n_bytes, error))
    return FALSE;
  while (n_slots < 2 * (guint64) self->n_tokens)
    n_slots *= 2;
  self->mask = n_slots - 1;
  self->slots = g_new0 (guint32, n_slots);
  self->offsets = g_new0 (guint32, self->size + 1);
  self->lengths = g_new0 (guint32, self->size + 1);
  self->spellings = g_malloc (n_bytes + 1);
  for (gsize i = 0; i < json->n_items; i++)
    {
      const EbbJson *item = &json->items[i];
      gsize length = strlen (item->key);
      gint64 id = 0;

      ebb_json_as_int (item, &id);
      if (self->offsets[id] != 0)
        return ebb_fail (error, EBB_ERROR_FORMAT, "the id %" G_GINT64_FORMAT " is there twice: of %s and %s", id,
                         ebb_in_message (ebb_json_quote (ebb_vocabulary_get (self, id))),
                         ebb_in_message (ebb_json_quote (item->key)));
      memcpy (self->spellings + used, item->key, length + 1);
      self->offsets[id] = (guint32) used + 1;
      self->lengths[id] = (guint32) length;
      used += length + 1;
      add (self, (guint32) id);
    }
  return TRUE;
}

gint32
ebb_vocabulary_find (const EbbVocabulary *self,
                     const char *text,
                     gsize length)
{
  g_autofree char *spelled = NULL;
  guint64 slot;

  if (self->has_nul && memchr (text, '\0', length) != NULL)
    text = spelled = ebb_utf8_spell_nul (text, length, &length);
  if (length > self->max_length || self->slots == NULL)
    return -1;
  slot = ebb_hash_bytes (text, length) & self->mask;
  for (; self->slots[slot] != 0; slot = (slot + 1) & self->mask)
    {
      guint32 id = self->slots[slot] - 1;

      if (self->lengths[id] == length && memcmp (self->spellings + self->offsets[id] - 1, text, length) == 0)
        return (gint32) id;
    }
  return -1;
}

const char *
ebb_vocabulary_get (const EbbVocabulary *self,
                    gint64 id)
{
  return id < 0 || id >= self->size || self->offsets[id] == 0 ? NULL : self->spellings + self->offsets[id] - 1;
}

void
ebb_vocabulary_clear (EbbVocabulary *self)
{
  g_clear_pointer (&self->spellings, g_free);
  g_clear_pointer (&self->offsets, g_free);
  g_clear_pointer (&self->lengths, g_free);
  g_clear_pointer (&self->slots, g_free);
}
