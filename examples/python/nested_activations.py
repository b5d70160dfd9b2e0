#!/usr/bin/python3
"""Shows what nested checkpoint wrappers and a store leave in memory, a row for each way to combine them.

    nested_activations.py --help

From a build folder that is not installed:

    GI_TYPELIB_PATH=build/release LD_LIBRARY_PATH=build/release PYTHONPATH=bindings/python \\
        python3 examples/python/nested_activations.py
"""
import argparse
import os
import sys

import gi

gi.require_version("Ebb", "1.0")
from gi.repository import Ebb, GLib  # noqa: E402

PARTS = (Ebb.MultiHeadAttention, Ebb.Mlp)


def is_part(module):
    return isinstance(module, PARTS)


# Each way: its name, what it wraps ("parts", "blocks", "model"), where the inputs of "blocks", or of "model" if that is
# wrapped, wait ("host", "disk"), and what it shows.
WAYS = [
    ("none", "", None,
     "Nothing is wrapped. All that backward needs is saved."),
    ("blocks", "blocks", None,
     "Each block saves its input (outer) and frees what it computes (inner); backward recomputes one block at a time."),
    ("model", "model", None,
     "The model saves only its input. Its one recompute brings everything back at once: the peak is that of none."),
    ("blocks in model", "blocks model", None,
     "The model's recompute makes the blocks' inputs again, and each block's recompute its inner activations: least "
     "saved, most recomputed."),
    ("parts in blocks", "parts blocks", None,
     "While a block is recomputed, attention and MLP save only their inputs: the peak is lower than with blocks."),
    ("blocks, host", "blocks", "host",
     "Inputs go to host memory; the device holds the one that backward needs and the one that is fetched ahead."),
    ("blocks, disk", "blocks", "disk",
     "Inputs go to a file: wrappers free the inner activations, the store takes the outer ones, and nothing is left."),
    ("blocks in model, disk", "blocks model", "disk",
     "One input goes to the file. The model's recompute makes the blocks' inputs again, and they stay in memory."),
    ("parts in blocks, disk", "parts blocks", "disk",
     "Nothing is left in memory after forward, and at most one part's activations return with its block's inputs."),
]


def make_model(options):
    Ebb.manual_seed(1)
    blocks = (Ebb.TransformerBlock(options.width, options.heads, options.dropout, True, True)
              for _ in range(options.blocks))
    return Ebb.Sequential(*blocks).to(options.device)


def wrap(model, what, where, folder):
    """Returns the store, if there is one."""
    store = None
    if where:
        store = Ebb.HostStore() if where == "host" else Ebb.DiskStore.new(folder)
        store.least_size = 0
        # What is on its way to the store is on the device, too: none of it is, so that the columns add up.
        store.in_flight = 0
    if "parts" in what:
        Ebb.checkpoint_wrap_each(model, is_part)
    if "blocks" in what:
        Ebb.checkpoint_wrap_each(model, Ebb.TransformerBlock, store=store)
    if "model" in what:
        Ebb.checkpoint_wrapper(model, store=store)
    return store


def count_forwards(model):
    """Recomputes are forwards, too, and hooks see them."""
    counts = {"blocks": 0, "parts": 0}

    def count(name):
        def hook(module, args):
            counts[name] += 1
        return hook

    for module in model.modules():
        if isinstance(module, Ebb.TransformerBlock) or is_part(module):
            module.register_forward_pre_hook(count("parts" if is_part(module) else "blocks"))
    return counts


def device_bytes(options, which="current", purpose="total"):
    return Ebb.memory_stats(options.device)[purpose][which]


def run_forward(model, options):
    """The input belongs to nobody but the model afterwards, so that a store can take it out of memory."""
    return model(Ebb.randn(options.batch, options.tokens, options.width, device=options.device)).sum()


def run_step(options, what, where):
    """One forward and backward: the numbers of a row, and the gradients by name."""
    model = make_model(options)
    store = wrap(model, what, where, options.folder)
    run_forward(model, options).backward()  # gradients that are there already are no part of what the next step needs
    counts = count_forwards(model)
    Ebb.memory_reset_peaks(Ebb.Device.get(options.device))
    before, all_before = device_bytes(options, purpose="activation"), device_bytes(options)

    loss = run_forward(model, options)
    # What a store has left in its place it answers for, too, but that is not meant here.
    in_store = store.get_bytes_held() if store and store.get_bytes_put() else 0
    outer = Ebb.checkpoint_report(model, as_dict=True)["sum"]["saved_bytes"] - in_store
    inner = device_bytes(options, purpose="activation") - before - outer
    loss.backward()
    row = [inner, outer, in_store, device_bytes(options, "peak") - all_before, counts["blocks"], counts["parts"]]
    return row, {name: parameter.grad.to("cpu") for name, parameter in model.named_parameters()}


def find_difference(expected, gradients):
    for name, gradient in expected.items():
        if not Ebb.Tensor.equal(gradient, gradients[name]):
            return name
    return None


def show(options):
    print(f"{options.blocks} transformer blocks of width {options.width}, {options.batch} x {options.tokens} tokens, "
          f"on {options.device}; an input has {options.batch * options.tokens * options.width * 4} bytes")
    print("Bytes saved from forward to backward, the step's peak of bytes besides parameters and gradients, and\n"
          "forwards, recomputes included\n")
    print(f"{'wrapped':<22}{'inner':>12}{'outer':>12}{'in store':>12}{'at most':>12}{'blocks':>8}{'parts':>7}")
    expected = None  # the gradients of the first row
    for name, what, where, _ in WAYS:
        row, gradients = run_step(options, what, where)
        print(f"{name:<22}{row[0]:>12}{row[1]:>12}{row[2]:>12}{row[3]:>12}{row[4]:>8}{row[5]:>7}")
        expected = expected or gradients
        different = find_difference(expected, gradients)
        if different is not None:
            raise RuntimeError(f"{name}: the gradient of {different} is not that of the model without wrappers")
    print()
    for name, _, _, text in WAYS:
        print(f"{name}: {text}")
    print(f"\nIn every row the gradients of all {len(expected)} parameters are those of the first, bit for bit.")


def at_least(least):
    def convert(text):
        if not text.lstrip("-").isdigit() or not least <= int(text) < 2**31:
            raise argparse.ArgumentTypeError(f"{text}: it must be at least {least}, a whole number")
        return int(text)
    return convert


def probability(text):
    try:
        if 0 <= float(text) < 1:
            return float(text)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text}: it must be at least 0 and below 1")


class Parser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(2, f"{self.prog}: {message} (--help lists the options)\n")


def parse(words):
    parser = Parser(allow_abbrev=False, description="Shows what nested checkpoint wrappers "
                    "and a store leave in memory. Exit status: 0; 1 for a failure or gradients that "
                    "differ; 2 for wrong options.")
    parser.add_argument("--blocks", type=at_least(1), default=4, metavar="N", help="number of transformer blocks (4)")
    parser.add_argument("--width", type=at_least(1), default=64, metavar="N", help="size of a token's vector (64)")
    parser.add_argument("--heads", type=at_least(1), default=4, metavar="N",
                        help="attention heads; the number must divide the width (4)")
    parser.add_argument("--batch", type=at_least(1), default=4, metavar="N", help="rows of tokens (4)")
    parser.add_argument("--tokens", type=at_least(1), default=64, metavar="N", help="tokens in a row (64)")
    parser.add_argument("--dropout", type=probability, default=0.1, metavar="P", help="probability of dropout (0.1)")
    parser.add_argument("--device", default="sim", metavar="NAME",
                        help=f"device to measure on: {', '.join(Ebb.list_device_kinds())} (sim)")
    parser.add_argument("--folder", metavar="DIR",
                        help="folder of the disk store's file (the system's temporary folder)")
    parser.add_argument("--version", action="version", version=f"%(prog)s (Ebb) {Ebb.get_version_string()}")
    return parser.parse_args(words)


def main(words):
    options = parse(words)
    try:
        show(options)
    except (GLib.Error, RuntimeError) as error:
        sys.exit(f"{os.path.basename(sys.argv[0])}: {getattr(error, 'message', error)}")


if __name__ == "__main__":
    main(sys.argv[1:])
