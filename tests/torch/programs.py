"""Programs on simulated ranks: their data and modules, and comparisons with one process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

import distarray as da
from distarray.testing import simulate
from tests.tolerance import assert_close


def values(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Return normal values that do not depend on torch's own generator."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype)


def filled(module: nn.Module, seed: int = 1) -> nn.Module:
    """Give a module values that do not depend on torch's own generator."""
    for i, parameter in enumerate(module.parameters()):
        parameter.data.copy_(values(*parameter.shape, seed=seed + i, dtype=parameter.dtype) / 3)
    return module


def mlp() -> nn.Module:
    layers = nn.Linear(5, 9), nn.Tanh(), nn.Linear(9, 9), nn.Tanh(), nn.Linear(9, 3)
    return filled(nn.Sequential(*layers).double())


def on_ranks(
    ranks: int,
    program: Callable[[da.DeviceMesh], Any],
    shape: Sequence[int] | None = None,
    names: Sequence[str] = ("dp",),
) -> list[Any]:
    """Run a program of a mesh on simulated ranks."""
    return simulate(ranks, lambda: program(da.init_device_mesh(shape or (ranks,), names)))


def same(given: torch.Tensor, wanted: torch.Tensor, terms: Iterable[Any] = ()) -> None:
    assert_close(given, wanted, terms)


def gradients(module: nn.Module) -> dict[str, Any]:
    """Return copies of all gradients by name."""
    return {n: None if p.grad is None else p.grad.clone() for n, p in module.named_parameters()}


def check_gradients(
    module: nn.Module, wanted: dict[str, torch.Tensor | None], tolerance: float | None = None
) -> None:
    """Compare gradients with those of one process; None must be None."""
    for name, gradient in gradients(module).items():
        if wanted[name] is None:
            assert gradient is None, name
        else:
            assert_close(gradient, wanted[name], wanted.values(), tolerance=tolerance, what=name)


def shard(batch: torch.Tensor, mesh: da.DeviceMesh) -> torch.Tensor:
    """Return this rank's rows of a batch."""
    return batch.chunk(mesh.size)[mesh.coordinate[0]]
