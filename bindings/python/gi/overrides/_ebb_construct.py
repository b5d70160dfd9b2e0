"""Objects made as Python makes them: `Ebb.Linear(64, 64)`, `Ebb.AdamW(module, 3e-4)`.

Positional arguments are those of the C constructor `new`, each of which is a property; other properties go by name.
What can fail in C is done by GInitable, which PyGObject does not call by itself.
"""
from gi.overrides._ebb_errors import guard
from gi.repository import Gio, GObject

_init = guard(Gio.Initable.init)
_names = {}  # by class written in C


def is_library_class(cls):
    return cls.__module__.startswith("gi.") or cls.__module__ in ("gobject", "builtins")


def c_class(cls):
    """The nearest class that C has made."""
    return next(base for base in cls.__mro__ if is_library_class(base) and hasattr(base, "__gtype__"))


def _positional_names(cls):
    cls = c_class(cls)
    if cls not in _names:
        constructor = next((m for m in cls.__info__.get_methods() if m.get_name() == "new"), None)
        _names[cls] = [a.get_name() for a in constructor.get_arguments()] if constructor is not None else []
    return _names[cls]


def construct(self, initialize, args, kwargs):
    """Calls initialize with all arguments as properties, then what may fail."""
    names = _positional_names(type(self))
    if len(args) > len(names):
        raise TypeError(f"{type(self).__name__}() takes at most {len(names)} positional arguments"
                        + (f" ({', '.join(names)})" if names else "") + f", but {len(args)} were given")
    for name, value in zip(names, args):
        if name in kwargs:
            raise TypeError(f"{type(self).__name__}() got {name!r} twice")
        kwargs[name] = value
    initialize(**kwargs)
    if isinstance(self, Gio.Initable):
        _init(self, None)


def add_init(cls):
    """Gives a class that has no Python part a constructor for Python."""

    def __init__(self, *args, **kwargs):
        construct(self, lambda **properties: GObject.Object.__init__(self, **properties), args, kwargs)

    cls.__init__ = __init__
