"""The cost of a step: seconds from latency, bytes, copies, reductions and fresh memory.

The numbers are orders of magnitude, good enough to choose between plans, and the same on every
rank: plans must agree. Bytes dominate long blocks, messages short ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2, prod
from typing import NamedTuple

from distarray.layout import AbstractMesh, Layout
from distarray.layout import box as boxes
from distarray.redistribute import _schedule
from distarray.redistribute._blocks import block_at, same_mesh
from distarray.redistribute._replica_choice import choose_replicas
from distarray.redistribute._steps import (
    AllGatherStep,
    AllReduceStep,
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
    combined
        Of the received values, those that are reduced as they come.
    runs
        Stretches of consecutive values that are copied or reduced.
    filled
        Values set to an identity first.
    lent
        Size of the old block, which others read.
    """

    received: float = 0.0
    sent: float = 0.0
    copied: float = 0.0
    reduced: float = 0.0
    written: float = 0.0
    messages: float = 0.0
    remote: float = 0.0
    rounds: int = 1
    combined: float = 0.0
    runs: float = 0.0
    filled: float = 0.0
    lent: float = 0.0


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
"""Pairs of bytes, ascending, and of how fast, a second, a rank does something with so many."""


@dataclass(frozen=True, slots=True)
class MeasuredModel(CostModel):
    """Speeds that have been measured, of a node whose ranks read each other's blocks in place.

    It tells how long a plan takes; ranks, which may have measured differently, do not plan by it.
    The speeds are those of all ranks at once, as they share caches and memory.

    Attributes
    ----------
    step
        Seconds that a step takes before it moves anything.
    run, reduced_run
        How many stretches of consecutive values are begun in a second to be copied, and to be
        reduced, by all their bytes.
    copy, reduce, fill
        How fast blocks are copied, read to be reduced, and filled, by their bytes.
    fresh
        How fast small blocks are lent, which their owner copies for the others in each exchange:
        these read them out of its caches.
    """

    step: float = 0.0
    run: Curve = ()
    reduced_run: Curve = ()
    copy: Curve = ()
    reduce: Curve = ()
    fill: Curve = ()
    fresh: Curve = ()

    def seconds(self, traffic: Traffic, itemsize: int) -> float:
        """Return the estimated seconds of a step."""
        far = traffic.remote
        moved = max(traffic.received, traffic.sent) * far * itemsize
        fetched = (traffic.received - traffic.combined) * (1.0 - far)
        return (
            self.step
            + self.latency(traffic)
            + moved / self.bandwidth_far
            + _along(self.copy, (fetched + traffic.copied) * itemsize)
            + _along(self.reduce, traffic.reduced * itemsize)
            + _along(self.fill, traffic.filled * itemsize)
            + self._of_runs(traffic, itemsize)
            + self._of_fresh(traffic, itemsize)
        )

    def _of_runs(self, traffic: Traffic, itemsize: int) -> float:
        nbytes = (traffic.received - traffic.combined + traffic.copied + traffic.reduced) * itemsize
        curve = self.reduced_run if traffic.reduced else self.run
        return traffic.runs / pace(curve, nbytes) if curve and nbytes else 0.0

    def _of_fresh(self, traffic: Traffic, itemsize: int) -> float:
        if not self.fresh or traffic.lent * itemsize > self.fresh[-1][0]:
            return 0.0
        return _along(self.fresh, traffic.lent * (1.0 - traffic.remote) * itemsize)


def _along(curve: Curve, nbytes: float) -> float:
    """Return the seconds that so many bytes take."""
    return nbytes / pace(curve, nbytes) if curve and nbytes > 0 else 0.0


def pace(curve: Curve, nbytes: float) -> float:
    """Return the pace for so many bytes, interpolated over their logarithm."""
    low, found = curve[0]
    for high, other in curve[1:]:
        if low <= nbytes < high:
            return found + (other - found) * log2(nbytes / low) / log2(high / low)
        if nbytes >= high:
            low, found = high, other
    return found


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
        moved = 0 if step.kind == "relabel" else size
        fills = step.kind == "fill"
        kept = min(moved, _size_at(step.src, step.dst.mesh.rank_at(coordinate)))
        return Traffic(
            copied=kept if fills else moved,
            filled=moved if fills else 0,
            written=moved,
            rounds=0,
            runs=_runs(step, kept if fills else moved),
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
            combined=moved / 2,
            runs=1 + messages,
            lent=size,
        )
    choice = choose_replicas(step.src, step.dst)
    received = sent = _schedule.count_received(step.src, step.dst, rank)
    messages = step.messages(rank)
    if same_mesh(step.src, step.dst):
        remote = model.remote_fraction(mesh, step.mesh_axes)
    else:
        remote = model.share_between(mesh, step.dst.mesh.abstract)
        # Each rank sends its part of what all receive; few ranks that feed many are the slower.
        sent = received * step.dst.mesh.size // mesh.size
    if isinstance(step, (AllGatherStep, ReduceScatterStep)) and messages:
        messages = ceil(log2(messages + 1))
    reduces = choice.contributions > 1
    return Traffic(
        received=received,
        sent=sent,
        copied=0 if reduces else size - received,
        reduced=size * choice.contributions if reduces else 0,
        written=size,
        messages=messages,
        remote=remote,
        combined=received if reduces else 0,
        runs=_runs(step, size) * choice.contributions,
        lent=_size_at(step.src, rank),
    )


def _size_at(layout: Layout, rank: int) -> int:
    """Return the size of a rank's block; outside the mesh, of the first one's."""
    coordinate = layout.mesh.coordinate_of(rank)
    return boxes.volume(block_at(layout, coordinate or (0,) * layout.mesh.ndim))


def _runs(step: Step, size: float) -> float:
    """Return how many stretches the values of a new block come in, that are consecutive in both."""
    length = 1
    for axis in reversed(range(step.src.ndim)):
        before, after = (layout.partition(axis).length(0) for layout in (step.src, step.dst))
        length *= min(before, after)
        if before != after:
            break
    return size / max(length, 1)
