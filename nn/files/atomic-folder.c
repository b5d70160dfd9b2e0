/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* renameat2 () */
#include "nn/files/atomic-folder-private.h"

#include "tensor/error-private.h"
#include "tensor/util/atomic-file-private.h"

#include <errno.h>
#include <fcntl.h>
#include <glib/gstdio.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* Writes a folder beside the one that it is to become, and exchanges the two. */

#define OLD_FILE_SUFFIX ".ebb-old"                      /* a file that is being replaced, in the temporary folder */
#define OLD_FOLDER_SUFFIX ".old" EBB_ATOMIC_FILE_SUFFIX /* follows the name of the temporary folder */

static gboolean
fail (const char *verb,
      const char *path,
      int number,
      GError **error)
{
  return ebb_fail (error, EBB_ERROR_IO, "can't %s the folder %s: %s", verb, ebb_show_text (path), g_strerror (number));
}

/* Flushes a folder's entries to the disk, as far as its file system can. */
static gboolean
sync_folder (const char *path,
             GError **error)
{
  int fd = open (path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), number = 0;

  if (fd < 0)
    return fail ("open", path, errno, error);
  if (fsync (fd) != 0 && errno != EINVAL && errno != ENOTSUP)
    number = errno;
  close (fd);
  return number == 0 || fail ("flush", path, number, error);
}

static gboolean
is_file (const char *path)
{
  struct stat status;

  return lstat (path, &status) == 0 && S_ISREG (status.st_mode);
}

static gboolean
is_folder (const char *path)
{
  struct stat status;

  return lstat (path, &status) == 0 && S_ISDIR (status.st_mode);
}

/* -- opening ------------------------------------------------------------------------------------------------------- */

/* Removes the files of a model in @folder and then, if nothing else is in it, @folder. @all: any other files too,
 * except for those that could not be put back. */
static void
remove_ours (EbbAtomicFolder *self,
             const char *folder,
             gboolean all)
{
  g_auto (GStrv) names = ebb_list_folder (folder, NULL);

  for (guint i = 0; names != NULL && names[i] != NULL; i++)
    {
      g_autofree char *path = g_build_filename (folder, names[i], NULL);

      if ((all && !g_str_has_suffix (names[i], OLD_FILE_SUFFIX)) || self->is_replaced (names[i])
          || g_str_has_suffix (names[i], EBB_ATOMIC_FILE_SUFFIX))
        unlink (path);
    }
  rmdir (folder);
}

/* Puts back the files that a killed process had moved out of the folder, unless all of the new ones are there. */
static void
restore_files (EbbAtomicFolder *self,
               const char *leftover)
{
  g_auto (GStrv) names = ebb_list_folder (leftover, NULL);
  g_autofree char *key = g_build_filename (self->path, self->key, NULL);
  const gboolean is_whole = g_file_test (key, G_FILE_TEST_EXISTS);

  for (guint i = 0; names != NULL && names[i] != NULL; i++)
    {
      g_autofree char *name = g_strdup (names[i]);
      g_autofree char *from = g_build_filename (leftover, names[i], NULL);
      g_autofree char *to = NULL;

      if (!g_str_has_suffix (name, OLD_FILE_SUFFIX))
        continue;
      name[strlen (name) - strlen (OLD_FILE_SUFFIX)] = '\0';
      to = g_build_filename (self->path, name, NULL);
      if (is_whole)
        unlink (from);
      else
        rename (from, to);
    }
}

/* Locks a leftover folder. -1: a living process writes it, or it is no folder. */
static int
take_leftover (const char *path)
{
  int fd = open (path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);

  if (fd < 0 || flock (fd, LOCK_EX | LOCK_NB) == 0)
    return fd;
  close (fd);
  return -1;
}

/* The only copy of a folder, where a process was killed between two renames: it gets its name back. */
static void
restore_folder (EbbAtomicFolder *self,
                const char *leftover)
{
  g_autofree char *temporary = g_strndup (leftover, strlen (leftover) - strlen (OLD_FOLDER_SUFFIX));
  struct stat status;
  int fd;

  if (lstat (self->path, &status) == 0)
    return;
  fd = take_leftover (temporary);
  /* A living process that writes the temporary folder is about to give it the name. */
  if (fd >= 0 || lstat (temporary, &status) != 0)
    rename (leftover, self->path);
  if (fd >= 0)
    close (fd);
}

/* Removes the temporary folders of @path that no living process writes, and puts back old files that are in them. */
static void
clean_before (EbbAtomicFolder *self,
              const char *parent,
              const char *prefix)
{
  g_auto (GStrv) names = ebb_list_folder (parent, NULL);

  for (guint i = 0; names != NULL && names[i] != NULL; i++)
    {
      g_autofree char *path = g_build_filename (parent, names[i], NULL);
      int fd;

      if (!g_str_has_prefix (names[i], prefix) || !g_str_has_suffix (names[i], EBB_ATOMIC_FILE_SUFFIX))
        continue;
      if (g_str_has_suffix (names[i], OLD_FOLDER_SUFFIX))
        restore_folder (self, path);
      fd = take_leftover (path);
      if (fd < 0)
        continue;
      restore_files (self, path);
      remove_ours (self, path, FALSE);
      close (fd);
    }
}

static gboolean
make_temporary (EbbAtomicFolder *self,
                const char *parent,
                const char *prefix,
                GError **error)
{
  for (int attempt = 0; attempt < 100; attempt++)
    {
      g_autofree char *name = g_strdup_printf ("%s%08x" EBB_ATOMIC_FILE_SUFFIX, prefix, g_random_int ());
      g_autofree char *path = g_build_filename (parent, name, NULL);

      if (mkdir (path, 0777) != 0)
        {
          if (errno == EEXIST)
            continue;
          return fail ("write", self->path, errno, error);
        }
      self->fd = open (path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
      /* Where locks don't work, nobody removes leftovers. */
      if (self->fd >= 0)
        flock (self->fd, LOCK_EX | LOCK_NB);
      /* Another process may have taken it for a leftover before it was locked. */
      if (self->fd >= 0 && g_file_test (path, G_FILE_TEST_IS_DIR))
        {
          self->temporary = g_steal_pointer (&path);
          return TRUE;
        }
      if (self->fd >= 0)
        close (self->fd);
      self->fd = -1;
    }
  return fail ("write", self->path, EEXIST, error);
}

static char *
get_real (const char *path)
{
  char *real = realpath (path, NULL), *copy = g_strdup (real);

  free (real);
  return copy;
}

/* The folder that a link stands for; else the path without what does not belong to a name. Owned; NULL with an error
 * for what can't be replaced. */
static char *
resolve (const char *path,
         GError **error)
{
  g_autofree char *real = get_real (path);
  g_autofree char *current = NULL;

  if (*path == '\0')
    return ebb_fail_null (error, EBB_ERROR_INVALID_ARGUMENT, "the name of the folder to save is empty");
  if (real == NULL && errno != ENOENT)
    {
      fail ("write", path, errno, error);
      return NULL;
    }
  if (real == NULL && !g_path_is_absolute (path) && (current = get_real (".")) == NULL)
    return ebb_fail_null (error, EBB_ERROR_IO, "can't write the folder %s: the current folder has been removed",
                          ebb_show_text (path));
  if (real == NULL)
    real = g_canonicalize_filename (path, current);
  if (strcmp (real, "/") != 0)
    return g_steal_pointer (&real);
  return ebb_fail_null (error, EBB_ERROR_INVALID_ARGUMENT,
                        "can't write the folder /: it is the root of all folders");
}

gboolean
ebb_atomic_folder_open (EbbAtomicFolder *self,
                        const char *path,
                        const char *key,
                        EbbIsReplacedFunc is_replaced,
                        GError **error)
{
  g_autofree char *parent = NULL;
  g_autofree char *stem = NULL;
  g_autofree char *prefix = NULL;

  *self = (EbbAtomicFolder){ .path = resolve (path, error), .key = key, .is_replaced = is_replaced, .fd = -1 };
  if (self->path == NULL)
    return FALSE;
  parent = g_path_get_dirname (self->path);
  if (g_file_test (self->path, G_FILE_TEST_EXISTS) && !g_file_test (self->path, G_FILE_TEST_IS_DIR))
    fail ("write", self->path, ENOTDIR, error);
  else if (g_mkdir_with_parents (parent, 0777) != 0)
    fail ("make", parent, errno, error);
  else
    {
      stem = ebb_atomic_file_make_stem (self->path); /* the parent is there now, and knows its limit */
      prefix = g_strdup_printf (".%s.", stem);
      clean_before (self, parent, prefix);
      if (make_temporary (self, parent, prefix, error))
        return TRUE;
    }
  g_clear_pointer (&self->path, g_free);
  return FALSE;
}

gboolean
ebb_atomic_folder_write (EbbAtomicFolder *self,
                         const char *name,
                         const void *data,
                         gsize size,
                         GError **error)
{
  g_autofree char *path = g_build_filename (self->temporary, name, NULL);

  return ebb_atomic_file_save (path, data, size, error);
}

/* -- taking the place of a folder ---------------------------------------------------------------------------------- */

/* A file that moves into the folder, out of it, or both. */
typedef struct
{
  char *inside, *temporary;
  char *old; /* where the old one is; NULL: there was none */
  gboolean is_moved;
} Move;

static void
move_free (gpointer data)
{
  Move *move = data;

  g_free (move->inside);
  g_free (move->temporary);
  g_free (move->old);
  g_free (move);
}

static Move *
add_move (EbbAtomicFolder *self,
          GPtrArray *moves,
          const char *name)
{
  Move *move = g_new0 (Move, 1);

  move->inside = g_build_filename (self->path, name, NULL);
  move->temporary = g_build_filename (self->temporary, name, NULL);
  g_ptr_array_add (moves, move);
  return move;
}

static gboolean
move_out (Move *move)
{
  g_autofree char *old = g_strconcat (move->temporary, OLD_FILE_SUFFIX, NULL);
  struct stat status;

  if (lstat (move->inside, &status) != 0 || S_ISDIR (status.st_mode))
    return TRUE;
  if (rename (move->inside, old) != 0)
    return FALSE;
  move->old = g_steal_pointer (&old);
  return TRUE;
}

static void
undo (GPtrArray *moves)
{
  for (guint i = moves->len; i > 0; i--)
    {
      Move *move = g_ptr_array_index (moves, i - 1);

      if (move->is_moved)
        rename (move->inside, move->temporary);
      if (move->old != NULL)
        rename (move->old, move->inside);
    }
}

/* The old key goes first and the new one comes last: in between the folder is no model. */
static gboolean
exchange_files (EbbAtomicFolder *self,
                GPtrArray *moves,
                guint n_new,
                GError **error)
{
  for (guint i = moves->len; i > 0; i--)
    if (!move_out (g_ptr_array_index (moves, i - 1)))
      return fail ("write", self->path, errno, error);
  for (guint i = 0; i < n_new; i++)
    {
      Move *move = g_ptr_array_index (moves, i);

      /* The other files have to be on the disk before the key file. */
      if (i + 1 == n_new && !sync_folder (self->path, error))
        return FALSE;
      if (rename (move->temporary, move->inside) != 0)
        return fail ("write", self->path, errno, error);
      move->is_moved = TRUE;
    }
  return sync_folder (self->path, error);
}

/* A folder that is no model yet, or that must stay the same folder: its files are replaced one by one. */
static gboolean
move_into (EbbAtomicFolder *self,
           GError **error)
{
  g_auto (GStrv) names = ebb_list_folder (self->temporary, error);
  g_auto (GStrv) old = names != NULL ? ebb_list_folder (self->path, error) : NULL;
  g_autoptr (GPtrArray) moves = g_ptr_array_new_with_free_func (move_free);
  guint n_new;

  if (old == NULL)
    return FALSE;
  for (guint i = 0; names[i] != NULL; i++)
    if (strcmp (names[i], self->key) != 0)
      add_move (self, moves, names[i]);
  add_move (self, moves, self->key);
  n_new = moves->len;
  for (guint i = 0; old[i] != NULL; i++)
    if (self->is_replaced (old[i]) && !g_strv_contains ((const char *const *) names, old[i]))
      add_move (self, moves, old[i]);
  if (!exchange_files (self, moves, n_new, error))
    {
      undo (moves);
      return FALSE;
    }
  for (guint i = 0; i < moves->len; i++)
    if (((Move *) g_ptr_array_index (moves, i))->old != NULL)
      unlink (((Move *) g_ptr_array_index (moves, i))->old);
  rmdir (self->temporary);
  return TRUE;
}

/* Gives the new folder what the old one has besides, under a second name as long as both are there; folders have but
 * one name and follow when the new one is in its place. */
static gboolean
carry_over (EbbAtomicFolder *self,
            GError **error)
{
  g_auto (GStrv) names = ebb_list_folder (self->path, error);
  struct stat status;

  if (stat (self->path, &status) == 0)
    fchmod (self->fd, status.st_mode & 07777);
  for (guint i = 0; names != NULL && names[i] != NULL; i++)
    {
      g_autofree char *from = g_build_filename (self->path, names[i], NULL);
      g_autofree char *to = g_build_filename (self->temporary, names[i], NULL);

      if (self->is_replaced (names[i]) || g_file_test (to, G_FILE_TEST_EXISTS) || !is_file (from))
        continue;
      if (linkat (AT_FDCWD, from, AT_FDCWD, to, 0) != 0 && errno != EPERM && errno != ENOTSUP && errno != EMLINK)
        return fail ("write", self->path, errno, error);
    }
  return names != NULL;
}

/* The old folder has the temporary name now. */
static void
follow (EbbAtomicFolder *self)
{
  g_auto (GStrv) names = ebb_list_folder (self->temporary, NULL);

  for (guint i = 0; names != NULL && names[i] != NULL; i++)
    {
      g_autofree char *from = g_build_filename (self->temporary, names[i], NULL);
      g_autofree char *to = g_build_filename (self->path, names[i], NULL);
      struct stat status;

      /* A folder is never replaced, whatever its name. */
      if (lstat (to, &status) == 0 || (self->is_replaced (names[i]) && !is_folder (from)))
        unlink (from);
      else
        rename (from, to);
    }
  rmdir (self->temporary);
  g_clear_pointer (&self->temporary, g_free);
}

static gboolean
exchange (EbbAtomicFolder *self,
          GError **error)
{
  g_autofree char *old = NULL;

  if (renameat2 (AT_FDCWD, self->temporary, AT_FDCWD, self->path, RENAME_EXCHANGE) == 0)
    return TRUE;
  if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP)
    return fail ("replace", self->path, errno, error);
  /* A file system that can't exchange two names: the old folder keeps its files under another name in between. */
  old = g_strconcat (self->temporary, OLD_FOLDER_SUFFIX, NULL);
  if (rename (self->path, old) != 0)
    return fail ("replace", self->path, errno, error);
  if (rename (self->temporary, self->path) != 0)
    {
      const int number = errno;

      rename (old, self->path);
      return fail ("replace", self->path, number, error);
    }
  g_free (self->temporary);
  self->temporary = g_steal_pointer (&old);
  return TRUE;
}

static gboolean
replace (EbbAtomicFolder *self,
         GError **error)
{
  g_autofree char *parent = g_path_get_dirname (self->path);

  if (!carry_over (self, error) || !sync_folder (self->temporary, error) || !exchange (self, error))
    return FALSE;
  follow (self);
  return sync_folder (parent, error);
}

static gboolean
appear (EbbAtomicFolder *self,
        GError **error)
{
  g_autofree char *parent = g_path_get_dirname (self->path);

  if (!sync_folder (self->temporary, error))
    return FALSE;
  if (rename (self->temporary, self->path) == 0)
    return sync_folder (parent, error);
  /* Another process may have saved there since. */
  return errno == EEXIST || errno == ENOTEMPTY ? replace (self, error) : fail ("write", self->path, errno, error);
}

static void
leave (EbbAtomicFolder *self)
{
  if (self->fd >= 0)
    close (self->fd);
  self->fd = -1;
  g_clear_pointer (&self->temporary, g_free);
  g_clear_pointer (&self->path, g_free);
}

/* Processes, such as a shell, that stand in a folder stay in it when another one takes its name. */
static gboolean
is_current (const char *path)
{
  struct stat here, there;

  return stat (".", &here) == 0 && stat (path, &there) == 0 && here.st_dev == there.st_dev
         && here.st_ino == there.st_ino;
}

gboolean
ebb_atomic_folder_commit (EbbAtomicFolder *self,
                          GError **error)
{
  g_autofree char *key = g_build_filename (self->path, self->key, NULL);
  gboolean done;

  if (g_file_test (key, G_FILE_TEST_EXISTS) && !is_current (self->path))
    done = replace (self, error);
  else if (g_file_test (self->path, G_FILE_TEST_EXISTS))
    done = move_into (self, error);
  else
    done = appear (self, error);
  if (done)
    leave (self);
  else
    ebb_atomic_folder_abort (self);
  return done;
}

void
ebb_atomic_folder_abort (EbbAtomicFolder *self)
{
  if (self->temporary != NULL)
    remove_ours (self, self->temporary, TRUE);
  leave (self);
}
