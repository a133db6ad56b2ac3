"""Convolutions cut over channels and over groups compute what one process computes."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import ArgumentError, LayoutError  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from tests.tolerance import assert_close  # noqa: E402
from tests.torch.parallel.twins import compare  # noqa: E402

KINDS = [
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
]


def _axes(kind: type) -> int:
    return int(kind.__name__[-2])


def _values(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(7))


def _replicated_output(style, arrives):
    """Return a function for `compare`: the input arrives in some way, the output is whole."""

    def parallel(twin, mesh):
        dt.parallelize_module(twin, mesh, style)

        def run(x):
            x = dt.redistribute(x, mesh, [da.Replicate()], [arrives])
            return twin(x)

        return run

    return parallel


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks", [2, 3])
def test_two_layers_need_one_all_reduce_each_way(kind, ranks):
    axes = _axes(kind)
    model = nn.Sequential(kind(3, 4, 3, padding=1), nn.GELU(), kind(4, 3, 2, stride=2)).double()

    def parallel(twin, mesh):
        plan = {"0": dt.ColwiseParallel(), "2": dt.RowwiseParallel()}
        return dt.parallelize_module(twin, mesh, plan)

    for log in compare(ranks, model, (_values(2, 3, *[5] * axes),), parallel):
        assert log.count() == log.count("all_reduce") == 2


@pytest.mark.parametrize("kind", [nn.Conv2d, nn.ConvTranspose2d])
@pytest.mark.parametrize("output", [da.Replicate(), da.Shard(0), da.Shard(1), da.Shard(2)])
@pytest.mark.parametrize("style", [dt.ColwiseParallel, dt.RowwiseParallel])
def test_ranks_without_channels_and_every_way_out(kind, style, output):
    model = kind(2, 2, 3, padding=1).double()

    def parallel(twin, mesh):
        styled = style(input_layouts=da.Replicate(), output_layouts=output)
        dt.parallelize_module(twin, mesh, styled)
        return lambda x: dt.redistribute(twin(x), mesh, [output], [da.Replicate()])

    compare(3, model, (_values(4, 2, 5, 4),), parallel)


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("ranks", [2, 4])
def test_padding_modes(mode, groups, ranks):
    model = nn.Conv2d(3, 6, 3, padding=1, padding_mode=mode, groups=groups).double()
    for style in (dt.ColwiseParallel, dt.RowwiseParallel):
        styled = style(input_layouts=da.Replicate(), output_layouts=da.Replicate())
        compare(ranks, model, (_values(2, 3, 5, 4),), _replicated_output(styled, da.Replicate()))


def test_an_image_without_batch():
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ConvTranspose2d(5, 2, 3)).double()

    def parallel(twin, mesh):
        return dt.parallelize_module(
            twin, mesh, {"0": dt.ColwiseParallel(), "1": dt.RowwiseParallel()}
        )

    compare(2, model, (_values(3, 6, 5),), parallel)


@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv2d, nn.ConvTranspose1d, nn.ConvTranspose3d])
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("arrives", [da.Replicate(), da.Shard(0)])
def test_groups_are_cut_whole(kind, ranks, arrives):
    model = kind(6, 9, 3, groups=3, padding=1).double()
    x = _values(4, 6, *[4] * _axes(kind))
    for style in (dt.ColwiseParallel, dt.RowwiseParallel):
        styled = style(input_layouts=arrives, output_layouts=da.Replicate())
        logs = compare(ranks, model, (x,), _replicated_output(styled, arrives))
        assert all(log.count("all_reduce") == 0 for log in logs)


@pytest.mark.parametrize("channels", [6, 5, 2])
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_depthwise_convolution_in_between_moves_nothing(channels, ranks):
    model = nn.Sequential(
        nn.Conv2d(3, channels, 1),
        nn.Conv2d(channels, channels, 3, groups=channels),
        nn.Conv2d(channels, 4, 1),
    ).double()

    def parallel(twin, mesh):
        plan = {
            "0": dt.ColwiseParallel(),
            "1": dt.ColwiseParallel(input_layouts=da.Shard(1)),
            "2": dt.RowwiseParallel(),
        }
        return dt.parallelize_module(twin, mesh, plan)

    for log in compare(ranks, model, (_values(2, 3, 5, 5),), parallel):
        assert log.count() == log.count("all_reduce") == 2


def test_channels_in_units_fit_the_groups_that_follow():
    model = nn.Sequential(
        nn.Conv1d(3, 6, 1), nn.Conv1d(6, 9, 3, groups=3), nn.Conv1d(9, 4, 1)
    ).double()

    def parallel(twin, mesh):
        plan = {
            "0": dt.ColwiseParallel(unit=2),
            "1": dt.ColwiseParallel(input_layouts=da.Shard(1)),
            "2": dt.RowwiseParallel(unit=3),
        }
        return dt.parallelize_module(twin, mesh, plan)

    for log in compare(2, model, (_values(2, 3, 5),), parallel):
        assert log.count() == log.count("all_reduce") == 2


def test_channels_that_do_not_fit_the_groups_are_an_error_before_anything_is_sent():
    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        model = nn.Sequential(nn.Conv1d(3, 6, 1), nn.Conv1d(6, 9, 3, groups=3))
        plan = {
            "0": dt.ColwiseParallel(),
            "1": dt.ColwiseParallel(input_layouts=da.Shard(1)),
        }
        dt.parallelize_module(model, mesh, plan)
        with da.CommLog() as log, pytest.raises(LayoutError, match=r"1 \(Conv1d\): .* 6 \(3, 3"):
            model(torch.ones(2, 3, 5))
        assert log.count() == 0
        model[1].groups = 3
        with pytest.raises(ArgumentError, match="whole groups"):
            dt.parallelize_module(model[1], mesh, dt.ColwiseParallel(unit=2))

    simulate(2, program)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_groups_stay_together_in_units_of_several(n):
    torch.manual_seed(5)
    model = nn.Sequential(
        nn.Conv2d(3, 20, 3),
        nn.GroupNorm(5, 20),
        nn.Conv2d(20, 40, 3, groups=20),
        nn.Conv2d(40, 2, 1),
    ).double()
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    expected = model(x)
    expected.square().mean().backward()

    def program():
        mesh = da.init_device_mesh((n,))
        mine = copy.deepcopy(model)
        mine.zero_grad()
        plan = {
            "0": dt.ColwiseParallel(unit=4),
            "1": dt.ColwiseParallel(),
            "2": dt.ColwiseParallel(input_layouts=da.Shard(1), unit=8),
            "3": dt.RowwiseParallel(unit=8),
        }
        dt.parallelize_module(mine, mesh, plan)
        found = mine(x)
        found.square().mean().backward()
        assert_close(found, expected)
        terms = [p.grad for p in model.parameters()]
        for (name, parameter), other in zip(
            mine.named_parameters(), model.parameters(), strict=True
        ):
            assert_close(dt.full_tensor(parameter.grad), other.grad, terms, what=name)

    simulate(n, program)


def test_units_that_tear_groups_are_an_error():
    def program():
        module = nn.Conv1d(12, 12, 3, groups=4)
        with pytest.raises(ValueError, match="multiple of 3"):
            dt.parallelize_module(module, da.init_device_mesh((1,)), dt.ColwiseParallel(unit=4))

    simulate(1, program)
