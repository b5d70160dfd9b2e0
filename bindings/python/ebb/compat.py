"""Names of DeepSpeed, FairScale, OneFlow, and OSLO for what Ebb has under another name."""
import contextlib
from typing import Any, Callable, Iterator

import ebb
from ebb import GeneratorTracker, Module
from ebb._advice import advise_in

# -- DeepSpeed and Megatron-LM -----------------------------------------------------------------------------------------

CudaRNGStatesTracker = GeneratorTracker


def get_cuda_rng_tracker() -> GeneratorTracker:
    """This thread's named generators."""
    return GeneratorTracker.get_default()


def model_parallel_cuda_manual_seed(seed: int, mpu: Any = None) -> None:
    """ebb.model_parallel_manual_seed()."""
    ebb.model_parallel_manual_seed(seed, mpu)


class CheckpointFunction:
    """DeepSpeed's checkpoint as a function: apply(function, outputs, *args) also appends what it returns to outputs."""

    @staticmethod
    def apply(run_function: Callable[..., Any], all_outputs: "list[Any]", *args: Any) -> Any:
        outputs = ebb.checkpointing_checkpoint(run_function, *args)
        all_outputs.extend(outputs if isinstance(outputs, (tuple, list)) else [outputs])
        return outputs


# -- FairScale ---------------------------------------------------------------------------------------------------------

_wrapping: "list[tuple[Any, dict[str, Any]]]" = []  # what enable_wrap() has set, the innermost last


@contextlib.contextmanager
def enable_wrap(auto_wrap_policy: Any = None, *, wrapper_cls: Any = None, **wrapper_kwargs: Any) -> Iterator[None]:
    """wrap() and auto_wrap() wrap inside, by wrapper_cls(module, **wrapper_kwargs): ebb.fully_shard without one."""
    options = {"auto_wrap_policy": auto_wrap_policy, **wrapper_kwargs}
    _wrapping.append((ebb.fully_shard if wrapper_cls is None else wrapper_cls, options))
    try:
        yield
    finally:
        _wrapping.pop()


def wrap(module: Module, **wrap_overrides: Any) -> Module:
    """The module, wrapped inside enable_wrap()."""
    if not _wrapping:
        return module
    wrapper, options = _wrapping[-1]
    options = {**options, **wrap_overrides}
    options.pop("auto_wrap_policy")
    wrapper(module, **options)
    return module


def auto_wrap(module: Module, auto_wrap_policy: Any = None, **kwargs: Any) -> Module:
    """Wraps, inside enable_wrap(), what a policy picks below a module, and the module itself: policy(module, recurse,
    unwrapped_params), which without one takes modules of 100 million parameters that are not in one already."""
    if _wrapping:
        policy = auto_wrap_policy or _wrapping[-1][1]["auto_wrap_policy"] or _is_large
        _wrap_below(module, policy, kwargs)
    return module


def _is_large(module: Module, recurse: bool, unwrapped_params: int) -> bool:
    return unwrapped_params >= 100_000_000 and (recurse or not isinstance(module, (ebb.ModuleList, ebb.Embedding)))


def _wrap_below(module: Module, policy: Any, options: "dict[str, Any]") -> int:
    """Returns how many parameters are wrapped now."""
    n = sum(parameter.numel() for parameter in module.parameters())
    if not policy(module=module, recurse=True, unwrapped_params=n):
        return 0
    wrapped = sum(_wrap_below(child, policy, options) for child in module.children())
    if policy(module=module, recurse=False, unwrapped_params=n - wrapped):
        wrap(module, **options)
        return n
    return wrapped


def patch_batchnorm(module: Module) -> "list[Any]":
    """Nothing to patch: a recompute leaves the running statistics of ebb.BatchNorm1d as they are."""
    return []


# -- OneFlow -----------------------------------------------------------------------------------------------------------

class Graph(Module):
    """OneFlow's nn.Graph: build() computes and calls backward(); then the optimizers of add_optimizer() step."""

    def __init__(self) -> None:
        super().__init__()
        self.graph_optimizers: "list[tuple[Any, Any]]" = []

    def add_optimizer(self, optim: Any, *, lr_sch: Any = None) -> None:
        """Has an optimizer, and its schedule, step after each build()."""
        self.graph_optimizers.append((optim, lr_sch))

    def build(self, *args: Any, **kwargs: Any) -> Any:
        """What a graph computes: a class of your own has one."""
        raise NotImplementedError(f"{type(self).__name__} has no build(): write one that calls backward()")

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        results = self.build(*args, **kwargs)
        for optimizer, schedule in self.graph_optimizers:
            optimizer.step()
            optimizer.zero_grad()
            if schedule is not None:
                schedule.step()
        return results


__path__: "list[str]" = []  # so that a from … import asks for advice, as ebb's finder gives it


def __getattr__(name: str) -> Any:
    return advise_in("compat", name)
