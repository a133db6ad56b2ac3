"""The steps a plan is made of: what each does, and exactly what it costs one rank.

An executor needs to know three of them: `LocalStep`, `ExchangeStep` and `AllReduceStep`. The
others are exchanges with a name: a regular pattern for which a transport may have a collective.
`step_between` finds the name.
"""

from __future__ import annotations

from math import prod
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np

from distarray.errors import ArgumentError, ArgumentTypeError
from distarray.layout import REDUCTIONS, Layout, Partial, Replicate, Shard, chunk
from distarray.layout import box as boxes
from distarray.redistribute import _schedule
from distarray.redistribute._blocks import (
    block_at,
    kept_partial,
    op_of,
    real_cuts,
    same_mesh,
    shared_cuts,
)
from distarray.redistribute._replica_choice import RowChoice, choose_replicas
from distarray.redistribute._schedule import WHOLE, Part, Transfer
from distarray.typing import Box


class _Local(NamedTuple):
    kind: str
    src: Layout
    dst: Layout
    dtype: np.dtype[Any]


class LocalStep(_Local):
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

    __slots__ = ()
    name: ClassVar[str] = "local"

    @property
    def op(self) -> str | None:
        """Operation with whose identity a fill surrounds the old block; None of the others."""
        return next(iter(ops_to_fill(self.src, self.dst)), None) if self.kind == "fill" else None

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
            for i, op in _new_partials(self.src, self.dst)
            if type(self.src.placements[i]) is Replicate and not keeps_copies(op)
        )

    def kept_boxes(self, rank: int) -> tuple[Box, Box] | None:
        """Return what is kept of a rank's old block, and where in the new one; None if nothing."""
        coordinate = self.src.mesh.coordinate_of(rank)
        if coordinate is None or not self.keeps(rank):
            return None
        old, new = block_at(self.src, coordinate), block_at(self.dst, coordinate)
        kept = new if self.kind == "slice" else old
        return boxes.shift(kept, old), boxes.shift(kept, new)

    def bytes_received(self, rank: int) -> int:  # noqa: ARG002
        """Return 0: nothing travels, and nothing is packed."""
        return 0

    bytes_sent = messages = scratch_bytes = bytes_received

    def in_rounds(self, max_bytes: int) -> LocalStep:  # noqa: ARG002
        """Return the step: it has no scratch to bound."""
        return self


class _Exchange(NamedTuple):
    src: Layout
    dst: Layout
    dtype: np.dtype[Any]
    rounds: int = 1


class ExchangeStep(_Exchange):
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
        `distarray.redistribute._schedule`.
    """

    __slots__ = ()
    name: ClassVar[str] = "exchange"

    @property
    def reduce(self) -> str | None:
        """Operation that combines what the peers of one transfer send; None if nothing is."""
        return choose_replicas(self.src, self.dst).op

    @property
    def mesh_axes(self) -> tuple[int, ...]:
        """Mesh axes along which values move; every peer differs from the rank on these alone.

        Empty between different meshes.
        """
        return choose_replicas(self.src, self.dst).mesh_axes

    @property
    def result_dtype(self) -> np.dtype[Any]:
        """Of the values after the step (float64 where integers are averaged)."""
        return reduced_dtype(self.reduce, self.dtype)

    def receives(self, rank: int, part: Part = WHOLE) -> tuple[Transfer, ...]:
        """Return what a rank takes, from others and from itself, in all rounds or in one."""
        return _schedule.receives(self.src, self.dst, rank, part)

    def sends(self, rank: int, part: Part = WHOLE) -> tuple[Transfer, ...]:
        """Return what a rank gives, to others and to itself, in all rounds or in one."""
        return _schedule.sends(self.src, self.dst, rank, part)

    def bytes_received(self, rank: int) -> int:
        """Return the bytes that a rank receives from others, in all rounds together."""
        return _schedule.count_received(self.src, self.dst, rank) * self.dtype.itemsize

    def bytes_sent(self, rank: int) -> int:
        """Return the bytes that a rank sends to others, in all rounds together."""
        return _schedule.count_sent(self.src, self.dst, rank) * self.dtype.itemsize

    def messages(self, rank: int) -> int:
        """Return the number of ranks from which a rank receives something in one round."""
        return _schedule.count_senders(self.src, self.dst, rank)

    def scratch_bytes(self, rank: int) -> int:
        """Return the bytes of the packed messages of the largest round, sent and received."""
        if self.rounds == 1:
            return self.bytes_received(rank) + self.bytes_sent(rank)
        # Of each an equal part goes in a round.
        values = sum(
            -(-one.size // self.rounds) * (len(one.peers) - (rank in one.peers))
            for one in self.receives(rank) + self.sends(rank)
        )
        return values * self.dtype.itemsize

    def in_rounds(self, max_bytes: int) -> ExchangeStep:
        """Return the step with the rounds that it needs to stay within a bound.

        The same on every rank. With fewer bytes than one value per peer the rounds become as
        short as they can be.
        """
        src, dst = self.src, self.dst
        choice = choose_replicas(src, dst)
        fixed = choice.fixed if isinstance(choice, RowChoice) else ()
        readers = prod(
            dst.mesh.shape[i]
            for i, p in enumerate(dst.placements)
            if type(p) is not Shard and i not in fixed
        )
        incoming = dst.largest_block * choice.contributions
        outgoing = src.largest_block * readers
        values = max_bytes // max(self.dtype.itemsize, 1)
        if incoming + outgoing <= values:
            return self
        # Every message has a value more than its part at most.
        senders, receivers = src.block_count * choice.contributions, dst.block_count * readers
        peers = min(incoming, senders) + min(outgoing, receivers)
        rounds = -(-(incoming + outgoing) // max(values - peers, 1))
        return self._replace(rounds=max(min(rounds, dst.largest_block, src.largest_block), 1))


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


class _AllReduce(NamedTuple):
    src: Layout
    dst: Layout
    op: str
    mesh_axes: tuple[int, ...]
    dtype: np.dtype[Any]
    rounds: int = 1


class AllReduceStep(_AllReduce):
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

    __slots__ = ()
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
        others = (count - 1) * mine * self.dtype.itemsize
        return others + (size - mine) * self.result_dtype.itemsize

    def bytes_sent(self, rank: int) -> int:
        """Return the bytes of the others' pieces, and of the own reduced one to each of them."""
        size, mine, count = self._pieces(rank)
        others = (count - 1) * mine * self.result_dtype.itemsize
        return (size - mine) * self.dtype.itemsize + others

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

    def in_rounds(self, max_bytes: int) -> AllReduceStep:
        """Return the step with the rounds in which the largest piece stays within a bound."""
        group = prod(self.src.mesh.shape[i] for i in self.mesh_axes)
        piece = -(-self.src.largest_block // group)
        values = max(max_bytes // max(self.dtype.itemsize, 1), 1)
        return self._replace(rounds=max(-(-piece // values), 1))

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
        size = boxes.volume(block_at(self.src, coordinate))
        start, stop = chunk(size, (count,)).bounds(index)
        return size, stop - start, count


Step: TypeAlias = LocalStep | ExchangeStep | AllReduceStep


def keeps_copies(op: str) -> bool:
    """Tell whether every rank of a group may keep one value as its ``Partial`` contribution."""
    return REDUCTIONS[op].keeps_copies()


def reduced_dtype(op: str | None, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of values once reduced: averages of integers and booleans are float64."""
    return np.dtype(np.float64) if op == "avg" and dtype.kind in "biu" else dtype


def reduced_dtype_between(src: Layout, dst: Layout, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of the values once all that ``dst`` does not keep ``Partial`` is reduced."""
    kept = kept_partial(src, dst)
    for i in src.partial_axes:
        if i not in kept:
            dtype = reduced_dtype(op_of(src, i), dtype)
    return dtype


def ops_to_fill(src: Layout, dst: Layout) -> list[str]:
    """Return the operations whose new ``Partial`` blocks are not just the old blocks."""
    return [
        op
        for i, op in _new_partials(src, dst)
        if dst.mesh.shape[i] > 1 and not (type(src.placements[i]) is Replicate and keeps_copies(op))
    ]


def _new_partials(src: Layout, dst: Layout) -> list[tuple[int, str]]:
    """Return mesh axis and operation of every ``Partial`` that ``src`` lacks."""
    return [
        (i, after.op)
        for i, (before, after) in enumerate(zip(src.placements, dst.placements, strict=True))
        if type(after) is Partial and before is not after
    ]


def step_between(src: Layout, dst: Layout, dtype: np.dtype[Any]) -> LocalStep | ExchangeStep:
    """Return the step that turns ``src`` into ``dst``, with the most telling name.

    Both layouts have one shape; ``dst`` has no ``Partial`` that ``src`` lacks.
    """
    if not same_mesh(src, dst):
        return ExchangeStep(src, dst, dtype)
    axes = range(src.ndim)
    shared = [shared_cuts(src, dst, axis) for axis in axes]
    before = [len(real_cuts(src, axis)) for axis in axes]
    after = [len(real_cuts(dst, axis)) for axis in axes]
    reduced = [
        p.op
        for i, (p, q) in enumerate(zip(src.placements, dst.placements, strict=True))
        if type(p) is Partial
        and p is not q
        and (src.mesh.shape[i] > 1 or reduced_dtype(p.op, dtype) != dtype)
    ]
    if not reduced and shared == before:
        return LocalStep("relabel" if shared == after else "slice", src, dst, dtype)
    return _class_of(src, dst, shared == before, shared == after)(src, dst, dtype)


def _class_of(src: Layout, dst: Layout, cuts_more: bool, cuts_less: bool) -> type[ExchangeStep]:
    """Return the class of an exchange on one mesh.

    ``cuts_more`` says that every new block is a part of an old one, ``cuts_less`` the reverse.
    """
    shape = src.mesh.shape
    changes = [
        (p, q)
        for i, (p, q) in enumerate(zip(src.placements, dst.placements, strict=True))
        if p is not q and shape[i] > 1
    ]
    if not changes:
        return ExchangeStep
    if cuts_less and all(type(p) is Shard and type(q) is Replicate for p, q in changes):
        return AllGatherStep
    if cuts_more and all(type(p) is Partial and type(q) is Shard for p, q in changes):
        return ReduceScatterStep
    if cuts_more and cuts_less and all(type(q) is Replicate for _, q in changes):
        return DirectAllReduceStep
    if len(changes) == 1 and all(type(p) is Shard and type(q) is Shard for p, q in changes):
        crossed = choose_replicas(src, dst).mesh_axes
        return AllToAllStep if len(crossed) == 1 else ExchangeStep
    return ExchangeStep


def check_max_bytes(max_bytes: int) -> None:
    """Raise unless a bound on the packed bytes is a positive number."""
    if not hasattr(max_bytes, "__index__"):
        raise ArgumentTypeError(
            f"max_bytes={max_bytes!r}: must be a number of bytes, or None for one round"
        )
    if max_bytes < 1:
        raise ArgumentError(
            f"max_bytes={max_bytes}: the scratch of a redistribution needs at least one byte; "
            "leave max_bytes out to do it in one round"
        )
