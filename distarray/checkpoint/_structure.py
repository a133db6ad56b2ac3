"""Whether a manifest has the structure that it should have: the types of all that is in it."""

from __future__ import annotations

import os
from math import prod
from typing import Any, NoReturn

from distarray.checkpoint._dtypes import parsed
from distarray.checkpoint._values import Node, decoded
from distarray.errors import CheckpointError

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


def checked_row(row: Any, path: str, name: str, ndim: int, files: list[tuple[str, int]]) -> Any:
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
            itemsize = parsed(told.get("dtype")).itemsize
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
            return decoded(node)
        except Exception as error:  # whatever decoding runs into
            raise CheckpointError(
                f"{self._path} is damaged: {where} is {repr(node)[:80]}, which is no value: {error}"
            ) from None


def _is_count(value: object, least: int = 0) -> bool:
    return type(value) is int and least <= value <= _MOST


def _is_shape(value: object) -> bool:
    return isinstance(value, (list, tuple)) and all(map(_is_count, value))
