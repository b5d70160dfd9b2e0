"""The keywords that stand for the options of a C class, read from its properties; and the policies of checkpoints."""
import inspect

from gi.module import get_introspection_module
from gi.overrides._ebb_check import check_property, enum_default, suggest_before
from gi.overrides._ebb_errors import call_back, guard
from gi.repository import GObject

Ebb = get_introspection_module("Ebb")


class Options:
    """The keywords of functions that take options of a class: its properties, and more that a function sets.

    setters: by name, what is called with the options and the value. converters: by the name of a property, what makes
    a value that it takes of one that Python's users write. copy: copies options, where keywords may be given with them.
    hints: by the name that another library has for an option, what to write here.
    """

    def __init__(self, kind, setters=(), converters=(), copy=None, hints=()):
        self.copy, self.hints = copy, dict(hints)
        self.kind, self.setters, self.converters = kind, dict(setters), dict(converters)
        self.specs = {spec.name.replace("-", "_"): spec for spec in kind.list_properties()}
        self.defaults = {**{name: _get_default(spec) for name, spec in self.specs.items()},
                         **dict.fromkeys([*self.setters, "options"])}

    def show(self, function):
        """Shows the options in the signature of a function that hands its keywords to make()."""
        signature = inspect.signature(function)
        named = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        options = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
                   for name, default in self.defaults.items() if name not in [p.name for p in named]]
        function.__signature__ = signature.replace(parameters=named + options)
        return function

    def make(self, function, given):
        """The C options for the keywords that a function, of that name, was given."""
        for name in given:
            if name not in self.defaults:
                options = f"its options are {', '.join(self.defaults)}"
                raise TypeError(f"{function}() has no option {name!r}: "
                                + (self.hints.get(name) or suggest_before(name, self.defaults, options)))
        options = self.kind.new() if given.get("options") is None else self._take(function, given)
        if options is given.get("options"):
            return options
        for name, value in given.items():
            if name in self.specs:
                value = self.converters[name](value) if name in self.converters else value
                spec = self.specs[name]
                options.set_property(spec.name, check_property(f"{function}(): {name}", spec, value))
            elif value is not None and name != "options":
                self.setters[name](options, value)
        return options

    def _take(self, function, given):
        if not isinstance(given["options"], self.kind):
            raise TypeError(f"{function}(): options is {given['options']!r}: must be an ebb.{self.kind.__name__}")
        others = [name for name in given if name != "options"]
        if self.copy is not None:
            return self.copy(given["options"])
        if others:
            raise ValueError(f"{function}(): options and {others[0]}: options are all there is, leave one of both out")
        return given["options"]


def _get_default(spec):
    if spec.value_type.is_a(GObject.TYPE_ENUM):
        return enum_default(spec)
    return None if spec.value_type.is_a(GObject.TYPE_OBJECT) or spec.value_type.is_a(GObject.TYPE_BOXED) \
        else spec.default_value


# -- checkpoints -------------------------------------------------------------------------------------------------------

def _check_store(store):
    if store is not None and not isinstance(store, Ebb.SavedTensorHooks):
        raise TypeError(f"store: {store!r}: must be an ebb.SavedTensorHooks, as are ebb.HostStore(), "
                        "ebb.DiskStore(\"/tmp\"), ebb.saved_tensor_hooks(pack, unpack) and objects of your own class")
    return store


def _set_recompute_func(options, on_recompute):
    if not callable(on_recompute):
        raise TypeError(f"on_recompute: {on_recompute!r}: must be a function of (module, phase)")
    phases = {Ebb.RecomputePhase.BEGIN: "begin", Ebb.RecomputePhase.END: "end"}

    def announce(module, phase):
        on_recompute(module, phases[phase])
        return True

    options.set_recompute_func(lambda module, phase, *_: call_back(announce, module, phase))


def make_options(function, given):
    """The checkpoint options for keywords."""
    if given.get("store") is not None and given.get("offload_to_cpu"):
        _check_store(given["store"])
        raise ValueError("store and offload_to_cpu=True: the inputs can go to one place only, leave one of both out")
    return CHECKPOINT_OPTIONS.make(function, given)


_named_policies = {
    "selective": Ebb.CheckpointOptions.set_policy_selective,
    "attention": Ebb.CheckpointOptions.set_policy_core_attention,
    "core_attn": Ebb.CheckpointOptions.set_policy_core_attention,  # as Megatron-LM has it
}
_policy_choices = ("\"selective\", \"attention\", a list of op names, save_nth_product(n), or a function of "
                   "(op, ordinal, n_bytes) that returns a CheckpointPolicy")
_verdicts = "MUST_SAVE, PREFER_SAVE, PREFER_RECOMPUTE or MUST_RECOMPUTE"


class _NthProduct:
    def __init__(self, n):
        self.n = n

    def __repr__(self):
        return f"save_nth_product({self.n})"


def save_nth_product(n):
    """A checkpoint policy: keeps the result of every n-th matrix product and recomputes all else."""
    if not isinstance(n, int) or isinstance(n, bool):
        raise TypeError(f"save_nth_product: n must be a number of products, not {n!r}")
    if not 1 <= n < 2**32:
        raise ValueError(f"save_nth_product: n is {n}: it must be at least 1")
    return _NthProduct(n)


def _set_policy(options, policy):
    if isinstance(policy, str):
        if policy not in _named_policies:
            raise ValueError(f"policy: {policy!r}: must be {_policy_choices}")
        _named_policies[policy](options)
    elif isinstance(policy, _NthProduct):
        _set_policy_save_nth_product(options, policy.n)
    elif isinstance(policy, (list, tuple, set, frozenset)):
        for name in policy:
            if not isinstance(name, str):
                raise TypeError(f"policy: {name!r} among the op names: must be a string")
        _set_policy_save_ops(options, sorted(policy))
    elif policy is save_nth_product:
        raise TypeError("policy: save_nth_product without its number: write save_nth_product(2)")
    elif callable(policy):
        _set_policy_function(options, policy)
    else:
        raise TypeError(f"policy: {policy!r}: must be {_policy_choices}")


def _set_policy_function(options, policy):
    def decide(op, ordinal, n_bytes):
        verdict = policy(op, ordinal, n_bytes)
        if not isinstance(verdict, Ebb.CheckpointPolicy):
            raise TypeError(f"policy: {verdict!r} for {op!r}: must be an ebb.CheckpointPolicy: {_verdicts}")
        return verdict

    options.set_policy(lambda *args: call_back(decide, *args[:3]))


_set_policy_save_ops = guard(Ebb.CheckpointOptions.set_policy_save_ops)
_set_policy_save_nth_product = guard(Ebb.CheckpointOptions.set_policy_save_nth_product)

CHECKPOINT_OPTIONS = Options(
    Ebb.CheckpointOptions, {"policy": _set_policy, "on_recompute": _set_recompute_func},
    {"store": _check_store,
     "determinism_check": lambda value: Ebb.DeterminismCheck.NONE if value is None else value})
takes_options = CHECKPOINT_OPTIONS.show
