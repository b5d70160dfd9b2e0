/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/architectures.h"

#include <math.h>
#include <string.h>

#include <glib/gstdio.h>

#include "support/device.h"
#include "support/fixtures.h"
#include "support/tensors.h"

/* clang-format off */
#define EPS { "epsilon", "\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": 1e-06" }
#define THETA(value, wrong) { "theta", "\"rope_theta\": " value, "\"rope_theta\": " wrong }
#define WINDOW(value, wrong) { "window", "\"sliding_window\": " value, "\"sliding_window\": " wrong }
#define FACTOR(value, wrong) { "factor", "\"factor\": " value, "\"factor\": " wrong }
#define SCALE { "scale", "\"query_pre_attn_scalar\": 12", "\"query_pre_attn_scalar\": 8" }

const TestArchitecture test_architectures[] = {
  { "gpt2", FALSE,
    { { "epsilon", "\"layer_norm_epsilon\": 1e-05", "\"layer_norm_epsilon\": 1e-06" },
      { "activation", "\"gelu_new\"", "\"gelu\"" } } },
  { "bert", TRUE,
    { { "epsilon", "\"layer_norm_eps\": 1e-05", "\"layer_norm_eps\": 1e-06" },
      { "number of heads", "\"num_attention_heads\": 4", "\"num_attention_heads\": 2" } } },
  { "llama2", FALSE, { EPS, THETA ("10000.0", "10200.0") } },
  { "llama3", FALSE,
    { EPS, THETA ("500000.0", "510000.0"), FACTOR ("8.0", "8.8"),
      { "high_freq_factor", "\"high_freq_factor\": 4.0", "\"high_freq_factor\": 4.4" } } },
  { "mistral", FALSE, { EPS, THETA ("10000.0", "10200.0"), WINDOW ("5", "6") } },
  { "qwen2", FALSE, { EPS, THETA ("1000000.0", "1020000.0"), WINDOW ("7", "6") } },
  { "qwen3", FALSE, { EPS, THETA ("1000000.0", "1020000.0") } },
  { "gemma2", FALSE,
    { EPS, THETA ("10000.0", "10200.0"), WINDOW ("6", "5"), SCALE,
      { "cap of scores", "\"attn_logit_softcapping\": 3.0", "\"attn_logit_softcapping\": 3.3" },
      { "cap of logits", "\"final_logit_softcapping\": 4.0", "\"final_logit_softcapping\": 4.4" },
      { "activation", "\"gelu_pytorch_tanh\"", "\"gelu\"" } } },
  { "gemma3", FALSE,
    { EPS, THETA ("1000000.0", "1200000.0"), THETA ("10000.0", "10200.0"), WINDOW ("6", "5"), FACTOR ("8.0", "8.8"),
      SCALE } },
  { "phi3", FALSE, { EPS, THETA ("10000.0", "10200.0"), WINDOW ("5", "6") } },
  { "smollm", FALSE, { EPS, THETA ("100000.0", "102000.0") } },
  { "llama-linear", FALSE, { EPS, THETA ("10000.0", "10200.0"), FACTOR ("2.5", "2.75") } },
  { "llama-dynamic", FALSE, { EPS, THETA ("10000.0", "10200.0"), FACTOR ("3.0", "3.3") } },
  { "qwen2-yarn", FALSE, { EPS, THETA ("10000.0", "10200.0"), FACTOR ("3.0", "3.3") } },
  { "llama-yarn", FALSE,
    { EPS, FACTOR ("3.0", "3.3"), { "beta_fast", "\"beta_fast\": 1.0", "\"beta_fast\": 1.3" },
      { "beta_slow", "\"beta_slow\": 0.1", "\"beta_slow\": 0.13" },
      { "mscale", "\"mscale\": 1.5", "\"mscale\": 1.95" } } },
  { "phi3-longrope", FALSE, { EPS, THETA ("10000.0", "10200.0"), { "a factor", "2.2", "2.42" } } },
};
/* clang-format on */
const guint test_n_architectures = G_N_ELEMENTS (test_architectures);

void
test_add_architecture (const char *path, const TestArchitecture *self, GTestDataFunc func)
{
  g_autofree char *full = g_strdup_printf ("%s/%s", path, self->name);

  g_test_add_data_func (full, self, func);
}

void
test_add_architectures (const char *path, GTestDataFunc func)
{
  for (guint i = 0; i < test_n_architectures; i++)
    test_add_architecture (path, &test_architectures[i], func);
}

/* -- folders ------------------------------------------------------------------------------------------------------- */

char *
test_architecture_get_folder (const TestArchitecture *self)
{
  return g_test_build_filename (G_TEST_DIST, "fixtures", "models", self->name, NULL);
}

char *
test_architecture_read (const TestArchitecture *self, const char *file)
{
  g_autofree char *folder = test_architecture_get_folder (self);
  g_autofree char *path = g_build_filename (folder, file, NULL);
  char *text = NULL;

  g_file_get_contents (path, &text, NULL, NULL);
  return text;
}

char *
test_architecture_copy_folder (const TestArchitecture *self, const char *config)
{
  g_autofree char *source = test_architecture_get_folder (self);
  g_autoptr (GError) error = NULL;
  char *folder = g_dir_make_tmp ("ebb-model-XXXXXX", &error);
  g_autoptr (GDir) dir = g_dir_open (source, 0, &error);

  g_assert_no_error (error);
  for (const char *name = g_dir_read_name (dir); name != NULL; name = g_dir_read_name (dir))
    {
      g_autofree char *from = g_build_filename (source, name, NULL);
      g_autofree char *to = g_build_filename (folder, name, NULL);
      g_autofree char *bytes = NULL;
      gsize length;

      if (g_str_has_prefix (name, "config") || g_str_has_prefix (name, "expected"))
        continue;
      g_assert_true (g_file_get_contents (from, &bytes, &length, &error));
      g_assert_true (g_file_set_contents (to, bytes, (gssize) length, &error));
    }
  g_autofree char *path = g_build_filename (folder, "config.json", NULL);
  g_assert_true (g_file_set_contents (path, config, -1, &error));
  return folder;
}

void
test_architecture_remove_folder (const char *folder)
{
  g_autoptr (GDir) dir = g_dir_open (folder, 0, NULL);

  for (const char *name = g_dir_read_name (dir); name != NULL; name = g_dir_read_name (dir))
    {
      g_autofree char *path = g_build_filename (folder, name, NULL);

      g_unlink (path);
    }
  g_rmdir (folder);
}

EbbModule *
test_architecture_open_folder (const char *folder)
{
  g_autoptr (GError) error = NULL;
  EbbModule *model = ebb_model_open (folder, &error);

  g_assert_no_error (error);
  g_assert_true (ebb_module_to_dtype (model, EBB_DTYPE_F32, &error));
  ebb_module_set_training (model, TRUE);
  return model;
}

EbbModule *
test_architecture_open (const TestArchitecture *self)
{
  g_autofree char *folder = test_architecture_get_folder (self);

  return test_architecture_open_folder (folder);
}

EbbArgs *
test_architecture_load_expected (const TestArchitecture *self)
{
  g_autofree char *name = g_build_filename ("models", self->name, "expected.safetensors", NULL);

  return test_load_fixture (name);
}

/* -- what a model computes ----------------------------------------------------------------------------------------- */

static EbbTensor *
get_batch (EbbArgs *expected, const char *name, guint batch)
{
  g_autoptr (EbbTensor) all = ebb_args_find (expected, name) < 0 ? NULL : test_fixture_tensor (expected, "%s", name);

  return all == NULL ? NULL : ebb_select (all, 0, batch, NULL);
}

EbbTensor *
test_architecture_logits (EbbModule *model, EbbArgs *expected, guint batch, GError **error)
{
  static const char *const others[] = { "segments", "mask" };
  g_autoptr (EbbTensor) tokens = get_batch (expected, "tokens", batch);
  g_autoptr (EbbArgs) args = ebb_args_new (EBB_ARGS_TUPLE);
  g_autoptr (EbbArgs) result = NULL;

  ebb_args_add_tensor (args, NULL, tokens);
  for (guint i = 0; i < G_N_ELEMENTS (others); i++)
    {
      g_autoptr (EbbTensor) other = get_batch (expected, others[i], batch);

      if (other != NULL)
        ebb_args_add_tensor (args, others[i], other);
    }
  result = ebb_module_call (model, args, error);
  return result == NULL ? NULL : ebb_args_get_tensor (result, 0);
}

EbbTensor *
test_architecture_loss (EbbModule *model, EbbArgs *expected, guint batch, GError **error)
{
  g_autoptr (EbbTensor) tokens = get_batch (expected, "tokens", batch);
  g_autoptr (EbbTensor) targets = get_batch (expected, "targets", batch);
  g_autoptr (EbbTensor) segments = get_batch (expected, "segments", batch);
  g_autoptr (EbbTensor) mask = get_batch (expected, "mask", batch);

  if (EBB_IS_BERT (model))
    return ebb_bert_loss (EBB_BERT (model), tokens, segments, mask, targets, error);
  return ebb_gpt_loss (EBB_GPT (model), tokens, targets, error);
}

EbbOptimizer *
test_architecture_optimizer (EbbModule *model, GError **error)
{
  return ebb_adamw_new (model, 1e-3, error);
}

gboolean
test_architecture_train (EbbModule *model,
                         EbbOptimizer *optimizer,
                         EbbArgs *expected,
                         guint n,
                         double *losses,
                         GError **error)
{
  for (guint step = 0; step < n; step++)
    {
      g_autoptr (EbbTensor) loss =
          test_architecture_loss (model, expected, step % TEST_ARCHITECTURE_BATCHES, error);

      if (loss == NULL || !ebb_tensor_get_item (loss, &losses[step], error) || !ebb_tensor_backward (loss, error)
          || !ebb_optimizer_step (optimizer, error))
        return FALSE;
      ebb_optimizer_zero_grad (optimizer);
    }
  return TRUE;
}

/* -- comparing gradients by published names ------------------------------------------------------------------------ */

static const struct
{
  const char *own, *published;
  int third; /* of the rows of queries, keys and values; -1: all */
} bert_names[] = {
  { "word_embeddings", "bert.embeddings.word_embeddings", -1 },
  { "position_embeddings", "bert.embeddings.position_embeddings", -1 },
  { "segment_embeddings", "bert.embeddings.token_type_embeddings", -1 },
  { "embeddings_norm", "bert.embeddings.LayerNorm", -1 },
  { "transform", "cls.predictions.transform.dense", -1 },
  { "transform_norm", "cls.predictions.transform.LayerNorm", -1 },
  { "attn.c_attn", "attention.self.query", 0 },
  { "attn.c_attn", "attention.self.key", 1 },
  { "attn.c_attn", "attention.self.value", 2 },
  { "attn.c_proj", "attention.output.dense", -1 },
  { "ln_1", "attention.output.LayerNorm", -1 },
  { "mlp.c_fc", "intermediate.dense", -1 },
  { "mlp.c_proj", "output.dense", -1 },
  { "ln_2", "output.LayerNorm", -1 },
};

static EbbTensor *
get_gradient (EbbModule *model, const char *name)
{
  g_autoptr (EbbTensor) parameter = ebb_module_get_parameter (model, name);
  EbbTensor *gradient = parameter == NULL ? NULL : ebb_tensor_get_grad (parameter);

  if (gradient == NULL)
    g_error ("there is no gradient of %s", name);
  return gradient;
}

static EbbTensor *
get_bert_gradient (EbbModule *model, const char *published)
{
  static const char blocks[] = "bert.encoder.layer.";
  g_autofree char *prefix = g_strdup ("");
  const char *rest = published;

  if (g_str_equal (published, "cls.predictions.bias"))
    return get_gradient (model, "output_bias");
  if (g_str_has_prefix (published, blocks))
    {
      const char *dot = strchr (published + strlen (blocks), '.');

      g_free (prefix);
      prefix = g_strdup_printf ("layer.%.*s.", (int) (dot - published - (gssize) strlen (blocks)),
                                published + strlen (blocks));
      rest = dot + 1;
    }
  for (guint i = 0; i < G_N_ELEMENTS (bert_names); i++)
    {
      const gsize length = strlen (bert_names[i].published);
      g_autofree char *own = NULL;
      g_autoptr (EbbTensor) gradient = NULL;
      gint64 rows;

      if (strncmp (rest, bert_names[i].published, length) != 0 || rest[length] != '.')
        continue;
      own = g_strconcat (prefix, bert_names[i].own, rest + length, NULL);
      gradient = get_gradient (model, own);
      rows = ebb_tensor_get_dim (gradient, 0) / 3;
      return bert_names[i].third < 0 ? g_steal_pointer (&gradient)
                                     : ebb_narrow (gradient, 0, rows * bert_names[i].third, rows, NULL);
    }
  g_error ("%s has no own name", published);
}

/* Of parameters that the folder has as one. */
static EbbTensor *
get_joined_gradient (EbbModule *model, const char *name, const char *joined, const char *const *parts)
{
  const char *place = strstr (name, joined);
  EbbTensor *gradients[3] = { NULL };
  EbbTensor *whole;
  guint n = 0;

  for (; parts[n] != NULL; n++)
    {
      g_autofree char *own =
          g_strdup_printf ("%.*s%s%s", (int) (place - name), name, parts[n], place + strlen (joined));

      gradients[n] = get_gradient (model, own);
    }
  whole = ebb_cat (gradients, n, 0, NULL);
  for (guint i = 0; i < n; i++)
    ebb_tensor_unref (gradients[i]);
  return whole;
}

static EbbTensor *
get_published_gradient (EbbModule *model, const char *published)
{
  static const char *const qkv[] = { "q_proj", "k_proj", "v_proj", NULL };
  static const char *const gate_up[] = { "gate_proj", "up_proj", NULL };
  const char *name = g_str_has_prefix (published, "model.") ? published + strlen ("model.") : published;

  if (EBB_IS_BERT (model))
    return get_bert_gradient (model, published);
  if (strstr (name, "qkv_proj") != NULL)
    return get_joined_gradient (model, name, "qkv_proj", qkv);
  if (strstr (name, "gate_up_proj") != NULL)
    return get_joined_gradient (model, name, "gate_up_proj", gate_up);
  if (g_str_has_prefix (published, "transformer."))
    {
      g_autoptr (EbbTensor) gradient = get_gradient (model, published + strlen ("transformer."));

      return strstr (published, ".h.") != NULL && ebb_tensor_get_n_dims (gradient) == 2
                 ? ebb_transpose (gradient, 0, 1, NULL)
                 : g_steal_pointer (&gradient);
    }
  return get_gradient (model, name);
}

static double
get_norm (EbbTensor *tensor)
{
  g_autoptr (EbbTensor) detached = ebb_tensor_detach (tensor);
  g_autoptr (EbbTensor) contiguous = ebb_contiguous (detached, NULL);
  const float *values = test_read (contiguous);
  double sum = 0;

  for (gint64 i = 0; i < ebb_tensor_get_n_elements (contiguous); i++)
    sum += (double) values[i] * values[i];
  return sqrt (sum);
}

double
test_architecture_compare_gradients (EbbModule *model, EbbArgs *expected)
{
  g_auto (GStrv) names = ebb_module_get_parameter_names (model, TRUE);
  double whole = 0, worst = 0;
  guint n_elements = 0;

  for (guint i = 0; i < ebb_args_get_length (expected); i++)
    if (g_str_has_prefix (ebb_args_get_key (expected, i), "grad."))
      {
        g_autoptr (EbbTensor) gradient = ebb_args_get_tensor (expected, i);

        whole += pow (get_norm (gradient), 2);
      }
  whole = sqrt (whole);
  for (guint i = 0; i < ebb_args_get_length (expected); i++)
    {
      const char *key = ebb_args_get_key (expected, i);
      g_autoptr (EbbTensor) published = NULL;
      g_autoptr (EbbTensor) own = NULL;
      g_autoptr (EbbTensor) difference = NULL;
      g_autoptr (GError) error = NULL;
      double distance;

      if (!g_str_has_prefix (key, "grad."))
        continue;
      published = test_fixture_tensor (expected, "%s", key);
      own = get_published_gradient (model, key + strlen ("grad."));
      n_elements += (guint) ebb_tensor_get_n_elements (own);
      difference = ebb_sub (own, published, &error);
      g_assert_no_error (error);
      distance = get_norm (difference) / MAX (get_norm (published), 1e-3 * whole);
      if (!(distance <= worst))
        g_test_message ("gradient of %s: %g", key, distance);
      worst = isnan (distance) ? INFINITY : MAX (worst, distance);
    }
  for (guint i = 0; names[i] != NULL; i++)
    {
      g_autoptr (EbbTensor) parameter = ebb_module_get_parameter (model, names[i]);

      n_elements -= (guint) ebb_tensor_get_n_elements (parameter);
    }
  g_assert_cmpuint (n_elements, ==, 0); /* each was compared */
  return worst;
}

double
test_architecture_compare_losses (EbbArgs *expected, const double *losses, guint n, double *bound)
{
  g_autoptr (EbbTensor) losses_tensor = test_fixture_tensor (expected, "losses");
  g_autoptr (EbbTensor) distance = test_fixture_tensor (expected, "distance");
  double worst = 0;

  g_assert_cmpint (ebb_tensor_get_n_elements (losses_tensor), ==, TEST_ARCHITECTURE_STEPS);
  for (guint i = 0; i < n; i++)
    {
      const double theirs = test_at (losses_tensor, i);

      worst = isnan (losses[i]) ? INFINITY : MAX (worst, fabs (losses[i] - theirs) / theirs);
    }
  *bound = MAX (2e-6, 2 * (double) test_at (distance, 0));
  return worst;
}
