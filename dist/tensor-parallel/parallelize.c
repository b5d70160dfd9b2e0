/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Shards a model over the ranks of a group, all of which check it together before anything changes. */
#include "dist/tensor-parallel/parallelize.h"

#include "dist/group/group-private.h"
#include "dist/init.h"
#include "dist/mpu-private.h"
#include "dist/tensor-parallel/job-private.h"
#include "dist/agree-private.h"
#include "dist/rng-tracker-private.h"
#include "nn/layers/mlp.h"
#include "nn/module-instance-private.h"
#include "nn/layers/multi-head-attention.h"
#include "tensor/error-private.h"
#include "tensor/random.h"

#define BROADCAST_BYTES (64u << 20)

/* -- the state of a parallelized model ----------------------------------------------------------------------------- */

typedef struct
{
  EbbParallelModel *model;
  GPtrArray *cuts; /* of parameters outside of parallel layers */
} State;

static void
state_free (gpointer data)
{
  State *self = data;

  ebb_parallel_model_unref (self->model);
  g_ptr_array_unref (self->cuts);
  g_free (self);
}

/* A static string, looked up once: ThreadSanitizer can't see the lock under which GLib copies a key. */
static GQuark
state_quark (void)
{
  static GQuark quark;
  GQuark value = __atomic_load_n (&quark, __ATOMIC_RELAXED);

  if (G_UNLIKELY (value == 0))
    {
      value = g_quark_from_static_string ("ebb-parallel-model");
      __atomic_store_n (&quark, value, __ATOMIC_RELAXED);
    }
  return value;
}

/* Of @module, or of a module that contains it. */
static EbbParallelModel *
find_model (EbbModule *module)
{
  for (; module != NULL; module = ebb_module_get_private (module)->parent)
    {
      State *state = g_object_get_qdata (G_OBJECT (module), state_quark ());

      if (state != NULL)
        return state->model;
    }
  return NULL;
}

/* -- parallelizing ------------------------------------------------------------------------------------------------- */

/* The state of a rank's default generator. */
typedef struct
{
  guint64 seed, offset;
} Place;

G_STATIC_ASSERT (sizeof (Place) == 2 * sizeof (gint64));

static Place
get_own_place (void)
{
  EbbGenerator *generator = ebb_generator_get_default ();

  return (Place){ ebb_generator_get_seed (generator), ebb_generator_get_offset (generator) };
}

/* The first rank's to all. */
static gboolean
get_first_place (EbbProcessGroup *group, Place *place, GError **error)
{
  g_autoptr (EbbTensor) all = ebb_process_group_exchange (group, place, 2, NULL, EBB_DTYPE_I64, error);

  if (all == NULL)
    return FALSE;
  *place = *(const Place *) all->view.data;
  return TRUE;
}

static gboolean
check_alike (EbbParallelJob *job, EbbAgreeTensors *state, gboolean synchronizes, GError **error)
{
  g_autofree char *plan = ebb_parallel_plan_to_string (job->plan);
  g_autofree char *tree = ebb_module_to_string (job->root);
  g_autoptr (GString) text = g_string_new (NULL);

  g_string_append_printf (text, "plan:\n%ssequence-parallel: %d\nsynchronize-weights: %d\n%s\n", plan, job->sequence,
                          synchronizes, tree);
  ebb_agree_tensors_describe (state, text);
  return ebb_agree_same_text (job->group, "the model to parallelize", text->str, error);
}

static EbbAgreeTensors *
describe_state (EbbModule *module)
{
  g_auto (GStrv) names = ebb_module_get_parameter_names (module, TRUE);
  EbbAgreeTensors *state = ebb_agree_tensors_new ();
  g_autofree EbbTensor **parameters = NULL;
  guint n;

  parameters = ebb_module_get_parameters (module, TRUE, &n);
  for (guint i = 0; i < n; i++)
    {
      ebb_agree_tensors_add_parameter (state, names[i], parameters[i]);
      ebb_tensor_unref (parameters[i]);
    }
  ebb_agree_tensors_add_buffers (state, module);
  return state;
}

/* Everything that would make the ranks' results differ from the first step on. */
static char *
describe_values (EbbAgreeTensors *state, const Place *place, GError **error)
{
  g_autoptr (GString) text = g_string_new (NULL);

  if (!ebb_agree_tensors_describe_values (state, text, error))
    return NULL;
  g_string_append_printf (text, "default generator at %" G_GUINT64_FORMAT "+%" G_GUINT64_FORMAT "\n", place->seed,
                          place->offset);
  return g_string_free (g_steal_pointer (&text), FALSE);
}

/* The first rank's values and random numbers on all ranks. */
static gboolean
synchronize (EbbParallelJob *job, EbbAgreeTensors *state, const Place *place, GError **error)
{
  const Place own = get_own_place ();

  if (!ebb_agree_tensors_broadcast (state, job->group, BROADCAST_BYTES, "the first values of the parallelized model",
                                    error))
    return FALSE;
  if (own.seed != place->seed || own.offset != place->offset)
    ebb_generator_set_state (ebb_generator_get_default (), place->seed, place->offset);
  return TRUE;
}

/* Runs each stage on all ranks, or the next one on none. All checks come before any change. */
static gboolean
run_on_all (EbbParallelJob *job, GError *failure, gboolean synchronizes, GError **error)
{
  g_autoptr (EbbAgreeTensors) state = describe_state (job->root);
  EbbGeneratorTracker *tracker = ebb_generator_tracker_get_default ();
  Place place = get_own_place ();
  g_autofree char *values = NULL;
  guint64 seed;

  if (!ebb_agree_no_failure (job->group, failure, error) || !check_alike (job, state, synchronizes, error)
      || (synchronizes && !get_first_place (job->group, &place, error)))
    return FALSE;
  failure = NULL;
  seed = ebb_rng_tracker_get_parallel_seed (place.seed, job->group);
  if (ebb_parallel_job_prepare (job, &failure) && ebb_rng_tracker_check_parallel (tracker, seed, &failure)
      && !synchronizes)
    values = describe_values (state, &place, &failure);
  if (!ebb_agree_no_failure (job->group, failure, error)
      || !(synchronizes ? synchronize (job, state, &place, error)
                        : ebb_agree_same_text (job->group, "what begins without synchronize-weights", values,
                                               error)))
    return FALSE;
  failure = NULL;
  ebb_parallel_job_take (job, &failure);
  if (!ebb_agree_no_failure (job->group, failure, error))
    return FALSE;
  ebb_rng_tracker_begin_parallel (tracker, seed);
  return TRUE;
}

static void
keep_state (EbbParallelJob *job)
{
  State *state = g_new (State, 1);

  *state = (State){ ebb_parallel_model_ref (job->model), g_ptr_array_ref (job->kept_cuts) };
  g_object_set_qdata_full (G_OBJECT (job->root), state_quark (), state, state_free);
}

static gboolean
check_once (EbbModule *module, GError **error)
{
  return !ebb_parallel_is_parallelized (module)
         || ebb_fail (error, EBB_ERROR_STATE, "%s is parallelized already", ebb_module_get_type_name (module));
}

/**
 * ebb_parallelize:
 * @module: a model, the same on all ranks except for the values
 * @group: (nullable): the ranks that share it; %NULL for ebb_process_group_get_default()
 * @options: (nullable): how; %NULL for the defaults
 * @error: return location for an error
 *
 * Shards a model in place over the ranks of a group, each of which calls this at the same time (tensor parallel:
 * Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism", 2019). An
 * #EbbGpt or #EbbBert needs no plan, see ebb_parallel_plan_new_for(); any other tree of modules is sharded by
 * #EbbParallelOptions:plan. Call the model with the same inputs on all ranks; they compute the same results. Gradients
 * are complete after the backward, so that everything works as on one rank: accumulation, clipping, optimizers, sharded
 * and replicated data parallel over the ranks of another group of a mesh (parallelize first, then wrap), checkpointing
 * before or after.
 *
 * Sharded layers are replaced under their names by #EbbColumnParallelLinear, #EbbRowParallelLinear and
 * #EbbVocabParallelEmbedding; don't use other references to the old ones. Parameters stay the same tensors with the
 * same names, as this rank's shards, so an optimizer may be made before (if it has not stepped) or after. Existing
 * gradients are sharded, too. ebb_get_full_state_dict() returns the state dict of the full model.
 *
 * Dropout of sharded tensors draws from the generator %EBB_MODEL_PARALLEL_RNG of the thread's #EbbGeneratorTracker.
 * This function puts it at the start of a sequence whose seed is that of the default generator plus 2718 plus the rank,
 * unless the program has added it, or ebb_model_parallel_manual_seed() has. Everything else draws from the default
 * generators, which must have the same state on all ranks of @group. With #EbbParallelOptions:synchronize-weights they
 * get the first rank's state, and parameters and buffers its values; without it states and values are compared, and a
 * difference is %EBB_ERROR_PROCESS_GROUP. Don't seed by ebb_seed_rank() over @group afterwards.
 *
 * Other dropout of sharded tensors, outside of attention and of sequence-sharded stacks, as between a column layer and
 * a row layer, draws from the default generators too, so that each rank drops the same elements of its shard. Fork to
 * %EBB_MODEL_PARALLEL_RNG around it (ebb_generator_tracker_fork()) for masks that differ. #EbbGpt and #EbbBert have no
 * such dropout.
 *
 * If one rank had other inputs, or in training another state of its default generator, the results would be wrong. So
 * the collective after the lookup of an #EbbVocabParallelEmbedding has a checksum of the tokens and the generator's
 * state in its purpose: the first such forward fails with %EBB_ERROR_PROCESS_GROUP, which reports them (tokens in a
 * device's memory are read in the first 8 forwards only). A model without such an embedding has no check.
 *
 * With #EbbParallelOptions:sequence-parallel, the activations between sharded layers (norms, dropout, residuals) are
 * sequence-sharded; the length of the sequence must then be a multiple of the number of ranks (Korthikanti et al.,
 * "Reducing Activation Recomputation in Large Transformer Models", 2022). A single block called by itself, outside of
 * its stack, has the full sequence.
 *
 * Quantised weights (ebb_quantize()) are sharded as they are: each rank keeps its codes and scales. A weight in nf4
 * needs equal shards of whole blocks of 64 elements: sizes along rows and columns that divide.
 *
 * Everything is checked on all ranks before anything changes: %EBB_ERROR_INVALID_ARGUMENT if heads or sizes can't be
 * divided, or the plan's patterns match nothing or contradict one another; %EBB_ERROR_NOT_SUPPORTED if no plan is known
 * for the model, or no style is for the type of a layer; %EBB_ERROR_STATE if the model is parallelized, sharded or
 * wrapped already, or a graph holds its parameters; %EBB_ERROR_PROCESS_GROUP if the ranks' models differ.
 *
 * Returns: (transfer full) (nullable): @module, or %NULL with @error set, on all ranks
 */
EbbModule *
ebb_parallelize (EbbModule *module, EbbProcessGroup *group, EbbParallelOptions *options, GError **error)
{
  g_autoptr (EbbParallelOptions) defaults = options == NULL ? ebb_parallel_options_new () : NULL;
  g_autoptr (EbbParallelPlan) plan = NULL;
  g_autoptr (EbbParallelJob) job = NULL;
  GError *failure = NULL;

  EBB_RETURN_UNLESS_BEGUN (NULL, error, module);
  g_return_val_if_fail (EBB_IS_MODULE (module), NULL);

  options = options != NULL ? options : defaults;
  plan = options->plan != NULL ? ebb_parallel_plan_copy (options->plan) : NULL;
  if (check_once (module, &failure) && plan == NULL)
    plan = ebb_parallel_plan_new_for (module, &failure);
  if (plan == NULL)
    plan = ebb_parallel_plan_new ();
  job = ebb_parallel_job_new (module, group != NULL ? group : ebb_process_group_get_default (), plan,
                              options->sequence_parallel);
  if (failure == NULL)
    ebb_parallel_job_check (job, &failure);
  if (!run_on_all (job, failure, options->synchronize_weights, error))
    return NULL;
  ebb_parallel_job_apply (job);
  keep_state (job);
  ebb_mpu_note_group (job->group, G_OBJECT (module), TRUE);
  return g_object_ref (module);
}

/**
 * ebb_parallel_is_parallelized:
 * @module: a module
 *
 * Returns: whether ebb_parallelize() has sharded @module, or a module that contains it
 */
gboolean
ebb_parallel_is_parallelized (EbbModule *module)
{
  g_return_val_if_fail (EBB_IS_MODULE (module), FALSE);

  return find_model (module) != NULL;
}

/**
 * ebb_parallel_get_group:
 * @module: a module
 *
 * Returns: (transfer none) (nullable): the ranks over which ebb_parallelize() has sharded @module, or a module that
 *   contains it; %NULL if it has not
 */
EbbProcessGroup *
ebb_parallel_get_group (EbbModule *module)
{
  EbbParallelModel *model;

  g_return_val_if_fail (EBB_IS_MODULE (module), NULL);

  model = find_model (module);
  return model != NULL ? model->group : NULL;
}

/**
 * ebb_parallel_get_sequence_parallel:
 * @module: a module
 *
 * Returns: whether the next forward is sequence-sharded
 */
gboolean
ebb_parallel_get_sequence_parallel (EbbModule *module)
{
  EbbParallelModel *model;

  g_return_val_if_fail (EBB_IS_MODULE (module), FALSE);

  model = find_model (module);
  return model != NULL && model->sequence_on;
}

/**
 * ebb_parallel_set_sequence_parallel:
 * @module: a model that was parallelized with #EbbParallelOptions:sequence-parallel
 * @on: whether forwards are sequence-sharded from now on
 * @error: return location for an error
 *
 * Switches sequence parallel off, for inputs of any length, as when generating text, and on again. Call it on all ranks
 * at the same time, not between a forward and its backward.
 *
 * Returns: %TRUE on success, %FALSE with @error set to %EBB_ERROR_STATE
 */
gboolean
ebb_parallel_set_sequence_parallel (EbbModule *module, gboolean on, GError **error)
{
  EbbParallelModel *model;

  EBB_RETURN_UNLESS_BEGUN (FALSE, error, module);
  g_return_val_if_fail (EBB_IS_MODULE (module), FALSE);

  model = find_model (module);
  if (model == NULL || (on && !model->has_sequence))
    return ebb_fail (error, EBB_ERROR_STATE, "%s: it was not parallelized with sequence-parallel",
                     ebb_module_get_type_name (module));
  if (model->sequence_on == (on != FALSE))
    return TRUE;
  if (!ebb_parallel_check_no_graph (module, "switching sequence parallel", error))
    return FALSE;
  model->sequence_on = on != FALSE;
  return TRUE;
}

/* -- layers by themselves ------------------------------------------------------------------------------------------ */

/* Consumes @module, which is the same on all ranks. */
static EbbModule *
divide_alone (EbbModule *module,
              EbbProcessGroup *group,
              const EbbParallelPlan *plan,
              gboolean has_random,
              GError **error)
{
  g_autoptr (EbbModule) owned = module;
  EbbGeneratorTracker *tracker = ebb_generator_tracker_get_default ();
  g_autoptr (EbbParallelJob) job = NULL;
  guint64 seed;

  if (module == NULL)
    return NULL;
  job = ebb_parallel_job_new (module, group, plan, FALSE);
  seed = ebb_rng_tracker_get_parallel_seed (get_own_place ().seed, group);
  if (!ebb_parallel_job_check (job, error) || !ebb_parallel_job_prepare (job, error)
      || (has_random && !ebb_rng_tracker_check_parallel (tracker, seed, error)) || !ebb_parallel_job_take (job, error))
    return NULL;
  if (has_random)
    ebb_rng_tracker_begin_parallel (tracker, seed);
  ebb_parallel_job_apply (job);
  keep_state (job);
  return g_steal_pointer (&owned);
}

/**
 * ebb_parallel_attention_new:
 * @width: the size of the last dimension of input and output
 * @heads: the number of heads, which divides @width and is a multiple of the number of ranks
 * @dropout: the probability with which a weight of attention is dropped in training
 * @causal: whether a position attends to itself and earlier ones only
 * @group: (nullable): the ranks; %NULL for the default group
 * @error: return location for an error
 *
 * Makes a self attention of which each rank has its shard of the heads (Shoeybi et al., 2019, section 3), as
 * ebb_parallelize() does from ebb_multi_head_attention_new(). The full layer is drawn from the thread's default
 * generator and then sharded; nothing is sent. ebb_parallelize() says which generator dropout draws from.
 *
 * Returns: (transfer full) (type EbbMultiHeadAttention) (nullable): the layer, or %NULL with @error set
 */
EbbModule *
ebb_parallel_attention_new (int width,
                            int heads,
                            double dropout,
                            gboolean causal,
                            EbbProcessGroup *group,
                            GError **error)
{
  g_autoptr (EbbParallelPlan) plan = ebb_parallel_plan_new ();

  if (error != NULL && *error != NULL)
    return NULL;
  group = group != NULL ? group : ebb_process_group_get_default ();
  if (heads > 0 && !ebb_parallel_check_heads ("", heads, heads, group, error))
    return NULL;
  ebb_parallel_plan_add (plan, "c_attn", EBB_PARALLEL_STYLE_COLUMN_QKV, NULL);
  ebb_parallel_plan_add (plan, "c_proj", EBB_PARALLEL_STYLE_ROW, NULL);
  return divide_alone (ebb_multi_head_attention_new (width, heads, dropout, causal, error), group, plan, TRUE, error);
}

/**
 * ebb_parallel_mlp_new:
 * @width: the size of the last dimension of input and output
 * @hidden: the size of the last dimension between the two products, 0 for four times @width
 * @activation: the activation between the products
 * @group: (nullable): the ranks; %NULL for the default group
 * @error: return location for an error
 *
 * Makes the feed-forward part of a transformer block of which each rank has its shard of the hidden elements (Shoeybi
 * et al., 2019, section 3), as ebb_parallelize() does from ebb_mlp_new(). The full layer is drawn from the thread's
 * default generator and then sharded; nothing is sent.
 *
 * Returns: (transfer full) (type EbbMlp) (nullable): the layer, or %NULL with @error set
 */
EbbModule *
ebb_parallel_mlp_new (int width, int hidden, EbbActivation activation, EbbProcessGroup *group, GError **error)
{
  g_autoptr (EbbParallelPlan) plan = ebb_parallel_plan_new ();

  if (error != NULL && *error != NULL)
    return NULL;
  group = group != NULL ? group : ebb_process_group_get_default ();
  ebb_parallel_plan_add (plan, "c_fc", EBB_PARALLEL_STYLE_COLUMN, NULL);
  ebb_parallel_plan_add (plan, "c_proj", EBB_PARALLEL_STYLE_ROW, NULL);
  return divide_alone (ebb_mlp_new (width, hidden, activation, error), group, plan, FALSE, error);
}
