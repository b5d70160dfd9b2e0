/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/files/folder-lock.h"

#include "tensor/error-private.h"
#include "tensor/util/file.h"
#include "tensor/util/property-private.h"

#include <errno.h>
#include <fcntl.h>
#include <gio/gio.h>
#include <glib/gstdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* Keeps two trainings from saving to one folder. */

/* A lock on a file in the folder, which says who has it. The file stays after a process that was killed, the lock does
 * not. */
#define LOCK_FILE ".ebb-lock"
/* More bytes than the name of a process and a host has. */
#define MAX_OWNER_SIZE 4096

struct _EbbFolderLock
{
  GObject parent_instance;

  char *folder;
  char *path;
  int fd;      /* -1: not locked */
  pid_t owner; /* a child of fork () has the object, but not the lock */
  gboolean made_folder;
};

static void ebb_folder_lock_initable_init (GInitableIface *iface);

G_DEFINE_FINAL_TYPE_WITH_CODE (EbbFolderLock,
                               ebb_folder_lock,
                               G_TYPE_OBJECT,
                               G_IMPLEMENT_INTERFACE (G_TYPE_INITABLE, ebb_folder_lock_initable_init))

/* -- locking ------------------------------------------------------------------------------------------------------- */

static gboolean
fail (EbbFolderLock *self,
      GError **error,
      const char *verb,
      int number)
{
  return ebb_fail (error, EBB_ERROR_IO, "can't %s the folder %s: %s", verb, ebb_show_text (self->folder),
                   g_strerror (number));
}

static gboolean
refuse (EbbFolderLock *self,
        GError **error)
{
  g_autofree char *shown = ebb_escape_text (self->folder);
  g_autofree char *text = NULL;
  g_autofree char *owner = NULL;
  gsize size;

  text = ebb_read_file (self->path, MAX_OWNER_SIZE, &size, NULL);
  if (text == NULL || *g_strstrip (text) == '\0')
    owner = g_strdup ("another process");
  else
    owner = ebb_escape_text (text);
  return ebb_fail (error, EBB_ERROR_STATE,
                   "the folder %s is in use by %s: wait for its end, or name another folder", shown, owner);
}

/* Whether the file that is locked is still the one of that name: its last owner may have removed it before. */
static gboolean
is_current (EbbFolderLock *self)
{
  struct stat here, there;

  return fstat (self->fd, &here) == 0 && stat (self->path, &there) == 0 && here.st_dev == there.st_dev
         && here.st_ino == there.st_ino;
}

/* Who has it, for others to read; a lock without that is a lock. */
static void
sign (EbbFolderLock *self)
{
  g_autofree char *text = g_strdup_printf ("process %ld on %s\n", (long) getpid (), g_get_host_name ());

  if (ftruncate (self->fd, 0) == 0 && write (self->fd, text, strlen (text)) < 0)
    g_debug ("can't write %s: %s", self->path, g_strerror (errno));
}

static gboolean
lock (EbbFolderLock *self,
      GError **error)
{
  do
    {
      if (self->fd >= 0)
        close (self->fd);
      self->fd = open (self->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
      if (self->fd < 0)
        return fail (self, error, "lock", errno);
      while (flock (self->fd, LOCK_EX | LOCK_NB) != 0)
        if (errno == EWOULDBLOCK)
          return refuse (self, error);
        else if (errno == ENOSYS || errno == EOPNOTSUPP || errno == ENOLCK)
          {
            g_message ("the file system of %s has no locks: see to it that no other program trains there",
                       self->folder);
            return TRUE;
          }
        else if (errno != EINTR)
          return fail (self, error, "lock", errno);
    }
  while (!is_current (self));
  sign (self);
  return TRUE;
}

static gboolean
ebb_folder_lock_initable_init_instance (GInitable *initable,
                                        GCancellable *cancellable,
                                        GError **error)
{
  EbbFolderLock *self = EBB_FOLDER_LOCK (initable);

  if (self->path != NULL)
    return TRUE;
  if (self->folder == NULL)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "a lock needs the path of a folder");
  self->made_folder = !g_file_test (self->folder, G_FILE_TEST_EXISTS);
  if (g_mkdir_with_parents (self->folder, 0777) != 0)
    return fail (self, error, "make", errno);
  self->path = g_build_filename (self->folder, LOCK_FILE, NULL);
  if (lock (self, error))
    return TRUE;
  if (self->fd >= 0)
    close (self->fd);
  self->fd = -1;
  return FALSE;
}

static void
ebb_folder_lock_initable_init (GInitableIface *iface)
{
  iface->init = ebb_folder_lock_initable_init_instance;
}

/**
 * ebb_folder_lock_new:
 * @folder: (type filename): a folder, made if it does not exist
 * @error: return location for an error
 *
 * Locks a folder for a training that saves its state there. On many ranks one of them does it for all.
 *
 * Returns: (transfer full) (nullable): the lock; %NULL with %EBB_ERROR_STATE and the process and the host that have it,
 * or with %EBB_ERROR_IO if the folder can't be written. Where the file system has no locks the object locks nothing,
 * and a message says so
 */
EbbFolderLock *
ebb_folder_lock_new (const char *folder,
                     GError **error)
{
  if (error != NULL && *error != NULL)
    return NULL;
  return g_initable_new (EBB_TYPE_FOLDER_LOCK, NULL, error, "folder", folder, NULL);
}

/**
 * ebb_folder_lock_release:
 * @self: a lock
 *
 * Unlocks the folder before the object is freed, and removes the folder if the lock has made it and nothing was saved.
 * In a child of fork () the folder stays locked for the parent.
 */
void
ebb_folder_lock_release (EbbFolderLock *self)
{
  g_return_if_fail (EBB_IS_FOLDER_LOCK (self));

  if (self->fd < 0)
    return;
  if (self->owner == getpid ())
    unlink (self->path);
  close (self->fd);
  self->fd = -1;
  if (self->owner == getpid () && self->made_folder)
    g_rmdir (self->folder);
}

/* -- the object ---------------------------------------------------------------------------------------------------- */

static void
ebb_folder_lock_finalize (GObject *object)
{
  EbbFolderLock *self = EBB_FOLDER_LOCK (object);

  ebb_folder_lock_release (self);
  g_free (self->path);
  g_free (self->folder);
  G_OBJECT_CLASS (ebb_folder_lock_parent_class)->finalize (object);
}

static void
ebb_folder_lock_class_init (EbbFolderLockClass *klass)
{
  GObjectClass *object_class = G_OBJECT_CLASS (klass);

  object_class->get_property = ebb_property_get_field;
  object_class->set_property = ebb_property_set_field;
  object_class->finalize = ebb_folder_lock_finalize;

  /**
   * EbbFolderLock:folder:
   *
   * The folder that is locked.
   */
  g_object_class_install_property (object_class, offsetof (EbbFolderLock, folder),
                                   g_param_spec_string ("folder", NULL, NULL, NULL,
                                                        G_PARAM_READWRITE | G_PARAM_CONSTRUCT_ONLY
                                                            | G_PARAM_STATIC_STRINGS));
}

static void
ebb_folder_lock_init (EbbFolderLock *self)
{
  self->fd = -1;
  self->owner = getpid ();
}
