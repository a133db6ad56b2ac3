"""The manifest of a checkpoint: a JSON file that lists its arrays, with a digest of itself.

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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

from distarray.checkpoint.storage._blocks import tiles
from distarray.checkpoint.storage._directory import MANIFEST
from distarray.checkpoint.storage._dtypes import Spec, dtype_of_spec
from distarray.checkpoint.storage._values import Node, children_of, decode, kind_of
from distarray.errors import CheckpointError
from distarray.typing import Box, Shape

FORMAT = "distarray checkpoint"
VERSION = 1
BLOCK_BYTES = 1 << 20
"""How many bytes have a checksum of their own: what is read at least where any of them is, and for
which a manifest has 8 characters."""

_DIGEST = re.compile(rb', "blake2b": "([0-9a-f]{32})"\}\n')
_DIGEST_BYTES = len(', "blake2b": ""}\n') + 32


class Chunk(NamedTuple):
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
        self._rows: list[Any] = told["chunks"]

    @cached_property
    def dtype(self) -> Any:
        """The NumPy dtype that holds its items."""
        return dtype_of_spec(self.spec)

    @cached_property
    def chunks(self) -> tuple[Chunk, ...]:
        """Where its items are; a CheckpointError where the chunks do not make up the array."""
        with _name_file(self._path):
            found = tuple([self._chunk(row) for row in self._rows])
            held = [chunk.box for chunk in found]
            if prod(self.shape) and not (len(set(held)) == len(held) and tiles(self.shape, held)):
                raise CheckpointError(
                    f"the chunks of {self.name!r}, of shape {self.shape}, do not make up the array"
                )
        return found

    def _chunk(self, row: Any) -> Chunk:
        file, offset, starts, stops, checksums = row
        _want(
            _is_count(file)
            and file < len(self._files)
            and _is_count(offset)
            and offset <= self._files[file][1]
            and _is_shape(starts)
            and _is_shape(stops)
            and len(starts) == len(stops) == len(self.shape)
            and all(start < stop for start, stop in zip(starts, stops, strict=True))
            and isinstance(checksums, str),
            f"a chunk of {self.name!r}",
            row,
            f"one of {len(self._files)} files, where in it, two corners of a box, and checksums",
        )
        return Chunk(file, offset, tuple(zip(starts, stops, strict=True)), checksums)

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
    """

    def __init__(self, directory: str, text: bytes) -> None:
        self.directory = directory
        self.path = os.path.join(directory, MANIFEST)
        told = _parse(text, self.path)
        with _name_file(self.path):
            self.id: str = told["id"]
            self.saved: str = told["saved"]
            self.world_size: int = told["world_size"]
            self.block_bytes: int = told["block_bytes"]
            for key in ("world_size", "block_bytes"):
                is_positive = _is_count(told[key]) and told[key] > 0
                _want(is_positive, repr(key), told[key], "an integer above 0")
            self.files: list[tuple[str, int]] = [(name, size) for name, size in told["files"]]
            for name, size in self.files:
                _want(_is_count(size), f"the size of file {name!r}", size, "an integer, 0 or more")
                _want(os.path.basename(name) == name, "a file", name, "in the same directory")
            stored = sum(size for _, size in self.files)
            for name, one in told["arrays"].items():
                _check_array(name, one, stored)
            self.arrays = {
                name: Entry(name, one, self.path, self.files)
                for name, one in told["arrays"].items()
            }
            self.tree: Any = told["tree"]
            _check_node(self.tree, self.arrays)


def bare_manifest(path: str, files: list[tuple[str, int]], arrays: dict[str, Any]) -> Manifest:
    """Return a manifest of arrays without checksums, in files that others have written."""
    found = object.__new__(Manifest)
    found.directory, found.path = "", path
    found.id, found.saved, found.world_size, found.block_bytes = "", "", 1, BLOCK_BYTES
    found.files = files
    found.arrays = {name: Entry(name, one, path, files) for name, one in arrays.items()}
    found.tree = {"dict": [[name, {"array": name, "kind": "distarray"}] for name in arrays]}
    return found


def compose_manifest(told: dict[str, Any]) -> bytes:
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


def block_items(block_bytes: int, itemsize: int) -> int:
    """Return how many items a block with a checksum has."""
    return max(1, block_bytes // max(itemsize, 1))


def _parse(text: bytes, path: str) -> dict[str, Any]:
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


# --- what a manifest must have, also one whose digest fits ---------------------------------------


@contextmanager
def _name_file(path: str) -> Iterator[None]:
    """Turn whatever the content of a manifest leads to into an error that names its file."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: {error!r}") from None


def _want(is_so: bool, what: str, value: Any, wanted: str) -> None:
    if not is_so:
        raise CheckpointError(f"{what} is {repr(value)[:80]}, and must be {wanted}")


def _check_array(name: str, told: dict[str, Any], stored: int) -> None:
    """Raise unless an array has a dtype, a shape that fits the bytes stored, and chunks."""
    itemsize, shape = dtype_of_spec(told["dtype"]).itemsize, told["shape"]
    _want(_is_shape(shape), f"the shape of {name!r}", shape, "integers, 0 or more")
    fits = (
        prod(shape) * itemsize <= stored
        and prod(n or 1 for n in shape) * itemsize <= _LARGEST_COUNT
    )
    _want(fits, f"the shape of {name!r}", shape, f"of no more than the {stored} bytes stored")
    _want(isinstance(told.get("layout", ""), str), f"the layout of {name!r}", told, "text")
    _want(isinstance(told["chunks"], list), f"'chunks' of {name!r}", told["chunks"], "a list")


def _check_node(node: Node, arrays: Mapping[str, Entry]) -> None:
    """Raise unless a tree has arrays that there are, and values and keys that can be read."""
    kind = kind_of(node)
    if kind == "object":
        _check_node(node["of"], arrays)
    elif kind == "array":
        _want(node[kind] in arrays, "an array of the tree", node[kind], "one of 'arrays'")
        _want(isinstance(node.get("kind", ""), str), "a kind of array", node["kind"], "text")
    elif kind in ("dict", "list", "tuple", "per_rank"):
        _want(isinstance(node[kind], list), f"a {kind} of the tree", node[kind], "a list")
        for key, child in children_of(node) or enumerate(node[kind]):
            hash(key)
            _check_node(child, arrays)
    else:
        decode(node)


_LARGEST_COUNT = 2**63 - 1  # that NumPy counts


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= _LARGEST_COUNT


def _is_shape(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_count, value))
