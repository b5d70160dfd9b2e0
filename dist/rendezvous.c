/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "dist/rendezvous-private.h"

#include "tensor/error.h"

#include <gio/gio.h>
#include <string.h>

/* Rank 0 gives each other rank that comes to it the same bytes, once. */

#define GREETING "ebb-rendezvous-1"

/* How long a stranger who says nothing keeps the others waiting, in seconds. */
#define PATIENCE 5

typedef struct
{
  char greeting[24];
  guint32 rank, size; /* in the order of the network */
} Hello;

/* What is left of the time is that of the next operation; FALSE: nothing is. */
static gboolean
has_time (GSocket *socket,
          gint64 deadline)
{
  gint64 left = deadline - g_get_monotonic_time ();

  g_socket_set_timeout (socket, (guint) MAX (1, (left + 999999) / 1000000));
  return left > 0;
}

static gboolean
receive_all (GSocket *socket,
             void *data,
             gsize size,
             gint64 deadline)
{
  for (gsize n = 0; n < size;)
    {
      gssize got = -1;

      if (has_time (socket, deadline))
        got = g_socket_receive (socket, (char *) data + n, size - n, NULL, NULL);
      if (got <= 0)
        return FALSE;
      n += (gsize) got;
    }
  return TRUE;
}

static gboolean
send_all (GSocket *socket,
          const void *data,
          gsize size,
          gint64 deadline)
{
  for (gsize n = 0; n < size;)
    {
      gssize sent = -1;

      if (has_time (socket, deadline))
        sent = g_socket_send (socket, (const char *) data + n, size - n, NULL, NULL);
      if (sent <= 0)
        return FALSE;
      n += (gsize) sent;
    }
  return TRUE;
}

static gint64
get_deadline (double seconds)
{
  return g_get_monotonic_time () + (gint64) (seconds * 1e6);
}

/* -- rank 0 -------------------------------------------------------------------------------------------------------- */

static GSocket *
listen_at (guint16 port,
           GError **error)
{
  g_autoptr (GInetAddress) any = g_inet_address_new_any (G_SOCKET_FAMILY_IPV4);
  g_autoptr (GSocketAddress) address = g_inet_socket_address_new (any, port);
  g_autoptr (GError) failure = NULL;
  g_autoptr (GSocket) socket =
      g_socket_new (G_SOCKET_FAMILY_IPV4, G_SOCKET_TYPE_STREAM, G_SOCKET_PROTOCOL_TCP, &failure);

  if (socket != NULL)
    {
      g_socket_set_listen_backlog (socket, 1024);
      if (g_socket_bind (socket, address, TRUE, &failure) && g_socket_listen (socket, &failure))
        return g_steal_pointer (&socket);
    }
  g_set_error (error, EBB_ERROR, EBB_ERROR_PROCESS_GROUP, "rank 0 can't listen at MASTER_PORT %u: %s", port,
               failure->message);
  return NULL;
}

static gboolean
set_missing (const gboolean *served,
             guint size,
             double timeout,
             GError **error)
{
  g_autoptr (GString) ranks = g_string_new (NULL);

  for (guint i = 1; i < size; i++)
    if (!served[i])
      g_string_append_printf (ranks, "%s%u", ranks->len > 0 ? ", " : "", i);
  g_set_error (error, EBB_ERROR, EBB_ERROR_PROCESS_GROUP, "of %u ranks these didn't come within %g s: %s", size,
               timeout, ranks->str);
  return FALSE;
}

/* Strangers are sent away; FALSE: one who claims to be what it can't be. */
static gboolean
serve_one (guint n_ranks,
           GSocket *guest,
           gboolean *served,
           const void *data,
           gsize size,
           gint64 deadline,
           GError **error)
{
  Hello hello;
  guint rank;

  if (!receive_all (guest, &hello, sizeof hello, MIN (deadline, get_deadline (PATIENCE)))
      || strncmp (hello.greeting, GREETING, sizeof hello.greeting) != 0)
    return TRUE;
  rank = GUINT32_FROM_BE (hello.rank);
  if (GUINT32_FROM_BE (hello.size) != n_ranks || rank == 0 || rank >= n_ranks || served[rank])
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_PROCESS_GROUP,
                   "a process came as rank %u of %u; here WORLD_SIZE is %u, and each rank may come once", rank,
                   GUINT32_FROM_BE (hello.size), n_ranks);
      return FALSE;
    }
  served[rank] = send_all (guest, data, size, MIN (deadline, get_deadline (PATIENCE)));
  return TRUE;
}

static gboolean
serve (guint n_ranks,
       guint16 port,
       const void *data,
       gsize size,
       double timeout,
       GError **error)
{
  gint64 deadline = get_deadline (timeout);
  g_autoptr (GSocket) listener = listen_at (port, error);
  g_autofree gboolean *served = g_new0 (gboolean, n_ranks);
  guint n_served = 0;

  if (listener == NULL)
    return FALSE;
  while (n_served < n_ranks - 1)
    {
      g_autoptr (GSocket) guest = NULL;

      if (!has_time (listener, deadline))
        return set_missing (served, n_ranks, timeout, error);
      guest = g_socket_accept (listener, NULL, NULL);
      if (guest != NULL && !serve_one (n_ranks, guest, served, data, size, deadline, error))
        return FALSE;
      n_served = 0;
      for (guint i = 1; i < n_ranks; i++)
        n_served += served[i] ? 1 : 0;
    }
  return TRUE;
}

/* -- the others ---------------------------------------------------------------------------------------------------- */

/* Rank 0 may not have come so far yet, so it is tried again. */
static gboolean
ask (guint rank,
     guint n_ranks,
     const char *host,
     guint16 port,
     void *data,
     gsize size,
     double timeout,
     GError **error)
{
  const Hello hello = { .greeting = GREETING, .rank = GUINT32_TO_BE (rank), .size = GUINT32_TO_BE (n_ranks) };
  gint64 deadline = get_deadline (timeout);
  g_autoptr (GError) last = NULL;

  while (g_get_monotonic_time () < deadline)
    {
      g_autoptr (GSocketClient) client = g_socket_client_new ();
      g_autoptr (GSocketConnection) connection = NULL;

      g_clear_error (&last);
      g_socket_client_set_enable_proxy (client, FALSE);
      g_socket_client_set_timeout (client, (guint) CLAMP (timeout, 1, 30));
      connection = g_socket_client_connect_to_host (client, host, port, NULL, &last);
      if (connection != NULL)
        {
          GSocket *socket = g_socket_connection_get_socket (connection);

          if (send_all (socket, &hello, sizeof hello, deadline) && receive_all (socket, data, size, deadline))
            return TRUE;
        }
      g_usleep (50000);
    }
  g_set_error (error, EBB_ERROR, EBB_ERROR_PROCESS_GROUP,
               "rank 0 gave no answer at %s:%u (MASTER_ADDR, MASTER_PORT) within %g s%s%s", host, port, timeout,
               last != NULL ? ": " : "", last != NULL ? last->message : "");
  return FALSE;
}

/* -- the environment ----------------------------------------------------------------------------------------------- */

#define MAX_RANKS (1 << 20)

static gboolean
get_number (const char *variable,
            guint64 max,
            guint *number,
            GError **error)
{
  const char *text = g_getenv (variable);
  guint64 value = 0;

  if (text == NULL)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_PROCESS_GROUP,
                   "%s is not set: each process needs RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or mpirun must "
                   "start it",
                   variable);
      return FALSE;
    }
  if (!g_ascii_string_to_unsigned (text, 10, 0, max, &value, NULL))
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_PROCESS_GROUP,
                   "%s is \"%s\"; a number up to %" G_GUINT64_FORMAT " is wanted", variable, text, max);
      return FALSE;
    }
  *number = (guint) value;
  return TRUE;
}

gboolean
ebb_rendezvous_find_rank (guint *rank,
                          guint *size,
                          GError **error)
{
  *rank = 0;
  *size = 1;
  if (g_getenv ("RANK") == NULL && g_getenv ("WORLD_SIZE") == NULL)
    return TRUE;
  if (!get_number ("WORLD_SIZE", MAX_RANKS, size, error) || !get_number ("RANK", MAX_RANKS, rank, error))
    return FALSE;
  if (*rank < *size)
    return TRUE;
  g_set_error (error, EBB_ERROR, EBB_ERROR_PROCESS_GROUP, "RANK is %u; with a WORLD_SIZE of %u it must be less", *rank,
               *size);
  return FALSE;
}

gboolean
ebb_rendezvous_spread (guint rank,
                       guint size,
                       void *data,
                       gsize n_bytes,
                       double timeout,
                       GError **error)
{
  const char *host = g_getenv ("MASTER_ADDR");
  guint port;

  if (size == 1)
    return TRUE;
  if (!get_number ("MASTER_PORT", G_MAXUINT16, &port, error))
    return FALSE;
  if (rank == 0)
    return serve (size, (guint16) port, data, n_bytes, timeout, error);
  if (host != NULL && *host != '\0')
    return ask (rank, size, host, (guint16) port, data, n_bytes, timeout, error);
  g_set_error_literal (error, EBB_ERROR, EBB_ERROR_PROCESS_GROUP, "MASTER_ADDR is not set: it says where rank 0 runs");
  return FALSE;
}
