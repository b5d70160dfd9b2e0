/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/own-block.h"

struct _OwnBlock
{
  EbbModule parent_instance;
};

static const char *own_rule;

void
test_own_block_set_rule (const char *rule)
{
  own_rule = rule;
}

static char **
test_own_block_list_parallel_rules (EbbBlock *self)
{
  static const char *const rules[] = { "up: column", "down: row", NULL };

  return g_strdupv (own_rule != NULL ? (char *[]){ (char *) own_rule, NULL } : (char **) rules);
}

static void
test_own_block_interface_init (EbbBlockInterface *interface)
{
  interface->list_parallel_rules = test_own_block_list_parallel_rules;
}

G_DEFINE_TYPE_WITH_CODE (OwnBlock,
                         test_own_block,
                         EBB_TYPE_MODULE,
                         G_IMPLEMENT_INTERFACE (EBB_TYPE_BLOCK, test_own_block_interface_init))

static EbbTensor *
test_own_block_forward1 (EbbModule *module, EbbTensor *x, GError **error)
{
  g_autoptr (EbbModule) up = ebb_module_get_child (module, "up");
  g_autoptr (EbbModule) down = ebb_module_get_child (module, "down");
  g_autoptr (EbbTensor) hidden = ebb_module_call1 (up, x, error);
  g_autoptr (EbbTensor) bent = ebb_tanh (hidden, error);
  g_autoptr (EbbTensor) branch = ebb_module_call1 (down, bent, error);

  return ebb_add (x, branch, error);
}

static void
test_own_block_class_init (OwnBlockClass *klass)
{
  EBB_MODULE_CLASS (klass)->forward1 = test_own_block_forward1;
}

static void
test_own_block_init (OwnBlock *self)
{
}

EbbModule *
test_own_block_new (gint64 width, gint64 hidden)
{
  g_autoptr (GError) error = NULL;
  EbbModule *module = g_initable_new (test_own_block_get_type (), NULL, &error, NULL);
  g_autoptr (EbbModule) up = ebb_linear_new (width, hidden, TRUE, &error);
  g_autoptr (EbbModule) down = ebb_linear_new (hidden, width, TRUE, &error);

  g_assert_no_error (error);
  g_assert_true (ebb_module_register_child (module, "up", up, NULL));
  g_assert_true (ebb_module_register_child (module, "down", down, NULL));
  return module;
}
