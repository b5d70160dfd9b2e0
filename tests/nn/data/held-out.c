/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* A held-out part carries every setting of its dataset. The classes list their properties, so a new one is seen. */
/* test: cpu-only */
#include "support/device.h"

#include <string.h>

#define TEXT                                                           \
  "{\"text\": \"the sea is wide\"}\n{\"text\": \"the day is long\"}\n" \
  "{\"text\": \"and so on\"}\n{\"text\": \"it goes\"}\n"

#define TEMPLATE                                                                                                   \
  "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + " \
  "'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"

/* Properties that are data or the state of reading, not settings: the held-out part has its own. */
static const char *const own[] = { "shuffle", "position", "source", "text", "lines", NULL };

static void
assert_same_settings (GObject *whole, GObject *held)
{
  g_autofree GParamSpec **properties = NULL;
  guint n = 0, n_compared = 0;

  g_assert_true (G_OBJECT_TYPE (held) == G_OBJECT_TYPE (whole));
  properties = g_object_class_list_properties (G_OBJECT_GET_CLASS (whole), &n);
  for (guint i = 0; i < n; i++)
    {
      const char *name = properties[i]->name;
      g_auto (GValue) expected = G_VALUE_INIT, seen = G_VALUE_INIT;

      if (g_strv_contains (own, name))
        continue;
      g_object_get_property (whole, name, &expected);
      g_object_get_property (held, name, &seen);
      /* A setting at its default would be equal even if nobody carried it. */
      if (!G_VALUE_HOLDS (&expected, G_TYPE_STRV) || g_value_get_boxed (&expected) != NULL)
        g_assert_false (g_param_value_defaults (properties[i], &expected));
      if (G_VALUE_HOLDS (&expected, G_TYPE_STRV))
        g_assert_cmpint (g_value_get_boxed (&expected) == NULL, ==, g_value_get_boxed (&seen) == NULL);
      else if (g_param_values_cmp (properties[i], &expected, &seen) != 0)
        g_error ("%s: the held-out part has another \"%s\"", G_OBJECT_TYPE_NAME (whole), name);
      n_compared++;
    }
  g_assert_cmpuint (n_compared, >=, 2);
}

static void
assert_carried (EbbDataset *whole)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbDataset) held = ebb_dataset_hold_out (whole, 0.4, &error);
  gboolean shuffle = TRUE;

  g_assert_no_error (error);
  assert_same_settings (G_OBJECT (whole), G_OBJECT (held));
  g_object_get (held, "shuffle", &shuffle, NULL);
  g_assert_false (shuffle);
}

static EbbDataset *
make_text (void)
{
  g_autoptr (GBytes) text = g_bytes_new_static (TEXT, strlen (TEXT));
  g_autoptr (EbbTokenizer) tokenizer = ebb_byte_tokenizer_new ();
  g_autoptr (GError) error = NULL;
  EbbTextDataset *self = ebb_text_dataset_new_from_bytes (text, tokenizer, 7, &error);

  g_assert_no_error (error);
  return EBB_DATASET (self);
}

static void
texts_carry_their_settings (void)
{
  g_autoptr (EbbDataset) self = make_text ();

  assert_carried (self);
}

/* The held-out part of a held-out part is its end, not that of the whole. */
static void
parts_of_parts_are_read_at_their_place (void)
{
  g_autoptr (EbbDataset) whole = make_text ();
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbDataset) half = ebb_dataset_hold_out (whole, 0.5, &error);
  g_autoptr (EbbDataset) end = half != NULL ? ebb_dataset_hold_out (half, 0.5, &error) : NULL;
  g_autoptr (EbbTensor) tokens = NULL;
  g_autoptr (EbbTensor) targets = NULL;
  gint64 n;

  g_assert_no_error (error);
  n = ebb_dataset_get_n_tokens (end);
  g_assert_cmpint (ebb_dataset_get_n_tokens (half) + n, <, ebb_dataset_get_n_tokens (whole) + 2);
  g_assert_true (ebb_dataset_get_rows (end, 1, n - 1, &tokens, &targets, NULL, &error));
  for (gint64 i = 0; i < n - 1; i++)
    g_assert_cmpint (((const gint64 *) ebb_tensor_get_data (tokens, NULL))[i], ==,
                     TEXT[(gint64) strlen (TEXT) - n + i]);
}

static void
documents_carry_their_settings (void)
{
  g_autoptr (GBytes) lines = g_bytes_new_static (TEXT, strlen (TEXT));
  g_autoptr (EbbTokenizer) tokenizer = ebb_byte_tokenizer_new ();
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbChatTemplate) template = ebb_chat_template_new_from_text (TEMPLATE, NULL, NULL, &error);
  g_autoptr (EbbDataset) self = NULL;

  g_assert_no_error (error);
  self = g_initable_new (EBB_TYPE_DOCUMENT_DATASET, NULL, &error, "tokenizer", tokenizer, "seed",
                         G_GUINT64_CONSTANT (7), "lines", lines, "template", template, "special-tokens", FALSE, NULL);
  g_assert_no_error (error);
  assert_carried (self);
}

static void
masked_rows_carry_their_settings (void)
{
  g_autoptr (EbbDataset) source = make_text ();
  g_autoptr (EbbTokenizer) tokenizer = ebb_byte_tokenizer_new ();
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbDataset) self = g_initable_new (EBB_TYPE_MASKED_DATASET, NULL, &error, "source", source, "tokenizer",
                                                tokenizer, "share", 0.3, NULL);

  g_assert_no_error (error);
  assert_carried (self);
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/held-out/texts-carry-their-settings", texts_carry_their_settings);
  g_test_add_func ("/held-out/parts-of-parts-are-read-at-their-place", parts_of_parts_are_read_at_their_place);
  g_test_add_func ("/held-out/documents-carry-their-settings", documents_carry_their_settings);
  g_test_add_func ("/held-out/masked-rows-carry-their-settings", masked_rows_carry_their_settings);
  return g_test_run ();
}
