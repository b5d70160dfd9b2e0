#!/usr/bin/python3
"""README.md's program in Python: ten steps of a small GPT whose blocks are checkpointed."""
import gi

gi.require_version("Ebb", "1.0")
from gi.repository import Ebb

Ebb.manual_seed(1)
model = Ebb.Gpt(Ebb.GptConfig.new_preset("tiny"))
Ebb.checkpoint_wrap_each(model, Ebb.TransformerBlock)     # try policy="selective", or store=Ebb.DiskStore("/var/tmp")

optimizer = Ebb.AdamW(model, 3e-4)
text = Ebb.tensor([[1, 2, 3, 4, 5, 6, 7, 8, 9]], dtype=Ebb.int64)

for step in range(10):
    loss = model.loss(text[:, :-1], text[:, 1:])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"loss {loss.item():g}")

print(Ebb.checkpoint_report(model))
