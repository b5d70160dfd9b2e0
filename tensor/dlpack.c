/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/dlpack.h"

#include "tensor/error-private.h"
#include "tensor/tensor-private.h"

/* DLPack (https://dmlc.github.io/dlpack/latest/c_api.html), version 0.8, without the version header: the form that all
 * producers and consumers of capsules named "dltensor" agree on. */

enum
{
  DL_CPU = 1,
  DL_CUDA_HOST = 3 /* pinned memory of the host */
};

enum
{
  DL_INT = 0,
  DL_UINT = 1,
  DL_FLOAT = 2,
  DL_BFLOAT = 4,
  DL_BOOL = 6
};

typedef struct
{
  void *data;
  gint32 device_type, device_id;
  gint32 n_dims;
  guint8 code, bits;
  guint16 lanes;
  gint64 *shape;
  gint64 *strides; /* in elements; NULL: row-major */
  guint64 byte_offset;
} DLTensor;

typedef struct DLManagedTensor DLManagedTensor;

struct DLManagedTensor
{
  DLTensor tensor;
  void *context;
  void (*deleter) (DLManagedTensor *self);
};

typedef struct
{
  DLManagedTensor managed; /* first: the address that goes out */
  gint64 shape[EBB_MAX_DIMS];
  gint64 strides[EBB_MAX_DIMS];
} Export;

static const struct
{
  guint8 code, bits;
} formats[EBB_N_DTYPES] = {
  [EBB_DTYPE_F32] = { DL_FLOAT, 32 },
  [EBB_DTYPE_BF16] = { DL_BFLOAT, 16 },
  [EBB_DTYPE_F16] = { DL_FLOAT, 16 },
  [EBB_DTYPE_I32] = { DL_INT, 32 },
  [EBB_DTYPE_I64] = { DL_INT, 64 },
  [EBB_DTYPE_U8] = { DL_UINT, 8 },
  [EBB_DTYPE_BOOL] = { DL_BOOL, 8 },
};

static void export_free (DLManagedTensor *managed);
static void import_free (gpointer managed);

/**
 * ebb_tensor_to_dlpack:
 * @tensor: a tensor on the CPU
 * @error: return location for an error
 *
 * Shows the tensor's data to another library without a copy. The storage is pinned, as by ebb_tensor_get_address(), and
 * lives until the other library calls the structure's deleter; ebb_dlpack_release() does that for a binding whose
 * capsule nobody took.
 *
 * Returns: the address of a `DLManagedTensor`, owned by the caller; 0 with an error if the host can't read the data
 */
guint64
ebb_tensor_to_dlpack (EbbTensor *tensor, GError **error)
{
  guint64 address;
  Export *out;

  if (!EBB_MAY_BEGIN (error, tensor))
    return 0;
  address = ebb_tensor_get_address (tensor, error);
  if (address == 0 && tensor->n_elements > 0)
    return 0;

  out = g_new0 (Export, 1);
  for (int i = 0; i < tensor->view.n_dims; i++)
    {
      out->shape[i] = tensor->view.shape[i];
      out->strides[i] = tensor->view.strides[i];
    }
  out->managed.tensor = (DLTensor){
    .data = (void *) (gsize) address,
    .device_type = DL_CPU,
    .n_dims = tensor->view.n_dims,
    .code = formats[tensor->view.dtype].code,
    .bits = formats[tensor->view.dtype].bits,
    .lanes = 1,
    .shape = out->shape,
    .strides = out->strides,
  };
  out->managed.context = ebb_tensor_ref (tensor);
  out->managed.deleter = export_free;
  return (guint64) (gsize) &out->managed;
}

/**
 * ebb_dlpack_release:
 * @address: the address of a `DLManagedTensor`; 0 does nothing
 *
 * Calls the structure's deleter: for one that no library took over.
 */
void
ebb_dlpack_release (guint64 address)
{
  DLManagedTensor *managed = (DLManagedTensor *) (gsize) address;

  if (managed != NULL && managed->deleter != NULL)
    managed->deleter (managed);
}

static gboolean
find_dtype (const DLTensor *tensor, EbbDType *dtype, GError **error)
{
  for (guint i = 0; i < EBB_N_DTYPES; i++)
    if (formats[i].code == tensor->code && formats[i].bits == tensor->bits && tensor->lanes == 1)
      {
        *dtype = (EbbDType) i;
        return TRUE;
      }
  g_set_error (error, EBB_ERROR, EBB_ERROR_DTYPE,
               "DLPack elements of code %u with %u bits and %u lanes: must be f32, bf16, f16, i32, i64, u8 or bool",
               tensor->code, tensor->bits, tensor->lanes);
  return FALSE;
}

/**
 * ebb_tensor_new_from_dlpack:
 * @address: the address of a `DLManagedTensor` in memory of the host
 * @error: return location for an error
 *
 * Makes a tensor over another library's data without a copy. The structure then belongs to the tensor, and its deleter
 * is called when the data is not needed any more; on an error it stays the caller's.
 *
 * Returns: (transfer full) (nullable): the tensor; %NULL with %EBB_ERROR_DEVICE, %EBB_ERROR_DTYPE, %EBB_ERROR_SHAPE or
 *   %EBB_ERROR_INVALID_ARGUMENT
 */
EbbTensor *
ebb_tensor_new_from_dlpack (guint64 address, GError **error)
{
  DLManagedTensor *managed = (DLManagedTensor *) (gsize) address;
  g_autoptr (GObject) owner = NULL;
  const DLTensor *in;
  EbbTensor *tensor;
  EbbDType dtype;

  if (error != NULL && *error != NULL)
    return NULL;
  if (managed == NULL)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "address 0 is no DLPack structure");
      return NULL;
    }
  in = &managed->tensor;
  if (in->device_type != DL_CPU && in->device_type != DL_CUDA_HOST)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_DEVICE,
                   "the DLPack data is on a device of type %d; it must be in host memory (type 1)", in->device_type);
      return NULL;
    }
  if (in->n_dims < 0)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_SHAPE, "the DLPack data has %d dimensions; it must have 0 or more",
                   in->n_dims);
      return NULL;
    }
  if (!find_dtype (in, &dtype, error))
    return NULL;

  /* The object is asked for everything that can fail; only then does the structure change hands. */
  owner = g_object_new (G_TYPE_OBJECT, NULL);
  tensor = ebb_tensor_new_from_address ((guint64) (gsize) in->data + in->byte_offset, in->shape, (guint) in->n_dims,
                                        in->strides, in->strides != NULL ? (guint) in->n_dims : 0, dtype, owner, error);
  if (tensor != NULL)
    g_object_set_data_full (owner, "ebb-dlpack", managed, import_free);
  return tensor;
}

/* -- freeing ------------------------------------------------------------------------------------------------------- */

static void
export_free (DLManagedTensor *managed)
{
  ebb_tensor_unref (managed->context);
  g_free (managed);
}

static void
import_free (gpointer managed)
{
  ebb_dlpack_release ((guint64) (gsize) managed);
}
