"""Saves and loads of large arrays, beside the same bytes written and read by hand.

Run by the driver as ``mpiexec -n RANKS python -m benchmarks.checkpoint``. The files are where
Python's ``tempfile`` puts them: ``TMPDIR`` chooses another disk. The baseline writes or reads the
bytes of each rank and nothing else; every save replaces the one before and waits for the device.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import distarray as da
from benchmarks import by_dtensor, measure, record

BASELINE = "the bytes alone"
OURS = "distarray"
UNCHECKED = "distarray, verify=False"
BY_HAND = "by hand, a .npy a rank"
TORCH = "torch.distributed.checkpoint (gloo)"
NBYTES = 1 << 30
ARRAYS = 4
_AT_ONCE = 8 << 20


def main() -> None:
    """Measure saves, loads, and loads of columns of what was saved by rows."""
    options = record.options()
    comm = MPI.COMM_WORLD
    nbytes = NBYTES // 256 if options.quick else NBYTES
    absent: dict[str, str] = {}
    reasons = comm.allgather(
        "left out" if "dtensor" in options.without.split(",") else by_dtensor.start()
    )
    if any(reasons):
        absent[TORCH] = next(filter(None, reasons))
    folder = Path(comm.bcast(tempfile.mkdtemp() if comm.rank == 0 else None))
    try:
        rows = measured(comm, folder, nbytes, not absent, 3 if options.quick else 9)
    finally:
        comm.Barrier()
        if comm.rank == 0:
            shutil.rmtree(folder)
    record.write(comm, options.out, "checkpoint", rows, absent)
    comm.Barrier()
    if not absent:
        by_dtensor.stop()


def measured(comm: MPI.Comm, folder: Path, nbytes: int, peer: bool, repeats: int) -> list[dict]:
    """Time all contenders, which write to and read from a folder of their own each."""
    shape = (nbytes // ARRAYS // 8 // 1024, 1024)
    rng = np.random.default_rng(comm.rank)
    rows = shape[0] // comm.size
    blocks = [rng.standard_normal((rows, shape[1])) for _ in range(ARRAYS)]
    saves = {
        BASELINE: lambda: _write_bytes(folder / f"bytes-{comm.rank}", blocks),
        OURS: _saving(folder / "distarray", blocks),
        BY_HAND: lambda: _write_arrays(folder, comm.rank, blocks),
    }
    into = [np.empty_like(block) for block in blocks]
    target = {str(i): da.zeros(shape) for i in range(ARRAYS)}
    loads = {
        BASELINE: lambda: _read_bytes(folder / f"bytes-{comm.rank}", into),
        OURS: lambda: da.checkpoint.load(folder / "distarray", target),
        UNCHECKED: lambda: da.checkpoint.load(folder / "distarray", target, verify=False),
        BY_HAND: lambda: [np.load(folder / f"{i}-{comm.rank}.npy") for i in range(ARRAYS)],
    }
    columns = {str(i): da.zeros(shape, placements=[da.Shard(1)]) for i in range(ARRAYS)}
    reshards = {
        OURS: lambda: da.checkpoint.load(folder / "distarray", columns),
        UNCHECKED: lambda: da.checkpoint.load(folder / "distarray", columns, verify=False),
        BY_HAND: lambda: _read_columns(folder, comm),
    }
    if peer:
        from torch.distributed.tensor import Shard

        place = folder / "torch"
        saves[TORCH] = _torch_saving(place, blocks, comm)
        loads[TORCH] = _torch_loading(place, shape, comm, Shard(0))
        reshards[TORCH] = _torch_loading(place, shape, comm, Shard(1))
    size = f"{nbytes >> 20} MiB in {ARRAYS} arrays"
    works: dict[str, dict[str, Any]] = {"save": saves, "load": loads}
    if comm.size > 1:
        works["load columns of rows"] = {BASELINE: loads[BASELINE], **reshards}
    found = []
    for case, contenders in works.items():
        samples = measure.in_turn(comm, contenders, repeats=repeats, seconds=120)
        if case == "save":
            _check(folder, blocks, comm)
        found.append(
            {
                "ranks": comm.size,
                "case": case,
                "size": size,
                "seconds": {name: measure.summary(one) for name, one in samples.items()},
                "ratios": measure.ratios(samples, BASELINE),
            }
        )
        record.say(comm, found[-1])
    return found


def _saving(path: Path, blocks: list[np.ndarray]) -> measure.Work:
    mesh = da.default_mesh()
    state = {
        str(i): da.DistArray.from_local(block, mesh, [da.Shard(0)])
        for i, block in enumerate(blocks)
    }
    return lambda: da.checkpoint.save(path, state)


def _check(folder: Path, blocks: list[np.ndarray], comm: MPI.Comm) -> None:
    """Raise where columns of rows are not what was saved."""
    shape = (blocks[0].shape[0] * comm.size, blocks[0].shape[1])
    layout = da.Layout(da.default_mesh(), [da.Shard(1)], shape)
    wanted = dict.fromkeys(map(str, range(ARRAYS)), layout)
    found = da.checkpoint.load(folder / "distarray", wanted)
    by_hand = _read_columns(folder, comm)
    for i, columns in enumerate(by_hand):
        if not np.array_equal(found[str(i)].to_local(), columns):
            raise ValueError(f"{OURS} and {BY_HAND} read different columns of array {i}")
        rows = found[str(i)].redistribute([da.Shard(0)]).to_local()
        if not np.array_equal(rows, blocks[i]):
            raise ValueError(f"{OURS} read other values than were saved of array {i}")


# --- by hand -------------------------------------------------------------------------------------


def _replace(path: Path, write: Callable[[Any], None]) -> None:
    """Write a new file, wait for the device, and give it its name."""
    new = path.with_suffix(".new")
    with open(new, "wb", buffering=0) as file:
        write(file)
        os.fsync(file.fileno())
    os.replace(new, path)


def _write_bytes(path: Path, blocks: list[np.ndarray]) -> None:
    def write(file: Any) -> None:
        for block in blocks:
            data = memoryview(block).cast("B")
            for start in range(0, len(data), _AT_ONCE):
                file.write(data[start : start + _AT_ONCE])

    _replace(path, write)


def _write_arrays(folder: Path, rank: int, blocks: list[np.ndarray]) -> None:
    for i, block in enumerate(blocks):
        _replace(folder / f"{i}-{rank}.npy", lambda file, block=block: np.save(file, block))


def _read_bytes(path: Path, into: list[np.ndarray]) -> None:
    with open(path, "rb", buffering=0) as file:
        for block in into:
            data = memoryview(block).cast("B")
            for start in range(0, len(data), _AT_ONCE):
                file.readinto(data[start : start + _AT_ONCE])


def _read_columns(folder: Path, comm: MPI.Comm) -> list[np.ndarray]:
    """Read this rank's columns of all ranks' files, mapped into memory."""
    found = []
    for i in range(ARRAYS):
        parts = [np.load(folder / f"{i}-{r}.npy", mmap_mode="r") for r in range(comm.size)]
        width = parts[0].shape[1] // comm.size
        own = slice(comm.rank * width, (comm.rank + 1) * width)
        found.append(np.concatenate([part[:, own] for part in parts]))
    return found


# --- torch ---------------------------------------------------------------------------------------


def _torch_saving(path: Path, blocks: list[np.ndarray], comm: MPI.Comm) -> measure.Work:
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.tensor import DTensor, Shard, init_device_mesh

    mesh = init_device_mesh("cpu", (comm.size,))
    state = {
        str(i): DTensor.from_local(torch.from_numpy(block), mesh, [Shard(0)])
        for i, block in enumerate(blocks)
    }
    return lambda: dcp.save(state, checkpoint_id=path)


def _torch_loading(path: Path, shape: tuple[int, int], comm: MPI.Comm, how: Any) -> measure.Work:
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.tensor import DTensor, init_device_mesh

    mesh = init_device_mesh("cpu", (comm.size,))
    local = list(shape)
    local[how.dim] //= comm.size
    state = {
        str(i): DTensor.from_local(torch.empty(local, dtype=torch.float64), mesh, [how])
        for i in range(ARRAYS)
    }
    return lambda: dcp.load(state, checkpoint_id=path)


if __name__ == "__main__":
    main()
