"""Blocks that travel in another form: quantised, compressed, or as the data of custom tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch

from distarray.comm import Purpose, _memory
from distarray.errors import ArgumentTypeError
from distarray.layout import Layout
from distarray.redistribute import Handle, in_background
from distarray.torch._buffers import empty, follow, tensor_of
from distarray.torch.fsdp._bundle import Bundle
from distarray.typing import Buffer

Tensors = tuple[torch.Tensor, ...]
PreAllGather = Callable[[torch.Tensor], Tensors]
PostAllGather = Callable[[Sequence[Tensors], Layout, torch.Tensor], torch.Tensor | None]
_Form = tuple[tuple[tuple[int, ...], torch.dtype], ...]


class Extension(NamedTuple):
    """What is called before and after blocks of a parameter travel."""

    pre: PreAllGather
    post: PostAllGather


class ExtendedBundle(Bundle):
    """One parameter whose blocks travel in another form."""

    _forms: tuple[_Form, ...] | None = None
    _instead: torch.Tensor | None = None

    def gather(self, what: str) -> Handle:
        """Start to gather what the blocks have been turned into."""
        self._drop_stale_piece()
        if self._piece is not None:
            return super().gather(what)
        self._versions = tuple(m.version for m in self.members)
        (member,) = self.members
        self._settle()
        travelling = self._checked(member.extension.pre(member.parameter.detach()))
        form: _Form = tuple((tuple(t.shape), t.dtype) for t in travelling)
        sent = [_bytes(t) for t in travelling]
        known = self._forms is not None and self._forms[self.packed.rank] == form
        shape = "the shape that it had" if known else "a new shape"
        purpose = Purpose.of(f"unshard {what}: {member.path} extended, of {shape}")

        def work(behind: bool) -> Buffer:
            communicator = self.packed.communicator(behind)
            communicator.agree(purpose.token, purpose.text)
            if not known:
                self._forms = tuple(communicator.all_gather_object(form))
            assert self._forms is not None  # they have been told
            counts = [sum(map(_nbytes, one)) for one in self._forms]
            own = _memory.empty((counts[communicator.rank],), np.uint8)
            at = 0
            for part in sent:
                own[at : at + part.size] = part
                at += part.size
            found = _memory.empty((sum(counts),), np.uint8)
            communicator.all_gather(own, found, counts)
            return found

        follow(self._like)
        return in_background(work)

    def arrive(self, buffer: Buffer) -> None:
        """Turn what has come into the whole."""
        if self._piece is not None:
            super().arrive(buffer)
            return
        (member,) = self.members
        assert self._forms is not None  # it has been gathered
        flat = torch.from_numpy(buffer).to(self._device)
        lengths = [_nbytes(one) for form in self._forms for one in form]
        pieces = iter(
            flat[start : start + length]
            for start, length in zip(accumulate(lengths, initial=0), lengths, strict=False)
        )
        parts = [
            tuple(next(pieces).clone().view(dtype).view(shape) for shape, dtype in form)
            for form in self._forms
        ]
        self.full = tensor_of(empty(self.packed.total, self._like))
        (whole,) = super().wholes()
        with torch.no_grad():
            self._instead = member.extension.post(parts, member.layout, whole)
        if self._instead is not None:
            self.full = self._like.clone()

    def wholes(self) -> list[torch.Tensor]:
        """Return what modules use in the place of the parameter."""
        return super().wholes() if self._instead is None else [self._instead.detach()]

    def free(self, *, keep_piece: bool) -> None:
        """Let go of the whole."""
        super().free(keep_piece=keep_piece and self._instead is None)
        self._instead = None

    def _checked(self, travelling: Any) -> Tensors:
        found = travelling if isinstance(travelling, tuple) else (travelling,)
        for one in found:
            if not isinstance(one, torch.Tensor):
                raise ArgumentTypeError(
                    f"{self.members[0].path}: the function before the all-gather returned a "
                    f"{type(one).__name__}; it must return a tensor or a tuple of tensors"
                )
        return found


def _bytes(tensor: torch.Tensor) -> np.ndarray:
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    found: np.ndarray = flat.cpu().numpy()
    return found


def _nbytes(one: tuple[tuple[int, ...], torch.dtype]) -> int:
    shape, dtype = one
    return int(np.prod(shape)) * dtype.itemsize
