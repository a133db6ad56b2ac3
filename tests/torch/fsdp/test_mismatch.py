"""Ranks that differ hear of it, and none waits for ever."""

from __future__ import annotations

import copy
import threading

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from tests.torch.fsdp.training import filled, mean_square, values  # noqa: E402

X = values(6, 5)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 5)
        self.bias = nn.Parameter(torch.zeros(5))
        self.biased = True

    def forward(self, x):
        x = torch.tanh(self.linear(x))
        return x + self.bias if self.biased else x


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.head = nn.Linear(5, 2)
        self.skip = None
        self.fails = None

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            if i == self.fails:
                raise ZeroDivisionError("forward")
            if i != self.skip:
                x = layer(x)
        return self.head(x)


START = filled(Stack())


def sharded(mesh, **kwargs):
    mine = copy.deepcopy(START)
    for layer in mine.layers:
        dt.fully_shard(layer, mesh, **kwargs)
    return dt.fully_shard(mine, mesh, **kwargs)


def run(program, ranks=2):
    """Run a program; return what each rank raised."""
    raised = [None] * ranks
    where = threading.local()

    def on_rank():
        mesh = da.init_device_mesh((ranks,))
        where.rank = mesh.rank
        try:
            program(mesh)
        except BaseException as error:
            raised[where.rank] = error
            raise

    with pytest.raises(Exception):  # noqa: B017 - whichever rank was first
        simulate(ranks, on_rank, timeout=20)
    return raised


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("change", ["width", "dtype", "name", "more", "less", "axis"])
def test_other_modules(rank, change):
    def program(mesh):
        own = mesh.rank == rank
        module = nn.Sequential(nn.Linear(5, 6 if own and change == "width" else 5), nn.Linear(5, 5))
        if own and change == "dtype":
            module[1].double()
        if own and change == "name":
            module._modules["other"] = module._modules.pop("1")
        if own and change == "more":
            module.append(nn.Linear(2, 2))
        if own and change == "less":
            module[1].bias = None
        with pytest.raises(da.errors.MismatchError, match="same module and arguments") as caught:
            dt.fully_shard(
                module,
                mesh,
                shard_placement_fn=lambda p: da.Shard(-1 if own and change == "axis" else 0),
            )
        assert "rank" in str(caught.value)
        assert type(module) is nn.Sequential
        assert module[0].weight.shape[0] >= 5

    simulate(2, program_on(program), timeout=20)


def program_on(program):
    return lambda: program(da.init_device_mesh((2,)))


def test_other_arguments():
    def program():
        mesh = da.init_device_mesh((2,))
        module = nn.Linear(5, 5)
        policy = dt.MixedPrecisionPolicy(torch.bfloat16 if mesh.rank else None)
        with pytest.raises(da.errors.MismatchError, match="bfloat16"):
            dt.fully_shard(module, mesh, mp_policy=policy)
        with pytest.raises(da.errors.MismatchError, match="reshard_after_forward"):
            dt.fully_shard(module, mesh, reshard_after_forward=mesh.rank + 1)

    simulate(2, program, timeout=20)


def test_an_argument_that_one_rank_alone_gets_wrong():
    def program(mesh):
        dt.fully_shard(nn.Linear(5, 5), mesh, mp_policy=3 if mesh.rank else None)

    raised = run(program)
    assert isinstance(raised[1], da.errors.ArgumentTypeError)
    assert isinstance(raised[0], da.errors.DistArrayError)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize("kind", ["skip", "unused", "forward", "backward", "frozen", "no backward"])
def test_ranks_out_of_step(rank, after, step, kind):
    """Every rank ends with an error; the first one's own, where it has one, and else a mismatch."""

    came_to = [0, 0]

    def program(mesh):
        mine = sharded(mesh, reshard_after_forward=after)
        for now in range(step + 3):
            came_to[mesh.rank] = now
            other = mesh.rank == rank and now == step
            mine.skip = 1 if other and kind == "skip" else None
            mine.fails = 1 if other and kind == "forward" else None
            mine.layers[1].biased = not (other and kind == "unused")
            mine.layers[1].bias.requires_grad_(not (other and kind == "frozen"))
            loss = mean_square(mine, X)
            if other and kind == "backward":
                loss = loss * 1
                loss.register_hook(lambda _: 1 / 0)
            if not (other and kind == "no backward"):
                loss.backward()

    raised = run(program)
    own = ZeroDivisionError if kind in ("forward", "backward") else da.errors.DistArrayError
    if kind == "no backward":  # found out at the next backward pass, if not before
        own = da.errors.MismatchError
        assert max(came_to) <= step + 1
    assert isinstance(raised[rank], own), raised
    assert isinstance(raised[1 - rank], da.errors.DistArrayError), raised


@pytest.mark.parametrize("factors", [(None, 1.0), (1.0, 3.0)])
def test_sums_that_ranks_divide_by_different_numbers_are_refused(factors):
    def program():
        mesh = da.init_device_mesh((2,), ("dp",))
        mine = sharded(mesh)
        mine.set_gradient_divide_factor(factors[mesh.rank])
        loss = mean_square(mine, X)
        with pytest.raises(da.errors.MismatchError, match="divided by"):
            loss.backward()

    simulate(2, program)
