#!/usr/bin/python3
"""Trains a tiny GPT, byte by byte, with checkpointed blocks, and samples from it.

    tiny_gpt.py [FILE] [STEPS]

Without a file it reads its own source. From a build folder that is not installed:

    PYTHONPATH=bindings/python /usr/bin/python3 examples/python/tiny_gpt.py
"""
import sys

import ebb

CONTEXT = 64


def make_model():
    config = ebb.GptConfig.new()
    config.vocab = 256
    config.context = CONTEXT
    config.width = 64
    config.heads = 4
    config.layers = 4
    config.dropout = 0.1
    return ebb.Gpt(config)


def main(path=__file__, steps="60"):
    ebb.manual_seed(1)
    tokenizer = ebb.ByteTokenizer()
    text = ebb.TextDataset([path], tokenizer, 1)
    model = make_model()
    ebb.checkpoint_wrap_each(model, ebb.TransformerBlock)
    optimizer = ebb.AdamW(model, 3e-3)
    optimizer.exclude_from_decay()
    print(f"{model.count_parameters()} parameters, {text.get_n_tokens()} bytes of text")

    for step in range(1, int(steps) + 1):
        tokens, targets = text.get_batch(8, CONTEXT)
        loss = ebb.cross_entropy(model(tokens).reshape(-1, 256), targets.reshape(-1))
        loss.backward()
        gradient = model.parameters()[0].grad.numpy()  # the memory of the gradient itself
        if step % 10 == 0 or step == 1:
            peak = ebb.memory_stats()["activation"]["peak"] / 1e6
            print(f"step {step:3}  loss {loss.item():.4f}  largest gradient of an embedding {abs(gradient).max():.2e}  "
                  f"activations at most {peak:.2f} MB")
        del gradient
        optimizer.clip_grad_norm(1.0)
        optimizer.step()
        optimizer.zero_grad()

    model.eval()
    prompt = "import "
    sample = model.generate(prompt, max_tokens=120, temperature=0.8, top_k=40, slides=True, tokenizer=tokenizer)
    print(prompt + sample.texts[0])


if __name__ == "__main__":
    main(*sys.argv[1:])
