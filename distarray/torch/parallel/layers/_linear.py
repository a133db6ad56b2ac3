"""Products of linear layers that ranks add up, made where the other ranks of the node read them.

torch would put them into memory of its own, out of which they are copied before others read them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from distarray.comm import _memory
from distarray.torch._buffers import empty, tensor_of
from distarray.torch._compat import is_transforming
from distarray.torch._opaque import disable_compile
from distarray.torch.parallel._forward_wrapper import extend

LEAST_BYTES = _memory.POOLED_BYTES
"""Bytes of a product from which it has memory that others read in place; smaller ones are sent."""


class _Linear(torch.autograd.Function):
    """``functional.linear``; the output, or else the input's gradient, is one that ranks add up."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        adds_output: bool,
    ) -> torch.Tensor:
        for_x, for_weight, *_ = ctx.needs_input_grad
        ctx.save_for_backward(x if for_weight else None, weight if for_x else None)
        ctx.save_for_forward(x, weight)
        ctx.adds_output = adds_output
        if adds_output and bias is None:
            return _multiply(x, weight.mT)
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        for_x, for_weight, for_bias, _ = ctx.needs_input_grad
        rows = gradient.flatten(0, -2)
        multiply = torch.matmul if ctx.adds_output or torch.is_grad_enabled() else _multiply
        return (
            multiply(gradient, weight) if for_x else None,
            rows.mT @ x.flatten(0, -2) if for_weight else None,
            rows.sum(0) if for_bias else None,
            None,
        )

    @staticmethod
    def jvp(ctx: Any, x: Any, weight: Any, bias: Any, _: None) -> torch.Tensor:  # type: ignore[override]
        own, own_weight = ctx.saved_tensors
        terms = [
            None if x is None else functional.linear(x, own_weight),
            None if weight is None else functional.linear(own, weight),
            bias,
        ]
        tangent: torch.Tensor = sum(term for term in terms if term is not None)  # type: ignore[assignment]
        return tangent


def _multiply(x: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """Return the product of the last axis with a matrix, where other ranks can read it."""
    rows, columns = x.flatten(0, -2), matrix.shape[1]
    out = tensor_of(empty(len(rows) * columns, x)).view(len(rows), columns)
    return torch.mm(rows, matrix, out=out).view(*x.shape[:-1], columns)


def multiply_in_reach(module: nn.Linear, *, adds_output: bool) -> None:
    """Let a linear layer make what ranks will add up where they can read it.

    That is its output, or else the gradient of its input. Layers that compute otherwise than
    torch's class, and products of mixed dtypes or on GPUs, are left to torch.
    """

    @disable_compile
    def run(module: Any, forward: Any, *args: Any, **kwargs: Any) -> Any:
        x = args[0] if args else kwargs.get("input")
        if (
            getattr(forward, "__func__", None) is nn.Linear.forward
            and len(args) + len(kwargs) == 1
            and _is_worth_it(x, module.weight, 0 if adds_output else 1)
        ):
            return _Linear.apply(x, module.weight, module.bias, adds_output)
        return forward(*args, **kwargs)

    extend(module, arounds=run)


def _is_worth_it(x: Any, weight: Any, axis: int) -> bool:
    """Tell whether this is a large plain product, as wide as the weight is along an axis."""
    return (
        type(x) is torch.Tensor
        and type(weight) in (torch.Tensor, nn.Parameter)
        and x.ndim > 1
        and x.is_cpu
        and x.dtype is weight.dtype
        and x.dtype.is_floating_point
        and 0 < x.shape[-1] == weight.shape[1]
        and x.numel() // x.shape[-1] * weight.shape[axis] * x.itemsize >= LEAST_BYTES
        and not torch.is_autocast_enabled("cpu")
        and not is_transforming()
    )
