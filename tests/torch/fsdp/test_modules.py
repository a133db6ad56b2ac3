"""Modules of every kind, and every way to use them, sharded."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.nn.utils import parametrizations  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from tests.torch.fsdp.training import (  # noqa: E402
    check_gradients,
    compare,
    filled,
    gradients,
    mean_square,
    on_ranks,
    rows_of,
    same,
    square_mean,
    trained,
    values,
)


class Twice(nn.Module):
    """Uses a module twice, shares a module, and leaves one out."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(5, 5)
        self.again = self.first
        self.scale = nn.Parameter(torch.tensor(0.3))
        self.unused = nn.Linear(3, 2)
        self.spare = nn.Parameter(torch.zeros(4))
        self.empty = nn.Parameter(torch.zeros(0, 3))
        self.last = nn.Linear(5, 1)

    def forward(self, x):
        x = torch.tanh(self.first(x)) * self.scale
        return self.last(torch.tanh(self.again(x)) + self.first(x) + 0 * self.empty.sum())


class Strided(nn.Module):
    """Parameters whose memory is not in the order of their axes."""

    def __init__(self):
        super().__init__()
        self.turned = nn.Parameter(torch.zeros(7, 5).t())
        self.cube = nn.Parameter(torch.zeros(3, 5, 2).permute(2, 0, 1))
        self.every = nn.Parameter(torch.zeros(10, 3)[::2])
        self.wide = nn.Parameter(torch.zeros(1, 3).expand(5, 3).clone())

    def forward(self, x):
        y = x @ self.turned
        assert self.turned.stride() == (1, 5)
        return y[:, :5] @ (self.every + self.wide) @ self.cube[0] + self.cube[1].sum()


class Nested(nn.Module):
    """Takes and returns what is no tensor."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 4)

    def forward(self, pair, *, scale=None, flags=()):
        x, y = pair["x"], pair["y"]
        if scale is None:
            return None
        return {"sum": self.linear(x) * scale, "other": (y, None, "text", 3)}, list(flags)


class Wraps(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.ModuleList([Nested(), Nested()])

    def forward(self, x):
        assert self.inner[0]({"x": x, "y": x}) is None
        found, flags = self.inner[0]({"x": x, "y": x}, scale=2.0, flags=[1, True])
        assert flags == [1, True]
        assert found["other"][1:] == (None, "text", 3)
        more, _ = self.inner[1]({"x": found["other"][0] * 2, "y": x}, scale=0.7)
        return found["sum"] + more["sum"]


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.rnn = kind(5, 3, num_layers=2, batch_first=True)
        self.last = nn.Linear(3, 1)

    def forward(self, x):
        return self.last(self.rnn(x)[0])


class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


def convolutions():
    layers = nn.Conv2d(3, 5, 3), nn.ReLU(), nn.BatchNorm2d(5), nn.Conv2d(5, 2, (1, 3))
    return nn.Sequential(*layers).to(memory_format=torch.channels_last)


def normed():
    layers = parametrizations.weight_norm(nn.Linear(5, 7)), nn.Tanh(), nn.Linear(7, 3)
    return nn.Sequential(*layers)


def encoder():
    return nn.TransformerEncoderLayer(6, 2, 7, dropout=0.0, batch_first=True)


KINDS = {
    "twice": (Twice, (12, 5)),
    "strided": (Strided, (12, 5)),
    "nested": (Wraps, (12, 5)),
    "lstm": (lambda: Recurrent(nn.LSTM), (12, 4, 5)),
    "gru": (lambda: Recurrent(nn.GRU), (12, 4, 5)),
    "attention": (Attends, (12, 4, 6)),
    "encoder": (encoder, (12, 4, 6)),
    "convolutions": (convolutions, (12, 3, 5, 5)),
    "normed": (normed, (12, 5)),
    "wide": (lambda: nn.Sequential(nn.Linear(5, 2), nn.Linear(2, 1)), (12, 5)),
}


def every_child(module, mesh, **kwargs):
    for child in module.children():
        if not isinstance(child, nn.ModuleList):
            dt.fully_shard(child, mesh, **kwargs)
        else:
            for one in child:
                dt.fully_shard(one, mesh, **kwargs)
    return dt.fully_shard(module, mesh, **kwargs)


def root_alone(module, mesh, **kwargs):
    return dt.fully_shard(module, mesh, **kwargs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("shard", [every_child, root_alone])
def test_kinds(kind, ranks, shard):
    make, shape = KINDS[kind]
    batches = [values(*shape, seed=i) for i in range(2)]
    data = () if kind == "convolutions" else ("dp",)  # statistics are those of the rank's rows
    single = trained(filled(make()), batches)
    modules = compare(single, shard, (ranks,), data=data)
    expected = dict(single.end.named_buffers())
    for module in modules:
        for name, buffer in module.named_buffers():
            same(buffer, expected[name], name)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("placement", [-1, 1])
def test_kinds_along_other_axes(kind, placement):
    make, shape = KINDS[kind]

    def wanted(p):
        return da.Shard(placement) if p.ndim > 1 else None

    def shard(module, mesh):
        return every_child(module, mesh, shard_placement_fn=wanted, reshard_after_forward=2)

    data = () if kind == "convolutions" else ("dp",)
    compare(trained(filled(make()), [values(*shape)]), shard, (3,), data=data)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_evaluation(kind, mode):
    """Before the first step, between forward and backward, and after changes of values."""
    make, shape = KINDS[kind]
    module, x = filled(make()), values(*shape)
    module.eval()
    with torch.no_grad():
        first = module(x)
    module.zero_grad()
    mean_square(module, x).backward()
    wanted = gradients(module)
    changed = copy.deepcopy(module)
    with torch.no_grad():
        for p in changed.parameters():
            p.mul_(0.5)
        second = changed(x)

    def program(mesh):
        # The fast path of a transformer layer reads the weights of the modules inside itself.
        shard = root_alone if kind == "encoder" else every_child
        mine = shard(copy.deepcopy(module), mesh)
        mine.zero_grad()
        with mode():
            same(mine(x), first, "before")
        loss = mean_square(mine, x)
        with mode():
            same(mine(x), first, "between")
        loss.backward()
        check_gradients(mine, wanted)
        with torch.no_grad():
            for p in mine.parameters():
                p.mul_(0.5)
        with mode():
            same(mine(x), second, "changed")
            same(mine(x), second, "again")

    module.zero_grad()
    on_ranks(2, program)


def test_steps_are_seen_after_a_first_call_in_inference_mode():
    """What is kept whole after backward is gathered again: the parameters count their changes."""
    module, x = filled(nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))), values(6, 5)

    def program(mesh):
        mine = every_child(copy.deepcopy(module), mesh)
        for one in (mine, *mine):
            if isinstance(one, dt.FSDPModule):
                one.set_reshard_after_backward(False)
        with torch.inference_mode():
            mine(x)
        assert not any(p.is_inference() for p in mine.parameters())
        twin = copy.deepcopy(module)
        for _ in range(3):
            for one in (mine, twin):
                one.zero_grad()
                mean_square(one, x).backward()
                torch.optim.SGD(one.parameters(), lr=0.5).step()
            same(mine(x).detach(), twin(x).detach(), "stepped")

    on_ranks(2, program)


@pytest.mark.parametrize("after", [True, False, 1, 2])
def test_values_that_change_unseen(after):
    """Values written through ``.data``, which torch does not count as a change."""
    module, x = filled(nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))), values(6, 5)

    def program(mesh):
        mine = every_child(copy.deepcopy(module), mesh, reshard_after_forward=after)
        with torch.no_grad():
            mine(x)
        for p in mine.parameters():
            p.data.mul_(0.5)
        twin = copy.deepcopy(module)
        for p in twin.parameters():
            p.data.mul_(0.5)
        same(mine(x).detach(), twin(x).detach(), "halved")
        with torch.no_grad():
            same(mine(x).detach(), twin(x).detach(), "halved")
        for p in mine.parameters():
            p.data = p.data * 0.5
        for p in twin.parameters():
            p.data.mul_(0.5)
        with torch.no_grad():
            same(mine(x), twin(x), "replaced")

    on_ranks(3, program)


def test_inputs_that_need_gradients():
    module = filled(nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)))
    for p in module[2].parameters():
        p.requires_grad_(False)
    x = values(6, 5).requires_grad_()
    mean_square(module, x).backward()

    def program(mesh):
        mine = every_child(copy.deepcopy(module), mesh)
        given = rows_of(mine, x.detach()).clone().requires_grad_()
        square_mean(mine, given).backward()
        same(given.grad, rows_of(mine, x.grad) * 2, "input")
        frozen = every_child(copy.deepcopy(module), mesh)
        for p in frozen.parameters():
            p.requires_grad_(False)
        given.grad = None
        square_mean(frozen, given).backward()
        same(given.grad, rows_of(mine, x.grad) * 2, "input of frozen parameters")
        assert all(p.grad is None for p in frozen.parameters())

    module.zero_grad()
    on_ranks(2, program)


def test_requires_grad_that_changes():
    start = filled(nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)))
    x = values(6, 5)

    def program(mesh):
        mine, twin = every_child(copy.deepcopy(start), mesh), copy.deepcopy(start)
        for step in range(6):
            for module in (mine, twin):
                for i, p in enumerate(module.parameters()):
                    p.requires_grad_((i + step) % 3 != 0)
                module.zero_grad()
                mean_square(module, x).backward()
            check_gradients(mine, gradients(twin))

    on_ranks(2, program)


def test_methods_that_are_called_from_outside():
    class Generates(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(5, 5)

        def forward(self, x):
            return self.linear(x)

        def generate(self, x, times=2):
            for _ in range(times):
                x = torch.tanh(functional.linear(x, self.linear.weight))
            return x

    start, x = filled(Generates()), values(4, 5)
    twin = copy.deepcopy(start)
    expected = twin.generate(x, times=3)
    expected.square().mean().backward()

    def program(mesh):
        mine = dt.fully_shard(copy.deepcopy(start), mesh)
        dt.register_fsdp_forward_method(mine, "generate")
        found = mine.generate(rows_of(mine, x), times=3)
        same(found.detach(), rows_of(mine, expected.detach()), "generated")
        found.square().mean().backward()
        check_gradients(mine, gradients(twin))
        with pytest.raises(da.errors.ArgumentError, match="no method"):
            dt.register_fsdp_forward_method(mine, "absent")

    on_ranks(2, program)
