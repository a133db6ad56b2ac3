"""One rank to all and all to one: each item travels once, copies are made further on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import distarray as da
from distarray.layout import box as boxes
from distarray.redistribute import _root, gather_to, scatter_from
from distarray.testing import simulate

S, R = da.Shard, da.Replicate()


RANKS = pytest.mark.parametrize("ranks", [None, [5, 1, 0, 3, 2, 4]])
PLACEMENTS = pytest.mark.parametrize(
    "placements",
    [(S(0), S(0)), (S(0), S(1)), (S(0), R), (R, S(1)), (R, R), (S(1), S(1))],
)


@RANKS
@PLACEMENTS
def test_every_rank_gets_its_block_of_what_one_has(placements: Any, ranks: Any) -> None:
    value = np.arange(35.0).reshape(7, 5)

    def program(root: int) -> dict[str, int]:
        mesh = da.DeviceMesh(np.reshape(ranks or range(6), (2, 3)).tolist())
        layout = da.Layout(mesh, placements, value.shape)
        out = np.empty(layout.local_shape())
        read = None
        if mesh.rank == root:
            read = lambda box: value[boxes.slices(box)]  # noqa: E731
        with da.CommLog() as log:
            scatter_from(root, out, layout, read)
        assert np.array_equal(out, value[boxes.slices(layout.local_box())])
        return {kind: log.count(kind) for kind in ("scatter", "broadcast")}

    for root in (0, 4):
        counts = simulate(6, program, root)
        scattered = sum(count["scatter"] for count in counts)
        row = 6 // np.prod([n for n, p in zip((2, 3), placements, strict=True) if p is R])
        assert scattered == (row if any(p is not R for p in placements) else 0)
        copies = any(p is R for p in placements)
        assert [count["broadcast"] for count in counts] == [int(copies)] * 6


@RANKS
@PLACEMENTS
def test_one_rank_gets_what_all_have(placements: Any, ranks: Any) -> None:
    value = np.arange(35.0).reshape(7, 5)

    def program(root: int) -> int:
        mesh = da.DeviceMesh(np.reshape(ranks or range(6), (2, 3)).tolist())
        layout = da.Layout(mesh, placements, value.shape)
        block = np.asfortranarray(value[boxes.slices(layout.local_box())])
        with da.CommLog() as log:
            whole = gather_to(root, block, layout)
        if mesh.rank == root:
            assert whole is not None
            assert np.array_equal(whole, value)
            assert not np.may_share_memory(whole, block)
        else:
            assert whole is None
        return log.count("gather")

    row = 6 // np.prod([n for n, p in zip((2, 3), placements, strict=True) if p is R])
    for root in (0, 4):
        gathered = sum(simulate(6, program, root))
        assert gathered == (row if any(p is not R for p in placements) else 0)


def test_rows_that_lie_one_after_another_are_not_packed(monkeypatch: Any) -> None:
    value = np.arange(8.0).reshape(4, 2)

    def program() -> None:
        mesh = da.init_device_mesh((2,))
        layout = da.Layout(mesh, [S(0)], value.shape)
        asked = []

        def read(box: Any) -> Any:
            asked.append(box)
            return value[boxes.slices(box)]

        out = np.empty(layout.local_shape())
        scatter_from(0, out, layout, read if mesh.rank == 0 else None)
        assert np.array_equal(out, value[boxes.slices(layout.local_box())])
        assert asked == ([((0, 4), (0, 2))] if mesh.rank == 0 else [])

    simulate(2, program)


@pytest.mark.parametrize("placements", [(S(1), R), (R, S(1)), (R, R)])
def test_replicas_are_packed_and_sent_once(placements: Any, monkeypatch: Any) -> None:
    value = np.arange(48.0).reshape(8, 6)
    packed, empty = [], _root._memory.empty
    monkeypatch.setattr(
        _root._memory, "empty", lambda *args: (packed.append(args[0]), empty(*args))[1]
    )

    def program() -> int:
        mesh = da.init_device_mesh((2, 3))
        layout = da.Layout(mesh, placements, value.shape)
        out = np.empty(layout.local_shape())
        read = (lambda box: value[boxes.slices(box)]) if mesh.rank == 0 else None
        with da.CommLog() as log:
            scatter_from(0, out, layout, read)
        assert np.array_equal(out, value[boxes.slices(layout.local_box())])
        assert log.bytes() <= out.nbytes  # what it has not, once
        return log.bytes()

    received = simulate(6, program)
    count = np.prod([n for n, p in zip((2, 3), placements, strict=True) if p is not R])
    assert packed == ([(value.size,)] if count > 1 else [])  # one copy, however many have it
    assert sum(received) == 6 * value.nbytes // count - value.nbytes // count
