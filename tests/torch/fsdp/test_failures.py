"""Modules go on where forward or backward fails or is refused, and leave nothing behind."""

from __future__ import annotations

import contextlib
import copy
import gc
import pickle
import weakref

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn.utils import prune  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from tests.torch.fsdp.failing_layers import X, Y, beside, layers, sharded  # noqa: E402
from tests.torch.fsdp.training import (  # noqa: E402
    check_gradients,
    filled,
    gradients,
    mean_square,
    on_ranks,
    same,
)


def test_step_between_forward_and_backward(after):
    def program(mesh):
        mine = sharded(layers(), mesh, reshard_after_forward=after)
        whole = layers()
        for m in (mine, whole):
            mean_square(m, X).backward()
        loss = mean_square(mine, X)
        torch.optim.SGD(mine.parameters(), 0.1).step()
        with pytest.raises(da.errors.ModifiedError, match=r"before optimizer\.step"):
            loss.backward()
        mine.zero_grad()
        fresh = layers()
        with torch.no_grad():
            for (_, p), q in zip(mine.named_parameters(), fresh.parameters(), strict=True):
                q.copy_(dt.full_tensor(p))
        mean_square(fresh, X).backward()
        mean_square(mine, X).backward()
        check_gradients(mine, gradients(fresh))

    on_ranks(2, program)


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("zero", ["module", "optimizer"])
def test_going_on_after_an_exception(after, where, which, zero):
    def program(m):
        optimizer = torch.optim.AdamW(m.parameters(), 0.05)
        for step in range(4):
            optimizer.zero_grad()
            m[which].fails_in = where if step in (1, 2) else ""
            with contextlib.suppress(ZeroDivisionError):
                mean_square(m, X).backward()
            if m[which].fails_in:
                (m if zero == "module" else optimizer).zero_grad()
                assert all(p.grad is None for p in m.parameters())
                with torch.no_grad():
                    for group in optimizer.param_groups:
                        for p in group["params"]:
                            p.mul_(0.9)
                continue
            optimizer.step()

    beside(program, 2, reshard_after_forward=after)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_failed_pass_and_no_sync(which):
    def program(m):
        m[which].fails_in = "backward"
        with contextlib.suppress(ZeroDivisionError):
            mean_square(m, X).backward()
        m[which].fails_in = ""
        m.zero_grad()
        mean_square(m, Y).backward()

    beside(program, 2)


@pytest.mark.parametrize("kind", ["register_hook", "register_post_accumulate_grad_hook"])
@pytest.mark.parametrize(
    ("which", "alone"), [(0, False), (1, False), (2, False), (3, False), (0, True), (2, True)]
)
def test_going_on_after_an_exception_in_a_hook_of_a_parameter(kind, which, alone):
    """What other groups had on its way is not added to the gradients of the next pass."""

    def fail(_):
        raise ZeroDivisionError("in a hook")

    def program(mesh):
        start = layers()
        mine = sharded(start, mesh)
        if not alone or mesh.coordinate[0] == 0:
            handle = getattr(list(mine[which].parameters())[-1], kind)(fail)
            with pytest.raises(ZeroDivisionError):
                (100 * mean_square(mine, X)).backward()
            handle.remove()
        else:
            (100 * mean_square(mine, X)).backward()
        for p in mine.parameters():
            p.grad = None
        for x in (X, Y):
            mean_square(mine, x).backward()
            mean_square(start, x).backward()
        check_gradients(mine, gradients(start))

    on_ranks(2, program)


@pytest.mark.parametrize("kind", ["register_forward_hook", "register_forward_pre_hook"])
def test_state_dicts_in_hooks_have_shards_and_forward_goes_on(kind):
    def program(mesh):
        start = layers()
        mine = dt.fully_shard(copy.deepcopy(start), mesh)
        found = []
        getattr(mine[1], kind)(lambda *_: found.append(mine.state_dict()))
        mean_square(mine, X).backward()
        mean_square(start, X).backward()
        check_gradients(mine, gradients(start))
        for name, parameter in mine.named_parameters():
            assert torch.equal(found[0][name], parameter)

    on_ranks(2, program)


def test_parameters_frozen_after_forward_have_no_gradient(after):
    def program(m):
        loss = mean_square(m, X)
        m[1].requires_grad_(False)
        loss.backward()

    beside(program, 2, reshard_after_forward=after)


def test_parameters_that_are_gone_are_refused():
    def program(mesh):
        mine = sharded(layers(), mesh)
        mine[1].linear.weight = None
        with pytest.raises(da.errors.ArgumentError, match=r"no such parameter.*before fully_shard"):
            mine(X)

    on_ranks(2, program)


def share(m):
    m.append(nn.Linear(2, 5, bias=False).double().requires_grad_(False))
    m[-1].bias = m[0].linear.bias


@pytest.mark.parametrize(
    "change",
    [
        lambda m: nn.utils.parametrizations.weight_norm(m[1].linear),
        lambda m: prune.l1_unstructured(m[1].linear, "weight", 5),
        lambda m: m.append(nn.Linear(2, 2).double()),
        lambda m: setattr(m[1], "linear", nn.Linear(5, 5).double()),
        lambda m: setattr(m[1], "linear", copy.deepcopy(m[1].linear)),
        share,
    ],
    ids=["weight_norm", "prune", "append", "replace", "copy", "share"],
)
def test_parameters_put_in_later_are_refused(change, after):
    """Nothing would average their gradients, or gather them."""

    def program(mesh):
        mine = sharded(layers(), mesh, reshard_after_forward=after)
        mean_square(mine, X).backward()
        change(mine)
        with da.CommLog() as log, pytest.raises(da.errors.ArgumentError, match="put in after"):
            mine(X)
        assert not log.count()

    on_ranks(2, program)


@pytest.mark.parametrize("apply", [dt.fully_shard, dt.replicate])
def test_modules_put_in_later_that_average_by_themselves(apply):
    more = filled(nn.Linear(2, 3))

    def program(mesh):
        start = layers()
        mine = sharded(start, mesh)
        mean_square(mine, X).backward()
        mine.zero_grad()
        mine.append(apply(copy.deepcopy(more), mesh))
        whole = copy.deepcopy(start).append(copy.deepcopy(more))
        for _ in range(2):
            mean_square(mine, X).backward()
            mean_square(whole, X).backward()
        found = {
            n: p.grad if dt.layout_of(p) is None else dt.full_tensor(p.grad)
            for n, p in mine.named_parameters()
        }
        for name, wanted in gradients(whole).items():
            same(found[name], wanted, name)

    on_ranks(2, program)


def test_shards_of_other_parameters_are_no_replacement():
    def program(mesh):
        mine = sharded(layers(), mesh)
        mine[3].bias = mine[2].linear.bias
        with pytest.raises(da.errors.ArgumentError, match="has been replaced"):
            mine(X)

    on_ranks(2, program)


def test_second_derivatives_are_refused():
    def program(mesh):
        mine = sharded(layers(), mesh)
        with pytest.raises(da.errors.ArgumentError, match="create_graph"):
            mean_square(mine, X).backward(create_graph=True)
        mine.zero_grad()
        mean_square(mine, X).backward()

    on_ranks(2, program)


def test_copies_are_refused():
    def program(mesh):
        mine = sharded(layers(), mesh)
        with pytest.raises(da.errors.ArgumentTypeError, match="copied"):
            copy.deepcopy(mine)
        with pytest.raises((da.errors.ArgumentTypeError, pickle.PicklingError)):
            pickle.dumps(mine)
        mean_square(mine, X).backward()

    on_ranks(2, program)


@pytest.mark.parametrize("is_whole", [False, True])
def test_functional_call_is_refused(is_whole):
    def program(mesh):
        start = layers()
        mine = sharded(start, mesh)
        if is_whole:
            mine.unshard()
        for module in (start, mine):  # whole parameters, and shards
            given = {n: p.detach() * 2 for n, p in module.named_parameters()}
            with pytest.raises(da.errors.ArgumentError, match=r"functional_call.*not sharded"):
                torch.func.functional_call(mine, given, (X,))
        mean_square(mine, X).backward()
        mean_square(start, X).backward()
        check_gradients(mine, gradients(start))

    on_ranks(2, program)


def test_transforms_are_refused(after):
    def program(mesh):
        start = layers()
        mine = sharded(start, mesh, reshard_after_forward=after)
        for way in (
            lambda: torch.func.grad(lambda x: mine(x).sum())(X),
            lambda: torch.func.vmap(mine)(X),
            lambda: torch.func.vjp(mine, X),
        ):
            with pytest.raises(da.errors.ArgumentError, match=r"torch\.func .* not sharded"):
                way()
        mean_square(mine, X).backward()
        mean_square(start, X).backward()
        check_gradients(mine, gradients(start))

    on_ranks(2, program)


def test_transforms_inside_of_forward_are_refused():
    class Inside(nn.Linear):
        def forward(self, x):
            return torch.func.grad(lambda y: super(Inside, self).forward(y).sum())(x)

    def program(mesh):
        mine = dt.fully_shard(Inside(2, 2).double(), mesh)
        with pytest.raises(da.errors.ArgumentError, match="inside of the forward pass"):
            mine(X)

    on_ranks(2, program)


def test_nothing_is_left_behind(after):
    def program(mesh):
        mine = sharded(layers(), mesh, reshard_after_forward=after)
        mean_square(mine, X).backward()
        return weakref.ref(mine)

    def leave_whole(mesh):
        mine = sharded(layers(), mesh, reshard_after_forward=after)
        mean_square(mine, X)
        mine.unshard()
        return weakref.ref(mine)

    refs = on_ranks(2, program) + on_ranks(2, leave_whole)
    gc.collect()
    assert [ref() for ref in refs] == [None] * 4
