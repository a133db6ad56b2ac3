"""Sharded training is that of one process: on all meshes, for all placements."""

from __future__ import annotations

import copy
import functools

import pytest

torch = pytest.importorskip("torch")

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from tests.torch.fsdp.models import model, next_token_loss, tokens  # noqa: E402
from tests.torch.fsdp.training import compare, rows_of, same, trained  # noqa: E402

TP = {
    "layers.*.up": dt.ColwiseParallel(),
    "layers.*.down": dt.RowwiseParallel(),
    "head": dt.ColwiseParallel(output_layouts=da.Replicate()),
}


@functools.cache
def single(rows, steps, tied=False):
    return trained(model(tied=tied), tokens(steps, rows), next_token_loss)


def sharded(module, mesh, **kwargs):
    for layer in module.layers:
        dt.fully_shard(layer, mesh, **kwargs)
    return dt.fully_shard(module, mesh, **kwargs)


def parallel(module, mesh, axes=("dp",), **kwargs):
    dt.parallelize_module(module, mesh["tp"], TP)
    return sharded(module, mesh[axes], **kwargs)


def last_axis(parameter):
    return da.Shard(-1) if parameter.ndim else None


def second_axis(parameter):
    return da.Shard(1) if parameter.ndim > 1 else None


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_twenty_steps(ranks):
    compare(single(12, 20), sharded, (ranks,), data=("dp",))


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("after", [False, 1, 2, 3])
def test_reshard_after_forward(ranks, after):
    shard = functools.partial(sharded, reshard_after_forward=after)
    compare(single(12, 3), shard, (ranks,), data=("dp",))


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("placement", [last_axis, second_axis])
@pytest.mark.parametrize("after", [True, 2])
def test_placement(ranks, placement, after):
    shard = functools.partial(sharded, shard_placement_fn=placement, reshard_after_forward=after)
    compare(single(12, 3), shard, (ranks,), data=("dp",))


@pytest.mark.parametrize("shape", [(2, 2), (1, 3), (3, 1), (2, 1, 2)])
@pytest.mark.parametrize("after", [True, False, 1])
def test_hybrid(shape, after):
    names = ("a", "b", "c")[: len(shape)]
    shard = functools.partial(sharded, reshard_after_forward=after)
    compare(single(12, 3), shard, shape, names, data=names)


def test_hybrid_twenty_steps():
    compare(single(12, 20), sharded, (2, 2), ("r", "s"), data=("r", "s"))


@pytest.mark.parametrize("shape", [(2, 2), (2, 3), (3, 2), (1, 2), (2, 1)])
@pytest.mark.parametrize(
    ("after", "placement"), [(True, None), (False, None), (2, None), (2, second_axis)]
)
def test_tensor_parallel(shape, after, placement):
    shard = functools.partial(parallel, reshard_after_forward=after, shard_placement_fn=placement)
    compare(single(12, 2), shard, shape, ("dp", "tp"), data=("dp",))


def test_tensor_parallel_twenty_steps():
    compare(single(12, 20), parallel, (2, 2), ("dp", "tp"), data=("dp",))


def test_hybrid_and_tensor_parallel():
    def shard(module, mesh):
        return parallel(module, mesh, ("r", "s"))

    compare(single(12, 5), shard, (2, 2, 2), ("r", "s", "tp"), data=("r", "s"))


@pytest.mark.parametrize("tp_first", [True, False])
def test_order_of_mesh_axes(tp_first):
    names = ("tp", "dp") if tp_first else ("dp", "tp")
    compare(single(12, 2), parallel, (2, 2), names, data=("dp",))


def test_tied_weights():
    compare(single(12, 5, tied=True), sharded, (3,), data=("dp",))


def test_only_the_root():
    compare(single(12, 3), dt.fully_shard, (2,), data=("dp",))


def test_three_levels():
    def shard(module, mesh):
        for layer in module.layers:
            dt.fully_shard(layer.up, mesh)
            dt.fully_shard(layer, mesh)
        return dt.fully_shard(module, mesh)

    compare(single(12, 3), shard, (3,), data=("dp",))


def test_lists_of_modules():
    def shard(module, mesh):
        dt.fully_shard([module.layers[0], module.layers[1]], mesh)
        dt.fully_shard([module.embed, module.head], mesh)
        return dt.fully_shard(module, mesh)

    compare(single(12, 3), shard, (2,), data=("dp",))


def test_without_the_root():
    def shard(module, mesh):
        dt.fully_shard(module.embed, mesh)
        dt.fully_shard(module.head, mesh)
        for layer in module.layers:
            dt.fully_shard(layer, mesh)
        return module

    compare(single(12, 3), shard, (2,), data=("dp",))


@pytest.mark.parametrize("which", ["layers", "embed", "some", "all but one"])
def test_frozen(which):
    module = model()
    for name, parameter in module.named_parameters():
        frozen = {
            "layers": name.startswith("layers"),
            "embed": name.startswith("embed"),
            "some": name.endswith("bias"),
            "all but one": name != "embed.weight",
        }
        parameter.requires_grad_(not frozen[which])
    compare(trained(module, tokens(3, 12), next_token_loss), sharded, (2,), data=("dp",))


def test_ignored():
    start = single(4, 2)

    def program():
        module = copy.deepcopy(start.start)
        ignored = [module.layers[1].up.weight, module.embed.weight]
        sharded(module, da.init_device_mesh((2,)), ignored_params=ignored)
        assert module.layers[1].up.weight.shape == (22, 7)
        assert all(dt.layout_of(p) is None for p in ignored)
        start.loss(module, rows_of(module, start.batches[0])).backward()
        return {
            name: p.grad if dt.layout_of(p) is None else dt.full_tensor(p.grad)
            for name, p in module.named_parameters()
        }

    found = simulate(2, program)
    for name, wanted in start.gradients[0].items():
        same((found[0][name] + found[1][name]) / 2, wanted, name)
