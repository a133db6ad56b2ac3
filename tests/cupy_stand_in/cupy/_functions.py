"""Functions of arrays: arguments as CuPy's, no NumPy arrays among them, the work done by NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cupy import _device, _dlpack
from cupy._array import _new, checked_dtype, ndarray, operand_of
from cupy._data import SIGNATURES, signature
from cupy.cuda import memory, pinned_memory, runtime
from cupy.cuda.stream import launched

_PLAIN = frozenset(
    (
        *("shape", "ndim", "size", "result_type", "can_cast", "common_type", "promote_types"),
        *("min_scalar_type", "broadcast_shapes", "iscomplexobj", "isrealobj", "isscalar"),
        *("issubdtype", "isdtype", "may_share_memory", "shares_memory", "iterable", "typename"),
    )
)
"""Functions whose results are no arrays."""

_TAKES_HOST = {"repeat": (1,), "take": (1,), "isclose": (0, 1), "allclose": (0, 1)}
"""Positions at which NumPy arrays are taken, and copied to the device."""


def _plain(value: Any, inputs: list[ndarray]) -> Any:
    if isinstance(value, ndarray):
        inputs.append(value)
        return operand_of(value)[0]
    if isinstance(value, np.ndarray):
        raise TypeError(f"Unsupported type {type(value)}")
    if type(value) in (list, tuple):
        return type(value)(_plain(one, inputs) for one in value)
    return value


def _made(result: Any, inputs: list[ndarray]) -> Any:
    """Return NumPy's result in device memory, a view where it is one of an input."""
    if isinstance(result, np.ndarray):
        if result.size:
            address = int(result.ctypes.data)
            for one in inputs:
                mem = one._memory
                if mem.ptr <= address < mem.ptr + mem.size:
                    return one._view(result)
        return _new(result)
    if isinstance(result, (np.generic, bool, int, float, complex)):
        return _new(result)
    if isinstance(result, tuple) and hasattr(result, "_fields"):
        return type(result)(*(_made(one, inputs) for one in result))
    if isinstance(result, (tuple, list)):
        return type(result)(_made(one, inputs) for one in result)
    return result


def wrapped(module: str, name: str, theirs: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with CuPy's arguments that NumPy's carries out."""
    text = SIGNATURES.get(f"{module}.{name}")
    known = None if text is None else signature(text)
    hosts = _TAKES_HOST.get(name, ())

    def call(*args: Any, **kwargs: Any) -> Any:
        if known is not None:
            known.bind(*args, **kwargs)
        inputs: list[ndarray] = []
        out = kwargs.pop("out", None)
        given = [
            arg if i in hosts and isinstance(arg, np.ndarray) else _plain(arg, inputs)
            for i, arg in enumerate(args)
        ]
        named = {key: _plain(value, inputs) for key, value in kwargs.items()}
        launched(f"{module}.{name}")
        with np.errstate(all="ignore"):
            result = theirs(*given, **named)
        if name in _PLAIN:
            return result
        if out is not None:
            if out.shape != np.shape(result):
                raise ValueError("Out shape is mismatched")
            np.copyto(out._host, result, casting=named.get("casting", "same_kind"))
            return out
        return _made(result, inputs)

    call.__name__ = call.__qualname__ = name
    call.__module__ = module
    return call


# --- making arrays -------------------------------------------------------------------------------


def array(
    obj: Any,
    dtype: Any = None,
    copy: bool | None = True,
    order: str | None = "K",
    subok: bool = False,
    ndmin: int = 0,
    *,
    blocking: bool = False,
) -> ndarray:
    """Return a value in memory of the current device."""
    if hasattr(obj, "__cuda_array_interface__") and not isinstance(obj, ndarray):
        obj = _foreign(obj)
    if isinstance(obj, ndarray):
        same = dtype is None or np.dtype(dtype) == obj.dtype
        here = obj._memory.device_id == runtime.getDevice()
        if same and here and not copy and order in ("K", "A", None):
            return obj
        if same and here and not copy and obj.flags[f"{order}_CONTIGUOUS"]:
            return obj
        found = obj.copy("C" if not here else order or "K")
        return found if same else found.astype(dtype)
    host = np.array(_with_hosts(obj), dtype, ndmin=ndmin)
    checked_dtype(host.dtype)
    if copy is False:
        raise ValueError("Unable to avoid copy while creating an array as requested.")
    fortran = host.flags.f_contiguous and not host.flags.c_contiguous and order in ("K", "A")
    found = ndarray(host.shape, host.dtype, order="F" if fortran or order == "F" else "C")
    if host.ndim == 0:  # as the library does it, so that -0.0 loses its sign
        found.fill(host)
        return found
    found.set(
        np.asfortranarray(host) if fortran else np.ascontiguousarray(host).reshape(host.shape)
    )
    return found


def _with_hosts(obj: Any) -> Any:
    if isinstance(obj, ndarray):
        return obj.get()
    if isinstance(obj, (list, tuple)):
        return [_with_hosts(one) for one in obj]
    return obj


def _foreign(obj: Any) -> ndarray:
    facts = obj.__cuda_array_interface__
    dtype = np.dtype(facts["typestr"])
    strides = facts.get("strides")
    nbytes = dtype.itemsize * int(np.prod(facts["shape"], dtype=np.int64))
    if strides is not None and nbytes:
        reach = sum((n - 1) * abs(s) for n, s in zip(facts["shape"], strides, strict=True))
        nbytes = reach + dtype.itemsize
    mem = memory.UnownedMemory(facts["data"][0], nbytes, obj, -1 if nbytes else 0)
    return ndarray(facts["shape"], dtype, memory.MemoryPointer(mem, 0), strides)


def asarray(
    a: Any,
    dtype: Any = None,
    order: str | None = None,
    *,
    copy: bool | None = None,
    blocking: bool = False,
) -> ndarray:
    """Return a value in memory of the current device, copied where it must be."""
    return array(a, dtype, copy, order or "K", blocking=blocking)


asanyarray = asarray


def ascontiguousarray(a: Any, dtype: Any = None) -> ndarray:
    """Return a C-contiguous array of the same items."""
    return array(a, dtype, None, "C")


def asnumpy(
    a: Any, stream: Any = None, order: str = "C", out: Any = None, *, blocking: bool = True
) -> np.ndarray:
    """Return values in host memory."""
    return a.get(stream, order, out) if isinstance(a, ndarray) else np.asarray(a, order=order)


def empty(shape: Any, dtype: Any = None, order: str = "C") -> ndarray:
    """Return an array with bytes that nobody expects."""
    return ndarray(shape, float if dtype is None else dtype, order=order)


def zeros(shape: Any, dtype: Any = None, order: str = "C") -> ndarray:
    """Return zeros."""
    found = empty(shape, dtype, order)
    found._host[...] = np.zeros((), found.dtype)
    launched("zeros")
    return found


def ones(shape: Any, dtype: Any = None, order: str = "C") -> ndarray:
    """Return ones."""
    return full(shape, 1, float if dtype is None else dtype, order)


def full(shape: Any, fill_value: Any, dtype: Any = None, order: str = "C") -> ndarray:
    """Return an array of one value."""
    if dtype is None:
        known = isinstance(fill_value, ndarray)
        dtype = fill_value.dtype if known else np.array(fill_value).dtype
    found = ndarray(shape, dtype, order=order)
    copyto(found, fill_value, casting="unsafe")
    return found


def _like(make: Callable[..., ndarray]) -> Callable[..., ndarray]:
    def call(
        a: Any, dtype: Any = None, order: str = "K", subok: None = None, shape: Any = None
    ) -> ndarray:
        if subok is not None:
            raise TypeError("subok is not supported yet")
        a = a if isinstance(a, ndarray) else array(a)
        fortran = order in ("K", "A") and a.flags.f_contiguous and not a.flags.c_contiguous
        sizes = a.shape if shape is None else shape
        return make(sizes, a.dtype if dtype is None else dtype, "F" if fortran else "C")

    return call


empty_like, zeros_like, ones_like = _like(empty), _like(zeros), _like(ones)


def full_like(
    a: Any,
    fill_value: Any,
    dtype: Any = None,
    order: str = "K",
    subok: None = None,
    shape: Any = None,
) -> ndarray:
    """Return one value with the shape and dtype of another array."""
    found = empty_like(a, dtype, order, subok, shape)
    found.fill(fill_value)
    return found


# --- copying -------------------------------------------------------------------------------------


def copyto(dst: ndarray, src: Any, casting: str = "same_kind", where: Any = None) -> None:
    """Copy values, broadcast and cast, under a mask."""
    if type(src) in (bool, int, float, complex):
        np.copyto(np.empty((), dst.dtype), src, casting=casting)
        fits, value = True, np.asarray(src)
    elif isinstance(src, np.ndarray):
        if src.size != 1:
            raise ValueError("non-scalar numpy.ndarray cannot be used for copyto")
        fits, value = np.can_cast(src.dtype, dst.dtype, casting), src.reshape(())
    elif isinstance(src, np.generic):
        fits, value = np.can_cast(src.dtype, dst.dtype, casting), np.asarray(src)
    else:
        fits, value = np.can_cast(src.dtype, dst.dtype, casting), src._host
    if not fits:
        raise TypeError(f"Cannot cast {value.dtype} to {dst.dtype} in {casting} casting mode")
    launched("copyto")
    keep = True if where is None else operand_of(where)[0]
    with np.errstate(all="ignore"):
        np.copyto(dst._host, value, casting="unsafe", where=keep)


def copy(a: Any, order: str = "K") -> ndarray:
    """Return a copy."""
    return a.copy(order) if isinstance(a, ndarray) else array(a)


def astype(x: ndarray, dtype: Any, /, *, copy: bool = True) -> ndarray:
    """Return the items in another dtype."""
    return x.astype(dtype, copy=copy)


def where(condition: Any, x: Any = None, y: Any = None) -> Any:
    """Choose item by item; the condition must be an array."""
    if (x is None) != (y is None):
        raise ValueError("Must provide both 'x' and 'y' or neither.")
    if x is None:
        return condition.nonzero()
    chosen = condition.astype("?", copy=False)  # held: its memory goes with it
    (a, weak_a), (b, weak_b) = operand_of(x), operand_of(y)
    parts = [h.dtype if w is None else w(0) for h, w in ((a, weak_a), (b, weak_b))]
    kind = np.result_type(*parts)
    launched("where")
    return _new(np.where(chosen._host, a.astype(kind), b.astype(kind)))


def nan_to_num(
    x: ndarray, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None
) -> ndarray:
    """Replace what is no finite number by numbers that are made arrays first."""
    others = {"nan": nan, "posinf": posinf, "neginf": neginf}
    launched("cupy_nan_to_num")
    options = {
        name: value if value is None else asarray(value)._host for name, value in others.items()
    }
    return _new(np.nan_to_num(x._host, **options))


def clip(a: ndarray, a_min: Any, a_max: Any, out: Any = None) -> ndarray:
    """Limit the items."""
    if a_min is None and a_max is None:
        raise ValueError("array_clip: must set either max or min")
    hosts = [None if x is None else operand_of(x) for x in (a_min, a_max)]
    bounds = [None if h is None else (h[0] if h[1] is None else h[0].item()) for h in hosts]
    launched("clip")
    result = np.clip(a._host, *bounds)
    if out is None:
        return _new(result)
    np.copyto(out._host, result)
    return out


def may_share_memory(a: Any, b: Any, max_work: Any = None) -> bool:
    """Tell whether the bounds of two arrays in memory overlap."""
    return bool(np.may_share_memory(a._host, b._host))


def shares_memory(a: Any, b: Any, max_work: Any = None) -> bool:
    """Tell whether two arrays share items."""
    return bool(np.shares_memory(a._host, b._host))


def from_dlpack(array: Any, *, device: Any = None, copy: Any = None) -> ndarray:
    """Return an array over the memory that another library exports."""
    if int(array.__dlpack_device__()[0]) != _dlpack.CUDA:
        raise NotImplementedError("the stand-in imports memory of devices alone")
    found = array.__dlpack__(stream=1)
    address, shape, dtype, strides, (_, number) = _dlpack.described(found)
    reach = sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    nbytes = reach + dtype.itemsize if 0 not in shape else 0
    mem = memory.UnownedMemory(address, nbytes, found, number)
    made = ndarray(shape, dtype, memory.MemoryPointer(mem, 0), strides if nbytes else None)
    return made.copy() if copy else made


def get_array_module(*args: Any) -> Any:
    """Return `cupy` if one of the arguments is its array, else `numpy`."""
    import cupy

    return cupy if any(isinstance(one, ndarray) for one in args) else np


def get_default_memory_pool() -> memory.MemoryPool:
    """Return the pool that arrays come from by default."""
    return memory.default_pool


def get_default_pinned_memory_pool() -> pinned_memory.PinnedMemoryPool:
    """Return the pool of pinned memory."""
    return pinned_memory.default_pool


def is_available() -> bool:
    """Tell whether there is a device."""
    return _device.COUNT > 0


def _multiplied(x1: Any, x2: Any, **options: Any) -> Any:
    result = np.matmul(x1, x2, **options)
    if result.dtype == np.float16 and result.size == 1:
        total = np.float16(0)
        for one in np.ravel(x1) * np.ravel(x2):
            total += one
        result = np.full(result.shape, total)
    return result


matmul = wrapped("cupy", "matmul", _multiplied)
"""Adds up in half precision what becomes a single number."""
