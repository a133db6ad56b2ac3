"""The whole array on one rank: NumPy's values there, None elsewhere, no memory on the others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray.comm import CommLog
from distarray.errors import ArgumentError, ArgumentTypeError, MismatchError
from distarray.layout import Partial, Replicate, Shard
from tests.array.strategies import KIND, Case, cases, on_ranks, special_cases
from tests.on_device import host

DTYPES = ("f8", "i2", "?", "c16", *(("U3", "M8[s]") if KIND == "cpu" else ()))


@given(st.one_of(cases(("f8", "i4"), ("sum", "max")), special_cases(DTYPES)), st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_one_rank_has_all_values_and_the_others_none(case: Case, dst: int) -> None:
    def program() -> None:
        x = case.build()
        position = dst % x.mesh.size
        whole = x.full_array(dst=position)
        if x.mesh.coordinate is None or x.mesh.rank != x.mesh.flat_ranks[position]:
            assert whole is None
        else:
            np.testing.assert_array_equal(host(whole), case.value)
            assert whole.dtype == x.dtype
            whole[...] = np.zeros((), x.dtype)  # a copy
        if x.mesh.coordinate is not None:
            np.testing.assert_array_equal(host(x.full_array()), case.value)

    on_ranks(program)


@pytest.mark.parametrize("placement", [Shard(0), Shard(1), Replicate(), Partial()])
def test_each_item_travels_once(placement) -> None:
    def program() -> int:
        mesh = da.init_device_mesh((4,))
        block = np.ones(
            (2, 8) if placement is Shard(0) else (8, 2) if placement is Shard(1) else (8, 8)
        )
        x = da.DistArray.from_local(block, mesh, [placement])
        with CommLog() as log:
            x.full_array(dst=2)
        return log.bytes()

    received = on_ranks(program)
    missing = 8 * 8 * 8 * 3 // 4
    if placement is Replicate():
        assert received == [0] * 4
    elif placement is Partial():  # each reduces its quarter, and one gathers these
        assert received == [missing, missing, 2 * missing, missing]
    else:
        assert received == [0, 0, missing, 0]


def test_wrong_positions_raise_on_all_ranks_alike() -> None:
    def program() -> None:
        x = da.arange(8)
        with pytest.raises(ArgumentError, match=r"dst=4 is no position .* 0 to 3"):
            x.full_array(dst=4)
        with pytest.raises(ArgumentTypeError, match="dst='all'"):
            x.full_array(dst="all")
        with pytest.raises(MismatchError, match=r"full_array(\(dst=| on \[)"):
            x.full_array(dst=da.default_mesh().rank)
        assert (host(x.full_array()) == np.arange(8)).all()

    on_ranks(program)
