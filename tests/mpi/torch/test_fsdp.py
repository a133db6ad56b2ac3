"""Sharded modules under real MPI: training, packed blocks between nodes, ranks that differ."""

from __future__ import annotations

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from tests.redistribute.test_packed import Tensors, check  # noqa: E402
from tests.torch.fsdp.models import Block, model, next_token_loss, tokens  # noqa: E402
from tests.torch.fsdp.training import (  # noqa: E402
    Momentum,
    check_gradients,
    check_parameters,
    rows_of,
    trained,
)

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(100)]

TP = {
    "layers.*.up": dt.ColwiseParallel(),
    "layers.*.down": dt.RowwiseParallel(),
    "head": dt.ColwiseParallel(output_layouts=da.Replicate()),
}


@pytest.fixture(scope="module", params=["one node", "a node per rank", "two ranks a node"])
def comm(request):
    from mpi4py import MPI

    per_node = {"one node": 0, "a node per rank": 1, "two ranks a node": 2}[request.param]
    with pytest.MonkeyPatch.context() as patch:
        if per_node:
            if MPI.COMM_WORLD.size <= per_node:
                pytest.skip("all ranks are on one node")
            patch.setenv("DISTARRAY_RANKS_PER_NODE", str(per_node))
        comm = MPI.COMM_WORLD.Dup()
        yield comm
        comm.Barrier()


@pytest.fixture(scope="module")
def mesh(comm):
    return da.init_device_mesh((comm.size,), ("dp",), comm=comm)


@pytest.fixture(scope="module")
def single():
    return trained(model(), tokens(3, 24), next_token_loss, optimizer_of=Momentum)


def sharded(module, mesh, **kwargs):
    for layer in module.layers:
        dt.fully_shard(layer, mesh, **kwargs)
    return dt.fully_shard(module, mesh, **kwargs)


def train(single, module, parts, part):
    optimizer = Momentum(module, single.rate)
    for step, batch in enumerate(single.batches):
        optimizer.zero_grad()
        single.loss(module, batch.chunk(parts)[part]).backward()
        check_gradients(module, single.gradients[step])
        optimizer.step()
    check_parameters(module, single.end)


@pytest.mark.parametrize(
    "after",
    [
        pytest.param(True, marks=pytest.mark.eight_ranks),
        False,
        pytest.param(2, marks=pytest.mark.eight_ranks),
    ],
)
def test_training_is_that_of_one_process(mesh, single, after):
    module = sharded(copy.deepcopy(single.start), mesh, reshard_after_forward=after)
    train(single, module, mesh.size, mesh.coordinate[0])


@pytest.mark.eight_ranks
def test_replicas_and_tensor_parallelism(comm, single):
    if comm.size % 2:
        pytest.skip("needs an even number of ranks")
    outer = 2 if comm.size % 4 == 0 else 1
    grid = da.init_device_mesh(
        (outer, comm.size // 2 // outer, 2), ("replicas", "shards", "tp"), comm=comm
    )
    module = dt.parallelize_module(copy.deepcopy(single.start), grid["tp"], TP)
    sharded(module, grid["replicas", "shards"])
    i, j, _ = grid.coordinate
    train(single, module, comm.size // 2, i * grid.shape[1] + j)


def test_wide_layers_with_mixed_precision(mesh):
    """Blocks that other processes read in place."""
    start = nn.Sequential(nn.Linear(260, 501), nn.ReLU(), nn.Linear(501, 3))
    with torch.no_grad():
        for i, p in enumerate(start.parameters()):
            p.copy_(torch.linspace(-1, 1, p.numel()).roll(i).view(p.shape) / 10)
    n = mesh.size
    parts = torch.linspace(-1, 1, 8 * n * 260).view(8, n, 260).unbind(1)
    wanted = {name: torch.zeros_like(p) for name, p in start.named_parameters()}
    for part in parts:
        low = copy.deepcopy(start).bfloat16()
        low(part.bfloat16()).float().square().mean().backward()
        for name, p in low.named_parameters():
            wanted[name] += p.grad.float() / n
    policy = dt.MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    mine = copy.deepcopy(start)
    dt.fully_shard(mine[0], mesh, mp_policy=policy)
    dt.fully_shard(mine, mesh, mp_policy=policy)
    for _ in range(3):
        mine.zero_grad()
        with da.CommLog() as log:
            mine(parts[mesh.coordinate[0]]).float().square().mean().backward()
        check_gradients(mine, wanted, 1e-6)
    assert log.count("all_gather") == 3 * (n > 1)  # the outermost group is gathered once
    assert log.count("reduce_scatter") == 2 * (n > 1)
    own = sum(p.numel() for p in mine.parameters())
    others = [
        sum(p.numel() for p in whole.parameters()) - sum(p.numel() for p in share.parameters())
        for whole, share in ((start[0], mine[0]), (start[2], mine[2]))
    ]
    assert log.bytes("all_gather") == (2 * others[0] + others[1]) * 2
    assert log.bytes("reduce_scatter") == (n - 1) * own * 4


@pytest.mark.parametrize("what", ["layers", "sharded layers", "model"])
@pytest.mark.filterwarnings("ignore")  # of the compiler itself
def test_compiled(mesh, what):
    """Layers share what the compiler makes: one by one they would be too many for its limit."""
    if mesh.size != 2 or not mesh.communicator().reaches_all():
        pytest.skip("every rank compiles the same: two show it, wherever they are")
    torch.compiler.reset()
    whole = nn.Sequential(*(Block(6, 9) for _ in range(4))).double()
    with torch.no_grad():
        for i, p in enumerate(whole.parameters()):
            p.copy_(torch.linspace(-1, 1, p.numel()).roll(i).view(p.shape) / 3)
    mine = copy.deepcopy(whole)
    for layer in mine:
        if what == "layers":
            layer.compile(backend="aot_eager")
        dt.fully_shard(layer, mesh)
        if what == "sharded layers":
            layer.compile(backend="aot_eager")
    dt.fully_shard(mine, mesh)
    run = torch.compile(mine, backend="aot_eager") if what == "model" else mine
    both = [(run, mine), (whole, whole)]
    optimizers = [torch.optim.AdamW(module.parameters(), 0.01) for _, module in both]
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        for rows in (4, 4, 3, 5, 5):
            size = rows * mesh.size
            x = torch.linspace(-1, 1, size * 6, dtype=torch.float64).view(size, 6)
            for (one, module), optimizer in zip(both, optimizers, strict=True):
                optimizer.zero_grad()
                one(rows_of(module, x)).square().mean().backward()
                if module is whole:
                    wanted = {n: p.grad for n, p in whole.named_parameters()}
                    check_gradients(mine, wanted)
                optimizer.step()
            with torch.no_grad():
                part = rows_of(mine, x)
                torch.testing.assert_close(run(part), whole(part))
    check_parameters(mine, whole)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    torch.compiler.reset()


CASES = [
    Tensors(
        (0,), [(5, 3), (), (2, 4), (0, 3)], [0, None, 1, 0], [(1, 0), (), (0, 1), (0, 1)], "<f8"
    ),
    Tensors((0,), [(1, 300), (301, 129)], [1, 0], [(0, 1), (0, 1)], "<f4"),
    Tensors((0,), [(3, 5, 7), (2,)], [2, 0], [(2, 0, 1), (0,)], "<c16"),
    Tensors((0,), [(1,), (1, 1)], [0, 1], [(0,), (1, 0)], "<i4"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.dtype)
@pytest.mark.parametrize("op", ["sum", "avg"])
@pytest.mark.parametrize("background", [True, False])
def test_packed_blocks(mesh, case, op, background):
    if case.dtype == "<i4" and op == "avg":
        pytest.skip("an average of whole numbers is none")
    case = case._replace(mesh=(mesh.size,), dtype=np.dtype(case.dtype))
    check(case, mesh, op, background=background)


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize("kind", ["skip", "unused"])
def test_ranks_out_of_step(mesh, step, kind):
    """No rank waits for ever, whatever was prefetched."""
    if mesh.size == 1:
        pytest.skip("one rank agrees with itself")

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(5, 5)
            self.bias = nn.Parameter(torch.zeros(5))

        def forward(self, x, biased=True):
            return self.linear(x) + self.bias if biased else self.linear(x)

    class Stack(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(Layer() for _ in range(3))

        def forward(self, x, other):
            x = self.layers[0](x)
            if not (other and kind == "skip"):
                x = self.layers[1](x, biased=not (other and kind == "unused"))
            return self.layers[2](x)

    mine = Stack()
    for layer in mine.layers:
        dt.fully_shard(layer, mesh)
    dt.fully_shard(mine, mesh)

    def run(other):
        mine(torch.ones(2, 5) + mesh.coordinate[0], other).sum().backward()

    for _ in range(step):
        run(False)
    with pytest.raises(da.errors.MismatchError):
        run(mesh.coordinate[0] == mesh.size - 1)
