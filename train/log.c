/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The log of a training: numbers of each step, for programs and for TensorBoard. */
#include "train/log-private.h"

#include "tensor/util/file.h"

#include <errno.h>
#include <fcntl.h>
#include <glib/gstdio.h>
#include <math.h>
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

  g_set_error (error, EBB_ERROR, EBB_ERROR_IO, "log: can't write %s: %s", path, g_strerror (number));
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
take_lines (EbbTrainingLog *self,
            const char *folder,
            gboolean is_resumed,
            gint64 last_step,
            GError **error)
{
  g_autofree char *text = NULL;
  gsize size, end;
  gint64 last;

  text = ebb_read_file (self->path, EBB_TRAINING_LOG_MAX_SIZE, &size, error);
  if (text == NULL)
    {
      g_prefix_error (error, "log: ");
      return FALSE;
    }
  if (!find_end (text, last_step, &end, &last))
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_FORMAT, "log %s: the " LINES " there is no log of steps", folder);
      return FALSE;
    }
  if (last >= 0 && !is_resumed)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_STATE,
                   "log %s: it has the log of another training, up to step %" G_GINT64_FORMAT
                   ": name another folder, or resume the state that goes on",
                   folder, last);
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

/* Two trainings would mix their lines. The folder of the state is locked already. */
static gboolean
lock (EbbTrainingLog *self,
      const char *folder,
      const char *resume,
      GError **error)
{
  if (resume != NULL && is_same_folder (folder, resume))
    return TRUE;
  self->lock = ebb_folder_lock_new (folder, error);
  if (self->lock == NULL)
    g_prefix_error (error, "log: ");
  return self->lock != NULL;
}

gboolean
ebb_training_log_open (EbbTrainingLog *self,
                       const char *folder,
                       const char *resume,
                       gint64 first_step,
                       GError **error)
{
  /* Where nothing was resumed, step 0 is measured again. */
  const gint64 last_step = first_step > 0 ? first_step : -1;

  *self = EBB_TRAINING_LOG_NONE;
  if (g_mkdir_with_parents (folder, 0777) != 0)
    return fail (folder, error);
  if (!lock (self, folder, resume, error))
    return FALSE;
  self->path = g_build_filename (folder, LINES, NULL);
  self->lines = g_open (self->path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (self->lines < 0)
    return fail (self->path, error);
  /* Without a state a later step is one of the same trainer, which runs again. */
  return take_lines (self, folder, resume != NULL || first_step > 0, last_step, error)
         && ebb_event_file_open (&self->events, folder, last_step, error);
}

void
ebb_training_log_close (EbbTrainingLog *self)
{
  if (self->lines >= 0)
    close (self->lines);
  self->lines = -1;
  ebb_event_file_close (&self->events);
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

static gboolean
write_line (EbbTrainingLog *self,
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
write_all (EbbTrainingLog *self,
           gint64 step,
           EbbEventScalar *scalars,
           const char *const *names,
           guint n,
           const double *evaluated_loss,
           GError **error)
{
  g_autoptr (GString) line = g_string_new (NULL);

  g_string_append_printf (line, STEP "%" G_GINT64_FORMAT, step);
  for (guint i = 0; i < n; i++)
    append_number (line, names[i], scalars[i].value);
  if (evaluated_loss != NULL)
    {
      const double perplexity = exp (*evaluated_loss);

      append_number (line, "eval_loss", *evaluated_loss);
      append_number (line, "eval_perplexity", perplexity);
      scalars[n++] = (EbbEventScalar){ "eval/loss", *evaluated_loss };
      scalars[n++] = (EbbEventScalar){ "eval/perplexity", perplexity };
    }
  g_string_append (line, "}\n");
  return write_line (self, line->str, error) && ebb_event_file_write (&self->events, step, scalars, n, error);
}

gboolean
ebb_training_log_add_evaluation (EbbTrainingLog *self,
                                 gint64 step,
                                 double evaluated_loss,
                                 GError **error)
{
  EbbEventScalar scalars[MOST_SCALARS];

  return self->lines < 0 || step <= self->last || write_all (self, step, scalars, NULL, 0, &evaluated_loss, error);
}

gboolean
ebb_training_log_add_step (EbbTrainingLog *self,
                           const EbbLoggedStep *step,
                           const double *evaluated_loss,
                           GError **error)
{
  static const char *const names[] = { "loss", "lr", "seconds", "tokens_per_second", "peak_bytes", "rss_peak_bytes" };
  EbbEventScalar scalars[MOST_SCALARS] = { { "train/loss", step->loss },
                                           { "train/lr", step->learning_rate },
                                           { "speed/seconds", step->seconds },
                                           { "speed/tokens_per_second",
                                             step->seconds > 0 ? step->tokens / step->seconds : 0 },
                                           { "memory/peak_bytes", (double) step->peak_bytes },
                                           { "memory/rss_peak_bytes", (double) step->rss_peak_bytes } };

  return self->lines < 0
         || write_all (self, step->step, scalars, names, G_N_ELEMENTS (names), evaluated_loss, error);
}
