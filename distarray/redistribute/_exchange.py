"""One round between any two layouts: what a rank takes from whom, and gives to whom.

The parts are intersections of blocks (as in COSTA, Kabic et al., ISC 2021, in any number of array
axes). Between two ranks passes one box at most, so that both sides agree on its contents without
talking.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from distarray.layout import Layout
from distarray.layout._box import is_empty, slices, volume
from distarray.redistribute._blocks import block_at, overlaps
from distarray.redistribute._copies import route
from distarray.redistribute._rounds import WHOLE, Part, cut
from distarray.typing import Box


class Transfer(NamedTuple):
    """A box of values on its way.

    Attributes
    ----------
    peers
        World ranks on the other side. In `receives`: where the box comes from; the boxes of
        several peers are reduced in this order. In `sends`: the one receiver. The rank itself may
        be among them: that part is a copy.
    src_box, dst_box
        The box, relative to the sender's block (the same for all peers) and to the receiver's.
    """

    peers: tuple[int, ...]
    src_box: Box
    dst_box: Box

    @property
    def size(self) -> int:
        """Number of values in the box (from each peer)."""
        return volume(self.src_box)

    @property
    def src_slices(self) -> tuple[tuple[slice, ...], ...]:
        """Where the box lies in the sender's block, once per peer."""
        return (slices(self.src_box),) * len(self.peers)

    @property
    def dst_slices(self) -> tuple[slice, ...]:
        """Where the box lies in the receiver's block."""
        return slices(self.dst_box)


@lru_cache(maxsize=256)
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
    choose = route(src, dst).peers
    found: list[Transfer] = []
    for block, shared, block_origin in overlaps(src, box):
        peers = choose(coordinate, block)
        found += [
            Transfer(peers, _less(piece, block_origin), _less(piece, origin))
            for piece in cut(shared, part)
        ]
    return tuple(found)


@lru_cache(maxsize=256)
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
    if is_empty(box):
        return ()
    way = route(src, dst)
    found: list[Transfer] = []
    for there, shared, block_origin in way.consumers(coordinate, box):
        peer = (way.receiver(there),)
        found += [
            Transfer(peer, _less(piece, origin), _less(piece, block_origin))
            for piece in cut(shared, part)
        ]
    return tuple(found)


def _less(box: Box, origin: tuple[int, ...]) -> Box:
    return tuple([(start - at, stop - at) for (start, stop), at in zip(box, origin, strict=True)])
