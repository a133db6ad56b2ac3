"""Moves inside the transforms of torch.func, and an error for what these cannot follow.

The transforms (``grad``, ``vjp``, ``jvp``, ``vmap`` and what is made of them) see a function of
autograd's at each of their levels, if it keeps apart what it computes and what it remembers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, ClassVar

import torch

from distarray.errors import ArgumentError
from distarray.layout import Layout, Shard
from distarray.torch._compat import is_transforming
from distarray.torch._legs import Leg
from distarray.torch._origins import Origin

_Run = Callable[[torch.Tensor, Leg, bool, "Origin | None"], torch.Tensor]


def check_outside(instead: str) -> None:
    """Raise inside of a transform of torch.func.

    Parameters
    ----------
    instead
        What the transforms cannot follow, and what to do instead.
    """
    if is_transforming():
        raise ArgumentError(
            f"torch.func (grad, vjp, jvp, vmap, ...) cannot look into {instead}; or take "
            "gradients by backward() or torch.autograd.grad"
        )


class OutsideTransforms(torch.autograd.Function):
    """A function of autograd's that says so where a transform of torch.func meets it.

    Attributes
    ----------
    instead
        What it is, and what to do instead, for the error.
    """

    instead: ClassVar[str]

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Apply the function."""
        check_outside(cls.instead)
        return super().apply(*args)  # type: ignore[no-untyped-call]


class _Move(torch.autograd.Function):
    """Run one leg; the gradient runs the other, and the tangent the same."""

    @staticmethod
    def forward(
        tensor: torch.Tensor,
        run: _Run,
        there: Leg,
        back: Leg,  # noqa: ARG004 - for the gradient
        origin: Origin | None,
        requires_grad: bool,
    ) -> torch.Tensor:
        return run(tensor, there, requires_grad, origin)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG004
        _, ctx.run, ctx.there, ctx.back, ctx.origin, _ = inputs

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        origin = None if ctx.origin is None else ctx.origin.reversed
        return moved(gradient, ctx.run, ctx.back, ctx.there, origin, False), *(None,) * 5

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor, *_: None) -> torch.Tensor:  # type: ignore[override]
        return moved(tangent, ctx.run, ctx.there, ctx.back, ctx.origin, False)

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[Any, ...],
        tensor: torch.Tensor,
        run: _Run,
        there: Leg,
        back: Leg,
        origin: Origin | None,
        requires_grad: bool,
    ) -> Any:
        many = tensor.movedim(in_dims[0], 0)
        count = info.batch_size
        legs = _of_many(there, count), _of_many(back, count)
        return moved(many, run, *legs, origin, requires_grad), 0


def moved(
    tensor: torch.Tensor,
    run: _Run,
    there: Leg,
    back: Leg,
    origin: Origin | None,
    requires_grad: bool,
) -> torch.Tensor:
    """Return a tensor moved by one leg, as every level of the transforms sees it.

    Parameters
    ----------
    run
        Moves a plain tensor by a leg.
    """
    result: torch.Tensor = _Move.apply(tensor, run, there, back, origin, requires_grad)
    return result


@lru_cache(maxsize=1024)
def _of_many(leg: Leg, count: int) -> Leg:
    """Return the leg of so many tensors, which are one with a further axis 0."""
    src = _with_axis(leg.src, count)
    return leg._replace(src=src, dst=src if leg.dst is leg.src else _with_axis(leg.dst, count))


def _with_axis(layout: Layout, count: int) -> Layout:
    boundaries = {axis + 1: offsets for axis, offsets in (layout.boundaries or {}).items()}
    return Layout(
        layout.mesh,
        [Shard(p.axis + 1) if type(p) is Shard else p for p in layout.placements],
        (count, *layout.shape),
        shard_order=layout.shard_order,
        boundaries=boundaries or None,
    )
