"""Agreement of ranks: what they compare before values move, and errors that all raise alike.

A rank that raises by itself leaves the others waiting for it. So ranks that are about to do
different things find that out from a `token`, and raise one `MismatchError`; and what nothing else
would compare (the blocks of `from_local`, the value of one rank in `distribute_array`) they tell
each other by `all_gather_checked`, together with what is wrong with it. Messages name the line of
the program where a rank is, or where its error was raised.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, NoReturn, TypeVar

from distarray.errors import CommunicationError, DistArrayError, MismatchError

T = TypeVar("T")

_SUCH_CALLS = (
    "; of a distributed array x, print(x), float(x), np.asarray(x) and x.full_array() are such "
    "calls"
)
_TENSORS = ("tensor", "torch.")  # in what is done with tensors, which have no such calls

_SHOWN = 8  # names, ranks or answers that a message lists
_LIBRARIES = ("distarray", "numpy", "torch")  # whose lines say nothing about the program


def calls_hint(*doing: object) -> str:
    """Return what messages about calls that all ranks must make end with.

    These do not look like such calls. Nothing where all that is done is done with tensors.
    """
    texts = [str(one) for one in doing]
    of_tensors = texts and all(any(word in text for word in _TENSORS) for text in texts)
    return "" if of_tensors else _SUCH_CALLS


def token(*doing: object) -> int:
    """Return a number below 2**62 that names what a rank is doing.

    The objects have the same ``repr`` in every process.
    """
    import hashlib

    digest = hashlib.blake2b(repr(doing).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 2


class Purpose(NamedTuple):
    """What an exchange is for, where its layouts do not tell it: ranks must agree on that, too."""

    token: int
    text: object
    """What it is, once it is made a string."""

    @classmethod
    def of(cls, text: str) -> Purpose:
        """Return the purpose that a text names."""
        return cls(token("purpose", text), text)


def mismatch_error(doing: Sequence[Any], ranks: Iterable[int]) -> MismatchError:
    """Return the error to raise, alike on every rank."""
    return MismatchError(
        f"ranks are about to do different things together: {by_answer(doing, ranks)}. Every rank "
        "must make the same calls, on the same mesh, with the same layouts, shapes and dtypes"
        f"{calls_hint(*doing)}"
    )


def by_answer(said: Sequence[Any], ranks: Iterable[int]) -> str:
    """Return each distinct answer with the ranks of the MPI world that gave it, for a message."""
    groups: dict[str, list[int]] = {}
    for rank, one in zip(ranks, said, strict=True):
        groups.setdefault(str(one), []).append(rank)
    return list_first([f"{name_ranks(found)}: {text}" for text, found in groups.items()], "; ")


def name_ranks(found: Sequence[int]) -> str:
    """Return some ranks, for a message."""
    if len(found) == 1:
        return f"rank {found[0]}"
    return f"ranks {list_first(found)}"


def list_first(items: Sequence[object], separator: str = ", ") -> str:
    """Return the first of some items, and how many more there are, for a message."""
    more = [f"and {len(items) - _SHOWN} more"] if len(items) > _SHOWN else []
    return separator.join([*map(str, items[:_SHOWN]), *more])


class Failure(NamedTuple):
    """What went wrong on a rank, in a form that travels."""

    kind: type[DistArrayError]
    message: str


def attempt(call: Callable[[], T], name: str) -> tuple[T | Failure, Exception | None]:
    """Return what a call returns, or what other ranks are told of its error, and the error."""
    try:
        return call(), None
    except Exception as error:
        return _failure(error, name), error


def _failure(error: Exception, name: object) -> Failure:
    """Return what other ranks are told of an error."""
    if isinstance(error, DistArrayError):
        # Other ranks may lack a class that is derived from ours.
        ours = DistArrayError.__module__
        kind = next(kind for kind in type(error).__mro__ if kind.__module__ == ours)
        return Failure(kind, _text_of(error))
    text = f"{name} failed there{line_of_error(error)}: {type(error).__name__}: {_text_of(error)}"
    return Failure(CommunicationError, text)


def _text_of(error: Exception) -> str:
    """Return what an error says, whose class may be a user's and fail to say it."""
    try:
        return str(error)
    except Exception as other:
        return f"(it cannot be printed, for a {type(other).__name__})"


def raise_alike(
    answers: Sequence[object], own: Exception | None, ranks: Sequence[int], size: int
) -> None:
    """Raise the error of the first rank that failed, if any did: the same on all ranks.

    Where all have failed alike each raises its own; so does a rank whose error is none of ours.
    ``answers`` is what `attempt` returned on some ranks, whose numbers in the MPI world are
    ``ranks``; ``own`` is this rank's error, and ``size`` how many ranks there are.
    """
    failures = {
        rank: answer
        for rank, answer in zip(ranks, answers, strict=True)
        if isinstance(answer, Failure)
    }
    if not failures:
        return
    alike = len(failures) == size and len(set(failures.values())) == 1
    if own is not None and (alike or not isinstance(own, DistArrayError)):
        raise own
    rank, first = next(iter(failures.items()))
    raise first.kind(f"on rank {rank}: {first.message}") from own


def raise_failures(comm: Any, error: Exception | None, name: object) -> NoReturn:
    """Raise the error of the first rank that failed, on all ranks; all know that one has.

    Collective. ``error`` is this rank's, if it has one, and ``name`` what was being done.
    """
    told = comm.all_gather_object(None if error is None else _failure(error, name))
    raise_alike(told, error, comm.world_ranks, comm.size)
    raise AssertionError("no rank has failed")


def all_gather_checked(mesh: Any, call: str, say: Callable[[], T]) -> list[T]:
    """Return what `say()` returns on every process of the mesh, by position in it.

    Collective over the mesh, which holds this process. `say()` checks this rank's arguments and
    describes them by a small object. What it raises on a rank all raise alike, but for errors that
    are not ours: these the other ranks get as a CommunicationError. Ranks that make different calls
    (``call`` names this one), or on different meshes, raise a MismatchError.
    """
    comm = mesh.communicator()
    if comm.size == 1:
        return [say()]
    mine, error = attempt(say, call)
    what = call, mesh.axis_names, mesh.shape
    packed = pickle.dumps((what, mine))
    brought = comm.all_gather_pickled(packed)
    if not isinstance(mine, Failure) and brought.count(packed) == comm.size:
        return [mine] * comm.size
    told = [pickle.loads(one) for one in brought]
    calls, everyone = [other for other, _ in told], [answer for _, answer in told]
    if calls.count(what) < len(calls):
        raise mismatch_error([*map(_call_text, calls)], comm.world_ranks)
    if Failure in [answer.__class__ for answer in everyone]:
        raise_alike(everyone, error, comm.world_ranks, comm.size)
    return everyone


def _call_text(what: tuple[str, Sequence[str], Sequence[int]]) -> str:
    """Return which call this is, and on which mesh, for a message."""
    call, names, sizes = what
    axes = ", ".join(f"{name}={size}" for name, size in zip(names, sizes, strict=True))
    return f"{call} on [{axes}]"


def line_of(frame: FrameType | None) -> str:
    """Return the line of the program that a thread is in, for a message; empty where none is."""
    roots = _roots()
    while frame is not None and frame.f_code.co_filename.startswith(roots):
        frame = frame.f_back
    if frame is None:
        return ""
    # between two lines it has none
    return _describe(frame, frame.f_lineno or frame.f_code.co_firstlineno)


def line_of_error(error: BaseException) -> str:
    """Return the innermost line of the program on the way to an error; empty where none is."""
    roots, found = _roots(), ""
    at = error.__traceback__
    while at is not None:
        if not at.tb_frame.f_code.co_filename.startswith(roots):
            found = _describe(at.tb_frame, at.tb_lineno)
        at = at.tb_next
    return found


def _roots() -> tuple[str, ...]:
    return tuple(
        str(Path(module.__file__).parent) + os.sep
        for name in _LIBRARIES
        if (module := sys.modules.get(name)) is not None and module.__file__
    )


def _describe(frame: FrameType, number: int) -> str:
    import linecache

    path = frame.f_code.co_filename
    if path == threading.__file__:
        return ""
    text = linecache.getline(path, number).strip()
    return f" at {path}, line {number}{f': {text}' if text else ''}"
