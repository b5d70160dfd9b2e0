/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "common/train/trainer.h"

/* --eval: the loss on data that the model is not trained on, and the weights with the best one. */

G_BEGIN_DECLS

/* After a step: if it is time, measures the loss on all held-out rows, and writes the weights to --save-best if it is
 * the best so far. Training is as if it had not been: modes, generators and the place in the data stay. */
gboolean evaluate_if_due (Trainer *self,
                          GError **error);
double evaluate_get_perplexity (double loss);

G_END_DECLS
