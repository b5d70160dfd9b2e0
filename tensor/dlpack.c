/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/dlpack.h"

#include "tensor/backend/backend-private.h"
#include "tensor/error-private.h"
#include "tensor/tensor-private.h"

/* DLPack (https://dmlc.github.io/dlpack/latest/c_api.html), version 0.8, without the version header: the form that all
 * producers and consumers of capsules named "dltensor" agree on. */

enum
{
  DL_NONE = 0,
  DL_CPU = 1,
  DL_CUDA = 2,
  DL_CUDA_HOST = 3, /* pinned memory of the host */
  DL_EXTENSION = 12
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

typedef struct
{
  DLManagedTensor *managed; /* NULL: not taken over */
  EbbDevice *device;
} Import;

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

/* Devices whose memory other libraries can use, by their names before the colon. */
static const struct
{
  const char *name;
  gint32 type;
} devices[] = {
  { "cpu", DL_CPU },
  { "cuda", DL_CUDA },
  { "cudaemu", DL_EXTENSION },
};

static void export_free (DLManagedTensor *managed);
static void import_free (gpointer import);

/* DL_NONE: no other library can use its memory. */
static gint32
find_type (const EbbDevice *device)
{
  for (guint i = 0; i < G_N_ELEMENTS (devices); i++)
    if (g_str_equal (device->backend->name, devices[i].name))
      return devices[i].type;
  return DL_NONE;
}

/**
 * ebb_tensor_get_dlpack_device:
 * @tensor: a tensor
 * @index: (out): the number of its device among those of the type
 *
 * Where DLPack finds the data: 1 for the host's memory, 2 for an NVIDIA GPU.
 *
 * Returns: the type of device; 0 if other libraries can't use its memory
 */
int
ebb_tensor_get_dlpack_device (EbbTensor *tensor, int *index)
{
  const EbbDevice *device = tensor->storage->device;

  *index = device->index;
  return find_type (device);
}

/* The address of a tensor's data for other libraries, pinned: where the device works behind the host's back, all that
 * it was asked for is done. */
static gboolean
expose (EbbTensor *tensor, guint64 *address, GError **error)
{
  EbbDevice *device = tensor->storage->device;

  if (device->backend->host_memory || find_type (device) == DL_NONE)
    {
      *address = ebb_tensor_get_address (tensor, error);
      return *address != 0 || tensor->n_elements == 0;
    }
  if (tensor->storage->placeholder)
    return ebb_fail (error, EBB_ERROR_NOT_SUPPORTED,
                     "the recompute was stopped before it computed this tensor; there is no data to share");
  if (!ebb_device_synchronize (device, error))
    return FALSE;
  tensor->storage->pinned = TRUE;
  *address = (guint64) (gsize) tensor->view.data;
  return TRUE;
}

/**
 * ebb_tensor_to_dlpack:
 * @tensor: a tensor on the CPU or on an NVIDIA GPU
 * @error: return location for an error
 *
 * Shows the tensor's data to another library without a copy. The storage is pinned, as by ebb_tensor_get_address(), and
 * lives until the other library calls the structure's deleter; ebb_dlpack_release() does that for a binding whose
 * capsule nobody took. On a GPU this waits until all work is done that the device was asked for, so the data is ready
 * for any stream; the deleter waits again, for the other library's streams.
 *
 * Returns: the address of a `DLManagedTensor`, owned by the caller; 0 with an error if no other library can use the
 * data
 */
guint64
ebb_tensor_to_dlpack (EbbTensor *tensor, GError **error)
{
  guint64 address;
  Export *out;

  EBB_RETURN_UNLESS_BEGUN (0, error, tensor);
  if (!expose (tensor, &address, error))
    return 0;

  out = g_new0 (Export, 1);
  for (int i = 0; i < tensor->view.n_dims; i++)
    {
      out->shape[i] = tensor->view.shape[i];
      out->strides[i] = tensor->view.strides[i];
    }
  out->managed.tensor = (DLTensor){
    .data = (void *) (gsize) address,
    .device_type = find_type (tensor->storage->device),
    .device_id = tensor->storage->device->index,
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

/* Two functions of Python's C interface (https://docs.python.org/3/c-api/capsule.html). The library does not link
 * Python, so the binding passes the addresses. */
static int (*capsule_is_valid) (gpointer capsule, const char *name);
static gpointer (*capsule_get_pointer) (gpointer capsule, const char *name);

static void
release_capsule (gpointer capsule)
{
  if (capsule_is_valid != NULL && capsule_get_pointer != NULL && capsule_is_valid (capsule, "dltensor"))
    ebb_dlpack_release ((guint64) (gsize) capsule_get_pointer (capsule, "dltensor"));
}

/**
 * ebb_dlpack_get_capsule_destructor:
 * @is_valid: the address of Python's `PyCapsule_IsValid ()`
 * @get_pointer: the address of Python's `PyCapsule_GetPointer ()`
 *
 * Gives the binding for Python the destructor of its capsules, which calls ebb_dlpack_release() for a capsule that no
 * library took over. A destructor written in Python fails where the library refuses the capsule, because Python code
 * cannot run while an exception is raised.
 *
 * Returns: the address of a `PyCapsule_Destructor`
 */
guint64
ebb_dlpack_get_capsule_destructor (guint64 is_valid, guint64 get_pointer)
{
  capsule_is_valid = (int (*) (gpointer, const char *)) (gsize) is_valid;
  capsule_get_pointer = (gpointer (*) (gpointer, const char *)) (gsize) get_pointer;
  return (guint64) (gsize) release_capsule;
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
  return ebb_fail (error, EBB_ERROR_DTYPE,
                   "DLPack elements of code %u with %u bits and %u lanes: must be f32, bf16, f16, i32, i64, u8 or bool",
                   tensor->code, tensor->bits, tensor->lanes);
}

/* The device that uses memory of a type, NULL with @error set. */
static EbbDevice *
find_device (const DLTensor *in, GError **error)
{
  g_autofree char *name = NULL;

  if (in->device_type == DL_CUDA_HOST)
    return ebb_device_get_cpu ();
  for (guint i = 0; i < G_N_ELEMENTS (devices); i++)
    if (devices[i].type == in->device_type)
      {
        name = i == 0 ? g_strdup ("cpu") : g_strdup_printf ("%s:%d", devices[i].name, in->device_id);
        return ebb_device_get (name, error);
      }
  return ebb_fail_null (
      error, EBB_ERROR_DEVICE,
      "the DLPack data is on a device of type %d; it must be in host memory (type 1) or on an NVIDIA GPU (2)",
      in->device_type);
}

/**
 * ebb_tensor_new_from_dlpack:
 * @address: the address of a `DLManagedTensor` in memory of the host or of an NVIDIA GPU
 * @error: return location for an error
 *
 * Makes a tensor over another library's data without a copy. The structure then belongs to the tensor, and its deleter
 * is called when the data is not needed any more; on an error it stays the caller's. On a GPU the data must be ready
 * for ebb_device_get_native_stream().
 *
 * Returns: (transfer full) (nullable): the tensor; %NULL with %EBB_ERROR_DEVICE, %EBB_ERROR_DTYPE, %EBB_ERROR_SHAPE or
 *   %EBB_ERROR_INVALID_ARGUMENT
 */
EbbTensor *
ebb_tensor_new_from_dlpack (guint64 address, GError **error)
{
  DLManagedTensor *managed = (DLManagedTensor *) (gsize) address;
  Import *import;
  const DLTensor *in;
  EbbTensor *tensor;
  EbbDevice *device;
  EbbDType dtype;
  guint64 data;
  gboolean is_empty = FALSE;

  if (error != NULL && *error != NULL)
    return NULL;
  if (managed == NULL)
    return ebb_fail_null (error, EBB_ERROR_INVALID_ARGUMENT, "address 0 is no DLPack structure");
  in = &managed->tensor;
  device = find_device (in, error);
  if (device == NULL)
    return NULL;
  if (in->n_dims < 0)
    return ebb_fail_null (error, EBB_ERROR_SHAPE, "the DLPack data has %d dimensions; it must have 0 or more",
                          in->n_dims);
  if (!find_dtype (in, &dtype, error))
    return NULL;

  data = (guint64) (gsize) in->data + in->byte_offset;
  for (gint32 i = 0; i < in->n_dims; i++)
    is_empty = is_empty || in->shape[i] == 0;
  if (!is_empty && (data == 0 || data % ebb_dtype_get_size (dtype) != 0))
    return ebb_fail_null (error, EBB_ERROR_INVALID_ARGUMENT,
                          "address 0x%" G_GINT64_MODIFIER "x for elements of %s: must be aligned to %" G_GSIZE_FORMAT
                          " bytes and not 0",
                          data, ebb_dtype_get_name (dtype), ebb_dtype_get_size (dtype));
  /* The structure changes hands only where nothing can fail any more. */
  import = g_new0 (Import, 1);
  import->device = device;
  tensor = ebb_tensor_new_over_memory (device, data, in->shape, (guint) in->n_dims, in->strides,
                                       in->strides != NULL ? (guint) in->n_dims : 0, dtype, import_free, import, error);
  if (tensor != NULL)
    import->managed = managed;
  return tensor;
}

/* -- freeing ------------------------------------------------------------------------------------------------------- */

/* On a GPU, what either library has asked for may still use the memory: work of the other one here, Ebb's own below. */
static void
export_free (DLManagedTensor *managed)
{
  EbbTensor *tensor = managed->context;

  if (!tensor->storage->device->backend->host_memory)
    ebb_device_synchronize (tensor->storage->device, NULL);
  ebb_tensor_unref (tensor);
  g_free (managed);
}

static void
import_free (gpointer data)
{
  Import *import = data;

  if (!import->device->backend->host_memory && import->managed != NULL)
    ebb_device_synchronize (import->device, NULL);
  ebb_dlpack_release ((guint64) (gsize) import->managed);
  g_free (import);
}
