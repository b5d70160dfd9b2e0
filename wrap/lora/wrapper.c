/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Adds low-rank branches to linear layers in place (LoRA, Hu et al., arXiv 2106.09685), and freezes the rest. */
#include "wrap/lora/lora-private.h"

#include "nn/layers/layer-private.h"
#include "tensor/autograd/autograd.h"
#include "tensor/error-private.h"
#include "tensor/ops/in-place.h"
#include "tensor/ops/product.h"
#include "tensor/tensor-private.h"
#include "tensor/thread-private.h"
#include "wrap/shard/unit-private.h"

#include <string.h>

/* -- models -------------------------------------------------------------------------------------------------------- */

static GQuark
get_quark (void)
{
  return g_quark_from_static_string ("ebb-lora-model");
}

static void
model_free (gpointer data)
{
  EbbLoraModel *self = data;

  g_ptr_array_unref (self->adapters);
  g_ptr_array_unref (self->frozen);
  g_free (self);
}

static EbbLoraModel *
peek (EbbModule *model)
{
  return g_object_get_qdata (G_OBJECT (model), get_quark ());
}

EbbLoraModel *
ebb_lora_model_get (EbbModule *model,
                    GError **error)
{
  EbbLoraModel *self = peek (model);

  if (self == NULL)
    g_set_error (error, EBB_ERROR, EBB_ERROR_STATE, "lora: this %s has no adapter; ebb_lora_wrap () adds one",
                 ebb_module_get_type_name (model));
  return self;
}

EbbLoraOptions *
ebb_lora_model_find (EbbLoraModel *self,
                     const char *adapter,
                     GError **error)
{
  g_autoptr (GString) names = g_string_new (NULL);

  for (guint i = 0; i < self->adapters->len; i++)
    {
      EbbLoraOptions *options = g_ptr_array_index (self->adapters, i);

      if (strcmp (options->adapter, adapter) == 0)
        return options;
      g_string_append_printf (names, "%s%s", i > 0 ? ", " : "", options->adapter);
    }
  return ebb_fail_null (error, EBB_ERROR_INVALID_ARGUMENT, "lora: there is no adapter \"%s\"; there are %s", adapter,
                        names->str);
}

/* FALSE with an error if an adapter is merged; @what names the attempt. */
static gboolean
check_unmerged (EbbLoraModel *self,
                const char *what,
                GError **error)
{
  return !self->is_merged
         || ebb_fail (error, EBB_ERROR_STATE, "lora: the adapter \"%s\" is merged: %s after ebb_lora_unmerge ()",
                      self->active->adapter, what);
}

static void
place_clear (gpointer data)
{
  g_free (((EbbLoraPlace *) data)->path);
}

typedef struct
{
  const char *adapter; /* NULL: any */
  GArray *places;
} Listing;

static gboolean
list_place (EbbModule *module,
            const char *path,
            gpointer user_data)
{
  Listing *listing = user_data;
  EbbLoraLayer *layer = ebb_lora_layer_get (module);
  EbbLoraPlace place = { NULL, module };

  if (layer == NULL || (listing->adapter != NULL && ebb_lora_layer_find (layer, listing->adapter) == NULL))
    return TRUE;
  place.path = g_strdup (path);
  g_array_append_val (listing->places, place);
  return TRUE;
}

GArray *
ebb_lora_model_list_places (EbbModule *model,
                            const char *adapter)
{
  Listing listing = { adapter, g_array_new (FALSE, FALSE, sizeof (EbbLoraPlace)) };

  g_array_set_clear_func (listing.places, place_clear);
  ebb_module_visit (model, list_place, &listing);
  return listing.places;
}

static void
choose (EbbModule *model,
        EbbLoraModel *self,
        EbbLoraOptions *options)
{
  g_autoptr (GArray) places = ebb_lora_model_list_places (model, NULL);

  for (guint i = 0; i < places->len; i++)
    ebb_lora_layer_choose (ebb_lora_layer_get (g_array_index (places, EbbLoraPlace, i).module),
                           options != NULL ? options->adapter : NULL);
  self->active = options;
}

/* -- adding an adapter --------------------------------------------------------------------------------------------- */

typedef struct
{
  EbbLoraOptions *options;
  EbbLoraPickFunc picks;
  gpointer user_data;
  GPtrArray *modules, *branches;
  GError *error;
} Addition;

static gboolean
check_layer (EbbModule *module,
             const char *path,
             GError **error)
{
  return ebb_linear_peek_weight ((EbbLinear *) module)->owner == NULL
         || ebb_fail (error, EBB_ERROR_STATE,
                      "lora: the weight of %s is sharded or replicated already: wrap before ebb_fully_shard () and "
                      "ebb_replicate ()",
                      path);
}

static gboolean
make_branch (EbbModule *module,
             const char *path,
             gpointer user_data)
{
  Addition *addition = user_data;
  EbbLoraBranch *branch;

  if (!EBB_IS_LINEAR (module) || !addition->picks (module, path, addition->user_data))
    return TRUE;
  branch = check_layer (module, path, &addition->error)
               ? ebb_lora_branch_new (module, addition->options, &addition->error)
               : NULL;
  if (branch == NULL)
    return FALSE;
  g_ptr_array_add (addition->modules, module);
  g_ptr_array_add (addition->branches, branch);
  return TRUE;
}

static void
freeze (EbbModule *model,
        EbbLoraModel *self)
{
  g_autoptr (GPtrArray) parameters = ebb_module_list_parameters (model);

  for (guint i = 0; i < parameters->len; i++)
    if (ebb_tensor_get_requires_grad (parameters->pdata[i]))
      {
        ebb_tensor_set_requires_grad (parameters->pdata[i], FALSE, NULL);
        g_ptr_array_add (self->frozen, ebb_tensor_ref (parameters->pdata[i]));
      }
}

static EbbLoraModel *
get_or_make (EbbModule *model)
{
  EbbLoraModel *self = peek (model);

  if (self != NULL)
    return self;
  self = g_new0 (EbbLoraModel, 1);
  self->adapters = g_ptr_array_new_with_free_func (g_object_unref);
  self->frozen = g_ptr_array_new_with_free_func ((GDestroyNotify) ebb_tensor_unref);
  g_object_set_qdata_full (G_OBJECT (model), get_quark (), self, model_free);
  freeze (model, self);
  return self;
}

static gboolean
check_is_new (EbbModule *model,
              EbbLoraOptions *options,
              GError **error)
{
  EbbLoraModel *self = peek (model);

  if (self == NULL)
    return TRUE;
  if (!check_unmerged (self, "add another one", error))
    return FALSE;
  return ebb_lora_model_find (self, options->adapter, NULL) == NULL
         || ebb_fail (error, EBB_ERROR_STATE, "lora: there is an adapter \"%s\" already; give this one another name",
                      options->adapter);
}

gboolean
ebb_lora_model_add (EbbModule *model,
                    EbbLoraOptions *options,
                    EbbLoraPickFunc picks,
                    gpointer user_data,
                    GError **error)
{
  g_autoptr (GPtrArray) modules = g_ptr_array_new ();
  g_autoptr (GPtrArray) branches = g_ptr_array_new ();
  Addition addition = { options, picks, user_data, modules, branches, NULL };
  EbbLoraModel *self;

  if (!ebb_lora_options_check (options, error) || !check_is_new (model, options, error))
    return FALSE;
  ebb_module_visit (model, make_branch, &addition);
  if (addition.error != NULL)
    {
      g_ptr_array_set_free_func (branches, ebb_lora_branch_free);
      return ebb_fail_with (error, addition.error);
    }
  self = get_or_make (model);
  for (guint i = 0; i < modules->len; i++)
    ebb_lora_layer_add (g_ptr_array_index (modules, i), g_ptr_array_index (branches, i));
  g_ptr_array_add (self->adapters, ebb_lora_options_copy (options));
  choose (model, self, g_ptr_array_index (self->adapters, self->adapters->len - 1));
  return TRUE;
}

void
ebb_lora_model_drop_last (EbbModule *model,
                          const char *before)
{
  EbbLoraModel *self = peek (model);
  EbbLoraOptions *last = g_ptr_array_index (self->adapters, self->adapters->len - 1);
  g_autoptr (GArray) places = NULL;

  if (self->adapters->len == 1)
    {
      ebb_lora_unwrap (model, NULL);
      return;
    }
  places = ebb_lora_model_list_places (model, last->adapter);
  choose (model, self, before != NULL ? ebb_lora_model_find (self, before, NULL) : NULL);
  for (guint i = 0; i < places->len; i++)
    ebb_lora_layer_drop (g_array_index (places, EbbLoraPlace, i).module, last->adapter);
  g_ptr_array_set_size (self->adapters, (int) self->adapters->len - 1);
}

/* -- targets ------------------------------------------------------------------------------------------------------- */

/* TRUE if @path, or its end after a dot, is @target. */
static gboolean
matches (const char *target,
         const char *path)
{
  g_autofree char *below = g_strconcat ("*.", target, NULL);

  return g_pattern_match_simple (target, path) || g_pattern_match_simple (below, path);
}

typedef struct
{
  char **targets;      /* NULL: all but the head */
  char **exclude;      /* NULL: none */
  gboolean *is_used;   /* by target */
  gboolean is_any;     /* a layer is picked */
  GHashTable *endings; /* the last parts of the paths of linear layers */
} Targets;

static gboolean
is_target (EbbModule *layer,
           const char *path,
           gpointer user_data)
{
  Targets *targets = user_data;
  gboolean is_picked = targets->targets == NULL && strcmp (ebb_lora_get_ending (path), "lm_head") != 0;

  g_hash_table_add (targets->endings, g_strdup (ebb_lora_get_ending (path)));
  for (guint i = 0; targets->targets != NULL && targets->targets[i] != NULL; i++)
    if (matches (targets->targets[i], path))
      targets->is_used[i] = is_picked = TRUE;
  for (guint i = 0; is_picked && targets->exclude != NULL && targets->exclude[i] != NULL; i++)
    is_picked = !matches (targets->exclude[i], path);
  targets->is_any = targets->is_any || is_picked;
  return is_picked;
}

static gboolean
collect_targets (EbbModule *module,
                 const char *path,
                 gpointer user_data)
{
  if (EBB_IS_LINEAR (module))
    is_target (module, path, user_data);
  return TRUE;
}

static gboolean
check_targets (EbbModule *model,
               Targets *targets,
               GError **error)
{
  g_autoptr (GList) endings = NULL;
  g_autoptr (GString) text = g_string_new (NULL);
  const char *unused = NULL;

  ebb_module_visit (model, collect_targets, targets);
  for (guint i = 0; unused == NULL && targets->targets != NULL && targets->targets[i] != NULL; i++)
    unused = targets->is_used[i] ? NULL : targets->targets[i];
  if (unused == NULL && targets->is_any)
    return TRUE;
  endings = g_list_sort (g_hash_table_get_keys (targets->endings), (GCompareFunc) strcmp);
  for (GList *i = endings; i != NULL; i = i->next)
    g_string_append_printf (text, "%s%s", i == endings ? "" : ", ", (char *) i->data);
  if (unused != NULL)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "lora: the target \"%s\" matches no linear layer of this %s; it has %s", unused,
                     ebb_module_get_type_name (model), text->len > 0 ? text->str : "none");
  return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                   "lora: no linear layer of this %s is a target that is not excluded; it has %s",
                   ebb_module_get_type_name (model), text->len > 0 ? text->str : "none");
}

/**
 * ebb_lora_wrap:
 * @model: a model
 * @options: (nullable): the options; %NULL for the defaults
 * @error: return location for an error
 *
 * Adds an adapter to a model in place: each linear layer that the options' targets match gets a low-rank branch, whose
 * result is added to the layer's own, y = x W^T + b + scale · dropout (x) A^T B^T, with A `[rank, in]`, B `[out, rank]`
 * and the scale alpha / rank. A is drawn from the thread's default generator and B is zero, so that the model computes
 * at first what it did before.
 *
 * All other parameters of the model stop requiring a gradient: they get no gradients, and an optimizer keeps no moments
 * for them. Their names don't change, and those of the branches are PEFT's, `h.0.attn.c_attn.lora_A.default.weight`.
 * Wrapping again with another name adds another adapter. The last one added is chosen; see ebb_lora_set_adapter().
 *
 * The model is wrapped after ebb_parallelize(), before ebb_fully_shard() and ebb_replicate(), and before an optimizer
 * is made of its parameters. Tensor ranks whose generators have the same state draw the same adapter, however many they
 * are.
 *
 * Returns: (transfer full) (nullable): @model; %NULL with %EBB_ERROR_INVALID_ARGUMENT for a target that matches nothing
 *   or an option out of range, with %EBB_ERROR_STATE if there is an adapter of that name, one is merged, or the weights
 *   are sharded or replicated already
 */
EbbModule *
ebb_lora_wrap (EbbModule *model,
               EbbLoraOptions *options,
               GError **error)
{
  g_autoptr (EbbLoraOptions) used = NULL;
  g_autoptr (GHashTable) endings = g_hash_table_new_full (g_str_hash, g_str_equal, g_free, NULL);
  g_autofree gboolean *is_used = NULL;
  Targets targets = { .endings = endings };

  g_return_val_if_fail (model == NULL || EBB_IS_MODULE (model), NULL);
  g_return_val_if_fail (options == NULL || EBB_IS_LORA_OPTIONS (options), NULL);

  if (!EBB_MAY_BEGIN (error, model))
    return NULL;
  used = options != NULL ? ebb_lora_options_copy (options) : ebb_lora_options_new ();
  targets.targets = used->targets;
  targets.exclude = used->exclude;
  targets.is_used = is_used = g_new0 (gboolean, used->targets != NULL ? g_strv_length (used->targets) + 1 : 1);
  if (!check_targets (model, &targets, error) || !ebb_lora_model_add (model, used, is_target, &targets, error))
    return NULL;
  return g_object_ref (model);
}

/* -- adapters ------------------------------------------------------------------------------------------------------ */

/**
 * ebb_lora_is_wrapped:
 * @model: a model
 *
 * Returns: %TRUE if the model has an adapter
 */
gboolean
ebb_lora_is_wrapped (EbbModule *model)
{
  g_return_val_if_fail (EBB_IS_MODULE (model), FALSE);

  return peek (model) != NULL;
}

/**
 * ebb_lora_get_adapters:
 * @model: a model
 *
 * Returns: (transfer full) (array zero-terminated=1): the names of its adapters, in the order in which they were added
 */
char **
ebb_lora_get_adapters (EbbModule *model)
{
  EbbLoraModel *self;
  char **names;

  g_return_val_if_fail (EBB_IS_MODULE (model), NULL);

  self = peek (model);
  names = g_new0 (char *, self != NULL ? self->adapters->len + 1 : 1);
  for (guint i = 0; self != NULL && i < self->adapters->len; i++)
    names[i] = g_strdup (((EbbLoraOptions *) g_ptr_array_index (self->adapters, i))->adapter);
  return names;
}

/**
 * ebb_lora_get_adapter:
 * @model: a model
 *
 * Returns: (transfer full) (nullable): the name of the adapter that is chosen; %NULL if none is
 */
char *
ebb_lora_get_adapter (EbbModule *model)
{
  EbbLoraModel *self;

  g_return_val_if_fail (EBB_IS_MODULE (model), NULL);

  self = peek (model);
  return self != NULL && self->active != NULL ? g_strdup (self->active->adapter) : NULL;
}

/**
 * ebb_lora_set_adapter:
 * @model: a model with adapters
 * @adapter: (nullable): the name of one; %NULL for the model without any
 * @error: return location for an error
 *
 * Chooses the adapter whose branches are computed and trained. No forward of the model may be running.
 *
 * Returns: %FALSE with %EBB_ERROR_INVALID_ARGUMENT if no adapter has that name, with %EBB_ERROR_STATE if the model has
 *   no adapters or one is merged
 */
gboolean
ebb_lora_set_adapter (EbbModule *model,
                      const char *adapter,
                      GError **error)
{
  EbbLoraModel *self;
  EbbLoraOptions *options = NULL;

  g_return_val_if_fail (model == NULL || EBB_IS_MODULE (model), FALSE);

  if (!EBB_MAY_BEGIN (error, model))
    return FALSE;
  self = ebb_lora_model_get (model, error);
  if (self == NULL || !check_unmerged (self, "choose another one", error)
      || (adapter != NULL && (options = ebb_lora_model_find (self, adapter, error)) == NULL))
    return FALSE;
  choose (model, self, options);
  return TRUE;
}

/* Ranks that share the branches would miss them. */
static gboolean
check_unowned (const GArray *places,
               GError **error)
{
  for (guint i = 0; i < places->len; i++)
    {
      const EbbLoraPlace *place = &g_array_index (places, EbbLoraPlace, i);
      const GPtrArray *branches = ebb_lora_layer_get (place->module)->branches;
      gboolean is_owned = ebb_linear_peek_weight ((EbbLinear *) place->module)->owner != NULL;

      for (guint k = 0; k < branches->len; k++)
        is_owned |= ebb_lora_factor_get_weight (((EbbLoraBranch *) g_ptr_array_index (branches, k))->a)->owner != NULL;
      if (!is_owned)
        continue;
      return ebb_fail (error, EBB_ERROR_STATE,
                       "lora: %s is sharded or replicated with its branches, which can't be removed from it",
                       place->path);
    }
  return TRUE;
}

/**
 * ebb_lora_unwrap:
 * @model: a model with adapters
 * @error: return location for an error
 *
 * Removes all adapters. The parameters that required a gradient before do so again. If one is merged, its product stays
 * in the weights: so does a fine-tuned model become one that ebb_model_save() saves and other programs open.
 *
 * Returns: %FALSE with %EBB_ERROR_STATE if the model has no adapters, or is sharded or replicated with them
 */
gboolean
ebb_lora_unwrap (EbbModule *model,
                 GError **error)
{
  g_autoptr (GArray) places = NULL;
  EbbLoraModel *self;

  g_return_val_if_fail (model == NULL || EBB_IS_MODULE (model), FALSE);

  if (!EBB_MAY_BEGIN (error, model))
    return FALSE;
  self = ebb_lora_model_get (model, error);
  if (self == NULL)
    return FALSE;
  places = ebb_lora_model_list_places (model, NULL);
  if (!check_unowned (places, error))
    return FALSE;
  for (guint i = 0; i < places->len; i++)
    ebb_lora_layer_remove (g_array_index (places, EbbLoraPlace, i).module);
  for (guint i = 0; i < self->frozen->len; i++)
    ebb_tensor_set_requires_grad (g_ptr_array_index (self->frozen, i), TRUE, NULL);
  g_object_set_qdata (G_OBJECT (model), get_quark (), NULL);
  return TRUE;
}

/* -- merging ------------------------------------------------------------------------------------------------------- */

/* weight += sign · scale · B A, by way of a temporary of the weight's size. */
static gboolean
add_product (EbbTensor *weight,
             const EbbLoraBranch *branch,
             double sign,
             GError **error)
{
  g_autoptr (EbbTensor) product =
      ebb_matmul (ebb_lora_factor_get_weight (branch->b), ebb_lora_factor_get_weight (branch->a), error);

  return product != NULL && ebb_tensor_add_scaled (weight, product, sign * branch->scale, error);
}

static gboolean
add_products (EbbModule *model,
              EbbLoraModel *self,
              double sign,
              GError **error)
{
  g_autoptr (GArray) places = ebb_lora_model_list_places (model, self->active->adapter);
  gboolean ok = TRUE;
  guint n = 0;

  for (guint i = 0; i < places->len; i++)
    {
      const EbbLoraPlace *place = &g_array_index (places, EbbLoraPlace, i);

      if (ebb_linear_is_quantized ((EbbLinear *) place->module))
        return ebb_fail (error, EBB_ERROR_NOT_SUPPORTED,
                         "lora: the weight of %s is %s, and adding to it would round it again: save the adapter, and "
                         "merge it into the model with full weights",
                         place->path,
                         ebb_quantization_get_name (((EbbLinear *) place->module)->quantized.quantization));
      if (ebb_shard_unit_of (((EbbLinear *) place->module)->weight, NULL) == NULL)
        continue;
      return ebb_fail (error, EBB_ERROR_STATE,
                       "lora: the weight of %s is sharded: save the adapter, and merge it into a model that is not",
                       place->path);
    }
  ebb_push_grad_enabled (FALSE);
  ebb_push_autocast (FALSE, EBB_DTYPE_BF16);
  for (; ok && n < places->len; n += ok)
    {
      EbbModule *module = g_array_index (places, EbbLoraPlace, n).module;

      ok = add_product (((EbbLinear *) module)->weight,
                        ebb_lora_layer_find (ebb_lora_layer_get (module), self->active->adapter), sign, error);
    }
  /* A failure leaves no weight changed, up to rounding: there was memory for these products before. */
  for (guint i = 0; !ok && i < n; i++)
    {
      EbbModule *module = g_array_index (places, EbbLoraPlace, i).module;

      add_product (((EbbLinear *) module)->weight,
                   ebb_lora_layer_find (ebb_lora_layer_get (module), self->active->adapter), -sign, NULL);
    }
  ebb_pop_autocast ();
  ebb_pop_grad_enabled ();
  for (guint i = 0; ok && i < places->len; i++)
    {
      EbbLoraLayer *layer = ebb_lora_layer_get (g_array_index (places, EbbLoraPlace, i).module);

      ebb_lora_layer_activate (layer, sign > 0 ? NULL : ebb_lora_layer_find (layer, self->active->adapter));
    }
  if (ok)
    self->is_merged = sign > 0;
  return ok;
}

/**
 * ebb_lora_merge:
 * @model: a model with adapters of which one is chosen
 * @error: return location for an error
 *
 * Adds the product of the chosen adapter's branches to the weights of their layers, W += scale · B A, which then cost
 * no more than they did without it. The model is not for training until ebb_lora_unmerge() or ebb_lora_unwrap().
 *
 * Returns: %FALSE with %EBB_ERROR_STATE if an adapter is merged already, none is chosen, or the weights are sharded
 */
gboolean
ebb_lora_merge (EbbModule *model,
                GError **error)
{
  EbbLoraModel *self;

  g_return_val_if_fail (model == NULL || EBB_IS_MODULE (model), FALSE);

  if (!EBB_MAY_BEGIN (error, model))
    return FALSE;
  self = ebb_lora_model_get (model, error);
  if (self == NULL || !check_unmerged (self, "merge again", error))
    return FALSE;
  if (self->active != NULL)
    return add_products (model, self, 1, error);
  return ebb_fail (error, EBB_ERROR_STATE,
                   "lora: no adapter is chosen to be merged; ebb_lora_set_adapter () chooses one");
}

/**
 * ebb_lora_unmerge:
 * @model: a model with a merged adapter
 * @error: return location for an error
 *
 * Subtracts the product that ebb_lora_merge() has added. The weights are the earlier ones again, up to the rounding of
 * the addition and the subtraction.
 *
 * Returns: %FALSE with %EBB_ERROR_STATE if no adapter is merged
 */
gboolean
ebb_lora_unmerge (EbbModule *model,
                  GError **error)
{
  EbbLoraModel *self;

  g_return_val_if_fail (model == NULL || EBB_IS_MODULE (model), FALSE);

  if (!EBB_MAY_BEGIN (error, model))
    return FALSE;
  self = ebb_lora_model_get (model, error);
  if (self == NULL)
    return FALSE;
  if (self->is_merged)
    return add_products (model, self, -1, error);
  return ebb_fail (error, EBB_ERROR_STATE, "lora: no adapter is merged");
}

/**
 * ebb_lora_is_merged:
 * @model: a model
 *
 * Returns: %TRUE if an adapter is merged
 */
gboolean
ebb_lora_is_merged (EbbModule *model)
{
  EbbLoraModel *self;

  g_return_val_if_fail (EBB_IS_MODULE (model), FALSE);

  self = peek (model);
  return self != NULL && self->is_merged;
}
