/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The ranks of a job along named dimensions, and a group along each. */
#include "dist/mesh.h"

#include "dist/agree-private.h"
#include "dist/group/group-private.h"
#include "dist/mpu-private.h"
#include "tensor/error-private.h"

#include <string.h>

#define MAX_RANKS G_GINT64_CONSTANT (0x7fffffff)

typedef struct
{
  char *name;
  guint size, coordinate;
  EbbProcessGroup *group;
} Dim;

struct _EbbMesh
{
  GObject parent_instance;

  Dim *dims;
  guint n_dims;
  const Dim *model; /* by ebb_mesh_set_model_dim (); NULL: not set */
};

G_DEFINE_FINAL_TYPE (EbbMesh, ebb_mesh, G_TYPE_OBJECT)

/* -- making -------------------------------------------------------------------------------------------------------- */

/* "data=2 shard=-1" */
static char *
describe (const char *const *names,
          const gint64 *sizes,
          guint n)
{
  GString *text = g_string_new (NULL);

  for (guint i = 0; i < n; i++)
    g_string_append_printf (text, "%s%s=%" G_GINT64_FORMAT, i > 0 ? " " : "", names[i], sizes[i]);
  return g_string_free (text, FALSE);
}

static gboolean
check_names (const char *const *names,
             guint n,
             GError **error)
{
  for (guint i = 0; i < n; i++)
    {
      if (*names[i] == '\0' || strpbrk (names[i], " =\n") != NULL)
        return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                         "a mesh: \"%s\" can't name dimension %u; a name has at least one character and no blank",
                         names[i], i);
      for (guint j = 0; j < i; j++)
        if (strcmp (names[i], names[j]) == 0)
          return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                           "a mesh: dimensions %u and %u are both named \"%s\"; each needs a name of its own", j, i,
                           names[i]);
    }
  return TRUE;
}

/* Finds the size that is left open by -1. */
static gboolean
complete_sizes (const char *const *names,
                const gint64 *given,
                gint64 *sizes,
                guint n,
                gint64 n_ranks,
                GError **error)
{
  g_autofree char *text = describe (names, given, n);
  guint open = n;
  gint64 product = 1;

  for (guint i = 0; i < n; i++)
    {
      sizes[i] = given[i];
      if (given[i] == -1 && open < n)
        return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                         "a mesh of %s: only one size may be -1, which takes the remaining ranks", text);
      if (given[i] == -1)
        {
          open = i;
          continue;
        }
      if (given[i] < 1 || given[i] > MAX_RANKS)
        return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                         "a mesh of %s: the size of \"%s\" is %" G_GINT64_FORMAT
                         "; it must be 1 or more, or -1 for the remaining ranks",
                         text, names[i], given[i]);
      product = MIN (product * given[i], MAX_RANKS);
    }
  if (open < n && n_ranks % product == 0)
    sizes[open] = n_ranks / product;
  else if (open < n || product != n_ranks)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "a mesh of %s: the group has %" G_GINT64_FORMAT " ranks, %s %" G_GINT64_FORMAT, text, n_ranks,
                     open < n ? "which is no multiple of" : "not", product);
  return TRUE;
}

/* A rank's position along @dim, and the number of the line along @dim that it is on. */
static void
locate (const Dim *dims,
        guint n,
        guint dim,
        guint rank,
        guint *coordinate,
        guint *line)
{
  guint stride = 1;

  *line = 0;
  for (guint i = n; i > 0; i--)
    {
      guint position = rank % dims[i - 1].size;

      rank /= dims[i - 1].size;
      if (i - 1 == dim)
        {
          *coordinate = position;
          continue;
        }
      *line += position * stride;
      stride *= dims[i - 1].size;
    }
}

static gboolean
make_groups (EbbMesh *self,
             EbbProcessGroup *group,
             GError **error)
{
  for (guint i = 0; i < self->n_dims; i++)
    {
      Dim *dim = &self->dims[i];
      guint line;

      locate (self->dims, self->n_dims, i, ebb_process_group_get_rank (group), &dim->coordinate, &line);
      dim->group = dim->size == ebb_process_group_get_size (group) ? g_object_ref (group)
                                                                   : ebb_process_group_split (group, line, error);
      if (dim->group == NULL)
        return FALSE;
    }
  return TRUE;
}

/**
 * ebb_mesh_new:
 * @group: all ranks of the mesh
 * @names: (array length=n): the dimensions' names
 * @sizes: (array length=n): how many ranks lie along each; one of them may be -1: as many as are left
 * @n: how many dimensions, at least 1
 * @error: return location for an error
 *
 * Divides the ranks of a group into a grid: with sizes 2 and 4 of "data" and "shard", ranks 0 to 3 are the first line
 * along "shard". All ranks of @group call this together, with the same names and sizes.
 *
 * Returns: (transfer full) (nullable): the mesh; %NULL with %EBB_ERROR_INVALID_ARGUMENT if the sizes don't multiply to
 *   the size of @group or two names are equal, with %EBB_ERROR_PROCESS_GROUP if ranks give different ones
 */
EbbMesh *
ebb_mesh_new (EbbProcessGroup *group,
              const char *const *names,
              const gint64 *sizes,
              guint n,
              GError **error)
{
  g_autoptr (EbbMesh) self = NULL;
  g_autofree gint64 *complete = NULL;
  g_autofree char *text = NULL;

  if ((error != NULL && *error != NULL) || group == NULL || (n > 0 && (names == NULL || sizes == NULL)))
    return NULL;
  g_return_val_if_fail (EBB_IS_PROCESS_GROUP (group), NULL);

  if (n == 0)
    return ebb_fail_null (error, EBB_ERROR_INVALID_ARGUMENT, "a mesh needs at least one dimension");
  complete = g_new (gint64, n);
  if (!check_names (names, n, error)
      || !complete_sizes (names, sizes, complete, n, ebb_process_group_get_size (group), error))
    return NULL;
  text = describe (names, complete, n);
  if (!ebb_agree_same_text (group, "the mesh", text, error))
    return NULL;
  self = g_object_new (EBB_TYPE_MESH, NULL);
  self->n_dims = n;
  self->dims = g_new0 (Dim, n);
  for (guint i = 0; i < n; i++)
    self->dims[i] = (Dim){ .name = g_strdup (names[i]), .size = (guint) complete[i] };
  if (!make_groups (self, group, error))
    return NULL;
  if (ebb_mesh_has_dim (self, EBB_MPU_DIM))
    ebb_mpu_note_group (ebb_mesh_get_group (self, EBB_MPU_DIM), G_OBJECT (self), FALSE);
  return g_steal_pointer (&self);
}

/* -- looking ------------------------------------------------------------------------------------------------------- */

static const Dim *
find (EbbMesh *self,
      const char *name)
{
  for (guint i = 0; name != NULL && i < self->n_dims; i++)
    if (strcmp (self->dims[i].name, name) == 0)
      return &self->dims[i];
  return NULL;
}

/**
 * ebb_mesh_get_n_dims:
 * @self: a mesh
 *
 * Returns: how many dimensions it has
 */
guint
ebb_mesh_get_n_dims (EbbMesh *self)
{
  g_return_val_if_fail (EBB_IS_MESH (self), 0);

  return self->n_dims;
}

/**
 * ebb_mesh_get_names:
 * @self: a mesh
 *
 * Returns: (transfer full): the names of its dimensions
 */
char **
ebb_mesh_get_names (EbbMesh *self)
{
  char **names;

  g_return_val_if_fail (EBB_IS_MESH (self), NULL);

  names = g_new0 (char *, self->n_dims + 1);
  for (guint i = 0; i < self->n_dims; i++)
    names[i] = g_strdup (self->dims[i].name);
  return names;
}

/**
 * ebb_mesh_has_dim:
 * @self: a mesh
 * @name: the name of a dimension
 *
 * Returns: whether there is a dimension of that name
 */
gboolean
ebb_mesh_has_dim (EbbMesh *self,
                  const char *name)
{
  g_return_val_if_fail (EBB_IS_MESH (self), FALSE);

  return find (self, name) != NULL;
}

/**
 * ebb_mesh_get_group: (skip)
 * @self: a mesh
 * @name: the name of a dimension
 *
 * Use it for names that exist. Functions that take a group take %NULL for the default one, all ranks, so look names
 * from outside up by ebb_mesh_find_group(), which other languages call `get_group`.
 *
 * Returns: (transfer none) (nullable): the ranks that differ from this one in this dimension alone, with this one;
 *   %NULL if there is no dimension of that name
 */
EbbProcessGroup *
ebb_mesh_get_group (EbbMesh *self,
                    const char *name)
{
  const Dim *dim;

  g_return_val_if_fail (EBB_IS_MESH (self), NULL);

  dim = find (self, name);
  return dim != NULL ? dim->group : NULL;
}

/**
 * ebb_mesh_find_group: (rename-to ebb_mesh_get_group)
 * @self: a mesh
 * @name: the name of a dimension
 * @error: return location for an error
 *
 * Returns: (transfer none) (nullable): the ranks that differ from this one in this dimension alone, with this one;
 *   %NULL with @error set to %EBB_ERROR_INVALID_ARGUMENT if there is no dimension of that name
 */
EbbProcessGroup *
ebb_mesh_find_group (EbbMesh *self,
                     const char *name,
                     GError **error)
{
  const Dim *dim;
  GString *names;

  EBB_RETURN_UNLESS_BEGUN (NULL, error, self, name);
  g_return_val_if_fail (EBB_IS_MESH (self), NULL);

  dim = find (self, name);
  if (dim != NULL)
    return dim->group;
  names = g_string_new (NULL);
  for (guint i = 0; i < self->n_dims; i++)
    g_string_append_printf (names, "%s\"%s\"", i > 0 ? ", " : "", self->dims[i].name);
  ebb_error_set (error, EBB_ERROR_INVALID_ARGUMENT, "the mesh has no dimension \"%s\": it has %s", name, names->str);
  g_string_free (names, TRUE);
  return NULL;
}

/**
 * ebb_mesh_get_size:
 * @self: a mesh
 * @name: the name of a dimension
 *
 * Returns: how many ranks lie along it; 1 if there is no dimension of that name
 */
guint
ebb_mesh_get_size (EbbMesh *self,
                   const char *name)
{
  const Dim *dim;

  g_return_val_if_fail (EBB_IS_MESH (self), 1);

  dim = find (self, name);
  return dim != NULL ? dim->size : 1;
}

/**
 * ebb_mesh_get_coordinate:
 * @self: a mesh
 * @name: the name of a dimension
 *
 * Returns: where this rank lies along it, from 0, which is its rank in that dimension's group; 0 if there is no
 *   dimension of that name
 */
guint
ebb_mesh_get_coordinate (EbbMesh *self,
                         const char *name)
{
  const Dim *dim;

  g_return_val_if_fail (EBB_IS_MESH (self), 0);

  dim = find (self, name);
  return dim != NULL ? dim->coordinate : 0;
}

/* -- models -------------------------------------------------------------------------------------------------------- */

/**
 * ebb_mesh_get_model_dim:
 * @self: a mesh
 *
 * Which dimension's ranks share a model, for functions that take a mesh as their `mpu`:
 * ebb_checkpointing_configure(), ebb_recompute_configure() and ebb_model_parallel_manual_seed(). It is the one that was
 * set by ebb_mesh_set_model_dim(); else "tensor", if there is one; else the one over whose ranks ebb_parallelize() has
 * sharded a model, unless it is called "data" or "shard".
 *
 * Returns: (transfer none) (nullable): the name of the dimension; %NULL if it is not known
 */
const char *
ebb_mesh_get_model_dim (EbbMesh *self)
{
  const Dim *dim;

  g_return_val_if_fail (EBB_IS_MESH (self), NULL);

  dim = self->model != NULL ? self->model : find (self, EBB_MPU_DIM);
  /* A dimension of all ranks has the group itself, which another mesh may name otherwise. */
  for (guint i = 0; dim == NULL && i < self->n_dims; i++)
    if (ebb_process_group_get_state (self->dims[i].group)->has_model
        && strcmp (self->dims[i].name, "data") != 0 && strcmp (self->dims[i].name, "shard") != 0)
      dim = &self->dims[i];
  return dim != NULL ? dim->name : NULL;
}

/**
 * ebb_mesh_set_model_dim:
 * @self: a mesh
 * @name: the name of one of its dimensions
 * @error: return location for an error
 *
 * Sets which dimension's ranks share a model, if it isn't called "tensor".
 *
 * Returns: %TRUE, or %FALSE with %EBB_ERROR_INVALID_ARGUMENT if there is no dimension of that name
 */
gboolean
ebb_mesh_set_model_dim (EbbMesh *self,
                        const char *name,
                        GError **error)
{
  EBB_RETURN_UNLESS_BEGUN (FALSE, error, self, name);
  g_return_val_if_fail (EBB_IS_MESH (self), FALSE);

  if (ebb_mesh_find_group (self, name, error) == NULL)
    return FALSE;
  self->model = find (self, name);
  ebb_mpu_note_group (self->model->group, G_OBJECT (self), FALSE);
  return TRUE;
}

/**
 * ebb_mesh_to_string:
 * @self: a mesh
 *
 * Returns: (transfer full): its sizes and where this rank lies, as in `data=2 shard=4 at data=0 shard=3`
 */
char *
ebb_mesh_to_string (EbbMesh *self)
{
  GString *text;

  g_return_val_if_fail (EBB_IS_MESH (self), NULL);

  text = g_string_new (NULL);
  for (guint i = 0; i < self->n_dims; i++)
    g_string_append_printf (text, "%s%s=%u", i > 0 ? " " : "", self->dims[i].name, self->dims[i].size);
  g_string_append (text, " at");
  for (guint i = 0; i < self->n_dims; i++)
    g_string_append_printf (text, " %s=%u", self->dims[i].name, self->dims[i].coordinate);
  return g_string_free (text, FALSE);
}

/* -- object -------------------------------------------------------------------------------------------------------- */

static void
ebb_mesh_finalize (GObject *object)
{
  EbbMesh *self = EBB_MESH (object);

  for (guint i = 0; i < self->n_dims; i++)
    {
      g_free (self->dims[i].name);
      g_clear_object (&self->dims[i].group);
    }
  g_free (self->dims);
  G_OBJECT_CLASS (ebb_mesh_parent_class)->finalize (object);
}

static void
ebb_mesh_class_init (EbbMeshClass *klass)
{
  G_OBJECT_CLASS (klass)->finalize = ebb_mesh_finalize;
}

static void
ebb_mesh_init (EbbMesh *self)
{
}
