/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only */
#include "nn/models/generation-private.h"

#include <ebb/ebb.h>

/* The text of a row while its tokens come: what the decoder and a stop string hold back. */

#define REPLACEMENT "\357\277\275" /* what stands for bytes that are no UTF-8 */

static EbbGeneration *
make (EbbTokenizer *tokenizer)
{
  const gint64 token = 'a', shape = 1;
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) prompt = ebb_tensor_new_from_ints (&token, 1, &shape, 1, &error);
  EbbGeneration *self = ebb_generation_new (&prompt, 1, 256, tokenizer, &error);

  g_assert_no_error (error);
  return self;
}

/* A character that never becomes whole is text at the end alone: a stop string in it ends the text there. */
static void
stop_strings_are_found_in_what_is_held_back (void)
{
  static const struct
  {
    const char *stop, *text;
    gboolean stops;
  } cases[] = { { REPLACEMENT, "xy", TRUE },
                { "y" REPLACEMENT, "x", TRUE },
                { "never there", "xy" REPLACEMENT, FALSE } };
  const guint8 bytes[] = { 'x', 'y', 0xe2, 0x82 };

  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      const char *const stops[] = { cases[i].stop, NULL };
      g_autoptr (EbbTokenizer) tokenizer = ebb_byte_tokenizer_new ();
      g_autoptr (EbbGeneration) generation = make (tokenizer);
      g_autoptr (GString) passed = g_string_new (NULL);
      g_autoptr (GError) error = NULL;
      gboolean stopped = FALSE;
      g_autofree char *rest = NULL;

      for (guint k = 0; k < G_N_ELEMENTS (bytes); k++)
        {
          g_autofree char *text = NULL;

          g_assert_true (
              ebb_generation_row_push (generation->rows, bytes[k], FALSE, tokenizer, stops, &stopped, &error));
          g_assert_no_error (error);
          g_assert_false (stopped);
          text = ebb_generation_row_take_text (generation->rows, stops, FALSE);
          g_string_append (passed, text);
        }
      g_assert_true (ebb_generation_row_finish (generation->rows, stops, &stopped, &error));
      g_assert_no_error (error);
      g_assert_true (stopped == cases[i].stops);
      rest = ebb_generation_row_take_text (generation->rows, stops, TRUE);
      g_string_append (passed, rest);
      g_assert_cmpstr (passed->str, ==, cases[i].text);
      g_assert_cmpstr (generation->rows->text->str, ==, cases[i].text);
    }
}

int
main (int argc,
      char **argv)
{
  g_test_init (&argc, &argv, NULL);
  g_test_add_func ("/generation-rows/held-back", stop_strings_are_found_in_what_is_held_back);
  return g_test_run ();
}
