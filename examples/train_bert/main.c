/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "common/job.h"

/* Trains BERT to find masked tokens of a text: `train_bert --help`. */

static const Program program = {
  .is_masked = TRUE,
};

int
main (int argc,
      char **argv)
{
  return job_main (&program, argc, argv);
}
