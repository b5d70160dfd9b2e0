/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/args-private.h"
#include "nn/module-instance-private.h"
#include "nn/state/state-dict-private.h"
#include "tensor/autograd/autograd.h"
#include "tensor/error-private.h"
#include "tensor/ops/in-place.h"
#include "tensor/ops/pointwise.h"

#include <string.h>

/* The state dict: parameters and persistent buffers by path. */

#define SHOWN_NAMES 5 /* of each list in a message */

typedef struct
{
  EbbStatePart part;
  GHashTable *trained;
  EbbStateVisitor visit;
  gpointer user_data;
} Visit;

static void
visit_registry (const EbbTensorRegistry *registry,
                gboolean has_parameters,
                gboolean is_adapter,
                const char *path,
                const Visit *visit)
{
  for (guint i = 0; i < registry->n_items; i++)
    {
      const EbbNamedTensor *item = &registry->items[i];
      g_autofree char *name = NULL;
      gboolean is_frozen;

      if (item->tensor == NULL || !item->persistent)
        continue;
      name = ebb_module_join_path (path, item->name);
      is_frozen = (has_parameters ? !item->tensor->requires_grad && !is_adapter : item->is_exact)
                  && (visit->trained == NULL || !g_hash_table_contains (visit->trained, name));
      if (visit->part != EBB_STATE_ALL && is_frozen != (visit->part == EBB_STATE_FROZEN))
        continue;
      visit->visit (name, item->tensor, visit->user_data);
    }
}

static gboolean
visit_module_state (EbbModule *module, const char *path, gpointer user_data)
{
  EbbModulePrivate *priv = ebb_module_get_private (module);

  visit_registry (&priv->parameters, TRUE, priv->is_adapter, path, user_data);
  visit_registry (&priv->buffers, FALSE, FALSE, path, user_data);
  return TRUE;
}

void
ebb_module_visit_state_part (EbbModule *self,
                             EbbStatePart part,
                             GHashTable *trained,
                             EbbStateVisitor visit,
                             gpointer user_data)
{
  Visit data = { part, trained, visit, user_data };

  ebb_module_visit_paths (self, visit_module_state, &data);
}

void
ebb_module_visit_state (EbbModule *self, EbbStateVisitor visit, gpointer user_data)
{
  ebb_module_visit_state_part (self, EBB_STATE_ALL, NULL, visit, user_data);
}

static void
add_tensor (const char *name, EbbTensor *tensor, gpointer user_data)
{
  g_autoptr (EbbTensor) alias = ebb_tensor_alias (tensor);

  ebb_args_add_tensor (user_data, name, alias);
}

/**
 * ebb_module_get_state_dict:
 * @self: a module
 *
 * Collects the parameters and persistent buffers of the module and of all below it. The tensors share the memory of the
 * module's, and gradients do not flow through them. A shared parameter appears under each of its names. Of a module
 * that is fully sharded, these are the shards of this rank, or full parameters while they are gathered, and of a
 * tensor-parallel one this rank's parts: what belongs to no rank is given by ebb_get_full_state_dict().
 *
 * Returns: (transfer full): an %EBB_ARGS_DICT of tensors by path, as in `h.0.attn.c_attn.weight`
 */
EbbArgs *
ebb_module_get_state_dict (EbbModule *self)
{
  EbbArgs *state;

  g_return_val_if_fail (EBB_IS_MODULE (self), NULL);

  state = ebb_args_new (EBB_ARGS_DICT);
  ebb_module_visit_state (self, add_tensor, state);
  return state;
}

static void
transfer_clear (gpointer data)
{
  EbbStateTransfer *transfer = data;

  g_clear_pointer (&transfer->source, ebb_tensor_unref);
}

typedef struct
{
  EbbFullShapeFunc get_full_shape; /* NULL: a target has the shape that it has */
  GHashTable *unused;              /* name -> tensor of the state, until it is asked for */
  GHashTable *received;            /* tensors of the module that the state has under one of their names */
  GArray *transfers;
  GPtrArray *absent; /* names that the state has not, with their tensors */
  GPtrArray *absent_tensors;
  GPtrArray *reshaped; /* descriptions of shapes that differ */
  GPtrArray *retyped;  /* and of dtypes, where only one is u8 */
} Loading;

static char *
name_shape (const gint64 *shape, guint n_dims)
{
  g_autoptr (GString) text = g_string_new ("[");

  for (guint i = 0; i < n_dims; i++)
    g_string_append_printf (text, "%s%" G_GINT64_FORMAT, i > 0 ? ", " : "", shape[i]);
  g_string_append_c (text, ']');
  return g_string_free (g_steal_pointer (&text), FALSE);
}

static void
match_tensor (const char *name, EbbTensor *target, gpointer user_data)
{
  Loading *loading = user_data;
  guint n_dims = (guint) target->view.n_dims;
  const gint64 *shape = target->view.shape;
  EbbTensor *source = g_hash_table_lookup (loading->unused, name);

  if (source == NULL)
    {
      g_ptr_array_add (loading->absent, g_strdup (name));
      g_ptr_array_add (loading->absent_tensors, target);
      return;
    }
  g_hash_table_remove (loading->unused, name);
  g_hash_table_add (loading->received, target);
  if (loading->get_full_shape != NULL)
    shape = loading->get_full_shape (target, &n_dims);
  /* Bytes are codes, such as those of int8, which have the shape of the full weight: no numbers are cast to them. */
  if ((source->view.dtype == EBB_DTYPE_U8) != (target->view.dtype == EBB_DTYPE_U8))
    g_ptr_array_add (loading->retyped,
                     g_strdup_printf ("%s %s, not %s", name, ebb_dtype_get_name (source->view.dtype),
                                      ebb_dtype_get_name (target->view.dtype)));
  else if (ebb_view_has_shape (&source->view, shape, n_dims))
    {
      EbbStateTransfer transfer = { target, ebb_tensor_ref (source) };

      g_array_append_val (loading->transfers, transfer);
    }
  else
    {
      g_autofree char *given = ebb_tensor_shape_to_string (source);
      g_autofree char *wanted = name_shape (shape, n_dims);

      g_ptr_array_add (loading->reshaped, g_strdup_printf ("%s %s, not %s", name, given, wanted));
    }
}

void
ebb_state_append_names (GString *text, const char *label, GPtrArray *names)
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

/* The names of the module that the state lacks, where one name of a shared parameter is enough, and the names that only
 * the state has. */
static void
list_differences (const Loading *loading, GPtrArray *missing, GPtrArray *unexpected)
{
  GHashTableIter iter;
  gpointer name;

  for (guint i = 0; i < loading->absent->len; i++)
    if (!g_hash_table_contains (loading->received, g_ptr_array_index (loading->absent_tensors, i)))
      g_ptr_array_add (missing, g_ptr_array_index (loading->absent, i));
  g_hash_table_iter_init (&iter, loading->unused);
  while (g_hash_table_iter_next (&iter, &name, NULL))
    g_ptr_array_add (unexpected, name);
  g_ptr_array_sort (unexpected, compare_names);
}

/* The prefix, with its dot, by which more than half the names of the shorter list differ from names of the other. NULL
 * if there is none, or if two prefixes explain as many names. */
static char *
find_prefix (GPtrArray *prefixed, GPtrArray *plain)
{
  g_autoptr (GHashTable) names = g_hash_table_new (g_str_hash, g_str_equal);
  g_autoptr (GHashTable) counts = g_hash_table_new_full (g_str_hash, g_str_equal, g_free, NULL);
  GHashTableIter iter;
  gpointer prefix, count;
  const char *best = NULL;
  guint best_count = MIN (prefixed->len, plain->len) / 2;

  for (guint i = 0; i < plain->len; i++)
    g_hash_table_add (names, g_ptr_array_index (plain, i));
  for (guint i = 0; i < prefixed->len; i++)
    {
      const char *name = g_ptr_array_index (prefixed, i);

      for (const char *dot = strchr (name, '.'); dot != NULL; dot = strchr (dot + 1, '.'))
        if (g_hash_table_contains (names, dot + 1))
          {
            char *key = g_strndup (name, (gsize) (dot + 1 - name));

            count = g_hash_table_lookup (counts, key);
            g_hash_table_replace (counts, key, GUINT_TO_POINTER (GPOINTER_TO_UINT (count) + 1));
          }
    }
  g_hash_table_iter_init (&iter, counts);
  while (g_hash_table_iter_next (&iter, &prefix, &count))
    if (GPOINTER_TO_UINT (count) >= best_count)
      {
        best = GPOINTER_TO_UINT (count) > best_count ? prefix : NULL;
        best_count = GPOINTER_TO_UINT (count);
      }
  return g_strdup (best);
}

/* NULL: no prefix explains the differences. */
static char *
advise (GPtrArray *missing, GPtrArray *unexpected)
{
  g_autofree char *of_state = find_prefix (unexpected, missing);
  g_autofree char *of_module = find_prefix (missing, unexpected);

  if (of_state != NULL)
    return g_strdup_printf ("the state's names begin with \"%s\" and the module's do not: remove this prefix",
                            of_state);
  if (of_module != NULL)
    return g_strdup_printf ("the module's names begin with \"%s\" and the state's do not: add this prefix", of_module);
  return NULL;
}

static gboolean
check_loading (EbbModule *self, Loading *loading, gboolean strict, GError **error)
{
  g_autoptr (GPtrArray) missing = g_ptr_array_new ();
  g_autoptr (GPtrArray) unexpected = g_ptr_array_new ();
  g_autoptr (GString) text = g_string_new (NULL);
  g_autofree char *advice = NULL;

  if (strict)
    list_differences (loading, missing, unexpected);
  ebb_state_append_names (text, "missing", missing);
  ebb_state_append_names (text, "unexpected", unexpected);
  ebb_state_append_names (text, "of another shape", loading->reshaped);
  ebb_state_append_names (text, "of another dtype", loading->retyped);
  if (text->len == 0)
    return TRUE;
  advice = advise (missing, unexpected);
  if (advice != NULL)
    g_string_append_printf (text, "; %s", advice);
  return ebb_fail (error, EBB_ERROR_STATE, "%s: the state dict does not fit:%s", ebb_module_get_type_name (self),
                   ebb_show_text (text->str));
}

/* Everything that can fail comes before the first byte is changed. */
static gboolean
transfer_all (GArray *transfers, GError **error)
{
  gboolean done = TRUE;

  for (guint i = 0; i < transfers->len; i++)
    {
      EbbStateTransfer *transfer = &g_array_index (transfers, EbbStateTransfer, i);
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
      EbbStateTransfer *transfer = &g_array_index (transfers, EbbStateTransfer, i);

      done = ebb_tensor_copy_from (transfer->target, transfer->source, error);
    }
  return done;
}

gboolean
ebb_state_transfers_run (GArray *transfers, GError **error)
{
  gboolean done;

  ebb_push_grad_enabled (FALSE);
  done = transfer_all (transfers, error);
  ebb_pop_grad_enabled ();
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
        return ebb_fail (error, EBB_ERROR_STATE, "%s: entry %u of the state dict, \"%s\", is not a tensor",
                         ebb_module_get_type_name (self), i, ebb_show_text (key != NULL ? key : ""));
      g_hash_table_insert (loading->unused, (char *) key, tensor);
    }
  return TRUE;
}

/* Matches the names of @state with those of the module, or of @targets; FALSE with @error set if an entry of the state
 * is not a tensor. */
static gboolean
loading_init (Loading *loading,
              EbbModule *self,
              EbbArgs *targets,
              EbbArgs *state,
              EbbFullShapeFunc get_full_shape,
              GError **error)
{
  *loading = (Loading){
    .get_full_shape = get_full_shape,
    .unused = g_hash_table_new (g_str_hash, g_str_equal),
    .received = g_hash_table_new (NULL, NULL),
    .transfers = g_array_new (FALSE, FALSE, sizeof (EbbStateTransfer)),
    .absent = g_ptr_array_new_with_free_func (g_free),
    .absent_tensors = g_ptr_array_new (),
    .reshaped = g_ptr_array_new_with_free_func (g_free),
    .retyped = g_ptr_array_new_with_free_func (g_free),
  };
  g_array_set_clear_func (loading->transfers, transfer_clear);
  if (!read_state (self, state, loading, error))
    return FALSE;
  if (targets == NULL)
    ebb_module_visit_state (self, match_tensor, loading);
  for (guint i = 0; targets != NULL && i < ebb_args_get_length (targets); i++)
    match_tensor (ebb_args_get_key (targets, i), ebb_args_peek_tensor (targets, i), loading);
  return TRUE;
}

static void
loading_clear (Loading *loading)
{
  g_hash_table_unref (loading->unused);
  g_hash_table_unref (loading->received);
  g_clear_pointer (&loading->transfers, g_array_unref);
  g_ptr_array_unref (loading->absent);
  g_ptr_array_unref (loading->absent_tensors);
  g_ptr_array_unref (loading->reshaped);
  g_ptr_array_unref (loading->retyped);
}

GArray *
ebb_module_match_state (EbbModule *self,
                        EbbArgs *targets,
                        EbbArgs *state,
                        gboolean strict,
                        EbbFullShapeFunc get_full_shape,
                        GError **error)
{
  Loading loading;
  GArray *transfers = NULL;

  if (loading_init (&loading, self, targets, state, get_full_shape, error)
      && check_loading (self, &loading, strict, error))
    transfers = g_steal_pointer (&loading.transfers);
  loading_clear (&loading);
  return transfers;
}

static char **
copy_names (GPtrArray *names)
{
  char **copy = g_new0 (char *, names->len + 1);

  for (guint i = 0; i < names->len; i++)
    copy[i] = g_strdup (g_ptr_array_index (names, i));
  return copy;
}

/**
 * ebb_module_compare_state_dict:
 * @self: a module
 * @state: tensors by path, as ebb_module_get_state_dict() gives
 * @missing: (out) (optional) (transfer full) (array zero-terminated=1): names of the module that the state lacks; of a
 *   shared parameter one name is enough
 * @unexpected: (out) (optional) (transfer full) (array zero-terminated=1): names of the state that the module lacks, in
 *   order
 * @advice: (out) (optional) (nullable): a sentence that names the prefix by which the names of one differ from those of
 *   the other; %NULL if there is no such prefix
 * @error: return location for an error
 *
 * Compares the names of a state with those of a module. This tells what ebb_module_load_state_dict() passes over if it
 * is not strict.
 *
 * Returns: %TRUE, or %FALSE with @error set to %EBB_ERROR_STATE if an entry of the state is not a tensor
 */
gboolean
ebb_module_compare_state_dict (EbbModule *self,
                               EbbArgs *state,
                               char ***missing,
                               char ***unexpected,
                               char **advice,
                               GError **error)
{
  g_autoptr (GPtrArray) lacking = g_ptr_array_new ();
  g_autoptr (GPtrArray) surplus = g_ptr_array_new ();
  Loading loading;
  gboolean done;

  if (missing != NULL)
    *missing = NULL;
  if (unexpected != NULL)
    *unexpected = NULL;
  if (advice != NULL)
    *advice = NULL;
  EBB_RETURN_UNLESS_BEGUN (FALSE, error, self, state);
  g_return_val_if_fail (EBB_IS_MODULE (self), FALSE);

  done = loading_init (&loading, self, NULL, state, NULL, error);
  if (done)
    {
      list_differences (&loading, lacking, surplus);
      if (missing != NULL)
        *missing = copy_names (lacking);
      if (unexpected != NULL)
        *unexpected = copy_names (surplus);
      if (advice != NULL)
        *advice = advise (lacking, surplus);
    }
  loading_clear (&loading);
  return done;
}

gboolean
ebb_module_load_state_into (EbbModule *self, EbbArgs *targets, EbbArgs *state, gboolean strict, GError **error)
{
  g_autoptr (GArray) transfers = NULL;

  if (!ebb_module_check_full (self, FALSE,
                              "load with ebb_load_full_state_dict(), or between ebb_summon_full_params() and "
                              "ebb_release_full_params()",
                              error)
      || !ebb_module_check_not_tensor_parallel (
          self, "load with ebb_load_full_state_dict(), or before ebb_parallelize()", error))
    return FALSE;
  transfers = ebb_module_match_state (self, targets, state, strict, NULL, error);
  return transfers != NULL && ebb_state_transfers_run (transfers, error);
}

/**
 * ebb_module_load_state_dict:
 * @self: a module
 * @state: tensors by path, as ebb_module_get_state_dict() gives
 * @strict: whether names that are missing or unexpected are an error; if not, ebb_module_compare_state_dict() lists
 * them
 * @error: return location for an error
 *
 * Copies a state into the parameters and buffers of the module and of all below it, casting where the dtype differs. Of
 * a shared parameter one name is enough. A shape that differs is always an error, and with any error nothing is
 * changed. A model that is made to be loaded need not draw its weights before, see ebb_push_initialization_skipped().
 * A module that is fully sharded, or tensor-parallel, is loaded by ebb_load_full_state_dict().
 *
 * Returns: %TRUE if all was copied, %FALSE with @error set to %EBB_ERROR_STATE and a list of what does not fit
 */
gboolean
ebb_module_load_state_dict (EbbModule *self, EbbArgs *state, gboolean strict, GError **error)
{
  EBB_RETURN_UNLESS_BEGUN (FALSE, error, self, state);
  g_return_val_if_fail (EBB_IS_MODULE (self), FALSE);

  return ebb_module_load_state_into (self, NULL, state, strict, error);
}
