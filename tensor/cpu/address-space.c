/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The address space that the process may still map, the error where it is too little, and the size of its pages. */
#include "tensor/cpu/host-heap-private.h"

#include <fcntl.h>
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
    g_set_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY, "no address space for %" G_GSIZE_FORMAT " more bytes", size);
  else
    g_set_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY,
                 "no address space for %" G_GSIZE_FORMAT " more bytes: ulimit -v leaves %" G_GSIZE_FORMAT
                 ", and %lu are for threads and libraries",
                 size, space, EBB_HOST_SPACE_FOR_OTHERS);
}

gboolean
ebb_host_has_huge_pages (gsize page)
{
  return page * (page / 8) == EBB_HOST_HUGE_PAGE;
}

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
