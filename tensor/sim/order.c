/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/sim/sim-private.h"

/* Vector clocks: each queue knows how much of each other queue is done before its next piece of work, from the events
 * that it waits for; the host knows it from the events that it has seen. Two uses of the same bytes, one of which
 * writes, must be known to each other. That is checked when work is enqueued, so what would go wrong once in a thousand
 * runs of a real device is found in each. */

/* Of the copies of one block, how many are kept before those that everybody knows are dropped. */
#define MANY_COPIES 8

void
sim_uses_init (SimUses *uses,
               SimDevice *device,
               const char *kind,
               gsize size)
{
  *uses = (SimUses){
    .kind = kind,
    .serial = ++device->last_serial,
    .size = size,
    .born = device->queues[EBB_STREAM_COMPUTE].clock.count[EBB_STREAM_COMPUTE],
  };
}

void
sim_uses_clear (SimUses *uses)
{
  g_clear_pointer (&uses->copies, g_array_unref);
}

static gboolean
host_knows (SimDevice *device,
            const SimAccess *access)
{
  return device->host_clock.count[access->stream] >= access->count;
}

static gboolean
queue_knows (SimDevice *device,
             EbbStream stream,
             const SimAccess *access)
{
  return stream == access->stream || device->queues[stream].clock.count[access->stream] >= access->count
         || host_knows (device, access);
}

static gboolean
all_know (SimDevice *device,
          const SimAccess *access)
{
  for (EbbStream i = 0; i < EBB_N_STREAMS; i++)
    if (!queue_knows (device, i, access))
      return FALSE;
  return TRUE;
}

static gboolean
conflict (const SimAccess *a,
          const SimAccess *b)
{
  return a->count > 0 && b->count > 0 && (a->writes || b->writes) && a->start < b->end && b->start < a->end;
}

static gboolean
check_against (const SimUses *uses,
               SimDevice *device,
               const SimAccess *access,
               const SimAccess *earlier,
               GError **error)
{
  return !conflict (access, earlier) || queue_knows (device, access->stream, earlier)
         || ebb_fail (error, EBB_ERROR_RACE,
                      "race on %s: %s in queue %s would %s bytes %" G_GSIZE_FORMAT " to %" G_GSIZE_FORMAT
                      " of %s %" G_GUINT64_FORMAT " (%" G_GSIZE_FORMAT
                      " bytes) while %s in queue %s %s them; let %s wait for an event after that first",
                      device->name, access->name, ebb_stream_get_name (access->stream),
                      access->writes ? "write" : "read", access->start, access->end, uses->kind, uses->serial,
                      uses->size, earlier->name, ebb_stream_get_name (earlier->stream),
                      earlier->writes ? "writes" : "reads", ebb_stream_get_name (access->stream));
}

static gboolean
check_born (const SimUses *uses,
            SimDevice *device,
            const SimAccess *access,
            GError **error)
{
  const SimAccess birth = { .stream = EBB_STREAM_COMPUTE, .count = uses->born };

  return queue_knows (device, access->stream, &birth)
         || ebb_fail (
             error, EBB_ERROR_RACE,
             "race on %s: %s in queue %s would %s %s %" G_GUINT64_FORMAT " (%" G_GSIZE_FORMAT
             " bytes) while compute may still use the memory for what was freed before; let %s wait for an event of "
             "compute after the allocation first",
             device->name, access->name, ebb_stream_get_name (access->stream), access->writes ? "write" : "read",
             uses->kind, uses->serial, uses->size, ebb_stream_get_name (access->stream));
}

gboolean
sim_uses_check (const SimUses *uses,
                SimDevice *device,
                const SimAccess *access,
                GError **error)
{
  if (access->stream != EBB_STREAM_COMPUTE
      && (!check_born (uses, device, access, error) || !check_against (uses, device, access, &uses->writes, error)
          || !check_against (uses, device, access, &uses->reads, error)))
    return FALSE;
  for (guint i = 0; uses->copies != NULL && i < uses->copies->len; i++)
    if (!check_against (uses, device, access, &g_array_index (uses->copies, SimAccess, i), error))
      return FALSE;
  return TRUE;
}

/* TRUE if all queues that may still use the block know its uses. Computing may ask for a block on the device, and gives
 * it back; the host gives its own blocks back. */
static gboolean
is_settled (const SimUses *uses,
            SimDevice *device,
            const SimAccess *access)
{
  return uses->on_host ? host_knows (device, access) : all_know (device, access);
}

static void
forget_known (SimUses *uses,
              SimDevice *device)
{
  guint n = 0;

  for (guint i = 0; i < uses->copies->len; i++)
    {
      SimAccess *copy = &g_array_index (uses->copies, SimAccess, i);

      if (!is_settled (uses, device, copy))
        g_array_index (uses->copies, SimAccess, n++) = *copy;
    }
  g_array_set_size (uses->copies, n);
}

/* TRUE if all work that must come after @earlier must come after @access anyway. */
static gboolean
covers (const SimAccess *access,
        const SimAccess *earlier)
{
  return access->stream == earlier->stream && (access->writes || !earlier->writes) && access->start <= earlier->start
         && access->end >= earlier->end;
}

static void
add_copy (SimUses *uses,
          SimDevice *device,
          const SimAccess *access)
{
  if (uses->copies == NULL)
    uses->copies = g_array_new (FALSE, FALSE, sizeof (SimAccess));
  for (guint i = 0; i < uses->copies->len; i++)
    if (covers (access, &g_array_index (uses->copies, SimAccess, i)))
      {
        g_array_index (uses->copies, SimAccess, i) = *access;
        return;
      }
  if (uses->copies->len >= MANY_COPIES)
    forget_known (uses, device);
  g_array_append_val (uses->copies, *access);
}

void
sim_uses_add (SimUses *uses,
              SimDevice *device,
              const SimAccess *access)
{
  SimAccess *last = access->writes ? &uses->writes : &uses->reads;

  if (access->stream != EBB_STREAM_COMPUTE)
    {
      add_copy (uses, device, access);
      return;
    }
  if (last->count == 0 || all_know (device, last))
    *last = *access;
  else
    {
      gsize start = MIN (last->start, access->start), end = MAX (last->end, access->end);

      *last = *access;
      last->start = start;
      last->end = end;
    }
}

gboolean
sim_uses_check_free (const SimUses *uses,
                     SimDevice *device,
                     gboolean to_host,
                     GError **error)
{
  for (guint i = 0; uses->copies != NULL && i < uses->copies->len; i++)
    {
      const SimAccess *copy = &g_array_index (uses->copies, SimAccess, i);

      if (to_host ? host_knows (device, copy) : queue_knows (device, EBB_STREAM_COMPUTE, copy))
        continue;
      return ebb_fail (error, EBB_ERROR_RACE,
                       "race on %s: %s %" G_GUINT64_FORMAT " (%" G_GSIZE_FORMAT
                       " bytes) was freed while %s in queue %s %s bytes %" G_GSIZE_FORMAT " to %" G_GSIZE_FORMAT
                       " of it; %s must wait for an event after that first",
                       device->name, uses->kind, uses->serial, uses->size, copy->name,
                       ebb_stream_get_name (copy->stream), copy->writes ? "writes" : "reads", copy->start, copy->end,
                       to_host ? "the host" : "compute");
    }
  return TRUE;
}
