"""Meshes of processes, and the default communicator, mesh and placements."""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import prod
from types import ModuleType
from typing import Any, Never, final

from distarray.comm._agreement import name_ranks
from distarray.comm._communicator import Communicator
from distarray.comm._launcher import launched_local_rank
from distarray.comm.cuda import _device
from distarray.comm.simulated import _ranks
from distarray.errors import ArgumentTypeError, DeviceError, MeshError, PlacementError
from distarray.layout import (
    AbstractMesh,
    Mesh,
    Partial,
    Placement,
    Replicate,
    Shard,
    mesh_description,
)
from distarray.typing import AxisName, Coordinate, Shape

Nested = int | tuple["Nested", ...]


def world() -> Communicator:
    """Return the communicator of all ranks; inside ``simulate``, that of the simulated ranks.

    The first use outside ``simulate`` starts MPI.
    """
    simulated = _ranks.simulated_world()
    return _transport().world() if simulated is None else simulated


@functools.cache
def _transport() -> ModuleType:
    from distarray.comm.mpi import _transport

    return _transport


def as_communicator(comm: Any) -> Communicator:
    """Return the communicator behind what a user passes as ``comm=``.

    That is None (all ranks), one of ours, or an mpi4py intra-communicator, of which only the ranks
    are used, never the communicator itself.
    """
    if comm is None:
        return world()
    if isinstance(comm, Communicator):
        return comm
    return _transport().based_on(comm)


@final
class DeviceMesh(Mesh):
    """An n-dimensional grid of processes with named axes.

    Two equal calls in a process return the same object. Making a mesh sends nothing; every
    process may make it, also one that is not in it.

    Parameters
    ----------
    ranks
        Nested sequences of ranks of ``comm``, one level per mesh axis; any subset of them.
    axis_names
        One name per mesh axis; ``axis0, axis1, ...`` by default.
    comm
        An mpi4py communicator or one of ours; default: all ranks of the program. The library
        never sends through it.
    device
        Where blocks live: "cpu" (default), "cuda" (each rank on the GPU that is its own by its
        number among the ranks of its node) or "cuda:<number>" (every rank on that GPU of its node).

    Attributes
    ----------
    device : str
        As above.

    Raises
    ------
    MeshError
        Ranks that the communicator lacks, that appear twice or do not form a grid; names that do
        not fit.
    DeviceError
        A device of another kind, or one that is not here.

    Examples
    --------
    >>> import distarray as da
    >>> mesh = da.DeviceMesh([[0]], ("rows", "columns"))
    >>> mesh.shape, mesh.axis_names
    ((1, 1), ('rows', 'columns'))
    """

    __slots__ = (
        "__weakref__",
        "_abstract",
        "_base",
        "_communicators",
        "_coordinate",
        "_submeshes",
        "device",
        "parent",
        "parent_axes",
    )
    device: str
    parent: DeviceMesh | None
    parent_axes: tuple[int, ...] | None
    _abstract: AbstractMesh
    _base: Communicator
    _coordinate: Coordinate | None
    _communicators: dict[tuple[int, ...], Communicator]
    _submeshes: dict[Any, DeviceMesh]

    def __new__(
        cls,
        ranks: Any,
        axis_names: Sequence[str] | None = None,
        *,
        comm: Any = None,
        device: str | None = None,
    ) -> DeviceMesh:
        shape, flat = _shape_and_ranks(ranks)
        return _mesh(mesh_description(shape, axis_names, flat), comm, device)

    @property
    def ranks(self) -> Nested:
        """The ranks as nested tuples, one level per mesh axis."""
        return _nest(self.flat_ranks, self.shape)

    @property
    def abstract(self) -> AbstractMesh:
        """The same shape, names and ranks with no processes behind them."""
        return self._abstract

    @property
    def coordinate(self) -> Coordinate | None:
        """The coordinate of this process; None where it is not in the mesh."""
        return self._coordinate

    @property
    def rank(self) -> int:
        """The rank of this process in the mesh's communicator of all ranks."""
        return self._base.ranks[self._base.rank]

    def on(self, device: str) -> DeviceMesh:
        """Return the mesh of the same processes whose blocks live on another device.

        Raises
        ------
        DeviceError
            A device of another kind, or one that is not here.
        """
        device = _checked_device(device)
        if device == self.device:
            return self
        if self.parent is not None:  # so that it stays a part of a mesh there
            assert self.parent_axes is not None
            names = tuple(self.parent.axis_names[axis] for axis in self.parent_axes)
            found = self.parent.on(device)[names]
            if found.flat_ranks == self.flat_ranks:
                return found
        return _intern((self.shape, self.axis_names, self.flat_ranks), self._base, device)

    def regrid(self, shape: Shape, axis_names: Sequence[str]) -> DeviceMesh:
        """Return the mesh of the same processes, in their order, in a grid of another shape."""
        description = mesh_description(shape, axis_names, self.flat_ranks)
        return _intern(description, self._base, self.device)

    # --- sub-meshes ------------------------------------------------------------------------------

    def __getitem__(self, axes: AxisName | tuple[AxisName, ...]) -> DeviceMesh:
        """Return the sub-mesh over some mesh axes that holds this process.

        A process outside this mesh gets the sub-mesh at the start of the other axes, and is
        outside that as well.
        """
        found = self._submeshes.get(axes)
        if found is None:
            kept = self.axis_indices(axes)
            if not kept:
                raise MeshError("mesh[()] names no mesh axis; name at least one")
            part = self.submesh(kept, self._coordinate or (0,) * self.ndim)
            key = (part.shape, part.axis_names, part.flat_ranks)
            found = _intern(key, self._base, self.device)
            if found is not self and found.parent is None:
                found.parent, found.parent_axes = self, kept
            self._submeshes[axes] = found
        return found

    # Without this, Python would iterate by calling __getitem__ with 0, 1, ...
    __iter__ = None

    def axes_of(self, other: DeviceMesh) -> tuple[int, ...] | None:
        """Return which of this mesh's axes ``other`` consists of, in its order.

        None where ``other`` is not the sub-mesh of this one that holds this process, however it
        was made.
        """
        if other is self:
            return tuple(range(self.ndim))
        names = other.axis_names
        if other._base is not self._base or not set(names) <= set(self.axis_names):
            return None
        return self.axis_indices(names) if self[names] is other else None

    # --- communicators ---------------------------------------------------------------------------

    def communicator(self, axes: AxisName | Sequence[AxisName] | None = None) -> Communicator:
        """Return the communicator of the processes along some mesh axes from this one.

        Its ranks are in row-major order of the axes as given. The same object every time; MPI
        makes its part when the first message is sent.

        Parameters
        ----------
        axes
            Names or indices; default: all, the whole mesh.

        Raises
        ------
        MeshError
            This process is not in the mesh.
        """
        kept = tuple(range(self.ndim)) if axes is None else self.axis_indices(axes)
        found = self._communicators.get(kept)
        if found is None:
            if self._coordinate is None:
                raise MeshError(
                    f"rank {self.rank} is not in {self}, so that it has no communicator there; "
                    "check mesh.coordinate for None"
                )
            members = self._ranks_along(kept, self._coordinate)
            whole = len(kept) == self.ndim > 1
            name = "mesh" if whole else ",".join(self.axis_names[axis] for axis in kept)
            communicator = self._base.subgroup(members, name)
            assert communicator is not None  # this process is among the members
            found = self._communicators[kept] = communicator
        return found

    def comm(self, axes: AxisName | Sequence[AxisName] | None = None) -> Any:
        """Return an mpi4py communicator over some mesh axes, for the user's own messages.

        The library sends nothing through it. The first call is collective over its processes.
        """
        return self.communicator(axes).export()

    def communicator_with(self, other: DeviceMesh) -> Communicator | None:
        """Return the communicator of the processes of both meshes; None where this is in neither.

        Raises
        ------
        MeshError
            The meshes are made over different communicators.
        """
        if other._base is not self._base:
            raise MeshError(
                f"{self} and {other} are made over different communicators (comm=), between which "
                "nothing can move; make both over the one that has all processes"
            )
        members = dict.fromkeys((*self.flat_ranks, *other.flat_ranks))
        return self._base.subgroup(tuple(sorted(members)), "mesh")

    # --- identity --------------------------------------------------------------------------------

    def __setattr__(self, name: str, value: object) -> None:
        if hasattr(self, name) and not name.startswith("parent"):
            raise AttributeError(f"DeviceMesh is immutable: cannot set {name!r}")
        object.__setattr__(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._base is not as_communicator(None):
            raise MeshError(
                f"{self} is made over a communicator of its own, which cannot be pickled; pickle "
                "mesh.abstract instead"
            )
        return _mesh, ((self.shape, self.axis_names, self.flat_ranks), None, self.device)

    def __repr__(self) -> str:
        return f"DeviceMesh({self.ranks}, {self.axis_names}, device={self.device!r})"

    def __str__(self) -> str:
        return f"[{self._list_axes()}]"


def name_meshes(meshes: Iterable[Any]) -> str:
    """Return the different ones among meshes, for a message, by what tells them apart."""
    found = dict.fromkeys(meshes)
    several = len({mesh.device for mesh in found}) > 1
    shown = set()
    for mesh in found:
        numbers = dict(zip(mesh._base.ranks, mesh._base.world_ranks, strict=True))
        ranks = name_ranks([numbers[rank] for rank in mesh.flat_ranks])
        shown.add(f"{mesh} of {ranks} on {mesh.device}" if several else f"{mesh} of {ranks}")
    over = "" if len(shown) == len(found) else ", over different communicators"
    return f"{' and '.join(sorted(shown))}{over}"


def init_device_mesh(
    shape: Sequence[int],
    axis_names: Sequence[str] | None = None,
    *,
    comm: Any = None,
    device: str | None = None,
    **unknown: Never,
) -> DeviceMesh:
    """Return the mesh of the first ranks, those of `comm` where it is given, in row-major order.

    Parameters
    ----------
    shape
        Number of processes along each mesh axis.
    axis_names, comm, device
        As for :class:`DeviceMesh`.
    **unknown
        None is taken. The call of torch, with the device first and ``mesh_dim_names=``, is an
        error that spells ours.

    Raises
    ------
    ArgumentTypeError
        See above.
    MeshError
        There are fewer processes than the shape asks for, or the names do not fit it.

    Examples
    --------
    >>> import distarray as da
    >>> mesh = da.init_device_mesh((1, 1), ("dp", "tp"))
    >>> mesh.coordinate
    (0, 0)
    """
    if unknown or isinstance(shape, str):
        given = [repr(shape)] if isinstance(shape, str) else []
        given += [f"{name}=" for name in unknown]
        raise ArgumentTypeError(
            f"init_device_mesh got {', '.join(given)}; it takes (shape, axis_names, *, comm, "
            "device), for instance init_device_mesh((2, 2), ('dp', 'tp'), device='cpu')"
        )
    description = mesh_description(shape, axis_names, None)
    if comm is not None:
        comm = as_communicator(comm)
        first = tuple(comm.ranks)[: len(description[2])]
        if len(first) == len(description[2]):
            description = mesh_description(shape, axis_names, first)
    return _mesh(description, comm, device)


def _shape_and_ranks(ranks: Any) -> tuple[Shape, list[int]]:
    """Return the shape of nested sequences of integers, and the integers."""
    if hasattr(ranks, "tolist"):
        ranks = ranks.tolist()
    shape: list[int] = []
    level: list[Any] = [ranks]
    while level and all(isinstance(item, Sequence) and not isinstance(item, str) for item in level):
        lengths = {len(item) for item in level}
        if len(lengths) > 1:
            raise MeshError(
                f"ranks {ranks!r} do not form a grid: rows of lengths {sorted(lengths)}; give "
                "every row of a mesh axis as many ranks"
            )
        shape.append(lengths.pop())
        level = [rank for item in level for rank in item]
    if not shape or any(isinstance(item, Sequence) for item in level):
        raise ArgumentTypeError(
            f"ranks {ranks!r} are not nested sequences of integers of one depth; pass for instance "
            "[[0, 1], [2, 3]], or a shape to init_device_mesh"
        )
    return tuple(shape), level


def _nest(flat: Sequence[int], shape: Shape) -> Nested:
    """Return flat values in row-major order as nested tuples of a shape."""
    if not shape:
        return flat[0]
    step = prod(shape[1:])
    return tuple(_nest(flat[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0]))


DEFAULT_DEVICE = "cpu"
"""Where blocks live when nobody says."""

_Description = tuple[Shape, tuple[str, ...], Sequence[int]]


def _mesh(description: _Description, comm: Any, device: str | None) -> DeviceMesh:
    shape, _, ranks = description
    device = _checked_device(device)
    base = as_communicator(comm)
    known = set(base.ranks)
    if not known.issuperset(ranks):
        have = "1 process" if base.size == 1 else f"{base.size} processes"
        unknown = sorted(set(ranks) - known)
        shown = f"ranks {unknown[0]} to {unknown[-1]}" if len(unknown) > 1 else f"rank {unknown[0]}"
        if comm is None:
            whose = f"{have} of this program; start it with mpiexec -n {max(unknown) + 1}"
        else:
            whose = f"{have} of comm=; pass a communicator of more of them"
        raise MeshError(
            f"a mesh of shape {shape} asks for {shown}, not among the {whose}, or make a mesh of "
            "fewer ranks"
        )
    return _intern(description, base, device)


_lock = threading.Lock()


def _intern(description: _Description, base: Communicator, device: str) -> DeviceMesh:
    """Return the one mesh of a description over a communicator."""
    key = (*description, device)
    if device != "cpu" and key not in base.meshes:
        _bind(device)
    with _lock:
        found: DeviceMesh | None = base.meshes.get(key)
        if found is None:
            found = object.__new__(DeviceMesh)
            found._describe(*description)
            found.device = device
            found.parent = found.parent_axes = None
            found._base = base
            found._abstract = AbstractMesh(description[0], description[1], ranks=description[2])
            found._coordinate = found.coordinate_of(base.ranks[base.rank])
            found._communicators = {}
            found._submeshes = {}
            base.meshes[key] = found
        return found


def _bind(device: str) -> None:
    """Bind this rank to its GPU: before a mesh exists whose blocks need one."""
    simulated = _ranks.simulated_world()
    if simulated is None:
        told = launched_local_rank()
        _device.bind(device, 0 if told is None and world().size == 1 else told)
        return
    per_node = simulated.ranks_per_node or simulated.size
    _device.bind(device, simulated.rank % per_node, simulated=True)


def _checked_device(device: str | None) -> str:
    if device is None:
        return DEFAULT_DEVICE
    kind, colon, number = str(device).partition(":")
    if device != "cpu" and (kind != "cuda" or (colon and not number.isdecimal())):
        raise DeviceError(f"device={device!r} is not known; use 'cpu', 'cuda' or 'cuda:<number>'")
    return f"{kind}:{int(number)}" if number else str(device)


# --- defaults ------------------------------------------------------------------------------------

_chosen: ContextVar[tuple[DeviceMesh, tuple[Placement, ...] | None, int] | None] = ContextVar(
    "distarray_mesh", default=None
)


@contextmanager
def use_mesh(
    mesh: DeviceMesh, placements: Sequence[Placement] | None = None, *, min_items: int = 0
) -> Iterator[DeviceMesh]:
    """Make a mesh, and placements where given, the defaults inside a ``with`` block.

    Parameters
    ----------
    mesh
        Where arrays go that are created without ``mesh=``.
    placements
        How they go there, one per mesh axis; an array that lacks the axis of a ``Shard`` is
        replicated there. Default: the first mesh axis shards axis 0, the others replicate.
    min_items
        Arrays of fewer items that are created inside (``zeros``, ``asarray``, ...) are replicated.
        Libraries that know nothing of placements make small arrays, write into them by pieces, and
        want them everywhere.

    Raises
    ------
    ArgumentTypeError
        ``mesh`` is no mesh, or ``min_items`` no integer.
    PlacementError
        Not one placement per mesh axis, or a ``Partial``.

    Examples
    --------
    >>> import distarray as da
    >>> with da.use_mesh(da.default_mesh(), min_items=1000):
    ...     print(da.zeros(10).layout.placements, da.zeros(2000).layout.placements)
    (Replicate(),) (Shard(axis=0),)
    """
    if not isinstance(mesh, DeviceMesh):
        raise ArgumentTypeError(
            f"use_mesh takes a DeviceMesh, not {mesh!r}; make one with init_device_mesh"
        )
    chosen = None if placements is None else _checked_placements(mesh, placements)
    try:
        least = operator.index(min_items)
    except TypeError:
        raise ArgumentTypeError(f"use_mesh(min_items={min_items!r}): must be an integer") from None
    token = _chosen.set((mesh, chosen, least))
    try:
        yield mesh
    finally:
        _chosen.reset(token)


def _checked_placements(mesh: DeviceMesh, placements: Sequence[Placement]) -> tuple[Placement, ...]:
    chosen = tuple(placements) if isinstance(placements, Iterable) else (placements,)
    wrong = [p for p in chosen if not isinstance(p, Placement) or isinstance(p, Partial)]
    if wrong or len(chosen) != mesh.ndim:
        raise PlacementError(
            f"placements {chosen} cannot be the default on {mesh}: give a Shard or Replicate for "
            f"each of its {mesh.ndim} axes"
        )
    return chosen


def default_mesh() -> DeviceMesh:
    """Return the mesh of the innermost ``use_mesh``; else one axis over all ranks.

    Examples
    --------
    >>> import distarray as da
    >>> mesh = da.default_mesh()
    >>> mesh.axis_names, mesh.device
    (('axis0',), 'cpu')
    """
    chosen = _chosen.get()
    if chosen is not None:
        return chosen[0]
    base = world()
    found: DeviceMesh | None = base.meshes.get(DEFAULT_DEVICE)
    if found is None:
        found = _intern(((base.size,), ("axis0",), range(base.size)), base, DEFAULT_DEVICE)
        base.meshes[DEFAULT_DEVICE] = found
    return found


def default_device() -> str:
    """Return the device of the default mesh, which need not exist yet."""
    chosen = _chosen.get()
    return DEFAULT_DEVICE if chosen is None else chosen[0].device


def default_placements(
    mesh: DeviceMesh, ndim: int, items: int | None = None
) -> tuple[Placement, ...]:
    """Return how an array with ``ndim`` axes is placed on ``mesh`` where nobody says.

    The placements of the innermost ``use_mesh`` of that mesh, which may replicate what is created
    with few ``items``; else the first mesh axis shards axis 0, and the others replicate.
    """
    chosen = _chosen.get()
    if chosen is not None and chosen[0] is mesh:
        if items is not None and items < chosen[2]:
            return (Replicate(),) * mesh.ndim
        if chosen[1] is not None:
            return tuple(
                Replicate() if isinstance(p, Shard) and not -ndim <= p.axis < ndim else p
                for p in chosen[1]
            )
    return _rows_first(mesh.ndim, ndim > 0)


@functools.lru_cache(maxsize=64)
def _rows_first(mesh_axes: int, has_rows: bool) -> tuple[Placement, ...]:
    first = Shard(0) if has_rows else Replicate()
    return (first, *(Replicate(),) * (mesh_axes - 1))
