/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* What the rest of a chain costs at least: convex functions of what the stages before it keep, for each stage. */
#include "wrap/plan/chain/search-private.h"

#include <math.h>
#include <string.h>

#define NO_END 4e18

/* A piece of a convex function that rises to the right. */
typedef struct
{
  double length, slope;
} Piece;

/* The function ends at @end, where it is @value; its pieces go from there to the left, the steepest first. */
typedef struct
{
  double end, value;
  Piece *pieces;
  guint n_pieces;
  double *lengths, *drops; /* of the pieces up to each one, in all */
} Curve;

/* All copies but the last take no longer than the stages compute and wait, since there is one link. So any share of
 *
 *   (seconds of copies, less those of the longest one) - (seconds of computing)
 *
 * is a bound of the seconds waited. With a share of it for each direction, the seconds of a move count for less by the
 * one for the way back, and those of its copies count. */
typedef struct
{
  double out, back;
} Shares;

static const Shares all_shares[] = { { 0, 0 }, { 1, 0 }, { 0, 1 }, { 1, 1 }, { 0.5, 0.5 }, { 0.5, 0 }, { 0, 0.5 } };

/* What can be hidden of copies from a stage on. */
typedef struct
{
  double forward_seconds, backward_seconds; /* of the stages, in all */
  gint64 out, back;                         /* the longest copies */
} Hidden;

/* The curves for one pair of shares. */
typedef struct
{
  Shares shares;
  Curve *curves; /* for the stages from each one on; the last one is that of no stage */
} Relaxation;

struct _EbbChainBounds
{
  Relaxation relaxations[G_N_ELEMENTS (all_shares)];
  guint n_relaxations;
  Hidden *hidden;
  guint n_curves;
  gint64 tick;
};

/* -- making -------------------------------------------------------------------------------------------------------- */

typedef struct
{
  guint64 kept;
  double cost;
} Point;

static int
compare_points (gconstpointer a,
                gconstpointer b)
{
  const Point *left = a, *right = b;

  if (left->kept != right->kept)
    return left->kept < right->kept ? -1 : 1;
  return left->cost < right->cost ? -1 : left->cost > right->cost;
}

/* Fills @hull with the points on the lower left of the convex hull of a stage's moves, from the least kept to the least
 * cost; returns their number. */
static guint
make_hull (const EbbChainStep *step,
           Shares shares,
           gint64 tick,
           Point *hull)
{
  g_autofree Point *sorted = g_new (Point, step->n_moves);
  guint n = 0;

  for (guint i = 0; i < step->n_moves; i++)
    {
      const EbbChainMove *move = &step->moves[i];
      const double hidden = shares.out * (double) move->out_seconds + shares.back * (double) move->back_seconds
                            - shares.back * (double) move->seconds;

      sorted[i] = (Point){ move->kept, (double) move->cost + hidden * (double) tick };
    }
  qsort (sorted, step->n_moves, sizeof *sorted, compare_points);
  for (guint i = 0; i < step->n_moves; i++)
    {
      const Point *next = &sorted[i];

      if (n > 0 && next->cost >= hull[n - 1].cost)
        continue;
      while (n > 1)
        {
          const Point *last = &hull[n - 1], *before = &hull[n - 2];
          const double to_last = (before->cost - last->cost) / (double) (last->kept - before->kept);
          const double to_next = (last->cost - next->cost) / (double) (next->kept - last->kept);

          if (to_next < to_last)
            break;
          n--;
        }
      hull[n++] = *next;
    }
  return n;
}

/* The most that the stages before may keep for any option of @step to fit. */
static double
get_room (const EbbChainStep *step,
          guint64 budget)
{
  double room = -1;

  for (guint i = 0; i < step->n_moves; i++)
    {
      const guint64 need = MAX (step->forward_base + step->moves[i].forward,
                                step->backward_base + step->moves[i].backward);

      if (need <= budget)
        room = MAX (room, (double) (budget - need));
    }
  return room;
}

/* Cuts off what is to the right of @end. */
static void
cut (Curve *self,
     double end)
{
  double excess = self->end - end;
  guint n = 0;

  if (excess <= 0)
    return;
  self->end = end;
  for (; n < self->n_pieces && excess > 0; n++)
    {
      const double length = MIN (excess, self->pieces[n].length);

      self->value -= length * self->pieces[n].slope;
      self->pieces[n].length -= length;
      excess -= length;
      if (self->pieces[n].length > 0)
        break;
    }
  memmove (self->pieces, self->pieces + n, (self->n_pieces - n) * sizeof *self->pieces);
  self->n_pieces -= n;
}

static void
insert_piece (Curve *self,
              Piece piece)
{
  guint place = 0, end = self->n_pieces;

  while (place < end)
    {
      const guint middle = (place + end) / 2;

      if (self->pieces[middle].slope >= piece.slope)
        place = middle + 1;
      else
        end = middle;
    }
  if (place > 0 && self->pieces[place - 1].slope == piece.slope)
    {
      self->pieces[place - 1].length += piece.length;
      return;
    }
  memmove (self->pieces + place + 1, self->pieces + place, (self->n_pieces - place) * sizeof piece);
  self->pieces[place] = piece;
  self->n_pieces++;
}

/* The cost of @step and those after it, of which @rest is the curve. */
static void
make_curve (Curve *self,
            const Curve *rest,
            const EbbChainStep *step,
            Shares shares,
            gint64 tick,
            guint64 budget)
{
  g_autofree Point *hull = g_new (Point, step->n_moves);
  const guint n_hull = make_hull (step, shares, tick, hull);

  self->pieces = g_new (Piece, rest->n_pieces + n_hull);
  if (rest->n_pieces > 0)
    memcpy (self->pieces, rest->pieces, rest->n_pieces * sizeof *self->pieces);
  self->n_pieces = rest->n_pieces;
  self->end = rest->end - (double) hull[0].kept;
  self->value = rest->value + hull[0].cost;
  for (guint i = 1; i < n_hull; i++)
    {
      const double length = (double) (hull[i].kept - hull[i - 1].kept);

      insert_piece (self, (Piece){ length, (hull[i - 1].cost - hull[i].cost) / length });
    }
  cut (self, get_room (step, budget));
}

static void
add_up (Curve *self)
{
  self->lengths = g_new (double, self->n_pieces + 1);
  self->drops = g_new (double, self->n_pieces + 1);
  self->lengths[0] = self->drops[0] = 0;
  for (guint i = 0; i < self->n_pieces; i++)
    {
      self->lengths[i + 1] = self->lengths[i] + self->pieces[i].length;
      self->drops[i + 1] = self->drops[i] + self->pieces[i].length * self->pieces[i].slope;
    }
}

static void
make_relaxation (Relaxation *self,
                 const EbbChainProblem *problem,
                 Shares shares,
                 guint64 budget)
{
  self->shares = shares;
  self->curves = g_new0 (Curve, problem->n_steps + 1);
  self->curves[problem->n_steps].end = NO_END;
  for (guint i = problem->n_steps; i-- > 0;)
    make_curve (&self->curves[i], &self->curves[i + 1], &problem->steps[i], shares, problem->tick, budget);
  for (guint i = 0; i <= problem->n_steps; i++)
    add_up (&self->curves[i]);
}

static void
find_hidden (const EbbChainProblem *problem,
             Hidden *hidden)
{
  hidden[problem->n_steps] = (Hidden){ 0 };
  for (guint i = problem->n_steps; i-- > 0;)
    {
      const EbbChainStep *step = &problem->steps[i];

      hidden[i] = hidden[i + 1];
      hidden[i].forward_seconds += (double) step->forward_seconds;
      hidden[i].backward_seconds += (double) step->backward_seconds;
      for (guint m = 0; m < step->n_moves; m++)
        {
          hidden[i].out = MAX (hidden[i].out, step->moves[m].out_seconds);
          hidden[i].back = MAX (hidden[i].back, step->moves[m].back_seconds);
        }
    }
}

EbbChainBounds *
ebb_chain_bounds_new (const EbbChainProblem *problem,
                      guint64 budget)
{
  EbbChainBounds *self = g_new0 (EbbChainBounds, 1);

  self->tick = problem->tick;
  self->n_curves = problem->n_steps + 1;
  self->hidden = g_new (Hidden, self->n_curves);
  find_hidden (problem, self->hidden);
  self->n_relaxations = problem->moves ? G_N_ELEMENTS (all_shares) : 1;
  for (guint i = 0; i < self->n_relaxations; i++)
    make_relaxation (&self->relaxations[i], problem, all_shares[i], budget);
  return self;
}

/* -- asking -------------------------------------------------------------------------------------------------------- */

/* Costs are whole numbers, so a bound is rounded up, after it is lowered by more than the sums of doubles can be off.
 */
static gint64
to_cost (double value,
         double magnitude)
{
  return (gint64) MAX (0, ceil (value - magnitude * 1e-12 - 1e-3));
}

static double
get_drop (const Curve *curve,
          double left)
{
  guint place = 0, end = curve->n_pieces;

  while (place < end)
    {
      const guint middle = (place + end) / 2;

      if (curve->lengths[middle + 1] <= left)
        place = middle + 1;
      else
        end = middle;
    }
  if (place == curve->n_pieces)
    return curve->drops[place];
  return curve->drops[place] + (left - curve->lengths[place]) * curve->pieces[place].slope;
}

static gint64
ask (const EbbChainBounds *self,
     const Relaxation *relaxation,
     guint stage,
     const EbbChainState *state)
{
  const Curve *curve = &relaxation->curves[stage];
  const Hidden *hidden = &self->hidden[stage];
  const Shares shares = relaxation->shares;
  const double left = curve->end - (double) state->kept;
  double waited;

  if (left < 0)
    return G_MAXINT64;
  waited = shares.out * ((double) (state->out - MAX (state->out, hidden->out)) - hidden->forward_seconds)
           + shares.back * ((double) (state->back - MAX (state->back, hidden->back)) - hidden->backward_seconds);
  waited *= (double) self->tick;
  return to_cost (curve->value - get_drop (curve, left) + waited, fabs (curve->value) + fabs (waited));
}

gint64
ebb_chain_bounds_get (const EbbChainBounds *self,
                      guint stage,
                      const EbbChainState *state,
                      gint64 limit)
{
  gint64 bound = 0;

  for (guint i = 0; i < self->n_relaxations && bound <= limit; i++)
    bound = MAX (bound, ask (self, &self->relaxations[i], stage, state));
  return bound;
}

/* -- teardown ------------------------------------------------------------------------------------------------------ */

static void
relaxation_clear (Relaxation *self,
                  guint n_curves)
{
  for (guint i = 0; i < n_curves; i++)
    {
      g_free (self->curves[i].pieces);
      g_free (self->curves[i].lengths);
      g_free (self->curves[i].drops);
    }
  g_free (self->curves);
}

void
ebb_chain_bounds_free (EbbChainBounds *self)
{
  for (guint i = 0; i < self->n_relaxations; i++)
    relaxation_clear (&self->relaxations[i], self->n_curves);
  g_free (self->hidden);
  g_free (self);
}
