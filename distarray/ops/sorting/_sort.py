"""Sorting along an axis: items, their positions, the greatest of them, in the layout that they had.

Where the axis is not cut each process sorts its lines. Of a few lines that are cut each item moves
once, to the process of its place (`_exchange`). Many lines, or few items, are made whole first, by
cutting another axis instead, and come back sorted; where no other axis can be cut they are sorted
some at a time.

Blocks on GPUs are sorted in host memory: NumPy's order of NaN, of zeros and of equal items is not
that of their libraries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod
from typing import Any, Final

import numpy as np

from distarray.comm import _backend, _memory
from distarray.core import (
    BaseArray,
    Call,
    Layouts,
    Op,
    Step,
    check_choice,
    check_distributed,
    check_flag,
    check_integer,
    check_writable,
    describe,
    normalize_arrays,
    plain_buffer,
    register,
    run,
    run_one,
    write_out,
)
from distarray.errors import ArgumentError, ArgumentTypeError, ShapeError
from distarray.layout import Layout, normalize_axis
from distarray.ops.elementwise._rounding import astype
from distarray.ops.families._relabel import move_cuts, resize_axis
from distarray.ops.manipulation._joining import unstack
from distarray.ops.manipulation._reshape import change_shape
from distarray.ops.sorting import _exchange
from distarray.ops.sorting._block_sort import argsort_block, sort_block
from distarray.ops.sorting._exchange import drain, gather_lines, sort_across
from distarray.ops.sorting._keys import KeyWords
from distarray.redistribute import redistribute_local
from distarray.typing import Buffer

_MOST_LINES: Final = 32
"""So many cut lines are sorted at once: what more of them cost, counts of splitters, soon exceeds
what it costs to cut another axis and back."""

_REDISTRIBUTED_ITEMS: Final = 1 << 17
"""Blocks of so many items go there and back in less time than splitters are found: on two ranks of
Zen 4 30 lines of 1,000 items took 2.7 ms, and take 0.3; with 2**20 items both ways take as long."""

_BATCH_ITEMS: Final = 1 << 14
"""So many items of whole lines, or one line, are put in order at once, with keys made of them."""

_NEGATED: Final = "fcmM"
"""Kinds of items that have a negative, and of which some have no place in the order."""

_KINDS: Final = (None, "quicksort", "heapsort", "mergesort", "stable")

Lines = tuple[Buffer, ...]
"""Of each operand, or result, the lines along the axis: arrays of two axes."""


# --- one axis of blocks --------------------------------------------------------------------------


def _layouts(_: Op, call: Call) -> Layouts:
    """Return the layouts of operands, all that of one of them, and of the result.

    The static arguments are the axis, the length that it has in the result or None, (...), and, of
    several operands, which one has the layout.
    """
    axis, length = call.static[:2]
    model = call.static[-1] if len(call.layouts) > 1 else 0
    source = call.layouts[model].without_partial()
    output = _resized(source, axis, length)
    inputs = (source,) * len(call.layouts)
    turned = _find_turned(source, axis)
    if turned is not None:
        back = _resized(turned, axis, length), output, True
        return Layouts(inputs, output, ((source, turned, True), back))
    sends = ((source, output, False),) if source.partition(axis).count > 1 else ()
    return Layouts(inputs, output, sends)


def _resized(layout: Layout, axis: int, length: int | None) -> Layout:
    return layout if length is None else resize_axis(layout, axis, length)


def _find_turned(layout: Layout, axis: int) -> Layout | None:
    """Return the layout with another axis cut in place of this one; None: it is sorted as it is."""
    count = layout.partition(axis).count
    others = [a for a in range(layout.ndim) if a != axis]
    lines = prod(layout.shape[a] // layout.partition(a).count for a in others)
    few = lines <= _MOST_LINES and layout.largest_block > _REDISTRIBUTED_ITEMS
    if count == 1 or lines < count or few:
        return None
    other = max(others, key=lambda a: layout.shape[a] // layout.partition(a).count)
    if layout.shape[other] // layout.partition(other).count < count:
        return None
    return move_cuts(layout, (axis,), other)


def _along_axis(
    step: Step,
    whole: Callable[..., Lines],
    across: Callable[..., Lines],
    beside: int | None = None,
) -> Callable[..., Any]:
    """Return the function of blocks that sorts their lines.

    Parameters
    ----------
    step : Step
    whole : callable
        Takes whole lines of the operands.
    across : callable
        Takes a communicator, parts of lines, the offsets of the result, a token and what it is of.
    beside : int, optional
        Bytes that go with each item of a line. Then a few short lines are made whole instead.
    """
    axis, length = step.call.static[:2]
    source, output = step.sources[0], step.output
    turned = _find_turned(source, axis)
    back = None if turned is None else _resized(turned, axis, length)
    mesh: Any = source.mesh
    comm = None
    if turned is None and source.partition(axis).count > 1:
        comm = mesh.communicator(source.sharding_axes(axis))
    offsets = np.array(output.partition(axis).offsets)
    number = step.token()
    most = 0
    """Bytes that all ranks have together, where they are gathered."""
    if comm is not None and beside is not None:
        itemsizes = [dtype.itemsize for dtype in step.call.dtypes]
        others = prod([n for a, n in enumerate(source.local_shape()) if a != axis])
        nbytes = others * source.shape[axis] * (sum(itemsizes) + beside)
        if others <= _MOST_LINES and all(itemsizes) and nbytes <= _exchange.GATHERED_BYTES:
            mine, most = slice(*output.partition(axis).bounds(comm.rank)), nbytes

    def function(*blocks: Buffer) -> Any:
        device = _backend.device_of(blocks[0])
        if turned is not None:
            blocks = tuple([redistribute_local(one, source, turned) for one in blocks])
        moved = [_backend.to_host(one).swapaxes(axis, -1) for one in blocks]
        del blocks  # makes room
        shape = moved[0].shape[:-1]
        count = prod(shape)
        lines = [one.reshape(count, one.shape[-1]) for one in drain(moved)]
        if comm is None:
            found = whole(*lines)
        elif most:
            everything = gather_lines(comm, lines, most, number, step)
            found = tuple([one[:, mine] for one in whole(*everything)])
        else:
            groups = [
                across(comm, [one[i : i + _MOST_LINES] for one in lines], offsets, number, step)
                for i in range(0, max(count, 1), _MOST_LINES)
            ]
            found = tuple([_joined(parts) for parts in zip(*groups, strict=True)])
            del groups
        left, results = [*found], []
        del lines, found
        for one in drain(left):
            block = one.reshape(*shape, one.shape[-1]).swapaxes(axis, -1)
            del one
            block = _backend.asarray(np.ascontiguousarray(block), device)
            if turned is not None and back is not None:
                block = redistribute_local(block, back, output)
            results.append(block)
        return tuple(results) if len(results) > 1 else results[0]

    return function


def _joined(parts: Sequence[Buffer]) -> Buffer:
    """Return lines one after the other; `np.concatenate` would change another byte order."""
    return np.concatenate(parts, dtype=parts[0].dtype) if len(parts) > 1 else parts[0]


def _first_item(step: Step) -> int:
    """Return where this process's part of a line begins."""
    return step.sources[0].own_box[step.call.static[0]][0]


# --- rows: static is (axis, length, descending, stable, fields) ----------------------------------


def _sort_dtypes(_: Op, call: Call) -> tuple[Any, Any]:
    KeyWords(call.dtypes[0])  # which refuses what has no order
    return call.dtypes[0], call.dtypes[0]


def _bind_sort(step: Step) -> Callable[[Buffer], Buffer]:
    _, _, descending, stable, fields = step.call.static
    dtype = step.result
    negates = descending and dtype.kind in _NEGATED
    options = {"descending": descending and not negates, "stable": stable}

    def key(lines: Buffer) -> Buffer:
        lines = _by_fields(lines, fields)
        return _negative(lines) if negates else lines

    def items(found: Buffer) -> Lines:
        return (_from_fields(_negative(found, found) if negates else found, dtype),)

    def whole(lines: Buffer) -> Lines:
        return items(sort_block(key(lines), **options))

    def across(comm: Any, parts: Sequence[Buffer], *where: Any) -> Lines:
        found, _ = sort_across(comm, [key(parts[0])], *where, **options)
        return items(found)

    return _along_axis(step, whole, across, beside=0)


def _negative(lines: Buffer, out: Buffer | None = None) -> Buffer:
    """Return items with the other order, but for NaN and NaT: these stay themselves, and last.

    So they come last in descending order as well, as in NumPy, and equal items stay in order.
    """
    if lines.dtype.kind not in "mM":
        return np.negative(lines, out=out)
    ticks = None if out is None else out.view(np.int64)
    return np.negative(lines.view(np.int64), out=ticks).view(lines.dtype)


def _by_fields(lines: Buffer, fields: Sequence[str]) -> Buffer:
    """Return items in native byte order, with the fields that are compared first as the first."""
    dtype = lines.dtype
    if not fields and dtype.isnative:
        return lines
    if fields:
        rest = [name for name in dtype.names or () if name not in fields]
        dtype = np.dtype([(name, dtype[name]) for name in (*fields, *rest)])
        out = np.empty(lines.shape, dtype.newbyteorder("="))
        for name in out.dtype.names or ():
            out[name] = lines[name]
        return out
    return lines.astype(dtype.newbyteorder("="), copy=False)


def _from_fields(lines: Buffer, dtype: Any) -> Buffer:
    if lines.dtype == dtype:
        return lines
    out = np.zeros(lines.shape, dtype)
    for name in dtype.names or ():
        out[name] = lines[name]
    if dtype.names is None:
        out[...] = lines
    return out


_sort = Op("sort", np.sort, _layouts, dtypes=_sort_dtypes, bind=_bind_sort)


def _order_dtypes(_: Op, call: Call) -> tuple[Any, Any]:
    for dtype in call.dtypes:
        KeyWords(dtype)
    return np.dtype(np.int64), np.dtype(np.int64)


def _bind_order(step: Step) -> Callable[..., Buffer]:
    descending, _, fields = step.call.static[2:5]
    first = _first_item(step)

    negates = descending and step.call.dtypes[0].kind in _NEGATED
    descending = descending and not negates

    def key(parts: Sequence[Buffer]) -> Buffer:
        lines = _by_fields(parts[0], fields) if len(parts) == 1 else _words(parts)
        return _negative(lines) if negates else lines

    def whole(*lines: Buffer) -> Lines:
        found: Buffer = _memory.empty(lines[0].shape, np.int64)
        at_once = max(_BATCH_ITEMS // max(found.shape[1], 1), 1)
        for i in range(0, len(found), at_once):
            some = [one[i : i + at_once] for one in lines]
            found[i : i + at_once] = argsort_block(key(some), descending=descending)
        return (found,)

    def across(comm: Any, parts: Sequence[Buffer], *where: Any) -> Lines:
        _, found = sort_across(comm, [key(parts)], *where, first=first, descending=descending)
        return tuple(found)

    return _along_axis(step, whole, across, beside=8)


def _words(parts: Sequence[Buffer]) -> Buffer:
    """Return keys that compare as the last of some lines, then as the one before it, and so on."""
    keys = [KeyWords(one.dtype) for one in parts]
    counts = [len(one.bits) for one in keys]
    count = sum(counts)
    words = _memory.empty((*parts[0].shape, count), np.uint64)
    for encoded, one, start in zip(keys, parts, np.cumsum(counts[::-1])[::-1], strict=True):
        width = len(encoded.bits)
        words[..., start - width : start] = encoded.encode(one)
    if count < 2:
        return words[..., 0] if count else np.zeros(words.shape[:-1], np.uint64)
    dtype = np.dtype([(f"word{i}", np.uint64) for i in range(count)])
    return words.view(dtype)[..., 0]


_argsort = Op("argsort", np.argsort, _layouts, dtypes=_order_dtypes, bind=_bind_order)
_lexsort = Op("lexsort", np.lexsort, _layouts, dtypes=_order_dtypes, bind=_bind_order)


def _topk_dtypes(_: Op, call: Call) -> tuple[Any, Any]:
    KeyWords(call.dtypes[0])
    return call.dtypes[0], (call.dtypes[0], np.dtype(np.int64))


def _bind_topk(step: Step) -> Callable[[Buffer], tuple[Buffer, Buffer]]:
    axis, k, largest, _, _ = step.call.static
    first = _first_item(step)
    offsets = step.sources[0].partition(axis).offsets
    total = sum(min(k, stop - start) for start, stop in pairwise(offsets))

    def foremost(lines: Buffer) -> Lines:
        native = _by_fields(lines, ())
        order = np.empty((len(lines), min(k, lines.shape[1])), np.int64)
        for places, line in zip(order, native, strict=True):
            places[...] = _top_places(line, k, largest)
        return np.take_along_axis(native, order, -1), order

    def whole(lines: Buffer) -> Lines:
        values, order = foremost(lines)
        return _from_fields(values, step.call.dtypes[0]), order

    def across(comm: Any, parts: Sequence[Buffer], *where: Any) -> Lines:
        values, order = foremost(parts[0])
        order += first
        given = [values, order]
        del values, order  # makes room
        values, (order,) = sort_across(comm, given, *where, total=total, descending=largest)
        return _from_fields(values, step.call.dtypes[0]), order

    return _along_axis(step, whole, across)


def _top_places(line: Buffer, k: int, largest: bool) -> Buffer:
    """Return where the greatest, or least, items of a line are, in order; all of a short one."""
    if line.dtype.kind in "biuf" and 0 < k < len(line):
        place = len(line) - k if largest else k - 1
        bound = np.partition(line, place)[place]
        among = np.flatnonzero(~((line < bound) if largest else (line > bound)))
        if bound == bound and not largest:  # NaN is not greater than anything, and comes last
            among = among[line[among] == line[among]]
        return among[argsort_block(line[among], descending=largest)[:k]]
    return argsort_block(line, descending=largest)[:k]


_topk = Op("topk", np.partition, _layouts, dtypes=_topk_dtypes, bind=_bind_topk)


# --- functions -----------------------------------------------------------------------------------


@register
def sort(
    x: Any,
    /,
    axis: int | None = -1,
    kind: str | None = None,
    order: str | Sequence[str] | None = None,
    *,
    descending: bool = False,
    stable: bool | None = None,
) -> Any:
    """Return the items in order along an axis.

    Parameters
    ----------
    x : DistArray
        Of booleans, numbers, dates, text, raw bytes or structures of them.
    axis : int or None
        None sorts all items, as one axis.
    kind : {"quicksort", "heapsort", "mergesort", "stable"}, optional
        The first two leave the signs of zeros, and which NaN it is, to chance; else every sort is
        stable.
    order : str or sequence of str, optional
        Fields of a structure that are compared first.
    descending : bool
        Equal items stay in order, and NaN and NaT come last, too; in fields of structures first.
    stable : bool, optional
        False: as kind="quicksort".

    Returns
    -------
    DistArray
        With the layout of `x`, whatever the values: blocks keep their lengths. In NumPy's order:
        NaN and NaT come last, -0.0 equals 0.0.

    Raises
    ------
    AxisError
        If there is no such axis.
    DTypeError
        If items of the dtype have no order of their bits, such as objects.

    Notes
    -----
    Distribution: along an uncut axis each process sorts its lines. Of at most 32 lines that are cut
    each block counts its items below some keys (a few reductions of at most 64 KiB), then every
    item moves once, to its place. Further lines, and blocks of at most 131,072 items, are
    redistributed so that another axis is cut, and back; without such an axis lines are sorted
    32 at a time. Memory: two blocks besides the result.
    Partial inputs are reduced first. Blocks on GPUs are sorted in host memory.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.sort(da.asarray([3.0, float("nan"), -1.0, 2.0])))
    [-1.  2.  3. nan]
    """
    x, axis, static = _arguments("sort", x, axis, kind, order, descending, stable)
    return run_one(_sort, x, (axis, None, *static))


@register
def argsort(
    x: Any,
    /,
    axis: int | None = -1,
    kind: str | None = None,
    order: str | Sequence[str] | None = None,
    *,
    descending: bool = False,
    stable: bool | None = None,
) -> Any:
    """Return where along an axis the items are, in their order.

    Parameters
    ----------
    x : DistArray
    axis : int or None
        None: places in the array as one axis.
    kind : str, optional
        As for `sort`; but here every sort is stable.
    order : str or sequence of str, optional
        Fields of a structure that are compared first.
    descending : bool
        Equal items stay in order, and NaN and NaT come last, too; in fields of structures first.
    stable : bool, optional

    Returns
    -------
    DistArray
        int64, with the layout of `x`. Of equal items the first in `x` comes first.

    Raises
    ------
    AxisError
        If there is no such axis.
    DTypeError
        If items of the dtype have no order of their bits, such as objects.

    Notes
    -----
    Distribution: as `sort`; an item takes its place along, 8 bytes. Memory besides the result, of
    real numbers: that of the items twice, and three times 8 bytes an item.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.argsort(da.asarray([3.0, 1.0, 2.0, 1.0])))
    [1 3 2 0]
    """
    x, axis, static = _arguments("argsort", x, axis, kind, order, descending, stable)
    return run_one(_argsort, x, (axis, None, *static))


@register
def lexsort(keys: Any, axis: int = -1) -> Any:
    """Return where along an axis the items are, in the order of several keys.

    Parameters
    ----------
    keys : sequence of DistArray or array, or DistArray
        Of one shape. The last is compared first, and where it is equal the one before it. Of a
        DistArray the rows are the keys.
    axis : int

    Returns
    -------
    DistArray
        int64, with the layout of the last key that is distributed.

    Raises
    ------
    ShapeError
        If there is no key, or the shapes differ.
    AxisError
        If there is no such axis.
    DTypeError
        If items of a key have no order of their bits, such as objects.

    Notes
    -----
    Distribution: keys are brought to one layout. Then as `argsort`; an item is as many integers of
    8 bytes as its keys have words. Memory of lines that are cut, besides the result: these words
    three times, and 8 bytes an item.

    Examples
    --------
    >>> import distarray as da
    >>> first, then = da.asarray([1, 0, 1, 0]), da.asarray([4, 3, 2, 1])
    >>> print(da.lexsort((then, first)))
    [3 1 2 0]
    """
    if isinstance(keys, BaseArray):
        keys = unstack(keys) if keys.ndim else (keys,)
    try:
        given = list(keys)
    except TypeError:
        raise ArgumentTypeError(
            f"lexsort got {describe(keys)}; pass a sequence of arrays"
        ) from None
    given = normalize_arrays("lexsort", given)
    shapes = [tuple(one.shape) for one in given]
    if len(set(shapes)) != 1:
        raise ShapeError(f"lexsort got keys of shapes {tuple(shapes)}; pass some, of one shape")
    model = next((i for i in reversed(range(len(given))) if isinstance(given[i], BaseArray)), -1)
    check_distributed("lexsort", given[model])
    along = normalize_axis(axis, len(shapes[0]))
    return run(_lexsort, given, (along, None, False, True, (), model))


@register
def partition(
    x: Any,
    /,
    kth: Any,
    axis: int | None = -1,
    kind: str = "introselect",
    order: str | Sequence[str] | None = None,
) -> Any:
    """Return the items so that some are in their places in order, with none greater before them.

    Parameters
    ----------
    x : DistArray
    kth : int or sequence of int
        The places; negative ones count from the end.
    axis : int or None
    kind : {"introselect"}
    order : str or sequence of str, optional

    Returns
    -------
    DistArray
        All items in order, which is one of the results that there may be, and the same for every
        layout; see `sort`.

    Raises
    ------
    ArgumentError
        If there is no such place.
    AxisError
        If there is no such axis.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.partition(da.asarray([3, 1, 2]), 1)[1])
    2
    """
    _check_places("partition", x, kth, axis, kind)
    return sort(x, axis, order=order)


@register
def argpartition(
    x: Any,
    /,
    kth: Any,
    axis: int | None = -1,
    kind: str = "introselect",
    order: str | Sequence[str] | None = None,
) -> Any:
    """Return where the items are that `partition` puts one after the other.

    Parameters, errors and layout are those of `partition`; the result is that of `argsort`.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.argpartition(da.asarray([3, 1, 2]), 1))
    [1 2 0]
    """
    if check_distributed("argpartition", x).size:  # as in NumPy
        _check_places("argpartition", x, kth, axis, kind)
    return argsort(x, axis, order=order)


@register
def sort_complex(x: Any, /) -> Any:
    """Return the items in order along the last axis, as complex numbers.

    Parameters
    ----------
    x : DistArray

    Returns
    -------
    DistArray
        complex64 of integers of 8 and 16 bits, else complex128 or what holds the items; see `sort`.

    Raises
    ------
    AxisError
        If `x` has no axis.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.sort_complex(da.asarray([3.0, 1.0])))
    [1.+0.j 3.+0.j]
    """
    found = sort(x)
    if found.dtype.kind == "c":
        return found
    code = "F" if found.dtype.char in "bhBH" else "G" if found.dtype.char == "g" else "D"
    return astype(found, np.dtype(code))


@register
def topk(x: Any, /, k: int, axis: int = -1, *, largest: bool = True) -> tuple[Any, Any]:
    """Return the greatest items along an axis, or the least, and where they are.

    Parameters
    ----------
    x : DistArray
    k : int
        How many; at most the length of the axis.
    axis : int
    largest : bool
        False: the least items.

    Returns
    -------
    values : DistArray
        The best first; NaN counts as greater than all numbers. Cut as `x` is, along the axis by the
        default split.
    indices : DistArray
        int64, with that layout. Of equal items the first in `x` comes first.

    Raises
    ------
    ArgumentError
        If there are not as many items.
    AxisError
        If there is no such axis.

    Notes
    -----
    Distribution: of each block at most `k` items a line are candidates; they are sorted as by
    `argsort`, and the first `k` move to their places.

    Examples
    --------
    >>> import distarray as da
    >>> values, indices = da.topk(da.asarray([3, 7, 1, 7]), 2)
    >>> print(values, indices)
    [7 7] [1 3]
    """
    check_distributed("topk", x)
    k = check_integer("topk", "k", k)
    largest = check_flag("topk", "largest", largest)
    along = normalize_axis(axis, x.ndim)
    if not 0 <= k <= x.shape[along]:
        raise ArgumentError(
            f"topk got k={k} for axis {along} of length {x.shape[along]}; it must be from 0 to that"
        )
    values, indices = run(_topk, (x,), (along, k, largest, True, ()))
    return values, indices


# --- methods that write into the array -----------------------------------------------------------


def sort_in_place(
    x: Any,
    /,
    axis: int = -1,
    kind: str | None = None,
    order: str | Sequence[str] | None = None,
    *,
    descending: bool = False,
    stable: bool | None = None,
) -> None:
    """Put the items in order along an axis; see `distarray.sort`.

    Examples
    --------
    >>> import distarray as da
    >>> x = da.asarray([3, 1, 2])
    >>> x.sort()
    >>> print(x)
    [1 2 3]
    """
    check_writable("sort", check_distributed("sort", x))
    given = sort(
        x, check_integer("sort", "axis", axis), kind, order, descending=descending, stable=stable
    )
    write_out("sort", x, given)


def partition_in_place(
    x: Any,
    /,
    kth: Any,
    axis: int = -1,
    kind: str = "introselect",
    order: str | Sequence[str] | None = None,
) -> None:
    """Put the items at some places in order along an axis; see `distarray.partition`.

    Examples
    --------
    >>> import distarray as da
    >>> x = da.asarray([3, 1, 2])
    >>> x.partition(0)
    >>> int(x[0])
    1
    """
    check_writable("partition", check_distributed("partition", x))
    axis = check_integer("partition", "axis", axis)
    write_out("partition", x, partition(x, kth, axis, kind, order))


# --- arguments -----------------------------------------------------------------------------------


def _arguments(
    name: str, x: Any, axis: Any, kind: Any, order: Any, descending: Any, stable: Any
) -> tuple[Any, int, tuple[bool, bool, tuple[str, ...]]]:
    """Return the array that is sorted, the axis, and whether descending, whether stable, fields."""
    check_distributed(name, x)
    descending = check_flag(name, "descending", descending)
    check_choice(name, "kind", kind, _KINDS)
    if stable is None:
        stable = kind not in ("quicksort", "heapsort")
    elif kind is not None:
        raise ArgumentError(f"{name} got kind={kind!r} and stable={describe(stable)}; pass one")
    else:
        stable = check_flag(name, "stable", stable)
    fields = () if order is None else _fields(name, x.dtype, order)
    along = 0 if axis is None else normalize_axis(axis, x.ndim)
    return (change_shape(x, (-1,)) if axis is None else x), along, (descending, stable, fields)


def _fields(name: str, dtype: Any, order: Any) -> tuple[str, ...]:
    """Return the names of the fields that are compared first."""
    fields = (order,) if isinstance(order, str) else order
    known = isinstance(fields, (list, tuple)) and dtype.names is not None
    if not known or any(fields.count(one) != 1 or one not in dtype.names for one in fields):
        raise ArgumentError(
            f"{name}(order={describe(order)}) of items of {dtype}: pass names of fields, each once"
        )
    return tuple(fields)


def _check_places(name: str, x: Any, kth: Any, axis: Any, kind: Any) -> None:
    """Refuse places that an axis does not have."""
    check_distributed(name, x)
    check_choice(name, "kind", kind, ["introselect"])
    size = x.size if axis is None else x.shape[normalize_axis(axis, x.ndim)]
    places = np.asarray(plain_buffer(kth, name, objects=True))
    if places.size and (places.dtype.kind not in "iu" or places.ndim > 1):
        raise ArgumentTypeError(f"{name}(kth={describe(kth)}): pass an integer, or a list of them")
    if x.size and any(not -size <= place < size for place in places.reshape(-1).tolist()):
        raise ArgumentError(
            f"{name}(kth={describe(kth)}): places of an axis of length {size} are from {-size} to "
            f"{size - 1}"
        )
