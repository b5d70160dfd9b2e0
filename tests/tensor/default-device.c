/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: cpu-only */
#include "support/device.h"
#include "support/fixtures.h"
#include "support/tensors.h"
#include "support/training.h"

#include <string.h>

/* Where things are made that nobody has said a device for; what is read of them wherever they are. */

#define SHAPE(...) (const gint64[]){ __VA_ARGS__ }, G_N_ELEMENTS (((const gint64[]){ __VA_ARGS__ }))

static EbbDevice *sim;

static void
assert_on (EbbTensor *tensor,
           EbbDevice *device)
{
  g_assert_nonnull (tensor);
  g_assert_cmpstr (ebb_device_get_name (ebb_tensor_get_device (tensor)), ==, ebb_device_get_name (device));
  ebb_tensor_unref (tensor);
}

static void
make_all (EbbDevice *asked,
          EbbDevice *expected)
{
  GError *error = NULL;

  assert_on (ebb_zeros (SHAPE (2, 3), EBB_DTYPE_F32, asked, &error), expected);
  assert_on (ebb_ones (SHAPE (2, 3), EBB_DTYPE_BOOL, asked, &error), expected);
  assert_on (ebb_full (SHAPE (2, 3), 7, EBB_DTYPE_I32, asked, &error), expected);
  assert_on (ebb_scalar (3, EBB_DTYPE_F32, asked, &error), expected);
  assert_on (ebb_arange (0, 4, 1, EBB_DTYPE_I64, asked, &error), expected);
  assert_on (ebb_rand (SHAPE (4), EBB_DTYPE_F32, asked, NULL, &error), expected);
  assert_on (ebb_randn (SHAPE (4), EBB_DTYPE_BF16, asked, NULL, &error), expected);
  assert_on (ebb_randint (0, 9, SHAPE (4), EBB_DTYPE_I64, asked, NULL, &error), expected);
  assert_on (ebb_tensor_new_empty (SHAPE (4), EBB_DTYPE_F32, asked, &error), expected);
  g_assert_no_error (error);
}

static void
makes_what_has_no_device_of_its_own (void)
{
  GError *error = NULL;
  EbbDevice *cpu = ebb_device_get_cpu ();
  const float floats[] = { 1, 2 };
  const gint64 ints[] = { 3, 4 };
  g_autoptr (GBytes) bytes = g_bytes_new (floats, sizeof floats);

  g_assert_true (ebb_get_default_device () == cpu);
  make_all (NULL, cpu);
  make_all (sim, sim);
  ebb_set_default_device (sim);
  g_assert_true (ebb_get_default_device () == sim);
  make_all (NULL, sim);
  make_all (cpu, cpu);
  assert_on (ebb_tensor_new_from_floats (floats, 2, SHAPE (2), &error), sim);
  assert_on (ebb_tensor_new_from_ints (ints, 2, SHAPE (2), &error), sim);
  assert_on (ebb_tensor_new_from_bytes (bytes, 0, SHAPE (2), EBB_DTYPE_F32, &error), cpu);
  g_assert_no_error (error);
  ebb_set_default_device (NULL);
  g_assert_true (ebb_get_default_device () == cpu);
  make_all (NULL, cpu);
}

static void *
look (void *data)
{
  return ebb_get_default_device ();
}

static void
belongs_to_the_thread (void)
{
  pthread_t thread;
  void *seen;

  ebb_set_default_device (sim);
  g_assert_cmpint (pthread_create (&thread, NULL, look, NULL), ==, 0);
  pthread_join (thread, &seen);
  g_assert_true (seen == ebb_device_get_cpu ());
  ebb_set_default_device (NULL);
}

/* -- modules ------------------------------------------------------------------------------------------------------- */

typedef EbbModule *(*Maker) (GError **error);

static EbbModule *
make_gpt (GError **error)
{
  g_autoptr (EbbGptConfig) config = ebb_gpt_config_new_preset ("tiny");

  return ebb_gpt_new (config, error);
}

static EbbModule *
make_bert (GError **error)
{
  g_autoptr (EbbBertConfig) config = ebb_bert_config_new_preset ("tiny");

  return ebb_bert_new (config, error);
}

static EbbModule *
make_linear (GError **error)
{
  return ebb_linear_new (8, 5, TRUE, error);
}

static EbbModule *
make_embedding (GError **error)
{
  return ebb_embedding_new (7, 4, error);
}

static EbbModule *
make_batch_norm (GError **error)
{
  return ebb_batch_norm1d_new (6, 1e-5, 0.1, error);
}

static EbbModule *
make_rms_norm (GError **error)
{
  return ebb_rms_norm_new (6, 1e-6, error);
}

static void
assert_same_tensors (EbbTensor **a,
                     guint n_a,
                     EbbTensor **b,
                     guint n_b)
{
  g_assert_cmpuint (n_a, ==, n_b);
  for (guint i = 0; i < n_a; i++)
    {
      g_assert_true (ebb_tensor_equal (a[i], b[i]));
      assert_on (a[i], ebb_device_get_cpu ());
      assert_on (b[i], sim);
    }
  g_free (a);
  g_free (b);
}

static void
modules_begin_with_the_same_values (gconstpointer data)
{
  const Maker make = *(const Maker *) data;
  GError *error = NULL;
  g_autoptr (EbbModule) here = NULL;
  g_autoptr (EbbModule) there = NULL;
  EbbTensor **a, **b;
  guint n_a, n_b;
  guint64 offset;

  ebb_manual_seed (5);
  here = make (&error);
  offset = ebb_generator_get_offset (ebb_generator_get_default ());
  ebb_manual_seed (5);
  ebb_set_default_device (sim);
  there = make (&error);
  ebb_set_default_device (NULL);
  g_assert_no_error (error);
  g_assert_cmpuint (ebb_generator_get_offset (ebb_generator_get_default ()), ==, offset);
  a = ebb_module_get_parameters (here, TRUE, &n_a);
  b = ebb_module_get_parameters (there, TRUE, &n_b);
  assert_same_tensors (a, n_a, b, n_b);
  a = ebb_module_get_buffers (here, TRUE, &n_a);
  b = ebb_module_get_buffers (there, TRUE, &n_b);
  assert_same_tensors (a, n_a, b, n_b);
}

static EbbTensor *
add_ones (EbbModule *self,
          EbbTensor *x,
          gpointer data,
          GError **error)
{
  g_autoptr (EbbTensor) ones = ebb_ones (SHAPE (8), EBB_DTYPE_F32, NULL, error);
  g_autoptr (EbbTensor) sum = ebb_add (x, ones, error);

  return ebb_tanh (sum, error);
}

static void
a_recompute_makes_tensors_where_the_forward_did (void)
{
  GError *error = NULL;
  g_autoptr (EbbModule) module = test_lambda1_new (add_ones, NULL);
  g_autoptr (EbbTensor) x = NULL;
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) loss = NULL;

  ebb_set_default_device (sim);
  x = test_randn (1, 3, 8, -1);
  g_assert_true (ebb_tensor_set_requires_grad (x, TRUE, &error));
  y = ebb_module_call1 (test_wrap (module, NULL), x, &error);
  loss = ebb_sum (y, NULL, 0, FALSE, &error);
  ebb_set_default_device (NULL);
  ebb_tensor_backward (loss, &error);
  g_assert_no_error (error);
  g_assert_true (ebb_get_default_device () == ebb_device_get_cpu ());
  assert_on (ebb_tensor_get_grad (x), sim);
}

/* -- reading ------------------------------------------------------------------------------------------------------- */

static void
values_are_read_wherever_they_are (void)
{
  GError *error = NULL;
  g_autoptr (EbbTensor) here = test_randn (1, 3, 5, -1);
  g_autoptr (EbbTensor) there = ebb_to_device (here, sim, &error);
  g_autoptr (EbbTensor) turned_here = ebb_transpose (here, 0, 1, &error);
  g_autoptr (EbbTensor) turned = ebb_transpose (there, 0, 1, &error);
  g_autoptr (EbbTensor) row = ebb_select (turned, 0, 2, &error);
  g_autoptr (EbbTensor) one = ebb_select (row, 0, 1, &error);
  g_autoptr (EbbTensor) nothing = ebb_zeros (SHAPE (0, 4), EBB_DTYPE_F32, sim, &error);
  g_autoptr (GBytes) bytes = ebb_tensor_get_bytes (turned, &error);
  g_autoptr (GBytes) none = ebb_tensor_get_bytes (nothing, &error);
  g_autofree char *text_here = ebb_tensor_to_string (turned_here);
  g_autofree char *text = ebb_tensor_to_string (turned);
  double item;

  g_assert_true (ebb_tensor_get_item (one, &item, &error));
  g_assert_no_error (error);
  g_assert_cmpfloat ((float) item, ==, test_at (here, 1 * 5 + 2));
  g_assert_cmpfloat (((const float *) g_bytes_get_data (bytes, NULL))[2 * 3 + 1], ==, (float) item);
  g_assert_cmpuint (g_bytes_get_size (none), ==, 0);
  g_assert_true (ebb_tensor_equal (turned, turned_here) && ebb_tensor_equal (there, here));
  g_assert_false (ebb_tensor_equal (turned, here));
  g_assert_true (g_str_has_suffix (text_here, "cpu)") && g_str_has_suffix (text, "sim)"));
  g_assert_cmpmem (text, strlen (text) - 4, text_here, strlen (text_here) - 4);
  g_assert_null (ebb_tensor_get_data (there, &error));
  test_assert_error (error, EBB_ERROR_DEVICE, "the host can't read the memory of sim");
  g_clear_error (&error);
}

/* Tensors of files and texts stay on the host. */
static void
files_and_texts_stay_on_the_cpu (void)
{
  GError *error = NULL;
  const gint64 numbers[] = { 104, 105 };
  g_autoptr (EbbTokenizer) tokenizer = ebb_byte_tokenizer_new ();
  g_autoptr (GBytes) hi = g_bytes_new_static ("hi", 2);
  g_autoptr (EbbArgs) fixture = NULL;
  g_autofree char *text = NULL;

  ebb_set_default_device (sim);
  assert_on (ebb_tokenizer_encode (tokenizer, hi, &error), ebb_device_get_cpu ());
  text = ebb_tokenizer_decode_text (tokenizer, numbers, 2, &error);
  g_assert_cmpstr (text, ==, "hi");
  fixture = test_load_fixture ("op-norms.safetensors");
  assert_on (ebb_args_get_tensor (fixture, 0), ebb_device_get_cpu ());
  g_assert_no_error (error);
  ebb_set_default_device (NULL);
}

int
main (int argc,
      char **argv)
{
  static const struct
  {
    const char *path;
    Maker make;
  } modules[] = {
    { "/default-device/modules/gpt", make_gpt },
    { "/default-device/modules/bert", make_bert },
    { "/default-device/modules/linear", make_linear },
    { "/default-device/modules/embedding", make_embedding },
    { "/default-device/modules/batch-norm", make_batch_norm },
    { "/default-device/modules/rms-norm", make_rms_norm },
  };

  g_test_init (&argc, &argv, NULL);
  sim = ebb_device_get ("sim", NULL);
  g_assert_nonnull (sim);
  for (guint i = 0; i < G_N_ELEMENTS (modules); i++)
    g_test_add_data_func (modules[i].path, &modules[i].make, modules_begin_with_the_same_values);
  g_test_add_func ("/default-device/makes-what-has-no-device-of-its-own", makes_what_has_no_device_of_its_own);
  g_test_add_func ("/default-device/belongs-to-the-thread", belongs_to_the_thread);
  g_test_add_func ("/default-device/a-recompute-makes-tensors-where-the-forward-did",
                   a_recompute_makes_tensors_where_the_forward_did);
  g_test_add_func ("/default-device/values-are-read-wherever-they-are", values_are_read_wherever_they_are);
  g_test_add_func ("/default-device/files-and-texts-stay-on-the-cpu", files_and_texts_stay_on_the_cpu);
  return g_test_run ();
}
