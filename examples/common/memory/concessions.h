/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "common/options/options.h"

/* The options that --allow names: they change values or the order of sums, so they are taken only where no plan fits
 * without them, and no more than are needed. */

G_BEGIN_DECLS

/* Tells whether the training fits with the options unchanged. *@needed: bytes with which the training would fit;
 * G_MAXUINT64 if unknown; 0 if the failure has another reason, which other options don't mend. */
typedef gboolean (*ConcessionAttempt) (Options *options,
                                       gpointer data,
                                       guint64 *needed,
                                       GError **error);

/* Refuses what --allow can't name. */
gboolean concessions_check (const Options *options,
                            GError **error);
/* Whether --allow permits a change; a program that tunes has all permitted where that isn't given. */
gboolean concessions_may_take (const Options *options,
                               EbbConcessions change);
/* Tells whether --allow permits any concession. */
gboolean concessions_are_allowed (const Options *options);
/* Changes the options until they fit, as --allow says. *@taken_names: the concessions that were taken, owned by
 * the caller; NULL if none was. FALSE with the error of the permitted attempt that needs the fewest bytes; the error
 * names the concessions that would have been enough. */
gboolean concessions_take (Options *options,
                           guint n_ranks,
                           ConcessionAttempt attempt,
                           gpointer data,
                           char **taken_names,
                           GError **error);
/* The change of a name; EBB_CONCESSIONS_NONE if there is none. */
EbbConcessions concessions_find (const char *name);
/* What a training has of these, by --allow or by options of its own. */
char **concessions_list (const Options *options);

G_END_DECLS
