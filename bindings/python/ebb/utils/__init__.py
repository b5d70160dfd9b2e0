"""The namespaces of torch.utils."""
from typing import Any

from ebb._advice import advise_in
from ebb.utils import checkpoint as checkpoint, data as data


def __getattr__(name: str) -> Any:
    return advise_in("utils", name)
