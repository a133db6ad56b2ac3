"""Gradients of many small parameters that all ranks have are added up together, and stay right."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import MismatchError  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from distarray.torch.parallel import _gradient_sums  # noqa: E402
from tests.torch.programs import filled, on_ranks, same, values  # noqa: E402

R, CUT = da.Replicate(), da.Shard(1)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(6), nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Stack(nn.Module):
    """Some layers, of which a call may leave one out."""

    def __init__(self, count=3):
        super().__init__()
        self.layers = nn.ModuleList([Layer() for _ in range(count)])
        self.scale = nn.LayerNorm(6)

    def forward(self, x, without=None, run=lambda layer, x: layer(x)):
        for i, layer in enumerate(self.layers):
            if i != without:
                x = run(layer, x)
        return self.scale(x)


PLAN = {
    "layers.*.norm": dt.SequenceParallel(),
    "layers.*.up": dt.ColwiseParallel(input_layouts=CUT),
    "layers.*.down": dt.RowwiseParallel(output_layouts=CUT),
    "scale": dt.SequenceParallel(),
}
SMALL = 3 * (2 * 6 + 6) + 2 * 6  # items: of norms, and the biases of down


def model():
    return filled(Stack().double())


def whole_of(twin, mesh, x, **how):
    shard = dt.redistribute(x, mesh, [R], [CUT])
    return dt.redistribute(twin(shard, **how), mesh, [CUT], [R])


def parallel(mesh, over=None):
    return dt.parallelize_module(model(), over or mesh, PLAN)


def gradients(twin):
    return {name: p.grad for name, p in twin.named_parameters()}


def check(twin, wanted, times=1):
    terms = [g for g in wanted.values() if g is not None]
    for name, found in gradients(twin).items():
        if wanted[name] is None:
            assert found is None, name
            continue
        box = dt.layout_of(twin.get_parameter(name)).local_box()
        same(found, times * wanted[name][tuple(slice(*ends) for ends in box)], terms)


def alone(x, **how):
    twin = model()
    twin(x, **how).square().sum().backward()
    return gradients(twin)


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("length", [5, 2])
def test_a_pass_adds_up_all_in_one(ranks, length):
    x = values(3, length, 6)
    wanted = alone(x)

    def program(mesh):
        twin = copy.deepcopy(parallel(mesh))
        for _ in range(2):
            twin.zero_grad()
            y = whole_of(twin, mesh, x)
            with da.CommLog() as log:
                y.square().sum().backward()
            assert log.count("all_reduce") == 1
            least = 2 * (ranks - 1) / ranks * SMALL * 8
            assert least <= log.bytes("all_reduce") <= (ranks - 1) * SMALL * 8
            check(twin, wanted)

    on_ranks(ranks, program)


def test_buckets_hold_so_many_bytes(monkeypatch):
    monkeypatch.setattr(_gradient_sums, "BUCKET_BYTES", 2 * 18 * 8)
    x = values(3, 4, 6)
    wanted = alone(x)

    def program(mesh):
        twin = parallel(mesh)
        y = whole_of(twin, mesh, x)
        with da.CommLog() as log:
            y.square().sum().backward()
        assert log.count("all_reduce") == 2  # of two layers, and of the rest
        check(twin, wanted)

    on_ranks(2, program)


@pytest.mark.parametrize("without", [0, 2])
def test_a_layer_that_is_left_out_has_no_gradient(without):
    x = values(3, 4, 6)
    wanted = alone(x, without=without)

    def program(mesh):
        twin = parallel(mesh)
        whole_of(twin, mesh, x, without=without).square().sum().backward()
        check(twin, wanted)
        whole_of(twin, mesh, x).square().sum().backward()
        assert all(g is not None for g in gradients(twin).values())

    on_ranks(2, program)


def test_ranks_that_leave_out_other_layers_hear_of_it():
    class Choosing(Stack):
        def forward(self, x, chosen):
            return self.layers[chosen].norm(x)

    def program(mesh):
        twin = dt.parallelize_module(filled(Choosing().double()), mesh, PLAN)
        x = dt.redistribute(values(3, 4, 6), mesh, [CUT], [CUT])
        y = twin(x, chosen=mesh.coordinate[0])
        with pytest.raises(MismatchError, match=r"gradients \[.*\] of 11 replicated parameters"):
            y.square().sum().backward()

    on_ranks(2, program)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(reentrant):
    x = values(3, 4, 6)
    wanted = alone(x)

    def program(mesh):
        twin = parallel(mesh)
        run = lambda layer, x: checkpoint(layer, x, use_reentrant=reentrant)  # noqa: E731
        given = x.clone().requires_grad_()
        whole_of(twin, mesh, given, run=run).square().sum().backward()
        check(twin, wanted)

    on_ranks(2, program)


def test_hooks_and_autograd_see_sums():
    x = values(3, 4, 6)
    wanted = alone(x)

    def program(mesh):
        twin = parallel(mesh)
        seen = {}

        def note(when, name):
            def hook(given):
                seen.setdefault((when, name), (given if when == "hook" else given.grad).clone())

            return hook

        for name, p in twin.named_parameters():
            p.register_hook(note("hook", name))
            p.register_post_accumulate_grad_hook(note("after", name))
        loss = whole_of(twin, mesh, x).square().sum()
        names, parameters = zip(*twin.named_parameters(), strict=True)
        found = torch.autograd.grad(loss, parameters, retain_graph=True)
        loss.backward(retain_graph=True)
        loss.backward()
        check(twin, wanted, 2)
        for name, one in zip(names, found, strict=True):
            box = dt.layout_of(twin.get_parameter(name)).local_box()
            part = wanted[name][tuple(slice(*ends) for ends in box)]
            for g in (one, seen["hook", name], seen["after", name]):
                same(g, part, wanted.values())

    on_ranks(2, program)


def test_a_pass_that_fails_leaves_the_next_one_right():
    x = values(3, 4, 6)
    wanted = alone(x)

    def program(mesh):
        twin = parallel(mesh)

        def fail(_):
            raise ValueError("on all ranks")

        hook = twin.layers[0].norm.weight.register_hook(fail)
        with pytest.raises(ValueError, match="on all ranks"):
            whole_of(twin, mesh, x).square().sum().backward()
        hook.remove()
        twin.zero_grad()
        whole_of(twin, mesh, x).square().sum().backward()
        check(twin, wanted)

    on_ranks(2, program)


def test_gradients_that_replicas_wait_for_are_added_up_at_once():
    x = values(4, 4, 6)
    wanted = alone(x)

    def program():
        mesh = da.init_device_mesh((2, 2), ("dp", "tp"))
        twin = dt.replicate(parallel(mesh, mesh["tp"]), mesh["dp"], op="sum")
        row = mesh.coordinate[0]
        mine = x.chunk(2)[row]
        y = whole_of(twin, mesh["tp"], mine)
        with da.CommLog() as log:
            y.square().sum().backward()
        assert log.count("all_reduce", "tp") == 4 + 3  # of norms, and of biases
        check(twin, wanted)

    simulate(4, program)


def test_shards_without_items_are_no_matter():
    layer = Layer()
    layer.norm, layer.up, layer.down = nn.LayerNorm(2), nn.Linear(2, 8), nn.Linear(8, 2)
    layer, x = filled(layer.double()), values(3, 4, 2)
    alone = copy.deepcopy(layer)
    alone(x).square().sum().backward()
    wanted = {name: p.grad for name, p in alone.named_parameters()}
    plan = {name.removeprefix("layers.*."): style for name, style in PLAN.items()}
    del plan["scale"]

    def program():
        mesh = da.init_device_mesh((3, 2), ("dp", "tp"))
        twin = dt.parallelize_module(copy.deepcopy(layer), mesh["tp"], plan)
        for child in twin.children():  # the last of three ranks has nothing of two items
            dt.fully_shard(child, mesh["dp"]).set_gradient_divide_factor(1.0)
        whole_of(twin, mesh["tp"], x[mesh.coordinate[0]][None]).square().sum().backward()
        for name, p in twin.named_parameters():
            same(dt.full_tensor(p.grad), wanted[name], wanted.values())

    simulate(6, program)
