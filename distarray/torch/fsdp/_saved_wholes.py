"""What autograd saves of gathered parameters: where they are, not the memory.

So that the wholes can go after the forward pass and come again for the backward pass. Whoever else
holds one keeps its memory alive, and never finds it gone.
"""

from __future__ import annotations

import weakref
from typing import NamedTuple, Protocol

import torch

from distarray.errors import ModifiedError
from distarray.torch import _compat
from distarray.torch._saved_tensors import Geometry
from distarray.torch.fsdp._bundle import Bundle
from distarray.torch.fsdp._parameter import ShardedParameter


class Source(Protocol):
    """What can gather a bundle again."""

    def ensure(self) -> None:
        """Gather the wholes unless they are there."""


_gathered: dict[int, tuple[weakref.ref[Source], weakref.ref[Bundle]]] = {}
"""The memory of all wholes that are there, of this process."""


def remember(source: Source, bundle: Bundle) -> None:
    """Take note of wholes that are there."""
    _gathered[_memory_of(bundle)] = weakref.ref(source), weakref.ref(bundle)


def forget(bundle: Bundle) -> None:
    """Forget wholes that are about to go."""
    _gathered.pop(_memory_of(bundle), None)


def _found(tensor: torch.Tensor) -> tuple[Source, Bundle] | None:
    """Return which wholes a tensor is a view of; None for other tensors."""
    key = _compat.memory_key(tensor)
    references = _gathered.get(key)
    if references is None:
        return None
    source, bundle = references[0](), references[1]()
    if source is None or bundle is None:  # the module is gone, and the memory somebody else's
        del _gathered[key]
        return None
    return source, bundle


def _memory_of(bundle: Bundle) -> int:
    assert bundle.full is not None  # it is there
    return _compat.memory_key(bundle.full)


class _Saved(NamedTuple):
    """A view of a whole."""

    source: Source
    bundle: Bundle
    dtype: torch.dtype
    geometry: Geometry
    member: ShardedParameter
    version: tuple[int, int]

    def restored(self) -> torch.Tensor:
        self.source.ensure()
        if self.member.version != self.version or self.bundle.full is None:
            raise ModifiedError(
                f"parameter {self.member.path!r}, which the backward pass needs, has changed since "
                "the forward pass: call backward before optimizer.step()"
            )
        return self.bundle.view(self.dtype, self.geometry)


def view_of_whole(tensor: torch.Tensor) -> _Saved | None:
    """Return where a view of a whole is; None for other tensors."""
    if tensor.layout is not torch.strided:
        return None
    found = _found(tensor)
    if found is None:
        return None
    source, bundle = found
    geometry = Geometry.of(tensor)
    return _Saved(source, bundle, tensor.dtype, geometry, *bundle.made_of(geometry.offset))
