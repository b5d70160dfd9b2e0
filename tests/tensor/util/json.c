/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only */
#include "tensor/util/json-private.h"
#include "tensor/util/json-writer-private.h"

#include <ebb/ebb.h>
#include <math.h>
#include <string.h>

/* JSON as a tree: what is read, what is refused, and that what was read is written again as it was. JSON that is
 * written value by value is read as the same values. */

static EbbJson *
parse (const char *text, GError **error)
{
  return ebb_json_parse (text, strlen (text), "a file", error);
}

static void
values_have_kinds_and_text (void)
{
  g_autoptr (EbbJson) json =
      parse ("{\"a\": [1, 2.50, -3e2, true, null], \"b\": {\"c\": \"d\\u00e9\\n\"}, \"e\": {}}", NULL);
  const EbbJson *list = ebb_json_get (json, "a");
  const char *text;
  gboolean is_true = FALSE;
  double number;
  gint64 integer;

  g_assert_nonnull (json);
  g_assert_cmpuint (list->n_items, ==, 5);
  g_assert_true (ebb_json_as_int (&list->items[0], &integer) && integer == 1);
  g_assert_true (ebb_json_as_double (&list->items[1], &number) && number == 2.5);
  g_assert_cmpstr (list->items[1].text, ==, "2.50");
  g_assert_false (ebb_json_as_int (&list->items[1], &integer));
  g_assert_true (ebb_json_as_int (&list->items[2], &integer) && integer == -300);
  g_assert_true (ebb_json_as_boolean (&list->items[3], &is_true) && is_true);
  g_assert_cmpint (list->items[4].kind, ==, EBB_JSON_NULL);
  g_assert_true (ebb_json_as_string (ebb_json_get (ebb_json_get (json, "b"), "c"), &text));
  g_assert_cmpstr (text, ==, "d\xc3\xa9\n");
  g_assert_null (ebb_json_get (json, "c"));
  g_assert_null (ebb_json_get (list, "c"));
  g_assert_null (ebb_json_get (NULL, "c"));
  g_assert_false (ebb_json_as_string (NULL, &text));
}

static void
what_was_read_is_written_again (void)
{
  static const char text[] =
      "{\n  \"a\": [\n    1e-05,\n    {\n      \"b\": \"\\\"\"\n    }\n  ],\n  \"c\": {},\n  \"d\": []\n}";
  g_autoptr (EbbJson) json = parse (text, NULL);
  g_autoptr (EbbJson) copy = ebb_json_copy (json);
  g_autoptr (GString) printed = g_string_new (NULL);

  ebb_json_print (copy, printed);
  g_assert_cmpstr (printed->str, ==, text);
}

static void
members_are_set_in_place_or_last (void)
{
  g_autoptr (EbbJson) json = parse ("{\"a\": [1], \"b\": 2}", NULL);
  g_autoptr (GString) printed = g_string_new (NULL);

  ebb_json_set (json, "a", "3");
  ebb_json_set (json, "c", "[\"x\"]");
  ebb_json_print (json, printed);
  g_assert_cmpstr (printed->str, ==, "{\n  \"a\": 3,\n  \"b\": 2,\n  \"c\": [\n    \"x\"\n  ]\n}");
}

static void
assert_refused (const char *text, const char *words)
{
  g_autoptr (GError) error = NULL;

  g_assert_null (parse (text, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_FORMAT);
  g_assert_true (g_str_has_prefix (error->message, "a file: byte "));
  if (strstr (error->message, words) == NULL)
    g_error ("\"%s\" does not say \"%s\"", error->message, words);
}

static void
damaged_text_is_refused (void)
{
  g_autoptr (GString) deep = g_string_new (NULL);
  g_autoptr (GString) wide = g_string_new ("{");

  for (int i = 0; i <= EBB_JSON_MAX_DEPTH; i++)
    g_string_append_c (deep, '[');
  for (int i = 0; i < 40; i++)
    g_string_append_printf (wide, "\"k%d\":0,", i);
  g_string_append (wide, "\"k7\":0}");
  assert_refused ("", "expected a value");
  assert_refused ("{\"a\": 1", "expected ',' or '}', found the end");
  assert_refused ("{\"a\": 1} x", "expected the end");
  assert_refused ("{\"a\": 1, \"a\": 2}", "the key \"a\" stands twice");
  assert_refused (wide->str, "the key \"k7\" stands twice");
  assert_refused ("[01]", "begins with 0");
  assert_refused ("[\"\xff\"]", "not UTF-8");
  assert_refused (deep->str, "nested too deep");
}

static void
values_are_written_one_by_one (void)
{
  static const double numbers[] = { 0.1, 1.0 / 3, 5e-324, -1.7976931348623157e308, 0, 3, 1e22 };
  g_auto (EbbJsonWriter) writer = { NULL };
  g_autofree char *text = NULL, *again = NULL;
  g_autoptr (EbbJson) json = NULL;
  const EbbJson *list;

  ebb_json_writer_begin (&writer, NULL, '{');
  ebb_json_writer_add_string (&writer, "a\"", "b\n\x01");
  ebb_json_writer_add_string (&writer, "none", NULL);
  ebb_json_writer_begin (&writer, "numbers", '[');
  for (guint i = 0; i < G_N_ELEMENTS (numbers); i++)
    ebb_json_writer_add_double (&writer, NULL, numbers[i]);
  ebb_json_writer_add_double (&writer, NULL, NAN);
  ebb_json_writer_add_double (&writer, NULL, -INFINITY);
  ebb_json_writer_add_int (&writer, NULL, G_MININT64);
  ebb_json_writer_begin (&writer, NULL, '{');
  ebb_json_writer_end (&writer);
  ebb_json_writer_end (&writer);
  ebb_json_writer_add_boolean (&writer, "is", TRUE);
  ebb_json_writer_end (&writer);
  text = ebb_json_writer_finish (&writer);
  g_assert_true (g_str_has_prefix (text, "{\"a\\\"\":\"b\\n\\u0001\",\"none\":null,\"numbers\":[0.1,"));
  g_assert_true (g_str_has_suffix (text, ",0,3,1e+22,null,null,-9223372036854775808,{}],\"is\":true}"));
  json = parse (text, NULL);
  list = ebb_json_get (json, "numbers");
  for (guint i = 0; i < G_N_ELEMENTS (numbers); i++)
    {
      double number = NAN;

      g_assert_true (ebb_json_as_double (&list->items[i], &number) && number == numbers[i]);
    }
  /* The writer is new again. */
  ebb_json_writer_add_int (&writer, NULL, 7);
  again = ebb_json_writer_finish (&writer);
  g_assert_cmpstr (again, ==, "7");
}

static void
values_in_messages_are_one_line_and_cut (void)
{
  g_autoptr (EbbJson) json = parse ("[{\"a\": [1, \"x\"]}, \"two\\nlines\", [\"a text of more than sixty bytes, "
                                    "whose end nobody sees in a message\"]]",
                                    NULL);
  g_autofree char *first = ebb_json_describe (&json->items[0]);
  g_autofree char *second = ebb_json_describe (&json->items[1]);
  g_autofree char *third = ebb_json_describe (&json->items[2]);

  g_assert_cmpstr (first, ==, "{\"a\": [1, \"x\"]}");
  g_assert_cmpstr (second, ==, "\"two\\nlines\"");
  g_assert_true (g_str_has_suffix (third, "..."));
  g_assert_cmpuint (strlen (third), ==, 63);
}

int
main (int argc, char **argv)
{
  g_test_init (&argc, &argv, NULL);
  g_test_add_func ("/json/values-have-kinds-and-text", values_have_kinds_and_text);
  g_test_add_func ("/json/what-was-read-is-written-again", what_was_read_is_written_again);
  g_test_add_func ("/json/members-are-set-in-place-or-last", members_are_set_in_place_or_last);
  g_test_add_func ("/json/damaged-text-is-refused", damaged_text_is_refused);
  g_test_add_func ("/json/values-are-written-one-by-one", values_are_written_one_by_one);
  g_test_add_func ("/json/values-in-messages-are-one-line-and-cut", values_in_messages_are_one_line_and_cut);
  return g_test_run ();
}
