#!/usr/bin/env python3
"""How budgets of the process are used: random models, each with a budget between its least and its need.

Prints for each model, by the program and from Python: the resident bytes beside the budget, what the plan takes beside
the best uniform choice that keeps the same budget, by the table of costs and by the clock; then the figures of all. It
fails if one of them breaks a promise.
"""
import argparse
import os
import random
import statistics
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from budget_models import (MIB, UNIFORM, Measured, draw_budget, draw_model, get_seconds, unused)  # noqa: E402

# The unused part's median, at most, by the size of the budget.
MOST_UNUSED = ((256 * MIB, 0.04), (1024 * MIB, 0.03), (1 << 60, 0.01))
SPARE = 2 * MIB
LEAST_NEED = 48 * MIB

seen = {"program": [], "python": []}
by_costs, by_clock, problems = [], [], []


def note(kind, name, budget, report, smallest):
    """smallest: resident bytes of the uniform choice that needs least."""
    if "rss_peak_bytes" not in report:
        if smallest + SPARE <= budget:
            problems.append(f"{name}, {kind}: refused, and a uniform choice ran in {smallest / MIB:.1f} MiB")
        return f"{kind}: refused"
    seen[kind].append((budget, unused(report, budget)))
    if report["rss_peak_bytes"] > budget:
        problems.append(f"{name}, {kind}: {report['rss_peak_bytes'] / MIB:.2f} MiB exceed {budget / MIB:.2f}")
    return f"{kind}: {report['rss_peak_bytes'] / MIB:.1f} MiB, {unused(report, budget) * 100:.1f} % unused"


def compare(measured, name, budget, planned, uniform):
    """The plan and the best uniform choice, by the table and by the clock, in turn."""
    fitting = [choice for choice in UNIFORM if uniform[choice]["rss_peak_bytes"] <= budget]
    if not fitting:
        return ""
    costs = {choice: measured.run("--checkpoint", choice, "--estimate")["step_seconds"] for choice in fitting}
    best = min(fitting, key=costs.get)
    ratio = planned["plan"]["step_seconds"] / costs[best]
    by_costs.append(ratio)
    if ratio > 1.005:
        problems.append(f"{name}: by costs the plan takes {ratio:.3f} of {best}")
    times = {"plan": [], best: []}
    for _ in range(2):
        times["plan"].append(get_seconds(measured.run("--memory", budget)))
        times[best].append(get_seconds(measured.run("--checkpoint", best)))
    clock = min(times["plan"]) / min(times[best])
    by_clock.append(clock)
    return f"; of {best} {ratio:.3f} by costs, {clock:.3f} by the clock"


def run_model(number, rng, text, folder, most):
    while True:
        model = {**draw_model(rng), "held": rng.randint(1, 32) * MIB}
        measured = Measured(model, text, folder)
        plain = measured.run("--checkpoint", "none")
        if LEAST_NEED <= plain["rss_peak_bytes"] <= most:
            break
    uniform = {choice: measured.run("--checkpoint", choice) for choice in UNIFORM}
    least = measured.find_least()
    need = uniform["none"]["rss_peak_bytes"]
    smallest = min(report["rss_peak_bytes"] for report in uniform.values())
    budget = draw_budget(rng, min(least, smallest + SPARE), need)
    planned = measured.run("--memory", budget)
    planned = planned if isinstance(planned, dict) else {"refused": planned}
    name = f"model {number}"
    line = note("program", name, budget, planned, smallest)
    if "plan" in planned:
        line += compare(measured, name, budget, planned, uniform)
    in_python = measured.run_python(0)["rss_peak_bytes"]
    own = draw_budget(rng, in_python - (need - least), in_python)
    line += "; " + note("python", name, own, measured.run_python(own), in_python)
    words = " ".join(f"{key} {value}" for key, value in model.items() if key != "held")
    print(f"{number}: {words}: {least / MIB:.1f} to {need / MIB:.1f} MiB; {budget / MIB:.1f}: {line}", flush=True)


def report_unused(kind):
    least = 0
    for most, promised in MOST_UNUSED:
        parts = [part for budget, part in seen[kind] if least <= budget < most]
        least = most
        if parts:
            median = statistics.median(parts)
            print(f"{kind}: below {most / MIB:.0f} MiB {len(parts)} budgets, unused {median * 100:.1f} % (median), "
                  f"{max(parts) * 100:.1f} % (most); promised {promised * 100:.0f} %")
            if median > promised:
                problems.append(f"{kind}: {median * 100:.1f} % of budgets below {most / MIB:.0f} MiB are unused")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--models", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most", type=int, default=2048, help="MiB that a step may need (%(default)s)")
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory(prefix="ebb-budgets-") as folder:
        text = os.path.join(folder, "text.txt")
        with open(text, "w", encoding="utf-8") as file:
            file.writelines(f"Line {n} of {n * n}: the quick brown fox.\n" for n in range(3000))
        for number in range(arguments.models):
            run_model(number, rng, text, folder, arguments.most * MIB)
    for kind in seen:
        report_unused(kind)
    if by_costs:
        print(f"by costs: {statistics.median(by_costs):.3f} (median), {max(by_costs):.3f} (most); "
              f"by the clock: {statistics.median(by_clock):.3f}, {max(by_clock):.3f}")
        if statistics.median(by_clock) > 1 or max(by_clock) > 1.10:
            problems.append("by the clock plans are slower than uniform choices")
    for problem in problems:
        print(problem)
    return bool(problems)


if __name__ == "__main__":
    if not os.environ.get("EBB_LONG") and len(sys.argv) == 1:
        print("skipped: EBB_LONG is not set")
        sys.exit(77)
    sys.exit(main())
