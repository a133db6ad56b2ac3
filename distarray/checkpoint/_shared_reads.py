"""Which arrays the ranks of a mesh read together: those that they would read several times over.

A rank that wants columns of what lies by rows in a file wants something of nearly every block of
it, and so do all others. What each would read by itself is estimated from the chunks of the array
and the layout alone, so that all ranks conclude the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

from distarray.checkpoint._boxes import span, together_from
from distarray.checkpoint._manifest import Entry, block_items
from distarray.layout import Layout, Shard
from distarray.layout import box as boxes
from distarray.typing import Box, Shape

_LEAST_BYTES = 1 << 20
"""For fewer bytes, in sum over the ranks, nobody waits for others."""

_SAMPLES = 16
"""The wants of so many ranks are looked at, and stand for those of all."""


def reading_layout(entry: Entry, layout: Layout, least: int, verify: bool) -> Layout | None:
    """Return in which layout ranks read an array that they want in another one.

    Parameters
    ----------
    layout
        The one that is wanted, without Partial.
    least
        How many bytes are read at least: those of a block with a checksum, or a gap that is not
        worth leaving out.
    verify
        Whether whole blocks are read.

    Returns
    -------
    Layout or None
        Over the same mesh; None where each rank may as well read what it wants.
    """
    held = tuple([chunk.box for chunk in entry.chunks])
    found = _planned(layout.abstract, held, entry.dtype.itemsize, least, verify)
    return None if found is None else found.replace(mesh=layout.mesh)


@lru_cache(maxsize=512)
def _planned(
    layout: Layout, held: tuple[Box, ...], itemsize: int, least: int, verify: bool
) -> Layout | None:
    mesh, shape = layout.mesh, layout.shape
    nbytes = prod(shape) * itemsize
    if mesh.size == 1 or nbytes * (mesh.size - 1) < _LEAST_BYTES:
        return None
    alone = _bytes_read(layout, held, itemsize, least, verify)
    most = alone - max(_LEAST_BYTES, nbytes // 4)
    best = None
    for axis, size in enumerate(shape):
        if size < mesh.size or most < nbytes:
            continue
        candidate = Layout(mesh, [Shard(axis)] * mesh.ndim, shape)
        told = _bytes_read(candidate, held, itemsize, least, verify)
        if told < most:
            best, most = candidate, told
    return best


def _bytes_read(
    layout: Layout, held: Sequence[Box], itemsize: int, least: int, verify: bool
) -> int:
    """Return about how many bytes all ranks read together, each its own box."""
    mesh = layout.mesh
    step = max(1, mesh.size // _SAMPLES)
    sampled = mesh.flat_ranks[::step]
    known: dict[Box, int] = {}
    total = 0
    for rank in sampled:
        box = layout.local_box(mesh.coordinate_of(rank))
        assert box is not None  # a coordinate of the mesh has one
        if box not in known:
            known[box] = sum(
                _bytes_of(boxes.shape(one), boxes.shift(common, one), itemsize, least, verify)
                for one in held
                if (common := boxes.intersect(one, box)) is not None
            )
        total += known[box]
    return total * mesh.size // len(sampled)


def _bytes_of(shape: Shape, box: Box, itemsize: int, least: int, verify: bool) -> int:
    """Return about how many bytes are read for a box of a C-contiguous chunk."""
    per = block_items(least, itemsize)
    axis = together_from(shape, box, per)
    first, last = span(shape[axis:], box[axis:])
    count = boxes.volume(box[:axis])
    if not verify:
        return count * (last - first) * itemsize
    if count == 1:
        at, _ = span(shape, box)
        blocks = -(-(at + last - first) // per) - at // per
        return min(blocks * per, prod(shape)) * itemsize
    return min(count * (last - first + per), prod(shape)) * itemsize
