/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/backend/backend-private.h"

/* The seconds of each distinct launch on one device with one number of threads: measured once on random data, and kept
 * in a file for the next time. Two launches are the same where their kernel, views, parameters that matter for time,
 * operands that share memory, and operands that lie in the cache are the same. */

G_BEGIN_DECLS

typedef struct _EbbCostTable EbbCostTable;

#define EBB_COST_MAX_BYTES (256 * 1024 * 1024)

/* For @device and the calling thread's number of threads. Reads the file of costs that earlier processes have kept. */
EbbCostTable *ebb_cost_table_new (EbbDevice *device);
void ebb_cost_table_free (EbbCostTable *self);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (EbbCostTable, ebb_cost_table_free)

/* Called for each launch of a step, in their order: the table goes by the addresses of operands to know which of them
 * lie in the cache. Returns the number of the distinct launch. A launch that was seen before allocates nothing. */
guint ebb_cost_table_add (EbbCostTable *self,
                          const EbbLaunch *launch);
guint ebb_cost_table_get_n_launches (EbbCostTable *self);
/* How many of them have a figure of their own. */
guint ebb_cost_table_get_n_measured (EbbCostTable *self);
/* How many of these figures are too high, since other programs took the processor while they were measured. */
guint ebb_cost_table_get_n_disturbed (EbbCostTable *self);

/* Measures the launches that have no figure yet, those first that take the most of the step, until @max_seconds are
 * over, then those whose figures are disturbed, up to the first that is disturbed again, with at most @max_bytes of
 * operands (0: EBB_COST_MAX_BYTES), and keeps the figures in the file. Launches that would take long or much memory are
 * run with fewer rows, and their time is extrapolated. Not in a dry run's account: it runs on memory of its own. FALSE
 * with EBB_ERROR_NO_MEMORY if not even a little of that is there. */
gboolean ebb_cost_table_measure (EbbCostTable *self,
                                 double max_seconds,
                                 guint64 max_bytes,
                                 GError **error);

/* Runs each matrix product of the table once that this process hasn't run yet, as large as it is, on operands of zeros:
 * afterwards the memory that libraries keep for them, code and packed operands, is there. Takes the memory of the
 * largest result meanwhile, and leaves out products whose result has more than @max_bytes. *@n_taken: the most bytes
 * that libraries take for one product while it runs, and give back, beside its operands. */
gboolean ebb_cost_table_run_products (EbbCostTable *self,
                                      guint64 max_bytes,
                                      guint64 *n_taken,
                                      GError **error);

/* timing.c: calls the function of ebb_timing_set_func (). */
void ebb_timing_notify (guint n_timed,
                        guint n_kernels);

/* The seconds so far that other programs kept cores from this process; a test has its own. */
extern double (*ebb_cost_get_lost_seconds) (void);

/* Of one launch of number @index, with the host's work for it; more than 0. A launch without a figure is estimated from
 * the measured ones of its kernel, by its operations or bytes. */
double ebb_cost_table_get_seconds (EbbCostTable *self,
                                   guint index);

/* -- rates of what is no launch ------------------------------------------------------------------------------------ */

typedef struct
{
  double out; /* bytes in a second, from the device to the host or from the host to the disk */
  double in;
} EbbCostRates;

/* Copies of @max_bytes at most between @device and the host, as stores make them. */
gboolean ebb_cost_measure_host (EbbDevice *device,
                                guint64 max_bytes,
                                EbbCostRates *rates,
                                GError **error);
/* The same for the device of @self, unless its rates are known; the file keeps them. */
gboolean ebb_cost_table_measure_host (EbbCostTable *self,
                                      guint64 max_bytes,
                                      GError **error);
/* Writing and reading a file in @folder past the page cache, as disk stores do. FALSE with EBB_ERROR_IO. */
gboolean ebb_cost_measure_folder (const char *folder,
                                  EbbCostRates *rates,
                                  GError **error);
/* The same, unless @folder is the last one whose rates the table has had; the file keeps them. */
gboolean ebb_cost_table_measure_folder (EbbCostTable *self,
                                        const char *folder,
                                        GError **error);

/* -- between the files of the table -------------------------------------------------------------------------------- */

typedef struct
{
  gint64 n_elements;
  guint8 has; /* a bit for each data that is there */
} EbbCostItem;

/* The time of a launch without the host's work. */
typedef struct
{
  double seconds;        /* below 0: not measured */
  gboolean is_disturbed; /* too long: other programs took the processor each time that it was measured */
} EbbCostFigure;

/* A distinct launch. */
typedef struct
{
  guint64 key; /* first */
  EbbKernel kernel;
  guint n_inputs, n_outputs, n_items;
  EbbView views[EBB_LAUNCH_MAX_OPERANDS]; /* inputs, then from EBB_LAUNCH_MAX_INPUTS on outputs; n_dims -1: left out */
  gint8 shared[EBB_LAUNCH_MAX_OPERANDS];  /* the first operand at the same address */
  guint32 cold;                           /* a bit for each view that is not in the cache; all of them: the items */
  EbbKernelParams params;
  const char *op;
  EbbCostItem *items;
  guint64 count;       /* launches */
  guint64 bytes, flop; /* of one */
  EbbCostFigure figure;
} EbbCostLaunch;

/* When a piece of memory was last read or written, in bytes that were read and written since. */
typedef struct
{
  gsize chunk;
  guint64 stamp;
} EbbCostTouch;

#define EBB_COST_N_TOUCHES 8192

struct _EbbCostTable
{
  EbbDevice *device;
  int n_threads;
  guint64 cache_bytes;     /* of the device's last cache */
  GPtrArray *launches;     /* of EbbCostLaunch */
  GHashTable *by_key;      /* of their keys, to index + 1 */
  GHashTable *known;       /* guint64 * to EbbCostFigure *: from the file, and what goes into it */
  EbbCostRates host_rates; /* 0: not known */
  EbbCostRates disk_rates; /* of @disk_folder; 0: not known */
  char *disk_folder;
  double host_seconds; /* of the host for each launch; below 0: not measured */
  guint64 n_touched;   /* bytes so far */
  EbbCostTouch touches[EBB_COST_N_TOUCHES];
};

#define ebb_cost_table_get_launch(self, index) ((EbbCostLaunch *) g_ptr_array_index ((self)->launches, index))

/* cost.c: as get_seconds () for a launch without a figure, without the host's work. */
double ebb_cost_table_estimate (EbbCostTable *self,
                                const EbbCostLaunch *launch);
/* Makes @launch of @self with @views, which are its own by now: those that are left out have n_dims -1. */
void ebb_cost_launch_init (const EbbCostLaunch *self,
                           EbbView *views,
                           EbbLaunch *launch);

/* cost-scale.c: leaves about @share of the rows of a launch, which has @views and @items. Returns the share that is
 * left; 1 if none can be spared. */
double ebb_cost_launch_scale (const EbbCostLaunch *self,
                              EbbView *views,
                              EbbCostItem *items,
                              double share);

/* cost-memory.c: the operands of launches that are measured. Operands in the cache stay at one place; those that are
 * not move through a ring of memory that is larger than the cache. */
typedef struct
{
  guint8 *data;
  gsize size, next;
} EbbCostRing;

typedef struct
{
  EbbDevice *device;
  EbbCostRing reads, writes; /* random data; what kernels write may be anything */
  EbbCostRing rest;          /* large operands, indices: for one launch */
  gsize filled;              /* of rest */
} EbbCostMemory;

gboolean ebb_cost_memory_init (EbbCostMemory *self,
                               EbbDevice *device,
                               guint64 cache_bytes,
                               guint64 max_bytes,
                               GError **error);
void ebb_cost_memory_clear (EbbCostMemory *self);

typedef struct
{
  EbbCostMemory *memory;
  const EbbCostLaunch *cost;
  EbbLaunch launch;
  EbbView views[EBB_LAUNCH_MAX_OPERANDS];
  gsize sizes[EBB_LAUNCH_MAX_OPERANDS]; /* of the memory that operands share, at its first one; 0: shares an earlier
                                           one's */
  guint8 places[EBB_LAUNCH_MAX_OPERANDS];
  EbbCostItem *shapes; /* of the items */
  EbbLaunchItem *items;
  double share; /* of the rows */
} EbbCostRun;

/* With about @share of the rows, or fewer if there is no room for them. FALSE without an error: there never is. */
gboolean ebb_cost_run_init (EbbCostRun *self,
                            EbbCostMemory *memory,
                            const EbbCostLaunch *cost,
                            double share,
                            GError **error);
/* Moves the operands that are not in the cache. */
void ebb_cost_run_move (EbbCostRun *self);
void ebb_cost_run_clear (EbbCostRun *self);

/* cost-file.c: the file of @self's machine; NULL: none is wanted. */
char *ebb_cost_file_get_path (EbbCostTable *self);
/* Adds what the file has to known; nothing if it is missing, damaged, or another machine's. */
void ebb_cost_file_load (EbbCostTable *self);
/* Adds known to the file. */
void ebb_cost_file_save (EbbCostTable *self);
/* The processor's model and what else times depend on, on one line. */
char *ebb_cost_table_describe_machine (EbbCostTable *self);

G_END_DECLS
