/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "dist/group/process-group-private.h"
#include "tensor/autograd/op-private.h"

#include <string.h>

/* Of a call over many tensors so many are named. */
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

/* Its end tells most: a path and a type. */
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
