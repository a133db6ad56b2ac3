"""Writing and reading of chunks of arrays in data files, with a checksum for every block.

The checksums are computed beside the writing or reading of other blocks. CRC-32 is what every
language has at hand, finds all errors in up to 32 successive bits, and leaves one in four thousand
million of other damages unnoticed. ISA-L computes it several times as fast as zlib (34 and 6 GB/s
on one core of a Zen 3), which serves where there is no wheel of it.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from distarray.checkpoint.storage import _files
from distarray.checkpoint.storage._blocks import Block, Piece, box_view, clusters, span
from distarray.checkpoint.storage._dtypes import Spec, dtype_of_spec
from distarray.checkpoint.storage._manifest import BLOCK_BYTES, Chunk, Entry, Manifest, block_items
from distarray.checkpoint.storage._safetensors import METADATA, compose_header
from distarray.errors import CheckpointError
from distarray.layout import box as boxes
from distarray.typing import Box, Shape

try:
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

T = TypeVar("T")
_THREAD_BYTES = 1 << 20
"""Fewer are not worth a thread, which takes 0.05 ms to start and end: a CRC-32 takes 0.16 ms."""


def checksums(data: memoryview, step: int) -> str:
    """Return the checksums of blocks of ``step`` bytes, as eight hexadecimal digits each."""
    return "".join([f"{crc32(data[i : i + step]):08x}" for i in range(0, len(data), step)])


class ChecksumThread:
    """A thread that computes while the caller goes on; a context, which waits for it."""

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None

    def __enter__(self) -> ChecksumThread:
        return self

    def __exit__(self, *_: object) -> None:
        if self._executor is not None:
            self._executor.shutdown()

    def start(self, function: Callable[[], T], nbytes: int) -> Callable[[], T]:
        """Start a computation on so many bytes, and return what waits for its result."""
        if nbytes >= _THREAD_BYTES:
            try:
                if self._executor is None:
                    self._executor = ThreadPoolExecutor(1, "distarray checksums")
                return self._executor.submit(function).result
            except RuntimeError:
                pass  # the interpreter is ending, and starts no threads any more
        result = function()
        return lambda: result


_WRITE_BYTES = 8 << 20
"""How many bytes are written at once, and copied first where they are not contiguous: the memory
that saves are documented to take."""


_SMALL_BYTES = 64 << 10
"""Pieces of fewer bytes are collected, and written together."""


class Part(NamedTuple):
    """A box of an array that this rank writes, and where its values are."""

    name: str
    spec: Spec
    shape: Shape
    box: Box
    piece: Piece


def plan_parts(
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
    return sorted(found, key=lambda part: -dtype_of_spec(part.spec).itemsize)


def write_parts(path: str, parts: Sequence[Part], id: str) -> tuple[int, list[list[Any]]]:
    """Write a data file; return its size, and for each part its name, offset, box and checksums."""
    items = [(_title(part), part.spec, boxes.shape(part.box)) for part in parts]
    first, offsets = compose_header(items, {"format": "distarray checkpoint", "id": id})
    size = len(first)
    told = []
    with _files.new_file(path) as file, ChecksumThread() as thread:
        output = _Output(file, path)
        output.write(memoryview(first))
        for part, offset in zip(parts, offsets, strict=True):
            values = part.piece.part(part.box)
            sums = ""
            step = block_items(BLOCK_BYTES, values.itemsize) * values.itemsize
            for data in iterate_pieces(values):
                computed = thread.start(partial(checksums, data, step), len(data))
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
        _files.write_at(self._file, data, self._at, self._path)
        _files.start_writeback(self._file, self._at, len(data))
        self._at += len(data)


def iterate_pieces(values: np.ndarray) -> Iterator[memoryview]:
    """Yield the bytes of an array in C order, in pieces of whole blocks.

    A piece of an array that is not contiguous is valid until the next one.
    """
    step = block_items(BLOCK_BYTES, values.itemsize) * (_WRITE_BYTES // BLOCK_BYTES)
    if values.flags.c_contiguous:
        data = _bytes(values.reshape(-1))
        for start in range(0, len(data), step * values.itemsize):
            yield data[start : start + step * values.itemsize]
        return
    scratch = np.empty(min(step, values.size), values.dtype)
    for start in range(0, values.size, step):
        stop = min(start + step, values.size)
        at = 0
        for run in boxes.runs(values.shape, start, stop):
            source = values[boxes.slices(run)]
            scratch[at : at + source.size].reshape(source.shape)[...] = source
            at += source.size
        yield _bytes(scratch[: stop - start])


def _bytes(items: Any) -> memoryview:
    return memoryview(items.view(np.uint8))


def _title(part: Part) -> str:
    """Return the name of a part in the file: that of the array, and which items."""
    if part.box == boxes.whole(part.shape) and part.name != METADATA:
        return part.name
    return f"{part.name}[{','.join(f'{start}:{stop}' for start, stop in part.box)}]"


_MOST_OPEN = 64
"""Files at a time, of the 1,024 that systems mostly let a process have, with many ranks' files."""

READ_BYTES = 8 << 20
"""How many bytes are read at once: the memory that loads are documented to take."""

GAP_BYTES = 64 << 10
"""Bytes in between that are read as well, rather than reading twice: Linux reads 128 KiB ahead
(`read_ahead_kb`), so that they mostly come anyway."""


class Reader:
    """Reads from the files of one checkpoint; a context, which closes them.

    Parameters
    ----------
    manifest
        What is where.
    verify
        Compare checksums: then whole blocks are read, also where less is needed. Otherwise what is
        needed, and what lies between where that is less than ``GAP_BYTES``.
    """

    def __init__(self, manifest: Manifest, verify: bool = True) -> None:
        self._manifest = manifest
        self._verify = verify
        self._open: OrderedDict[int, int] = OrderedDict()
        self._thread = ChecksumThread()
        self._checks: list[Callable[[], None]] = []

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.__exit__()
        while self._open:
            os.close(self._open.popitem()[1])

    def read(self, entry: Entry, box: Box, target: np.ndarray) -> None:
        """Fill an array, of the shape of a box, with the values of the box.

        Parameters
        ----------
        target
            Of any strides, with items of the size of the entry's.
        """
        for chunk in entry.chunks:
            common = boxes.intersect(chunk.box, box)
            if common is not None:
                part = box_view(target, boxes.shift(common, box))
                own = boxes.shift(common, chunk.box)
                gap = block_items(GAP_BYTES, entry.dtype.itemsize)
                found = [own] if self._verify else clusters(boxes.shape(chunk.box), own, gap)
                for one in found:
                    self._read(entry, chunk, one, box_view(part, boxes.shift(one, own)))
        while self._checks:
            self._checks.pop()()

    def _read(self, entry: Entry, chunk: Chunk, box: Box, target: np.ndarray) -> None:
        """Fill an array with the values of a box of a chunk."""
        shape = boxes.shape(chunk.box)
        total = boxes.volume(chunk.box)
        itemsize = entry.dtype.itemsize
        per = block_items(self._manifest.block_bytes, itemsize)
        first, last = span(shape, box)
        direct: memoryview | None = None
        data: memoryview
        if last - first == boxes.volume(box) and target.flags.c_contiguous:
            direct = _bytes(target.reshape(-1))
        scratch = np.empty(0, target.dtype)
        at_once = max(1, READ_BYTES // (per * itemsize or 1))
        block = first // per
        while block * per < last:
            start = block * per
            stop = min(start + per, total)
            if direct is not None and first <= start and stop <= last:
                more = min((last - start) // per, at_once)
                stop = min(max(stop, start + more * per), total)
                data = direct[(start - first) * itemsize : (stop - first) * itemsize]
                self._fetch(entry, chunk, start, data, block, per, direct=True)
            else:
                found = [
                    (run, common)
                    for run in boxes.runs(shape, start, stop)
                    if (common := boxes.intersect(run, box)) is not None
                ]
                if found:
                    low, high = start, stop
                    if not self._verify:
                        low, high = max(start, first), min(stop, last)
                    if scratch.size < stop - start:
                        scratch = np.empty(stop - start, target.dtype)
                    data = _bytes(scratch[low - start : high - start])
                    self._fetch(entry, chunk, low, data, block, per, direct=False)
                for run, common in found:
                    at = span(shape, run)[0] - start
                    values = scratch[at : at + boxes.volume(run)].reshape(boxes.shape(run))
                    part = box_view(target, boxes.shift(common, box))
                    part[...] = box_view(values, boxes.shift(common, run))
            block = -(-stop // per) if direct is not None else block + 1

    def _fetch(
        self,
        entry: Entry,
        chunk: Chunk,
        start: int,
        data: memoryview,
        block: int,
        per: int,
        direct: bool,
    ) -> None:
        """Read items of a chunk, and compare the checksums of their blocks, perhaps later."""
        path, file = self._file(chunk.file)
        itemsize = entry.dtype.itemsize
        offset = chunk.offset + start * itemsize
        try:
            read = _files.read_at(file, data, offset)
        except OSError as error:
            raise CheckpointError(
                f"{path} cannot be read at byte {offset}: {error.strerror}"
            ) from None
        if read != len(data):
            raise CheckpointError(
                f"{path} is truncated: {len(data)} bytes at {offset}, of {entry.name!r}, were "
                f"wanted, and there are {read}"
            )
        if not self._verify:
            return
        told = chunk.checksums[8 * block :]
        check = partial(_check, data, per * itemsize, told, path, offset, entry.name)
        if direct:
            self._checks.append(self._thread.start(check, len(data)))
        else:
            check()  # the memory is used again

    def _file(self, number: int) -> tuple[str, int]:
        name, size = self._manifest.files[number]
        path = os.path.join(self._manifest.directory, name)
        if number in self._open:
            self._open.move_to_end(number)
            return path, self._open[number]
        check_size(path, size)
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be opened: {error.strerror}") from None
        self._open[number] = file
        if len(self._open) > _MOST_OPEN:
            os.close(self._open.popitem(last=False)[1])
        return path, file


def _check(data: memoryview, step: int, told: str, path: str, offset: int, name: str) -> None:
    """Raise unless blocks have the checksums that they were written with."""
    found = checksums(data, step)
    if told.startswith(found):
        return
    for number, low in enumerate(range(0, len(data), step)):
        wanted, here = (sums[8 * number : 8 * number + 8] for sums in (told, found))
        if wanted != here:
            high = min(low + step, len(data))
            raise CheckpointError(
                f"{path} is damaged: bytes {offset + low} to {offset + high}, of {name!r}, have "
                f"the checksum {here}, and were written with {wanted}"
            )


def check_size(path: str, size: int) -> None:
    """Raise unless a file is there and has its size."""
    try:
        found = os.stat(path).st_size
    except OSError as error:
        raise CheckpointError(
            f"{path} is missing or cannot be opened ({error.strerror}); if the checkpoint was "
            "replaced while it was read, load it again"
        ) from None
    if found != size:
        what = "truncated" if found < size else "damaged"
        raise CheckpointError(
            f"{path} is {what}: it has {found} bytes, and was written with {size}"
        )
