"""The short ways through the engine: small blocks in host memory, with layouts that fit.

What is done here `run_row` would do as well, only slower; each path leaves to it
everything but the one case that it knows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distarray.core._base import BaseArray, open_traces
from distarray.core._dtypes import REFUSALS
from distarray.core._op import Op
from distarray.core.engine._blocks import as_block
from distarray.core.engine._float_errors import (
    DATES_RAISE,
    DEFAULT_ERROR_STATE,
    error_state,
    errors_raise,
)
from distarray.core.engine._operands import LARGE
from distarray.core.engine._pipeline import run_one
from distarray.core.families._elementwise import PLAIN, refusal_error, run_into, run_row

_new = object.__new__
_ndarray = np.ndarray
_NUMBERS = frozenset((bool, int, float, complex))


def unary_path(row: Op) -> Callable[[Any], Any]:
    """Return a function of one operand that is quick for small distributed arrays."""
    local = row.local

    def run(operands: Any) -> Any:
        return run_row(row, operands)

    if row.nout > 1:
        return lambda x: run((x,))
    is_plain = row.check is None and row.instead is None

    def call(x: Any) -> Any:
        if open_traces or not isinstance(x, BaseArray):
            return run((x,))
        block = x._local
        layout = x._layout
        if layout.has_partial and is_plain:
            return run_one(row, x, PLAIN)
        if layout.has_partial or block.nbytes >= LARGE or block.__class__ is not _ndarray:
            return run((x,))
        if error_state() is not DEFAULT_ERROR_STATE and errors_raise():
            return run((x,))
        try:
            result = local(block)
        except REFUSALS as error:
            raise refusal_error(row.name, error, (x,)) from error
        if result.__class__ is not _ndarray:
            result = as_block(result)
        array = _new(x.__class__)
        array._local = result
        array._layout = layout
        return array

    return call


def binary_path(row: Op) -> Callable[[Any, Any], Any]:
    """Return a function of two operands, the first distributed, that is quick for small blocks."""
    local = row.local

    def run(operands: Any) -> Any:
        return run_row(row, operands)

    if row.nout > 1 or row.check is not None:
        return lambda x, y: run((x, y))

    def call(x: Any, y: Any) -> Any:
        if open_traces:
            return run((x, y))
        layout = x._layout
        block = x._local
        if layout.has_partial or block.nbytes >= LARGE or block.__class__ is not _ndarray:
            return run((x, y))
        if error_state() is not DEFAULT_ERROR_STATE and errors_raise():
            return run((x, y))
        cls = x.__class__
        if y.__class__ is cls:
            if y._layout is not layout:
                return run((x, y))
            other = y._local
            if DATES_RAISE and other.dtype.kind in "mM":
                return run((x, y))
        elif y.__class__ in _NUMBERS:
            other = y
        else:
            return run((x, y))
        if DATES_RAISE and block.dtype.kind in "mM":
            return run((x, y))
        try:
            result = local(block, other)
        except REFUSALS:
            return run((x, y))  # finds the reason and says it, or knows another way
        if result.__class__ is not _ndarray:
            if isinstance(result, np.character):  # cut to this text, and shorter than its dtype
                return run((x, y))
            result = as_block(result)
        array = _new(cls)
        array._local = result
        array._layout = layout
        return array

    return call


def inplace_path(row: Op) -> Callable[[Any, Any], Any]:
    """Return `x op= y`, which keeps layout and dtype of `x`."""
    local = row.local

    def write(x: Any, y: Any) -> Any:
        return run_into(row, (x,), (x, y))

    if row.check is not None:
        return write

    def call(x: Any, y: Any) -> Any:
        layout = x._layout
        if open_traces or layout.has_partial or x._local.__class__ is not _ndarray:
            return write(x, y)
        if error_state() is not DEFAULT_ERROR_STATE and errors_raise():
            return write(x, y)
        if y.__class__ is x.__class__ and y._layout is layout:
            other = y._local
        elif y.__class__ in _NUMBERS:
            other = y
        else:
            return write(x, y)
        if DATES_RAISE and x._local.dtype.kind in "mM":
            return write(x, y)
        try:
            local(x._local, other, out=x._local)
        except REFUSALS:
            return write(x, y)  # finds the reason and says it
        return x

    return call
