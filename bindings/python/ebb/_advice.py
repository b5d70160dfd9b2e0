"""The error for a name that a namespace lacks: what to write, as the package's own names have it."""
import importlib
import sys
from types import ModuleType
from typing import Any

from gi.overrides._ebb_check import suggest_attribute  # type: ignore[import-untyped,import-not-found]
from gi.overrides._ebb_compose import advise_on_tensor  # type: ignore[import-untyped,import-not-found]

# The namespaces of PyTorch in which a missing name is looked for.
SPACES = ("nn", "nn.functional", "nn.init", "nn.utils", "optim", "optim.lr_scheduler", "utils.data",
          "utils.checkpoint", "distributed", "autograd", "amp", "linalg", "random", "compat")


def find_space(name: str) -> str:
    """The first namespace that has the name, as "nn.functional"; "" if no namespace has it."""
    if name == "F":
        return "ebb.nn.functional"
    for space in SPACES:
        value = vars(importlib.import_module(f"ebb.{space}")).get(name)
        home = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", "")
        if not name.startswith("_") and home.startswith("ebb."):
            return f"ebb.{space}.{name}"
    return ""


def advise_in(space: str, name: str) -> Any:
    """Raises the AttributeError for a name that a namespace does not have."""
    ebb: Any = importlib.import_module("ebb")
    if name.startswith("__"):
        raise AttributeError(name)
    found = "" if f"{space}.{name}" in _OWN_ADVICE else find_space(name)
    advice = f"write {found}" if found else _OWN_ADVICE.get(
        f"{space}.{name}") or ebb._ADVICE.get(name) or advise_on_tensor(name)
    if not advice and hasattr(ebb, name):
        advice = f"write ebb.{name}"
    near = suggest_attribute(name, vars(sys.modules[f"ebb.{space}"]))
    raise AttributeError(f"ebb.{space} has no {name!r}: " + (
        advice or f"{near} {_NOTHING.get(space, _NOTHING[''])}".lstrip()))


# What to write for names that elsewhere mean something else.
_OWN_ADVICE = {"distributed.tensor": "write ebb.parallelize(model, group, plan={\"h.*.mlp.c_fc\": \"column\"})",
               "distributed.checkpoint": "write ebb.TrainingState(model, optimizer).save_sharded(folder, step)",
               "autograd.functional": "write ebb.grad(outputs, inputs)", "nn.attention": "write ebb.attention()",
               **dict.fromkeys(("nn.modules", "nn.parameter"), "write from ebb import nn"),
               **dict.fromkeys(("optim.adamw", "optim.adam", "optim.sgd"), "write from ebb import optim"),
               "utils.data.distributed": "write from ebb.utils.data import DistributedSampler"}

# What to do where nothing stands for a name.
_NOTHING = {"distributed": "write ebb.init_process_group(), whose groups have rank, size, all_gather() and the others",
            "": "there is nothing like it: compose ops instead",
            "nn": "there is no such layer: compose ebb.Linear and functions in a forward() instead",
            "optim": "there is no such optimizer: write ebb.optim.AdamW, Adam, or SGD",
            "optim.lr_scheduler": "there is no such schedule: write LambdaLR(optimizer, function)"}
