/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The ranks that train together, as one of them sees them. */
#include "common/ranks/ranks.h"

#include "common/interrupt.h"
#include "common/options/options.h"

#include <string.h>

gboolean
ranks_init (Ranks *self,
            EbbProcessGroup *group,
            GError **error)
{
  *self = (Ranks){
    .control = g_object_ref (group),
    .rank = ebb_process_group_get_rank (group),
    .size = ebb_process_group_get_size (group),
  };
  self->group = ebb_process_group_split (group, 0, error);
  ranks_forget_models (self);
  return self->group != NULL;
}

gboolean
ranks_split_models (Ranks *self,
                    guint size,
                    GError **error)
{
  static const char *const names[] = { "data", "tensor" };
  const gint64 sizes[] = { -1, (gint64) size };

  if (self->size % size != 0)
    {
      self->failure_shared = TRUE;
      return options_refuse (error, "--tensor-parallel %u: it must divide the %u rank%s", size, self->size,
                             self->size == 1 ? "" : "s");
    }
  self->models = ebb_mesh_new (self->group, names, sizes, G_N_ELEMENTS (sizes), error);
  if (self->models == NULL)
    return FALSE;
  self->tensor = ebb_mesh_get_group (self->models, "tensor");
  self->data = ebb_mesh_get_group (self->models, "data");
  self->model = self->rank / size;
  self->n_models = self->size / size;
  return TRUE;
}

void
ranks_forget_models (Ranks *self)
{
  g_clear_object (&self->mesh);
  g_clear_object (&self->models);
  self->tensor = NULL;
  self->data = self->group;
  self->model = self->rank;
  self->n_models = self->size;
}

void
ranks_clear (Ranks *self)
{
  ranks_forget_models (self);
  self->data = NULL;
  g_clear_object (&self->control);
  g_clear_object (&self->group);
}

/* Each rank's numbers go with its interrupt status in front. */
gboolean
ranks_exchange (Ranks *self,
                const gint64 *mine,
                guint n,
                gint64 *all,
                GError **error)
{
  const gint64 shape[] = { (gint64) n + 1 };
  g_autoptr (EbbTensor) input = NULL;
  g_autoptr (EbbTensor) output = NULL;
  g_autoptr (GBytes) bytes = NULL;
  const gint64 *got;
  gint64 *data;

  input = ebb_tensor_new_empty (shape, 1, EBB_DTYPE_I64, ebb_device_get_cpu (), error);
  data = ebb_tensor_get_data (input, error);
  if (data == NULL)
    return FALSE;
  data[0] = interrupt_get_status ();
  if (n > 0)
    memcpy (data + 1, mine, n * sizeof (gint64));
  output = ebb_process_group_all_gather (self->control, input, error);
  if (output == NULL || (bytes = ebb_tensor_get_bytes (output, error)) == NULL)
    return FALSE;
  got = g_bytes_get_data (bytes, NULL);
  for (guint i = 0; i < self->size; i++, got += n + 1)
    {
      self->interrupt = MAX (self->interrupt, (int) got[0]);
      if (n > 0)
        memcpy (all + i * n, got + 1, n * sizeof (gint64));
    }
  return TRUE;
}

gboolean
ranks_poll (Ranks *self,
            GError **error)
{
  return ranks_exchange (self, NULL, 0, NULL, error);
}

gboolean
ranks_sum (Ranks *self,
           double *value,
           GError **error)
{
  g_autofree gint64 *all = g_new (gint64, self->size);
  gint64 bits;
  double sum = 0;

  memcpy (&bits, value, sizeof bits);
  if (!ranks_exchange (self, &bits, 1, all, error))
    return FALSE;
  for (guint i = 0; i < self->size; i += self->size / self->n_models)
    {
      double one;

      memcpy (&one, &all[i], sizeof one);
      sum += one;
    }
  *value = sum;
  return TRUE;
}

/* -- failing together ---------------------------------------------------------------------------------------------- */

/* @root's @text, @n_bytes of it. */
static char *
spread_text (Ranks *self,
             const char *text,
             guint root,
             gint64 n_bytes,
             GError **error)
{
  g_autoptr (EbbTensor) tensor = ebb_tensor_new_empty (&n_bytes, 1, EBB_DTYPE_U8, ebb_device_get_cpu (), error);
  char *data = ebb_tensor_get_data (tensor, error);

  if (data == NULL)
    return NULL;
  if (self->rank == root)
    memcpy (data, text, (gsize) n_bytes);
  if (!ebb_process_group_broadcast (self->control, tensor, root, error))
    return NULL;
  return g_strndup (data, (gsize) n_bytes);
}

/* The first failed rank's error becomes the error of all; an error of the command line has a length below 0. */
static void
share_failure (Ranks *self,
               GError *failure,
               const gint64 *lengths,
               GError **error)
{
  guint root = 0;
  g_autofree char *text = NULL;

  while (lengths[root] == 0)
    root++;
  text = spread_text (self, failure != NULL ? failure->message : "", root, ABS (lengths[root]), error);
  if (text == NULL)
    return;
  self->failure_shared = TRUE;
  if (lengths[root] < 0) /* of the command line, which all ranks share */
    g_set_error_literal (error, G_OPTION_ERROR, G_OPTION_ERROR_BAD_VALUE, text);
  else if (self->size == 1)
    g_set_error_literal (error, EBB_ERROR, EBB_ERROR_PROCESS_GROUP, text);
  else
    g_set_error (error, EBB_ERROR, EBB_ERROR_PROCESS_GROUP, "rank %u: %s", root, text);
}

gboolean
ranks_agree (Ranks *self,
             gboolean ok,
             GError **error)
{
  g_autofree gint64 *lengths = g_new0 (gint64, self->size);
  g_autoptr (GError) failure = NULL;
  gboolean all_ok = TRUE;
  gint64 length = 0;

  if (self->failure_shared)
    return FALSE;
  if (!ok)
    {
      if (error == NULL || *error == NULL)
        g_set_error_literal (&failure, EBB_ERROR, EBB_ERROR_CALLBACK, "failed without saying why");
      else
        failure = g_steal_pointer (error);
      length = (gint64) strlen (failure->message) * (failure->domain == G_OPTION_ERROR ? -1 : 1);
    }
  if (!ranks_exchange (self, &length, 1, lengths, error))
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
ranks_check_same (Ranks *self,
                  const char *what,
                  const char *text,
                  GError **error)
{
  g_autofree gint64 *all = g_new (gint64, self->size);
  gint64 hash = g_str_hash (text);

  if (!ranks_exchange (self, &hash, 1, all, error))
    return FALSE;
  for (guint i = 1; i < self->size; i++)
    if (all[i] != all[0])
      {
        self->failure_shared = TRUE;
        g_set_error (error, EBB_ERROR, EBB_ERROR_PROCESS_GROUP, "rank %u has other %s than rank 0", i, what);
        return FALSE;
      }
  return TRUE;
}

/* -- groups -------------------------------------------------------------------------------------------------------- */

guint
ranks_get_groups (const Ranks *self,
                  EbbProcessGroup **groups)
{
  EbbProcessGroup *all[RANKS_MAX_GROUPS] = { self->group, self->data, self->tensor };
  guint n = 0;

  if (self->mesh != NULL)
    {
      all[3] = ebb_mesh_get_group (self->mesh, "shard");
      all[4] = ebb_mesh_get_group (self->mesh, "data");
    }
  for (guint i = 0; i < RANKS_MAX_GROUPS; i++)
    {
      gboolean is_there = all[i] == NULL;

      for (guint j = 0; j < n; j++)
        is_there = is_there || groups[j] == all[i];
      if (!is_there)
        groups[n++] = all[i];
    }
  return n;
}
