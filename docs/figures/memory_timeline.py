#!/usr/bin/python3
"""Writes memory-timeline.svg: the memory of a step of GPT-2, without checkpoints and with them, by dry runs.

    GI_TYPELIB_PATH=build/release LD_LIBRARY_PATH=build/release PYTHONPATH=bindings/python \\
        python3 docs/figures/memory_timeline.py [FILE]

A FILE that ends in .html becomes the page, where the pointer names each tensor. Nothing of the size of the model is
allocated, so it takes a second on any machine.
"""
import os
import sys

import gi

gi.require_version("Ebb", "1.0")
from gi.repository import Ebb  # noqa: E402

BATCH, TOKENS, BUDGET = 8, 512, "2.5GiB"


def record(name, wrap):
    with Ebb.dry_run():
        model = Ebb.Gpt(Ebb.GptConfig.new_preset("gpt2"))
        wrap(model)
        optimizer = Ebb.AdamW(model, 1e-4)
        tokens = Ebb.zeros(BATCH, TOKENS, dtype="int64")

        def step():
            model.loss(tokens, tokens).backward()
            optimizer.step()
            optimizer.zero_grad()

        timeline = Ebb.estimate_memory(model, step).timeline
    timeline.set_name(name)
    return timeline


def main(path=os.path.join(os.path.dirname(os.path.abspath(__file__)), "memory-timeline.svg")):
    Ebb.set_num_threads(2)  # kernels' workspace depends on it
    none = record("none", lambda model: None)
    full = record("each block checkpointed", lambda model: Ebb.checkpoint_wrap_each(model, Ebb.TransformerBlock))
    none.save(path, full, budget=BUDGET)


if __name__ == "__main__":
    main(*sys.argv[1:])
