/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Quantises weights. The arithmetic of nf4 is bitsandbytes' on the CPU, each step in f32, so that codes are equal. */
#include "tensor/quantization-private.h"

#include "tensor/backend/backend-private.h"
#include "tensor/cpu/parallel-private.h"
#include "tensor/error-private.h"
#include "tensor/thread-private.h"
#include "tensor/util/half-private.h"

#include <pthread.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* -- names --------------------------------------------------------------------------------------------------------- */

static const char *const names[] = { "none", "int8", "nf4" };

/**
 * ebb_quantization_get_name:
 * @quantization: how a weight is held
 *
 * Returns: its name: "none", "int8" or "nf4"
 */
const char *
ebb_quantization_get_name (EbbQuantization quantization)
{
  g_return_val_if_fail ((guint) quantization < G_N_ELEMENTS (names), NULL);

  return names[quantization];
}

/**
 * ebb_quantization_from_name:
 * @name: a name as of ebb_quantization_get_name()
 * @quantization: (out): return location for the quantisation
 * @error: return location for an error
 *
 * Looks a quantisation up by name.
 *
 * Returns: %FALSE with %EBB_ERROR_INVALID_ARGUMENT if there is none of that name
 */
gboolean
ebb_quantization_from_name (const char *name,
                            EbbQuantization *quantization,
                            GError **error)
{
  g_autofree char *shown = NULL;

  g_return_val_if_fail (quantization != NULL, FALSE);

  for (guint i = 0; name != NULL && i < G_N_ELEMENTS (names); i++)
    if (strcmp (name, names[i]) == 0)
      {
        *quantization = i;
        return TRUE;
      }
  shown = ebb_escape_text (name != NULL ? name : "(null)");
  return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "no quantisation \"%s\"; there are none, int8 and nf4",
                   shown);
}

/* -- tensors ------------------------------------------------------------------------------------------------------- */

static gint64
divide_up (gint64 n,
           gint64 size)
{
  return (n + size - 1) / size;
}

gboolean
ebb_quantized_describe (EbbQuantization quantization,
                        guint index,
                        gint64 n_rows,
                        gint64 n_columns,
                        EbbQuantizedTensor *tensor)
{
  const gint64 n = n_rows * n_columns, n_blocks = divide_up (n, EBB_NF4_BLOCK);
  const EbbQuantizedTensor nf4[EBB_QUANTIZED_TENSORS] = {
    { "weight", offsetof (EbbQuantizedWeight, codes), EBB_DTYPE_U8, { divide_up (n, 2), 1 }, 2 },
    { "weight_absmax", offsetof (EbbQuantizedWeight, absmax), EBB_DTYPE_U8, { n_blocks }, 1 },
    { "weight_nested_absmax",
      offsetof (EbbQuantizedWeight, nested_absmax),
      EBB_DTYPE_F32,
      { divide_up (n_blocks, EBB_NF4_NESTED_BLOCK) },
      1 },
    { "weight_nested_map", offsetof (EbbQuantizedWeight, nested_map), EBB_DTYPE_F32, { EBB_NF4_MAP }, 1 },
    { "weight_nested_offset", offsetof (EbbQuantizedWeight, nested_offset), EBB_DTYPE_F32, { 1 }, 1 },
  };
  const EbbQuantizedTensor int8[] = {
    { "weight", offsetof (EbbQuantizedWeight, codes), EBB_DTYPE_U8, { n_rows, n_columns }, 2 },
    { "weight_absmax", offsetof (EbbQuantizedWeight, absmax), EBB_DTYPE_F32, { n_rows }, 1 },
  };

  if (quantization == EBB_QUANTIZATION_NONE
      || index >= (quantization == EBB_QUANTIZATION_NF4 ? G_N_ELEMENTS (nf4) : G_N_ELEMENTS (int8)))
    return FALSE;
  *tensor = quantization == EBB_QUANTIZATION_NF4 ? nf4[index] : int8[index];
  return TRUE;
}

gboolean
ebb_quantized_weight_init (EbbQuantizedWeight *self,
                           EbbQuantization quantization,
                           gint64 n_rows,
                           gint64 n_columns,
                           EbbDevice *device,
                           GError **error)
{
  EbbQuantizedTensor tensor;

  *self = (EbbQuantizedWeight){ quantization, n_rows, n_columns };
  for (guint i = 0; ebb_quantized_describe (quantization, i, n_rows, n_columns, &tensor); i++)
    {
      EbbTensor *made = ebb_tensor_new_uninitialized (tensor.shape, tensor.n_dims, tensor.dtype, device, error);

      EBB_QUANTIZED_FIELD (self, &tensor) = made;
      if (made == NULL)
        {
          ebb_quantized_weight_clear (self);
          return FALSE;
        }
      ebb_storage_set_purpose (made->storage, EBB_PURPOSE_PARAMETER);
    }
  return TRUE;
}

/* The same of a weight that may be a shard. */
static gboolean
describe_own (const EbbQuantizedWeight *self,
              guint index,
              EbbQuantizedTensor *wanted)
{
  if (!ebb_quantized_describe (self->quantization, index, self->n_rows, self->n_columns, wanted))
    return FALSE;
  if (self->nested_index != NULL && wanted->offset == offsetof (EbbQuantizedWeight, nested_absmax))
    wanted->shape[0] = divide_up (divide_up (self->n_full, EBB_NF4_BLOCK), EBB_NF4_NESTED_BLOCK);
  return TRUE;
}

static gboolean
fits (EbbTensor *tensor,
      EbbDevice *device,
      const EbbQuantizedTensor *wanted)
{
  return tensor != NULL && tensor->view.dtype == wanted->dtype
         && ebb_view_has_shape (&tensor->view, wanted->shape, wanted->n_dims)
         && ebb_view_is_contiguous (&tensor->view) && tensor->storage->device == device;
}

gboolean
ebb_quantized_weight_check (const EbbQuantizedWeight *self,
                            const char *op,
                            GError **error)
{
  EbbDevice *device = self->codes != NULL ? self->codes->storage->device : NULL;
  g_autofree char *shape = NULL;
  EbbQuantizedTensor wanted;
  guint i = 0;

  while (describe_own (self, i, &wanted)
         && fits (EBB_QUANTIZED_FIELD (self, &wanted), device, &wanted))
    i++;
  if (!describe_own (self, i, &wanted))
    return TRUE;
  shape = ebb_shape_to_string (wanted.shape, wanted.n_dims);
  return ebb_fail (error, EBB_ERROR_SHAPE,
                   "%s: the buffer %s of the %s weight [%" G_GINT64_FORMAT ", %" G_GINT64_FORMAT
                   "] must be %s %s, contiguous and on the weight's device",
                   op, wanted.name, ebb_quantization_get_name (self->quantization), self->n_rows, self->n_columns,
                   ebb_dtype_get_name (wanted.dtype), shape);
}

void
ebb_quantized_weight_clear (EbbQuantizedWeight *self)
{
  g_clear_pointer (&self->codes, ebb_tensor_unref);
  g_clear_pointer (&self->absmax, ebb_tensor_unref);
  g_clear_pointer (&self->nested_absmax, ebb_tensor_unref);
  g_clear_pointer (&self->nested_map, ebb_tensor_unref);
  g_clear_pointer (&self->nested_offset, ebb_tensor_unref);
  g_clear_pointer (&self->nested_index, ebb_tensor_unref);
}

void
ebb_quantized_weight_copy (EbbQuantizedWeight *self,
                           const EbbQuantizedWeight *other)
{
  EbbTensor **tensors[] = { &self->codes, &self->absmax, &self->nested_absmax,
                            &self->nested_map, &self->nested_offset, &self->nested_index };

  *self = *other;
  for (guint i = 0; i < G_N_ELEMENTS (tensors); i++)
    if (*tensors[i] != NULL)
      ebb_tensor_ref (*tensors[i]);
}

/* -- code books ---------------------------------------------------------------------------------------------------- */

const float ebb_nf4_codes[16] = EBB_NF4_CODES;

static int
compare_floats (const void *a,
                const void *b)
{
  const float x = *(const float *) a, y = *(const float *) b;

  return x < y ? -1 : x > y;
}

/* Number @i of @n at equal distances from 0.1 to 1, counted from the nearer end and rounded once, as PyTorch does. */
static float
get_boundary (int i,
              int n)
{
  const float step = (1.0f - 0.1f) / (float) (n - 1);

  return i < n / 2 ? fmaf (step, (float) i, 0.1f) : fmaf (-step, (float) (n - 1 - i), 1.0f);
}

/* The signed dynamic map of 8 bits (Dettmers, arXiv 1511.04561): for each of seven exponents the middles of equal parts
 * of [0.1, 1], both signs, and 0 and 1. */
static void
make_map (float map[EBB_NF4_MAP])
{
  static const float powers[] = { 1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1.0f };
  guint n = 0;

  for (int e = 0; e < (int) G_N_ELEMENTS (powers); e++)
    for (int i = 0; i < 1 << e; i++)
      {
        const float middle =
            (get_boundary (i, (1 << e) + 1) + get_boundary (i + 1, (1 << e) + 1)) / 2.0f;

        map[n++] = powers[e] * middle;
        map[n++] = -powers[e] * middle;
      }
  map[n++] = 0.0f;
  map[n++] = 1.0f;
  g_assert (n == EBB_NF4_MAP);
  qsort (map, n, sizeof map[0], compare_floats);
}

#define POSITIONS 65536

static float map[EBB_NF4_MAP];
static guint8 nearest[POSITIONS]; /* the entry of the map for each of so many positions in [-1, 1] */
static float bounds[15];          /* between neighbours of the code book */

static pthread_once_t made_tables = PTHREAD_ONCE_INIT;

static void
make_tables (void)
{
  int entry = 0;

  make_map (map);
  for (int i = 0; i < POSITIONS; i++)
    {
      const double x = -1.0 + 2.0 * i / (POSITIONS - 1);

      while (entry + 1 < EBB_NF4_MAP && x > 0.5 * ((double) map[entry] + (double) map[entry + 1]))
        entry++;
      nearest[i] = (guint8) entry;
    }
  for (int i = 0; i < 15; i++)
    bounds[i] = (ebb_nf4_codes[i] + ebb_nf4_codes[i + 1]) / 2.0f;
}

/* -- encoding ------------------------------------------------------------------------------------------------------ */

typedef struct
{
  EbbTensor *values;
  guint8 *codes;
  float *scales; /* by block or by row */
  gint64 n, n_columns;
  int is_infinite; /* atomic: a value isn't finite */
} Encoding;

static inline float
load (const EbbTensor *values,
      gint64 i)
{
  return values->view.dtype == EBB_DTYPE_F32 ? ((const float *) values->view.data)[i]
                                             : ebb_bf16_to_float (((const guint16 *) values->view.data)[i]);
}

/* The largest magnitude of @n values, which are copied to @row unless that is NULL. */
static float
find_absmax (Encoding *self,
             gint64 first,
             gint64 n,
             float *row)
{
  float largest = 0.0f;
  gboolean is_finite = TRUE;

  for (gint64 i = 0; i < n; i++)
    {
      const float x = load (self->values, first + i);

      is_finite &= fabsf (x) <= G_MAXFLOAT;
      largest = fabsf (x) > largest ? fabsf (x) : largest;
      if (row != NULL)
        row[i] = x;
    }
  if (!is_finite)
    __atomic_store_n (&self->is_infinite, TRUE, __ATOMIC_RELAXED);
  return largest;
}

#define LEAST_ABSMAX 1e-38f

/* Both nibbles of a byte are of one block. */
static void
encode_nf4_blocks (gint64 begin,
                   gint64 end,
                   void *data)
{
  Encoding *self = data;

  for (gint64 block = begin; block < end; block++)
    {
      const gint64 first = block * EBB_NF4_BLOCK, n = MIN (self->n - first, EBB_NF4_BLOCK);
      const gboolean is_full = n == EBB_NF4_BLOCK;
      float row[EBB_NF4_BLOCK] = { 0 };
      const float absmax = find_absmax (self, first, n, row), divisor = MAX (absmax, LEAST_ABSMAX);
      int indices[EBB_NF4_BLOCK] = { 0 };

      /* The last block, if it is short, is divided. */
      self->scales[block] = is_full ? absmax : divisor;
      for (int i = 0; i < EBB_NF4_BLOCK; i++)
        row[i] = is_full ? row[i] * (1.0f / divisor) : row[i] / divisor;
      for (int k = 0; k < 15; k++)
        for (int i = 0; i < EBB_NF4_BLOCK; i++)
          indices[i] += row[i] > bounds[k];
      for (gint64 i = 0; i < n; i += 2)
        self->codes[(first + i) / 2] = (guint8) (indices[i] << 4 | indices[i + 1]);
    }
}

static void
encode_int8_rows (gint64 begin,
                  gint64 end,
                  void *data)
{
  Encoding *self = data;

  for (gint64 row = begin; row < end; row++)
    {
      const gint64 first = row * self->n_columns;
      const float absmax = find_absmax (self, first, self->n_columns, NULL), scale = 1.0f / absmax * 127.0f;

      self->scales[row] = absmax;
      for (gint64 i = 0; i < self->n_columns; i++)
        {
          const float code = absmax > 0 ? rintf (load (self->values, first + i) * scale) : 0.0f;

          /* Of a row so small that the scale overflows, the codes are the ends. */
          self->codes[first + i] = (guint8) (gint8) (code != code ? 0.0f : CLAMP (code, -127.0f, 127.0f));
        }
    }
}

/* Scales of blocks as codes of the map, in blocks of their own, about their mean. */
static void
encode_scales (const float *scales,
               gint64 n,
               guint8 *codes,
               float *nested_absmax,
               float *offset)
{
  double sum = 0;

  for (gint64 i = 0; i < n; i++)
    sum += (double) scales[i];
  *offset = (float) (sum / (double) n);
  for (gint64 first = 0; first < n; first += EBB_NF4_NESTED_BLOCK)
    {
      const gint64 end = MIN (first + EBB_NF4_NESTED_BLOCK, n);
      float largest = 0.0f;

      for (gint64 i = first; i < end; i++)
        largest = MAX (largest, fabsf (scales[i] - *offset));
      nested_absmax[first / EBB_NF4_NESTED_BLOCK] = largest;
      for (gint64 i = first; i < end; i++)
        {
          /* Of scales so near to their mean that the reciprocal overflows, the codes are as of equal ones. */
          const float x = 1.0f / largest <= G_MAXFLOAT ? (scales[i] - *offset) * (1.0f / largest) : -1.0f;
          const float position = (CLAMP (x, -1.0f, 1.0f) + 1.0f) * 0.5f * (POSITIONS - 1) + 0.5f;

          codes[i] = nearest[(int) position];
        }
    }
}

/* The memory that a tensor's values are written to on the host: its own, or a copy that put () uploads. */
static void *
begin_put (EbbTensor *tensor)
{
  if (!tensor->storage->device->backend->host_memory)
    return g_malloc (ebb_tensor_get_n_bytes (tensor) + 1);
  ebb_storage_change (tensor->storage);
  return tensor->view.data;
}

static gboolean
put (EbbTensor *tensor,
     void *data,
     GError **error)
{
  gboolean done;

  if (data == tensor->view.data)
    return TRUE;
  done = ebb_tensor_upload (tensor, data, error);
  g_free (data);
  return done;
}

static gboolean
put_nf4_scales (EbbQuantizedWeight *self,
                const float *scales,
                gint64 n_blocks,
                GError **error)
{
  guint8 *codes = begin_put (self->absmax);
  float *nested_absmax = begin_put (self->nested_absmax);
  float offset;
  gboolean done;

  encode_scales (scales, n_blocks, codes, nested_absmax, &offset);
  done = put (self->absmax, codes, error);
  done = put (self->nested_absmax, nested_absmax, done ? error : NULL) && done;
  return done && ebb_tensor_upload (self->nested_map, map, error)
         && ebb_tensor_upload (self->nested_offset, &offset, error);
}

gboolean
ebb_quantized_weight_encode (EbbQuantizedWeight *self,
                             EbbTensor *values,
                             GError **error)
{
  const gboolean is_nf4 = self->quantization == EBB_QUANTIZATION_NF4;
  const gint64 n = self->n_rows * self->n_columns, n_scales = is_nf4 ? divide_up (n, EBB_NF4_BLOCK) : self->n_rows;
  g_autofree float *scales = NULL;
  Encoding encoding = { .values = values, .n = n, .n_columns = self->n_columns };

  if (ebb_is_dry () || self->codes->view.data == NULL)
    return TRUE;
  pthread_once (&made_tables, make_tables);
  scales = g_new (float, (gsize) n_scales + 1);
  encoding.scales = scales;
  encoding.codes = begin_put (self->codes);
  if (is_nf4)
    ebb_cpu_parallel_for (n_scales, EBB_CPU_GRAIN / 4 / EBB_NF4_BLOCK, encode_nf4_blocks, &encoding);
  else
    ebb_cpu_parallel_for (n_scales, MAX (1, EBB_CPU_GRAIN / MAX (self->n_columns, 1)), encode_int8_rows, &encoding);
  if (!put (self->codes, encoding.codes, error))
    return FALSE;
  if (encoding.is_infinite)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "a value is not finite, and has no code in %s",
                     ebb_quantization_get_name (self->quantization));
  return is_nf4 ? put_nf4_scales (self, scales, n_scales, error)
                : ebb_tensor_upload (self->absmax, scales, error);
}
