"""Convolutions in one axis: a short kernel slides over a long array, whose blocks lie side by side.

Each block fetches from its neighbours the items that the kernel reaches beyond it. Sums of products
are NumPy's own, so that the work is that of the direct formula.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from distarray.core import (
    BaseArray,
    Call,
    Layouts,
    Op,
    Step,
    check_choice,
    check_distributed,
    dtypes_of,
    empty_block,
    normalize_arrays,
    register,
    replicated_layout,
    run,
)
from distarray.errors import ArgumentError, ShapeError
from distarray.layout import Layout
from distarray.ops.elementwise._rounding import conj
from distarray.ops.families._neighbours import Reach, fetch, fetch_halos, own_block, sent
from distarray.ops.families._relabel import carry_cuts
from distarray.typing import Buffer

KERNEL_BYTES = 1 << 20
"""Kernels are copied to every process. The direct formula multiplies every item with all of the
kernel: of a longer one a Fourier transform is far quicker, also where it has to be moved for it."""

_LEAST_SPLIT_ITEMS = 1 << 14
"""Items of a block from which on two more calls of its ends take less time than a copy of it."""

_MODES = ("full", "same", "valid")


def _first_item(mode: str, kernel: int) -> int:
    """Return which item of the full convolution is the first of the result."""
    return {"full": 0, "same": (kernel - 1) // 2, "valid": kernel - 1}[mode]


def _spec(_: Op, call: Call) -> Layouts:
    (layout, kernel), mode = call.layouts, call.static
    size, width = layout.shape[0], kernel.shape[0]
    whole = layout.without_partial()
    length = {"full": size + width - 1, "same": size, "valid": size - width + 1}[mode]
    offsets = None
    if layout.sharding_axes(0):
        inner = layout.partition(0).offsets[1:-1]
        offsets = {0: (0, *(min(i, length) for i in inner), length)}
    output = carry_cuts(whole, (length,), {0: 0}, offsets)
    sends = sent(whole, 0, width - 1) if width > 1 else ()
    return Layouts((whole, replicated_layout(layout.mesh, kernel.shape)), output, sends)


@dtypes_of
def _dtypes(_: Op, call: Call) -> Any:
    slide: Any = np.convolve  # whose stub knows fewer dtypes
    found = slide(*(np.zeros(1, dtype) for dtype in call.dtypes))
    if found.dtype.hasobject:  # of durations and numbers NumPy makes objects
        raise TypeError("they have no dtype in common")
    return found


def _bind(step: Step) -> Callable[[Buffer, Buffer], Buffer]:
    source, kernel = step.sources
    output: Layout = step.output
    width, size = kernel.shape[0], source.shape[0]
    shift = _first_item(step.call.static, width)

    partition = output.partition(0)

    def reach(index: int) -> tuple[int, int]:
        start, stop = partition.bounds(index)
        if start == stop:
            return 0, 0
        low = max(start + shift - width + 1, 0)
        return low, max(min(stop + shift, size), low)

    index = own_block(output, 0)
    start, stop = partition.bounds(index)
    low, _ = reach(index)
    text = f"convolution of {source!r} with {width} items"
    blocks = source.partition(0)
    shortest = min(end - begin for begin, end in pairwise(blocks.offsets))
    if blocks.count > 1 and shortest >= max(width, _LEAST_SPLIT_ITEMS):
        return _bind_long(step, reach, shift, text)
    get = fetch(source, 0, reach, text)
    part = slice(start + shift - low, stop + shift - low)

    def slide(block: Buffer, weights: Buffer) -> Buffer:
        items = get(block)
        if start == stop:
            return empty_block(output, step.result)
        return np.convolve(items, weights)[part]

    return slide


def _bind_long(step: Step, reach: Reach, shift: int, text: str) -> Callable[..., Buffer]:
    """Slide over a long block where it lies, and again over its ends with what lies beyond."""
    source, kernel = step.sources
    output: Layout = step.output
    rest, index = kernel.shape[0] - 1, own_block(output, 0)
    start, stop = output.partition(0).bounds(index)
    partition = source.partition(0)
    begin, end = partition.bounds(index)

    def widen(block: int) -> tuple[int, int]:
        (low, high), (first, last) = reach(block), partition.bounds(block)
        return (min(low, first), max(high, last)) if low < high else (first, last)

    get = fetch_halos(source, widen, text)
    first, last, length = start + shift - begin, stop + shift - begin, end - begin

    def slide(block: Buffer, weights: Buffer) -> Buffer:
        before, behind = get(block)
        if start == stop:
            return empty_block(output, step.result)
        out = np.convolve(block, weights)
        if len(before):
            ends = np.convolve(np.concatenate([before, block[:rest]]), weights)
            out[first:rest] = ends[first + len(before) : rest + len(before)]
        if len(behind):
            ends = np.convolve(np.concatenate([block[length - rest :], behind]), weights)
            out[length:last] = ends[rest : rest + last - length]
        return out[first:last]

    return slide


_OPERATIONS = {
    name: Op(name, np.convolve, _spec, dtypes=_dtypes, bind=_bind)
    for name in ("convolve", "correlate")
}


def _arguments(name: str, x1: Any, x2: Any, mode: Any) -> tuple[Any, Any]:
    """Return operands of one axis, the one of which is distributed, after checking all."""
    arrays = normalize_arrays(name, (x1, x2))
    if name == "convolve":  # which takes numbers as well, as NumPy does
        arrays = [x if x.ndim else x[None] for x in arrays]
    check_distributed(name, next((x for x in arrays if isinstance(x, BaseArray)), arrays[0]))
    check_choice(name, "mode", mode, _MODES)
    for x in arrays:
        if x.ndim != 1 or not x.size:
            raise ShapeError(
                f"{name} got shape {tuple(x.shape)}; it takes arrays of one axis, not empty"
            )
    return arrays[0], arrays[1]


def _slide(name: str, x: Any, kernel: Any, mode: str) -> Any:
    """Return the convolution of a longer array with a shorter one."""
    if kernel.size * kernel.dtype.itemsize > KERNEL_BYTES:
        raise ArgumentError(
            f"{name} of {x.size} with {kernel.size} items: the shorter array has more than "
            f"{KERNEL_BYTES} bytes, and every process needs it; multiply Fourier transforms instead"
        )
    return run(_OPERATIONS[name], (x, kernel), mode)


@register
def convolve(x1: Any, x2: Any, /, mode: str = "full") -> Any:
    """Return the convolution of two arrays of one axis, by the direct formula.

    Parameters
    ----------
    x1, x2 : DistArray or array
        The shorter one may have up to 1 MiB.
    mode : {"full", "same", "valid"}
        All sums, the middle ones, as many as the longer array has items, or those of which no item
        lies outside.

    Returns
    -------
    DistArray
        Cut where the longer array is cut; with "full" the last block is longer.

    Raises
    ------
    ShapeError
        If an operand is empty or has more than one axis.
    ArgumentError
        If there is no such mode, or the shorter array is too long.
    DTypeError
        If the dtypes cannot be multiplied.

    Notes
    -----
    Distribution: every process gets the shorter array, and from the neighbours of its block one
    item less than that has, in one exchange. The longer one stays where it is. Sums of inexact
    numbers may be rounded otherwise than NumPy's, which depend on the place in memory as well.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.convolve(da.arange(4), [1, 10]))
    [ 0  1 12 23 30]
    """
    a, b = _arguments("convolve", x1, x2, mode)
    return _slide("convolve", *((a, b) if a.size >= b.size else (b, a)), mode)


@register
def correlate(x1: Any, x2: Any, /, mode: str = "valid") -> Any:
    """Return the cross-correlation of two arrays of one axis, by the direct formula.

    Parameters
    ----------
    x1, x2 : DistArray or array
        The second is conjugated. The shorter one may have up to 1 MiB.
    mode : {"valid", "same", "full"}
        As for `convolve`.

    Returns
    -------
    DistArray
        As of `convolve`; where `x2` is the longer one, its mirror image.

    Raises
    ------
    ShapeError, ArgumentError, DTypeError
        As for `convolve`.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.correlate(da.arange(5), [1, 2]))
    [ 2  5  8 11]
    """
    a, b = _arguments("correlate", x1, x2, mode)
    if a.size >= b.size:
        return _slide("correlate", a, _mirror(_conjugate(b)), mode)
    return _mirror(_slide("correlate", _conjugate(b), _mirror(a), mode))


def _conjugate(x: Any) -> Any:
    return conj(x) if x.dtype.kind == "c" else x


def _mirror(x: Any) -> Any:
    return x[::-1]
