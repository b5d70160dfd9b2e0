/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Ctrl-C and SIGTERM: the first is noted, the second ends the program at once. */
#include "common/interrupt.h"

#include <signal.h>
#include <unistd.h>

static volatile sig_atomic_t status;

static void
note (int number)
{
  if (status != 0)
    _exit (status);
  status = 128 + number;
}

void
interrupt_watch (void)
{
  struct sigaction action = { .sa_handler = note, .sa_flags = SA_RESTART };

  sigemptyset (&action.sa_mask);
  sigaction (SIGINT, &action, NULL);
  sigaction (SIGTERM, &action, NULL);
}

int
interrupt_get_status (void)
{
  return status;
}
