/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "common/job.h"

/* Trains a GPT on a text: `train_gpt --help`. */

static const Program program = {
  .on_ranks = FALSE,
};

int
main (int argc,
      char **argv)
{
  return job_main (&program, argc, argv);
}
