/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/device.h"
#include "tensor/kernel-private.h"

/* What a device's driver brings: memory, copies, kernels. Plain functions; the version guards loaded modules. */

G_BEGIN_DECLS

#define EBB_BACKEND_VERSION 1

typedef struct
{
  guint version;
  const char *name;
  gboolean host_memory; /* the host may read and write its memory at any time */
  void *(*alloc) (int index,
                  gsize size,
                  GError **error); /* aligned to 64 bytes at least */
  void (*free) (int index,
                void *data,
                gsize size);
  gboolean (*copy) (void *destination,
                    const void *source,
                    gsize size,
                    gboolean to_host,
                    GError **error); /* between this device and the host; NULL where host_memory */
  gboolean (*synchronize) (int index,
                           GError **error);   /* NULL: nothing runs behind the caller's back */
  const EbbKernelFunc *(*get_kernels) (void); /* EBB_N_KERNELS of them; NULL: the backend lacks that kernel */
} EbbBackend;

/* Makes a device of that name available; the backend must stay. A name is registered once. */
void ebb_backend_register (const EbbBackend *backend);

struct _EbbDevice
{
  const EbbBackend *backend;
  int index;
  char *name;
  const EbbKernelFunc *kernels;
  /* accounting, in bytes; see memory.c */
  guint64 current[6]; /* by purpose, then the total */
  guint64 peak[6];
  guint64 limit;
};

extern const EbbBackend ebb_cpu_backend;

/* Memory of @device counted under @purpose. */
void *ebb_device_alloc (EbbDevice *device,
                        gsize size,
                        guint8 purpose,
                        GError **error);
void ebb_device_free (EbbDevice *device,
                      void *data,
                      gsize size,
                      guint8 purpose);
/* Counts memory from elsewhere, or moves counted bytes from one purpose to another. */
void ebb_device_count (EbbDevice *device,
                       guint8 purpose,
                       gint64 n_bytes);
void ebb_device_recount (EbbDevice *device,
                         guint8 from,
                         guint8 to,
                         gsize n_bytes);

G_END_DECLS
