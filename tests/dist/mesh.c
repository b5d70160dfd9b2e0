/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/ranks.h"
#include "support/tensors.h"

#include <string.h>

static EbbMesh *
mesh_new (EbbProcessGroup *group, const char *text, gint64 a, gint64 b, gint64 c, GError **error)
{
  const gint64 sizes[] = { a, b, c };
  g_auto (GStrv) names = g_strsplit (text, " ", -1);

  return ebb_mesh_new (group, (const char *const *) names, sizes, g_strv_length (names), error);
}

/* The sum of all ranks' numbers in @group. */
static int
sum_ranks (EbbProcessGroup *group, guint rank, GError **error)
{
  const gint64 one = 1;
  const gint64 value = rank;
  g_autoptr (EbbTensor) tensor = ebb_tensor_new_from_ints (&value, 1, &one, 1, error);
  gint64 sum = -1;

  if (tensor == NULL || !ebb_process_group_all_reduce (group, tensor, EBB_REDUCE_OP_SUM, error)
      || !ebb_tensor_get_item_int (tensor, &sum, error))
    return -1;
  return (int) sum;
}

/* Ranks 0 to 5 as 3 x 2: lines along "shard" are 0 1, 2 3, 4 5, those along "data" 0 2 4 and 1 3 5. */
static gboolean
six (EbbProcessGroup *group, gpointer data, GError **error)
{
  guint rank = ebb_process_group_get_rank (group);
  g_autoptr (EbbMesh) mesh = mesh_new (group, "data shard", 3, -1, 0, error);
  g_autofree char *text = NULL;
  g_autofree char *expected = g_strdup_printf ("data=3 shard=2 at data=%u shard=%u", rank / 2, rank % 2);

  if (mesh == NULL)
    return FALSE;
  text = ebb_mesh_to_string (mesh);
  g_assert_cmpstr (text, ==, expected);
  g_assert_cmpuint (ebb_mesh_get_n_dims (mesh), ==, 2);
  g_assert_cmpuint (ebb_mesh_get_size (mesh, "data"), ==, 3);
  g_assert_cmpuint (ebb_mesh_get_size (mesh, "shard"), ==, 2);
  g_assert_cmpuint (ebb_mesh_get_coordinate (mesh, "data"), ==, rank / 2);
  g_assert_cmpuint (ebb_mesh_get_coordinate (mesh, "shard"), ==, rank % 2);
  g_assert_cmpuint (ebb_process_group_get_rank (ebb_mesh_get_group (mesh, "data")), ==, rank / 2);
  g_assert_cmpuint (ebb_process_group_get_rank (ebb_mesh_get_group (mesh, "shard")), ==, rank % 2);
  g_assert_cmpint (sum_ranks (ebb_mesh_get_group (mesh, "shard"), rank, error), ==, (int) (rank / 2 * 4 + 1));
  g_assert_cmpint (sum_ranks (ebb_mesh_get_group (mesh, "data"), rank, error), ==, rank % 2 ? 9 : 6);
  return TRUE;
}

static void
test_lines (void)
{
  test_ranks_run (6, six, NULL);
}

static gboolean
eight (EbbProcessGroup *group, gpointer data, GError **error)
{
  guint rank = ebb_process_group_get_rank (group);
  g_autoptr (EbbMesh) mesh = mesh_new (group, "data shard tensor", 2, 2, 2, error);

  if (mesh == NULL)
    return FALSE;
  g_assert_cmpint (sum_ranks (ebb_mesh_get_group (mesh, "tensor"), rank, error), ==, (int) (2 * (rank & 6) + 1));
  g_assert_cmpint (sum_ranks (ebb_mesh_get_group (mesh, "shard"), rank, error), ==, (int) (2 * (rank & 5) + 2));
  g_assert_cmpint (sum_ranks (ebb_mesh_get_group (mesh, "data"), rank, error), ==, (int) (2 * (rank & 3) + 4));
  return TRUE;
}

static void
test_three_dims (void)
{
  test_ranks_run (8, eight, NULL);
}

/* Along a dimension that has all ranks the group is the one that was given; of one rank, one alone. */
static gboolean
whole (EbbProcessGroup *group, gpointer data, GError **error)
{
  g_autoptr (EbbMesh) mesh = mesh_new (group, "data shard", 1, 2, 0, error);
  g_autoptr (GError) local = NULL;

  if (mesh == NULL)
    return FALSE;
  g_assert_true (ebb_mesh_get_group (mesh, "shard") == group);
  g_assert_cmpuint (ebb_process_group_get_size (ebb_mesh_get_group (mesh, "data")), ==, 1);
  g_assert_null (ebb_mesh_get_group (mesh, "tensor"));
  g_assert_true (ebb_mesh_find_group (mesh, "shard", &local) == group);
  g_assert_null (ebb_mesh_find_group (mesh, "shrad", &local));
  test_assert_error (local, EBB_ERROR_INVALID_ARGUMENT, "\"shrad\"", "\"data\", \"shard\"");
  g_assert_false (ebb_mesh_has_dim (mesh, "tensor"));
  g_assert_true (ebb_mesh_has_dim (mesh, "data"));
  g_assert_cmpuint (ebb_mesh_get_size (mesh, "tensor"), ==, 1);
  g_assert_cmpuint (ebb_mesh_get_coordinate (mesh, "tensor"), ==, 0);
  return TRUE;
}

static void
test_whole (void)
{
  test_ranks_run (2, whole, NULL);
}

#define ASSERT_REFUSED(text, a, b, c, ...)                                \
  G_STMT_START                                                            \
  {                                                                       \
    g_autoptr (GError) refused = NULL;                                    \
                                                                          \
    g_assert_null (mesh_new (group, (text), (a), (b), (c), &refused));    \
    test_assert_error (refused, EBB_ERROR_INVALID_ARGUMENT, __VA_ARGS__); \
  }                                                                       \
  G_STMT_END

static gboolean
wrong (EbbProcessGroup *group, gpointer data, GError **error)
{
  g_autoptr (EbbMesh) good = NULL;

  ASSERT_REFUSED ("data shard", 2, 3, 0, "data=2 shard=3", "4 ranks", "not 6");
  ASSERT_REFUSED ("data shard", 3, -1, 0, "4 ranks", "no multiple of 3");
  ASSERT_REFUSED ("data shard", -1, -1, 0, "only one size may be -1");
  ASSERT_REFUSED ("data shard", 0, 4, 0, "the size of \"data\" is 0");
  ASSERT_REFUSED ("data shard", 4, -2, 0, "the size of \"shard\" is -2");
  ASSERT_REFUSED ("data data", 2, 2, 0, "0 and 1", "\"data\"");
  ASSERT_REFUSED ("data  x", 2, 2, 1, "dimension 1");
  ASSERT_REFUSED ("data shard", G_MAXINT32, G_MAXINT32, 0, "4 ranks");
  g_assert_null (ebb_mesh_new (NULL, NULL, NULL, 0, NULL));
  /* No rank has left another waiting. */
  good = mesh_new (group, "data shard", 2, 2, 0, error);
  return good != NULL;
}

static void
test_mistakes (void)
{
  test_ranks_run (4, wrong, NULL);
}

static gboolean
disagree (EbbProcessGroup *group, gpointer data, GError **error)
{
  gint64 first = ebb_process_group_get_rank (group) == 0 ? 1 : 2;
  g_autoptr (EbbMesh) mesh = mesh_new (group, "data shard", first, -1, 0, error);

  return mesh != NULL;
}

static void
test_ranks_must_agree (void)
{
  g_autoptr (GError) error = NULL;

  g_assert_false (ebb_run_ranks (2, disagree, NULL, &error));
  test_assert_error (error, EBB_ERROR_PROCESS_GROUP, "the mesh", "data=1 shard=2", "data=2 shard=1");
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/mesh/lines", test_lines);
  g_test_add_func ("/mesh/three-dims", test_three_dims);
  g_test_add_func ("/mesh/whole", test_whole);
  g_test_add_func ("/mesh/mistakes", test_mistakes);
  g_test_add_func ("/mesh/ranks-must-agree", test_ranks_must_agree);
  return g_test_run ();
}
