"""Transforms of one axis, and of several, one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from distarray.core import check_distributed, check_integer, describe, register, run_one
from distarray.errors import ArgumentError, ArgumentTypeError
from distarray.layout import Layout, normalize_axis
from distarray.ops import Axes, copyto, whole_axes

_NORMS = (None, "backward", "ortho", "forward")

_ONE_AXIS = """{sentence}

Parameters
----------
x : DistArray
    {operand}
n : int, optional
    Length of the axis {of}; default: {default}. Longer lines are cut off, shorter ones get zeros.
axis : int
    The axis to transform.
norm : {{"backward", "ortho", "forward"}}
    Which direction is divided by the length: the inverse, both by its root, or the other.
out : DistArray, optional
    Where the result goes; it keeps its layout and dtype.

Returns
-------
DistArray
    {result} Cut as `x` is, but where the transformed axis was cut: then along the other axis that
    makes the smallest blocks, or, without one longer than 1, as `x` again.

Raises
------
AxisError
    If there is no such axis.
ArgumentError
    If `n` is not positive.
DTypeError
    If NumPy has no such transform for the dtype.
ImplicitCommunicationError
    If the axis is cut, there is no other to cut, and the array is larger than 128 MiB.

Notes
-----
Distribution: nothing is sent where the axis is not cut; else one all-to-all, in which a process
receives the items of its new block that it does not have, and needs memory for it. Blocks on GPUs
are transformed on the host.

Examples
--------
>>> import distarray as da
>>> x = da.ones((4, 6){dtype})
>>> da.fft.{name}(x, axis=1).shape
{shape}
"""

_TABLE: dict[str, tuple[str, str, str, str, str, str]] = {
    "fft": ("Return the Fourier transform along an axis.", "", "x", "n", "Complex.", "(4, 6)"),
    "ifft": ("Return the inverse of `fft`.", "", "x", "n", "Complex.", "(4, 6)"),
    "rfft": (
        "Return the Fourier transform of real items along an axis.",
        "Real.",
        "x",
        "n",
        "Complex, of `n // 2 + 1` frequencies that are not negative.",
        "(4, 4)",
    ),
    "irfft": (
        "Return the inverse of `rfft`.",
        "Of frequencies that are not negative.",
        "result",
        "2 * (m - 1), where `m` is the length in `x`",
        "Real, of `n` items.",
        "(4, 10)",
    ),
    "hfft": (
        "Return the Fourier transform of lines that are symmetric up to conjugation.",
        "The first halves of the lines.",
        "result",
        "2 * (m - 1), where `m` is the length in `x`",
        "Real, of `n` items.",
        "(4, 10)",
    ),
    "ihfft": (
        "Return the inverse of `hfft`.",
        "Real.",
        "x",
        "n",
        "Complex, of `n // 2 + 1` items.",
        "(4, 4)",
    ),
}


def _one_axis(name: str) -> Callable[..., Any]:
    function = getattr(np.fft, name)
    op = whole_axes(name, _padded(function) if name in ("irfft", "hfft") else function)
    sentence, operand, of, default, result, shape = _TABLE[name]

    def transform(
        x: Any,
        /,
        n: int | None = None,
        axis: int = -1,
        norm: str | None = "backward",
        out: Any = None,
    ) -> Any:
        place = normalize_axis(axis, check_distributed(name, x)._layout.ndim)
        options: tuple[tuple[str, Any], ...] = (("norm", _check_norm(name, norm)),)
        if n is not None:
            options += (("n", check_integer(name, "n", n)),)
        return _into(out, run_one(op, x, Axes("i->i", place, options)))

    transform.__name__ = transform.__qualname__ = name
    transform.__doc__ = _ONE_AXIS.format(
        sentence=sentence,
        operand=operand or "Real or complex.",
        of=f"of `{of}` that is transformed" if of == "x" else "of the result",
        default="that of `x`" if default == "n" else default,
        result=result,
        dtype=", dtype=complex" if name in ("irfft", "hfft", "ifft") else "",
        name=name,
        shape=shape,
    )
    return register(transform, room="fft")


def _padded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that takes a missing frequency 0 as 0; NumPy's then reads what it likes."""

    def call(block: Any, axis: int, **options: Any) -> Any:
        if block.shape[axis] == 0 and "n" in options:
            shape = [1 if i == axis % block.ndim else size for i, size in enumerate(block.shape)]
            block = np.zeros(shape, block.dtype)
        return function(block, axis=axis, **options)

    return call


def _check_norm(name: str, norm: Any) -> Any:
    if not (norm is None or (isinstance(norm, str) and norm in _NORMS)):
        raise ArgumentError(
            f"{name} got norm={norm!r}; it takes {', '.join(map(repr, _NORMS[1:]))} or None"
        )
    return norm


def _into(out: Any, result: Any) -> Any:
    if out is None:
        return result
    copyto(out, result)
    return out


fft = _one_axis("fft")
ifft = _one_axis("ifft")
rfft = _one_axis("rfft")
irfft = _one_axis("irfft")
hfft = _one_axis("hfft")
ihfft = _one_axis("ihfft")


# --- several axes --------------------------------------------------------------------------------

_SEVERAL_AXES = """{sentence}

Parameters
----------
x : DistArray
    {operand}
s : sequence of int, optional
    Lengths of the transformed axes {of}; -1 is that of `x`. Longer lines are cut off, shorter ones
    get zeros. Default: {default}.
axes : sequence of int{optional}
    The axes to transform{axes}
norm : {{"backward", "ortho", "forward"}}
    Which direction is divided by the number of items: the inverse, both by its root, or the other.
out : DistArray, optional
    Where the result goes; it keeps its layout and dtype.

Returns
-------
DistArray
    {result}

Raises
------
AxisError
    If there is no such axis.
ArgumentError
    If `s` and `axes` differ in length, or a length is not positive.
DTypeError
    If NumPy has no such transform for the dtype.

Notes
-----
Distribution: {order} An axis that is cut takes one all-to-all, after which another one is
cut, and stays so; with `x` cut along one axis, one for all. See `fft` for an array of one axis.

Examples
--------
>>> import distarray as da
>>> da.fft.{name}(da.ones((4, 6){dtype})).shape
{shape}
"""


def _lengths(
    name: str, x: Any, s: Any, axes: Any, real_result: bool = False
) -> list[tuple[int, int | None]]:
    """Return (axis, length or None for that of `x`) for every transform."""
    layout: Layout = check_distributed(name, x)._layout
    if s is not None:
        s = [None if n is None else check_integer(name, "s", n) for n in _listed(name, "s", s)]
    if axes is None:
        axes = range(layout.ndim) if s is None else range(-len(s), 0)
    listed = [check_integer(name, "axes", axis) for axis in _listed(name, "axes", axes)]
    places = [normalize_axis(axis, layout.ndim) for axis in listed]
    if s is None:
        s = [layout.shape[axis] for axis in places]  # also where an axis is named again
        if real_result and places:
            s[-1] = 2 * (layout.shape[places[-1]] - 1)
    if len(s) != len(places):
        raise ArgumentError(f"{name} got {len(s)} lengths in s for {len(places)} axes; they differ")
    return [(axis, layout.shape[axis] if n == -1 else n) for axis, n in zip(places, s, strict=True)]


def _listed(name: str, key: str, value: Any) -> list[Any]:
    try:
        return [*value]
    except TypeError:
        raise ArgumentTypeError(
            f"{name}({key}={describe(value)}): must be a sequence of integers"
        ) from None


def _transform(
    one: Callable[..., Any], x: Any, pairs: Sequence[tuple[int, int | None]], norm: Any
) -> Any:
    """Transform axes from the last to the first, those that are cut after all others."""
    layout: Layout = x._layout
    order = [*reversed(pairs)]
    order.sort(key=lambda pair: layout.partition(pair[0]).count > 1)
    for axis, n in order:
        x = one(x, n, axis, norm)
    return x


def _complex(name: str, one: Callable[..., Any]) -> Callable[..., Any]:
    def several(x: Any, s: Any, axes: Any, norm: Any, out: Any) -> Any:
        pairs = _lengths(name, x, s, axes)
        return _into(out, _transform(one, x, pairs, _check_norm(name, norm)))

    return several


def _from_real(name: str) -> Callable[..., Any]:
    def several(x: Any, s: Any, axes: Any, norm: Any, out: Any) -> Any:
        pairs = _lengths(name, x, s, axes)
        if not pairs:
            raise ArgumentError(f"{name} got no axes; it transforms the last one from real items")
        axis, n = pairs[-1]
        return _into(out, _transform(fft, rfft(x, n, axis, norm), pairs[:-1], norm))

    return several


def _to_real(name: str) -> Callable[..., Any]:
    def several(x: Any, s: Any, axes: Any, norm: Any, out: Any) -> Any:
        pairs = _lengths(name, x, s, axes, real_result=True)
        if not pairs:
            raise ArgumentError(f"{name} got no axes; it transforms the last one to real items")
        axis, n = pairs[-1]
        first = pairs[:-1][::-1]  # in NumPy's order
        return _into(out, irfft(_transform(ifft, x, first, _check_norm(name, norm)), n, axis, norm))

    return several


_ALL_FIRST = "the axes that are not cut are transformed first, then the others."
_SEVERAL: dict[str, tuple[Callable[..., Any], str, str, str, str, str, str]] = {
    "fft": (
        _complex("fftn", fft),
        "Return the Fourier transform over several axes.",
        "Real or complex.",
        "of `x` that are transformed",
        "those of `x`",
        "Complex.",
        "(4, 6)",
    ),
    "ifft": (
        _complex("ifftn", ifft),
        "Return the inverse of `fftn`.",
        "Real or complex.",
        "of `x` that are transformed",
        "those of `x`",
        "Complex.",
        "(4, 6)",
    ),
    "rfft": (
        _from_real("rfftn"),
        "Return the Fourier transform of real items over several axes.",
        "Real.",
        "of `x` that are transformed",
        "those of `x`",
        "Complex; of the last of `axes` it has the frequencies that are not negative.",
        "(4, 4)",
    ),
    "irfft": (
        _to_real("irfftn"),
        "Return the inverse of `rfftn`.",
        "Of the last of `axes` it has the frequencies that are not negative.",
        "of the result",
        "those of `x`, and of the last 2 * (m - 1) where `x` has m",
        "Real.",
        "(4, 10)",
    ),
}


def _several_axes(one: str, two: bool) -> Callable[..., Any]:
    several, sentence, operand, of, default, result, shape = _SEVERAL[one]
    name = f"{one}{'2' if two else 'n'}"
    if two:

        def transform(
            x: Any,
            /,
            s: Any = None,
            axes: Sequence[int] | None = (-2, -1),
            norm: str | None = "backward",
            out: Any = None,
        ) -> Any:
            return several(x, s, axes, norm, out)

    else:

        def transform(
            x: Any,
            /,
            s: Any = None,
            axes: Sequence[int] | None = None,
            norm: str | None = "backward",
            out: Any = None,
        ) -> Any:
            return several(x, s, axes, norm, out)

    transform.__name__ = transform.__qualname__ = name
    last = {"rfft": "the last of `axes` first, then ", "irfft": "the last of `axes` at the end; "}
    transform.__doc__ = _SEVERAL_AXES.format(
        sentence=sentence.replace("fftn", "fft2").replace("several axes", "two axes")
        if two
        else sentence,
        operand=operand,
        of=of,
        default=default,
        optional="" if two else ", optional",
        axes="." if two else "; default: all, or the last `len(s)`.",
        result=result,
        order=last.get(one, "") + _ALL_FIRST,
        dtype=", dtype=complex" if one in ("irfft", "ifft") else "",
        name=name,
        shape=shape,
    )
    return register(transform, room="fft")


fftn = _several_axes("fft", False)
ifftn = _several_axes("ifft", False)
rfftn = _several_axes("rfft", False)
irfftn = _several_axes("irfft", False)
fft2 = _several_axes("fft", True)
ifft2 = _several_axes("ifft", True)
rfft2 = _several_axes("rfft", True)
irfft2 = _several_axes("irfft", True)
