/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <glib-object.h>

/* Properties that are fields of their object. A class installs each under its field's offset as the number,
 *
 *   ebb_property_add (klass, EbbDropout, p, double, "p", 0, 1, 0.5, flags);
 *
 * or under G_PRIVATE_OFFSET () where the field is in a private struct, and takes these functions for its get_property
 * () and set_property (). They copy strings and boxed values and reference objects; finalize frees them. */

G_BEGIN_DECLS

/* @kind: as in g_param_spec_KIND (), whose arguments behind the blurb follow. */
#define ebb_property_add(klass, type, field, kind, name, ...)     \
  g_object_class_install_property (klass, offsetof (type, field), \
                                   g_param_spec_##kind (name, NULL, NULL, __VA_ARGS__))
#define ebb_property_get_pointer(object, id) ((gpointer) ((char *) (object) + (gint) (id)))

void ebb_property_get_field (GObject *object,
                             guint id,
                             GValue *value,
                             GParamSpec *spec);
void ebb_property_set_field (GObject *object,
                             guint id,
                             const GValue *value,
                             GParamSpec *spec);

G_END_DECLS
