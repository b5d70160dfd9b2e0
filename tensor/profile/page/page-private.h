/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The texts of this folder, which cmake/EbbPage.cmake puts into the library. */

/* page.html with the styles and scripts in it. */
extern const char ebb_timeline_page[];
/* The styles of the picture without a script. */
extern const char ebb_timeline_picture_style[];

/* In the page: stands for the recordings. */
#define EBB_TIMELINE_PAGE_PLACE "@RECORDINGS@"
