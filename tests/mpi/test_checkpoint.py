"""Checkpoints under real MPI: files of several processes, and saves in the background."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import distarray as da
from distarray.checkpoint.storage import _files
from distarray.comm import world

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(60)]

VALUE = np.random.default_rng(0).standard_normal((97, 31))


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory of all ranks."""
    everyone = world()
    made = tempfile.mkdtemp() if everyone.rank == 0 else None
    path = Path(everyone.broadcast_object(made))
    yield path
    everyone.barrier()
    if everyone.rank == 0:
        shutil.rmtree(path)


@pytest.mark.parametrize("async_op", [False, True])
def test_layouts_change_between_save_and_load(folder, async_op):
    rows = da.distribute_array(VALUE)
    state = {
        "rows": rows,
        "columns": da.distribute_array(VALUE, placements=[da.Shard(1)]),
        "everywhere": da.distribute_array(VALUE, placements=[da.Replicate()]),
        "total": da.sum(rows, axis=0),
        "plain": VALUE,
        "own": da.checkpoint.PerRank(world().rank),
    }
    handle = da.checkpoint.save(folder / "x", state, async_op=async_op)
    if handle is not None:
        rows *= 2  # the copy has been made
        assert float(da.sum(da.ones((1000,)))) == 1000
        handle.wait()
    mesh = da.default_mesh()
    wanted = {
        "rows": da.Layout(mesh, [da.Shard(1)], VALUE.shape),
        "columns": da.zeros(VALUE.shape),
        "everywhere": da.checkpoint.Placing(mesh, [da.Shard(1)]),
        "total": None,
        "plain": np.empty_like(VALUE),
        "own": None,
    }
    found = da.checkpoint.load(folder / "x", wanted)
    for name in ("rows", "columns", "everywhere"):
        assert (found[name].full_array() == VALUE).all()
    np.testing.assert_allclose(found["total"].full_array(), VALUE.sum(0))
    assert (found["plain"] == VALUE).all()
    assert found["own"] == world().rank
    assert len(list((folder / "x").glob("data-*"))) == world().size


def test_steps_in_the_background_while_the_foreground_communicates(folder):
    x = da.distribute_array(VALUE)
    for step in range(5):
        da.checkpoint.save(
            folder / "run", {"x": x, "step": step}, step=step, keep_last=2, async_op=True
        )
        x = x + 1.0
        da.sum(x).full_array()
        x.redistribute([da.Shard(1)], async_op=True).wait()
    da.checkpoint.save(folder / "run", {"x": x, "step": 5}, step=5, keep_last=2)
    assert da.checkpoint.steps(folder / "run") == [4, 5]
    found = da.checkpoint.load(folder / "run", {"x": None}, step=4)["x"]
    np.testing.assert_allclose(found.full_array(), VALUE + 4)


def test_one_rank_fails_and_all_raise(folder, monkeypatch):
    last = world().size - 1
    da.checkpoint.save(folder / "x", {"x": da.full((50,), 1.0)})

    def hook(operation: str, where: str) -> None:
        if operation == "sync" and world().rank == last:
            raise OSError(28, "No space left on device", where)

    monkeypatch.setattr(_files, "hook", hook)
    with pytest.raises(da.errors.CheckpointError, match="No space left"):
        da.checkpoint.save(folder / "x", {"x": da.full((50,), 2.0)})
    handle = da.checkpoint.save(folder / "x", {"x": da.full((50,), 2.0)}, async_op=True)
    with pytest.raises(da.errors.CheckpointError, match="No space left"):
        handle.wait()
    monkeypatch.setattr(_files, "hook", None)
    found = da.checkpoint.load(folder / "x")["x"]
    assert (found.full_array() == 1).all()
    world().barrier()
    assert [p.name for p in folder.iterdir()] == ["x"]


def test_damage_that_one_rank_meets_is_raised_by_all(folder):
    da.checkpoint.save(folder / "x", {"x": da.distribute_array(VALUE)})
    if world().rank == 0:
        file = sorted((folder / "x").glob("data-*"))[-1]
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
    world().barrier()
    with pytest.raises(da.errors.CheckpointError, match="is damaged: bytes"):
        da.checkpoint.load(folder / "x")
    if world().size > 1:
        with pytest.raises(da.errors.MismatchError, match="differ between ranks"):
            da.checkpoint.save(folder / "y", {"v": world().rank})
    with pytest.raises(da.errors.CheckpointError, match="no checkpoint"):
        da.checkpoint.load(folder / "nothing")


def test_modules_and_optimizers(folder):
    torch = pytest.importorskip("torch")
    import distarray.torch as dt

    mesh = da.default_mesh()
    plan = {"0": dt.ColwiseParallel(), "2": dt.RowwiseParallel()}

    def build() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(1)
        model = torch.nn.Sequential(
            torch.nn.Linear(6, 10), torch.nn.ReLU(), torch.nn.Linear(10, 6)
        ).double()
        dt.parallelize_module(model, mesh, plan)
        return model, torch.optim.AdamW(model.parameters())

    def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> float:
        torch.manual_seed(2)
        loss = model(torch.randn(4, 6, dtype=torch.float64)).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    model, optimizer = build()
    for _ in range(3):
        step(model, optimizer)
    da.checkpoint.save(folder / "x", {"model": model, "optimizer": optimizer})
    expected = [step(model, optimizer) for _ in range(3)]
    model, optimizer = build()
    da.checkpoint.load(folder / "x", {"model": model, "optimizer": optimizer})
    assert [step(model, optimizer) for _ in range(3)] == expected
