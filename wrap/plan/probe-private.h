/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/autograd/saved-tensor.h"
#include "wrap/plan/blocks-private.h"
#include "dist/group/process-group.h"
#include "tensor/memory-account-private.h"
#include "tensor/profile/cost-private.h"
#include "wrap/plan/estimate.h"

/* Dry steps of a model that are looked at stage by stage. The first stage is what comes before the blocks, the last one
 * what comes after them; backward goes through them in the other direction. */

G_BEGIN_DECLS

typedef enum
{
  EBB_PROBE_REST, /* the optimizer, and what belongs to no stage */
  EBB_PROBE_FORWARD,
  EBB_PROBE_BACKWARD,
  EBB_PROBE_RECOMPUTE,
  EBB_N_PROBE_PARTS
} EbbProbePart;

typedef struct
{
  guint64 start;      /* bytes in use when the forward begins... */
  guint64 rise;       /* and how many more at most until it ends */
  guint64 back_start; /* the same of the backward, with its recompute */
  guint64 back_rise;
  double seconds[EBB_N_PROBE_PARTS]; /* by ebb_probe_price () */
  double waited;                     /* for copies that computing doesn't hide, by the same */
} EbbProbeStage;

/* A launch of the step. */
typedef struct
{
  guint cost; /* its number in the costs */
  guint16 stage;
  guint8 part;
} EbbProbeLaunch;

/* A copy to or from the host, or a wait for one, which comes before launch number @launch. */
typedef struct
{
  EbbCopyEvent event;
  guint launch;
  guint16 stage;
  guint8 part;
} EbbProbeCopy;

typedef struct
{
  EbbProbeStage *stages; /* two more than blocks */
  guint n_stages;
  GArray *launches;                 /* of EbbProbeLaunch */
  GArray *copies;                   /* of EbbProbeCopy */
  guint64 start;                    /* bytes in use before it */
  guint64 peak;                     /* bytes in use at most... */
  guint64 purposes[EBB_N_PURPOSES]; /* what they are for... */
  guint peak_stage;                 /* and when */
  EbbProbePart peak_part;
  guint64 rest_peak;
} EbbProbeStep;

/* The step that a plan is for. */
typedef struct
{
  EbbModule *model;
  EbbDevice *device;
  EbbSavedTensorHooks *store; /* to which blocks may move what they keep; NULL: on an accelerator to one of the plan's
                                 own, in host memory */
  EbbProcessGroup *group; /* the ranks that run the step together, of which this is the first; NULL: there are none */
  EbbStepFunc step;
  gpointer user_data;
  gboolean is_real; /* steps are no dry ones: they change what steps change and don't tell which copies are waited for,
                       so blocks move nothing */
} EbbPlanRequest;

typedef struct _EbbProbe EbbProbe;

/* @blocks and @costs must live as long. For real steps alone, by ebb_probe_watch (). */
EbbProbe *ebb_probe_new_idle (EbbModule *model,
                              EbbDevice *device,
                              GArray *blocks,
                              EbbCostTable *costs);
/* The same for steps by ebb_probe_run (): dry ones, while which the model can't be used, or real ones. Runs a first
 * step, which makes what later steps find: the optimizer's state. */
EbbProbe *ebb_probe_new (const EbbPlanRequest *request,
                         GArray *blocks,
                         EbbCostTable *costs,
                         GError **error);
void ebb_probe_free (EbbProbe *self);
/* Runs one step and looks at it. */
EbbProbeStep *ebb_probe_run (EbbProbe *self,
                             GError **error);
/* Gives back the memory of the dry run that no step needs before the next one. */
void ebb_probe_trim (EbbProbe *self);
/* Looks at a real step. */
EbbProbeStep *ebb_probe_watch (EbbProbe *self,
                               EbbStepFunc step,
                               gpointer user_data,
                               GError **error);
void ebb_probe_step_free (EbbProbeStep *step);
/* "the backward of h.11" */
char *ebb_probe_describe_place (EbbProbe *self,
                                guint stage,
                                EbbProbePart part);
/* Where a step isn't as an earlier one of the same model, of which another probe may have been: "op 7 is gelu in the
 * forward of h.1, and was relu in the forward of h.1". NULL: nowhere. */
char *ebb_probe_compare (EbbProbe *self,
                         const EbbProbeStep *step,
                         EbbProbe *other,
                         const EbbProbeStep *before);
/* While a step runs: how many launches it has had. */
guint ebb_probe_get_n_launches (EbbProbe *self);
/* Fills in the seconds of the stages: of launches as they were measured, and of copies that run beside them at the
 * measured rates. */
void ebb_probe_price (EbbProbe *self,
                      EbbProbeStep *step);
/* What the step takes in all. */
double ebb_probe_get_seconds (EbbProbe *self,
                              const EbbProbeStep *step);
/* The type and shape of the first block's input: "f32 [8, 512, 768]"; empty if it is no tensor. */
const char *ebb_probe_get_input (EbbProbe *self);
/* The rows of that input; 0 if it isn't f32 or is cast to something lower, or if backward gives the blocks' parameters
 * no gradients. */
gint64 ebb_probe_get_n_rows (EbbProbe *self);

G_DEFINE_AUTOPTR_CLEANUP_FUNC (EbbProbeStep, ebb_probe_step_free)
G_DEFINE_AUTOPTR_CLEANUP_FUNC (EbbProbe, ebb_probe_free)

G_END_DECLS
