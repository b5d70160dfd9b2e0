#!/usr/bin/python3
"""OSLO's tutorial on activation checkpointing: a GPT-2 on tensor ranks, whose checkpointed activations are partitioned
over the ranks, laid out in contiguous memory and offloaded to the host, one after the other.

    oslo_gpt2.py --help
    oslo_gpt2.py --ranks 4 --layers 4 --width 64 --heads 4           ranks are threads of this process
    mpirun -n 4 /usr/bin/python3 oslo_gpt2.py                        ranks are processes

From a build folder that is not installed:

    export GI_TYPELIB_PATH=build/release LD_LIBRARY_PATH=build/release PYTHONPATH=bindings/python
"""
import argparse
import os
import struct
import sys
import time

import gi

os.environ.setdefault("EBB_SIM_MEMORY", "64GiB")  # taken from the system as it is used
gi.require_version("Ebb", "1.0")
from gi.repository import Ebb, GLib  # noqa: E402

MIB = 1 << 20
TEXT = (b"At high water the channels are one sheet, and a boat can cross anywhere. Six hours later the same water "
        b"is gone and the way is found again by its banks: what was covered has not moved, it only was not seen. "
        b"Nobody carries the sea out and back. It leaves, and what is needed of it returns in time for the next "
        b"boat, to the inch, because the same moon draws it over the same ground.\n")
# What is switched on: each with what the one before it has.
WAYS = {
    "plain": {},
    "partitioned": {"partitioned_checkpointing": True},
    "+ contiguous": {"partitioned_checkpointing": True, "contiguous_checkpointing": True},
    "+ host": {"partitioned_checkpointing": True, "contiguous_checkpointing": True, "cpu_checkpointing": True},
}
COLUMNS = ("kept", "on host", "all then", "activations", "all", "s/step", "loss")


def make_config(options):
    config = Ebb.GptConfig(options.preset, dropout=options.dropout, **{
        name: getattr(options, name) for name in ("layers", "width", "heads") if getattr(options, name)})
    config.context = max(options.sequence, config.context)
    config.vocab = max(256, config.vocab)
    return config


def open_model(options):
    model = Ebb.open_model(options.model, dtype="f32")
    if not isinstance(model, Ebb.Gpt):
        raise ValueError(f"--model {options.model}: it must hold a decoder, as GPT-2")
    if options.sequence > model.config.context:
        raise ValueError(f"--sequence {options.sequence}: the model has {model.config.context} positions")
    return model.train()


def make_model(options, group, switches):
    Ebb.manual_seed(options.seed)
    model = (open_model(options) if options.model else Ebb.Gpt(make_config(options))).to(options.device)
    Ebb.initialize(model, {
        "model_parallelism": {"enable": True, "tensor_parallel_size": group.size},
        "activation_checkpointing": {"enable": True, **switches},
    })
    store = Ebb.initialize_get_options(model).get_store()
    if store is not None:
        store.prefetch = options.prefetch
    Ebb.model_parallel_manual_seed(options.seed)
    return model


def make_batch(options, text, step, rows):
    """Tokens, targets and a mask: one token a byte, or lines that the folder's tokenizer makes tokens of."""
    if options.model:
        return make_lines(options, text, step, rows)
    n, first = rows * options.sequence, step * options.batch * options.sequence
    tokens, targets = ([text[(first + shift + i) % len(text)] for i in range(n)] for shift in (0, 1))
    return {name: Ebb.tensor(values, dtype=Ebb.int64).reshape(rows, options.sequence).to(options.device)
            for name, values in (("tokens", tokens), ("targets", targets))}


def make_lines(options, lines, step, rows):
    """The labels are the tokens themselves, padding included, as the tutorial has it; the model is to give each before
    it has read it. GPT-2's tokenizer has no token for padding: the one that ends a text serves."""
    first = step * options.batch
    batch = options.tokenizer([lines[(first + i) % len(lines)] for i in range(rows)], max_length=options.sequence,
                              padding=options.tokenizer.eos_token_id)
    none = Ebb.full((rows, 1), -100, dtype=Ebb.int64)
    targets = Ebb.cat([batch.tokens[:, 1:], none], 1)
    return {name: value.to(options.device) for name, value in {**batch, "targets": targets}.items()}


def count_kept(model, options, switches):
    """Bytes that the checkpoints keep, on the device and on the host."""
    store = Ebb.initialize_get_options(model).get_store()
    if store is None:
        return Ebb.checkpoint_report(model, as_dict=True)["sum"]["saved_bytes"], 0
    store.synchronize()
    moved = switches.get("cpu_checkpointing") and options.device != "cpu"
    return (0, store.get_bytes_held()) if moved else (store.get_bytes_held(), 0)


def run(group, options, text, switches):
    """What this rank had in memory in the last step, in the order of COLUMNS."""
    model = make_model(options, group, switches)
    optimizer = Ebb.AdamW(model, options.lr)
    device = Ebb.Device.get(options.device)
    # A row of text before the others: the optimizer's state is there from its first step on.
    for step, rows in [(0, 1)] + [(step, options.batch) for step in range(options.steps)]:
        began = time.monotonic()
        Ebb.memory_reset_peaks(device)
        loss = model(**make_batch(options, text, step, rows))
        kept = count_kept(model, options, switches)
        device.synchronize()
        after = Ebb.memory_stats(device)["total"]["current"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        value = loss.to("cpu").item()
        seconds = time.monotonic() - began
    stats = Ebb.memory_stats(device)
    return (*kept, after, stats["activation"]["peak"], stats["total"]["peak"], seconds, value)


def gather(group, row):
    """The rows of all ranks. They travel as the bits of doubles, so nothing is rounded."""
    n = len(row)
    sent = Ebb.tensor(list(struct.unpack(f"{n}q", struct.pack(f"{n}d", *row))), dtype=Ebb.int64)
    got = group.all_gather(sent).tolist()
    return list(struct.iter_unpack(f"{n}d", struct.pack(f"{len(got)}q", *got)))


def print_rows(name, rows):
    for rank, (*figures, seconds, loss) in enumerate(rows):
        print(f"{'' if rank else name:18} {rank:4} " + " ".join(f"{figure / MIB:11.2f}" for figure in figures)
              + f" {seconds:8.2f}  {loss:.6f}", flush=True)


def check_heads(options, n_ranks):
    """Whether the ranks can divide the heads of the folder's model."""
    config = Ebb.open_model(options.model).config
    kv_heads = config.kv_heads or config.heads
    if config.heads % n_ranks or kv_heads % n_ranks:
        most = max(n for n in range(1, n_ranks + 1) if config.heads % n == 0 and kv_heads % n == 0)
        raise ValueError(f"--model {options.model}: its {config.heads} heads and {kv_heads} heads of keys and values "
                         f"can't be divided among {n_ranks} ranks: take {most}")


def run_rank(group, options):
    text = options.text
    if options.model:
        check_heads(options, group.size)
    if group.rank == 0:
        print(f"{options.model or options.preset} on {group.size} tensor ranks ({group.backend}) of {options.device}; "
              f"{options.batch} x {options.sequence} tokens\nMiB of each rank when the forward pass ends: what the "
              "checkpoints keep, on the device and in the host's\nmemory, and all that is on the device; and the most "
              "in the step: activations, and all\n")
        print(f"{'checkpointing':18} rank " + " ".join(f"{title:>11}" for title in COLUMNS[:-2]) + "   s/step  loss")
    table = {}
    for name, switches in WAYS.items():
        table[name] = gather(group, run(group, options, text, switches))
        if group.rank == 0:
            print_rows(name, table[name])
    losses = {row[-1] for rows in table.values() for row in rows}
    if len(losses) > 1:
        raise ValueError(f"the losses are not equal: {sorted(losses)}")
    if group.rank == 0:
        print_end(table)


def compare(before, after):
    if after > before:
        return f"+{100 * (after / before - 1):.0f} %"
    return f"1/{before / after:.2f}" if after else "none"


def print_end(table):
    first = [max(column) for column in zip(*table["plain"])]
    print("\nOf what the first row has:")
    for name, rows in list(table.items())[1:]:
        most = [max(column) for column in zip(*rows)]
        parts = {"kept on the device": 0, "activations at most": 3, "all at most": 4}
        print(f"{name:18}" + "".join(f"  {what} {compare(first[i], most[i])}" for what, i in parts.items()))
    print("The losses of all rows are equal, bit for bit.")


# -- options -----------------------------------------------------------------------------------------------------------

class Parser(argparse.ArgumentParser):
    def error(self, message):
        fail(2, f"{message} (--help lists the options)")


def fail(status, message):
    """What all processes that were started together would say is said once."""
    ranks = (os.environ.get(name) for name in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"))
    if count_launched() <= 1 or int(next((rank for rank in ranks if rank), 0)) == 0:
        print(f"{os.path.basename(sys.argv[0])}: {message}", file=sys.stderr)
    sys.exit(status)


def count(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: it must be a whole number of at least 1")
    return int(text)


def number(text):
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: it must be 0 or more")
    return value


def count_launched():
    """The processes that a launcher has started; 0 without one."""
    return max(int(os.environ.get(name, 0)) for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"))


def check(parser, options, launched):
    """All that is known before the first of the ways begins."""
    if options.ranks and launched > 1:
        parser.error(f"--ranks {options.ranks}: the processes that were started together are the ranks: leave it out")
    if options.ranks == 1 or (options.ranks or 0) > 64:
        parser.error(f"--ranks {options.ranks}: it must be from 2 to 64")
    if not options.ranks and launched == 1:
        parser.error("one process was started, and partitioned activations need 2 ranks or more: start more, or say "
                     "--ranks 4 for threads")
    if options.dropout >= 1:
        parser.error(f"--dropout {options.dropout:g}: it must be at least 0 and below 1")
    if launched <= 1:
        options.ranks = options.ranks or 4
    for name in ("preset", "layers", "width", "heads"):
        if options.model and getattr(options, name):
            parser.error(f"--model and --{name}: the folder has the model's sizes, leave --{name} out")
    options.preset = options.preset or "gpt2"
    try:
        config = make_config(options)
        config.check()
    except GLib.Error as error:
        parser.error(error.message)
    try:
        Ebb.Device.get(options.device)
    except GLib.Error as error:
        parser.error(f"--device {options.device}: {error.message}")
    heads, n_ranks = config.heads, options.ranks or launched
    if not options.model and heads % n_ranks:
        parser.error(f"--heads {heads}: they can't be divided among {n_ranks} ranks")


def read_text(options):
    if not options.data:
        return TEXT
    try:
        with open(options.data, "rb") as file:
            text = file.read()
    except OSError as error:
        fail(1, f"--data {options.data}: {error.strerror}")
    if not text:
        fail(1, f"--data {options.data}: there is nothing in it")
    return text


def read_lines(options):
    """The lines of the text; the sentences of the built-in text stand on one."""
    try:
        text = read_text(options).decode()
    except UnicodeDecodeError:
        fail(1, f"--data {options.data}: it must be UTF-8")
    lines = [line.rstrip() for line in text.split("\n" if options.data else ". ") if line.strip()]
    if not lines:
        fail(1, f"--data {options.data}: there is no line of text in it")
    return lines


def open_tokenizer(options):
    try:
        tokenizer = Ebb.open_tokenizer(options.model)
    except GLib.Error as error:
        fail(1, error.message)
    if tokenizer.eos_token_id is None:
        fail(1, f"--model {options.model}: its tokenizer has no token that ends a text")
    return tokenizer


def read_options(words):
    parser = Parser(description=__doc__.split("\n\n", maxsplit=1)[0], allow_abbrev=False,
                    epilog="Defaults are in parentheses.")
    parser.add_argument("--model", metavar="FOLDER",
                        help="GPT-2, Llama or another decoder in Hugging Face's format: its weights, its configuration "
                        "and its tokenizer, which pads with the token that ends a text. The ranks must divide its "
                        "heads, and those of keys and values. A line of --data is a text (random weights)")
    parser.add_argument("--preset", choices=Ebb.GptConfig.get_preset_names(),
                        help="size of the model (gpt2)")
    for name, text in (("layers", "number of transformer blocks"), ("width", "size of a token's vector"),
                       ("heads", "attention heads; the number must divide the width, and the ranks must divide it")):
        parser.add_argument(f"--{name}", type=count, metavar="N", help=f"{text} (the preset's)")
    for name, default, text in (("batch", 16, "rows of text in a batch"), ("sequence", 128, "tokens in a row of text"),
                                ("steps", 1, "steps, after one with a single row of text; the last is measured"),
                                ("seed", 1, "seed of all random numbers")):
        parser.add_argument(f"--{name}", type=count, metavar="N", default=default, help=f"{text} ({default})")
    parser.add_argument("--prefetch", type=int, choices=range(9), default=1, metavar="N",
                        help="gather and fetch the inputs of blocks this many blocks ahead of backward (1)")
    parser.add_argument("--lr", type=number, default=3e-5, help="learning rate of AdamW (3e-5)", metavar="X")
    parser.add_argument("--dropout", type=number, default=0.1, help="probability of dropout (0.1)", metavar="P")
    parser.add_argument("--data", help="text to train on, read byte by byte, or line by line with --model "
                        "(a few lines)", metavar="FILE")
    parser.add_argument("--device", default="sim", metavar="NAME",
                        help=f"device to train on: {', '.join(Ebb.list_device_kinds())} (sim)")
    parser.add_argument("--ranks", type=count, metavar="N",
                        help="number of threads that share the model (4); under mpirun its processes share it")
    parser.add_argument("--version", action="version", version=f"%(prog)s (Ebb) {Ebb.get_version_string()}")
    options = parser.parse_args(words)
    check(parser, options, count_launched())
    options.text = read_lines(options) if options.model else read_text(options)
    options.tokenizer = open_tokenizer(options) if options.model else None
    return options


def main(words):
    options = read_options(words)
    # What is on its way to the host is on the device, too: none of it is, so that the columns add up.
    Ebb.HostStore.get_default().in_flight = 0
    try:
        if options.ranks:
            Ebb.run_ranks(options.ranks, run_rank, options)
        else:
            run_rank(Ebb.init_process_group("auto"), options)
            Ebb.destroy_process_group()
    except (GLib.Error, OSError, ValueError) as error:
        fail(1, getattr(error, "message", error))


if __name__ == "__main__":
    main(sys.argv[1:])
