"""Column- and row-parallel modules under real MPI: values, gradients, counts, dropout, copies."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import IndexingError, LayoutError, MismatchError  # noqa: E402
from tests.torch.parallel.twins import check_gradient  # noqa: E402

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(60)]


@pytest.fixture(scope="module")
def mesh() -> da.DeviceMesh:
    from mpi4py import MPI

    return da.init_device_mesh((MPI.COMM_WORLD.size,), ("tp",))


def values(*shape: int, seed: int = 7) -> Any:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


class Small(nn.Module):
    """Words, a transformer layer, a convolution over channels, fused gates, and a tied head."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 6, padding_idx=3)
        self.layer = nn.TransformerEncoderLayer(6, 3, 7, dropout=dropout, batch_first=True)
        self.wide = nn.Conv1d(6, 5, 1)
        self.deep = nn.Conv1d(5, 5, 3, padding=1, groups=5, padding_mode="circular")
        self.narrow = nn.Conv1d(5, 6, 1)
        self.gates = nn.Linear(6, 10)
        self.back = nn.Linear(5, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.table.weight
        for seed, p in enumerate(self.parameters()):
            p.data = values(*p.shape, seed=seed).to(p.dtype) / 2

    def forward(self, words: Any) -> Any:
        y = self.layer(self.table(words))
        y = y + self.narrow(self.deep(self.wide(y.transpose(1, 2)))).transpose(1, 2)
        a, b = self.gates(y).chunk(2, -1)
        return self.head(y + self.back(torch.tanh(a) * b))


PLAN = {
    "table": dt.RowwiseParallel(),
    "layer": dt.TransformerLayerParallel(),
    "wide": dt.ColwiseParallel(),
    "deep": dt.ColwiseParallel(input_layouts=da.Shard(1)),
    "narrow": dt.RowwiseParallel(),
    "gates": dt.ColwiseParallel(parts=(5, 5)),
    "back": dt.RowwiseParallel(),
    "head": dt.ColwiseParallel(output_layouts=da.Replicate()),
}
WORDS = torch.tensor([[1, 3, 10, 7, 7], [0, 2, 3, 9, 5]])


@pytest.mark.parametrize("recompute", [False, True])
def test_a_model_of_every_kind_computes_what_one_process_does(mesh, recompute):
    model = Small().double()
    expected = model(WORDS)
    expected.pow(2).sum().backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    twin = copy.deepcopy(model)
    twin.zero_grad()
    dt.parallelize_module(twin, mesh, PLAN)
    twin = copy.deepcopy(twin)
    with da.CommLog() as log:
        y = checkpoint(twin, WORDS, use_reentrant=False) if recompute else twin(WORDS)
        y.pow(2).sum().backward()
    torch.testing.assert_close(y.detach(), expected.detach())
    for name, p in twin.named_parameters():
        check_gradient(name, p, gradients[name], 1e-9)
    if mesh.size > 1 and not recompute:
        # Five pairs of layers; the head's logits are gathered, the table has no input gradient.
        assert log.count("all_gather") == 1
        assert log.count("all_reduce") == log.count() - 1 == 5 + 5


def test_dropout_leaves_ranks_in_step_with_uneven_heads(mesh):
    model = dt.parallelize_module(Small(dropout=0.5).double(), mesh, PLAN)
    dt.manual_seed(3, mesh)
    y = model(WORDS).detach()
    found = mesh.communicator().all_gather_object((y.tolist(), torch.rand(1).item()))
    assert found == [found[0]] * mesh.size


def test_errors_come_on_every_rank_and_leave_them_in_step(mesh):
    model = dt.parallelize_module(Small().double(), mesh, PLAN)
    with pytest.raises(IndexingError, match=r"^table \(Embedding\): .*vocabulary of 11"):
        model(WORDS + 5)
    if mesh.size > 1:
        rank = mesh.coordinate[0]
        own = model.back.weight.shape[1]
        error = LayoutError if rank == 0 else MismatchError
        with pytest.raises(error, match=r"9 features on this rank"):
            model.back(values(2, 9 if rank == 0 else own))
    assert model(WORDS).shape == (2, 5, 11)
