/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "dist/rendezvous-private.h"
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

/* A port that was free a moment ago. */
static guint
choose_port (void)
{
  g_autoptr (GInetAddress) any = g_inet_address_new_any (G_SOCKET_FAMILY_IPV4);
  g_autoptr (GSocketAddress) address = g_inet_socket_address_new (any, 0);
  g_autoptr (GSocket) socket = g_socket_new (G_SOCKET_FAMILY_IPV4, G_SOCKET_TYPE_STREAM, G_SOCKET_PROTOCOL_TCP, NULL);
  g_autoptr (GSocketAddress) bound = NULL;
  g_autofree char *text = NULL;
  guint port;

  g_assert_true (g_socket_bind (socket, address, FALSE, NULL));
  bound = g_socket_get_local_address (socket, NULL);
  port = g_inet_socket_address_get_port (G_INET_SOCKET_ADDRESS (bound));
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

/* Somebody else's program, which says something else or nothing. */
static gpointer
visit (gpointer data)
{
  guint port = GPOINTER_TO_UINT (data);

  for (guint i = 0; i < 2; i++)
    {
      g_autoptr (GSocketClient) client = g_socket_client_new ();
      g_autoptr (GSocketConnection) connection = NULL;

      while (connection == NULL)
        connection = g_socket_client_connect_to_host (client, "127.0.0.1", (guint16) port, NULL, NULL);
      if (i == 0)
        g_output_stream_write_all (g_io_stream_get_output_stream (G_IO_STREAM (connection)),
                                   "GET / HTTP/1.0\r\n\r\nwhatever there may be", 40, NULL, NULL, NULL);
    }
  return NULL;
}

static void
test_strangers_are_sent_away (void)
{
  Rank ranks[] = { { .rank = 0, .size = 2, .timeout = 60 }, { .rank = 1, .size = 2, .timeout = 60 } };
  guint port = choose_port ();
  GThread *stranger = g_thread_new ("stranger", visit, GUINT_TO_POINTER (port));
  GThread *first = g_thread_new ("rank", spread, &ranks[0]);

  g_thread_join (stranger);
  spread (&ranks[1]);
  g_thread_join (first);
  g_assert_no_error (ranks[0].error);
  g_assert_no_error (ranks[1].error);
  g_assert_cmpmem (ranks[1].data, N_BYTES, ranks[0].data, N_BYTES);
}

static void
test_who_is_missing_is_named (void)
{
  Rank ranks[] = { { .rank = 0, .size = 4, .timeout = 1 }, { .rank = 2, .size = 4, .timeout = 1 } };

  choose_port ();
  run_ranks (ranks, 2);
  g_assert_false (ranks[0].good);
  test_assert_error (ranks[0].error, EBB_ERROR_PROCESS_GROUP, "of 4 ranks", "1, 3", "within 1 s");
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

static void
test_two_of_one_rank (void)
{
  Rank ranks[] = { { .rank = 0, .size = 3, .timeout = 60 },
                   { .rank = 1, .size = 3, .timeout = 2 },
                   { .rank = 1, .size = 3, .timeout = 2 } };

  choose_port ();
  run_ranks (ranks, 3);
  g_assert_false (ranks[0].good);
  test_assert_error (ranks[0].error, EBB_ERROR_PROCESS_GROUP, "rank 1 of 3", "once");
  for (guint i = 0; i < 3; i++)
    g_clear_error (&ranks[i].error);
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
  g_test_add_func ("/rendezvous/all-get-the-same", test_all_get_the_same);
  g_test_add_func ("/rendezvous/strangers-are-sent-away", test_strangers_are_sent_away);
  g_test_add_func ("/rendezvous/who-is-missing-is-named", test_who_is_missing_is_named);
  g_test_add_func ("/rendezvous/no-rank-0", test_no_rank_0);
  g_test_add_func ("/rendezvous/two-of-one-rank", test_two_of_one_rank);
  g_test_add_func ("/rendezvous/environment", test_environment);
  return g_test_run ();
}
