"""Histograms of all blocks together are NumPy's; counts stay partial sums until they are needed."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray.comm import CommLog, simulate
from distarray.errors import ArgumentError, ArgumentTypeError, DTypeError, MeshError, ShapeError
from distarray.layout import Partial, Replicate, Shard
from distarray.ops.statistical import _histograms
from distarray.testing import reset
from tests.array.strategies import RANKS, Case, agrees, cases, on_ranks
from tests.on_device import DEVICE, host

DTYPES = ("?", "i2", "u1", "i8", "f2", "f4", "f8")
pytestmark = pytest.mark.filterwarnings("ignore:Converting input")


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_counts_and_edges_are_those_of_numpy(data: st.DataObject) -> None:
    case: Case = data.draw(cases(DTYPES, ("max",)))
    weighing: Any = None
    if data.draw(st.booleans()):
        kinds = ("f8", "i4", "c16", "?", "f4")
        weighing = data.draw(cases(kinds, (), case.mesh_shape, case.shape))
    bins: Any = data.draw(st.sampled_from((1, 3, 10, [-2.5, 0, 1, 4], [0, 0, 3], [1.0])))
    if not isinstance(bins, int) and weighing is not None and weighing.values.dtype == bool:
        bins = 2  # NumPy adds truths up in equal bins alone
    limits = data.draw(st.sampled_from((None, None, (-1.5, 4), (2, 2))))
    density = data.draw(st.booleans())
    weights = None if weighing is None else weighing.value
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected = np.histogram(case.value, bins, limits, density, weights)
        except (TypeError, ValueError):
            expected = None

    def program() -> None:
        x = case.build()
        own = None if weighing is None else weighing.build()
        with np.errstate(all="ignore"):
            if x.mesh.coordinate is None or expected is None:
                with contextlib.suppress(MeshError, ArgumentError, ArgumentTypeError, DTypeError):
                    da.histogram(x, bins, limits, density, own)
                    assert x.mesh.coordinate is None
                return
            counts, edges = da.histogram(x, bins, limits, density, own)
        agrees(edges, expected[1])
        assert edges.layout.is_replicated
        agrees(counts, expected[0], rtol=1e-6 if counts.dtype.itemsize < 8 else 1e-14)
        if weighing is None and not density:
            agrees(counts, expected[0])

    on_ranks(program)


@pytest.mark.parametrize("rule", ["auto", "doane", "fd", "rice", "scott", "sqrt", "sturges"])
@pytest.mark.parametrize("limits", [None, (-1.0, 1.0)])
def test_rules_find_as_many_bins_as_in_numpy(rule: str, limits: Any) -> None:
    values = np.random.default_rng(5).normal(size=(40, 25)) ** 3

    def program() -> None:
        x = da.asarray(values)
        agrees(
            da.histogram_bin_edges(x, rule, limits), np.histogram_bin_edges(values, rule, limits)
        )
        counts, edges = np.histogram(x, rule, limits)
        agrees(counts, np.histogram(values, rule, limits)[0])
        assert edges.size == counts.size + 1

    on_ranks(program)


def test_counts_send_nothing_where_the_range_is_known() -> None:
    values = np.random.default_rng(0).random((50, 4))

    def program() -> None:
        x = da.asarray(values)
        with CommLog() as log:
            counts, _ = da.histogram(x, 7, (0, 1))
            da.histogram(x, [0.0, 0.5, 1.0])
            points, _ = da.histogramdd(x, 2, [(0, 1)] * 4)
        assert log.count() == 0
        assert counts.placements == points.placements == (Partial("sum"),)
        with CommLog() as log:
            da.histogram(x, 7)
        assert log.count() == 2
        agrees(points, np.histogramdd(values, 2, [(0, 1)] * 4)[0])

    on_ranks(program)


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_histograms_of_points_are_those_of_numpy(data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from(((0, 2), (1, 1), (12, 2), (7, 3))))
    case: Case = data.draw(cases(("f8", "i4"), ("max",), shape=shape))
    bins: Any = data.draw(st.sampled_from((2, [3] * shape[1], [[-1.0, 1.0, 2.0]] * shape[1])))
    limits = data.draw(st.sampled_from((None, [(-2, 3)] * shape[1], [None] * shape[1])))
    weights = data.draw(st.sampled_from((None, np.arange(shape[0]) / 4)))
    value = case.value
    expected, edges = np.histogramdd(value, bins, limits, None, weights)

    def program() -> None:
        x = case.build()
        if x.mesh.coordinate is None:
            return
        found, own = da.histogramdd(x, bins, limits, weights=weights)
        agrees(found, expected)
        for one, other in zip(own, edges, strict=True):
            agrees(one, other)
        columns = [x[:, i] for i in range(shape[1])]
        agrees(np.histogramdd(columns, bins, limits, weights=weights)[0], expected)
        if shape[1] == 2:
            found, *own = np.histogram2d(*columns, bins, limits, weights=weights)
            agrees(found, expected)
            agrees(own[1], edges[1])

    on_ranks(program)


def test_outer_edges_of_points_may_be_distributed() -> None:
    values = np.random.default_rng(0).random((20, 2))

    def program() -> None:
        x = da.asarray(values)
        limits = [[x[:, 0].min(), x[:, 0].max()], [0.0, 1.0]]
        plain = [[values[:, 0].min(), values[:, 0].max()], [0.0, 1.0]]
        counts, edges = da.histogramdd(x, 3, limits)
        wanted = np.histogramdd(values, 3, plain)
        agrees(counts, wanted[0])
        for own, other in zip(edges, wanted[1], strict=True):
            agrees(own, other)

    on_ranks(program)


def test_densities_of_points_are_replicated() -> None:
    values = np.random.default_rng(0).random((50, 2))

    def program() -> None:
        x = da.asarray(values)
        found = da.histogramdd(x, 3, density=True)[0]
        assert found.layout.is_replicated
        agrees(found, np.histogramdd(values, 3, density=True)[0])
        edges = np.linspace(0, 1, 5)
        found = da.histogram2d(x[:, 0], values[:, 1], edges, density=True)[0]
        agrees(found, np.histogram2d(values[:, 0], values[:, 1], edges, density=True)[0])

    on_ranks(program)


def test_points_are_brought_together_and_not_to_every_process() -> None:
    values = np.random.default_rng(0).random((64, 4))

    def program() -> None:
        x = da.asarray(values, placements=[Shard(1)])
        with CommLog() as log:
            found, _ = da.histogramdd(x, 2, [(0, 1)] * 4)
        assert log.bytes() == values.nbytes // RANKS * 3 // 4
        agrees(found, np.histogramdd(values, 2, [(0, 1)] * 4)[0])

    on_ranks(program)


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_points_without_coordinates_are_refused(rows: int) -> None:
    with pytest.raises(ValueError, match="depth"):
        np.histogramdd(np.zeros((rows, 0)))

    def program() -> None:
        with pytest.raises(ShapeError, match="without coordinates"):
            da.histogramdd(da.zeros((rows, 0)))

    on_ranks(program)


@pytest.fixture(scope="module", params=["counted by all", "counted by owners"])
def spread(request: pytest.FixtureRequest) -> Iterator[str]:
    reset()
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "counted by owners":
            patch.setattr(_histograms, "_ALWAYS_DENSE", 0)
        yield request.param
    reset()


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_integers_are_counted_as_in_numpy(spread: str, data: st.DataObject) -> None:
    shape = (data.draw(st.sampled_from((0, 1, 5, 20))),)
    case: Case = data.draw(cases(("u1", "i4", "i8", "?"), ("max",), shape=shape))
    if case.values.dtype.kind == "i":
        case.values[...] = np.abs(case.values)
    least = data.draw(st.sampled_from((0, 3, 40)))
    weights = data.draw(st.sampled_from((None, np.arange(shape[0]) / 4, np.arange(shape[0]))))
    expected = np.bincount(case.value, weights, least)

    def program() -> None:
        x = case.build()
        if x.mesh.coordinate is None:
            return
        found = np.bincount(x, weights, least)
        agrees(found, expected)
        if weights is not None:
            agrees(da.bincount(x, da.asarray(weights, mesh=x.mesh), least), expected)

    on_ranks(program)


@pytest.mark.parametrize("most", [10_000, 50_000])
def test_more_integers_than_items_are_counted_by_their_owners(most: int) -> None:
    values = np.random.default_rng(0).integers(0, most, 9000)

    def program() -> None:
        x = da.asarray(values)
        with CommLog() as log:
            found = da.bincount(x)
        assert log.count("all_reduce") == 1
        assert found.placements == (Shard(0),)
        assert found.layout.boundaries is None
        agrees(found, np.bincount(values))
        assert da.bincount(da.asarray(values % 90)).placements == (Partial("sum"),)

    on_ranks(program)
    simulate(RANKS, program, ranks_per_node=1)


@pytest.mark.parametrize("where", [[Shard(0)], [Replicate()], [Partial("sum")]], ids=str)
def test_plain_integers_are_counted_beside_distributed_weights(where: Any) -> None:
    weights = np.arange(12.0)
    groups = np.arange(12) % 5

    def program() -> None:
        x = da.distribute_array(weights, None, where)
        with da.CommLog() as log:
            found = np.bincount(groups, weights=x)
        assert log.bytes("all_gather") == 0
        agrees(found, np.bincount(groups, weights=weights))
        with pytest.raises(ShapeError, match="items"):
            np.bincount(groups[:3], weights=x)

    on_ranks(program)


def test_wrong_arguments_are_refused_alike() -> None:
    def program() -> None:
        x, n = da.arange(8.0), da.arange(8)
        nan = da.where(x == 3, np.nan, x)
        for call, error, message in (
            (lambda: da.histogram(x, [3, 1]), ArgumentError, "ascend"),
            (lambda: da.histogram(x, 0), ArgumentError, "1 or more"),
            (lambda: da.histogram(x, 2.5), ArgumentTypeError, "integer or an array"),
            (lambda: da.histogram(x, "best"), ArgumentError, "no rule"),
            (lambda: da.histogram(x, "auto", weights=x), ArgumentTypeError, "takes no weights"),
            (lambda: da.histogram(x, 3, (2, 1)), ArgumentError, "larger"),
            (lambda: da.histogram(x, 3, 7), ArgumentTypeError, "int"),
            (lambda: da.histogram(x, 3, weights=n[:4]), ShapeError, "weights"),
            (lambda: da.histogram(nan, 3), ArgumentError, "give range="),
            (lambda: da.histogramdd([x, n[:4]], 3), ShapeError, "shape"),
            (lambda: da.histogramdd(da.ones((3, 2)), [1, 2, 3]), ArgumentError, "dimensions"),
            (lambda: da.bincount(n - 1), ArgumentError, "0 or more"),
            (lambda: da.bincount(x), DTypeError, "integers"),
            (lambda: da.bincount(n, minlength=-1), ArgumentError, "minlength"),
            (lambda: da.bincount(n, x[:3]), ShapeError, "weights"),
            (lambda: da.bincount(da.ones((2, 2), dtype=int)), ShapeError, "one axis"),
        ):
            with pytest.raises(error, match=message):
                call()
        agrees(da.histogram(nan, 3, (0, 8))[0], [3, 2, 2])

    on_ranks(program)


@pytest.mark.skipif(DEVICE != "cpu", reason="GPUs have no dates")
def test_dates_fall_between_edges() -> None:
    days = np.datetime64("2020-01-01") + np.arange(30)
    edges = np.array(["2020-01-01", "2020-01-08", "2020-01-20"], "M8[D]")

    def program() -> None:
        counts, found = da.histogram(da.asarray(days), edges)
        agrees(counts, np.histogram(days, edges)[0])
        assert np.array_equal(host(found.full_array()), edges)
        agrees(da.histogram(da.asarray(days, placements=[Replicate()]), edges)[0], [7, 13])

    on_ranks(program)


@pytest.mark.host_only  # CuPy holds numbers only
@pytest.mark.parametrize("edges", [np.array([1, 2, 4], "M8[D]"), np.array([1, 2, 4], "m8[s]")])
def test_edges_that_items_do_not_compare_with_are_refused_alike(edges: Any) -> None:
    def program() -> None:
        x = da.ones(3)  # the last process has none of it
        with pytest.raises(da.errors.DistArrayError, match="histogram"):
            da.histogram(x, edges)

    on_ranks(program)
