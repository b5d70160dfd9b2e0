"""Functions whose C form names every argument, with the defaults and the shapes that Python's users expect."""
import array
import numbers
import types

from gi.module import get_introspection_module
from gi.overrides._ebb_check import show
from gi.overrides._ebb_dlpack import from_dlpack, from_numpy
from gi.overrides._ebb_errors import Error, guard
from gi.overrides._ebb_tensor import (DType, Tensor, check_number, dimensions, make_scalar, number_dtype, promote,
                                       sizes, to_device, to_dtype)
from gi.repository import GLib

Ebb = get_introspection_module("Ebb")

__all__ = ["tensor", "empty", "zeros", "ones", "full", "rand", "randn", "randint", "arange", "sum", "mean", "max",
           "min", "var", "argmax", "cat", "stack", "softmax", "log_softmax", "gelu", "bias_gelu", "gated_activation",
           "rotary", "dropout", "cross_entropy", "fused_linear_cross_entropy", "layer_norm", "rms_norm",
           "matmul_transposed", "linear", "attention", "self_attention", "scaled_dot_product_attention", "backward",
           "grad", "memory_stats", "multinomial", "where", "clamp", "clip_grad_norm", "vocab_parallel_cross_entropy",
           "vocab_parallel_linear_cross_entropy", "embedding", "device", "cuda"]

IGNORE_INDEX = -100


def _function(name):
    return guard(getattr(Ebb, name))


def choice(kind, value):
    """A member of an enumeration from itself or its name."""
    if isinstance(value, str):
        member = getattr(kind, value.upper().replace("-", "_"), None)
        if member is None:
            raise ValueError(f"{value!r} is no {kind.__name__}")
        return member
    return value


# -- making tensors ---------------------------------------------------------------------------------------------------

def _creator(name, n_leading=0, is_random=False):
    function = _function(name)

    def create(*args, dtype=None, device=None, requires_grad=False, **kwargs):
        if name == "randint":
            args = (*(kwargs.pop(key) for key in ("low", "high") if key in kwargs), *args)
            if len(args) == 1 or len(args) > 1 and not isinstance(args[1], int):  # without low
                args = (0, *args)
        if "size" in kwargs:
            args = (*args, kwargs.pop("size"))
        leading, shape = args[:n_leading], args[n_leading:]
        if len(shape) > 1 and isinstance(shape[0], (list, tuple)):  # as C has it: shape, dtype, device, generator
            names = ("dtype", "device", "generator") if is_random else ("dtype", "device")
            given = dict(zip(names, shape[1:]))
            dtype, device = given.get("dtype", dtype), given.get("device", device)
            kwargs.setdefault("generator", given.get("generator"))
            shape = shape[:1]
        generator = kwargs.pop("generator", None)
        if kwargs:
            raise TypeError(f"{name}() has no argument {next(iter(kwargs))!r}")
        dtype = to_dtype(dtype if dtype is not None else DType.I64 if name == "randint" else DType.F32)
        tail = (generator,) if is_random else ()
        result = function(*leading, sizes(shape), dtype, to_device(device), *tail)
        return result.requires_grad_() if requires_grad else result

    create.__name__ = create.__qualname__ = name
    return create


zeros, ones = _creator("zeros"), _creator("ones")
rand, randn = _creator("rand", is_random=True), _creator("randn", is_random=True)
randint = _creator("randint", n_leading=2, is_random=True)
_new_empty, _full, _arange = guard(Ebb.Tensor.new_empty), _function("full"), _function("arange")
_copy, _expand, _permute = map(_function, ("copy", "expand", "permute"))


def empty(*shape, dtype=DType.F32, device=None):
    """A tensor whose elements are whatever its memory holds."""
    return _new_empty(sizes(shape), to_dtype(dtype), to_device(device))


def full(shape, value, dtype=None, device=None):
    shape = [shape] if isinstance(shape, int) else list(shape)
    if not isinstance(value, numbers.Real):
        raise TypeError(f"full(): value is {show(value)}: it must be a number")
    dtype, device = number_dtype(value) if dtype is None else to_dtype(dtype), to_device(device)
    if check_number("full", value, dtype):
        return _full(shape, value, dtype, device)
    return _copy(_expand(make_scalar("full", value, dtype, device or Ebb.get_default_device()), shape))


def arange(start, end=None, step=1, dtype=None, device=None):
    if end is None:
        start, end = 0, start
    if dtype is None:
        dtype = DType.I64 if all(isinstance(value, int) for value in (start, end, step)) else DType.F32
    return _arange(start, end, step, to_dtype(dtype), to_device(device))


def _flatten(data, shape, depth, out):
    if isinstance(data, (list, tuple, range)):
        if depth == len(shape):
            shape.append(len(data))
        elif shape[depth] != len(data):
            raise ValueError(f"rows of {shape[depth]} and {len(data)} values: a tensor has no ragged edges")
        for item in data:
            _flatten(item, shape, depth + 1, out)
    elif depth != len(shape):
        raise ValueError("numbers and lists side by side: a tensor has no ragged edges")
    else:
        out.append(data)


def _leading_shape(data):
    shape = []
    while isinstance(data, (list, tuple, range)):
        shape.append(len(data))
        data = data[0] if data else None
    return shape


def tensor(data, dtype=None, device=None, requires_grad=False):
    """A tensor with a copy of numbers, nested lists of them, a tensor, a numpy array (float64 becomes f32), or an
    object with DLPack, such as a PyTorch tensor.

    It is on the default device, a copy of a tensor where that is, unless another is asked for.
    """
    if isinstance(data, Tensor):
        result = data.detach().clone()
    elif hasattr(data, "__array_interface__"):
        result = _from_array(data)
    elif hasattr(data, "__dlpack__"):
        result = _from_dlpack(data)
    else:
        result = _from_numbers(data)
    if device is None and not isinstance(data, Tensor):
        device = Ebb.get_default_device()
    result = result.to(*(t for t in (dtype, device) if t is not None))
    return result.requires_grad_() if requires_grad else result


def _from_array(data):
    import numpy
    values = numpy.asarray(data)
    kinds = {"f": numpy.float32, "i": numpy.int64, "u": numpy.int64, "b": numpy.bool_}
    if values.dtype.kind not in kinds:
        raise TypeError(f"an array of dtype {values.dtype} can't become a tensor")
    kept = (numpy.float16, numpy.float32, numpy.int32, numpy.int64, numpy.uint8, numpy.bool_)
    target = values.dtype.newbyteorder("=") if values.dtype.type in kept else kinds[values.dtype.kind]
    return from_numpy(numpy.array(values, dtype=target, order="C")).clone()


def _from_dlpack(data):
    try:
        return from_dlpack(data).clone()
    except (BufferError, TypeError, ValueError, Error):  # of another dtype
        if not hasattr(data, "__array__"):
            raise
        return _from_array(data)


def _pack_floats(values):
    try:
        return array.array("f", values).tobytes()
    except TypeError:
        wrong = next(value for value in values if not hasattr(type(value), "__float__"))
        raise TypeError(f"tensor(): {show(wrong)} is no number") from None


def _from_numbers(data):
    shape, values = _leading_shape(data), []
    _flatten(data, shape, 0, values)
    if all(isinstance(value, bool) for value in values) and values:
        dtype, content = DType.BOOL, bytes(values)
    elif all(isinstance(value, int) for value in values) and values:
        dtype, content = DType.I64, array.array("q", values).tobytes()
    else:
        dtype, content = DType.F32, _pack_floats(values)
    return _copy(Tensor.new_from_bytes(GLib.Bytes.new(content), 0, shape, dtype))


# -- mathematics ------------------------------------------------------------------------------------------------------

def from_method(name):
    """The function that is a method of tensors."""
    method = getattr(Tensor, name)

    def function(*args, **kwargs):
        if "input" in kwargs:
            args = (kwargs.pop("input"), *args)
        out = kwargs.pop("out", None)
        result = method(*args, **kwargs)
        return result if out is None else out.copy_(result)

    function.__name__ = function.__qualname__ = name
    function.__wrapped__, function.__doc__ = method, method.__doc__
    return function


sum, mean, max, min, var, argmax, softmax, log_softmax, clamp = map(
    from_method, ("sum", "mean", "max", "min", "var", "argmax", "softmax", "log_softmax", "clamp"))
_cat, _stack, _gelu, _bias_gelu, _dropout = map(_function, ("cat", "stack", "gelu", "bias_gelu", "dropout"))
_embedding = _function("embedding")
_where, _cast, _layer_norm, _rms_norm, _unit_offset_rms_norm, _linear, _gated_activation, _rotary = map(
    _function, ("where", "cast", "layer_norm", "rms_norm", "unit_offset_rms_norm", "linear", "gated_activation",
                "rotary"))
_cross_entropy_full, _scaled_dot_product_attention, _matmul_transposed, _multinomial, _backward, _grad = map(
    _function, ("cross_entropy_full", "scaled_dot_product_attention", "matmul_transposed", "multinomial", "backward",
                "grad"))
_attention, _self_attention = map(_function, ("attention", "self_attention_full"))
_fused_linear_cross_entropy = guard(Ebb.fused_linear_cross_entropy_full)
_vocab_cross_entropy, _vocab_linear_cross_entropy = map(
    _function, ("vocab_parallel_cross_entropy", "vocab_parallel_linear_cross_entropy_full"))


def cat(tensors, dim=0):
    return _cat(list(tensors), dim)


def stack(tensors, dim=0):
    return _stack(list(tensors), dim)


def where(condition, input=None, other=None):
    """Elements of input where the condition holds, else of other; both may be numbers. Without both, the indices of
    what is not 0, a tensor for each dimension."""
    if input is None and other is None:
        return condition.nonzero(as_tuple=True)
    a, b = input, other
    values = [v for v in (a, b) if not isinstance(v, Tensor)]
    for value in values:
        if not isinstance(value, numbers.Real):
            raise TypeError(f"where(): {show(value)} is no tensor and no number: write ebb.tensor() of it")
    if not values:
        return _where(condition, a, b)
    like = next((v for v in (a, b) if isinstance(v, Tensor)), None)
    dtype = number_dtype(*values) if like is None else promote(like.get_dtype(), values[0])
    device = (condition if like is None else like).get_device()
    a, b = (_cast(v, dtype) if isinstance(v, Tensor) else make_scalar("where", v, dtype, device) for v in (a, b))
    return _where(condition, a, b)


def gelu(x, kind="exact", approximate=None):
    """approximate: PyTorch's name of kind, "none" for "exact"."""
    kind = kind if approximate is None else "exact" if approximate == "none" else approximate
    return _gelu(x, choice(Ebb.GeluKind, kind))


def bias_gelu(x, bias, kind="exact"):
    return _bias_gelu(x, bias, choice(Ebb.GeluKind, kind))


def gated_activation(gate, up, kind="silu"):
    """The activation of gate, "gelu", "gelu-tanh" or "silu", times up."""
    return _gated_activation(gate, up, choice(Ebb.Activation, kind))


def rotary(x, inverse_frequencies, starts=None, first=0, factor=1.0, ntk=1.0):
    """Queries or keys [B, T, H, D] turned by their positions, first + t - starts[b, t]."""
    return _rotary(x, inverse_frequencies, starts, first, factor, ntk)


def dropout(x, p=0.5, training=True, generator=None):
    return _dropout(x, p, training, generator)


def linear(x, weight, bias=None):
    return _linear(x, weight, bias)


def matmul_transposed(a, b, transpose_a=False, transpose_b=False):
    return _matmul_transposed(a, b, transpose_a, transpose_b)


def layer_norm(x, weight=None, bias=None, eps=1e-5):
    if isinstance(weight, (tuple, list)):
        raise TypeError(f"layer_norm(): weight is {weight}: leave the shape out, since the last dimension is "
                        "normalized")
    return _layer_norm(x, weight, bias, eps)


def rms_norm(x, weight=None, eps=2.0**-23, unit_offset=False):
    """unit_offset: multiply by 1 + weight."""
    return (_unit_offset_rms_norm if unit_offset else _rms_norm)(x, weight, eps)


def _classes_last(logits, targets, dim):
    """Logits with the classes as their last dimension. PyTorch has them as dimension 1, the last one of two."""
    if not isinstance(logits, Tensor) or not isinstance(targets, Tensor):
        return logits  # for C to name
    n_dims, shape = logits.get_n_dims(), logits.shape
    if dim is not None:
        if not -n_dims <= dim < n_dims:
            raise IndexError(f"cross_entropy(): dim is {dim}: the logits have {n_dims} dimensions")
        dim %= n_dims
        return _permute(logits, [i for i in range(n_dims) if i != dim] + [dim])
    if n_dims > 2 and targets.shape == (shape[0], *shape[2:]):
        if targets.shape == shape[:-1]:
            raise ValueError(f"cross_entropy(): logits of shape {shape} and targets of {targets.shape} may have the "
                             "classes in dimension 1, as in PyTorch, or in the last one: write dim=1 or dim=-1")
        raise ValueError(f"cross_entropy(): logits of shape {shape} and targets of {targets.shape} have the classes in "
                         "dimension 1: write dim=1")
    return logits


def cross_entropy(logits, targets, ignore_index=IGNORE_INDEX, label_smoothing=0.0, reduction="mean", dim=None):
    """The mean of -log softmax (logits) at the targets.

    dim: the dimension of the classes. Without it they are the last one; logits [N, C, d] with targets [N, d], which
        have them in dimension 1, and a shape that has them in either, are errors.
    """
    logits = _classes_last(logits, targets, dim)
    return _cross_entropy_full(logits, targets, ignore_index, label_smoothing, choice(Ebb.Reduction, reduction))


def fused_linear_cross_entropy(x, weight, targets, ignore_index=IGNORE_INDEX, label_smoothing=0.0, reduction="mean",
                               bias=None, softcap=0.0):
    return _fused_linear_cross_entropy(x, weight, bias, targets, ignore_index, label_smoothing, softcap,
                                       choice(Ebb.Reduction, reduction))


def vocab_parallel_cross_entropy(logits, targets, n_classes, group=None, ignore_index=IGNORE_INDEX, reduction="mean"):
    """Of logits for this rank's part of the classes; group: None for ebb.ProcessGroup.get_default()."""
    return _vocab_cross_entropy(logits, targets, n_classes, ignore_index, choice(Ebb.Reduction, reduction),
                                group or Ebb.ProcessGroup.get_default())


def vocab_parallel_linear_cross_entropy(x, weight, targets, n_classes, group=None, ignore_index=IGNORE_INDEX,
                                        reduction="mean", bias=None, softcap=0.0):
    """The same of a linear layer's logits, with its weight for this rank's part of the classes."""
    return _vocab_linear_cross_entropy(x, weight, bias, targets, n_classes, ignore_index, softcap,
                                       choice(Ebb.Reduction, reduction), group or Ebb.ProcessGroup.get_default())


def scaled_dot_product_attention(query, key, value, mask=None, causal=False, scale=0.0, dropout_p=0.0, generator=None,
                                 attn_mask=None, is_causal=False):
    """attn_mask and is_causal: PyTorch's names of mask and causal."""
    return _scaled_dot_product_attention(query, key, value, mask if attn_mask is None else attn_mask,
                                         causal or is_causal, scale or 0.0, dropout_p, generator)


def _attention_form(**fields):
    form = Ebb.AttentionForm()
    for name, value in fields.items():
        setattr(form, name, value)
    return form


def attention(query, key, value, mask=None, starts=None, causal=False, first_query=0, window=0, softcap=0.0, scale=0.0,
              dropout_p=0.0, generator=None):
    """Queries [B, H, T, D] to keys and values [B, G, S, D]. starts [B, T]: where each query's document begins among the
    keys. first_query: the first query's position there. window: how many keys a query attends to at most."""
    form = _attention_form(causal=causal, first_query=first_query, window=window, softcap=softcap, scale=scale,
                           dropout_p=dropout_p)
    return _attention(query, key, value, mask, starts, form, generator)


def self_attention(qkv, n_heads, mask=None, causal=False, scale=0.0, dropout_p=0.0, generator=None, starts=None,
                   window=0, softcap=0.0):
    """The same of a sequence to itself, with queries, keys and values side by side: [B, T, 3 C]."""
    form = _attention_form(causal=causal, window=window, softcap=softcap, scale=scale, dropout_p=dropout_p)
    return _self_attention(qkv, n_heads, mask, starts, form, generator)


def multinomial(weights, num_samples, replacement=True, generator=None):
    """replacement: True; without it one index is drawn."""
    if not replacement and num_samples > 1:
        raise ValueError(f"multinomial(): replacement is {replacement}: several indices are drawn with replacement")
    return _multinomial(weights, num_samples, generator)


def embedding(weight, indices):
    """The row of weight [V, C] for each index. PyTorch's order, indices first, is taken as well."""
    if isinstance(indices, Tensor) and isinstance(weight, Tensor) and Ebb.dtype_is_floating_point(indices.get_dtype()):
        weight, indices = indices, weight
    return _embedding(weight, indices)


# -- gradients and memory ---------------------------------------------------------------------------------------------

_clip_grad_p_norm = _function("clip_grad_p_norm")


def _listed(tensors):
    return [tensors] if isinstance(tensors, Tensor) else None if tensors is None else list(tensors)


def backward(outputs, grad_outputs=None, inputs=None, retain_graph=False):
    """Adds the gradients of outputs to those of the leaves, or of `inputs` alone."""
    _backward(_listed(outputs), _listed(grad_outputs), _listed(inputs), retain_graph)


def clip_grad_norm(parameters, max_norm, norm_type=2.0):
    """Scales the gradients of parameters in place so that their norm is max_norm at most; returns the norm before, a
    tensor of one number. norm_type is 2, 1, math.inf (or "inf") or any other number above 0."""
    return _clip_grad_p_norm(_listed(parameters), max_norm, float(norm_type))


def grad(outputs, inputs, grad_outputs=None, retain_graph=False):
    """The gradients of outputs with respect to inputs, as a tuple; no tensor's .grad changes."""
    return tuple(_grad(_listed(outputs), _listed(inputs), _listed(grad_outputs), retain_graph))


_PURPOSES = {name: getattr(Ebb.Purpose, name.upper())
             for name in ("parameter", "gradient", "optimizer", "activation", "cache", "workspace")}


def memory_stats(device="cpu"):
    """Bytes of tensors on a device: for each purpose and in total {"current", "peak"}; what the allocator holds."""
    stats = Ebb.memory_get_stats(to_device(device))
    result = {name: {"current": stats.get_current(purpose), "peak": stats.get_peak(purpose)}
              for name, purpose in _PURPOSES.items()}
    result["total"] = {"current": stats.get_total(), "peak": stats.get_peak_total()}
    result["reserved"] = stats.get_reserved()
    result["system_calls"] = stats.get_system_calls()
    return result


# -- devices -----------------------------------------------------------------------------------------------------------

def device(device, index=None):
    """A device by its name, as "cpu" or "cuda:0", or by its name and number; an ebb.Device stays itself."""
    if device is None:
        raise TypeError("device(): device is None: it must be a name, as \"cpu\"")
    return to_device(device if index is None else f"{device}:{index}" if index else device)


def _is_cuda_available():
    """Whether the device "cuda" can be used here."""
    try:
        return to_device("cuda") is not None
    except Error:
        return False


class _Cuda(types.SimpleNamespace):
    def __getattr__(self, name):
        raise AttributeError(f"ebb.cuda has no {name!r}: it has {', '.join(vars(self))}; write "
                             "ebb.memory_stats(\"cuda\") or ebb.device(\"cuda\") for more")


def _ask_cuda(question, otherwise=0):
    """A question about a GPU's memory; without one, no byte is used."""
    def ask(device="cuda"):
        return otherwise if device == "cuda" and not _is_cuda_available() else question(to_device(device))

    return ask


# What PyTorch's programs ask of torch.cuda.
cuda = _Cuda(
    is_available=_is_cuda_available, manual_seed=Ebb.manual_seed, manual_seed_all=Ebb.manual_seed,
    device_count=lambda: len([kind for kind in Ebb.list_device_kinds() if kind == "cuda"]),
    is_bf16_supported=_is_cuda_available,
    empty_cache=_ask_cuda(Ebb.memory_trim, None), synchronize=_ask_cuda(lambda device: device.synchronize(), None),
    memory_allocated=_ask_cuda(lambda device: memory_stats(device)["total"]["current"]),
    max_memory_allocated=_ask_cuda(lambda device: memory_stats(device)["total"]["peak"]),
    memory_reserved=_ask_cuda(lambda device: memory_stats(device)["reserved"]),
    reset_peak_memory_stats=_ask_cuda(Ebb.memory_reset_peaks, None))
