/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <glib.h>

G_BEGIN_DECLS

/* FALSE with an error if @path, of --model, is what a training wrote but no model: an adapter, or weights alone.
 * @takes_adapter: whether the program has --adapter. */
gboolean model_path_check (const char *path,
                           gboolean takes_adapter,
                           GError **error);

G_END_DECLS
