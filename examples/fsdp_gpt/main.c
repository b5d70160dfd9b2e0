/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "common/job.h"

/* The multi-rank version of train_gpt: `fsdp_gpt --help`. */

static const Program program = {
  .title = "- train a GPT on a text, on many ranks",
  .epilogue =
      "Examples: mpirun -n 4 PROGRAM --data book.txt --checkpoint full --store host\n"
      "          PROGRAM --backend thread --ranks 4 --data book.txt\n"
      "The first rank prints and writes all output. If one rank fails, all end. Ctrl-C, or SIGTERM to any rank, makes "
      "all ranks finish the current step, save, and exit with 130 or 143.\n",
  .on_ranks = TRUE,
};

int
main (int argc,
      char **argv)
{
  return job_main (&program, argc, argv);
}
