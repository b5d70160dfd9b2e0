/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <ebb/ebb.h>

/* A device "card" without queues: its memory is its own, and it computes as the CPU does. It counts its copies and how
 * often it is waited for, and fails when told to. For internal tests. */

G_BEGIN_DECLS

typedef struct
{
  guint64 bytes_to_host, bytes_from_host;
  guint n_synchronized;
  guint fails_at; /* the number of the wait that fails; 0: none */
  gboolean copies_fail;
} TestCard;

extern TestCard test_card;

EbbDevice *test_card_open (void);

G_END_DECLS
