/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

/* Stands before the C library's functions on files and has one call fail, or kills the process at it:
 *
 *     LD_PRELOAD=libio-fault.so EBB_IO_FAULT=FOLDER:NUMBER:WHAT program
 *
 * Calls on files in FOLDER are counted from 1. At call NUMBER, WHAT is "kill": a write is done by half, then the
 * process gets SIGKILL; "EIO", "ENOSPC" or "EMFILE": it fails so, if it is a call that can, or else the next one that
 * can. NUMBER 0: none. With EBB_IO_FAULT_COUNT=FILE the calls are written to FILE as they are made, a letter each. */

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#define MAX_FD 1024

/* The calls that may fail, and how: not every call has every failure. */
enum
{
  READS = 1,
  WRITES = 2, /* takes room on the disk */
  OPENS = 4   /* takes a file descriptor */
};

static char folder[PATH_MAX];
static size_t folder_length;
static long fault_at;
static int fault_errno; /* 0: kill */
static int count_fd = -1;
static atomic_long n_calls;
static atomic_int is_due;
static int fails_on;
static atomic_uchar watched[MAX_FD];

#define REAL(type, name) ((type) dlsym (RTLD_NEXT, name))

__attribute__ ((constructor)) static void
read_environment (void)
{
  const char *text = getenv ("EBB_IO_FAULT"), *count = getenv ("EBB_IO_FAULT_COUNT"), *end;
  char what[16] = "";

  if (text == NULL || (end = strchr (text, ':')) == NULL || (size_t) (end - text) >= sizeof folder)
    return;
  folder_length = (size_t) (end - text);
  memcpy (folder, text, folder_length);
  fault_at = strtol (end + 1, (char **) &end, 10);
  strncpy (what, *end == ':' ? end + 1 : "", sizeof what - 1);
  fails_on = what[0] != '\0' && what[strlen (what) - 1] == '+';
  what[strlen (what) - (size_t) fails_on] = '\0';
  fault_errno = strcmp (what, "EIO") == 0      ? EIO
                : strcmp (what, "ENOSPC") == 0 ? ENOSPC
                : strcmp (what, "EMFILE") == 0 ? EMFILE
                                               : 0;
  if (count != NULL)
    count_fd = REAL (int (*) (const char *, int, ...), "open") (count, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
}

static int
is_inside (const char *path)
{
  static _Thread_local char whole[PATH_MAX];
  size_t n = 0;

  if (folder_length == 0 || path == NULL)
    return 0;
  if (path[0] != '/')
    {
      if (getcwd (whole, sizeof whole - 1) == NULL)
        return 0;
      n = strlen (whole);
      whole[n++] = '/';
    }
  strncpy (whole + n, path, sizeof whole - n - 1);
  return strncmp (whole, folder, folder_length) == 0 && (whole[folder_length] == '/' || whole[folder_length] == '\0');
}

static int
is_watched (int fd)
{
  return fd >= 0 && fd < MAX_FD && watched[fd];
}

/* Whether this call is to fail; errno says how. One that is to be the process' last returns 1 as well, with errno 0. */
static int
meet (char letter, int kinds)
{
  long n = atomic_fetch_add (&n_calls, 1) + 1;
  int fits = fault_errno == ENOSPC ? kinds & WRITES : fault_errno == EMFILE ? kinds & OPENS
                                                                            : 1;

  if (count_fd >= 0)
    (void) !REAL (ssize_t (*) (int, const void *, size_t), "write") (count_fd, &letter, 1);
  if (fault_at > 0 && n == fault_at)
    is_due = 1;
  if (!fits || !(fails_on ? is_due : atomic_exchange (&is_due, 0)))
    return 0;
  errno = fault_errno;
  return 1;
}

static int
fails (char letter, int kinds)
{
  if (!meet (letter, kinds))
    return 0;
  if (errno == 0)
    raise (SIGKILL);
  return 1;
}

/* -- by name ------------------------------------------------------------------------------------------------------- */

#define DEFINE_OPEN(name)                                                                          \
  int name (const char *path, int flags, ...)                                                      \
  {                                                                                                \
    mode_t mode = 0;                                                                               \
    int inside = is_inside (path), fd;                                                             \
                                                                                                   \
    if ((flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE)                                     \
      {                                                                                            \
        va_list args;                                                                              \
                                                                                                   \
        va_start (args, flags);                                                                    \
        mode = va_arg (args, mode_t);                                                              \
        va_end (args);                                                                             \
      }                                                                                            \
    if (inside && fails (flags & O_CREAT ? 'O' : 'o', OPENS | (flags & O_CREAT ? WRITES : READS))) \
      return -1;                                                                                   \
    fd = REAL (int (*) (const char *, int, ...), #name) (path, flags, mode);                       \
    if (fd >= 0 && fd < MAX_FD)                                                                    \
      watched[fd] = (unsigned char) inside;                                                        \
    return fd;                                                                                     \
  }

DEFINE_OPEN (open)
DEFINE_OPEN (open64)

#define DEFINE_BY_NAME(letter, kinds, name, parameters, arguments, path) \
  int name parameters                                                    \
  {                                                                      \
    if (is_inside (path) && fails (letter, kinds))                       \
      return -1;                                                         \
    return REAL (int (*) parameters, #name) arguments;                   \
  }

DEFINE_BY_NAME ('n', WRITES, rename, (const char *from, const char *to), (from, to), to)
DEFINE_BY_NAME ('u', 0, unlink, (const char *path), (path), path)
DEFINE_BY_NAME ('m', WRITES, mkdir, (const char *path, mode_t mode), (path, mode), path)
DEFINE_BY_NAME ('m', 0, rmdir, (const char *path), (path), path)
DEFINE_BY_NAME ('s', READS, stat, (const char *path, struct stat *status), (path, status), path)
DEFINE_BY_NAME ('s', READS, stat64, (const char *path, struct stat64 *status), (path, status), path)
DEFINE_BY_NAME ('s', READS, access, (const char *path, int mode), (path, mode), path)

/* -- by descriptor ------------------------------------------------------------------------------------------------- */

#define DEFINE_BY_FD(type, letter, kinds, name, parameters, arguments) \
  type name parameters                                                 \
  {                                                                    \
    if (is_watched (fd) && fails (letter, kinds))                      \
      return -1;                                                       \
    return REAL (type (*) parameters, #name) arguments;                \
  }

DEFINE_BY_FD (int, 'y', WRITES, fsync, (int fd), (fd))
DEFINE_BY_FD (int, 'y', WRITES, fdatasync, (int fd), (fd))
DEFINE_BY_FD (int, 't', WRITES, ftruncate, (int fd, off_t length), (fd, length))
DEFINE_BY_FD (int, 't', WRITES, ftruncate64, (int fd, off64_t length), (fd, length))
DEFINE_BY_FD (int, 'l', 0, flock, (int fd, int operation), (fd, operation))
DEFINE_BY_FD (int, 's', READS, fstat, (int fd, struct stat *status), (fd, status))
DEFINE_BY_FD (int, 's', READS, fstat64, (int fd, struct stat64 *status), (fd, status))
DEFINE_BY_FD (ssize_t, 'r', READS, read, (int fd, void *data, size_t size), (fd, data, size))
DEFINE_BY_FD (ssize_t, 'r', READS, pread, (int fd, void *data, size_t size, off_t at), (fd, data, size, at))
DEFINE_BY_FD (ssize_t, 'r', READS, pread64, (int fd, void *data, size_t size, off64_t at), (fd, data, size, at))

DEFINE_BY_FD (ssize_t, 'p', WRITES, pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
DEFINE_BY_FD (ssize_t, 'p', WRITES, pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at))

ssize_t
write (int fd, const void *data, size_t size)
{
  ssize_t (*real) (int, const void *, size_t) = REAL (ssize_t (*) (int, const void *, size_t), "write");

  if (is_watched (fd) && meet ('w', WRITES))
    {
      int number = errno;

      (void) !real (fd, data, size / 2);
      if (number == 0)
        raise (SIGKILL);
      errno = number;
      return -1;
    }
  return real (fd, data, size);
}

int
close (int fd)
{
  int is_ours = is_watched (fd), failed;

  if (!is_ours)
    return REAL (int (*) (int), "close") (fd);
  failed = fails ('c', 0);
  watched[fd] = 0;
  REAL (int (*) (int), "close")
  (fd);
  if (failed)
    errno = fault_errno;
  return failed ? -1 : 0;
}

/* -- folders ------------------------------------------------------------------------------------------------------- */

DIR *
opendir (const char *path)
{
  int inside = is_inside (path);
  DIR *dir;

  if (inside && fails ('d', OPENS | READS))
    return NULL;
  dir = REAL (DIR * (*) (const char *), "opendir") (path);
  if (dir != NULL && dirfd (dir) < MAX_FD)
    watched[dirfd (dir)] = (unsigned char) inside;
  return dir;
}

#define DEFINE_READ(type, name)                         \
  type *name (DIR *dir)                                 \
  {                                                     \
    if (is_watched (dirfd (dir)) && fails ('e', READS)) \
      return NULL;                                      \
    return REAL (type * (*) (DIR *), #name) (dir);      \
  }

DEFINE_READ (struct dirent, readdir)
DEFINE_READ (struct dirent64, readdir64)

int
closedir (DIR *dir)
{
  int fd = dirfd (dir);

  if (fd >= 0 && fd < MAX_FD)
    watched[fd] = 0;
  return REAL (int (*) (DIR *), "closedir") (dir);
}
