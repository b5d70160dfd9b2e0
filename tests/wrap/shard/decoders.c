/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers */
#include "support/tensor-parallel.h"

#include "support/decoders.h"
#include "support/device.h"

/* Decoders of every kind on two replicas that have the same rows: the mean of two equal gradients is the gradient. */

static gboolean
replicate (const TestParallel *self, EbbModule *model, EbbProcessGroup *group, GError **error)
{
  g_autoptr (EbbModule) same = ebb_replicate (model, group, NULL, error);

  return same != NULL;
}

static void
replicas_train_alike (gconstpointer data)
{
  TestParallel settings = { .decoder = data, .is_full = TRUE, .has_documents = TRUE };
  g_autoptr (TestParallelResult) expected = test_parallel_run (&settings);
  g_autoptr (TestParallelResult) result = NULL;

  settings.n_ranks = 2;
  settings.prepare = replicate;
  result = test_parallel_run (&settings);
  test_parallel_assert_same (result, expected);
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  for (guint i = 0; test_decoder_names[i] != NULL; i++)
    {
      g_autofree char *path = g_strdup_printf ("/replicated-decoders/%s", test_decoder_names[i]);

      g_test_add_data_func (path, test_decoder_names[i], replicas_train_alike);
    }
  return g_test_run ();
}
