/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* A stand-in for NCCL: processes of one machine exchange bytes over shared memory. Several may share an emulated GPU.
 *
 * As in a communicator of NCCL that doesn't block, calls return before their work is enqueued; the work of one
 * communicator runs in the order of its calls, whatever their streams; and a call that the other ranks don't make never
 * ends, until the communicator is aborted. */

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "nccl.h"

#include "cudaemu/runtime.h"

namespace cudaemu_nccl
{

/* -- what ranks share (segment.cpp) -------------------------------------------------------------------------------- */

constexpr std::size_t CHANNEL_SIZE = 256 * 1024;

/* Bytes from one rank to another. */
struct Channel
{
  std::atomic<std::uint64_t> n_written, n_read;
  char data[CHANNEL_SIZE];
};

/* A rank's part in a split: as many ranks as there are come to one before any comes to the next. */
struct SplitEntry
{
  std::atomic<std::uint32_t> number; /* of the split, from 1 */
  std::int32_t color, key;
};

class Segment
{
public:
  /* Never waits; NULL if there is no shared memory. */
  static std::shared_ptr<Segment> open (const std::string &name,
                                        int n_ranks);
  ~Segment ();
  Segment (const Segment &) = delete;
  Segment &operator= (const Segment &) = delete;

  bool is_complete () const;
  Channel *get_channel (int from,
                        int to) const;
  SplitEntry *get_split_entry (std::uint32_t number,
                               int rank) const;

private:
  Segment () = default;

  std::string name;
  int n_ranks = 0;
  char *data = nullptr;
  std::size_t size = 0;
};

/* As many bytes as fit, or as are there. */
std::size_t write_some (Channel *channel,
                        const char *data,
                        std::size_t size);
std::size_t read_some (Channel *channel,
                       char *data,
                       std::size_t size);

/* -- work of a communicator (operation.cpp) ------------------------------------------------------------------------ */

struct Comm;

/* Bytes for a peer, or from one, which come after a header that says which call they belong to. */
struct Transfer
{
  int peer;
  char *data;
  std::size_t size;
  std::uint64_t tag; /* the kind of call, its type and operation */
};

/* All calls of one group in one stream. */
struct Operation
{
  std::shared_ptr<Comm> comm;
  cudaStream_t stream;
  std::vector<std::pair<const void *, std::size_t>> memory; /* must be the device's */
  std::vector<std::pair<Transfer, Transfer>> local;         /* to this rank itself: from, to */
  std::vector<std::deque<Transfer>> sends, receives;        /* by peer */
  std::vector<std::size_t> n_sent, n_received;              /* of the first one of each, with its header */
  std::vector<std::function<void ()>> finish;               /* after all transfers */
  bool has_begun = false;

  explicit Operation (std::shared_ptr<Comm> owner,
                      cudaStream_t queue);
  /* Part of a stream's work: false as long as it waits for other ranks. */
  bool run ();

private:
  bool begin ();
  bool advance ();
};

/* -- a communicator (communicator.cpp) ----------------------------------------------------------------------------- */

struct Comm
{
  std::mutex lock; /* of all below */
  int rank = 0, n_ranks = 0;
  std::string name;
  std::shared_ptr<Segment> segment; /* NULL while a split goes on */
  ncclResult_t failure = ncclSuccess;
  std::string last_error;
  std::uint32_t n_splits = 0;
  std::atomic<bool> is_aborted{ false };
  /* A split that goes on. */
  std::shared_ptr<Comm> parent;
  std::uint32_t split = 0;
  int color = 0;
  /* Where splits of this one are to be written, as NCCL does some time after the call. */
  std::vector<std::pair<ncclComm_t *, ncclComm_t>> undelivered;
  int n_looks = 0;
  /* Calls that are not enqueued yet, and how often somebody asked for their state. */
  std::vector<std::shared_ptr<Operation>> called;
  int n_asked = 0;
  std::deque<Operation *> enqueued; /* in the order in which they run */

  void fail (ncclResult_t result,
             const std::string &text);
  /* Goes on with what doesn't block; with the lock. */
  ncclResult_t advance ();
  /* At the second look at the state; before, it is in progress. With the lock. */
  void deliver_splits (ncclResult_t *state);
};

std::shared_ptr<Comm> find_comm (ncclComm_t comm);
/* Enqueues what was called, now or when somebody asks whether it is done. */
ncclResult_t call (const std::shared_ptr<Comm> &comm,
                   const std::vector<std::shared_ptr<Operation>> &operations);

} // namespace cudaemu_nccl

/* The handle. */
struct ncclComm
{
  std::shared_ptr<cudaemu_nccl::Comm> comm;
};
