/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* How data are moved and reduced: each rank sends to the ranks that need it, and reduces received data rank by rank. */
#include "cudaemu/nccl/nccl-private.h"

#include <cstring>

namespace cudaemu_nccl
{

struct Header
{
  std::uint64_t tag, size;
};

Operation::Operation (std::shared_ptr<Comm> owner,
                      cudaStream_t queue)
    : comm (owner), stream (queue)
{
  std::size_t n = (std::size_t) comm->n_ranks;

  sends.resize (n);
  receives.resize (n);
  n_sent.resize (n);
  n_received.resize (n);
}

/* -- moving -------------------------------------------------------------------------------------------------------- */

/* Bytes [done, header and data together) of one transfer. */
static bool
send_some (Channel *channel,
           const Transfer &transfer,
           std::size_t *done)
{
  const Header header = { transfer.tag, transfer.size };
  const char *bytes = reinterpret_cast<const char *> (&header);

  if (*done < sizeof header)
    *done += write_some (channel, bytes + *done, sizeof header - *done);
  if (*done >= sizeof header)
    *done += write_some (channel, transfer.data + (*done - sizeof header), transfer.size + sizeof header - *done);
  return *done == transfer.size + sizeof header;
}

/* FALSE with @mismatch set if the peer sends something else. */
static bool
receive_some (Channel *channel,
              const Transfer &transfer,
              std::size_t *done,
              bool *mismatch)
{
  if (*done == 0)
    {
      Header header;

      if (channel->n_written.load (std::memory_order_acquire) - channel->n_read.load () < sizeof header)
        return false;
      read_some (channel, reinterpret_cast<char *> (&header), sizeof header);
      *mismatch = header.tag != transfer.tag || header.size != transfer.size;
      if (*mismatch)
        return false;
      *done = sizeof header;
    }
  *done += read_some (channel, transfer.data + (*done - sizeof (Header)), transfer.size + sizeof (Header) - *done);
  return *done == transfer.size + sizeof (Header);
}

bool
Operation::begin ()
{
  for (const auto &range : memory)
    if (range.second > 0 && !cudaemu::is_device_memory (range.first, range.second))
      {
        comm->fail (ncclInvalidArgument, "memory that is not the device's");
        return false;
      }
  for (const auto &pair : local)
    std::memmove (pair.second.data, pair.first.data, pair.first.size);
  return true;
}

bool
Operation::advance ()
{
  bool is_done = true;

  for (std::size_t peer = 0; peer < sends.size (); peer++)
    {
      Channel *out = comm->segment->get_channel (comm->rank, (int) peer);
      Channel *in = comm->segment->get_channel ((int) peer, comm->rank);
      bool mismatch = false;

      while (!sends[peer].empty () && send_some (out, sends[peer].front (), &n_sent[peer]))
        {
          sends[peer].pop_front ();
          n_sent[peer] = 0;
        }
      while (!receives[peer].empty () && receive_some (in, receives[peer].front (), &n_received[peer], &mismatch))
        {
          receives[peer].pop_front ();
          n_received[peer] = 0;
        }
      if (mismatch)
        comm->fail (ncclInvalidUsage, "rank " + std::to_string (peer) + " makes another call");
      is_done = is_done && sends[peer].empty () && receives[peer].empty ();
    }
  return is_done;
}

/* An aborted communicator's work is over, as it is. One that has failed does nothing until it is aborted. */
bool
Operation::run ()
{
  if (comm->is_aborted)
    return true;

  std::unique_lock<std::mutex> guard (comm->lock, std::try_to_lock);

  if (!guard.owns_lock () || comm->failure != ncclSuccess || comm->enqueued.front () != this)
    return false;
  if (!has_begun && !begin ())
    return false;
  has_begun = true;
  if (!advance () || comm->failure != ncclSuccess)
    return false;
  for (const std::function<void ()> &func : finish)
    func ();
  comm->enqueued.pop_front ();
  return true;
}

/* -- reducing ------------------------------------------------------------------------------------------------------ */

static std::size_t
get_size (ncclDataType_t type)
{
  switch (type)
    {
    case ncclInt8:
    case ncclUint8: return 1;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32: return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64: return 8;
    }
  return 0;
}

template <typename T>
static void
combine (T *sum,
         const T *x,
         std::size_t n,
         ncclRedOp_t op)
{
  for (std::size_t i = 0; i < n; i++)
    if (op == ncclMin)
      sum[i] = x[i] < sum[i] ? x[i] : sum[i];
    else if (op == ncclMax)
      sum[i] = x[i] > sum[i] ? x[i] : sum[i];
    else
      sum[i] = (T) (sum[i] + x[i]);
}

/* A mean of floats is the sum of each rank's values divided by the number of ranks. */
static void
combine_means (float *sum,
               const float *x,
               std::size_t n,
               float factor)
{
  for (std::size_t i = 0; i < n; i++)
    sum[i] += x[i] * factor;
}

/* FALSE if Ebb doesn't call for it: its result would not be what NCCL's is. */
static bool
can_reduce (ncclDataType_t type,
            ncclRedOp_t op)
{
  switch (type)
    {
    case ncclFloat32: return op == ncclSum || op == ncclAvg;
    case ncclUint8:
    case ncclInt32:
    case ncclInt64: return op == ncclSum || op == ncclMin || op == ncclMax;
    default: return false;
    }
}

/* Sums wrap. */
template <typename Signed, typename Unsigned>
static void
combine_integers (char *sum,
                  const char *x,
                  std::size_t n,
                  ncclRedOp_t op)
{
  if (op == ncclSum)
    combine (reinterpret_cast<Unsigned *> (sum), reinterpret_cast<const Unsigned *> (x), n, op);
  else
    combine (reinterpret_cast<Signed *> (sum), reinterpret_cast<const Signed *> (x), n, op);
}

static void
reduce_rank (char *sum,
             const char *x,
             std::size_t n,
             ncclDataType_t type,
             ncclRedOp_t op,
             int n_ranks)
{
  float *floats = reinterpret_cast<float *> (sum);
  const float *other_floats = reinterpret_cast<const float *> (x);

  if (type == ncclInt32)
    combine_integers<std::int32_t, std::uint32_t> (sum, x, n, op);
  else if (type == ncclInt64)
    combine_integers<std::int64_t, std::uint64_t> (sum, x, n, op);
  else if (type == ncclUint8)
    combine_integers<std::uint8_t, std::uint8_t> (sum, x, n, op);
  else if (op == ncclAvg)
    combine_means (floats, other_floats, n, 1.0f / (float) n_ranks);
  else
    combine (floats, other_floats, n, op);
}

/* -- groups of calls ----------------------------------------------------------------------------------------------- */

static thread_local int group_depth;
static thread_local std::vector<std::shared_ptr<Operation>> group_operations;
static thread_local ncclResult_t group_failure;

static Operation *
get_operation (const std::shared_ptr<Comm> &comm,
               cudaStream_t stream)
{
  for (const std::shared_ptr<Operation> &operation : group_operations)
    if (operation->comm == comm && operation->stream == stream)
      return operation.get ();
  group_operations.push_back (std::make_shared<Operation> (comm, stream));
  return group_operations.back ().get ();
}

static ncclResult_t
end_group ()
{
  std::vector<std::shared_ptr<Operation>> operations = std::move (group_operations);
  ncclResult_t result = group_failure;

  group_operations.clear ();
  group_failure = ncclSuccess;
  while (result == ncclSuccess || result == ncclInProgress)
    {
      std::vector<std::shared_ptr<Operation>> own, rest;

      if (operations.empty ())
        break;
      for (const std::shared_ptr<Operation> &operation : operations)
        (operation->comm == operations.front ()->comm ? own : rest).push_back (operation);
      result = call (own.front ()->comm, own);
      operations = rest;
    }
  return result;
}

static char *
to_bytes (const void *data)
{
  return static_cast<char *> (const_cast<void *> (data));
}

/* Adds one call to the group, or makes it at once. */
template <typename Add>
static ncclResult_t
add_call (ncclComm_t handle,
          cudaStream_t stream,
          bool is_valid,
          Add add)
{
  std::shared_ptr<Comm> comm = find_comm (handle);
  ncclResult_t result = comm != nullptr && is_valid ? ncclSuccess : ncclInvalidArgument;

  if (result == ncclSuccess)
    add (get_operation (comm, stream));
  else if (group_depth > 0 && group_failure == ncclSuccess)
    group_failure = result;
  return group_depth > 0 || result != ncclSuccess ? result : end_group ();
}

static void
add_send (Operation *operation,
          int peer,
          const char *data,
          std::size_t size,
          std::uint64_t tag)
{
  operation->memory.push_back ({ data, size });
  operation->sends[(std::size_t) peer].push_back ({ peer, const_cast<char *> (data), size, tag });
}

static void
add_receive (Operation *operation,
             int peer,
             char *data,
             std::size_t size,
             std::uint64_t tag)
{
  operation->memory.push_back ({ data, size });
  operation->receives[(std::size_t) peer].push_back ({ peer, data, size, tag });
}

static void
add_copy (Operation *operation,
          char *to,
          const char *from,
          std::size_t size)
{
  operation->memory.push_back ({ to, size });
  operation->memory.push_back ({ from, size });
  operation->local.push_back ({ { 0, const_cast<char *> (from), size, 0 }, { 0, to, size, 0 } });
}

enum Kind
{
  ALL_REDUCE = 1,
  REDUCE,
  REDUCE_SCATTER,
  ALL_GATHER,
  BROADCAST,
  PAIR
};

static std::uint64_t
make_tag (Kind kind,
          ncclDataType_t type,
          int op,
          int root)
{
  return (std::uint64_t) kind << 48 | (std::uint64_t) type << 32 | (std::uint64_t) op << 24 | (std::uint64_t) root;
}

/* Gets @n elements from each rank, this one's lie at @own, and writes their reduction to @to when all have come. */
static void
add_reduction (Operation *operation,
               const char *own,
               char *to,
               std::size_t n,
               ncclDataType_t type,
               ncclRedOp_t op,
               std::uint64_t tag)
{
  const std::size_t size = n * get_size (type);
  const int n_ranks = operation->comm->n_ranks, rank = operation->comm->rank;
  auto rows = std::make_shared<std::vector<char>> (size * (std::size_t) n_ranks);

  for (int r = 0; r < n_ranks; r++)
    if (r != rank)
      operation->receives[(std::size_t) r].push_back ({ r, rows->data () + size * (std::size_t) r, size, tag });
  operation->memory.push_back ({ own, size });
  operation->memory.push_back ({ to, size });
  operation->finish.push_back ([=] {
    std::vector<char> sum (size);

    std::memcpy (rows->data () + size * (std::size_t) rank, own, size);
    if (op != ncclAvg)
      std::memcpy (sum.data (), rows->data (), size);
    for (int r = op == ncclAvg ? 0 : 1; r < n_ranks; r++)
      reduce_rank (sum.data (), rows->data () + size * (std::size_t) r, n, type, op, n_ranks);
    std::memcpy (to, sum.data (), size);
  });
}

} // namespace cudaemu_nccl

using namespace cudaemu_nccl;

ncclResult_t
ncclGroupStart ()
{
  group_depth++;
  return ncclSuccess;
}

ncclResult_t
ncclGroupEnd ()
{
  if (group_depth == 0)
    return ncclInvalidUsage;
  return --group_depth == 0 ? end_group () : ncclSuccess;
}

ncclResult_t
ncclAllReduce (const void *from,
               void *to,
               size_t n,
               ncclDataType_t type,
               ncclRedOp_t op,
               ncclComm_t comm,
               cudaStream_t stream)
{
  return add_call (comm, stream, can_reduce (type, op), [=] (Operation *operation) {
    const std::uint64_t tag = make_tag (ALL_REDUCE, type, op, 0);

    for (int r = 0; r < operation->comm->n_ranks; r++)
      if (r != operation->comm->rank)
        add_send (operation, r, to_bytes (from), n * get_size (type), tag);
    add_reduction (operation, to_bytes (from), to_bytes (to), n, type, op, tag);
  });
}

ncclResult_t
ncclReduce (const void *from,
            void *to,
            size_t n,
            ncclDataType_t type,
            ncclRedOp_t op,
            int root,
            ncclComm_t comm,
            cudaStream_t stream)
{
  return add_call (comm, stream, can_reduce (type, op), [=] (Operation *operation) {
    const std::uint64_t tag = make_tag (REDUCE, type, op, root);

    if (root != operation->comm->rank)
      add_send (operation, root, to_bytes (from), n * get_size (type), tag);
    else
      add_reduction (operation, to_bytes (from), to_bytes (to), n, type, op, tag);
  });
}

ncclResult_t
ncclReduceScatter (const void *from,
                   void *to,
                   size_t n,
                   ncclDataType_t type,
                   ncclRedOp_t op,
                   ncclComm_t comm,
                   cudaStream_t stream)
{
  return add_call (comm, stream, can_reduce (type, op), [=] (Operation *operation) {
    const std::size_t size = n * get_size (type);
    const int rank = operation->comm->rank;
    const std::uint64_t tag = make_tag (REDUCE_SCATTER, type, op, 0);

    for (int r = 0; r < operation->comm->n_ranks; r++)
      if (r != rank)
        add_send (operation, r, to_bytes (from) + size * (std::size_t) r, size, tag);
    add_reduction (operation, to_bytes (from) + size * (std::size_t) rank, to_bytes (to), n, type, op, tag);
  });
}

ncclResult_t
ncclAllGather (const void *from,
               void *to,
               size_t n,
               ncclDataType_t type,
               ncclComm_t comm,
               cudaStream_t stream)
{
  return add_call (comm, stream, true, [=] (Operation *operation) {
    const std::size_t size = n * get_size (type);
    const std::uint64_t tag = make_tag (ALL_GATHER, type, 0, 0);

    for (int r = 0; r < operation->comm->n_ranks; r++)
      if (r != operation->comm->rank)
        {
          add_send (operation, r, to_bytes (from), size, tag);
          add_receive (operation, r, to_bytes (to) + size * (std::size_t) r, size, tag);
        }
      else
        add_copy (operation, to_bytes (to) + size * (std::size_t) r, to_bytes (from), size);
  });
}

ncclResult_t
ncclBroadcast (const void *from,
               void *to,
               size_t n,
               ncclDataType_t type,
               int root,
               ncclComm_t comm,
               cudaStream_t stream)
{
  return add_call (comm, stream, true, [=] (Operation *operation) {
    const std::size_t size = n * get_size (type);
    const std::uint64_t tag = make_tag (BROADCAST, type, 0, root);

    if (root != operation->comm->rank)
      {
        add_receive (operation, root, to_bytes (to), size, tag);
        return;
      }
    for (int r = 0; r < operation->comm->n_ranks; r++)
      if (r != root)
        add_send (operation, r, to_bytes (from), size, tag);
    add_copy (operation, to_bytes (to), to_bytes (from), size);
  });
}

ncclResult_t
ncclSend (const void *from,
          size_t n,
          ncclDataType_t type,
          int peer,
          ncclComm_t comm,
          cudaStream_t stream)
{
  return add_call (comm, stream, true, [=] (Operation *operation) {
    add_send (operation, peer, to_bytes (from), n * get_size (type), make_tag (PAIR, type, 0, 0));
  });
}

ncclResult_t
ncclRecv (void *to,
          size_t n,
          ncclDataType_t type,
          int peer,
          ncclComm_t comm,
          cudaStream_t stream)
{
  return add_call (comm, stream, true, [=] (Operation *operation) {
    add_receive (operation, peer, to_bytes (to), n * get_size (type), make_tag (PAIR, type, 0, 0));
  });
}
