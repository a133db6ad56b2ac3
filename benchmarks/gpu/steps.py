"""Tensor-parallel and sharded training steps on CUDA, against one process on the CPU.

Run by the driver as ``mpiexec -n 2 python -m benchmarks.gpu.steps``. Errors are the largest
difference in a tensor, as a share of its largest value. In a rehearsal CUDA is left out: the same
steps run on the CPU.
"""

from __future__ import annotations

import copy
import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from mpi4py import MPI

import distarray as da
from benchmarks.gpu.part import Part

EQUAL = "Steps on CUDA against the CPU: largest error of outputs, gradients, parameters"
TIMES = "Times of steps"
WIDTH, LENGTH, BATCH, LAYERS = 512, 256, 2, 3
"""Of the models that are compared."""
LARGE = 2048, 1024, 4, 4
"""Of those that are timed."""
STEPS = 3
"""Of training."""
RATE = 0.05


@dataclass(frozen=True)
class Kind:
    """In which dtype a model is, in which it computes, and what error is rounding."""

    name: str
    own: str
    computed: str | None
    bound: float


DOUBLE = Kind("float64", "float64", None, 1e-11)
SINGLE = Kind("float32", "float32", None, 2e-4)
MIXED = Kind("bfloat16 beside float32", "float32", "bfloat16", 0.1)
HALVES = Kind("bfloat16", "bfloat16", None, 0.1)


class Setting:
    """The ranks, their device and the sizes of models."""

    def __init__(self, part: Part, comm: MPI.Comm, device: str) -> None:
        self.part = part
        self.comm = comm
        self.device = device
        self.errors: dict[str, tuple[float, float]] = {}
        self.mesh = da.init_device_mesh((comm.size,), ("ranks",), device=device)
        small = part.rehearsal
        self.width, self.length, self.layers = (128, 16, 2) if small else (WIDTH, LENGTH, LAYERS)

    def inputs(self, dtype: Any, *, all_alike: bool) -> tuple[Any, Any]:
        """Return values and the gradient of the output, in host memory, for every step."""
        import torch

        seed = 1 if all_alike else 1 + self.comm.rank
        values = torch.Generator().manual_seed(seed)
        shape = BATCH, self.length, self.width
        x, gradient = torch.randn(2, *shape, generator=values, dtype=torch.float64).to(dtype)
        return x, gradient / gradient.numel() ** 0.5

    def compared(self, case: str, kind: Kind, found: Any, expected: Any) -> None:
        """Write how far tensors are from those of the CPU, on the rank where it is most."""
        errors = []
        for one, other in zip(found, expected, strict=True):
            one, other = one.detach().cpu().double(), other.detach().double()
            largest = max(float(other.abs().max()), 1e-30)
            errors.append(float((one - other).abs().max()) / largest)
        worst = max(self.comm.allgather(max(errors)))
        self.errors[f"{case}, {kind.name}"] = worst, kind.bound
        right = "yes" if worst < kind.bound else "NO"  # not a number is neither
        self.part.row(
            EQUAL,
            f"{case}, {kind.name}",
            error=("e", worst),
            rounding_is_up_to=("e", kind.bound),
            equal=("", right),
        )

    def seconds(self, work: Callable[[], Any]) -> float:
        """Return the median of rounds, of the slowest rank."""
        work()
        samples = []
        for _ in range(2 if self.part.rehearsal else 7):
            self.wait()
            self.comm.Barrier()
            begun = time.perf_counter()
            work()
            self.wait()
            samples.append(self.comm.allreduce(time.perf_counter() - begun, MPI.MAX))
        return statistics.median(samples)

    def wait(self) -> None:
        """Wait for the device."""
        if self.device == "cuda":
            import torch

            torch.cuda.synchronize()


def main() -> None:
    """Compare first, then time."""
    comm = MPI.COMM_WORLD
    part = Part(comm)
    try:
        import torch
    except ImportError as error:
        part.note(EQUAL, f"torch is not installed: {error}.")
        part.verdict("steps", None, "torch is not installed")
        return
    device = "cuda"
    if not torch.cuda.is_available() or part.rehearsal:
        part.note(EQUAL, "There is no CUDA, or this is a rehearsal: nothing here is from a GPU.")
        if not part.rehearsal:
            part.verdict("steps", None, "torch sees no CUDA")
            return
        device = "cpu"
    setting = Setting(part, comm, device)
    if device == "cuda":
        torch.cuda.set_device(0)
    works: list[tuple[str, Callable[[], None]]] = [
        (f"{told}, {kind.name}", lambda run=run, kind=kind: run(setting, kind))
        for kind in ((DOUBLE,) if part.rehearsal else (DOUBLE, SINGLE))
        for told, run in (("tensor parallel", _parallel), ("sharded", _sharded))
    ]
    works += [
        ("tensor parallel, bfloat16", lambda: _parallel(setting, HALVES)),
        ("sharded, mixed", lambda: _sharded(setting, MIXED)),
        ("sharded, offloaded", lambda: _sharded(setting, DOUBLE, offloaded=True)),
        ("times of parallel layers", lambda: _time_parallel(setting)),
        ("times of sharded layers", lambda: _time_sharded(setting)),
    ]
    for told, work in works:
        if part.has_time(told):
            if part.attempt(EQUAL, told, lambda work=work: work() or True) is None:
                setting.errors[told] = math.nan, 0.0
            if not part.rehearsal:  # it takes seconds, and nothing is large
                gc.collect()
        if told.startswith("sharded, offl"):
            _judge(setting)
    part.close(EQUAL)


def _judge(setting: Setting) -> None:
    wrong = [
        f"{case}: {'failed' if math.isnan(error) else f'{error:.1e}'}"
        for case, (error, bound) in setting.errors.items()
        if not error < bound
    ]
    text = "; ".join(wrong) or f"{len(setting.errors)} comparisons"
    on_gpu = setting.device == "cuda" and bool(setting.errors)
    setting.part.verdict("steps", not wrong if on_gpu or wrong else None, text)


# --- comparisons ---------------------------------------------------------------------------------


class Momentum:
    """Gradient descent with momentum, as torch.optim.SGD, whose import takes seconds."""

    def __init__(self, parameters: Any) -> None:
        self._parameters = list(parameters)
        self._velocities: list[Any] = [None] * len(self._parameters)

    def step(self) -> None:
        """Take a step, and forget the gradients."""
        for i, parameter in enumerate(self._parameters):
            if parameter.grad is not None:
                before = self._velocities[i]
                gradient = parameter.grad
                velocity = gradient.clone() if before is None else before.mul_(0.9).add_(gradient)
                self._velocities[i] = velocity
                parameter.data.add_(velocity, alpha=-RATE)
                parameter.grad = None


def _trained(
    model: Any, parameters: Any, steps: Iterator[tuple[Any, Any]], own: Callable[[Any], Any]
) -> list[Any]:
    """Take steps of gradient descent; return outputs and gradients of inputs, as ``own`` has them.

    Steps by AdamW would divide gradients that are zero but for rounding by themselves.
    """
    optimizer = Momentum(parameters)
    found = []
    for x, gradient in steps:
        x = x.clone().requires_grad_()
        y = model(x)
        y.backward(gradient.to(y.dtype))
        optimizer.step()
        found += [own(y), own(x.grad)]
    return found


def _parallel(setting: Setting, kind: Kind) -> None:
    """Compare blocks cut by columns and rows, without and with the sequence cut between them."""
    import torch

    from benchmarks import block as ways

    dtype = getattr(torch, kind.own)
    torch.manual_seed(0)
    plain = ways.Block(setting.width).to(dtype)
    x, gradient = setting.inputs(dtype, all_alike=True)
    comm = setting.comm
    for sequence in (False, True):
        whole = copy.deepcopy(plain)
        reference = whole.to(torch.float32) if dtype is torch.bfloat16 else whole
        steps = [(x.to(_dtype_of(reference)), gradient)] * STEPS
        expected = _trained(reference, reference.parameters(), iter(steps), lambda t: t)
        expected += list(reference.parameters())
        there = copy.deepcopy(plain).to(setting.device)
        model = ways.by_distarray(there, comm, sequence, setting.device)

        def mine(tensor: Any, sequence: bool = sequence) -> Any:
            return tensor.chunk(comm.size, 1)[comm.rank] if sequence else tensor

        device = setting.device
        steps = [(mine(x).to(device), mine(gradient).to(device))] * STEPS
        found = _trained(model, model.parameters(), iter(steps), lambda t: t)
        of_rank = [mine(tensor) for tensor in expected[: len(found)]]
        of_rank += [ways.share(p, name, comm) for name, p in reference.named_parameters()]
        told = "column, row and sequence parallel" if sequence else "column and row parallel"
        setting.compared(told, kind, [*found, *model.parameters()], of_rank)


def _dtype_of(module: Any) -> Any:
    return next(module.parameters()).dtype


def _sharded(setting: Setting, kind: Kind, *, offloaded: bool = False) -> None:
    """Compare sharded layers, whose groups are gathered ahead, with one process on all inputs."""
    import torch

    import distarray.torch as dt
    from benchmarks import sharded

    comm, dtype = setting.comm, getattr(torch, kind.own)
    plain = sharded.chain(setting.width, setting.layers).to(dtype)
    x, gradient = setting.inputs(dtype, all_alike=False)
    reference = copy.deepcopy(plain)
    optimizer = Momentum(reference.parameters())
    expected = []
    for _ in range(STEPS):
        expected.append(reference(x))
        expected[-1].backward(gradient)
        for parameter in reference.parameters():
            comm.Allreduce(MPI.IN_PLACE, parameter.grad.numpy())
            parameter.grad.div_(comm.size)
        optimizer.step()
    expected += list(reference.parameters())
    policies: dict[str, Any] = {}
    if kind.computed is not None:
        policies["mp_policy"] = dt.MixedPrecisionPolicy(
            getattr(torch, kind.computed), torch.float32, output_dtype=torch.float32
        )
    if offloaded:
        policies["offload_policy"] = dt.CPUOffloadPolicy(pin_memory=setting.device == "cuda")
    for reshard in (True,) if offloaded else (True, False):
        there = copy.deepcopy(plain).to(setting.device)
        one = sharded.ByDistarray(there, comm, reshard, setting.device, **policies)
        device = setting.device
        steps = [(x.to(device), gradient.to(device))] * STEPS
        found = _trained(one.model, one.shards, iter(steps), lambda t: t)[::2]
        found += [dt.full_tensor(shard) for shard in one.shards]
        told = f"sharded, {'gathered twice' if reshard else 'kept after forward'}"
        if offloaded:
            told += ", shards in pinned host memory"
        setting.compared(told, kind, found, expected)


# --- times ---------------------------------------------------------------------------------------


def _time_parallel(setting: Setting) -> None:
    """Time a block cut over the ranks beside one whole block on one rank, in bfloat16."""
    import torch

    from benchmarks import block as ways

    width, length, batch = (128, 16, 2) if setting.part.rehearsal else LARGE[:3]
    dtype = torch.bfloat16
    plain = ways.Block(width).to(setting.device, dtype)
    x, gradient = torch.randn(2, batch, length, width, device=setting.device).to(dtype)
    models = {"whole, on every rank": plain}
    for sequence in (False, True):
        told = "tensor and sequence parallel" if sequence else "tensor parallel"
        models[told] = ways.by_distarray(plain, setting.comm, sequence, setting.device)
    for told, model in models.items():
        mine = x, gradient
        if told.startswith("tensor and"):
            mine = tuple(t.chunk(setting.comm.size, 1)[setting.comm.rank] for t in mine)
        seconds = setting.seconds(_step(model, *mine))
        size = f"width {width}, sequence {length}, batch {batch}, bfloat16"
        setting.part.row(TIMES, f"block {told}: {size}", forward_and_backward=("s", seconds))


def _time_sharded(setting: Setting) -> None:
    """Time sharded layers, the collectives alone, and what is hidden behind computation."""
    import torch

    from benchmarks import sharded

    width, length, batch, layers = (128, 16, 2, 2) if setting.part.rehearsal else LARGE
    plain = sharded.chain(width, layers).to(setting.device)
    x, gradient = torch.randn(2, batch, length, width, device=setting.device)
    floor = setting.seconds(_step(copy.deepcopy(plain), x, gradient))
    for reshard in (True, False):
        one = sharded.ByDistarray(plain, setting.comm, reshard, setting.device)
        step = setting.seconds(_step(one.model, x, gradient))
        alone = setting.seconds(one.communicate)
        told = "gathered twice" if reshard else "kept after forward"
        setting.part.row(
            TIMES,
            f"{layers} sharded blocks, {told}: width {width}, sequence {length}, batch {batch}, "
            "float32",
            forward_and_backward=("s", step),
            without_communication=("s", floor),
            collectives_alone=("s", alone),
            hidden=("share", 1 - (step - floor) / alone),
        )
        del one
        gc.collect()


def _step(model: Any, x: Any, gradient: Any) -> Callable[[], None]:
    def step() -> None:
        mine = x.detach().requires_grad_()
        model(mine).backward(gradient)
        for parameter in model.parameters():
            parameter.grad = None

    return step


if __name__ == "__main__":
    main()
