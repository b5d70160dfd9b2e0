/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* How a call is prepared: checked, numbered, counted, queued. */
#include "dist/group/group-private.h"
#include "tensor/cpu/cpu-private.h"
#include "tensor/backend/backend-private.h"
#include "tensor/dry-run-private.h"
#include "tensor/tensor-private.h"
#include "tensor/thread-private.h"

#include <string.h>

/* -- checks -------------------------------------------------------------------------------------------------------- */

static gboolean
has_shard (EbbCollective which)
{
  return which == EBB_COLLECTIVE_REDUCE_SCATTER || which == EBB_COLLECTIVE_ALL_GATHER
         || which == EBB_COLLECTIVE_ALL_TO_ALL;
}

static gboolean
check_tensor (EbbTensor *tensor,
              const char *name,
              GError **error)
{
  g_autofree char *shape = NULL;

  if (tensor->storage->placeholder)
    return ebb_fail (error, EBB_ERROR_STOP,
                     "%s: the tensor has no data: it was made after a recompute had all it needed", name);
  if (ebb_view_is_contiguous (&tensor->view))
    return TRUE;
  shape = ebb_tensor_shape_to_string (tensor);
  return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                   "%s: a tensor of shape %s is not contiguous; call contiguous () on it", name, shape);
}

static gboolean
overlaps (EbbTensor *full,
          EbbTensor *shard,
          gint64 begin)
{
  const char *a = full->view.data, *b = shard->view.data;
  const gsize size = ebb_dtype_get_size (full->view.dtype);

  if (a == NULL || b == NULL || b == a + (gsize) begin * size)
    return FALSE;
  return b < a + (gsize) full->n_elements * size && a < b + (gsize) shard->n_elements * size;
}

/* Compares the shard with its place in the full tensor; @begin, @n: this rank's. */
static gboolean
check_shard (const EbbCollectivePart *part,
             EbbCollective which,
             gint64 begin,
             gint64 n,
             GError **error)
{
  const char *name = ebb_collective_get_name (which);
  EbbTensor *shard = part->shard;
  const gboolean is_exchange = which == EBB_COLLECTIVE_ALL_TO_ALL;

  if (is_exchange)
    n = part->full->n_elements;
  if (shard == NULL)
    {
      if (n == 0)
        return TRUE;
      return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                       "%s: this rank has no tensor for its shard of %" G_GINT64_FORMAT " elements", name, n);
    }
  if (!check_tensor (shard, name, error))
    return FALSE;
  if (shard->view.dtype != part->full->view.dtype)
    return ebb_fail (error, EBB_ERROR_DTYPE, "%s: the shard is %s, the full tensor %s; they must be the same", name,
                     ebb_dtype_get_name (shard->view.dtype), ebb_dtype_get_name (part->full->view.dtype));
  if (shard->n_elements != n)
    {
      g_autofree char *a = ebb_tensor_shape_to_string (shard);
      g_autofree char *b = ebb_tensor_shape_to_string (part->full);

      return ebb_fail (error, EBB_ERROR_SHAPE,
                       "%s: the shard has shape %s, %" G_GINT64_FORMAT " elements of %s are this rank's", name, a, n,
                       b);
    }
  if (overlaps (part->full, shard, is_exchange ? -part->full->n_elements : begin))
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     is_exchange ? "%s: the result overlaps the input; they must be apart"
                                 : "%s: the shard overlaps the full tensor elsewhere than at its place",
                     name);
  return TRUE;
}

static gboolean
check_op (EbbCollective which,
          EbbReduceOp op,
          EbbDType dtype,
          GError **error)
{
  return !ebb_collective_reduces (which) || op != EBB_REDUCE_OP_MEAN || dtype != EBB_DTYPE_BOOL
         || ebb_fail (error, EBB_ERROR_DTYPE, "%s: there is no mean of bool; sum is the logical or",
                      ebb_collective_get_name (which));
}

/* A peer must be a rank of the group. */
static gboolean
check_peer (EbbGroupState *state,
            EbbCollective which,
            guint peer,
            GError **error)
{
  const char *name = ebb_collective_get_name (which);
  const gboolean is_pair = ebb_collective_is_pair (which);

  if (!is_pair && which != EBB_COLLECTIVE_BROADCAST)
    return TRUE;
  if (peer >= state->size)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "%s: there is no rank %u; the ranks are 0 to %u", name, peer,
                     state->size - 1);
  if (is_pair && peer == state->rank)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "%s: rank %u is this rank itself", name, peer);
  return TRUE;
}

/* -- the call ------------------------------------------------------------------------------------------------------ */

/* counts [size] and starts [size + 1] of one part. */
static gboolean
fill_counts (EbbGroupState *state,
             EbbCollective which,
             const EbbCollectivePart *part,
             gint64 *counts,
             gint64 *starts,
             GError **error)
{
  const gint64 n = part->full->n_elements, size = state->size;

  if (part->counts == NULL && has_shard (which) && n % size != 0)
    {
      g_autofree char *shape = ebb_tensor_shape_to_string (part->full);

      return ebb_fail (error, EBB_ERROR_SHAPE, "%s: a tensor of shape %s can't be split into %u equal shards",
                       ebb_collective_get_name (which), shape, state->size);
    }
  starts[0] = 0;
  for (gint64 r = 0; r < size; r++)
    {
      counts[r] = part->counts != NULL && has_shard (which) ? part->counts[r]
                                                            : n / size * (r + 1) + n % size * (r + 1) / size
                                                                  - (n / size * r + n % size * r / size);
      starts[r + 1] = starts[r] + counts[r];
      if (counts[r] >= 0 && starts[r + 1] <= n && (r < size - 1 || starts[r + 1] == n))
        continue;
      return ebb_fail (error, EBB_ERROR_SHAPE,
                       "%s: shards of %" G_GINT64_FORMAT " elements up to rank %" G_GINT64_FORMAT
                       " don't make up the %" G_GINT64_FORMAT " of the full tensor",
                       ebb_collective_get_name (which),
                       starts[r + 1], r, n);
    }
  return TRUE;
}

static gboolean
fill_part (EbbGroupState *state,
           EbbWork *work,
           guint i,
           const EbbCollectivePart *part,
           GError **error)
{
  EbbCollectiveBuffer *buffer = &work->buffers[i];
  EbbCollective which = work->call.which;
  gint64 *counts = work->numbers + (gsize) i * (2 * (gsize) state->size + 1), *starts = counts + state->size;

  if (!check_tensor (part->full, ebb_collective_get_name (which), error)
      || !check_op (which, work->call.op, part->full->view.dtype, error)
      || !fill_counts (state, which, part, counts, starts, error)
      || (has_shard (which) && !check_shard (part, which, starts[state->rank], counts[state->rank], error)))
    return FALSE;
  work->tensors[2 * i] = ebb_tensor_alias (part->full);
  work->tensors[2 * i + 1] = has_shard (which) && part->shard != NULL ? ebb_tensor_alias (part->shard) : NULL;
  *buffer = (EbbCollectiveBuffer){
    .dtype = part->full->view.dtype,
    .n_elements = part->full->n_elements,
    .counts = counts,
    .starts = starts,
    .n_dims = (guint) part->full->view.n_dims,
  };
  memcpy (buffer->shape, part->full->view.shape, sizeof (gint64) * buffer->n_dims);
  return TRUE;
}

/* For ebb_process_group_get_n_bytes (). */
static guint64
get_n_bytes (EbbGroupState *state,
             const EbbCollectiveCall *call)
{
  const gint64 n = state->size;
  guint64 n_bytes = 0;

  for (guint i = 0; i < call->n_parts; i++)
    {
      const EbbCollectiveBuffer *buffer = &call->parts[i];
      const gint64 full = buffer->n_elements;
      const gint64 others = full - buffer->counts[state->rank];
      const gint64 all_but_next = full - buffer->counts[(state->rank + 1) % n];
      gint64 elements = 0;

      switch (call->which)
        {
        case EBB_COLLECTIVE_ALL_REDUCE: elements = others + all_but_next; break;
        case EBB_COLLECTIVE_REDUCE_SCATTER: elements = others; break;
        case EBB_COLLECTIVE_ALL_GATHER: elements = all_but_next; break;
        case EBB_COLLECTIVE_BROADCAST:
        case EBB_COLLECTIVE_ALL_TO_ALL: elements = others; break;
        case EBB_COLLECTIVE_SEND: elements = full; break;
        case EBB_COLLECTIVE_RECV:
        case EBB_COLLECTIVE_BARRIER: break;
        }
      n_bytes += (guint64) elements * ebb_dtype_get_size (buffer->dtype);
    }
  return n_bytes;
}

/* Whether the engine does the call with tensors that lie where they are. */
static gboolean
check_place (EbbProcessGroup *self,
             const EbbCollectiveCall *call,
             GError **error)
{
  if (call->device != NULL || call->n_parts == 0 || call->which == EBB_COLLECTIVE_ALL_GATHER
      || call->which == EBB_COLLECTIVE_BROADCAST || !ebb_process_group_get_funcs (self)->moves_host_only)
    return TRUE;
  return ebb_fail (error, EBB_ERROR_NOT_SUPPORTED,
                   "%s: %s takes tensors on this rank's own device only, and gathers and broadcasts others: move them "
                   "there, or run the ranks over MPI or as threads",
                   ebb_collective_get_name (call->which), ebb_process_group_get_backend (self));
}

/* The arguments of one call. */
typedef struct
{
  EbbCollective which;
  EbbReduceOp op;
  const EbbCollectivePart *parts;
  guint n_parts, peer;
  const char *purpose;
  gboolean is_counted;
} Request;

static EbbWork *
work_new (EbbGroupState *state,
          const Request *request,
          GError **error)
{
  EbbWork *work = g_new0 (EbbWork, 1);

  work->ref_count = 1;
  work->is_dry = ebb_is_dry ();
  if (work->is_dry && state->size > 1)
    ebb_dry_run_note_collective (ebb_dry_run_get_current ());
  work->buffers = g_new0 (EbbCollectiveBuffer, MAX (request->n_parts, 1));
  work->tensors = g_new0 (EbbTensor *, 2 * MAX (request->n_parts, 1));
  work->staged = g_new0 (EbbTensor *, 2 * MAX (request->n_parts, 1));
  work->numbers = g_new0 (gint64, MAX (request->n_parts, 1) * (2 * (gsize) state->size + 1));
  work->purpose = g_strdup (request->purpose);
  work->call = (EbbCollectiveCall){
    .which = request->which,
    .op = ebb_collective_reduces (request->which) ? request->op : EBB_REDUCE_OP_SUM,
    .peer = request->peer,
    .n_parts = request->n_parts,
    .parts = work->buffers,
    .purpose = work->purpose,
  };
  for (guint i = 0; i < request->n_parts; i++)
    if (!fill_part (state, work, i, &request->parts[i], error))
      {
        ebb_work_unref (work);
        return NULL;
      }
  work->call.signature = ebb_collective_get_signature (&work->call, state->size);
  return work;
}

/* -- start --------------------------------------------------------------------------------------------------------- */

static void
touch (const EbbWork *work)
{
  for (guint i = 0; i < 2 * work->call.n_parts; i++)
    if (work->tensors[i] != NULL)
      ebb_thread_touch (work->tensors[i]->view.data);
}

/* NULL with @error set, or unset if a tensor is missing. */
static EbbWork *
prepare (EbbProcessGroup *self,
         const Request *request,
         GError **error)
{
  EbbGroupState *state = ebb_process_group_get_state (self);
  EbbWork *work;

  if (!ebb_group_queue_check (state->queue, state->size == 1, error)
      || !check_peer (state, request->which, request->peer, error))
    return NULL;
  if ((guint) request->op >= EBB_N_REDUCE_OPS)
    return ebb_fail_null (error, EBB_ERROR_INVALID_ARGUMENT, "%s: %d is no reduction; it must be sum, mean, min or max",
                          ebb_collective_get_name (request->which), (int) request->op);
  work = work_new (state, request, error);
  if (work == NULL)
    return NULL;
  if (G_UNLIKELY (ebb_modes.observers != NULL))
    touch (work);
  work->queue = ebb_group_queue_ref (state->queue);
  ebb_process_group_find_device (self, work);
  if (!check_place (self, &work->call, error))
    {
      ebb_work_unref (work);
      return NULL;
    }
  work->call.sequence = ++state->sequence;
  if (!request->is_counted)
    return work;
  __atomic_add_fetch (&state->n_calls[request->which], 1, __ATOMIC_RELAXED);
  __atomic_add_fetch (&state->n_bytes[request->which], get_n_bytes (state, &work->call), __ATOMIC_RELAXED);
  return work;
}

static gboolean
is_given (const EbbCollectivePart *parts,
          guint n_parts,
          GError **error)
{
  if (error != NULL && *error != NULL)
    return FALSE;
  for (guint i = 0; i < n_parts; i++)
    if (parts[i].full == NULL)
      return FALSE;
  return TRUE;
}

/* In the background: on the device, or on the queue's thread; of a dry run here. */
static gboolean
begin (EbbGroupState *state,
       EbbProcessGroup *self,
       EbbWork *work,
       GError **error)
{
  if (work->is_dry)
    {
      ebb_group_queue_run (state->queue, self, work);
      return TRUE;
    }
  return work->call.device != NULL ? ebb_group_queue_enqueue (state->queue, self, work, error)
                                   : ebb_group_queue_push (state->queue, self, ebb_work_ref (work), error);
}

EbbWork *
ebb_process_group_start (EbbProcessGroup *self,
                         EbbCollective which,
                         EbbReduceOp op,
                         const EbbCollectivePart *parts,
                         guint n_parts,
                         guint peer,
                         const char *purpose,
                         GError **error)
{
  const Request request = { which, op, parts, n_parts, peer, purpose, TRUE };
  EbbGroupState *state;
  EbbWork *work;

  if (self == NULL || !is_given (parts, n_parts, error))
    return NULL;
  if (ebb_is_stopped ())
    return ebb_work_new_done ();
  state = ebb_process_group_get_state (self);
  work = prepare (self, &request, error);
  if (work == NULL)
    return NULL;
  return begin (state, self, work, error) ? work : (ebb_work_unref (work), NULL);
}

static gboolean
run_request (EbbProcessGroup *self,
             const Request *request,
             GError **error)
{
  EbbGroupState *state = ebb_process_group_get_state (self);
  g_autoptr (EbbWork) work = prepare (self, request, error);

  if (work == NULL)
    return FALSE;
  if ((work->call.device != NULL || !ebb_group_queue_try_run (state->queue, self, work))
      && !begin (state, self, work, error))
    return FALSE;
  return ebb_work_wait (work, error);
}

gboolean
ebb_process_group_run (EbbProcessGroup *self,
                       EbbCollective which,
                       EbbReduceOp op,
                       const EbbCollectivePart *parts,
                       guint n_parts,
                       guint peer,
                       const char *purpose,
                       GError **error)
{
  const Request request = { which, op, parts, n_parts, peer, purpose, TRUE };

  if (self == NULL || !is_given (parts, n_parts, error))
    return FALSE;
  return ebb_is_stopped () || run_request (self, &request, error);
}

EbbTensor *
ebb_process_group_exchange (EbbProcessGroup *self,
                            const void *mine,
                            gint64 n,
                            const gint64 *counts,
                            EbbDType dtype,
                            GError **error)
{
  EbbGroupState *state = ebb_process_group_get_state (self);
  EbbDevice *cpu = ebb_device_get_cpu ();
  g_autoptr (EbbTensor) shard = NULL;
  g_autoptr (EbbTensor) full = NULL;
  EbbCollectivePart part = { .counts = counts };
  const Request request = { .which = EBB_COLLECTIVE_ALL_GATHER, .parts = &part, .n_parts = 1 };
  gint64 sum = counts != NULL ? 0 : n * state->size;

  for (guint r = 0; counts != NULL && r < state->size; r++)
    sum += counts[r];
  shard = ebb_tensor_new_from_values (mine, (gsize) n, &n, 1, dtype, cpu, error);
  full = shard ? ebb_tensor_new_uninitialized (&sum, 1, dtype, cpu, error) : NULL;
  if (full == NULL)
    return NULL;
  part.full = full;
  part.shard = shard;
  return run_request (self, &request, error) ? g_steal_pointer (&full) : NULL;
}

void
ebb_process_group_fail (EbbProcessGroup *self,
                        const GError *reason)
{
  const EbbProcessGroupFuncs *funcs = ebb_process_group_get_funcs (self);

  ebb_process_group_flush (self);
  if (ebb_group_queue_fail (ebb_process_group_get_state (self)->queue, reason) && funcs->fail != NULL)
    funcs->fail (self, reason);
}

void
ebb_process_group_flush (EbbProcessGroup *self)
{
  ebb_group_queue_flush (ebb_process_group_get_state (self)->queue);
}

void
ebb_collective_reduce (void *dest,
                       const void *const *sources,
                       guint n,
                       gsize n_elements,
                       EbbDType dtype,
                       EbbReduceOp op)
{
  G_STATIC_ASSERT (EBB_REDUCE_OP_SUM == 0 && EBB_REDUCE_OP_MEAN == 1 && EBB_REDUCE_OP_MIN == 2
                   && EBB_REDUCE_OP_MAX == 3);
  ebb_cpu_reduce (dest, sources, n, n_elements, dtype, (int) op);
}
