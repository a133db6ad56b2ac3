"""Operands of torch functions: what is known of them, and layouts whose axes have moved."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch

from distarray.layout import Layout
from distarray.torch._layouts import (
    Derived,
    Lost,
    Placed,
    TensorMap,
    cuts_of,
    derived_over,
    is_sharded,
    known_of,
    own_placed,
)

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
    elsewhere: Layout | Lost | None = None  # how other meshes cut it

    @classmethod
    def of(cls, x: torch.Tensor) -> Operand:
        """Return a tensor with what is known of it now."""
        known, more = known_of(x), (derived_over.get(x) or (), cuts_of(x))
        if isinstance(known, Placed):
            return cls(x, known, None, None, *more)
        if isinstance(known, Derived):
            return cls(x, None, None, known, *more)
        return cls(x, None, known, None, *more)

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
