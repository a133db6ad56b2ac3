"""Names that are loaded into memory which they share: their values agree, or the load refuses."""

from __future__ import annotations

import numpy as np
import pytest

import distarray as da
from distarray.errors import StateDictError
from distarray.testing import simulate

A = np.arange(24.0).reshape(4, 6)


def flat(a):
    return a.reshape(-1)


WAYS = {
    "flat": flat,
    "transposed": lambda a: a.T,
    "other shape": lambda a: a.reshape(3, 2, 4),
    "transposed other shape": lambda a: a.reshape(3, 2, 4).transpose(2, 0, 1),
    "some rows": lambda a: a[1:3],
    "middle of it": lambda a: flat(a)[5:17],
    "one item": lambda a: a[2, 3:4].reshape(()),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("dtype", ["d", "g"])
def test_items_that_are_shared_must_be_alike(tmp_path, way, is_first, dtype):
    def with_filling(a, byte):
        a = a.copy()
        if dtype == "g" and np.finfo("g").nmant == 63:  # of 10 bytes and what fills them up
            a.reshape(-1).view(np.uint8).reshape(a.size, -1)[:, 10:] = byte
        return a

    def ordered(a, b):
        return {"b": b, "a": a} if is_first else {"a": a, "b": b}

    view, value = WAYS[way], with_filling(A.astype(dtype), 1)
    da.checkpoint.save(tmp_path / "same", ordered(value, with_filling(view(value), 2)))
    changed = with_filling(view(value), 3)
    changed[(-1,) * changed.ndim] += 1
    da.checkpoint.save(tmp_path / "other", ordered(value, changed))
    here = np.zeros((4, 6), dtype)
    da.checkpoint.load(tmp_path / "same", ordered(here, view(here)))
    assert (here == A).all()
    here[:] = 0
    with pytest.raises(StateDictError, match=r"(a and b|b and a) (share|are the same)"):
        da.checkpoint.load(tmp_path / "other", ordered(here, view(here)))
    assert (here == 0).all()


def test_parts_that_overlap_are_refused(tmp_path):
    da.checkpoint.save(tmp_path / "x", {"x": np.zeros(4), "y": np.ones(4)})
    here = np.full(6, 7.0)
    for strict in (True, False):
        with pytest.raises(StateDictError, match="x and y share memory here"):
            da.checkpoint.load(tmp_path / "x", {"x": here[:4], "y": here[2:]}, strict=strict)
    assert (here == 7).all()
    da.checkpoint.load(tmp_path / "x", {"x": np.zeros(8)[::2], "y": np.zeros(4)})


def test_other_dtypes_of_one_memory_are_refused(tmp_path):
    da.checkpoint.save(tmp_path / "x", {"x": np.zeros(4), "y": np.ones(4, "i8")})
    here = np.full(4, 7.0)
    with pytest.raises(StateDictError, match="x and y share memory here"):
        da.checkpoint.load(tmp_path / "x", {"x": here, "y": here.view("i8")})


def test_parts_between_each_other_load(tmp_path):
    state = {"left": A[:, :2], "right": A[:, 2:], "even": A[::2], "odd": A[1::2]}
    da.checkpoint.save(tmp_path / "x", state)
    here, there = np.zeros((4, 6)), np.zeros((4, 6))
    wanted = {"left": here[:, :2], "right": here[:, 2:], "even": there[::2], "odd": there[1::2]}
    da.checkpoint.load(tmp_path / "x", wanted)
    assert (here == A).all()
    assert (there == A).all()
    wanted["right"] = here[:, 1:5]
    with pytest.raises(StateDictError, match="left and right share memory here"):
        da.checkpoint.load(tmp_path / "x", wanted)


def test_blocks_of_several_ranks(tmp_path):
    def run():
        for name, second in {"same": flat(A), "other": flat(A) + (flat(A) > 20)}.items():
            da.checkpoint.save(tmp_path / name, {"a": A, "b": second})
        here = da.zeros(A.shape, placements=[da.Shard(0)])
        mine = da.DistArray.from_local(flat(here.to_local()), placements=[da.Shard(0)])
        da.checkpoint.load(tmp_path / "same", {"a": here, "b": mine})
        assert (here.full_array() == A).all()
        with pytest.raises(StateDictError, match="a and b are the same"):
            da.checkpoint.load(tmp_path / "other", {"a": here, "b": mine})

    simulate(2, run)
