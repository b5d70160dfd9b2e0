/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Shows the progress of a training: one line that changes on a terminal, plain lines elsewhere. */
#include "common/report/progress.h"

#include "common/command.h"
#include "common/report/rank-table.h"
#include "common/train/adapter.h"
#include "common/train/evaluate.h"
#include "common/train/store.h"
#include "common/train/wrapping.h"

#include "train/progress-private.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MIB (1024.0 * 1024.0)
#define N_PLAIN_LINES 10
#define PLAIN_INTERVAL (30 * G_USEC_PER_SEC)
#define LIVE_INTERVAL (G_USEC_PER_SEC / 10)
#define RECENT 10

void
progress_init (Progress *self,
               const Trainer *trainer)
{
  *self = (Progress){
    .trainer = trainer,
    .quiet = trainer->options->quiet,
    .live = command_is_terminal (STDOUT_FILENO)
            && (trainer->ranks == NULL || command_get_columns (STDOUT_FILENO, 0) > 0),
    .has_colours = command_has_colours (STDOUT_FILENO),
    .losses = g_array_new (FALSE, FALSE, sizeof (double)),
    .seconds = g_array_new (FALSE, FALSE, sizeof (double)),
  };
}

void
progress_clear (Progress *self)
{
  g_array_unref (self->losses);
  g_array_unref (self->seconds);
}

void
progress_note (Progress *self,
               const char *format,
               ...)
{
  va_list args;

  if (self->quiet)
    return;
  va_start (args, format);
  vprintf (format, args);
  va_end (args);
  putchar ('\n');
  fflush (stdout);
}

static double
get_step_tokens (const Progress *self)
{
  const Options *options = self->trainer->options;

  return (double) options->batch * options->context * options->accumulate;
}

double
progress_get_speed (const Progress *self)
{
  const double seconds = ebb_progress_get_median (self->seconds, G_MAXUINT);

  return seconds > 0 ? get_step_tokens (self) / seconds : 0;
}

/* -- the line ------------------------------------------------------------------------------------------------------ */

#define FALLBACK_COLUMNS 80
#define BOLD "\033[1m"
#define GREEN "\033[32m"
#define PLAIN "\033[0m"

/* Names the ranks whose memory is printed. */
const char *const progress_purposes[EBB_N_PURPOSES] = { "parameters", "gradients", "optimizer",
                                                        "activations", "cache", "workspace" };

static const char *
get_owner (const Trainer *trainer)
{
  return trainer->ranks != NULL && trainer->ranks->size > 1 ? " of rank 0" : "";
}

/* Figures as far as they fit into @n_columns; the most important ones come first. */
static char *
format_line (Progress *self,
             guint n_columns)
{
  const Trainer *trainer = self->trainer;
  const double recent = ebb_progress_get_median (self->seconds, RECENT);
  const gint64 n_steps = trainer->options->steps;
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (trainer->device);
  EbbProgress figures = { .step = trainer->step,
                          .n_steps = n_steps,
                          .loss = g_array_index (self->losses, double, self->losses->len - 1),
                          .tokens_per_second = get_step_tokens (self) / recent,
                          .seconds_left = recent * (double) (n_steps - trainer->step),
                          .stats = stats,
                          .owner = get_owner (trainer) };
  g_autofree char *line = NULL;
  const char *end;

  if (trainer->plan != NULL && trainer->budget > 0)
    {
      /* What the promise of --memory is about: bytes of the process on the CPU since the training began, elsewhere of
       * the device. */
      figures.budget_bytes = trainer->budget;
      figures.used_bytes = trainer->device == ebb_device_get_cpu () ? (guint64) rank_table_get_training_rss_peak ()
                                                                    : ebb_memory_stats_get_peak_total (stats);
    }
  line = ebb_progress_format (&figures, n_columns);
  if (!self->has_colours || *line == '\0')
    return g_steal_pointer (&line);
  end = strchr (line, '/') + 1;
  end += strspn (end, "0123456789");
  return g_strdup_printf (BOLD "%.*s" PLAIN "%s", (int) (end - line), line, end);
}

void
progress_step (Progress *self,
               double loss,
               double seconds)
{
  gint64 now = g_get_monotonic_time ();
  gint64 step = self->trainer->step, n_steps = self->trainer->options->steps;
  gint64 every = MAX (1, n_steps / N_PLAIN_LINES);
  gboolean due = step == n_steps || self->losses->len == 0;
  g_autofree char *line = NULL;

  g_array_append_val (self->losses, loss);
  g_array_append_val (self->seconds, seconds);
  due = due
        || (self->live ? now - self->shown >= LIVE_INTERVAL : step % every == 0 || now - self->shown >= PLAIN_INTERVAL);
  if (self->quiet || !due)
    return;
  self->shown = now;
  /* A line that fills a terminal's last column may wrap. */
  line = format_line (self, self->live ? command_get_columns (STDOUT_FILENO, FALLBACK_COLUMNS) - 1 : G_MAXUINT);
  if (self->live)
    printf ("\r%s\033[K", line);
  else
    printf ("%s\n", line);
  fflush (stdout);
}

void
progress_evaluation (Progress *self)
{
  const GArray *all = self->trainer->evaluations;
  const Evaluation *last;

  if (all->len == self->n_evaluations)
    return;
  self->n_evaluations = all->len;
  last = &g_array_index (all, Evaluation, all->len - 1);
  if (self->live && !self->quiet)
    printf ("\r\033[K");
  if (last->step == 0)
    progress_note (self, "Held out: loss %.4f, perplexity %.2f", last->loss, evaluate_get_perplexity (last->loss));
  else
    progress_note (self, "Held out, after step %" G_GINT64_FORMAT ": loss %.4f, perplexity %.2f%s%s%s", last->step,
                   last->loss, evaluate_get_perplexity (last->loss), last->is_best && self->has_colours ? GREEN : "",
                   last->is_best ? ", the best so far" : "", last->is_best && self->has_colours ? PLAIN : "");
}

/* -- before and after ---------------------------------------------------------------------------------------------- */

static void
print_ranks (Progress *self)
{
  const Ranks *ranks = self->trainer->ranks;
  const RankOptions *options = &self->trainer->options->ranks;
  g_autofree char *among = NULL;
  g_autofree char *shard = NULL;
  g_autofree char *tensor = NULL;
  g_autofree char *each = NULL;
  const guint n = (guint) options->tensor_parallel;

  if (ranks == NULL)
    return;
  if (n < ranks->size)
    each = g_strdup_printf (": each %u of them", n);
  if (n > 1)
    tensor = g_strdup_printf ("%s share one model, layer by layer%s", each != NULL ? each : "",
                              options->sequence_parallel ? ", and its tokens"
                              : options->partition       ? ", and what its blocks keep"
                                                         : "");
  if (options->shard_kind == SHARD_HYBRID)
    among = g_strdup_printf (" among %d", options->shard_size);
  if (program_may_shard (self->trainer->options->program))
    shard = g_strdup_printf (", shard %s%s", options->shard, among != NULL ? among : "");
  progress_note (self, "%u rank%s (%s)%s%s", ranks->size, ranks->size == 1 ? "" : "s",
                 ebb_process_group_get_backend (ranks->group), shard != NULL ? shard : "",
                 tensor != NULL ? tensor : "");
}

static void
print_documents (Progress *self)
{
  const Trainer *trainer = self->trainer;
  const gint64 context = trainer->options->context;
  g_autofree char *split = NULL;
  g_autofree char *left_out = NULL;
  EbbDocumentDataset *data;
  gint64 n_split, n_left_out, n_documents, n_rows;

  if (!EBB_IS_DOCUMENT_DATASET (trainer->dataset))
    return;
  data = EBB_DOCUMENT_DATASET (trainer->dataset);
  n_split = ebb_document_dataset_count_split (data, context);
  n_left_out = ebb_document_dataset_get_n_left_out (data);
  n_documents = ebb_document_dataset_get_n_documents (data);
  n_rows = ebb_dataset_get_n_rows (trainer->dataset, context);
  if (n_split > 0)
    split = g_strdup_printf ("; %" G_GINT64_FORMAT " %s longer than a row and %s split", n_split,
                             n_split == 1 ? "is" : "are", n_split == 1 ? "is" : "are");
  if (n_left_out > 0)
    left_out = g_strdup_printf ("; %" G_GINT64_FORMAT " conversation%s without an answer that is learned %s left out",
                                n_left_out, n_left_out == 1 ? "" : "s", n_left_out == 1 ? "is" : "are");
  progress_note (self, "%" G_GINT64_FORMAT " document%s, packed into %" G_GINT64_FORMAT " row%s%s%s", n_documents,
                 n_documents == 1 ? "" : "s", n_rows, n_rows == 1 ? "" : "s",
                 split != NULL ? split : "", left_out != NULL ? left_out : "");
}

/* What a program that tunes has decided by itself. */
static void
print_tuning (Progress *self)
{
  const Trainer *trainer = self->trainer;
  const Options *options = trainer->options;
  g_autofree char *adapter = adapter_describe (trainer);
  const gboolean moments = strcmp (options->moments, "8bit") == 0 && !OPTION_WAS_GIVEN (options, moments);
  const gboolean weights = adapter == NULL && strcmp (options->weights, "bf16") == 0
                           && !OPTION_WAS_GIVEN (options, weights) && strcmp (options->rounding, "random") == 0;

  if (!options->program->tunes)
    return;
  if (adapter != NULL)
    progress_note (self, "%s", adapter);
  progress_note (self, "%" G_GINT64_FORMAT " step%s, learning rate %g, %s", options->steps,
                 options->steps == 1 ? "" : "s", options->lr, options->schedule);
  if (moments || weights)
    progress_note (self, "%s%s%s: --allow none has them in f32", weights ? "Weights in bf16, rounded at random" : "",
                   weights && moments ? "; moments" : moments ? "Moments"
                                                              : "",
                   moments ? " of 8 bits" : "");
}

/* "Llama" of LlamaForCausalLM; a GPT came from no folder. */
static char *
name_model (const Trainer *trainer)
{
  const char *architecture = ebb_model_get_architecture (trainer->model);
  const char *end = architecture != NULL ? strstr (architecture, "For") : NULL;

  if (trainer->options->program->is_masked)
    return g_strdup ("BERT");
  if (end == NULL)
    return g_strdup (architecture != NULL ? "GPT-2" : "GPT");
  return g_strndup (architecture, (gsize) (end - architecture));
}

/* Said before the first step, while it can still be changed. */
static void
print_lost (Progress *self)
{
  const Options *options = self->trainer->options;
  const gboolean is_adapter = options_have_adapter (options);

  if (options->save == NULL && options->save_best == NULL && options->resume == NULL)
    progress_note (self, "%s will not be kept: --save %s writes %s",
                   is_adapter ? "The adapter" : "The trained weights", options->program->tunes ? "DIR" : "FILE",
                   is_adapter ? "it" : "them");
}

static const char *
get_checkpoint (const Trainer *trainer)
{
  const CheckpointKind kind = trainer->options->checkpoint_kind;

  return trainer->plan != NULL && (kind == CHECKPOINT_NONE || kind == CHECKPOINT_AUTO) ? "by the plan"
                                                                                       : trainer->options->checkpoint;
}

void
progress_begin (Progress *self)
{
  const Trainer *trainer = self->trainer;
  const Options *options = trainer->options;
  g_autofree char *name = name_model (trainer);

  self->began = g_get_monotonic_time ();
  if (trainer->dataset == NULL || trainer->step >= options->steps)
    return;
  progress_note (self,
                 "%s of %d layer%s, width %d, %d head%s, context %d, vocabulary %d: %" G_GUINT64_FORMAT " parameters",
                 name, options->layers, options->layers == 1 ? "" : "s", options->width, options->heads,
                 options->heads == 1 ? "" : "s", options->context, options->vocab,
                 trainer->n_parameters);
  progress_note (self, "%" G_GINT64_FORMAT " tokens of text, %d x %d a batch, %s, checkpoint %s, %d thread%s on %s",
                 ebb_dataset_get_n_tokens (trainer->dataset), options->batch, options->context, options->dtype,
                 get_checkpoint (trainer), options->threads, options->threads == 1 ? "" : "s",
                 ebb_device_get_name (trainer->device));
  print_documents (self);
  print_tuning (self);
  print_ranks (self);
  print_lost (self);
  if (trainer->first_step > 0)
    progress_note (self, "Resuming from step %" G_GINT64_FORMAT " in %s", trainer->first_step, options->resume);
}

static void
print_checkpointing (Progress *self,
                     EbbMemoryStats *stats)
{
  const Trainer *trainer = self->trainer;
  double now = (double) ebb_memory_stats_get_peak (stats, EBB_PURPOSE_ACTIVATION);
  double plain = trainer->plain_activations;

  if (trainer->options->checkpoint_kind == CHECKPOINT_NONE || plain <= 0)
    return;
  progress_note (self,
                 "Checkpointing (%s): activations %.1f MiB instead of about %.1f, %.0f %% less; blocks recomputed: "
                 "%" G_GUINT64_FORMAT,
                 trainer->options->checkpoint, now / MIB, plain / MIB, 100 * (1 - now / plain),
                 wrapping_count_recomputes (trainer->model));
}

/* The table of all wrapped blocks, on a terminal. */
static void
print_report (Progress *self)
{
  g_autofree char *table = NULL;

  if (!self->live || self->trainer->options->checkpoint_kind == CHECKPOINT_NONE)
    return;
  table = ebb_checkpoint_report (self->trainer->model);
  progress_note (self, "%s", g_strchomp (table));
}

static void
print_store (Progress *self)
{
  g_autofree char *line = store_describe (self->trainer->store, self->trainer->options, self->trainer->device);

  if (line != NULL)
    progress_note (self, "%s", line);
}

void
progress_end (Progress *self)
{
  guint n = self->losses->len;
  g_autoptr (EbbMemoryStats) stats = NULL;
  g_autofree char *time = NULL;

  if (self->quiet)
    return;
  if (n == 0)
    {
      if (self->trainer->options->steps > 0)
        progress_note (self, "Nothing to train: %" G_GINT64_FORMAT " of %" G_GINT64_FORMAT " steps were taken",
                       self->trainer->step, self->trainer->options->steps);
      return;
    }
  if (self->live)
    putchar ('\n');
  stats = ebb_memory_get_stats (self->trainer->device);
  time = ebb_progress_format_time ((double) (g_get_monotonic_time () - self->began) / G_USEC_PER_SEC);
  if (trainer_get_interrupt (self->trainer) != 0 && self->trainer->step < self->trainer->options->steps)
    progress_note (self, "Stopped after step %" G_GINT64_FORMAT " of %" G_GINT64_FORMAT, self->trainer->step,
                   self->trainer->options->steps);
  progress_note (self, "%u step%s in %s: loss %.4f to %.4f, %.0f tokens/s", n, n == 1 ? "" : "s", time,
                 g_array_index (self->losses, double, 0), g_array_index (self->losses, double, n - 1),
                 progress_get_speed (self));
  progress_note (self,
                 "Peak memory%s %.1f MiB (each by itself: parameters %.1f, gradients %.1f, optimizer %.1f, activations "
                 "%.1f, workspace %.1f)",
                 get_owner (self->trainer),
                 (double) ebb_memory_stats_get_peak_total (stats) / MIB,
                 (double) ebb_memory_stats_get_peak (stats, EBB_PURPOSE_PARAMETER) / MIB,
                 (double) ebb_memory_stats_get_peak (stats, EBB_PURPOSE_GRADIENT) / MIB,
                 (double) ebb_memory_stats_get_peak (stats, EBB_PURPOSE_OPTIMIZER) / MIB,
                 (double) ebb_memory_stats_get_peak (stats, EBB_PURPOSE_ACTIVATION) / MIB,
                 (double) ebb_memory_stats_get_peak (stats, EBB_PURPOSE_WORKSPACE) / MIB);
  print_checkpointing (self, stats);
  print_store (self);
  print_report (self);
}
