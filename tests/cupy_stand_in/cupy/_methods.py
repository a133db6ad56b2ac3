"""Methods of the array that NumPy has too: arguments as CuPy's, the work done by NumPy."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from cupy._array import _new, _warn_complex, checked_dtype, ndarray
from cupy._data import METHODS, signature
from cupy.cuda import runtime
from cupy.cuda.stream import launched

_REDUCING = (
    *("sum", "prod", "mean", "var", "std", "min", "max", "any", "all", "argmin", "argmax", "ptp"),
    *("cumsum", "cumprod", "trace"),
)
_VIEWS = ("transpose", "swapaxes", "squeeze", "diagonal")
_COPIES = ("take", "compress", "repeat", "conj", "conjugate", "round", "flatten")


def into(out: Any, result: Any) -> Any:
    """Return a result in device memory, or what was given for it."""
    if out is None:
        return _new(result)
    if out.shape != np.shape(result):
        raise ValueError("Output has wrong shape")
    with np.errstate(all="ignore"):
        np.copyto(out._host, result, casting="unsafe")
    return out


def _checked(name: str) -> Callable[..., dict[str, Any]]:
    """Return a function that gives arguments their names, as CuPy's method does."""
    text = METHODS[name]
    assert text is not None
    found = signature(text)

    def bound(*args: Any, **kwargs: Any) -> dict[str, Any]:
        given = found.bind(*args, **kwargs).arguments
        given.pop("self")
        return given

    return bound


def _reducing(name: str) -> Callable[..., Any]:
    bound = _checked(name)

    def method(self: ndarray, *args: Any, **kwargs: Any) -> Any:
        given = bound(self, *args, **kwargs)
        out = given.pop("out", None)
        if given.get("keepdims", ...) is None:
            del given["keepdims"]
        if name.startswith("arg") and isinstance(given.get("axis"), tuple):
            raise NotImplementedError("the stand-in finds extremes along one axis")
        if name in ("argmin", "argmax"):
            given.pop("dtype", None)
        launched(f"cupy_{name}")
        function = getattr(np, name)
        with np.errstate(all="ignore"):
            if name in ("sum", "mean") and self.dtype.char in "ef" and "dtype" not in given:
                # Blocks of threads add up in trees, which loses less than one loop does.
                return into(out, function(self._host, dtype=np.float64, **given).astype(self.dtype))
            return into(out, function(self._host, **given))

    return method


def _viewing(name: str) -> Callable[..., Any]:
    def method(self: ndarray, *args: Any, **kwargs: Any) -> Any:
        return self._view(getattr(self._host, name)(*args, **kwargs))

    return method


def _copying(name: str) -> Callable[..., Any]:
    bound = _checked(name)

    def method(self: ndarray, *args: Any, **kwargs: Any) -> Any:
        given = bound(self, *args, **kwargs)
        out = given.pop("out", None)
        if isinstance(given.get("repeats"), np.ndarray):
            raise TypeError("'repeats' does not accept numpy.ndarray")
        given = {k: v._host if isinstance(v, ndarray) else v for k, v in given.items()}
        if name == "take":
            axis = given.get("axis")
            length = self.size if axis is None else self.shape[axis]
            given["indices"] = np.asarray(given["indices"]) % max(length, 1)
        launched(f"cupy_{name}")
        with np.errstate(all="ignore"):
            return into(out, getattr(self._host, name)(**given))

    return method


def reshape(self: ndarray, *shape: Any, order: str = "C", copy: bool | None = None) -> Any:
    """Return the items under another shape, in place where that can be."""
    sizes = shape[0] if len(shape) == 1 else shape
    found = self._host.reshape(sizes, order=order)
    if not self.size or not np.shares_memory(found, self._host):
        if copy is False:
            raise ValueError("Unable to avoid creating a copy while reshaping.")
        return _new(found)
    return _new(found) if copy else self._view(found)


def ravel(self: ndarray, order: str = "C") -> Any:
    """Return the items as one axis, in place where that can be."""
    return reshape(self, -1, order=order)


def astype(
    self: ndarray,
    dtype: Any,
    order: str | None = "K",
    casting: Any = None,
    subok: Any = None,
    copy: bool | None = True,
) -> Any:
    """Return the items in another dtype."""
    if casting is not None:
        raise TypeError("casting is not supported yet")
    if subok is not None:
        raise TypeError("subok is not supported yet")
    kind = checked_dtype(dtype)
    if kind == self.dtype and not copy and order in ("K", None):
        return self
    _warn_complex(self.dtype, kind)
    launched("astype")
    with np.errstate(all="ignore"):
        host = self._host.astype(kind, order or "K", "unsafe", True, True)
    found = ndarray(host.shape, kind)
    if host.size and not host.flags.c_contiguous:
        found._host = np.ndarray(host.shape, kind, found._host, 0, host.strides)
    found._host[...] = host
    return found


def copy(self: ndarray, order: str = "C") -> Any:
    """Return a copy on the current device."""
    if self._memory.device_id != runtime.getDevice():
        if not (self._host.flags.c_contiguous or self._host.flags.f_contiguous):
            raise NotImplementedError("CuPy cannot copy non-contiguous array between devices.")
        found = ndarray(self.shape, self.dtype)
        found._host[...] = self._host
        return found
    return astype(self, self.dtype, order)


def view(self: ndarray, dtype: Any = None, type: Any = None) -> Any:
    """Return a view, of another dtype where one is given."""
    if dtype is None or dtype is ndarray:
        return self._view(self._host.view())
    return self._view(self._host.view(checked_dtype(dtype)))


def sort(self: ndarray, axis: int = -1, kind: Any = None) -> None:
    """Sort in place."""
    _check_kind(kind)
    launched("sort")
    self._host.sort(axis, "stable")


def argsort(self: ndarray, axis: Any = -1, kind: Any = None) -> Any:
    """Return the indices that sort."""
    _check_kind(kind)
    launched("argsort")
    return _new(self._host.argsort(axis, "stable"))


def _check_kind(kind: Any) -> None:
    if kind is not None and kind != "stable":
        raise ValueError("kind can only be None or 'stable'")


def nonzero(self: ndarray) -> tuple[Any, ...]:
    """Return the indices of items that are not zero."""
    return tuple(map(_new, self._host.nonzero()))


def clip(self: ndarray, min: Any = None, max: Any = None, out: Any = None) -> Any:
    """Limit the items."""
    return importlib.import_module("cupy").clip(self, min, max, out)


def dot(self: ndarray, b: Any, out: Any = None) -> Any:
    """Return the dot product."""
    return into(out, self._host.dot(b._host))


def choose(self: ndarray, choices: Any, out: Any = None, mode: str = "raise") -> Any:
    """Return items of an array of choices, which may be no list."""
    launched("cupy_choose")
    return into(
        out, np.choose(self._host, [choices[i]._host for i in range(choices.shape[0])], mode=mode)
    )


def reduced_view(self: ndarray, dtype: Any = None) -> Any:
    """Return a view of the fewest axes, of contiguous arrays here alone."""
    return reshape(self, -1) if self._host.flags.c_contiguous and self.ndim > 1 else self


def _operator(name: str, reflected: bool) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        pair = (other, self) if reflected else (self, other)
        if isinstance(other, ndarray):
            return getattr(importlib.import_module("cupy"), name)(*pair)
        theirs = getattr(other, "__array_ufunc__", ...)
        if theirs is None:
            return NotImplemented
        if theirs is ... and getattr(other, "__array_priority__", 0) > self.__array_priority__:
            return NotImplemented
        if isinstance(other, np.ndarray) and other.ndim == 0 and name in ("less", "equal"):
            other = other.item()
        return getattr(np, name)(*pair)

    return method


def _inplace(name: str) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        return getattr(importlib.import_module("cupy"), name)(self, other, self)

    return method


def _unary(name: str) -> Callable[[Any], Any]:
    def method(self: Any) -> Any:
        return getattr(importlib.import_module("cupy"), name)(self)

    return method


_BINARY = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "true_divide",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "divmod": "divmod",
    "pow": "power",
    "lshift": "left_shift",
    "rshift": "right_shift",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "matmul": "matmul",
}


def install() -> None:
    """Give the array its methods."""
    for name in _REDUCING:
        if name in METHODS:
            setattr(ndarray, name, _reducing(name))
    for name in _VIEWS:
        setattr(ndarray, name, _viewing(name))
    for name in _COPIES:
        setattr(ndarray, name, _copying(name))
    for function in (
        *(reshape, ravel, astype, copy, view, sort, argsort, nonzero, clip, dot),
        *(choose, reduced_view),
    ):
        setattr(ndarray, function.__name__, function)
    for short, name in _BINARY.items():
        setattr(ndarray, f"__{short}__", _operator(name, False))
        setattr(ndarray, f"__r{short}__", _operator(name, True))
        if short not in ("divmod", "matmul"):
            setattr(ndarray, f"__i{short}__", _inplace(name))
    for short, name in (
        *(("lt", "less"), ("le", "less_equal"), ("eq", "equal"), ("ne", "not_equal")),
        *(("gt", "greater"), ("ge", "greater_equal")),
    ):
        setattr(ndarray, f"__{short}__", _operator(name, False))
    for short, name in (
        *(("neg", "negative"), ("pos", "positive"), ("abs", "absolute"), ("invert", "invert")),
    ):
        setattr(ndarray, f"__{short}__", _unary(name))
    ndarray.__hash__ = None  # type: ignore[assignment]
