/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Marks of a training: a step goes back as long as nothing lasting has changed, and else the error names it. */
#include "support/device.h"
#include "support/stores.h"
#include "support/tensors.h"
#include "support/waits.h"

#include <malloc.h>

#define WIDTH 6

typedef struct
{
  EbbModule *model;
  EbbOptimizer *optimizer;
  EbbTrainingState *state;
  EbbGenerator *own;
} Training;

static void
append (Training *self, EbbModule *module)
{
  g_assert_true (ebb_sequential_append (EBB_SEQUENTIAL (self->model), module, NULL));
  g_object_unref (module);
}

static void
training_init (Training *self)
{
  ebb_manual_seed (5);
  self->model = ebb_sequential_new ();
  append (self, ebb_linear_new (WIDTH, WIDTH, TRUE, NULL));
  append (self, ebb_batch_norm1d_new (WIDTH, 1e-5, 0.1, NULL));
  append (self, ebb_dropout_new (0.5, NULL));
  g_assert_true (ebb_module_to_device (self->model, test_device (), NULL));
  self->optimizer = EBB_OPTIMIZER (ebb_adamw_new (self->model, 0.1, NULL));
  self->state = ebb_training_state_new (self->model, self->optimizer, NULL);
  self->own = ebb_generator_new (9);
  ebb_training_state_add_generator (self->state, "own", self->own);
}

static void
training_clear (Training *self)
{
  g_clear_object (&self->state);
  g_clear_object (&self->optimizer);
  g_clear_object (&self->model);
  g_clear_object (&self->own);
}

G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (Training, training_clear)

/* The forward and the backward pass; gives the loss. */
static EbbTensor *
backward (Training *self)
{
  g_autoptr (EbbTensor) numbers = test_randn (9, 4, WIDTH, -1);
  g_autoptr (EbbTensor) x = test_move (numbers);
  g_autoptr (EbbTensor) y = ebb_module_call1 (self->model, x, NULL);
  g_autoptr (EbbTensor) dropped = ebb_dropout (y, 0.5, TRUE, self->own, NULL);
  g_autoptr (EbbTensor) square = ebb_square (dropped, NULL);
  g_autoptr (EbbTensor) loss = ebb_sum (square, NULL, 0, FALSE, NULL);

  g_assert_true (ebb_tensor_backward (loss, NULL));
  return g_steal_pointer (&loss);
}

static double
add_gradients (Training *self)
{
  g_autoptr (EbbTensor) loss = backward (self);
  g_autoptr (EbbTensor) host = ebb_to_device (loss, ebb_device_get_cpu (), NULL);
  double value;

  g_assert_true (ebb_tensor_get_item (host, &value, NULL));
  return value;
}

static EbbTensor *
get_statistics (Training *self)
{
  g_autoptr (EbbArgs) state = ebb_module_get_state_dict (self->model);
  const int index = ebb_args_find (state, "1.running_mean");
  g_autoptr (EbbTensor) mean = NULL;

  g_assert_cmpint (index, >=, 0);
  mean = ebb_args_get_tensor (state, (guint) index);
  return ebb_copy (mean, NULL);
}

static void
refuse (Training *self, const char *message)
{
  g_autoptr (GError) error = NULL;

  g_assert_false (ebb_training_state_rewind (self->state, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_STATE);
  g_assert_cmpstr (error->message, ==, message);
}

static void
test_back (void)
{
  g_auto (Training) training = { 0 };
  g_autoptr (EbbTensor) before = NULL, changed = NULL, after = NULL;
  g_autoptr (GError) error = NULL;
  guint64 held;
  double loss;

  training_init (&training);
  before = get_statistics (&training);
  held = test_bytes_in_use ();
  g_assert_true (ebb_training_state_mark (training.state, &error));
  g_assert_cmpuint (test_bytes_in_use (), ==, held);
  loss = add_gradients (&training);
  changed = get_statistics (&training);
  g_assert_false (ebb_tensor_equal (before, changed));
  ebb_optimizer_scale_grad (training.optimizer, 0.5);
  g_assert_true (ebb_training_state_rewind (training.state, &error));
  g_assert_no_error (error);
  after = get_statistics (&training);
  g_assert_true (ebb_tensor_equal (before, after));
  g_clear_pointer (&changed, ebb_tensor_unref);
  g_clear_pointer (&after, ebb_tensor_unref);
  g_assert_cmpuint (test_bytes_in_use (), ==, held); /* no gradient stays */
  g_assert_cmpfloat (add_gradients (&training), ==, loss);
  g_assert_true (ebb_training_state_rewind (training.state, &error)); /* as often as it takes */
  g_assert_cmpfloat (add_gradients (&training), ==, loss);
}

static void
test_no_way_back (void)
{
  g_auto (Training) training = { 0 };
  g_autoptr (GError) error = NULL;

  training_init (&training);
  refuse (&training, "the training has no mark to go back to");
  g_assert_true (ebb_training_state_mark (training.state, &error));
  add_gradients (&training);
  g_assert_true (ebb_optimizer_step (training.optimizer, &error));
  refuse (&training, "the parameter 0.weight has changed since the mark");
  g_assert_true (ebb_training_state_mark (training.state, &error));
  add_gradients (&training); /* to those of the step before */
  refuse (&training, "0.weight had a gradient at the mark already, to which the step may have added");
}

/* A step that begins by dropping gradients doesn't depend on those that were there. */
static void
test_dropped_gradients (void)
{
  void (*const drop[]) (gpointer) = { (void (*) (gpointer)) ebb_optimizer_zero_grad,
                                      (void (*) (gpointer)) ebb_module_zero_grad };

  for (guint i = 0; i < G_N_ELEMENTS (drop); i++)
    {
      g_auto (Training) training = { 0 };
      g_autoptr (GError) error = NULL;
      double loss;

      training_init (&training);
      add_gradients (&training);
      g_assert_true (ebb_training_state_mark (training.state, &error));
      drop[i](i == 0 ? (gpointer) training.optimizer : training.model);
      loss = add_gradients (&training);
      g_assert_true (ebb_training_state_rewind (training.state, &error));
      g_assert_no_error (error);
      g_assert_cmpfloat (add_gradients (&training), ==, loss);
      g_assert_true (ebb_training_state_mark (training.state, &error));
      add_gradients (&training);
      refuse (&training, "0.weight had a gradient at the mark already, to which the step may have added");
    }
}

static void
test_no_wait (void)
{
  g_auto (Training) training = { 0 };
  double value;

  if (test_device_is_cpu ())
    {
      g_test_skip ("the CPU computes at once");
      return;
    }
  training_init (&training);
  test_waits_begin (test_device ());
  for (guint i = 0; i < 3; i++)
    {
      g_autoptr (EbbTensor) loss = NULL;

      test_waits_reset ();
      g_assert_true (ebb_training_state_mark (training.state, NULL));
      loss = backward (&training);
      g_assert_true (ebb_optimizer_step (training.optimizer, NULL));
      ebb_optimizer_zero_grad (training.optimizer);
      g_assert_cmpuint (test_waits_get_n (), ==, 0);
      g_assert_true (ebb_tensor_get_item (loss, &value, NULL));
      g_assert_cmpuint (test_waits_get_n (), ==, 1);
    }
}

/* Every other element of another tensor. */
static void
test_strided_buffer (void)
{
  const gint64 shape[] = { 6 };
  g_autoptr (EbbModule) module = ebb_sequential_new ();
  g_autoptr (EbbTrainingState) state = ebb_training_state_new (module, NULL, NULL);
  g_autoptr (EbbTensor) numbers = test_randn (3, 6, 2, -1), moved = test_move (numbers);
  g_autoptr (EbbTensor) buffer = ebb_select (moved, 1, 1, NULL), before = ebb_copy (buffer, NULL);
  g_autoptr (EbbTensor) ones = ebb_ones (shape, 1, EBB_DTYPE_F32, test_device (), NULL);
  g_autoptr (GError) error = NULL;

  g_assert_false (ebb_tensor_is_contiguous (buffer));
  g_assert_true (ebb_module_register_buffer (module, "odd", buffer, TRUE, &error));
  g_assert_true (ebb_training_state_mark (state, &error));
  g_assert_true (ebb_tensor_copy_from (buffer, ones, &error));
  g_assert_false (ebb_tensor_equal (buffer, before));
  g_assert_true (ebb_training_state_rewind (state, &error));
  g_assert_true (ebb_tensor_equal (buffer, before));
}

/* No pass changes it, so a mark holds none of its bytes; and a step that did has no way back. */
static void
test_quantized_weight (void)
{
  const int width = 1024;
  g_auto (Training) training = { .model = ebb_linear_new (width, width, FALSE, NULL) };
  g_autoptr (GError) error = NULL;
  g_autofree EbbTensor **buffers = NULL;
  g_autoptr (EbbTensor) same = NULL;
  size_t before;
  guint n;

  g_assert_true (ebb_quantize (training.model, EBB_QUANTIZATION_NF4, &error));
  g_assert_true (ebb_module_to_device (training.model, test_device (), &error));
  training.state = ebb_training_state_new (training.model, NULL, NULL);
  before = mallinfo2 ().uordblks + mallinfo2 ().hblkhd;
  g_assert_true (ebb_training_state_mark (training.state, &error));
  g_assert_cmpuint (mallinfo2 ().uordblks + mallinfo2 ().hblkhd, <, before + (size_t) (width * width / 8));
  g_assert_true (ebb_training_state_rewind (training.state, &error));
  buffers = ebb_module_get_buffers (training.model, TRUE, &n);
  same = ebb_copy (buffers[0], NULL);
  g_assert_true (ebb_training_state_mark (training.state, &error));
  g_assert_true (ebb_tensor_copy_from (buffers[0], same, &error));
  refuse (&training, "a quantised weight has changed since the mark");
  for (guint i = 0; i < n; i++)
    ebb_tensor_unref (buffers[i]);
}

static void
test_moved_buffer (void)
{
  const gint64 shape[] = { 6 };
  g_auto (Training) training = { 0 };
  g_autoptr (EbbModule) module = ebb_sequential_new ();
  g_autoptr (EbbTensor) buffer = ebb_ones (shape, 1, EBB_DTYPE_F32, test_device (), NULL);

  training.state = ebb_training_state_new (module, NULL, NULL);
  g_assert_true (ebb_module_register_buffer (module, "ones", buffer, TRUE, NULL));
  g_assert_true (ebb_training_state_mark (training.state, NULL));
  g_assert_true (ebb_module_to_dtype (module, EBB_DTYPE_BF16, NULL));
  refuse (&training, "the place of a buffer has changed since the mark");
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/training-mark/a-step-goes-back", test_back);
  g_test_add_func ("/training-mark/what-has-changed-is-named", test_no_way_back);
  g_test_add_func ("/training-mark/gradients-that-the-step-drops-first", test_dropped_gradients);
  g_test_add_func ("/training-mark/nobody-waits-for-a-mark", test_no_wait);
  g_test_add_func ("/training-mark/a-buffer-that-is-not-contiguous", test_strided_buffer);
  g_test_add_func ("/training-mark/a-quantised-weight-is-not-copied", test_quantized_weight);
  g_test_add_func ("/training-mark/a-buffer-that-has-moved", test_moved_buffer);
  return g_test_run ();
}
