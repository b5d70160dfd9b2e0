/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/memory.h"

/* The memory of one rank that is a thread, counted beside the whole process. A storage made on a thread with an account
 * belongs to it for life, whichever thread frees it, and holds it. */

G_BEGIN_DECLS

#define EBB_MAX_DEVICES 64

typedef struct
{
  guint64 current[EBB_N_PURPOSES + 1]; /* by purpose, then the total */
  guint64 peak[EBB_N_PURPOSES + 1];
} EbbMemoryCount;

struct _EbbMemoryAccount
{
  int ref_count;
  EbbMemoryCount devices[EBB_MAX_DEVICES]; /* by EbbDevice's number */
};

typedef struct _EbbMemoryAccount EbbMemoryAccount;

EbbMemoryAccount *ebb_memory_account_new (void);
EbbMemoryAccount *ebb_memory_account_ref (EbbMemoryAccount *account);
void ebb_memory_account_unref (EbbMemoryAccount *account);
void ebb_memory_account_count (EbbMemoryAccount *account,
                               EbbDevice *device,
                               guint8 purpose,
                               gint64 n_bytes);
void ebb_memory_account_recount (EbbMemoryAccount *account,
                                 EbbDevice *device,
                                 guint8 from,
                                 guint8 to,
                                 gsize n_bytes);

G_END_DECLS
