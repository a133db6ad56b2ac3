"""The communication policy: it decides on data that an operation moves without being asked."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING

from distarray.comm import _memory
from distarray.core._arguments import check_integer
from distarray.core._warnings import warn, warn_once
from distarray.core.engine._cache import cache, remember
from distarray.errors import ArgumentError, ImplicitCommunicationError
from distarray.layout import bytes_text
from distarray.redistribute import plan

if TYPE_CHECKING:
    from typing import Any

    from distarray.layout import Layout

_MODES = ("allow", "warn", "raise")
_RANKS_ASKED = 1024
"""The busiest of these ranks decides, so that every rank decides alike. It bounds the time of the
first check (24 us a rank)."""

_SHARE = 0.25
"""Of the free memory: what a gather that nobody asked for by name may take without a word."""
_LOOKED_AT_BYTES = 16 << 20
"""For fewer it is not worth the 0.1 ms that reading the free memory takes."""

_FIT = "redistribute the operand yourself beforehand, choose placements that fit together"
_STAY = "choose placements that leave whole the axis along which items change places"
"""What else to do, where operands do not fit together, and where items change places."""

_active: ContextVar[tuple[str, int] | None] = ContextVar("distarray_communication", default=None)


@contextlib.contextmanager
def communication(mode: str = "allow", min_bytes: int = 0) -> Iterator[None]:
    """Decide what happens when an operation would move data on its own account.

    An operation whose inputs do not fit together redistributes them first, and one whose items
    change places (a sort along a cut axis, `flip`, `concat`) sends them. Inside this context
    that is allowed, reported by a warning that names the operation, or refused before anything is
    sent. What you ask for by name (`redistribute`, `full_array`, `float(x)`) is never refused.

    Parameters
    ----------
    mode : {"allow", "warn", "raise"}
        What to do.
    min_bytes : int
        Smallest number of bytes, received by the busiest rank, that counts.

    Raises
    ------
    ArgumentError
        If `mode` is none of the three or `min_bytes` is negative.
    ArgumentTypeError
        If `min_bytes` is no integer.

    Examples
    --------
    >>> import distarray as da
    >>> x, y = da.zeros((4, 4)), da.zeros((4, 4), placements=[da.Shard(1)])
    >>> with da.communication("raise"):
    ...     print((x + y).shape)  # on several processes: ImplicitCommunicationError
    (4, 4)
    """
    if mode not in _MODES:
        raise ArgumentError(f"communication mode {mode!r} is not known; use one of {_MODES}")
    min_bytes = check_integer("communication", "min_bytes", min_bytes)
    if min_bytes < 0:
        raise ArgumentError(f"min_bytes={min_bytes} must be 0 or more")
    token = _active.set(None if mode == "allow" else (mode, min_bytes))
    try:
        yield
    finally:
        _active.reset(token)


_received = cache()
"""Bytes by (abstract layout, the wanted one, dtype)."""


def received_bytes(src: Layout, dst: Layout, dtype: Any) -> int:
    """Return the bytes that the busiest rank receives when `src` becomes `dst`."""
    key = src.abstract, dst.abstract, dtype
    found: int | None = _received[key]
    if found is None:
        moves = plan(src, dst, dtype)
        ranks = {*dst.mesh.flat_ranks[:_RANKS_ASKED], *src.mesh.flat_ranks[:_RANKS_ASKED]}
        found = max((moves.bytes_received(rank) for rank in ranks), default=0)
        remember(_received, key, found)
    return found


def permit(name: str, src: Layout, dst: Layout, dtype: Any) -> None:
    """Raise or warn, as the active policy says, before `name` turns `src` into `dst`.

    Raises
    ------
    ImplicitCommunicationError
        Under "raise", on every rank alike, before anything is sent.
    """
    if _active.get() is not None:
        _decide(name, f"an operand from {src} to {dst}", received_bytes(src, dst, dtype))


def permit_exchange(name: str, src: Layout, dst: Layout, dtype: Any) -> None:
    """Do as `permit` for an exchange between layouts whose items differ in place, not in number.

    It counts as if the largest block of `dst` came from elsewhere as a whole.

    Raises
    ------
    ImplicitCommunicationError
        Under "raise", on every rank alike, before anything is sent.
    """
    if _active.get() is not None:
        _decide(name, f"items of {src} to other places", dst.largest_block * dtype.itemsize, _STAY)


def permit_bytes(name: str, nbytes: int) -> None:
    """Do as `permit` for items whose number values tell: all ranks pass the same bytes.

    Raises
    ------
    ImplicitCommunicationError
        Under "raise", on every rank alike, before the items are sent.
    """
    _decide(name, "items", nbytes, _STAY)


def warn_of_gather(call: str, layout: Layout, dtype: Any) -> None:
    """Warn, once per line of the program, of a copy of a whole array that fills the memory.

    Of what nobody has asked for by name, where it takes more than `_SHARE` of the memory that is
    free. Each rank asks its own node, and none waits for another.
    """
    nbytes = layout.size * dtype.itemsize
    if nbytes < _LOOKED_AT_BYTES or layout.is_replicated:
        return
    free = _memory.available()
    if nbytes > _SHARE * free:
        warn_once(
            f"{call} gathers {bytes_text(nbytes)} on every rank, where {bytes_text(free)} are free "
            "for each; use functions of distarray, x.to_local(), or a part of x, or ask for the "
            "whole by x.full_array(), on one rank alone by x.full_array(dst=0)"
        )


def _decide(name: str, what: str, nbytes: int, remedy: str = _FIT) -> None:
    active = _active.get()
    if active is None:
        return
    mode, min_bytes = active
    if nbytes == 0 or nbytes < min_bytes:
        return
    message = (
        f"{name} would move {what} ({nbytes} bytes to the busiest rank); {remedy}, or allow it "
        'with communication("allow")'
    )
    if mode == "raise":
        raise ImplicitCommunicationError(message)
    warn(message)
