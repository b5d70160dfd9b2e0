/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* How the options of fsdp_gpt differ from those of the other programs that train, and what its man page says. */
#include "common/options/options.h"

static const char *const examples[] = {
  "mpirun -n 4 PROGRAM --data book.txt --checkpoint full --store host",
  "PROGRAM --backend thread --ranks 4 --data book.txt",
  NULL,
};

const OptionPage program_page = {
  .name = "ebb-fsdp-gpt",
  .arguments = "[FILE…]",
  .purpose = "train a GPT on a text, on many ranks",
  .examples = examples,
  .notes =
      "The first rank prints and writes all output. If one rank fails, all end. Ctrl-C, or SIGTERM to any rank, makes "
      "all ranks finish the current step, save, and exit with 130 or 143.",
  .statuses = gpt_statuses,
  .rows = gpt_options,
  .on_ranks = TRUE,
};
