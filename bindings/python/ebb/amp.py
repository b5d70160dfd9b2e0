"""Lower precision by the names of torch.amp."""
from typing import Any

from ebb import autocast as autocast, is_autocast_enabled as is_autocast_enabled
from ebb._advice import advise_in


class GradScaler:
    """Takes enabled=False: bf16 needs no scale."""

    def __init__(self, device: Any = "cuda", init_scale: float = 65536.0, growth_factor: float = 2.0,
                 backoff_factor: float = 0.5, growth_interval: int = 2000, enabled: bool = True) -> None:
        if enabled:
            raise RuntimeError("GradScaler(): bf16 needs none: write enabled=False, or loss.backward() and "
                               "optimizer.step()")

    def scale(self, outputs: Any) -> Any:
        """The loss as it is."""
        return outputs

    def unscale_(self, optimizer: Any) -> None:
        """Nothing: gradients have no scale."""

    def step(self, optimizer: Any, *args: Any) -> Any:
        """optimizer.step()."""
        return optimizer.step(*args)

    def update(self, new_scale: Any = None) -> None:
        """Nothing: there is no scale."""

    def get_scale(self) -> float:
        return 1.0

    def is_enabled(self) -> bool:
        return False

    def state_dict(self) -> "dict[str, Any]":
        return {}

    def load_state_dict(self, state_dict: Any) -> None:
        pass


__path__: "list[str]" = []  # so that a from … import asks for advice, as ebb's finder gives it


def __getattr__(name: str) -> Any:
    return advise_in("amp", name)
