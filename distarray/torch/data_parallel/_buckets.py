"""Buckets: parameters whose gradients travel together, packed one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import nn

from distarray.torch._buffers import empty, tensor_of
from distarray.typing import Buffer

END_BYTES = 1 << 20
"""Most bytes of the first bucket, which starts early, and of the last, which nothing hides."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Parameters of one dtype and device.

    Attributes
    ----------
    members
        Their positions among all parameters, in the order in which they are packed.
    starts
        Where each is packed, in elements, and where the last one ends.
    dtype
        In which the gradients are packed.
    """

    members: tuple[int, ...]
    starts: tuple[int, ...]
    dtype: torch.dtype

    @property
    def size(self) -> int:
        """Number of elements of all members."""
        return self.starts[-1]


def arrange(parameters: Sequence[nn.Parameter], bucket_bytes: int) -> tuple[Bucket, ...]:
    """Return the buckets of some parameters, in the order in which they are likely to be complete.

    The backward pass meets the last parameters first, so that the buckets are filled from the end.

    Parameters
    ----------
    parameters
        In the order of their registration.
    bucket_bytes
        A bucket is closed before it would exceed this, the first and the last one at 1 MiB
        already; a larger parameter has its own.
    """
    sizes = [p.numel() * p.dtype.itemsize for p in parameters]
    end_bytes = min(END_BYTES, bucket_bytes)
    found: list[list[int]] = []
    filling: dict[tuple[torch.dtype, torch.device], tuple[list[int], int]] = {}
    for position in reversed(range(len(parameters))):
        kind = parameters[position].dtype, parameters[position].device
        members, filled = filling.get(kind, ([], 0))
        limit = end_bytes if members and members is found[0] else bucket_bytes
        if not members or filled + sizes[position] > limit:
            members, filled = [], 0
            found.append(members)
        members.append(position)
        filling[kind] = members, filled + sizes[position]
    # A bucket is complete when its last parameter is, the one that was registered first.
    found.sort(key=lambda members: -members[-1])
    if found and sum(sizes[i] for i in found[-1]) > end_bytes:
        last = found.pop()
        kept = max(1, sum(total <= end_bytes for total in accumulate(sizes[i] for i in last[::-1])))
        found += [part for part in (last[:-kept], last[-kept:]) if part]
    return tuple(
        Bucket(
            tuple(members),
            (0, *accumulate(parameters[i].numel() for i in members)),
            parameters[members[0]].dtype,
        )
        for members in found
    )


def packing(
    bucket: Bucket, parameters: Sequence[nn.Parameter], flags: Sequence[bool] = ()
) -> tuple[Buffer, Callable[[], None]]:
    """Return a new buffer for the gradients of a bucket and flags, and what fills it.

    Where there is no gradient it is filled with zeros. Until then gradients must stay as they are.
    """
    like = torch.empty(0, dtype=bucket.dtype, device=parameters[bucket.members[0]].device)
    buffer = empty(bucket.size + len(flags), like)
    gradients = [parameters[position].grad for position in bucket.members]
    views = sections(bucket, parameters, buffer)

    def fill() -> None:
        for gradient, view in zip(gradients, views, strict=True):
            if gradient is None:
                view.zero_()
            else:
                view.copy_(gradient.detach())
        if flags:
            tensor_of(buffer[bucket.size :]).copy_(torch.tensor(flags))

    return buffer, fill


def sections(
    bucket: Bucket, parameters: Sequence[nn.Parameter], buffer: Buffer
) -> list[torch.Tensor]:
    """Return the members' parts of a packed buffer: shaped as the parameters, in its memory.

    They lie as the parameters do where these are dense, as optimizers like it.
    """
    found = []
    for position, start in zip(bucket.members, bucket.starts[:-1], strict=True):
        parameter = parameters[position]
        part = buffer[start : start + parameter.numel()]
        if parameter.is_contiguous() or not _is_dense(parameter):
            view = tensor_of(part.reshape(parameter.shape))
        else:
            view = tensor_of(part).as_strided(parameter.shape, parameter.stride())
        found.append(view)
    return found


def flags_of(bucket: Bucket, buffer: Buffer) -> list[bool]:
    """Return the flags behind a reduced bucket: whether any rank has set them."""
    found: list[bool] = (tensor_of(buffer[bucket.size :]) != 0).tolist()
    return found


def _is_dense(tensor: torch.Tensor) -> bool:
    return bool(torch.ops.aten.is_non_overlapping_and_dense(tensor.detach()))
