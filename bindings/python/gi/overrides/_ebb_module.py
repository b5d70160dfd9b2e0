"""Modules: attributes that C owns, a forward in Python, and names of PyTorch."""
import collections
import functools
import gc
import itertools
import operator
import re
import warnings
import weakref

from gi.module import get_introspection_module
from gi.overrides import override
from gi.overrides._ebb_args import pack_call, pack_result, unpack_call, unpack_result
from gi.overrides._ebb_check import show, suggest_attribute
from gi.overrides._ebb_construct import c_class, construct, find_renamed, is_library_class
from gi.overrides._ebb_cycles import watch
from gi.overrides._ebb_errors import Error, call_back, guard, guard_virtual_functions, unify
from gi.overrides._ebb_tensor import DType, Tensor, split_targets, to_device, to_dtype

Ebb = get_introspection_module("Ebb")


class _MarkType(type):
    """A class of which isinstance() tells tensors that are, or will be, parameters or buffers of a module."""

    def __instancecheck__(cls, value):
        return isinstance(value, Tensor) and (cls.is_made(value) or value.__dict__.get("_mark") is cls)


def _make_mark(cls, name, data):
    if not isinstance(data, Tensor):
        raise TypeError(f"a {name} is a tensor, not a {type(data).__name__}")
    tensor = data if cls.is_made(data) else data.detach()
    tensor.__dict__["_mark"] = cls
    return tensor


class Parameter(metaclass=_MarkType):
    """A tensor over the memory of another that becomes a parameter of the module that it is assigned to:
    `self.weight = ebb.Parameter(tensor)`."""

    is_made = staticmethod(Ebb.Tensor.is_parameter)

    def __new__(cls, data, requires_grad=True):
        tensor = _make_mark(cls, "parameter", data)
        if requires_grad:
            tensor.set_requires_grad(True)
        return tensor


class Buffer(metaclass=_MarkType):
    """A tensor over the memory of another that becomes a buffer of the module that it is assigned to: it is saved with
    the module and moves with it, but is not trained."""

    is_made = staticmethod(Ebb.Tensor.is_buffer)

    def __new__(cls, data, persistent=True):
        tensor = _make_mark(cls, "buffer", data)
        tensor.__dict__["_persistent"] = persistent
        return tensor


def _get_mark(value):
    """Parameter or Buffer for a tensor that is to become one; None for any other value."""
    return value.__dict__.get("_mark") if isinstance(value, Tensor) else None


_register_parameter, _register_buffer, _register_child = (
    guard(Ebb.Module.register_parameter), guard(Ebb.Module.register_buffer), guard(Ebb.Module.register_child))
_GETTERS = {"parameter": lambda module, name: unify(_get_parameter(module, name)),
            "buffer": lambda module, name: unify(_get_buffer(module, name)), "child": Ebb.Module.get_child}
_get_parameter, _get_buffer = Ebb.Module.get_parameter, Ebb.Module.get_buffer
_REMOVERS = {"parameter": lambda module, name: _register_parameter(module, name, None),
             "buffer": lambda module, name: _register_buffer(module, name, None, False),
             "child": lambda module, name: _register_child(module, name, None)}
_last_kind = {}  # by name: where it was found last, which is where it will be
_call, _hand_over = guard(Ebb.Module.call), guard(Ebb.Module.hand_over)


# Names that modules of PyTorch and transformers have and these lack: the code to write instead.
_OTHER_NAMES = {
    "save_pretrained": "write ebb.save_model(model, folder)",
    "generate": "an ebb.Gpt continues text, other modules don't",
    "generation_config": "write ebb.GenerationOptions.new_for_model(model)",
    "num_parameters": "write count_parameters()",
    "device": "write parameters()[0].device",
    "dtype": "write parameters()[0].dtype",
    "double": "there are no 64-bit floats: write float()",
    "compile": "write module(x), modules run as they are",
    "share_memory": "ranks that are threads share memory: write ebb.run_ranks()",
    "register_full_backward_hook": "write ebb.grad(), or look at grad after backward()",
    "register_backward_hook": "write ebb.grad(), or look at grad after backward()",
    "num_batches_tracked": "write a buffer of your own that counts batches",
    **dict.fromkeys(("insert", "pop"), "write ebb.Sequential(*modules) or ebb.ModuleList(modules) of another list"),
    "set_requires_gradient_sync": "write `with ebb.no_sync():` around backward passes whose gradients wait",
    "unshard": "write `with ebb.summon_full_params(module):`, parameters are gathered where they are needed anyhow",
    "reshard": "write `with ebb.summon_full_params(module):`, parameters are freed by themselves",
    "get_parameter_or_buffer": "write get_parameter(name) or get_buffer(name)",
    "to_empty": "write `with ebb.default_device(device), ebb.skip_initialization():`",
}


# Attributes of PyTorch's layers that say what is so here.
_ATTRIBUTES = {"elementwise_affine": lambda layer: "weight" in layer.get_parameter_names(False),
               "inplace": lambda layer: False, "padding_idx": lambda layer: None, "max_norm": lambda layer: None}


def _advise_on_hook(name):
    if name.startswith("register_") and name.endswith("hook"):
        return "write register_forward_hook() or register_forward_pre_hook()"
    return ""


# How modules of C report a value that is not a tensor.
_NO_TENSOR = re.compile(r"(.*\b\w+): (?:takes one tensor, but got .*|(\w+) must be a tensor(?: or none)?)", re.DOTALL)


def _find_no_tensor(values):
    """The value of a call that was likely meant as a tensor: an array rather than a list or a number."""
    for is_meant in (lambda value: hasattr(value, "__array_interface__") or hasattr(value, "__dlpack__"),
                     lambda value: isinstance(value, (list, tuple)), lambda value: type(value) in (int, float)):
        for value in values:
            if is_meant(value) and not isinstance(value, Tensor):
                return value
    return None


def _call_with(call, module, args, kwargs):
    """Calls a module through a function of C, and reports an array in place of a tensor in Python's words."""
    try:
        return unpack_result(call(module, pack_call(args, kwargs)))
    except Error as error:
        values, match = [*args, *kwargs.values()], _NO_TENSOR.fullmatch(error.message)
        value = _find_no_tensor(values) if match and (match[2] or len(values) == 1) else None
        if value is None:
            raise
        kind = type(value)
        name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
        failure = TypeError(f"{match[1]}(): {match[2] or 'its argument'} is of type {name}: it must be an ebb.Tensor, "
                            "as ebb.tensor(x) makes of arrays, lists and numbers")
    raise failure


class _NotMade(AttributeError):
    """A module's C part is not there yet."""


def _find(module, name):
    """The kind and the value of what C has under a name; (None, None) if nothing."""
    guess = _last_kind.get(name, "child")
    try:
        value = _GETTERS[guess](module, name)
    except RuntimeError as error:
        if "is not initialized" not in str(error):
            raise
        raise _NotMade(f"{type(module).__name__}.__init__() must call super().__init__()"
                       + (f" before it assigns or uses {name!r}" if name else "")) from None
    if value is not None:
        return guess, value
    for kind, getter in _GETTERS.items():
        if kind != guess:
            value = getter(module, name)
            if value is not None:
                _last_kind[name] = kind
                return kind, value
    return None, None


def _owner(cls, name):
    for base in cls.__mro__:
        if name in base.__dict__:
            return base
    return None


def _refuse_name(cls, name, registers):
    """A name that a method or a class attribute has already would hide it, or be hidden by it."""
    owner = _owner(cls, name)
    if owner is not None and (registers or is_library_class(owner)):
        raise AttributeError(f"{cls.__name__}.{name} is there already, from {owner.__name__}: choose another name")


def _is_property(cls, name):
    """Whether a property made in Python has the name; those that PyGObject makes stand for fields of C structures."""
    owner = _owner(cls, name)
    return owner is not None and isinstance(owner.__dict__[name], property) and (
        owner is Module or not is_library_class(owner))


def _check_init(cls):
    """Has the constructor of a class written in Python fail where it forgets that of the class above."""
    init = cls.__dict__["__init__"]

    @functools.wraps(init)
    def __init__(self, *args, **kwargs):
        init(self, *args, **kwargs)
        if type(self) is cls:
            _find(self, "")

    cls.__init__ = __init__


def _do_forward(self, args):
    positional, keywords = unpack_call(args)
    return pack_result(self.forward(*positional, **keywords))


# One C hook for each module calls the Python hooks, which live with the module, where the garbage collector sees them.
def _run_hooks(module, args, result):
    call_back(_call_hooks, module, args, result)
    return True


def _call_hooks(module, args, result):
    positional, keywords = unpack_call(args)
    positional = given = tuple(positional)
    if result is None:
        for hook in list(module.__dict__["_pre_hooks"].values()):
            replaced = hook(module, positional)
            if replaced is not None:
                positional = replaced if isinstance(replaced, tuple) else (replaced,)
        if positional is not given:
            _hand_over(module, pack_call(positional, keywords))
        return
    value = given = unpack_result(result)
    for hook in list(module.__dict__["_hooks"].values()):
        replaced = hook(module, positional, value)
        value = value if replaced is None else replaced
    if value is not given:
        _hand_over(module, pack_result(value))


class _Listed(list):
    """A list that is its own iterator, so that next(model.parameters()) works as in PyTorch."""

    def __next__(self):
        at = self.__dict__["_at"] = self.__dict__.get("_at", -1) + 1
        if at >= len(self):
            raise StopIteration(f"next(): there are {len(self)}: write list(model.parameters())")
        return self[at]


def _swapped(recurse, prefix):
    """Both, where PyTorch's order, prefix first, was given."""
    return (True if prefix == "" else prefix, recurse) if isinstance(recurse, str) else (recurse, prefix)


def _prefixed(prefix, pairs):
    return _Listed((f"{prefix}.{name}".rstrip(".") if prefix else name, value) for name, value in pairs)


class _Config:
    """What module.config is in OneFlow: its activation_checkpointing is the module's."""

    __slots__ = ("_module",)

    def __init__(self, module):
        object.__setattr__(self, "_module", module)

    def __getattr__(self, name):
        if name != "activation_checkpointing":
            raise AttributeError(f"config of {type(self._module).__name__} has activation_checkpointing alone, not "
                                 f"{name!r}")
        return self._module.activation_checkpointing

    def __setattr__(self, name, value):
        if name != "activation_checkpointing":
            raise AttributeError(f"config of {type(self._module).__name__} has activation_checkpointing alone, not "
                                 f"{name!r}")
        self._module.activation_checkpointing = value


class HookHandle:
    """What adding a hook returns; remove() takes the hook away."""

    _keys = itertools.count()

    def __init__(self, module, table, hook):
        self._module, self._table, self._key = weakref.ref(module), table, next(self._keys)
        module.__dict__[table][self._key] = hook

    def remove(self):
        module = self._module()
        if module is not None:
            module.__dict__[self._table].pop(self._key, None)


# Looked up once: PyGObject 3.50 makes classes under a lock, under which it can't look up another one.
_BLOCK = Ebb.Block


@override
class Module(Ebb.Module):
    __module__ = "gi.overrides.Ebb"

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if cls.__bases__[0] is _BLOCK:  # which PyGObject would call a type without a class
            raise TypeError(f"class {cls.__name__}: the interface is its first base: write "
                            f"class {cls.__name__}(ebb.Module, ebb.Block)")
        # On the class itself and nowhere above: a vfunc of this class would be one for all that derive from it.
        if "forward" in cls.__dict__ and "do_forward" not in cls.__dict__:
            cls.do_forward = _do_forward
        guard_virtual_functions(cls, "do_forward", "do_forward1", "do_build")
        if "__init__" in cls.__dict__ and not is_library_class(cls):
            _check_init(cls)

    def __init__(self, *args, **kwargs):
        construct(self, super().__init__, args, kwargs)

    def __call__(self, *args, **kwargs):
        return _call_with(_call, self, args, kwargs)

    def forward(self, *args, **kwargs):
        """The forward of the nearest class written in C."""
        return unpack_result(_forward_of_c(type(self))(self, pack_call(args, kwargs)))

    # attributes
    def __getattr__(self, name):
        if not name.startswith("__"):
            value = _find(self, name)[1]
            if value is not None:
                return value
            if self.find_property(name.replace("_", "-")) is not None:
                value = self.get_property(name.replace("_", "-"))
                is_gone = name == "bias" and (value is False or "weight" in self.get_parameter_names(False))
                return None if is_gone else value  # as PyTorch has it
            renamed = find_renamed(name, [spec.name for spec in self.list_properties()])
            if renamed is not None:
                value = self.get_property(renamed)
                return (value,) if name == "normalized_shape" else value
            if name in self.__dict__.get("_nones", ()):  # registered as None
                return None
            if name in _ATTRIBUTES and is_library_class(c_class(type(self))) and c_class(type(self)) is not Module:
                return _ATTRIBUTES[name](self)
            if name == "config":  # OneFlow's, where a module has none of its own
                return _Config(self)
        advice = _OTHER_NAMES.get(name) or _advise_on_hook(name) or suggest_attribute(name, dir(self))
        raise AttributeError(f"{type(self).__name__} has no attribute, parameter, buffer or child {name!r}"
                             + (advice and f": {advice}"))

    def __setattr__(self, name, value):
        if _get_mark(value) is not None or isinstance(value, Ebb.Module):
            self._register(name, value)
        elif isinstance(value, Tensor) and name in self.__dict__.get("_nones", ()):
            self.register_buffer(name, value, self.__dict__["_nones"].pop(name))
        elif name in self.__dict__ or _is_property(type(self), name):
            super().__setattr__(name, value)
            if gc.is_tracked(value):
                watch(self)
        else:
            self._set_other(name, value)

    def _register(self, name, value):
        _refuse_name(type(self), name, True)
        kind, _ = _find(self, name)
        wanted = {Parameter: "parameter", Buffer: "buffer", None: "child"}[_get_mark(value)]
        if kind is not None and kind != wanted:
            _REMOVERS[kind](self, name)
        if wanted == "parameter":
            requires_grad = value.get_requires_grad()
            _register_parameter(self, name, value)
            value.set_requires_grad(requires_grad)
        elif wanted == "buffer":
            _register_buffer(self, name, value, value.__dict__["_persistent"])
        else:
            _register_child(self, name, value)
        _last_kind[name] = wanted
        self.__dict__.pop(name, None)

    def _set_other(self, name, value):
        try:
            kind, _ = _find(self, name)
        except _NotMade:  # what is no part of the module may be there before, as in PyTorch
            kind = None
        if kind is None:
            _refuse_name(type(self), name, False)
            super().__setattr__(name, value)
            if gc.is_tracked(value):
                watch(self)
        elif value is None:
            _REMOVERS[kind](self, name)
        elif kind == "buffer" and isinstance(value, Tensor):
            _register_buffer(self, name, value, True)
        elif kind == "parameter" and isinstance(value, Tensor) and value.is_leaf and value.get_requires_grad():
            _register_parameter(self, name, value)  # another module's: both have it from now on
        else:
            wanted = {"parameter": "ebb.Parameter or another module's parameter",
                      "buffer": "ebb.Buffer or a tensor", "child": "module"}[kind]
            raise TypeError(f"{type(self).__name__}.{name} is a {kind}: assign another {wanted}, or None to remove it, "
                            f"not a {type(value).__name__}")

    def register_parameter(self, name, parameter):
        """The same as an attribute: an ebb.Parameter, another module's parameter, or None to remove it."""
        if parameter is not None and not isinstance(parameter, Tensor):
            raise TypeError(f"register_parameter(): {name} is {show(parameter)}: it must be an ebb.Parameter, a "
                            "tensor or None")
        if isinstance(parameter, Tensor) and not (parameter.is_leaf and parameter.get_requires_grad()):
            parameter = Parameter(parameter)
        if _get_mark(parameter) is Parameter:
            self._register(name, parameter)
        else:
            _register_parameter(self, name, parameter)

    def register_buffer(self, name, tensor, persistent=True):
        """The same as an attribute that is an ebb.Buffer; None removes it."""
        if tensor is not None and not isinstance(tensor, Tensor):
            raise TypeError(f"register_buffer(): {name} is {show(tensor)}: it must be a tensor or None")
        if tensor is None:
            _register_buffer(self, name, None, False)
            self.__dict__.setdefault("_nones", {})[name] = persistent
        else:
            self._register(name, tensor if _get_mark(tensor) is Buffer else Buffer(tensor, persistent))

    def register_child(self, name, module):
        """The same as an attribute that is a module; None removes it."""
        if module is None:
            _register_child(self, name, None)
        else:
            if not isinstance(module, Ebb.Module):
                raise TypeError(f"register_child(): {name} is {show(module)}: it must be an ebb.Module or None")
            self._register(name, module)

    register_module = add_module = register_child

    def __delattr__(self, name):
        kind, _ = (None, None) if name in self.__dict__ else _find(self, name)
        if kind is None:
            super().__delattr__(name)
        else:
            _REMOVERS[kind](self, name)

    def __dir__(self):
        return sorted({*super().__dir__(), *self.get_parameter_names(False), *self.get_buffer_names(False),
                       *self.get_child_names(), *(spec.name.replace("-", "_") for spec in self.list_properties())})

    # traversal
    def parameters(self, recurse=True):
        return _Listed(self.get_parameters(recurse))

    def named_parameters(self, recurse=True, prefix="", remove_duplicate=True):
        """Names, as "h.0.weight", and parameters; those of the module alone without recurse."""
        recurse, prefix = _swapped(recurse, prefix)
        return _prefixed(prefix, zip(self.get_parameter_names(recurse), self.get_parameters(recurse)))

    def buffers(self, recurse=True):
        return _Listed(self.get_buffers(recurse))

    def named_buffers(self, recurse=True, prefix="", remove_duplicate=True):
        """Names and buffers, as named_parameters() does."""
        recurse, prefix = _swapped(recurse, prefix)
        return _prefixed(prefix, zip(self.get_buffer_names(recurse), self.get_buffers(recurse)))

    def children(self):
        return _Listed(self.get_children())

    def named_children(self):
        """Names and children."""
        return _Listed(zip(self.get_child_names(), self.get_children()))

    def modules(self):
        return _Listed(self.get_modules())

    def named_modules(self, memo=None, prefix="", remove_duplicate=True):
        """Paths and modules: the module itself, as "", and all below it."""
        return _prefixed(prefix, zip(self.get_module_names(), self.get_modules()))

    # state
    def state_dict(self, *, prefix="", keep_vars=True):
        """Names, behind a prefix, and the parameters and persistent buffers."""
        state = self.get_state_dict()
        return {prefix + name: tensor for name, tensor in state.items()} if prefix else state

    def load_state_dict(self, state, strict=True, assign=False):
        """Copies a state into the parameters and buffers; returns `missing_keys`, names that the state lacks, and
        `unexpected_keys`, names that the module lacks, which are errors unless strict is False. assign: taken, and
        values are copied all the same."""
        if not hasattr(state, "keys"):
            raise TypeError(f"load_state_dict(): state is {show(state)}: it must be a dict of tensors, as state_dict() "
                            "gives")
        args = pack_result(dict(state))
        _load_state_dict(self, args, strict)
        return find_differences(self, args, "load_state_dict")

    @property
    def training(self):
        return self.get_training()

    def train(self, mode=True):
        """Switches between training, where dropout drops, and evaluation; returns the module."""
        if not isinstance(mode, bool):
            raise TypeError(f"train(): mode is {show(mode)}: must be True or False")
        self.set_training(mode)
        return self

    def eval(self):
        """The same as train(False)."""
        return self.train(False)

    def requires_grad_(self, requires_grad=True):
        """Has all parameters require a gradient, or none; returns the module."""
        _set_requires_grad(self, requires_grad)
        return self

    @property
    def forward_counter(self):
        return self.get_forward_counter()

    @property
    def activation_checkpointing(self):
        return self.get_activation_checkpointing()

    @activation_checkpointing.setter
    def activation_checkpointing(self, enabled):
        if not isinstance(enabled, bool):
            raise TypeError(f"activation_checkpointing is {show(enabled)}: must be True or False")
        _set_activation_checkpointing(self, enabled)

    def gradient_checkpointing_enable(self):
        """Makes each ebb.Block below, as ebb.TransformerBlock is, keep only its inputs for backward; for others see
        ebb.checkpoint_wrap_each()."""
        blocks = self._blocks("gradient_checkpointing_enable")
        for block in blocks:
            _set_activation_checkpointing(block, True)

    def gradient_checkpointing_disable(self):
        """Undoes gradient_checkpointing_enable()."""
        for block in self._blocks("gradient_checkpointing_disable"):
            _set_activation_checkpointing(block, False)

    def _blocks(self, function):
        blocks = [module for module in self.get_modules() if isinstance(module, Ebb.Block)]
        if not blocks:
            raise ValueError(f"{function}(): {type(self).__name__} has no ebb.Block below it: write "
                             "ebb.checkpoint_wrap_each(model, YourBlock)")
        return blocks

    # types and places
    def to(self, *targets, dtype=None, device=None, non_blocking=False, memory_format=None):
        """Moves all parameters and buffers to another dtype or device, each an object or a name; returns the module."""
        dtype, device = split_targets(targets, dtype, device)
        if device is not None:
            _to_device(self, to_device(device))
        if dtype is not None:
            _to_dtype(self, to_dtype(dtype))
        return self

    def float(self):
        """Converts parameters and buffers to f32; returns the module."""
        return self.to(DType.F32)

    def half(self):
        """Converts parameters and buffers to f16, which is for storage; returns the module."""
        return self.to(DType.F16)

    def type(self, dtype):
        """The same as to(dtype)."""
        return self.to(to_dtype(dtype))

    def _get_name(self):
        return type(self).__name__

    def bfloat16(self):
        """Converts parameters and buffers to bf16; returns the module."""
        return self.to(DType.BF16)

    def cuda(self, index=0):
        """Moves all parameters and buffers to a GPU; returns the module."""
        return self.to(f"cuda:{index}" if index else "cuda")

    def cpu(self):
        """Moves all parameters and buffers to the CPU; returns the module."""
        return self.to("cpu")

    def zero_grad(self, set_to_none=True):
        """Drops the gradients of all parameters, or fills them with zeros where they are."""
        for parameter in self.get_parameters(True):
            if parameter.get_grad() is not None:
                parameter.set_grad(None) if set_to_none else parameter.get_grad().zero_()

    def apply(self, function):
        """Calls function(module) for all modules below and then for this one; returns the module."""
        for child in self.get_children():
            child.apply(function)
        function(self)
        return self

    def get_submodule(self, path):
        """The module below at a path, as "h.0.attn"; "" is this one."""
        module = self
        for name in filter(None, path.split(".")):
            child = module.get_child(name)
            if child is None:
                raise AttributeError(f"{type(module).__name__} has no child {name!r}, which {path!r} names")
            module = child
        return module

    def get_parameter(self, path):
        """The parameter at a path, as "h.0.weight"."""
        return self._get_at("parameter", path)

    def get_buffer(self, path):
        """The buffer at a path."""
        return self._get_at("buffer", path)

    def _get_at(self, kind, path):
        above, _, name = path.rpartition(".")
        module = self.get_submodule(above)
        value = _GETTERS[kind](module, name)
        if value is None and above:
            raise AttributeError(f"{type(module).__name__} has no {kind} {name!r}, which {path!r} names")
        return value

    # hooks
    def register_forward_pre_hook(self, hook):
        """Calls hook(module, args) before each forward, a recompute included; an exception makes the call fail.

        What the hook returns takes the place of args: a tuple, or one argument; None leaves them as they are.
        """
        return self._add_hook("_pre_hooks", hook)

    def register_forward_hook(self, hook):
        """Calls hook(module, args, result) after each forward, a recompute included; what it returns takes the place
        of the result, but None leaves the result as it is."""
        return self._add_hook("_hooks", hook)

    def _add_hook(self, table, hook):
        if table not in self.__dict__:
            self.__dict__[table] = {}
            (self.add_forward_pre_hook if table == "_pre_hooks" else self.add_forward_hook)(_run_hooks)
        watch(self)
        return HookHandle(self, table, hook)


_load_state_dict, _compare = guard(Ebb.Module.load_state_dict), guard(Ebb.Module.compare_state_dict)


class IncompatibleKeys(collections.namedtuple("IncompatibleKeys", "missing_keys unexpected_keys")):
    """Names of the module that a state dict lacks, and names of the state dict that the module lacks."""

    __slots__ = ()

    def __repr__(self):
        return "<All keys matched successfully>" if not any(self) else super().__repr__()

    __str__ = __repr__


def find_differences(module, state, function):
    """The names that a load left out; warns if a prefix is the reason."""
    _, missing, unexpected, advice = _compare(module, state)
    if advice is not None:
        warnings.warn(f"{function}(): {len(missing)} names are missing and {len(unexpected)} are unexpected: {advice}",
                      stacklevel=3)
    return IncompatibleKeys(missing, unexpected)


_set_requires_grad = guard(Ebb.Module.set_requires_grad)
_set_activation_checkpointing = guard(Ebb.Module.set_activation_checkpointing)
_to_device, _to_dtype = guard(Ebb.Module.to_device), guard(Ebb.Module.to_dtype)
_forwards = weakref.WeakKeyDictionary()


def _forward_of_c(cls):
    function = _forwards.get(cls)
    if function is None:
        function = _forwards[cls] = guard(c_class(cls).do_forward)
    return function


class _Container:
    """What Sequential and ModuleList share."""

    def __len__(self):
        return self.get_length()

    def __getitem__(self, index):
        if isinstance(index, slice):
            return type(self)._of([self.get(i) for i in range(len(self))[index]])
        index = operator.index(index)
        if not -len(self) <= index < len(self):
            raise IndexError(f"module {index} of {len(self)}")
        return self.get(index % len(self))

    def __iter__(self):
        return (self.get(i) for i in range(len(self)))

    def __reversed__(self):
        return (self.get(i) for i in range(len(self) - 1, -1, -1))

    def __setitem__(self, index, module):
        if not -len(self) <= index < len(self):
            raise IndexError(f"module {index} of {len(self)}")
        self.register_child(str(index % len(self)), module)

    def extend(self, modules):
        """Appends modules; returns the list."""
        for module in modules:
            self.append(module)
        return self

    __iadd__ = extend


@override
class Sequential(_Container, Ebb.Sequential):
    __module__ = "gi.overrides.Ebb"

    def __init__(self, *modules):
        named = modules[0] if len(modules) == 1 and isinstance(modules[0], dict) else None
        if named is None and len(modules) == 1 and isinstance(modules[0], (list, tuple)):
            raise TypeError(f"Sequential(): a {type(modules[0]).__name__} is no module: write "
                            "ebb.Sequential(*modules)")
        super().__init__()
        for name, module in named.items() if named is not None else enumerate(modules):
            if named is not None:
                self.register_child(name, module)
            else:
                self.append(module)

    @classmethod
    def _of(cls, modules):
        return Sequential(*modules)

    def append(self, module):
        _append_to_sequential(self, module)
        return self


@override
class ModuleList(_Container, Ebb.ModuleList):
    __module__ = "gi.overrides.Ebb"

    def __init__(self, modules=()):
        if isinstance(modules, Ebb.Module) and not isinstance(modules, _Container):
            raise TypeError(f"ModuleList(): modules is {show(modules)}: it must be a list of modules")
        super().__init__()
        for module in modules:
            self.append(module)

    @classmethod
    def _of(cls, modules):
        return ModuleList(modules)

    def append(self, module):
        _append_to_list(self, module)
        return self

    def call_in_turn(self, *args, **kwargs):
        """Calls the modules one after the other: the first argument goes through them, the others are for each."""
        return _call_with(_call_in_turn, self, args, kwargs)


_call_in_turn = guard(Ebb.ModuleList.call_in_turn)
_append_to_sequential, _append_to_list = guard(Ebb.Sequential.append), guard(Ebb.ModuleList.append)
