"""Activation stores: `ebb.HostStore(byte_limit=1 << 30, when_full="spill", fallback=ebb.DiskStore("/tmp"))`."""
import json

from gi.module import get_introspection_module
from gi.overrides import override
from gi.overrides._ebb_construct import add_attributes, construct, refuse_argument
from gi.overrides._ebb_errors import call_back, guard
from gi.overrides._ebb_wrap import _check_module, picker  # SavedTensorHooks is there before what derives from it
from gi.repository import GObject

Ebb = get_introspection_module("Ebb")

_GROUPS = 4  # as ebb_offload_wrapper() has it

_wrapper = guard(Ebb.offload_wrapper)
_wrap_each = guard(Ebb.offload_wrap_each)
_get_store = Ebb.offload_get_store
_set_filter, _set_fallback = Ebb.ActivationStore.set_filter, Ebb.ActivationStore.set_fallback
_report = Ebb.ActivationStore.report
_make = guard(Ebb.store_kind_make)


def _settings(cls):
    """What a store can be made with, by the names of Python."""
    return {spec.name.replace("-", "_"): spec for spec in cls.list_properties()
            if spec.flags & GObject.ParamFlags.WRITABLE}


def _check_store(label, value):
    if value is not None and not isinstance(value, Ebb.ActivationStore):
        raise TypeError(f"{label} is {value!r}: must be an ebb.ActivationStore, as are ebb.HostStore() and "
                        "ebb.DiskStore(\"/tmp\"), or None")


@override
class ActivationStore(Ebb.ActivationStore):
    __module__ = "gi.overrides.Ebb"

    def __init__(self, *args, **kwargs):
        construct(self, super().__init__, args, kwargs)

    @classmethod
    def _check_setting(cls, name, value):
        settings, label = _settings(cls), f"{cls.__name__}: {name}"
        if name == "filter":
            if value is not None and not callable(value):
                raise TypeError(f"{label} is {value!r}: must be a function of (tensor, op) that tells what to store")
        elif name not in settings:
            refuse_argument(cls, name, sorted([*settings, "filter"]))
        elif settings[name].value_type.is_a(Ebb.ActivationStore.__gtype__):
            _check_store(label, value)

    def set_filter(self, filter):
        """Has filter(tensor, op) asked about each tensor that would be stored; None: all are."""
        self._check_setting("filter", filter)
        if filter is None:
            _set_filter(self, None)
        else:
            _set_filter(self, lambda tensor, op, *_: call_back(lambda: bool(filter(tensor, op))))

    def set_fallback(self, fallback):
        """Sets the store for what finds no room here, or can't be written; None: that is an error."""
        _check_store(f"{type(self).__name__}: fallback", fallback)
        store = fallback
        while store is not None:
            if store == self:
                raise ValueError(f"{type(self).__name__}: fallback is {fallback!r}, which leads back to this store")
            store = store.get_fallback()
        _set_fallback(self, fallback)

    def report(self, as_dict=False):
        """What the store has done: lines of text, or a dict of its counters and those of the stores behind it."""
        return json.loads(self.report_json()) if as_dict else _report(self)


add_attributes(ActivationStore)


def make_store(kind, **settings):
    """A store of a kind known by name, as the programs' --store: `ebb.make_store("contiguous+host", n_checkpoints=12)`.

    kind: one of ebb.store_kind_get_names(). settings: those of its classes, ebb.ContiguousStore() and ebb.HostStore();
    of two stores, the one in front takes each setting that it has, and the one behind takes the others.
    """
    return _make(kind, [name.replace("_", "-") for name in settings], list(settings.values()))


# -- where modules and regions put what backward needs ----------------------------------------------------------------

def _check_hooks(function, store):
    if store is not None and not isinstance(store, Ebb.SavedTensorHooks):
        raise TypeError(f"{function}(): store is {store!r}: must be an ebb.SavedTensorHooks, as are ebb.HostStore(), "
                        "ebb.DiskStore(\"/tmp\"), ebb.saved_tensor_hooks(pack, unpack) and objects of your own class")


def offload_wrapper(module, store=None):
    """Has what a module's forward keeps for backward go to a store, without a recompute; returns the same module.

    store: None for a host store of its own, which ebb.offload_get_store(module) gives, to look at its report().
    """
    _check_module("offload_wrapper", "module", module)
    _check_hooks("offload_wrapper", store)
    _wrapper(module, store)
    return module


def offload_wrap_each(root, type_or_callable, store=None):
    """Wraps every module below root that is of a type, of one in a tuple, or for which a function of it is true.

    Returns root. store: as of offload_wrapper(), but one for all.
    """
    _check_module("offload_wrap_each", "root", root)
    _check_hooks("offload_wrap_each", store)
    pick = picker("offload_wrap_each", type_or_callable)
    if pick is None:
        _wrap_each(root, type_or_callable.__gtype__, store)
        return root
    for module in [module for module in root.get_modules() if pick(module)]:
        _wrapper(module, store)
        store = _get_store(module)
    return root


def save_on_host(**settings):
    """A host store for what backward needs of a region: `with ebb.save_on_host() as store: loss = model(x)`.

    settings: those of ebb.HostStore(). Tensors of the CPU stay where they are.
    """
    return _repository().HostStore(**{"in_flight": _GROUPS, "prefetch": _GROUPS, **settings})


def _repository():
    from gi.repository import Ebb as shown
    return shown
