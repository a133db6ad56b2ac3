"""Different items are NumPy's, in its order, with their places, numbers and counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray.comm import CommLog, _grouping, simulate
from distarray.comm.kernels import _jit
from distarray.errors import AxisError, ImplicitCommunicationError, MeshError
from distarray.layout import Shard
from distarray.ops.sets import _unique
from tests import peak_memory
from tests.array.strategies import KIND, RANKS, Case, agrees, cases, on_ranks, special_cases
from tests.on_device import host

DTYPES = ("?", "i1", "u8", "i8", "f2", "f4", "f8", "c8", "c16")
OTHERS = ("U3", "S2", "M8[s]", "m8[D]", ">i4") if KIND == "cpu" else ()


def same_but_for_nan(places: Any, expected: np.ndarray, values: Any, is_index: bool) -> None:
    """Check places or numbers, of which those of NaN are in any order: of tiles block by block."""
    full = host(places.full_array()).copy()
    missing = np.isnan(values) if values.dtype.kind in "fcmM" else np.zeros(values.shape, bool)
    for array in (full, expected := expected.copy()):
        which = missing if is_index else missing[array]
        array[which] = np.sort(array[which])
    np.testing.assert_array_equal(full, expected)
    assert places.dtype == expected.dtype


@pytest.mark.parametrize("most", [_unique._FEW_BYTES, -1], ids=["few", "many"])
@pytest.mark.parametrize("ranks_per_node", [None, 1, 2])
@settings(max_examples=20, deadline=None)
@given(data=st.data(), flags=st.tuples(*[st.booleans()] * 4))
def test_items_and_what_is_told_of_them_are_those_of_numpy(
    ranks_per_node: int | None, most: int, data: st.DataObject, flags: tuple[bool, ...]
) -> None:
    index, inverse, counts, equal_nan = flags
    case: Case = data.draw(
        st.one_of(special_cases((*DTYPES, *OTHERS), ()), cases(("i4", "f8"), ("sum", "max")))
    )
    value = case.value
    # In NumPy which NaN of several comes first is known only with its places.
    expected = np.unique(value, True, True, True, equal_nan=equal_nan)
    told = range(1, 1 + index + inverse)
    wanted = [expected[0]]
    wanted += [one for one, flag in zip(expected[1:], flags, strict=False) if flag]

    def program() -> None:
        x = case.build()
        if x.mesh.coordinate is None:
            with pytest.raises(MeshError, match="cannot know the shape"):
                da.unique(x, index, inverse, counts, equal_nan=equal_nan)
            return
        found = np.unique(x, index, inverse, counts, equal_nan=equal_nan)
        found = found if isinstance(found, tuple) else (found,)
        for i, (one, other) in enumerate(zip(found, wanted, strict=True)):
            if i in told and not equal_nan:
                same_but_for_nan(one, other, expected[0], i == 1 and index)
            else:
                agrees(one, other.astype(one.dtype) if one.dtype.kind in "SU" else other)
        if inverse:
            places = found[1 + index]
            assert places.layout is x.layout.without_partial()
        agrees(x, value)

    gathered = data.draw(st.sampled_from((_unique.GATHERED_BYTES, 64, 0)))
    of_runs = data.draw(st.sampled_from((_unique._RUN_BYTES, 0)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_unique, "_FEW_BYTES", most)
        patch.setattr(_unique, "GATHERED_BYTES", gathered)
        patch.setattr(_unique, "_RUN_BYTES", of_runs)
        simulate(RANKS, program, ranks_per_node=ranks_per_node)


@settings(max_examples=15, deadline=None)
@given(case=special_cases(("f8", "i4", "c16"), ()))
def test_functions_of_the_standard_tell_every_nan_apart(case: Case) -> None:
    value = case.value
    values, indices, inverse, counts = np.unique(value, True, True, True, equal_nan=False)

    def program() -> None:
        x = case.build()
        if x.mesh.coordinate is None:
            return
        agrees(da.unique_values(x), values)
        found = np.unique_counts(x)
        agrees(found.values, values)
        agrees(found.counts, counts)
        found = da.unique_inverse(x)
        agrees(found.values, values)
        same_but_for_nan(found.inverse_indices, inverse, values, False)
        found = np.unique_all(x)
        agrees(found.values, values)
        same_but_for_nan(found.indices, indices, values, True)
        same_but_for_nan(found.inverse_indices, inverse, values, False)
        agrees(found.counts, counts)

    on_ranks(program)


@pytest.mark.host_only
@pytest.mark.parametrize("ranks_per_node", [None, 1])
@settings(max_examples=20, deadline=None)
@given(data=st.data(), flags=st.tuples(*[st.booleans()] * 3))
def test_parts_along_an_axis_are_those_of_numpy(
    ranks_per_node: int | None, data: st.DataObject, flags: tuple[bool, ...]
) -> None:
    case: Case = data.draw(
        st.one_of(cases(("i4", "f8", "?"), ("sum",)), special_cases((*DTYPES, *OTHERS), ()))
    )
    ndim = len(case.shape)
    if ndim < 2:
        return
    axis = data.draw(st.integers(-ndim, ndim - 1))
    if case.values.dtype == bool and case.op:
        return
    if data.draw(st.booleans()) and case.shape[axis] > 1:  # some parts twice
        first = (slice(None),) * (1 + axis % ndim)
        case.values[(*first, 0)] = case.values[(*first, -1)]
    if case.values.dtype.kind in "fc":
        case.values[np.isnan(case.values)] = 7
    expected = np.unique(case.value, *flags, axis=axis)
    expected = expected if isinstance(expected, tuple) else (expected,)

    def program() -> None:
        x = case.build()
        if x.mesh.coordinate is None:
            return
        found = np.unique(x, *flags, axis=axis)
        found = found if isinstance(found, tuple) else (found,)
        for one, other in zip(found, expected, strict=True):
            agrees(one, other)

    simulate(RANKS, program, ranks_per_node=ranks_per_node)


@pytest.mark.parametrize("ranks_per_node", [None, 1])
def test_large_arrays_are_divided_evenly(ranks_per_node: int | None) -> None:
    rng = np.random.default_rng(0)
    n = 40_000
    for values in (rng.permutation(n), rng.integers(0, 300, n), np.full(n, np.nan), np.ones(n)):
        expected = np.unique(values, True, True, True, equal_nan=False)

        def program(values: Any = values, expected: Any = expected) -> None:
            x = da.asarray(values)
            with CommLog() as log:
                (found,) = [da.unique_values(x)]
            agrees(found, expected[0])
            assert log.bytes() <= len(expected[0]) * 8 * 1.1 + 600_000
            most = found.layout.partition(0).largest
            assert most <= len(expected[0]) / RANKS * 1.3 + RANKS
            for one, other in zip(da.unique_all(x), expected, strict=True):
                agrees(one, other)

        simulate(RANKS, program, ranks_per_node=ranks_per_node)


@pytest.mark.host_only
def test_long_parts_are_divided_by_a_sample_in_few_rounds() -> None:
    kinds = np.random.default_rng(7).integers(0, 2, (900, 300))
    kinds[:, :200] = 1  # so that the first words tell nothing
    drawn = np.random.default_rng(8).integers(0, 900, 3000)

    def program() -> None:
        x = da.distribute_array(kinds[drawn].astype(float), placements=[Shard(0)], src=None)
        with CommLog() as log:
            values, inverse = da.unique(x, return_inverse=True, axis=0)
        assert log.count() <= 8
        expected, numbers = np.unique(kinds[drawn], return_inverse=True, axis=0)
        agrees(values, expected.astype(float))
        agrees(inverse, numbers)
        lengths = [values.layout.local_shape((i,))[0] for i in range(RANKS)]
        assert max(lengths) <= 1.5 * len(expected) / RANKS

    on_ranks(program)


def test_few_items_are_gathered_at_once_and_divided_as_by_default() -> None:
    values = np.random.default_rng(3).integers(0, 9, (RANKS, 5))

    def program() -> None:
        x = da.asarray(values)
        with CommLog() as log:
            found = da.unique_all(x)
        assert [record.collective for record in log.records] == ["all_gather"]
        assert log.bytes() == values.nbytes * (RANKS - 1) // RANKS
        for one, other in zip(found, np.unique(values, True, True, True), strict=True):
            agrees(one, other)
        assert found.values.rebalance() is found.values

    simulate(RANKS, program)


def test_what_differs_on_each_is_gathered_at_once_and_divided_evenly() -> None:
    values = np.random.default_rng(3).integers(0, 1000, (RANKS, 500))

    def program() -> None:
        x = da.asarray(values)
        with CommLog() as log:
            found = da.unique_all(x)
        assert log.count("rows") == 0
        assert log.count() <= 4
        for one, other in zip(found, np.unique(values, True, True, True), strict=True):
            agrees(one, other)
        assert found.values.rebalance() is found.values

    simulate(RANKS, program)


def test_signs_of_zeros_are_those_of_the_first() -> None:
    for values in ([0.0, -0.0, 1.0, -0.0], [-0.0, 1.0, 0.0, 0.0]):

        def program(values: Any = values) -> None:
            found = host(da.unique(da.asarray(values)).full_array())
            assert np.array_equal(np.signbit(found), np.signbit([values[0], 1.0]))

        on_ranks(program)


@pytest.mark.parametrize("dtype", ["c8", "c16"])
def test_of_complex_nan_the_place_is_that_of_the_first_in_order(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_unique, "_FEW_BYTES", -1)
    nan = np.nan
    values = np.array(
        [
            complex(nan, 3),
            1,
            complex(nan, 2),
            0,
            complex(1, nan),
            5,
            complex(1, nan),
            complex(nan, 2),
        ],
        dtype,
    )

    def program() -> None:
        for array in (values, values[[0, 1, 2, 3, 5, 7]], values[::-1].copy()):
            found = da.unique(da.asarray(array), return_index=True, return_counts=True)
            expected = np.unique(array, return_index=True, return_counts=True)
            for one, other in zip(found, expected, strict=True):
                agrees(one, other)

    simulate(4, program)


def test_results_take_part_in_further_operations() -> None:
    values = np.random.default_rng(2).integers(0, 50, 300)

    def program() -> None:
        x = da.asarray(values)
        found, counts = da.unique(x, return_counts=True)
        assert found.placements == (Shard(0),)
        common, times = np.unique(values, return_counts=True)
        agrees(found[counts > 6], common[times > 6])
        agrees(found.rebalance() * counts, common * times)

    on_ranks(program)


@pytest.mark.host_only
@pytest.mark.parametrize("shape", [(5, 0), (0, 0), (0, 2, 0), (3, 0, 2)])
def test_parts_without_items_are_all_alike(shape: Any) -> None:
    def program() -> None:
        for axis in range(len(shape)):
            found = da.unique(da.zeros(shape), True, True, True, axis=axis)
            expected = np.unique(np.zeros(shape), True, True, True, axis=axis)
            for one, other in zip(found, expected, strict=True):
                agrees(one, other)

    on_ranks(program)


def test_what_is_refused() -> None:
    def program() -> None:
        x = da.ones((4, 3))
        with pytest.raises(AxisError):
            da.unique(x, axis=2)
        agrees(da.unique(x[:, 0], axis=0), [1.0])
        with da.communication("raise"), pytest.raises(ImplicitCommunicationError):
            da.unique(x)

    on_ranks(program)


@pytest.mark.host_only
@pytest.mark.parametrize(
    ("name", "blocks"),
    [("unique_values", 2), ("unique_counts", 3.2), ("unique_inverse", 3.6), ("unique_all", 3.6)],
)
def test_memory_beside_items_that_all_differ_is_few_blocks(
    name: str, blocks: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulated ranks keep what others have read for a while: up to a block for each result."""
    monkeypatch.setattr(_unique, "_PIECE", 1 << 10)
    monkeypatch.setattr(_jit, "forced", lambda: dict.fromkeys(_jit.JOBS, "numpy"))
    monkeypatch.setattr(_grouping, "_PIECE", 1 << 10)
    value = np.random.default_rng(0).permutation(1 << 17).astype(float)
    for shape in ((-1,), (256, -1)):
        assert peak_memory.scratch(getattr(da, name), value.reshape(shape), 2) <= blocks + 0.2
