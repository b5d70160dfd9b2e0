/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "dist/group/process-group-private.h"
#include "nn/module.h"

/* Lets ranks verify that they have the same: texts, outcomes, values, the tensors of a module. Every function that
 * takes a group is collective. None of them counts as a call of the group. */

G_BEGIN_DECLS

/* Each rank's text on all ranks: as many strings as there are ranks, and a NULL. */
char **ebb_agree_gather_texts (EbbProcessGroup *group,
                               const char *text,
                               GError **error);
/* Fails on all ranks, naming a rank and the first line that differs, unless all ranks give the same text.
 * @what names it: "the module". */
gboolean ebb_agree_same_text (EbbProcessGroup *group,
                              const char *what,
                              const char *text,
                              GError **error);
/* Fails on all ranks if one has a @failure, which is taken: with its own on a rank that has one, elsewhere with the
 * first one and the number of its rank. After EBB_ERROR_PROCESS_GROUP no rank knows the outcome of the others. */
gboolean ebb_agree_no_failure (EbbProcessGroup *group,
                               GError *failure,
                               GError **error);
/* The bytes of a contiguous tensor, which the host reads in place where it can (ebb_tensor_get_bytes () would pin the
 * storage); @copy is to be freed. NULL with @error set, or for a tensor without elements. */
const char *ebb_agree_read (EbbTensor *tensor,
                            char **copy,
                            GError **error);
/* Of a tensor's values, by which ranks compare them without sending them. On a device they are copied to the host. */
gboolean ebb_agree_checksum (EbbTensor *tensor,
                             guint64 *checksum,
                             GError **error);

/* -- the tensors of a module --------------------------------------------------------------------------------------- */

/* The tensors that ranks have the same when they begin, each once. */
typedef struct _EbbAgreeTensors EbbAgreeTensors;

EbbAgreeTensors *ebb_agree_tensors_new (void);
void ebb_agree_tensors_free (EbbAgreeTensors *self);
void ebb_agree_tensors_add_parameter (EbbAgreeTensors *self,
                                      const char *name,
                                      EbbTensor *parameter);
/* Adds the buffers of @module and of all modules below it. */
void ebb_agree_tensors_add_buffers (EbbAgreeTensors *self,
                                    EbbModule *module);
/* Appends a line for each tensor: its shape, dtype and kind. */
void ebb_agree_tensors_describe (EbbAgreeTensors *self,
                                 GString *text);
/* Appends a line for each tensor with a checksum of its values. */
gboolean ebb_agree_tensors_describe_values (EbbAgreeTensors *self,
                                            GString *text,
                                            GError **error);
/* Gives all ranks the first rank's values, about @max_bytes at once. The descriptions must be the same on all ranks. A
 * tensor that is not contiguous is an error on all of them. @group: NULL: this rank is alone. */
gboolean ebb_agree_tensors_broadcast (EbbAgreeTensors *self,
                                      EbbProcessGroup *group,
                                      guint64 max_bytes,
                                      const char *purpose,
                                      GError **error);

G_DEFINE_AUTOPTR_CLEANUP_FUNC (EbbAgreeTensors, ebb_agree_tensors_free)

G_END_DECLS
