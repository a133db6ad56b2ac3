"""NumPy's methods that are functions of the namespace by another spelling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distarray.core import BaseArray
from distarray.ops import _contraction as contraction
from distarray.ops import _elementwise_rounding as rounding
from distarray.ops import _reductions as reductions
from distarray.ops import _scans as scans
from distarray.ops import _searching as searching
from distarray.ops import _shape as shaping
from distarray.ops import _statistics as statistics
from distarray.ops._reshape import reshape


def _method(function: Callable[..., Any]) -> Any:
    def method(self: Any, *args: Any, **options: Any) -> Any:
        return function(self, *args, **options)

    method.__doc__ = function.__doc__
    method.__name__ = getattr(function, "__name__", "method")
    return method


def _shape_argument(args: tuple[Any, ...]) -> Any:
    return args[0] if len(args) == 1 and not isinstance(args[0], int) else args


class Methods(BaseArray):
    """Reductions, conversions and changes of shape as methods."""

    __slots__ = ()

    sum = _method(reductions.sum)
    prod = _method(reductions.prod)
    mean = _method(statistics.mean)
    var = _method(statistics.var)
    std = _method(statistics.std)
    min = _method(reductions.min)
    max = _method(reductions.max)
    any = _method(reductions.any)
    all = _method(reductions.all)
    argmin = _method(searching.argmin)
    argmax = _method(searching.argmax)
    cumsum = _method(scans.cumsum)
    cumprod = _method(scans.cumprod)
    round = _method(rounding.round)
    clip = _method(rounding.clip)
    copy = _method(rounding.copy)
    conj = conjugate = _method(rounding.conj)
    ravel = _method(shaping.ravel)
    flatten = _method(shaping.flatten)
    squeeze = _method(shaping.squeeze)
    swapaxes = _method(shaping.swapaxes)
    dot = _method(contraction.dot)

    def astype(self, dtype: Any, order: str = "K", casting: Any = "unsafe", **options: Any) -> Any:
        """Return the array converted to another dtype; placements stay."""
        del order
        return rounding.astype(self, dtype, casting=casting, **options)

    def reshape(self, *shape: Any, **options: Any) -> Any:
        """Return the items in another shape, given as integers or one tuple."""
        return reshape(self, _shape_argument(shape), **options)

    def transpose(self, *axes: Any) -> Any:
        """Return the array with its axes in the order given, reversed without any."""
        return shaping.transpose(self, _shape_argument(axes) if axes else None)

    @property
    def T(self) -> Any:  # noqa: N802 (NumPy's name)
        """The array with its axes reversed."""
        return shaping.transpose(self)

    @property
    def mT(self) -> Any:  # noqa: N802 (NumPy's name)
        """The array with its last two axes exchanged."""
        return shaping.matrix_transpose(self)

    @property
    def real(self) -> Any:
        """The real part."""
        return rounding.real(self)

    @property
    def imag(self) -> Any:
        """The imaginary part."""
        return rounding.imag(self)
