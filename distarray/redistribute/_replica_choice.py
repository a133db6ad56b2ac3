"""The choice of replicas: which copy of a block serves which rank, and its exact inverse.

Every value of a destination block comes from one source block; where mesh axes replicate that
block, one of its copies must be chosen, by sender and receiver alike and without talking. A rank
that holds the block uses its own copy. Otherwise:

- On one mesh a copy in the receiver's own mesh row serves (same coordinate on the replicating
  mesh axes), shifted along inner mesh axes where one row would have to serve everybody.
- Between meshes the copies take turns: receivers of one block take consecutive copies.

A ``Partial`` block has one contribution per coordinate on its ``Partial`` mesh axes; all of them
are needed, in the order of the mesh, so that every rank sums in the same order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import prod
from operator import mul

from distarray.errors import LayoutError
from distarray.layout import Layout, Mesh, Replicate, Shard, kept
from distarray.layout import box as boxes
from distarray.redistribute._blocks import (
    Piece,
    block_at,
    kept_partial,
    op_of,
    pieces,
    real_cuts,
    same_mesh,
    shared_cuts,
)
from distarray.typing import Box, Coordinate

Consumer = tuple[Coordinate, Box, tuple[int, ...]]
"""Coordinate in the destination mesh, overlap in global indices, first index of its block."""


class ReplicaChoice(ABC):
    """The choice of copies between two layouts; the module says who serves whom.

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

    def _holders(self, coordinate: Coordinate, box: Box) -> Iterator[Consumer]:
        """Yield the ranks that hold this copy or another contribution to it, and need it."""
        found = list(coordinate)
        for digits in self._reduced_digits():
            for i, digit in zip(self.reduced, digits, strict=True):
                found[i] = digit
            there = self.dst.mesh.coordinate_of(self.sender(found))
            if there is not None:
                block = block_at(self.dst, there)
                shared = boxes.intersect(block, box)
                if shared is not None:
                    yield there, shared, tuple([start for start, _ in block])


def _rank_at(mesh: Mesh) -> Callable[[Sequence[int]], int]:
    """Return `mesh.rank_at` without its checks, which would dominate long lists of peers."""
    strides = [1] * mesh.ndim
    for i in range(mesh.ndim - 1, 0, -1):
        strides[i - 1] = strides[i] * mesh.shape[i]
    ranks = mesh.flat_ranks
    if mesh.ndim == 1:
        return lambda coordinate: ranks[coordinate[0]]
    return lambda coordinate: ranks[sum(map(mul, coordinate, strides))]


class RowChoice(ReplicaChoice):
    """Copies on one mesh: the receiver's own mesh row, shifted where that would crowd.

    Attributes
    ----------
    fixed
        Mesh axes that do not shard and on which sender and receiver have one coordinate.
    shifted
        Mesh axes on which a receiver may take a copy outside its own mesh row.
    """

    def __init__(self, src: Layout, dst: Layout) -> None:
        super().__init__(src, dst, kept_partial(src, dst))
        shape = src.mesh.shape
        still = {
            i
            for axis in range(src.ndim)
            for i in real_cuts(src, axis)[: shared_cuts(src, dst, axis)]
        }
        into = {i: p.axis for i, p in enumerate(dst.placements) if type(p) is Shard}
        moved = [i for i in self.copied if i in into and shape[i] > 1]
        late = {into[i] for i in moved}
        shifting = [
            i for i in self.sharded if i not in still and shape[i] > 1 and into.get(i) not in late
        ]
        shifted = [i for i in moved if shifting and i > shifting[0]]
        self._shifting = tuple(shifting) if shifted else ()
        self.shifted = tuple(shifted)
        self._late = tuple(sorted({into[i] for i in shifted}))
        self.fixed = tuple(i for i in (*self.copied, *self.kept) if i not in shifted)
        self._free = tuple(i for i in range(src.mesh.ndim) if i not in into and i not in self.fixed)
        crossed = {*self.reduced, *shifted, *(i for i in self.sharded if i not in still)}
        self.mesh_axes = tuple(sorted(i for i in crossed if shape[i] > 1))

    def peers(self, coordinate: Coordinate, block: list[int]) -> tuple[int, ...]:
        held = all(block[i] == coordinate[i] for i in self.sharded)
        for i in self.fixed:
            block[i] = coordinate[i]
        if self.shifted:
            shifts = (0,) * len(self.shifted) if held else self._shifts(coordinate)
            for i, shift in zip(self.shifted, shifts, strict=True):
                block[i] = (coordinate[i] + shift) % self.src.mesh.shape[i]
        return self._contributors(block)

    def _shifts(self, coordinate: Sequence[int]) -> tuple[int, ...]:
        """Return how far a receiver reaches along the shifted mesh axes."""
        shape = self.src.mesh.shape
        index = 0
        for i in self._shifting:
            index = index * shape[i] + coordinate[i]
        found = []
        for i in reversed(self.shifted):
            found.append(index % shape[i])
            index //= shape[i]
        found.reverse()
        return tuple(found)

    def consumers(self, coordinate: Coordinate, box: Box) -> Iterator[Consumer]:
        yield from self._holders(coordinate, box)
        shape, dst = self.src.mesh.shape, self.dst
        fixed = {i: coordinate[i] for i in self.fixed}
        early = [axis for axis in range(dst.ndim) if axis not in self._late]
        early_pieces = [pieces(dst, axis, *box[axis], fixed) for axis in early]
        late_pieces: dict[tuple[int, ...], list[list[Piece]]] = {}
        found = [0] * len(shape)
        for i in self.fixed:
            found[i] = coordinate[i]
        chosen: list[Piece] = [((), 0, 0, 0, 0)] * dst.ndim
        for digits in product(*(range(shape[i]) for i in self._free)):
            for i, digit in zip(self._free, digits, strict=True):
                found[i] = digit
            for first in product(*early_pieces):
                self._set(found, chosen, early, first)
                wanted: tuple[int, ...] = ()
                if self.shifted:
                    shifts = self._shifts(found)
                    wanted = tuple(
                        (coordinate[i] - shift) % shape[i]
                        for i, shift in zip(self.shifted, shifts, strict=True)
                    )
                rest = late_pieces.get(wanted)
                if rest is None:
                    fixed.update(zip(self.shifted, wanted, strict=True))
                    rest = [pieces(dst, axis, *box[axis], fixed) for axis in self._late]
                    late_pieces[wanted] = rest
                for second in product(*rest):
                    self._set(found, chosen, self._late, second)
                    if any(found[i] != coordinate[i] for i in self.sharded):
                        yield (
                            tuple(found),
                            tuple([(piece[1], piece[2]) for piece in chosen]),
                            tuple([piece[3] for piece in chosen]),
                        )

    def _set(
        self,
        coordinate: list[int],
        chosen: list[Piece],
        axes: Sequence[int],
        found: Sequence[Piece],
    ) -> None:
        for axis, piece in zip(axes, found, strict=True):
            chosen[axis] = piece
            for i, digit in zip(self.dst.sharding_axes(axis), piece[0], strict=True):
                coordinate[i] = digit


class RoundRobinChoice(ReplicaChoice):
    """Copies between meshes: receivers of one block take consecutive copies in turn."""

    def __init__(self, src: Layout, dst: Layout) -> None:
        super().__init__(src, dst, ())
        self._copies = prod(src.mesh.shape[i] for i in self.copied)
        self._whole = tuple(i for i, p in enumerate(dst.placements) if type(p) is not Shard)
        self._whole_count = prod(dst.mesh.shape[i] for i in self._whole)

    def peers(self, coordinate: Coordinate, block: list[int]) -> tuple[int, ...]:
        shape = self.src.mesh.shape
        own = self.src.mesh.coordinate_of(self.receiver(coordinate))
        if own is not None and all(block[i] == own[i] for i in self.sharded):
            for i in self.copied:
                block[i] = own[i]
        elif self.copied:
            turn = _ravel(coordinate, self._whole, self.dst.mesh.shape)
            for axis in range(self.dst.ndim):
                if self.dst.sharding_axes(axis):
                    turn += self.dst.block_index(axis, coordinate)
            _unravel(turn % self._copies, self.copied, shape, block)
        return self._contributors(block)

    def consumers(self, coordinate: Coordinate, box: Box) -> Iterator[Consumer]:
        yield from self._holders(coordinate, box)
        src, dst, copies = self.src, self.dst, self._copies
        turn = _ravel(coordinate, self.copied, src.mesh.shape)
        per_axis = [pieces(dst, axis, *box[axis]) for axis in range(dst.ndim)]
        # The longest list is entered only at the places whose turn it is, so that the work is
        # about the number of consumers and not that number times the number of copies.
        longest = max(range(dst.ndim), key=lambda axis: len(per_axis[axis]), default=None)
        if longest is None or len(per_axis[longest]) <= self._whole_count:
            for chosen in product(*per_axis):
                first = (turn - sum([piece[4] for piece in chosen])) % copies
                for whole in range(first, self._whole_count, copies):
                    yield from self._consumer(coordinate, whole, chosen)
            return
        by_turn: dict[int, list[Piece]] = {}
        for piece in per_axis[longest]:
            by_turn.setdefault(piece[4] % copies, []).append(piece)
        others = per_axis[:longest] + per_axis[longest + 1 :]
        for whole in range(self._whole_count):
            for rest in product(*others):
                left = (turn - whole - sum([piece[4] for piece in rest])) % copies
                for piece in by_turn.get(left, ()):
                    chosen = (*rest[:longest], piece, *rest[longest:])
                    yield from self._consumer(coordinate, whole, chosen)

    def _consumer(
        self, coordinate: Coordinate, whole: int, chosen: tuple[Piece, ...]
    ) -> Iterator[Consumer]:
        """Yield the consumer with these pieces, unless it holds the block itself."""
        found = [0] * self.dst.mesh.ndim
        _unravel(whole, self._whole, self.dst.mesh.shape, found)
        for axis, piece in enumerate(chosen):
            for i, digit in zip(self.dst.sharding_axes(axis), piece[0], strict=True):
                found[i] = digit
        own = self.src.mesh.coordinate_of(self.receiver(found))
        if own is not None and all(own[i] == coordinate[i] for i in self.sharded):
            return
        yield (
            tuple(found),
            tuple([(piece[1], piece[2]) for piece in chosen]),
            tuple([piece[3] for piece in chosen]),
        )


def _ravel(coordinate: Sequence[int], axes: tuple[int, ...], shape: tuple[int, ...]) -> int:
    index = 0
    for i in axes:
        index = index * shape[i] + coordinate[i]
    return index


def _unravel(index: int, axes: tuple[int, ...], shape: tuple[int, ...], into: list[int]) -> None:
    for i in reversed(axes):
        index, into[i] = divmod(index, shape[i])


@kept(1024)
def choose_replicas(src: Layout, dst: Layout) -> RowChoice | RoundRobinChoice:
    """Return the choice of copies between two layouts."""
    return RowChoice(src, dst) if same_mesh(src, dst) else RoundRobinChoice(src, dst)
