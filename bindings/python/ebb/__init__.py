"""Trains transformers inside a memory budget: `import ebb`.

The names are those of gi.repository.Ebb and its overrides, which this package finds: in a wheel they lie below it,
where Ebb is installed CMake has written down where, and a source tree has them in build/release or in EBB_BUILD_DIR. A
folder of GI_TYPELIB_PATH that has Ebb goes first.
"""
import ctypes
import importlib
import math
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
            "python3-dev, libgirepository1.0-dev, libcairo2-dev, gcc and pkg-config, and then "
            "`pip install PyGObject==3.50.0`"
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
from gi.overrides._ebb_check import suggest_attribute  # noqa: E402, which _load() finds
from gi.overrides._ebb_compose import advise_on_tensor  # noqa: E402
__version__ = _Ebb.get_version_string()

# Names of PyTorch that are not here: the code to write instead. A name may stand for several.
_MEMORY = "write ebb.memory_stats(\"cuda\")"
_NO_LAYER = "there are no convolutions, poolings and recurrent layers: compose ebb.Linear and functions in forward()"
_ADVICE = {
    **dict.fromkeys(("Conv1d", "Conv2d", "Conv3d", "MaxPool2d", "AvgPool2d", "AdaptiveAvgPool2d", "LSTM", "LSTMCell",
                     "GRU", "GRUCell", "RNN"), _NO_LAYER),
    "get_cosine_schedule_with_warmup": "write ebb.CosineSchedule(10, 100).apply(optimizer) for each step",
    **dict.fromkeys(("BatchNorm2d", "InstanceNorm1d"), "write ebb.LayerNorm, ebb.nn.GroupNorm, or ebb.BatchNorm1d"),
    "memory_allocated": _MEMORY + "[\"total\"][\"current\"]",
    "memory_summary": _MEMORY,
    **dict.fromkeys(("reset_peak_memory_stats", "reset_max_memory_allocated"),
                    "write ebb.memory_reset_peaks(\"cuda\")"),
    **dict.fromkeys(("memory_reserved", "max_memory_reserved"), _MEMORY + "[\"reserved\"]"),
    **dict.fromkeys(("load_model", "from_pretrained", "AutoModel", "AutoModelForCausalLM"),
                    "write ebb.open_model(folder)"),
    **dict.fromkeys(("AutoTokenizer", "load_tokenizer", "GPT2Tokenizer"), "write ebb.open_tokenizer(folder)"),
    **dict.fromkeys(("get_peft_model", "LoraConfig", "PeftModel"), "write ebb.lora(model, rank=8)"),
    **dict.fromkeys(("save_checkpoint", "load_checkpoint"),
                    "write ebb.TrainingState(model, optimizer), which saves and loads all of a training"),
    **dict.fromkeys(("RMSprop", "Adagrad", "LBFGS", "Adadelta"), "there are ebb.AdamW, ebb.Adam and ebb.SGD"),
    **dict.fromkeys(("float64", "double", "DoubleTensor"), "there are no 64-bit floats: write ebb.float32"),
    **dict.fromkeys(("FullyShardedDataParallel", "FSDP"), "write ebb.fully_shard(model)"),
    **dict.fromkeys(("DataParallel", "DDP"), "write ebb.replicate(model)"),
    **dict.fromkeys(("TransformerEncoderLayer", "TransformerEncoder", "Transformer"),
                    "write ebb.MultiHeadAttention(width, heads) or ebb.TransformerBlock(width, heads), batch first"),
    **dict.fromkeys(("vmap", "func", "jit", "onnx", "fx", "hub", "quantization", "sparse"),
                    "nothing stands for it: write modules and ops instead"),
    "save": "write ebb.save_safetensors(model.state_dict(), path), or pickle.dump(); an ebb.TrainingState saves all of "
            "a training",
    "load": "write model.load_state_dict(ebb.load_safetensors(path)), or pickle.load()",
    "max_memory_allocated": _MEMORY + "[\"total\"][\"peak\"]",
    "mem_get_info": "write ebb.memory_get_available(\"cuda\")",
    "empty_cache": "write ebb.memory_trim(\"cuda\")",
    "synchronize": "write ebb.device(\"cuda\").synchronize()",
    "device_count": "ebb.list_device_kinds() names the devices",
    "set_seed": "write ebb.manual_seed()",
    "profiler": "write `with ebb.profile() as p:`",
    **dict.fromkeys(("set_printoptions", "printoptions"), "write repr() of t.numpy() with numpy.printoptions()"),
    "cumulative_trapezoid": "write (t[1:] + t[:-1]).cumsum(0) / 2",
}


class _Finder:
    """Has `import ebb.nn` and `from ebb import nn` say what to write."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        space, _, last = name.rpartition(".")
        if space.startswith("ebb.") and space in sys.modules and not last.startswith("_"):
            try:
                getattr(sys.modules[space], last)
            except AttributeError as error:
                raise ImportError(str(error)) from None
        if space != "ebb" or last in _SPACES or last.startswith("_"):
            return
        from ebb._advice import find_space
        if last in _ADVICE or find_space(last) or advise_on_tensor(last):
            raise ImportError(_explain(last))


sys.meta_path.append(_Finder)


# Modules of the package that are there before they are imported.
_SPACES = ("nn", "optim", "utils", "distributed", "autograd", "amp", "random", "linalg", "backends", "testing",
           "compat")


def _find_advice(name):
    return _ADVICE.get(name) or advise_on_tensor(name) or suggest_attribute(name, _list_names())


def _explain(name):
    from ebb._advice import find_space
    found = find_space(name)
    advice = f"write {found}" if found else _find_advice(name)
    return f"ebb has no {name!r}" + (f": {advice}" if advice else "")


def _list_names():
    """All but the structures of classes and interfaces, as ModuleClass and BlockInterface, and what is private."""
    names = dir(_Ebb)
    structures = {name + ending for name in names for ending in ("Class", "Interface")}
    return [name for name in names if not name.startswith("_") and name not in structures]


# PyTorch's short names of dtypes, which `from ebb import *` leaves out, as they are Python's own.
_DTYPES = {"long": "I64", "int": "I32", "float": "F32", "half": "F16", "bool": "BOOL"}
_CONSTANTS = {"inf": math.inf, "nan": math.nan, "pi": math.pi, "e": math.e, "newaxis": None, "Size": tuple,
              "dtype": _Ebb.DType}


def __getattr__(name):
    if name == "__all__":
        return _list_names()
    if name in _DTYPES:
        return getattr(_Ebb.DType, _DTYPES[name])
    if name in _CONSTANTS:
        return _CONSTANTS[name]
    if name == "default_generator":
        return _Ebb.Generator.get_default()
    if name in _SPACES:
        return importlib.import_module(f"ebb.{name}")
    try:
        value = globals()[name] = getattr(_Ebb, name)
    except AttributeError:
        raise AttributeError(_explain(name)) from None
    return value


def __dir__():
    return sorted({*_list_names(), "__version__", "__doc__", "__file__", "__name__"})
