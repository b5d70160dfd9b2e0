/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The regular expressions of tokenizers, run by PCRE2. */
#define _GNU_SOURCE /* memmem () */
#define PCRE2_CODE_UNIT_WIDTH 8

#include "nn/data/tokenizer/pattern-private.h"

#include "nn/data/tokenizer/json-parts-private.h"
#include "tensor/error-private.h"
#include "tensor/util/json-scanner-private.h"

#include <pcre2.h>
#include <string.h>

/* Long enough for any tokenizer's expression. */
#define MAX_LENGTH 16384
/* Characters that a lookbehind goes back at each place of a text: PCRE2 does not count them. */
#define MAX_LOOKBEHIND 255u
/* PCRE2 limits the choices of a match, but its machine code does not count the characters that ".*" passes. So a match
 * is tried with few choices and within a short window of the text first, for many places at one time. A match that
 * needs more is run again at its place by code that reports each choice and each scan. These are the steps that a text
 * may use: an expression that needs many of them everywhere would take hours. */
#define FEW_CHOICES 64u
#define WINDOW ((gsize) 256)
#define N_PLACES 64
#define STEPS_OF_TEXT ((guint64) 50000000)
#define STEPS_OF_BYTE ((guint64) 128)
#define MAX_STACK ((gsize) 8 << 20)

struct _EbbPattern
{
  char *expression;
  pcre2_code *code;
  pcre2_code *counting; /* the same with callouts that report steps; NULL for a literal, which takes few */
  gboolean is_compiled; /* to machine code */
  gboolean is_literal;
};

struct _EbbPatternSpace
{
  pcre2_match_data *data;
  pcre2_match_context *context;
  pcre2_match_context *counting; /* for the code that counts */
  pcre2_jit_stack *stack;
  guint64 steps_left;
  PCRE2_SIZE scan_start; /* of the scan that goes on; PCRE2_UNSET: it was counted */
};

/* -- compiling ----------------------------------------------------------------------------------------------------- */

static pcre2_code *
compile (const char *translated,
         const char *expression,
         guint32 options,
         GError **error)
{
  pcre2_compile_context *context = pcre2_compile_context_create (NULL);
  pcre2_code *result;
  int code;
  PCRE2_SIZE offset;

  pcre2_set_newline (context, PCRE2_NEWLINE_LF);
  result = pcre2_compile ((PCRE2_SPTR) translated, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_USE_OFFSET_LIMIT | options,
                          &code, &offset, context);
  pcre2_compile_context_free (context);
  if (result == NULL)
    {
      g_autofree char *quoted = ebb_json_quote (expression);
      PCRE2_UCHAR message[160];

      pcre2_get_error_message (code, message, sizeof message);
      ebb_error_set (error, EBB_ERROR_FORMAT, "the expression %s: %s", quoted, (const char *) message);
    }
  return result;
}

static gboolean
check_lookbehind (const EbbPattern *self,
                  GError **error)
{
  guint32 length = 0;

  pcre2_pattern_info (self->code, PCRE2_INFO_MAXLOOKBEHIND, &length);
  return length <= MAX_LOOKBEHIND
         || ebb_fail (error, EBB_ERROR_NOT_SUPPORTED,
                      "the expression %s looks %u characters back: at most %u are supported",
                      ebb_in_message (ebb_json_quote (self->expression)), length, MAX_LOOKBEHIND);
}

/* Compiles the expression, and a second time so that it counts. */
static gboolean
compile_expression (EbbPattern *self,
                    GError **error)
{
  const guint32 options = PCRE2_UCP | PCRE2_MULTILINE;
  g_autofree char *translated = ebb_pattern_translate (self->expression, FALSE, error);
  g_autofree char *counting = translated != NULL ? ebb_pattern_translate (self->expression, TRUE, error) : NULL;

  if (counting == NULL)
    return FALSE;
  self->code = compile (translated, self->expression, options, error);
  if (self->code == NULL || !check_lookbehind (self, error))
    return FALSE;
  /* An optimization would look ahead for a character without counting. */
  self->counting = compile (counting, self->expression, options | PCRE2_NO_START_OPTIMIZE, error);
  return self->counting != NULL;
}

EbbPattern *
ebb_pattern_new (const char *expression,
                 gboolean is_literal,
                 GError **error)
{
  g_autoptr (EbbPattern) self = g_new0 (EbbPattern, 1);

  if (*expression == '\0' || strlen (expression) > MAX_LENGTH)
    return ebb_fail_null (error, EBB_ERROR_FORMAT, "an expression of %" G_GSIZE_FORMAT " bytes: 1 to %d are allowed",
                          strlen (expression), MAX_LENGTH);
  self->expression = g_strdup (expression);
  self->is_literal = is_literal;
  if (!is_literal)
    {
      if (!compile_expression (self, error))
        return NULL;
    }
  else if ((self->code = compile (expression, expression, PCRE2_LITERAL, error)) == NULL)
    return NULL;
  self->is_compiled = pcre2_jit_compile (self->code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD) == 0
                      && (is_literal || pcre2_jit_compile (self->counting, PCRE2_JIT_COMPLETE) == 0);
  return g_steal_pointer (&self);
}

EbbPattern *
ebb_pattern_read (const EbbJson *json,
                  GError **error)
{
  const char *regex = NULL, *string = NULL;

  if (!ebb_json_part_get_string (json, "Regex", &regex, error)
      || !ebb_json_part_get_string (json, "String", &string, error))
    return NULL;
  if ((regex == NULL) == (string == NULL))
    {
      ebb_json_part_fail (json, error, "a pattern must be a Regex or a String");
      return NULL;
    }
  return ebb_pattern_new (regex != NULL ? regex : string, regex == NULL, error);
}

const char *
ebb_pattern_get_expression (const EbbPattern *self)
{
  return self->expression;
}

void
ebb_pattern_free (EbbPattern *self)
{
  if (self == NULL)
    return;
  pcre2_code_free (self->code);
  pcre2_code_free (self->counting);
  g_free (self->expression);
  g_free (self);
}

/* -- searching ----------------------------------------------------------------------------------------------------- */

/* Counts a step of the code that counts, and the characters that a scan has passed. Another number than 0 ends the
 * match. */
static int
count_step (pcre2_callout_block *block,
            gpointer data)
{
  EbbPatternSpace *space = data;
  guint64 steps = 1;

  if (block->callout_number >= EBB_PATTERN_BEFORE_SCAN)
    {
      space->scan_start = block->current_position;
      steps += block->callout_number - EBB_PATTERN_BEFORE_SCAN; /* a scan that fails among these gets no further */
    }
  else if (block->callout_number == EBB_PATTERN_BEHIND_SCAN && space->scan_start != PCRE2_UNSET)
    {
      if (block->current_position > space->scan_start)
        steps += block->current_position - space->scan_start;
      space->scan_start = PCRE2_UNSET; /* where the match tries shorter scans, each is one step */
    }
  if (steps > space->steps_left)
    return PCRE2_ERROR_MATCHLIMIT;
  space->steps_left -= steps;
  return 0;
}

EbbPatternSpace *
ebb_pattern_space_new (void)
{
  EbbPatternSpace *self = g_new0 (EbbPatternSpace, 1);

  self->data = pcre2_match_data_create (1, NULL);
  self->stack = pcre2_jit_stack_create (32 << 10, MAX_STACK, NULL);
  self->context = pcre2_match_context_create (NULL);
  pcre2_set_match_limit (self->context, FEW_CHOICES);
  pcre2_jit_stack_assign (self->context, NULL, self->stack);
  self->counting = pcre2_match_context_create (NULL);
  pcre2_set_match_limit (self->counting, G_MAXUINT32);
  pcre2_set_callout (self->counting, count_step, self);
  pcre2_jit_stack_assign (self->counting, NULL, self->stack);
  ebb_pattern_space_begin_text (self);
  return self;
}

void
ebb_pattern_space_begin_text (EbbPatternSpace *self)
{
  self->steps_left = STEPS_OF_TEXT;
}

void
ebb_pattern_space_free (EbbPatternSpace *self)
{
  if (self == NULL)
    return;
  pcre2_match_data_free (self->data);
  pcre2_match_context_free (self->context);
  pcre2_match_context_free (self->counting);
  pcre2_jit_stack_free (self->stack);
  g_free (self);
}

EbbPatternSearch
ebb_pattern_search_new (const EbbPattern *pattern,
                        EbbPatternSpace *space,
                        const char *text,
                        gsize length)
{
  space->steps_left += MIN (STEPS_OF_BYTE * length, G_MAXUINT64 - space->steps_left);
  return (EbbPatternSearch){ pattern, space, text, length, 0, G_MAXSIZE };
}

static gboolean
fail (const EbbPatternSearch *self,
      gsize place,
      int code,
      GError **error)
{
  g_autofree char *quoted = ebb_json_quote (self->pattern->expression);
  PCRE2_UCHAR message[160];

  if (code == PCRE2_ERROR_MATCHLIMIT)
    return ebb_fail (error, EBB_ERROR_NOT_SUPPORTED,
                     "the expression %s gives up at byte %" G_GSIZE_FORMAT
                     " of the text: it has taken more than %" G_GUINT64_FORMAT " steps",
                     quoted, place, STEPS_OF_TEXT);
  pcre2_get_error_message (code, message, sizeof message);
  return ebb_fail (error, EBB_ERROR_NOT_SUPPORTED,
                   "the expression %s gives up at byte %" G_GSIZE_FORMAT " of the text: %s", quoted, place,
                   (const char *) message);
}

static int
run (const EbbPatternSearch *self,
     const pcre2_code *code,
     pcre2_match_context *context,
     gsize length,
     gsize from,
     gsize last,
     guint32 options)
{
  PCRE2_SPTR text = (PCRE2_SPTR) self->text;

  pcre2_set_offset_limit (context, last);
  if (self->pattern->is_compiled)
    return pcre2_jit_match (code, text, length, from, options, self->space->data, context);
  return pcre2_match (code, text, length, from, PCRE2_NO_UTF_CHECK | options, self->space->data, context);
}

/* A match that begins at one of the bytes from @from to @last, as PCRE2 gives it, with few choices. It is partial if it
 * needs more than a window. */
static inline int
match_in_window (const EbbPatternSearch *self,
                 gsize from,
                 gsize last)
{
  gsize end = last + WINDOW;

  if (end >= self->length)
    return run (self, self->pattern->code, self->space->context, self->length, from, last, 0);
  while (end < self->length && ((guchar) self->text[end] & 0xc0) == 0x80)
    end++;
  return run (self, self->pattern->code, self->space->context, end, from, last, PCRE2_PARTIAL_HARD);
}

/* The same at @place alone, in the whole text, with counted steps. */
static int
match_with_many_steps (const EbbPatternSearch *self,
                       gsize place)
{
  EbbPatternSpace *space = self->space;
  const EbbPattern *pattern = self->pattern;

  space->scan_start = PCRE2_UNSET;
  return run (self, pattern->is_literal ? pattern->code : pattern->counting, space->counting, self->length, place,
              place, 0);
}

static gsize
get_next_place (const EbbPatternSearch *self,
                gsize place)
{
  do
    place++;
  while (place < self->length && ((guchar) self->text[place] & 0xc0) == 0x80);
  return place;
}

/* @found is FALSE if there is no match at @self->next or behind. */
static gboolean
find (const EbbPatternSearch *self,
      gboolean *found,
      gsize *start,
      gsize *end,
      GError **error)
{
  EbbPatternSpace *space = self->space;
  int result = PCRE2_ERROR_NOMATCH;
  gsize place = self->next;

  while (result == PCRE2_ERROR_NOMATCH && place <= self->length)
    {
      gsize last = MIN (place + N_PLACES, self->length), begin = place;

      result = match_in_window (self, place, last);
      if (result == PCRE2_ERROR_PARTIAL)
        {
          /* There is no match before the one that is partial. */
          last = begin = pcre2_get_ovector_pointer (space->data)[0];
          space->steps_left -= MIN (space->steps_left, WINDOW);
        }
      else if (result == PCRE2_ERROR_MATCHLIMIT)
        space->steps_left -= MIN (space->steps_left, FEW_CHOICES * N_PLACES);
      else
        {
          place = get_next_place (self, last);
          continue;
        }
      for (place = begin, result = PCRE2_ERROR_NOMATCH; result == PCRE2_ERROR_NOMATCH && place <= last;
           place = get_next_place (self, place))
        result = match_with_many_steps (self, place);
    }
  *found = result >= 0;
  if (result < 0)
    return result == PCRE2_ERROR_NOMATCH || fail (self, self->next, result, error);
  *start = pcre2_get_ovector_pointer (space->data)[0];
  *end = pcre2_get_ovector_pointer (space->data)[1];
  return TRUE;
}

gboolean
ebb_pattern_search_next (EbbPatternSearch *self,
                         gsize *start,
                         gsize *end,
                         GError **error)
{
  gboolean found;

  while (self->next <= self->length)
    {
      if (!find (self, &found, start, end, error))
        return FALSE;
      if (!found)
        break;
      if (*end > *start || *end != self->last_end)
        {
          self->next = self->last_end = *end;
          return TRUE;
        }
      self->next = self->next < self->length
                       ? (gsize) (g_utf8_next_char (self->text + self->next) - self->text)
                       : self->length + 1;
    }
  *start = *end = self->length;
  self->next = self->length + 1;
  return TRUE;
}

/* Appends text, and the content behind it. */
static gboolean
append_replaced (const EbbPatternSearch *self,
                 const char *text,
                 gsize length,
                 const char *content,
                 gsize max_length,
                 GString *result,
                 GError **error)
{
  if (length + strlen (content) + result->len <= max_length)
    {
      g_string_append_len (result, text, (gssize) length);
      g_string_append (result, content);
      return TRUE;
    }
  return ebb_fail (error, EBB_ERROR_FORMAT,
                   "replacing %s makes more than %" G_GSIZE_FORMAT " bytes of %" G_GSIZE_FORMAT,
                   ebb_in_message (ebb_json_quote (self->pattern->expression)), max_length, self->length);
}

gboolean
ebb_pattern_replace (const EbbPattern *self,
                     EbbPatternSpace *space,
                     const char *text,
                     gsize length,
                     const char *content,
                     gsize max_length,
                     GString *result,
                     GError **error)
{
  EbbPatternSearch search = ebb_pattern_search_new (self, space, text, length);
  gsize done = 0, start, end, n_matches = 0;
  const char *place;

  if (self->is_literal)
    for (gsize n = strlen (self->expression);
         (place = memmem (text + done, length - done, self->expression, n)) != NULL; n_matches++)
      {
        if (!append_replaced (&search, text + done, (gsize) (place - text) - done, content, max_length, result, error))
          return FALSE;
        done = (gsize) (place - text) + n;
      }
  else
    for (;; n_matches++, done = end)
      {
        if (!ebb_pattern_search_next (&search, &start, &end, error))
          return FALSE;
        if (search.next > length)
          break;
        if (!append_replaced (&search, text + done, start - done, content, max_length, result, error))
          return FALSE;
      }
  return n_matches > 0 && append_replaced (&search, text + done, length - done, "", max_length, result, error);
}
