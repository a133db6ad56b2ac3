"""Quantiles: the items at some places of the sorted data, found without sorting it.

Where no reduced axis is cut each process computes those of its own lines. Where one is, few long
lines are searched one after the other: a sample of all items gives for each place two bounds
between which the item must be, one pass over the block counts what lies below and takes out what
lies between, and of these few items multiselection finds those at the places. Many lines, and short
ones, are brought together first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Final

import numpy as np

from distarray.comm import Communicator, all_gather_checked, join_blocks
from distarray.core import (
    BaseArray,
    Call,
    Layouts,
    Op,
    Step,
    as_block,
    axis_key,
    cache,
    call_alike,
    check_distributed,
    check_fits,
    check_flag,
    check_out,
    describe,
    documented,
    join_arrays,
    normalize_operand,
    register,
    remember,
    run,
    several_ranks,
    warn,
    write_out,
)
from distarray.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from distarray.layout import Layout, normalize_axes
from distarray.ops.elementwise._logic import less
from distarray.ops.families._relabel import carry_cuts, move_cuts
from distarray.ops.families._values import (
    ErrorsOfNumPy,
    check_one_mesh,
    give_values,
    on_host,
    read_values,
)
from distarray.ops.manipulation._reshape import reshape
from distarray.ops.manipulation._shape import broadcast_to, permute_dims
from distarray.ops.sorting._block_sort import argsort_block, sort_block
from distarray.ops.sorting._keys import KeyWords, longest
from distarray.ops.sorting._multiselection import Ranks, ranks_of, select_values
from distarray.ops.statistical import _reductions as reductions
from distarray.ops.statistical._quantile_methods import (
    METHODS,
    check_quantiles,
    count_below,
    find_places,
    interpolate,
    median_places,
)
from distarray.redistribute import redistribute_local
from distarray.typing import Buffer

_FEW_LINES: Final = 32
"""Fewer lines, if they are long, are searched one by one; more too, if fewer than ranks."""

_REDISTRIBUTED_ITEMS: Final = 1 << 17
"""Parts of a line of so many items, on average, are brought together where there is a line for each
rank: 30 lines of 1,000 items on two ranks of Zen 4 took 10.6 ms one by one, and take 0.2. From four
times as many items on both take as long."""

GATHERED_BYTES: Final = 128 * 1024
"""So much of all ranks together every rank gets and orders. Of 256 KiB that takes as long on two
ranks of Zen 5 as to search where they lie, and of 512 KiB longer."""

_SORTED_ITEMS: Final = 1 << 14
"""Blocks of so many items, on average, are sorted at once."""

_SAMPLE: Final = 1 << 16
"""Items of a sample, of all processes together. The bounds that it gives are some of its standard
deviations apart: about 1.6 percent of the items lie between."""

_MARGIN: Final = 2.0
"""Half the distance of the bounds of a place, in square roots of the sample's size: four standard
deviations at the median, and more elsewhere."""

_PASSES: Final = 4
"""Places with bounds of their own; more cost as many passes, and the block is sorted instead."""

_PIECE: Final = 1 << 15
"""Items that a pass compares at a time, so that they stay in the cache."""

_DIGIT: Final = 8
"""Bits of a key that a round of the search among weights fixes."""


class _Quantiles:
    """What is computed of each line of the data: some of its quantiles.

    Parameters
    ----------
    name : str
    function : callable
        NumPy's, `function(block, axis=..., keepdims=...)`, or with `weights=` too.
    q : array of float
        The quantiles, or None: the median.
    weak : bool
        As in `check_quantiles`.
    method : str
    ignores_nan : bool
    asked : dtype
        That of the quantiles as they were given.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        q: Any = None,
        weak: bool = False,
        method: str = "linear",
        ignores_nan: bool = False,
        asked: Any = None,
    ) -> None:
        self.name, self.of_lines, self.ignores_nan = name, function, ignores_nan
        self.q, self.weak, self.method, self.asked = q, weak, method, asked
        self.shape: tuple[int, ...] = () if q is None else q.shape

    def find(self, count: int, items_at: Callable[[Any], Buffer]) -> Buffer:
        """Return the quantiles of `count` items, given what returns those at some places."""
        if self.q is None:
            return np.asarray(np.mean(items_at(median_places(count)), axis=0))
        places = find_places(self.method, count, self.q)
        both = np.stack([places.previous, places.following])
        previous, following = items_at(both.reshape(-1)).reshape(both.shape)
        return np.asarray(interpolate(previous, following, places, self.weak))

    def result_dtype(
        self, dtype: np.dtype[Any], weighted: bool, keepdims: bool, ndim: int, axes: Sequence[int]
    ) -> np.dtype[Any]:
        """Return the dtype of quantiles over axes, which NumPy finds by computing one.

        Raises
        ------
        DTypeError
            If there are none of such items.
        """
        if dtype.isnative:  # else arrays keep the order of the bytes, and numbers do not
            ndim, axes, keepdims = 1, (0,), False
        key = self.name, self.method, self.asked, self.weak, dtype, weighted, keepdims, ndim, axes
        found = _dtypes[key]
        if found is None:
            one, extra = np.zeros((1,) * ndim, dtype), {}
            if weighted:
                extra["weights"] = np.ones(one.shape)
            try:
                with ErrorsOfNumPy(self.name), np.errstate(all="ignore"):
                    tried = self.of_lines(one, axis=axes, keepdims=keepdims, **extra)
            except ArgumentTypeError as error:
                raise DTypeError(f"{self.name} of {dtype}: {error}; convert with astype") from error
            found = np.asarray(tried).dtype
            if found.kind in "US":  # that of a scalar is as long as its text
                found = dtype
            remember(_dtypes, key, found)
        return found

    def missing(self, dtype: np.dtype[Any]) -> Buffer:
        """Return quantiles that are not there."""
        nothing = np.array("NaT", dtype) if dtype.kind in "mM" else dtype.type(np.nan)
        return np.full(self.shape, nothing, dtype)


_dtypes = cache()
"""Dtypes of quantiles by all that they depend on."""


# --- the row --------------------------------------------------------------------------------------


def _spec(_: Op, call: Call) -> Layouts:
    axes = call.static[0]
    source = call.layouts[0].without_partial()
    kept = [axis for axis in range(source.ndim) if axis not in axes]
    output = _reduced(source, call)
    sends: tuple[tuple[Layout, Layout, bool], ...] = ()
    if kept and not _searches(source, call):
        source = move_cuts(source, axes, max(kept, key=lambda axis: source.shape[axis]))
        found = _reduced(source, call)
        if prod(source.shape[axis] for axis in kept) < _FEW_LINES:
            sends = ((found, output, True),)
        else:
            output = found
    return Layouts((source,) * len(call.layouts), output, sends)


def _reduced(source: Layout, call: Call) -> Layout:
    """Return the layout of the quantiles of each line."""
    axes, keepdims, shape, _ = call.static
    kept = [axis for axis in range(source.ndim) if axis not in axes]
    lead = len(shape)
    if keepdims:
        new = {axis: lead + axis for axis in kept}
        rest = tuple(source.shape[a] if a in kept else 1 for a in range(source.ndim))
    else:
        new = {axis: lead + i for i, axis in enumerate(kept)}
        rest = tuple(source.shape[a] for a in kept)
    return carry_cuts(source, (*shape, *rest), new)


def _searches(layout: Layout, call: Call) -> bool:
    """Tell whether the processes search together for the quantiles of each line."""
    axes = call.static[0]
    ranks = prod(layout.mesh.shape[m] for axis in axes for m in layout.sharding_axes(axis))
    lines = prod(layout.shape[axis] for axis in range(layout.ndim) if axis not in axes)
    gathers = layout.size * call.dtypes[0].itemsize <= GATHERED_BYTES
    are_long = layout.size > _REDISTRIBUTED_ITEMS * ranks * lines
    few = lines < _FEW_LINES and (gathers or are_long)
    return ranks > 1 and (few or lines < ranks)


def _bind(step: Step) -> Callable[..., Buffer]:
    axes, _, _, dtype = step.call.static
    source = step.sources[0]
    output = _reduced(source, step.call)
    shape = output.local_shape()
    mesh: Any = source.mesh
    cutting = tuple(sorted(m for axis in axes for m in source.sharding_axes(axis)))
    comm = several_ranks(source.mesh, cutting)
    search = None if comm is None else _Search(comm, dtype)
    local = source.local_shape()
    kept = [axis for axis in range(source.ndim) if axis not in axes]
    lines_shape = prod([local[a] for a in kept]), prod([local[a] for a in axes])
    nbytes = lines_shape[0] * prod([source.shape[a] for a in axes]) * step.call.dtypes[0].itemsize
    gathers = 0 < nbytes <= GATHERED_BYTES  # alike among those that search together
    number = step.token()

    def lines_of(block: Buffer) -> Buffer:
        return block.transpose(*kept, *axes).reshape(lines_shape)

    def compute(wanted: _Quantiles, *blocks: Buffer) -> Buffer:
        if not prod(shape):
            return np.empty(shape, dtype)
        if comm is not None and gathers and len(blocks) == 1:
            mine = blocks[0].transpose(*axes, *kept).tobytes()  # in any order along a line
            everything = join_blocks(comm, mine, nbytes, number, step)
            items = len(everything) // (lines_shape[0] * blocks[0].itemsize)
            whole = np.ndarray((items, lines_shape[0]), blocks[0].dtype, everything)
            with ErrorsOfNumPy(wanted.name):  # which takes less time over all axes
                axis = 0 if lines_shape[0] > 1 else None
                found = wanted.of_lines(whole, axis=axis, keepdims=False)
            return np.asarray(found, dtype).reshape(shape)
        if search is None:
            extra = {"weights": blocks[1]} if len(blocks) > 1 else {}
            with ErrorsOfNumPy(wanted.name):
                found = wanted.of_lines(blocks[0], axis=axes, keepdims=False, **extra)
            return np.asarray(found, dtype).reshape(shape)
        return search(wanted, *map(lines_of, blocks)).reshape(shape)

    @on_host
    def compute_checked(wanted: _Quantiles, *blocks: Buffer) -> Buffer:
        found: list[Buffer] = []
        if len(blocks) == 1:
            found.append(call_alike(mesh, wanted.name, lambda: compute(wanted, *blocks)))
        else:  # only the values tell whether weights are good
            with np.errstate(divide="ignore", invalid="ignore"):  # weights of 0 in all raise
                all_gather_checked(
                    mesh, wanted.name, lambda: found.append(compute(wanted, *blocks))
                )
        return redistribute_local(found[0], output, step.output)

    return compute_checked


_quantiles = Op(
    "quantile",
    np.quantile,
    _spec,
    dtypes=lambda _, call: (call.static[3], call.static[3]),
    bind=_bind,
)


# --- the search -----------------------------------------------------------------------------------


class _Search:
    """The search for quantiles of lines of which each process has a part."""

    def __init__(self, comm: Communicator, dtype: np.dtype[Any]) -> None:
        self._comm, self._ranks, self._dtype = comm, ranks_of(comm), dtype

    def __call__(self, wanted: _Quantiles, lines: Buffer, weights: Any = None) -> Buffer:
        """Return the quantiles of each line, of shape (*q.shape, lines)."""
        lines = lines.astype(lines.dtype.newbyteorder("="), copy=False)
        has_nan = lines.dtype.kind in "fcmM"
        sizes = np.full((2, len(lines)), lines.shape[1])
        sizes[1] = np.isnan(lines).sum(axis=1) if has_nan else 0
        totals = self._comm.all_reduce(sizes)
        found = np.empty((*wanted.shape, len(lines)), self._dtype)
        for i, line in enumerate(lines):
            size, missing = totals[:, i].tolist()
            own = None if weights is None else weights[i]
            if missing and wanted.ignores_nan:
                good = ~np.isnan(line)
                line, own = line[good], None if own is None else own[good]
                if missing == size:
                    warn("All-NaN slice encountered", RuntimeWarning)
            if size == missing or (missing and not wanted.ignores_nan):
                found[..., i] = wanted.missing(self._dtype)
            elif own is not None:
                found[..., i] = self._weighted(line, own, wanted.q)
            else:
                items_at = functools.partial(self._items_at, line, size - missing)
                found[..., i] = wanted.find(size - missing, items_at)
        return found

    def _items_at(self, run: Buffer, count: int, places: Any) -> Buffer:
        """Return the items at some places of all, of which `run` has this process's part."""
        wanted = np.asarray(places, np.int64)
        if count <= max(_SAMPLE, _SORTED_ITEMS * self._comm.size):
            return self._pick(run, count, wanted)
        bounds = _bounds(run, count, wanted, self._ranks)
        parts = [_between(run, low, high) for low, high, _ in bounds]
        counts = [(below, len(part)) for below, part in parts]
        before, inside = self._comm.all_reduce(np.array(counts, np.int64).reshape(-1, 2)).T
        found = np.empty(len(wanted), run.dtype)
        for (_, part), (_, _, which), start, width in zip(
            parts, bounds, before.tolist(), inside.tolist(), strict=True
        ):
            within = wanted[which] - start
            if ((within < 0) | (within >= width)).any():  # the sample was none
                part, width, within = run, count, wanted[which]
            found[which] = self._pick(part, width, within)
        return found

    def _pick(self, run: Buffer, count: int, places: np.ndarray) -> Buffer:
        """Return what `_items_at` does, by all items instead of a sample."""
        if count <= _SAMPLE:
            return _select(np.concatenate(self._ranks.gather(run)), places)
        run = sort_block(run, stable=False)
        return select_values(run, places, self._keys_of(run), self._ranks)

    def _keys_of(self, run: Buffer) -> KeyWords:
        if run.dtype.kind not in "US":
            return KeyWords(run.dtype)
        most = self._comm.all_reduce(np.array([longest(run)]), "max")
        return KeyWords(run.dtype, int(most[0]))

    def _weighted(self, run: Buffer, weights: Buffer, q: np.ndarray) -> Buffer:
        """Return the first items up to which the weights are q of all, or more."""
        order = argsort_block(run)
        run = run[order]
        sums = np.zeros(len(run) + 1)
        np.cumsum(weights[order], dtype=np.float64, out=sums[1:])
        total = self._comm.all_reduce(sums[-1:].copy())
        count_below(total, float(total[0]), q)  # refuses weights without a total
        keys = self._keys_of(run)
        words = np.zeros((q.size, len(keys.bits)), np.uint64)
        for place, bits in enumerate(keys.bits):
            while bits:
                step = min(_DIGIT, bits)
                bits -= step
                digits = np.arange(1 << step, dtype=np.uint64) << np.uint64(bits)
                probes = np.repeat(words[:, None], len(digits), axis=1)
                probes[..., place] |= digits
                found = np.searchsorted(run, keys.decode(probes).reshape(-1), "left")
                below = self._comm.all_reduce(sums[found]).reshape(probes.shape[:-1])
                parts = (below / total).astype(q.dtype if q.dtype.kind == "f" else np.float64)
                reached = (below > 0) & (parts >= q.reshape(-1, 1))
                words[:, place] |= digits[(~reached).sum(axis=1) - 1]
        return keys.decode(words).reshape(q.shape)


def _bounds(
    run: Buffer, count: int, places: np.ndarray, ranks: Ranks
) -> list[tuple[Any, Any, np.ndarray]]:
    """Return bounds between which items are, None for open ones, and which of the places these are.

    All of a sample is on every process. Where places have too many bounds: one without any.
    """
    own = run[:: max(1, count // _SAMPLE)]
    sample = np.concatenate(ranks.gather(np.ascontiguousarray(own)))
    margin = _MARGIN * len(sample) ** 0.5
    middle = (places + 0.5) * (len(sample) / count)
    first = np.floor(middle - margin).astype(np.int64)
    last = np.ceil(middle + margin).astype(np.int64)
    order = np.argsort(places, kind="stable")
    apart = np.flatnonzero(first[order][1:] > np.maximum.accumulate(last[order])[:-1]) + 1
    groups = np.split(order, apart)
    if len(groups) > _PASSES:
        groups = [order]
        first[:], last[:] = -1, len(sample)
    lows = np.array([first[which].min() for which in groups])
    highs = np.array([last[which].max() for which in groups])
    found = _select(sample, np.clip((lows, highs), 0, len(sample) - 1))
    return [
        (
            low if lows[i] >= 0 else None,
            high if highs[i] < len(sample) else None,
            groups[i],
        )
        for i, (low, high) in enumerate(found.T)
    ]


def _select(items: Buffer, places: np.ndarray) -> Buffer:
    """Return the items at some places of the sorted ones, which change their order."""
    items.partition(np.unique(places))
    return items[places]


def _between(run: Buffer, low: Any, high: Any) -> tuple[int, Buffer]:
    """Return how many items are below the bounds, and those that are not outside of them."""
    if low is None and high is None:
        return 0, run
    below, parts = 0, []
    for start in range(0, len(run), _PIECE):
        piece = run[start : start + _PIECE]
        inside = np.ones(len(piece), bool) if low is None else piece >= low
        below += len(piece) - int(np.count_nonzero(inside))
        if high is not None:
            inside &= piece <= high
        parts.append(piece[inside])
    return below, np.concatenate(parts) if parts else run


# --- the functions --------------------------------------------------------------------------------


def _run(
    wanted: _Quantiles,
    a: Any,
    axis: Any,
    out: Any,
    keepdims: Any,
    weights: Any = None,
) -> Any:
    """Return quantiles of a distributed array."""
    name = wanted.name
    check_out(name, a, out)
    keepdims = check_flag(name, "keepdims", keepdims)
    axes = normalize_axes(axis_key(axis, a.ndim), a.ndim)
    operands = [a]
    if weights is not None:
        operands.append(_normalize_weights(name, a, weights, None if axis is None else axes))
    if not a.size:
        nothing = np.empty(a.shape, a.dtype)
        extra = {} if weights is None else {"weights": np.empty(a.shape)}
        with ErrorsOfNumPy(name):
            found = wanted.of_lines(nothing, axis=axes, keepdims=keepdims, **extra)
        found = np.asarray(found)
        kept = a.ndim if keepdims else a.ndim - len(axes)
        if len(wanted.shape) > 1 and found.ndim > kept:  # of nothing but NaN there are no places
            found = found.reshape((*wanted.shape, *found.shape[1:]))
        result = give_values(a, found)
        if out is not None:
            check_fits(name, out, result.shape, result.dtype)
        return write_out(name, out, result)
    dtype = wanted.result_dtype(a.dtype, weights is not None, bool(keepdims), a.ndim, axes)
    if out is not None:
        kept = [1 if i in axes else n for i, n in enumerate(a.shape) if keepdims or i not in axes]
        check_fits(name, out, (*wanted.shape, *kept), dtype)
    result = run(_quantiles, operands, (axes, keepdims, wanted.shape, dtype), wanted)
    return write_out(name, out, result)


def _normalize_weights(name: str, a: BaseArray, weights: Any, axes: Any) -> Any:
    """Return weights, given for all items or along the reduced axes, as an operand for all."""
    if not isinstance(weights, BaseArray):
        weights = np.asarray(as_block(normalize_operand(f"{name}(weights=)", weights)))
    if weights.dtype.kind not in "biuf":
        raise DTypeError(f"{name}(weights=) of {weights.dtype}: they must be real numbers")
    if weights.shape != a.shape:
        if axes is None:
            raise ArgumentTypeError(
                f"{name}(weights=) of shape {weights.shape} for items of shape {a.shape}: pass "
                "axis=, along which they are"
            )
        if weights.shape != tuple(a.shape[axis] for axis in axes):
            raise ShapeError(
                f"{name}(weights=) of shape {weights.shape} along axes {axes} of {a.shape}"
            )
        shape = tuple(n if axis in axes else 1 for axis, n in enumerate(a.shape))
        if isinstance(weights, BaseArray):
            order = tuple(int(i) for i in np.argsort(axes))
            weights = broadcast_to(reshape(permute_dims(weights, order), shape), a.shape)
        else:
            weights = weights.transpose(np.argsort(axes)).reshape(shape)
            weights = np.broadcast_to(weights, a.shape)
    if isinstance(weights, BaseArray):
        negative = bool(read_values(name, reductions.any(less(weights, 0))))
    else:
        negative = bool((weights < 0).any())
    if negative:
        raise ArgumentError(f"{name}(weights=): they must be 0 or more")
    return weights


def _compute(
    name: str,
    a: Any,
    q: Any,
    axis: Any,
    out: Any,
    overwrite_input: Any,
    method: Any,
    keepdims: Any,
    weights: Any,
) -> Any:
    """Return `quantile`, `percentile`, or what ignores NaN of them."""
    a = join_arrays(a)
    if not isinstance(a, BaseArray):
        check_out(name, a, out)
        for value in (q, weights):
            if isinstance(value, BaseArray):
                check_distributed(f"{name} with distributed q or weights", a)
        with ErrorsOfNumPy(name):
            function = getattr(np, name)
            return function(a, q, axis, None, overwrite_input, method, keepdims, weights=weights)
    if weights is None and q.__class__ in _NUMBERS and method.__class__ is str:
        wanted = _read_number(name, q, method)
    else:
        check_one_mesh(name, a, q, weights)
        q = (read_values if isinstance(q, BaseArray) else normalize_operand)(f"{name}(q=)", q)
        wanted = _read_quantiles(name, q, method)
    if weights is not None and method != "inverted_cdf":
        raise ArgumentError(f"{name}(method={method!r}) takes no weights=; 'inverted_cdf' does")
    if a.dtype.kind == "c":
        raise DTypeError(f"{name} of {a.dtype}: items must be real numbers")
    return _run(wanted, a, axis, out, keepdims, weights)


def _read_quantiles(name: str, q: Any, method: Any) -> _Quantiles:
    """Return what arguments of `quantile`, or the like, ask for."""
    values, weak = check_quantiles(name, q, percent=name.endswith("percentile"))
    if not isinstance(method, str):
        raise ArgumentTypeError(f"{name}(method={describe(method)}): must be a name")
    if method not in METHODS:
        raise ArgumentError(f"{name}(method={method!r}): must be one of {', '.join(METHODS)}")
    # Several axes of q are misplaced by NumPy's functions beside NaN: one, and the shape later.
    whole = functools.partial(
        getattr(np, name), q=np.reshape(q, -1) if values.ndim > 1 else q, method=method
    )
    ignores_nan = name.startswith("nan")
    return _Quantiles(name, whole, values, weak, method, ignores_nan, np.asarray(q).dtype)


_NUMBERS = frozenset((int, float))
_read_number = functools.lru_cache(maxsize=256, typed=True)(_read_quantiles)  # any size does


_DOCUMENTATION = """Return {what} of the items over axes{nan}.

Exact, as NumPy's, by selection: nothing is sorted but the few items near the places.

Parameters
----------
a : array
    Of real numbers.
q : array or number
    {q}, of at most two axes.
axis : int or tuple of int, optional
    Axes to reduce; default: all.
out : DistArray, optional
    Where the result goes; it keeps its layout and dtype.
overwrite_input : bool
    Has no effect: the items stay as they are.
method : str
    How to choose between two items: "linear", "lower", "higher", "midpoint", "nearest",
    "inverted_cdf", "averaged_inverted_cdf", "closest_observation", "interpolated_inverted_cdf",
    "hazen", "weibull", "median_unbiased", "normal_unbiased".
keepdims : bool
    Keep reduced axes with size 1.
weights : array, optional
    How much each item counts, of the shape of `a` or along the reduced axes; for "inverted_cdf".

Returns
-------
DistArray
    Of shape (*q.shape, *remaining axes). {missing}.
    Replicated along the mesh axes that cut reduced axes; kept axes stay cut.

Raises
------
AxisError
    If an axis is out of range or named twice.
ArgumentError
    If `q` is out of range, there is no such method, or weights are negative or all 0.
DTypeError
    If items are complex or are not subtracted.
IndexingError
    If there are no items.

Notes
-----
Distribution: where no reduced axis is cut nothing is sent. Up to 32 lines are gathered where all
are 128 KiB at most. Else those of which a rank has more than 131,072 items, and fewer than there
are ranks, are searched one by one: of each 65,536 items or fewer are gathered, and some ten sums of
64 KiB at most go around; memory: about 2 percent of the block, all of it where most items are equal
or more than four places lie apart. Of other lines the reduced axes are brought together first, and
the longest of the others is cut instead; of up to 32 every rank gets all quantiles then. Partial
inputs are reduced first. Weighted sums are added up in another order than NumPy's. Blocks on a GPU
are computed on by NumPy on the host.

Examples
--------
>>> x = da.asarray([4.0, 1.0, 3.0, {last}])
>>> da.{name}(x, {asked}).tolist()
{answer}
"""


def _quantiles_over_axes(name: str) -> Callable[..., Any]:
    """Return `quantile` or `percentile`, or what leaves out NaN of them."""
    percent, ignores = name.endswith("percentile"), name.startswith("nan")

    @register
    @documented(
        _DOCUMENTATION,
        name,
        what="percentiles" if percent else "quantiles",
        nan=" that are not NaN" if ignores else "",
        missing="NaN, with a warning, where all items are" if ignores else "NaN where an item is",
        q="From 0 to 100" if percent else "From 0 to 1",
        last="np.nan" if ignores else "2.0",
        asked="[0, 50]" if percent else "[0.0, 0.5]",
        answer="[1.0, 3.0]" if ignores else "[1.0, 2.5]",
    )
    def function(
        a: Any,
        q: Any,
        axis: Any = None,
        out: Any = None,
        overwrite_input: bool = False,
        method: str = "linear",
        keepdims: bool = False,
        *,
        weights: Any = None,
    ) -> Any:
        return _compute(name, a, q, axis, out, overwrite_input, method, keepdims, weights)

    return function


quantile = _quantiles_over_axes("quantile")
percentile = _quantiles_over_axes("percentile")
nanquantile = _quantiles_over_axes("nanquantile")
nanpercentile = _quantiles_over_axes("nanpercentile")


_OF_MEDIAN = """Return the median over axes: {middle} or the mean of two.

Parameters
----------
a : array
axis : int or tuple of int, optional
    Axes to reduce; default: all.
out : DistArray, optional
    Where the result goes; it keeps its layout and dtype.
overwrite_input : bool
    Has no effect: the items stay as they are.
keepdims : bool
    Keep reduced axes with size 1.

Returns
-------
DistArray
    Of the remaining axes; {missing}. Placed as of `quantile`.

Raises
------
AxisError
    If an axis is out of range or named twice.
DTypeError
    If items have no mean.

Notes
-----
Distribution: as `quantile`.

Examples
--------
>>> da.{name}(da.asarray([[4.0, 1.0], [3.0, 2.0]]), axis=0).tolist()
[3.5, 1.5]
"""


def _median_over_axes(wanted: _Quantiles, middle: str, missing: str) -> Callable[..., Any]:
    name = wanted.name

    @register
    @documented(_OF_MEDIAN, name, middle=middle, missing=missing)
    def function(
        a: Any,
        axis: Any = None,
        out: Any = None,
        overwrite_input: bool = False,
        keepdims: bool = False,
    ) -> Any:
        a = join_arrays(a)
        if not isinstance(a, BaseArray):
            check_out(name, a, out)
            return wanted.of_lines(a, axis, None, overwrite_input, keepdims)
        return _run(wanted, a, axis, out, keepdims)

    return function


median = _median_over_axes(
    _Quantiles("median", np.median),
    "the item in the middle",
    "NaN where an item is, or there is none",
)
nanmedian = _median_over_axes(
    _Quantiles("nanmedian", np.nanmedian, ignores_nan=True),
    "of what is not NaN the item in the middle",
    "NaN, with a warning, where all items are",
)
