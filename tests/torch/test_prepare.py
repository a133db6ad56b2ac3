"""Inputs and outputs are brought where modules need them, with the fewest reductions."""

from __future__ import annotations

import copy
import gc
import weakref
from dataclasses import dataclass
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import (  # noqa: E402
    ArgumentError,
    ArgumentTypeError,
    AxisError,
    LayoutError,
    MismatchError,
)
from distarray.testing import simulate  # noqa: E402
from tests.torch.twins import compare  # noqa: E402

R, P = da.Replicate(), da.Partial()


def values(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(7))


class Attention(nn.Module):
    """Three projections of one input; ``extra`` uses the input for something else as well."""

    def __init__(self, extra=None) -> None:
        super().__init__()
        self.wq, self.wk, self.wv = (nn.Linear(6, 8) for _ in range(3))
        self.wo = nn.Linear(8, 6)
        self.extra = extra

    def forward(self, x, scale=None):
        q, k, v = self.wq(x), self.wk(x), self.wv(x)
        y = torch.sigmoid(q * k) * v
        y = self.wo(y if scale is None else y * scale)
        return y if self.extra is None else self.extra(x, y)


def plan(arrives=da.Shard(1)):  # noqa: B008 - placements are values
    return {
        "": dt.PrepareModuleInput(input_layouts=arrives, desired_input_layouts=R),
        **{name: dt.ColwiseParallel() for name in ("wq", "wk", "wv")},
        "wo": dt.RowwiseParallel(output_layouts=arrives),
    }


def attend(arrives=da.Shard(1), around=lambda run: run):  # noqa: B008
    def parallel(twin, mesh):
        dt.parallelize_module(twin, mesh, plan(arrives))

        def run(x):
            share = dt.redistribute(x, mesh, [R], [arrives])
            return dt.redistribute(around(twin)(share), mesh, [arrives], [R])

        return run

    return parallel


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("length", [4, 5, 2])
def test_three_uses_need_one_all_gather_and_one_reduce_scatter(ranks, length):
    x = values(3, length, 6)
    for log in compare(ranks, Attention().double(), (x,), attend()):
        # Besides: the output's reduce-scatter and its gradient's all-gather; the test's own two.
        assert log.count("reduce_scatter") == 2
        assert log.count("all_gather") == 2 + 2
        assert log.count("all_reduce") == 1  # of the gradient of wo's bias
        assert log.count() == 7


@pytest.mark.parametrize("ranks", [2, 3])
def test_three_uses_of_a_replicated_input_need_one_all_reduce(ranks):
    for log in compare(ranks, Attention().double(), (values(3, 4, 6),), attend(R)):
        assert log.count() == log.count("all_reduce") == 2


@pytest.mark.parametrize("arrives", [da.Shard(1), R], ids=str)
def test_other_uses_of_the_input_have_their_gradient_beside(arrives):
    model = Attention(lambda x, y: y + torch.tanh(x)).double()

    def parallel(twin, mesh):
        p = plan(arrives)
        p["wo"] = dt.RowwiseParallel()
        dt.parallelize_module(twin, mesh, p)
        return lambda x: twin(dt.redistribute(x, mesh, [R], [arrives]))

    for log in compare(3, model, (values(2, 4, 6),), parallel):
        assert log.count("reduce_scatter") == (arrives != R)
        assert log.count("all_reduce") == 1 + (arrives == R)


class Tangled(Attention):
    """What else a forward might do with its input."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, x):
        if self.how == "changed before":
            x.mul_(2)
        if self.how == "hook before":
            x.register_hook(lambda g: g * 3)
        if self.how == "reshaped":
            x = x.reshape(-1, 6)
        q = self.wq(x)
        if self.how == "detached":
            x = x.detach()
        with torch.set_grad_enabled(self.how != "without gradient"):
            k = self.wk(x)
        y = self.wo(torch.sigmoid(q) * k + self.wv(x))
        if self.how == "hook after":
            x.register_hook(lambda g: g * 3)
        if self.how == "retained":
            x.retain_grad()
            self.seen = x
        if self.how == "unused":
            return self.wo(q)
        return y.reshape(2, -1, 6)


@pytest.mark.parametrize(
    "how",
    ["changed before", "hook before", "hook after", "reshaped", "detached", "without gradient",
     "retained", "unused"],
)  # fmt: skip
@pytest.mark.parametrize("arrives", [da.Shard(1), R], ids=str)
def test_no_use_makes_a_wrong_gradient(how, arrives):
    """Compared with the same module in one process, given a tensor that is not a leaf."""
    model = Tangled(how).double()
    x = values(2, 4, 6)
    mine = x.clone().requires_grad_()
    model(mine * 1).square().sum().backward()
    expected = {name: p.grad for name, p in model.named_parameters()}
    seen = getattr(model, "seen", None)
    model.seen = None
    model.zero_grad()

    def program():
        mesh = da.init_device_mesh((2,))
        twin = copy.deepcopy(model)
        p = plan(arrives)
        p["wo"] = dt.RowwiseParallel()
        dt.parallelize_module(twin, mesh, p)
        own = x.clone().requires_grad_()
        twin(dt.redistribute(own * 1, mesh, [R], [arrives])).square().sum().backward()
        torch.testing.assert_close(own.grad, mine.grad)
        for name, parameter in twin.named_parameters():
            if expected[name] is None:
                assert parameter.grad is None
                continue
            full = expected[name]
            box = dt.layout_of(parameter).local_box()
            full = full[tuple(slice(*b) for b in box)]
            torch.testing.assert_close(parameter.grad, full)
        if how == "retained":
            torch.testing.assert_close(twin.seen.grad, seen.grad)

    simulate(2, program, timeout=60)


def test_gradient_of_the_prepared_tensor_itself_is_whole():
    """Derivatives inside of the module, by it and by other tensors, and second ones."""

    class Penalised(Attention):
        def forward(self, x):
            y = self.wo(torch.sigmoid(self.wq(x)) * self.wk(x) + self.wv(x)) + x
            (slope,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
            return y + slope

    model = Penalised().double()

    def parallel(twin, mesh):
        p = plan()
        p["wo"] = dt.RowwiseParallel()
        dt.parallelize_module(twin, mesh, p)
        return lambda x: twin(dt.redistribute(x, mesh, [R], [da.Shard(1)]))

    compare(2, model, (values(2, 4, 6),), parallel)


@pytest.mark.parametrize("by", ["grad", "inputs"])
def test_gradients_of_chosen_tensors(by):
    model = Attention(torch.add).double()
    x = values(2, 4, 6)

    def wanted(run, parameter, x):
        loss = run(x).square().sum()
        if by == "grad":
            return torch.autograd.grad(loss, [parameter, x])
        loss.backward(inputs=[parameter, x])
        return parameter.grad, x.grad

    expected = wanted(model, model.wk.weight, x.clone().requires_grad_())
    model.zero_grad()

    def program():
        mesh = da.init_device_mesh((2,))
        twin = copy.deepcopy(model)
        p = plan()
        p["wo"] = dt.RowwiseParallel()
        dt.parallelize_module(twin, mesh, p)

        def run(x):
            return twin(dt.redistribute(x, mesh, [R], [da.Shard(1)]))

        weight, whole = wanted(run, twin.wk.weight, x.clone().requires_grad_())
        torch.testing.assert_close(whole, expected[1])
        torch.testing.assert_close(weight, expected[0].chunk(2)[mesh.rank])

    simulate(2, program, timeout=60)


def test_hook_on_some_ranks_is_an_error():
    def program():
        mesh = da.init_device_mesh((2,))
        twin = dt.parallelize_module(Attention(), mesh, plan())
        twin.wq.register_forward_pre_hook(
            lambda _, args: None if mesh.rank else args[0].register_hook(torch.neg) and None,
            prepend=True,
        )
        share = torch.ones(2, 3, 6, requires_grad=True)
        loss = twin(share).sum()
        with pytest.raises(MismatchError):
            loss.backward()

    simulate(2, program, timeout=60)


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
@pytest.mark.parametrize("arrives", [da.Shard(1), R], ids=str)
def test_second_derivatives_of_backward(arrives):
    model = Attention().double()
    x = values(2, 4, 6)

    def slopes(run, parameters, x):
        loss = run(x).square().sum()
        loss.backward(create_graph=True)
        firsts = [p.grad.clone() for p in (*parameters, x)]
        penalty = x.grad.pow(3).sum()
        x.grad = None
        for p in parameters:
            p.grad = None
        penalty.backward()
        return firsts + [p.grad for p in (*parameters, x)]

    expected = slopes(model, [model.wq.bias, model.wk.weight], x.clone().requires_grad_())
    model.zero_grad()

    def program():
        mesh = da.init_device_mesh((2,))
        twin = copy.deepcopy(model)
        run = attend(arrives)(twin, mesh)
        own = x.clone().requires_grad_()
        for i, grad in enumerate(slopes(run, [twin.wq.bias, twin.wk.weight], own)):
            full = expected[i]
            if i % 3 < 2:
                full = full.chunk(2)[mesh.rank]
            torch.testing.assert_close(grad, full)

    simulate(2, program, timeout=60)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant):
    from torch.utils.checkpoint import checkpoint

    def around(run):
        return lambda x: checkpoint(run, x, use_reentrant=reentrant)

    for log in compare(2, Attention().double(), (values(3, 4, 6),), attend(around=around)):
        assert log.count("reduce_scatter") <= 3  # of outputs, those computed again, gradients


def test_nothing_is_kept_alive():
    def program():
        mesh = da.init_device_mesh((2,))
        twin = dt.parallelize_module(Attention(), mesh, plan(R))
        leaf = torch.ones(2, 4, 6, requires_grad=True)
        seen = []
        twin.wq.register_forward_pre_hook(lambda _, args: seen.append(weakref.ref(args[0])))
        loss = twin(leaf).sum()
        loss.backward()
        seen.append(weakref.ref(leaf))
        del leaf, loss
        gc.collect()
        assert [reference() for reference in seen] == [None, None]

    simulate(2, program, timeout=60)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled(backend):
    def program():
        mesh = da.init_device_mesh((1,))
        model = Attention().double()
        twin = copy.deepcopy(model)
        dt.parallelize_module(twin, mesh, plan())
        x = values(3, 4, 6).requires_grad_()
        y = torch.compile(twin, backend=backend)(x)
        torch.testing.assert_close(y, model(x))
        y.sum().backward()
        model(x).sum().backward()
        torch.testing.assert_close(twin.wq.weight.grad, model.wq.weight.grad)

    simulate(1, program, timeout=100)


# --- forms of arguments --------------------------------------------------------------------------


class Pair(NamedTuple):
    """Two tensors."""

    first: torch.Tensor
    second: torch.Tensor | None = None


@dataclass(frozen=True)
class Batch:
    """A tensor, and something that is none."""

    words: torch.Tensor
    length: int


class Echo(nn.Module):
    """Returns what it is called with."""

    def forward(self, *args, flag=None, pair=None):
        self.seen = args, flag, pair
        return args[0] if len(args) == 1 else args


def shares(mesh, x, axis=0):
    return dt.redistribute(x, mesh, [R], [da.Shard(axis)]).detach()


def test_arguments_of_every_form():
    x = values(5, 4)
    S = da.Shard(0)

    def program():
        mesh = da.init_device_mesh((2,))
        style = dt.PrepareModuleInput(
            input_layouts=(S, None, (S, [None, da.Shard(1)]), {"a": S}, {"words": S}, S),
            desired_input_layouts=(R, None, (R, [None, R]), {"a": R}, {"words": R}, None),
            input_kwarg_layouts={"pair": {"first": S, "second": S}, "flag": R},
            desired_input_kwarg_layouts={"pair": {"first": R, "second": R}, "flag": S},
        )
        module = dt.parallelize_module(Echo(), mesh, style)
        mine, across = shares(mesh, x), shares(mesh, x, 1)
        untouched = object()
        batch = Batch(mine, 3)
        module(
            mine,
            untouched,
            (mine, [untouched, across]),
            {"a": mine, "b": untouched},
            batch,
            mine,
            pair=Pair(mine),
            flag=x,
        )
        (one, two, nested, named, data, kept), flag, pair = module.seen
        assert two is untouched
        assert kept is mine
        assert type(nested) is tuple
        assert type(nested[1]) is list
        assert nested[1][0] is untouched
        assert named["b"] is untouched
        assert data == Batch(data.words, 3)
        assert batch.words is mine  # the caller's own is as it was
        assert type(pair) is Pair
        assert pair.second is None
        for full in (one, nested[0], nested[1][1], named["a"], data.words, pair.first):
            assert torch.equal(full, x)
            assert dt.layout_of(full).placements == (R,)
        assert torch.equal(flag, mine)

    simulate(2, program, timeout=60)


def test_outputs_of_every_form():
    x = values(5, 4)
    S = da.Shard(0)

    def program():
        mesh = da.init_device_mesh((2,))
        mine = shares(mesh, x)
        for given, wanted, made in (
            (S, R, mine),
            ((S,), (R,), mine),
            ((S, None), (R, None), (mine, 3)),
            ([S, R], [R, R], [mine, x]),
            ({"y": S}, {"y": R}, {"y": mine}),
            ({"first": S}, {"first": R}, Pair(mine)),
            ((S, None), (R, None), Pair(mine)),
            ({"words": S}, {"words": R}, Batch(mine, 2)),
        ):
            style = dt.PrepareModuleInputOutput(output_layouts=given, desired_output_layouts=wanted)
            y = dt.parallelize_module(Echo(), mesh, style)(made)
            assert type(y) is type(made)
            if isinstance(y, dict):
                y = y["y"]
            elif isinstance(y, Batch):
                y = y.words
            y = y[0] if isinstance(y, tuple | list) else y
            assert torch.equal(y, x)

    simulate(2, program, timeout=60)


def test_meshes_of_several_axes():
    x = values(5, 4)

    def program():
        mesh = da.init_device_mesh((2, 2), ("dp", "tp"))
        cut = (da.Shard(0), da.Shard(1))
        share = dt.redistribute(x, mesh, [R, R], cut)
        single = dt.PrepareModuleInputOutput(
            input_layouts=cut,
            desired_input_layouts=(da.Shard(0), R),
            output_layouts=[(da.Shard(0), R)],
            desired_output_layouts=[cut],
        )
        module = dt.parallelize_module(Echo(), mesh, single)
        assert torch.equal(module(share), share)
        (seen,), *_ = module.seen
        assert dt.layout_of(seen).placements == (da.Shard(0), R)
        both = dt.PrepareModuleInput(
            input_layouts=(cut, None, [R, R]), desired_input_layouts=([R, R], None, cut)
        )
        module = dt.parallelize_module(Echo(), mesh, both)
        module(share, None, x)
        (one, _, other), *_ = module.seen
        assert torch.equal(one, x)
        assert torch.equal(other, share)
        with pytest.raises(ArgumentTypeError, match=r"input 0: .* must be a sequence of 2"):
            dt.parallelize_module(
                Echo(), mesh, dt.PrepareModuleInput(input_layouts=R, desired_input_layouts=R)
            )(x)

    simulate(4, program, timeout=60)


def test_gradients_through_outputs_and_keywords():
    class Scaled(nn.Module):
        def forward(self, x, *, by):
            return x * by, by

    model = nn.ModuleList([Scaled()])
    x, by = values(5, 4), values(5, 4) + 1
    a, b = x.clone().requires_grad_(), by.clone().requires_grad_()
    (model[0](a, by=b)[0] ** 2).sum().backward()

    def program():
        mesh = da.init_device_mesh((3,))
        module = dt.parallelize_module(
            Scaled(),
            mesh,
            dt.PrepareModuleInputOutput(
                input_layouts=R,
                desired_input_layouts=da.Shard(0),
                input_kwarg_layouts={"by": da.Shard(1)},
                desired_input_kwarg_layouts={"by": da.Shard(0)},
                output_layouts=(da.Shard(0), None),
                desired_output_layouts=(R, None),
            ),
        )
        mine, other = x.clone().requires_grad_(), by.clone().requires_grad_()
        with da.CommLog() as log:
            y, _ = module(mine, by=dt.redistribute(other, mesh, [R], [da.Shard(1)]))
            (y**2).sum().backward()
        torch.testing.assert_close(mine.grad, a.grad)
        torch.testing.assert_close(other.grad, b.grad)
        assert log.count("all_reduce") == 0

    simulate(3, program, timeout=60)


# --- errors --------------------------------------------------------------------------------------

S0 = da.Shard(0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"input_layouts": S0}, "pass both, or neither"),
        ({"input_kwarg_layouts": {"x": S0}}, "pass both, or neither"),
        (
            {"input_layouts": (S0, R), "desired_input_layouts": (R,)},
            r"input_layouts and desired_input_layouts must have the same form",
        ),
        (
            {"input_layouts": (S0, (R, R)), "desired_input_layouts": (R, (R, R, R))},
            r"input_layouts\[1\] and desired_input_layouts\[1\] must have the same form",
        ),
        (
            {"input_layouts": (S0, None), "desired_input_layouts": (R, R)},
            r"input_layouts\[1\] is None: say how",
        ),
        (
            {"input_kwarg_layouts": {"x": S0}, "desired_input_kwarg_layouts": {"y": R}},
            "must have the same form",
        ),
    ],
)
def test_layouts_that_do_not_fit_each_other(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        dt.PrepareModuleInput(**arguments)


@pytest.mark.parametrize(
    ("layouts", "args", "kind", "message"),
    [
        ((S0,), 2, ArgumentError, r"for 1 positional arguments, but forward was called with 2"),
        ((S0, S0, S0), 2, ArgumentError, r"is for 3 positional arguments"),
        ((S0, (S0, S0)), 2, ArgumentTypeError, r"input 1: its layout .* must be one placement"),
        ((S0, da.Shard(2)), 2, AxisError, r"input 1: "),
        (({"a": S0},), 1, ArgumentTypeError, r"input 0: its layout"),
    ],
)
def test_arguments_that_do_not_fit(layouts, args, kind, message):
    def program():
        mesh = da.init_device_mesh((2,))
        style = dt.PrepareModuleInput(input_layouts=layouts, desired_input_layouts=layouts)
        model = nn.ModuleDict({"echo": Echo()})
        dt.parallelize_module(model, mesh, {"echo": style})
        with da.CommLog() as log, pytest.raises(kind, match=rf"^echo \(Echo\): .*{message}"):
            model["echo"](*[torch.ones(2, 3)] * args)
        assert log.count() == 0

    simulate(2, program, timeout=60)


@pytest.mark.parametrize(
    ("layouts", "value", "kind", "message"),
    [
        ((S0, S0), (1,), ArgumentError, r"has the parts \[0\], but 2 layouts are declared"),
        ({"x": S0}, {"y": 1}, ArgumentError, r"has no 'x'; it has \['y'\]"),
        (S0, (1, 2), ArgumentError, "has 2 parts, but one layout"),
        (S0, 5, ArgumentTypeError, "is of type int, where a layout"),
    ],
)
def test_containers_that_do_not_fit(layouts, value, kind, message):
    def program():
        mesh = da.init_device_mesh((2,))
        style = dt.PrepareModuleInput(input_layouts=(layouts,), desired_input_layouts=(layouts,))
        module = dt.parallelize_module(Echo(), mesh, style)
        with pytest.raises(kind, match=f"input 0 {message}"):
            module(value)

    simulate(2, program, timeout=60)


def test_outputs_names_and_layouts_that_do_not_fit():
    class Named(nn.Module):
        def forward(self, x, mask=None):
            return x

    def program():
        mesh = da.init_device_mesh((2,))
        both = {"output_layouts": (R, R), "desired_output_layouts": (R, R)}
        module = dt.parallelize_module(Echo(), mesh, dt.PrepareModuleOutput(**both))
        with pytest.raises(ArgumentError, match="for 2 outputs, but forward returned one Tensor"):
            module(torch.ones(2))
        style = dt.PrepareModuleInput(
            input_kwarg_layouts={"msak": R}, desired_input_kwarg_layouts={"msak": S0}
        )
        with pytest.raises(ArgumentError, match=r"names 'msak', but forward takes \['x', 'mask'\]"):
            dt.parallelize_module(Named(), mesh, style)
        style = dt.PrepareModuleInput(input_layouts=S0, desired_input_layouts=R)
        module = dt.parallelize_module(Named(), mesh, style)
        known = dt.redistribute(torch.ones(4, 4), mesh, [R], [da.Shard(1)])
        with pytest.raises(LayoutError, match=r"input 0: it is placed as .* but declared as Shard"):
            module(known)

    simulate(2, program, timeout=60)
