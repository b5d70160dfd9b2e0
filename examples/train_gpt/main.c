/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "common/job.h"

/* Trains a GPT on a text: `train_gpt --help`. */

static const Program program = {
  .title = "- train a GPT on a text",
  .epilogue =
      "Examples: PROGRAM --data book.txt --checkpoint full --save book.safetensors\n"
      "          PROGRAM --load book.safetensors --sample 400\n"
      "Ctrl-C finishes the current step, saves, and exits with 130. A second Ctrl-C exits at once.\n",
};

int
main (int argc,
      char **argv)
{
  return job_main (&program, argc, argv);
}
