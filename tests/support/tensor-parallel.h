/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <ebb/ebb.h>

/* A small model divided among ranks that are threads, and the same whole: what its losses and gradients are compared
 * by. All ranks have the same rows. */

G_BEGIN_DECLS

#define TEST_PARALLEL_ROWS 4
#define TEST_PARALLEL_IGNORED (-100)

typedef struct _TestParallel TestParallel;
typedef struct _TestParallelResult TestParallelResult;

/* Zeros are the defaults. */
struct _TestParallel
{
  guint n_ranks;                /* 1 */
  gboolean is_full;             /* not divided: each rank computes all */
  gboolean is_bert;             /* else a GPT */
  gboolean is_untied;           /* a GPT with a head of its own */
  const char *decoder; /* a GPT with the choices of support/decoders.h, and no other sizes but width; NULL: GPT-2's */
  EbbQuantization quantization; /* of the weights, before they are divided */
  gboolean has_documents;       /* of a GPT: each row has two, which do not see each other */
  gboolean has_mask;            /* of a BERT: padding */
  gboolean is_sequence_parallel;
  gboolean is_checkpointed; /* each block */
  gboolean is_bf16;         /* under autocast */
  guint n_layers;           /* 2 */
  gint64 width;             /* 32 */
  gint64 heads;             /* 4 */
  gint64 vocab;             /* 30: four ranks have uneven parts */
  gint64 context;           /* 16 */
  double dropout;
  guint n_passes; /* 1: backward passes, each of other rows, whose gradients add up */
  /* Wraps the model of a rank, or changes it otherwise, after it was divided. */
  gboolean (*prepare) (const TestParallel *self,
                       EbbModule *model,
                       EbbProcessGroup *group,
                       GError **error);
  gconstpointer data;
};

struct _TestParallelResult
{
  guint n_passes;
  double *losses;    /* of each pass, of rank 0 */
  char **names;      /* of parameters */
  float **gradients; /* whole: f32; NULL: there is none */
  gsize *lengths;
  guint64 n_calls[EBB_N_COLLECTIVES]; /* of the passes, of rank 0 */
};

struct _EbbPartition;
/* The full tensor of which @shard is this rank's shard: of a parameter, its gradient or a moment. Collective over the
 * ranks of @partition, an EbbPartition; new memory, no graph. */
EbbTensor *test_parallel_gather (EbbTensor *shard,
                                 const struct _EbbPartition *partition,
                                 GError **error);

/* The whole model: the same for the same settings. */
EbbModule *test_parallel_model (const TestParallel *self,
                                GError **error);
/* Divides it as the settings say. */
gboolean test_parallel_divide (const TestParallel *self,
                               EbbModule *model,
                               EbbProcessGroup *group,
                               GError **error);
/* Of pass @pass. */
EbbTensor *test_parallel_loss (const TestParallel *self,
                               EbbModule *model,
                               guint pass,
                               GError **error);

/* -- for tests that are linked with the private symbols (tests/internal-NAME.c) */

/* Runs the passes on all ranks. Aborts with the error where a rank fails, and where the ranks' losses differ. */
TestParallelResult *test_parallel_run (const TestParallel *self);
void test_parallel_result_free (TestParallelResult *self);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (TestParallelResult, test_parallel_result_free)

/* Losses relative; gradients relative to the greatest element of each parameter's. */
void test_parallel_assert_near (const TestParallelResult *a,
                                const TestParallelResult *b,
                                double tolerance);
void test_parallel_assert_same (const TestParallelResult *a,
                                const TestParallelResult *b);

G_END_DECLS
