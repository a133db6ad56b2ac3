"""Read boxes of arrays out of the files of a checkpoint, and check what is read."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from distarray.checkpoint import _files
from distarray.checkpoint._blocks import within
from distarray.checkpoint._boxes import clusters, runs, span
from distarray.checkpoint._checksums import Beside, checksums
from distarray.checkpoint._manifest import Chunk, Entry, Manifest, block_items
from distarray.errors import CheckpointError
from distarray.layout import box as boxes
from distarray.typing import Box, Shape

_MOST_OPEN = 64
_READ_BYTES = 8 << 20
GAP_BYTES = 64 << 10
"""Bytes in between that are read as well, rather than reading twice."""


class Reader:
    """Reads from the files of one checkpoint; a context, which closes them.

    Parameters
    ----------
    manifest
        What is where.
    verify
        Compare checksums: then whole blocks are read, also where less is needed. Otherwise what is
        needed, and what lies between where that is less than ``GAP_BYTES``.

    Attributes
    ----------
    bytes_read
        From files, so far.
    """

    def __init__(self, manifest: Manifest, verify: bool = True) -> None:
        self._manifest = manifest
        self._verify = verify
        self._open: OrderedDict[int, int] = OrderedDict()
        self._beside = Beside()
        self._checks: list[Callable[[], None]] = []
        self.bytes_read = 0

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._beside.__exit__()
        while self._open:
            os.close(self._open.popitem()[1])

    def read(self, entry: Entry, box: Box, target: np.ndarray) -> None:
        """Fill an array, of the shape of a box, with the values of the box.

        Parameters
        ----------
        target
            Of any strides, with items of the size of the entry's.

        Raises
        ------
        CheckpointError
            A file is missing or damaged. Some values may have been filled in.
        """
        for chunk in entry.chunks:
            common = boxes.intersect(chunk.box, box)
            if common is not None:
                part = within(target, boxes.shift(common, box))
                own = boxes.shift(common, chunk.box)
                if self._verify:
                    self._read(entry, chunk, own, part)
                    continue
                gap = block_items(GAP_BYTES, entry.dtype.itemsize)
                for cluster in clusters(boxes.shape(chunk.box), own, gap):
                    self._read(entry, chunk, cluster, within(part, boxes.shift(cluster, own)))
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
        at_once = max(1, _READ_BYTES // (per * itemsize or 1))
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
                    for run in runs(shape, start, stop)
                    if (common := boxes.intersect(run.box, box)) is not None
                ]
                if found:
                    if not self._verify:
                        start, stop = max(start, first), min(stop, last)
                    if scratch.size < stop - start:
                        scratch = np.empty(stop - start, target.dtype)
                    data = _bytes(scratch[: stop - start])
                    self._fetch(entry, chunk, start, data, block, per, direct=False)
                for run, common in found:
                    self._copy(scratch, start, run.start, run.box, common, box, target)
            block = -(-stop // per) if direct is not None else block + 1

    @staticmethod
    def _copy(
        scratch: np.ndarray,
        start: int,
        run_start: int,
        run_box: Box,
        common: Box,
        box: Box,
        target: np.ndarray,
    ) -> None:
        """Copy the part of a run that is wanted; ``scratch`` begins with item ``start``."""
        first, last = span(boxes.shape(run_box), boxes.shift(common, run_box))
        wanted = boxes.shape(common)
        part = within(target, boxes.shift(common, box))
        offset = run_start - start
        source = np.lib.stride_tricks.as_strided(
            scratch[offset + first : offset + last],
            wanted,
            _strides(boxes.shape(run_box), scratch.itemsize),
            writeable=False,
        )
        part[...] = source

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
        self.bytes_read += read
        if not self._verify:
            return
        told = chunk.checksums[8 * block :]
        check = partial(_check, data, per * itemsize, told, path, offset, entry.name)
        if direct:
            self._checks.append(self._beside.start(check, len(data)))
        else:
            check()  # the memory is used again

    def _file(self, number: int) -> tuple[str, int]:
        try:
            name, size = self._manifest.files[number]
        except IndexError:
            raise CheckpointError(
                f"{self._manifest.path} names file {number}, and has none"
            ) from None
        path = os.path.join(self._manifest.directory, name)
        if number in self._open:
            self._open.move_to_end(number)
            return path, self._open[number]
        if self._manifest.directory and os.path.basename(name) != name:
            raise CheckpointError(f"{self._manifest.path} names a file {name!r} outside itself")
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


def _bytes(items: Any) -> memoryview:
    return memoryview(items.view(np.uint8))


def _strides(shape: Shape, itemsize: int) -> tuple[int, ...]:
    """Return the strides of a C-contiguous array."""
    found = []
    for size in reversed(shape):
        found.append(itemsize)
        itemsize *= size
    return tuple(reversed(found))


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
