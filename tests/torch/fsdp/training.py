"""Sharded modules on simulated ranks beside a single process that trains the same module."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import nn

import distarray as da
import distarray.torch as dt
from distarray.testing import simulate
from tests.tolerance import assert_close, magnitude
from tests.torch import programs
from tests.torch.programs import gradients, on_ranks, values  # noqa: F401 - for tests beside

Loss = Callable[[nn.Module, torch.Tensor], torch.Tensor]


def filled(module: nn.Module, seed: int = 1) -> nn.Module:
    """Give a module values, in float64."""
    return programs.filled(module.double(), seed)


def same(
    given: torch.Tensor,
    wanted: torch.Tensor,
    what: str,
    tolerance: float = 1e-9,
    terms: Iterable[Any] = (),
) -> None:
    """Compare tensors, relative to the largest number in what is wanted, or in its terms."""
    assert_close(given, wanted, terms, tolerance=tolerance, what=what)


def check_gradients(module: nn.Module, wanted: dict[str, Any], tolerance: float = 1e-9) -> None:
    """Compare gathered gradients with full ones; None must be None (collective)."""
    scale = torch.tensor(magnitude(wanted.values()))
    for name, parameter in module.named_parameters():
        if wanted[name] is None:
            assert parameter.grad is None, name
        else:
            assert parameter.grad is not None, name
            assert parameter.grad.shape == parameter.shape, name
            full = dt.full_tensor(parameter.grad)
            same(full, wanted[name], f"gradient of {name}", tolerance, [scale])


def check_parameters(module: nn.Module, wanted: nn.Module, tolerance: float = 1e-9) -> None:
    """Compare gathered parameters with those of a whole module (collective)."""
    theirs = dict(wanted.named_parameters())
    assert set(theirs) == set(dict(module.named_parameters()))
    scale = torch.tensor(magnitude(theirs.values()))
    for name, parameter in module.named_parameters():
        assert type(parameter) is nn.Parameter, name
        with torch.no_grad():
            same(dt.full_tensor(parameter), theirs[name].detach(), name, tolerance, [scale])


def rows_of(module: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """Return this rank's rows of a batch for a sharded module, and all of them for a whole one.

    Means over equal shards are, on average over the ranks, the means over the whole batch: so
    every rank has data of its own, and a single process says what must come out.
    """
    sharded = (part for part in module.modules() if isinstance(part, dt.FSDPModule))
    groups = [group for part in sharded for group in part._groups(False)]
    if not groups:
        return batch
    mesh = groups[0].mesh
    assert len(batch) % mesh.size == 0, f"{len(batch)} rows for {mesh.size} ranks"
    position = 0
    for size, coordinate in zip(mesh.shape, mesh.coordinate, strict=True):
        position = position * size + coordinate
    return batch.chunk(mesh.size)[position]


def mean_square(module: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """Return the mean of the squares of what a module returns for its rows of a batch."""
    return square_mean(module, rows_of(module, batch))


def square_mean(module: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """Return the mean of the squares of what a module returns for a batch."""
    return module(batch).square().mean()


@dataclass
class Single:
    """A single process' training: the module before, and after with all losses and gradients."""

    start: nn.Module
    end: nn.Module
    batches: Sequence[torch.Tensor]
    loss: Loss
    rate: float
    losses: list[float] = field(default_factory=list)
    gradients: list[dict[str, Any]] = field(default_factory=list)


class Momentum:
    """Gradient descent with momentum; torch's optimizers import its compiler, in a second."""

    def __init__(self, module: nn.Module, rate: float) -> None:
        self._parameters, self._rate = list(module.parameters()), rate
        self._velocities = [torch.zeros_like(parameter) for parameter in self._parameters]

    def zero_grad(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        for parameter, velocity in zip(self._parameters, self._velocities, strict=True):
            velocity.mul_(0.9).add_(parameter.grad)
            parameter.sub_(velocity, alpha=self._rate)


def trained(
    module: nn.Module,
    batches: Sequence[torch.Tensor],
    loss: Loss = square_mean,
    rate: float = 0.02,
    optimizer_of: Callable[[nn.Module, float], Any] | None = None,
) -> Single:
    """Train a copy of a module, by AdamW if nothing else is told, one step for each batch."""
    twin = copy.deepcopy(module)
    found = Single(module, twin, batches, loss, rate)
    optimizer = (optimizer_of or _optimizer)(twin, rate)
    for batch in batches:
        optimizer.zero_grad()
        value = loss(twin, batch)
        value.backward()
        found.losses.append(value.item())
        found.gradients.append(gradients(twin))
        optimizer.step()
    return found


def compare(
    single: Single,
    shard: Callable[[nn.Module, da.DeviceMesh], nn.Module],
    shape: Sequence[int],
    names: Sequence[str] = ("dp",),
    *,
    data: Sequence[str] = (),
    tolerance: float = 1e-9,
    before_step: Callable[[nn.Module, int], None] | None = None,
) -> list[nn.Module]:
    """Train sharded copies on simulated ranks; compare losses, gradients and parameters.

    Parameters
    ----------
    shard
        Function of a copy and the mesh; returns the sharded copy.
    data
        Mesh axes along which ranks have different rows of each batch; along the others, the same.
    before_step
        Called with the module and the number of the step, before its forward pass.
    """

    def program() -> tuple[list[float], nn.Module]:
        mesh = da.init_device_mesh(tuple(shape), tuple(names))
        module = shard(copy.deepcopy(single.start), mesh)
        optimizer = _optimizer(module, single.rate)
        parts, part = 1, 0
        for name in data:
            axis = mesh[name]
            parts, part = parts * axis.size, part * axis.size + axis.coordinate[0]
        losses = []
        for step, batch in enumerate(single.batches):
            if before_step is not None:
                before_step(module, step)
            optimizer.zero_grad()
            value = single.loss(module, batch.chunk(parts)[part])
            value.backward()
            losses.append(value.item())
            check_gradients(module, single.gradients[step], tolerance)
            optimizer.step()
        check_parameters(module, single.end, tolerance)
        return losses, module

    results = simulate(prod(shape), program)
    means = torch.tensor([losses for losses, _ in results], dtype=torch.float64).mean(0)
    same(means, torch.tensor(single.losses, dtype=torch.float64), "losses", tolerance)
    return [module for _, module in results]


def _optimizer(module: nn.Module, rate: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], rate)
