"""What is in a checkpoint and where: a JSON file with a digest of itself.

::

    {"format": "distarray checkpoint", "version": 1, "id": "...", "saved": "2026-01-31T12:00:00Z",
     "world_size": 4, "block_bytes": 1048576,
     "files": [["data-<id>-00000.safetensors", 1234], ...],
     "arrays": {"model.weight": {"dtype": "float32", "shape": [8, 4], "layout": "8x4 [dp:S(0)]",
                                 "chunks": [[0, 512, [0, 0], [4, 4], "8f3a60b1"], ...]}},
     "tree": {"dict": [["model", {"dict": [["weight", {"array": "model.weight", ...}]]}]]},
     "blake2b": "..."}

A chunk is a box of an array, C-contiguous in a file: the file's number, where in it the chunk
starts, the first index and the one past the last along each axis, and the CRC-32 of each of its
blocks, of ``block_bytes`` rounded down to whole items, as eight hexadecimal digits each.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from math import prod
from typing import Any

from distarray.checkpoint._boxes import tiles
from distarray.checkpoint._directory import MANIFEST
from distarray.checkpoint._dtypes import Spec, parsed
from distarray.checkpoint._structure import check_structure, checked_row
from distarray.errors import CheckpointError
from distarray.layout import box as boxes
from distarray.typing import Box, Shape

FORMAT = "distarray checkpoint"
VERSION = 1
BLOCK_BYTES = 1 << 20
"""How many bytes have a checksum of their own: what is read at least where any of them is."""

_DIGEST = re.compile(rb', "blake2b": "([0-9a-f]{32})"\}\n')
_DIGEST_BYTES = len(', "blake2b": ""}\n') + 32


@dataclass(frozen=True, slots=True)
class Chunk:
    """A box of an array, C-contiguous in a file."""

    file: int
    offset: int
    box: Box
    checksums: str


class Entry:
    """An array of a checkpoint."""

    def __init__(
        self, name: str, told: dict[str, Any], path: str, files: list[tuple[str, int]]
    ) -> None:
        self.name = name
        self._path = path
        self._files = files
        self.spec: Spec = told["dtype"]
        self.shape: Shape = tuple(told["shape"])
        self.layout: str = told.get("layout", "")
        self._told = told

    @cached_property
    def dtype(self) -> Any:
        """The NumPy dtype that holds its items."""
        return parsed(self.spec)

    @cached_property
    def chunks(self) -> tuple[Chunk, ...]:
        """Where its items are.

        Raises
        ------
        CheckpointError
            The chunks do not make up the array.
        """
        found = tuple(
            Chunk(file, offset, tuple(zip(starts, stops, strict=True)), checksums)
            for file, offset, starts, stops, checksums in (
                checked_row(row, self._path, self.name, len(self.shape), self._files)
                for row in self._told["chunks"]
            )
        )
        held = [chunk.box for chunk in found]
        if prod(self.shape) and not (len(set(held)) == len(held) and tiles(self.shape, held)):
            raise CheckpointError(
                f"{self._path} is damaged: the chunks of {self.name!r}, of shape {self.shape}, do "
                "not make up the array"
            )
        return found

    def __repr__(self) -> str:
        return f"Entry({self.name!r}, {self.spec!r}, {self.shape})"


class Manifest:
    """The manifest of a checkpoint that was read.

    Parameters
    ----------
    directory
        Where its files are.
    text
        The bytes of the manifest.

    Raises
    ------
    CheckpointError
        It is damaged, or of a newer version.
    """

    def __init__(self, directory: str, text: bytes) -> None:
        self.directory = directory
        self.path = os.path.join(directory, MANIFEST)
        told = _checked(text, self.path)
        check_structure(told, self.path)
        self.id: str = told["id"]
        self.world_size: int = told["world_size"]
        self.block_bytes: int = told["block_bytes"]
        self.files: list[tuple[str, int]] = [(name, size) for name, size in told["files"]]
        self.tree: Any = told["tree"]
        self.saved: str = told["saved"]
        self.arrays = {
            name: Entry(name, one, self.path, self.files) for name, one in told["arrays"].items()
        }


def bare_manifest(path: str, files: list[list[Any]], arrays: dict[str, Any]) -> Manifest:
    """Return a manifest of arrays without checksums, in files that others have written."""
    found = object.__new__(Manifest)
    found.directory, found.path = "", path
    found.id, found.saved, found.world_size, found.block_bytes = "", "", 1, BLOCK_BYTES
    found.files = [(name, size) for name, size in files]
    found.arrays = {name: Entry(name, one, path, found.files) for name, one in arrays.items()}
    found.tree = {"dict": [[name, {"array": name, "kind": "distarray"}] for name in arrays]}
    return found


def compose(told: dict[str, Any]) -> bytes:
    """Return the bytes of a manifest, its digest last."""
    body = json.dumps(told, allow_nan=False).encode()
    digest = hashlib.blake2b(body, digest_size=16).hexdigest()
    return body[:-1] + f', "blake2b": "{digest}"}}\n'.encode()


def header(id: str, world_size: int) -> dict[str, Any]:
    """Return the beginning of a manifest."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "id": id,
        "saved": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "world_size": world_size,
        "block_bytes": BLOCK_BYTES,
    }


def chunk_row(file: int, offset: int, box: Box, checksums: str) -> list[Any]:
    """Return a chunk as it is in a manifest."""
    return [file, offset, [a for a, _ in box], [b for _, b in box], checksums]


def bytes_of(chunk: Chunk, itemsize: int) -> int:
    """Return how many bytes a chunk has."""
    return boxes.volume(chunk.box) * itemsize


def block_items(block_bytes: int, itemsize: int) -> int:
    """Return how many items a block with a checksum has."""
    return max(1, block_bytes // max(itemsize, 1))


def _checked(text: bytes, path: str) -> dict[str, Any]:
    """Return a manifest as a dictionary, or say what is wrong with it."""
    damaged = f"{path} is damaged"
    try:
        told = json.loads(text)
    except (ValueError, RecursionError) as error:
        end = "; it ends too early" if not text.rstrip().endswith(b"}") else ""
        raise CheckpointError(f"{damaged}: it is no JSON ({error}){end}") from None
    if not isinstance(told, dict) or told.get("format") != FORMAT:
        raise CheckpointError(f"{path} is no manifest of a {FORMAT}")
    version = told.get("version")
    if isinstance(version, int) and version > VERSION:
        raise CheckpointError(
            f"{path} has version {version} of the format, and this library reads up to {VERSION}; "
            "use a newer distarray"
        )
    match = _DIGEST.fullmatch(text[-_DIGEST_BYTES:])
    body = text[:-_DIGEST_BYTES] + b"}"
    if match is None or hashlib.blake2b(body, digest_size=16).hexdigest().encode() != match[1]:
        raise CheckpointError(f"{damaged}: its digest is not that of its content")
    return told
