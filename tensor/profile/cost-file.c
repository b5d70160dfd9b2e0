/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The file of measured costs: one for each machine, device and number of threads. Lines of text: what it is, the
 * machine, the host's seconds for a launch, the rates of copies to the host and from it, those of a folder and its
 * name, a key and its seconds for each launch (with a "+" where other programs made them longer), and a checksum of all
 * that. A file that isn't whole, or another machine's, counts as empty; the next measurement replaces it. */
#include "tensor/profile/cost-private.h"

#include "tensor/cpu/cpu-private.h"
#include "tensor/error-private.h"
#include "tensor/profile/profiler-private.h"
#include "tensor/util/atomic-file-private.h"
#include "tensor/util/checksum-private.h"
#include "tensor/version.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#define MAGIC "Ebb costs 4"
#define COPIES "copies "
#define DISK "disk "
#define MAX_FILE_BYTES (4 * 1024 * 1024)
#define MAX_LAUNCHES 50000 /* which is less than that */
#define MAX_SECONDS 1e6
#define DISTURBED "+"

/* -- where --------------------------------------------------------------------------------------------------------- */

static char *
read_cpu_model (void)
{
  g_autofree char *text = NULL;
  g_auto (GStrv) lines = NULL;

  if (!g_file_get_contents ("/proc/cpuinfo", &text, NULL, NULL))
    return g_strdup ("unknown processor");
  lines = g_strsplit (text, "\n", -1);
  for (guint i = 0; lines[i] != NULL; i++)
    if (g_str_has_prefix (lines[i], "model name") && strchr (lines[i], ':') != NULL)
      return g_strstrip (g_strdup (strchr (lines[i], ':') + 1));
  return g_strdup ("unknown processor");
}

char *
ebb_cost_table_describe_machine (EbbCostTable *self)
{
  g_autofree char *cpu = read_cpu_model ();
  const EbbBackend *backend = self->device->backend;
  const guint64 capacity = backend->get_capacity != NULL ? backend->get_capacity (self->device->index) : 0;
  g_autofree char *speed = backend->describe_speed != NULL ? backend->describe_speed (self->device->index) : NULL;
  char *text = g_strdup_printf ("%s, %ld cores, %s, %" G_GUINT64_FORMAT " bytes of cache; %s, %" G_GUINT64_FORMAT
                                " bytes%s%s; %d threads; Ebb %s",
                                cpu, sysconf (_SC_NPROCESSORS_ONLN), ebb_cpu_get_simd_name (), self->cache_bytes,
                                self->device->name, capacity, speed != NULL ? ", " : "", speed != NULL ? speed : "",
                                self->n_threads, EBB_VERSION_STRING);

  return g_strdelimit (text, "\n\r", ' ');
}

char *
ebb_cost_file_get_path (EbbCostTable *self)
{
  const char *wanted = g_getenv ("EBB_COST_FILE");
  g_autofree char *machine = NULL;
  g_autofree char *name = NULL;

  if (wanted != NULL)
    return *wanted != '\0' ? g_strdup (wanted) : NULL;
  machine = ebb_cost_table_describe_machine (self);
  name = g_strdup_printf ("costs-%016" G_GINT64_MODIFIER "x.txt", ebb_checksum_of (machine, strlen (machine)));
  return g_build_filename (g_get_user_cache_dir (), "ebb", name, NULL);
}

/* -- reading ------------------------------------------------------------------------------------------------------- */

static gboolean
parse_seconds (const char *text,
               double *seconds)
{
  char *end;

  *seconds = g_ascii_strtod (text, &end);
  return end != text && *end == '\0' && isfinite (*seconds) && *seconds > 0 && *seconds <= MAX_SECONDS;
}

/* Of the @size bytes in front of it. */
static char *
make_checksum_line (const char *text,
                    gsize size)
{
  return g_strdup_printf ("sum %016" G_GINT64_MODIFIER "x", ebb_checksum_of (text, size));
}

static gboolean
parse_key (const char *text,
           guint64 *key)
{
  return strlen (text) == 16 && g_ascii_string_to_unsigned (text, 16, 0, G_MAXUINT64, key, NULL);
}

/* Takes the checksum's line off the end of @text, which it must be of. */
static gboolean
take_checksum (char *text,
               gsize size)
{
  g_autofree char *line = NULL;
  char *last;

  if (size == 0 || strlen (text) != size || text[size - 1] != '\n')
    return FALSE;
  text[size - 1] = '\0';
  last = strrchr (text, '\n');
  if (last == NULL)
    return FALSE;
  line = make_checksum_line (text, (gsize) (last + 1 - text));
  if (strcmp (last + 1, line) != 0)
    return FALSE;
  last[1] = '\0';
  return TRUE;
}

static void
parse_launch (GHashTable *known,
              char *line)
{
  EbbCostFigure figure = { .is_disturbed = g_str_has_suffix (line, DISTURBED) };
  const EbbCostFigure *own;
  guint64 key;
  char *space = strchr (line, ' ');

  if (space == NULL)
    return;
  *space = '\0';
  if (figure.is_disturbed)
    space[strlen (space + 1) + 1 - strlen (DISTURBED)] = '\0';
  if (!parse_key (line, &key) || !parse_seconds (space + 1, &figure.seconds))
    return;
  /* This process' own figure is newer. */
  own = g_hash_table_lookup (known, &key);
  if (own == NULL || (own->is_disturbed && !figure.is_disturbed))
    g_hash_table_replace (known, g_memdup2 (&key, sizeof key), g_memdup2 (&figure, sizeof figure));
}

/* Returns what comes after them; NULL: they aren't there. */
static const char *
parse_rates (const char *line,
             const char *prefix,
             EbbCostRates *rates)
{
  char *end;

  if (!g_str_has_prefix (line, prefix))
    return NULL;
  rates->out = g_ascii_strtod (line + strlen (prefix), &end);
  rates->in = g_ascii_strtod (end, &end);
  return isfinite (rates->out) && isfinite (rates->in) && rates->out >= 0 && rates->in >= 0 ? end : NULL;
}

/* The checksum says that a whole file was written by this library, so what is left to compare is the machine. */
static void
parse (EbbCostTable *self,
       char *text,
       gsize size)
{
  g_autofree char *machine = ebb_cost_table_describe_machine (self);
  g_auto (GStrv) lines = NULL;
  EbbCostRates copies, disk;
  const char *after, *folder;
  double host_seconds;
  guint n_lines;

  if (!take_checksum (text, size))
    return;
  lines = g_strsplit (text, "\n", -1);
  n_lines = g_strv_length (lines);
  if (n_lines < 6 || strcmp (lines[0], MAGIC) != 0 || !g_str_has_prefix (lines[1], "machine ")
      || strcmp (lines[1] + strlen ("machine "), machine) != 0 || !g_str_has_prefix (lines[2], "host ")
      || !parse_seconds (lines[2] + strlen ("host "), &host_seconds))
    return;
  after = parse_rates (lines[3], COPIES, &copies);
  folder = parse_rates (lines[4], DISK, &disk);
  if (after == NULL || *after != '\0' || folder == NULL || *folder != ' ')
    return;
  if (self->host_seconds < 0)
    self->host_seconds = host_seconds;
  if (self->host_rates.out <= 0)
    self->host_rates = copies;
  if (self->disk_rates.out <= 0 && disk.out > 0)
    {
      self->disk_rates = disk;
      g_free (self->disk_folder);
      self->disk_folder = g_strcompress (folder + 1);
    }
  for (guint i = 5; i + 1 < n_lines; i++)
    parse_launch (self->known, lines[i]);
}

static char *
read_whole (const char *path,
            gsize *size,
            GError **error)
{
  return ebb_read_file (path, MAX_FILE_BYTES, size, error);
}

void
ebb_cost_file_load (EbbCostTable *self)
{
  g_autofree char *path = ebb_cost_file_get_path (self);
  g_autofree char *text = NULL;
  gsize size;

  if (path == NULL || !g_file_test (path, G_FILE_TEST_EXISTS))
    return;
  text = read_whole (path, &size, NULL);
  if (text != NULL)
    parse (self, text, size);
}

/* -- writing ------------------------------------------------------------------------------------------------------- */

static void
print_rates (GString *text,
             const char *prefix,
             const EbbCostRates *rates,
             const char *after)
{
  char out[G_ASCII_DTOSTR_BUF_SIZE], in[G_ASCII_DTOSTR_BUF_SIZE];

  g_string_append_printf (text, "%s%s %s%s\n", prefix, g_ascii_formatd (out, sizeof out, "%.9g", rates->out),
                          g_ascii_formatd (in, sizeof in, "%.9g", rates->in), after);
}

static char *
print_file (EbbCostTable *self)
{
  g_autofree char *machine = ebb_cost_table_describe_machine (self);
  g_autofree char *folder = g_strescape (self->disk_folder != NULL ? self->disk_folder : "", NULL);
  g_autofree char *after = g_strconcat (" ", folder, NULL);
  g_autofree char *sum = NULL;
  GString *text = g_string_new (MAGIC "\n");
  char number[G_ASCII_DTOSTR_BUF_SIZE];
  GHashTableIter iter;
  gpointer key, value;
  guint n = 0;

  g_string_append_printf (text, "machine %s\nhost %s\n", machine,
                          g_ascii_formatd (number, sizeof number, "%.9g", self->host_seconds));
  print_rates (text, COPIES, &self->host_rates, "");
  print_rates (text, DISK, &self->disk_rates, after);
  g_hash_table_iter_init (&iter, self->known);
  while (n++ < MAX_LAUNCHES && g_hash_table_iter_next (&iter, &key, &value))
    {
      const EbbCostFigure *figure = value;

      g_string_append_printf (text, "%016" G_GINT64_MODIFIER "x %s%s\n", *(guint64 *) key,
                              g_ascii_formatd (number, sizeof number, "%.9g", figure->seconds),
                              figure->is_disturbed ? DISTURBED : "");
    }
  sum = make_checksum_line (text->str, text->len);
  g_string_append_printf (text, "%s\n", sum);
  return g_string_free (text, FALSE);
}

/* Nobody loses a file of his own that EBB_COST_FILE names by mistake. */
static gboolean
may_replace (const char *path)
{
  g_autofree char *text = NULL;
  gsize size;

  if (!g_file_test (path, G_FILE_TEST_EXISTS))
    return TRUE;
  text = read_whole (path, &size, NULL);
  return text != NULL && (size == 0 || g_str_has_prefix (text, "Ebb costs"));
}

static gboolean
write_file (const char *path,
            const char *text,
            GError **error)
{
  g_autofree char *folder = g_path_get_dirname (path);

  if (!may_replace (path))
    return ebb_fail (error, EBB_ERROR_IO, "%s is no file of costs; it is left as it is", path);
  if (g_mkdir_with_parents (folder, 0700) != 0)
    return ebb_fail (error, EBB_ERROR_IO, "can't make %s: %s", folder, g_strerror (errno));
  return ebb_atomic_file_save (path, text, strlen (text), error);
}

void
ebb_cost_file_save (EbbCostTable *self)
{
  g_autofree char *path = ebb_cost_file_get_path (self);
  g_autofree char *text = NULL;
  g_autoptr (GError) error = NULL;

  if (path == NULL)
    return;
  /* What other processes have added meanwhile stays. */
  ebb_cost_file_load (self);
  text = print_file (self);
  if (write_file (path, text, &error))
    return;
  /* A home that can't be written is no reason to complain; a file that was asked for is. */
  if (g_getenv ("EBB_COST_FILE") != NULL)
    g_warning ("EBB_COST_FILE: costs aren't kept: %s", error->message);
  else
    g_debug ("costs aren't kept: %s", error->message);
}
