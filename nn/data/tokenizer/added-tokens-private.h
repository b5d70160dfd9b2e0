/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <glib.h>

/* Tokens that are found in a text before anything else is done with it, such as "<|endoftext|>". */

G_BEGIN_DECLS

/* Looking for a token takes as many steps at each place of a text as it has bytes. Real ones have less than 100. */
#define EBB_MAX_ADDED_TOKEN ((gsize) 1024)

typedef struct
{
  char *content;
  char *decoded; /* what it is to decoders: what the normalizers make of the content if it is sought behind them */
  gint32 id;
  gboolean is_special;
  gboolean is_normalized; /* sought behind the normalizers */
  gboolean takes_left;    /* the blanks before it are its own */
  gboolean takes_right;
  gboolean is_single_word; /* no word character may stand beside it */
} EbbAddedToken;

/* A tree of the bytes of tokens. */
typedef struct
{
  const EbbAddedToken **tokens; /* by node: the token that ends there, or NULL */
  guint32 n_nodes;
  guint64 *edges; /* open addressing: node << 40 | byte << 32 | (child + 1) */
  guint64 mask;
  guint32 n_edges;
  gboolean begins[256]; /* whether a token begins with the byte */
  int only_begin;       /* the byte that all tokens begin with; -1: there are others */
} EbbAddedTokenTree;

/* FALSE if the tree is full: it holds 16 million bytes of tokens. */
gboolean ebb_added_token_tree_add (EbbAddedTokenTree *self,
                                   const EbbAddedToken *token,
                                   const char *text);
void ebb_added_token_tree_clear (EbbAddedTokenTree *self);

/* Calls @function for each part of the text: for a token, or with NULL for text between tokens. */
typedef gboolean (*EbbAddedTokenFunc) (gpointer data,
                                       const EbbAddedToken *token,
                                       const char *text,
                                       gsize length,
                                       GError **error);
gboolean ebb_added_token_tree_foreach (const EbbAddedTokenTree *self,
                                       const char *text,
                                       gsize length,
                                       EbbAddedTokenFunc function,
                                       gpointer data,
                                       GError **error);

G_END_DECLS
