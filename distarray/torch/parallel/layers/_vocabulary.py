"""Embeddings cut by their vocabulary: every rank looks up the words that it has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from distarray.comm import DeviceMesh
from distarray.errors import IndexingError
from distarray.layout import Replicate, Shard
from distarray.torch._opaque import untraced
from distarray.torch._transforms import refuse_transforms
from distarray.torch.parallel._forward_wrapper import around
from distarray.torch.parallel.layers._features import everywhere, summed


def cut_vocabulary(style: Any, module: nn.Embedding, mesh: DeviceMesh) -> None:
    """Cut an embedding's weight by rows and hook it.

    The words of other ranks are left out of the lookup, so that padding, renormalisation and
    gradients scaled by frequency see those that are looked up alone; the vectors of all ranks are
    then added to zeros.
    """
    given = Replicate() if style.input_layouts is None else style.input_layouts
    padding = module.padding_idx
    layout = style.distribute(module, "weight", mesh, [Shard(0)])
    start, stop = layout.local_box()[0]  # type: ignore[index]
    module.padding_idx = local_padding(padding, start, stop)  # type: ignore[assignment]

    @untraced
    def look_up(
        _: nn.Module, forward: Callable[..., torch.Tensor], input: torch.Tensor, **kwargs: Any
    ) -> torch.Tensor:
        words = everywhere(input, mesh, given)
        refuse_transforms(
            "an embedding that is cut by its vocabulary; pass all words at once, or call a copy of "
            "the module that is not parallelized"
        )
        check_words(words, layout.shape[0])
        here = (words >= start) & (words < stop)
        vectors = forward(words[here] - start, **kwargs)
        full = vectors.new_zeros((*words.shape, vectors.shape[-1]))
        full[here] = vectors
        return summed(full, mesh, style.output_layouts)

    around(module, look_up)


def local_padding(padding: int | None, start: int, stop: int) -> int | None:
    """Return the place of the word for padding among a rank's words; None if it is elsewhere."""
    return padding - start if padding is not None and start <= padding < stop else None


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
