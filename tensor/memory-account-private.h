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

/* What happens in a dry run to a copy between a device and the host, or between the host and a disk. */
typedef enum
{
  EBB_COPY_TO_HOST,   /* it would begin, */
  EBB_COPY_FROM_HOST, /* in the queue of its direction, */
  EBB_COPY_TO_DISK,   /* or on the thread of the disk, */
  EBB_COPY_FROM_DISK, /* where it goes before what is still to be written */
  EBB_COPY_AWAITED    /* computing comes after it from now on */
} EbbCopyEventKind;

typedef struct
{
  EbbCopyEventKind kind;
  guint64 number;  /* of the copy within its account, from 1 on */
  guint64 after;   /* the copy that it comes after; 0: none */
  guint64 n_bytes; /* 0: awaited */
} EbbCopyEvent;

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
  /* In a dry run alone. */
  void (*copied) (EbbMemoryObserver *self,
                  EbbDevice *device,
                  const EbbCopyEvent *event);
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
  guint64 n_copies;                            /* of a dry run, so far */
};

EbbMemoryAccount *ebb_memory_account_new (void);
EbbMemoryAccount *ebb_memory_account_ref (EbbMemoryAccount *account);
void ebb_memory_account_unref (EbbMemoryAccount *account);
/* Memory of a dry run, which can be read and written only where the run computes. */
void *ebb_memory_account_alloc_dry (EbbMemoryAccount *account,
                                    EbbDevice *device,
                                    gsize size,
                                    GError **error);
/* @account: NULL: of all memory that belongs to no account. */
void ebb_memory_account_push_observer (EbbMemoryAccount *account,
                                       EbbMemoryObserver *observer);
void ebb_memory_account_pop_observer (EbbMemoryAccount *account,
                                      EbbMemoryObserver *observer);

/* Shows @event to the observers of the dry run that this thread is in. */
void ebb_memory_note_copy (EbbDevice *device,
                           const EbbCopyEvent *event);

/* Nothing that observers see is counted meanwhile. */
void ebb_memory_lock_observers (void);
void ebb_memory_unlock_observers (void);
/* "parameters" */
const char *ebb_purpose_get_name (EbbPurpose purpose);

G_END_DECLS
