/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Finds the added tokens of a text: of those that begin first, the longest. */
#include "nn/data/tokenizer/added-tokens-private.h"

#include "nn/data/tokenizer/characters-private.h"
#include "tensor/util/json-scanner-private.h"

#include <string.h>

/* A node has 24 bits of an edge. */
#define MAX_NODES ((guint32) 1 << 24)

/* -- the tree ------------------------------------------------------------------------------------------------------ */

static guint64
find_edge (const EbbAddedTokenTree *self,
           guint32 node,
           guint8 byte)
{
  guint64 key = (guint64) node << 8 | byte;
  guint64 slot = key * G_GUINT64_CONSTANT (0x9e3779b97f4a7c15);

  slot = (slot ^ slot >> 32) & self->mask;
  while (self->edges[slot] != 0 && self->edges[slot] >> 32 != key)
    slot = (slot + 1) & self->mask;
  return slot;
}

/* 0 if no token goes on with @byte. */
static guint32
step_down (const EbbAddedTokenTree *self,
           guint32 node,
           guint8 byte)
{
  guint64 edge = self->edges[find_edge (self, node, byte)];

  return edge == 0 ? 0 : (guint32) edge - 1;
}

static void
grow (EbbAddedTokenTree *self)
{
  guint64 *old = self->edges, n_old = old != NULL ? self->mask + 1 : 0;

  self->mask = n_old > 0 ? 2 * n_old - 1 : 255;
  self->edges = g_new0 (guint64, self->mask + 1);
  for (guint64 i = 0; i < n_old; i++)
    if (old[i] != 0)
      self->edges[find_edge (self, (guint32) (old[i] >> 40), (guint8) (old[i] >> 32))] = old[i];
  g_free (old);
}

static guint32
make_node (EbbAddedTokenTree *self)
{
  if ((self->n_nodes & (self->n_nodes - 1)) == 0)
    self->tokens = g_renew (const EbbAddedToken *, self->tokens, MAX (2 * self->n_nodes, 1));
  self->tokens[self->n_nodes] = NULL;
  return self->n_nodes++;
}

/* Whether U+0000 is at @p: tokens spell it in two bytes, texts have a byte 0. */
static gboolean
is_nul (const char *p)
{
  return g_str_has_prefix (p, EBB_JSON_NUL);
}

gboolean
ebb_added_token_tree_add (EbbAddedTokenTree *self,
                          const EbbAddedToken *token,
                          const char *text)
{
  const guint8 begin = is_nul (text) ? 0 : (guint8) *text;
  guint32 node = 0;

  if (*text == '\0')
    return TRUE;
  if (self->n_nodes + strlen (text) >= MAX_NODES)
    return FALSE;
  self->only_begin = self->n_nodes == 0 || self->only_begin == begin ? begin : -1;
  self->begins[begin] = TRUE;
  if (self->n_nodes == 0)
    make_node (self);
  for (const char *p = text; *p != '\0'; p++)
    {
      const guint8 byte = is_nul (p) ? 0 : (guint8) *p;
      guint64 slot;

      p += is_nul (p);

      if (2 * ((guint64) self->n_edges + 1) > self->mask)
        grow (self);
      slot = find_edge (self, node, byte);
      if (self->edges[slot] == 0)
        {
          guint32 child = make_node (self);

          self->edges[slot] = (guint64) node << 40 | (guint64) byte << 32 | (child + 1);
          self->n_edges++;
          node = child;
        }
      else
        node = (guint32) self->edges[slot] - 1;
    }
  self->tokens[node] = token;
  return TRUE;
}

void
ebb_added_token_tree_clear (EbbAddedTokenTree *self)
{
  g_clear_pointer (&self->tokens, g_free);
  g_clear_pointer (&self->edges, g_free);
  self->n_nodes = 0;
}

/* -- finding ------------------------------------------------------------------------------------------------------- */

/* The first token at @from or behind: NULL if there is none. */
static const EbbAddedToken *
find (const EbbAddedTokenTree *self,
      const char *text,
      gsize length,
      gsize from,
      gsize *start,
      gsize *end)
{
  for (gsize i = from; i < length; i++)
    {
      const EbbAddedToken *longest = NULL;
      guint32 node = 0;

      if (self->only_begin >= 0)
        {
          const char *place = memchr (text + i, self->only_begin, length - i);

          if (place == NULL)
            return NULL;
          i = (gsize) (place - text);
        }
      else if (!self->begins[(guint8) text[i]])
        continue;
      for (gsize j = i; j < length && (node = step_down (self, node, (guint8) text[j])) != 0; j++)
        if (self->tokens[node] != NULL)
          {
            longest = self->tokens[node];
            *end = j + 1;
          }
      if (longest != NULL)
        {
          *start = i;
          return longest;
        }
    }
  return NULL;
}

static gboolean
has_word_beside (const char *text,
                 gsize length,
                 gsize start,
                 gsize end)
{
  return (start > 0 && ebb_character_is_word (g_utf8_get_char (g_utf8_prev_char (text + start))))
         || (end < length && ebb_character_is_word (g_utf8_get_char (text + end)));
}

gboolean
ebb_added_token_tree_foreach (const EbbAddedTokenTree *self,
                              const char *text,
                              gsize length,
                              EbbAddedTokenFunc function,
                              gpointer data,
                              GError **error)
{
  const EbbAddedToken *token;
  gsize done = 0, next = 0, start, end;

  while (self->n_nodes > 0 && (token = find (self, text, length, next, &start, &end)) != NULL)
    {
      next = end;
      if (token->is_single_word && has_word_beside (text, length, start, end))
        continue;
      while (token->takes_left && start > done
             && ebb_character_is_space (g_utf8_get_char (g_utf8_prev_char (text + start))))
        start = (gsize) (g_utf8_prev_char (text + start) - text);
      while (token->takes_right && end < length && ebb_character_is_space (g_utf8_get_char (text + end)))
        end = (gsize) (g_utf8_next_char (text + end) - text);
      if (token->takes_left && end <= done) /* the token before has taken these blanks */
        continue;
      if ((done < start && !function (data, NULL, text + done, start - done, error))
          || !function (data, token, text + start, end - start, error))
        return FALSE;
      done = end;
    }
  return done == length || function (data, NULL, text + done, length - done, error);
}
