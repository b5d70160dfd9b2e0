/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Adapters as GGUF files: NAME.lora_a [rank, in] and NAME.lora_b [out, rank] for each weight NAME that has a branch. */
#include "wrap/lora/lora-private.h"

#include "nn/args-private.h"
#include "nn/files/file-error-private.h"
#include "nn/files/gguf-private.h"
#include "tensor/util/json-scanner-private.h"
#include "nn/layers/layer-private.h"
#include "nn/models/folder/model-private.h"
#include "nn/models/gpt.h"
#include "tensor/error-private.h"
#include "tensor/ops/pointwise.h"
#include "tensor/tensor-private.h"

#include <math.h>
#include <string.h>

#define ALPHA "adapter.lora.alpha"

/* One pass through the linear layers of a model, to a file or from one. */
typedef struct
{
  const EbbArchitecture *architecture;
  const EbbGptConfig *config;
  EbbLoraOptions *options;
  EbbArgs *tensors; /* by PEFT's keys: what is written, or what was read */
  EbbGguf *gguf;    /* what is read */
  EbbGgufWriter writer;
  GPtrArray *order; /* of EbbTensor: what is written */
  GArray *permuted; /* of guint: the heads whose rows are permuted, for each of these */
  gsize n_read;
  GError *error;
} Pass;

/* -- names --------------------------------------------------------------------------------------------------------- */

/* The name of the layer's weight in GGUF files. Owned. *@n_heads: the heads whose rows are permuted; 0: none. */
static char *
get_name (const Pass *self,
          EbbModule *layer,
          const char *path,
          guint *n_heads)
{
  const EbbLinear *linear = (EbbLinear *) layer;
  const gint64 shape[] = { linear->out_features, linear->in_features };
  g_autofree char *own = g_strconcat (path, ".weight", NULL);
  EbbWeightMap *plain = ebb_weight_map_new (self->architecture);
  g_autoptr (EbbWeightMap) map = NULL;

  ebb_weight_map_add (plain, own, shape, 2, EBB_DTYPE_F32);
  map = ebb_weight_map_new_gguf (plain, self->config);
  ebb_weight_map_free (plain);
  *n_heads = g_array_index (map->weights, EbbWeight, 0).n_heads;
  return g_strdup (g_array_index (map->weights, EbbWeight, 0).name);
}

/* FALSE with an error if llama.cpp has no such model. */
static gboolean
begin (Pass *self,
       EbbModule *model,
       GError **error)
{
  self->architecture = EBB_IS_GPT (model) ? ebb_model_find_architecture (model, error) : NULL;
  if (self->architecture != NULL && self->architecture->gguf != NULL)
    {
      self->config = ebb_gpt_get_config (EBB_GPT (model));
      return TRUE;
    }
  if (error != NULL && *error == NULL)
    g_set_error (error, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED,
                 "lora: llama.cpp has no %s with its head, so an adapter of it has no form as GGUF",
                 ebb_module_get_type_name (model));
  return FALSE;
}

static void
end (Pass *self)
{
  g_clear_pointer ((EbbGptConfig **) &self->config, ebb_gpt_config_free);
}

gboolean
ebb_lora_check_gguf (EbbModule *model,
                     GError **error)
{
  Pass self = { 0 };

  if (!begin (&self, model, error))
    return FALSE;
  end (&self);
  return TRUE;
}

/* -- saving -------------------------------------------------------------------------------------------------------- */

static gboolean
add_factor (Pass *self,
            const char *name,
            const char *ending,
            EbbTensor *tensor,
            guint n_heads)
{
  g_autofree char *full = g_strconcat (name, ending, NULL);
  g_autoptr (EbbTensor) host = ebb_to_device (tensor, ebb_device_get_cpu (), &self->error);
  g_autoptr (EbbTensor) cast = host != NULL ? ebb_cast (host, EBB_DTYPE_F32, &self->error) : NULL;

  if (cast == NULL)
    return FALSE;
  ebb_gguf_writer_add_tensor (&self->writer, full, cast->view.shape, 2, EBB_GGUF_TENSOR_F32);
  g_ptr_array_add (self->order, g_steal_pointer (&cast));
  g_array_append_val (self->permuted, n_heads);
  return TRUE;
}

static gboolean
add_layer (EbbModule *module,
           const char *path,
           gpointer user_data)
{
  Pass *self = user_data;
  g_autofree char *key_a = NULL;
  g_autofree char *key_b = NULL;
  g_autofree char *name = NULL;
  guint n_heads;
  int a, b;

  if (!EBB_IS_LINEAR (module) || !ebb_lora_get_keys (self->architecture, module, path, &key_a, &key_b))
    return TRUE;
  a = ebb_args_find (self->tensors, key_a);
  b = ebb_args_find (self->tensors, key_b);
  if (a < 0 || b < 0)
    return TRUE;
  name = get_name (self, module, path, &n_heads);
  return add_factor (self, name, ".lora_a", ebb_args_peek_tensor (self->tensors, (guint) a), 0)
         && add_factor (self, name, ".lora_b", ebb_args_peek_tensor (self->tensors, (guint) b), n_heads);
}

static gboolean
write_factor (EbbAtomicFile *file,
              EbbTensor *tensor,
              guint n_heads,
              GError **error)
{
  const float *data = ebb_tensor_get_data (tensor, error);
  const gint64 n_rows = tensor->view.shape[0], width = tensor->view.shape[1];

  if (data == NULL)
    return FALSE;
  for (gint64 row = 0; row < n_rows; row++)
    {
      const gint64 own = n_heads > 0 ? ebb_weight_get_own_row (n_heads, n_rows, row) : row;

      if (!ebb_gguf_write_values (file, EBB_GGUF_TENSOR_F32, data + own * width, width, error))
        return FALSE;
    }
  return ebb_gguf_write_padding (file, EBB_GGUF_TENSOR_F32, n_rows * width, error);
}

static gboolean
write_file (Pass *self,
            const char *path,
            GError **error)
{
  EbbAtomicFile file;
  gboolean ok;

  if (!ebb_atomic_file_open (&file, path, error))
    return FALSE;
  ok = ebb_gguf_writer_write_header (&self->writer, &file, error);
  for (guint i = 0; ok && i < self->order->len; i++)
    ok = write_factor (&file, g_ptr_array_index (self->order, i), g_array_index (self->permuted, guint, i), error);
  if (ok)
    return ebb_atomic_file_commit (&file, error);
  ebb_atomic_file_abort (&file);
  return FALSE;
}

gboolean
ebb_lora_write_gguf (EbbModule *model,
                     const char *path,
                     EbbLoraOptions *options,
                     EbbArgs *tensors,
                     GError **error)
{
  g_autoptr (GPtrArray) order = g_ptr_array_new_with_free_func ((GDestroyNotify) ebb_tensor_unref);
  g_autoptr (GArray) permuted = g_array_new (FALSE, FALSE, sizeof (guint));
  Pass self = { .options = options, .tensors = tensors, .order = order, .permuted = permuted };
  const double alpha = ebb_lora_options_get_alpha (options);
  gboolean ok;

  if (!begin (&self, model, error))
    return FALSE;
  ebb_gguf_writer_init (&self.writer);
  ebb_gguf_writer_add_string (&self.writer, "general.architecture", self.architecture->gguf->name);
  ebb_gguf_writer_add_string (&self.writer, "general.type", "adapter");
  ebb_gguf_writer_add_string (&self.writer, "adapter.type", "lora");
  /* llama.cpp scales by alpha / rank, and knows nothing of rsLoRA's alpha / sqrt (rank). */
  ebb_gguf_writer_add_f32 (&self.writer, ALPHA, (float) (options->rslora ? alpha * sqrt (options->rank) : alpha));
  ebb_module_visit (model, add_layer, &self);
  ok = self.error == NULL && write_file (&self, path, &self.error);
  ebb_gguf_writer_clear (&self.writer);
  end (&self);
  if (!ok)
    g_propagate_error (error, self.error);
  return ok;
}

/* -- loading ------------------------------------------------------------------------------------------------------- */

/* A factor as f32, in the model's order of rows. NULL without an error: there is none. */
static EbbTensor *
read_factor (Pass *self,
             const char *name,
             const char *ending,
             guint n_heads)
{
  g_autofree char *full = g_strconcat (name, ending, NULL);
  const EbbTensorEntry *entry = ebb_tensor_file_find (self->gguf->tensors, full);
  g_autoptr (EbbTensor) made = NULL;

  if (entry == NULL)
    return NULL;
  if (entry->n_dims != 2 || entry->shape[0] < 1 || entry->shape[1] < 1
      || (n_heads > 0 && entry->shape[0] % (2 * n_heads) != 0))
    {
      ebb_file_fail (self->gguf->tensors->path, &self->error, "tensor %s is no factor of the model's layer", full);
      return NULL;
    }
  made = ebb_tensor_new_uninitialized (entry->shape, 2, EBB_DTYPE_F32, ebb_device_get_cpu (), &self->error);
  if (made == NULL || !ebb_weights_read_entry (self->gguf->tensors, entry, n_heads, made, &self->error))
    return NULL;
  self->n_read++;
  return g_steal_pointer (&made);
}

static gboolean
read_layer (EbbModule *module,
            const char *path,
            gpointer user_data)
{
  Pass *self = user_data;
  g_autofree char *key_a = NULL;
  g_autofree char *key_b = NULL;
  g_autofree char *name = NULL;
  g_autoptr (EbbTensor) a = NULL;
  g_autoptr (EbbTensor) b = NULL;
  guint n_heads;

  if (!EBB_IS_LINEAR (module) || !ebb_lora_get_keys (self->architecture, module, path, &key_a, &key_b))
    return TRUE;
  name = get_name (self, module, path, &n_heads);
  a = read_factor (self, name, ".lora_a", 0);
  b = self->error == NULL ? read_factor (self, name, ".lora_b", n_heads) : NULL;
  if (self->error != NULL)
    return FALSE;
  if ((a == NULL) != (b == NULL))
    return ebb_file_fail (self->gguf->tensors->path, &self->error, "tensor %s.%s is missing: %s.%s is there", name,
                          a == NULL ? "lora_a" : "lora_b", name, a == NULL ? "lora_b" : "lora_a");
  if (a == NULL)
    return TRUE;
  self->options->rank = (int) MIN (a->view.shape[0], G_MAXINT);
  ebb_args_add_tensor (self->tensors, key_a, a);
  ebb_args_add_tensor (self->tensors, key_b, b);
  return TRUE;
}

static gboolean
check_string (Pass *self,
              const char *key,
              const char *right)
{
  g_autofree char *found = NULL;
  g_autofree char *quoted = NULL;

  if (ebb_gguf_get_string (self->gguf, key, &found, &self->error) && strcmp (found, right) == 0)
    return TRUE;
  if (self->error != NULL)
    return FALSE;
  quoted = found != NULL ? ebb_json_quote (found) : g_strdup ("missing");
  return ebb_fail (&self->error, EBB_ERROR_STATE, "%s: %s is %s: for an adapter of this model it must be \"%s\"",
                   ebb_show_text (self->gguf->tensors->path), key, quoted, right);
}

static gboolean
read_all (Pass *self,
          EbbModule *model)
{
  const EbbTensorFile *file = self->gguf->tensors;

  if (!check_string (self, "general.type", "adapter") || !check_string (self, "adapter.type", "lora")
      || !check_string (self, "general.architecture", self->architecture->gguf->name))
    return FALSE;
  self->options->alpha = 0;
  ebb_gguf_get_double (self->gguf, ALPHA, &self->options->alpha, &self->error);
  if (self->error == NULL && !(self->options->alpha > 0 && self->options->alpha <= G_MAXFLOAT))
    ebb_file_fail (file->path, &self->error, "the value \"" ALPHA "\" must be a number above 0");
  if (self->error != NULL)
    return FALSE;
  ebb_module_visit (model, read_layer, self);
  if (self->error != NULL || self->n_read == file->n_entries)
    return self->error == NULL;
  return ebb_fail (&self->error, EBB_ERROR_STATE,
                   "%s: %" G_GSIZE_FORMAT " of %" G_GSIZE_FORMAT
                   " tensors belong to no linear layer of this %s, or to one that GGUF files join with others",
                   ebb_show_text (file->path), file->n_entries - self->n_read, file->n_entries,
                   ebb_module_get_type_name (model));
}

EbbArgs *
ebb_lora_read_gguf (EbbModule *model,
                    const char *path,
                    EbbLoraOptions *options,
                    GError **error)
{
  g_autoptr (EbbArgs) tensors = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (EbbGguf) gguf = ebb_gguf_open (path, error);
  Pass self = { .options = options, .tensors = tensors, .gguf = gguf };
  gboolean ok;

  if (gguf == NULL || !begin (&self, model, error))
    return NULL;
  ok = read_all (&self, model);
  end (&self);
  if (ok)
    return g_steal_pointer (&tensors);
  g_propagate_error (error, self.error);
  return NULL;
}
