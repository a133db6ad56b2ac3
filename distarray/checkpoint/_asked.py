"""What calls are asked: arguments that are what they can be, and the same on every rank."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from distarray.checkpoint import _rendezvous
from distarray.comm import Communicator, by_answer
from distarray.errors import ArgumentError, ArgumentTypeError, MismatchError

T = TypeVar("T")


def checked_path(path: object) -> str:
    """Return a path as text.

    Raises
    ------
    ArgumentTypeError
        It is no path.
    ArgumentError
        No file can have it.
    """
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
    """Raise unless options, by their names, are True or False.

    Raises
    ------
    ArgumentError
        One is something else.
    """
    for name, flag in flags.items():
        if not isinstance(flag, (bool, np.bool_)):
            raise ArgumentError(f"{name}={flag!r}: must be True or False")


def check_step(step: object) -> None:
    """Raise unless a step is one, or None.

    Raises
    ------
    ArgumentError
        It is something else.
    """
    if step is None:
        return
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise ArgumentError(
            f"step={step!r}: must be an integer, 0 or more, or None; a load without step= takes "
            "the newest"
        )


def same(comm: Communicator, what: str, say: Callable[[], T]) -> T:
    """Return what ``say()`` returns, once it is found to be the same on every rank (collective).

    Parameters
    ----------
    what
        Names it in messages, in the plural.

    Raises
    ------
    DistArrayError
        On every rank, if ``say()`` fails on any.
    MismatchError
        It differs between ranks.
    """
    everyone = _rendezvous.each(comm, say)
    compare(what, everyone, everyone, comm)
    return everyone[comm.rank]


def compare(
    what: str, shown: Sequence[Any], values: Sequence[Any], comm: Communicator, hint: str = ""
) -> None:
    """Raise where values, one from each rank, differ.

    Parameters
    ----------
    shown
        What messages say of each.

    Raises
    ------
    MismatchError
        They do.
    """
    if any(value != values[0] for value in values):
        raise MismatchError(
            f"{what} of a checkpoint differ between ranks: {by_answer(shown, comm.world_ranks)}; "
            f"pass the same everywhere{hint}"
        )
