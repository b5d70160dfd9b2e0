/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Sizes in bytes, as people write them. */
#include "tensor/memory.h"

#include "tensor/error-private.h"

#include <math.h>
#include <string.h>

/**
 * ebb_memory_parse_size:
 * @text: a number of bytes with or without a unit: `1500000`, `1500MB`, `1.5GiB`, `1500M`
 * @n_bytes: (out): the size in bytes, rounded down
 * @error: return location for a #GError
 *
 * Reads a size as every option and environment variable of Ebb takes it. `K`, `M`, `G` and `T`, with or without `iB`,
 * are powers of 1024; `kB`, `MB`, `GB` and `TB` are powers of 1000; a bare number and `B` are bytes. Capitals don't
 * matter, and spaces may stand before the unit.
 *
 * Returns: %TRUE, or %FALSE with %EBB_ERROR_INVALID_ARGUMENT, which names the text and what would be right
 */
gboolean
ebb_memory_parse_size (const char *text,
                       guint64 *n_bytes,
                       GError **error)
{
  static const char units[] = "KMGT";
  const char *unit;
  char *rest = NULL;
  double amount = NAN;

  g_return_val_if_fail (n_bytes != NULL, FALSE);

  EBB_RETURN_UNLESS_BEGUN (FALSE, error, text);
  if ((g_ascii_isdigit (*text) || *text == '.') && g_ascii_tolower (text[1]) != 'x') /* no hexadecimal ones */
    amount = g_ascii_strtod (text, &rest);
  if (rest == text) /* a point alone */
    amount = NAN;
  else if (rest != NULL)
    {
      while (*rest == ' ')
        rest++;
      unit = *rest != '\0' ? strchr (units, g_ascii_toupper (*rest)) : NULL;
      if (unit != NULL)
        {
          gboolean decimal = g_ascii_strcasecmp (rest + 1, "B") == 0;

          amount *= pow (decimal ? 1000 : 1024, (double) (unit - units + 1));
          if (!decimal && rest[1] != '\0' && g_ascii_strcasecmp (rest + 1, "iB") != 0)
            amount = NAN;
        }
      else if (*rest != '\0' && g_ascii_strcasecmp (rest, "B") != 0)
        amount = NAN;
    }
  if (amount >= 0 && amount < 9223372036854775808.0)
    {
      *n_bytes = (guint64) amount;
      return TRUE;
    }
  return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                   "\"%s\" is not a size: write bytes or a unit, as 1500000, 1500MB or 1.5GiB", ebb_show_text (text));
}
