/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The options of generate, and what its help and its man page say. */
#include "options.h"

#define AT(member) .place = G_STRUCT_OFFSET (Options, member)
#define FOLDERS .shown = "the folder's"
#define BASIC .is_basic = TRUE
#define READ .is_read = TRUE

static const char *const dtypes[] = { "auto", "f32", "bf16", NULL };
static const char *const bases[] = { "auto", "int8", "nf4", NULL };

/* clang-format off */
static const OptionRow rows[] = {
  { OPTION_GROUP, "model", .metavar = "Model:" },
  { OPTION_PATH, "model", 'm', AT (model), READ, BASIC, .takes_gguf = TRUE, .metavar = "FOLDER",
    .help = "Folder in Hugging Face's format: config.json, model.safetensors, tokenizer.json; or a GGUF file" },
  { OPTION_PATH, "adapter", 'a', AT (adapter), READ, BASIC, .takes_gguf = TRUE, .metavar = "FOLDER",
    .help = "LoRA adapter of that model: adapter_config.json, adapter_model.safetensors; or a GGUF file" },
  { OPTION_TEXT, "dtype", AT (dtype), .metavar = "NAME", .fallback = "auto", .names = dtypes,
    .help = "Type of the weights in memory: auto, the files' own; f32; bf16" },
  { OPTION_TEXT, "base", AT (base), BASIC, .metavar = "NAME", .fallback = "auto", .names = bases,
    .help = "Weights of linear layers: auto (as in the files), int8 or nf4 (quantised as they are read)" },
  { OPTION_DEVICE, "device", AT (device), .metavar = "NAME", .fallback = "cpu", .help = "Device to compute on" },
  { OPTION_INT, "threads", AT (threads), .metavar = "N", .fallback = "0", .least = 0, .most = 1024,
    .help = "Number of threads; 0: one for each core" },

  { OPTION_GROUP, "text", .metavar = "Text:" },
  { OPTION_RAW, "prompt", 'p', AT (prompt), BASIC, .metavar = "TEXT",
    .help = "Text to continue; without it and the next two, the arguments, or standard input" },
  { OPTION_PATH, "file", 'f', AT (file), READ, BASIC, .metavar = "FILE", .help = "File with the text to continue" },
  { OPTION_PATH, "batch", 'b', AT (batch), READ, .metavar = "FILE",
    .help = "File with a prompt in each line: all are continued together, and printed with a line between them" },
  { OPTION_FLAG, "chat", 'c', AT (chat), BASIC,
    .help = "Answer as an assistant, by the folder's chat template; without a prompt on a terminal, in a conversation: "
            "/reset begins a new one, /quit ends it, Ctrl-C stops an answer" },
  { OPTION_RAW, "system", AT (system), .metavar = "TEXT", .shown = "", .help = "System message of the conversation" },
  { OPTION_FLAG, "no-thinking", AT (no_thinking), .help = "Have Qwen 3 answer without reasoning first" },

  { OPTION_GROUP, "choice", .metavar = "Choice of tokens:" },
  { OPTION_INT, "tokens", 'n', AT (tokens), BASIC, .metavar = "N", .fallback = "256", .least = 1, .most = G_MAXINT,
    .help = "Most tokens to generate" },
  { OPTION_INT, "min-tokens", AT (min_tokens), .metavar = "N", .fallback = "0", FOLDERS, .least = 0, .most = G_MAXINT,
    .help = "Least tokens to generate before a token may end the text" },
  { OPTION_DOUBLE, "temperature", 't', AT (temperature), BASIC, .metavar = "X", .fallback = "0", FOLDERS,
    .help = "What logits are divided by; 0: always the likeliest token" },
  { OPTION_INT, "top-k", AT (top_k), .metavar = "N", .fallback = "0", FOLDERS, .least = 0, .most = G_MAXINT,
    .help = "Choose among this many of the likeliest tokens; 0: all" },
  { OPTION_DOUBLE, "top-p", AT (top_p), BASIC, .metavar = "P", .fallback = "1", FOLDERS,
    .help = "Choose among the likeliest tokens that have this probability together; 1: all" },
  { OPTION_DOUBLE, "min-p", AT (min_p), .metavar = "P", .fallback = "0", FOLDERS,
    .help = "Choose among tokens with at least this part of the likeliest one's probability" },
  { OPTION_DOUBLE, "repetition-penalty", AT (repetition_penalty), .metavar = "X", .fallback = "1", FOLDERS,
    .help = "Above 1, tokens that are in the text already become less likely" },
  { OPTION_INT, "no-repeat-ngram", AT (no_repeat_ngram), .metavar = "N", .fallback = "0", FOLDERS, .least = 0,
    .most = G_MAXINT, .help = "No sequence of this many tokens occurs twice, prompt included; 0: any may" },
  { OPTION_RAWS, "stop", AT (stop), .metavar = "TEXT", .shown = "the folder's",
    .help = "End before this text; may be given several times" },
  { OPTION_INT64, "seed", AT (seed), BASIC, .metavar = "N", .fallback = "1", .least = 0, .most = G_MAXINT64,
    .help = "Seed of all random numbers" },
  { OPTION_FLAG, "no-cache", AT (no_cache),
    .help = "Compute all tokens anew for each, which is slow and needs less memory" },

  { OPTION_GROUP, "files", .metavar = "Files:" },
  { OPTION_PATH, "report", AT (report), BASIC, .is_written = TRUE, .metavar = "FILE",
    .help = "Write texts, tokens, speed and memory to FILE as JSON; replaces a report there" },
  { OPTION_FLAG, "overwrite", AT (overwrite), .is_written = TRUE,
    .help = "Let --report replace a file that is no report. A file that the run reads is never replaced" },
  { .name = NULL },
};
/* clang-format on */

static const char *const examples[] = {
  "PROGRAM --model Llama-3.2-1B --prompt \"Once upon a time\" --temperature 0.8",
  "PROGRAM --model Qwen3-0.6B --chat \"Why is the sky blue?\"",
  "PROGRAM --model Qwen3-0.6B --chat",
  NULL,
};

static const OptionStatus statuses[] = {
  { 0, "The text was generated." },
  { 1, "Something failed: a file, the model, the memory." },
  { 2, "The options are wrong, on the command line or in the file of --config." },
  { 130, "Ctrl-C stopped it." },
  { .text = NULL },
};

const OptionPage program_page = {
  .name = "ebb-generate",
  .arguments = "[TEXT]",
  .purpose = "continue a text, or answer, with a model from a folder",
  .examples = examples,
  .notes = "Defaults that are the folder's come from its generation_config.json.",
  .statuses = statuses,
  .rows = rows,
};
