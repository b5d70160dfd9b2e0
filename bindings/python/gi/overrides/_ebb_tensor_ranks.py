"""Models whose layers several ranks share: plans, the functions that others have for it, and their random numbers."""
import contextlib

from gi.module import get_introspection_module
from gi.overrides import override
from gi.overrides._ebb_checkpointing import to_json, to_mpu
from gi.overrides._ebb_construct import add_attributes
from gi.overrides._ebb_errors import guard
from gi.overrides._ebb_functions import choice
from gi.overrides._ebb_options import Options
from gi.overrides._ebb_wrap import _check_module

Ebb = get_introspection_module("Ebb")

__all__ = ["initialize", "model_parallel_manual_seed", "parallel_attention", "parallel_copy", "parallel_gather",
           "parallel_mlp", "parallel_reduce", "parallel_reduce_scatter", "parallel_scatter", "parallelize",
           "recompute_configure"]

MODEL_PARALLEL_RNG = "model-parallel-rng"


def _check_group(function, group):
    if group is not None and not isinstance(group, Ebb.ProcessGroup):
        raise TypeError(f"{function}(): group is {group!r}: it must be an ebb.ProcessGroup, or None for the default "
                        "one")


# -- layers ------------------------------------------------------------------------------------------------------------

_parallelize = guard(Ebb.parallelize)
_add = guard(Ebb.ParallelPlan.add)


_STYLES = ("column", "column_qkv", "column_gathered", "row", "row_scattered", "vocab", "parameter", "attention",
           "sequence")


def _check_pattern(pattern):
    if not isinstance(pattern, str):
        raise TypeError(f"parallelize(): the plan's pattern {pattern!r} must be a str, as \"h.*.mlp.c_fc\"")
    return pattern


def _to_style(pattern, style):
    if isinstance(style, Ebb.ParallelStyle):
        return style
    known = f"it must be one of {', '.join(map(repr, _STYLES))}, or of ebb.ParallelStyle"
    if not isinstance(style, str):
        raise TypeError(f"parallelize(): the plan's style for {pattern!r} is {style!r}: {known}")
    if style.replace("-", "_") not in _STYLES:
        raise ValueError(f"parallelize(): the plan's style for {pattern!r} is {style!r}, which is no ParallelStyle: "
                         f"{known}")
    return choice(Ebb.ParallelStyle, style)


def _to_plan(plan):
    if plan is None or isinstance(plan, Ebb.ParallelPlan):
        return plan
    if not isinstance(plan, dict):
        raise TypeError(f"parallelize(): plan is {plan!r}: it must be an ebb.ParallelPlan, a dict of patterns and "
                        "styles, as {\"h.*.mlp.c_fc\": \"column\"}, or None for that of ebb.Gpt and ebb.Bert")
    made = Ebb.ParallelPlan.new()
    for pattern, style in plan.items():
        _add(made, _check_pattern(pattern), _to_style(pattern, style))
    return made


_parallel_options = Options(Ebb.ParallelOptions, converters={"plan": _to_plan})


@_parallel_options.show
def parallelize(module, group=None, **options):
    """Has the ranks of a group share the layers of a module, in place; returns the same module.

    group: None for ebb.ProcessGroup.get_default(). sequence_parallel: they also share norms, dropout and what blocks
    hand on, by tokens. plan: which layers are divided, and how: an ebb.ParallelPlan, or a dict of patterns of names and
    styles; None for that of an ebb.Gpt or ebb.Bert. synchronize_weights: all begin with the weights of rank 0.
    options: an ebb.ParallelOptions in place of all others.
    """
    _check_module("parallelize", "module", module)
    _check_group("parallelize", group)
    _parallelize(module, group, _parallel_options.make("parallelize", options))
    return module


_attention, _mlp = guard(Ebb.parallel_attention_new), guard(Ebb.parallel_mlp_new)


def parallel_attention(width, heads, dropout=0.0, causal=False, group=None):
    """An ebb.MultiHeadAttention whose heads the ranks of a group share."""
    _check_group("parallel_attention", group)
    return _attention(width, heads, dropout, causal, group)


def parallel_mlp(width, hidden, activation="gelu", group=None):
    """An ebb.Mlp whose hidden values the ranks of a group share."""
    _check_group("parallel_mlp", group)
    return _mlp(width, hidden, choice(Ebb.Activation, activation), group)


# -- collectives that gradients go through -----------------------------------------------------------------------------

_copy, _reduce = guard(Ebb.parallel_copy), guard(Ebb.parallel_reduce)
_scatter, _reduce_scatter = guard(Ebb.parallel_scatter), guard(Ebb.parallel_reduce_scatter)
_gather = guard(Ebb.parallel_gather)


def _or_default(function, group):
    _check_group(function, group)
    return group if group is not None else Ebb.ProcessGroup.get_default()


def parallel_copy(x, group=None):
    """The tensor itself; its gradient is the sum of all ranks'."""
    return _copy(x, _or_default("parallel_copy", group))


def parallel_reduce(x, group=None):
    """The sum of all ranks' tensors; each gets its gradient."""
    return _reduce(x, _or_default("parallel_reduce", group))


def parallel_scatter(x, dim, group=None):
    """This rank's part of a dimension; the gradients are gathered."""
    return _scatter(x, dim, _or_default("parallel_scatter", group))


def parallel_gather(x, dim, group=None, *, sum_gradient=False):
    """All ranks' parts of a dimension; each gets its part of its own gradient, or of the sum of all ranks'."""
    return _gather(x, dim, sum_gradient, _or_default("parallel_gather", group))


def parallel_reduce_scatter(x, dim, group=None):
    """This rank's part, along a dimension, of the sum of all ranks' tensors; the gradients are gathered."""
    return _reduce_scatter(x, dim, _or_default("parallel_reduce_scatter", group))


# -- other systems' configurations -------------------------------------------------------------------------------------

_initialize = guard(Ebb.initialize)
_recompute_configure = guard(Ebb.recompute_configure)


def initialize(model, config):
    """OSLO's: tensor parallelism and activation checkpointing as a configuration says; returns the same model.

    config: a dict, the text of a JSON object, or the path of a file.
    """
    _check_module("initialize", "model", model)
    _initialize(model, to_json("initialize", config))
    return model


def recompute_configure(model, config, mpu=None):
    """Megatron-LM's: recompute_granularity, recompute_method, recompute_num_layers and distribute_saved_activations.

    config: a dict, the text of a JSON object, or the path of a file. mpu: what knows the ranks that share the model, as
    checkpointing_configure() takes it. Returns the same model.
    """
    _check_module("recompute_configure", "model", model)
    _recompute_configure(model, to_json("recompute_configure", config), to_mpu(mpu, "recompute_configure"))
    return model


# -- random numbers ----------------------------------------------------------------------------------------------------

_fork, _join = guard(Ebb.GeneratorTracker.fork), Ebb.GeneratorTracker.join
_manual_seed = guard(Ebb.model_parallel_manual_seed)


def model_parallel_manual_seed(seed, mpu=None):
    """Seeds what the ranks that share a model draw alike, and, differently on each, the tracker's "model-parallel-rng".

    The first differs between models, the second does not. mpu: what knows the ranks that share the model, as
    checkpointing_configure() takes it; None for those that parallelize(), initialize() or an ebb.Mesh has made known.
    """
    return _manual_seed(seed, to_mpu(mpu, "model_parallel_manual_seed"))


@override
class GeneratorTracker(Ebb.GeneratorTracker):
    """Named generators; `with ebb.GeneratorTracker.get_default().fork():` draws from one of them."""
    __module__ = "gi.overrides.Ebb"

    @contextlib.contextmanager
    def fork(self, name=MODEL_PARALLEL_RNG):
        """This thread draws from the named generator inside."""
        _fork(self, name)
        try:
            yield self.get_generator(name)
        finally:
            _join(self)


add_attributes(GeneratorTracker)
