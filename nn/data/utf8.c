/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Text out of bytes that need not be UTF-8. */
#include "nn/data/utf8-private.h"

#include "tensor/util/json-scanner-private.h"

#include <string.h>

int
ebb_utf8_measure (const guint8 *bytes,
                  gsize length)
{
  guint8 lead = bytes[0], low = 0x80, high = 0xbf;
  int wanted;

  if (lead < 0x80)
    return 1;
  if (lead < 0xc2 || lead > 0xf4)
    return -1;
  wanted = lead < 0xe0 ? 2 : lead < 0xf0 ? 3
                                         : 4;
  /* The second byte must not make the character overlong, a surrogate or more than U+10FFFF. */
  if (lead == 0xe0)
    low = 0xa0;
  else if (lead == 0xed)
    high = 0x9f;
  else if (lead == 0xf0)
    low = 0x90;
  else if (lead == 0xf4)
    high = 0x8f;
  for (int i = 1; i < wanted; i++, low = 0x80, high = 0xbf)
    {
      if ((gsize) i >= length)
        return 0;
      if (bytes[i] < low || bytes[i] > high)
        return -i;
    }
  return wanted;
}

gsize
ebb_utf8_find_invalid (const guint8 *bytes,
                       gsize length)
{
  gsize i = 0;

  while (i < length)
    {
      guint64 word;
      int n;

      if (i + sizeof word <= length)
        {
          memcpy (&word, bytes + i, sizeof word);
          if ((word & G_GUINT64_CONSTANT (0x8080808080808080)) == 0)
            {
              i += sizeof word;
              continue;
            }
        }
      n = ebb_utf8_measure (bytes + i, length - i);
      if (n <= 0)
        return i;
      i += (gsize) n;
    }
  return length;
}

gsize
ebb_utf8_append (GString *text,
                 const guint8 *bytes,
                 gsize length,
                 gboolean is_end)
{
  gsize done = 0, i = 0;

  while (i < length)
    {
      int n = ebb_utf8_measure (bytes + i, length - i);

      if (n > 0 && bytes[i] != 0)
        {
          i += (gsize) n;
          continue;
        }
      if (n == 0 && !is_end)
        break;
      g_string_append_len (text, (const char *) bytes + done, (gssize) (i - done));
      g_string_append (text, "\xef\xbf\xbd");
      i += n == 0 ? length - i : (gsize) ABS (n);
      done = i;
    }
  g_string_append_len (text, (const char *) bytes + done, (gssize) (i - done));
  return i;
}

char *
ebb_utf8_spell_nul (const char *text,
                    gsize length,
                    gsize *spelled_length)
{
  GString *result = g_string_sized_new (length + 2);

  for (gsize i = 0; i < length; i++)
    if (text[i] == '\0')
      g_string_append (result, EBB_JSON_NUL);
    else
      g_string_append_c (result, text[i]);
  if (spelled_length != NULL)
    *spelled_length = result->len;
  return g_string_free (result, FALSE);
}

void
ebb_utf8_append_unspelled (GString *text,
                           const char *spelled,
                           gsize length)
{
  const char *end = spelled + length, *nul;

  while ((nul = g_strstr_len (spelled, end - spelled, EBB_JSON_NUL)) != NULL)
    {
      g_string_append_len (text, spelled, nul - spelled);
      g_string_append_c (text, '\0');
      spelled = nul + strlen (EBB_JSON_NUL);
    }
  g_string_append_len (text, spelled, end - spelled);
}
