"""A module on simulated ranks beside its single-process twin."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

import distarray as da
from distarray.testing import simulate
from tests.tolerance import assert_close


def compare(
    ranks: int,
    module: nn.Module,
    inputs: tuple[torch.Tensor, ...],
    parallel: Callable[[nn.Module, da.DeviceMesh], Callable[..., torch.Tensor]],
    *,
    tolerance: float | None = None,
) -> list[Any]:
    """Run a module and its parallel copies; compare outputs and all gradients.

    Parameters
    ----------
    parallel
        Function of a copy and the mesh, on each rank: distributes the copy and returns what to
        call; that takes and returns full tensors.

    Returns
    -------
    list
        The `CommLog` of every rank.
    """
    values = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
    expected = module(*values)
    weights = torch.linspace(-1, 1, expected.numel(), dtype=expected.dtype).reshape(expected.shape)
    (expected * weights).sum().backward()
    gradients = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    terms = [*gradients.values(), *(x.grad for x in values)]
    module.zero_grad()

    def program() -> da.CommLog:
        mesh = da.init_device_mesh((ranks,), ("tp",))
        twin = copy.deepcopy(module)
        run = parallel(twin, mesh)
        mine = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
        with da.CommLog() as log:
            result = run(*mine)
            (result * weights).sum().backward()
        assert_close(result.detach(), expected.detach(), tolerance=tolerance, what="output")
        for x, y in zip(mine, values, strict=True):
            assert (x.grad is None) == (y.grad is None)
            if y.grad is not None:
                assert_close(x.grad, y.grad, terms, tolerance=tolerance, what="input")
        for name, parameter in twin.named_parameters():
            assert type(parameter) is nn.Parameter
            check_gradient(name, parameter, gradients.get(name), tolerance, terms)
        return log

    return simulate(ranks, program)


def check_gradient(
    name: str,
    parameter: nn.Parameter,
    expected: torch.Tensor | None,
    tolerance: float | None = None,
    terms: Iterable[Any] = (),
) -> None:
    """Compare a parameter's gradient with this rank's block of the full one.

    The magnitude of ``terms``, and of the full one, is what the tolerance is relative to.
    """
    from distarray.torch._layouts import placed_of
    from distarray.torch.parallel._parameters import block_of

    if expected is None:
        assert parameter.grad is None, name
        return
    placed = placed_of(parameter)
    block = expected if placed is None else block_of(expected, placed)
    assert parameter.grad is not None, name
    terms = (expected, *terms)
    assert_close(parameter.grad, block, terms, tolerance=tolerance, what=name)
