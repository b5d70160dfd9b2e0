"""Functions and methods that PyTorch has and C has not: each is made of ops, so gradients flow through it."""
import functools
import math
import numbers
import types

from gi.module import get_introspection_module
from gi.overrides._ebb_check import show, suggest_attribute
from gi.overrides._ebb_dlpack import from_dlpack, from_numpy
from gi.overrides._ebb_errors import Error, guard
from gi.overrides._ebb_functions import (arange, choice, cross_entropy, empty, from_method, full, ones, rand, randn,
                                         stack, tensor, where, zeros)
from gi.overrides._ebb_indexing import find_set, make_indices
from gi.overrides._ebb_tensor import (DType, Found, Tensor, dimensions, make_scalar, promote, sizes,
                                       to_device, to_dtype)

Ebb = get_introspection_module("Ebb")

select, tril, triu = guard(Ebb.select), guard(Ebb.tril), guard(Ebb.triu)


# -- sums of products -------------------------------------------------------------------------------------------------

def _parse(equation, operands):
    """The labels of each operand and of the result. Those of an ellipsis are numbers, from the last dimension on."""
    if not isinstance(equation, str):
        raise TypeError(f"einsum(): equation is {show(equation)}: it must be a str, as \"ij,jk->ik\"")
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if len(terms) != len(operands):
        raise ValueError(f"einsum(): {equation!r} has {len(terms)} operands, and {len(operands)} were given")
    labels = [_expand_term(equation, term, operand.ndim) for term, operand in zip(terms, operands)]
    n_free = max((len([label for label in term if isinstance(label, int)]) for term in labels), default=0)
    free = list(range(n_free - 1, -1, -1))
    if not arrow:
        once = sorted(c for c in set(inputs) if c.isalpha() and inputs.count(c) == 1)
        return labels, free + once
    result = _expand_term(equation, output, len(output.replace("...", "")) + (n_free if "..." in output else 0))
    known = {label for term in labels for label in term}
    for label in result:
        if label not in known or result.count(label) > 1:
            raise ValueError(f"einsum(): {equation!r}: the result has {label!r} "
                             + ("twice" if label in known else "which no operand has"))
    return labels, result


def _expand_term(equation, term, n_dims):
    left, dots, right = term.partition("...")
    if not all(c.isalpha() for c in left + right):
        raise ValueError(f"einsum(): {equation!r}: dimensions are letters and \"...\"")
    n_free = n_dims - len(left) - len(right)
    if n_free < 0 or (n_free and not dots):
        raise ValueError(f"einsum(): {equation!r}: {term!r} stands for {len(left) + len(right)} dimensions, and the "
                         f"operand has {n_dims}")
    return [*left, *range(n_free - 1, -1, -1), *right]


def _take_diagonals(operand, labels):
    """Keeps of dimensions with the same label the elements whose indices are equal."""
    labels = list(labels)
    for label in set(labels):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            n = operand.shape[first]
            mask = (arange(n, device=operand.device).reshape(n, 1) == arange(n, device=operand.device))
            shape = [n if i in (first, second) else 1 for i in range(len(labels))]
            operand = where(mask.reshape(shape).expand(operand.shape), operand, 0.0).sum(second)
            del labels[second]
    return operand, labels


def _sum_out(operand, labels, kept):
    dims = [i for i, label in enumerate(labels) if label not in kept]
    return (operand.sum(dims) if dims else operand), [label for label in labels if label in kept]


def _arrange(operand, labels, order):
    return operand.permute([labels.index(label) for label in order]) if labels != order else operand


def _multiply(a, a_labels, b, b_labels, kept):
    """One product of two operands, summed over what both have and nobody needs any more."""
    a, a_labels = _sum_out(a, a_labels, kept | set(b_labels))
    b, b_labels = _sum_out(b, b_labels, kept | set(a_labels))
    both = [label for label in a_labels if label in b_labels]
    shared, summed = [x for x in both if x in kept], [x for x in both if x not in kept]
    rows = [label for label in a_labels if label not in both]
    columns = [label for label in b_labels if label not in both]
    sizes = dict(zip(a_labels, a.shape)) | dict(zip(b_labels, b.shape))

    def merge(x, labels, *groups):
        x = _arrange(x, labels, [label for group in groups for label in group])
        return x.reshape([math.prod(sizes[label] for label in group) for group in groups])

    if not summed:
        a = _arrange(a, a_labels, shared + rows).reshape([sizes[x] for x in shared + rows] + [1] * len(columns))
        b = _arrange(b, b_labels, shared + columns).reshape(
            [sizes[x] for x in shared] + [1] * len(rows) + [sizes[x] for x in columns])
        return a * b, shared + rows + columns
    for operand in (a, b):
        if operand.dtype not in (DType.F32, DType.BF16):
            raise TypeError(f"einsum(): an operand is {operand.dtype.value_nick}: sums of products are of f32 or bf16: "
                            "write float()")
    product = merge(a, a_labels, shared, rows, summed) @ merge(b, b_labels, shared, summed, columns)
    return product.reshape([sizes[x] for x in shared + rows + columns]), shared + rows + columns


def _drop_ones(operand, labels, sizes):
    """Dimensions of size 1 that others have larger say nothing."""
    for i in range(len(labels) - 1, -1, -1):
        if operand.shape[i] == 1 and sizes[labels[i]] != 1:
            operand, labels = operand.squeeze(i), labels[:i] + labels[i + 1:]
    return operand, labels


def einsum(equation, *operands):
    """Sums of products by labels of dimensions, as einsum("bij,bjk->bik", a, b). Letters that the result lacks are
    summed over; without "->" the result has those that occur once, in order. "..." stands for any dimensions.

    Returns: the result, from left to right one matrix product or product for each further operand

    Raises: ValueError for labels that don't fit, TypeError for a sum of products that are neither f32 nor bf16
    """
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = operands[0]
    for operand in operands:
        if not isinstance(operand, Tensor):
            raise TypeError(f"einsum(): {show(operand)} among the operands: it must be a tensor")
    terms, output = _parse(equation, operands)
    sizes = {}
    for operand, labels in zip(operands, terms):
        for label, size in zip(labels, operand.shape):
            first = operand.shape[labels.index(label)]
            if size != first:
                raise ValueError(f"einsum(): {equation!r}: {label!r} is of size {first} and {size} in the same operand")
            if sizes.setdefault(label, size) != size and 1 not in (size, sizes[label]):
                raise ValueError(f"einsum(): {equation!r}: {label!r} is of size {sizes[label]} and {size}")
            sizes[label] = max(size, sizes[label]) if 0 not in (size, sizes[label]) else 0
    pairs = [_drop_ones(*_take_diagonals(operand, labels), sizes) for operand, labels in zip(operands, terms)]
    result, labels = pairs[0]
    for i, (operand, other) in enumerate(pairs[1:], 2):
        later = {label for _, more in pairs[i:] for label in more}
        result, labels = _multiply(result, labels, operand, other, set(output) | later)
    result, labels = _sum_out(result, labels, set(output))
    return _arrange(result, labels, output)


# -- making tensors ---------------------------------------------------------------------------------------------------

def as_tensor(data, dtype=None, device=None):
    """A tensor over the memory of a numpy array, of a PyTorch tensor, or of another that has DLPack; a copy of numbers,
    and of memory that can't be shared. A tensor stays itself. device: where it is to be, by default where data are."""
    if not isinstance(data, Tensor):
        data = _share(data)
    if device is not None:
        data = data.to(to_device(device))
    return data if dtype is None else data.to(to_dtype(dtype))


def _share(data):
    try:
        if hasattr(data, "__array_interface__"):
            return from_numpy(data)
        if hasattr(data, "__dlpack__"):
            return from_dlpack(data)
    except (BufferError, TypeError, ValueError, Error):  # read-only, of another dtype, or of odd strides
        if not hasattr(data, "__array_interface__") and not hasattr(data, "__array__"):
            raise
    if hasattr(data, "__array__") and not hasattr(data, "__array_interface__"):
        data = data.__array__()
    return tensor(data, device="cpu" if hasattr(data, "__array_interface__") else None)


def convert(value, device):
    """The same value with all arrays in lists, tuples and dicts as tensors on a device."""
    if isinstance(value, dict):
        return {key: convert(item, device) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [convert(item, device) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    is_array = isinstance(value, Tensor) or hasattr(value, "__dlpack__") or hasattr(value, "__array_interface__")
    return as_tensor(value, device=device) if is_array else value


def batches(loader, device=None):
    """Goes through a loader's batches with all arrays in them as tensors. The loader is a DataLoader of PyTorch, or any
    iterable of numpy arrays, or of tuples, lists and dicts with them. device: where they go, by default the thread's.
    """
    device = Ebb.get_default_device() if device is None else to_device(device)
    for batch in loader:
        yield convert(batch, device)


def is_tensor(value):
    """Whether a value is a tensor."""
    return isinstance(value, Tensor)


def eye(n, m=None, *, dtype=DType.F32, device=None):
    """The identity matrix [n, n], or the first n rows and m columns of a larger one."""
    return (arange(n, device=device).reshape(n, 1) == arange(n if m is None else m, device=device)).to(to_dtype(dtype))


def linspace(start, end, steps, dtype=DType.F32, device=None):
    """Numbers from start to end, both included, at equal distances."""
    return (arange(steps, device=device).float() * ((end - start) / (steps - 1 if steps > 1 else 1)) + start).to(
        to_dtype(dtype))


def randperm(n, generator=None, device=None):
    """The integers from 0 to n - 1 in a random order."""
    return rand(n, generator=generator, device=device).argsort()


def one_hot(x, num_classes=-1):
    """Integers [..] as rows [.., num_classes], i64, with a 1 where the integer says and zeros elsewhere. -1: as many
    classes as x has, whose device is waited for."""
    num_classes = x.max().item() + 1 if num_classes == -1 else num_classes
    return (x.unsqueeze(-1) == arange(num_classes, device=x.device)).long()


def equal(x, other):
    """Whether two tensors have the same shape, dtype and elements."""
    return x.equal(other)


# -- losses -----------------------------------------------------------------------------------------------------------

def _reduce(losses, reduction):
    kind = choice(Ebb.Reduction, reduction)
    return losses if kind == Ebb.Reduction.NONE else losses.mean() if kind == Ebb.Reduction.MEAN else losses.sum()


def mse_loss(x, target, reduction="mean"):
    """The squares of differences: their mean, their "sum", or all of them ("none")."""
    return _reduce((x - target).square(), reduction)


def binary_cross_entropy_with_logits(x, target, reduction="mean"):
    """The cross entropy of logits with probabilities from 0 to 1, of the shape of x."""
    return _reduce(x.relu() - x * target + (1 + (-abs(x)).exp()).log(), reduction)


def _criterion(name, function):
    """The class of PyTorch's that holds the arguments of a loss."""
    def make(**options):
        return functools.partial(function, **options)

    make.__name__ = make.__qualname__ = name
    make.__doc__ = f"{function.__name__}() with options, which are given by name."
    return make


CrossEntropyLoss, MSELoss, BCEWithLogitsLoss = map(
    _criterion, ("CrossEntropyLoss", "MSELoss", "BCEWithLogitsLoss"),
    (cross_entropy, mse_loss, binary_cross_entropy_with_logits))


def _like(make):
    def create(x, dtype=None, device=None):
        return make(*x.shape, dtype=x.dtype if dtype is None else dtype, device=x.device if device is None else device)

    create.__name__ = create.__qualname__ = f"{make.__name__}_like"
    create.__doc__ = f"{make.__name__}() of the shape, dtype and device of x, where no others are given."
    return create


rand_like, randn_like, empty_like, zeros_like, ones_like = map(_like, (rand, randn, empty, zeros, ones))


def full_like(x, value, dtype=None, device=None):
    """A tensor of the shape and dtype of x, on its device, that is value everywhere."""
    return full(list(x.shape), value, x.dtype if dtype is None else dtype, x.device if device is None else device)


# -- more methods -----------------------------------------------------------------------------------------------------

def _plain(operator_name):
    function = getattr(Tensor, operator_name)

    def method(self, other):
        result = function(self, other)
        if result is NotImplemented:
            raise TypeError(f"{operator_name.strip('_')}(): other is {show(other)}: it must be a tensor or a number")
        return result

    method.__name__ = operator_name.strip("_")
    method.__doc__ = f"The same as the operator, {operator_name}."
    return method


def _with_alpha(operator_name):
    plain = _plain(operator_name)

    def method(self, other, alpha=1):
        if alpha == 1:
            return plain(self, other)
        dtype = self.get_dtype()
        if isinstance(other, Tensor):
            dtype = Ebb.dtype_promote(dtype, other.get_dtype())
            other = other.to(dtype)
        else:
            dtype = promote(dtype, other)
        if dtype == DType.BOOL or not isinstance(alpha, numbers.Integral) and not Ebb.dtype_is_floating_point(dtype):
            raise TypeError(f"{plain.__name__}(): alpha is {show(alpha)} for a result of {dtype.value_nick}: cast a "
                            "tensor first, as by float()")
        return plain(self, other * alpha)

    method.__name__ = plain.__name__
    method.__doc__ = f"The same as the operator, {operator_name}, with alpha * other."
    return method


def _check_fill(name, mask, value):
    if not isinstance(mask, Tensor):
        raise TypeError(f"{name}(): mask is {show(mask)}: it must be an ebb.Tensor")
    if not isinstance(value, (Tensor, numbers.Real)):
        raise TypeError(f"{name}(): value is {show(value)}: it must be a number or an ebb.Tensor")


class _More:
    """Further methods of tensors, as PyTorch's users expect."""

    add, sub = _with_alpha("__add__"), _with_alpha("__sub__")
    mul, div = _plain("__mul__"), _plain("__truediv__")
    eq, ne, lt, le, gt, ge = map(_plain, ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"))
    mm = bmm = _plain("__matmul__")

    @property
    def is_cuda(self):
        """Whether the tensor is on a GPU."""
        return self.device.get_name().startswith("cuda")

    def stride(self, dim=None):
        """The distance between neighbours along one dimension, or along each, in elements."""
        return self.strides if dim is None else self.strides[dim]

    def nelement(self):
        """How many elements it has."""
        return self.get_n_elements()

    def element_size(self):
        """The bytes of an element."""
        return Ebb.dtype_get_size(self.get_dtype())

    def is_floating_point(self):
        """Whether the elements are f32, bf16 or f16."""
        return Ebb.dtype_is_floating_point(self.get_dtype())

    def cuda(self, index=0):
        """The tensor on a GPU."""
        return self.to(f"cuda:{index}" if index else "cuda")

    def int(self):
        """The tensor in i32."""
        return self.to(DType.I32)

    def bool(self):
        """True where elements are not 0."""
        return self.to(DType.BOOL) if self.get_dtype() == DType.BOOL else self != 0

    def double(self):
        """There are no 64-bit floats."""
        raise TypeError("there are no 64-bit floats: write float()")

    def type_as(self, other):
        """The tensor in the dtype of another, where that is."""
        return self.to(other)

    def t(self):
        """A matrix with rows and columns exchanged."""
        if self.ndim > 2:
            raise ValueError(f"t(): a tensor of {self.ndim} dimensions: write mT, or transpose(dim0, dim1)")
        return self.T

    def swapaxes(self, dim0, dim1):
        """The same as transpose()."""
        return self.transpose(dim0, dim1)

    def view_as(self, other):
        """The same as view(other.shape)."""
        return self.view(*other.shape)

    def reshape_as(self, other):
        """The same as reshape(other.shape)."""
        return self.reshape(*other.shape)

    def expand_as(self, other):
        """The same as expand(other.shape)."""
        return self.expand(*other.shape)

    def repeat(self, *counts):
        """Copies side by side, a count for each dimension; those in front may be new ones."""
        counts = sizes(counts)
        if len(counts) < self.ndim or any(count < 0 for count in counts):
            raise ValueError(f"repeat(): {counts} for a tensor of shape {self.shape}: a count for each dimension")
        shape = [1] * (len(counts) - self.ndim) + list(self.shape)
        pairs = [size for count, extent in zip(counts, shape) for size in (count, extent)]
        ones = [size for extent in shape for size in (1, extent)]
        return self.reshape(ones).expand(pairs).reshape([count * extent for count, extent in zip(counts, shape)])

    def repeat_interleave(self, n, dim):
        """Each slice along a dimension n times, side by side."""
        dim = dim % self.ndim if -self.ndim <= dim < self.ndim else dim
        shape = list(self.shape)
        return self.unsqueeze(dim + 1).expand(shape[:dim + 1] + [n] + shape[dim + 1:]).flatten(dim, dim + 1)

    def unbind(self, dim=0):
        """The slices along a dimension, as a tuple."""
        return tuple(select(self, dim, i) for i in range(self.shape[dim]))

    def flip(self, *axes, dims=None):
        """The elements in reverse order along dimensions, as flip(0, 1) or flip(dims=(0, 1)); a copy."""
        if bool(axes) == (dims is not None):
            raise TypeError("flip(): the dimensions must be given, as flip(0) or flip(dims=(0, 1))")
        result = self
        for dim in sizes(axes) if axes else dimensions(dims):
            result = result.index_select(dim, make_indices(range(self.shape[dim] - 1, -1, -1), self))
        return result

    def nonzero(self, as_tuple=False):
        """The indices [n, n dimensions] of elements that are not 0; the device is waited for. as_tuple: a tensor [n]
        for each dimension, which index the tensor."""
        places = make_indices(find_set(self.bool()), self)
        columns, shape = [], self.shape
        for i in range(self.ndim):
            inner = math.prod(shape[i + 1:])
            rows = [place // inner % shape[i] for place in places.tolist()]
            columns.append(make_indices(rows, self))
        if as_tuple:
            return tuple(columns)
        return stack(columns, 1) if columns else places.reshape(-1, 0)

    def masked_select(self, mask):
        """The elements at which a mask is true, in one dimension."""
        return self.expand(mask.shape)[mask] if self.shape != mask.shape else self[mask]

    def masked_fill(self, mask, value):
        """The tensor with a number where a mask, which is broadcast, is true."""
        _check_fill("masked_fill", mask, value)
        if not isinstance(value, Tensor):
            value = make_scalar("masked_fill", value, self.get_dtype(), self.get_device())
        return where(mask, value.to(self.get_dtype()), self)

    def masked_fill_(self, mask, value):
        """Writes a number where a mask, which is broadcast, is true; returns the tensor."""
        _check_fill("masked_fill_", mask, value)
        self[mask.expand(self.shape) if mask.shape != self.shape else mask] = value
        return self

    def where(self, condition, other):
        """Elements of self where the condition holds, else of other."""
        return where(condition, self, other)

    def isnan(self):
        """True where elements are not a number."""
        return self != self

    def isinf(self):
        """True where elements are infinite."""
        return abs(self) == math.inf

    def isfinite(self):
        """True where elements are numbers and not infinite."""
        return abs(self) < math.inf

    def any(self, dim=None, keepdim=False):
        """Whether any element is not 0, all in all or along dimensions."""
        return self.bool().to(DType.I32).sum(dim, keepdim) != 0

    def all(self, dim=None, keepdim=False):
        """Whether all elements are not 0, all in all or along dimensions."""
        return (~self.bool()).to(DType.I32).sum(dim, keepdim) == 0

    def std(self, dim=None, correction=1, keepdim=False, unbiased=None):
        """The standard deviation: the root of var()."""
        return self.var(dim, correction, keepdim, unbiased).sqrt()

    def argmin(self, dim=None, keepdim=False):
        """The index of the smallest element, all in all or along a dimension."""
        if self.is_floating_point():  # through a NaN, which is equal to nothing, as well
            return (-self).argmax(dim, keepdim)
        x, dim = (self.reshape(-1), 0) if dim is None else (self, dim)
        return (x == x.amin(dim, True)).argmax(dim, keepdim)  # -x would wrap

    def sort(self, dim=-1, descending=False):
        """The elements of a dimension in order, and their indices; equal ones by their indices. For integers the device
        is waited for."""
        if isinstance(dim, bool):
            raise TypeError(f"sort(): dim is {dim}: it must be an int; write descending={dim}")
        if not -self.ndim <= dim < self.ndim:
            raise IndexError(f"sort(): dim {dim} of a tensor of {self.ndim} dimensions")
        n, moved = self.shape[dim], self.transpose(dim, -1)
        if self.is_floating_point():
            return Found(*(found.transpose(dim, -1) for found in moved.topk(n, largest=descending)))
        rows = moved.reshape(self.numel() // n if n else 0, n).tolist()
        order = [sorted(range(n), key=row.__getitem__, reverse=descending) for row in rows]
        indices = tensor(order, dtype=DType.I64, device=self.device).reshape(moved.shape).transpose(dim, -1)
        return Found(self.gather(dim, indices), indices)

    def argsort(self, dim=-1, descending=False):
        """The indices that sort a dimension."""
        return self.sort(dim, descending)[1]

    def dot(self, other):
        """The sum of the products of two vectors."""
        if self.ndim != 1 or other.ndim != 1:
            raise ValueError(f"dot(): tensors of shape {self.shape} and {other.shape}: they must have one dimension")
        return (self * other).sum()

    def outer(self, other):
        """The products of all elements of two vectors."""
        return self.reshape(-1, 1) * other.reshape(1, -1)

    def allclose(self, other, rtol=1e-5, atol=1e-8, equal_nan=False):
        """Whether no element differs from other's by more than rtol times that plus atol. equal_nan: NaN equals NaN."""
        if not isinstance(other, Tensor):
            raise TypeError(f"allclose(): other is {show(other)}: it must be a tensor, as ebb.full_like(x, 2)")
        a, b = self.detach(), other.detach()
        x, y = (value if value.is_floating_point() else value.float() for value in (a, b))  # integers wrap
        near = (a == b) | ((abs(x - y) <= abs(y) * rtol + atol) & (abs(y) < math.inf))
        return bool((near | ((x != x) & (y != y)) if equal_nan else near).all())

    def addmm(self, a, b):
        """self + a @ b."""
        return self + a @ b

    def tril(self, diagonal=0):
        """The tensor with zeros above a diagonal."""
        return tril(self, diagonal)

    def triu(self, diagonal=0):
        """The tensor with zeros below a diagonal."""
        return triu(self, diagonal)

    def new_full(self, shape, value, dtype=None, device=None):
        """A tensor that is value everywhere, of this dtype, where the tensor is, unless others are asked for."""
        return full(shape, value, self.dtype if dtype is None else dtype, self.device if device is None else device)

    def new_zeros(self, *shape, dtype=None, device=None):
        """Zeros of this dtype, where the tensor is, unless others are asked for."""
        return zeros(*shape, dtype=self.dtype if dtype is None else dtype,
                     device=self.device if device is None else device)

    def new_ones(self, *shape, dtype=None, device=None):
        """Ones of this dtype, where the tensor is, unless others are asked for."""
        return ones(*shape, dtype=self.dtype if dtype is None else dtype,
                    device=self.device if device is None else device)


# Names that tensors of PyTorch have and these lack: the code to write instead.
_ADVICE = {
    "register_hook": "write ebb.grad(outputs, [tensor]) for the gradient of a tensor that is no leaf",
    "retain_grad": "write ebb.grad(outputs, [tensor]) for the gradient of a tensor that is no leaf",
    "grad_fn": "write `not t.is_leaf`, which says whether an op has made the tensor",
    "mode": "write numpy.bincount(t.numpy()).argmax()",
    "pin_memory": "memory of the host is pinned by itself where a GPU copies from it",
    "storage": "write t.numpy(), which shares the memory",
    "untyped_storage": "write t.numpy(), which shares the memory",
    "permute_": "write t.permute()",
    "is_contiguous_": "write t.is_contiguous()",
    "names": "dimensions have no names",
}


# Names of PyTorch for which nothing stands.
_MISSING = frozenset("""
addbmm angle apply_ as_strided as_subclass cauchy_ char cholesky cholesky_inverse cholesky_solve coalesce corrcoef cov
cross_ dequantize det diagonal_scatter digamma dim_order eig erfinv frexp gcd geometric_ geqrf histogram i0 igamma
igammac imag index_copy index_put index_reduce inverse istft lcm ldexp lgamma log_normal_ logaddexp2 logdet lstsq lu
lu_solve map_ matrix_exp matrix_power mvlgamma nanmedian nanquantile nextafter orgqr ormqr pinverse polygamma put put_
qr record_stream register_post_accumulate_grad_hook reinforce resize_as_ retains_grad scatter_reduce scatter_reduce_
select_scatter set_ share_memory_ short slice_scatter slogdet solve stft storage_offset svd to_dense to_sparse
triangular_solve adaptive_avg_pool1d alpha_dropout avg_pool1d bartlett_window binomial blackman_window chain_matmul
channel_shuffle combinations complex conv1d conv2d conv3d conv_transpose1d conv_transpose2d ctc_loss distributions
embedding_bag fft futures gradient grid_sampler hamming_window hann_window kaiser_window lobpcg lstm max_pool1d
max_pool2d masked matrix_rank mps multiprocessing nested package pca_lowrank pdist pixel_shuffle pixel_unshuffle poisson
polar renorm_ set_anomaly_enabled set_default_tensor_type set_flush_denormal sparse_coo_tensor sparse_csr_tensor special
svd_lowrank unravel_index vander view_as_complex view_as_real xpu export library accelerator Event Stream
int8 int16 uint16 uint32 complex64 complex128 float8_e4m3fn float8_e5m2 strided layout contiguous_format channels_last
preserve_format memory_format ShortTensor CharTensor Storage types version
""".split())


def advise_on_tensor(name):
    """What to write for a function that there is not; None if nothing is known."""
    if name in _MISSING:
        return "there is nothing like it: compose ops instead, or write numpy's of t.numpy()"
    return _ADVICE.get(name) or (f"write t.{name}" if not name.startswith("_") and hasattr(Tensor, name) else None)


def _find_attribute(self, name):
    advice = _ADVICE.get(name) or (advise_on_tensor(name) if name in _MISSING else None)
    if advice is None and not name.startswith("_") and (name in exports or isinstance(
            getattr(Ebb, name, None), (types.BuiltinFunctionType, types.FunctionType, type(Ebb.gelu)))):
        advice = f"write ebb.{name}()"
    elif advice is None:
        advice = suggest_attribute(name, dir(Tensor))
    raise AttributeError(f"a tensor has no {name!r}" + (f": {advice}" if advice else ""))


def _add_methods():
    for name, value in vars(_More).items():
        if not name.startswith("__"):
            setattr(Tensor, name, value)
    for name, value in vars(Tensor).items():
        if isinstance(value, types.FunctionType) and not name.startswith("_"):
            value.__qualname__ = f"Tensor.{name}"  # Python's messages about arguments name it
    Tensor.__getattr__ = _find_attribute


_add_methods()
exports = {function.__name__: function for function in (
    einsum, as_tensor, batches, is_tensor, eye, rand_like, randn_like, empty_like, zeros_like, ones_like, full_like,
    linspace, randperm, one_hot, equal, mse_loss, binary_cross_entropy_with_logits, CrossEntropyLoss, MSELoss,
    BCEWithLogitsLoss,
    *map(from_method, (
        "add", "sub", "mul", "div", "pow", "mm", "bmm", "dot", "outer", "any", "all", "std", "norm", "amax", "amin",
        "argmin", "isnan", "isinf", "isfinite", "is_floating_point", "allclose", "flip", "flatten", "squeeze", "split",
        "unbind", "repeat_interleave", "masked_select", "nonzero", "topk", "sort", "argsort", "numel", "tril",
        "triu")))}
