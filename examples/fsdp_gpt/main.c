/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "common/job.h"

/* The multi-rank version of train_gpt: `fsdp_gpt --help`. */

static const Program program = {
  .on_ranks = TRUE,
};

int
main (int argc,
      char **argv)
{
  return job_main (&program, argc, argv);
}
