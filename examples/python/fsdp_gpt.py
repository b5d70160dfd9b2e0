#!/usr/bin/python3
"""Trains a GPT, byte by byte, on several ranks, each of which holds its part of the model: `fsdp_gpt` in Python.

    fsdp_gpt.py --data FILE --ranks 4                           ranks are threads of this process
    mpirun -n 4 /usr/bin/python3 fsdp_gpt.py --data FILE        ranks are processes

One without the other is one rank. From a build folder that is not installed:

    export GI_TYPELIB_PATH=build/release LD_LIBRARY_PATH=build/release PYTHONPATH=bindings/python
"""
import argparse
import contextlib
import json
import math
import os
import resource
import statistics
import struct
import sys
import time

import gi

gi.require_version("Ebb", "1.0")
from gi.repository import Ebb, GLib  # noqa: E402

MIB = 1 << 20
# What the program in C has options for: a state that one of both saves, the other goes on from.
FIXED = {"tokenizer": "byte", "vocab": 256, "tied": True, "bias": True, "norm_eps": 1e-5, "gelu": "tanh",
         "schedule": "constant", "warmup": 0, "min_lr": 0, "weight_decay": 0.01, "decayed": "matrices",
         "dtype": "f32", "residual": "f32", "moments": "f32", "step_in_backward": False, "wrap": "block",
         "flatten": False, "reduce": "auto", "compute_dtype": "none", "reduce_dtype": "none"}
BEGUN_WITH = ("layers", "width", "heads", "context", "seed")  # of a training that is resumed; these stay
REMEMBERED = BEGUN_WITH + ("dropout", "batch", "accumulate", "lr", "clip", "checkpoint", "store", "shard")  # may change


# -- ranks -------------------------------------------------------------------------------------------------------------

class Ranks:
    """Groups: one for what the program has to say, one for the training, and the two of a mesh if it is hybrid."""

    def __init__(self, control, options):
        self.control, self.group = control, control.split(0)
        self.rank, self.size = control.rank, control.size
        self.shard, self.replicate = self.group, None
        if options.shard == "hybrid":
            if self.size % options.shard_size:
                raise ValueError(f"--shard-size {options.shard_size}: it must divide the {self.size} ranks")
            mesh = Ebb.Mesh.new(self.group, ["data", "shard"], [-1, options.shard_size])
            self.shard, self.replicate = mesh.get_group("shard"), mesh.get_group("data")

    def gather(self, *values):
        """A tuple of numbers for each rank. They travel as the bits of doubles, so nothing is rounded."""
        n = len(values)
        sent = Ebb.tensor(list(struct.unpack(f"{n}q", struct.pack(f"{n}d", *values))))
        got = self.control.all_gather(sent).tolist()
        return list(struct.iter_unpack(f"{n}d", struct.pack(f"{len(got)}q", *got)))

    def groups(self):
        return {id(group): group for group in (self.group, self.shard, self.replicate) if group is not None}.values()

    def sent(self, n_steps):
        """Calls and bytes of this rank in a step, by operation."""
        sums = {}
        for group in self.groups():
            for name, count in group.counters().items():
                calls, n_bytes = sums.get(name, (0, 0))
                sums[name] = calls + count["calls"], n_bytes + count["bytes"]
        return {name: {"calls": calls / n_steps, "bytes": n_bytes / n_steps}
                for name, (calls, n_bytes) in sums.items()}


# -- training ----------------------------------------------------------------------------------------------------------

def make_model(options):
    config = Ebb.GptConfig.new()
    config.vocab = 256
    for name in ("layers", "width", "heads", "context", "dropout"):
        setattr(config, name, getattr(options, name))
    Ebb.manual_seed(options.seed)  # the same weights on all ranks
    return Ebb.Gpt(config)


def make_store(kind):
    """None: what backward needs stays where it is."""
    if kind == "keep":
        return None
    store = Ebb.HostStore(when_full="spill") if kind == "host" else Ebb.DiskStore()
    store.prefetch = 1
    return store


def wrap(model, ranks, options, store):
    if options.checkpoint != "none":
        Ebb.checkpoint_wrap_each(model, Ebb.TransformerBlock, store=store,
                                 policy="selective" if options.checkpoint == "selective" else None)
    if options.shard == "none":
        Ebb.replicate(model, ranks.group)
    else:
        Ebb.fully_shard_wrap_each(model, Ebb.TransformerBlock, ranks.shard, replicate_group=ranks.replicate)


def seed_rank(ranks, seed):
    """Dropout that differs by rank. Rank 0 goes on where the weights ended, as one rank alone would."""
    generator = Ebb.Generator.get_default()
    offset = generator.get_offset()
    Ebb.seed_rank(seed, ranks.group)
    generator.set_state(generator.get_seed(), offset)


def run_batch(model, text, ranks, options, regions):
    """This rank's share of the loss. Ranks average their gradients, so a loss counts by its rows."""
    first, last = (options.batch * rank // ranks.size for rank in (ranks.rank, ranks.rank + 1))
    n_rows = last - first
    if n_rows == 0:  # it makes the same calls as all, for nothing
        first, last = min(first, options.batch - 1), min(first, options.batch - 1) + 1
    tokens, targets = (part[first:last] for part in text.get_batch(options.batch, options.context))
    with regions():
        loss = model.loss(tokens, targets)
    (loss if n_rows * ranks.size == options.batch else loss * (n_rows * ranks.size / options.batch)).backward()
    return loss.item() * n_rows / options.batch


def run_step(model, optimizer, text, ranks, options, regions):
    loss = 0
    for i in range(options.accumulate):
        # Whole gradients that wait for the last batch save sending, but shards are there to save memory.
        waits = options.shard == "none" and i < options.accumulate - 1
        with Ebb.no_sync() if waits else contextlib.nullcontext():
            loss += run_batch(model, text, ranks, options, regions)
    loss = sum(one for one, in ranks.gather(loss / options.accumulate))
    if not math.isfinite(loss):
        raise ValueError(f"the loss is {loss}: a smaller --lr than {options.lr}, or --clip 1, may help")
    if options.accumulate > 1:
        optimizer.scale_grad(1 / options.accumulate)
    if options.clip > 0:
        optimizer.clip_grad_norm(options.clip)
    optimizer.step()
    optimizer.zero_grad()
    return loss


def train(control, options):
    ranks = Ranks(control, options)
    lock = Ebb.FolderLock.new(options.resume) if options.resume and ranks.rank == 0 else None
    try:
        train_locked(ranks, options)
    finally:
        if lock:
            lock.release()


def train_locked(ranks, options):
    text = Ebb.TextDataset(options.data, Ebb.ByteTokenizer(), options.seed)
    text.check_context(options.context)
    model, store = make_model(options), make_store(options.store)
    optimizer = Ebb.AdamW(model, options.lr)
    optimizer.weight_decay = FIXED["weight_decay"]
    optimizer.exclude_from_decay()  # norms and biases
    wrap(model, ranks, options, store)
    seed_rank(ranks, options.seed)
    state = Ebb.TrainingState.new(model, optimizer, text)
    first_step = 0
    if options.saved:
        first_step = state.load_sharded(options.resume)
        optimizer.lr = options.lr
    state.props.config = json.dumps({**FIXED, **{name: getattr(options, name) for name in REMEMBERED}})
    if ranks.rank == 0:
        print(f"GPT of {options.layers} layers, width {options.width}, {options.heads} heads, context "
              f"{options.context}: {model.count_parameters()} parameters; {text.get_n_tokens()} bytes of text\n"
              f"{ranks.size} ranks ({ranks.group.backend}), shard {options.shard}, checkpoint {options.checkpoint}, "
              f"store {options.store}" + (f"; going on from step {first_step}" if first_step else ""), flush=True)

    for group in ranks.groups():
        group.reset_counters()
    Ebb.memory_reset_peaks(Ebb.Device.get("cpu"))
    regions = (lambda: store) if store is not None and options.checkpoint == "none" else contextlib.nullcontext
    losses, seconds, sent = [], [], {}
    for step in range(first_step + 1, options.steps + 1):
        began = time.monotonic()
        losses.append(run_step(model, optimizer, text, ranks, options, regions))
        seconds.append(time.monotonic() - began)
        sent = ranks.sent(len(losses))  # before a state is saved, which is not a step's
        if ranks.rank == 0 and (len(losses) == 1 or step % max(options.steps // 10, 1) == 0 or step == options.steps):
            speed = options.batch * options.context * options.accumulate / seconds[-1]
            print(f"step {step:{len(str(options.steps))}}/{options.steps}  loss {losses[-1]:.4f}  {speed:.0f} tokens/s",
                  flush=True)
        if options.resume and (step == options.steps or step % options.save_every == 0):
            state.save_sharded(options.resume, step)
    rows = [take_memory(row) for row in ranks.gather(*measure())]
    everybody = [{"rank": i, **row, "communication": each}
                 for i, (row, each) in enumerate(zip(rows, gather_sent(ranks, sent)))]
    if ranks.rank == 0:
        print_table(everybody)
        if options.report:
            write_report(options, model, store, everybody, first_step, losses, seconds)


# -- printing ---------------------------------------------------------------------------------------------------------

MEMORY = ("parameter_bytes_held", "optimizer_bytes_held", "parameter_bytes", "gradient_bytes", "optimizer_bytes",
          "activation_bytes_peak", "cache_bytes", "workspace_bytes", "peak_bytes", "host_peak_bytes",
          "rss_peak_bytes")
COLUMNS = {"parameters": "parameter_bytes_held", "at most": "parameter_bytes", "gradients": "gradient_bytes",
           "optimizer": "optimizer_bytes", "activations": "activation_bytes_peak", "workspace": "workspace_bytes",
           "peak (MiB)": "peak_bytes"}
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "send", "recv", "barrier")


def measure():
    """Bytes of this rank, in the order of MEMORY: two now, then the most at one time. Its device is the host."""
    stats = Ebb.memory_stats()
    kinds = ("parameter", "gradient", "optimizer", "activation", "cache", "workspace", "total", "total")
    return (*(stats[kind]["current"] for kind in ("parameter", "optimizer")), *(stats[kind]["peak"] for kind in kinds),
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def take_memory(row):
    return dict(zip(MEMORY, map(int, row)))


def gather_sent(ranks, sent):
    none = {"calls": 0, "bytes": 0}
    rows = ranks.gather(*(value for name in COLLECTIVES for value in sent.get(name, none).values()))
    return [{name: {"calls": calls, "bytes": n_bytes}
             for name, calls, n_bytes in zip(COLLECTIVES, row[::2], row[1::2]) if calls} for row in rows]


def print_table(everybody):
    print("rank " + " ".join(f"{title:>11}" for title in COLUMNS))
    for row in everybody:
        print(f"{row['rank']:4} " + " ".join(f"{row[name] / MIB:11.2f}" for name in COLUMNS.values()))
    sent = ", ".join(f"{count['bytes'] / MIB:.2f} MiB in {count['calls']:.4g} {name}"
                     for name, count in everybody[0]["communication"].items())
    if sent:
        print(f"Rank 0 sends a step: {sent}")


def write_report(options, model, store, everybody, first_step, losses, seconds):
    median = statistics.median(seconds) if seconds else math.inf
    report = {"final_loss": losses[-1] if losses else None,
              "tokens_per_second": options.batch * options.context * options.accumulate / median,
              **{name: everybody[0][name] for name in MEMORY[2:]},
              "store": {**(store.report(as_dict=True) if store is not None else {}), "kind": options.store},
              "checkpointing": Ebb.checkpoint_report(model, as_dict=True),
              "ranks": everybody, "communication": everybody[0]["communication"],
              "parameters": model.count_parameters(),
              "first_step": first_step, "last_step": first_step + len(losses), "version": Ebb.get_version_string(),
              "config": {**FIXED, **{name: value for name, value in vars(options).items() if name != "saved"}},
              "losses": losses, "step_seconds": seconds}
    with open(options.report, "w", encoding="utf-8") as file:
        json.dump(report, file, indent=2)
        file.write("\n")


# -- options -----------------------------------------------------------------------------------------------------------

def number(kind, least, below=math.inf):
    def parse(text):
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not least <= value < below:
            raise argparse.ArgumentTypeError(f"{text}: it must be {'a whole' if kind is int else 'a'} number of at "
                                             f"least {least}" + (f", below {below}" if below < math.inf else ""))
        return value

    return parse


class Parser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(2, f"{self.prog}: {message} (--help lists the options)\n")


def make_parser():
    parser = Parser(description="Trains a GPT on a text, on many ranks.", allow_abbrev=False,
                    epilog="Defaults are in parentheses.")
    count, size = number(int, 1), number(float, 0)

    def add(name, text, default=None, **how):
        parser.add_argument(name, default=default, help=text + (f" ({default})" if default is not None else ""), **how)

    add("--data", "text to train on", nargs="+", required=True, metavar="FILE")
    add("--layers", "number of transformer blocks", 4, type=count, metavar="N")
    add("--width", "size of a token's vector", 128, type=count, metavar="N")
    add("--heads", "attention heads; the number must divide the width", 4, type=count, metavar="N")
    add("--context", "tokens in a row of text", 256, type=count, metavar="N")
    add("--dropout", "probability of dropout", 0.1, type=number(float, 0, 1), metavar="P")
    add("--batch", "rows of text in a batch, of all ranks together", 8, type=count, metavar="N")
    add("--accumulate", "batches whose gradients make one step", 1, type=count, metavar="N")
    add("--steps", "optimizer steps in all, including resumed ones", 100, type=number(int, 0), metavar="N")
    add("--lr", "learning rate of AdamW", 3e-4, type=size, metavar="X")
    add("--clip", "clip the norm of the gradients to X; 0: don't clip", 0.0, type=size, metavar="X")
    add("--seed", "seed of weights, batches and dropout", 1, type=number(int, 0), metavar="N")
    add("--ranks", "number of ranks that are threads; otherwise mpirun sets it", type=count, metavar="N")
    add("--shard", "how the model is sharded: over all ranks; not at all; over --shard-size ranks", "full",
        choices=("full", "none", "hybrid"))
    add("--shard-size", "ranks that share one model with --shard hybrid", type=count, metavar="N")
    add("--checkpoint", "activation checkpointing per block", "none", choices=("none", "selective", "full"))
    add("--store", "where the inputs of checkpointed blocks wait for backward", "keep",
        choices=("keep", "host", "disk"))
    add("--resume", "save the state of the training in DIR; if DIR has one, resume it with its options", metavar="DIR")
    add("--save-every", "save the state every N steps, and at the end", 500, type=count, metavar="N")
    add("--report", "write losses, times, memory and communication to FILE, as JSON", metavar="FILE")
    parser.add_argument("--version", action="version", version=f"%(prog)s (Ebb) {Ebb.get_version_string()}")
    return parser


def take_saved(parser, options, words):
    """What is not given is as it was; what a training can't change must not be given otherwise."""
    saved = {"decayed": "all", **json.loads(Ebb.TrainingState.read_config(options.resume))}  # as it once was
    for name, value in FIXED.items():
        if saved.get(name, value) != value:
            parser.error(f"--resume {options.resume}: that training has {name} {saved[name]}, which only the program "
                         "in C knows")
    parser.set_defaults(**{name: saved[name] for name in REMEMBERED if name in saved})
    options = parser.parse_args(words)
    for name in BEGUN_WITH:
        if getattr(options, name) != saved.get(name):
            parser.error(f"--{name} {getattr(options, name)}: the training in {options.resume} has {saved.get(name)}: "
                         "leave the option out, or name another folder")
    return options


def has_state(folder):
    """Whether ranks have saved one there. A first save that was broken off, which has begun an index, is nothing."""
    try:
        names = os.listdir(folder)  # an error, other than this one, is not an empty folder
    except FileNotFoundError:
        return False
    if "index.json" not in names and any("-of-" in name for name in names) \
            and not any(name.startswith("index.json.") for name in names):
        raise ValueError(f"--resume {folder}: it holds parts of a state, but not its index.json: files are missing")
    return "index.json" in names


def read_options(words):
    parser = make_parser()
    options = parser.parse_args(words)
    saved = bool(options.resume) and has_state(options.resume)
    if saved:
        options = take_saved(parser, options, words)
    options.saved = saved
    if options.width % options.heads:
        parser.error(f"--heads {options.heads}: it must divide --width {options.width}")
    if (options.shard == "hybrid") != (options.shard_size is not None):
        parser.error("--shard hybrid and --shard-size N go together")
    if options.ranks and options.shard_size and options.ranks % options.shard_size:
        parser.error(f"--shard-size {options.shard_size}: it must divide --ranks {options.ranks}")
    if options.report and not os.path.isdir(os.path.dirname(options.report) or "."):
        parser.error(f"--report {options.report}: there is no such folder")
    return options


def main(words):
    try:
        options = read_options(words)
        if options.ranks:
            Ebb.run_ranks(options.ranks, train, options)
        else:
            train(Ebb.init_process_group("auto"), options)
            Ebb.destroy_process_group()
    except (GLib.Error, OSError, ValueError) as error:
        sys.exit(f"{os.path.basename(sys.argv[0])}: {getattr(error, 'message', error)}")


if __name__ == "__main__":
    main(sys.argv[1:])
