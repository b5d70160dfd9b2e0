/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/random.h"

#include "tensor/autograd/op-private.h"
#include "tensor/dry-run-private.h"
#include "tensor/thread-private.h"
#include "tensor/util/property-private.h"

#include <pthread.h>

/* Random numbers are named, not drawn: number i of a draw is lane i % 4 of block offset + i / 4 under the seed
 * (Philox4x32-10; Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011). A generator only hands out
 * names, so its state is saved in 16 bytes and nothing has to wait for a device. */

struct _EbbGenerator
{
  GObject parent_instance;

  guint64 seed;
  guint64 offset;
  EbbDryRun *kept_by; /* the innermost dry run that gives its state back */
};

G_DEFINE_FINAL_TYPE (EbbGenerator, ebb_generator, G_TYPE_OBJECT)

static void
ebb_generator_class_init (EbbGeneratorClass *klass)
{
  GObjectClass *object_class = G_OBJECT_CLASS (klass);

  object_class->get_property = ebb_property_get_field;
  object_class->set_property = ebb_property_set_field;

  /**
   * EbbGenerator:seed:
   *
   * Which sequence of numbers it is.
   */
  g_object_class_install_property (object_class, offsetof (EbbGenerator, seed),
                                   g_param_spec_uint64 ("seed", NULL, NULL, 0, G_MAXUINT64, 0,
                                                        G_PARAM_READWRITE | G_PARAM_CONSTRUCT_ONLY
                                                            | G_PARAM_STATIC_STRINGS));
  /**
   * EbbGenerator:offset:
   *
   * Where in the sequence it is, in blocks of four 32-bit numbers.
   */
  g_object_class_install_property (
      object_class, offsetof (EbbGenerator, offset),
      g_param_spec_uint64 ("offset", NULL, NULL, 0, G_MAXUINT64, 0, G_PARAM_READABLE | G_PARAM_STATIC_STRINGS));
}

static void
ebb_generator_init (EbbGenerator *self)
{
}

/**
 * ebb_generator_new:
 * @seed: which sequence of numbers
 *
 * Returns: (transfer full): a new generator at the begin of that sequence
 */
EbbGenerator *
ebb_generator_new (guint64 seed)
{
  return g_object_new (EBB_TYPE_GENERATOR, "seed", seed, NULL);
}

static pthread_key_t default_key;
static pthread_once_t default_once = PTHREAD_ONCE_INIT;

static void
make_default_key (void)
{
  pthread_key_create (&default_key, g_object_unref);
}

/**
 * ebb_generator_get_default:
 *
 * The generator of this thread, used where none is given. Its seed is 0 until ebb_manual_seed().
 *
 * Returns: (transfer none): the default generator
 */
EbbGenerator *
ebb_generator_get_default (void)
{
  if (ebb_modes.forks != NULL)
    return ebb_modes.forks->generator;
  if (ebb_modes.generator != NULL)
    return ebb_modes.generator;
  if (G_UNLIKELY (ebb_thread.generator == NULL))
    {
      pthread_once (&default_once, make_default_key);
      ebb_thread.generator = ebb_generator_new (0);
      pthread_setspecific (default_key, ebb_thread.generator);
    }
  return ebb_thread.generator;
}

/**
 * ebb_generator_get_seed:
 * @self: a generator
 *
 * Returns: which sequence of numbers it is
 */
guint64
ebb_generator_get_seed (EbbGenerator *self)
{
  g_return_val_if_fail (EBB_IS_GENERATOR (self), 0);

  return self->seed;
}

/**
 * ebb_generator_get_offset:
 * @self: a generator
 *
 * Returns: where in the sequence it is, in blocks of four 32-bit numbers
 */
guint64
ebb_generator_get_offset (EbbGenerator *self)
{
  g_return_val_if_fail (EBB_IS_GENERATOR (self), 0);

  return self->offset;
}

/* A recompute has to know where the generator was before. */
static void
tell_observers (EbbGenerator *self)
{
  for (EbbOpObserver *observer = ebb_modes.observers; observer != NULL; observer = observer->outer)
    if (observer->draw != NULL)
      observer->draw (observer, self);
}

typedef struct
{
  EbbGenerator *generator;
  guint64 seed, offset;
  EbbDryRun *kept_by;
} KeptState;

static void
give_state_back (gpointer data)
{
  KeptState *self = data;

  self->generator->seed = self->seed;
  self->generator->offset = self->offset;
  self->generator->kept_by = self->kept_by;
  g_object_unref (self->generator);
  g_free (self);
}

/* Before the state of @self changes. In a dry run it is given back at the run's end. */
static void
keep_state (EbbGenerator *self)
{
  EbbDryRun *run = ebb_dry_run_get_current ();
  KeptState *state;

  if (G_LIKELY (run == NULL) || self->kept_by == run)
    return;
  state = g_new (KeptState, 1);
  *state = (KeptState){ g_object_ref (self), self->seed, self->offset, self->kept_by };
  self->kept_by = run;
  ebb_dry_run_at_end (run, give_state_back, state);
}

/**
 * ebb_generator_set_state:
 * @self: a generator
 * @seed: which sequence of numbers
 * @offset: where in it, in blocks of four 32-bit numbers
 *
 * Puts a generator to a state that ebb_generator_get_seed() and ebb_generator_get_offset() gave.
 */
void
ebb_generator_set_state (EbbGenerator *self,
                         guint64 seed,
                         guint64 offset)
{
  g_return_if_fail (EBB_IS_GENERATOR (self));

  tell_observers (self);
  keep_state (self);
  self->seed = seed;
  self->offset = offset;
}

/**
 * ebb_manual_seed:
 * @seed: which sequence of numbers
 *
 * Puts this thread's default generator to the begin of a sequence.
 */
void
ebb_manual_seed (guint64 seed)
{
  ebb_generator_set_state (ebb_generator_get_default (), seed, 0);
}

/* The numbers of the rows of a tile lie behind those of the rows before it. Afterwards the generator is where a call of
 * all rows leaves it. */
static void
take_for_tile (EbbGenerator *generator,
               guint64 n_numbers,
               EbbPhilox *draw)
{
  const EbbRowTile *tile = &ebb_modes.tile;
  const guint64 of_a_row = n_numbers / (guint64) tile->n, before = of_a_row * (guint64) tile->first;

  if (n_numbers % (guint64) tile->n != 0 || before % 4 != 0)
    ebb_thread.draws_torn = TRUE;
  draw->offset += before / 4;
  generator->offset += (of_a_row * (guint64) tile->of + 3) / 4;
}

EbbPhilox
ebb_generator_take (EbbGenerator *generator,
                    guint64 n_numbers)
{
  EbbPhilox draw;

  if (generator == NULL)
    generator = ebb_generator_get_default ();
  if (G_UNLIKELY (ebb_modes.observers != NULL))
    tell_observers (generator);
  keep_state (generator);
  draw.seed = generator->seed;
  draw.offset = generator->offset;
  if (G_UNLIKELY (ebb_modes.tile.of != 0))
    take_for_tile (generator, n_numbers, &draw);
  else
    generator->offset += (n_numbers + 3) / 4;
  return draw;
}
