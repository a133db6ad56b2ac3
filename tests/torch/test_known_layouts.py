"""An input that is known to arrive otherwise than a style takes it is an error, on all ranks."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import LayoutError  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from distarray.torch._layouts import place  # noqa: E402
from distarray.torch._lineage import placed_by_lineage  # noqa: E402
from tests.torch.twins import compare  # noqa: E402

R, S, P = da.Replicate(), da.Shard, da.Partial()


def _values(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(7))


def _linear(*modules: nn.Module) -> nn.Sequential:
    return nn.Sequential(*modules).double()


FUSED = {"parts": (8, 8)}
CASES = {
    "sequence to columns": (
        _linear(nn.LayerNorm(16), nn.Linear(16, 6)),
        {"0": dt.SequenceParallel(), "1": dt.ColwiseParallel()},
        S(1),
        (
            r"^1 \(Linear\): the input is placed as 2x4x16 \[tp:S\(1\)\], but declared as "
            r"Replicate\(\); pass input_layouts=Shard\(axis=1\) to this style, or output_layouts="
        ),
    ),
    "sequence, dropped out, to columns": (
        _linear(nn.LayerNorm(16), nn.Dropout(0.5), nn.Linear(16, 6)),
        {"0": dt.SequenceParallel(), "2": dt.ColwiseParallel()},
        S(1),
        r"^2 \(Linear\): .*S\(1\).*declared as Replicate",
    ),
    "columns to columns": (
        _linear(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 6)),
        {"0": dt.ColwiseParallel(), "2": dt.ColwiseParallel()},
        R,
        r"^2 \(Linear\): .*S\(2\).*declared as Replicate",
    ),
    "whole to sequence": (
        _linear(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 6)),
        {"0": dt.RowwiseParallel(input_layouts=R), "2": dt.ColwiseParallel(input_layouts=S(1))},
        R,
        r"^2 \(Linear\): .*\[tp:R\], but declared as Shard\(axis=1\)",
    ),
    "whole to rows": (
        _linear(nn.Linear(16, 16), nn.Linear(16, 6)),
        {"0": dt.RowwiseParallel(input_layouts=R), "1": dt.RowwiseParallel()},
        R,
        r"^1 \(Linear\): .*\[tp:R\].*declared as Shard\(axis=2\); pass input_layouts=Replicate",
    ),
    "sequence to rows": (
        _linear(nn.LayerNorm(16), nn.Linear(16, 6)),
        {"0": dt.SequenceParallel(), "1": dt.RowwiseParallel()},
        S(1),
        r"^1 \(Linear\): .*S\(1\).*declared as Shard\(axis=2\)",
    ),
    "parts to rows": (
        _linear(nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 6)),
        {"0": dt.ColwiseParallel(**FUSED), "2": dt.RowwiseParallel()},
        R,
        r"^2 \(Linear\): .*in parts \(8, 8\).*give this style the parts= and unit=",
    ),
    "parts to others": (
        _linear(nn.Linear(16, 16), nn.Linear(16, 6)),
        {"0": dt.ColwiseParallel(**FUSED), "1": dt.RowwiseParallel(parts=(4, 12))},
        R,
        r"^1 \(Linear\): .*in parts \(8, 8\).*where the weight.*in parts \(4, 12\)",
    ),
    "parts that are gathered": (
        _linear(nn.Linear(16, 16), nn.Linear(16, 6)),
        {"0": dt.ColwiseParallel(**FUSED), "1": dt.ColwiseParallel(input_layouts=S(-1))},
        R,
        r"^1 \(Linear\): .*2 parts that are cut each by itself",
    ),
    "units to rows": (
        _linear(nn.Linear(16, 18), nn.Linear(18, 6)),
        {"0": dt.ColwiseParallel(unit=6), "1": dt.RowwiseParallel()},
        R,
        r"^1 \(Linear\): .*18 \(12, 6 by rank\).*takes 18 \(9, 9 by rank\)",
    ),
    "channels of other groups": (
        _linear(nn.Linear(16, 16), nn.Conv1d(4, 4, 1, groups=2)),
        {"0": dt.RowwiseParallel(input_layouts=R), "1": dt.RowwiseParallel()},
        R,
        r"^1 \(Conv1d\): .*\[tp:R\].*declared as Shard\(axis=1\)",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_known_to_be_wrong_raises_before_anything_is_sent(case):
    model, plan, given, text = CASES[case]
    x = _values(2, 4, 16)

    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        twin = dt.parallelize_module(copy.deepcopy(model), mesh, plan)
        last = max(plan)
        mine = dt.redistribute(x.clone(), mesh, [R], [given])
        before: list[int] = []
        with da.CommLog() as log:
            twin[int(last)].register_forward_pre_hook(lambda _, __: before.append(log.count()))
            with pytest.raises(LayoutError, match=text):
                twin(mine)
        assert [log.count()] == before

    simulate(2, program, timeout=60)


def test_attention_and_embeddings_check_what_they_get():
    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        attention = nn.MultiheadAttention(4, 2, batch_first=True)
        dt.parallelize_module(attention, mesh, dt.ColwiseParallel())
        whole = torch.ones(2, 4, 4)
        mine = dt.redistribute(whole.clone(), mesh, [R], [S(1)])
        with pytest.raises(LayoutError, match=r"the query is placed as 2x4x4 \[tp:S\(1\)\]"):
            attention(mine, mine, mine)
        with pytest.raises(LayoutError, match=r"the value is placed as 2x4x4 \[tp:S\(1\)\]"):
            attention(whole, whole, mine)
        words = dt.redistribute(torch.tensor([[0, 1], [1, 0]]), mesh, [R], [S(1)])
        for style in (dt.ColwiseParallel, dt.RowwiseParallel):
            for kind in (nn.Embedding, nn.EmbeddingBag):
                table = dt.parallelize_module(kind(4, 4), mesh, style())
                with pytest.raises(LayoutError, match=r"input_layouts=Shard\(axis=1\)"):
                    table(words)
        pair = nn.Module()
        pair.base, pair.down, pair.up = nn.Linear(4, 4), nn.Linear(4, 1), nn.Linear(1, 4)
        dt.parallelize_module(pair, mesh, dt.LowRankParallel(dt.ColwiseParallel()))
        with pytest.raises(LayoutError, match=r"declared as Replicate"):
            pair(mine)

    simulate(2, program, timeout=60)


def test_a_layout_that_is_known_needs_no_exchange_of_shapes(monkeypatch):
    from distarray.torch import _features

    model = _linear(nn.LayerNorm(5), nn.Linear(5, 6))
    exchanged: list[object] = []
    exchange = _features._moves.layout_from
    monkeypatch.setattr(
        _features._moves, "layout_from", lambda *args: exchanged.append(args) or exchange(*args)
    )

    def parallel(twin, mesh):
        plan = {
            "0": dt.SequenceParallel(),
            "1": dt.ColwiseParallel(input_layouts=S(1), output_layouts=R),
        }
        dt.parallelize_module(twin, mesh, plan)
        return lambda x: twin(dt.redistribute(x, mesh, [R], [S(1)], shape=x.shape))

    compare(2, model, (_values(2, 5, 5),), parallel)
    assert not exchanged


def test_parts_and_units_that_make_the_same_order_fit():
    model = _linear(nn.Linear(5, 12), nn.GELU(), nn.Linear(12, 6))

    def parallel(twin, mesh):
        plan = {
            "0": dt.ColwiseParallel(parts=(8, 4), unit=(2, 1)),
            "2": dt.RowwiseParallel(parts=(8, 4), unit=(4, 2)),
        }
        return dt.parallelize_module(twin, mesh, plan)

    compare(2, model, (_values(3, 5),), parallel)


def test_an_input_may_be_declared_otherwise_by_another_module():
    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        x, words = torch.ones(2, 4, 4), torch.tensor([[0, 1], [1, 0]])
        for given in (R, S(1)):
            layer = dt.parallelize_module(
                nn.Linear(4, 6), mesh, dt.ColwiseParallel(input_layouts=given)
            )
            table = dt.parallelize_module(
                nn.Embedding(4, 4), mesh, dt.RowwiseParallel(input_layouts=given)
            )
            for again in (torch.enable_grad, torch.no_grad):
                with again():
                    layer(x)
                    table(words)
            assert dt.layout_of(x) is dt.layout_of(words) is None

    simulate(2, program, timeout=60)


class Scattered(nn.Module):
    """Does with a replicated tensor what only its author knows."""

    def __init__(self, mesh):
        super().__init__()
        self.mesh = mesh
        self.up, self.down = nn.Linear(4, 4).double(), nn.Linear(4, 4).double()

    def forward(self, x):
        y = self.up(x)
        mask = torch.zeros_like(y)
        if self.mesh is None:
            return self.down(y)
        mask[self.mesh.coordinate[0] :: self.mesh.size] = 1
        y = dt.redistribute(y, self.mesh, [R], [R], grad_placements=[P])
        return self.down(y * mask)  # a contribution to the sum


def test_a_replicated_tensor_among_others_may_become_anything():
    model = Scattered(None)

    def parallel(twin, mesh):
        twin.mesh = mesh
        plan = {
            "up": dt.RowwiseParallel(input_layouts=R),
            "down": dt.ColwiseParallel(input_layouts=P, output_layouts=R),
        }
        return dt.parallelize_module(twin, mesh, plan)

    compare(2, model, (_values(4, 4),), parallel)


STEPS = {
    "gelu": (functional.gelu, True, True),
    "double": (lambda x: x.double(), True, True),
    "sum with another": (lambda x: x + torch.ones_like(x), True, False),
    "masked": (lambda x: x.masked_fill(x > 0, 1), True, False),
    "dropout": (lambda x: functional.dropout(x, 0.5), True, False),
    "in place": (lambda x: x.clone().mul_(2), True, False),
    "broadcast to": (lambda x: x.sum(1, keepdim=True) + torch.ones_like(x), False, False),
    "broadcast": (lambda x: x + torch.ones(3, *x.shape), False, False),
    "softmax": (lambda x: x.softmax(-1), True, False),
    "layer_norm": (lambda x: functional.layer_norm(x, (4,)), True, False),
    "normalize": (lambda x: functional.normalize(x, dim=-1), True, False),
    "cumsum": (lambda x: x.cumsum(1), False, False),
    "squeeze": (lambda x: x.unsqueeze(1).squeeze(1), True, True),
    "slice": (lambda x: x[:], False, False),
    "matmul": (lambda x: x @ torch.ones(4, 4), False, False),
    "flip": (lambda x: x.flip(0), False, False),
}


@pytest.mark.parametrize("step", STEPS)
def test_which_functions_are_followed(step):
    function, cut_is, whole_is = STEPS[step]

    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        for placement, followed in ((S(1), cut_is), (R, whole_is)):
            shape = (2, 8, 4) if placement is not R else (2, 4, 4)
            x = torch.ones(2, 4, 4, requires_grad=True).clone()
            place(x, da.Layout(mesh, [placement], shape))
            found = placed_by_lineage(function(x))
            assert (found is not None) is followed
            assert found is None or found.layout.placements == (placement,)

    simulate(2, program, timeout=60)


OVER_FEATURES = {
    # of the features y of a rank, whether it is an error
    "normalize": (lambda y: functional.normalize(y, dim=-1), True),
    "rms_norm": (lambda y: functional.rms_norm(y, (y.shape[-1],)), True),
    "rms by hand": (lambda y: y * (y.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt(), True),
    "layer_norm": (lambda y: functional.layer_norm(y, (y.shape[-1],)), True),
    "softmax": (lambda y: 2 * y.softmax(-1), True),
    "softmax by hand": (lambda y: y.exp() / y.exp().sum(-1)[..., None], True),
    "centred": (lambda y: y - y.mean(-1, keepdim=True), True),
    "of all": (lambda y: functional.silu(y) / y.norm(), True),
    "largest": (lambda y: y / y.max(-1, True)[0], True),
    "other axis": (lambda y: functional.normalize(y, dim=1).softmax(1), False),
    "gated": (lambda y: functional.silu(y) * y, False),
    "addend": (lambda y: y + 0.0 * y.sum(), False),
    "batch": (lambda y: y - y.mean(0), False),
}


@pytest.mark.parametrize("how", OVER_FEATURES)
def test_what_is_reduced_over_a_share_is_no_share_of_the_whole(how):
    function, wrong = OVER_FEATURES[how]
    model = _linear(nn.Linear(6, 8), nn.Linear(8, 4))
    x = _values(2, 3, 6)
    expected = model[1](function(model[0](x)))

    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        twin = copy.deepcopy(model)
        dt.parallelize_module(twin, mesh, {"0": dt.ColwiseParallel(), "1": dt.RowwiseParallel()})
        y = function(twin[0](x))
        if not wrong:
            torch.testing.assert_close(twin[1](y), expected)
            return
        with pytest.raises(LayoutError, match=r"^1 \(Linear\): the input was computed from a ten"):
            twin[1](y)
        twin[1](dt.redistribute(y, mesh, [S(-1)], [S(-1)]))  # it is said to be meant so

    simulate(2, program, timeout=60)


def test_a_sum_over_all_ranks_may_divide_a_share():
    model = _linear(nn.Linear(6, 8), nn.Linear(8, 4))
    x = _values(2, 3, 6)
    y = model[0](x)
    expected = model[1](y / y.square().sum(-1, keepdim=True))

    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        twin = copy.deepcopy(model)
        dt.parallelize_module(twin, mesh, {"0": dt.ColwiseParallel(), "1": dt.RowwiseParallel()})
        y = twin[0](x)
        own = y.square().sum(-1, keepdim=True)
        whole = dt.redistribute(own, mesh, [P], [R], grad_placements=[P])
        torch.testing.assert_close(twin[1](y / whole), expected)

    simulate(2, program, timeout=60)


def test_ranks_with_one_item_know_no_more_than_others():
    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        layout = da.Layout(mesh, [S(0)], (3, 3))
        x = torch.ones(layout.local_shape(), requires_grad=True).clone()
        place(x, layout)
        for y in (x[:, None] * x[None], x.squeeze(), x.squeeze(0), x.view(1, 1, -1)):
            assert placed_by_lineage(y) is None
        assert placed_by_lineage((x * x).squeeze(1)).layout is layout

    simulate(2, program, timeout=60)


def test_functions_of_ones_own_are_not_followed_by_their_names():
    class Gelu(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.flip(1)

        @staticmethod
        def backward(ctx, gradient):
            return gradient.flip(1)

    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        x = torch.ones(2, 4, requires_grad=True).clone()
        place(x, da.Layout(mesh, [S(1)], (2, 8)))
        assert placed_by_lineage(Gelu.apply(x)) is None

    simulate(2, program, timeout=60)


def test_residual_sums_of_many_layers_are_found_at_once():
    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        x = torch.ones(2, 4, requires_grad=True)
        for _ in range(1000):
            y = torch.ones(2, 4, requires_grad=True).clone()
            x = x + y
        assert placed_by_lineage(x) is None
        place(y, da.Layout(mesh, [S(0)], (4, 4)))
        assert placed_by_lineage(x).layout.placements == (S(0),)

    simulate(2, program, timeout=60)


def test_a_sub_mesh_knows_its_part_of_a_layout():
    def program():
        mesh = da.init_device_mesh((2, 2), ("dp", "tp"))
        layer = dt.parallelize_module(nn.Linear(4, 4), mesh["tp"], dt.ColwiseParallel())
        x = dt.redistribute(torch.ones(4, 4, 4), mesh, [R, R], [S(0), S(1)])
        with pytest.raises(LayoutError, match=r"\[dp:S\(0\), tp:S\(1\)\], but declared as Repl"):
            layer(x)
        assert layer(dt.redistribute(x, mesh, [S(0), S(1)], [S(0), R])).shape == (2, 4, 2)

    simulate(4, program, timeout=60)
