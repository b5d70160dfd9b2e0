/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The regular expressions of tokenizers, run by PCRE2. */
#define _GNU_SOURCE /* memmem () */
#define PCRE2_CODE_UNIT_WIDTH 8

#include "nn/data/tokenizer/pattern-private.h"

#include "nn/data/tokenizer/json-parts-private.h"
#include "nn/files/json-scanner-private.h"

#include <pcre2.h>
#include <string.h>

/* Long enough for any tokenizer's expression. */
#define MAX_LENGTH 16384
/* PCRE2 bounds the steps of one match that begins at one place. Most need a few; a run of blanks takes a step for each.
 * So a match is tried with few steps at first, for many places at one time. Only where these don't suffice it is tried
 * with more and more, place by place, and those steps are taken from what the text may use: an expression that needs
 * them everywhere would take hours. */
#define FEW_STEPS 1000u
#define STEP_GROWTH 8
#define N_PLACES 64
#define STEPS_OF_TEXT ((guint64) 50000000)
#define STEPS_OF_BYTE ((guint64) 128)
#define MAX_STACK ((gsize) 8 << 20)

struct _EbbPattern
{
  char *expression;
  pcre2_code *code;
  gboolean is_compiled; /* to machine code */
  gboolean is_literal;
};

struct _EbbPatternSpace
{
  pcre2_match_data *data;
  pcre2_match_context *context;
  pcre2_jit_stack *stack;
  guint64 steps_left;
};

/* -- translating --------------------------------------------------------------------------------------------------- */

#define SPACES "\\t-\\r\\x{85}\\p{Z}"
#define WORDS "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"

static gboolean
refuse (const char *expression,
        const char *place,
        int length,
        const char *problem,
        GError **error)
{
  g_autofree char *part = g_strndup (place, (gsize) length);
  g_autofree char *quoted = ebb_json_quote (part);
  g_autofree char *whole = ebb_json_quote (expression);

  g_set_error (error, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED, "the expression %s: %s %s", whole, quoted, problem);
  return FALSE;
}

/* The escape at @p, its backslash included; moves @p behind it. */
static gboolean
translate_escape (const char *expression,
                  const char **p,
                  gboolean in_class,
                  GString *result,
                  GError **error)
{
  const char *escape = *p;
  const char c = escape[1];
  guint n_digits = 0;

  *p += 2;
  switch (c)
    {
    case 's':
      g_string_append (result, in_class ? SPACES : "[" SPACES "]");
      return TRUE;
    case 'S':
      /* In a class of PCRE2's, \S lacks U+180E besides. */
      g_string_append (result, in_class ? "\\S\\x{180e}" : "[^" SPACES "]");
      return TRUE;
    case 'w':
      g_string_append (result, in_class ? WORDS : "[" WORDS "]");
      return TRUE;
    case 'W':
      if (in_class)
        break;
      g_string_append (result, "[^" WORDS "]");
      return TRUE;
    case 'd':
      g_string_append (result, "\\p{Nd}");
      return TRUE;
    case 'D':
      g_string_append (result, "\\P{Nd}");
      return TRUE;
    case 'v':
      g_string_append (result, "\\x0b");
      return TRUE;
    case 'u':
      while (n_digits < 4 && g_ascii_isxdigit (escape[2 + n_digits]))
        n_digits++;
      if (n_digits < 4)
        break;
      g_string_append_printf (result, "\\x{%.4s}", escape + 2);
      *p += 4;
      return TRUE;
    case 'A':
    case 'z':
    case 'Z':
      if (in_class)
        break;
      G_GNUC_FALLTHROUGH;
    case 'n':
    case 'r':
    case 't':
    case 'f':
    case 'a':
    case 'e':
      g_string_append_len (result, escape, 2);
      return TRUE;
    case 'p':
    case 'P':
    case 'x':
      if (escape[2] == '{')
        *p += strcspn (*p, "}");
      if (escape[2] == '{' ? **p == '\0' : c != 'x')
        break;
      *p += escape[2] == '{';
      g_string_append_len (result, escape, *p - escape);
      return TRUE;
    default:
      if (!g_ascii_ispunct (c))
        break;
      g_string_append_len (result, escape, 2);
      return TRUE;
    }
  return refuse (expression, escape, c == '\0' ? 1 : 2, "in it is not supported", error);
}

static gboolean
translate_class (const char *expression,
                 const char **p,
                 GString *result,
                 GError **error)
{
  const char *start = *p;

  g_string_append_c (result, *(*p)++);
  if (**p == '^')
    g_string_append_c (result, *(*p)++);
  if (**p == ']')
    return refuse (expression, start, 2, "begins no class", error);
  while (**p != ']')
    {
      if (**p == '\0')
        return refuse (expression, start, (int) strlen (start), "is a class without an end", error);
      if (**p == '[' || (**p == '&' && (*p)[1] == '&'))
        return refuse (expression, *p, **p == '[' ? 1 : 2, "inside a class is not supported", error);
      if (**p != '\\')
        g_string_append_c (result, *(*p)++);
      else if (!translate_escape (expression, p, TRUE, result, error))
        return FALSE;
    }
  g_string_append_c (result, *(*p)++);
  return TRUE;
}

/* FALSE with an error if the group that begins with "(?" at @p is of a kind that is not supported. */
static gboolean
check_group (const char *expression,
             const char *p,
             GError **error)
{
  static const char *const known[] = { "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:" };

  for (guint i = 0; i < G_N_ELEMENTS (known); i++)
    if (g_str_has_prefix (p, known[i]))
      return TRUE;
  return (p == expression && g_str_has_prefix (p, "(?i)"))
         || refuse (expression, p, 3, "in it is not supported", error);
}

/* "{2,5}" and "{2,}", and "{2}": other forms mean other things to both. */
static gboolean
check_counts (const char *expression,
              const char *p,
              GError **error)
{
  const char *end = p + 1 + strspn (p + 1, "0123456789");
  gboolean is_one = *end == '}', is_range = FALSE;

  if (end > p + 1 && *end == ',')
    {
      end += 1 + strspn (end + 1, "0123456789");
      is_range = *end == '}';
    }
  if (end == p + 1 || (!is_one && !is_range) || end[1] == '+' || (is_one && end[1] == '?'))
    return refuse (expression, p, (int) strcspn (p, "}") + 2, "in it is not supported", error);
  return TRUE;
}

static char *
translate (const char *expression,
           GError **error)
{
  g_autoptr (GString) result = g_string_new (NULL);
  gboolean ok = TRUE;

  for (const char *p = expression; ok && *p != '\0';)
    switch (*p)
      {
      case '\\':
        ok = translate_escape (expression, &p, FALSE, result, error);
        break;
      case '[':
        ok = translate_class (expression, &p, result, error);
        break;
      case '{':
        ok = check_counts (expression, p, error);
        g_string_append_c (result, *p++);
        break;
      case '(':
        if (p[1] == '*')
          ok = refuse (expression, p, 2, "in it is not supported", error);
        else if (p[1] == '?')
          ok = check_group (expression, p, error);
        G_GNUC_FALLTHROUGH;
      default:
        g_string_append_c (result, *p++);
      }
  return ok ? g_string_free (g_steal_pointer (&result), FALSE) : NULL;
}

/* -- compiling ----------------------------------------------------------------------------------------------------- */

EbbPattern *
ebb_pattern_new (const char *expression,
                 gboolean is_literal,
                 GError **error)
{
  g_autoptr (EbbPattern) self = g_new0 (EbbPattern, 1);
  g_autofree char *translated = NULL;
  g_autofree char *quoted = ebb_json_quote (expression);
  pcre2_compile_context *context;
  int code;
  PCRE2_SIZE offset;

  if (*expression == '\0' || strlen (expression) > MAX_LENGTH)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_FORMAT,
                   "an expression of %" G_GSIZE_FORMAT " bytes: 1 to %d are allowed", strlen (expression), MAX_LENGTH);
      return NULL;
    }
  translated = is_literal ? g_strdup (expression) : translate (expression, error);
  if (translated == NULL)
    return NULL;
  context = pcre2_compile_context_create (NULL);
  pcre2_set_newline (context, PCRE2_NEWLINE_LF);
  self->expression = g_strdup (expression);
  self->is_literal = is_literal;
  self->code = pcre2_compile ((PCRE2_SPTR) translated, PCRE2_ZERO_TERMINATED,
                              PCRE2_UTF | PCRE2_USE_OFFSET_LIMIT
                                  | (is_literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_MULTILINE),
                              &code, &offset, context);
  pcre2_compile_context_free (context);
  if (self->code == NULL)
    {
      PCRE2_UCHAR message[160];

      pcre2_get_error_message (code, message, sizeof message);
      g_set_error (error, EBB_ERROR, EBB_ERROR_FORMAT, "the expression %s: %s", quoted, (const char *) message);
      return NULL;
    }
  self->is_compiled = pcre2_jit_compile (self->code, PCRE2_JIT_COMPLETE) == 0;
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
  g_free (self->expression);
  g_free (self);
}

/* -- searching ----------------------------------------------------------------------------------------------------- */

EbbPatternSpace *
ebb_pattern_space_new (void)
{
  EbbPatternSpace *self = g_new0 (EbbPatternSpace, 1);

  self->data = pcre2_match_data_create (1, NULL);
  self->context = pcre2_match_context_create (NULL);
  pcre2_set_match_limit (self->context, FEW_STEPS);
  self->stack = pcre2_jit_stack_create (32 << 10, MAX_STACK, NULL);
  pcre2_jit_stack_assign (self->context, NULL, self->stack);
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
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED,
                   "the expression %s gives up at byte %" G_GSIZE_FORMAT
                   " of the text: it has taken more than %" G_GUINT64_FORMAT " steps",
                   quoted, place, STEPS_OF_TEXT);
      return FALSE;
    }
  pcre2_get_error_message (code, message, sizeof message);
  g_set_error (error, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED,
               "the expression %s gives up at byte %" G_GSIZE_FORMAT " of the text: %s", quoted, place,
               (const char *) message);
  return FALSE;
}

/* A match that begins at one of the bytes from @from to @last, as PCRE2 gives it. */
static inline int
match (const EbbPatternSearch *self,
       gsize from,
       gsize last)
{
  const EbbPatternSpace *space = self->space;

  pcre2_set_offset_limit (space->context, last);
  if (self->pattern->is_compiled)
    return pcre2_jit_match (self->pattern->code, (PCRE2_SPTR) self->text, self->length, from, 0, space->data,
                            space->context);
  return pcre2_match (self->pattern->code, (PCRE2_SPTR) self->text, self->length, from, PCRE2_NO_UTF_CHECK,
                      space->data, space->context);
}

/* The same at @place alone, which few steps don't suffice for. */
static int
match_with_many_steps (const EbbPatternSearch *self,
                       gsize place)
{
  EbbPatternSpace *space = self->space;
  guint64 steps = FEW_STEPS;
  int result;

  do
    {
      steps = MIN (MIN (steps * STEP_GROWTH, space->steps_left), G_MAXUINT32);
      pcre2_set_match_limit (space->context, (guint32) steps);
      result = match (self, place, place);
      if (result == PCRE2_ERROR_MATCHLIMIT)
        space->steps_left -= steps;
    }
  while (result == PCRE2_ERROR_MATCHLIMIT && space->steps_left > 0);
  pcre2_set_match_limit (space->context, FEW_STEPS);
  return result;
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
      const gsize last = MIN (place + N_PLACES, self->length);

      result = match (self, place, last);
      if (result == PCRE2_ERROR_MATCHLIMIT)
        {
          space->steps_left -= MIN (space->steps_left, FEW_STEPS * N_PLACES);
          for (result = PCRE2_ERROR_NOMATCH; result == PCRE2_ERROR_NOMATCH && place <= last;
               place = get_next_place (self, place))
            result = match_with_many_steps (self, place);
        }
      else
        place = get_next_place (self, last);
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
  g_autofree char *quoted = NULL;

  if (length + strlen (content) + result->len <= max_length)
    {
      g_string_append_len (result, text, (gssize) length);
      g_string_append (result, content);
      return TRUE;
    }
  quoted = ebb_json_quote (self->pattern->expression);
  g_set_error (error, EBB_ERROR, EBB_ERROR_FORMAT,
               "replacing %s makes more than %" G_GSIZE_FORMAT " bytes of %" G_GSIZE_FORMAT, quoted, max_length,
               self->length);
  return FALSE;
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
