"""torch.func: refused where ranks would have to send each other something."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.func import functional_call, grad, vjp, vmap  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import ArgumentError  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from tests.torch.programs import values  # noqa: E402

R, S = da.Replicate(), da.Shard
WORDS = torch.arange(6)


def cut(mesh, module, plan):
    return dt.parallelize_module(module.double(), mesh, plan)


def layers(mesh):
    plan = {"0": dt.ColwiseParallel(), "1": dt.RowwiseParallel()}
    return cut(mesh, nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3)), plan)


def slope(mesh, x):
    module = layers(mesh)
    return grad(lambda x: module(x).sum())(x)


def moves(mesh, x):
    return dt.redistribute(x, mesh, [R], [S(0)])


def loss_of_classes(mesh, x):
    x = dt.redistribute(x, mesh, [R], [S(1)])
    target = torch.tensor([0, 3])
    return grad(lambda x: dt.vocab_parallel_cross_entropy(x, target, mesh))(x)


def norm_of_a_sequence(mesh, x):
    norm = cut(mesh, nn.LayerNorm(4), dt.SequenceParallel())
    return grad(lambda x: norm(x).sum())(x[None])


@pytest.mark.parametrize(
    ("program", "match"),
    [
        (slope, "not parallelized"),
        (lambda mesh, x: vmap(layers(mesh))(x), "not parallelized"),
        (lambda mesh, x: vjp(layers(mesh), x), "not parallelized"),
        (lambda mesh, x: vmap(lambda x: moves(mesh, x))(x), "send each other"),
        (loss_of_classes, "gather them by output_layouts"),
        (norm_of_a_sequence, "not parallelized"),
        (
            lambda mesh, _: vmap(cut(mesh, nn.Embedding(7, 4), dt.RowwiseParallel()))(WORDS),
            "all words at once",
        ),
    ],
)
def test_what_communicates_is_refused(program, match):
    def on_rank():
        with pytest.raises(ArgumentError, match=rf"torch\.func .*{match}"):
            program(da.init_device_mesh((2,)), values(2, 4))

    simulate(2, on_rank)


def test_what_stays_on_a_rank_is_not():
    def program():
        mesh = da.init_device_mesh((2,))
        mine = cut(mesh, nn.Linear(4, 6), dt.ColwiseParallel()).requires_grad_(False)
        torch.testing.assert_close(vmap(mine)(values(2, 4)), mine(values(2, 4)))

    simulate(2, program)


def test_blocks_are_given_by_functional_call():
    def program():
        mine, x = layers(da.init_device_mesh((2,))), values(2, 4)
        given = {n: p.detach() * 0 for n, p in mine.named_parameters()}
        assert not functional_call(mine, given, (x,)).any()

    simulate(2, program)


def test_many_gradients_at_once_are_refused():
    def program():
        mine, x = layers(da.init_device_mesh((2,))), values(2, 4).requires_grad_()
        y = mine(x)
        with pytest.raises(ArgumentError, match="is_grads_batched"):
            torch.autograd.grad(y, x, torch.ones(2, *y.shape).double(), is_grads_batched=True)
        with pytest.raises(ArgumentError, match="vectorize=True"):
            torch.autograd.functional.jacobian(mine, x, vectorize=True)

    simulate(2, program)
