"""What a style returns is placed as it declares, and sums to what one process computes."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import LayoutError  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from tests.torch.parallel.twins import check_gradient  # noqa: E402

R, P, S = da.Replicate(), da.Partial(), da.Shard


def _values(*shape: int, seed: int = 7) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _own_block(mesh, placement, shape) -> torch.Tensor:
    """Return a block that this rank has drawn by a seed of its own."""
    layout = da.Layout(mesh, [placement], shape)
    local = _values(*layout.local_shape(), seed=mesh.rank + 1)
    return dt.redistribute(local, mesh, [placement], [placement], shape=shape)


class Adapted(nn.Module):
    """A linear layer with a low-rank update."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(7, 5)
        self.down = nn.Linear(7, 2, bias=False)
        self.up = nn.Linear(2, 5, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


class Attention(nn.Module):
    """Self-attention, of one argument."""

    def __init__(self):
        super().__init__()
        self.inner = nn.MultiheadAttention(6, 3, batch_first=True)
        self.inner.out_proj.bias.data.normal_()

    def forward(self, x):
        return self.inner(x, x, x, need_weights=False)[0]


SUMMED = {
    # module, name of what is cut, style, how the input is cut, its shape
    "linear": (nn.Linear(7, 5), "", dt.RowwiseParallel, S(2), (3, 4, 7)),
    "convolution": (nn.Conv1d(7, 5, 3), "", dt.RowwiseParallel, S(1), (3, 7, 6)),
    "transposed": (nn.ConvTranspose1d(7, 5, 3), "", dt.RowwiseParallel, S(1), (3, 7, 6)),
    "low-rank": (
        Adapted(),
        "",
        lambda **told: dt.LowRankParallel(dt.RowwiseParallel(**told)),
        S(2),
        (3, 4, 7),
    ),
    "attention": (Attention(), "inner", dt.ColwiseParallel, S(1), (3, 4, 6)),
    "columns": (nn.Linear(7, 5), "", dt.ColwiseParallel, S(1), (3, 4, 7)),
}


@pytest.mark.parametrize("output", [P, da.Partial("avg"), R, S(0), S(-1)], ids=str)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("how", SUMMED)
def test_a_bias_counts_once_however_the_output_leaves(how, ranks, output):
    model, name, style, arrives, shape = SUMMED[how]
    model = copy.deepcopy(model).double()

    def program():
        mesh = da.init_device_mesh((ranks,), ("tp",))
        mine = _own_block(mesh, arrives, shape).requires_grad_()
        full = dt.full_tensor(mine).detach().requires_grad_()
        expected = model(full)
        weights = _values(*expected.shape, seed=9)
        slopes = torch.autograd.grad((expected * weights).sum(), [full, *model.parameters()])
        twin = copy.deepcopy(model)
        styled = style(input_layouts=arrives, output_layouts=output)
        dt.parallelize_module(twin, mesh, {name: styled})
        y = twin(mine)
        axis = output.axis % y.ndim if isinstance(output, S) else 0
        assert dt.layout_of(y).placements == ((S(axis),) if isinstance(output, S) else (output,))
        whole = dt.full_tensor(y)
        torch.testing.assert_close(whole, expected)
        (whole * weights).sum().backward()
        own = da.Layout(mesh, [arrives], shape).local_box()
        torch.testing.assert_close(mine.grad, slopes[0][tuple(slice(*ends) for ends in own)])
        for (key, parameter), slope in zip(twin.named_parameters(), slopes[1:], strict=True):
            check_gradient(key, parameter, slope)
        twin.requires_grad_(False)
        with torch.inference_mode():
            torch.testing.assert_close(dt.full_tensor(twin(mine.detach())), expected)

    simulate(ranks, program)


class OneLayer(nn.Module):
    """A transformer layer, after which nobody says how its output is placed."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(6, 3, 8, dropout=0.0, batch_first=True)

    def forward(self, x):
        return self.layer(x)


WORDS = torch.tensor([[1, 0, 4, 2, 3], [2, 2, 0, 1, 4]])
ALONE = {
    # module, style, a plain input given its mesh, how the output leaves, its full shape
    "norm": (nn.LayerNorm(6), dt.SequenceParallel(), S(1), (2, 5, 6), S(1), (2, 5, 6)),
    "norm of a flat axis": (
        nn.LayerNorm(6),
        dt.SequenceParallel(sequence_dim=-2),
        S(0),
        (5, 6),
        S(0),
        (5, 6),
    ),
    "linear on shards": (nn.Linear(6, 4), dt.SequenceParallel(), S(1), (2, 5, 6), S(1), (2, 5, 4)),
    "identity": (nn.Identity(), dt.SequenceParallel(), S(1), (2, 5, 6), S(1), (2, 5, 6)),
    "dropout": (nn.Dropout(0.5), dt.SequenceParallel(), S(1), (2, 5, 6), S(1), (2, 5, 6)),
    "merged": (
        nn.GroupNorm(2, 6),
        dt.SequenceParallel(sequence_dim=2),
        S(2),
        (2, 6, 5),
        S(2),
        (2, 6, 5),
    ),
    "columns": (nn.Linear(6, 7), dt.ColwiseParallel(), R, (2, 5, 6), S(2), (2, 5, 7)),
    "rows": (nn.Linear(7, 6), dt.RowwiseParallel(), S(2), (2, 5, 7), R, (2, 5, 6)),
    "channels": (nn.BatchNorm1d(7), dt.ColwiseParallel(), S(1), (4, 7, 3), S(1), (4, 7, 3)),
    "groups": (nn.Conv1d(6, 6, 1, groups=3), dt.ColwiseParallel(), R, (2, 6, 4), S(1), (2, 6, 4)),
    "layer": (OneLayer().layer, dt.TransformerLayerParallel(), R, (2, 5, 6), R, (2, 5, 6)),
    "prepared": (
        nn.Identity(),
        dt.PrepareModuleOutput(output_layouts=S(1), desired_output_layouts=R),
        S(1),
        (2, 5, 6),
        R,
        (2, 5, 6),
    ),
    "said": (
        nn.Identity(),
        dt.PrepareModuleOutput(output_layouts=S(1), desired_output_layouts=S(1)),
        S(1),
        (2, 5, 6),
        S(1),
        (2, 5, 6),
    ),
}


@pytest.mark.parametrize("how", ["grad", "no_grad", "inference", "frozen", "eval", "autocast"])
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("what", ALONE)
def test_what_is_made_of_a_plain_shard_is_placed_as_the_style_says(what, ranks, how):
    module, style, arrives, shape, leaves, full = ALONE[what]

    def program():
        mesh = da.init_device_mesh((ranks,), ("tp",))
        twin = dt.parallelize_module(copy.deepcopy(module), mesh, style)
        seed = 1 if arrives is R else mesh.rank + 1
        local = da.Layout(mesh, [arrives], shape).local_shape()
        x = _values(*local, seed=seed).float()
        twin.requires_grad_(how != "frozen").train(how != "eval")
        modes = {
            "no_grad": torch.no_grad,
            "inference": torch.inference_mode,
            "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
        }
        with modes.get(how, torch.enable_grad)():
            y = twin(x)
        found = dt.layout_of(y)
        assert (found.placements, found.shape) == ((leaves,), full)

    simulate(ranks, program)


@pytest.mark.parametrize("words", [S(0), S(1)], ids=str)
def test_vectors_of_a_shard_of_the_words_are_a_shard(words):
    table = nn.Embedding(5, 4).double()

    def program():
        mesh = da.init_device_mesh((3,), ("tp",))
        twin = copy.deepcopy(table)
        dt.parallelize_module(twin, mesh, dt.SequenceParallel(sequence_dim=words.axis))
        own = da.Layout(mesh, [words], WORDS.shape).local_box()
        y = twin(WORDS[tuple(slice(*ends) for ends in own)].clone())
        torch.testing.assert_close(dt.full_tensor(y), table(WORDS))

    simulate(3, program)


@pytest.mark.parametrize("grad", [True, False])
def test_a_norm_of_a_plain_shard_is_not_taken_for_the_whole(grad):
    model = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 7), nn.GELU(), nn.Linear(7, 6)).double()

    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        x = _values(2, 3 - mesh.rank, 6, seed=mesh.rank + 1)
        full = dt.redistribute(x.clone(), mesh, [S(1)], [R])
        plan = {"0": dt.SequenceParallel(), "1": dt.ColwiseParallel(), "3": dt.RowwiseParallel()}
        wrong = dt.parallelize_module(copy.deepcopy(model), mesh, plan)
        plan["1"] = dt.ColwiseParallel(input_layouts=S(1))
        right = dt.parallelize_module(copy.deepcopy(model), mesh, plan)
        with torch.set_grad_enabled(grad):
            with pytest.raises(LayoutError, match=r"^1 .*\(1\)\].*pass input_layouts=Shard"):
                wrong(x)
            torch.testing.assert_close(right(x), model(full))

    simulate(2, program)


@pytest.mark.parametrize("grad", [True, False])
def test_after_a_transformer_layer_a_norm_takes_a_shard_of_the_whole(grad):
    model = nn.Sequential(OneLayer().layer, nn.LayerNorm(6)).double()
    x = _values(2, 5, 6)

    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        twin = copy.deepcopy(model)
        plan = {"0": dt.TransformerLayerParallel(), "1": dt.SequenceParallel()}
        dt.parallelize_module(twin, mesh, plan)
        with torch.set_grad_enabled(grad):
            torch.testing.assert_close(dt.full_tensor(twin(x)), model(x))

    simulate(2, program)


def test_a_shard_of_the_sequence_of_a_shard_of_the_batch_is_not_taken_for_the_whole():
    """What is known over the mesh of the batch says nothing of the sequence."""

    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.up = nn.LayerNorm(4), nn.Linear(4, 6)

        def forward(self, x):
            return self.up(self.norm(x))

    def program():
        mesh = da.init_device_mesh((2, 2), ("dp", "tp"))
        x = dt.distribute_tensor(_values(4, 3, 4), mesh["dp"], [S(0)])
        for declared in (R, S(1)):
            model = Normed().double()
            plan = {
                "norm": dt.SequenceParallel(),
                "up": dt.ColwiseParallel(input_layouts=declared),
            }
            dt.parallelize_module(model, mesh["tp"], plan)
            if declared is R:
                with pytest.raises(LayoutError, match=r"placed as .*tp:S\(1\).*, but declared as"):
                    model(x)
            else:
                assert model(x).shape == (2, 6, 3)

    simulate(4, program)
