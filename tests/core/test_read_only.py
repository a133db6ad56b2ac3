"""What NumPy makes a view writes through into its array or is read-only, on all ranks alike."""

from __future__ import annotations

import operator
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray.array._array import DistArray, distribute_array
from distarray.comm import DeviceMesh, _backend, default_mesh
from distarray.core._read_only import PendingWrite
from distarray.errors import ReadOnlyError
from distarray.layout import Partial, Replicate, Shard
from distarray.testing import simulate
from tests.array.index_keys import keys
from tests.array.strategies import Case, agrees, cases, on_ranks
from tests.on_device import host

RAISED, DEFERRED, WRITTEN = "raised", "deferred", "written"
R, S0, S1 = Replicate(), Shard(0), Shard(1)


def one_outcome(outcomes: list[Any]) -> Any:
    """Return what all ranks in the mesh met, which must be the same."""
    met = {outcome for outcome in outcomes if outcome is not None}
    assert len(met) == 1, met
    return met.pop()


def add_in_place(y: DistArray) -> str:
    """Add 1 in place and return what became of it."""
    try:
        z = operator.iadd(y, 1)
    except ReadOnlyError:
        return RAISED
    if isinstance(z, PendingWrite):
        with pytest.raises(ReadOnlyError):
            z + 1
        return DEFERRED
    return WRITTEN


def shifted(value: np.ndarray, function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Return a copy of a global array after 1 was added in place to a view of it."""
    whole = value.copy()
    view = function(whole)
    view += 1
    return whole


# --- items ---------------------------------------------------------------------------------------


@settings(max_examples=38)
@given(data=st.data())
def test_items_write_through_or_are_read_only(data: st.DataObject) -> None:
    case: Case = data.draw(cases((np.float64, np.int32), ("sum",)))
    key = data.draw(keys(case.shape))
    entries = key if isinstance(key, tuple) else (key,)
    view = (*entries, ...) if Ellipsis not in [e for e in entries if e is Ellipsis] else entries
    is_number = isinstance(case.value[key], np.generic)

    def program() -> str | None:
        x = case.build()
        y = x[key]
        outcome = add_in_place(y)
        through = outcome == WRITTEN and not is_number
        agrees(x, shifted(case.value, lambda a: a[view]) if through else case.value)
        if not through:
            assert not _backend.is_writeable(y.to_local())
            for write in (lambda: np.add(y, 1, out=y), lambda: y.__setitem__(..., 1)):
                with pytest.raises(ReadOnlyError):
                    write()
            agrees(x, case.value)
        return None if x.mesh.coordinate is None else outcome

    one_outcome(on_ranks(program))


@settings(max_examples=38)
@given(data=st.data())
def test_in_place_operators_on_items_work_on_every_layout(data: st.DataObject) -> None:
    case: Case = data.draw(cases((np.float64, np.int32), ("sum",)))
    key = data.draw(keys(case.shape))
    name = data.draw(st.sampled_from(("iadd", "imul", "isub", "ipow")))
    amount = data.draw(st.integers(1, 3))
    operate = getattr(operator, name)
    expected = case.value.copy()
    expected[key] = operate(expected[key], amount)

    def program() -> None:
        x = case.build()
        x[key] = operate(x[key], amount)  # what Python makes of x[key] += amount
        agrees(x, expected)

    on_ranks(program)


def test_in_place_statement_on_an_item_writes_it() -> None:
    def program() -> None:
        local = np.random.default_rng(default_mesh().rank).random((2, 3, 3))
        x = DistArray.from_local(local, None, [S0])
        whole = host(x.full_array())
        eye, row = np.eye(3), np.arange(3.0)
        x[1] += 1
        whole[1] += 1
        x[-1, 0] *= x[0, 1]
        whole[-1, 0] *= whole[0, 1]
        x[::-1] -= row
        whole[::-1] -= row
        x[2] @= 2 * eye
        whole[2] @= 2 * eye
        x[3] **= 2
        whole[3] **= 2
        x[0, 0, 0] += 5
        whole[0, 0, 0] += 5
        x[1:-1] *= 2
        whole[1:-1] *= 2
        np.testing.assert_allclose(host(x.full_array()), whole, rtol=1e-15)

    simulate(2, program)


def test_values_of_an_item_go_nowhere_but_where_they_come_from() -> None:
    def program() -> None:
        rank = default_mesh().rank
        x = DistArray.from_local(np.arange(4.0).reshape(2, 2) + 10 * rank, None, [S0])
        y = x.copy()
        before = x.full_array()
        row = x[1]
        row += 5
        assert "x[1, 0:2]" in repr(row)
        uses: list[Callable[[Any], Any]] = [
            lambda r: r + 1, lambda r: 1 + r, lambda r: x + r, lambda r: np.add(r, 1), float, bool,
            str, len, list, lambda r: f"{r}", lambda r: r == 1, lambda r: r[...], lambda r: r.sum(),
            lambda r: np.sum(r), np.asarray, da.asarray, lambda r: da.where(x > 0, r, 0),
            lambda r: x.__setitem__(2, r), lambda r: y.__setitem__(1, r),
            lambda r: operator.iadd(r, 1), lambda r: operator.iadd(x, r), lambda r: r.shape,
        ]  # fmt: skip
        for use in uses:
            with pytest.raises(ReadOnlyError, match=r"x\[1, 0:2\] is a copy.*\+= value"):
                use(row)
        assert x.full_array().tolist() == y.full_array().tolist() == before.tolist()
        row = x[3]  # on the last rank: x[-1] is the same
        row += 5
        x[-1] = row
        before[3] += 5
        assert x.full_array().tolist() == before.tolist()

    simulate(2, program)


@pytest.mark.parametrize("placements", [[S0], [R]])
def test_single_items_are_numbers_that_operators_make_anew(placements: Any) -> None:
    def program() -> None:
        x = distribute_array(np.arange(4.0), None, placements, src=None)
        total = x[0]
        for i in range(1, 4):
            total += x[i]
        total **= 2
        count = distribute_array(np.arange(3), None, placements, src=None)[1]
        count /= 4  # another dtype, as of a number
        assert (float(total), float(count)) == (36.0, 0.25)
        agrees(x, np.arange(4.0))
        with pytest.raises(ReadOnlyError):
            x[0][...] = 7
        for item in x:
            item += 1
        agrees(x, np.arange(4.0))
        x[0] += 5
        agrees(x, [5.0, 1.0, 2.0, 3.0])

    simulate(3, program)


def test_values_that_are_dropped_are_told() -> None:
    def program() -> None:
        x = distribute_array(np.arange(8.0).reshape(4, 2), None, [S0], src=None)
        row = x[1]
        row += 5
        with pytest.warns(RuntimeWarning, match=r"nothing was written: x\[1, 0:2\] is"):
            del row
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            x[1] += 5

    simulate(1, program)


def test_values_that_a_script_keeps_to_its_end_are_told_then() -> None:
    script = (
        "import sys, distarray as da\n"
        "x = da.arange(8.0).reshape(4, 2)\n"
        "x[0] += 1\n"
        "row = sys.row = x[1]\n"  # one of sys is deleted too late to be told of
        "row += 5\n"
        "sys.row = row\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ended.returncode == 0
    assert ended.stderr.count("nothing was written: x[1, 0:2] is") == 1
    assert "x[0, 0:2]" not in ended.stderr


@pytest.mark.parametrize("placements", [[S0], [S1], [R]])
def test_rows_of_an_iteration_write_through_or_raise(placements: Any) -> None:
    def program() -> None:
        for rows in (iter, da.unstack):
            x = distribute_array(np.arange(12.0).reshape(4, 3), None, placements, src=None)
            for row in rows(x):
                if placements == [S0]:
                    with pytest.raises(ReadOnlyError, match=r"x\[i\] = value"):
                        row += 1
                else:
                    row += 1
            expected = np.arange(12.0).reshape(4, 3) + (placements != [S0])
            agrees(x, expected)

    simulate(3, program)


# --- shapes and parts ----------------------------------------------------------------------------

VIEWS: dict[str, Callable[[Any], Any]] = {
    "T": lambda x: x.T,
    "moveaxis": lambda x: np.moveaxis(x, 0, -1),
    "swapaxes": lambda x: np.swapaxes(x, 0, 1),
    "expand_dims": lambda x: np.expand_dims(x, 1),
    "squeeze": lambda x: np.squeeze(x),
    "first of one": lambda x: np.squeeze(x[:1], 0) if len(x) else x[:],
    "ravel": lambda x: np.ravel(x),
    "joined": lambda x: x.reshape(x.shape[0] * x.shape[1], -1) if 0 not in x.shape else x[:],
    "split": lambda x: x.reshape(x.shape[0], 1, *x.shape[1:]),
    "transposed and joined": lambda x: x.T.reshape(-1),
    "column major": lambda x: np.reshape(x, (-1,), order="F"),
    "middle first, joined": lambda x: (
        np.moveaxis(x, 1, 0).reshape(x.shape[1], -1) if 0 not in x.shape else x[:]
    ),
    "slice joined": lambda x: x[1:, 1:].reshape(-1),
    "flip": lambda x: np.flip(x),
    "flip last": lambda x: np.flip(x, -1),
    "real": lambda x: x.real,
    "imag": lambda x: x.imag,
    "conjugates": lambda x: x.conj(),
    "as it is": lambda x: x.astype(x.dtype, copy=False),
    "broadcast": lambda x: np.broadcast_to(x, (2, *x.shape)),
    "broadcast in place": lambda x: np.broadcast_to(x, x.shape),
    "whole": lambda x: x[...],
    "new axis": lambda x: x[None],
}


@pytest.mark.parametrize("name", VIEWS)
@settings(max_examples=15)
@given(data=st.data())
def test_views_write_through_or_are_read_only(name: str, data: st.DataObject) -> None:
    function = VIEWS[name]
    ndim = data.draw(st.integers(2, 3))
    shape = tuple(data.draw(st.sampled_from((0, 1, 2, 3, 5, 8))) for _ in range(ndim))
    case: Case = data.draw(cases((np.complex128, np.float64), ("sum",), shape=shape))
    if name == "imag" and case.values.dtype.kind != "c":
        return

    def program() -> tuple[str, bool | None] | None:
        x = case.build()
        y = function(x)
        shares = (
            _backend.may_share_memory(y.to_local(), x.to_local()) if y.to_local().size else None
        )
        agrees(y, function(case.value))
        outcome = add_in_place(y)
        if outcome == WRITTEN:  # into x, or into a copy, as in NumPy
            agrees(x, shifted(case.value, function))
        else:
            assert outcome == RAISED
            assert not _backend.is_writeable(y.to_local())
            agrees(x, case.value)
            y = y.copy()
            y += 1
            agrees(y, function(case.value) + 1)
        return None if x.mesh.coordinate is None else (outcome, shares)

    outcomes, shared = zip(*[met for met in on_ranks(program) if met is not None], strict=True)
    one_outcome([*outcomes])
    assert len({one for one in shared if one is not None}) < 2


def test_merging_uneven_axes_is_alike_on_every_rank() -> None:
    def program() -> str:
        mesh = default_mesh()
        whole = np.arange(2 * 5 * 3.0).reshape(2, 5, 3)
        x = distribute_array(
            whole, mesh, [S1], src=None
        )  # of 2, 2 and 1 items: the last one merges
        y = np.moveaxis(x, 1, 0).reshape(5, 6)
        agrees(y, np.moveaxis(whole, 1, 0).reshape(5, 6))
        outcome = add_in_place(y)
        agrees(x, whole)
        return outcome

    assert one_outcome(simulate(3, program)) == RAISED


@pytest.mark.host_only
def test_blocks_that_one_rank_protects_are_read_only_everywhere() -> None:
    def program() -> None:
        rank = default_mesh().rank
        block = np.full(2, float(rank))
        block.flags.writeable = rank != 1
        x = DistArray.from_local(block, None, [S0])
        assert np.shares_memory(x.to_local(), block)
        with pytest.raises(ReadOnlyError, match=r"x\.copy\(\)"):
            x += 1
        assert block.flags.writeable == (rank != 1)

    simulate(3, program)


# --- copies that are no views --------------------------------------------------------------------


@pytest.mark.parametrize("change", [None, "placements", "mesh"])
def test_redistributed_and_converted_arrays_have_memory_of_their_own(change: str | None) -> None:
    def program() -> None:
        mesh = DeviceMesh([0, 1])
        whole = np.arange(12.0).reshape(4, 3)
        x = distribute_array(whole, mesh, [R], src=None)
        options: dict[str, Any] = {
            "placements": {"placements": [S0]}, "mesh": {"mesh": DeviceMesh([1, 0])}, None: {},
        }[change]  # fmt: skip
        results = [
            x.redistribute(**options),
            da.redistribute(x, **options, async_op=True).wait(),
            distribute_array(x, options.get("mesh", mesh), options.get("placements", [R])),
            np.roll(x, 1),
            x.flatten(),
        ]
        results += [da.asarray(x, **options)] if options else []
        for y in results:
            y += 1
            agrees(x, whole)

    simulate(2, program)


def test_asarray_is_read_only_and_copies_are_not() -> None:
    def program() -> None:
        for placements in ([S0], [R], [Partial()]):
            x = distribute_array(np.arange(4.0), None, placements, src=None)
            with pytest.raises(ValueError, match="read-only"):
                np.asarray(x)[0] = 1
            for copy in (np.array(x), x.full_array(), np.asarray(x, np.float32), x[:].copy()):
                copy[0] = 1
            agrees(x, np.arange(4.0))

    simulate(2, program)


def test_read_only_arrays_go_through_everything_else() -> None:
    def program() -> None:
        rank = default_mesh().rank
        big = np.random.default_rng(rank).random((4, 300, 90))
        x = DistArray.from_local(big, None, [S0])
        whole = host(x.full_array())
        for key in (1, -1, (2, slice(None, None, 2)), slice(None, None, -1)):
            row, expected = x[key], whole[key]
            agrees(row.redistribute([S0]), expected)
            agrees(row.redistribute([S1]).redistribute([S0]), expected)
            agrees(row + row * 2, expected + expected * 2)
            agrees(row.T.reshape(-1), expected.T.reshape(-1))
            agrees(np.max(row, axis=0), np.max(expected, axis=0))
            agrees(np.concatenate([row, row], axis=1), np.concatenate([expected] * 2, axis=1))
            agrees(da.asarray(row, placements=[S0]), expected)
            x[key] = row
        agrees(x, whole)

    simulate(3, program)


@pytest.mark.parametrize("ranks", [1, 2])
def test_axes_around_a_cut_one_merge_into_a_copy_where_blocks_have_one_item_of_it(
    ranks: int,
) -> None:
    def program() -> None:
        whole = np.arange(8.0).reshape(2, 2, 2)
        x = distribute_array(whole.copy(), None, [S1], src=None)
        y = np.moveaxis(x, 1, 0).reshape(2, 4)
        if ranks == 1:
            y += 1  # into a copy, as in NumPy
        else:
            with pytest.raises(ReadOnlyError):
                y += 1
        agrees(x, whole)

    simulate(ranks, program)


@pytest.mark.parametrize("key", ["::-1", "4:0:-2", "::-2", "-1:-4:-1", "1:4", "4::-1"])
def test_the_statement_that_the_error_tells_writes_these_items(key):
    def program():
        x = da.asarray(np.arange(6.0), mesh=da.init_device_mesh((2,)))
        expected = np.arange(6.0)
        names = {"x": x, "expected": expected, "value": 9.0}
        part = eval(f"x[{key}]", names)
        try:
            part[0] = 9.0
        except ReadOnlyError as error:
            told = re.search(r"write (x\[.*?\] = value)", str(error)).group(1)
        else:  # a view
            told = f"x[{key}] = value"
        exec(told, names)
        exec(f"expected[{key}] = 9.0", names)
        np.testing.assert_array_equal(x.full_array(), expected)

    simulate(2, program)


def test_an_error_says_which_copy_is_read_only() -> None:
    def program() -> None:
        x = distribute_array(np.arange(12.0).reshape(6, 2), None, [S0])
        y = x.reshape(3, 4)
        for copy, told in (
            (next(iter(x)), "a row that a loop over x"),
            (y, "a reshaped array"),
            (y[1:], "a view of a copy"),
            (x[2], r"x\[2, 0:2\] is a copy"),
        ):
            with pytest.raises(da.errors.ReadOnlyError, match=told):
                copy[0] = 1
        agrees(x, np.arange(12.0).reshape(6, 2))

    simulate(2, program)
