"""Parallelized modules and moves inside the transforms of torch.func."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.func import functional_call, grad, vjp, vmap  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import ArgumentError  # noqa: E402
from distarray.testing import simulate  # noqa: E402

R, S = da.Replicate(), da.Shard


def values(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def mlp():
    module = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    with torch.no_grad():
        for i, p in enumerate(module.parameters()):
            p.copy_(values(*p.shape, seed=i))
    return module


PLAN = {"0": dt.RowwiseParallel(), "1": dt.ColwiseParallel(), "3": dt.RowwiseParallel()}
WORDS = torch.arange(7)


def on_mesh(program, ranks=(2, 3)):
    for count in ranks:
        simulate(count, lambda n=count: program(da.init_device_mesh((n,))), timeout=60)


COLUMNS = PLAN | {"0": dt.ColwiseParallel(output_layouts=R)}


def named(module):
    return {n: p.detach() for n, p in module.named_parameters()}


def loss(module):
    return lambda parameters, x: functional_call(module, parameters, (x,)).square().mean()


def same_blocks(module, given, wanted, first=0):
    """Compare blocks with whole tensors; with `first` axes in front that are not cut."""
    for name, p in module.named_parameters():
        whole, layout = wanted[name], dt.layout_of(p)
        for axis, (start, stop) in enumerate(layout.local_box() if layout else ()):
            whole = whole.narrow(first + axis, start, stop - start)
        torch.testing.assert_close(given[name], whole, msg=lambda m, n=name: f"{n}: {m}")


def test_gradients_of_parameters():
    def program(mesh):
        whole, mine = mlp(), dt.parallelize_module(mlp(), mesh, PLAN)
        same_blocks(
            mine, grad(loss(mine))(named(mine), WORDS), grad(loss(whole))(named(whole), WORDS)
        )

        def bent(module):
            def norm(parameters):
                found = grad(loss(module))(parameters, WORDS)
                return found["3.bias"].square().sum()

            return grad(norm)(named(module))

        same_blocks(mine, bent(mine), bent(whole))

    on_mesh(program)


def test_gradients_of_samples():
    def program(mesh):
        whole, mine = mlp(), dt.parallelize_module(mlp(), mesh, COLUMNS)
        torch.testing.assert_close(vmap(mine)(WORDS), whole(WORDS))
        found, wanted = (
            vmap(grad(loss(m)), in_dims=(None, 0))(named(m), WORDS) for m in (mine, whole)
        )
        same_blocks(mine, found, wanted, 1)

    on_mesh(program)


def test_ensembles():
    def program(mesh):
        whole, mine = mlp(), dt.parallelize_module(mlp(), mesh, PLAN)
        found, wanted = (
            vmap(lambda p, m=m: functional_call(m, p, (WORDS,)))(
                {n: torch.stack([p, 2 * p]) for n, p in named(m).items()}
            )
            for m in (mine, whole)
        )
        torch.testing.assert_close(found, wanted)

    on_mesh(program)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_moves_of_many(dim):
    x = values(3, 5, 4)

    def program(mesh):
        def cut(x):
            return dt.redistribute(x, mesh, [R], [S(1)], shape=x.shape)

        def there(x):
            shape = (x.shape[0], whole.shape[1])
            return dt.redistribute(x, mesh, [S(1)], [S(0)], shape=shape)

        whole = x.movedim(dim, 0)[0]
        parts = vmap(cut, in_dims=dim, out_dims=dim)(x)
        found, pull = vjp(vmap(there, in_dims=dim, out_dims=dim), parts)
        start, stop = da.Layout(mesh, [S(0)], whole.shape).local_box()[0]
        torch.testing.assert_close(found.movedim(dim, 0), x.movedim(dim, 0)[:, start:stop])
        torch.testing.assert_close(pull(found)[0], parts)

    on_mesh(program)


def refused(match, program):
    def on_rank(mesh):
        with pytest.raises(ArgumentError, match=match):
            program(mesh)

    on_mesh(on_rank, (2,))


def test_losses_of_classes_are_refused():
    def program(mesh):
        logits = dt.redistribute(values(3, 6), mesh, [R], [S(1)])
        target = torch.tensor([0, 3, 5])
        grad(lambda x: dt.vocab_parallel_cross_entropy(x, target, mesh))(logits)

    refused("gather them by output_layouts", program)


def test_words_of_a_cut_vocabulary_are_refused():
    def program(mesh):
        vmap(dt.parallelize_module(mlp(), mesh, PLAN))(WORDS)

    refused("all words at once", program)


def test_moves_in_the_background_are_refused():
    def program(mesh):
        def move(x):
            return dt.redistribute(x, mesh, [R], [S(0)], async_op=True).wait()

        vmap(move)(values(2, 4))

    refused("async_op=False", program)


def test_parameters_whose_gradients_are_added_are_refused():
    def program(mesh):
        mine = nn.LayerNorm(4).double()
        mine = dt.parallelize_module(copy.deepcopy(mine), mesh, dt.SequenceParallel())
        grad(lambda x: mine(x).sum())(values(2, 3, 4))

    refused("call a copy of the module that is not parallelized", program)
