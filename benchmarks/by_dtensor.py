"""torch's DTensor, on gloo: its transport for CPUs in a torch from the package index."""

from __future__ import annotations

import logging
import os
import tempfile

import numpy as np
from mpi4py import MPI

from benchmarks.cases import Move
from benchmarks.measure import Work

NAME = "DTensor (gloo)"


def start() -> str | None:
    """Get ready; say why not, if not."""
    try:
        import torch
        from torch import distributed
        from torch.distributed import tensor  # noqa: F401 - is it there
    except ImportError as missing:
        return str(missing)
    logging.getLogger("torch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    comm = MPI.COMM_WORLD
    folder = comm.bcast(tempfile.mkdtemp() if comm.rank == 0 else None)
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{os.path.join(folder, 'store')}",
        rank=comm.rank,
        world_size=comm.size,
    )
    return None


def _placements(names: tuple[str, ...]) -> list:
    from torch.distributed.tensor import Partial, Replicate, Shard

    table = {"S0": Shard(0), "S1": Shard(1), "R": Replicate(), "P": Partial()}
    return [table[name] for name in names]


def _tensor(block: np.ndarray, shape: tuple[int, ...], placements: tuple[str, ...]):
    import torch
    from torch.distributed.tensor import DTensor, init_device_mesh

    mesh = init_device_mesh("cpu", shape)
    return DTensor.from_local(torch.from_numpy(block), mesh, _placements(placements))


def move(case: Move, block: np.ndarray) -> Work | None:
    """Redistribute."""
    x = _tensor(block, case.mesh, case.source)
    target = _placements(case.target)
    return lambda: x.redistribute(placements=target)


def local(result) -> np.ndarray:
    """Take the block out of a result."""
    return result.to_local().numpy()


def operation(name: str, x: np.ndarray, y: np.ndarray, r: np.ndarray) -> Work | None:
    """Perform one operation on arrays that are split over their rows; `r` is on every rank."""
    shape = (MPI.COMM_WORLD.size,)
    dx, dy, dr = _tensor(x, shape, ("S0",)), _tensor(y, shape, ("S0",)), _tensor(r, shape, ("R",))
    rows, columns, everywhere = (_placements((name,)) for name in ("S0", "S1", "R"))
    works: dict[str, Work] = {
        "x + y": lambda: dx + dy,
        "x * 2 + y": lambda: dx * 2 + dy,
        "x.T": lambda: dx.T,
        "x[:, 3]": lambda: dx[:, 3],
        "x @ R": lambda: dx @ dr,
        "float(x.sum())": lambda: float(dx.sum().full_tensor()),
        "S0 -> S1": lambda: dx.redistribute(placements=columns),
        "x.std()": lambda: float(dx.std(correction=0).full_tensor()),
        "x.mean(0)": lambda: dx.mean(0).redistribute(placements=everywhere),
        "sqrt(x) * y + 1": lambda: dx.sqrt() * dy + 1,
        "((x - 0.5) ** 2).sum()": lambda: float(((dx - 0.5) ** 2).sum().full_tensor()),
        "S0 @ R": lambda: dx @ dr,
        "S0 @ S0": lambda: (dx @ dy).redistribute(placements=rows),
    }
    return works.get(name)


def selection(name: str, x: np.ndarray, y: np.ndarray) -> Work | None:  # noqa: ARG001
    """Select nothing: DTensor has no operation here that gives blocks of lengths of their own."""
    return None


def stop() -> None:
    """Leave torch's process group."""
    from torch import distributed

    distributed.destroy_process_group()
