"""Array libraries, and which one a buffer belongs to: NumPy, or CuPy, loaded when it is used."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import numpy as np

from distarray.comm.cuda import _device
from distarray.errors import DeviceError
from distarray.typing import Buffer


def kind_of(device: str | None) -> str:
    """Return "cpu" or "cuda", of a device such as "cuda:1"."""
    return "cpu" if device is None else device.partition(":")[0]


def module(device: str | None) -> Any:
    """Return the array module for a device: ``numpy`` for None and "cpu", ``cupy`` for "cuda"."""
    kind = kind_of(device)
    if kind == "cpu":
        return np
    if kind != "cuda":
        raise DeviceError(f"device {device!r} is not known; use 'cpu' or 'cuda'")
    return _device.cupy(str(device))


def is_numpy(array: Any) -> bool:
    """Tell whether ``array`` is a NumPy array."""
    return isinstance(array, np.ndarray)


def is_cupy(array: Any) -> bool:
    """Tell whether ``array`` is a CuPy array, without importing CuPy."""
    kind = type(array)
    if kind is np.ndarray:
        return False
    return kind.__name__ == "ndarray" and kind.__module__.partition(".")[0] == "cupy"


def is_buffer(array: Any) -> bool:
    """Tell whether ``array`` can be a local block."""
    return isinstance(array, np.ndarray) or is_cupy(array)


def namespace_of(array: Buffer) -> Any:
    """Return the module whose functions work on ``array``."""
    return np if is_numpy(array) else importlib.import_module("cupy")


def device_of(array: Buffer) -> str:
    """Return "cpu", or "cuda:<number>" of the GPU that holds an array."""
    if type(array) is not np.ndarray and is_cupy(array):
        return f"cuda:{array.device.id}"
    return "cpu"


def is_here(array: Buffer, device: str) -> bool:
    """Tell whether an array is on the device, for this rank, that a mesh names."""
    if kind_of(device) == "cpu" or is_numpy(array):
        return kind_of(device) == "cpu" and is_numpy(array)
    return bool(array.device.id == _device.number_of(device))


def asarray(value: Any, device: str | None = None, dtype: Any = None) -> Buffer:
    """Return ``value`` as a buffer on ``device``, copied only where it must be."""
    if type(value) is np.ndarray and device == "cpu" and dtype is None:
        return value
    if kind_of(device) == "cpu":
        return np.asarray(to_host(value) if is_cupy(value) else value, dtype=dtype)
    library = module(device)
    number = _device.number_of(str(device))
    if not is_cupy(value):
        value = np.asarray(value, dtype=dtype)
        _device.check_dtype(value.dtype)
    elif value.device.id != number:  # CuPy copies contiguous arrays between GPUs, and no others
        with library.cuda.Device(value.device.id):
            value = library.ascontiguousarray(value)
    _device.use(number)
    if is_numpy(value) and not value.ndim:  # by itself it would be filled in: see `scalar`
        value = value[None]
        return library.asarray(value, dtype=dtype)[0]
    found = library.asarray(value, dtype=dtype)
    return found if found.device.id == number else found.copy()


def to_host(array: Buffer) -> np.ndarray:
    """Return an array's values in host memory: itself, where they are there."""
    host: np.ndarray = array if is_numpy(array) else array.get()
    return host


def assign(dst: Buffer, src: Any) -> None:
    """Set items to those of an array of the same dtype and shape."""
    if dst.dtype.kind == "V" and not is_numpy(dst):
        dst, src = _device.bits(dst), _device.bits(src)
    dst[...] = src


def is_writeable(array: Buffer) -> bool:
    """Tell whether items may be written one by one; not where several share memory."""
    if is_numpy(array):
        return bool(array.flags.writeable)
    if type(array.data.mem).__name__ == "ReadOnlyMemory":
        return False
    shared = any(n > 1 and s == 0 for n, s in zip(array.shape, array.strides, strict=True))
    return not (shared and array.size)  # CuPy's strides of no items are all 0


def make_read_only(array: Buffer) -> Buffer:
    """Return a view of an array that `is_writeable` does not call so, nor any view of it.

    CuPy has no such flag: there the memory's class tells, which all its views share.
    """
    if is_numpy(array):
        if array.base.__class__ is bytes:  # which nobody can make writable
            return array
        view = array.view()
        view.setflags(write=False)
        return view
    cuda = importlib.import_module("cupy").cuda
    memory = _read_only_memory(cuda)(array.data.ptr, array.nbytes, array, array.device.id)
    pointer = cuda.MemoryPointer(memory, 0)
    return namespace_of(array).ndarray(array.shape, array.dtype, pointer, array.strides)


@functools.cache
def _read_only_memory(cuda: Any) -> Any:
    """Return the class of memory that is not to be written."""
    return type("ReadOnlyMemory", (cuda.UnownedMemory,), {})


def may_share_memory(a: Buffer, b: Buffer) -> bool:
    """Tell whether two arrays may look at the same memory."""
    if type(a) is type(b) is np.ndarray:
        return np.may_share_memory(a, b)
    if is_numpy(a) is not is_numpy(b) or not a.size or not b.size:
        return False
    return bool(namespace_of(a).may_share_memory(a, b))


def unaliased(source: Buffer, target: Buffer) -> Buffer:
    """Return `source`, copied where assignment to `target` would read items that it has written.

    NumPy copies what overlaps before it assigns, but not along one axis if both strides have one
    sign, where only equal strides are safe: ``x[::2] = x[:4]`` changes ``x[2]`` before it is read.
    """
    if target.ndim != 1 or source.strides == target.strides:
        return source
    return source.copy() if may_share_memory(source, target) else source


def scalar(value: Any, like: Buffer) -> Any:
    """Return a number of one dtype, which ``like`` may be set to whole with all its bits.

    CuPy sets items to a number 0 by clearing bytes, so that a negative zero would lose its sign.
    """
    if is_numpy(like):
        return value
    item = np.asarray(value, like.dtype)
    if like.dtype.kind in "biuf" and (item or not np.signbit(item)):
        return item[()]
    return asarray(item, device_of(like))


def use(array: Buffer) -> None:
    """Make the GPU that holds a CuPy array the current one of this thread."""
    if is_cupy(array):
        _device.use(array.device.id)


def synchronize(array: Buffer) -> None:
    """Wait for the work queued on the current stream of a CuPy array's device."""
    if is_cupy(array):
        importlib.import_module("cupy").cuda.get_current_stream(array.device.id).synchronize()
