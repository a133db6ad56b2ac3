"""Gradients of several passes add up, wherever they are kept, until they are forgotten."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from tests.torch.fsdp.stacks import X, Y, Z, of_mesh, sharded, stack  # noqa: E402
from tests.torch.fsdp.training import (  # noqa: E402
    check_gradients,
    check_parameters,
    gradients,
    mean_square,
    on_ranks,
    rows_of,
)


@pytest.mark.parametrize("shape", [(2,), (3,), (2, 2), (2, 1, 2)])
@pytest.mark.parametrize("after", [True, False])
def test_accumulation(shape, after):
    """Groups and parameters that some passes do not use."""
    uses = [{"only": (0, 1)}, {"only": (2,), "spare": True}, {"only": (1,)}]
    start = stack()
    whole = copy.deepcopy(start)
    wanted = []
    for _ in range(2):
        for x, use in zip((X, Y, Z), uses, strict=True):
            whole(x, **use).square().mean().backward()
        wanted.append(gradients(whole))
        whole.zero_grad()

    def program(mesh):
        mine = sharded(start, mesh, reshard_after_forward=after)
        for step in range(2):
            for i, (x, use) in enumerate(zip((X, Y, Z), uses, strict=True)):
                mine.set_requires_gradient_sync(i == 2)
                mine.set_reshard_after_backward(i == 2)
                with da.CommLog() as log:
                    mine(rows_of(mine, x), **use).square().mean().backward()
                if i < 2:
                    assert log.count("reduce_scatter") == 0
                    assert all(p.grad is None for p in mine.parameters())
            check_gradients(mine, wanted[step])
            mine.zero_grad()

    of_mesh(shape, program)


def test_accumulation_is_in_the_reduce_dtype():
    start = stack(torch.float32)
    policy = dt.MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    cast = copy.deepcopy(start).to(torch.bfloat16)
    total = None
    for i in range(12):
        parts = []
        for x in X.bfloat16().chunk(2):
            cast.zero_grad()
            cast(x, spare=i > 0).square().mean().backward()
            parts.append({n: p.grad for n, p in cast.named_parameters()})
        new = {n: None if g is None else g.float() / 2 for n, g in parts[0].items()}
        new = {n: None if g is None else g + parts[1][n].float() / 2 for n, g in new.items()}
        if total is None:
            total = new
        else:
            total = {n: new[n] if g is None else g + new[n] for n, g in total.items()}

    def program(mesh):
        mine = sharded(start, mesh, mp_policy=policy)
        for i in range(12):
            mine.set_requires_gradient_sync(i == 11)
            mine(rows_of(mine, X.float()), spare=i > 0).square().mean().backward()
        check_gradients(mine, total, 1e-6)

    on_ranks(2, program)


@pytest.mark.parametrize("factor", [None, 1.0, 3.0])
@pytest.mark.parametrize("last", [True, False])
def test_replicas_that_are_reduced_later(factor, last):
    uses = [{"only": (0, 1), "spare": True}, {"only": (2, 0)}, {"only": (1,)}]
    start = stack()
    whole = copy.deepcopy(start)
    for x, use in zip((X, Y, Z), uses, strict=True):
        whole(x, **use).square().mean().backward()
    scale = 1.0 if factor is None else 4 / factor
    wanted = {n: None if g is None else g * scale for n, g in gradients(whole).items()}

    def program(mesh):
        mine = sharded(start, mesh)
        mine.set_gradient_divide_factor(factor)
        for _ in range(2):
            mine.zero_grad()
            for i, (x, use) in enumerate(zip((X, Y, Z), uses, strict=True)):
                mine.set_requires_all_reduce(i == 2)
                mine.set_is_last_backward(last or i == 2)
                with da.CommLog() as log:
                    mine(rows_of(mine, x), **use).square().mean().backward()
                if i < 2:
                    assert log.count("all_reduce") == 0
                    assert all(p.grad is None for p in mine.parameters())
                    some = torch.autograd.grad(mean_square(mine, X), mine.head.bias)
                    assert some[0].shape == mine.head.bias.shape
            check_gradients(mine, wanted)

    of_mesh((2, 2), program)


@pytest.mark.parametrize("change", ["freeze", "unfreeze", "extend"])
@pytest.mark.parametrize("kept", ["whole", "among replicas"])
def test_what_is_kept_stays_when_other_parameters_are_trained(kept, change):
    start = stack()
    start.layers[0].scale.requires_grad_(change != "unfreeze")

    def between(module):
        scale = module.layers[0].scale
        if change != "extend":
            scale.requires_grad_(not scale.requires_grad)
        elif isinstance(module, dt.FSDPModule):
            module.layers[0].set_all_gather_extension(
                "linear.weight",
                lambda block: block.clone(),
                lambda parts, *_: torch.cat([part for (part,) in parts]),
            )

    def program(mesh):
        whole, mine = copy.deepcopy(start), sharded(start, mesh)
        for step, x in enumerate((X, Y, Z)):
            mine.set_requires_gradient_sync(kept != "whole" or step > 0)
            mine.set_requires_all_reduce(kept == "whole" or step > 0)
            for one in (whole, mine):
                mean_square(one, x).backward()
                if not step:
                    between(one)
            if step:
                check_gradients(mine, gradients(whole))

    of_mesh((2, 2), program)


def test_passes_that_do_not_wait():
    start = stack()
    whole = copy.deepcopy(start)
    for x in (X, Y, Z):
        mean_square(whole, x).backward()

    def program(mesh):
        mine = sharded(start, mesh)
        for i, x in enumerate((X, Y, Z)):
            mine.set_is_last_backward(i == 2)
            mean_square(mine, x).backward()
        check_gradients(mine, gradients(whole))

    on_ranks(2, program)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_add_up(set_to_none):
    start = stack()

    def program(mesh):
        mine, whole = sharded(start, mesh), copy.deepcopy(start)
        for module in (mine, whole):
            optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)
            for step in range(4):
                mean_square(module, X).backward()
                if step % 2:
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=set_to_none)
        check_parameters(mine, whole)

    on_ranks(2, program)


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("kept", ["whole", "among replicas", "on their way"])
def test_zero_grad_forgets_what_is_kept(kept, set_to_none):
    start = stack()
    whole = copy.deepcopy(start)
    mean_square(whole, Y).backward()

    def program(mesh):
        mine = sharded(start, mesh)
        for _ in range(2):
            mine.set_requires_gradient_sync(kept != "whole")
            mine.set_requires_all_reduce(kept != "among replicas")
            mine.set_is_last_backward(kept != "on their way")
            mean_square(mine, X).backward()
            mine.zero_grad(set_to_none)
            mine.set_requires_gradient_sync(True)
            mine.set_requires_all_reduce(True)
            mine.set_is_last_backward(True)
            mean_square(mine, Y).backward()
            check_gradients(mine, gradients(whole))
            mine.zero_grad()

    of_mesh((2, 2), program)


def test_an_optimizer_clears_what_it_sees():
    """Gradients that are kept are not those of shards: they stay, as they do in torch."""
    start = stack()
    whole = copy.deepcopy(start)
    for x in (X, Y):
        mean_square(whole, x).backward()

    def program(mesh):
        mine = sharded(start, mesh)
        optimizer = torch.optim.SGD(mine.parameters(), 0.1)
        mine.set_requires_gradient_sync(False)
        mean_square(mine, X).backward()
        optimizer.zero_grad()
        mine.set_requires_gradient_sync(True)
        mean_square(mine, Y).backward()
        check_gradients(mine, gradients(whole))

    on_ranks(2, program)


@pytest.mark.parametrize("ranks", [1, 2])
def test_steps_inside_of_backward(ranks):
    """An optimizer for each parameter that steps as soon as its gradient is there."""
    start = stack()

    def program(mesh):
        mine, whole = sharded(start, mesh), copy.deepcopy(start)
        for module in (mine, whole):
            each = {p: torch.optim.SGD([p], 0.1) for p in module.parameters()}

            def step(p, each=each):
                assert p.grad is not None
                each[p].step()
                each[p].zero_grad()

            for p in each:
                p.register_post_accumulate_grad_hook(step)
            for x in (X, Y):
                mean_square(module, x).backward()
        check_parameters(mine, whole)

    on_ranks(ranks, program)
