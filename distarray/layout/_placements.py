"""Placements: one mesh axis shards an array axis, replicates, or holds parts of a reduction."""

from __future__ import annotations

import operator
from typing import Any, Final, NoReturn, final

from distarray.errors import ArgumentTypeError, PlacementError
from distarray.layout._reduction import REDUCTIONS

_shards: dict[int, Shard] = {}
_partials: dict[str, Partial] = {}


class Placement:
    """Base of `Shard`, `Replicate` and `Partial`.

    Placements are values: equal ones are the same object, also after pickling, so that `is`
    compares them.

    Examples
    --------
    >>> import distarray as da
    >>> da.Shard(0) is da.Shard(0), isinstance(da.Partial(), da.Placement)
    (True, True)
    """

    __slots__ = ()

    def is_shard(self, axis: int | None = None) -> bool:
        """Tell whether this is a `Shard` (of `axis`, where one is given)."""
        return type(self) is Shard and (axis is None or axis == self.axis)

    def is_replicate(self) -> bool:
        """Tell whether this is `Replicate`."""
        return type(self) is Replicate

    def is_partial(self, op: str | None = None) -> bool:
        """Tell whether this is a `Partial` (with reduction `op`, where one is given)."""
        return type(self) is Partial and (op is None or op == self.op)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is immutable: cannot set {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is immutable: cannot delete {name!r}")


@final
class Shard(Placement):
    """Cut an array axis into one contiguous block per coordinate of the mesh axis.

    Parameters
    ----------
    axis : int
        Array axis to cut. A negative axis counts from the last one and is resolved by `Layout`,
        which knows the number of axes.

    Examples
    --------
    >>> import distarray as da
    >>> layout = da.Layout(da.AbstractMesh((2,)), [da.Shard(0)], (5, 3))
    >>> layout.local_shape((0,)), layout.local_shape((1,))
    ((3, 3), (2, 3))
    """

    __slots__ = ("axis",)
    axis: int

    def __new__(cls, axis: int) -> Shard:
        if type(axis) is not int:
            try:
                axis = operator.index(axis)
            except TypeError:
                raise ArgumentTypeError(
                    f"Shard(axis={axis!r}): the axis must be an integer, not "
                    f"{type(axis).__name__}; write for instance Shard(0)"
                ) from None
        found = _shards.get(axis)
        if found is None:
            made = object.__new__(cls)
            object.__setattr__(made, "axis", axis)
            # setdefault is atomic: threads that race here all leave with the first one's object.
            found = _shards.setdefault(axis, made)
        return found

    def __repr__(self) -> str:
        return f"Shard(axis={self.axis})"

    def __str__(self) -> str:
        return f"S({self.axis})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Shard, (self.axis,)


@final
class Replicate(Placement):
    """Give every coordinate of the mesh axis the same values.

    Examples
    --------
    >>> import distarray as da
    >>> layout = da.Layout(da.AbstractMesh((2,)), [da.Replicate()], (5, 3))
    >>> layout.local_shape((0,)), layout.local_shape((1,))
    ((5, 3), (5, 3))
    """

    __slots__ = ()

    def __new__(cls) -> Replicate:
        return _REPLICATE

    def __repr__(self) -> str:
        return "Replicate()"

    def __str__(self) -> str:
        return "R"

    def __reduce__(self) -> tuple[Any, ...]:
        return Replicate, ()


_REPLICATE: Final[Replicate] = object.__new__(Replicate)


@final
class Partial(Placement):
    """Hold on every coordinate of the mesh axis one operand of a reduction not yet done.

    Parameters
    ----------
    op : str
        Reduction that turns the blocks into the value: ``sum avg min max prod``, ``any all`` of
        booleans, ``band bor bxor`` of integers and booleans.

    Examples
    --------
    >>> import distarray as da
    >>> total = da.arange(4, placements=[da.Shard(0)]).sum()
    >>> total.placements, int(total)
    ((Partial('sum'),), 6)
    """

    __slots__ = ("op",)
    op: str

    def __new__(cls, op: str = "sum") -> Partial:
        if not isinstance(op, str):
            raise ArgumentTypeError(
                f"Partial(op={op!r}): the reduction must be a string, not "
                f"{type(op).__name__}; it is one of {' '.join(REDUCTIONS)}"
            )
        if op not in REDUCTIONS:
            raise PlacementError(
                f"Partial(op={op!r}): there is no such reduction; it is one of "
                f"{' '.join(REDUCTIONS)}"
            )
        found = _partials.get(op)
        if found is None:
            made = object.__new__(cls)
            object.__setattr__(made, "op", op)
            found = _partials.setdefault(op, made)
        return found

    def __repr__(self) -> str:
        return f"Partial({self.op!r})"

    def __str__(self) -> str:
        return f"P({self.op})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Partial, (self.op,)


def suggest_for_torch(value: object) -> str:
    """Return the end of a message about a value that is torch's, which names ours; else "".

    Parameters
    ----------
    value
        What was passed in the place of a placement or a mesh.
    """
    kind = type(value)
    if kind.__module__.partition(".")[0] != "torch":
        return ""
    if kind.__name__ == "Shard":
        ours = f"da.Shard({getattr(value, 'dim', 0)})"
    elif kind.__name__ == "Replicate":
        ours = "da.Replicate()"
    elif kind.__name__ == "Partial":
        ours = f"da.Partial({getattr(value, 'reduce_op', 'sum')!r})"
    elif kind.__name__ == "DeviceMesh":
        ours = "one that da.init_device_mesh makes"
    else:
        return ""
    return f" (this {kind.__name__} is torch's; take {ours})"
