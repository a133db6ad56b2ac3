"""Hooks for what torch saves for the backward pass: the one system of them in this package.

torch hands every tensor that it saves to the innermost hooks alone. `Hooks` ask their function
first, which may take a view of what comes again when it is needed; what it does not take they hand
on to the hooks outside of them, so that those of checkpoints and of offloading work as they do.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch

from distarray.errors import ModifiedError
from distarray.torch import _compat
from distarray.torch._opaque import disable_compile


class Geometry(NamedTuple):
    """Where the items of a tensor are in its memory."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Geometry:
        return cls(tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))

    @property
    def end(self) -> int:
        """One past the last item."""
        steps = zip(self.size, self.stride, strict=True)
        return self.offset + sum((length - 1) * step for length, step in steps) + 1

    @property
    def repeats(self) -> bool:
        """Whether an item is there several times, as ``expand`` makes it."""
        steps = zip(self.size, self.stride, strict=True)
        return any(length > 1 and not step for length, step in steps)


Take = Callable[[torch.Tensor], Any]
"""Returns what is saved in the place of a tensor, a function that returns this again; None where it
is left to others."""


class Kept(NamedTuple):
    """A saved tensor as it is; hooks take the place of torch's own check of its version."""

    tensor: torch.Tensor
    version: int

    def __call__(self) -> torch.Tensor:
        """Return the tensor, unless it has been changed."""
        now = _compat.version(self.tensor)
        if now != self.version:
            raise ModifiedError(
                f"a tensor of shape {tuple(self.tensor.shape)} that the backward pass needs has "
                f"been modified by an inplace operation: it is at version {now}, saved was version "
                f"{self.version}; change a clone of it instead"
            )
        return self.tensor


class Hooks(NamedTuple):
    """One pair of hooks for saved tensors, and the pair outside of it, if there is one."""

    take: Take
    outer: tuple[Any, Any] | None

    @disable_compile
    def pack(self, tensor: torch.Tensor) -> Any:
        """Return what is saved in the place of a tensor."""
        found = self.take(tensor)
        if found is not None:
            return found
        if self.outer is not None:
            return partial(self.outer[1], self.outer[0](tensor))
        return Kept(tensor, _compat.version(tensor))

    @disable_compile
    def unpack(self, saved: Callable[[], torch.Tensor]) -> torch.Tensor:
        return saved()


def saved_tensors_hooks(take: Take) -> AbstractContextManager[Any]:
    """Return what lets a function be asked first of all that is saved inside."""
    outer = _compat.innermost_saved_tensor_hooks()
    owner = _owner(outer)
    if owner is not None and owner.take is take:  # it is asked already
        return nullcontext()
    hooks = Hooks(take, outer)
    return torch.autograd.graph.saved_tensors_hooks(hooks.pack, hooks.unpack)


def all_hooks_are_ours() -> bool:
    """Tell whether no other hooks, such as those of torch's checkpoints, decide what is saved."""
    hooks = _compat.innermost_saved_tensor_hooks()
    while hooks is not None:
        owner = _owner(hooks)
        if owner is None:
            return False
        hooks = owner.outer
    return True


def _owner(hooks: tuple[Any, Any] | None) -> Hooks | None:
    owner = None if hooks is None else getattr(hooks[0], "__self__", None)
    return owner if isinstance(owner, Hooks) else None
