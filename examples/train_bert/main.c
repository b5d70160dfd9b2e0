/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "common/job.h"

/* Trains BERT to find masked tokens of a text: `train_bert --help`. */

static const Program program = {
  .title = "- train BERT, a masked language model, on a text",
  .epilogue = "Examples: PROGRAM --data book.txt --checkpoint full --save bert.safetensors\n"
              "          PROGRAM --preset bert-large --tokenizer my-bert/ --data book.txt --batch 32 --context 128\n"
              "The model predicts 15 % of the tokens of each row: 80 % of these are masked, 10 % replaced, 10 % left.\n"
              "Ctrl-C finishes the current step, saves, and exits with 130. A second Ctrl-C exits at once.\n",
  .is_masked = TRUE,
};

int
main (int argc,
      char **argv)
{
  return job_main (&program, argc, argv);
}
