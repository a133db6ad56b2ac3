"""cross_entropy by its own name works on shards of classes, however they were reshaped."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import LayoutError, MismatchError  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from distarray.torch._layouts import place  # noqa: E402
from distarray.torch.loss._loss_parallel import loss_parallel  # noqa: E402
from tests.tolerance import assert_close  # noqa: E402
from tests.torch.loss.word_head import BATCH, LENGTH, WIDTH, WORDS, setting  # noqa: E402

F = torch.nn.functional


def _check(ranks, loss_of, *, inside=True, collectives=2):
    """Compare ``loss_of(logits, target)`` of a parallel head with that of one process."""
    model, x, target = setting()
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
        assert_close(loss.detach(), expected.detach())
        start, stop = dt.layout_of(mine.weight).local_box()[0]
        torch.testing.assert_close(mine.weight.grad, twin.weight.grad[start:stop])
        torch.testing.assert_close(mine.bias.grad, twin.bias.grad[start:stop])

    simulate(ranks, program)


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
def test_what_a_model_has_reshaped_before_is_known(reshape):
    model, x, target = setting()
    expected = F.cross_entropy(reshape(model(x)), target.flatten())

    class Reshaped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.head = copy.deepcopy(model)

        def forward(self, x):
            return reshape(self.head(x))

    def program():
        mesh = da.init_device_mesh((3,))
        mine = dt.parallelize_module(Reshaped(), mesh, {"head": dt.ColwiseParallel()})
        for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
            with mode():
                logits = mine(x)
                with loss_parallel():
                    loss = F.cross_entropy(logits, target.flatten())
            torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)

    simulate(3, program)


def test_scaled_before_is_not_known_and_says_so():
    model, x, target = setting()
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

    simulate(2, program)


def test_what_was_lost_inside_is_told_so():
    model, x, _ = setting()

    def program():
        mesh = da.init_device_mesh((2,))
        mine = dt.parallelize_module(copy.deepcopy(model), mesh, dt.ColwiseParallel())
        with loss_parallel():
            y = mine(x)
            unknown = torch.cat([y, torch.ones(y.shape)])[0]
            with pytest.raises(LayoutError, match="since they were computed from a t"):
                F.cross_entropy(unknown, torch.zeros(LENGTH).long())

    simulate(2, program)


def test_after_an_error_torch_is_as_before():
    model, x, target = setting()

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

    simulate(2, program)


def test_other_cuts_are_refused():
    model, x, target = setting()

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

    simulate(4, program)


def test_fused_parts_are_refused():
    def program():
        mesh = da.init_device_mesh((2,))
        mine = torch.nn.Linear(WIDTH, WORDS)
        dt.parallelize_module(mine, mesh, dt.ColwiseParallel(parts=(4, 3)))
        y = mine(torch.ones(2, WIDTH))
        with loss_parallel(mesh), pytest.raises(LayoutError, match="parts"):
            F.cross_entropy(y, torch.tensor([0, 1]))

    simulate(2, program)


def test_targets_that_differ_between_ranks_are_an_error_on_all():
    model, x, target = setting()

    def program():
        mesh = da.init_device_mesh((2,))
        mine = dt.parallelize_module(copy.deepcopy(model), mesh, dt.ColwiseParallel())
        with loss_parallel(), pytest.raises(MismatchError, match="target and weights"):
            F.cross_entropy(mine(x).mT, target if mesh.rank else target.flip(0))

    simulate(2, program)
