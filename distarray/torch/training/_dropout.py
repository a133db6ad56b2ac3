"""Dropout whose mask follows from a key and the global index: the same for any number of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.overrides import handle_torch_function, has_torch_function

from distarray.comm import _memory, pause_logs
from distarray.core import _replicas
from distarray.errors import ArgumentError, MismatchError
from distarray.layout import Layout
from distarray.random import fill_floats
from distarray.torch._buffers import device_of, follow, tensor_of
from distarray.torch._layouts import is_placed, layout_of, place
from distarray.torch._random import Key, draw_key
from distarray.typing import Box, Shape

_DROPPED = -1.7580993408473766
"""What alpha dropout puts in: the limit of SELU at minus infinity, -scale * alpha (Klambauer et
al., "Self-normalizing neural networks", arXiv:1706.02515)."""


def dropout(
    x: torch.Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    *,
    layout: Layout | None = None,
) -> torch.Tensor:
    """Zero items at random with a mask that does not depend on how the tensor is distributed.

    Whether an item is kept is a function of its index in the global tensor and of a key, which
    every rank draws from torch's default generator (by Philox, as in `distarray.random`). Ranks
    that were seeded alike thus drop what one process drops, in all its shards differently; and
    activation checkpointing, which restores torch's generator, drops the same again.

    Ranks whose generators differ draw different keys. Where each has other items, the mask is as
    random as with one key, but depends on the number of ranks. Items that several ranks hold would
    differ between them: seed by `manual_seed`, and draw what shall differ in `random_state`.

    Parameters
    ----------
    x
        This rank's block.
    p
        Probability of an item to be zeroed; the others are divided by 1 - p. The same on every
        rank, which ``DISTARRAY_CHECK=1`` compares.
    training
        With False ``x`` is returned as it is, and no key is drawn.
    inplace
        Change ``x`` itself.
    layout
        Of the global tensor: by default what `layout_of` knows, or what is known of ``x`` in the
        ``forward`` of a module that holds parallelized ones. Else ``x`` is all of it.

    Returns
    -------
    torch.Tensor
        With the layout of ``x``.

    Examples
    --------
    >>> mesh = da.default_mesh()
    >>> seed = dt.manual_seed(5, mesh)
    >>> x = dt.distribute_tensor(torch.ones(6), mesh, [da.Shard(0)])
    >>> dt.dropout(x)  # of several processes each has its block of these
    tensor([2., 0., 0., 0., 2., 0.])
    """
    if has_torch_function((x,)):  # modes see it as one of torch's own, such as that of layouts
        result: torch.Tensor = handle_torch_function(
            dropout, (x,), x, p, training, inplace, layout=layout
        )
        return result
    if not training or p == 0:
        return x
    if layout is None and is_placed(x):
        layout = layout_of(x)
    return drop_as(nn.Dropout, x, p, inplace, layout)


def drop(module: Any, x: torch.Tensor, layout: Layout | None) -> torch.Tensor:
    """Return what a dropout module makes of a block in training."""
    return drop_as(type(module), x, module.p, module.inplace, layout)


def drop_as(
    kind: type[nn.Module], x: torch.Tensor, p: float, inplace: bool, layout: Layout | None
) -> torch.Tensor:
    """Return what dropout modules of a class make of a block in training."""
    axes = _masked_axes(kind, x.ndim)
    key = draw_key()
    if layout is not None and any(layout.sharding_axes(axis) for axis in range(axes, x.ndim)):
        _check_alike(layout, key, p)
    elif layout is not None and _replicas.checked:
        _replicas.compare(layout.mesh, "dropout", {"p": p})
    alpha = issubclass(kind, nn.AlphaDropout | nn.FeatureAlphaDropout)
    if not 0 <= p <= 1:
        raise ArgumentError(f"p={p} is no probability; it must be between 0 and 1")
    shape: Sequence[int] = x.shape if layout is None else layout.shape
    box = tuple((0, n) for n in x.shape) if layout is None else layout.local_box()
    assert box is not None  # this rank is in the mesh
    rest = x.ndim - axes  # along which the mask is the same
    mask = keep_mask((*shape[:axes], *[1] * rest), (*box[:axes], *[(0, 1)] * rest), key, p, x)
    if not alpha or p == 1:
        scale = 0.0 if p == 1 else 1 / (1 - p)
        result = x.mul_(mask).mul_(scale) if inplace else x * mask * scale
    else:
        # An affine map of the result restores the mean and the variance: arXiv:1706.02515.
        scale = ((1 - p) * (1 + p * _DROPPED**2)) ** -0.5
        shift = (~mask).to(x.dtype).mul_(_DROPPED).sub_(p * _DROPPED).mul_(scale)
        result = x.mul_(mask).mul_(scale).add_(shift) if inplace else x * mask * scale + shift
    if layout is not None:
        place(result, layout)
    return result


def keep_mask(shape: Shape, box: Box, key: Key, p: float, like: torch.Tensor) -> torch.Tensor:
    """Return which items of a box of the global tensor are kept, on the device of ``like``."""
    follow(like)
    sizes = tuple(stop - start for start, stop in box)
    drawn = _memory.empty(sizes, np.float32, device_of(like))
    fill_floats(drawn, "uniform", key, 0, shape, box)
    return tensor_of(drawn) >= float(np.float32(p))


def _masked_axes(kind: type[nn.Module], ndim: int) -> int:
    """Return how many of the first axes the mask has; along the others it is the same."""
    if issubclass(kind, nn.Dropout | nn.AlphaDropout):
        return ndim
    unbatched = 2 if issubclass(kind, nn.Dropout1d) else 4
    plain = issubclass(kind, nn.Dropout1d | nn.Dropout3d) and ndim == unbatched
    return min(1 if plain else 2, ndim)


def _check_alike(layout: Layout, key: Key, p: float) -> None:
    """Raise where ranks drew other keys, or drop with another probability."""
    mesh: Any = layout.mesh
    comm = mesh.communicator()
    mine = np.array([*key, np.float64(p).view(np.int64)], np.int64)
    told = np.empty(mine.size * comm.size, np.int64)
    with pause_logs():
        comm.all_gather(mine, told)
    others = told.reshape(-1, mine.size)
    _replicas.refuse(mesh, "dropout", "p", [str(one) for one in others[:, 2].view(np.float64)])
    if (others != mine).any():
        raise MismatchError(
            f"channels of {layout} are zeroed as a whole, but the ranks that share them drew other "
            "random numbers; seed all alike by dt.manual_seed(seed, mesh), and leave "
            "dt.random_state regions that differ along this mesh axis"
        )
