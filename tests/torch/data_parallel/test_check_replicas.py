"""Parameters and buffers that have drifted apart are named, with the ranks; blocks are not."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import ArgumentError, ArgumentTypeError, MismatchError  # noqa: E402
from distarray.testing import simulate  # noqa: E402


def net(dtype=torch.float32):
    torch.manual_seed(0)
    layers = nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 5), nn.BatchNorm1d(5)
    return nn.Sequential(*layers).to(dtype)


PLAN = {"0": dt.ColwiseParallel(), "2": dt.RowwiseParallel()}


def each(program, shape=(2,), names=("tp",)):
    """Run a program with a mesh and its own copy of the model on simulated ranks."""
    model = net()

    def run():
        return program(da.init_device_mesh(shape, names), copy.deepcopy(model))

    return simulate(torch.Size(shape).numel(), run)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_nothing_is_said_of_blocks_and_equal_replicas(ranks):
    def program(mesh, model):
        dt.parallelize_module(model, mesh, PLAN)
        return dt.check_replicas(model, mesh)

    assert each(program, (ranks,)) == [None] * ranks


@pytest.mark.parametrize("ranks", [2, 3])
def test_what_differs_is_named_with_its_ranks_on_every_rank(ranks):
    def program(mesh, model):
        dt.parallelize_module(model, mesh, PLAN)
        with torch.no_grad():
            if mesh.rank == 1:
                model[1].weight[3] += 1e-7  # the last bit
                model[3].running_mean[0] = 1.0
        with pytest.raises(MismatchError) as found:
            dt.check_replicas(model, mesh)
        with pytest.raises(MismatchError) as without:
            dt.check_replicas(model, mesh, buffers=False)
        return str(found.value), str(without.value)

    said = each(program, (ranks,))
    assert len(set(said)) == 1
    whole, without = said[0]
    others = "rank 0" if ranks == 2 else "ranks 0, 2"
    assert f"'1.weight': {others}: float32 (7,) " in whole
    assert "and rank 1: float32 (7,) " in whole
    assert "'3.running_mean'" in whole
    assert "'3.running_mean'" not in without
    assert all(f"'{name}'" not in whole for name in ("0.weight", "0.bias", "2.weight", "1.bias"))


def test_a_norm_that_was_left_out_of_a_sequence_parallel_plan_is_found():
    whole = torch.linspace(-1, 1, 30).reshape(1, 6, 5) ** 3
    norm = nn.LayerNorm(5)

    def program(style):
        mesh = da.init_device_mesh((2,), ("tp",))
        model = nn.Sequential(copy.deepcopy(norm))
        if style is not None:
            dt.parallelize_module(model, mesh, {"0": style})
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        mine = dt.redistribute(whole, mesh, [da.Replicate()], [da.Shard(1)])
        model(mine).square().sum().backward()
        optimizer.step()
        if style is not None:
            dt.check_replicas(model, mesh)
            return
        with pytest.raises(MismatchError, match=r"'0\.weight'.*SequenceParallel"):
            dt.check_replicas(model, mesh)

    simulate(2, lambda: program(None))
    simulate(2, lambda: program(dt.SequenceParallel()))


def test_blocks_are_compared_along_the_axes_that_do_not_cut():
    def program(mesh, model):
        dt.parallelize_module(model, mesh["tp"], PLAN)
        dt.check_replicas(model, mesh)
        dt.check_replicas(model, mesh["dp"])
        if mesh.rank == 3:
            with torch.no_grad():
                model[0].weight[0, 0] += 1
        dt.check_replicas(model, mesh["tp"])
        with pytest.raises(MismatchError) as found:
            dt.check_replicas(model, mesh)
        if mesh["tp"].coordinate == (1,):
            with pytest.raises(MismatchError, match=r"'0\.weight'"):
                dt.check_replicas(model, mesh["dp"])
        else:
            dt.check_replicas(model, mesh["dp"])
        return str(found.value)

    (said,) = set(each(program, (2, 2), ("dp", "tp")))
    assert "'0.weight' (block tp 1): rank 1: float32 (3, 5)" in said
    assert "rank 3: float32 (3, 5)" in said
    assert "; and" not in said


def test_a_name_that_some_ranks_lack_and_another_mesh_are_told():
    def program(mesh, model):
        if mesh.rank == 1:
            model.append(nn.Linear(1, 1, bias=False))
        with pytest.raises(MismatchError, match=r"'4\.weight': rank 0: nothing of that name"):
            dt.check_replicas(model, mesh)
        del model[4:]
        other = da.init_device_mesh((2, 1), ("rows", "columns"))
        dt.parallelize_module(model, other["rows"], PLAN)
        with pytest.raises(ArgumentError, match=r"another mesh.*pass the mesh"):
            dt.check_replicas(model, mesh)
        with pytest.raises(ArgumentTypeError, match=r"expected a torch\.nn\.Module"):
            dt.check_replicas(model.parameters(), mesh)

    each(program)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.complex64, torch.bool])
def test_any_dtype_is_read(dtype):
    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        model = nn.Module()
        model.register_buffer("kept", torch.ones(2, 3).t().to(dtype))
        model.register_buffer("count", torch.tensor(3))
        model.register_buffer("none", torch.empty(0, 2, dtype=dtype))
        model.later = nn.LazyLinear(2)
        model.nowhere = nn.Linear(2, 2, device="meta")
        dt.check_replicas(model, mesh)
        if mesh.rank == 0:
            model.kept[0, 0] = 0
        with pytest.raises(MismatchError, match="'kept'"):
            dt.check_replicas(model, mesh)

    simulate(2, program)


def test_sharded_parameters_are_blocks_of_both_axes():
    def program(mesh, model):
        model = nn.Sequential(model[0], nn.ReLU(), model[2], nn.LayerNorm(5))
        dt.parallelize_module(model, mesh["tp"], PLAN)
        dt.fully_shard(model, mesh["dp"])
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        model(torch.ones(4, 5)).sum().backward()
        optimizer.step()
        dt.check_replicas(model, mesh)
        if mesh.rank == 0:
            with torch.no_grad():
                model[3].weight[0] += 1  # whole along tp, cut along dp
        with pytest.raises(MismatchError, match=r"'3\.weight' \(block dp 0\)"):
            dt.check_replicas(model, mesh)

    each(program, (2, 2), ("dp", "tp"))
