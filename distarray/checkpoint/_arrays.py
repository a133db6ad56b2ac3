"""How checkpoints take distributed arrays, NumPy arrays, layouts and random generators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distarray.array._array import DistArray
from distarray.checkpoint._adapters import Adapter, Made, register, register_maker
from distarray.checkpoint._blocks import Block, Piece
from distarray.checkpoint._dtypes import spelled
from distarray.checkpoint._loading import Loading
from distarray.checkpoint._manifest import Entry
from distarray.checkpoint._saving import Saving
from distarray.checkpoint._values import Node, items_of
from distarray.comm import DeviceMesh, _backend, _memory, default_mesh, default_placements
from distarray.core._base import new_array
from distarray.errors import ArgumentTypeError
from distarray.layout import Layout, Partial, Placement, Replicate, Shard
from distarray.random import Generator
from distarray.redistribute import redistribute_local


class _Distributed(Adapter):
    """Distributed arrays, filled in place."""

    def save(self, value: Any, saving: Saving, name: str) -> Node:
        """Save the blocks; partial results are reduced first."""
        layout, local = value.layout, value.to_local()
        mesh = layout.mesh
        block: Block
        if layout.has_partial and mesh.coordinate is not None:
            whole_layout = layout.replace(
                placements=[Replicate() if type(p) is Partial else p for p in layout.placements]
            )
            piece = Piece(whole_layout.local_box() or (), local)

            def reduce() -> None:
                piece.array = redistribute_local(local, layout, whole_layout)

            saving.later.append(reduce)
            block = Block(spelled(local.dtype), value.shape, [piece], layout)
        else:
            block = block_of(local, layout)
        return saving.array(value, block, name, "distarray")

    def load(self, value: Any, loading: Loading, name: str) -> Made:
        """Fill the array's own memory."""
        layout, local = value.layout, value.to_local()
        if layout.has_partial:
            loading.refuse(
                f"{name} is placed as {layout}: a partial result cannot be filled; pass an array "
                "with Shard and Replicate"
            )
        elif layout.mesh.coordinate is None:
            loading.entry(name)
        elif not _backend.is_writeable(local):
            loading.refuse(f"{name} has read-only blocks; pass a copy, da.asarray(x, copy=True)")
        else:
            loading.fill(name, block_of(local, layout))
        return lambda: value


class _Plain(Adapter):
    """NumPy arrays, whole on every rank, filled in place."""

    def save(self, value: Any, saving: Saving, name: str) -> Node:
        """Save an array that is the same on all ranks."""
        block = Block.of_whole(spelled(value.dtype), items_of(value, name))
        return saving.array(value, block, name, "numpy")

    def load(self, value: Any, loading: Loading, name: str) -> Made:
        """Fill the array's own memory."""
        items = items_of(value, name)
        if not items.flags.writeable:
            loading.entry(name)
            loading.refuse(f"{name} is read-only; pass a copy, or None for a new array")
            return lambda: value
        loading.fill(name, Block.of_whole(spelled(value.dtype), items))
        return lambda: value


class _Wanted(Adapter):
    """A layout, which asks for an array that is placed so."""

    def save(self, value: Any, saving: Saving, name: str) -> Node:
        """Refuse: there is nothing to save."""
        del saving
        raise ArgumentTypeError(
            f"{name} is {value}, which says how to load an array; save the array itself"
        )

    def load(self, value: Layout, loading: Loading, name: str) -> Made:
        """Make an array of the layout, of the dtype that was saved."""
        entry = loading.entry(name)
        if entry is None:
            return lambda: value
        if entry.shape != value.shape:
            loading.refuse(
                f"{name} has shape {entry.shape} in the checkpoint; {value} asks for another"
            )
            return lambda: value
        return distributed(entry, value, loading)


class Placing:
    """Asks, in a template, for an array of any shape, placed so.

    Parameters
    ----------
    mesh
        Where the array shall be. Default: the default mesh.
    placements
        One per mesh axis. Default: the first mesh axis shards axis 0, the others replicate.
    """

    __slots__ = ("mesh", "placements")

    def __init__(
        self, mesh: DeviceMesh | None = None, placements: Sequence[Placement] | None = None
    ) -> None:
        self.mesh = default_mesh() if mesh is None else mesh
        self.placements = placements

    def layout(self, shape: Sequence[int]) -> Layout:
        """Return the layout of an array of this shape."""
        chosen = self.placements
        if chosen is None:
            chosen = default_placements(self.mesh, len(shape))
        return Layout(self.mesh, chosen, shape)

    def fitting(self, shape: Sequence[int]) -> Layout:
        """Return the layout of an array of this shape, replicated where it lacks the axis."""
        chosen = self.placements or default_placements(self.mesh, len(shape))
        ndim = len(shape)
        fits = [
            Replicate() if isinstance(p, Shard) and not -ndim <= p.axis < ndim else p
            for p in chosen
        ]
        return Layout(self.mesh, fits, shape)

    def __repr__(self) -> str:
        return f"Placing({self.mesh}, {self.placements})"


class _Placed(_Wanted):
    """`Placing`, a layout but for the shape."""

    def load(self, value: Any, loading: Loading, name: str) -> Made:
        """Make an array that is placed so, of the shape and dtype that were saved."""
        entry = loading.entry(name)
        if entry is None:
            return lambda: value
        return distributed(entry, value.layout(entry.shape), loading)


class _Random(Adapter):
    """Generators of ``da.random``."""

    def save(self, value: Any, saving: Saving, name: str) -> Node:
        """Save the seed, and how much has been drawn."""
        state = {
            "entropy": list(value._known_entropy()),
            "path": list(value._path),
            "calls": value._calls,
            "children": value._children,
        }
        return {"object": "Generator", "of": saving.node(state, name)}

    def load(self, value: Any, loading: Loading, name: str) -> Made:
        """Let the generator go on where the one that was saved did."""
        made = loading.stored(name)

        def finish() -> Any:
            state = made() if made is not None else None
            if state is not None:
                value._entropy = tuple(state["entropy"])
                value._path = tuple(state["path"])
                value._calls, value._children = state["calls"], state["children"]
                value._key = None
            return value

        return finish


class _NumPyRandom(Adapter):
    """Generators of NumPy, which must be alike on all ranks (or be in `PerRank` by their state)."""

    def save(self, value: Any, saving: Saving, name: str) -> Node:
        """Save the state of the bit generator."""
        return {"object": "Generator", "of": saving.node(value.bit_generator.state, name)}

    def load(self, value: Any, loading: Loading, name: str) -> Made:
        """Set the state of the bit generator."""
        made = loading.stored(name)

        def finish() -> Any:
            if made is not None:
                value.bit_generator.state = made()
            return value

        return finish


def block_of(local: Any, layout: Layout) -> Block:
    """Return what this rank holds of an array of a layout, without Partial."""
    box = layout.local_box()
    pieces = [] if box is None else [Piece(box, local)]
    return Block(spelled(local.dtype), layout.shape, pieces, layout, is_outside=box is None)


def distributed(entry: Entry, layout: Layout, loading: Loading) -> Made:
    """Make an array of a layout and let it be filled."""
    if layout.has_partial:
        loading.refuse(f"{entry.name} cannot be loaded as {layout}; ask for Shard and Replicate")
        return lambda: None
    local = _memory.empty(layout.local_shape(), entry.dtype)
    mesh: Any = layout.mesh
    if mesh.device != "cpu":
        local = _backend.asarray(local, mesh.device)
    if mesh.coordinate is not None:
        loading.fill_from(entry, block_of(local, layout))
    return lambda: new_array(local, layout)


def _whole_array(entry: Entry, loading: Loading) -> Made:
    values = np.empty(entry.shape, entry.dtype)
    loading.fill_from(entry, Block.of_whole(entry.spec, values))
    return lambda: values


def _default_array(entry: Entry, loading: Loading) -> Made:
    return distributed(entry, Placing().layout(entry.shape), loading)


register(np.ndarray, _Plain())
register(DistArray, _Distributed())
register(Layout, _Wanted())
register(Placing, _Placed())
register(Generator, _Random())
register(np.random.Generator, _NumPyRandom())
register_maker("numpy", _whole_array)
register_maker("distarray", _default_array)
