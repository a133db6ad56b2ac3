"""Adapters: how a checkpoint takes objects of some type; a registry that other packages add to.

Here are those for distributed arrays, NumPy arrays, layouts and random generators.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from distarray.array import DistArray
from distarray.checkpoint.storage._blocks import Block, Piece
from distarray.checkpoint.storage._dtypes import spec_of_dtype
from distarray.checkpoint.storage._values import Node, items_of
from distarray.comm import DeviceMesh, _backend, _memory, default_mesh, default_placements
from distarray.core import new_array
from distarray.errors import ArgumentTypeError
from distarray.layout import Layout, Placement, Replicate, Shard
from distarray.random import Generator
from distarray.redistribute import redistribute_local

if TYPE_CHECKING:
    from distarray.checkpoint._load_plan import LoadPlan
    from distarray.checkpoint._save_plan import SavePlan
    from distarray.checkpoint.storage._manifest import Entry


Finish = Callable[[], Any]
"""Called when everything has been read; returns the value that was loaded."""


class Adapter(ABC):
    """How objects of some type are saved and loaded."""

    @abstractmethod
    def save(self, value: Any, plan: SavePlan, name: str) -> Node:
        """Return a value's node in the tree; its arrays are told to ``plan``."""

    @abstractmethod
    def load(self, value: Any, plan: LoadPlan, name: str) -> Finish:
        """Tell ``plan`` what is to be read into a value, and return what then finishes it."""


Maker = Callable[["Entry", "LoadPlan"], Finish]
"""Makes an array, where no template says what it shall be, and tells ``plan`` to fill it."""

_by_type: list[tuple[type, Adapter]] = []
_makers: dict[str, Maker] = {}


def register(kind: type, adapter: Adapter) -> None:
    """Let an adapter take care of objects of a type and of its subclasses; the last one wins."""
    _by_type.insert(0, (kind, adapter))


def register_maker(kind: str, maker: Maker) -> None:
    """Let a function make arrays that were saved as this kind."""
    _makers[kind] = maker


def adapter_of(value: Any) -> Adapter | None:
    """Return the adapter of an object; None for containers and plain values."""
    for kind, adapter in _by_type:
        if isinstance(value, kind):
            return adapter
    has_state = (
        not isinstance(value, (type, Mapping))
        and callable(getattr(value, "state_dict", None))
        and callable(getattr(value, "load_state_dict", None))
    )
    return _by_state if has_state else None


def maker_of(kind: Any, otherwise: str) -> Maker:
    """Return what makes arrays of a kind."""
    return _makers.get(kind) or _makers[otherwise]


class StateAdapter(Adapter):
    """Objects that are saved by a state, and set by it.

    Parameters
    ----------
    get
        Returns the state of an object: plain values, arrays, and whatever else has an adapter.
    put
        Sets an object to a state that was loaded.
    kind
        What manifests call them. Default: the name of the class.
    """

    def __init__(
        self, get: Callable[[Any], Any], put: Callable[[Any, Any], object], kind: str | None = None
    ) -> None:
        self._get, self._put, self._kind = get, put, kind

    def save(self, value: Any, plan: SavePlan, name: str) -> Node:
        """Save the state."""
        kind = self._kind or type(value).__qualname__
        return {"object": kind, "of": plan.node(self._get(value), name)}

    def load(self, value: Any, plan: LoadPlan, name: str) -> Finish:
        """Set the object to the state that was saved."""
        made = plan.saved_value(name)

        def finish() -> Any:
            if made is not None:
                self._put(value, made())
            return value

        return finish


_by_state = StateAdapter(
    lambda value: value.state_dict(), lambda value, state: value.load_state_dict(state)
)


class _Distributed(Adapter):
    """Distributed arrays, filled in place."""

    def save(self, value: Any, plan: SavePlan, name: str) -> Node:
        """Save the blocks; partial results are reduced first."""
        layout, local = value.layout, value.to_local()
        mesh = layout.mesh
        block: Block
        if layout.has_partial and mesh.coordinate is not None:
            whole_layout = layout.without_partial()
            piece = Piece(whole_layout.local_box() or (), local)

            def reduce() -> None:
                piece.array = redistribute_local(local, layout, whole_layout)

            plan.later.append(reduce)
            block = Block(spec_of_dtype(local.dtype), value.shape, [piece], layout)
        else:
            block = block_of(local, layout)
        return plan.array(value, block, name, "distarray")

    def load(self, value: Any, plan: LoadPlan, name: str) -> Finish:
        """Fill the array's own memory."""
        layout, local = value.layout, value.to_local()
        if layout.has_partial:
            plan.refuse(
                f"{name} is placed as {layout}: a partial result cannot be filled; pass an array "
                "with Shard and Replicate"
            )
        elif layout.mesh.coordinate is None:
            plan.entry(name)
        elif not _backend.is_writeable(local):
            plan.refuse(f"{name} has read-only blocks; pass a copy, da.asarray(x, copy=True)")
        else:
            plan.fill(name, block_of(local, layout))
        return lambda: value


class _Plain(Adapter):
    """NumPy arrays, whole on every rank, filled in place."""

    def save(self, value: Any, plan: SavePlan, name: str) -> Node:
        """Save an array that is the same on all ranks."""
        block = Block.of_whole(spec_of_dtype(value.dtype), items_of(value, name))
        return plan.array(value, block, name, "numpy")

    def load(self, value: Any, plan: LoadPlan, name: str) -> Finish:
        """Fill the array's own memory."""
        items = items_of(value, name)
        if not items.flags.writeable:
            plan.entry(name)
            plan.refuse(f"{name} is read-only; pass a copy, or None for a new array")
            return lambda: value
        plan.fill(name, Block.of_whole(spec_of_dtype(value.dtype), items))
        return lambda: value


class _Requested(Adapter):
    """A layout, or a `Placing` for any shape, which asks for an array that is placed so."""

    def save(self, value: Any, plan: SavePlan, name: str) -> Node:
        """Refuse: there is nothing to save."""
        del plan
        raise ArgumentTypeError(
            f"{name} is {value}, which says how to load an array; save the array itself"
        )

    def load(self, value: Layout | Placing, plan: LoadPlan, name: str) -> Finish:
        """Make an array that is placed so, of the dtype that was saved."""
        entry = plan.entry(name)
        if entry is None:
            return lambda: value
        layout = value.layout(entry.shape) if isinstance(value, Placing) else value
        if entry.shape != layout.shape:
            plan.refuse(
                f"{name} has shape {entry.shape} in the checkpoint; {value} asks for another"
            )
            return lambda: value
        return make_distributed(entry, layout, plan)


class Placing:
    """Asks, in a template, for an array of any shape, placed so.

    Parameters
    ----------
    mesh
        Where the array shall be. Default: the default mesh.
    placements
        One per mesh axis. Default: the first mesh axis shards axis 0, the others replicate.

    Examples
    --------
    >>> import distarray as da
    >>> da.checkpoint.save("ckpt", {"x": da.zeros((4, 4))})
    >>> columns = da.checkpoint.Placing(placements=[da.Shard(1)])
    >>> da.checkpoint.load("ckpt", {"x": columns})["x"].placements
    (Shard(axis=1),)
    """

    def __init__(
        self, mesh: DeviceMesh | None = None, placements: Sequence[Placement] | None = None
    ) -> None:
        self.mesh = default_mesh() if mesh is None else mesh
        self.placements = placements

    def layout(self, shape: Sequence[int], fitting: bool = False) -> Layout:
        """Return the layout of an array of this shape.

        Parameters
        ----------
        shape
            The global shape.
        fitting
            Replicate where the array lacks the axis that is to be sharded.
        """
        ndim = len(shape)
        chosen = self.placements
        if chosen is None:
            chosen = default_placements(self.mesh, ndim)
        if fitting:
            lacks = [isinstance(p, Shard) and not -ndim <= p.axis < ndim for p in chosen]
            chosen = [Replicate() if one else p for one, p in zip(lacks, chosen, strict=True)]
        return Layout(self.mesh, chosen, shape)

    def __repr__(self) -> str:
        return f"Placing({self.mesh}, {self.placements})"


def _generator_state(value: Generator) -> dict[str, Any]:
    """Return the seed of a generator of ``da.random``, and how much has been drawn."""
    return {
        "entropy": list(value._known_entropy()),
        "path": list(value._path),
        "calls": value._calls,
        "children": value._children,
    }


def _set_generator(value: Generator, state: dict[str, Any]) -> None:
    value._entropy = tuple(state["entropy"])
    value._path = tuple(state["path"])
    value._calls, value._children = state["calls"], state["children"]
    value._key = None


def _set_numpy_generator(value: np.random.Generator, state: Any) -> None:
    value.bit_generator.state = state


def block_of(local: Any, layout: Layout) -> Block:
    """Return what this rank holds of an array of a layout, without Partial."""
    box = layout.local_box()
    pieces = [] if box is None else [Piece(box, local)]
    return Block(spec_of_dtype(local.dtype), layout.shape, pieces, layout, is_outside=box is None)


def make_distributed(entry: Entry, layout: Layout, plan: LoadPlan) -> Finish:
    """Make an array of a layout and let it be filled."""
    if layout.has_partial:
        plan.refuse(f"{entry.name} cannot be loaded as {layout}; ask for Shard and Replicate")
        return lambda: None
    local = _memory.empty(layout.local_shape(), entry.dtype)
    mesh: Any = layout.mesh
    if mesh.device != "cpu":
        local = _backend.asarray(local, mesh.device)
    if mesh.coordinate is not None:
        plan.fill_entry(entry, block_of(local, layout))
    return lambda: new_array(local, layout)


def _whole_array(entry: Entry, plan: LoadPlan) -> Finish:
    values = np.empty(entry.shape, entry.dtype)
    plan.fill_entry(entry, Block.of_whole(entry.spec, values))
    return lambda: values


register(np.ndarray, _Plain())
register(DistArray, _Distributed())
register(Layout, _Requested())
register(Placing, _Requested())
register(Generator, StateAdapter(_generator_state, _set_generator, "Generator"))
# These must be alike on all ranks; else their states belong in `PerRank`.
register(
    np.random.Generator,
    StateAdapter(attrgetter("bit_generator.state"), _set_numpy_generator, "Generator"),
)
register_maker("numpy", _whole_array)
register_maker(
    "distarray",
    lambda entry, plan: make_distributed(entry, Placing().layout(entry.shape), plan),
)
