/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "tensor/error.h"

G_BEGIN_DECLS

#define EBB_TYPE_WORK (ebb_work_get_type ())

/**
 * EbbWork:
 *
 * A collective operation that runs in the background. Wait for it with ebb_work_wait(). Releasing it doesn't stop it.
 */
typedef struct _EbbWork EbbWork;

EBB_AVAILABLE_IN_ALL
GType ebb_work_get_type (void);

EBB_AVAILABLE_IN_ALL
EbbWork *ebb_work_ref (EbbWork *work);

EBB_AVAILABLE_IN_ALL
void ebb_work_unref (EbbWork *work);

EBB_AVAILABLE_IN_ALL
gboolean ebb_work_wait (EbbWork *work,
                        GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_work_is_done (EbbWork *work);

G_DEFINE_AUTOPTR_CLEANUP_FUNC (EbbWork, ebb_work_unref)

G_END_DECLS
