"""Operands of torch functions: what is known of them, and layouts whose axes have moved."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from distarray.layout import Layout, Shard
from distarray.torch._layouts import (
    Derived,
    Lost,
    Placed,
    TensorMap,
    derived_over,
    is_sharded,
    known_of,
    own_placed,
)
from distarray.torch.following._axes import Axes

of_weights: TensorMap[bool] = TensorMap()
"""Tensors that were computed from parameters, such as conversions and masked weights."""


class OwnWeights(NamedTuple):
    """Weights of a module under way with a style, which says what comes of them."""

    module: torch.nn.Module
    within: bool  # those of the modules within are its own, too
    found: dict[int, weakref.ref[torch.Tensor]]
    """Those that were there when last asked for, by identity: `fully_shard` replaces parameters."""

    def has(self, x: torch.Tensor) -> bool:
        """Tell whether a parameter is one of them."""
        known = self.found.get(id(x))
        if known is None or known() is not x:
            own = self.module.parameters(self.within)
            self.found.update((id(one), weakref.ref(one)) for one in own)
            known = self.found.get(id(x))
        return known is not None and known() is x


own_weights: ContextVar[tuple[OwnWeights, ...]] = ContextVar(
    "weights of modules under way, the innermost module first", default=()
)

hidden: ContextVar[tuple[tuple[dict[str, Any], tuple[str, ...]], ...]] = ContextVar(
    "parameters of modules under way, and names of which forward sees None there", default=()
)
"""Biases that styles add afterwards: checkpoints within forward hide them when they run again."""


class Operand(NamedTuple):
    """A tensor that a function is called with, and what is known of it."""

    x: torch.Tensor
    placed: Placed | None
    lost: Lost | None
    derived: Derived | None = None
    over_others: tuple[Derived, ...] = ()  # what it comes of, over other meshes

    @classmethod
    def of(cls, x: torch.Tensor) -> Operand:
        """Return a tensor with what is known of it now."""
        known, more = known_of(x), derived_over.get(x) or ()
        if isinstance(known, Placed):
            return cls(x, known, None, None, more)
        if isinstance(known, Derived):
            return cls(x, None, None, known, more)
        return cls(x, None, known, None, more)

    @property
    def is_cut(self) -> bool:
        """Whether it is known to be this rank's shard."""
        return self.placed is not None and is_sharded(self.placed.layout)

    @property
    def is_weight(self) -> bool:
        """Whether it is a cut parameter, or was computed item by item from such.

        One that is read outside of its module's call is a shard as any other.
        """
        if self.placed is None or self.placed.parts or not is_sharded(self.placed.layout):
            return False
        if not issubclass(type(self.x), torch.nn.Parameter):
            return self.x in of_weights
        return any(one.has(self.x) for one in own_weights.get())


def tensors_in(args: Iterable[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return the tensors among arguments, and those in sequences among them."""
    found = []
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += [one for one in value if isinstance(one, torch.Tensor)]
    return found


def known_layout(x: Any) -> Layout | None:
    """Return the layout of a tensor itself; None where there is none, or for other objects.

    Tensors that consist of parts, each cut by itself, are not followed.
    """
    placed = own_placed(x) if isinstance(x, torch.Tensor) else None
    return None if placed is None or placed.parts else placed.layout


def relabel(layout: Layout, axes: Axes, local: Iterable[int]) -> Layout:
    """Return a layout whose cut axes have moved to others, of blocks of a ``local`` shape."""
    return _relabel(layout, tuple(axes.items()), tuple(local))


@lru_cache(maxsize=4096)
def _relabel(layout: Layout, pairs: tuple[tuple[int, int], ...], local: tuple[int, ...]) -> Layout:
    axes = dict(pairs)
    if local == layout.local_shape() and all(old == new for old, new in pairs):
        return layout
    shape = list(local)
    boundaries = {}
    for old, new in axes.items():
        shape[new] = layout.shape[old]
        boundaries[new] = layout.partition(old).offsets
    placements = [Shard(axes[p.axis]) if type(p) is Shard else p for p in layout.placements]
    return Layout(
        layout.mesh,
        placements,
        shape,
        shard_order=layout.shard_order,
        boundaries=boundaries or None,
    )
