/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <glib.h>

/* Text out of bytes that need not be UTF-8. */

G_BEGIN_DECLS

/* How many bytes the character at @bytes has, of which @length are there; 0 if more bytes could make it a character;
 * else minus the number of bytes that one U+FFFD stands for. */
int ebb_utf8_measure (const guint8 *bytes,
                      gsize length);

/* The place of the first byte that is not UTF-8; @length if all are. */
gsize ebb_utf8_find_invalid (const guint8 *bytes,
                             gsize length);

/* Appends @bytes to @text. Bytes that are not UTF-8 become U+FFFD as the Unicode Standard recommends (one for each
 * maximal subpart), and so do those of value 0. Unless @is_end is TRUE, a character that may go on is left: returns
 * how many bytes were used. */
gsize ebb_utf8_append (GString *text,
                       const guint8 *bytes,
                       gsize length,
                       gboolean is_end);

/* A new string in which U+0000 is spelt EBB_JSON_NUL, and the bytes of such a string. @spelled_length may be NULL. */
char *ebb_utf8_spell_nul (const char *text,
                          gsize length,
                          gsize *spelled_length);
void ebb_utf8_append_unspelled (GString *text,
                                const char *spelled,
                                gsize length);

G_END_DECLS
