/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The table of all options: their names, help, defaults and ranges, and the fields that take their values. */
#include "option-table.h"

#include "command.h"

#include <math.h>
#include <string.h>

#define MAX_THREADS 1024
#define MAX_RANKS 1024

/* Marks a number that was not given; none of them is in range. */
#define NO_INT G_MININT
#define NO_INT64 G_MININT64
#define NO_DOUBLE (-G_MAXDOUBLE)

typedef enum
{
  GROUP, /* the rows that follow are one group of the help; metavar: its title */
  INT,
  INT64,
  DOUBLE,
  FLAG,
  NO_FLAG, /* turns off the flag with the same place */
  SIZE,    /* text; it is parsed into the guint64 at @bytes */
  TEXT,
  RAW, /* text of any bytes */
  PATH,
  PATHS
} Kind;

typedef struct
{
  Kind kind;
  const char *name;
  char letter;
  gsize place, bytes;
  const char *metavar;
  const char *fallback; /* the default, as it would be typed */
  const char *shown;    /* the default in the help, where it is another text */
  const char *help;
  const char *help_on_ranks; /* of a program on ranks; NULL: the same */
  gint64 least, most;        /* of an integer */
  const char *const *names;  /* the values that a text may have */
  gboolean is_saved;         /* a resumed training keeps it unless the command line sets it */
  const char *late;          /* its value in a state that does not have it; NULL: such a state is an error */
  gboolean on_ranks;         /* of a group: programs on ranks only */
} Row;

static const char *const dtypes[] = { "f32", "bf16", NULL };
static const char *const moments[] = { "f32", "bf16", "8bit", NULL };
static const char *const checkpoints[] = { "none", "selective", "full", NULL };
static const char *const decayed[] = { "matrices", "all", NULL };
static const char *const schedules[] = { "constant", "cosine", NULL };
static const char *const stores[] = { "keep", "host", "disk",
                                      "contiguous", "contiguous+host", "contiguous+disk",
                                      NULL };
static const char *const fallbacks[] = { "none", "keep", "host", "disk", NULL };
static const char *const backends[] = { "auto", "single", "thread", "mpi", "nccl", NULL };
static const char *const shards[] = { "full", "none", "hybrid", NULL };
static const char *const reshards[] = { "auto", "always", "never", NULL };
static const char *const nestings[] = { "shard-outside", "checkpoint-outside", NULL };
static const char *const reduces[] = { "auto", "step", "batch", NULL };
static const char *const lower_dtypes[] = { "none", "f32", "bf16", NULL };

#define AT(member) .place = G_STRUCT_OFFSET (Options, member)
#define SIZE_AT(member) .place = G_STRUCT_OFFSET (Options, member##_text), .bytes = G_STRUCT_OFFSET (Options, member)
#define ANY_INT .least = 0, .most = G_MAXINT
#define POSITIVE .least = 1, .most = G_MAXINT
#define ANY_INT64 .least = 0, .most = G_MAXINT64
#define SAVED .is_saved = TRUE

/* clang-format off */
static const Row rows[] = {
  { GROUP, "data", .metavar = "Text:" },
  { PATHS, "data", 'd', AT (data), .metavar = "FILE…", .help = "UTF-8 text to train on; you may name several files" },
  { PATH, "tokenizer", AT (tokenizer), .metavar = "byte|DIR", .fallback = "byte", SAVED,
    .help = "byte, or a folder with GPT-2's vocab.json and merges.txt" },

  { GROUP, "model", .metavar = "Model:" },
  { TEXT, "preset", AT (preset), .metavar = "NAME", .shown = "tiny",
    .help = "Size of the model: tiny, gpt2, gpt2-medium, gpt2-large, gpt2-xl" },
  { INT, "layers", AT (layers), .metavar = "N", .fallback = "0", .shown = "the preset's", POSITIVE,
    .help = "Number of transformer blocks" },
  { INT, "width", AT (width), .metavar = "N", .fallback = "0", .shown = "the preset's", POSITIVE,
    .help = "Size of a token's vector" },
  { INT, "heads", AT (heads), .metavar = "N", .fallback = "0", .shown = "the preset's", POSITIVE,
    .help = "Attention heads; the number must divide the width" },
  { INT, "context", AT (context), .metavar = "N", .fallback = "0", .shown = "the preset's", POSITIVE,
    .help = "Tokens in a row of text" },
  { INT, "vocab", AT (vocab), .metavar = "N", .fallback = "0", .shown = "the preset's, or else the tokenizer's: 256",
    POSITIVE, .help = "Size of the vocabulary" },
  { DOUBLE, "dropout", AT (dropout), .metavar = "P", .fallback = "0.1", SAVED, .help = "Probability of dropout" },

  { GROUP, "training", .metavar = "Training:" },
  { INT64, "steps", 'n', AT (steps), .metavar = "N", .fallback = "100", ANY_INT64,
    .shown = "100; 0 with --load and --sample but no --data",
    .help = "Optimizer steps in all, including resumed ones" },
  { INT, "batch", AT (batch), .metavar = "N", .fallback = "8", POSITIVE, SAVED, .help = "Rows of text in a batch",
    .help_on_ranks = "Rows of text in a batch, of all ranks together" },
  { INT, "accumulate", AT (accumulate), .metavar = "N", .fallback = "1", POSITIVE, SAVED,
    .help = "Batches whose gradients make one step" },
  { DOUBLE, "lr", AT (lr), .metavar = "X", .fallback = "3e-4", SAVED, .help = "Learning rate of AdamW" },
  { TEXT, "schedule", AT (schedule), .metavar = "NAME", .fallback = "constant", .names = schedules, SAVED,
    .help = "How the learning rate changes: constant, cosine" },
  { INT64, "warmup", AT (warmup), .metavar = "N", .fallback = "0", ANY_INT64, SAVED,
    .help = "Steps over which the learning rate rises first" },
  { DOUBLE, "min-lr", AT (min_lr), .metavar = "X", .fallback = "0", SAVED,
    .help = "Learning rate at the end of the cosine" },
  { DOUBLE, "weight-decay", AT (weight_decay), .metavar = "X", .fallback = "0.01", SAVED,
    .help = "Decoupled weight decay" },
  { TEXT, "decayed", AT (decayed), .metavar = "matrices|all", .fallback = "matrices", .names = decayed, SAVED,
    .late = "all", .help = "What weight decay applies to: matrices and embeddings, or norms and biases as well" },
  { DOUBLE, "clip", AT (clip), .metavar = "X", .fallback = "0", SAVED,
    .help = "Clip the norm of all gradients to X; 0: don't clip" },
  { INT64, "seed", AT (seed), .metavar = "N", .fallback = "1", ANY_INT64,
    .help = "Seed of all random numbers: weights, order of the text, dropout" },

  { GROUP, "ranks", .metavar = "Ranks:", .on_ranks = TRUE },
  { TEXT, "backend", AT (ranks.backend), .metavar = "NAME", .fallback = "auto", .names = backends,
    .help = "How ranks run and communicate: thread, mpi, single, nccl if each has a GPU, or auto: as the environment "
            "says" },
  { INT, "ranks", AT (ranks.n_ranks), .metavar = "N", .fallback = "0", .shown = "", .least = 1, .most = MAX_RANKS,
    .help = "Number of ranks with --backend thread; otherwise mpirun or Slurm sets it" },
  { TEXT, "shard", AT (ranks.shard), .metavar = "HOW", .fallback = "full", .names = shards, SAVED, .late = "full",
    .help = "How parameters, gradients and optimizer state are sharded: full: over all ranks; none: each rank has all "
            "of them; hybrid: over --shard-size ranks, replicated over the other groups" },
  { INT, "shard-size", AT (ranks.shard_size), .metavar = "N", .fallback = "0", .shown = "", .least = 1,
    .most = MAX_RANKS, .help = "Ranks that share one model with --shard hybrid; N must divide the number of ranks" },
  { TEXT, "wrap", AT (ranks.wrap), .metavar = "block|model|N", .fallback = "block", SAVED, .late = "block",
    .help = "Unit that is unsharded at one time: a block, the whole model, or a module with at least N parameters" },
  { TEXT, "reshard", AT (ranks.reshard), .metavar = "WHEN", .fallback = "auto", .names = reshards,
    .help = "Whether a unit is sharded again after its forward: always, never, auto: all units but the root" },
  { FLAG, "flatten", AT (ranks.flatten), SAVED, .late = "0",
    .help = "Shard all elements of a unit in a row instead of the rows of each parameter" },
  { TEXT, "compute-dtype", AT (ranks.compute_dtype), .metavar = "NAME", .fallback = "none", .names = lower_dtypes,
    SAVED, .late = "none", .help = "Type in which parameters are gathered and computed: none: their own; f32, bf16" },
  { TEXT, "reduce-dtype", AT (ranks.reduce_dtype), .metavar = "NAME", .fallback = "none", .names = lower_dtypes, SAVED,
    .late = "none", .help = "Type in which gradients are sent: none: their own; f32, bf16" },
  { FLAG, "offload-parameters", AT (ranks.offload_parameters),
    .help = "Keep this rank's shards, their gradients and optimizer state in host memory" },
  { TEXT, "nesting", AT (ranks.nesting), .metavar = "HOW", .fallback = "shard-outside", .names = nestings,
    .help = "Which wrapper goes around the other with --checkpoint: shard-outside, checkpoint-outside" },
  { TEXT, "reduce", AT (ranks.reduce), .metavar = "WHEN", .fallback = "auto", .names = reduces, SAVED, .late = "auto",
    .help = "With --accumulate, when gradients are reduced: step: once a step, which sends least; batch: after each "
            "batch, which holds least; auto: step with --shard none, otherwise batch" },
  { DOUBLE, "timeout", AT (ranks.timeout), .metavar = "S", .fallback = "0",
    .help = "Seconds that ranks wait for each other; 0: the library's default" },

  { GROUP, "tensor", .metavar = "Tensor ranks:" },
  { INT, "tensor-parallel", AT (ranks.tensor_parallel), .metavar = "N", .fallback = "1", .least = 1, .most = MAX_RANKS,
    .help = "Ranks that share the layers of the model: N threads, or the processes that mpirun started",
    .help_on_ranks = "Neighbouring ranks that share the layers of one model and its rows; other models have other "
                     "rows" },
  { FLAG, "sequence-parallel", AT (ranks.sequence_parallel), SAVED, .late = "0",
    .help = "Tensor ranks also share norms, dropout and the residual stream, by tokens" },
  { NO_FLAG, "no-sequence-parallel", AT (ranks.sequence_parallel),
    .help = "Turn off --sequence-parallel for a resumed run that had it" },
  { FLAG, "partition", AT (ranks.partition), SAVED, .late = "0",
    .help = "With --checkpoint full each tensor rank keeps its part of the blocks' inputs, in the --store" },
  { NO_FLAG, "no-partition", AT (ranks.partition), .help = "Turn off --partition for a resumed run that had it" },

  { GROUP, "machine", .metavar = "Memory and machine:" },
  { TEXT, "checkpoint", 'c', AT (checkpoint), .metavar = "KIND", .fallback = "none", .names = checkpoints, SAVED,
    .help = "Activation checkpointing per block: none, selective, full; on a terminal the run ends with a report" },
  { TEXT, "store", AT (store), .metavar = "KIND", .fallback = "keep", .names = stores, SAVED,
    .help = "Where saved activations wait for backward: keep: in place; host; disk; contiguous: in one buffer on the "
            "device; contiguous+host; contiguous+disk" },
  { PATH, "store-folder", AT (store_folder), .metavar = "DIR", .shown = "the system's temporary folder",
    .help = "Folder of the disk store's file" },
  { SIZE, "store-limit", SIZE_AT (store_limit), .metavar = "SIZE", .shown = "0",
    .help = "Limit of the bytes in the store, with or without a unit: 1.5GiB, 1500MB; 0: no limit" },
  { TEXT, "store-fallback", AT (store_fallback), .metavar = "KIND", .fallback = "none", .names = fallbacks,
    .help = "Store for activations that the first store has no room for or can't write: none, keep, host, disk" },
  { INT, "prefetch", AT (prefetch), .metavar = "N", .fallback = "1", ANY_INT,
    .help = "Fetch activations from the store this many blocks ahead of backward" },
  { SIZE, "memory", SIZE_AT (memory), .metavar = "SIZE", .shown = "0",
    .help = "Limit of the bytes of all tensors, with or without a unit: 1.5GiB, 1500MB; 0: the machine's memory" },
  { TEXT, "dtype", AT (dtype), .metavar = "NAME", .fallback = "f32", .names = dtypes, SAVED,
    .help = "Type to compute in: f32, or bf16 with f32 master weights" },
  { TEXT, "residual", AT (residual), .metavar = "NAME", .fallback = "f32", .names = dtypes, SAVED, .late = "f32",
    .help = "Type of the residual stream with --dtype bf16: f32, or bf16, which halves it" },
  { TEXT, "moments", AT (moments), .metavar = "NAME", .fallback = "f32", .names = moments, SAVED, .late = "f32",
    .help = "Type of AdamW's moments: f32, bf16 or 8bit, which take 8, 4 or 2 bytes a parameter" },
  { FLAG, "step-in-backward", AT (step_in_backward), SAVED, .late = "0",
    .help = "Update each parameter as soon as its gradient is complete, and free the gradient" },
  { TEXT, "device", AT (device), .metavar = "NAME", .fallback = "cpu", .help = "Device to train on" },
  { INT, "threads", AT (threads), .metavar = "N", .fallback = "0", .least = 0, .most = MAX_THREADS,
    .help = "Number of threads; 0: one for each core",
    .help_on_ranks = "Threads of each rank; 0: its share of the machine's cores" },

  { GROUP, "files", .metavar = "Files:" },
  { PATH, "load", AT (load), .metavar = "FILE",
    .help = "Start from these weights: safetensors with GPT-2's names; the file, or the config.json beside it, gives "
            "the sizes that you don't" },
  { PATH, "save", AT (save), .metavar = "FILE", .help = "Write the weights to FILE at the end" },
  { PATH, "resume", AT (resume), .metavar = "DIR",
    .help = "Save the state of the training in DIR; if DIR has one, resume it, bit for bit and with its options" },
  { INT64, "save-every", AT (save_every), .metavar = "N", .fallback = "500", ANY_INT64,
    .help = "Save the state every N steps; 0: only at the end and at Ctrl-C" },

  { GROUP, "output", .metavar = "Output:" },
  { INT, "sample", 's', AT (sample), .metavar = "N", .fallback = "0", ANY_INT,
    .help = "Print N tokens of generated text at the end" },
  { RAW, "prompt", AT (prompt), .metavar = "TEXT", .fallback = "\n", .shown = "a new line",
    .help = "Text that the generated text continues" },
  { DOUBLE, "temperature", AT (temperature), .metavar = "X", .fallback = "0.8",
    .help = "Sampling temperature: lower is safer, higher is wilder" },
  { INT, "top-k", AT (top_k), .metavar = "N", .fallback = "40", ANY_INT,
    .help = "Sample from the N likeliest tokens; 0: from all" },
  { PATH, "report", 'r', AT (report), .metavar = "FILE",
    .help = "Write losses, times, memory and each block's checkpointing to FILE, as JSON" },
  { PATH, "profile", AT (profile), .metavar = "FILE",
    .help = "Show where the time of a step goes, and write a trace to FILE for chrome://tracing or ui.perfetto.dev" },
  { INT64, "profile-steps", AT (profile_steps), .metavar = "N", .fallback = "3", .least = 1, .most = G_MAXINT64,
    .help = "Profile N steps, from the third on, or the last ones of a shorter run" },
  { PATH, "stream-trace", AT (stream_trace), .metavar = "FILE",
    .help = "Write a trace of the device's queues in one step, the third or the last, to FILE" },
  { FLAG, "quiet", 'q', AT (quiet), .shown = "", .help = "Print only errors and the generated text" },
};
/* clang-format on */

G_STATIC_ASSERT (G_N_ELEMENTS (rows) <= OPTIONS_MAX_ROWS);

#define FIELD(type, self, row) (*(type *) G_STRUCT_MEMBER_P ((self), (row)->place))

/* -- values -------------------------------------------------------------------------------------------------------- */

static gboolean
is_text (const Row *row)
{
  return row->kind == SIZE || row->kind == TEXT || row->kind == RAW || row->kind == PATH;
}

static gboolean
is_given (const Options *self,
          const Row *row)
{
  switch (row->kind)
    {
    case GROUP:
    case NO_FLAG: return FALSE;
    case INT:
    case FLAG: return FIELD (int, self, row) != NO_INT;
    case INT64: return FIELD (gint64, self, row) != NO_INT64;
    case DOUBLE: return FIELD (double, self, row) != NO_DOUBLE;
    default: return FIELD (gpointer, self, row) != NULL;
    }
}

/* The value that was typed as @text; NULL marks a number as not given. */
static void
set (Options *self,
     const Row *row,
     const char *text)
{
  if (row->kind == INT || row->kind == FLAG)
    FIELD (int, self, row) = text != NULL ? (int) g_ascii_strtoll (text, NULL, 10) : NO_INT;
  else if (row->kind == INT64)
    FIELD (gint64, self, row) = text != NULL ? g_ascii_strtoll (text, NULL, 10) : NO_INT64;
  else if (row->kind == DOUBLE)
    FIELD (double, self, row) = text != NULL ? g_ascii_strtod (text, NULL) : NO_DOUBLE;
  else if (is_text (row))
    {
      g_free (FIELD (char *, self, row));
      FIELD (char *, self, row) = g_strdup (text);
    }
}

void
option_table_init (Options *self)
{
  for (guint i = 0; i < G_N_ELEMENTS (rows); i++)
    set (self, &rows[i], NULL);
}

void
option_table_clear (Options *self)
{
  for (guint i = 0; i < G_N_ELEMENTS (rows); i++)
    if (is_text (&rows[i]))
      g_clear_pointer (&FIELD (char *, self, &rows[i]), g_free);
    else if (rows[i].kind == PATHS)
      g_clear_pointer (&FIELD (char **, self, &rows[i]), g_strfreev);
}

void
option_table_fill (Options *self)
{
  for (guint i = 0; i < G_N_ELEMENTS (rows); i++)
    {
      self->given[i] = is_given (self, &rows[i]);
      if (!self->given[i] && rows[i].kind != GROUP && rows[i].kind != NO_FLAG)
        set (self, &rows[i], rows[i].kind == FLAG ? "0" : rows[i].fallback);
    }
}

static guint
find_row (gsize place)
{
  for (guint i = 0; i < G_N_ELEMENTS (rows); i++)
    if (rows[i].kind != GROUP && rows[i].place == place)
      return i;
  g_assert_not_reached ();
}

gboolean
option_table_was_given (const Options *self,
                        gsize place)
{
  return self->given[find_row (place)];
}

guint
option_table_get_choice (const Options *self,
                         gsize place)
{
  const Row *row = &rows[find_row (place)];
  guint choice = 0;

  while (row->names[choice] != NULL && strcmp (row->names[choice], FIELD (char *, self, row)) != 0)
    choice++;
  return choice;
}

/* -- the command line ---------------------------------------------------------------------------------------------- */

static GOptionArg
get_arg (Kind kind)
{
  switch (kind)
    {
    case INT: return G_OPTION_ARG_INT;
    case INT64: return G_OPTION_ARG_INT64;
    case DOUBLE: return G_OPTION_ARG_DOUBLE;
    case FLAG:
    case NO_FLAG: return G_OPTION_ARG_NONE;
    case RAW:
    case PATH: return G_OPTION_ARG_FILENAME;
    case PATHS: return G_OPTION_ARG_FILENAME_ARRAY;
    default: return G_OPTION_ARG_STRING;
    }
}

/* The help of an option, with its default. Owned by the program. */
static const char *
describe (const Options *self,
          const Row *row)
{
  const char *help = self->program->on_ranks && row->help_on_ranks != NULL ? row->help_on_ranks : row->help;
  const char *shown = row->shown != NULL ? row->shown : row->kind == FLAG ? "no"
                                                                          : row->fallback;
  g_autofree char *text = NULL;

  if (row->place == G_STRUCT_OFFSET (Options, device))
    return command_describe_devices (help, shown);
  if (shown == NULL || *shown == '\0')
    return help;
  text = g_strdup_printf ("%s (%s)", help, shown);
  return g_intern_string (text);
}

/* Whether @self's program has no options of the group. */
static gboolean
is_foreign (const Options *self,
            const Row *group)
{
  return group->on_ranks && !self->program->on_ranks;
}

void
option_table_add_groups (Options *self,
                         GOptionContext *context)
{
  const GOptionEntry last[] = { COMMAND_ENTRIES (&self->version, &self->help), { NULL } };
  GOptionGroup *group = NULL;

  for (const Row *row = rows; row < rows + G_N_ELEMENTS (rows); row++)
    if (row->kind == GROUP)
      {
        group = is_foreign (self, row) ? NULL : g_option_group_new (row->name, row->metavar, "", NULL, NULL);
        if (group != NULL)
          g_option_context_add_group (context, group);
      }
    else if (group != NULL)
      {
        const GOptionEntry entries[] = { { row->name, row->letter, row->kind == NO_FLAG ? G_OPTION_FLAG_REVERSE : 0,
                                           get_arg (row->kind), &FIELD (char, self, row), describe (self, row),
                                           row->metavar },
                                         { NULL } };

        g_option_group_add_entries (group, entries);
      }
  g_option_group_add_entries (group, last);
}

/* -- checks -------------------------------------------------------------------------------------------------------- */

static gboolean
check_integer (const Row *row,
               gint64 value,
               GError **error)
{
  if (value >= row->least && value <= row->most)
    return TRUE;
  if (row->most >= G_MAXINT)
    return options_refuse (error, "--%s %" G_GINT64_FORMAT ": it must be at least %" G_GINT64_FORMAT, row->name, value,
                           row->least);
  return options_refuse (error, "--%s %" G_GINT64_FORMAT ": it must be from %" G_GINT64_FORMAT " to %" G_GINT64_FORMAT,
                         row->name, value, row->least, row->most);
}

static gboolean
check_text (const Row *row,
            const char *text,
            GError **error)
{
  if (row->names != NULL)
    return options_check_name (row->name, text, row->names, error);
  if (row->kind == PATH && text != NULL && *text == '\0')
    return options_refuse (error, "--%s: a name is missing", row->name);
  return TRUE;
}

gboolean
option_table_check (const Options *self,
                    GError **error)
{
  for (guint i = 0; i < G_N_ELEMENTS (rows); i++)
    {
      const Row *row = &rows[i];
      gboolean ok = TRUE;

      if (!self->given[i] && !row->is_saved) /* its default may stand for a value that is found later */
        continue;
      if (row->kind == INT)
        ok = check_integer (row, FIELD (int, self, row), error);
      else if (row->kind == INT64)
        ok = check_integer (row, FIELD (gint64, self, row), error);
      else if (row->kind == DOUBLE && (!isfinite (FIELD (double, self, row)) || FIELD (double, self, row) < 0))
        ok = options_refuse (error, "--%s %g: it must be 0 or more", row->name, FIELD (double, self, row));
      else if (is_text (row))
        ok = check_text (row, FIELD (char *, self, row), error);
      if (!ok)
        return FALSE;
    }
  return TRUE;
}

/* -- JSON ---------------------------------------------------------------------------------------------------------- */

/* An option's name as a member of an object, which has underscores. */
static char *
get_member_name (const Row *row)
{
  return g_strdelimit (g_strdup (row->name), "-", '_');
}

static void
add_value (const Options *self,
           const Row *row,
           JsonBuilder *builder)
{
  char **paths = row->kind == PATHS ? FIELD (char **, self, row) : NULL;

  switch (row->kind)
    {
    case INT: json_builder_add_int_value (builder, FIELD (int, self, row)); break;
    case INT64: json_builder_add_int_value (builder, FIELD (gint64, self, row)); break;
    case DOUBLE: json_builder_add_double_value (builder, FIELD (double, self, row)); break;
    case FLAG: json_builder_add_boolean_value (builder, FIELD (gboolean, self, row)); break;
    case SIZE: json_builder_add_int_value (builder, G_STRUCT_MEMBER (gint64, self, row->bytes)); break;
    case PATHS:
      json_builder_begin_array (builder);
      for (guint i = 0; paths != NULL && paths[i] != NULL; i++)
        {
          g_autofree char *name = g_filename_display_name (paths[i]);

          json_builder_add_string_value (builder, name);
        }
      json_builder_end_array (builder);
      break;
    default:
      if (FIELD (char *, self, row) != NULL)
        {
          g_autofree char *text = g_utf8_make_valid (FIELD (char *, self, row), -1);

          json_builder_add_string_value (builder, text);
        }
      else
        json_builder_add_null_value (builder);
    }
}

void
option_table_add_json (const Options *self,
                       JsonBuilder *builder)
{
  gboolean skips = FALSE;

  for (const Row *row = rows; row < rows + G_N_ELEMENTS (rows); row++)
    if (row->kind == GROUP)
      skips = is_foreign (self, row);
    else if (!skips && row->kind != NO_FLAG)
      {
        g_autofree char *name = get_member_name (row);

        json_builder_set_member_name (builder, name);
        add_value (self, row, builder);
      }
}

/* json-glib recurses as deep as objects are nested; a saved one hardly is. */
#define MOST_BRACKETS 1000

JsonNode *
option_table_parse_json (const char *saved)
{
  g_autoptr (JsonNode) root = NULL;
  guint n = 0;

  for (const char *p = saved; *p != '\0'; p++)
    n += *p == '{' || *p == '[';
  root = n <= MOST_BRACKETS ? json_from_string (saved, NULL) : NULL;
  return root != NULL && JSON_NODE_HOLDS_OBJECT (root) ? g_steal_pointer (&root) : NULL;
}

/* FALSE if @node is not of the kind that the option has. */
static gboolean
take (Options *self,
      const Row *row,
      JsonNode *node)
{
  GType type = node != NULL && JSON_NODE_HOLDS_VALUE (node) ? json_node_get_value_type (node) : G_TYPE_INVALID;

  if (node == NULL && row->late != NULL)
    set (self, row, row->late);
  else if (is_text (row) && type == G_TYPE_STRING)
    set (self, row, json_node_get_string (node));
  else if (row->kind == FLAG && type == G_TYPE_BOOLEAN)
    FIELD (gboolean, self, row) = json_node_get_boolean (node);
  else if (row->kind == DOUBLE && (type == G_TYPE_DOUBLE || type == G_TYPE_INT64))
    FIELD (double, self, row) = json_node_get_double (node);
  else if (row->kind == INT && type == G_TYPE_INT64)
    FIELD (int, self, row) = (int) CLAMP (json_node_get_int (node), G_MININT, G_MAXINT);
  else if (row->kind == INT64 && type == G_TYPE_INT64)
    FIELD (gint64, self, row) = json_node_get_int (node);
  else
    return FALSE;
  return TRUE;
}

gboolean
option_table_take_json (Options *self,
                        const char *saved,
                        GError **error)
{
  g_autoptr (JsonNode) root = option_table_parse_json (saved);
  JsonObject *object = root != NULL ? json_node_get_object (root) : NULL;

  for (guint i = 0; i < G_N_ELEMENTS (rows); i++)
    if (rows[i].is_saved && !self->given[i])
      {
        g_autofree char *name = get_member_name (&rows[i]);

        if (object == NULL || !take (self, &rows[i], json_object_get_member (object, name)))
          {
            g_set_error (error, EBB_ERROR, EBB_ERROR_STATE, "--resume %s: that state was not saved by %s: it has no %s",
                         self->resume, g_get_prgname (), name);
            return FALSE;
          }
      }
  return TRUE;
}
