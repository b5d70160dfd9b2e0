/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Stacks of their own for threads that wait, and switching between them. */
#include "cudaemu/fiber.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace cudaemu
{

#if defined(__SANITIZE_ADDRESS__)
constexpr std::size_t STACK_SIZE = 512 * 1024;
#else
constexpr std::size_t STACK_SIZE = 128 * 1024;
#endif
constexpr std::size_t PAGE = 4096;
/* Stacks that begin at the same place of their pages would share a few lines of the caches. */
constexpr std::size_t COLOURS = 61, COLOUR_SIZE = 192;

/* -- switching ----------------------------------------------------------------------------------------------------- */

#if defined(__x86_64__) && !defined(CUDAEMU_UCONTEXT)
/* Saves the registers that a function preserves, exchanges the stacks, restores the other's. */
extern "C" void cudaemu_switch_stack (void **from,
                                      void *to);
/* clang-format off */
asm (".text\n"
     ".hidden cudaemu_switch_stack\n"
     ".type cudaemu_switch_stack, @function\n"
     "cudaemu_switch_stack:\n"
     "pushq %rbp\n"
     "pushq %rbx\n"
     "pushq %r12\n"
     "pushq %r13\n"
     "pushq %r14\n"
     "pushq %r15\n"
     "movq %rsp, (%rdi)\n"
     "movq %rsi, %rsp\n"
     "popq %r15\n"
     "popq %r14\n"
     "popq %r13\n"
     "popq %r12\n"
     "popq %rbx\n"
     "popq %rbp\n"
     "ret\n"
     ".size cudaemu_switch_stack, .-cudaemu_switch_stack\n");
/* clang-format on */

static void
exchange_stacks (Fiber *from,
                 Fiber *to)
{
  cudaemu_switch_stack (&from->stack_pointer, to->stack_pointer);
}
#else
static void
exchange_stacks (Fiber *from,
                 Fiber *to)
{
  swapcontext (from->context, to->context);
}
#endif

/* The fiber that is being left, and the one that is entered: the first call of a fiber has no arguments. */
static Fiber *left, *entered;
static void (*fiber_main) (Fiber *self);

static void
finish_switch ()
{
#if defined(__SANITIZE_ADDRESS__)
  const void *bottom;
  std::size_t size;

  __sanitizer_finish_switch_fiber (entered->fake_stack, &bottom, &size);
  left->stack = bottom;
  left->stack_size = size;
#endif
}

void
fiber_switch (Fiber *from,
              Fiber *to)
{
  left = from;
  entered = to;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber (&from->fake_stack, to->stack, to->stack_size);
#endif
  exchange_stacks (from, to);
  finish_switch ();
}

/* -- making -------------------------------------------------------------------------------------------------------- */

static void
begin ()
{
  finish_switch ();
  fiber_main (entered);
  abort ();
}

Fiber *
fiber_new (void (*main) (Fiber *self))
{
  static std::size_t n_made;
  std::size_t colour = n_made++ % COLOURS * COLOUR_SIZE;
  std::size_t size = STACK_SIZE + (COLOURS * COLOUR_SIZE + PAGE - 1) / PAGE * PAGE;
  void *memory =
      mmap (nullptr, PAGE + size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  Fiber *self = new Fiber ();

  if (memory == MAP_FAILED || mprotect (memory, PAGE, PROT_NONE) != 0)
    {
      fprintf (stderr, "cudaemu: there is no memory for a fiber's stack\n");
      abort ();
    }
  fiber_main = main;
  self->stack = static_cast<char *> (memory) + PAGE;
  self->stack_size = size - colour;
#if defined(__x86_64__) && !defined(CUDAEMU_UCONTEXT)
  /* As if begin () had been called: seven words below lie the registers and its address. */
  void **top = reinterpret_cast<void **> (static_cast<char *> (memory) + PAGE + self->stack_size) - 2;

  *top = reinterpret_cast<void *> (begin);
  self->stack_pointer = top - 6;
#else
  self->context = new ucontext_t;
  getcontext (self->context);
  self->context->uc_stack.ss_sp = static_cast<char *> (memory) + PAGE;
  self->context->uc_stack.ss_size = self->stack_size;
  self->context->uc_link = nullptr;
  makecontext (self->context, begin, 0);
#endif
  return self;
}

void
fiber_init_host (Fiber *host)
{
  *host = Fiber ();
#if !defined(__x86_64__) || defined(CUDAEMU_UCONTEXT)
  static thread_local ucontext_t context;

  host->context = &context;
#endif
}

} // namespace cudaemu
