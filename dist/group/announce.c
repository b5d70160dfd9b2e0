/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* How messages name a call, and how ranks compare their calls before they run them. */
#include "dist/group/process-group-private.h"
#include "tensor/autograd/op-private.h"
#include "tensor/util/checksum-private.h"

#include <string.h>

/* So many tensors of a call are named. */
#define MAX_NAMED 4
#define MAX_PURPOSE 200 /* bytes */

static const char *const names[] = { "all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                     "all_to_all", "send", "recv", "barrier" };
static const char *const op_names[] = { "sum", "mean", "min", "max" };

G_STATIC_ASSERT (G_N_ELEMENTS (names) == EBB_N_COLLECTIVES);
G_STATIC_ASSERT (G_N_ELEMENTS (op_names) == EBB_N_REDUCE_OPS);

const char *
ebb_collective_get_name (EbbCollective which)
{
  g_return_val_if_fail ((guint) which < EBB_N_COLLECTIVES, NULL);

  return names[which];
}

/* Keeps the end of a long one, which has the path and the type. */
static void
append_purpose (GString *text,
                const char *purpose)
{
  const gsize length = strlen (purpose);
  const char *end = purpose + length;

  while (purpose < end && (end - purpose > MAX_PURPOSE || ((guchar) *purpose & 0xc0) == 0x80))
    purpose++;
  g_string_append_printf (text, " for %s%s", (gsize) (end - purpose) < length ? "…" : "", purpose);
}

char *
ebb_collective_call_to_string (const EbbCollectiveCall *call)
{
  GString *text = g_string_new (names[call->which]);

  switch (call->which)
    {
    case EBB_COLLECTIVE_ALL_REDUCE:
    case EBB_COLLECTIVE_REDUCE_SCATTER: g_string_append_printf (text, " (%s)", op_names[call->op]); break;
    case EBB_COLLECTIVE_BROADCAST:
    case EBB_COLLECTIVE_RECV: g_string_append_printf (text, " (from %u)", call->peer); break;
    case EBB_COLLECTIVE_SEND: g_string_append_printf (text, " (to %u)", call->peer); break;
    default: break;
    }
  for (guint i = 0; i < MIN (call->n_parts, MAX_NAMED); i++)
    {
      const EbbCollectiveBuffer *buffer = &call->parts[i];
      g_autofree char *shape = ebb_shape_to_string (buffer->shape, buffer->n_dims);

      g_string_append_printf (text, "%s%s %s", i == 0 ? " of " : ", ", ebb_dtype_get_name (buffer->dtype), shape);
    }
  if (call->n_parts > MAX_NAMED)
    g_string_append_printf (text, " and %u more", call->n_parts - MAX_NAMED);
  if (call->purpose != NULL)
    append_purpose (text, call->purpose);
  return g_string_free (text, FALSE);
}

guint64
ebb_collective_get_signature (const EbbCollectiveCall *call,
                              guint size)
{
  const gboolean is_pair = ebb_collective_is_pair (call->which);
  guint64 hash = EBB_HASH_BEGIN;

  hash = ebb_hash_add (hash, is_pair ? EBB_COLLECTIVE_SEND : call->which);
  hash = ebb_hash_add (hash, call->op);
  hash = ebb_hash_add (hash, is_pair ? 0 : call->peer);
  hash = ebb_hash_add (hash, call->n_parts);
  for (const char *c = call->purpose; c != NULL && *c != '\0'; c++)
    hash = ebb_hash_add (hash, (guchar) *c);
  for (guint i = 0; i < call->n_parts; i++)
    {
      const EbbCollectiveBuffer *buffer = &call->parts[i];

      hash = ebb_hash_add (ebb_hash_add (hash, buffer->dtype), buffer->n_dims);
      for (guint d = 0; d < buffer->n_dims; d++)
        hash = ebb_hash_add (hash, (guint64) buffer->shape[d]);
      for (guint r = 0; r < size; r++)
        hash = ebb_hash_add (hash, (guint64) buffer->counts[r]);
    }
  return hash;
}

void
ebb_collective_announce (const EbbCollectiveCall *call,
                         EbbAnnouncement *announcement)
{
  g_autofree char *text = ebb_collective_call_to_string (call);

  memset (announcement, 0, sizeof *announcement);
  announcement->which = (guint32) call->which;
  announcement->peer = call->peer;
  announcement->sequence = call->sequence;
  announcement->signature = call->signature;
  g_strlcpy (announcement->text, text, sizeof announcement->text);
}

gboolean
ebb_collective_check_announcement (const EbbCollectiveCall *call,
                                   guint rank,
                                   const EbbAnnouncement *other,
                                   guint other_rank,
                                   GError **error)
{
  const gboolean is_pair = ebb_collective_is_pair (call->which);
  const EbbCollective wanted = call->which == EBB_COLLECTIVE_SEND   ? EBB_COLLECTIVE_RECV
                               : call->which == EBB_COLLECTIVE_RECV ? EBB_COLLECTIVE_SEND
                                                                    : call->which;
  EbbAnnouncement own;

  if (other->which == (guint32) wanted && other->signature == call->signature
      && other->peer == (is_pair ? rank : call->peer))
    return TRUE;
  ebb_collective_announce (call, &own);
  return ebb_fail (error, EBB_ERROR_PROCESS_GROUP,
                   "rank %u calls %s%s (call %" G_GUINT64_FORMAT " there, %" G_GUINT64_FORMAT " here)", other_rank,
                   other->text, strcmp (other->text, own.text) == 0 ? " with other shards" : "", other->sequence,
                   call->sequence);
}
