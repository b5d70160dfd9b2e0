/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Normalizers: they change a text before it is cut into words, by normal forms, case, accents, replacements. */
#include "nn/data/tokenizer/normalizer-private.h"

#include "nn/data/tokenizer/characters-private.h"
#include "nn/data/tokenizer/json-parts-private.h"
#include "tensor/error-private.h"

typedef enum
{
  NFC,
  NFD,
  NFKC,
  NFKD,
  LOWERCASE,
  STRIP_ACCENTS,
  STRIP,
  PREPEND,
  REPLACE,
  BERT
} Kind;

static const char *const kind_names[] = { "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents",
                                          "Strip", "Prepend", "Replace", "BertNormalizer", NULL };

struct _EbbNormalizer
{
  Kind kind;
  EbbPattern *pattern; /* REPLACE */
  char *content;       /* PREPEND, REPLACE */
  /* STRIP */
  gboolean left, right;
  /* BERT */
  gboolean cleans, spaces_han, strips_accents, lowers;
};

/* -- reading ------------------------------------------------------------------------------------------------------- */

static gboolean
read_strip (EbbNormalizer *self,
            const EbbJson *json,
            GError **error)
{
  return ebb_json_part_get_boolean (json, "strip_left", &self->left, error)
         && ebb_json_part_get_boolean (json, "strip_right", &self->right, error);
}

static gboolean
read_prepend (EbbNormalizer *self,
              const EbbJson *json,
              GError **error)
{
  const char *text = "";

  if (!ebb_json_part_get_string (json, "prepend", &text, error))
    return FALSE;
  self->content = g_strdup (text);
  return TRUE;
}

static gboolean
read_replace (EbbNormalizer *self,
              const EbbJson *json,
              GError **error)
{
  const char *content = NULL;

  if (!ebb_json_part_get_string (json, "content", &content, error))
    return FALSE;
  if (content == NULL)
    return ebb_json_part_fail (ebb_json_get (json, "content"), error, "content must be a string");
  self->content = g_strdup (content);
  self->pattern = ebb_pattern_read (ebb_json_get (json, "pattern"), error);
  return self->pattern != NULL;
}

static gboolean
read_bert (EbbNormalizer *self,
           const EbbJson *json,
           GError **error)
{
  self->cleans = self->spaces_han = self->lowers = TRUE;
  if (!ebb_json_part_get_boolean (json, "clean_text", &self->cleans, error)
      || !ebb_json_part_get_boolean (json, "handle_chinese_chars", &self->spaces_han, error)
      || !ebb_json_part_get_boolean (json, "lowercase", &self->lowers, error))
    return FALSE;
  self->strips_accents = self->lowers;
  return ebb_json_part_get_boolean (json, "strip_accents", &self->strips_accents, error);
}

static gboolean
read_step (const EbbJson *json,
           const char *type,
           gpointer data,
           GError **error)
{
  EbbNormalizerList *self = data;
  EbbNormalizer *step;
  int kind;

  if (!ebb_json_part_find_kind (type, kind_names, &kind, error))
    return FALSE;
  self->steps = g_renew (EbbNormalizer, self->steps, self->n_steps + 1);
  step = &self->steps[self->n_steps++];
  *step = (EbbNormalizer){ .kind = (Kind) kind };
  switch (step->kind)
    {
    case STRIP:
      return read_strip (step, json, error);
    case PREPEND:
      return read_prepend (step, json, error);
    case REPLACE:
      return read_replace (step, json, error);
    case BERT:
      return read_bert (step, json, error);
    default:
      return TRUE;
    }
}

gboolean
ebb_normalizer_list_read (EbbNormalizerList *self,
                          const EbbJson *json,
                          GError **error)
{
  return ebb_json_part_foreach (json, "normalizers", read_step, self, error);
}

void
ebb_normalizer_list_clear (EbbNormalizerList *self)
{
  for (guint i = 0; i < self->n_steps; i++)
    {
      g_free (self->steps[i].content);
      ebb_pattern_free (self->steps[i].pattern);
    }
  g_clear_pointer (&self->steps, g_free);
  self->n_steps = 0;
}

/* -- normal forms -------------------------------------------------------------------------------------------------- */

/* A character is inert in a normal form if the form leaves it as it is, wherever it stands, and what stands before it
 * too. Runs of inert characters are copied; GLib sees the others, each with the character before it. */

static gboolean
compute_is_inert (gunichar c,
                  GNormalizeMode mode)
{
  gboolean compatible = mode == G_NORMALIZE_ALL || mode == G_NORMALIZE_ALL_COMPOSE;
  gunichar decomposed[G_UNICHAR_MAX_DECOMPOSITION_LENGTH];
  g_autofree char *normal = NULL;
  char text[8];
  int length;

  /* Composing takes marks, and vowels and finals of Hangul, which are letters. */
  if (ebb_character_is_mark (c) || (c >= 0x1100 && c <= 0x11ff) || (c >= 0xd7b0 && c <= 0xd7ff)
      || g_unichar_combining_class (c) != 0)
    return FALSE;
  if (g_unichar_fully_decompose (c, compatible, decomposed, G_N_ELEMENTS (decomposed)) == 1 && decomposed[0] == c)
    return TRUE;
  length = g_unichar_to_utf8 (c, text);
  normal = g_utf8_normalize (text, length, mode);
  return normal != NULL && strlen (normal) == (gsize) length && memcmp (normal, text, (gsize) length) == 0;
}

#define N_TABLE 0x10000

/* Whether characters below N_TABLE are inert: a bit each. */
static const guint8 *
get_inert_table (GNormalizeMode mode)
{
  static guint8 tables[4][N_TABLE / 8];
  static gsize is_made[4];

  if (g_once_init_enter (&is_made[mode]))
    {
      for (gunichar c = 1; c < N_TABLE; c++)
        {
          gboolean is_surrogate = c >= 0xd800 && c < 0xe000;

          /* Most of the table: Han and Hangul need no look. */
          if ((c >= 0x4e00 && c < 0xa000) || c < 0x80 || (!is_surrogate && compute_is_inert (c, mode)))
            tables[mode][c / 8] |= (guint8) (1 << (c % 8));
        }
      tables[mode][0] |= 1;
      g_once_init_leave (&is_made[mode], 1);
    }
  return tables[mode];
}

static gboolean
is_inert (const guint8 *table,
          gunichar c,
          GNormalizeMode mode)
{
  return c < N_TABLE ? (table[c / 8] >> (c % 8) & 1) != 0 : compute_is_inert (c, mode);
}

static void
append_normal (GString *result,
               const char *text,
               gsize length,
               GNormalizeMode mode)
{
  g_autofree char *normal = g_utf8_normalize (text, (gssize) length, mode);

  if (normal != NULL)
    g_string_append (result, normal);
  else
    g_string_append_len (result, text, (gssize) length);
}

/* FALSE if the text is in that form. */
static gboolean
normalize (const char *text,
           gsize length,
           GNormalizeMode mode,
           GString *result)
{
  const guint8 *table = get_inert_table (mode);
  const char *end = text + length, *done = text, *last = text, *next;
  gboolean has_changed = FALSE;

  for (const char *p = text; p < end; p = next)
    {
      next = g_utf8_next_char (p);
      if ((guint8) *p < 0x80 || is_inert (table, g_utf8_get_char (p), mode))
        {
          last = p;
          continue;
        }
      has_changed = TRUE;
      g_string_append_len (result, done, last - done);
      while (next < end && !is_inert (table, g_utf8_get_char (next), mode))
        next = g_utf8_next_char (next);
      /* GLib stops at a character of value 0. */
      if (*last == '\0' && last < p)
        g_string_append_c (result, *last++);
      append_normal (result, last, (gsize) (next - last), mode);
      done = last = next;
    }
  if (has_changed)
    g_string_append_len (result, done, end - done);
  return has_changed;
}

/* -- steps --------------------------------------------------------------------------------------------------------- */

/* Each appends its result to the empty @result, or returns FALSE if the text stays as it is. */

static gboolean
check_length (gsize length,
              gsize max_length,
              GError **error)
{
  return length <= max_length
         || ebb_fail (error, EBB_ERROR_FORMAT, "the normalizers make more than %" G_GSIZE_FORMAT " bytes of a text",
                      max_length);
}

static void
append_lower (GString *result,
              gunichar c)
{
  if (c < 0x80)
    g_string_append_c (result, g_ascii_tolower ((char) c));
  else if (c == 0x130)
    g_string_append (result, "i\xcc\x87");
  else if ((c >= 0x2160 && c <= 0x216f) || (c >= 0x24b6 && c <= 0x24cf)) /* Roman numerals, and letters in circles */
    g_string_append_unichar (result, c + (c < 0x2200 ? 16 : 26));
  else
    g_string_append_unichar (result, g_unichar_tolower (c));
}

static gboolean
lower (const char *text,
       gsize length,
       GString *result)
{
  for (const char *p = text; p < text + length; p = g_utf8_next_char (p))
    append_lower (result, g_utf8_get_char (p));
  return TRUE;
}

/* Whether BERT drops the character as an accent. Three characters have another class since its rule was made. */
static gboolean
is_accent (gunichar c)
{
  return c == 0x1734 || (c != 0x1885 && c != 0x1886 && g_unichar_type (c) == G_UNICODE_NON_SPACING_MARK);
}

static gboolean
drop_marks (const char *text,
            gsize length,
            gboolean all,
            GString *result,
            gboolean *moved)
{
  const char *next;

  for (const char *p = text; p < text + length; p = next)
    {
      gunichar c = g_utf8_get_char (p);

      next = g_utf8_next_char (p);
      if (c < 0x300 || !(all ? ebb_character_is_mark (c) : is_accent (c)))
        g_string_append_len (result, p, next - p);
      else
        *moved |= p == text;
    }
  return TRUE;
}

static gboolean
strip (const EbbNormalizer *self,
       const char *text,
       gsize length,
       GString *result,
       gboolean *moved)
{
  const char *begin = text, *end = text + length;

  while (self->left && begin < end && ebb_character_is_space (g_utf8_get_char (begin)))
    begin = g_utf8_next_char (begin);
  while (self->right && end > begin && ebb_character_is_space (g_utf8_get_char (g_utf8_prev_char (end))))
    end = g_utf8_prev_char (end);
  *moved |= begin > text;
  g_string_append_len (result, begin, end - begin);
  return TRUE;
}

static gboolean
prepend (const EbbNormalizer *self,
         const char *text,
         gsize length,
         gsize max_length,
         GString *result,
         GError **error)
{
  if (length == 0)
    return FALSE;
  if (!check_length (strlen (self->content) + length, max_length, error))
    return FALSE;
  g_string_append (result, self->content);
  g_string_append_len (result, text, (gssize) length);
  return TRUE;
}

static gboolean
replace (const EbbNormalizer *self,
         EbbPatternSpace *space,
         const char *text,
         gsize length,
         gsize max_length,
         GString *result,
         gboolean *moved,
         GError **error)
{
  if (!ebb_pattern_replace (self->pattern, space, text, length, self->content, max_length, result, error))
    return FALSE;
  /* What replaces a character stands at its place; a character that nothing replaces is gone. */
  if (*self->content == '\0')
    {
      EbbPatternSearch search = ebb_pattern_search_new (self->pattern, space, text, length);
      gsize start = 0, end = 0;

      if (!ebb_pattern_search_next (&search, &start, &end, error))
        return FALSE;
      *moved |= start == 0 && end > 0;
    }
  return TRUE;
}

/* The rest of BERT's normalizer, without accents and case, in one pass. */
static void
clean (const EbbNormalizer *self,
       const char *text,
       gsize length,
       GString *result,
       gboolean *moved)
{
  const char *next;

  for (const char *p = text; p < text + length; p = next)
    {
      gunichar c = g_utf8_get_char (p);

      next = g_utf8_next_char (p);
      if (c > ' ' && c < 0x7f)
        g_string_append_c (result, (char) c);
      else if (self->cleans && (ebb_character_is_space (c)))
        /* Tabs and newlines are controls that count as blanks; other controls of ASCII that are spaces don't. */
        {
          if (c >= 0x80 ? c != 0x85 : c == ' ' || c == '\t' || c == '\n' || c == '\r')
            g_string_append_c (result, ' ');
          else
            *moved |= p == text;
        }
      else if (self->cleans && (c == 0xfffd || ebb_character_is_control (c)))
        *moved |= p == text;
      else if (self->spaces_han && ebb_character_is_han (c))
        {
          g_string_append_c (result, ' ');
          g_string_append_len (result, p, next - p);
          g_string_append_c (result, ' ');
        }
      else
        g_string_append_len (result, p, next - p);
    }
}

/* A part that is ASCII has no accents. */
static gboolean
is_ascii (const char *text,
          gsize length)
{
  guint8 all = 0;

  for (gsize i = 0; i < length; i++)
    all |= (guint8) text[i];
  return all < 0x80;
}

static gboolean
run_bert (const EbbNormalizer *self,
          GString *scratch,
          const char *text,
          gsize length,
          GString *result,
          gboolean *moved)
{
  clean (self, text, length, result, moved);
  if (self->strips_accents && !is_ascii (result->str, result->len))
    {
      g_string_truncate (scratch, 0);
      if (normalize (result->str, result->len, G_NORMALIZE_DEFAULT, scratch))
        {
          g_string_truncate (result, 0);
          drop_marks (scratch->str, scratch->len, FALSE, result, moved);
        }
    }
  if (!self->lowers)
    return TRUE;
  if (is_ascii (result->str, result->len))
    {
      for (gsize i = 0; i < result->len; i++)
        result->str[i] = g_ascii_tolower (result->str[i]);
      return TRUE;
    }
  g_string_truncate (scratch, 0);
  g_string_append_len (scratch, result->str, (gssize) result->len);
  g_string_truncate (result, 0);
  return lower (scratch->str, scratch->len, result);
}

/* Returns FALSE with @error unset if the text stays as it is. */
static gboolean
run_step (const EbbNormalizer *self,
          EbbPatternSpace *space,
          GString *scratch,
          const char *text,
          gsize length,
          gsize max_length,
          GString *result,
          gboolean *moved,
          GError **error)
{
  switch (self->kind)
    {
    case NFC:
      return normalize (text, length, G_NORMALIZE_DEFAULT_COMPOSE, result);
    case NFD:
      return normalize (text, length, G_NORMALIZE_DEFAULT, result);
    case NFKC:
      return normalize (text, length, G_NORMALIZE_ALL_COMPOSE, result);
    case NFKD:
      return normalize (text, length, G_NORMALIZE_ALL, result);
    case LOWERCASE:
      return lower (text, length, result);
    case STRIP_ACCENTS:
      return drop_marks (text, length, TRUE, result, moved);
    case STRIP:
      return strip (self, text, length, result, moved);
    case PREPEND:
      return prepend (self, text, length, max_length, result, error);
    case REPLACE:
      return replace (self, space, text, length, max_length, result, moved, error);
    case BERT:
      return run_bert (self, scratch, text, length, result, moved);
    }
  g_return_val_if_reached (FALSE);
}

gsize
ebb_normalizer_get_room (gsize length)
{
  return MIN (((gsize) 64 << 10) + 32 * length, G_MAXUINT32 - 1);
}

gboolean
ebb_normalizer_list_run (const EbbNormalizerList *self,
                         EbbPatternSpace *space,
                         GString *buffers[3],
                         const char **text,
                         gsize *length,
                         gsize *room,
                         gboolean *moved,
                         GError **error)
{
  guint free_buffer = 0;

  for (guint i = 0; i < self->n_steps; i++)
    {
      GError *failure = NULL;
      GString *result = buffers[free_buffer];

      g_string_truncate (result, 0);
      if (run_step (&self->steps[i], space, buffers[2], *text, *length, *room, result, moved, &failure))
        {
          *text = result->str;
          *length = result->len;
          free_buffer = 1 - free_buffer;
          if (!check_length (*length, *room, error))
            return FALSE;
        }
      else if (failure != NULL)
        {
          g_propagate_error (error, failure);
          return FALSE;
        }
    }
  *room -= MIN (*length, *room);
  return TRUE;
}

gboolean
ebb_normalizer_list_works_on_lines (const EbbNormalizerList *self)
{
  for (guint i = 0; i < self->n_steps; i++)
    if (self->steps[i].kind == STRIP || self->steps[i].kind == PREPEND || self->steps[i].kind == REPLACE)
      return FALSE;
  return TRUE;
}
