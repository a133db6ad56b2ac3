"""Bags of words cut by vocabulary: every rank adds up the words of each bag that it has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from distarray.comm import DeviceMesh
from distarray.errors import ArgumentError, LayoutError
from distarray.layout import Replicate, Shard
from distarray.torch._opaque import untraced
from distarray.torch.parallel._forward_wrapper import around
from distarray.torch.parallel.layers._features import everywhere, shared, summed
from distarray.torch.parallel.layers._vocabulary import check_words, local_padding

_R = Replicate()


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
    given = _R if style.input_layouts is None else style.input_layouts
    averaged = module.mode == "mean"
    padding = module.padding_idx
    layout = style.distribute(module, "weight", mesh, [Shard(0)])
    start, stop = layout.local_box()[0]
    module.padding_idx = local_padding(padding, start, stop)
    module.mode = "sum"

    @untraced
    def add_up(
        module: nn.EmbeddingBag,
        forward: Callable[..., torch.Tensor],
        input: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if input.ndim == 1 and given is not _R:
            raise LayoutError(
                f"bags of a flat input that arrives as {given} may be torn apart; pass the "
                "words and offsets of all bags on every rank (input_layouts=da.Replicate())"
            )
        if averaged and per_sample_weights is not None:
            raise ArgumentError(
                "per_sample_weights are for mode='sum' alone; multiply and divide what it gives"
            )
        words = everywhere(input, mesh, given)
        check_words(words, layout.shape[0])
        count, bags = _bags(words, offsets, module.include_last_offset)
        words = words.reshape(-1)
        here = (words >= start) & (words < stop)
        own = torch.bincount(bags[here], minlength=count)
        ends = own.cumsum(0).to(words.dtype)
        begins = torch.cat([ends.new_zeros(1), ends])[: count + module.include_last_offset]
        weights = None
        if per_sample_weights is not None:
            weights = shared(per_sample_weights, mesh, given).reshape(-1)[here]
        y = forward(words[here] - start, begins, weights)
        if averaged:
            counted = bags if padding is None else bags[words != padding]
            y = y / torch.bincount(counted, minlength=count).clamp(min=1).to(y.dtype).unsqueeze(1)
        return summed(y, mesh, style.output_layouts)

    around(module, add_up)


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
