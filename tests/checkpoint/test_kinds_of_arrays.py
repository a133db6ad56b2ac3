"""Which arrays of NumPy are saved: those that are no more than their items."""

from __future__ import annotations

import numpy as np
import pytest

import distarray as da
from distarray.errors import ArgumentTypeError, DTypeError, MismatchError
from distarray.testing import simulate


class WithUnit(np.ndarray):
    """An array that has more than its items."""


MORE = {
    "masked": np.ma.masked_array(np.array([1, 2, 3], "i1"), [0, 1, 0]),
    "without a mask": np.ma.ones(3),
    "matrix": np.ones((1, 2)).view(np.matrix),
    "with a unit": np.ones(3).view(WithUnit),
}


@pytest.mark.parametrize("kind", MORE)
@pytest.mark.parametrize("wrapped", [False, True])
def test_arrays_that_have_more_are_refused(tmp_path, kind, wrapped):
    value = MORE[kind]
    state = {"x": da.checkpoint.PerRank(value) if wrapped else value}
    with pytest.raises(ArgumentTypeError, match=r"x is a .*; pass (np\.asarray|x\.filled)"):
        da.checkpoint.save(tmp_path / "x", state)
    if not wrapped:
        with pytest.raises(ArgumentTypeError, match="x is a "):
            da.checkpoint.save_safetensors(tmp_path / "x", state)
        da.checkpoint.save(tmp_path / "x", {"x": np.asarray(value)})
        with pytest.raises(ArgumentTypeError, match="x is a "):
            da.checkpoint.load(tmp_path / "x", state)


def test_arrays_over_files_and_of_records(tmp_path):
    mapped = np.memmap(tmp_path / "map", "f8", "w+", shape=(3, 2))
    mapped[:] = np.arange(6).reshape(3, 2)
    records = np.rec.array([(1, 2.5), (3, 4.5)], dtype=[("a", "i4"), ("b", "f8")])
    state = {"m": mapped, "r": records, "own": da.checkpoint.PerRank(records)}
    da.checkpoint.save(tmp_path / "x", state)
    found = da.checkpoint.load(tmp_path / "x")
    assert (found["m"] == np.arange(6).reshape(3, 2)).all()
    assert found["r"]["b"].tolist() == found["own"]["b"].tolist() == [2.5, 4.5]
    mapped[:] = 0
    records.b = 0
    da.checkpoint.load(tmp_path / "x", {"m": mapped, "r": records, "own": None})
    assert mapped.sum() == 15
    assert records.b.tolist() == [2.5, 4.5]


def test_a_stored_number_is_an_array_of_no_axes(tmp_path):
    da.checkpoint.save(tmp_path / "x", {"n": np.array(3.5), "v": np.arange(4)})
    stored = da.checkpoint.open(tmp_path / "x")
    assert np.asarray(stored["n"]) == 3.5
    assert np.asarray(stored["n"], dtype="f4").dtype == "f4"
    assert isinstance(stored["n"][...], np.ndarray)
    assert isinstance(stored["n"][()], np.float64)
    assert isinstance(stored["v"][2, ...], np.ndarray)
    assert stored["v"][..., 2] == 2


@pytest.mark.parametrize("dtype", ["V0", []])
def test_items_of_no_bytes(tmp_path, dtype):
    with pytest.raises(DTypeError, match="have no bytes"):
        da.checkpoint.save(tmp_path / "x", {"v": np.zeros(3, dtype)})


FILLED_UP = {
    "long double": np.dtype("g"),
    "complex": np.dtype("G"),
    "fields": np.dtype([("a", "i1"), ("b", "f8")], align=True),
    "inside of fields": np.dtype([("a", "i8"), ("b", [("c", "g")], (2,))]),
}


@pytest.mark.parametrize("name", FILLED_UP)
def test_what_fills_up_items_is_not_compared(tmp_path, name):
    """Equal items of several ranks may differ in bytes that mean nothing."""

    def items(differs):
        dtype, rank = FILLED_UP[name], da.default_mesh().rank
        made = np.frombuffer(bytes([3 + rank]) * 5 * dtype.itemsize, dtype).copy()
        for part in [made[name] for name in dtype.names] if dtype.names else [made]:
            (part["c"] if part.dtype.names else part)[...] = 7
        if differs and rank:
            last = made[dtype.names[-1]] if dtype.names else made
            (last["c"] if last.dtype.names else last)[4] += 1
        return made

    def program(differs=False):
        da.checkpoint.save(tmp_path / "x", {"x": items(differs)})
        found = da.checkpoint.load(tmp_path / "x")["x"]
        assert found.dtype == FILLED_UP[name]
        assert (found == items(differs)).all()
        here = items(differs)
        da.checkpoint.load(tmp_path / "x", {"x": here})
        assert (here == found).all()

    simulate(3, program)
    with pytest.raises(MismatchError, match="different values"):
        simulate(3, lambda: program(differs=True))
