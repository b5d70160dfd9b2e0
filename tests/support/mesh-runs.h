/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "support/ranks.h"

/* The training of test_ranks_train () on a mesh of data and tensor ranks, whatever brings the ranks. */

G_BEGIN_DECLS

typedef enum
{
  TEST_MESH_REPLICATED,
  TEST_MESH_ROWS,
  TEST_MESH_FLAT,
  TEST_N_MESH_SPLITS,
  TEST_MESH_HYBRID = TEST_N_MESH_SPLITS /* rows among pairs of data ranks, which are replicas of each other */
} TestMeshSplit;

typedef enum
{
  TEST_MESH_NO_CHECKPOINT,
  TEST_MESH_CHECKPOINT_INSIDE, /* of the data ranks' wrapper */
  TEST_MESH_CHECKPOINT_OUTSIDE,
  TEST_N_MESH_CHECKPOINTS
} TestMeshCheckpoint;

/* Zeros are the defaults. */
typedef struct
{
  guint n_tensor; /* 1: the model stays as it is */
  TestMeshSplit split;
  TestMeshCheckpoint checkpoint;
  gboolean sequence_parallel;
  guint n_passes; /* 1; but the last are without sync */
  double max_norm;
  double dropout;
  EbbMomentFormat moments;
  EbbDType compute_dtype; /* f32; of sharded parameters */
} TestMesh;

/* One rank's. */
typedef struct
{
  const TestMesh *settings;
  EbbMesh *mesh;
  EbbProcessGroup *data, *tensor; /* ranks with the same part of the model, and with the same rows */
  EbbModule *model;
  EbbOptimizer *optimizer;
} TestMeshRun;

gboolean test_mesh_run_start (TestMeshRun *self,
                              const TestMesh *settings,
                              EbbProcessGroup *group,
                              GError **error);
void test_mesh_run_clear (TestMeshRun *self);
/* One step, with the @step-th batch: the mean loss of all data ranks, the same on all ranks, and the norm if it is
 * clipped. */
gboolean test_mesh_run_step (TestMeshRun *self,
                             guint step,
                             double *loss,
                             double *norm,
                             GError **error);

/* Of the whole state, as this rank gathers it: what tensor-parallel ranks have alike is its own. Collective. */
gboolean test_mesh_run_hash (TestMeshRun *self,
                             guint64 *hash,
                             GError **error);

/* On threads: all steps; in the end all ranks have the same state, to the bit. The collectives are those of the last
 * step on rank 0: in @n_data_calls of its data ranks, in n_calls of its tensor-parallel ones. */
TestRanksResult *test_mesh_train (const TestMesh *settings,
                                  guint n_data,
                                  guint n_steps,
                                  guint64 n_data_calls[EBB_N_COLLECTIVES]);

G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (TestMeshRun, test_mesh_run_clear)

G_END_DECLS
