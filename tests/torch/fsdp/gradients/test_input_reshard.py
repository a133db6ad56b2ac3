"""Slices of replicated activations are kept in sharded modules too, in either order of calls."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from distarray.torch.parallel import _input_reshard  # noqa: E402
from tests.torch.fsdp.training import (  # noqa: E402
    check_gradients,
    filled,
    gradients,
    square_mean,
    values,
)
from tests.torch.parallel.reshard_models import MLP_PLAN, Mlp  # noqa: E402

WIDTH = 6


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Mlp(WIDTH), Mlp(WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x):
        return self.second(self.norm(self.first(x)))


PLAN = {f"{part}.{name}": style for part in ("first", "second") for name, style in MLP_PLAN.items()}

PLACES = {
    "of the same module": (["first"], ["first"]),
    "of all that is sharded": (["first", "second", ""], ["first", "second", ""]),
    "inside": (["first.up", "second"], ["", "first", "second"]),
    "around": ([""], ["first", "norm"]),
    "inside and around": (["", "first"], ["norm", "first"]),
}


@pytest.mark.parametrize("first", ["input_reshard", "fully_shard"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("after", [True, None])
def test_slices_are_kept_in_sharded_modules(first, place, after):
    resharded, sharded = PLACES[place]
    whole = filled(Stack())
    batches = [values(2, 5, WIDTH, seed=40 + i) for i in range(2)]
    plain = copy.deepcopy(whole)
    square_mean(plain, torch.cat(batches)).backward()
    wanted = gradients(plain)

    def counted(*, shard):
        def program():
            mesh = da.init_device_mesh((2, 2), ("dp", "tp"))
            mine = dt.parallelize_module(copy.deepcopy(whole), mesh["tp"], PLAN)

            def apply_fully_shard():
                for name in sorted(sharded, key=len, reverse=True) if shard else ():
                    dt.fully_shard(
                        mine.get_submodule(name), mesh["dp"], reshard_after_forward=after
                    )

            def apply_input_reshard():
                for name in resharded:
                    dt.input_reshard(mine.get_submodule(name), mesh["tp"], 1)

            steps = {"fully_shard": apply_fully_shard, "input_reshard": apply_input_reshard}
            for name in sorted(steps, key=lambda name: name != first):
                steps[name]()
            counts = []
            for _ in range(3):
                mine.zero_grad()
                with da.CommLog() as log:
                    square_mean(mine, batches[mesh["dp"].coordinate[0]]).backward()
                counts.append(log.count("all_gather", "tp"))
                if shard:
                    check_gradients(mine, wanted) if "" in sharded else None
            assert len(set(counts)) == 1
            return counts[0]

        return simulate(4, program)

    slices = counted(shard=False)
    assert min(slices) > 0
    assert counted(shard=True) == slices


def test_wholes_go_while_slices_are_kept():
    """Between forward and backward a rank holds neither a whole parameter nor a whole input."""
    whole = filled(Stack())

    def program():
        mesh = da.init_device_mesh((2, 2), ("dp", "tp"))
        mine = dt.parallelize_module(copy.deepcopy(whole), mesh["tp"], PLAN)
        dt.fully_shard(mine, mesh["dp"], reshard_after_forward=True)
        dt.input_reshard(mine, mesh["tp"], 1)
        loss = square_mean(mine, values(2, 5, WIDTH, seed=mesh.rank // 2))
        assert not mine._state.group.is_unsharded
        with da.CommLog() as log:
            loss.backward()
        return log.count("all_gather", "dp"), log.count("all_gather", "tp") > 0

    assert simulate(4, program) == [(1, True)] * 4


def test_addresses_of_parameters_that_go_are_not_taken_by_activations():
    """They would be taken for parameters, on the one rank where that happens, and be kept whole."""

    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        mine = nn.Sequential(*(nn.Linear(3, 3) for _ in range(50)))
        call = _input_reshard._Call(mine, mesh, 0, "a call")
        for i in range(200):
            x = values(4, 3, seed=mesh.rank)
            call.note(x)
            assert call.save(x) is not None  # what is a parameter is known from the first time on
            if not i:
                mine.double()  # and none is where it was

    simulate(2, program)
