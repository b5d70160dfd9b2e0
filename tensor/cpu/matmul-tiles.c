/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

/* Products that oneDNN lacks on this processor, or for these dtypes or strides: tile by tile in f32, so that no operand
 * is copied as a whole. A tile of the result is the work of one thread, and how a product is divided depends on its
 * shape alone, so each sum has one order on however many threads. */

#include "tensor/backend/backend-private.h"
#include "tensor/cpu/matmul-private.h"
#include "tensor/cpu/parallel-private.h"

/* Conversion costs a tile 1 / rows + 1 / columns of its time, about; narrow results need more tiles, one for each
 * thread at least. What is left over of a dimension belongs to its last part, if it is no more than REST. Rows that
 * begin at a multiple of EBB_HOST_ROW_BLOCK have the bits of all rows at once, and k is added up in equal parts for all
 * products. */
#define TILE_ROWS 960
#define TILE_COLUMNS 512
#define TILE_COLUMNS_OF_NARROW 256
#define NARROW 1024
#define TILE_DEPTH 960
#define REST 128

G_STATIC_ASSERT (EBB_HOST_ROW_BLOCK % TILE_ROWS == 0 && EBB_HOST_ROW_BLOCK % TILE_DEPTH == 0);

/* How a dimension of @n is divided. */
typedef struct
{
  gint64 n, unit, n_parts;
} Division;

static Division
divide (gint64 n,
        gint64 unit)
{
  return (Division){ n, unit, MAX ((n - REST + unit - 1) / unit, 1) };
}

static gint64
get_part (const Division *self,
          gint64 part)
{
  return part + 1 < self->n_parts ? self->unit : self->n - part * self->unit;
}

static gint64
get_largest (const Division *self)
{
  return MAX (get_part (self, 0), get_part (self, self->n_parts - 1));
}

typedef struct
{
  const EbbProduct *product;
  const EbbProductData *data;
  Division rows, columns, depth;
  gint64 n_tiles, n_threads;
  gboolean a_by_columns, b_by_columns, has_c;
  gint64 b_at, c_at, bias_at, n_floats; /* where a thread holds its parts in f32; a's come first */
  gsize scratchpad_size;
} Tiles;

/* The product of dense parts, [m, k] and [k, n]. */
static EbbProduct
get_tile_product (const Tiles *self,
                  gint64 m,
                  gint64 n,
                  gint64 k,
                  gboolean is_first)
{
  const EbbProduct *p = self->product;

  return (EbbProduct){ .m = m,
                       .n = n,
                       .k = k,
                       .a_row = self->a_by_columns ? 1 : k,
                       .a_column = self->a_by_columns ? m : 1,
                       .b_row = self->b_by_columns ? 1 : n,
                       .b_column = self->b_by_columns ? k : 1,
                       .c_row = self->has_c ? n : p->c_row,
                       .bias_stride = 1,
                       .ab_dtype = EBB_DTYPE_F32,
                       .c_dtype = EBB_DTYPE_F32,
                       .bias_dtype = p->bias_dtype >= 0 && is_first ? (gint32) EBB_DTYPE_F32 : -1,
                       .accumulate = p->accumulate || !is_first,
                       .n_threads = 1 };
}

/* The scratchpad of the tile that needs most: the parts of a dimension but for the last are alike. */
static gsize
find_scratchpad_size (const Tiles *self)
{
  gsize most = 0;

  for (int i = 0; i < 16; i++)
    {
      EbbProduct tile = get_tile_product (self, get_part (&self->rows, i & 1 ? self->rows.n_parts - 1 : 0),
                                          get_part (&self->columns, i & 2 ? self->columns.n_parts - 1 : 0),
                                          get_part (&self->depth, i & 4 ? self->depth.n_parts - 1 : 0), (i & 8) != 0);
      gsize size;

      ebb_product_get_dnnl_workspace (&tile, &size);
      most = MAX (most, size);
    }
  return (most + 63) / 64 * 64;
}

static void
tiles_init (Tiles *self,
            const EbbProduct *p,
            const EbbProductData *data)
{
  gint64 m, n, k;

  *self = (Tiles){ .product = p, .data = data };
  self->rows = divide (p->m, TILE_ROWS);
  self->columns = divide (p->n, p->n > NARROW ? TILE_COLUMNS : TILE_COLUMNS_OF_NARROW);
  self->depth = divide (p->k, TILE_DEPTH);
  self->n_tiles = self->rows.n_parts * self->columns.n_parts * ebb_product_get_n_batches (p);
  self->n_threads = MIN (p->n_threads, self->n_tiles);
  self->a_by_columns = p->a_column != 1 && p->a_row == 1;
  self->b_by_columns = p->b_column != 1 && p->b_row == 1;
  self->has_c = p->c_dtype != EBB_DTYPE_F32;
  m = get_largest (&self->rows);
  n = get_largest (&self->columns);
  k = get_largest (&self->depth);
  self->b_at = m * k;
  self->c_at = self->b_at + k * n;
  self->bias_at = self->c_at + (self->has_c ? m * n : 0);
  self->n_floats = (self->bias_at + (p->bias_dtype >= 0 ? n : 0) + 15) / 16 * 16;
  self->scratchpad_size = find_scratchpad_size (self);
}

static gsize
get_thread_size (const Tiles *self)
{
  return (gsize) self->n_floats * sizeof (float) + self->scratchpad_size;
}

gsize
ebb_product_get_tiles_workspace (const EbbProduct *product)
{
  Tiles tiles;

  tiles_init (&tiles, product, NULL);
  return get_thread_size (&tiles) * (gsize) tiles.n_threads;
}

/* Between [rows, columns] of an operand, whose first element is number @at of @data, and the dense @part, along the
 * dimension that is dense in both. */
static void
convert (float *part,
         gboolean by_columns,
         const void *data,
         gint64 at,
         int dtype,
         gint64 rows,
         gint64 columns,
         gint64 row_stride,
         gint64 column_stride,
         gboolean to_part)
{
  char *first = (char *) data + at * (gint64) ebb_dtype_get_size ((EbbDType) dtype);
  EbbView operand = { first, (EbbDType) dtype, 2, { rows, columns }, { row_stride, column_stride } };
  EbbView dense = { part, EBB_DTYPE_F32, 2, { rows, columns }, { columns, 1 } };

  if (by_columns)
    {
      operand = (EbbView){ first, (EbbDType) dtype, 2, { columns, rows }, { column_stride, row_stride } };
      dense = (EbbView){ part, EBB_DTYPE_F32, 2, { columns, rows }, { rows, 1 } };
    }
  ebb_cpu_copy_view (to_part ? &operand : &dense, to_part ? &dense : &operand);
}

static EbbProductResult
run_tile (const Tiles *self,
          gint64 index,
          float *memory,
          GError **error)
{
  const EbbProduct *p = self->product;
  const EbbProductData *data = self->data;
  const gint64 row_tile = index % self->rows.n_parts;
  const gint64 column_tile = index / self->rows.n_parts % self->columns.n_parts;
  const gint64 row = row_tile * self->rows.unit, column = column_tile * self->columns.unit;
  const gint64 m = get_part (&self->rows, row_tile), n = get_part (&self->columns, column_tile);
  float *const a_part = memory, *const b_part = memory + self->b_at, *const c_part = memory + self->c_at;
  float *const bias_part = memory + self->bias_at;
  void *scratchpad = self->scratchpad_size > 0 ? memory + self->n_floats : NULL;
  EbbProductData parts = { a_part, b_part, bias_part, c_part };
  EbbProductResult result = EBB_PRODUCT_DONE;
  gint64 a, b, c;

  ebb_product_get_batch_offsets (p, index / (self->rows.n_parts * self->columns.n_parts), &a, &b, &c);
  a += row * p->a_row;
  b += column * p->b_column;
  c += row * p->c_row + column;
  if (!self->has_c)
    parts.c = (float *) data->c + c;
  else if (p->accumulate)
    convert (c_part, FALSE, data->c, c, p->c_dtype, m, n, p->c_row, 1, TRUE);
  if (p->bias_dtype >= 0)
    convert (bias_part, FALSE, data->bias, column * p->bias_stride, p->bias_dtype, 1, n, n, p->bias_stride, TRUE);
  /* The last part comes first, as the blocks of other products do. */
  for (gint64 i = self->depth.n_parts - 1; i >= 0 && result == EBB_PRODUCT_DONE; i--)
    {
      const gint64 depth = get_part (&self->depth, i), begin = i * self->depth.unit;
      const EbbProduct tile = get_tile_product (self, m, n, depth, i + 1 == self->depth.n_parts);

      convert (a_part, self->a_by_columns, data->a, a + begin * p->a_column, p->ab_dtype, m, depth, p->a_row,
               p->a_column, TRUE);
      convert (b_part, self->b_by_columns, data->b, b + begin * p->b_row, p->ab_dtype, depth, n, p->b_row, p->b_column,
               TRUE);
      result = ebb_product_run_dnnl (&tile, &parts, scratchpad, self->scratchpad_size, error);
    }
  if (self->has_c && result == EBB_PRODUCT_DONE)
    convert (c_part, FALSE, data->c, c, p->c_dtype, m, n, p->c_row, 1, FALSE);
  return result;
}

gboolean
ebb_product_run_tiles (const EbbProduct *product,
                       const EbbProductData *data,
                       void *workspace,
                       GError **error)
{
  GError *failure = NULL;
  Tiles tiles;

  tiles_init (&tiles, product, data);
#pragma omp parallel for num_threads(tiles.n_threads) schedule(dynamic)
  for (gint64 i = 0; i < tiles.n_tiles; i++)
    {
      char *memory = (char *) workspace + (gsize) omp_get_thread_num () * get_thread_size (&tiles);
      GError *local = NULL;

      if (g_atomic_pointer_get (&failure) == NULL && run_tile (&tiles, i, (float *) memory, &local) != EBB_PRODUCT_DONE
          && g_atomic_pointer_compare_and_exchange (&failure, NULL, local))
        local = NULL;
      g_clear_error (&local);
    }
  if (failure == NULL)
    return TRUE;
  g_propagate_error (error, failure);
  return FALSE;
}
