#!/usr/bin/python3
"""Writes memory-timeline.svg: the memory of a step of GPT-2, as it is and as planned for a budget, by dry runs.

    GI_TYPELIB_PATH=build/release LD_LIBRARY_PATH=build/release PYTHONPATH=bindings/python \\
        python3 docs/figures/memory_timeline.py [FILE]

The plan is that of memory-plan.json; without this file the script plans anew, for this machine, and writes it. A FILE
that ends in .html becomes the page, where the pointer names each tensor. Nothing of the model's size is allocated, so it
takes a second on any machine.
"""
import os
import sys

import gi

gi.require_version("Ebb", "1.0")
from gi.repository import Ebb  # noqa: E402

FOLDER = os.path.dirname(os.path.abspath(__file__))
PLAN = os.path.join(FOLDER, "memory-plan.json")
BATCH, TOKENS, BUDGET = 8, 512, 5 << 29


def apply_plan(model, step):
    if not os.path.exists(PLAN):
        Ebb.MemoryPlan.new(model, None, lambda *_: step() or True, None, BUDGET).save(PLAN)
    plan = Ebb.MemoryPlan.load(model, PLAN)
    plan.apply()
    return plan


def record(name, is_planned):
    with Ebb.dry_run():
        model = Ebb.Gpt(Ebb.GptConfig.new_preset("gpt2"))
        optimizer = Ebb.AdamW(model, 1e-4)
        tokens = Ebb.zeros(BATCH, TOKENS, dtype="int64")

        def step():
            model.loss(tokens, tokens).backward()
            optimizer.step()
            optimizer.zero_grad()

        plan = apply_plan(model, step) if is_planned else None
        timeline = Ebb.estimate_memory(model, step).timeline
        del plan
    timeline.set_name(name)
    return timeline


def main(path=os.path.join(FOLDER, "memory-timeline.svg")):
    Ebb.set_num_threads(2)  # kernels' workspace depends on it
    record("none", False).save(path, record("planned", True), budget=BUDGET)


if __name__ == "__main__":
    main(*sys.argv[1:])
