"""What autograd saves of gathered parameters: where they are, not the memory.

So that the wholes can go after the forward pass and come again for the backward pass. Whoever else
holds one keeps its memory alive, and never finds it gone.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch

from distarray.errors import ModifiedError
from distarray.torch._saved import Geometry, Kept
from distarray.torch._untraced import untraced
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
    key = tensor.untyped_storage()._cdata
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
    return int(bundle.full.untyped_storage()._cdata)


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


class _Handed(NamedTuple):
    """What other hooks, which were there before, have made of a tensor."""

    packed: Any
    unpack: Callable[[Any], torch.Tensor]

    def restored(self) -> torch.Tensor:
        return self.unpack(self.packed)


class _Hooks:
    """The hooks of one call, which hand on to those outside of it what is no parameter."""

    def __init__(self, outer: tuple[Any, Any] | None) -> None:
        self._outer = outer

    @untraced
    def pack(self, tensor: torch.Tensor) -> Any:
        """Return what is saved in the place of a tensor."""
        if tensor.layout is torch.strided and not torch._C._functorch.is_functorch_wrapped_tensor(
            tensor
        ):
            found = _found(tensor)
            if found is not None:
                source, bundle = found
                geometry = Geometry.of(tensor)
                made = bundle.made_of(geometry.offset)
                return _Saved(source, bundle, tensor.dtype, geometry, *made)
        if self._outer is not None:
            return _Handed(self._outer[0](tensor), self._outer[1])
        return Kept(tensor, tensor._version)

    @untraced
    def unpack(self, saved: Any) -> torch.Tensor:
        """Return a saved tensor."""
        found: torch.Tensor = saved.restored()
        return found


def enter_saving() -> contextlib.AbstractContextManager[Any] | None:
    """Let torch hand over what it saves; return what ends it, None where torch does so already."""
    outer: Any = torch._C._autograd._top_saved_tensors_default_hooks(True)
    if outer is not None and isinstance(getattr(outer[0], "__self__", None), _Hooks):
        return None
    hooks = _Hooks(outer)
    found: Any = torch.autograd.graph.saved_tensors_hooks(hooks.pack, hooks.unpack)
    found.__enter__()
    return found  # type: ignore[no-any-return]
