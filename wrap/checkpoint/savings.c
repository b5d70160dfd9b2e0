/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Says once that checkpoints of modules of one type save next to nothing. */
#include "wrap/checkpoint/target-private.h"

#include "tensor/autograd/parameter-owner-private.h"
#include "tensor/memory.h"
#include "tensor/thread-private.h"
#include "tensor/util/lock-private.h"

/* A block of a deep model frees little beside the whole step, and all blocks together much: so wrappers on modules of
 * one type are judged together. They save at most what they free after the forward; the peak is the device's, with the
 * optimizer's state, once the step is over. */

/* A smaller part of the peak is not worth a second forward. */
#define WORTHWHILE 0.01
/* Who tries a wrapper on a toy knows that it saves little. */
#define LEAST_PEAK ((guint64) 1 << 20)

struct _EbbCheckpointSavings
{
  EbbCheckpointLevel dropped;
  guint had_backward;
  guint is_judged;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static GHashTable *by_type; /* under the lock */

EbbCheckpointSavings *
ebb_checkpoint_savings_get (GType type)
{
  EbbCheckpointSavings *savings;

  EBB_AUTO_LOCK (&lock);
  if (by_type == NULL)
    by_type = g_hash_table_new (NULL, NULL);
  savings = g_hash_table_lookup (by_type, GSIZE_TO_POINTER (type));
  if (savings == NULL)
    {
      savings = g_new0 (EbbCheckpointSavings, 1);
      g_hash_table_insert (by_type, GSIZE_TO_POINTER (type), savings);
    }
  return savings;
}

void
ebb_checkpoint_savings_add (EbbCheckpointSavings *savings,
                            guint64 n_bytes)
{
  if (savings != NULL && !ebb_is_dry ())
    ebb_checkpoint_level_add (&savings->dropped, n_bytes);
}

void
ebb_checkpoint_savings_subtract (EbbCheckpointSavings *savings,
                                 guint64 n_bytes)
{
  if (savings != NULL && !ebb_is_dry ())
    ebb_checkpoint_level_subtract (&savings->dropped, n_bytes);
}

void
ebb_checkpoint_savings_note_backward (EbbCheckpointSavings *savings)
{
  if (savings != NULL && !__atomic_load_n (&savings->had_backward, __ATOMIC_RELAXED) && !ebb_is_dry ())
    __atomic_store_n (&savings->had_backward, 1, __ATOMIC_RELAXED);
}

/* Where @module computes: on the device of its first parameter. */
static guint64
get_peak (EbbModule *module)
{
  EbbDevice *device = ebb_module_find_device (module, ebb_get_default_device ());
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (device);

  return ebb_memory_stats_get_peak_total (stats);
}

static void
report (EbbModule *module,
        guint64 freed,
        guint64 peak)
{
  g_autofree char *path = ebb_module_get_path (module);
  g_autofree char *freed_text = g_format_size_full (freed, G_FORMAT_SIZE_IEC_UNITS);
  g_autofree char *peak_text = g_format_size_full (peak, G_FORMAT_SIZE_IEC_UNITS);

  g_message ("checkpoints of %s, as %s, free %s at most, %.2f %% of the peak of %s: they save next to nothing; wrap "
             "larger modules",
             ebb_module_get_type_name (module), *path != '\0' ? path : "the model itself", freed_text,
             100.0 * (double) freed / (double) peak, peak_text);
}

void
ebb_checkpoint_savings_judge (EbbCheckpointSavings *savings,
                              EbbModule *module)
{
  guint64 freed, peak;

  if (savings == NULL || G_LIKELY (__atomic_load_n (&savings->is_judged, __ATOMIC_RELAXED)) || ebb_is_dry ()
      || ebb_modes.recomputing > 0 || !__atomic_load_n (&savings->had_backward, __ATOMIC_RELAXED)
      || __atomic_load_n (&savings->dropped.now, __ATOMIC_RELAXED) != 0
      || __atomic_exchange_n (&savings->is_judged, 1, __ATOMIC_RELAXED))
    return;
  freed = __atomic_load_n (&savings->dropped.peak, __ATOMIC_RELAXED);
  peak = get_peak (module);
  if (peak >= LEAST_PEAK && (double) freed < WORTHWHILE * (double) peak)
    report (module, freed, peak);
}
