/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <ebb/ebb.h>

/* Small trainings: a GPT with dropout on a text or on batches with masked targets. */

G_BEGIN_DECLS

#define TEST_TRAINER_CONTEXT 8

/* The same model, on the tested device, for the same seed. */
EbbModule *test_trainer_model (double dropout);
/* A text that is long enough for some epochs. */
EbbDataset *test_trainer_text (void);
/* Batch @number of @n_rows rows, whose targets are masked from row to row at other places; row 1 of 4 has none. */
EbbArgs *test_trainer_batch (gint64 number,
                             gint64 n_rows);
/* The options' property @first and the following ones are set; ends with NULL. */
EbbTrainerOptions *test_trainer_options (const char *first,
                                         ...) G_GNUC_NULL_TERMINATED;

G_END_DECLS
