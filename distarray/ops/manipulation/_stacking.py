"""NumPy's shorthands of joins and slices: arrays put side by side, or divided, along an axis."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from distarray.core import (
    BaseArray,
    check_distributed,
    copy_array,
    describe,
    normalize_operand,
    register,
)
from distarray.errors import ArgumentError, ArgumentTypeError, ShapeError
from distarray.layout import normalize_axis
from distarray.ops.indexing._items import getitem
from distarray.ops.manipulation._joining import concat, concat_as, list_arrays

MOST_EMPTY = 1 << 16
"""How many parts of a division may have no items: each is an array of its own."""

# --- axes put in front or behind -----------------------------------------------------------------

_WHOLE = slice(None)
_KEYS: dict[int, dict[int, tuple[Any, ...]]] = {
    1: {0: (None,)},
    2: {0: (None, None), 1: (None, _WHOLE)},
    3: {0: (None, None, None), 1: (None, _WHOLE, None), 2: (_WHOLE, _WHOLE, None)},
}
"""Keys that give arrays of fewer axes so many, by these and by those."""


def _widen(x: Any, ndim: int) -> Any:
    key = _KEYS[ndim].get(x.ndim)
    return x if key is None else getitem(x, key) if isinstance(x, BaseArray) else x[key]


def _at_least(ndim: int, arrays: Sequence[Any]) -> Any:
    found = tuple(_widen(check_distributed(f"atleast_{ndim}d", x), ndim) for x in arrays)
    return found[0] if len(found) == 1 else found


_AT_LEAST = """Return arrays with at least {number}: those of fewer get axes of length 1{where}.

Parameters
----------
*arrays : DistArray

Returns
-------
DistArray or tuple of DistArray
    Views; an array that has as many axes is returned itself.

Examples
--------
>>> import distarray as da
>>> da.atleast_{ndim}d(da.ones(4)).shape
{shape}
"""


def atleast_1d(*arrays: Any) -> Any:
    return _at_least(1, arrays)


def atleast_2d(*arrays: Any) -> Any:
    return _at_least(2, arrays)


def atleast_3d(*arrays: Any) -> Any:
    return _at_least(3, arrays)


for _function, _number, _where, _shape in (
    (atleast_1d, "one axis", "", (4,)),
    (atleast_2d, "two axes", " in front", (1, 4)),
    (atleast_3d, "three axes", ": rows at the front and the back, matrices at the back", (1, 4, 1)),
):
    _function.__doc__ = _AT_LEAST.format(
        number=_number, where=_where, ndim=len(_shape), shape=_shape
    )
    register(_function)

# --- joins ---------------------------------------------------------------------------------------

_STACK = """Join arrays {how}.

Parameters
----------
arrays : sequence of DistArray or array
    {what} Plain arrays must be the same on every process.
{dtype}
Returns
-------
DistArray
    As of `concat`.

Raises
------
ShapeError
    If there is no array, or the shapes do not fit.
ArgumentTypeError
    If none of them is distributed.

Examples
--------
>>> import distarray as da
>>> da.{name}([da.ones(3), da.ones(3)]).shape
{shape}
"""
_DTYPE = """dtype : data type, optional
    Default: that to which all promote.
casting : str
    Which conversions are allowed, as in NumPy.
"""


def _arrays(name: str, arrays: Any) -> list[Any]:
    """Return what is to be joined, numbers and lists as plain arrays."""
    given = [normalize_operand(name, x) if not isinstance(x, BaseArray) else x
             for x in list_arrays(name, arrays)]  # fmt: skip
    if not given:
        raise ShapeError(f"{name} got no arrays; pass at least one")
    return [x if hasattr(x, "ndim") else np.asarray(x) for x in given]


def hstack(arrays: Sequence[Any], /, *, dtype: Any = None, casting: Any = "same_kind") -> Any:
    given = [_widen(x, 1) for x in _arrays("hstack", arrays)]
    return concat_as("hstack", given, 0 if given[0].ndim == 1 else 1, None, dtype, casting)


def vstack(arrays: Sequence[Any], /, *, dtype: Any = None, casting: Any = "same_kind") -> Any:
    given = [_widen(x, 2) for x in _arrays("vstack", arrays)]
    return concat_as("vstack", given, 0, None, dtype, casting)


def dstack(arrays: Sequence[Any], /) -> Any:
    return concat_as("dstack", [_widen(x, 3) for x in _arrays("dstack", arrays)], 2)


def column_stack(arrays: Sequence[Any], /) -> Any:
    given = []
    for x in _arrays("column_stack", arrays):
        wide = _widen(x, 1)
        if wide.ndim == 1:
            key = (_WHOLE, None)
            wide = getitem(wide, key) if isinstance(wide, BaseArray) else wide[key]
        given.append(wide)
    return concat_as("column_stack", given, 1)


_join: Callable[..., Any]
for _join, _how, _what, _dtype, _shape in (
    (hstack, "along their second axis, or the first of those with one", "", _DTYPE, (6,)),
    (vstack, "along their first axis, as rows if they have one", "", _DTYPE, (2, 3)),
    (dstack, "along their third axis; matrices get one", "", "", (1, 3, 2)),
    (column_stack, "of one axis as columns, matrices as they are", "", "", (3, 2)),
):
    _join.__doc__ = _STACK.format(
        how=_how,
        what=_what or "Equal in shape but for the axis that they are joined along.",
        dtype=_dtype,
        name=_join.__name__,
        shape=_shape,
    )
    register(_join)


@register
def block(arrays: Any, /) -> Any:
    """Return an array assembled of nested lists of blocks.

    The innermost lists are joined along the last axis, those around them along the last but one,
    and so on.

    Parameters
    ----------
    arrays : nested list of DistArray or array
        Lists of one depth; no tuples.

    Returns
    -------
    DistArray
        As of `concat`, of the outermost lists; without a list a copy.

    Raises
    ------
    ArgumentError
        If a list is empty, or the depths differ.
    ArgumentTypeError
        If there is a tuple, or nothing distributed.
    ShapeError
        If the shapes do not fit.

    Examples
    --------
    >>> import distarray as da
    >>> x = da.ones((2, 2), dtype=int)
    >>> print(da.block([[x, 0 * x], [0 * x, x]]))
    [[1 1 0 0]
     [1 1 0 0]
     [0 0 1 1]
     [0 0 1 1]]
    """
    depth, leaves = _flatten(arrays)
    check_distributed("block", next((x for x in leaves if isinstance(x, BaseArray)), leaves[0]))
    ndim = max(depth, *(x.ndim for x in leaves))
    dtype = np.result_type(*(x.dtype for x in leaves))
    if not depth:
        return copy_array(leaves[0], "K")
    rest = iter(leaves)

    def join(part: Any, axis: int) -> Any:
        if not isinstance(part, list):
            x = next(rest)
            key = (*(None,) * (ndim - x.ndim), ...)
            return getitem(x, key) if isinstance(x, BaseArray) else x[key]
        parts = [join(one, axis + 1) for one in part]
        if not any(isinstance(x, BaseArray) for x in parts):
            return np.concatenate(parts, axis)
        return concat(parts, axis, dtype=dtype)

    return join(arrays, ndim - depth)


def _flatten(arrays: Any) -> tuple[int, list[Any]]:
    """Return the depth of nested lists, and what is in them, in order."""
    if isinstance(arrays, tuple):
        raise ArgumentTypeError("block got a tuple; blocks are nested in lists")
    if not isinstance(arrays, list):
        x = arrays if isinstance(arrays, BaseArray) else normalize_operand("block", arrays)
        return 0, [x if hasattr(x, "ndim") else np.asarray(x)]
    if not arrays:
        raise ArgumentError("block got an empty list; leave it out")
    inner = [_flatten(one) for one in arrays]
    depths = {depth for depth, _ in inner}
    if len(depths) > 1:
        raise ArgumentError(f"block got lists of depths {sorted(depths)}; they must be of one")
    return 1 + depths.pop(), [x for _, leaves in inner for x in leaves]


# --- divisions -----------------------------------------------------------------------------------


@register
def array_split(x: Any, /, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    """Return parts of the array along an axis, as equal in length as they can be.

    Parameters
    ----------
    x : DistArray
    indices_or_sections : int or sequence of int
        How many parts, the first of them one item longer; or where they begin, but for the first.
    axis : int

    Returns
    -------
    list of DistArray
        Views: the items stay where they are, and the boundaries follow (see `rebalance`).

    Raises
    ------
    ArgumentError
        If there are less than one part.
    AxisError
        If there is no such axis.

    Notes
    -----
    Distribution: nothing is sent.

    Examples
    --------
    >>> import distarray as da
    >>> [len(part) for part in da.array_split(da.arange(8), 3)]
    [3, 3, 2]
    """
    along = normalize_axis(axis, check_distributed("array_split", x).ndim)
    return _divide("array_split", x, indices_or_sections, along)


def _divide(name: str, x: Any, given: Any, axis: int, even: bool = False) -> list[Any]:
    size = x.shape[axis]
    try:
        count = operator.index(given)
    except TypeError:
        try:
            bounds = [operator.index(one) for one in given]
        except TypeError:
            raise ArgumentTypeError(
                f"{name} got {describe(given)}; pass how many parts, or where they begin"
            ) from None
    else:
        if not 1 <= count <= size + MOST_EMPTY:
            raise ArgumentError(
                f"{name} got {count} parts of axis {axis} of length {size}; pass one at least, and "
                f"no more than {MOST_EMPTY} without items"
            )
        if even and size % count:
            raise ArgumentError(
                f"{name} got {count} parts of axis {axis} of length {size}, which are not equal; "
                "use array_split"
            )
        each, longer = divmod(size, count)
        bounds = [i * each + min(i, longer) for i in range(1, count)]
    before = (_WHOLE,) * axis
    cuts = zip([0, *bounds], [*bounds, size], strict=True)
    return [getitem(x, (*before, slice(start, stop))) for start, stop in cuts]


@register
def split(x: Any, /, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    """Return parts of the array along an axis, equal in length or beginning at given places.

    Parameters
    ----------
    x : DistArray
    indices_or_sections : int or sequence of int
        As for `array_split`.
    axis : int

    Returns
    -------
    list of DistArray
        As of `array_split`.

    Raises
    ------
    ArgumentError
        If the parts are not equal.
    AxisError
        If there is no such axis.

    Examples
    --------
    >>> import distarray as da
    >>> [print(part) for part in da.split(da.arange(5), [2])]
    [0 1]
    [2 3 4]
    [None, None]
    """
    along = normalize_axis(axis, check_distributed("split", x).ndim)
    return _divide("split", x, indices_or_sections, along, even=True)


def _splitter(name: str, least: int, axis: int) -> Callable[..., list[Any]]:
    """Return `split` along a certain axis of arrays that have `least` at least."""

    def divide(x: Any, /, indices_or_sections: Any) -> list[Any]:
        ndim = check_distributed(name, x).ndim
        if ndim < least:
            raise ShapeError(f"{name} got an array of shape {x.shape}; it needs {least} axes")
        return _divide(name, x, indices_or_sections, min(axis, ndim - 1), even=True)

    divide.__name__ = divide.__qualname__ = name
    divide.__doc__ = f"""Return parts of the array along axis {axis}; see `split`.

    Raises
    ------
    ShapeError
        If it has fewer than {least} axes.
    ArgumentError
        If the parts are not equal.

    Examples
    --------
    >>> import distarray as da
    >>> len(da.{name}(da.ones((2, 2, 2)), 2))
    2
    """
    return register(divide)


hsplit = _splitter("hsplit", 1, 1)
vsplit = _splitter("vsplit", 2, 0)
dsplit = _splitter("dsplit", 3, 2)
