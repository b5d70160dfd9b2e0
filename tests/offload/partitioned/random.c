/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/tensors.h"
#include "support/device.h"
#include "support/random-wrapping.h"
#include "support/ranks.h"

#include <string.h>

/* Random trees of modules, wrapped at random, on ranks that keep what is saved in pieces: each does what it does
 * unwrapped and alone, bit for bit. See checkpoint-random.c. */

#define N_SEEDS 200

static char *
compare_with_unwrapped (guint64 seed,
                        TestStores *stores)
{
  TestWrapping none = { .device = test_device_of_same_bits (), .stores = stores };
  TestWrapping wrapping = { .seed = seed, .device = test_device (), .stores = stores };
  TestTrace plain, wrapped;
  char *difference;

  test_trace_init (&plain);
  test_trace_init (&wrapped);
  test_program_run (seed, &none, &plain);
  test_program_run (seed, &wrapping, &wrapped);
  difference = test_trace_compare (&plain, &wrapped);
  if (difference != NULL)
    {
      char *text = g_strdup_printf ("seed %" G_GUINT64_FORMAT ": %s\n%s", seed, difference, wrapping.description->str);

      g_free (difference);
      difference = text;
    }
  test_trace_clear (&plain);
  test_trace_clear (&wrapped);
  test_wrapping_clear (&wrapping);
  return difference;
}

static guint64
count_gathers (TestStores *stores)
{
  guint64 n = 0;

  for (guint i = 0; i < TEST_N_STORES; i++)
    n += test_get_double (stores->stores[i], "n-gathers");
  return n;
}

static gboolean
run_programs (EbbProcessGroup *group,
              gpointer user_data,
              GError **error)
{
  TestStores stores = { .group = group };

  test_stores_open (&stores);
  for (guint64 seed = 1; seed <= N_SEEDS; seed++)
    {
      g_autofree char *difference = compare_with_unwrapped (seed, &stores);

      if (difference == NULL)
        continue;
      g_set_error (error, EBB_ERROR, EBB_ERROR_CALLBACK, "%s", difference);
      return FALSE;
    }
  g_assert_cmpuint (count_gathers (&stores), >, N_SEEDS);
  test_stores_close (&stores);
  return TRUE;
}

static void
ranks_do_what_each_does_alone (gconstpointer data)
{
  test_ranks_run (GPOINTER_TO_UINT (data), run_programs, NULL);
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_get_tmp_dir (); /* made once, before there are threads */
  g_test_add_data_func ("/partitioned/random-trees/2-ranks", GUINT_TO_POINTER (2), ranks_do_what_each_does_alone);
  g_test_add_data_func ("/partitioned/random-trees/3-ranks", GUINT_TO_POINTER (3), ranks_do_what_each_does_alone);
  return g_test_run ();
}
