"""Slices of replicated activations are kept, and gradients stay what they are."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from tests.torch.parallel.reshard_models import (  # noqa: E402
    BLOCK_PLAN,
    MLP_PLAN,
    Block,
    Mlp,
    check,
    filled,
    held_bytes,
    on_ranks,
    run,
    same,
    values,
)


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("dim", [0, 1, -1, -2])
@pytest.mark.parametrize("shape", [(4, 12, 6), (3, 5, 6), (1, 2, 6)])
def test_gradients_stay_what_they_are(ranks, dim, shape):
    model, x = filled(Mlp().double()), values(*shape)
    wanted = run(copy.deepcopy(model), x)

    def program(mesh):
        mine = dt.parallelize_module(copy.deepcopy(model), mesh, MLP_PLAN)
        assert dt.input_reshard(mine, mesh, dim) is mine
        for _ in range(2):
            with da.CommLog() as log:
                check(mine, x, wanted)
            assert log.count("all_gather") == 1  # of x, once for both layers

    on_ranks(ranks, program)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dtypes(dtype):
    model, x = filled(Mlp().to(dtype)), values(2, 5, 6, dtype=dtype)

    def program(mesh):
        plain = dt.parallelize_module(copy.deepcopy(model), mesh, MLP_PLAN)
        mine = dt.parallelize_module(copy.deepcopy(model), mesh, MLP_PLAN)
        dt.input_reshard(mine, mesh, 1)
        for a, b in zip(run(mine, x).values(), run(plain, x).values(), strict=True):
            assert torch.equal(a, b)

    on_ranks(2, program)


@pytest.mark.parametrize("ranks", [2, 4])
def test_memory_of_a_block(ranks):
    model, x = filled(Block(64, 4, 256)), values(2, 32, 64, dtype=torch.float32)
    wanted = run(copy.deepcopy(model).double(), x.double())
    one = 2 * 32 * 64 * 4  # an activation

    def program(mesh):
        mine = dt.parallelize_module(copy.deepcopy(model), mesh, BLOCK_PLAN)
        whole = held_bytes(mine, x)
        dt.input_reshard(mine, mesh, 1)
        outer = held_bytes(mine, x)
        for part in (mine.attention_norm, mine.mlp_norm):
            dt.input_reshard(part, mesh, 1)
        inner = held_bytes(mine, x)
        # The inputs of the norms, and what they return, which columns are computed from.
        assert whole - outer == 3 * (one - one // ranks)
        assert whole - inner == 4 * (one - one // ranks)
        mine.double()
        check(mine, x.double(), wanted)
        return whole, inner

    on_ranks(ranks, program)


def test_what_may_differ_between_ranks_is_kept():
    class Differs(nn.Module):
        def __init__(self, rank):
            super().__init__()
            self.weight = nn.Parameter(values(6))
            self.rank = rank

        def forward(self, x, *, mask):
            own = x * (1 + self.rank)  # other values on each rank
            y = own * own.tanh() * self.weight
            part = x[:, self.rank : self.rank + 1]  # another view on each
            return (y * mask).sum() + (part * part.exp()).sum() + x.T.exp().sum()

    x, mask = values(4, 6), values(4, 6, seed=1)

    def program(mesh):
        (rank,) = mesh.coordinate
        given = x.clone().requires_grad_()
        plain, mine = Differs(rank), dt.input_reshard(Differs(rank), mesh, 0)
        plain(given, mask=mask).backward()
        wanted, given.grad = given.grad, None
        with da.CommLog() as log:
            loss = mine(given, mask=mask)
            assert log.count() == 0
            loss.backward()
        assert log.count() == log.count("all_gather") == 2  # x and the mask
        same(given.grad, wanted)
        same(mine.weight.grad, plain.weight.grad)

    on_ranks(3, program)


def test_arguments_known_to_be_cut_are_kept():
    weight = torch.ones(1, dtype=torch.float64)

    class Scale(nn.Module):
        def forward(self, x, weight):
            return (x * weight).sum()

    def program(mesh):
        part = dt.redistribute(values(4, 6), mesh, [da.Replicate()], [da.Shard(0)])
        own = weight.clone().requires_grad_()
        with da.CommLog() as log:
            dt.input_reshard(Scale(), mesh, 1)(part, own).backward()
        assert log.count() == 0
        same(own.grad, part.sum().reshape(1))

    on_ranks(2, program)


def test_nothing_is_sent_without_gradients():
    model, x = filled(Mlp().double()), values(3, 4, 6)

    def program(mesh):
        mine = dt.parallelize_module(copy.deepcopy(model), mesh, MLP_PLAN)
        dt.input_reshard(mine, mesh, 1)
        with torch.no_grad():
            same(mine(x), model(x))
        with torch.inference_mode():
            same(mine(x.clone()), model(x))

    on_ranks(2, program)


def test_together_with_replicas():
    model, x = filled(Block(8, 4, 16).double()), values(4, 6, 8)
    wanted = run(copy.deepcopy(model), x)

    def program():
        mesh = da.init_device_mesh((2, 2), ("dp", "tp"))
        mine = dt.parallelize_module(copy.deepcopy(model), mesh["tp"], BLOCK_PLAN)
        dt.replicate(mine, mesh["dp"], op="sum", bucket_bytes=500)
        for part in (mine, mine.attention, mine.mlp, mine.mlp_norm):
            dt.input_reshard(part, mesh["tp"], 1)
        row = mesh.coordinate[0]
        mine(x.chunk(2)[row]).square().sum().backward()
        terms = wanted.values()
        same(mine.attention_norm.weight.grad, wanted["attention_norm.weight"], terms)
        layout = dt.layout_of(mine.mlp.up.weight)
        (rows, _) = layout.local_box()
        same(mine.mlp.up.weight.grad, wanted["mlp.up.weight"][slice(*rows)], terms)

    simulate(4, program)


def test_strides_and_views_come_back():
    class Views(nn.Module):
        def forward(self, x, y):
            z = x.mT.reshape(-1) * x.flatten().exp()
            return (z * z).sum() + (y[:, ::2] * y[:, ::2].exp()).sum() + (y * y.sin()).sum()

    x, y = values(6, 4), values(5, 8)

    def loss(model, transposed):
        a, b = x.clone().requires_grad_(), y.clone().requires_grad_()
        given = (a.mT if transposed else a, b[1:, :6])  # the second leaves gaps
        model(*given).backward()
        return a.grad, b.grad

    def program(mesh):
        for transposed in (False, True):
            wanted = loss(Views(), transposed)
            found = loss(dt.input_reshard(Views(), mesh, 1), transposed)
            for a, b in zip(found, wanted, strict=True):
                same(a, b)

    on_ranks(3, program)


def test_ranks_that_gather_other_tensors_hear_of_it():
    class Two(nn.Module):
        def forward(self, x, y):
            return x.sin().sum(), y.sin().sum()

    def program(mesh):
        mine = dt.input_reshard(Two(), mesh, 0)
        x, y = (values(4, 6).requires_grad_() for _ in range(2))
        first, second = mine(x, y)
        loss = first if mesh.coordinate[0] else second
        with pytest.raises(da.errors.MismatchError, match="saved in call 1 of Two"):
            loss.backward()

    on_ranks(2, program)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (lambda m: (nn.ReLU(), m["tp"], "1"), da.errors.ArgumentTypeError, "number of an axis"),
        (lambda m: (torch.relu, m["tp"], 1), da.errors.ArgumentTypeError, "torch.nn.Module"),
        (lambda m: (nn.ReLU(), m, 1), da.errors.ArgumentError, r"mesh\['tp'\]"),
        (
            lambda m: (dt.input_reshard(nn.ReLU(), m["tp"], 1), m["tp"], 1),
            da.errors.ArgumentError,
            "already",
        ),
    ],
)
def test_arguments_that_cannot_be(arguments, error, message):
    def program():
        mesh = da.init_device_mesh((1, 2), ("dp", "tp"))
        with pytest.raises(error, match=message):
            dt.input_reshard(*arguments(mesh))

    simulate(2, program)
