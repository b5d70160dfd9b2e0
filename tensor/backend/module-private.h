/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/backend/backend-private.h"

/* Backends that are loaded when their device is first asked for: ebb-backend-NAME, found in the folders of
 * EBB_BACKEND_PATH, then in ebb-1.0/backends beside the library. A module is not linked to the library, which
 * hands over the functions that the module needs. */

G_BEGIN_DECLS

#define EBB_BACKEND_MODULE_SYMBOL "ebb_backend_open_v1"

typedef struct
{
  guint version; /* EBB_BACKEND_VERSION */
  GQuark (*get_error_quark) (void);
  const char *(*get_kernel_name) (EbbKernel kernel);
  gsize (*get_dtype_size) (EbbDType dtype);
  /* The kernels of the CPU, and the threads that those run by the calling thread may use. */
  const EbbKernelFunc *(*get_cpu_kernels) (void);
  /* The bytes of workspace of a kernel of the CPU, run by as many threads as the calling thread may use. */
  gsize (*get_cpu_workspace) (const EbbLaunch *launch);
  int (*get_n_threads) (void);
  void (*set_n_threads) (int n_threads);
  gboolean (*parse_size) (const char *text,
                          guint64 *n_bytes,
                          GError **error);
  char *(*index_fault_to_string) (const char *op,
                                  gint64 index,
                                  gint64 position,
                                  gint64 limit);
} EbbBackendHost;

/* The one symbol of a module. NULL with @error set where the machine can't have such a device. */
typedef const EbbBackend *(*EbbBackendOpenFunc) (const EbbBackendHost *host,
                                                 GError **error);

/* Defines that symbol, which returns @backend and keeps the library's functions in @host_variable. The library compares
 * the version of @backend with its own. If they differ, so may EbbBackendHost, and the module keeps none of it. */
#define EBB_DEFINE_BACKEND_MODULE(backend, host_variable)                                 \
  extern __attribute__ ((visibility ("default"))) const EbbBackend *ebb_backend_open_v1 ( \
      const EbbBackendHost *host, GError **error);                                        \
                                                                                          \
  const EbbBackend *ebb_backend_open_v1 (const EbbBackendHost *host, GError **error)      \
  {                                                                                       \
    if (host->version == EBB_BACKEND_VERSION)                                             \
      host_variable = host;                                                               \
    return &backend;                                                                      \
  }

/* The backend of the module for @name; NULL with @error set if there is none or it can't be used. The module stays. */
const EbbBackend *ebb_backend_load (const char *name,
                                    GError **error);

/* The names of the modules that are there, in alphabetical order. */
char **ebb_backend_list_modules (void);

/* Of any kind of module: the path of PREFIX-NAME.so in one of those folders; NULL with the folders that were searched
 * in @tried. And the names of those that are there. */
char *ebb_module_find (const char *prefix,
                       const char *name,
                       GString *tried);
char **ebb_module_list (const char *prefix);

G_END_DECLS
