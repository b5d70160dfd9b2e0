/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The memory budget of a training: its bytes, what they limit, and what may be done to keep them. */
#include "train/memory-budget.h"

#include "tensor/error-private.h"
#include "tensor/util/property-private.h"

#include <string.h>

struct _EbbMemoryBudget
{
  GObject parent_instance;

  guint64 bytes; /* 0: all that is free */
  EbbMemoryScope scope;
  EbbDevice *device; /* NULL: that of the model's parameters */
  EbbConcessions allow;
  EbbSavedTensorHooks *store; /* NULL: blocks move nothing */
  char *plan_file;            /* NULL: the plan is in no file */
  EbbProcessGroup *group;     /* NULL: one process trains alone */
  EbbConcessions taken;
  guint64 own_bytes;   /* 0: not measured yet */
  guint64 least_bytes; /* 0: not planned yet */
};

G_DEFINE_FINAL_TYPE (EbbMemoryBudget, ebb_memory_budget, G_TYPE_OBJECT)

G_DEFINE_ENUM_TYPE (EbbMemoryScope,
                    ebb_memory_scope,
                    G_DEFINE_ENUM_VALUE (EBB_MEMORY_SCOPE_AUTO, "auto"),
                    G_DEFINE_ENUM_VALUE (EBB_MEMORY_SCOPE_PROCESS, "process"),
                    G_DEFINE_ENUM_VALUE (EBB_MEMORY_SCOPE_DEVICE, "device"))

G_DEFINE_FLAGS_TYPE (EbbConcessions,
                     ebb_concessions,
                     G_DEFINE_ENUM_VALUE (EBB_CONCESSIONS_NONE, "none"),
                     G_DEFINE_ENUM_VALUE (EBB_CONCESSIONS_LOSS_CHUNK, "loss-chunk"),
                     G_DEFINE_ENUM_VALUE (EBB_CONCESSIONS_MICRO_BATCHES, "micro-batches"),
                     G_DEFINE_ENUM_VALUE (EBB_CONCESSIONS_BF16_MOMENTS, "bf16-moments"),
                     G_DEFINE_ENUM_VALUE (EBB_CONCESSIONS_EIGHT_BIT_MOMENTS, "eight-bit-moments"),
                     G_DEFINE_ENUM_VALUE (EBB_CONCESSIONS_BF16_RESIDUAL, "bf16-residual"),
                     G_DEFINE_ENUM_VALUE (EBB_CONCESSIONS_STEP_IN_BACKWARD, "step-in-backward"),
                     G_DEFINE_ENUM_VALUE (EBB_CONCESSIONS_BF16_WEIGHTS, "bf16-weights"))

/**
 * ebb_memory_budget_new:
 * @bytes: the bytes of the budget; 0 for all bytes that are free when the training is planned
 *
 * Makes a budget. Its properties say what it limits and what may be done to keep it.
 *
 * Returns: (transfer full): the budget
 */
EbbMemoryBudget *
ebb_memory_budget_new (guint64 bytes)
{
  return g_object_new (EBB_TYPE_MEMORY_BUDGET, "bytes", bytes, NULL);
}

/**
 * ebb_memory_budget_new_parse:
 * @size: a size as ebb_memory_parse_size() reads it, `1.5GiB` for example, or `auto` for all bytes that are free when
 *   the training is planned
 * @error: return location for an error
 *
 * Makes a budget of a size as people write it.
 *
 * Returns: (transfer full): the budget, or %NULL with %EBB_ERROR_INVALID_ARGUMENT, which names the text and what would
 *   be right
 */
EbbMemoryBudget *
ebb_memory_budget_new_parse (const char *size,
                             GError **error)
{
  guint64 n_bytes = 0;

  if (!EBB_MAY_BEGIN (error, size))
    return NULL;
  if (strcmp (size, "auto") == 0)
    return ebb_memory_budget_new (0);
  if (!ebb_memory_parse_size (size, &n_bytes, error))
    {
      g_prefix_error (error, "memory budget: ");
      return NULL;
    }
  if (n_bytes > 0)
    return ebb_memory_budget_new (n_bytes);
  g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
               "memory budget: \"%s\" is less than a byte: write more, or \"auto\" for all that is free", size);
  return NULL;
}

/* -- class --------------------------------------------------------------------------------------------------------- */

static void
ebb_memory_budget_init (EbbMemoryBudget *self)
{
}

static void
ebb_memory_budget_finalize (GObject *object)
{
  EbbMemoryBudget *self = EBB_MEMORY_BUDGET (object);

  g_clear_object (&self->store);
  g_clear_object (&self->group);
  g_free (self->plan_file);
  G_OBJECT_CLASS (ebb_memory_budget_parent_class)->finalize (object);
}

static void
ebb_memory_budget_class_init (EbbMemoryBudgetClass *klass)
{
  const GParamFlags reads = G_PARAM_READABLE | G_PARAM_STATIC_STRINGS;
  const GParamFlags flags = reads | G_PARAM_WRITABLE | G_PARAM_CONSTRUCT;
  GObjectClass *object_class = G_OBJECT_CLASS (klass);

  object_class->finalize = ebb_memory_budget_finalize;
  object_class->get_property = ebb_property_get_field;
  object_class->set_property = ebb_property_set_field;

  /**
   * EbbMemoryBudget:bytes:
   *
   * The bytes of the budget; 0 for all bytes that are free when the training is planned.
   */
  g_object_class_install_property (object_class, offsetof (EbbMemoryBudget, bytes),
                                   g_param_spec_uint64 ("bytes", NULL, NULL, 0, G_MAXUINT64, 0, flags));
  /**
   * EbbMemoryBudget:scope:
   *
   * The memory that the budget limits.
   */
  g_object_class_install_property (object_class, offsetof (EbbMemoryBudget, scope),
                                   g_param_spec_enum ("scope", NULL, NULL, EBB_TYPE_MEMORY_SCOPE,
                                                      EBB_MEMORY_SCOPE_AUTO, flags));
  /**
   * EbbMemoryBudget:device:
   *
   * The device that computes; %NULL for the device of the model's parameters.
   */
  g_object_class_install_property (object_class, offsetof (EbbMemoryBudget, device),
                                   g_param_spec_boxed ("device", NULL, NULL, EBB_TYPE_DEVICE, flags));
  /**
   * EbbMemoryBudget:allow:
   *
   * The changes of values that may be made to keep the budget.
   */
  g_object_class_install_property (object_class, offsetof (EbbMemoryBudget, allow),
                                   g_param_spec_flags ("allow", NULL, NULL, EBB_TYPE_CONCESSIONS, EBB_CONCESSIONS_NONE,
                                                       flags));
  /**
   * EbbMemoryBudget:store:
   *
   * The store to which blocks may move what they keep for the backward pass; %NULL for none.
   */
  g_object_class_install_property (object_class, offsetof (EbbMemoryBudget, store),
                                   g_param_spec_object ("store", NULL, NULL, EBB_TYPE_SAVED_TENSOR_HOOKS, flags));
  /**
   * EbbMemoryBudget:plan-file:
   *
   * A file from which the plan is read; if it is not there, the plan is made and written to it. %NULL for no file.
   */
  g_object_class_install_property (object_class, offsetof (EbbMemoryBudget, plan_file),
                                   g_param_spec_string ("plan-file", NULL, NULL, NULL, flags));
  /**
   * EbbMemoryBudget:group:
   *
   * The ranks that plan together. %NULL if one process trains alone.
   */
  g_object_class_install_property (object_class, offsetof (EbbMemoryBudget, group),
                                   g_param_spec_object ("group", NULL, NULL, EBB_TYPE_PROCESS_GROUP, flags));
  /**
   * EbbMemoryBudget:taken:
   *
   * The changes of values that were made to keep the budget.
   */
  g_object_class_install_property (object_class, offsetof (EbbMemoryBudget, taken),
                                   g_param_spec_flags ("taken", NULL, NULL, EBB_TYPE_CONCESSIONS, EBB_CONCESSIONS_NONE,
                                                       reads));
  /**
   * EbbMemoryBudget:own-bytes:
   *
   * Resident bytes of the process that are no tensors, as last measured; 0 before the training is planned and with
   * %EBB_MEMORY_SCOPE_DEVICE.
   */
  g_object_class_install_property (object_class, offsetof (EbbMemoryBudget, own_bytes),
                                   g_param_spec_uint64 ("own-bytes", NULL, NULL, 0, G_MAXUINT64, 0, reads));
  /**
   * EbbMemoryBudget:least-bytes:
   *
   * The bytes of the smallest budget with which the training runs; 0 before it is planned.
   */
  g_object_class_install_property (object_class, offsetof (EbbMemoryBudget, least_bytes),
                                   g_param_spec_uint64 ("least-bytes", NULL, NULL, 0, G_MAXUINT64, 0, reads));
}
