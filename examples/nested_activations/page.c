/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The options of nested_activations, and what its help and its man page say. */
#include "options.h"

#define AT(member) .place = G_STRUCT_OFFSET (Options, sizes.member), .is_basic = TRUE
#define POSITIVE .least = 1, .most = G_MAXINT

/* clang-format off */
static const OptionRow rows[] = {
  { OPTION_GROUP, "options", .metavar = "Options:" },
  { OPTION_INT, "blocks", AT (blocks), .metavar = "N", .fallback = "4", POSITIVE,
    .help = "Number of transformer blocks" },
  { OPTION_INT, "width", AT (width), .metavar = "N", .fallback = "64", POSITIVE, .help = "Size of a token's vector" },
  { OPTION_INT, "heads", AT (heads), .metavar = "N", .fallback = "4", POSITIVE,
    .help = "Attention heads; the number must divide the width" },
  { OPTION_INT, "batch", AT (batch), .metavar = "N", .fallback = "4", POSITIVE, .help = "Rows of tokens" },
  { OPTION_INT, "tokens", AT (tokens), .metavar = "N", .fallback = "64", POSITIVE, .help = "Tokens in a row" },
  { OPTION_DOUBLE, "dropout", AT (dropout), .metavar = "P", .fallback = "0.1", .help = "Probability of dropout" },
  { OPTION_DEVICE, "device", AT (device_name), .metavar = "NAME", .fallback = "sim", .help = "Device to measure on" },
  { OPTION_PATH, "folder", AT (folder), .metavar = "DIR", .shown = "the system's temporary folder",
    .help = "Folder of the disk store's file" },
  { .name = NULL },
};
/* clang-format on */

static const char *const examples[] = {
  "PROGRAM --blocks 12 --tokens 256",
  "PROGRAM --device cpu --folder /var/tmp",
  NULL,
};

static const OptionStatus statuses[] = {
  { 0, "The table was printed, and all gradients are equal." },
  { 1, "Something failed, or gradients differ." },
  { 2, "The options are wrong, on the command line or in the file of --config." },
  { .text = NULL },
};

const OptionPage program_page = {
  .name = "ebb-nested-activations",
  .purpose = "measure what nested checkpoint wrappers and stores leave in memory",
  .examples = examples,
  .statuses = statuses,
  .rows = rows,
};
