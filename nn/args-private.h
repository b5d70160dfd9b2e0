/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/args.h"

G_BEGIN_DECLS

/* Values without a reference; NULL if value @index is of another kind, or there is none. */
EbbTensor *ebb_args_peek_tensor (EbbArgs *self,
                                 guint index);
EbbArgs *ebb_args_peek_args (EbbArgs *self,
                             guint index);
GObject *ebb_args_peek_object (EbbArgs *self,
                               guint index);
/* The one tensor of a container that holds a single value, without a reference; else NULL. */
EbbTensor *ebb_args_peek_only_tensor (EbbArgs *self);
/* How deep containers may be nested in what goes through calls, the outermost one counted. */
#define EBB_ARGS_MAX_DEPTH 500
/* FALSE with @error if containers are nested deeper. */
gboolean ebb_args_check_depth (EbbArgs *self,
                               GError **error);
/* Adds value @index of @other, none if it has no such value. */
void ebb_args_add_value (EbbArgs *self,
                         const char *key,
                         EbbArgs *other,
                         guint index);

typedef enum
{
  EBB_PARAMETER_TENSOR,          /* EbbTensor *, borrowed */
  EBB_PARAMETER_OPTIONAL_TENSOR, /* EbbTensor *, borrowed; NULL if left out or none */
  EBB_PARAMETER_FLAG,            /* gboolean, unchanged if left out or none */
  EBB_PARAMETER_OPTIONAL_OBJECT, /* GObject * of the type, borrowed; unchanged if left out or none */
  EBB_PARAMETER_DOUBLE           /* double, unchanged if left out or none */
} EbbParameterKind;

typedef struct
{
  const char *name;
  EbbParameterKind kind;
  gpointer location;
  GType type; /* of an object */
} EbbParameterSpec;

/* Takes a call's arguments apart as a function's signature says: positional ones in order, the others by name.
 * FALSE with an error that names @owner and the argument. */
gboolean ebb_args_parse (EbbArgs *self,
                         const char *owner,
                         const EbbParameterSpec *specs,
                         guint n_specs,
                         GError **error);

G_END_DECLS
