"""What the ranks of a mesh would read several times over they read once, together."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray.checkpoint import _files, _filling, _shared_reads
from distarray.errors import CheckpointError
from distarray.testing import simulate

BLOCK = 1 << 20


class Counting:
    """How many bytes of data files are read while it is a context."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.total = 0

    def __enter__(self) -> Counting:
        self.total, lock, read_at = 0, threading.Lock(), _files.read_at

        def counted(file: int, target: Any, offset: int) -> int:
            found = read_at(file, target, offset)
            with lock:
                self.total += found
            return found

        self._context = self._monkeypatch.context()
        self._context.__enter__().setattr(_files, "read_at", counted)
        return self

    def __exit__(self, *_: object) -> None:
        self._context.__exit__(None, None, None)


def saved(path: Path, value: np.ndarray, ranks: int, placement: da.Placement) -> None:
    simulate(
        ranks,
        lambda: da.checkpoint.save(path, {"x": da.distribute_array(value, None, [placement])}),
    )


def check(path: Path, value: np.ndarray, layout: da.Layout, **options: Any) -> None:
    found = da.checkpoint.load(path, {"x": layout}, **options)["x"]
    box = layout.local_box()
    if box is not None:
        expected = value[tuple(slice(*interval) for interval in box)]
        assert found.to_local().tobytes() == expected.tobytes()


WANTED = [
    ((4,), [da.Shard(1)], {}),
    ((3,), [da.Shard(1)], {}),
    ((4,), [da.Replicate()], {}),
    ((2, 2), [da.Shard(0), da.Shard(1)], {}),
    ((2, 2), [da.Shard(1), da.Shard(1)], {"shard_order": (1, 0)}),
    ((2, 2), [da.Replicate(), da.Shard(1)], {}),
    ((2,), [da.Shard(1)], {"boundaries": {1: (0, 0, 1000)}}),
    ((4,), [da.Shard(0)], {}),
]


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("slab", [1 << 40, 1 << 18])
@pytest.mark.parametrize(("mesh", "placements", "options"), WANTED, ids=str)
def test_every_byte_is_read_once(tmp_path, monkeypatch, mesh, placements, options, slab, verify):
    monkeypatch.setattr(_filling, "_SLAB_BYTES", slab)
    monkeypatch.setattr(_filling, "_SHARE_BYTES", slab)
    value = np.random.default_rng(0).standard_normal((2111, 1000))
    saved(tmp_path / "x", value, 3, da.Shard(0))

    def load() -> None:
        layout = da.Layout(da.init_device_mesh(mesh), placements, value.shape, **options)
        check(tmp_path / "x", value, layout, verify=verify)

    with Counting(monkeypatch) as counting:
        simulate(4, load)
    rounds = -(-value.nbytes // (4 * slab)) if slab < value.nbytes else 1
    assert value.nbytes <= counting.total
    if slab > value.nbytes:
        # Chunks and shares begin and end within blocks: one more for each.
        assert counting.total <= value.nbytes + (verify and 7 * BLOCK) + rounds
