"""Write one rank's data file, with a checksum for every block of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from distarray.checkpoint import _files
from distarray.checkpoint._blocks import Block, Piece
from distarray.checkpoint._boxes import runs, whole
from distarray.checkpoint._checksums import Beside, checksums
from distarray.checkpoint._dtypes import Spec, parsed
from distarray.checkpoint._manifest import BLOCK_BYTES, block_items
from distarray.checkpoint._safetensors import METADATA, composed
from distarray.layout import box as boxes
from distarray.typing import Box, Shape

_WRITE_BYTES = 8 << 20
"""How many bytes are written at once, and copied first where they are not contiguous."""


_SMALL_BYTES = 64 << 10
"""Pieces of fewer bytes are collected, and written together."""


class Part(NamedTuple):
    """A box of an array that this rank writes, and where its values are."""

    name: str
    spec: Spec
    shape: Shape
    box: Box
    piece: Piece


def parts_of(
    blocks: Mapping[str, Block], mine: Mapping[str, Sequence[Box]], copied: bool
) -> list[Part]:
    """Return what this rank writes, in the order in which it lies in the file.

    Parameters
    ----------
    copied
        Whether the values are copied to memory of their own, so that their owner may change them.
    """
    found = []
    for name, wanted in mine.items():
        block = blocks[name]
        for box in wanted:
            piece = next(piece for piece in block.pieces if boxes.contains(piece.box, box))
            if copied:
                piece = Piece(box, piece.copy(box))
            found.append(Part(name, block.spec, block.shape, box, piece))
    return sorted(found, key=lambda part: -parsed(part.spec).itemsize)


def write_parts(path: str, parts: Sequence[Part], id: str) -> tuple[int, list[list[Any]]]:
    """Write a data file; return its size, and for each part its name, offset, box and checksums."""
    items = [(_title(part), part.spec, boxes.shape(part.box)) for part in parts]
    first, offsets = composed(items, {"format": "distarray checkpoint", "id": id})
    size = len(first)
    told = []
    with _files.new_file(path) as file, Beside() as beside:
        output = _Output(file, path)
        output.write(memoryview(first))
        for part, offset in zip(parts, offsets, strict=True):
            values = part.piece.part(part.box)
            sums = ""
            step = block_items(BLOCK_BYTES, values.itemsize) * values.itemsize
            for data in pieces_of(values, BLOCK_BYTES):
                computed = beside.start(partial(checksums, data, step), len(data))
                output.write(data)
                sums += computed()
            told.append([part.name, offset, part.box, sums])
            size += values.nbytes
        output.flush()
    return size, told


class _Output:
    """A file that is written from its start: small pieces together, and soon to the device."""

    def __init__(self, file: int, path: str) -> None:
        self._file, self._path = file, path
        self._small = bytearray()
        self._at = 0

    def write(self, data: memoryview) -> None:
        """Write what comes next."""
        if len(data) < _SMALL_BYTES:
            self._small += data
            if len(self._small) >= _WRITE_BYTES:
                self.flush()
            return
        self.flush()
        self._write(data)

    def flush(self) -> None:
        """Write what has been collected."""
        if self._small:
            self._write(self._small)
            self._small = bytearray()

    def _write(self, data: memoryview | bytearray) -> None:
        _files.write(self._file, data, self._path)
        _files.start_settling(self._file, self._at, len(data))
        self._at += len(data)


def pieces_of(values: np.ndarray, block_bytes: int) -> Iterator[memoryview]:
    """Yield the bytes of an array in C order, in pieces of whole blocks.

    A piece of an array that is not contiguous is valid until the next one.
    """
    step = block_items(block_bytes, values.itemsize) * max(1, _WRITE_BYTES // block_bytes)
    if values.flags.c_contiguous:
        data = _bytes(values.reshape(-1))
        for start in range(0, len(data), step * values.itemsize):
            yield data[start : start + step * values.itemsize]
        return
    scratch = np.empty(min(step, values.size), values.dtype)
    for start in range(0, values.size, step):
        stop = min(start + step, values.size)
        for run in runs(values.shape, start, stop):
            source = values[boxes.slices(run.box)]
            at = run.start - start
            scratch[at : at + source.size].reshape(source.shape)[...] = source
        yield _bytes(scratch[: stop - start])


def _bytes(items: Any) -> memoryview:
    return memoryview(items.view(np.uint8))


def _title(part: Part) -> str:
    """Return the name of a part in the file: that of the array, and which items."""
    if part.box == whole(part.shape) and part.name != METADATA:
        return part.name
    return f"{part.name}[{','.join(f'{start}:{stop}' for start, stop in part.box)}]"
