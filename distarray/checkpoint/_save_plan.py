"""A state as a tree of names: what is to be written, before anybody writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from distarray.checkpoint._adapters import adapter_of
from distarray.checkpoint._blocks import Block
from distarray.checkpoint._values import Node, encode, is_plain, join_name, unsupported
from distarray.errors import ArgumentError, ArgumentTypeError


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
    """

    __slots__ = ("value",)

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
        raise unsupported(value, name)

    def mapping(self, value: Mapping[Any, Any], name: str) -> Node:
        """Return the node of a mapping."""
        return {
            "dict": [
                [encode_key(key, name), self.node(one, _named(name, key))]
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


def _named(name: str, key: Any) -> str:
    """Return the name of what a container has under a key."""
    found = join_name(name, key)
    if not found:
        raise ArgumentError(
            f"the state has the key {key!r}, which gives no name to what is under it; give it one"
        )
    return found


def encode_key(key: Any, name: str) -> Node:
    """Return a key as JSON.

    Raises
    ------
    ArgumentTypeError
        It is neither text nor a number, nor a tuple of such.
    """
    if isinstance(key, (str, int, float)) or (
        isinstance(key, tuple) and all(isinstance(k, (str, int, float)) for k in key)
    ):
        return encode(key, name)
    raise ArgumentTypeError(
        f"{name or 'the state'} has a key {key!r} of type {type(key).__name__}; keys must be text, "
        "numbers or tuples of these"
    )
