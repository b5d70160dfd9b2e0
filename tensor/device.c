/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/backend/module-private.h"
#include "tensor/backend/backend-private.h"
#include "tensor/n-threads-private.h"
#include "tensor/error-private.h"
#include "tensor/memory-account-private.h"
#include "tensor/thread-private.h"
#include "tensor/util/lock-private.h"

#include <pthread.h>
#include <string.h>

/* Devices by name, each over a backend that is opened when it is first asked for. */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const EbbBackend *backends[16];
static guint n_backends;
static EbbDevice *devices[EBB_MAX_DEVICES];
static guint n_devices;
static EbbDevice *cpu_device;

/* Devices live for ever, so a copy is the device itself. */
static EbbDevice *
device_copy (EbbDevice *device)
{
  return device;
}

static void
device_free (EbbDevice *device)
{
}

G_DEFINE_BOXED_TYPE (EbbDevice, ebb_device, device_copy, device_free)

static void
register_locked (const EbbBackend *backend)
{
  for (guint i = 0; i < n_backends; i++)
    if (strcmp (backends[i]->name, backend->name) == 0)
      return;
  if (n_backends < G_N_ELEMENTS (backends))
    backends[n_backends++] = backend;
}

void
ebb_backend_register (const EbbBackend *backend)
{
  g_return_if_fail (backend->version == EBB_BACKEND_VERSION);

  EBB_AUTO_LOCK (&lock);
  register_locked (backend);
}

static EbbDevice *
device_new_locked (const EbbBackend *backend,
                   int index)
{
  EbbDevice *device = g_new0 (EbbDevice, 1);

  device->backend = backend;
  device->index = index;
  device->number = n_devices;
  device->name = index == 0 ? g_strdup (backend->name) : g_strdup_printf ("%s:%d", backend->name, index);
  device->kernels = backend->get_kernels ();
  device->limit = G_MAXUINT64;
  if (backend->get_capacity != NULL)
    device->limit = backend->get_capacity (index);
  devices[n_devices++] = device;
  return device;
}

static const EbbBackend *
find_backend_locked (const char *name,
                     GError **error)
{
  const EbbBackend *backend;

  for (guint i = 0; i < n_backends; i++)
    if (strcmp (backends[i]->name, name) == 0)
      return backends[i];
  if (n_backends == G_N_ELEMENTS (backends))
    return ebb_fail_null (error, EBB_ERROR_DEVICE, "no device \"%s\": there are %u kinds already", name,
                          n_backends);
  backend = ebb_backend_load (name, error);
  if (backend != NULL)
    register_locked (backend);
  return backend;
}

static EbbDevice *
find_locked (const char *backend_name,
             int index,
             GError **error)
{
  const EbbBackend *backend;

  for (guint i = 0; i < n_devices; i++)
    if (devices[i]->index == index && strcmp (devices[i]->backend->name, backend_name) == 0)
      return devices[i];
  backend = find_backend_locked (backend_name, error);
  if (backend == NULL)
    return NULL;
  if (n_devices == EBB_MAX_DEVICES)
    return ebb_fail_null (error, EBB_ERROR_DEVICE, "no device \"%s:%d\": there are %d already", backend_name, index,
                          EBB_MAX_DEVICES);
  if (backend->open != NULL && !backend->open (index, error))
    return NULL;
  return device_new_locked (backend, index);
}

/**
 * ebb_device_get:
 * @name: (nullable): the name of a device, as "cpu" or "sim:1", see ebb_list_device_kinds(); %NULL for the CPU
 * @error: return location for an error
 *
 * Looks a device up, opening it at the first use. A backend that is not part of the library is looked for as a module,
 * `ebb-backend-NAME.so`, in the folders of the environment variable `EBB_BACKEND_PATH`, then in `ebb-1.0/backends`
 * beside the library.
 *
 * Returns: (transfer none) (nullable): the device, or %NULL with %EBB_ERROR_DEVICE
 */
EbbDevice *
ebb_device_get (const char *name,
                GError **error)
{
  g_autofree char *backend_name = NULL;
  const char *colon;
  guint64 index = 0;
  EbbDevice *device;

  if (error != NULL && *error != NULL)
    return NULL;
  if (name == NULL)
    return ebb_device_get_cpu ();

  colon = strchr (name, ':');
  if (colon != NULL && !g_ascii_string_to_unsigned (colon + 1, 10, 0, 1023, &index, NULL))
    return ebb_fail_null (error, EBB_ERROR_DEVICE,
                          "device \"%s\": the part after the colon must be a number from 0 to 1023",
                          ebb_show_text (name));
  backend_name = colon != NULL ? g_strndup (name, (gsize) (colon - name)) : g_strdup (name);
  ebb_device_get_cpu ();
  EBB_AUTO_LOCK (&lock);
  device = find_locked (backend_name, (int) index, error);
  return device;
}

/**
 * ebb_list_device_kinds:
 *
 * Lists the kinds of devices that ebb_device_get() can look for here: `cpu`, then each backend module that is
 * installed, in alphabetical order. A module may still find that the machine has no such device.
 *
 * Returns: (transfer full): the names, terminated by %NULL
 */
char **
ebb_list_device_kinds (void)
{
  g_auto (GStrv) modules = ebb_backend_list_modules ();
  GStrvBuilder *builder = g_strv_builder_new ();
  char **kinds;

  g_strv_builder_add (builder, "cpu");
  g_strv_builder_addv (builder, (const char **) modules);
  kinds = g_strv_builder_end (builder);
  g_strv_builder_unref (builder);
  return kinds;
}

/**
 * ebb_device_get_cpu:
 *
 * Returns: (transfer none): the CPU
 */
EbbDevice *
ebb_device_get_cpu (void)
{
  EbbDevice *device = __atomic_load_n (&cpu_device, __ATOMIC_ACQUIRE);

  if (G_LIKELY (device != NULL))
    return device;

  ebb_backend_register (&ebb_cpu_backend);
  EBB_AUTO_LOCK (&lock);
  if (cpu_device == NULL)
    __atomic_store_n (&cpu_device, device_new_locked (&ebb_cpu_backend, 0), __ATOMIC_RELEASE);
  return cpu_device;
}

/**
 * ebb_get_default_device:
 *
 * Returns: (transfer none): where this thread makes tensors and layers if no other device is asked for; the CPU, unless
 *   ebb_set_default_device() said otherwise
 */
EbbDevice *
ebb_get_default_device (void)
{
  return ebb_modes.default_device != NULL ? ebb_modes.default_device : ebb_device_get_cpu ();
}

/**
 * ebb_set_default_device:
 * @device: (nullable): a device, or %NULL for the CPU
 *
 * Says where this thread makes tensors from now on whose device is given as %NULL, tensors of given numbers, and the
 * parameters and buffers of layers. A layer starts with the same values wherever it is made. What only looks at memory
 * of the host, what is read from files, and what tokenizers and texts give stays on the CPU; nothing that is there
 * already moves.
 */
void
ebb_set_default_device (EbbDevice *device)
{
  ebb_modes.default_device = device;
}

/**
 * ebb_device_get_name:
 * @device: a device
 *
 * Returns: its name, as "cpu" or "sim:1"
 */
const char *
ebb_device_get_name (EbbDevice *device)
{
  g_return_val_if_fail (device != NULL, NULL);

  return device->name;
}

/**
 * ebb_device_synchronize:
 * @device: (nullable): a device; %NULL for the CPU
 * @error: return location for an error
 *
 * Waits until all that @device was asked for is done. On the CPU it is so already.
 *
 * Returns: %FALSE with the error of work that has failed and was not reported yet
 */
gboolean
ebb_device_synchronize (EbbDevice *device,
                        GError **error)
{
  if (error != NULL && *error != NULL)
    return FALSE;
  return device == NULL || device->backend->synchronize == NULL
         || device->backend->synchronize (device->index, error);
}

/**
 * ebb_device_get_native_stream:
 * @device: a device
 *
 * The queue in which @device computes, for other libraries that work on its memory: on an NVIDIA GPU a `cudaStream_t`.
 *
 * Returns: the address of the stream; 0 where there is none
 */
guint64
ebb_device_get_native_stream (EbbDevice *device)
{
  const EbbStreamFuncs *streams;

  g_return_val_if_fail (device != NULL, 0);

  streams = device->backend->streams;
  return streams != NULL && streams->get_native_stream != NULL
             ? (guint64) (gsize) streams->get_native_stream (device->index, EBB_STREAM_COMPUTE)
             : 0;
}

/**
 * ebb_device_set_loss_chunk:
 * @device: (nullable): a device; %NULL for the CPU
 * @n_bytes: the most bytes of logits that a fused loss holds at one time; 0: the device's own choice
 *
 * Sets how much memory ebb_fused_linear_cross_entropy() takes for logits from now on, in chunks of at least 16 rows.
 * Smaller chunks read the weight more often, and gradients of the weight are summed in another order, so their bits
 * differ.
 */
void
ebb_device_set_loss_chunk (EbbDevice *device,
                           guint64 n_bytes)
{
  if (device == NULL)
    device = ebb_device_get_cpu ();
  __atomic_store_n (&device->loss_chunk, n_bytes, __ATOMIC_RELAXED);
}

/**
 * ebb_device_get_loss_chunk:
 * @device: (nullable): a device; %NULL for the CPU
 *
 * Returns: the most bytes of logits that a fused loss holds at one time
 */
guint64
ebb_device_get_loss_chunk (EbbDevice *device)
{
  guint64 n_bytes;

  if (device == NULL)
    device = ebb_device_get_cpu ();
  n_bytes = __atomic_load_n (&device->loss_chunk, __ATOMIC_RELAXED);
  if (n_bytes > 0)
    return n_bytes;
  return device->backend->get_loss_chunk_bytes != NULL ? device->backend->get_loss_chunk_bytes (device->index)
                                                       : EBB_LOSS_CHUNK_BYTES;
}

/**
 * ebb_set_num_threads:
 * @n_threads: how many threads, at least 1
 *
 * Sets how many threads the kernels that this thread runs on the CPU may use. Results are the same bit for bit for the
 * same number of threads.
 */
void
ebb_set_num_threads (int n_threads)
{
  g_return_if_fail (n_threads >= 1);

  ebb_cpu_set_n_threads (n_threads);
}

/**
 * ebb_get_num_threads:
 *
 * Returns: how many threads the kernels that this thread runs on the CPU use
 */
int
ebb_get_num_threads (void)
{
  return ebb_cpu_get_n_threads ();
}
