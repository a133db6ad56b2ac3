"""NumPy's methods that are functions of the namespace by another spelling."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

import distarray.ops as ops
from distarray.core import BaseArray, Op, check_order, plain_buffer
from distarray.errors import ArgumentError, DTypeError


def _method(function: Callable[..., Any], name: str = "") -> Any:
    def method(self: Any, *args: Any, **options: Any) -> Any:
        return function(self, *args, **options)

    if isinstance(function, Op) and function.call is not None and function.quick is None:
        method = _row_method(function, function.call)
    array, *others = inspect.signature(function).parameters.values()
    method.__signature__ = inspect.Signature([array.replace(name="self"), *others])  # type: ignore[attr-defined]
    method.__doc__ = function.__doc__
    method.__name__ = name or function.__name__
    method.__qualname__ = f"DistArray.{method.__name__}"
    return method


def _row_method(row: Op, call: Callable[..., Any]) -> Any:
    """Return what `row` is as a method, without a call of `row` in between."""

    def method(self: Any, *args: Any, **options: Any) -> Any:
        try:
            return call(row, self, *args, **options)
        except TypeError:
            row.check_arguments((self, *args), options)
            raise

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

    def conj(self) -> Any:
        """Return complex conjugates; of real numbers the array itself.

        Examples
        --------
        >>> import distarray as da
        >>> print(da.asarray([1 + 2j]).conj())
        [1.-2.j]
        """
        return self if self.dtype.kind in "biuf" else ops.conj(self)

    conjugate = conj

    def fill(self, value: Any) -> None:
        """Write one value, the same on every process, into all items.

        Examples
        --------
        >>> import distarray as da
        >>> x = da.zeros(3)
        >>> x.fill(7)
        >>> print(x)
        [7. 7. 7.]
        """
        shape = getattr(value, "shape", None)
        if shape is None:  # a tuple may be one item of fields
            items = self.dtype if self.dtype.names else None
            shape = plain_buffer(value, "fill", dtype=items, objects=True).shape
        if shape:
            raise ArgumentError(f"fill got a value of shape {shape}; with axes use x[...] = value")
        ops.setitem(self, (...,), value)

    def tobytes(self, order: str = "C") -> bytes:
        r"""Return the global array as bytes, on every rank (collective over the mesh).

        Examples
        --------
        >>> import distarray as da
        >>> da.asarray([1, 2], dtype="u1").tobytes()
        b'\x01\x02'
        """
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
        """Return the array converted to another dtype; placements stay.

        Examples
        --------
        >>> import distarray as da
        >>> print(da.asarray([1.7, -1.7]).astype(int))
        [ 1 -1]
        """
        del order, subok
        return ops.astype(self, dtype, casting=casting, copy=copy, device=device)

    def compress(self, condition: Any, axis: Any = None, out: Any = None) -> Any:
        """Return the slices along an axis where a condition is true; see `distarray.compress`.

        Examples
        --------
        >>> import distarray as da
        >>> print(da.arange(4).compress([True, False, True, False]))
        [0 2]
        """
        return ops.compress(condition, self, axis, out)

    def reshape(self, *shape: Any, order: str = "C", copy: bool | None = None) -> Any:
        """Return the items in another shape, given as integers or one tuple.

        Examples
        --------
        >>> import distarray as da
        >>> print(da.arange(6).reshape(2, -1))
        [[0 1 2]
         [3 4 5]]
        """
        return ops.reshape(self, _shape_argument(shape), order, copy=copy)

    def transpose(self, *axes: Any) -> Any:
        """Return the array with its axes in the order given, reversed without any.

        Examples
        --------
        >>> import distarray as da
        >>> x = da.zeros((2, 3, 4))
        >>> x.transpose().shape, x.transpose(0, 2, 1).shape
        ((4, 3, 2), (2, 4, 3))
        """
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
        """The real part; `x.real = values` writes it."""
        return ops.real(self)

    @real.setter
    def real(self, value: Any) -> None:
        ops.setitem(self.real if self.dtype.kind == "c" else self, (...,), value)

    @property
    def imag(self) -> Any:
        """The imaginary part; `x.imag = values` writes it."""
        return ops.imag(self)

    @imag.setter
    def imag(self, value: Any) -> None:
        if self.dtype.kind != "c":
            raise DTypeError(f"an array of {self.dtype} has no imaginary part to write into")
        ops.setitem(self.imag, (...,), value)
