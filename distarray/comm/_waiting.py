"""Say where this rank waits for others, when it waits for long: no program hangs without a word.

A wait is noted before it begins and forgotten when it ends; a thread looks every second how long
the oldest has lasted. After `SECONDS` it tells the line of the program that waits, once; after
``DISTARRAY_TIMEOUT`` seconds, where that is set, it ends all ranks.
"""

from __future__ import annotations

import linecache
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from distarray.errors import ArgumentError

SECONDS = 30.0
"""How long a rank waits before it says so."""

_EVERY = 1.0  # seconds between looks
_LIBRARIES = ("distarray", "numpy")  # whose lines say nothing about the program


class _Wait(NamedTuple):
    """What a thread waits for, and since when."""

    since: float
    what: object


_waits: dict[int, _Wait] = {}  # by thread


class waiting:  # noqa: N801 - reads as a verb: with waiting("for a communicator")
    """Note that this thread is about to wait for other ranks.

    Parameters
    ----------
    what
        ``str(what)`` says what it is about to do with them.
    """

    __slots__ = ("_what",)

    def __init__(self, what: object) -> None:
        self._what = what

    def __enter__(self) -> None:
        _waits[threading.get_ident()] = _Wait(time.monotonic(), self._what)

    def __exit__(self, *_: object) -> None:
        _waits.pop(threading.get_ident(), None)


def timeout() -> float:
    """Return the seconds after which waiting is an error.

    Raises
    ------
    ArgumentError
        ``DISTARRAY_TIMEOUT`` is not a positive number.
    """
    told = os.environ.get("DISTARRAY_TIMEOUT", "inf")
    try:
        seconds = float(told)
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise ArgumentError(
            f"DISTARRAY_TIMEOUT={told!r} is not a time; set a positive number of seconds, or "
            "unset it"
        )
    return seconds


def watch(place: str, abort: Callable[[int], None]) -> None:
    """Start to look for long waits.

    Parameters
    ----------
    place
        Which rank this is, for messages.
    abort
        Ends all ranks, with a status.
    """
    timeout()  # a wrong setting is an error at once, and here
    threading.Thread(target=_look, args=(place, abort), daemon=True, name="distarray waits").start()


def _look(place: str, abort: Callable[[int], None]) -> None:
    told: set[_Wait] = set()
    while True:
        time.sleep(_EVERY)
        now = list(_waits.items())
        told.intersection_update(wait for _, wait in now)
        for thread, wait in now:
            seconds = time.monotonic() - wait.since
            # Those who watch the time themselves raise an error first, where the program can see.
            late = seconds > timeout() + 2 * _EVERY
            if not late and (seconds < SECONDS or wait in told):
                continue
            told.add(wait)
            frame = sys._current_frames().get(thread)
            sys.stderr.write(_message(f"{place} has waited {seconds:.0f} s", frame, wait.what))
            sys.stderr.flush()
            if late:
                abort(1)


def _message(who: str, frame: FrameType | None, what: object) -> str:
    return (
        f"{who} for other ranks{_line(frame)} ({what}). If they never come there, it waits for "
        "ever: every rank must make the same calls, and print(x), float(x), np.asarray(x) and "
        "x.full_array() are such calls. DISTARRAY_TIMEOUT=seconds makes long waiting an error\n"
    )


def _line(frame: FrameType | None) -> str:
    """Return the line of the program that a thread is in, for a message; empty where none is."""
    roots = [
        str(Path(module.__file__).parent) + os.sep
        for name in _LIBRARIES
        if (module := sys.modules.get(name)) is not None and module.__file__
    ]
    while frame is not None and frame.f_code.co_filename.startswith(tuple(roots)):
        frame = frame.f_back
    if frame is None or frame.f_code.co_filename == threading.__file__:
        return ""
    path, number = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(path, number).strip()
    return f" at {path}, line {number}{f': {text}' if text else ''}"
