/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The public class: who the ranks are, and how many calls they made. */
#include "dist/group/process-group.h"

#include "dist/group/group-private.h"
#include "tensor/util/property-private.h"

#define DEFAULT_TIMEOUT 600.0
#define MAX_TIMEOUT 1e7

typedef EbbGroupState EbbProcessGroupPrivate;

static GParamSpec *timeout_property;

G_DEFINE_ABSTRACT_TYPE_WITH_PRIVATE (EbbProcessGroup, ebb_process_group, G_TYPE_OBJECT)

EbbGroupState *
ebb_process_group_get_state (EbbProcessGroup *self)
{
  return ebb_process_group_get_instance_private (self);
}

#define FIELD(name) (guint) G_PRIVATE_OFFSET (EbbProcessGroup, name)

/* -- who ----------------------------------------------------------------------------------------------------------- */

/**
 * ebb_process_group_get_rank:
 * @self: a group
 *
 * Returns: the number of this rank in the group, from 0
 */
guint
ebb_process_group_get_rank (EbbProcessGroup *self)
{
  g_return_val_if_fail (EBB_IS_PROCESS_GROUP (self), 0);

  return ebb_process_group_get_state (self)->rank;
}

/**
 * ebb_process_group_get_size:
 * @self: a group
 *
 * Returns: how many ranks there are
 */
guint
ebb_process_group_get_size (EbbProcessGroup *self)
{
  g_return_val_if_fail (EBB_IS_PROCESS_GROUP (self), 1);

  return ebb_process_group_get_state (self)->size;
}

/**
 * ebb_process_group_get_backend:
 * @self: a group
 *
 * Returns: the engine: "single", "thread", "mpi" or "nccl"
 */
const char *
ebb_process_group_get_backend (EbbProcessGroup *self)
{
  g_return_val_if_fail (EBB_IS_PROCESS_GROUP (self), NULL);

  return ebb_process_group_get_state (self)->backend;
}

/**
 * ebb_process_group_get_name:
 * @self: a group
 *
 * Returns: the group's name in messages: "world", or the name and color of the split that made it
 */
const char *
ebb_process_group_get_name (EbbProcessGroup *self)
{
  g_return_val_if_fail (EBB_IS_PROCESS_GROUP (self), NULL);

  return ebb_process_group_get_state (self)->name;
}

/**
 * ebb_process_group_get_timeout:
 * @self: a group
 *
 * Returns: seconds that a call waits for the other ranks
 */
double
ebb_process_group_get_timeout (EbbProcessGroup *self)
{
  double seconds;

  g_return_val_if_fail (EBB_IS_PROCESS_GROUP (self), 0);

  __atomic_load (&ebb_process_group_get_state (self)->timeout, &seconds, __ATOMIC_RELAXED);
  return seconds;
}

/**
 * ebb_process_group_set_timeout:
 * @self: a group
 * @seconds: seconds, at least 0.001
 *
 * Sets how long a call waits for the other ranks before it fails. 600 seconds if not set, or what the environment
 * variable `EBB_PROCESS_GROUP_TIMEOUT` says when the group is made.
 */
void
ebb_process_group_set_timeout (EbbProcessGroup *self,
                               double seconds)
{
  g_return_if_fail (EBB_IS_PROCESS_GROUP (self));
  g_return_if_fail (seconds >= 1e-3);

  seconds = MIN (seconds, MAX_TIMEOUT);
  if (seconds == ebb_process_group_get_timeout (self))
    return;
  __atomic_store (&ebb_process_group_get_state (self)->timeout, &seconds, __ATOMIC_RELAXED);
  g_object_notify_by_pspec (G_OBJECT (self), timeout_property);
}

/* -- how much ------------------------------------------------------------------------------------------------------ */

/**
 * ebb_process_group_get_n_calls:
 * @self: a group
 * @which: an operation
 *
 * How many calls of an operation were started on this rank; a call over several tensors counts once, one in a recompute
 * that has all it needs not at all.
 *
 * Returns: the calls since the group was made, or since ebb_process_group_reset_counters()
 */
guint64
ebb_process_group_get_n_calls (EbbProcessGroup *self,
                               EbbCollective which)
{
  g_return_val_if_fail (EBB_IS_PROCESS_GROUP (self) && (guint) which < EBB_N_COLLECTIVES, 0);

  return __atomic_load_n (&ebb_process_group_get_state (self)->n_calls[which], __ATOMIC_RELAXED);
}

/**
 * ebb_process_group_get_n_bytes:
 * @self: a group
 * @which: an operation
 *
 * How many bytes this rank gives to others by the formulas of a ring, whatever the engine really does. With P bytes of
 * all shards together on n ranks: all_gather and reduce_scatter all shards but one, P (n - 1) / n where they are equal;
 * all_reduce twice as much; broadcast and all_to_all P (n - 1) / n; send P.
 *
 * Returns: the bytes since the group was made, or since ebb_process_group_reset_counters()
 */
guint64
ebb_process_group_get_n_bytes (EbbProcessGroup *self,
                               EbbCollective which)
{
  g_return_val_if_fail (EBB_IS_PROCESS_GROUP (self) && (guint) which < EBB_N_COLLECTIVES, 0);

  return __atomic_load_n (&ebb_process_group_get_state (self)->n_bytes[which], __ATOMIC_RELAXED);
}

/**
 * ebb_process_group_reset_counters:
 * @self: a group
 *
 * Sets the counters of calls and bytes to 0.
 */
void
ebb_process_group_reset_counters (EbbProcessGroup *self)
{
  EbbGroupState *state;

  g_return_if_fail (EBB_IS_PROCESS_GROUP (self));

  state = ebb_process_group_get_state (self);
  for (guint i = 0; i < EBB_N_COLLECTIVES; i++)
    {
      __atomic_store_n (&state->n_calls[i], 0, __ATOMIC_RELAXED);
      __atomic_store_n (&state->n_bytes[i], 0, __ATOMIC_RELAXED);
    }
}

/* -- class --------------------------------------------------------------------------------------------------------- */

static void
ebb_process_group_set_property (GObject *object,
                                guint id,
                                const GValue *value,
                                GParamSpec *spec)
{
  if (spec == timeout_property)
    ebb_process_group_set_timeout (EBB_PROCESS_GROUP (object), g_value_get_double (value));
  else
    ebb_property_set_field (object, id, value, spec);
}

/* Other ranks wait for the calls that were started here. */
static void
ebb_process_group_dispose (GObject *object)
{
  ebb_group_queue_close (ebb_process_group_get_state (EBB_PROCESS_GROUP (object))->queue);
  G_OBJECT_CLASS (ebb_process_group_parent_class)->dispose (object);
}

static void
ebb_process_group_finalize (GObject *object)
{
  EbbGroupState *state = ebb_process_group_get_state (EBB_PROCESS_GROUP (object));

  ebb_group_queue_unref (state->queue);
  for (guint i = 0; i < G_N_ELEMENTS (state->known); i++)
    g_weak_ref_clear (&state->known[i].owner);
  g_free (state->backend);
  g_free (state->name);
  G_OBJECT_CLASS (ebb_process_group_parent_class)->finalize (object);
}

static void
ebb_process_group_class_init (EbbProcessGroupClass *klass)
{
  GObjectClass *object_class = G_OBJECT_CLASS (klass);
  const GParamFlags given = G_PARAM_READWRITE | G_PARAM_CONSTRUCT_ONLY | G_PARAM_STATIC_STRINGS;

  object_class->get_property = ebb_property_get_field;
  object_class->set_property = ebb_process_group_set_property;
  object_class->dispose = ebb_process_group_dispose;
  object_class->finalize = ebb_process_group_finalize;

  /**
   * EbbProcessGroup:rank:
   *
   * The number of this rank in the group, from 0.
   */
  g_object_class_install_property (object_class, FIELD (rank),
                                   g_param_spec_uint ("rank", NULL, NULL, 0, G_MAXINT, 0, given));
  /**
   * EbbProcessGroup:size:
   *
   * How many ranks there are.
   */
  g_object_class_install_property (object_class, FIELD (size),
                                   g_param_spec_uint ("size", NULL, NULL, 1, G_MAXINT, 1, given));
  /**
   * EbbProcessGroup:backend:
   *
   * The engine: "single", "thread", "mpi" or "nccl".
   */
  g_object_class_install_property (object_class, FIELD (backend),
                                   g_param_spec_string ("backend", NULL, NULL, "single", given));
  /**
   * EbbProcessGroup:name:
   *
   * The group's name in messages: "world", or the name and color of the split that made it.
   */
  g_object_class_install_property (object_class, FIELD (name),
                                   g_param_spec_string ("name", NULL, NULL, "world", given));
  /**
   * EbbProcessGroup:timeout:
   *
   * Seconds that a call waits for the other ranks.
   */
  timeout_property = g_param_spec_double ("timeout", NULL, NULL, 1e-3, MAX_TIMEOUT, DEFAULT_TIMEOUT,
                                          G_PARAM_READWRITE | G_PARAM_EXPLICIT_NOTIFY | G_PARAM_STATIC_STRINGS);
  g_object_class_install_property (object_class, FIELD (timeout), timeout_property);
}

static double
get_default_timeout (void)
{
  const char *text = g_getenv ("EBB_PROCESS_GROUP_TIMEOUT");
  double seconds = text != NULL ? g_ascii_strtod (text, NULL) : 0;

  return seconds > 0 ? CLAMP (seconds, 1e-3, MAX_TIMEOUT) : DEFAULT_TIMEOUT;
}

static void
ebb_process_group_init (EbbProcessGroup *self)
{
  EbbGroupState *state = ebb_process_group_get_state (self);

  state->timeout = get_default_timeout ();
  state->queue = ebb_group_queue_new (state);
  for (guint i = 0; i < G_N_ELEMENTS (state->known); i++)
    g_weak_ref_init (&state->known[i].owner, NULL);
}
