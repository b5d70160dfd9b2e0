"""Functions that PyTorch has, wider arguments of methods that there are already, and the methods of _ebb_ops."""
import contextlib
import functools
import inspect
import math
import numbers
import operator
import os
import types

from gi.module import get_introspection_module
from gi.overrides._ebb_check import show
from gi.overrides._ebb_compose import as_tensor
from gi.overrides._ebb_dlpack import from_numpy
from gi.overrides._ebb_functions import arange, cat, from_method, ones, rand, randn, stack, tensor, where, zeros
from gi.overrides._ebb_ops import Ops, divide_on_host, finfo, iinfo, on_host, pair
from gi.overrides._ebb_tensor import DType, Found, Tensor, by_copy, dimensions, sizes, to_dtype

Ebb = get_introspection_module("Ebb")

_FLOATING = (DType.F32, DType.BF16, DType.F16)


# -- arguments as PyTorch and numpy call them --------------------------------------------------------------------------

_RENAMED = {"axis": "dim", "keepdims": "keepdim", "index": "indices"}
_NAMED_ALIKE = ("sum", "mean", "std", "var", "amax", "amin", "argmax", "argmin", "any", "all", "prod", "max", "min",
                "norm", "logsumexp", "softmax", "log_softmax", "sort", "argsort", "topk", "flip", "median", "squeeze",
                "unsqueeze", "gather", "index_select", "cumsum", "cumprod", "nansum", "nanmean", "quantile")


def _take_names(method):
    """A method that takes axis, keepdims and index, a dtype that its operand is cast to, and stable and sorted, which
    sorts and searches are anyhow."""
    own = inspect.signature(method).parameters

    @functools.wraps(method)
    def call(self, *args, **kwargs):
        if kwargs:
            for other, name in _RENAMED.items():
                if other in kwargs and other not in own:
                    kwargs[name] = kwargs.pop(other)
            dtype = kwargs.pop("dtype", None) if "dtype" not in own else None
            self = self if dtype is None else self.to(to_dtype(dtype))
            for name in ("stable", "sorted"):
                if name in kwargs and name not in own:
                    kwargs.pop(name)
        return method(self, *args, **kwargs)

    return call


_max, _min, _clamp, _div, _repeat_interleave, _view, _norm = (
    getattr(Tensor, name) for name in ("max", "min", "clamp", "div", "repeat_interleave", "view", "norm"))


class _Wider:
    """Methods that there are already, for more kinds of arguments."""

    def max(self, dim=None, keepdim=False):
        """The largest element, the larger of each two, or along one dimension the largest ones and their indices."""
        return self.maximum(dim) if isinstance(dim, Tensor) else _max(self, dim, keepdim)

    def min(self, dim=None, keepdim=False):
        """The smallest element, the smaller of each two, or along one dimension the smallest and their indices."""
        return self.minimum(dim) if isinstance(dim, Tensor) else _min(self, dim, keepdim)

    def clamp(self, min=None, max=None):
        """The elements bounded by numbers or tensors; one bound may be left out."""
        x = self
        if len({isinstance(bound, Tensor) for bound in (min, max) if bound is not None}) > 1:
            bound = min if isinstance(min, Tensor) else max
            raise TypeError(f"clamp(): a bound is {show(bound)}, and the other a number: write two tensors")
        if isinstance(min, Tensor):
            x, min = x.maximum(min), None
        if isinstance(max, Tensor):
            x, max = x.minimum(max), None
        return _clamp(x, min, max) if x is self or (min, max) != (None, None) else x

    def div(self, other, *, rounding_mode=None):
        """The quotients; rounding_mode: "floor" or "trunc"."""
        if rounding_mode not in (None, "floor", "trunc"):
            raise ValueError(f"div(): rounding_mode is {show(rounding_mode)}: it must be None, 'floor' or 'trunc'")
        if rounding_mode is None:
            return _div(self, other)
        if rounding_mode == "floor":
            return self // other
        quotient = _div(self, other).trunc()
        is_integer = self.dtype not in _FLOATING and not isinstance(other, float) and (
            not isinstance(other, Tensor) or other.dtype not in _FLOATING)
        if is_integer:
            x, y = pair(self, other)
            return divide_on_host("floor_divide", abs(x), abs(y))[2] * x.sign() * y.sign()
        return quotient

    divide = true_divide = div
    multiply, subtract = Tensor.mul, Tensor.sub

    def negative(self):
        """-x."""
        return -self

    def absolute(self):
        """The magnitudes."""
        return abs(self)

    greater, greater_equal, less, less_equal = Tensor.gt, Tensor.ge, Tensor.lt, Tensor.le
    not_equal = Tensor.ne

    def mv(self, vector):
        """A matrix times a vector."""
        return self @ vector

    def inner(self, other):
        """The products of the last dimensions, summed."""
        return self @ other.mT if other.ndim > 1 else self @ other

    ger = Tensor.outer
    H = property(lambda self: self.mT, doc="The same as mT, as all tensors are real.")
    vdot = Tensor.dot

    def addr(self, a, b, *, beta=1, alpha=1):
        """beta * self + alpha * the products of all elements of two vectors."""
        return self * beta + a.outer(b) * alpha

    def dist(self, other, p=2.0):
        """The norm of the difference."""
        return (self - other).norm(p)

    def rsub(self, other, *, alpha=1):
        """other - alpha * self."""
        return other - self * alpha

    def float_power(self, exponent):
        """There are no 64-bit floats."""
        raise TypeError("float_power(): there are no 64-bit floats: write t ** exponent")

    def xlogy(self, other):
        """self * log(other), 0 where self is 0."""
        other = other if isinstance(other, Tensor) else self * 0 + other
        return where(self == 0, self * 0.0, self * where(self == 0, 1.0, other).log())

    def sinc(self):
        """sin(pi x) / (pi x), 1 for 0."""
        x = self * math.pi
        return where(x == 0, 1.0, x.sin() / where(x == 0, 1.0, x))

    def heaviside(self, values):
        """0 below 0, 1 above, and values for 0."""
        return where(self == 0, values, (self > 0).to(self.dtype))

    def signbit(self):
        """Whether the sign is negative, that of -0 as well."""
        return (self < 0) | ((self == 0) & (1 / self < 0))

    def isposinf(self):
        """True where elements are above all numbers."""
        return self == math.inf

    def isneginf(self):
        """True where elements are below all numbers."""
        return self == -math.inf

    def positive(self):
        """The tensor itself."""
        return self

    real = property(positive, doc="The tensor itself, as all are real.")
    conj = resolve_conj = positive

    def argwhere(self):
        """The same as nonzero()."""
        return self.nonzero()

    def fliplr(self):
        """The elements of the second dimension in reverse order."""
        return self.flip(1)

    def flipud(self):
        """The elements of the first dimension in reverse order."""
        return self.flip(0)

    def diagflat(self, offset=0):
        """All elements as the diagonal of a matrix."""
        return self.reshape(-1).diag_embed(offset)

    def msort(self):
        """The elements of the first dimension in order."""
        return self.sort(0)[0]

    def kthvalue(self, k, dim=-1, keepdim=False):
        """The k-th smallest elements along a dimension, and their indices."""
        found = Found(*(part.narrow(dim, k - 1, 1) for part in self.sort(dim)))
        return found if keepdim else Found(*(part.squeeze(dim) for part in found))

    def logcumsumexp(self, dim):
        """log of running sums of exp along a dimension."""
        parts = list(self.unbind(dim))
        for i in range(1, len(parts)):
            parts[i] = parts[i - 1].logaddexp(parts[i])
        return stack(parts, dim)

    def split_with_sizes(self, sizes, dim=0):
        """The same as split()."""
        return self.split(sizes, dim)

    def hsplit(self, sections):
        """tensor_split() of the second dimension, of a vector's only one."""
        return self.tensor_split(sections, 0 if self.ndim == 1 else 1)

    def vsplit(self, sections):
        """tensor_split() of the first dimension."""
        return self.tensor_split(sections, 0)

    def kron(self, other):
        """The products of all elements of self with all of other, in blocks."""
        n = max(self.ndim, other.ndim)
        a, b = (x.reshape([1] * (n - x.ndim) + list(x.shape)) for x in (self, other))
        pairs = zip(a.shape, b.shape)
        a = a.reshape([size for extent in a.shape for size in (extent, 1)])
        b = b.reshape([size for extent in b.shape for size in (1, extent)])
        return (a * b).reshape([one * two for one, two in pairs])

    def unique_consecutive(self):
        """The elements without those that are equal to the one before."""
        x = self.reshape(-1)
        return x[cat([ones(min(1, x.numel()), device=x.device).bool(), x.narrow(0, 1, max(x.numel() - 1, 0))
                      != x.narrow(0, 0, max(x.numel() - 1, 0))])] if x.numel() else x

    def masked_scatter(self, mask, source):
        """The elements, with those of source in order where a mask is true; computed on the host."""
        def write(a, at, values):
            a = a.copy()
            a[at] = values.reshape(-1)[:at.sum()]
            return a

        return on_host(write, self, self, mask.expand(self.shape), source)

    def index_put_(self, indices, values, accumulate=False):
        """Writes values to the places that tensors of indices name, one for each dimension, or adds them; returns the
        tensor."""
        def write(a, new, *at):
            import numpy
            a = a.copy()
            if accumulate:
                numpy.add.at(a, at, new)
            else:
                a[at] = new
            return a

        return self.copy_(on_host(write, self, self, values, *indices))

    def fill_diagonal_(self, value):
        """Writes a number to the diagonal of a matrix; returns the tensor."""
        n = min(self.shape)
        for i in range(n):
            self[i, i] = value
        return self

    def ndimension(self):
        """How many dimensions it has."""
        return self.ndim

    def is_signed(self):
        """Whether the dtype has negative numbers."""
        return self.dtype not in (DType.U8, DType.BOOL)

    def is_same_size(self, other):
        """Whether the shapes are equal."""
        return self.shape == other.shape

    def is_pinned(self):
        """False: memory that a GPU copies from is pinned by itself."""
        return False

    def pin_memory(self):
        """The tensor itself: memory that a GPU copies from is pinned by itself."""
        return self

    def resize_(self, *_):
        """There is no such change."""
        raise RuntimeError("resize_(): a tensor keeps its size: write t.reshape(), or ebb.zeros() of the new size")

    def repeat_interleave(self, n, dim=None):
        """Each slice along a dimension n times, side by side; without dim, each element."""
        if isinstance(n, (Tensor, list, tuple)):
            counts = n.tolist() if isinstance(n, Tensor) else n
            x, at = (self.reshape(-1), 0) if dim is None else (self, dim)
            places = [i for i, count in enumerate(counts) for _ in range(count)]
            return x.index_select(at, tensor(places, dtype=DType.I64, device=self.device))
        return _repeat_interleave(self.reshape(-1) if dim is None else self, n, dim or 0)

    def view(self, *shape):
        """The same memory in another shape, or as elements of another dtype of the same size, on the CPU."""
        if len(shape) != 1 or not isinstance(shape[0], DType):
            return _view(self, *shape)
        size, wanted = Ebb.dtype_get_size(self.dtype), Ebb.dtype_get_size(shape[0])
        names = {DType.F32: "f4", DType.I32: "i4", DType.I64: "i8", DType.U8: "u1", DType.F16: "f2"}
        if size != wanted or shape[0] not in names or self.dtype not in names:
            raise TypeError(f"view(): {self.dtype} can't be seen as {shape[0]}: write to({shape[0]}) to convert it")
        return from_numpy(self.numpy().view(names[shape[0]]))

    def norm(self, p=2.0, dim=None, keepdim=False):
        """The root of the sum of squares, all in all or along dimensions; p: 1, math.inf or another number."""
        p = {"fro": 2, None: 2}.get(p, p)
        if p in (1, 2) or not isinstance(p, numbers.Real):
            return _norm(self, p, dim, keepdim)
        x = abs(self)
        if abs(p) == math.inf:
            return x.amax(dim, keepdim) if p > 0 else x.amin(dim, keepdim)
        return (x != 0).to(x.dtype).sum(dim, keepdim) if p == 0 else (x**p).sum(dim, keepdim)**(1 / p)


# -- functions ---------------------------------------------------------------------------------------------------------

def pow(input, exponent):
    """Powers of tensors and numbers."""
    return input**exponent


def concat(tensors, dim=0):
    """The same as cat()."""
    return cat(tensors, dim)


concatenate = concat


def atleast_1d(x):
    """A tensor of one dimension at least."""
    return x.reshape(1) if x.ndim == 0 else x


def atleast_2d(x):
    """A tensor of two dimensions at least."""
    return x.reshape(1, -1) if x.ndim < 2 else x


def hstack(tensors):
    """Tensors side by side: along the second dimension, vectors along the first."""
    tensors = list(map(atleast_1d, tensors))
    return cat(tensors, 0 if tensors[0].ndim == 1 else 1)


def vstack(tensors):
    """Tensors one below the other, vectors as rows."""
    return cat(list(map(atleast_2d, tensors)), 0)


def column_stack(tensors):
    """Tensors side by side, vectors as columns."""
    return cat([x.reshape(-1, 1) if x.ndim < 2 else x for x in tensors], 1)


def meshgrid(*tensors, indexing="ij"):
    """Each vector along its dimension of a common shape, in the others repeated; indexing "xy" swaps the first two."""
    vectors = list(tensors[0]) if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)) else list(tensors)
    if indexing == "xy":
        vectors[:2] = vectors[1::-1]
    shape = [x.numel() for x in vectors]
    grids = [x.reshape([-1 if i == at else 1 for i in range(len(vectors))]).expand(shape)
             for at, x in enumerate(vectors)]
    if indexing == "xy":
        grids[:2] = grids[1::-1]
        grids = [grid.transpose(0, 1) for grid in grids] if len(grids) < 2 else grids
    return tuple(grids)


def atleast_3d(x):
    """A tensor of three dimensions at least."""
    return x.unsqueeze(-1) if x.ndim == 2 else x if x.ndim > 2 else atleast_2d(x).unsqueeze(-1)


def dstack(tensors):
    """Tensors one behind the other, along the third dimension."""
    return cat(list(map(atleast_3d, tensors)), 2)


def block_diag(*tensors):
    """Matrices along the diagonal of one, with zeros elsewhere."""
    matrices, rows = list(map(atleast_2d, tensors)), []
    for i, matrix in enumerate(matrices):
        rows.append(cat([matrix if i == j else zeros(matrix.shape[0], other.shape[1], dtype=matrix.dtype,
                                                     device=matrix.device) for j, other in enumerate(matrices)], 1))
    return cat(rows, 0)


def cartesian_prod(*tensors):
    """All combinations of the elements of vectors, as rows."""
    if len(tensors) == 1:
        return tensors[0]
    return stack([grid.reshape(-1) for grid in meshgrid(*tensors)], 1)


def broadcast_shapes(*shapes):
    """The shape that tensors of these shapes have together."""
    return broadcast_tensors(*(Ebb.Tensor.new_empty(list(shape), DType.BOOL, None) for shape in shapes))[0].shape


def logspace(start, end, steps, base=10.0, *, dtype=DType.F32, device=None):
    """Powers of base whose exponents go from start to end at equal distances."""
    count = max(steps - 1, 1)
    return (base**(arange(steps, device=device).float() * ((end - start) / count) + start)).to(to_dtype(dtype))


def scalar_tensor(value, *, dtype=DType.F32, device=None):
    """A tensor of one number and no dimensions."""
    return tensor(value, dtype=dtype, device=device)


def asarray(data, *, dtype=None, device=None):
    """The same as as_tensor()."""
    return as_tensor(data, dtype, device)


def can_cast(source, target):
    """Whether results of one dtype may be written to tensors of another: floats to floats alone, numbers not to
    bool."""
    rank = [0 if dtype == DType.BOOL else 2 if dtype in _FLOATING else 1 for dtype in map(to_dtype, (source, target))]
    return rank[0] <= rank[1]


def trapezoid(y, x=None, *, dx=1.0, dim=-1):
    """The areas below lines through points."""
    n = y.shape[dim]
    sides = y.narrow(dim, 1, n - 1) + y.narrow(dim, 0, n - 1)
    return (sides * (dx if x is None else x.diff())).sum(dim) * 0.5


trapz = trapezoid


def broadcast_tensors(*tensors):
    """Tensors in the shape that they have together."""
    n = max(x.ndim for x in tensors)
    shapes = [[1] * (n - x.ndim) + list(x.shape) for x in tensors]
    shape = [max(sizes) if 0 not in sizes else 0 for sizes in zip(*shapes)]
    return tuple(x.expand(shape) for x in tensors)


def tensordot(a, b, dims=2):
    """Products summed over dimensions: over the last ones of a and the first ones of b, or the two lists in dims."""
    if isinstance(dims, int):
        dims = list(range(a.ndim - dims, a.ndim)), list(range(dims))
    left, right = ([d % x.ndim for d in dimensions(given)] for given, x in zip(dims, (a, b)))
    rows, columns = ([d for d in range(x.ndim) if d not in taken] for x, taken in ((a, left), (b, right)))
    n = math.prod(a.shape[d] for d in left)
    product = a.permute(rows + left).reshape(-1, n) @ b.permute(right + columns).reshape(n, -1)
    return product.reshape([a.shape[d] for d in rows] + [b.shape[d] for d in columns])


def cdist(a, b, p=2.0):
    """The distances of all rows of a [.., n, d] and b [.., m, d]."""
    return (a.unsqueeze(-2) - b.unsqueeze(-3)).norm(p, -1)


def cross(a, b, dim=-1):
    """The vector products of vectors of three elements."""
    def turn(x, shift):
        return x.roll(-shift, dim)

    return turn(a, 1) * turn(b, 2) - turn(a, 2) * turn(b, 1)


def _indices(keep):
    def make(row, col=None, offset=0, device=None):
        col = row if col is None else col
        pairs = [(i, j) for i in range(row) for j in range(col) if keep(j - i, offset)]
        return tensor(pairs, dtype=DType.I64, device=device).reshape(-1, 2).T.contiguous()

    make.__doc__ = "The rows and the columns, [2, n], of the elements of a triangle."
    return make


tril_indices, triu_indices = _indices(lambda d, offset: d <= offset), _indices(lambda d, offset: d >= offset)


def var_mean(x, dim=None, *, correction=1, keepdim=False):
    """The variance and the mean."""
    return x.var(dim, correction, keepdim), x.mean(dim, keepdim)


def std_mean(x, dim=None, *, correction=1, keepdim=False):
    """The standard deviation and the mean."""
    return x.std(dim, correction, keepdim), x.mean(dim, keepdim)


def searchsorted(ordered, values, *, right=False, side=None):
    """Where each value would be put into a vector in order, before equal ones or, with right, behind them."""
    values = values if isinstance(values, Tensor) else tensor(values, device=ordered.device)
    return values.bucketize(ordered, right=right or side == "right")


def randint_like(x, low, high=None, *, dtype=None, device=None):
    """Random integers of the shape and dtype of x."""
    return Ebb.Tensor.new_empty(list(x.shape), x.dtype if dtype is None else to_dtype(dtype),
                                x.device if device is None else device).random_(low, high)


def normal(mean=0.0, std=1.0, size=None, *, generator=None, device=None):
    """Normal random numbers, of the shape of the tensors mean and std, or of a size."""
    like = next((x for x in (mean, std) if isinstance(x, Tensor)), None)
    if like is None and size is None:
        raise TypeError("normal(): mean and std are numbers: write a size, as normal(0.0, 1.0, (2, 3))")
    shape = size if size is not None else broadcast_tensors(*(x for x in (mean, std) if isinstance(x, Tensor)))[0].shape
    return randn(*sizes((shape,)), generator=generator, device=device if like is None else like.device) * std + mean


def bernoulli(x, *, generator=None):
    """1 with the probability that x says, else 0."""
    return (rand(*x.shape, device=x.device, generator=generator) < x).to(x.dtype)


def multinomial(weights, num_samples, replacement=False, *, generator=None):
    """Indices drawn with the weights as probabilities, from each row; each index once, unless with replacement."""
    if replacement or num_samples == 1:
        return Ebb.multinomial(weights, num_samples, generator)
    n = int((weights > 0).long().sum(-1).min())
    if num_samples > n:
        raise ValueError(f"multinomial(): num_samples is {num_samples}, of {n} weights above 0: write "
                         "replacement=True to draw some twice")
    drawn = rand(*weights.shape, device=weights.device, generator=generator)
    return (weights.float().log() - (-drawn.log()).log()).topk(num_samples)[1]


def result_type(a, b):
    """The dtype in which two tensors or numbers meet."""
    return pair(a, b)[0].dtype if isinstance(a, Tensor) or isinstance(b, Tensor) else tensor([a, b]).dtype


def promote_types(a, b):
    """The dtype in which tensors of two dtypes meet."""
    return Ebb.dtype_promote(to_dtype(a), to_dtype(b))


def is_nonzero(x):
    """Whether the only element is not 0."""
    return bool(x)


def get_default_dtype():
    """f32: what tensors of floats are made in."""
    return DType.F32


def set_default_dtype(dtype):
    """Takes f32, which it is already."""
    if to_dtype(dtype) != DType.F32:
        raise TypeError(f"set_default_dtype(): {to_dtype(dtype)}: tensors of floats are made in f32: write dtype=, or "
                        "`with ebb.parameter_dtype(\"bf16\"):` for layers")


def use_deterministic_algorithms(mode, *, warn_only=False):
    """Takes any mode: the same program gives the same bits as it is."""


def are_deterministic_algorithms_enabled():
    """True: the same program gives the same bits."""
    return True


def set_float32_matmul_precision(precision):
    """Takes any precision: products of f32 are computed in f32."""


def compile(model=None, **_):
    """Returns the model or function as it is; a decorator without one."""
    return model if model is not None else lambda function: function


def is_autocast_enabled(device_type=None):
    """Whether products are computed in a lower precision here, which is so on all devices or on none."""
    return Ebb.is_autocast_enabled()


def manual_seed(seed):
    """Seeds the random numbers of this thread; returns their generator."""
    _manual_seed(seed)
    return Ebb.Generator.get_default()


def initial_seed():
    """The seed of this thread's generator."""
    return Ebb.Generator.get_default().get_seed()


def seed():
    """Seeds the random numbers of this thread by those of the system; returns the seed."""
    value = int.from_bytes(os.urandom(8), "little")
    _manual_seed(value)
    return value


def get_float32_matmul_precision():
    """"highest": products of f32 are computed in f32."""
    return "highest"


def get_rng_state():
    """The seed and the offset of this thread's generator, as 16 bytes."""
    return Ebb.Generator.get_default().get_state()


def set_rng_state(state):
    """Continues this thread's generator from what get_rng_state() gave."""
    Ebb.Generator.get_default().set_state(state)


_manual_seed = Ebb.manual_seed


class _GradMode:
    """Sets at once whether graphs are recorded, and undoes it at the end of a with statement or a decorated call."""

    def __init__(self, mode=True):
        self.mode = bool(mode)
        Ebb.push_grad_enabled(self.mode)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        Ebb.pop_grad_enabled()

    def __call__(self, function):
        self.__exit__()

        @functools.wraps(function)
        def call(*args, **kwargs):
            with type(self)(self.mode):
                return function(*args, **kwargs)

        return call


class set_grad_enabled(_GradMode):
    """Records graphs or not from here on, or in a with statement."""


def inference_mode(mode=True):
    """The same as no_grad(), in a with statement or as a decorator."""
    if callable(mode):
        return inference_mode()(mode)
    return _InferenceMode(mode)


class _InferenceMode(contextlib.ContextDecorator):
    def __init__(self, mode):
        self.mode = mode

    def __enter__(self):
        Ebb.push_grad_enabled(not self.mode)

    def __exit__(self, *_):
        Ebb.pop_grad_enabled()


def LongTensor(data):
    """A tensor of i64."""
    return tensor(data, dtype=DType.I64)


def FloatTensor(data):
    """A tensor of f32."""
    return tensor(data, dtype=DType.F32)


def IntTensor(data):
    """A tensor of i32."""
    return tensor(data, dtype=DType.I32)


def ByteTensor(data):
    """A tensor of u8."""
    return tensor(data, dtype=DType.U8)


def HalfTensor(data):
    """A tensor of f16."""
    return tensor(data, dtype=DType.F16)


def BoolTensor(data):
    """A tensor of bool."""
    return tensor(data, dtype=DType.BOOL)


# -- tensors get them --------------------------------------------------------------------------------------------------

_IN_PLACE = ("exp", "log", "sqrt", "rsqrt", "square", "sin", "cos", "tan", "tanh", "sigmoid", "relu", "abs", "neg",
             "floor", "ceil", "round", "trunc", "frac", "sign", "reciprocal", "exp2", "expm1", "log1p", "log2", "log10",
             "erf", "lerp", "addcmul", "addcdiv", "baddbmm", "remainder", "fmod", "floor_divide", "clip", "clamp_min",
             "clamp_max", "tril", "triu", "nan_to_num", "cumsum", "cumprod", "logical_not", "softmax", "index_add",
             "eq", "ne", "lt", "le", "gt", "ge", "bitwise_and", "bitwise_or", "bitwise_xor", "addmm", "asin", "acos",
             "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "erfc", "logit", "atan2", "hypot", "copysign", "divide",
             "multiply", "subtract", "negative", "absolute", "logical_and", "logical_or", "logical_xor", "deg2rad",
             "rad2deg", "sgn", "fix", "xlogy", "sinc", "heaviside", "addr", "masked_scatter", "renorm", "greater",
             "less", "true_divide", "bitwise_not", "addmv")


def _refuse_ufunc(self, ufunc, method, *inputs, **kwargs):
    """numpy's functions of a tensor, where tensors have the same one."""
    name = {"absolute": "abs", "negative": "neg", "arctan2": "atan2"}.get(ufunc.__name__, ufunc.__name__)
    if method == "__call__" and not kwargs:
        if ufunc.nin == 1 and hasattr(Tensor, name):
            return getattr(self, name)()
        first, second = (inputs + (None,))[:2]
        operation = _UFUNCS.get(ufunc.__name__)
        if ufunc.nin == 2 and operation and not any(getattr(value, "ndim", 0) and not isinstance(value, Tensor)
                                                    for value in inputs):
            return operation(*(value if isinstance(value, Tensor) else value.item() if hasattr(value, "item") else value
                               for value in (first, second)))
    for value in inputs:
        if not isinstance(value, Tensor) and getattr(value, "ndim", 0):
            raise TypeError(f"{ufunc.__name__}: {show(value)} is no tensor and no number: write ebb.tensor() of it")
    raise TypeError(f"{ufunc.__name__}: tensors are no arrays: write numpy.{ufunc.__name__}(t.numpy())")


_UFUNCS = {"add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "divide": operator.truediv,
           "true_divide": operator.truediv, "power": operator.pow, "equal": operator.eq, "not_equal": operator.ne,
           "less": operator.lt, "less_equal": operator.le, "greater": operator.gt, "greater_equal": operator.ge,
           "floor_divide": operator.floordiv, "remainder": operator.mod, "matmul": operator.matmul,
           "maximum": lambda a, b: Ops.maximum(a, b), "minimum": lambda a, b: Ops.minimum(a, b)}


def _add_methods():
    for group in (Ops, _Wider):
        for name, value in vars(group).items():
            if name not in ("__module__", "__doc__", "__dict__", "__weakref__"):
                setattr(Tensor, name, value)
    for name in _NAMED_ALIKE:
        setattr(Tensor, name, _take_names(getattr(Tensor, name)))
    for name in _IN_PLACE:
        if f"{name}_" not in vars(Tensor):
            setattr(Tensor, f"{name}_", by_copy(f"{name}_", getattr(Tensor, name)))
    for name in ("squeeze", "unsqueeze", "transpose", "t"):
        setattr(Tensor, f"{name}_", _refuse_view(name))
    for name, value in vars(Tensor).items():
        if isinstance(value, types.FunctionType) and not name.startswith("_"):
            value.__qualname__ = f"Tensor.{name}"
            value.__name__ = name
    Tensor.__array_ufunc__ = _refuse_ufunc


def _refuse_view(name):
    def method(self, *_):
        raise RuntimeError(f"{name}_(): a tensor keeps its shape: write t = t.{name}()")

    method.__doc__ = f"There is no such change: write t = t.{name}()."
    return method


_add_methods()
_METHODS = (*(name for name, value in (*vars(Ops).items(), *vars(_Wider).items())
              if not name.startswith("_") and not name.endswith("_") and isinstance(value, types.FunctionType)
              and not name.startswith(("new_", "is_"))
              and name not in ("type", "byte", "pin_memory", "ndimension", "data_ptr", "tile", "view")),
            "chunk",
            "eq", "ne", "lt", "le", "gt", "ge", "gather", "index_select", "masked_fill", "swapaxes", "t", "tile",
            "clone", "repeat_interleave", "unflatten", "isclose", "logical_not", "addmm", "sum", "mean",
            "max", "min", "argmax", "softmax", "log_softmax", "clamp", "var", "norm", "std", "sort", "topk", "any",
            "all")
exports = {
    **{name: from_method(name) for name in dict.fromkeys(_METHODS)},
    **{function.__name__: function for function in (
        pow, concat,
        atleast_1d, atleast_2d, hstack, vstack, column_stack, meshgrid, broadcast_tensors, tensordot, cdist,
        cross, var_mean, std_mean, searchsorted, randint_like, normal, bernoulli, multinomial, result_type,
        promote_types, is_nonzero, get_default_dtype, set_default_dtype, use_deterministic_algorithms,
        are_deterministic_algorithms_enabled, set_float32_matmul_precision, compile, is_autocast_enabled, manual_seed,
        initial_seed, seed, get_float32_matmul_precision,
        get_rng_state, set_rng_state, set_grad_enabled, inference_mode, LongTensor, FloatTensor,
        BoolTensor, IntTensor, ByteTensor, HalfTensor, finfo, iinfo, atleast_3d, dstack, block_diag, cartesian_prod,
        broadcast_shapes, logspace, scalar_tensor, asarray, can_cast, trapezoid)},
    "trapz": trapz, "row_stack": vstack,
    "concatenate": concatenate, "tril_indices": tril_indices, "triu_indices": triu_indices}
