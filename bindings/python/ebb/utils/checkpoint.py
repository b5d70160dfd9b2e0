"""Checkpoints by the names and arguments of torch.utils.checkpoint, which all do what use_reentrant=False does."""
from typing import Any, Callable

import ebb
from ebb import CheckpointPolicy as CheckpointPolicy
from ebb._advice import advise_in


def checkpoint(function: Callable[..., Any], *args: Any, use_reentrant: Any = None, preserve_rng_state: bool = True,
               determinism_check: Any = "default", early_stop: bool = True, debug: bool = False,
               context_fn: Any = None, **kwargs: Any) -> Any:
    """Calls function(*args, **kwargs) and computes what is inside once more in backward."""
    if context_fn is not None:
        raise TypeError("checkpoint(): there is no context_fn: write "
                        "ebb.checkpoint_with(policy=[\"matmul\"])(function, x)")
    with_options = ebb.checkpoint_with(preserve_rng_state=preserve_rng_state, determinism_check=determinism_check,
                                       early_stop=early_stop)
    return with_options(function, *args, **kwargs)


def checkpoint_sequential(functions: Any, segments: int, input: Any, use_reentrant: Any = None,
                          preserve_rng_state: bool = True) -> Any:
    """Calls modules or functions one after the other in segments; the last one is not checkpointed."""
    if isinstance(functions, ebb.Sequential):
        return ebb.checkpoint_sequential(functions, segments, input, preserve_rng_state=preserve_rng_state)
    functions = list(functions)
    size = len(functions) // segments

    def run(first: int, end: int) -> Callable[[Any], Any]:
        def call(value: Any) -> Any:
            for function in functions[first:end]:
                value = function(value)
            return value

        return call

    for i in range(segments - 1):
        input = checkpoint(run(i * size, (i + 1) * size), input, preserve_rng_state=preserve_rng_state)
    return run((segments - 1) * size, len(functions))(input)


def set_checkpoint_early_stop(enable: bool) -> None:
    """There is no switch for all checkpoints."""
    raise TypeError("set_checkpoint_early_stop(): write checkpoint(function, x, early_stop=False)")


def create_selective_checkpoint_contexts(*_: Any) -> None:
    """There are no contexts: a policy is an option."""
    raise TypeError("create_selective_checkpoint_contexts(): write "
                    "ebb.checkpoint_with(policy=[\"matmul\"])(function, x)")


__path__: "list[str]" = []  # so that a from … import asks for advice, as ebb's finder gives it


def __getattr__(name: str) -> Any:
    return advise_in("utils.checkpoint", name)
