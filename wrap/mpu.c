/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/mpu-private.h"

#include "dist/mesh.h"

static gboolean
read_world_size (EbbMpu *self,
                 GObject *object,
                 GError **error)
{
  GParamSpec *spec = g_object_class_find_property (G_OBJECT_GET_CLASS (object), "world-size");
  g_auto (GValue) value = G_VALUE_INIT;

  g_value_init (&value, G_TYPE_INT64);
  if (spec == NULL || !(spec->flags & G_PARAM_READABLE) || spec->value_type == G_TYPE_STRING
      || !g_value_type_transformable (spec->value_type, G_TYPE_INT64))
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                   "mpu is a %s, which has no number \"world-size\": it must be none, an EbbMesh, an EbbProcessGroup, "
                   "or an object that has one",
                   G_OBJECT_TYPE_NAME (object));
      return FALSE;
    }
  g_object_get_property (object, "world-size", &value);
  if (g_value_get_int64 (&value) < 1 || g_value_get_int64 (&value) > G_MAXINT32)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                   "mpu has the world-size %" G_GINT64_FORMAT ": it must be from 1 to %d", g_value_get_int64 (&value),
                   G_MAXINT32);
      return FALSE;
    }
  self->world_size = (guint) g_value_get_int64 (&value);
  return TRUE;
}

gboolean
ebb_mpu_init (EbbMpu *self,
              GObject *object,
              GError **error)
{
  *self = (EbbMpu){ .world_size = 0 };
  if (object == NULL)
    return TRUE;
  if (EBB_IS_MESH (object))
    {
      g_autofree char *text = ebb_mesh_to_string (EBB_MESH (object));

      self->group = ebb_mesh_get_group (EBB_MESH (object), EBB_MPU_DIM);
      if (self->group == NULL)
        {
          g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                       "mpu is a mesh of %s: it must have a dimension \"" EBB_MPU_DIM
                       "\", the ranks that a model is divided among",
                       text);
          return FALSE;
        }
    }
  else if (EBB_IS_PROCESS_GROUP (object))
    self->group = EBB_PROCESS_GROUP (object);
  else
    return read_world_size (self, object, error);
  self->world_size = ebb_process_group_get_size (self->group);
  return TRUE;
}
