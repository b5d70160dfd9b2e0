"""What PyTorch's programs ask of torch.cuda, for imports of it."""
from typing import Any

from ebb import amp as amp
from ebb import cuda as _cuda


def __getattr__(name: str) -> Any:
    return getattr(_cuda, name)
