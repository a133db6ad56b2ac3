"""Quantiles have NumPy's bits, whether blocks are searched together or lines brought together."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray.comm import CommLog, simulate
from distarray.errors import (
    ArgumentError,
    ArgumentTypeError,
    AxisError,
    DTypeError,
    FloatingError,
    IndexingError,
    MeshError,
    ShapeError,
)
from distarray.layout import Replicate, Shard
from distarray.ops.statistical import _quantiles
from distarray.ops.statistical._quantile_methods import METHODS
from distarray.testing import reset
from tests.array.strategies import (
    KIND,
    RANKS,
    Case,
    agrees,
    cases,
    on_ranks,
    special_cases,
)

REAL = ("?", "i1", "u8", "i8", "f2", "f4", "f8")
TIMES = ("M8[s]", "m8[D]") if KIND == "cpu" else ()
TEXT = ("U3", "S2") if KIND == "cpu" else ()


WAYS = ("gathered", "short", "picked", "sorted", "sampled", "lines")


@pytest.fixture(scope="module", params=WAYS)
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Let small arrays be computed on as large ones are."""
    reset()
    with pytest.MonkeyPatch.context() as patch:
        if request.param != "gathered":
            patch.setattr(_quantiles, "GATHERED_BYTES", 0)
        if request.param in ("picked", "sorted", "sampled"):
            patch.setattr(_quantiles, "_REDISTRIBUTED_ITEMS", -1)
        if request.param == "sorted":
            patch.setattr(_quantiles, "_SAMPLE", -1)
        if request.param == "sampled":
            patch.setattr(_quantiles, "_SORTED_ITEMS", -1)
            patch.setattr(_quantiles, "_SAMPLE", 4)
            patch.setattr(_quantiles, "_MARGIN", 0.0)
            patch.setattr(_quantiles, "_PIECE", 3)
        if request.param == "lines":
            patch.setattr(_quantiles, "_FEW_LINES", 0)
        yield request.param
    reset()


def compared(function: str, case: Case, *args: Any, weighing: Any = None, **options: Any) -> None:
    """Compare a function of a distributed array with NumPy's."""
    extra = {} if weighing is None else {"weights": weighing.value}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            expected = getattr(np, function)(case.value, *args, **options, **extra)
        except (TypeError, ValueError, IndexError):
            expected = None
        except OverflowError:  # of durations, from NumPy 2.5 on
            return

        errors = ArgumentError, ArgumentTypeError, DTypeError, IndexingError

        def program() -> None:
            x = case.build()
            if x.mesh.coordinate is None and weighing is not None:
                return
            own = {} if weighing is None else {"weights": weighing.build()}
            with np.errstate(all="ignore"):
                if expected is None:
                    with pytest.raises(errors):
                        getattr(da, function)(x, *args, **options, **own)
                else:
                    result = getattr(np, function)(x, *args, **options, **own)
                    text = case.value.dtype.kind in "US"  # NumPy's scalars are as long as theirs
                    agrees(result, np.asarray(expected, case.value.dtype if text else None))

        on_ranks(program)


@st.composite
def axes_of(draw: Any, case: Case) -> Any:
    ndim = len(case.shape)
    several = st.lists(st.integers(-ndim, ndim - 1), max_size=ndim, unique_by=lambda a: a % ndim)
    return draw(st.one_of(st.none(), several.map(tuple))) if ndim else None


@settings(max_examples=12, deadline=None)
@given(data=st.data(), ignores_nan=st.booleans(), percent=st.booleans(), keepdims=st.booleans())
def test_quantiles_are_those_of_numpy(
    way: str, data: st.DataObject, ignores_nan: bool, percent: bool, keepdims: bool
) -> None:
    method = data.draw(st.sampled_from([*METHODS]))
    discrete = method in ("lower", "higher", "nearest", "inverted_cdf", "closest_observation")
    kinds = (*REAL, *TIMES, *(TEXT if discrete else ()))
    case: Case = data.draw(special_cases(kinds, ()))
    if data.draw(st.booleans()) and case.values.dtype.kind == "f":
        case.values[np.isnan(case.values)] = 1.5
    q: Any = data.draw(
        st.sampled_from(
            (0.5, 0, 1, 0.25, [0.1, 0.9, 0.9], [[0.0, 1.0], [0.3, 0.7]], np.float32(0.4), [])
        )
    )
    axis = data.draw(axes_of(case))
    name = ("nan" if ignores_nan else "") + ("percentile" if percent else "quantile")
    if ignores_nan and np.ndim(q) == 2:  # which NumPy's functions beside NaN misplace
        q = [0.0, 0.3, 1.0]
    if ignores_nan and case.values.dtype.itemsize < 8:
        q = 0.3  # where all items of a line are NaN, NumPy's dtype is that of the items, else wider
    if case.values.dtype == np.float16 and isinstance(q, np.float32):
        q = 0.3  # likewise of one line
    q = np.multiply(q, 100) if percent and not isinstance(q, (int, float)) else q
    if case.values.dtype.kind in "US":
        keepdims = False  # to which NumPy's reshapes no single text
    compared(name, case, q, axis=axis, method=method, keepdims=keepdims)


@settings(max_examples=10, deadline=None)
@given(data=st.data(), ignores_nan=st.booleans(), keepdims=st.booleans())
def test_medians_are_those_of_numpy(
    way: str, data: st.DataObject, ignores_nan: bool, keepdims: bool
) -> None:
    case: Case = data.draw(
        st.one_of(special_cases((*REAL, *TIMES[1:]), ()), cases(("c16", "f8", "i4"), ("sum",)))
    )
    name = "nanmedian" if ignores_nan else "median"
    if ignores_nan and case.values.dtype.kind in "fc":  # of short lines NumPy's adds items up
        with np.errstate(all="ignore"):
            case.values[np.abs(case.values) > 100] = 3
    compared(name, case, axis=data.draw(axes_of(case)), keepdims=keepdims)


@settings(max_examples=10, deadline=None)
@given(data=st.data(), ignores_nan=st.booleans())
def test_weighted_quantiles_are_those_of_numpy(
    way: str, data: st.DataObject, ignores_nan: bool
) -> None:
    kinds = ("i4", "f4", "f8", *TEXT, *TIMES)
    case: Case = data.draw(special_cases(kinds, ()))
    weighing: Case = data.draw(cases(("f8", "i4", "u1"), (), case.mesh_shape, case.shape))
    weighing.values[...] = np.abs(weighing.values)
    q = data.draw(st.sampled_from((0.5, 0.0, 1.0, [0.25, 0.75], np.float32(0.4))))
    axis = data.draw(axes_of(case))
    if np.any(weighing.value.sum(axis=axis) == 0):
        weighing.values[...] += 1
    name = "nanquantile" if ignores_nan else "quantile"
    if ignores_nan and case.values.dtype.kind == "f":  # so that weights of others are not all
        weighing.values[...] += 1
    compared(name, case, q, axis=axis, method="inverted_cdf", weighing=weighing)


def test_every_place_is_found_although_samples_mislead(way: str) -> None:
    rng = np.random.default_rng(2)
    values = np.concatenate([rng.normal(size=60), np.zeros(30), rng.normal(size=37) * 100])

    def program() -> None:
        x = da.asarray(values)
        for q in np.linspace(0, 1, 40):
            agrees(da.quantile(x, q, method="lower"), np.quantile(values, q, method="lower"))

    on_ranks(program)


def test_items_without_weight_are_no_quantiles() -> None:
    values, weights = np.arange(12.0), np.array([0, 0, 0, 0, 2, 0, 1, 1, 0, 0, 0, 0])

    def program() -> None:
        for q in (0.0, 0.5, 0.75, 1.0):
            found = da.quantile(da.asarray(values), q, method="inverted_cdf", weights=weights)
            agrees(found, np.quantile(values, q, method="inverted_cdf", weights=weights))

    on_ranks(program)


def test_weights_along_an_axis() -> None:
    values = np.random.default_rng(0).integers(0, 9, (12, 5)).astype(float)
    weights = np.arange(12)

    def program() -> None:
        for placement in (Shard(0), Shard(1), Replicate()):
            x = da.asarray(values, placements=[placement])
            for own in (weights, da.asarray(weights)):
                found = da.quantile(x, 0.4, axis=0, method="inverted_cdf", weights=own)
                expected = np.quantile(values, 0.4, axis=0, method="inverted_cdf", weights=weights)
                agrees(found, expected)

    on_ranks(program)


@pytest.mark.parametrize("q", [30, [30, 40]], ids=str)
def test_weights_on_another_mesh_are_refused_by_all_ranks_alike(q: Any) -> None:
    def program() -> str:
        x = da.asarray(np.arange(8.0), mesh=da.init_device_mesh((RANKS,)), placements=[Shard(0)])
        some = da.DeviceMesh([0, 1], device=x.mesh.device)
        weights = da.asarray(np.arange(8.0), mesh=some, placements=[Shard(0)])
        with pytest.raises(MeshError) as caught:
            da.percentile(x, q, method="inverted_cdf", weights=weights)
        return str(caught.value)

    assert len(set(on_ranks(program))) == 1


@pytest.mark.parametrize("ranks_per_node", [None, 1])
@pytest.mark.parametrize("kind", ["normal", "few values", "sorted", "one block has all small"])
def test_large_blocks_are_searched_by_a_sample(kind: str, ranks_per_node: int | None) -> None:
    rng = np.random.default_rng(1)
    n = RANKS * (_quantiles._SORTED_ITEMS + 1000)
    values = rng.normal(size=n)
    if kind == "few values":
        values = np.round(values)
    elif kind == "sorted":
        values.sort()
    elif kind == "one block has all small":
        values[: n // RANKS] -= 100
    q = [0.001, 0.5, 0.73]
    gone = values.copy()
    gone[rng.random(n) < 0.3] = np.nan

    def program() -> None:
        x = da.asarray(values)
        with CommLog() as log:
            found = da.quantile(x, q)
        agrees(found, np.quantile(values, q))
        assert log.bytes() < 8 * _quantiles._SAMPLE + 600_000
        agrees(da.median(x), np.median(values))
        agrees(
            da.percentile(x, np.arange(0, 101, 10)), np.percentile(values, np.arange(0, 101, 10))
        )
        agrees(da.nanquantile(da.asarray(gone), q), np.nanquantile(gone, q))
        assert np.isnan(float(da.quantile(da.asarray(gone), 0.5)))

    simulate(RANKS, program, ranks_per_node=ranks_per_node)


def test_lines_stay_where_they_are_or_are_brought_together() -> None:
    values = np.random.default_rng(0).random((8, 100))

    def program() -> None:
        x = da.asarray(values)
        with CommLog() as log:
            found = da.quantile(x, [0.1, 0.5], axis=1)
        assert log.count() == 0
        assert found.placements == (Shard(1),)
        agrees(found, np.quantile(values, [0.1, 0.5], axis=1))
        with CommLog() as log:
            found = da.median(x, axis=0)
        assert log.bytes() == values.nbytes // RANKS * 3 // 4
        assert found.placements == (Shard(0),)
        agrees(found, np.median(values, axis=0))
        assert da.median(x).layout.is_replicated

    on_ranks(program)


def test_short_lines_are_brought_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_quantiles, "GATHERED_BYTES", 0)
    monkeypatch.setattr(_quantiles, "_FEW_LINES", 32)  # whatever the fixture of the file has set
    monkeypatch.setattr(_quantiles, "_REDISTRIBUTED_ITEMS", 4)
    reset()
    values = np.random.default_rng(0).random((4 * RANKS + 1, 5))

    def program() -> None:
        for rows, count in ((4 * RANKS, 2), (4 * RANKS + 1, 6)):  # the longer ones are searched
            x = da.asarray(values[:rows])
            with CommLog() as log:
                found = da.percentile(x, [10, 40], axis=0)
            assert (log.count() > 2) == (count > 2)
            assert found.layout.is_replicated
            agrees(found, np.percentile(values[:rows], [10, 40], axis=0))
        with CommLog() as log:
            da.percentile(da.asarray(values[:8, : RANKS - 1]), 50, axis=0)
        assert log.count() > 2  # some ranks would have none

    on_ranks(program)
    reset()


def test_few_items_are_gathered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_quantiles, "GATHERED_BYTES", 1024)
    monkeypatch.setattr(_quantiles, "_FEW_LINES", 32)  # whatever the fixture of the file has set
    reset()
    values = np.random.default_rng(0).random((16, 5))

    def program() -> None:
        x = da.asarray(values)
        with CommLog() as log:
            whole, columns = da.median(x), da.percentile(x, [10, 40], axis=0)
        assert log.count() == log.count("all_gather") == 2  # one each
        assert log.bytes() == 2 * values.nbytes // RANKS * (RANKS - 1)
        agrees(whole, np.median(values))
        agrees(columns, np.percentile(values, [10, 40], axis=0))

    on_ranks(program)
    reset()


def test_results_go_into_out() -> None:
    values = np.random.default_rng(0).random((8, 10))

    def program() -> None:
        x = da.asarray(values)
        out = da.zeros((2, 10), placements=[Shard(1)])
        assert da.quantile(x, [0.2, 0.4], axis=0, out=out) is out
        agrees(out, np.quantile(values, [0.2, 0.4], axis=0))
        one = da.zeros((), dtype=np.float32)
        assert np.median(x, out=one) is one
        agrees(one, np.float32(np.median(values)))
        with CommLog() as log, pytest.raises(ShapeError, match="out="):
            da.median(x, axis=0, out=out)
        assert log.count() == 0

    on_ranks(program)


def test_quantiles_of_two_axes_come_first_beside_nan() -> None:
    values, q = np.arange(6.0).reshape(2, 3), np.array([[0.0, 1.0], [0.3, 0.7]])

    def program() -> None:
        for axis in (0, (0, 1), ()):
            found = da.nanquantile(da.asarray(values), q, axis=axis)
            agrees(found, np.quantile(values, q, axis=axis))

    on_ranks(program)


def test_errors_that_one_rank_has_all_raise() -> None:
    values = np.ones((RANKS, 6))
    values[1, :3] = -1.7e308
    values[1, 3:] = 1.7e308

    def program() -> None:
        x = da.asarray(values)
        with np.errstate(over="raise"), pytest.raises(FloatingError, match="overflow"):
            da.quantile(x, 0.5, axis=1)
        agrees(da.quantile(x, 0.1, axis=1), np.quantile(values, 0.1, axis=1))

    on_ranks(program)


def test_quantiles_may_be_distributed() -> None:
    values, q = np.arange(20.0), np.linspace(0, 1, 7)

    def program() -> None:
        agrees(da.quantile(da.asarray(values), da.asarray(q)), np.quantile(values, q))

    on_ranks(program)


def test_wrong_arguments_are_refused_alike() -> None:
    def program() -> None:
        x = da.arange(8.0)
        for call, error, message in (
            (lambda: da.quantile(x, 1.5), ArgumentError, "from 0 to 1"),
            (lambda: da.percentile(x, [50, 101]), ArgumentError, "from 0 to 100"),
            (lambda: da.quantile(x, "a"), ArgumentTypeError, "real numbers"),
            (lambda: da.quantile(x, 0.5, method="best"), ArgumentError, "one of inverted_cdf"),
            (lambda: da.quantile(x, 0.5, method=3), ArgumentTypeError, "name"),
            (lambda: da.quantile(x * 1j, 0.5), DTypeError, "real numbers"),
            (lambda: da.quantile(x > 3, 0.5), DTypeError, "subtract"),
            (lambda: da.quantile(x[:0], 0.5), IndexingError, "quantile"),
            (lambda: da.quantile(x, 0.5, weights=x), ArgumentError, "inverted_cdf"),
        ):
            with CommLog() as log, pytest.raises(error, match=message):
                call()
            assert log.count() == 0
        with np.errstate(all="ignore"):
            endless = x / 0
        for weights, message in ((x - 1, "0 or more"), (x * 0, "add up"), (endless, "add up")):
            with np.errstate(invalid="ignore"), pytest.raises(ArgumentError, match=message):
                da.quantile(x, 0.5, method="inverted_cdf", weights=weights)
        with pytest.raises(ArgumentTypeError, match="axis="):
            da.quantile(x, 0.5, method="inverted_cdf", weights=x[:3])
        with pytest.raises(ShapeError, match="weights"):
            da.quantile(x, 0.5, axis=0, method="inverted_cdf", weights=x[:3])
        agrees(da.median(x), 3.5)

    on_ranks(program)


def test_missing_lines_warn_as_in_numpy() -> None:
    values = np.array([[np.nan, 1.0], [np.nan, 3.0]])
    with pytest.warns(RuntimeWarning, match="All-NaN slice"):
        on_ranks(lambda: agrees(da.nanmedian(da.asarray(values), axis=0), [np.nan, 2.0]))
    with pytest.warns(RuntimeWarning, match="All-NaN slice"):
        simulate(1, lambda: da.nanmedian(da.asarray(values), axis=0))


def test_axis_that_plain_items_lack_is_an_axis_error() -> None:
    with pytest.raises(AxisError, match="axis 4"):
        da.percentile([1.0, 2.0], 50, axis=4)


@pytest.mark.parametrize("keepdims", [False, True])
def test_quantiles_beside_nan_of_nothing_have_no_places(keepdims: bool) -> None:
    values, q = np.zeros((4, 0)), np.array([[0.1, 0.2], [0.3, 0.9]])  # as many lines as places
    with pytest.warns(RuntimeWarning, match="empty slice"):
        expected = np.nanquantile(values, q, axis=1, keepdims=keepdims)

    def program() -> None:
        x = da.asarray(values)
        agrees(da.nanquantile(x, q, axis=1, keepdims=keepdims), expected)
        agrees(da.quantile(x, q, axis=0), np.quantile(values, q, axis=0))

    with pytest.warns(RuntimeWarning, match="empty slice"):
        on_ranks(program)


@pytest.mark.host_only
@pytest.mark.parametrize("dtype", [">f8", ">f2", ">i4", ">M8[s]"])
@pytest.mark.parametrize("method", ["nearest", "lower", "linear"])
@pytest.mark.parametrize(
    "axes",
    [{}, {"axis": 0}, {"axis": -1, "keepdims": True}, {"axis": (0, 1)}],
    ids=str,
)
@pytest.mark.parametrize("q", [0.3, [0.1, 0.8]], ids=str)
def test_items_in_another_order_of_bytes_give_numpys_dtype(
    dtype: str, method: str, axes: Any, q: Any
) -> None:
    values = np.random.default_rng(1).integers(0, 99, (60, 5)).astype(dtype)
    expected = np.quantile(values, q, method=method, **axes)

    def program() -> None:
        x = da.asarray(values)
        agrees(da.quantile(x, q, method=method, **axes), expected)

    on_ranks(program)


@pytest.mark.host_only
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("method", ["nearest", "lower", "inverted_cdf"])
def test_quantiles_of_text_over_any_axes_are_items(method: str, keepdims: bool) -> None:
    text = np.array([["b", "a", "\u00e9\u00e9"], ["x", "", "zz"], ["b", "b", "a"]])

    def program() -> None:
        for placement in (da.Shard(0), da.Shard(1), da.Replicate()):
            x = da.distribute_array(text, placements=[placement], src=None)
            for axis in ((), 0, 1):
                for q in (0.3, [0.0, 0.9]):
                    expected = np.quantile(text, q, axis=axis, method=method, keepdims=keepdims)
                    found = da.quantile(x, q, axis=axis, method=method, keepdims=keepdims)
                    np.testing.assert_array_equal(found.full_array(), expected, strict=True)
            found = da.quantile(x, 0.5, method=method, keepdims=keepdims)  # NumPy fails to keep
            assert found.shape == (1, 1) * keepdims
            assert found.full_array() == np.quantile(text, 0.5, method=method)

    simulate(3, program)
