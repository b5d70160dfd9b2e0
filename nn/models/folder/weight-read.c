/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/models/folder/weights-private.h"

#include "nn/files/q8-private.h"
#include "tensor/error-private.h"
#include "tensor/backend/backend-private.h"
#include "tensor/cpu/host-allocator-private.h"
#include "tensor/ops/pointwise.h"
#include "tensor/tensor-private.h"
#include "tensor/thread-private.h"
#include "tensor/util/half-private.h"
#include "tensor/util/lock-private.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Reads the tensors of files into those of a model, on all threads, in slices of rows: straight into place if dtype and
 * order are the same, otherwise through a buffer of one slice. */

#define SLICE ((gint64) 4 << 20) /* bytes of a file, at least one row */
#define TILE 32

/* Rows [first, first + n_rows) of the file's tensor, of @width elements each, which go to row @row of the target; as
 * columns from @first on if they are transposed. */
typedef struct
{
  EbbTensorFile *reader;
  const EbbTensorEntry *entry;
  gint64 first, n_rows, width;
  EbbDType dtype; /* of the target */
  gboolean transposed;
  gint64 n_columns; /* of the target, if transposed; its rows, if it has n_heads */
  guint n_heads;    /* rows are permuted, as EbbWeight says; 0: they aren't */
  gboolean is_one_more;
  char *target; /* of the first element; of the target's begin if transposed or permuted */
} Slice;

typedef struct
{
  GArray *slices;
  gint next; /* atomic */
  gint failed;
  pthread_mutex_t lock;
  GError *error; /* the first */

  EbbTensor **targets; /* for watch_pages () */
  guint n_targets;
  double small_cost, work;
  gint64 n_bytes;
  gboolean is_small;
} Reading;

/* -- one slice ----------------------------------------------------------------------------------------------------- */

static inline float
to_float (const void *from,
          EbbDType dtype,
          gint64 i)
{
  return dtype == EBB_DTYPE_F32    ? ((const float *) from)[i]
         : dtype == EBB_DTYPE_BF16 ? ebb_bf16_to_float (((const guint16 *) from)[i])
                                   : ebb_f16_to_float (((const guint16 *) from)[i]);
}

static void
convert (const void *from,
         EbbDType from_dtype,
         void *to,
         EbbDType to_dtype,
         gint64 n)
{
  if (to_dtype == EBB_DTYPE_F32)
    for (gint64 i = 0; i < n; i++)
      ((float *) to)[i] = to_float (from, from_dtype, i);
  else
    for (gint64 i = 0; i < n; i++)
      ((guint16 *) to)[i] = ebb_bf16_from_float (to_float (from, from_dtype, i));
}

#define DEFINE_TRANSPOSE(name, type)                                                        \
  /* Rows of @width elements become columns of @to, tile by tile. */                        \
  static void name (const type *from, gint64 n_rows, gint64 width, type *to, gint64 stride) \
  {                                                                                         \
    for (gint64 r = 0; r < n_rows; r += TILE)                                               \
      for (gint64 c = 0; c < width; c += TILE)                                              \
        for (gint64 j = c; j < MIN (c + TILE, width); j++)                                  \
          for (gint64 i = r; i < MIN (r + TILE, n_rows); i++)                               \
            to[j * stride + i] = from[i * width + j];                                       \
  }

DEFINE_TRANSPOSE (turn_32, guint32)
DEFINE_TRANSPOSE (turn_16, guint16)

static gint64
count_bytes (const Slice *slice)
{
  const gint64 n = slice->n_rows * slice->width;

  return slice->entry->encoding == EBB_ENCODING_Q8_0 ? n / EBB_Q8_BLOCK * EBB_Q8_BYTES
                                                     : n * (gint64) ebb_dtype_get_size (slice->entry->dtype);
}

static gboolean
is_straight (const Slice *slice)
{
  return !slice->transposed && slice->n_heads == 0 && !slice->is_one_more
         && slice->entry->encoding == EBB_ENCODING_PLAIN && slice->dtype == slice->entry->dtype;
}

static gboolean
read_rows (const Slice *slice,
           void *data,
           GError **error)
{
  const gint64 row_bytes = count_bytes (slice) / slice->n_rows;

  return ebb_tensor_file_read (slice->reader, slice->entry, slice->first * row_bytes,
                               (slice->first + slice->n_rows) * row_bytes, data, error);
}

/* A thread's buffers, of one slice each. */
typedef struct
{
  char *read, *decoded, *converted;
} Buffers;

static void
buffers_clear (Buffers *self)
{
  g_free (self->read);
  g_free (self->decoded);
  g_free (self->converted);
}

/* The values of what was read, as f32. */
static const char *
decode (const Slice *slice,
        Buffers *buffers)
{
  const gint64 n = slice->n_rows * slice->width;
  float *values = (float *) (gpointer) (buffers->decoded = g_realloc (buffers->decoded, (gsize) n * sizeof (float)));

  if (slice->entry->encoding == EBB_ENCODING_Q8_0)
    ebb_q8_decode (buffers->read, values, n);
  else
    convert (buffers->read, slice->entry->dtype, values, EBB_DTYPE_F32, n);
  for (gint64 i = 0; slice->is_one_more && i < n; i++)
    values[i] -= 1;
  return buffers->decoded;
}

/* Rows of the slice's dtype into their places. */
static void
place (const Slice *slice,
       const char *rows)
{
  const gsize row_bytes = (gsize) slice->width * ebb_dtype_get_size (slice->dtype);

  if (slice->n_heads > 0)
    for (gint64 i = 0; i < slice->n_rows; i++)
      memcpy (slice->target
                  + (gsize) ebb_weight_get_own_row (slice->n_heads, slice->n_columns, slice->first + i) * row_bytes,
              rows + (gsize) i * row_bytes, row_bytes);
  else if (!slice->transposed)
    memcpy (slice->target, rows, (gsize) slice->n_rows * row_bytes);
  else if (ebb_dtype_get_size (slice->dtype) == 4)
    turn_32 ((const guint32 *) (gconstpointer) rows, slice->n_rows, slice->width,
             (guint32 *) (gpointer) slice->target + slice->first, slice->n_columns);
  else
    turn_16 ((const guint16 *) (gconstpointer) rows, slice->n_rows, slice->width,
             (guint16 *) (gpointer) slice->target + slice->first, slice->n_columns);
}

static gboolean
read_slice (const Slice *slice,
            Buffers *buffers,
            GError **error)
{
  const gint64 n = slice->n_rows * slice->width;
  EbbDType dtype = slice->entry->dtype;
  const char *rows;

  if (is_straight (slice))
    return read_rows (slice, slice->target, error);
  rows = buffers->read = g_realloc (buffers->read, (gsize) count_bytes (slice));
  if (!read_rows (slice, buffers->read, error))
    return FALSE;
  if (slice->entry->encoding == EBB_ENCODING_Q8_0 || slice->is_one_more)
    {
      rows = decode (slice, buffers);
      dtype = EBB_DTYPE_F32;
    }
  if (dtype != slice->dtype && !slice->transposed && slice->n_heads == 0)
    {
      convert (rows, dtype, slice->target, slice->dtype, n);
      return TRUE;
    }
  if (dtype != slice->dtype)
    {
      buffers->converted = g_realloc (buffers->converted, (gsize) n * ebb_dtype_get_size (slice->dtype));
      convert (rows, dtype, buffers->converted, slice->dtype, n);
      rows = buffers->converted;
    }
  place (slice, rows);
  return TRUE;
}

/* -- pages --------------------------------------------------------------------------------------------------------- */

/* Huge pages are read faster later. Where the system must find memory for them first, as in many virtual machines, they
 * take several times as long to get as small ones. So a part of the largest tensor is read into small pages to see what
 * they cost, and the rest into huge ones until these have cost more in all. */

#define SAMPLE ((gint64) 24 << 20)

/* The CPU time of this thread in seconds: other threads and a slow disk don't count. */
static double
get_work (void)
{
  struct timespec time;

  clock_gettime (CLOCK_THREAD_CPUTIME_ID, &time);
  return (double) time.tv_sec + 1e-9 * (double) time.tv_nsec;
}

/* The index of the first slice of a tensor that is larger than the sample and goes straight into place; the number of
 * slices if no tensor is. */
static guint
find_large (GArray *slices)
{
  gint64 n_bytes = 0;
  guint first = 0;

  for (guint i = 0; i < slices->len; i++)
    {
      const Slice *slice = &g_array_index (slices, Slice, i);

      if (i == 0 || slice->entry != g_array_index (slices, Slice, first).entry)
        {
          first = i;
          n_bytes = 0;
        }
      n_bytes += count_bytes (slice);
      if (n_bytes >= SAMPLE && is_straight (slice))
        return first;
    }
  return slices->len;
}

/* Reads SAMPLE bytes into small pages and removes their slices from the list. *@cost: seconds of work for a byte; 0: no
 * tensor is so large that pages matter. */
static gboolean
sample_small_pages (GArray *slices,
                    double *cost,
                    GError **error)
{
  const guint first = find_large (slices);
  const char *target = first < slices->len ? g_array_index (slices, Slice, first).target : NULL;
  const double start = get_work ();
  gint64 n_bytes = 0;
  guint n = 0;
  gboolean ok = TRUE;

  *cost = 0;
  if (first == slices->len)
    return TRUE;
  ebb_host_allow_huge_pages ((char *) target, (gsize) SAMPLE, FALSE);
  for (; ok && n_bytes < SAMPLE; n++)
    {
      const Slice *slice = &g_array_index (slices, Slice, first + n);

      ok = read_rows (slice, slice->target, error);
      n_bytes += count_bytes (slice);
    }
  ebb_host_allow_huge_pages ((char *) target, (gsize) SAMPLE, TRUE);
  *cost = (get_work () - start) / (double) n_bytes;
  g_array_remove_range (slices, first, n);
  return ok;
}

static int
compare_addresses (gconstpointer a,
                   gconstpointer b)
{
  const char *x = (*(EbbTensor *const *) a)->view.data, *y = (*(EbbTensor *const *) b)->view.data;

  return x < y ? -1 : x > y;
}

/* Tensors that lie close together share pages, so they are one range. */
static void
allow_huge_pages (EbbTensor **targets,
                  guint n_targets,
                  gboolean allow)
{
  g_autofree EbbTensor **sorted = g_memdup2 (targets, n_targets * sizeof targets[0]);
  char *begin = NULL, *end = NULL;

  qsort (sorted, n_targets, sizeof sorted[0], compare_addresses);
  for (guint i = 0; i < n_targets; i++)
    {
      char *data = sorted[i]->view.data;

      if (begin == NULL || data - end > SLICE)
        {
          ebb_host_allow_huge_pages (begin, (gsize) (end - begin), allow);
          begin = data;
        }
      end = data + ebb_tensor_get_n_bytes (sorted[i]);
    }
  ebb_host_allow_huge_pages (begin, (gsize) (end - begin), allow);
}

/* Takes the work for a slice into account. */
static void
watch_pages (Reading *reading,
             const Slice *slice,
             double work)
{
  if (reading->small_cost == 0 || !is_straight (slice))
    return;
  EBB_AUTO_LOCK (&reading->lock);
  reading->work += work;
  reading->n_bytes += count_bytes (slice);
  if (!reading->is_small && reading->n_bytes >= SLICE
      && reading->work > reading->small_cost * (double) reading->n_bytes)
    {
      reading->is_small = TRUE;
      allow_huge_pages (reading->targets, reading->n_targets, FALSE);
    }
}

/* -- all of them --------------------------------------------------------------------------------------------------- */

static gpointer
read_slices (gpointer data)
{
  Reading *reading = data;
  Buffers buffers = { NULL, NULL, NULL };
  guint i;

  while ((i = (guint) g_atomic_int_add (&reading->next, 1)) < reading->slices->len
         && !g_atomic_int_get (&reading->failed))
    {
      const Slice *slice = &g_array_index (reading->slices, Slice, i);
      const double start = get_work ();
      GError *error = NULL;

      if (read_slice (slice, &buffers, &error))
        {
          watch_pages (reading, slice, get_work () - start);
          continue;
        }
      g_atomic_int_set (&reading->failed, TRUE);
      pthread_mutex_lock (&reading->lock);
      if (reading->error == NULL)
        reading->error = g_steal_pointer (&error);
      pthread_mutex_unlock (&reading->lock);
      g_clear_error (&error);
    }
  buffers_clear (&buffers);
  return NULL;
}

static gboolean
read_in_parallel (Reading *reading,
                  GError **error)
{
  const guint n_threads = MIN ((guint) ebb_get_num_threads (), reading->slices->len);
  g_autofree GThread **threads = g_new0 (GThread *, n_threads + 1);

  pthread_mutex_init (&reading->lock, NULL);
  /* If a thread can't be started, the others read its share. */
  for (guint i = 1; i < n_threads; i++)
    threads[i] = g_thread_try_new ("ebb-read", read_slices, reading, NULL);
  read_slices (reading);
  for (guint i = 1; i < n_threads; i++)
    if (threads[i] != NULL)
      g_thread_join (threads[i]);
  pthread_mutex_destroy (&reading->lock);
  if (reading->error == NULL)
    return TRUE;
  g_propagate_error (error, reading->error);
  return FALSE;
}

/* -- the list of slices -------------------------------------------------------------------------------------------- */

/* The slices of one part of a weight. @target: the data of the model's tensor. */
static void
add_slices (GArray *slices,
            EbbWeightFiles *files,
            const EbbWeight *weight,
            const EbbWeightPart *part,
            const EbbTensorEntry *entry,
            char *target,
            EbbDType dtype)
{
  const gint64 element = (gint64) ebb_dtype_get_size (dtype);
  const gint64 n_rows = weight->transposed ? weight->shape[0] : part->n_rows;
  const gboolean is_scattered = weight->transposed || weight->n_heads > 0;
  gint64 width = 1, step;

  for (guint d = 1; d < weight->n_dims; d++)
    width *= weight->shape[d];
  step = MAX (1, SLICE / MAX (1, width * (gint64) ebb_dtype_get_size (entry->dtype)));
  for (gint64 row = 0; row < n_rows && width > 0; row += step)
    {
      Slice slice = { .reader = ebb_weight_files_get_reader (files, entry),
                      .entry = entry,
                      .first = part->file_row + row,
                      .n_rows = MIN (step, n_rows - row),
                      .width = width,
                      .dtype = dtype,
                      .transposed = weight->transposed,
                      .n_columns = n_rows,
                      .n_heads = weight->n_heads,
                      .is_one_more = weight->is_one_more,
                      .target = is_scattered ? target : target + (part->row + row) * width * element };

      g_array_append_val (slices, slice);
    }
}

/* The slices of all weights that go to the model's tensor @tensor; -1: to any. @targets: the model's tensors. */
static GArray *
collect_slices (EbbWeightFiles *files,
                const EbbWeightMap *map,
                GPtrArray *entries,
                int tensor,
                EbbTensor **targets)
{
  GArray *slices = g_array_new (FALSE, FALSE, sizeof (Slice));

  for (guint i = 0; i < map->weights->len; i++)
    {
      const EbbWeight *weight = &g_array_index (map->weights, EbbWeight, i);

      for (guint k = 0; weight->content == EBB_WEIGHT_VALUES && k < weight->n_parts; k++)
        if ((tensor < 0 || weight->parts[k].tensor == (guint) tensor) && targets[weight->parts[k].tensor] != NULL)
          {
            EbbTensor *target = targets[weight->parts[k].tensor];

            add_slices (slices, files, weight, &weight->parts[k], g_ptr_array_index (entries, i), target->view.data,
                        target->view.dtype);
          }
    }
  return slices;
}

/* In the order in which they lie in the files. */
static int
compare_places (gconstpointer a,
                gconstpointer b)
{
  const Slice *x = a, *y = b;

  if (x->reader != y->reader)
    return strcmp (x->reader->path, y->reader->path);
  if (x->entry != y->entry)
    return x->entry->begin < y->entry->begin ? -1 : x->entry->begin > y->entry->begin;
  return x->first < y->first ? -1 : x->first > y->first;
}

gboolean
ebb_weights_read_one (EbbWeightFiles *files,
                      const EbbWeightMap *map,
                      GPtrArray *entries,
                      guint tensor,
                      EbbTensor *target,
                      GError **error)
{
  g_autofree EbbTensor **targets = g_new0 (EbbTensor *, map->tensors->len);
  g_autoptr (GArray) slices = NULL;
  Reading reading = { .next = 0 };

  if (ebb_is_dry ())
    return TRUE;
  targets[tensor] = target;
  slices = collect_slices (files, map, entries, (int) tensor, targets);
  reading.slices = slices;
  return read_in_parallel (&reading, error);
}

/* By way of host memory, one tensor after the other. */
static gboolean
read_to_device (EbbWeightFiles *files,
                const EbbWeightMap *map,
                GPtrArray *entries,
                EbbTensor **targets,
                GError **error)
{
  for (guint i = 0; i < map->tensors->len; i++)
    {
      g_autoptr (EbbTensor) host = NULL;

      if (targets[i] == NULL)
        continue;
      host = ebb_tensor_new_uninitialized (targets[i]->view.shape, (guint) targets[i]->view.n_dims,
                                           targets[i]->view.dtype, ebb_device_get_cpu (), error);
      if (host == NULL || !ebb_weights_read_one (files, map, entries, i, host, error)
          || !ebb_tensor_upload (targets[i], host->view.data, error))
        return FALSE;
    }
  return TRUE;
}

gboolean
ebb_weights_read (EbbWeightFiles *files,
                  const EbbWeightMap *map,
                  GPtrArray *entries,
                  EbbTensor **targets,
                  GError **error)
{
  g_autoptr (GArray) slices = NULL;
  g_autofree EbbTensor **present = g_new (EbbTensor *, map->tensors->len + 1);
  Reading reading = { .targets = present };
  gboolean done;

  if (ebb_is_dry ())
    return TRUE;
  for (guint i = 0; i < map->tensors->len; i++)
    if (targets[i] != NULL && !ebb_tensor_get_device (targets[i])->backend->host_memory)
      return read_to_device (files, map, entries, targets, error);
    else if (targets[i] != NULL)
      present[reading.n_targets++] = targets[i];
  slices = collect_slices (files, map, entries, -1, targets);
  g_array_sort (slices, compare_places);
  reading.slices = slices;
  done = sample_small_pages (slices, &reading.small_cost, error) && read_in_parallel (&reading, error);
  if (reading.is_small)
    allow_huge_pages (present, reading.n_targets, TRUE);
  return done;
}

gboolean
ebb_weights_read_entry (EbbTensorFile *file,
                        const EbbTensorEntry *entry,
                        guint n_heads,
                        EbbTensor *target,
                        GError **error)
{
  Buffers buffers = { NULL, NULL, NULL };
  const Slice slice = { .reader = file,
                        .entry = entry,
                        .n_rows = entry->shape[0],
                        .width = entry->shape[1],
                        .dtype = target->view.dtype,
                        .n_columns = entry->shape[0],
                        .n_heads = n_heads,
                        .target = target->view.data };
  const gboolean done = read_slice (&slice, &buffers, error);

  buffers_clear (&buffers);
  return done;
}

/* -- tied weights -------------------------------------------------------------------------------------------------- */

static gboolean
is_equal (EbbWeightFiles *files,
          const EbbTensorEntry *entry,
          EbbTensor *own,
          GError **error)
{
  const EbbDType dtype = own->view.dtype;
  const gint64 size = (gint64) ebb_dtype_get_size (entry->dtype), n = own->n_elements;
  const char *data = ebb_tensor_get_data (own, error);
  g_autofree char *read = g_malloc ((gsize) SLICE);
  g_autofree char *converted = g_malloc ((gsize) SLICE * 2);

  if (ebb_is_dry ())
    return TRUE;
  if (data == NULL || (entry->end - entry->begin) / size != n)
    return FALSE;
  for (gint64 at = 0; at < n; at += SLICE / 4)
    {
      const gint64 count = MIN (SLICE / 4, n - at);

      if (!ebb_tensor_file_read (ebb_weight_files_get_reader (files, entry), entry, at * size,
                                 (at + count) * size, read, error))
        return FALSE;
      if (dtype != entry->dtype)
        convert (read, entry->dtype, converted, dtype, count);
      if (memcmp (dtype != entry->dtype ? converted : read, data + at * (gint64) ebb_dtype_get_size (dtype),
                  (gsize) count * ebb_dtype_get_size (dtype))
          != 0)
        return FALSE;
    }
  return TRUE;
}

gboolean
ebb_weights_check_tied (EbbWeightFiles *files,
                        const EbbWeightMap *map,
                        EbbTensor **targets,
                        GError **error)
{
  for (const EbbTiedName *tied = map->architecture->tied; tied->file != NULL; tied++)
    {
      const EbbTensorEntry *entry = ebb_weight_files_find (files, tied->file);
      g_autoptr (EbbTensor) host = NULL;
      g_autofree char *shown = NULL;
      GError *failure = NULL;
      guint own = 0;

      while (own < map->tensors->len && strcmp (g_array_index (map->tensors, EbbModelTensor, own).name, tied->own) != 0)
        own++;
      for (guint i = 0; entry != NULL && i < map->weights->len; i++)
        if (strcmp (g_array_index (map->weights, EbbWeight, i).name, tied->file) == 0)
          entry = NULL; /* the model has it */
      if (entry == NULL || own == map->tensors->len)
        continue;
      if (targets[own] == NULL)
        continue;
      host = ebb_to_device (targets[own], ebb_device_get_cpu (), error);
      if (host == NULL)
        return FALSE;
      if (ebb_dtype_is_floating_point (entry->dtype) && is_equal (files, entry, host, &failure))
        continue;
      if (failure != NULL)
        {
          g_propagate_error (error, failure);
          return FALSE;
        }
      shown = ebb_escape_text (files->folder);
      return ebb_fail (
          error, EBB_ERROR_STATE,
          "%s: %s differs from the tensor that config.json ties it to: tie_word_embeddings must be false, or "
          "both equal",
          shown, tied->file);
    }
  return TRUE;
}
