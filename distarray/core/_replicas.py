"""Values that every rank should have alike: compared between the ranks with ``DISTARRAY_CHECK=1``.

Plain operands, values that arrays are made of, and blocks of `Replicate` are believed to be the
same everywhere, because to find out takes a pass over the values and a message. With the check on,
every operation that takes such values exchanges digests of them first, by their bits. It is read
once, when the library is imported, so that it costs nothing where it is off.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import numpy as np

from distarray.comm import _backend, all_gather_checked, by_answer, setting, unrecorded
from distarray.core._base import BaseArray
from distarray.errors import ArgumentError, MismatchError
from distarray.layout import Layout, Replicate
from distarray.typing import Buffer

Block = TypeVar("Block")
Said = TypeVar("Said")

_VARIABLE: Final = "DISTARRAY_CHECK"


def _asked_for() -> bool:
    told = setting(_VARIABLE, "0")
    if told not in ("0", "1"):
        raise ArgumentError(
            f"{_VARIABLE}={told!r} is not known; set 1 to compare between the ranks what they "
            "should have alike, or 0, or unset it"
        )
    return told == "1"


checked = _asked_for()
"""Whether values that ranks should have alike are compared."""

numbers = frozenset() if checked else frozenset((bool, int, float, complex))
"""Types of plain operands that may take a short way, which compares nothing."""


def digest(block: Buffer) -> str:
    """Return what tells the bits of a block from those of all others, in C order."""
    array = _backend.to_host(block)
    found = hashlib.blake2b(digest_size=16)
    if array.dtype.names is not None:  # what lies between the fields means nothing
        for name in array.dtype.names:
            found.update(digest(array[name]).encode())
    elif array.dtype.hasobject:
        for item in array.flat:
            try:
                found.update(pickle.dumps(item))
            except (AttributeError, TypeError, pickle.PicklingError):  # of a local class, say
                found.update(repr(type(item)).encode())
    elif array.dtype.char in "gG":  # nor does what fills up the items of long double
        with np.errstate(all="ignore"):
            high = array.astype("d" if array.dtype.char == "g" else "D")
            found.update(_bits(high))
            found.update(_bits((array - high).astype(high.dtype)))
    elif array.nbytes:
        found.update(_bits(array))
    return found.hexdigest()


def _bits(array: np.ndarray) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def said(value: Any) -> str:
    """Return what a message says of a value, equal for values of the same bits."""
    if not _backend.is_buffer(value) and not isinstance(value, np.generic):
        return f"{type(value).__name__} {value!r}"
    array = np.asarray(value) if isinstance(value, np.generic) else value
    is_one = array.size == 1 and not array.dtype.hasobject  # these may show where they lie
    shown = f" {_backend.to_host(array).reshape(-1)[0]}" if is_one else ""
    return f"{array.dtype}{shown} of shape {tuple(array.shape)} with digest {digest(array)[:16]}"


def exchanged(mesh: Any, call: str, say: Callable[[], Said]) -> list[Said]:
    """Return what `say()` returns on every process of the mesh; see `gathered`.

    Logs keep what a program communicates, with the check on or off.
    """
    with unrecorded():
        return all_gather_checked(mesh, call, say)


def compare(mesh: Any, call: str, values: Mapping[str, Any]) -> None:
    """Raise where ranks of a mesh have different values (collective over it).

    Parameters
    ----------
    mesh : DeviceMesh
        Other processes compare nothing.
    call : str
        The public call, for messages.
    values : mapping
        What each rank passes, by what messages call it.

    Raises
    ------
    MismatchError
        On every rank: which values, and which ranks of the world have which.
    """
    if mesh.coordinate is None or mesh.size == 1:
        return
    everyone = exchanged(mesh, call, lambda: [said(value) for value in values.values()])
    for name, texts in zip(values, zip(*everyone, strict=True), strict=True):
        refuse(mesh, call, name, texts)


def compare_operands(call: str, operands: Sequence[Any], mesh: Any = None) -> None:
    """Raise where ranks have different plain operands (collective over a mesh).

    Parameters
    ----------
    call : str
        The public call, for messages.
    operands : sequence
        Distributed arrays among them need not be compared.
    mesh : DeviceMesh, optional
        Default: that of the first distributed one.
    """
    if mesh is None:
        mesh = next((x._layout.mesh for x in operands if isinstance(x, BaseArray)), None)
    values = {
        f"operand {i}": x
        for i, x in enumerate(operands, 1)
        if not isinstance(x, BaseArray) and x is not None
    }
    if mesh is not None and values:
        compare(mesh, call, values)


def refuse(mesh: Any, call: str, name: str, texts: Sequence[str], layout: Any = None) -> None:
    """Raise where ranks that should have the same have said different things of it.

    Parameters
    ----------
    texts : sequence of str
        What the ranks say, by their position in the mesh.
    layout : Layout, optional
        Where they speak of their blocks: only those that hold the same one are compared.

    Raises
    ------
    MismatchError
        See above.
    """
    told = {}
    for position, rank in enumerate(mesh.communicator().world_ranks):
        block = () if layout is None else _block(layout, mesh, position)
        told[rank] = block, texts[position]
    wrong = apart(told)
    if wrong:
        raise MismatchError(
            f"{call} on {mesh}: {name} differs between ranks that should have the same: "
            f"{'; '.join(wrong.values())}. Pass the same everywhere; "
            "distribute_array(value, mesh, placements, src=0) gives all what one rank has"
        )


def apart(told: Mapping[int, tuple[Block, str]]) -> dict[Block, str]:
    """Return, of blocks of which ranks say different things, which ranks say what.

    Parameters
    ----------
    told : mapping
        By rank of the world, which block it holds, and what it says of it.
    """
    groups: dict[Block, dict[int, str]] = {}
    for rank, (block, text) in told.items():
        groups.setdefault(block, {})[rank] = text
    return {
        block: by_answer(list(texts.values()), list(texts))
        for block, texts in groups.items()
        if len(set(texts.values())) > 1
    }


def _block(layout: Layout, mesh: Any, position: int) -> tuple[int, ...]:
    """Return which block a rank holds: its coordinate on the mesh axes that make a difference."""
    coordinate = mesh.coordinate_of(mesh.flat_ranks[position])
    return tuple(
        i
        for i, placement in zip(coordinate, layout.placements, strict=True)
        if type(placement) is not Replicate
    )
