"""The manifest: what is in a checkpoint and where, a JSON file with a digest of itself.

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
from typing import Any, NoReturn

from distarray.checkpoint._blocks import tiles
from distarray.checkpoint._directory import MANIFEST
from distarray.checkpoint._dtypes import Spec, dtype_of_spec
from distarray.checkpoint._values import Node, decode
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
        return dtype_of_spec(self.spec)

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
                check_row(row, self._path, self.name, len(self.shape), self._files)
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
        told = _check_manifest(text, self.path)
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


def bytes_of(chunk: Chunk, itemsize: int) -> int:
    """Return how many bytes a chunk has."""
    return boxes.volume(chunk.box) * itemsize


def block_items(block_bytes: int, itemsize: int) -> int:
    """Return how many items a block with a checksum has."""
    return max(1, block_bytes // max(itemsize, 1))


def _check_manifest(text: bytes, path: str) -> dict[str, Any]:
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


_MOST = 2**63 - 1


def check_structure(told: dict[str, Any], path: str) -> None:
    """Raise unless a manifest has what it must have, of the types that it must have.

    The rows of chunks are checked when they are used (`checked_row`).

    Raises
    ------
    CheckpointError
        Naming the file, what is wrong in it, and what must stand there.
    """
    checker = _Checker(path)
    for key in ("id", "saved"):
        checker.want(isinstance(told.get(key), str), f"{key!r}", told.get(key), "text")
    for key in ("world_size", "block_bytes"):
        checker.want(_is_count(told.get(key), 1), f"{key!r}", told.get(key), "an integer above 0")
    checker.files(told.get("files"))
    arrays = told.get("arrays")
    if not isinstance(arrays, dict):
        checker.fail("'arrays'", arrays, "an object")
    for name, one in arrays.items():
        checker.array(name, one, sum(size for _, size in told["files"]))
    if "tree" not in told:
        checker.fail("'tree'", None, "there")
    try:
        checker.node(told["tree"], "the tree", arrays)
    except RecursionError:
        checker.fail("the tree", told["tree"], "less deep")


def check_row(row: Any, path: str, name: str, ndim: int, files: list[tuple[str, int]]) -> Any:
    """Return the row of a chunk; raise unless it has what it must have.

    Raises
    ------
    CheckpointError
        As above.
    """
    checker = _Checker(path)
    where = f"a chunk of {name!r}"
    if not isinstance(row, (list, tuple)) or len(row) != 5:
        checker.fail(where, row, "a list of five")
    number, offset, starts, stops, sums = row
    if not _is_count(number) or number >= len(files):
        checker.fail(f"the file of {where}", number, f"one of {len(files)}")
    if not _is_count(offset) or offset > files[number][1]:
        checker.fail(f"the offset of {where}", offset, f"in a file of {files[number][1]} bytes")
    for corner in (starts, stops):
        if not _is_shape(corner) or len(corner) != ndim:
            checker.fail(f"a corner of {where}", corner, f"{ndim} integers, 0 or more")
    if any(a >= b for a, b in zip(starts, stops, strict=True)):
        checker.fail(f"the box of {where}", [starts, stops], "not empty")
    if not isinstance(sums, str):
        checker.fail(f"the checksums of {where}", sums, "text")
    return row


class _Checker:
    def __init__(self, path: str) -> None:
        self._path = path

    def fail(self, where: str, value: Any, wanted: str) -> NoReturn:
        raise CheckpointError(
            f"{self._path} is damaged: {where} is {repr(value)[:80]}, and must be {wanted}"
        )

    def want(self, is_so: bool, where: str, value: Any, wanted: str) -> None:
        if not is_so:
            self.fail(where, value, wanted)

    def files(self, told: Any) -> None:
        self.want(isinstance(told, list), "'files'", told, "a list")
        for one in told:
            fits = isinstance(one, list) and len(one) == 2
            fits = fits and isinstance(one[0], str) and _is_count(one[1])
            self.want(fits, "one of 'files'", one, "a name and a size")
            if os.path.basename(one[0]) != one[0]:
                raise CheckpointError(f"{self._path} names a file {one[0]!r} outside itself")

    def array(self, name: str, told: Any, most: int) -> None:
        where = f"array {name!r}"
        if not isinstance(told, dict):
            self.fail(where, told, "an object")
        try:
            itemsize = dtype_of_spec(told.get("dtype")).itemsize
        except CheckpointError as error:
            raise CheckpointError(f"{self._path}: {where}: {error}") from None
        shape: Any = told.get("shape")
        self.want(_is_shape(shape), f"the shape of {where}", shape, "integers, 0 or more")
        fits = prod(shape) * itemsize <= most and prod(n or 1 for n in shape) * itemsize <= _MOST
        self.want(fits, f"the shape of {where}", shape, f"of no more than the {most} bytes stored")
        layout = told.get("layout", "")
        self.want(isinstance(layout, str), f"the layout of {where}", layout, "text")
        chunks = told.get("chunks")
        self.want(isinstance(chunks, list), f"'chunks' of {where}", chunks, "a list")

    def node(self, node: Node, where: str, arrays: dict[str, Any]) -> None:
        if not isinstance(node, dict):
            self.want(not isinstance(node, list), where, node, "a value")
            return
        kind = next(iter(node), None)
        told: Any = node.get(kind) if kind is not None else None
        if kind == "array":
            named = isinstance(told, str) and told in arrays
            self.want(named, f"an array in {where}", told, "one of 'arrays'")
            what = node.get("kind")
            self.want(what is None or isinstance(what, str), f"a kind in {where}", what, "text")
        elif kind == "object":
            self.want("of" in node, f"an object in {where}", node, "there, under 'of'")
            self.node(node["of"], where, arrays)
        elif kind in ("dict", "list", "tuple", "per_rank"):
            self.want(isinstance(told, list), f"a {kind} in {where}", told, "a list")
            for one in told:
                self.child(kind, one, where, arrays)
        else:
            self.plain(node, where)

    def child(self, kind: str, one: Any, where: str, arrays: dict[str, Any]) -> None:
        if kind == "dict":
            pair = isinstance(one, list) and len(one) == 2
            self.want(pair, f"a pair in {where}", one, "a key and a value")
            key, value = self.plain(one[0], f"a key in {where}"), one[1]
            fits = key is not None and not isinstance(key, (dict, list))
            self.want(fits, f"a key in {where}", key, "text, a number or a tuple")
            self.node(value, f"the value of {key!r} in the tree", arrays)
        elif kind == "per_rank":
            self.plain(one, where)
        else:
            self.node(one, where, arrays)

    def plain(self, node: Node, where: str) -> Any:
        try:
            return decode(node)
        except Exception as error:  # whatever decoding runs into
            raise CheckpointError(
                f"{self._path} is damaged: {where} is {repr(node)[:80]}, which is no value: {error}"
            ) from None


def _is_count(value: object, least: int = 0) -> bool:
    return type(value) is int and least <= value <= _MOST


def _is_shape(value: object) -> bool:
    return isinstance(value, (list, tuple)) and all(map(_is_count, value))
