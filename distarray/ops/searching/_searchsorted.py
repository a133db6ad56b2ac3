"""Searching in sorted items: where others belong among them, and whether they are there.

Of a block an item's place is counted, and the counts of all blocks add up to its place among all.
So whichever is the smaller, the sorted items or those that are sought, is brought to every process,
or is there already. Where both are large each sought item is looked up in the one block where it
belongs: in a node in the owner's memory, else it is sent there, and the place comes back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from distarray.comm import Communicator, ask_owners, group_rows
from distarray.core import (
    BaseArray,
    Call,
    Layouts,
    Op,
    Spec,
    Step,
    check_distributed,
    describe,
    normalize_operand,
    register,
    run,
)
from distarray.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from distarray.layout import Layout, Shard
from distarray.ops.families._values import ErrorsOfNumPy, check_one_mesh, on_host, read_values
from distarray.ops.indexing._items import getitem
from distarray.ops.sorting._block_sort import argsort_block
from distarray.ops.sorting._multiselection import ranks_of
from distarray.typing import Buffer

FEW_BYTES: Final = 64 * 1024
"""Up to so many bytes every process may get all of an operand; as much as a selection's round."""

_LEAST_QUERIES: Final = 1 << 16
"""Questions that an owner answers in one round, at least; more if they are spread evenly."""

_ROUNDS: Final = 8
"""In so many rounds, of no fewer questions, many are asked: what travels is a part of a block."""

_SORTED_QUERIES: Final = 1 << 13
"""Of so many sought items, and of as many in which they are, the sought ones are sorted first, so
that searches that follow one another end close by (1 Mi in 512 Ki float64: 0.5 s against 0.15)."""

_PIECE: Final = 1 << 17
"""So many items are looked for at once: a few MiB with what is computed of them."""

Answer = Callable[[Buffer, int, Buffer], Any]
"""A sorted block, how many items come before it, what is sought -> an item for each of these."""


def search_op(
    name: str,
    local: Callable[..., Any],
    answer: Callable[[Any], Answer],
    combine: Callable[[Any], str],
) -> Op:
    """Return an operation on sorted items and on sought ones, whose layout the result has.

    Its static argument, if it is text, is the `side` of equal items on which it searches.

    Parameters
    ----------
    name : str
    local : callable
        `local(items, sought, static)` of blocks.
    answer : callable
        `answer(static)` gives what the owner of the one block where items belong says of them.
    combine : callable
        `combine(static)` names the reduction of the results of all blocks of the items.
    """

    def spec(op: Op, call: Call) -> Spec | Layouts:
        return _spec(op, call, combine(call.static))

    def dtypes(_: Op, call: Call) -> tuple[Any, Any]:
        if {dtype.kind for dtype in call.dtypes} == {"S", "U"}:
            # Bytes become text or not item by item, and in `isin` NumPy's answer depends on counts.
            raise DTypeError(
                f"{name} of {call.dtypes[0]} and {call.dtypes[1]}: bytes are not text; convert one "
                "of them with astype"
            )
        try:
            np.result_type(*call.dtypes)  # which NumPy does not need for a few items alone
            for count in (0, 1):  # which `isin` treats by other ways
                blocks = (np.zeros(count, one) for one in call.dtypes)
                dtype = np.asarray(local(*blocks, call.static)).dtype
        except TypeError as error:
            one, other = call.dtypes
            raise DTypeError(f"{name} of {one} and {other}: {error}") from error
        return dtype, dtype

    def bind(step: Step) -> Callable[[Buffer, Buffer], Buffer]:
        static = step.call.static
        if isinstance(step.spec, Spec):
            return on_host(lambda items, sought: np.asarray(local(items, sought, static)))
        return on_host(_Owners(step, answer(static)))

    return Op(name, local, spec, dtypes=dtypes, bind=bind)


def _spec(op: Op, call: Call, combine: str) -> Spec | Layouts:
    items, sought = call.layouts
    sizes = zip(call.layouts, call.dtypes, strict=True)
    few = min(layout.size * dtype.itemsize for layout, dtype in sizes)
    if not are_cut_alike(items, sought) or few <= FEW_BYTES:
        own = tuple(range(items.ndim))
        others = tuple(range(items.ndim, items.ndim + sought.ndim))
        return Spec((own, others), others, combine)
    if items.ndim != 1:
        raise ShapeError(f"{op.name} in items of shape {items.shape}: sorted items have one axis")
    items, sought = items.without_partial(), sought.without_partial()
    return Layouts((items, sought), sought, sends=((sought, sought, False),))


def are_cut_alike(items: Layout, sought: Layout) -> bool:
    """Tell whether a mesh axis cuts both."""
    cuts = zip(items.placements, sought.placements, strict=True)
    return any(type(one) is type(other) is Shard for one, other in cuts)


class _Owners:
    """The search of many items, each in the block where it belongs."""

    def __init__(self, step: Step, answer: Answer) -> None:
        layout = step.sources[0]
        mesh: Any = layout.mesh
        self._comm: Communicator = mesh.communicator(layout.sharding_axes(0))
        self._offsets = np.array(layout.partition(0).offsets)
        self._filled = np.flatnonzero(np.diff(self._offsets)).astype(np.uint32)
        self._step, self._answer = step, answer
        self._side = step.call.static if isinstance(step.call.static, str) else "left"
        self._token = step.token()

    def __call__(self, items: Buffer, sought: Buffer) -> Buffer:
        comm, offsets = self._comm, self._offsets
        flat = sought.astype(np.result_type(items, sought), copy=False).reshape(-1)
        last: Any = np.concatenate(ranks_of(comm).gather(items[-1:]))
        out = np.empty(flat.shape, self._step.result)
        pieces = [slice(start, start + _PIECE) for start in range(0, flat.size, _PIECE)]
        if comm.reaches_all():
            with comm.views(items, self._token, self._step) as views:
                for piece in pieces:
                    part, found = flat[piece], out[piece]
                    parcels = group_rows(self._owners(last, part), comm.size)
                    for rank in self._filled.tolist():
                        which = parcels.part(rank)
                        found[which] = self._answer(views[rank], int(offsets[rank]), part[which])
            return out.reshape(sought.shape)
        owner, counts = np.empty(flat.shape, np.uint32), np.zeros(comm.size, np.int64)
        for piece in pieces:
            owner[piece] = self._owners(last, flat[piece])
            counts += np.bincount(owner[piece], minlength=comm.size)
        start = int(offsets[comm.rank])
        most, total = (totals := comm.all_reduce(counts)).max(), totals.sum()
        rounds = int(most // max(_LEAST_QUERIES, 2 * total // comm.size)) + 1
        rounds = max(rounds, min(int(total) // (comm.size * _LEAST_QUERIES), _ROUNDS))
        for i in range(rounds):  # so that an owner of whom all ask has a bounded part at a time
            part = slice(i, None, rounds)
            out[part] = ask_owners(
                comm,
                [np.ascontiguousarray(flat[part])],
                group_rows(owner[part], comm.size),
                lambda rows: np.asarray(self._answer(items, start, rows[0]), out.dtype),
                self._token,
                self._step,
            )
        return out.reshape(sought.shape)

    def _owners(self, last: Buffer, sought: Buffer) -> Buffer:
        """Return in which rank's block each item belongs, given the last of each that has any."""
        side: Any = self._side
        owner: Any = np.searchsorted(last, sought, side)
        found: Buffer = self._filled[np.minimum(owner, len(last) - 1, out=owner)]
        return found


def find_places(items: Buffer, sought: Buffer, side: str) -> Any:
    """Return `np.searchsorted` of two blocks."""
    if min(items.size, sought.size) < _SORTED_QUERIES:
        return np.searchsorted(items, sought, side)  # type: ignore[call-overload]
    flat = np.asarray(sought, sought.dtype.newbyteorder("=")).reshape(-1)
    places = np.empty(len(flat), np.int64)
    for start in range(0, len(flat), _PIECE):
        piece = flat[start : start + _PIECE]
        order = argsort_block(piece)
        places[start : start + _PIECE][order] = np.searchsorted(items, piece[order], side)  # type: ignore[call-overload]
    return places.reshape(sought.shape)


_place = search_op(
    "searchsorted",
    find_places,
    lambda side: lambda block, start, sought: start + find_places(block, sought, side),
    lambda _: "sum",
)


@register
def searchsorted(x1: Any, x2: Any, /, side: str = "left", sorter: Any = None) -> Any:
    """Return the places where items belong among sorted ones.

    Parameters
    ----------
    x1 : array
        Of one axis, in ascending order, NaN last.
    x2 : array or number
    side : {"left", "right"}
        Before or after the items of `x1` that are equal.
    sorter : array of int, optional
        The places of the items of `x1` in ascending order, as `argsort` gives them.

    Returns
    -------
    DistArray
        int64, of the shape of `x2`, and cut as that is. Where `x1` is cut and `x2` is not, or has
        up to 64 KiB: the `Partial("sum")` of the places in all blocks.

    Raises
    ------
    ShapeError
        If `x1` does not have one axis, or `sorter` another length.
    DTypeError
        If NumPy does not compare the two, or one has bytes and the other text.

    Notes
    -----
    Distribution: nothing is sent where `x1` or `x2` is not cut, and up to 64 KiB of the smaller one
    are gathered. Else one item of each block of `x1` is gathered, and each item of `x2` is searched
    where it belongs: in a node in place, between nodes it is sent and 8 bytes come back. Memory
    beside operands and result: some MiB in a node, one and a half blocks between nodes.

    Examples
    --------
    >>> x = da.asarray([1.0, 3.0, 5.0])
    >>> da.searchsorted(x, da.asarray([0.0, 3.0, 9.0])).tolist()
    [0, 1, 3]
    """
    if not isinstance(side, str) or side not in ("left", "right"):
        error = ArgumentError if isinstance(side, str) else ArgumentTypeError
        raise error(f"searchsorted(side={describe(side)}): must be 'left' or 'right'")
    if not isinstance(x1, BaseArray) and not isinstance(x2, BaseArray):
        if isinstance(sorter, BaseArray):
            check_distributed("searchsorted(sorter=)", x1)
        return np.searchsorted(x1, x2, side, sorter)  # type: ignore[call-overload]
    if not isinstance(x1, BaseArray):
        x1 = np.asarray(normalize_operand("searchsorted", x1))
    if sorter is not None:
        check_one_mesh("searchsorted", x1, sorter)
    if x1.ndim != 1:
        raise ShapeError(f"searchsorted in an array of shape {x1.shape}: it must have one axis")
    return run(_place, (x1 if sorter is None else _in_order(x1, sorter), x2), side)


def _in_order(x: Any, sorter: Any) -> Any:
    """Return sorted items, given the places of those in ascending order."""
    if not isinstance(sorter, BaseArray):
        sorter = np.asarray(normalize_operand("searchsorted(sorter=)", sorter))
    if sorter.dtype.kind not in "iu":
        raise DTypeError(f"searchsorted(sorter=) takes integers, not {sorter.dtype}")
    if sorter.shape != x.shape:
        raise ShapeError(
            f"searchsorted(sorter=) of shape {sorter.shape} for items of shape {x.shape}: it names "
            "the place of each once"
        )
    if isinstance(x, BaseArray):
        return getitem(x, sorter)
    if isinstance(sorter, BaseArray):
        sorter = read_values("searchsorted", sorter)
    with ErrorsOfNumPy("searchsorted"):
        return x[sorter]
