/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <ebb/ebb.h>

/* A training as the benchmarks run it: one batch of random tokens, over and over, so that the loss must fall. */

G_BEGIN_DECLS

typedef struct
{
  const char *preset;              /* NULL: gpt2; llama-1b; bert-large and the like: a loss at every position */
  const char *folder;              /* of a model that is opened; NULL: one is made of the preset */
  int layers, width, heads, vocab; /* 0: the preset's */
  int batch, context;
  double dropout;
  int lora;              /* rank of the branches that are trained in place of the model; 0: the model is */
  EbbQuantization base;  /* of the weights below the branches */
  const char *strategy;  /* none (or NULL), selective, full */
  gboolean bf16;         /* products in bf16 */
  gboolean bf16_weights; /* of a folder: held in bf16, and rounded at random where they move */
  const char *residual;  /* with bf16, of GPT: f32 (or NULL), bf16 */
  const char *moments;   /* f32 (or NULL), bf16, 8bit */
  gboolean step_in_backward;
  EbbDevice *device;          /* NULL: the CPU */
  EbbSavedTensorHooks *store; /* NULL, or where what is kept for backward waits; the training's while it lives */
} BenchSettings;

enum
{
  BENCH_FORWARD,
  BENCH_BACKWARD,
  BENCH_OPTIMIZER,
  BENCH_ENQUEUED, /* all of it, until the host waits for the loss: its own time where the device works by itself */
  BENCH_STEP,
  BENCH_N_PARTS
};

extern const char *const bench_part_names[BENCH_N_PARTS];

typedef struct
{
  BenchSettings settings;
  EbbModule *model;
  EbbOptimizer *optimizer;
  EbbTensor *tokens, *targets;
} BenchTraining;

BenchTraining *bench_training_new (const BenchSettings *settings,
                                   GError **error);
void bench_training_free (BenchTraining *self);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (BenchTraining, bench_training_free)

/* Forward, loss, backward, AdamW, gradients dropped: the seconds of each and of all. @loss may be NULL. */
gboolean bench_training_step (BenchTraining *self,
                              double *seconds,
                              double *loss,
                              GError **error);

/* Forward, loss and backward alone: gradients are added to those that are there. */
gboolean bench_training_accumulate (BenchTraining *self,
                                    GError **error);

guint64 bench_training_count_parameters (BenchTraining *self);

/* The most that was resident at any moment of this process, in bytes. */
guint64 bench_get_resident_peak (void);

double bench_median (double *values,
                     guint n); /* sorts them */

G_END_DECLS
