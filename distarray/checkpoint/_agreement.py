"""Agreement of ranks: what went wrong anywhere, and that all pass the same arguments.

A rank that fails alone would leave the others waiting; here every rank says how it went, and all
raise the same. The waits look now and then whether the others have come: writing may take long, and
a thread in the background must leave the processor to the foreground. They have no way to find out
that others will never come: so every public call `begin`s with a check that all make it, which has.
Waits that last are told of, and ended, like all others (`distarray.comm.failures._watchdog`).
"""

from __future__ import annotations

import os
import pickle
import time
import zlib
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, TypeVar

import numpy as np

from distarray.comm import Communicator, attempt, by_answer, raise_alike, waiting
from distarray.errors import (
    ArgumentError,
    ArgumentTypeError,
    CheckpointError,
    DistArrayError,
    MismatchError,
)

S = TypeVar("S")
T = TypeVar("T")
_LONGEST_PAUSE = 0.02
"""Seconds between looks: little beside any write, and no load for the processor."""

_WAIT = "da.checkpoint: other ranks read, write or compare"


def begin(comm: Communicator, call: str, options: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the options of a public call, once every rank has made it (collective).

    From here on all ranks do the same, in the background as well, whatever fails on one of them.

    Parameters
    ----------
    call
        Its name.
    options
        Returns its options, which must be the same on every rank; raises for wrong ones.

    Raises
    ------
    MismatchError
        Other ranks do something else on this communicator, or pass other options.
    CommunicationError
        Others have come to the end of the program.
    """
    comm.agree(zlib.crc32(call.encode()), call)
    everyone = call_on_all(comm, options)
    first = everyone[0]
    differing = [key for key in first if any(one[key] != first[key] for one in everyone)]
    shown = [", ".join(f"{key}={one[key]!r}" for key in differing) for one in everyone]
    compare("paths or options", shown, everyone, comm)
    return everyone[comm.rank]


def call_on_all(comm: Communicator, call: Callable[[], T]) -> list[T]:
    """Return what ``call()`` returns on every rank; all raise if it fails on any (collective)."""

    def pickle_result() -> bytes:
        try:
            return pickle.dumps(call())
        except DistArrayError:
            raise
        except Exception as error:
            raise CheckpointError(f"{type(error).__name__}: {error}") from error

    mine, error = attempt(pickle_result, "a checkpoint")
    told = [pickle.loads(item) for item in _gather(comm, pickle.dumps(mine))]
    raise_alike(told, error, comm.world_ranks, comm.size)
    return [pickle.loads(one) for one in told]


def call_and_gather(comm: Communicator, call: Callable[[], tuple[T, S]]) -> tuple[T, list[S]]:
    """Return what ``call()`` makes here, and what it says of it on every rank (collective).

    ``call()`` returns both; all ranks raise if it fails on any.
    """
    made: list[T] = []

    def say() -> S:
        mine, told = call()
        made.append(mine)
        return told

    everyone = call_on_all(comm, say)
    return made[0], everyone


def run_on_all(comm: Communicator, call: Callable[[], T]) -> T:
    """Return what ``call()`` returns here, once no rank has failed in it (collective)."""
    return call_and_gather(comm, lambda: (call(), None))[0]


def call_on_first(comm: Communicator, call: Callable[[], T]) -> T:
    """Return what ``call()`` returns on rank 0 alone; all raise if it fails (collective)."""
    return call_on_all(comm, lambda: call() if comm.rank == 0 else None)[0]  # type: ignore[return-value]


def _gather(comm: Communicator, mine: bytes) -> list[bytes]:
    sizes = np.empty(comm.size, np.int64)
    _wait(comm.start_all_gather(np.array([len(mine)], np.int64), sizes))
    counts = sizes.tolist()
    everyone = np.empty(sum(counts), np.uint8)
    _wait(comm.start_all_gather(np.frombuffer(mine, np.uint8), everyone, counts))
    ends = np.cumsum(counts).tolist()
    return [everyone[b - n : b].tobytes() for b, n in zip(ends, counts, strict=True)]


def _wait(request: Any) -> None:
    pause = 2e-5
    with waiting(_WAIT):
        while not request.test():
            time.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE)
        request.wait()


def check_path(path: object) -> str:
    """Return a path as text; raise where no file can have it."""
    found = path
    if isinstance(path, os.PathLike):
        found = os.fspath(path)
    if not isinstance(found, str):
        raise ArgumentTypeError(
            f"path={path!r} is of type {type(path).__name__}; pass text, or a pathlib.Path"
        )
    if not found or "\0" in found:
        raise ArgumentError(f"path={path!r}: no directory can be called so; pass a name")
    return found


def check_flags(**flags: object) -> None:
    """Raise unless options, by their names, are True or False."""
    for name, flag in flags.items():
        if not isinstance(flag, (bool, np.bool_)):
            raise ArgumentError(f"{name}={flag!r}: must be True or False")


def check_step(step: object) -> None:
    """Raise unless a step is one, or None."""
    if step is None:
        return
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise ArgumentError(
            f"step={step!r}: must be an integer, 0 or more, or None; a load without step= takes "
            "the newest"
        )


def compare(
    what: str, shown: Sequence[Any], values: Sequence[Any], comm: Communicator, hint: str = ""
) -> None:
    """Raise where values, one from each rank, differ.

    Parameters
    ----------
    shown
        What messages call of each.
    """
    if any(value != values[0] for value in values):
        raise MismatchError(
            f"{what} differ between ranks: {by_answer(shown, comm.world_ranks)}; "
            f"pass the same everywhere{hint}"
        )


def digest(value: Any) -> bytes:
    """Return what tells a value, by its ``repr``, from all others."""
    return blake2b(repr(value).encode("utf-8", "surrogatepass"), digest_size=16).digest()
