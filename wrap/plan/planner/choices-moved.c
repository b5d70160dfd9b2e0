/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The choices of blocks that move what they keep to host memory or a disk and back, beside computing. */
#include "wrap/plan/planner/choices-private.h"

/* Choices of a class that are moved, too. */
#define MAX_MOVED 8

/* What a block copies out of the device or, where that is the host, out of staging memory. The last bytes stay there
 * until another block's first ones come. */
typedef struct
{
  guint64 all, last;
} Copied;

/* To the host: those of the last group of packs stay. */
static void
count_to_host (Copied *copied,
               const EbbProbeCopy *copy,
               guint *group)
{
  if (copy->event.kind != EBB_COPY_TO_HOST)
    return;
  if (copy->launch != *group)
    copied->last = 0;
  *group = copy->launch;
  copied->all += copy->event.n_bytes;
  copied->last += copy->event.n_bytes;
}

/* To the disk: those that weren't waited for stay in staging memory. @sizes: of the block's writes by their numbers. */
static void
count_to_disk (Copied *copied,
               const EbbProbeCopy *copy,
               GHashTable *sizes)
{
  const EbbCopyEvent *event = &copy->event;

  if (event->kind == EBB_COPY_TO_DISK)
    {
      g_hash_table_insert (sizes, (gpointer) &event->number, (gpointer) &event->n_bytes);
      copied->all += event->n_bytes;
      copied->last += event->n_bytes;
    }
  else if (event->kind == EBB_COPY_AWAITED)
    {
      const guint64 *size = g_hash_table_lookup (sizes, &event->number);

      copied->last -= size != NULL ? *size : 0;
      g_hash_table_remove (sizes, &event->number);
    }
}

static Copied
count_copied (const EbbPlanChoices *self,
              const EbbProbeStep *step,
              guint stage)
{
  g_autoptr (GHashTable) sizes = g_hash_table_new (g_int64_hash, g_int64_equal);
  Copied copied = { 0 };
  guint group = G_MAXUINT;

  for (guint i = 0; i < step->copies->len; i++)
    {
      const EbbProbeCopy *copy = &g_array_index (step->copies, EbbProbeCopy, i);

      if (copy->stage != stage || copy->part != EBB_PROBE_FORWARD)
        continue;
      if (self->place == EBB_MEMORY_PLACE_HOST)
        count_to_host (&copied, copy, &group);
      else
        count_to_disk (&copied, copy, sizes);
    }
  return copied;
}

/* On an accelerator what leaves it for a disk lies in host memory meanwhile. */
static guint64
count_staying (const EbbPlanChoices *self,
               const Copied *copied)
{
  return self->place == EBB_MEMORY_PLACE_HOST || self->costs->device->backend->host_memory ? copied->last : 0;
}

static const EbbCostRates *
get_rates (const EbbPlanChoices *self)
{
  return self->place == EBB_MEMORY_PLACE_DISK ? &self->costs->disk_rates : &self->costs->host_rates;
}

static double
subtract (double a,
          double b)
{
  return MAX (0, a - b);
}

/* Every group but the last is copied within the block: computing waits for it when the next group comes. The chain
 * counts the wait for the last group. */
static void
price (EbbPlanChoice *choice,
       const Copied *copied,
       guint64 staying,
       const EbbCostRates *rates,
       const EbbProbeStage *stage,
       double waited)
{
  const double forward = stage->seconds[EBB_PROBE_FORWARD], backward = stage->seconds[EBB_PROBE_BACKWARD];
  const double last_out = (double) copied->last / rates->out, last_back = (double) copied->last / rates->in;

  choice->moving = staying;
  choice->out_seconds = MIN ((double) copied->all / rates->out, last_out + forward);
  choice->back_seconds = last_back;
  choice->seconds +=
      subtract (waited, subtract (last_out, forward) + subtract (last_back, backward + choice->seconds));
}

/* @follows: the block before it moves as many bytes. */
static void
take_figures (EbbPlanChoices *self,
              EbbPlanChoice *choice,
              const EbbProbeStep *step,
              guint block,
              gboolean follows)
{
  const guint at = block + 1;
  const EbbProbeStage *stage = &step->stages[at], *none = &self->none->stages[at];
  const Copied copied = count_copied (self, step, at);
  const guint64 staying = count_staying (self, &copied);
  const guint64 base = step->stages[0].start, before = follows ? staying : 0;
  const guint64 unmoved = self->none->stages[at + 1].start - base; /* which the chain takes off the backward's start */
  const guint64 back = stage->back_start + stage->back_rise;
  const guint64 back_base = none->back_start > unmoved ? none->back_start - unmoved : 0;
  const guint64 left = stage[1].start + before, taken = stage->start + staying;

  choice->kept = left > taken ? left - taken : 0;
  choice->rise = before + stage->rise;
  choice->back_rise = back + base > back_base + stage->start + choice->kept
                          ? back + base - back_base - stage->start - choice->kept
                          : 0;
  price (choice, &copied, staying, get_rates (self), none, stage->waited);
}

/* Whether no other choice in place keeps less and is as fast. */
static gboolean
is_best (const EbbPlanClass *class,
         guint number)
{
  const EbbPlanChoice *choice = &g_array_index (class->choices, EbbPlanChoice, number);

  for (guint i = 0; i < class->n_in_place; i++)
    {
      const EbbPlanChoice *other = &g_array_index (class->choices, EbbPlanChoice, i);

      if (i != number && other->kept <= choice->kept && other->seconds <= choice->seconds
          && (i < number || other->kept < choice->kept || other->seconds < choice->seconds))
        return FALSE;
    }
  return TRUE;
}

static void
add_moved (EbbPlanClass *class,
           EbbMemoryPlace place)
{
  for (guint i = 0; i < class->n_in_place && class->choices->len - class->n_in_place < MAX_MOVED; i++)
    {
      EbbPlanChoice choice = g_array_index (class->choices, EbbPlanChoice, i);

      if (i > EBB_PLAN_RECOMPUTE_ALL && !is_best (class, i))
        continue;
      choice.place = place;
      choice.saved = g_memdup2 (choice.saved, choice.n_saved * sizeof *choice.saved);
      g_array_append_val (class->choices, choice);
    }
}

/* A choice is tried by two members in a row where there are two: the second one finds on the device what the first one
 * left in flight, as in a plan in which all blocks move. */
static guint
get_choice (const EbbPlanClass *class,
            guint round,
            guint member)
{
  const guint n_pairs = MAX (1, class->members->len / 2);
  const guint choice = class->n_in_place + round * n_pairs + member / 2;

  return member / 2 < n_pairs && choice < class->choices->len ? choice : EBB_PLAN_KEEP_ALL;
}

static void
take_tried (EbbPlanChoices *self,
            EbbPlanClass *class,
            const guint *choices,
            const EbbProbeStep *step)
{
  for (guint i = 0; i < class->members->len; i++)
    {
      const guint block = g_array_index (class->members, guint, i);
      const gboolean follows = i % 2 == 1 && g_array_index (class->members, guint, i - 1) + 1 == block;

      if (choices[block] > 0 && (i % 2 == 1 || class->members->len == 1))
        take_figures (self, &g_array_index (class->choices, EbbPlanChoice, choices[block]), step, block, follows);
    }
}

static gboolean
measure_moved (EbbPlanChoices *self,
               GError **error)
{
  g_autofree guint *choices = g_new0 (guint, self->blocks->len);
  gboolean more = TRUE;

  for (guint round = 0; more; round++)
    {
      g_autoptr (EbbProbeStep) step = NULL;

      more = FALSE;
      for (guint c = 0; c < self->classes->len; c++)
        {
          const EbbPlanClass *class = self->classes->pdata[c];

          for (guint i = 0; i < class->members->len; i++)
            choices[g_array_index (class->members, guint, i)] = get_choice (class, round, i);
          more |= get_choice (class, round + 1, 0) != EBB_PLAN_KEEP_ALL;
        }
      step = ebb_plan_choices_try_numbers (self, choices, error);
      if (step == NULL)
        return FALSE;
      for (guint c = 0; c < self->classes->len; c++)
        take_tried (self, self->classes->pdata[c], choices, step);
    }
  return TRUE;
}

gboolean
ebb_plan_choices_add_moved (EbbPlanChoices *self,
                            GError **error)
{
  const EbbCostRates *rates = get_rates (self);

  if (self->place == EBB_MEMORY_PLACE_DEVICE || rates->out <= 0 || rates->in <= 0)
    return TRUE;
  for (guint i = 0; i < self->classes->len; i++)
    add_moved (self->classes->pdata[i], self->place);
  return measure_moved (self, error);
}
