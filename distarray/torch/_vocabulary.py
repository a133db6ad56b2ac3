"""Embeddings cut by their vocabulary: every rank looks up the words that it has."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn

from distarray.comm import DeviceMesh
from distarray.errors import IndexingError
from distarray.layout import Replicate, Shard
from distarray.torch import _moves
from distarray.torch._modules import map_inputs

_CALLS = "_distarray_words"


class _Words(NamedTuple):
    """Where in the input the words of this rank are."""

    shape: tuple[int, ...]
    here: torch.Tensor


def cut_vocabulary(style: Any, module: nn.Embedding, mesh: DeviceMesh) -> None:
    """Cut an embedding's weight by rows and hook it.

    The words of other ranks are left out of the lookup, so that padding, renormalisation and
    gradients scaled by frequency see those that are looked up alone; the vectors of all ranks are
    then added to zeros.
    """
    given = Replicate() if style.input_layouts is None else style.input_layouts
    padding = module.padding_idx
    layout = style.distribute(module, "weight", mesh, [Shard(0)])
    box = layout.local_box()
    assert box is not None  # this rank is in the mesh
    start, stop = box[0]
    if padding is not None:
        module.padding_idx = padding - start if start <= padding < stop else None  # type: ignore[assignment]

    def look_up(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        def own_words(words: torch.Tensor) -> torch.Tensor:
            ways = _moves.legs(words, mesh, [given], [Replicate()])
            words = _moves.moved(words, *ways)
            size = layout.shape[0]
            if words.numel() and not (int(words.min()) >= 0 and int(words.max()) < size):
                raise IndexingError(
                    f"word {int(words.min())} or {int(words.max())} of the input is not in a "
                    f"vocabulary of {size} (0 to {size - 1})"
                )
            here = (words >= start) & (words < stop)
            module.__dict__.setdefault(_CALLS, []).append(_Words(tuple(words.shape), here))
            return words[here] - start

        return map_inputs(args, kwargs, 1, own_words)

    def spread(module: nn.Module, vectors: torch.Tensor) -> torch.Tensor:
        shape, here = module.__dict__[_CALLS].pop()
        full = vectors.new_zeros((*shape, vectors.shape[-1]))
        full = full.masked_scatter(here.unsqueeze(-1), vectors)
        reduced: torch.Tensor = style.reduced(mesh, full)
        return reduced

    style.on_input(module, look_up)
    style.on_output(module, spread)
