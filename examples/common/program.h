/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <glib.h>

/* How the programs that share this folder differ. */

G_BEGIN_DECLS

typedef struct
{
  const char *title;    /* what it does, behind its name in the help */
  const char *epilogue; /* the help's last lines, where PROGRAM stands for the name it was started with */
  gboolean on_ranks;    /* whether it trains on many ranks */
} Program;

G_END_DECLS
