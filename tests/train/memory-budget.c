/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: cpu-only */
/* Memory budgets: sizes as people write them, properties. */
#include <ebb/ebb.h>

static void
assert_parsed (const char *size, guint64 expected)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbMemoryBudget) budget = ebb_memory_budget_new_parse (size, &error);
  guint64 n_bytes = 1;

  g_assert_no_error (error);
  g_object_get (budget, "bytes", &n_bytes, NULL);
  g_assert_cmpuint (n_bytes, ==, expected);
}

static void
assert_refused (const char *size, const char *message)
{
  g_autoptr (GError) error = NULL;

  g_assert_null (ebb_memory_budget_new_parse (size, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT);
  g_assert_cmpstr (error->message, ==, message);
}

static void
test_sizes (void)
{
  assert_parsed ("1.5GiB", G_GUINT64_CONSTANT (3) << 29);
  assert_parsed ("64M", 64 << 20);
  assert_parsed ("auto", 0);
  assert_refused ("much", "memory budget: \"much\" is not a size: write bytes or a unit, as 1500000, 1500MB or 1.5GiB");
  assert_refused ("0.1", "memory budget: \"0.1\" is less than a byte: write more, or \"auto\" for all that is free");
}

static void
test_properties (void)
{
  g_autoptr (EbbMemoryBudget) budget = ebb_memory_budget_new (7);
  g_autoptr (EbbSavedTensorHooks) store = ebb_host_store_new ();
  g_autoptr (EbbSavedTensorHooks) found = NULL;
  g_autofree char *path = NULL;
  EbbConcessions allow, taken;
  EbbMemoryScope scope;
  EbbDevice *device;

  g_object_get (budget, "allow", &allow, "scope", &scope, "device", &device, "plan-file", &path, NULL);
  g_assert_cmpint (allow, ==, EBB_CONCESSIONS_NONE);
  g_assert_cmpint (scope, ==, EBB_MEMORY_SCOPE_AUTO);
  g_assert_null (device);
  g_assert_null (path);
  g_object_set (budget, "allow", EBB_CONCESSIONS_LOSS_CHUNK | EBB_CONCESSIONS_BF16_MOMENTS, "scope",
                EBB_MEMORY_SCOPE_DEVICE, "device", ebb_device_get_cpu (), "plan-file", "plan", "store", store, NULL);
  g_object_get (budget, "allow", &allow, "taken", &taken, "scope", &scope, "device", &device, "plan-file", &path,
                "store", &found, NULL);
  g_assert_cmpint (allow, ==, EBB_CONCESSIONS_LOSS_CHUNK | EBB_CONCESSIONS_BF16_MOMENTS);
  g_assert_cmpint (taken, ==, EBB_CONCESSIONS_NONE);
  g_assert_cmpint (scope, ==, EBB_MEMORY_SCOPE_DEVICE);
  g_assert_true (device == ebb_device_get_cpu ());
  g_assert_cmpstr (path, ==, "plan");
  g_assert_true (found == store);
}

int
main (int argc, char **argv)
{
  g_test_init (&argc, &argv, NULL);
  g_test_add_func ("/memory-budget/sizes", test_sizes);
  g_test_add_func ("/memory-budget/properties", test_properties);
  return g_test_run ();
}
