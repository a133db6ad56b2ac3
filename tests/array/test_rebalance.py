"""`x.rebalance()`: the default split, with no more sent than each rank lacks."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray.comm import CommLog, _backend
from distarray.layout import counted
from tests.array.strategies import Case, agrees, cases, on_ranks, values_of
from tests.on_device import DEVICE


@given(cases(dtypes=["i8", "f4", "?"]))
@settings(max_examples=30, deadline=None)
def test_all_layouts_get_the_default_split_of_their_placements(case: Case) -> None:
    def program() -> None:
        x = case.build()
        y = x.rebalance()
        assert y.layout is x.layout.replace(boundaries=None)
        assert y.layout.boundaries is None
        assert (y is x) is (x.layout.boundaries is None)
        agrees(y, case.value)
        agrees(x, case.value)
        assert y.rebalance() is y

    on_ranks(program)


@given(
    st.lists(st.integers(0, 9), min_size=4, max_size=4),
    st.sampled_from(["f8", "c16", "f4" if DEVICE != "cpu" else "U3"]),
)
@settings(max_examples=15, deadline=None)
def test_items_travel_once_and_only_those_that_a_rank_lacks(lengths: list[int], dtype: str) -> None:
    values = values_of("i8", (sum(lengths), 3), seed=1).astype(dtype)

    def program() -> None:
        mesh = da.init_device_mesh((4,))
        layout = counted(da.Layout(mesh, [da.Shard(0)], (0, 3)), 0, lengths)
        ((start, stop), _) = layout.local_box()
        x = da.zeros((1,))._new(_backend.asarray(values[start:stop], mesh.device), layout)
        ((first, last), _) = layout.replace(boundaries=None).local_box()
        lacking = max(last - first, 0) - max(min(stop, last) - max(start, first), 0)
        with CommLog() as log:
            y = x.rebalance()
        assert log.bytes() == lacking * 3 * values.itemsize
        assert log.count() <= 1
        agrees(y, values)
        assert not y.layout.is_counted

    on_ranks(program)


def test_the_result_has_memory_of_its_own_where_blocks_stay() -> None:
    def program() -> Any:
        layout = counted(da.Layout(da.init_device_mesh((4,)), [da.Shard(0)], (0,)), 0, [2, 2, 0, 1])
        block = np.ones(layout.local_shape())
        x = da.zeros((1,))._new(_backend.asarray(block, layout.mesh.device), layout)
        y = x.rebalance()
        y += 1
        agrees(x, np.ones(5))
        agrees(y, np.full(5, 2.0))
        z = da.arange(9.0)[1:]
        assert z.rebalance().layout is da.arange(8.0).layout
        agrees(z.rebalance(), np.arange(1.0, 9.0))

    on_ranks(program)
