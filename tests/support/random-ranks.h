/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <ebb/ebb.h>

/* Two training steps of a small model on ranks that are threads and have the same rows, with wrappers of all kinds put
 * on it at random: the same for the same seed. */

G_BEGIN_DECLS

#define TEST_RANK_STEPS 2

/* What is drawn for a seed. Choices for single modules are drawn by their paths, so they stay when others go. */
typedef struct
{
  guint64 seed;
  const char *decoder; /* of support/decoders.h, or "gpt2"; NULL: a sequence of layers */
  guint n_layers;      /* 0: as many as the decoder has */
  double dropout;
  EbbQuantization quantization;
  gboolean is_wide;
  gboolean adapts;        /* by LoRA */
  guint frozen;           /* percent of the modules */
  guint n_data, n_tensor; /* ranks */
  gboolean sequence_parallel;
  gboolean shards, lowers, autocast;
  guint units, checkpoints; /* percent of the modules */
  gboolean stores;          /* around forwards and on modules */
  guint n_passes;           /* of a step */
} TestRankProgram;

/* What one rank saw. */
typedef struct
{
  double losses[TEST_RANK_STEPS];
  GPtrArray *gradients[TEST_RANK_STEPS]; /* of GBytes, of this rank's parts; f32; empty where there is none */
  GPtrArray *whole[TEST_RANK_STEPS];     /* those of parameters that tensor ranks divide gathered; NULL where sharded */
} TestRankView;

typedef struct
{
  TestRankProgram program;
  char **names; /* of parameters */
  char *text;   /* how modules are wrapped, on rank 0 */
  guint n_ranks, n_parameters;
  TestRankView *views; /* [n_ranks]: those that share data are n_tensor apart */
} TestRankRun;

void test_rank_program_draw (TestRankProgram *self,
                             guint64 seed);
char *test_rank_program_describe (const TestRankProgram *self);
TestRankRun *test_rank_program_run (const TestRankProgram *self,
                                    GError **error);
void test_rank_run_free (TestRankRun *self);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (TestRankRun, test_rank_run_free)

G_END_DECLS
