/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The memory that the ranks of a communicator share: a channel for each pair of ranks, and a board for splits. */
#include "cudaemu/nccl/nccl-private.h"

#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace cudaemu_nccl
{

/* A new segment is full of zeros. */
struct Header
{
  std::atomic<std::uint32_t> n_attached;
};

constexpr std::size_t HEADER_SIZE = 64;

std::shared_ptr<Segment>
Segment::open (const std::string &name,
               int n_ranks)
{
  std::size_t n = (std::size_t) n_ranks;
  std::size_t size = HEADER_SIZE + 2 * n * sizeof (SplitEntry) + n * n * sizeof (Channel);
  int file = shm_open (name.c_str (), O_RDWR | O_CREAT | O_CLOEXEC, 0600);

  if (file < 0)
    return nullptr;

  void *data = ftruncate (file, (off_t) size) == 0
                   ? mmap (nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)
                   : MAP_FAILED;

  close (file);
  if (data == MAP_FAILED)
    return nullptr;

  std::shared_ptr<Segment> self (new Segment ());

  self->name = name;
  self->n_ranks = n_ranks;
  self->data = static_cast<char *> (data);
  self->size = size;
  /* Nobody needs the name once all ranks have attached. */
  if (reinterpret_cast<Header *> (self->data)->n_attached.fetch_add (1) + 1 == (std::uint32_t) n_ranks)
    shm_unlink (name.c_str ());
  return self;
}

Segment::~Segment ()
{
  if (!is_complete ())
    shm_unlink (name.c_str ());
  munmap (data, size);
}

bool
Segment::is_complete () const
{
  return reinterpret_cast<const Header *> (data)->n_attached.load () >= (std::uint32_t) n_ranks;
}

SplitEntry *
Segment::get_split_entry (std::uint32_t number,
                          int rank) const
{
  return reinterpret_cast<SplitEntry *> (data + HEADER_SIZE) + (number % 2) * (std::size_t) n_ranks + rank;
}

Channel *
Segment::get_channel (int from,
                      int to) const
{
  char *channels = data + HEADER_SIZE + 2 * (std::size_t) n_ranks * sizeof (SplitEntry);

  return reinterpret_cast<Channel *> (channels) + (std::size_t) from * n_ranks + to;
}

/* -- channels ------------------------------------------------------------------------------------------------------ */

std::size_t
write_some (Channel *channel,
            const char *data,
            std::size_t size)
{
  std::uint64_t end = channel->n_written.load (std::memory_order_relaxed);
  std::size_t room = CHANNEL_SIZE - (std::size_t) (end - channel->n_read.load (std::memory_order_acquire));
  std::size_t n = size < room ? size : room, at = end % CHANNEL_SIZE;
  std::size_t first = n < CHANNEL_SIZE - at ? n : CHANNEL_SIZE - at;

  std::memcpy (channel->data + at, data, first);
  std::memcpy (channel->data, data + first, n - first);
  channel->n_written.store (end + n, std::memory_order_release);
  return n;
}

std::size_t
read_some (Channel *channel,
           char *data,
           std::size_t size)
{
  std::uint64_t begin = channel->n_read.load (std::memory_order_relaxed);
  std::size_t there = (std::size_t) (channel->n_written.load (std::memory_order_acquire) - begin);
  std::size_t n = size < there ? size : there, at = begin % CHANNEL_SIZE;
  std::size_t first = n < CHANNEL_SIZE - at ? n : CHANNEL_SIZE - at;

  std::memcpy (data, channel->data + at, first);
  std::memcpy (data + first, channel->data, n - first);
  channel->n_read.store (begin + n, std::memory_order_release);
  return n;
}

} // namespace cudaemu_nccl
