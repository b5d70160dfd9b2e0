/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/models/folder/architecture-private.h"
#include "tensor/quantization.h"

/* config.json read into the configuration of a model, and changed where the model's configuration says otherwise. */

G_BEGIN_DECLS

#define EBB_CONFIG_FILE "config.json"
#define EBB_CONFIG_MAX_SIZE ((gsize) 1 << 20)

/* config.json and where it came from. */
typedef struct
{
  const EbbArchitecture *architecture;
  const char *path; /* for errors */
  const EbbJson *document;
  gboolean is_own;  /* written by Ebb and read back: what its messages would say is known */
  gboolean is_gguf; /* of a GGUF file */
} EbbConfigSource;

/* -- config.c */

/* Of a decoder and of a BERT. NULL with an error that names the key, its value and what would be right. */
EbbGptConfig *ebb_config_read_gpt (const EbbConfigSource *source,
                                   GError **error);
EbbBertConfig *ebb_config_read_bert (const EbbConfigSource *source,
                                     GError **error);
/* The document that says what @config does, an EbbGptConfig or an EbbBertConfig: @document, which may be NULL, with the
 * keys changed that say otherwise. NULL with an error if @architecture has no keys for a choice of @config. */
EbbJson *ebb_config_write (const EbbArchitecture *architecture,
                           const EbbJson *document,
                           gconstpointer config,
                           GError **error);
/* Names a choice in which two decoders differ; NULL: they differ at most in how they are trained. */
const char *ebb_config_find_difference (const EbbGptConfig *a,
                                        const EbbGptConfig *b);
/* The first architecture that has keys for all choices of @config. */
const EbbArchitecture *ebb_config_find_architecture (const EbbGptConfig *config,
                                                     GError **error);

/* -- config-keys.c */

/* FALSE: "PATH: KEY is VALUE: it must be RIGHT". @scope, which may be NULL, names the object that has the key. */
gboolean ebb_config_refuse (const EbbConfigSource *source,
                            const char *scope,
                            const char *key,
                            const EbbJson *value,
                            const char *right,
                            GError **error);
/* Reads the fields of @config that have rows. */
gboolean ebb_config_read_rows (const EbbConfigSource *source,
                               const EbbConfigKeyRow *rows,
                               gpointer config,
                               GError **error);
/* Sets the keys of @rows whose fields in @config differ from those in @read, what @document says now; NULL: all. */
void ebb_config_write_rows (const EbbConfigKeyRow *rows,
                            gconstpointer config,
                            gconstpointer read,
                            EbbJson *document);
/* TRUE if the field of the row is the same in both. */
gboolean ebb_config_row_is_equal (const EbbConfigKeyRow *row,
                                  gconstpointer a,
                                  gconstpointer b);
/* A number as JSON, the shortest that gives the same double; with a point or an exponent. */
void ebb_config_append_number (GString *json,
                               double value);

/* -- config-rotary.c: "rope_parameters", or "rope_theta" and "rope_scaling" */

gboolean ebb_config_read_rotary (const EbbConfigSource *source,
                                 EbbGptConfig *config,
                                 GError **error);
void ebb_config_write_rotary (const EbbArchitecture *architecture,
                              const EbbGptConfig *config,
                              EbbJson *document);
/* TRUE if both rotate all layers alike. */
gboolean ebb_config_rotary_is_equal (const EbbGptConfig *a,
                                     const EbbGptConfig *b);

/* -- quantized.c: "quantization_config" */

/* How the folder's linear layers are quantised. */
gboolean ebb_config_read_quantization (const EbbConfigSource *source,
                                       EbbQuantization *quantization,
                                       GError **error);
/* Sets the key if @document says otherwise. @dtype: of what isn't quantised. */
void ebb_config_write_quantization (EbbQuantization quantization,
                                    EbbDType dtype,
                                    EbbJson *document);

/* -- config-layers.c: which layers have a window */

gboolean ebb_config_read_layers (const EbbConfigSource *source,
                                 EbbGptConfig *config,
                                 GError **error);
void ebb_config_write_layers (const EbbArchitecture *architecture,
                              const EbbGptConfig *config,
                              EbbJson *document);
gboolean ebb_config_layers_are_equal (const EbbGptConfig *a,
                                      const EbbGptConfig *b);

G_END_DECLS
