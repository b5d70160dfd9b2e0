/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* For the stand-ins of cuBLASLt and NCCL, and for tests. The stand-ins put work of their own into the stand-in
 * runtime's streams.
 *
 * A stream is a queue of work that runs when somebody waits for it, as late as that, by the thread that waits; streams
 * depend on each other by events alone. Between two such times the host can't touch the device's memory: it would be
 * killed. So a copy that nobody waited for, or memory that is read too early, shows. */

#include <functional>

#include "cudaemu/execution.h"

namespace cudaemu
{

/* @run returns false as long as it has to wait for something outside of this process; it is called again then. It may
 * read and write memory of the device, and may not call the runtime. */
CUDAEMU_EXPORT cudaError_t enqueue_work (cudaStream_t stream,
                                         std::function<bool ()> run);
/* From now on a thread of its own runs work that nobody has waited for within a moment: another process may wait for it
 * in a way that this runtime doesn't see. */
CUDAEMU_EXPORT void start_progress ();
/* True if all of that memory is the device's. */
CUDAEMU_EXPORT bool is_device_memory (const void *data,
                                      std::size_t size);
/* Ends the context with an error that all later calls return, as if a kernel had failed. */
CUDAEMU_EXPORT void end_context (cudaError_t error);

/* For tests, which find it by this name: the calls so far that have pinned host memory or unpinned it. */
extern "C" CUDAEMU_EXPORT std::uint64_t cudaemu_count_pinning_calls ();

} // namespace cudaemu
