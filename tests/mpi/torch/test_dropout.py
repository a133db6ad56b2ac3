"""What modules draw at random for shares: alike on any number of ranks, or by rank; no drift."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402

F = nn.functional
R, S = da.Replicate(), da.Shard
WIDTH = 16


class Between(nn.Module):
    """A random function of hidden features between two layers, and dropout of replicated ones."""

    def __init__(self, function, again=None):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(0.5)
        self.function, self.again = function, again
        self.seen: list[torch.Tensor] = []

    def forward(self, x):
        y = self.up(x)
        if self.again is None:
            y = self._inner(y)
        else:
            y = checkpoint(self._inner, y, use_reentrant=self.again)
        return self.drop(self.down(y))

    def _inner(self, y):
        z = self.function(F.gelu(y))
        self.seen.append(z.detach())
        return z


class Attention(nn.Module):
    """Attention of as many heads as the rank has."""

    def __init__(self, by_hand, again=None):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.by_hand, self.again = by_hand, again
        self.drop = nn.Dropout(0.5)
        self.seen: list[torch.Tensor] = []

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (-1, 2)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        if self.again is None:
            y = self._inner(q, k, v)
        else:
            y = checkpoint(self._inner, q, k, v, use_reentrant=self.again)
        return self.drop(self.out(y.transpose(1, 2).flatten(2)))

    def _inner(self, q, k, v):
        p = 0.5 if self.training else 0.0
        if self.by_hand:
            weights = F.dropout((q @ k.mT).softmax(-1), p)
            self.seen.append((weights == 0).detach())
            return weights @ v
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=p)
        self.seen.append(y.detach())
        return y


PLANS = {
    Between: {"up": dt.ColwiseParallel(), "down": dt.RowwiseParallel()},
    Attention: {
        "qkv": dt.ColwiseParallel(parts=(WIDTH,) * 3, unit=2),
        "out": dt.RowwiseParallel(unit=2),
    },
}
BY_INDEX = {
    # the same on any number of ranks
    "dropout": lambda y: F.dropout(y, 0.5),
    "in place": lambda y: F.dropout(y * 1, 0.5, inplace=True),
    "torch.dropout": lambda y: torch.dropout(y, 0.5, train=True),
    "alpha": lambda y: F.alpha_dropout(y, 0.5, training=True),
    "channels": lambda y: F.dropout1d(y.mT, 0.5).mT,
    "ours": lambda y: dt.dropout(y, 0.5),
    "module": nn.Dropout(0.5),
}  # fmt: skip
BY_RANK = {
    "heads": lambda y: (
        F.dropout(y.unflatten(-1, (-1, 2)).transpose(1, 2), 0.5).transpose(1, 2).flatten(2)
    ),
    "rand_like": lambda y: y * torch.rand_like(y),
    "bernoulli": lambda y: y * torch.bernoulli(torch.full_like(y, 0.5)),
    "bernoulli_": lambda y: y * torch.empty_like(y).bernoulli_(0.5),
    "randn_like": lambda y: y + torch.randn_like(y),
    "gumbel": lambda y: F.gumbel_softmax(y.mT, dim=-1).mT,
    "lost": lambda y: F.dropout(torch.special.entr(y.abs() + 1).roll(1, 0).reshape(y.shape), 0.5),
}
BY_SIZE = {
    "rand": lambda y: y * torch.rand(y.shape),
    "fresh": lambda y: y * y.new_empty(y.shape).uniform_(),
    "normal": lambda y: y + torch.normal(0.0, 1.0, y.shape),
}


def parallel(module, mesh):
    twin = dt.parallelize_module(copy.deepcopy(module), mesh, PLANS[type(module)])
    torch.manual_seed(5)
    return twin


def inputs(mesh):
    x = torch.randn(2, 3, WIDTH, generator=torch.Generator().manual_seed(1))
    return x.requires_grad_()


def run(twin, mesh):
    """Return the output, the gradients of an input and what is drawn next."""
    x = inputs(mesh)
    y = twin(x)
    y.square().sum().backward()
    return y.detach(), x.grad, torch.rand(3)


def alike(mesh, x):
    whole = dt.redistribute(x[None].contiguous(), mesh, [S(0)], [R])
    return bool((whole == x).all())


@pytest.fixture
def meshes():
    """All ranks in one mesh, and this rank alone in another."""
    from mpi4py import MPI

    size = MPI.COMM_WORLD.size
    both = da.init_device_mesh((size, 1), ("all", "alone"))
    with torch.random.fork_rng(devices=[]):
        yield both["all"], both["alone"]


@pytest.mark.mpi
@pytest.mark.parametrize("again", [None, False, True])
@pytest.mark.parametrize("how", BY_INDEX)
def test_dropout_of_a_share_is_that_of_one_process(meshes, how, again):
    mesh, alone = meshes
    torch.manual_seed(0)
    module = Between(BY_INDEX[how], again)
    expected = run(parallel(module, alone), alone)
    found = run(parallel(module, mesh), mesh)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("again", [None, False, True])
@pytest.mark.parametrize("how", [*BY_INDEX, *BY_RANK, *BY_SIZE, "sdpa", "weights"])
def test_ranks_stay_alike_and_recompute_what_they_drew(meshes, how, again):
    mesh, _ = meshes
    torch.manual_seed(0)
    if how in ("sdpa", "weights"):
        module = Attention(how == "weights", again)
    else:
        module = Between((BY_INDEX | BY_RANK | BY_SIZE)[how], again)
    twin = parallel(module, mesh)
    y, slope, after = run(twin, mesh)
    assert alike(mesh, y)
    assert alike(mesh, slope)
    assert alike(mesh, after)
    if again is not None:
        twin.again = None
        torch.manual_seed(5)
        for one, other in zip((y, slope, after), run(twin, mesh), strict=True):
            torch.testing.assert_close(one, other)
    if mesh.size == 2 and how not in BY_SIZE:  # equal shares: the masks differ
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.fill_(0.1)
            twin.seen.clear()
            torch.manual_seed(3)
            twin(torch.ones(40, 3, WIDTH))
        assert not alike(mesh, twin.seen[0].float())


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("kind", [Between, Attention])
def test_evaluation_draws_nothing(meshes, kind):
    mesh, _ = meshes
    torch.manual_seed(0)
    module = Attention(by_hand=False) if kind is Attention else Between(nn.Dropout(0.5))
    twin = parallel(module.eval(), mesh)
    expected = torch.rand(3, generator=torch.Generator().manual_seed(5))
    y, _, after = run(twin, mesh)
    torch.testing.assert_close(after, expected, rtol=0, atol=0)
    torch.testing.assert_close(y, module(inputs(mesh)).detach(), rtol=1e-4, atol=1e-5)
