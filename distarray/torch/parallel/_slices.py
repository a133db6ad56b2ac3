"""Slices of tensors that all ranks have alike, kept in their place for the backward pass.

What torch saves of such a tensor is saved as a view of it. The rank keeps a slice, once for all
views, and gathers the tensor when the first of them is needed again. Of an input that was gathered
for a module the slice is the shard that the rank had before (V. Korthikanti et al., "Reducing
Activation Recomputation in Large Transformer Models", arXiv:2205.05198, section 4.2.2).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch

from distarray.comm import Purpose
from distarray.layout import Layout, Replicate
from distarray.redistribute import redistribute_local
from distarray.torch import _compat
from distarray.torch._buffers import buffer_of, is_dense, tensor_of
from distarray.torch._layouts import Placed, TensorMap
from distarray.torch._opaque import disable_compile, skip_compile
from distarray.torch._routes import current
from distarray.torch._saved_tensors import Geometry, Kept, all_hooks_are_ours, saved_tensors_hooks
from distarray.torch._shards import block_of


class Replicated:
    """A tensor that all ranks have alike, and this rank's part of it, once a view is saved."""

    def __init__(self, whole: torch.Tensor) -> None:
        self.memory = _compat.StorageWeakRef(whole.untyped_storage())
        self.geometry = Geometry.of(whole)
        self.part: Kept | None = None
        self._dtype = whole.dtype
        self._version = _compat.version(whole)
        self._is_dense = is_dense(whole)
        self._views = 0
        self._gathered: torch.Tensor | None = None
        self._given_out = 0

    def covers(self, tensor: torch.Tensor) -> bool:
        """Tell whether all items of a tensor in the same memory are items of this one."""
        if tensor.dtype is not self._dtype or _compat.version(tensor) != self._version:
            return False
        own, geometry = self.geometry, Geometry.of(tensor)
        inside = own.offset <= geometry.offset and geometry.end <= own.end
        return geometry == own or (self._is_dense and inside)

    def cut(self, tensor: torch.Tensor, layout: Layout, purpose: Purpose) -> None:
        """Keep the slice that a layout gives this rank, given any tensor in the same memory."""
        whole = tensor.detach().as_strided(*self.geometry)
        part = block_of(whole, Placed(layout)).clone(memory_format=torch.contiguous_format)
        self.keep(part, layout, purpose)

    def keep(self, part: torch.Tensor, layout: Layout, purpose: Purpose | None) -> None:
        """Keep the slice that a layout gives this rank, which nobody may change meanwhile."""
        self.part = Kept(part.detach(), _compat.version(part))
        self._layout = layout
        self._purpose = purpose

    def save(self, tensor: torch.Tensor) -> View | None:
        """Return what is saved in the place of a tensor in this memory; None for no view of it."""
        if not self.covers(tensor):
            return None
        self._views += 1
        return View(self, Geometry.of(tensor))

    def gather(self) -> torch.Tensor:
        """Return the whole, laid out as it was; kept until each view has had it."""
        assert self.part is not None  # a view of it has been saved
        part = self.part()
        if self._gathered is None:
            whole = self._layout.replace(placements=[Replicate()])
            local = buffer_of(part)
            found = tensor_of(redistribute_local(local, self._layout, whole, purpose=self._purpose))
            size, stride, _ = self.geometry
            if found.stride() != stride and found.numel():
                laid = torch.empty_strided(size, stride, dtype=found.dtype, device=found.device)
                found = laid.copy_(found)
            self._gathered = found
        result = self._gathered
        self._given_out += 1
        if self._given_out % self._views == 0:
            self._gathered = None
        return result


class View(NamedTuple):
    """A saved view of a replicated tensor."""

    source: Replicated
    geometry: Geometry

    def __call__(self) -> torch.Tensor:
        """Return the view."""
        whole, source = self.source.gather(), self.source.geometry
        if self.geometry == source:
            return whole
        start = self.geometry.offset - source.offset
        return whole.as_strided(self.geometry.size, self.geometry.stride, start)


def has_memory(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor's memory and version can be looked at, and its values can travel."""
    return (
        not _compat.is_wrapped(tensor)
        and tensor.layout is torch.strided
        and tensor.device.type in ("cpu", "cuda")
        and tensor.numel() > 0
        and not tensor.is_inference()
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def may_decide() -> bool:
    """Tell whether this is the place to decide what is saved.

    It is not inside hooks of others for saved tensors, nor where a backward pass computes something
    again only to use it at once.
    """
    return not _compat.is_going_backward() and all_hooks_are_ours()


# --- gathered inputs ------------------------------------------------------------------------------

WORTH_GATHERING_AGAIN = 1 << 20
"""Bytes of a gathered input from which a rank keeps its shard alone. On two ranks of Zen 4
gathering 2 MiB once more takes 0.2 ms, 0.2 % of a step of the block that is 512 wide; of narrower
ones it would be a larger part.
"""

_AGAIN = Purpose.of("an input that had been gathered before")
_gathered: TensorMap[Replicated] = TensorMap()


def note_gathered(whole: torch.Tensor, shard: torch.Tensor, layout: Layout) -> None:
    """Remember of which shard an input was gathered, for a module that `keep_shards`."""
    if layout.mesh.size == 1 or not torch.is_grad_enabled() or not has_memory(whole):
        return
    if whole.nbytes < WORTH_GATHERING_AGAIN:
        return
    origin = current()
    source = Replicated(whole)
    source.keep(shard, layout, _AGAIN if origin is None else origin.reversed.join(_AGAIN))
    _gathered.set(whole, source)


class keeping_shards:  # noqa: N801 - reads as a phrase: with keeping_shards(inputs)
    """Save shards inside, in the place of inputs that were gathered of them."""

    __slots__ = ("_hooks", "_sources")

    @disable_compile
    def __init__(self, inputs: Iterable[Any]) -> None:
        tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
        found = [(_compat.memory_key(x), _gathered.get(x)) for x in tensors if has_memory(x)]
        self._sources = {key: source for key, source in found if source is not None}

    @disable_compile
    def __enter__(self) -> None:
        decides = self._sources and may_decide()
        self._hooks = saved_tensors_hooks(self._save) if decides else nullcontext()
        self._hooks.__enter__()

    @disable_compile
    def __exit__(self, *_: object) -> None:
        self._hooks.__exit__(None, None, None)

    def _save(self, tensor: torch.Tensor) -> View | None:
        source = self._sources.get(_compat.memory_key(tensor)) if has_memory(tensor) else None
        return None if source is None else source.save(tensor)


@skip_compile
def keep_shards(_: Any, forward: Any, *args: Any, **kwargs: Any) -> Any:
    """Call forward; of its inputs that were gathered only shards are kept for the backward pass."""
    with keeping_shards(_compat.leaves_of((args, kwargs))):
        return forward(*args, **kwargs)
