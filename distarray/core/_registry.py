"""Which of our functions answers for which of NumPy's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from distarray.core._elementwise import Elementwise
from distarray.core._rules import POINTWISE
from distarray.errors import ArgumentTypeError

F = TypeVar("F", bound=Callable[..., Any])

ufuncs: dict[np.ufunc, Any] = {}
"""Row of each ufunc, for `__array_ufunc__`."""
methods: dict[tuple[np.ufunc, str], Callable[..., Any]] = {}
"""What a ufunc's method (`reduce`, `accumulate`) of a distributed array calls."""
functions: dict[Callable[..., Any], Callable[..., Any]] = {}
"""Ours for each NumPy function that is no ufunc, for `__array_function__`."""


def register_ufunc(ufunc: np.ufunc, row: Elementwise) -> None:
    """Let `ufunc(x)` of a distributed array call `row` (the first row of a ufunc stays)."""
    ufuncs.setdefault(ufunc, row)


def register_method(ufunc: np.ufunc, method: str, function: Callable[..., Any]) -> None:
    """Let a ufunc's method of a distributed array call `function(x, axis=, ...)`."""
    methods[ufunc, method] = function


def register_function(*theirs: Callable[..., Any]) -> Callable[[F], F]:
    """Let NumPy functions called with a distributed array call the decorated one.

    It must take NumPy's arguments, by position and by name; it may also be called as
    `register_function(np.roll)(roll)` on a row.
    """

    def register(ours: F) -> F:
        for function in theirs:
            functions[function] = ours
        return ours

    return register


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
        row = Elementwise(ufunc.__name__, ufunc, ufunc.nin, "", POINTWISE)
        ufuncs[ufunc] = row
    return row
