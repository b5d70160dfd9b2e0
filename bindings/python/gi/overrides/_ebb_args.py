"""Arguments and results: Python values to EbbArgs and back.

Tensors, None, bool, int within 64 bits, float and str are typed values; list, tuple and dict with string keys are
containers; objects of GObject classes pass as they are. Anything else travels inside an object and comes back the same
object; tensors inside it take no part in recompute or offload.
"""
import enum
import warnings

from gi.module import get_introspection_module
from gi.overrides._ebb_errors import unify
from gi.repository import GObject

Ebb = get_introspection_module("Ebb")

_Args = Ebb.Args
_BARE, _LIST, _TUPLE, _DICT = (Ebb.ArgsKind.BARE, Ebb.ArgsKind.LIST, Ebb.ArgsKind.TUPLE, Ebb.ArgsKind.DICT)
_KIND_OF = {list: _LIST, tuple: _TUPLE, dict: _DICT}
_SCALARS = (int, float, complex, str, bytes, type, enum.Enum, range, slice)
_warned = set()


class PythonObject(GObject.Object):
    """Holds any Python object, so that C can pass it on."""

    __module__ = "ebb"  # a class of gi.overrides would get no GType of its own
    __gtype_name__ = "EbbPythonObject"

    def __init__(self, value):
        super().__init__()
        self.value = value


def _is_text(value):
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in value


def _is_dict(value):
    return all(type(key) is str and _is_text(key) for key in value)


def _add_opaque(args, key, value):
    kind = type(value)
    is_array = hasattr(value, "__array_interface__") or hasattr(value, "__dlpack__")  # which has no tensors inside
    if not isinstance(value, _SCALARS) and not is_array and kind not in _warned:
        _warned.add(kind)
        warnings.warn(f"an object of type {kind.__name__} is passed on as it is: tensors inside it are not seen by "
                      "checkpointing and offload; use list, tuple or dict for them", stacklevel=5)
    args.add_object(key, PythonObject(value))


def _add(args, key, value):
    kind = type(value)
    if isinstance(value, Ebb.Tensor):
        args.add_tensor(key, value)
    elif value is None:
        args.add_none(key)
    elif kind is bool:
        args.add_boolean(key, value)
    elif kind is int and -1 << 63 <= value < 1 << 63:
        args.add_int(key, value)
    elif kind is float:
        args.add_double(key, value)
    elif kind is str and _is_text(value):
        args.add_string(key, value)
    elif kind is list or kind is tuple or (kind is dict and _is_dict(value)):
        args.add_args(key, _pack_container(value))
    elif isinstance(value, GObject.Object):
        args.add_object(key, value)
    else:
        _add_opaque(args, key, value)


def _pack_container(value):
    kind = type(value)
    args = _Args.new(_KIND_OF[kind])
    if kind is dict:
        for key, item in value.items():
            _add(args, key, item)
    else:
        for item in value:
            _add(args, None, item)
    return args


def pack_call(args, kwargs):
    """The arguments of a call."""
    if not kwargs and len(args) == 1 and isinstance(args[0], Ebb.Tensor):
        return _Args.new_for_tensor(args[0])
    packed = _Args.new(_TUPLE)
    for value in args:
        _add(packed, None, value)
    for key, value in kwargs.items():
        if not _is_text(key):
            raise ValueError(f"{key!r} can't name an argument")
        _add(packed, key, value)
    return packed


def pack_result(value):
    """The result of a call."""
    if isinstance(value, Ebb.Tensor):
        return _Args.new_for_tensor(value)
    kind = type(value)
    if kind is list or kind is tuple or (kind is dict and _is_dict(value)):
        return _pack_container(value)
    packed = _Args.new(_BARE)
    _add(packed, None, value)
    return packed


def _get_object(args, index):
    value = args.get_object(index)
    return value.value if isinstance(value, PythonObject) else value


_GETTERS = {
    Ebb.ValueKind.NONE: lambda args, index: None,
    Ebb.ValueKind.BOOL: _Args.get_boolean,
    Ebb.ValueKind.INT: _Args.get_int,
    Ebb.ValueKind.DOUBLE: _Args.get_double,
    Ebb.ValueKind.STRING: _Args.get_string,
    Ebb.ValueKind.TENSOR: lambda args, index: unify(args.get_tensor(index)),
    Ebb.ValueKind.ARGS: lambda args, index: _unpack_container(args.get_args(index)),
    Ebb.ValueKind.OBJECT: _get_object,
}


def _get(args, index):
    return _GETTERS[args.get_value_kind(index)](args, index)


def _unpack_container(args):
    kind, length = args.get_kind(), args.get_length()
    if kind == _DICT:
        return {args.get_key(i): _get(args, i) for i in range(length)}
    if kind == _BARE:
        return _get(args, 0) if length else None
    values = [_get(args, i) for i in range(length)]
    return tuple(values) if kind == _TUPLE else values


def unpack_call(args):
    """Positional and keyword arguments."""
    length, n_positional = args.get_length(), args.get_n_positional()
    return ([_get(args, i) for i in range(n_positional)],
            {args.get_key(i): _get(args, i) for i in range(n_positional, length)})


def unpack_result(args):
    """What a call returned."""
    return _unpack_container(args)
