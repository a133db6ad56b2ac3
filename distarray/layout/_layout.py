"""The layout of an array: a mesh, a placement per mesh axis, and a shape; who holds which box."""

from __future__ import annotations

import threading
from array import array
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from math import prod
from typing import Any, Final, NoReturn, cast, final
from weakref import ref

from distarray.layout._axes import normalize_axis
from distarray.layout._canonical import (
    Description,
    block_index,
    describe,
    describe_carried,
    describe_lengths,
)
from distarray.layout._format import layout_text
from distarray.layout._mesh import Mesh
from distarray.layout._partition import Partition, chunk, interval, length, shortest
from distarray.layout._placements import Partial, Placement, Replicate
from distarray.typing import AxisName, Box, Shape


class _Entry(ref["Layout"]):
    """A weak reference to an interned layout, with its key and the dictionary that it is in.

    That is none of `weakref`, which takes four times as long to miss and to put in.
    """

    __slots__ = ("home", "key")
    home: dict[object, Any]
    key: object


_gone: deque[Any] = deque()
"""Entries of layouts that are gone, until the next one is put in."""
latest: deque[Layout] = deque(maxlen=128)
"""Of the default split, built last: one that a call has for itself is there in the next call."""
# Re-entrant, because a garbage collection may run code that makes layouts while it is held.
_lock = threading.RLock()


_KEEP: Final[Any] = object()
"""The default of `Layout.replace`: None has a meaning of its own there."""


@final
class Layout(Description):
    """Say which box of an array every rank of a mesh holds.

    Immutable, and interned: equal layouts are the same object, also after pickling, so that ``is``
    compares them and a dictionary finds them by identity.

    Parameters
    ----------
    mesh : AbstractMesh or DeviceMesh
    placements : sequence of Placement
        One per mesh axis. Negative axes of `Shard` are resolved.
    shape : sequence of int
        The global shape.
    shard_order : sequence of mesh axes, optional
        Order in which the mesh axes cut (names or indices) where several shard one array axis.
        Axes left out come after those named, in mesh order, which is the default.
    boundaries : mapping of array axis to sequence of int, optional
        Offsets of a split that is not `torch.chunk`'s: 0, ..., the length of the axis, one more
        than there are blocks, that is the product of the sizes of the mesh axes that shard it; the
        mesh axis that cuts first is the most significant in the order of the blocks.

    Attributes
    ----------
    mesh, placements, shape
        As given, with tuples for sequences.
    ndim, size : int
        Number of array axes and of elements.
    shard_order : tuple of int or None
        None where the order does not differ from the default.
    is_replicated, has_partial : bool
        Whether all placements are `Replicate`; whether any is `Partial`.
    is_counted : bool
        Whether it has boundaries that depend on values, as of ``x[x > 0]``. Such a layout hardly
        comes back, so that plans and resolutions for it are kept for a short while only. Equal
        layouts are the same object however they came about, so this may differ between ranks.
    partial_axes, replicated_axes : tuple of int
        Mesh axes with these placements.

    Examples
    --------
    >>> from distarray import AbstractMesh, Layout, Replicate, Shard
    >>> mesh = AbstractMesh((2, 4), axis_names=("dp", "tp"))
    >>> layout = Layout(mesh, (Shard(0), Replicate()), (511, 64))
    >>> print(layout)
    511x64 [dp:S(0), tp:R]
    >>> layout.local_box((1, 3))
    ((256, 511), (0, 64))
    """

    __slots__ = ()

    def __new__(
        cls,
        mesh: Mesh,
        placements: Sequence[Placement],
        shape: Sequence[int],
        *,
        shard_order: Sequence[AxisName] | None = None,
        boundaries: Mapping[int, Sequence[int]] | None = None,
    ) -> Layout:
        if shard_order is None and boundaries is None:
            try:
                sizes = tuple(shape)
                frame = mesh.frames.get((tuple(placements), len(sizes)))
                entry = None if frame is None else frame.layouts.get(sizes)
            except (TypeError, AttributeError):
                # No mesh, not sequences, or not hashable: `describe` says what is wrong.
                frame = entry = None
            if entry is not None and (found := entry()) is not None:
                return found  # type: ignore[no-any-return]
            if frame is not None:
                return _intern(describe_lengths(mesh, frame, sizes))
        return _intern(describe(mesh, placements, shape, shard_order, boundaries))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"Layout is immutable: cannot set {name!r}; use layout.replace")

    @property
    def boundaries(self) -> dict[int, tuple[int, ...]] | None:
        """Offsets of every array axis whose split is not the default one; None without any."""
        return dict(self._boundaries) or None

    @property
    def abstract(self) -> Layout:
        """The same layout over `mesh.abstract`."""
        if self._abstract is None:
            mesh = self.mesh.abstract
            if mesh is self.mesh:
                # Not kept: a layout that referred to itself would live until a collection.
                return self
            object.__setattr__(self, "_abstract", self.replace(mesh=mesh))
        return cast("Layout", self._abstract)

    @property
    def _partitions(self) -> tuple[Partition, ...]:
        found = self._splits
        if found is None:
            found = tuple(map(chunk, self.shape, self.frame.counts))
            _set_splits(self, found)
        return found

    @property
    def is_even(self) -> bool:
        """Whether the blocks of every axis have one length, so that all ranks hold one shape."""
        return all(split.is_even for split in self._partitions)

    @property
    def has_empty(self) -> bool:
        """Whether some block of an array with this layout has no items."""
        found = self._has_empty
        if found is None:
            if self._boundaries:
                found = 0 in [split.smallest for split in self._partitions]
            else:
                found = 0 in map(shortest, self.shape, self.frame.counts)
            _set_has_empty(self, found)
        return found

    @property
    def shortest(self) -> Layout:
        """The layout with the same placements and one item in each block."""
        return Layout(self.mesh, self.placements, [split.count for split in self._partitions])

    @property
    def fingerprint(self) -> int:
        """A 64-bit number, the same in every process, that differs where layouts differ."""
        if self._fingerprint is None:
            from hashlib import blake2b

            mesh = self.mesh
            text = repr(
                (
                    mesh.shape,
                    mesh.axis_names,
                    mesh.flat_ranks,
                    self.placements,
                    self.shape,
                    self.shard_order,
                    tuple(axis for axis, _ in self._boundaries),
                )
            )
            digest = blake2b(text.encode(), digest_size=8)
            for _, offsets in self._boundaries:
                digest.update(array("q", offsets).tobytes())
            number = int.from_bytes(digest.digest(), "little")
            object.__setattr__(self, "_fingerprint", number)
        return cast("int", self._fingerprint)

    def partition(self, axis: int) -> Partition:
        """Return how an array axis is cut; one block where no mesh axis shards it."""
        return self._partitions[normalize_axis(axis, self.ndim)]

    def sharding_axes(self, axis: int) -> tuple[int, ...]:
        """Return the mesh axes that shard an array axis, the one that cuts first first."""
        return self.frame.cuts[normalize_axis(axis, self.ndim)]

    def block_index(self, axis: int, coordinate: Sequence[int]) -> int:
        """Return which block of `partition(axis)` a mesh coordinate holds."""
        axis = normalize_axis(axis, self.ndim)
        self.mesh.check_coordinate(coordinate)
        return block_index(self.mesh, self.frame.cuts[axis], coordinate)

    def local_box(self, coordinate: Sequence[int] | None = None) -> Box | None:
        """Return the box of global indices that a mesh coordinate holds.

        Parameters
        ----------
        coordinate : sequence of int, optional
            This process's by default.

        Returns
        -------
        tuple of (start, stop), or None
            One interval per array axis; None where the process is not in the mesh.
        """
        if coordinate is None:
            own = self._own_box
            parts = self.frame.own
            if own is None and parts is not None:  # this process is in the mesh
                if self._boundaries:
                    own = self._box(cast("Any", self.mesh.coordinate))
                else:
                    own = tuple(map(interval, self.shape, parts))
                _set_own_box(self, own)
            return own
        self.mesh.check_coordinate(coordinate)
        return self._box(coordinate)

    @property
    def largest_block(self) -> int:
        """The number of items of the largest block."""
        return prod([split.largest for split in self._partitions])

    @property
    def block_count(self) -> int:
        """Into how many blocks the array is cut."""
        return prod([split.count for split in self._partitions])

    @property
    def own_box(self) -> Box:
        """The box of this process, which is in the mesh."""
        box = self.local_box()
        assert box is not None
        return box

    def local_shape(self, coordinate: Sequence[int] | None = None) -> Shape:
        """Return the shape of the block that a mesh coordinate holds.

        Parameters
        ----------
        coordinate : sequence of int, optional
            This process's by default. A process that is not in the mesh holds an empty block:
            ``(0, *shape[1:])``, and ``(0,)`` of a 0-d array.
        """
        if coordinate is None:
            own = self._own_shape
            if own is None:
                parts = self.frame.own
                if parts is not None and not self._boundaries:
                    own = tuple(map(length, self.shape, parts))
                else:
                    box = self.local_box()
                    own = (0, *self.shape[1:]) if box is None else tuple([b - a for a, b in box])
                _set_own_shape(self, own)
            return own
        self.mesh.check_coordinate(coordinate)
        return tuple(b - a for a, b in self._box(coordinate))

    def replace(
        self,
        *,
        mesh: Mesh = _KEEP,
        placements: Sequence[Placement] = _KEEP,
        shape: Sequence[int] = _KEEP,
        shard_order: Sequence[AxisName] | None = _KEEP,
        boundaries: Mapping[int, Sequence[int]] | None = _KEEP,
    ) -> Layout:
        """Return this layout with some parts exchanged.

        The shard order and the boundaries stay unless others (or None) are given, and it is an
        error if they do not fit the new parts.
        """
        made = Layout(
            self.mesh if mesh is _KEEP else mesh,
            self.placements if placements is _KEEP else placements,
            self.shape if shape is _KEEP else shape,
            shard_order=self.shard_order if shard_order is _KEEP else shard_order,
            boundaries=self.boundaries if boundaries is _KEEP else boundaries,
        )
        if self.is_counted:
            mark_counted(made)
        return made

    def without_partial(self) -> Layout:
        """Return the layout of the reduced values: with `Replicate` for every `Partial`."""
        if not self.has_partial:
            return self
        return self.replace(
            placements=[Replicate() if type(p) is Partial else p for p in self.placements]
        )

    def _box(self, coordinate: Sequence[int]) -> Box:
        """Return the box at a coordinate known to be valid."""
        return tuple(
            [
                partition.bounds(block_index(self.mesh, axes, coordinate))
                for partition, axes in zip(self._partitions, self.frame.cuts, strict=True)
            ]
        )

    def __reduce__(self) -> tuple[Any, ...]:
        make = partial(Layout, shard_order=self.shard_order, boundaries=self.boundaries)
        return make, (self.mesh, self.placements, self.shape)

    def __repr__(self) -> str:
        order = f", shard_order={self.shard_order}" if self.shard_order else ""
        offsets = f", boundaries={self.boundaries}" if self._boundaries else ""
        return f"Layout({self.mesh!r}, {self.placements}, {self.shape}{order}{offsets})"

    def __str__(self) -> str:
        return layout_text(
            self.shape,
            self.mesh.axis_names,
            self.placements,
            self.shard_order,
            tuple(axis for axis, _ in self._boundaries),
        )


# Assigning attributes of a layout by way of `object` takes seven times as long.
_set_own_box, _set_own_shape, _set_has_empty, _set_splits = (
    vars(Description)[name].__set__ for name in ("_own_box", "_own_shape", "_has_empty", "_splits")
)


def _intern(parts: Description) -> Layout:
    """Return the one layout of a canonical description."""
    home = parts.frame.layouts
    key: object = (parts.shape, parts._boundaries) if parts._boundaries else parts.shape
    parts.__class__ = Layout
    made: Any = parts
    with _lock:
        while _gone:
            old = _gone.popleft()
            # Without a call, after which a garbage collection might put another one in.
            if old.key in old.home and old.home[old.key] is old:
                del old.home[old.key]
        entry = _Entry(made, _gone.append)
        entry.home = home
        entry.key = key
        known = home.setdefault(key, entry)
        if known is not entry:
            found: Layout | None = known()
            if found is not None:
                return found
            home[key] = entry
        if not parts._boundaries:
            latest.append(made)
    return made  # type: ignore[no-any-return]


def carry_cuts(
    layout: Layout,
    shape: Shape,
    axes: Mapping[int, int] | None,
    offsets: Mapping[int, tuple[int, ...]] | None = None,
) -> Layout:
    """Return the layout of `shape` in which axis `axes[a]` is cut as axis `a` was.

    Parameters
    ----------
    layout : Layout
        Before.
    shape : tuple of int
        Global shape after.
    axes : mapping or None
        New axis of every old axis that lives on; a cut axis that does not becomes replicated. None:
        every axis stays where it is.
    offsets : mapping, optional
        New offsets of a cut, by new axis. Without them an axis keeps its explicit boundaries.
    """
    made = _intern(describe_carried(layout, shape, axes, offsets or {}))
    if layout.is_counted:
        mark_counted(made)
    return made


def counted(template: Layout, axis: int, lengths: Iterable[int]) -> Layout:
    """Return the layout of an array whose blocks along an axis have lengths that values tell.

    Parameters
    ----------
    template : Layout
        All but the length of the axis, and where it is divided.
    axis : int
        Counted from the first.
    lengths : iterable of int
        Of the blocks of the axis, in the order of `Layout.block_index`.

    Returns
    -------
    Layout
        Its shape has the sum of `lengths`. It `is_counted`, unless these make the default split.
    """
    split = (0, *accumulate(lengths))
    shape = (*template.shape[:axis], split[-1], *template.shape[axis + 1 :])
    found = _intern(describe_carried(template, shape, None, {axis: split}))
    mark_counted(found)
    return found


def mark_counted(layout: Layout) -> None:
    """Say of a layout that its boundaries, if it has any, follow from those of a counted one."""
    if layout._boundaries and not layout.is_counted:
        object.__setattr__(layout, "is_counted", True)
        if layout._abstract is not None:
            mark_counted(layout._abstract)
