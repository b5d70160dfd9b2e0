/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/fuzz.h"

#include "wrap/compat/deepspeed-config-private.h"
#include "wrap/compat/oslo-config-private.h"

/* DeepSpeed's, OSLO's, Megatron's and LiBai's configurations. */

static const char *const checkpointing[] = {
  "{\"activation_checkpointing\": {\"partition_activations\": false, \"cpu_checkpointing\": true, "
  "\"contiguous_memory_optimization\": true, \"number_checkpoints\": 4, \"synchronize_checkpoint_boundary\": false, "
  "\"profile\": true}}",
  "{\"train_batch_size\": 8, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"betas\": [0.9, 1e-3]}}, "
  "\"activation_checkpointing\": {\"number_checkpoints\": null, \"cpu_checkpointing\": false}}",
  "  { }  ",
};
static const char *const initialize[] = {
  "{\"model_parallelism\": {\"enable\": true, \"tensor_parallel_size\": 2, \"pipeline_parallel_size\": 1}, "
  "\"activation_checkpointing\": {\"enable\": true, \"cpu_checkpointing\": false, \"partitioned_checkpointing\": true, "
  "\"contiguous_checkpointing\": true}, \"kernel_fusion\": {\"enable\": false, \"custom_cuda_kernels\": []}}",
  "{\"activation_checkpointing\": {\"enable\": true}}",
};
static const char *const recompute[] = {
  "{\"recompute_granularity\": \"full\", \"recompute_method\": \"uniform\", \"recompute_num_layers\": 1, "
  "\"distribute_saved_activations\": false, \"recompute_activations\": false}",
  "{\"recompute_granularity\": \"selective\"}",
  "{\"recompute_activations\": true, \"recompute_method\": null}",
};

static const char *const libai[] = {
  "{\"train\": {\"output_dir\": \"out\", \"activation_checkpoint\": {\"enabled\": true}, "
  "\"amp\": {\"enabled\": false}}}",
  "{\"model\": {\"cfg\": {}}, \"train\": {\"activation_checkpoint\": {\"enabled\": false}}}",
};

/* Two blocks, not checkpointed. */
static EbbModule *
make_model (void)
{
  g_autoptr (EbbGptConfig) config = ebb_gpt_config_new_preset ("tiny");

  config->layers = 2;
  config->width = 8;
  config->heads = 1;
  config->context = 4;
  config->vocab = 4;
  return ebb_gpt_new (config, NULL);
}

static EbbModule *model; /* made anew when a configuration was taken */

static gboolean
try_recompute (const char *json, GError **error)
{
  if (model == NULL)
    model = make_model ();
  if (!ebb_recompute_configure (model, json, NULL, error))
    return FALSE;
  g_clear_object (&model);
  return TRUE;
}

static gboolean
try_libai (const char *json, GError **error)
{
  if (model == NULL)
    model = make_model ();
  if (!ebb_apply_libai_config (model, json, error))
    return FALSE;
  g_clear_object (&model);
  return TRUE;
}

static gboolean
try_checkpointing (const char *json, GError **error)
{
  EbbCheckpointingConfig config = { 0 };
  const EbbMpu mpu = { 0 };
  g_autoptr (EbbArgs) args = NULL;

  if (!ebb_checkpointing_config_read_json (&config, json, error)
      || !ebb_checkpointing_config_check (&config, &mpu, error))
    return FALSE;
  args = ebb_checkpointing_config_to_args (&config);
  return TRUE;
}

static gboolean
try_initialize (const char *json, GError **error)
{
  EbbInitializeConfig config;
  g_autofree char *text = NULL;

  if (!ebb_initialize_config_read (&config, json, error))
    return FALSE;
  text = ebb_initialize_config_to_string (&config);
  return TRUE;
}

static gboolean
try_case (GString *input, GError **error)
{
  static const struct
  {
    const char *const *texts;
    guint n;
    gboolean (*read) (const char *json,
                      GError **error);
  } kinds[] = { { checkpointing, G_N_ELEMENTS (checkpointing), try_checkpointing },
                { initialize, G_N_ELEMENTS (initialize), try_initialize },
                { recompute, G_N_ELEMENTS (recompute), try_recompute },
                { libai, G_N_ELEMENTS (libai), try_libai } };
  guint kind = fuzz_draw (G_N_ELEMENTS (kinds));

  g_string_append (input, kinds[kind].texts[fuzz_draw (kinds[kind].n)]);
  if (fuzz_draw (20) > 0)
    fuzz_damage (input);
  return kinds[kind].read (input->str, error);
}

int
main (int argc, char **argv)
{
  int status = fuzz_run (argc, argv, "configs", 50000, try_case);

  g_clear_object (&model);
  return status;
}
