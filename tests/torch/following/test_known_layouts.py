"""An input that is known to arrive otherwise than a style takes it is an error, on all ranks."""

from __future__ import annotations

import contextlib
import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import LayoutError  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from distarray.torch._layouts import own_placed, place  # noqa: E402
from distarray.torch.following import Following  # noqa: E402
from tests.torch.parallel.twins import compare  # noqa: E402

R, S, P = da.Replicate(), da.Shard, da.Partial()


def _values(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(7))


def _linear(*modules: nn.Module) -> nn.Sequential:
    return nn.Sequential(*modules).double()


MODES = {
    "training": lambda: contextlib.nullcontext(),
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "frozen": contextlib.nullcontext,
    "evaluation": contextlib.nullcontext,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}
"""Ways to run a module; `_run_as` prepares it for one."""


def _run_as(mode: str, module: nn.Module) -> contextlib.AbstractContextManager:
    module.requires_grad_(mode != "frozen").train(mode != "evaluation")
    return MODES[mode]()


def _followed(function, x):
    """Return how the result of a function is known to be placed."""
    with Following(strict=False):
        y = function(x)
    return own_placed(y)


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


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES)
def test_what_is_known_to_be_wrong_raises_before_anything_is_sent(case, mode):
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
            with pytest.raises(LayoutError, match=text), _run_as(mode, twin):
                twin(mine)
        assert [log.count()] == before

    simulate(2, program)


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

    simulate(2, program)


def test_a_layout_that_is_known_needs_no_exchange_of_shapes(monkeypatch):
    from distarray.torch import _layouts, _moves
    from distarray.torch.parallel import _sequence
    from distarray.torch.parallel.layers import _features

    model = _linear(nn.LayerNorm(5), nn.Linear(5, 6))
    exchanged: list[object] = []
    exchange = _layouts.layout_from
    for user in (_moves, _sequence, _features):
        monkeypatch.setattr(
            user, "layout_from", lambda *args: exchanged.append(args) or exchange(*args)
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

    simulate(2, program)


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
    "masked": (lambda x: x.masked_fill(x > 0, 1), True, True),
    "dropout": (lambda x: functional.dropout(x, 0.5), True, True),
    "in place": (lambda x: x.clone().mul_(2), True, True),
    "broadcast to": (lambda x: x.sum(1, keepdim=True) + torch.ones_like(x), False, False),
    "broadcast": (lambda x: x[None] + torch.ones(3, *x.shape), True, False),
    "softmax": (lambda x: x.softmax(-1), True, True),
    "layer_norm": (lambda x: functional.layer_norm(x, (4,)), True, True),
    "scaled": (lambda x: functional.layer_norm(x, (4,), torch.ones(4)), True, False),
    "normalize": (lambda x: functional.normalize(x, dim=-1), True, True),
    "cumsum": (lambda x: x.cumsum(1), False, True),
    "squeeze": (lambda x: x.unsqueeze(1).squeeze(1), True, True),
    "slice": (lambda x: x[:], True, True),
    "matmul": (lambda x: x @ torch.ones(4, 4), True, False),
    "flip": (lambda x: x.flip(0), True, True),
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
            found = _followed(function, x)
            assert (found is not None) is followed
            moved = S(2) if step == "broadcast" else placement
            assert found is None or found.layout.placements in ((placement,), (moved,))

    simulate(2, program)


class Between(nn.Module):
    """A function between two layers."""

    def __init__(self, function, *layers):
        super().__init__()
        self.function = function
        self.layers = nn.ModuleList(layers)

    def forward(self, x):
        return self.layers[1](self.function(self.layers[0](x)))


def _assigned(y):
    y[:, 0] = y.sum()
    return y


OVER_FEATURES = {
    # of the features y of a rank, whether it is an error
    "normalize": (lambda y: functional.normalize(y, dim=-1), True),
    "rms_norm": (lambda y: functional.rms_norm(y, (y.shape[-1],)), True),
    "rms by hand": (lambda y: y * (y.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt(), True),
    "layer_norm": (lambda y: functional.layer_norm(y, (y.shape[-1],)), True),
    "softmax": (lambda y: 2 * y.softmax(-1), True),
    "softmax of heads": (lambda y: y.softmax(-1).unflatten(-1, (-1, 1)).flatten(2), True),
    "softmax by hand": (lambda y: y.exp() / y.exp().sum(-1)[..., None], True),
    "centred": (lambda y: y - y.mean(-1, keepdim=True), True),
    "in place": (lambda y: y.clone().div_(y.norm()), True),
    "of all": (lambda y: functional.silu(y) / y.norm(), True),
    "largest": (lambda y: y / y.max(-1, True)[0], True),
    "where largest": (lambda y: y * (y.argmax(-1, True) + 1), True),
    "best": (lambda y: y.masked_fill(y < y.topk(2, -1)[0][..., -1:], 0), True),
    "sorted": (lambda y: y.sort(-1)[0], True),
    "shifted": (lambda y: y.roll(1, -1), True),
    "halves": (lambda y: torch.cat(y.chunk(2, -1)[::-1], -1), True),
    "other axis": (lambda y: functional.normalize(y, dim=1).softmax(1), False),
    "gated": (lambda y: functional.silu(y) * y, False),
    "addend": (lambda y: y + 0.5 * y.sum(), True),
    "mean of all": (lambda y: y - y.mean(), True),
    "largest of all": (lambda y: torch.sub(y, y.max() / 2), True),
    "filled": (lambda y: y.masked_fill(y > 0, y.min()), True),
    "assigned": (lambda y: _assigned(y.clone()), True),
    "scaled by all": (lambda y: y.mul(y.norm()), True),
    "batch": (lambda y: y - y.mean(0), False),
    "transformed": (lambda y: torch.fft.fft(y).real.to(y), True),
    "transformed in 2-d": (lambda y: torch.fft.ifft2(y).real.to(y), True),
    "spectrum of others": (lambda y: torch.fft.fft2(y, dim=(0, 1)).real.to(y), False),
    "centre first": (lambda y: torch.fft.fftshift(y), True),
    "slope": (lambda y: torch.gradient(y, dim=-1)[0], True),
    "slope of others": (lambda y: torch.gradient(y, dim=1)[0], False),
    "integral": (lambda y: functional.pad(torch.cumulative_trapezoid(y), (0, 1)), True),
    "windows": (lambda y: y.unfold(-1, 2, 1).sum(-1).repeat(1, 1, 2)[..., : y.shape[-1]], True),
    "windows of others": (lambda y: y.unfold(1, 2, 1).sum(-1), False),
    "repeated": (lambda y: y.repeat(1, 1, 2)[..., ::2], True),
    "others repeated": (lambda y: y.repeat(2, 3, 1), False),
    "tiled": (lambda y: torch.tile(y, (2,))[..., ::2], True),
    "transposed convolution": (
        lambda y: functional.conv_transpose1d(y, torch.ones(3, 3, 3).to(y), padding=1),
        True,
    ),
    "halves by their number": (lambda y: y.unflatten(-1, (2, -1)).flip(2).flatten(2), True),
    "heads by their number": (lambda y: y.view(2, 3, 2, -1).cumsum(3).flatten(2), True),
    "heads by their size": (lambda y: y.view(2, 3, -1, 2).cumsum(3).flatten(2), False),
    "halves of others": (lambda y: y.unflatten(0, (2, -1)).flip(0).flatten(0, 1), False),
    "positions and a rest": (lambda y: y.reshape(2, 2, -1).flip(1).reshape(y.shape), True),
    "features of all positions": (lambda y: y.mT.reshape(2, -1).view(2, -1, 3).mT, False),
    "positions of all features": (lambda y: y.flatten(1).view(y.shape) + 1, True),
    "many products": (lambda y: y + torch.linalg.multi_dot([y[0], y[0].mT, y[0]]).to(y), True),
    "pseudoinverse": (lambda y: torch.linalg.pinv(y.double()).mT.to(y), True),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("how", OVER_FEATURES)
def test_what_works_along_a_shard_gives_no_shard_of_the_whole(how, mode):
    function, wrong = OVER_FEATURES[how]
    model = Between(function, *_linear(nn.Linear(6, 8), nn.Linear(8, 4)))
    plan = {"layers.0": dt.ColwiseParallel(), "layers.1": dt.RowwiseParallel()}

    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        twin = dt.parallelize_module(copy.deepcopy(model), mesh, plan)
        x = _values(2, 3, 6)
        with _run_as(mode, twin):
            if not wrong:
                torch.testing.assert_close(twin(x), model(x), rtol=0.02, atol=0.02)
                return
            text = r"^layers\.1 .*: the input was computed from"
            with da.CommLog() as log, pytest.raises(LayoutError, match=text):
                twin(x)
            assert log.count() == 0
            with pytest.raises(LayoutError, match="inside check_layouts"), dt.check_layouts():
                twin(x)
            twin.function = lambda y: dt.redistribute(function(y), mesh, [S(-1)], [S(-1)])
            twin(x)  # it is said to be meant so

    simulate(2, program)


class Head(nn.Module):
    """A projection, and what is made of it."""

    def __init__(self, function):
        super().__init__()
        self.project = nn.Linear(6, 8).double()
        self.function = function

    def forward(self, x):
        return {"found": [self.function(self.project(x))], "other": x}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("over", [-1, 1])
def test_what_works_along_a_shard_does_not_leave(mode, over):
    made = {
        "argmax": lambda y: y.argmax(over),
        "softmax": lambda y: y.softmax(over) + 1,
        "mean": lambda y: y.mean(over).flatten(),
        "topk": lambda y: y.topk(2, over)[1],
    }

    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        x = _values(2, 3, 6)
        for name, function in made.items():
            head = Head(function)
            dt.parallelize_module(head, mesh, {"project": dt.ColwiseParallel()})
            outer = nn.Sequential(head)
            dt.parallelize_module(outer, mesh, {"0": dt.PrepareModuleInput()})
            for called in (head, outer):
                with _run_as(mode, called):
                    if over == -1:
                        with pytest.raises(LayoutError, match=rf"what leaves .*by {name}, along"):
                            called(x)
                    else:
                        called(x)

    simulate(2, program)


def test_a_batch_that_others_have_the_rest_of_may_be_worked_along():
    def program():
        mesh = da.init_device_mesh((2, 2), ("dp", "tp"))
        x = _values(4, 3, 6)
        mine = dt.redistribute(x, mesh, [R, R], [S(0), R])
        head = Head(lambda y: y.sum(2).mean())
        whole = dt.ColwiseParallel(output_layouts=R)
        head = nn.Sequential(head, nn.Identity())
        dt.parallelize_module(head, mesh["tp"], {"0.project": whole})
        own = 2 * mesh.coordinate[0]
        y = head[0].project(x[own : own + 2])
        torch.testing.assert_close(head(mine * 1)["found"][0], y.sum(2).mean())

    simulate(4, program)


def test_steps_by_hand_are_checked_inside_check_layouts_alone():
    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        layer = dt.parallelize_module(nn.Linear(4, 6), mesh, dt.ColwiseParallel())
        x = torch.ones(2, 4)
        for mode in (torch.enable_grad, torch.inference_mode):
            with mode():
                layer(x).softmax(-1)  # a plain tensor, and nobody asks
                with dt.check_layouts():
                    y = layer(x)
                    assert (y.relu() * y).unsqueeze(1).amax(0).shape == (1, 3)
                    with pytest.raises(LayoutError, match="softmax inside check_layouts"):
                        y.relu().softmax(-1)

    simulate(2, program)


@pytest.mark.parametrize("mode", ["training", "inference"])
def test_a_sum_over_all_ranks_may_divide_a_shard(mode):
    layers = _linear(nn.Linear(6, 8), nn.Linear(8, 4))
    model = Between(lambda y: y / y.square().sum(-1, keepdim=True), *layers)
    plan = {"layers.0": dt.ColwiseParallel(), "layers.1": dt.RowwiseParallel()}
    x = _values(2, 3, 6)

    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        twin = dt.parallelize_module(copy.deepcopy(model), mesh, plan)

        def by_hand(y):
            own = y.square().sum(-1, keepdim=True)
            return y / dt.redistribute(own, mesh, [P], [R], grad_placements=[P])

        twin.function = by_hand
        with _run_as(mode, twin):
            torch.testing.assert_close(twin(x), model(x))

    simulate(2, program)


def test_ranks_with_one_item_know_no_more_than_others():
    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        layout = da.Layout(mesh, [S(0)], (3, 3))
        x = torch.ones(layout.local_shape(), requires_grad=True).clone()
        place(x, layout)
        for function in (
            lambda x: x[:, None] * x[None],
            lambda x: x.squeeze(),
            lambda x: x.squeeze(0),
            lambda x: x.view(1, 1, -1),
        ):
            assert _followed(function, x) is None
        assert _followed(lambda x: x * x, x).layout is layout

    simulate(2, program)


def test_a_sub_mesh_knows_its_part_of_a_layout():
    def program():
        mesh = da.init_device_mesh((2, 2), ("dp", "tp"))
        layer = dt.parallelize_module(nn.Linear(4, 4), mesh["tp"], dt.ColwiseParallel())
        x = dt.redistribute(torch.ones(4, 4, 4), mesh, [R, R], [S(0), S(1)])
        with pytest.raises(LayoutError, match=r"\[dp:S\(0\), tp:S\(1\)\], but declared as Repl"):
            layer(x)
        assert layer(dt.redistribute(x, mesh, [S(0), S(1)], [S(0), R])).shape == (2, 4, 2)

    simulate(4, program)


def test_a_slice_taken_by_hand_is_the_shard_that_it_is_said_to_be():
    def program():
        mesh = da.init_device_mesh((3,), ("tp",))
        place, x = mesh.coordinate[0], dt.redistribute(_values(6, 4), mesh, [R], [R])
        layer = dt.parallelize_module(
            nn.Linear(4, 5).double(), mesh, dt.ColwiseParallel(input_layouts=S(0), output_layouts=R)
        )
        with dt.check_layouts():
            part = x[2 * place : 2 * place + 2]
            with pytest.raises(LayoutError, match=r"or say what it is: dt\.redistribute\("):
                layer(part)
            said = dt.redistribute(part, mesh, [S(0)], [S(0)])
            assert layer(said).shape == (6, 5)
        assert torch.equal(dt.full_tensor(said), x)
        assert dt.layout_of(x).placements == (R,)

    simulate(3, program)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.stack(x.unbind(1), 1),
        lambda x: x / x.amax(1, keepdim=True),
        lambda x: x + x[:, :1, 0, None] * x[:, 0, None],
        lambda x: x - x.quantile(0.5, 1, keepdim=True),
        lambda x: functional.max_pool1d(x.transpose(1, 2), 1).transpose(1, 2),
        lambda x: torch.fft.fft(x, dim=1).real,
    ],
)
def test_what_fails_without_items_is_refused_on_all_ranks(function):
    """Where the result was to be brought together by hand, ranks with items went on alone."""
    model = Between(function, *_linear(nn.Linear(6, 6), nn.Linear(6, 6)))
    x = _values(2, 2, 6)  # of three ranks one has nothing

    def program():
        mesh = da.init_device_mesh((3,), ("tp",))
        twin = copy.deepcopy(model)
        twin.function = lambda y: dt.redistribute(function(y), mesh, [S(1)], [R])
        plan = {"layers.0": dt.ColwiseParallel(output_layouts=S(1))}
        dt.parallelize_module(twin, mesh, plan)
        with pytest.raises(LayoutError, match="would see this rank's shard only of a tensor"):
            twin(x)
        return "refused"

    assert simulate(3, program) == ["refused"] * 3


@pytest.mark.parametrize("sizes", [(2, 3, 4, 2), ((2, 3, 4, 2),)], ids=["sizes", "a tuple"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_views_with_the_number_of_all_heads_tell_what_to_write_instead(ranks, sizes):
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.out = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            heads = self.query(x).view(*sizes).transpose(1, 2)
            return self.out(heads.transpose(1, 2).reshape(x.shape))

    def program():
        model = Attention().double()
        plan = {"query": dt.ColwiseParallel(unit=2), "out": dt.RowwiseParallel(unit=2)}
        dt.parallelize_module(model, da.init_device_mesh((ranks,), ("tp",)), plan)
        message = r"view of a tensor placed as 2x3x8 \[tp:S\(2\).*y.view\(batch, length, -1, size\)"
        with pytest.raises(LayoutError, match=message):
            model(_values(2, 3, 8))

    simulate(ranks, program)
