"""Small ops that PyTorch's tensors have and C has not: rounding, remainders, running sums, special functions.

Each is made of the ops of C, so that gradients flow through it, or computed by numpy on the host with a gradient that
is made of ops. What numpy computes waits for the device, and is not there in a dry run.
"""
import math
import numbers

from gi.module import get_introspection_module
from gi.overrides._ebb_check import show
from gi.overrides._ebb_compose import tril
from gi.overrides._ebb_dlpack import from_numpy
from gi.overrides._ebb_errors import guard
from gi.overrides._ebb_functions import arange, cat, ones, rand, stack, tensor, where, zeros
from gi.overrides._ebb_tensor import DType, Found, Tensor, dimensions, make_scalar, promote, sizes, to_dtype

Ebb = get_introspection_module("Ebb")

_maximum, _minimum = guard(Ebb.maximum), guard(Ebb.minimum)
_WHOLE = 2.0**23  # from here on all f32 are integers
_FLOATING = (DType.F32, DType.BF16, DType.F16)


# -- numpy on the host, and gradients of one's own ---------------------------------------------------------------------

def _numpy():
    """numpy, which is imported where it is needed."""
    import numpy
    return numpy


def _array(value):
    if not isinstance(value, Tensor):
        return value
    value = value.detach().cpu()
    return (value.float() if value.dtype in (DType.BF16, DType.F16) else value).numpy()


def on_host(function, like, *values, dtype=None):
    """What a function of numpy arrays gives, beside a tensor and of its dtype or another one."""
    numpy = _numpy()
    with numpy.errstate(all="ignore"):
        result = numpy.asarray(function(*map(_array, values)))
    kind = {"f": numpy.float32, "b": numpy.bool_}.get(result.dtype.kind, numpy.int64)
    made = from_numpy(numpy.array(result, dtype=kind, order="C"))
    return made.to(like.device).to(like.dtype if dtype is None else dtype)


def _with_gradient(value, carrier):
    """The value of one tensor with the gradient of another."""
    return value + (carrier - carrier.detach()) if carrier.requires_grad and Ebb.is_grad_enabled() else value


def _with_slope(x, value, slope):
    """A value computed apart, with slope(x, value) as its derivative by x."""
    if not (x.requires_grad and Ebb.is_grad_enabled()):
        return value
    return _with_gradient(value, x * slope(x.detach(), value).detach())


def _as_float(x):
    return x if x.dtype in _FLOATING else x.float()


def pair(x, other):
    """Two operands in the dtype in which they meet."""
    if not isinstance(x, Tensor):
        other, x = pair(other, x)
        return x, other
    if isinstance(other, Tensor):
        dtype = Ebb.dtype_promote(x.dtype, other.dtype)
        return x.to(dtype), other.to(dtype)
    if not isinstance(other, numbers.Real):
        raise TypeError(f"{show(other)} is no tensor and no number: write ebb.tensor() of it")
    dtype = promote(x.dtype, other)
    return x.to(dtype), make_scalar("a number", other, dtype, x.device)


# -- rounding ----------------------------------------------------------------------------------------------------------

def _rounding(name, doc, compute):
    def method(self):
        if self.dtype not in _FLOATING:
            return self.clone()
        x = self.detach().float()
        small = abs(x) < _WHOLE
        return where(small, compute(x, where(small, x, 0.0).long().float()), x).to(self.dtype)

    method.__name__, method.__doc__ = name, doc
    return method


def _round_half_even(x, whole):
    below = where(whole > x, whole - 1, whole)
    is_odd = (below * 0.5).long().float() * 2 != below
    rest = x - below
    return below + ((rest > 0.5) | ((rest == 0.5) & is_odd)).float()


# -- special functions -------------------------------------------------------------------------------------------------

def _special(name, function, slope):
    """A function of numpy's with its derivative."""
    def method(self):
        x = _as_float(self)
        return _with_slope(x, on_host(lambda a: function(_numpy(), a.astype("f8")), x, x.detach()), slope)

    method.__name__, method.__doc__ = name, f"{name} of each element, computed on the host."
    return method


def _erf(x):
    """erf(x), by its series near 0 and by GELU elsewhere, which is x (1 + erf(x / sqrt(2))) / 2."""
    near, square = abs(x) < 0.5, x * x
    series = sum((-1)**k * square**k / (math.factorial(k) * (2 * k + 1)) for k in range(1, 9)) + 1.0
    far = where(near, 1.0, x * math.sqrt(2))
    return where(near, x * series * (2 / math.sqrt(math.pi)), 2 * Ebb.gelu(far, Ebb.GeluKind.EXACT) / far - 1)


def _log1p(x):
    sum_ = x + 1
    return where(sum_ == 1, x, where(sum_ == math.inf, sum_, sum_.log() * (x / where(sum_ == 1, 1.0, sum_ - 1))))


def _expm1(x):
    power = x.exp()
    less, log = power - 1, power.log()
    ratio = less * (x / where((log == 0) | (abs(log) == math.inf), 1.0, log))
    return where(power == 1, x, where((less == -1) | (power == math.inf), less, ratio))


def _made(name, compute, slope):
    """A function made of ops, whose derivative is given, as that of its composition is not exact."""
    def method(self):
        x = _as_float(self)
        values = x.detach().float()
        return _with_slope(x, compute(values).to(x.dtype), slope)

    method.__name__, method.__doc__ = name, f"{name} of each element."
    return method


# -- remainders --------------------------------------------------------------------------------------------------------

def divide_on_host(name, self, other, swapped=False):
    x, y = pair(other, self) if swapped else pair(self, other)
    if x.dtype == DType.BOOL:
        x, y = x.long(), y.long()
    if x.dtype not in _FLOATING and bool((y == 0).any()):
        raise ZeroDivisionError(f"{name} of integers by 0: write float() before for inf and nan")
    return x, y, on_host(lambda a, b: getattr(_numpy(), name)(a, b), x, x.detach(), y.detach())


def _quotient(self, other, swapped=False):
    return divide_on_host("floor_divide", self, other, swapped)[2]


def _remainder(self, other, swapped=False, name="remainder"):
    x, y, value = divide_on_host(name, self, other, swapped)
    if x.dtype in _FLOATING and (x.requires_grad or y.requires_grad):
        times = ((x - value) / y).detach().round()
        return _with_gradient(value, x - times * y)
    return value


def _bitwise(name):
    def method(self, other):
        x, y = pair(self, other)
        if name == "bitwise_xor" and x.dtype == DType.BOOL:
            return x != y
        return on_host(lambda a, b: getattr(_numpy(), name)(a, b), x, x, y)

    method.__name__, method.__doc__ = name, f"{name} of each pair of elements; for integers computed on the host."
    return method


# -- running sums and products -----------------------------------------------------------------------------------------

_BLOCK = 256  # elements whose running sums are one product with a triangle of ones


def _running_sum(x):
    """Running sums along the last dimension, by products with triangles of ones."""
    n = x.shape[-1]
    if n <= _BLOCK:
        return x @ tril(ones(n, n, device=x.device), 0).mT
    n_blocks = -(-n // _BLOCK)
    filled = cat([x, zeros(*x.shape[:-1], n_blocks * _BLOCK - n, device=x.device)], -1)
    blocks = _running_sum(filled.reshape(*x.shape[:-1], n_blocks, _BLOCK))
    before = _running_sum(blocks[..., -1]) - blocks[..., -1]
    return (blocks + before.unsqueeze(-1)).reshape(filled.shape).narrow(-1, 0, n)


def _is_differentiated(x):
    return Ebb.is_dry_run() or x.requires_grad and Ebb.is_grad_enabled()


class Ops:
    """Methods of tensors."""

    trunc = _rounding("trunc", "The integers towards 0.", lambda x, whole: whole)
    floor = _rounding("floor", "The next integers below.", lambda x, whole: where(whole > x, whole - 1, whole))
    ceil = _rounding("ceil", "The next integers above.", lambda x, whole: where(whole < x, whole + 1, whole))
    _round_whole = _rounding("round", "The nearest integers.", _round_half_even)
    fix = trunc

    def round(self, decimals=0):
        """Each element rounded to `decimals` decimals; a half is rounded to the even neighbour."""
        return self._round_whole() if decimals == 0 else (self * 10.0**decimals)._round_whole() / 10.0**decimals

    def frac(self):
        """What is behind the decimal point."""
        return self - self.trunc()

    def sign(self):
        """1 above 0, -1 below, 0 for 0."""
        return ((self > 0).long() - (self < 0).long()).to(self.dtype)

    sgn = sign
    erf = _made("erf", _erf, lambda x, y: (-x.square()).exp() * (2 / math.sqrt(math.pi)))
    log1p = _made("log1p", _log1p, lambda x, y: 1 / (x + 1))
    expm1 = _made("expm1", _expm1, lambda x, y: y + 1)
    tan = _special("tan", lambda np, a: np.tan(a), lambda x, y: y * y + 1)
    asin = arcsin = _special("asin", lambda np, a: np.arcsin(a), lambda x, y: (1 - x * x).rsqrt())
    acos = arccos = _special("acos", lambda np, a: np.arccos(a), lambda x, y: -(1 - x * x).rsqrt())
    atan = arctan = _special("atan", lambda np, a: np.arctan(a), lambda x, y: 1 / (x * x + 1))
    sinh = _special("sinh", lambda np, a: np.sinh(a), lambda x, y: (y * y + 1).sqrt())
    cosh = _special("cosh", lambda np, a: np.cosh(a), lambda x, y: (x.exp() - (-x).exp()) * 0.5)
    asinh = arcsinh = _special("asinh", lambda np, a: np.arcsinh(a), lambda x, y: (x * x + 1).rsqrt())
    acosh = arccosh = _special("acosh", lambda np, a: np.arccosh(a), lambda x, y: (x * x - 1).rsqrt())
    atanh = arctanh = _special("atanh", lambda np, a: np.arctanh(a), lambda x, y: 1 / (1 - x * x))

    def erfc(self):
        """1 - erf(x)."""
        return 1 - self.erf()

    def reciprocal(self):
        """1 / x."""
        return 1 / self

    def exp2(self):
        """2 ** x."""
        return 2.0 ** _as_float(self)

    def log2(self):
        """The logarithm to the base of 2."""
        return self._log_to(2)

    def log10(self):
        """The logarithm to the base of 10."""
        return self._log_to(10)

    def _log_to(self, base):
        x = _as_float(self)
        if not _is_differentiated(x):
            return on_host(lambda a: getattr(_numpy(), f"log{base}")(a.astype("f8")), x, x)
        return x.log() / math.log(base)

    def logit(self, eps=None):
        """log(x / (1 - x)), of x between eps and 1 - eps where eps is given."""
        x = self if eps is None else self.clamp(eps, 1 - eps)
        return (x / (1 - x)).log()

    def logaddexp(self, other):
        """log(exp(self) + exp(other))."""
        most = self.maximum(other)
        same = (self == other) & (abs(self) == math.inf)
        return most + where(same, math.log(2), (-abs(where(same, 0.0, self) - where(same, 0.0, other))).exp().log1p())

    def atan2(self, other):
        """The angle of each point (other, self)."""
        y, x = pair(_as_float(self), other)
        value = on_host(lambda a, b: _numpy().arctan2(a, b), y, y.detach(), x.detach())
        square = (x * x + y * y).detach()
        return _with_gradient(value, y * (x.detach() / square) - x * (y.detach() / square))

    arctan2 = atan2

    def hypot(self, other):
        """sqrt(self ** 2 + other ** 2)."""
        return (self.square() + other.square()).sqrt()

    def copysign(self, other):
        """The magnitudes of self with the signs of other."""
        x, y = pair(_as_float(self), other)
        return where((y < 0) | ((y == 0) & (1 / y < 0)), -abs(x), abs(x))

    def maximum(self, other):
        """The larger of each two elements of two tensors."""
        return _maximum(self, other)

    def minimum(self, other):
        """The smaller of each two elements of two tensors."""
        return _minimum(self, other)

    def fmax(self, other):
        """The larger of each two elements, or the one that is a number."""
        return where(self.isnan(), other, where(other.isnan(), self, self.maximum(other)))

    def fmin(self, other):
        """The smaller of each two elements, or the one that is a number."""
        return where(self.isnan(), other, where(other.isnan(), self, self.minimum(other)))

    def lerp(self, end, weight):
        """The points between self and end, weight of the way."""
        return self + (end - self) * weight

    def addcmul(self, a, b, *, value=1):
        """self + value * a * b."""
        return self + a * b * value

    def addcdiv(self, a, b, *, value=1):
        """self + value * a / b."""
        return self + a / b * value

    def addmv(self, matrix, vector, *, beta=1, alpha=1):
        """beta * self + alpha * (matrix @ vector)."""
        return self * beta + (matrix @ vector) * alpha

    def baddbmm(self, a, b, *, beta=1, alpha=1):
        """beta * self + alpha * (a @ b)."""
        return self * beta + (a @ b) * alpha

    def nan_to_num(self, nan=0.0, posinf=None, neginf=None):
        """Numbers in place of NaN and the infinities, which are the largest of f32 where none are given."""
        most = finfo(self.dtype).max
        x = where(self.isnan(), nan, self)
        x = where(x == math.inf, most if posinf is None else posinf, x)
        return where(x == -math.inf, -most if neginf is None else neginf, x)

    def clamp_min(self, min):
        """The elements, or min where they are less."""
        return self.clamp(min=min)

    def clamp_max(self, max):
        """The elements, or max where they are more."""
        return self.clamp(max=max)

    def clip(self, min=None, max=None):
        """The same as clamp()."""
        return self.clamp(min, max)

    def deg2rad(self):
        """Degrees as radians."""
        return self * (math.pi / 180)

    def rad2deg(self):
        """Radians as degrees."""
        return self * (180 / math.pi)

    def softplus(self):
        """log(1 + exp(x))."""
        return self.relu() + (-abs(self)).exp().log1p()

    # division
    def floor_divide(self, other):
        """The quotients, rounded down; computed on the host."""
        return _quotient(self, other)

    def remainder(self, other):
        """The remainder of a division that rounds down, which has the sign of other; computed on the host."""
        return _remainder(self, other)

    __floordiv__, __mod__ = floor_divide, remainder
    __rfloordiv__ = lambda self, other: _quotient(self, other, True)
    __rmod__ = lambda self, other: _remainder(self, other, True)

    def fmod(self, other):
        """The remainder of a division towards 0, which has the sign of self."""
        return _remainder(self, other, name="fmod")

    __xor__ = __rxor__ = bitwise_xor = logical_xor = _bitwise("bitwise_xor")
    __lshift__, __rshift__ = _bitwise("left_shift"), _bitwise("right_shift")

    def bitwise_and(self, other):
        """The same as the operator, &."""
        return self & other

    def bitwise_or(self, other):
        """The same as the operator, |."""
        return self | other

    def bitwise_not(self):
        """The same as the operator, ~."""
        return ~self

    # along a dimension
    def cumsum(self, dim, dtype=None):
        """Running sums along a dimension. The host computes the sums of a tensor that needs no gradient."""
        x = self if dtype is None else self.to(to_dtype(dtype))
        if _is_differentiated(x):
            return _running_sum(x.float().transpose(dim, -1)).transpose(dim, -1).to(x.dtype)
        wide = "f8" if x.dtype in _FLOATING else "i8"
        kept = x.dtype if x.dtype in _FLOATING or dtype is not None else DType.I64
        return on_host(lambda a: a.astype(wide).cumsum(dim), x, x, dtype=kept)

    def cumprod(self, dim, dtype=None):
        """Running products along a dimension."""
        x = self if dtype is None else self.to(to_dtype(dtype))
        x = x if x.dtype in _FLOATING else x.long()
        parts = list(x.unbind(dim))
        for i in range(1, len(parts)):
            parts[i] = parts[i - 1] * parts[i]
        return stack(parts, dim) if parts else x.clone()

    def cummax(self, dim):
        """The largest elements so far along a dimension, and their indices."""
        return self._extreme_so_far(dim, lambda a, b: a >= b)

    def cummin(self, dim):
        """The smallest elements so far along a dimension, and their indices."""
        return self._extreme_so_far(dim, lambda a, b: a <= b)

    def _extreme_so_far(self, dim, is_next):
        parts, places = list(self.unbind(dim)), []
        for i, part in enumerate(parts):
            place = part.detach().long() * 0 + i
            if i:
                better = is_next(part, parts[i - 1]) | part.isnan()
                parts[i], place = where(better, part, parts[i - 1]), where(better, place, places[-1])
            places.append(place)
        return Found(stack(parts, dim), stack(places, dim))

    def prod(self, dim=None, keepdim=False, *, dtype=None):
        """The product of all elements, or along one dimension."""
        x = self if dtype is None else self.to(to_dtype(dtype))
        x = x if x.dtype in _FLOATING else x.long()
        x = x.reshape(-1) if dim is None else x.transpose(dim, -1)
        while x.shape[-1] > 1:
            half = x.shape[-1] // 2
            pairs = x.narrow(-1, 0, half) * x.narrow(-1, half, half)
            x = pairs if x.shape[-1] == 2 * half else cat([pairs, x.narrow(-1, 2 * half, 1)], -1)
        if not x.shape[-1]:
            x = ones(*x.shape[:-1], 1, dtype=x.dtype, device=x.device)
        if dim is None:
            return x.reshape(())
        x = x.transpose(dim, -1)
        return x if keepdim else x.squeeze(dim)

    def logsumexp(self, dim, keepdim=False):
        """log of the sum of exp along dimensions."""
        most = self.detach().amax(dim, True)
        most = where(abs(most) == math.inf, 0.0, most)
        result = (self - most).exp().sum(dim, True).log() + most
        return result if keepdim else result.squeeze(dim)

    def nansum(self, dim=None, keepdim=False):
        """The sum of the elements that are numbers."""
        return where(self.isnan(), 0.0, self).sum(dim, keepdim)

    def nanmean(self, dim=None, keepdim=False):
        """The mean of the elements that are numbers."""
        return self.nansum(dim, keepdim) / (~self.isnan()).float().sum(dim, keepdim)

    def count_nonzero(self, dim=None):
        """How many elements are not 0."""
        return self.bool().long().sum(dim)

    def median(self, dim=None, keepdim=False):
        """The element in the middle, the lower one of two, or along a dimension these and their indices."""
        if dim is None:
            return self.reshape(-1).sort()[0][(self.numel() - 1) // 2]
        found = self.sort(dim)
        found = Found(*(part.narrow(dim, (self.shape[dim] - 1) // 2, 1) for part in found))
        return found if keepdim else Found(*(part.squeeze(dim) for part in found))

    def quantile(self, q, dim=None, keepdim=False):
        """The numbers below which a part of the elements is, between two by a straight line; q is a number."""
        if not isinstance(q, numbers.Real):
            raise TypeError(f"quantile(): q is {show(q)}: it must be a number: write ebb.stack() of several quantiles")
        x, along = (self.reshape(-1), 0) if dim is None else (self, dim)
        ordered, place = x.sort(along)[0], q * (x.shape[along] - 1)
        low, high = (ordered.narrow(along, int(at), 1) for at in (math.floor(place), math.ceil(place)))
        result = low.lerp(high, place - math.floor(place))
        return result if keepdim and dim is not None else result.squeeze(along)

    def diff(self, n=1, dim=-1):
        """The differences of neighbours along a dimension, n times."""
        x = self
        for _ in range(n):
            size = x.shape[dim]
            x = x.narrow(dim, 1, size - 1) - x.narrow(dim, 0, size - 1)
        return x

    def aminmax(self, *, dim=None, keepdim=False):
        """The smallest and the largest elements."""
        return self.amin(dim, keepdim), self.amax(dim, keepdim)

    def renorm(self, p, dim, maxnorm):
        """The slices along a dimension, scaled so that their norm is maxnorm at most."""
        others = [d for d in range(self.ndim) if d != dim % self.ndim]
        norms = self.norm(p, others, True)
        return self * where(norms > maxnorm, maxnorm / (norms + 1e-7), 1.0)

    # by values
    def unique(self, sorted=True, return_inverse=False, return_counts=False, dim=None):
        """The different elements, in order; then where each element is among them, and how often they occur."""
        import numpy
        found = numpy.unique(_array(self), return_inverse=True, return_counts=True, axis=dim)
        values = on_host(lambda a: found[0], self, self)
        inverse = on_host(lambda a: found[1].reshape(self.shape if dim is None else -1), self, self, dtype=DType.I64)
        counts = on_host(lambda a: found[2], self, self, dtype=DType.I64)
        more = [part for part, wanted in ((inverse, return_inverse), (counts, return_counts)) if wanted]
        return (values, *more) if more else values

    def bincount(self, weights=None, minlength=0):
        """The number of elements with each value 0, 1, …, or with weights the sum of their weights."""
        dtype = DType.I64 if weights is None else DType.F32
        return on_host(lambda a, b: _numpy().bincount(a, b, minlength), self, self, weights, dtype=dtype)

    def histc(self, bins=100, min=0, max=0):
        """The number of elements in each of `bins` equal parts of [min, max]; 0 and 0 stand for the range of all."""
        low, high = (self.min().item(), self.max().item()) if min == max == 0 else (min, max)
        return on_host(lambda a: _numpy().histogram(a, bins, (low, high))[0], self, self)

    def bucketize(self, boundaries, *, right=False):
        """For each element, how many boundaries, which are in order, are below it; with right, not above it."""
        side = "right" if right else "left"
        return on_host(lambda a, b: b.searchsorted(a, side), self, self, boundaries, dtype=DType.I64)

    def isin(self, values):
        """Whether each element is one of the values."""
        values = values if isinstance(values, Tensor) else tensor(values, device=self.device).reshape(-1)
        return on_host(lambda a, b: _numpy().isin(a, b), self, self, values, dtype=DType.BOOL)

    def isclose(self, other, rtol=1e-5, atol=1e-8, equal_nan=False):
        """Whether each element differs from other's by no more than rtol times that plus atol."""
        near = (self == other) | ((abs(self - other) <= abs(other) * rtol + atol) & (abs(other) < math.inf))
        return near | (self.isnan() & other.isnan()) if equal_nan else near

    def __contains__(self, value):
        return bool((self == value).any())

    # shapes
    def select(self, dim, index):
        """The slice at an index of a dimension, a view."""
        return Ebb.select(self, dim, index)

    def unflatten(self, dim, shape):
        """One dimension as several."""
        at = dim % self.ndim
        return self.reshape(*self.shape[:at], *shape, *self.shape[at + 1:])

    def movedim(self, source, destination):
        """Dimensions in other places."""
        sources, targets = ([d % self.ndim for d in dimensions(given)] for given in (source, destination))
        order = [d for d in range(self.ndim) if d not in sources]
        for target, at in sorted(zip(targets, sources)):
            order.insert(target, at)
        return self.permute(order)

    moveaxis = movedim

    def swapdims(self, dim0, dim1):
        """The same as transpose()."""
        return self.transpose(dim0, dim1)

    def adjoint(self):
        """The same as mT, as all tensors are real."""
        return self.mT

    def ravel(self):
        """The elements in one dimension."""
        return self.reshape(-1)

    def tile(self, *counts):
        """Copies side by side, as repeat() makes them, of fewer dimensions than there are as well."""
        counts = sizes(counts)
        return self.repeat([1] * (self.ndim - len(counts)) + counts)

    def roll(self, shifts, dims=None):
        """The elements shifted along dimensions; elements that leave at one end enter at the other."""
        if dims is None:
            return self.reshape(-1).roll(shifts, 0).reshape(self.shape)
        x = self
        for shift, dim in zip(dimensions(shifts), dimensions(dims)):
            n = x.shape[dim]
            at = (n - shift) % n if n else 0
            x = cat([x.narrow(dim, at, n - at), x.narrow(dim, 0, at)], dim) if at else x
        return x.clone() if x is self else x

    def rot90(self, k=1, dims=(0, 1)):
        """The elements of two dimensions turned by k quarters."""
        x = self
        for _ in range(k % 4):
            x = x.flip(dims[1]).transpose(*dims)
        return x.clone() if x is self else x

    def broadcast_to(self, *shape):
        """The same as expand()."""
        return self.expand(*shape)

    def unfold(self, dim, size, step):
        """Windows of a size along a dimension, one every step elements, in a new last dimension; a copy."""
        at = dim % self.ndim
        n = (self.shape[at] - size) // step + 1
        places = arange(n, device=self.device).reshape(n, 1) * step + arange(size, device=self.device)
        return self.index_select(at, places.reshape(-1)).unflatten(at, (n, size)).movedim(at + 1, -1)

    def diagonal(self, offset=0, dim1=0, dim2=1):
        """The elements of a diagonal of two dimensions, in a new last dimension; a copy."""
        x = self.movedim((dim1, dim2), (-2, -1)) if self.ndim > 2 else self.permute(dim1 % 2, dim2 % 2)
        rows, columns = x.shape[-2:]
        first = (max(-offset, 0), max(offset, 0))
        n = max(min(rows - first[0], columns - first[1]), 0)
        places = arange(n, device=self.device) * (columns + 1) + (first[0] * columns + first[1])
        return x.reshape(*x.shape[:-2], rows * columns).index_select(-1, places)

    def diag(self, diagonal=0):
        """A vector as the diagonal of a matrix, or the diagonal of a matrix."""
        return self.diag_embed(diagonal) if self.ndim == 1 else self.diagonal(diagonal)

    def diag_embed(self, offset=0):
        """Matrices whose diagonals are the last dimension, with zeros elsewhere."""
        n = self.shape[-1] + abs(offset)
        rows, columns = arange(n, device=self.device).reshape(n, 1), arange(n, device=self.device)
        places = (rows + min(offset, 0)).clamp(0, max(self.shape[-1] - 1, 0))
        spread = self.index_select(-1, places.reshape(-1)).unsqueeze(-1)
        return where((columns - rows == offset).expand(*self.shape[:-1], n, n), spread.expand(*self.shape[:-1], n, n),
                     0.0 if self.dtype in _FLOATING else 0)

    def trace(self):
        """The sum of the diagonal of a matrix."""
        return self.diagonal().sum()

    def tensor_split(self, sections, dim=0):
        """Parts that are nearly equal, or that begin at the indices given."""
        n = self.shape[dim]
        if isinstance(sections, int):
            sizes_ = [n // sections + (i < n % sections) for i in range(sections)]
        else:
            ends = [0, *sections, n]
            sizes_ = [end - begin for begin, end in zip(ends, ends[1:])]
        return self.split(sizes_, dim)

    def squeeze(self, dim=None):
        """Without a dimension of size 1, some of them, or all."""
        if not isinstance(dim, (tuple, list)):
            return _squeeze(self, dim)
        kept = {d % self.ndim for d in dim}
        return self.reshape([size for at, size in enumerate(self.shape) if at not in kept or size != 1])

    # writing at indices
    def index_add(self, dim, index, source, *, alpha=1):
        """self, with the slices of source added to those at the indices, which may occur several times."""
        n = self.shape[dim]
        picks = (index.reshape(1, -1) == arange(n, device=self.device).reshape(n, 1)).float()
        moved = source.transpose(dim, 0)
        sums = (picks @ moved.reshape(moved.shape[0], -1).float()).reshape(n, *moved.shape[1:]).transpose(dim, 0)
        return self + (sums * alpha).to(self.dtype)

    def index_fill(self, dim, index, value):
        """self with a number in the slices at the indices."""
        return self.clone().detach().index_fill_(dim, index, value) if not self.requires_grad else where(
            self._marks(dim, index), value, self)

    def _marks(self, dim, index):
        n = self.shape[dim]
        marks = (index.reshape(1, -1) == arange(n, device=self.device).reshape(n, 1)).any(1)
        return marks.reshape([n if d == dim % self.ndim else 1 for d in range(self.ndim)]).expand(self.shape)

    def index_fill_(self, dim, index, value):
        """Writes a number to the slices at the indices; returns the tensor."""
        return self.masked_fill_(self._marks(dim, index), value)

    def index_copy_(self, dim, index, source):
        """Writes the slices of source to those at the indices; returns the tensor."""
        self[(slice(None),) * (dim % self.ndim) + (index,)] = source
        return self

    def take(self, index):
        """The elements at places in the order of memory, in the shape of index."""
        return self.reshape(-1).index_select(0, index.reshape(-1)).reshape(index.shape)

    def take_along_dim(self, indices, dim=None):
        """The same as gather(); without dim, of all elements in one dimension."""
        return self.reshape(-1).gather(0, indices.reshape(-1)) if dim is None else self.gather(dim, indices)

    def scatter_(self, dim, index, src=None, *, value=None, reduce=None):
        """Writes numbers, or the elements of src, to the places along a dimension that index names; returns the tensor.
        reduce: "add" or "multiply" combines each number with the one that is there."""
        src = value if src is None else src
        if isinstance(src, Tensor) and src.requires_grad and Ebb.is_grad_enabled():
            raise RuntimeError("scatter_(): src requires a gradient, which does not flow: write ebb.where(), or "
                               "ebb.scatter_add() for sums")
        if reduce not in (None, "add", "multiply"):
            raise ValueError(f"scatter_(): reduce is {show(reduce)}: it must be None, 'add' or 'multiply'")

        def write(a, at, values):
            import numpy
            places = list(numpy.indices(at.shape))
            places[dim] = at
            values = values[tuple(map(slice, at.shape))] if hasattr(values, "shape") and values.shape else values
            a = a.copy()
            if reduce is None:
                a[tuple(places)] = values
            else:
                (numpy.add if reduce == "add" else numpy.multiply).at(a, tuple(places), values)
            return a

        with_values = src.to(self.dtype) if isinstance(src, Tensor) else src
        return self.copy_(on_host(write, self, self, index, with_values))

    def scatter(self, dim, index, src=None, *, value=None, reduce=None):
        """scatter_() of a copy."""
        return self.clone().scatter_(dim, index, src, value=value, reduce=reduce)

    def scatter_add_(self, dim, index, src):
        """Adds the elements of src to those at the places along a dimension; returns the tensor."""
        return self.scatter_(dim, index, src, reduce="add")

    # types
    def type(self, dtype=None):
        """The tensor in another dtype."""
        if dtype is None:
            raise TypeError("type(): the names of PyTorch's tensor types are not there: write t.dtype")
        return self.to(to_dtype(dtype))

    def byte(self):
        """The tensor in u8."""
        return self.to(DType.U8)

    def data_ptr(self):
        """The address of the first element."""
        return self.get_address()

    @property
    def itemsize(self):
        """The bytes of an element."""
        return self.element_size()

    @property
    def is_meta(self):
        """Whether the tensor has no data, on the device "meta"."""
        return self.device.get_name() == "meta"

    is_cpu = property(lambda self: self.device.get_name() == "cpu", doc="Whether the tensor is on the CPU.")
    is_sparse = is_quantized = property(lambda self: False, doc="False: there are no such tensors.")

    def is_complex(self):
        """False: there are no complex numbers."""
        return False

    def new_tensor(self, data, dtype=None, device=None, requires_grad=False):
        """A tensor of data, of this dtype, where the tensor is, unless others are asked for."""
        return tensor(data, dtype=self.dtype if dtype is None else dtype,
                      device=self.device if device is None else device, requires_grad=requires_grad)

    def new_empty(self, *shape, dtype=None, device=None):
        """A tensor of this dtype, where the tensor is, whose elements are whatever its memory holds."""
        return Ebb.Tensor.new_empty(sizes(shape), self.dtype if dtype is None else to_dtype(dtype),
                                    self.device if device is None else device)

    def detach_(self):
        """There is no such change: a new tensor is detached."""
        raise RuntimeError("detach_(): a tensor can't leave its graph: write t = t.detach()")

    # random numbers
    def bernoulli_(self, p=0.5, *, generator=None):
        """Draws 1 with the probability p, else 0; returns the tensor."""
        return self.copy_((rand(*self.shape, device=self.device, generator=generator) < p).to(self.dtype))

    def random_(self, low=0, high=None, *, generator=None):
        """Draws integers from low to high - 1, or from 0 to low - 1; returns the tensor."""
        low, high = (0, low) if high is None else (low, high)
        drawn = Ebb.randint(low, high, list(self.shape), DType.I64, self.device, generator)
        return self.copy_(drawn.to(self.dtype))

    def exponential_(self, lambd=1.0, *, generator=None):
        """Draws from an exponential distribution; returns the tensor."""
        drawn = rand(*self.shape, device=self.device, generator=generator)
        return self.copy_((1 - drawn).log() * (-1 / lambd))


class finfo:
    """The numbers that describe a dtype of floats: max, min, eps, tiny, bits."""

    _OF = {DType.F32: (32, 24, 127), DType.BF16: (16, 8, 127), DType.F16: (16, 11, 15)}

    def __init__(self, dtype=DType.F32):
        dtype = to_dtype(dtype)
        if dtype not in self._OF:
            raise TypeError(f"finfo(): {dtype} has no fractions: write ebb.iinfo({dtype})")
        self.bits, digits, exponent = self._OF[dtype]
        self.dtype = dtype.value_nick
        self.eps = 2.0**(1 - digits)
        self.max = (2 - self.eps) * 2.0**exponent
        self.min = -self.max
        self.tiny = self.smallest_normal = 2.0**(1 - exponent)
        self.resolution = {24: 1e-6, 8: 1e-2, 11: 1e-3}[digits]


class iinfo:
    """The numbers that describe a dtype of integers: max, min, bits."""

    _OF = {DType.I64: (64, True), DType.I32: (32, True), DType.U8: (8, False)}

    def __init__(self, dtype):
        dtype = to_dtype(dtype)
        if dtype not in self._OF:
            raise TypeError(f"iinfo(): {dtype} is no dtype of integers: write ebb.finfo({dtype})")
        self.bits, is_signed = self._OF[dtype]
        self.dtype = dtype.value_nick
        self.min = -2**(self.bits - 1) if is_signed else 0
        self.max = 2**(self.bits - is_signed) - 1


_squeeze = Tensor.squeeze
