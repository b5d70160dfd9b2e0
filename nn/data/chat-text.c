/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Splits a chat template, which is a program in Jinja, into its outputs: the texts that it may write. */
#include "nn/data/chat-form-private.h"
#include "tensor/error-private.h"

#include <string.h>

/* An output is all that a template writes between two statements: literal text as it is, and each expression in braces,
 * without spaces, with ' for " and with one name for the content and the role of a message. So `{{ '<|im_start|>' +
 * message['role'] + "\n" }}` and `<|im_start|>{{ message.role }}\n` give the same output, `<|im_start|>{role}\n`. A
 * variable that is set to a text gives an output too, `name=text`. An output has the prefix `generation:` if the
 * template writes it only before a new answer, `no generation:` if it writes it only where no answer follows, `first:`
 * or `last:` under a condition on the loop's index, and `tools:` in a branch for tools. */

typedef struct
{
  char *condition;       /* of the if, the elif or the for; NULL in an else */
  gboolean is_for_tools; /* any of its conditions so far asked for tools */
  gboolean asks_generation;
} Branch;

typedef struct
{
  const char *text, *p, *end;
  GString *output; /* since the last statement */
  GArray *branches;
  GPtrArray *outputs;
  gboolean trims_next; /* the last tag ended with a minus */
  gboolean after_block;
} Splitter;

static void
branch_clear (gpointer data)
{
  g_free (((Branch *) data)->condition);
}

static void
add_output (Splitter *self, const char *text)
{
  GString *output = g_string_new (NULL);
  gboolean is_free = FALSE;

  for (guint i = 0; i < self->branches->len; i++)
    {
      const Branch *branch = &g_array_index (self->branches, Branch, i);

      is_free = is_free || (branch->is_for_tools && branch->condition != NULL);
      if (branch->asks_generation)
        g_string_append (output, branch->condition != NULL ? "generation:" : "no generation:");
    }
  if (self->branches->len > 0)
    {
      const Branch *inner = &g_array_index (self->branches, Branch, self->branches->len - 1);

      if (inner->condition != NULL && g_str_has_prefix (inner->condition, "loop.first"))
        g_string_append (output, "first:");
      else if (inner->condition != NULL && g_str_has_prefix (inner->condition, "loop.last"))
        g_string_append (output, "last:");
    }
  if (is_free)
    g_string_prepend (output, "tools:");
  g_string_append (output, text);
  if (g_ptr_array_find_with_equal_func (self->outputs, output->str, g_str_equal, NULL))
    g_string_free (output, TRUE);
  else
    g_ptr_array_add (self->outputs, g_string_free (output, FALSE));
}

static void
end_output (Splitter *self)
{
  if (self->output->len > 0)
    add_output (self, self->output->str);
  g_string_truncate (self->output, 0);
}

/* -- expressions --------------------------------------------------------------------------------------------------- */

/* The end of the string that begins at @p with its quote; *text gets its characters. NULL if it doesn't end. */
static const char *
read_string (const char *p, const char *end, GString *text)
{
  const char quote = *p++;

  for (; p < end && *p != quote; p++)
    {
      if (*p != '\\' || p + 1 == end)
        {
          g_string_append_c (text, *p);
          continue;
        }
      p++;
      switch (*p)
        {
        case 'n': g_string_append_c (text, '\n'); break;
        case 't': g_string_append_c (text, '\t'); break;
        case 'r': g_string_append_c (text, '\r'); break;
        case '\\':
        case '\'':
        case '"': g_string_append_c (text, *p); break;
        default: g_string_append_printf (text, "\\%c", *p);
        }
    }
  return p < end ? p + 1 : NULL;
}

static void
replace_all (GString *text, const char *from, const char *to)
{
  g_string_replace (text, from, to, 0);
}

/* Without spaces, except between two words; members as m.name; strings in single quotes. */
static char *
normalize (const char *p, const char *end)
{
  GString *text = g_string_new (NULL);

  while (p != NULL && p < end)
    {
      if (*p == '\'' || *p == '"')
        {
          g_autoptr (GString) string = g_string_new (NULL);

          p = read_string (p, end, string);
          g_string_append_printf (text, "'%s'", string->str);
        }
      else if (g_ascii_isspace (*p))
        {
          while (p < end && g_ascii_isspace (*p))
            p++;
          if (text->len > 0 && p < end
              && (g_ascii_isalnum (text->str[text->len - 1]) || text->str[text->len - 1] == '\'')
              && (g_ascii_isalnum (*p) || *p == '_' || *p == '\''))
            g_string_append_c (text, ' ');
        }
      else
        g_string_append_c (text, *p++);
    }
  replace_all (text, "['role']", ".role");
  replace_all (text, "['content']", ".content");
  replace_all (text, "['text']", ".text");
  replace_all (text, ".strip()", "|trim");
  replace_all (text, "loop.index0==0", "loop.first");
  return g_string_free (text, FALSE);
}

/* TRUE for the tokens that begin and end a text. */
static gboolean
append_term (GString *output, const char *begin, const char *end)
{
  g_autofree char *term = normalize (begin, end);
  const char *shown = term;

  if (g_str_has_prefix (term, "message.content") || g_str_has_prefix (term, "message.role"))
    shown = term + strlen ("message.");
  g_string_append_printf (output, "{%s}", shown);
  return strcmp (shown, "bos_token") == 0 || strcmp (shown, "eos_token") == 0;
}

/* Appends the sum of texts and values from @p to @end; FALSE if it has no text and no
 * special token. */
static gboolean
append_sum (GString *output, const char *p, const char *end)
{
  gboolean has_text = FALSE;

  while (p < end)
    {
      const char *begin;
      int depth = 0;

      while (p < end && (g_ascii_isspace (*p) || *p == '+'))
        p++;
      begin = p;
      for (; p < end && (depth > 0 || *p != '+'); p++)
        {
          if (*p == '\'' || *p == '"')
            {
              g_autoptr (GString) string = g_string_new (NULL);
              const char *after = read_string (p, end, string);

              if (after == NULL)
                return has_text;
              p = after - 1;
            }
          depth += strchr ("([{", *p) != NULL && *p != '\0' ? 1 : 0;
          depth -= strchr (")]}", *p) != NULL && *p != '\0' ? 1 : 0;
        }
      if (begin == p)
        break;
      if (*begin == '\'' || *begin == '"')
        {
          g_autoptr (GString) string = g_string_new (NULL);
          const char *after = read_string (begin, p, string);

          while (after != NULL && after < p && g_ascii_isspace (*after))
            after++;
          if (after == p) /* the whole term is a string */
            {
              g_string_append (output, string->str);
              has_text = has_text || string->len > 0;
              continue;
            }
        }
      has_text = append_term (output, begin, p) || has_text;
    }
  return has_text;
}

/* -- statements ---------------------------------------------------------------------------------------------------- */

static gboolean
skip_word (const char **p, const char *end, const char *word)
{
  const gsize length = strlen (word);

  if ((gsize) (end - *p) < length || strncmp (*p, word, length) != 0
      || (*p + length < end && (g_ascii_isalnum ((*p)[length]) || (*p)[length] == '_')))
    return FALSE;
  *p += length;
  while (*p < end && g_ascii_isspace (**p))
    (*p)++;
  return TRUE;
}

static void
enter_branch (Branch *branch, const char *p, const char *end)
{
  g_free (branch->condition);
  branch->condition = normalize (p, end);
  branch->is_for_tools = branch->is_for_tools || strstr (branch->condition, "tool") != NULL
                         || strstr (branch->condition, "ipython") != NULL;
  branch->asks_generation = branch->asks_generation || strstr (branch->condition, "add_generation_prompt") != NULL;
}

static void
read_set (Splitter *self, const char *p, const char *end)
{
  const char *equals = memchr (p, '=', (gsize) (end - p));
  g_autoptr (GString) text = g_string_new (NULL);
  g_autofree char *name = NULL;

  if (equals == NULL)
    return;
  name = g_strstrip (g_strndup (p, (gsize) (equals - p)));
  g_string_append_printf (text, "%s=", name);
  if (append_sum (text, equals + 1, end))
    add_output (self, text->str);
}

/* FALSE if the statement is not one that templates of conversations have. */
static gboolean
read_statement (Splitter *self, const char *p, const char *end, GError **error)
{
  Branch *inner = self->branches->len > 0 ? &g_array_index (self->branches, Branch, self->branches->len - 1) : NULL;
  g_autofree char *statement = NULL;
  g_autofree char *shown = NULL;

  if (skip_word (&p, end, "generation") || skip_word (&p, end, "endgeneration")) /* marks answers, writes nothing */
    return TRUE;
  end_output (self);
  if (skip_word (&p, end, "set"))
    {
      read_set (self, p, end);
      return TRUE;
    }
  if (skip_word (&p, end, "if") || skip_word (&p, end, "for"))
    {
      Branch branch = { NULL };

      g_array_append_val (self->branches, branch);
      enter_branch (&g_array_index (self->branches, Branch, self->branches->len - 1), p, end);
      return TRUE;
    }
  if (inner != NULL && skip_word (&p, end, "elif"))
    {
      enter_branch (inner, p, end);
      return TRUE;
    }
  if (inner != NULL && skip_word (&p, end, "else"))
    {
      g_clear_pointer (&inner->condition, g_free);
      return TRUE;
    }
  if (inner != NULL && (skip_word (&p, end, "endif") || skip_word (&p, end, "endfor")))
    {
      g_array_set_size (self->branches, self->branches->len - 1);
      return TRUE;
    }
  statement = g_strndup (p, (gsize) (end - p));
  shown = ebb_escape_beginning (statement, 40);
  return ebb_fail (error, EBB_ERROR_NOT_SUPPORTED, "the chat template has the statement \"%s\"", shown);
}

/* -- text between tags --------------------------------------------------------------------------------------------- */

/* As Jinja with trim_blocks and lstrip_blocks: a minus takes all space on its side, a statement the line break behind
 * it and the spaces before it that begin a line. */
static void
add_text (Splitter *self, const char *p, const char *end, const char *tag)
{
  gboolean is_block = tag != NULL && (tag[1] == '%' || tag[1] == '#');

  if (self->trims_next)
    while (p < end && g_ascii_isspace (*p))
      p++;
  else if (self->after_block && p < end && *p == '\n')
    p++;
  if (tag != NULL && tag[2] == '-')
    while (end > p && g_ascii_isspace (end[-1]))
      end--;
  else if (is_block && tag[2] != '+')
    {
      const char *line = end;

      while (line > p && (line[-1] == ' ' || line[-1] == '\t'))
        line--;
      if (line == self->text || line[-1] == '\n')
        end = line;
    }
  g_string_append_len (self->output, p, end - p);
}

/* The end of the tag that begins at @tag, where its closing characters stand; strings in it may hold these. */
static const char *
find_close (const char *tag, const char *end)
{
  const char close[2] = { tag[1] == '{' ? '}' : tag[1], '}' };
  const char *p = tag + 2;

  while (p + 1 < end)
    {
      if (tag[1] != '#' && (*p == '\'' || *p == '"'))
        {
          g_autoptr (GString) string = g_string_new (NULL);

          p = read_string (p, end, string);
          if (p == NULL)
            return NULL;
          continue;
        }
      if (p[0] == close[0] && p[1] == close[1])
        return p;
      p++;
    }
  return NULL;
}

static const char *
find_tag (const char *p, const char *end)
{
  for (; p + 2 < end; p++)
    if (p[0] == '{' && (p[1] == '{' || p[1] == '%' || p[1] == '#'))
      return p;
  return NULL;
}

static gboolean
read_tag (Splitter *self, const char *tag, const char *close, GError **error)
{
  const char *p = tag + 2, *end = close;

  if (p < end && (*p == '-' || *p == '+'))
    p++;
  if (end > p && (end[-1] == '-' || end[-1] == '+'))
    end--;
  while (p < end && g_ascii_isspace (*p))
    p++;
  while (end > p && g_ascii_isspace (end[-1]))
    end--;
  self->trims_next = close > tag + 2 && close[-1] == '-';
  self->after_block = tag[1] != '{';
  if (tag[1] == '%')
    return read_statement (self, p, end, error);
  if (tag[1] == '{' && !g_str_has_prefix (p, "raise_exception"))
    append_sum (self->output, p, end);
  return TRUE;
}

GPtrArray *
ebb_chat_text_split (const char *text, GError **error)
{
  Splitter self = { .text = text, .p = text, .end = text + strlen (text) };
  gboolean ok = TRUE;

  self.output = g_string_new (NULL);
  self.branches = g_array_new (FALSE, TRUE, sizeof (Branch));
  g_array_set_clear_func (self.branches, branch_clear);
  self.outputs = g_ptr_array_new_with_free_func (g_free);
  while (ok && self.p < self.end)
    {
      const char *tag = find_tag (self.p, self.end);
      const char *close = tag != NULL ? find_close (tag, self.end) : NULL;

      add_text (&self, self.p, tag != NULL ? tag : self.end, tag);
      self.p = close != NULL ? close + 2 : self.end;
      if (tag == NULL)
        break;
      if (close == NULL)
        {
          ebb_error_set (error, EBB_ERROR_FORMAT, "the chat template ends inside a tag");
          ok = FALSE;
        }
      else
        ok = read_tag (&self, tag, close, error);
    }
  if (ok)
    end_output (&self);
  g_string_free (self.output, TRUE);
  g_array_unref (self.branches);
  if (!ok)
    g_clear_pointer (&self.outputs, g_ptr_array_unref);
  return self.outputs;
}
