/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/error.h"

G_BEGIN_DECLS

/* A stranger's text, or the name of a file, as part of a message: UTF-8, on one line, cut if it is long. */
char *ebb_escape_text (const char *text);

G_END_DECLS
