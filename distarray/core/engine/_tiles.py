"""Tiles: boxes of a block that stay in the cache of a core, and what is found of each, merged."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from distarray.typing import Buffer, Shape

State = TypeVar("State")


def tile_shape(
    shape: Shape, strides: Sequence[int], axes: Sequence[int], budget: int, least: int
) -> Shape:
    """Return the shape of tiles: long in memory order, and deep enough along the reduced axes.

    Parameters
    ----------
    shape, strides : sequence of int
        Of the block, which is not empty.
    axes : sequence of int
        Those that are reduced.
    budget : int
        Items of a tile.
    least : int
        Reduced items per kept item at least, where there are so many.
    """
    depth = 1
    for axis in axes:
        depth *= shape[axis]
    kept_budget = budget // min(depth, least)
    steps = [1] * len(shape)
    for axis in sorted(range(len(shape)), key=lambda i: (abs(strides[i]), -i)):
        limit = budget if axis in axes else min(budget, kept_budget)
        steps[axis] = max(1, min(shape[axis], limit))
        budget //= steps[axis]
        if axis not in axes:
            kept_budget //= steps[axis]
    return tuple(steps)


def tiles(shape: Shape, steps: Shape, cut: Sequence[int]) -> Iterator[tuple[slice, ...]]:
    """Yield boxes that cut the axes `cut` in steps and span the others."""
    ranges = [
        range(0, size, steps[axis]) if axis in cut else range(1) for axis, size in enumerate(shape)
    ]
    for corner in itertools.product(*ranges):
        yield tuple(
            slice(start, min(start + steps[axis], shape[axis])) if axis in cut else slice(None)
            for axis, start in enumerate(corner)
        )


def reduce_tiles(
    block: Buffer,
    axes: Sequence[int],
    steps: Shape,
    state: Callable[[Buffer], tuple[Any, ...]],
    merge: Callable[[Any, Any], Any],
    dtypes: Sequence[Any],
) -> list[Any]:
    """Return what a block reduces to, tile by tile, so that its tiles alone need scratch memory.

    Parameters
    ----------
    block : array
    axes : sequence of int
        Those that are reduced.
    steps : tuple of int
        The shape of tiles, as `tile_shape` gives it.
    state : callable
        Takes a tile; the arrays that it returns have the reduced axes with size 1.
    merge : callable
        Takes the states of two parts of a line, those of the first items first.
    dtypes : sequence of dtype or None
        One for each part of a state; None: it is not wanted, and None is returned for it.
    """
    shape = tuple([1 if i in axes else size for i, size in enumerate(block.shape)])
    made = [None if dtype is None else np.empty(shape, dtype) for dtype in dtypes]
    for kept in tiles(block.shape, steps, [i for i in range(block.ndim) if i not in axes]):
        column = block[kept]
        states = (state(column[box]) for box in tiles(column.shape, steps, list(axes)))
        for out, part in zip(made, merge_pairwise(states, merge), strict=True):
            if out is not None:
                out[kept] = part
    return made


def merge_pairwise(states: Iterator[State], merge: Callable[[State, State], State]) -> State:
    """Merge states, of which there are some, in a binary tree; one is held for each of its levels.

    Rounding then grows with the logarithm of their number only.
    """
    waiting: list[tuple[int, State]] = []
    for state in states:
        level = 0
        while waiting and waiting[-1][0] == level:
            state = merge(waiting.pop()[1], state)
            level += 1
        waiting.append((level, state))
    total = waiting.pop()[1]
    while waiting:
        total = merge(waiting.pop()[1], total)
    return total
