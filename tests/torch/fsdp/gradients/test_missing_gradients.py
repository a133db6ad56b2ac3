"""Gradients that some ranks have and others lack are called by the names of their parameters."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import distarray.torch as dt  # noqa: E402
from distarray.errors import MismatchError  # noqa: E402
from tests.torch.fsdp.training import filled, on_ranks, values  # noqa: E402


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.always, self.sometimes = nn.Linear(3, 5), nn.Linear(3, 5)

    def forward(self, x, both=True):
        found = self.always(x)
        return found + self.sometimes(x) if both else found


def test_sharded_parameters_are_named():
    def program(mesh):
        mine = dt.fully_shard(filled(Branches()), mesh)
        x = values(2, 3, seed=mesh.rank)
        mine(x).square().mean().backward()
        with pytest.raises(MismatchError, match=r"with none of 'sometimes.weight', 'sometimes.b"):
            mine(x, both=mesh.rank == 1).square().mean().backward()
        return True

    assert all(on_ranks(3, program))


def test_replicated_parameters_are_named():
    def program(mesh):
        mine = dt.replicate(filled(Branches()), mesh)
        x = values(2, 3, seed=mesh.rank)
        mine(x).square().mean().backward()
        if mesh.rank == 1:
            mine(x)  # a call that others do not make
        with pytest.raises(MismatchError, match=r"'always.weight'.* after forward call"):
            mine(x).square().mean().backward()
        return True

    assert all(on_ranks(2, program))
