/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

/**
 * EBB_AVAILABLE_IN_ALL: (skip)
 *
 * Marks a prototype as part of the public interface; everything else is hidden.
 */
#define EBB_AVAILABLE_IN_ALL extern __attribute__ ((visibility ("default")))
