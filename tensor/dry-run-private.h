/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/dry-run.h"
#include "tensor/memory-account-private.h"
#include "tensor/tensor-private.h"
#include "tensor/thread-private.h"

/* A dry run: what a thread does in it is done as ever, but for its data. Ops, autograd, modules, wrappers, stores and
 * optimizers run; memory is placed by a heap as the device's own, in addresses that nothing maps, and counted
 * to the run's account; kernels, copies, disks and ranks are left out. So a step's peak, and who holds it, are known
 * without the memory or the time that it takes.
 *
 * Tensors of a run are of the device that they stand for. Those that kernels would have written have no data
 * (storage->no_data), and reading it is EBB_ERROR_DRY_RUN. What the program itself writes is there if it is integers or
 * one number, and ops of few of them compute: no code chooses an allocation by others.
 *
 * Whatever lasts beyond a run is as it was before: the run's own generator draws, and at_end functions take back what
 * objects did (parameters' storages and gradients, optimizers' states). */

G_BEGIN_DECLS

typedef struct _EbbDryRun EbbDryRun;

typedef struct
{
  GDestroyNotify func;
  gpointer data;
} EbbAtEnd;

struct _EbbDryRun
{
  EbbMemoryAccount *account, *outer_account;
  EbbGenerator *generator;
  GHashTable *storages; /* EbbStorage of an adopted tensor -> the run's in place of it */
  GArray *caches;       /* of EbbAtEnd */
  GArray *at_end;       /* of EbbAtEnd */
  GHashTable *replaced; /* what the run has its own of: storages, buffers of stores */
  /* Bytes by device and purpose that are in use outside of the run: those that it doesn't replace once they are
   * counted, before that those that it does. */
  guint64 outside[EBB_MAX_DEVICES][EBB_N_PURPOSES];
  gboolean is_counted[EBB_MAX_DEVICES];
  gboolean has_collectives;
};

typedef struct
{
  EbbModes modes;
  EbbMemoryAccount *account;
} EbbDryScope;

EbbDryRun *ebb_dry_run_new (void);
/* Gives back what it has adopted. Tensors of the run that live on are never to be used. */
void ebb_dry_run_free (EbbDryRun *run);
/* What this thread does from now on is part of the run. */
void ebb_dry_run_enter (EbbDryRun *run,
                        EbbDryScope *outer);
void ebb_dry_run_leave (EbbDryRun *run,
                        const EbbDryScope *outer);
/* In the run: the account of what this thread does outside of it. */
EbbMemoryAccount *ebb_dry_run_get_outer_account (EbbDryRun *run);
EbbMemoryAccount *ebb_dry_run_get_account (EbbDryRun *run);
/* The bytes that the heap of @device has taken up at most. */
guint64 ebb_dry_run_get_extent (EbbDryRun *run,
                                EbbDevice *device);
/* Gives back what the heaps touched of blocks that are free by now. */
void ebb_dry_run_trim (EbbDryRun *run);
/* In the run: @tensor, a parameter or buffer, gets memory of the run on @device in place of its own until the run ends,
 * and has no gradient. Tensors that share memory go on sharing. */
gboolean ebb_dry_run_adopt (EbbDryRun *run,
                            EbbTensor *tensor,
                            EbbDevice *device,
                            GError **error);
/* In the run: it has memory of its own in place of @n_bytes that @owner, any address, has of @device for @purpose. They
 * belong to @account and are left out of what is counted as in use outside; an owner counts once. */
void ebb_dry_run_replace (EbbDryRun *run,
                          gpointer owner,
                          EbbDevice *device,
                          EbbPurpose purpose,
                          guint64 n_bytes,
                          EbbMemoryAccount *account);
/* The same for a tensor's memory. */
void ebb_dry_run_replace_tensor (EbbDryRun *run,
                                 EbbTensor *tensor);
/* In the run: counts what its thread, or without an account the process, has in use on @device outside of the run and
 * the run doesn't replace: tensors that the step reads, or leaves alone. */
void ebb_dry_run_count_outside (EbbDryRun *run,
                                EbbDevice *device);
/* TRUE if the run works on tensors that outlive it, so that what it does to other objects has to be undone. */
gboolean ebb_dry_run_has_adopted (EbbDryRun *run);
/* What @object keeps from this step to the next, in memory of the run, is freed by @clear. It lives as long as the run.
 */
void ebb_dry_run_add_cache (EbbDryRun *run,
                            void (*clear) (gpointer object),
                            gpointer object);
/* Whether there are any. */
gboolean ebb_dry_run_has_caches (EbbDryRun *run);
/* In the run, between steps. Afterwards there are none. */
void ebb_dry_run_clear_caches (EbbDryRun *run);
/* Other ranks must run as much as this one does. */
void ebb_dry_run_note_collective (EbbDryRun *run);
gboolean ebb_dry_run_has_collectives (EbbDryRun *run);
/* The run that this thread is in, or NULL. */
static inline EbbDryRun *
ebb_dry_run_get_current (void)
{
  return ebb_is_dry () ? ebb_thread.account->run : NULL;
}

/* Calls @func at the end, the last one first. */
static inline void
ebb_dry_run_at_end (EbbDryRun *self,
                    GDestroyNotify func,
                    gpointer data)
{
  const EbbAtEnd at_end = { func, data };

  g_array_append_val (self->at_end, at_end);
}

G_END_DECLS
