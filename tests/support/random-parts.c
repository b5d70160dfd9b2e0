/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/random-parts.h"

struct _TestPart
{
  EbbModule parent_instance;
  const TestKind *kind;
  guint salt;              /* small choices of its own */
  EbbGenerator *generator; /* NULL: the default one */
  EbbTensor *closure;
  EbbCheckpointOptions *options; /* checkpoints what it calls */
};

typedef EbbTensor *(*PlainFunc) (TestPart *self,
                                 EbbTensor *x,
                                 GError **error);
typedef EbbArgs *(*RichFunc) (TestPart *self,
                              EbbTensor *x,
                              EbbArgs *args,
                              GError **error);

struct _TestKind
{
  const char *name;
  PlainFunc plain;
  RichFunc rich; /* gives more than a tensor */
  guint n_children;
  TestChild child;
  TestOwn own;
};

G_DEFINE_TYPE (TestPart, test_part, EBB_TYPE_MODULE)

/* -- dice ---------------------------------------------------------------------------------------------------------- */

/* SplitMix64 (Steele, Lea and Flood, 2014). */
static guint64
dice_next (TestDice *dice)
{
  guint64 z = dice->state += 0x9e3779b97f4a7c15;

  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

TestDice
test_dice_new (guint64 seed)
{
  TestDice dice = { seed * 0x2545f4914f6cdd1d + 0x1234567 };

  dice_next (&dice);
  return dice;
}

guint
test_dice_roll (TestDice *dice,
                guint n)
{
  return (guint) (dice_next (dice) >> 33) % n;
}

gboolean
test_dice_chance (TestDice *dice,
                  guint percent)
{
  return test_dice_roll (dice, 100) < percent;
}

/* -- what parts share ---------------------------------------------------------------------------------------------- */

static _Thread_local int fuse = -1;
static _Thread_local gboolean fuse_is_blown;

void
test_parts_set_fuse (int n_calls)
{
  fuse = n_calls;
  fuse_is_blown = FALSE;
}

gboolean
test_parts_fuse_is_blown (void)
{
  return fuse_is_blown;
}

static EbbModule *
child (TestPart *self,
       guint index)
{
  g_autofree char *name = g_strdup_printf ("part%u", index);

  return ebb_module_get_child (EBB_MODULE (self), name);
}

static EbbTensor *
call (TestPart *self,
      guint index,
      EbbTensor *x,
      GError **error)
{
  g_autoptr (EbbModule) module = child (self, index);

  return ebb_module_call1 (module, x, error);
}

/* @tensor in the type of @x. */
static EbbTensor *
cast_like (EbbTensor *tensor,
           EbbTensor *x,
           GError **error)
{
  return ebb_cast (tensor, ebb_tensor_get_dtype (x), error);
}

static EbbTensor *
sum_all (EbbTensor *x,
         GError **error)
{
  return ebb_sum (x, NULL, 0, FALSE, error);
}

static void
list_floats (EbbArgs *args,
             GPtrArray *list)
{
  for (guint i = 0; i < ebb_args_get_length (args); i++)
    {
      g_autoptr (EbbTensor) tensor = NULL;
      g_autoptr (EbbArgs) nested = NULL;

      switch ((int) ebb_args_get_value_kind (args, i))
        {
        case EBB_VALUE_TENSOR:
          tensor = ebb_args_get_tensor (args, i);
          if (ebb_dtype_is_floating_point (ebb_tensor_get_dtype (tensor)) && !g_ptr_array_find (list, tensor, NULL))
            g_ptr_array_add (list, ebb_tensor_ref (tensor));
          break;
        case EBB_VALUE_ARGS:
          nested = ebb_args_get_args (args, i);
          list_floats (nested, list);
          break;
        default: break;
        }
    }
}

GPtrArray *
test_args_list_floats (EbbArgs *args)
{
  GPtrArray *list = g_ptr_array_new_with_free_func ((GDestroyNotify) ebb_tensor_unref);

  list_floats (args, list);
  return list;
}

/* -- from tensor to tensor ----------------------------------------------------------------------------------------- */

static EbbTensor *
residual (TestPart *self,
          EbbTensor *x,
          GError **error)
{
  g_autoptr (EbbTensor) y = call (self, 0, x, error);

  return ebb_add (x, y, error);
}

/* One module several times. */
static EbbTensor *
repeated (TestPart *self,
          EbbTensor *x,
          GError **error)
{
  g_autoptr (EbbTensor) y = call (self, 0, x, error);
  g_autoptr (EbbTensor) t = ebb_tanh (y, error);
  g_autoptr (EbbTensor) z = call (self, 0, t, error);
  g_autoptr (EbbTensor) more = self->salt & 1 ? call (self, 0, x, error) : NULL;
  g_autoptr (EbbTensor) sum = ebb_add (y, z, error);

  return self->salt & 1 ? ebb_add (sum, more, error) : g_steal_pointer (&sum);
}

static EbbTensor *
gated (TestPart *self,
       EbbTensor *x,
       GError **error)
{
  g_autoptr (EbbTensor) gain = ebb_module_get_parameter (EBB_MODULE (self), "gain");
  g_autoptr (EbbTensor) y = call (self, 0, x, error);
  g_autoptr (EbbTensor) gate = ebb_sigmoid (y, error);
  g_autoptr (EbbTensor) scaled = ebb_mul (x, gain, error);

  return ebb_mul (gate, scaled, error);
}

/* The child sees [B * T, C] in f32. */
static EbbTensor *
flattened (TestPart *self,
           EbbTensor *x,
           GError **error)
{
  guint n;
  const gint64 *shape = ebb_tensor_get_shape (x, &n);
  const gint64 flat[] = { shape[0] * shape[1], shape[2] };
  g_autoptr (EbbTensor) rows = ebb_reshape (x, flat, 2, error);
  g_autoptr (EbbTensor) plain = ebb_cast (rows, EBB_DTYPE_F32, error);
  g_autoptr (EbbTensor) y = call (self, 0, plain, error);
  g_autoptr (EbbTensor) cast = y ? cast_like (y, x, error) : NULL;

  return ebb_reshape (cast, shape, n, error);
}

static EbbTensor *
noisy (TestPart *self,
       EbbTensor *x,
       GError **error)
{
  guint n;
  const gint64 *shape = ebb_tensor_get_shape (x, &n);
  g_autoptr (EbbTensor) noise = ebb_randn (shape, n, EBB_DTYPE_F32, NULL, self->generator, error);
  g_autoptr (EbbTensor) cast = cast_like (noise, x, error);
  g_autoptr (EbbTensor) y = ebb_mul (cast, x, error);

  return self->salt & 1 ? ebb_dropout (y, 0.25, TRUE, self->generator, error) : ebb_add (y, x, error);
}

static EbbTensor *
by_training_flag (TestPart *self,
                  EbbTensor *x,
                  GError **error)
{
  gboolean training = ebb_module_get_training (EBB_MODULE (self));
  g_autoptr (EbbTensor) y = call (self, 0, x, error);

  return training ? ebb_dropout (y, 0.5, TRUE, self->generator, error) : ebb_mul_scalar (y, 0.75, error);
}

static EbbTensor *
without_gradients (TestPart *self,
                   EbbTensor *x,
                   GError **error)
{
  g_autoptr (EbbTensor) y = NULL;

  ebb_push_grad_enabled (FALSE);
  y = call (self, 0, x, error);
  ebb_pop_grad_enabled ();
  return ebb_mul (x, y, error);
}

static EbbTensor *
detached (TestPart *self,
          EbbTensor *x,
          GError **error)
{
  g_autoptr (EbbTensor) y = call (self, 0, x, error);
  g_autoptr (EbbTensor) cut = y ? ebb_tensor_detach (y) : NULL;

  return ebb_mul (x, cut, error);
}

static EbbTensor *
views (TestPart *self,
       EbbTensor *x,
       GError **error)
{
  const int swap[] = { 0, 2, 1 };
  g_autoptr (EbbTensor) left = ebb_narrow (x, 2, 0, TEST_WIDTH / 2, error);
  g_autoptr (EbbTensor) right = ebb_narrow (x, 2, TEST_WIDTH / 2, TEST_WIDTH / 2, error);
  g_autoptr (EbbTensor) y = right ? ebb_cat ((EbbTensor *[]){ right, left }, 2, 2, error) : NULL;
  g_autoptr (EbbTensor) turned = ebb_permute (y, swap, 3, error);
  g_autoptr (EbbTensor) curved = ebb_exp (turned, error);
  g_autoptr (EbbTensor) bounded = ebb_tanh (self->salt & 1 ? curved : turned, error);
  g_autoptr (EbbTensor) back = ebb_transpose (bounded, 1, 2, error);

  return call (self, 0, back, error);
}

static EbbTensor *
disabled (TestPart *self,
          EbbTensor *x,
          GError **error)
{
  EbbTensor *y;

  ebb_push_checkpointing_disabled ();
  y = call (self, 0, x, error);
  ebb_pop_checkpointing_disabled ();
  return y;
}

static EbbTensor *
other_precision (TestPart *self,
                 EbbTensor *x,
                 GError **error)
{
  g_autoptr (EbbTensor) y = NULL;

  ebb_push_autocast ((self->salt & 1) != 0, EBB_DTYPE_BF16);
  y = call (self, 0, x, error);
  ebb_pop_autocast ();
  return y ? cast_like (y, x, error) : NULL;
}

static EbbTensor *
with_function_of (TestPart *self,
                  EbbTensor *x,
                  EbbTensor *closure,
                  GError **error)
{
  g_autoptr (EbbTensor) y = call (self, 0, x, error);
  g_autoptr (EbbTensor) z = closure ? ebb_mul (y, closure, error) : ebb_square (y, error);

  return ebb_tanh (z, error);
}

static EbbArgs *
run_function (EbbArgs *args,
              gpointer user_data,
              GError **error)
{
  g_autoptr (EbbTensor) x = ebb_args_get_tensor (args, 0);
  g_autoptr (EbbTensor) y = with_function_of (user_data, x, NULL, error);

  return y ? ebb_args_new_for_tensor (y) : NULL;
}

static EbbTensor *
with_function (TestPart *self,
               EbbTensor *x,
               GError **error)
{
  g_autoptr (EbbArgs) args = ebb_args_new_for_tensor (x);
  g_autoptr (EbbArgs) result =
      self->options ? ebb_checkpoint (run_function, g_object_ref (self), g_object_unref, args, self->options, error)
                    : run_function (args, self, error);

  return result ? ebb_args_get_tensor (result, 0) : NULL;
}

static EbbTensor *
in_segments (TestPart *self,
             EbbTensor *x,
             GError **error)
{
  g_autoptr (EbbModule) sequence = child (self, 0);
  g_autoptr (EbbArgs) args = NULL;
  g_autoptr (EbbArgs) result = NULL;

  if (self->options == NULL)
    return ebb_module_call1 (sequence, x, error);
  if (self->salt & 4)
    return ebb_checkpoint_sequential (sequence, 1 + self->salt % 2, x, error);
  args = ebb_args_new_for_tensor (x);
  result = ebb_checkpoint_sequential_full (sequence, 1 + self->salt % 2, args, self->options, error);
  return result ? ebb_args_get_tensor (result, 0) : NULL;
}

static EbbTensor *
tied (TestPart *self,
      EbbTensor *x,
      GError **error)
{
  g_autoptr (EbbTensor) weight = ebb_module_get_parameter (EBB_MODULE (self), "weight");
  g_autoptr (EbbTensor) y =
      self->salt & 1 ? ebb_linear (x, weight, NULL, error) : ebb_matmul_transposed (x, weight, FALSE, FALSE, error);
  g_autoptr (EbbTensor) cast = y ? cast_like (y, x, error) : NULL;

  return ebb_tanh (cast, error);
}

/* Integers on the way. */
static EbbTensor *
looked_up (TestPart *self,
           EbbTensor *x,
           GError **error)
{
  g_autoptr (EbbTensor) table = ebb_module_get_parameter (EBB_MODULE (self), "table");
  g_autoptr (EbbTensor) index = ebb_argmax (x, -1, FALSE, error);
  g_autoptr (EbbTensor) rows = ebb_embedding (table, index, error);
  g_autoptr (EbbTensor) is_large = ebb_gt_scalar (x, 0.5, error);
  g_autoptr (EbbTensor) y = ebb_where (is_large, x, rows, error);

  return ebb_add (y, rows, error);
}

/* Keeps a running sum, as a user would: not when the forward is repeated. */
static EbbTensor *
tallied (TestPart *self,
         EbbTensor *x,
         GError **error)
{
  const int dims[] = { 0, 1 };
  g_autoptr (EbbTensor) sum = ebb_module_get_buffer (EBB_MODULE (self), "sum");
  g_autoptr (EbbTensor) y = call (self, 0, x, error);
  gboolean ok = TRUE;

  if (y != NULL && !ebb_is_recomputing ())
    {
      g_autoptr (EbbTensor) mean = NULL;
      g_autoptr (EbbTensor) cast = NULL;

      ebb_push_grad_enabled (FALSE);
      mean = ebb_mean (y, dims, 2, FALSE, error);
      cast = mean ? cast_like (mean, sum, error) : NULL;
      ok = cast != NULL && ebb_tensor_add_scaled (sum, cast, 0.5, error);
      ebb_pop_grad_enabled ();
    }
  return ok ? g_steal_pointer (&y) : NULL;
}

/* A backward pass inside the forward. */
static EbbTensor *
with_inner_gradient (TestPart *self,
                     EbbTensor *x,
                     GError **error)
{
  g_autoptr (EbbTensor) input = ebb_tensor_detach (x);
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) square = NULL;
  g_autoptr (EbbTensor) loss = NULL;
  g_autoptr (EbbTensor) grad = NULL;
  g_autoptr (EbbTensor) bounded = NULL;
  g_autofree EbbTensor **grads = NULL;
  guint n = 0;

  ebb_push_grad_enabled (TRUE);
  if (ebb_tensor_set_requires_grad (input, TRUE, error))
    y = call (self, 0, input, error);
  square = ebb_square (y, error);
  loss = sum_all (square, error);
  if (loss != NULL && ebb_tensor_get_requires_grad (loss))
    grads = ebb_grad (&loss, 1, &input, 1, NULL, 0, FALSE, &n, error);
  ebb_pop_grad_enabled ();
  if (loss == NULL || (ebb_tensor_get_requires_grad (loss) && grads == NULL))
    return NULL;
  grad = grads ? grads[0] : NULL;
  bounded = ebb_tanh (grad ? grad : x, error);
  return ebb_mul (x, bounded, error);
}

static EbbTensor *
with_closure (TestPart *self,
              EbbTensor *x,
              GError **error)
{
  g_autoptr (EbbTensor) closure = cast_like (self->closure, x, error);
  g_autoptr (EbbTensor) y = ebb_mul (x, closure, error);

  return self->salt & 1 ? with_function_of (self, y, closure, error) : call (self, 0, y, error);
}

static EbbTensor *
two_of_them (TestPart *self,
             EbbTensor *x,
             GError **error)
{
  g_autoptr (EbbTensor) a = call (self, 0, x, error);
  g_autoptr (EbbTensor) b = a ? call (self, 1, self->salt & 1 ? a : x, error) : NULL;

  return self->salt & 2 ? g_steal_pointer (&a) : ebb_sub (a, b, error); /* the second may be for nothing */
}

/* Reads a value on the way. */
static EbbTensor *
branching (TestPart *self,
           EbbTensor *x,
           GError **error)
{
  g_autoptr (EbbTensor) sum = sum_all (x, error);
  double value;

  if (sum == NULL || !ebb_tensor_get_item (sum, &value, error))
    return NULL;
  return value > 0 ? call (self, 0, x, error) : call (self, 1, x, error);
}

/* In place, of something made here. */
static EbbTensor *
in_place (TestPart *self,
          EbbTensor *x,
          GError **error)
{
  g_autoptr (EbbTensor) cut = ebb_tensor_detach (x);
  g_autoptr (EbbTensor) y = ebb_copy (cut, error);
  g_autoptr (EbbTensor) z = NULL;

  if (y == NULL || !ebb_tensor_scale (y, 0.5, error) || !ebb_tensor_add_scaled (y, cut, 0.125, error))
    return NULL;
  z = ebb_tanh (y, error);
  return ebb_mul (x, z, error);
}

/* -- with arguments and results of all kinds ----------------------------------------------------------------------- */

static EbbTensor *
picking (TestPart *self,
         EbbTensor *x,
         GError **error)
{
  g_autoptr (EbbModule) module = child (self, 0);
  g_autoptr (EbbArgs) args = ebb_args_new_for_tensor (x);
  g_autoptr (EbbArgs) result = ebb_module_call (module, args, error);
  g_autoptr (GPtrArray) floats = result ? test_args_list_floats (result) : NULL;
  EbbTensor *sum = NULL;

  for (guint i = 0; floats != NULL && i < floats->len; i++)
    if (i == 0 || self->salt & (1u << i))
      {
        g_autoptr (EbbTensor) before = sum;
        g_autoptr (EbbTensor) cast = cast_like (g_ptr_array_index (floats, i), x, error);

        sum = before ? ebb_add (before, cast, error) : ebb_mul_scalar (cast, 0.5, error);
        if (sum == NULL)
          return NULL;
      }
  return sum;
}

static EbbArgs *
nested (TestPart *self,
        EbbTensor *x,
        EbbArgs *args,
        GError **error)
{
  static const EbbArgsKind kinds[] = { EBB_ARGS_LIST, EBB_ARGS_TUPLE, EBB_ARGS_DICT };
  EbbArgsKind kind = kinds[self->salt % 3];
  const char *keys[] = { "first", "list", "rest", "input" };
  g_autoptr (EbbTensor) y = call (self, 0, x, error);
  g_autoptr (EbbTensor) z = y ? call (self, 1, self->salt & 4 ? x : y, error) : NULL;
  g_autoptr (EbbTensor) mask = ebb_gt_scalar (z, 0, error);
  g_autoptr (EbbTensor) index = ebb_argmax (z, 1, FALSE, error);
  g_autoptr (EbbTensor) cut = index ? ebb_tensor_detach (z) : NULL;
  g_autoptr (EbbArgs) list = ebb_args_new (EBB_ARGS_LIST);
  g_autoptr (EbbArgs) rest = ebb_args_new (EBB_ARGS_DICT);
  EbbArgs *result;

  if (cut == NULL)
    return NULL;
  if (kind != EBB_ARGS_DICT)
    memset (keys, 0, sizeof keys);
  ebb_args_add_tensor (list, NULL, z);
  ebb_args_add_none (list, NULL);
  ebb_args_add_int (list, NULL, 3);
  ebb_args_add_double (list, NULL, 2.5);
  ebb_args_add_string (list, NULL, "text");
  ebb_args_add_tensor (rest, "mask", mask);
  ebb_args_add_tensor (rest, "index", index);
  ebb_args_add_tensor (rest, "again", y);
  ebb_args_add_tensor (rest, "cut", cut);
  ebb_args_add_boolean (rest, "flag", TRUE);
  ebb_args_add_object (rest, "object", G_OBJECT (self));
  result = ebb_args_new (kind);
  ebb_args_add_tensor (result, keys[0], y);
  ebb_args_add_args (result, keys[1], list);
  ebb_args_add_args (result, keys[2], rest);
  if (self->salt & 8)
    ebb_args_add_tensor (result, keys[3], x);
  return result;
}

/* (x, None, *, scale, mask, more={"list": [b, 3], "name"}, object) */
static EbbArgs *
keyed (TestPart *self,
       EbbTensor *x,
       EbbArgs *args,
       GError **error)
{
  g_autoptr (EbbTensor) mask = ebb_args_get_tensor (args, (guint) ebb_args_find (args, "mask"));
  g_autoptr (EbbArgs) more = ebb_args_get_args (args, (guint) ebb_args_find (args, "more"));
  g_autoptr (EbbArgs) list = ebb_args_get_args (more, (guint) ebb_args_find (more, "list"));
  g_autoptr (GObject) object = ebb_args_get_object (args, (guint) ebb_args_find (args, "object"));
  g_autoptr (EbbTensor) b = ebb_args_get_tensor (list, 0);
  g_autoptr (EbbTensor) inner = call (self, 0, x, error);
  g_autoptr (EbbTensor) product = ebb_mul (inner, b, error);
  g_autoptr (EbbTensor) chosen = ebb_where (mask, product, x, error);
  g_autoptr (EbbTensor) y =
      ebb_mul_scalar (chosen, ebb_args_get_double (args, (guint) ebb_args_find (args, "scale")), error);
  EbbArgs *result;

  g_assert_cmpint (ebb_args_get_value_kind (args, 1), ==, EBB_VALUE_NONE);
  g_assert_cmpint (ebb_args_get_int (list, 1), ==, 3);
  g_assert_cmpstr (ebb_args_get_string (more, (guint) ebb_args_find (more, "name")), ==, "name");
  if (y == NULL)
    return NULL;
  result = ebb_args_new (EBB_ARGS_TUPLE);
  ebb_args_add_object (result, NULL, object);
  ebb_args_add_tensor (result, NULL, y);
  ebb_args_add_args (result, "more", more);
  return result;
}

static EbbTensor *
with_keywords (TestPart *self,
               EbbTensor *x,
               GError **error)
{
  g_autoptr (EbbModule) module = child (self, 0);
  g_autoptr (EbbTensor) mask = ebb_lt_scalar (x, 0.75, error);
  g_autoptr (EbbTensor) b = self->salt & 1 ? ebb_sigmoid (x, error) : ebb_tensor_ref (x);
  g_autoptr (EbbArgs) args = ebb_args_new (EBB_ARGS_TUPLE);
  g_autoptr (EbbArgs) more = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (EbbArgs) list = ebb_args_new (EBB_ARGS_LIST);
  g_autoptr (EbbArgs) result = NULL;
  g_autoptr (GObject) object = NULL;

  if (mask == NULL || b == NULL)
    return NULL;
  ebb_args_add_tensor (list, NULL, b);
  ebb_args_add_int (list, NULL, 3);
  ebb_args_add_args (more, "list", list);
  ebb_args_add_string (more, "name", "name");
  ebb_args_add_tensor (args, NULL, x);
  ebb_args_add_none (args, NULL);
  ebb_args_add_double (args, "scale", 0.5);
  ebb_args_add_tensor (args, "mask", mask);
  ebb_args_add_args (args, "more", more);
  ebb_args_add_object (args, "object", G_OBJECT (self));
  result = ebb_module_call (module, args, error);
  if (result == NULL)
    return NULL;
  object = ebb_args_get_object (result, 0);
  g_assert_true (object == G_OBJECT (self));
  return ebb_args_get_tensor (result, 1);
}

/* -- the class ----------------------------------------------------------------------------------------------------- */

static const TestKind plain_kinds[] = {
  { "residual", residual, NULL, 1, TEST_CHILD_PLAIN, TEST_OWN_NOTHING },
  { "repeated", repeated, NULL, 1, TEST_CHILD_PLAIN, TEST_OWN_NOTHING },
  { "gated", gated, NULL, 1, TEST_CHILD_PLAIN, TEST_OWN_GAIN },
  { "flattened", flattened, NULL, 1, TEST_CHILD_ROWS, TEST_OWN_NOTHING },
  { "noisy", noisy, NULL, 0, TEST_CHILD_PLAIN, TEST_OWN_NOTHING },
  { "by-training-flag", by_training_flag, NULL, 1, TEST_CHILD_PLAIN, TEST_OWN_NOTHING },
  { "without-gradients", without_gradients, NULL, 1, TEST_CHILD_PLAIN, TEST_OWN_NOTHING },
  { "detached", detached, NULL, 1, TEST_CHILD_PLAIN, TEST_OWN_NOTHING },
  { "views", views, NULL, 1, TEST_CHILD_PLAIN, TEST_OWN_NOTHING },
  { "disabled", disabled, NULL, 1, TEST_CHILD_PLAIN, TEST_OWN_NOTHING },
  { "other-precision", other_precision, NULL, 1, TEST_CHILD_PLAIN, TEST_OWN_NOTHING },
  { "with-function", with_function, NULL, 1, TEST_CHILD_PLAIN, TEST_OWN_NOTHING },
  { "in-segments", in_segments, NULL, 1, TEST_CHILD_SEQUENCE, TEST_OWN_NOTHING },
  { "tied", tied, NULL, 0, TEST_CHILD_PLAIN, TEST_OWN_SHARED_WEIGHT },
  { "looked-up", looked_up, NULL, 0, TEST_CHILD_PLAIN, TEST_OWN_TABLE },
  { "tallied", tallied, NULL, 1, TEST_CHILD_PLAIN, TEST_OWN_SUM },
  { "with-inner-gradient", with_inner_gradient, NULL, 1, TEST_CHILD_PLAIN, TEST_OWN_NOTHING },
  { "with-closure", with_closure, NULL, 1, TEST_CHILD_PLAIN, TEST_OWN_CLOSURE },
  { "two-of-them", two_of_them, NULL, 2, TEST_CHILD_PLAIN, TEST_OWN_NOTHING },
  { "branching", branching, NULL, 2, TEST_CHILD_PLAIN, TEST_OWN_NOTHING },
  { "in-place", in_place, NULL, 0, TEST_CHILD_PLAIN, TEST_OWN_NOTHING },
  { "picking", picking, NULL, 1, TEST_CHILD_RICH, TEST_OWN_NOTHING },
  { "with-keywords", with_keywords, NULL, 1, TEST_CHILD_KEYED, TEST_OWN_NOTHING },
};
static const TestKind nested_kind = { "nested", NULL, nested, 2, TEST_CHILD_PLAIN, TEST_OWN_NOTHING };
static const TestKind keyed_kind = { "keyed", NULL, keyed, 1, TEST_CHILD_PLAIN, TEST_OWN_NOTHING };

static EbbArgs *
test_part_forward (EbbModule *module,
                   EbbArgs *args,
                   GError **error)
{
  TestPart *self = TEST_PART (module);
  g_autoptr (EbbTensor) x = ebb_args_get_tensor (args, 0);
  g_autoptr (EbbTensor) y = NULL;

  if (fuse >= 0 && fuse-- == 0)
    {
      fuse_is_blown = TRUE;
      g_set_error (error, EBB_ERROR, EBB_ERROR_CALLBACK, "the fuse blew in %s", self->kind->name);
      return NULL;
    }
  if (self->kind->rich != NULL)
    return self->kind->rich (self, x, args, error);
  y = self->kind->plain (self, x, error);
  return y ? ebb_args_new_for_tensor (y) : NULL;
}

static void
test_part_finalize (GObject *object)
{
  TestPart *self = TEST_PART (object);

  g_clear_object (&self->generator);
  g_clear_object (&self->options);
  g_clear_pointer (&self->closure, ebb_tensor_unref);
  G_OBJECT_CLASS (test_part_parent_class)->finalize (object);
}

static void
test_part_class_init (TestPartClass *klass)
{
  G_OBJECT_CLASS (klass)->finalize = test_part_finalize;
  EBB_MODULE_CLASS (klass)->forward = test_part_forward;
}

static void
test_part_init (TestPart *self)
{
}

gboolean
test_part_may_checkpoint (TestPart *part)
{
  return part->kind->plain == with_function || part->kind->plain == in_segments;
}

TestPart *
test_part_new (const char *kind,
               TestDice *dice)
{
  TestPart *part = g_object_new (test_part_get_type (), NULL);

  if (kind == NULL)
    part->kind = &plain_kinds[test_dice_roll (dice, G_N_ELEMENTS (plain_kinds))];
  else
    part->kind = g_str_equal (kind, keyed_kind.name) ? &keyed_kind : &nested_kind;
  part->salt = test_dice_roll (dice, 1u << 16);
  return part;
}

const char *
test_part_get_kind (TestPart *part,
                    guint *n_children,
                    TestChild *child_kind,
                    TestOwn *own)
{
  if (n_children != NULL)
    *n_children = part->kind->n_children;
  if (child_kind != NULL)
    *child_kind = part->kind->child;
  if (own != NULL)
    *own = part->kind->own;
  return part->kind->name;
}

guint
test_part_get_salt (TestPart *part)
{
  return part->salt;
}

void
test_part_set_generator (TestPart *part,
                         EbbGenerator *generator)
{
  g_set_object (&part->generator, generator);
}

void
test_part_set_closure (TestPart *part,
                       EbbTensor *closure)
{
  part->closure = ebb_tensor_ref (closure);
}

void
test_part_set_options (TestPart *part,
                       EbbCheckpointOptions *options)
{
  g_set_object (&part->options, options);
}
