"""Windows are those of NumPy for all layouts, and send no more than the items between blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray.comm import CommLog
from distarray.errors import ArgumentError, ArgumentTypeError, ReadOnlyError, ShapeError
from distarray.layout import Replicate, Shard
from tests.array.strategies import Case, agrees, cases, on_ranks

view = np.lib.stride_tricks.sliding_window_view


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_windows_are_those_of_numpy(data: st.DataObject) -> None:
    case: Case = data.draw(cases((np.float64, np.int16), ("sum",)))
    shape = list(case.shape)
    if not shape:
        return
    axes, widths = [], []
    for _ in range(data.draw(st.integers(1, 2))):
        axis = data.draw(st.integers(0, len(shape) - 1))
        if not shape[axis]:
            return
        width = data.draw(st.integers(1, shape[axis]))
        shape[axis] -= width - 1
        axes.append(axis - len(shape) * data.draw(st.booleans()))
        widths.append(width)
    expected = view(case.value, tuple(widths), tuple(axes))

    def program() -> None:
        x = case.build()
        found = view(x, tuple(widths), tuple(axes))
        agrees(found, expected)
        agrees(found.sum(axis=-1), expected.sum(axis=-1))
        agrees(found.redistribute([Replicate()] * x.mesh.ndim), expected)

    on_ranks(program)


def test_blocks_get_the_items_that_follow_them_and_nothing_else() -> None:
    value = np.arange(24.0).reshape(12, 2)

    def program() -> None:
        mesh = da.init_device_mesh((4,))
        x = da.distribute_array(value, mesh, [Shard(0)])
        with CommLog() as log:
            found = da.sliding_window_view(x, 3, axis=0)
        last = mesh.rank == 3  # which nothing follows
        assert (log.count(), log.bytes()) == (1, 0 if last else 2 * 2 * 8)
        assert found.layout.partition(0).offsets == (0, 3, 6, 9, 10)
        agrees(found, view(value, 3, axis=0))
        with CommLog() as log:
            whole = da.sliding_window_view(x, 2, axis=1)
        assert log.count() == 0
        agrees(whole, view(value, 2, axis=1))
        agrees(view(x, (11, 2)), view(value, (11, 2)))  # most blocks have none

    on_ranks(program)


def test_windows_are_read_only_and_others_are_refused() -> None:
    def program() -> None:
        x = da.ones((4, 3))
        windows = view(x, 2, axis=0)
        with pytest.raises(ReadOnlyError):
            windows[0] = 1
        calls: tuple[tuple[type[Exception], Any, str], ...] = (
            (ShapeError, lambda: view(x, 2), "1 lengths of windows for 2 axes"),
            (ShapeError, lambda: view(x, (5, 1)), "do not fit"),
            (ShapeError, lambda: view(x, (3, 3), axis=(0, 0)), "do not fit"),
            (ArgumentError, lambda: view(x, (0, 1)), "1 or more"),
            (ArgumentError, lambda: view(x, 2, axis=0, writeable=True), "cannot be written"),
            (ArgumentTypeError, lambda: view(x, 1.5, axis=0), "window_shape=1.5"),
            (ArgumentTypeError, lambda: view(x, 2, axis="0"), "axis="),
        )
        with CommLog() as log:
            for error, call, message in calls:
                with pytest.raises(error, match=message):
                    call()
        assert log.count() == 0

    on_ranks(program)
