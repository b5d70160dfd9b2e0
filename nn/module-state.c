/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/args-private.h"
#include "nn/module-instance-private.h"
#include "nn/state-private.h"
#include "tensor/autograd.h"
#include "tensor/ops/in-place.h"
#include "tensor/ops/pointwise.h"

#include <string.h>

/* The state dict: parameters and persistent buffers by path. */

#define SHOWN_NAMES 5 /* of each list in a message */

static void
add_state (EbbTensorRegistry *registry, const char *path, EbbArgs *state)
{
  for (guint i = 0; i < registry->n_items; i++)
    if (registry->items[i].tensor != NULL && registry->items[i].persistent)
      {
        g_autofree char *name = ebb_module_join_path (path, registry->items[i].name);
        g_autoptr (EbbTensor) alias = ebb_tensor_alias (registry->items[i].tensor);

        ebb_args_add_tensor (state, name, alias);
      }
}

static gboolean
add_module_state (EbbModule *module, const char *path, gpointer user_data)
{
  EbbModulePrivate *priv = ebb_module_get_private (module);

  add_state (&priv->parameters, path, user_data);
  add_state (&priv->buffers, path, user_data);
  return TRUE;
}

/**
 * ebb_module_get_state_dict:
 * @self: a module
 *
 * Collects the parameters and persistent buffers of the module and of all below it. The tensors share the memory of the
 * module's, and gradients do not flow through them. A shared parameter appears under each of its names.
 *
 * Returns: (transfer full): an %EBB_ARGS_DICT of tensors by path, as in `h.0.attn.c_attn.weight`
 */
EbbArgs *
ebb_module_get_state_dict (EbbModule *self)
{
  EbbArgs *state;

  g_return_val_if_fail (EBB_IS_MODULE (self), NULL);

  state = ebb_args_new (EBB_ARGS_DICT);
  ebb_module_visit_paths (self, add_module_state, state);
  return state;
}

static gboolean
same_shape (EbbTensor *a, EbbTensor *b)
{
  return a->view.n_dims == b->view.n_dims
         && memcmp (a->view.shape, b->view.shape, (gsize) a->view.n_dims * sizeof a->view.shape[0]) == 0;
}

typedef struct
{
  EbbTensor *target; /* of the module */
  EbbTensor *source; /* of the state; owned */
} Transfer;

static void
transfer_clear (gpointer data)
{
  Transfer *transfer = data;

  g_clear_pointer (&transfer->source, ebb_tensor_unref);
}

typedef struct
{
  GHashTable *unused;   /* name -> tensor of the state, until it is asked for */
  GHashTable *received; /* tensors of the module that the state has under one of their names */
  GArray *transfers;
  GPtrArray *absent; /* names that the state has not, with their tensors */
  GPtrArray *absent_tensors;
  GPtrArray *reshaped; /* descriptions of shapes that differ */
} Loading;

static void
match_tensor (Loading *loading, const char *name, EbbTensor *target)
{
  EbbTensor *source = g_hash_table_lookup (loading->unused, name);

  if (source == NULL)
    {
      g_ptr_array_add (loading->absent, g_strdup (name));
      g_ptr_array_add (loading->absent_tensors, target);
      return;
    }
  g_hash_table_remove (loading->unused, name);
  g_hash_table_add (loading->received, target);
  if (same_shape (source, target))
    {
      Transfer transfer = { target, ebb_tensor_ref (source) };

      g_array_append_val (loading->transfers, transfer);
    }
  else
    {
      g_autofree char *given = ebb_tensor_shape_to_string (source);
      g_autofree char *wanted = ebb_tensor_shape_to_string (target);

      g_ptr_array_add (loading->reshaped, g_strdup_printf ("%s %s, not %s", name, given, wanted));
    }
}

static void
match_state (EbbTensorRegistry *registry, const char *path, Loading *loading)
{
  for (guint i = 0; i < registry->n_items; i++)
    if (registry->items[i].tensor != NULL && registry->items[i].persistent)
      {
        g_autofree char *name = ebb_module_join_path (path, registry->items[i].name);

        match_tensor (loading, name, registry->items[i].tensor);
      }
}

static gboolean
match_module_state (EbbModule *module, const char *path, gpointer user_data)
{
  EbbModulePrivate *priv = ebb_module_get_private (module);

  match_state (&priv->parameters, path, user_data);
  match_state (&priv->buffers, path, user_data);
  return TRUE;
}

static void
append_names (GString *text, const char *label, GPtrArray *names)
{
  if (names->len == 0)
    return;
  g_string_append_printf (text, "%s %s (%u): ", text->len > 0 ? ";" : "", label, names->len);
  for (guint i = 0; i < names->len && i < SHOWN_NAMES; i++)
    g_string_append_printf (text, "%s%s", i > 0 ? ", " : "", (const char *) g_ptr_array_index (names, i));
  if (names->len > SHOWN_NAMES)
    g_string_append (text, ", ...");
}

static int
compare_names (gconstpointer a, gconstpointer b)
{
  return g_strcmp0 (*(const char *const *) a, *(const char *const *) b);
}

static gboolean
check_loading (EbbModule *self, Loading *loading, gboolean strict, GError **error)
{
  g_autoptr (GPtrArray) missing = g_ptr_array_new ();
  g_autoptr (GPtrArray) unexpected = g_ptr_array_new ();
  g_autoptr (GString) text = g_string_new (NULL);
  GHashTableIter iter;
  gpointer name;

  /* One name of a shared parameter is enough. */
  for (guint i = 0; strict && i < loading->absent->len; i++)
    if (!g_hash_table_contains (loading->received, g_ptr_array_index (loading->absent_tensors, i)))
      g_ptr_array_add (missing, g_ptr_array_index (loading->absent, i));
  g_hash_table_iter_init (&iter, loading->unused);
  while (strict && g_hash_table_iter_next (&iter, &name, NULL))
    g_ptr_array_add (unexpected, name);
  g_ptr_array_sort (unexpected, compare_names);

  append_names (text, "missing", missing);
  append_names (text, "unexpected", unexpected);
  append_names (text, "of another shape", loading->reshaped);
  if (text->len == 0)
    return TRUE;
  g_set_error (error, EBB_ERROR, EBB_ERROR_STATE, "%s: the state dict does not fit:%s", ebb_module_get_type_name (self),
               text->str);
  return FALSE;
}

/* Everything that can fail comes before the first byte is changed. */
static gboolean
transfer_all (GArray *transfers, GError **error)
{
  gboolean done = TRUE;

  for (guint i = 0; i < transfers->len; i++)
    {
      Transfer *transfer = &g_array_index (transfers, Transfer, i);
      EbbDevice *device = ebb_tensor_get_device (transfer->target);

      if (ebb_tensor_get_device (transfer->source) != device)
        {
          EbbTensor *moved = ebb_to_device (transfer->source, device, error);

          if (moved == NULL)
            return FALSE;
          ebb_tensor_unref (transfer->source);
          transfer->source = moved;
        }
    }
  for (guint i = 0; done && i < transfers->len; i++)
    {
      Transfer *transfer = &g_array_index (transfers, Transfer, i);

      done = ebb_tensor_copy_from (transfer->target, transfer->source, error);
    }
  return done;
}

static gboolean
read_state (EbbModule *self, EbbArgs *state, Loading *loading, GError **error)
{
  for (guint i = 0; i < ebb_args_get_length (state); i++)
    {
      const char *key = ebb_args_get_key (state, i);
      EbbTensor *tensor = ebb_args_peek_tensor (state, i);

      if (key == NULL || tensor == NULL)
        {
          g_set_error (error, EBB_ERROR, EBB_ERROR_STATE, "%s: entry %u of the state dict, \"%s\", is not a tensor",
                       ebb_module_get_type_name (self), i, key != NULL ? key : "");
          return FALSE;
        }
      g_hash_table_insert (loading->unused, (char *) key, tensor);
    }
  return TRUE;
}

gboolean
ebb_module_load_state_into (EbbModule *self, EbbArgs *targets, EbbArgs *state, gboolean strict, GError **error)
{
  g_autoptr (GHashTable) unused = g_hash_table_new (g_str_hash, g_str_equal);
  g_autoptr (GHashTable) received = g_hash_table_new (NULL, NULL);
  g_autoptr (GArray) transfers = g_array_new (FALSE, FALSE, sizeof (Transfer));
  g_autoptr (GPtrArray) absent = g_ptr_array_new_with_free_func (g_free);
  g_autoptr (GPtrArray) absent_tensors = g_ptr_array_new ();
  g_autoptr (GPtrArray) reshaped = g_ptr_array_new_with_free_func (g_free);
  Loading loading = { unused, received, transfers, absent, absent_tensors, reshaped };
  gboolean loaded;

  g_array_set_clear_func (transfers, transfer_clear);
  if (!ebb_module_check_whole (self, FALSE,
                               "load with ebb_load_full_state_dict(), or between ebb_summon_full_params() and "
                               "ebb_release_full_params()",
                               error))
    return FALSE;
  if (!read_state (self, state, &loading, error))
    return FALSE;
  if (targets == NULL)
    ebb_module_visit_paths (self, match_module_state, &loading);
  for (guint i = 0; targets != NULL && i < ebb_args_get_length (targets); i++)
    match_tensor (&loading, ebb_args_get_key (targets, i), ebb_args_peek_tensor (targets, i));
  if (!check_loading (self, &loading, strict, error))
    return FALSE;
  ebb_push_grad_enabled (FALSE);
  loaded = transfer_all (transfers, error);
  ebb_pop_grad_enabled ();
  return loaded;
}

/**
 * ebb_module_load_state_dict:
 * @self: a module
 * @state: tensors by path, as ebb_module_get_state_dict() gives
 * @strict: whether names that are missing or unexpected are an error
 * @error: return location for an error
 *
 * Copies a state into the parameters and buffers of the module and of all below it, casting where the dtype differs. Of
 * a shared parameter one name is enough. A shape that differs is always an error, and with any error nothing is
 * changed. A model that is made to be loaded need not draw its weights before, see ebb_push_initialization_skipped().
 *
 * Returns: %TRUE if all was copied, %FALSE with @error set to %EBB_ERROR_STATE and a list of what does not fit
 */
gboolean
ebb_module_load_state_dict (EbbModule *self, EbbArgs *state, gboolean strict, GError **error)
{
  if (self == NULL || state == NULL || (error != NULL && *error != NULL))
    return FALSE;
  g_return_val_if_fail (EBB_IS_MODULE (self), FALSE);

  return ebb_module_load_state_into (self, NULL, state, strict, error);
}
