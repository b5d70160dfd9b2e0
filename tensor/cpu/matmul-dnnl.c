/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

/* Matrix products by oneDNN. Making a primitive costs milliseconds the first time, so each product that was met stays
 * in a table of plans; the least recently used goes when the table is full. */

#include <omp.h>
#include <pthread.h>
#include <string.h>

#include "tensor/backend/backend-private.h"
#include "tensor/cpu/dnnl-compat-private.h"
#include "tensor/cpu/host-allocator-private.h"
#include "tensor/cpu/matmul-private.h"
#include "tensor/error-private.h"
#include "tensor/util/checksum-private.h"
#include "tensor/util/lock-private.h"

#define MAX_PLANS 1024

/* Address space that making a primitive may take. oneDNN doesn't look whether it gets what it asks for. */
#define SPACE_FOR_PLAN (8ul << 20)

typedef struct
{
  dnnl_memory_t a, b, bias, c, scratchpad;
} Arguments;

typedef struct
{
  EbbProduct product; /* the key; first */
  int ref_count;      /* atomic: the table's, and one for each run in progress */
  GList link;         /* in plans_by_use */

  gboolean is_unsupported;
  gboolean loops_over_batches; /* the primitive is of one matrix */
  dnnl_primitive_t primitive;
  EbbDnnlDesc a, b, bias, c;
  gsize scratchpad_size;
  Arguments *spare; /* atomic: one set of arguments that no run uses */
} Plan;

static pthread_mutex_t plans_lock = PTHREAD_MUTEX_INITIALIZER;
static GHashTable *plans;                  /* of Plan, by product */
static GQueue plans_by_use = G_QUEUE_INIT; /* most recently used first */

static void
stream_free (gpointer stream)
{
  dnnl_stream_destroy (stream);
}

static GPrivate thread_stream = G_PRIVATE_INIT (stream_free);

static dnnl_engine_t
get_engine (void)
{
  static gsize engine;

  if (g_once_init_enter (&engine))
    {
      dnnl_engine_t created = NULL;

      dnnl_engine_create (&created, dnnl_cpu, 0);
      g_once_init_leave (&engine, created ? (gsize) created : (gsize) 1);
    }
  return engine == 1 ? NULL : (dnnl_engine_t) engine;
}

static dnnl_stream_t
get_stream (void)
{
  dnnl_stream_t stream = g_private_get (&thread_stream);

  if (!stream && dnnl_stream_create (&stream, get_engine (), dnnl_stream_default_flags) == dnnl_success)
    g_private_set (&thread_stream, stream);
  return stream;
}

static const char *
get_status_name (dnnl_status_t status)
{
  switch (status)
    {
    case dnnl_out_of_memory: return "out of memory";
    case dnnl_invalid_arguments: return "invalid arguments";
    case dnnl_unimplemented: return "not implemented for these shapes";
    case dnnl_runtime_error: return "runtime error";
    default: return "failed";
    }
}

static EbbProductResult
fail (const EbbProduct *product,
      dnnl_status_t status,
      GError **error)
{
  g_autofree char *text = ebb_product_to_string (product);

  ebb_error_set (error, status == dnnl_out_of_memory ? EBB_ERROR_NO_MEMORY : EBB_ERROR_NOT_SUPPORTED,
                 "matmul %s: oneDNN: %s", text, get_status_name (status));
  return EBB_PRODUCT_FAILED;
}

/* -- plans ------------------------------------------------------------------------------------------------------- */

static void
arguments_free (Arguments *arguments)
{
  if (!arguments)
    return;
  dnnl_memory_destroy (arguments->a);
  dnnl_memory_destroy (arguments->b);
  dnnl_memory_destroy (arguments->bias);
  dnnl_memory_destroy (arguments->c);
  dnnl_memory_destroy (arguments->scratchpad);
  g_free (arguments);
}

static void
plan_clear (Plan *plan)
{
  arguments_free (plan->spare);
  plan->spare = NULL;
  if (plan->primitive)
    dnnl_primitive_destroy (plan->primitive);
  plan->primitive = NULL;
  ebb_dnnl_desc_clear (&plan->a);
  ebb_dnnl_desc_clear (&plan->b);
  ebb_dnnl_desc_clear (&plan->bias);
  ebb_dnnl_desc_clear (&plan->c);
}

static void
plan_unref (Plan *plan)
{
  if (!g_atomic_int_dec_and_test (&plan->ref_count))
    return;
  plan_clear (plan);
  g_free (plan);
}

static dnnl_data_type_t
get_type (int dtype)
{
  return dtype == EBB_DTYPE_BF16 ? dnnl_bf16 : dnnl_f32;
}

static dnnl_status_t
describe (EbbDnnlDesc *desc,
          const EbbProduct *product,
          int n_batch,
          const gint64 *batch_strides,
          gint64 rows,
          gint64 columns,
          gint64 row_stride,
          gint64 column_stride,
          int dtype)
{
  dnnl_dims_t dims, strides;
  gint64 extent = MAX (rows * row_stride, columns * column_stride);

  for (int i = 0; i < n_batch; i++)
    {
      gboolean varies = batch_strides && batch_strides[i] != 0;

      /* A stride that no address depends on is any that can't be taken for an overlap. */
      dims[i] = varies ? product->batch[i] : 1;
      strides[i] = varies ? batch_strides[i] : extent;
    }
  dims[n_batch] = rows;
  dims[n_batch + 1] = columns;
  strides[n_batch] = row_stride;
  strides[n_batch + 1] = column_stride;
  return ebb_dnnl_desc_init (desc, n_batch + 2, dims, get_type (dtype), strides);
}

static dnnl_status_t
describe_operands (Plan *plan,
                   int n_batch)
{
  const EbbProduct *p = &plan->product;
  dnnl_status_t status;

  status = describe (&plan->a, p, n_batch, p->a_batch, p->m, p->k, p->a_row, p->a_column, p->ab_dtype);
  if (status == dnnl_success)
    status = describe (&plan->b, p, n_batch, p->b_batch, p->k, p->n, p->b_row, p->b_column, p->ab_dtype);
  if (status == dnnl_success)
    status = describe (&plan->c, p, n_batch, p->c_batch, p->m, p->n, p->c_row, 1, p->c_dtype);
  if (status == dnnl_success && p->bias_dtype >= 0)
    status = describe (&plan->bias, p, n_batch, NULL, 1, p->n, p->n, 1, p->bias_dtype);
  return status;
}

static dnnl_status_t
create_primitive (Plan *plan,
                  const_dnnl_primitive_attr_t attr,
                  gboolean *is_reference)
{
  dnnl_primitive_desc_t desc = NULL;
  const char *name = NULL;
  dnnl_status_t status;

  status = ebb_dnnl_matmul_create (&desc, get_engine (), EBB_DNNL_DESC (plan->a), EBB_DNNL_DESC (plan->b),
                                   plan->product.bias_dtype >= 0 ? EBB_DNNL_DESC (plan->bias) : NULL,
                                   EBB_DNNL_DESC (plan->c), attr);
  if (status != dnnl_success)
    return status;
  dnnl_primitive_desc_query (desc, dnnl_query_impl_info_str, 0, (void *) &name);
  *is_reference = name && g_str_has_prefix (name, "ref");
  plan->scratchpad_size = dnnl_memory_desc_get_size (ebb_dnnl_query_scratchpad (desc));
  status = dnnl_primitive_create (&plan->primitive, desc);
  dnnl_primitive_desc_destroy (desc);
  return status;
}

static dnnl_status_t
create_attributes (dnnl_primitive_attr_t *attr,
                   gboolean accumulate)
{
  dnnl_post_ops_t post_ops = NULL;
  dnnl_status_t status = dnnl_primitive_attr_create (attr);

  if (status == dnnl_success)
    status = dnnl_primitive_attr_set_scratchpad_mode (*attr, dnnl_scratchpad_mode_user);
  if (status != dnnl_success || !accumulate)
    return status;
  status = dnnl_post_ops_create (&post_ops);
  if (status == dnnl_success)
    status = ebb_dnnl_append_sum (post_ops);
  if (status == dnnl_success)
    status = dnnl_primitive_attr_set_post_ops (*attr, post_ops);
  if (post_ops)
    dnnl_post_ops_destroy (post_ops);
  return status;
}

/* oneDNN's reference loops are a hundred times slower than one matrix after the other, or than a conversion to f32. */
static dnnl_status_t
plan_prepare (Plan *plan)
{
  int n_batch = plan->product.n_batch;
  gboolean is_plain = ebb_product_is_plain (&plan->product);
  dnnl_primitive_attr_t attr = NULL;
  dnnl_status_t status = create_attributes (&attr, plan->product.accumulate);

  while (status == dnnl_success)
    {
      gboolean is_reference = FALSE;

      status = describe_operands (plan, n_batch);
      if (status == dnnl_success)
        status = create_primitive (plan, attr, &is_reference);
      if (status == dnnl_out_of_memory || (status == dnnl_success && !is_reference))
        break;
      if (n_batch == 0)
        {
          if (is_plain)
            break;
          plan->is_unsupported = TRUE;
          plan_clear (plan);
          status = dnnl_success;
          break;
        }
      plan_clear (plan);
      n_batch = 0;
      plan->loops_over_batches = TRUE;
      status = dnnl_success;
    }
  if (attr)
    dnnl_primitive_attr_destroy (attr);
  return status;
}

static guint
product_hash (gconstpointer key)
{
  G_STATIC_ASSERT (sizeof (EbbProduct) % sizeof (guint64) == 0);
  return (guint) ebb_hash_of (key, sizeof (EbbProduct));
}

static gboolean
product_equal (gconstpointer a,
               gconstpointer b)
{
  return memcmp (a, b, sizeof (EbbProduct)) == 0;
}

/* Returns a reference. */
static Plan *
lookup_plan (const EbbProduct *product)
{
  Plan *plan;

  EBB_AUTO_LOCK (&plans_lock);
  plan = plans ? g_hash_table_lookup (plans, product) : NULL;
  if (plan)
    {
      g_atomic_int_inc (&plan->ref_count);
      if (plans_by_use.head != &plan->link)
        {
          g_queue_unlink (&plans_by_use, &plan->link);
          g_queue_push_head_link (&plans_by_use, &plan->link);
        }
    }
  return plan;
}

static void
insert_plan (Plan *plan)
{
  Plan *dropped = NULL;

  pthread_mutex_lock (&plans_lock);
  if (!plans)
    plans = g_hash_table_new (product_hash, product_equal);
  /* Another thread may have made the same plan meanwhile: then this one lives for its own run only. */
  if (!g_hash_table_contains (plans, &plan->product))
    {
      g_atomic_int_inc (&plan->ref_count);
      g_hash_table_add (plans, plan);
      g_queue_push_head_link (&plans_by_use, &plan->link);
      if (plans_by_use.length > MAX_PLANS)
        {
          dropped = g_queue_pop_tail_link (&plans_by_use)->data;
          g_hash_table_remove (plans, dropped);
        }
    }
  pthread_mutex_unlock (&plans_lock);
  if (dropped)
    plan_unref (dropped);
}

void
ebb_product_forget_dnnl (void)
{
  GQueue dropped = G_QUEUE_INIT;
  int capacity;

  pthread_mutex_lock (&plans_lock);
  if (plans)
    g_hash_table_remove_all (plans);
  dropped = plans_by_use;
  g_queue_init (&plans_by_use);
  pthread_mutex_unlock (&plans_lock);
  for (GList *link = g_queue_pop_head_link (&dropped); link != NULL; link = g_queue_pop_head_link (&dropped))
    plan_unref (link->data);
  /* oneDNN has a cache of its own. */
  if (dnnl_get_primitive_cache_capacity (&capacity) == dnnl_success
      && dnnl_set_primitive_cache_capacity (0) == dnnl_success)
    dnnl_set_primitive_cache_capacity (capacity);
}

/* -- runs --------------------------------------------------------------------------------------------------------- */

static Arguments *
arguments_new (Plan *plan,
               dnnl_status_t *status)
{
  Arguments *arguments = g_new0 (Arguments, 1);
  dnnl_engine_t engine = get_engine ();

  *status = dnnl_memory_create (&arguments->a, EBB_DNNL_DESC (plan->a), engine, DNNL_MEMORY_NONE);
  if (*status == dnnl_success)
    *status = dnnl_memory_create (&arguments->b, EBB_DNNL_DESC (plan->b), engine, DNNL_MEMORY_NONE);
  if (*status == dnnl_success)
    *status = dnnl_memory_create (&arguments->c, EBB_DNNL_DESC (plan->c), engine, DNNL_MEMORY_NONE);
  if (*status == dnnl_success && plan->product.bias_dtype >= 0)
    *status = dnnl_memory_create (&arguments->bias, EBB_DNNL_DESC (plan->bias), engine, DNNL_MEMORY_NONE);
  if (*status == dnnl_success && plan->scratchpad_size > 0)
    {
      const_dnnl_primitive_desc_t desc = NULL;

      *status = dnnl_primitive_get_primitive_desc (plan->primitive, &desc);
      if (*status == dnnl_success)
        *status = dnnl_memory_create (&arguments->scratchpad, ebb_dnnl_query_scratchpad (desc), engine,
                                      DNNL_MEMORY_NONE);
    }
  if (*status == dnnl_success)
    return arguments;
  arguments_free (arguments);
  return NULL;
}

static dnnl_status_t
execute (Plan *plan,
         Arguments *arguments,
         const EbbProductData *data,
         void *scratchpad)
{
  dnnl_exec_arg_t list[5];
  dnnl_status_t status;
  int n = 0;

  dnnl_memory_set_data_handle (arguments->a, (void *) data->a);
  dnnl_memory_set_data_handle (arguments->b, (void *) data->b);
  dnnl_memory_set_data_handle (arguments->c, data->c);
  list[n++] = (dnnl_exec_arg_t){ DNNL_ARG_SRC, arguments->a };
  list[n++] = (dnnl_exec_arg_t){ DNNL_ARG_WEIGHTS, arguments->b };
  list[n++] = (dnnl_exec_arg_t){ DNNL_ARG_DST, arguments->c };
  if (arguments->bias)
    {
      dnnl_memory_set_data_handle (arguments->bias, (void *) data->bias);
      list[n++] = (dnnl_exec_arg_t){ DNNL_ARG_BIAS, arguments->bias };
    }
  if (arguments->scratchpad)
    {
      dnnl_memory_set_data_handle (arguments->scratchpad, scratchpad);
      list[n++] = (dnnl_exec_arg_t){ DNNL_ARG_SCRATCHPAD, arguments->scratchpad };
    }
  status = dnnl_primitive_execute (plan->primitive, get_stream (), n, list);
  return status;
}

static dnnl_status_t
execute_batches (Plan *plan,
                 Arguments *arguments,
                 const EbbProductData *data,
                 void *scratchpad)
{
  const EbbProduct *p = &plan->product;
  gint64 n_batches = plan->loops_over_batches ? ebb_product_get_n_batches (p) : 1;
  gsize ab_size = ebb_dtype_get_size (p->ab_dtype);
  gsize c_size = ebb_dtype_get_size (p->c_dtype);
  dnnl_status_t status = dnnl_success;

  if (!plan->loops_over_batches)
    return execute (plan, arguments, data, scratchpad);
  for (gint64 i = 0; i < n_batches && status == dnnl_success; i++)
    {
      EbbProductData one = *data;
      gint64 a, b, c;

      ebb_product_get_batch_offsets (p, i, &a, &b, &c);
      one.a = (const char *) data->a + a * ab_size;
      one.b = (const char *) data->b + b * ab_size;
      one.c = (char *) data->c + c * c_size;
      status = execute (plan, arguments, &one, scratchpad);
    }
  return status;
}

static EbbProductResult
plan_run (Plan *plan,
          const EbbProductData *data,
          void *workspace,
          GError **error)
{
  Arguments *arguments;
  dnnl_status_t status = dnnl_success;

  /* Without the workspace that it needs where there was no plan to ask when that was allocated. */
  if (!get_stream () || (plan->scratchpad_size > 0 && !workspace))
    return fail (&plan->product, dnnl_out_of_memory, error);
  arguments = g_atomic_pointer_exchange (&plan->spare, NULL);
  if (!arguments)
    arguments = arguments_new (plan, &status);
  if (!arguments)
    return fail (&plan->product, status, error);
  status = execute_batches (plan, arguments, data, workspace);
  arguments_free (g_atomic_pointer_exchange (&plan->spare, arguments));
  return status == dnnl_success ? EBB_PRODUCT_DONE : fail (&plan->product, status, error);
}

static Plan *
plan_new (const EbbProduct *product,
          GError **error)
{
  const gsize space = ebb_host_get_address_space ();
  Plan *plan;
  dnnl_status_t status;

  if (space < SPACE_FOR_PLAN)
    return ebb_fail_null (error, EBB_ERROR_NO_MEMORY,
                          "matmul %s: ulimit -v leaves %" G_GSIZE_FORMAT " bytes of address space; oneDNN may need %lu",
                          ebb_in_message (ebb_product_to_string (product)), space, SPACE_FOR_PLAN);
  if (!get_engine ())
    {
      fail (product, dnnl_runtime_error, error);
      return NULL;
    }
  plan = g_new0 (Plan, 1);
  plan->product = *product;
  plan->ref_count = 1;
  plan->link.data = plan;
  status = plan_prepare (plan);
  if (status == dnnl_success)
    return plan;
  fail (product, status, error);
  plan_unref (plan);
  return NULL;
}

/* Returns a reference; the plan is made if there is none yet. */
static Plan *
get_plan (const EbbProduct *product,
          GError **error)
{
  Plan *plan = lookup_plan (product);

  if (!plan)
    {
      plan = plan_new (product, error);
      if (plan)
        insert_plan (plan);
    }
  return plan;
}

/* FALSE: unsupported. */
static gboolean
get_whole_workspace (const EbbProduct *product,
                     gsize *size)
{
  int n_threads = omp_get_max_threads ();
  gboolean is_unsupported = FALSE;
  Plan *plan;

  *size = 0;
  if (n_threads != product->n_threads)
    omp_set_num_threads (product->n_threads);
  plan = get_plan (product, NULL);
  if (plan)
    {
      is_unsupported = plan->is_unsupported;
      *size = is_unsupported ? 0 : plan->scratchpad_size;
      plan_unref (plan);
    }
  if (n_threads != product->n_threads)
    omp_set_num_threads (n_threads);
  return !is_unsupported;
}

/* Runs the product as one primitive, on product->n_threads threads. */
static EbbProductResult
run_whole (const EbbProduct *product,
           const EbbProductData *data,
           void *workspace,
           GError **error)
{
  /* oneDNN asks OpenMP for its number of threads when a primitive is made and when it runs. */
  int n_threads = omp_get_max_threads ();
  EbbProductResult result = EBB_PRODUCT_FAILED;
  Plan *plan;

  if (n_threads != product->n_threads)
    omp_set_num_threads (product->n_threads);
  plan = get_plan (product, error);
  if (plan)
    {
      result = plan->is_unsupported ? EBB_PRODUCT_UNSUPPORTED : plan_run (plan, data, workspace, error);
      plan_unref (plan);
    }
  if (n_threads != product->n_threads)
    omp_set_num_threads (n_threads);
  return result;
}

/* -- blocks -------------------------------------------------------------------------------------------------------- */

/* The number of blocks whose sums a product adds up. */
static gint64
get_n_blocks (const EbbProduct *product)
{
  return product->k_block > 0 ? product->k / product->k_block : 1;
}

/* Block @block of a product; gives its first element of k. The last one has what is left over as well, and comes
 * first. */
static gint64
find_block (const EbbProduct *product,
            gint64 block,
            EbbProduct *part)
{
  const gint64 n_blocks = get_n_blocks (product), begin = block * product->k_block;

  *part = *product;
  part->k_block = 0;
  part->k = block + 1 < n_blocks ? product->k_block : product->k - begin;
  part->accumulate = product->accumulate || block + 1 < n_blocks;
  return begin;
}

/* Runs the product block by block, each as one primitive on product->n_threads threads. */
static EbbProductResult
run_blocks (const EbbProduct *product,
            const EbbProductData *data,
            void *workspace,
            GError **error)
{
  const gint64 size = (gint64) ebb_dtype_get_size ((EbbDType) product->ab_dtype);
  EbbProductResult result = EBB_PRODUCT_DONE;

  for (gint64 block = get_n_blocks (product) - 1; block >= 0 && result == EBB_PRODUCT_DONE; block--)
    {
      EbbProduct part;
      EbbProductData at = *data;
      gint64 begin = find_block (product, block, &part);

      at.a = (const char *) data->a + begin * product->a_column * size;
      at.b = (const char *) data->b + begin * product->b_row * size;
      result = run_whole (&part, &at, workspace, error);
    }
  return result;
}

/* FALSE: unsupported. */
static gboolean
get_blocks_workspace (const EbbProduct *product,
                      gsize *size)
{
  const gint64 n_blocks = get_n_blocks (product);
  gboolean is_supported = TRUE;

  *size = 0;
  /* All blocks but the last are the same product. */
  for (gint64 block = MAX (n_blocks - 2, 0); block < n_blocks; block++)
    {
      EbbProduct part;
      gsize one;

      find_block (product, block, &part);
      is_supported &= get_whole_workspace (&part, &one);
      *size = MAX (*size, one);
    }
  return is_supported;
}

/* -- shares of the threads ----------------------------------------------------------------------------------------- */

/* With so many rows for each thread, threads that multiply rows of their own are up to 5 % faster than oneDNN's own
 * division of an f32 product (tests/bench/step --floor), and tiles of so many rows for each thread give the bits of all
 * rows at once: no register tile but the last ends early. */
#define ROWS_OF_A_THREAD EBB_HOST_ROW_BLOCK
#define ROW_UNIT 96 /* a multiple of the rows of any of oneDNN's register tiles */
/* Of a product in blocks, threads share the rows or the columns, whichever are more, and wait for each other once. */
#define LINES_OF_A_THREAD 192
#define LINE_UNIT 48

G_STATIC_ASSERT (EBB_HOST_ROW_BLOCK % ROW_UNIT == 0);

static gboolean
is_shared (const EbbProduct *product)
{
  if (product->n_threads < 2 || product->n_batch != 0 || !ebb_product_is_plain (product))
    return FALSE;
  if (product->k_block > 0)
    return MAX (product->m, product->n) / product->n_threads >= LINES_OF_A_THREAD;
  return product->m / product->n_threads >= ROWS_OF_A_THREAD;
}

static gboolean
shares_columns (const EbbProduct *product)
{
  return product->k_block > 0 && product->n > product->m;
}

/* The share of part @part of product->n_threads; gives its first row or column. */
static gint64
find_share (const EbbProduct *product,
            gint64 part,
            EbbProduct *share)
{
  const gint64 unit = product->k_block > 0 ? LINE_UNIT : ROW_UNIT;
  const gint64 n_lines = shares_columns (product) ? product->n : product->m;
  const gint64 n_parts = product->n_threads, n_units = (n_lines + unit - 1) / unit;
  const gint64 begin = n_units * part / n_parts * unit, end = n_units * (part + 1) / n_parts * unit;

  *share = *product;
  *(shares_columns (product) ? &share->n : &share->m) = MIN (end, n_lines) - begin;
  share->n_threads = 1;
  return begin;
}

static EbbProductResult
run_share (const EbbProduct *product,
           const EbbProductData *data,
           gint64 part,
           void *workspace,
           GError **error)
{
  EbbProduct share;
  EbbProductData at = *data;
  gint64 begin = find_share (product, part, &share);

  if (shares_columns (product))
    {
      at.b = (const float *) data->b + begin * product->b_column;
      at.c = (float *) data->c + begin;
    }
  else
    {
      at.a = (const float *) data->a + begin * product->a_row;
      at.c = (float *) data->c + begin * product->c_row;
    }
  return run_blocks (&share, &at, workspace, error);
}

/* As much for each of them as the one that needs the most. */
static gsize
get_shares_workspace (const EbbProduct *product)
{
  gsize most = 0;

  for (gint64 part = 0; part < product->n_threads; part++)
    {
      EbbProduct share;
      gsize size;

      find_share (product, part, &share);
      get_blocks_workspace (&share, &size);
      most = MAX (most, (size + 63) / 64 * 64);
    }
  return most * (gsize) product->n_threads;
}

static EbbProductResult
run_shares (const EbbProduct *product,
            const EbbProductData *data,
            char *workspace,
            gsize workspace_size,
            GError **error)
{
  const gint64 n_parts = product->n_threads;
  const gsize step = workspace_size / (gsize) n_parts;
  EbbProductResult result = EBB_PRODUCT_DONE;
  GError *failure = NULL;

#pragma omp parallel num_threads(n_parts)
  for (gint64 part = omp_get_thread_num (); part < n_parts; part += omp_get_num_threads ())
    {
      GError *local = NULL;
      EbbProductResult share =
          run_share (product, data, part, workspace ? workspace + (gsize) part * step : NULL, &local);

      if (share != EBB_PRODUCT_DONE)
        {
          __atomic_store_n (&result, share, __ATOMIC_RELAXED);
          if (g_atomic_pointer_compare_and_exchange (&failure, NULL, local))
            local = NULL;
        }
      g_clear_error (&local);
    }
  if (failure)
    g_propagate_error (error, failure);
  return result;
}

EbbProductResult
ebb_product_run_dnnl (const EbbProduct *product,
                      const EbbProductData *data,
                      void *workspace,
                      gsize workspace_size,
                      GError **error)
{
  return is_shared (product) ? run_shares (product, data, workspace, workspace_size, error)
                             : run_blocks (product, data, workspace, error);
}

gboolean
ebb_product_get_dnnl_workspace (const EbbProduct *product,
                                gsize *size)
{
  if (!is_shared (product))
    return get_blocks_workspace (product, size);
  *size = get_shares_workspace (product);
  return TRUE;
}
