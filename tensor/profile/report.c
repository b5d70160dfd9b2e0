/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/profile/profiler-private.h"

#include "tensor/n-threads-private.h"
#include "tensor/util/json-writer-private.h"

#include <math.h>
#include <string.h>

/* A record summed by phase and op: a table for people, JSON for programs. */

#define N_PHASES (EBB_PHASE_OTHER + 1)

typedef struct
{
  const char *name;
  int phase;
  guint64 calls, bytes, flop;
  gint64 time;
  gboolean has_products, has_attention;
  double floor; /* seconds; of products and of those inside attention. Below 0: not measured */
} Row;

/* -- rows ---------------------------------------------------------------------------------------------------------- */

static guint
find_row (GArray *rows,
          const EbbEvent *event)
{
  Row row = { .name = event->name, .phase = event->phase };

  for (guint i = 0; i < rows->len; i++)
    {
      const Row *other = &g_array_index (rows, Row, i);

      if (other->phase == row.phase && strcmp (other->name, row.name) == 0)
        return i;
    }
  g_array_append_val (rows, row);
  return rows->len - 1;
}

static void
row_add_op (Row *row,
            const EbbEvent *event)
{
  row->calls++;
  row->bytes += event->bytes;
  row->flop += event->flop;
  row->time += ebb_event_get_time (event);
}

static void
row_add_work (Row *row,
              const EbbOpWork *work)
{
  if (ebb_work_is_product (work))
    row->has_products = TRUE;
  else
    row->has_attention = TRUE;
  row->floor = row->floor < 0 || work->floor < 0 ? -1 : row->floor + work->floor;
}

static int
compare_rows (gconstpointer a,
              gconstpointer b)
{
  const Row *x = a, *y = b;

  return x->time != y->time ? (x->time < y->time ? 1 : -1) : strcmp (x->name, y->name);
}

/* By phase and op, the longest first. A kernel's work counts where its op does. */
static GArray *
make_rows (EbbProfiler *self)
{
  GArray *rows = g_array_new (FALSE, FALSE, sizeof (Row));
  g_autofree guint *row_of = g_new (guint, self->events->len + 1);

  for (guint i = 0; i < self->events->len; i++)
    {
      const EbbEvent *event = ebb_profiler_get_event (self, i);

      if (event->kind == EBB_EVENT_OP)
        row_of[i] = find_row (rows, event);
      if (event->kind == EBB_EVENT_OP && event->end > 0)
        row_add_op (&g_array_index (rows, Row, row_of[i]), event);
      else if (event->kind == EBB_EVENT_KERNEL && event->work >= 0 && event->end > 0)
        row_add_work (&g_array_index (rows, Row, row_of[event->parent]), ebb_profiler_get_work (self, event->work));
    }
  g_array_sort (rows, compare_rows);
  return rows;
}

static void
add_up (Row *sum,
        const Row *row)
{
  sum->calls += row->calls;
  sum->bytes += row->bytes;
  sum->flop += row->flop;
  sum->time += row->time;
}

/* Of each phase, and of all in the last. */
static void
sum_rows (GArray *rows,
          Row sums[N_PHASES + 1])
{
  memset (sums, 0, sizeof (Row) * (N_PHASES + 1));
  for (guint i = 0; i < rows->len; i++)
    {
      const Row *row = &g_array_index (rows, Row, i);

      add_up (&sums[row->phase], row);
      add_up (&sums[N_PHASES], row);
    }
}

/* -- the table ----------------------------------------------------------------------------------------------------- */

#define WIDTH 108

typedef struct
{
  GString *text;
  double n_steps; /* all figures are of one of them */
  double seconds; /* of all */
} Table;

static void
append_number (GString *text,
               int width,
               double value)
{
  int decimals = value >= 999.5 ? 0 : value >= 99.95 ? 1
                                  : value >= 9.995   ? 2
                                                     : 3;

  if (isfinite (value) && value >= 0)
    g_string_append_printf (text, "%*.*f", width, decimals, value);
  else
    g_string_append_printf (text, "%*s", width, "");
}

static void
append_percent (GString *text,
                int width,
                double share)
{
  if (isfinite (share) && share >= 0)
    g_string_append_printf (text, "%*.1f %%", width - 2, share * 100);
  else
    g_string_append_printf (text, "%*s", width, "");
}

static void
append_line (GString *text)
{
  for (int i = 0; i < WIDTH; i++)
    g_string_append_c (text, '-');
  g_string_append_c (text, '\n');
}

/* Ends the line; what comes after the last figure is cut off. */
static void
end_line (GString *text)
{
  gsize length = text->len;

  while (length > 0 && text->str[length - 1] == ' ')
    length--;
  g_string_truncate (text, length);
  g_string_append_c (text, '\n');
}

static void
append_row (Table *self,
            const char *phase,
            const char *name,
            const Row *row)
{
  GString *text = self->text;
  double seconds = (double) row->time * 1e-9;
  gboolean has_floor = (row->has_products || row->has_attention) && row->floor >= 0;
  double calls = (double) row->calls / self->n_steps;

  g_string_append_printf (text, "%-9s %-29s", phase, name);
  if (row->calls == 0)
    g_string_append_printf (text, "%8s", "");
  else
    g_string_append_printf (text, calls == floor (calls) ? "%8.0f" : "%8.1f", calls);
  append_number (text, 10, seconds * 1e3 / self->n_steps);
  append_percent (text, 10, seconds / self->seconds);
  append_number (text, 10, row->bytes > 0 ? (double) row->bytes * 1e-9 / seconds : -1);
  append_number (text, 10, row->flop > 0 ? (double) row->flop * 1e-9 / seconds : -1);
  append_number (text, 11, has_floor ? row->floor * 1e3 / self->n_steps : -1);
  append_percent (text, 11, has_floor ? row->floor / seconds : -1);
  end_line (text);
}

static void
append_head (Table *self,
             EbbProfiler *profiler)
{
  g_string_append_printf (self->text, "%u step%s of %.4g s, %d thread%s; figures of one step\n\n",
                          MAX (profiler->n_steps, 1), profiler->n_steps > 1 ? "s" : "", self->seconds / self->n_steps,
                          ebb_cpu_get_n_threads (), ebb_cpu_get_n_threads () > 1 ? "s" : "");
  g_string_append_printf (self->text, "%-9s %-29s%8s%10s%10s%10s%10s%11s%11s\n", "phase", "op", "calls", "ms", "share",
                          "GB/s", "GFLOP/s", "floor ms", "of floor");
  append_line (self->text);
}

static void
append_sums (Table *self,
             const Row sums[N_PHASES + 1])
{
  Row outside = { .time = (gint64) (self->seconds * 1e9) - sums[N_PHASES].time };
  Row all = sums[N_PHASES];

  append_line (self->text);
  for (int i = 0; i < N_PHASES; i++)
    if (sums[i].calls > 0)
      append_row (self, ebb_phase_get_name ((EbbPhase) i), "(all)", &sums[i]);
  append_row (self, "", "outside of ops", &outside);
  all.time += outside.time;
  append_row (self, "all", "", &all);
}

static void
append_figure (Table *self,
               const char *name,
               double seconds,
               double flop)
{
  g_string_append_printf (self->text, "%-39s%8s", name, "");
  append_number (self->text, 10, seconds * 1e3 / self->n_steps);
  append_percent (self->text, 10, seconds / self->seconds);
  g_string_append_printf (self->text, "%10s", "");
  append_number (self->text, 10, seconds > 0 && flop > 0 ? flop * 1e-9 / seconds : -1);
  end_line (self->text);
}

static double
sum_flop (EbbProfiler *self,
          gboolean products)
{
  double flop = 0;

  for (guint i = 0; i < self->works->len; i++)
    {
      const EbbOpWork *work = ebb_profiler_get_work (self, i);

      if (ebb_work_is_product (work) == products)
        flop += (double) work->flop * (double) work->count;
    }
  return flop;
}

static void
append_floor (Table *self,
              EbbProfiler *profiler)
{
  double floor = ebb_profiler_get_floor_seconds (profiler);
  double attention = ebb_profiler_get_attention_floor_seconds (profiler);
  double flop = sum_flop (profiler, TRUE), attention_flop = sum_flop (profiler, FALSE);

  if (profiler->works->len == 0)
    return;
  append_line (self->text);
  append_figure (self, "kernels of products", ebb_profiler_get_product_seconds (profiler), flop);
  append_figure (self, "kernels of attention", ebb_profiler_get_attention_seconds (profiler), attention_flop);
  if (floor < 0 || attention < 0)
    return;
  append_figure (self, "floor: products alone", floor, flop);
  append_figure (self, "floor, with those inside attention", floor + attention, flop + attention_flop);
}

/**
 * ebb_profiler_get_table:
 * @self: a profiler
 *
 * Makes a table, at most 110 columns wide, of what was recorded: for each phase and op, the longest first, its calls,
 * milliseconds, share of the time, gigabytes that its kernels read and wrote and floating-point operations in a
 * second; after ebb_profiler_measure_floor(), for ops with products, the floor of these and its share of the op's
 * time. If steps of an optimizer were recorded, all figures are of one step. The time of an op has nothing of what is
 * recomputed in it. Bytes count each operand of a kernel once, wherever it came from. An element of a result counts
 * as one operation, of products and attention each multiplication as two. What is left is "outside of ops": modules,
 * the graph, the program.
 *
 * Returns: (transfer full): the table
 */
char *
ebb_profiler_get_table (EbbProfiler *self)
{
  g_autoptr (GArray) rows = NULL;
  Row sums[N_PHASES + 1];
  Table table;

  g_return_val_if_fail (EBB_IS_PROFILER (self), NULL);

  rows = make_rows (self);
  sum_rows (rows, sums);
  table.text = g_string_new (NULL);
  table.n_steps = MAX (self->n_steps, 1);
  table.seconds = ebb_profiler_get_seconds (self);
  append_head (&table, self);
  for (guint i = 0; i < rows->len; i++)
    {
      const Row *row = &g_array_index (rows, Row, i);

      append_row (&table, ebb_phase_get_name ((EbbPhase) row->phase), row->name, row);
    }
  append_sums (&table, sums);
  append_floor (&table, self);
  return g_string_free (table.text, FALSE);
}

/* -- JSON ---------------------------------------------------------------------------------------------------------- */

/* Below 0: not known. */
static void
add_number (EbbJsonWriter *writer,
            const char *name,
            double value)
{
  ebb_json_writer_add_double (writer, name, value >= 0 ? value : NAN);
}

static void
add_ops (EbbJsonWriter *writer,
         GArray *rows)
{
  ebb_json_writer_begin (writer, "ops", '[');
  for (guint i = 0; i < rows->len; i++)
    {
      const Row *row = &g_array_index (rows, Row, i);

      ebb_json_writer_begin (writer, NULL, '{');
      ebb_json_writer_add_string (writer, "phase", ebb_phase_get_name ((EbbPhase) row->phase));
      ebb_json_writer_add_string (writer, "name", row->name);
      ebb_json_writer_add_int (writer, "calls", (gint64) row->calls);
      add_number (writer, "seconds", (double) row->time * 1e-9);
      ebb_json_writer_add_int (writer, "bytes", (gint64) row->bytes);
      ebb_json_writer_add_int (writer, "flop", (gint64) row->flop);
      add_number (writer, "floor_seconds", row->has_products || row->has_attention ? row->floor : -1);
      ebb_json_writer_end (writer);
    }
  ebb_json_writer_end (writer);
}

static void
add_sizes (EbbJsonWriter *writer,
           const char *name,
           const gint64 *sizes,
           int n)
{
  ebb_json_writer_begin (writer, name, '[');
  for (int i = 0; i < n; i++)
    ebb_json_writer_add_int (writer, NULL, sizes[i]);
  ebb_json_writer_end (writer);
}

static void
add_view (EbbJsonWriter *writer,
          const char *name,
          const EbbView *view)
{
  if (view->n_dims < 0)
    {
      ebb_json_writer_add_string (writer, name, NULL);
      return;
    }
  ebb_json_writer_begin (writer, name, '{');
  ebb_json_writer_add_string (writer, "dtype", ebb_dtype_get_name (view->dtype));
  add_sizes (writer, "shape", view->shape, view->n_dims);
  add_sizes (writer, "strides", view->strides, view->n_dims);
  ebb_json_writer_end (writer);
}

static void
add_works (EbbJsonWriter *writer,
           EbbProfiler *self,
           gboolean products)
{
  static const char *const names[2][4] = { { "query", "key", "value", "output" }, { "a", "b", "bias", "c" } };

  ebb_json_writer_begin (writer, products ? "products" : "attention", '[');
  for (guint i = 0; i < self->works->len; i++)
    {
      const EbbOpWork *work = ebb_profiler_get_work (self, i);

      if (ebb_work_is_product (work) != products)
        continue;
      ebb_json_writer_begin (writer, NULL, '{');
      ebb_json_writer_add_string (writer, "kernel", ebb_kernel_get_name ((EbbKernel) work->key.kernel));
      for (guint j = 0; j < 4; j++)
        add_view (writer, names[products][j], &work->key.views[j]);
      ebb_json_writer_add_boolean (writer, products ? "accumulate" : "causal",
                                   products ? work->key.params.matmul.accumulate : work->key.params.attention.causal);
      if (!products)
        ebb_json_writer_add_int (writer, "window", work->key.params.attention.window);
      ebb_json_writer_add_int (writer, "count", (gint64) work->count);
      ebb_json_writer_add_int (writer, "flop", (gint64) work->flop * work->count);
      add_number (writer, "seconds", (double) work->time * 1e-9);
      add_number (writer, "floor_seconds", work->floor >= 0 ? work->floor * (double) work->count : -1);
      ebb_json_writer_end (writer);
    }
  ebb_json_writer_end (writer);
}

typedef struct
{
  GQuark path;
  double seconds[N_PHASES];
} ModuleTime;

/* Of the ops that run in a module's call, not in that of a module below it; in the order of the first. */
static void
add_modules (EbbJsonWriter *writer,
             EbbProfiler *self)
{
  g_autoptr (GArray) modules = g_array_new (FALSE, TRUE, sizeof (ModuleTime));
  g_autoptr (GHashTable) index_of = g_hash_table_new (NULL, NULL);

  for (guint i = 0; i < self->events->len; i++)
    {
      const EbbEvent *event = ebb_profiler_get_event (self, i);
      gpointer key = GUINT_TO_POINTER (event->path), index;

      if (event->kind != EBB_EVENT_OP || event->path == 0 || event->end == 0)
        continue;
      if (!g_hash_table_lookup_extended (index_of, key, NULL, &index))
        {
          ModuleTime module = { .path = event->path };

          index = GUINT_TO_POINTER (modules->len);
          g_array_append_val (modules, module);
          g_hash_table_insert (index_of, key, index);
        }
      g_array_index (modules, ModuleTime, GPOINTER_TO_UINT (index)).seconds[event->phase] +=
          (double) ebb_event_get_time (event) * 1e-9;
    }
  ebb_json_writer_begin (writer, "modules", '[');
  for (guint i = 0; i < modules->len; i++)
    {
      const ModuleTime *module = &g_array_index (modules, ModuleTime, i);

      ebb_json_writer_begin (writer, NULL, '{');
      ebb_json_writer_add_string (writer, "path", g_quark_to_string (module->path));
      for (int phase = 0; phase < N_PHASES; phase++)
        add_number (writer, ebb_phase_get_name ((EbbPhase) phase), module->seconds[phase]);
      ebb_json_writer_end (writer);
    }
  ebb_json_writer_end (writer);
}

/**
 * ebb_profiler_get_json:
 * @self: a profiler
 *
 * The record as one JSON object, summed over all steps: `seconds`, `n_steps`, `n_threads`, `op_seconds`,
 * `outside_seconds`, `product_seconds`, `attention_seconds`, `floor_seconds`, `attention_floor_seconds`, `floor_share`
 * (null until measured); `phases`, seconds by name; `ops`, `products`, `attention` and `modules`, arrays of objects:
 * of each op and phase, each different product, each different attention, and each module's own ops by phase.
 *
 * Returns: (transfer full): the text
 */
char *
ebb_profiler_get_json (EbbProfiler *self)
{
  g_auto (EbbJsonWriter) json = { NULL };
  EbbJsonWriter *writer = &json;
  g_autoptr (GArray) rows = NULL;
  Row sums[N_PHASES + 1];
  double seconds, op_seconds;

  g_return_val_if_fail (EBB_IS_PROFILER (self), NULL);

  rows = make_rows (self);
  sum_rows (rows, sums);
  seconds = ebb_profiler_get_seconds (self);
  op_seconds = (double) sums[N_PHASES].time * 1e-9;
  ebb_json_writer_begin (writer, NULL, '{');
  add_number (writer, "seconds", seconds);
  ebb_json_writer_add_int (writer, "n_steps", (gint64) self->n_steps);
  ebb_json_writer_add_int (writer, "n_threads", ebb_cpu_get_n_threads ());
  add_number (writer, "op_seconds", op_seconds);
  add_number (writer, "outside_seconds", MAX (seconds - op_seconds, 0));
  add_number (writer, "product_seconds", ebb_profiler_get_product_seconds (self));
  add_number (writer, "attention_seconds", ebb_profiler_get_attention_seconds (self));
  add_number (writer, "floor_seconds", ebb_profiler_get_floor_seconds (self));
  add_number (writer, "attention_floor_seconds", ebb_profiler_get_attention_floor_seconds (self));
  add_number (writer, "floor_share", ebb_profiler_get_floor_share (self));
  ebb_json_writer_begin (writer, "phases", '{');
  for (int i = 0; i < N_PHASES; i++)
    add_number (writer, ebb_phase_get_name ((EbbPhase) i), (double) sums[i].time * 1e-9);
  ebb_json_writer_end (writer);
  add_ops (writer, rows);
  add_works (writer, self, TRUE);
  add_works (writer, self, FALSE);
  add_modules (writer, self);
  ebb_json_writer_end (writer);
  return ebb_json_writer_finish (writer);
}

/* -- products ------------------------------------------------------------------------------------------------------ */

static int
compare_times (gconstpointer a,
               gconstpointer b)
{
  const EbbOpWork *x = *(EbbOpWork *const *) a, *y = *(EbbOpWork *const *) b;

  return x->time != y->time ? (x->time < y->time ? 1 : -1) : 0;
}

static void
append_work (GString *text,
             const EbbOpWork *work,
             double n_steps)
{
  double count = (double) work->count, seconds = (double) work->time * 1e-9;
  g_autofree char *operands = ebb_work_to_string (work);

  g_string_append_printf (text, "%8.6g%10.3f%10.1f", count / n_steps, seconds * 1e3 / n_steps,
                          seconds > 0 ? (double) work->flop * count * 1e-9 / seconds : 0);
  if (work->floor >= 0)
    g_string_append_printf (text, "%10.3f%8.1f %%", work->floor * count * 1e3 / n_steps,
                            seconds > 0 ? work->floor * count / seconds * 100 : 0);
  else
    g_string_append_printf (text, "%20s", "");
  g_string_append_printf (text, "  %s\n", operands);
}

/**
 * ebb_profiler_get_product_table:
 * @self: a profiler
 *
 * Makes a table of each different matrix product and attention that was recorded, the longest first: how often, its
 * milliseconds, floating-point operations in a second, after ebb_profiler_measure_floor() its floor, and its operands:
 * shapes after transposition. If steps of an optimizer were recorded, figures are of one step.
 *
 * Returns: (transfer full): the table
 */
char *
ebb_profiler_get_product_table (EbbProfiler *self)
{
  g_autoptr (GPtrArray) works = NULL;
  GString *text;

  g_return_val_if_fail (EBB_IS_PROFILER (self), NULL);

  works = g_ptr_array_copy (self->works, NULL, NULL);
  g_ptr_array_set_free_func (works, NULL);
  g_ptr_array_sort (works, compare_times);
  text = g_string_new (NULL);
  g_string_append_printf (text, "%8s%10s%10s%10s%10s  %s\n", "calls", "ms", "GFLOP/s", "floor ms", "of floor",
                          "operands");
  for (guint i = 0; i < works->len; i++)
    append_work (text, g_ptr_array_index (works, i), MAX (self->n_steps, 1));
  return g_string_free (text, FALSE);
}
