"""The different items of an array, in ascending order.

Each process sorts its block and drops what is there twice. Multiselection then divides the rest
into parts of about equal length, cut between different items, so that equal items meet on one
process, which merges what it gets; each process sends an item once, and at most one of a kind. Long
items, as parts along an axis are, are divided by a sample. Of a few items every process gets all,
in one round, and keeps its part of the different ones; where few differ on each it gets those.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np

from distarray.comm import (
    Communicator,
    Parcels,
    _backend,
    _memory,
    compress,
    gather_words,
    push_rows,
)
from distarray.core import (
    BaseArray,
    Call,
    Layouts,
    Op,
    Step,
    check_flag,
    check_integer,
    documented,
    join_arrays,
    move,
    permit_bytes,
    register,
    replicated_layout,
    run,
    several_ranks,
    unknown_shape,
)
from distarray.errors import ArgumentError
from distarray.layout import Layout, Placement, Replicate, Shard, normalize_axis
from distarray.layout import box as boxes
from distarray.ops.families._relabel import carry_cuts, move_cuts
from distarray.ops.families._values import on_host
from distarray.ops.manipulation._shape import moveaxis
from distarray.ops.sorting._block_sort import argsort_block, merge_runs, sort_block
from distarray.ops.sorting._exchange import GATHERED_BYTES, gather_lines
from distarray.ops.sorting._keys import KeyWords, longest
from distarray.ops.sorting._multiselection import ranks_of, select_cuts, select_values
from distarray.typing import Buffer

_FEW_BYTES: Final = 4 * 1024
"""Arrays of so many bytes every process gets: that takes one round, and to exchange what differs
takes three, but fewer bytes where few items differ. On two ranks of Zen 5 it took 20 us, and 33."""

_RUN_BYTES: Final = 64 * 1024
"""Of what differs on each process, and goes with it, every process gets so many bytes: more takes
longer to merge than to exchange."""

_LONG_ITEM: Final = 64
"""Bytes of items from which on a sample says where to cut: exact places take eight reductions for
each 8 bytes of an item, and as many words to be put together as it has."""
_SAMPLES_PER_RANK: Final = 16
"""For each process: so parts are at most an eighth longer than others where runs are alike."""
_SAMPLED_BYTES: Final = 1 << 24
"""Of a sample that has more items than there are processes."""


class UniqueAllResult(NamedTuple):
    """What `unique_all` returns."""

    values: Any
    indices: Any
    inverse_indices: Any
    counts: Any


class UniqueCountsResult(NamedTuple):
    """What `unique_counts` returns."""

    values: Any
    counts: Any


class UniqueInverseResult(NamedTuple):
    """What `unique_inverse` returns."""

    values: Any
    inverse_indices: Any


class Wanted(NamedTuple):
    """What is asked for beside the values."""

    places: bool = False
    inverse: bool = False
    counts: bool = False
    equal_nan: bool = True


_VALUES = Wanted()
_PIECE: Final = 1 << 17
"""So many items are numbered, or brought together, at once: some MiB with what is computed."""

_MOSTLY: Final = 0.5
"""Runs of which so much is different stay where they are: copies would need as much again."""

_WITH_MISSING = "fcmM"
"""Kinds of items that may be NaN or NaT."""

# --- the row --------------------------------------------------------------------------------------


def _spec(_: Op, call: Call) -> Layouts:
    layout = call.layouts[0].without_partial()
    if _are_few(layout, call.dtypes[0]):
        mesh = layout.mesh
        return Layouts((replicated_layout(mesh, layout.shape),), replicated_layout(mesh, (0,)))
    return Layouts((layout,), _spread(layout, (0,)), counted=0)


def _are_few(layout: Layout, dtype: Any) -> bool:
    """Tell whether every process gets all items, which are cut."""
    return not layout.is_replicated and layout.size * dtype.itemsize <= _FEW_BYTES


def _spread(layout: Layout, shape: tuple[int, ...]) -> Layout:
    """Return the layout of what is found among items of a layout."""
    return Layout(layout.mesh, _of_one_axis(layout.placements), shape)


@functools.lru_cache(maxsize=64)  # any number of this size does
def _of_one_axis(placements: tuple[Placement, ...]) -> tuple[Placement, ...]:
    return tuple([Shard(0) if type(p) is Shard else Replicate() for p in placements])


def _layout_of_result(step: Step, block: Buffer | None) -> Layout:
    """Return the layout of what every process finds of a few items."""
    if block is None:
        raise unknown_shape(step)
    return replicated_layout(step.output.mesh, block.shape)


def _dtypes(_: Op, call: Call) -> tuple[Any, Any]:
    KeyWords(call.dtypes[0])  # which refuses what has no order
    return None, call.dtypes[0]


def _bind(step: Step) -> Callable[..., Any]:
    return _Unique(step)


_unique = Op(
    "unique",
    np.unique,
    _spec,
    dtypes=_dtypes,
    bind=_bind,
    made=_layout_of_result,
)


class _Unique:
    """The local step: the different items of all blocks that have their place here."""

    def __init__(self, step: Step) -> None:
        layout = step.sources[0]
        self._comm = several_ranks(layout.mesh, step.output.sharding_axes(0))
        self._step, self._shape = step, layout.shape
        self._box = layout.local_box() or ()
        self._find = on_host(self._find_on_host)
        self._token = step.token()

    def __call__(self, *args: Any) -> Any:
        """Return the values, and the arrays asked for; that of the block's shape in `inverse`.

        Called with this list, where it is asked for, and the block.
        """
        *inverse, block = args
        parts = self._find(block)
        if inverse:
            inverse[0].append(parts[-1])
            parts = parts[:-1]
        return parts if len(parts) > 1 else parts[0]

    def _find_on_host(self, block: Buffer) -> tuple[Buffer, ...]:
        wanted, dtype = self._step.call.static, block.dtype
        items = block.reshape(-1)
        if not dtype.isnative:
            items = items.astype(dtype.newbyteorder("="))
        waits = self._comm is not None and len(items) < 1 << 31
        found = _distinct(items, wanted, np.int32 if waits else np.int64)
        own = found.inverse
        if self._comm is not None:
            rows = [found.values]
            rows += [self._global_places(found.places)] if wanted.places else []
            rows += [found.counts] if wanted.counts else []
            del found
            found, ids = self._merge(self._comm, rows, wanted)
            own = None if own is None else _taken(ids, own)
            del ids
        parts = [found.values.astype(dtype, copy=False)]
        parts += [found.places] if wanted.places else []
        parts += [found.counts] if wanted.counts else []
        parts += [own.reshape(block.shape)] if own is not None else []
        return tuple(parts)

    def _global_places(self, places: Any) -> Buffer:
        """Return the places in the flattened array of items, given theirs in the block.

        These are overwritten.
        """
        for first in range(0, len(places), _PIECE):
            piece = places[first : first + _PIECE]
            found, rest, stride = np.zeros(len(piece), np.int64), piece, 1
            for (start, stop), size in zip(self._box[::-1], self._shape[::-1], strict=True):
                rest, along = np.divmod(rest, stop - start)
                along += start
                along *= stride
                found += along
                stride *= size
            piece[...] = found
        return places

    def _merge(
        self, comm: Communicator, rows: list[Buffer], wanted: Wanted
    ) -> tuple[_Distinct, Buffer]:
        """Return what this process has of all different items, and the numbers of the own ones.

        The rows are those that are sent, the values first; the list is left empty.
        """
        run = rows[0]
        told = gather_words(comm, [len(run), longest(run)], self._token, self._step)
        lengths = [length for length, _ in told]
        total = sum(lengths)
        beside = 8 * (wanted.places + wanted.counts + wanted.inverse)
        permit_bytes(self._step.op.name, total * (run.itemsize + beside))
        most = max(lengths) * sum(row.itemsize for row in rows)
        gathers = 0 < comm.size * most <= _RUN_BYTES
        if gathers:
            lines = gather_lines(
                comm, [row[None] for row in rows], most, self._token + 2, self._step
            )
            received = [line[0] for line in lines]
            offsets = np.cumsum([0, *lengths])
        else:
            parcels = self._divide(comm, run, lengths, max(n for _, n in told), wanted.equal_nan)
            received, offsets = push_rows(comm, rows, parcels, self._token + 1, self._step)
        del run
        rows.clear()
        words = None  # which are merged with the items: what goes with them, or where it is
        if wanted.inverse or len(received) > 2:
            words = np.arange(len(received[0]))
        elif len(received) > 1:
            words = received.pop()
        run, words = merge_runs(received.pop(0), offsets, words)
        order = words if wanted.inverse or received else None
        starts = _starts(run, wanted.equal_nan)
        firsts = np.flatnonzero(starts) if beside else None
        places = counts = None
        if wanted.places:
            places = words if order is None else received.pop(0)[order]
            places = _first_places(run, places, firsts, wanted.equal_nan)
        if wanted.counts:
            counts = words if order is None else received.pop(0)[order]
            counts = _reduced(np.add, counts, firsts)
        del firsts
        if order is None:
            words = None
        values = _compact(run, starts)
        del run
        found = _Distinct(values, places, None, counts)
        if gathers:
            share = -(-len(values) // comm.size)
            own = slice(share * comm.rank, share * (comm.rank + 1))
            found = _Distinct(*[None if part is None else part[own] for part in found])
        if not wanted.inverse:
            return found, order
        if gathers:
            return found, _numbers(order, starts, 0)[slice(*offsets[comm.rank :][:2])]
        lengths = [n for (n,) in gather_words(comm, [len(values)], self._token + 4, self._step)]
        numbers = _numbers(order, starts, sum(lengths[: comm.rank]))
        del order
        back = Parcels(offsets, None)
        (ids,), _ = push_rows(comm, [numbers], back, self._token + 5, self._step)
        return found, ids

    def _divide(
        self, comm: Communicator, run: Buffer, lengths: Sequence[int], width: int, equal_nan: bool
    ) -> Parcels:
        """Return the parts of a sorted run that go to each process; equal items go to one.

        All runs have these `lengths`; the longest text has `width` characters.
        """
        total = sum(lengths)
        cuts = np.zeros(comm.size + 1, np.int64)
        cuts[-1] = len(run)
        if total:
            keys = KeyWords(run.dtype, width if run.dtype.kind in "US" else None)
            ranks = ranks_of(comm)
            places = np.arange(1, comm.size) * total // comm.size
            most = total * run.itemsize
            if 0 < most <= GATHERED_BYTES:
                (runs,) = gather_lines(comm, [run[None]], most, self._token + 2, self._step)
                splitters = sort_block(runs[0])[places]
            elif run.itemsize > _LONG_ITEM:
                splitters = self._sample(comm, run, lengths)
            else:
                splitters = select_values(run, places, keys, ranks)
            cuts[1:-1] = np.searchsorted(run, splitters, "left")
            missing = _is_missing(splitters)
            if missing.any():
                if equal_nan:  # there is one at most on each process
                    cuts[1:-1][missing] = len(run) - np.count_nonzero(_is_missing(run))
                else:  # each stays alone, wherever it goes
                    cuts[1:-1][missing] = select_cuts(run, places, keys, ranks)[missing]
        return Parcels(cuts, None)

    def _sample(self, comm: Communicator, run: Buffer, lengths: Sequence[int]) -> Buffer:
        """Return items that divide sorted runs into about equal parts: those of a regular sample.

        X. Li et al., "On the versatility of parallel sorting by regular sampling", Parallel
        Computing 19 (1993).
        """
        wanted = max(comm.size, min(_SAMPLES_PER_RANK * comm.size, _SAMPLED_BYTES // run.itemsize))
        total = sum(lengths)
        counts = [min(length, -(-length * wanted // total)) for length in lengths]
        own, most = counts[comm.rank], max(counts) * run.itemsize
        some = run[np.arange(own) * len(run) // max(own, 1)]
        (found,) = gather_lines(comm, [some[None]], most, self._token + 2, self._step)
        found = sort_block(found[0])
        return found[np.arange(1, comm.size) * len(found) // comm.size]


class _Distinct(NamedTuple):
    """The different items of a block, in ascending order."""

    values: Buffer
    places: Any
    """The place of the first of each, if it is wanted."""
    inverse: Any
    """For each item its number among the values, if it is wanted."""
    counts: Any


def _distinct(items: Buffer, wanted: Wanted, number: Any) -> _Distinct:
    """Return the different items of a block, and what else is wanted; numbers of a dtype."""
    order = argsort_block(items) if wanted.places or wanted.inverse else None
    if order is None:
        run = sort_block(items)
    else:
        run = _memory.empty(items.shape, items.dtype)  # which others read
        np.take(items, order, out=run, mode="clip")
    starts = _starts(run, wanted.equal_nan)
    values = _compact(run, starts)
    del run
    places = counts = None
    if wanted.places:
        places = compress(order, starts, _memory.empty(values.shape, np.int64))
    inverse = _numbers(order, starts, 0, number) if wanted.inverse else None
    del order
    if wanted.counts:
        firsts = np.flatnonzero(starts)
        counts = _memory.empty(values.shape, np.int64)
        np.subtract(firsts[1:], firsts[:-1], out=counts[:-1])
        counts[-1:] = len(items) - firsts[-1:]
    return _Distinct(values, places, inverse, counts)


def _compact(run: Buffer, starts: Buffer) -> Buffer:
    """Return the items of a run, which is overwritten, that differ from the ones before."""
    count = np.count_nonzero(starts)
    if count < _MOSTLY * len(run):
        return run[starts]
    stop = 0
    for start in range(0, len(run), _PIECE):
        some = run[start : start + _PIECE][starts[start : start + _PIECE]]
        run[stop : stop + len(some)] = some
        stop += len(some)
    return run[:stop]


def _numbers(order: Any, starts: Buffer, first: int, dtype: Any = np.int64) -> Buffer:
    """Return for each item, in the order before it was sorted, which of the different ones it is.

    These are counted from `first` on.
    """
    numbers: Buffer = _memory.empty(order.shape, dtype)
    for start in range(0, len(order), _PIECE):
        piece = slice(start, start + _PIECE)
        some = np.cumsum(starts[piece])
        some += first - 1
        numbers[order[piece]] = some
        first = int(some[-1]) + 1
    return numbers


def _taken(ids: Buffer, own: Buffer) -> Buffer:
    """Return the numbers that others gave the own ones."""
    taken: Buffer = _memory.empty(own.shape, np.int64)
    for start in range(0, len(own), _PIECE):
        taken[start : start + _PIECE] = ids[own[start : start + _PIECE]]
    return taken


def _starts(run: Buffer, equal_nan: bool) -> Buffer:
    """Tell of each item of a sorted run whether it differs from the one before."""
    starts = np.empty(len(run), bool)
    starts[:1] = True
    starts[1:] = run[1:] != run[:-1]
    if equal_nan and len(run) and run.dtype.kind in _WITH_MISSING and run[-1] != run[-1]:
        starts[np.searchsorted(_is_missing(run), True) + 1 :] = False
    return starts


def _is_missing(items: Buffer) -> Buffer:
    return np.isnan(items) if items.dtype.kind in _WITH_MISSING else np.zeros(items.shape, bool)


def _first_places(run: Buffer, places: Buffer, firsts: Buffer, equal_nan: bool) -> Buffer:
    """Return the least place of each item; of one NaN for all those of the first in order."""
    if equal_nan and run.dtype.kind == "c" and len(run) and np.isnan(run[-1]):
        words = KeyWords(run.dtype).encode(run[firsts[-1] :])
        places[firsts[-1] :][(words != words[0]).any(axis=1)] = np.iinfo(np.int64).max
    return _reduced(np.minimum, places, firsts)


def _reduced(ufunc: np.ufunc, items: Buffer, firsts: Buffer) -> Buffer:
    return ufunc.reduceat(items, firsts) if len(firsts) else items


# --- the functions --------------------------------------------------------------------------------


def find_unique(x: Any, wanted: Wanted = _VALUES) -> list[Any]:
    """Return the different items of a distributed array, and what else is wanted, as `unique`."""
    inverse: list[Buffer] = []
    found = run(_unique, (x,), wanted, *[inverse] * wanted.inverse)
    results = list(found) if isinstance(found, tuple) else [found]
    layout = x._layout.without_partial()
    if _are_few(layout, x.dtype):
        results = [_cut(one, _spread(layout, one.shape)) for one in results]
        if inverse:
            inverse[0] = inverse[0][boxes.slices(layout.local_box() or ())]
    if wanted.inverse:
        results.insert(1 + wanted.places, x._new(inverse[0], layout))
    return results


def _cut(whole: Any, layout: Layout) -> Any:
    """Return an array that every process has as one of another layout."""
    return whole._new(whole._local[boxes.slices(layout.own_box)], layout)


def _find_rows(x: Any, axis: Any, wanted: Wanted) -> list[Any]:
    """Return the different parts along an axis: their items are the fields of structures."""
    rows = moveaxis(x, axis, 0)
    rest = rows.shape[1:]
    width = prod(rest)
    if not _backend.is_numpy(rows._local):
        raise ArgumentError(
            f"unique(axis={axis}) of shape {x.shape} on {rows._layout.mesh.device!r}: parts must "
            "lie in host memory; take them there with x.to_device('cpu')"
        )
    source = move_cuts(rows._layout.without_partial(), range(1, rows.ndim), 0)
    block = np.ascontiguousarray(move("unique", rows._local, rows._layout, source))
    if width:
        fields = np.dtype([(f"f{i}", rows.dtype) for i in range(width)])
        items = block.reshape(len(block), width).view(fields).reshape(len(block))
    else:  # parts without items are all alike
        items = np.zeros(len(block), np.int8)
    lines = x._new(items, carry_cuts(source, rows.shape[:1], {0: 0}))
    values, *others = find_unique(lines, wanted)
    shape = (len(values._local), *rest)
    own = values._local.view(rows.dtype).reshape(shape) if width else np.empty(shape, rows.dtype)
    layout = carry_cuts(values._layout, (*values.shape, *rest), {0: 0})
    return [moveaxis(x._new(own, layout), 0, axis), *others]


@register
def unique(
    ar: Any,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    *,
    equal_nan: bool = True,
    sorted: bool = True,
) -> Any:
    """Return the different items of an array, in ascending order.

    Parameters
    ----------
    ar : array
    return_index : bool
        Return the places of their first occurrences in the flattened array as well.
    return_inverse : bool
        Return for each item its place among the different ones as well.
    return_counts : bool
        Return how often each of them occurs as well.
    axis : int, optional
        Return the different parts along this axis, in the order of their first items, then of their
        second ones, and so on; parts that have NaN are all different.
    equal_nan : bool
        Return one NaN for all, and not each.
    sorted : bool
        Has no effect: the items are always sorted.

    Returns
    -------
    DistArray or tuple of DistArray
        The values, places and counts are cut by the mesh axes that cut `ar`, into blocks of about
        equal lengths, which the values tell; `rebalance` makes them the default ones. The places of
        all items have the shape of `ar`, and are cut as it is; of parts they have one axis.

    Raises
    ------
    AxisError
        If there is no such axis.
    ArgumentError
        If the parts along an axis have no items, or are on a GPU.
    DTypeError
        If items have no order of their own.

    Notes
    -----
    Distribution: the different items of each block go to where they have their place, once, with 8
    bytes for each index and count; for `return_inverse` 8 bytes of each come back. Parts along an
    axis that are cut are brought together first; of items of more than 64 bytes 16 for each process
    are gathered, which tell where to cut. Arrays of at most 4 KiB go to every process as they are,
    and so do the different items, with what goes with them, where that is at most 64 KiB. Memory
    beside operand and results, of items of 8 bytes: a block, with counts or index two, with the
    inverse three and a half. Partial inputs are reduced first. Blocks on a GPU are sorted by NumPy
    on the host.

    Examples
    --------
    >>> values, counts = da.unique(da.asarray([3, 1, 3, 2]), return_counts=True)
    >>> values.tolist(), counts.tolist()
    ([1, 2, 3], [1, 1, 2])
    """
    index = check_flag("unique", "return_index", return_index)
    inverse = check_flag("unique", "return_inverse", return_inverse)
    counts = check_flag("unique", "return_counts", return_counts)
    equal_nan = check_flag("unique", "equal_nan", equal_nan)
    check_flag("unique", "sorted", sorted)
    ar = join_arrays(ar)
    if not isinstance(ar, BaseArray):
        return np.unique(  # type: ignore[call-overload]
            ar, index, inverse, counts, axis, equal_nan=equal_nan
        )
    if axis is not None:
        axis = normalize_axis(check_integer("unique", "axis", axis), ar.ndim)
    wanted = Wanted(index, inverse, counts, equal_nan)
    several = axis is not None and ar.ndim > 1
    results = _find_rows(ar, axis, wanted) if several else find_unique(ar, wanted)
    return tuple(results) if len(results) > 1 else results[0]


def _all_of(name: str, x: Any, wanted: Wanted) -> Sequence[Any]:
    x = join_arrays(x)
    return find_unique(x, wanted) if isinstance(x, BaseArray) else getattr(np, name)(x)


_DOCUMENTATION = """Return the different items of an array{what}.

Each NaN is different from all others; those of tiles follow one another block by block.

Parameters
----------
x : array

Returns
-------
{results}

Raises
------
DTypeError
    If items have no order of their own.

Notes
-----
Distribution: as `unique`.

Examples
--------
>>> {example}
{answer}
"""

_RESULTS = {
    "values": "values : DistArray\n    In ascending order; cut as of `unique`.",
    "indices": "indices : DistArray\n    Of their first occurrences in the flattened array.",
    "inverse_indices": (
        "inverse_indices : DistArray\n    For each item its place among the values; cut as `x` is."
    ),
    "counts": "counts : DistArray\n    How often each occurs.",
}


def _describe(what: str, names: Sequence[str], answer: str) -> Callable[[Any], Any]:
    results = "\n".join(_RESULTS[name] for name in names)
    called = "da.{name}(da.asarray([3, 1, 3]))"
    each = f"[one.tolist() for one in {called}]" if len(names) > 1 else f"{called}.tolist()"
    text = documented(
        _DOCUMENTATION.replace("{example}", each), what=what, results=results, answer=answer
    )
    return lambda function: register(text(function))


@_describe("", ("values",), "[1, 3]")
def unique_values(x: Any, /) -> Any:
    x = join_arrays(x)
    if not isinstance(x, BaseArray):
        return np.unique_values(x)
    return find_unique(x, Wanted(equal_nan=False))[0]


@_describe(" and how often each occurs", ("values", "counts"), "[[1, 3], [1, 2]]")
def unique_counts(x: Any, /) -> UniqueCountsResult:
    wanted = Wanted(counts=True, equal_nan=False)
    return UniqueCountsResult(*_all_of("unique_counts", x, wanted))


@_describe(
    " and each item's place among them", ("values", "inverse_indices"), "[[1, 3], [1, 0, 1]]"
)
def unique_inverse(x: Any, /) -> UniqueInverseResult:
    wanted = Wanted(inverse=True, equal_nan=False)
    return UniqueInverseResult(*_all_of("unique_inverse", x, wanted))


@_describe(
    ", where and how often they occur", tuple(_RESULTS), "[[1, 3], [1, 0], [1, 0, 1], [1, 2]]"
)
def unique_all(x: Any, /) -> UniqueAllResult:
    wanted = Wanted(True, True, True, False)
    return UniqueAllResult(*_all_of("unique_all", x, wanted))
