/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* An embedding whose rows are sharded, which also compares the ranks' tokens and generators. */
#include "dist/tensor-parallel/vocab-embedding.h"

#include "dist/tensor-parallel/layer-private.h"
#include "dist/tensor-parallel/ops-private.h"
#include "dist/agree-private.h"
#include "dist/tensor-parallel/vocab-loss.h"
#include "nn/layers/layer-private.h"
#include "nn/module-instance-private.h"
#include "tensor/backend/backend-private.h"
#include "tensor/ops/creation.h"
#include "tensor/ops/indexing.h"
#include "tensor/autograd/op-support-private.h"
#include "tensor/ops/pointwise.h"
#include "tensor/ops/product-private.h"
#include "tensor/ops/product.h"
#include "tensor/ops/shape.h"
#include "tensor/random.h"
#include "tensor/thread-private.h"
#include "tensor/util/property-private.h"

/* Tokens in a device's memory are compared in so many forwards only, since the host waits for them. */
#define CHECKED_FORWARDS_ON_DEVICE 8

static void output_layer_interface_init (EbbOutputLayerInterface *interface);

G_DEFINE_TYPE_WITH_CODE (EbbVocabParallelEmbedding,
                         ebb_vocab_parallel_embedding,
                         EBB_TYPE_EMBEDDING,
                         G_IMPLEMENT_INTERFACE (EBB_TYPE_OUTPUT_LAYER, output_layer_interface_init))

/**
 * ebb_vocab_parallel_embedding_new:
 * @num_embeddings: the number of rows of the full table, at least the number of ranks
 * @embedding_dim: the size of a row
 * @group: (nullable): the ranks; %NULL for the default group
 * @error: return location for an error
 *
 * Makes this rank's shard of an embedding. The full table is drawn from the thread's default generator, as by
 * ebb_embedding_new(), and then sharded: ranks whose generators have the same state have shards of one table.
 *
 * Returns: (transfer full) (type EbbVocabParallelEmbedding) (nullable): the layer, or %NULL with @error set
 */
EbbModule *
ebb_vocab_parallel_embedding_new (int num_embeddings, int embedding_dim, EbbProcessGroup *group, GError **error)
{
  return ebb_layer_new (EBB_TYPE_VOCAB_PARALLEL_EMBEDDING, error, "num-embeddings", num_embeddings, "embedding-dim",
                        embedding_dim, "group", group, NULL);
}

static gboolean
ebb_vocab_parallel_embedding_build (EbbModule *module, GError **error)
{
  return ebb_parallel_layer_build (&EBB_VOCAB_PARALLEL_EMBEDDING (module)->layer, module,
                                   ebb_vocab_parallel_embedding_parent_class, 0, error);
}

/* -- rows ---------------------------------------------------------------------------------------------------------- */

static const EbbOp op_check = { "embedding", EBB_OP_INDEXING, EBB_N_KERNELS, NULL, NULL };

/* Whether this forward's tokens are compared: the same on all ranks. A recompute has the tokens of its forward. */
static gboolean
is_compared (EbbVocabParallelEmbedding *self, EbbTensor *indices)
{
  if (ebb_modes.recomputing > 0 || ebb_is_stopped () || indices->storage->placeholder)
    return FALSE;
  return indices->storage->device->backend->host_memory || self->n_checked++ < CHECKED_FORWARDS_ON_DEVICE;
}

/* Reads one byte by each index, as if the full table were bytes: the kernel that does checks the indices. */
static gboolean
launch_check (EbbOpCall *call, gint64 n_rows, GError **error)
{
  EbbTensor *indices = call->inputs[0];
  EbbDevice *device = EBB_DEVICE_OF (indices);
  const gint64 one = 1;
  g_autoptr (EbbTensor) table = ebb_tensor_new_uninitialized (&one, 1, EBB_DTYPE_U8, device, error);
  g_autoptr (EbbTensor) rows = NULL;
  EbbLaunch launch;
  EbbView full, flat;

  if (table == NULL
      || (rows = ebb_tensor_new_uninitialized (&indices->n_elements, 1, EBB_DTYPE_U8, device, error)) == NULL
      || !ebb_launch_fill (table, 0, error))
    return FALSE;
  full = table->view;
  full.shape[0] = n_rows;
  full.strides[0] = 0;
  ebb_view_init (&flat, indices->view.data, indices->view.dtype, &indices->n_elements, 1);
  ebb_launch_init (&launch, EBB_KERNEL_GATHER);
  launch.op = call->op->name;
  launch.inputs[launch.n_inputs++] = &full;
  launch.inputs[launch.n_inputs++] = &flat;
  ebb_launch_output (&launch, rows);
  return ebb_launch (device, &launch, error);
}

/* Checks against the full table, since each rank would take an index that is out of range for another rank's.
 * @checksum: 0 if the tokens are not compared. */
static gboolean
check_indices (EbbVocabParallelEmbedding *self, EbbTensor *indices, guint64 *checksum, GError **error)
{
  EbbOpCall call;
  gboolean ok;

  *checksum = 0;
  if (!ebb_op_begin (&call, &op_check, error, 1, indices)
      || !ebb_op_prepare_indices (&call, 0, error) || !ebb_op_cast (&call, 0, EBB_DTYPE_I64, error))
    return FALSE;
  /* Outside of a stopped recompute a placeholder has nothing to read; the first forward has seen the same indices. */
  ok = call.inputs[0]->storage->placeholder || launch_check (&call, self->parent_instance.num_embeddings, error);
  ok = ok && (!is_compared (self, indices) || ebb_agree_checksum (call.inputs[0], checksum, error));
  ebb_op_clear (&call);
  return ok;
}

static const char *
get_name (EbbModule *module)
{
  EbbModule *parent = ebb_module_get_private (module)->parent;
  const EbbModulePrivate *priv = parent != NULL ? ebb_module_get_private (parent) : NULL;

  for (guint i = 0; priv != NULL && i < priv->n_children; i++)
    if (priv->children[i].module == module)
      return priv->children[i].name;
  return "embedding";
}

/* Describes the state that must be the same on ranks that share a model: the tokens, and in training the default
 * generator. It goes into the purpose of the next collective, which the ranks compare anyway; short, since errors show
 * only the end of a purpose. */
static char *
describe (EbbVocabParallelEmbedding *self, guint64 checksum)
{
  EbbModule *module = EBB_MODULE (self);
  EbbGenerator *generator = ebb_generator_get_default ();
  GString *text = g_string_new (get_name (module));

  if (checksum != 0)
    g_string_append_printf (text, " of tokens with checksum %08x (ranks that share a model get the same rows)",
                            (guint) (checksum & G_MAXUINT32));
  if (ebb_module_get_training (module) && ebb_modes.recomputing == 0 && ebb_modes.forks == NULL)
    g_string_append_printf (text,
                            "%s default generator at %" G_GUINT64_FORMAT "+%" G_GUINT64_FORMAT
                            " (ebb_model_parallel_manual_seed () puts them alike)",
                            checksum != 0 ? "," : " with", ebb_generator_get_seed (generator),
                            ebb_generator_get_offset (generator));
  return g_string_free (text, FALSE);
}

/* This rank's rows, and zeros for those of others: another rank's row is looked up as the nearest one here and then
 * replaced, so that no gradient reaches it. */
static EbbTensor *
look_up (EbbVocabParallelEmbedding *self, EbbTensor *indices, GError **error)
{
  gint64 first, count, n_rows = self->parent_instance.num_embeddings;
  g_autoptr (EbbTensor) shifted = NULL;
  g_autoptr (EbbTensor) nearest = NULL;
  g_autoptr (EbbTensor) is_here = NULL;
  g_autoptr (EbbTensor) rows_are_here = NULL;
  g_autoptr (EbbTensor) rows = NULL;
  g_autoptr (EbbTensor) zero = NULL;

  ebb_parallel_get_part (n_rows, ebb_process_group_get_size (self->layer.group),
                         ebb_process_group_get_rank (self->layer.group), &first, &count);
  shifted = ebb_sub_scalar (indices, (double) first, error);
  nearest = ebb_clamp (shifted, 0, (double) (count - 1), error);
  is_here = ebb_eq (shifted, nearest, error);
  rows_are_here = ebb_unsqueeze (is_here, -1, error);
  rows = ebb_embedding (self->parent_instance.weight, nearest, error);
  if (rows == NULL)
    return NULL;
  zero = ebb_zeros (NULL, 0, rows->view.dtype, rows->storage->device, error);
  return ebb_where (rows_are_here, rows, zero, error);
}

static EbbTensor *
ebb_vocab_parallel_embedding_forward1 (EbbModule *module, EbbTensor *input, GError **error)
{
  EbbVocabParallelEmbedding *self = EBB_VOCAB_PARALLEL_EMBEDDING (module);
  g_autoptr (EbbTensor) summand = NULL;
  g_autofree char *purpose = NULL;
  guint64 checksum;

  if (ebb_process_group_get_size (self->layer.group) == 1)
    return ebb_embedding (self->parent_instance.weight, input, error);
  if (input == NULL || !check_indices (self, input, &checksum, error))
    return NULL;
  summand = look_up (self, input, error);
  if (summand == NULL)
    return NULL;
  purpose = describe (self, checksum);
  return ebb_parallel_reduce_over (summand, self->layer.group, purpose, error);
}

/* -- output -------------------------------------------------------------------------------------------------------- */

static EbbTensor *
ebb_vocab_parallel_embedding_logits (EbbOutputLayer *module, EbbTensor *x, EbbTensor *bias, GError **error)
{
  EbbVocabParallelEmbedding *self = (EbbVocabParallelEmbedding *) module;
  g_autoptr (EbbTensor) entered = ebb_parallel_layer_enter (&self->layer, x, error);
  g_autoptr (EbbTensor) part = ebb_linear (entered, self->parent_instance.weight, bias, error);

  return part != NULL ? ebb_parallel_gather_sized (part, -1, self->parent_instance.num_embeddings, FALSE,
                                                   self->layer.group, error)
                      : NULL;
}

static EbbTensor *
ebb_vocab_parallel_embedding_loss (EbbOutputLayer *module,
                                   EbbTensor *x,
                                   EbbTensor *bias,
                                   EbbTensor *targets,
                                   double softcap,
                                   GError **error)
{
  EbbVocabParallelEmbedding *self = (EbbVocabParallelEmbedding *) module;
  g_autoptr (EbbTensor) entered = ebb_parallel_layer_enter (&self->layer, x, error);

  return ebb_vocab_parallel_linear_cross_entropy_full (entered, self->parent_instance.weight, bias, targets,
                                                       self->parent_instance.num_embeddings, EBB_IGNORED_TARGET,
                                                       softcap, EBB_REDUCTION_MEAN, self->layer.group, error);
}

static void
output_layer_interface_init (EbbOutputLayerInterface *interface)
{
  interface->logits = ebb_vocab_parallel_embedding_logits;
  interface->loss = ebb_vocab_parallel_embedding_loss;
}

/* -- class --------------------------------------------------------------------------------------------------------- */

static void
ebb_vocab_parallel_embedding_finalize (GObject *object)
{
  ebb_parallel_layer_clear (&EBB_VOCAB_PARALLEL_EMBEDDING (object)->layer);
  G_OBJECT_CLASS (ebb_vocab_parallel_embedding_parent_class)->finalize (object);
}

static void
ebb_vocab_parallel_embedding_class_init (EbbVocabParallelEmbeddingClass *klass)
{
  const GParamFlags flags = G_PARAM_READWRITE | G_PARAM_CONSTRUCT_ONLY | G_PARAM_STATIC_STRINGS;
  GObjectClass *object_class = G_OBJECT_CLASS (klass);
  EbbModuleClass *module_class = EBB_MODULE_CLASS (klass);

  object_class->get_property = ebb_property_get_field;
  object_class->set_property = ebb_property_set_field;
  object_class->finalize = ebb_vocab_parallel_embedding_finalize;
  module_class->build = ebb_vocab_parallel_embedding_build;
  module_class->forward1 = ebb_vocab_parallel_embedding_forward1;

  /**
   * EbbVocabParallelEmbedding:group:
   *
   * The ranks; the default group if none is given.
   */
  g_object_class_install_property (object_class, offsetof (EbbVocabParallelEmbedding, layer.group),
                                   g_param_spec_object ("group", NULL, "The ranks", EBB_TYPE_PROCESS_GROUP, flags));
}

static void
ebb_vocab_parallel_embedding_init (EbbVocabParallelEmbedding *self)
{
}
