"""Models from folders in Hugging Face's format or GGUF files, and back."""
import os

from gi.module import get_introspection_module
from gi.overrides._ebb_check import show
from gi.overrides._ebb_errors import Error, guard
from gi.overrides._ebb_tensor import to_dtype

Ebb = get_introspection_module("Ebb")

__all__ = ["open_model", "quantize", "save_model"]

_open, _save = guard(Ebb.model_open_quantized), guard(Ebb.model_save_full)
_quantize, _find_quantization = guard(Ebb.quantize), guard(Ebb.quantization_from_name)


def get_path(caller, folder):
    if not isinstance(folder, (str, os.PathLike)):
        raise TypeError(f"{caller}(): folder is {show(folder)}: it must be the path of a folder")
    return os.fspath(folder)


def open_folder(function, path, *args):
    """Calls a function that opens a folder; the error for one that isn't there says that Ebb downloads none."""
    try:
        return function(path, *args)
    except Error as error:
        if os.path.exists(path):
            raise
        failure = Error(f"{error.message}; {path} must be the path of a folder, Ebb downloads none", error.domain,
                        error.code)
    raise failure


def _number(dtype):
    if dtype == "q8_0":
        return Ebb.MODEL_Q8_0
    return Ebb.MODEL_KEEP_DTYPE if dtype is None else int(to_dtype(dtype))


def _to_quantization(base):
    if base is None:
        return Ebb.Quantization.NONE
    return _find_quantization(base)[1] if isinstance(base, str) else base


def open_model(folder, dtype=None, base=None):
    """The model of a folder or a .gguf file, in evaluation mode; dtype "f32" or "bf16" converts its weights.

    base: "int8" or "nf4" quantises the weights of its linear layers as they are read: frozen, for an adapter to be
    trained beside them (ebb.lora()). A folder that is quantised is opened as it is.
    """
    return open_folder(_open, get_path("open_model", folder), _number(dtype), _to_quantization(base))


def quantize(model, base="nf4"):
    """Quantises the weights of a model's linear layers in place, to "int8" or "nf4"; returns the model."""
    if not isinstance(model, Ebb.Module):
        raise TypeError(f"quantize(): model is {show(model)}: it must be a module, as ebb.open_model() gives")
    _quantize(model, _to_quantization(base))
    return model


def save_model(model, folder, dtype=None, max_file_size=0):
    """Saves a model as a folder that transformers opens; max_file_size bytes, or "2GB", divide it into files.

    A path that ends with .gguf becomes one file for llama.cpp, whose dtype may also be "f16" or "q8_0"."""
    if not isinstance(model, Ebb.Module):
        raise TypeError(f"save_model(): model is {show(model)}: it must be a module, as ebb.open_model() gives")
    if isinstance(max_file_size, str):
        max_file_size = guard(Ebb.memory_parse_size)(max_file_size)[1]
    if not isinstance(max_file_size, int) or max_file_size < 0:
        raise TypeError(f"save_model(): max_file_size is {show(max_file_size)}: it must be a number of bytes, or a "
                        "text as \"2GB\"")
    _save(model, get_path("save_model", folder), _number(dtype), max_file_size)
