"""Models whose inputs are resharded, their plans, and their gradients beside one process' own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

import distarray as da
import distarray.torch as dt
from distarray.torch._saved_tensors import Kept
from distarray.torch.parallel._slices import View
from tests.torch import programs
from tests.torch.programs import filled, same, values  # noqa: F401 - for tests beside


def on_ranks(
    ranks: int, program: Callable[[da.DeviceMesh], Any], names: Sequence[str] = ("tp",)
) -> list[Any]:
    """Run a program of a mesh on simulated ranks."""
    return programs.on_ranks(ranks, program, names=names)


class Mlp(nn.Module):
    def __init__(self, width: int = 6, hidden: int = 8) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.gate = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x) * self.gate(x).sigmoid())


class Block(nn.Module):
    """A transformer's block with attention over few heads."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.mlp_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = Mlp(width, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.size = width // heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (-1, self.size)).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


MLP_PLAN = {
    "up": dt.ColwiseParallel(),
    "gate": dt.ColwiseParallel(),
    "down": dt.RowwiseParallel(),
}
BLOCK_PLAN = {
    "attention.[qkv]": dt.ColwiseParallel(),
    "attention.out": dt.RowwiseParallel(),
    **{f"mlp.{name}": style for name, style in MLP_PLAN.items()},
}
Loss = Callable[[torch.Tensor], torch.Tensor]


def run(
    model: nn.Module, x: torch.Tensor, loss: Loss = lambda y: y.square().sum()
) -> dict[str, Any]:
    """Return the gradients of a loss."""
    x = x.detach().clone().requires_grad_(x.is_floating_point())
    loss(model(x)).backward()
    return {"x": x.grad, **{name: p.grad for name, p in model.named_parameters()}}


def check(
    model: nn.Module,
    x: torch.Tensor,
    wanted: dict[str, Any],
    loss: Loss = lambda y: y.square().sum(),
) -> None:
    """Compare the gradients of a loss, those of blocks too, with the whole ones that `run` gave."""
    model.zero_grad()
    x = x.detach().clone().requires_grad_(x.is_floating_point())
    loss(model(x)).backward()
    terms = list(wanted.values())  # the gradients of keys' biases are zero but for rounding
    same(x.grad, wanted["x"], terms)
    for name, parameter in model.named_parameters():
        gradient = wanted[name]
        layout = dt.layout_of(parameter)
        if layout is not None:
            gradient = gradient[tuple(slice(a, b) for a, b in layout.local_box())]
        same(parameter.grad, gradient, terms)


def held_bytes(model: nn.Module, x: torch.Tensor) -> int:
    """Return how many bytes of memory the graph of a call holds, but for parameters."""
    own = {p.untyped_storage()._cdata for p in model.parameters()}
    found: dict[int, torch.Tensor] = {}
    seen: set[Any] = set()
    stack: list[Any] = [model(x).grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        stack.extend(edge for edge, _ in node.next_functions)
        for name in dir(node):
            if name.startswith("_raw_saved_"):
                raw = getattr(node, name)
                for one in raw if isinstance(raw, tuple) else (raw,):
                    held = one.data
                    if isinstance(held, Kept):
                        held = held.tensor
                    elif isinstance(held, View):
                        held = held.source.part.tensor
                    if isinstance(held, torch.Tensor):
                        found[held.untyped_storage()._cdata] = held
    return sum(t.untyped_storage().nbytes() for key, t in found.items() if key not in own)
