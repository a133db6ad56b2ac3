"""Read-only arrays: copies where NumPy has a view, and in-place operators on them.

Python runs `x[i] += y` in three steps: it takes `x[i]`, adds in place, and assigns what that gives
to `x[i]`. Where `x[i]` is a copy, because its axis is cut, the second step cannot know whether the
third follows: `row = x[i]; row += y` begins alike. So it returns the values in an object that can
be assigned to `x[i]` and nothing else. An item of integers alone, ``x[i, j]``, is no view in NumPy
but a number: of it an in-place operator gives a new one, on every layout.

Who writes into `y = x.reshape(...)` may mean `x`, and so must not where `y` is a copy. Once nothing
looks at the memory of `x`, as in ``y = arange(6).reshape(2, 3)``, `y` alone can be meant.
"""

from __future__ import annotations

import atexit
import functools
import warnings
from collections.abc import Callable
from threading import get_ident
from typing import Any, NoReturn

from distarray.comm import _backend, _memory, gather_words, token
from distarray.core._base import BaseArray, open_traces
from distarray.errors import ReadOnlyError
from distarray.layout import Layout
from distarray.typing import Buffer

ITEM: Any = (None, "an item")
"""The origin of a single item, which is nobody's part."""


def read_only(name: str, x: BaseArray) -> ReadOnlyError:
    """Return the error for an operation that would write into an array that is read-only."""
    origin = getattr(x, "_origin", ITEM)
    if origin is None:
        return ReadOnlyError(
            f"{name} into a row that a loop over x, or unstack, gives: it is a copy, because the "
            "axis of these rows is cut, so that writing into it would not change x; write "
            "x[i] = value, loop over rows of this process alone (da.local_rows(x), x.to_local()), "
            "or work on row.copy()"
        )
    if origin is not ITEM:
        return ReadOnlyError(f"{name}: {_remedy(str(origin[1]))}")
    if hasattr(x, "_owners"):
        release = "" if x._owners is None else "let go of x (x = x.reshape(...)), "
        return ReadOnlyError(
            f"{name} into a reshaped array y that is a copy, because items had to move between "
            "processes, so that writing into it would not change the array x that it comes from; "
            f"write into x, {release}or work on y.copy()"
        )
    return ReadOnlyError(
        f"{name} into an array that is read-only: a view of a copy that was made where NumPy has a "
        "view, an argument inside a function of da.fuse, a result of broadcast_to, or memory that "
        "its owner protects; write x[key] = value into the array that it comes from, or work on a "
        "new one: x = x + y, x.copy()"
    )


def _remedy(key: str) -> str:
    return (
        f"{key} is a copy, because an axis that it takes items of is cut, so that writing into it "
        f"would not change x; write {key} = value or, in one statement, {key} += value; to keep it "
        f"apart from x, {key}.copy()"
    )


def check_writable(name: str, x: BaseArray) -> None:
    """Refuse to write into an array that is read-only; else forget what was reduced of it.

    What fused functions have put off is computed before, as it may read the array.
    """
    for trace in open_traces.get(get_ident(), ()):
        trace.flush()
    if not _backend.is_writeable(x._local) and not _release(x):
        raise read_only(name, x)
    if x._layout.has_partial:
        source = x._computed_source()
        array = source and source()
        if hasattr(array, "_reduced"):
            array._reduced = False


def new_copied_view(x: Any, block: Buffer, layout: Layout) -> Any:
    """Return an array of a block copied from that of `x`, read-only while anything looks at this.

    On a GPU it stays so.
    """
    result = x._new(_backend.make_read_only(block), layout)
    owners = () if _backend.is_writeable(x._local) else getattr(x, "_owners", None)
    result._owners = None
    if owners is not None and _backend.is_numpy(block):
        result._owners = (_memory.owner_of(x._local), *owners)
    return result


def _release(x: BaseArray) -> bool:
    """Make an array writable if on no rank anything looks at the memory that it is copied from.

    The ranks tell each other, because when Python frees memory may differ between them.
    """
    owners = getattr(x, "_owners", None)
    if owners is None:
        return False
    mesh: Any = x._layout.mesh
    for _ in range(2):  # what simulated ranks read of each other they have let go once all are here
        looked_at = any(owner() is not None for owner in owners)
        if mesh.coordinate is not None:
            told = gather_words(
                mesh.communicator(), [looked_at], token("release"), "writing into a copy"
            )
            looked_at = any(word for (word,) in told)
        if not looked_at:
            x._local.flags.writeable = True
            return True
    return False


_unsettled: dict[int, str] = {}
"""Keys of the pending writes that there are, by `id`."""


def _tell_of_the_end() -> None:
    """Warn of what no one has assigned: of variables of a script nothing is deleted in time."""
    while _unsettled:
        _warn(_unsettled.popitem()[1])


@functools.cache
def _register() -> None:
    atexit.register(_tell_of_the_end)


def _warn(key: str) -> None:
    warnings.warn(f"nothing was written: {_remedy(key)}", RuntimeWarning, 3)


class PendingWrite:
    """Values that only `x[key] = values` takes, for the `x` and the `key` that they come from."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, value: Any, origin: tuple[Any, object]) -> None:
        self._value = value
        self._source, self._key = origin[0], str(origin[1])
        _unsettled[id(self)] = self._key
        _register()  # when the first is made: importing the library registers nothing

    def settle(self, x: BaseArray, key: str) -> Any:
        """Return the values, which are about to be written into `key` of `x`.

        Raises
        ------
        ReadOnlyError
            If they belong elsewhere.
        """
        if self._source() is not x or key != self._key:
            self._refuse()
        del _unsettled[id(self)]
        return self._value

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        _unsettled.pop(id(self), None)
        raise ReadOnlyError(f"nothing was written: {_remedy(self._key)}")

    def __repr__(self) -> str:
        return f"<values for {self._key}, not written>"

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # what is looked for and need not be there
            raise AttributeError(name)
        self._refuse()

    def __del__(self) -> None:
        key = _unsettled.pop(id(self), None)
        if key is not None:
            _warn(key)


_OPERATORS = "add and floordiv lshift matmul mod mul or pow rshift sub truediv xor"
for _name in (
    "abs array array_function array_ufunc bool complex contains dlpack divmod eq float format ge "
    "getitem gt index int invert iter le len lt ne neg pos rdivmod round setitem str "
    + " ".join(f"{name} r{name} i{name}" for name in _OPERATORS.split())
).split():
    setattr(PendingWrite, f"__{_name}__", PendingWrite._refuse)


def in_place(
    operate: Callable[[Any, Any], Any],
    anew: Callable[[Any, Any], Any],
    x: Any,
    y: Any,
    error: ReadOnlyError,
) -> Any:
    """Return what `operate(x, y)`, refused by `error`, gives for `x[key] = ...` to take.

    Of a single item this is `anew(x, y)`.

    Raises
    ------
    ReadOnlyError
        `error`, where `x` is not itself an item that an array gave as a copy.
    """
    origin = getattr(x, "_origin", None)
    if origin is None:
        raise error
    if origin is ITEM:
        return anew(x, y)
    return PendingWrite(operate(x._new(x._local.copy(), x._layout), y), origin)
