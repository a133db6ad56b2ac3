"""Fourier transforms under real MPI: slabs, pencils, and lines that are cut."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

import distarray as da
from distarray import testing
from distarray.comm import CommLog, world
from distarray.fft import _plan
from distarray.layout import Shard
from distarray.ops.families import _windows
from distarray.redistribute import _execute, _messages

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.timeout(60)]


@pytest.mark.parametrize("n", [120, 127])
def test_lines_that_are_cut_give_numpys_results(monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    monkeypatch.setattr(_plan, "GATHERED_BYTES", 0)
    testing.reset()
    rng = np.random.default_rng(n)
    value = rng.normal(size=n) + 1j * rng.normal(size=n)
    mesh = da.DeviceMesh(list(range(world().size)))
    x = da.distribute_array(value, mesh, [Shard(0)], src=None)
    with CommLog() as log:
        result = da.fft.fft(x)
    assert log.count() == (3 if n == 120 else 2 * 5 + 1)
    assert result.layout is x.layout
    assert np.allclose(result.full_array(), np.fft.fft(value))
    assert np.allclose(da.fft.ifft(result).full_array(), value)
    assert np.allclose(da.fft.irfft(x).full_array(), np.fft.irfft(value))
    testing.reset()


@pytest.mark.parametrize("per_node", ["1", "2"])
def test_messages_in_rounds_may_lie_in_blocks(
    monkeypatch: pytest.MonkeyPatch, per_node: str
) -> None:
    from mpi4py import MPI

    monkeypatch.setenv("DISTARRAY_RANKS_PER_NODE", per_node)
    for module in (_execute, _windows):
        monkeypatch.setattr(module, "are_small", lambda *_: False)
    monkeypatch.setattr(_messages, "packed_at_a_time", lambda nbytes, ranks: nbytes // 7 + 1)
    monkeypatch.setattr(_messages, "goes_as_it_lies", lambda array: False)
    monkeypatch.setattr(_plan, "GATHERED_BYTES", 0)
    testing.reset()
    size, comm = world().size, MPI.COMM_WORLD.Dup()
    rng = np.random.default_rng(5)
    meshes = {(size,): 1} | ({(2, 2): 2} if size == 4 else {})
    for grid, cuts in meshes.items():
        mesh = da.DeviceMesh(np.arange(size).reshape(grid), comm=comm)
        for shape in ((12, 13, 14), (3, 24, 10), (720,), (509,)):
            value = rng.normal(size=shape) + 1j * rng.normal(size=shape)
            for axes in permutations(range(len(shape)), cuts):
                x = da.distribute_array(value, mesh, [Shard(axis) for axis in axes], src=None)
                assert np.allclose(da.fft.fftn(x).full_array(), np.fft.fftn(value))
                assert np.allclose(da.fft.irfftn(x).full_array(), np.fft.irfftn(value))
                found = da.fft.rfftn(da.real(x)).full_array()
                assert np.allclose(found, np.fft.rfftn(value.real))
    testing.reset()
    comm.Barrier()


def test_slabs_and_pencils_go_there_and_back() -> None:
    size = world().size
    value = np.random.default_rng(0).normal(size=(4 * size, 2 * size + 1, 8 * size))
    shapes = {(size,): [Shard(0)]} | ({(2, 2): [Shard(0), Shard(1)]} if size == 4 else {})
    for shape, placements in shapes.items():
        x = da.distribute_array(value, da.init_device_mesh(shape), placements, src=None)
        with CommLog() as log:
            result = da.fft.rfftn(x)
        assert log.count() == len(placements)
        assert np.allclose(result.full_array(), np.fft.rfftn(value))
        assert np.allclose(da.fft.irfftn(result, s=value.shape).full_array(), value)
