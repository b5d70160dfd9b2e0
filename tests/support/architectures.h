/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <ebb/ebb.h>

/* The tiny models of tests/fixtures/models, and what transformers computed of them: README.md of the fixtures says what
 * each folder holds. */

G_BEGIN_DECLS

#define TEST_ARCHITECTURE_STEPS 20
#define TEST_ARCHITECTURE_BATCHES 4
#define TEST_ARCHITECTURE_BOUND 1e-5 /* of logits, and of gradients as test_architecture_compare_gradients () has it */

/* A mistake in the configuration: text of config.json and its replacement. */
typedef struct
{
  const char *what, *text, *wrong;
} TestMistake;

typedef struct
{
  const char *name; /* of the folder */
  gboolean is_bert;
  TestMistake mistakes[8];
} TestArchitecture;

extern const TestArchitecture test_architectures[];
extern const guint test_n_architectures;

/* Adds @func as PATH/NAME; its data is the TestArchitecture. */
void test_add_architecture (const char *path,
                            const TestArchitecture *self,
                            GTestDataFunc func);
/* For each of them. */
void test_add_architectures (const char *path,
                             GTestDataFunc func);

char *test_architecture_get_folder (const TestArchitecture *self);
/* In f32, on the device under test, in training mode. */
EbbModule *test_architecture_open (const TestArchitecture *self);
EbbModule *test_architecture_open_folder (const char *folder);
/* A new folder with the same files, where config.json is @config. */
char *test_architecture_copy_folder (const TestArchitecture *self,
                                     const char *config);
char *test_architecture_read (const TestArchitecture *self,
                              const char *file);
void test_architecture_remove_folder (const char *folder);
EbbArgs *test_architecture_load_expected (const TestArchitecture *self);

/* Of batch @batch of @expected. */
EbbTensor *test_architecture_logits (EbbModule *model,
                                     EbbArgs *expected,
                                     guint batch,
                                     GError **error);
EbbTensor *test_architecture_loss (EbbModule *model,
                                   EbbArgs *expected,
                                   guint batch,
                                   GError **error);
/* With the options that the fixtures were made with. */
EbbOptimizer *test_architecture_optimizer (EbbModule *model,
                                           GError **error);
/* Writes the losses before each of @n steps, the first of which is step 0. */
gboolean test_architecture_train (EbbModule *model,
                                  EbbOptimizer *optimizer,
                                  EbbArgs *expected,
                                  guint n,
                                  double *losses,
                                  GError **error);
/* Of all parameters the largest |difference| / max (|g|, 1e-3 |all g|), after backward of batch 0. */
double test_architecture_compare_gradients (EbbModule *model,
                                            EbbArgs *expected);
/* The largest relative difference of losses from the first on, and the bound that they keep: 2e-6, or twice the
 * distance of transformers in f32 from itself in f64. */
double test_architecture_compare_losses (EbbArgs *expected,
                                         const double *losses,
                                         guint n,
                                         double *bound);

G_END_DECLS
