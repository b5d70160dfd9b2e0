/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Which ranks share a model: by a mesh, a group or another system's object. */
#include "dist/mpu-private.h"

#include "dist/init.h"
#include "dist/mesh.h"
#include "tensor/error-private.h"

static gboolean
take_mesh (EbbMpu *self,
           EbbMesh *mesh,
           GError **error)
{
  const char *name = ebb_mesh_get_model_dim (mesh);
  g_autofree char *text = NULL;

  if (name != NULL)
    return ebb_mpu_init_group (self, ebb_mesh_get_group (mesh, name));
  text = ebb_mesh_to_string (mesh);
  return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                   "mpu is a mesh of %s: it must have a dimension \"" EBB_MPU_DIM
                   "\", the ranks that share a model, or another one set by ebb_mesh_set_model_dim ()",
                   text);
}

/* -- objects of other systems -------------------------------------------------------------------------------------- */

/* An object's properties for the ranks that share a model, or for those with different data. */
typedef struct
{
  const char *what;
  gint64 size, rank; /* -1: not known */
  EbbProcessGroup *group;
} Side;

/* As DeepSpeed looks for them. */
static const char *const prefixes[] = { "tensor-model-parallel-", "model-parallel-", "data-parallel-" };
#define N_MODEL_PREFIXES 2

static GParamSpec *
find_property (GObject *object,
               const char *prefix,
               const char *suffix,
               GType type)
{
  g_autofree char *name = g_strconcat (prefix, suffix, NULL);
  GParamSpec *spec = g_object_class_find_property (G_OBJECT_GET_CLASS (object), name);
  const gboolean fits = spec != NULL && (spec->flags & G_PARAM_READABLE) && spec->value_type != G_TYPE_STRING
                        && (type == G_TYPE_INT64 ? g_value_type_transformable (spec->value_type, type)
                                                 : g_type_is_a (spec->value_type, type));

  return fits ? spec : NULL;
}

/* Leaves *@number alone where there is no such property, or it is -1. */
static gboolean
read_number (GObject *object,
             const char *prefix,
             const char *suffix,
             gint64 least,
             gint64 *number,
             GError **error)
{
  GParamSpec *spec = find_property (object, prefix, suffix, G_TYPE_INT64);
  g_auto (GValue) value = G_VALUE_INIT;
  gint64 n;

  if (spec == NULL || *number >= 0)
    return TRUE;
  g_value_init (&value, G_TYPE_INT64);
  g_object_get_property (object, spec->name, &value);
  n = g_value_get_int64 (&value);
  if (n == -1)
    return TRUE;
  if (n < least || n > G_MAXINT32)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "mpu has the %s %" G_GINT64_FORMAT ": it must be from %" G_GINT64_FORMAT " to %d", spec->name, n,
                     least, G_MAXINT32);
  *number = n;
  return TRUE;
}

static gboolean
read_side (Side *side,
           GObject *object,
           const char *prefix,
           GError **error)
{
  GParamSpec *spec = find_property (object, prefix, "group", EBB_TYPE_PROCESS_GROUP);

  if (spec != NULL && side->group == NULL)
    g_object_get (object, spec->name, &side->group, NULL);
  return read_number (object, prefix, "world-size", 1, &side->size, error)
         && read_number (object, prefix, "rank", 0, &side->rank, error);
}

/* The group and the numbers must agree. */
static gboolean
complete_side (Side *side,
               GError **error)
{
  const gint64 size = side->group != NULL ? ebb_process_group_get_size (side->group) : side->size;
  const gint64 rank = side->group != NULL ? ebb_process_group_get_rank (side->group) : side->rank;

  if ((side->size >= 0 && side->size != size) || (side->rank >= 0 && side->rank != rank))
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "mpu has a %s group in which this is rank %" G_GINT64_FORMAT " of %" G_GINT64_FORMAT
                     ", and says that it is rank %" G_GINT64_FORMAT " of %" G_GINT64_FORMAT
                     " (-1: nothing): they must agree",
                     side->what, rank, size, side->rank, side->size);
  if (size >= 0 && rank >= size)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "mpu has the %s rank %" G_GINT64_FORMAT " of %" G_GINT64_FORMAT ": it must be less", side->what,
                     rank, size);
  side->size = size;
  side->rank = rank;
  return TRUE;
}

/* Without a group, its ranks can be reached if they are all ranks. */
static void
take_sides (EbbMpu *self,
            const Side *model,
            const Side *data)
{
  EbbProcessGroup *all = ebb_process_group_get_default ();
  const gint64 n_all = ebb_process_group_get_size (all), own = ebb_process_group_get_rank (all);

  if (model->group != NULL)
    ebb_mpu_init_group (self, model->group);
  else if (model->size > 1 && model->size == n_all && (model->rank < 0 || model->rank == own))
    ebb_mpu_init_group (self, all);
  else
    *self = (EbbMpu){
      .world_size = (guint) model->size,
      .rank = model->size == 1 ? 0 : model->rank,
      .model = data->rank >= 0 ? data->rank : model->size == 1 ? own
                                                               : -1,
    };
}

static gboolean
take_object (EbbMpu *self,
             GObject *object,
             GError **error)
{
  Side model = { "model parallel", -1, -1, NULL }, data = { "data parallel", -1, -1, NULL };
  gboolean ok = TRUE;

  for (guint i = 0; ok && i < G_N_ELEMENTS (prefixes); i++)
    ok = read_side (i < N_MODEL_PREFIXES ? &model : &data, object, prefixes[i], error);
  ok = ok && read_number (object, "", "world-size", 1, &model.size, error);
  if (ok && model.size < 0 && model.group == NULL)
    ok = ebb_fail (
        error, EBB_ERROR_INVALID_ARGUMENT,
        "mpu is a %s, which has no number \"model-parallel-world-size\", \"tensor-model-parallel-world-size\" "
        "or \"world-size\": it must be none, an EbbMesh, an EbbProcessGroup, or an object that has one",
        G_OBJECT_TYPE_NAME (object));
  ok = ok && complete_side (&model, error) && complete_side (&data, error);
  if (ok)
    take_sides (self, &model, &data);
  g_clear_object (&model.group);
  g_clear_object (&data.group);
  return ok;
}

gboolean
ebb_mpu_init (EbbMpu *self,
              GObject *object,
              GError **error)
{
  *self = (EbbMpu){ .rank = -1, .model = -1 };
  if (object == NULL)
    return TRUE;
  if (EBB_IS_MESH (object))
    return take_mesh (self, EBB_MESH (object), error);
  if (EBB_IS_PROCESS_GROUP (object))
    return ebb_mpu_init_group (self, EBB_PROCESS_GROUP (object));
  return take_object (self, object, error);
}
