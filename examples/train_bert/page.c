/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* How the options of train_bert differ from those of the other programs that train, and what its man page says. */
#include "common/options/options.h"

static const OptionChange changes[] = {
  { "data", .help = "UTF-8 text to train on; you may name several files" },
  { "pack", .is_absent = TRUE },
  { "preset", .get_names = ebb_bert_config_get_preset_names,
    .help = "Size of the model: tiny, bert-base, bert-large" },
  { "weights", .is_absent = TRUE },
  { "rounding", .is_absent = TRUE },
  { "residual", .is_absent = TRUE },
  { "load", .help = "Start from these weights: safetensors with BERT's published names; the config.json beside them "
                    "gives the sizes that you don't" },
  { "sample", .is_absent = TRUE },
  { "prompt", .is_absent = TRUE },
  { "temperature", .is_absent = TRUE },
  { "top-k", .is_absent = TRUE },
  { .name = NULL },
};

static const char *const examples[] = {
  "PROGRAM --data book.txt --checkpoint full --save bert.safetensors",
  "PROGRAM --preset bert-large --tokenizer my-bert/ --data book.txt --batch 32 --context 128",
  NULL,
};

const OptionPage program_page = {
  .name = "ebb-train-bert",
  .arguments = "[FILE…]",
  .purpose = "train BERT, a masked language model, on a text",
  .examples = examples,
  .notes = "The model predicts 15 % of the tokens of each row: 80 % of these are masked, 10 % replaced, 10 % left.\n"
           "Ctrl-C finishes the current step, saves, and exits with 130. A second Ctrl-C exits at once.",
  .statuses = gpt_statuses,
  .rows = gpt_options,
  .changes = changes,
};
