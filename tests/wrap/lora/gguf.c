/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only */
#include "support/fixtures.h"
#include "support/gguf-files.h"
#include "support/model-folders.h"
#include "support/tensors.h"

#include <string.h>

/* Adapters as GGUF files. The Python package `gguf` wrote those in fixtures/gguf, from PEFT's in fixtures/lora. */

static const char *const rows[] = { "gpt2", "llama3" };

static char *
get_file (const char *row)
{
  g_autofree char *name = g_strdup_printf ("lora-%s.gguf", row);

  return g_test_build_filename (G_TEST_DIST, "fixtures", "gguf", name, NULL);
}

static EbbModule *
open_with (const char *row,
           const char *adapter)
{
  g_autoptr (EbbModule) model = test_model_open_fixture (row);
  g_autoptr (EbbModule) same = NULL;
  g_autoptr (GError) error = NULL;

  same = ebb_lora_load (model, adapter, NULL, &error);
  g_assert_no_error (error);
  return g_object_ref (model);
}

static EbbTensor *
compute (EbbModule *model,
         const char *row)
{
  g_autofree char *name = g_build_filename ("lora", row, "expected.safetensors", NULL);
  g_autoptr (EbbArgs) fixture = test_load_fixture (name);
  g_autoptr (EbbTensor) tokens = test_fixture_tensor (fixture, "tokens");
  g_autoptr (GError) error = NULL;
  EbbTensor *logits = ebb_module_call1 (model, tokens, &error);

  g_assert_no_error (error);
  return logits;
}

static void
a_foreign_adapter_is_the_same (void)
{
  for (guint i = 0; i < G_N_ELEMENTS (rows); i++)
    {
      g_autofree char *folder = g_test_build_filename (G_TEST_DIST, "fixtures", "lora", rows[i], NULL);
      g_autofree char *file = get_file (rows[i]);
      g_autoptr (EbbModule) a = open_with (rows[i], folder);
      g_autoptr (EbbModule) b = open_with (rows[i], file);
      g_autoptr (EbbModule) plain = test_model_open_fixture (rows[i]);
      g_autoptr (EbbTensor) x = compute (a, rows[i]);
      g_autoptr (EbbTensor) y = compute (b, rows[i]);
      g_autoptr (EbbTensor) without = compute (plain, rows[i]);

      g_assert_cmpfloat (test_relative_difference (x, y), <, 1e-6);
      g_assert_cmpfloat (test_relative_difference (without, y), >, 1e-2);
    }
}

/* What Ebb saves are the bytes of the Python package's tensors. */
static void
a_saved_adapter_has_the_same_tensors (void)
{
  for (guint i = 0; i < G_N_ELEMENTS (rows); i++)
    {
      g_autofree char *folder = g_test_build_filename (G_TEST_DIST, "fixtures", "lora", rows[i], NULL);
      g_autofree char *file = get_file (rows[i]);
      g_autofree char *saved = test_scratch_path ("adapter.gguf");
      g_autoptr (EbbModule) a = open_with (rows[i], folder);
      g_autoptr (EbbModule) b = NULL;
      g_autoptr (EbbTensor) x = compute (a, rows[i]);
      g_autoptr (EbbTensor) y = NULL;
      g_autoptr (GError) error = NULL;

      ebb_lora_save (a, saved, NULL, &error);
      g_assert_no_error (error);
      test_gguf_assert_same_tensors (saved, file);
      b = open_with (rows[i], saved);
      y = compute (b, rows[i]);
      g_assert_cmpfloat (test_relative_difference (x, y), <, 1e-6);
    }
}

static void
assert_not_loaded (const char *row,
                   const char *path,
                   const char *expected)
{
  g_autoptr (EbbModule) model = test_model_open_fixture (row);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) same = ebb_lora_load (model, path, NULL, &error);

  g_assert_null (same);
  g_assert_nonnull (error);
  g_assert_nonnull (strstr (error->message, expected));
  g_assert_null (strchr (error->message, '\n'));
  g_assert_false (ebb_lora_is_wrapped (model));
}

static void
an_adapter_of_another_model_is_refused (void)
{
  g_autofree char *gpt2 = get_file ("gpt2");
  g_autofree char *llama3 = get_file ("llama3");
  g_autofree char *model = g_test_build_filename (G_TEST_DIST, "fixtures", "gguf", "qwen3.gguf", NULL);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) opened = NULL;

  assert_not_loaded ("qwen3", llama3,
                     "general.architecture is \"llama\": for an adapter of this model it must be \"qwen3\"");
  assert_not_loaded ("qwen3", model, "general.type is \"model\"");
  assert_not_loaded ("llama2", llama3, "it must be [");
  assert_not_loaded ("bert", gpt2, "llama.cpp has no Bert");
  opened = ebb_model_open (llama3, &error);
  g_assert_null (opened);
  g_assert_nonnull (strstr (error->message, "general.type is \"adapter\": it must be \"model\"; ebb_lora_load ()"));
}

/* The fixture's adapter without one tensor. */
static void
write_without (const EbbGguf *gguf,
               const char *without,
               const char *path)
{
  EbbTensorFile *tensors = gguf->tensors;
  g_auto (EbbGgufWriter) writer = { NULL, NULL, 0, 0, 0 };
  g_autoptr (GError) error = NULL;
  EbbAtomicFile file;

  ebb_gguf_writer_init (&writer);
  ebb_gguf_writer_add_string (&writer, "general.architecture", "llama");
  ebb_gguf_writer_add_string (&writer, "general.type", "adapter");
  ebb_gguf_writer_add_string (&writer, "adapter.type", "lora");
  ebb_gguf_writer_add_f32 (&writer, "adapter.lora.alpha", 8);
  for (gsize i = 0; i < tensors->n_entries; i++)
    if (strcmp (tensors->entries[i].name, without) != 0)
      ebb_gguf_writer_add_tensor (&writer, tensors->entries[i].name, tensors->entries[i].shape, 2, EBB_GGUF_TENSOR_F32);
  g_assert_true (ebb_atomic_file_open (&file, path, &error) && ebb_gguf_writer_write_header (&writer, &file, &error));
  for (gsize i = 0; i < tensors->n_entries; i++)
    {
      const EbbTensorEntry *entry = &tensors->entries[i];
      const gint64 size = (gint64) (entry->end - entry->begin);
      g_autofree float *values = g_malloc ((gsize) size);

      if (strcmp (entry->name, without) == 0)
        continue;
      g_assert_true (ebb_tensor_file_read (tensors, entry, 0, size, values, &error)
                     && ebb_gguf_write_values (&file, EBB_GGUF_TENSOR_F32, values, size / 4, &error)
                     && ebb_gguf_write_padding (&file, EBB_GGUF_TENSOR_F32, size / 4, &error));
    }
  g_assert_true (ebb_atomic_file_commit (&file, &error));
}

static void
half_a_branch_is_refused (void)
{
  static const char *const halves[] = { "lora_a", "lora_b" };
  g_autofree char *fixture = get_file ("llama3");
  g_autoptr (EbbGguf) gguf = test_gguf_open (fixture);
  g_autofree char *path = test_scratch_path ("half.gguf");

  for (guint i = 0; i < G_N_ELEMENTS (halves); i++)
    {
      g_autofree char *name = g_strdup (gguf->tensors->entries[0].name);
      g_autofree char *expected = NULL;

      memcpy (name + strlen (name) - strlen (halves[i]), halves[i], strlen (halves[i]));
      expected = g_strdup_printf ("tensor %s is missing", name);
      write_without (gguf, name, path);
      assert_not_loaded ("llama3", path, expected);
    }
}

int
main (int argc,
      char **argv)
{
  int status;

  g_test_init (&argc, &argv, NULL);
  test_scratch_begin ();
  g_test_add_func ("/lora/gguf/a-foreign-adapter-is-the-same", a_foreign_adapter_is_the_same);
  g_test_add_func ("/lora/gguf/a-saved-adapter-has-the-same-tensors", a_saved_adapter_has_the_same_tensors);
  g_test_add_func ("/lora/gguf/an-adapter-of-another-model-is-refused", an_adapter_of_another_model_is_refused);
  g_test_add_func ("/lora/gguf/half-a-branch-is-refused", half_a_branch_is_refused);
  status = g_test_run ();
  test_scratch_end ();
  return status;
}
