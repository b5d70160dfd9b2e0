"""Memory that is shared with other libraries: numpy's arrays, and DLPack both ways. Nothing is copied."""
import ctypes

from gi.module import get_introspection_module
from gi.overrides._ebb_args import PythonObject
from gi.overrides._ebb_check import show
from gi.overrides._ebb_errors import guard

Ebb = get_introspection_module("Ebb")
DType = Ebb.DType

TYPESTRS = {DType.F32: "<f4", DType.F16: "<f2", DType.I32: "<i4", DType.I64: "<i8", DType.U8: "|u1", DType.BOOL: "|b1"}
_FROM_TYPESTR = {text: dtype for dtype, text in TYPESTRS.items()}

_api = ctypes.pythonapi
_capsule_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", _api))
_capsule_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_capsule_get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))
_capsule_rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", _api))
_NAME, _USED_NAME = b"dltensor", b"used_dltensor"  # capsules keep the addresses of these
_CUDA = 2  # DLPack's type of an NVIDIA GPU


def _address_of(name):
    return ctypes.cast(getattr(_api, name), ctypes.c_void_p).value


_capsule_destructor = Ebb.dlpack_get_capsule_destructor(_address_of("PyCapsule_IsValid"),
                                                        _address_of("PyCapsule_GetPointer"))
_to_dlpack = guard(Ebb.Tensor.to_dlpack)
_new_from_dlpack = guard(Ebb.Tensor.new_from_dlpack)
_new_from_address = guard(Ebb.Tensor.new_from_address)


def make_capsule(tensor):
    return _capsule_new(_to_dlpack(tensor), _NAME, _capsule_destructor)


def _get_capsule(source):
    """On a GPU the producer orders its work before that of Ebb's stream."""
    kind, index = source.__dlpack_device__() if hasattr(source, "__dlpack_device__") else (1, 0)
    if kind != _CUDA:
        return source.__dlpack__()
    return source.__dlpack__(stream=Ebb.Device.get(f"cuda:{index}").get_native_stream())


def from_dlpack(source):
    """A tensor over the memory of any object with __dlpack__ (numpy, PyTorch, ...), or of a capsule; no copy."""
    capsule = _get_capsule(source) if hasattr(source, "__dlpack__") else source
    if type(capsule).__name__ != "PyCapsule" or not _capsule_is_valid(capsule, _NAME):
        raise TypeError("from_dlpack takes an object with __dlpack__, or a DLPack capsule that nobody has used yet")
    tensor = _new_from_dlpack(_capsule_get(capsule, _NAME))
    _capsule_rename(capsule, _USED_NAME)
    return tensor


def from_numpy(array):
    """A tensor over the memory of a numpy array: no copy, and each sees what the other writes."""
    if not hasattr(array, "__array_interface__"):
        raise TypeError(f"from_numpy(): {show(array)} is no numpy array: write ebb.tensor() of it")
    interface = array.__array_interface__
    dtype = _FROM_TYPESTR.get(interface["typestr"])
    if dtype is None:
        raise TypeError(f"an array of dtype {array.dtype}: use astype() for float32, float16, int32, int64, uint8 or "
                        "bool")
    size = int(interface["typestr"][2:])
    address, read_only = interface["data"]
    if read_only:
        raise ValueError("the array is read-only: use copy() to have one that may be written to")
    strides = interface.get("strides")
    if strides is not None:
        if any(step < 0 or step % size for step in strides):
            raise ValueError("an array with negative or odd strides: use copy() to have one in order")
        strides = [step // size for step in strides]
    return _new_from_address(address, list(interface["shape"]), strides, dtype, PythonObject(array))
