"""Optimizers by the names of torch.optim."""
from typing import Any

from ebb import Adam as Adam, AdamW as AdamW, Optimizer as Optimizer, SGD as SGD
from ebb._advice import advise_in
from ebb.optim import lr_scheduler as lr_scheduler


def __getattr__(name: str) -> Any:
    return advise_in("optim", name)
