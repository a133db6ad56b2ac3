"""Errors that depend on values: what one rank's items make of a call, all ranks raise.

`np.errstate` may turn divisions by zero and the like into errors, text converts or not item by
item, integers have no negative powers, and dates, from NumPy 2.5 on, raise where they overflow.
Which rank has such items the others cannot know, and would wait for it: so, and only so, all tell
each other how a call went.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Any, Final, TypeVar

import numpy as np
from numpy._core import umath

from distarray.comm import all_gather_checked
from distarray.core._dtypes import overflow_error
from distarray.errors import ArgumentError, DistArrayError, DTypeError, FloatingError

T = TypeVar("T")

# np.geterr() costs 2 us; where NumPy keeps what it says, comparing that costs 0.05 us. A NumPy that
# keeps it elsewhere is asked each time.
_kept = getattr(umath, "_extobj_contextvar", None)
error_state: Callable[[], object] = _kept.get if _kept else lambda: tuple(np.geterr().values())
"""Return what stands for the errstate of this context."""
DEFAULT_ERROR_STATE: object = Context().run(error_state)
"""The one of a program that sets none, in which nothing raises."""
_known: tuple[object, bool] = DEFAULT_ERROR_STATE, False


def _raises_of_dates() -> bool:
    longest = np.array([np.iinfo(np.int64).max], "m8[s]")
    try:
        np.add(longest, longest)
    except OverflowError:
        return True
    return False


DATES_RAISE: Final = _raises_of_dates()
"""Whether sums, products and units of dates raise where they overflow, as from NumPy 2.5 on."""
_OF_DATES = frozenset((np.add, np.subtract, np.multiply))


def errors_raise() -> bool:
    """Tell whether floating-point errors raise, or call what may raise."""
    global _known
    now = error_state()
    if now is DEFAULT_ERROR_STATE:
        return False
    known, answer = _known
    if known is not now:
        answer = not {"raise", "call"}.isdisjoint(np.geterr().values())
        _known = now, answer
    return answer


def call_on_all(mesh: Any, name: str, call: Callable[[], T]) -> T:
    """Return `call()`, or raise on every process of the mesh what it raises on one.

    Collective over the mesh; a process outside of it calls by itself.

    Raises
    ------
    FloatingError
        Where `np.errstate` raises.
    OutOfRangeError
        Where dates overflow.
    """
    if mesh.coordinate is None:
        return call()
    results: list[T] = []

    def say() -> None:
        try:
            results.append(call())
        except FloatingPointError as error:
            raise FloatingError(f"{name}: {error}; np.errstate asks to raise it") from error
        except OverflowError as error:
            if isinstance(error, DistArrayError):
                raise
            raise overflow_error(name, error) from error

    all_gather_checked(mesh, name, say)
    return results[0]


def call_alike(mesh: Any, name: str, call: Callable[[], T]) -> T:
    """Return `call()`; where floating-point errors raise, they do so on every rank."""
    return call_on_all(mesh, name, call) if errors_raise() else call()


def refuses_items(ufunc: np.ufunc | None, dtypes: Sequence[Any]) -> bool:
    """Tell whether a function refuses some items: negative powers, dates that overflow.

    Parameters
    ----------
    ufunc : ufunc or None
    dtypes : sequence
        Of the operands: dtypes, or the types of numbers. Of two that `np.power` takes its own check
        tells more.
    """
    if ufunc is np.power:
        return len(dtypes) == 1 and dtypes[0].kind == "i"
    if not DATES_RAISE:
        return False
    dates = {dtype for dtype in dtypes if getattr(dtype, "kind", "") in ("m", "M")}
    units = {np.datetime_data(dtype) for dtype in dates}
    return bool(dates) and (ufunc in _OF_DATES or len(units) > 1)


def caller(ufunc: np.ufunc | None, dtypes: Sequence[Any]) -> Callable[..., Any]:
    """Return how to call a function of blocks that works as `ufunc` does; see `call_alike`."""
    if not refuses_items(ufunc, dtypes):
        return call_alike
    return call_refusing if ufunc is np.power else call_on_all


def call_refusing(mesh: Any, name: str, call: Callable[[], T]) -> T:
    """Return `call()` of a ufunc that refuses some items; its error reaches every rank.

    Raises
    ------
    ArgumentError
        If there is such an item.
    """

    def convert() -> T:
        try:
            return call()
        except ValueError as error:
            raise ArgumentError(f"{name}: {error}; convert the items with astype") from error

    return call_on_all(mesh, name, convert)


def text_converts(before: Any, after: Any) -> bool:
    """Tell whether items of one dtype may fail to become those of another: text, or raw memory.

    Structures are raw memory as well, and have fields of any dtypes.
    """
    kinds = {before.kind, after.kind}
    return before != after and not kinds.isdisjoint("USV") and (len(kinds) > 1 or "V" in kinds)


def may_refuse(before: Any, after: Any) -> bool:
    """Tell whether some items of one dtype do not become those of another."""
    if DATES_RAISE and before.kind == after.kind and before.kind in "mM":
        return np.datetime_data(before) != np.datetime_data(after)
    return text_converts(before, after)


def convert_on_all(mesh: Any, name: str, before: Any, after: Any, call: Callable[[], T]) -> T:
    """Return `call()`, which converts items of one dtype to another; errors reach every rank.

    Raises
    ------
    ArgumentError
        If text is not that of a value of the dtype, or too short for the value.
    OutOfRangeError
        If the unit of dates is too fine for one of them.
    DTypeError
        If NumPy converts no items of the one to the other.
    FloatingError
        Where `np.errstate` raises.
    """
    if before == after:
        return call()

    def convert() -> T:
        try:
            return call()
        except OverflowError as error:
            raise overflow_error(f"{name} from {before} to {after}", error) from error
        except (ValueError, RuntimeError) as error:
            raise ArgumentError(
                f"{name} from {before} to {after}: {error}; convert the items that allow it"
            ) from error
        except TypeError as error:
            raise DTypeError(f"{name} from {before} to {after}: {error}") from error

    return (call_on_all if may_refuse(before, after) else call_alike)(mesh, name, convert)
