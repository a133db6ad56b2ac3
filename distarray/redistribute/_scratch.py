"""How many rounds keep the packed messages of an exchange within a bound, on every rank alike."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import prod

from distarray.errors import ArgumentError, ArgumentTypeError
from distarray.layout import Layout, Shard
from distarray.redistribute._blocks import is_explicit
from distarray.redistribute._copies import RowRoute, route
from distarray.redistribute._steps import AllReduceStep, ExchangeStep, Step


def in_rounds(step: Step, max_bytes: int) -> Step:
    """Return a step with the rounds that it needs to stay within a bound.

    Parameters
    ----------
    step
        Local ones need no scratch, and are returned as they are.
    max_bytes
        Bound on the bytes that one rank sends and receives in one round. With fewer bytes than
        one value per peer the rounds become as short as they can be: one value per peer.
    """
    if not hasattr(max_bytes, "__index__"):
        raise ArgumentTypeError(
            f"max_bytes={max_bytes!r}: must be a number of bytes, or None for one round"
        )
    if max_bytes < 1:
        raise ArgumentError(
            f"max_bytes={max_bytes}: the scratch of a redistribution needs at least one byte; "
            "leave max_bytes out to do it in one round"
        )
    if isinstance(step, AllReduceStep):
        size = largest_block(step.src)
        piece = -(-size // prod(step.src.mesh.shape[i] for i in step.mesh_axes))
        values = max(max_bytes // max(step.dtype.itemsize, 1), 1)
        return replace(step, rounds=max(-(-piece // values), 1))
    if not isinstance(step, ExchangeStep):
        return step
    src, dst, itemsize = step.src, step.dst, max(step.dtype.itemsize, 1)
    way = route(src, dst)
    fixed = way.fixed if isinstance(way, RowRoute) else ()
    readers = prod(
        dst.mesh.shape[i]
        for i, p in enumerate(dst.placements)
        if type(p) is not Shard and i not in fixed
    )
    incoming = largest_block(dst) * way.contributions
    outgoing = largest_block(src) * readers
    values = max_bytes // itemsize
    if incoming + outgoing <= values:
        return step
    # Every message has a value more than its share at most.
    peers = min(incoming, _blocks(src) * way.contributions) + min(outgoing, _blocks(dst) * readers)
    rounds = -(-(incoming + outgoing) // max(values - peers, 1))
    return replace(step, rounds=max(min(rounds, largest_block(dst), largest_block(src)), 1))


def largest_block(layout: Layout) -> int:
    """Return the number of values of a layout's largest block."""
    size = 1
    for axis in range(layout.ndim):
        partition = layout.partition(axis)
        if is_explicit(layout, axis):
            size *= max(stop - start for start, stop in pairwise(partition.offsets))
        else:
            size *= partition.length(0)
    return size


def _blocks(layout: Layout) -> int:
    return prod(layout.partition(axis).count for axis in range(layout.ndim))
