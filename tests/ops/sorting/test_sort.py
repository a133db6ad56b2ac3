"""Sorts over ranks are NumPy's stable ones for every layout; blocks keep their sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray.comm import CommLog, _grouping, simulated_world, token, world
from distarray.comm.kernels import _jit
from distarray.errors import (
    ArgumentError,
    ArgumentTypeError,
    AxisError,
    DTypeError,
    ImplicitCommunicationError,
    MismatchError,
    ReadOnlyError,
    ShapeError,
)
from distarray.layout import Partial, Replicate, Shard
from distarray.ops.sorting import _block_sort, _exchange, _multiselection, _sort
from distarray.ops.sorting._exchange import sort_across
from tests import peak_memory
from tests.array.strategies import KIND, RANKS, Case, agrees, cases, on_ranks, special_cases
from tests.on_device import host
from tests.ops.sorting.items import DTYPES, draw_items, identical

NUMBERS = tuple(map(np.dtype, ("?", "i1", "u2", "i8", "f2", "f4", "f8", "c8", "c16")))
OTHERS = tuple(map(np.dtype, ("g", "U3", "S3", "M8[s]", "m8[ns]") if KIND == "cpu" else ()))
WAYS = ("turned", "lines", "groups")


@pytest.fixture(params=WAYS)
def way(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Cut another axis whenever that can be done, or never, and sort few lines at a time."""
    if request.param == "turned":
        monkeypatch.setattr(_sort, "_MOST_LINES", 1)
    else:
        monkeypatch.setattr(_sort, "_find_turned", lambda layout, axis: None)
        monkeypatch.setattr(_sort, "_MOST_LINES", 2 if request.param == "groups" else 1000)
    if request.param != "groups":
        monkeypatch.setattr(_exchange, "GATHERED_BYTES", 0)
    monkeypatch.setattr(_block_sort, "_NUMPY_ITEMS", 4)
    monkeypatch.setattr(_multiselection, "_FEW_BYTES", 0 if request.param == "lines" else 64)
    da.testing.reset()
    yield request.param
    da.testing.reset()


def flipped(values: np.ndarray, axis: int | None) -> np.ndarray:
    return np.flip(values, 0 if axis is None else axis)


def expected_order(
    values: np.ndarray, axis: int | None, descending: bool, nan_first: bool = False
) -> np.ndarray:
    """Return the stable order by NumPy, which has a descending one from 2.5 on."""
    if axis is None:
        values = values.reshape(-1)
    if descending and not nan_first and values.dtype.kind in "fcmM":
        values = values.astype(values.dtype.newbyteorder("="))
        values = -values.view(values.dtype.str.replace("M", "m"))
        descending = False
    if not descending:
        return np.argsort(values, axis=-1 if axis is None else axis, kind="stable")
    along = 0 if axis is None else axis
    order = np.argsort(flipped(values, axis), axis=along, kind="stable")
    return flipped(values.shape[along] - 1 - order, axis)


@pytest.mark.usefixtures("way")
@settings(max_examples=10)
@given(data=st.data())
def test_orders_are_numpys_for_all_layouts(data: st.DataObject) -> None:
    case: Case = data.draw(special_cases((*NUMBERS, *OTHERS)))
    axes = [None, *range(-len(case.shape), len(case.shape))]
    axis = data.draw(st.sampled_from(axes))
    descending = data.draw(st.booleans())
    value = case.value
    order = expected_order(value, axis, descending)
    flat = value.reshape(-1) if axis is None else value
    sorted_ = np.take_along_axis(flat, order, axis) if value.size else flat
    best = expected_order(value, axis, descending, nan_first=True)
    best_items = np.take_along_axis(flat, best, axis) if value.size else flat
    k = data.draw(st.integers(0, order.shape[0 if axis is None else axis]))

    def program() -> None:
        x = case.build()
        y = da.sort(x, axis=axis, descending=descending)
        places = da.argsort(x, axis=axis, descending=descending)
        agrees(places, order)
        agrees(y, sorted_)
        if y.mesh.coordinate is not None:
            assert identical(host(y.full_array()), sorted_)
        assert y.layout is places.layout
        if axis is not None:
            assert y.layout is x.layout.without_partial()
            values, indices = da.topk(x, k, axis, largest=descending)
            first = np.arange(k)
            agrees(values, np.take(best_items, first, axis))
            agrees(indices, np.take(best, first, axis))
        agrees(x, value)

    on_ranks(program)


@settings(max_examples=10)
@given(data=st.data())
def test_partial_operands_are_reduced_first(data: st.DataObject) -> None:
    case: Case = data.draw(cases((np.int32, np.float64), ("sum", "max")))
    if not case.shape:
        return

    def program() -> None:
        agrees(da.sort(case.build(), 0), np.sort(case.value, 0))
        agrees(da.argsort(case.build(), 0), np.argsort(case.value, 0, kind="stable"))

    on_ranks(program)


@pytest.mark.skipif(KIND != "cpu", reason="GPUs have no such items")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("descending", "gathered"), [(False, 0), (True, 0), (True, 32768)])
def test_sorts_across_ranks_have_the_bits_of_stable_ones(
    dtype: Any, descending: bool, gathered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_exchange, "GATHERED_BYTES", gathered)
    monkeypatch.setattr(_block_sort, "_NUMPY_ITEMS", 16)
    rng = np.random.default_rng(3)
    trials = []
    for trial in range(4):
        sizes = [int(n) for n in rng.integers(0, 30, RANKS) * rng.integers(0, 2, RANKS)]
        sizes = [0, 0, 37, 0] if trial == 3 else sizes
        trials.append((np.cumsum([0, *sizes]), draw_items(rng, np.dtype(dtype), sum(sizes), True)))

    def program() -> None:
        for offsets, values in trials:
            box = (0, *map(int, offsets[1:-1]), len(values))
            mesh = da.init_device_mesh((RANKS,))
            x = da.distribute_array(values, mesh, [Shard(0)], src=None)
            x = x.redistribute(boundaries={0: box})
            order = expected_order(values, 0, descending)
            y = da.sort(x, descending=descending)
            assert identical(y.full_array(), values[order])
            assert y.layout is x.layout
            assert (da.argsort(x, descending=descending).full_array() == order).all()
            unstable = da.sort(x, stable=False)
            native = values.astype(values.dtype.newbyteorder("="))
            both = np.stack([unstable.full_array().astype(native.dtype), np.sort(native)])
            assert (np.argsort(both, kind="stable", axis=-1) == np.arange(len(values))).all()

    on_ranks(program)


@pytest.mark.skipif(KIND != "cpu", reason="a GPU has its own byte order alone")
def test_lines_keep_their_byte_order(way: str) -> None:
    case = Case((3,), (Shard(0),), np.arange(24)[::-1].reshape(1, 6, 4).astype(">i4"))

    def program() -> None:
        agrees(da.sort(case.build(), axis=0), np.sort(case.value, axis=0))

    on_ranks(program)


def test_blocks_keep_their_sizes_however_many_items_are_equal() -> None:
    offsets = (0, 1, 1, 37, 40)

    def program() -> None:
        mesh = da.init_device_mesh((RANKS,))
        for values in (np.zeros(40), np.full(40, np.nan), np.arange(40) // 39.0):
            x = da.distribute_array(values, mesh, [Shard(0)]).redistribute(boundaries={0: offsets})
            y = da.sort(x)
            assert y.layout is x.layout
            agrees(y, np.sort(values))
            agrees(da.argsort(x), np.arange(40))
            agrees(da.argsort(x, descending=True), np.argsort(-values, kind="stable"))

    on_ranks(program)


def test_filtered_arrays_keep_the_boundaries_that_values_gave_them() -> None:
    values = np.random.default_rng(4).permutation(60)

    def program() -> None:
        x = da.distribute_array(values, placements=[Shard(0)])
        part = x[x % 7 > 2]
        assert part.layout.is_counted
        assert da.sort(part).layout is part.layout
        agrees(da.sort(part), np.sort(values[values % 7 > 2]))
        agrees(da.argsort(part), np.argsort(values[values % 7 > 2]))

    on_ranks(program)


def test_several_mesh_axes_cut_one_axis_in_any_order(way: str) -> None:
    values = np.random.default_rng(5).integers(0, 9, (11, 7))

    def program() -> None:
        mesh = da.init_device_mesh((2, 2))
        for order in ((0, 1), (1, 0)):
            x = da.distribute_array(values, mesh, [Shard(0), Shard(0)])
            x = x.redistribute(shard_order=order)
            assert x.layout.sharding_axes(0) == order
            agrees(da.sort(x, 0), np.sort(values, 0))
            agrees(da.argsort(x, 0), np.argsort(values, 0, kind="stable"))
        for placements in ([Shard(0), Replicate()], [Shard(1), Shard(0)], [Replicate(), Shard(1)]):
            x = da.distribute_array(values, mesh, placements)
            for axis in (0, 1):
                agrees(da.sort(x, axis), np.sort(values, axis))

    assert way in WAYS
    on_ranks(program)


def test_few_items_are_gathered_at_once() -> None:
    values = np.random.default_rng(10).random(600)

    def program() -> None:
        x = da.distribute_array(values, placements=[Shard(0)])
        with CommLog() as log:
            y = da.sort(x)
            order = da.argsort(x)
        assert log.count() == log.count("all_gather") == 2  # one each
        agrees(y, np.sort(values))
        agrees(order, np.argsort(values, kind="stable"))

    on_ranks(program)


@pytest.mark.parametrize("n", [40, 80_000])
def test_ranks_that_sort_otherwise_are_told_apart(n: int) -> None:
    def program() -> None:
        x = da.arange(float(n))
        with pytest.raises(MismatchError):
            da.sort(x, descending=simulated_world().rank == 1)
        agrees(da.sort(x), np.arange(float(n)))

    on_ranks(program)


def test_each_item_moves_once() -> None:
    n = 80_000
    values = np.arange(n, dtype=float)[::-1].copy()  # every item goes to another rank

    def program() -> None:
        x = da.distribute_array(values, placements=[Shard(0)])
        with CommLog() as log:
            y = da.sort(x)
        assert log.bytes("rows") == 8 * n // RANKS
        assert log.bytes() < 8 * n // RANKS + 8 * 64 * 1024 * RANKS
        agrees(y, values[::-1])
        with CommLog() as log:
            da.argsort(x)
        assert log.bytes("rows") == 16 * n // RANKS  # and its position
        with CommLog() as log:
            da.sort(y)  # nothing has to move
        assert log.bytes("rows") == 0
        with CommLog() as log:
            agrees(da.topk(x, 3)[1], [0, 1, 2])
        assert log.bytes("rows") <= 3 * RANKS * 16
        z = da.distribute_array(values.reshape(4, -1), placements=[Shard(0)])
        with CommLog() as log:
            da.sort(z, axis=1)
        assert log.bytes() == 0

    on_ranks(program)


def test_policy_refuses_before_anything_is_sent() -> None:
    def program() -> None:
        x = da.distribute_array(np.arange(40.0).reshape(8, 5), placements=[Shard(0)])
        tall = da.distribute_array(np.arange(400.0).reshape(4, 100), placements=[Shard(0)])
        with da.communication("raise"), CommLog() as log:
            for one in (x, tall):
                for call in (da.sort, da.argsort, lambda x, axis: da.topk(x, 2, axis)):
                    with pytest.raises(ImplicitCommunicationError):
                        call(one, axis=0)
            da.sort(x, 1)
        assert log.count() == 0

    on_ranks(program)


@pytest.mark.skipif(KIND != "cpu", reason="GPUs have no structures that are sorted")
def test_fields_are_compared_in_the_order_given() -> None:
    rng = np.random.default_rng(6)
    dtype = np.dtype([("a", "f8"), ("b", "i2"), ("c", "U2")], align=True)
    values = draw_items(rng, dtype, 60, True)

    def program() -> None:
        x = da.distribute_array(values, placements=[Shard(0)])
        for order in (None, "b", ["c"], ("b", "c"), ["c", "a", "b"]):
            assert identical(da.sort(x, order=order).full_array(), np.sort(values, order=order))
            wanted = np.argsort(values, order=order, kind="stable")
            agrees(da.argsort(x, order=order), wanted)
        for wrong in ("d", ("a", "a"), 3):
            with pytest.raises(ArgumentError, match="fields"):
                da.sort(x, order=wrong)
        with pytest.raises(ArgumentError, match="fields"):
            da.sort(da.arange(5), order="a")

    on_ranks(program)


@settings(max_examples=10)
@given(data=st.data())
def test_lexsort_is_numpys(data: st.DataObject) -> None:
    kinds = (*NUMBERS, *OTHERS)
    first: Case = data.draw(special_cases(kinds))
    if not first.shape:
        return
    same = {"mesh_shape": first.mesh_shape, "shape": first.shape}
    others = [data.draw(special_cases(kinds, **same)) for _ in range(data.draw(st.integers(0, 2)))]
    keys = [first, *others]
    plain = data.draw(st.integers(1, 4))
    axis = data.draw(st.integers(-len(first.shape), len(first.shape) - 1))
    expected = np.lexsort([case.value for case in keys], axis)

    def program() -> None:
        built = [case.value if i == plain else case.build() for i, case in enumerate(keys)]
        agrees(da.lexsort(built, axis), expected)
        agrees(np.lexsort(tuple(built), axis), expected)
        agrees(da.lexsort(da.stack([built[0]] * 2), axis), np.lexsort([first.value] * 2, axis))

    on_ranks(program)


def test_numpys_functions_and_methods_answer() -> None:
    values = np.random.default_rng(7).integers(0, 30, (9, 6))

    def program() -> None:
        x = da.distribute_array(values, placements=[Shard(0)])
        agrees(np.sort(x, 0, "stable"), np.sort(values, 0))
        agrees(np.sort(x, axis=None), np.sort(values, None))
        agrees(np.argsort(x, axis=0, stable=True), np.argsort(values, 0, kind="stable"))
        agrees(x.argsort(0, "mergesort"), np.argsort(values, 0, kind="stable"))
        agrees(np.sort_complex(x), np.sort_complex(values))
        for kth in (3, -1, [1, 4]):
            found = host(np.partition(x, kth, axis=0).full_array())
            for place in np.atleast_1d(kth):
                assert (found[place] == np.sort(values, 0)[place]).all()
                assert (found[:place] <= found[place]).all()
            order = host(np.argpartition(x, kth, axis=0).full_array())
            assert (np.take_along_axis(values, order, 0) == found).all()
            agrees(x.argpartition(kth, 0), order)
        y, z = x.copy(), x.copy()
        assert y.sort(0) is None
        z.partition(3, axis=0)
        agrees(y, np.sort(values, 0))
        agrees(z, np.sort(values, 0))
        part = da.distribute_array(values, placements=[Partial("sum")])
        part.sort()
        assert part.placements == (Partial("sum"),)
        agrees(part, np.sort(values))
        agrees(x, values)

    on_ranks(program)


def test_wrong_arguments_are_refused_alike() -> None:
    def program() -> None:
        x = da.arange(12.0).reshape(4, 3)
        for error, call in (
            (AxisError, lambda: da.sort(x, 2)),
            (AxisError, lambda: da.sort(da.asarray(1.0))),
            (ArgumentError, lambda: da.sort(x, kind="bubble")),
            (ArgumentError, lambda: da.sort(x, kind="stable", stable=True)),
            (ArgumentTypeError, lambda: da.sort(np.ones(3))),
            (ArgumentError, lambda: da.partition(x, 3)),
            (ArgumentError, lambda: da.argpartition(x, [0, -4])),
            (ArgumentTypeError, lambda: da.partition(x, 1.5)),
            (ArgumentError, lambda: da.partition(x, 1, kind="quick")),
            (ArgumentError, lambda: da.topk(x, 4)),
            (ArgumentTypeError, lambda: da.topk(x, 1.5)),
            (ShapeError, lambda: da.lexsort((x, x[0]))),
            (ShapeError, lambda: da.lexsort(())),
            (ArgumentTypeError, lambda: da.lexsort((np.ones(3),))),
            (ArgumentTypeError, lambda: da.lexsort(3)),
            (ReadOnlyError, lambda: x[0].sort()),
        ):
            with pytest.raises(error):
                call()
        agrees(da.sort(x), np.arange(12.0).reshape(4, 3))

    on_ranks(program)


@pytest.mark.skipif(KIND != "cpu", reason="no such items")
def test_items_without_an_order_of_bits_are_refused() -> None:
    def program() -> None:
        mesh = da.init_device_mesh((RANKS,))
        x = da.DistArray.from_local(np.array(["a"], np.dtypes.StringDType()), mesh, check=False)
        for call in (da.sort, da.argsort, lambda x: da.topk(x, 1), lambda x: da.lexsort([x])):
            with pytest.raises(DTypeError, match="astype"):
                call(x)

    try:
        on_ranks(program)
    except DTypeError:  # which no array holds
        return


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("gathered", [0, 32768])
def test_payload_travels_with_its_items(
    descending: bool, gathered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_exchange, "GATHERED_BYTES", gathered)
    rng = np.random.default_rng(8)
    values = rng.integers(0, 6, (3, 50))
    order = expected_order(values, 1, descending)
    offsets, targets = (0, 20, 20, 45, 50), (0, 5, 30, 30, 40)

    def program() -> None:
        comm = simulated_world() or world()
        own = slice(*offsets[comm.rank : comm.rank + 2])
        to = slice(*targets[comm.rank : comm.rank + 2])
        rows = np.stack([values, -values, values * 0], axis=-1)
        lines, (places, carried) = sort_across(
            comm, [values[:, own], np.tile(np.arange(50), (3, 1))[:, own], rows[:, own]],
            targets, token("test"), total=50, descending=descending,
        )  # fmt: skip
        assert (lines == np.take_along_axis(values, order, 1)[:, to]).all()
        assert (places == order[:, to]).all()
        assert (carried[..., 1] == -lines).all()
        line, (place,) = sort_across(
            comm, [values[:1, own], np.arange(50)[None, own]], offsets, token("test"),
            descending=descending,
        )  # fmt: skip
        assert (line == values[0][order[0]][own]).all()
        assert (place == order[0][own]).all()

    on_ranks(program)


def test_large_runs_are_merged_by_kernels() -> None:
    rng = np.random.default_rng(9)
    n = 300_001  # of which each block is worth the kernels
    values = rng.choice(np.array([0.0, -0.0, 1.5, np.nan, -np.inf, -2.5]), n)
    values[::2] = rng.standard_normal(len(values[::2]))

    order, down = (expected_order(values, 0, descending) for descending in (False, True))

    def program() -> None:
        x = da.distribute_array(values, placements=[Shard(0)])
        assert host(da.sort(x).full_array()).tobytes() == values[order].tobytes()
        agrees(da.argsort(x), order)
        found = host(da.sort(x, descending=True).full_array())
        assert found.tobytes() == values[down].tobytes()
        agrees(da.argsort(x, descending=True), down)

    on_ranks(program)


@pytest.mark.parametrize("shape", [(2, 0), (0,), (0, 3)])
def test_nothing_has_any_place_as_in_numpy(shape: tuple[int, ...]) -> None:
    def program() -> None:
        x = da.zeros(shape)
        for kth in (0, 5, -9, (0, 1)):
            for name in ("partition", "argpartition"):
                expected = getattr(np, name)(np.zeros(shape), kth)
                found = getattr(da, name)(x, kth)
                np.testing.assert_array_equal(found.full_array(), expected, strict=True)

    on_ranks(program)


@pytest.mark.host_only
@pytest.mark.parametrize(("function", "blocks"), [(da.sort, 2), (da.argsort, 5)])
def test_memory_beside_lines_that_are_cut_is_few_blocks(
    function: Any, blocks: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulated ranks keep what others have read for a while: two of these blocks."""
    monkeypatch.setattr(_jit, "forced", lambda: dict.fromkeys(_jit.JOBS, "numpy"))
    monkeypatch.setattr(_grouping, "_PIECE", 1 << 10)
    value = np.random.default_rng(0).normal(size=1 << 17)
    assert peak_memory.scratch(function, value, 2) <= blocks + 0.2
