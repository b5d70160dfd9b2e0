"""Tensors and modules as Python shows them: repr(), and the memory of a module in a notebook."""
import html
import math

from gi.module import get_introspection_module
from gi.overrides._ebb_errors import Error
from gi.overrides._ebb_indexing import make_indices
from gi.overrides._ebb_module import Module, Parameter
from gi.overrides._ebb_tensor import DType, Tensor
from gi.repository import GObject

Ebb = get_introspection_module("Ebb")

_MOST, _EDGE, _WIDTH = 1000, 3, 80  # elements that are all shown; those at each end otherwise; characters of a line
_USUAL = (DType.F32, DType.I64, DType.BOOL)
_NAMES = {DType.BF16: "bfloat16", DType.F16: "float16", DType.I32: "int32", DType.U8: "uint8"}


# -- tensors ----------------------------------------------------------------------------------------------------------

def _take_edges(tensor):
    """The elements that are shown, and in which dimensions some are left out."""
    cut = [size > 2 * _EDGE for size in tensor.shape] if tensor.get_n_elements() > _MOST else [False] * tensor.ndim
    for dim, is_cut in enumerate(cut):
        if is_cut:
            size = tensor.shape[dim]
            places = make_indices([*range(_EDGE), *range(size - _EDGE, size)], tensor)
            tensor = tensor.index_select(dim, places)
    return tensor.tolist(), cut


def _flatten(values):
    return [item for value in values for item in _flatten(value)] if isinstance(values, list) else [values]


def _choose_format(values):
    """How all elements are written: whole, with four digits, or with exponents."""
    if not values or not isinstance(values[0], float):
        return str
    sizes = [abs(value) for value in values if math.isfinite(value) and value != 0]
    if all(value == int(value) for value in sizes) and max(sizes, default=0) < 1e8:
        return lambda value: f"{value:.0f}." if math.isfinite(value) else str(value)
    if max(sizes) >= 1e8 or min(sizes) < 1e-4 or max(sizes) / min(sizes) > 1e3 and max(sizes) >= 1e3:
        return lambda value: f"{value:.4e}"
    return lambda value: f"{value:.4f}"


def _join(values, cut, write, width, indent):
    if not isinstance(values, list):
        return write(values).rjust(width)
    parts = [_join(value, cut[1:], write, width, indent + 1) for value in values]
    if cut[0]:
        parts.insert(_EDGE, "...")
    if values and isinstance(values[0], list):
        return "[" + ("," + "\n" * (len(cut) - 1) + " " * (indent + 1)).join(parts) + "]"
    per_line = max(1, (_WIDTH - indent) // (width + 2))
    lines = [", ".join(parts[i:i + per_line]) for i in range(0, len(parts), per_line)]
    return "[" + (",\n" + " " * (indent + 1)).join(lines) + "]"


def _show_tensor(tensor):
    notes = []
    try:
        values, cut = _take_edges(tensor.detach())
        flat = _flatten(values)
        write = _choose_format(flat)
        text = _join(values, cut, write, max((len(write(value)) for value in flat), default=0), len("tensor("))
    except Error:  # in a dry run tensors have no data
        text = "..."
        notes.append(f"size={tensor.shape}")
    if not tensor.get_n_elements() and tensor.ndim > 1:
        text = "[]"
        notes.append(f"size={tensor.shape}")
    if tensor.get_device().get_name() != "cpu":
        notes.append(f"device='{tensor.get_device().get_name()}'")
    if tensor.get_dtype() not in _USUAL:
        notes.append(f"dtype=ebb.{_NAMES[tensor.get_dtype()]}")
    if tensor.get_requires_grad():
        notes.append("requires_grad=True")
    kind = "Parameter containing:\n" if isinstance(tensor, Parameter) else ""
    return f"{kind}tensor({', '.join([text, *notes])})"


Tensor.__repr__ = _show_tensor


# -- modules ----------------------------------------------------------------------------------------------------------

_PLAIN = (GObject.TYPE_INT, GObject.TYPE_UINT, GObject.TYPE_INT64, GObject.TYPE_DOUBLE, GObject.TYPE_BOOLEAN)


def _extra_repr(self):
    """What repr() shows between a module's parentheses; a class of your own may say more."""
    shown = []
    for spec in type(self).list_properties():
        is_enum = spec.value_type.is_a(GObject.TYPE_ENUM)
        if spec.owner_type.name != "EbbModule" and spec.flags & GObject.ParamFlags.READABLE and (
                is_enum or spec.value_type in _PLAIN):
            value = self.get_property(spec.name)
            if is_enum:
                kind = getattr(Ebb, spec.value_type.name.removeprefix("Ebb"))
                value = kind(value).value_nick
            shown.append(f"{spec.name.replace('-', '_')}={value!r}")
    if _is_hidden(self):
        shown += [f"{name}={parameter.shape}" for name, parameter in self.named_parameters(False)]
    return ", ".join(shown)


def _is_hidden(module):
    """Whether its class has no name in the package: one of C alone, as those that hold the factors of adapters."""
    return type(module).__module__ == "__gi__"


def _name_type(module):
    return type(module).__name__.removeprefix("Ebb" if _is_hidden(module) else "")


def _show_module(module):
    extra = module.extra_repr()
    lines = []
    for name, child in module.named_children():
        lines.append(f"  ({name}): " + repr(child).replace("\n", "\n  "))
    if not lines:
        return f"{_name_type(module)}({extra})"
    return "\n".join([f"{_name_type(module)}({extra}", *lines, ")"])


Module.extra_repr, Module.__repr__ = _extra_repr, _show_module


# -- memory in a notebook ---------------------------------------------------------------------------------------------

def _show_bytes(n):
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if n >= size:
            return f"{n / size:.1f} {unit}"
    return f"{n} B"


def _measure(module):
    """The numbers of parameters, and the bytes of these, of their gradients and of buffers; shared ones count once."""
    parameters = {hash(parameter): parameter for parameter in module.get_parameters(True)}.values()
    buffers = {hash(buffer): buffer for buffer in module.get_buffers(True)}.values()
    gradients = [parameter.get_grad() for parameter in parameters if parameter.get_grad() is not None]
    return (sum(parameter.get_n_elements() for parameter in parameters),
            *(sum(tensor.get_n_bytes() for tensor in tensors) for tensors in (parameters, gradients, buffers)))


def _repr_html(self):
    """A module's memory, by its parts, as a table for Jupyter."""
    rows = []
    for path, module in self.named_modules():
        if path.count(".") < 2:
            n, *n_bytes = _measure(module)
            where = {parameter.get_device().get_name() for parameter in module.get_parameters(True)}
            cells = [f"{n:,}", *map(_show_bytes, n_bytes), ", ".join(sorted(where))]
            indent = "&nbsp;" * 4 * (path.count(".") + 1 if path else 0)
            rows.append(f"<tr><td style=\"text-align:left\">{indent}{html.escape(path or '(all)')}</td>"
                        f"<td style=\"text-align:left\">{html.escape(_name_type(module))}</td>"
                        + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>")
    heads = "".join(f"<th>{head}</th>" for head in ("module", "class", "parameters", "weights", "gradients", "buffers",
                                                    "device"))
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


Module._repr_html_ = _repr_html
