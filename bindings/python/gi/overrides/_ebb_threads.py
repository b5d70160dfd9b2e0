"""Loads the library with threads that don't spin for long while they wait.

libgomp's threads spin between parallel regions, by default for milliseconds, and take the core from other processes for
that time. libgomp reads how long when it is loaded, which the first type of the library does. The variable is set for
that moment alone, so that programs which are started from here don't inherit it.
"""
import os

from gi.module import get_introspection_module


def _load():
    sets = not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & set(os.environ)
    if sets:
        os.environ["GOMP_SPINCOUNT"] = "1000"
    try:
        return get_introspection_module("Ebb").Tensor
    finally:
        if sets:
            del os.environ["GOMP_SPINCOUNT"]


_load()
