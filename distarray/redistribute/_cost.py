"""The cost of a step: seconds from latency, bytes, copies, reductions and fresh memory.

The numbers are orders of magnitude, good enough to choose between plans, and the same on every
rank: plans must agree. Bytes dominate long blocks, messages short ones.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2, prod
from operator import itemgetter
from typing import NamedTuple

from distarray.layout import AbstractMesh
from distarray.layout import box as boxes
from distarray.redistribute import _schedule
from distarray.redistribute._blocks import block_at, same_mesh
from distarray.redistribute._replica_choice import choose_replicas
from distarray.redistribute._small_blocks import are_small
from distarray.redistribute._steps import (
    AllGatherStep,
    AllReduceStep,
    DirectAllReduceStep,
    LocalStep,
    ReduceScatterStep,
    Step,
)
from distarray.typing import Coordinate


class Traffic(NamedTuple):
    """What one rank does in one step, in values.

    Attributes
    ----------
    received
        From other ranks.
    sent
        To other ranks.
    copied
        From the rank's own block, unchanged.
    reduced
        Contributions read in order to reduce them.
    written
        Size of the new block.
    messages
        Number of peers (or of hops, in a collective).
    remote
        Fraction of the received values that comes from other nodes.
    rounds
        How often all ranks wait for one another.
    run
        Length of the stretches of consecutive values that are copied or reduced.
    group
        Ranks from which a block comes, the own included; of a local step, among which it is cut,
        or of which one keeps it.
    kind
        Of the moves that a `MeasuredModel` has measured, the name of those that are like it.
    """

    received: float = 0.0
    sent: float = 0.0
    copied: float = 0.0
    reduced: float = 0.0
    written: float = 0.0
    messages: float = 0.0
    remote: float = 0.0
    rounds: int = 1
    run: float = 0.0
    group: int = 1
    kind: str = ""


@dataclass(frozen=True, slots=True)
class CostModel:
    """Speeds of a machine, as one of its ranks sees them.

    Attributes
    ----------
    round_near, round_far
        Seconds until the ranks of a node (of several nodes) have waited for one another.
    message_near, message_far
        Seconds to begin one transfer within a node, between nodes.
    bandwidth_near, bandwidth_far
        Bytes per second received within a node, between nodes (its part of the network).
    bandwidth_copy, bandwidth_reduce
        Bytes per second copied, read for reduction.
    memory
        Seconds per byte of a new block; what fresh pages cost.
    ranks_per_node
        Consecutive world ranks that share a node; None: all do.
    """

    # Near: about what MPICH, a strided copy, a warm copy and fresh pages cost on two cores of a
    # server. Far: a guess, of a network of 100 Gb/s that eight ranks have together.
    round_near: float = 3e-6
    round_far: float = 10e-6
    message_near: float = 0.5e-6
    message_far: float = 2e-6
    bandwidth_near: float = 5e9
    bandwidth_far: float = 1.5e9
    bandwidth_copy: float = 6.5e9
    bandwidth_reduce: float = 8e9
    memory: float = 1e-10
    ranks_per_node: int | None = None

    def seconds(self, traffic: Traffic, itemsize: int) -> float:
        """Return the estimated seconds of a step."""
        far = traffic.remote
        latency = self.latency(traffic)
        moved = max(traffic.received, traffic.sent) * itemsize
        transport = moved * ((1.0 - far) / self.bandwidth_near + far / self.bandwidth_far)
        local = (
            traffic.copied / self.bandwidth_copy
            + traffic.reduced / self.bandwidth_reduce
            + traffic.written * self.memory
        ) * itemsize
        return latency + transport + local

    def latency(self, traffic: Traffic) -> float:
        """Return the seconds that a step takes however few values it moves."""
        far = traffic.remote
        per_message = self.message_near + far * (self.message_far - self.message_near)
        per_round = self.round_far if far else self.round_near
        return traffic.messages * per_message + traffic.rounds * per_round

    def remote_fraction(self, mesh: AbstractMesh, mesh_axes: Sequence[int]) -> float:
        """Return the fraction of a rank's peers along mesh axes that live on other nodes.

        Looked up for the first rank, in at most ``ranks_per_node`` steps.
        """
        per_node = self.ranks_per_node
        if per_node is None:
            return 0.0
        shape = mesh.shape
        size = prod(shape[i] for i in mesh_axes)
        if size <= 1:
            return 0.0
        coordinate = [0] * len(shape)
        node = mesh.rank_at(tuple(coordinate)) // per_node
        near = 1
        while near < min(size, per_node):
            index = near
            for i in reversed(mesh_axes):
                index, coordinate[i] = divmod(index, shape[i])
            if mesh.rank_at(tuple(coordinate)) // per_node != node:
                break
            near += 1
        return (size - near) / (size - 1)

    def share_between(self, a: AbstractMesh, b: AbstractMesh) -> float:
        """Return the fraction of values between two meshes that crosses nodes (a rough guess)."""
        per_node = self.ranks_per_node
        if per_node is None:
            return 0.0
        first, last = (0,) * a.ndim, tuple(n - 1 for n in b.shape)
        here = {a.rank_at(first) // per_node, a.rank_at(tuple(n - 1 for n in a.shape)) // per_node}
        there = {b.rank_at((0,) * b.ndim) // per_node, b.rank_at(last) // per_node}
        return 0.0 if len(here | there) == 1 else 1.0


DEFAULT_MODEL = CostModel()


Curve = tuple[tuple[float, float], ...]
"""Pairs of bytes, ascending, and of the seconds that a move of so many takes."""

Grid = tuple[tuple[float, Curve], ...]
"""A curve for each length of runs in bytes, ascending; the last one, of whole blocks, for 0."""

Grids = tuple[tuple[float, Grid], ...]
"""A grid for each number of ranks that move something together, ascending."""


@dataclass(frozen=True, slots=True)
class MeasuredModel(CostModel):
    """Times of moves that have been measured, on a node whose ranks read each other's blocks.

    It tells how long a plan takes; ranks, which may have measured differently, do not plan by it.
    The times are those of all ranks at once, as they share caches and memory. Between nodes the
    network comes on top: what is packed and unpacked there costs about what is read in place.

    Attributes
    ----------
    ranks
        How many ranks have measured.
    cut, fill, keep
        Times of local steps, that cut a block, surround it by an identity, or keep it on one rank
        alone, by the bytes of the new block.
    exchange, reduce, all_reduce
        Times of steps that copy from other ranks, by the bytes of the new block; of those that
        reduce, by the bytes that are read; and of those that reduce for all ranks.
    exchange_small, reduce_small
        The same of blocks that travel whole.
    """

    ranks: int = 1
    cut: Grids = ()
    fill: Grids = ()
    keep: Grids = ()
    exchange: Grids = ()
    exchange_small: Grids = ()
    reduce: Grids = ()
    reduce_small: Grids = ()
    all_reduce: Grids = ()

    def seconds(self, traffic: Traffic, itemsize: int) -> float:
        """Return the estimated seconds of a step."""
        moved = max(traffic.received, traffic.sent) * traffic.remote * itemsize
        to_all = traffic.kind == "all_reduce"  # whatever each of them reads
        read = traffic.written if to_all else max(traffic.written, traffic.reduced)
        return (
            self._network_latency(traffic)
            + moved / self.bandwidth_far
            + self._on_a_node(traffic, read * itemsize, traffic.run * itemsize)
        )

    def latency(self, traffic: Traffic) -> float:
        """Return the seconds that a step takes however few values it moves."""
        return self._network_latency(traffic) + self._on_a_node(traffic, 1.0, 1.0)

    def _network_latency(self, traffic: Traffic) -> float:
        far = traffic.remote
        others = max(traffic.messages * (1.0 - far) - self.ranks + 1, 0.0)  # than have measured
        rounds = traffic.rounds * self.round_far if far else 0.0
        return traffic.messages * far * self.message_far + others * self.message_near + rounds

    def _on_a_node(self, traffic: Traffic, nbytes: float, run: float) -> float:
        if not traffic.written:
            return 0.0
        return look_up(getattr(self, traffic.kind), traffic.group, nbytes, run)


def look_up(grids: Grids, group: int, nbytes: float, run: float) -> float:
    """Return the seconds for so many bytes in runs of a length, those of whole blocks if 0.

    They are interpolated over logarithms, and grow with the bytes beyond the last ones measured.
    """
    if not grids or not nbytes:
        return 0.0
    return 2.0 ** _between(
        [(log2(n), _on_grid(grid, n, nbytes, run)) for n, grid in grids], log2(group)
    )


def _on_grid(grid: Grid, group: float, nbytes: float, run: float) -> float:
    """Return the logarithm of the seconds of a number of ranks, each of which gives each a run."""
    *shorter, (_, last) = grid
    known = [(log2(length), curve) for length, curve in shorter if length <= nbytes / group**2]
    whole = _along(last, nbytes)
    if not known or not run:
        return whole
    place, longest = known[-1][0], log2(max(run, 1.0))
    if longest <= place:
        return _between([(place, _along(curve, nbytes)) for place, curve in known], longest)
    # Beyond the longest ones each run adds what such a one adds.
    added = 2.0 ** _along(known[-1][1], nbytes) - 2.0**whole
    return log2(2.0**whole + added * 2.0 ** (place - longest))


def _along(curve: Curve, nbytes: float) -> float:
    """Return the logarithm of the seconds that so many bytes take."""
    beyond = max(log2(nbytes / curve[-1][0]), 0.0)
    return beyond + _between([(log2(n), log2(seconds)) for n, seconds in curve], log2(nbytes))


def _between(points: Sequence[tuple[float, float]], x: float) -> float:
    """Interpolate between points in order; before the first and after the last is as there."""
    at = bisect_right(points, x, key=itemgetter(0))
    if at in (0, len(points)):
        return points[max(at - 1, 0)][1]
    (low, found), (high, other) = points[at - 1 : at + 1]
    return found + (other - found) * (x - low) / (high - low)


def step_seconds(step: Step, model: CostModel) -> float:
    """Return the estimated seconds of a step: those of the slower of two typical ranks."""
    mesh = step.dst.mesh
    typical = {(0,) * mesh.ndim, tuple([n // 2 for n in mesh.shape])}
    return max(seconds_at(step, coordinate, model) for coordinate in typical)


def seconds_at(step: Step, coordinate: Coordinate, model: CostModel) -> float:
    """Return the estimated seconds of the rank at a coordinate of the destination mesh."""
    return model.seconds(_traffic(step, coordinate, model), step.dtype.itemsize)


def step_latency(step: Step, model: CostModel) -> float:
    """Return the part of `step_seconds` that does not depend on the number of bytes."""
    return model.latency(_traffic(step, (0,) * step.dst.mesh.ndim, model))


def _traffic(step: Step, coordinate: Coordinate, model: CostModel) -> Traffic:
    size = boxes.volume(block_at(step.dst, coordinate))
    if isinstance(step, LocalStep):
        fills = step.kind == "fill"
        own = step.src.mesh.coordinate_of(step.dst.mesh.rank_at(coordinate))
        kept = min(size, boxes.volume(block_at(step.src, own or (0,) * step.src.mesh.ndim)))
        around = "fill" if kept < size else "keep"
        return Traffic(
            copied=kept if fills else size,
            written=size,
            rounds=0,
            run=_run(step),
            kind=around if fills else "cut",
            group=prod(
                n
                for n, before, after in zip(
                    step.src.mesh.shape, step.src.placements, step.dst.placements, strict=True
                )
                if before is not after
            ),
        )
    mesh = step.src.mesh.abstract
    rank = step.dst.mesh.rank_at(coordinate)
    if isinstance(step, AllReduceStep):
        group = prod(mesh.shape[i] for i in step.mesh_axes)
        moved = step.bytes_received(rank) // max(step.dtype.itemsize, 1)
        messages = 2 * ceil(log2(group)) if group > 1 else 0
        return Traffic(
            received=moved,
            sent=moved,
            reduced=size,
            copied=size / group,
            written=size,
            messages=messages,
            remote=model.remote_fraction(mesh, step.mesh_axes),
            rounds=2,
            group=group,
            kind="all_reduce",
        )
    choice = choose_replicas(step.src, step.dst)
    received = sent = _schedule.count_received(step.src, step.dst, rank)
    messages = senders = step.messages(rank)
    is_same = same_mesh(step.src, step.dst)
    if is_same:
        remote = model.remote_fraction(mesh, step.mesh_axes)
    else:
        remote = model.share_between(mesh, step.dst.mesh.abstract)
        # Each rank sends its part of what all receive; few ranks that feed many are the slower.
        sent = received * step.dst.mesh.size // mesh.size
    if isinstance(step, (AllGatherStep, ReduceScatterStep)) and messages:
        messages = ceil(log2(messages + 1))
    reduces = choice.contributions > 1
    kind = "reduce" if reduces else "exchange"
    if isinstance(step, DirectAllReduceStep):
        kind = "all_reduce"
    elif are_small([(step.src, step.dtype)]):
        kind += "_small"
    return Traffic(
        received=received,
        sent=sent,
        copied=0 if reduces else size - received,
        reduced=size * choice.contributions if reduces else 0,
        written=size,
        messages=messages,
        remote=remote,
        run=_run(step),
        group=prod(mesh.shape[i] for i in step.mesh_axes) if is_same else senders + 1,
        kind=kind,
    )


def _run(step: Step) -> float:
    """Return the length of the stretches of a new block that are consecutive in both blocks."""
    length = 1
    for axis in reversed(range(step.src.ndim)):
        before, after = (layout.partition(axis).length(0) for layout in (step.src, step.dst))
        length *= min(before, after)
        if before != after:
            break
    return max(length, 1)
