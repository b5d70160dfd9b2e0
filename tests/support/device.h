/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <ebb/ebb.h>
#include <pthread.h>

/* Tests on another device: EBB_TEST_DEVICE names it. */

G_BEGIN_DECLS

/* Of a long row of failures, one after another, tests take each third, sanitizers each fifth, as they are slow, and
 * EBB_LONG all. */
guint test_stride (void);
/* Begins every test program: calls GLib's g_test_init () and makes the tested device the default one. */
void test_init (int *argc,
                char ***argv);
/* The one that the program tests; the CPU unless it was told otherwise. */
EbbDevice *test_device (void);
/* TRUE if the host can look at its memory. */
gboolean test_device_is_cpu (void);
/* The one whose values the tested device must give bit for bit: the CPU for devices that compute as it does, else the
 * tested one itself, whose plain run is held against its wrapped one. */
EbbDevice *test_device_of_same_bits (void);
/* TRUE on the emulated GPU, whose threads run one after another: tests compute less there. */
gboolean test_device_is_slow (void);
/* As pthread_create (); the thread has the same default device. */
void test_thread_create (pthread_t *thread,
                         void *(*func) (void *data),
                         void *data);

/* The elements in row-major order, where the host can read them; valid as long as @tensor where the tensor is
 * contiguous on the CPU, else until the program ends. */
gconstpointer test_read (EbbTensor *tensor);
/* What a call returned that fails on values of its operands. A device that works behind the caller's back reports that
 * later: waits for it. Takes @result; returns NULL if the failure is there. */
EbbTensor *test_await_failure (EbbTensor *result,
                               GError **error);
/* As ebb_optimizer_clip_grad_p_norm () and ebb_clip_grad_p_norm (), with the norm as a number (or NULL), for which they
 * wait. */
gboolean test_clip_grad (EbbOptimizer *optimizer,
                         double max_norm,
                         double p,
                         double *norm,
                         GError **error);
gboolean test_clip_grads_of (EbbTensor **parameters,
                             guint n_parameters,
                             double max_norm,
                             double p,
                             double *norm,
                             GError **error);
/* The same tensor, or a copy on the device under test. */
EbbTensor *test_move (EbbTensor *tensor);

G_END_DECLS
