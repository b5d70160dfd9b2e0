"""Trains transformers inside a memory budget: `import ebb`.

The names are those of gi.repository.Ebb and its overrides, which this package finds: in a wheel they lie below it,
where Ebb is installed CMake has written down where, and a source tree has them in build/release or in EBB_BUILD_DIR. A
folder of GI_TYPELIB_PATH that has Ebb goes first.
"""
import ctypes
import os
import sys

_TYPELIB = "Ebb-1.0.typelib"
_HERE = os.path.dirname(os.path.realpath(__file__))


def _import_gi():
    try:
        import gi
        import gi._gi
        import gi.overrides
    except ImportError as error:
        raise ImportError(
            f"ebb needs PyGObject, which {sys.executable} can't import ({error}): install python3-gi and use Debian's "
            "/usr/bin/python3, also in a virtual environment that is made with its --system-site-packages, or else "
            "libgirepository1.0-dev, libcairo2-dev, gcc and pkg-config, and then `pip install PyGObject==3.50.0`"
        ) from None
    return gi


def _find_typelibs():
    """The folder of the typelib that belongs to this package; None where GI_TYPELIB_PATH names another."""
    for folder in os.environ.get("GI_TYPELIB_PATH", "").split(os.pathsep):
        if folder and os.path.exists(os.path.join(folder, _TYPELIB)):
            return None
    try:
        from ebb._place import TYPELIBS
        folder = os.path.normpath(os.path.join(_HERE, TYPELIBS))
    except ImportError:
        root = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))
        folder = os.environ.get("EBB_BUILD_DIR") or os.path.join(root, "build", "release")
    if not os.path.exists(os.path.join(folder, _TYPELIB)):
        raise ImportError(f"{os.path.join(folder, _TYPELIB)} is not there: build Ebb, or have GI_TYPELIB_PATH name the "
                          "folder that has it")
    return folder


def _add_typelibs(gi, folder):
    """Has introspection look for typelibs in a folder first. PyGObject stands on one of two generations of it."""
    path = os.fsencode(folder)
    try:
        ctypes.CDLL("libgirepository-1.0.so.1", mode=os.RTLD_NOLOAD).g_irepository_prepend_search_path(path)
    except OSError:
        # Its repository is no singleton: the one of PyGObject is the first field of its object.
        repository = ctypes.c_void_p.from_address(id(gi.Repository.get_default()) + object.__basicsize__)
        ctypes.CDLL("libgirepository-2.0.so.0", mode=os.RTLD_NOLOAD).gi_repository_prepend_search_path(repository, path)


def _add_overrides(gi):
    """The overrides beside this package go before those of a copy that the system has."""
    folder = os.path.join(os.path.dirname(_HERE), "gi", "overrides")
    gi.overrides.__path__ = [folder, *(path for path in gi.overrides.__path__ if path != folder)]


def _load():
    if "gi.repository.Ebb" not in sys.modules:
        gi = _import_gi()
        folder = _find_typelibs()
        if folder is not None:
            _add_typelibs(gi, folder)
        _add_overrides(gi)
        gi.require_version("Ebb", "1.0")
    from gi.repository import Ebb
    return Ebb


_Ebb = _load()
__version__ = _Ebb.get_version_string()

# Names of PyTorch that are not here: the code to write instead.
_ADVICE = {
    "nn": "layers are ebb's own, as ebb.Linear, and so are functions, as ebb.gelu()",
    "functional": "functions are ebb's own, as ebb.gelu()",
    "F": "functions are ebb's own, as ebb.gelu()",
    "optim": "optimizers are ebb's own, as ebb.AdamW",
    "utils": "write ebb.checkpoint() for torch.utils.checkpoint; batches come from any iterable of numpy arrays, which "
             "ebb.tensor() takes, or from ebb.TextDataset",
    "cuda": "write model.to(\"cuda\"), ebb.zeros(2, device=\"cuda\") and ebb.memory_stats(\"cuda\")",
    "amp": "write `with ebb.autocast():`",
    "distributed": "write ebb.init_process_group(), whose groups have all_reduce() and the others",
    "save": "write ebb.save_safetensors(model.state_dict(), path), or pickle.dump()",
    "load": "write model.load_state_dict(ebb.load_safetensors(path)), or pickle.load()",
    "inference_mode": "write `with ebb.no_grad():`",
    "set_grad_enabled": "write `with ebb.no_grad():` or `with ebb.enable_grad():`",
    "compile": "models run as they are; ebb.plan_memory() chooses what they keep",
    "float64": "there are no 64-bit floats: write ebb.float32",
    "double": "there are no 64-bit floats: write ebb.float32",
    "DataLoader": "batches come from any iterable of numpy arrays, which ebb.tensor() takes, or from ebb.TextDataset",
    "device": "a device is a name, as \"cpu\"; write `with ebb.default_device(\"sim\"):` for a region",
    "concat": "write ebb.cat()",
    "concatenate": "write ebb.cat()",
    "mm": "write ebb.matmul(), or a @ b",
    "bmm": "write ebb.matmul(), or a @ b",
    "mse_loss": "write (a - b).square().mean()",
    "MSELoss": "write (a - b).square().mean()",
    "CrossEntropyLoss": "write ebb.cross_entropy(logits, targets)",
    "ModuleDict": "assign modules as attributes, or write ebb.ModuleList",
    "cumsum": "write ebb.tril(ebb.ones(n, n)) @ t",
    "logsumexp": "write (t - t.log_softmax(-1))[..., 0]",
    "bool": "write dtype=\"bool\", and t.bool() to convert",
    "half": "write ebb.float16",
    "float": "write ebb.float32",
    "long": "write ebb.int64",
    "autograd": "write ebb.grad(outputs, inputs), or loss.backward()",
}


def _list_names():
    """All but the structures of classes, as ModuleClass, and what is private."""
    names = dir(_Ebb)
    return [name for name in names
            if not name.startswith("_") and not (name.endswith("Class") and name.removesuffix("Class") in names)]


def __getattr__(name):
    if name == "__all__":
        return _list_names()
    try:
        value = globals()[name] = getattr(_Ebb, name)
    except AttributeError:
        raise AttributeError(f"ebb has no {name!r}" + (f": {_ADVICE[name]}" if name in _ADVICE else "")
                             ) from None
    return value


def __dir__():
    return sorted({*_list_names(), "__version__", "__doc__", "__file__", "__name__"})
