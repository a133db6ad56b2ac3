"""Normalisations between modules whose channels are cut need nothing of other ranks."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import ArgumentError, ArgumentTypeError, LayoutError  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from tests.torch.parallel.twins import compare  # noqa: E402

R, S = da.Replicate(), da.Shard


def _values(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(7))


def _seeded(model: nn.Module) -> nn.Module:
    for seed, p in enumerate(model.parameters()):
        p.data = torch.randn(p.shape, generator=torch.Generator().manual_seed(seed))
    return model.double()


def _between(norm: nn.Module, channels: int) -> nn.Sequential:
    return _seeded(
        nn.Sequential(nn.Conv2d(3, channels, 3), norm, nn.ReLU(), nn.Conv2d(channels, 4, 1))
    )


def _plan(unit: int = 1) -> dict[str, dt.ParallelStyle]:
    return {
        "0": dt.ColwiseParallel(unit=unit),
        "1": dt.ColwiseParallel(),
        "3": dt.RowwiseParallel(unit=unit),
    }


NORMS = {
    "batch": lambda n: nn.BatchNorm2d(n),
    "batch without weights": lambda n: nn.BatchNorm2d(n, affine=False),
    "batch averaged": lambda n: nn.BatchNorm2d(n, momentum=None),
    "batch without statistics": lambda n: nn.BatchNorm2d(n, track_running_stats=False),
    "instance": lambda n: nn.InstanceNorm2d(n, affine=True),
    "instance with statistics": lambda n: nn.InstanceNorm2d(n, track_running_stats=True),
}


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize(("channels", "ranks"), [(6, 2), (7, 3), (2, 4)])
def test_two_all_reduces_as_without_the_normalisation(kind, channels, ranks):
    model = _between(NORMS[kind](channels), channels)

    def parallel(twin, mesh):
        return dt.parallelize_module(twin, mesh, _plan())

    for log in compare(ranks, model, (_values(2, 3, 5, 4),), parallel):
        assert log.count() == log.count("all_reduce") == 2


@pytest.mark.parametrize(("groups", "ranks"), [(4, 2), (3, 2), (2, 3)])
@pytest.mark.parametrize("affine", [True, False])
def test_groups_are_not_torn_apart(groups, ranks, affine):
    model = _between(nn.GroupNorm(groups, 2 * groups, affine=affine), 2 * groups)

    def parallel(twin, mesh):
        return dt.parallelize_module(twin, mesh, _plan(2))

    for log in compare(ranks, model, (_values(2, 3, 5, 4),), parallel):
        assert log.count() == log.count("all_reduce") == 2


@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 5)])
@pytest.mark.parametrize("parts", [(), (4, 2)])
def test_whole_channels_in_and_out(shape, parts):
    def parallel(twin, mesh):
        style = dt.ColwiseParallel(input_layouts=R, output_layouts=R, parts=parts)
        return dt.parallelize_module(twin, mesh, style)

    compare(2, _seeded(nn.BatchNorm1d(6)), (_values(*shape),), parallel)


def test_an_instance_without_a_batch():
    def parallel(twin, mesh):
        style = dt.ColwiseParallel(input_layouts=R, output_layouts=R)
        return dt.parallelize_module(twin, mesh, style)

    compare(2, _seeded(nn.InstanceNorm1d(5, affine=True)), (_values(5, 4),), parallel)


@pytest.mark.parametrize("channels", [5, 2])
def test_statistics_are_those_of_one_process_also_saved_and_loaded(channels):
    model = _between(nn.BatchNorm2d(channels), channels)
    first = copy.deepcopy(model)
    steps = [_values(2, 3, 5, 4) * k for k in range(1, 4)]
    for x in steps:
        model(x)
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    model.eval()
    result = model(steps[0]).detach()

    def program():
        mesh = da.init_device_mesh((3,), ("tp",))
        twin = copy.deepcopy(first)
        if mesh.rank:
            twin[1].running_mean.fill_(9)  # those of the first count
        dt.parallelize_module(twin, mesh, _plan())
        twin = copy.deepcopy(twin)
        for x in steps:
            twin(x)
        assert dt.layout_of(twin[1].running_var).placements == (S(0),)
        torch.testing.assert_close(dict(dt.state_dict(twin)), expected)
        twin.eval()
        torch.testing.assert_close(twin(steps[0]).detach(), result)
        for assign in (False, True):
            other = dt.parallelize_module(copy.deepcopy(first), mesh, _plan())
            dt.load_state_dict(other, expected, assign=assign)
            torch.testing.assert_close(other.eval()(steps[0]).detach(), result)
            other.float().double()
            torch.testing.assert_close(dict(dt.state_dict(other)), expected, rtol=1e-5, atol=1e-5)
        empty = dt.parallelize_module(copy.deepcopy(first).to("meta"), mesh, _plan())
        empty.to_empty(device="cpu")
        source = expected if mesh.rank == 0 else None
        dt.load_state_dict(empty, source, src_data_rank=0, mesh=mesh)
        torch.testing.assert_close(empty.eval()(steps[0]).detach(), result)

    simulate(3, program)


def test_with_data_parallelism_beside_it():
    model = _between(nn.BatchNorm2d(5), 5)
    x = _values(2, 3, 5, 4)
    expected = model(x)

    def program():
        mesh = da.init_device_mesh((2, 2), ("dp", "tp"))
        twin = dt.parallelize_module(_between(nn.BatchNorm2d(5), 5), mesh["tp"], _plan())
        dt.replicate(twin, mesh["dp"])
        torch.testing.assert_close(twin(x), expected)
        twin(x).sum().backward()

    simulate(4, program)


def test_errors_say_what_to_do():
    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        one = nn.BatchNorm1d(1)
        dt.parallelize_module(one, mesh, dt.ColwiseParallel())
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            one(torch.ones(1, 1)[:, : 1 - mesh.coordinate[0]])  # also where there is no channel
        model = nn.Sequential(nn.Conv2d(3, 6, 1), nn.GroupNorm(3, 6))
        with da.CommLog() as log:
            with pytest.raises(ArgumentError, match=r"^1 \(GroupNorm\): .*whole groups"):
                dt.parallelize_module(model, mesh, {"1": dt.ColwiseParallel(unit=2)})
            with pytest.raises(ArgumentTypeError, match="knows no way to cut a SyncBatchNorm"):
                dt.parallelize_module(nn.SyncBatchNorm(4), mesh, dt.ColwiseParallel())
        assert log.count() == 0
        plan = {"0": dt.ColwiseParallel(), "1": dt.ColwiseParallel()}
        dt.parallelize_module(model, mesh, plan)
        with pytest.raises(LayoutError, match=r"^1 .* 6 \(3, 3 by rank\).*takes 6 \(4, 2 by"):
            model(torch.ones(1, 3, 2, 2))

    simulate(2, program)


@pytest.mark.parametrize("kind", ["batch", "batch without weights"])
def test_ranks_without_channels_run_checkpoints_again(kind):
    model = _seeded(nn.Sequential(nn.Tanh(), nn.BatchNorm1d(1, affine=kind == "batch")))

    def parallel(twin, mesh):
        style = dt.ColwiseParallel(input_layouts=S(0), output_layouts=R)
        dt.parallelize_module(twin, mesh, {"1": style})

        def run(x):  # which all ranks bring to the channels again
            return checkpoint(twin, dt.redistribute(x, mesh, [R], [S(0)]), use_reentrant=False)

        return run

    for log in compare(3, model, (_values(6, 1, 4),), parallel):
        assert log.count("all_to_all") == 3  # to the channels twice, and back


class Unpooled(nn.Module):
    """What is pooled and put back into its places, which the pool has returned."""

    def forward(self, x):
        y, places = nn.functional.max_pool2d(x, 2, return_indices=True)
        return nn.functional.max_unpool2d(y, places, 2)


class Spectrum(nn.Module):
    """A function that is no layer, of each line of an image."""

    def forward(self, x):
        return torch.fft.rfft(x).real * x.quantile(0.5, -1, keepdim=True)


OF_IMAGES = {
    "largest": nn.MaxPool2d(2),
    "mean": nn.AvgPool2d(2),
    "powers": nn.LPPool2d(2, 2),
    "adaptive": nn.AdaptiveMaxPool2d(2),
    "adaptive mean": nn.AdaptiveAvgPool2d(2),
    "larger": nn.Upsample(scale_factor=2, mode="bilinear"),
    "edges": nn.ReflectionPad2d(1),
    "places": Unpooled(),
    "spectrum": Spectrum(),
}


@pytest.mark.parametrize("kind", OF_IMAGES)
def test_ranks_without_channels_pool_what_the_others_do(kind):
    """Of no channel torch computes no pool, though it works along other axes."""
    model = _between(OF_IMAGES[kind], 5)

    def parallel(twin, mesh):
        return dt.parallelize_module(
            twin, mesh, {"0": dt.ColwiseParallel(), "3": dt.RowwiseParallel()}
        )

    compare(4, model, (_values(2, 3, 8, 8),), parallel)
