"""Capsules of the DLPack protocol, for memory that passes for a device's."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

CPU, CUDA = 1, 2
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_NAME = b"dltensor"


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("number", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = (
    ("tensor", _Tensor),
    ("context", ctypes.c_void_p),
    ("deleter", _Deleter),
)

_new = ctypes.pythonapi.PyCapsule_New
_new.restype = ctypes.py_object
_new.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype = ctypes.c_void_p
_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
_rename = ctypes.pythonapi.PyCapsule_SetName
_rename.argtypes = (ctypes.py_object, ctypes.c_char_p)

_alive: dict[int, Any] = {}


@_Deleter
def _delete(managed: Any) -> None:
    _alive.pop(ctypes.addressof(managed.contents), None)


def capsule(host: np.ndarray, owner: Any, device: tuple[int, int]) -> Any:
    """Return a capsule that describes an array and keeps its owner alive."""
    shape = (ctypes.c_int64 * max(host.ndim, 1))(*host.shape)
    steps = (ctypes.c_int64 * max(host.ndim, 1))(*(s // host.itemsize for s in host.strides))
    managed = _Managed()
    tensor = managed.tensor
    tensor.data = host.ctypes.data if host.size else None
    tensor.device = _Device(*device)
    tensor.ndim = host.ndim
    tensor.dtype = _DataType(_CODES[host.dtype.kind], host.itemsize * 8, 1)
    tensor.shape, tensor.strides = shape, steps
    managed.deleter = _delete
    address = ctypes.addressof(managed)
    _alive[address] = (managed, shape, steps, owner)
    return _new(address, _NAME, None)


def described(found: Any) -> tuple[int, tuple[int, ...], np.dtype[Any], tuple[int, ...], Any]:
    """Return address, shape, dtype, strides in bytes and device of a capsule, which is used up."""
    managed = _Managed.from_address(_pointer(found, _NAME))
    tensor = managed.tensor
    kind = next(k for k, code in _CODES.items() if code == tensor.dtype.code)
    dtype = np.dtype(f"{kind}{tensor.dtype.bits // 8}")
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(s * dtype.itemsize for s in tensor.strides[: tensor.ndim])
    _rename(found, b"used_dltensor")
    return tensor.data or 0, shape, dtype, strides, (tensor.device.kind, tensor.device.number)
