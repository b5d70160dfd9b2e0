/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "tensor/error.h"

G_BEGIN_DECLS

#define EBB_TYPE_UNUSED_PARAMETERS (ebb_unused_parameters_get_type ())

/**
 * EbbUnusedParameters:
 * @EBB_UNUSED_PARAMETERS_ERROR: the backward pass fails and names them all
 * @EBB_UNUSED_PARAMETERS_ZERO: a rank that doesn't use a parameter counts as one whose gradient is zero; a parameter
 *   that no rank uses stays without a gradient
 *
 * The treatment of trainable parameters that a backward pass gives no gradient.
 */
typedef enum
{
  EBB_UNUSED_PARAMETERS_ERROR,
  EBB_UNUSED_PARAMETERS_ZERO
} EbbUnusedParameters;

EBB_AVAILABLE_IN_ALL
GType ebb_unused_parameters_get_type (void);

#define EBB_TYPE_REPLICATE_OPTIONS (ebb_replicate_options_get_type ())

/**
 * EbbReplicateOptions:
 *
 * How ebb_replicate() works. All ranks give the same.
 */
EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbReplicateOptions, ebb_replicate_options, EBB, REPLICATE_OPTIONS, GObject)

EBB_AVAILABLE_IN_ALL
EbbReplicateOptions *ebb_replicate_options_new (void);

G_END_DECLS
