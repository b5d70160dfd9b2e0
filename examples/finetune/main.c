/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "common/job.h"

/* Tunes the model of a folder, all weights or an adapter: `finetune --help`. */

static const Program program = {
  .tunes = TRUE,
};

int
main (int argc,
      char **argv)
{
  return job_main (&program, argc, argv);
}
