"""Transforms of one axis, and of several, one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from distarray.core import (
    Call,
    Layouts,
    Op,
    Step,
    check_distributed,
    check_fits,
    check_integer,
    check_out,
    describe,
    refusal_error,
    register,
    run_one,
    step_for,
    write_out,
)
from distarray.errors import ArgumentError, ArgumentTypeError, DTypeError
from distarray.fft._plan import plan, reduced
from distarray.fft._stages import Task
from distarray.layout import Layout, normalize_axis
from distarray.typing import Buffer

_NORMS = (None, "backward", "ortho", "forward")

_KINDS = {
    "fft": (True, ""),
    "ifft": (False, ""),
    "rfft": (True, "in"),
    "irfft": (False, "out"),
    "hfft": (True, "out"),
    "ihfft": (False, "in"),
}
"""Whether the exponent is negative, and where items are real."""


class _Arguments(NamedTuple):
    """The static arguments of an operation."""

    lengths: tuple[tuple[int, int], ...]
    norm: str | None
    workers: int | None


def _dtypes(op: Op, call: Call) -> tuple[Any, Any]:
    try:
        dtype = op.local(np.empty((0, 2), call.dtypes[0])).dtype
    except (TypeError, ValueError) as error:
        if call.dtypes[0].kind == "c":
            raise DTypeError(
                f"{op.name} got {call.dtypes[0]}, and takes real ones: use fft or fftn, or x.real"
            ) from None
        raise refusal_error(op.name, error, call.dtypes) from error
    return dtype, dtype


def _spec(op: Op, call: Call) -> Layouts:
    arguments: _Arguments = call.static
    forward, real = _KINDS[_base(op.name)]
    dtype = np.result_type(_dtypes(op, call)[1], np.complex64)
    task = Task(
        arguments.lengths, forward, real, arguments.norm, arguments.workers, np.dtype(dtype)
    )
    source = reduced(call.layouts[0], task)
    stages = plan(source, task)
    sends = tuple(send for stage in stages for send in stage.sends)
    return Layouts((source,), stages[-1].after, sends, plan=stages)


def _bind(step: Step) -> Callable[[Buffer], Buffer]:
    spec: Any = step.spec
    functions = [stage.bind(i > 0) for i, stage in enumerate(spec.plan)]

    def transform(block: Buffer) -> Buffer:
        for function in functions:
            block = function(block)
        return block

    return transform


def _base(name: str) -> str:
    """Return the transform of one axis that several axes take: "rfft" of "rfftn"."""
    return name.rstrip("n2")


_OPS = {
    name: Op(name, getattr(np.fft, _base(name)), _spec, dtypes=_dtypes, bind=_bind)
    for name in (
        *_KINDS,
        *(f"{one}{end}" for one in ("fft", "ifft", "rfft", "irfft") for end in "n2"),
    )
}


def _run(
    op: Op, x: Any, lengths: tuple[tuple[int, int], ...], norm: Any, workers: Any, out: Any = None
) -> Any:
    if not (norm is None or (isinstance(norm, str) and norm in _NORMS)):
        raise ArgumentError(
            f"{op.name} got norm={describe(norm)}; it takes "
            f"{', '.join(map(repr, _NORMS[1:]))} or None"
        )
    for axis, n in lengths:
        if n < 1:
            raise ArgumentError(
                f"{op.name} got {n} items for axis {axis}; a transform has at least one, say by n= "
                "or s= how many"
            )
    if workers is not None:
        workers = check_integer(op.name, "workers", workers)
        if workers < 1:
            raise ArgumentError(f"{op.name} got workers={workers}; each process needs at least 1")
    static = _Arguments(lengths, norm, workers)
    if out is not None:
        step = step_for(op, (x,), static)
        check_fits(op.name, out, step.output.shape, step.result)
    return write_out(op.name, out, run_one(op, x, static))


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
workers : int, optional
    Threads of each process, where SciPy is installed and blocks are in host memory; default: 1, or
    what `scipy.fft.set_workers` says.

Returns
-------
DistArray
    {result} Cut as `x` is, but where the transformed axis was cut: then along the first other axis
    that makes even blocks, so `[S(0)]` leads to `[S(1)]`. Where no other is long enough it is cut
    as `x` again.

Raises
------
AxisError
    If there is no such axis.
ArgumentError
    If `n` is not positive.
DTypeError
    If NumPy has no such transform for the dtype.

Notes
-----
Distribution: nothing is sent where the axis is not cut; else one all-to-all, in which a process
receives the items of its new block that it does not have, and needs memory for a block beside `x`
and the result. Between nodes messages may be packed, a twelfth of a block or 16 MiB at a time; they
lie in these blocks, where there are several rounds of them. A Partial array is reduced first, and
where it has more than 64 KiB its sums are scattered along another axis, if there is one. Items
beyond `n` do not travel. A line for which no other axis can be cut takes three exchanges of a block
(Bailey's six steps, 1990), and no more memory. Where `n` has no two factors that the processes can
share, as primes have not, it is a convolution (Bluestein's chirp, 1970) in six passes, with real
items or a real result in nine: a pass takes two exchanges of half a block and three of a third,
and no more memory either, but for about 10 MiB. Lines of less than 768 KiB in each process take
fewer passes, for up to three and a half blocks beside both. Else at most three blocks are there at
a time, each as large as any process has at any step: where lengths do not divide that is up to some
percent more than the result's, and memory is rounded up by 1/32. None can be spared: `x` stays,
and of an exchange there are what is sent and what arrives. Lines of up to 64 KiB are gathered.
Errors are a few ulps times log2(n), relative to the norm.

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
    op = _OPS[name]
    is_real_result = _KINDS[name][1] == "out"
    sentence, operand, of, default, result, shape = _TABLE[name]

    def transform(
        x: Any,
        /,
        n: int | None = None,
        axis: int = -1,
        norm: str | None = "backward",
        out: Any = None,
        *,
        workers: int | None = None,
    ) -> Any:
        layout: Layout = check_distributed(name, x)._layout
        place = normalize_axis(axis, layout.ndim)
        check_out(name, x, out)
        if n is None:
            size = layout.shape[place]
            n = 2 * (size - 1) if is_real_result else size
        lengths = ((place, check_integer(name, "n", n)),)
        return _run(op, x, lengths, norm, workers, out)

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
    get zeros. Default, also where one of them is None: {default}.
axes : sequence of int{optional}
    The axes to transform{axes}
norm : {{"backward", "ortho", "forward"}}
    Which direction is divided by the number of items: the inverse, both by its root, or the other.
out : DistArray, optional
    Where the result goes; it keeps its layout and dtype.
workers : int, optional
    Threads of each process; see `fft`.

Returns
-------
DistArray
    {result} It stays turned: `[S(0)]` leads to `[S(1)]`, `[S(0), S(1)]` of three axes to `[S(1),
    S(2)]`, and the inverse transform back. `x.redistribute` turns it where that matters. An axis
    that is not transformed stays whole if another one can be cut.

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
Distribution: {order} An axis that is cut takes one all-to-all, after which another one is cut, and
stays so (slabs and pencils: Dalcin, Mortensen and Keyes, 2019). Beside `x` and the result a process
needs memory for a block, whatever the number of exchanges. See `fft` for messages between nodes,
Partial arrays, and axes that are too short for that.

Examples
--------
>>> import distarray as da
>>> da.fft.{name}(da.ones((4, 6){dtype})).shape
{shape}
"""


def _lengths(
    name: str, x: Any, s: Any, axes: Any, real_result: bool = False
) -> list[tuple[int, int]]:
    """Return (axis, length) for every transform."""
    layout: Layout = check_distributed(name, x)._layout
    if s is not None:
        s = [None if n is None else check_integer(name, "s", n) for n in _listed(name, "s", s)]
    if axes is None:
        axes = range(layout.ndim) if s is None else range(-len(s), 0)
    listed = [check_integer(name, "axes", axis) for axis in _listed(name, "axes", axes)]
    places = [normalize_axis(axis, layout.ndim) for axis in listed]
    if s is None:
        s = [None] * len(places)
    if len(s) != len(places):
        raise ArgumentError(f"{name} got {len(s)} lengths in s for {len(places)} axes; they differ")
    if real_result and places and s[-1] is None:
        s[-1] = 2 * (layout.shape[places[-1]] - 1)
    return [
        (axis, layout.shape[axis] if n is None or n == -1 else n)  # also of an axis named again
        for axis, n in zip(places, s, strict=True)
    ]


def _listed(name: str, key: str, value: Any) -> list[Any]:
    try:
        return [*value]
    except TypeError:
        raise ArgumentTypeError(
            f"{name}({key}={describe(value)}): must be a sequence of integers"
        ) from None


def _transform(
    name: str, x: Any, pairs: Sequence[tuple[int, int]], norm: Any, workers: Any, out: Any
) -> Any:
    """Transform axes; where one is named again one after another, in NumPy's order."""
    places = [axis for axis, _ in pairs]
    if len({*places}) == len(places):
        return _run(_OPS[name], x, tuple(pairs), norm, workers, out)
    forward, real = _KINDS[_base(name)]
    others = [("fft" if forward else "ifft", pair) for pair in pairs[:-1]]
    last = (_base(name), pairs[-1])
    *first, end = [*others, last] if real == "out" else [last, *reversed(others)]
    for one, pair in first:
        x = _run(_OPS[one], x, (pair,), norm, workers)
    return _run(_OPS[end[0]], x, (end[1],), norm, workers, out)


_ALL_FIRST = "the axes that are not cut are transformed first, then the others."
_SEVERAL: dict[str, tuple[str, str, str, str, str, str]] = {
    "fft": (
        "Return the Fourier transform over several axes.",
        "Real or complex.",
        "of `x` that are transformed",
        "those of `x`",
        "Complex.",
        "(4, 6)",
    ),
    "ifft": (
        "Return the inverse of `fftn`.",
        "Real or complex.",
        "of `x` that are transformed",
        "those of `x`",
        "Complex.",
        "(4, 6)",
    ),
    "rfft": (
        "Return the Fourier transform of real items over several axes.",
        "Real.",
        "of `x` that are transformed",
        "those of `x`",
        "Complex; of the last of `axes` it has the frequencies that are not negative.",
        "(4, 4)",
    ),
    "irfft": (
        "Return the inverse of `rfftn`.",
        "Of the last of `axes` it has the frequencies that are not negative.",
        "of the result",
        "those of `x`, and of the last 2 * (m - 1) where `x` has m",
        "Real.",
        "(4, 10)",
    ),
}


def _several_axes(one: str, two: bool) -> Callable[..., Any]:
    sentence, operand, of, default, result, shape = _SEVERAL[one]
    name = f"{one}{'2' if two else 'n'}"
    real = _KINDS[one][1]

    def several(x: Any, s: Any, axes: Any, norm: Any, out: Any, workers: Any) -> Any:
        check_out(name, check_distributed(name, x), out)
        pairs = _lengths(name, x, s, axes, real_result=real == "out")
        if not pairs:
            if real:
                raise ArgumentError(f"{name} got no axes; items of the last one are real")
            if out is not None:
                check_fits(name, out, x.shape, x.dtype)
            return write_out(name, out, x)
        return _transform(name, x, pairs, norm, workers, out)

    if two:

        def transform(
            x: Any,
            /,
            s: Any = None,
            axes: Sequence[int] | None = (-2, -1),
            norm: str | None = "backward",
            out: Any = None,
            *,
            workers: int | None = None,
        ) -> Any:
            return several(x, s, axes, norm, out, workers)

    else:

        def transform(
            x: Any,
            /,
            s: Any = None,
            axes: Sequence[int] | None = None,
            norm: str | None = "backward",
            out: Any = None,
            *,
            workers: int | None = None,
        ) -> Any:
            return several(x, s, axes, norm, out, workers)

    transform.__name__ = transform.__qualname__ = name
    last = {
        "rfft": "the last of `axes` first (where it is cut that takes an exchange more), then ",
        "irfft": "the last of `axes` at the end; ",
    }
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
