/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The lanes of a warp together: they meet, exchange words, multiply on tensor cores. And copies to shared memory that
 * run beside computing. */
#include "cudaemu/execution-private.h"

#include <cstring>
#include <vector>

namespace cudaemu
{

/* -- meetings ------------------------------------------------------------------------------------------------------ */

static void
check_meeting (const Warp *warp,
               std::uint32_t mask)
{
  const Meeting *first = nullptr;

  for (unsigned lane = 0; lane < 32; lane++)
    if (mask >> lane & 1)
      {
        const Meeting *meeting = &warp->meetings[lane];

        if (first == nullptr)
          first = meeting;
        if (meeting->mask != mask)
          die ("lanes of a warp meet with the masks %08x and %08x in line %d", mask, meeting->mask, meeting->line);
        if (meeting->func != first->func || meeting->line != first->line)
          die ("lanes of a warp meet in different functions, in line %d and line %d", first->line, meeting->line);
      }
}

void
warp_call (std::uint32_t mask,
           WarpFunc func,
           void *operand,
           int line)
{
  unsigned lane = grid.thread % 32;
  Warp *warp = &grid.warps[grid.thread / 32];

  if (!(mask >> lane & 1))
    die ("lane %u calls a function of its warp in line %d, whose mask %08x leaves it out", lane, line, mask);
  if ((mask & ~warp->live) != 0)
    die ("the mask %08x in line %d has lanes that have ended or are not there", mask, line);
  warp->meetings[lane] = { mask, line, func, operand };
  warp->waiting |= 1u << lane;
  if ((warp->waiting & mask) == mask)
    {
      check_meeting (warp, mask);
      if (func != nullptr)
        {
          void *operands[32] = {};

          for (unsigned i = 0; i < 32; i++)
            if (mask >> i & 1)
              operands[i] = warp->meetings[i].operand;
          func (mask, operands);
        }
      warp->waiting &= ~mask;
      warp->ready |= mask;
      grid.ready_warps |= 1u << grid.thread / 32;
    }
  suspend ();
}

/* -- words --------------------------------------------------------------------------------------------------------- */

namespace
{
struct Shuffle
{
  std::uint64_t bits, result;
  unsigned from;
  int line;
};

struct Ballot
{
  bool predicate;
  std::uint32_t result;
};
} // namespace

static void
run_shuffle (std::uint32_t mask,
             void *const operands[32])
{
  for (unsigned i = 0; i < 32; i++)
    if (mask >> i & 1)
      {
        Shuffle *self = static_cast<Shuffle *> (operands[i]);

        if (!(mask >> self->from % 32 & 1))
          die ("lane %u reads from lane %u in line %d, which the mask %08x leaves out", i, self->from % 32, self->line,
               mask);
        self->result = static_cast<const Shuffle *> (operands[self->from % 32])->bits;
      }
}

std::uint64_t
shuffle (std::uint32_t mask,
         std::uint64_t bits,
         unsigned from,
         int line)
{
  Shuffle self = { bits, 0, from, line };

  warp_call (mask, run_shuffle, &self, line);
  return self.result;
}

static void
run_ballot (std::uint32_t mask,
            void *const operands[32])
{
  std::uint32_t result = 0;

  for (unsigned i = 0; i < 32; i++)
    if ((mask >> i & 1) && static_cast<const Ballot *> (operands[i])->predicate)
      result |= 1u << i;
  for (unsigned i = 0; i < 32; i++)
    if (mask >> i & 1)
      static_cast<Ballot *> (operands[i])->result = result;
}

std::uint32_t
ballot (std::uint32_t mask,
        bool predicate,
        int line)
{
  Ballot self = { predicate, 0 };

  warp_call (mask, run_ballot, &self, line);
  return self.result;
}

/* -- tensor cores -------------------------------------------------------------------------------------------------- */

namespace
{
struct Product
{
  float *d;
  const std::uint32_t *a, *b;
};

struct Load
{
  std::uint32_t *registers;
  const void *row;
  int n;
  bool transposed;
};
} // namespace

static void
unpack (std::uint32_t word,
        float *low,
        float *high)
{
  std::uint32_t bits = word << 16;

  std::memcpy (low, &bits, sizeof bits);
  bits = word & 0xffff0000u;
  std::memcpy (high, &bits, sizeof bits);
}

/* d [16, 8] += a [16, 16] b [16, 8]. A lane has two rows of d, eight apart, and two columns side by side. */
static void
run_product (std::uint32_t mask,
             void *const operands[32])
{
  float a[16][16], b[16][8];

  (void) mask;
  for (unsigned lane = 0; lane < 32; lane++)
    {
      const Product *self = static_cast<const Product *> (operands[lane]);
      unsigned row = lane / 4, pair = lane % 4 * 2;

      for (unsigned i = 0; i < 4; i++)
        {
          float *place = &a[row + 8 * (i % 2)][pair + 8 * (i / 2)];

          unpack (self->a[i], place, place + 1);
        }
      for (unsigned i = 0; i < 2; i++)
        unpack (self->b[i], &b[pair + 8 * i][row], &b[pair + 8 * i + 1][row]);
    }
  for (unsigned row = 0; row < 16; row++)
    {
      float sums[8] = {};

      for (unsigned k = 0; k < 16; k++)
        for (unsigned column = 0; column < 8; column++)
          sums[column] += a[row][k] * b[k][column];
      for (unsigned column = 0; column < 8; column++)
        static_cast<Product *> (operands[row % 8 * 4 + column / 2])->d[row / 8 * 2 + column % 2] += sums[column];
    }
}

void
mma_bf16_16816 (float d[4],
                const std::uint32_t a[4],
                const std::uint32_t b[2],
                int line)
{
  Product self = { d, a, b };

  warp_call (0xffffffffu, run_product, &self, line);
}

static void
run_load (std::uint32_t mask,
          void *const operands[32])
{
  const int n = static_cast<const Load *> (operands[0])->n;

  (void) mask;
  for (int matrix = 0; matrix < n; matrix++)
    {
      std::uint16_t rows[8][8];

      for (int row = 0; row < 8; row++)
        {
          const void *place = static_cast<const Load *> (operands[matrix * 8 + row])->row;

          if (reinterpret_cast<std::uintptr_t> (place) % 16 != 0)
            die ("a row that ldmatrix loads is not aligned to 16 bytes: %p", place);
          std::memcpy (rows[row], place, sizeof rows[row]);
        }
      for (int lane = 0; lane < 32; lane++)
        {
          const Load *self = static_cast<const Load *> (operands[lane]);
          int i = lane / 4, k = lane % 4 * 2;
          std::uint32_t low = self->transposed ? rows[k][i] : rows[i][k];
          std::uint32_t high = self->transposed ? rows[k + 1][i] : rows[i][k + 1];

          self->registers[matrix] = low | high << 16;
        }
    }
}

void
ldmatrix (std::uint32_t *registers,
          const void *row,
          int n,
          bool transposed,
          int line)
{
  Load self = { registers, row, n, transposed };

  warp_call (0xffffffffu, run_load, &self, line);
}

/* -- copies beside computing --------------------------------------------------------------------------------------- */

namespace
{
struct Copy
{
  void *shared;
  const void *global;
  unsigned size, group;
  bool valid;
};

struct Copies
{
  std::vector<Copy> pending;
  unsigned group; /* that copies of now belong to */
};
} // namespace

static Copies *const copies = new Copies[MAX_THREADS]; /* never freed */
static bool has_copies;

void
drop_copies ()
{
  for (unsigned i = 0; has_copies && i < MAX_THREADS; i++)
    copies[i] = Copies ();
  has_copies = false;
}

void
cp_async (void *shared,
          const void *global,
          unsigned size,
          bool valid)
{
  Copies *self = &copies[grid.thread];

  if (reinterpret_cast<std::uintptr_t> (shared) % size != 0
      || (valid && reinterpret_cast<std::uintptr_t> (global) % size != 0))
    die ("an asynchronous copy of %u bytes from %p to %p is not aligned to its size", size, global, shared);
  has_copies = true;
  std::memset (shared, 0xff, size);
  self->pending.push_back ({ shared, global, size, self->group, valid });
}

void
cp_async_commit ()
{
  copies[grid.thread].group++;
}

void
cp_async_wait (unsigned n_pending)
{
  Copies *self = &copies[grid.thread];
  std::size_t n = 0;

  while (n < self->pending.size () && self->pending[n].group + n_pending < self->group)
    {
      const Copy &copy = self->pending[n++];

      if (copy.valid)
        std::memcpy (copy.shared, copy.global, copy.size);
      else
        std::memset (copy.shared, 0, copy.size);
    }
  self->pending.erase (self->pending.begin (), self->pending.begin () + (std::ptrdiff_t) n);
}

} // namespace cudaemu
