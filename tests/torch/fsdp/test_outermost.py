"""The outermost group is gathered once a step; what is never called cannot be sharded."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import ArgumentError  # noqa: E402
from tests.torch.fsdp.training import (  # noqa: E402
    check_gradients,
    filled,
    gradients,
    on_ranks,
    square_mean,
    values,
)

LAYERS = 3


def stack() -> nn.Module:
    return filled(nn.Sequential(*(nn.Linear(5, 5) for _ in range(LAYERS)), nn.Linear(5, 2)))


def batch(mesh) -> torch.Tensor:
    """Return this rank's items, which no other rank has."""
    return values(4, 5, seed=17 + mesh.coordinate[0])


def wanted(ranks: int) -> dict[str, torch.Tensor]:
    """Return the gradients of one process that has the items of all ranks."""
    whole = stack()
    square_mean(whole, torch.cat([values(4, 5, seed=17 + i) for i in range(ranks)])).backward()
    return gradients(whole)


def sharded(mesh, **of_the_root) -> nn.Module:
    mine = stack()
    for layer in list(mine)[:-1]:
        dt.fully_shard(layer, mesh)
    return dt.fully_shard(mine, mesh, **of_the_root)


def gathers(mine, x) -> tuple[int, int]:
    """Return how often a step gathers: in forward, and in backward."""
    mine.zero_grad()
    with da.CommLog() as forward:
        loss = square_mean(mine, x)
    with da.CommLog() as backward:
        loss.backward()
    return forward.count("all_gather"), backward.count("all_gather")


@pytest.mark.parametrize(
    ("options", "again"),
    [
        ({}, LAYERS),
        ({"reshard_after_forward": None}, LAYERS),
        ({"reshard_after_forward": False}, LAYERS),
        ({"reshard_after_forward": True}, LAYERS + 1),
        ({"reshard_after_forward": 2}, LAYERS + 1),
    ],
)
def test_outermost_group_stays_whole_unless_told_otherwise(options, again):
    expected = wanted(4)

    def program(mesh):
        mine = sharded(mesh, **options)
        for _ in range(3):
            assert gathers(mine, batch(mesh)) == (LAYERS + 1, again)
            check_gradients(mine, expected)
        return True

    assert all(on_ranks(4, program))


def test_one_group_alone_is_gathered_once_a_step():
    expected = wanted(2)

    def program(mesh):
        mine = dt.fully_shard(stack(), mesh)
        assert gathers(mine, batch(mesh)) == (1, 0)
        check_gradients(mine, expected)
        mine.set_reshard_after_forward(True)
        assert gathers(mine, batch(mesh)) == (1, 1)
        mine.set_reshard_after_forward(None)
        assert gathers(mine, batch(mesh)) == (1, 0)

    on_ranks(2, program)


def test_a_layer_inside_goes_and_one_called_by_itself_stays():
    def program(mesh):
        mine = sharded(mesh)
        x = batch(mesh)
        assert gathers(mine[0], x) == (1, 0)
        assert gathers(mine, x) == (LAYERS + 1, LAYERS)

    on_ranks(2, program)


def test_evaluation_keeps_nothing():
    def program(mesh):
        mine = sharded(mesh)
        for _ in range(2):
            with torch.no_grad(), da.CommLog() as log:
                mine(batch(mesh))
            assert log.count("all_gather") == LAYERS + 1
            assert not mine._state.group.is_unsharded
        assert gathers(mine, batch(mesh)) == (LAYERS + 1, LAYERS)
        assert not mine._state.group.is_unsharded

    on_ranks(2, program)


@pytest.mark.parametrize("reentrant", [True, False])
def test_outermost_group_in_a_checkpoint(reentrant):
    expected = wanted(2)

    def program(mesh):
        mine = sharded(mesh)
        for _ in range(2):
            mine.zero_grad()
            x = batch(mesh).requires_grad_()
            checkpoint(mine, x, use_reentrant=reentrant).square().mean().backward()
            check_gradients(mine, expected)

    on_ranks(2, program)


def test_changes_between_passes_are_seen_by_the_next_one():
    single = stack()
    parts = [values(4, 5, seed=17 + i) for i in range(2)]
    optimizer = torch.optim.SGD(single.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        single(torch.cat(parts)).square().sum()  # never used
        square_mean(single, torch.cat(parts)).backward()
        optimizer.step()
    expected = copy.deepcopy(single.state_dict())

    def program(mesh):
        mine = sharded(mesh)
        optimizer = torch.optim.SGD(mine.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            mine(batch(mesh)).square().sum()  # whole from here on, and used by nothing
            square_mean(mine, batch(mesh)).backward()
            optimizer.step()
        for name, one in dt.state_dict(mine).items():
            torch.testing.assert_close(one, expected[name], msg=name)

    on_ranks(2, program)


class Called(nn.ModuleList):
    def forward(self, x):
        for one in self:
            x = one(x)
        return x


CONTAINERS = {
    "list": lambda: nn.ModuleList([nn.Linear(3, 3)]),
    "dict": lambda: nn.ModuleDict({"a": nn.Linear(3, 3)}),
    "parameters": lambda: nn.ParameterList([nn.Parameter(torch.ones(3))]),
    "named parameters": lambda: nn.ParameterDict({"a": nn.Parameter(torch.ones(3))}),
    "module": lambda: nn.Module(),
    "subclass": lambda: type("Layers", (nn.ModuleList,), {})([nn.Linear(3, 3)]),
}


@pytest.mark.parametrize("kind", CONTAINERS)
@pytest.mark.parametrize("listed", [False, True])
def test_containers_that_are_never_called_are_refused(kind, listed):
    def program(mesh):
        given = CONTAINERS[kind]()
        before = {name: p.shape for name, p in given.named_parameters()}
        with pytest.raises(ArgumentError, match=r"has no forward.*fully_shard each.*list"):
            dt.fully_shard([nn.Linear(3, 3), given] if listed else given, mesh)
        assert {name: p.shape for name, p in given.named_parameters()} == before
        return True

    assert all(on_ranks(2, program))


def test_containers_with_a_forward_and_lists_of_modules_are_sharded():
    def program(mesh):
        x = values(2, 3, seed=mesh.coordinate[0])
        called = filled(Called([nn.Linear(3, 3), nn.Linear(3, 3)]))
        expected = called(x)
        assert torch.allclose(dt.fully_shard(called, mesh)(x), expected)
        layers = filled(nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)]))
        expected = layers[1](layers[0](x))
        dt.fully_shard(list(layers), mesh)
        assert torch.allclose(layers[1](layers[0](x)), expected)

    on_ranks(2, program)


def test_methods_of_a_module_without_forward_are_registered():
    class Coder(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.Linear(3, 5)

        def encode(self, x):
            return self.up(x)

    def program(mesh):
        mine = filled(Coder())
        x = values(2, 3, seed=mesh.coordinate[0])
        expected = mine.encode(x)
        dt.fully_shard(mine, mesh)
        dt.register_fsdp_forward_method(mine, "encode")
        assert torch.allclose(mine.encode(x), expected)

    on_ranks(2, program)
