/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "common/option-table.h"

/* What is installed beside a program, written from its table of options. Each returns a text. */

G_BEGIN_DECLS

/* For man, in section 1. */
char *page_write_man (const OptionState *options);
char *page_write_bash (const OptionState *options);
char *page_write_zsh (const OptionState *options);
char *page_write_fish (const OptionState *options);

/* What a value of the option is. */
typedef enum
{
  PAGE_NO_VALUE,
  PAGE_ANY,
  PAGE_CHOICE,
  PAGE_FILE,
  PAGE_FOLDER,
  PAGE_FOLDER_OR_GGUF
} PageValue;

PageValue page_get_value (const OptionRow *row);
/* The values of a choice. */
char **page_list_choices (const OptionRow *row);
/* Whether the row is an option of the program. */
gboolean page_has (const OptionState *options,
                   const OptionRow *row);

G_END_DECLS
