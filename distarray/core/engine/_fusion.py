"""Deferred arrays: what a fused function computes item by item, tile by tile when it is needed.

In a fused function an operation item by item gives a `Deferred` array, which knows its layout and
dtype and has a `Node`: the function of blocks, and the blocks and nodes that it takes. The engine
has resolved it as always, and what had to move has moved. Only the pass over the items waits, so
that it can be one for a whole expression: a `Pass` runs the functions on tiles that stay in the
cache of a core, into scratch memory that the tiles share, and writes results once. What an
expression is reduced to takes it a tile at a time and never writes it. Whatever else looks at a
block finds it computed.

Nothing that waits can change meanwhile: arguments are read-only, plain arrays are copied, and who
writes into any array has everything computed before (`flush`).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from math import prod
from threading import get_ident
from typing import Any, Final
from weakref import WeakSet, ref

import numpy as np

from distarray.comm import _backend, _memory
from distarray.core._base import BaseArray, open_traces
from distarray.core.engine._float_errors import error_state, errors_raise
from distarray.core.engine._tiles import tile_shape, tiles
from distarray.errors import ArgumentError
from distarray.layout import Layout
from distarray.typing import Buffer, Shape

Box = tuple[slice, ...]

_PASS_BYTES: Final = 1 << 20
"""Of the tiles of one pass together: blocks that it reads and writes, and scratch."""

_DEPTH: Final = 8
"""Least reduced items per kept item in a tile. (x * y + 1).sum(axis=0) of two ranks' 4096 x 8192
float64 takes 43, 47, 53 and 74 ms with 4, 8, 12 and 16, of 64 x 1024 x 512 59, 50, 52 and 75 ms, on
Zen 4: of rows as many bytes apart as a power of two, its second cache holds 8 in one place."""

_NUMBERS: Final = frozenset("biufc")
"""Kinds of dtype among which every item converts."""


class Trace:
    """One call of a fused function, in one thread."""

    def __init__(self) -> None:
        self.is_open = False
        self.nodes: WeakSet[Node] = WeakSet()
        self._state = error_state()
        self._errors: Any = np.geterr()

    def __enter__(self) -> Trace:
        self.is_open = True
        open_traces.setdefault(get_ident(), []).append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.is_open = False
        calls = open_traces[get_ident()]
        calls.pop()
        if not calls:
            del open_traces[get_ident()]

    def defers(self) -> bool:
        """Tell whether an operation may wait: it would meet the errstate that it meets now."""
        return error_state() is self._state and not errors_raise()

    def errstate(self) -> contextlib.AbstractContextManager[Any]:
        """Return the errstate in which operations were met."""
        if error_state() is self._state:
            return contextlib.nullcontext()
        return np.errstate(**self._errors)

    def flush(self) -> None:
        """Compute the arrays that wait, before something is written."""
        compute([node for node in self.nodes if node.array() is not None])


def current_trace() -> Trace | None:
    """Return the innermost fused call of this thread in which operations may wait now."""
    calls = open_traces.get(get_ident())
    return calls[-1] if calls and calls[-1].defers() else None


class Node:
    """A block, or the function that makes it of others item by item.

    Attributes
    ----------
    block
        None as long as it waits.
    dtype, shape
        Of the block.
    trace
        The call in which it waits; None of a block that did not.
    function
        Takes the inputs and, where `takes_out`, `out=`.
    inputs
        Nodes of this shape that wait, blocks that broadcast to it, and numbers.
    array
        Weak reference to the array that is to have the block; None of a block that did not wait.
    serial
        Is larger than those of the inputs.
    """

    __slots__ = (
        "__weakref__", "array", "block", "dtype", "function", "inputs", "serial", "shape",
        "takes_out", "trace",
    )  # fmt: skip
    _serials = itertools.count()

    def __init__(self, block: Any, dtype: Any, shape: Shape, trace: Trace | None = None) -> None:
        self.block, self.dtype, self.shape, self.trace = block, dtype, shape, trace
        self.serial = next(self._serials)
        self.function: Callable[..., Any] = _keep
        self.takes_out = False
        self.inputs: Sequence[Any] = ()
        self.array: Any = None

    def value(self) -> Buffer:
        """Return the block, computed now at the latest.

        Raises
        ------
        ArgumentError
            If the fused function has ended without computing it.
        """
        if self.trace is not None and self.block is None:
            if not self.trace.is_open:
                raise ArgumentError(
                    "this array was left over by a fused function that has ended, and was never "
                    "computed; let the function return it"
                )
            compute([self])
        found: Buffer = self.block
        return found


def _keep(block: Buffer) -> Buffer:
    return block


class Deferred(BaseArray):
    """A distributed array of a fused function."""

    __slots__ = ("_node", "_whole")

    _node: Node
    _whole: Any
    """The argument that it stands for; None: of the fused function's own."""

    @property
    def _local(self) -> Buffer:
        return self._node.value()

    @_local.setter
    def _local(self, block: Buffer) -> None:
        self._node, self._whole = Node(block, block.dtype, block.shape), None

    @property
    def dtype(self) -> Any:
        """The data type, which is known while the block waits."""
        return self._node.dtype

    @property
    def itemsize(self) -> int:
        """Bytes of one item."""
        return int(self._node.dtype.itemsize)

    @property
    def nbytes(self) -> int:
        """Bytes of the global array."""
        return self._layout.size * self.itemsize

    def enter(self, x: BaseArray) -> Any:
        """Stand for an argument, and return this."""
        self._local = _backend.make_read_only(x._local)
        self._layout, self._whole = x._layout, x
        return self

    def defer(
        self,
        trace: Trace,
        function: Callable[..., Any],
        takes_out: bool,
        inputs: Sequence[Any],
        dtype: Any,
        layout: Layout,
    ) -> Any:
        """Return an array that waits for `function` of blocks, nodes and numbers."""
        node = Node(None, dtype, layout.local_shape(), trace)
        node.function, node.takes_out, node.inputs = function, takes_out, inputs
        trace.nodes.add(node)
        result = object.__new__(self.__class__)
        result._node, result._layout, result._whole = node, layout, None
        node.array = ref(result)
        return result


def is_waiting(x: Any, trace: Trace) -> bool:
    """Tell whether an operand is an array of a fused call whose block is still to be computed."""
    return isinstance(x, Deferred) and x._node.block is None and x._node.trace is trace


def defer_cast(x: BaseArray, dtype: Any) -> Any:
    """Return an array converted to a dtype as one that waits; None where it must not."""
    trace = current_trace()
    if trace is None or not isinstance(x, Deferred):
        return None
    if not _NUMBERS.issuperset((x.dtype.kind, dtype.kind)):
        return None
    source = x._node if is_waiting(x, trace) else x._local
    return x.defer(trace, _keep, False, [source], dtype, x._layout)


def compute(nodes: Sequence[Node]) -> None:
    """Compute the blocks of nodes, those of one shape in one pass."""
    waiting = [node for node in dict.fromkeys(nodes) if node.block is None]
    for shape in dict.fromkeys(node.shape for node in waiting):
        roots = [node for node in waiting if node.shape == shape]
        run = Pass(roots, writes=True)
        trace: Any = roots[0].trace
        with trace.errstate():
            for _, boxes in run.tiles(range(len(shape))):
                for box in boxes:
                    run(box)
        for node, block in zip(roots, run.targets, strict=True):
            node.block, node.inputs = block, ()


class Pass:
    """What computes nodes of one shape, a tile at a time.

    Each step writes a register: a piece of a root's block, or scratch memory as large as a tile.
    A register is taken again as soon as nothing needs what is in it. That of a root also serves
    until the root itself is computed: what lies there is in the cache when it is written.

    Parameters
    ----------
    roots : sequence of Node
        What is to be found.
    writes : bool
        Whether into blocks, `targets`; else a call returns a tile of the only root, in scratch.
    """

    def __init__(self, roots: Sequence[Node], writes: bool) -> None:
        self._shape = shape = roots[0].shape
        nodes = _waiting_nodes(roots)
        places, dtypes = _assign_registers(nodes, roots if writes else ())
        blocks: dict[int, Any] = {}  # each once, by identity
        for node in nodes:
            blocks.update((id(_block(x)), _block(x)) for x in node.inputs if not _waits(x))
        seats = {key: len(dtypes) + i for i, key in enumerate(blocks)}
        self._steps = [
            (
                node.function,
                node.takes_out,
                [places[x] if _waits(x) else seats[id(_block(x))] for x in node.inputs],
                places[node],
            )
            for node in nodes
        ]
        self._result = places[roots[0]]
        full = [x for x in blocks.values() if getattr(x, "shape", None) == shape]
        flags = [x.flags for x in full]
        self._is_transposed = bool(flags) and all(f.f_contiguous > f.c_contiguous for f in flags)
        self._items = _PASS_BYTES // sum(x.itemsize for x in (*dtypes, *full))
        count = len(roots) if writes else 0
        self.targets = [self._order(_memory.empty, shape, dtype) for dtype in dtypes[:count]]
        self._dtypes = dtypes[count:]
        self._lines: list[Buffer] = []
        """Scratch memory."""
        self._tile: Shape | None = None
        """What they are shaped to."""
        self._seats: list[Any] = [*self.targets, *self._dtypes, *blocks.values()]
        """For each register and each input what a step gets of it in this tile."""
        # Numbers, and arrays without axes, are the same in all tiles.
        self._cut = [
            (i, x if x.shape == shape else np.broadcast_to(x, shape))
            for i, x in enumerate(self._seats)
            if isinstance(x, np.ndarray) and x.ndim
        ]

    def _order(self, make: Callable[..., Buffer], shape: Shape, *args: Any) -> Buffer:
        """Return `make(shape, *args)`, transposed in memory where all blocks of this shape are."""
        return make(shape[::-1], *args).T if self._is_transposed else make(shape, *args)

    def tiles(self, axes: Sequence[int]) -> Iterator[tuple[Box, Iterator[Box]]]:
        """Yield for each box of kept items its tiles along the reduced axes."""
        shape = self._shape
        if 0 in shape:
            return
        every = range(len(shape))
        strides = every if self._is_transposed else every[::-1]
        steps = tile_shape(shape, strides, axes, self._items, _DEPTH)
        self._lines = [_memory.empty((prod(steps),), dtype) for dtype in self._dtypes]
        for outer in tiles(shape, steps, [axis for axis in every if axis not in axes]):
            inner = tiles(shape, steps, axes)
            yield outer, (tuple(map(_narrower, outer, box)) for box in inner)

    def __call__(self, box: Box) -> Buffer:
        """Compute a tile, and return that of the first root; the next call may write there."""
        place: Any
        seats, place = self._seats, (*box, ...)  # which makes an array of one item, too
        for i, block in self._cut:
            seats[i] = block[place]
        shape = tuple([piece.stop - piece.start for piece in box])
        if shape != self._tile:
            self._tile = shape
            for i, line in enumerate(self._lines, len(self.targets)):
                seats[i] = self._order(line[: prod(shape)].reshape, shape)
        for function, takes_out, inputs, register in self._steps:
            values = [seats[i] for i in inputs]
            if takes_out:
                function(*values, out=seats[register])
            else:
                np.copyto(seats[register], function(*values), "unsafe")
        found: Buffer = seats[self._result]
        return found


def _waits(x: Any) -> bool:
    return x.__class__ is Node and x.block is None


def _block(x: Any) -> Any:
    return x.block if x.__class__ is Node else x


def _narrower(a: slice, b: slice) -> slice:
    """Return that of two slices which cuts an axis, which one of them does."""
    return b if a.stop is None else a


def _waiting_nodes(roots: Sequence[Node]) -> list[Node]:
    """Return the nodes that have to be computed for some, each after those that it needs."""
    found: set[Node] = set()
    left = [*roots]
    while left:
        node = left.pop()
        if node not in found:
            found.add(node)
            left += filter(_waits, node.inputs)
    return sorted(found, key=lambda node: node.serial)


def _assign_registers(
    nodes: Sequence[Node], targets: Sequence[Node]
) -> tuple[dict[Node, int], list[Any]]:
    """Return the register that each node writes, and the dtypes of all; first are the targets'."""
    last = {x: i for i, node in enumerate(nodes) for x in node.inputs if _waits(x)}
    dtypes = [node.dtype for node in targets]
    own = {node: register for register, node in enumerate(targets)}
    until = {own[node]: i for i, node in enumerate(nodes) if node in own}
    free = set(own.values())
    places: dict[Node, int] = {}
    for i, node in enumerate(nodes):
        # What a step reads for the last time it may overwrite: it does so item by item.
        done = {x for x in node.inputs if _waits(x) and last[x] == i}
        free.update(places[x] for x in done.difference(own))
        if node in own:
            places[node] = own[node]
        else:
            needed = last.get(node, len(nodes))
            fitting = [
                register
                for register in free
                if dtypes[register] == node.dtype and until.get(register, needed) >= needed
            ]
            places[node] = min(fitting, default=len(dtypes))
            if not fitting:
                dtypes.append(node.dtype)
        free.discard(places[node])
    return places, dtypes
