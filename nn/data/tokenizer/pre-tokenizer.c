/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Pre-tokenizers: they cut a text into words at the matches of expressions and of classes of characters. */
#include "nn/data/tokenizer/pre-tokenizer-private.h"

#include "nn/data/tokenizer/characters-private.h"
#include "nn/data/tokenizer/json-parts-private.h"
#include "tensor/error-private.h"

typedef enum
{
  BYTE_LEVEL,
  SPLIT,
  METASPACE,
  WHITESPACE,
  WHITESPACE_SPLIT,
  BERT,
  DIGITS,
  PUNCTUATION,
  CHAR_DELIMITER_SPLIT
} Kind;

static const char *const kind_names[] = { "ByteLevel", "Split", "Metaspace", "Whitespace",
                                          "WhitespaceSplit", "BertPreTokenizer", "Digits", "Punctuation",
                                          "CharDelimiterSplit", NULL };

/* The word that a match belongs to: none, its own, or that of the text before or after it. */
typedef enum
{
  REMOVED,
  ISOLATED,
  MERGED_WITH_PREVIOUS,
  MERGED_WITH_NEXT,
  CONTIGUOUS /* matches that follow each other are one word */
} Behavior;

static const char *const behavior_names[] = { "Removed", "Isolated", "MergedWithPrevious",
                                              "MergedWithNext", "Contiguous", NULL };

typedef enum
{
  PREPEND_FIRST,
  PREPEND_NEVER,
  PREPEND_ALWAYS
} PrependScheme;

static const char *const scheme_names[] = { "first", "never", "always", NULL };

/* A step finds matches by an expression or by a class of characters. */
struct _EbbPreTokenizer
{
  Kind kind;
  EbbPattern *pattern;
  gboolean (*is_match) (gunichar c);
  gunichar character; /* the only match, if there is neither of these */
  Behavior behavior;
  gboolean invert;       /* what is no match is one */
  gboolean adds_blank;   /* BYTE_LEVEL */
  gboolean splits;       /* METASPACE, BYTE_LEVEL: else the text is one word */
  PrependScheme prepend; /* METASPACE */
  char replacement[8];   /* METASPACE: for blanks */
  gsize replacement_length;
};

#define GPT2_EXPRESSION "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
/* Joiners are word characters here, other than in expressions. */
#define WORD_CLASS "\\w\\x{200c}\\x{200d}"
#define WHITESPACE_EXPRESSION "[" WORD_CLASS "]+|[^" WORD_CLASS "\\s]+"

/* -- reading ------------------------------------------------------------------------------------------------------- */

static EbbPattern *
make_pattern (const char *expression)
{
  g_autoptr (GError) error = NULL;
  EbbPattern *pattern = ebb_pattern_new (expression, FALSE, &error);

  if (pattern == NULL)
    g_error ("%s", error->message);
  return pattern;
}

static gboolean
read_byte_level (EbbPreTokenizer *self,
                 const EbbJson *json,
                 GError **error)
{
  self->adds_blank = self->splits = TRUE;
  if (!ebb_json_part_get_boolean (json, "add_prefix_space", &self->adds_blank, error)
      || !ebb_json_part_get_boolean (json, "use_regex", &self->splits, error))
    return FALSE;
  self->behavior = ISOLATED;
  if (self->splits)
    self->pattern = make_pattern (GPT2_EXPRESSION);
  return TRUE;
}

static gboolean
read_split (EbbPreTokenizer *self,
            const EbbJson *json,
            GError **error)
{
  int behavior = -1;

  if (!ebb_json_part_get_choice (json, "behavior", behavior_names, &behavior, error)
      || !ebb_json_part_get_boolean (json, "invert", &self->invert, error))
    return FALSE;
  if (behavior < 0)
    return ebb_json_part_fail (NULL, error, "behavior must be given");
  self->behavior = (Behavior) behavior;
  self->pattern = ebb_pattern_read (ebb_json_get (json, "pattern"), error);
  return self->pattern != NULL;
}

static gboolean
read_metaspace (EbbPreTokenizer *self,
                const EbbJson *json,
                GError **error)
{
  gboolean adds_blank = TRUE;
  int scheme = PREPEND_ALWAYS;

  self->character = 0x2581;
  self->splits = TRUE;
  if (!ebb_json_part_get_character (json, "replacement", &self->character, error)
      || !ebb_json_part_get_boolean (json, "add_prefix_space", &adds_blank, error)
      || !ebb_json_part_get_choice (json, "prepend_scheme", scheme_names, &scheme, error)
      || !ebb_json_part_get_boolean (json, "split", &self->splits, error))
    return FALSE;
  /* The older of the two members. */
  self->prepend = adds_blank ? (PrependScheme) scheme : PREPEND_NEVER;
  self->behavior = MERGED_WITH_NEXT;
  self->replacement_length = (gsize) g_unichar_to_utf8 (self->character, self->replacement);
  return TRUE;
}

static gboolean
read_digits (EbbPreTokenizer *self,
             const EbbJson *json,
             GError **error)
{
  gboolean individual = FALSE;

  if (!ebb_json_part_get_boolean (json, "individual_digits", &individual, error))
    return FALSE;
  self->is_match = ebb_character_is_numeric;
  self->behavior = individual ? ISOLATED : CONTIGUOUS;
  return TRUE;
}

static gboolean
read_punctuation (EbbPreTokenizer *self,
                  const EbbJson *json,
                  GError **error)
{
  int behavior = ISOLATED;

  if (!ebb_json_part_get_choice (json, "behavior", behavior_names, &behavior, error))
    return FALSE;
  self->is_match = ebb_character_is_punctuation;
  self->behavior = (Behavior) behavior;
  return TRUE;
}

static gboolean
read_char_delimiter_split (EbbPreTokenizer *self,
                           const EbbJson *json,
                           GError **error)
{
  self->behavior = REMOVED;
  if (!ebb_json_part_get_character (json, "delimiter", &self->character, error))
    return FALSE;
  return self->character != 0 || ebb_json_part_fail (NULL, error, "delimiter must be given");
}

static EbbPreTokenizer *
append_step (EbbPreTokenizerList *self,
             Kind kind)
{
  self->steps = g_renew (EbbPreTokenizer, self->steps, self->n_steps + 1);
  self->steps[self->n_steps] = (EbbPreTokenizer){ .kind = kind };
  return &self->steps[self->n_steps++];
}

static gboolean
read_step (const EbbJson *json,
           const char *type,
           gpointer data,
           GError **error)
{
  EbbPreTokenizerList *self = data;
  EbbPreTokenizer *step;
  int kind;

  if (!ebb_json_part_find_kind (type, kind_names, &kind, error))
    return FALSE;
  if (self->is_byte_level)
    return ebb_fail (error, EBB_ERROR_NOT_SUPPORTED, "%s behind ByteLevel is not supported", type);
  step = append_step (self, (Kind) kind);
  switch (step->kind)
    {
    case BYTE_LEVEL:
      self->is_byte_level = TRUE;
      return read_byte_level (step, json, error);
    case SPLIT:
      return read_split (step, json, error);
    case METASPACE:
      return read_metaspace (step, json, error);
    case WHITESPACE:
      step->pattern = make_pattern (WHITESPACE_EXPRESSION);
      step->invert = TRUE;
      step->behavior = REMOVED;
      return TRUE;
    case BERT: /* two steps in one: blanks are removed, then punctuation is isolated */
      step->kind = WHITESPACE_SPLIT;
      step->is_match = ebb_character_is_space;
      step->behavior = REMOVED;
      step = append_step (self, PUNCTUATION);
      return read_punctuation (step, NULL, error);
    case WHITESPACE_SPLIT:
      step->is_match = ebb_character_is_space;
      step->behavior = REMOVED;
      return TRUE;
    case DIGITS:
      return read_digits (step, json, error);
    case PUNCTUATION:
      return read_punctuation (step, json, error);
    case CHAR_DELIMITER_SPLIT:
      return read_char_delimiter_split (step, json, error);
    }
  g_return_val_if_reached (FALSE);
}

gboolean
ebb_pre_tokenizer_list_read (EbbPreTokenizerList *self,
                             const EbbJson *json,
                             GError **error)
{
  return ebb_json_part_foreach (json, "pretokenizers", read_step, self, error);
}

void
ebb_pre_tokenizer_list_make_gpt2 (EbbPreTokenizerList *self)
{
  EbbPreTokenizer *step = append_step (self, BYTE_LEVEL);

  self->is_byte_level = TRUE;
  step->splits = TRUE;
  step->behavior = ISOLATED;
  step->pattern = make_pattern (GPT2_EXPRESSION);
}

void
ebb_pre_tokenizer_list_clear (EbbPreTokenizerList *self)
{
  for (guint i = 0; i < self->n_steps; i++)
    ebb_pattern_free (self->steps[i].pattern);
  g_clear_pointer (&self->steps, g_free);
  self->n_steps = 0;
}

/* -- running ------------------------------------------------------------------------------------------------------- */

/* A pass of the steps from @step on over one part of the text. */
typedef struct
{
  const EbbPreTokenizerList *list;
  EbbPatternSpace *space;
  GString **buffers;
  EbbWordFunc function;
  gpointer data;
} Pass;

/* One step over one part: matches and other parts come in turn, and words go to the next step. */
typedef struct
{
  const Pass *pass;
  guint step;
  const char *text;
  gboolean is_first;
  /* A word that may still grow. */
  gsize begin, end;
  gboolean is_pending, pending_is_match;
} Cutting;

static gboolean run_step (const Pass *pass,
                          guint number,
                          const char *text,
                          gsize length,
                          gboolean is_first,
                          GError **error);

static inline gboolean
emit (Cutting *self,
      gsize begin,
      gsize end,
      GError **error)
{
  const Pass *pass = self->pass;

  if (begin == end)
    return TRUE;
  if (self->step + 1 == pass->list->n_steps)
    return pass->function (pass->data, self->text + begin, end - begin, error);
  return run_step (pass, self->step + 1, self->text + begin, end - begin, self->is_first && begin == 0, error);
}

static gboolean
emit_pending (Cutting *self,
              GError **error)
{
  gboolean is_pending = self->is_pending;

  self->is_pending = FALSE;
  return !is_pending || emit (self, self->begin, self->end, error);
}

static gboolean
add_part (Cutting *self,
          Behavior behavior,
          gsize begin,
          gsize end,
          gboolean is_match,
          GError **error)
{
  gboolean grows = FALSE;

  switch (behavior)
    {
    case REMOVED:
      return is_match || emit (self, begin, end, error);
    case ISOLATED:
      return emit (self, begin, end, error);
    case CONTIGUOUS:
      grows = self->is_pending && is_match == self->pending_is_match;
      break;
    case MERGED_WITH_PREVIOUS:
      grows = self->is_pending && is_match && !self->pending_is_match;
      break;
    case MERGED_WITH_NEXT:
      grows = self->is_pending && !is_match && self->pending_is_match;
      break;
    }
  if (!grows && !emit_pending (self, error))
    return FALSE;
  if (!grows)
    self->begin = begin;
  self->end = end;
  self->is_pending = TRUE;
  self->pending_is_match = is_match;
  return TRUE;
}

static gboolean
cut_by_pattern (const EbbPreTokenizer *step,
                Cutting *cutting,
                gsize length,
                GError **error)
{
  EbbPatternSearch search = ebb_pattern_search_new (step->pattern, cutting->pass->space, cutting->text, length);
  gsize done = 0, start, end;

  while (done < length || search.next <= length)
    {
      if (!ebb_pattern_search_next (&search, &start, &end, error)
          || (done != start && !add_part (cutting, step->behavior, done, start, step->invert, error)))
        return FALSE;
      if (search.next > length)
        break;
      if (!add_part (cutting, step->behavior, start, end, !step->invert, error))
        return FALSE;
      done = end;
    }
  return emit_pending (cutting, error);
}

static gboolean
cut_by_character (const EbbPreTokenizer *step,
                  Cutting *cutting,
                  gsize length,
                  GError **error)
{
  gsize done = 0, next;

  for (gsize i = 0; i < length; i = next)
    {
      gunichar c = g_utf8_get_char (cutting->text + i);

      next = (gsize) (g_utf8_next_char (cutting->text + i) - cutting->text);
      if (step->is_match != NULL ? !step->is_match (c) : c != step->character)
        continue;
      if ((done < i && !add_part (cutting, step->behavior, done, i, FALSE, error))
          || !add_part (cutting, step->behavior, i, next, TRUE, error))
        return FALSE;
      done = next;
    }
  return (done == length || add_part (cutting, step->behavior, done, length, FALSE, error))
         && emit_pending (cutting, error);
}

/* The text with blanks replaced, in @buffer. */
static void
replace_blanks (const EbbPreTokenizer *step,
                GString *buffer,
                const char *text,
                gsize length,
                gboolean is_first)
{
  const char *end = text + length, *blank;
  gboolean begins_so = *text == ' '
                       || (length >= step->replacement_length
                           && memcmp (text, step->replacement, step->replacement_length) == 0);

  g_string_truncate (buffer, 0);
  if (!begins_so && (step->prepend == PREPEND_ALWAYS || (step->prepend == PREPEND_FIRST && is_first)))
    g_string_append_len (buffer, step->replacement, (gssize) step->replacement_length);
  while ((blank = memchr (text, ' ', (gsize) (end - text))) != NULL)
    {
      g_string_append_len (buffer, text, blank - text);
      g_string_append_len (buffer, step->replacement, (gssize) step->replacement_length);
      text = blank + 1;
    }
  g_string_append_len (buffer, text, end - text);
}

static gboolean
run_step (const Pass *pass,
          guint number,
          const char *text,
          gsize length,
          gboolean is_first,
          GError **error)
{
  const EbbPreTokenizer *step = &pass->list->steps[number];
  GString *buffer = pass->buffers[number];
  Cutting cutting = { pass, number, text, is_first, 0, 0, FALSE, FALSE };

  if (step->kind == METASPACE)
    {
      replace_blanks (step, buffer, text, length, is_first);
      cutting.text = buffer->str;
      length = buffer->len;
    }
  else if (step->adds_blank && *text != ' ')
    {
      g_string_assign (buffer, " ");
      g_string_append_len (buffer, text, (gssize) length);
      cutting.text = buffer->str;
      length = buffer->len;
    }
  if ((step->kind == METASPACE || step->kind == BYTE_LEVEL) && !step->splits)
    return emit (&cutting, 0, length, error);
  return step->pattern != NULL ? cut_by_pattern (step, &cutting, length, error)
                               : cut_by_character (step, &cutting, length, error);
}

gboolean
ebb_pre_tokenizer_list_run (const EbbPreTokenizerList *self,
                            EbbPatternSpace *space,
                            GString **buffers,
                            const char *text,
                            gsize length,
                            gboolean is_first,
                            EbbWordFunc function,
                            gpointer data,
                            GError **error)
{
  const Pass pass = { self, space, buffers, function, data };

  if (length == 0)
    return TRUE;
  return self->n_steps == 0 ? function (data, text, length, error) : run_step (&pass, 0, text, length, is_first, error);
}

/* -- where a text may be cut --------------------------------------------------------------------------------------- */

/* Expressions that match a newline between two visible characters of ASCII with nothing behind it, whatever stands
 * before, and look no further: GPT-2's, Llama 3's, Qwen's and those of GPT-4o and StarCoder. */
static gboolean
splits_at_newlines (const EbbPattern *pattern)
{
  static const char *const known[] = {
    GPT2_EXPRESSION,
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*"
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
  };

  for (guint i = 0; pattern != NULL && i < G_N_ELEMENTS (known); i++)
    if (strcmp (ebb_pattern_get_expression (pattern), known[i]) == 0)
      return TRUE;
  return FALSE;
}

EbbTextCut
ebb_pre_tokenizer_list_get_cut (const EbbPreTokenizerList *self)
{
  const EbbPreTokenizer *first = self->steps;
  gboolean splits = FALSE;

  if (self->n_steps == 1 && first->kind == METASPACE && first->splits)
    return EBB_TEXT_CUT_BEFORE_BLANK;
  /* A step that cuts at a newline does so if the steps before it cut the text, too: they only make its parts shorter
   * where they are safe themselves. */
  for (guint i = 0; i < self->n_steps; i++)
    {
      const EbbPreTokenizer *step = &self->steps[i];

      if (step->adds_blank || step->kind == METASPACE)
        return EBB_TEXT_CUT_NONE;
      if (step->kind == WHITESPACE || step->kind == WHITESPACE_SPLIT)
        splits = TRUE;
      else if (step->pattern != NULL && (step->behavior == ISOLATED || (step->behavior == REMOVED && step->invert)))
        {
          if (!splits_at_newlines (step->pattern))
            return EBB_TEXT_CUT_NONE;
          splits = TRUE;
        }
      else if (step->is_match == NULL && !(step->kind == BYTE_LEVEL && !step->splits))
        return EBB_TEXT_CUT_NONE;
    }
  return splits ? EBB_TEXT_CUT_BEHIND_NEWLINE : EBB_TEXT_CUT_NONE;
}
