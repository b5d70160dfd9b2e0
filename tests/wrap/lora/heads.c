/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: cpu-only */
#include "support/model-folders.h"
#include "support/ranks.h"
#include "support/tensor-parallel.h"
#include "support/tensors.h"

/* Adapters of heads on ranks that divide the head. */

/* Writes the adapter of a head, with the head's own weight, whose last row is scaled by @last. */
static gboolean
save_head (EbbModule *model,
           const char *folder,
           double last,
           GError **error)
{
  const char *targets[] = { "lm_head", NULL };
  g_autoptr (EbbLoraOptions) options = ebb_lora_options_new ();
  g_autoptr (EbbModule) same = NULL;
  g_autofree char *path = g_build_filename (folder, "adapter_model.safetensors", NULL);
  g_autoptr (EbbTensor) weight = ebb_module_get_parameter (model, "lm_head.weight");
  g_autoptr (EbbTensor) copy = ebb_mul_scalar (weight, 1, error);
  g_autoptr (EbbArgs) tensors = NULL;
  gint64 n_rows, width;
  float *values;

  g_object_set (options, "targets", targets, NULL);
  same = ebb_lora_wrap (model, options, error);
  if (same == NULL || !ebb_lora_save (model, folder, NULL, error))
    return FALSE;
  n_rows = ebb_tensor_get_dim (copy, 0);
  width = ebb_tensor_get_dim (copy, 1);
  values = ebb_tensor_get_data (copy, error);
  for (gint64 i = 0; i < width; i++)
    values[(n_rows - 1) * width + i] *= (float) last;
  tensors = ebb_load_safetensors (path, error);
  ebb_args_add_tensor (tensors, "base_model.model.lm_head.base_layer.weight", copy);
  return ebb_save_safetensors (path, tensors, NULL, error);
}

typedef struct
{
  const char *folder;
  double last; /* of save_head () */
  gboolean is_saved;
} Head;

static gboolean
use_head (EbbProcessGroup *group,
          gpointer user_data,
          GError **error)
{
  const Head *head = user_data;
  const TestParallel settings = { .decoder = "llama2", .is_full = !head->is_saved };
  g_autoptr (EbbModule) model = test_parallel_model (&settings, error);
  g_autoptr (EbbModule) same = NULL;
  g_autoptr (GError) refused = NULL;

  if (model == NULL || !test_parallel_divide (&settings, model, group, error))
    return FALSE;
  if (!head->is_saved)
    return save_head (model, head->folder, head->last, error);
  same = ebb_lora_load (model, head->folder, NULL, head->last == 1 ? error : &refused);
  if (head->last != 1)
    test_assert_error (refused, EBB_ERROR_STATE, "lm_head.base_layer.weight is not the model's own weight");
  return (same != NULL) == (head->last == 1);
}

/* Each rank compares its rows of the head with those in the file, and a difference in one stops all. */
static void
ranks_compare_the_heads_own_weight (void)
{
  for (int last = 1; last <= 2; last++)
    {
      g_autofree char *folder = test_scratch_path ("adapter");
      Head head = { folder, last, FALSE };

      test_ranks_run (1, use_head, &head);
      head.is_saved = TRUE;
      test_ranks_run (2, use_head, &head);
      test_remove_tree (folder);
    }
}

int
main (int argc,
      char **argv)
{
  int result;

  g_test_init (&argc, &argv, NULL);
  test_scratch_begin ();
  g_test_add_func ("/lora/ranks-compare-heads", ranks_compare_the_heads_own_weight);
  result = g_test_run ();
  test_scratch_end ();
  return result;
}
