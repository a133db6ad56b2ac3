"""What cannot be replicated or averaged is refused, on all ranks where they differ."""

from __future__ import annotations

import contextlib
import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from distarray.torch.data_parallel import _reducer  # noqa: E402
from tests.torch.programs import (  # noqa: E402
    check_gradients,
    filled,
    gradients,
    mlp,
    on_ranks,
    shard,
    values,
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.register_parameter("extra", nn.Parameter(torch.ones(1))), "parameter extra"),
        (lambda m: m.double(), "0.weight: float32.*rank 1: .*0.weight: float64"),
        (lambda m: m[0].requires_grad_(False), "0.weight.*without gradient"),
        (lambda m: m.__setitem__(0, nn.Linear(5, 8)), r"0.weight: float32 \(8, 5\)"),
        (lambda m: m.to("meta"), "meta"),
        (lambda m: dt.replicate(m, da.init_device_mesh((1,))), "already"),
        (lambda m: m.register_buffer("b", torch.ones(2)), "buffer b"),
    ],
)
def test_ranks_with_different_modules_hear_of_it_all(change, message):
    def program():
        mesh = da.init_device_mesh((3,), ("dp",))
        module = filled(nn.Sequential(nn.Linear(5, 9), nn.Linear(9, 9)))
        if mesh.coordinate == (1,):
            # On one rank alone: another mesh of one rank, where the mesh of three is not at hand.
            with contextlib.suppress(da.errors.MeshError):
                if message == "already":
                    module.__dict__["_distarray_replica"] = None
                else:
                    change(module)
        with pytest.raises(da.errors.DistArrayError, match=message):
            dt.replicate(module, mesh)
        return True

    assert simulate(3, program) == [True] * 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"op": "max"}, "'avg' or 'sum'"), ({"bucket_bytes": 0}, "positive")],
)
def test_arguments_that_cannot_be(arguments, message):
    def program(mesh):
        with pytest.raises(da.errors.ArgumentError, match=message):
            dt.replicate(mlp(), mesh, **arguments)

    on_ranks(2, program)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"op": "sum"}, "op='avg'.*rank 1: op='sum'"),
        ({"op": "max"}, "'avg' or 'sum'"),
        ({"bucket_bytes": 4096}, "bucket_bytes=4096"),
        ({"broadcast_buffers": False}, "broadcast_buffers=False"),
    ],
)
def test_arguments_that_differ_between_ranks(arguments, message):
    def program(mesh):
        with pytest.raises(da.errors.DistArrayError, match=message):
            dt.replicate(mlp(), mesh, **(arguments if mesh.rank == 1 else {}))

    on_ranks(3, program)


@pytest.mark.filterwarnings("ignore:Using backward:UserWarning")
def test_gradients_that_cannot_be_averaged():
    def program(mesh):
        sparse = dt.replicate(nn.Embedding(4, 2, sparse=True), mesh)
        with pytest.raises(da.errors.ArgumentTypeError, match="'weight' is sparse"):
            sparse(torch.tensor([1, 2])).sum().backward()
        again = dt.replicate(mlp(), mesh)
        y = again(values(2, 5)).square().sum()
        with pytest.raises(da.errors.ArgumentError, match="create_graph"):
            y.backward(create_graph=True)

    on_ranks(2, program)


def test_no_sync_of_what_is_not_replicated():
    error = pytest.raises(da.errors.ArgumentError, match="without anything replicated")
    with error, dt.no_sync(nn.Linear(2, 2)):
        pass


def test_ranks_out_of_step_hear_of_it():
    def program(mesh):
        mine = dt.replicate(mlp(), mesh)
        x = values(2, 5)
        if mesh.coordinate[0] == 0:
            mine(x)  # one call more than the other
        with pytest.raises(da.errors.MismatchError, match="forward call"):
            mine(x).sum().backward()

    on_ranks(2, program)


def test_modules_that_ranks_run_in_another_order_are_told_apart():
    def program(mesh):
        both = [dt.replicate(mlp(), mesh) for _ in range(2)]
        mine = both[mesh.coordinate[0]]
        with pytest.raises(da.errors.MismatchError, match="of replicated module"):
            mine(values(2, 5)).sum().backward()

    on_ranks(2, program)


def test_a_step_by_gradients_that_were_not_averaged_is_refused():
    """Only calls of the replicated module find out what requires gradients."""

    def program(mesh):
        module = mlp()
        module[0].requires_grad_(False)
        mine = dt.replicate(module, mesh)
        optimizer = torch.optim.SGD(mine.parameters(), 0.1)
        mine[0].requires_grad_(True)
        mine[0](values(2, 5, seed=mesh.rank)).sum().backward()
        before = mine[0].weight.detach().clone()
        with pytest.raises(da.errors.ArgumentError, match=r"shape \(9, 5\).*call the module"):
            optimizer.step()
        assert torch.equal(mine[0].weight, before)
        mine.zero_grad()
        mine(values(2, 5, seed=mesh.rank)).sum().backward()
        optimizer.step()
        dt.check_replicas(mine, mesh)

    on_ranks(2, program)


def test_what_cannot_have_gradients_is_refused():
    def program(mesh):
        with torch.inference_mode():
            made_inside = mlp()
            with pytest.raises(da.errors.ArgumentError, match="inference_mode"):
                dt.replicate(mlp(), mesh)
        with pytest.raises(da.errors.ArgumentError, match=r"'0.weight'.*make and replicate"):
            dt.replicate(made_inside, mesh)

    on_ranks(2, program)


def test_a_pass_that_failed_does_not_keep_the_next_from_averaging(monkeypatch):
    model, x = mlp(), values(4, 5)
    model(x).square().mean().backward()
    wanted = gradients(model)
    model.zero_grad()
    failing = True
    make = _reducer.empty

    def empty(*arguments):
        if failing:
            raise MemoryError("no memory for a bucket")
        return make(*arguments)

    monkeypatch.setattr(_reducer, "empty", empty)

    def program(mesh):
        nonlocal failing
        mine = dt.replicate(copy.deepcopy(model), mesh, bucket_bytes=1)
        # Its traceback keeps alive what was under way.
        with pytest.raises(MemoryError) as kept:
            mine(shard(x, mesh)).square().mean().backward()
        mesh.communicator().barrier()
        failing = False
        mine.zero_grad()
        mine(shard(x, mesh)).square().mean().backward()
        check_gradients(mine, wanted)
        assert kept.value.args == ("no memory for a bucket",)

    on_ranks(2, program)
