/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <ebb.h>

/* Models' folders for tests: fixtures, copies of them in a scratch folder, and their files. */

G_BEGIN_DECLS

void test_scratch_begin (void);
const char *test_scratch_folder (void);
void test_scratch_end (void);
char *test_model_fixture (const char *row);
char *test_scratch_path (const char *name);
void test_remove_tree (const char *path);
char *test_folder_read (const char *folder, const char *name);
void test_folder_write (const char *folder, const char *name, const char *text);
gboolean test_folder_has (const char *folder, const char *name);
guint test_folder_count (const char *folder);
char *test_model_copy (const char *row);
EbbModule *test_model_open (const char *folder);
EbbModule *test_model_open_fixture (const char *row);
void test_model_save (EbbModule *model, const char *folder);
void test_assert_same_weights (EbbModule *a, EbbModule *b);

G_END_DECLS
