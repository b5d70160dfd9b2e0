/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Observes the ops of a checkpointed forward and of its recompute, and checks that both run the same ops. */
#include "wrap/checkpoint/frame-private.h"
#include "wrap/checkpoint/options-private.h"

#include <string.h>

/* Casts, copies and views cost nothing worth deciding on, so they don't count; nor does what runs with gradients off,
 * which a forward may leave out when it is repeated, as the update of a running statistic. */
static gboolean
is_counted (const EbbOp *op)
{
  return op->kind != EBB_OP_COPY && op->kind != EBB_OP_VIEW && op->kind != EBB_OP_GRADIENT && !ebb_modes.no_grad;
}

static EbbRead *
find_read (EbbCheckpointFrame *self,
           guint64 birth)
{
  for (guint i = 0; i < self->reads->len; i++)
    if (g_array_index (self->reads, EbbRead, i).birth == birth)
      return &g_array_index (self->reads, EbbRead, i);
  return NULL;
}

/* The forward notes the versions of the tensors from outside that it reads; the recompute must find the same. */
static gboolean
check_read (EbbCheckpointFrame *self,
            EbbOpCall *call,
            EbbTensor *tensor,
            GError **error)
{
  EbbStorage *storage = tensor->storage;
  EbbRead *read = find_read (self, storage->birth);

  if (read == NULL && !self->recomputing)
    {
      EbbRead first = { storage->birth, storage->version };

      g_array_append_val (self->reads, first);
    }
  return read == NULL || !self->recomputing || read->version == storage->version
         || ebb_fail (error, EBB_ERROR_VERSION,
                      "%s reads a %s of shape %s that was changed in place since the forward read it (version %u, was "
                      "%u)",
                      call->op->name,
                      tensor->is_parameter ? "parameter" : tensor->is_buffer ? "buffer"
                                                                             : "tensor",
                      ebb_show_shape (tensor), storage->version, read->version);
}

static gboolean
check_reads (EbbCheckpointFrame *self,
             EbbOpCall *call,
             GError **error)
{
  if (ebb_frame_get_check (self) == EBB_DETERMINISM_CHECK_NONE)
    return TRUE;
  for (guint i = 0; i < call->n_inputs; i++)
    {
      EbbTensor *tensor = call->edges[i];

      if (tensor != NULL && !(call->updated & (1u << i)) && tensor->storage->birth < self->mark
          && !check_read (self, call, tensor, error))
        return FALSE;
    }
  return TRUE;
}

static gboolean before_op (EbbOpObserver *observer,
                           EbbOpCall *call,
                           gboolean *cached,
                           GError **error);

static void
note_touch (EbbOpObserver *observer,
            const void *data)
{
  EbbCheckpointFrame *self = ((EbbFrameObserver *) observer)->frame;

  if (data == EBB_TOUCH_EVERYTHING) /* no observer sees what a backward pass reads */
    g_array_set_size (self->unread, 0);
  else if (data != NULL && !self->recomputing && self->target->options->policy != NULL)
    g_array_append_val (self->touched, data);
}

static void
note_inputs (EbbOpObserver *observer,
             EbbOpCall *call)
{
  for (guint i = 0; i < call->n_inputs; i++)
    if (call->inputs[i] != NULL)
      note_touch (observer, call->inputs[i]->view.data);
}

static gboolean
before_op (EbbOpObserver *observer,
           EbbOpCall *call,
           gboolean *cached,
           GError **error)
{
  EbbCheckpointFrame *self = ((EbbFrameObserver *) observer)->frame;

  self->was_cached = FALSE;
  ebb_frame_flush_touched (self); /* on the way here: by a cast, a copy, the host */
  if (self->unread->len > 0 && !self->recomputing)
    ebb_frame_prune_results (self);
  if (*cached) /* by a frame outside: this time no kernel reads them, but a recompute of this frame's may */
    note_inputs (observer, call);
  if (!check_reads (self, call, error))
    return FALSE;
  /* Before the op, and not when it has something to save: a recompute of the frame outside may end with the arguments
   * and spare this very op. */
  if (!self->recomputing && call->needs_grad && call->op->backward != NULL && !ebb_frame_save_args (self, error))
    return FALSE;
  if (!self->recomputing || !is_counted (call->op))
    return TRUE;
  if (!ebb_frame_restore_results (self, call, cached, error))
    return FALSE;
  self->was_cached = *cached;
  return TRUE;
}

/* The frames outside see the end of an op after those inside, which may want its results before. */
static void
tell_outer_frames (EbbCheckpointFrame *self,
                   gboolean op_has_run)
{
  for (EbbOpObserver *observer = self->observer.base.outer; observer != NULL; observer = observer->outer)
    if (observer->before == before_op)
      ((EbbFrameObserver *) observer)->frame->op_has_run = op_has_run;
}

static gboolean
try_policy (EbbCheckpointFrame *self,
            EbbOpCall *call,
            GError **error)
{
  EbbCheckpointOptions *options = self->target->options;
  EbbPolicyQuestion question = { .call = call, .ordinal = self->n_ops, .n_products = self->n_products };
  gboolean saves, ok;

  if (options->policy == NULL || self->recomputing)
    return TRUE;
  for (guint i = 0; i < call->n_outputs; i++)
    question.n_bytes += ebb_tensor_get_n_bytes (call->outputs[i]);
  if (!ebb_checkpoint_options_ask (options, &question, &saves, error))
    return FALSE;
  if (!saves)
    return TRUE;
  g_array_set_size (self->touched, 0); /* the op will not read its operands again */
  tell_outer_frames (self, TRUE);
  ok = ebb_frame_save_results (self, call, error);
  tell_outer_frames (self, FALSE);
  return ok;
}

static gboolean
ask_policy (EbbCheckpointFrame *self,
            EbbOpCall *call,
            GError **error)
{
  GError *local = NULL;

  if (try_policy (self, call, &local))
    return TRUE;
  if (self->policy_error == NULL)
    self->policy_error = g_error_copy (local);
  return ebb_fail_with (error, local);
}

static gboolean
after_op (EbbOpObserver *observer,
          EbbOpCall *call,
          GError **error)
{
  EbbCheckpointFrame *self = ((EbbFrameObserver *) observer)->frame;

  if (self->recomputing && !self->was_cached)
    self->target->tally.recompute_flop += ebb_op_call_get_flop (call);
  if (!is_counted (call->op))
    {
      note_inputs (observer, call); /* one that copies between devices launches no kernel */
      return TRUE;
    }
  if (!ask_policy (self, call, error))
    return FALSE;
  self->n_ops++;
  self->n_products += call->op->kind == EBB_OP_PRODUCT;
  return TRUE;
}

static void
note_draw (EbbOpObserver *observer,
           EbbGenerator *generator)
{
  EbbCheckpointFrame *self = ((EbbFrameObserver *) observer)->frame;

  ebb_draws_note (self->recomputing ? self->current : self->draws, generator);
}

void
ebb_frame_observer_init (EbbCheckpointFrame *self)
{
  self->observer = (EbbFrameObserver){
    .base = { .before = before_op, .after = after_op, .draw = note_draw, .touch = note_touch },
    .frame = self,
  };
}
