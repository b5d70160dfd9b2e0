"""Loads the library that belongs to the typelib, with threads that don't spin for long while they wait.

libgomp's threads spin between parallel regions, by default for milliseconds, and take the core from other processes for
that time. libgomp reads how long when it is loaded, with the library. The variable is set for that moment alone, so
that programs which are started from here don't inherit it.
"""
import ctypes
import glob
import os

from gi._gi import Repository
from gi.module import get_introspection_module

_LIBRARY = "libebb-1.0.so.1"


def _open_library():
    """Opens the library beside the typelib, as in a build folder, or one folder above. What is open already is what the
    typelib's name of the library finds. Elsewhere the loader finds it."""
    folder = os.path.dirname(os.fsdecode(Repository.get_default().get_typelib_path("Ebb")))
    for folder in (folder, os.path.dirname(folder)):
        path = os.path.join(folder, _LIBRARY)
        if os.path.exists(path):
            # A wheel has a oneDNN of its own: what another library of the process offers under its names is not meant.
            has_own = glob.glob(os.path.join(glob.escape(folder), "libebb-dnnl-*"))
            try:
                ctypes.CDLL(path, mode=os.RTLD_LOCAL | (os.RTLD_DEEPBIND if has_own else 0))
            except OSError as error:
                raise ImportError(f"Ebb can't be loaded ({error}): install GLib 2.74 or newer, PCRE2, and "
                                  "libgomp, on Debian libglib2.0-0, libpcre2-8-0, and libgomp1"
                                  ) from None
            return


def _load():
    sets = not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & set(os.environ)
    if sets:
        os.environ["GOMP_SPINCOUNT"] = "1000"
    try:
        _open_library()
        return get_introspection_module("Ebb").Tensor
    finally:
        if sets:
            del os.environ["GOMP_SPINCOUNT"]


_load()
