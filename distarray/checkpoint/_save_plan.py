"""The save plan: the tree of a state, its arrays, and the boxes of them that each rank writes.

Every item is written once; what several ranks hold is shared out among them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple
from zlib import crc32

from distarray.checkpoint import _agreement
from distarray.checkpoint._adapters import adapter_of
from distarray.checkpoint._agreement import digest
from distarray.checkpoint.storage._blocks import Block, split_box, tiles
from distarray.checkpoint.storage._chunks import checksums, iterate_pieces
from distarray.checkpoint.storage._dtypes import Spec, describe, dtype_of_spec, has_filling
from distarray.checkpoint.storage._manifest import BLOCK_BYTES
from distarray.checkpoint.storage._values import (
    Node,
    encode,
    is_plain,
    join_name,
    unsupported_error,
)
from distarray.comm import Communicator
from distarray.core import digest as digest_of_items
from distarray.errors import ArgumentError, ArgumentTypeError, LayoutError, MismatchError
from distarray.layout import box as boxes
from distarray.typing import Box, Shape


class PerRank:
    """A value that differs between ranks, and is saved for each of them.

    Parameters
    ----------
    value
        Of plain values and small NumPy arrays. They go into the manifest.

    Notes
    -----
    It is loaded on as many ranks as it was saved on, each of which gets its own; another number
    raises. ``PerRank(None)``, or None, asks for it in a template. Loading without a template on
    another number of ranks returns a `PerRank` of the list of all values.

    Examples
    --------
    >>> import distarray as da
    >>> da.checkpoint.save("ckpt", {"rank": da.checkpoint.PerRank(7)})
    >>> da.checkpoint.load("ckpt", {"rank": da.checkpoint.PerRank(None)})["rank"]
    7
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"PerRank({self.value!r})"


class SavePlan:
    """Collects the arrays of a state while its tree is made.

    Attributes
    ----------
    state
        All of it; adapters look there for what belongs together.
    blocks
        By name: what this rank holds of each array.
    own
        Values of this rank alone, in the order in which they were met.
    later
        To be called when all ranks are known to save the same: exchanges that fill pieces.
    """

    def __init__(self, state: Any) -> None:
        self.state = state
        self.blocks: dict[str, Block] = {}
        self.own: list[Node] = []
        self.later: list[Callable[[], None]] = []
        self._names: dict[int, tuple[Any, str]] = {}
        self._taken: set[str] = set()

    def node(self, value: Any, name: str) -> Node:
        """Return the node of a value and of all that is in it."""
        adapter = adapter_of(value)
        if adapter is not None:
            return adapter.save(value, self, name)
        if isinstance(value, PerRank):
            self._take(name)
            self.own.append(encode(value.value, name))
            return {"per_rank": len(self.own) - 1}
        if is_plain(value):
            self._take(name)
            return encode(value, name)
        if isinstance(value, Mapping):
            return self.mapping(value, name)
        if isinstance(value, (list, tuple)):
            kind = "tuple" if isinstance(value, tuple) else "list"
            return {kind: [self.node(item, join_name(name, i)) for i, item in enumerate(value)]}
        raise unsupported_error(value, name)

    def mapping(self, value: Mapping[Any, Any], name: str) -> Node:
        """Return the node of a mapping."""
        return {
            "dict": [
                [encode_key(key, name), self.node(one, _name_child(name, key))]
                for key, one in value.items()
            ]
        }

    def array(self, source: Any, block: Block, name: str, kind: str) -> Node:
        """Return the node of an array; one that was met before has its first name in the file.

        Parameters
        ----------
        source
            The object that it is, which later ones are compared with.
        kind
            What it shall become where no template says so.
        """
        self._take(name)
        known = self._names.get(id(source))
        if known is None:
            known = self._names[id(source)] = source, name
            self.blocks[name] = block
        return {"array": known[1], "kind": kind}

    def _take(self, name: str) -> None:
        if name in self._taken:
            raise ArgumentError(
                f"the state has two values that are both called {name!r}, keys being joined by "
                "points; rename one of them"
            )
        self._taken.add(name)


def _name_child(name: str, key: Any) -> str:
    """Return the name of what a container has under a key."""
    found = join_name(name, key)
    if not found:
        raise ArgumentError(
            f"the state has the key {key!r}, which gives no name to what is under it; give it one"
        )
    return found


def encode_key(key: Any, name: str) -> Node:
    """Return a key, that is text, a number or a tuple of these, as JSON."""
    if isinstance(key, (str, int, float)) or (
        isinstance(key, tuple) and all(isinstance(k, (str, int, float)) for k in key)
    ):
        return encode(key, name)
    raise ArgumentTypeError(
        f"{name or 'the state'} has a key {key!r} of type {type(key).__name__}; keys must be text, "
        "numbers or tuples of these"
    )


class HeldArray(NamedTuple):
    """What a rank holds of an array."""

    spec: Spec
    shape: Shape
    boxes: tuple[Box, ...]
    checksum: int | None
    """Of an array of which each rank passes all, to compare."""
    layout: str = ""
    """How it is placed, for people who read a manifest."""
    is_outside: bool = False
    """Whether this rank has no part in the array, and need not know what it is."""


class WritePlan(NamedTuple):
    """Which arrays there are, and which boxes of each a rank writes."""

    arrays: dict[str, HeldArray]
    mine: dict[str, list[Box]]


def plan_writes(plan: SavePlan, check: bool, comm: Communicator) -> WritePlan:
    """Return who writes what of the arrays of a state, which all ranks have alike (collective)."""

    def describe_all() -> tuple[dict[str, HeldArray], tuple[bytes, bytes]]:
        held = {name: _describe_held(one, comm, check) for name, one in plan.blocks.items()}
        unsummed = [(name, one._replace(checksum=None)) for name, one in held.items()]
        return held, (digest(unsummed), digest([one.checksum for one in held.values()]))

    held, everyone = _agreement.call_and_gather(comm, describe_all)
    digests, sums = zip(*everyone, strict=True)
    key = digest(digests)
    known = _plans.setdefault(comm, {})
    if key not in known or len(set(sums)) > 1:
        known.clear()
        known[key] = assign_writers(
            _agreement.call_on_all(comm, lambda: held), comm.rank, comm.world_ranks
        )
    return known[key]


_plans: weakref.WeakKeyDictionary[Communicator, dict[bytes, WritePlan]] = (
    weakref.WeakKeyDictionary()
)
"""Who wrote what in the last save of a communicator: the next one is mostly alike."""


def _describe_held(block: Block, comm: Communicator, check: bool) -> HeldArray:
    checksum = None
    if block.is_same and not check:
        if comm.rank:
            return HeldArray(block.spec, block.shape, (), None, is_outside=True)
    elif block.is_same and comm.size > 1:
        checksum = 0  # one pass over what every rank has
        for piece in block.pieces:
            values = piece.part(piece.box)
            if has_filling(values.dtype):
                checksum = crc32(digest_of_items(values).encode(), checksum)
                continue
            for data in iterate_pieces(values):
                checksum = crc32(checksums(data, BLOCK_BYTES).encode(), checksum)
    held = tuple(piece.box for piece in block.pieces)
    layout = "" if comm.rank or block.layout is None else str(block.layout)
    return HeldArray(block.spec, block.shape, held, checksum, layout, block.is_outside)


def assign_writers(
    everyone: Sequence[Mapping[str, HeldArray]], rank: int, world_ranks: Sequence[int]
) -> WritePlan:
    """Return who writes what, the same on every rank but for what is its own.

    Parameters
    ----------
    everyone
        What each rank holds of the same arrays.
    rank
        This rank.
    world_ranks
        What messages call each of them.
    """
    found: dict[str, list[Box]] = {}
    arrays: dict[str, HeldArray] = {}
    load = [0] * len(everyone)
    known: dict[Any, list[tuple[Box, list[int], int]]] = {}  # most arrays of a model are alike
    for name in everyone[0]:
        held = {r: told[name] for r, told in enumerate(everyone) if not told[name].is_outside}
        if not held:
            raise LayoutError(
                f"{name} is on a mesh that has none of the ranks that save; pass comm= with them"
            )
        first = arrays[name] = next(iter(held.values()))
        for other, one in held.items():
            if one[:2] != first[:2] or one.checksum != first.checksum:
                reference = next(iter(held))
                raise _mismatch(name, first, one, world_ranks[reference], world_ranks[other])
        alike = first.shape, tuple([(other, one.boxes) for other, one in held.items()])
        if alike not in known:
            known[alike] = _find_holders(name, first.shape, held)
        itemsize = dtype_of_spec(first.spec).itemsize
        mine: list[Box] = []
        for box, ranks, volume in known[alike]:
            nbytes = volume * itemsize
            pieces, writers = [box], ranks
            if len(ranks) > 1:
                pieces = split_box(box, max(1, min(len(ranks), nbytes // BLOCK_BYTES)))
                writers = sorted(ranks, key=load.__getitem__)
            for piece, writer in zip(pieces, writers, strict=False):
                load[writer] += nbytes // len(pieces) + 1
                if writer == rank:
                    mine.append(piece)
        found[name] = mine
    return WritePlan(arrays, found)


def _find_holders(
    name: str, shape: Shape, held: Mapping[int, HeldArray]
) -> list[tuple[Box, list[int], int]]:
    """Return the boxes of an array, the ranks that hold each, and how many items it has."""
    holders: dict[Box, list[int]] = {}
    for rank, one in held.items():
        for box in one.boxes:
            holders.setdefault(box, []).append(rank)
    if prod(shape) and not tiles(shape, list(holders)):
        raise LayoutError(
            f"the blocks of {name} that the ranks hold do not make up an array of shape {shape}: "
            f"{str(list(holders))[:200]}; some belong to another layout, or to ranks that do not "
            "take part (comm=)"
        )
    return [(box, ranks, boxes.volume(box)) for box, ranks in holders.items()]


def _mismatch(
    name: str, first: HeldArray, one: HeldArray, reference: int, rank: int
) -> MismatchError:
    remedy = "save the same everywhere"
    if first.checksum is not None or one.checksum is not None:
        remedy = (
            "if it is a copy of a sharded parameter, say so by dt.place_like(copy, parameter); of "
            "a module pass itself, not its state_dict(); else make it the same everywhere, "
            "distribute it, or wrap it, as a NumPy array, in da.checkpoint.PerRank"
        )
    if one[:2] != first[:2]:
        return MismatchError(
            f"{name} has dtype {describe(first.spec)} and shape {first.shape} on rank {reference}, "
            f"and {describe(one.spec)} and {one.shape} on rank {rank}; {remedy}"
        )
    return MismatchError(
        f"{name} is a plain array or tensor, of which every rank passes all, but ranks "
        f"{reference} and {rank} have different values; {remedy}. check=False takes that of the "
        "first rank"
    )
