"""Elements of tensors by numbers, slices, masks and tensors of indices: reading, which gradients flow through, and
writing."""
import operator

from gi.module import get_introspection_module
from gi.overrides._ebb_errors import Error, guard

Ebb = get_introspection_module("Ebb")
DType = Ebb.DType

_BOOL = DType.BOOL
_FLOATING = (DType.F32, DType.BF16, DType.F16)

_select, _slice, _unsqueeze, _index_select, _reshape, _view, _expand, _where, _scalar, _to_device = (
    guard(getattr(Ebb, name)) for name in ("select", "slice", "unsqueeze", "index_select", "reshape", "view", "expand",
                                           "where", "scalar", "to_device"))
_fill, _copy_from = guard(Ebb.Tensor.fill), guard(Ebb.Tensor.copy_from)
_bytes = guard(Ebb.Tensor.get_bytes)


def _is_mask(key):
    return isinstance(key, Ebb.Tensor) and key.get_dtype() == _BOOL


def _is_pick(key):
    return isinstance(key, Ebb.Tensor) and key.get_n_dims() > 0


def _take_key(tensor, key):
    """Lists and arrays as tensors, where the tensor is."""
    if not isinstance(key, Ebb.Tensor):
        if getattr(key, "ndim", None) == 0:
            return key.item()  # of a numpy array
        if not isinstance(key, (list, range)) and not hasattr(key, "__array_interface__"):
            return key
        from gi.overrides._ebb_functions import tensor as make
        key = make(list(key) if isinstance(key, range) else key, dtype=None if len(key) else DType.I64)
    if key.get_dtype() in _FLOATING:
        raise TypeError(f"an index of dtype {key.get_dtype().value_nick}: indices are integers, and masks bool")
    if not _is_pick(key):
        return key.item()
    if key.get_dtype() == DType.U8:
        key = key.long()
    return key if key.get_device() == tensor.get_device() else _to_device(key, tensor.get_device())


def _take_keys(tensor, key):
    return tuple(_take_key(tensor, k) for k in (key if isinstance(key, tuple) else (key,)))


def find_set(mask):
    """The places in a mask, counted in rows, at which it is true; its device is waited for."""
    if mask.get_device().get_name() != "cpu":
        mask = _to_device(mask, Ebb.Device.get("cpu"))
    return [i for i, is_set in enumerate(_bytes(mask).get_data()) if is_set]


def make_indices(places, tensor):
    """Places as a tensor beside another."""
    return _to_device(Ebb.Tensor.new_from_ints(places, [len(places)]), tensor.get_device())


def _flatten_dims(tensor, dim, n):
    shape = tensor.get_shape()
    size = 1
    for extent in shape[dim:dim + n]:
        size *= extent
    return _reshape(tensor, [*shape[:dim], size, *shape[dim + n:]])


def _read_by_mask(tensor, dim, mask):
    """The elements at which a mask of one or more dimensions is true, side by side."""
    shape = tensor.get_shape()[dim:dim + mask.get_n_dims()]
    if mask.get_shape() != shape:
        raise IndexError(f"a mask of shape {mask.get_shape()} for dimensions of {shape}")
    return _index_select(_flatten_dims(tensor, dim, len(shape)), dim, make_indices(find_set(mask), tensor))


def _wrap(indices, size):
    """Indices from the end counted from the beginning, with all of them in their dimension."""
    if indices.get_n_elements() and not (-size <= indices.min().item() and indices.max().item() < size):
        raise IndexError(f"indices from {indices.min().item()} to {indices.max().item()} in a dimension of size {size}")
    return _where(indices < 0, indices + size, indices)


def _count_from_start(indices, size):
    """Indices from the end counted from the beginning. Those out of range stay as they are, for the op to name: no
    device is waited for."""
    return _where((indices < 0) & (indices >= -size), indices + size, indices)


def _read_by_tensors(tensor, dim, picks):
    """The elements at indices of one or more dimensions, which are broadcast."""
    shape = tensor.get_shape()
    indices = picks[0]
    if len(picks) > 1:
        indices = _wrap(indices.long(), shape[dim])
        for i, pick in enumerate(picks[1:], dim + 1):
            indices = indices * shape[i] + _wrap(pick.long(), shape[i])
        tensor = _flatten_dims(tensor, dim, len(picks))
    elif indices.get_device().get_name() != "cpu":
        indices = _count_from_start(indices, shape[dim])
    try:
        picked = _index_select(tensor, dim, _reshape(indices, [-1]))
    except Error:  # the CPU refuses indices from the end at once, which are rare
        picked = _index_select(tensor, dim, _reshape(_count_from_start(indices, tensor.get_dim(dim)), [-1]))
    if indices.get_n_dims() == 1:
        return picked
    return _reshape(picked, [*shape[:dim], *indices.get_shape(), *shape[dim + len(picks):]])


def _read_by_slice(tensor, dim, key):
    size = tensor.get_dim(dim)
    start, stop, step = key.indices(size)
    if step < 1:
        raise ValueError(f"a slice's step is {step}: it must be 1 or more; flip() reverses a dimension")
    if start == 0 and stop == size and step == 1:
        return tensor
    return _slice(tensor, dim, start, stop, step)


def _read_by_number(tensor, dim, key):
    if isinstance(key, bool):
        raise TypeError("True and False are no indices: a mask is a tensor or a list of them")
    index, size = operator.index(key), tensor.get_dim(dim)
    if not -size <= index < size:
        raise IndexError(f"index {index} in a dimension of size {size}")
    return _select(tensor, dim, index % size)


def _count_dims(key):
    """How many dimensions of the tensor a key stands for."""
    return 0 if key is None or key is Ellipsis else key.get_n_dims() if _is_mask(key) else 1


def _find_run(keys):
    """The tensors of indices that stand side by side: where they begin and end."""
    picks = [i for i, key in enumerate(keys) if _is_pick(key)]
    if not picks:
        return 0, 0
    if len(picks) > 1 and (picks[-1] - picks[0] >= len(picks) or any(_is_mask(keys[i]) for i in picks)):
        raise IndexError("several tensors of indices must stand side by side, and a mask alone: index twice")
    return picks[0], picks[-1] + 1


def read_at(tensor, key):
    """tensor[key]: a view where numbers and slices are all, else a copy."""
    keys = _take_keys(tensor, key)
    n_dims = tensor.get_n_dims()
    n_indexed = sum(map(_count_dims, keys))
    if n_indexed > n_dims:
        raise IndexError(f"{n_indexed} indices for a tensor of {n_dims} dimensions")
    if sum(1 for k in keys if k is Ellipsis) > 1:
        raise IndexError("at most one ...")
    begin, end = _find_run(keys)
    dim, view = 0, tensor
    for i, k in enumerate(keys):
        if k is None:
            view = _unsqueeze(view, dim)
            dim += 1
        elif k is Ellipsis:
            dim += n_dims - n_indexed
        elif isinstance(k, slice):
            view = _read_by_slice(view, dim, k)
            dim += 1
        elif i == begin and end and _is_mask(k):
            view = _read_by_mask(view, dim, k)
            dim += 1
        elif i == begin and end:
            view = _read_by_tensors(view, dim, keys[begin:end])
            dim += max(pick.get_n_dims() for pick in keys[begin:end])
        elif not begin < i < end:
            view = _read_by_number(view, dim, k)
    if view is tensor:
        shape = tensor.get_shape()
        view = _view(tensor, shape) if tensor.is_contiguous() else _expand(tensor, shape)
    return view


def _write_by_tensor(view, dim, indices, value):
    """Writes to the places along a dimension that a list, a mask or a tensor of integers names; of one named twice the
    last value stays."""
    size = view.get_dim(dim)
    if isinstance(indices, Ebb.Tensor):
        if indices.get_n_dims() != 1:
            raise TypeError(f"a tensor of shape {indices.get_shape()} says where to write: it must have one dimension, "
                            "or be a mask that is the only index, as x[mask] = 0")
        if _is_mask(indices) and indices.get_dim(0) != size:
            raise IndexError(f"a mask of shape {indices.get_shape()} for a dimension of size {size}")
        indices = find_set(indices) if _is_mask(indices) else indices.tolist()
    if isinstance(value, Ebb.Tensor) and indices:
        own = dim - view.get_n_dims() + value.get_n_dims()  # the value's dimension, which may have fewer, for dim
        if own >= 0 and value.get_dim(own) not in (1, len(indices)):
            raise ValueError(f"{value.get_dim(own)} values for {len(indices)} indices")
        shape = view.get_shape()
        # Apart, for it may be another part of the same memory.
        value = _expand(value.clone(), [*shape[:dim], len(indices), *shape[dim + 1:]])
    for i, index in enumerate(indices):
        if not -size <= index < size:
            raise IndexError(f"index {index} in a dimension of size {size}")
        place = _select(view, dim, index % size)
        if isinstance(value, Ebb.Tensor):
            _copy_from(place, _select(value, dim, i))
        else:
            _fill(place, value)


def write_at(tensor, key, value):
    """tensor[key] = value, where value is a tensor or a number."""
    keys = _take_keys(tensor, key)
    if len(keys) == 1 and _is_mask(keys[0]):
        key = keys[0]
        shape = tensor.get_shape()[:key.get_n_dims()]
        if key.get_shape() != shape:
            raise IndexError(f"a mask of shape {key.get_shape()} for a tensor of shape {tensor.get_shape()}")
        rest = tensor.get_n_dims() - len(shape)
        if (isinstance(value, Ebb.Tensor) and value.get_n_dims() > rest
                and set(value.get_shape()[:-rest or None]) != {1}):  # a value for each place
            if len(shape) != 1:
                raise ValueError(f"values of shape {value.get_shape()} for a mask of shape {shape}: a mask of several "
                                 f"dimensions takes one value for all its places, of {tensor.get_shape()[len(shape):]}")
            _write_by_tensor(tensor, 0, [i for i, is_set in enumerate(key.tolist()) if is_set], value)
            return
        mask = _reshape(key, shape + [1] * rest)
        if not isinstance(value, Ebb.Tensor):
            value = _scalar(value, tensor.get_dtype(), tensor.get_device())
        _copy_from(tensor, _where(_expand(mask, tensor.get_shape()), value, tensor))
        return
    picks = [i for i, k in enumerate(keys) if _is_pick(k)]
    if len(picks) > 1:
        raise IndexError("at most one list or tensor can say where to write: write to one row after the other")
    if picks:
        place = picks[0]
        view = read_at(tensor, (*keys[:place], slice(None), *keys[place + 1:]))
        dim = sum(1 for k in keys[:place] if k is None or isinstance(k, slice))
        if Ellipsis in [k for k in keys[:place] if not isinstance(k, Ebb.Tensor)]:
            dim += tensor.get_n_dims() - sum(1 for k in keys if k is not None and k is not Ellipsis)
        _write_by_tensor(view, dim, keys[place], value)
        return
    view = read_at(tensor, keys)
    if isinstance(value, Ebb.Tensor):
        extra = value.get_n_dims() - view.get_n_dims()
        if extra > 0 and set(value.get_shape()[:extra]) == {1}:
            value = _reshape(value, value.get_shape()[extra:])
        _copy_from(view, value)
    else:
        _fill(view, value)
