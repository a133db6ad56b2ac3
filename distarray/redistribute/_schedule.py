"""The schedule of one exchange between any two layouts: what a rank takes from whom, gives to whom.

The parts are intersections of blocks (as in COSTA, Kabic et al., ISC 2021, in any number of array
axes). Between two ranks passes one box at most, so that both sides agree on its contents without
talking. To bound the bytes under way, an exchange runs in rounds: round ``k`` of ``n`` moves the
``k``-th of ``n`` equal parts of every such box, a run of it in C order, that is, a few boxes.

How much a rank receives and sends is counted without listing the transfers: boxes are products of
intervals and destination blocks tile the array, so that sums over transfers are products of sums
along the array axes. One rank of a mesh of 100,000 costs microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import NamedTuple

from distarray.layout import Layout, kept
from distarray.layout import box as boxes
from distarray.redistribute._blocks import (
    block_at,
    block_of,
    count_blocks,
    kept_partial,
    overlaps,
    pieces,
)
from distarray.redistribute._replica_choice import RowChoice, choose_replicas
from distarray.typing import Box

Part = tuple[int, int]
"""Index and count of a part."""

WHOLE: Part = (0, 1)


class Transfer(NamedTuple):
    """A box of values on its way.

    In `receives` the peers are the world ranks where it comes from, whose boxes are reduced in this
    order; in `sends` the one receiver. The rank itself may be among them: that part is a copy. The
    box is relative to the sender's block (the same for all peers) and to the receiver's.
    """

    peers: tuple[int, ...]
    src_box: Box
    dst_box: Box

    @property
    def size(self) -> int:
        """Number of values in the box (from each peer)."""
        return boxes.volume(self.src_box)


@kept(256)
def receives(src: Layout, dst: Layout, rank: int, part: Part = WHOLE) -> tuple[Transfer, ...]:
    """Return what a rank takes when an exchange turns ``src`` into ``dst``.

    Parameters
    ----------
    src, dst
        Layouts of one shape, over any meshes. ``Partial`` mesh axes of ``src`` are reduced,
        except those that are ``Partial`` in ``dst`` as well (on the same mesh).
    rank
        World rank; one outside the destination mesh takes nothing.
    part
        ``(index, count)``: only this one of ``count`` parts of every box.

    Returns
    -------
    tuple of Transfer
        Their destination boxes tile the rank's block (over all parts) exactly once. A peer stands
        in several of them only if a part is not a box; these follow one another as they do in
        that peer's `sends`.
    """
    coordinate = dst.mesh.coordinate_of(rank)
    if coordinate is None:
        return ()
    box = block_at(dst, coordinate)
    origin = tuple([start for start, _ in box])
    choose = choose_replicas(src, dst).peers
    found: list[Transfer] = []
    for block, shared, block_origin in overlaps(src, box):
        peers = choose(coordinate, block)
        found += [
            Transfer(peers, _relative(piece, block_origin), _relative(piece, origin))
            for piece in cut(shared, part)
        ]
    return tuple(found)


@kept(256)
def sends(src: Layout, dst: Layout, rank: int, part: Part = WHOLE) -> tuple[Transfer, ...]:
    """Return what a rank gives when an exchange turns ``src`` into ``dst``.

    The mirror of `receives`, which describes the parameters: for every box that another rank
    takes from this one there is exactly one here, and the other way round.
    """
    coordinate = src.mesh.coordinate_of(rank)
    if coordinate is None:
        return ()
    box = block_at(src, coordinate)
    origin = tuple([start for start, _ in box])
    if boxes.is_empty(box):
        return ()
    way = choose_replicas(src, dst)
    found: list[Transfer] = []
    for there, shared, block_origin in way.consumers(coordinate, box):
        peer = (way.receiver(there),)
        found += [
            Transfer(peer, _relative(piece, origin), _relative(piece, block_origin))
            for piece in cut(shared, part)
        ]
    return tuple(found)


def _relative(box: Box, origin: tuple[int, ...]) -> Box:
    return tuple([(start - at, stop - at) for (start, stop), at in zip(box, origin, strict=True)])


def cut(box: Box, part: Part) -> list[Box]:
    """Return one part of a box, which is not empty, as boxes in C order.

    Parts differ by at most one value in size and follow one another; where there are fewer values
    than parts, some are empty.
    """
    index, count = part
    if count == 1:
        return [box]
    extents = boxes.shape(box)
    size = prod(extents)
    return [
        tuple([(start + at, stop + at) for (start, stop), (at, _) in zip(run, box, strict=True)])
        for run in boxes.runs(extents, index * size // count, (index + 1) * size // count)
    ]


def slabs(transfers: Iterable[Transfer], part: Part) -> tuple[Transfer, ...]:
    """Return one part of every transfer: a slab, one box, where an axis is as long as that takes.

    Unlike the parts of `receives` and `sends` slabs are not of equal size.
    """
    return tuple(
        Transfer(peers, source, target)
        for peers, src_box, dst_box in transfers
        for source, target in zip(slab(src_box, part), slab(dst_box, part), strict=True)
    )


def slab(box: Box, part: Part) -> list[Box]:
    """Return one part of a box: of its first axis, or where that is short of one of its items.

    None is longer than the first, so that where that has left there is room for another.
    """
    index, count = part
    before: Box = ()
    for axis, (start, stop) in enumerate(box):
        n = stop - start
        if n >= count:
            piece = (start - -index * n // count, start - -(index + 1) * n // count)
            return [(*before, piece, *box[axis + 1 :])]
        if not n:
            return []
        item = ((index + 1) * n - 1) // count
        first = item * count // n
        index, count = index - first, (item + 1) * count // n - first
        before = (*before, (start + item, start + item + 1))
    return [] if index else [before]


def count_received(src: Layout, dst: Layout, rank: int) -> int:
    """Return how many values a rank receives from others in one exchange."""
    box = block_of(dst, rank)
    if box is None:
        return 0
    return boxes.volume(box) * choose_replicas(src, dst).contributions - _overlap(src, box, rank)


def count_sent(src: Layout, dst: Layout, rank: int) -> int:
    """Return how many values a rank sends to others in one exchange."""
    box = block_of(src, rank)
    if box is None or boxes.is_empty(box):
        return 0
    way = choose_replicas(src, dst)
    if isinstance(way, RowChoice) and not way.shifted:
        fixed = way.fixed
    elif not way.copied:
        fixed = ()
    else:  # whose turn it is has no closed form
        return sum([t.size for t in sends(src, dst, rank) if t.peers[0] != rank])
    coordinate = src.mesh.coordinate_of(rank) or ()
    at = {i: coordinate[i] for i in fixed}
    total = prod(
        dst.mesh.shape[i] for i in (*dst.replicated_axes, *dst.partial_axes) if i not in at
    )
    for axis, (start, stop) in enumerate(box):
        if at.keys().isdisjoint(dst.sharding_axes(axis)):
            total *= stop - start
        else:
            total *= sum([piece[2] - piece[1] for piece in pieces(dst, axis, start, stop, at)])
    return total - _overlap(dst, box, rank)


def count_senders(src: Layout, dst: Layout, rank: int) -> int:
    """Return from how many other ranks a rank receives something in one exchange."""
    box = block_of(dst, rank)
    if box is None or boxes.is_empty(box):
        return 0
    blocks = 1
    for axis, (start, stop) in enumerate(box):
        if src.sharding_axes(axis):
            blocks *= count_blocks(src, axis, start, stop)
    return blocks * choose_replicas(src, dst).contributions - (1 if _overlap(src, box, rank) else 0)


def count_lacking(src: Layout, dst: Layout, rank: int) -> int:
    """Return how many values a rank must receive at least, however it is done.

    `Plan.bytes_lower_bound` says which.
    """
    box = block_of(dst, rank)
    if box is None:
        return 0
    kept = kept_partial(src, dst)
    if any(i not in kept and dst.mesh.shape[i] > 1 for i in dst.partial_axes):
        return 0
    if any(i not in kept and src.mesh.shape[i] > 1 for i in src.partial_axes):
        return boxes.volume(box)
    return boxes.volume(box) - _overlap(src, box, rank)


def _overlap(layout: Layout, box: Box, rank: int) -> int:
    """Return how many values of a box lie in a rank's block."""
    own = block_of(layout, rank)
    if own is None:
        return 0
    shared = boxes.intersect(own, box)
    return 0 if shared is None else boxes.volume(shared)
