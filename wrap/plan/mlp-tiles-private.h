/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/module.h"

/* The rung "mlp-tiles" of a plan: every MLP is called on tiles of its rows. */

G_BEGIN_DECLS

#define EBB_PLAN_MLP_TILES "mlp-tiles" /* its value is the rows of a tile */

/* TRUE if tiles of the right size give the bits of no tiles in every MLP of @model: its MLPs have f32 parameters that
 * no ranks divide, and plain linear layers, on a device whose sums over rows go by row blocks. @device: the one that
 * the step runs on. */
gboolean ebb_plan_mlp_tiles_keep_bits (EbbModule *model,
                                       EbbDevice *device);
/* The rows of a tile that a plan may choose where they keep the bits. @n_rows: of a call of an MLP, as 8 x 512. 0: the
 * step has too few rows, or the model has no MLP that its user hasn't put tiles on. */
gint64 ebb_plan_mlp_tiles_choose (EbbModule *model,
                                  gint64 n_rows);

/* Puts tiles of @n_rows rows on every MLP of @model that has none, and returns these MLPs, with references. NULL with
 * an error, and nothing has changed: with EBB_ERROR_STATE if the tiles would change bits that tiles of another size
 * keep, as with another number of threads than when the step was planned. */
GPtrArray *ebb_plan_mlp_tiles_put (EbbModule *model,
                                   gint64 n_rows,
                                   GError **error);

G_END_DECLS
