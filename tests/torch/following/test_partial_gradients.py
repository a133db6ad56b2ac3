"""Gradients of what all ranks have, where it meets shards: the ranks' parts are added up, once."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.comm import CommLog  # noqa: E402
from distarray.errors import LayoutError  # noqa: E402
from distarray.testing import simulate  # noqa: E402

R, P, S = da.Replicate(), da.Partial(), da.Shard
WIDTH = 4


def _values(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _attend(t, g, h):
    k = torch.cat([g, h, g * h], 1).expand(t.shape[0], -1, -1)
    return functional.scaled_dot_product_attention(t, k, k)


MEET = {  # tokens that are cut along the sequence, and two of what all ranks have
    "modulated": lambda t, g, h: t * (1 + g) + h,
    "where": lambda t, g, h: torch.where(t > 0, t, g * h),
    "addcmul": lambda t, g, h: torch.addcmul(t, g, h),
    "expanded": lambda t, g, h: t * g.expand(-1, t.shape[1], -1) + h.expand_as(t),
    "in place": lambda t, g, h: (t * 1).mul_(g).add_(h, alpha=0.5),
    "a number": lambda t, g, h: t * g.mean() + h.norm(),
    "normalised": lambda t, g, h: functional.layer_norm(t, t.shape[-1:], g[0, 0], h[0, 0]),
    "a weight": lambda t, g, h: functional.linear(t, g[0, 0].outer(h[0, 0])),
    "attention": _attend,
    "written": lambda t, g, h: _write(t.clone(), g + h),
    "written into views": lambda t, g, h: _join(t, g) + h,
    "several functions": lambda t, g, h: torch.stack([t, t * g]).sum(0) * torch.softmax(h, -1),
}


def _write(t, g):
    t[..., 0] = g[..., 1]
    return t


def _join(t, g):
    joined = t.new_empty(*t.shape[:-1], 2 * WIDTH)
    joined[..., :WIDTH].copy_(t)
    joined[..., WIDTH:].copy_(g.expand(-1, t.shape[1], -1))
    found = joined[..., :WIDTH] * joined[..., WIDTH:]
    return found if dt.layout_of(t) is None else dt.place_like(found, t)


class Conditioned(nn.Module):
    """Tokens, and two numbers for each of their features that follow from a condition."""

    def __init__(self, meet, reentrant=None):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 5), nn.Linear(5, 2 * WIDTH)
        self.meet, self.reentrant = meet, reentrant
        self.cut = self.between = lambda x: x

    def run(self, x, condition):
        g, h = self.down(torch.tanh(self.up(condition))).chunk(2, -1)
        return self.meet(self.norm(x), self.between(g), h)

    def forward(self, x, condition):
        x = self.cut(x)
        if self.reentrant is None:
            return self.run(x, condition)
        return checkpoint(self.run, x, condition, use_reentrant=self.reentrant)


def _model(meet, reentrant=None):
    model = Conditioned(meet, reentrant).double()
    for i, parameter in enumerate(model.parameters()):
        parameter.data = _values(*parameter.shape, seed=i)
    return model


def _gradients(model, length, batch=2):
    x, c = _values(batch, length, WIDTH, seed=20), _values(1, 1, WIDTH, seed=21)
    x.requires_grad_(), c.requires_grad_()
    y = dt.full_tensor(y) if dt.layout_of(y := model(x, c)) is not None else y
    (y.tanh() * _values(batch, length, WIDTH, seed=22)).sum().backward()
    own = {name: p.grad for name, p in model.named_parameters()} | {"x": x.grad, "c": c.grad}
    return {k: g if dt.layout_of(g) is None else dt.full_tensor(g) for k, g in own.items()}


def _parallelized(meet, mesh, reentrant=None):
    model = _model(meet, reentrant)
    plan = {"norm": dt.SequenceParallel(), "up": dt.ColwiseParallel(), "down": dt.RowwiseParallel()}
    dt.parallelize_module(model, mesh, plan)
    model.cut = lambda x: dt.redistribute(x, mesh, [R], [S(1)])
    return model


def _assert_as_one_process(ranks, meet, length, reentrant=None, check=False):
    expected = _gradients(_model(meet), length)

    def program():
        mesh = da.init_device_mesh((ranks,), ("tp",))
        with dt.check_layouts() if check else nullcontext():
            found = _gradients(_parallelized(meet, mesh, reentrant), length)
        torch.testing.assert_close(found, expected)

    simulate(ranks, program)


@pytest.mark.parametrize("meet", MEET)
@pytest.mark.parametrize(("ranks", "length"), [(2, 4), (3, 2), (2, 1)])
def test_gradients_of_what_all_ranks_have_are_those_of_one_process(meet, ranks, length):
    _assert_as_one_process(ranks, MEET[meet], length)


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradients_are_added_up_where_a_checkpoint_runs_again(reentrant, check):
    _assert_as_one_process(2, MEET["modulated"], 5, reentrant, check)


BEFORE = {
    "broadcast": lambda g: g * g[..., :1] + g.sum(-1, keepdim=True),
    "no rule": lambda g: functional.interpolate(g, size=WIDTH),
    "product": lambda g: g @ (g.transpose(-1, -2) @ g),
    "unbound": lambda g: torch.stack(g.unbind(-1), -1),
}


@pytest.mark.parametrize("before", BEFORE)
def test_what_is_computed_of_replicated_tensors_alone_is_replicated(before):
    _assert_as_one_process(2, lambda t, g, h: t * BEFORE[before](g) + h, 3)


def test_shards_of_features_and_a_number_for_all_of_them():
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.gate = nn.Linear(WIDTH, 6), nn.Linear(WIDTH, 1)

        def forward(self, x):
            return self.a(x) * self.gate(x)

    def model():
        made = Gated().double()
        for i, parameter in enumerate(made.parameters()):
            parameter.data = _values(*parameter.shape, seed=i)
        return made

    alone = model()
    x = _values(3, WIDTH, seed=9)
    (alone(x) * _values(3, 6, seed=8)).sum().backward()

    def program():
        mesh = da.init_device_mesh((4,), ("tp",))
        plan = {"a": dt.ColwiseParallel(), "gate": dt.RowwiseParallel(input_layouts=R)}
        mine = dt.parallelize_module(model(), mesh, plan)
        (dt.full_tensor(mine(x)) * _values(3, 6, seed=8)).sum().backward()
        for p, expected in zip(mine.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(dt.full_tensor(p.grad), expected.grad)

    simulate(4, program)


def test_along_two_mesh_axes_parts_are_added_over_those_that_cut():
    def program():
        mesh = da.init_device_mesh((2, 2), ("dp", "tp"))
        t = _values(4, 6, seed=1)
        g = _values(6, seed=2).requires_grad_()
        with dt.check_layouts():
            shard = dt.redistribute(t, mesh, [R, R], [S(0), R])
            whole = dt.redistribute(g, mesh, [R, R], [R, R])
            product = (shard * whole).sum(1).square()
        dt.full_tensor(product).sum().backward()
        expected = (2 * (t @ g.detach()))[:, None] * t
        torch.testing.assert_close(g.grad, expected.sum(0))

    simulate(4, program)


def test_gradients_that_are_parts_already_are_not_added_twice():
    expected = _gradients(_model(MEET["modulated"]), 3)

    def program():
        mesh = da.init_device_mesh((3,), ("tp",))
        model = _parallelized(MEET["modulated"], mesh)
        model.between = lambda g: dt.redistribute(g, mesh, [R], [R], grad_placements=[P]) * 1
        found = _gradients(model, 3)
        torch.testing.assert_close(found, expected)

    simulate(3, program)


USES = {
    "apart again": lambda y, mesh: dt.redistribute(y, mesh, [R], [R], grad_placements=[P]),
    "cut": lambda y, mesh: dt.redistribute(y, mesh, [R], [S(1)]),
    "cut in the background": lambda y, mesh: dt.redistribute(
        y, mesh, [R], [S(1)], async_op=True
    ).wait(),
    "columns": lambda y, mesh: _layer(mesh, dt.ColwiseParallel(output_layouts=R))(y),
    "rows": lambda y, mesh: _layer(mesh, dt.RowwiseParallel(input_layouts=R))(y),
    "prepared": lambda y, mesh: dt.parallelize_module(
        nn.Sequential(_layer(mesh, dt.ColwiseParallel(output_layouts=R))),
        mesh,
        {"": dt.PrepareModuleInput(input_layouts=R, desired_input_layouts=R)},
    )(y),
}


def _layer(mesh, style=None):
    layer = nn.Linear(6, 6, bias=False).double()
    layer.weight.data = _values(6, 6, seed=5)
    return layer if style is None else dt.parallelize_module(layer, mesh, style)


@pytest.mark.parametrize("use", USES)
def test_a_gradient_in_parts_takes_parts_from_what_moves_on(use):
    def program():
        mesh = da.init_device_mesh((3,), ("tp",))
        x, w = _values(4, 6, seed=1).requires_grad_(), _values(4, 6, seed=2)
        parts = dt.redistribute(x, mesh, [R], [R], grad_placements=[P])
        y = USES[use](parts, mesh)
        if use == "apart again":
            (y * w * (mesh.rank + 1)).sum().backward()
            expected = w * 6
        else:
            (dt.full_tensor(y) * w).sum().backward()
            expected = w if use.startswith("cut") else w @ _layer(mesh).weight.detach()
        torch.testing.assert_close(x.grad, expected)

    simulate(3, program)


class _Identity(torch.autograd.Function):
    """What Megatron calls copy: the gradients of all ranks are added up."""

    mesh = None

    @staticmethod
    def forward(ctx, mesh, x):
        ctx.mesh = mesh
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return None, dt.redistribute(gradient, ctx.mesh, [P], [R])


def _counted(g, seen):
    part = g[..., :WIDTH]
    part.register_hook(lambda gradient: seen.append(gradient) or gradient * 1)
    return part


BETWEEN = {  # what all ranks have, on its way to shards
    "a hook on a slice": lambda g, mesh: _counted(g, []),
    "a checkpoint of a view": lambda g, mesh: checkpoint(
        lambda x: x[:, None].squeeze(1), g * 1, use_reentrant=True
    ),
    "a checkpoint of parts": lambda g, mesh: checkpoint(
        lambda x: (2 * x)[:, :] / 2, _parts(g, mesh), use_reentrant=True
    ),
    "a function of one's own": lambda g, mesh: _Identity.apply(mesh, g),
    "parts beside what is detached": lambda g, mesh: g + 0 * _parts(g, mesh).detach(),
    "parts written into zeros": lambda g, mesh: _into_zeros(_parts(g, mesh), mesh),
    "parts declared again": lambda g, mesh: dt.redistribute(
        _parts(g, mesh) * torch.ones(WIDTH).double(), mesh, [R], [R]
    ),
}


def _parts(g, mesh):
    return dt.redistribute(g, mesh, [R], [R], grad_placements=[P])


def _into_zeros(parts, mesh):
    zeros = dt.redistribute(torch.zeros_like(parts).detach(), mesh, [R], [R])
    return zeros.add_(parts)


@pytest.mark.parametrize("between", BETWEEN)
def test_what_lies_between_a_replicated_tensor_and_shards_keeps_its_part(between):
    expected = _gradients(_model(MEET["modulated"]), 3)

    def program():
        mesh = da.init_device_mesh((3,), ("tp",))
        model = _parallelized(MEET["modulated"], mesh)
        model.between = lambda g: BETWEEN[between](g, mesh)
        torch.testing.assert_close(_gradients(model, 3), expected)

    simulate(3, program)


UNSURE = {
    "a constant": lambda g: g * torch.arange(WIDTH),
    "a mask": lambda g: torch.where(torch.arange(WIDTH) > 1, g, 0.0),
    "zeros": lambda g: torch.cat([g[..., :2], torch.zeros(1, 1, 2).double()], -1),
    "a parameter without a style": lambda g: functional.layer_norm(
        g, (WIDTH,), torch.ones(WIDTH, dtype=g.dtype, requires_grad=True)
    ),
    "an expanded length": lambda g: g.expand(2, *g.shape).mean(0),
}


@pytest.mark.parametrize("unsure", UNSURE)
def test_what_is_not_known_beside_replicated_tensors_is_refused_beside_shards(unsure):
    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        model = _parallelized(MEET["modulated"], mesh)
        model.between = UNSURE[unsure]
        with pytest.raises(LayoutError, match="would leave a part of a gradient on each rank"):
            _gradients(model, 3)
        with torch.no_grad():
            model(_values(2, 3, WIDTH, seed=20), _values(1, 1, WIDTH, seed=21))
        model.between = lambda g: dt.redistribute(UNSURE[unsure](g), mesh, [R], [R])
        return _gradients(model, 3)["c"]

    alone = _model(MEET["modulated"])
    alone.between = UNSURE[unsure]
    for found in simulate(2, program):
        torch.testing.assert_close(found, _gradients(alone, 3)["c"])


def test_what_is_not_known_beside_replicated_tensors_is_no_shard_for_a_style():
    class Cut(nn.Module):
        def __init__(self):
            super().__init__()
            self.down, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)

        def forward(self, x, length):
            return self.norm(self.down(x).expand(-1, length, -1))

    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        plan = {"down": dt.RowwiseParallel(input_layouts=R), "norm": dt.SequenceParallel()}
        model = dt.parallelize_module(Cut(), mesh, plan)
        with pytest.raises(LayoutError, match="is taken for a shard or a contribution"):
            model(torch.ones(2, 1, 4), 3 - mesh.rank)
        with torch.no_grad():
            assert dt.layout_of(model(torch.ones(2, 1, 4), 3 - mesh.rank)).shape == (2, 5, 4)

    simulate(2, program)


def test_averaged_gradients_stay_averages():
    def program():
        mesh = da.init_device_mesh((2,), ("dp",))
        x = _values(4, seed=1).requires_grad_()
        average = [da.Partial("avg")]
        with dt.check_layouts():
            y = dt.redistribute(x, mesh, [R], [R], grad_placements=average) * 1
            shard = dt.redistribute(_values(6, 4, seed=2), mesh, [R], [S(0)])
            product = shard * y
        (product.sum() * 2).backward()  # a mean over each rank's half, averaged
        torch.testing.assert_close(x.grad, _values(6, 4, seed=2).sum(0))
        x = _values(4, seed=1).requires_grad_()
        y = dt.redistribute(x, mesh, [R], [R], grad_placements=average)
        z = dt.redistribute(y * 1, mesh, [R], [R], grad_placements=average)
        (z * (mesh.rank + 1)).sum().backward()
        torch.testing.assert_close(x.grad, torch.full((4,), 1.5).double())

    simulate(2, program)


def test_parts_are_not_written_into_what_has_a_whole_gradient():
    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        x = _values(4, seed=1).requires_grad_()
        whole = dt.redistribute(x, mesh, [R], [R])
        parts = dt.redistribute(x, mesh, [R], [R], grad_placements=[P])
        with dt.check_layouts(), pytest.raises(LayoutError, match="write the sum, product"):
            (whole * 1).add_(parts)

    simulate(2, program)


def test_nothing_is_added_up_without_a_gradient():
    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        model = _parallelized(MEET["modulated"], mesh)
        x, c = _values(2, 4, WIDTH, seed=20), _values(1, 1, WIDTH, seed=21)
        with torch.no_grad(), CommLog() as log:
            model(x, c)
        return [record.collective for record in log.records]

    assert simulate(2, program) == 2 * [["all_reduce"]]  # of the row-parallel layer


def test_a_shard_over_a_mesh_axis_of_one_rank_is_the_whole():
    def program():
        mesh = da.init_device_mesh((1, 2), ("dp", "tp"))
        a = dt.redistribute(_values(3, seed=1), mesh["dp"], [R], [S(0)])
        b = dt.redistribute(_values(4, 3, seed=2), mesh["tp"], [R], [S(0)])
        with dt.check_layouts():
            found = (b * a).sum(1)
        torch.testing.assert_close(
            dt.full_tensor(found), _values(4, 3, seed=2) @ _values(3, seed=1)
        )

    simulate(2, program)


def test_what_comes_of_shards_is_not_taken_for_replicated():
    class Quantized(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.b(torch.fake_quantize_per_tensor_affine(self.a(x), 0.1, 0, 0, 9))

    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        plan = {"a": dt.ColwiseParallel(output_layouts=S(0)), "b": dt.ColwiseParallel()}
        model = dt.parallelize_module(Quantized(), mesh, plan)
        with pytest.raises(LayoutError, match=r"not followed, but declared as Replicate\(\)"):
            model(torch.ones(4, 4))

    simulate(2, program)


class _Scaled(nn.Module):
    """Layers around hidden features, which parameters of no layer scale and shift."""

    def __init__(self):
        super().__init__()
        self.up, self.down, self.gate = nn.Linear(4, 7), nn.Linear(7, 4), nn.Linear(4, 1)
        self.scale, self.shift = nn.Parameter(torch.empty(())), nn.Parameter(torch.empty(1))

    def forward(self, x):
        return self.down(torch.tanh(self.up(x) * self.scale.exp() * self.gate(x) + self.shift))


_LEARNED = {"scale": "", "shift": "", "weight": "gate", "bias": "gate"}
"""Parameters without a style, and of which modules they are."""


def _scaled():
    model = _Scaled().double()
    for i, parameter in enumerate(model.parameters()):
        parameter.data = _values(*parameter.shape, seed=i)
    return model


def _step(model, x):
    model(x).square().sum().backward()
    return {n: dt.full_tensor(p.grad) if dt.layout_of(p.grad) else p.grad
            for n, p in model.named_parameters()}  # fmt: skip


def _cut(model, mesh, said=()):
    for name in said:
        dt.distribute_parameter(model.get_submodule(_LEARNED[name]), name, mesh, [R])
    plan = {"up": dt.ColwiseParallel(), "down": dt.RowwiseParallel()}
    return dt.parallelize_module(model, mesh, plan)


@pytest.mark.parametrize("ranks", [2, 3])
def test_parameters_without_a_style_that_are_said_to_be_whole_have_the_gradients_of_one_process(
    ranks,
):
    x = _values(3, 4, seed=30)
    expected = _step(_scaled(), x)

    def program():
        mesh = da.init_device_mesh((ranks,), ("tp",))
        model = _cut(_scaled(), mesh, _LEARNED)
        own = dt.redistribute(x.clone(), mesh, [R], [R])
        torch.testing.assert_close(_step(model, own), expected)

    simulate(ranks, program)


@pytest.mark.parametrize("shard", [False, True])
@pytest.mark.parametrize("lacking", _LEARNED)
def test_parameters_without_a_style_are_refused_beside_shards(lacking, shard):
    def program():
        mesh = da.init_device_mesh((2, 2), ("dp", "tp"))
        x = dt.redistribute(_values(3, 4, seed=30), mesh["tp"], [R], [R])
        model = _cut(_scaled(), mesh["tp"], [name for name in _LEARNED if name != lacking])
        if shard:
            dt.fully_shard(model, mesh["dp"])
        with pytest.raises(LayoutError, match=r"a parameter without a style.*distribute_parameter"):
            model(x)
        with torch.no_grad():
            model(x)
        model.requires_grad_(False)
        model.up.requires_grad_(True)
        if not shard:
            model(x).sum().backward()

    simulate(4, program)


def test_parameters_that_take_the_place_of_others_are_refused_beside_shards():
    def program():
        model = _cut(_scaled(), da.init_device_mesh((2,), ("tp",)))
        model.scale = nn.Parameter(torch.zeros((), dtype=torch.float64))
        with pytest.raises(LayoutError, match="mul beside a shard"):
            model(_values(3, 4, seed=30))

    simulate(2, program)


class _Joined(nn.Module):
    """A table that is cut, beside layers that take each rank's own items."""

    def __init__(self):
        super().__init__()
        self.table, self.dense, self.top = nn.Embedding(9, 5), nn.Linear(4, 3), nn.Linear(8, 2)

    def forward(self, x, words):
        return self.top(torch.cat([torch.tanh(self.dense(x)), self.table(words)], 1))


def _joined():
    model = _Joined().double()
    for i, parameter in enumerate(model.parameters()):
        parameter.data = _values(*parameter.shape, seed=i)
    return model


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("how", [dt.replicate, dt.fully_shard])
def test_gradients_that_others_reduce_over_the_same_ranks_are_left_to_them(how, is_first):
    x, words = _values(7, 4, seed=30), torch.arange(7) * 2 % 9
    alone = _joined()
    alone(x, words).square().sum().backward()
    expected = {name: p.grad for name, p in alone.named_parameters()}

    def program():
        mesh = da.init_device_mesh((3,), ("x",))
        model = _joined()

        def share():
            for layer in (model.dense, model.top):
                how(layer, mesh)

        if is_first:
            share()
        plan = {"table": dt.RowwiseParallel(input_layouts=S(0), output_layouts=S(0))}
        dt.parallelize_module(model, mesh, plan)
        if not is_first:
            share()
        model(
            *(dt.distribute_tensor(v, mesh, [S(0)]) for v in (x, words))
        ).square().sum().backward()
        for name, p in model.named_parameters():
            placed = dt.layout_of(p.grad) is not None
            found = dt.full_tensor(p.grad) if placed else p.grad
            found = found if name == "table.weight" else found * mesh.size  # averages
            torch.testing.assert_close(found, expected[name])

    simulate(3, program)


@pytest.mark.parametrize("when", ["after", "before"])
@pytest.mark.parametrize("lacking", _LEARNED)
def test_parameters_without_a_style_that_were_frozen_are_refused_beside_shards(lacking, when):
    def program():
        mesh = da.init_device_mesh((2, 2), ("dp", "tp"))
        x = dt.redistribute(_values(3, 4, seed=30), mesh["tp"], [R], [R])
        model = _scaled().requires_grad_(False)
        _cut(model, mesh["tp"], [name for name in _LEARNED if name != lacking])
        if when == "before":
            model.requires_grad_(True)
        dt.fully_shard(model, mesh["dp"])
        if when == "after":
            model(x)
            model.requires_grad_(True)
        with pytest.raises(LayoutError, match="a parameter without a style"):
            model(x)

    simulate(4, program)


class _CutTwice(nn.Module):
    """Hidden features, and then tokens, which parameters of no layer scale."""

    def __init__(self):
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(4, 7), nn.Linear(7, 4), nn.LayerNorm(4)
        self.inner, self.outer = (nn.Parameter(torch.empty(())) for _ in range(2))
        self.cut = lambda x: x

    def forward(self, x):
        y = self.down(torch.tanh(self.up(x) * self.inner))
        return self.norm(self.cut(y)) * self.outer


def _cut_twice():
    model = _CutTwice().double()
    for i, parameter in enumerate(model.parameters()):
        parameter.data = _values(*parameter.shape, seed=i)
    return model


@pytest.mark.parametrize("lacking", ["inner", "outer", None])
@pytest.mark.parametrize("is_first", [False, True])
def test_parameters_without_a_style_are_refused_beside_shards_of_each_of_several_meshes(
    lacking, is_first
):
    x = _values(2, 5, 4, seed=30)
    expected = _step(_cut_twice(), x)

    def program():
        mesh = da.init_device_mesh((2, 2), ("cp", "tp"))
        model = _cut_twice()
        for name, axis in (("inner", "tp"), ("outer", "cp")):
            if name != lacking:
                dt.distribute_parameter(model, name, mesh[axis], [R])
        plans = {
            "tp": {"up": dt.ColwiseParallel(), "down": dt.RowwiseParallel()},
            "cp": {"norm": dt.SequenceParallel()},
        }
        for axis in sorted(plans, reverse=is_first):
            dt.parallelize_module(model, mesh[axis], plans[axis])
        model.cut = lambda y: dt.redistribute(y, mesh["cp"], [R], [S(1)])
        if lacking is None:
            torch.testing.assert_close(_step(model, x), expected)
            return
        with pytest.raises(LayoutError, match="a parameter without a style"):
            model(x)

    simulate(4, program)


@pytest.mark.parametrize("how", [dt.replicate, dt.fully_shard])
def test_gradients_that_others_reduce_are_left_to_them_where_modules_have_other_meshes(how):
    x, words = _values(6, 4, seed=30), torch.arange(6) * 2 % 9
    alone = nn.ModuleList([_joined(), _scaled()])
    (alone[0](x, words).square().sum() + alone[1](x).square().sum()).backward()
    expected = {name: p.grad for name, p in alone.named_parameters()}

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList([_joined(), _scaled()])

        def forward(self, x, words, whole):
            return self.parts[0](x, words), self.parts[1](whole)

    def program():
        mesh = da.init_device_mesh((2, 2), ("dp", "tp"))
        model = Both()
        joined, scaled = model.parts
        dt.parallelize_module(
            joined,
            mesh["dp"],
            {"table": dt.RowwiseParallel(input_layouts=S(0), output_layouts=S(0))},
        )
        _cut(scaled, mesh["tp"], _LEARNED)
        for layer in (joined.dense, joined.top, scaled):
            how(layer, mesh["dp"])
        own = [dt.distribute_tensor(v, mesh["dp"], [S(0)]) for v in (x, words)]
        own.append(dt.redistribute(own[0].clone(), mesh["tp"], [R], [R]))
        sum(y.square().sum() for y in model(*own)).backward()
        for name, p in model.parts.named_parameters():
            placed = dt.layout_of(p.grad) is not None
            found = dt.full_tensor(p.grad) if placed else p.grad
            found = found if name == "0.table.weight" else found * 2  # averages
            torch.testing.assert_close(found, expected[name])

    simulate(4, program)


class _Gated(nn.Module):
    """A gate before a shard of features, which its result meets again."""

    def __init__(self, between):
        super().__init__()
        self.gate = nn.Parameter(torch.arange(1.0, WIDTH + 1, dtype=torch.float64))
        self.up, self.down = (nn.Linear(*sizes).double() for sizes in ((WIDTH, 6), (6, WIDTH)))
        self.between = between

    def forward(self, x):
        x = self.between(x, self.gate)
        return self.down(self.up(x) * x.sum(-1, keepdim=True))


BESIDE_OTHERS = {  # what is placed over "dp" meets what ranks of "tp" have alike
    "item by item": lambda x, gate: x * gate,
    "where the cut is lost": lambda x, gate: (x * gate).cumsum(0) + x,
    "twice": lambda x, gate: torch.tanh(x * gate) + x,
    "what is known over both": lambda x, gate: x.detach() * (gate * 2).exp(),
    "recomputed": lambda x, gate: checkpoint(torch.mul, x, gate, use_reentrant=False) * 2,
    "moved": lambda x, gate: x * gate,
}


@pytest.mark.parametrize("is_told", [False, True])
@pytest.mark.parametrize("between", BESIDE_OTHERS)
def test_what_is_placed_over_one_mesh_keeps_what_is_known_over_another(between, is_told):
    x = _values(4, WIDTH, seed=30)
    alone = _Gated(BESIDE_OTHERS[between])
    torch.nn.init.normal_(alone.up.weight, generator=torch.Generator().manual_seed(1))
    state = alone.state_dict()
    if between != "where the cut is lost":
        alone(x).square().sum().backward()

    def program():
        mesh = da.init_device_mesh((2, 2), ("dp", "tp"))
        model = _Gated(BESIDE_OTHERS[between])
        model.load_state_dict(state)
        plan = {"up": dt.ColwiseParallel(), "down": dt.RowwiseParallel()}
        dt.parallelize_module(model, mesh["tp"], plan)
        if is_told:
            dt.distribute_parameter(model, "gate", mesh["tp"], [R])
        dt.replicate(model, mesh["dp"], op="sum")
        if between == "moved":
            model.between = lambda x, gate: dt.redistribute(x * gate, mesh["dp"], [S(0)], [R])
        mine = dt.distribute_tensor(x, mesh["dp"], [S(0)])
        raised = r"would leave a part of a gradient on each rank"
        if between == "where the cut is lost":
            raised = r"placed as 4x4 \[dp:S\(0\)\] by cumsum, along an axis that is cut"
        with pytest.raises(LayoutError, match=raised):
            model(mine).square().sum().backward()
        if between in ("where the cut is lost", "moved"):
            return None
        whole = dt.distribute_tensor(x, mesh, [S(0), R])
        if not is_told:
            dt.distribute_parameter(model, "gate", mesh["tp"], [R])
        model.zero_grad()
        model(whole).square().sum().backward()
        return model.gate.grad

    for found in simulate(4, program):
        if found is not None:
            torch.testing.assert_close(found, alone.gate.grad)


class _OverTwo(_Gated):
    """Another shard of features, over another mesh, which meets the gate."""

    def __init__(self):
        super().__init__(lambda x, gate: x)
        self.other, self.back = (nn.Linear(*one).double() for one in ((WIDTH, 8), (8, WIDTH)))

    def forward(self, x):
        return self.back(self.other(x) * self.gate.sum()) + self.down(self.up(x))


def test_a_parameter_without_a_style_is_whole_over_every_mesh_of_styles():
    def program():
        pairs, all_ranks = da.init_device_mesh((2, 2), ("dp", "tp")), da.init_device_mesh((4,))
        model = _OverTwo()
        styles = {"up": dt.ColwiseParallel(), "down": dt.RowwiseParallel()}
        dt.parallelize_module(model, pairs["tp"], styles)
        styles = {"other": dt.ColwiseParallel(), "back": dt.RowwiseParallel()}
        dt.parallelize_module(model, all_ranks, styles)
        with pytest.raises(LayoutError, match=r"would leave a part of a gradient on each rank"):
            model(_values(3, WIDTH, seed=31))

    simulate(4, program)


BESIDE_UNKNOWN = {
    "scaled": (lambda h, c: h * c, (5, 1)),
    "computed": (lambda h, c: torch.tanh(h) * (c.exp().sum() + 1), (3,)),
    "expanded": (lambda h, c: h + c.expand_as(h), (5, 1)),
    "a product": (lambda h, c: c @ h, (5, 5)),
    "a weight": (lambda h, c: c.tanh().expand(5, 5) @ h, (5,)),
    "recomputed": (lambda h, c: checkpoint(torch.mul, h, c, use_reentrant=False), (5, 1)),
    "put": (lambda h, c: torch.where(h > 0, h, c), (5, 1)),
}


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("how", BESIDE_UNKNOWN)
def test_an_input_of_which_nothing_is_known_beside_a_shard_has_no_part_of_its_gradient(how, ranks):
    function, shape = BESIDE_UNKNOWN[how]

    class Conditioned(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = (nn.Linear(*sizes).double() for sizes in ((6, 8), (8, 6)))

        def forward(self, x, c):
            return self.down(function(self.up(x), c))

    x, alone, given = _values(5, 6, seed=8), Conditioned(), _values(*shape, seed=9).requires_grad_()
    alone(x, given).square().sum().backward()

    def program():
        mesh = da.init_device_mesh((ranks,), ("tp",))
        model = copy.deepcopy(alone)
        plan = {"up": dt.ColwiseParallel(), "down": dt.RowwiseParallel()}
        dt.parallelize_module(model, mesh, plan)
        c = given.detach().clone().requires_grad_()
        ranks_told = r", ".join(map(str, range(ranks)))
        with pytest.raises(LayoutError, match=rf"known among ranks \[{ranks_told}\]\. Say"):
            model(x, c)
        with torch.no_grad():
            torch.testing.assert_close(model(x, c), alone(x, given))
        model(x, dt.redistribute(c, mesh, [R], [R])).square().sum().backward()
        torch.testing.assert_close(c.grad, given.grad)

    simulate(ranks, program)


def test_shards_by_hand_of_which_nothing_is_known_pass_beside_shards():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(4).double()

        def forward(self, x):
            return x * self.norm(x) - x.mean(-1, keepdim=True)

    x, alone = _values(2, 7, 4, seed=8).requires_grad_(), Residual()
    alone(x).square().sum().backward()

    def program():
        mesh = da.init_device_mesh((3,), ("tp",))
        model = dt.parallelize_module(copy.deepcopy(alone), mesh, {"norm": dt.SequenceParallel()})
        mine = dt.redistribute(x.detach(), mesh, [R], [S(1)]).clone().requires_grad_()
        model(mine).square().sum().backward()
        torch.testing.assert_close(mine.grad, x.grad.tensor_split([3, 6], 1)[mesh.rank])

    simulate(3, program)


@pytest.mark.parametrize("whole", [False, True])
def test_what_is_known_over_another_mesh_alone_has_no_parts_of_its_gradient_either(whole):
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = (nn.Linear(*sizes).double() for sizes in ((6, 8), (8, 6)))

        def forward(self, x, c):
            return self.down(self.up(x) * c)

    x, alone, given = _values(4, 6, seed=8), Gated(), _values(4, 1, seed=9).requires_grad_()
    alone(x, given).square().sum().backward()

    def program():
        mesh = da.init_device_mesh((2, 2), ("dp", "tp"))
        plan = {"up": dt.ColwiseParallel(), "down": dt.RowwiseParallel()}
        model = dt.parallelize_module(copy.deepcopy(alone), mesh["tp"], plan)
        over = (mesh, [S(0), R]) if whole else (mesh["dp"], [S(0)])
        own, c = (dt.distribute_tensor(v.detach(), *over) for v in (x, given))
        c.requires_grad_()
        if not whole:
            with pytest.raises(LayoutError, match=r"would leave a part of its gradient"):
                model(own, c)
            return
        model(own, c).square().sum().backward()
        torch.testing.assert_close(c.grad, given.grad.chunk(2)[mesh["dp"].coordinate[0]])

    simulate(4, program)
