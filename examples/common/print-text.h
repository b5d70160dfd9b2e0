/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <glib.h>

/* Text that a model wrote, on standard output. */

G_BEGIN_DECLS

/* Prints UTF-8 at once; characters that would control the terminal are replaced. */
void print_text (const char *text);

G_END_DECLS
