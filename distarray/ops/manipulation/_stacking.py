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
    documented,
    normalize_arrays,
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
    return x if key is None else x[key]


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


@register
@documented(_AT_LEAST, number="one axis", where="", ndim=1, shape=(4,))
def atleast_1d(*arrays: Any) -> Any:
    return _at_least(1, arrays)


@register
@documented(_AT_LEAST, number="two axes", where=" in front", ndim=2, shape=(1, 4))
def atleast_2d(*arrays: Any) -> Any:
    return _at_least(2, arrays)


@register
@documented(
    _AT_LEAST,
    number="three axes",
    where=": rows at the front and the back, matrices at the back",
    ndim=3,
    shape=(1, 4, 1),
)
def atleast_3d(*arrays: Any) -> Any:
    return _at_least(3, arrays)


# --- joins ---------------------------------------------------------------------------------------

_STACK = """Join arrays {how}.

Parameters
----------
arrays : sequence of DistArray or array
    Equal in shape but for the axis that they are joined along. Plain arrays must be the same on
    every process.
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
    given = normalize_arrays(name, list_arrays(name, arrays))
    if not given:
        raise ShapeError(f"{name} got no arrays; pass at least one")
    return given


@register
@documented(
    _STACK, how="along their second axis, or the first of those with one", dtype=_DTYPE, shape=(6,)
)
def hstack(arrays: Sequence[Any], /, *, dtype: Any = None, casting: Any = "same_kind") -> Any:
    given = [_widen(x, 1) for x in _arrays("hstack", arrays)]
    return concat_as("hstack", given, 0 if given[0].ndim == 1 else 1, None, dtype, casting)


@register
@documented(
    _STACK, how="along their first axis, as rows if they have one", dtype=_DTYPE, shape=(2, 3)
)
def vstack(arrays: Sequence[Any], /, *, dtype: Any = None, casting: Any = "same_kind") -> Any:
    given = [_widen(x, 2) for x in _arrays("vstack", arrays)]
    return concat_as("vstack", given, 0, None, dtype, casting)


@register
@documented(_STACK, how="along their third axis; matrices get one", dtype="", shape=(1, 3, 2))
def dstack(arrays: Sequence[Any], /) -> Any:
    return concat_as("dstack", [_widen(x, 3) for x in _arrays("dstack", arrays)], 2)


@register
@documented(_STACK, how="of one axis as columns, matrices as they are", dtype="", shape=(3, 2))
def column_stack(arrays: Sequence[Any], /) -> Any:
    given = []
    for x in _arrays("column_stack", arrays):
        wide = _widen(x, 1)
        if wide.ndim == 1:
            wide = wide[:, None]
        given.append(wide)
    return concat_as("column_stack", given, 1)


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
            return x[(*(None,) * (ndim - x.ndim), ...)]
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
