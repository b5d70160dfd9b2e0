"""Modules that several ranks train together, and regions in which their gradients are left alone."""
from gi.module import get_introspection_module
from gi.overrides._ebb_errors import guard
from gi.overrides._ebb_wrap import _check_module, _mode

Ebb = get_introspection_module("Ebb")

__all__ = ["no_sync", "replicate"]

_sync_mode = _mode(Ebb.push_gradient_sync, Ebb.pop_gradient_sync)
_replicate = guard(Ebb.replicate)


def no_sync():
    """Backward passes inside add up this rank's gradients; the next one outside, or a step, reduces their sum."""
    return _sync_mode(False)


def replicate(module, group=None, *, bucket_bytes=25 << 20, unused_parameters="error", broadcast=True):
    """Has the ranks of a group train a module together, each on its own data; returns the same module.

    group: None for Ebb.ProcessGroup.get_default(). bucket_bytes: how many bytes of gradients are reduced at once.
    unused_parameters: "error", or "zero" where some ranks may leave some out. broadcast: all ranks begin with the
    weights of rank 0.
    """
    _check_module("replicate", "module", module)
    if group is not None and not isinstance(group, Ebb.ProcessGroup):
        raise TypeError(f"replicate(): group is {group!r}: it must be an Ebb.ProcessGroup, or None for the default one")
    if unused_parameters not in ("error", "zero"):
        raise ValueError(f"replicate(): unused_parameters is {unused_parameters!r}: it must be \"error\" or \"zero\"")
    if not isinstance(bucket_bytes, int) or isinstance(bucket_bytes, bool) or bucket_bytes < 1:
        raise ValueError(f"replicate(): bucket_bytes is {bucket_bytes!r}: it must be an int of at least 1")
    options = Ebb.ReplicateOptions.new()
    options.set_bucket_bytes(bucket_bytes)
    options.set_unused_parameters(getattr(Ebb.UnusedParameters, unused_parameters.upper()))
    options.set_broadcast(bool(broadcast))
    _replicate(module, group, options)
    return module
