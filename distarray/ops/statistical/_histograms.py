"""Counting: histograms in one and several dimensions, integers one by one, bins of items.

All blocks have the same edges, found from the least and the greatest of all items, so that each
process counts its own items and the counts add up: the result is `Partial`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from distarray.comm import Communicator, Parcels, _backend, push_rows
from distarray.core import (
    BaseArray,
    Call,
    Layouts,
    Op,
    Step,
    as_block,
    check_distributed,
    check_flag,
    join_arrays,
    move,
    normalize_operand,
    register,
    run,
)
from distarray.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from distarray.layout import Layout, Partial, Replicate, Shard
from distarray.ops.creation._asarray import asarray
from distarray.ops.elementwise import _arithmetic as arithmetic
from distarray.ops.elementwise import _logic as logic
from distarray.ops.elementwise._rounding import astype
from distarray.ops.families._relabel import carry_cuts, move_cuts
from distarray.ops.families._values import (
    ErrorsOfNumPy,
    check_one_mesh,
    give_values,
    on_host,
    read_values,
)
from distarray.ops.indexing._items import getitem
from distarray.ops.manipulation._shape import flip
from distarray.ops.searching import _bins
from distarray.ops.searching._searchsorted import searchsorted
from distarray.ops.statistical import _moments as moments
from distarray.ops.statistical import _quantiles as quantiles
from distarray.ops.statistical import _reductions as reductions
from distarray.typing import Buffer

_ALWAYS_DENSE: Final = 8192
"""Up to so many integers each process has the counts of all; of more those that none of its items
may equal would cost more than the items."""

_DENSE_FACTOR: Final = 4
"""Of up to so many times the items of a block each process counts all, and the counts are reduced
to their owners.

Measured on Zen 5, of 4 Mi items on each of two ranks: for 2 to 16 times as many integers this takes
half the time or less; four bounds the memory.
"""

_NUMBERS: Final = "iuf"
"""Kinds of items that NumPy counts in any bins."""


# --- counts of blocks, which add up ---------------------------------------------------------------


def _spec(_: Op, call: Call) -> Layouts:
    """Return layouts that cut all operands alike, along the first axis where rows are whole."""
    shape, _, combine, has_rows = call.static
    first = call.layouts[0].without_partial()
    if has_rows:
        first = move_cuts(first, range(1, first.ndim), 0)
    lines = carry_cuts(first, first.shape[:1], {0: 0}) if has_rows else first
    placements = [Partial(combine) if type(p) is Shard else Replicate() for p in first.placements]
    output = first.replace(placements=placements, shape=shape, boundaries=None)
    return Layouts((first, *[lines] * (len(call.layouts) - 1)), output)


def _bind(step: Step) -> Callable[..., Buffer]:
    shape, dtype, *_ = step.call.static

    @on_host
    def count(function: Callable[..., Any], *blocks: Buffer) -> Any:
        if not blocks[0].size:
            return np.zeros(shape, dtype)
        return np.asarray(function(*blocks), dtype)

    return count


_count = Op(
    "histogram", np.histogram, _spec, dtypes=lambda _, call: (call.static[1],) * 2, bind=_bind
)


def _count_items(
    name: str,
    operands: Sequence[Any],
    function: Callable[..., Any],
    dtype: Any,
    edges: Sequence[np.ndarray],
    has_rows: bool = False,
) -> Any:
    """Return the sum of what a function counts in all blocks between edges along each axis.

    Of plain numbers these are counts of a dtype; of weights, and others, one item is tried first.
    """
    shape, combine = tuple([len(one) - 1 for one in edges]), "sum"
    has_weights = len(operands) > (1 if has_rows else len(edges))
    if has_weights or any(x.dtype.kind not in _NUMBERS for x in operands):
        tried = [np.zeros((1, *x.shape[1:]) if has_rows else 1, x.dtype) for x in operands]
        with ErrorsOfNumPy(name), np.errstate(all="ignore"):
            dtype = np.asarray(function(*tried)).dtype
        combine = "any" if dtype.kind == "b" else "sum"
    return run(_count, operands, (shape, np.dtype(dtype), combine, has_rows), function)


def _normalize(name: str, value: Any, shape: tuple[int, ...]) -> Any:
    """Return an operand beside the items, of their shape, as an array."""
    if not isinstance(value, BaseArray):
        value = as_block(normalize_operand(name, value))
        value = np.asarray(value) if not _backend.is_buffer(value) else value
    if value.shape != shape:
        raise ShapeError(f"{name} of shape {value.shape} for items of shape {shape}")
    return value


# --- edges ----------------------------------------------------------------------------------------


def _read(name: str, value: Any) -> Any:
    """Return edges or other small arguments, distributed or not, as plain values."""
    if isinstance(value, BaseArray):
        return read_values(name, value)
    if _backend.is_cupy(value):
        return _backend.to_host(value)
    if isinstance(value, (list, tuple)) and any(isinstance(one, BaseArray) for one in value):
        return [_read(name, one) for one in value]
    return value


def _check_plain(name: str, sample: Any, *others: Any) -> None:
    """Refuse distributed bins or weights of a sample that is not distributed."""
    if any(isinstance(one, BaseArray) for one in others):
        check_distributed(f"{name} of distributed bins or weights", sample)


def _each(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else [value]


def _limits(name: str, limits: Any) -> Any:
    """Return the argument `range`: two numbers, or None."""
    if limits is None:
        return None
    with ErrorsOfNumPy(name):
        first, last = _read(name, limits)
        np.isfinite([first, last])
    return first, last


def _extent(name: str, x: BaseArray, axis: int | None = None) -> tuple[Any, Any]:
    """Return the least and the greatest item (along an axis), as plain values."""
    if not x.size:
        nothing = np.zeros(() if axis is None else x.shape[1:], x.dtype)
        return nothing[()], nothing[()]
    ends = reductions.min(x, axis=axis), reductions.max(x, axis=axis)
    low, high = (read_values(name, end)[()] for end in ends)
    return low, high


def _find_edges(
    name: str, x: BaseArray, bins: Any, limits: Any, is_weighted: bool
) -> tuple[int | np.ndarray, Any, np.ndarray]:
    """Return the number of equal bins and their outer edges, or edges and None; and all edges."""
    limits = _limits(name, limits)
    if isinstance(bins, str):
        if is_weighted:
            raise ArgumentTypeError(f"{name}(bins={bins!r}) takes no weights=; give their number")
        outer, number = _estimate(name, x, bins, limits)
    else:
        bins = normalize_operand(name, _read(name, bins))
        with ErrorsOfNumPy(name):
            checked = _bins.check_bins(name, bins)
        if not isinstance(checked, int):
            with ErrorsOfNumPy(name):
                np.result_type(x.dtype, checked)  # or it would compare objects, where there are any
            return checked, None, checked
        number = checked
        zero: Any = np.zeros((), x.dtype)[()]
        extent = (zero, zero) if limits is not None else _extent(name, x)
        with ErrorsOfNumPy(name):
            outer = _bins.outer_edges(x.size, *extent, limits)
    with ErrorsOfNumPy(name):
        return number, outer, _bins.equal_edges(number, outer, x.dtype)


def _estimate(name: str, x: BaseArray, rule: str, limits: Any) -> tuple[Any, int]:
    """Return the outer edges and the number of bins that a rule gives."""
    low, high = _extent(name, x)
    with ErrorsOfNumPy(name):
        outer = _bins.outer_edges(x.size, low, high, limits)
    if limits is not None:
        inside = logic.logical_and(logic.greater_equal(x, outer[0]), logic.less_equal(x, outer[1]))
        x = getitem(x, inside)
        low, high = _extent(name, x)

    def of(function: Callable[..., Any], *args: Any) -> Any:
        return read_values(name, function(x, *args))[()]

    def skewness() -> Any:
        scaled = arithmetic.divide(arithmetic.subtract(x, of(moments.mean)), of(moments.std))
        return read_values(name, moments.mean(arithmetic.power(scaled, 3)))[()]

    def quartiles() -> tuple[Any, Any]:
        low, high = of(quantiles.percentile, [25, 75])
        return low, high

    def counts(number: int) -> np.ndarray:
        return read_values(name, histogram(x, number, limits)[0])

    sample = _bins.Sample(
        x.dtype, x.size, low, high, lambda: of(moments.std), skewness, quartiles, counts
    )
    return outer, _bins.estimate_bins(rule, sample, outer)


def _countable(x: BaseArray) -> BaseArray:
    """Return items that can be subtracted, with NumPy's warning."""
    _bins.as_countable(np.empty(0, x.dtype))
    return astype(x, np.uint8) if x.dtype == bool else x  # type: ignore[no-any-return]


# --- histograms -----------------------------------------------------------------------------------


@register
def histogram(
    a: Any, bins: Any = 10, range: Any = None, density: Any = None, weights: Any = None
) -> Any:
    """Return how many items fall into each bin, and the edges of the bins.

    Parameters
    ----------
    a : array
    bins : int or array or str
        A number of equal bins, or their edges, or a rule that finds a number, as for
        `histogram_bin_edges`.
    range : (number, number), optional
        The outer edges of equal bins; default: the least and the greatest item.
    density : bool, optional
        Return the density, whose integral is 1, in place of counts.
    weights : array, optional
        Of the shape of `a`: what each item adds to its bin.

    Returns
    -------
    counts : DistArray
        int64, or of the dtype of the weights. `Partial("sum")` along the mesh axes that cut `a`;
        densities are replicated.
    edges : DistArray
        Replicated; one more than there are bins.

    Raises
    ------
    ArgumentError
        If bins or range are in the wrong order or not finite, or there is no such rule.
    ShapeError
        If the weights have another shape.

    Notes
    -----
    Distribution: equal bins without `range` need the least and the greatest item, two reductions of
    one item each; nothing else is sent. Memory: the bins, twice. Sums of weights are added up in
    another order than NumPy's. Blocks on a GPU are counted by NumPy on the host.

    Examples
    --------
    >>> counts, edges = da.histogram(da.asarray([1.0, 2.0, 2.5, 4.0]), bins=3)
    >>> counts.tolist(), edges.tolist()
    ([1, 2, 1], [1.0, 2.0, 3.0, 4.0])
    """
    a = join_arrays(a)
    if not isinstance(a, BaseArray):
        _check_plain("histogram", a, bins, weights)
        return np.histogram(a, bins, range, density, weights)
    density = check_flag("histogram", "density", False if density is None else density)
    check_one_mesh("histogram", a, bins, weights)
    operands = [_countable(a)]
    if weights is not None:
        operands.append(_normalize("histogram(weights=)", weights, a.shape))
    wanted, outer, edges = _find_edges("histogram", operands[0], bins, range, len(operands) > 1)

    def count(block: Buffer, weighing: Any = None) -> np.ndarray:
        return _bins.count_block(block, wanted, outer, weighing)

    counts = _count_items("histogram", operands, count, np.intp, [edges])
    if density:
        total = read_values("histogram", counts)
        counts = give_values(counts, np.asarray(_bins.density(total, edges)))
    return counts, give_values(counts, np.array(edges))


@register
def histogram_bin_edges(a: Any, bins: Any = 10, range: Any = None, weights: Any = None) -> Any:
    """Return the edges of the bins that `histogram` has.

    Parameters
    ----------
    a : array
    bins : int or array or str
        A rule that finds the number of equal bins is one of "auto", "doane", "fd", "rice", "scott",
        "sqrt", "stone", "sturges".
    range : (number, number), optional
        The outer edges; items beyond them count for no rule.
    weights : array, optional
        Of the shape of `a`; no rule takes any.

    Returns
    -------
    DistArray
        Replicated.

    Raises
    ------
    ArgumentError
        If bins or range are in the wrong order or not finite, or there is no such rule.

    Notes
    -----
    Distribution: the least and the greatest item are reduced; rules read the items as `std` or
    `percentile` does, and "stone" counts them up to 100 times or more.

    Examples
    --------
    >>> da.histogram_bin_edges(da.asarray([0.0, 1.0, 4.0]), bins=2).tolist()
    [0.0, 2.0, 4.0]
    """
    a = join_arrays(a)
    if not isinstance(a, BaseArray):
        return np.histogram_bin_edges(a, _read("histogram_bin_edges", bins), range, weights)
    check_one_mesh("histogram_bin_edges", a, bins)
    x = _countable(a)
    if weights is not None:
        _normalize("histogram_bin_edges(weights=)", weights, a.shape)
    _, _, edges = _find_edges("histogram_bin_edges", x, bins, range, weights is not None)
    return give_values(x, np.array(edges))


@register
def histogramdd(
    sample: Any, bins: Any = 10, range: Any = None, density: Any = None, weights: Any = None
) -> Any:
    """Return how many points fall into each bin of several dimensions, and the edges of the bins.

    Parameters
    ----------
    sample : array or sequence of array
        Of shape (points, dimensions), or the coordinates along each dimension.
    bins : int or sequence
        One number for all dimensions, or for each a number of equal bins or their edges.
    range : sequence of (number, number) or None, optional
        The outer edges along each dimension; default: the least and the greatest coordinate.
    density : bool, optional
        Return the density, whose integral is 1, in place of counts.
    weights : array, optional
        What each point adds to its bin.

    Returns
    -------
    counts : DistArray
        float64. `Partial("sum")` along the mesh axes that cut the points; densities are replicated.
    edges : list of DistArray
        Replicated.

    Raises
    ------
    ArgumentError
        If bins or ranges are in the wrong order, not finite, or not as many as dimensions.
    ShapeError
        If the sample or the weights do not fit together.

    Notes
    -----
    Distribution: points whose coordinates are cut are brought together. The least and greatest
    coordinates are reduced, if they are needed; nothing else is sent. Memory: the bins, three
    times, and what `np.histogramdd` needs of 32,768 points, or of as many as there are bins. Blocks
    on a GPU are counted by NumPy on the host.

    Examples
    --------
    >>> counts, _ = da.histogramdd(da.asarray([[0.0, 0.0], [1.0, 3.0]]), bins=(2, 3))
    >>> counts.tolist()
    [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    """
    parts = sample if isinstance(sample, (list, tuple)) else [sample]
    if not any(isinstance(one, BaseArray) for one in parts):
        _check_plain("histogramdd", sample, weights, *_each(bins))
        return np.histogramdd(sample, bins, range, density, weights)
    check_one_mesh("histogramdd", *parts, weights, *_each(bins))
    return _histogram_of_points("histogramdd", parts, bins, range, density, weights)


@register
def histogram2d(
    x: Any,
    y: Any,
    bins: Any = 10,
    range: Any = None,
    density: Any = None,
    weights: Any = None,
) -> Any:
    """Return how many points of a plane fall into each bin, and the edges of the bins.

    Parameters
    ----------
    x, y : array
        Coordinates of the points.
    bins : int or array or pair of them
        A number of equal bins, or their edges, for both dimensions or each.
    range : pair of (number, number), optional
        The outer edges; default: the least and the greatest coordinates.
    density : bool, optional
        Return the density, whose integral is 1, in place of counts.
    weights : array, optional
        What each point adds to its bin.

    Returns
    -------
    counts : DistArray
        float64. `Partial("sum")` along the mesh axes that cut the points; densities are replicated.
    xedges, yedges : DistArray
        Replicated.

    Raises
    ------
    ArgumentError, ShapeError
        As of `histogramdd`.

    Notes
    -----
    Distribution: as `histogramdd`.

    Examples
    --------
    >>> x = da.asarray([0.0, 1.0, 1.0])
    >>> da.histogram2d(x, x, bins=2)[0].tolist()
    [[1.0, 0.0], [0.0, 2.0]]
    """
    if not isinstance(x, BaseArray) and not isinstance(y, BaseArray):
        _check_plain("histogram2d", x, weights, *_each(bins))
        return np.histogram2d(x, y, bins, range, density, weights)
    check_one_mesh("histogram2d", x, y, weights, *_each(bins))
    bins = _read("histogram2d", bins)
    try:
        given = len(bins)
    except TypeError:  # one number
        given = 1
    if given not in (1, 2):
        bins = [bins, bins]  # the edges of both
    counts, (first, second) = _histogram_of_points(
        "histogram2d", [x, y], bins, range, density, weights
    )
    return counts, first, second


def _histogram_of_points(
    name: str, parts: Sequence[Any], bins: Any, limits: Any, density: Any, weights: Any
) -> Any:
    density = check_flag(name, "density", False if density is None else density)
    has_rows = len(parts) == 1 and np.ndim(parts[0]) == 2
    if has_rows:
        coordinates = list(parts)
        count = parts[0].shape[1]
        if not count:
            raise ShapeError(f"{name} of points without coordinates, of shape {parts[0].shape}")
    else:
        length = next(x.shape for x in parts if isinstance(x, BaseArray))
        if len(length) != 1:
            raise ShapeError(f"{name} of coordinates of shape {length}: they must have one axis")
        coordinates = [_normalize(name, part, length) for part in parts]
        count = len(parts)
    operands = list(coordinates)
    if weights is not None:
        operands.append(_normalize(f"{name}(weights=)", weights, coordinates[0].shape[:1]))
    with ErrorsOfNumPy(name):
        dtype = np.result_type(*(x.dtype for x in coordinates))
    bins, limits = _read(name, bins), _read(name, limits)
    lows: Any = np.zeros(count, dtype)
    highs = lows
    size = coordinates[0].shape[0]
    with ErrorsOfNumPy(name):
        limits = None if limits is None else [_limits(name, one) for one in limits]
    if size and (limits is None or any(one is None for one in limits)):
        extents = [_ends(name, x, 0 if has_rows else None) for x in coordinates]
        lows, highs = (np.array(ends, dtype).reshape(-1) for ends in zip(*extents, strict=True))
    with ErrorsOfNumPy(name):
        edges = _bins.edges_of_dimensions(bins, limits, size, lows, highs)

    def count_points(*blocks: Buffer) -> np.ndarray:
        weighing = blocks[-1] if weights is not None else None
        own = blocks[: len(coordinates)]
        columns = own[0].T if has_rows else own
        return _bins.count_block_of_dimensions(columns, edges, weighing)

    counts = _count_items(name, operands, count_points, float, edges, has_rows)
    if density:
        total = read_values(name, counts)
        counts = give_values(counts, np.asarray(_bins.density_of_dimensions(total, edges)))
    return counts, [give_values(counts, np.array(own)) for own in edges]


def _ends(name: str, x: Any, axis: int | None) -> tuple[Any, Any]:
    """Return the least and greatest coordinates, of a plain array as well."""
    if isinstance(x, BaseArray):
        return _extent(name, x, axis)
    return x.min(), x.max()


# --- integers counted one by one ------------------------------------------------------------------


@register
def bincount(x: Any, /, weights: Any = None, minlength: Any = 0) -> Any:
    """Return how often each integer from 0 on is among the items.

    Parameters
    ----------
    x : array of int
        Of one axis, without negative items. A plain one is cut as the weights are.
    weights : array, optional
        Of the shape of `x`: what each item adds.
    minlength : int
        The least length of the result.

    Returns
    -------
    DistArray
        int64, or float64 with weights. `Partial("sum")` along the mesh axes that cut `x`; cut as
        `x` is, in the default split, where it is longer than the blocks of `x` and than 8192.

    Raises
    ------
    DTypeError
        If the items are no integers, or the weights no real numbers.
    ArgumentError
        If an item or `minlength` is negative.
    ShapeError
        If `x` does not have one axis, or the weights another shape.

    Notes
    -----
    Distribution: the greatest item is reduced. A result that is cut, up to 4 times as long as the
    blocks: each process counts all integers, and the counts are reduced to their owners; memory:
    these counts. A longer one: each process sends the different items of its block and their counts
    to their owners, each once; memory: as much again as the block. Sums of weights are added up in
    another order than NumPy's.

    Examples
    --------
    >>> da.bincount(da.asarray([0, 2, 2, 5])).tolist()
    [1, 0, 2, 0, 0, 1]
    """
    if not isinstance(x, BaseArray):
        if not isinstance(weights, BaseArray):
            return np.bincount(x, weights, minlength)
        plain = weights.layout.without_partial()
        x = _normalize("bincount of weights: items", x, weights.shape)
        x = asarray(x, mesh=plain.mesh, placements=plain.placements)
    if x.ndim != 1:
        raise ShapeError(f"bincount of an array of shape {x.shape}: it must have one axis")
    check_one_mesh("bincount", x, weights)
    operands = [x]
    if weights is not None:
        operands.append(_normalize("bincount(weights=)", weights, x.shape))
    _bins.check_countable(x.dtype, None if weights is None else operands[1].dtype)
    try:
        np.bincount(np.zeros(1, x.dtype))
    except TypeError as error:
        raise DTypeError(f"bincount of {x.dtype}: {error}; convert with astype") from error
    _bins.bincount_length(0, 0, 0, minlength)
    low, high = _extent_of_counted(x)
    length = _bins.bincount_length(x.size, low, high, minlength)
    dtype = np.dtype(np.intp if weights is None or not x.size else np.float64)
    layout = x.layout.without_partial()
    largest = layout.partition(0).largest
    is_spread = length > max(_ALWAYS_DENSE, largest) and bool(layout.sharding_axes(0))
    if is_spread and length > _DENSE_FACTOR * largest:
        return run(_spread, operands, (length, dtype))

    def count(block: Buffer, *weighing: Buffer) -> np.ndarray:
        return _bins.bincount_block(block, length, *weighing)

    counts = run(_count, operands, ((length,), dtype, "sum", False), count)
    if not is_spread:
        return counts
    spread = _spread_layout(layout, length)
    return counts._new(move("bincount", counts._local, counts.layout, spread), spread)


def _extent_of_counted(x: BaseArray) -> tuple[int, int]:
    """Return the least integer, or 0 where none is negative, and the greatest.

    As unsigned ones negative integers are the greatest: then one reduction is enough.
    """
    if x.size and not x.layout.has_partial and x.dtype.kind in "iu":
        words = x._local.view(x.dtype.str.replace("i", "u"))
        high = int(read_values("bincount", reductions.max(x._new(words, x.layout))))
        if high <= np.iinfo(x.dtype).max:
            return 0, high
    low, high = _extent("bincount", x)
    return int(low), int(high)


def _spread_layout(layout: Layout, length: int) -> Layout:
    return layout.replace(shape=(length,), boundaries=None)


def _spread_spec(_: Op, call: Call) -> Layouts:
    first = call.layouts[0].without_partial()
    output = _spread_layout(first, call.static[0])
    return Layouts((first,) * len(call.layouts), output, sends=((first, first, False),))


def _bind_spread(step: Step) -> Callable[..., Buffer]:
    """Return the function that sends the counts of a block to those who have their places."""
    layout, dtype = step.output, step.call.static[1]
    mesh: Any = layout.mesh
    comm: Communicator = mesh.communicator(layout.sharding_axes(0))
    offsets = np.array(layout.partition(0).offsets)
    start, length = int(offsets[comm.rank]), layout.local_shape()[0]
    number = step.token()

    @on_host
    def count(block: Buffer, *weights: Buffer) -> np.ndarray:
        if weights:
            values, places = np.unique(block, return_inverse=True)
            counts = np.bincount(places, weights[0], len(values))
        else:
            values, counts = np.unique(block, return_counts=True)
        values = values.astype(np.int64, copy=False)
        parcels = Parcels(np.searchsorted(values, offsets), None)
        rows = [values, counts.astype(dtype, copy=False)]
        (values, counts), _ = push_rows(comm, rows, parcels, number, step)
        out = np.zeros(length, dtype)
        np.add.at(out, values - start, counts)
        return out

    return count


_spread = Op(
    "bincount",
    np.bincount,
    _spread_spec,
    dtypes=lambda _, call: (call.static[1], call.static[1]),
    bind=_bind_spread,
)


# --- bins of items --------------------------------------------------------------------------------


@register
def digitize(x: Any, bins: Any, right: bool = False) -> Any:
    """Return for each item the number of the bin that it falls into.

    Parameters
    ----------
    x : array
        Real numbers.
    bins : array
        Edges of one axis, ascending or descending.
    right : bool
        An item that is an edge falls into the bin which that edge ends.

    Returns
    -------
    DistArray
        int64, as of `searchsorted`; 0 before the first edge, their number after the last.

    Raises
    ------
    ArgumentError
        If the edges neither ascend nor descend.
    DTypeError
        If the items are complex.
    ShapeError
        If the edges do not have one axis.

    Notes
    -----
    Distribution: as `searchsorted`; of distributed edges neighbours are compared first.

    Examples
    --------
    >>> da.digitize(da.asarray([0.5, 2.0, 9.0]), [1.0, 2.0, 4.0]).tolist()
    [0, 2, 3]
    """
    if not isinstance(x, BaseArray) and not isinstance(bins, BaseArray):
        return np.digitize(x, bins, right)
    right = check_flag("digitize", "right", right)
    if not isinstance(bins, BaseArray):
        bins = np.asarray(normalize_operand("digitize(bins=)", bins))
    if not isinstance(x, BaseArray):
        x = np.asarray(normalize_operand("digitize", x))
    if bins.ndim != 1:
        raise ShapeError(f"digitize(bins=) of shape {bins.shape}: edges have one axis")
    if "c" in (x.dtype.kind, bins.dtype.kind):
        raise DTypeError(f"digitize of {x.dtype} in bins of {bins.dtype}: they must be real")
    with ErrorsOfNumPy("digitize"):
        np.digitize(np.zeros(1, x.dtype), np.zeros(1, bins.dtype))
    check_one_mesh("digitize", x, bins)
    descends = _is_descending(bins)
    side = "left" if right else "right"
    if not descends:
        return searchsorted(bins, x, side)
    count = bins.shape[0]
    ascending = flip(bins) if isinstance(bins, BaseArray) else bins[::-1]
    return arithmetic.subtract(np.int64(count), searchsorted(ascending, x, side))


def _is_descending(bins: Any) -> bool:
    """Tell whether edges descend; they ascend else, and are refused where they do both.

    NaN is the largest, as where they are sorted.
    """
    former, latter = bins[:-1], bins[1:]
    if not isinstance(bins, BaseArray) and (former <= latter).all():  # none is NaN, but the last
        return False

    def any_before(x: Any, y: Any) -> bool:
        found = (x < y) | ((x == x) & (y != y))
        return bool(
            read_values("digitize", reductions.any(found))
            if isinstance(bins, BaseArray)
            else found.any()
        )

    rises, falls = any_before(former, latter), any_before(latter, former)
    if rises and falls:
        raise ArgumentError("digitize: bins must ascend or descend")
    return falls
