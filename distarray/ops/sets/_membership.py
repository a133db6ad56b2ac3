"""Membership: which items of one array another one has, and the sets that follow from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from distarray.core import (
    BaseArray,
    check_flag,
    documented,
    join_arrays,
    move,
    normalize_operand,
    register,
    replicated_layout,
    run,
)
from distarray.errors import ArgumentError, DTypeError
from distarray.ops.creation._asarray import asarray
from distarray.ops.elementwise._rounding import astype
from distarray.ops.families._values import check_one_mesh
from distarray.ops.indexing._items import getitem
from distarray.ops.manipulation._joining import concat
from distarray.ops.manipulation._reshape import reshape
from distarray.ops.searching._searchsorted import (
    FEW_BYTES,
    are_cut_alike,
    find_places,
    search_op,
)
from distarray.ops.sets._unique import Wanted, find_unique
from distarray.ops.sorting._block_sort import sort_block
from distarray.typing import Buffer

_FEW_SOUGHT: Final = 1 << 14
"""From so many sought items on those of a block are sorted, and searched for. Integers are left to
NumPy, which has a table for them, of a size that it weighs against theirs."""

_PIECE: Final = 1 << 17
"""So many are searched for at once: a few MiB with what is computed of them."""

_TABLE_BYTES_PER_ITEM: Final = 6
"""A table of the integers from the least to the greatest of a block has so many bytes an item, at
most, as NumPy's, which sorts instead where the dtype has not that range."""


def _contains(items: Buffer, sought: Buffer, invert: bool) -> Buffer:
    if sought.size <= _FEW_SOUGHT or sought.dtype.kind in "biu" or not items.size:
        return np.isin(sought, items, invert=invert)
    find, ordered = _find_sorted(invert), sort_block(items.reshape(-1))
    found = np.empty(sought.shape, bool)
    flat, target = sought.reshape(-1), found.reshape(-1)
    for start in range(0, flat.size, _PIECE):
        piece = slice(start, start + _PIECE)
        target[piece] = find(ordered, 0, flat[piece])
    return found


def _find_sorted(invert: bool) -> Callable[[Buffer, int, Buffer], Buffer]:
    """Return the function that looks for items where they belong in a sorted block."""

    def find(block: Buffer, _: int, sought: Buffer) -> Buffer:
        if not len(sought):
            return np.empty(0, bool)
        if block.dtype.kind in "iu" and sought.dtype.kind in "iu":
            bound = _TABLE_BYTES_PER_ITEM * (len(block) + len(sought))
            if int(block[-1]) - int(block[0]) < bound:
                return np.isin(sought, block, invert=invert)
        place: Any = find_places(block, sought, "left")
        nearest = block[np.minimum(place, len(block) - 1, out=place)]
        return nearest != sought if invert else nearest == sought

    return find


_member = search_op("isin", _contains, _find_sorted, lambda invert: "all" if invert else "any")


@register
def isin(
    x1: Any,
    x2: Any,
    /,
    assume_unique: bool = False,
    invert: bool = False,
    *,
    kind: Any = None,
) -> Any:
    """Tell of each item of an array whether it is among those of another.

    Parameters
    ----------
    x1, x2 : array or number
        Items, and those among which they are looked for.
    assume_unique : bool
        Has no effect.
    invert : bool
        Tell whether it is not.
    kind : {None, "sort", "table"}
        Has no effect; "table" is for integers and booleans alone.

    Returns
    -------
    DistArray
        bool, of the shape of `x1`, and cut as that is. Where `x2` is cut and `x1` is not, or has up
        to 64 KiB: `Partial`, as any block of `x2` may have an item. NaN is in nothing.

    Raises
    ------
    ArgumentError
        If there is no such kind, or no table of such items.
    DTypeError
        If NumPy does not compare the two, or one has bytes and the other text.

    Notes
    -----
    Distribution: nothing is sent where `x1` or `x2` is not cut, and up to 64 KiB of the smaller one
    are gathered, or `x2` where it has no more bytes than a block of `x1`. Else the different items
    of `x2` are found as by `unique`, and those of `x1` are looked up among them as by
    `searchsorted`. Memory beside both and the result: two blocks, and half a one between nodes.

    Examples
    --------
    >>> da.isin(da.asarray([1, 2, 3]), [3, 1, 7]).tolist()
    [True, False, True]
    """
    check_flag("isin", "assume_unique", assume_unique)
    invert = check_flag("isin", "invert", invert)
    if kind is not None and not (isinstance(kind, str) and kind in ("sort", "table")):
        raise ArgumentError(f"isin(kind={kind!r}): must be None, 'sort' or 'table'")
    x1, x2 = join_arrays(x1), join_arrays(x2)
    if not isinstance(x1, BaseArray) and not isinstance(x2, BaseArray):
        choice: Any = kind
        return np.isin(x1, x2, invert=invert, kind=choice)
    x1, x2 = (
        x if isinstance(x, BaseArray) else np.asarray(normalize_operand("isin", x))
        for x in (x1, x2)
    )
    if kind == "table" and not {x1.dtype.kind, x2.dtype.kind} <= set("biu"):
        raise ArgumentError(
            f"isin(kind='table') of {x1.dtype} in {x2.dtype}: a table is of integers; pass None"
        )
    both = isinstance(x1, BaseArray) and isinstance(x2, BaseArray)
    if both and min(x1.nbytes, x2.nbytes) > FEW_BYTES:
        check_one_mesh("isin", x1, x2)
        if are_cut_alike(x2.layout, x1.layout):
            if x2.nbytes <= x1.layout.largest_block * x1.dtype.itemsize:
                whole = replicated_layout(x2.layout.mesh, x2.shape)
                x2 = x2._new(move("isin", x2._local, x2.layout, whole), whole)
            else:
                (x2,) = find_unique(x2)
    return run(_member, (x2, x1), invert)


# --- sets -----------------------------------------------------------------------------------------


def _as_arrays(name: str, ar1: Any, ar2: Any) -> tuple[Any, Any]:
    """Return two arrays, a plain one as a distributed one beside the other."""
    check_one_mesh(name, ar1, ar2)
    mesh = (ar1 if isinstance(ar1, BaseArray) else ar2)._layout.mesh
    first, second = (
        x if isinstance(x, BaseArray) else asarray(normalize_operand(name, x), mesh=mesh)
        for x in (ar1, ar2)
    )
    return first, second


def _unique_alike(ar1: Any, ar2: Any, places: bool = False) -> list[list[Any]]:
    """Return the different items of two arrays in the dtype of both."""
    try:
        dtype = np.result_type(ar1.dtype, ar2.dtype)
    except TypeError as error:
        raise DTypeError(f"a set of items of {ar1.dtype} and {ar2.dtype}: {error}") from error
    return [find_unique(astype(x, dtype, copy=False), Wanted(places)) for x in (ar1, ar2)]


def _is_plain(ar1: Any, ar2: Any) -> bool:
    return not isinstance(ar1, BaseArray) and not isinstance(ar2, BaseArray)


_SETS = """Return the different items {what}, in ascending order.

Parameters
----------
ar1, ar2 : array
{flag}
Returns
-------
DistArray
    Cut as of `unique`.{results}

Raises
------
DTypeError
    If items have no order of their own, or NumPy has no dtype for both.

Notes
-----
Distribution: as of `unique` of both arrays, and of `isin` of their different items. Memory beside
both and the result: two blocks, of both together where the result is as large, else four of one.

Examples
--------
>>> da.{name}(da.asarray([3, 1, 3, 2]), [2, 3, 5]).tolist()
{answer}
"""


def _describe(
    what: str,
    answer: str,
    flag: str = "assume_unique : bool\n    Has no effect.\n",
    results: str = "",
) -> Callable[[Any], Any]:
    text = documented(_SETS, what=what, answer=answer, flag=flag, results=results)
    return lambda function: register(text(function))


@_describe(
    "that two arrays have in common",
    "[2, 3]",
    "assume_unique : bool\n    Has no effect.\n"
    "return_indices : bool\n    Return the places of the first of each in both as well.\n",
    results=" With `return_indices` three of them.",
)
def intersect1d(
    ar1: Any, ar2: Any, assume_unique: bool = False, return_indices: bool = False
) -> Any:
    check_flag("intersect1d", "assume_unique", assume_unique)
    index = check_flag("intersect1d", "return_indices", return_indices)
    if _is_plain(ar1, ar2):
        return np.intersect1d(ar1, ar2, return_indices=index)  # type: ignore[call-overload]
    first, second = _unique_alike(*_as_arrays("intersect1d", ar1, ar2), index)
    common = run(_member, (second[0], first[0]), False)
    result = getitem(first[0], common)
    if not index:
        return result
    others = run(_member, (first[0], second[0]), False)
    return result, getitem(first[1], common), getitem(second[1], others)


@_describe("that one of two arrays has, or both have", "[1, 2, 3, 5]", "")
def union1d(ar1: Any, ar2: Any) -> Any:
    if _is_plain(ar1, ar2):
        return np.union1d(ar1, ar2)
    found = _unique_alike(*_as_arrays("union1d", ar1, ar2))
    joined = concat([one for (one,) in found])
    del found  # makes room
    return find_unique(joined)[0]


@_describe(
    "of one array that another does not have",
    "[1]",
    "assume_unique : bool\n    Return those items of `ar1` as they lie, however often.\n",
)
def setdiff1d(ar1: Any, ar2: Any, assume_unique: bool = False) -> Any:
    assume_unique = check_flag("setdiff1d", "assume_unique", assume_unique)
    if _is_plain(ar1, ar2):
        return np.setdiff1d(ar1, ar2, assume_unique)
    first, second = _as_arrays("setdiff1d", ar1, ar2)
    items = reshape(first, (-1,)) if assume_unique else find_unique(first)[0]
    return getitem(items, isin(items, second, invert=True))


@_describe("that one of two arrays has, and not the other", "[1, 5]")
def setxor1d(ar1: Any, ar2: Any, assume_unique: bool = False) -> Any:
    check_flag("setxor1d", "assume_unique", assume_unique)
    if _is_plain(ar1, ar2):
        return np.setxor1d(ar1, ar2)
    (first,), (second,) = _unique_alike(*_as_arrays("setxor1d", ar1, ar2))
    which = [run(_member, (other, one), True) for one, other in ((first, second), (second, first))]
    first, second = getitem(first, which[0]), getitem(second, which[1])
    joined = concat([first, second])
    del first, second  # makes room
    return find_unique(joined, Wanted(equal_nan=False))[0]
