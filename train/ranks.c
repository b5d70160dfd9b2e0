/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The ranks that train together: their places in the mesh, exchanges, and failures that all of them share. */
#include "train/ranks-private.h"

#include "dist/init.h"
#include "tensor/error-private.h"

#include <string.h>

/* -- the mesh ------------------------------------------------------------------------------------------------------ */

/* Numbers the model of each rank: its place along all dimensions but the model's. */
static gboolean
find_models (EbbTrainRanks *self, GError **error)
{
  g_auto (GStrv) names = ebb_mesh_get_names (self->mesh);
  const char *shared = ebb_mesh_get_model_dim (self->mesh);
  g_autofree char *text = NULL;
  guint product = 1;

  self->models = g_new0 (guint, self->size);
  for (guint i = ebb_mesh_get_n_dims (self->mesh); i-- > 0;)
    {
      const guint size = ebb_mesh_get_size (self->mesh, names[i]);

      for (guint rank = 0; rank < self->size && g_strcmp0 (names[i], shared) != 0; rank++)
        self->models[rank] += rank / product % size * self->n_models;
      if (g_strcmp0 (names[i], shared) != 0)
        self->n_models *= size;
      product *= size;
    }
  self->model = self->models[self->rank];
  if (product == self->size)
    return TRUE;
  text = ebb_mesh_to_string (self->mesh);
  return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                   "trainer: the mesh (%s) has %u ranks, and the default group %u: it must have all of these", text,
                   product, self->size);
}

gboolean
ebb_train_ranks_init (EbbTrainRanks *self, EbbMesh *mesh, GError **error)
{
  EbbProcessGroup *group;

  *self = EBB_TRAIN_RANKS_ALONE;
  if (mesh == NULL)
    return TRUE;
  group = ebb_process_group_get_default ();
  self->mesh = g_object_ref (mesh);
  self->rank = ebb_process_group_get_rank (group);
  self->size = ebb_process_group_get_size (group);
  if (!find_models (self, error))
    return FALSE;
  self->control = ebb_process_group_split (group, 0, error);
  return self->control != NULL;
}

void
ebb_train_ranks_clear (EbbTrainRanks *self)
{
  g_clear_object (&self->control);
  g_clear_object (&self->mesh);
  g_clear_pointer (&self->models, g_free);
}

/* -- exchanges ----------------------------------------------------------------------------------------------------- */

/* Each rank's numbers go with its requests in front. */
gboolean
ebb_train_ranks_gather (EbbTrainRanks *self, const gint64 *mine, guint n, gint64 *all, GError **error)
{
  const gint64 shape[] = { (gint64) n + 1 };
  g_autoptr (EbbTensor) input = NULL;
  g_autoptr (EbbTensor) output = NULL;
  g_autoptr (GBytes) bytes = NULL;
  const gint64 *got;
  gint64 *data;

  self->agreed |= self->requested;
  if (self->control == NULL)
    {
      if (n > 0)
        memcpy (all, mine, n * sizeof *mine);
      return TRUE;
    }
  input = ebb_tensor_new_empty (shape, 1, EBB_DTYPE_I64, ebb_device_get_cpu (), error);
  data = input != NULL ? ebb_tensor_get_data (input, error) : NULL;
  if (data == NULL)
    return FALSE;
  data[0] = self->requested;
  if (n > 0)
    memcpy (data + 1, mine, n * sizeof (gint64));
  output = ebb_process_group_all_gather (self->control, input, error);
  if (output == NULL || (bytes = ebb_tensor_get_bytes (output, error)) == NULL)
    return FALSE;
  got = g_bytes_get_data (bytes, NULL);
  for (guint i = 0; i < self->size; i++, got += n + 1)
    {
      self->agreed |= (guint) got[0];
      if (n > 0)
        memcpy (all + (gsize) i * n, got + 1, n * sizeof (gint64));
    }
  return TRUE;
}

gboolean
ebb_train_ranks_poll (EbbTrainRanks *self, GError **error)
{
  return ebb_train_ranks_gather (self, NULL, 0, NULL, error);
}

gboolean
ebb_train_ranks_sum (EbbTrainRanks *self, double *values, guint n, GError **error)
{
  g_autofree gint64 *mine = g_memdup2 (values, n * sizeof *values);
  g_autofree gint64 *all = g_new (gint64, (gsize) self->size * n);
  guint next = 0;

  if (!ebb_train_ranks_gather (self, mine, n, all, error))
    return FALSE;
  if (self->control == NULL)
    return TRUE;
  memset (values, 0, n * sizeof *values);
  while (next < self->n_models)
    for (guint i = 0; i < self->size; i++)
      if (self->models[i] == next)
        {
          for (guint k = 0; k < n; k++)
            {
              double one;

              memcpy (&one, &all[(gsize) i * n + k], sizeof one);
              values[k] += one;
            }
          next++;
        }
  return TRUE;
}

/* -- failing together ---------------------------------------------------------------------------------------------- */

/* @root's @text, @n_bytes of it. */
static char *
spread_text (EbbTrainRanks *self, const char *text, guint root, gint64 n_bytes, GError **error)
{
  g_autoptr (EbbTensor) tensor = ebb_tensor_new_empty (&n_bytes, 1, EBB_DTYPE_U8, ebb_device_get_cpu (), error);
  char *data = tensor != NULL ? ebb_tensor_get_data (tensor, error) : NULL;

  if (data == NULL)
    return NULL;
  if (self->rank == root)
    memcpy (data, text, (gsize) n_bytes);
  if (!ebb_process_group_broadcast (self->control, tensor, root, error))
    return NULL;
  return g_strndup (data, (gsize) n_bytes);
}

/* The first failed rank's error becomes the error of all. */
static void
share_failure (EbbTrainRanks *self, const GError *failure, const gint64 *lengths, GError **error)
{
  guint root = 0;
  g_autofree char *text = NULL;

  while (lengths[root] == 0)
    root++;
  text = spread_text (self, failure != NULL ? failure->message : "", root, lengths[root], error);
  if (text == NULL)
    return;
  self->failure_shared = TRUE;
  if (self->rank == root)
    g_set_error_literal (error, failure->domain, failure->code, text);
  else
    ebb_error_set (error, EBB_ERROR_PROCESS_GROUP, "%s", text);
  if (self->size > 1)
    g_prefix_error (error, "rank %u: ", root);
}

gboolean
ebb_train_ranks_agree (EbbTrainRanks *self, gboolean ok, GError **error)
{
  g_autofree gint64 *lengths = g_new0 (gint64, self->size);
  g_autoptr (GError) failure = NULL;
  gboolean all_ok = TRUE;
  gint64 length = 0;

  if (!ok && self->failure_shared)
    return FALSE;
  if (self->control == NULL)
    {
      self->agreed |= self->requested;
      return ok;
    }
  if (!ok)
    {
      if (error == NULL || *error == NULL)
        ebb_error_set (&failure, EBB_ERROR_CALLBACK, "failed without saying why");
      else
        failure = g_steal_pointer (error);
      length = MAX ((gint64) strlen (failure->message), 1);
    }
  if (!ebb_train_ranks_gather (self, &length, 1, lengths, error))
    {
      if (failure != NULL)
        {
          g_clear_error (error);
          g_propagate_error (error, g_steal_pointer (&failure));
        }
      return FALSE;
    }
  for (guint i = 0; i < self->size; i++)
    all_ok = all_ok && lengths[i] == 0;
  if (!all_ok)
    share_failure (self, failure, lengths, error);
  return all_ok;
}

gboolean
ebb_train_ranks_check_same (EbbTrainRanks *self, const char *what, const char *text, GError **error)
{
  g_autofree gint64 *all = g_new (gint64, self->size);
  gint64 hash = g_str_hash (text);

  if (!ebb_train_ranks_gather (self, &hash, 1, all, error))
    return FALSE;
  for (guint i = 1; i < self->size; i++)
    if (all[i] != all[0])
      {
        self->failure_shared = TRUE;
        return ebb_fail (error, EBB_ERROR_PROCESS_GROUP, "rank %u has other %s than rank 0", i, what);
      }
  return TRUE;
}
