"""The family of reductions whose local results are states, exchanged and merged at once.

Variance, standard deviation and the places of extremes cannot be left as a `Partial`: what ranks
hold is a state of several numbers. Every rank of the mesh axes that cut the reduced axes gets the
states of all of them and merges them in rank order, so that all agree to the last bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np

from distarray.comm import Communicator, _backend, _memory, on_host, record, token, unrecorded
from distarray.core._base import BaseArray
from distarray.core._dispatch import move_all, remember
from distarray.core._float_errors import alike
from distarray.core._reduce import normalised_axes
from distarray.core._resolution import Resolution, resolve
from distarray.core._spec import reduction
from distarray.layout import Layout, Partial, Replicate
from distarray.typing import Box, Buffer, Shape

State = tuple[Buffer, ...]
"""Arrays of the shape of the result's block (reduced axes kept with size 1)."""


class Step:
    """What one rank needs to know of one reduction."""

    __slots__ = (
        "axes",
        "boxes",
        "communicator",
        "filled",
        "moves",
        "name",
        "output",
        "shape",
        "source",
        "token",
    )

    def __init__(
        self, name: str, found: Resolution, source: Layout, axes: tuple[int, ...], dtype: Any
    ) -> None:
        self.name = name
        self.token = token(name, source.fingerprint, axes, dtype.str)
        """What the ranks must agree on."""
        partial = found.output.partial_axes
        mesh: Any = source.mesh
        self.moves = found
        self.source = source
        self.axes = axes
        self.output = found.output.replace(
            placements=[Replicate() if type(p) is Partial else p for p in found.output.placements]
        )
        self.shape: Shape = tuple(
            1 if i in axes else size for i, size in enumerate(source.local_shape())
        )
        self.communicator: Communicator | None = None
        if partial and not found.outside:
            self.communicator = mesh.communicator(partial)
            if self.communicator.size == 1:
                self.communicator = None
        boxes = [] if found.outside else _boxes_along(source, partial)
        self.filled = [i for i, box in enumerate(boxes) if _volume(box)]
        """Positions in the communicator of ranks with items."""
        self.boxes = [boxes[i] for i in self.filled]
        """What they hold."""

    def __str__(self) -> str:
        return f"{self.name} over axes {self.axes} of {self.source}"


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
        block = x._local
        if not step.moves.still:
            (block,) = move_all(self.name, (block,), step.moves)
        mesh = step.output.mesh
        state = alike(mesh, self.name, lambda: self._own(block, step))
        if step.communicator is not None:
            states = _exchanged(step.communicator, state, step)
            if step.filled:
                filled = [states[i] for i in step.filled]
                state = alike(mesh, self.name, lambda: self.merge(filled, step.boxes, step))
        shape = step.output.local_shape()
        device = _backend.device_of(block)
        return tuple(_backend.asarray(part, device).reshape(shape) for part in state), step

    def _own(self, block: Buffer, step: Step) -> State:
        """Return the state of this rank's block in host memory, also of an empty one."""
        if block.size and not step.moves.outside:
            return tuple(on_host(part) for part in self.state(block, step))
        shape = step.output.local_shape() if step.moves.outside else step.shape
        return tuple(np.zeros(shape, dtype) for dtype in self.state_dtypes(block.dtype))

    def _step(self, x: BaseArray, axis: Any, keepdims: bool) -> Step:
        layout = x._layout
        axes = normalised_axes(axis, layout.ndim)
        self.check(layout, x.dtype, axes)
        # "sum" stands for any combination here: it marks the mesh axes that states cross.
        found = resolve(reduction(layout.ndim, axes, keepdims, "sum"), (layout,))
        source = found.moves[0][1] if found.moves[0] else layout
        return Step(self.name, found, source, axes, x.dtype)


def _volume(box: Box) -> int:
    volume = 1
    for start, stop in box:
        volume *= stop - start
    return volume


def _exchanged(comm: Communicator, state: State, step: Step) -> list[State]:
    """Return the states of all ranks of a communicator, once they agree on what these are of."""
    started = perf_counter()
    mine = np.concatenate([np.ascontiguousarray(part).reshape(-1).view(np.uint8) for part in state])
    everyone = _memory.empty((comm.size, mine.size), np.uint8)
    with unrecorded():
        with comm.views(mine, step.token, step) as views:
            far = any(view is None for view in views)
            for row, view in zip(everyone, views, strict=True):
                if view is not None:
                    row[...] = view
        if far:
            comm.all_gather(mine, everyone.reshape(-1))
    record("all_gather", comm.name, everyone.nbytes - mine.nbytes, perf_counter() - started)
    states = []
    for row in everyone:
        parts, start = [], 0
        for part in state:
            stop = start + part.nbytes
            parts.append(row[start:stop].view(part.dtype).reshape(part.shape))
            start = stop
        states.append(tuple(parts))
    return states
