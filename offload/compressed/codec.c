/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "offload/compressed/codec-private.h"

#include <string.h>
#include <zstd.h>
#include <zstd_errors.h>

/* Elements that are worked on at a time: their planes stay in the cache. */
#define CHUNK ((gsize) 65536)
#define MAX_PLANES 8
/* What a plane, and the whole, must become smaller by: a sixteenth. */
#define LEAST_GAIN(size) ((size) / 16)
/* A plane that gained nothing is left as it is in so many chunks, then tried again. */
#define N_SKIPPED 7

/* Before each plane of a chunk: its size, that of the plain plane if it is not compressed. */
typedef guint32 PlaneSize;

struct _EbbCodec
{
  ZSTD_CCtx *compress;
  ZSTD_DCtx *decompress;
  guint level; /* that is set; 0: none */
  guint8 planes[MAX_PLANES * CHUNK];
};

/* -- object -------------------------------------------------------------------------------------------------------- */

/* Level 1: exponents repeat in no order, so looking for repeats costs time and finds what Huffman's codes do better.
 * Matches of 7 bytes or more are runs, of zeros mostly; 64 places to remember are enough for those. */
static gboolean
set_level (EbbCodec *self,
           guint level)
{
  ZSTD_CCtx *context = self->compress;

  if (level < 1 || level > EBB_CODEC_MAX_LEVEL)
    return FALSE;
  if (level == self->level)
    return TRUE;
  self->level = level;
  ZSTD_CCtx_reset (context, ZSTD_reset_session_and_parameters);
  if (ZSTD_isError (ZSTD_CCtx_setParameter (context, ZSTD_c_compressionLevel, (int) level)))
    return FALSE;
  return level > 1
         || (!ZSTD_isError (ZSTD_CCtx_setParameter (context, ZSTD_c_strategy, ZSTD_fast))
             && !ZSTD_isError (ZSTD_CCtx_setParameter (context, ZSTD_c_minMatch, 7))
             && !ZSTD_isError (ZSTD_CCtx_setParameter (context, ZSTD_c_hashLog, 6))
             && !ZSTD_isError (ZSTD_CCtx_setParameter (context, ZSTD_c_windowLog, 17)));
}

EbbCodec *
ebb_codec_new (GError **error)
{
  EbbCodec *self = g_try_new (EbbCodec, 1);

  if (self != NULL)
    {
      self->level = 0;
      self->compress = ZSTD_createCCtx ();
      self->decompress = ZSTD_createDCtx ();
      if (self->compress != NULL && self->decompress != NULL)
        return self;
      ebb_codec_free (self);
    }
  g_set_error_literal (error, EBB_ERROR, EBB_ERROR_NO_MEMORY, "no memory for compression");
  return NULL;
}

void
ebb_codec_free (EbbCodec *self)
{
  ZSTD_freeCCtx (self->compress);
  ZSTD_freeDCtx (self->decompress);
  g_free (self);
}

/* -- planes -------------------------------------------------------------------------------------------------------- */

static void
split_2 (const guint16 *restrict data,
         gsize n,
         guint8 *restrict planes)
{
  guint8 *restrict low = planes, *restrict high = planes + n;

  for (gsize i = 0; i < n; i++)
    {
      low[i] = (guint8) data[i];
      high[i] = (guint8) (data[i] >> 8);
    }
}

static void
split_4 (const guint32 *restrict data,
         gsize n,
         guint8 *restrict planes)
{
  guint8 *restrict a = planes, *restrict b = planes + n, *restrict c = planes + 2 * n, *restrict d = planes + 3 * n;

  for (gsize i = 0; i < n; i++)
    {
      a[i] = (guint8) data[i];
      b[i] = (guint8) (data[i] >> 8);
      c[i] = (guint8) (data[i] >> 16);
      d[i] = (guint8) (data[i] >> 24);
    }
}

static void
split_8 (const guint64 *data,
         gsize n,
         guint8 *planes)
{
  for (gsize p = 0; p < 8; p++)
    for (gsize i = 0; i < n; i++)
      planes[p * n + i] = (guint8) (data[i] >> (8 * p));
}

/* The planes of @n elements; the data itself where there is but one. */
static const guint8 *
split (EbbCodec *self,
       const void *data,
       gsize n,
       gsize element)
{
  if (element == 1)
    return data;
  if (element == 2)
    split_2 (data, n, self->planes);
  else if (element == 4)
    split_4 (data, n, self->planes);
  else
    split_8 (data, n, self->planes);
  return self->planes;
}

static void
join_2 (guint16 *restrict data,
        gsize n,
        const guint8 *const *planes)
{
  const guint8 *restrict low = planes[0], *restrict high = planes[1];

  for (gsize i = 0; i < n; i++)
    data[i] = (guint16) (low[i] | high[i] << 8);
}

static void
join_4 (guint32 *restrict data,
        gsize n,
        const guint8 *const *planes)
{
  const guint8 *restrict a = planes[0], *restrict b = planes[1], *restrict c = planes[2], *restrict d = planes[3];

  for (gsize i = 0; i < n; i++)
    data[i] = (guint32) a[i] | (guint32) b[i] << 8 | (guint32) c[i] << 16 | (guint32) d[i] << 24;
}

static void
join_8 (guint64 *data,
        gsize n,
        const guint8 *const *planes)
{
  memset (data, 0, n * sizeof *data);
  for (gsize p = 0; p < 8; p++)
    for (gsize i = 0; i < n; i++)
      data[i] |= (guint64) planes[p][i] << (8 * p);
}

static void
join (void *data,
      gsize n,
      gsize element,
      const guint8 *const *planes)
{
  if (element == 1)
    memcpy (data, planes[0], n);
  else if (element == 2)
    join_2 (data, n, planes);
  else if (element == 4)
    join_4 (data, n, planes);
  else
    join_8 (data, n, planes);
}

/* -- compressing --------------------------------------------------------------------------------------------------- */

typedef struct
{
  guint8 *next, *end;
  guint skip[MAX_PLANES]; /* chunks in which a plane is not tried */
} Writer;

/* The compressed plane at @to, or 0 if there is no gain. */
static gsize
compress_plane (EbbCodec *self,
                const guint8 *plane,
                gsize n,
                guint8 *to,
                gsize room,
                GError **error)
{
  const gsize most = n - LEAST_GAIN (n) - 1;
  gsize size = ZSTD_compress2 (self->compress, to, MIN (room, most), plane, n);

  if (!ZSTD_isError (size))
    return size;
  if (ZSTD_getErrorCode (size) != ZSTD_error_dstSize_tooSmall)
    g_set_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY, "compression of %" G_GSIZE_FORMAT " bytes: %s", n,
                 ZSTD_getErrorName (size));
  return 0;
}

/* FALSE if there is no room, or with @error. */
static gboolean
write_plane (EbbCodec *self,
             Writer *writer,
             guint p,
             const guint8 *plane,
             gsize n,
             GError **error)
{
  PlaneSize size = 0;
  GError *local = NULL;

  if ((gsize) (writer->end - writer->next) < sizeof size)
    return FALSE;
  if (writer->skip[p] > 0)
    writer->skip[p]--;
  else
    {
      size = (PlaneSize) compress_plane (self, plane, n, writer->next + sizeof size,
                                         (gsize) (writer->end - writer->next) - sizeof size, &local);
      if (local != NULL)
        {
          g_propagate_error (error, local);
          return FALSE;
        }
      if (size == 0)
        writer->skip[p] = N_SKIPPED;
    }
  if (size == 0)
    {
      if ((gsize) (writer->end - writer->next) < sizeof size + n)
        return FALSE;
      size = (PlaneSize) n;
      memcpy (writer->next + sizeof size, plane, n);
    }
  memcpy (writer->next, &size, sizeof size);
  writer->next += sizeof size + size;
  return TRUE;
}

gsize
ebb_codec_compress (EbbCodec *self,
                    guint level,
                    const void *data,
                    gsize size,
                    gsize element,
                    void *out,
                    GError **error)
{
  Writer writer = { .next = out, .end = (guint8 *) out + size - LEAST_GAIN (size) };
  GError *local = NULL;

  if (!set_level (self, level))
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "compression at level %u: must be 1 to %d", level,
                   EBB_CODEC_MAX_LEVEL);
      return 0;
    }
  for (gsize start = 0; start < size; start += CHUNK * element)
    {
      const gsize n = MIN (CHUNK, (size - start) / element);
      const guint8 *planes = split (self, (const guint8 *) data + start, n, element);

      for (guint p = 0; p < element; p++)
        if (!write_plane (self, &writer, p, planes + p * n, n, &local))
          {
            if (local == NULL)
              return size;
            g_propagate_error (error, local);
            return 0;
          }
    }
  return (gsize) (writer.next - (guint8 *) out);
}

/* -- decompressing ------------------------------------------------------------------------------------------------- */

/* Where the plane is: where it is stored, if it is not compressed, else at @scratch. NULL if that is not what was
 * written. */
static const guint8 *
read_plane (EbbCodec *self,
            const guint8 **next,
            const guint8 *end,
            gsize n,
            guint8 *scratch)
{
  const guint8 *plane = *next + sizeof (PlaneSize);
  PlaneSize size;

  if ((gsize) (end - *next) < sizeof size)
    return NULL;
  memcpy (&size, *next, sizeof size);
  if (size > (gsize) (end - plane))
    return NULL;
  *next = plane + size;
  if (size == n)
    return plane;
  return ZSTD_decompressDCtx (self->decompress, scratch, n, plane, size) == n ? scratch : NULL;
}

gboolean
ebb_codec_decompress (EbbCodec *self,
                      const void *stored,
                      gsize stored_size,
                      void *data,
                      gsize size,
                      gsize element,
                      GError **error)
{
  const guint8 *next = stored, *end = next + stored_size;

  for (gsize start = 0; start < size; start += CHUNK * element)
    {
      const gsize n = MIN (CHUNK, (size - start) / element);
      const guint8 *planes[MAX_PLANES];

      for (guint p = 0; p < element; p++)
        {
          planes[p] = read_plane (self, &next, end, n, self->planes + p * CHUNK);
          if (planes[p] == NULL)
            {
              g_set_error (error, EBB_ERROR, EBB_ERROR_FORMAT,
                           "%" G_GSIZE_FORMAT " bytes that were compressed to %" G_GSIZE_FORMAT
                           " are not what was stored",
                           size, stored_size);
              return FALSE;
            }
        }
      join ((guint8 *) data + start, n, element, planes);
    }
  return TRUE;
}
