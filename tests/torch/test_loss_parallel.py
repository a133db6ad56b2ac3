"""cross_entropy by its own name works on shares of classes, however they were reshaped."""

from __future__ import annotations

import contextlib
import copy

import pytest

torch = pytest.importorskip("torch")

from torch.utils.checkpoint import checkpoint  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import LayoutError, MismatchError  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from distarray.torch._carried import known  # noqa: E402
from distarray.torch._layouts import place  # noqa: E402
from distarray.torch._loss_parallel import loss_parallel  # noqa: E402

F = torch.nn.functional
BATCH, LENGTH, WIDTH, WORDS = 2, 3, 4, 7


def _values(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(5))


def _setting():
    model = torch.nn.Linear(WIDTH, WORDS).double()
    with torch.no_grad():
        model.weight.copy_(_values(WORDS, WIDTH))
        model.bias.copy_(_values(WORDS))
    target = torch.arange(BATCH * LENGTH).reshape(BATCH, LENGTH) % WORDS
    return model, _values(BATCH, LENGTH, WIDTH), target


def _check(ranks, loss_of, *, inside=True, collectives=2):
    """Compare ``loss_of(logits, target)`` of a parallel head with that of one process."""
    model, x, target = _setting()
    twin = copy.deepcopy(model)
    expected = loss_of(twin(x), target)
    expected.sum().backward()

    def program():
        mesh = da.init_device_mesh((ranks,))
        mine = copy.deepcopy(model)
        dt.parallelize_module(mine, mesh, dt.ColwiseParallel())
        logits = mine(x)
        with loss_parallel(), da.CommLog() as log:
            loss = loss_of(logits, target)
            loss.sum().backward()
        assert log.count() == log.count("all_reduce") == collectives
        torch.testing.assert_close(loss.detach(), expected.detach(), rtol=1e-12, atol=1e-12)
        start, stop = dt.layout_of(mine.weight).local_box()[0]
        torch.testing.assert_close(mine.weight.grad, twin.weight.grad[start:stop])
        torch.testing.assert_close(mine.bias.grad, twin.bias.grad[start:stop])

    simulate(ranks, program, timeout=60)


RESHAPED = {
    "flatten": lambda y, t: F.cross_entropy(y.flatten(0, 1), t.flatten()),
    "torch.flatten": lambda y, t: F.cross_entropy(torch.flatten(y, 0, 1), torch.flatten(t)),
    "view": lambda y, t: F.cross_entropy(y.view(-1, y.size(-1)), t.view(-1)),
    "reshape": lambda y, t: F.cross_entropy(y.reshape(BATCH * LENGTH, y.shape[2]), t.reshape(-1)),
    "transpose": lambda y, t: F.cross_entropy(y.transpose(1, 2), t),
    "permute": lambda y, t: F.cross_entropy(y.permute(0, 2, 1), t, reduction="none"),
    "movedim": lambda y, t: F.cross_entropy(torch.movedim(y, -1, 1), t, label_smoothing=0.1),
    "mT": lambda y, t: F.cross_entropy(y.mT.contiguous(), t, reduction="sum"),
    "module": lambda y, t: torch.nn.CrossEntropyLoss(label_smoothing=0.2)(
        y.flatten(0, 1), t.view(-1)
    ),
    "shifted": lambda y, t: F.cross_entropy(y[:, :-1].flatten(0, 1), t[:, 1:].flatten()),
    "ellipsis": lambda y, t: F.cross_entropy(
        y[..., :-1, :].contiguous().view(-1, y.size(-1)), t[..., 1:].reshape(-1)
    ),
    "chosen": lambda y, t: F.cross_entropy(y[t > 1], t[t > 1]),
    "last": lambda y, t: F.cross_entropy(y[torch.arange(BATCH), [2, 0]], t[:, 0]),
    "last of a class": lambda y, t: F.cross_entropy(y.mT[:, :, [1, 2]], t[:, :2]),
    "apart": lambda y, t: F.cross_entropy(y.mT[[0, 1], :, [2, 0]], t[:, 0]),
    "one": lambda y, t: F.cross_entropy(y[0, 1], t[0, 1]),
    "row": lambda y, t: F.cross_entropy(y[1], t[1]),
    "none": lambda y, t: F.cross_entropy(y[0, :, None].squeeze(1), t[0]),
    "unsqueeze": lambda y, t: F.cross_entropy(y.mT.unsqueeze(2), t.unsqueeze(1)),
    "scaled": lambda y, t: F.cross_entropy((2 * y / 3.0).flatten(0, 1), t.flatten()),
    "capped": lambda y, t: F.cross_entropy(5 * torch.tanh(y.mT / 5), t),
    "converted": lambda y, t: F.cross_entropy(
        y.to(torch.float64).double().clone().flatten(0, 1), t.flatten()
    ),
    "masked": lambda y, t: F.cross_entropy(
        y.masked_fill(t.unsqueeze(-1) == 2, 0.5).flatten(0, 1), t.flatten()
    ),
    "legacy": lambda y, t: F.cross_entropy(y.flatten(0, 1), t.flatten(), reduce=False),
}


@pytest.mark.filterwarnings("ignore:size_average and reduce")
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("how", RESHAPED)
def test_layout_is_carried_along(ranks, how):
    _check(ranks, RESHAPED[how])


def test_a_loss_in_pieces():
    def in_pieces(y, t):
        pieces = zip(y.flatten(0, 1).split(4), t.flatten().split(4), strict=True)
        return torch.stack([F.cross_entropy(a, b, reduction="sum") for a, b in pieces]).sum()

    _check(3, in_pieces, collectives=4)
    _check(
        3, lambda y, t: sum(F.cross_entropy(a, b) for a, b in zip(y, t, strict=True)), collectives=4
    )
    _check(
        2,
        lambda y, t: sum(
            F.cross_entropy(a, b) for a, b in zip(y.unbind(1), t.unbind(1), strict=True)
        ),
        collectives=6,
    )


@pytest.mark.parametrize(
    "reshape",
    [
        lambda y: y.flatten(0, 1),
        lambda y: y.view(-1, y.size(-1)).double().clone(),
        lambda y: y.transpose(1, 2).contiguous().transpose(1, 2).reshape(-1, y.size(-1)),
        lambda y: y.permute(-1, 0, 1).flatten(1).t(),
        lambda y: y.unsqueeze(-2).squeeze(-2).flatten(0, 1),
        lambda y: y.unsqueeze(0).squeeze(0).flatten(0, 1).float().double(),
    ],
)
def test_what_was_reshaped_before_is_known_from_its_graph(reshape):
    model, x, target = _setting()
    expected = F.cross_entropy(reshape(model(x)), target.flatten())

    def program():
        mesh = da.init_device_mesh((3,))
        mine = dt.parallelize_module(copy.deepcopy(model), mesh, dt.ColwiseParallel())
        logits = reshape(mine(x))  # what the module returned is gone
        with loss_parallel():
            loss = F.cross_entropy(logits, target.flatten())
        torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)
        with torch.no_grad(), loss_parallel():
            logits = reshape(mine(x))
            loss = F.cross_entropy(logits, target.flatten())
        torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)

    simulate(3, program, timeout=60)


def test_scaled_before_is_not_known_and_says_so():
    model, x, target = _setting()
    expected = F.cross_entropy(2 * model(x).flatten(0, 1), target.flatten())

    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        mine = dt.parallelize_module(copy.deepcopy(model), mesh, dt.ColwiseParallel())
        logits = 2 * mine(x).flatten(0, 1)
        with loss_parallel(), pytest.raises(LayoutError, match=r"loss_parallel\(mesh\)"):
            F.cross_entropy(logits, target.flatten())
        with loss_parallel(mesh):
            torch.testing.assert_close(F.cross_entropy(logits, target.flatten()), expected)
        with loss_parallel(mesh), loss_parallel(), pytest.raises(LayoutError):
            F.cross_entropy(logits, target.flatten())
        with loss_parallel(), loss_parallel(mesh):
            torch.testing.assert_close(F.cross_entropy(logits, target.flatten()), expected)

    simulate(2, program, timeout=60)


def test_what_was_lost_inside_is_told_so():
    model, x, _ = _setting()

    def program():
        mesh = da.init_device_mesh((2,))
        mine = dt.parallelize_module(copy.deepcopy(model), mesh, dt.ColwiseParallel())
        with loss_parallel(), pytest.raises(LayoutError, match="since they were computed from a t"):
            F.cross_entropy(mine(x).tile(2, 1, 1)[0], torch.zeros(LENGTH, dtype=torch.long))

    simulate(2, program, timeout=60)


def test_after_an_error_torch_is_as_before():
    model, x, target = _setting()

    def program():
        mesh = da.init_device_mesh((2,))
        mine = dt.parallelize_module(copy.deepcopy(model), mesh, dt.ColwiseParallel())
        with pytest.raises(ZeroDivisionError), loss_parallel():
            raise ZeroDivisionError
        full = dt.full_tensor(mine(x)).flatten(0, 1)
        outside = F.cross_entropy(full, target.flatten())
        with loss_parallel():  # replicated logits have torch's own loss
            with da.CommLog() as log:
                inside = F.cross_entropy(dt.full_tensor(mine(x)).flatten(0, 1), target.flatten())
            assert log.count("all_reduce") == 0
        assert torch.equal(inside, outside)

    simulate(2, program, timeout=60)


def test_other_cuts_are_refused():
    model, x, target = _setting()

    def program():
        mesh = da.init_device_mesh((2, 2), ("dp", "tp"))
        tp = mesh["tp"]
        mine = dt.parallelize_module(copy.deepcopy(model), tp, dt.ColwiseParallel())
        y = mine(x)
        with loss_parallel(tp):
            F.cross_entropy(y.mT, target)
        with loss_parallel(mesh["dp"]), pytest.raises(LayoutError, match="leave the mesh out"):
            F.cross_entropy(y.mT, target)
        with loss_parallel():
            with pytest.raises(LayoutError, match="Transpose"):
                F.cross_entropy(y, target)
            with pytest.raises(LayoutError, match=r"log_softmax inside.*dt\.full_tensor"):
                F.log_softmax(y, -1)
            with pytest.raises(LayoutError, match="argmax inside"):
                y.argmax(-1)
            assert y.argmax(0).shape == (LENGTH, y.shape[-1])
            with pytest.raises(LayoutError, match="topk inside"):
                torch.topk(y, 2, dim=-1)
        partial = y.detach().clone()
        place(partial, da.Layout(tp, [da.Partial()], y.shape))
        with loss_parallel(), pytest.raises(LayoutError, match="not summed yet"):
            F.cross_entropy(partial, target)
        both = torch.zeros(3, 4)
        place(both, da.Layout(mesh, [da.Shard(0), da.Shard(1)], (6, 8)))
        with loss_parallel(), pytest.raises(LayoutError, match="rows of this rank"):
            F.cross_entropy(both, torch.zeros(3, dtype=torch.int64))
        rows = torch.zeros(3, 4)
        place(rows, da.Layout(mesh, [da.Replicate(), da.Shard(1)], (3, 8)))
        with loss_parallel():
            loss = F.cross_entropy(rows, torch.zeros(3, dtype=torch.int64))
        torch.testing.assert_close(loss, torch.tensor(8.0).log())

    simulate(4, program, timeout=60)


def test_fused_parts_are_refused():
    def program():
        mesh = da.init_device_mesh((2,))
        mine = torch.nn.Linear(WIDTH, WORDS)
        dt.parallelize_module(mine, mesh, dt.ColwiseParallel(parts=(4, 3)))
        y = mine(torch.ones(2, WIDTH))
        with loss_parallel(mesh), pytest.raises(LayoutError, match="parts"):
            F.cross_entropy(y, torch.tensor([0, 1]))

    simulate(2, program, timeout=60)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_loss_that_opens_the_context_itself(reentrant):
    def loss_of(y, t):
        def run(y):
            with loss_parallel():
                return F.cross_entropy(y.flatten(0, 1), t.flatten())

        return checkpoint(run, y, use_reentrant=reentrant)

    model, x, target = _setting()
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

    simulate(2, program, timeout=60)


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

    model, x, target = _setting()
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

    simulate(ranks, program, timeout=60)


def test_a_loss_in_a_function_of_autograds_is_refused():
    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx, y, opens):
            with loss_parallel() if opens else contextlib.nullcontext():
                place(y, known(y))
                return F.cross_entropy(y, torch.tensor([0, 1]))

        @staticmethod
        def backward(ctx, gradient):
            return None, None

    def program():
        mesh = da.init_device_mesh((2,))
        y = torch.ones(2, 2, requires_grad=True)
        place(y, da.Layout(mesh, [da.Shard(1)], (2, 4)))
        with loss_parallel():
            with pytest.raises(LayoutError, match="in the forward of OwnBackward"):
                Own.apply(y, False)
            Own.apply(y, True)

    simulate(2, program, timeout=60)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch hides it unless it is an error
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_model_may_be_called_inside(backend):
    model, x, target = _setting()
    expected = F.cross_entropy(model(x).flatten(0, 1), target.flatten())

    def program():
        mesh = da.init_device_mesh((1,))
        mine = dt.parallelize_module(copy.deepcopy(model), mesh, dt.ColwiseParallel())
        compiled = torch.compile(mine, backend=backend)
        with loss_parallel(mesh):
            loss = F.cross_entropy(compiled(x).flatten(0, 1), target.flatten())
        torch.testing.assert_close(loss, expected)

    simulate(1, program, timeout=60)


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

    simulate(1, program, timeout=60)


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


def test_targets_that_differ_between_ranks_are_an_error_on_all():
    model, x, target = _setting()

    def program():
        mesh = da.init_device_mesh((2,))
        mine = dt.parallelize_module(copy.deepcopy(model), mesh, dt.ColwiseParallel())
        with loss_parallel(), pytest.raises(MismatchError, match="target and weights"):
            F.cross_entropy(mine(x).mT, target if mesh.rank else target.flip(0))

    simulate(2, program, timeout=60)
