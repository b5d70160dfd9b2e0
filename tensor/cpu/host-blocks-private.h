/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/cpu/host-heap-private.h"

#include <pthread.h>

/* The blocks of a heap: where they lie, and which of their pages are resident. All functions want the heap's lock. */

G_BEGIN_DECLS

#define EBB_HOST_FINE_BITS 5
#define EBB_HOST_N_FINE (1 << EBB_HOST_FINE_BITS)
#define EBB_HOST_MIN_SHIFT 6
#define EBB_HOST_N_COARSE 48
/* Beyond any address space, within the lists. */
#define EBB_HOST_LARGE_LIMIT (1ul << (EBB_HOST_MIN_SHIFT + EBB_HOST_N_COARSE - 2))
#define EBB_HOST_MEDIUM_LIMIT (64ul << 10)
#define EBB_HOST_MEDIUM_UNIT_SHIFT 11
#define EBB_HOST_LARGE_UNIT_SHIFT 12
#define EBB_HOST_GRANULES 32

typedef struct _EbbHostBlock EbbHostBlock;
typedef struct _EbbHostSegment EbbHostSegment;

/* It lies apart from its payload: tensors whose sizes are whole pages lie in whole pages, which can be given back. */
struct _EbbHostBlock
{
  char *data;
  gsize size; /* a multiple of the alignment */
  EbbHostBlock *below, *above;
  EbbHostSegment *segment;
  EbbHostBlock *next_free, *previous_free;
  gboolean is_free;
};

/* What a huge page of a segment has. */
typedef struct
{
  guint32 mapped;         /* a bit for each of its EBB_HOST_GRANULES that a dry run has mapped */
  EbbHostBlock *blocks[]; /* by the unit in which they start */
} EbbHostPage;

/* The free lists of blocks of similar size: small blocks among large ones would keep huge pages resident. */
typedef struct
{
  EbbHostHeap *heap;
  EbbHostBlock *free_lists[EBB_HOST_N_COARSE][EBB_HOST_N_FINE];
  guint64 coarse_map;
  guint32 fine_maps[EBB_HOST_N_COARSE];
  EbbHostSegment *segments; /* the newest first */
  guint unit_shift;         /* each block has a unit at least, so no unit holds the start of two */
} EbbHostPool;

enum
{
  EBB_HOST_MEDIUM, /* up to EBB_HOST_MEDIUM_LIMIT bytes */
  EBB_HOST_LARGE,
  EBB_HOST_N_POOLS
};

struct _EbbHostSegment
{
  EbbHostPool *pool;  /* NULL: of small blocks */
  gboolean is_sparse; /* only addresses: a page is mapped while it is resident, and of a dry run's if it has values */
  char *mapped;       /* what the system gave, or the first address */
  gsize mapped_size;
  char *start, *top, *end; /* whole huge pages of it; [start, top) is divided into blocks */
  EbbHostBlock *last;
  EbbHostPage **pages; /* from @start on; NULL: no block has begun there yet */
  guint64 *resident;   /* a bit for each huge page from @start on */
  EbbHostSegment *next;
};

struct _EbbHostHeap
{
  pthread_mutex_t lock;
  EbbHostPool pools[EBB_HOST_N_POOLS];
  EbbHostSegment *small_segments;        /* the newest first */
  EbbHostSmall *small[EBB_HOST_N_SMALL]; /* free ones of a dry run; the process' are elsewhere */
  guint64 reserved, system_calls;
  guint64 n_chunks;                /* of small blocks */
  gsize n_pages, n_free, n_needed; /* huge pages below tops; of them in free blocks; the others at most */
  gsize n_resident, max_resident;  /* huge pages, and how many there may be */
  gboolean is_dry;                 /* nobody uses its blocks */
  gboolean has_small_pages_ahead;
};

/* Of a dry run: [@data, @data + @size) of a block can be written. FALSE: no address space is left. */
gboolean ebb_host_blocks_map (EbbHostHeap *heap,
                              char *data,
                              gsize size);
/* A block over EBB_HOST_SMALL_LIMIT and of at most EBB_HOST_LARGE_LIMIT bytes; NULL: no address space is left. */
void *ebb_host_blocks_alloc (EbbHostHeap *heap,
                             gsize size);
void ebb_host_blocks_free (EbbHostHeap *heap,
                           void *data,
                           gsize size);
/* Gives @n huge pages of free blocks back to the system if there are as many: those that are used last, and in large
 * pieces. */
void ebb_host_blocks_give_back (EbbHostHeap *heap,
                                gsize n);
/* How many huge pages may be resident: no more than were needed at one time, since the rest are gaps. Without a bound
 * some gaps may stay, which a step would make resident again. */
gsize ebb_host_blocks_get_most_resident (const EbbHostHeap *heap);
/* Bytes of the heap's blocks that the system has made resident. A huge page may be so in part. */
guint64 ebb_host_blocks_count_resident (EbbHostHeap *heap);
/* A new segment in front of those of @pool, or of small blocks if that is NULL; NULL: no address space is left.
 * @part: 1, or more for a pool that needs as many times less. */
EbbHostSegment *ebb_host_segment_new (EbbHostHeap *heap,
                                      EbbHostPool *pool,
                                      gsize part,
                                      gsize least);
void ebb_host_segments_free (EbbHostSegment *segment);

G_END_DECLS
