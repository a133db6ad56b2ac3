"""What blocks fetch of their neighbours, and functions of lines, on ranks of MPI.

Run under mpiexec with `--with-mpi`, also with ``DISTARRAY_RANKS_PER_NODE=1``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import distarray as da
from distarray import Shard
from distarray.comm import world
from distarray.comm.shared_memory import _channel
from distarray.errors import CommunicationError

pytestmark = pytest.mark.mpi(min_size=2)


def same(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("length", [1, 3, 40, 100_003])
def test_blocks_fetch_what_lies_beyond_their_ends(length: int) -> None:
    value = np.sin(np.arange(length) * 0.7)
    x = da.asarray(value)
    if length > 2:
        same(da.gradient(x, edge_order=2), np.gradient(value, edge_order=2))
        windows = np.lib.stride_tricks.sliding_window_view
        for width in (3, min(length, 40)):
            same(windows(x, width).max(axis=-1), windows(value, width).max(axis=-1))
        width = length // 2 + 1
        same(windows(x, width)[::999, 1], windows(value, width)[::999, 1])
    for mode in ("full", "same", "valid"):
        same(da.convolve(x, value[:30], mode), np.convolve(value, value[:30], mode))
    for mode in ("reflect", "symmetric", "wrap", "mean"):
        same(da.pad(x, (5, 70), mode=mode), np.pad(value, (5, 70), mode=mode))


@pytest.mark.host_only
def test_private_blocks_are_lent_from_where_they_are_surrounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    staged, stage = [], _channel._stage
    monkeypatch.setattr(_channel, "_stage", lambda b: (staged.append(b.nbytes), stage(b))[1])
    comm = world()
    rows = [300 + 7 * rank for rank in range(comm.size)]  # of 90 float64, which the pool would give
    value = np.random.default_rng(2).random((sum(rows), 90))
    start = sum(rows[: comm.rank])
    own = value[start : start + rows[comm.rank]].copy()
    mesh = da.init_device_mesh((comm.size,))
    x = da.DistArray.from_local(own, mesh, [Shard(0)])
    padded = np.pad(value, 1, mode="wrap")
    for _ in range(2):
        u = da.halo(x, 1, "periodic")
        np.testing.assert_array_equal(u.block, padded[start : start + len(own) + 2])
    assert not staged


def _shifted(block: np.ndarray) -> np.ndarray:
    """Return how the item two columns before, one row above, differs from each."""
    result = np.zeros_like(block)
    result[1:, 2:] = block[:-1, :-2]
    return result - block


@pytest.mark.parametrize("shape", [(9, 5), (3, 2), (700, 90)])
def test_halos_are_blocks_of_the_padded_array(shape: tuple[int, int]) -> None:
    value = np.random.default_rng(1).random(shape)
    columns = 2 - world().size % 2
    mesh = da.init_device_mesh((columns, world().size // columns))
    x = da.distribute_array(value, mesh, [Shard(1), Shard(0)])
    (top, bottom), (left, right) = x.layout.local_box()
    before, after = (1, 2), (2, 1)
    keys = slice(top, bottom + 3), slice(left, right + 3)
    for boundary in ("periodic", "reflect", "symmetric", "edge", "constant"):
        mode: Any = "wrap" if boundary == "periodic" else boundary
        u = da.halo(x, (before, after), boundary)
        np.testing.assert_array_equal(u.block, np.pad(value, (before, after), mode)[keys])
        u.block[u.interior] += 1
        done = u.update(async_op=True).wait()
        np.testing.assert_array_equal(done.block, np.pad(value + 1, (before, after), mode)[keys])
        u.update(x)
        np.testing.assert_array_equal(u.block, np.pad(value, (before, after), mode)[keys])
        for interior_first in (False, True):
            how: Any = {"width": (before, after), "boundary": boundary}
            y = da.map_overlap(_shifted, x, **how, interior_first=interior_first)
            wide = np.pad(value, (before, after), mode)
            same(y, wide[:-3, :-3] - value)


def test_lines_and_diagonals() -> None:
    value = np.arange(35.0).reshape(5, 7)
    x = da.asarray(value)
    same(da.apply_along_axis(np.cumsum, 0, x), value.cumsum(0))
    same(da.diagonal(x, 1), np.diagonal(value, 1))
    same(da.packbits(x.astype(int) % 3, axis=0), np.packbits(value.astype(int) % 3, axis=0))
    cut = x.redistribute([Shard(1)])
    same(
        da.gradient(cut, np.arange(7.0) ** 2, axis=1),
        np.gradient(value, np.arange(7.0) ** 2, axis=1),
    )


def test_an_error_on_one_rank_is_raised_on_all() -> None:
    def refuse(line: Any) -> Any:
        if line[0] == 0:
            raise KeyError("zero")
        return line

    x = da.arange(float(4 * world().size)).reshape(-1, 4)
    with pytest.raises((KeyError, CommunicationError), match="zero"):
        da.apply_along_axis(refuse, 1, x)
    same(da.sum(x), x.size * (x.size - 1) / 2)  # in step again
