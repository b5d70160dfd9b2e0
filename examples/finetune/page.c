/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* How the options of finetune differ from those of the other programs that train, and what its man page says. */
#include "common/options/options.h"

static const OptionChange changes[] = {
  { "data", .help = "What to train on: JSON lines (.jsonl) with messages, with prompt and completion, or with text; or "
                    "UTF-8 text. Of messages and completions the answers alone count. You may name several files" },
  { "eval", .help =
                "Measure loss and perplexity, before the first step and after, on FILE or on a share of the data, like "
                "0.05, which is not trained on" },
  { "tokenizer", .shown = "that of --model" },
  { "model", .help = "The model: a folder in Hugging Face's format, which is only read" },
  { "preset", .is_absent = TRUE },
  { "layers", .is_absent = TRUE },
  { "width", .is_absent = TRUE },
  { "heads", .is_absent = TRUE },
  { "context", .shown = "the model's, at most 1024" },
  { "vocab", .is_absent = TRUE },
  { "dropout", .shown = "the model's own" },
  { "lora" },
  { "lora-targets" },
  { "lora-alpha" },
  { "lora-dropout" },
  { "rslora" },
  { "base" },
  { "adapter" },
  { "merge" },
  { "epochs" },
  { "steps", .help = "Optimizer steps in all, including resumed ones, in place of --epochs", .shown = "" },
  { "batch", .fallback = "1", .shown = "1, on ranks 1 for each model" },
  { "lr", .shown = "1e-5, for an adapter 2e-4" },
  { "schedule", .fallback = "cosine" },
  { "warmup", .shown = "3 % of the steps" },
  { "allow", .shown = "all",
    .help = "What may change values or the order of sums: bf16-weights and 8bit-moments at once, and with "
            "--memory, where nothing else fits, loss-chunk, micro-batches, bf16-moments, "
            "step-in-backward; several with commas, or none" },
  { "dtype", .shown = "that of the folder's weights" },
  { "weights", .shown = "that of the folder's weights",
    .help = "Type of the weights in memory: f32, or bf16, 2 bytes a parameter without an f32 copy" },
  { "residual", .is_absent = TRUE },
  { "moments", .shown = "8bit, for an adapter f32" },
  { "load", .is_absent = TRUE },
  { "save", .metavar = "DIR",
    .help =
        "Write the model to DIR, with an adapter PEFT's folder of it alone: at the end, with --eval whenever its loss "
        "is the least so far" },
  { "save-best", .is_absent = TRUE },
  { .name = NULL },
};

static const char *const examples[] = {
  "PROGRAM --model Llama-3.2-1B/ --data chats.jsonl --memory 7GiB --save tuned/",
  "PROGRAM --model Llama-3.2-1B/ --data chats.jsonl --lora 16 --memory 3.5GiB --save my-adapter/",
  "PROGRAM --model Llama-3.2-1B/ --merge my-adapter/ --save merged/",
  "mpirun -n 4 PROGRAM --model Qwen3-0.6B/ --data book.txt --eval 0.05 --log log/",
  NULL,
};

const OptionPage program_page = {
  .name = "ebb-finetune",
  .arguments = "[FILE…]",
  .purpose = "tune the model of a folder on texts or conversations, within a memory budget",
  .examples = examples,
  .notes = "Ctrl-C finishes the current step, saves, and exits with 130. A second Ctrl-C exits at once.",
  .statuses = gpt_statuses,
  .rows = gpt_options,
  .changes = changes,
  .on_ranks = TRUE,
};
