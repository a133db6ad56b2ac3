"""Orders at random: each process finds the numbers of its rows, which then move."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from distarray.comm import _backend
from distarray.core import (
    BaseArray,
    check_distributed,
    check_out,
    check_writable,
    move,
    plain_buffer,
    write_out,
)
from distarray.errors import ArgumentError, ArgumentTypeError, ShapeError
from distarray.layout import Layout, Placement, carry_cuts, kept, normalize_axis
from distarray.ops import asarray, move_cuts, take, take_along_axis
from distarray.random._bijection import permute
from distarray.random._blocks import Key, geometry_of, indices_of, words_of
from distarray.random._parameters import INTEGERS
from distarray.random._streams import PIECE, Fill
from distarray.typing import Box, Shape


class Shuffling:
    """Methods of `Generator` that permute."""

    __slots__ = ()

    _draw: Callable[..., Any]

    def permutation(
        self,
        x: Any,
        axis: int = 0,
        *,
        mesh: Any = None,
        placements: Sequence[Placement] | None = None,
    ) -> Any:
        """Return the numbers below `x`, or the parts of an array along an axis, in random order.

        Parameters
        ----------
        x : int, DistArray or array_like
            A plain array must be the same on every process.
        axis : int
            Whose parts change places.
        mesh, placements
            As for `random`; a DistArray keeps its own without them.

        Returns
        -------
        DistArray
            A copy.

        Raises
        ------
        ArgumentError
            If `x` is a negative number.
        ArgumentTypeError
            If it is neither a whole number nor an array with axes.
        AxisError
            If there is no such axis.

        Notes
        -----
        Distribution: nothing is sent to find the order. Where `axis` is cut each process takes its
        new rows from their owners, else nothing is sent at all. Memory besides the result: about
        120 bytes for each row of the process.

        By a keyed bijection (Mitchell et al., ACM Trans. Parallel Comput. 9 (2022)): up to 4096
        parts each order is as likely as the others; of more the orders are those of 2**128 keys.

        Examples
        --------
        >>> import distarray as da
        >>> rng = da.random.default_rng(7)
        >>> print(rng.permutation(8))
        [1 4 5 2 7 6 3 0]
        >>> print(rng.permutation(da.arange(8).reshape(4, 2)))
        [[4 5]
         [6 7]
         [2 3]
         [0 1]]
        """
        if type(x) is int or not (isinstance(x, BaseArray) or np.ndim(x)):
            count = read_count("permutation", "x", x)
            return self._places(count, (count,), mesh, placements)
        x, axis = read_array("permutation", x, axis)
        return lay_out(take(x, self._places_along(x, axis, mesh), axis), mesh, placements)

    def shuffle(self, x: Any, axis: int = 0) -> None:
        """Bring the parts of an array along an axis into random order, in place.

        Parameters
        ----------
        x : DistArray
        axis : int
            Whose parts change places.

        Raises
        ------
        ArgumentTypeError
            If `x` is not distributed; use ``x = rng.permutation(x)``.
        ReadOnlyError
            If the array is read-only.
        AxisError
            If there is no such axis.

        Notes
        -----
        As ``x[...] = rng.permutation(x, axis)``.

        Examples
        --------
        >>> import distarray as da
        >>> x = da.arange(8)
        >>> da.random.default_rng(7).shuffle(x)
        >>> print(x)
        [1 4 5 2 7 6 3 0]
        """
        if not isinstance(x, BaseArray):
            raise ArgumentTypeError(
                f"shuffle got {type(x).__name__} and changes a DistArray; use x = "
                "rng.permutation(x), which returns a distributed array"
            )
        check_writable("shuffle", x)
        write_out("shuffle", x, self.permutation(x, axis))

    def permuted(self, x: Any, *, axis: int | None = None, out: Any = None) -> Any:
        """Return an array with the items of each line along an axis in a random order of its own.

        Parameters
        ----------
        x : DistArray or array_like
            A plain array must be the same on every process.
        axis : int or None
            Of the lines. None: all items change places.
        out : DistArray, optional
            Where the result goes; of the shape of `x`, or `x` itself.

        Raises
        ------
        ShapeError
            If `out` has another shape.
        AxisError
            If there is no such axis.

        Notes
        -----
        Distribution: where lines are cut, and are at least as many as processes, another axis is
        cut instead, and in the end the first one again. Else as `take_along_axis`, or `take` for
        None. Memory besides the result: 8 bytes for each item of the process, where lines are cut
        and for None 40 bytes, or a copy of the block, and what redistributions need.

        Examples
        --------
        >>> import distarray as da
        >>> x = da.arange(12).reshape(3, 4)
        >>> print(da.random.default_rng(7).permuted(x, axis=1))
        [[ 1  2  3  0]
         [ 4  5  7  6]
         [ 9 11  8 10]]
        """
        if not isinstance(x, BaseArray):
            x = asarray(x)
        check_out("permuted", x, out)
        if out is not None and out.shape != x.shape:
            raise ShapeError(f"permuted(out=) has shape {out.shape} and must have {x.shape}")
        layout = x._layout.without_partial()
        if axis is None or not x.ndim:
            result = take(x, self._draw_layout(_order(x.size), layout))
        else:
            axis = normalize_axis(axis, x.ndim)
            whole = _with_whole_lines(layout, axis)
            lines = (
                x
                if whole is layout
                else x._new(move("permuted", x._local, x._layout, whole), whole)
            )
            result = take_along_axis(lines, self._draw_layout(_orders(axis), whole), axis)
            del lines  # makes room
            if whole is not layout:
                result = x._new(move("permuted", result._local, whole, layout), layout)
        return write_out("permuted", out, result)

    # --- numbers of rows -------------------------------------------------------------------------

    def _places(self, count: int, shape: Any, mesh: Any, placements: Any) -> Any:
        """Return the first of the numbers below `count` in random order, as an array of a shape."""
        return self._draw(_order(count), shape, INTEGERS, mesh, placements)

    def _places_along(self, x: Any, axis: int, mesh: Any) -> Any:
        """Return the numbers of an axis in random order, cut as the axis is."""
        count = x.shape[axis]
        if not isinstance(x, BaseArray):
            return self._places(count, (count,), mesh, None)
        return self._draw_layout(_order(count), _line_along(x._layout, axis))

    def _draw_layout(self, fill: Fill, layout: Layout) -> Any:
        return self._draw(fill, layout.shape, INTEGERS, None, None, layout=layout)


@kept(64)
def _with_whole_lines(layout: Layout, axis: int) -> Layout:
    """Return the layout with another axis cut in place of this one; the same if none is as long."""
    count = layout.partition(axis).count
    lengths = {a: n // layout.partition(a).count for a, n in enumerate(layout.shape) if a != axis}
    other = max(lengths, key=lengths.__getitem__, default=axis)
    if count == 1 or lengths.get(other, 0) < count:
        return layout
    return move_cuts(layout, (axis,), other)


@kept(64)
def _line_along(layout: Layout, axis: int) -> Layout:
    """Return the layout of an array of one axis that is cut as one of another's is."""
    return carry_cuts(layout.without_partial(), (layout.shape[axis],), {axis: 0})


_FIRST = np.zeros(1, np.uint64)
"""Index of the first item of the one line."""


def _order(count: int) -> Fill:
    """Return what fills a block with the numbers below `count` in random order, in C order."""

    def fill(out: Any, key: Key, call: int, shape: Shape, box: Box) -> None:
        words, geometry = words_of(key, call), geometry_of(shape, box)
        flat = out.reshape(-1)
        for start in range(0, flat.size, PIECE):
            part = slice(start, min(start + PIECE, flat.size))
            places = indices_of(geometry, np.arange(part.start, part.stop))
            found = permute(places, count, words, _FIRST)[0]
            flat[part] = _backend.asarray(found, _backend.device_of(out))

    return fill


def _orders(axis: int) -> Fill:
    """Return what fills a block with the numbers along an axis, in an order for each line."""

    def fill(out: Any, key: Key, call: int, shape: Shape, box: Box) -> None:
        before, (start, stop), after = box[:axis], box[axis], box[axis + 1 :]
        sizes = [b - a for a, b in (*before, *after)]
        firsts = geometry_of(shape, (*before, (0, 1), *after))
        lines = indices_of(firsts, np.arange(prod(sizes)))
        places = np.arange(start, stop, dtype=np.uint64)
        stride = prod(shape[axis + 1 :])
        found = permute(places, shape[axis], words_of(key, call), lines, stride)
        found = np.moveaxis(found.reshape(*sizes, stop - start), -1, axis)
        out[...] = _backend.asarray(found, _backend.device_of(out))

    return fill


def read_count(name: str, of: str, value: Any) -> int:
    try:
        count = operator.index(value)
    except TypeError:
        raise ArgumentTypeError(
            f"{name}: {of}={value!r} is neither a whole number nor an array with axes"
        ) from None
    if count < 0:
        raise ArgumentError(f"{name}: {of}={count} must be 0 or more")
    return count


def read_array(name: str, x: Any, axis: Any) -> tuple[Any, int]:
    if not isinstance(x, BaseArray):
        x = plain_buffer(x, name, objects=True)
        if x.dtype.hasobject:
            check_distributed(name, x)
    if not x.ndim:
        raise ArgumentTypeError(f"{name} of an array without axes: pass int(x), or x.reshape(1)")
    return x, normalize_axis(axis, x.ndim)


def lay_out(x: Any, mesh: Any, placements: Any) -> Any:
    if mesh is None and placements is None:
        return x
    return asarray(x, mesh=mesh, placements=placements)
