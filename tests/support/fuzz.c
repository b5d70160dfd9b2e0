/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* memfd_create */
#endif
#include "support/fuzz.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* -- random numbers ------------------------------------------------------------------------------------------------ */

static guint64 state;

/* Marsaglia, "Xorshift RNGs" (2003). */
guint32
fuzz_draw (guint32 limit)
{
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return (guint32) ((state >> 32) % limit);
}

static void
set_seed (guint64 seed)
{
  state = seed * G_GUINT64_CONSTANT (0x9e3779b97f4a7c15) | 1;
  fuzz_draw (2);
}

#define PICK(array) ((array)[fuzz_draw (G_N_ELEMENTS (array))])

/* -- damage by structure ------------------------------------------------------------------------------------------- */

typedef struct
{
  const char *text;
  gsize length;
} Token;

static gboolean
is_mark (const Token *token,
         char mark)
{
  return token->length == 1 && *token->text == mark;
}

/* FALSE: it is no JSON. */
static gboolean
split (const GString *text,
       GArray *tokens)
{
  const char *end = text->str + text->len;

  for (const char *p = text->str; p < end;)
    {
      Token token = { p, 1 };

      if (g_ascii_isspace (*p))
        {
          p++;
          continue;
        }
      if (*p == '"')
        {
          for (p++; p < end && *p != '"'; p++)
            if (*p == '\\')
              p++;
          if (p >= end)
            return FALSE;
          token.length = (gsize) (p + 1 - token.text);
        }
      else if (strchr ("{}[],:", *p) == NULL)
        {
          while (p < end && !g_ascii_isspace (*p) && strchr ("{}[],:\"", *p) == NULL)
            p++;
          token.length = (gsize) (p - token.text);
        }
      p = token.text + token.length;
      g_array_append_val (tokens, token);
    }
  return tokens->len > 0;
}

static const Token *
get (const GArray *tokens,
     guint i)
{
  static const Token none = { "", 0 };

  return i < tokens->len ? &g_array_index (tokens, Token, i) : &none;
}

/* The token after the value that begins at @i. */
static guint
find_end (const GArray *tokens,
          guint i)
{
  int depth = 0;

  for (; i < tokens->len; i++)
    {
      const Token *token = get (tokens, i);

      depth += is_mark (token, '{') || is_mark (token, '[');
      depth -= is_mark (token, '}') || is_mark (token, ']');
      if (depth <= 0)
        return i + 1;
    }
  return i;
}

static gboolean
is_key (const GArray *tokens,
        guint i)
{
  return *get (tokens, i)->text == '"' && is_mark (get (tokens, i + 1), ':');
}

static gboolean
begins_value (const GArray *tokens,
              guint i)
{
  const Token *token = get (tokens, i);

  return (token->length > 1 || strchr ("}],:", *token->text) == NULL) && !is_key (tokens, i);
}

/* A token at random for which @is_right holds: the first one after a place; the number of tokens if there is none. */
static guint
pick (const GArray *tokens,
      gboolean (*is_right) (const GArray *tokens,
                            guint i))
{
  guint start = fuzz_draw (tokens->len);

  for (guint n = 0; n < tokens->len; n++)
    if (is_right (tokens, (start + n) % tokens->len))
      return (start + n) % tokens->len;
  return tokens->len;
}

static void
append (GString *out,
        const GArray *tokens,
        guint from,
        guint to)
{
  for (guint i = from; i < to; i++)
    g_string_append_len (out, get (tokens, i)->text, (gssize) get (tokens, i)->length);
}

/* Values that a file may have where another one should be. */
static const char *const values[] = { "null",
                                      "true",
                                      "false",
                                      "0",
                                      "-0",
                                      "1",
                                      "-1",
                                      "2",
                                      "7",
                                      "64",
                                      "65",
                                      "1.5",
                                      "1e9",
                                      "1e400",
                                      "-1e-400",
                                      "2147483647",
                                      "2147483648",
                                      "4294967296",
                                      "9007199254740992",
                                      "9007199254740993",
                                      "9223372036854775807",
                                      "9223372036854775808",
                                      "-9223372036854775808",
                                      "18446744073709551615",
                                      "18446744073709551616",
                                      "\"\"",
                                      "\"0\"",
                                      "\"-1\"",
                                      "\"9223372036854775807\"",
                                      "\"-9223372036854775808\"",
                                      "\"nan\"",
                                      "\"inf\"",
                                      "\"a\\nb\"",
                                      "\"\xc3\xa9\"",
                                      "[]",
                                      "{}",
                                      "[[]]",
                                      "[0]",
                                      "[1,2,3]",
                                      "{\"a\":1}",
                                      "{\"int\":5}",
                                      "{\"int\":\"9223372036854775807\"}",
                                      "{\"double\":5}",
                                      "{\"double\":\"nan\"}",
                                      "{\"tensor\":5}",
                                      "{\"tensor\":\"x\",\"sum\":\"0\"}",
                                      "{\"dict\":{}}",
                                      "{\"list\":[]}",
                                      "{\"tuple\":[null]}" };

/* Texts that a string should not have, or need not. */
static const char *const splices[] = {
  "\\n",
  "\\\"",
  "\\u0000",
  "\\ud83d",
  "\\ud83d\\ude00",
  "\\x",
  "\n",
  "\x01",
  "\xff",
  "\xc3",
  "\xe2\x80\xa8",
  "/",
  "\"",
  "\\",
  ".",
  "#2",
  "%s",
  "*",
  "../",
  " ",
  "00000000000000000000000000000000000000000000000000000000000000",
};

/* A number, or a string of digits, one more, negative, ten times as large, or cut. */
static void
append_number (GString *out,
               const Token *token)
{
  gboolean quoted = *token->text == '"';
  g_autofree char *digits =
      quoted ? g_strndup (token->text + 1, token->length - 2) : g_strndup (token->text, token->length);
  gint64 number = g_ascii_strtoll (digits, NULL, 10);

  if (quoted)
    g_string_append_c (out, '"');
  switch (fuzz_draw (5))
    {
    case 0:
      g_string_append_printf (out, "%" G_GINT64_FORMAT, (gint64) ((guint64) number + 1));
      break;
    case 1:
      g_string_append_printf (out, "%" G_GINT64_FORMAT, (gint64) ((guint64) number - 1));
      break;
    case 2:
      g_string_append_printf (out, "-%s", digits);
      break;
    case 3:
      g_string_append_printf (out, "%s0", digits);
      break;
    default:
      g_string_append_printf (out, "%" G_GINT64_FORMAT, number / 2);
    }
  if (quoted)
    g_string_append_c (out, '"');
}

static void
append_spliced (GString *out,
                const Token *token)
{
  gsize at = 1 + fuzz_draw ((guint32) MAX (token->length - 1, 1));

  g_string_append_len (out, token->text, (gssize) MIN (at, token->length - 1));
  g_string_append (out, PICK (splices));
  if (token->length > at)
    g_string_append_len (out, token->text + at, (gssize) (token->length - at));
  else
    g_string_append_c (out, '"');
}

/* Deep enough for a limit, and now and then for a stack. */
static void
append_nested (GString *out,
               const GArray *tokens,
               guint from,
               guint to)
{
  static const char *const opens[] = { "[", "{\"a\":", "{\"list\":[", "{\"dict\":{\"a\":" };
  static const char *const closes[] = { "]", "}", "]}", "}}" };
  guint kind = fuzz_draw (G_N_ELEMENTS (opens));
  guint depth = fuzz_draw (2000) == 0 ? 100000 : fuzz_draw (10) == 0 ? 60 + fuzz_draw (10)
                                                                     : 1 + fuzz_draw (3);

  for (guint i = 0; i < depth; i++)
    g_string_append (out, opens[kind]);
  append (out, tokens, from, to);
  for (guint i = 0; i < depth; i++)
    g_string_append (out, closes[kind]);
}

/* The value at @i, changed: a whole one, or a number or a string inside. */
static void
append_changed (GString *out,
                const GArray *tokens,
                guint i,
                guint end)
{
  const Token *token = get (tokens, i);
  const gboolean is_number = end == i + 1
                             && (g_ascii_isdigit (token->text[*token->text == '"'])
                                 || token->text[*token->text == '"'] == '-');
  guint other;

  switch (fuzz_draw (is_number ? 6 : 4))
    {
    case 0:
      g_string_append (out, PICK (values));
      break;
    case 1:
      other = pick (tokens, begins_value);
      append (out, tokens, other, find_end (tokens, other));
      break;
    case 2:
      append_nested (out, tokens, i, end);
      break;
    case 3:
      if (*token->text == '"')
        append_spliced (out, token);
      else
        g_string_append (out, PICK (values));
      break;
    default:
      append_number (out, token);
    }
}

/* A member or an element goes, comes twice, or changes places with the next one. */
static void
append_moved (GString *out,
              const GArray *tokens,
              guint begin,
              guint end)
{
  const gboolean comma_after = is_mark (get (tokens, end), ',');
  const guint next_end = comma_after ? find_end (tokens, end + 1 + (is_key (tokens, end + 1) ? 2 : 0)) : end;

  switch (fuzz_draw (3))
    {
    case 0: /* with one comma, before or after it */
      if (!comma_after && out->len > 0 && out->str[out->len - 1] == ',')
        g_string_truncate (out, out->len - 1);
      append (out, tokens, end + comma_after, tokens->len);
      break;
    case 1:
      append (out, tokens, begin, end);
      g_string_append_c (out, ',');
      append (out, tokens, begin, tokens->len);
      break;
    default:
      if (comma_after)
        {
          append (out, tokens, end + 1, next_end);
          g_string_append_c (out, ',');
        }
      append (out, tokens, begin, end);
      append (out, tokens, next_end, tokens->len);
    }
}

void
fuzz_damage_json (GString *text)
{
  g_autoptr (GArray) tokens = g_array_sized_new (FALSE, FALSE, sizeof (Token), (guint) text->len / 3 + 1);
  g_autoptr (GString) out = g_string_sized_new (text->len + 64);
  guint kind = fuzz_draw (8), i, other, end;

  if (!split (text, tokens))
    {
      fuzz_damage_bytes (text);
      return;
    }
  i = pick (tokens, kind < 2 ? is_key : begins_value);
  if (i == tokens->len)
    i = 0;
  end = find_end (tokens, i);
  if (kind == 0) /* another name */
    {
      append (out, tokens, 0, i);
      other = pick (tokens, is_key);
      if (other == tokens->len || fuzz_draw (2))
        append_spliced (out, get (tokens, i));
      else
        append (out, tokens, other, other + 1);
      append (out, tokens, i + 1, tokens->len);
    }
  else if (kind < 4)
    {
      guint begin = i >= 2 && is_key (tokens, i - 2) ? i - 2 : i;

      append (out, tokens, 0, begin);
      append_moved (out, tokens, begin, is_key (tokens, begin) ? find_end (tokens, begin + 2) : end);
    }
  else
    {
      append (out, tokens, 0, i);
      append_changed (out, tokens, i, end);
      append (out, tokens, end, tokens->len);
    }
  g_string_truncate (text, 0);
  g_string_append_len (text, out->str, (gssize) out->len);
}

/* -- damage by bytes ----------------------------------------------------------------------------------------------- */

void
fuzz_damage_bytes (GString *bytes)
{
  static const char *const words[] = { "{", "}", "[", "]", ",", ":", "\"", "\\", "\\u", "\\ud83d", "null", "-", "1e9",
                                       "0", "9223372036854775807", "18446744073709551615", "4294967296", "\"a\":",
                                       "\xff", "\xc3\xa9", "true", " ", ".", "\n", "\r", "\t", "/* */", "//", "\x01" };
  gsize place = bytes->len > 0 ? fuzz_draw ((guint32) bytes->len) : 0, length = 1 + fuzz_draw (16);

  switch (bytes->len > 0 ? fuzz_draw (6) : 5)
    {
    case 0:
      bytes->str[place] = (char) (bytes->str[place] ^ (1 << fuzz_draw (8)));
      break;
    case 1:
      bytes->str[place] = (char) fuzz_draw (256);
      break;
    case 2:
      g_string_truncate (bytes, place);
      break;
    case 3:
      g_string_erase (bytes, (gssize) place, (gssize) MIN (length, bytes->len - place));
      break;
    case 4:
      for (gsize i = place; i < bytes->len; i++)
        if (g_ascii_isdigit (bytes->str[i]))
          {
            bytes->str[i] = (char) ('0' + fuzz_draw (10));
            break;
          }
      break;
    default:
      g_string_insert (bytes, (gssize) place, PICK (words));
    }
}

void
fuzz_damage (GString *text)
{
  for (guint n = 1 + fuzz_draw (3); n > 0; n--)
    if (fuzz_draw (5) > 0)
      fuzz_damage_json (text);
    else
      fuzz_damage_bytes (text);
}

/* -- files --------------------------------------------------------------------------------------------------------- */

void
fuzz_file_open (FuzzFile *file)
{
  file->fd = memfd_create ("fuzz", MFD_CLOEXEC);
  if (file->fd < 0)
    g_error ("no file in memory");
  g_snprintf (file->path, sizeof file->path, "/proc/self/fd/%d", file->fd);
}

void
fuzz_file_write (FuzzFile *file,
                 const void *data,
                 gsize size)
{
  if (ftruncate (file->fd, 0) != 0 || pwrite (file->fd, data, size, 0) != (gssize) size)
    g_error ("a file in memory can't be written");
}

void
fuzz_file_close (FuzzFile *file)
{
  close (file->fd);
}

/* -- the program --------------------------------------------------------------------------------------------------- */

static const char *program;
static guint64 current;

static void
report_signal (int number)
{
  char text[120];
  int n =
      g_snprintf (text, sizeof text, "fuzz-%s: signal %d at seed %" G_GUINT64_FORMAT "\n", program, number, current);

  if (write (STDERR_FILENO, text, (gsize) n) < 0)
    _exit (3);
  signal (number, SIG_DFL);
  raise (number);
}

static GLogWriterOutput
write_log (GLogLevelFlags level,
           const GLogField *fields,
           gsize n_fields,
           gpointer user_data)
{
  /* That a state is passed over is said by a message, and right. */
  return level > G_LOG_LEVEL_WARNING ? G_LOG_WRITER_HANDLED
                                     : g_log_writer_standard_streams (level, fields, n_fields, user_data);
}

static const char *
find_fault (gboolean taken,
            const GError *error)
{
  if (taken)
    return error == NULL ? NULL : "it was taken with an error";
  if (error == NULL || error->domain != EBB_ERROR)
    return error == NULL ? "it was refused without an error" : "its error is of another domain";
  if (strpbrk (error->message, "\n\r") != NULL || !g_utf8_validate (error->message, -1, NULL))
    return "its error is not one line of UTF-8";
  return strlen (error->message) < 4000 ? NULL : "its error is too long";
}

static void
keep_input (const GString *input)
{
  g_autofree char *path = g_strdup_printf ("%s/fuzz-%s-%" G_GUINT64_FORMAT, g_get_tmp_dir (), program, current);

  g_file_set_contents (path, input->str, (gssize) input->len, NULL);
  g_printerr ("its input is in %s\n", path);
}

int
fuzz_run (int argc,
          char **argv,
          const char *name,
          guint n_cases,
          FuzzCase try_case)
{
  static const int signals[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGALRM };
  guint64 first = argc > 1 ? g_ascii_strtoull (argv[1], NULL, 10) : 1;
  g_autoptr (GString) input = g_string_new (NULL);
  guint n_taken = 0;

  n_cases = argc > 2 ? (guint) g_ascii_strtoull (argv[2], NULL, 10) : n_cases;
  program = name;
  for (guint i = 0; i < G_N_ELEMENTS (signals); i++)
    signal (signals[i], report_signal);
  g_log_set_always_fatal (G_LOG_LEVEL_CRITICAL | G_LOG_LEVEL_WARNING);
  g_log_set_writer_func (write_log, NULL, NULL);
  for (guint i = 0; i < n_cases; i++)
    {
      g_autoptr (GError) error = NULL;
      const char *fault;
      gboolean taken;

      current = first + i;
      set_seed (current);
      g_string_truncate (input, 0);
      alarm (60);
      taken = try_case (input, &error);
      fault = find_fault (taken, error);
      if (fault != NULL)
        {
          g_printerr ("fuzz-%s: seed %" G_GUINT64_FORMAT ": %s: %s\n", name, current, fault,
                      error != NULL ? error->message : "");
          keep_input (input);
          return 1;
        }
      n_taken += taken;
    }
  alarm (0);
  g_print ("fuzz-%s: %u cases from seed %" G_GUINT64_FORMAT ", %u taken, %u refused\n", name, n_cases, first, n_taken,
           n_cases - n_taken);
  return n_taken >= n_cases / 100 && n_taken < n_cases ? 0 : 1;
}
