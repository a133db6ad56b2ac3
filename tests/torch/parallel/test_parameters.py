"""Parameters that others take the place of: by conversions, by hand, and what is refused."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import ArgumentError, LayoutError  # noqa: E402
from distarray.testing import simulate  # noqa: E402

COL, ROW = dt.ColwiseParallel, dt.RowwiseParallel


class Tied(nn.Module):
    """A tied pair that is cut, and one that is not."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        self.head.weight = self.words.weight
        self.one, self.two = nn.Linear(7, 7), nn.Linear(7, 7)
        self.two.weight = self.one.weight

    def forward(self, x):
        return self.two(self.one(self.head(torch.tanh(self.words(x)))))


CONVERSIONS = torch.__future__
TIED = {"words": ROW(), "head": COL(output_layouts=da.Replicate())}


@pytest.fixture(params=["by data", "overwritten", "swapped"])
def conversions(request):
    """In which way torch puts converted parameters in the place of others."""
    CONVERSIONS.set_overwrite_module_params_on_conversion(request.param == "overwritten")
    CONVERSIONS.set_swap_module_params_on_conversion(request.param == "swapped")
    yield request.param
    CONVERSIONS.set_overwrite_module_params_on_conversion(False)
    CONVERSIONS.set_swap_module_params_on_conversion(False)


@pytest.mark.parametrize("shard", [False, True])
def test_converted_parameters_stay_shared_and_known(conversions, shard):
    torch.manual_seed(1)
    full = Tied()
    start = {name: p.double() for name, p in full.state_dict().items()}
    x = torch.tensor([[1, 6, 3]])

    def program():
        mesh = da.init_device_mesh((2, 2), ("dp", "tp"))
        for device in ("meta", "cpu"):
            with torch.device(device):
                mine = Tied()
            dt.parallelize_module(mine, mesh["tp"], TIED)
            if shard:
                dt.fully_shard(mine, mesh["dp"])
            kept = mine.words.weight
            if device == "meta":
                mine.to_empty(device="cpu")
            for _ in range(2):
                assert mine.head.weight is mine.words.weight
                assert mine.two.weight is mine.one.weight
                assert (mine.words.weight is kept) or conversions != "swapped"
                assert dt.layout_of(mine.words.weight).shape == (7, 4)
                mine.double()  # between two conversions nobody has run it
            dt.load_state_dict(mine, start)
            one = mine(x)
            one.sum().backward()
            mine.zero_grad()
            wanted = copy.deepcopy(full).double()(x)
            torch.testing.assert_close(one, wanted)

    simulate(4, program)


@pytest.mark.parametrize("shard", [False, True])
@pytest.mark.parametrize(
    "replace",
    [
        lambda lin, full: setattr(lin, "weight", nn.Parameter(torch.ones_like(lin.weight))),
        lambda lin, full: setattr(lin, "weight", nn.Parameter(full)),
        lambda lin, full: setattr(lin.weight, "data", torch.ones(9, lin.weight.shape[1])),
    ],
    ids=["a block", "whole", "resized"],
)
def test_replaced_parameters_are_refused(replace, shard):
    full = torch.arange(24.0).reshape(6, 4)

    def program():
        mesh = da.init_device_mesh((2, 2), ("dp", "tp"))
        lin = nn.Linear(4, 6)
        dt.parallelize_module(lin, mesh["tp"], COL())
        if shard:
            dt.fully_shard(lin, mesh["dp"])
        lin(torch.ones(2, 4))
        old, known = lin.weight, lin.weight.detach().clone()
        replace(lin, full)
        with pytest.raises((LayoutError, ArgumentError), match=r"replaced.*dt\.load_state_dict"):
            lin(torch.ones(2, 4))
        if lin.weight is not old:
            lin.weight = dt.place_like(nn.Parameter(known), old)
            lin(torch.ones(2, 4))

    simulate(4, program)


def test_parameters_that_cannot_be_distributed_any_more_are_refused():
    def program():
        mesh = da.default_mesh()
        one = nn.Linear(4, 4)
        dt.distribute_parameter(one, "weight", mesh, [da.Shard(0)])
        with pytest.raises(LayoutError, match="distributed already"):
            dt.distribute_parameter(one, "weight", mesh, [da.Shard(0)])
        two = nn.Linear(4, 4)
        two.weight = one.weight
        with pytest.raises(LayoutError, match="by a module that shares it"):
            dt.distribute_parameter(two, "weight", mesh, [da.Shard(1)])
        one.bias.grad = torch.ones(4)
        with pytest.raises(ArgumentError, match="a gradient already"):
            dt.distribute_parameter(one, "bias", mesh, [da.Shard(0)])

    simulate(2, program)


def test_what_was_made_in_inference_mode_is_cut_inside_alone():
    def program():
        mesh, x = da.init_device_mesh((2,)), torch.ones(2, 4)
        with torch.inference_mode():
            made = nn.Linear(4, 6, bias=False)
            made.weight.copy_(torch.arange(24.0).view(6, 4))
            expected = made(x)
        for shard in (
            lambda: dt.parallelize_module(made, mesh, COL()),
            lambda: dt.fully_shard(made, mesh),
        ):
            with pytest.raises(ArgumentError, match=r"'weight' was made under.*outside"):
                shard()
        with torch.inference_mode():
            dt.parallelize_module(made, mesh, COL(output_layouts=da.Replicate()))
            torch.testing.assert_close(made(x), expected)

    simulate(2, program)
