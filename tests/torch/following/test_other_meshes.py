"""What another mesh than a style's cuts, such as a batch, is no rank's whole: before and after."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import LayoutError  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from tests.torch.programs import filled, values  # noqa: E402

R, S, P = da.Replicate(), da.Shard, da.Partial()
ROWS, WIDTH = 7, 6

ALONG_THE_BATCH = {
    "cumsum": lambda y: y.cumsum(0),
    "softmax": lambda y: y.softmax(0),
    "sort": lambda y: y.sort(0).values,
    "flip": lambda y: y.flip(0),
    "roll": lambda y: y.roll(1, 0),
    "mean": lambda y: y - y.mean(0),
    "logsumexp": lambda y: y - y.logsumexp(0, keepdim=True),
    "normalize": lambda y: functional.normalize(y, dim=0),
    "product": lambda y: y @ (y.T @ y),
    "first": lambda y: y - y[:1],
    "indices": lambda y: y[torch.tensor([0, 1])],
    "reshape": lambda y: y * y.reshape(-1).softmax(0).sum(),
    "a number": lambda y: y.std(),
    "a loss of pairs": lambda y: functional.cross_entropy(y @ y.T, torch.arange(len(y))),
    "a variance": lambda y: (y - y.mean()).square().mean(),
    "recomputed": lambda y: checkpoint(lambda z: z.flip(0), y, use_reentrant=False),
    "after others": lambda y: (torch.tanh(y) * torch.ones(WIDTH)).unsqueeze(1).squeeze(1).flip(0),
}
ITEM_BY_ITEM = {
    "none": lambda y: y,
    "softmax": lambda y: y.softmax(-1),
    "residual": lambda y: y + torch.tanh(y) * torch.ones(WIDTH),
    "normalize": lambda y: functional.normalize(y, dim=-1),
    "transposed": lambda y: y.T.flip(0).T,
}


class Block(nn.Module):
    """Two layers, and a function before, between or after them."""

    def __init__(self, place, function):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.place, self.function = place, function
        filled(self.double())

    def forward(self, x):
        x = self.function(x) if self.place == "before" else x
        x = self.up(x)
        x = self.function(x) if self.place == "between" else x
        x = self.down(x)
        return self.function(x) if self.place == "after" else x


def _run(block, x, over):
    """Return the blocks of the output, and of the input's gradient, on all ranks."""

    def program():
        mesh = da.init_device_mesh((2, 2), ("dp", "tp"))
        model = copy.deepcopy(block)
        plan = {"up": dt.ColwiseParallel(), "down": dt.RowwiseParallel()}
        dt.parallelize_module(model, mesh["tp"], plan)
        whole = (mesh["dp"], [S(0)]) if over == "dp" else (mesh, [S(0), R])
        mine = dt.distribute_tensor(x, *whole).requires_grad_()
        try:
            y = model(mine)
        except LayoutError as error:
            return str(error)
        y.square().sum().backward()
        return y.detach(), mine.grad

    return simulate(4, program)


@pytest.mark.parametrize("over", ["dp", "both"])
@pytest.mark.parametrize("place", ["before", "between", "after"])
@pytest.mark.parametrize("how", ALONG_THE_BATCH)
def test_what_works_along_a_batch_that_another_mesh_cuts_is_an_error(how, place, over):
    numbers = ("a number", "a loss of pairs", "a variance")
    if place == "between" and how in ("after others", *numbers):
        pytest.skip("takes no features that are cut, or leaves none")
    errors = _run(Block(place, ALONG_THE_BATCH[how]), values(ROWS, WIDTH), over)
    assert all("along an axis that is cut" in error for error in errors)


@pytest.mark.parametrize("over", ["dp", "both"])
@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("how", ITEM_BY_ITEM)
def test_what_works_along_other_axes_has_the_values_of_one_process(how, place, over):
    block, x = Block(place, ITEM_BY_ITEM[how]), values(ROWS, WIDTH).requires_grad_()
    expected = block(x)
    expected.square().sum().backward()
    found = _run(block, x.detach(), over)
    for i, (y, gradient) in enumerate(found):
        torch.testing.assert_close(y, expected.detach().chunk(2)[i // 2])
        torch.testing.assert_close(gradient, x.grad.chunk(2)[i // 2])


class _Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.GroupNorm(2, 4)

    def forward(self, x):
        return self.norm(self.conv(x)).flip(0)


class _Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.attention = nn.Embedding(9, 8), nn.MultiheadAttention(8, 2)

    def forward(self, words):
        x = self.table(words)
        return self.attention(x, x, x, need_weights=False)[0]


OTHER_MODULES = {  # inputs, how another mesh cuts them, styles, and what works along that
    "convolution": (
        _Images,
        values(4, 3, 5, 5),
        0,
        {"conv": dt.ColwiseParallel(), "norm": dt.ColwiseParallel()},
        "flip",
    ),
    "windows": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding=1)),
        values(4, 3, 5, 5),
        2,
        {"0": dt.ColwiseParallel()},
        "Conv2d",
    ),
    "batch normalization": (
        lambda: nn.Sequential(nn.Linear(WIDTH, 4), nn.BatchNorm1d(4)),
        values(8, WIDTH),
        0,
        {"0": dt.ColwiseParallel(), "1": dt.ColwiseParallel()},
        "BatchNorm1d",
    ),
    "attention": (
        _Words,
        torch.arange(20).reshape(5, 4) % 9,
        0,
        {"table": dt.ColwiseParallel(output_layouts=R), "attention": dt.ColwiseParallel()},
        "MultiheadAttention",
    ),
    "attention of items": (
        lambda: nn.Sequential(_Words(), nn.Softmax(1)),
        torch.arange(20).reshape(5, 4) % 9,
        1,
        {"0.table": dt.ColwiseParallel(output_layouts=R), "0.attention": dt.ColwiseParallel()},
        "softmax",
    ),
}


@pytest.mark.parametrize("kind", OTHER_MODULES)
def test_what_styles_make_keeps_the_cuts_of_other_meshes(kind):
    make, x, axis, plan, name = OTHER_MODULES[kind]

    def program():
        mesh = da.init_device_mesh((2, 2), ("dp", "tp"))
        model = dt.parallelize_module(filled(make().double()), mesh["tp"], plan)
        with pytest.raises(LayoutError, match=rf"dp:S\({axis}\)\] by {name}, along an axis"):
            model(dt.distribute_tensor(x, mesh["dp"], [S(axis)]))

    simulate(4, program)


def test_a_moved_tensor_keeps_the_cuts_of_other_meshes():
    def program():
        mesh = da.init_device_mesh((2, 2), ("dp", "tp"))
        x = dt.distribute_tensor(values(8, WIDTH), mesh["dp"], [S(0)])
        y = dt.redistribute(x, mesh["tp"], [R], [S(1)])
        with dt.check_layouts():
            for axis in (0, 1):
                with pytest.raises(LayoutError, match="softmax"):
                    torch.tanh(y).softmax(axis)

    simulate(4, program)


def test_a_mean_over_each_ranks_part_of_a_batch_is_declared():
    class Loss(Block):
        def __init__(self):
            super().__init__("after", lambda y: y.square().mean())

    block, x = Loss(), values(8, WIDTH)
    block(x).backward()
    avg = [da.Partial("avg")]

    def program():
        mesh = da.init_device_mesh((2, 2), ("dp", "tp"))
        model = copy.deepcopy(block)
        model.zero_grad()
        model.function = lambda y: dt.redistribute(y.square().mean(), mesh["dp"], avg, avg)
        plan = {"up": dt.ColwiseParallel(), "down": dt.RowwiseParallel()}
        dt.parallelize_module(model, mesh["tp"], plan)
        dt.replicate(model, mesh["dp"])
        model(dt.distribute_tensor(x, mesh["dp"], [S(0)])).backward()
        for name, parameter in model.named_parameters():
            gradient = dt.full_tensor(parameter.grad)
            torch.testing.assert_close(gradient, block.get_parameter(name).grad)

    simulate(4, program)


LOSSES = {
    "a mean": lambda y: y.square().mean(),
    "of flattened rows": lambda y: functional.cross_entropy(
        y.unflatten(1, (2, 3)).flatten(0, 1), torch.arange(len(y) * 2) % 3
    ),
    "weighted": lambda y: y.abs().mean(-1).sum() / len(y) + 0.1 * (y**2).sum() / y.numel(),
}


@pytest.mark.parametrize("over", ["dp", "both"])
@pytest.mark.parametrize("how", LOSSES)
def test_a_loss_of_each_ranks_part_of_a_batch_may_leave(how, over):
    block, x = Block("after", LOSSES[how]), values(8, WIDTH)
    parts = [block(part) for part in x.chunk(2)]
    (sum(parts) / 2).backward()

    def program():
        mesh = da.init_device_mesh((2, 2), ("dp", "tp"))
        model = copy.deepcopy(block)
        model.zero_grad()
        plan = {"up": dt.ColwiseParallel(), "down": dt.RowwiseParallel()}
        dt.replicate(dt.parallelize_module(model, mesh["tp"], plan), mesh["dp"])
        whole = (mesh["dp"], [S(0)]) if over == "dp" else (mesh, [S(0), R])
        loss = model(dt.distribute_tensor(x, *whole))
        torch.testing.assert_close(loss, parts[mesh["dp"].coordinate[0]])
        loss.backward()
        for name, parameter in model.named_parameters():
            gradient = dt.full_tensor(parameter.grad)
            torch.testing.assert_close(gradient, block.get_parameter(name).grad)

    simulate(4, program)


def test_a_tensor_that_is_resized_forgets_the_cuts_of_other_meshes():
    def program():
        mesh = da.init_device_mesh((2, 2), ("dp", "tp"))
        x = dt.distribute_tensor(values(8, WIDTH), mesh["dp"], [S(0)])
        y = dt.redistribute(x, mesh["tp"], [R], [S(1)])
        with dt.check_layouts():
            z = torch.tanh(y)
        z.resize_(12)
        with dt.check_layouts():
            assert (z + 1).softmax(0).shape == (12,)

    simulate(4, program)


@pytest.mark.parametrize("training", [False, True])
def test_a_plain_batch_is_a_ranks_own_and_statistics_that_run_need_no_other(training):
    module = filled(nn.Sequential(nn.Linear(WIDTH, 4), nn.BatchNorm1d(4)).double())
    plan = {"0": dt.ColwiseParallel(), "1": dt.ColwiseParallel(output_layouts=R)}
    x = values(8, WIDTH)

    def program():
        mesh = da.init_device_mesh((2, 2), ("dp", "tp"))
        model = dt.parallelize_module(copy.deepcopy(module), mesh["tp"], plan).train(training)
        mine = dt.distribute_tensor(x, mesh["dp"], [S(0)])
        expected = copy.deepcopy(module).train(training)(mine.clone())
        torch.testing.assert_close(model(mine.clone() if training else mine), expected)

    simulate(4, program)
