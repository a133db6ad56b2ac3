"""Ways to run forward and backward: several times, in part, recomputed, with hooks, compiled."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.autograd.graph import save_on_cpu  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from tests.torch.fsdp.failing_layers import Layer, X, Y, beside, layers  # noqa: E402
from tests.torch.fsdp.training import (  # noqa: E402
    check_gradients,
    check_parameters,
    filled,
    gradients,
    mean_square,
    on_ranks,
    rows_of,
    same,
    values,
)


def test_two_forwards_before_one_backward(after):
    def program(m):
        (mean_square(m, X) + 2 * mean_square(m, Y)).backward()

    beside(program, 3, reshard_after_forward=after)


def test_two_forwards_then_two_backwards(after):
    def program(m):
        first, second = mean_square(m, X), mean_square(m, Y)
        second.backward()
        first.backward()

    beside(program, 3, reshard_after_forward=after)


def test_backward_twice(after):
    def program(m):
        loss = mean_square(m, X)
        loss.backward(retain_graph=True)
        loss.backward()

    beside(program, 3, reshard_after_forward=after)


def test_a_penalty_on_slopes_of_inputs(after):
    def program(m):
        x = rows_of(m, X).clone().requires_grad_()
        y = m(x)
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (y.square().mean() + slope.square().mean()).backward()

    beside(program, 3, reshard_after_forward=after)


def test_a_part_runs_alone(after):
    def program(m):
        x, y = rows_of(m, X), rows_of(m, Y)
        hidden = m[0](x)
        with torch.no_grad():
            m[1](x)
        (m[1](hidden).mean() + m(x).mean() + m[1](y).mean()).backward()

    beside(program, 2, reshard_after_forward=after)


def test_a_module_skipped_in_the_second_forward(after):
    def program(m):
        first = mean_square(m, X)
        second = m[3](m[0](rows_of(m, Y))).mean()
        third = m[1](rows_of(m, Y)).mean()
        (first + second + third).backward()

    beside(program, 2, reshard_after_forward=after)


def test_gradients_of_some(after):
    def program(m):
        chosen = [m[0].linear.weight, m[3].bias]
        found = torch.autograd.grad(mean_square(m, X), chosen)
        for parameter, gradient in zip(chosen, found, strict=True):
            parameter.grad = gradient

    beside(program, 2, reshard_after_forward=after)


def test_gradients_of_activations(after):
    def program(m):
        x = rows_of(m, X).clone().requires_grad_()
        hidden = m[1](m[0](x))
        loss = m[3](m[2](hidden)).square().mean()
        (found,) = torch.autograd.grad(loss, hidden, retain_graph=True)
        (more,) = torch.autograd.grad(loss, x, retain_graph=True)
        loss.backward()
        return [found, more, x.grad]

    beside(program, 2, reshard_after_forward=after)


def test_backward_for_some(after):
    def program(m):
        loss = mean_square(m, X)
        loss.backward(inputs=[m[1].linear.weight], retain_graph=True)
        loss.backward(inputs=[m[1].linear.weight, m[0].linear.bias])

    beside(program, 2, reshard_after_forward=after)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("where", ["around", "inside", "pairs", "all"])
def test_checkpoint(after, reentrant, where):
    def program(m):
        x = rows_of(m, X).clone().requires_grad_()
        if where == "all":
            y = checkpoint(m, x, use_reentrant=reentrant)
        elif where == "around":
            y = x
            for layer in m:
                y = checkpoint(layer, y, use_reentrant=reentrant)
        elif where == "pairs":
            y = checkpoint(lambda y: m[1](m[0](y)), x, use_reentrant=reentrant)
            y = checkpoint(lambda y: m[3](m[2](m[1](y))), y, use_reentrant=reentrant)
        else:
            for layer in m[:3]:
                if not hasattr(layer, "plain"):
                    layer.plain = layer.forward
                    layer.forward = lambda y, f=layer.plain: checkpoint(
                        f, y, use_reentrant=reentrant
                    )
            y = m(x)
        (y.square().mean() + y.mean()).backward()
        return [x.grad]

    beside(program, 2, reshard_after_forward=after)


def test_hooks_of_tensors_and_of_accumulation(after):
    def program(m):
        seen = []
        weight = m[1].linear.weight
        weight.register_hook(lambda g: g * 3)
        m[2].linear.weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.sum()))
        for _ in range(2):
            mean_square(m, X).backward()
        assert len(seen) == 2

    beside(program, 2, reshard_after_forward=after)


def test_saved_tensors_hooks(after):
    def program(m):
        with save_on_cpu():
            loss = mean_square(m, X)
        loss.backward()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
            loss = mean_square(m, Y)
        loss.backward()

    beside(program, 2, reshard_after_forward=after)


def test_a_forward_inside_of_a_forward():
    class Consistent(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(5, 5))
            self.layer = Layer()

        def forward(self, x, deep=True):
            if deep:
                with torch.no_grad():
                    target = self(x, deep=False)
                x = x + target
            return self.layer(x @ self.weight)

    start = filled(Consistent())
    whole = copy.deepcopy(start)
    mean_square(whole, X).backward()

    def program(mesh):
        mine = copy.deepcopy(start)
        dt.fully_shard(mine.layer, mesh)
        dt.fully_shard(mine, mesh)
        mean_square(mine, X).backward()
        check_gradients(mine, gradients(whole))

    on_ranks(2, program)


def test_modules_with_hooks_of_the_users():
    def program(m):
        m[1].register_forward_pre_hook(lambda module, args: (args[0] * 2,))
        m[1].register_forward_hook(lambda module, args, out: out + module.linear.bias)
        m[1].register_full_backward_hook(lambda module, gi, go: (gi[0] * 0.5,))
        mean_square(m, X.clone().requires_grad_()).backward()

    beside(program, 2)


@pytest.mark.parametrize("given", ["same", "changed"])
def test_gradients_that_the_user_gives(given, after):
    """The user's own tensor becomes the gradient of a bias, and changes afterwards."""

    def program(m):
        x = rows_of(m, X)
        gradient = rows_of(m, values(6, 2, seed=5)) * (len(X) / len(x))
        if isinstance(m, dt.FSDPModule):
            m.set_requires_gradient_sync(False)
        for step in range(3):
            if isinstance(m, dt.FSDPModule) and step == 2:
                m.set_requires_gradient_sync(True)
            out = m(x) + 0
            out.backward(gradient)
            if given == "changed":
                gradient.mul_(2)

    beside(program, 2, reshard_after_forward=after)


def test_the_users_tensor_is_the_gradient():
    class Adds(nn.Module):
        def __init__(self):
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(6, 5))

        def forward(self, x):
            return x + self.bias

    def program(m):
        rank = da.comm.world().rank
        gradient = torch.full((6, 5), 1.0 + rank, dtype=torch.float64)
        m.set_requires_gradient_sync(False)
        m(X).backward(gradient)
        gradient.mul_(2)
        m.set_requires_gradient_sync(True)
        m(X).backward(gradient)
        same(dt.full_tensor(m.bias.grad), torch.full((6, 5), 4.5, dtype=torch.float64), "sum")

    on_ranks(2, lambda mesh: program(dt.fully_shard(filled(Adds()), mesh)))


@pytest.mark.parametrize(("backend", "what"), [("eager", "parts"), ("aot_eager", "whole")])
@pytest.mark.filterwarnings("ignore")  # of the compiler itself
def test_compiled(backend, what):
    start = layers()
    whole = copy.deepcopy(start)
    optimizer = torch.optim.SGD(whole.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        mean_square(whole, X).backward()
        optimizer.step()

    def program(mesh):
        mine = copy.deepcopy(start)
        if what == "parts":
            for child in mine:
                child.compile(backend=backend)
        for child in mine:
            dt.fully_shard(child, mesh)
        dt.fully_shard(mine, mesh)
        run = torch.compile(mine, backend=backend) if what == "whole" else mine
        optimizer = torch.optim.SGD(mine.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            run(X).square().mean().backward()
            optimizer.step()
        check_parameters(mine, whole)

    on_ranks(1, program)
    torch.compiler.reset()
