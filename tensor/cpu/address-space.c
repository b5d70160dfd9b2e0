/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The address space that the process may still map, the error where it is too little, addresses that nothing maps, and
 * the size of pages. */
#include "tensor/cpu/host-heap-private.h"
#include "tensor/error-private.h"
#include "tensor/util/lock-private.h"

#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

gsize
ebb_host_get_address_space (void)
{
  char text[32] = "";
  struct rlimit limit;
  gsize used;
  int fd;

  if (getrlimit (RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
    return G_MAXSIZE;
  fd = open ("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return limit.rlim_cur;
  used = read (fd, text, sizeof text - 1) > 0 ? g_ascii_strtoull (text, NULL, 10) * (gsize) sysconf (_SC_PAGESIZE) : 0;
  close (fd);
  return limit.rlim_cur - MIN (used, limit.rlim_cur);
}

void
ebb_host_set_no_space (gsize size,
                       GError **error)
{
  const gsize space = ebb_host_get_address_space ();

  if (space == G_MAXSIZE)
    ebb_error_set (error, EBB_ERROR_NO_MEMORY, "no address space for %" G_GSIZE_FORMAT " more bytes", size);
  else
    ebb_error_set (error, EBB_ERROR_NO_MEMORY,
                   "no address space for %" G_GSIZE_FORMAT " more bytes: ulimit -v leaves %" G_GSIZE_FORMAT
                   ", and %lu are for threads and libraries",
                   size, space, EBB_HOST_SPACE_FOR_OTHERS);
}

gboolean
ebb_host_has_huge_pages (gsize page)
{
  return page * (page / 8) == EBB_HOST_HUGE_PAGE;
}

/* -- addresses ----------------------------------------------------------------------------------------------------- */

/* Linux maps what it places itself from the uppermost address downwards, and programs beyond these. */
#define FIRST_ADDRESS (16ul << 40)
#define SLOT (16ul << 30)
#define N_SLOTS 4096

static pthread_mutex_t slots_lock = PTHREAD_MUTEX_INITIALIZER;
static guint8 slots[N_SLOTS]; /* 1: taken */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

/* Sanitizers know what lies where. */
static gboolean
can_map (void)
{
  return FALSE;
}

#else

static pthread_once_t probed = PTHREAD_ONCE_INIT;
static gboolean has_addresses;

static void
probe (void)
{
  void *last = (void *) (FIRST_ADDRESS + (N_SLOTS - 1) * SLOT);
  const gsize size = (gsize) sysconf (_SC_PAGESIZE);
  void *data = mmap (last, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);

  has_addresses = data == last;
  if (data != MAP_FAILED)
    munmap (data, size);
}

/* Some processors have fewer addresses. */
static gboolean
can_map (void)
{
  pthread_once (&probed, probe);
  return has_addresses;
}

#endif

void *
ebb_host_invent_addresses (gsize size)
{
  const gsize n = (size + SLOT - 1) / SLOT;
  gsize free = 0, end = 0;

  if (!can_map ())
    return NULL;
  pthread_mutex_lock (&slots_lock);
  while (free < n && end < N_SLOTS)
    free = slots[end++] == 0 ? free + 1 : 0;
  if (free == n)
    memset (slots + end - n, 1, n);
  pthread_mutex_unlock (&slots_lock);
  return free == n ? (char *) FIRST_ADDRESS + (end - n) * SLOT : NULL;
}

void
ebb_host_forget_addresses (void *start,
                           gsize size)
{
  const gsize first = ((gsize) start - FIRST_ADDRESS) / SLOT;

  EBB_AUTO_LOCK (&slots_lock);
  memset (slots + first, 0, (size + SLOT - 1) / SLOT);
}

/* -- pages --------------------------------------------------------------------------------------------------------- */

void
ebb_host_allow_huge_pages (void *data,
                           gsize size,
                           gboolean allow)
{
  const gsize begin = ((gsize) data + EBB_HOST_HUGE_PAGE - 1) & ~(EBB_HOST_HUGE_PAGE - 1),
              end = ((gsize) data + size) & ~(EBB_HOST_HUGE_PAGE - 1);

  allow = allow && ebb_host_has_huge_pages ((gsize) sysconf (_SC_PAGESIZE));
  if (begin < end)
    madvise ((void *) begin, end - begin, allow ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
}
