/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Generators with names, any of which can be a thread's default one for a while. */
#include "dist/rng-tracker-private.h"

#include "dist/mpu-private.h"
#include "dist/group/process-group-private.h"
#include "nn/args-private.h"
#include "nn/state/training-state-private.h"
#include "tensor/error-private.h"
#include "tensor/thread-private.h"

#include <pthread.h>

/* Megatron's and DeepSpeed's seeds of a tensor-parallel rank begin here. */
#define MODEL_PARALLEL_OFFSET 2718

typedef struct
{
  char *name;
  EbbGenerator *generator;
  guint64 seed;        /* that it was added with */
  gboolean is_implied; /* added by ebb_parallelize (), not by the program */
  gboolean is_retired; /* by a reset; kept for recomputes of earlier forwards, and for the name's next use */
} Entry;

struct _EbbGeneratorTracker
{
  GObject parent_instance;

  GPtrArray *entries; /* of Entry, in the order in which they were first added */
};

G_DEFINE_FINAL_TYPE (EbbGeneratorTracker, ebb_generator_tracker, G_TYPE_OBJECT)

static void
entry_free (gpointer data)
{
  Entry *entry = data;

  g_free (entry->name);
  g_object_unref (entry->generator);
  g_free (entry);
}

static void
ebb_generator_tracker_finalize (GObject *object)
{
  g_ptr_array_unref (EBB_GENERATOR_TRACKER (object)->entries);
  G_OBJECT_CLASS (ebb_generator_tracker_parent_class)->finalize (object);
}

static void
ebb_generator_tracker_class_init (EbbGeneratorTrackerClass *klass)
{
  G_OBJECT_CLASS (klass)->finalize = ebb_generator_tracker_finalize;
}

static void
ebb_generator_tracker_init (EbbGeneratorTracker *self)
{
  self->entries = g_ptr_array_new_with_free_func (entry_free);
}

/**
 * ebb_generator_tracker_new:
 *
 * Returns: (transfer full): a tracker without generators
 */
EbbGeneratorTracker *
ebb_generator_tracker_new (void)
{
  return g_object_new (EBB_TYPE_GENERATOR_TRACKER, NULL);
}

/* -- names --------------------------------------------------------------------------------------------------------- */

/* With the retired ones. */
static Entry *
find_any (EbbGeneratorTracker *self,
          const char *name)
{
  for (guint i = 0; i < self->entries->len; i++)
    {
      Entry *entry = g_ptr_array_index (self->entries, i);

      if (g_str_equal (entry->name, name))
        return entry;
    }
  return NULL;
}

static Entry *
find (EbbGeneratorTracker *self,
      const char *name)
{
  Entry *entry = find_any (self, name);

  return entry != NULL && !entry->is_retired ? entry : NULL;
}

/* The generator of a name stays the same object through resets, so that a recompute finds it. */
static void
put (EbbGeneratorTracker *self,
     const char *name,
     guint64 first_seed,
     guint64 seed,
     guint64 offset)
{
  Entry *entry = find_any (self, name);

  if (entry == NULL)
    {
      entry = g_new0 (Entry, 1);
      entry->name = g_strdup (name);
      entry->generator = ebb_generator_new (seed);
      g_ptr_array_add (self->entries, entry);
    }
  entry->is_retired = FALSE;
  entry->seed = first_seed;
  ebb_generator_set_state (entry->generator, seed, offset);
}

static gboolean
check_seed (EbbGeneratorTracker *self,
            const char *name,
            guint64 seed,
            GError **error)
{
  g_autofree char *shown = NULL;
  g_autofree char *other = NULL;

  for (guint i = 0; i < self->entries->len; i++)
    {
      const Entry *entry = g_ptr_array_index (self->entries, i);

      if (entry->is_retired || entry->seed != seed || g_str_equal (entry->name, name))
        continue;
      shown = ebb_escape_text (name);
      other = ebb_escape_text (entry->name);
      return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                       "generator tracker: \"%s\" can't have seed %" G_GUINT64_FORMAT
                       ", which \"%s\" has: they would give the same numbers; take another seed",
                       shown, seed, other);
    }
  return TRUE;
}

/**
 * ebb_generator_tracker_add:
 * @self: a tracker
 * @name: the name of the new generator
 * @seed: which sequence of numbers; no other generator of @self has begun with it
 * @error: return location for an error
 *
 * Adds a generator at the start of a sequence.
 *
 * Returns: %TRUE, or %FALSE with %EBB_ERROR_INVALID_ARGUMENT if the name or the seed is in use already
 */
gboolean
ebb_generator_tracker_add (EbbGeneratorTracker *self,
                           const char *name,
                           guint64 seed,
                           GError **error)
{
  Entry *entry;

  g_return_val_if_fail (EBB_IS_GENERATOR_TRACKER (self), FALSE);

  EBB_RETURN_UNLESS_BEGUN (FALSE, error, name);
  entry = find (self, name);
  if (entry != NULL && !entry->is_implied)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "generator tracker: there is a generator \"%s\" already; take another name, or reset first", name);
  if (!check_seed (self, name, seed, error))
    return FALSE;
  put (self, name, seed, seed, 0);
  find (self, name)->is_implied = FALSE;
  return TRUE;
}

/**
 * ebb_generator_tracker_has:
 * @self: a tracker
 * @name: a name
 *
 * Returns: whether there is one of that name
 */
gboolean
ebb_generator_tracker_has (EbbGeneratorTracker *self,
                           const char *name)
{
  g_return_val_if_fail (EBB_IS_GENERATOR_TRACKER (self), FALSE);

  return name != NULL && find (self, name) != NULL;
}

/**
 * ebb_generator_tracker_get_generator:
 * @self: a tracker
 * @name: what the generator is called
 *
 * Returns: (transfer none) (nullable): the generator of that name, or %NULL if there is none
 */
EbbGenerator *
ebb_generator_tracker_get_generator (EbbGeneratorTracker *self,
                                     const char *name)
{
  Entry *entry;

  g_return_val_if_fail (EBB_IS_GENERATOR_TRACKER (self), NULL);

  entry = name != NULL ? find (self, name) : NULL;
  return entry != NULL ? entry->generator : NULL;
}

/**
 * ebb_generator_tracker_get_names:
 * @self: a tracker
 *
 * Returns: (transfer full) (array zero-terminated=1): the names of its generators, in the order in which they were
 * first added
 */
char **
ebb_generator_tracker_get_names (EbbGeneratorTracker *self)
{
  g_autoptr (GStrvBuilder) names = NULL;

  g_return_val_if_fail (EBB_IS_GENERATOR_TRACKER (self), NULL);

  names = g_strv_builder_new ();
  for (guint i = 0; i < self->entries->len; i++)
    {
      const Entry *entry = g_ptr_array_index (self->entries, i);

      if (!entry->is_retired)
        g_strv_builder_add (names, entry->name);
    }
  return g_strv_builder_end (names);
}

/**
 * ebb_generator_tracker_reset:
 * @self: a tracker
 *
 * Removes all generators; their names and seeds are free again. Open forks go on with the generators that they have,
 * and recomputes of earlier forwards still find them.
 */
void
ebb_generator_tracker_reset (EbbGeneratorTracker *self)
{
  g_return_if_fail (EBB_IS_GENERATOR_TRACKER (self));

  for (guint i = 0; i < self->entries->len; i++)
    ((Entry *) g_ptr_array_index (self->entries, i))->is_retired = TRUE;
}

/* -- forks --------------------------------------------------------------------------------------------------------- */

/**
 * ebb_generator_tracker_fork:
 * @self: a tracker
 * @name: what the generator is called
 * @error: return location for an error
 *
 * Makes the generator of that name this thread's default one until ebb_generator_tracker_join(). Forks nest.
 *
 * Returns: %TRUE, or %FALSE with %EBB_ERROR_INVALID_ARGUMENT if there is no generator of that name
 */
gboolean
ebb_generator_tracker_fork (EbbGeneratorTracker *self,
                            const char *name,
                            GError **error)
{
  Entry *entry;

  g_return_val_if_fail (EBB_IS_GENERATOR_TRACKER (self), FALSE);

  EBB_RETURN_UNLESS_BEGUN (FALSE, error, name);
  entry = ebb_modes.recomputing > 0 ? find_any (self, name) : find (self, name);
  if (entry == NULL)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "generator tracker: there is no generator \"%s\"; add it first (\"" EBB_MODEL_PARALLEL_RNG
                     "\" by ebb_model_parallel_manual_seed ())",
                     name);
  ebb_generator_push_default (entry->generator, self);
  return TRUE;
}

/**
 * ebb_generator_tracker_join:
 * @self: a tracker
 *
 * Ends the innermost fork of this thread, which is one of @self: the previous default generator is back, where it was
 * left.
 */
void
ebb_generator_tracker_join (EbbGeneratorTracker *self)
{
  g_return_if_fail (EBB_IS_GENERATOR_TRACKER (self));
  g_return_if_fail (ebb_modes.forks != NULL && ebb_modes.forks->owner == self);

  ebb_generator_pop_default ();
}

/* -- states -------------------------------------------------------------------------------------------------------- */

/**
 * ebb_generator_tracker_get_states:
 * @self: a tracker
 *
 * Returns the states of all generators.
 *
 * Returns: (transfer full): a dictionary from name to a dictionary of "seed" and "offset", both the bits of a guint64
 *   as an integer, as ebb_generator_get_seed() and ebb_generator_get_offset() give them, and "first-seed", that it was
 *   added with
 */
EbbArgs *
ebb_generator_tracker_get_states (EbbGeneratorTracker *self)
{
  EbbArgs *states;

  g_return_val_if_fail (EBB_IS_GENERATOR_TRACKER (self), NULL);

  states = ebb_args_new (EBB_ARGS_DICT);
  for (guint i = 0; i < self->entries->len; i++)
    {
      const Entry *entry = g_ptr_array_index (self->entries, i);
      g_autoptr (EbbArgs) state = ebb_args_new (EBB_ARGS_DICT);

      if (entry->is_retired)
        continue;
      ebb_args_add_int (state, "seed", (gint64) ebb_generator_get_seed (entry->generator));
      ebb_args_add_int (state, "offset", (gint64) ebb_generator_get_offset (entry->generator));
      ebb_args_add_int (state, "first-seed", (gint64) entry->seed);
      ebb_args_add_args (states, entry->name, state);
    }
  return states;
}

static gboolean
read_int (EbbArgs *state,
          const char *key,
          guint64 *value)
{
  int index = ebb_args_find (state, key);

  if (index < 0 || ebb_args_get_value_kind (state, (guint) index) != EBB_VALUE_INT)
    return FALSE;
  *value = (guint64) ebb_args_get_int (state, (guint) index);
  return TRUE;
}

/* One entry of the states; "first-seed" may be left out. */
static gboolean
read_state (EbbArgs *states,
            guint i,
            guint64 *first_seed,
            guint64 *seed,
            guint64 *offset,
            GError **error)
{
  const char *name = ebb_args_get_key (states, i);
  g_autoptr (EbbArgs) state =
      ebb_args_get_value_kind (states, i) == EBB_VALUE_ARGS ? ebb_args_get_args (states, i) : NULL;
  g_autofree char *shown = NULL;

  if (name != NULL && state != NULL && read_int (state, "seed", seed) && read_int (state, "offset", offset))
    {
      if (!read_int (state, "first-seed", first_seed))
        *first_seed = *seed;
      return TRUE;
    }
  shown = ebb_escape_text (name != NULL ? name : "without a name");
  return ebb_fail (error, EBB_ERROR_STATE,
                   "generator tracker: entry %u of the states (%s) must be a dictionary of the integers \"seed\" and "
                   "\"offset\" under the generator's name",
                   i, shown);
}

/**
 * ebb_generator_tracker_set_states:
 * @self: a tracker
 * @states: (nullable): from ebb_generator_tracker_get_states()
 * @error: return location for an error
 *
 * Restores a state: the tracker has the generators of @states, no others, and they go on from where they were. Names
 * that it had keep their objects. On failure nothing changes.
 *
 * Returns: %TRUE, or %FALSE with %EBB_ERROR_STATE if @states are no such states
 */
gboolean
ebb_generator_tracker_set_states (EbbGeneratorTracker *self,
                                  EbbArgs *states,
                                  GError **error)
{
  guint64 first_seed, seed, offset;

  g_return_val_if_fail (EBB_IS_GENERATOR_TRACKER (self), FALSE);

  EBB_RETURN_UNLESS_BEGUN (FALSE, error, states);
  for (guint i = 0; i < ebb_args_get_length (states); i++)
    if (!read_state (states, i, &first_seed, &seed, &offset, error))
      return FALSE;
  ebb_generator_tracker_reset (self);
  for (guint i = 0; i < ebb_args_get_length (states); i++)
    if (read_state (states, i, &first_seed, &seed, &offset, NULL))
      put (self, ebb_args_get_key (states, i), first_seed, seed, offset);
  return TRUE;
}

/* -- training states ----------------------------------------------------------------------------------------------- */

static EbbArgs *
get_default_states (void)
{
  EbbArgs *states = ebb_generator_tracker_get_states (ebb_generator_tracker_get_default ());

  if (ebb_args_get_length (states) == 0)
    g_clear_pointer (&states, ebb_args_unref);
  return states;
}

static gboolean
set_default_states (EbbArgs *states,
                    gboolean check_only,
                    GError **error)
{
  g_autoptr (EbbGeneratorTracker) scratch = check_only ? ebb_generator_tracker_new () : NULL;

  return ebb_generator_tracker_set_states (check_only ? scratch : ebb_generator_tracker_get_default (), states, error);
}

static const EbbNamedGenerators training_state_funcs = { get_default_states, set_default_states };

EbbArgs *
ebb_rng_tracker_state_advance (EbbArgs *saved)
{
  g_autoptr (EbbArgs) own = ebb_generator_tracker_get_states (ebb_generator_tracker_get_default ());
  EbbArgs *states = ebb_args_new (EBB_ARGS_DICT);

  for (guint i = 0; i < ebb_args_get_length (own); i++)
    {
      const char *name = ebb_args_get_key (own, i);
      EbbArgs *state = ebb_args_peek_args (own, i);
      int there = ebb_args_find (saved, name);
      EbbArgs *other = there >= 0 ? ebb_args_peek_args (saved, (guint) there) : NULL;
      int offset = other != NULL ? ebb_args_find (other, "offset") : -1;
      g_autoptr (EbbArgs) moved = ebb_args_new (EBB_ARGS_DICT);

      for (guint k = 0; k < ebb_args_get_length (state); k++)
        if (offset >= 0 && g_str_equal (ebb_args_get_key (state, k), "offset"))
          ebb_args_add_value (moved, "offset", other, (guint) offset);
        else
          ebb_args_add_value (moved, ebb_args_get_key (state, k), state, k);
      ebb_args_add_args (states, name, moved);
    }
  return states;
}

/* -- the default one ----------------------------------------------------------------------------------------------- */

static pthread_key_t default_key;
static pthread_once_t default_once = PTHREAD_ONCE_INIT;

static __thread EbbGeneratorTracker *own; /* of the thread, made at first use */
static guint slot;                        /* a recompute's: the tracker of the forward's thread; NULL: own */
static guint shared_slot;                 /* a recompute's: the generator that tensor ranks shared in the forward */

static void
drop_default (gpointer tracker)
{
  ebb_generator_pop_forks_to (NULL);
  own = NULL;
  g_object_unref (tracker);
}

static void
make_default_key (void)
{
  pthread_key_create (&default_key, drop_default);
  ebb_training_state_set_named_generators (&training_state_funcs);
}

/**
 * ebb_generator_tracker_get_default:
 *
 * The tracker of this thread, which parallel layers use; in a recompute that of the forward's thread.
 *
 * Returns: (transfer none): the tracker
 */
EbbGeneratorTracker *
ebb_generator_tracker_get_default (void)
{
  if (ebb_modes.slots[slot] != NULL)
    return ebb_modes.slots[slot];
  if (G_UNLIKELY (own == NULL))
    {
      pthread_once (&default_once, make_default_key);
      own = ebb_generator_tracker_new ();
      pthread_setspecific (default_key, own);
    }
  return own;
}

static gpointer
capture_default (void)
{
  EbbGeneratorTracker *tracker = ebb_modes.slots[slot] != NULL ? ebb_modes.slots[slot] : own;

  return tracker != NULL ? g_object_ref (tracker) : NULL;
}

/* The default generator outside of the forks to %EBB_MODEL_PARALLEL_RNG. A recompute begins without the forks of its
 * forward. */
static EbbGenerator *
get_shared (EbbGeneratorTracker *self)
{
  const Entry *parallel = self != NULL ? find_any (self, EBB_MODEL_PARALLEL_RNG) : NULL;
  EbbGeneratorFork *const innermost = ebb_modes.forks;
  EbbGenerator *shared;

  while (parallel != NULL && ebb_modes.forks != NULL && ebb_modes.forks->generator == parallel->generator)
    ebb_modes.forks = ebb_modes.forks->outer;
  if (ebb_modes.forks == NULL && ebb_modes.slots[shared_slot] != NULL)
    shared = ebb_modes.slots[shared_slot];
  else
    shared = ebb_generator_get_default ();
  ebb_modes.forks = innermost;
  return shared;
}

void
ebb_rng_tracker_fork_shared (EbbGeneratorTracker *self)
{
  ebb_generator_push_default (get_shared (self), self);
}

static gpointer
capture_shared (void)
{
  return g_object_ref (get_shared (ebb_modes.slots[slot] != NULL ? ebb_modes.slots[slot] : own));
}

static void __attribute__ ((constructor))
register_slot (void)
{
  slot = ebb_modes_register_slot (capture_default, g_object_unref);
  shared_slot = ebb_modes_register_slot (capture_shared, g_object_unref);
}

/* -- sharded models ------------------------------------------------------------------------------------------------ */

guint64
ebb_rng_tracker_get_parallel_seed (guint64 seed,
                                   EbbProcessGroup *group)
{
  return seed + MODEL_PARALLEL_OFFSET + (group != NULL ? ebb_process_group_get_rank (group) : 0);
}

static gboolean
is_of_program (EbbGeneratorTracker *self)
{
  const Entry *entry = find (self, EBB_MODEL_PARALLEL_RNG);

  return entry != NULL && !entry->is_implied;
}

gboolean
ebb_rng_tracker_check_parallel (EbbGeneratorTracker *self,
                                guint64 seed,
                                GError **error)
{
  return is_of_program (self) || check_seed (self, EBB_MODEL_PARALLEL_RNG, seed, error);
}

void
ebb_rng_tracker_begin_parallel (EbbGeneratorTracker *self,
                                guint64 seed)
{
  if (is_of_program (self))
    return;
  put (self, EBB_MODEL_PARALLEL_RNG, seed, seed, 0);
  find (self, EBB_MODEL_PARALLEL_RNG)->is_implied = TRUE;
}

/* -- seeds --------------------------------------------------------------------------------------------------------- */

/**
 * ebb_model_parallel_manual_seed:
 * @seed: the seed of a training, the same on all ranks
 * @mpu: (nullable): the ranks that share a model, as ebb_checkpointing_configure() takes them: an #EbbMesh, the
 *   #EbbProcessGroup of these ranks, or another object; %NULL: the ranks over which ebb_parallelize() or
 *   ebb_initialize() has sharded a model, else those along "tensor" of the mesh that was made
 * @error: return location for an error
 *
 * Puts this thread's generators at the start of their sequences, as Megatron-LM and DeepSpeed describe it:
 *
 * - the default one, for tensors that are the same on the ranks that share a model: one sequence for these ranks, and
 *   another one for each other model, which has other data; that of @seed for the first model
 * - the tracker's only one, %EBB_MODEL_PARALLEL_RNG, for tensors that the ranks have shards of: another sequence on
 * each rank of a model, and the same ones in each model, with the seed @seed + 2718 + this rank's number in its model
 *
 * A model's number is that of its first rank among all ranks; with an object that has no group, the data parallel rank.
 * Call it after making the model, whose first values must be the same on all ranks. Nothing is sent.
 *
 * Returns: %TRUE; %FALSE with %EBB_ERROR_INVALID_ARGUMENT inside a fork, where another generator is the default one, or
 *   if @mpu does not say which rank of which model this is; with %EBB_ERROR_STATE if @mpu is %NULL and it is not known
 *   which of several ranks share a model. Nothing has changed then
 */
gboolean
ebb_model_parallel_manual_seed (guint64 seed,
                                GObject *mpu,
                                GError **error)
{
  EbbGeneratorTracker *tracker;
  g_auto (EbbMpu) unit = { 0 };

  if (error != NULL && *error != NULL)
    return FALSE;
  g_return_val_if_fail (mpu == NULL || G_IS_OBJECT (mpu), FALSE);
  if (ebb_modes.forks != NULL)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "model_parallel_manual_seed: another generator is this thread's default one inside a fork; "
                     "call ebb_generator_tracker_join () first");
  if (!(mpu != NULL ? ebb_mpu_init (&unit, mpu, error) : ebb_mpu_init_known (&unit, error)))
    {
      g_prefix_error_literal (error, "model_parallel_manual_seed: ");
      return FALSE;
    }
  if (unit.rank < 0 || unit.model < 0)
    return ebb_fail (
        error, EBB_ERROR_INVALID_ARGUMENT,
        "model_parallel_manual_seed: mpu has %u ranks that share a model, but does not say which %s this is: "
        "it must have their group, or a model-parallel-rank and a data-parallel-rank",
        unit.world_size, unit.rank < 0 ? "of them" : "model of several");
  tracker = ebb_generator_tracker_get_default ();
  ebb_manual_seed (ebb_get_rank_seed (seed, (guint64) unit.model));
  ebb_generator_tracker_reset (tracker);
  return ebb_generator_tracker_add (tracker, EBB_MODEL_PARALLEL_RNG,
                                    seed + MODEL_PARALLEL_OFFSET + (guint64) unit.rank, error);
}
