/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Signals that end a training: the first is noted; a second Ctrl-C or SIGTERM ends the program at once. */
#include "common/interrupt.h"

#include <unistd.h>

static volatile sig_atomic_t status;
static volatile sig_atomic_t was_asked; /* by a user or a scheduler */

static void
note (int number)
{
  if (status == 0)
    status = 128 + number;
}

static void
note_request (int number)
{
  if (was_asked)
    _exit (128 + number);
  was_asked = 1;
  status = 128 + number; /* whatever has closed before */
}

/* SIGHUP and SIGPIPE can arrive repeatedly: for each line to a closed output, and from shell and kernel when a terminal
 * closes. A second one must not keep the training from being saved. A process that ignores them goes on. */
static void
watch_closing (int number)
{
  struct sigaction action = { .sa_handler = note, .sa_flags = SA_RESTART }, old;

  sigemptyset (&action.sa_mask);
  if (sigaction (number, NULL, &old) == 0 && old.sa_handler != SIG_IGN)
    sigaction (number, &action, NULL);
}

void
interrupt_watch (void)
{
  struct sigaction action = { .sa_handler = note_request, .sa_flags = SA_RESTART };

  sigemptyset (&action.sa_mask);
  sigaction (SIGINT, &action, NULL);
  sigaction (SIGTERM, &action, NULL);
  watch_closing (SIGHUP);
  watch_closing (SIGPIPE);
}

int
interrupt_get_status (void)
{
  return status;
}
