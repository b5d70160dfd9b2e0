/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/args.h"

/* A folder of saved states, each one file with a number that only grows. */

G_BEGIN_DECLS

/* Removes what killed writes have left, writes @tree as the newest state, then removes all but the newest @keep. */
gboolean ebb_state_folder_write (const char *folder,
                                 EbbArgs *tree,
                                 guint keep,
                                 GError **error);
/* Whether there is one, whole or not. */
gboolean ebb_state_folder_has_state (const char *folder);
/* The newest state that is whole. */
EbbArgs *ebb_state_folder_read (const char *folder,
                                GError **error);

/* One file with a tree, and the tree of such a file. */
gboolean ebb_state_file_write (const char *path,
                               EbbArgs *tree,
                               GError **error);
EbbArgs *ebb_state_file_read (const char *path,
                              GError **error);

G_END_DECLS
