"""Embeddings cut by the width of their vectors: every rank looks up its share of each."""

from __future__ import annotations

from math import inf
from typing import Any

import torch
from torch import nn

from distarray.comm import DeviceMesh
from distarray.errors import ArgumentError, LayoutError
from distarray.layout import Layout, Partial, Replicate, Shard
from distarray.torch import _moves
from distarray.torch._modules import state_of
from distarray.torch._opaque import untraced
from distarray.torch.parallel._partition_rules import map_arguments
from distarray.torch.parallel.layers._features import Features, everywhere, shared

_R = Replicate()


def cut_vectors(style: Any, module: nn.Embedding | nn.EmbeddingBag, mesh: DeviceMesh) -> None:
    """Cut an embedding's weight by columns, and hook it."""
    largest = module.max_norm
    if largest is not None and module.norm_type <= 0:
        raise ArgumentError(
            f"norm_type={module.norm_type} with max_norm={largest}: vectors that are cut "
            "are renormalised by norms of positive order only"
        )
    given = style.input_layouts
    style.distribute(module, "weight", mesh, [Shard(1)], parts=style.parts, unit=style.unit, axis=1)
    features = Features.of(state_of(module).placed["weight"], mesh)
    module.max_norm = None  # the lookup would go by the norms of shares

    def gather(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        def words(x: torch.Tensor) -> torch.Tensor:
            if isinstance(module, nn.EmbeddingBag) and x.ndim == 1 and given is not _R:
                raise LayoutError(
                    f"bags of a flat input that arrives as {given} may be torn apart; pass the "
                    "words and offsets of all bags on every rank (input_layouts=da.Replicate())"
                )
            x = everywhere(x, mesh, given)
            if largest is not None:
                _renormalise(module, mesh, x, largest)
            return x

        functions: dict[str, Any] = {"input": words}
        if isinstance(module, nn.EmbeddingBag):
            functions["offsets"] = lambda x: x
            functions["per_sample_weights"] = lambda x: shared(x, mesh, given)
        return map_arguments(args, kwargs, functions)

    style.on_input(module, gather)
    style.on_output(module, lambda _, y: features.leave(y, style.output_layouts, -1))


@untraced
@torch.no_grad()
def _renormalise(module: Any, mesh: DeviceMesh, words: torch.Tensor, largest: float) -> None:
    """Scale the vectors that are looked up down to the largest norm; each rank has a part of it."""
    weight, order = module.weight, module.norm_type
    rows = torch.unique(words)
    found = weight[rows]
    sizes = found.abs().to(torch.promote_types(weight.dtype, torch.float32))
    if order == inf:
        part = torch.cat([sizes, sizes.new_zeros(len(rows), 1)], 1).amax(1)
    else:
        part = sizes.pow(order).sum(1)
    layout = Layout(mesh, [Partial("max" if order == inf else "sum")], part.shape)
    ways = _moves.legs_between(layout, layout.replace(placements=[_R]), requires_grad=False)
    norms = _moves.moved(part, *ways)
    if order != inf:
        norms = norms.pow(1 / order)
    long = norms > largest
    scale = largest / (norms[long] + 1e-7)  # what torch adds, lest it divide by zero
    weight[rows[long]] = (found[long] * scale.unsqueeze(1)).to(weight.dtype)
