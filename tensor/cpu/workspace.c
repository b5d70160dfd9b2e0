/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/backend/backend-private.h"
#include "tensor/cpu/cpu-private.h"
#include "tensor/memory.h"

/* The size is kept in front, so that freeing needs the pointer alone; 64 bytes keep the alignment. */
#define HEADER 64

void *
ebb_cpu_workspace_alloc (gsize size,
                         GError **error)
{
  char *data = ebb_device_alloc (ebb_device_get_cpu (), size + HEADER, EBB_PURPOSE_WORKSPACE, error);

  if (data == NULL)
    return NULL;
  *(gsize *) data = size + HEADER;
  return data + HEADER;
}

void
ebb_cpu_workspace_free (void *data)
{
  if (data != NULL)
    ebb_device_free (ebb_device_get_cpu (), (char *) data - HEADER, *(gsize *) ((char *) data - HEADER),
                     EBB_PURPOSE_WORKSPACE);
}
