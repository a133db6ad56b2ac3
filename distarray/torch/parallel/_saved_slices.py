"""What torch saves for the backward pass inside a call: slices of what all ranks have alike.

torch hands every tensor that it saves to the innermost `Hooks`, which hand on to those outside of
them what they do not take themselves. Of those here one whose values lie inside a tensor that is
known to be replicated is saved as a view of that: the rank keeps a slice of the replicated tensor,
once for all its views, and gathers it when the first of them is needed again. So it does not matter
which view of it a rank takes, and nothing is cut that is not known to be the same on all ranks.

A tensor is known by its memory, the version of what is in it (in-place changes count it up), and
the stretch that it takes there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from distarray.comm import DeviceMesh
from distarray.comm._mismatch import Purpose
from distarray.errors import ModifiedError
from distarray.layout import Layout, Replicate, Shard
from distarray.redistribute._execute import redistribute_local
from distarray.torch._buffers import buffer_of, tensor_of
from distarray.torch._layouts import is_placed, placed_of, watched
from distarray.torch._untraced import untraced


class Geometry(NamedTuple):
    """Where the items of a tensor are in its memory."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Geometry:
        """Return that of a tensor."""
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


class Slice:
    """A rank's part of a replicated tensor, and the whole where it is needed again."""

    def __init__(self, whole: torch.Tensor, layout: Layout, purpose: Purpose) -> None:
        box = layout.local_box()
        assert box is not None  # this rank is in the mesh
        for axis, (start, stop) in enumerate(box):
            whole = whole.narrow(axis, start, stop - start)
        self.part = whole.clone(memory_format=torch.contiguous_format)
        self.uses = 0
        self._layout = layout
        self._purpose = purpose
        self._whole: torch.Tensor | None = None
        self._left = 0

    def gathered(self, geometry: Geometry) -> torch.Tensor:
        """Return the tensor, laid out as it was; kept until each of its uses has had it."""
        if self._whole is None:
            whole = self._layout.replace(placements=[Replicate()])
            local = buffer_of(self.part)
            buffer = redistribute_local(local, self._layout, whole, purpose=self._purpose)
            found = tensor_of(buffer)
            if found.stride() != geometry.stride and found.numel():
                laid = torch.empty_strided(
                    geometry.size, geometry.stride, dtype=found.dtype, device=found.device
                )
                found = laid.copy_(found)
            self._whole = found
            self._left = self.uses
        result = self._whole
        self._left -= 1
        if self._left <= 0:
            self._whole = None
        return result


@dataclass(slots=True)
class _Known:
    """A tensor that all ranks have alike."""

    memory: StorageWeakRef
    version: int
    dtype: torch.dtype
    geometry: Geometry
    dense: bool
    slice: Slice | None = None

    def covers(self, tensor: torch.Tensor, geometry: Geometry) -> bool:
        """Tell whether all items of a tensor in the same memory are items of this one."""
        if tensor.dtype is not self.dtype or tensor._version != self.version:
            return False
        if geometry == self.geometry:
            return True
        own = self.geometry
        return self.dense and own.offset <= geometry.offset and geometry.end <= own.end


class _Cut(NamedTuple):
    """A saved view of a replicated tensor."""

    slice: Slice
    source: Geometry
    geometry: Geometry

    def restored(self) -> torch.Tensor:
        whole = self.slice.gathered(self.source)
        if self.geometry == self.source:
            return whole
        start = self.geometry.offset - self.source.offset
        return whole.as_strided(self.geometry.size, self.geometry.stride, start)


class Kept(NamedTuple):
    """A saved tensor as it is; hooks take the place of torch's own check of its version."""

    tensor: torch.Tensor
    version: int

    def restored(self) -> torch.Tensor:
        if self.tensor._version != self.version:
            raise ModifiedError(
                f"a tensor of shape {tuple(self.tensor.shape)} that the backward pass needs has "
                f"been modified by an inplace operation: it is at version {self.tensor._version}, "
                f"saved was version {self.version}; change a clone of it instead"
            )
        return self.tensor


class _Handed(NamedTuple):
    """What other hooks, which were there before, have made of a tensor."""

    packed: Any
    unpack: Callable[[Any], torch.Tensor]

    def restored(self) -> torch.Tensor:
        return self.unpack(self.packed)


class Hooks(ABC):
    """Hooks for saved tensors, which hand on what they do not take to those outside of them.

    Parameters
    ----------
    outer
        What packed and unpacked before.
    """

    def __init__(self, outer: tuple[Any, Any] | None) -> None:
        self.outer = outer

    @abstractmethod
    def taken(self, tensor: torch.Tensor) -> Any:
        """Return what is saved in the place of a tensor, with a method `restored`, or None."""

    @untraced
    def pack(self, tensor: torch.Tensor) -> Any:
        """Return what is saved in the place of a tensor."""
        found = self.taken(tensor)
        if found is not None:
            return found
        if self.outer is not None:
            return _Handed(self.outer[0](tensor), self.outer[1])
        return Kept(tensor, tensor._version)

    @untraced
    def unpack(self, saved: Any) -> torch.Tensor:
        """Return a saved tensor."""
        found: torch.Tensor = saved.restored()
        return found


def enter_hooks(kind: type[Hooks]) -> AbstractContextManager[Any] | None:
    """Let torch hand over what it saves; return what ends it, None where torch does so already."""
    outer = _innermost()
    if isinstance(_owner(outer), kind):
        return None
    hooks = kind(outer)
    found: Any = torch.autograd.graph.saved_tensors_hooks(hooks.pack, hooks.unpack)
    found.__enter__()
    return found  # type: ignore[no-any-return]


def _innermost() -> Any:
    """Return the hooks that torch calls now."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


def _owner(hooks: tuple[Any, Any] | None) -> Any:
    return None if hooks is None else getattr(hooks[0], "__self__", None)


class Call:
    """One call of a module, during which what torch saves is looked at.

    Parameters
    ----------
    module
        Its parameters and buffers stay whole: they are there anyway.
    mesh, dim
        Among whose ranks replicated tensors are cut, and along which axis.
    name
        What the ranks must agree on when they gather.
    """

    def __init__(self, module: nn.Module, mesh: DeviceMesh, dim: int, name: str) -> None:
        self._module = module
        self._mesh = mesh
        self._dim = dim
        self._name = name
        self._known: dict[int, list[_Known]] = {}
        self._cuts = 0

    def note(self, tensor: torch.Tensor) -> None:
        """Take a tensor to be replicated, unless it is known to be placed otherwise."""
        if isinstance(tensor, nn.Parameter) or not _has_memory(tensor):
            return
        if is_placed(tensor) and not self._replicated(tensor):
            return
        geometry = Geometry.of(tensor)
        if not -len(geometry.size) <= self._dim < len(geometry.size) or geometry.repeats:
            return
        storage = tensor.untyped_storage()
        entries = self._known.setdefault(storage._cdata, [])
        if entries and entries[0].memory.expired():
            entries.clear()
        if any(entry.covers(tensor, geometry) for entry in entries):
            return
        dense = bool(torch.ops.aten.is_non_overlapping_and_dense(tensor.detach()))
        memory = entries[0].memory if entries else StorageWeakRef(storage)
        entries.append(_Known(memory, tensor._version, tensor.dtype, geometry, dense))

    def note_placed(self, tensor: torch.Tensor) -> bool:
        """Take note of a tensor that is known to be replicated on this mesh; tell whether it is."""
        if not self._replicated(tensor):
            return False
        self.note(tensor)
        return True

    def cut(self, tensor: torch.Tensor) -> _Cut | None:
        """Return a tensor as a view of a slice; None where it is not known to be replicated."""
        if not _has_memory(tensor):
            return None
        entries = self._known.get(tensor.untyped_storage()._cdata)
        if not entries or entries[0].memory.expired():
            return None
        geometry = Geometry.of(tensor)
        known = next((entry for entry in entries if entry.covers(tensor, geometry)), None)
        if known is None or known.memory.cdata in self._own_memory:
            return None
        if known.slice is None:
            known.slice = self._slice(tensor.detach().as_strided(*known.geometry))
        known.slice.uses += 1
        return _Cut(known.slice, known.geometry, geometry)

    @cached_property
    def _own_memory(self) -> dict[int, StorageWeakRef]:
        """The memory of parameters and buffers, whose addresses are not given away meanwhile.

        Sharded parameters come and go during a call, and activations would take their place.
        """
        tensors = (*self._module.parameters(), *self._module.buffers())
        references = (StorageWeakRef(tensor.untyped_storage()) for tensor in tensors)
        return {reference.cdata: reference for reference in references}

    def _slice(self, whole: torch.Tensor) -> Slice:
        self._cuts += 1
        axis = self._dim % whole.ndim
        purpose = Purpose.of(f"tensor {self._cuts} saved in {self._name}")
        return Slice(whole, Layout(self._mesh, [Shard(axis)], whole.shape), purpose)

    def _replicated(self, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor's layout says that it is the same on all ranks of the mesh."""
        placed = placed_of(tensor) if is_placed(tensor) else None
        if placed is None or not isinstance(placed.layout.mesh, DeviceMesh):
            return False
        axes = placed.layout.mesh.axes_of(self._mesh)
        if axes is None:
            return False
        return all(type(placed.layout.placements[axis]) is Replicate for axis in axes)


_calls: ContextVar[tuple[Call, ...]] = ContextVar("calls that reshard", default=())


@contextmanager
def resharding(call: Call) -> Iterator[None]:
    """Let torch hand over what it saves, to this call and those around it."""
    token = _calls.set((*_calls.get(), call))
    watching = watched.set(_note_placed)
    entered = enter_hooks(_Slices)
    try:
        yield
    finally:
        if entered is not None:
            entered.__exit__(None, None, None)
        watched.reset(watching)
        _calls.reset(token)


def may_decide() -> bool:
    """Tell whether this is the place to decide what is saved.

    It is not inside hooks of others for saved tensors, such as those of torch's checkpoints, nor
    where a backward pass computes something again only to use it at once.
    """
    if torch._C._current_graph_task_id() != -1:
        return False
    hooks = _innermost()
    while hooks is not None:
        owner = _owner(hooks)
        if not isinstance(owner, Hooks):
            return False
        hooks = owner.outer
    return True


class _Slices(Hooks):
    """What the calls under way cut."""

    def taken(self, tensor: torch.Tensor) -> Any:
        """Return a view of a slice, of the outermost call that knows the tensor: one for all."""
        return next((cut for call in _calls.get() if (cut := call.cut(tensor)) is not None), None)


def _note_placed(tensor: torch.Tensor) -> None:
    for call in _calls.get():
        if call.note_placed(tensor):
            return


def _has_memory(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor's memory and version can be looked at, and its values can travel."""
    return (
        not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and tensor.layout is torch.strided
        and tensor.device.type in ("cpu", "cuda")
        and tensor.numel() > 0
        and not tensor.is_inference()
        and not tensor.is_conj()
        and not tensor.is_neg()
    )
