/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/memory-account-private.h"

/* The memory behind tensors: reference-counted, versioned, tagged with a purpose. */

G_BEGIN_DECLS

typedef struct _EbbStorage EbbStorage;
typedef struct _EbbStorageWatch EbbStorageWatch;

/* A function to call before a storage is changed in place, because an asynchronous copy may still read it. */
struct _EbbStorageWatch
{
  EbbStorageWatch *next;
  gpointer (*take) (EbbStorageWatch *self); /* under a lock: what the change must come after, and no more */
  void (*before_write) (gpointer taken);    /* not under a lock: makes it so, and frees it */
};

struct _EbbStorage
{
  int ref_count;
  guint version; /* one more for each change in place */
  void *data;    /* NULL: a placeholder (size without memory), made after the early stop of a recompute, or size 0 */
  gsize size;    /* bytes */
  gsize n_blank; /* bytes at its end that nobody has given values yet: writing them changes nothing */
  guint64 birth; /* serial number: by it a frame recognises storages younger than itself */
  EbbDevice *device;
  GDestroyNotify destroy; /* of foreign memory; NULL: from the device's allocator */
  gpointer destroy_data;
  EbbMemoryAccount *account; /* that it is counted to beside the device; NULL: none */
  void *known;               /* in a dry run, of a device: the integers that the host put there; NULL: not known */
  guint known_version;
  EbbStorageWatch *watches;
  int saved_count; /* how many nodes hold it for backward */
  guint8 purpose;
  guint placeholder : 1;
  guint no_data : 1; /* of a dry run: a kernel would have written it */
  guint pinned : 1;  /* seen from outside (numpy, DLPack): never released or swapped by strategies */
};

EbbStorage *ebb_storage_new (EbbDevice *device,
                             gsize size,
                             GError **error);
EbbStorage *ebb_storage_new_foreign (EbbDevice *device,
                                     EbbPurpose purpose,
                                     void *data,
                                     gsize size,
                                     GDestroyNotify destroy,
                                     gpointer destroy_data);
EbbStorage *ebb_storage_ref (EbbStorage *storage);
/* The same, or NULL if @storage is NULL or its last reference is being released. The caller keeps it from being freed
 * meanwhile, by a lock that its destroy function takes. */
EbbStorage *ebb_storage_try_ref (EbbStorage *storage);
/* Before it gets or is asked for values: of a dry run there are only its addresses at first. */
gboolean ebb_storage_map (EbbStorage *storage,
                          GError **error);
/* For a dry run, in which nothing is copied to devices: @values are what the whole storage would hold. */
void ebb_storage_set_known (EbbStorage *storage,
                            const void *values);
/* NULL: not known, or written since. */
const void *ebb_storage_get_known (const EbbStorage *storage);
void ebb_storage_unref (EbbStorage *storage);
void ebb_storage_set_purpose (EbbStorage *storage,
                              EbbPurpose purpose);
EbbPurpose ebb_storage_get_purpose (const EbbStorage *storage);
/* Tags workspace as activation while at least one holder keeps it for backward. */
void ebb_storage_hold_saved (EbbStorage *storage);
void ebb_storage_drop_saved (EbbStorage *storage);
void ebb_storage_add_watch (EbbStorage *storage,
                            EbbStorageWatch *watch);
void ebb_storage_remove_watch (EbbStorage *storage,
                               EbbStorageWatch *watch);
/* The storage is about to be changed in place: a new version. */
void ebb_storage_change (EbbStorage *storage);
/* The serial that the next storage will have. */
guint64 ebb_storage_get_next_birth (void);

G_END_DECLS
