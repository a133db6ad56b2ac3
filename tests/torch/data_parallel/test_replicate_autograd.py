"""Replicas' gradients are averaged whatever way backward runs: again, recomputed, or failing."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from tests.torch.programs import (  # noqa: E402
    check_gradients,
    filled,
    gradients,
    mlp,
    on_ranks,
    same,
    shard,
    values,
)


def test_several_backward_passes_for_one_forward():
    model, x = mlp(), values(6, 5)
    y = model(x)
    y.square().mean().backward(retain_graph=True)
    y.mean().backward()
    wanted = gradients(model)
    model.zero_grad()

    def program(mesh):
        mine = dt.replicate(copy.deepcopy(model), mesh, bucket_bytes=300)
        y = mine(shard(x, mesh))
        y.square().mean().backward(retain_graph=True)
        y.mean().backward()
        check_gradients(mine, wanted)

    on_ranks(2, program)


class Segments(nn.Module):
    """Checkpointed segments that share a layer with each other, and with what is outside them."""

    def __init__(self, reentrant):
        super().__init__()
        self.reentrant = reentrant
        self.shared = nn.Linear(4, 4)
        self.one = nn.Linear(4, 4)
        self.two = nn.Linear(4, 4)

    def forward(self, x):
        x = self.shared(x)
        for part in (self.one, self.two):
            x = self.run(lambda x, part=part: self.shared(part(x)).tanh(), x)
        return x

    def run(self, part, x):
        if self.reentrant is None:
            return part(x)
        return checkpoint(part, x, use_reentrant=self.reentrant)


@pytest.mark.filterwarnings("ignore:None of the inputs:UserWarning")  # the outer one's first run
@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("op", ["avg", "sum"])
@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.parametrize("bucket_bytes", [1, 1 << 20])
def test_checkpoints(reentrant, op, outside, bucket_bytes):
    model, x = filled(Segments(None).double()), values(6, 4)
    for _ in range(2):
        model(x).square().sum().backward()
    wanted = gradients(model)
    model.zero_grad()
    if op == "avg":
        wanted = {name: gradient / 2 for name, gradient in wanted.items()}

    def program(mesh):
        mine = copy.deepcopy(model)
        mine.reentrant = reentrant
        dt.replicate(mine, mesh, op=op, bucket_bytes=bucket_bytes)
        for _ in range(2):
            part = shard(x, mesh).clone().requires_grad_()
            y = checkpoint(mine, part, use_reentrant=reentrant) if outside else mine(part)
            y.square().sum().backward()
        check_gradients(mine, wanted)

    on_ranks(2, program)


def test_gradients_asked_for_by_themselves_are_not_averaged():
    model, x = mlp(), values(6, 5)

    def program(mesh):
        mine = dt.replicate(copy.deepcopy(model), mesh)
        twin = copy.deepcopy(model)
        part = shard(x, mesh)
        with da.CommLog() as log:
            found = torch.autograd.grad(mine(part).sum(), list(mine.parameters()))
        assert log.count() == 0
        own = torch.autograd.grad(twin(part).sum(), list(twin.parameters()))
        for a, b in zip(found, own, strict=True):
            same(a, b)

    on_ranks(2, program)


def test_gradient_penalties():
    model, x = mlp(), values(6, 5)

    def loss(module, x):
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(module(x).sum(), x, create_graph=True)
        return slope.square().mean()

    loss(model, x).backward()
    wanted = gradients(model)
    model.zero_grad()

    def program(mesh):
        mine = dt.replicate(copy.deepcopy(model), mesh, bucket_bytes=100)
        loss(mine, shard(x, mesh)).backward()
        check_gradients(mine, wanted)

    on_ranks(2, program)


class Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ZeroDivisionError("in backward")


@pytest.mark.parametrize("bucket_bytes", [1, 1 << 20])
def test_an_exception_in_backward_leaves_it_usable(bucket_bytes):
    model, x = mlp(), values(6, 5)
    model(x).square().mean().backward()
    wanted = gradients(model)
    model.zero_grad()

    def program(mesh):
        mine = dt.replicate(copy.deepcopy(model), mesh, bucket_bytes=bucket_bytes)
        part = shard(x, mesh)
        handle = mine[1].register_forward_hook(lambda m, a, y: Raises.apply(y))
        with pytest.raises(ZeroDivisionError):
            mine(part).square().mean().backward()
        handle.remove()
        for _ in range(2):
            mine.zero_grad()
            mine(part).square().mean().backward()
            check_gradients(mine, wanted)

    on_ranks(2, program)
