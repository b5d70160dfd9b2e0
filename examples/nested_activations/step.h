/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <ebb/ebb.h>

/* One training step of a small model, wrapped in one of several ways, and its memory. */

G_BEGIN_DECLS

typedef enum
{
  WRAP_PARTS = 1, /* attention and MLP of each block */
  WRAP_BLOCKS = 2,
  WRAP_MODEL = 4,
} WhatToWrap;

typedef enum
{
  STAY,
  TO_HOST,
  TO_DISK,
} WhereTo;

typedef struct
{
  const char *name;
  WhatToWrap what;
  WhereTo where; /* the inputs of the blocks go, or that of the model if it is wrapped */
  const char *text;
} Way;

typedef struct
{
  int blocks, width, heads, batch, tokens;
  double dropout;
  char *folder; /* NULL: the system's */
  char *device_name;
  EbbDevice *device;
} Sizes;

typedef struct
{
  guint64 inner, outer, in_store; /* bytes after the forward */
  guint64 at_most;                /* bytes at a time in the step, besides parameters and gradients */
  guint n_blocks, n_parts;        /* forwards */
  char **names;                   /* of the parameters */
  GPtrArray *gradients;           /* of EbbTensor, in the same order */
} Step;

gboolean step_run (Step *self,
                   const Sizes *sizes,
                   const Way *way,
                   GError **error);
void step_clear (Step *self);
/* The name of the first parameter whose gradient is not, bit for bit, what it is in @other; NULL: they are equal. */
const char *step_find_difference (const Step *self,
                                  const Step *other);

G_END_DECLS
