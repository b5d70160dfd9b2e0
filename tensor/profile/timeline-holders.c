/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* What a memory timeline found: the peak, in all and by purpose, and who holds the memory then. */
#include "tensor/profile/timeline-private.h"

#include "tensor/backend/backend-private.h"
#include "tensor/profile/profiler-private.h"
#include "tensor/util/json-writer-private.h"

#include <math.h>
#include <string.h>

static guint64
get_count (gint64 n)
{
  return (guint64) MAX (n, 0);
}

/**
 * ebb_memory_timeline_get_peak_total:
 * @self: a timeline
 *
 * Returns: the most bytes of all purposes together at one time of the recording, as ebb_memory_stats_get_peak_total()
 *   counts them after ebb_memory_reset_peaks() at its start
 */
guint64
ebb_memory_timeline_get_peak_total (EbbMemoryTimeline *self)
{
  g_return_val_if_fail (EBB_IS_MEMORY_TIMELINE (self), 0);

  return get_count ((gint64) self->peak[EBB_N_PURPOSES]);
}

/**
 * ebb_memory_timeline_get_peak:
 * @self: a timeline
 * @purpose: a purpose
 *
 * Returns: the most bytes in use for @purpose at one time of the recording
 */
guint64
ebb_memory_timeline_get_peak (EbbMemoryTimeline *self,
                              EbbPurpose purpose)
{
  g_return_val_if_fail (EBB_IS_MEMORY_TIMELINE (self), 0);
  g_return_val_if_fail ((guint) purpose < EBB_N_PURPOSES, 0);

  return get_count ((gint64) self->peak[purpose]);
}

/**
 * ebb_memory_timeline_get_n_changes:
 * @self: a timeline
 *
 * Returns: how many allocations, changes of purpose and frees were recorded
 */
guint64
ebb_memory_timeline_get_n_changes (EbbMemoryTimeline *self)
{
  g_return_val_if_fail (EBB_IS_MEMORY_TIMELINE (self), 0);

  return self->changes->len;
}

/**
 * ebb_memory_timeline_get_n_launches:
 * @self: a timeline
 *
 * Returns: how many kernels were launched meanwhile: the length of the time axis
 */
guint64
ebb_memory_timeline_get_n_launches (EbbMemoryTimeline *self)
{
  g_return_val_if_fail (EBB_IS_MEMORY_TIMELINE (self), 0);

  return self->n_launches;
}

/* -- holders ------------------------------------------------------------------------------------------------------- */

static guint
holder_hash (gconstpointer data)
{
  const EbbMemoryHolder *self = data;

  return g_direct_hash (self->op) ^ 31 * g_direct_hash (self->module_pattern) ^ 61 * g_direct_hash (self->name_pattern)
         ^ 127 * g_direct_hash (self->shape) ^ (guint) self->purpose << 8 ^ (guint) self->phase << 16;
}

/* The strings of one timeline are equal where their pointers are: they are interned, or in its texts. */
static gboolean
holder_equal (gconstpointer a,
              gconstpointer b)
{
  const EbbMemoryHolder *x = a, *y = b;

  return x->op == y->op && x->module_pattern == y->module_pattern && x->name_pattern == y->name_pattern
         && x->shape == y->shape && x->purpose == y->purpose && x->phase == y->phase && x->is_older == y->is_older;
}

static void
add_holder (GHashTable *holders,
            const EbbMemoryHolder *part)
{
  EbbMemoryHolder *holder = g_hash_table_lookup (holders, part);

  if (holder == NULL)
    {
      holder = g_memdup2 (part, sizeof *part);
      holder->n_bytes = holder->n_blocks = 0;
      g_hash_table_add (holders, holder);
    }
  if (holder->module != part->module)
    holder->module = holder->module_pattern;
  if (holder->name != part->name)
    holder->name = holder->name_pattern;
  holder->n_bytes += part->n_bytes;
  holder->n_blocks += part->n_blocks;
}

/* "h.3.mlp" becomes "h.*.mlp", "h.3 (Mlp)" "h.* (Mlp)". */
static const char *
make_pattern (EbbMemoryTimeline *self,
              const char *path)
{
  g_autoptr (GString) pattern = NULL;

  if (path == NULL)
    return NULL;
  pattern = g_string_new (NULL);
  for (const char *part = path; part != NULL;)
    {
      const gsize size = strcspn (part, ". ");
      const char *end = part[size] != '\0' ? part + size : NULL;

      if (size > 0 && strspn (part, "0123456789") == size)
        g_string_append_c (pattern, '*');
      else
        g_string_append_len (pattern, part, (gssize) size);
      if (end != NULL)
        g_string_append_c (pattern, *end);
      part = end != NULL ? end + 1 : NULL;
    }
  return g_string_chunk_insert_const (self->texts, pattern->str);
}

guint8 *
ebb_timeline_replay (EbbMemoryTimeline *self,
                     guint32 last)
{
  guint8 *purposes = g_new (guint8, MAX (self->blocks->len, 1));

  for (guint i = 0; i < self->blocks->len; i++)
    {
      const EbbTimelineBlock *block = ebb_timeline_get_block (self, i);

      purposes[i] = block->first == EBB_TIMELINE_NEVER ? block->was : EBB_N_PURPOSES;
    }
  for (guint i = 0; last != EBB_TIMELINE_NEVER && i <= last; i++)
    purposes[ebb_timeline_get_change (self, i)->block] = ebb_timeline_get_change (self, i)->to;
  return purposes;
}

static void
add_block (EbbMemoryTimeline *self,
           GHashTable *holders,
           const EbbTimelineBlock *block,
           guint8 purpose)
{
  const char *module = block->path != 0 ? g_quark_to_string (block->path) : NULL;
  const EbbMemoryHolder part = { .purpose = (EbbPurpose) purpose,
                                 .phase = (EbbPhase) block->phase,
                                 .op = block->op,
                                 .name = block->name,
                                 .shape = block->shape,
                                 .module = module,
                                 .module_pattern = make_pattern (self, module),
                                 .name_pattern = make_pattern (self, block->name),
                                 .is_older = block->first == EBB_TIMELINE_NEVER,
                                 .n_blocks = 1,
                                 .n_bytes = block->n_bytes };

  add_holder (holders, &part);
}

static void
collect_holders (EbbMemoryTimeline *self,
                 GHashTable *holders)
{
  g_autofree guint8 *purposes = ebb_timeline_replay (self, self->peak_change);

  for (guint i = 0; i < self->blocks->len; i++)
    if (purposes[i] != EBB_N_PURPOSES)
      add_block (self, holders, ebb_timeline_get_block (self, i), purposes[i]);
  for (guint i = 0; i < EBB_N_PURPOSES; i++)
    {
      const EbbMemoryHolder part = { .purpose = (EbbPurpose) i,
                                     .phase = EBB_PHASE_OTHER,
                                     .is_older = TRUE,
                                     .n_bytes = get_count (self->rest[i]) };

      if (self->rest[i] > 0)
        add_holder (holders, &part);
    }
}

/* The largest first; of two that are equal always the same one. */
static int
compare_holders (gconstpointer a,
                 gconstpointer b)
{
  const EbbMemoryHolder *x = a, *y = b;
  int order = x->n_bytes < y->n_bytes ? 1 : x->n_bytes > y->n_bytes ? -1
                                                                    : (int) x->purpose - (int) y->purpose;

  if (order == 0)
    order = g_strcmp0 (x->module, y->module);
  if (order == 0)
    order = g_strcmp0 (x->name, y->name);
  if (order == 0)
    order = g_strcmp0 (x->op, y->op);
  if (order == 0)
    order = g_strcmp0 (x->shape, y->shape);
  return order != 0 ? order : (int) x->phase - (int) y->phase;
}

static GHashTable *
make_holders (void)
{
  return g_hash_table_new_full (holder_hash, holder_equal, g_free, NULL);
}

/* The @n largest; takes @holders. */
static GArray *
list_largest (GHashTable *holders,
              guint n)
{
  GArray *list = g_array_new (FALSE, FALSE, sizeof (EbbMemoryHolder));
  GHashTableIter iter;
  gpointer holder;

  g_hash_table_iter_init (&iter, holders);
  while (g_hash_table_iter_next (&iter, &holder, NULL))
    g_array_append_vals (list, holder, 1);
  g_hash_table_unref (holders);
  g_array_sort (list, compare_holders);
  g_array_set_size (list, MIN (n, list->len));
  return list;
}

GArray *
ebb_memory_timeline_list_holders (EbbMemoryTimeline *self,
                                  guint n)
{
  GHashTable *holders = make_holders ();

  collect_holders (self, holders);
  return list_largest (holders, n);
}

static gboolean
is_left (const EbbTimelineBlock *block)
{
  return block->first != EBB_TIMELINE_NEVER && block->last == EBB_TIMELINE_NEVER && block->data != NULL;
}

GHashTable *
ebb_memory_timeline_list_addresses (EbbMemoryTimeline *self)
{
  GHashTable *addresses = g_hash_table_new (NULL, NULL);

  for (guint i = 0; i < self->blocks->len; i++)
    if (is_left (ebb_timeline_get_block (self, i)))
      g_hash_table_add (addresses, (gpointer) ebb_timeline_get_block (self, i)->data);
  return addresses;
}

GArray *
ebb_memory_timeline_list_left (EbbMemoryTimeline *self,
                               GHashTable *addresses)
{
  GHashTable *holders = make_holders ();

  for (guint i = 0; i < self->blocks->len; i++)
    {
      const EbbTimelineBlock *block = ebb_timeline_get_block (self, i);

      if (is_left (block) && g_hash_table_contains (addresses, block->data))
        add_block (self, holders, block, block->purpose);
    }
  return list_largest (holders, G_MAXUINT);
}

/* -- as text and as JSON ------------------------------------------------------------------------------------------- */

char *
ebb_memory_holder_to_string (const EbbMemoryHolder *self)
{
  GString *text = g_string_new (NULL);

  if (self->name != NULL)
    g_string_append (text, self->name);
  else if (self->module != NULL && *self->module != '\0')
    g_string_append (text, self->module);
  if (self->op != NULL)
    g_string_append_printf (text, "%s%s (%s)", text->len > 0 ? ": " : "", self->op, ebb_phase_get_name (self->phase));
  if (text->len == 0)
    g_string_append (text, self->is_older ? "from before the recording" : "no op, no module");
  if (self->shape != NULL)
    g_string_append_printf (text, ", %s", self->shape);
  return g_string_free (text, FALSE);
}

static void
append_mebibytes (GString *text,
                  int width,
                  guint64 n_bytes)
{
  g_string_append_printf (text, "%*.*f MiB", width, n_bytes < 100 << 20 ? 2 : 1, (double) n_bytes / (1 << 20));
}

static void
append_purposes (GString *text,
                 const guint64 *bytes)
{
  const char *separator = "";

  for (guint i = 0; i < EBB_N_PURPOSES; i++)
    {
      if ((gint64) bytes[i] <= 0)
        continue;
      g_string_append_printf (text, "%s%s ", separator, ebb_purpose_get_name ((EbbPurpose) i));
      append_mebibytes (text, 0, bytes[i]);
      separator = ", ";
    }
  g_string_append_c (text, '\n');
}

void
ebb_memory_timeline_append_holders (EbbMemoryTimeline *self,
                                    guint n,
                                    GString *text)
{
  g_autoptr (GArray) holders = ebb_memory_timeline_list_holders (self, n);

  for (guint i = 0; i < holders->len; i++)
    {
      const EbbMemoryHolder *holder = &g_array_index (holders, EbbMemoryHolder, i);
      g_autofree char *name = ebb_memory_holder_to_string (holder);

      append_mebibytes (text, 9, holder->n_bytes);
      g_string_append_printf (text, "  %-12s", ebb_purpose_get_name (holder->purpose));
      g_string_append (text, name);
      if (holder->n_blocks > 1)
        g_string_append_printf (text, ", %u times", holder->n_blocks);
      g_string_append_c (text, '\n');
    }
}

/**
 * ebb_memory_timeline_get_table:
 * @self: a timeline
 * @n_holders: how many of those to show that hold most at the peak
 *
 * Shows the peak, in all and of each purpose, and who holds most when all purposes together are at their peak: tensors
 * with the same op, module and shape are one row, and so are those of modules that differ in numbers alone, as
 * "h.*.mlp".
 *
 * Returns: (transfer full): text of some lines
 */
char *
ebb_memory_timeline_get_table (EbbMemoryTimeline *self,
                               guint n_holders)
{
  GString *text;

  g_return_val_if_fail (EBB_IS_MEMORY_TIMELINE (self), NULL);

  text = g_string_new (NULL);
  g_string_append (text, "peak ");
  append_mebibytes (text, 0, ebb_memory_timeline_get_peak_total (self));
  g_string_append_printf (text, " (%" G_GUINT64_FORMAT " bytes) on %s; of each purpose: ",
                          ebb_memory_timeline_get_peak_total (self), self->device != NULL ? self->device->name : "cpu");
  append_purposes (text, self->peak);
  ebb_memory_timeline_append_holders (self, n_holders, text);
  return g_string_free (text, FALSE);
}

static void
add_holders (EbbJsonWriter *writer,
             const GArray *holders)
{
  ebb_json_writer_begin (writer, "holders", '[');
  for (guint i = 0; i < holders->len; i++)
    {
      const EbbMemoryHolder *holder = &g_array_index (holders, EbbMemoryHolder, i);

      ebb_json_writer_begin (writer, NULL, '{');
      ebb_json_writer_add_int (writer, "bytes", (gint64) holder->n_bytes);
      ebb_json_writer_add_string (writer, "purpose", ebb_purpose_get_name (holder->purpose));
      ebb_json_writer_add_string (writer, "name", holder->name);
      ebb_json_writer_add_string (writer, "op", holder->op);
      ebb_json_writer_add_string (writer, "phase", ebb_phase_get_name (holder->phase));
      ebb_json_writer_add_string (writer, "module", holder->module);
      ebb_json_writer_add_string (writer, "shape", holder->shape);
      ebb_json_writer_add_int (writer, "tensors", (gint64) holder->n_blocks);
      ebb_json_writer_end (writer);
    }
  ebb_json_writer_end (writer);
}

/**
 * ebb_memory_timeline_get_json:
 * @self: a timeline
 * @n_holders: how many of those to list that hold most at the peak
 *
 * The numbers of ebb_memory_timeline_get_table(): `peak_bytes`, `purposes` with the peak of each, `holders` with
 * `bytes`, `purpose`, `name`, `op`, `phase`, `module`, `shape` and `tensors`, of which null stands for what is not
 * known.
 *
 * Returns: (transfer full): a JSON object
 */
char *
ebb_memory_timeline_get_json (EbbMemoryTimeline *self,
                              guint n_holders)
{
  g_auto (EbbJsonWriter) json = { NULL };
  EbbJsonWriter *writer = &json;
  g_autoptr (GArray) holders = NULL;

  g_return_val_if_fail (EBB_IS_MEMORY_TIMELINE (self), NULL);

  holders = ebb_memory_timeline_list_holders (self, n_holders);
  ebb_json_writer_begin (writer, NULL, '{');
  ebb_json_writer_add_string (writer, "name", self->name);
  ebb_json_writer_add_string (writer, "device", self->device != NULL ? self->device->name : NULL);
  ebb_json_writer_add_int (writer, "peak_bytes", (gint64) ebb_memory_timeline_get_peak_total (self));
  ebb_json_writer_begin (writer, "purposes", '{');
  for (guint i = 0; i < EBB_N_PURPOSES; i++)
    ebb_json_writer_add_int (writer, ebb_purpose_get_name ((EbbPurpose) i),
                             (gint64) ebb_memory_timeline_get_peak (self, (EbbPurpose) i));
  ebb_json_writer_end (writer);
  ebb_json_writer_add_int (writer, "launches", (gint64) self->n_launches);
  ebb_json_writer_add_double (writer, "seconds", self->has_times ? (double) self->end * 1e-9 : NAN);
  add_holders (writer, holders);
  ebb_json_writer_end (writer);
  return ebb_json_writer_finish (writer);
}
