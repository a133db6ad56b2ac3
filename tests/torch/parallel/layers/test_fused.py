"""Fused weights are cut part by part, and heads stay whole."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import ArgumentError, LayoutError  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from distarray.torch import _shards  # noqa: E402
from tests.torch.parallel.twins import compare  # noqa: E402


def _values(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(7))


class Gated(nn.Module):
    """Gate and up in one weight."""

    def __init__(self, hidden: int, part=lambda y: y.chunk(2, -1)) -> None:
        super().__init__()
        self.part = part
        self.gate_up = nn.Linear(5, 2 * hidden)
        self.down = nn.Linear(hidden, 3)

    def forward(self, x):
        gate, up = self.part(self.gate_up(x))
        return self.down(functional.silu(gate) * up)


class Grouped(nn.Module):
    """Self-attention whose query heads share keys and values in groups, in one weight."""

    def __init__(self, heads: int, shared: int, size: int) -> None:
        super().__init__()
        self.size, self.shared = size, shared
        self.heads = heads
        self.qkv = nn.Linear(5, heads * size + 2 * (heads // shared) * size)
        self.out = nn.Linear(heads * size, 4)

    def forward(self, x):
        qkv = self.qkv(x)
        width = qkv.shape[-1] // (self.shared + 2)
        q, k, v = qkv.split([self.shared * width, width, width], -1)
        q, k, v = (
            y.unflatten(-1, (-1, self.size) if y.numel() else (0, self.size)) for y in (q, k, v)
        )
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        k, v = (y.repeat_interleave(self.shared, 1) for y in (k, v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


def _halves(y):
    return y.unflatten(-1, (2, -1) if y.numel() else (2, 0)).unbind(-2)


@pytest.mark.parametrize("part", [lambda y: y.chunk(2, -1), _halves])
@pytest.mark.parametrize("hidden", [8, 7, 2])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_gate_and_up_need_one_all_reduce_each_way(hidden, ranks, part):
    def parallel(twin, mesh):
        plan = {
            "gate_up": dt.ColwiseParallel(parts=(hidden, hidden)),
            "down": dt.RowwiseParallel(),
        }
        return dt.parallelize_module(twin, mesh, plan)

    for log in compare(ranks, Gated(hidden, part).double(), (_values(2, 3, 5),), parallel):
        assert log.count() == log.count("all_reduce") == 2


@pytest.mark.parametrize(("heads", "shared"), [(4, 1), (3, 1), (6, 2), (10, 2), (2, 2)])
@pytest.mark.parametrize("ranks", [2, 3])
def test_uneven_heads_that_share_keys_stay_whole(heads, shared, ranks):
    size = 2
    keys = heads // shared

    def parallel(twin, mesh):
        plan = {
            "qkv": dt.ColwiseParallel(
                parts=(heads * size, keys * size, keys * size), unit=(shared * size, size, size)
            ),
            "out": dt.RowwiseParallel(unit=shared * size),
        }
        return dt.parallelize_module(twin, mesh, plan)

    for log in compare(ranks, Grouped(heads, shared, size).double(), (_values(2, 3, 5),), parallel):
        assert log.count() == log.count("all_reduce") == 2


@pytest.mark.parametrize("style", [dt.ColwiseParallel, dt.RowwiseParallel])
@pytest.mark.parametrize("arrives", [da.Replicate(), da.Shard(0)])
@pytest.mark.parametrize("output", [da.Replicate(), da.Shard(1)])
def test_whole_activations_are_in_the_order_of_one_process(style, arrives, output):
    model = nn.Linear(11, 11).double()

    def parallel(twin, mesh):
        styled = style(
            input_layouts=arrives, output_layouts=output, parts=(6, 2, 3), unit=(2, 1, 1)
        )
        dt.parallelize_module(twin, mesh, styled)

        def run(x):
            y = twin(dt.redistribute(x, mesh, [da.Replicate()], [arrives]))
            return dt.redistribute(y, mesh, [output], [da.Replicate()])

        return run

    compare(2, model, (_values(4, 3, 11),), parallel)


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_vectors_that_are_fused(kind):
    model = kind(9, 7).double()
    words = torch.tensor([[1, 8, 1], [0, 3, 8]])

    def parallel(twin, mesh):
        styled = dt.ColwiseParallel(parts=(4, 3), output_layouts=da.Replicate())
        return dt.parallelize_module(twin, mesh, styled)

    compare(3, model, (words,), parallel)


def test_the_layout_of_a_fused_output_is_that_of_its_weight():
    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        layer = nn.Linear(4, 9)
        dt.parallelize_module(layer, mesh, dt.ColwiseParallel(parts=(6, 3), unit=(2, 1)))
        y = layer(torch.ones(5, 4))
        assert layer.weight.shape == (4 + 2, 4) if mesh.coordinate == (0,) else (2 + 1, 4)
        assert dt.layout_of(y).boundaries == {1: (0, 6, 9)}

    simulate(2, program)


@pytest.mark.parametrize(
    ("keywords", "error", "text"),
    [
        ({"parts": (4, 4)}, LayoutError, "add up to 8"),
        ({"parts": (6, 3), "unit": 2}, LayoutError, "whole units of 2"),
        ({"parts": (6, 3), "unit": (2, 1, 1)}, ArgumentError, "one for each"),
        ({"unit": 2}, LayoutError, "whole units of 2"),
        ({"unit": 0}, LayoutError, "units of 0"),
    ],
)
def test_parts_that_do_not_fit_are_errors_before_anything_is_sent(keywords, error, text):
    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        model = nn.Sequential(nn.Linear(9, 9))
        with da.CommLog() as log:
            for style in (dt.ColwiseParallel, dt.RowwiseParallel):
                with pytest.raises(error, match=rf"^0 \(Linear\): .*{text}"):
                    dt.parallelize_module(model, mesh, {"0": style(**keywords)})
        assert log.count() == 0

    simulate(2, program)


@settings(max_examples=50)
@given(
    parts=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 3)), min_size=1, max_size=4),
    count=st.integers(1, 5),
)
def test_the_orders_by_parts_and_by_ranks_are_inverse(parts, count):
    sizes = tuple(heads * unit for heads, unit in parts)
    units = tuple(unit for _, unit in parts)
    full = torch.arange(sum(sizes))
    ranked = _shards.order_by_ranks(full, sizes, units, count, 0)
    offsets = _shards.boundaries(sizes, units, count)
    for rank in range(count):
        held = _shards.order(sizes, units, count)[rank]
        own = [item for one in held for item in range(one.start, one.stop)]
        assert ranked[offsets[rank] : offsets[rank + 1]].tolist() == own
    assert torch.equal(_shards.order_by_parts(ranked, sizes, units, count, 0), full)
