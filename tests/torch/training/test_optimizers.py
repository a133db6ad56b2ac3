"""Optimizers that mix the items of a parameter are refused on shards, all others step as ever."""

from __future__ import annotations

import copy
import warnings

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import ArgumentError  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from tests.torch.fsdp.training import (  # noqa: E402
    check_parameters,
    filled,
    on_ranks,
    square_mean,
    values,
)


class Lion(torch.optim.Optimizer):
    """Signs of averages: item by item, of nobody's."""

    def __init__(self, params, lr=1e-3, decay=0.9):
        super().__init__(params, {"lr": lr, "decay": decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                average = self.state[p].setdefault("average", torch.zeros_like(p))
                average.lerp_(p.grad, 1 - group["decay"])
                p.add_(average.sign(), alpha=-group["lr"])


class Lamb(torch.optim.Optimizer):
    """A step as long as the parameter: a norm of all of it."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad.sign() * group["lr"] * p.norm() / p.numel() ** 0.5)


class Shampoo(torch.optim.Optimizer):
    """Products of gradients, which count only from the hundredth step on."""

    def __init__(self, params, lr=1e-2):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.ndim == 2:
                    left = self.state[p].setdefault("left", p.new_zeros(p.shape[0], p.shape[0]))
                    left.add_(p.grad @ p.grad.T)
                p.sub_(p.grad, alpha=group["lr"])


class Adaptive(torch.optim.Optimizer):
    """One rate for everything, of all gradients together."""

    def __init__(self, params, lr=1.0):
        super().__init__(params, {"lr": lr})
        self.total = 0.0

    @torch.no_grad()
    def step(self, closure=None):
        held = [p for group in self.param_groups for p in group["params"]]
        self.total += sum(float(p.grad.square().sum()) for p in held)
        for p in held:
            p.sub_(p.grad, alpha=0.1 / self.total**0.5)


class Peculiar(Lion):
    """One that takes more than a list of parameters to be made."""

    def __init__(self, params, names, lr=1e-3):
        super().__init__(params, lr)
        self.names = [names[p] for group in self.param_groups for p in group["params"]]


T = torch.optim
ITEMWISE = {
    "SGD": lambda p: T.SGD(p, 0.1),
    "SGD with momentum": lambda p: T.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "SGD foreach": lambda p: T.SGD(p, 0.1, momentum=0.9, foreach=True),
    "Adam": lambda p: T.Adam(p, 0.01),
    "Adam amsgrad": lambda p: T.Adam(p, 0.01, amsgrad=True, foreach=False),
    "AdamW": lambda p: T.AdamW(p, 0.01),
    "AdamW fused": lambda p: T.AdamW(p, 0.01, fused=True),
    "AdamW with a rate that is a tensor": lambda p: T.AdamW(p, torch.tensor(0.01), foreach=False),
    "SGD fused": lambda p: T.SGD(p, 0.1, momentum=0.5, fused=True),
    "Adagrad": lambda p: T.Adagrad(p, 0.1),
    "Adagrad fused": lambda p: T.Adagrad(p, 0.1, fused=True),
    "RMSprop": lambda p: T.RMSprop(p, 0.01, centered=True, momentum=0.3),
    "NAdam": lambda p: T.NAdam(p, 0.01),
    "RAdam": lambda p: T.RAdam(p, 0.01),
    "Rprop": lambda p: T.Rprop(p, 0.01),
    "ASGD": lambda p: T.ASGD(p, 0.01),
    "Adamax": lambda p: T.Adamax(p, 0.01),
    "Adadelta": lambda p: T.Adadelta(p, 0.5),
    "Lion": lambda p: Lion(p, 0.01),
}
MIXING = {
    "Muon": lambda p: T.Muon([x for x in p if x.ndim == 2], 0.01),
    "LBFGS": lambda p: T.LBFGS(p, 0.1, line_search_fn="strong_wolfe"),
    "Adafactor": lambda p: T.Adafactor(p, 0.01),
    "Lamb": lambda p: Lamb(p, 0.01),
    "Lamb that warms up": lambda p: Lamb(p, 0.0),
    "Shampoo": lambda p: Shampoo(p),
    "Adaptive": lambda p: Adaptive(p),
}


def model(width: int = 12) -> nn.Module:
    return filled(nn.Sequential(nn.Linear(5, width), nn.GELU(), nn.Linear(width, 3)))


def batch(rank: int) -> torch.Tensor:
    return values(4, 5, seed=60 + rank)


def sharded(mesh) -> nn.Module:
    mine = model()
    dt.fully_shard(mine[0], mesh)
    return dt.fully_shard(mine, mesh)


def steps(module, optimizer, x, count=3):
    for _ in range(count):
        optimizer.zero_grad()
        square_mean(module, x).backward()
        optimizer.step()


@pytest.mark.parametrize("name", ITEMWISE)
def test_optimizers_of_single_items_step_as_on_one_process(name):
    whole = model()
    steps(whole, ITEMWISE[name](whole.parameters()), torch.cat([batch(0), batch(1)]))

    def program(mesh):
        mine = sharded(mesh)
        before = torch.get_rng_state()
        steps(mine, ITEMWISE[name](mine.parameters()), batch(mesh.coordinate[0]))
        assert torch.equal(before, torch.get_rng_state())
        check_parameters(mine, whole, 1e-7)

    on_ranks(2, program)


@pytest.mark.parametrize("name", MIXING)
@pytest.mark.parametrize("cut", ["fully_shard", "columns", "rows"])
def test_optimizers_that_mix_items_are_refused_on_shards(name, cut):
    def program():
        mesh = da.init_device_mesh((2,), ("x",))
        if cut == "fully_shard":
            mine = sharded(mesh)
        else:
            style = dt.ColwiseParallel() if cut == "columns" else dt.RowwiseParallel()
            mine = dt.parallelize_module(model(), mesh, {"0" if cut == "columns" else "2": style})
        optimizer = MIXING[name](list(mine.parameters()))
        generator = torch.Generator().manual_seed(mesh.rank)
        for p in mine.parameters():
            p.grad = torch.randn(p.shape, generator=generator, dtype=p.dtype)
        before = [p.detach().clone() for p in mine.parameters()]
        closure = [lambda: torch.zeros(())] if name == "LBFGS" else []
        for _ in range(2):
            with pytest.raises(ArgumentError, match=r"needs whole parameters.*dt\.replicate"):
                optimizer.step(*closure)
        assert all(map(torch.equal, before, mine.parameters()))
        return True

    assert all(simulate(2, program))


def test_whole_parameters_take_any_optimizer():
    def program():
        mesh = da.init_device_mesh((2,), ("dp",))
        mine = dt.replicate(model(), mesh)
        whole = model()
        x = [batch(0), batch(1)]
        for module, mine_x in ((mine, x[mesh.rank]), (whole, torch.cat(x))):
            optimizer = torch.optim.Muon([p for p in module.parameters() if p.ndim == 2], 0.01)
            steps(module, optimizer, mine_x)
        for one, other in zip(mine.parameters(), whole.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)

    simulate(2, program)


def test_groups_without_shards_take_any_options():
    """Muon for what every rank has, and an optimizer of items for the rest."""

    def program(mesh):
        mine = model()
        head = mine[2]
        dt.replicate(head, mesh)
        dt.fully_shard(mine, mesh, ignored_params=head.parameters())
        muon = torch.optim.Muon([head.weight], 0.01)
        rest = torch.optim.AdamW([head.bias, *mine[0].parameters()], 0.01)
        square_mean(mine, batch(mesh.rank)).backward()
        muon.step()
        rest.step()

    on_ranks(2, program)


def test_an_optimizer_that_cannot_be_tried_steps_with_a_warning():
    def program(mesh):
        mine = sharded(mesh)
        names = {p: name for name, p in mine.named_parameters()}
        optimizer = Peculiar(mine.parameters(), names)
        square_mean(mine, batch(mesh.rank)).backward()
        optimizer.step()
        optimizer.step()

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        on_ranks(1, program)
        on_ranks(2, program)
    assert told
    assert all("Peculiar may step on shards" in str(one.message) for one in told)


def test_each_optimizer_is_tried_once(monkeypatch):
    from distarray.torch.training import _optimizers

    tried = []
    verdict = _optimizers._find_obstacle
    monkeypatch.setattr(_optimizers, "_find_obstacle", lambda *a: tried.append(1) or verdict(*a))

    def program(mesh):
        mine = sharded(mesh)
        one = {p: torch.optim.SGD([p], 0.0123) for p in mine.parameters()}  # one for each
        square_mean(mine, batch(mesh.rank)).backward()
        for optimizer in one.values():
            for _ in range(3):
                optimizer.step()

    on_ranks(1, program)
    assert not tried  # shards of one rank are everything
    on_ranks(2, program)
    assert 0 < len(tried) <= 2 * 4


def test_schedulers_and_scalers_step_as_ever():
    whole = model()

    def run(module, x, scaler):
        optimizer = torch.optim.AdamW(module.parameters(), 0.01)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.5, total_iters=4)
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale(square_mean(module, x)).backward()
            scaler.step(optimizer)
            scaler.update()
            schedule.step()

    run(whole, torch.cat([batch(0), batch(1)]), torch.amp.GradScaler("cpu"))

    def program(mesh):
        mine = sharded(mesh)
        run(mine, batch(mesh.rank), dt.GradScaler(mesh, "cpu"))
        check_parameters(mine, copy.deepcopy(whole), 1e-7)

    on_ranks(2, program)
