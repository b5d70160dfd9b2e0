/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The options of the programs that train: names, help, defaults, ranges, and the fields that take their values. */
#include "common/options/options.h"
#include "common/train/store.h"

#define MAX_THREADS 1024
#define MAX_RANKS 1024

static const char *const dtypes[] = { "f32", "bf16", NULL };
static const char *const moments[] = { "f32", "bf16", "8bit", NULL };
static const char *const roundings[] = { "random", "nearest", "master", NULL };
static const char *const bases[] = { "auto", "int8", "nf4", NULL };
static const char *const checkpoints[] = { "none", "selective", "full", "auto", NULL };
static const char *const decayed[] = { "matrices", "all", NULL };
static const char *const schedules[] = { "constant", "cosine", NULL };
static const char *const backends[] = { "auto", "single", "thread", "mpi", "nccl", NULL };
static const char *const shards[] = { "full", "none", "hybrid", NULL };
static const char *const reshards[] = { "auto", "always", "never", NULL };
static const char *const nestings[] = { "shard-outside", "checkpoint-outside", NULL };
static const char *const reduces[] = { "auto", "step", "batch", NULL };
static const char *const budgets[] = { "auto", NULL };
static const char *const lower_dtypes[] = { "none", "f32", "bf16", NULL };

#define AT(member) .place = G_STRUCT_OFFSET (Options, member)
#define SIZE_AT(member) .place = G_STRUCT_OFFSET (Options, member##_text), .bytes = G_STRUCT_OFFSET (Options, member)
#define ANY_INT .least = 0, .most = G_MAXINT
#define POSITIVE .least = 1, .most = G_MAXINT
#define ANY_INT64 .least = 0, .most = G_MAXINT64
#define SAVED .is_saved = TRUE
#define BASIC .is_basic = TRUE
#define READ .is_read = TRUE
#define WRITTEN .is_written = TRUE

/* clang-format off */
const OptionRow gpt_options[] = {
  { OPTION_GROUP, "data", .metavar = "Text:" },
  { OPTION_PATHS, "data", 'd', AT (data), READ, BASIC, .metavar = "FILE…",
    .help = "UTF-8 text to train on, or JSON lines (.jsonl) with text, with prompt and completion, or with messages; "
            "you may name several files" },
  { OPTION_FLAG, "pack", AT (pack), SAVED, .late = "0",
    .help = "Each text file is a document; documents share rows and don't see each other, as those of JSON lines" },
  { OPTION_RAW, "eval", AT (eval), READ, BASIC, .metavar = "FILE|SHARE", .fallback = "", SAVED, .late = "",
    .help = "Measure loss and perplexity on FILE, or on a share of the data, like 0.05, which is not trained on" },
  { OPTION_INT64, "eval-every", AT (eval_every), .metavar = "N", .fallback = "100", .least = 1, .most = G_MAXINT64,
    SAVED, .late = "100", .help = "Measure it every N steps, and at the end" },
  { OPTION_PATH, "tokenizer", AT (tokenizer), READ, BASIC, .metavar = "byte|DIR", .fallback = "byte", SAVED,
    .shown = "byte, or that of --model",
    .help = "byte: the 256 bytes; or a folder with tokenizer.json, or with GPT-2's vocab.json and merges.txt" },

  { OPTION_GROUP, "model", .metavar = "Model:" },
  { OPTION_RAW, "model", AT (model), READ, BASIC, .takes_gguf = TRUE, .metavar = "DIR", .fallback = "",
    SAVED, .late = "",
    .help = "Train the model of a folder in Hugging Face's format, with its tokenizer; --save writes such a folder" },
  { OPTION_TEXT, "preset", AT (preset), BASIC, .metavar = "NAME", .shown = DEFAULT_PRESET,
    .get_names = ebb_gpt_config_get_preset_names,
    .help = "Size of the model: tiny, gpt2, gpt2-medium, gpt2-large, gpt2-xl" },
  { OPTION_INT, "layers", AT (layers), BASIC, .metavar = "N", .fallback = "0", .shown = "the preset's", POSITIVE,
    .help = "Number of transformer blocks" },
  { OPTION_INT, "width", AT (width), BASIC, .metavar = "N", .fallback = "0", .shown = "the preset's", POSITIVE,
    .help = "Size of a token's vector" },
  { OPTION_INT, "heads", AT (heads), .metavar = "N", .fallback = "0", .shown = "the preset's", POSITIVE,
    .help = "Attention heads; the number must divide the width" },
  { OPTION_INT, "context", AT (context), BASIC, .metavar = "N", .fallback = "0", .shown = "the preset's", POSITIVE,
    .help = "Tokens in a row of text" },
  { OPTION_INT, "vocab", AT (vocab), .metavar = "N", .fallback = "0", POSITIVE,
    .shown = "the preset's; of tiny the tokenizer's, 256", .help = "Size of the vocabulary" },
  { OPTION_DOUBLE, "dropout", AT (dropout), .metavar = "P", .fallback = "0.1", SAVED,
    .shown = "0.1, with --model its own", .help = "Probability of dropout" },

  { OPTION_GROUP, "adapter", .metavar = "Adapter:" },
  { OPTION_INT, "lora", AT (lora), BASIC, .metavar = "RANK", .fallback = "0", .shown = "", ANY_INT, SAVED, .late = "0",
    .is_extra = TRUE,
    .help = "Train an adapter of this rank beside linear layers (LoRA), not the weights, which stay as they are" },
  { OPTION_RAW, "lora-targets", AT (lora_targets), .metavar = "NAMES", .fallback = "", .shown = "all but lm_head",
    SAVED, .late = "", .is_extra = TRUE,
    .help = "Linear layers that get a branch, by the ends of their names, as q_proj,v_proj; * and ? stand for any "
            "text" },
  { OPTION_DOUBLE, "lora-alpha", AT (lora_alpha), .metavar = "X", .fallback = "0", .shown = "the rank", SAVED,
    .late = "0", .is_extra = TRUE, .help = "Branches are multiplied by X / RANK" },
  { OPTION_DOUBLE, "lora-dropout", AT (lora_dropout), .metavar = "P", .fallback = "0", SAVED, .late = "0",
    .is_extra = TRUE, .help = "Probability with which an element of a branch's input is dropped" },
  { OPTION_FLAG, "rslora", AT (rslora), SAVED, .late = "0", .is_extra = TRUE,
    .help = "Multiply branches by X / sqrt (RANK): rank-stabilized LoRA" },
  { OPTION_TEXT, "base", AT (base), BASIC, .metavar = "NAME", .fallback = "auto", .names = bases, SAVED, .late = "auto",
    .is_extra = TRUE,
    .help = "Weights of linear layers below an adapter: auto, as the folder has them; int8 or nf4, quantised as they "
            "are read" },
  { OPTION_RAW, "adapter", AT (adapter), READ, BASIC, .takes_gguf = TRUE, .is_trained = TRUE, .metavar = "DIR",
    .fallback = "", SAVED,
    .late = "", .is_extra = TRUE, .help = "Train this adapter further: a folder that --save or PEFT wrote" },
  { OPTION_PATH, "merge", AT (merge), BASIC, .takes_gguf = TRUE, .metavar = "DIR", .is_extra = TRUE,
    .help = "Train nothing: add the adapter in DIR to the model's weights, and write the folder of --save" },

  { OPTION_GROUP, "training", .metavar = "Training:" },
  { OPTION_DOUBLE, "epochs", AT (epochs), BASIC, .metavar = "X", .fallback = "1", SAVED, .late = "1", .is_extra = TRUE,
    .help = "How often all of the data is trained on" },
  { OPTION_INT64, "steps", 'n', AT (steps), BASIC, .metavar = "N", .fallback = "100", ANY_INT64,
    .shown = "100; 0 with --load and --sample but no --data",
    .help = "Optimizer steps in all, including resumed ones" },
  { OPTION_INT, "batch", AT (batch), BASIC, .metavar = "N", .fallback = "8", POSITIVE, SAVED,
    .help = "Rows of text in a batch",
    .help_on_ranks = "Rows of text in a batch, of all ranks together" },
  { OPTION_INT, "micro-batch", AT (micro_batch), .metavar = "N", .fallback = "0", ANY_INT, SAVED, .late = "0",
    .help = "Rows of a batch that are computed at a time, to hold fewer activations; gradients are summed; 0: all" },
  { OPTION_INT, "accumulate", AT (accumulate), .metavar = "N", .fallback = "1", POSITIVE, SAVED,
    .help = "Batches whose gradients make one step" },
  { OPTION_DOUBLE, "lr", AT (lr), BASIC, .metavar = "X", .fallback = "3e-4", SAVED, .help = "Learning rate of AdamW" },
  { OPTION_TEXT, "schedule", AT (schedule), .metavar = "NAME", .fallback = "constant", .names = schedules, SAVED,
    .help = "How the learning rate changes: constant, cosine" },
  { OPTION_INT64, "warmup", AT (warmup), .metavar = "N", .fallback = "0", ANY_INT64, SAVED,
    .help = "Steps over which the learning rate rises first" },
  { OPTION_DOUBLE, "min-lr", AT (min_lr), .metavar = "X", .fallback = "0", SAVED,
    .help = "Learning rate at the end of the cosine" },
  { OPTION_DOUBLE, "weight-decay", AT (weight_decay), .metavar = "X", .fallback = "0.01", SAVED,
    .help = "Decoupled weight decay" },
  { OPTION_TEXT, "decayed", AT (decayed), .metavar = "matrices|all", .fallback = "matrices", .names = decayed, SAVED,
    .late = "all", .help = "What weight decay applies to: matrices and embeddings, or norms and biases as well" },
  { OPTION_DOUBLE, "clip", AT (clip), .metavar = "X", .fallback = "0", SAVED,
    .help = "Clip the norm of all gradients to X; 0: don't clip" },
  { OPTION_INT64, "seed", AT (seed), .metavar = "N", .fallback = "1", ANY_INT64,
    .help = "Seed of all random numbers: weights, order of the text, dropout" },

  { OPTION_GROUP, "ranks", .metavar = "Ranks:", .on_ranks = TRUE },
  { OPTION_TEXT, "backend", AT (ranks.backend), BASIC, .metavar = "NAME", .fallback = "auto", .names = backends,
    .help = "How ranks run and communicate: thread, mpi, single, nccl if each has a GPU, or auto: as the environment "
            "says" },
  { OPTION_INT, "ranks", AT (ranks.n_ranks), BASIC, .metavar = "N", .fallback = "0", .shown = "", .least = 1,
    .most = MAX_RANKS,
    .help = "Number of ranks with --backend thread; otherwise mpirun or Slurm sets it" },
  { OPTION_TEXT, "shard", AT (ranks.shard), BASIC, .metavar = "HOW", .fallback = "full", .names = shards, SAVED,
    .late = "full",
    .help = "How parameters, gradients and optimizer state are sharded: full: over all ranks; none: each rank has all "
            "of them; hybrid: over --shard-size ranks, replicated over the other groups" },
  { OPTION_INT, "shard-size", AT (ranks.shard_size), .metavar = "N", .fallback = "0", .shown = "", .least = 1,
    .most = MAX_RANKS, .help = "Ranks that share one model with --shard hybrid; N must divide the number of ranks" },
  { OPTION_TEXT, "wrap", AT (ranks.wrap), .metavar = "block|model|N", .fallback = "block", SAVED, .late = "block",
    .help = "Unit that is unsharded at one time: a block, the whole model, or a module with at least N parameters" },
  { OPTION_TEXT, "reshard", AT (ranks.reshard), .metavar = "WHEN", .fallback = "auto", .names = reshards,
    .help = "Whether a unit is sharded again after its forward: always, never, auto: all units but the root" },
  { OPTION_FLAG, "flatten", AT (ranks.flatten), SAVED, .late = "0",
    .help = "Shard all elements of a unit in a row instead of the rows of each parameter" },
  { OPTION_TEXT, "compute-dtype", AT (ranks.compute_dtype), .metavar = "NAME", .fallback = "none",
    .names = lower_dtypes,
    SAVED, .late = "none", .help = "Type in which parameters are gathered and computed: none: their own; f32, bf16" },
  { OPTION_TEXT, "reduce-dtype", AT (ranks.reduce_dtype), .metavar = "NAME", .fallback = "none",
    .names = lower_dtypes, SAVED,
    .late = "none", .help = "Type in which gradients are sent: none: their own; f32, bf16" },
  { OPTION_FLAG, "offload-parameters", AT (ranks.offload_parameters),
    .help = "Keep this rank's shards, their gradients and optimizer state in host memory" },
  { OPTION_TEXT, "nesting", AT (ranks.nesting), .metavar = "HOW", .fallback = "shard-outside", .names = nestings,
    .help = "Which wrapper goes around the other with --checkpoint: shard-outside, checkpoint-outside" },
  { OPTION_TEXT, "reduce", AT (ranks.reduce), .metavar = "WHEN", .fallback = "auto", .names = reduces, SAVED,
    .late = "auto",
    .help = "With --accumulate, when gradients are reduced: step: once a step, which sends least; batch: after each "
            "batch, which holds least; auto: step with --shard none, otherwise batch" },
  { OPTION_DOUBLE, "timeout", AT (ranks.timeout), .metavar = "S", .fallback = "0",
    .help = "Seconds that ranks wait for each other; 0: the library's default" },

  { OPTION_GROUP, "tensor", .metavar = "Tensor ranks:" },
  { OPTION_INT, "tensor-parallel", AT (ranks.tensor_parallel), BASIC, .metavar = "N", .fallback = "1", .least = 1,
    .most = MAX_RANKS,
    .help = "Ranks that share the layers of the model: N threads, or the processes that mpirun started",
    .help_on_ranks = "Neighbouring ranks that share the layers of one model and its rows; other models have other "
                     "rows" },
  { OPTION_FLAG, "sequence-parallel", AT (ranks.sequence_parallel), SAVED, .late = "0",
    .help = "Tensor ranks also share norms, dropout and the residual stream, by tokens" },
  { OPTION_NO_FLAG, "no-sequence-parallel", AT (ranks.sequence_parallel),
    .help = "Turn off --sequence-parallel for a resumed run that had it" },
  { OPTION_FLAG, "partition", AT (ranks.partition), SAVED, .late = "0",
    .help = "With --checkpoint full each tensor rank keeps its part of the blocks' inputs, in the --store" },
  { OPTION_NO_FLAG, "no-partition", AT (ranks.partition),
    .help = "Turn off --partition for a resumed run that had it" },

  { OPTION_GROUP, "machine", .metavar = "Memory and machine:" },
  { OPTION_TEXT, "checkpoint", 'c', AT (checkpoint), BASIC, .metavar = "KIND", .fallback = "none", .names = checkpoints,
    SAVED,
    .help = "Activation checkpointing per block: none, selective, full, or auto: the fastest plan that the --memory "
            "holds; on a terminal the run ends with a report" },
  { OPTION_TEXT, "store", AT (store), BASIC, .metavar = "KIND", .fallback = "keep",
    .get_names = ebb_store_kind_get_names, SAVED, .get_help = store_get_help },
  { OPTION_PATH, "store-folder", AT (store_folder), .metavar = "DIR", .shown = "the system's temporary folder",
    .help = "Folder of the disk store's file" },
  { OPTION_SIZE, "store-limit", SIZE_AT (store_limit), .metavar = "SIZE", .shown = "0",
    .help = "Limit of the bytes in the store, with or without a unit: 1.5GiB, 1500MB; 0: no limit" },
  { OPTION_TEXT, "store-fallback", AT (store_fallback), .metavar = "KIND", .fallback = "none",
    .get_names = store_get_fallback_names, .get_help = store_get_fallback_help },
  { OPTION_INT, "prefetch", AT (prefetch), .metavar = "N", .fallback = "1", ANY_INT,
    .help = "Fetch activations from the store this many blocks ahead of backward" },
  { OPTION_SIZE, "memory", SIZE_AT (memory), BASIC, .metavar = "SIZE", .shown = "0", .names = budgets,
    .help = "Budget of a training: plans what each block keeps and recomputes so that the device's bytes, on the CPU "
            "those of the process, stay within SIZE: 1.5GiB, 1500MB, or auto: all that is free",
    .help_on_ranks = "Budget of a training: one plan for all ranks keeps the bytes of each device, on the CPU those of "
                     "each process, within SIZE: 1.5GiB, 1500MB, or auto: all that is free; ranks that are threads "
                     "share it" },
  { OPTION_TEXT, "allow", AT (allow), .metavar = "NAMES", .shown = "",
    .help = "What --memory may take, in this order, where no plan that keeps all bits fits: loss-chunk, "
            "micro-batches, bf16-moments, 8bit-moments, bf16-residual, step-in-backward; several with commas" },
  { OPTION_PATH, "plan", AT (plan), READ, .is_made = TRUE, .metavar = "FILE",
    .help = "Write the plan of --memory to FILE, or train by the one that is there" },
  { OPTION_FLAG, "estimate", AT (estimate), BASIC, .shown = "",
    .help = "Train nothing: print the bytes that a step needs, who holds them, the seconds of a step and of --steps" },
  { OPTION_TEXT, "dtype", AT (dtype), BASIC, .metavar = "NAME", .fallback = "f32", .names = dtypes, SAVED,
    .help = "Type to compute in: f32 or bf16" },
  { OPTION_TEXT, "weights", AT (weights), .metavar = "NAME", .fallback = "f32", .names = dtypes, SAVED, .late = "f32",
    .help = "Type of the weights with --dtype bf16: f32, or bf16, 2 bytes a parameter without an f32 copy" },
  { OPTION_TEXT, "rounding", AT (rounding), .metavar = "NAME", .fallback = "random", .names = roundings, SAVED,
    .late = "random",
    .help = "How a step rounds --weights bf16: random; nearest, which loses small steps; master: a copy in f32 moves, "
            "4 bytes more" },
  { OPTION_TEXT, "residual", AT (residual), .metavar = "NAME", .fallback = "f32", .names = dtypes, SAVED, .late = "f32",
    .help = "Type of the residual stream with --dtype bf16: f32, or bf16, which halves it" },
  { OPTION_SIZE, "loss-chunk", SIZE_AT (loss_chunk), .metavar = "SIZE", .shown = "the device's choice", SAVED,
    .late = "0",
    .help = "Logits that exist at a time: 16MiB; smaller chunks take longer" },
  { OPTION_TEXT, "moments", AT (moments), .metavar = "NAME", .fallback = "f32", .names = moments, SAVED, .late = "f32",
    .help = "Type of AdamW's moments: f32, bf16 or 8bit, which take 8, 4 or 2 bytes a parameter" },
  { OPTION_FLAG, "step-in-backward", AT (step_in_backward), SAVED, .late = "0",
    .help = "Update each parameter as soon as its gradient is complete, and free the gradient" },
  { OPTION_DEVICE, "device", AT (device), BASIC, .metavar = "NAME", .fallback = "cpu", .help = "Device to train on" },
  { OPTION_INT, "threads", AT (threads), .metavar = "N", .fallback = "0", .least = 0, .most = MAX_THREADS,
    .help = "Number of threads; 0: one for each core",
    .help_on_ranks = "Threads of each rank; 0: its share of the machine's cores" },

  { OPTION_GROUP, "files", .metavar = "Files:" },
  { OPTION_PATH, "load", AT (load), READ, BASIC, .is_trained = TRUE, .metavar = "FILE",
    .help = "Start from these weights: safetensors with GPT-2's names; the file, or the config.json beside it, gives "
            "the sizes that you don't" },
  { OPTION_PATH, "save", AT (save), BASIC, WRITTEN, .is_trained = TRUE, .metavar = "FILE|DIR/",
    .help = "Write the weights to FILE at the end, replacing weights there, or a model's folder, with config.json and "
            "tokenizer, to DIR/" },
  { OPTION_PATH, "save-best", AT (save_best), WRITTEN, .is_trained = TRUE, .metavar = "FILE|DIR/",
    .help = "Write the weights to FILE or DIR/ whenever the loss of --eval is the least so far" },
  { OPTION_FLAG, "overwrite", AT (overwrite), WRITTEN,
    .help = "Let --save and --save-best replace another model, or write into a folder of other files; let options that "
            "write a file replace a file of another kind. A file that the run reads is never replaced" },
  { OPTION_PATH, "resume", AT (resume), BASIC, WRITTEN, .metavar = "DIR",
    .help = "Save the state of the training in DIR; if DIR has one, resume it, bit for bit and with its options" },
  { OPTION_INT64, "save-every", AT (save_every), .metavar = "N", .fallback = "500", ANY_INT64,
    .help = "Save the state every N steps; 0: only at the end and at Ctrl-C" },

  { OPTION_GROUP, "output", .metavar = "Output:" },
  { OPTION_INT, "sample", 's', AT (sample), BASIC, .metavar = "N", .fallback = "0", ANY_INT,
    .help = "Print N tokens of generated text at the end" },
  { OPTION_RAW, "prompt", AT (prompt), .metavar = "TEXT", .fallback = "\n", .shown = "a new line",
    .help = "Text that the generated text continues" },
  { OPTION_DOUBLE, "temperature", AT (temperature), .metavar = "X", .fallback = "0.8",
    .help = "Sampling temperature: lower is safer, higher is wilder" },
  { OPTION_INT, "top-k", AT (top_k), .metavar = "N", .fallback = "40", ANY_INT,
    .help = "Sample from the N likeliest tokens; 0: from all" },
  { OPTION_PATH, "report", 'r', AT (report), BASIC, WRITTEN, .metavar = "FILE",
    .help = "Write losses, times, memory and each block's checkpointing to FILE, as JSON; replaces a report there" },
  { OPTION_PATH, "log", AT (log), BASIC, WRITTEN, .metavar = "DIR",
    .help = "Write each step's loss, learning rate, speed and memory to files in DIR: steps.jsonl with an object in "
            "each line, and events for TensorBoard; a resumed training continues them" },
  { OPTION_PATH, "profile", AT (profile), WRITTEN, .metavar = "FILE",
    .help = "Show where the time of a step goes, and write a trace to FILE for chrome://tracing or ui.perfetto.dev" },
  { OPTION_INT64, "profile-steps", AT (profile_steps), WRITTEN, .metavar = "N", .fallback = "3", .least = 1,
    .most = G_MAXINT64,
    .help = "Profile N steps, from the third on, or the last ones of a shorter run" },
  { OPTION_PATH, "stream-trace", AT (stream_trace), WRITTEN, .metavar = "FILE",
    .help = "Write a trace of the device's queues in one step, the third or the last, to FILE" },
  { OPTION_PATH, "memory-timeline", AT (memory_timeline), WRITTEN, .metavar = "FILE",
    .help = "Write a picture of who holds which bytes in the second step to FILE, .html or .svg" },
  { OPTION_FLAG, "quiet", 'q', AT (quiet), BASIC, .shown = "", .help = "Print only errors and the generated text" },
  { .name = NULL },
};
/* clang-format on */

const OptionStatus gpt_statuses[] = {
  { 0, "All went well." },
  { 1, "Something failed: a file, the memory, the training, another rank." },
  { 2, "The options are wrong, on the command line or in the file of --config." },
  { 129, "The terminal was closed (SIGHUP), after which the training saved as with 130. Under nohup it goes on." },
  { 130, "Ctrl-C (SIGINT) ended the training, after it saved what --save and --resume name." },
  { 141, "The output was closed (SIGPIPE), after which the training saved as with 130." },
  { 143, "SIGTERM ended the training, after it saved what --save and --resume name." },
  { .text = NULL },
};
