"""Arguments and outputs of every form are prepared; those that fit no layout are refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import ArgumentError, ArgumentTypeError, AxisError, LayoutError  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from tests.torch.programs import values  # noqa: E402

R = da.Replicate()


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
        assert (type(data), data.length) == (Batch, 3)
        assert batch.words is mine  # the caller's own is as it was
        assert type(pair) is Pair
        assert pair.second is None
        for full in (one, nested[0], nested[1][1], named["a"], data.words, pair.first):
            assert torch.equal(full, x)
            assert dt.layout_of(full).placements == (R,)
        assert torch.equal(flag, mine)

    simulate(2, program)


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

    simulate(2, program)


def test_meshes_of_several_axes():
    x = values(5, 4)

    def program():
        mesh = da.init_device_mesh((2, 2), ("dp", "tp"))
        cut = (da.Shard(0), da.Shard(1))
        shard = dt.redistribute(x, mesh, [R, R], cut)
        single = dt.PrepareModuleInputOutput(
            input_layouts=cut,
            desired_input_layouts=(da.Shard(0), R),
            output_layouts=[(da.Shard(0), R)],
            desired_output_layouts=[cut],
        )
        module = dt.parallelize_module(Echo(), mesh, single)
        assert torch.equal(module(shard), shard)
        (seen,), *_ = module.seen
        assert dt.layout_of(seen).placements == (da.Shard(0), R)
        both = dt.PrepareModuleInput(
            input_layouts=(cut, None, [R, R]), desired_input_layouts=([R, R], None, cut)
        )
        module = dt.parallelize_module(Echo(), mesh, both)
        module(shard, None, x)
        (one, _, other), *_ = module.seen
        assert torch.equal(one, x)
        assert torch.equal(other, shard)
        with pytest.raises(ArgumentTypeError, match=r"input 0: .* must be a sequence of 2"):
            dt.parallelize_module(
                Echo(), mesh, dt.PrepareModuleInput(input_layouts=R, desired_input_layouts=R)
            )(x)

    simulate(4, program)


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

    simulate(3, program)


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

    simulate(2, program)


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

    simulate(2, program)


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

    simulate(2, program)
