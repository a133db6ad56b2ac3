"""Sequence parallelism, reproducible dropout and random state by mesh axis, under real MPI."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import MismatchError  # noqa: E402

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(60)]

R = da.Replicate()
CUT = da.Shard(1)


@pytest.fixture(scope="module")
def mesh() -> da.DeviceMesh:
    from mpi4py import MPI

    return da.init_device_mesh((MPI.COMM_WORLD.size,), ("tp",))


def values(*shape: int) -> Any:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(7))


class Block(nn.Module):
    """A norm, projections of its output, and a dropout."""

    def __init__(self, drop: nn.Module) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(6)
        self.inner = Inner()
        self.drop = drop

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.inner(self.norm(x)))


class Inner(nn.Module):
    """A gated product."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(6, 9), nn.Linear(6, 9), nn.Linear(9, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.sigmoid(self.gate(x)) * self.up(x))


class Drop(nn.Module):
    """What `SequenceParallel` makes of dropout, on one process."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return dt.dropout(x, 0.3)


@pytest.mark.parametrize("reentrant", [None, False, True])
def test_block_is_that_of_one_process(mesh: da.DeviceMesh, reentrant: bool | None) -> None:
    torch.manual_seed(2)
    alone = Block(Drop()).double()
    x = values(3, 7, 6)
    own = x.clone().requires_grad_()
    torch.manual_seed(5)
    expected = alone(own)
    expected.square().sum().backward()

    block = Block(nn.Dropout(0.3)).double()  # with other parameters on every rank
    if mesh.rank == 0:
        block.load_state_dict(alone.state_dict())
    dt.parallelize_module(
        block,
        mesh,
        {
            "norm": dt.SequenceParallel(),
            "inner": dt.PrepareModuleInput(input_layouts=CUT, desired_input_layouts=R),
            "inner.gate": dt.ColwiseParallel(),
            "inner.up": dt.ColwiseParallel(),
            "inner.down": dt.RowwiseParallel(output_layouts=CUT),
            "drop": dt.SequenceParallel(),
        },
    )
    mine = x.clone().requires_grad_()
    share = dt.redistribute(mine, mesh, [R], [CUT])
    torch.manual_seed(5)
    with da.CommLog() as log:
        y = block(share) if reentrant is None else checkpoint(block, share, use_reentrant=reentrant)
        whole = dt.redistribute(y, mesh, [CUT], [R])
        whole.square().sum().backward()
    torch.testing.assert_close(whole, expected)
    torch.testing.assert_close(mine.grad, own.grad)
    for name, parameter in block.named_parameters():
        full = alone.get_parameter(name).grad
        layout = dt.layout_of(parameter)
        box = layout.local_box()
        torch.testing.assert_close(parameter.grad, full[tuple(slice(*b) for b in box)])
    if reentrant is None and mesh.size > 1:
        # Forward: gather the input, scatter the sum. Backward: each the other way around; the
        # gradients of the norm and of the last bias, together. And the test's own two gathers.
        assert log.count("all_gather") == 2 + 2
        assert log.count("reduce_scatter") == 2
        assert log.count("all_reduce") == 1
        assert log.count() == 7


def test_random_state_differs_along_chosen_axes() -> None:
    from mpi4py import MPI

    size = MPI.COMM_WORLD.size
    shape = (2, size // 2) if size % 2 == 0 else (1, size)
    mesh = da.init_device_mesh(shape, ("dp", "tp"))
    everyone = mesh.communicator()

    def groups() -> list[int]:
        """Return, for every rank, the first one that draws the same."""
        told = [tuple(row) for row in everyone.all_gather_object(torch.rand(4).tolist())]
        return [told.index(row) for row in told]

    def along(*names: str) -> list[int]:
        places = [
            tuple(
                i
                for i, name in zip(divmod(rank, shape[1]), ("dp", "tp"), strict=True)
                if name in names
            )
            for rank in range(size)
        ]
        return [places.index(place) for place in places]

    dt.manual_seed(3, mesh)
    assert groups() == along()
    with dt.random_state(mesh, differ="tp"):
        assert groups() == along("tp")
    assert groups() == along()
    dt.manual_seed(3, mesh, differ="dp")
    assert groups() == along("dp")
    with dt.random_state(mesh, differ="tp"):
        torch.rand(mesh.rank)  # also where ranks draw more or less
        assert groups() == along("dp", "tp")
    assert groups() == along("dp")
    state = dt.get_random_state(mesh, differ="dp")
    assert set(state["states"]) == {(i,) for i in range(shape[0])}
    before = torch.rand(3)
    torch.manual_seed(mesh.rank)
    dt.set_random_state(state, mesh)
    assert torch.equal(torch.rand(3), before)
    if size > 1:
        torch.manual_seed(mesh.rank)
        with pytest.raises(MismatchError, match="are not alike"):
            dt.get_random_state(mesh)


def test_parameters_that_differ_are_told(mesh: da.DeviceMesh) -> None:
    if mesh.size == 1:
        pytest.skip("one rank agrees with itself")
    norm = nn.LayerNorm(4)
    norm.bias.data.fill_(mesh.rank)
    with pytest.raises(MismatchError, match="parameter 'bias' differs"):
        dt.parallelize_module(norm, mesh, dt.SequenceParallel(), src_data_rank=None)


def test_merged_statistics(mesh: da.DeviceMesh) -> None:
    alone = nn.GroupNorm(2, 4).double()
    x = values(2, 4, 5, 3)
    own, mine = x.clone().requires_grad_(), x.clone().requires_grad_()
    alone(own).pow(3).sum().backward()
    norm = dt.parallelize_module(copy.deepcopy(alone), mesh, dt.SequenceParallel(sequence_dim=2))
    norm.zero_grad()
    y = norm(dt.redistribute(mine, mesh, [R], [da.Shard(2)]))
    y.pow(3).sum().backward()
    torch.testing.assert_close(mine.grad, own.grad)
    torch.testing.assert_close(norm.weight.grad, alone.weight.grad)
