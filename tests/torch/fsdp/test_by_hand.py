"""Modules that are unsharded by hand, and what forward must not do with gathered parameters."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from tests.torch.fsdp.training import filled, on_ranks, rows_of, same, values  # noqa: E402

X = values(6, 4)


def zeros(mesh, **kwargs):
    module = nn.Linear(4, 4, bias=False).double()
    nn.init.zeros_(module.weight)
    return dt.fully_shard(module, mesh, **kwargs)


@pytest.mark.parametrize("keep", [True, False])
def test_what_is_loaded_while_whole_stays(keep):
    def program(mesh):
        mine = zeros(mesh, reshard_after_forward=keep)
        mine.unshard()
        dt.load_state_dict(mine, {"weight": torch.ones(4, 4, dtype=torch.float64)})
        same(mine(X), X.sum(1, keepdim=True).expand(6, 4), "output")
        mine.reshard()
        same(mine(X), X.sum(1, keepdim=True).expand(6, 4), "output")
        mine.unshard()
        mine.load_state_dict({"weight": torch.zeros_like(next(mine.parameters()))})
        assert not mine(X).any()

    on_ranks(2, program)


def test_gradients_of_modules_that_are_whole_are_cleared():
    def program(mesh):
        mine = zeros(mesh)
        for _ in range(3):
            mine.unshard()
            mine.zero_grad()
            mine(rows_of(mine, X)).sum().backward()
            same(dt.full_tensor(mine.weight.grad), X.sum(0).expand(4, 4) / 2, "gradient")

    on_ranks(2, program)


def test_parameters_are_whole_inside_of_forward():
    class Penalised(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4).double()

        def forward(self, x):
            return self.inner(x).sum() + sum(p.square().sum() for p in self.parameters())

    model = filled(Penalised())

    def program(mesh):
        mine = dt.fully_shard(copy.deepcopy(model), mesh)
        for unshard in (False, True):
            if unshard:
                mine.unshard()
            same(mine(X), model(X), "output")

    on_ranks(2, program)


def test_parameters_are_shards_also_while_whole():
    def program(mesh):
        mine = zeros(mesh)
        (shard,) = mine.parameters()
        mine.unshard()
        assert mine.weight.shape == (4, 4)
        assert [p is shard for p in mine.parameters()] == [True]
        mine.requires_grad_(False)
        assert mine.state_dict()["weight"].shape == shard.shape
        mine.requires_grad_(True)
        mine.unshard()
        mine.to(torch.float32)
        assert mine(X.float()).dtype is torch.float32

    on_ranks(2, program)


class Returning(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6, 4))

    def forward(self, x):
        return x @ self.weight.t(), {"weight": self.weight}


@pytest.mark.parametrize("keep", [True, False, 1])
def test_a_weight_that_forward_returns_is_there(keep):
    whole = filled(Returning())
    y, more = whole(X)
    (y @ more["weight"]).square().mean().backward()

    def program(mesh):
        mine = dt.fully_shard(filled(Returning()), mesh, reshard_after_forward=keep)
        found, also = mine(rows_of(mine, X))
        same(also["weight"], whole.weight.detach(), "weight")
        (found @ also["weight"]).square().mean().backward()
        same(dt.full_tensor(mine.weight.grad), whole.weight.grad, "gradient")

    on_ranks(2, program)


class Clamping(nn.Linear):
    def forward(self, x):
        with torch.no_grad():
            self.weight.clamp_(-0.1, 0.1)
        return super().forward(x)


@pytest.mark.parametrize("make", [lambda: Clamping(4, 4), lambda: nn.Embedding(4, 3, max_norm=1.0)])
def test_changes_in_place_are_an_error(make):
    def program(mesh):
        module = make()
        x = torch.arange(4) if isinstance(module, nn.Embedding) else torch.ones(1, 4)
        nn.init.constant_(module.weight, 2.0)
        mine = dt.fully_shard(module, mesh)
        with pytest.raises(da.errors.ModifiedError, match=r"weight.*ignored_params"):
            mine(x)

    on_ranks(2, program)


def test_sparse_gradients_are_refused():
    def program(mesh):
        with pytest.raises(ValueError, match="sparse=False"):
            dt.fully_shard(nn.Embedding(4, 3, sparse=True), mesh)

    on_ranks(2, program)
