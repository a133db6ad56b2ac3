"""What two layouts have in common, and the frame of every choice of copies between them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import product
from math import prod
from operator import mul

from distarray.errors import LayoutError
from distarray.layout import AbstractMesh, Layout, Mesh, Partial, Replicate, Shard
from distarray.layout._box import intersect
from distarray.redistribute._blocks import block_at, is_explicit
from distarray.typing import Box, Coordinate

Consumer = tuple[Coordinate, Box, tuple[int, ...]]
"""Coordinate in the destination mesh, overlap in global indices, first index of its block."""


def same_mesh(src: Layout, dst: Layout) -> bool:
    """Tell whether two layouts have the same ranks at the same coordinates."""
    return src.mesh is dst.mesh or _same_ranks(src.mesh.abstract, dst.mesh.abstract)


def kept_partial(src: Layout, dst: Layout) -> tuple[int, ...]:
    """Return the mesh axes that are ``Partial`` with one operation before and after."""
    if not src.has_partial or not same_mesh(src, dst):
        return ()
    return tuple(i for i in src.partial_axes if dst.placements[i] is src.placements[i])


@lru_cache(maxsize=1024)
def _same_ranks(a: AbstractMesh, b: AbstractMesh) -> bool:
    return a.shape == b.shape and a.flat_ranks == b.flat_ranks


def shared_cuts(src: Layout, dst: Layout, axis: int) -> int:
    """Return how many leading cuts of one array axis two layouts on one mesh have in common.

    Blocks made by these cuts are the same in both, so that no value crosses between them.
    """
    before, after = real_cuts(src, axis), real_cuts(dst, axis)
    common = 0
    while common < min(len(before), len(after)) and before[common] == after[common]:
        common += 1
    if not common or not (is_explicit(src, axis) or is_explicit(dst, axis)):
        return common
    while common and _offsets(src, axis, common) != _offsets(dst, axis, common):
        common -= 1
    return common


def real_cuts(layout: Layout, axis: int) -> tuple[int, ...]:
    """Return the mesh axes that cut an array axis into more than one block, first cut first."""
    cuts, shape = layout.sharding_axes(axis), layout.mesh.shape
    return tuple([i for i in cuts if shape[i] > 1])


def _offsets(layout: Layout, axis: int, cuts: int) -> tuple[int, ...]:
    """Return the offsets of the blocks that the leading real cuts make."""
    below = prod(layout.mesh.shape[i] for i in real_cuts(layout, axis)[cuts:])
    return layout.partition(axis).offsets[::below]


class Route(ABC):
    """The choice of copies between two layouts: who serves whom is said in `_copies`.

    Attributes
    ----------
    reduced
        Source mesh axes whose ``Partial`` values are reduced on arrival.
    kept
        Mesh axes that are ``Partial`` before and after: their coordinates do not mix.
    op
        Reduction over ``reduced``, or None.
    contributions
        Number of blocks that make one value.
    sharded, copied
        Source mesh axes that shard, and that replicate.
    mesh_axes
        Mesh axes that a transfer may cross; ranks that differ elsewhere never exchange anything.
        Empty between different meshes.
    sender, receiver
        World rank at a coordinate of the source mesh, of the destination mesh.
    """

    __slots__ = (
        "contributions",
        "copied",
        "dst",
        "kept",
        "mesh_axes",
        "op",
        "receiver",
        "reduced",
        "sender",
        "sharded",
        "src",
    )

    def __init__(self, src: Layout, dst: Layout, kept: tuple[int, ...]) -> None:
        self.src = src
        self.dst = dst
        self.kept = kept
        created = [i for i in dst.partial_axes if i not in kept]
        self.reduced = tuple(i for i in src.partial_axes if i not in kept)
        self.contributions = prod(src.mesh.shape[i] for i in self.reduced)
        # One block alone is its reduction by any operation (although "avg" changes its dtype).
        ops = {op_of(src, i) for i in self.reduced if src.mesh.shape[i] > 1}
        ops = ops or {op_of(src, i) for i in self.reduced}
        ops = {"avg"} if len(ops) > 1 and self.contributions == 1 else ops
        if src.shape != dst.shape or created or len(ops) > 1:
            raise LayoutError(
                f"one exchange cannot turn {src} into {dst}: the shapes must be equal, it reduces "
                "with one operation at most and creates no Partial; use distarray.plan, which "
                "takes the steps that are needed"
            )
        self.op = ops.pop() if ops else None
        self.sharded = tuple(i for i, p in enumerate(src.placements) if type(p) is Shard)
        self.copied = tuple(i for i, p in enumerate(src.placements) if type(p) is Replicate)
        self.mesh_axes: tuple[int, ...] = ()
        self.sender = _rank_at(src.mesh)
        self.receiver = _rank_at(dst.mesh)

    @abstractmethod
    def peers(self, coordinate: Coordinate, block: list[int]) -> tuple[int, ...]:
        """Return the ranks from which the one at a destination coordinate takes a block."""

    @abstractmethod
    def consumers(self, coordinate: Coordinate, box: Box) -> Iterator[Consumer]:
        """Yield who takes something from the source block at ``coordinate``, itself included."""

    def _contributors(self, block: list[int]) -> tuple[int, ...]:
        """Return the ranks of all contributions to a block, given one coordinate of it."""
        rank_at = self.sender
        if not self.reduced:
            return (rank_at(block),)
        found = []
        for digits in self._reduced_digits():
            for i, digit in zip(self.reduced, digits, strict=True):
                block[i] = digit
            found.append(rank_at(block))
        return tuple(found)

    def _reduced_digits(self) -> Iterator[tuple[int, ...]]:
        shape = self.src.mesh.shape
        return product(*(range(shape[i]) for i in self.reduced))

    def _overlap(self, coordinate: Coordinate, box: Box) -> Consumer | None:
        """Return what the block at a destination coordinate shares with a box, if anything."""
        block = block_at(self.dst, coordinate)
        shared = intersect(block, box)
        if shared is None:
            return None
        return coordinate, shared, tuple([start for start, _ in block])


def _rank_at(mesh: Mesh) -> Callable[[Sequence[int]], int]:
    """Return `mesh.rank_at` without its checks, which would dominate long lists of peers."""
    strides = [1] * mesh.ndim
    for i in range(mesh.ndim - 1, 0, -1):
        strides[i - 1] = strides[i] * mesh.shape[i]
    ranks = mesh.flat_ranks
    if mesh.ndim == 1:
        return lambda coordinate: ranks[coordinate[0]]
    return lambda coordinate: ranks[sum(map(mul, coordinate, strides))]


def op_of(layout: Layout, mesh_axis: int) -> str:
    """Return the operation of a mesh axis that is ``Partial``."""
    placement = layout.placements[mesh_axis]
    assert type(placement) is Partial
    return placement.op
