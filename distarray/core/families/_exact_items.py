"""Items to add up exactly: those of a block, those that a mask leaves, products of two blocks.

They are float64, or become so without rounding, a tile at a time where they do not lie so in
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from distarray.comm import _backend, _memory
from distarray.typing import Buffer, Shape

Box: TypeAlias = tuple[Any, ...]  # of slices


class Items(NamedTuple):
    """Real items to add up.

    Attributes
    ----------
    shape, strides
        Of a block that lies as they do.
    read
        `read(box, out)` gives the items of a box as float64, perhaps in `out`, which has its shape.
    block
        Where they lie, if they lie somewhere.
    factors
        Two blocks of real numbers of which they are the products.
    """

    shape: Shape
    strides: Sequence[int]
    read: Callable[[Box, Buffer], Buffer]
    block: Buffer | None = None
    factors: tuple[Buffer, Buffer] | None = None


def items_of(block: Buffer, mask: Any = True) -> Items:
    """Return the items of a block; where a mask is false they are zero.

    Of complex items the parts are items along one more axis.
    """
    if not _backend.is_numpy(block):
        return _items_on_device(block, mask)
    if block.dtype.kind == "c":
        block = _parts_of(block)
        mask = mask if mask is True else np.asarray(mask)[..., None]
    masks = None if mask is True else np.broadcast_to(mask, block.shape)
    as_they_lie = masks is None and block.dtype == np.float64 and is_plain(block)

    def read(box: Box, out: Buffer) -> Buffer:
        tile = block[(*box, ...)]
        if as_they_lie:
            return tile
        if masks is not None:
            out.fill(0.0)
        np.copyto(out, tile, where=True if masks is None else masks[(*box, ...)])
        return out

    return Items(block.shape, block.strides, read, block if masks is None else None)


def _parts_of(block: Buffer) -> Buffer:
    """Return a view of complex items with an axis of their parts."""
    part = block.real
    return np.lib.stride_tricks.as_strided(
        part, (*part.shape, 2), (*part.strides, part.itemsize), writeable=False
    )


def _items_on_device(block: Buffer, mask: Any) -> Items:
    library = _backend.namespace_of(block)
    if mask is not True:
        zero = _backend.scalar(block.dtype.type(0), block)
        block = library.where(library.asarray(mask), block, zero)
    if block.dtype.kind == "c":
        block = library.stack((block.real, block.imag), -1)
    return Items(block.shape, block.strides, lambda box, _: block[box], block)


def products_of(left: Buffer, right: Buffer, conjugates: bool = True) -> Items:
    """Return the products of blocks of one shape, or of the conjugate of the first and the second.

    They are rounded to float64. Of complex ones the parts are items along one more axis, of which
    each is the rounded sum of two rounded products: NumPy's own are not the same everywhere, as it
    fuses operations where the processor can.
    """
    if not _backend.is_numpy(left):
        return _products_on_device(left, right, conjugates)
    if left.dtype.kind != "c" and right.dtype.kind != "c":

        def read(box: Box, out: Buffer) -> Buffer:
            first, second = left[(*box, ...)], right[(*box, ...)]
            if first.dtype != np.float64:  # at once, as NumPy would convert pieces of a few KiB
                np.copyto(out, first)
                first = out
            return np.multiply(first, second.astype(np.float64, copy=False), out=out)

        return Items(left.shape, left.strides, read, factors=(left, right))

    spare = [np.empty(0)]  # kept, as fresh memory takes longer than what is computed in it

    def read_complex(box: Box, out: Buffer) -> Buffer:
        first, second = left[(*box[:-1], ...)], right[(*box[:-1], ...)]
        if spare[0].size < first.size:
            spare[0] = np.empty(first.size)
        beside = spare[0][: first.size].reshape(first.shape)
        _multiply_parts(first, second, conjugates, out[..., 0], out[..., 1], beside)
        return out

    # Tiles cut the axis of the least stride last: none cuts that of the parts.
    return Items((*left.shape, 2), (*left.strides, 0), read_complex)


def _multiply_parts(
    left: Any, right: Any, conjugates: bool, real: Any, imag: Any, beside: Any
) -> None:
    library = _backend.namespace_of(left)
    a, b, c, d = left.real, left.imag, right.real, right.imag
    for out, first, second, adds in (
        (real, (a, c), (b, d), conjugates),
        (imag, (a, d), (b, c), not conjugates),
    ):
        library.multiply(*first, out=out, dtype=np.float64)
        library.multiply(*second, out=beside, dtype=np.float64)
        (library.add if adds else library.subtract)(out, beside, out=out)


def _products_on_device(left: Buffer, right: Buffer, conjugates: bool) -> Items:
    if left.dtype.kind != "c" and right.dtype.kind != "c":
        return items_of(left.astype(np.float64) * right.astype(np.float64))
    out = _memory.empty((*left.shape, 2), np.float64, _backend.device_of(left))
    left, right = (x.astype(np.complex128) for x in (left, right))
    beside = _memory.empty(left.shape, np.float64, _backend.device_of(left))
    _multiply_parts(left, right, conjugates, out[..., 0], out[..., 1], beside)
    return items_of(out)


def is_plain(block: Buffer) -> bool:
    """Tell whether the kernel reads the items where they lie."""
    if block.dtype not in (np.float64, np.float32) or not block.flags.aligned:
        return False
    return all(stride % block.itemsize == 0 for stride in block.strides)
