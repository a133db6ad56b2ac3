"""Element-by-element reduction of blocks of several ranks into one, in order of ranks.

A fused kernel reads each source once and writes the result once; NumPy works through pieces that
stay in the cache, where kernels do not serve: data types that they do not know, rows of a few
elements, small blocks. Both give the same bits. Measured on one core against NumPy in pieces, of
blocks that do not fit the caches (within them a kernel is as fast, and faster where it averages):

===================================  ==================================
float and integer, 2 sources         kernel 1.5 to 1.9 times as fast
float and integer, 4 or 8 sources    1.4 to 1.9
avg                                  1.7 to 2.2
float16, bfloat16                    7 to 25
complex prod, min, max; long double  NumPy
===================================  ==================================
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from distarray.comm import _backend
from distarray.comm._reductions import (
    COMBINE,
    ON_BOOL,
    UFUNCS,
    divide,
    is_bfloat16,
    narrow_bfloat16,
    unheard,
    widen_bfloat16,
)
from distarray.comm.kernels._choice import run_faster
from distarray.comm.kernels._jit import kernel
from distarray.comm.kernels._loop_nest import STREAMING_BYTES, Axis, joint_axes, offsets
from distarray.comm.kernels._threads import run_on_parts
from distarray.errors import ArgumentError
from distarray.typing import Buffer, Shape

PIECE_BYTES: Final = 256 * 1024
"""NumPy reduces pieces of this size: with their sources they fit a core's second cache."""

_KERNEL_BYTES: Final = 512 * 1024
"""Below this size NumPy reduces.

Measured on Zen 5: a kernel begins in 10 us, and makes up for it from 512 KiB (four sources,
averages) to 1 MiB (two).
"""

_HALF_KERNEL_FACTOR: Final = 16
"""So many times fewer bytes of half precision: NumPy is quicker up to 8 KiB, as measured there, but
less than 32 KiB are not worth loading a kernel."""

_HALF_COST: Final = 16
"""So many times as long as for a plain copy NumPy takes for half precision."""

_BYTES_PER_CALL: Final = 16 * 1024
"""Least work of one call of a kernel, as in `_loop_nest`; not measured."""

_SHORTEST_RUN: Final = 128
"""Bytes of a row, two cache lines: a kernel begins each anew; not measured."""

_PLAIN: Final = frozenset(np.dtype(kind) for kind in ("f8", "f4", "i8", "i4", "c16", "c8"))
"""Data types of NumPy arrays that reduce in themselves."""

_NUMPY_ITEMS: Final = 4096
"""Elements that NumPy reduces in any case, at once: to decide that takes longer than some hundred.
"""

_ON_BYTES: Final = {"any": "bor", "all": "band"}
"""What a reduction of truth values, each a byte 0 or 1, is among bytes."""


def reduce_into(dst: Buffer, sources: Sequence[Buffer], op: str, *, total: int = 0) -> None:
    """Set ``dst`` to ``sources[0] op sources[1] op ...``, evaluated in that order.

    Values combine as in NumPy: NaN propagates through min and max, integers wrap, sum and prod of
    truth values are any and all. float16 and bfloat16 accumulate in float32 and are rounded once.
    `avg` divides the sum by the number of sources.

    ``dst`` is of the sources' shape and dtype, or float64 for `avg` of integers and truth values.
    It may be the first source, and shares no memory with others. ``total`` is as for ``copy_box``.
    An ArgumentError says that there is no source, or no such reduction.
    """
    if op not in UFUNCS or not sources:
        raise ArgumentError(
            f"cannot reduce {len(sources)} blocks by op={op!r}; pass at least one block and one "
            f"of {', '.join(UFUNCS)}"
        )
    dtype = dst.dtype
    few = type(dst) is np.ndarray and dst.size <= _NUMPY_ITEMS and len(sources) > 1
    if few and dtype in _PLAIN and op != "avg":
        # A number or a few: what is decided below would take longer than the sum.
        combine, call = COMBINE[op], unheard.call
        call(combine, sources[0], sources[1], out=dst)
        for source in sources[2:]:
            call(combine, dst, source, out=dst)
        return
    nbytes = dst.nbytes
    half = dtype.itemsize == 2 and dtype.kind in "fV"
    least = _KERNEL_BYTES // _HALF_KERNEL_FACTOR if half else _KERNEL_BYTES
    if nbytes < least or not isinstance(dst, np.ndarray):
        if isinstance(dst, np.ndarray) or not _by_device_kernel([(dst, sources)], op):
            _by_numpy(dst, sources, op)
        return
    streaming = max(total, nbytes) >= STREAMING_BYTES

    def reduce(part: Any) -> None:
        target, parts = dst[part], [source[part] for source in sources]
        if not _by_kernel(target, parts, op, streaming):
            _by_numpy(target, parts, op)

    run_on_parts(reduce, dst.shape, nbytes)


def reduce_boxes(
    boxes: Sequence[tuple[Buffer, Sequence[Buffer]]], op: str, *, total: int = 0
) -> None:
    """Reduce the sources of each pair into its first array, as ``reduce_into`` would, in any order.

    In device memory this is one launch for all pairs with as many sources and words as wide. All
    arrays have one dtype, but for the results of `avg`; no result shares memory with sources.
    """
    if len(boxes) > 1 and not isinstance(boxes[0][0], np.ndarray) and _by_device_kernel(boxes, op):
        return
    for dst, sources in boxes:
        reduce_into(dst, sources, op, total=total)


def _as_bits(dst: Buffer, sources: Sequence[Buffer]) -> tuple[Buffer, list[Buffer]]:
    """Return bfloat16 arrays as uint16."""
    return dst.view("u2"), [source.view("u2") for source in sources]


def _by_kernel(dst: np.ndarray, sources: Sequence[np.ndarray], op: str, streaming: bool) -> bool:
    """Reduce by a fused kernel if there is one for these arrays, and tell whether there was."""
    kind, way, parts = _kernel_of(sources[0].dtype, op)
    by_numpy = partial(_by_numpy, dst, sources, op)
    if kind == "bf16":
        dst, sources = _as_bits(dst, sources)
    dtype = sources[0].dtype
    float64 = op == "avg" and kind[:1] in ("u", "i")
    expected = np.dtype(np.float64) if float64 else dtype
    if not kind or dst.dtype != expected or not dtype.isnative or not dst.flags.aligned:
        return False
    if any(s.dtype != dtype or s.shape != dst.shape for s in sources):
        return False
    addresses, axes = joint_axes(dst, *sources)
    sizes = [dst.itemsize] + [dtype.itemsize] * len(sources)
    if not axes or list(axes[-1][1:]) != sizes:
        return False
    n = axes[-1][0]
    rows: Axis = axes[-2] if len(axes) > 1 else (1, *[0] * len(sizes))
    beyond = axes[:-2]
    if n * dst.itemsize < _SHORTEST_RUN or (
        beyond and n * rows[0] * dst.itemsize < _BYTES_PER_CALL
    ):
        return False

    def by_kernel(run: Any) -> None:
        table = np.array([addresses[1:], rows[2:]], np.int64).T.copy()
        where = table.__array_interface__["data"][0]
        start = table[:, 0].copy()
        for offset in offsets(beyond, len(sizes)):
            table[:, 0] = start + offset[1:]
            run(addresses[0] + offset[0], where, len(sources), rows[0], rows[1], n * parts)

    job = f"reduce {kind} {way} {len(sources)}{' streaming' if streaming else ''}"
    by = kernel("distarray.comm.kernels._reduce", "reduction", kind, way, int(streaming))
    dear = _HALF_COST if kind in ("f2", "bf16") else len(sources)
    run_faster(job, dst.nbytes, by, by_kernel, by_numpy, dear)
    return True


def _by_device_kernel(boxes: Sequence[tuple[Buffer, Sequence[Buffer]]], op: str) -> bool:
    """Reduce arrays in device memory by launches where kernels serve; tell whether they did."""
    from distarray.comm.cuda._boxes import launch_reductions

    kind, way, number = _kernel_of(boxes[0][1][0].dtype, op)
    if kind == "bf16":
        boxes = [_as_bits(*box) for box in boxes]
    return bool(kind) and launch_reductions(boxes, kind, way, number)


def _kernel_of(dtype: np.dtype[Any], op: str) -> tuple[str, str, int]:
    """Return the kernel's kind of item and operation, and how many of its items an element has."""
    kind, size = dtype.kind, dtype.itemsize
    if is_bfloat16(dtype):
        return ("bf16", op, 1) if op in ("sum", "avg", "prod", "min", "max") else ("", "", 1)
    if kind == "b":
        op = ON_BOOL.get(op, op)
        return "u1", _ON_BYTES.get(op, op), 1
    if op in ("any", "all") or kind not in "iufc" or (kind == "f" and size > 8):
        return "", "", 1
    if kind == "c":
        return (f"f{size // 2}", op, 2) if op in ("sum", "avg") and size <= 16 else ("", "", 1)
    if kind == "f" and op in ("band", "bor", "bxor"):
        return "", "", 1
    if kind == "u" and op in ("sum", "prod", "band", "bor", "bxor"):
        kind = "i"  # the same bits
    return f"{kind}{size}", op, 1


def _by_numpy(dst: Buffer, sources: Sequence[Buffer], op: str) -> None:
    bfloat16 = is_bfloat16(dst.dtype)
    if bfloat16:
        dst, sources = _as_bits(dst, sources)
    xp = _backend.namespace_of(dst)
    combine = getattr(xp, UFUNCS[op])
    wide = bfloat16 or dst.dtype.char == "e"
    whole = dst.nbytes <= PIECE_BYTES or xp is not np
    with np.errstate(all="ignore"):
        if whole and not wide:
            _combine(combine, dst, sources, op)
            return
        for where in [(...,)] if whole else pieces(dst.shape, 4 if wide else dst.itemsize):
            target = dst[where]
            parts = [source[where] for source in sources]
            if wide:
                values = xp.empty(target.shape, xp.float32)
                if bfloat16:
                    wide_parts = [widen_bfloat16(part, xp) for part in parts]
                else:
                    wide_parts = [part.astype(xp.float32) for part in parts]
                _combine(combine, values, wide_parts, op)
                target[...] = narrow_bfloat16(values, xp) if bfloat16 else values
            else:
                _combine(combine, target, parts, op)


def _combine(combine: Any, target: Buffer, parts: Sequence[Buffer], op: str) -> None:
    """Reduce arrays into ``target``, whose dtype is the one in which to sum."""
    if len(parts) == 1:
        target[...] = parts[0]
    elif parts[0].dtype == target.dtype:
        combine(parts[0], parts[1], out=target)
    else:
        combine(parts[0], parts[1], out=target, dtype=target.dtype, casting="unsafe")
    for part in parts[2:]:
        combine(target, part, out=target, casting="unsafe")
    if op == "avg":
        divide(target, len(parts))


def pieces(shape: Shape, itemsize: int) -> Iterator[tuple[Any, ...]]:
    """Yield indices that cut an array into boxes of about ``PIECE_BYTES``, in C order."""
    inner = itemsize
    axis = len(shape)
    while axis and inner * shape[axis - 1] <= PIECE_BYTES:
        axis -= 1
        inner *= shape[axis]
    if axis == 0:
        if 0 not in shape:
            yield (...,)
        return
    step = max(1, PIECE_BYTES // max(inner, 1))
    cut = shape[axis - 1]
    for outer in np.ndindex(*shape[: axis - 1]):
        for start in range(0, cut, step):
            yield (*outer, slice(start, min(cut, start + step)))
