"""The options of a checkpoint: what Python calls them, what each may be, and the policies."""
import inspect

from gi.module import get_introspection_module
from gi.overrides._ebb_errors import call_back, guard

Ebb = get_introspection_module("Ebb")

DEFAULTS = {"offload_to_cpu": False, "preserve_rng_state": True, "determinism_check": "default", "early_stop": True,
            "policy": None, "store": None, "retain_recomputed": False, "on_recompute": None, "synchronize": False,
            "profile": False, "options": None}
_SWITCHES = ("offload_to_cpu", "preserve_rng_state", "early_stop", "retain_recomputed", "synchronize", "profile")


def takes_options(function):
    """Shows the options in the signature of a function that hands its keywords to make_options()."""
    signature = inspect.signature(function)
    named = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    options = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
               for name, default in DEFAULTS.items() if name not in [p.name for p in named]]
    function.__signature__ = signature.replace(parameters=named + options)
    return function


def make_options(function, given):
    """The C options for the keywords that a function, of that name, was given."""
    for name in given:
        if name not in DEFAULTS:
            raise TypeError(f"{function}() has no option {name!r}: its options are {', '.join(DEFAULTS)}")
    values = {**DEFAULTS, **given}
    if values["options"] is not None:
        return _take_options(values["options"], given)
    options = Ebb.CheckpointOptions.new()
    for name in _SWITCHES:
        if not isinstance(values[name], bool):
            raise TypeError(f"{name}: {values[name]!r}: must be True or False")
        getattr(options, f"set_{name}")(values[name])
    options.set_determinism_check(_to_determinism_check(values["determinism_check"]))
    if values["policy"] is not None:
        _set_policy(options, values["policy"])
    if values["store"] is not None:
        _set_store(options, values["store"], values["offload_to_cpu"])
    if values["on_recompute"] is not None:
        _set_recompute_func(options, values["on_recompute"])
    return options


def _take_options(options, given):
    if not isinstance(options, Ebb.CheckpointOptions):
        raise TypeError(f"options: {options!r}: must be an Ebb.CheckpointOptions, as "
                        "Ebb.checkpointing_get_options() gives them")
    others = [name for name in given if name != "options"]
    if others:
        raise ValueError(f"options and {others[0]}: options are all there is, leave one of both out")
    return options


def _to_determinism_check(value):
    if value is None:
        return Ebb.DeterminismCheck.NONE
    if isinstance(value, Ebb.DeterminismCheck):
        return value
    names = {"none": Ebb.DeterminismCheck.NONE, "default": Ebb.DeterminismCheck.DEFAULT,
             "values": Ebb.DeterminismCheck.VALUES}
    if isinstance(value, str) and value in names:
        return names[value]
    raise (ValueError if isinstance(value, str) else TypeError)(
        f"determinism_check: {value!r}: must be \"none\", \"default\" or \"values\"")


def _set_store(options, store, offload_to_cpu):
    if not isinstance(store, Ebb.SavedTensorHooks):
        raise TypeError(f"store: {store!r}: must be an Ebb.SavedTensorHooks, as are Ebb.HostStore(), "
                        "Ebb.DiskStore(\"/tmp\"), Ebb.saved_tensor_hooks(pack, unpack) and objects of your own class")
    if offload_to_cpu:
        raise ValueError("store and offload_to_cpu=True: the inputs can go to one place only, leave one of both out")
    options.set_store(store)


def _set_recompute_func(options, on_recompute):
    if not callable(on_recompute):
        raise TypeError(f"on_recompute: {on_recompute!r}: must be a function of (module, phase)")
    phases = {Ebb.RecomputePhase.BEGIN: "begin", Ebb.RecomputePhase.END: "end"}

    def announce(module, phase):
        on_recompute(module, phases[phase])
        return True

    options.set_recompute_func(lambda module, phase, *_: call_back(announce, module, phase))


# -- policies ---------------------------------------------------------------------------------------------------------

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
            raise TypeError(f"policy: {verdict!r} for {op!r}: must be an Ebb.CheckpointPolicy: {_verdicts}")
        return verdict

    options.set_policy(lambda *args: call_back(decide, *args[:3]))


_set_policy_save_ops = guard(Ebb.CheckpointOptions.set_policy_save_ops)
_set_policy_save_nth_product = guard(Ebb.CheckpointOptions.set_policy_save_nth_product)
