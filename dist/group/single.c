/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The engine for one rank alone, which has everything already. */
#include "dist/group/process-group-private.h"

#include <string.h>

typedef struct
{
  EbbProcessGroup parent_instance;
} EbbSingleGroup;

typedef struct
{
  EbbProcessGroupClass parent_class;
} EbbSingleGroupClass;

GType ebb_single_group_get_type (void);
G_DEFINE_TYPE (EbbSingleGroup, ebb_single_group, EBB_TYPE_PROCESS_GROUP)

static gboolean
run (EbbProcessGroup *group,
     const EbbCollectiveCall *call,
     GError **error)
{
  for (guint i = 0; i < call->n_parts; i++)
    {
      const EbbCollectiveBuffer *buffer = &call->parts[i];
      const gsize size = (gsize) buffer->n_elements * ebb_dtype_get_size (buffer->dtype);

      if (buffer->shard == NULL || buffer->shard == buffer->full || size == 0)
        continue;
      if (call->which == EBB_COLLECTIVE_ALL_GATHER)
        memcpy (buffer->full, buffer->shard, size);
      else
        memcpy (buffer->shard, buffer->full, size);
    }
  return TRUE;
}

static EbbProcessGroup *
split (EbbProcessGroup *group,
       guint color,
       const guint *members,
       guint n_members,
       guint rank,
       GError **error)
{
  g_autofree char *name = g_strdup_printf ("%s/%u", ebb_process_group_get_name (group), color);

  return g_object_new (ebb_single_group_get_type (), "name", name, "timeout", ebb_process_group_get_timeout (group),
                       NULL);
}

static const EbbProcessGroupFuncs funcs = { .run = run, .split = split };

static void
ebb_single_group_class_init (EbbSingleGroupClass *klass)
{
  EBB_PROCESS_GROUP_CLASS (klass)->funcs = &funcs;
}

static void
ebb_single_group_init (EbbSingleGroup *self)
{
}

EbbProcessGroup *
ebb_single_group_new (void)
{
  return g_object_new (ebb_single_group_get_type (), "backend", "single", NULL);
}
