/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <glib.h>
#include <oneapi/dnnl/dnnl.h>

/* The little that a matrix product needs of oneDNN, said once for its C API 2.x and 3.x: in 3.x memory descriptors
 * became objects, and operation descriptors went. */

G_BEGIN_DECLS

#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t EbbDnnlDesc;
typedef const_dnnl_memory_desc_t EbbDnnlConstDesc;
#define EBB_DNNL_DESC(desc) (desc)
#else
typedef dnnl_memory_desc_t EbbDnnlDesc;
typedef const dnnl_memory_desc_t *EbbDnnlConstDesc;
#define EBB_DNNL_DESC(desc) (&(desc))
#endif

static inline dnnl_status_t
ebb_dnnl_desc_init (EbbDnnlDesc *desc,
                    int n_dims,
                    const dnnl_dims_t dims,
                    dnnl_data_type_t type,
                    const dnnl_dims_t strides)
{
#if DNNL_VERSION_MAJOR >= 3
  return dnnl_memory_desc_create_with_strides (desc, n_dims, dims, type, strides);
#else
  return dnnl_memory_desc_init_by_strides (desc, n_dims, dims, type, strides);
#endif
}

static inline void
ebb_dnnl_desc_clear (EbbDnnlDesc *desc)
{
#if DNNL_VERSION_MAJOR >= 3
  if (*desc)
    dnnl_memory_desc_destroy (*desc);
  *desc = NULL;
#else
  (void) desc;
#endif
}

/* @bias is NULL where there is none. */
static inline dnnl_status_t
ebb_dnnl_matmul_create (dnnl_primitive_desc_t *primitive_desc,
                        dnnl_engine_t engine,
                        EbbDnnlConstDesc a,
                        EbbDnnlConstDesc b,
                        EbbDnnlConstDesc bias,
                        EbbDnnlConstDesc c,
                        const_dnnl_primitive_attr_t attr)
{
#if DNNL_VERSION_MAJOR >= 3
  return dnnl_matmul_primitive_desc_create (primitive_desc, engine, a, b, bias, c, attr);
#else
  dnnl_matmul_desc_t desc;
  dnnl_status_t status = dnnl_matmul_desc_init (&desc, a, b, bias, c);

  if (status != dnnl_success)
    return status;
  return dnnl_primitive_desc_create (primitive_desc, &desc, attr, engine, NULL);
#endif
}

/* c = product + c */
static inline dnnl_status_t
ebb_dnnl_append_sum (dnnl_post_ops_t post_ops)
{
#if DNNL_VERSION_MAJOR >= 3
  return dnnl_post_ops_append_sum (post_ops, 1.0f, 0, dnnl_data_type_undef);
#else
  return dnnl_post_ops_append_sum (post_ops, 1.0f);
#endif
}

static inline EbbDnnlConstDesc
ebb_dnnl_query_scratchpad (const_dnnl_primitive_desc_t primitive_desc)
{
  return dnnl_primitive_desc_query_md (primitive_desc, dnnl_query_scratchpad_md, 0);
}

G_END_DECLS
