/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Reads documents out of JSON lines. */
#include "nn/data/json-lines-private.h"

#include "nn/data/dataset-private.h"
#include "nn/data/answers-private.h"
#include "nn/data/text-format.h"
#include "tensor/error-private.h"
#include "tensor/util/atomic-file-private.h"
#include "tensor/util/json-private.h"
#include "tensor/util/json-scanner-private.h"

#include <string.h>
#include <unistd.h>

#define BLOCK_SIZE ((gsize) 1 << 20)
/* A line is parsed as a whole, and its tokens take 8 bytes each on the way. */
#define MAX_LINE ((gsize) 256 << 20)

typedef enum
{
  LINES_UNKNOWN,
  LINES_TEXT,
  LINES_PROMPT,
  LINES_MESSAGES
} LineKind;

static const char *const kind_names[] = { NULL, "text", "prompt and completion", "messages" };

/* One file while it is read. */
typedef struct
{
  const EbbDocumentReader *reader;
  const char *name;
  LineKind kind; /* of all lines so far */
  gint64 number;
} Lines;

#define fail(self, error, format, ...)                                                                       \
  ebb_fail (error, EBB_ERROR_FORMAT, "%s: line %" G_GINT64_FORMAT ": " format, ebb_show_text ((self)->name), \
            (self)->number, ##__VA_ARGS__)

/* -- one line ------------------------------------------------------------------------------------------------------ */

static gboolean
append_text (const EbbDocumentReader *self,
             const char *text,
             gsize length,
             gboolean learned,
             GError **error)
{
  g_autoptr (GBytes) bytes = g_bytes_new_static (text, length);
  g_autoptr (EbbTensor) tokens = length > 0 ? ebb_tokenizer_encode (self->tokenizer, bytes, error) : NULL;

  return length == 0
         || (tokens != NULL
             && ebb_document_store_append (self->store, ebb_tensor_get_data (tokens, NULL),
                                           ebb_tensor_get_n_elements (tokens), learned, error));
}

static gboolean
begin_document (const EbbDocumentReader *self,
                GError **error)
{
  return self->begin_token < 0 || ebb_document_store_append (self->store, &self->begin_token, 1, FALSE, error);
}

static gboolean
end_document (const EbbDocumentReader *self,
              GError **error)
{
  if (self->end_token >= 0 && !ebb_document_store_append (self->store, &self->end_token, 1, TRUE, error))
    return FALSE;
  ebb_document_store_end (self->store);
  return TRUE;
}

static const char *
describe (const EbbJson *value)
{
  static const char *const names[] = { "null", "true or false", "a number", "a string", "a list", "an object" };

  return names[value->kind];
}

/* A string that must be there; one that may be empty is so only where the line says so. */
static gboolean
get_text (Lines *self,
          const EbbJson *line,
          const char *key,
          gboolean may_be_empty,
          const char **text,
          GError **error)
{
  const EbbJson *value = ebb_json_get (line, key);

  if (value == NULL)
    return fail (self, error, "%s is missing", key);
  if (!ebb_json_as_string (value, text))
    return fail (self, error, "%s is %s: it must be a string", key, describe (value));
  if (!may_be_empty && (*text)[0] == '\0')
    return fail (self, error, "%s is empty: it needs text to learn", key);
  return TRUE;
}

static gboolean
read_text (Lines *self,
           const EbbJson *line,
           GError **error)
{
  const char *text;

  return get_text (self, line, "text", FALSE, &text, error) && begin_document (self->reader, error)
         && append_text (self->reader, text, strlen (text), TRUE, error) && end_document (self->reader, error);
}

/* Appends the tokens, of which @answers marks those that are learned. *any: whether there are some. */
static gboolean
append_marked (const EbbDocumentReader *self,
               EbbTensor *tokens,
               EbbTensor *answers,
               gboolean *any,
               GError **error)
{
  const gint64 n = ebb_tensor_get_n_elements (tokens);
  const gint64 *data = ebb_tensor_get_data (tokens, NULL);
  const guint8 *learned = ebb_tensor_get_data (answers, NULL);

  *any = FALSE;
  for (gint64 begin = 0, end; begin < n; begin = end)
    {
      for (end = begin + 1; end < n && learned[end] == learned[begin]; end++)
        ;
      if (!ebb_document_store_append (self->store, data + begin, end - begin, learned[begin], error))
        return FALSE;
      *any = *any || learned[begin];
    }
  return TRUE;
}

/* Prompt and completion are encoded as one text: many tokenizers write the beginning of a text in another way, and join
 * characters across the border. */
static gboolean
append_joined (const EbbDocumentReader *self,
               const char *prompt,
               const char *completion,
               GError **error)
{
  g_autofree char *text = g_strconcat (prompt, completion, NULL);
  const gsize span[] = { strlen (prompt), strlen (text) };
  g_autoptr (EbbTensor) tokens = ebb_encode_part (self->tokenizer, text, span[1], error);
  g_autoptr (EbbTensor) answers =
      tokens != NULL ? ebb_mark_answers (self->tokenizer, text, span, 2, tokens, error) : NULL;
  gboolean any;

  return answers != NULL && append_marked (self, tokens, answers, &any, error);
}

static gboolean
read_prompt (Lines *self,
             const EbbJson *line,
             GError **error)
{
  const char *prompt, *completion;

  return get_text (self, line, "prompt", TRUE, &prompt, error)
         && get_text (self, line, "completion", FALSE, &completion, error) && begin_document (self->reader, error)
         && append_joined (self->reader, prompt, completion, error) && end_document (self->reader, error);
}

/* A member that says nothing: tools that write each row with all keys leave those that a row lacks like this. */
static gboolean
is_empty (const EbbJson *value)
{
  return value->kind == EBB_JSON_NULL || (value->kind == EBB_JSON_STRING && value->text[0] == '\0')
         || ((value->kind == EBB_JSON_LIST || value->kind == EBB_JSON_OBJECT) && value->n_items == 0);
}

/* Reads "weight", 0 or 1, or "train": whether a message is learned. */
static gboolean
read_learned (Lines *self,
              gsize number,
              const EbbJson *value,
              gboolean is_answer,
              gboolean *learned,
              GError **error)
{
  const gboolean is_weight = strcmp (value->key, "weight") == 0;
  double weight = 0;
  gboolean train = FALSE;

  if (is_weight ? !ebb_json_as_double (value, &weight) || (weight != 0 && weight != 1)
                : !ebb_json_as_boolean (value, &train))
    return fail (self, error, "message %" G_GSIZE_FORMAT ": %s is %s: it must be %s", number, value->key,
                 value->kind == EBB_JSON_NUMBER ? value->text : describe (value),
                 is_weight ? "0 or 1" : "true or false");
  if (!is_answer && (is_weight ? weight == 1 : train))
    return fail (self, error, "message %" G_GSIZE_FORMAT ": %s is %s: only messages of the assistant are learned",
                 number, value->key, value->text);
  *learned = *learned && (is_weight ? weight == 1 : train);
  return TRUE;
}

/* Reads the keys of a message beside its role and content. *@learned: whether they let the message be learned. */
static gboolean
read_other_keys (Lines *self,
                 const EbbJson *message,
                 gsize number,
                 gboolean is_answer,
                 gboolean *learned,
                 GError **error)
{
  *learned = TRUE;
  for (gsize i = 0; i < message->n_items; i++)
    {
      const EbbJson *value = &message->items[i];
      g_autofree char *key = NULL;

      if (strcmp (value->key, "role") == 0 || strcmp (value->key, "content") == 0 || is_empty (value))
        continue;
      if (strcmp (value->key, "weight") == 0 || strcmp (value->key, "train") == 0)
        {
          if (!read_learned (self, number, value, is_answer, learned, error))
            return FALSE;
          continue;
        }
      key = ebb_escape_text (value->key);
      return fail (self, error,
                   "message %" G_GSIZE_FORMAT ": %s is not learned: a message has role, content, weight, and train; "
                   "leave the row or the key out",
                   number, key);
    }
  return TRUE;
}

/* Refuses members of a line that templates would write beside the messages. */
static gboolean
check_other_members (Lines *self,
                     const EbbJson *line,
                     GError **error)
{
  static const char *const names[] = { "tools", "functions", "documents", "chat_template_kwargs" };

  for (guint i = 0; i < G_N_ELEMENTS (names); i++)
    {
      const EbbJson *value = ebb_json_get (line, names[i]);

      if (value != NULL && !is_empty (value))
        return fail (self, error, "%s is not learned: only messages are written; leave the row or the key out",
                     names[i]);
    }
  return TRUE;
}

/* Checks the messages and collects their roles and contents, which stay the line's. @learned: for each message of the
 * assistant, in their order, whether it is learned. */
static gboolean
list_messages (Lines *self,
               const EbbJson *messages,
               const char **roles,
               const char **contents,
               gboolean *learned,
               gsize *n_answers,
               GError **error)
{
  *n_answers = 0;
  for (gsize i = 0; i < messages->n_items; i++)
    {
      static const char *const names[] = { "role", "content" };
      const char **texts[] = { &roles[i], &contents[i] };

      if (messages->items[i].kind != EBB_JSON_OBJECT)
        return fail (self, error, "message %" G_GSIZE_FORMAT " is %s: it must be an object with role and content",
                     i + 1, describe (&messages->items[i]));
      for (guint j = 0; j < 2; j++)
        {
          const EbbJson *value = ebb_json_get (&messages->items[i], names[j]);

          if (value == NULL)
            return fail (self, error, "message %" G_GSIZE_FORMAT ": %s is missing", i + 1, names[j]);
          if (!ebb_json_as_string (value, texts[j]))
            return fail (self, error, "message %" G_GSIZE_FORMAT ": %s is %s: it must be a string", i + 1, names[j],
                         describe (value));
        }
      if (!read_other_keys (self, &messages->items[i], i + 1, strcmp (roles[i], "assistant") == 0,
                            &learned[*n_answers], error))
        return FALSE;
      *n_answers += strcmp (roles[i], "assistant") == 0;
    }
  return TRUE;
}

/* Encodes a conversation. *@answers: the tokens of those messages of the assistant that are learned. */
static EbbTensor *
encode_messages (const EbbDocumentReader *self,
                 const char *const *roles,
                 const char *const *contents,
                 const gboolean *learned,
                 EbbTensor **answers,
                 GError **error)
{
  g_autofree gsize *spans = NULL;
  gsize n_spans, n_kept = 0;
  g_autofree char *text = ebb_chat_template_render (self->template, roles, contents, FALSE, &spans, &n_spans, error);
  g_autoptr (EbbTensor) tokens = text != NULL ? ebb_encode_part (self->tokenizer, text, strlen (text), error) : NULL;

  if (tokens == NULL)
    return NULL;
  for (gsize i = 0; i < n_spans; i += 2)
    if (learned[i / 2])
      {
        spans[n_kept++] = spans[i];
        spans[n_kept++] = spans[i + 1];
      }
  *answers = ebb_mark_answers (self->tokenizer, text, spans, n_kept, tokens, error);
  return *answers != NULL ? g_steal_pointer (&tokens) : NULL;
}

static gboolean
read_messages (Lines *self,
               const EbbJson *line,
               GError **error)
{
  const EbbDocumentReader *reader = self->reader;
  const EbbJson *messages = ebb_json_get (line, "messages");
  g_autofree const char **roles = NULL;
  g_autofree const char **contents = NULL;
  g_autofree gboolean *learned = NULL;
  g_autoptr (EbbTensor) tokens = NULL;
  g_autoptr (EbbTensor) answers = NULL;
  gsize n_answers, n_ignored = 0;
  gboolean any;

  if (messages->kind != EBB_JSON_LIST)
    return fail (self, error, "messages is %s: it must be a list", describe (messages));
  if (messages->n_items == 0)
    return fail (self, error, "messages is empty: there is nothing to learn");
  if (reader->template == NULL)
    return fail (
        self, error,
        "messages need a tokenizer with a chat template%s%s; open another tokenizer, or write rows with prompt "
        "and completion",
        reader->template_failure != NULL ? ": " : "", reader->template_failure != NULL ? reader->template_failure : "");
  roles = g_new0 (const char *, messages->n_items + 1);
  contents = g_new0 (const char *, messages->n_items + 1);
  learned = g_new0 (gboolean, messages->n_items + 1);
  if (!check_other_members (self, line, error)
      || !list_messages (self, messages, roles, contents, learned, &n_answers, error))
    return FALSE;
  while (n_ignored < n_answers && !learned[n_ignored])
    n_ignored++;
  if (n_answers > 0 && n_ignored == n_answers) /* the row says so itself */
    {
      reader->store->n_left_out++;
      return TRUE;
    }
  tokens = encode_messages (reader, roles, contents, learned, &answers, error);
  if (tokens == NULL || !append_marked (reader, tokens, answers, &any, error))
    return FALSE;
  if (!any)
    return fail (self, error, "messages have none of the assistant that is learned: there is nothing to learn");
  ebb_document_store_end (reader->store);
  return TRUE;
}

static LineKind
find_kind (Lines *self,
           const EbbJson *line,
           GError **error)
{
  const gboolean has_text = ebb_json_get (line, "text") != NULL;
  const gboolean has_prompt = ebb_json_get (line, "prompt") != NULL || ebb_json_get (line, "completion") != NULL;
  const gboolean has_messages = ebb_json_get (line, "messages") != NULL;
  LineKind kind = has_text ? LINES_TEXT : has_prompt ? LINES_PROMPT
                                                     : LINES_MESSAGES;

  if (line->kind != EBB_JSON_OBJECT)
    fail (self, error, "%s: a line must be an object with text, with prompt and completion, or with messages",
          describe (line));
  else if (has_text + has_prompt + has_messages == 0)
    fail (self, error, "the object has neither text, nor prompt and completion, nor messages");
  else if (has_text + has_prompt + has_messages > 1)
    fail (self, error, "%s and %s in one line: it must have one of them", kind_names[kind],
          kind_names[has_messages ? LINES_MESSAGES : LINES_PROMPT]);
  else if (self->kind != LINES_UNKNOWN && self->kind != kind)
    fail (self, error, "%s, but the lines before it have %s: a file has lines of one kind", kind_names[kind],
          kind_names[self->kind]);
  else
    return kind;
  return LINES_UNKNOWN;
}

static gboolean
is_blank (const char *text,
          gsize length)
{
  for (gsize i = 0; i < length; i++)
    if (text[i] == '\0' || strchr (" \t\r", text[i]) == NULL)
      return FALSE;
  return TRUE;
}

static gboolean
read_line (Lines *self,
           const char *text,
           gsize length,
           GError **error)
{
  g_autofree char *what = NULL;
  g_autofree char *shown = NULL;
  g_autofree char *message = NULL;
  g_autoptr (EbbJson) line = NULL;
  g_autoptr (GError) failure = NULL;
  gboolean ok;

  self->number++;
  if (self->number == 1 && length >= 3 && memcmp (text, "\357\273\277", 3) == 0) /* a byte order mark */
    {
      text += 3;
      length -= 3;
    }
  if (is_blank (text, length))
    return TRUE;
  what = g_strdup_printf ("%s: line %" G_GINT64_FORMAT, self->name, self->number);
  line = ebb_json_parse (text, length, what, error);
  if (line == NULL)
    return FALSE;
  self->kind = find_kind (self, line, error);
  if (self->kind == LINES_UNKNOWN)
    return FALSE;
  ok = self->kind == LINES_TEXT     ? read_text (self, line, &failure)
       : self->kind == LINES_PROMPT ? read_prompt (self, line, &failure)
                                    : read_messages (self, line, &failure);
  if (ok)
    return TRUE;
  /* The tokenizer and the template don't know of lines, and may quote some of theirs. */
  shown = ebb_escape_text (what);
  message = ebb_escape_text (failure->message);
  if (g_str_has_prefix (failure->message, shown))
    g_propagate_error (error, g_steal_pointer (&failure));
  else
    g_set_error (error, failure->domain, failure->code, "%s: %s", shown, message);
  return FALSE;
}

/* -- many lines ---------------------------------------------------------------------------------------------------- */

/* Reads the lines that end in @text; *@used is where the rest begins. */
static gboolean
read_whole_lines (Lines *self,
                  const char *text,
                  gsize length,
                  gsize *used,
                  GError **error)
{
  const char *end;

  *used = 0;
  while ((end = memchr (text + *used, '\n', length - *used)) != NULL)
    {
      gsize n = (gsize) (end - text) - *used;

      if (!read_line (self, text + *used, n, error))
        return FALSE;
      *used += n + 1;
    }
  return TRUE;
}

/* Reads the file in blocks; a line that goes on in the next block waits at the front of the buffer. */
static gboolean
read_blocks (Lines *self,
             int fd,
             gsize size,
             GError **error)
{
  g_autoptr (GByteArray) buffer = g_byte_array_new ();
  gsize used;

  for (gsize offset = 0; offset < size;)
    {
      gsize n = MIN (BLOCK_SIZE, size - offset), rest = buffer->len;

      if (rest + n > MAX_LINE)
        {
          self->number++;
          return fail (self, error, "more than %" G_GSIZE_FORMAT " MiB: that is too long", MAX_LINE >> 20);
        }
      g_byte_array_set_size (buffer, (guint) (rest + n));
      if (!ebb_read_file_part (fd, self->name, offset, buffer->data + rest, n, error)
          || (offset == 0 && !ebb_check_text_format (self->name, buffer->data, n, TRUE, error))
          || !read_whole_lines (self, (const char *) buffer->data, buffer->len, &used, error))
        return FALSE;
      if (used > 0)
        g_byte_array_remove_range (buffer, 0, (guint) used);
      offset += n;
    }
  return buffer->len == 0 || read_line (self, (const char *) buffer->data, buffer->len, error);
}

static gboolean
read_file_lines (const EbbDocumentReader *reader,
                 const char *path,
                 GError **error)
{
  Lines lines = { .reader = reader, .name = path };
  gsize size;
  int fd = ebb_open_regular_file (path, &size, error);
  gboolean ok;

  if (fd < 0)
    return FALSE;
  ok = read_blocks (&lines, fd, size, error);
  close (fd);
  return ok && (lines.kind != LINES_UNKNOWN || ebb_dataset_fail_empty (path, error));
}

gboolean
ebb_read_document_lines (const EbbDocumentReader *reader,
                         GBytes *bytes,
                         const char *name,
                         GError **error)
{
  Lines lines = { .reader = reader, .name = name };
  gsize length, used;
  const char *text = g_bytes_get_data (bytes, &length);

  if (length == 0)
    return ebb_dataset_fail_empty (name, error);
  return read_whole_lines (&lines, text, length, &used, error)
         && (used == length || read_line (&lines, text + used, length - used, error))
         && (lines.kind != LINES_UNKNOWN || ebb_dataset_fail_empty (name, error));
}

static gboolean
read_whole_file (const EbbDocumentReader *reader,
                 const char *path,
                 GError **error)
{
  gsize size;
  g_autofree char *name = ebb_escape_text (path);
  g_autofree char *text = ebb_read_file (path, G_MAXSIZE - 1, &size, error);

  if (text == NULL)
    return FALSE;
  if (size == 0)
    return ebb_dataset_fail_empty (path, error);
  if (!ebb_check_text_format (path, (const guint8 *) text, MIN (size, BLOCK_SIZE), TRUE, error))
    return FALSE;
  if (begin_document (reader, error) && append_text (reader, text, size, TRUE, error) && end_document (reader, error))
    return TRUE;
  g_prefix_error (error, "%s: ", name);
  return FALSE;
}

static gboolean
is_lines (const char *path)
{
  const gsize length = strlen (path), n = strlen (EBB_JSON_LINES_SUFFIX);

  return length >= n && g_ascii_strcasecmp (path + length - n, EBB_JSON_LINES_SUFFIX) == 0;
}

gboolean
ebb_read_documents (const EbbDocumentReader *self,
                    const char *path,
                    GError **error)
{
  return is_lines (path) ? read_file_lines (self, path, error) : read_whole_file (self, path, error);
}
