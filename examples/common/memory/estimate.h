/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "common/options/options.h"
#include "common/ranks/ranks.h"

/* --estimate: the memory and the time of a training, without training. */

G_BEGIN_DECLS

/* Makes all parts of the training in a dry run, and prints the bytes that a step needs, who holds them, the seconds of
 * a step and the time of the run. With --report writes them as JSON, with
 * --memory-timeline as a picture. Of several ranks, which are all in the dry run, it
 * prints the one that needs most. @ranks: NULL on one rank. */
gboolean estimate_run (Options *options,
                       Ranks *ranks,
                       GError **error);

G_END_DECLS
