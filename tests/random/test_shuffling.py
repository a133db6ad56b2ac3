"""Permutations and choices: the same on any number of ranks, of any layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import distarray as da
from distarray import Partial, Replicate, Shard
from distarray.comm import simulate
from distarray.errors import (
    ArgumentError,
    ArgumentTypeError,
    AxisError,
    ReadOnlyError,
    ShapeError,
)
from distarray.random import _bijection, _shuffling, _streams, default_rng
from tests import peak_memory
from tests.on_device import host

ROWS = np.arange(44).reshape(11, 4)
WEIGHTS = np.array([0.1, 0.0, 0.3, 0.05, 0.05, 0.1, 0.1, 0.1, 0.1, 0.05, 0.05])


def draws(make: Any) -> list[np.ndarray]:
    """Return what all methods give, for rows in a layout that `make` gives them."""
    rng = default_rng(5)
    x, flat = make(ROWS), make(np.arange(5000).reshape(1000, 5))
    shuffled = x.copy()
    rng.shuffle(shuffled)
    columns = x.copy()
    rng.shuffle(columns, axis=1)
    found = [
        shuffled,
        columns,
        rng.permutation(7),
        rng.permutation(6000),
        rng.permutation(x),
        rng.permutation(x, axis=-1),
        rng.permutation(ROWS),
        rng.permuted(x),
        rng.permuted(flat),
        rng.permuted(x, axis=0),
        rng.permuted(x, axis=1),
        rng.choice(9, 20),
        rng.choice(9, (3, 2), replace=False),
        rng.choice(10**6, 4, replace=False),
        rng.choice(x, (2, 3)),
        rng.choice(x, 5, replace=False),
        rng.choice(x, 3, axis=1, replace=False),
        rng.choice(x, 9, p=WEIGHTS),
        rng.choice(x, 9, p=WEIGHTS, replace=False),
        rng.choice(11, 30, p=da.asarray(WEIGHTS)),
        rng.choice(11, (5, 2), p=da.asarray(WEIGHTS), replace=False),
        rng.choice(ROWS, 3),
        rng.choice(x),
    ]
    single = [rng.choice(9), rng.choice(11, p=WEIGHTS), rng.choice(11, p=da.asarray(WEIGHTS))]
    assert [type(one) for one in single] == [np.int64] * 3
    return [*(host(one.full_array()) for one in found), *single]


LAYOUTS: list[tuple[tuple[int, ...], list[Any]]] = [
    ((2,), [Shard(0)]),
    ((3,), [Shard(1)]),
    ((3,), [Partial()]),
    ((4,), [Shard(0)]),
    ((2, 2), [Shard(1), Shard(0)]),
    ((8,), [Shard(0)]),
]


@pytest.mark.parametrize(("mesh_shape", "placements"), LAYOUTS, ids=str)
def test_values_do_not_depend_on_mesh_or_placements(
    mesh_shape: tuple[int, ...], placements: list[Any]
) -> None:
    def program(mesh_shape: tuple[int, ...], placements: list[Any]) -> list[np.ndarray]:
        mesh = da.init_device_mesh(mesh_shape)
        with da.use_mesh(mesh):
            return draws(lambda x: da.asarray(x, mesh=mesh, placements=placements))

    alone = simulate(1, lambda: program((1,), [Replicate()]))[0]
    ranks = int(np.prod(mesh_shape))
    for found in simulate(ranks, lambda: program(mesh_shape, placements)):
        for values, expected in zip(found, alone, strict=True):
            np.testing.assert_array_equal(values, expected)


def test_parts_change_places_and_stay_whole() -> None:
    shuffled, columns, _, _, rows, across, plain, items, *_ = simulate(
        2, lambda: draws(da.asarray)
    )[0]
    for found in (shuffled, rows, plain):
        assert not np.array_equal(found, ROWS)
        np.testing.assert_array_equal(found[np.argsort(found[:, 0])], ROWS)
    for found in (columns, across):
        np.testing.assert_array_equal(found[:, np.argsort(found[0])], ROWS)
    np.testing.assert_array_equal(np.sort(items, axis=None), ROWS.ravel())


def test_lines_are_permuted_each_by_itself() -> None:
    def program() -> None:
        rng = default_rng(2)
        x = da.broadcast_to(da.arange(6), (200, 6)).copy()
        found = host(rng.permuted(x, axis=1).full_array())
        np.testing.assert_array_equal(np.sort(found, axis=1), np.tile(np.arange(6), (200, 1)))
        assert len(np.unique(found, axis=0)) > 100
        out = x.copy()
        assert rng.permuted(out, axis=0, out=out) is out
        np.testing.assert_array_equal(out.full_array(), x.full_array())  # of equal items

    simulate(3, program)


def test_results_keep_the_layout_of_uneven_blocks() -> None:
    def program() -> None:
        x = da.arange(40).reshape(20, 2)[da.arange(20) % 7 < 5]
        for found in (default_rng(1).permutation(x), default_rng(1).permuted(x, axis=0)):
            assert found.layout is x.layout or found.layout.boundaries == x.layout.boundaries
            assert sorted(host(found.full_array()).ravel()) == sorted(host(x.full_array()).ravel())

    simulate(3, program)


@pytest.mark.parametrize(("operation", "dtype"), [("any", "?"), ("sum", "i8"), ("max", "f4")])
def test_parts_of_arrays_that_are_pending_change_places(operation: str, dtype: str) -> None:
    def program() -> None:
        mesh = da.init_device_mesh((3,))
        items = (np.arange(10) * 3 + mesh.rank) % 4
        x = da.DistArray.from_local(items.astype(dtype), mesh, [Partial(operation)])
        whole = x.redistribute([Shard(0)])
        for name in ("permutation", "permuted"):
            found = getattr(default_rng(4), name)(x)
            expected = getattr(default_rng(4), name)(whole)
            np.testing.assert_array_equal(found.full_array(), expected.full_array())
        default_rng(4).shuffle(x)
        default_rng(4).shuffle(whole)
        np.testing.assert_array_equal(x.full_array(), whole.full_array())

    simulate(3, program)


def test_rows_move_once_and_numbers_not_at_all() -> None:
    def program() -> tuple[int, int, int]:
        x = da.ones((600, 100))
        with da.CommLog() as numbers:
            default_rng(1).permutation(10_000)
            default_rng(1).choice(10_000, 500, replace=False)
            default_rng(1).choice(100, 500, p=np.full(100, 0.01))
            default_rng(1).permutation(x, axis=1)
        with da.CommLog() as rows:
            default_rng(1).permutation(x)
        return numbers.count(), rows.count(), rows.bytes()

    for none, calls, nbytes in simulate(3, program):
        assert none == 0
        assert calls == 1
        assert nbytes <= 200 * 800  # at most a block, of which a third stays


def test_choices_are_as_frequent_as_their_weights() -> None:
    stats = pytest.importorskip("scipy.stats")

    def program() -> None:
        rng, n = default_rng(4), 20_000
        possible = WEIGHTS > 0
        for p in (WEIGHTS, da.asarray(WEIGHTS)):
            counts = np.bincount(host(rng.choice(11, n, p=p).full_array()), minlength=11)
            assert counts[~possible].sum() == 0
            assert stats.chisquare(counts[possible], n * WEIGHTS[possible]).pvalue > 1e-3
        counts = np.bincount(host(rng.choice(11, n).full_array()), minlength=11)
        assert stats.chisquare(counts).pvalue > 1e-3
        firsts = [host(rng.choice(3, 2, False, [0.5, 0.3, 0.2]).full_array()) for _ in range(1500)]
        codes = np.bincount(np.array(firsts) @ [3, 1], minlength=9)
        chances = np.array([0, 0.3, 0.2, 0.3 * 5 / 7, 0, 0.3 * 2 / 7, 0.2 * 5 / 8, 0.2 * 3 / 8, 0])
        chances[1:3] *= 0.5 / 0.5
        assert codes[[0, 4, 8]].sum() == 0
        used = [1, 2, 3, 5, 6, 7]
        assert stats.chisquare(codes[used], 1500 * chances[used]).pvalue > 1e-3

    simulate(1, program)


def test_the_least_double_is_a_probability_and_0_is_none() -> None:
    def program() -> None:
        found = default_rng(4).choice(3, 2, replace=False, p=[0.0, 5e-324, 1.0])
        assert host(found.full_array()).tolist() == [2, 1]
        keep = default_rng(4).choice(3, 2, replace=False, p=da.asarray([5e-324, 1.0, 0.0]))
        assert host(keep.full_array()).tolist() == [1, 0]

    simulate(2, program)


def test_choice_goes_where_its_distributed_weights_are() -> None:
    def program() -> None:
        mesh = da.init_device_mesh((2, 2), axis_names=("a", "b"))
        p = da.distribute_array(WEIGHTS, mesh, [da.Shard(0), da.Replicate()])
        for replace in (True, False):
            found = default_rng(4).choice(11, 3, replace, p)
            same = default_rng(4).choice(11, 3, replace, WEIGHTS)
            assert found.mesh is mesh
            assert np.array_equal(host(found.full_array()), host(same.full_array()))

    simulate(4, program)


def test_small_choices_of_large_ranges_compute_no_others() -> None:
    def program() -> None:
        found = host(default_rng(1).choice(10**15, 1000, replace=False).full_array())
        assert len(np.unique(found)) == 1000
        assert found.max() < 10**15

    simulate(2, program)


@pytest.mark.parametrize(
    ("call", "error", "shown"),
    [
        (lambda rng: rng.permutation(-1), ArgumentError, "x=-1"),
        (lambda rng: rng.permutation(2.5), ArgumentTypeError, "x=2.5"),
        (lambda rng: rng.permutation(da.asarray(3)), ArgumentTypeError, "without axes"),
        (lambda rng: rng.permutation(da.ones(3), axis=1), AxisError, "1"),
        (lambda rng: rng.shuffle(np.ones(3)), ArgumentTypeError, "x = rng.permutation"),
        (lambda rng: rng.shuffle(da.broadcast_to(da.ones(1), (3,))), ReadOnlyError, "shuffle"),
        (lambda rng: rng.permuted(da.ones(3), out=da.ones(4)), ShapeError, "(4,)"),
        (lambda rng: rng.choice(0, 2), ArgumentError, "at least one"),
        (lambda rng: rng.choice(3, 4, replace=False), ArgumentError, "among 3"),
        (lambda rng: rng.choice(3, 4, p=[0.5, 0.5]), ShapeError, r"\(2,\)"),
        (lambda rng: rng.choice(2, 4, p=[0.5, 0.6]), ArgumentError, "p / p.sum"),
        (lambda rng: rng.choice(0, 0, p=[]), ArgumentError, "sum of 0.0"),
        (lambda rng: rng.choice(2, 4, p=[1.5, -0.5]), ArgumentError, "-0.5"),
        (lambda rng: rng.choice(2, 4, p=[np.nan, 1]), ArgumentError, "nan"),
        (lambda rng: rng.choice(2, 4, p=da.asarray([np.nan, 1])), ArgumentError, "nan"),
        (lambda rng: rng.choice(2, 2, p=[1, 0], replace=False), ArgumentError, "only 1"),
        (lambda rng: rng.choice(2, 4, p=["a", "b"]), ArgumentTypeError, "no real numbers"),
        (lambda rng: rng.choice(2, 4, shuffle=None), ArgumentTypeError, "shuffle"),
        (lambda rng: rng.choice(np.ma.masked_array([1, 2], [0, 1])), ArgumentTypeError, "Masked"),
        (lambda rng: rng.permutation(np.ma.masked_array([1, 2])), ArgumentTypeError, "Masked"),
    ],
)
def test_mistakes_raise_on_every_rank(call: Any, error: Any, shown: str) -> None:
    def program() -> str:
        rng = default_rng(1)
        with pytest.raises(error, match=shown) as raised:
            call(rng)
        assert rng.random() == default_rng(1).random()  # it did not count
        return str(raised.value)

    assert len(set(simulate(3, program))) == 1


def test_few_or_no_items() -> None:
    def program() -> None:
        rng = default_rng(1)
        assert rng.permutation(0).shape == (0,)
        assert rng.permutation(1).full_array().tolist() == [0]
        assert rng.permutation(da.ones((0, 3))).shape == (0, 3)
        assert rng.permuted(da.ones((3, 0)), axis=0).shape == (3, 0)
        assert rng.permuted(da.asarray(5.0)).full_array().tolist() == 5.0
        assert rng.choice(0, 0).shape == (0,)
        assert rng.choice(5, (0, 2), replace=False).shape == (0, 2)
        rng.shuffle(da.ones((0, 3)))

    simulate(3, program)


@pytest.mark.host_only
def test_memory_besides_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (_bijection, _shuffling, _streams):
        monkeypatch.setattr(module, "PIECE", 1 << 12)
    monkeypatch.setenv("DISTARRAY_KERNELS", "numpy")  # loading others is counted as well
    items, rows = np.ones(400_000), np.ones((40_000, 50))

    def scratch(call: Any, value: np.ndarray) -> float:
        return peak_memory.scratch(call, value, 2)

    assert scratch(lambda x: default_rng(1).permutation(x.size), items) < 0.3
    assert scratch(lambda x: default_rng(1).choice(10**9, x.size, False), items) < 0.3
    assert scratch(lambda x: default_rng(1).permutation(x), rows) < 0.4
    assert scratch(lambda x: default_rng(1).poisson(x), items) < 1.5


@pytest.mark.host_only
def test_other_dtypes_move_as_they_are() -> None:
    def program() -> None:
        rng = default_rng(1)
        for value in (
            np.array(["a", "bc", "def", "g"]),
            np.arange(4).astype(">i2"),
            np.array([1 + 2j, np.nan, np.inf, 0], np.complex64),
        ):
            found = host(rng.permutation(da.asarray(value)).full_array())
            assert found.dtype == value.dtype
            assert sorted(map(str, found)) == sorted(map(str, value))

    simulate(2, program)
