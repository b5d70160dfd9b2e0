/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Makes the classes of all public types of the library, so that no thread but the first does. Under ThreadSanitizer
 * alone: GLib orders their making by locks that it can't see, and so it reports ranks that look at what another one has
 * made. */
void test_classes_make (void);
