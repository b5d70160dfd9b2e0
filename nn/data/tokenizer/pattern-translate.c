/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Translates the regular expressions of tokenizers from Oniguruma's syntax to PCRE2's. */
#define PCRE2_CODE_UNIT_WIDTH 8

#include "nn/data/tokenizer/pattern-private.h"

#include "tensor/error-private.h"
#include "tensor/util/json-scanner-private.h"

#include <pcre2.h>
#include <string.h>

#define SPACES "\\t-\\r\\x{85}\\p{Z}"
#define WORDS "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
/* Superscript digits and fractions of Latin-1 are words to Oniguruma, but not inside of a class. */
#define LATIN1_WORDS "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"

typedef struct
{
  const char *expression;
  const char *p; /* what comes next */
  GString *result;
  gboolean counts;
  gboolean folds; /* case is ignored */
  GString *outer; /* for each group around: whether case is ignored outside of the group */
} Translation;

static gboolean
refuse (const Translation *self,
        const char *place,
        gsize length,
        const char *problem,
        GError **error)
{
  g_autofree char *part = g_strndup (place, length);
  g_autofree char *quoted = ebb_json_quote (part);
  g_autofree char *whole = ebb_json_quote (self->expression);

  return ebb_fail (error, EBB_ERROR_NOT_SUPPORTED, "the expression %s: %s %s", whole, quoted, problem);
}

/* -- properties ---------------------------------------------------------------------------------------------------- */

static gboolean
can_compile (const char *expression)
{
  int code;
  PCRE2_SIZE offset;
  pcre2_code *compiled =
      pcre2_compile ((PCRE2_SPTR) expression, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &code, &offset, NULL);

  pcre2_code_free (compiled);
  return compiled != NULL;
}

/* "\p{Han}". From 10.40 on PCRE2 takes a script's name for all characters that the script uses, unless "sc:" stands
 * before the name. Older versions don't know "sc:", and mean the script alone. */
static void
append_property (Translation *self,
                 const char *escape,
                 gsize length,
                 gboolean in_class)
{
  gboolean is_negated = escape[3] == '^';
  g_autofree char *name = g_strndup (escape + 3 + is_negated, length - 4 - is_negated);
  g_autofree char *script = g_strdup_printf ("\\%c{%ssc:%s}", escape[1], is_negated ? "^" : "", name);

  if (can_compile (script))
    g_string_append (self->result, script);
  /* Outside of a class the case of a letter's category counts also where case is ignored. */
  else if (self->folds && !in_class)
    g_string_append_printf (self->result, "(?-i:%.*s)", (int) length, escape);
  else
    g_string_append_len (self->result, escape, (gssize) length);
}

/* -- case folding with several characters -------------------------------------------------------------------------- */

typedef struct
{
  gunichar c;
  char *folded; /* two or three characters, as "ss" for U+00DF */
} Fold;

/* The characters whose case folding has several characters, sorted, behind them one without a folding. */
static const Fold *
get_folds (void)
{
  static Fold *folds;
  static gsize is_made;

  if (g_once_init_enter (&is_made))
    {
      GArray *array = g_array_new (TRUE, TRUE, sizeof (Fold));

      for (gunichar c = 0x80; c < 0x10000; c++)
        {
          char text[8] = "";
          g_autofree char *folded = NULL;

          if ((c >= 0x2000 && c < 0xfb00) || !g_unichar_isalpha (c))
            continue;
          g_unichar_to_utf8 (c, text);
          folded = g_utf8_casefold (text, -1);
          if (*g_utf8_next_char (folded) != '\0')
            {
              Fold fold = { c, g_steal_pointer (&folded) };

              g_array_append_val (array, fold);
            }
        }
      folds = (Fold *) g_array_free (array, FALSE);
      g_once_init_leave (&is_made, 1);
    }
  return folds;
}

/* The folding of @c; NULL if it has one character. */
static const char *
find_fold (gunichar c)
{
  for (const Fold *fold = get_folds (); c >= 0x80 && fold->c != 0; fold++)
    if (fold->c == c)
      return fold->folded;
  return NULL;
}

/* What matches where case is ignored: the text itself, and each character that has the same folding. */
static void
append_folded (GString *result,
               const char *folded)
{
  g_string_append_printf (result, "(?:%s", folded);
  for (const Fold *fold = get_folds (); fold->c != 0; fold++)
    if (strcmp (fold->folded, folded) == 0)
      g_string_append_printf (result, "|\\x{%x}", fold->c);
  g_string_append_c (result, ')');
}

static gboolean
is_repeated (const char *p)
{
  return *p != '\0' && strchr ("*+?{", *p) != NULL;
}

/* The length of the letters at @p whose folding is @folded: 0 if others stand there, or if the last one is repeated. */
static gsize
measure_spelling (const char *p,
                  const char *folded)
{
  const char *start = p;

  for (; *folded != '\0'; folded = g_utf8_next_char (folded), p = g_utf8_next_char (p))
    if (g_unichar_tolower (g_utf8_get_char (p)) != g_utf8_get_char (folded))
      return 0;
  return is_repeated (p) ? 0 : (gsize) (p - start);
}

/* Takes letters that are the folding of one character, of several such foldings the longest. */
static gboolean
try_folded_letters (Translation *self)
{
  const char *longest = NULL;
  gsize length = 0;

  for (const Fold *fold = get_folds (); fold->c != 0; fold++)
    {
      gsize measured = measure_spelling (self->p, fold->folded);

      if (measured > length)
        {
          length = measured;
          longest = fold->folded;
        }
    }
  if (longest == NULL)
    return FALSE;
  append_folded (self->result, longest);
  self->p += length;
  return TRUE;
}

/* A class can't match several characters. */
static gboolean
check_folds_of_class (const Translation *self,
                      const char *start,
                      gunichar first,
                      gunichar last,
                      GError **error)
{
  for (const Fold *fold = get_folds (); fold->c != 0; fold++)
    if (fold->c >= first && fold->c <= last)
      return refuse (self, start, (gsize) (self->p - start), "in a class that ignores case is not supported", error);
  return TRUE;
}

/* -- escapes and classes ------------------------------------------------------------------------------------------- */

/* Appends the character of an escape with a number. */
static void
append_number (Translation *self,
               const char *digits,
               gsize length,
               gboolean in_class,
               gunichar *c)
{
  const char *folded;

  *c = (gunichar) g_ascii_strtoull (digits, NULL, 16);
  folded = self->folds && !in_class ? find_fold (*c) : NULL;
  if (folded != NULL)
    append_folded (self->result, folded);
  else
    g_string_append_printf (self->result, "\\x{%.*s}", (int) length, digits);
}

/* The escape at @p, its backslash included. @c becomes its character if it is one that case concerns, else 0. */
static gboolean
translate_escape (Translation *self,
                  gboolean in_class,
                  gunichar *c,
                  GError **error)
{
  const char *escape = self->p;
  const char kind = escape[1];
  GString *result = self->result;
  gsize n_digits = 0;

  *c = 0;
  self->p += 2;
  switch (kind)
    {
    case 's':
      g_string_append (result, in_class ? SPACES : "[" SPACES "]");
      return TRUE;
    case 'S':
      /* In a class of PCRE2's, \S lacks U+180E besides. */
      g_string_append (result, in_class ? "\\S\\x{180e}" : "[^" SPACES "]");
      return TRUE;
    case 'w':
      g_string_append (result, in_class ? WORDS : "[" WORDS LATIN1_WORDS "]");
      return TRUE;
    case 'W':
      if (in_class)
        break;
      g_string_append (result, "[^" WORDS LATIN1_WORDS "]");
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
      {
        g_autofree char *digits = g_strndup (escape + 2, 4);

        append_number (self, digits, 4, in_class, c);
      }
      self->p += 4;
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
      self->p += escape[2] == '{' ? strcspn (self->p, "}") : 0;
      if (escape[2] != '{' || *self->p == '\0')
        break;
      self->p++;
      append_property (self, escape, (gsize) (self->p - escape), in_class);
      return TRUE;
    case 'x':
      if (escape[2] == '{')
        {
          gsize length = strcspn (escape + 3, "}");

          if (escape[3 + length] == '\0')
            break;
          self->p = escape + 4 + length;
          append_number (self, escape + 3, length, in_class, c);
          return TRUE;
        }
      while (n_digits < 2 && g_ascii_isxdigit (escape[2 + n_digits]))
        n_digits++;
      {
        g_autofree char *digits = g_strndup (escape + 2, n_digits);

        append_number (self, n_digits > 0 ? digits : "0", MAX (n_digits, 1), in_class, c);
      }
      self->p += n_digits;
      return TRUE;
    default:
      if (!g_ascii_ispunct (kind))
        break;
      g_string_append_len (result, escape, 2);
      return TRUE;
    }
  return refuse (self, escape, kind == '\0' ? 1 : 2, "in it is not supported", error);
}

static gboolean
translate_class (Translation *self,
                 GError **error)
{
  const char *start = self->p;
  gboolean is_negated = start[1] == '^';
  gunichar last = 0; /* the member before, which may begin a range */
  gboolean is_range = FALSE;

  g_string_append_len (self->result, start, 1 + is_negated);
  self->p += 1 + is_negated;
  if (*self->p == ']')
    return refuse (self, start, 2, "begins no class", error);
  while (*self->p != ']')
    {
      const char *member = self->p;
      gunichar c = 0;

      if (*member == '\0')
        return refuse (self, start, strlen (start), "is a class without an end", error);
      if (*member == '[' || (*member == '&' && member[1] == '&'))
        return refuse (self, member, *member == '[' ? 1 : 2, "inside a class is not supported", error);
      if (*member == '-' && last != 0 && !is_range)
        {
          is_range = TRUE;
          g_string_append_c (self->result, *self->p++);
          continue;
        }
      if (*member != '\\')
        {
          c = g_utf8_get_char (member);
          self->p = g_utf8_next_char (member);
          g_string_append_len (self->result, member, self->p - member);
        }
      else if (!translate_escape (self, TRUE, &c, error))
        return FALSE;
      if (self->folds && !is_negated && c != 0
          && !check_folds_of_class (self, is_range ? start : member, is_range ? last : c, c, error))
        return FALSE;
      last = is_range ? 0 : c;
      is_range = FALSE;
    }
  g_string_append_c (self->result, *self->p++);
  return TRUE;
}

/* -- groups and repeats -------------------------------------------------------------------------------------------- */

/* The beginning of a group at @p. */
static gboolean
translate_group (Translation *self,
                 GError **error)
{
  static const char *const known[] = { "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:" };
  gsize length = 1;

  if (self->p[1] == '*')
    return refuse (self, self->p, 2, "in it is not supported", error);
  if (self->p == self->expression && g_str_has_prefix (self->p, "(?i)"))
    {
      self->folds = TRUE;
      g_string_append (self->result, "(?i)");
      self->p += 4;
      return TRUE;
    }
  for (guint i = 0; i < G_N_ELEMENTS (known); i++)
    if (g_str_has_prefix (self->p, known[i]))
      length = strlen (known[i]);
  if (self->p[1] == '?' && length == 1)
    return refuse (self, self->p, MIN (3, strlen (self->p)), "in it is not supported", error);
  g_string_append_c (self->outer, self->folds ? 1 : 0);
  if (length > 3 && self->p[length - 2] == 'i')
    self->folds = self->p[2] == 'i';
  g_string_append_len (self->result, self->p, (gssize) length);
  if (self->counts)
    g_string_append_printf (self->result, "(?C%d)", EBB_PATTERN_IN_GROUP);
  self->p += length;
  return TRUE;
}

static void
end_group (Translation *self)
{
  if (self->outer->len > 0)
    {
      self->folds = self->outer->str[self->outer->len - 1] != 0;
      g_string_truncate (self->outer, self->outer->len - 1);
    }
  g_string_append_c (self->result, *self->p++);
}

/* Takes "{2,5}" and "{2,}", and "{2}": other forms mean other things to both. */
static gboolean
translate_counts (Translation *self,
                  guint64 *least,
                  GError **error)
{
  const char *p = self->p, *end = p + 1 + strspn (p + 1, "0123456789");
  gboolean is_one = *end == '}', is_range = FALSE;

  if (end > p + 1 && *end == ',')
    {
      end += 1 + strspn (end + 1, "0123456789");
      is_range = *end == '}';
    }
  if (end == p + 1 || (!is_one && !is_range) || end[1] == '+' || (is_one && end[1] == '?'))
    return refuse (self, p, MIN (strcspn (p, "}") + 2, strlen (p)), "in it is not supported", error);
  *least = g_ascii_strtoull (p + 1, NULL, 10);
  if (*least > EBB_PATTERN_MOST_REPEATS)
    return refuse (self, p, (gsize) (end + 1 - p), "repeats more than " G_STRINGIFY (EBB_PATTERN_MOST_REPEATS) " times",
                   error);
  g_string_append_len (self->result, p, end + 1 - p);
  self->p = end + 1;
  return TRUE;
}

/* What repeats the character or class that was appended from @begin on. */
static gboolean
translate_repeat (Translation *self,
                  gsize begin,
                  GError **error)
{
  guint64 least = *self->p == '+';
  g_autofree char *before = NULL;

  if (*self->p == '{' && !translate_counts (self, &least, error))
    return FALSE;
  while (*self->p != '\0' && strchr ("*+?", *self->p) != NULL)
    g_string_append_c (self->result, *self->p++);
  if (!self->counts)
    return TRUE;
  before = g_strdup_printf ("(?C%d)", EBB_PATTERN_BEFORE_SCAN + (int) least);
  g_string_insert (self->result, (gssize) begin, before);
  g_string_append_printf (self->result, "(?C%d)", EBB_PATTERN_BEHIND_SCAN);
  return TRUE;
}

/* One character, escape or class, and what repeats it. */
static gboolean
translate_item (Translation *self,
                GError **error)
{
  gsize begin = self->result->len;
  const char *start = self->p, *folded;
  gunichar c;

  if ((*start == '\\' && !translate_escape (self, FALSE, &c, error))
      || (*start == '[' && !translate_class (self, error)))
    return FALSE;
  if (self->p == start)
    {
      if (self->folds && try_folded_letters (self))
        return TRUE;
      self->p = g_utf8_next_char (start);
      folded = self->folds ? find_fold (g_utf8_get_char (start)) : NULL;
      if (folded != NULL)
        append_folded (self->result, folded);
      else
        g_string_append_len (self->result, start, self->p - start);
    }
  return !is_repeated (self->p) || translate_repeat (self, begin, error);
}

char *
ebb_pattern_translate (const char *expression,
                       gboolean counts,
                       GError **error)
{
  g_autoptr (GString) result = g_string_new (NULL);
  g_autoptr (GString) outer = g_string_new (NULL);
  Translation self = { expression, expression, result, counts, FALSE, outer };
  guint64 least;
  gboolean ok = TRUE;

  while (ok && *self.p != '\0')
    switch (*self.p)
      {
      case '(':
        ok = translate_group (&self, error);
        break;
      case ')':
        end_group (&self);
        break;
      case '{':
        ok = translate_counts (&self, &least, error);
        break;
      case '|':
      case '*':
      case '+':
      case '?':
        g_string_append_c (result, *self.p++);
        break;
      default:
        ok = translate_item (&self, error);
      }
  return ok ? g_string_free (g_steal_pointer (&result), FALSE) : NULL;
}
