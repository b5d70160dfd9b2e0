/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "tensor/tensor.h"

G_BEGIN_DECLS

#define EBB_TYPE_ARGS (ebb_args_get_type ())

/**
 * EbbArgs:
 *
 * The arguments or the result of a call: an ordered list of values, each with or without a key, nested at will.
 * Reference-counted; filled once, then left alone: a caller must not change a result.
 */
typedef struct _EbbArgs EbbArgs;

/**
 * EbbArgsKind:
 * @EBB_ARGS_BARE: as a result: its one value itself
 * @EBB_ARGS_LIST: a list
 * @EBB_ARGS_TUPLE: a tuple; also the arguments of a call: positional values, then those with keys
 * @EBB_ARGS_DICT: a dictionary with string keys
 *
 * The kind of a container in the language that made it.
 */
typedef enum
{
  EBB_ARGS_BARE,
  EBB_ARGS_LIST,
  EBB_ARGS_TUPLE,
  EBB_ARGS_DICT
} EbbArgsKind;

/**
 * EbbValueKind:
 * @EBB_VALUE_NONE: nothing: NULL, None, null
 * @EBB_VALUE_BOOL: a truth value
 * @EBB_VALUE_INT: a 64-bit integer
 * @EBB_VALUE_DOUBLE: a double
 * @EBB_VALUE_STRING: a string in UTF-8
 * @EBB_VALUE_TENSOR: a tensor
 * @EBB_VALUE_ARGS: a nested container
 * @EBB_VALUE_OBJECT: any #GObject: comes back as the same object
 *
 * The type of one value.
 */
typedef enum
{
  EBB_VALUE_NONE,
  EBB_VALUE_BOOL,
  EBB_VALUE_INT,
  EBB_VALUE_DOUBLE,
  EBB_VALUE_STRING,
  EBB_VALUE_TENSOR,
  EBB_VALUE_ARGS,
  EBB_VALUE_OBJECT
} EbbValueKind;

EBB_AVAILABLE_IN_ALL
GType ebb_args_get_type (void);

EBB_AVAILABLE_IN_ALL
EbbArgs *ebb_args_new (EbbArgsKind kind);

EBB_AVAILABLE_IN_ALL
EbbArgs *ebb_args_new_for_tensor (EbbTensor *tensor);

EBB_AVAILABLE_IN_ALL
EbbArgs *ebb_args_ref (EbbArgs *self);

EBB_AVAILABLE_IN_ALL
void ebb_args_unref (EbbArgs *self);

EBB_AVAILABLE_IN_ALL
EbbArgsKind ebb_args_get_kind (EbbArgs *self);

EBB_AVAILABLE_IN_ALL
guint ebb_args_get_length (EbbArgs *self);

EBB_AVAILABLE_IN_ALL
guint ebb_args_get_n_positional (EbbArgs *self);

EBB_AVAILABLE_IN_ALL
const char *ebb_args_get_key (EbbArgs *self,
                              guint index);

EBB_AVAILABLE_IN_ALL
int ebb_args_find (EbbArgs *self,
                   const char *key);

EBB_AVAILABLE_IN_ALL
EbbValueKind ebb_args_get_value_kind (EbbArgs *self,
                                      guint index);

EBB_AVAILABLE_IN_ALL
gboolean ebb_args_get_boolean (EbbArgs *self,
                               guint index);

EBB_AVAILABLE_IN_ALL
gint64 ebb_args_get_int (EbbArgs *self,
                         guint index);

EBB_AVAILABLE_IN_ALL
double ebb_args_get_double (EbbArgs *self,
                            guint index);

EBB_AVAILABLE_IN_ALL
const char *ebb_args_get_string (EbbArgs *self,
                                 guint index);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_args_get_tensor (EbbArgs *self,
                                guint index);

EBB_AVAILABLE_IN_ALL
EbbArgs *ebb_args_get_args (EbbArgs *self,
                            guint index);

EBB_AVAILABLE_IN_ALL
GObject *ebb_args_get_object (EbbArgs *self,
                              guint index);

EBB_AVAILABLE_IN_ALL
void ebb_args_add_none (EbbArgs *self,
                        const char *key);

EBB_AVAILABLE_IN_ALL
void ebb_args_add_boolean (EbbArgs *self,
                           const char *key,
                           gboolean value);

EBB_AVAILABLE_IN_ALL
void ebb_args_add_int (EbbArgs *self,
                       const char *key,
                       gint64 value);

EBB_AVAILABLE_IN_ALL
void ebb_args_add_double (EbbArgs *self,
                          const char *key,
                          double value);

EBB_AVAILABLE_IN_ALL
void ebb_args_add_string (EbbArgs *self,
                          const char *key,
                          const char *value);

EBB_AVAILABLE_IN_ALL
void ebb_args_add_tensor (EbbArgs *self,
                          const char *key,
                          EbbTensor *value);

EBB_AVAILABLE_IN_ALL
void ebb_args_add_args (EbbArgs *self,
                        const char *key,
                        EbbArgs *value);

EBB_AVAILABLE_IN_ALL
void ebb_args_add_object (EbbArgs *self,
                          const char *key,
                          GObject *value);

EBB_AVAILABLE_IN_ALL
guint ebb_args_get_n_tensors (EbbArgs *self);

/**
 * EbbArgsMapFunc:
 * @tensor: a tensor found at any depth
 * @user_data: user data
 * @error: return location for an error
 *
 * Returns: (transfer full) (nullable): what stands in its place, or %NULL with @error set
 */
typedef EbbTensor *(*EbbArgsMapFunc) (EbbTensor *tensor,
                                      gpointer user_data,
                                      GError **error);

EBB_AVAILABLE_IN_ALL
EbbArgs *ebb_args_map_tensors (EbbArgs *self,
                               EbbArgsMapFunc func,
                               gpointer user_data,
                               GError **error);

EBB_AVAILABLE_IN_ALL
char *ebb_args_to_string (EbbArgs *self);

G_DEFINE_AUTOPTR_CLEANUP_FUNC (EbbArgs, ebb_args_unref)

G_END_DECLS
