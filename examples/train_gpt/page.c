/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* How the options of train_gpt differ from those of the other programs that train, and what its man page says. */
#include "common/options/options.h"

static const char *const examples[] = {
  "PROGRAM --data book.txt --checkpoint full --save book.safetensors",
  "PROGRAM --load book.safetensors --sample 400",
  NULL,
};

const OptionPage program_page = {
  .name = "ebb-train-gpt",
  .arguments = "[FILE…]",
  .purpose = "train a GPT on a text",
  .examples = examples,
  .notes = "Ctrl-C finishes the current step, saves, and exits with 130. A second Ctrl-C exits at once.",
  .statuses = gpt_statuses,
  .rows = gpt_options,
};
