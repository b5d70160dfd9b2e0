/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "tensor/backend/module-private.h"

#include "tensor/error-private.h"
#include "tensor/memory.h"
#include "tensor/n-threads-private.h"

#include <dlfcn.h>
#include <gmodule.h>
#include <string.h>

/* Finds and loads backends that are modules of their own. */

#define FILE_PREFIX "ebb-backend-"
#define FILE_SUFFIX "." G_MODULE_SUFFIX

static const EbbKernelFunc *
get_cpu_kernels (void)
{
  return ebb_cpu_backend.get_kernels ();
}

static gsize
get_cpu_workspace (const EbbLaunch *launch)
{
  return ebb_cpu_backend.get_workspace != NULL ? ebb_cpu_backend.get_workspace (0, launch) : 0;
}

static const EbbBackendHost host = {
  .version = EBB_BACKEND_VERSION,
  .get_error_quark = ebb_error_quark,
  .get_kernel_name = ebb_kernel_get_name,
  .get_dtype_size = ebb_dtype_get_size,
  .get_cpu_kernels = get_cpu_kernels,
  .get_cpu_workspace = get_cpu_workspace,
  .get_n_threads = ebb_cpu_get_n_threads,
  .set_n_threads = ebb_cpu_set_n_threads,
  .parse_size = ebb_memory_parse_size,
  .index_fault_to_string = ebb_index_fault_to_string,
};

/* -- where --------------------------------------------------------------------------------------------------------- */

/* The folder of the library, or of the program where it is linked in. */
static char *
get_own_folder (void)
{
  g_autofree char *path = NULL;
  Dl_info info;

  if (dladdr (&host, &info) == 0 || info.dli_fname == NULL)
    return NULL;
  path = g_canonicalize_filename (info.dli_fname, NULL);
  return g_path_get_dirname (path);
}

/* Beside the library both where it is installed and where it is built; the folder above serves programs of a build
 * that have it linked in, the last one those that are installed, wherever that is. */
static GPtrArray *
list_folders (void)
{
  GPtrArray *folders = g_ptr_array_new_with_free_func (g_free);
  const char *path = g_getenv ("EBB_BACKEND_PATH");
  g_autofree char *own = get_own_folder ();

  if (path != NULL)
    {
      g_auto (GStrv) parts = g_strsplit (path, G_SEARCHPATH_SEPARATOR_S, -1);

      for (guint i = 0; parts[i] != NULL; i++)
        if (parts[i][0] != '\0')
          g_ptr_array_add (folders, g_strdup (parts[i]));
    }
  if (own != NULL)
    {
      g_autofree char *above = g_path_get_dirname (own);

      g_ptr_array_add (folders, g_build_filename (own, "ebb-1.0", "backends", NULL));
      g_ptr_array_add (folders, g_build_filename (above, "ebb-1.0", "backends", NULL));
    }
  g_ptr_array_add (folders, g_strdup (EBB_INSTALLED_BACKENDS_DIR));
  return folders;
}

static int
compare_names (gconstpointer a,
               gconstpointer b)
{
  return strcmp (*(const char *const *) a, *(const char *const *) b);
}

char **
ebb_module_list (const char *prefix)
{
  g_autoptr (GPtrArray) folders = list_folders ();
  g_autoptr (GPtrArray) names = g_ptr_array_new_with_free_func (g_free);
  GStrvBuilder *distinct = g_strv_builder_new ();
  char **list;

  for (guint i = 0; i < folders->len; i++)
    {
      g_autoptr (GDir) folder = g_dir_open (folders->pdata[i], 0, NULL);
      const char *file;

      while (folder != NULL && (file = g_dir_read_name (folder)) != NULL)
        if (g_str_has_prefix (file, prefix) && g_str_has_suffix (file, FILE_SUFFIX))
          g_ptr_array_add (names, g_strndup (file + strlen (prefix),
                                             strlen (file) - strlen (prefix) - strlen (FILE_SUFFIX)));
    }
  g_ptr_array_sort (names, compare_names);
  for (guint i = 0; i < names->len; i++)
    if (i == 0 || strcmp (names->pdata[i], names->pdata[i - 1]) != 0)
      g_strv_builder_add (distinct, names->pdata[i]);
  list = g_strv_builder_end (distinct);
  g_strv_builder_unref (distinct);
  return list;
}

static gboolean
is_module_name (const char *name)
{
  if (*name == '\0')
    return FALSE;
  for (const char *p = name; *p != '\0'; p++)
    if (!g_ascii_islower (*p) && !g_ascii_isdigit (*p))
      return FALSE;
  return TRUE;
}

char *
ebb_module_find (const char *prefix,
                 const char *name,
                 GString *tried)
{
  g_autoptr (GPtrArray) folders = list_folders ();
  g_autofree char *file_name = g_strconcat (prefix, name, FILE_SUFFIX, NULL);

  for (guint i = 0; is_module_name (name) && i < folders->len; i++)
    {
      g_autofree char *path = g_build_filename (folders->pdata[i], file_name, NULL);

      if (g_file_test (path, G_FILE_TEST_IS_REGULAR))
        return g_steal_pointer (&path);
      if (tried != NULL)
        g_string_append_printf (tried, "%s%s", tried->len > 0 ? ", " : "", path);
    }
  return NULL;
}

char **
ebb_backend_list_modules (void)
{
  return ebb_module_list (FILE_PREFIX);
}

/* -- loading ------------------------------------------------------------------------------------------------------- */

static const EbbBackend *
open_module (const char *path,
             const char *name,
             GError **error)
{
  GModule *module = g_module_open (path, G_MODULE_BIND_LOCAL);
  const EbbBackend *backend;
  gpointer symbol = NULL;
  GError *failure = NULL;

  if (module == NULL)
    return ebb_fail_null (error, EBB_ERROR_DEVICE, "device \"%s\": %s", name, g_module_error ());
  if (!g_module_symbol (module, EBB_BACKEND_MODULE_SYMBOL, &symbol) || symbol == NULL)
    {
      ebb_error_set (error, EBB_ERROR_DEVICE, "device \"%s\": %s has no symbol " EBB_BACKEND_MODULE_SYMBOL, name, path);
      g_module_close (module);
      return NULL;
    }
  /* Its threads and functions are wanted to the end. */
  g_module_make_resident (module);
  backend = ((EbbBackendOpenFunc) symbol) (&host, &failure);
  if (backend == NULL)
    {
      if (failure == NULL)
        ebb_error_set (&failure, EBB_ERROR_DEVICE, "device \"%s\": %s gives no device, and no reason", name, path);
      g_propagate_error (error, failure);
      return NULL;
    }
  g_clear_error (&failure);
  if (backend->version != EBB_BACKEND_VERSION || strcmp (backend->name, name) != 0)
    return ebb_fail_null (error, EBB_ERROR_DEVICE,
                          "device \"%s\": %s is of \"%s\", version %u; version %u of \"%s\" is wanted", name, path,
                          backend->name, backend->version, EBB_BACKEND_VERSION, name);
  return backend;
}

/* The devices that a user may take instead of one that is not there: not the emulated ones, which are for tests. */
static char *
list_devices_of_users (void)
{
  g_auto (GStrv) names = ebb_backend_list_modules ();
  GString *list = g_string_new ("cpu");

  for (char **name = names; *name != NULL; name++)
    if (strcmp (*name, "sim") != 0 && strcmp (*name, "cudaemu") != 0)
      g_string_append_printf (list, ", %s", *name);
  return g_string_free (list, FALSE);
}

const EbbBackend *
ebb_backend_load (const char *name,
                  GError **error)
{
  g_autofree char *path = ebb_module_find (FILE_PREFIX, name, NULL);

  if (path == NULL)
    {
      g_autofree char *devices = list_devices_of_users ();
      g_autofree char *shown = ebb_escape_text (name);

      return ebb_fail_null (error, EBB_ERROR_DEVICE, "no device \"%s\" here; there is %s to use instead%s", shown,
                            devices, strcmp (name, "cuda") == 0 ? "; the backend for GPUs is not installed" : "");
    }
  return open_module (path, name, error);
}
