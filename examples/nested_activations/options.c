/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Reads and checks the command line. */
#include "options.h"

void
options_init (Options *self)
{
  *self = (Options){ .sizes = { .device = NULL } };
  option_table_init (&self->state, &program_page);
}

void
options_clear (Options *self)
{
  option_table_clear (&self->state);
}

static gboolean
check (const Options *self,
       GError **error)
{
  if (!(self->sizes.dropout >= 0 && self->sizes.dropout < 1)) /* nor NaN */
    return options_refuse (error, "--dropout %g: it must be at least 0 and below 1", self->sizes.dropout);
  return option_table_check (&self->state, error);
}

gboolean
options_parse (Options *self,
               int argc,
               char **argv,
               GError **error)
{
  if (!option_table_parse (&self->state, argc, argv, NULL, error))
    return FALSE;
  if (option_table_is_question (&self->state))
    {
      option_table_print (&self->state);
      return TRUE;
    }
  return option_table_fill (&self->state, error)
         && option_table_finish (&self->state, check (self, error), error);
}
