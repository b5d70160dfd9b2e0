/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers */
#include "support/device.h"
#include "support/op-runs-private.h"
#include "support/profiles.h"
#include "support/tensors.h"
#include "support/training.h"
#include "tensor/memory-account-private.h"
#include "tensor/profile/cost-private.h"
#include "tensor/profile/profiler-private.h"
#include "tensor/profile/rerun-private.h"

#include <glib/gstdio.h>
#include <malloc.h>
#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The table of costs: which launches are the same, that each kernel can be measured, what fewer rows leave as it is,
 * and the file. Nothing here says how long anything takes. */

#define FEW_BYTES (4 * 1024 * 1024)
#define LONG 1e6 /* seconds: as long as it takes */

/* -- launches of real ops ------------------------------------------------------------------------------------------ */

typedef struct
{
  EbbMemoryObserver observer; /* first */
  EbbCostTable *table;
} Recorder;

static void
launched (EbbMemoryObserver *observer, EbbDevice *device, const EbbLaunch *launch)
{
  Recorder *self = (Recorder *) observer;

  if (device == self->table->device)
    ebb_cost_table_add (self->table, launch);
}

/* The first variant of every op of the library, forward and backward. */
static void
run_op_cases (void)
{
  for (const OpCase *const *op_case = op_cases_get_all (); *op_case != NULL; op_case++)
    {
      OpRun run;

      op_run_on (&run, *op_case, (*op_case)->variants, test_device ());
      if (op_run_wants_gradient (*op_case, &run))
        op_run_backward (&run);
      op_run_clear (&run);
    }
}

static void
run_optimizers (void)
{
  g_autoptr (EbbModule) module = test_mlp_new (1);
  g_autoptr (EbbTensor) x = test_randn (2, 4, TEST_PROFILE_WIDTH, -1);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbOptimizer) adamw = ebb_adamw_new (module, 1e-3, &error);
  g_autoptr (EbbOptimizer) sgd = ebb_sgd_new (module, 1e-3, &error);

  g_assert_no_error (error);
  g_object_set (sgd, "momentum", 0.9, NULL);
  test_profile_train (module, x, sgd);
  test_profile_train (module, x, adamw);
  g_assert_true (test_clip_grad (adamw, 0.1, 2, NULL, &error));
  for (int format = EBB_MOMENT_FORMAT_EIGHT_BIT; format >= 0; format--)
    {
      g_object_set (adamw, "moment-format", format, NULL);
      test_profile_train (module, x, adamw);
    }
}

static EbbView
make_view (EbbDType dtype, gint64 rows, gint64 columns)
{
  return (EbbView){ .dtype = dtype,
                    .n_dims = columns > 0 ? 2 : 1,
                    .shape = { rows, columns },
                    .strides = { MAX (columns, 1), 1 } };
}

/* What only ranks that share work launch, and what converts the moments of a saved state. */
static void
add_seldom_launches (EbbCostTable *table)
{
  EbbView wide = make_view (EBB_DTYPE_F32, 300, 0), codes = make_view (EBB_DTYPE_U8, 300, 0);
  EbbView absmax = make_view (EBB_DTYPE_F32, 2, 0);
  EbbView logits = make_view (EBB_DTYPE_F32, 6, 5), target = make_view (EBB_DTYPE_I64, 6, 0);
  EbbView part = make_view (EBB_DTYPE_F32, 6, 3), loss = make_view (EBB_DTYPE_F32, 6, 0);
  EbbView logsumexp = make_view (EBB_DTYPE_F32, 6, 2), ranks = make_view (EBB_DTYPE_F32, 3, 40);
  EbbView mean = make_view (EBB_DTYPE_F32, 40, 0);
  EbbView parts = { .dtype = EBB_DTYPE_F32, .n_dims = 3, .shape = { 2, 6, 3 }, .strides = { 18, 3, 1 } };
  EbbLaunch launch = { .kernel = EBB_KERNEL_CROSS_ENTROPY_PART, .n_inputs = 2, .n_outputs = 1 };

  launch.params.xent.n_classes = 10;
  launch.inputs[0] = &logits;
  launch.inputs[1] = &target;
  launch.outputs[0] = &part;
  ebb_cost_table_add (table, &launch);
  launch.kernel = EBB_KERNEL_CROSS_ENTROPY_JOIN;
  launch.inputs[0] = &parts;
  launch.outputs[0] = &loss;
  launch.outputs[1] = &logsumexp;
  launch.n_outputs = 2;
  ebb_cost_table_add (table, &launch);
  launch = (EbbLaunch){ .kernel = EBB_KERNEL_REDUCE_RANKS, .n_inputs = 1, .n_outputs = 1 };
  launch.inputs[0] = &ranks;
  launch.outputs[0] = &mean;
  ebb_cost_table_add (table, &launch);
  launch = (EbbLaunch){ .kernel = EBB_KERNEL_MOMENT_ENCODE, .n_inputs = 1, .n_outputs = 2 };
  launch.inputs[0] = &wide;
  launch.outputs[0] = &codes;
  launch.outputs[1] = &absmax;
  ebb_cost_table_add (table, &launch);
  launch = (EbbLaunch){ .kernel = EBB_KERNEL_MOMENT_DECODE, .n_inputs = 2, .n_outputs = 1 };
  launch.inputs[0] = &codes;
  launch.inputs[1] = &absmax;
  launch.outputs[0] = &wide;
  ebb_cost_table_add (table, &launch);
}

/* Of quantised weights of 40 x 64: the panel is all of it. */
static void
add_dequantizing_launches (EbbCostTable *table)
{
  EbbView panel = make_view (EBB_DTYPE_F32, 40, 64), codes = make_view (EBB_DTYPE_U8, 40, 64);
  EbbView scales = make_view (EBB_DTYPE_F32, 40, 0), nf4 = make_view (EBB_DTYPE_U8, 1280, 1);
  EbbView blocks = make_view (EBB_DTYPE_U8, 40, 0), nested = make_view (EBB_DTYPE_F32, 1, 0);
  EbbView map = make_view (EBB_DTYPE_F32, 256, 0), offset = make_view (EBB_DTYPE_F32, 1, 0);
  EbbLaunch launch = { .kernel = EBB_KERNEL_DEQUANTIZE, .n_inputs = 5, .n_outputs = 1 };

  launch.params.dequantize.width = 64;
  launch.inputs[0] = &codes;
  launch.inputs[1] = &scales;
  launch.outputs[0] = &panel;
  ebb_cost_table_add (table, &launch);
  g_assert_cmpuint (ebb_launch_count_bytes (&launch), ==, 40 * 64 * 5 + 40 * 4);
  launch.inputs[0] = &nf4;
  launch.inputs[1] = &blocks;
  launch.inputs[2] = &nested;
  launch.inputs[3] = &map;
  launch.inputs[4] = &offset;
  ebb_cost_table_add (table, &launch);
  g_assert_cmpuint (ebb_launch_count_bytes (&launch), ==, 40 * 64 * 4 + 1280 + 40 + 258 * 4);
  /* Of a panel of four rows only these are read. */
  panel.shape[0] = 4;
  g_assert_cmpuint (ebb_launch_count_bytes (&launch), ==, 4 * 64 * 4 + 128 + 4 + 258 * 4);
}

static EbbCostTable *
make_table_of_all (void)
{
  EbbCostTable *table = ebb_cost_table_new (test_device ());
  Recorder recorder = { .observer.launched = launched, .table = table };

  ebb_memory_account_push_observer (NULL, &recorder.observer);
  run_op_cases ();
  run_optimizers ();
  ebb_memory_account_pop_observer (NULL, &recorder.observer);
  add_seldom_launches (table);
  add_dequantizing_launches (table);
  return table;
}

static void
measure (EbbCostTable *table)
{
  g_autoptr (GError) error = NULL;

  ebb_cost_table_measure (table, LONG, FEW_BYTES, &error);
  g_assert_no_error (error);
}

typedef struct
{
  guint n_calls, n_timed, n_ends;
} Progress;

/* A launch that other programs disturbed is measured once more, and counts once. */
static void
count_progress (guint n_timed, guint n_kernels, gpointer user_data)
{
  Progress *self = user_data;

  g_assert_cmpuint (self->n_ends, ==, 0);
  if (n_kernels == 0)
    {
      self->n_ends++;
      return;
    }
  g_assert_cmpuint (n_timed, >=, self->n_timed);
  g_assert_cmpuint (n_timed, <=, self->n_calls == 0 ? 0 : self->n_timed + 1); /* the first call is before the first */
  g_assert_cmpuint (n_timed, <=, n_kernels);
  self->n_timed = n_timed;
  self->n_calls++;
}

static void
every_kernel_is_measured (void)
{
  g_autoptr (EbbCostTable) table = make_table_of_all ();
  g_autoptr (GError) error = NULL;
  guint counts[EBB_N_KERNELS] = { 0 }, n;
  Progress progress = { 0 };

  for (guint i = 0; i < ebb_cost_table_get_n_launches (table); i++)
    {
      counts[ebb_cost_table_get_launch (table, i)->kernel]++;
      g_assert_cmpfloat (ebb_cost_table_get_seconds (table, i), >, 0); /* an estimate */
    }
  for (guint k = 0; k < EBB_N_KERNELS; k++)
    if (counts[k] == 0)
      g_error ("no launch of kernel %s", ebb_kernel_get_name ((EbbKernel) k));
  g_assert_cmpuint (ebb_cost_table_get_n_measured (table), ==, 0);
  g_assert_true (ebb_cost_table_measure (table, 0, FEW_BYTES, &error));
  g_assert_cmpuint (ebb_cost_table_get_n_measured (table), ==, 0); /* no time for any */
  ebb_timing_set_func (count_progress, &progress, NULL);
  ebb_cost_table_measure (table, LONG, FEW_BYTES, &error);
  g_assert_no_error (error);
  n = progress.n_timed;
  g_assert_cmpuint (progress.n_ends, ==, 1);
  progress = (Progress){ 0 };
  if (ebb_cost_table_get_n_disturbed (table) == 0)
    measure (table); /* nothing is left to be timed */
  g_assert_cmpuint (progress.n_calls + progress.n_ends, ==, 0);
  ebb_timing_set_func (NULL, NULL, NULL);
  g_assert_cmpuint (n, ==, ebb_cost_table_get_n_launches (table));
  g_assert_cmpuint (ebb_cost_table_get_n_measured (table), ==, n);
  for (guint i = 0; i < n; i++)
    {
      double seconds = ebb_cost_table_get_seconds (table, i);

      g_assert_true (isfinite (seconds) && seconds > 0);
    }
}

/* -- which launches are the same ----------------------------------------------------------------------------------- */

typedef struct
{
  EbbView views[4]; /* a, b, bias, c */
  EbbLaunch launch;
} Product;

/* Its operands begin at those multiples of 1 MiB; nobody touches them. */
static void
product_init (Product *self, gint64 m, gint64 k, gint64 n, gsize place)
{
  memset (self, 0, sizeof *self);
  self->views[0] = make_view (EBB_DTYPE_F32, m, k);
  self->views[1] = make_view (EBB_DTYPE_F32, k, n);
  self->views[3] = make_view (EBB_DTYPE_F32, m, n);
  for (gsize i = 0; i < 4; i++)
    self->views[i].data = GSIZE_TO_POINTER ((place + i) << 20);
  self->launch.kernel = EBB_KERNEL_MATMUL;
  self->launch.n_inputs = 3;
  self->launch.inputs[0] = &self->views[0];
  self->launch.inputs[1] = &self->views[1];
  self->launch.n_outputs = 1;
  self->launch.outputs[0] = &self->views[3];
}

static void
launches_are_the_same_where_time_is (void)
{
  g_autoptr (EbbCostTable) table = ebb_cost_table_new (test_device ());
  EbbLaunch dropout = { .kernel = EBB_KERNEL_DROPOUT, .n_inputs = 1, .n_outputs = 1 };
  Product product;
  guint first;

  product_init (&product, 4, 8, 16, 1);
  first = ebb_cost_table_add (table, &product.launch);
  g_assert_cmpuint (ebb_cost_table_add (table, &product.launch), ==, first);
  product_init (&product, 4, 8, 16, 9);
  g_assert_cmpuint (ebb_cost_table_add (table, &product.launch), ==, first);
  product.launch.params.matmul.accumulate = TRUE;
  g_assert_cmpuint (ebb_cost_table_add (table, &product.launch), ==, 1);
  product_init (&product, 4, 8, 16, 1);
  product.views[1].strides[0] = 1;
  product.views[1].strides[1] = 8;
  g_assert_cmpuint (ebb_cost_table_add (table, &product.launch), ==, 2);
  product_init (&product, 4, 8, 16, 1);
  product.views[0].dtype = product.views[1].dtype = EBB_DTYPE_BF16;
  g_assert_cmpuint (ebb_cost_table_add (table, &product.launch), ==, 3);
  product_init (&product, 4, 8, 16, 1);
  product.views[2] = make_view (EBB_DTYPE_F32, 16, 0);
  product.launch.inputs[2] = &product.views[2];
  g_assert_cmpuint (ebb_cost_table_add (table, &product.launch), ==, 4);
  product_init (&product, 4, 8, 17, 1);
  g_assert_cmpuint (ebb_cost_table_add (table, &product.launch), ==, 5);

  /* In place is another launch; other random numbers are not. */
  dropout.inputs[0] = &product.views[0];
  dropout.outputs[0] = &product.views[1];
  product.views[1] = product.views[0];
  g_assert_cmpuint (ebb_cost_table_add (table, &dropout), ==, 6);
  product.views[1].data = GSIZE_TO_POINTER (7 << 20);
  g_assert_cmpuint (ebb_cost_table_add (table, &dropout), ==, 7);
  dropout.params.random.philox.seed = 5;
  g_assert_cmpuint (ebb_cost_table_add (table, &dropout), ==, 7);
  g_assert_cmpuint (ebb_cost_table_get_n_launches (table), ==, 8);
}

static void
a_seen_launch_allocates_nothing (void)
{
  g_autoptr (EbbCostTable) table = ebb_cost_table_new (test_device ());
  Product product;
  struct mallinfo2 before, after;

  product_init (&product, 4, 8, 16, 1);
  ebb_cost_table_add (table, &product.launch);
  before = mallinfo2 ();
  for (guint i = 0; i < 1000; i++)
    ebb_cost_table_add (table, &product.launch);
  after = mallinfo2 ();
  g_assert_cmpuint (after.uordblks, ==, before.uordblks);
  g_assert_cmpuint (ebb_cost_table_get_n_launches (table), ==, 1);
  g_assert_cmpuint (ebb_cost_table_get_launch (table, 0)->count, ==, 1001);
}

/* Operands that were touched a cache ago make another launch than those of a moment ago; small ones don't. */
static void
operands_in_the_cache_are_told_apart (void)
{
  g_autoptr (EbbCostTable) table = ebb_cost_table_new (test_device ());
  Product product, large;
  guint cold, warm;

  product_init (&product, 256, 256, 256, 1);
  cold = ebb_cost_table_add (table, &product.launch);
  warm = ebb_cost_table_add (table, &product.launch);
  g_assert_cmpuint (warm, !=, cold);
  g_assert_cmpuint (ebb_cost_table_add (table, &product.launch), ==, warm);
  g_assert_cmpuint (ebb_cost_table_get_launch (table, warm)->cold, ==, 0);
  product_init (&large, (gint64) table->cache_bytes, 1, 1, 1000);
  ebb_cost_table_add (table, &large.launch);
  g_assert_cmpuint (ebb_cost_table_add (table, &product.launch), ==, cold);
  /* One operand of three. */
  ebb_cost_table_add (table, &product.launch);
  product.views[1].data = GSIZE_TO_POINTER ((gsize) 77 << 30);
  g_assert_cmpuint (ebb_cost_table_get_launch (table, ebb_cost_table_add (table, &product.launch))->cold, ==, 2);
}

/* -- fewer rows ---------------------------------------------------------------------------------------------------- */

/* Memory that ends where the process may not read or write, so that a kernel shows that takes a row too many. */
typedef struct
{
  char *pages;
  gsize size;
} Operand;

static void
operand_free (gpointer data)
{
  Operand *self = data;

  munmap (self->pages, self->size);
  g_free (self);
}

static gpointer
make_operand (GPtrArray *operands, gsize size, gboolean is_float)
{
  const gsize page = (gsize) sysconf (_SC_PAGESIZE), full = (size + page - 1) / page * page;
  Operand *self = g_new (Operand, 1);
  guint16 *data;

  self->size = full + page;
  self->pages = mmap (NULL, self->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  g_assert_true (self->pages != MAP_FAILED);
  g_assert_cmpint (mprotect (self->pages + full, page, PROT_NONE), ==, 0);
  g_ptr_array_add (operands, self);
  data = (guint16 *) (void *) (self->pages + full - size);
  for (gsize i = 0; is_float && i < size / 2; i++)
    data[i] = 0x3f00; /* 0.5 as bf16, and about that as f32 */
  return data;
}

/* In memory of exactly the size that the views say. */
static void
run_exactly (const EbbCostLaunch *cost, EbbView *views, const EbbCostItem *shapes)
{
  gsize sizes[EBB_LAUNCH_MAX_OPERANDS] = { 0 };
  g_autoptr (GPtrArray) operands = g_ptr_array_new_with_free_func (operand_free);
  g_autofree EbbLaunchItem *items = g_new0 (EbbLaunchItem, cost->n_items);
  g_autoptr (GError) error = NULL;
  EbbLaunch launch;

  ebb_cost_launch_init (cost, views, &launch);
  launch.n_items = cost->n_items;
  launch.items = items;
  for (guint k = 0; k < EBB_LAUNCH_MAX_OPERANDS; k++)
    if (views[k].n_dims >= 0)
      sizes[cost->shared[k]] = MAX (sizes[cost->shared[k]], ebb_rerun_get_extent (&views[k]));
  for (guint k = 0; k < EBB_LAUNCH_MAX_OPERANDS; k++)
    if (views[k].n_dims >= 0 && (guint) cost->shared[k] == k)
      views[k].data = make_operand (operands, sizes[k], ebb_dtype_is_floating_point (views[k].dtype));
    else if (views[k].n_dims >= 0)
      views[k].data = views[cost->shared[k]].data;
  for (guint i = 0; i < cost->n_items; i++)
    for (guint k = 0; k < EBB_LAUNCH_ITEM_DATA; k++)
      if ((shapes[i].has & 1u << k) != 0)
        {
          items[i].n_elements = shapes[i].n_elements;
          items[i].data[k] = make_operand (operands, (gsize) shapes[i].n_elements * sizeof (float), TRUE);
        }
  ebb_rerun_launch (test_device (), &launch, &error);
  g_assert_no_error (error);
}

static void
fewer_rows_are_a_launch_of_the_same_kind (void)
{
  static const double shares[] = { 0.75, 0.4, 0.01 };
  g_autoptr (EbbCostTable) table = make_table_of_all ();
  guint n_smaller = 0;

  for (guint i = 0; i < ebb_cost_table_get_n_launches (table); i++)
    for (guint j = 0; j < G_N_ELEMENTS (shares); j++)
      {
        const EbbCostLaunch *cost = ebb_cost_table_get_launch (table, i);
        g_autofree EbbCostItem *items = g_memdup2 (cost->items, sizeof (EbbCostItem) * cost->n_items);
        EbbView views[EBB_LAUNCH_MAX_OPERANDS];
        double share;

        memcpy (views, cost->views, sizeof views);
        share = ebb_cost_launch_scale (cost, views, items, shares[j]);
        g_assert_true (share > 0 && share <= 1);
        n_smaller += share < 1;
        for (guint k = 0; k < EBB_LAUNCH_MAX_OPERANDS; k++)
          {
            g_assert_cmpint (views[k].n_dims, ==, cost->views[k].n_dims);
            g_assert_cmpint (views[k].dtype, ==, cost->views[k].dtype);
            for (int d = 0; d < views[k].n_dims; d++)
              {
                g_assert_cmpint (views[k].shape[d], <=, cost->views[k].shape[d]);
                g_assert_cmpint (views[k].strides[d], <=, cost->views[k].strides[d]);
                g_assert_cmpint (views[k].strides[d] == 0, ==, cost->views[k].strides[d] == 0);
              }
          }
        if (test_device_is_cpu ())
          run_exactly (cost, views, items);
      }
  g_assert_cmpuint (n_smaller, >, ebb_cost_table_get_n_launches (table));
}

/* The gradient of a weight for many rows: one row of its result would need all of the other operand, and its time be
 * that of reading it. */
static void
a_gradient_of_a_weight_has_fewer_terms (void)
{
  g_autoptr (EbbCostTable) table = ebb_cost_table_new (test_device ());
  EbbView views[EBB_LAUNCH_MAX_OPERANDS];
  const EbbCostLaunch *cost;
  Product product;

  product_init (&product, 1600, 32768, 6400, 1);
  ebb_cost_table_add (table, &product.launch);
  cost = ebb_cost_table_get_launch (table, 0);
  memcpy (views, cost->views, sizeof views);
  g_assert_cmpfloat_with_epsilon (ebb_cost_launch_scale (cost, views, NULL, 0.0625), 0.0625, 1e-9);
  g_assert_cmpint (views[0].shape[1], ==, 2048);
  g_assert_cmpint (views[1].shape[0], ==, 2048);
  g_assert_cmpint (views[EBB_LAUNCH_MAX_INPUTS].shape[0], ==, 1600);
  g_assert_cmpint (views[EBB_LAUNCH_MAX_INPUTS].shape[1], ==, 6400);
  g_assert_cmpuint (ebb_rerun_get_extent (&views[0]), ==, 1600 * 2048 * sizeof (float));
  memcpy (views, cost->views, sizeof views);
  g_assert_cmpfloat (ebb_cost_launch_scale (cost, views, NULL, 0.001), <, 0.002);
  g_assert_cmpint (views[0].shape[1], ==, 1024);
}

/* Memory that a launch takes besides its operands counts, too: on the CPU matrices that each thread packs. */
static void
timing_takes_a_part_of_what_is_available (void)
{
  const guint64 few = 4 << 20;
  g_autoptr (EbbCostTable) table = ebb_cost_table_new (test_device ());
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (test_device ());
  g_autoptr (GError) error = NULL;
  guint64 n_packed = 0;
  EbbCostMemory memory;
  Product product;
  EbbCostRun run;

  product_init (&product, 2000, 1000, 20, 1);
  ebb_cost_table_add (table, &product.launch);
  ebb_memory_set_limit (test_device (), ebb_memory_stats_get_total (stats) + few);
  g_assert_true (ebb_cost_memory_init (&memory, table->device, EBB_COST_MAX_BYTES, EBB_COST_MAX_BYTES, &error));
  g_assert_cmpuint (memory.reads.size + memory.writes.size + memory.rest.size, <=, few / 4);
  g_assert_true (ebb_cost_run_init (&run, &memory, ebb_cost_table_get_launch (table, 0), 1, &error));
  for (guint k = 0; k < 2; k++)
    n_packed += run.sizes[k] * (guint64) ebb_get_num_threads ();
  if (test_device () == ebb_device_get_cpu ())
    g_assert_cmpuint (n_packed, <=, few / 4);
  ebb_cost_run_clear (&run);
  ebb_cost_memory_clear (&memory);
  ebb_memory_set_limit (test_device (), 0);
}

/* Operands of 160 MB in memory of 4 MiB. */
static void
a_large_launch_needs_little_memory (void)
{
  g_autoptr (EbbCostTable) table = ebb_cost_table_new (test_device ());
  EbbLaunch add = { .kernel = EBB_KERNEL_BINARY, .n_inputs = 2, .n_outputs = 1 };
  EbbView x = make_view (EBB_DTYPE_F32, 20000, 1000);
  Product product;

  product_init (&product, 20000, 1000, 20, 1);
  ebb_cost_table_add (table, &product.launch);
  add.inputs[0] = add.inputs[1] = &x;
  add.outputs[0] = &x;
  ebb_cost_table_add (table, &add);
  measure (table);
  g_assert_cmpuint (ebb_cost_table_get_n_measured (table), ==, 2);
}

/* -- the file ------------------------------------------------------------------------------------------------------ */

typedef struct
{
  char *folder, *path;
} File;

static void
file_set_up (File *self)
{
  self->folder = g_dir_make_tmp ("ebb-costs-XXXXXX", NULL);
  self->path = g_build_filename (self->folder, "a", "costs", NULL);
  g_setenv ("EBB_COST_FILE", self->path, TRUE);
}

static void
file_clear (File *self)
{
  g_autofree char *inner = g_path_get_dirname (self->path);

  g_setenv ("EBB_COST_FILE", "", TRUE);
  g_unlink (self->path);
  g_rmdir (inner);
  g_assert_cmpint (g_rmdir (self->folder), ==, 0);
  g_free (self->folder);
  g_free (self->path);
}

static EbbCostTable *
make_small_table (void)
{
  EbbCostTable *table = ebb_cost_table_new (test_device ());
  Product product;

  for (gint64 n = 1; n < 6; n++)
    {
      product_init (&product, 4, 8, n, 1);
      ebb_cost_table_add (table, &product.launch);
    }
  return table;
}

/* How many of its launches the file has. */
static guint
count_kept (void)
{
  g_autoptr (EbbCostTable) table = make_small_table ();

  return ebb_cost_table_get_n_measured (table);
}

static void
figures_are_kept (void)
{
  const int n_threads = ebb_get_num_threads ();
  File file;

  file_set_up (&file);
  {
    g_autoptr (EbbCostTable) first = make_small_table ();
    g_autoptr (EbbCostTable) second = NULL;

    measure (first);
    second = make_small_table ();
    g_assert_cmpuint (ebb_cost_table_get_n_measured (second), ==, 5);
    for (guint i = 0; i < 5; i++)
      g_assert_cmpfloat_with_epsilon (ebb_cost_table_get_seconds (second, i) / ebb_cost_table_get_seconds (first, i), 1,
                                      1e-6);
  }
  /* Another table adds to it. */
  {
    g_autoptr (EbbCostTable) other = ebb_cost_table_new (test_device ());
    Product product;

    product_init (&product, 5, 5, 5, 1);
    ebb_cost_table_add (other, &product.launch);
    measure (other);
  }
  g_assert_cmpuint (count_kept (), ==, 5);
  /* Other threads, other figures; a build for ThreadSanitizer has one thread alone. */
  ebb_set_num_threads (n_threads + 1);
  g_assert_cmpuint (count_kept (), ==, ebb_get_num_threads () != n_threads ? 0 : 5);
  ebb_set_num_threads (n_threads);
  file_clear (&file);
}

static double lost_seconds, lost_each_time;

static double
get_lost_seconds (void)
{
  return lost_seconds += lost_each_time;
}

/* How many figures of a small table are disturbed once it was measured. */
static guint
count_disturbed (EbbCostTable *table)
{
  measure (table);
  g_assert_cmpuint (ebb_cost_table_get_n_measured (table), ==, 5);
  return ebb_cost_table_get_n_disturbed (table);
}

static void
a_busy_machine_is_measured_again_when_it_is_quiet (void)
{
  double (*counted) (void) = ebb_cost_get_lost_seconds;
  const gboolean is_host = test_device_is_cpu ();
  double seconds[5];
  File file;

  file_set_up (&file);
  ebb_cost_get_lost_seconds = get_lost_seconds;
  lost_each_time = 1;
  {
    g_autoptr (EbbCostTable) busy = make_small_table ();

    /* An accelerator's kernels don't share its time with programs of the host. */
    g_assert_cmpuint (count_disturbed (busy), ==, is_host ? 5 : 0);
    for (guint i = 0; i < 5; i++)
      seconds[i] = ebb_cost_table_get_seconds (busy, i);
  }
  /* It is still busy: one launch was tried again, and a figure never grows by that. */
  {
    g_autoptr (EbbCostTable) busy = make_small_table ();

    g_assert_cmpuint (count_disturbed (busy), ==, is_host ? 5 : 0);
    for (guint i = 0; i < 5; i++)
      g_assert_cmpfloat (ebb_cost_table_get_seconds (busy, i), <=, seconds[i] * (1 + 1e-6));
  }
  lost_each_time = 0;
  {
    g_autoptr (EbbCostTable) quiet = make_small_table ();

    g_assert_cmpuint (ebb_cost_table_get_n_disturbed (quiet), ==, is_host ? 5 : 0);
    g_assert_cmpuint (count_disturbed (quiet), ==, 0);
  }
  {
    g_autoptr (EbbCostTable) kept = make_small_table ();

    g_assert_cmpuint (ebb_cost_table_get_n_measured (kept), ==, 5);
    g_assert_cmpuint (ebb_cost_table_get_n_disturbed (kept), ==, 0);
  }
  ebb_cost_get_lost_seconds = counted;
  file_clear (&file);
}

static void
a_damaged_file_is_measured_anew (void)
{
  g_autofree char *text = NULL;
  gsize size;
  File file;

  file_set_up (&file);
  {
    g_autoptr (EbbCostTable) table = make_small_table ();

    measure (table);
  }
  g_assert_true (g_file_get_contents (file.path, &text, &size, NULL));
  for (gsize i = 0; i < size; i++)
    {
      g_autofree char *damaged = g_memdup2 (text, size);

      damaged[i] ^= (char) (1 << i % 8);
      g_assert_true (g_file_set_contents (file.path, damaged, (gssize) size, NULL));
      g_assert_cmpuint (count_kept (), ==, 0);
      if (i % 4 != 0)
        continue;
      g_assert_true (g_file_set_contents (file.path, text, (gssize) i, NULL));
      g_assert_cmpuint (count_kept (), ==, 0);
    }
  {
    g_autoptr (EbbCostTable) table = make_small_table ();

    measure (table);
  }
  g_assert_cmpuint (count_kept (), ==, 5);
  file_clear (&file);
}

static void
a_file_of_something_else_stays (void)
{
  g_autoptr (EbbCostTable) table = NULL;
  g_autofree char *text = NULL;
  g_autofree char *inner = NULL;
  File file;

  file_set_up (&file);
  inner = g_path_get_dirname (file.path);
  g_assert_cmpint (g_mkdir (inner, 0700), ==, 0);
  g_assert_true (g_file_set_contents (file.path, "notes of mine", -1, NULL));
  table = make_small_table ();
  g_test_expect_message ("Ebb", G_LOG_LEVEL_WARNING, "EBB_COST_FILE: costs aren't kept: * is no file of costs;*");
  measure (table);
  g_test_assert_expected_messages ();
  g_assert_true (g_file_get_contents (file.path, &text, NULL, NULL));
  g_assert_cmpstr (text, ==, "notes of mine");
  g_assert_cmpuint (ebb_cost_table_get_n_measured (table), ==, 5);
  file_clear (&file);
}

/* -- rates --------------------------------------------------------------------------------------------------------- */

static void
rates_are_measured (void)
{
  g_autofree char *folder = g_dir_make_tmp ("ebb-costs-XXXXXX", NULL);
  g_autoptr (GError) error = NULL;
  EbbCostRates rates;

  g_assert_true (ebb_cost_measure_host (test_device (), EBB_COST_MAX_BYTES, &rates, &error));
  g_assert_true (isfinite (rates.out) && rates.out > 0 && isfinite (rates.in) && rates.in > 0);
  g_assert_true (ebb_cost_measure_folder (folder, &rates, &error));
  g_assert_true (isfinite (rates.out) && rates.out > 0 && isfinite (rates.in) && rates.in > 0);
  g_assert_cmpint (g_rmdir (folder), ==, 0); /* it is empty */
  g_assert_false (ebb_cost_measure_folder (folder, &rates, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_IO);
  g_assert_nonnull (strstr (error->message, folder));
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_setenv ("EBB_COST_FILE", "", TRUE);
  g_test_add_func ("/cost/every-kernel-is-measured", every_kernel_is_measured);
  g_test_add_func ("/cost/launches-are-the-same-where-time-is", launches_are_the_same_where_time_is);
  g_test_add_func ("/cost/a-seen-launch-allocates-nothing", a_seen_launch_allocates_nothing);
  g_test_add_func ("/cost/operands-in-the-cache-are-told-apart", operands_in_the_cache_are_told_apart);
  g_test_add_func ("/cost/fewer-rows-are-a-launch-of-the-same-kind", fewer_rows_are_a_launch_of_the_same_kind);
  g_test_add_func ("/cost/a-gradient-of-a-weight-has-fewer-terms", a_gradient_of_a_weight_has_fewer_terms);
  g_test_add_func ("/cost/a-large-launch-needs-little-memory", a_large_launch_needs_little_memory);
  g_test_add_func ("/cost/timing-takes-a-part-of-what-is-available", timing_takes_a_part_of_what_is_available);
  g_test_add_func ("/cost/figures-are-kept", figures_are_kept);
  g_test_add_func ("/cost/a-busy-machine-is-measured-again-when-it-is-quiet",
                   a_busy_machine_is_measured_again_when_it_is_quiet);
  g_test_add_func ("/cost/a-damaged-file-is-measured-anew", a_damaged_file_is_measured_anew);
  g_test_add_func ("/cost/a-file-of-something-else-stays", a_file_of_something_else_stays);
  g_test_add_func ("/cost/rates-are-measured", rates_are_measured);
  return g_test_run ();
}
