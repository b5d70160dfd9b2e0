/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only */
#include "offload/host/pool-private.h"
#include "support/stores.h"
#include "support/tensors.h"
#include "tensor/backend/backend-private.h"

/* How much host memory the host store takes: its own limit, which may change while somebody waits, and the CPU's. */

#define SIZE ((guint64) 4096 * 4)

static EbbDevice *sim;

static EbbActivationStore *
new_store (guint64 limit)
{
  EbbActivationStore *store = EBB_ACTIVATION_STORE (ebb_host_store_new ());

  g_object_set (store, "least-size", (guint64) 1, NULL);
  g_object_set (store, "byte-limit", (guint64) limit, NULL);
  return store;
}

static EbbTensor *
new_tensor (gint64 n_elements)
{
  return ebb_zeros (&n_elements, 1, EBB_DTYPE_F32, sim, NULL);
}

static EbbHandle *
try_pack (EbbActivationStore *store,
          gint64 n_elements,
          GError **error)
{
  g_autoptr (EbbTensor) tensor = new_tensor (n_elements);

  return ebb_saved_tensor_hooks_pack (EBB_SAVED_TENSOR_HOOKS (store), tensor, error);
}

/* A dry run between steps, which has memory of its own, leaves the buffers that the steps will use again. */
static void
a_dry_run_leaves_the_buffers_of_steps (void)
{
  g_autoptr (EbbActivationStore) store = new_store (2 * SIZE);
  g_autoptr (GError) error = NULL;

  ebb_handle_unref (try_pack (store, SIZE / 4, &error));
  g_assert_cmpuint (ebb_host_store_get_bytes_reserved (EBB_HOST_STORE (store)), ==, SIZE);
  ebb_push_dry_run ();
  for (guint i = 0; i < 2; i++)
    {
      ebb_handle_unref (try_pack (store, (gint64) SIZE / 4 * (2 - i), &error));
      g_assert_no_error (error);
    }
  g_assert_true (ebb_host_store_trim (EBB_HOST_STORE (store), &error));
  ebb_pop_dry_run ();
  g_assert_cmpuint (ebb_host_store_get_bytes_reserved (EBB_HOST_STORE (store)), ==, SIZE);
  ebb_handle_unref (try_pack (store, SIZE / 4, &error));
  g_assert_no_error (error);
  g_assert_cmpuint (ebb_host_store_get_bytes_reserved (EBB_HOST_STORE (store)), ==, SIZE);
}

typedef struct
{
  EbbActivationStore *store;
  gint has_packed, may_end; /* atomic */
} Holder;

static gpointer
hold (gpointer data)
{
  Holder *self = data;
  g_autoptr (EbbHandle) handle = try_pack (self->store, SIZE / 4, NULL);

  g_assert_nonnull (handle);
  g_atomic_int_set (&self->has_packed, TRUE);
  while (!g_atomic_int_get (&self->may_end))
    g_thread_yield ();
  return NULL;
}

/* Somebody could give all there is, and it would be no good. */
static void
what_is_larger_than_the_limit_is_refused_at_once (void)
{
  Holder holder = { new_store (SIZE), FALSE, FALSE };
  GThread *thread = g_thread_new (NULL, hold, &holder);
  g_autoptr (GError) error = NULL;

  while (!g_atomic_int_get (&holder.has_packed))
    g_thread_yield ();
  g_object_set (holder.store, "patience", (double) 1e6, NULL);
  g_assert_null (try_pack (holder.store, SIZE / 4 + 1, &error));
  test_assert_error (error, EBB_ERROR_NO_MEMORY, "16388 bytes", "larger than the limit");
  g_atomic_int_set (&holder.may_end, TRUE);
  g_thread_join (thread);
  g_object_unref (holder.store);
}

static gpointer
raise_limit (gpointer data)
{
  for (guint i = 0; i < 1000; i++)
    g_thread_yield ();
  g_object_set (data, "byte-limit", (guint64) (2 * SIZE), NULL);
  return NULL;
}

/* The other thread gives nothing back before this one has got something. */
static void
who_waits_sees_a_limit_that_is_raised (void)
{
  Holder holder = { new_store (SIZE), FALSE, FALSE };
  GThread *thread = g_thread_new (NULL, hold, &holder), *other;
  g_autoptr (EbbHandle) handle = NULL;
  g_autoptr (GError) error = NULL;

  while (!g_atomic_int_get (&holder.has_packed))
    g_thread_yield ();
  other = g_thread_new (NULL, raise_limit, holder.store);
  handle = try_pack (holder.store, SIZE / 4, &error);
  g_assert_no_error (error);
  g_atomic_int_set (&holder.may_end, TRUE);
  g_thread_join (thread);
  g_thread_join (other);
  g_clear_pointer (&handle, ebb_handle_unref);
  g_object_unref (holder.store);
}

static void
the_limit_of_the_cpu_holds_for_pinned_memory (void)
{
  g_autoptr (EbbActivationStore) store = new_store (G_MAXUINT64);
  g_autoptr (EbbActivationStore) other = new_store (G_MAXUINT64);
  g_autoptr (EbbHandle) a = NULL;
  g_autoptr (EbbHandle) b = NULL;
  g_autoptr (GError) error = NULL;

  ebb_memory_set_limit (NULL, test_bytes_in_use () + 2 * SIZE);
  a = try_pack (store, SIZE / 4, &error);
  g_assert_no_error (error);
  g_assert_null (try_pack (store, SIZE / 2, &error));
  test_assert_error (error, EBB_ERROR_NO_MEMORY, "on cpu", "32768 bytes", "activations 16384");
  g_clear_error (&error);
  /* Cached memory counts too and is given up for new tensors, whichever store caches it. */
  g_clear_pointer (&a, ebb_handle_unref);
  g_assert_cmpuint (ebb_host_store_get_bytes_reserved (EBB_HOST_STORE (store)), ==, SIZE);
  b = try_pack (other, SIZE / 2, &error);
  g_assert_no_error (error);
  g_assert_cmpuint (ebb_host_store_get_bytes_reserved (EBB_HOST_STORE (store)), ==, 0);
  g_assert_null (try_pack (store, SIZE / 4, &error));
  test_assert_error (error, EBB_ERROR_NO_MEMORY, "on cpu", "0 of");
  ebb_memory_set_limit (NULL, G_MAXUINT64);
}

static void
what_is_kept_makes_room_below_the_limit (void)
{
  g_autoptr (EbbActivationStore) store = new_store (2 * SIZE);
  g_autoptr (EbbHandle) a = try_pack (store, SIZE / 4, NULL);
  g_autoptr (EbbHandle) b = try_pack (store, SIZE / 4, NULL);
  g_autoptr (EbbHandle) c = NULL;
  g_autoptr (GError) error = NULL;

  g_clear_pointer (&a, ebb_handle_unref);
  g_clear_pointer (&b, ebb_handle_unref);
  g_assert_cmpuint (ebb_host_store_get_bytes_reserved (EBB_HOST_STORE (store)), ==, 2 * SIZE);
  c = try_pack (store, SIZE / 2, &error);
  g_assert_no_error (error);
  g_assert_cmpuint (ebb_host_store_get_bytes_reserved (EBB_HOST_STORE (store)), ==, 2 * SIZE);
}

/* A larger one would be missing where it is needed. */
static void
the_smallest_kept_block_that_fits_is_used (void)
{
  static const gsize kept[] = { 40, 48, 44, 36 }; /* pages, in the order in which they are given back */
  static const struct
  {
    gsize wanted, got;
  } cases[] = { { 41, 44 }, { 39, 40 }, { 42, 48 }, { 36, 36 } };
  EbbHostPool *pool = ebb_host_pool_new ();
  EbbHostBuffer *blocks[G_N_ELEMENTS (kept)];
  double waited = 0;

  for (guint i = 0; i < G_N_ELEMENTS (kept); i++)
    blocks[i] = ebb_host_pool_take (pool, sim, 4096 * kept[i], &waited, NULL);
  for (guint i = 0; i < G_N_ELEMENTS (kept); i++)
    ebb_host_buffer_unref (blocks[i]);
  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      blocks[i] = ebb_host_pool_take (pool, sim, 4096 * cases[i].wanted, &waited, NULL);
      g_assert_cmpuint (blocks[i]->size, ==, 4096 * cases[i].got);
    }
  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    ebb_host_buffer_unref (blocks[i]);
  ebb_host_pool_free (pool);
}

/* -- what is kept -------------------------------------------------------------------------------------------------- */

#define MIB ((gsize) 1 << 20)
#define N_BUFFERS 10

/* Takes buffers as a step does, of @least to @most bytes, and gives them back. @top: the most
 * bytes that earlier steps had at one time. What the pool has never exceeds the most by more than is promised. Returns
 * the most. */
static guint64
take_step (EbbHostPool *pool,
           GRand *rand,
           gsize least,
           gsize most,
           guint64 top)
{
  EbbHostBuffer *buffers[N_BUFFERS];
  guint64 asked = 0, in_use, kept;
  double waited = 0;

  for (guint i = 0; i < N_BUFFERS; i++)
    {
      const gsize size = (gsize) g_rand_double_range (rand, (double) least, (double) most);

      buffers[i] = ebb_host_pool_take (pool, sim, size, &waited, NULL);
      g_assert_nonnull (buffers[i]);
      asked += size;
      top = MAX (top, asked);
      ebb_host_pool_get_bytes (pool, &in_use, &kept);
      g_assert_cmpuint (in_use + kept, <=, MAX (top + 96 * MIB, top + top / 20));
    }
  for (guint i = N_BUFFERS; i > 0; i--)
    ebb_host_buffer_unref (buffers[i - 1]);
  return top;
}

/* Nothing is copied, so the system has nothing to give. */
static void
sizes_that_differ_do_not_add_up (void)
{
  static const gsize largest[] = { 8, 40, 300 }; /* MiB */

  for (guint i = 0; i < G_N_ELEMENTS (largest); i++)
    {
      EbbHostPool *pool = ebb_host_pool_new ();
      g_autoptr (GRand) rand = g_rand_new_with_seed (3);
      guint64 top = 0, in_use, kept;

      for (guint k = 0; k < 60; k++)
        {
          const gsize size = (gsize) (g_rand_double_range (rand, 0.1, 1) * (double) (largest[i] * MIB));

          top = take_step (pool, rand, size, size + (k % 2) * size / 2 + 1, top);
        }
      g_assert_true (ebb_host_pool_trim (pool, NULL));
      ebb_host_pool_get_bytes (pool, &in_use, &kept);
      g_assert_cmpuint (in_use + kept, ==, 0);
      take_step (pool, rand, MIB, 2 * MIB, 0); /* what was held before the trim doesn't count any more */
      ebb_host_pool_free (pool);
    }
}

static void
steps_whose_sizes_repeat_take_nothing (void)
{
  static const gsize sizes[] = { 9, 3, 6 }; /* MiB; together hardly more than the largest step and what is spare */
  EbbHostPool *pool = ebb_host_pool_new ();
  g_autoptr (GRand) rand = g_rand_new_with_seed (3);

  for (guint k = 0; k < 8; k++)
    {
      if (k == 2)
        sim->backend->fail (sim->index, EBB_FAILURE_ALLOC_HOST, 1);
      for (guint i = 0; i < G_N_ELEMENTS (sizes); i++)
        take_step (pool, rand, sizes[i] * MIB, sizes[i] * MIB + 1, N_BUFFERS * 9 * MIB);
    }
  g_assert_cmpuint (sim->backend->fail (sim->index, EBB_FAILURE_ALLOC_HOST, 0), ==, 1);
  ebb_host_pool_free (pool);
}

/* -- settings ------------------------------------------------------------------------------------------------------ */

#define N_SETTINGS 20000

static gpointer
set_byte_limit (gpointer data)
{
  for (guint i = 1; i <= N_SETTINGS; i++)
    {
      g_object_set (data, "byte-limit", (guint64) i, NULL);
      g_assert_cmpuint (test_get_double (data, "byte-limit"), ==, i);
    }
  return NULL;
}

static gpointer
set_when_full (gpointer data)
{
  for (guint i = 0; i < N_SETTINGS; i++)
    {
      EbbWhenFull when_full;

      g_object_set (data, "when-full", i % 2 ? EBB_WHEN_FULL_SPILL : EBB_WHEN_FULL_ERROR, NULL);
      g_object_get (data, "when-full", &when_full, NULL);
      g_assert_cmpint (when_full, ==, i % 2 ? EBB_WHEN_FULL_SPILL : EBB_WHEN_FULL_ERROR);
    }
  return NULL;
}

static gpointer
set_patience (gpointer data)
{
  for (guint i = 1; i <= N_SETTINGS; i++)
    {
      g_object_set (data, "patience", (double) i, NULL);
      g_assert_cmpfloat (test_get_double (data, "patience"), ==, i);
    }
  return NULL;
}

static void
threads_may_each_change_a_setting (void)
{
  g_autoptr (EbbActivationStore) store = new_store (SIZE);
  const GThreadFunc setters[] = { set_byte_limit, set_when_full, set_patience };
  GThread *threads[G_N_ELEMENTS (setters)];

  for (guint i = 0; i < G_N_ELEMENTS (setters); i++)
    threads[i] = g_thread_new (NULL, setters[i], store);
  for (guint i = 0; i < G_N_ELEMENTS (setters); i++)
    g_thread_join (threads[i]);
}

int
main (int argc, char **argv)
{
  GError *error = NULL;

  g_test_init (&argc, &argv, NULL);
  g_setenv ("EBB_SIM_MEMORY", "64M", TRUE);
  sim = ebb_device_get ("sim", &error);
  g_assert_no_error (error);
  g_test_add_func ("/host-limits/what-is-larger-than-the-limit-is-refused-at-once",
                   what_is_larger_than_the_limit_is_refused_at_once);
  g_test_add_func ("/host-limits/what-is-kept-makes-room", what_is_kept_makes_room_below_the_limit);
  g_test_add_func ("/host-limits/a-dry-run-leaves-the-buffers-of-steps", a_dry_run_leaves_the_buffers_of_steps);
  g_test_add_func ("/host-limits/the-smallest-kept-block-that-fits-is-used",
                   the_smallest_kept_block_that_fits_is_used);
  g_test_add_func ("/host-limits/sizes-that-differ-do-not-add-up", sizes_that_differ_do_not_add_up);
  g_test_add_func ("/host-limits/steps-whose-sizes-repeat-take-nothing", steps_whose_sizes_repeat_take_nothing);
  g_test_add_func ("/host-limits/threads-may-each-change-a-setting", threads_may_each_change_a_setting);
  g_test_add_func ("/host-limits/who-waits-sees-a-limit-that-is-raised", who_waits_sees_a_limit_that_is_raised);
  g_test_add_func ("/host-limits/the-limit-of-the-cpu-holds-for-pinned-memory",
                   the_limit_of_the_cpu_holds_for_pinned_memory);
  return g_test_run ();
}
