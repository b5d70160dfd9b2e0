/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers */
#include "support/device.h"
#include "support/profiles.h"
#include "support/tensors.h"

#include "tensor/backend/backend-private.h"
#include "tensor/profile/timeline-private.h"

#include <glib/gstdio.h>
#include <string.h>

/* A memory timeline says what the counters say, at every moment, and knows who made each block. */

static EbbMemoryTimeline *
start_timeline (const char *name)
{
  EbbMemoryTimeline *timeline = ebb_memory_timeline_new (name);
  GError *error = NULL;

  ebb_memory_reset_peaks (test_device ());
  ebb_memory_timeline_start (timeline, test_device (), &error);
  g_assert_no_error (error);
  return timeline;
}

static void
check_peaks (EbbMemoryTimeline *timeline)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (test_device ());

  g_assert_cmpuint (ebb_memory_timeline_get_peak_total (timeline), ==, ebb_memory_stats_get_peak_total (stats));
  for (EbbPurpose i = 0; i < EBB_N_PURPOSES; i++)
    {
      g_assert_cmpuint (ebb_memory_timeline_get_peak (timeline, i), ==, ebb_memory_stats_get_peak (stats, i));
      g_assert_cmpuint (timeline->current[i], ==, ebb_memory_stats_get_current (stats, i));
    }
}

/* The sums of the blocks and of the rest, from the changes alone. */
static void
check_replay (EbbMemoryTimeline *timeline)
{
  g_autofree guint8 *purposes = ebb_timeline_replay (timeline, EBB_TIMELINE_NEVER);
  gint64 now[EBB_N_PURPOSES + 1] = { 0 };
  gint64 total = 0, peak = 0;

  for (guint i = 0; i < timeline->blocks->len; i++)
    now[purposes[i]] += (gint64) ebb_timeline_get_block (timeline, i)->n_bytes;
  for (guint i = 0; i < EBB_N_PURPOSES; i++)
    {
      now[i] += timeline->rest[i];
      total += now[i];
    }
  peak = total;
  for (guint i = 0; i < timeline->changes->len; i++)
    {
      const EbbTimelineChange *change = ebb_timeline_get_change (timeline, i);
      const gint64 n_bytes = (gint64) ebb_timeline_get_block (timeline, change->block)->n_bytes;

      total += (change->to != EBB_N_PURPOSES ? n_bytes : 0) - (purposes[change->block] != EBB_N_PURPOSES ? n_bytes : 0);
      now[purposes[change->block]] -= n_bytes;
      now[change->to] += n_bytes;
      purposes[change->block] = change->to;
      peak = MAX (peak, total);
    }
  g_assert_cmpint (peak, ==, (gint64) ebb_memory_timeline_get_peak_total (timeline));
  for (guint i = 0; i < EBB_N_PURPOSES; i++)
    g_assert_cmpint (now[i], ==, (gint64) timeline->current[i]);
}

/* The timeline of the second step of two transformer blocks. */
static EbbMemoryTimeline *
record_step (EbbCheckpointOptions *options,
             const char *name)
{
  g_autoptr (EbbModule) blocks = test_profile_blocks_new (options);
  g_autoptr (EbbTensor) x = test_randn (2, 2, 4, TEST_PROFILE_WIDTH, -1);
  g_autoptr (EbbOptimizer) optimizer = NULL;
  g_autoptr (GError) error = NULL;
  EbbMemoryTimeline *timeline;

  optimizer = ebb_adamw_new (blocks, 1e-3, &error);
  g_assert_no_error (error);
  test_profile_train (blocks, x, optimizer);
  ebb_optimizer_zero_grad (optimizer);
  timeline = start_timeline (name);
  ebb_memory_timeline_name_module (timeline, blocks);
  ebb_memory_timeline_name_optimizer (timeline, optimizer);
  test_profile_train (blocks, x, optimizer);
  ebb_optimizer_zero_grad (optimizer);
  check_peaks (timeline);
  ebb_memory_timeline_stop (timeline);
  check_replay (timeline);
  return timeline;
}

static gboolean
has_phase (EbbMemoryTimeline *timeline,
           EbbPhase phase)
{
  for (guint i = 0; i < timeline->spans->len; i++)
    if (ebb_timeline_get_span (timeline, i)->phase == phase)
      return TRUE;
  return FALSE;
}

/* The blocks that @op made in @phase in the module @path. */
static guint
count_blocks (EbbMemoryTimeline *timeline,
              const char *op,
              EbbPhase phase,
              const char *path)
{
  guint n = 0;

  for (guint i = 0; i < timeline->blocks->len; i++)
    {
      const EbbTimelineBlock *block = ebb_timeline_get_block (timeline, i);

      n += g_strcmp0 (block->op, op) == 0 && block->phase == phase
           && (path == NULL || g_strcmp0 (g_quark_to_string (block->path), path) == 0);
    }
  return n;
}

/* The op's result; on a GPU a product may have workspace too. */
static void
assert_one_result (EbbMemoryTimeline *timeline,
                   EbbPhase phase,
                   const char *path)
{
  const guint n = count_blocks (timeline, "linear", phase, path);

  g_assert_cmpuint (n, >=, 1);
  g_assert_cmpuint (n, <=, g_str_has_prefix (ebb_device_get_name (test_device ()), "cuda") ? 2 : 1);
}

static void
the_numbers_are_the_counters_own (void)
{
  g_autoptr (EbbMemoryTimeline) timeline = record_step (NULL, "none");

  g_assert_true (has_phase (timeline, EBB_PHASE_FORWARD));
  g_assert_true (has_phase (timeline, EBB_PHASE_BACKWARD));
  g_assert_true (has_phase (timeline, EBB_PHASE_OPTIMIZER));
  g_assert_false (has_phase (timeline, EBB_PHASE_RECOMPUTE));
  /* attention and its projection, the MLP's first layer and its last */
  assert_one_result (timeline, EBB_PHASE_FORWARD, "0.attn.c_attn");
  assert_one_result (timeline, EBB_PHASE_FORWARD, "1.mlp.c_proj");
  g_assert_cmpuint (count_blocks (timeline, "linear", EBB_PHASE_BACKWARD, "1.mlp.c_proj"), >=, 2);
}

static void
recomputes_are_marked (void)
{
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
  g_autoptr (EbbMemoryTimeline) timeline = record_step (options, "full");

  g_assert_true (has_phase (timeline, EBB_PHASE_RECOMPUTE));
  assert_one_result (timeline, EBB_PHASE_RECOMPUTE, "0.attn.c_attn");
  assert_one_result (timeline, EBB_PHASE_RECOMPUTE, "1.attn.c_attn");
}

static void
a_recording_changes_no_count (void)
{
  g_autoptr (EbbMemoryTimeline) timeline = record_step (NULL, NULL);
  guint64 peak = ebb_memory_timeline_get_peak_total (timeline);
  g_autoptr (EbbModule) blocks = test_profile_blocks_new (NULL);
  g_autoptr (EbbTensor) x = test_randn (2, 2, 4, TEST_PROFILE_WIDTH, -1);
  g_autoptr (EbbOptimizer) optimizer = ebb_adamw_new (blocks, 1e-3, NULL);
  g_autoptr (EbbMemoryStats) stats = NULL;

  test_profile_train (blocks, x, optimizer);
  ebb_optimizer_zero_grad (optimizer);
  ebb_memory_reset_peaks (test_device ());
  test_profile_train (blocks, x, optimizer);
  stats = ebb_memory_get_stats (test_device ());
  g_assert_cmpuint (ebb_memory_stats_get_peak_total (stats), ==, peak);
}

static void
a_block_lives_from_its_op_to_its_last_holder (void)
{
  g_autoptr (EbbTensor) x = test_randn (2, 8, 16, -1);
  g_autoptr (EbbMemoryTimeline) timeline = start_timeline ("life");
  GError *error = NULL;
  EbbTensor *y = ebb_tanh (x, &error);
  g_autoptr (EbbTensor) z = ebb_tanh (y, &error);
  const EbbTimelineBlock *block;

  g_assert_no_error (error);
  ebb_memory_timeline_name_tensor (timeline, x, "x");
  ebb_tensor_unref (y);
  ebb_memory_timeline_stop (timeline);
  g_assert_cmpuint (ebb_memory_timeline_get_n_launches (timeline), ==, 2);
  g_assert_cmpuint (ebb_memory_timeline_get_n_changes (timeline), ==, 3); /* y comes, z comes, y goes */
  block = ebb_timeline_get_block (timeline, 0);
  g_assert_cmpstr (block->op, ==, "tanh");
  g_assert_cmpstr (block->shape, ==, "f32 [8, 16]");
  g_assert_cmpuint (block->n_bytes, ==, 8 * 16 * 4);
  g_assert_cmpuint (block->first, ==, 0);
  g_assert_cmpuint (block->last, ==, 2);
  g_assert_cmpuint (ebb_timeline_get_change (timeline, 1)->position, ==, 1);
  g_assert_cmpuint (ebb_timeline_get_block (timeline, 1)->last, ==, EBB_TIMELINE_NEVER);
  block = ebb_timeline_get_block (timeline, 2);
  g_assert_cmpstr (block->name, ==, "x");
  g_assert_cmpuint (block->first, ==, EBB_TIMELINE_NEVER);
  check_replay (timeline);
}

/* What was there before is one sum until it changes; bytes counted by hand may go in other amounts than they came. */
static void
what_was_there_before_is_counted (void)
{
  EbbTensor *old = test_randn (1, 64, -1);
  g_autoptr (EbbMemoryTimeline) timeline = NULL;

  ebb_device_count (test_device (), EBB_PURPOSE_ACTIVATION, 100);
  timeline = start_timeline (NULL);
  ebb_device_count (test_device (), EBB_PURPOSE_ACTIVATION, 50);
  ebb_device_recount (test_device (), EBB_PURPOSE_ACTIVATION, EBB_PURPOSE_WORKSPACE, 50);
  ebb_device_count (test_device (), EBB_PURPOSE_WORKSPACE, -20);
  ebb_device_count (test_device (), EBB_PURPOSE_WORKSPACE, -30);
  ebb_device_count (test_device (), EBB_PURPOSE_ACTIVATION, -100);
  ebb_tensor_unref (old);
  check_peaks (timeline);
  ebb_memory_timeline_stop (timeline);
  check_replay (timeline);
}

static void
holders_of_the_peak_add_up (void)
{
  g_autoptr (EbbMemoryTimeline) timeline = record_step (NULL, "none");
  g_autoptr (GArray) all = ebb_memory_timeline_list_holders (timeline, G_MAXUINT);
  g_autoptr (GArray) ten = ebb_memory_timeline_list_holders (timeline, 10);
  g_autofree char *table = ebb_memory_timeline_get_table (timeline, 10);
  g_autofree char *bytes =
      g_strdup_printf ("(%" G_GUINT64_FORMAT " bytes)", ebb_memory_timeline_get_peak_total (timeline));
  guint64 sum = 0;
  gboolean has_moment = FALSE;

  for (guint i = 0; i < all->len; i++)
    {
      const EbbMemoryHolder *holder = &g_array_index (all, EbbMemoryHolder, i);

      sum += holder->n_bytes;
      g_assert_true (i == 0 || holder[-1].n_bytes >= holder->n_bytes);
      has_moment = has_moment || g_strcmp0 (holder->name, "*.mlp.c_fc.weight (exp_avg)") == 0;
    }
  g_assert_cmpuint (sum, ==, ebb_memory_timeline_get_peak_total (timeline));
  g_assert_true (has_moment);
  g_assert_cmpuint (ten->len, ==, 10);
  g_assert_nonnull (strstr (table, bytes));
  g_assert_nonnull (strstr (table, "*.mlp.c_fc.weight, f32 ["));
}

static char *
save (EbbMemoryTimeline *timeline,
      const char *name,
      gboolean (*function) (EbbMemoryTimeline **, guint, guint64, const char *, GError **))
{
  EbbMemoryTimeline *both[] = { timeline, timeline };
  g_autofree char *folder = g_dir_make_tmp ("ebb-timeline-XXXXXX", NULL);
  g_autofree char *path = g_build_filename (folder, name, NULL);
  GError *error = NULL;
  char *text;

  function (both, 2, 1 << 20, path, &error);
  g_assert_no_error (error);
  g_assert_true (g_file_get_contents (path, &text, NULL, NULL));
  g_unlink (path);
  g_assert_cmpint (g_rmdir (folder), ==, 0); /* nothing else was left there */
  return text;
}

/* The recordings in a page. */
static char *
find_data (const char *page)
{
  const char *begin = strstr (page, "id=\"recordings\">");

  g_assert_nonnull (begin);
  begin += strlen ("id=\"recordings\">");
  return g_strndup (begin, (gsize) (strstr (begin, "</script>") - begin));
}

static void
names_cannot_break_the_files (void)
{
  static const char name[] = "</script><b>\"\\\n& \303\244\342\202\254";
  g_autoptr (EbbTensor) x = test_randn (2, 8, 16, -1);
  g_autoptr (EbbMemoryTimeline) timeline = start_timeline (name);
  g_autofree char *page = NULL;
  g_autofree char *data = NULL;
  g_autofree char *picture = NULL;
  g_autoptr (JsonParser) parser = NULL;
  JsonObject *run;

  ebb_memory_timeline_name_tensor (timeline, x, "\377<!--<script>");
  ebb_memory_timeline_stop (timeline);
  page = save (timeline, "page.html", ebb_memory_timeline_save_html);
  data = find_data (page);
  g_assert_null (strchr (data, '<'));
  run = json_array_get_object_element (json_object_get_array_member (test_parse_json (data, &parser), "runs"), 1);
  g_assert_cmpstr (json_object_get_string_member (run, "name"), ==, name);
  g_assert_nonnull (strstr (data, "\\u003c!--\\u003cscript\\u003e"));
  picture = save (timeline, "picture.svg", ebb_memory_timeline_save_svg);
  g_assert_null (strstr (picture, "</script>"));
  g_assert_null (strstr (picture, "<b>"));
  g_assert_nonnull (strstr (picture, "&lt;/script&gt;&lt;b&gt;"));
}

static void
the_page_has_all_changes (void)
{
  g_autoptr (EbbMemoryTimeline) timeline = record_step (NULL, "none");
  g_autofree char *page = save (timeline, "page.html", ebb_memory_timeline_save_html);
  g_autofree char *data = find_data (page);
  g_autoptr (JsonParser) parser = NULL;
  JsonObject *root = test_parse_json (data, &parser);
  JsonObject *run = json_array_get_object_element (json_object_get_array_member (root, "runs"), 0);
  JsonObject *changes = json_object_get_object_member (run, "changes");

  g_assert_cmpint (json_object_get_int_member (root, "budget"), ==, 1 << 20);
  g_assert_cmpuint (json_array_get_length (json_object_get_array_member (changes, "to")), ==,
                    ebb_memory_timeline_get_n_changes (timeline));
  g_assert_null (strstr (page, "http")); /* it needs no network */
}

static void
mistakes_are_errors (void)
{
  g_autoptr (EbbMemoryTimeline) timeline = start_timeline (NULL);
  EbbMemoryTimeline *list[] = { timeline };
  g_autoptr (GError) twice = NULL;
  g_autoptr (GError) early = NULL;
  g_autoptr (GError) none = NULL;
  g_autoptr (GError) nowhere = NULL;
  g_autoptr (GError) nowhere_svg = NULL;

  g_assert_false (ebb_memory_timeline_start (timeline, test_device (), &twice));
  test_assert_error (twice, EBB_ERROR_INVALID_ARGUMENT, "runs already");
  g_assert_false (ebb_memory_timeline_save_html (list, 1, 0, "/tmp/page.html", &early));
  test_assert_error (early, EBB_ERROR_INVALID_ARGUMENT, "still runs");
  ebb_memory_timeline_stop (timeline);
  ebb_memory_timeline_stop (timeline); /* does nothing */
  g_assert_false (ebb_memory_timeline_save_html (list, 0, 0, "/tmp/page.html", &none));
  test_assert_error (none, EBB_ERROR_INVALID_ARGUMENT, "there is none");
  g_assert_false (ebb_memory_timeline_save_html (list, 1, 0, "/nowhere/page.html", &nowhere));
  test_assert_error (nowhere, EBB_ERROR_IO, "/nowhere/page.html");
  g_assert_false (ebb_memory_timeline_save_svg (list, 1, 0, "/nowhere/page.svg", &nowhere_svg));
  test_assert_error (nowhere_svg, EBB_ERROR_IO, "/nowhere/page.svg");
}

static gpointer
record_and_end (gpointer data)
{
  EbbMemoryTimeline *timeline = start_timeline ("thread");

  g_assert_true (ebb_memory_timeline_is_running (timeline));
  return timeline;
}

static void
the_end_of_a_thread_stops_it (void)
{
  g_autoptr (EbbMemoryTimeline) timeline = g_thread_join (g_thread_new ("recorder", record_and_end, NULL));
  g_autoptr (EbbTensor) x = test_randn (1, 4, -1);

  g_assert_false (ebb_memory_timeline_is_running (timeline));
  g_assert_cmpuint (ebb_memory_timeline_get_n_changes (timeline), ==, 0);
}

/* Each rank records what it has itself. */
static gboolean
record_rank (EbbProcessGroup *group,
             gpointer user_data,
             GError **error)
{
  const gint64 n = 16 * (1 + ebb_process_group_get_rank (group));
  g_autoptr (EbbMemoryTimeline) timeline = start_timeline ("rank");
  g_autoptr (EbbTensor) x = test_randn (1, n, -1);

  check_peaks (timeline);
  ebb_memory_timeline_stop (timeline);
  g_assert_cmpuint (timeline->current[EBB_N_PURPOSES], ==, (guint64) n * 4);
  check_replay (timeline);
  return TRUE;
}

static void
ranks_record_their_own (void)
{
  g_autoptr (GError) error = NULL;

  g_assert_true (ebb_run_ranks (2, record_rank, NULL, &error));
  g_assert_no_error (error);
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/memory-timeline/counters", the_numbers_are_the_counters_own);
  g_test_add_func ("/memory-timeline/recomputes", recomputes_are_marked);
  g_test_add_func ("/memory-timeline/no-trace", a_recording_changes_no_count);
  g_test_add_func ("/memory-timeline/lifetime", a_block_lives_from_its_op_to_its_last_holder);
  g_test_add_func ("/memory-timeline/before", what_was_there_before_is_counted);
  g_test_add_func ("/memory-timeline/holders", holders_of_the_peak_add_up);
  g_test_add_func ("/memory-timeline/names", names_cannot_break_the_files);
  g_test_add_func ("/memory-timeline/page", the_page_has_all_changes);
  g_test_add_func ("/memory-timeline/mistakes", mistakes_are_errors);
  g_test_add_func ("/memory-timeline/thread-end", the_end_of_a_thread_stops_it);
  g_test_add_func ("/memory-timeline/ranks", ranks_record_their_own);
  return g_test_run ();
}
