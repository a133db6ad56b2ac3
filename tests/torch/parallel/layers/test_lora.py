"""Low-rank pairs are cut with their layer, and move nothing more than it does."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import ArgumentError, ArgumentTypeError, LayoutError  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from tests.torch.parallel.twins import compare  # noqa: E402


def _values(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(7))


class Adapted(nn.Module):
    """A linear layer with a low-rank update."""

    def __init__(self, width, out, rank=2, bias=True):
        super().__init__()
        self.base = nn.Linear(width, out, bias=bias)
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, out, bias=False)

    def forward(self, x):
        return self.base(x) + 0.5 * self.up(self.down(x))


class Many(nn.Module):
    """With names as adapters' packages give them."""

    def __init__(self, width, out):
        super().__init__()
        self.base_layer = nn.Linear(width, out)
        self.lora_A = nn.ModuleDict({k: nn.Linear(width, 2, bias=False) for k in "ab"})
        self.lora_B = nn.ModuleDict({k: nn.Linear(2, out, bias=False) for k in "ab"})

    def forward(self, x):
        return self.base_layer(x) + sum(self.lora_B[k](self.lora_A[k](x)) for k in "ab")


def _frozen(model):
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.requires_grad_(module.bias is None)
    return model


def _parallel(first, second):
    def parallel(twin, mesh):
        return dt.parallelize_module(twin, mesh, {"0": first, "2": second})

    return parallel


@pytest.mark.parametrize("hidden", [8, 5, 2])
@pytest.mark.parametrize("ranks", [2, 3])
def test_one_all_reduce_of_activations_each_way_serves_layer_and_pair(hidden, ranks):
    model = _frozen(nn.Sequential(Adapted(5, hidden), nn.GELU(), Adapted(hidden, 6)).double())
    x = _values(3, 4, 5)
    parallel = _parallel(
        dt.LowRankParallel(dt.ColwiseParallel()), dt.LowRankParallel(dt.RowwiseParallel())
    )
    plain = nn.Sequential(nn.Linear(5, hidden), nn.GELU(), nn.Linear(hidden, 6)).double()
    alone = compare(ranks, plain, (x,), _parallel(dt.ColwiseParallel(), dt.RowwiseParallel()))
    for log, without in zip(compare(ranks, model, (x,), parallel), alone, strict=True):
        # The gradients of both pairs are added up together.
        assert without.count() == log.count("all_reduce") - 1 == log.count() - 1 == 2
    updates = 2 * (5 + 6)  # of down by columns and up by rows, both of rank 2
    scale = without.bytes() / (x.numel() + x.numel() // 5 * 6)
    assert log.bytes() - without.bytes() == pytest.approx(updates * scale)


def test_several_pairs_by_pattern_and_layers_that_learn():
    model = nn.Sequential(Many(5, 7), nn.GELU(), Many(7, 6)).double()
    names = {"base": "base_layer", "down": "lora_A.*", "up": "lora_B.*"}
    parallel = _parallel(
        dt.LowRankParallel(dt.ColwiseParallel(), **names),
        dt.LowRankParallel(dt.RowwiseParallel(), **names),
    )
    compare(2, model, (_values(3, 4, 5),), parallel)


def test_between_sequence_shards():
    model = nn.Sequential(Adapted(5, 7), nn.GELU(), Adapted(7, 6)).double()

    def parallel(twin, mesh):
        dt.parallelize_module(
            twin,
            mesh,
            {
                "0": dt.LowRankParallel(dt.ColwiseParallel(input_layouts=da.Shard(1))),
                "2": dt.LowRankParallel(dt.RowwiseParallel(output_layouts=da.Shard(1))),
            },
        )

        def run(x):
            y = twin(dt.redistribute(x, mesh, [da.Replicate()], [da.Shard(1)]))
            return dt.redistribute(y, mesh, [da.Shard(1)], [da.Replicate()])

        return run

    compare(2, model, (_values(3, 5, 5),), parallel)


def test_fused_parts_are_cut_alike_in_layer_and_pair():
    model = Adapted(5, 9).double()

    def parallel(twin, mesh):
        style = dt.ColwiseParallel(parts=(6, 3), unit=(2, 1), output_layouts=da.Replicate())
        return dt.parallelize_module(twin, mesh, dt.LowRankParallel(style))

    compare(2, model, (_values(3, 5),), parallel)


class Scaled(Adapted):
    """With a second argument."""

    def forward(self, x, scale=2.0):
        return super().forward(x) * scale


class Merged(Adapted):
    """Which adds the update to the weight, and calls none of its layers."""

    def forward(self, x):
        weight = self.base.weight + 0.5 * self.up.weight @ self.down.weight
        return nn.functional.linear(x, weight, self.base.bias)


class Recomputed(Merged):
    """Which computes it once more in the backward pass."""

    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=self.reentrant)


@pytest.mark.parametrize("reentrant", [None, False, True])
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_bias_is_added_once_where_forward_computes_with_the_weights(ranks, reentrant):
    kind = Merged if reentrant is None else Recomputed
    kind.reentrant = reentrant
    model = nn.Sequential(kind(5, 7), nn.GELU(), kind(7, 6)).double()
    parallel = _parallel(
        dt.LowRankParallel(dt.ColwiseParallel()), dt.LowRankParallel(dt.RowwiseParallel())
    )
    compare(ranks, model, (_values(3, 4, 5).requires_grad_(),), parallel)


@pytest.mark.parametrize("style", [dt.ColwiseParallel, dt.RowwiseParallel])
def test_the_input_is_the_first_argument_of_forward_in_whatever_order_names_are_passed(style):
    model = Scaled(5, 4, bias=False).double()

    def parallel(twin, mesh):
        whole = {"input_layouts": da.Replicate(), "output_layouts": da.Replicate()}
        dt.parallelize_module(twin, mesh, dt.LowRankParallel(style(**whole)))
        return lambda x: twin(scale=2.0, x=x)

    compare(2, model, (_values(3, 5),), parallel)


def test_errors_say_what_to_do():
    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        model = nn.Sequential(Adapted(4, 4))
        rows = dt.LowRankParallel(dt.RowwiseParallel())
        with da.CommLog() as log:
            with pytest.raises(ArgumentTypeError, match="SequenceParallel"):
                dt.LowRankParallel(dt.SequenceParallel())
            with pytest.raises(ArgumentError, match=r"^0 \(Adapted\): down='narrow' .*'base'"):
                dt.parallelize_module(
                    model, mesh, {"0": dt.LowRankParallel(dt.ColwiseParallel(), down="narrow")}
                )
            with pytest.raises(ArgumentError, match="matches 2 layers"):
                dt.parallelize_module(
                    model,
                    mesh,
                    {"0": dt.LowRankParallel(dt.ColwiseParallel(), base="[bu]*")},
                )
            model[0].up = nn.Linear(2, 4)
            with pytest.raises(ArgumentError, match="bias=False"):
                dt.parallelize_module(model, mesh, {"0": rows})
        assert log.count() == 0
        model = dt.parallelize_module(nn.Sequential(Adapted(4, 4)), mesh, {"0": rows})
        with pytest.raises(LayoutError, match=r"^0 \(Adapted\): the input has 4 features"):
            model(torch.ones(2, 4))

    simulate(2, program)
