/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Prints text that a model wrote. */
#include "common/print-text.h"

#include <stdio.h>

#define REPLACEMENT "\357\277\275" /* U+FFFD */

void
print_text (const char *text)
{
  for (const char *p = text; *p != '\0'; p = g_utf8_next_char (p))
    {
      const gunichar c = g_utf8_get_char_validated (p, -1);

      if (c == (gunichar) -1 || c == (gunichar) -2)
        {
          fputs (REPLACEMENT, stdout);
          break;
        }
      if (c != '\n' && c != '\t' && g_unichar_iscntrl (c))
        fputs (REPLACEMENT, stdout);
      else
        fwrite (p, 1, (gsize) (g_utf8_next_char (p) - p), stdout);
    }
  fflush (stdout);
}
