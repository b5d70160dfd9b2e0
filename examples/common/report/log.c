/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* --log: numbers of each step, for programs and for TensorBoard. */
#include "common/report/log.h"

#include "common/report/rank-table.h"
#include "common/train/evaluate.h"

#include <errno.h>
#include <fcntl.h>
#include <glib/gstdio.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LINES "steps.jsonl"
/* The beginning of each line. */
#define STEP "{\"step\": "
#define MOST_SCALARS 8

/* -- opening ------------------------------------------------------------------------------------------------------- */

static gboolean
fail (const char *path,
      GError **error)
{
  const int number = errno;

  g_set_error (error, EBB_ERROR, EBB_ERROR_IO, "--log: can't write %s: %s", path, g_strerror (number));
  return FALSE;
}

/* How many bytes of @text are whole lines of steps up to @last_step; *@last: of all lines. FALSE: another program wrote
 * it. */
static gboolean
find_end (const char *text,
          gint64 last_step,
          gsize *end,
          gint64 *last)
{
  const char *line = text, *next;

  *end = 0;
  *last = -1;
  for (; (next = strchr (line, '\n')) != NULL; line = next + 1)
    {
      const gint64 step = g_ascii_strtoll (line + MIN (strlen (STEP), (gsize) (next - line)), NULL, 10);

      if (!g_str_has_prefix (line, STEP))
        return FALSE;
      *last = MAX (*last, step);
      if (step <= last_step)
        *end = (gsize) (next + 1 - text);
    }
  return *line == '\0' || strncmp (line, STEP, MIN (strlen (line), strlen (STEP))) == 0;
}

/* Removes what comes after the step that the training goes on from. */
static gboolean
take_lines (Log *self,
            gint64 last_step,
            GError **error)
{
  const Options *options = self->trainer->options;
  g_autofree char *text = NULL;
  gsize size, end;
  gint64 last;

  text = ebb_read_file (self->path, LOG_MAX_SIZE, &size, error);
  if (text == NULL)
    {
      g_prefix_error (error, "--log: ");
      return FALSE;
    }
  if (!find_end (text, last_step, &end, &last))
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_FORMAT, "--log %s: the " LINES " there is no log of steps",
                   options->log);
      return FALSE;
    }
  if (last >= 0 && options->resume == NULL)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_STATE,
                   "--log %s: it has the log of another training, up to step %" G_GINT64_FORMAT
                   ": name another folder, "
                   "or by --resume the state that goes on",
                   options->log, last);
      return FALSE;
    }
  self->last = MIN (last, last_step);
  return ftruncate (self->lines, (off_t) end) == 0 || fail (self->path, error);
}

static gboolean
is_same_folder (const char *one,
                const char *other)
{
  struct stat first, second;

  return stat (one, &first) == 0 && stat (other, &second) == 0 && first.st_dev == second.st_dev
         && first.st_ino == second.st_ino;
}

/* Two trainings would mix their lines. The folder of --resume is locked already. */
static gboolean
lock (Log *self,
      GError **error)
{
  const Options *options = self->trainer->options;

  if (options->resume != NULL && is_same_folder (options->log, options->resume))
    return TRUE;
  self->lock = ebb_folder_lock_new (options->log, error);
  if (self->lock == NULL)
    g_prefix_error (error, "--log: ");
  return self->lock != NULL;
}

void
log_init_none (Log *self)
{
  *self = (Log){ .lines = -1, .last = -1, .events = { .fd = -1 } };
}

gboolean
log_init (Log *self,
          const Trainer *trainer,
          GError **error)
{
  const Options *options = trainer->options;
  /* Where nothing was resumed, step 0 is measured again. */
  const gint64 last_step = trainer->first_step > 0 ? trainer->first_step : -1;

  self->trainer = trainer;
  if (options->log == NULL)
    return TRUE;
  if (g_mkdir_with_parents (options->log, 0777) != 0)
    return fail (options->log, error);
  if (!lock (self, error))
    return FALSE;
  self->path = g_build_filename (options->log, LINES, NULL);
  self->lines = g_open (self->path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (self->lines < 0)
    return fail (self->path, error);
  return take_lines (self, last_step, error) && event_file_open (&self->events, options->log, last_step, error);
}

void
log_clear (Log *self)
{
  if (self->lines >= 0)
    close (self->lines);
  event_file_close (&self->events);
  g_clear_object (&self->lock);
  g_clear_pointer (&self->path, g_free);
}

/* -- writing ------------------------------------------------------------------------------------------------------- */

static void
append_number (GString *line,
               const char *name,
               double value)
{
  char text[G_ASCII_DTOSTR_BUF_SIZE];

  /* JSON can't express NaN or infinities. */
  g_string_append_printf (line, ", \"%s\": %s", name,
                          isfinite (value) ? g_ascii_dtostr (text, sizeof text, value) : "null");
}

/* The last measure of held-out data, if it is of this step. */
static const Evaluation *
get_evaluation (const Trainer *trainer)
{
  const GArray *all = trainer->evaluations;
  const Evaluation *last = all->len > 0 ? &g_array_index (all, Evaluation, all->len - 1) : NULL;

  return last != NULL && last->step == trainer->step ? last : NULL;
}

static gboolean
write_line (Log *self,
            const char *text,
            GError **error)
{
  gsize size = strlen (text);

  while (size > 0)
    {
      const gssize n = write (self->lines, text, size);

      if (n < 0 && errno != EINTR)
        return fail (self->path, error);
      text += MAX (n, 0);
      size -= (gsize) MAX (n, 0);
    }
  return TRUE;
}

/* TensorBoard groups names by what is before the slash. */
static gboolean
write_all (Log *self,
           EventScalar *scalars,
           const char *const *names,
           guint n,
           GError **error)
{
  const Evaluation *evaluation = get_evaluation (self->trainer);
  g_autoptr (GString) line = g_string_new (NULL);

  g_string_append_printf (line, STEP "%" G_GINT64_FORMAT, self->trainer->step);
  for (guint i = 0; i < n; i++)
    append_number (line, names[i], scalars[i].value);
  if (evaluation != NULL)
    {
      const double perplexity = evaluate_get_perplexity (evaluation->loss);

      append_number (line, "eval_loss", evaluation->loss);
      append_number (line, "eval_perplexity", perplexity);
      scalars[n++] = (EventScalar){ "eval/loss", evaluation->loss };
      scalars[n++] = (EventScalar){ "eval/perplexity", perplexity };
    }
  g_string_append (line, "}\n");
  return write_line (self, line->str, error)
         && event_file_write (&self->events, self->trainer->step, scalars, n, error);
}

gboolean
log_begin (Log *self,
           GError **error)
{
  EventScalar scalars[MOST_SCALARS];

  return self->lines < 0 || self->trainer->step <= self->last || get_evaluation (self->trainer) == NULL
         || write_all (self, scalars, NULL, 0, error);
}

gboolean
log_step (Log *self,
          double loss,
          double seconds,
          GError **error)
{
  static const char *const names[] = { "loss", "lr", "seconds", "tokens_per_second", "peak_bytes", "rss_peak_bytes" };
  const Trainer *trainer = self->trainer;
  const Options *options = trainer->options;
  const double n_tokens = (double) options->batch * options->context * options->accumulate;
  g_autoptr (EbbMemoryStats) stats = NULL;
  double scale;

  if (self->lines < 0)
    return TRUE;
  stats = ebb_memory_get_stats (trainer->device);
  g_object_get (trainer->optimizer, "lr-scale", &scale, NULL);
  EventScalar scalars[MOST_SCALARS] = { { "train/loss", loss },
                                        { "train/lr", options->lr * scale },
                                        { "speed/seconds", seconds },
                                        { "speed/tokens_per_second", seconds > 0 ? n_tokens / seconds : 0 },
                                        { "memory/peak_bytes", (double) ebb_memory_stats_get_peak_total (stats) },
                                        { "memory/rss_peak_bytes", (double) rank_table_get_rss_peak () } };
  return write_all (self, scalars, names, G_N_ELEMENTS (names), error);
}
