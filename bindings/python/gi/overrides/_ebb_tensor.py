"""Tensors as Python has them: operators, indexing, numpy and DLPack without copies."""
import collections
import math
import numbers
import operator
import threading

from gi.module import get_introspection_module
from gi.overrides import override
from gi.overrides._ebb_check import show
from gi.overrides._ebb_dlpack import TYPESTRS, make_capsule
from gi.overrides._ebb_errors import Error, guard, know_tensors, unify
from gi.overrides._ebb_indexing import read_at, write_at
from gi.repository import GLib

Ebb = get_introspection_module("Ebb")
DType = Ebb.DType

_NAMES = {"f32": DType.F32, "float32": DType.F32, "float": DType.F32, "bf16": DType.BF16, "bfloat16": DType.BF16,
          "f16": DType.F16, "float16": DType.F16, "half": DType.F16, "i32": DType.I32, "int32": DType.I32,
          "i64": DType.I64, "int64": DType.I64, "long": DType.I64, "u8": DType.U8, "uint8": DType.U8,
          "bool": DType.BOOL}
_SHOWN = {DType.F32: "ebb.float32", DType.BF16: "ebb.bfloat16", DType.F16: "ebb.float16", DType.I32: "ebb.int32",
          DType.I64: "ebb.int64", DType.U8: "ebb.uint8", DType.BOOL: "ebb.bool"}
DType.__repr__ = DType.__str__ = lambda self: _SHOWN[self]
DType.is_floating_point = property(lambda self: self in _FLOATING, doc="Whether its numbers have fractions.")
DType.is_complex = property(lambda self: False, doc="False: there are no complex numbers.")
DType.is_signed = property(lambda self: self not in (DType.U8, DType.BOOL), doc="Whether it has negative numbers.")
DType.itemsize = property(lambda self: Ebb.dtype_get_size(self), doc="The bytes of an element.")
_FORMATS = {DType.F32: "f", DType.I32: "i", DType.I64: "q", DType.U8: "B", DType.BOOL: "?"}
_FLOATING = (DType.F32, DType.BF16, DType.F16)


def to_dtype(value):
    """An ebb.DType from itself or from a name like "bf16" or "float32"."""
    if isinstance(value, DType):
        return value
    if isinstance(value, str) and value in _NAMES:
        return _NAMES[value]
    raise TypeError(f"{value!r} is no dtype: an ebb.DType, or one of {', '.join(_NAMES)}")


def split_targets(targets, dtype, device):
    """The dtype and the device that to() was given, in any order."""
    for target in targets:
        if isinstance(target, DType) or (isinstance(target, str) and target in _NAMES):
            dtype = target
        elif isinstance(target, Ebb.Tensor):
            dtype, device = target.get_dtype(), target.get_device()
        elif isinstance(target, Ebb.Device) or (isinstance(target, str) and target not in _OTHER_NAMES):
            device = target
        else:
            raise TypeError(f"to(): {show(target)} is neither a dtype ({', '.join(_NAMES)}) nor a device, as \"cpu\""
                            + ("; there are no 64-bit floats" if target in _DOUBLES else ""))
    return dtype, device


_DOUBLES = ("f64", "float64", "double")
_OTHER_NAMES = (*_DOUBLES, "i8", "int8", "i16", "int16", "short", "u16", "uint16", "u32", "uint32", "u64", "uint64",
                "c64", "complex64", "complex128")


def to_device(value):
    """An ebb.Device from itself or a name; None stays None."""
    if value == "meta":
        raise TypeError("there is no device \"meta\": write `with ebb.dry_run():`, in which ops compute "
                        "nothing and tensors take next to no memory")
    if isinstance(value, str):
        return _get_device(value)
    if value is None or isinstance(value, Ebb.Device):
        return value
    raise TypeError(f"{value!r} is no device: an ebb.Device or a name like \"cpu\"")


_get_device = guard(Ebb.Device.get)


@override
class Device(Ebb.Device):
    __module__ = "gi.overrides.Ebb"

    @property
    def type(self):
        """The name without a number, as "cuda"."""
        return self.get_name().partition(":")[0]

    @property
    def index(self):
        """The number behind the name; None without one."""
        number = self.get_name().partition(":")[2]
        return int(number) if number else None

    def __str__(self):
        return self.get_name()

    def __repr__(self):
        return f"device(type={self.type!r}" + (")" if self.index is None else f", index={self.index})")

    def __eq__(self, other):
        if isinstance(other, Ebb.Device):
            return self.get_name() == other.get_name()
        return self.get_name() == other if isinstance(other, str) else NotImplemented

    def __hash__(self):
        return hash(self.get_name())

    def __enter__(self):
        _entered.__dict__.setdefault("devices", []).append(Ebb.get_default_device())
        Ebb.set_default_device(self)
        return self

    def __exit__(self, *_):
        Ebb.set_default_device(_entered.devices.pop())


_entered = threading.local()  # its devices: the default ones before each with statement

# What max(), min(), topk() and sort() find along a dimension.
Found = collections.namedtuple("Found", "values indices")

# -- functions that operators and methods stand for -------------------------------------------------------------------

def _function(name):
    return guard(getattr(Ebb, name))


_add, _sub, _mul, _div, _pow = map(_function, ("add", "sub", "mul", "div", "pow"))
_select, _unsqueeze, _index_select = map(_function, ("select", "unsqueeze", "index_select"))
_reshape, _cast, _copy, _scalar, _contiguous = map(_function, ("reshape", "cast", "copy", "scalar", "contiguous"))
_new_from_ints = guard(Ebb.Tensor.new_from_ints)
_address = guard(Ebb.Tensor.get_address)
_bytes = guard(Ebb.Tensor.get_bytes)


# -- tensors and numbers: the type of a number counts, and not its value ----------------------------------------------

_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_RANGES = {DType.I32: (-2 ** 31, 2 ** 31 - 1), DType.I64: (-2 ** 63, 2 ** 63 - 1), DType.U8: (0, 255)}
_EXACT = 2 ** 53  # C takes numbers as doubles, which hold the integers to here


def promote(dtype, number):
    """The dtype in which a tensor and a number meet."""
    if dtype in _FLOATING or isinstance(number, bool):
        return dtype
    if isinstance(number, numbers.Integral):
        return DType.I64 if dtype == DType.BOOL else dtype
    return DType.F32


def number_dtype(*values):
    """The dtype of a tensor that is made of numbers alone."""
    dtype = DType.BOOL
    for value in values:
        dtype = promote(dtype, value)
    return dtype


def check_number(name, number, dtype):
    """Refuses an int that a dtype of integers does not hold, and tells whether a double holds it."""
    if not isinstance(number, numbers.Integral) or dtype not in _RANGES:
        return True
    least, greatest = _RANGES[dtype]
    if not least <= number <= greatest:
        raise OverflowError(f"{name}: {number} is no number of {dtype.value_nick}, which holds {least} to {greatest}: "
                            "cast the tensor first, as by float()")
    return -_EXACT <= number <= _EXACT


def make_scalar(name, number, dtype, device):
    """A tensor of one number and no dimensions."""
    if check_number(name, number, dtype):
        return _scalar(float(number), dtype, device)
    return _cast(_reshape(_new_from_ints([int(number)], [1]), []), dtype).to(device)


def _with_integers(name, between, scalar, swapped):
    """An op of a tensor of integers or bool and a number."""

    def apply(self, other):
        dtype = DType.F32 if name == "div" else promote(self.get_dtype(), other)
        if dtype == DType.F32 and scalar is not None:
            return scalar(_cast(self, dtype), float(other))
        if name in _COMPARISONS and dtype in _RANGES:
            dtype = DType.I64  # in which u8 and i32 are less than what they don't hold
        x = self if dtype == self.get_dtype() else _cast(self, dtype)
        if name == "pow" and other < 0:
            raise ValueError(f"pow: {other} is a negative exponent of {dtype.value_nick}: cast the tensor first, as by "
                             "float()")
        if scalar is not None and check_number(name, other, dtype) and dtype != DType.BOOL:
            return scalar(x, float(other))
        y = make_scalar(name, other, dtype, self.get_device())
        return between(y, x) if swapped else between(x, y)

    return apply


def _binary(name, scalar_name=None, swapped=False):
    between = _function(name)
    scalar = _function(scalar_name or name + "_scalar") if scalar_name != "" else None
    with_integers = _with_integers(name, between, scalar, swapped)

    def method(self, other):
        if isinstance(other, Tensor):
            return between(other, self) if swapped else between(self, other)
        if isinstance(other, (float, int)) or isinstance(other, numbers.Real):
            if scalar is None or self.get_dtype() not in _FLOATING:
                return with_integers(self, other)
            return scalar(self, float(other))
        # Said here, for Python's own words are of indices and numpy's of ufuncs. A list is equal to no tensor.
        if hasattr(other, "__array_interface__") or isinstance(other, (list, tuple)) and name not in ("eq", "ne"):
            raise TypeError(f"{name}: {show(other)} is no tensor and no number: write ebb.tensor() of it")
        return NotImplemented

    return method


# -- changes in place --------------------------------------------------------------------------------------------------

_fill, _copy_from, _add_scaled, _fill_normal, _fill_uniform, _get_item, _get_item_int = (
    guard(getattr(Ebb.Tensor, name)) for name in
    ("fill", "copy_from", "add_scaled", "fill_normal", "fill_uniform", "get_item", "get_item_int"))
_get_grad, _detach = Ebb.Tensor.get_grad, Ebb.Tensor.detach
_is_grad_enabled, _requires_grad, _is_leaf = Ebb.is_grad_enabled, Ebb.Tensor.get_requires_grad, Ebb.Tensor.is_leaf


def _is_recorded(self, other):
    """Whether a graph has to know of self op= other, so that it gives a new tensor; a leaf's refusal is left to C."""
    if not _is_grad_enabled():
        return False
    if _requires_grad(self):
        return not _is_leaf(self)
    return isinstance(other, Ebb.Tensor) and _requires_grad(other)


def _in_place(name):
    """add_() and its kin: changes self, and returns it."""
    between = guard(getattr(Ebb.Tensor, f"{name}_in_place"))
    scalar = guard(getattr(Ebb.Tensor, f"{name}_scalar_in_place"))
    copying = by_copy(f"{name}_", _binary(name))

    def method(self, other):
        if isinstance(other, Ebb.Tensor):
            between(self, other)
        elif isinstance(other, numbers.Real) and self.get_dtype() in _FLOATING:
            scalar(self, float(other))
        elif isinstance(other, numbers.Real):
            copying(self, other)
        else:
            raise TypeError(f"{name}_(): other is {show(other)}: it must be a tensor or a number")
        return self

    method.__name__ = f"{name}_"
    method.__doc__ = f"Writes self {_SIGNS[name]} other, a tensor or a number, to self; returns self."
    return method


_SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}


def _in_place_with_alpha(name, sign):
    change = _in_place(name)

    def method(self, other, alpha=1):
        if alpha == 1:
            return change(self, other)
        if not isinstance(other, Ebb.Tensor):
            return change(self, other * alpha)
        _add_scaled(self, other, sign * alpha)
        return self

    method.__name__ = f"{name}_"
    method.__doc__ = f"Writes self {_SIGNS[name]} alpha * other to self; returns self."
    return method


def by_copy(name, function):
    """What has no change in place of its own is computed apart and copied."""

    def method(self, *args, **kwargs):
        Ebb.push_grad_enabled(False)
        try:
            result = function(self, *args, **kwargs)
        finally:
            Ebb.pop_grad_enabled()
        if result.get_shape() != self.get_shape():
            raise ValueError(f"{name}: the result is of shape {result.get_shape()}, and the tensor of "
                             f"{self.get_shape()}: write it to another one")
        if (result.get_dtype() in _FLOATING and self.get_dtype() not in _FLOATING
                or self.get_dtype() == DType.BOOL != result.get_dtype()):
            raise TypeError(f"{name}: the result is of {result.get_dtype().value_nick}, which a tensor of "
                            f"{self.get_dtype().value_nick} can't hold")
        _copy_from(self, result)
        return self

    method.__name__ = name
    method.__doc__ = "Writes the result to self; returns self."
    return method


def _assign(change, compute):
    """An operator as +=: in place, unless a graph records it."""

    def method(self, other):
        if not isinstance(other, (Ebb.Tensor, numbers.Real)):
            return NotImplemented
        return compute(self, other) if _is_recorded(self, other) else change(self, other)

    return method


def _unary(name):
    function = _function(name)

    def method(self):
        return function(self)

    method.__name__ = name
    return method


def sizes(shape):
    """A shape from f(2, 3), f((2, 3)) or f([2, 3])."""
    if len(shape) == 1 and isinstance(shape[0], (list, tuple)):
        shape = shape[0]
    try:
        return [operator.index(size) for size in shape]
    except TypeError:
        raise TypeError(f"sizes {show(tuple(shape))}: they must be ints") from None


def dimensions(dim):
    """A list of dimensions from None (all), one, or several."""
    if dim is None:
        return None
    return [dim] if isinstance(dim, int) else [operator.index(d) for d in dim]


def _reduction(name):
    function = _function(name)

    def method(self, dim=None, keepdim=False):
        return function(self, dimensions(dim), keepdim)

    method.__name__ = name
    return method


# -- the class --------------------------------------------------------------------------------------------------------

@override
class Tensor(Ebb.Tensor):
    __module__ = "gi.overrides.Ebb"
    __array_ufunc__ = None  # numpy leaves operators with a tensor on the right to the tensor

    def __new__(cls, data=(), *more):
        """Floats from numbers or lists of them, as PyTorch's torch.Tensor; ebb.tensor() goes by their type."""
        if more or isinstance(data, (int, float)):
            given = ", ".join(map(str, (data, *more)))
            raise TypeError(f"Tensor(): {given} may be a shape or numbers: say ebb.empty(), or ebb.Tensor() of a list")
        from gi.overrides._ebb_functions import tensor
        return tensor(data, dtype=DType.F32)

    def __init__(self, *_):
        pass  # all is done; that of PyGObject refuses

    # what it is
    @property
    def shape(self):
        return tuple(self.get_shape())

    @property
    def strides(self):
        return tuple(self.get_strides())

    @property
    def ndim(self):
        """How many dimensions it has."""
        return self.get_n_dims()

    @property
    def dtype(self):
        return self.get_dtype()

    @property
    def device(self):
        return self.get_device()

    @property
    def nbytes(self):
        """The bytes of its elements."""
        return self.get_n_bytes()

    def size(self, dim=None):
        """The shape, or the size of one dimension."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self):
        return self.get_n_dims()

    def numel(self):
        """How many elements it has."""
        return self.get_n_elements()

    def __len__(self):
        if not self.get_n_dims():
            raise TypeError("a tensor without dimensions has no length")
        return self.get_dim(0)

    # gradients
    @property
    def requires_grad(self):
        return self.get_requires_grad()

    @requires_grad.setter
    def requires_grad(self, value):
        self.set_requires_grad(bool(value))

    def detach(self):
        """The tensor without its graph, over the same memory."""
        return unify(_detach(self))

    @property
    def is_leaf(self):
        """Whether no op has made the tensor, or none that a graph records."""
        return _is_leaf(self)

    def requires_grad_(self, requires_grad=True):
        """Sets requires_grad; returns the tensor."""
        self.set_requires_grad(requires_grad)
        return self

    def get_grad(self):
        """The gradient, or None."""
        return unify(_get_grad(self))

    @property
    def grad(self):
        return self.get_grad()

    @grad.setter
    def grad(self, value):
        self.set_grad(value)

    def backward(self, gradient=None, retain_graph=False, inputs=None):
        inputs = [inputs] if isinstance(inputs, Tensor) else inputs
        if inputs is not None and not len(inputs):
            raise ValueError("backward: inputs is empty; leave it out for all leaves")
        _backward([self], None if gradient is None else [gradient], inputs, retain_graph)

    # values
    @property
    def __array_interface__(self):
        try:
            return self._describe_memory()
        except (TypeError, Error) as error:  # hasattr() must return False for memory that can't be shared
            raise AttributeError(str(error)) from None

    def _describe_memory(self):
        dtype = self.get_dtype()
        typestr = TYPESTRS.get(dtype)
        if typestr is None:
            raise TypeError("numpy has no bfloat16: use float() before")
        size = int(typestr[2:])
        return {"version": 3, "shape": self.shape, "typestr": typestr, "data": (_address(self) or size, False),
                "strides": tuple(step * size for step in self.get_strides())}

    def numpy(self):
        """A numpy array over the tensor's memory, which it keeps alive; no copy."""
        import numpy
        self._describe_memory()  # its errors are the tensor's
        return numpy.asarray(self)

    def __array__(self, *_, **__):  # asked by numpy where __array_interface__ is not there: the error says why
        return self.numpy()

    def __dlpack__(self, stream=None):
        """A DLPack capsule over the tensor's memory."""
        return make_capsule(self)

    def __dlpack_device__(self):
        return tuple(self.get_dlpack_device())

    def item(self):
        dtype = self.get_dtype()
        if dtype in _FLOATING:
            return _get_item(self)[1]
        value = _get_item_int(self)[1]
        return bool(value) if dtype == DType.BOOL else value

    def tolist(self):
        """The elements as nested lists of numbers; a number where there are no dimensions."""
        if self.get_dtype() in (DType.BF16, DType.F16):
            return self.detach().float().tolist()
        shape = self.shape
        if not shape:
            return self.item()
        if 0 in shape:
            return _nest_empty(shape)
        data = memoryview(_bytes(self).get_data())
        return data.cast(_FORMATS[self.get_dtype()], shape=shape).tolist()

    def __float__(self):
        return float(self.item())

    def __int__(self):
        return int(self.item())

    def __bool__(self):
        return bool(self.item())

    def __index__(self):
        if self.get_dtype() in _FLOATING:
            raise TypeError("only a tensor of integers can be an index")
        return int(self.item())

    def __format__(self, form):
        if not form and self.get_n_dims():
            return str(self)
        if self.get_n_dims():
            raise TypeError(f"a tensor of shape {self.shape} in the format {form!r}: format its item() or tolist()")
        return format(self.item(), form)

    # operators
    __add__ = __radd__ = _binary("add")
    __mul__ = __rmul__ = _binary("mul")
    __sub__, __rsub__ = _binary("sub"), _binary("sub", "rsub_scalar", swapped=True)
    __truediv__, __rtruediv__ = _binary("div"), _binary("div", "rdiv_scalar", swapped=True)
    __pow__ = pow = _binary("pow")
    __eq__, __ne__ = _binary("eq"), _binary("ne")
    __lt__, __le__, __gt__, __ge__ = _binary("lt"), _binary("le"), _binary("gt"), _binary("ge")
    __hash__ = Ebb.Tensor.__hash__  # by the tensor's address, not by its values
    __neg__ = neg = _unary("neg")
    __abs__ = abs = _unary("abs")
    __invert__, logical_not = _unary("bitwise_not"), _unary("logical_not")
    __matmul__ = matmul = lambda self, other: _matmul(self, other)
    __and__ = __rand__ = _binary("bitwise_and", "")
    __or__ = __ror__ = _binary("bitwise_or", "")
    logical_and = lambda self, other: _logical_and(self, other)
    logical_or = lambda self, other: _logical_or(self, other)

    def __rpow__(self, base):
        if not isinstance(base, numbers.Real):
            return NotImplemented
        dtype = promote(self.get_dtype(), base)
        return _pow(make_scalar("pow", base, dtype, self.get_device()), _cast(self, dtype))

    def __iter__(self):
        return (_select(self, 0, i) for i in range(len(self)))

    def __getitem__(self, key):
        return read_at(self, key)

    def __setitem__(self, key, value):
        if not isinstance(value, Ebb.Tensor):
            if isinstance(value, numbers.Real):
                if not check_number("x[...] = value", value, self.get_dtype()):
                    value = make_scalar("x[...] = value", value, self.get_dtype(), self.get_device())
            elif isinstance(value, (list, tuple)) or hasattr(value, "__array_interface__"):
                from gi.overrides._ebb_functions import tensor
                value = tensor(value, device=self.get_device())
            else:
                raise TypeError(f"{show(value)} can't be written to a tensor: it must be a number, a tensor, or a list "
                                "of numbers")
        write_at(self, key, value)

    # changes in place
    add_, sub_ = _in_place_with_alpha("add", 1), _in_place_with_alpha("sub", -1)
    mul_, div_ = _in_place("mul"), _in_place("div")
    __iadd__, __isub__ = _assign(_in_place("add"), __add__), _assign(_in_place("sub"), __sub__)
    __imul__, __itruediv__ = _assign(mul_, __mul__), _assign(div_, __truediv__)
    pow_ = by_copy("pow_", __pow__)
    __ipow__ = _assign(by_copy("**=", __pow__), __pow__)
    __imatmul__ = _assign(by_copy("@=", __matmul__), __matmul__)
    __iand__ = _assign(by_copy("&=", __and__), __and__)
    __ior__ = _assign(by_copy("|=", __or__), __or__)

    def fill_(self, value):
        """Writes one number to all elements; returns the tensor."""
        value = value.item() if isinstance(value, Ebb.Tensor) else value
        if check_number("fill_", value, self.get_dtype()):
            _fill(self, value)
        else:
            _copy_from(self, make_scalar("fill_", value, self.get_dtype(), self.get_device()))
        return self

    def zero_(self):
        """Writes zeros; returns the tensor."""
        _fill(self, 0)
        return self

    def copy_(self, source):
        """Copies the values of a tensor, converting their dtype; returns self."""
        if not isinstance(source, Ebb.Tensor):
            raise TypeError(f"copy_(): source is {show(source)}: it must be a tensor")
        _copy_from(self, source if source.get_device() == self.get_device() else _to_device(source, self.get_device()))
        return self

    def normal_(self, mean=0.0, std=1.0, generator=None):
        """Draws the elements from a normal distribution; returns the tensor."""
        _fill_normal(self, mean, std, generator)
        return self

    def uniform_(self, low=0.0, high=1.0, generator=None):
        """Draws the elements uniformly from [low, high); returns the tensor."""
        _fill_uniform(self, low, high, generator)
        return self

    def clamp_(self, min=None, max=None):
        """Bounds the elements in place; returns the tensor."""
        return _clamp_in_place(self, min, max)

    @property
    def data(self):
        """The tensor without its graph, over the same memory."""
        return self.detach()

    @data.setter
    def data(self, value):
        Ebb.push_grad_enabled(False)
        try:
            self.copy_(value)
        finally:
            Ebb.pop_grad_enabled()

    # shapes
    def reshape(self, *shape):
        return _reshape(self, sizes(shape))

    def view(self, *shape):
        return _view(self, sizes(shape))

    def permute(self, *dims):
        return _permute(self, sizes(dims))

    def expand(self, *shape):
        return _expand(self, sizes(shape))

    def transpose(self, dim0, dim1):
        return _transpose(self, dim0, dim1)

    @property
    def T(self):
        """A view with the dimensions in reverse order."""
        return _permute(self, list(range(self.get_n_dims()))[::-1])

    @property
    def mT(self):
        """A view with the last two dimensions exchanged."""
        return _transpose(self, -2, -1)

    def unsqueeze(self, dim):
        return _unsqueeze(self, dim)

    def squeeze(self, dim=None):
        """Without a dimension of size 1, or without all of them."""
        if dim is not None:
            return _squeeze(self, dim)
        return _reshape(self, [size for size in self.get_shape() if size != 1])

    def flatten(self, start_dim=0, end_dim=-1):
        return _flatten(self, start_dim, end_dim)

    def narrow(self, dim, start, length):
        return _narrow(self, dim, start, length)

    def split(self, size, dim=0):
        """Parts of a size along a dimension, or of the sizes in a list, as a tuple of views."""
        if not isinstance(size, (list, tuple)):
            return tuple(_split(self, size, dim))
        size, extent = sizes(size), self.shape[dim]
        if sum(size) != extent or min(size) < 0:
            raise ValueError(f"split(): parts of {size} for a dimension of size {extent}")
        return tuple(_narrow(self, dim, sum(size[:i]), part) for i, part in enumerate(size))

    def chunk(self, n_chunks, dim=0):
        return tuple(_chunk(self, n_chunks, dim))

    # types and places
    def to(self, *targets, dtype=None, device=None, non_blocking=False, copy=False, memory_format=None):
        """The tensor in another dtype or on another device, each an object or a name, in any order; copy: never the
        tensor itself. non_blocking: taken, copies are in the order of the device's queue."""
        dtype, device = split_targets(targets, dtype, device)
        result = self.clone() if copy else self
        if device is not None:
            result = _to_device(result, to_device(device))
        return result if dtype is None else _cast(result, to_dtype(dtype))

    def float(self):
        """The tensor in f32."""
        return _cast(self, DType.F32)

    def bfloat16(self):
        """The tensor in bf16."""
        return _cast(self, DType.BF16)

    def half(self):
        """The tensor in f16, which is for storage and conversion."""
        return _cast(self, DType.F16)

    def long(self):
        """The tensor in i64."""
        return _cast(self, DType.I64)

    def cpu(self):
        """The tensor on the CPU: itself where it is there."""
        return self.to("cpu")

    def clone(self):
        """A copy, through which gradients flow."""
        return _copy(self)

    # mathematics
    sum, mean = _reduction("sum"), _reduction("mean")
    exp, log, sqrt, rsqrt, square = map(_unary, ("exp", "log", "sqrt", "rsqrt", "square"))
    sin, cos, tanh, relu, silu, sigmoid = map(_unary, ("sin", "cos", "tanh", "relu", "silu", "sigmoid"))
    contiguous = _unary("contiguous")

    def norm(self, p=2, dim=None, keepdim=False):
        """The root of the sum of squares, all in all or along dimensions; p=1: the sum of magnitudes."""
        if p == 2:
            return _norm(self) if dim is None else self.square().sum(dim, keepdim).sqrt()
        if p != 1:
            raise ValueError(f"norm(): p is {show(p)}: it must be 2 or 1")
        return abs(self).sum(dim, keepdim)

    def var(self, dim=None, correction=1, keepdim=False, unbiased=None):
        return _var(self, dimensions(dim), correction if unbiased is None else int(unbiased), keepdim)

    def max(self, dim=None, keepdim=False):
        """The largest element, or along one dimension the largest ones and their indices."""
        return _max(self, None, keepdim) if dim is None else Found(*_max_along(self, dim, keepdim)[1:])

    def min(self, dim=None, keepdim=False):
        """The smallest element, or along one dimension the smallest ones and their indices."""
        if dim is None:
            return _min(self, None, keepdim)
        indices = self.argmin(dim, True)
        values = _gather(self, dim, indices)
        return Found(values, indices) if keepdim else Found(_squeeze(values, dim), _squeeze(indices, dim))

    def amax(self, dim=None, keepdim=False):
        """The largest elements along dimensions."""
        return _max(self, dimensions(dim), keepdim)

    def amin(self, dim=None, keepdim=False):
        """The smallest elements along dimensions."""
        return _min(self, dimensions(dim), keepdim)

    def argmax(self, dim=None, keepdim=False):
        return _argmax(_reshape(self, [-1]), 0, False) if dim is None else _argmax(self, dim, keepdim)

    def topk(self, k, dim=-1, largest=True):
        """The k largest or smallest elements along a dimension, in order, and their indices."""
        if isinstance(dim, bool):
            raise TypeError(f"topk(): dim is {dim}: it must be an int; write largest={dim}")
        if dim in (-1, self.ndim - 1):
            return Found(*_topk(self, k, largest)[1:])
        return Found(*(_transpose(found, dim, -1) for found in _topk(_transpose(self, dim, -1), k, largest)[1:]))

    def clamp(self, min=None, max=None):
        """The elements bounded by two numbers; one number may be left out."""
        x = self
        for bound in (min, max):
            if bound is not None and not isinstance(bound, numbers.Real):
                raise TypeError(f"clamp(): a bound is {show(bound)}: it must be a number; for a tensor write "
                                "ebb.maximum() or ebb.minimum()")
            if bound is not None and promote(x.get_dtype(), bound) != x.get_dtype():
                x = _cast(x, promote(x.get_dtype(), bound))
        if x.get_dtype() == DType.I64 and any(bound is not None and abs(bound) > _EXACT for bound in (min, max)):
            for bound, choose in (min, _maximum), (max, _minimum):
                if bound is not None:
                    x = choose(x, make_scalar("clamp", bound, DType.I64, x.get_device()))
            return x
        return _clamp(x, -math.inf if min is None else float(min), math.inf if max is None else float(max))

    def soft_cap(self, cap):
        """cap * tanh (x / cap)."""
        return _soft_cap(self, cap)

    def softmax(self, dim=-1):
        return _softmax(self, dim)

    def log_softmax(self, dim=-1):
        return _log_softmax(self, dim)

    def index_select(self, dim, indices):
        return _index_select(self, dim, indices)

    def gather(self, dim, indices):
        return _gather(self, dim, indices)


know_tensors(Tensor)
_matmul, _logical_and, _logical_or = map(_function, ("matmul", "logical_and", "logical_or"))
_view, _permute, _expand, _transpose, _squeeze, _flatten, _narrow, _split, _chunk = map(
    _function, ("view", "permute", "expand", "transpose", "squeeze", "flatten", "narrow", "split", "chunk"))
_to_device, _var, _max, _min, _max_along, _argmax, _topk, _clamp, _softmax, _log_softmax, _gather, _backward = map(
    _function, ("to_device", "var", "max", "min", "max_along", "argmax", "topk", "clamp", "softmax", "log_softmax",
                "gather", "backward"))
_soft_cap, _norm, _maximum, _minimum = map(_function, ("soft_cap", "norm", "maximum", "minimum"))
_clamp_in_place = by_copy("clamp_", Tensor.clamp)


def _nest_empty(shape):
    return [] if shape[0] == 0 else [_nest_empty(shape[1:]) for _ in range(shape[0])]
