"""Forked processes: what a rank sends with is out of their reach.

A child has copies of all of it, and what it sent would be taken for the rank's. So whatever sends
lists itself (`forget_in_child`), and in the child puts `FORKED` in place of what it holds. Nor does
a child finalize MPI (`end_apart`): that waits for other ranks, and takes down what the parent uses.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import weakref
from functools import cache
from typing import Any, Final, NoReturn, Protocol

from distarray.comm.failures._exit_status import watch_exit_status
from distarray.errors import CommunicationError

REMEDY: Final = (
    "only the rank itself sends; let processes that it starts compute on x.to_local(), and pass "
    "what they need as NumPy arrays"
)


class _Sender(Protocol):
    def forget(self) -> None:
        """Put `FORKED` in place of all that this sends with."""


class Barred:
    """What stands in place of something to send with where that must not be used: it raises."""

    def __init__(self, why: str) -> None:
        self.__why = why

    def __getattr__(self, name: str) -> NoReturn:
        raise CommunicationError(self.__why)

    def __getitem__(self, key: Any) -> NoReturn:
        raise CommunicationError(self.__why)


FORKED: Final[Any] = Barred(f"this process was forked from a rank of the job: {REMEDY}")

_senders: weakref.WeakSet[_Sender] = weakref.WeakSet()


def forget_in_child(sender: _Sender) -> None:
    """Let something be forgotten by the processes that this one forks."""
    _senders.add(sender)


def _forget_all() -> None:
    for sender in list(_senders):
        sender.forget()


@cache
def end_apart() -> None:
    """Let the processes that this one forks from now on end without MPI.

    mpi4py finalizes MPI at the very end of the interpreter, in any process; so they end before,
    once what was registered meanwhile with `atexit` has been called.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: ending.append(watch_exit_status()))
    ending: list[Any] = []
    atexit.register(_end_child, ending)


def _end_child(ending: list[Any]) -> None:
    if not ending:
        return
    status = ending[-1].get()
    if getattr(sys, "last_value", None) is not None:
        status = 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # closed, or none
            stream.flush()
    os._exit(status if isinstance(status, int) else status is not None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
