/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Communicators: how they begin, split, report what they do, and end. */
#include "cudaemu/nccl/nccl-private.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <sys/random.h>

namespace cudaemu_nccl
{

void
Comm::fail (ncclResult_t result,
            const std::string &text)
{
  if (failure != ncclSuccess)
    return;
  failure = result;
  last_error = text;
}

/* The ranks of the parent with the same color, by their keys, once every rank has given its own. */
static void
advance_split (Comm *self)
{
  Comm *parent = self->parent.get ();
  std::vector<std::pair<int, int>> members;

  for (int rank = 0; rank < parent->n_ranks; rank++)
    {
      SplitEntry *entry = parent->segment->get_split_entry (self->split, rank);

      if (entry->number.load (std::memory_order_acquire) != self->split)
        return;
      if (entry->color == self->color)
        members.push_back ({ entry->key, rank });
    }
  std::sort (members.begin (), members.end ());
  self->n_ranks = (int) members.size ();
  for (int i = 0; i < self->n_ranks; i++)
    if (members[(std::size_t) i].second == parent->rank)
      self->rank = i;
  self->name = parent->name + "-" + std::to_string (self->split) + "-" + std::to_string (self->color);
  self->segment = Segment::open (self->name, self->n_ranks);
  if (self->segment == nullptr)
    self->fail (ncclSystemError, "there is no shared memory for " + self->name);
  self->parent = nullptr;
}

/* The first question whether calls are done is answered no; the second one enqueues them. */
ncclResult_t
Comm::advance ()
{
  if (parent != nullptr)
    advance_split (this);
  if (failure != ncclSuccess)
    return failure;
  if (segment == nullptr || !segment->is_complete () || (!called.empty () && ++n_asked < 2))
    return ncclInProgress;

  std::vector<std::shared_ptr<Operation>> operations = std::move (called);

  called.clear ();
  for (const std::shared_ptr<Operation> &operation : operations)
    {
      enqueued.push_back (operation.get ());
      if (cudaemu::enqueue_work (operation->stream, [operation] { return operation->run (); }) != cudaSuccess)
        {
          enqueued.pop_back ();
          fail (ncclUnhandledCudaError, "the stream takes no work");
        }
    }
  return failure;
}

void
Comm::deliver_splits (ncclResult_t *state)
{
  if (undelivered.empty ())
    return;
  if (++n_looks < 2)
    {
      *state = ncclInProgress;
      return;
    }
  for (const std::pair<ncclComm_t *, ncclComm_t> &child : undelivered)
    *child.first = child.second;
  undelivered.clear ();
}

ncclResult_t
call (const std::shared_ptr<Comm> &comm,
      const std::vector<std::shared_ptr<Operation>> &operations)
{
  std::unique_lock<std::mutex> guard (comm->lock);

  if (comm->failure != ncclSuccess)
    return comm->failure;
  if (!comm->called.empty ())
    {
      comm->fail (ncclInvalidUsage, "a call before the one before it was enqueued");
      return comm->failure;
    }
  comm->called = operations;
  comm->n_asked = 0;
  return ncclInProgress;
}

std::shared_ptr<Comm>
find_comm (ncclComm_t comm)
{
  return comm != nullptr ? comm->comm : nullptr;
}

} // namespace cudaemu_nccl

using namespace cudaemu_nccl;

const char *
ncclGetErrorString (ncclResult_t result)
{
  switch (result)
    {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclSystemError: return "unhandled system error";
    case ncclInternalError: return "internal error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
    }
  return "unknown result code";
}

const char *
ncclGetLastError (ncclComm_t comm)
{
  return comm != nullptr ? comm->comm->last_error.c_str () : "";
}

ncclResult_t
ncclGetVersion (int *version)
{
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t
ncclGetUniqueId (ncclUniqueId *id)
{
  std::uint64_t number;

  if (getrandom (&number, sizeof number, 0) != (ssize_t) sizeof number)
    return ncclSystemError;
  std::memset (id, 0, sizeof *id);
  std::snprintf (id->internal, sizeof id->internal, "/cudaemu-nccl-%016llx", (unsigned long long) number);
  return ncclSuccess;
}

ncclResult_t
ncclCommInitRankConfig (ncclComm_t *comm,
                        int n_ranks,
                        ncclUniqueId id,
                        int rank,
                        ncclConfig_t *config)
{
  std::shared_ptr<Comm> self = std::make_shared<Comm> ();

  *comm = nullptr;
  if (rank < 0 || rank >= n_ranks || config->blocking != 0)
    return ncclInvalidArgument;
  cudaemu::start_progress ();
  self->rank = rank;
  self->n_ranks = n_ranks;
  self->name = id.internal;
  self->segment = Segment::open (self->name, n_ranks);
  if (self->segment == nullptr)
    return ncclSystemError;
  *comm = new ncclComm{ self };
  return ncclInProgress;
}

ncclResult_t
ncclCommSplit (ncclComm_t comm,
               int color,
               int key,
               ncclComm_t *child,
               ncclConfig_t *config)
{
  std::shared_ptr<Comm> parent = find_comm (comm), self = std::make_shared<Comm> ();

  *child = nullptr;
  if (parent == nullptr || color < 0 || config->blocking != 0)
    return ncclInvalidArgument;

  std::unique_lock<std::mutex> guard (parent->lock);
  SplitEntry *entry;

  self->parent = parent;
  self->split = ++parent->n_splits;
  self->color = color;
  entry = parent->segment->get_split_entry (self->split, parent->rank);
  entry->color = color;
  entry->key = key;
  entry->number.store (self->split, std::memory_order_release);
  parent->undelivered.emplace_back (child, new ncclComm{ self });
  parent->n_looks = 0;
  return ncclSuccess; /* as NCCL, though it goes on */
}

ncclResult_t
ncclCommGetAsyncError (ncclComm_t comm,
                       ncclResult_t *state)
{
  if (comm == nullptr)
    return ncclInvalidArgument;

  std::unique_lock<std::mutex> guard (comm->comm->lock);

  *state = comm->comm->advance ();
  comm->comm->deliver_splits (state);
  return ncclSuccess;
}

ncclResult_t
ncclCommFinalize (ncclComm_t comm)
{
  return comm != nullptr ? ncclSuccess : ncclInvalidArgument;
}

ncclResult_t
ncclCommDestroy (ncclComm_t comm)
{
  delete comm;
  return ncclSuccess;
}

/* Its work ends as it is, at the next look at it. */
ncclResult_t
ncclCommAbort (ncclComm_t comm)
{
  if (comm == nullptr)
    return ncclInvalidArgument;
  comm->comm->is_aborted = true;
  delete comm;
  return ncclSuccess;
}
