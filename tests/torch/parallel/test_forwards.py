"""Modules with a forward of their own are cut only with the user's consent."""

from __future__ import annotations

import functools

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import ArgumentTypeError  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from tests.torch.parallel.twins import compare  # noqa: E402

R = da.Replicate()


def _values(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(7))


class Rectified(nn.Linear):
    """Not linear: sums of shards would be wrong."""

    def forward(self, input):
        return super().forward(input).relu()


class Cast(nn.Linear):
    """Computes the same, in the dtype of the input."""

    def forward(self, input):
        bias = None if self.bias is None else self.bias.to(input.dtype)
        return functional.linear(input, self.weight.to(input.dtype), bias)


class Standardised(nn.Conv2d):
    """Takes statistics over the channels that rows cut."""

    def _conv_forward(self, input, weight, bias):
        return super()._conv_forward(input, weight - weight.mean(1, keepdim=True), bias)


class Positioned(nn.Embedding):
    """Adds something to each position."""

    def forward(self, input):
        return super().forward(input) + torch.arange(input.shape[-1])[:, None]


class Named(nn.Linear):
    """Differs in nothing that is computed."""

    def __init__(self, width: int) -> None:
        super().__init__(width, width)

    def reset_parameters(self):
        nn.init.ones_(self.weight)
        nn.init.ones_(self.bias)

    def extra_repr(self):
        return "named"


class Gated(nn.TransformerEncoderLayer):
    """Has a block of its own."""

    def _ff_block(self, x):
        return self.linear2(self.linear1(x).softmax(-1))


def _patched() -> nn.Module:
    layer = nn.Linear(4, 4)
    layer.forward = functools.partial(Rectified.forward, layer)
    return layer


def _dropping() -> nn.Module:
    class Kept(nn.Dropout):
        def forward(self, input):
            return input

    layer = nn.TransformerEncoderLayer(4, 2, 4)
    layer.dropout = Kept(0.5)
    return layer


def _pair() -> nn.Module:
    pair = nn.Module()
    pair.base, pair.down, pair.up = Rectified(4, 4), nn.Linear(4, 1), nn.Linear(1, 4)
    return pair


@pytest.mark.parametrize("style", [dt.ColwiseParallel, dt.RowwiseParallel])
@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: Rectified(4, 4),
            r"Rectified has a forward of its own, .* torch's Linear: .*own_f",
        ),
        (lambda: Standardised(4, 4, 1), r"Standardised has a _conv_forward of its own"),
        (lambda: Standardised(4, 4, 1, groups=2), r"Standardised has a _conv_forward of its own"),
        (lambda: Positioned(4, 4), r"Positioned has a forward of its own"),
        (_patched, r"Linear has a forward of its own"),
    ],
)
def test_a_forward_of_its_own_is_refused_before_anything_is_sent(style, make, text):
    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        model = nn.Sequential(make())
        with da.CommLog() as log, pytest.raises(ArgumentTypeError, match=r"^0 \(.*" + text):
            dt.parallelize_module(model, mesh, {"0": style()})
        assert log.count() == 0
        assert not any(dt.layout_of(p) for p in model.parameters())
        with pytest.raises(ArgumentTypeError, match="Rectified has a forward"):
            dt.parallelize_module(_pair(), mesh, dt.LowRankParallel(style()))

    simulate(2, program)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Gated(4, 2, 4), "Gated has a _ff_block of its own"),
        (_dropping, "Kept has a forward of its own"),
    ],
)
def test_layers_with_blocks_of_their_own_are_refused(make, text):
    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        with da.CommLog() as log, pytest.raises(ArgumentTypeError, match=text):
            dt.parallelize_module(make(), mesh, dt.TransformerLayerParallel())
        assert log.count() == 0

    simulate(2, program)


@pytest.mark.parametrize("style", [dt.ColwiseParallel, dt.RowwiseParallel])
def test_with_consent_it_runs_on_a_shard(style):
    model = nn.Sequential(Cast(5, 7)).double()

    def parallel(twin, mesh):
        styled = style(input_layouts=R, output_layouts=R, own_forward=True)
        return dt.parallelize_module(twin, mesh, {"0": styled})

    compare(2, model, (_values(3, 5),), parallel)


@pytest.mark.parametrize("style", [dt.ColwiseParallel, dt.RowwiseParallel])
@pytest.mark.parametrize("make", [Named, lambda n: NonDynamicallyQuantizableLinear(n, n)])
def test_classes_that_differ_in_nothing_that_is_computed_need_none(style, make):
    def parallel(twin, mesh):
        # What stands in the place of forward after this is the library's, and counts for nothing.
        prepared = dt.PrepareModuleInput(input_layouts=R, desired_input_layouts=R)
        dt.parallelize_module(twin, mesh, prepared)
        return dt.parallelize_module(twin, mesh, style(input_layouts=R, output_layouts=R))

    compare(2, make(5).double(), (_values(3, 5),), parallel)
