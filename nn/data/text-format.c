/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Tells text from compressed files, archives, and other binary formats. */
#include "nn/data/text-format.h"

#include "tensor/error-private.h"

#include <string.h>

/* Formats by the bytes that their files begin with. */
static const struct
{
  const char *bytes;
  gsize n;
  const char *name, *advice;
} formats[] = {
#define FORMAT(bytes, name, advice)         \
  {                                         \
    bytes, sizeof (bytes) - 1, name, advice \
  }
#define UNPACK "unpack it first"
#define WRITE_TEXT "text and JSON lines are trained on"
  FORMAT ("\037\213", "compressed by gzip", UNPACK),
  FORMAT ("\3757zXZ", "compressed by xz", UNPACK),
  FORMAT ("\050\265\057\375", "compressed by zstd", UNPACK),
  FORMAT ("BZh", "compressed by bzip2", UNPACK),
  FORMAT ("\004\042M\030", "compressed by lz4", UNPACK),
  FORMAT ("PK\003\004", "a ZIP archive, as documents of office programs are", UNPACK),
  FORMAT ("7z\274\257\047\034", "a 7z archive", UNPACK),
  FORMAT ("%PDF-", "a PDF file", WRITE_TEXT),
  FORMAT ("PAR1", "a Parquet file", WRITE_TEXT),
  FORMAT ("ARROW1", "an Arrow file", WRITE_TEXT),
  FORMAT ("SQLite format 3", "an SQLite database", WRITE_TEXT),
  FORMAT ("\223NUMPY", "a NumPy array", WRITE_TEXT),
  FORMAT ("\377\376", "text in UTF-16", "convert it to UTF-8"),
  FORMAT ("\376\377", "text in UTF-16", "convert it to UTF-8"),
};

/* Counts the bytes that text in UTF-8 doesn't have: broken characters, and control characters that no text has. */
static gsize
count_strange (const char *text,
               gsize n)
{
  gsize count = 0;

  for (gsize i = 0; i < n;)
    {
      const gunichar c = g_utf8_get_char_validated (text + i, (gssize) (n - i));
      const gboolean is_whole = c < (gunichar) -2;

      if (c == (gunichar) -2 && memchr (text + i, '\0', n - i) == NULL) /* the last character is cut */
        break;
      count += !is_whole || (c < ' ' && strchr ("\t\n\v\f\r\033", (int) c) == NULL) || c == 0;
      i += is_whole ? (gsize) g_unichar_to_utf8 (c, NULL) : 1;
    }
  return count;
}

/**
 * ebb_check_text_format:
 * @name: the name that an error gives the data, as the path of its file
 * @start: (array length=n) (nullable): the first bytes of the data
 * @n: their number: 1 MiB or, of shorter data, all
 * @may_be_binary: whether data of no known format may have any bytes, as a byte tokenizer takes them; if not, at most a
 *   tenth of the bytes may be ones that text in UTF-8 doesn't have
 * @error: return location for an error
 *
 * Checks that data doesn't begin as a compressed file, an archive, a PDF file, UTF-16, or another format that is no
 * text does. #EbbTextDataset and #EbbDocumentDataset check their files like this, which may be binary otherwise.
 *
 * Returns: %TRUE if the data may be text, %FALSE with @error set to %EBB_ERROR_FORMAT, which names the format
 */
gboolean
ebb_check_text_format (const char *name,
                       const guint8 *start,
                       gsize n,
                       gboolean may_be_binary,
                       GError **error)
{
  const char *text = (const char *) start, *fault = NULL, *advice = WRITE_TEXT;
  gsize i = 0, strange;

  EBB_RETURN_UNLESS_BEGUN (FALSE, error, name);
  while (i < G_N_ELEMENTS (formats) && (n < formats[i].n || memcmp (text, formats[i].bytes, formats[i].n) != 0))
    i++;
  strange = i == G_N_ELEMENTS (formats) && may_be_binary ? 0 : count_strange (text, n);
  /* A text may begin with the few letters of a format, as "BZh". */
  if (i < G_N_ELEMENTS (formats) && (strange > 0 || formats[i].n > 4))
    {
      fault = formats[i].name;
      advice = formats[i].advice;
    }
  else if (!may_be_binary && strange > n / 10)
    fault = "binary data, or text in another encoding than UTF-8";
  else
    return TRUE;
  return ebb_fail (error, EBB_ERROR_FORMAT, "%s: it is %s: %s", ebb_show_text (name), fault, advice);
}
