#!/usr/bin/python3
"""README.md's program in Python: ten steps of a small GPT whose blocks are checkpointed."""
import ebb

ebb.manual_seed(1)
model = ebb.Gpt(ebb.GptConfig.new_preset("tiny"))
ebb.checkpoint_wrap_each(model, ebb.TransformerBlock)     # try policy="selective", or store=ebb.DiskStore("/var/tmp")

optimizer = ebb.AdamW(model, 3e-4)
text = ebb.tensor([[1, 2, 3, 4, 5, 6, 7, 8, 9]], dtype=ebb.int64)

for step in range(10):
    loss = model.loss(text[:, :-1], text[:, 1:])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"loss {loss.item():g}")

print(ebb.checkpoint_report(model))
