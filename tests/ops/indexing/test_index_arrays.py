"""Index arrays read and write what NumPy does, whatever the layouts, and send rows once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray.comm import CommLog, push_rows, simulate
from distarray.errors import (
    ArgumentError,
    DistArrayError,
    DTypeError,
    ImplicitCommunicationError,
    IndexingError,
    MismatchError,
    ShapeError,
)
from distarray.layout import Partial, Replicate, Shard
from distarray.ops.indexing import _scatter
from tests.array import array_keys as keys
from tests.array.index_keys import fitting
from tests.array.strategies import RANKS, Case, agrees, cases, on_ranks, special_items, values_of
from tests.on_device import DEVICE, host

DTYPES = (np.float64, np.int32, np.complex64, np.float32)
R = Replicate()


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let few indices go to the owners of their items, as many do."""
    monkeypatch.setattr(_scatter, "FEW_ITEMS", 0)


def draw_case(data: st.DataObject, ops: tuple[str, ...] = ("sum", "max")) -> Case | None:
    """Draw an array that has an axis with items; None where there is none."""
    case: Case = data.draw(cases(DTYPES, ops if data.draw(st.booleans()) else ()))
    complex_max = case.values.dtype.kind == "c" and case.op == "max"
    return None if complex_max or not any(case.shape) else case


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_items_are_those_of_numpy_for_all_layouts(data: st.DataObject) -> None:
    case = draw_case(data)
    if case is None:
        return
    key = data.draw(keys.array_keys(case.shape, case.mesh_shape))
    expected = case.value[keys.on_numpy(key)]

    def program() -> None:
        x, own = case.build(), keys.on_ranks(key)
        y = x[own]
        agrees(y, expected)
        agrees(x[own], expected)  # from memory
        y.to_local()[...] = 0  # a copy, which may be written into
        agrees(x, case.value)

    on_ranks(program)


@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_last_value_is_written_as_by_numpy(data: st.DataObject) -> None:
    case = draw_case(data)
    if case is None:
        return
    key = data.draw(keys.array_keys(case.shape, case.mesh_shape))
    theirs = keys.on_numpy(key)
    expected = case.value.astype(case.values.dtype).copy()
    shape = data.draw(fitting(expected[theirs].shape))
    kind = data.draw(st.sampled_from(("distributed", "distributed", "plain", "number")))
    own: Case = data.draw(cases(DTYPES, (), case.mesh_shape, shape if kind != "number" else ()))
    expected[theirs] = own.value

    def program() -> None:
        x = case.build()
        before = x.layout
        value = own.build() if kind == "distributed" else own.value
        x[keys.on_ranks(key)] = value
        assert x.layout is before
        agrees(x, expected)

    on_ranks(program)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_ufunc_at_adds_up_in_the_order_of_numpy(data: st.DataObject) -> None:
    case: Case = data.draw(cases((np.float64, np.int64), ("sum", "max")))
    if not any(case.shape):
        return
    case.values[...] = case.values * 7 // 3
    key = data.draw(keys.array_keys(case.shape, case.mesh_shape))
    theirs = keys.on_numpy(key)
    expected = case.value.copy()
    selected = expected[theirs].shape
    shape = data.draw(fitting(selected))[-len(selected) :]
    own: Case = data.draw(cases((case.values.dtype,), (), case.mesh_shape, shape))
    if own.values.dtype.kind == "f":
        own.values[...] *= 0.1
    ufunc = data.draw(st.sampled_from((np.add, np.subtract, np.maximum)))
    # NumPy itself takes a broadcast value too seldom where `x` has one axis.
    ufunc.at(expected, theirs, np.broadcast_to(own.value, selected))

    def program() -> None:
        x = case.build()
        ufunc.at(x, keys.on_ranks(key), own.build())
        assert x.to_local().dtype == case.values.dtype
        agrees(x, expected)

    on_ranks(program)


class Recorded:
    """A ufunc that notes what its `at` gets."""

    def __init__(self, ufunc: np.ufunc) -> None:
        self._ufunc, self.calls = ufunc, []

    def resolve_dtypes(self, dtypes: Any) -> Any:
        return self._ufunc.resolve_dtypes(dtypes)

    def at(self, target: Any, where: Any, *values: Any) -> None:
        self.calls.append((target.ndim, type(where), [one.dtype for one in values]))
        self._ufunc.at(target, where, *values)


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.bool_])
@pytest.mark.parametrize(("shape", "depth"), [((7,), 1), ((4, 5), 2), ((6, 2, 2), 1)])
def test_ufunc_at_takes_the_fast_loop_of_numpy(
    shape: tuple[int, ...], depth: int, dtype: Any
) -> None:
    rng = np.random.default_rng(3)
    count, rest = np.prod(shape[:depth]), shape[depth:]
    number = rng.integers(0, count, 50)
    value = (rng.random((50, *rest)) * 7).astype(dtype)
    target, expected = np.ones(shape), np.ones(shape)
    add = Recorded(np.add)
    _scatter._apply_at(add, target, depth, number, value)
    np.add.at(expected, np.unravel_index(number, shape[:depth]), value)
    assert np.array_equal(target, expected)
    assert add.calls == [(1, np.ndarray, [np.dtype(float)])] * int(np.prod(rest))


@pytest.mark.parametrize("target", [np.int8, np.float32, np.bool_, np.complex128])
@pytest.mark.parametrize("given", [np.int64, np.float64, np.bool_, np.float32])
@pytest.mark.parametrize("ufunc", [np.add, np.logical_or, np.power, np.less], ids=str)
def test_values_of_ufunc_at_are_converted_as_by_numpy(ufunc: Any, target: Any, given: Any) -> None:
    value = (np.arange(40) % 7).astype(given)
    number = np.arange(40) % 5
    found, expected = np.full(5, 2, target), np.full(5, 2, target)
    refused = []
    with np.errstate(all="ignore"):
        for call in (
            lambda: ufunc.at(expected, number, value),
            lambda: _scatter._apply_at(ufunc, found, 1, number, value),
        ):
            try:
                call()
            except TypeError as error:
                refused.append(str(error))
    assert len({*refused}) == len(refused) / 2  # alike
    assert found.tobytes() == expected.tobytes()


def rows(count: int, width: int = 8) -> np.ndarray:
    return np.arange(float(count * width)).reshape(count, width)


@pytest.mark.parametrize("ranks_per_node", [None, 1, 2], ids=["one node", "1", "2"])
def test_only_rows_that_a_rank_lacks_are_received(ranks_per_node: int | None) -> None:
    values = rows(1000)
    places = np.random.default_rng(5).permutation(1000)

    def program() -> None:
        x = da.distribute_array(values, src=None)
        index = da.distribute_array(places, src=None)
        rank = x.mesh.coordinate[0]
        mine = places[rank * 250 : rank * 250 + 250]
        lacking = np.count_nonzero(mine // 250 != rank)
        with CommLog() as log:
            y = x[index]
        assert y.placements == (Shard(0),)
        assert log.bytes("rows") == 64 * lacking
        agrees(y, values[places])
        with CommLog() as log:
            x[da.arange(1000)]
        assert log.bytes("rows") == 0

    simulate(RANKS, program, ranks_per_node=ranks_per_node)


def test_repeated_rows_travel_once_between_nodes() -> None:
    def program() -> None:
        x = da.distribute_array(rows(40), src=None)
        index = da.distribute_array(np.full(400, 39), src=None)
        with CommLog() as log:
            y = x[index]
        agrees(y, rows(40)[np.full(400, 39)])
        assert log.bytes("rows") == (0 if x.mesh.coordinate == (3,) else 64)

    simulate(RANKS, program, ranks_per_node=1)


def test_nothing_is_sent_where_every_rank_has_the_index_and_the_values() -> None:
    def program() -> None:
        whole = rows(12)
        x = da.distribute_array(whole, src=None)
        with CommLog() as log, da.communication("raise"):
            x[[1, 5, -1]] = 0
            x[[2, 2, 3]] = rows(3)
            x[[0, 7], [1, 2]] = [3, 4]
            with pytest.raises(IndexingError):
                x[[1, 12]] = 0
        assert log.count() == 0
        whole[[1, 5, -1]] = 0
        whole[[2, 2, 3]] = rows(3)
        whole[[0, 7], [1, 2]] = [3, 4]
        agrees(x, whole)
        columns = da.distribute_array(whole, placements=[Shard(1)], src=None)
        with CommLog() as log, da.communication("raise"):
            y = columns[[3, 1]]
        assert log.count() == 0
        assert y.placements == (Shard(1),)
        agrees(y, whole[[3, 1]])

    on_ranks(program)


def test_values_that_are_the_same_for_all_rows_are_not_sent() -> None:
    def program() -> None:
        x = da.distribute_array(rows(1000), src=None)
        index = da.distribute_array(np.arange(1000)[::-1].copy(), src=None)
        with CommLog() as log:
            x[index] = np.ones(8)
        assert log.bytes("rows") == 8 * 250
        agrees(x, np.ones((1000, 8)))

    on_ranks(program)


def test_results_are_cut_as_the_index_and_not_replicated() -> None:
    def program() -> None:
        x = da.distribute_array(rows(16, 4), src=None)
        assert x[np.arange(12)].placements == (Shard(0),)
        assert x[np.arange(12).reshape(2, 6)].placements == (Shard(1),)
        index = da.distribute_array(np.arange(12).reshape(6, 2), placements=[Shard(1)], src=None)
        assert x[index].placements == (Shard(1),)
        whole = x.redistribute([R])
        assert whole[index].placements == (Shard(1),)
        assert whole[[1, 2]].placements == (R,)
        uneven = da.arange(16)[da.arange(16) > 9]
        assert x[uneven].layout.boundaries == {0: uneven.layout.boundaries[0]}
        agrees(x[uneven], rows(16, 4)[10:])

    on_ranks(program)


def test_masks_beside_index_arrays_stand_for_the_places_of_true_items() -> None:
    def program() -> None:
        whole = np.arange(120.0).reshape(6, 5, 4)
        first, both = np.arange(6) % 2 == 0, np.arange(30).reshape(6, 5) % 7 == 1
        for cut in range(3):
            x = da.distribute_array(whole, placements=[Shard(cut)], src=None)
            for own in (first, da.asarray(first)):
                agrees(x[own, [4, 0, 1]], whole[first, [4, 0, 1]])
                agrees(x[own, :, [[3], [0]]], whole[first, :, [[3], [0]]])
                agrees(x[own, ..., np.arange(4) > 0], whole[first, ..., np.arange(4) > 0])
            agrees(x[da.asarray(both), [0, 1, 2, 3, 0]], whole[both, [0, 1, 2, 3, 0]])
            agrees(x[True, [5, 0]], whole[True, [5, 0]])
            assert x[False, [5]].shape == (0, 5, 4)
            for mask in (first, da.asarray(first)):
                with pytest.raises(IndexError, match="broadcast"):
                    x[False, mask] = 7
            expected = whole.copy()
            x[da.asarray(both), [0, 1, 2, 3, 0]] = [1, 2, 3, 4, 5]
            expected[both, [0, 1, 2, 3, 0]] = [1, 2, 3, 4, 5]
            np.add.at(x, (da.asarray(first), [0, 0, 1]), 1)
            np.add.at(expected, (first, [0, 0, 1]), 1)
            np.add.at(x, da.asarray(both), 2)
            np.add.at(expected, both, 2)
            np.multiply.at(x, (slice(None), 3), 2)
            np.multiply.at(expected, (slice(None), 3), 2)
            np.negative.at(x, [0, 0, 1])
            np.negative.at(expected, [0, 0, 1])
            agrees(x, expected)

    on_ranks(program)


def test_an_index_on_another_mesh_is_brought_over() -> None:
    def program() -> None:
        whole = rows(6)
        x = da.distribute_array(whole, da.DeviceMesh([0, 1, 2]), [Shard(0)], src=None)
        index = da.distribute_array([4, 0, 4], da.DeviceMesh([3, 1]), [Shard(0)], src=None)
        agrees(x[index], whole[[4, 0, 4]])
        value = da.distribute_array(rows(3) + 100, da.DeviceMesh([2, 3]), [Shard(0)], src=None)
        x[index] = value
        whole[[4, 0, 4]] = rows(3) + 100
        agrees(x, whole)

    on_ranks(program)


def test_the_last_of_an_index_that_is_cut_along_its_second_axis_is_written() -> None:
    def program() -> None:
        places = np.stack([np.arange(8), np.roll(np.arange(8), 4)])
        value = np.arange(16.0).reshape(2, 8)
        for mesh, cuts in ((None, [Shard(1)]), (da.init_device_mesh((2, 2)), [Shard(1), Shard(0)])):
            x = da.zeros(10, mesh=mesh)
            index = da.distribute_array(places, mesh, cuts, src=None)
            x[index] = da.distribute_array(value, mesh, cuts, src=None)
            expected = np.zeros(10)
            expected[places] = value
            agrees(x, expected)

    on_ranks(program)


def test_all_replicas_change_alike_where_the_index_is_cut_along_them() -> None:
    def program() -> None:
        mesh = da.init_device_mesh((2, 2))
        x = da.distribute_array(np.zeros(8), mesh, [Shard(0), R], src=None)
        index = da.distribute_array(np.arange(8), mesh, [R, Shard(0)], src=None)
        x[index] = index + 1.0
        start, stop = x.layout.local_box()[0]
        assert host(x.to_local()).tolist() == [*range(start + 1, stop + 1)]

    on_ranks(program)


@pytest.mark.parametrize("wrong", [12, -13])
@pytest.mark.parametrize("where", ["distributed", "replicated", "columns", "second"])
def test_an_index_out_of_range_raises_on_every_rank_and_writes_nothing(
    wrong: int, where: str
) -> None:
    def program() -> None:
        mesh = da.init_device_mesh((2, 2))
        x = da.distribute_array(rows(12), mesh, [Shard(0), R], src=None)
        values = np.arange(8)
        values[6] = wrong
        cuts = {
            "distributed": [Shard(0), R],
            "replicated": [R, Shard(0)],
            "columns": [R, R],
            "second": [Shard(0), Shard(0)],
        }[where]
        index = da.distribute_array(values, mesh, cuts, src=None)
        key = (index % 8, index) if where == "second" and wrong == 12 else (index,)
        message = "out of range"
        with pytest.raises(IndexingError, match=message):
            x[key]
        with pytest.raises(IndexError, match=message):
            x[key] = 0
        with pytest.raises(IndexError, match=message):
            np.add.at(x, key, 1)
        agrees(x, rows(12))
        agrees(x[index * 0], rows(12)[np.zeros(8, int)])

    on_ranks(program)


def test_errors_are_those_of_numpy() -> None:
    def program() -> None:
        x = da.distribute_array(rows(12), src=None)
        for key, error in (
            (([0, 1], [0, 1, 2]), IndexingError),
            ([0.5], IndexingError),
            (([0], [0], [0]), IndexingError),
            ([[0, 1], [0]], ArgumentError),
        ):
            with pytest.raises(error):
                x[key]
            with pytest.raises(error):
                x[key] = 1
        with pytest.raises(ShapeError):
            x[[0, 1]] = np.ones((3, 8))
        with pytest.raises(DTypeError):
            x[[0, 1]] = 1j
        with pytest.raises(DTypeError):
            np.bitwise_or.at(da.arange(3), [0], 0.5)
        with pytest.raises(IndexingError, match="must be integers"):
            da.take_along_axis(x, np.zeros((1, 8)), 0)
        with pytest.raises(IndexingError):
            da.zeros((0, 3))[[0]]
        assert da.zeros((0, 3))[[]].shape == (0, 3)
        assert x[[]].shape == (0, 8)
        with da.communication("raise"), pytest.raises(ImplicitCommunicationError, match="indexing"):
            x[[0, 11]]
        agrees(x, rows(12))

    on_ranks(program)


def test_ranks_with_other_layouts_are_told_apart() -> None:
    def program() -> None:
        x = da.ones((8 + (da.default_mesh().rank == 2), 2))
        with pytest.raises(MismatchError):
            x[da.arange(4)]
        assert da.ones((8,))[da.arange(4)].shape == (4,)

    on_ranks(program)


def test_rows_that_are_read_and_written_at_once_are_copied_first() -> None:
    def program() -> None:
        for cut in ([Shard(0)], [R], [Shard(1)]):
            whole = np.arange(16.0).reshape(4, 4)
            x = da.distribute_array(whole, placements=cut, src=None)
            x[[3, 2, 1, 0]] = x
            whole[[3, 2, 1, 0]] = whole.copy()
            agrees(x, whole)
            x[[0, 1, 1]] += 1
            whole[[0, 1, 1]] += 1
            agrees(x, whole)
            x[::-1, [0, 2]] = x[:, [1, 3]]
            whole[::-1, [0, 2]] = whole[:, [1, 3]]
            agrees(x, whole)
            none = da.asarray(np.zeros(0, np.uint64))
            assert x[none, 1].shape == (0,)
            n = da.arange(8, placements=[cut[0] if cut != [Shard(1)] else R])
            n[n] = n[::-1].copy()
            agrees(n, np.arange(8)[::-1])

    on_ranks(program)


@pytest.mark.parametrize(
    "dtype", ["f2", "f4", "c16", "u8", "U3", "S2", "M8[s]", "m8[D]", "?", ">f8", "f8,i4"]
)
def test_items_of_all_dtypes_are_copied_bit_by_bit(dtype: str) -> None:
    if DEVICE != "cpu" and (dtype[0] in "USMm>" or "," in dtype):
        pytest.skip("GPUs have no such items")
    if "," in dtype:
        items = np.array([(np.nan, 1), (-0.0, 2), (np.inf, -3)], dtype)
    elif dtype[0] in "Mm":
        items = np.array([1, 2, "NaT"], dtype)
    elif dtype[0] in "US":
        items = np.array(["a", "", "xyz"]).astype(dtype)
    else:
        items = special_items(np.dtype(dtype).newbyteorder("=")).astype(dtype)
    values = np.resize(items, (11, 3))
    index = np.arange(22) * 7 % 11

    def program() -> None:
        x = da.distribute_array(values, placements=[Shard(0)], src=None)
        y = x[index]
        assert y.dtype == values.dtype
        assert host(y.full_array()).tobytes() == values[index].tobytes()
        z = da.zeros_like(x)
        z[index] = y
        assert host(z.full_array()).tobytes() == values.tobytes()

    on_ranks(program)


@pytest.mark.host_only
def test_fields_of_structured_arrays_are_views() -> None:
    dtype = np.dtype([("a", "f8"), ("b", "i4", (2,)), ("c", "U2")])
    whole = np.zeros((6, 2), dtype)
    whole["a"] = np.arange(12).reshape(6, 2)

    def program() -> None:
        x = da.distribute_array(whole, src=None)
        expected = whole.copy()
        with CommLog() as log:
            a = x["a"]
        assert log.count() == 0
        assert np.shares_memory(a.to_local(), x.to_local()) == (x.to_local().size > 0)
        agrees(a, whole["a"])
        x["a"] = da.ones((6, 2))
        x["b"] = [7, 8]
        x["c"][2] = "xy"
        expected["a"], expected["b"] = 1, [7, 8]
        expected["c"][2] = "xy"
        agrees(x["b"], expected["b"])
        agrees(x["b"][[5, 0], :, 1], expected["b"][[5, 0], :, 1])
        assert x.full_array().tobytes() == expected.tobytes()
        two = x[["a", "b"]]
        assert two.dtype.names == ("a", "b")
        with pytest.raises(ArgumentError, match="no field"):
            x["z"]
        with pytest.raises(IndexingError, match="no fields"):
            da.ones(3)["a"]

    on_ranks(program)


# --- functions -----------------------------------------------------------------------------------


def same(function: Any, theirs: Any, *args: Any, **options: Any) -> None:
    """Check a function that changes its first argument, or gives a result, against NumPy's."""

    def outcome(call: Any, given: Any) -> Any:
        try:
            return call(*given, **options)
        except (DistArrayError, ValueError, TypeError, IndexError) as error:
            return type(error)

    plain = [one.value.copy() if isinstance(one, Case) else one for one in args]
    expected = outcome(theirs, plain)

    def program() -> None:
        own = [one.build() if isinstance(one, Case) else one for one in args]
        result = outcome(function, own)
        if isinstance(expected, type):
            if own[0].mesh.coordinate is not None:
                assert isinstance(result, type), (result, expected)
                assert issubclass(result, DistArrayError), result
        elif expected is None:
            assert result is None, result
        else:
            agrees(result, expected)
        if not isinstance(expected, type) and isinstance(args[0], Case):
            agrees(own[0], plain[0])

    on_ranks(program)


@st.composite
def some_indices(draw: Any, size: int, mesh_shape: tuple[int, ...], beyond: int = 0) -> Any:
    shape = tuple(draw(st.lists(st.sampled_from((1, 2, 3, 5, 0)), max_size=2)))
    found = draw(keys.indices(max(size, 1), shape, mesh_shape))
    if beyond and draw(st.booleans()):
        if isinstance(found, Case):
            found.values[...] = found.values.astype(np.int64) * beyond
        else:
            found = (np.asarray(found, np.int64) * beyond).tolist()
    return found


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_take_and_put(data: st.DataObject) -> None:
    case: Case = data.draw(cases(DTYPES, ("sum",)))
    mode = data.draw(st.sampled_from(("raise", "wrap", "clip")))
    axis = data.draw(st.sampled_from((None, *range(-len(case.shape), len(case.shape)))))
    size = case.value.size if axis is None else case.shape[axis]
    index = data.draw(some_indices(size, case.mesh_shape, beyond=3))
    if isinstance(index, list) and not np.asarray(index).size:
        index = np.asarray(index, np.int64)
    if (
        axis is None or case.value.size
    ):  # NumPy takes from axes without items where others have none
        same(da.take, np.take, case, index, axis=axis, mode=mode)
    index = data.draw(some_indices(case.value.size, case.mesh_shape, beyond=3))
    if isinstance(index, list) and not np.asarray(index).size:
        index = np.asarray(index, np.int64)
    count = data.draw(st.integers(0, 9))
    value: Any = data.draw(cases((case.values.dtype,), (), case.mesh_shape, (count,)))
    if data.draw(st.booleans()):
        value = value.value
    case.values.setflags(write=True)
    same(da.put, np.put, case, index, value, mode=mode)


@pytest.mark.parametrize("length", [3, 0])
def test_plain_index_of_lines_is_out_of_range_on_every_rank(length: int) -> None:
    values, index = np.zeros((3, length)), np.zeros((3, 1), int)
    index[0] = length

    def program() -> str:
        x = da.distribute_array(values, placements=[Shard(0)])  # the last rank has no line
        with pytest.raises(IndexError, match="out of range") as caught:
            da.take_along_axis(x, index, axis=1)
        return str(caught.value)

    assert len(set(simulate(4, program))) == 1


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("index", [[5, 0, 0, -1, 3], [4], [[1, 1, 1], [0, 5, 2]]], ids=str)
def test_index_that_every_rank_has_takes_small_items_along_any_cut_axis(
    axis: int, index: list[Any]
) -> None:
    shape = [4, 3, 2]
    shape[axis] = 6
    value = np.arange(np.prod(shape)).reshape(shape) * 1.5
    expected = value.take(index, axis)

    def program() -> None:
        x = da.distribute_array(value, placements=[Shard(axis)])
        for cut in (x, x.redistribute(boundaries={axis: (0, 1, 1, 4, 6)})):
            agrees(cut[(*[slice(None)] * axis, index)], expected)
            with CommLog() as log:
                agrees(da.take(cut, index, axis), expected)
            assert log.count("rows") == 1

    simulate(4, program)


def test_indices_that_come_to_nothing_are_not_looked_at() -> None:
    value = np.zeros((3, 4))
    nothing, beyond = np.zeros((0, 1), int), np.array([99])

    def program() -> None:
        x = da.distribute_array(value, placements=[Shard(0)])
        for index in (beyond, da.asarray(beyond)):
            agrees(x[nothing, index], value[nothing, beyond])

    on_ranks(program)


@pytest.mark.parametrize("distributed", [False, True])
def test_take_of_items_without_parts_looks_at_the_indices(distributed: bool) -> None:
    def program() -> None:
        index = da.asarray([0, 9]) if distributed else [0, 9]
        with pytest.raises(IndexError, match="out of range"):
            da.take(da.zeros((3, 0)), index, axis=0)
        agrees(da.take(da.zeros((0, 3)), index, axis=1), np.zeros((0, 2)))  # nor does NumPy look

    on_ranks(program)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_take_and_put_along_axis(data: st.DataObject) -> None:
    case: Case = data.draw(cases(DTYPES, ("sum",)))
    shape = case.shape
    if not shape or 0 in shape:
        return
    axis = data.draw(st.integers(0, len(shape) - 1))
    own = list(shape)
    own[axis] = data.draw(st.integers(0, 4))
    for other in range(len(shape)):
        if other != axis and data.draw(st.integers(0, 3)) == 0:
            own[other] = 1
    index = data.draw(keys.indices(shape[axis], tuple(own), case.mesh_shape))
    if isinstance(index, list):
        index = np.asarray(index, np.int64).reshape(own)
    same(da.take_along_axis, np.take_along_axis, case, index, axis=axis - len(shape))
    value = values_of(case.values.dtype, own, 3)
    same(da.put_along_axis, np.put_along_axis, case, index, value, axis=axis)
    flat = data.draw(keys.indices(case.value.size, (3,), case.mesh_shape))
    flat = np.asarray(flat) if isinstance(flat, list) else flat
    same(da.take_along_axis, np.take_along_axis, case, flat, axis=None)
    same(da.put_along_axis, np.put_along_axis, case, flat, 5, axis=None)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_choose(data: st.DataObject) -> None:
    case: Case = data.draw(cases((np.int64, np.uint8), ("sum",)))
    if case.values.dtype.kind == "i" and data.draw(st.booleans()):
        case.values[...] = np.abs(case.values) % 3
    some = [data.draw(cases((np.float64, np.int32), (), case.mesh_shape, case.shape)) for _ in "ab"]
    mode = data.draw(st.sampled_from(("raise", "wrap", "clip")))
    other = values_of(np.int32, case.shape[1:], 4)
    expected: Any
    try:
        expected = np.choose(case.value, [some[0].value, other, some[1].value], mode=mode)
    except ValueError:
        expected = ArgumentError

    def program() -> None:
        x = case.build()
        choices = [some[0].build(), other, some[1].build()]
        if expected is ArgumentError:
            if x.mesh.coordinate is not None:
                with pytest.raises(ArgumentError):
                    da.choose(x, choices, mode=mode)
            return
        agrees(np.choose(x, choices, mode=mode), expected)

    on_ranks(program)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_few_items_are_written_as_numpy_does_by_ranks_that_all_have_them(
    data: st.DataObject,
) -> None:
    case = draw_case(data, ())
    if case is None:
        return
    key = data.draw(keys.array_keys(case.shape, case.mesh_shape))
    theirs = keys.on_numpy(key)
    value = values_of(case.values.dtype, case.value[theirs].shape, 5)
    written, added = case.value.copy(), case.value.copy()
    written[theirs] = value
    np.add.at(added, theirs, value)

    def program() -> None:
        x, y, own, v = case.build(), case.build(), keys.on_ranks(key), da.asarray(value)
        x[own] = v
        np.add.at(y, own, v)
        agrees(x, written)
        agrees(y, added)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_scatter, "FEW_ITEMS", 512)
        on_ranks(program)


def test_few_indices_travel_once_and_nothing_else_does() -> None:
    def program() -> None:
        x = da.zeros(40, placements=[Shard(0)])
        at, v = da.arange(20) % 7, da.arange(20.0)
        x[at] = v  # plans
        with CommLog() as log:
            x[at] = v
        assert log.count("rows") == 0
        assert log.count() == (1 if DEVICE == "cpu" else 2)  # of GPUs each by itself
        whole = np.zeros(40)
        whole[np.arange(20) % 7] = np.arange(20.0)
        agrees(x, whole)
        with pytest.raises(IndexingError, match="40 is out of range"):
            x[at + 34] = v

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_scatter, "FEW_ITEMS", 512)
        on_ranks(program)


def test_values_that_others_read_are_not_those_being_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shared = []

    def push(comm: Any, rows: Any, *args: Any, into: Any = None, **kwargs: Any) -> Any:
        shared.append(into is not None and np.may_share_memory(into, rows[-1]))
        return push_rows(comm, rows, *args, into=into, **kwargs)

    monkeypatch.setattr(_scatter, "push_rows", push)

    def program() -> None:
        whole = np.arange(44.0).reshape(11, 4)
        order = np.random.default_rng(0).permutation(11)
        x = da.distribute_array(whole, placements=[Shard(0)], src=None)
        at = da.distribute_array(order, placements=[Shard(0)], src=None)
        x[at] = x[:]
        whole[order] = whole.copy()
        assert np.array_equal(host(x.full_array()), whole)

    on_ranks(program)
    assert shared
    assert not any(shared)


def test_a_table_that_every_rank_has_is_looked_up() -> None:
    def program() -> None:
        table = np.arange(10.0) ** 2
        index = da.arange(20) % 10
        with CommLog() as log:
            y = da.take(table, index)
        assert log.bytes("rows") == 0
        agrees(y, table[np.arange(20) % 10])
        out = da.zeros(20)
        assert da.take(table, index, out=out) is out
        agrees(out, table[np.arange(20) % 10])
        agrees(da.arange(20.0).take(index), np.arange(20.0)[np.arange(20) % 10])
        agrees(da.take(da.arange(5), 3), np.int64(3))

    on_ranks(program)


def test_diagonals_and_triangles() -> None:
    def program() -> None:
        for shape in ((5, 5), (7, 3), (3, 7), (4, 4, 4), (9, 1)):
            for wrap in (False, True):
                for value in (3, [1, 2], np.arange(30.0)):
                    for cut in range(len(shape)):
                        x = da.zeros(shape, placements=[Shard(cut)])
                        expected = np.zeros(shape)
                        da.fill_diagonal(x, value, wrap)
                        np.fill_diagonal(expected, value, wrap)
                        agrees(x, expected)
        for n, k, m in ((5, 0, None), (4, -1, 6), (6, 2, 3), (0, 0, None)):
            for name in ("tril_indices", "triu_indices"):
                for own, theirs in zip(
                    getattr(da, name)(n, k, m), getattr(np, name)(n, k, m), strict=True
                ):
                    agrees(own, theirs)
        x, whole = da.arange(20).reshape(4, 5), np.arange(20).reshape(4, 5)
        for name in ("tril_indices_from", "triu_indices_from"):
            agrees(x[getattr(np, name)(x, 1)], whole[getattr(np, name)(whole, 1)])
        agrees(x[:, :4][da.diag_indices_from(x[:, :4])], np.diag(whole))
        agrees(x[da.diag_indices(4)], np.diag(whole))
        found = da.mask_indices(4, np.triu, 1)
        for own, theirs in zip(found, np.mask_indices(4, np.triu, 1), strict=True):
            agrees(own, theirs)
        with pytest.raises(ShapeError):
            da.fill_diagonal(da.zeros((2, 2, 3)), 1)

    on_ranks(program)


def test_places_in_flat_order_and_open_meshes() -> None:
    def program() -> None:
        places = np.arange(24)[::-1].reshape(4, 6)
        own = da.distribute_array(places, placements=[Shard(1)], src=None)
        for order in "CF":
            found = np.unravel_index(own, (2, 3, 4), order=order)
            expected = np.unravel_index(places, (2, 3, 4), order=order)
            for one, other in zip(found, expected, strict=True):
                agrees(one, other)
            agrees(da.ravel_multi_index(found, (2, 3, 4), order=order), places)
            wide = [one * 3 - 1 for one in found]
            for mode in ("wrap", "clip", ("clip", "wrap", "clip")):
                plain = [host(one.full_array()) for one in wide]
                theirs = np.ravel_multi_index(plain, (2, 3, 4), mode, order)
                agrees(np.ravel_multi_index(tuple(wide), (2, 3, 4), mode, order), theirs)
        with pytest.raises(ArgumentError, match="out of bounds"):
            da.unravel_index(own + 1, (2, 3, 4))
        with pytest.raises(ArgumentError, match="invalid"):
            da.ravel_multi_index((own, own), (24, 20))
        assert da.unravel_index(5, (2, 3)) == (1, 2)
        whole = np.arange(30).reshape(5, 6)
        x = da.distribute_array(whole, src=None)
        rows_, columns = da.arange(5) % 2 == 0, da.arange(3)
        agrees(x[da.ix_(rows_, columns)], whole[np.ix_([0, 2, 4], [0, 1, 2])])
        agrees(x[da.ix_([4, 1], columns)], whole[np.ix_([4, 1], [0, 1, 2])])
        typed = np.zeros(0, np.uint8)
        for one, other in zip(da.ix_(da.asarray(typed), []), np.ix_(typed, []), strict=True):
            assert (one.shape, one.dtype) == (other.shape, other.dtype)
        x[np.ix_([0, 3], [5, 1])] = [[1, 2], [3, 4]]
        whole[np.ix_([0, 3], [5, 1])] = [[1, 2], [3, 4]]
        agrees(x, whole)

    on_ranks(program)


def test_partial_arrays_stay_partial() -> None:
    def program() -> None:
        x = da.distribute_array(np.arange(8.0), placements=[Partial()], src=None)
        y = x[[1, 3, 3]]
        assert y.placements == (Partial(),)
        agrees(y, np.array([1.0, 3, 3]))
        x[[0, 2, 2]] = [5.0, 6, 7]
        np.add.at(x, [0, 0, 1], 0.25)
        assert x.placements == (Partial(),)
        agrees(x, np.array([5.5, 1.25, 7, 3, 4, 5, 6, 7]))

    on_ranks(program)
