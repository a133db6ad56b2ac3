"""The registry: every function of arrays by its name, and which of NumPy's functions it answers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

import numpy as np

from distarray.core.families._elementwise import elementwise
from distarray.errors import ArgumentTypeError, public_code

F = TypeVar("F", bound=Callable[..., Any])

ALIASES = {
    "concat": ("concatenate",),
    "max": ("amax",),
    "min": ("amin",),
    "round": ("around",),
}
"""Other names of functions, where NumPy has a function of its own under them."""

public: dict[str, Callable[..., Any]] = {}
"""Our functions, by the array API standard's names or else NumPy's: "sum", "linalg.inv"."""
ufuncs: dict[np.ufunc, Any] = {}
"""Row of each ufunc, for `__array_ufunc__`."""
methods: dict[tuple[np.ufunc, str], Callable[..., Any]] = {}
"""What a ufunc's method (`reduce`, `accumulate`, ...) of a distributed array calls, with NumPy's
arguments."""
method_makers: dict[str, Callable[[np.ufunc], Callable[..., Any]]] = {}
"""By the name of a method, what makes it for a ufunc (of two operands, but for "at") when it is
first met."""
_making = threading.RLock()
"""Ranks that are threads meet a ufunc at the same time."""
functions: dict[Callable[..., Any], Callable[..., Any]] = {}
"""Ours for each NumPy function that is no ufunc, for `__array_function__`."""


def register(ours: F, answer: Callable[..., Any] | None = None, room: str = "") -> F:
    """Enter a function under its name, and let NumPy's of that name call it for distributed arrays.

    The last one of a name counts: a public function after the operation that it runs.

    Parameters
    ----------
    ours : callable
        Takes NumPy's arguments, by position and by name.
    answer : callable, optional
        What NumPy's function calls, where `ours` does not.
    room : str
        The namespace inside of NumPy's that has the name, such as "linalg".
    """
    name = ours.__name__
    note_public(ours, name)
    public[f"{room}.{name}" if room else name] = ours
    library = getattr(np, room) if room else np
    for one in (name, *(() if room else ALIASES.get(name, ()))):
        theirs = getattr(library, one, None)
        if isinstance(theirs, np.ufunc):
            ufuncs[theirs] = ours
        elif theirs is not None:
            functions[theirs] = answer or ours
    return ours


def note_public(function: Callable[..., Any], name: str) -> None:
    """Let errors that are raised inside of a function begin with its name."""
    if isinstance(function, FunctionType):
        if function.__code__.co_name != name:  # which it shares with others that one function makes
            function.__code__ = function.__code__.replace(co_name=name)
        public_code[function.__code__] = lambda _: name


def method_of(ufunc: np.ufunc, name: str) -> Callable[..., Any] | None:
    """Return what a ufunc's method of a distributed array calls, or None; made when first met."""
    found = methods.get((ufunc, name))
    fits = ufunc.signature is None and (ufunc.nin == 2 or name == "at")
    if found is None and name in method_makers and fits:
        with _making:
            found = methods.get((ufunc, name))
            if found is None:
                found = methods[ufunc, name] = method_makers[name](ufunc)
    return found


def row_of(ufunc: np.ufunc) -> Any:
    """Return the row of a ufunc; any ufunc item by item gets one when it is first met.

    Raises
    ------
    ArgumentTypeError
        For generalised ufuncs without a row.
    """
    row = ufuncs.get(ufunc)
    if row is None:
        if ufunc.signature is not None:
            raise ArgumentTypeError(
                f"{ufunc.__name__} works on whole axes ({ufunc.signature}) and has no distributed "
                "form; apply it to blocks with x.to_local(), or to the whole with x.full_array()"
            )
        row = elementwise(ufunc.__name__, ufunc, ufunc.nin)
        ufuncs[ufunc] = row
    return row
