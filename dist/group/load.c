/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "dist/group/process-group-private.h"
#include "dist/group/rendezvous-private.h"
#include "tensor/backend/module-private.h"
#include "tensor/n-threads-private.h"

#include <gmodule.h>
#include <string.h>

#define FILE_PREFIX "ebb-process-group-"

static void
set_n_threads (int n_threads)
{
  if (g_getenv ("OMP_NUM_THREADS") == NULL)
    ebb_cpu_set_n_threads (n_threads);
}

const EbbProcessGroupHost ebb_process_group_host = {
  .version = EBB_PROCESS_GROUP_VERSION,
  .get_type = ebb_process_group_get_type,
  .get_error_quark = ebb_error_quark,
  .get_dtype_size = ebb_dtype_get_size,
  .get_dtype_name = ebb_dtype_get_name,
  .get_rank = ebb_process_group_get_rank,
  .get_size = ebb_process_group_get_size,
  .get_timeout = ebb_process_group_get_timeout,
  .reduce = ebb_collective_reduce,
  .call_to_string = ebb_collective_call_to_string,
  .get_name = ebb_process_group_get_name,
  .get_device_name = ebb_device_get_name,
  .count_mpi_processes = ebb_process_group_count_mpi_processes,
  .set_n_threads = set_n_threads,
  .find_rank = ebb_rendezvous_find_rank,
  .spread = ebb_rendezvous_spread,
  .load = ebb_process_group_load,
};

static EbbProcessGroup *
open_module (const char *path,
             const char *name,
             GError **error)
{
  GModule *module = g_module_open (path, G_MODULE_BIND_LOCAL);
  GError *failure = NULL;
  gpointer symbol = NULL;
  EbbProcessGroup *group;

  if (module == NULL)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED, "process group \"%s\": %s", name, g_module_error ());
      return NULL;
    }
  if (!g_module_symbol (module, EBB_PROCESS_GROUP_MODULE_SYMBOL, &symbol) || symbol == NULL)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED,
                   "process group \"%s\": %s has no symbol " EBB_PROCESS_GROUP_MODULE_SYMBOL, name, path);
      g_module_close (module);
      return NULL;
    }
  /* Its type is registered to the end. */
  g_module_make_resident (module);
  group = ((EbbProcessGroupOpen) symbol) (&ebb_process_group_host, &failure);
  if (group != NULL)
    return group;
  if (failure == NULL)
    g_set_error (&failure, EBB_ERROR, EBB_ERROR_CALLBACK, "%s gives no group, and no reason", path);
  g_prefix_error (&failure, "process group \"%s\": ", name);
  g_propagate_error (error, failure);
  return NULL;
}

EbbProcessGroup *
ebb_process_group_load (const char *name,
                        GError **error)
{
  g_autoptr (GString) tried = g_string_new (NULL);
  g_autofree char *path = ebb_module_find (FILE_PREFIX, name, tried);

  if (path == NULL)
    {
      g_auto (GStrv) names = ebb_module_list (FILE_PREFIX);
      g_autofree char *modules = g_strjoinv (", ", names);

      g_set_error (error, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED,
                   "no process groups \"%s\" here; there is single%s%s%s%s%s", name, *modules != '\0' ? ", " : "",
                   modules, tried->len > 0 ? " (there is no " : "", tried->str, tried->len > 0 ? ")" : "");
      return NULL;
    }
  return open_module (path, name, error);
}
