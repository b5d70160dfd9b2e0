"""Optimizers as PyTorch's users make them: over a module, a list of parameters, or a list of groups."""
import inspect
import numbers

from gi.module import get_introspection_module
from gi.overrides._ebb_check import show
from gi.overrides._ebb_construct import (HARMLESS_TO_OPTIMIZERS, add_attributes, c_class, construct, has_property,
                                         is_harmless, name_arguments, refuse_argument)
from gi.overrides._ebb_docs import describe_constructor
from gi.overrides._ebb_errors import BadValue, guard
from gi.repository import GObject

Ebb = get_introspection_module("Ebb")

_ADAM = ("params", "lr", "betas", "eps", "weight_decay")
_NAMES = {"AdamW": _ADAM, "Adam": _ADAM,
          "SGD": ("params", "lr", "momentum", "dampening", "weight_decay", "nesterov")}
_GROUP_KEYS = ("params", "lr", "weight_decay")

_add_parameters = guard(Ebb.Optimizer.add_parameters)
_set_option = guard(Ebb.Optimizer.set_option)


def _list_parameters(label, value):
    if isinstance(value, (str, Ebb.Tensor)) or not hasattr(value, "__iter__"):
        kind = "a tensor" if isinstance(value, Ebb.Tensor) else show(value)
        raise TypeError(f"{label} is {kind}: it must be a module, a list of parameters or a list of groups, "
                        "as [{\"params\": [weight], \"lr\": 1e-3}]")
    return list(value)


def _check_tensors(label, values):
    for index, value in enumerate(values):
        if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], Ebb.Tensor):
            raise TypeError(f"{label}: item {index} is a name and a parameter: write module.parameters()")
        if not isinstance(value, Ebb.Tensor):
            raise TypeError(f"{label}: item {index} is {show(value)}: it must be a tensor")
    return values


def _check_group(label, group):
    for key in group:
        if key not in _GROUP_KEYS:
            raise ValueError(f"{label} has {key!r}: a group has {', '.join(_GROUP_KEYS)}; the rest is the optimizer's")
    if "params" not in group:
        raise ValueError(f"{label} has no \"params\"")
    params = group["params"]
    if isinstance(params, Ebb.Tensor):
        params = [params]
    elif isinstance(params, Ebb.Module):
        params = params.get_parameters(True)
    rates = {}
    for key in ("lr", "weight_decay"):
        value = group.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, numbers.Real)
                                  or not 0 <= value < float("inf")):
            raise (TypeError if not isinstance(value, numbers.Real) else ValueError)(
                f"{label}: {key} is {show(value)}: must be a number of 0 or more")
        rates[key] = -1.0 if value is None else float(value)
    return _check_tensors(label, _list_parameters(label, params)), rates["lr"], rates["weight_decay"]


def _split_betas(name, kwargs):
    betas = kwargs.pop("betas")
    if not isinstance(betas, (tuple, list)) or len(betas) != 2:
        raise TypeError(f"{name}: betas is {show(betas)}: must be two numbers, as (0.9, 0.999)")
    for key, value in zip(("beta1", "beta2"), betas):
        if key in kwargs:
            raise TypeError(f"{name}() got betas and {key}: leave one of both out")
        kwargs[key] = value


def _read_option(optimizer, name):
    return (optimizer.beta1, optimizer.beta2) if name == "betas" else getattr(optimizer, name)


class _Group:
    """One of optimizer.param_groups: its "params", "lr" and "weight_decay", of which the last two can be set."""

    def __init__(self, optimizer, index):
        self._optimizer, self._index = optimizer, index

    def __getitem__(self, key):
        if key == "params":
            return self._optimizer.get_group_parameters(self._index)
        if key in _GROUP_KEYS:
            return getattr(self._optimizer, f"get_group_{key}")(self._index)
        if key == "initial_lr":
            return self._optimizer.__dict__.get("_first_rates", {}).get(self._index, self["lr"])
        if key not in self.keys():
            raise KeyError(f"{key!r}: a group has {', '.join(self.keys())}: write one of these")
        return _read_option(self._optimizer, key)

    def __setitem__(self, key, value):
        if key not in ("lr", "weight_decay"):
            raise KeyError(f"{key!r}: a group's lr and weight_decay can be set: write optimizer.{key} for all groups")
        if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 <= value < float("inf"):
            raise ValueError(f"{type(self._optimizer).__name__}: {key} of a group is {show(value)}: must be a number "
                             "of 0 or more")
        getattr(self._optimizer, f"set_group_{key}")(self._index, value)

    def keys(self):
        return [*_GROUP_KEYS, *(name for name in _NAMES.get(c_class(type(self._optimizer)).__name__, ())
                                if name not in _GROUP_KEYS)]

    def __contains__(self, key):
        return key in self.keys()

    def __iter__(self):
        return iter(self.keys())

    def get(self, key, default=None):
        return self[key] if key in self else default

    def items(self):
        return [(key, self[key]) for key in self.keys()]

    def __repr__(self):
        return (f"{{'params': {len(self['params'])} tensors, 'lr': {self['lr']}, "
                f"'weight_decay': {self['weight_decay']}}}")


def _make(self, args, kwargs):
    cls = type(self)
    positional = _NAMES.get(c_class(cls).__name__, ("params", "lr"))
    kwargs = name_arguments(cls, positional, args, kwargs)
    for name in [name for name, value in kwargs.items() if is_harmless(HARMLESS_TO_OPTIMIZERS, cls, name, value)]:
        del kwargs[name]
    for name in kwargs:
        if name not in positional and not has_property(cls, name):
            others = [spec.name.replace("-", "_") for spec in cls.list_properties()]
            refuse_argument(cls, name, [*positional, *(other for other in others if other not in positional)])
    if isinstance(kwargs.get("lr"), Ebb.Tensor):
        kwargs["lr"] = kwargs["lr"].item()
    if "betas" in kwargs and "betas" in positional:
        _split_betas(cls.__name__, kwargs)
    if "params" in kwargs:
        if "module" in kwargs:
            raise TypeError(f"{cls.__name__}() got params and module: leave one of both out")
        kwargs["module"] = kwargs.pop("params")
    label, groups, given = f"{cls.__name__}: params", [], kwargs.get("module")
    if given is None:
        raise TypeError(f"{cls.__name__}() needs the module or the parameters that it moves, as "
                        f"{cls.__name__}(model.parameters(), lr=1e-3)")
    if not isinstance(given, Ebb.Module):
        values = _list_parameters(label, kwargs.pop("module"))
        if not values:
            raise BadValue(f"{cls.__name__}: the list of parameters is empty: write model.parameters()",
                           "ebb-error-quark", Ebb.Error.INVALID_ARGUMENT)
        if values and all(isinstance(value, dict) for value in values):
            groups = [_check_group(f"{label}[{i}]", group) for i, group in enumerate(values)]
            values = groups[0][0]
        kwargs["parameters"] = Ebb.Args.new(Ebb.ArgsKind.LIST)
        for tensor in _check_tensors(label, values):
            kwargs["parameters"].add_tensor(None, tensor)
    construct(self, lambda **properties: GObject.Object.__init__(self, **properties), (), kwargs)
    if groups:
        self.set_group_lr(0, groups[0][1])
        self.set_group_weight_decay(0, groups[0][2])
    for tensors, lr, weight_decay in groups[1:]:
        _add_parameters(self, tensors, lr, weight_decay)


def add_param_group(self, group):
    """Has the optimizer move more tensors: {"params": tensors, "lr": …, "weight_decay": …}, the last two if others."""
    if not isinstance(group, dict):
        raise TypeError(f"add_param_group(): group is {show(group)}: must be a dict with \"params\"")
    _add_parameters(self, *_check_group(f"{type(self).__name__}: the group", group))


_step = guard(Ebb.Optimizer.step)


def step(self, closure=None):
    """Moves the parameters by their gradients. closure: a function that computes the gradients and returns the loss,
    which is then returned."""
    loss = None if closure is None else closure()
    _step(self)
    return loss


def _set_setting(self, name, value):
    if isinstance(value, float):
        _set_option(self, name, value)
    else:
        self.set_property(name, value)


_zero, _zero_in_place = Ebb.Optimizer.zero_grad, guard(Ebb.Optimizer.zero_grad_in_place)


def zero_grad(self, set_to_none=True):
    """Drops the gradients, or fills them with zeros where they are."""
    if set_to_none:
        _zero(self)
    else:
        _zero_in_place(self)


_clip = guard(Ebb.Optimizer.clip_grad_p_norm)


def clip_grad_norm(self, max_norm, norm_type=2):
    """Scales the gradients so that their norm is max_norm at most; returns the norm before, a tensor of one number,
    which only its item() waits for. norm_type is 2, 1, math.inf (or "inf") or any other number above 0."""
    return _clip(self, max_norm, float(norm_type))


# What get_state() has for all groups, and where state_dict() keeps it: in its first group.
_SHARED = ("kind", "n_steps", "lr", "lr_scale", "weight_decay", "options")


def state_dict(self):
    """The state as PyTorch has it: "state", the moments and the "step" of each parameter by its number, and
    "param_groups" with the numbers in "params", the rates, and the "name" of each parameter in "names"."""
    given, numbers_, groups = self.get_state(), {}, []
    for index, group in enumerate(self.param_groups):
        names = given["groups"][index]["parameters"]
        numbers_.update({name: len(numbers_) + i for i, name in enumerate(names)})
        groups.append({**{key: value for key, value in group.items() if key != "params"},
                       "params": [numbers_[name] for name in names], "names": list(names)})
    if groups:
        groups[0]["ebb"] = {**{key: given[key] for key in _SHARED}, "groups": given["groups"]}
    state = {numbers_[name]: {"step": Ebb.scalar(value["n_steps"], Ebb.DType.F32, None),
                              **{key: item for key, item in value.items() if key != "n_steps"}}
             for name, value in given["state"].items()}
    return {"state": state, "param_groups": groups}


def load_state_dict(self, state):
    """Takes a state that state_dict() or get_state() gave."""
    if "param_groups" in state:
        state = _to_own_state(self, state)
    self.load_state(state)


def _to_own_state(self, state):
    groups = state["param_groups"]
    shared = groups[0].get("ebb") if groups else None
    if shared is None:
        raise ValueError(f"{type(self).__name__}: load_state_dict(): the state is not one of ebb's: write "
                         "optimizer.state_dict() of an optimizer of ebb")
    names = dict(pair for group in groups for pair in zip(group["params"], group["names"]))
    return {**shared, "state": {names[number]: {"n_steps": int(value["step"]),
                                                **{key: item for key, item in value.items() if key != "step"}}
                                for number, value in state["state"].items()}}


def _read_states(self):
    given = self.get_state()
    names = [name for group in given["groups"] for name in group["parameters"]]
    tensors = [tensor for group in self.param_groups for tensor in group["params"]]
    return {tensor: {"step": Ebb.scalar(given["state"][name]["n_steps"], Ebb.DType.F32, None),
                     **{key: item for key, item in given["state"][name].items() if key != "n_steps"}}
            for name, tensor in zip(names, tensors) if name in given["state"]}


def _show(self):
    lines = [f"{type(self).__name__} ("]
    for index, group in enumerate(self.param_groups):
        lines += [f"Parameter Group {index}", *(f"    {key}: {value}" for key, value in sorted(group.items())
                                                if key != "params")]
    return "\n".join([*lines, ")"])


def adapt_optimizer(cls):
    """Gives a class of optimizers its constructor and attributes for Python."""
    def __init__(self, *args, **kwargs):
        _make(self, args, kwargs)

    cls.__init__ = __init__
    add_attributes(cls)
    names = _NAMES.get({"Sgd": "SGD"}.get(cls.__name__, cls.__name__))
    if names is not None:
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        others = {"params": inspect.Parameter("params", kind, annotation="Any"),
                  "betas": inspect.Parameter("betas", kind, default=(0.9, 0.999), annotation="tuple[float, float]")}
        if cls.__name__ == "AdamW":  # which sets it as it is made; the property's default is that of all optimizers
            others["weight_decay"] = inspect.Parameter("weight_decay", kind, default=0.01, annotation="float")
        describe_constructor(cls, names, others)


def adapt_base(base):
    """The methods that all optimizers share."""
    base._set_setting = _set_setting
    base.step = step
    base.add_param_group, base.zero_grad, base.clip_grad_norm = add_param_group, zero_grad, clip_grad_norm
    base.param_groups = property(lambda self: [_Group(self, index) for index in range(self.get_n_groups())],
                                 doc="The groups, whose \"lr\" and \"weight_decay\" can be set.")
    base.state_dict, base.load_state_dict = state_dict, load_state_dict
    base.state = property(_read_states, doc="The moments and the step of each parameter that has been moved.")
    base.defaults = property(lambda self: {key: _read_option(self, key) for key in (
        "lr", "weight_decay", *(name for name in _NAMES.get(c_class(type(self)).__name__, ())
                                if name not in _GROUP_KEYS))}, doc="The options that groups have by default.")
    base.__repr__ = _show
