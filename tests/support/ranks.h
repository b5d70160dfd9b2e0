/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <ebb/ebb.h>

/* The training of a small GPT on ranks that are threads, at one global batch whatever their number: what the losses of
 * each strategy are compared by. */

G_BEGIN_DECLS

#define TEST_RANKS_WIDTH 32
#define TEST_RANKS_CONTEXT 16
#define TEST_RANKS_VOCAB 29
#define TEST_RANKS_ROWS 16 /* of a step, on all ranks; three have an uneven share */

/* Wraps the model of one rank. */
typedef gboolean (*TestStrategy) (EbbModule *gpt,
                                  EbbProcessGroup *group,
                                  gconstpointer data,
                                  GError **error);

typedef struct _TestRanks TestRanks;
typedef struct _TestRanksResult TestRanksResult;

/* Zeros are the defaults. */
struct _TestRanks
{
  guint n_ranks;      /* 1 */
  guint n_steps;      /* 50 */
  guint n_layers;     /* 2 */
  guint n_passes;     /* 1: the rows of a step are in so many backward passes */
  gboolean syncs_all; /* the passes of a step but the last aren't without ebb_push_gradient_sync () */
  double max_norm;    /* no clipping */
  double dropout;
  gboolean steps_in_backward;
  gboolean optimizer_is_first; /* made before the model is wrapped */
  gboolean begins_equal;       /* other ranks' weights are not drawn from other seeds */
  EbbDType dtype;              /* f32 */
  TestStrategy strategy;       /* none: this rank trains alone */
  gconstpointer data;
  /* On each rank when the last step is done, before the model goes. */
  void (*inspect) (const TestRanks *self,
                   EbbModule *gpt,
                   EbbOptimizer *optimizer,
                   EbbProcessGroup *group);
};

struct _TestRanksResult
{
  guint n_steps, n_ranks;
  double *losses;  /* the mean over all tokens of a step, of before the step */
  double *norms;   /* of rank 0; 0 where nothing is clipped */
  guint64 *hashes; /* of each rank's parameters at the end */
  /* of rank 0, in the last step */
  guint64 n_calls[EBB_N_COLLECTIVES], n_bytes[EBB_N_COLLECTIVES];
  guint64 n_parameters, parameter_bytes; /* of the whole model */
};

/* Aborts with the error where a rank fails. */
TestRanksResult *test_ranks_train (const TestRanks *self);
/* The same, telling of the error. */
TestRanksResult *test_ranks_try (const TestRanks *self,
                                 GError **error);
void test_ranks_result_free (TestRanksResult *self);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (TestRanksResult, test_ranks_result_free)

/* Losses and norms of all steps, relative. */
void test_ranks_assert_near (const TestRanksResult *a,
                             const TestRanksResult *b,
                             double tolerance);
/* Bit for bit, parameters too. */
void test_ranks_assert_same (const TestRanksResult *a,
                             const TestRanksResult *b);

/* The model that is trained: the same for the same seed. */
EbbModule *test_ranks_model (guint n_layers,
                             double dropout,
                             guint64 seed);
/* Of the rows from @first on of the global batch of a step. */
EbbTensor *test_ranks_loss (EbbModule *gpt,
                            guint step,
                            gint64 first,
                            gint64 n_rows,
                            GError **error);
guint64 test_ranks_hash (EbbModule *module);

/* Runs @func on threads, each with the device under test; a rank's error ends the test. */
void test_ranks_run (guint n_ranks,
                     EbbRankFunc func,
                     gpointer user_data);

G_END_DECLS
