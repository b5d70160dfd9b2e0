/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <glib.h>
#include <string.h>

/* Classes of characters, and the characters that stand for bytes in byte-level vocabularies. */

G_BEGIN_DECLS

/* Unicode's White_Space. */
gboolean ebb_character_is_space (gunichar c);
/* A letter, mark, number, connector or joiner: \w. */
gboolean ebb_character_is_word (gunichar c);
/* Any number, fractions and Roman ones too. */
gboolean ebb_character_is_numeric (gunichar c);
/* ASCII's symbols, and Unicode's punctuation. */
gboolean ebb_character_is_punctuation (gunichar c);
gboolean ebb_character_is_mark (gunichar c);
/* Control and format characters and those of private use. */
gboolean ebb_character_is_control (gunichar c);
/* A Han character, by the blocks that BERT names. */
gboolean ebb_character_is_han (gunichar c);

/* Byte-level vocabularies spell bytes in characters: printable ones of Latin-1 stand for themselves, the others for
 * U+0100 and on, in order. */
typedef struct
{
  char spelling[256][3]; /* UTF-8 of the character for each byte */
  guint8 length[256];
  gint16 byte[512]; /* of a character; -1: it stands for none */
} EbbByteAlphabet;

const EbbByteAlphabet *ebb_byte_alphabet_get (void);

/* Text that is not UTF-8 passes through expressions with U+10FF00 + b for each byte b of what is no character. Such
 * characters in the text itself are spelt in four of them, so that each stands for one byte. */
#define EBB_BYTE_CHARACTER 0x10ff00

static inline guint64
ebb_hash_bytes (const void *bytes,
                gsize length)
{
  const guint64 factor = G_GUINT64_CONSTANT (0x9e3779b97f4a7c15);
  const guint8 *p = bytes;
  guint64 hash = length * factor, word;

  for (; length >= 8; length -= 8, p += 8)
    {
      memcpy (&word, p, 8);
      hash = (hash ^ word) * factor;
      hash ^= hash >> 32;
    }
  word = 0;
  for (gsize i = 0; i < length; i++)
    word = word << 8 | p[i];
  hash = (hash ^ word) * factor;
  return hash ^ (hash >> 29);
}

G_END_DECLS
