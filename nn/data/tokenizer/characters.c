/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Classes of characters, as tokenizers see them. */
#include "nn/data/tokenizer/characters-private.h"

gboolean
ebb_character_is_space (gunichar c)
{
  GUnicodeType type;

  if (c < 0x80)
    return c == ' ' || (c >= '\t' && c <= '\r');
  if (c == 0x85)
    return TRUE;
  type = g_unichar_type (c);
  return type == G_UNICODE_SPACE_SEPARATOR || type == G_UNICODE_LINE_SEPARATOR || type == G_UNICODE_PARAGRAPH_SEPARATOR;
}

gboolean
ebb_character_is_mark (gunichar c)
{
  GUnicodeType type = c < 0x300 ? G_UNICODE_CONTROL : g_unichar_type (c);

  return type == G_UNICODE_NON_SPACING_MARK || type == G_UNICODE_SPACING_MARK || type == G_UNICODE_ENCLOSING_MARK;
}

gboolean
ebb_character_is_word (gunichar c)
{
  if (c < 0x80)
    return g_ascii_isalnum ((char) c) || c == '_';
  switch (g_unichar_type (c))
    {
    case G_UNICODE_UPPERCASE_LETTER:
    case G_UNICODE_LOWERCASE_LETTER:
    case G_UNICODE_TITLECASE_LETTER:
    case G_UNICODE_MODIFIER_LETTER:
    case G_UNICODE_OTHER_LETTER:
    case G_UNICODE_NON_SPACING_MARK:
    case G_UNICODE_SPACING_MARK:
    case G_UNICODE_ENCLOSING_MARK:
    case G_UNICODE_DECIMAL_NUMBER:
    case G_UNICODE_LETTER_NUMBER:
    case G_UNICODE_CONNECT_PUNCTUATION:
      return TRUE;
    default:
      /* Joiners, and the letters in circles and squares, which are symbols and alphabetic. */
      return c == 0x200c || c == 0x200d || (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149)
             || (c >= 0x1f150 && c <= 0x1f169) || (c >= 0x1f170 && c <= 0x1f189);
    }
}

gboolean
ebb_character_is_numeric (gunichar c)
{
  GUnicodeType type;

  if (c < 0x80)
    return c >= '0' && c <= '9';
  type = g_unichar_type (c);
  return type == G_UNICODE_DECIMAL_NUMBER || type == G_UNICODE_LETTER_NUMBER || type == G_UNICODE_OTHER_NUMBER;
}

gboolean
ebb_character_is_punctuation (gunichar c)
{
  if (c < 0x80)
    return g_ascii_ispunct ((char) c);
  switch (g_unichar_type (c))
    {
    case G_UNICODE_CONNECT_PUNCTUATION:
    case G_UNICODE_DASH_PUNCTUATION:
    case G_UNICODE_OPEN_PUNCTUATION:
    case G_UNICODE_CLOSE_PUNCTUATION:
    case G_UNICODE_INITIAL_PUNCTUATION:
    case G_UNICODE_FINAL_PUNCTUATION:
    case G_UNICODE_OTHER_PUNCTUATION:
      return TRUE;
    default:
      return FALSE;
    }
}

gboolean
ebb_character_is_control (gunichar c)
{
  GUnicodeType type;

  if (c < 0x80)
    return c < 0x20 || c == 0x7f;
  type = g_unichar_type (c);
  return type == G_UNICODE_CONTROL || type == G_UNICODE_FORMAT || type == G_UNICODE_PRIVATE_USE
         || type == G_UNICODE_SURROGATE;
}

gboolean
ebb_character_is_han (gunichar c)
{
  return (c >= 0x4e00 && c <= 0x9fff) || (c >= 0x3400 && c <= 0x4dbf) || (c >= 0x20000 && c <= 0x2a6df)
         || (c >= 0x2a700 && c <= 0x2b73f) || (c >= 0x2b740 && c <= 0x2b81f) || (c >= 0x2b920 && c <= 0x2ceaf)
         || (c >= 0xf900 && c <= 0xfaff) || (c >= 0x2f800 && c <= 0x2fa1f);
}

const EbbByteAlphabet *
ebb_byte_alphabet_get (void)
{
  static EbbByteAlphabet alphabet;
  static gsize is_made;

  if (g_once_init_enter (&is_made))
    {
      gunichar others = 256;

      memset (alphabet.byte, 0xff, sizeof alphabet.byte);
      for (guint byte = 0; byte < 256; byte++)
        {
          gboolean is_printable = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
          gunichar c = is_printable ? byte : others++;

          alphabet.byte[c] = (gint16) byte;
          alphabet.length[byte] = (guint8) g_unichar_to_utf8 (c, alphabet.spelling[byte]);
        }
      g_once_init_leave (&is_made, 1);
    }
  return &alphabet;
}
