"""The steps a plan is made of: what each does, and exactly what it costs one rank.

An executor needs to know three of them: `LocalStep`, `ExchangeStep` and `AllReduceStep`. The
others are exchanges with a name: a regular pattern for which a transport may have a collective.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, TypeAlias

import numpy as np

from distarray.layout import Layout, Partial, Replicate
from distarray.layout._box import shift, volume
from distarray.layout._partition import chunk
from distarray.layout._reduction import REDUCTIONS
from distarray.redistribute import _volumes
from distarray.redistribute._blocks import block_at
from distarray.redistribute._copies import route
from distarray.redistribute._exchange import Transfer, receives, sends
from distarray.redistribute._rounds import WHOLE, Part
from distarray.typing import Box


@dataclass(frozen=True, slots=True)
class LocalStep:
    """A step without communication.

    Attributes
    ----------
    kind
        ``"slice"``: the new block is a part of the old one. ``"fill"``: the new block is the
        identity of `op`, with the old block set into it where `keeps` says so. ``"relabel"``:
        the new block is the old one.
    src, dst
        Layouts before and after.
    dtype
        Of the values.
    """

    kind: str
    src: Layout
    dst: Layout
    dtype: np.dtype[Any]

    name: ClassVar[str] = "local"

    @property
    def op(self) -> str | None:
        """Operation with whose identity a fill surrounds the old block; None of the others."""
        return next(iter(filled(self.src, self.dst)), None) if self.kind == "fill" else None

    @property
    def mesh_axes(self) -> tuple[int, ...]:
        """Mesh axes that take part: none."""
        return ()

    @property
    def result_dtype(self) -> np.dtype[Any]:
        """Of the values after the step."""
        return self.dtype

    def keeps(self, rank: int) -> bool:
        """Tell whether the old block of a rank is part of its new one.

        Of several ranks with one block, one may keep it where keeping it twice would change the
        reduced value (sum, prod, bxor).
        """
        coordinate = self.src.mesh.coordinate_of(rank)
        if coordinate is None:
            return False
        return all(
            coordinate[i] == 0
            for i, op in _created(self.src, self.dst)
            if type(self.src.placements[i]) is Replicate and not spreads(op)
        )

    def source_box(self, rank: int) -> Box | None:
        """Return which part of a rank's old block goes into the new one; None if none does."""
        coordinate = self.src.mesh.coordinate_of(rank)
        if coordinate is None or not self.keeps(rank):
            return None
        old, new = block_at(self.src, coordinate), block_at(self.dst, coordinate)
        return shift(new if self.kind == "slice" else old, old)

    def target_box(self, rank: int) -> Box | None:
        """Return where in a rank's new block that part goes; None if none does."""
        coordinate = self.src.mesh.coordinate_of(rank)
        if coordinate is None or not self.keeps(rank):
            return None
        old, new = block_at(self.src, coordinate), block_at(self.dst, coordinate)
        return shift(new if self.kind == "slice" else old, new)

    def bytes_received(self, rank: int) -> int:  # noqa: ARG002
        """Return 0."""
        return 0

    def bytes_sent(self, rank: int) -> int:  # noqa: ARG002
        """Return 0."""
        return 0

    def messages(self, rank: int) -> int:  # noqa: ARG002
        """Return 0."""
        return 0

    def scratch_bytes(self, rank: int) -> int:  # noqa: ARG002
        """Return 0."""
        return 0


@dataclass(frozen=True, slots=True)
class ExchangeStep:
    """One round in which every rank takes the parts of its new block from those that hold them.

    Between any two layouts of one shape, on one mesh or two. ``Partial`` mesh axes of ``src`` are
    reduced on arrival, except those that are ``Partial`` in ``dst`` too.

    Attributes
    ----------
    src, dst
        Layouts before and after.
    dtype
        Of the values that travel.
    rounds
        Number of rounds in which the packed messages travel; see
        `distarray.redistribute._rounds`.
    """

    src: Layout
    dst: Layout
    dtype: np.dtype[Any]
    rounds: int = 1

    name: ClassVar[str] = "exchange"

    @property
    def reduce(self) -> str | None:
        """Operation that combines what the peers of one transfer send; None if nothing is."""
        return route(self.src, self.dst).op

    @property
    def mesh_axes(self) -> tuple[int, ...]:
        """Mesh axes along which values move; every peer differs from the rank on these alone.

        Empty between different meshes.
        """
        return route(self.src, self.dst).mesh_axes

    @property
    def result_dtype(self) -> np.dtype[Any]:
        """Of the values after the step (float64 where integers are averaged)."""
        return reduced_dtype(self.reduce, self.dtype)

    def receives(self, rank: int, part: Part = WHOLE) -> tuple[Transfer, ...]:
        """Return what a rank takes, from others and from itself, in all rounds or in one."""
        return receives(self.src, self.dst, rank, part)

    def sends(self, rank: int, part: Part = WHOLE) -> tuple[Transfer, ...]:
        """Return what a rank gives, to others and to itself, in all rounds or in one."""
        return sends(self.src, self.dst, rank, part)

    def bytes_received(self, rank: int) -> int:
        """Return the bytes that a rank receives from others, in all rounds together."""
        return _volumes.received(self.src, self.dst, rank) * self.dtype.itemsize

    def bytes_sent(self, rank: int) -> int:
        """Return the bytes that a rank sends to others, in all rounds together."""
        return _volumes.sent(self.src, self.dst, rank) * self.dtype.itemsize

    def messages(self, rank: int) -> int:
        """Return the number of ranks from which a rank receives something in one round."""
        return _volumes.senders(self.src, self.dst, rank)

    def scratch_bytes(self, rank: int) -> int:
        """Return the bytes of the packed messages of the largest round, sent and received."""
        if self.rounds == 1:
            return self.bytes_received(rank) + self.bytes_sent(rank)
        return self._largest_round(rank, self.receives(rank) + self.sends(rank))

    def _largest_round(self, rank: int, transfers: tuple[Transfer, ...]) -> int:
        """Return a bound on the bytes of these transfers in one round: an equal part of each."""
        values = sum(
            [-(-t.size // self.rounds) * (len(t.peers) - (rank in t.peers)) for t in transfers]
        )
        return values * self.dtype.itemsize


class AllGatherStep(ExchangeStep):
    """An exchange in which every rank gets the whole blocks of its group (S to R)."""

    __slots__ = ()
    name: ClassVar[str] = "all-gather"

    def scratch_bytes(self, rank: int) -> int:
        """Return the bytes of the received blocks; in one round the own is sent as it lies."""
        if self.rounds == 1:
            return self.bytes_received(rank)
        return ExchangeStep.scratch_bytes(self, rank)


class AllToAllStep(ExchangeStep):
    """An exchange in which the blocks of a group are cut along another array axis (S to S)."""

    __slots__ = ()
    name: ClassVar[str] = "all-to-all"


class ReduceScatterStep(ExchangeStep):
    """An exchange in which every rank gets its part of the group's reduced block (P to S)."""

    __slots__ = ()
    name: ClassVar[str] = "reduce-scatter"


class DirectAllReduceStep(ExchangeStep):
    """An exchange in which every rank takes and reduces all blocks of its group (P to R).

    More bytes than `AllReduceStep`, and one round instead of two: for short blocks.
    """

    __slots__ = ()
    name: ClassVar[str] = "all-reduce"


@dataclass(frozen=True, slots=True)
class AllReduceStep:
    """Reduce ``Partial`` blocks where they are, the result on every rank of the group.

    Attributes
    ----------
    src, dst
        Layouts before and after; they differ in ``mesh_axes`` only, ``Partial(op)`` before and
        ``Replicate()`` after.
    op
        Reduction.
    mesh_axes
        The mesh axes that are reduced together.
    dtype
        Of the values before.
    rounds
        Number of pieces in which the blocks are reduced one after another.
    """

    src: Layout
    dst: Layout
    op: str
    mesh_axes: tuple[int, ...]
    dtype: np.dtype[Any]
    rounds: int = 1

    name: ClassVar[str] = "all-reduce"

    @property
    def reduce(self) -> str:
        """Reduction, by the name it has in an exchange."""
        return self.op

    @property
    def result_dtype(self) -> np.dtype[Any]:
        """Of the values after the step (float64 where integers are averaged)."""
        return reduced_dtype(self.op, self.dtype)

    def bytes_received(self, rank: int) -> int:
        """Return the bytes of every other rank's part of one piece, and of the reduced rest.

        The optimal algorithm for long blocks (Rabenseifner): the ``n`` ranks of a group reduce an
        ``n``-th each, then gather.
        """
        size, mine, count = self._pieces(rank)
        return (count - 1) * mine * self.dtype.itemsize + (size - mine) * self._reduced_itemsize

    def bytes_sent(self, rank: int) -> int:
        """Return the bytes of the others' pieces, and of the own reduced one to each of them."""
        size, mine, count = self._pieces(rank)
        return (size - mine) * self.dtype.itemsize + (count - 1) * mine * self._reduced_itemsize

    def messages(self, rank: int) -> int:
        """Return the number of blocks and reduced pieces received from other ranks."""
        size, mine, count = self._pieces(rank)
        if not size:
            return 0
        per_piece = -(-size // count)
        pieces = -(-size // per_piece)
        return (count - 1 if mine else 0) + pieces - (1 if mine else 0)

    def scratch_bytes(self, rank: int) -> int:
        """Return the bytes of the received piece of the largest round."""
        _, mine, _ = self._pieces(rank)
        return -(-mine // self.rounds) * self.dtype.itemsize

    @property
    def _reduced_itemsize(self) -> int:
        return self.result_dtype.itemsize

    def _pieces(self, rank: int) -> tuple[int, int, int]:
        """Return the size of a rank's block, of its piece of it, and of its group."""
        mesh = self.src.mesh
        coordinate = mesh.coordinate_of(rank)
        count = prod(mesh.shape[i] for i in self.mesh_axes)
        if coordinate is None:
            return 0, 0, count
        index = 0
        for i in self.mesh_axes:
            index = index * mesh.shape[i] + coordinate[i]
        size = volume(block_at(self.src, coordinate))
        start, stop = chunk(size, (count,)).bounds(index)
        return size, stop - start, count


Step: TypeAlias = LocalStep | ExchangeStep | AllReduceStep


def spreads(op: str) -> bool:
    """Tell whether every rank of a group may keep one value as its ``Partial`` contribution."""
    return REDUCTIONS[op].keeps_copies()


def reduced_dtype(op: str | None, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of values once reduced: averages of integers and booleans are float64."""
    return np.dtype(np.float64) if op == "avg" and dtype.kind in "biu" else dtype


def filled(src: Layout, dst: Layout) -> list[str]:
    """Return the operations whose new ``Partial`` blocks are not just the old blocks."""
    return [
        op
        for i, op in _created(src, dst)
        if dst.mesh.shape[i] > 1 and not (type(src.placements[i]) is Replicate and spreads(op))
    ]


def _created(src: Layout, dst: Layout) -> list[tuple[int, str]]:
    """Return mesh axis and operation of every ``Partial`` that ``src`` lacks."""
    return [
        (i, after.op)
        for i, (before, after) in enumerate(zip(src.placements, dst.placements, strict=True))
        if type(after) is Partial and before is not after
    ]
