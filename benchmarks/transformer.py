"""Forward and backward of a transformer block whose weights are cut over the ranks.

Run by the driver as ``mpiexec -n RANKS python -m benchmarks.transformer``. The baseline does the
same work and communicates nothing; its results are wrong, and it cannot be beaten.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mpi4py import MPI

from benchmarks import by_distarray, by_dtensor, by_hand, measure, record

if TYPE_CHECKING:
    import torch
    from torch import nn

BASELINE = "without communication"
BATCH = 4
SIZES = ((1024, 512), (512, 256))
"""Width and length of the sequence."""


def main() -> None:
    """Measure both sizes."""
    options = record.options()
    comm = MPI.COMM_WORLD
    absent: dict[str, str] = {}
    left_out = options.without.split(",")
    try:
        import torch
    except ImportError as missing:
        record.write(comm, options.out, "transformer", [], {"torch": str(missing)})
        return
    torch.set_num_threads(1)
    dtensor = False
    if comm.size > 1:
        reasons = comm.allgather("left out" if "dtensor" in left_out else by_dtensor.start())
        dtensor = not any(reasons)
        if not dtensor:
            absent[by_dtensor.NAME] = next(filter(None, reasons))
    rows = []
    for width, length in SIZES:
        if options.quick:
            width, length = width // 4, length // 8
        for sequence in (False, True):
            rows.append(_measure(comm, width, length, sequence, dtensor, options.quick))
            record.say(comm, rows[-1])
    record.write(comm, options.out, "transformer", rows, absent)
    comm.Barrier()
    if dtensor:
        by_dtensor.stop()


def _measure(
    comm: MPI.Comm, width: int, length: int, sequence: bool, dtensor: bool, quick: bool
) -> dict:
    import torch

    from benchmarks import block as ways
    from benchmarks import block_by_hand as hand

    values = torch.Generator().manual_seed(1)
    torch.manual_seed(0)
    block = ways.Block(width)
    whole = torch.randn(2, BATCH, length, width, generator=values)
    expected = _outcome(block, whole[0], whole[1])
    # Between layers every rank has all of the sequence, or its share.
    x, gradient = whole.chunk(comm.size, 2)[comm.rank] if sequence else whole
    baseline = hand.by_hand(block, comm, whole.shape[1:], sequence, silent=True)
    others: dict[str, nn.Module] = {
        by_distarray.NAME: ways.by_distarray(block, comm, sequence),
        by_hand.NAME: hand.by_hand(block, comm, whole.shape[1:], sequence),
    }
    if dtensor:
        others[by_dtensor.NAME] = ways.by_dtensor(block, comm, sequence)
    for name, contender in others.items():
        _check(name, _outcome(contender, x, gradient), expected, comm)
    del expected
    gc.collect()
    x = x.clone().requires_grad_()
    gradient = gradient.clone()
    works = {
        name: lambda contender=contender: _step(contender, x, gradient)
        for name, contender in {BASELINE: baseline, **others}.items()
    }
    samples = measure.in_turn(comm, works, repeats=3 if quick else 41, seconds=60)
    return {
        "ranks": comm.size,
        "case": "tensor and sequence parallel" if sequence else "tensor parallel",
        "size": f"width {width}, sequence {length}, batch {BATCH}, float32",
        "seconds": {name: measure.summary(values) for name, values in samples.items()},
        "ratios": measure.ratios(samples, BASELINE),
    }


def _step(module: nn.Module, x: torch.Tensor, gradient: torch.Tensor) -> None:
    """Run forward and backward, and drop the gradients."""
    module(x).backward(gradient)
    x.grad = None
    for parameter in module.parameters():
        parameter.grad = None


def _outcome(module: nn.Module, x: torch.Tensor, gradient: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return output and all gradients."""
    x = x.clone().requires_grad_()
    y = module(x)
    y.backward(gradient)
    found = {"output": y.detach().clone(), "input": x.grad}
    for name, parameter in module.named_parameters():
        found[name] = _plain(parameter.grad)
        parameter.grad = None
    return found


def _plain(gradient: torch.Tensor) -> torch.Tensor:
    """Return the block of a DTensor, with partial sums added up."""
    if hasattr(gradient, "to_local"):
        sharded = any(placement.is_shard() for placement in gradient.placements)
        return gradient.to_local() if sharded else gradient.full_tensor()
    return gradient


def _check(
    who: str,
    found: Mapping[str, torch.Tensor],
    expected: Mapping[str, torch.Tensor],
    comm: MPI.Comm,
) -> None:
    """Raise where a result is not this rank's part of the single process's."""
    from benchmarks import block as ways

    for name, value in expected.items():
        part = value
        if name not in ("output", "input"):
            part = ways.share(value, name, comm)
        elif found[name].shape != value.shape:
            part = value.chunk(comm.size, 1)[comm.rank]
        error = float((found[name] - part).abs().max() / part.abs().max())
        if not error < 1e-4:
            raise ValueError(f"{who}: {name} is off by {error:.1e} of its largest value")


if __name__ == "__main__":
    main()
