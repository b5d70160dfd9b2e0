/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/models/folder/weights-private.h"

#include "tensor/error-private.h"
#include "tensor/backend/backend-private.h"
#include "tensor/cpu/host-allocator-private.h"
#include "tensor/ops/pointwise.h"
#include "tensor/tensor-private.h"
#include "tensor/util/half-private.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Reads the tensors of files into those of a model, on all threads, each a piece at a time: straight into place if
 * dtype and order are the same, else by way of a buffer of one piece. */

#define PIECE ((gint64) 4 << 20) /* bytes of a file */
#define TILE 32

/* Rows [first, first + n_rows) of the file's tensor, of @width elements each, which go to row @row of the target; as
 * columns from @first on if they are transposed. */
typedef struct
{
  EbbSafetensorsReader *reader;
  const EbbSafetensorsEntry *entry;
  gint64 first, n_rows, width;
  EbbDType dtype; /* of the target */
  gboolean transposed;
  gint64 n_columns; /* of the target, if transposed */
  char *target;     /* of the first element; of the target's begin if transposed */
} Piece;

typedef struct
{
  GArray *pieces;
  gint next; /* atomic */
  gint failed;
  GMutex lock;
  GError *error; /* the first */

  EbbTensor **targets; /* for watch_pages () */
  guint n_targets;
  double small_cost, work;
  gint64 n_bytes;
  gboolean is_small;
} Reading;

/* -- one piece ----------------------------------------------------------------------------------------------------- */

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

static gboolean
read_rows (const Piece *piece,
           void *data,
           GError **error)
{
  const gint64 size = (gint64) ebb_dtype_get_size (piece->entry->dtype) * piece->width;

  return ebb_safetensors_reader_read (piece->reader, piece->entry, piece->first * size,
                                      (piece->first + piece->n_rows) * size, data, error);
}

static gboolean
read_piece (const Piece *piece,
            char **buffer,
            char **second,
            GError **error)
{
  const gint64 n = piece->n_rows * piece->width;
  const char *rows;

  if (!piece->transposed && piece->dtype == piece->entry->dtype)
    return read_rows (piece, piece->target, error);
  *buffer = g_realloc (*buffer, (gsize) n * ebb_dtype_get_size (piece->entry->dtype));
  if (!read_rows (piece, *buffer, error))
    return FALSE;
  rows = *buffer;
  if (piece->dtype != piece->entry->dtype)
    {
      if (piece->transposed)
        *second = g_realloc (*second, (gsize) n * ebb_dtype_get_size (piece->dtype));
      convert (*buffer, piece->entry->dtype, piece->transposed ? *second : piece->target, piece->dtype, n);
      rows = *second;
    }
  if (!piece->transposed)
    return TRUE;
  if (ebb_dtype_get_size (piece->dtype) == 4)
    turn_32 ((const guint32 *) rows, piece->n_rows, piece->width, (guint32 *) piece->target + piece->first,
             piece->n_columns);
  else
    turn_16 ((const guint16 *) rows, piece->n_rows, piece->width, (guint16 *) piece->target + piece->first,
             piece->n_columns);
  return TRUE;
}

/* -- pages --------------------------------------------------------------------------------------------------------- */

/* Huge pages are read faster later. Where the system must find memory for them first, as in many virtual machines, they
 * take several times as long to get as small ones. So a part of the largest tensor is read into small pages to see what
 * they cost, and the rest into huge ones until these have cost more in all. */

#define SAMPLE ((gint64) 24 << 20)

/* What this thread has worked, in seconds: it does not count what others do meanwhile, nor a slow disk. */
static double
get_work (void)
{
  struct timespec time;

  clock_gettime (CLOCK_THREAD_CPUTIME_ID, &time);
  return (double) time.tv_sec + 1e-9 * (double) time.tv_nsec;
}

static gint64
count_bytes (const Piece *piece)
{
  return piece->n_rows * piece->width * (gint64) ebb_dtype_get_size (piece->entry->dtype);
}

static gboolean
is_straight (const Piece *piece)
{
  return !piece->transposed && piece->dtype == piece->entry->dtype;
}

/* The first piece of a tensor of the files that is larger than the sample and goes straight into place; the number of
 * all pieces if there is none. */
static guint
find_large (GArray *pieces)
{
  gint64 n_bytes = 0;
  guint first = 0;

  for (guint i = 0; i < pieces->len; i++)
    {
      const Piece *piece = &g_array_index (pieces, Piece, i);

      if (i == 0 || piece->entry != g_array_index (pieces, Piece, first).entry)
        {
          first = i;
          n_bytes = 0;
        }
      n_bytes += count_bytes (piece);
      if (n_bytes >= SAMPLE && is_straight (piece))
        return first;
    }
  return pieces->len;
}

/* Reads SAMPLE bytes into small pages and drops their pieces. *@cost: seconds of work for a byte; 0: there is nothing
 * so large that pages matter. */
static gboolean
sample_small_pages (GArray *pieces,
                    double *cost,
                    GError **error)
{
  const guint first = find_large (pieces);
  const char *target = first < pieces->len ? g_array_index (pieces, Piece, first).target : NULL;
  const double start = get_work ();
  gint64 n_bytes = 0;
  guint n = 0;
  gboolean ok = TRUE;

  *cost = 0;
  if (first == pieces->len)
    return TRUE;
  ebb_host_allow_huge_pages ((char *) target, (gsize) SAMPLE, FALSE);
  for (; ok && n_bytes < SAMPLE; n++)
    {
      const Piece *piece = &g_array_index (pieces, Piece, first + n);

      ok = read_rows (piece, piece->target, error);
      n_bytes += count_bytes (piece);
    }
  ebb_host_allow_huge_pages ((char *) target, (gsize) SAMPLE, TRUE);
  *cost = (get_work () - start) / (double) n_bytes;
  g_array_remove_range (pieces, first, n);
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

      if (begin == NULL || data - end > PIECE)
        {
          ebb_host_allow_huge_pages (begin, (gsize) (end - begin), allow);
          begin = data;
        }
      end = data + ebb_tensor_get_n_bytes (sorted[i]);
    }
  ebb_host_allow_huge_pages (begin, (gsize) (end - begin), allow);
}

/* Takes the work for a piece into account. */
static void
watch_pages (Reading *reading,
             const Piece *piece,
             double work)
{
  if (reading->small_cost == 0 || !is_straight (piece))
    return;
  g_mutex_lock (&reading->lock);
  reading->work += work;
  reading->n_bytes += count_bytes (piece);
  if (!reading->is_small && reading->n_bytes >= PIECE
      && reading->work > reading->small_cost * (double) reading->n_bytes)
    {
      reading->is_small = TRUE;
      allow_huge_pages (reading->targets, reading->n_targets, FALSE);
    }
  g_mutex_unlock (&reading->lock);
}

/* -- all of them --------------------------------------------------------------------------------------------------- */

static gpointer
read_pieces (gpointer data)
{
  Reading *reading = data;
  g_autofree char *buffer = NULL;
  g_autofree char *second = NULL;
  guint i;

  while ((i = (guint) g_atomic_int_add (&reading->next, 1)) < reading->pieces->len
         && !g_atomic_int_get (&reading->failed))
    {
      const Piece *piece = &g_array_index (reading->pieces, Piece, i);
      const double start = get_work ();
      GError *error = NULL;

      if (read_piece (piece, &buffer, &second, &error))
        {
          watch_pages (reading, piece, get_work () - start);
          continue;
        }
      g_atomic_int_set (&reading->failed, TRUE);
      g_mutex_lock (&reading->lock);
      if (reading->error == NULL)
        reading->error = g_steal_pointer (&error);
      g_mutex_unlock (&reading->lock);
      g_clear_error (&error);
    }
  return NULL;
}

static gboolean
run (Reading *reading,
     GError **error)
{
  const guint n_threads = MIN ((guint) ebb_get_num_threads (), reading->pieces->len);
  g_autofree GThread **threads = g_new0 (GThread *, n_threads + 1);

  g_mutex_init (&reading->lock);
  /* A thread that can't be had is done without. */
  for (guint i = 1; i < n_threads; i++)
    threads[i] = g_thread_try_new ("ebb-read", read_pieces, reading, NULL);
  read_pieces (reading);
  for (guint i = 1; i < n_threads; i++)
    if (threads[i] != NULL)
      g_thread_join (threads[i]);
  g_mutex_clear (&reading->lock);
  if (reading->error == NULL)
    return TRUE;
  g_propagate_error (error, reading->error);
  return FALSE;
}

/* -- which pieces there are ---------------------------------------------------------------------------------------- */

/* The pieces of one part of a weight. @target: the data of the model's tensor. */
static void
add_pieces (GArray *pieces,
            EbbWeightFiles *files,
            const EbbWeight *weight,
            const EbbWeightPart *part,
            const EbbSafetensorsEntry *entry,
            char *target,
            EbbDType dtype)
{
  const gint64 element = (gint64) ebb_dtype_get_size (dtype);
  const gint64 n_rows = weight->transposed ? weight->shape[0] : part->n_rows;
  gint64 width = 1, step;

  for (guint d = 1; d < weight->n_dims; d++)
    width *= weight->shape[d];
  step = MAX (1, PIECE / MAX (1, width * (gint64) ebb_dtype_get_size (entry->dtype)));
  for (gint64 row = 0; row < n_rows && width > 0; row += step)
    {
      Piece piece = { .reader = ebb_weight_files_get_reader (files, entry),
                      .entry = entry,
                      .first = part->file_row + row,
                      .n_rows = MIN (step, n_rows - row),
                      .width = width,
                      .dtype = dtype,
                      .transposed = weight->transposed,
                      .n_columns = n_rows,
                      .target = weight->transposed ? target : target + (part->row + row) * width * element };

      g_array_append_val (pieces, piece);
    }
}

/* Of all weights that have parts of the model's tensor @tensor; -1: of all tensors, whose data @targets have. */
static GArray *
collect_pieces (EbbWeightFiles *files,
                const EbbWeightMap *map,
                GPtrArray *entries,
                int tensor,
                EbbTensor **targets)
{
  GArray *pieces = g_array_new (FALSE, FALSE, sizeof (Piece));

  for (guint i = 0; i < map->weights->len; i++)
    {
      const EbbWeight *weight = &g_array_index (map->weights, EbbWeight, i);

      for (guint k = 0; k < weight->n_parts; k++)
        if (tensor < 0 || weight->parts[k].tensor == (guint) tensor)
          {
            EbbTensor *target = targets[weight->parts[k].tensor];

            add_pieces (pieces, files, weight, &weight->parts[k], g_ptr_array_index (entries, i), target->view.data,
                        target->view.dtype);
          }
    }
  return pieces;
}

/* In the order in which they lie in the files. */
static int
compare_places (gconstpointer a,
                gconstpointer b)
{
  const Piece *x = a, *y = b;

  if (x->reader != y->reader)
    return strcmp (x->reader->path, y->reader->path);
  if (x->entry != y->entry)
    return x->entry->begin < y->entry->begin ? -1 : x->entry->begin > y->entry->begin;
  return x->first < y->first ? -1 : x->first > y->first;
}

/* By way of host memory, one tensor after the other. */
static gboolean
read_to_device (EbbWeightFiles *files,
                const EbbWeightMap *map,
                GPtrArray *entries,
                EbbTensor **targets,
                GError **error)
{
  g_autofree EbbTensor **hosts = g_new0 (EbbTensor *, map->tensors->len);

  for (guint i = 0; i < map->tensors->len; i++)
    {
      g_autoptr (EbbTensor) host =
          ebb_tensor_new_uninitialized (targets[i]->view.shape, (guint) targets[i]->view.n_dims,
                                        targets[i]->view.dtype, ebb_device_get_cpu (), error);
      g_autoptr (GArray) pieces = NULL;
      Reading reading = { .next = 0 };

      if (host == NULL)
        return FALSE;
      hosts[i] = host;
      pieces = collect_pieces (files, map, entries, (int) i, hosts);
      hosts[i] = NULL;
      reading.pieces = pieces;
      if (!run (&reading, error) || !ebb_tensor_upload (targets[i], host->view.data, error))
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
  g_autoptr (GArray) pieces = NULL;
  Reading reading = { .targets = targets, .n_targets = map->tensors->len };
  gboolean done;

  for (guint i = 0; i < map->tensors->len; i++)
    if (!ebb_tensor_get_device (targets[i])->backend->host_memory)
      return read_to_device (files, map, entries, targets, error);
  pieces = collect_pieces (files, map, entries, -1, targets);
  g_array_sort (pieces, compare_places);
  reading.pieces = pieces;
  done = sample_small_pages (pieces, &reading.small_cost, error) && run (&reading, error);
  if (reading.is_small)
    allow_huge_pages (targets, map->tensors->len, TRUE);
  return done;
}

/* -- twins --------------------------------------------------------------------------------------------------------- */

static gboolean
is_equal (EbbWeightFiles *files,
          const EbbSafetensorsEntry *entry,
          EbbTensor *own,
          GError **error)
{
  const EbbDType dtype = own->view.dtype;
  const gint64 size = (gint64) ebb_dtype_get_size (entry->dtype), n = own->n_elements;
  const char *data = ebb_tensor_get_data (own, error);
  g_autofree char *read = g_malloc ((gsize) PIECE);
  g_autofree char *converted = g_malloc ((gsize) PIECE * 2);

  if (data == NULL || (entry->end - entry->begin) / size != n)
    return FALSE;
  for (gint64 at = 0; at < n; at += PIECE / 4)
    {
      const gint64 count = MIN (PIECE / 4, n - at);

      if (!ebb_safetensors_reader_read (ebb_weight_files_get_reader (files, entry), entry, at * size,
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
ebb_weights_check_twins (EbbWeightFiles *files,
                         const EbbWeightMap *map,
                         EbbTensor **targets,
                         GError **error)
{
  for (const EbbNameTwin *twin = map->architecture->twins; twin->file != NULL; twin++)
    {
      const EbbSafetensorsEntry *entry = ebb_weight_files_find (files, twin->file);
      g_autoptr (EbbTensor) host = NULL;
      g_autofree char *shown = NULL;
      GError *failure = NULL;
      guint own = 0;

      while (own < map->tensors->len && strcmp (g_array_index (map->tensors, EbbModelTensor, own).name, twin->own) != 0)
        own++;
      for (guint i = 0; entry != NULL && i < map->weights->len; i++)
        if (strcmp (g_array_index (map->weights, EbbWeight, i).name, twin->file) == 0)
          entry = NULL; /* the model has it */
      if (entry == NULL || own == map->tensors->len)
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
      g_set_error (error, EBB_ERROR, EBB_ERROR_STATE,
                   "%s: %s differs from the tensor that config.json ties it to: tie_word_embeddings must be false, or "
                   "both equal",
                   shown, twin->file);
      return FALSE;
    }
  return TRUE;
}
