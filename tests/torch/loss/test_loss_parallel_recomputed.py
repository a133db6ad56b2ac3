"""loss_parallel around what is recomputed, in functions of autograd's, and compiled."""

from __future__ import annotations

import contextlib
import copy

import pytest

torch = pytest.importorskip("torch")

from torch.utils.checkpoint import checkpoint  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import LayoutError  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from distarray.torch._layouts import place  # noqa: E402
from distarray.torch.following import known_layout  # noqa: E402
from distarray.torch.loss._loss_parallel import loss_parallel  # noqa: E402
from tests.torch.loss.word_head import WIDTH, setting  # noqa: E402

F = torch.nn.functional


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_loss_that_opens_the_context_itself(reentrant):
    def loss_of(y, t):
        def run(y):
            with loss_parallel():
                return F.cross_entropy(y.flatten(0, 1), t.flatten())

        return checkpoint(run, y, use_reentrant=reentrant)

    model, x, target = setting()
    twin = copy.deepcopy(model)
    F.cross_entropy(twin(x).flatten(0, 1), target.flatten()).backward()

    def program():
        mesh = da.init_device_mesh((2,))
        mine = dt.parallelize_module(copy.deepcopy(model), mesh, dt.ColwiseParallel())

        def whole(x):
            with loss_parallel():
                return F.cross_entropy(mine(x).flatten(0, 1), target.flatten())

        z = x.clone().requires_grad_()
        checkpoint(whole, z, use_reentrant=reentrant).backward()
        start, stop = dt.layout_of(mine.weight).local_box()[0]
        torch.testing.assert_close(mine.weight.grad, twin.weight.grad[start:stop])

    simulate(2, program)


CHECKPOINTED = {
    # what is computed again, and from what of a parallel head's input
    "head and loss": lambda head, x, t, again: again(
        lambda x: F.cross_entropy(head(x).flatten(0, 1), t.flatten()), x
    ),
    "loss": lambda head, x, t, again: again(
        lambda y: F.cross_entropy(y.flatten(0, 1), t.flatten()), head(x)
    ),
    "two losses": lambda head, x, t, again: again(
        lambda x, t: F.cross_entropy(head(x).mT, t) + F.cross_entropy(head(x)[:, 0], t[:, 0]), x, t
    ),
    "within": lambda head, x, t, again: again(
        lambda x: 2 * again(lambda x: F.cross_entropy(head(x).mT, t), x), x
    ),
}


@pytest.mark.parametrize("backward_inside", [True, False])
@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("what", CHECKPOINTED)
@pytest.mark.parametrize("ranks", [2, 3])
def test_what_ran_inside_runs_again_inside(ranks, what, reentrant, backward_inside):
    def again(function, *args):
        return checkpoint(function, *args, use_reentrant=reentrant)

    def plain(function, *args):
        return function(*args)

    model, x, target = setting()
    twin, input = copy.deepcopy(model), x.clone().requires_grad_()
    expected = CHECKPOINTED[what](twin, input, target, plain)
    expected.backward()

    def program():
        mesh = da.init_device_mesh((ranks,))
        mine = dt.parallelize_module(copy.deepcopy(model), mesh, dt.ColwiseParallel())
        z = x.clone().requires_grad_()
        with loss_parallel():
            loss = CHECKPOINTED[what](mine, z, target, again)
            if backward_inside:
                loss.backward()
        if not backward_inside:
            torch.autograd.backward(loss)
        torch.testing.assert_close(loss.detach(), expected.detach())
        torch.testing.assert_close(z.grad, input.grad)
        start, stop = dt.layout_of(mine.weight).local_box()[0]
        torch.testing.assert_close(mine.weight.grad, twin.weight.grad[start:stop])

    simulate(ranks, program)


def test_a_loss_in_a_function_of_autograds_is_refused():
    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx, y, opens):
            with loss_parallel() if opens else contextlib.nullcontext():
                place(y, known_layout(y))
                return F.cross_entropy(y, torch.tensor([0, 1]))

        @staticmethod
        def backward(ctx, gradient):
            return None, None

    def program():
        mesh = da.init_device_mesh((2,))
        y = torch.ones(2, 2, requires_grad=True)
        place(y, da.Layout(mesh, [da.Shard(1)], (2, 4)))
        with loss_parallel():
            with pytest.raises(LayoutError, match=r"in the forward of a torch\.autograd\.Function"):
                Own.apply(y, False)
            Own.apply(y, True)

    simulate(2, program)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch hides it unless it is an error
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_model_may_be_called_inside(backend):
    model, x, target = setting()
    expected = F.cross_entropy(model(x).flatten(0, 1), target.flatten())

    def program():
        mesh = da.init_device_mesh((1,))
        mine = dt.parallelize_module(copy.deepcopy(model), mesh, dt.ColwiseParallel())
        compiled = torch.compile(mine, backend=backend)
        with loss_parallel(mesh):
            loss = F.cross_entropy(compiled(x).flatten(0, 1), target.flatten())
        torch.testing.assert_close(loss, expected)

    simulate(1, program)


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("inside", [True, False])
def test_many_compiled_blocks_are_traced_once(inside):
    counters = pytest.importorskip("torch._dynamo.utils").counters
    torch.manual_seed(0)
    kinds = (torch.nn.Linear, torch.nn.Bilinear, torch.nn.Embedding)
    model = torch.nn.Sequential(*(Block(kinds[i % 3]) for i in range(12))).double()
    x, target = torch.randint(0, WIDTH, (5, 3)), torch.tensor([0, 1, 2, 3, 0])
    expected = F.cross_entropy(model(x)[:, -1], target)
    expected.backward()

    def program():
        mesh = da.init_device_mesh((1,))
        mine = copy.deepcopy(model)
        dt.parallelize_module(mine, mesh, {"*.up": dt.ColwiseParallel()})
        dt.parallelize_module(mine, mesh, {"*.down": dt.RowwiseParallel()})
        torch._dynamo.reset()
        counters.clear()
        for block in mine:
            block.compile(backend="eager")
        with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
            for _ in range(2):
                mine.zero_grad()
                with loss_parallel(mesh) if inside else contextlib.nullcontext():
                    loss = F.cross_entropy(mine(x)[:, -1], target)
                    loss.backward()
        torch.testing.assert_close(loss, expected)
        for p, q in zip(mine.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad)
        assert sum(counters["graph_break"].values()) <= 2 * len(model)  # around each module

    simulate(1, program)


class Block(torch.nn.Module):
    """Two modules around a step that is compiled."""

    def __init__(self, kind):
        super().__init__()
        sizes = (WIDTH,) * (3 if kind is torch.nn.Bilinear else 2)
        self.up, self.down = kind(*sizes), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        if isinstance(self.up, torch.nn.Embedding):
            x = self.up(x if not x.is_floating_point() else x[..., 0].abs().long() % WIDTH)
        else:
            x = torch.nn.functional.one_hot(x, WIDTH).double() if not x.is_floating_point() else x
            x = self.up(x, x) if isinstance(self.up, torch.nn.Bilinear) else self.up(x)
        return self.down(x.tanh() + 1)
