/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "dist/group/process-group.h"

G_BEGIN_DECLS

#define EBB_TYPE_MESH (ebb_mesh_get_type ())

/**
 * EbbMesh:
 *
 * The ranks of a group as a grid with named dimensions, and a group of ranks along each of them. The names are free;
 * "data", "shard" and "tensor" are the usual ones for ranks with different data, ranks that shard the parameters of a
 * model, and ranks that share each product. The last dimension varies fastest from rank to rank, so use it for ranks
 * that are near each other.
 */
EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbMesh, ebb_mesh, EBB, MESH, GObject)

EBB_AVAILABLE_IN_ALL
EbbMesh *ebb_mesh_new (EbbProcessGroup *group,
                       const char *const *names,
                       const gint64 *sizes,
                       guint n,
                       GError **error);

EBB_AVAILABLE_IN_ALL
guint ebb_mesh_get_n_dims (EbbMesh *self);

EBB_AVAILABLE_IN_ALL
char **ebb_mesh_get_names (EbbMesh *self);

EBB_AVAILABLE_IN_ALL
gboolean ebb_mesh_has_dim (EbbMesh *self,
                           const char *name);

EBB_AVAILABLE_IN_ALL
EbbProcessGroup *ebb_mesh_get_group (EbbMesh *self,
                                     const char *name);

EBB_AVAILABLE_IN_ALL
EbbProcessGroup *ebb_mesh_find_group (EbbMesh *self,
                                      const char *name,
                                      GError **error);

EBB_AVAILABLE_IN_ALL
guint ebb_mesh_get_size (EbbMesh *self,
                         const char *name);

EBB_AVAILABLE_IN_ALL
guint ebb_mesh_get_coordinate (EbbMesh *self,
                               const char *name);

EBB_AVAILABLE_IN_ALL
const char *ebb_mesh_get_model_dim (EbbMesh *self);

EBB_AVAILABLE_IN_ALL
gboolean ebb_mesh_set_model_dim (EbbMesh *self,
                                 const char *name,
                                 GError **error);

EBB_AVAILABLE_IN_ALL
char *ebb_mesh_to_string (EbbMesh *self);

G_END_DECLS
