// Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0
// What one op costs in PyTorch's C++, beyond its arithmetic: the peer of tiny-op.c, the same chains and the same names.
// scripts/bench builds it against the peer's PyTorch, outside the tree.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

namespace
{

constexpr int n_ops = 100, n_rounds = 51, n_repeats = 20;

struct Case
{
  const char *name;
  int columns;
  bool backward;
};

constexpr Case cases[] = {
  { "no_grad_us", 8, false },
  { "no_grad_1_us", 1, false },
  { "forward_backward_us", 8, true },
  { "forward_backward_1_us", 1, true },
};

void
run_chain (const at::Tensor &start, const at::Tensor &factor, bool backward)
{
  at::Tensor x = start;

  for (int i = 0; i < n_ops; i++)
    x = i % 2 ? at::mul (x, factor) : at::add (x, factor);
  if (backward)
    {
      at::sum (x).backward ();
      start.mutable_grad ().reset ();
    }
}

double
measure (const Case &which)
{
  at::Tensor x = at::ones ({ 1, which.columns }), factor = at::full ({ 1, which.columns }, 0.5);
  std::vector<double> times;

  x.set_requires_grad (which.backward);
  c10::AutoGradMode mode (which.backward);
  for (int round = -1; round < n_rounds; round++)
    {
      auto start = std::chrono::steady_clock::now ();

      for (int i = 0; i < n_repeats; i++)
        run_chain (x, factor, which.backward);
      if (round >= 0)
        times.push_back (
            std::chrono::duration<double, std::micro> (std::chrono::steady_clock::now () - start).count ());
    }
  std::nth_element (times.begin (), times.begin () + n_rounds / 2, times.end ());
  return times[n_rounds / 2] / (n_ops * n_repeats);
}

} // namespace

int
main ()
{
  const char *before = "{";

  at::set_num_threads (1);
  for (const Case &which : cases)
    {
      std::printf ("%s\"%s\": %.4f", before, which.name, measure (which));
      before = ", ";
    }
  std::printf ("}\n");
  return 0;
}
