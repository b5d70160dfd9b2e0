/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/args-private.h"
#include "nn/models/gpt-file-private.h"
#include "nn/models/gpt.h"
#include "nn/module-instance-private.h"
#include "tensor/autograd/autograd.h"
#include "tensor/error-private.h"
#include "tensor/ops/shape.h"

#include <string.h>

/* the format of the published GPT-2 file: our names, but the matrices inside blocks are [in, out], as x W has them. It
 * may say "transformer." before each name, carries the causal masks as "attn.bias", and the output product's weight
 * even where it is that of the embedding. */

static gboolean
is_block_matrix (const char *name)
{
  return g_str_has_prefix (name, "h.")
         && (g_str_has_suffix (name, ".c_attn.weight") || g_str_has_suffix (name, ".c_proj.weight")
             || g_str_has_suffix (name, ".c_fc.weight"));
}

static gboolean
is_mask (const char *name)
{
  return g_str_has_suffix (name, ".attn.bias") || g_str_has_suffix (name, ".attn.masked_bias");
}

/* @state with the matrices inside blocks the other way round. */
static gboolean
add_transposed (EbbArgs *state, const char *name, EbbTensor *tensor, GError **error)
{
  g_autoptr (EbbTensor) transposed = NULL;

  if (!is_block_matrix (name) || ebb_tensor_get_n_dims (tensor) != 2)
    {
      ebb_args_add_tensor (state, name, tensor);
      return TRUE;
    }
  transposed = ebb_transpose (tensor, 0, 1, error);
  if (transposed == NULL)
    return FALSE;
  ebb_args_add_tensor (state, name, transposed);
  return TRUE;
}

static EbbArgs *
from_gpt2 (EbbArgs *published, gboolean tied, GError **error)
{
  g_autoptr (EbbArgs) state = ebb_args_new (EBB_ARGS_DICT);

  if (tied && !ebb_gpt2_is_tied (published))
    {
      g_set_error (
          error, EBB_ERROR, EBB_ERROR_STATE,
          "load_gpt2: lm_head.weight differs from wte.weight, and the model has one weight for both: make it of a "
          "configuration that is not tied");
      return NULL;
    }
  for (guint i = 0; i < ebb_args_get_length (published); i++)
    {
      const char *name = ebb_args_get_key (published, i);
      EbbTensor *tensor = ebb_args_peek_tensor (published, i);

      if (name == NULL || tensor == NULL)
        {
          g_set_error (error, EBB_ERROR, EBB_ERROR_STATE, "load_gpt2: entry %u, \"%s\", is not a tensor", i,
                       name != NULL ? name : "");
          return NULL;
        }
      if (g_str_has_prefix (name, EBB_GPT2_PREFIX))
        name += strlen (EBB_GPT2_PREFIX);
      if (is_mask (name) || (tied && strcmp (name, "lm_head.weight") == 0))
        continue;
      if (ebb_args_find (state, name) >= 0)
        {
          g_autofree char *shown = ebb_escape_text (name);

          g_set_error (error, EBB_ERROR, EBB_ERROR_STATE,
                       "load_gpt2: %s is there twice, with and without " EBB_GPT2_PREFIX, shown);
          return NULL;
        }
      if (!add_transposed (state, name, tensor, error))
        return NULL;
    }
  return g_steal_pointer (&state);
}

/* Models with other modules have folders, see ebb_model_open (). */
static gboolean
check_layout (EbbGpt *self, const char *what, GError **error)
{
  g_autoptr (EbbGptConfig) config = ebb_gpt_get_config (self);

  if (config == NULL || config->layout == EBB_GPT_LAYOUT_GPT2)
    return TRUE;
  g_set_error (error, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED,
               "%s: the model has the layout of Llama, not GPT-2's; ebb_model_open () and ebb_model_save () are for it",
               what);
  return FALSE;
}

/**
 * ebb_gpt_load_gpt2:
 * @self: a model
 * @state: tensors by name, in the format of the published GPT-2 file
 * @error: return location for an error
 *
 * Loads weights in the format of the published GPT-2 file: matrices inside blocks are `[in, out]`, names may begin with
 * `transformer.`, causal masks are passed over, and so is an `lm_head.weight` that is that of `wte`, where the model's
 * weights are tied; another one is an error there, see ebb_gpt_config_new_from_gpt2(). With an error nothing is
 * changed. A model that is made to be loaded need not draw its weights before, see ebb_push_initialization_skipped().
 *
 * Returns: %TRUE if all was copied, %FALSE with @error set as ebb_module_load_state_dict() does
 */
gboolean
ebb_gpt_load_gpt2 (EbbGpt *self, EbbArgs *state, GError **error)
{
  g_autoptr (EbbGptConfig) config = NULL;
  g_autoptr (EbbArgs) own = NULL;

  if (!EBB_MAY_BEGIN (error, self, state))
    return FALSE;
  g_return_val_if_fail (EBB_IS_GPT (self), FALSE);

  if (!check_layout (self, "load_gpt2", error))
    return FALSE;
  config = ebb_gpt_get_config (self);
  ebb_push_grad_enabled (FALSE);
  own = from_gpt2 (state, config == NULL || config->tied, error);
  ebb_pop_grad_enabled ();
  return own != NULL && ebb_module_load_state_dict (EBB_MODULE (self), own, TRUE, error);
}

/**
 * ebb_gpt_to_gpt2_state:
 * @self: a model
 * @error: return location for an error
 *
 * Collects the weights in the format of the published GPT-2 file, without prefix and masks. The tensors share the
 * model's memory; the matrices inside blocks are transposed views, so they are not contiguous.
 *
 * Returns: (transfer full) (nullable): an %EBB_ARGS_DICT of tensors by name, or %NULL with @error set
 */
EbbArgs *
ebb_gpt_to_gpt2_state (EbbGpt *self, GError **error)
{
  g_autoptr (EbbArgs) own = NULL;
  g_autoptr (EbbArgs) published = NULL;
  gboolean done = TRUE;

  if (!EBB_MAY_BEGIN (error, self))
    return NULL;
  g_return_val_if_fail (EBB_IS_GPT (self), NULL);

  if (!check_layout (self, "to_gpt2_state", error)
      || !ebb_module_check_not_tensor_parallel (
          EBB_MODULE (self), "gather it by ebb_get_full_state_dict(), and load that into a model that is not divided",
          error))
    return NULL;
  own = ebb_module_get_state_dict (EBB_MODULE (self));
  published = ebb_args_new (EBB_ARGS_DICT);
  ebb_push_grad_enabled (FALSE);
  for (guint i = 0; done && i < ebb_args_get_length (own); i++)
    done = add_transposed (published, ebb_args_get_key (own, i), ebb_args_peek_tensor (own, i), error);
  ebb_pop_grad_enabled ();
  return done ? g_steal_pointer (&published) : NULL;
}
