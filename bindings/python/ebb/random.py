"""Random numbers by the names of torch.random."""
import contextlib
from typing import Any, Iterator

from ebb import (get_rng_state as get_rng_state, initial_seed as initial_seed, manual_seed as manual_seed,
                 set_rng_state as set_rng_state)
from ebb._advice import advise_in


@contextlib.contextmanager
def fork_rng(devices: Any = None, enabled: bool = True) -> Iterator[None]:
    """What is drawn inside does not change what is drawn behind."""
    state = get_rng_state()
    try:
        yield
    finally:
        if enabled:
            set_rng_state(state)


__path__: "list[str]" = []  # so that a from … import asks for advice, as ebb's finder gives it


def __getattr__(name: str) -> Any:
    return advise_in("random", name)
