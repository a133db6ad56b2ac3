"""Checkpointed regions inside of sharded modules, computed again with whole parameters."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from tests.torch.fsdp.training import (  # noqa: E402
    check_gradients,
    filled,
    gradients,
    on_ranks,
    rows_of,
    same,
    values,
)

X = values(6, 2)


@dataclasses.dataclass
class Boxed:
    """What pytree does not know: no gradient of it announces the backward pass."""

    tensor: torch.Tensor


class Scale(nn.Module):
    """Uses its parameters such that shards of one item fit, too, and give something else."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))
        self.tuned = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        return torch.sin(x * (self.weight + self.tuned))

    def by_iteration(self, x):
        weight, tuned = self.parameters()
        return torch.sin(x * (weight + tuned))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTM(2, 2)

    def forward(self, x):
        return self.cell(x[None])[0][0]  # one step of a batch


class Outer(nn.Module):
    def __init__(self, reentrant, inner="call", boxed=False):
        super().__init__()
        self.inner = Recurrent() if inner == "recurrent" else Scale()
        self.run = self.inner.by_iteration if inner == "iteration" else self.inner.forward
        self.reentrant = reentrant
        self.boxed = boxed

    def forward(self, x):
        y = checkpoint(self.run, x, use_reentrant=self.reentrant)
        return Boxed(y) if self.boxed else y


class Net(nn.Module):
    def __init__(self, *args, **kwargs):
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.layer = Outer(*args, **kwargs)

    def forward(self, x, skip=False):
        x = self.first(x)
        if skip:
            return x
        y = self.layer(x)
        return y.tensor if isinstance(y, Boxed) else y


def beside(loss, start, *, unshard=True, **kwargs):
    """Compare gradients with those of a whole module, of two passes."""
    whole = copy.deepcopy(filled(start))
    for _ in range(2):
        loss(whole, X).backward()

    def program(mesh):
        mine = copy.deepcopy(start)
        dt.fully_shard(mine.layer, mesh, **kwargs)
        dt.fully_shard(mine, mesh, **kwargs)
        mine.layer.set_unshard_in_backward(unshard)
        for _ in range(2):
            loss(mine, rows_of(mine, X)).backward()
        for p, q in zip(mine.parameters(), whole.parameters(), strict=True):
            assert p.shape != q.shape
        check_gradients(mine, gradients(whole))

    on_ranks(2, program)


@pytest.fixture(params=[True, False], ids=["reentrant", "non-reentrant"])
def reentrant(request):
    return request.param


@pytest.mark.parametrize("inner", ["call", "iteration", "recurrent"])
@pytest.mark.parametrize("boxed", [False, True])
def test_passes_that_are_not_announced(reentrant, inner, boxed):
    beside(lambda m, x: m(x).mean(), Net(reentrant, inner, boxed))


@pytest.mark.parametrize("inner", ["call", "iteration", "recurrent"])
def test_parameters_that_do_not_come_by_themselves(reentrant, inner):
    beside(lambda m, x: m(x).mean(), Net(reentrant, inner), unshard=False)


@pytest.mark.parametrize("after", [True, False, 1])
def test_two_calls_of_frozen_parameters(reentrant, after):
    start = Net(reentrant)
    start.layer.inner.weight.requires_grad_(False)
    beside(lambda m, x: (m(x) + m(2 * x)).mean(), start, reshard_after_forward=after)


@pytest.mark.parametrize("after", [True, False, 1])
def test_a_module_skipped_in_between(reentrant, after):
    beside(
        lambda m, x: (m(x) + m(2 * x, skip=True) + m(3 * x)).mean(),
        Net(reentrant),
        reshard_after_forward=after,
    )


def test_values_that_have_changed(reentrant):
    def program(mesh):
        mine = dt.fully_shard(filled(Outer(reentrant, boxed=True)), mesh)
        loss = mine(X.clone().requires_grad_()).tensor.sum()
        with torch.no_grad():
            mine.inner.weight.add_(1)
        with pytest.raises(da.errors.ModifiedError, match=r"before optimizer\.step"):
            loss.backward()

    on_ranks(2, program)


def test_hooks_see_shards():
    seen = []

    def program(mesh):
        mine = dt.fully_shard(filled(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))), mesh)
        x = X.clone().requires_grad_()
        x.register_hook(lambda _: seen.append(mine[0].weight.shape))
        x.sum().backward()

    on_ranks(2, program)
    assert seen == [(1, 2)] * 2


def test_parts_are_copied_and_pickled():
    def program(mesh):
        mine = dt.fully_shard(filled(Net(False)), mesh)
        for part in (copy.deepcopy(mine.first), pickle.loads(pickle.dumps(mine.first))):
            assert type(part._parameters) is dict
            same(part.weight, mine.first.weight, "copy")

    on_ranks(2, program)
