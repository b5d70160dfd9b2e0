/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "common/job.h"

/* train_gpt on many ranks: `fsdp_gpt --help`. */

static const Program program = {
  .title = "- train a GPT on a text, on many ranks",
  .epilogue =
      "Examples: mpirun -n 4 PROGRAM --data book.txt --shard full --checkpoint full --store host\n"
      "          PROGRAM --backend thread --ranks 4 --data book.txt\n"
      "The first rank shows and writes what there is to see. When one rank fails, all end. Ctrl-C, or SIGTERM to any\n"
      "rank, ends all after the step that runs, saves what is to be saved, and exits with 130 or 143.\n",
  .on_ranks = TRUE,
};

int
main (int argc,
      char **argv)
{
  return job_main (&program, argc, argv);
}
