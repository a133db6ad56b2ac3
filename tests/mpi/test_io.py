""".npy files, stored arrays, and arrays on one rank under real MPI."""

from __future__ import annotations

import io
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest

import distarray as da
from distarray.comm import world
from distarray.errors import ArgumentError, FileError
from distarray.layout import Partial, Replicate, Shard

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(60)]


@pytest.fixture
def folder():
    """A directory that all ranks see."""
    path = world().broadcast_object(tempfile.mkdtemp() if world().rank == 0 else None)
    yield Path(path)
    world().barrier()
    if world().rank == 0:
        shutil.rmtree(path)


@pytest.mark.parametrize("placement", [Shard(0), Shard(1), Replicate(), Partial()])
def test_files_and_one_rank_have_numpys_values(folder, placement) -> None:
    size = world().size
    values = np.random.default_rng(0).integers(-9, 9, (37, 5 * size + 1)).astype("f8")
    if placement is Partial():
        values[...] = 0
        x = da.DistArray.from_local(values + world().rank, None, [Partial()])
        values += sum(range(size))
    else:
        x = da.distribute_array(values, None, [placement], src=None)
    da.save(folder / "x.npy", x)
    assert (np.load(folder / "x.npy") == values).all()
    for target in (Shard(0), Shard(1), Replicate()):
        y = da.load(folder / "x.npy", placements=[target])
        assert y.placements == (target,)
        assert (y.full_array() == values).all()
    whole = x.full_array(dst=size - 1)
    assert (whole is None) == (world().rank != size - 1)
    if whole is not None:
        assert (whole == values).all()


def test_a_memory_map_takes_the_blocks_of_all_ranks(folder) -> None:
    values = np.random.default_rng(0).random((11, 3))
    if world().rank == 0:
        np.save(folder / "x.npy", np.zeros_like(values))
    world().barrier()
    x = da.distribute_array(values, None, [Shard(0)], src=None)
    target = np.load(folder / "x.npy", mmap_mode="r+")
    if world().ranks_per_node is not None:
        with pytest.raises(ArgumentError, match="several nodes"):
            da.store(x, target)
        target = target if world().rank == 0 else None
    da.store(x, target)
    world().barrier()
    assert (np.load(folder / "x.npy") == values).all()


def test_chunks_of_zarr_are_written_by_all_ranks(folder) -> None:
    zarr = pytest.importorskip("zarr")
    values = np.random.default_rng(0).random((53, 6))
    if world().rank == 0:
        zarr.create_array(folder / "x", shape=values.shape, dtype="f8", chunks=(4, 6))
    world().barrier()
    x = da.distribute_array(values, None, [Shard(0)], src=None)
    da.store(x, zarr.open_array(folder / "x", mode="r+"))
    y = da.asarray(zarr.open_array(folder / "x", mode="r"), placements=[Shard(1)])
    assert (y.full_array() == values).all()


def test_a_file_that_is_missing_is_told_alike_and_ranks_go_on(folder) -> None:
    with pytest.raises(FileError, match="No such file"):
        da.load(folder / "missing.npy")
    assert int(da.ones(7).sum()) == 7


def test_print0_prints_on_rank_0() -> None:
    out = io.StringIO()
    da.print0(da.arange(3), file=out)
    assert out.getvalue() == ("[0 1 2]\n" if world().rank == 0 else "")
