"""Objects made as Python makes them: `ebb.Linear(64, 64)`, `ebb.AdamW(module, 3e-4)`.

Positional arguments are those of the C constructor `new`, each of which is a property; other properties go by name.
What can fail in C is done by GInitable, which PyGObject does not call by itself.
"""
import inspect
import numbers

from gi._gi import FieldInfoFlags, StructInfo, TypeTag
from gi.module import get_introspection_module
from gi.overrides._ebb_check import (check_enum_value, check_property, check_value, show, suggest, suggest_before,
                                     visible_arguments)
from gi.overrides._ebb_docs import describe_constructor, fields_signature, new_signature
from gi.overrides._ebb_errors import Error, guard
from gi.overrides._ebb_infos import type_of
from gi.repository import Gio, GObject

Ebb = get_introspection_module("Ebb")

# Settings that are given by name as properties are, but go through a method.
OTHER_SETTINGS = {"filter": "set_filter", "fallback": "set_fallback"}

# Arguments that PyTorch's classes have and these lack.
_ADVICE = {
    "device": "write `with ebb.default_device(device):`, or module.to(device)",
    "dtype": "write `with ebb.parameter_dtype(\"bf16\"):`, or module.to(\"bf16\")",
    "approximate": "write kind=\"tanh\"",
    "batch_first": "leave it out, since batches come first",
    "elementwise_affine": "the layer has a weight: write ebb.layer_norm(x) or ebb.rms_norm(x) in forward() for none",
    "padding_idx": "leave it out, and give targets that are padding the number -100, which ebb.cross_entropy() ignores",
    "amsgrad": "there is no such variant: leave it out",
    "maximize": "write (-loss).backward()",
    **dict.fromkeys(("optimizer", "last_epoch"), "leave it out, and write schedule.apply(optimizer) before each step"),
    **dict.fromkeys(("inplace", "max_norm", "norm_type", "scale_grad_by_freq", "sparse", "add_bias_kv", "add_zero_attn",
                     "differentiable"), "leave it out"),
    **dict.fromkeys(("fused", "foreach", "capturable"), "leave it out, since each step is one fused pass"),
}

# The names here of arguments that PyTorch and transformers call otherwise, where a class has them.
_RENAMED = {
    **dict.fromkeys(("normalized_shape", "embed_dim", "d_model", "hidden_size", "n_embd", "dim"),
                    ("width", "embedding_dim")),
    **dict.fromkeys(("num_heads", "nhead", "n_head", "num_attention_heads"), ("heads",)),
    **dict.fromkeys(("dim_feedforward", "intermediate_size", "n_inner"), ("hidden",)),
    **dict.fromkeys(("num_layers", "n_layer", "num_hidden_layers"), ("layers",)),
    **dict.fromkeys(("block_size", "n_positions", "max_position_embeddings"), ("context",)),
    **dict.fromkeys(("layer_norm_eps", "rms_norm_eps", "layer_norm_epsilon"), ("norm_eps", "eps")),
    **dict.fromkeys(("T_max", "num_training_steps"), ("total_steps",)),
    "model": ("module",), "learning_rate": ("lr",), "norm_first": ("pre_norm",), "kdim": ("context_width",),
    "vocab_size": ("vocab", "num_embeddings"), "num_key_value_heads": ("kv_heads",), "head_dim": ("head_width",),
    "tie_word_embeddings": ("tied",), "num_warmup_steps": ("warmup_steps",), "hidden_act": ("activation",),
}


def find_renamed(name, names):
    return next((other for other in _RENAMED.get(name, ()) if other in names), None)


def refuse_argument(cls, name, names):
    """Raises the error for an argument that a class does not have: what to write, and the arguments that there are."""
    renamed = find_renamed(name, names)
    advice = f"write {renamed}=" if renamed else _ADVICE.get(name)
    taken = f"its arguments are {', '.join(names)}" if names else "it takes none"
    raise TypeError(f"{cls.__name__}() has no argument {name!r}: "
                    + (f"{advice}; {taken}" if advice else suggest_before(name, names, taken)))


_init = guard(Gio.Initable.init)
_names = {}  # by class written in C
_specs = {}  # of properties that were set, by class, which GObject keeps for ever, and name


def is_library_class(cls):
    if cls.__module__ == "builtins":  # which code without a __name__ makes classes of, too
        return not hasattr(cls, "__gtype__")
    return cls.__module__.startswith("gi.") or cls.__module__ == "gobject"


def c_class(cls):
    """The nearest class that C has made."""
    return next(base for base in cls.__mro__ if is_library_class(base) and hasattr(base, "__gtype__"))


def _positional_names(cls):
    cls = c_class(cls)
    if cls not in _names:
        constructor = next((m for m in cls.__info__.get_methods() if m.get_name() == "new"), None)
        _names[cls] = [a.get_name() for a in constructor.get_arguments()] if constructor is not None else []
    return _names[cls]


def name_arguments(cls, names, args, kwargs):
    """All arguments of a constructor by name."""
    if len(args) > len(names):
        raise TypeError(f"{cls.__name__}() takes at most {len(names)} positional arguments"
                        + (f" ({', '.join(names)})" if names else "") + f", but {len(args)} were given")
    for name, value in zip(names, args):
        if name in kwargs:
            raise TypeError(f"{cls.__name__}() got {name!r} twice")
        kwargs[name] = value
    return kwargs


# Arguments of PyTorch's classes that change nothing where they have one of these values; () stands for all values.
HARMLESS_TO_OPTIMIZERS = {**dict.fromkeys(("fused", "foreach", "capturable", "differentiable"), ()),
                          **dict.fromkeys(("maximize", "amsgrad"), (False,))}
HARMLESS_TO_LAYERS = {
    **dict.fromkeys(("inplace", "device", "dtype"), ()),
    **dict.fromkeys(("scale_grad_by_freq", "sparse", "add_bias_kv", "add_zero_attn"), (False,)),
    **dict.fromkeys(("batch_first", "elementwise_affine", "affine", "track_running_stats", "bias"), (True,)),
    "eps": (None,), "padding_idx": (None,), "max_norm": (None,), "norm_type": (2.0,),
}


def is_harmless(harmless, cls, name, value):
    """Whether an argument of PyTorch's, which a class lacks, says what is so anyhow."""
    values = harmless.get(name)
    return values is not None and (values == () or value in values) and (value is None or not has_property(cls, name))


def _take_layers_arguments(cls, kwargs):
    """Arguments of layers that PyTorch has and a class of C lacks: what they stand for; and what is done with the layer
    afterwards."""
    after = []
    for name in ("normalized_shape", "width"):
        shape = kwargs.get(name)
        if name in kwargs and has_property(cls, "width"):
            kwargs["width"] = kwargs.pop(name)[0] if isinstance(shape, (tuple, list)) and len(shape) == 1 else \
                kwargs.pop(name)
    if "approximate" in kwargs and has_property(cls, "kind"):
        kwargs["kind"] = {"none": "exact"}.get(kwargs["approximate"], kwargs["approximate"])
        del kwargs["approximate"]
    targets = [kwargs.pop(name) for name in ("device", "dtype") if not has_property(cls, name) and name in kwargs]
    if any(target is not None for target in targets):
        after.append(lambda layer: layer.to(*(target for target in targets if target is not None)))
    for name, gone in (("elementwise_affine", ("weight", "bias")), ("affine", ("weight", "bias")), ("bias", ("bias",))):
        if kwargs.get(name) is False and not has_property(cls, name) and has_property(cls, "width"):
            del kwargs[name]
            after.append(lambda layer, gone=gone: [layer.register_parameter(part, None) for part in gone
                                                   if part in layer.get_parameter_names(False)])
    index = kwargs.get("padding_idx")
    if isinstance(index, int) and has_property(cls, "num-embeddings"):
        from gi.overrides._ebb_layers import keep_padding
        del kwargs["padding_idx"]
        after.append(lambda layer: keep_padding(layer, index))
    for name in [name for name, value in kwargs.items() if is_harmless(HARMLESS_TO_LAYERS, cls, name, value)]:
        del kwargs[name]
    return after


def construct(self, initialize, args, kwargs):
    """Calls initialize with all arguments as properties, then what may fail."""
    kwargs = name_arguments(type(self), _positional_names(type(self)), args, kwargs)
    after = _take_layers_arguments(type(self), kwargs) if isinstance(self, Ebb.Module) and kwargs else ()
    others = {}
    for name, value in kwargs.items():
        if name in OTHER_SETTINGS and hasattr(self, OTHER_SETTINGS[name]):
            check_setting(self, name, value)
            others[name] = value
        else:
            kwargs[name] = _take(self, name, value)
    initialize(**{name: value for name, value in kwargs.items() if name not in others})
    if isinstance(self, Gio.Initable):
        _initialize(self, kwargs)
    for name, value in others.items():
        getattr(self, OTHER_SETTINGS[name])(value)
    for change in after:
        change(self)


def _initialize(self, given):
    """Does what may fail in C; where it fails, an argument that is missing is the cause."""
    try:
        _init(self, None)
        return
    except Error:
        cls = c_class(type(self))
        needed = [name for name in _positional_names(cls) if name not in given and _is_needed(cls, name)]
        if not needed:
            raise
    raise TypeError(f"{type(self).__name__}() needs {' and '.join(needed)}: its arguments are "
                    f"{', '.join(_positional_names(cls))}")


def _is_needed(cls, name):
    parameter = inspect.signature(cls).parameters.get(name)
    return parameter is not None and parameter.default is parameter.empty


def check_setting(self, name, value):
    """Lets a class that knows better than GObject what its properties may be say so."""
    check = getattr(type(self), "_check_setting", None)
    if check is not None:
        check(name, value)


def _take(self, name, value):
    """The value of an argument as its property takes it."""
    check_setting(self, name, value)
    cls = type(self)
    spec = _specs.get((cls, name))
    if spec is None:
        spec = _specs[cls, name] = _find_spec(cls, name)
    if spec is None:
        specs = sorted(cls.list_properties(), key=lambda spec: spec.owner_type.name == "EbbModule")
        refuse_argument(cls, name, [spec.name.replace("-", "_") for spec in specs
                                    if spec.flags & GObject.ParamFlags.WRITABLE])
    if name == "width" and isinstance(value, (tuple, list)):
        raise TypeError(f"{cls.__name__}: width is {show(value)}: must be an int, the size of the last dimension")
    return check_property(f"{cls.__name__}: {name}", spec, value)


def has_property(cls, name):
    return _property_name(cls, name) is not None


def _find_spec(cls, name):
    name = name.replace("_", "-")
    return None if name.startswith("-") else cls.find_property(name)


def _property_name(cls, name):
    """The GObject property that Python calls name; None if there is none."""
    name = name.replace("_", "-")
    return name if not name.startswith("-") and cls.find_property(name) is not None else None


def _get_attribute(self, name):
    found = _property_name(type(self), name)
    if found is None:
        names = {} if name.startswith("_") else list_attributes(self)
        renamed = find_renamed(name, names)
        advice = f"write {renamed}" if renamed else suggest(name, names)
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}" + (advice and f": {advice}"))
    return self.get_property(found)


def list_attributes(obj):
    """The attributes of an object, its properties among them."""
    return {*dir(obj), *(spec.name.replace("-", "_") for spec in type(obj).list_properties())}


def _set_attribute(self, name, value):
    setter = getattr(type(self), OTHER_SETTINGS.get(name, ""), None)
    if setter is not None:
        setter(self, value)
        return
    found = _property_name(type(self), name)
    if found is None:
        GObject.Object.__setattr__(self, name, value)
    else:
        value = _take(self, name, value)
        getattr(type(self), "_set_setting", GObject.Object.set_property)(self, found, value)


def add_init(cls):
    """Gives a class that has no Python part a constructor for Python, and its properties as attributes."""

    def __init__(self, *args, **kwargs):
        construct(self, lambda **properties: GObject.Object.__init__(self, **properties), args, kwargs)

    cls.__init__ = __init__
    constructor = next((method for method in cls.__info__.get_methods() if method.get_name() == "new"), None)
    if constructor is not None:
        names = [argument.get_name() for argument in visible_arguments(constructor)]
        if any(_property_name(cls, name) is None for name in names):
            _make_by_constructor(cls, names, constructor)
    if "__new__" not in cls.__dict__:
        describe_constructor(cls)
    add_attributes(cls)


def _make_by_constructor(cls, names, constructor):
    """Has the class call its constructor in C, whose arguments are no properties."""
    make = cls.new

    def create(_, *args, **kwargs):
        values = name_arguments(cls, names, args, kwargs)
        for name in values:
            if name not in names:
                refuse_argument(cls, name, names)
        for name in names:
            if name not in values:
                raise TypeError(f"{cls.__name__}() needs {name}: its arguments are {', '.join(names)}")
        try:
            return make(*(values[name] for name in names))
        except (TypeError, ValueError) as error:
            raise type(error)(str(error).replace("new()", f"{cls.__name__}()", 1)) from None

    def __init__(self, *args, **kwargs):
        pass  # all is done

    create.__signature__ = new_signature(constructor)
    cls.__new__, cls.__init__ = staticmethod(create), __init__


def add_attributes(cls):
    cls.__getattr__ = _get_attribute
    cls.__setattr__ = _set_attribute


def add_fields(cls, info):
    """Gives a configuration, which is no GObject, a constructor with its fields as keywords, `GptConfig(layers=4)`, and
    checks what they are set to. A field that is misspelt is an error; a field that is a structure takes a dict.
    """
    kinds = {field.get_name(): type_of(field) for field in info.get_fields()
             if field.get_flags() & FieldInfoFlags.IS_WRITABLE}
    methods = {method.get_name() for method in info.get_methods()}
    setters = {name.removeprefix("set_") for name in methods if name.startswith("set_")}
    make, make_preset = cls.new, cls.new_preset

    def name_fields(wanted):
        fields = [*kinds, *setters]
        return suggest_before(wanted, fields, f"it has {', '.join(fields)}")

    def set_field(self, name, value):
        if name in setters:
            getattr(self, f"set_{name}")(value)
            return
        if name not in kinds:
            raise AttributeError(f"{cls.__name__} has no attribute {name!r} that can be set: {name_fields(name)}")
        if isinstance(value, Ebb.RotaryConfig):
            value = {**dict.fromkeys(_ROTARY_LISTS, ()), **_read_parts(value)}
        if isinstance(value, dict):
            _set_parts(f"{cls.__name__}.{name}", kinds[name], getattr(self, name), value)
        elif _is_structure(kinds[name]):
            raise TypeError(f"{cls.__name__}.{name} is {show(value)}: it must be a dict, as {{'theta': 10000.0}}, or "
                            "an ebb.RotaryConfig")
        else:
            value = check_enum_value(f"{cls.__name__}.{name}", kinds[name], value)
            check_value(f"{cls.__name__}.{name}", kinds[name], value)
            object.__setattr__(self, name, value)

    def get_field(self, name):
        if name in setters:
            return getattr(self, f"get_{name}")()
        raise AttributeError(f"{cls.__name__} has no attribute {name!r}: {name_fields(name)}")

    def create(_, preset=None, **values):
        if preset is not None and preset not in cls.get_preset_names():
            raise ValueError(f"{cls.__name__}(): preset is {show(preset)}: it must be one of "
                             f"{', '.join(map(repr, cls.get_preset_names()))}")
        config = make() if preset is None else make_preset(preset)
        for name, value in values.items():
            if name not in kinds and name not in setters:
                refuse_argument(cls, name, ["preset", *kinds, *setters])
            setattr(config, name, value)
        return config

    def represent(self):
        shown = [f"{name}={_show_field(getattr(self, name))}" for name in (*kinds, *sorted(setters))]
        return f"{cls.__name__}({', '.join(shown)})"

    cls.__new__ = staticmethod(create)
    cls.__init__ = lambda self, *args, **kwargs: None
    cls.__setattr__ = set_field
    cls.__getattr__ = get_field
    cls.__repr__ = represent
    create.__signature__ = fields_signature(cls, [*kinds, *sorted(setters)])


def _is_structure(kind):
    return kind.get_tag() == TypeTag.INTERFACE and isinstance(kind.get_interface(), StructInfo)


def _show_field(value):
    if not isinstance(value, Ebb.RotaryConfig):
        return repr(getattr(value, "value_nick", value))
    return "{" + ", ".join(f"{name!r}: {_show_field(part)}" for name, part in _read_parts(value).items()) + "}"


# -- structures inside configurations ----------------------------------------------------------------------------------

_ROTARY_FIELDS = {field.get_name(): type_of(field) for field in Ebb.RotaryConfig.__info__.get_fields()}
_ROTARY_LISTS = {name: (getattr(Ebb.RotaryConfig, f"get_{name}"), guard(getattr(Ebb.RotaryConfig, f"set_{name}")))
                 for name, kind in _ROTARY_FIELDS.items() if kind.get_tag() == TypeTag.ARRAY}


def _read_parts(structure):
    """What a dict for the structure has; n_factors is the length of its lists."""
    parts = {name: getattr(structure, name) for name in _ROTARY_FIELDS
             if name not in _ROTARY_LISTS and name != "n_factors"}
    lists = {name: list(read(structure)) for name, (read, _) in _ROTARY_LISTS.items()}
    return {**parts, **{name: factors for name, factors in lists.items() if factors}}


def _set_list(label, name, structure, values):
    if not isinstance(values, (list, tuple)) or not all(
            isinstance(value, numbers.Real) and not isinstance(value, bool) for value in values):
        raise TypeError(f"{label} is {show(values)}: it must be a list of numbers")
    _ROTARY_LISTS[name][1](structure, list(values))


def _set_parts(label, kind, structure, values):
    """Sets fields of a structure inside a configuration."""
    if not _is_structure(kind):
        raise TypeError(f"{label} is {show(values)}: it has no parts")
    lengths = {name: len(values[name]) for name in _ROTARY_LISTS if isinstance(values.get(name), (list, tuple))}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"{label} has {' and '.join(f'{n} {name}' for name, n in lengths.items())}: both lists must "
                         "have as many")
    for name, value in values.items():
        if name not in _ROTARY_FIELDS:
            raise AttributeError(f"{label} has no {name!r}: it has {', '.join(_ROTARY_FIELDS)}")
        if name in _ROTARY_LISTS:
            _set_list(f"{label}[{name!r}]", name, structure, value)
            continue
        value = check_enum_value(f"{label}[{name!r}]", _ROTARY_FIELDS[name], value)
        check_value(f"{label}[{name!r}]", _ROTARY_FIELDS[name], value)
        setattr(structure, name, value)


def _adapt_rotary(cls):
    """Gives rotary positions, `config.rotary`, their lists as attributes, and shows them."""
    def add_list(name):
        read, _ = _ROTARY_LISTS[name]
        setattr(cls, name, property(lambda self: list(read(self)),
                                    lambda self, values: _set_list(f"RotaryConfig.{name}", name, self, values)))

    for name in _ROTARY_LISTS:
        add_list(name)
    cls.__repr__ = lambda self: "RotaryConfig({})".format(
        ", ".join(f"{name}={_show_field(part)}" for name, part in _read_parts(self).items()))


_adapt_rotary(Ebb.RotaryConfig)
