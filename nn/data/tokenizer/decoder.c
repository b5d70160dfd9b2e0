/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Turns the spellings of tokens back into text: each step takes strings and hands strings on. */
#include "nn/data/tokenizer/decoder-private.h"

#include "nn/data/tokenizer/characters-private.h"
#include "nn/data/tokenizer/json-parts-private.h"
#include "nn/data/utf8-private.h"
#include "tensor/error-private.h"

typedef enum
{
  BYTE_LEVEL,
  METASPACE,
  WORD_PIECE,
  BYTE_FALLBACK,
  FUSE,
  STRIP,
  REPLACE,
  JOIN /* no decoder: a blank between tokens */
} Kind;

static const char *const kind_names[] = { "ByteLevel", "Metaspace", "WordPiece", "ByteFallback",
                                          "Fuse", "Strip", "Replace", NULL };

struct _EbbDecoderStep
{
  Kind kind;
  EbbPattern *pattern;  /* REPLACE */
  char *content;        /* REPLACE, WORD_PIECE: the prefix */
  gunichar character;   /* METASPACE, STRIP */
  gboolean cleans_up;   /* WORD_PIECE */
  gboolean drops_first; /* METASPACE: the replacements of the first token */
  gint64 left, right;   /* STRIP */
  gboolean is_fused;    /* a step before made one string of all */
};

/* -- reading ------------------------------------------------------------------------------------------------------- */

static gboolean
read_metaspace (EbbDecoderStep *self,
                const EbbJson *json,
                GError **error)
{
  static const char *const schemes[] = { "first", "never", "always", NULL };
  gboolean adds_blank = TRUE;
  int scheme = 2;

  self->character = 0x2581;
  if (!ebb_json_part_get_character (json, "replacement", &self->character, error)
      || !ebb_json_part_get_boolean (json, "add_prefix_space", &adds_blank, error)
      || !ebb_json_part_get_choice (json, "prepend_scheme", schemes, &scheme, error))
    return FALSE;
  self->drops_first = adds_blank && scheme != 1;
  return TRUE;
}

static gboolean
read_word_piece (EbbDecoderStep *self,
                 const EbbJson *json,
                 GError **error)
{
  const char *prefix = "##";

  self->cleans_up = TRUE;
  if (!ebb_json_part_get_string (json, "prefix", &prefix, error)
      || !ebb_json_part_get_boolean (json, "cleanup", &self->cleans_up, error))
    return FALSE;
  self->content = g_strdup (prefix);
  return TRUE;
}

static gboolean
read_strip (EbbDecoderStep *self,
            const EbbJson *json,
            GError **error)
{
  self->character = ' ';
  return ebb_json_part_get_character (json, "content", &self->character, error)
         && ebb_json_part_get_count (json, "start", &self->left, error)
         && ebb_json_part_get_count (json, "stop", &self->right, error);
}

static gboolean
read_replace (EbbDecoderStep *self,
              const EbbJson *json,
              GError **error)
{
  const char *content = "";

  if (!ebb_json_part_get_string (json, "content", &content, error))
    return FALSE;
  self->content = g_strdup (content);
  self->pattern = ebb_pattern_read (ebb_json_get (json, "pattern"), error);
  return self->pattern != NULL;
}

static gboolean
read_step (const EbbJson *json,
           const char *type,
           gpointer data,
           GError **error)
{
  EbbDecoderList *self = data;
  EbbDecoderStep *step;
  gboolean is_fused = self->n_steps > 0 && self->steps[self->n_steps - 1].is_fused;
  int kind;

  if (!ebb_json_part_find_kind (type, kind_names, &kind, error))
    return FALSE;
  if (self->is_byte_level)
    return ebb_fail (error, EBB_ERROR_NOT_SUPPORTED, "%s behind ByteLevel is not supported", type);
  self->steps = g_renew (EbbDecoderStep, self->steps, self->n_steps + 1);
  step = &self->steps[self->n_steps++];
  *step = (EbbDecoderStep){ .kind = (Kind) kind, .is_fused = is_fused || kind == FUSE };
  self->is_byte_level = kind == BYTE_LEVEL;
  switch (step->kind)
    {
    case METASPACE:
      return read_metaspace (step, json, error);
    case WORD_PIECE:
      return read_word_piece (step, json, error);
    case STRIP:
      return read_strip (step, json, error);
    case REPLACE:
      return read_replace (step, json, error);
    default:
      return TRUE;
    }
}

gboolean
ebb_decoder_list_read (EbbDecoderList *self,
                       const EbbJson *json,
                       GError **error)
{
  if (!ebb_json_part_foreach (json, "decoders", read_step, self, error))
    return FALSE;
  if (json == NULL || json->kind == EBB_JSON_NULL)
    {
      self->steps = g_new0 (EbbDecoderStep, 1);
      self->steps[0].kind = JOIN;
      self->n_steps = 1;
    }
  return TRUE;
}

void
ebb_decoder_list_make_byte_level (EbbDecoderList *self)
{
  self->steps = g_new0 (EbbDecoderStep, 1);
  self->steps[0].kind = BYTE_LEVEL;
  self->n_steps = 1;
  self->is_byte_level = TRUE;
}

gboolean
ebb_decoder_list_cleans_up (const EbbDecoderList *self)
{
  for (guint i = 0; i < self->n_steps; i++)
    if (self->steps[i].cleans_up)
      return TRUE;
  return FALSE;
}

void
ebb_decoder_list_clear (EbbDecoderList *self)
{
  for (guint i = 0; i < self->n_steps; i++)
    {
      g_free (self->steps[i].content);
      ebb_pattern_free (self->steps[i].pattern);
    }
  g_clear_pointer (&self->steps, g_free);
  self->n_steps = 0;
}

/* -- decoding ------------------------------------------------------------------------------------------------------ */

/* Where one step stands. */
typedef struct
{
  gint64 n_strings; /* met before */
  gint64 n_left;    /* STRIP: that may still be dropped in front */
  GString *held;    /* BYTE_FALLBACK: bytes; STRIP: what may be dropped at the end; a fused REPLACE: the whole text */
  GString *made;    /* what goes to the next step */
  GString *other;
} StepState;

struct _EbbDecoding
{
  const EbbDecoderList *list;
  gboolean is_eager;
  EbbPatternSpace *space;
  StepState *states;
  GString *text; /* of the call that runs */
};

EbbDecoding *
ebb_decoding_new (const EbbDecoderList *list,
                  gboolean is_eager)
{
  EbbDecoding *self = g_new0 (EbbDecoding, 1);

  self->list = list;
  self->is_eager = is_eager;
  self->states = g_new0 (StepState, list->n_steps + 1);
  for (guint i = 0; i < list->n_steps; i++)
    {
      self->states[i] = (StepState){ 0, list->steps[i].left, g_string_new (NULL), g_string_new (NULL),
                                     g_string_new (NULL) };
      if (list->steps[i].kind == REPLACE && self->space == NULL)
        self->space = ebb_pattern_space_new ();
    }
  return self;
}

void
ebb_decoding_free (EbbDecoding *self)
{
  if (self == NULL)
    return;
  for (guint i = 0; i < self->list->n_steps; i++)
    {
      g_string_free (self->states[i].held, TRUE);
      g_string_free (self->states[i].made, TRUE);
      g_string_free (self->states[i].other, TRUE);
    }
  ebb_pattern_space_free (self->space);
  g_free (self->states);
  g_free (self);
}

static gboolean push (EbbDecoding *self,
                      guint step,
                      const char *string,
                      gsize length,
                      GError **error);

/* A spelling in the byte alphabet; one with other characters stands for its own UTF-8. */
static void
append_bytes (GString *text,
              const char *string,
              gsize length)
{
  const EbbByteAlphabet *alphabet = ebb_byte_alphabet_get ();
  gsize n_before = text->len;

  for (const char *p = string; p < string + length; p = g_utf8_next_char (p))
    {
      gunichar c = g_utf8_get_char (p);

      if (c >= G_N_ELEMENTS (alphabet->byte) || alphabet->byte[c] < 0)
        {
          g_string_truncate (text, n_before);
          ebb_utf8_append_unspelled (text, string, length);
          return;
        }
      g_string_append_c (text, (char) alphabet->byte[c]);
    }
}

static void
replace_all (GString *text,
             const char *from,
             const char *to)
{
  if (strstr (text->str, from) != NULL)
    g_string_replace (text, from, to, 0);
}

/* English as people write it: no blanks before signs. */
static void
clean_up (GString *text)
{
  static const char *const changes[][2] = {
    { " .", "." },
    { " ?", "?" },
    { " !", "!" },
    { " ,", "," },
    { " ' ", "'" },
    { " n't", "n't" },
    { " 'm", "'m" },
    { " do not", " don't" },
    { " 's", "'s" },
    { " 've", "'ve" },
    { " 're", "'re" },
  };

  for (guint i = 0; i < G_N_ELEMENTS (changes); i++)
    replace_all (text, changes[i][0], changes[i][1]);
}

static gboolean
push_word_piece (EbbDecoding *self,
                 guint number,
                 const char *string,
                 gsize length,
                 GError **error)
{
  const EbbDecoderStep *step = &self->list->steps[number];
  StepState *state = &self->states[number];
  gsize n_prefix = strlen (step->content);
  gboolean continues = length >= n_prefix && memcmp (string, step->content, n_prefix) == 0;

  g_string_truncate (state->made, 0);
  if (state->n_strings++ > 0)
    {
      if (!continues)
        g_string_append_c (state->made, ' ');
      else
        {
          string += n_prefix;
          length -= n_prefix;
        }
    }
  g_string_append_len (state->made, string, (gssize) length);
  if (step->cleans_up)
    clean_up (state->made);
  return push (self, number + 1, state->made->str, state->made->len, error);
}

static gboolean
push_metaspace (EbbDecoding *self,
                guint number,
                const char *string,
                gsize length,
                GError **error)
{
  const EbbDecoderStep *step = &self->list->steps[number];
  StepState *state = &self->states[number];
  gboolean drops = state->n_strings++ == 0 && step->drops_first;
  const char *next;

  g_string_truncate (state->made, 0);
  for (const char *p = string; p < string + length; p = next)
    {
      next = g_utf8_next_char (p);
      if (g_utf8_get_char (p) != step->character)
        g_string_append_len (state->made, p, next - p);
      else if (!drops)
        g_string_append_c (state->made, ' ');
    }
  return push (self, number + 1, state->made->str, state->made->len, error);
}

/* Hands the bytes on that are held: those of complete characters if more may come, else all. */
static gboolean
flush_bytes (EbbDecoding *self,
             guint number,
             gboolean is_end,
             GError **error)
{
  StepState *state = &self->states[number];
  gsize used = 0;

  if (state->held->len == 0)
    return TRUE;
  g_string_truncate (state->made, 0);
  if (is_end && ebb_utf8_find_invalid ((const guint8 *) state->held->str, state->held->len) == state->held->len)
    {
      g_string_append_len (state->made, state->held->str, (gssize) state->held->len);
      used = state->held->len;
    }
  else if (is_end)
    for (; used < state->held->len; used++)
      g_string_append (state->made, "\xef\xbf\xbd");
  else
    while (used < state->held->len)
      {
        int n = ebb_utf8_measure ((const guint8 *) state->held->str + used, state->held->len - used);

        if (n <= 0)
          break;
        g_string_append_len (state->made, state->held->str + used, n);
        used += (gsize) n;
      }
  g_string_erase (state->held, 0, (gssize) used);
  return push (self, number + 1, state->made->str, state->made->len, error);
}

static gboolean
push_byte_fallback (EbbDecoding *self,
                    guint number,
                    const char *string,
                    gsize length,
                    GError **error)
{
  StepState *state = &self->states[number];

  if (length == 6 && memcmp (string, "<0x", 3) == 0 && g_ascii_isxdigit (string[3]) && g_ascii_isxdigit (string[4])
      && string[5] == '>')
    {
      g_string_append_c (state->held,
                         (char) (g_ascii_xdigit_value (string[3]) << 4 | g_ascii_xdigit_value (string[4])));
      return !self->is_eager || flush_bytes (self, number, FALSE, error);
    }
  return flush_bytes (self, number, TRUE, error) && push (self, number + 1, string, length, error);
}

/* How many of at most @n characters at the end of the text are @c: their bytes. */
static gsize
measure_end (const char *text,
             gsize length,
             gunichar c,
             gint64 n)
{
  gsize end = length;

  for (; n > 0 && end > 0; n--)
    {
      const char *p = g_utf8_prev_char (text + end);

      if (g_utf8_get_char (p) != c)
        break;
      end = (gsize) (p - text);
    }
  return length - end;
}

static gboolean
push_strip (EbbDecoding *self,
            guint number,
            const char *string,
            gsize length,
            GError **error)
{
  const EbbDecoderStep *step = &self->list->steps[number];
  StepState *state = &self->states[number];
  gsize n_end;

  if (!step->is_fused)
    state->n_left = step->left;
  while (state->n_left > 0 && length > 0)
    {
      const char *next = g_utf8_next_char (string);

      if (g_utf8_get_char (string) != step->character)
        {
          state->n_left = 0;
          break;
        }
      length -= (gsize) (next - string);
      string = next;
      state->n_left--;
    }
  if (!step->is_fused)
    {
      n_end = measure_end (string, length, step->character, step->right);
      return push (self, number + 1, string, length - n_end, error);
    }
  if (step->right == 0)
    return push (self, number + 1, string, length, error);
  /* The end of the whole is not known: what may be dropped is held. */
  g_string_append_len (state->held, string, (gssize) length);
  g_string_truncate (state->made, 0);
  g_string_append_len (state->made, state->held->str, (gssize) state->held->len);
  n_end = measure_end (state->made->str, state->made->len, step->character, step->right);
  g_string_erase (state->held, 0, (gssize) (state->made->len - n_end));
  return push (self, number + 1, state->made->str, state->made->len - n_end, error);
}

/* Replacements may make a string longer, up to this. */
#define MAX_REPLACED ((gsize) 1 << 20)

static gboolean
replace_and_push (EbbDecoding *self,
                  guint number,
                  const char *string,
                  gsize length,
                  GError **error)
{
  const EbbDecoderStep *step = &self->list->steps[number];
  StepState *state = &self->states[number];
  GError *failure = NULL;

  g_string_truncate (state->made, 0);
  if (ebb_pattern_replace (step->pattern, self->space, string, length, step->content, MAX (MAX_REPLACED, length),
                           state->made, &failure))
    return push (self, number + 1, state->made->str, state->made->len, error);
  if (failure != NULL)
    {
      g_propagate_error (error, failure);
      return FALSE;
    }
  return push (self, number + 1, string, length, error);
}

static gboolean
push (EbbDecoding *self,
      guint number,
      const char *string,
      gsize length,
      GError **error)
{
  const EbbDecoderStep *step = &self->list->steps[number];
  StepState *state = &self->states[number];

  if (number == self->list->n_steps)
    {
      ebb_utf8_append_unspelled (self->text, string, length);
      return TRUE;
    }
  switch (step->kind)
    {
    case BYTE_LEVEL:
      append_bytes (self->text, string, length);
      return TRUE;
    case METASPACE:
      return push_metaspace (self, number, string, length, error);
    case WORD_PIECE:
      return push_word_piece (self, number, string, length, error);
    case BYTE_FALLBACK:
      return push_byte_fallback (self, number, string, length, error);
    case FUSE:
      return push (self, number + 1, string, length, error);
    case STRIP:
      return push_strip (self, number, string, length, error);
    case REPLACE:
      if (!step->is_fused)
        return replace_and_push (self, number, string, length, error);
      g_string_append_len (state->held, string, (gssize) length);
      return TRUE;
    case JOIN:
      if (state->n_strings++ > 0)
        g_string_append_c (self->text, ' ');
      ebb_utf8_append_unspelled (self->text, string, length);
      return TRUE;
    }
  g_return_val_if_reached (FALSE);
}

gboolean
ebb_decoding_push (EbbDecoding *self,
                   const char *token,
                   GString *text,
                   GError **error)
{
  self->text = text;
  return push (self, 0, token, strlen (token), error);
}

gboolean
ebb_decoding_finish (EbbDecoding *self,
                     GString *text,
                     GError **error)
{
  gboolean ok = TRUE;

  self->text = text;
  for (guint i = 0; i < self->list->n_steps; i++)
    {
      const EbbDecoderStep *step = &self->list->steps[i];
      StepState *state = &self->states[i];

      if (step->kind == BYTE_FALLBACK)
        ok = ok && flush_bytes (self, i, TRUE, error);
      else if (step->kind == REPLACE && step->is_fused && state->held->len > 0)
        {
          g_string_assign (state->other, "");
          g_string_append_len (state->other, state->held->str, (gssize) state->held->len);
          ok = ok && replace_and_push (self, i, state->other->str, state->other->len, error);
        }
      g_string_truncate (state->held, 0);
      state->n_strings = 0;
      state->n_left = step->left;
    }
  return ok;
}
