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
from tests.torch.twins import check_gradient  # noqa: E402

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
            check_gradient(key, parameter, slope, 1e-12)
        twin.requires_grad_(False)
        with torch.inference_mode():
            torch.testing.assert_close(dt.full_tensor(twin(mine.detach())), expected)

    simulate(ranks, program, timeout=60)
