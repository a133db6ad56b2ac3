"""Shards of classes on simulated ranks, and the loss of whole ones by torch's own function."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

import distarray as da
from distarray.testing import simulate
from distarray.torch.loss._cross_entropy import vocab_parallel_cross_entropy
from tests.tolerance import assert_close

cross_entropy = torch.nn.functional.cross_entropy


def values(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def full_shape(rows: Sequence[int], classes: int, axis: int) -> list[int]:
    """Return the shape of the logits of rows."""
    shape = list(rows)
    shape.insert(axis, classes)
    return shape


def shard_of(full: torch.Tensor, axis: int, offsets: Sequence[int], rank: int) -> torch.Tensor:
    """Return the classes of one rank, of which the offsets of all ranks are given."""
    return full.narrow(axis, offsets[rank], offsets[rank + 1] - offsets[rank])


def target_of(rows: Sequence[int], classes: int, kind: str, axis: int) -> torch.Tensor:
    """Return class numbers, of which one is ignored, or probabilities, as `kind` says."""
    if kind == "classes":
        target = torch.arange(math.prod(rows)).reshape(rows) * 5 % classes
        if target.numel() > 2:
            target.view(-1)[1] = -100
        return target
    return values(*full_shape(rows, classes, axis), seed=2).softmax(axis) * 1.5


def compare_losses(
    ranks: int,
    offsets: Sequence[int],
    rows: Sequence[int],
    kind: str,
    *,
    tolerance: float | None = None,
    dtype: torch.dtype = torch.float64,
    part: bool = False,
    **options: Any,
) -> list[da.CommLog]:
    """Compare loss and gradient with torch's, in float64; return the logs of the ranks."""
    classes, axis = offsets[-1], min(len(rows), 1)
    full = (3 * values(*full_shape(rows, classes, axis))).to(dtype)
    target = target_of(rows, classes, kind, axis)
    if kind != "classes":
        target = target.to(dtype)
    if "weight" in options:
        options["weight"] = (options["weight"] + 0.1).to(dtype)
    twin = full.double().clone().requires_grad_()
    exact = {key: x.double() if key == "weight" else x for key, x in options.items()}
    expected = cross_entropy(twin, target.double() if kind != "classes" else target, **exact)
    slopes = torch.linspace(0.5, 2, expected.numel(), dtype=torch.float64).reshape(expected.shape)
    (expected * slopes).sum().backward()

    def program() -> tuple[da.CommLog, torch.Tensor]:
        mesh = da.init_device_mesh((ranks,))
        mine = shard_of(full, axis, offsets, mesh.rank).clone().requires_grad_()
        given = shard_of(target, axis, offsets, mesh.rank) if part else target
        with da.CommLog() as log:
            loss = vocab_parallel_cross_entropy(mine, given, mesh, **options)
            forward = log.count()
            (loss * slopes.to(dtype)).sum().backward()
        assert log.count() == log.count("all_reduce") == forward == (2 if ranks > 1 else 0)
        assert loss.dtype is mine.grad.dtype is dtype
        assert_close(loss.detach().double(), expected.detach(), tolerance=tolerance, what="loss")
        shard = shard_of(twin.grad, axis, offsets, mesh.rank)
        terms = [twin.grad, expected]
        assert_close(mine.grad.double(), shard, terms, tolerance=tolerance, what="gradient")
        return log, loss.detach()

    answers = simulate(ranks, program)
    for _, loss in answers:
        torch.testing.assert_close(loss, answers[0][1], rtol=0, atol=0, equal_nan=True)
    return [log for log, _ in answers]
