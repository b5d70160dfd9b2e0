/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/autograd/saved-tensor.h"

/* A handle as the start of a larger object, for hooks that keep more than a tensor in one piece of memory. */

G_BEGIN_DECLS

struct _EbbHandle
{
  int ref_count;
  gboolean used; /* @tensor is a parameter, counted as used */
  EbbTensor *tensor;
  gpointer data; /* the object itself, of one that ebb_handle_alloc () made */
  GDestroyNotify destroy;
  gsize size; /* bytes of the object that begins with the handle */
};

/* An object of @size bytes that begins with a handle; the rest is zeros. @clear releases what it holds; its memory goes
 * after that. */
gpointer ebb_handle_alloc (gsize size,
                           GDestroyNotify clear);
/* Has a handle that keeps no tensor yet keep one, counted as an activation. */
void ebb_handle_keep (EbbHandle *self,
                      EbbTensor *tensor);

G_END_DECLS
