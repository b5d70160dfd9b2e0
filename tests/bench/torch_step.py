"""PyTorch's side of the benchmarks: takes steps of a training when it is told to, as `step --serve` does for Ebb.

Each line of standard input is a number of steps, or "kept" for the bytes that a forward and backward keep; each is
answered by one line of JSON. Forward, loss, backward, AdamW, gradients dropped; one batch of random tokens, over and
over.
"""

import argparse
import functools
import json
import os
import statistics
import sys
import time

import torch_gpt  # the first of ours: it reads what is resident once PyTorch is imported
from torch_gpt import torch
import torch_bert
import torch_llama

OPTIMIZERS = ("default", "foreach", "fused")
LEARNING_RATE = 3e-4
BERT_POSITIONS = 512  # of its presets, however short the sequences are


def open_folder(options):
    """A decoder of transformers, which is imported for it alone, with peft's branches; what the two take counts as the
    library's. It is set up as their documents say."""
    import transformers
    if options.lora:
        import peft
    torch_gpt.RSS_AFTER_IMPORT = torch_gpt.status_bytes("VmRSS")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        options.folder, dtype=torch.bfloat16 if options.dtype == "pure-bf16" else torch.float32)
    options.vocab = model.config.vocab_size
    if options.checkpoint != "none":
        model.gradient_checkpointing_enable()
        model.enable_input_require_grads()
    if options.lora:
        branches = peft.LoraConfig(r=options.lora, lora_alpha=options.lora, task_type="CAUSAL_LM",
                                   target_modules="all-linear")
        model = peft.get_peft_model(model, branches)
    return model


def loss_of_folder(model, tokens, targets):
    return model(input_ids=tokens, labels=targets, use_cache=False).loss


def list_tokens(options):
    """The numbers that `step --folder` takes."""
    x, values = 1, []
    for _ in range(options.batch * options.context):
        x = (x * 1103515245 + 12345) & 0x7fffffff
        values.append((x >> 8) % options.vocab)
    return torch.tensor(values).view(options.batch, options.context)


def make_model(options):
    if options.folder:
        return open_folder(options)
    if options.model == "bert":
        model = torch_bert.Bert(torch_bert.Config(
            options.layers, options.width, options.heads, 4 * options.width, max(options.context, BERT_POSITIONS),
            vocab=options.vocab))
    elif options.model == "llama":
        model = torch_llama.Llama(torch_llama.Config(options.layers, options.width, options.heads, options.context,
                                                     options.vocab))
    else:
        model = torch_gpt.Gpt(torch_gpt.Config(options.layers, options.width, options.heads, options.context,
                                               options.vocab))
    model.checkpoint = options.checkpoint
    return model.to(torch.bfloat16) if options.dtype == "pure-bf16" else model


class Training:
    def __init__(self, options):
        torch.manual_seed(1)
        self.device = options.device
        self.model = make_model(options).train().to(options.device)
        self.optimizer = torch_gpt.new_optimizer(self.model, options.optimizer, lr=LEARNING_RATE)
        if options.folder:
            tokens = [list_tokens(options)] * 2  # the model takes the next ones for its targets
        else:
            tokens = torch.randint(options.vocab, (2, options.batch, options.context))
        self.tokens, self.targets = (part.to(options.device) for part in tokens)
        self.autocast = functools.partial(torch.autocast, options.device, dtype=torch.bfloat16,
                                          enabled=options.dtype == "bf16")
        loss_of = loss_of_folder if options.folder else torch_gpt.loss_of
        self.loss_of = torch.compile(loss_of) if options.compile else loss_of

    def step(self):
        start = time.perf_counter()
        with self.autocast():
            loss = self.loss_of(self.model, self.tokens, self.targets)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        loss = loss.item()  # waits for a GPU
        return time.perf_counter() - start, loss

    def steps(self, n):
        done = [self.step() for _ in range(n)]
        result = {"seconds": [seconds for seconds, _ in done], "first_loss": done[0][1], "loss": done[-1][1],
                  "resident_bytes": torch_gpt.status_bytes("VmHWM")}
        if self.device == "cuda":
            result["peak_bytes"] = torch.cuda.max_memory_allocated()
        return result

    def kept(self):
        return {"kept_bytes": torch_gpt.count_kept_bytes(self.model, self.tokens, self.targets, self.autocast)}


def choose_optimizer(options):
    """The median seconds of a step of each of PyTorch's AdamW."""
    model = make_model(options)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    seconds = {}
    for kind in OPTIMIZERS:
        optimizer, times = torch_gpt.new_optimizer(model, kind, lr=LEARNING_RATE), []
        for _ in range(4):
            start = time.perf_counter()
            optimizer.step()
            times.append(time.perf_counter() - start)
        seconds[kind] = statistics.median(times[1:])
        del optimizer
    return seconds


def answer(value):
    print(json.dumps(value), flush=True)


def serve(options):
    training = Training(options)
    answer({"version": torch.__version__, "threads": torch.get_num_threads(),
            "parameters": sum(p.numel() for p in training.model.parameters()),
            "library_bytes": torch_gpt.RSS_AFTER_IMPORT})
    for line in sys.stdin:
        answer(training.kept() if line.strip() == "kept" else training.steps(int(line)))


def main():
    parser = argparse.ArgumentParser(description="take steps of a training with PyTorch")
    parser.add_argument("--model", choices=["gpt", "bert", "llama"], default="gpt")
    parser.add_argument("--folder", help="train the model in this folder with transformers, instead of a new one")
    parser.add_argument("--lora", type=int, default=0, help="train peft's branches of this rank, instead of the model")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--vocab", type=int, default=50257)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--context", type=int, default=256, help="tokens per sequence")
    parser.add_argument("--dtype", choices=["f32", "bf16", "pure-bf16"], default="f32", help="bf16: autocast")
    parser.add_argument("--checkpoint", choices=["none", "selective", "full"], default="none")
    parser.add_argument("--compile", action="store_true", help="through torch.compile")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="default")
    parser.add_argument("--choose-optimizer", action="store_true", help="print the seconds of each AdamW and exit")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.choose_optimizer:
        answer(choose_optimizer(options))
    else:
        serve(options)


if __name__ == "__main__":
    main()
