"""A training step of transformer blocks whose parameters are sharded over the ranks.

Run by the driver as ``mpiexec -n RANKS python -m benchmarks.fsdp``. The baseline does the same work
on each rank's input and communicates nothing; its results are wrong, and it cannot be beaten.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from benchmarks import by_distarray, by_dtensor, by_hand, measure, record

if TYPE_CHECKING:
    import torch

BASELINE = "without communication"
TORCH = "torch's FSDP2 (gloo)"
COLLECTIVES = "distarray's collectives alone"
SIZES = ((512, 4, 256), (1024, 4, 256), (512, 8, 64))
"""Width, layers, and length of the sequence."""
BATCH = 2
WAITING = (12 << 20, 4)
"""Elements of a layer that waits, and layers."""


def main() -> None:
    """Measure all sizes."""
    options = record.options()
    comm = MPI.COMM_WORLD
    absent: dict[str, str] = {}
    left_out = options.without.split(",")
    try:
        import torch
    except ImportError as missing:
        record.write(comm, options.out, "fsdp", [], {"torch": str(missing)})
        return
    torch.set_num_threads(1)
    reasons = comm.allgather("left out" if "dtensor" in left_out else by_dtensor.start())
    peer = not any(reasons)
    if not peer:
        absent[TORCH] = next(filter(None, reasons))
    rows: list[dict] = []
    for width, layers, length in SIZES:
        if options.quick:
            width, layers, length = width // 4, 2, length // 8
        for reshard in (True, False):
            for row in _measured(comm, (width, layers, length), reshard, peer, options.quick):
                rows.append(row)
                record.say(comm, row)
    elements, layers = WAITING
    for reshard in (True, False):
        size = elements // 64 if options.quick else elements, layers
        rows.append(_beside_waiting(comm, size, reshard, peer, options.quick))
        record.say(comm, rows[-1])
    record.write(comm, options.out, "fsdp", rows, absent)
    comm.Barrier()
    if peer:
        by_dtensor.stop()


def _measured(
    comm: MPI.Comm, sizes: tuple[int, int, int], reshard: bool, peer: bool, quick: bool
) -> list[dict]:
    """Time steps without and with the optimizer."""
    import torch

    from benchmarks import sharded

    width, layers, length = sizes
    plain = sharded.chain(width, layers)
    values = torch.Generator().manual_seed(1 + comm.rank)
    x, gradient = torch.randn(2, BATCH, length, width, generator=values)
    x.requires_grad_()
    expected = _expected(plain, x, gradient, comm)
    contenders = _contenders(plain, comm, reshard, peer)
    for name, contender in contenders.items():
        _check(name, contender, x, gradient, expected)
    del expected
    gc.collect()
    floor = sharded.Floor(plain, comm)
    rows = []
    for tuned in (False, True):
        works = {BASELINE: _step(floor, x, gradient, tuned, floor.hand_over)}
        for name, contender in contenders.items():
            works[name] = _step(contender, x, gradient, tuned)
        case = "step with AdamW" if tuned else "forward and backward"
        size = f"width {width}, {layers} layers, sequence {length}, batch {BATCH} a rank"
        rows.append(_timed(comm, case, size, reshard, contenders, works, quick))
    return rows


def _beside_waiting(
    comm: MPI.Comm, sizes: tuple[int, int], reshard: bool, peer: bool, quick: bool
) -> dict:
    """Time forward and backward of layers that wait about as long as they communicate."""
    import torch
    from torch import nn

    from benchmarks import sharded
    from benchmarks.waiting import Waiting

    elements, layers = sizes
    probe = sharded.ByDistarray(nn.Sequential(Waiting(elements, 0.0)), comm, reshard)
    seconds = min(measure.in_turn(comm, {"": probe.communicate}, repeats=5)[""])
    del probe
    plain = nn.Sequential(*(Waiting(elements, seconds / 2) for _ in range(layers)))
    x = torch.ones(8, requires_grad=True)
    gradient = torch.ones(8)
    contenders = _contenders(plain, comm, reshard, peer)
    expected = [torch.ones(8), *[torch.full((elements,), 0.5)] * layers]
    for name, contender in contenders.items():
        _check(name, contender, x, gradient, expected)
    floor = sharded.Floor(plain, comm)
    floor.model.requires_grad_(False)
    works = {BASELINE: _step(floor, x, gradient, False)}
    for name, contender in contenders.items():
        works[name] = _step(contender, x, gradient, False)
    size = f"layers that wait, {elements * 4 / 2**20:g} MiB each, {layers} layers"
    return _timed(comm, "forward and backward", size, reshard, contenders, works, quick)


def _contenders(plain: Any, comm: MPI.Comm, reshard: bool, peer: bool) -> dict[str, Any]:
    from benchmarks import sharded
    from benchmarks.sharded_by_hand import ByHand

    found: dict[str, Any] = {
        by_distarray.NAME: sharded.ByDistarray(plain, comm, reshard),
        by_hand.NAME: ByHand(plain, comm, reshard),
    }
    if peer:
        found[TORCH] = sharded.ByTorch(plain, comm, reshard)
    return found


def _timed(
    comm: MPI.Comm,
    case: str,
    size: str,
    reshard: bool,
    contenders: dict[str, Any],
    works: dict[str, measure.Work],
    quick: bool,
) -> dict:
    """Return a row of the table."""
    works[COLLECTIVES] = contenders[by_distarray.NAME].communicate
    samples = measure.in_turn(comm, works, repeats=3 if quick else 31, seconds=12)
    return {
        "ranks": comm.size,
        "case": case + (", gathered twice" if reshard else ", kept after forward"),
        "size": size,
        "seconds": {name: measure.summary(found) for name, found in samples.items()},
        "ratios": measure.ratios(samples, BASELINE),
        "shares": {"hidden": measure.summary(hidden(samples))},
    }


def hidden(samples: dict[str, list[float]]) -> list[float]:
    """Return which share of the communication did not make the steps longer, round by round.

    Less than nothing where a step loses more than the collectives take when nothing else runs.
    """
    rounds = zip(samples[by_distarray.NAME], samples[BASELINE], samples[COLLECTIVES], strict=True)
    return [1 - (step - floor) / alone for step, floor, alone in rounds]


def _step(
    contender: Any,
    x: torch.Tensor,
    gradient: torch.Tensor,
    tuned: bool,
    between: Callable[[], None] | None = None,
) -> measure.Work:
    """Return what runs forward and backward, perhaps the optimizer, and drops the gradients."""
    import torch

    optimizer = torch.optim.AdamW(contender.shards, lr=1e-6) if tuned else None

    def step() -> None:
        contender.model(x).backward(gradient)
        if optimizer is not None:
            if between is not None:
                between()
            optimizer.step()
        x.grad = None
        contender.model.zero_grad()
        for shard in contender.shards:
            shard.grad = None

    return step


def _expected(
    plain: Any, x: torch.Tensor, gradient: torch.Tensor, comm: MPI.Comm
) -> list[torch.Tensor]:
    """Return the output, and all gradients averaged over the ranks."""
    y = plain(x)
    y.backward(gradient)
    x.grad = None
    found = [y.detach()]
    for parameter in plain.parameters():
        comm.Allreduce(MPI.IN_PLACE, parameter.grad.numpy())
        found.append(parameter.grad.div_(comm.size))
        parameter.grad = None
    return found


def _check(
    who: str,
    contender: Any,
    x: torch.Tensor,
    gradient: torch.Tensor,
    expected: list[torch.Tensor],
) -> None:
    """Raise where the output or a gradient is not that of the plain model."""
    for _ in range(2):  # the second pass knows what comes next
        y = contender.model(x)
        for shard in contender.shards:
            shard.grad = None
        y.backward(gradient)
        x.grad = None
        found = [y.detach(), *contender.gradients()]
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            error = float((one - other).abs().max() / other.abs().max())
            if not error < 1e-4:
                raise ValueError(f"{who}: tensor {number} is off by {error:.1e} of its largest")
    for shard in contender.shards:
        shard.grad = None


if __name__ == "__main__":
    main()
