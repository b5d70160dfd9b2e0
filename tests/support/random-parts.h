/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <ebb/ebb.h>

/* Modules of many habits. All take a tensor [B, T, TEST_WIDTH] and give one of the same shape,
 * or a result with such tensors somewhere inside. */

G_BEGIN_DECLS

#define TEST_WIDTH 8

/* A sequence of numbers that a seed names. */
typedef struct
{
  guint64 state;
} TestDice;

TestDice test_dice_new (guint64 seed);
/* From 0 to @n - 1. */
guint test_dice_roll (TestDice *dice,
                      guint n);
gboolean test_dice_chance (TestDice *dice,
                           guint percent);

typedef struct _TestKind TestKind;

/* The children that are called as "part0", "part1". */
typedef enum
{
  TEST_CHILD_PLAIN,    /* from tensor to tensor */
  TEST_CHILD_RICH,     /* a "nested" */
  TEST_CHILD_KEYED,    /* a "keyed" */
  TEST_CHILD_ROWS,     /* of [N, TEST_WIDTH] in f32 */
  TEST_CHILD_SEQUENCE, /* an EbbSequential */
} TestChild;

/* The other things that a module must be given. */
typedef enum
{
  TEST_OWN_NOTHING,
  TEST_OWN_GAIN,          /* parameter "gain" [TEST_WIDTH] */
  TEST_OWN_TABLE,         /* parameter "table" [TEST_WIDTH, TEST_WIDTH] */
  TEST_OWN_SHARED_WEIGHT, /* parameter "weight" [TEST_WIDTH, TEST_WIDTH] */
  TEST_OWN_CLOSURE,       /* a tensor [TEST_WIDTH] that is no parameter */
  TEST_OWN_SUM,           /* buffer "sum" [TEST_WIDTH] */
} TestOwn;

G_DECLARE_FINAL_TYPE (TestPart, test_part, TEST, PART, EbbModule)
/* @kind: "nested" or "keyed", which take or give more than a tensor; NULL for any other. */
TestPart *test_part_new (const char *kind,
                         TestDice *dice);
const char *test_part_get_kind (TestPart *part,
                                guint *n_children,
                                TestChild *child_kind,
                                TestOwn *own);
guint test_part_get_salt (TestPart *part);
/* To draw from; the default one if none is set. */
void test_part_set_generator (TestPart *part,
                              EbbGenerator *generator);
void test_part_set_closure (TestPart *part,
                            EbbTensor *closure);
/* Whether it calls a function or a sequence that may be checkpointed, and how. */
gboolean test_part_may_checkpoint (TestPart *part);
void test_part_set_options (TestPart *part,
                            EbbCheckpointOptions *options);

/* The call of a part, counted from now on in this thread, that fails; negative: none. */
void test_parts_set_fuse (int n_calls);
gboolean test_parts_fuse_is_blown (void);

/* Every tensor with a gradient to give anywhere in @args, each once. */
GPtrArray *test_args_list_floats (EbbArgs *args);

G_END_DECLS
