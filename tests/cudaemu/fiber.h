/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Stacks that one thread of the host switches between. Each switch is announced to AddressSanitizer. */

#include <cstddef>
#include <ucontext.h>

namespace cudaemu
{

struct Fiber
{
  void *stack_pointer;
  ucontext_t *context; /* where the processor isn't x86-64 */
  const void *stack;   /* its lowest byte; of the host's own stack, known once a fiber was entered from it */
  std::size_t stack_size;
  void *fake_stack;
  Fiber *next_free;
};

/* A fiber that calls @main when it is first switched to; @main must not return. Fibers last as long as the process. */
Fiber *fiber_new (void (*main) (Fiber *self));
/* The stack that the caller runs on. */
void fiber_init_host (Fiber *host);
void fiber_switch (Fiber *from,
                   Fiber *to);

} // namespace cudaemu
