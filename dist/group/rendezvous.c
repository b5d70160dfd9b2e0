/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "dist/group/rendezvous-private.h"

#include "tensor/error-private.h"

#include <gio/gio.h>
#include <string.h>
#include <sys/random.h>

/* Rank 0 gives each other rank that comes to it the same bytes. Both show that they know the job's token without
 * sending it: each names a random number, and signs what it says and both numbers (HMAC-SHA256, RFC 2104).
 *
 *   guest: Hello        rank 0: its number        guest: signature        rank 0: Answer, and the bytes if it is GIVEN
 */

#define GREETING "ebb-rendezvous-2"
#define NUMBER_SIZE 32
#define SIGNATURE_SIZE 32

/* How long rank 0 waits for a guest to show that it knows the token, in seconds, and how many guests it has at a time
 * in addition to the ranks: beyond that the first that hasn't shown it is dropped. */
#define PATIENCE 10
#define MAX_STRANGERS 256

typedef struct
{
  char greeting[24];
  guint32 rank, size; /* in the order of the network */
  guint8 number[NUMBER_SIZE];
} Hello;

typedef enum
{
  GIVEN,
  OTHER_TOKEN, /* not signed */
  OTHER_SIZE,
  NO_RANK,
  TAKEN
} Status;

typedef struct
{
  guint32 status, size; /* in the order of the network; size: WORLD_SIZE of rank 0 */
  guint8 signature[SIGNATURE_SIZE];
} Answer;

/* The arguments of one rendezvous. */
typedef struct
{
  guint rank, n_ranks;
  GList *addresses; /* of rank 0 */
  const char *name; /* MASTER_ADDR */
  guint16 port;
  const char *token;
  void *data; /* of rank 0 the bytes, of others where they go */
  gsize size;
  double timeout; /* seconds */
} Job;

/* -- signatures ---------------------------------------------------------------------------------------------------- */

static gboolean
draw_number (guint8 number[NUMBER_SIZE],
             GError **error)
{
  return getrandom (number, NUMBER_SIZE, 0) == NUMBER_SIZE
         || ebb_fail (error, EBB_ERROR_PROCESS_GROUP, "the system gives no random numbers");
}

/* @answer: NULL for the guest's. */
static void
sign (const char *token,
      const Hello *hello,
      const guint8 number[NUMBER_SIZE],
      const Answer *answer,
      const void *data,
      gsize size,
      guint8 signature[SIGNATURE_SIZE])
{
  g_autoptr (GHmac) hmac = g_hmac_new (G_CHECKSUM_SHA256, (const guchar *) token, strlen (token));
  gsize length = SIGNATURE_SIZE;

  g_hmac_update (hmac, (const guchar *) hello, sizeof *hello);
  g_hmac_update (hmac, number, NUMBER_SIZE);
  if (answer != NULL)
    {
      g_hmac_update (hmac, (const guchar *) answer, offsetof (Answer, signature));
      g_hmac_update (hmac, data, (gssize) size);
    }
  g_hmac_get_digest (hmac, signature, &length);
}

/* Takes as long wherever they differ. */
static gboolean
is_same_signature (const guint8 a[SIGNATURE_SIZE],
                   const guint8 b[SIGNATURE_SIZE])
{
  guint8 difference = 0;

  for (guint i = 0; i < SIGNATURE_SIZE; i++)
    difference |= a[i] ^ b[i];
  return difference == 0;
}

static gint64
get_deadline (double seconds)
{
  return g_get_monotonic_time () + (gint64) (seconds * 1e6);
}

/* -- rank 0: one guest --------------------------------------------------------------------------------------------- */

typedef struct _Host Host;

/* Receives @in, then sends @out. */
typedef struct
{
  GSocket *socket;
  gint64 deadline;
  Hello hello;
  guint8 number[NUMBER_SIZE], signature[SIGNATURE_SIZE];
  GByteArray *answer;
  char *in;
  gsize n_in;
  const void *out;
  gsize n_out;
  enum
  {
    GREETS,
    SIGNS,
    LEAVES
  } step;
  gboolean is_given; /* the bytes: it has its rank once it leaves */
} Guest;

struct _Host
{
  const Job *job;
  guint n_missing;
  Guest **owners;  /* [n_ranks]: the guest that gets the bytes now */
  gboolean *given; /* [n_ranks] */
  GPtrArray *listeners, *guests;
  char *refused;       /* the last one, for a message */
  gboolean is_reached; /* by other machines */
};

static Guest *
guest_new (GSocket *socket)
{
  Guest *self = g_new0 (Guest, 1);

  g_socket_set_blocking (socket, FALSE);
  self->socket = socket;
  self->deadline = get_deadline (PATIENCE);
  self->in = (char *) &self->hello;
  self->n_in = sizeof self->hello;
  return self;
}

static void
guest_free (gpointer data)
{
  Guest *self = data;

  g_object_unref (self->socket);
  g_clear_pointer (&self->answer, g_byte_array_unref);
  g_free (self);
}

static Status
judge (Host *host,
       const Guest *guest,
       guint rank)
{
  guint8 expected[SIGNATURE_SIZE];

  sign (host->job->token, &guest->hello, guest->number, NULL, NULL, 0, expected);
  if (!is_same_signature (expected, guest->signature))
    return OTHER_TOKEN;
  if (GUINT32_FROM_BE (guest->hello.size) != host->job->n_ranks)
    return OTHER_SIZE;
  if (rank == 0 || rank >= host->job->n_ranks)
    return NO_RANK;
  return host->given[rank] || host->owners[rank] != NULL ? TAKEN : GIVEN;
}

static void
answer (Host *host,
        Guest *guest)
{
  static const char *const reasons[] = { "", "with another EBB_RENDEZVOUS_TOKEN", "with another WORLD_SIZE",
                                         "which there is not", "which had come before" };
  const guint rank = GUINT32_FROM_BE (guest->hello.rank);
  const Status status = judge (host, guest, rank);
  const gsize size = status == GIVEN ? host->job->size : 0;
  Answer head = { .status = GUINT32_TO_BE (status), .size = GUINT32_TO_BE (host->job->n_ranks) };

  if (status != OTHER_TOKEN)
    sign (host->job->token, &guest->hello, guest->number, &head, host->job->data, size, head.signature);
  guest->answer = g_byte_array_new ();
  g_byte_array_append (guest->answer, (const guint8 *) &head, sizeof head);
  g_byte_array_append (guest->answer, host->job->data, (guint) size);
  guest->out = guest->answer->data;
  guest->n_out = guest->answer->len;
  guest->is_given = status == GIVEN;
  if (guest->is_given)
    {
      host->owners[rank] = guest;
      guest->deadline = G_MAXINT64; /* it belongs to the job */
    }
  else
    {
      g_free (host->refused);
      host->refused = g_strdup_printf ("; a process was refused that came as rank %u, %s", rank, reasons[status]);
    }
}

/* Takes a step after all that was expected has arrived. FALSE: drop the guest. */
static gboolean
take_in (Host *host,
         Guest *guest)
{
  switch (guest->step)
    {
    case GREETS:
      if (strncmp (guest->hello.greeting, GREETING, sizeof guest->hello.greeting) != 0
          || !draw_number (guest->number, NULL))
        return FALSE;
      guest->out = guest->number;
      guest->n_out = NUMBER_SIZE;
      guest->in = (char *) guest->signature;
      guest->n_in = SIGNATURE_SIZE;
      break;
    case SIGNS:
      answer (host, guest);
      guest->in = (char *) guest->signature;
      guest->n_in = 1;
      break;
    default:
      return FALSE;
    }
  guest->step++;
  return TRUE;
}

/* Goes as far as possible without waiting. FALSE: drop the guest; *@left: it got everything and closed the connection.
 */
static gboolean
go_on (Host *host,
       Guest *guest,
       gboolean *left)
{
  g_autoptr (GError) failure = NULL;
  gssize n;

  for (;;)
    {
      if (guest->n_out > 0)
        n = g_socket_send (guest->socket, guest->out, guest->n_out, NULL, &failure);
      else
        n = g_socket_receive (guest->socket, guest->in, guest->n_in, NULL, &failure);
      if (n < 0)
        return g_error_matches (failure, G_IO_ERROR, G_IO_ERROR_WOULD_BLOCK);
      if (n == 0)
        {
          *left = guest->n_out == 0 && guest->step == LEAVES;
          return FALSE;
        }
      if (guest->n_out > 0)
        {
          guest->out = (const char *) guest->out + n;
          guest->n_out -= (gsize) n;
          continue;
        }
      guest->in += n;
      guest->n_in -= (gsize) n;
      if (guest->n_in == 0 && !take_in (host, guest))
        return FALSE;
    }
}

static void
let_out (Host *host,
         guint i,
         gboolean left)
{
  Guest *guest = host->guests->pdata[i];
  const guint rank = GUINT32_FROM_BE (guest->hello.rank);

  if (guest->is_given)
    {
      host->owners[rank] = NULL;
      host->given[rank] = left;
      host->n_missing -= left ? 1 : 0;
    }
  g_ptr_array_remove_index (host->guests, i);
}

/* -- rank 0: all of them ------------------------------------------------------------------------------------------- */

/* NULL with an error, also if the address is not this machine's. */
static GSocket *
listen_at (GInetAddress *address,
           guint16 port,
           GError **error)
{
  g_autoptr (GSocketAddress) place = g_inet_socket_address_new (address, port);
  g_autoptr (GSocket) socket =
      g_socket_new (g_inet_address_get_family (address), G_SOCKET_TYPE_STREAM, G_SOCKET_PROTOCOL_TCP, error);

  if (socket == NULL)
    return NULL;
  g_socket_set_listen_backlog (socket, 1024);
  g_socket_set_blocking (socket, FALSE);
  return g_socket_bind (socket, place, TRUE, error) && g_socket_listen (socket, error) ? g_steal_pointer (&socket)
                                                                                       : NULL;
}

/* At all addresses of the host that are this machine's. Fails if another program listens at one of them, since
 * guests would come to that program. */
static gboolean
listen_at_all (Host *self,
               GError **error)
{
  g_autoptr (GError) failure = NULL;

  for (GList *l = self->job->addresses; l != NULL; l = l->next)
    {
      GSocket *socket;

      g_clear_error (&failure);
      socket = listen_at (l->data, self->job->port, &failure);
      if (socket != NULL)
        {
          g_ptr_array_add (self->listeners, socket);
          self->is_reached = self->is_reached || !g_inet_address_get_is_loopback (l->data);
        }
      else if (g_error_matches (failure, G_IO_ERROR, G_IO_ERROR_ADDRESS_IN_USE))
        break;
    }
  return (self->listeners->len > 0 && !g_error_matches (failure, G_IO_ERROR, G_IO_ERROR_ADDRESS_IN_USE))
         || ebb_fail (error, EBB_ERROR_PROCESS_GROUP, "rank 0 can't listen at %s:%u (MASTER_ADDR, MASTER_PORT): %s",
                      self->job->name, self->job->port, failure->message);
}

static gboolean
set_missing (Host *self,
             GError **error)
{
  g_autoptr (GString) ranks = g_string_new (NULL);

  for (guint i = 1; i < self->job->n_ranks; i++)
    if (!self->given[i])
      g_string_append_printf (ranks, "%s%u", ranks->len > 0 ? ", " : "", i);
  return ebb_fail (error, EBB_ERROR_PROCESS_GROUP, "these of the %u ranks did not connect within %g s: %s%s%s",
                   self->job->n_ranks, self->job->timeout, ranks->str, self->refused != NULL ? self->refused : "",
                   self->is_reached ? ""
                                    : " (MASTER_ADDR is an address that only processes of rank 0's machine reach)");
}

/* Waits until a guest can go on, or one has stayed too long. */
static void
wait_for_any (Host *self,
              gint64 deadline)
{
  const guint n_listeners = self->listeners->len, n = n_listeners + self->guests->len;
  g_autofree GPollFD *fds = g_new0 (GPollFD, n);
  gint64 left;

  for (guint i = 0; i < n; i++)
    {
      Guest *guest = i < n_listeners ? NULL : self->guests->pdata[i - n_listeners];

      fds[i].fd = g_socket_get_fd (guest == NULL ? self->listeners->pdata[i] : guest->socket);
      fds[i].events = guest == NULL || guest->n_out == 0 ? G_IO_IN : G_IO_OUT;
      if (guest != NULL)
        deadline = MIN (deadline, guest->deadline);
    }
  left = deadline - g_get_monotonic_time ();
  g_poll (fds, n, (int) CLAMP (left / 1000 + 1, 0, 60000));
}

static void
let_out_first_stranger (Host *self)
{
  for (guint i = 0; i < self->guests->len; i++)
    if (!((Guest *) self->guests->pdata[i])->is_given)
      {
        let_out (self, i, FALSE);
        return;
      }
}

static void
let_in (Host *self)
{
  for (guint i = 0; i < self->listeners->len; i++)
    {
      g_autoptr (GError) failure = NULL;
      GSocket *socket;

      while ((socket = g_socket_accept (self->listeners->pdata[i], NULL, &failure)) != NULL)
        {
          if (self->guests->len >= self->job->n_ranks + MAX_STRANGERS)
            let_out_first_stranger (self);
          g_ptr_array_add (self->guests, guest_new (socket));
        }
      /* Without a file descriptor to spare the connection stays, and the next poll would be ready at once. */
      if (!g_error_matches (failure, G_IO_ERROR, G_IO_ERROR_WOULD_BLOCK))
        {
          let_out_first_stranger (self);
          g_usleep (10000);
        }
    }
}

static gboolean
serve (Host *self,
       GError **error)
{
  const gint64 deadline = get_deadline (self->job->timeout);

  while (self->n_missing > 0)
    {
      const gint64 now = g_get_monotonic_time ();

      if (now >= deadline)
        return set_missing (self, error);
      for (guint i = self->guests->len; i-- > 0;)
        {
          Guest *guest = self->guests->pdata[i];
          gboolean left = FALSE;

          if (!go_on (self, guest, &left) || now >= guest->deadline)
            let_out (self, i, left);
        }
      let_in (self);
      if (self->n_missing > 0)
        wait_for_any (self, deadline);
    }
  return TRUE;
}

static gboolean
give (const Job *job,
      GError **error)
{
  Host self = { .job = job,
                .n_missing = job->n_ranks - 1,
                .owners = g_new0 (Guest *, job->n_ranks),
                .given = g_new0 (gboolean, job->n_ranks),
                .listeners = g_ptr_array_new_with_free_func (g_object_unref),
                .guests = g_ptr_array_new_with_free_func (guest_free) };
  gboolean ok = listen_at_all (&self, error) && serve (&self, error);

  g_ptr_array_unref (self.guests);
  g_ptr_array_unref (self.listeners);
  g_free (self.owners);
  g_free (self.given);
  g_free (self.refused);
  return ok;
}

/* -- the others ---------------------------------------------------------------------------------------------------- */

/* Gives the next operation the rest of the time; FALSE if none is left. */
static gboolean
has_time (GSocket *socket,
          gint64 deadline)
{
  gint64 left = deadline - g_get_monotonic_time ();

  g_socket_set_timeout (socket, (guint) MAX (1, (left + 999999) / 1000000));
  return left > 0;
}

/* Sends or receives all of it. */
static gboolean
transfer (GSocket *socket,
          gboolean sends,
          gpointer data,
          gsize size,
          gint64 deadline)
{
  for (gsize n = 0; n < size;)
    {
      char *at = (char *) data + n;
      gssize moved = -1;

      if (has_time (socket, deadline))
        moved = sends ? g_socket_send (socket, at, size - n, NULL, NULL)
                      : g_socket_receive (socket, at, size - n, NULL, NULL);
      if (moved <= 0)
        return FALSE;
      n += (gsize) moved;
    }
  return TRUE;
}

/* FALSE with @error set: do not try again; without: the connection was lost. */
static gboolean
ask_once (GSocket *socket,
          const Hello *hello,
          const char *token,
          void *data,
          gsize size,
          gint64 deadline,
          GError **error)
{
  const guint rank = GUINT32_FROM_BE (hello->rank);
  g_autofree void *given = g_malloc (size);
  guint8 number[NUMBER_SIZE], signature[SIGNATURE_SIZE];
  Answer head;

  if (!transfer (socket, TRUE, (gpointer) hello, sizeof *hello, deadline)
      || !transfer (socket, FALSE, number, sizeof number, deadline))
    return FALSE;
  sign (token, hello, number, NULL, NULL, 0, signature);
  if (!transfer (socket, TRUE, signature, sizeof signature, deadline)
      || !transfer (socket, FALSE, &head, sizeof head, deadline))
    return FALSE;
  if (head.status == GUINT32_TO_BE (OTHER_TOKEN))
    return ebb_fail (error, EBB_ERROR_PROCESS_GROUP, "rank 0 has another EBB_RENDEZVOUS_TOKEN");
  if (head.status != GUINT32_TO_BE (GIVEN))
    size = 0;
  if (!transfer (socket, FALSE, given, size, deadline))
    return FALSE;
  sign (token, hello, number, &head, given, size, signature);
  if (!is_same_signature (signature, head.signature))
    return ebb_fail (error, EBB_ERROR_PROCESS_GROUP,
                     "the process that answers isn't rank 0 of this job: it doesn't know EBB_RENDEZVOUS_TOKEN");
  if (head.status == GUINT32_TO_BE (OTHER_SIZE))
    return ebb_fail (error, EBB_ERROR_PROCESS_GROUP, "WORLD_SIZE is %u here and %u on rank 0",
                     GUINT32_FROM_BE (hello->size), GUINT32_FROM_BE (head.size));
  if (head.status != GUINT32_TO_BE (GIVEN))
    return ebb_fail (error, EBB_ERROR_PROCESS_GROUP,
                     "another process has connected as rank %u; each must have its own RANK", rank);
  memcpy (data, given, size);
  return TRUE;
}

/* Tries again, since rank 0 may not listen yet. */
static gboolean
ask (const Job *job,
     GError **error)
{
  Hello hello = { .greeting = GREETING, .rank = GUINT32_TO_BE (job->rank), .size = GUINT32_TO_BE (job->n_ranks) };
  gint64 deadline = get_deadline (job->timeout);
  g_autoptr (GError) last = NULL;

  if (!draw_number (hello.number, error))
    return FALSE;
  while (g_get_monotonic_time () < deadline)
    {
      g_autoptr (GSocketClient) client = g_socket_client_new ();
      g_autoptr (GSocketConnection) connection = NULL;
      GError *refusal = NULL;

      g_clear_error (&last);
      g_socket_client_set_enable_proxy (client, FALSE);
      g_socket_client_set_timeout (client, (guint) CLAMP (job->timeout, 1, 30));
      connection = g_socket_client_connect_to_host (client, job->name, job->port, NULL, &last);
      if (connection != NULL)
        {
          if (ask_once (g_socket_connection_get_socket (connection), &hello, job->token, job->data, job->size,
                        MIN (deadline, get_deadline (30)), &refusal))
            return TRUE;
          if (refusal != NULL)
            {
              g_prefix_error (&refusal, "%s:%u (MASTER_ADDR, MASTER_PORT): ", job->name, job->port);
              g_propagate_error (error, refusal);
              return FALSE;
            }
        }
      g_usleep (50000);
    }
  return ebb_fail (error, EBB_ERROR_PROCESS_GROUP,
                   "rank 0 gave no answer at %s:%u (MASTER_ADDR, MASTER_PORT) within %g s%s%s", job->name, job->port,
                   job->timeout, last != NULL ? ": " : "", last != NULL ? last->message : "");
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
    return ebb_fail (error, EBB_ERROR_PROCESS_GROUP,
                     "%s is not set: each process needs RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or mpirun must "
                     "start it",
                     variable);
  if (!g_ascii_string_to_unsigned (text, 10, 0, max, &value, NULL))
    return ebb_fail (error, EBB_ERROR_PROCESS_GROUP, "%s is \"%s\"; a number up to %" G_GUINT64_FORMAT " is wanted",
                     variable, text, max);
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
  return *rank < *size
         || ebb_fail (error, EBB_ERROR_PROCESS_GROUP, "RANK is %u; with a WORLD_SIZE of %u it must be less", *rank,
                      *size);
}

/* Between machines a stranger could connect, so the token is required there. */
static gboolean
get_token (GList *addresses,
           const char *name,
           char **token,
           GError **error)
{
  const char *text = g_getenv ("EBB_RENDEZVOUS_TOKEN");

  *token = g_strdup (text != NULL ? text : "");
  if (**token != '\0')
    return TRUE;
  for (GList *l = addresses; l != NULL; l = l->next)
    if (!g_inet_address_get_is_loopback (l->data))
      return ebb_fail (
          error, EBB_ERROR_PROCESS_GROUP,
          "EBB_RENDEZVOUS_TOKEN is not set: where MASTER_ADDR (%s) can be reached from other machines, all "
          "ranks need the same random text, by which they know each other",
          name);
  return TRUE;
}

gboolean
ebb_rendezvous_spread (guint rank,
                       guint size,
                       void *data,
                       gsize n_bytes,
                       double timeout,
                       GError **error)
{
  const char *name = g_getenv ("MASTER_ADDR");
  g_autofree char *token = NULL;
  g_autoptr (GResolver) resolver = NULL;
  g_autoptr (GError) failure = NULL;
  GList *addresses;
  gboolean ok;
  guint port;

  if (size == 1)
    return TRUE;
  if (!get_number ("MASTER_PORT", G_MAXUINT16, &port, error))
    return FALSE;
  if (name == NULL || *name == '\0')
    return ebb_fail (error, EBB_ERROR_PROCESS_GROUP, "MASTER_ADDR is not set: it says where rank 0 runs");
  resolver = g_resolver_get_default ();
  addresses = g_resolver_lookup_by_name (resolver, name, NULL, &failure);
  if (addresses == NULL)
    return ebb_fail (error, EBB_ERROR_PROCESS_GROUP, "MASTER_ADDR is %s: %s", name, failure->message);
  ok = get_token (addresses, name, &token, error);
  if (ok)
    {
      const Job job = { rank, size, addresses, name, (guint16) port, token, data, n_bytes, timeout };

      ok = rank == 0 ? give (&job, error) : ask (&job, error);
    }
  g_resolver_free_addresses (addresses);
  return ok;
}
