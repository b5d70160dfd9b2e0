/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/random-ranks.h"

#include "dist/tensor-parallel/partition-private.h"
#include "support/decoders.h"
#include "support/device.h"
#include "support/own-block.h"
#include "support/random-wrapping.h"
#include "support/ranks.h"
#include "support/tensor-parallel.h"
#include "support/tensors.h"
#include "tensor/tensor-private.h"

#include <string.h>

#define N_ROWS 2
#define N_TOKENS 10
#define VOCAB 64
#define LEARNING_RATE 0.01 /* great steps would magnify what bf16 rounds */
#define WIDTH TEST_WIDTH   /* of a sequence */
#define WIDE_WIDTH 128

/* -- drawing ------------------------------------------------------------------------------------------------------- */

/* How one module is wrapped does not depend on how others are. */
static TestDice
get_dice (const TestRankProgram *self, const char *what, const char *path)
{
  return test_dice_new (self->seed * 1000003 + g_str_hash (what) * (guint64) 31 + g_str_hash (path));
}

static void
draw_ranks (TestRankProgram *self, TestDice *dice)
{
  self->n_data = 1 + test_dice_roll (dice, 3);
  self->n_tensor = 1;
  if (self->decoder != NULL && test_dice_chance (dice, 30))
    {
      self->n_tensor = 2;
      self->n_data = 1 + test_dice_chance (dice, 30);
      self->sequence_parallel = test_dice_chance (dice, 40);
    }
  self->shards = self->n_data > 1 || test_dice_chance (dice, 50);
}

void
test_rank_program_draw (TestRankProgram *self, guint64 seed)
{
  static const guint percentages[] = { 0, 15, 40, 80 };
  TestDice dice = test_dice_new (seed);
  guint n_decoders = g_strv_length ((char **) test_decoder_names);

  *self = (TestRankProgram){ .seed = seed };
  if (test_dice_chance (&dice, 70))
    {
      guint i = test_dice_roll (&dice, n_decoders + 2);

      self->decoder = i < n_decoders ? test_decoder_names[i] : "gpt2";
    }
  self->n_layers = test_dice_roll (&dice, 3);
  self->dropout = test_dice_chance (&dice, 25) ? 0.2 : 0;
  draw_ranks (self, &dice);
  self->adapts = test_dice_chance (&dice, 40);
  if (self->adapts && test_dice_chance (&dice, 50))
    self->quantization = test_dice_chance (&dice, 50) ? EBB_QUANTIZATION_INT8 : EBB_QUANTIZATION_NF4;
  /* Tensor ranks have whole blocks of nf4 only of wide rows. */
  self->is_wide = self->n_tensor > 1 && self->quantization == EBB_QUANTIZATION_NF4;
  self->frozen = test_dice_chance (&dice, 20) ? 25 : 0;
  self->autocast = test_dice_chance (&dice, 25);
  self->lowers = test_dice_chance (&dice, 30);
  self->units = percentages[test_dice_roll (&dice, G_N_ELEMENTS (percentages))];
  self->checkpoints = percentages[test_dice_roll (&dice, G_N_ELEMENTS (percentages))];
  self->stores = test_dice_chance (&dice, 60);
  self->n_passes = 1 + test_dice_chance (&dice, 25);
}

char *
test_rank_program_describe (const TestRankProgram *self)
{
  return g_strdup_printf ("seed %" G_GUINT64_FORMAT ": %s, layers %u, dropout %g, %s%s, frozen %u%%, %u data ranks, "
                          "%u tensor ranks%s,%s%s%s units %u%%, checkpoints %u%%%s, %u passes\n",
                          self->seed, self->decoder != NULL ? self->decoder : "sequence", self->n_layers, self->dropout,
                          ebb_quantization_get_name (self->quantization), self->adapts ? ", lora" : "",
                          self->frozen, self->n_data,
                          self->n_tensor, self->sequence_parallel ? " with sequence-parallel" : "",
                          self->shards ? " sharded," : "", self->lowers ? " some in bf16," : "",
                          self->autocast ? " autocast," : "", self->units, self->checkpoints,
                          self->stores ? ", stores" : "", self->n_passes);
}

/* -- making -------------------------------------------------------------------------------------------------------- */

/* One rank. */
typedef struct
{
  const TestRankProgram *program;
  TestRankRun *run;
  EbbMesh *mesh;
  EbbProcessGroup *data, *tensor;
  EbbModule *model;
  TestStores stores;
  TestWrapping wrapping;
} Rank;

static EbbModule *make_sequence (TestDice *dice,
                                 guint depth,
                                 double dropout);

/* Some of the blocks are of a user's class. The dice stay where they are, so that other models stay what they were. */
static gboolean
makes_own_block (const TestDice *dice)
{
  TestDice own = *dice;

  test_dice_roll (&own, 2);
  return test_dice_chance (&own, 40);
}

static EbbModule *
make_layer (TestDice *dice, guint depth, double dropout, GError **error)
{
  switch (test_dice_roll (dice, depth > 0 ? 9 : 7))
    {
    case 0:
    case 1: return ebb_linear_new (WIDTH, WIDTH, test_dice_chance (dice, 70), error);
    case 2: return ebb_layer_norm_new (WIDTH, 1e-5, TRUE, error);
    case 3: return ebb_rms_norm_new (WIDTH, 1e-5, error);
    case 4: return ebb_mlp_new (WIDTH, 2 * WIDTH, EBB_ACTIVATION_GELU_TANH, error);
    case 5: return ebb_multi_head_attention_new (WIDTH, 2, dropout, TRUE, error);
    case 6:
      if (makes_own_block (dice))
        return test_own_block_new (WIDTH, 2 * WIDTH);
      return ebb_transformer_block_new (WIDTH, 2, dropout, TRUE, test_dice_chance (dice, 50), error);
    default: return make_sequence (dice, depth - 1, dropout);
    }
}

static EbbModule *
make_sequence (TestDice *dice, guint depth, double dropout)
{
  EbbModule *sequence = ebb_sequential_new ();
  guint n = 1 + test_dice_roll (dice, 4);

  for (guint i = 0; i < n; i++)
    {
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbModule) layer = make_layer (dice, depth, dropout, &error);

      g_assert_no_error (error);
      ebb_sequential_append (EBB_SEQUENTIAL (sequence), layer, &error);
      g_assert_no_error (error);
    }
  return sequence;
}

static void
widen (EbbGptConfig *config)
{
  config->width = config->hidden = WIDE_WIDTH;
  if (config->head_width > 0)
    config->head_width = WIDE_WIDTH / config->heads;
  for (guint i = 0; i < 2; i++)
    {
      EbbRotaryConfig *rotary = i == 0 ? &config->rotary : &config->local_rotary;

      if (rotary->scaling != EBB_ROTARY_LONGROPE) /* has factors for each frequency of a narrow head */
        continue;
      rotary->scaling = EBB_ROTARY_DEFAULT;
      rotary->factor = 1;
    }
}

static EbbGptConfig *
make_config (const TestRankProgram *self, TestDice *dice)
{
  EbbGptConfig *config;

  if (!g_str_equal (self->decoder, "gpt2"))
    {
      config = test_decoder_config (self->decoder);
      if (self->is_wide)
        widen (config);
      return config;
    }
  config = ebb_gpt_config_new ();
  config->vocab = VOCAB;
  config->context = 16;
  config->width = self->is_wide ? WIDE_WIDTH : 24;
  config->heads = 4;
  config->layers = 2;
  config->tied = test_dice_chance (dice, 50);
  return config;
}

static EbbModule *
make_model (const TestRankProgram *self, GError **error)
{
  TestDice dice = get_dice (self, "model", "");

  ebb_manual_seed (self->seed);
  if (self->decoder != NULL)
    {
      g_autoptr (EbbGptConfig) config = make_config (self, &dice);

      config->dropout = self->dropout;
      if (self->n_layers > 0 && config->layers == 2)
        config->layers = (int) self->n_layers;
      return ebb_gpt_new (config, error);
    }
  return make_sequence (&dice, 2, self->dropout);
}

/* Of weights: products of wide rows are no greater than those of narrow ones. */
static double
get_scale (const TestRankProgram *self)
{
  return self->is_wide ? 0.09 : 0.2;
}

/* Other weights than the first ones: zeros and ones would hide much, and small ones are lost in bf16. */
static gboolean
stir (const TestRankProgram *self, EbbModule *model, GError **error)
{
  const double scale = get_scale (self);
  guint n;
  g_autofree EbbTensor **parameters = ebb_module_get_parameters (model, TRUE, &n);
  gboolean ok = TRUE;

  ebb_push_grad_enabled (FALSE);
  for (guint i = 0; i < n; i++)
    {
      gboolean is_matrix = ebb_tensor_get_n_dims (parameters[i]) == 2;

      ok = ok && ebb_tensor_fill_normal (parameters[i], is_matrix ? 0 : 0.7, is_matrix ? scale : 0.3, NULL, error);
      ebb_tensor_unref (parameters[i]);
    }
  ebb_pop_grad_enabled ();
  return ok;
}

/* Some modules get no gradient, but never all. */
static gboolean
freeze (const TestRankProgram *self, EbbModule *model, GError **error)
{
  g_auto (GStrv) names = ebb_module_get_module_names (model);
  guint n, n_parameters, n_trained = 0;
  g_autofree EbbModule **modules = ebb_module_get_modules (model, &n);
  g_autofree EbbTensor **parameters = ebb_module_get_parameters (model, TRUE, &n_parameters);
  gboolean ok = TRUE;

  for (guint i = 0; i < n; i++)
    {
      TestDice dice = get_dice (self, "freeze", names[i]);

      if (i > 0 && test_dice_chance (&dice, self->frozen))
        ok = ok && ebb_module_set_requires_grad (modules[i], FALSE, error);
      g_object_unref (modules[i]);
    }
  for (guint i = 0; i < n_parameters; i++)
    {
      n_trained += ebb_tensor_get_requires_grad (parameters[i]);
      ebb_tensor_unref (parameters[i]);
    }
  return ok && (n_trained > 0 || ebb_module_set_requires_grad (model, TRUE, error));
}

/* B is zero at first, which would leave A without a gradient; ranks draw one B, of which they have parts. */
static gboolean
draw_factor (EbbTensor *factor, double scale, EbbGenerator *generator, GError **error)
{
  const EbbPartition *partition = factor->partition;
  g_autoptr (EbbTensor) full = ebb_randn (partition != NULL ? partition->shape : factor->view.shape, 2, EBB_DTYPE_F32,
                                          ebb_tensor_get_device (factor), generator, error);
  g_autoptr (EbbTensor) scaled = ebb_mul_scalar (full, scale, error);
  g_autoptr (EbbTensor) part = partition != NULL && scaled != NULL ? ebb_partition_take (scaled, partition, error)
                                                                   : NULL;

  return scaled != NULL && ebb_tensor_copy_from (factor, part != NULL ? part : scaled, error);
}

static gboolean
adapt (const TestRankProgram *self, EbbModule *model, GError **error)
{
  TestDice dice = get_dice (self, "lora", "");
  g_autoptr (EbbLoraOptions) options = ebb_lora_options_new ();
  g_autoptr (EbbGenerator) generator = ebb_generator_new (self->seed);
  g_autoptr (EbbModule) same = NULL;
  guint n;
  g_autofree EbbTensor **parameters = NULL;
  gboolean ok;

  g_object_set (options, "rank", (int) (1 + test_dice_roll (&dice, 4)), "alpha", 5.0, "rslora",
                test_dice_chance (&dice, 30), "dropout", self->dropout, NULL);
  same = ebb_lora_wrap (model, options, error);
  ok = same != NULL;
  parameters = ebb_module_get_parameters (model, TRUE, &n);
  ebb_push_grad_enabled (FALSE);
  for (guint i = 0; i < n; i++)
    {
      ok = ok
           && (!ebb_tensor_get_requires_grad (parameters[i])
               || draw_factor (parameters[i], get_scale (self), generator, error));
      ebb_tensor_unref (parameters[i]);
    }
  ebb_pop_grad_enabled ();
  return ok;
}

static gboolean
divide (Rank *self, GError **error)
{
  g_autoptr (EbbParallelOptions) options = ebb_parallel_options_new ();
  g_autoptr (EbbModule) same = NULL;

  if (self->program->n_tensor == 1)
    return TRUE;
  g_object_set (options, "sequence-parallel", self->program->sequence_parallel, NULL);
  same = ebb_parallelize (self->model, self->tensor, options, error);
  return same != NULL;
}

/* -- wrapping ------------------------------------------------------------------------------------------------------ */

/* A module draws before or after which of the other wrappers its checkpoint and its store come. */
enum
{
  BEFORE_ADAPTERS, /* tensor ranks divide only what isn't wrapped yet */
  BEFORE_UNITS,
  AFTER_ALL,
  N_TIMES
};

static guint
draw_time (const TestRankProgram *self, TestDice *dice)
{
  guint time = test_dice_roll (dice, N_TIMES);

  return time == BEFORE_ADAPTERS && self->n_tensor > 1 ? BEFORE_UNITS : time;
}

static void
wrap_modules (Rank *self, guint when)
{
  g_auto (GStrv) names = ebb_module_get_module_names (self->model);
  guint n;
  g_autofree EbbModule **modules = ebb_module_get_modules (self->model, &n);

  for (guint i = 0; i < n; i++)
    {
      TestDice dice = get_dice (self->program, "checkpoint", names[i]);
      gboolean is_now = draw_time (self->program, &dice) == when;

      if (EBB_IS_MODULE_LIST (modules[i])) /* never called, so neither wrapper takes it */
        is_now = FALSE;
      if (is_now && test_dice_chance (&dice, self->program->checkpoints))
        test_wrapping_wrap_module (&self->wrapping, &dice, modules[i], names[i]);
      dice = get_dice (self->program, "offload", names[i]);
      is_now = draw_time (self->program, &dice) == when;
      if (is_now && !EBB_IS_MODULE_LIST (modules[i]) && self->program->stores && test_dice_chance (&dice, 10))
        test_wrapping_offload_module (&self->wrapping, &dice, modules[i], names[i]);
      g_object_unref (modules[i]);
    }
}

static gboolean
shard_unit (Rank *self, EbbModule *module, const char *name, GError **error)
{
  static const EbbReshard reshards[] = { EBB_RESHARD_AUTO, EBB_RESHARD_ALWAYS, EBB_RESHARD_NEVER };
  TestDice dice = get_dice (self->program, "unit options", name);
  g_autoptr (EbbFullyShardOptions) options = ebb_fully_shard_options_new ();
  gboolean flatten = test_dice_chance (&dice, 50), lowers = test_dice_chance (&dice, 60) && self->program->lowers;
  guint reshard = test_dice_roll (&dice, G_N_ELEMENTS (reshards));
  g_autoptr (EbbModule) same = NULL;

  g_string_append_printf (self->wrapping.description, "  unit %s \"%s\":%s%s reshard %u\n", G_OBJECT_TYPE_NAME (module),
                          name, flatten ? " flat" : "", lowers ? " bf16" : "", reshard);
  g_object_set (options, "flatten", flatten, "reshard-after-forward", reshards[reshard], NULL);
  if (lowers && !ebb_fully_shard_options_set_compute_dtype (options, EBB_DTYPE_BF16, error))
    return FALSE;
  same = ebb_fully_shard (module, self->data, options, error);
  return same != NULL;
}

/* FALSE for modules whose parameters are read outside their own calls, as those of a list and of an adapter: only the
 * unit around them can have these. */
static gboolean
may_be_unit (EbbModule *module, const char *name)
{
  return !EBB_IS_MODULE_LIST (module) && strstr (name, "lora_") == NULL;
}

/* Inner modules first: they come after those around them in the list. */
static gboolean
shard (Rank *self, GError **error)
{
  g_auto (GStrv) names = ebb_module_get_module_names (self->model);
  guint n;
  g_autofree EbbModule **modules = ebb_module_get_modules (self->model, &n);
  gboolean ok = TRUE;

  for (guint i = n; i-- > 0;)
    {
      TestDice dice = get_dice (self->program, "unit", names[i]);

      if (i == 0
          || (test_dice_chance (&dice, self->program->units)
              && may_be_unit (modules[i], names[i])))
        ok = ok && shard_unit (self, modules[i], names[i], error);
      g_object_unref (modules[i]);
    }
  return ok;
}

static gboolean
prepare (Rank *self, GError **error)
{
  const TestRankProgram *program = self->program;

  self->model = make_model (program, error);
  if (self->model == NULL || !stir (program, self->model, error) || !freeze (program, self->model, error)
      || (program->quantization != EBB_QUANTIZATION_NONE && !ebb_quantize (self->model, program->quantization, error)))
    return FALSE;
  wrap_modules (self, BEFORE_ADAPTERS);
  if (!divide (self, error) || (program->adapts && !adapt (program, self->model, error)))
    return FALSE;
  wrap_modules (self, BEFORE_UNITS);
  if (program->shards && !shard (self, error))
    return FALSE;
  wrap_modules (self, AFTER_ALL);
  return TRUE;
}

/* -- steps --------------------------------------------------------------------------------------------------------- */

static GBytes *
take_bytes (EbbTensor *tensor, GError **error)
{
  g_autoptr (EbbTensor) dense = ebb_contiguous (tensor, error);
  g_autoptr (EbbTensor) host = ebb_to_device (dense, ebb_device_get_cpu (), error);

  return host != NULL ? g_bytes_new (ebb_tensor_get_data (host, NULL), ebb_tensor_get_n_bytes (host)) : NULL;
}

static gboolean
take_gradients (Rank *self, GPtrArray *parts, GPtrArray *whole, GError **error)
{
  guint n;
  g_autofree EbbTensor **parameters = ebb_module_get_parameters (self->model, TRUE, &n);
  gboolean ok = TRUE;

  for (guint i = 0; i < n; i++)
    {
      g_autoptr (EbbTensor) parameter = parameters[i];
      g_autoptr (EbbTensor) grad = ebb_tensor_get_grad (parameter);
      g_autoptr (EbbTensor) gathered = NULL;
      GBytes *bytes = NULL;

      if (grad == NULL || ebb_tensor_get_n_elements (grad) == 0)
        bytes = g_bytes_new (NULL, 0);
      else if (ok)
        bytes = take_bytes (grad, error);
      ok = ok && bytes != NULL;
      if (bytes != NULL)
        g_ptr_array_add (parts, bytes);
      if (whole == NULL || !ok)
        continue;
      if (grad != NULL && parameter->partition != NULL)
        {
          gathered = test_parallel_gather (grad, parameter->partition, error);
          bytes = gathered != NULL ? take_bytes (gathered, error) : NULL;
          ok = bytes != NULL;
          if (ok)
            g_ptr_array_add (whole, bytes);
        }
      else
        g_ptr_array_add (whole, g_bytes_ref (bytes));
    }
  return ok;
}

static EbbTensor *
compute_loss (Rank *self, guint step, GError **error)
{
  g_autoptr (EbbTensor) x = NULL;
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) wide = NULL;
  g_autoptr (EbbTensor) target = NULL;
  g_autoptr (EbbTensor) difference = NULL;
  g_autoptr (EbbTensor) squares = NULL;

  if (self->program->decoder != NULL)
    {
      g_autoptr (EbbTensor) tokens = test_tokens (10 + step, VOCAB, N_ROWS, N_TOKENS, -1);
      g_autoptr (EbbTensor) targets = test_tokens (50 + step, VOCAB, N_ROWS, N_TOKENS, -1);

      return ebb_gpt_loss (EBB_GPT (self->model), tokens, targets, error);
    }
  x = test_randn (10 + step, N_ROWS, N_TOKENS, WIDTH, -1);
  y = ebb_module_call1 (self->model, x, error);
  target = test_randn (50 + step, N_ROWS, N_TOKENS, WIDTH, -1);
  wide = y != NULL ? ebb_cast (y, EBB_DTYPE_F32, error) : NULL;
  difference = ebb_sub (wide, target, error);
  squares = ebb_mul (difference, difference, error);
  return ebb_mean (squares, NULL, 0, FALSE, error);
}

static gboolean
seed_generators (Rank *self, guint step, GError **error)
{
  if (self->program->n_tensor > 1
      && !ebb_model_parallel_manual_seed (100 + step, G_OBJECT (self->mesh), error))
    return FALSE;
  ebb_manual_seed (100 + step); /* also of data ranks: as they have the same rows, they drop the same elements */
  return TRUE;
}

/* The gradients of a step's passes add up; ranks exchange their sum. */
static gboolean
run_pass (Rank *self, TestRankView *view, guint step, guint pass, GError **error)
{
  const guint n_passes = self->program->n_passes, batch = step * n_passes + pass;
  TestDice dice = get_dice (self->program, "outside", batch % 2 == 0 ? "0" : "1");
  EbbSavedTensorHooks *store = self->stores.stores[test_dice_roll (&dice, TEST_N_STORES)];
  gboolean stores = self->program->stores && test_dice_chance (&dice, 50), ok;
  g_autoptr (EbbTensor) loss = NULL;

  if (stores)
    ebb_push_saved_tensor_hooks (store);
  ebb_push_autocast (self->program->autocast, EBB_DTYPE_BF16);
  ebb_push_gradient_sync (pass + 1 == n_passes);
  loss = compute_loss (self, batch, error);
  ebb_pop_autocast ();
  if (stores)
    ebb_pop_saved_tensor_hooks ();
  ok = loss != NULL && ebb_tensor_get_item (loss, &view->losses[step], error) && ebb_tensor_backward (loss, error);
  ebb_pop_gradient_sync ();
  return ok;
}

static gboolean
take_step (Rank *self, EbbOptimizer *optimizer, TestRankView *view, guint step, GError **error)
{
  GPtrArray *parts = g_ptr_array_new_with_free_func ((GDestroyNotify) g_bytes_unref);
  GPtrArray *whole = self->program->shards ? NULL : g_ptr_array_new_with_free_func ((GDestroyNotify) g_bytes_unref);
  gboolean ok = seed_generators (self, step, error);

  view->gradients[step] = parts;
  view->whole[step] = whole;
  for (guint pass = 0; ok && pass < self->program->n_passes; pass++)
    ok = run_pass (self, view, step, pass, error);
  if (!ok || !take_gradients (self, parts, whole, error) || !ebb_optimizer_step (optimizer, error))
    return FALSE;
  ebb_optimizer_zero_grad (optimizer);
  return TRUE;
}

/* -- ranks --------------------------------------------------------------------------------------------------------- */

static void
rank_clear (Rank *self)
{
  g_clear_object (&self->model);
  g_clear_object (&self->mesh);
  test_wrapping_clear (&self->wrapping);
}

static gboolean
run_steps (Rank *self, TestRankView *view, GError **error)
{
  g_autoptr (EbbOptimizer) optimizer = ebb_sgd_new (self->model, LEARNING_RATE, error);
  gboolean ok = optimizer != NULL;

  for (guint i = 0; ok && i < TEST_RANK_STEPS; i++)
    ok = take_step (self, optimizer, view, i, error);
  return ok;
}

static gboolean
run_rank (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  static const char *const names[] = { "data", "tensor" };
  TestRankRun *run = user_data;
  const TestRankProgram *program = &run->program;
  const gint64 sizes[] = { program->n_data, program->n_tensor };
  const guint index = ebb_process_group_get_rank (group);
  TestDice dice = get_dice (program, "stores", "");
  Rank self = { .program = program, .run = run, .mesh = ebb_mesh_new (group, names, sizes, 2, error) };
  gboolean ok;

  if (self.mesh == NULL)
    return FALSE;
  self.data = ebb_mesh_get_group (self.mesh, "data");
  self.tensor = ebb_mesh_get_group (self.mesh, "tensor");
  /* Stores that divide want ranks with the same tensors: those that divide a model, or have the same rows. */
  if (program->n_tensor == 1)
    self.stores.group = program->n_data > 1 ? self.data : NULL;
  else if (test_dice_chance (&dice, 30))
    self.stores.group = self.tensor;
  test_stores_open (&self.stores);
  self.wrapping = (TestWrapping){ .stores = &self.stores, .device = test_device (), .description = g_string_new ("") };
  ok = prepare (&self, error) && run_steps (&self, &run->views[index], error);
  if (index == 0)
    {
      run->text = g_strdup (self.wrapping.description->str);
      run->names = self.model != NULL ? ebb_module_get_parameter_names (self.model, TRUE) : NULL;
      run->n_parameters = run->names != NULL ? g_strv_length (run->names) : 0;
    }
  g_clear_object (&self.model);
  if (ok)
    test_stores_close (&self.stores);
  rank_clear (&self);
  return ok;
}

TestRankRun *
test_rank_program_run (const TestRankProgram *self, GError **error)
{
  g_autoptr (TestRankRun) run = g_new0 (TestRankRun, 1);

  run->program = *self;
  run->n_ranks = self->n_data * self->n_tensor;
  run->views = g_new0 (TestRankView, run->n_ranks);
  if (ebb_run_ranks (run->n_ranks, run_rank, run, error))
    return g_steal_pointer (&run);
  if (error != NULL && *error != NULL && run->text != NULL)
    g_prefix_error (error, "%s", run->text);
  return NULL;
}

void
test_rank_run_free (TestRankRun *self)
{
  for (guint i = 0; i < self->n_ranks; i++)
    for (guint step = 0; step < TEST_RANK_STEPS; step++)
      {
        g_clear_pointer (&self->views[i].gradients[step], g_ptr_array_unref);
        g_clear_pointer (&self->views[i].whole[step], g_ptr_array_unref);
      }
  g_free (self->views);
  g_free (self->text);
  g_strfreev (self->names);
  g_free (self);
}
