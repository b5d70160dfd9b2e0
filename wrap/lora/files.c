/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Saves adapters as PEFT's folders, adapter_config.json and adapter_model.safetensors; load.c loads such folders, and
 * gguf.c does both with GGUF files. */
#include "wrap/lora/lora-private.h"

#include "dist/agree-private.h"
#include "dist/init.h"
#include "nn/args-private.h"
#include "nn/files/atomic-folder-private.h"
#include "nn/files/gguf-private.h"
#include "tensor/util/json-private.h"
#include "tensor/util/json-scanner-private.h"
#include "nn/files/safetensors.h"
#include "nn/initialization-private.h"
#include "nn/layers/layer-private.h"
#include "nn/models/folder/config-private.h"
#include "nn/models/folder/model-private.h"
#include "tensor/error-private.h"
#include "tensor/ops/in-place.h"
#include "tensor/ops/pointwise.h"
#include "tensor/tensor-private.h"
#include "wrap/shard/state/local-shard-private.h"

#include <math.h>
#include <string.h>

/* -- saving -------------------------------------------------------------------------------------------------------- */

typedef struct
{
  const GArray *places;
  GHashTable *endings; /* the last parts of the places' paths */
  gboolean is_exact;   /* all linear layers with these endings are places */
} Endings;

static gboolean
check_ending (EbbModule *module,
              const char *path,
              gpointer user_data)
{
  Endings *endings = user_data;
  gboolean is_place = FALSE;

  if (!EBB_IS_LINEAR (module) || !g_hash_table_contains (endings->endings, ebb_lora_get_ending (path)))
    return TRUE;
  for (guint i = 0; !is_place && i < endings->places->len; i++)
    is_place = g_array_index (endings->places, EbbLoraPlace, i).module == module;
  endings->is_exact = endings->is_exact && is_place;
  return TRUE;
}

/* "target_modules": the endings of the names, if no other layer has them, else the names themselves. */
static void
append_targets (EbbModule *model,
                const GArray *places,
                const GPtrArray *file_paths,
                GString *json)
{
  g_autoptr (GHashTable) seen = g_hash_table_new (g_str_hash, g_str_equal);
  Endings endings = { places, seen, TRUE };
  g_autoptr (GHashTable) written = g_hash_table_new (g_str_hash, g_str_equal);

  for (guint i = 0; i < places->len; i++)
    g_hash_table_add (seen, (gpointer) ebb_lora_get_ending (g_array_index (places, EbbLoraPlace, i).path));
  ebb_module_visit (model, check_ending, &endings);
  for (guint i = 0; i < file_paths->len; i++)
    {
      const char *path = g_ptr_array_index (file_paths, i);
      const char *own = ebb_lora_get_ending (g_array_index (places, EbbLoraPlace, i).path);
      /* Endings of the files may be those of other layers, too. */
      const char *target =
          endings.is_exact && strcmp (own, ebb_lora_get_ending (path)) == 0 ? ebb_lora_get_ending (path) : path;

      if (!g_hash_table_add (written, (gpointer) target))
        continue;
      g_string_append (json, g_hash_table_size (written) > 1 ? ", " : "");
      ebb_json_append_string (json, target);
    }
}

static void
append_number (GString *json,
               double value)
{
  if (value == floor (value) && fabs (value) < 1e9)
    g_string_append_printf (json, "%d", (int) value);
  else
    ebb_config_append_number (json, value);
}

static char *
make_config (EbbModule *model,
             const EbbArchitecture *architecture,
             EbbLoraOptions *options,
             const GArray *places,
             const GPtrArray *file_paths)
{
  const EbbModelOrigin *origin = ebb_model_get_origin (model);
  const char *task = architecture == NULL || architecture->is_bert ? "null" : "\"CAUSAL_LM\"";
  GString *json = g_string_new ("{\n  \"base_model_name_or_path\": ");

  if (origin != NULL)
    ebb_json_append_string (json, origin->folder);
  else
    g_string_append (json, "null");
  g_string_append_printf (json, ",\n  \"bias\": \"none\",\n  \"fan_in_fan_out\": %s,\n  \"inference_mode\": true,\n"
                                "  \"init_lora_weights\": true,\n  \"lora_alpha\": ",
                          architecture != NULL && architecture->transposed != NULL ? "true" : "false");
  append_number (json, ebb_lora_options_get_alpha (options));
  g_string_append (json, ",\n  \"lora_dropout\": ");
  ebb_config_append_number (json, options->dropout);
  g_string_append_printf (json, ",\n  \"modules_to_save\": null,\n  \"peft_type\": \"LORA\",\n  \"r\": %d,\n"
                                "  \"target_modules\": [",
                          options->rank);
  append_targets (model, places, file_paths, json);
  g_string_append_printf (json, "],\n  \"task_type\": %s,\n  \"use_dora\": false,\n  \"use_rslora\": %s\n}\n", task,
                          options->rslora ? "true" : "false");
  return g_string_free (json, FALSE);
}

static gboolean
collect_paths (const EbbArchitecture *architecture,
               const GArray *places,
               GPtrArray *file_paths,
               GError **error)
{
  for (guint i = 0; i < places->len; i++)
    {
      const EbbLoraPlace *place = &g_array_index (places, EbbLoraPlace, i);
      char *file_path = ebb_lora_get_file_path (architecture, place->module, place->path, error);

      if (file_path == NULL)
        return FALSE;
      g_ptr_array_add (file_paths, file_path);
    }
  return TRUE;
}

/* An adapter's A and B, in the order of its places, and the ranks among which they are split. */
typedef struct
{
  EbbGatherItem *items;
  guint n;
  gboolean is_split, is_writer;
} Factors;

static void
factors_init (Factors *self,
              const GArray *places,
              const char *adapter)
{
  *self = (Factors){ .items = g_new0 (EbbGatherItem, 2 * places->len + 1), .is_writer = TRUE };
  for (guint i = 0; i < places->len; i++)
    {
      const EbbLoraBranch *branch =
          ebb_lora_layer_find (ebb_lora_layer_get (g_array_index (places, EbbLoraPlace, i).module), adapter);
      EbbTensor *factors[] = { ebb_lora_factor_get_weight (branch->a), ebb_lora_factor_get_weight (branch->b) };

      for (guint k = 0; k < 2; k++)
        {
          EbbGatherItem *item = &self->items[self->n++];

          ebb_local_shard_init (&item->shard, factors[k]);
          item->local = item->shard.tensor;
          item->dtype = item->local->view.dtype;
          self->is_split = self->is_split || ebb_local_shard_is_split (&item->shard);
        }
    }
  if (self->is_split)
    self->is_writer = ebb_process_group_get_rank (ebb_process_group_get_default ()) == 0;
}

static gboolean
check_released (const Factors *self,
                const GArray *places,
                GError **error)
{
  for (guint i = 0; i < self->n; i++)
    {
      const EbbShardUnit *unit = self->items[i].shard.unit;

      if (unit == NULL || unit->n_summoned == 0)
        continue;
      return ebb_fail (error, EBB_ERROR_STATE,
                       "lora: full parameters of %s are summoned: call ebb_release_full_params () first",
                       g_array_index (places, EbbLoraPlace, i / 2).path);
    }
  return TRUE;
}

/* The file's tensors; NULL without an error on a rank that doesn't write. */
static EbbArgs *
collect_tensors (Factors *self,
                 const GPtrArray *file_paths,
                 GError *failure,
                 GError **error)
{
  g_autoptr (EbbArgs) tensors = NULL;

  if (failure != NULL && !self->is_split)
    {
      g_propagate_error (error, failure);
      return NULL;
    }
  if (self->is_split
      && !ebb_gather_full_tensors (ebb_process_group_get_default (), self->items, self->n, self->is_writer, failure,
                                   error))
    return NULL;
  if (!self->is_writer)
    return NULL;
  tensors = ebb_args_new (EBB_ARGS_DICT);
  for (guint i = 0; i < self->n; i++)
    {
      g_autofree char *key = ebb_lora_get_key (g_ptr_array_index (file_paths, i / 2), i % 2 == 0 ? "lora_A" : "lora_B");

      ebb_args_add_tensor (tensors, key, self->is_split ? self->items[i].full : self->items[i].local);
    }
  return g_steal_pointer (&tensors);
}

static gboolean
is_replaced (const char *name)
{
  return strcmp (name, EBB_LORA_CONFIG_FILE) == 0 || strcmp (name, EBB_LORA_WEIGHTS_FILE) == 0;
}

static gboolean
write_folder (const char *path,
              const char *config,
              EbbArgs *tensors,
              GError **error)
{
  g_autoptr (EbbArgs) metadata = ebb_args_new (EBB_ARGS_DICT);
  g_autofree char *weights = NULL;
  EbbAtomicFolder folder;

  if (!ebb_atomic_folder_open (&folder, path, EBB_LORA_CONFIG_FILE, is_replaced, error))
    return FALSE;
  ebb_args_add_string (metadata, "format", "pt");
  weights = g_build_filename (folder.temporary, EBB_LORA_WEIGHTS_FILE, NULL);
  if (ebb_save_safetensors (weights, tensors, metadata, error)
      && ebb_atomic_folder_write (&folder, EBB_LORA_CONFIG_FILE, config, strlen (config), error))
    return ebb_atomic_folder_commit (&folder, error);
  ebb_atomic_folder_abort (&folder);
  return FALSE;
}

/* All ranks that split the adapter succeed, or none does. */
static gboolean
save (EbbModule *model,
      const char *folder,
      EbbLoraOptions *options,
      GError **error)
{
  const EbbArchitecture *architecture = ebb_lora_find_architecture (model);
  g_autoptr (GPtrArray) file_paths = g_ptr_array_new_with_free_func (g_free);
  g_autoptr (GArray) places = ebb_lora_model_list_places (model, options->adapter);
  g_autoptr (EbbArgs) tensors = NULL;
  g_autofree char *config = NULL;
  GError *failure = NULL;
  Factors factors;
  gboolean ok;

  factors_init (&factors, places, options->adapter);
  if (collect_paths (architecture, places, file_paths, &failure))
    check_released (&factors, places, &failure);
  tensors = collect_tensors (&factors, file_paths, failure, error);
  ok = tensors != NULL || (!factors.is_writer && *error == NULL);
  failure = NULL;
  if (tensors != NULL)
    {
      config = make_config (model, architecture, options, places, file_paths);
      ok = ebb_gguf_is_path (folder)
               ? ebb_lora_write_gguf (model, folder, options, tensors, factors.is_split ? &failure : error)
               : write_folder (folder, config, tensors, factors.is_split ? &failure : error);
    }
  if (factors.is_split && (ok || failure != NULL))
    ok = ebb_agree_no_failure (ebb_process_group_get_default (), failure, error);
  ebb_gather_items_free (factors.items, factors.n);
  return ok;
}

/* The adapter that is called @adapter, or the one that is chosen. */
static EbbLoraOptions *
find_options (EbbModule *model,
              const char *adapter,
              GError **error)
{
  EbbLoraModel *self = ebb_lora_model_get (model, error);

  if (self == NULL || adapter != NULL)
    return self != NULL ? ebb_lora_model_find (self, adapter, error) : NULL;
  if (self->active == NULL)
    g_set_error (error, EBB_ERROR, EBB_ERROR_STATE, "lora: no adapter is chosen to be saved; name one");
  return self->active;
}

/**
 * ebb_lora_save:
 * @model: a model with adapters
 * @folder: (type filename): where to; made if it is not there. A name that ends with `.gguf` is a file
 * @adapter: (nullable): the name of one; %NULL for the one that is chosen
 * @error: return location for an error
 *
 * Saves an adapter as PEFT does, `adapter_config.json` and `adapter_model.safetensors`, with PEFT's names for the
 * layers, so that PEFT and ebb_lora_load() load it. Both files appear together or not at all.
 *
 * A GGUF file has the adapter for llama.cpp: factors in f32, by its names, and the alpha that it divides by the rank.
 *
 * The ranks of the process' default group call it together where they shard the adapter or divide its layers; rank 0
 * writes.
 *
 * Returns: %FALSE with %EBB_ERROR_STATE if there is no such adapter, with %EBB_ERROR_NOT_SUPPORTED if folders of the
 *   model's architecture join or divide a layer that has a branch, with %EBB_ERROR_IO if a file can't be written;
 *   ebb_lora_check_save() says it before a training
 */
gboolean
ebb_lora_save (EbbModule *model,
               const char *folder,
               const char *adapter,
               GError **error)
{
  g_autoptr (GError) failure = NULL;
  EbbLoraOptions *options;

  g_return_val_if_fail (model == NULL || EBB_IS_MODULE (model), FALSE);

  if (!EBB_MAY_BEGIN (error, model, folder))
    return FALSE;
  options = find_options (model, adapter, error);
  if (options == NULL)
    return FALSE;
  return save (model, folder, options, &failure) || ebb_fail_with (error, g_steal_pointer (&failure));
}

/**
 * ebb_lora_check_save:
 * @model: a model with adapters
 * @folder: (type filename): where ebb_lora_save() is to save one
 * @adapter: (nullable): the name of one; %NULL for the one that is chosen
 * @error: return location for an error
 *
 * Whether ebb_lora_save() has a form for the adapter: ask before a training, for afterwards it is too late. The folder
 * is not looked at.
 *
 * Returns: %FALSE with %EBB_ERROR_STATE if there is no such adapter, with %EBB_ERROR_NOT_SUPPORTED if folders of the
 *   model's architecture join or divide a layer that has a branch, or a GGUF file can't have the adapter
 */
gboolean
ebb_lora_check_save (EbbModule *model,
                     const char *folder,
                     const char *adapter,
                     GError **error)
{
  g_autoptr (GPtrArray) file_paths = g_ptr_array_new_with_free_func (g_free);
  g_autoptr (GArray) places = NULL;
  EbbLoraOptions *options;

  g_return_val_if_fail (model == NULL || EBB_IS_MODULE (model), FALSE);

  if (!EBB_MAY_BEGIN (error, model, folder))
    return FALSE;
  options = find_options (model, adapter, error);
  if (options == NULL)
    return FALSE;
  places = ebb_lora_model_list_places (model, options->adapter);
  return collect_paths (ebb_lora_find_architecture (model), places, file_paths, error)
         && (!ebb_gguf_is_path (folder) || ebb_lora_check_gguf (model, error));
}

/**
 * ebb_lora_make_config:
 * @model: a model with adapters
 * @adapter: (nullable): the name of one; %NULL for the one that is chosen
 * @error: return location for an error
 *
 * Describes an adapter as the `adapter_config.json` that ebb_lora_save() would write. A folder whose
 * `adapter_config.json` has the same values is one of this adapter, which a program may replace.
 *
 * Returns: (transfer full) (nullable): JSON; %NULL with an error as of ebb_lora_check_save()
 */
char *
ebb_lora_make_config (EbbModule *model,
                      const char *adapter,
                      GError **error)
{
  g_autoptr (GPtrArray) file_paths = g_ptr_array_new_with_free_func (g_free);
  g_autoptr (GArray) places = NULL;
  EbbLoraOptions *options;

  g_return_val_if_fail (model == NULL || EBB_IS_MODULE (model), NULL);

  if (!EBB_MAY_BEGIN (error, model))
    return NULL;
  options = find_options (model, adapter, error);
  if (options == NULL)
    return NULL;
  places = ebb_lora_model_list_places (model, options->adapter);
  return collect_paths (ebb_lora_find_architecture (model), places, file_paths, error)
             ? make_config (model, ebb_lora_find_architecture (model), options, places, file_paths)
             : NULL;
}

/* A model's folder has no place for branches. */
static gboolean
check_no_adapters (EbbModule *model,
                   GError **error)
{
  return !ebb_lora_is_wrapped (model)
         || ebb_fail (error, EBB_ERROR_STATE,
                      "lora: this %s has adapters: ebb_lora_save () saves one; to save the model, with one merged or "
                      "without, call ebb_lora_unwrap () first",
                      ebb_module_get_type_name (model));
}

static void __attribute__ ((constructor))
register_check (void)
{
  ebb_model_set_save_check_func (check_no_adapters);
}
