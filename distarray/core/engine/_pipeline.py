"""The engine: key, cache, resolve, move, local step, exchange, second local step, wrap.

It knows no operation by name. What the local steps of one process are, and what must move before
them, is a `Step`, made once for operands of given layouts and dtypes. The exchange is of states:
every rank of the mesh axes that cut the exchanged axes gets the states of all of them, in rank
order, so that all that compute the same do so to the last bit. Of many it gets a part, and the
ranks gather the results.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from math import prod
from typing import Any
from weakref import ref

import numpy as np

from distarray.comm import (
    FOLDED_BY_ALL,
    Communicator,
    _backend,
    exclusive_scan,
    gather_lengths,
    gather_parts,
    join_states,
    scatter_states,
    token,
)
from distarray.core._base import BaseArray, open_traces
from distarray.core._dtypes import PLAIN_SCALARS, check_kinds, dtype_key, stand_in
from distarray.core._op import Call, Op, State, States
from distarray.core._spec import Layouts, Panels, Spec
from distarray.core.engine import _on_device
from distarray.core.engine._blocks import as_block, empty_block, move_all
from distarray.core.engine._cache import Resolutions, cache, remember
from distarray.core.engine._float_errors import (
    DEFAULT_ERROR_STATE,
    call_alike,
    call_on_all,
    call_refusing,
    error_state,
    errors_raise,
    refuses_items,
)
from distarray.core.engine._meshes import several_ranks
from distarray.core.engine._operands import lift_layouts, local_blocks, normalize_operands
from distarray.core.engine._policy import permit, permit_exchange
from distarray.core.engine._resolution import resolve
from distarray.errors import ArgumentTypeError, MeshError
from distarray.layout import REDUCTIONS, DimMap, Layout, chunk, counted, mark_counted, propagate
from distarray.layout import box as boxes
from distarray.redistribute import read_local, redistribute_local, redistributing
from distarray.typing import Box, Buffer

_MANY_STATES = 1 << 20
"""Bytes of states of which every rank may have so many, also where they are more than its block.

Not measured: less than what moving the array costs in time, and nothing beside other memory."""


class _Steps(Resolutions):
    """Steps by (operation, static arguments, layout and dtype of each operand), made at need."""

    def __missing__(self, key: tuple[Any, ...]) -> Step:
        step: Step | None = super().__missing__(key)
        if step is None:
            step = Step(key[0], key[2::2], key[3::2], key[1])
            remember(self, key, step)
        return step


steps = cache(_Steps)
_NUMBERS = frozenset(PLAIN_SCALARS)
_NUMBER = np.dtype(np.float64)


def run(op: Op, operands: Sequence[Any], static: Any = None, *functions: Any) -> Any:
    """Return an operation's result.

    Parameters
    ----------
    op : Op
    operands : sequence
        At least one distributed; plain arrays that every rank has alike, and numbers.
    static : hashable
        The other arguments.
    *functions
        Passed to the local step before the blocks: what has no hash.
    """
    if operands and not open_traces:
        found = _run_known(op, operands, static, functions)
        if found is not None:
            return found
    operands = normalize_operands(op.name, operands, op.takes_objects)
    uncertain = op.check is not None and op.check(operands, static)
    for first in operands:
        if isinstance(first, BaseArray):
            break
    else:
        if op.plain is not None:
            return op.plain(op, operands, static)
        raise ArgumentTypeError(
            f"{op.name} got no distributed operand; make one with distarray.asarray(x), or use "
            "NumPy's function"
        )
    if open_traces and op.defer is not None and not (uncertain or functions):
        deferred = op.defer(op, operands, static)
        if deferred is not None:
            return deferred
    if op.plain is None:
        operands = [
            x if isinstance(x, BaseArray) or _backend.is_buffer(x) else np.asarray(x)
            for x in operands
        ]
    step = step_for(op, operands, static)
    blocks = local_blocks(op.name, first, operands)
    if not step.still:
        blocks = _move(step, blocks, operands, functions)
        if step.outside and op.plain is not None:  # numbers that dtypes cannot hold
            stand_ins = [stand_in(getattr(x, "dtype", x)) for x in operands]
            op.plain(op, stand_ins, static)
    if uncertain:
        block = call_on_all(step.output.mesh, op.name, lambda: step.run(*functions, *blocks))
    else:
        block = step.run(*functions, *blocks)
    return wrapped(first, step, block)


def _run_known(op: Op, operands: Sequence[Any], static: Any, functions: tuple[Any, ...]) -> Any:
    """Return the result for operands as they mostly are, with processes; None for others.

    Those are distributed arrays and, beside blocks of NumPy's, its plain arrays and numbers.
    """
    key, blocks, is_mixed = [op, static], [], False
    like: Any = None
    for x in operands:
        if isinstance(x, BaseArray):
            if like is None:
                like = x
            block = x._local
            key += x._layout, block.dtype
        else:
            block, is_mixed = x, True
            if x.__class__ is np.ndarray and not x.dtype.hasobject:
                key += x.shape if x.ndim or op.plain is None else None, x.dtype
            elif op.plain is not None and (x.__class__ in _NUMBERS or isinstance(x, np.generic)):
                key += None, dtype_key(x)
            else:
                return None
        blocks.append(block)
    if like is None or (is_mixed and like._local.__class__ is not np.ndarray):
        return None
    if op.check is not None and op.check(operands, static):
        return None
    step = steps[tuple(key)]
    if step.outside:
        return None
    if not step.still:
        blocks = _move(step, blocks, operands, functions)
    return wrapped(like, step, step.run(*functions, *blocks))


def _move(step: Step, blocks: Sequence[Any], operands: Sequence[Any], functions: Any) -> list[Any]:
    """Return `step.move`, which keeps nothing that functions of users write into, perhaps."""
    return step.move(blocks, blocks if functions else operands, step.bring)


def wrapped(like: BaseArray, step: Step, block: Any) -> Any:
    """Return what the local step gives as arrays of the class of an operand."""
    if block.__class__ is tuple:
        layouts = step.outputs if step.made is None else [step.made(block[0])] * len(block)
        return tuple([like._new(one, layout) for one, layout in zip(block, layouts, strict=True)])
    result = like._new(block, step.output if step.made is None else step.made(block))
    if step.is_fresh:
        result._reduced = None
    return result


def step_for(op: Op, operands: Sequence[Any], static: Any = None) -> Step:
    """Return the step of an operation on operands that are as the operation takes them."""
    parts: list[Any] = []
    for x in operands:
        if isinstance(x, BaseArray):
            parts += x._layout, x.dtype if open_traces else x._local.dtype
        elif x.__class__ in _NUMBERS:
            parts += None, x.__class__
        elif hasattr(x, "dtype") and (x.ndim or op.plain is None):
            parts += x.shape, x.dtype
        else:
            parts += None, dtype_key(x)
    found: Step = steps[(op, static, *parts)]
    return found


def run_one(op: Op, x: BaseArray, static: Any) -> Any:
    """Return `run(op, (x,), static)` of a distributed array, by the shortest way."""
    if open_traces and op.defer is not None:
        deferred = op.defer(op, (x,), static)
        if deferred is not None:
            return deferred
    block = x._local
    step = steps[op, static, x._layout, block.dtype]
    block = step.run(block) if step.still else step.run(*step.move((block,), (x,)))
    result = x._new(block, step.output if step.made is None else step.made(block))
    if step.is_fresh:
        result._reduced = None
    return result


def run_once(op: Op, x: BaseArray, static: Any) -> Any:
    """Return `run_one(op, x, static)`, which nothing remembers: `static` needs no hash."""
    step = Step(op, (x._layout,), (x._local.dtype,), static)
    block = step.run(*step.move((x._local,), (x,)))
    return x._new(block, step.output if step.made is None else step.made(block))


class Step:
    """What one process does for an operation on operands of given layouts and dtypes.

    Attributes
    ----------
    op, call, spec
        What is resolved.
    moves
        For each operand (layout it has, layout it must have), or None where it fits, or comes by
        panels.
    sources
        Layouts of the operands that are arrays, once they have moved.
    partial, output
        Layout of what the local step gives, and of the result.
    boxes
        Of the blocks whose states the second local step gets.
    bring
        What brings blocks to the layouts that they must have.
    total, adds, result
        Dtypes: of what the local step gives (of each array of a state), that in which it adds up,
        of the result. Half precision adds up in float32 on all ranks together, and is rounded once.
    outside
        This process is not in the mesh: it has no items and calls no function.
    sends
        What the local step itself sends; see `Layouts`.
    panels
        What it brings by panels; see `Panels`.
    still
        Nothing moves and this process is in the mesh.
    refuses
        The function may raise because of some items; the ranks tell each other.
    is_fresh
        The result is Partial, and in memory that nobody else has.
    outputs
        Layouts of all results; `output` is the first.
    run
        Function of the blocks.
    made
        Function of the result's block that gives its layout, where that is not `output`.
    """

    __slots__ = (
        "adds", "boxes", "bring", "call", "is_fresh", "made", "moves", "op", "output", "outputs",
        "outside", "panels", "partial", "refuses", "result", "run", "sends", "sources", "spec",
        "still", "total",
    )  # fmt: skip

    def __init__(self, op: Op, parts: Sequence[Any], dtypes: Sequence[Any], static: Any) -> None:
        places = [i for i, part in enumerate(parts) if part is not None]
        layouts = lift_layouts(op.name, [parts[i] for i in places])
        if op.combine and op.instead and dtypes[places[0]].kind not in REDUCTIONS[op.combine].kinds:
            op = op.instead
        self.op = op
        self.call = Call(layouts, dtypes, static, places)
        if op.plain is None and op.kinds:
            check_kinds(op.name, dtypes, op.kinds)
        self.total, self.result = op.dtypes(op, self.call)
        self.adds = self.total
        self.spec = op.spec(op, self.call)
        moves = self._resolve(layouts)
        self.sources = [dst[1] if dst else src for dst, src in zip(moves, layouts, strict=True)]
        self.panels: Panels | None = None
        if op.panels is not None and any(moves):
            self.panels = op.panels(self, moves)
        if self.panels is not None:  # what is Partial is reduced, the rest stays where it is
            moves = [
                move if panels is None else None if layout is panels[0] else (layout, panels[0])
                for layout, move, panels in zip(layouts, moves, self.panels.moves, strict=True)
            ]
        spread: list[Any] = [None] * len(parts)
        for place, step in zip(places, moves, strict=True):
            spread[place] = step
        self.moves = tuple(spread)
        mesh: Any = self.partial.mesh
        self.outside: bool = mesh.coordinate is None
        self.sends = self.spec.sends if isinstance(self.spec, Layouts) else ()
        is_still = not any(moves) and not self.sends and self.panels is None
        self.still = not self.outside and is_still
        if any(layout.is_counted for layout in layouts):
            for one in (*self.sources, self.partial):
                mark_counted(one)
        self.output = self.partial
        combine = self.spec.combine if isinstance(self.spec, Spec) else None
        if combine is not None and self.total is not None and self.partial.has_partial:
            if combine == "sum" and self.total.char == "e":
                self.adds = np.dtype(np.float32)
            if self.adds is not self.total or op.finish is not None:
                self.output = self.partial.without_partial()
        self.outputs = (self.output,) * (len(self.result) if isinstance(self.result, tuple) else 1)
        if op.outputs is not None:
            self.outputs = op.outputs(self)
            self.output = self.outputs[0]
        self.made = self._layout_maker()
        # Of durations states add up, whatever the function.
        merges = op.finish is not None and getattr(self.result, "kind", "") == "m"
        self.refuses = refuses_items(np.add if merges else op.ufunc, dtypes)
        # Of what was not Partial only a reduction makes what is; of the rest a view may be made.
        reduces = not any(layout.has_partial for layout in self.sources) or op.ufunc is not None
        is_letters = isinstance(self.spec, Spec) and self.made is None
        self.is_fresh = self.output.has_partial and is_letters and reduces
        # What a ufunc gives is never a view of its operands, which may be views themselves.
        is_fresh = op.ufunc is not None or op.is_fresh
        self.bring = read_local if is_letters and is_fresh else redistribute_local
        self.run = self._bound()

    def __str__(self) -> str:
        return f"{self.op.name} of {', '.join(map(str, self.sources))}"

    @property
    def plan(self) -> Any:
        """What the spec has found out that the local step has to know."""
        assert isinstance(self.spec, Layouts)
        return self.spec.plan

    def token(self, *what: object) -> int:
        """Return a number that tells this step from others, the same on all ranks."""
        layouts = [source.fingerprint for source in self.sources]
        dtypes = [dtype.str for dtype in self.call.dtypes]
        return token(self.op.name, *what, layouts, self.call.static, dtypes)

    def ask(self) -> None:
        """Ask the policy about what the local step sends by itself."""
        for src, dst, planned in self.sends:
            (permit if planned else permit_exchange)(self.op.name, src, dst, self.call.dtypes[0])

    def move(
        self,
        blocks: Sequence[Any],
        operands: Sequence[Any] | None = None,
        bring: Callable[..., Buffer] = redistribute_local,
    ) -> list[Any]:
        """Return blocks as the local step takes them, after asking the policy about all sending.

        Of `operands` that are Partial it is kept what they are reduced to.
        """
        self.ask()
        if self.panels is not None:
            for one, dtype in zip(self.panels.moves, self.call.dtypes, strict=True):
                if one is not None:
                    permit(self.op.name, *one, dtype)
        if not any(self.moves):
            return [*blocks]
        return move_all(self.op.name, operands or blocks, blocks, self.moves, bring)

    def _layout_maker(self) -> Callable[[Buffer | None], Layout] | None:
        """Return the function of a block that gives the result's layout, where `output` is not."""
        make = self.op.made
        if isinstance(self.spec, Layouts) and self.spec.counted is not None:
            return _Lengths(self, self.spec.counted)
        if make is None:
            return None

        def made(block: Buffer | None) -> Layout:
            layout = make(self, None if self.outside else block)
            if self.partial.is_counted:
                mark_counted(layout)
            return layout

        return made

    def _resolve(self, layouts: Sequence[Layout]) -> Sequence[Any]:
        """Find `partial`; return for each array (layout it has, layout it must have), or None."""
        op, spec = self.op, self.spec
        if isinstance(spec, DimMap):
            required, self.partial = propagate(spec, layouts[0])
            return [None if required is layouts[0] else (layouts[0], required)]
        if isinstance(spec, Layouts):
            self.partial = spec.output
            pairs = zip(layouts, spec.inputs, strict=True)
            return [None if have is required else (have, required) for have, required in pairs]
        work = None if op.work is None else functools.partial(op.work, spec)
        dtypes = [self.call.dtypes[place] for place in self.call.places]
        dtypes.append(self.total if isinstance(self.total, np.dtype) else _NUMBER)
        sizes = [max(dtype.itemsize, 1) for dtype in dtypes]
        moves, self.partial = resolve(spec, layouts, sizes, work)
        if spec.exchanged and self._states_outgrow(moves[0][1] if moves[0] else layouts[0], spec):
            # The exchange finds that nothing is cut along its axes: kept axes are, instead.
            moves, self.partial = resolve(spec._replace(exchanged=None), layouts, sizes, work)
        combine = spec.combine if self.partial.has_partial else None
        kind = None if combine is None or self.total is None else self.total.kind
        if combine and kind and not REDUCTIONS[combine].has_exact_identity(kind):
            source = moves[0][1] if moves[0] else layouts[0]
            if _has_empty_block(source, spec):  # it must contribute nothing, and could not
                self.spec = spec._replace(combine=None, partial=())
                moves, self.partial = resolve(self.spec, layouts, sizes, work)
        return moves

    def _states_outgrow(self, source: Layout, spec: Spec) -> bool:
        """Tell whether every rank would get more of states than it has items, and many of them."""
        if spec.prefix is not None:  # which hold little more than one
            return False
        blocks, depth, lines = _extents(source, spec)
        state = sum(dtype.itemsize for dtype in self.total)
        # Of states that are merged a rank gets as much as it has, and what becomes of them.
        got = state + self.result.itemsize if _merges(spec) else blocks * state
        items = depth * self.call.dtypes[0].itemsize
        return blocks > 1 and got > items and blocks * state * lines > _MANY_STATES

    def _bound(self) -> Callable[..., Buffer]:
        """Return the function of this process's blocks."""
        op, output, result, refuses = self.op, self.output, self.result, self.refuses
        mesh: Any = output.mesh
        if self.outside:
            layout = output if self.made is None else self.made(None)
            fixed = _backend.make_read_only if self._is_copied_view() else lambda block: block

            def nothing(*_: Any) -> Any:
                if isinstance(result, tuple):
                    return tuple(map(empty_block, self.outputs, result))
                return fixed(empty_block(layout, result))

            return nothing
        local = op.bind(self)
        if not isinstance(self.spec, Spec):
            if self._is_copied_view():
                return lambda *args: _backend.make_read_only(local(*args))
            return local
        if self.spec.exchanged is not None:
            return self._exchanging(local)
        total = self.total
        if op.finish is None and self.adds is total:
            call = call_refusing if op.ufunc is np.power else call_on_all

            def simple(*blocks: Any) -> Any:
                if refuses or (error_state() is not DEFAULT_ERROR_STATE and errors_raise()):
                    return call(mesh, op.name, lambda: _fit(local(*blocks), total))
                block = local(*blocks)
                if block.__class__ is np.ndarray:
                    return block
                return np.asarray(block) if isinstance(block, np.generic) else _fit(block, total)

            return simple
        partial, adds = self.partial, self.adds
        finish = None if op.finish is None else op.finish(self)
        bring = redistributing(partial, output, adds)

        def reduce(block: Buffer) -> Buffer:
            if block.dtype != adds:  # of a row that gives another than it says
                return redistribute_local(block, partial, output)
            return bring(block)

        def finish_sums(sums: Buffer) -> Buffer:
            sums = sums if adds is total else sums.astype(total)
            return sums if finish is None else _fit(finish(sums), result)

        def reduce_and_finish(*blocks: Any) -> Buffer:
            if refuses or errors_raise():
                block = call_on_all(mesh, op.name, lambda: _fit(local(*blocks), adds))
                sums = reduce(block)
                return call_on_all(mesh, op.name, lambda: finish_sums(sums))
            return finish_sums(reduce(_fit(local(*blocks), adds)))

        return reduce_and_finish

    def _is_copied_view(self) -> bool:
        """Tell whether the result is a copy where NumPy's is a view: it is read-only then."""
        if isinstance(self.spec, Layouts):
            return self.spec.copies_view
        return isinstance(self.spec, DimMap) and any(self.moves)

    def _exchanging(self, local: Callable[..., State]) -> Callable[..., Buffer]:
        """Return the function that exchanges states between the first and the second local step."""
        op, refuses = self.op, self.refuses
        assert op.finish is not None
        exchange = _Exchange(self)
        self.boxes = exchange.boxes
        finish = op.finish(self)
        assert isinstance(self.spec, Spec)
        has_prefix = self.spec.prefix is not None
        mesh: Any = self.output.mesh
        name, result, total = op.name, self.result, self.total
        shape = self.output.local_shape() if _merges(self.spec) else None
        is_lacking = None if op.otherwise is None else self._agreement(exchange)

        def first(*blocks: Any) -> State:
            if not exchange.has_items:
                return exchange.nothing
            state = local(*blocks)
            # A row may have no state to send where no other block has a part in the result.
            for part, dtype in zip(state, total, strict=False):
                if part.__class__ is not np.ndarray or part.dtype is not dtype:
                    break
            else:
                return state
            return tuple([_as_state(*one) for one in zip(state, total, strict=False)])

        def second(states: Any, *blocks: Any) -> Any:
            found = finish(states, *blocks)
            return None if found is None else as_block(found)

        def exchanged(*blocks: Any) -> Buffer:
            raises = refuses or (error_state() is not DEFAULT_ERROR_STATE and errors_raise())
            states: Any = None
            if not has_prefix or not exchange.is_alone:  # else nothing comes before this block
                state = (
                    call_on_all(mesh, name, lambda: first(*blocks)) if raises else first(*blocks)
                )
                if not has_prefix:
                    states = exchange(state)
                else:
                    call = call_on_all if raises else call_alike
                    states = call(mesh, name, lambda: exchange.fold_before(state))
            # What one rank makes of its part of the states, an error or a warning that is one, the
            # others do not know of.
            if raises or exchange.shares:
                block = call_on_all(mesh, name, lambda: second(states, *blocks))
            else:
                block = second(states, *blocks)
            if is_lacking is not None and is_lacking(block is None):
                return self._run_otherwise(blocks)
            if exchange.shares:
                block = exchange.gather(block)
            if shape is not None and block.shape != shape:
                block = block.reshape(shape)
            if block.__class__ is blocks[0].__class__ is np.ndarray:
                return block
            return _fit(_backend.asarray(block, _backend.device_of(blocks[0])), result)

        return exchanged

    def _agreement(self, exchange: _Exchange) -> Callable[[bool], bool]:
        """Return what tells whether any rank of the mesh lacks something, which one rank knows."""
        if exchange.is_alone:
            return lambda _: False
        mesh: Any = self.output.mesh
        everyone = several_ranks(mesh, range(mesh.ndim))
        assert everyone is not None  # as some of them exchange states
        if everyone.size == exchange.size and not exchange.shares:  # all of them know
            return lambda lacks: lacks
        number = self.token("lacks")
        return lambda lacks: any(gather_lengths(everyone, int(lacks), number, self))

    def _run_otherwise(self, blocks: Sequence[Any]) -> Buffer:
        """Return what `Op.otherwise` makes of the blocks, in the layout of this result."""
        layouts: list[Any] = [None] * len(self.call.dtypes)
        for place, source in zip(self.call.places, self.sources, strict=True):
            layouts[place] = source
        parts = itertools.chain(*zip(layouts, self.call.dtypes, strict=True))
        step: Step = steps[self.op.otherwise, self.call.static, *parts]
        return redistribute_local(step.run(*step.move(blocks)), step.output, self.output)


def _as_state(part: Any, dtype: Any) -> Buffer:
    """Return a part of a state in host memory, in the dtype that all ranks read, and its order."""
    if part.__class__ is np.ndarray and part.dtype == dtype:
        return part  # type: ignore[no-any-return]
    return _backend.to_host(as_block(part)).astype(dtype, copy=False)


def _fit(result: Any, dtype: Any) -> Any:
    """Return a result as an array, in the dtype that NumPy gives it, or several as they are."""
    if result.__class__ is np.ndarray:
        return result
    if result.__class__ is tuple:
        return tuple(map(as_block, result))
    block = as_block(result)
    return block if dtype is None or _backend.is_numpy(block) else _on_device.as_dtype(block, dtype)


def _has_empty_block(source: Layout, spec: Spec) -> bool:
    """Tell whether some process has no items along axes that the result lacks, where others do."""
    gone = [axis for axis, letter in enumerate(spec.inputs[0]) if letter not in spec.output]
    parts = [source.partition(axis) for axis in gone]
    return source.size > 0 and not all(split.smallest for split in parts)


def _merges(spec: Spec) -> bool:
    """Tell whether the states of all blocks become one, item by item."""
    return spec.prefix is None and set(spec.exchanged or ()).isdisjoint(spec.output)


def _extents(source: Layout, spec: Spec) -> tuple[int, int, int]:
    """Return how many blocks exchange states, and the largest block's reduced and kept items."""
    blocks, depth, lines = 1, 1, 1
    for axis, letter in enumerate(spec.inputs[0]):
        count = source.partition(axis).count
        length = -(-source.shape[axis] // count)
        if letter in (spec.exchanged or ()):
            blocks, depth = blocks * count, depth * length
        else:
            lines *= length
    return blocks, depth, lines


class _Exchange:
    """The exchange of states along the mesh axes that cut the exchanged axes.

    Attributes
    ----------
    boxes
        Of the blocks whose states are given: those with items, or this rank's.
    has_items
        Whether this rank's block has any.
    is_alone
        Nobody else has a part of this block's lines.
    size
        How many ranks exchange states.
    shares
        Every rank gets a part of all states and makes that part of the result; alike in the mesh.
    """

    def __init__(self, step: Step) -> None:
        assert isinstance(step.spec, Spec)
        source, letters = step.sources[0], step.spec.inputs[0]
        exchanged = step.spec.exchanged or ()
        axes = [axis for axis, letter in enumerate(letters) if letter in exchanged]
        cutting = tuple(m for axis in axes for m in source.sharding_axes(axis))
        self._combine = step.spec.prefix
        if self._combine is None:  # else the ranks are those of the blocks in order
            cutting = tuple(sorted(cutting))
        self._step = step
        self._token, self._communicator = step.token(), several_ranks(source.mesh, cutting)
        everyone = _boxes_along(source, cutting)
        self._filled = [i for i, box in enumerate(everyone) if boxes.volume(box)]
        blocks, _, lines = _extents(source, step.spec)
        nbytes = blocks * lines * sum(dtype.itemsize for dtype in step.total)
        self.shares = (
            self._communicator is not None
            and _merges(step.spec)
            and source.size > 0
            and nbytes > FOLDED_BY_ALL
        )
        own = source.own_box
        self.boxes: Sequence[Box] = [own]
        if self._communicator is not None and self._filled:
            self.boxes = [everyone[i] for i in self._filled]
        self._is_full = len(self._filled) == len(everyone)
        self._places: list[Any] | None = None
        self.has_items = boxes.volume(own) > 0
        shape = tuple(1 if i in axes else n for i, n in enumerate(source.local_shape()))
        if self._communicator is not None:
            parts = chunk(prod(shape), (self._communicator.size,))
            self._counts = [stop - start for start, stop in pairwise(parts.offsets)]
        self.nothing: State = tuple(np.zeros(shape, dtype) for dtype in step.total)
        """What a block without items sends."""
        self.is_alone = self._communicator is None
        self.size = 1 if self._communicator is None else self._communicator.size

    def __call__(self, state: State) -> States:
        """Return the states of all blocks that have items, or else one of nothing."""
        if self._communicator is None:
            return tuple([part[np.newaxis] for part in state])
        get = self._scatter if self.shares else self._gather
        states = get(self._communicator, state)
        if self._is_full:
            return states
        # Where no block has items, nor has this part of the result.
        return tuple([part[self._filled] if self._filled else part[:1] for part in states])

    def fold_before(self, state: State) -> np.ndarray | None:
        """Return what the states of the blocks before this one come to; None of none."""
        if self._communicator is None:
            return None
        (part,), combine = state, self._combine
        assert combine is not None  # else the states are asked for
        return exclusive_scan(
            self._communicator, part, combine, self._filled, self._token, self._step
        )

    def gather(self, part: np.ndarray) -> np.ndarray:
        """Return the results of all ranks, each of its part of the states."""
        assert self._communicator is not None  # else there are no parts
        return gather_parts(self._communicator, part, self._counts, self._token, self._step)

    def _scatter(self, comm: Communicator, state: State) -> States:
        """Return this rank's part of the states of all ranks."""
        return tuple(
            [
                scatter_states(comm, part.reshape(-1), self._counts, self._token, self._step)
                for part in state
            ]
        )

    def _gather(self, comm: Communicator, state: State) -> States:
        """Return the states of all ranks, once they agree on what these are of."""
        mine = b"".join([part.tobytes() for part in state])
        everyone = join_states(comm, mine, self._token, self._step)
        if self._places is None:
            starts = accumulate([part.nbytes for part in state], initial=0)
            self._places = [
                ((comm.size, *part.shape), part.dtype, start, (len(mine), *_strides(part)))
                for part, start in zip(state, starts, strict=False)
            ]
        # Looked at where they lie, which for small states takes half of the time of `view`.
        return tuple(
            [
                np.ndarray(shape, dtype, everyone, start, strides)
                for shape, dtype, start, strides in self._places
            ]
        )


def _strides(part: Buffer) -> tuple[int, ...]:
    """Return the strides of an array in C order."""
    return tuple([prod(part.shape[axis + 1 :]) * part.itemsize for axis in range(part.ndim)])


def unknown_shape(step: Step) -> MeshError:
    """Return the error for a process outside the mesh whose values tell the shape of a result."""
    return MeshError(
        f"this process is not in {step.output.mesh} and cannot know the shape of the result of "
        f"{step.op.name}, which depends on values there; call it only where "
        "mesh.coordinate is not None"
    )


_LENGTHS = 8
"""Lengths whose layouts are looked up: a few masks in turn, as of labels, have few of them."""


class _Lengths:
    """The exchange of the lengths that values give to the blocks of a result along an axis."""

    def __init__(self, step: Step, axis: int) -> None:
        self._step, self._axis, self._template = step, axis, step.output
        if step.outside:
            raise unknown_shape(step)
        # In the order of the cuts, so that ranks are numbered as blocks are.
        self._communicator = several_ranks(step.output.mesh, step.output.sharding_axes(axis))
        self._known: dict[tuple[int, ...], ref[Layout]] = {}
        self._token = step.token("lengths")

    def __call__(self, block: Buffer | None) -> Layout:
        """Return the layout of the result (collective along the mesh axes that cut the axis)."""
        assert block is not None  # only of processes outside the mesh
        length: int = block.shape[self._axis]
        lengths: tuple[int, ...] = (length,)
        if self._communicator is not None:
            lengths = tuple(gather_lengths(self._communicator, length, self._token, self._step))
        known = self._known.get(lengths)
        layout = None if known is None else known()
        if layout is None:
            layout = counted(self._template, self._axis, lengths)
            if len(self._known) >= _LENGTHS:
                self._known.clear()
            self._known[lengths] = ref(layout)
        return layout


def _boxes_along(layout: Layout, mesh_axes: Sequence[int]) -> list[Box]:
    """Return the boxes of the ranks that differ from this one along `mesh_axes`, in rank order."""
    mesh: Any = layout.mesh
    found = []
    for index in np.ndindex(*(mesh.shape[axis] for axis in mesh_axes)):
        coordinate = list(mesh.coordinate)
        for axis, i in zip(mesh_axes, index, strict=True):
            coordinate[axis] = i
        box = layout.local_box(tuple(coordinate))
        assert box is not None  # the coordinate is in the mesh
        found.append(box)
    return found
