"""Copy, pack, pad, fill and reduce boxes of local blocks, of any rank, strides and data type."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from distarray.comm import _backend, _memory, _threads
from distarray.comm._strided import copy_by_kernel
from distarray.errors import ArgumentError, ShapeError
from distarray.typing import Box, Buffer, Shape

STREAMING_BYTES: Final = 16 * 1024 * 1024
"""Destinations of at least this size are written past the caches."""

_KERNEL_BYTES: Final = 512 * 1024
"""Below this size NumPy copies everything."""

PIECE_BYTES: Final = 256 * 1024
"""A reduction works on pieces of this size, so that the partial results stay in the cache."""


def copy_box(dst: Buffer, src: Buffer, *, total: int = 0) -> None:
    """Copy ``src`` into ``dst``: the same shape, any strides, no shared memory.

    Parameters
    ----------
    dst, src
        Blocks or views of them.
    total
        Bytes of the block that this copy is a part of, where that is more than ``dst``: the parts
        of a block that does not fit the caches are written past them.
    """
    nbytes = dst.nbytes
    if nbytes < _KERNEL_BYTES or not _plain(dst, src):
        dst[...] = src
        return
    streaming = max(total, nbytes) >= STREAMING_BYTES
    parts = _threads.wanted(nbytes)
    if parts == 1:
        _copy(dst, src, streaming)
        return
    axis = int(np.argmax(dst.shape))
    cuts = [dst.shape[axis] * i // parts for i in range(parts + 1)]
    before = (slice(None),) * axis
    where = [(*before, slice(a, b)) for a, b in itertools.pairwise(cuts)]
    _threads.run(lambda part: _copy(dst[part], src[part], streaming), where)


def _copy(dst: np.ndarray, src: np.ndarray, streaming: bool) -> None:
    if not copy_by_kernel(dst, src, streaming):
        np.copyto(dst, src)


def _plain(dst: Buffer, src: Buffer) -> bool:
    """Tell whether this is a copy of bytes between NumPy arrays."""
    return (
        isinstance(dst, np.ndarray)
        and isinstance(src, np.ndarray)
        and dst.dtype == src.dtype
        and dst.shape == src.shape
        and not dst.dtype.hasobject
    )


def fill(dst: Buffer, value: Any) -> None:
    """Set every element of ``dst`` to a scalar."""
    dst[...] = value


def pack(src: Buffer, boxes: Sequence[Box], out: Buffer) -> Buffer:
    """Copy boxes of ``src`` into the 1-d buffer ``out``, one after another, each in C order.

    Parameters
    ----------
    src
        A local block.
    boxes
        Half-open intervals per axis, in indices of ``src``.
    out
        Contiguous, of ``src``'s dtype, with room for all boxes.

    Returns
    -------
    The used part of ``out``.

    Raises
    ------
    ShapeError
        If ``out`` is too small.
    """
    at = 0
    for box, stop in zip(boxes, _ends(boxes, out), strict=True):
        part = src[tuple(slice(a, b) for a, b in box)]
        copy_box(out[at:stop].reshape(part.shape), part)
        at = stop
    return out[:at]


def unpack(buffer: Buffer, boxes: Sequence[Box], dst: Buffer) -> None:
    """Copy what ``pack`` made of these boxes back into the boxes of ``dst``.

    Raises
    ------
    ShapeError
        If ``buffer`` holds fewer elements than the boxes.
    """
    at = 0
    for box, stop in zip(boxes, _ends(boxes, buffer), strict=True):
        part = dst[tuple(slice(a, b) for a, b in box)]
        copy_box(part, buffer[at:stop].reshape(part.shape))
        at = stop


def _ends(boxes: Sequence[Box], buffer: Buffer) -> list[int]:
    """Return where each packed box ends."""
    ends = []
    at = 0
    for box in boxes:
        volume = 1
        for start, stop in box:
            volume *= stop - start
        at += volume
        ends.append(at)
    if at > buffer.size:
        raise ShapeError(
            f"the boxes hold {at} elements and the buffer {buffer.size}; make it as large"
        )
    return ends


def pad(src: Buffer, shape: Shape, value: Any = 0, offset: Shape | None = None) -> Buffer:
    """Return a block of ``shape`` that holds ``src`` at ``offset`` and ``value`` around it.

    Raises
    ------
    ShapeError
        If ``src`` does not fit there.
    """
    window = _window(src.shape, shape, offset)
    out = _memory.empty(shape, src.dtype, _backend.device_of(src))
    if out.shape != src.shape:
        fill(out, value)
    copy_box(out[window], src)
    return out


def unpad(src: Buffer, shape: Shape, offset: Shape | None = None) -> Buffer:
    """Return a copy of the part of ``src`` of ``shape`` that starts at ``offset``.

    Raises
    ------
    ShapeError
        If there is no such part.
    """
    window = _window(shape, src.shape, offset)
    out = _memory.empty(shape, src.dtype, _backend.device_of(src))
    copy_box(out, src[window])
    return out


def _window(inner: Shape, outer: Shape, offset: Shape | None) -> tuple[slice, ...]:
    if offset is None:
        offset = (0,) * len(outer)
    if not len(inner) == len(outer) == len(offset) or any(
        o < 0 or o + i > n for i, n, o in zip(inner, outer, offset, strict=True)
    ):
        raise ShapeError(
            f"a block of shape {tuple(inner)} at {tuple(offset)} does not fit into one of shape "
            f"{tuple(outer)}; every offset + size must be at most the size outside"
        )
    return tuple(slice(o, o + i) for i, o in zip(inner, offset, strict=True))


_UFUNCS = {
    "sum": "add",
    "avg": "add",
    "prod": "multiply",
    "min": "minimum",
    "max": "maximum",
    "any": "logical_or",
    "all": "logical_and",
    "band": "bitwise_and",
    "bor": "bitwise_or",
    "bxor": "bitwise_xor",
}


def reduce_into(
    dst: Buffer, sources: Sequence[Buffer], op: str, *, bfloat16: bool = False
) -> None:
    """Set ``dst`` to ``sources[0] op sources[1] op ...``, evaluated in that order.

    Values combine as in NumPy: NaN propagates through min and max, integers wrap, sum and prod of
    truth values are any and all. float16 and bfloat16 accumulate in float32 and are rounded once.
    `avg` divides the sum by the number of sources.

    Parameters
    ----------
    dst
        Of the sources' shape and dtype, or float64 for `avg` of integers and truth values. It
        shares no memory with the sources.
    sources
        At least one array.
    op
        A reduction of `Partial`.
    bfloat16
        The arrays are uint16 and hold bfloat16 values.

    Raises
    ------
    ArgumentError
        If ``op`` is not a reduction, or there is no source.
    """
    name = _UFUNCS.get(op)
    if name is None or not sources:
        raise ArgumentError(
            f"cannot reduce {len(sources)} blocks by op={op!r}; pass at least one block and one "
            f"of {', '.join(_UFUNCS)}"
        )
    xp = _backend.namespace_of(dst)
    if dst.dtype.kind == "V" and dst.dtype.name == "bfloat16":
        dst, sources, bfloat16 = dst.view(xp.uint16), [s.view(xp.uint16) for s in sources], True
    wide = bfloat16 or (dst.dtype.kind == "f" and dst.dtype.itemsize == 2)
    for where in pieces(dst.shape, 4 if wide else dst.dtype.itemsize):
        target = dst[where]
        parts = [source[where] for source in sources]
        with np.errstate(all="ignore"):
            if wide:
                wider = xp.empty(target.shape, xp.float32)
                _reduce_piece(xp, wider, [_widen(xp, p, bfloat16) for p in parts], op)
                target[...] = _to_bfloat16(xp, wider) if bfloat16 else wider
            else:
                _reduce_piece(xp, target, parts, op)


def accumulate(dst: Buffer, source: Buffer, op: str, *, bfloat16: bool = False) -> None:
    """Set ``dst`` to ``dst op source``; `avg` has no such step.

    Raises
    ------
    ArgumentError
        If ``op`` is not a reduction of two values.
    """
    if op == "avg":
        raise ArgumentError("an average cannot be accumulated; accumulate by 'sum' and divide")
    for where in pieces(dst.shape, dst.dtype.itemsize):
        reduce_into(dst[where], [dst[where].copy(), source[where]], op, bfloat16=bfloat16)


def _reduce_piece(xp: Any, target: Buffer, parts: Sequence[Buffer], op: str) -> None:
    combine = getattr(xp, _UFUNCS[op])
    target[...] = parts[0]
    for part in parts[1:]:
        combine(target, part, out=target, casting="unsafe")
    if op == "avg":
        xp.true_divide(target, len(parts), out=target, casting="unsafe")


def _widen(xp: Any, values: Buffer, bfloat16: bool) -> Buffer:
    """Return float32 values of float16 values, or of bfloat16 values held as uint16."""
    if bfloat16:
        return (values.astype(xp.uint32) << 16).view(xp.float32)
    return values.astype(xp.float32)


def _to_bfloat16(xp: Any, values: Buffer) -> Buffer:
    """Return float32 values rounded to bfloat16 (to nearest, ties to even) as uint16 bits."""
    bits = values.view(xp.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    # The addition could carry a NaN over into an infinity.
    return xp.where(xp.isnan(values), (bits >> 16) | 0x40, rounded).astype(xp.uint16)


def pieces(shape: Shape, itemsize: int) -> Iterator[tuple[slice, ...]]:
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
