"""Items to add up exactly: those of a block, those that a mask leaves, products of two blocks.

They are float64, or become so without rounding, a tile at a time where they do not lie so in
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from distarray.comm import _backend
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
    adds_last
        Whether the last axis is one more than the block's, and summed over as well.
    negates
        Whether products of second parts, along that axis, are negated.
    """

    shape: Shape
    strides: Sequence[int]
    read: Callable[[Box, Buffer], Buffer]
    block: Buffer | None = None
    factors: tuple[Buffer, Buffer] | None = None
    adds_last: bool = False
    negates: bool = False


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
    """Return complex items as their parts, along one more axis; in host memory that is a view."""
    if not _backend.is_numpy(block):
        return _backend.namespace_of(block).stack((block.real, block.imag), -1)
    return block[..., np.newaxis].view(block.real.dtype)


def _items_on_device(block: Buffer, mask: Any) -> Items:
    library = _backend.namespace_of(block)
    if mask is not True:
        zero = _backend.scalar(block.dtype.type(0), block)
        block = library.where(library.asarray(mask), block, zero)
    if block.dtype.kind == "c":
        block = _parts_of(block)
    return Items(block.shape, block.strides, lambda box, _: block[box], block)


def products_of(left: Buffer, right: Buffer, conjugates: bool = True) -> tuple[Items, ...]:
    """Return the products of blocks, or of the conjugate of the first and the second.

    The second may have axes of length 1 instead. They are rounded to float64. Of complex ones there
    are two, whose sums are the parts of those of the products: products of their parts, along one
    more axis.
    """
    if left.dtype.kind != "c" and right.dtype.kind != "c":
        return (_products(left, _stretch(right, left.shape)),)
    dtype = np.result_type(left.dtype, right.dtype)
    left, right = (x.astype(dtype, copy=False) for x in (left, right))
    left, right = _parts_of(left), _parts_of(_stretch(right, left.shape))
    return (
        _products(left, right, True, negates=not conjugates),
        _products(left, right[..., ::-1], True, negates=conjugates),
    )


def _stretch(x: Buffer, shape: Shape) -> Buffer:
    return x if x.shape == shape else _backend.namespace_of(x).broadcast_to(x, shape)


def squares_of(block: Buffer) -> tuple[Items, ...]:
    """Return the squares of items, or of the parts of complex ones along one more axis."""
    is_complex = block.dtype.kind == "c"
    parts = _parts_of(block) if is_complex else block
    return (_products(parts, parts, is_complex),)


def _products(left: Buffer, right: Buffer, adds_last: bool = False, negates: bool = False) -> Items:
    """Return the products of real items."""
    if not _backend.is_numpy(left):
        found = left.astype(np.float64) * right.astype(np.float64)
        if negates:
            found[..., 1] *= -1
        return items_of(found)._replace(adds_last=adds_last)

    def read(box: Box, out: Buffer) -> Buffer:
        first, second = left[(*box, ...)], right[(*box, ...)]
        if first.dtype != np.float64:  # at once, as NumPy would convert pieces of a few KiB
            np.copyto(out, first)
            first = out
        np.multiply(first, second.astype(np.float64, copy=False), out=out)
        if negates:  # of tiles that have second parts alone, or both
            second_part = 1 - (box[-1].start or 0) if len(box) == left.ndim else 1
            # `negative` of NumPy 2.4 is wrong for items 16 or 64 bytes apart.
            out[..., second_part:] *= -1
        return out

    return Items(left.shape, left.strides, read, None, (left, right), adds_last, negates)


def is_plain(block: Buffer) -> bool:
    """Tell whether the kernel reads the items where they lie."""
    if block.dtype not in (np.float64, np.float32) or not block.flags.aligned:
        return False
    return all(stride % block.itemsize == 0 for stride in block.strides)
