"""Arguments that every rank should pass alike: compared between ranks with ``DISTARRAY_CHECK=1``.

Arguments of public functions, methods and operators, and blocks of `Replicate`, are believed to be
the same everywhere, because to find out takes a pass over the values and a message. With the check
on, the public calls are wrapped when the library is imported: the outermost of them exchanges what
it was given first, arrays by digests of their bits, distributed ones by their layouts. Where it is
off it costs nothing.

With the check on a call of all ranks alike gives the result, or raises the error, that it does
without it. What is said of a value never fails, and depends neither on addresses nor on the order
of sets and dictionaries.
"""

from __future__ import annotations

import functools
import inspect
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any, Final, TypeVar

import numpy as np

from distarray.comm import (
    DeviceMesh,
    _backend,
    all_gather_checked,
    by_answer,
    default_mesh,
    is_forked,
    pause_logs,
    setting,
)
from distarray.core._arguments import describe
from distarray.core._base import BaseArray
from distarray.errors import ArgumentError, MismatchError
from distarray.layout import Layout, Replicate
from distarray.typing import Buffer

Block = TypeVar("Block")
Said = TypeVar("Said")

_VARIABLE: Final = "DISTARRAY_CHECK"


def _read_setting() -> bool:
    told = setting(_VARIABLE, "0")
    if told not in ("0", "1"):
        raise ArgumentError(
            f"{_VARIABLE}={told!r} is not known; set 1 to compare between the ranks what they "
            "should have alike, or 0, or unset it"
        )
    return told == "1"


checked = _read_setting()
"""Whether values that ranks should have alike are compared."""


class _Calls(threading.local):
    """Whether this thread is in a call whose arguments have been compared."""

    open = False


_calls = _Calls()
_HOMES: Final = r"distarray(\.(array|fft|linalg|ops)\..*)?"
"""Modules of public functions of arrays."""
_METADATA: Final = (
    "broadcast_shapes",
    "can_cast",
    "common_type",
    "iscomplexobj",
    "isrealobj",
    "ndim",
    "result_type",
)
_MEMORY: Final = ("may_share_memory", "shares_memory")
_PRINTING: Final = ("__format__", "describe", "local_rows", "print0", "visualize")
_OWN: Final = frozenset(
    (
        *(
            "__dir__",
            "__init__",
            "__deepcopy__",
            "__array_namespace__",
            "distribute_array",
            "shape",
            "size",
            "to_local",
            "__dlpack_device__",
            "__len__",
            "__reduce__",
        ),
        *(*_METADATA, *_MEMORY, *_PRINTING),
    )
)
"""Public calls that a rank may make alone, or with a value of its own."""
_PASS_THE_SAME: Final = (
    "pass the same everywhere; distribute_array(value, mesh, placements, src=0) gives all what one "
    "rank has"
)


def digest(block: Buffer) -> str:
    """Return what tells the bits of a block from those of all others, in C order."""
    import hashlib

    array = _backend.to_host(block)
    found = hashlib.blake2b(digest_size=16)
    if array.dtype.names is not None:  # what lies between the fields means nothing
        for name in array.dtype.names:
            found.update(digest(array[name]).encode())
    elif array.dtype.hasobject:
        for item in array.flat:
            found.update(summarize(item).encode(errors="backslashreplace"))
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


def summarize(value: Any) -> str:
    """Return what a message says of a value, equal for values of the same bits."""
    name = type(value).__name__
    try:
        if isinstance(value, BaseArray):
            return f"{value.dtype} {value.layout}"
        if isinstance(value, (list, tuple)):
            return f"{name} [{', '.join(map(summarize, value))}]"
        if isinstance(value, slice):
            return f"slice [{', '.join(map(summarize, (value.start, value.stop, value.step)))}]"
        if isinstance(value, Set):
            return f"{name} {{{', '.join(sorted(map(summarize, value)))}}}"
        if isinstance(value, Mapping):
            items = sorted(f"{summarize(key)}: {summarize(one)}" for key, one in value.items())
            return f"{name} {{{', '.join(items)}}}"
        if not _backend.is_buffer(value) and not isinstance(value, np.generic):
            return describe(value)
    except Exception:  # of a class of the user's own, or lists that hold themselves
        return f"{name} without a repr"
    array = np.asarray(value) if isinstance(value, np.generic) else value
    is_one = array.size == 1 and not array.dtype.hasobject  # these may show where they lie
    item = f" {_backend.to_host(array).reshape(-1)[0]}" if is_one else ""
    return f"{array.dtype}{item} of shape {tuple(array.shape)} with digest {digest(array)[:16]}"


def exchange(mesh: Any, call: str, say: Callable[[], Said]) -> list[Said]:
    """Return what `say()` returns on every process of the mesh; see `all_gather_checked`.

    Logs keep what a program communicates, with the check on or off.
    """
    with pause_logs():
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
    everyone = exchange(mesh, call, lambda: {name: summarize(values[name]) for name in values})
    for name in dict.fromkeys(name for told in everyone for name in told):
        refuse(mesh, call, name, [told.get(name, "left out") for told in everyone])


def compare_arguments(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a public function that compares its arguments before it begins.

    Ranks that call different functions, as after a branch that some have taken, find out by the
    exchange itself. Distributed arrays are not compared: ranks do so when they meet. Nor are the
    arguments of calls inside of the public one.

    Parameters
    ----------
    name : str
        By which messages call it.
    """
    signature = inspect.signature(function)
    kinds = {parameter.kind: key for key, parameter in signature.parameters.items()}
    options = kinds.get(inspect.Parameter.VAR_KEYWORD, "")
    others = kinds.get(inspect.Parameter.VAR_POSITIONAL, "")

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _calls.open or is_forked():
            return function(*args, **kwargs)
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:
            return function(*args, **kwargs)  # says itself what does not fit
        of_numpy = name.startswith("__array_") and len(args) > 3
        named = getattr(args[1], "__name__", name) if of_numpy else name
        if named in _OWN:
            return function(*args, **kwargs)
        given |= given.pop(options, {})
        given |= {f"{others}[{i}]": value for i, value in enumerate(given.pop(others, ()))}
        values = {key: value for key, value in given.items() if not isinstance(value, BaseArray)}
        try:
            first: Any = next(_arrays(given.values()), None)
        except RecursionError:  # of a list that holds itself
            first = None
        mesh = None
        if first is not None:
            mesh = first.layout.mesh
        elif "mesh" in signature.parameters:
            mesh = given.get("mesh")
            mesh = mesh if isinstance(mesh, DeviceMesh) else default_mesh()
        _calls.open = True
        try:
            if mesh is not None:
                compare(mesh, named.strip("_"), values)
            return function(*args, **kwargs)
        finally:
            _calls.open = False

    return call


def _arrays(values: Any) -> Iterator[BaseArray]:
    """Yield the distributed arrays among arguments."""
    for value in values:
        if isinstance(value, BaseArray):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _arrays(value)
        elif isinstance(value, dict):
            yield from _arrays(value.values())


def compare_public_calls(namespace: dict[str, Any], *classes: type) -> None:
    """Let functions of a namespace and methods of classes compare their arguments."""
    known: dict[int, Callable[..., Any]] = {}  # a function of two names stays one function
    for name, function in list(namespace.items()):
        home = getattr(function, "__module__", None) or ""
        if re.fullmatch(_HOMES, home) and not isinstance(function, type) and name not in _OWN:
            if id(function) not in known:
                known[id(function)] = compare_arguments(function, function.__name__)
            namespace[name] = known[id(function)]
    for cls in classes:
        for base in cls.__mro__[:-1]:
            for name, method in list(vars(base).items()):
                is_public = name.endswith("__") or not name.startswith("_")
                if inspect.isfunction(method) and is_public and name not in _OWN:
                    setattr(base, name, compare_arguments(method, name))


def refuse(
    mesh: Any,
    call: str,
    name: str,
    texts: Sequence[str],
    layout: Any = None,
    remedy: str = _PASS_THE_SAME,
) -> None:
    """Raise where ranks that should have the same have said different things of it.

    Parameters
    ----------
    texts : sequence of str
        What the ranks say, by their position in the mesh.
    layout : Layout, optional
        Where they speak of their blocks: only those that hold the same one are compared.
    remedy : str
        What to do instead.

    Raises
    ------
    MismatchError
        See above.
    """
    told = {}
    for position, rank in enumerate(mesh.communicator().world_ranks):
        block = () if layout is None else _block(layout, mesh, position)
        told[rank] = block, texts[position]
    wrong = group_by_answer(told)
    if wrong:
        raise MismatchError(
            f"{call} on {mesh}: {name} differs between ranks that should have the same: "
            f"{'; '.join(wrong.values())}; {remedy}"
        )


def group_by_answer(told: Mapping[int, tuple[Block, str]]) -> dict[Block, str]:
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
