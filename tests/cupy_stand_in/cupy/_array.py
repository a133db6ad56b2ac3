"""The array of the stand-in: NumPy does the work on memory that passes for a device's.

`_host` is the NumPy view of that memory, for kernels that run in a simulator and for tests; the
library never touches it.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from typing import Any

import numpy as np

from cupy import _device, _dlpack
from cupy._device import operations
from cupy.cuda import Device, memory, runtime
from cupy.cuda.stream import get_current_stream, launched

_KINDS = frozenset("?bhilqBHILQefdFD")
_SCALARS = frozenset((bool, int, float, complex))
SCALAR_TYPES = _SCALARS | {np.dtype(char).type for char in _KINDS}
_COMPARED = ("greater", "greater_equal", "less", "less_equal", "equal", "not_equal")


def checked_dtype(dtype: Any) -> np.dtype[Any]:
    """Return a dtype that device memory can have."""
    found = np.dtype(dtype)
    if found.byteorder == ">":
        raise ValueError(f"Unsupported dtype {found} with big-endian byte-order")
    if found.hasobject or not (found.char in _KINDS or found.kind == "V"):
        raise ValueError(f"Unsupported dtype {found}")
    return found


def operand_of(x: Any) -> tuple[Any, Any]:
    """Return what a kernel gets for an operand, and its class where that is a weak number."""
    if isinstance(x, ndarray):
        device = x._memory.device_id
        if device != runtime.getDevice():
            warnings.warn(
                f"The device where the array resides ({device}) is different from the current "
                f"device ({runtime.getDevice()}). Peer access has been activated automatically.",
                PerformanceWarning,
                stacklevel=3,
            )
        return x._host, None
    kind = type(x)
    if kind in _SCALARS:
        big = kind is int and x >= 1 << 63
        return np.asarray(x, np.uint64 if big else None), None if kind is bool else kind
    if isinstance(x, np.generic) and x.dtype.kind in "biufcV":
        return np.asarray(x), None
    raise TypeError(f"Unsupported type {kind}")


class PerformanceWarning(RuntimeWarning):
    """As CuPy's."""


class Flags:
    """How an array lies in memory; there is no `writeable`."""

    def __init__(self, host: np.ndarray, owndata: bool) -> None:
        self.c_contiguous = host.flags.c_contiguous
        self.f_contiguous = host.flags.f_contiguous
        self.owndata = owndata

    def __getitem__(self, name: str) -> bool:
        return bool(getattr(self, name.lower()))


class ndarray:
    """An array in device memory."""

    __module__ = "cupy"
    __array_priority__ = 100
    _host: np.ndarray
    _memory: memory.BaseMemory
    base: Any

    def __init__(
        self,
        shape: Any,
        dtype: Any = float,
        memptr: memory.MemoryPointer | None = None,
        strides: Any = None,
        order: str | None = "C",
    ) -> None:
        if order not in (None, "C", "F"):
            raise ValueError(f"order not understood. order={order}")
        if strides is not None and memptr is None:
            raise ValueError("memptr is required if strides is given.")
        kind = checked_dtype(dtype)
        sizes = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
        if any(n < 0 for n in sizes):
            raise ValueError("Negative dimensions are not allowed")
        nbytes = kind.itemsize
        for n in sizes:
            nbytes *= int(n)
        if memptr is None:
            memptr = memory.alloc(nbytes)
        self._memory = memptr.mem
        self.base = None
        before = 0
        if strides is not None and nbytes:
            steps = [(n - 1) * s for n, s in zip(sizes, strides, strict=True)]
            before = -sum(step for step in steps if step < 0)
            nbytes = before + sum(step for step in steps if step > 0) + kind.itemsize
        buffer = _device.at(memptr.ptr - before, nbytes)
        self._host = np.ndarray(sizes, kind, buffer, before, strides, order or "C")

    # --- memory ----------------------------------------------------------------------------------

    @property
    def data(self) -> memory.MemoryPointer:
        """Where the first item is."""
        mem = self._memory
        if mem.ptr == 0 or not self._host.size:
            return memory.MemoryPointer(mem, 0)
        return memory.MemoryPointer(mem, int(self._host.ctypes.data) - mem.ptr)

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from item to item along each axis: all 0 where there is no item."""
        return self._host.strides if self._host.size else (0,) * self._host.ndim

    @property
    def device(self) -> Device:
        """The device that holds it."""
        return Device(self._memory.device_id)

    @property
    def flags(self) -> Flags:
        """How it lies in memory."""
        return Flags(self._host, self.base is None)

    dtype = property(lambda self: self._host.dtype)
    ndim = property(lambda self: self._host.ndim)
    size = property(lambda self: self._host.size)
    itemsize = property(lambda self: self._host.itemsize)
    nbytes = property(lambda self: self._host.nbytes)
    T = property(lambda self: self.transpose())

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes; may be set where no copy is needed."""
        return self._host.shape

    @shape.setter
    def shape(self, new: Any) -> None:
        self._host.shape = new

    @property
    def mT(self) -> ndarray:
        """The last two axes exchanged."""
        if self.ndim < 2:
            raise ValueError("matrix transpose with ndim < 2 is undefined")
        return self.swapaxes(-1, -2)

    @property
    def real(self) -> ndarray:
        """Real parts, a view."""
        return self._view(self._host.real) if self.dtype.kind == "c" else self

    @real.setter
    def real(self, value: Any) -> None:
        self.real[...] = value

    @property
    def imag(self) -> ndarray:
        """Imaginary parts: a view of complex items, else new zeros."""
        if self.dtype.kind == "c":
            return self._view(self._host.imag)
        return _new(np.zeros(self.shape, self.dtype))

    @imag.setter
    def imag(self, value: Any) -> None:
        if self.dtype.kind != "c":
            raise TypeError("cupy.ndarray does not have imaginary part to set")
        self.imag[...] = value

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "descr": self.dtype.descr,
            "stream": get_current_stream().ptr or 1,
            "version": 3,
            "strides": None if self._host.flags.c_contiguous else self.strides,
            "data": (int(self._host.ctypes.data) if self.size else 0, False),
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return _dlpack.CUDA, self._memory.device_id

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: Any = None,
        dl_device: Any = None,
        copy: bool | None = None,
    ) -> Any:
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError("the stand-in exports to its own device alone")
        array = self.copy() if copy else self
        return _dlpack.capsule(array._host, array, array.__dlpack_device__())

    def _view(self, host: np.ndarray) -> ndarray:
        """Return an array over part of this one's memory."""
        found = object.__new__(ndarray)
        found._host = host
        found._memory = self._memory
        found.base = self if self.base is None else self.base
        return found

    # --- to and from the host --------------------------------------------------------------------

    def get(
        self, stream: Any = None, order: str = "C", out: Any = None, blocking: bool = True
    ) -> np.ndarray:
        """Return the values in host memory."""
        operations["get"] += 1
        if out is None:
            return self._host.copy(order)
        if not isinstance(out, np.ndarray):
            raise TypeError("Only numpy.ndarray can be obtained from cupy.ndarray")
        if out.dtype != self.dtype or out.shape != self.shape:
            raise (TypeError if out.dtype != self.dtype else ValueError)(
                f"{out.dtype} {out.shape} cannot be obtained from {self.dtype} {self.shape}"
            )
        if not (out.flags.c_contiguous or out.flags.f_contiguous):
            raise RuntimeError("`out` cannot be specified when copying to non-contiguous ndarray")
        out[...] = self._host
        return out

    def set(self, arr: Any, stream: Any = None) -> None:
        """Take values from host memory."""
        if not isinstance(arr, np.ndarray):
            raise TypeError("Only numpy.ndarray can be set to cupy.ndarray")
        if self.dtype != arr.dtype:
            raise TypeError(f"{arr.dtype} array cannot be set to {self.dtype} array")
        if self.shape != arr.shape:
            raise ValueError(f"Shape mismatch. Old shape: {self.shape}, new shape: {arr.shape}")
        if not (self._host.flags.c_contiguous or self._host.flags.f_contiguous):
            raise RuntimeError("Cannot set to non-contiguous array")
        operations["set"] += 1
        self._host[...] = arr

    def item(self) -> Any:
        """Return the one item as a Python number."""
        if self.size != 1:
            raise ValueError("can only convert an array of size 1 to a Python scalar")
        return self.get().item()

    def tolist(self) -> Any:
        """Return nested lists."""
        return self.get().tolist()

    def tobytes(self, order: str = "C") -> bytes:
        """Return the bytes."""
        return self.get().tobytes(order)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct "
            "a NumPy array explicitly."
        )

    def __bool__(self) -> bool:
        return bool(self.get())

    def __int__(self) -> int:
        return int(self.get())

    def __float__(self) -> float:
        return float(self.get())

    def __complex__(self) -> complex:
        return complex(self.get())

    def __repr__(self) -> str:
        return repr(self.get())

    def __str__(self) -> str:
        return str(self.get())

    def __format__(self, spec: str) -> str:
        return format(self.get(), spec)

    def __reduce__(self) -> Any:
        return importlib.import_module("cupy").array, (self.get(),)

    def __copy__(self) -> ndarray:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> ndarray:
        with self.device:
            return self.copy()

    # --- items -----------------------------------------------------------------------------------

    def __len__(self) -> int:
        if not self.ndim:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __iter__(self) -> Any:
        if not self.ndim:
            raise TypeError("iteration over a 0-d array")
        return (self[i] for i in range(self.shape[0]))

    def _key(self, key: Any) -> tuple[Any, bool]:
        """Return an index for NumPy, and whether it selects by arrays."""
        entries = list(key) if isinstance(key, tuple) else [key]
        by_arrays = False
        axis = 0
        for i, entry in enumerate(entries):
            if isinstance(entry, ndarray):
                entries[i] = entry._host
            elif isinstance(entry, (list, tuple)):
                found = np.asarray(entry)
                entries[i] = found if found.size else found.astype(np.int32)
            elif isinstance(entry, (bool, np.bool_)):
                entries[i] = np.asarray(entry)
            entry = entries[i]
            if isinstance(entry, np.ndarray):
                by_arrays = True
                if entry.dtype.kind in "iu" and Ellipsis not in [
                    e for e in entries[:i] if not isinstance(e, np.ndarray)
                ]:
                    entries[i] = entry % max(self.shape[axis], 1)  # wraps around
                elif entry.dtype.kind not in "iub":
                    raise IndexError(
                        "arrays used as indices must be of integer or boolean type. (actual: "
                        f"{entry.dtype.type})"
                    )
            if entry is not None and entry is not Ellipsis:
                boolean = isinstance(entry, np.ndarray) and entry.dtype.kind == "b"
                axis += entry.ndim if boolean else 1
        if not by_arrays and Ellipsis not in entries:
            entries.append(Ellipsis)  # an array even where one item is selected
        return tuple(entries), by_arrays

    def __getitem__(self, key: Any) -> ndarray:
        where, by_arrays = self._key(key)
        if by_arrays:
            launched("take")
            return _new(self._host[where])
        return self._view(self._host[where])

    def __setitem__(self, key: Any, value: Any) -> None:
        where, by_arrays = self._key(key)
        if by_arrays:
            host = value._host if isinstance(value, ndarray) else np.asarray(value)
            launched("scatter")
            with np.errstate(all="ignore"):
                self._host[where] = host.astype(self.dtype)
            return
        target = self._view(self._host[where])
        if isinstance(value, ndarray):
            target._take(value)
        else:
            target.fill(value)

    def _take(self, source: ndarray) -> None:
        """Copy values, broadcast and cast; of structures nothing, as CuPy 14.0."""
        if self.dtype.kind == "V":
            raise TypeError(f"structures such as {self.dtype} are not copied by kernels")
        launched("elementwise_copy")
        host = operand_of(source)[0]
        while host.ndim > self.ndim and host.shape[0] == 1:
            host = host[0]
        _warn_complex(host.dtype, self.dtype)
        with np.errstate(all="ignore"):
            np.copyto(self._host, host, casting="unsafe")

    def fill(self, value: Any) -> None:
        """Set every item to one value: zeros of either sign by setting bytes to 0."""
        if self.dtype.kind == "V":
            raise TypeError(f"structures such as {self.dtype} are not set by kernels")
        if isinstance(value, ndarray):
            if value.shape != ():
                raise ValueError("non-scalar cupy.ndarray cannot be used for fill")
            self._take(value)
            return
        if isinstance(value, np.ndarray):
            if value.shape != ():
                raise ValueError("non-scalar numpy.ndarray cannot be used for fill")
            value = value.astype(self.dtype, copy=False).item()
        if not isinstance(value, (bool, int, float, complex, np.generic, tuple)):
            raise TypeError(f"Unsupported type {type(value)}")
        item = np.empty((), self.dtype)
        item[...] = value
        if np.any(item != np.zeros((), self.dtype)) or not self._host.flags.c_contiguous:
            launched("fill")
            self._host[...] = item
        else:
            operations["memsetAsync"] += 1
            self._host[...] = np.zeros((), self.dtype)

    # --- NumPy's protocols -----------------------------------------------------------------------

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        cupy = importlib.import_module("cupy")
        everything = inputs
        if "out" in kwargs:
            out = kwargs["out"]
            if len(out) != 1:
                raise ValueError("The 'out' parameter must have exactly one array value")
            everything += out
            kwargs["out"] = out[0]
        if method not in ("__call__", "outer", "at", "reduce", "accumulate", "reduceat"):
            return NotImplemented
        name = ufunc.__name__
        try:
            function = getattr(cupy, name)
            if method != "__call__":
                function = getattr(function, method)
        except AttributeError:
            return NotImplemented
        for x in everything:
            device = hasattr(x, "__cuda_array_interface__") or hasattr(x, "__cupy_get_ndarray__")
            if not device and type(x) not in SCALAR_TYPES and not isinstance(x, np.ndarray):
                return NotImplemented
        if name in _COMPARED:
            inputs = tuple(
                x.item() if isinstance(x, np.ndarray) and x.ndim == 0 else x for x in inputs
            )
        return function(*inputs, **kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        cupy = importlib.import_module("cupy")
        try:
            module = functools.reduce(getattr, func.__module__.split(".")[1:], cupy)
            ours = getattr(module, func.__name__)
        except AttributeError:
            return NotImplemented
        if ours is func:
            return NotImplemented
        if not all(issubclass(t, (ndarray, np.ndarray)) for t in types):
            return NotImplemented
        return ours(*args, **kwargs)


def _warn_complex(before: Any, after: Any) -> None:
    if before.kind == "c" and after.kind in "iuf":
        warnings.warn(
            "Casting complex values to real discards the imaginary part",
            np.exceptions.ComplexWarning,
            stacklevel=4,
        )


def _new(values: Any) -> ndarray:
    """Return values in fresh device memory."""
    host = np.asarray(values)
    found = ndarray(host.shape, host.dtype)
    found._host[...] = host
    return found
