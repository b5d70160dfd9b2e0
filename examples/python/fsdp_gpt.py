#!/usr/bin/python3
"""Trains a small GPT on several ranks, each of which holds its part of the parameters, gradients and optimizer state.

    fsdp_gpt.py [--ranks N] [--steps N] [--batch N] [FILE]      ranks are threads of this process
    mpirun -n 4 /usr/bin/python3 fsdp_gpt.py FILE               ranks are processes

Without a file it reads its own source. From a build folder that is not installed:

    export GI_TYPELIB_PATH=build/release LD_LIBRARY_PATH=build/release PYTHONPATH=bindings/python
"""
import argparse

import gi

gi.require_version("Ebb", "1.0")
from gi.repository import Ebb  # noqa: E402

CONTEXT = 64


def make_model():
    config = Ebb.GptConfig.new()
    config.set_vocab(256)
    config.set_context(CONTEXT)
    config.set_width(64)
    config.set_heads(4)
    config.set_layers(4)
    config.set_dropout(0.1)
    return Ebb.Gpt(config)


def sum_over_ranks(group, value):
    """In the order of the ranks, so that it is the same everywhere, whoever adds."""
    return sum(group.all_gather(Ebb.tensor([value])).tolist())


def train(group, options):
    Ebb.manual_seed(1)  # the same weights on all ranks
    model = make_model()
    Ebb.checkpoint_wrap_each(model, Ebb.TransformerBlock)
    Ebb.fully_shard_wrap_each(model, Ebb.TransformerBlock, group)
    optimizer = Ebb.AdamW(model, 3e-3)
    Ebb.seed_rank(1, group)  # and dropout that differs
    text = Ebb.TextDataset([options.file], Ebb.ByteTokenizer(), 1)

    first, last = (options.batch * r // group.size for r in (group.rank, group.rank + 1))
    share = (last - first) / options.batch
    for step in range(1, options.steps + 1):
        tokens, targets = (part[first:last] for part in text.get_batch(options.batch, CONTEXT)[1:])
        loss = Ebb.cross_entropy(model(tokens).reshape(-1, 256), targets.reshape(-1))
        (loss * (share * group.size)).backward()  # gradients are averaged over ranks, a loss counts by its rows
        optimizer.clip_grad_norm(1.0)
        optimizer.step()
        optimizer.zero_grad()
        mean = sum_over_ranks(group, loss.item() * share)
        if group.rank == 0 and (step % 10 == 0 or step == 1):
            print(f"step {step:3}  loss {mean:.4f}", flush=True)

    held = sum_over_ranks(group, Ebb.memory_stats()["parameter"]["current"]) / group.size
    if group.rank == 0:
        print(f"{group.size} ranks ({group.backend}): each holds {held / 1e6:.2f} MB of "
              f"{4 * model.count_parameters() / 1e6:.2f} MB of parameters")
    return mean


def main():
    parser = argparse.ArgumentParser(description="Trains a small GPT on several ranks.")
    parser.add_argument("file", nargs="?", default=__file__)
    parser.add_argument("--ranks", type=int, help="how many threads; without it: what mpirun says")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=8, help="rows of all ranks together, at least one for each")
    options = parser.parse_args()
    if options.ranks:
        Ebb.run_ranks(options.ranks, train, options)
    else:
        train(Ebb.init_process_group("auto"), options)
        Ebb.destroy_process_group()


if __name__ == "__main__":
    main()
