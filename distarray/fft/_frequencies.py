"""Frequencies of transforms, and the shifts that put frequency 0 in the middle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distarray.core import check_distributed, check_integer, register
from distarray.errors import ArgumentError
from distarray.layout import Placement, normalize_axis, read_axes
from distarray.ops import arange, astype, roll


def fftfreq(
    n: int,
    /,
    d: float = 1.0,
    *,
    dtype: Any = None,
    device: Any = None,
    mesh: Any = None,
    placements: Sequence[Placement] | None = None,
) -> Any:
    """Return the frequencies of the items of `fft`: 0, 1, ..., -2, -1 over `n * d`.

    Parameters
    ----------
    n : int
        Length of the transform.
    d : float
        Distance of samples.
    dtype : data type, optional
        Default: float64, in which they are computed.
    device, mesh, placements
        As for `empty`.

    Returns
    -------
    DistArray
        Of shape `(n,)`. Nothing is sent: each process computes its part.

    Raises
    ------
    ArgumentError
        If `n` is not positive.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.fft.fftfreq(4))
    [ 0.    0.25 -0.5  -0.25]
    """
    n = _check_length("fftfreq", n)
    half = n // 2
    index = (arange(n, device=device, mesh=mesh, placements=placements) + half) % n - half
    return _scale(index, n, d, dtype)


def rfftfreq(
    n: int,
    /,
    d: float = 1.0,
    *,
    dtype: Any = None,
    device: Any = None,
    mesh: Any = None,
    placements: Sequence[Placement] | None = None,
) -> Any:
    n = _check_length("rfftfreq", n)
    index = arange(n // 2 + 1, device=device, mesh=mesh, placements=placements)
    return _scale(index, n, d, dtype)


rfftfreq.__doc__ = (
    (fftfreq.__doc__ or "")
    .replace("`fft`: 0, 1, ..., -2, -1 over", "`rfft`: 0, 1, ..., n // 2 over")
    .replace("`(n,)`", "`(n // 2 + 1,)`")
    .replace("fft.fftfreq(4", "fft.rfftfreq(4")
    .replace("[ 0.    0.25 -0.5  -0.25]", "[0.   0.25 0.5 ]")
)


def _check_length(name: str, n: Any) -> int:
    n = check_integer(name, "n", n)
    if n < 1:
        raise ArgumentError(f"{name} got n={n}; a transform has at least one item")
    return n


def _scale(index: Any, n: int, d: Any, dtype: Any) -> Any:
    found = index * (1.0 / (n * d))
    return found if dtype is None else astype(found, dtype, copy=False)


def fftshift(x: Any, /, axes: int | Sequence[int] | None = None) -> Any:
    """Return the array with frequency 0 in the middle of axes.

    Parameters
    ----------
    x : DistArray
    axes : int or sequence of int, optional
        Default: all.

    Returns
    -------
    DistArray
        Cut as `x` is. A process receives the items of its block that lay elsewhere.

    Raises
    ------
    AxisError
        If there is no such axis.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.fft.fftshift(da.fft.fftfreq(4)))
    [-0.5  -0.25  0.    0.25]
    """
    return _shift("fftshift", x, axes, lambda length: length // 2)


def ifftshift(x: Any, /, axes: int | Sequence[int] | None = None) -> Any:
    """Return the array with what `fftshift` put in the middle of axes at their beginning.

    Parameters
    ----------
    x : DistArray
    axes : int or sequence of int, optional
        Default: all.

    Returns
    -------
    DistArray
        Cut as `x` is. A process receives the items of its block that lay elsewhere.

    Raises
    ------
    AxisError
        If there is no such axis.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.fft.ifftshift(da.arange(5)))
    [2 3 4 0 1]
    """
    return _shift("ifftshift", x, axes, lambda length: -(length // 2))


def _shift(name: str, x: Any, axes: Any, by: Any) -> Any:
    layout = check_distributed(name, x)._layout
    read = tuple(range(layout.ndim)) if axes is None else read_axes(axes)
    listed = (read,) if isinstance(read, int) else read  # one that is named twice moves twice
    places = [normalize_axis(axis, layout.ndim) for axis in listed]
    return roll(x, tuple(by(layout.shape[axis]) for axis in places), places)


for _function in (fftshift, ifftshift):
    register(_function, room="fft")
