/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/data/dataset.h"

G_BEGIN_DECLS

/* Where a token has nothing to predict, as the losses read it. */
#define EBB_DATASET_NO_TARGET ((gint64) -100)

/* One row of a batch; each has as many elements as the context. */
typedef struct
{
  gint64 *tokens;
  gint64 *targets;
  gint64 *starts; /* NULL unless the class has starts */
} EbbDatasetRow;

/* The functions of a class of datasets. Contexts are positive, and check_context () has accepted them. */
typedef struct
{
  /* Reads what the properties say; again, once it has succeeded, it does nothing. */
  gboolean (*open) (EbbDataset *self,
                    GError **error);
  gint64 (*get_n_tokens) (EbbDataset *self);
  /* FALSE with an error if there is no row of this many tokens, which may be 0 or less. */
  gboolean (*check_context) (EbbDataset *self,
                             gint64 context,
                             GError **error);
  gint64 (*get_n_rows) (EbbDataset *self,
                        gint64 context);
  /* Reads the row that is taken at @position, which counts on through the epochs. */
  gboolean (*read_row) (EbbDataset *self,
                        gint64 position,
                        gint64 context,
                        const EbbDatasetRow *row,
                        GError **error);
  /* Takes a share, more than 0 and less than 1, out of @self. */
  EbbDataset *(*hold_out) (EbbDataset *self,
                           double share,
                           GError **error);
  gint64 (*get_checksum) (EbbDataset *self);
  /* The files' names, or what else messages call it. */
  char *(*get_names) (EbbDataset *self);
  gboolean has_starts;
} EbbDatasetKind;

typedef struct
{
  guint64 seed;
  gboolean shuffle;
  gint64 position;
  gboolean is_constructed;
  struct _EbbDryRun *run; /* the innermost dry run that gives this back, or NULL */
} EbbDatasetPrivate;

EbbDatasetPrivate *ebb_dataset_get_private (EbbDataset *self);

/* Fails if ebb_dataset_load_state () would. */
gboolean ebb_dataset_check_state (EbbDataset *self,
                                  EbbArgs *state,
                                  GError **error);

/* Whether a context is positive. */
gboolean ebb_dataset_check_positive_context (gint64 context,
                                             GError **error);
/* Which of @n_rows is taken at @position; without shuffling they come in order. Without NULL *@key is a number of the
 * seed and the epoch. */
gint64 ebb_dataset_find_row (EbbDataset *self,
                             gint64 position,
                             gint64 n_rows,
                             guint64 *key);
/* Always FALSE: the text called @name is empty. */
gboolean ebb_dataset_fail_empty (const char *name,
                                 GError **error);
/* Tokens in narrow storage, of @width bytes each: 1, 2 or 4. FALSE with an error if one isn't below @vocab_size. */
gboolean ebb_tokens_store (void *storage,
                           guint width,
                           gint64 place,
                           const gint64 *tokens,
                           gint64 n,
                           gint64 vocab_size,
                           GError **error);
/* @tokens may end where @storage ends. */
void ebb_tokens_load (const void *storage,
                      guint width,
                      gint64 place,
                      gint64 n,
                      gint64 *tokens);
/* The paths in one text, or @other without any. */
char *ebb_dataset_join_paths (char *const *paths,
                              const char *other);

/* The finaliser of splitmix64 (Steele et al., "Fast splittable pseudorandom number generators", 2014). */
guint64 ebb_dataset_mix (guint64 x);
/* The place of @index among @n, in an order that @key names. */
guint64 ebb_dataset_permute (guint64 index,
                             guint64 n,
                             guint64 key);

G_END_DECLS
