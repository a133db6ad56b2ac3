"""Named grids of ranks: rank <-> coordinate, sub-meshes, groups; no processes behind them."""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import product
from math import prod
from typing import Any, NoReturn, SupportsIndex, final
from weakref import WeakValueDictionary

from distarray.errors import ArgumentTypeError, MeshError
from distarray.typing import AxisName, Coordinate, Shape


class Mesh:
    """What every mesh knows: a shape, a name per axis, and a rank at every coordinate.

    Base of `AbstractMesh` and `DeviceMesh`; a subclass calls `_describe` once, on creation.

    Attributes
    ----------
    shape : tuple of int
        Number of ranks along each mesh axis.
    ndim, size : int
        Number of mesh axes; number of ranks.
    axis_names : tuple of str
        Name of every mesh axis.
    flat_ranks : sequence of int
        World rank at every coordinate, in row-major order: a range where they are equally spaced
        (so that large meshes cost nothing), else a tuple.
    frames : dict
        What layouts on the mesh have in common whatever their lengths, as `_canonical` finds it by
        placements and number of axes: as many as a program has.
    """

    __slots__ = (
        "_positions", "_strides", "axis_names", "flat_ranks", "frames", "ndim", "shape", "size",
    )  # fmt: skip
    shape: Shape
    ndim: int
    size: int
    axis_names: tuple[str, ...]
    flat_ranks: Sequence[int]
    _strides: tuple[int, ...]
    _positions: dict[int, int] | None
    frames: dict[Any, Any]

    def _describe(self, shape: Shape, axis_names: tuple[str, ...], ranks: Sequence[int]) -> None:
        """Set the attributes from values that `mesh_description` has checked."""
        strides = [1] * len(shape)
        for axis in range(len(shape) - 2, -1, -1):
            strides[axis] = strides[axis + 1] * shape[axis + 1]
        put = object.__setattr__
        put(self, "shape", shape)
        put(self, "ndim", len(shape))
        put(self, "size", len(ranks))
        put(self, "axis_names", axis_names)
        put(self, "flat_ranks", ranks)
        put(self, "_strides", tuple(strides))
        put(self, "_positions", None)
        put(self, "frames", {})

    @property
    def abstract(self) -> AbstractMesh:
        """The same shape, names and ranks with no processes behind them."""
        return AbstractMesh(self.shape, self.axis_names, ranks=self.flat_ranks)

    @property
    def coordinate(self) -> Coordinate | None:
        """The coordinate of this process; None where it is not in the mesh."""
        return None

    @property
    def rank(self) -> int | None:
        """The world rank of this process; None where there is no process."""
        return None

    def __contains__(self, rank: object) -> bool:
        return isinstance(rank, SupportsIndex) and self._position(operator.index(rank)) is not None

    def _position(self, rank: int) -> int | None:
        """Return where in `flat_ranks` a rank stands, or None."""
        ranks = self.flat_ranks
        if isinstance(ranks, range):
            return ranks.index(rank) if rank in ranks else None
        if self._positions is None:
            made = {member: index for index, member in enumerate(ranks)}
            object.__setattr__(self, "_positions", made)
            return made.get(rank)
        return self._positions.get(rank)

    def axis_index(self, axis: AxisName) -> int:
        """Return the index of a mesh axis given by name or (also negative) index.

        Raises
        ------
        MeshError
            If the mesh has no such axis.
        """
        if isinstance(axis, str):
            if axis in self.axis_names:
                return self.axis_names.index(axis)
            raise MeshError(
                f"no mesh axis {axis!r}: this mesh has the axes {', '.join(self.axis_names)}"
            )
        try:
            index = operator.index(axis)
        except TypeError:
            raise ArgumentTypeError(
                f"mesh axis {axis!r}: must be a name or an integer, not {type(axis).__name__}"
            ) from None
        if not -self.ndim <= index < self.ndim:
            raise MeshError(
                f"no mesh axis {index}: this mesh has {self.ndim} axes ({self._list_axes()})"
            )
        return index % self.ndim

    def axis_indices(self, axes: AxisName | Iterable[AxisName]) -> tuple[int, ...]:
        """Return the indices of one or several distinct mesh axes, in the order given."""
        if isinstance(axes, str) or not isinstance(axes, Iterable):
            return (self.axis_index(axes),)
        found = tuple(self.axis_index(axis) for axis in axes)
        if len(set(found)) != len(found):
            raise MeshError(f"mesh axes {found}: name every mesh axis at most once")
        return found

    def coordinate_of(self, rank: int) -> Coordinate | None:
        """Return the coordinate of a world rank, or None where it is not in the mesh."""
        position = self._position(rank)
        if position is None:
            return None
        return tuple(
            position // stride % extent
            for stride, extent in zip(self._strides, self.shape, strict=True)
        )

    def rank_at(self, coordinate: Sequence[int]) -> int:
        """Return the world rank at a coordinate.

        Raises
        ------
        MeshError
            If the coordinate lies outside the mesh.
        """
        self.check_coordinate(coordinate)
        position = sum(c * stride for c, stride in zip(coordinate, self._strides, strict=True))
        return self.flat_ranks[position]

    def check_coordinate(self, coordinate: Sequence[int]) -> None:
        """Raise MeshError unless the coordinate lies in the mesh."""
        if len(coordinate) != self.ndim or any(
            not 0 <= c < n for c, n in zip(coordinate, self.shape, strict=False)
        ):
            raise MeshError(
                f"coordinate {tuple(coordinate)} is not in the mesh {self._list_axes()}: it needs "
                f"{self.ndim} integers, each from 0 to below the size of its mesh axis"
            )

    def submesh(
        self, axes: AxisName | Iterable[AxisName], coordinate: Sequence[int]
    ) -> AbstractMesh:
        """Return the mesh over some axes that holds a coordinate.

        Parameters
        ----------
        axes : name, index, or several
            Mesh axes to keep, in the order in which the result has them.
        coordinate : sequence of int
            A coordinate of this mesh; it fixes the axes that are not kept.
        """
        kept = self.axis_indices(axes)
        self.check_coordinate(coordinate)
        return AbstractMesh(
            tuple(self.shape[axis] for axis in kept),
            tuple(self.axis_names[axis] for axis in kept),
            ranks=self._ranks_along(kept, coordinate),
        )

    def groups(self, axes: AxisName | Iterable[AxisName]) -> list[tuple[int, ...]]:
        """Return the ranks that differ only along some mesh axes, group by group.

        Groups come in row-major order of the other axes, the ranks of each in row-major order of
        `axes` as given. Together the groups hold every rank once.
        """
        kept = self.axis_indices(axes)
        others = [
            range(1) if axis in kept else range(extent) for axis, extent in enumerate(self.shape)
        ]
        return [self._ranks_along(kept, coordinate) for coordinate in product(*others)]

    def _ranks_along(self, kept: tuple[int, ...], coordinate: Sequence[int]) -> tuple[int, ...]:
        """Return the ranks over the kept axes in row-major order, the others as in `coordinate`."""
        base = sum(
            index * stride
            for axis, (index, stride) in enumerate(zip(coordinate, self._strides, strict=True))
            if axis not in kept
        )
        positions = [base]
        for axis in kept:
            stride = self._strides[axis]
            positions = [p + i * stride for p in positions for i in range(self.shape[axis])]
        return tuple(self.flat_ranks[position] for position in positions)

    def _list_axes(self) -> str:
        """Return names and sizes for messages: ``dp=2, tp=4``."""
        return ", ".join(f"{n}={s}" for n, s in zip(self.axis_names, self.shape, strict=True))


_interned: WeakValueDictionary[object, AbstractMesh] = WeakValueDictionary()
_lock = threading.RLock()


@final
class AbstractMesh(Mesh):
    """A mesh with no processes behind it: enough to reason about layouts and plans.

    Equal meshes are the same object, also after pickling.

    Parameters
    ----------
    shape : sequence of int
        Number of ranks along each mesh axis, each at least 1.
    axis_names : sequence of str, optional
        Distinct names; ``axis0, axis1, ...`` by default.
    ranks : sequence of int, optional
        World rank at every coordinate in row-major order; ``range(size)`` by default.

    Examples
    --------
    >>> import distarray as da
    >>> mesh = da.AbstractMesh((64, 8, 8), axis_names=("pp", "dp", "tp"))
    >>> mesh.size, mesh.coordinate_of(77), mesh.rank_at((1, 1, 5))
    (4096, (1, 1, 5), 77)
    """

    __slots__ = ("__weakref__",)

    def __new__(
        cls,
        shape: Sequence[int],
        axis_names: Sequence[str] | None = None,
        *,
        ranks: Sequence[int] | None = None,
    ) -> AbstractMesh:
        key = mesh_description(shape, axis_names, ranks)
        found = _interned.get(key)
        if found is None:
            made = object.__new__(cls)
            made._describe(*key)
            with _lock:
                found = _interned.setdefault(key, made)
        return found

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"AbstractMesh is immutable: cannot set {name!r}")

    @property
    def ranks(self) -> Sequence[int]:
        """The world ranks in row-major order, as `flat_ranks`."""
        return self.flat_ranks

    @property
    def abstract(self) -> AbstractMesh:
        """The mesh itself."""
        return self

    def __getitem__(self, axes: AxisName | tuple[AxisName, ...]) -> NoReturn:
        asked = repr(axes)
        raise MeshError(
            f"mesh[{asked}] is the sub-mesh that holds this process, and an AbstractMesh has no "
            f"process: say which one with mesh.submesh({asked}, coordinate)"
        )

    # Without this, Python would iterate by calling __getitem__ with 0, 1, ...
    __iter__ = None

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(AbstractMesh, ranks=self.flat_ranks), (self.shape, self.axis_names)

    def __repr__(self) -> str:
        ranks = self.flat_ranks
        shown = "" if ranks == range(self.size) else f", ranks={ranks!r}"
        return f"AbstractMesh({self.shape}, {self.axis_names}{shown})"

    def __str__(self) -> str:
        return f"[{self._list_axes()}]"


def mesh_description(
    shape: Sequence[int], axis_names: Sequence[str] | None, ranks: Sequence[int] | None
) -> tuple[Shape, tuple[str, ...], Sequence[int]]:
    """Check what describes a mesh and return it in its one canonical, hashable form.

    Returns
    -------
    shape, axis_names, ranks
        Tuples; ranks are a range where they are equally spaced.
    """
    extents = _integers(shape, "mesh shape")
    if any(extent < 1 for extent in extents):
        raise MeshError(f"mesh shape {extents}: every mesh axis needs at least one rank")
    names = _read_names(axis_names, extents)
    size = prod(extents)
    if ranks is None:
        return extents, names, range(size)
    members: Sequence[int] = ranks if isinstance(ranks, range) else _integers(ranks, "mesh ranks")
    if len(members) != size:
        raise MeshError(
            f"{len(members)} ranks for a mesh of shape {extents}: it needs {size}, one for every "
            "coordinate in row-major order"
        )
    if min(members) < 0:
        raise MeshError(f"mesh rank {min(members)}: ranks are not negative")
    members = _as_range(members)
    if not isinstance(members, range) and len(set(members)) != size:
        seen: set[int] = set()
        twice = next(r for r in members if r in seen or seen.add(r))  # type: ignore[func-returns-value]
        raise MeshError(f"mesh rank {twice} appears twice: every rank has one coordinate")
    return extents, names, members


def _read_names(axis_names: Sequence[str] | None, shape: Shape) -> tuple[str, ...]:
    """Return one distinct name per mesh axis, or the default names."""
    if axis_names is None:
        return tuple(f"axis{i}" for i in range(len(shape)))
    names = (axis_names,) if isinstance(axis_names, str) else tuple(axis_names)
    if not all(isinstance(name, str) and name for name in names):
        raise ArgumentTypeError(f"axis_names {names!r}: every name must be a non-empty string")
    if len(names) != len(shape):
        raise MeshError(
            f"{len(names)} axis_names {names!r} for a mesh of shape {shape}: it needs {len(shape)}"
        )
    if len(set(names)) != len(names):
        raise MeshError(f"axis_names {names!r}: the names must differ")
    return names


def _integers(values: Sequence[int], what: str) -> tuple[int, ...]:
    """Return a sequence of integers as Python ints, or raise ArgumentTypeError."""
    try:
        # NumPy integers become Python's; a lone integer stands for a sequence of one.
        if not isinstance(values, Iterable):
            return (operator.index(values),)
        return tuple(map(operator.index, values))
    except TypeError:
        raise ArgumentTypeError(f"{what} {values!r}: must be a flat sequence of integers") from None


def _as_range(members: Sequence[int]) -> Sequence[int]:
    """Return equally spaced distinct ranks as a range, others as they are."""
    first = members[0]
    step = members[1] - first if len(members) > 1 else 1
    if step == 0:
        return members
    spaced = range(first, first + step * len(members), step)
    if isinstance(members, range):
        return spaced
    return spaced if members == tuple(spaced) else members
