"""NumPy's methods that are functions of the namespace by another spelling."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

import distarray.ops as ops
from distarray.core import BaseArray, check_order, plain_buffer
from distarray.errors import ArgumentError


def _method(function: Callable[..., Any], name: str = "") -> Any:
    def method(self: Any, *args: Any, **options: Any) -> Any:
        return function(self, *args, **options)

    array, *others = inspect.signature(function).parameters.values()
    method.__signature__ = inspect.Signature([array.replace(name="self"), *others])  # type: ignore[attr-defined]
    method.__doc__ = function.__doc__
    method.__name__ = name or function.__name__
    method.__qualname__ = f"DistArray.{method.__name__}"
    return method


def _shape_argument(args: tuple[Any, ...]) -> Any:
    return args[0] if len(args) == 1 and not isinstance(args[0], int) else args


class Methods(BaseArray):
    """Reductions, conversions and changes of shape as methods."""

    __slots__ = ()

    sum = _method(ops.sum)
    prod = _method(ops.prod)
    mean = _method(ops.mean)
    var = _method(ops.var)
    std = _method(ops.std)
    min = _method(ops.min)
    max = _method(ops.max)
    any = _method(ops.any)
    all = _method(ops.all)
    argmin = _method(ops.argmin)
    argmax = _method(ops.argmax)
    argpartition = _method(ops.argpartition)
    argsort = _method(ops.argsort)
    cumsum = _method(ops.cumsum)
    cumprod = _method(ops.cumprod)
    round = _method(ops.round)
    clip = _method(ops.clip)
    copy = _method(ops.copy)
    repeat = _method(ops.repeat)
    searchsorted = _method(ops.searchsorted)
    take = _method(ops.take)
    put = _method(ops.put)
    choose = _method(ops.choose)
    conj = conjugate = _method(ops.conj)
    ravel = _method(ops.ravel)
    flatten = _method(ops.flatten)
    squeeze = _method(ops.squeeze)
    swapaxes = _method(ops.swapaxes)
    diagonal = _method(ops.diagonal)
    dot = _method(ops.dot)
    nonzero = _method(ops.nonzero)
    trace = _method(ops.trace)
    partition = _method(ops.partition_in_place, "partition")
    sort = _method(ops.sort_in_place, "sort")

    def fill(self, value: Any) -> None:
        """Write one value, the same on every process, into all items."""
        shape = getattr(value, "shape", None)
        shape = plain_buffer(value, "fill", objects=True).shape if shape is None else tuple(shape)
        if shape:
            raise ArgumentError(f"fill got a value of shape {shape}; with axes use x[...] = value")
        ops.setitem(self, (...,), value)

    def tobytes(self, order: str = "C") -> bytes:
        """Return the global array as bytes, on every rank (collective over the mesh)."""
        letter: Any = check_order("tobytes", order, "CFA")
        return np.asarray(self).tobytes(letter)

    def astype(
        self,
        dtype: Any,
        order: str = "K",
        casting: Any = "unsafe",
        subok: bool = True,
        copy: bool = True,
        *,
        device: Any = None,
    ) -> Any:
        """Return the array converted to another dtype; placements stay."""
        del order, subok
        return ops.astype(self, dtype, casting=casting, copy=copy, device=device)

    def compress(self, condition: Any, axis: Any = None, out: Any = None) -> Any:
        """Return the slices along an axis where a condition is true; see `distarray.compress`."""
        return ops.compress(condition, self, axis, out)

    def reshape(self, *shape: Any, order: str = "C", copy: bool | None = None) -> Any:
        """Return the items in another shape, given as integers or one tuple."""
        return ops.reshape(self, _shape_argument(shape), order, copy=copy)

    def transpose(self, *axes: Any) -> Any:
        """Return the array with its axes in the order given, reversed without any."""
        return ops.transpose(self, _shape_argument(axes) if axes else None)

    @property
    def T(self) -> Any:  # noqa: N802 (NumPy's name)
        """The array with its axes reversed."""
        return ops.transpose(self)

    @property
    def mT(self) -> Any:  # noqa: N802 (NumPy's name)
        """The array with its last two axes exchanged."""
        return ops.matrix_transpose(self)

    @property
    def real(self) -> Any:
        """The real part."""
        return ops.real(self)

    @property
    def imag(self) -> Any:
        """The imaginary part."""
        return ops.imag(self)
