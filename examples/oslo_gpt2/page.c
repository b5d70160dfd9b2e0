/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The options of oslo_gpt2, and what its help and its man page say. */
#include "options.h"

#define MAX_RANKS 64
#define AT(member) .place = G_STRUCT_OFFSET (Options, member)
#define POSITIVE .least = 1, .most = G_MAXINT
#define BASIC .is_basic = TRUE

/* clang-format off */
static const OptionRow rows[] = {
  { OPTION_GROUP, "options", .metavar = "Options:" },
  { OPTION_PATH, "model", AT (model), BASIC, .takes_gguf = TRUE, .metavar = "FOLDER", .shown = "random weights",
    .help = "GPT-2, Llama or another decoder in Hugging Face's format: its weights, its configuration and its "
            "tokenizer, which pads with the token that ends a text. The ranks must divide its heads, and those of keys "
            "and values. A line of --data is a text" },
  { OPTION_TEXT, "preset", AT (preset), BASIC, .metavar = "NAME", .fallback = "gpt2",
    .get_names = ebb_gpt_config_get_preset_names,
    .help = "Size of the model: tiny, gpt2, gpt2-medium, gpt2-large, gpt2-xl" },
  { OPTION_INT, "layers", AT (layers), BASIC, .metavar = "N", .fallback = "0", .shown = "the preset's", POSITIVE,
    .help = "Number of transformer blocks" },
  { OPTION_INT, "width", AT (width), .metavar = "N", .fallback = "0", .shown = "the preset's", POSITIVE,
    .help = "Size of a token's vector" },
  { OPTION_INT, "heads", AT (heads), .metavar = "N", .fallback = "0", .shown = "the preset's", POSITIVE,
    .help = "Attention heads; the number must divide the width, and the ranks must divide it" },
  { OPTION_INT, "batch", AT (batch), BASIC, .metavar = "N", .fallback = "16", POSITIVE,
    .help = "Rows of text in a batch" },
  { OPTION_INT, "sequence", AT (sequence), BASIC, .metavar = "N", .fallback = "128", .least = 1, .most = 1 << 20,
    .help = "Tokens in a row of text" },
  { OPTION_INT, "steps", AT (steps), BASIC, .metavar = "N", .fallback = "1", POSITIVE,
    .help = "Steps for each row of the table, after one step with a single row of text; the last is measured" },
  { OPTION_DOUBLE, "lr", AT (lr), .metavar = "X", .fallback = "3e-5", .help = "Learning rate of AdamW" },
  { OPTION_DOUBLE, "dropout", AT (dropout), .metavar = "P", .fallback = "0.1", .shown = "0.1, with --model its own",
    .help = "Probability of dropout" },
  { OPTION_INT64, "seed", AT (seed), .metavar = "N", .fallback = "1", .least = 0, .most = G_MAXINT64,
    .help = "Seed of all random numbers" },
  { OPTION_PATH, "data", AT (data), .metavar = "FILE", .shown = "a few lines",
    .help = "Text to train on, read byte by byte, or line by line with --model" },
  { OPTION_DEVICE, "device", AT (device), BASIC, .metavar = "NAME", .fallback = "sim", .help = "Device to train on" },
  { OPTION_INT, "ranks", AT (ranks), BASIC, .metavar = "N", .fallback = "0", .shown = "4", .least = 2,
    .most = MAX_RANKS,
    .help = "Number of threads that share the model; under mpirun its processes share it" },
  { OPTION_INT, "prefetch", AT (prefetch), .metavar = "N", .fallback = "1", .least = 0, .most = 1024,
    .help = "Gather and fetch the inputs of blocks this many blocks ahead of backward" },
  { OPTION_INT, "threads", AT (threads), .metavar = "N", .fallback = "0", .shown = "its share of the cores",
    .least = 0, .most = 1024, .help = "Threads of each rank" },
  { .name = NULL },
};
/* clang-format on */

static const char *const examples[] = {
  "PROGRAM --batch 64",
  "PROGRAM --preset tiny --layers 12 --sequence 64",
  NULL,
};

static const OptionStatus statuses[] = {
  { 0, "The table was printed, and all its losses are equal." },
  { 1, "Something failed, or losses differ." },
  { 2, "The options are wrong, on the command line or in the file of --config." },
  { .text = NULL },
};

const OptionPage program_page = {
  .name = "ebb-oslo-gpt2",
  .purpose = "measure what OSLO's activation checkpointing saves of a GPT-2's memory on tensor ranks",
  .examples = examples,
  .statuses = statuses,
  .rows = rows,
};
