"""Printing: small arrays as a whole, large ones by their corners, which alone are fetched.

Printing is collective over the mesh, because every rank prints the same global values.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from distarray.array import _convert, _describe
from distarray.comm import _backend, world
from distarray.core import BaseArray, register


def _gather_shown(x: BaseArray) -> tuple[Any, int]:
    """Return the items that printing needs, on every rank, and NumPy's threshold for them.

    Along an axis too long to show, the corners keep `edgeitems` items at each end and one between
    that stands for the rest.
    """
    options = np.get_printoptions()
    if x.size <= options["threshold"]:
        return _backend.to_host(_convert.gather(x)), max(x.size, 1)
    edge = options["edgeitems"]
    return _backend.to_host(_convert.gather(take_corners(x, edge))), 0


def take_corners(x: BaseArray, edge: int) -> BaseArray:
    """Return the array of the first `edge + 1` and last `edge` items along every long axis.

    No item moves: each process keeps those of its own block, and the boundaries of the layout say
    how many they are.
    """
    layout, block = x._layout, x._local
    box = layout.local_box()
    boundaries = {}
    shape = []
    taken = []
    for axis, size in enumerate(layout.shape):
        kept = (
            np.arange(size)
            if size <= 2 * edge + 1
            else np.concatenate([np.arange(edge + 1), np.arange(size - edge, size)])
        )
        shape.append(len(kept))
        if layout.sharding_axes(axis):
            offsets = np.searchsorted(kept, layout.partition(axis).offsets)
            boundaries[axis] = tuple(int(i) for i in offsets)
        start, stop = (0, 0) if box is None else box[axis]
        taken.append(kept[(kept >= start) & (kept < stop)] - start)
    part = layout.replace(shape=tuple(shape), boundaries=boundaries or None)
    if box is None:
        return x._new(block[(slice(0, 0),) * len(shape)].reshape(part.local_shape()), part)
    return x._new(block[np.ix_(*taken)] if taken else block, part)


class Printing(BaseArray):
    """`repr(x)` and `str(x)`: global values, the same on every rank, collective over the mesh."""

    __slots__ = ()

    def __repr__(self) -> str:
        return _text(self, "DistArray(", ", ", f", {_describe_layout(self)})")

    def _repr_html_(self) -> str:
        """Return what notebooks show: who holds what. Nothing is communicated."""
        return _describe.draw_html(self)

    def __str__(self) -> str:
        if self._layout.mesh.coordinate is None:
            return repr(self)
        return _text(self, "", " ", "")


def print0(
    *values: Any,
    sep: str | None = " ",
    end: str | None = "\n",
    file: Any = None,
    flush: bool = True,
) -> None:
    r"""Print on the first process alone; all of them call it.

    Parameters
    ----------
    *values
        As for `print`. The text of a DistArray is made on every process of its mesh, which is
        collective, and printed once.
    sep, end, file, flush
        As for `print`, but for `flush`: what one process writes is to be seen at once.

    Notes
    -----
    The first process is rank 0 of the program. Of arrays on meshes without it, it knows the layout
    alone and prints that.

    Examples
    --------
    >>> import distarray as da
    >>> da.print0("sum of", da.arange(4), "is", da.arange(4).sum())
    sum of [0 1 2 3] is 6
    """
    texts = [str(value) for value in values]
    if world().rank == 0:
        print(*texts, sep=sep, end=end, file=file, flush=flush)


def _describe_layout(x: BaseArray) -> str:
    """Return dtype and layout, which need no communication."""
    return f"shape={x.shape}, dtype={x.dtype}, layout={x.layout}"


def _text(x: Any, prefix: str, separator: str, suffix: str) -> str:
    if x._layout.mesh.coordinate is None:
        return f"DistArray(<values outside this process>, {_describe_layout(x)})"
    part, threshold = _gather_shown(x)
    if not part.ndim:  # a number, often one of a list: short, as NumPy's
        return repr(part).replace("array", "DistArray", 1) if prefix else str(part[()])
    text = np.array2string(part, separator=separator, prefix=prefix, threshold=threshold)
    return f"{prefix}{text}{suffix}"


def _options(width: Any, precision: Any, suppress: Any, **others: Any) -> dict[str, Any]:
    """Return NumPy's arguments of printing as its options, those left out as they are set."""
    given = {"linewidth": width, "precision": precision, "suppress": suppress, **others}
    return {name: value for name, value in given.items() if value is not None}


@register
def array_repr(
    x: Any, /, max_line_width: Any = None, precision: Any = None, suppress_small: Any = None
) -> str:
    """Return `repr(x)` with some of NumPy's options of printing (collective over the mesh).

    Parameters
    ----------
    x : DistArray or array
    max_line_width, precision, suppress_small : optional
        As in NumPy. Default: what `set_printoptions` has set.

    Examples
    --------
    >>> import distarray as da
    >>> da.array_repr(da.asarray([1.0, 2.25]), precision=1).partition(" shape")[0]
    'DistArray([1. , 2.2],'
    """
    with np.printoptions(**_options(max_line_width, precision, suppress_small)):
        return repr(x)


@register
def array_str(
    x: Any, /, max_line_width: Any = None, precision: Any = None, suppress_small: Any = None
) -> str:
    """Return `str(x)` with some of NumPy's options of printing (collective over the mesh).

    Parameters
    ----------
    x : DistArray or array
    max_line_width, precision, suppress_small : optional
        As in NumPy. Default: what `set_printoptions` has set.

    Examples
    --------
    >>> import distarray as da
    >>> da.array_str(da.asarray([1.0, 2.25]), precision=1)
    '[1.  2.2]'
    """
    with np.printoptions(**_options(max_line_width, precision, suppress_small)):
        return str(x)


@register
def array2string(
    x: Any,
    /,
    max_line_width: Any = None,
    precision: Any = None,
    suppress_small: Any = None,
    separator: str = " ",
    prefix: str = "",
    *,
    formatter: Any = None,
    threshold: Any = None,
    edgeitems: Any = None,
    sign: Any = None,
    floatmode: Any = None,
    suffix: str = "",
    legacy: Any = None,
) -> str:
    """Return the values as text (collective over the mesh).

    Parameters
    ----------
    x : DistArray or array
    max_line_width, precision, suppress_small, formatter, threshold, edgeitems : optional
        As in NumPy. Default: what `set_printoptions` has set.
    sign, floatmode, legacy : optional
        As well.
    separator, prefix, suffix : str
        Between items; what is written before and after, for which room is left.

    Notes
    -----
    Distribution: of an array of more than `threshold` items the corners alone are gathered.

    Examples
    --------
    >>> import distarray as da
    >>> da.array2string(da.arange(3), separator=", ")
    '[0, 1, 2]'
    """
    if not isinstance(x, BaseArray):
        x = np.asarray(x)
    given = _options(
        max_line_width,
        precision,
        suppress_small,
        formatter=formatter,
        threshold=threshold,
        edgeitems=edgeitems,
        sign=sign,
        floatmode=floatmode,
        legacy=legacy,
    )
    with np.printoptions(**given):
        if not isinstance(x, BaseArray):
            return np.array2string(x, separator=separator, prefix=prefix, suffix=suffix)
        if x._layout.mesh.coordinate is None:
            return repr(x)
        part, limit = _gather_shown(x)
        return np.array2string(
            part, separator=separator, prefix=prefix, suffix=suffix, threshold=limit
        )
