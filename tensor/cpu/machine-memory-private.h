/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <glib.h>

G_BEGIN_DECLS

/* Bytes that the machine has, or that the control groups of the process allow. */
guint64 ebb_machine_get_memory (void);
/* Bytes that they could still give. */
guint64 ebb_machine_get_available_memory (void);

/* The least limit of the control groups, or with @is_left the least that one of them may still take; G_MAXUINT64: there
 * is no limit. @groups: the text of /proc/self/cgroup; @root: where their folders are. */
guint64 ebb_machine_read_groups (const char *groups,
                                 const char *root,
                                 gboolean is_left);

G_END_DECLS
