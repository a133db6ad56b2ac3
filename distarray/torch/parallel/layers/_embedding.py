"""Embeddings and bags, cut by the width of their vectors or by their vocabulary.

By width every rank looks up its shard of each vector. By vocabulary it looks up the words that it
has, or adds up those of each bag, and the ranks' results are added.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import torch
from torch import nn

from distarray.comm import DeviceMesh
from distarray.errors import ArgumentError, IndexingError, LayoutError
from distarray.layout import Layout, Partial, Placement, Replicate, Shard
from distarray.torch._moves import move
from distarray.torch._opaque import disable_compile, refuse_transforms
from distarray.torch._routes import routes_between
from distarray.torch.parallel._forward_wrapper import extend
from distarray.torch.parallel._partition_rules import hook_arguments
from distarray.torch.parallel.layers._features import (
    cut_parameters,
    gather_input,
    sum_output,
)

_R = Replicate()


def cut_vectors(style: Any, module: nn.Embedding | nn.EmbeddingBag, mesh: DeviceMesh) -> None:
    """Cut an embedding's weight by columns, and hook it."""
    largest = module.max_norm
    if largest is not None and module.norm_type <= 0:
        raise ArgumentError(
            f"norm_type={module.norm_type} with max_norm={largest}: vectors that are cut "
            "are renormalised by norms of positive order only"
        )
    given = style.input_layouts or _R
    features = cut_parameters(style, module, mesh, {"weight": 1})
    module.max_norm = None  # the lookup would go by the norms of shards

    def gather_words(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
        if isinstance(module, nn.EmbeddingBag):
            _check_not_torn(x, given)
        x = gather_input(x, mesh, given, gradients=None)
        if largest is not None:
            _renormalise(module, mesh, x, largest)
        return x

    functions: dict[str, Any] = {"input": gather_words}
    if isinstance(module, nn.EmbeddingBag):
        functions["offsets"] = lambda _, x: x
        functions["per_sample_weights"] = lambda _, x: gather_input(x, mesh, given)
    hook_arguments(module, functions)
    style.on_output(module, lambda _, y: features.leave(y, style.output_layouts, -1))


@disable_compile
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
    ways = routes_between(layout, layout.replace(placements=[_R]), requires_grad=False)
    norms = move(part, *ways)
    if order != inf:
        norms = norms.pow(1 / order)
    long = norms > largest
    scale = largest / (norms[long] + 1e-7)  # what torch adds, lest it divide by zero
    weight[rows[long]] = (found[long] * scale.unsqueeze(1)).to(weight.dtype)


# --- vocabulary -----------------------------------------------------------------------------------


def cut_vocabulary(style: Any, module: nn.Embedding, mesh: DeviceMesh) -> None:
    """Cut an embedding's weight by rows and hook it.

    The words of other ranks are left out of the lookup, so that padding, renormalisation and
    gradients scaled by frequency see those that are looked up alone; the vectors of all ranks are
    then added to zeros.
    """
    given = style.input_layouts or _R
    size, start, stop = _cut_words(style, module, mesh)

    @disable_compile
    def look_up(
        _: nn.Module, forward: Callable[..., torch.Tensor], input: torch.Tensor, **kwargs: Any
    ) -> torch.Tensor:
        words = gather_input(input, mesh, given, gradients=None)
        refuse_transforms(
            "an embedding that is cut by its vocabulary; pass all words at once, or call a copy of "
            "the module that is not parallelized"
        )
        check_words(words, size)
        here = (words >= start) & (words < stop)
        vectors = forward(words[here] - start, **kwargs)
        full = vectors.new_zeros((*words.shape, vectors.shape[-1]))
        full[here] = vectors
        return sum_output(full, mesh, style.output_layouts or _R)

    extend(module, arounds=look_up)


def local_padding(padding: int | None, start: int, stop: int) -> int | None:
    """Return the place of the word for padding among a rank's words; None if it is elsewhere."""
    return padding - start if padding is not None and start <= padding < stop else None


def _cut_words(style: Any, module: Any, mesh: DeviceMesh) -> tuple[int, int, int]:
    """Cut a weight by words; return how many there are, and which this rank has, from and to."""
    layout = style.distribute(module, "weight", mesh, [Shard(0)])
    start, stop = layout.local_box()[0]
    module.padding_idx = local_padding(module.padding_idx, start, stop)
    return layout.shape[0], start, stop


def check_words(words: torch.Tensor, size: int) -> None:
    """Raise if a word is not in the vocabulary, on all ranks alike, since all have all words."""
    if not words.numel():
        return
    least, most = map(int, torch.aminmax(words))
    if least < 0 or most >= size:
        raise IndexingError(
            f"words {least} to {most} of the input are not all in a vocabulary of {size} "
            f"(0 to {size - 1})"
        )


# --- bags -----------------------------------------------------------------------------------------


def cut_bags(style: Any, module: nn.EmbeddingBag, mesh: DeviceMesh) -> None:
    """Cut the weight of bags by rows and hook them.

    The words of other ranks are taken out of the bags; the sums of all ranks are added, divided by
    the numbers of words where means are asked for.
    """
    if module.mode == "max":
        raise ArgumentError(
            "bags of mode='max' cannot be cut by vocabulary, because maxima of several ranks have "
            "no gradient; use ColwiseParallel"
        )
    if module.scale_grad_by_freq:
        raise ArgumentError(
            "bags with scale_grad_by_freq=True cannot be cut by vocabulary: torch's kernel takes "
            "frequencies of other words than those it scales, so that its gradients depend on all "
            "of them; use ColwiseParallel, or Embedding and a sum"
        )
    given = style.input_layouts or _R
    averaged = module.mode == "mean"
    padding = module.padding_idx
    size, start, stop = _cut_words(style, module, mesh)
    module.mode = "sum"

    @disable_compile
    def add_up(
        module: nn.EmbeddingBag,
        forward: Callable[..., torch.Tensor],
        input: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        _check_not_torn(input, given)
        if averaged and per_sample_weights is not None:
            raise ArgumentError(
                "per_sample_weights are for mode='sum' alone; multiply and divide what it gives"
            )
        words = gather_input(input, mesh, given, gradients=None)
        check_words(words, size)
        count, bags = _bags(words, offsets, module.include_last_offset)
        words = words.reshape(-1)
        here = (words >= start) & (words < stop)
        own = torch.bincount(bags[here], minlength=count)
        ends = own.cumsum(0).to(words.dtype)
        begins = torch.cat([ends.new_zeros(1), ends])[: count + module.include_last_offset]
        weights = None
        if per_sample_weights is not None:
            weights = gather_input(per_sample_weights, mesh, given).reshape(-1)[here]
        y = forward(words[here] - start, begins, weights)
        if averaged:
            counted = bags if padding is None else bags[words != padding]
            y = y / torch.bincount(counted, minlength=count).clamp(min=1).to(y.dtype).unsqueeze(1)
        return sum_output(y, mesh, style.output_layouts or _R)

    extend(module, arounds=add_up)


def _check_not_torn(words: torch.Tensor, given: Placement) -> None:
    """Raise where bags would be cut at other places than between them."""
    if words.ndim == 1 and given is not _R:
        raise LayoutError(
            f"bags of a flat input that arrives as {given} may be torn apart; pass the words and "
            "offsets of all bags on every rank (input_layouts=da.Replicate())"
        )


def _bags(
    words: torch.Tensor, offsets: torch.Tensor | None, last: bool
) -> tuple[int, torch.Tensor]:
    """Return how many bags there are, and in which one each word is."""
    if (words.ndim == 2) is not (offsets is None):
        raise ArgumentError(
            f"words of shape {tuple(words.shape)} {'without' if offsets is None else 'with'} "
            "offsets: a flat input needs them, to say where each bag begins, and rows are bags"
        )
    if offsets is None:
        count, length = words.shape
        return count, torch.arange(count, device=words.device).repeat_interleave(length)
    if len(offsets) and int(offsets[0]) != 0:
        raise ArgumentError(f"offsets begin at {int(offsets[0])}; the first bag begins at 0")
    count = len(offsets) - last
    places = torch.arange(len(words), device=words.device, dtype=offsets.dtype)
    return count, torch.searchsorted(offsets[:count], places, right=True) - 1
