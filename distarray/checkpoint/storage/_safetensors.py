"""Headers of safetensors files: eight bytes of length, JSON, then the data of the tensors.

Data files of checkpoints have it too. It is open, each chunk can be read by other programs, data
may be mapped into memory, and nothing in it is code.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from distarray.checkpoint.storage import _files
from distarray.checkpoint.storage._dtypes import Spec, code_of, dtype_of_spec, spec_of_code
from distarray.errors import CheckpointError
from distarray.typing import Shape

METADATA = "__metadata__"
_ALIGNMENT = 4096
"""Where the data starts: at a multiple of this."""
_MOST_HEADER_BYTES = 1 << 30
"""The format's own library takes 100 MB; headers of checkpoints with many chunks may be longer."""


class Item(NamedTuple):
    """A tensor of a file: its data are bytes ``start`` to ``stop`` of it."""

    spec: Spec
    shape: Shape
    start: int
    stop: int


def compose_header(
    items: Sequence[tuple[str, Spec, Shape]], metadata: Mapping[str, str]
) -> tuple[bytes, list[int]]:
    """Return the first bytes of a file, and where the data of each tensor starts in it.

    Parameters
    ----------
    items
        Names, dtypes and shapes, by decreasing size of items: so each is aligned to its own.
    metadata
        Under ``__metadata__``.
    """
    told: dict[str, Any] = {METADATA: dict(metadata)}
    offset = 0
    offsets = []
    for name, spec, shape in items:
        itemsize = dtype_of_spec(spec).itemsize
        stop = offset + prod(shape) * itemsize
        code = code_of(spec)
        told[name] = {
            "dtype": code or "U8",  # bytes
            "shape": list(shape) if code else [*shape, itemsize],
            "data_offsets": [offset, stop],
        }
        offsets.append(offset)
        offset = stop
    text = json.dumps(told).encode()
    length = -(-(8 + len(text)) // _ALIGNMENT) * _ALIGNMENT - 8
    start = 8 + length
    return length.to_bytes(8, "little") + text.ljust(length), [start + one for one in offsets]


def read_header(path: str) -> tuple[dict[str, Item], dict[str, str]]:
    """Return what is in a file: its tensors, with offsets from its start, and its metadata."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be opened: {error.strerror}") from None
    try:
        size = os.fstat(file).st_size
        start = bytearray(8)
        read = _files.read_at(file, start, 0)
        length = int.from_bytes(start, "little")
        if read < 8 or length > min(size - 8, _MOST_HEADER_BYTES):
            raise CheckpointError(
                f"{path} is no safetensors file, or truncated: it has {size} bytes, and its first "
                f"eight say that the header has {length}"
            )
        text = bytearray(length)
        _files.read_at(file, text, 8)
    finally:
        os.close(file)
    try:
        told = json.loads(text)
        metadata = dict(told.pop(METADATA, None) or {})
        items = {name: _item(one, 8 + length) for name, one in told.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path} has a header that cannot be read: {error!r}") from None
    _check(path, items, 8 + length, size)
    return items, metadata


def _item(told: Mapping[str, Any], start: int) -> Item:
    spec = spec_of_code(told["dtype"])
    if spec is None:
        raise ValueError(f"dtype {told['dtype']!r} is not known to this version")
    first, last = _integers(told["data_offsets"])
    shape = tuple(_integers(told["shape"]))
    if min((first, *shape)) < 0 or last - first != prod(shape) * dtype_of_spec(spec).itemsize:
        raise ValueError(f"offsets {first} to {last} do not fit {spec} of shape {shape}")
    return Item(spec, shape, start + first, start + last)


def _integers(told: Any) -> list[int]:
    if not isinstance(told, list) or not all(type(one) is int for one in told):
        raise ValueError(f"{told!r} is no list of integers")
    return told


def _check(path: str, items: Mapping[str, Item], start: int, size: int) -> None:
    """Raise unless the tensors lie one after another and end where the file does."""
    for name, item in sorted(items.items(), key=lambda pair: pair[1][2:]):
        if item.start != start:
            raise CheckpointError(
                f"{path} is damaged: the data of {name!r} starts at byte {item.start}, where that "
                f"before it ends at {start}"
            )
        start = item.stop
    if start != size:
        what = "truncated" if size < start else "longer than it should be"
        raise CheckpointError(f"{path} is {what}: it has {size} bytes, and its header says {start}")
