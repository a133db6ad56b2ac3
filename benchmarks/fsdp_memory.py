"""Bytes that a rank holds of a sharded model while it is trained, against the number of ranks.

Run by the driver as ``mpiexec -n RANKS python -m benchmarks.fsdp_memory``. Nothing is computed from
sizes: shards, gradients and the optimizer's state are the storages that their tensors have, and
the wholes and everything on its way are what the library's pool has handed out and not got back.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from benchmarks import record

if TYPE_CHECKING:
    import torch

KEPT = ("parameters", "gradients", "optimizer")
"""What a rank holds between steps."""
FORWARD, STEP, GROUP = "whole, in forward", "whole or on its way, in a step", "largest group, whole"
WIDTH, LAYERS = 512, 8
BATCH, LENGTH = 2, 32


def main() -> None:
    """Measure with parameters that are gathered twice, and that stay after forward."""
    options = record.options()
    comm = MPI.COMM_WORLD
    try:
        import torch
    except ImportError as missing:
        record.write(comm, options.out, "fsdp_memory", [], {"torch": str(missing)})
        return
    torch.set_num_threads(1)
    width, layers = (WIDTH // 2, 4) if options.quick else (WIDTH, LAYERS)
    rows = []
    for reshard in (True, False):
        held = _held(comm, width, layers, reshard)
        rows.append(
            {
                "ranks": comm.size,
                "case": "gathered twice" if reshard else "kept after forward",
                "size": f"{layers} layers of width {width}, AdamW, float32",
                "bytes": {name: max(comm.allgather(found)) for name, found in held.items()},
            }
        )
    record.write(comm, options.out, "fsdp_memory", rows, {})


def _held(comm: MPI.Comm, width: int, layers: int, reshard: bool) -> dict[str, int]:
    """Return the most that this rank holds, in bytes, once everything is under way."""
    import torch

    from benchmarks import sharded

    plain = sharded.chain(width, layers)
    group = max(_storages(block.parameters()) for block in plain)
    contender = sharded.ByDistarray(plain, comm, reshard)
    del plain
    model = contender.model
    optimizer = torch.optim.AdamW(contender.shards, lr=1e-6)
    x = torch.randn(BATCH, LENGTH, width, requires_grad=True)
    found = {}
    for _ in range(3):  # the first pass does not know what comes next
        optimizer.zero_grad(set_to_none=False)  # gradients that stay are not on their way
        x.grad = None
        with _Peak() as step:
            with _Peak() as forward:
                y = model(x)
            y.sum().backward()
        del y
        optimizer.step()
    gradients = _storages(p.grad for p in contender.shards)
    states = (v for state in optimizer.state.values() for v in state.values())
    found["parameters"] = _storages(contender.shards)
    found["gradients"] = gradients
    found["optimizer"] = _storages(v for v in states if isinstance(v, torch.Tensor))
    found[FORWARD] = forward.nbytes
    found[STEP] = step.nbytes
    found[GROUP] = group
    return found


class _Peak:
    """The most that the pool hands out inside, beyond what it had handed out before."""

    nbytes = 0

    def __enter__(self) -> _Peak:
        from distarray.comm.shared_memory import _arena

        gc.collect()
        self._arena = _arena.arena()
        self._before = self._arena.stats()
        self._arena._peak = self._before.in_use
        return self

    def __exit__(self, *_: Any) -> None:
        peak = self._arena.stats().peak
        self.nbytes = peak - self._before.in_use
        self._arena._peak = max(peak, self._before.peak)


def _storages(tensors: Iterable[torch.Tensor | None]) -> int:
    """Return the bytes of the memory behind tensors, each stretch of it once."""
    found: dict[int, int] = {}
    for tensor in tensors:
        if tensor is not None:
            storage = tensor.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())


if __name__ == "__main__":
    main()
