/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only */
#include "dist/group/rendezvous-private.h"
#include "support/tensors.h"

#include <gio/gio.h>
#include <string.h>

/* Ranks, each a thread here, get the bytes of rank 0. */

#define N_BYTES 128

typedef struct
{
  guint rank, size;
  double timeout;
  guint8 data[N_BYTES];
  gboolean good;
  GError *error;
} Rank;

static gpointer
spread (gpointer data)
{
  Rank *rank = data;

  if (rank->rank == 0)
    for (guint i = 0; i < N_BYTES; i++)
      rank->data[i] = (guint8) (3 * i + 1);
  rank->good = ebb_rendezvous_spread (rank->rank, rank->size, rank->data, N_BYTES, rank->timeout, &rank->error);
  return NULL;
}

/* A port that was free a moment ago, below those that the kernel gives out to whoever names none. */
static guint
choose_port (void)
{
  g_autoptr (GInetAddress) any = g_inet_address_new_any (G_SOCKET_FAMILY_IPV4);
  g_autoptr (GSocket) socket = g_socket_new (G_SOCKET_FAMILY_IPV4, G_SOCKET_TYPE_STREAM, G_SOCKET_PROTOCOL_TCP, NULL);
  g_autofree char *text = NULL;
  gboolean is_free = FALSE;
  guint port = 0;

  while (!is_free)
    {
      g_autoptr (GSocketAddress) address = NULL;

      port = (guint) g_random_int_range (12000, 32000);
      address = g_inet_socket_address_new (any, (guint16) port);
      is_free = g_socket_bind (socket, address, FALSE, NULL);
    }
  text = g_strdup_printf ("%u", port);
  g_setenv ("MASTER_ADDR", "127.0.0.1", TRUE);
  g_setenv ("MASTER_PORT", text, TRUE);
  return port;
}

static void
run_ranks (Rank *ranks,
           guint n)
{
  g_autofree GThread **threads = g_new (GThread *, n);

  for (guint i = 0; i < n; i++)
    threads[i] = g_thread_new ("rank", spread, &ranks[i]);
  for (guint i = 0; i < n; i++)
    g_thread_join (threads[i]);
}

static void
test_all_get_the_same (void)
{
  /* The first to come is not rank 0. */
  Rank ranks[] = { { .rank = 3 }, { .rank = 1 }, { .rank = 0 }, { .rank = 2 } };

  choose_port ();
  for (guint i = 0; i < 4; i++)
    {
      ranks[i].size = 4;
      ranks[i].timeout = 60;
    }
  run_ranks (ranks, 4);
  for (guint i = 0; i < 4; i++)
    {
      g_assert_no_error (ranks[i].error);
      g_assert_true (ranks[i].good);
      g_assert_cmpmem (ranks[i].data, N_BYTES, ranks[2].data, N_BYTES);
    }
}

/* -- strangers ----------------------------------------------------------------------------------------------------- */

/* The first message of a process. */
typedef struct
{
  char greeting[24];
  guint32 rank, size;
  guint8 number[32];
} Hello;

/* Waits until somebody listens there. */
static GSocketConnection *
visit (guint port)
{
  g_autoptr (GSocketClient) client = g_socket_client_new ();
  GSocketConnection *connection = NULL;

  while (connection == NULL)
    connection = g_socket_client_connect_to_host (client, "127.0.0.1", (guint16) port, NULL, NULL);
  return connection;
}

static void
say (GSocketConnection *connection,
     const void *words,
     gsize size)
{
  g_output_stream_write_all (g_io_stream_get_output_stream (G_IO_STREAM (connection)), words, size, NULL, NULL, NULL);
}

/* So many that the ranks would come too late if rank 0 heard one after the other. */
static void
test_strangers_keep_nobody_waiting (void)
{
  static const char request[] = "GET / HTTP/1.0\r\n\r\nand more than any rank would ever say first";
  Rank ranks[] = { { .rank = 0, .size = 2, .timeout = 60 }, { .rank = 1, .size = 2, .timeout = 60 } };
  g_autoptr (GPtrArray) strangers = g_ptr_array_new_with_free_func (g_object_unref);
  guint port = choose_port ();
  GThread *first = g_thread_new ("rank", spread, &ranks[0]);

  for (guint i = 0; i < 300; i++)
    {
      g_ptr_array_add (strangers, visit (port));
      if (i % 3 == 1)
        say (strangers->pdata[i], "ebb-rendezvous", 14);
      else if (i % 3 == 2)
        say (strangers->pdata[i], request, sizeof request);
    }
  spread (&ranks[1]);
  g_thread_join (first);
  g_assert_no_error (ranks[0].error);
  g_assert_no_error (ranks[1].error);
  g_assert_cmpmem (ranks[1].data, N_BYTES, ranks[0].data, N_BYTES);
}

/* Who knows how ranks speak, and not the token, gets neither the bytes nor a rank, and ends nothing. */
static void
test_who_has_no_token_gets_nothing (void)
{
  static const Hello hellos[] = { { "ebb-rendezvous-2", 1, 2, { 0 } },
                                  { "ebb-rendezvous-2", 0, 2, { 0 } },
                                  { "ebb-rendezvous-2", 9, 2, { 0 } },
                                  { "ebb-rendezvous-2", 1, 7, { 0 } },
                                  { "ebb-rendezvous-1", 1, 2, { 0 } } };
  Rank ranks[] = { { .rank = 0, .size = 2, .timeout = 60 },
                   { .rank = 1, .size = 2, .timeout = 60 },
                   { .rank = 1, .size = 2, .timeout = 60 } };
  guint port = choose_port ();
  GThread *first;

  g_setenv ("EBB_RENDEZVOUS_TOKEN", "a secret", TRUE);
  first = g_thread_new ("rank", spread, &ranks[0]);
  for (guint i = 0; i < G_N_ELEMENTS (hellos); i++)
    {
      g_autoptr (GSocketConnection) connection = visit (port);
      Hello hello = hellos[i];
      char answer[1000] = { 0 };
      gsize n = 0;

      hello.rank = GUINT32_TO_BE (hello.rank);
      hello.size = GUINT32_TO_BE (hello.size);
      say (connection, &hello, sizeof hello);
      say (connection, answer, 32); /* no signature */
      g_socket_shutdown (g_socket_connection_get_socket (connection), FALSE, TRUE, NULL);
      g_input_stream_read_all (g_io_stream_get_input_stream (G_IO_STREAM (connection)), answer, sizeof answer, &n, NULL,
                               NULL);
      g_assert_cmpuint (n, <, N_BYTES);
    }
  g_setenv ("EBB_RENDEZVOUS_TOKEN", "another secret", TRUE);
  spread (&ranks[2]);
  g_assert_false (ranks[2].good);
  test_assert_error (ranks[2].error, EBB_ERROR_PROCESS_GROUP, "127.0.0.1", "rank 0 has another EBB_RENDEZVOUS_TOKEN");
  g_clear_error (&ranks[2].error);
  g_setenv ("EBB_RENDEZVOUS_TOKEN", "a secret", TRUE);
  spread (&ranks[1]);
  g_thread_join (first);
  g_unsetenv ("EBB_RENDEZVOUS_TOKEN");
  g_assert_no_error (ranks[0].error);
  g_assert_no_error (ranks[1].error);
  g_assert_cmpmem (ranks[1].data, N_BYTES, ranks[0].data, N_BYTES);
}

/* Says to the one that comes what rank 0 would, without the signature. */
static gpointer
pretend (gpointer data)
{
  g_autoptr (GSocketConnection) connection = g_socket_listener_accept (data, NULL, NULL, NULL);
  GInputStream *in = g_io_stream_get_input_stream (G_IO_STREAM (connection));
  char words[32 + 8 + 32 + N_BYTES] = { 0 }, heard[sizeof (Hello)];
  gsize n;

  g_input_stream_read_all (in, heard, sizeof heard, &n, NULL, NULL);
  say (connection, words, 32);
  g_input_stream_read_all (in, heard, 32, &n, NULL, NULL);
  say (connection, words + 32, sizeof words - 32);
  g_input_stream_read_all (in, heard, 1, &n, NULL, NULL); /* until it has gone */
  return NULL;
}

static void
test_a_stranger_is_not_rank_0 (void)
{
  Rank rank = { .rank = 1, .size = 2, .timeout = 60 };
  g_autoptr (GSocketListener) listener = g_socket_listener_new ();
  g_autofree char *port = g_strdup_printf ("%u", g_socket_listener_add_any_inet_port (listener, NULL, NULL));
  GThread *stranger = g_thread_new ("stranger", pretend, listener);

  g_setenv ("MASTER_ADDR", "127.0.0.1", TRUE);
  g_setenv ("MASTER_PORT", port, TRUE);
  g_setenv ("EBB_RENDEZVOUS_TOKEN", "a secret", TRUE);
  spread (&rank);
  g_thread_join (stranger);
  g_unsetenv ("EBB_RENDEZVOUS_TOKEN");
  g_assert_false (rank.good);
  test_assert_error (rank.error, EBB_ERROR_PROCESS_GROUP, "isn't rank 0 of this job");
  g_clear_error (&rank.error);
}

/* -- addresses ----------------------------------------------------------------------------------------------------- */

static void
test_only_the_named_address_is_listened_at (void)
{
  Rank ranks[] = { { .rank = 0, .size = 2, .timeout = 60 }, { .rank = 1, .size = 2, .timeout = 60 } };
  g_autoptr (GSocketClient) client = g_socket_client_new ();
  g_autoptr (GError) error = NULL;
  guint port = choose_port ();
  GThread *first = g_thread_new ("rank", spread, &ranks[0]);

  g_object_unref (visit (port));
  g_assert_null (g_socket_client_connect_to_host (client, "127.0.0.2", (guint16) port, NULL, &error));
  g_assert_error (error, G_IO_ERROR, G_IO_ERROR_CONNECTION_REFUSED);
  spread (&ranks[1]);
  g_thread_join (first);
  g_assert_no_error (ranks[0].error);
  g_assert_no_error (ranks[1].error);
}

static void
test_other_machines_need_a_token (void)
{
  for (guint i = 0; i < 2; i++)
    {
      Rank rank = { .rank = i, .size = 2, .timeout = 60 };

      choose_port ();
      g_setenv ("MASTER_ADDR", "192.0.2.1", TRUE); /* nobody's: RFC 5737 */
      spread (&rank);
      g_assert_false (rank.good);
      test_assert_error (rank.error, EBB_ERROR_PROCESS_GROUP, "EBB_RENDEZVOUS_TOKEN is not set", "192.0.2.1");
      g_clear_error (&rank.error);
    }
  {
    Rank rank = { .rank = 0, .size = 2, .timeout = 60 };

    g_setenv ("EBB_RENDEZVOUS_TOKEN", "a secret", TRUE);
    spread (&rank);
    g_unsetenv ("EBB_RENDEZVOUS_TOKEN");
    test_assert_error (rank.error, EBB_ERROR_PROCESS_GROUP, "rank 0 can't listen at 192.0.2.1:");
    g_clear_error (&rank.error);
  }
}

/* -- ranks that don't fit ------------------------------------------------------------------------------------------ */

static void
test_who_is_missing_is_named (void)
{
  Rank ranks[] = { { .rank = 0, .size = 4, .timeout = 1 }, { .rank = 2, .size = 4, .timeout = 1 } };

  choose_port ();
  run_ranks (ranks, 2);
  g_assert_false (ranks[0].good);
  test_assert_error (ranks[0].error, EBB_ERROR_PROCESS_GROUP, "of the 4 ranks", "1, 3", "within 1 s");
  g_clear_error (&ranks[0].error);
  g_assert_no_error (ranks[1].error);
}

static void
test_no_rank_0 (void)
{
  Rank rank = { .rank = 1, .size = 2, .timeout = 0.5 };

  choose_port ();
  spread (&rank);
  g_assert_false (rank.good);
  test_assert_error (rank.error, EBB_ERROR_PROCESS_GROUP, "rank 0 gave no answer", "127.0.0.1", "0.5 s");
  g_clear_error (&rank.error);
}

/* It is the one that hears of it; the job goes on. */
static void
test_a_process_too_many_is_refused (void)
{
  Rank ranks[] = { { .rank = 0, .size = 3, .timeout = 60 },
                   { .rank = 1, .size = 3, .timeout = 60 },
                   { .rank = 1, .size = 3, .timeout = 60 },
                   { .rank = 1, .size = 4, .timeout = 60 },
                   { .rank = 2, .size = 3, .timeout = 60 } };
  GThread *first;
  guint refused;

  choose_port ();
  first = g_thread_new ("rank", spread, &ranks[0]);
  run_ranks (ranks + 1, 3);
  g_assert_false (ranks[3].good);
  test_assert_error (ranks[3].error, EBB_ERROR_PROCESS_GROUP, "WORLD_SIZE is 4 here and 3 on rank 0");
  g_clear_error (&ranks[3].error);
  refused = ranks[1].good ? 2 : 1;
  g_assert_false (ranks[refused].good);
  test_assert_error (ranks[refused].error, EBB_ERROR_PROCESS_GROUP, "another process has connected as rank 1");
  g_clear_error (&ranks[refused].error);
  spread (&ranks[4]);
  g_thread_join (first);
  for (guint i = 0; i < G_N_ELEMENTS (ranks); i++)
    g_assert_no_error (ranks[i].error);
  g_assert_cmpmem (ranks[3 - refused].data, N_BYTES, ranks[0].data, N_BYTES);
  g_assert_cmpmem (ranks[4].data, N_BYTES, ranks[0].data, N_BYTES);
}

static void
test_environment (void)
{
  static const struct
  {
    const char *rank, *size, *word;
  } cases[] = { { "2", "2", "must be less" },
                { "-1", "2", "RANK is \"-1\"" },
                { "0", "many", "WORLD_SIZE is \"many\"" },
                { NULL, "2", "RANK is not set" },
                { "0", NULL, "WORLD_SIZE is not set" } };
  g_autoptr (GError) none = NULL;
  guint rank = 7, size = 7;

  g_unsetenv ("RANK");
  g_unsetenv ("WORLD_SIZE");
  g_assert_true (ebb_rendezvous_find_rank (&rank, &size, &none));
  g_assert_cmpuint (rank, ==, 0);
  g_assert_cmpuint (size, ==, 1);
  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_autoptr (GError) error = NULL;

      g_unsetenv ("RANK");
      g_unsetenv ("WORLD_SIZE");
      if (cases[i].rank != NULL)
        g_setenv ("RANK", cases[i].rank, TRUE);
      if (cases[i].size != NULL)
        g_setenv ("WORLD_SIZE", cases[i].size, TRUE);
      g_assert_false (ebb_rendezvous_find_rank (&rank, &size, &error));
      test_assert_error (error, EBB_ERROR_PROCESS_GROUP, cases[i].word);
    }
  g_unsetenv ("MASTER_PORT");
  {
    Rank lost = { .rank = 1, .size = 2, .timeout = 1 };

    spread (&lost);
    test_assert_error (lost.error, EBB_ERROR_PROCESS_GROUP, "MASTER_PORT is not set");
    g_clear_error (&lost.error);
  }
}

int
main (int argc,
      char **argv)
{
  g_test_init (&argc, &argv, NULL);
  g_unsetenv ("EBB_RENDEZVOUS_TOKEN");
  g_test_add_func ("/rendezvous/all-get-the-same", test_all_get_the_same);
  g_test_add_func ("/rendezvous/strangers-keep-nobody-waiting", test_strangers_keep_nobody_waiting);
  g_test_add_func ("/rendezvous/who-has-no-token-gets-nothing", test_who_has_no_token_gets_nothing);
  g_test_add_func ("/rendezvous/a-stranger-is-not-rank-0", test_a_stranger_is_not_rank_0);
  g_test_add_func ("/rendezvous/only-the-named-address-is-listened-at", test_only_the_named_address_is_listened_at);
  g_test_add_func ("/rendezvous/other-machines-need-a-token", test_other_machines_need_a_token);
  g_test_add_func ("/rendezvous/who-is-missing-is-named", test_who_is_missing_is_named);
  g_test_add_func ("/rendezvous/no-rank-0", test_no_rank_0);
  g_test_add_func ("/rendezvous/a-process-too-many-is-refused", test_a_process_too_many_is_refused);
  g_test_add_func ("/rendezvous/environment", test_environment);
  return g_test_run ();
}
