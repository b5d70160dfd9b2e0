/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/backend/kernel-private.h"
#include "tensor/memory.h"

/* The memory of a thread's work, counted beside the whole process: of one rank that is a thread, of a step that is
 * looked at, or of a dry run. A storage made on a thread with an account belongs to it for life, whichever thread frees
 * it, and holds it. */

G_BEGIN_DECLS

#define EBB_MAX_DEVICES 64

typedef struct _EbbMemoryObserver EbbMemoryObserver;
typedef struct _EbbMemoryAccount EbbMemoryAccount;

/* Sees every change of the bytes of an account, on whatever thread it happens. A function may be NULL. */
struct _EbbMemoryObserver
{
  EbbMemoryObserver *outer;
  /* @n_bytes of @device pass from the purpose @from to @to, of which EBB_N_PURPOSES stands for free memory. @data: of
   * the storage; NULL: counted by hand, as by a store that keeps many blocks in one allocation. */
  void (*changed) (EbbMemoryObserver *self,
                   EbbDevice *device,
                   const void *data,
                   guint8 from,
                   guint8 to,
                   gsize n_bytes);
  /* @launch runs, or would run if this weren't a dry run; its workspace is counted now. */
  void (*launched) (EbbMemoryObserver *self,
                    EbbDevice *device,
                    const EbbLaunch *launch);
};

typedef struct
{
  guint64 current[EBB_N_PURPOSES + 1]; /* by purpose, then the total */
  guint64 peak[EBB_N_PURPOSES + 1];
} EbbMemoryCount;

struct _EbbMemoryAccount
{
  int ref_count;
  gboolean is_dry; /* nothing of it is allocated, launched or copied, see dry-run-private.h */
  struct _EbbDryRun *run;                      /* of a dry run */
  EbbMemoryObserver *observers;                /* innermost; pushed and popped by the account's own thread alone */
  struct _EbbHostHeap *heaps[EBB_MAX_DEVICES]; /* of a dry run, by EbbDevice's number */
  EbbMemoryCount devices[EBB_MAX_DEVICES];     /* by EbbDevice's number */
};

EbbMemoryAccount *ebb_memory_account_new (void);
EbbMemoryAccount *ebb_memory_account_ref (EbbMemoryAccount *account);
void ebb_memory_account_unref (EbbMemoryAccount *account);
/* @account: NULL: of all memory that belongs to no account. */
void ebb_memory_account_push_observer (EbbMemoryAccount *account,
                                       EbbMemoryObserver *observer);
void ebb_memory_account_pop_observer (EbbMemoryAccount *account,
                                      EbbMemoryObserver *observer);

/* Nothing that observers see is counted meanwhile. */
void ebb_memory_lock_observers (void);
void ebb_memory_unlock_observers (void);
/* "parameters" */
const char *ebb_purpose_get_name (EbbPurpose purpose);

G_END_DECLS
