"""The family of reductions whose local results are states, exchanged and merged at once.

Variance, standard deviation and the places of extremes cannot be left as a `Partial`: what ranks
hold is a state of several numbers. Every rank of the mesh axes that cut the reduced axes gets the
states of all of them and merges them in rank order, so that all agree to the last bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from distarray.comm import _memory
from distarray.core._base import BaseArray
from distarray.core._dispatch import Resolution, move_all, remember, resolve
from distarray.core._reduce import normalised_axes
from distarray.core._spec import reduction
from distarray.layout import Layout, Partial, Replicate
from distarray.typing import Box, Buffer, Shape

State = tuple[Buffer, ...]
"""Arrays of the shape of the result's block (reduced axes kept with size 1)."""


class Step:
    """What one rank needs to know of one reduction."""

    __slots__ = ("axes", "boxes", "communicator", "keepdims", "moves", "output", "shape", "source")

    def __init__(
        self, found: Resolution, source: Layout, axes: tuple[int, ...], keepdims: bool
    ) -> None:
        partial = found.output.partial_axes
        mesh = source.mesh
        self.moves = found
        self.source = source
        self.axes = axes
        self.keepdims = keepdims
        self.output = found.output.replace(
            placements=[Replicate() if type(p) is Partial else p for p in found.output.placements]
        )
        self.shape: Shape = tuple(
            1 if i in axes else size for i, size in enumerate(source.local_shape())
        )
        self.communicator = mesh.communicator(partial) if partial and not found.outside else None
        self.boxes: list[Box] = []
        if not found.outside:
            self.boxes = _boxes_along(source, partial)


def _boxes_along(layout: Layout, mesh_axes: Sequence[int]) -> list[Box]:
    """Return the boxes of the ranks that differ from this one along `mesh_axes`, in rank order."""
    mesh = layout.mesh
    here = mesh.coordinate
    assert here is not None, "only processes of the mesh merge states"
    extents = tuple(mesh.shape[axis] for axis in mesh_axes)
    boxes = []
    for index in np.ndindex(extents):
        coordinate = list(here)
        for axis, i in zip(mesh_axes, index, strict=True):
            coordinate[axis] = i
        box = layout.local_box(tuple(coordinate))
        assert box is not None, "the coordinate is in the mesh"
        boxes.append(box)
    return boxes


class StateReduction(ABC):
    """A reduction with a state; subclasses say how it is made, merged and finished."""

    def __init__(self, name: str) -> None:
        self.name = self.__name__ = self.__qualname__ = name
        self.__module__ = "distarray"
        self.steps: dict[Any, Step] = {}

    def __repr__(self) -> str:
        return f"<distarray function {self.name}>"

    @abstractmethod
    def check(self, layout: Layout, dtype: Any, axes: tuple[int, ...]) -> None:
        """Refuse what cannot be reduced, before anything is sent."""

    @abstractmethod
    def state(self, block: Buffer, step: Step) -> State:
        """Return the state of a block that is not empty."""

    @abstractmethod
    def state_dtypes(self, dtype: Any) -> tuple[Any, ...]:
        """Return the dtypes of the state's arrays."""

    @abstractmethod
    def merge(self, states: Sequence[State], boxes: Sequence[Box], step: Step) -> State:
        """Return the state of all blocks; `states` and `boxes` are of those that are not empty."""

    def run(self, x: BaseArray, axis: Any, keepdims: bool) -> tuple[State, Step]:
        """Return the merged state, equal on all ranks that hold the same part of the result."""
        key: Any = (
            x._layout,
            axis if not isinstance(axis, list) else tuple(axis),
            keepdims,
            x.dtype,
        )
        step = self.steps.get(key)
        if step is None:
            step = self._step(x, axis, keepdims)
            remember(self.steps, key, step)
        (block,) = move_all(self.name, (x._local,), step.moves)
        dtypes = self.state_dtypes(block.dtype)
        if step.moves.outside:
            return tuple(np.empty(step.output.local_shape(), d) for d in dtypes), step
        if block.size:
            state = self.state(block, step)
        else:
            state = tuple(np.zeros(step.shape, d) for d in dtypes)
        states = [state] if step.communicator is None else _exchanged(step, state)
        filled = [i for i, box in enumerate(step.boxes) if _volume(box)]
        if filled:
            state = self.merge([states[i] for i in filled], [step.boxes[i] for i in filled], step)
        shape = step.output.local_shape()
        return tuple(np.asarray(part).reshape(shape) for part in state), step

    def _step(self, x: BaseArray, axis: Any, keepdims: bool) -> Step:
        layout = x._layout
        axes = normalised_axes(axis, layout.ndim)
        self.check(layout, x.dtype, axes)
        # "sum" stands for any combination here: it marks the mesh axes that states cross.
        found = resolve(reduction(layout.ndim, axes, keepdims, "sum"), (layout,))
        source = found.moves[0][1] if found.moves[0] else layout
        return Step(found, source, axes, keepdims)


def _volume(box: Box) -> int:
    volume = 1
    for start, stop in box:
        volume *= stop - start
    return volume


def _exchanged(step: Step, state: State) -> list[State]:
    """Return the states of all ranks of the step's communicator."""
    comm = step.communicator
    mine = np.concatenate([np.ascontiguousarray(part).reshape(-1).view(np.uint8) for part in state])
    everyone = _memory.empty((comm.size, mine.size), np.uint8)
    comm.all_gather(mine, everyone.reshape(-1))
    states = []
    for row in everyone:
        parts, start = [], 0
        for part in state:
            stop = start + part.nbytes
            parts.append(row[start:stop].copy().view(part.dtype).reshape(part.shape))
            start = stop
        states.append(tuple(parts))
    return states
