"""Products by panels: what ranks would need more of than they hold, they get a panel at a time.

One axis of the iteration space, a letter of the product, is cut into panels. If the result has the
letter, each panel gives a slice of the result; else the products of panels are added up. On a mesh
of two axes that cut both matrices alike, panels of both come along the axis that is summed: SUMMA
(van de Geijn and Watts, "SUMMA: scalable universal matrix multiplication algorithm", 1997).

Where all ranks that exchange are of one node and their blocks are wide, a panel is a block of
another rank, which NumPy multiplies where it lies. Elsewhere a panel is redistributed as any array
is, between nodes in the background while the one before it is multiplied, so that a rank never
holds more than two of each operand, and the messages for one.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import accumulate, pairwise, product
from typing import Any, Final

import numpy as np

from distarray.comm import _backend, _memory
from distarray.core import Letters, Move, Panels, Spec, Step
from distarray.layout import Layout, mark_counted
from distarray.ops.families._relabel import resize_axis
from distarray.redistribute import (
    Handle,
    read_in_place,
    reads_in_place,
    redistribute_async,
    redistribute_local,
)
from distarray.typing import Buffer

PANEL_BYTES: Final = 16 << 20
"""What operands may have in all to become whole on every rank, however little it holds, and what a
panel of more has at least: 512 columns of 4096 float64. Measured on Zen 5: multiplied by panels of
so many, OpenBLAS takes 1 % longer than at once, by 256 5 %, by 128 12 %, as it packs the other
matrix for each panel."""

NARROW: Final = 512
"""Length of a block below which it is not multiplied where it lies. Measured on Zen 4: pieces of
512 columns, or of 512 rows that are added up, take 3 to 5 % longer than the whole, as long as
making a copy of it does; 256 take 5 to 12 %."""

Range = tuple[int, int]
Panel = tuple[list[Range], list[Any]]
"""Which part of each cell is in a panel, and its parts of the blocks, or what waits for them."""

Extents = dict[int, Range]
"""Which part of a block a piece is, for letters."""


def choose_panels(step: Step, moves: Sequence[Move]) -> Panels | None:
    """Return how operands come of which ranks would get more than they hold, where these are large.

    The letter is the one that leaves the least of them on a rank at a time; of such letters one
    that the result has, so that nothing has to be added up.
    """
    spec, layouts = step.spec, step.call.layouts
    assert isinstance(spec, Spec)  # of letters
    inputs, output = spec.inputs, spec.output
    grown = find_large(step, moves)
    if not grown:
        return None
    total = sum(grown.values())
    found: list[tuple[tuple[int, bool, int], Panels]] = []
    for letter in {x: None for i in grown for x in inputs[i] if x is not None}:
        come = [i for i in grown if letter in inputs[i]]
        chosen: list[Move] = [None] * len(moves)
        for i in come:
            chosen[i] = layouts[i].without_partial(), step.sources[i]
        cells = _find_cells(letter, inputs, step.sources, chosen)
        nbytes = sum(grown[i] for i in come)
        panel = max(PANEL_BYTES, *(_block_bytes(layouts[i], step.call.dtypes[i]) for i in come))
        count = min(-(-nbytes // panel), max(stop - start for start, stop in cells))
        left = total - nbytes + max(panel, nbytes // count)
        found.append(((left, letter not in output, len(cells)), Panels(letter, count, (*chosen,))))
    return min(found, key=operator.itemgetter(0))[1]


def find_large(step: Step, moves: Sequence[Move]) -> dict[int, int]:
    """Return the bytes of operands of which ranks would get more than they hold; {} of small ones.

    They are small if they have no more bytes in all than `PANEL_BYTES`, or than the largest block
    of an operand or of the result.
    """
    dtypes = step.call.dtypes
    blocks = [*map(_block_bytes, step.call.layouts, dtypes)]
    grown = {
        i: nbytes
        for i, move in enumerate(moves)
        if move is not None and (nbytes := _block_bytes(move[1], dtypes[i])) > blocks[i]
    }
    allowed = max(PANEL_BYTES, *blocks, _block_bytes(step.partial, step.total))
    return grown if sum(grown.values()) > allowed else {}


class MultiplyByPanels:
    """The local step: a function of blocks, of which those that come by panels have not moved."""

    def __init__(self, step: Step, panels: Panels) -> None:
        spec = step.spec
        assert isinstance(spec, Spec)  # of letters
        self._step = step
        self._inputs, self._output = spec.inputs, spec.output
        self._letter, self._moves = panels.letter, panels.moves
        self._have = [
            source if move is None else move[0]
            for source, move in zip(step.sources, panels.moves, strict=True)
        ]
        self._cells = _find_cells(panels.letter, self._inputs, step.sources, panels.moves)
        self._pieces = [(cell, -(-(cell[1] - cell[0]) // panels.pieces)) for cell in self._cells]
        self._adds_up = panels.letter not in self._output
        self._is_wide = all(_is_wide(*move) for move in panels.moves if move is not None)
        # Half precision is rounded once, after all is added up.
        self._dtype = np.dtype(np.float32) if step.total.char == "e" else step.adds
        self._layouts: dict[tuple[int, ...], list[Move]] = {}

    def __call__(self, *blocks: Buffer) -> Buffer:
        step, letter = self._step, self._letter
        device = _backend.device_of(blocks[0])
        result = _memory.empty(step.partial.local_shape(), self._dtype, device)
        reads = self._reads_in_place()
        if reads and self._is_wide:
            self._multiply_in_place(blocks, result)
            return result if self._dtype is step.adds else result.astype(step.adds)
        is_begun, failed = False, None
        for ranges, parts in self._panels(blocks, in_background=not reads):
            i, letters = next((i, x) for i, x in enumerate(self._inputs) if letter in x)
            if not parts[i].shape[letters.index(letter)] or failed is not None:
                continue
            try:
                if not self._adds_up:
                    self._fill(parts, ranges, result)
                elif is_begun:
                    self._add(parts, result)
                else:
                    self._multiply(parts, result)
                    is_begun = True
            except Exception as error:  # the others wait for what they need of this block
                failed = error
        if failed is not None:
            raise failed
        if self._adds_up and not is_begun:
            result[...] = 0
        return result if self._dtype is step.adds else result.astype(step.adds)

    def _reads_in_place(self) -> bool:
        found = zip(self._moves, self._step.call.dtypes, strict=True)
        return reads_in_place([(*move, dtype) for move, dtype in found if move is not None])

    def _multiply_in_place(self, blocks: Sequence[Buffer], result: Buffer) -> None:
        """Multiply pieces where they lie, in one order, as ranks may have the same result."""
        pieces: list[list[tuple[Extents, Buffer]]] = []
        with ExitStack() as stack:
            for letters, block, move in zip(self._inputs, blocks, self._moves, strict=True):
                if move is None:
                    pieces.append([({}, block)])
                    continue
                found = stack.enter_context(read_in_place(block, *move))
                pieces.append([(_extents(letters, at), _for_blas(values)) for at, values in found])
            begun: set[tuple[Range | None, ...]] = set()
            for chosen in product(*pieces):
                common = _intersect([extents for extents, _ in chosen])
                parts = [
                    values[_region(letters, common, extents)]
                    for letters, (extents, values) in zip(self._inputs, chosen, strict=True)
                ]
                if not all(part.size for part in parts):
                    continue
                out = result[_region(self._output, common, {})]
                where = tuple([common.get(letter) for letter in self._output if letter is not None])
                if where in begun:
                    self._add(parts, out)
                else:
                    self._multiply(parts, out)
                    begun.add(where)
        if not begun:
            result[...] = 0

    def _panels(self, blocks: Sequence[Buffer], in_background: bool) -> Iterator[Panel]:
        """Yield each panel, while the next one comes in the background."""
        begin: Any = redistribute_async if in_background else redistribute_local
        on_way: deque[Panel] = deque()
        for ranges in self._ranges():
            on_way.append((ranges, self._begin(begin, blocks, ranges)))
            if len(on_way) > in_background:
                yield from self._take_first(on_way)
        while on_way:
            yield from self._take_first(on_way)

    @staticmethod
    def _take_first(on_way: deque[Panel]) -> Iterator[Panel]:
        """Yield the first panel when it is there; it is let go before another one begins."""
        ranges, parts = on_way.popleft()
        parts[:] = [part.wait() if isinstance(part, Handle) else part for part in parts]
        yield ranges, parts
        parts.clear()

    def _begin(self, begin: Any, blocks: Sequence[Buffer], ranges: Sequence[Range]) -> list[Any]:
        """Return a panel's parts of the blocks, or what waits for them."""
        parts: list[Any] = []
        for i, (block, move) in enumerate(zip(blocks, self._moves_of(ranges), strict=True)):
            part = block
            if self._letter in self._inputs[i]:
                axis = self._inputs[i].index(self._letter)
                part = _take(block, axis, _own(ranges, self._have[i], axis))
            parts.append(part if move is None else begin(part, *move))
        return parts

    def _ranges(self) -> Iterator[list[Range]]:
        """Yield for each panel which part of each cell is in it."""
        at = 0
        while any(start + at * width < stop for (start, stop), width in self._pieces):
            yield [
                (min(start + at * width, stop), min(start + (at + 1) * width, stop))
                for (start, stop), width in self._pieces
            ]
            at += 1

    def _moves_of(self, ranges: Sequence[Range]) -> list[Move]:
        """Return for each operand the layouts of a panel before and after, if it comes by panels.

        Most panels are alike in that.
        """
        widths = tuple(stop - start for start, stop in ranges)
        found = self._layouts.get(widths)
        if found is None:
            bounds = [self._cells[0][0], *(stop for _, stop in self._cells)]
            offsets = dict(zip(bounds, accumulate(widths, initial=0), strict=True))
            found = []
            for letters, move in zip(self._inputs, self._moves, strict=True):
                if move is None:
                    found.append(None)
                else:
                    axis = letters.index(self._letter)
                    src, dst = (_narrowed(layout, axis, offsets) for layout in move)
                    found.append((src, dst))
            if any(layout.is_counted for layout in self._step.sources):
                for layout in (one for move in found if move is not None for one in move):
                    mark_counted(layout)
            self._layouts[widths] = found
        return found

    def _fill(self, parts: Sequence[Buffer], ranges: Sequence[Range], result: Buffer) -> None:
        """Put the product of a panel into its stretches of the result."""
        axis = self._output.index(self._letter)
        own = _own(ranges, self._step.partial, axis)
        if len(own) == 1:
            self._multiply(parts, result[_slice(axis, *own[0])])
            return
        width = sum(stop - start for start, stop in own)
        shape = (*result.shape[:axis], width, *result.shape[axis + 1 :])
        piece = _memory.empty(shape, result.dtype, _backend.device_of(result))
        self._multiply(parts, piece)
        at = 0
        for start, stop in own:
            result[_slice(axis, start, stop)] = piece[_slice(axis, at, at + stop - start)]
            at += stop - start

    def _add(self, parts: Sequence[Buffer], result: Buffer) -> None:
        """Add the product of a panel to the result, of which `PANEL_BYTES` are made at a time."""
        if not result.ndim:
            self._add_part(parts, result)
            return
        axis = max(range(result.ndim), key=result.shape.__getitem__)
        letter, length = self._output[axis], result.shape[axis]
        rows = max(length * PANEL_BYTES // max(result.nbytes, 1), 1)
        for start in range(0, length, rows):
            own = [
                part[_slice(letters.index(letter), start, start + rows)]
                if letter in letters
                else part
                for letters, part in zip(self._inputs, parts, strict=True)
            ]
            self._add_part(own, result[_slice(axis, start, start + rows)])

    def _add_part(self, parts: Sequence[Buffer], out: Buffer) -> None:
        piece = _memory.empty(out.shape, out.dtype, _backend.device_of(out))
        self._multiply(parts, piece)
        out += piece  # of booleans it is or

    def _multiply(self, parts: Sequence[Buffer], out: Buffer) -> None:
        """Put the product of parts of blocks into a part of the result."""
        step = self._step
        static = () if step.call.static is None else (step.call.static,)
        if self._dtype is not step.total:
            parts = [part.astype(self._dtype) for part in parts]
        is_here = _backend.is_numpy(out)
        if step.op.ufunc is not None and is_here and not static:
            step.op.local(*parts, out=out)
        elif not is_here and any(not part.size for part in parts):  # of nothing it is zeros
            out[...] = 0
        else:
            out[...] = step.op.local(*parts, *static)


def _find_cells(
    letter: int, inputs: Sequence[Letters], sources: Sequence[Layout], moves: Sequence[Move]
) -> list[Range]:
    """Return the pieces of an axis that no layout cuts; every panel gets a part of each."""
    offsets: set[int] = set()
    for letters, source, move in zip(inputs, sources, moves, strict=True):
        if letter in letters:
            for layout in (source, *(move or ())):
                offsets.update(layout.partition(letters.index(letter)).offsets)
    return [*pairwise(sorted(offsets))]


def _is_wide(src: Layout, dst: Layout) -> bool:
    """Tell whether blocks of `src` are long along all axes of which `dst` has more."""
    lengths = [(src.partition(a).largest, dst.partition(a).largest) for a in range(src.ndim)]
    return all(length >= min(whole, NARROW) for length, whole in lengths)


def _extents(letters: Letters, where: Sequence[slice]) -> Extents:
    """Return which part of a block a region is, for the letters of its axes."""
    return {x: (at.start, at.stop) for x, at in zip(letters, where, strict=True) if x is not None}


def _intersect(found: Sequence[Extents]) -> Extents:
    """Return what is in the extents of all, for every letter in any."""
    common: Extents = {}
    for letter, (start, stop) in (item for extents in found for item in extents.items()):
        first, last = common.get(letter, (start, stop))
        first = max(first, start)
        common[letter] = first, max(min(last, stop), first)
    return common


def _region(letters: Letters, common: Extents, own: Extents) -> tuple[Any, ...]:
    """Return the index of extents in a piece, whose own extents tell where it begins."""
    index = []
    for letter in letters:
        if letter is None or letter not in common:
            index.append(slice(None))
        else:
            at = own.get(letter, (0, 0))[0]
            index.append(slice(common[letter][0] - at, common[letter][1] - at))
    return tuple(index) or (Ellipsis,)


def _for_blas(block: Buffer) -> Buffer:
    """Return a block whose matrices BLAS takes, which NumPy multiplies by plain loops otherwise."""
    is_taken = block.ndim < 2 or block.itemsize in block.strides[-2:]
    return block if is_taken else _memory.make_contiguous(block)


def _narrowed(layout: Layout, axis: int, offsets: dict[int, int]) -> Layout:
    """Return the layout of a panel; `offsets` are its boundaries for those of the whole axis."""
    length, bounds = offsets[layout.shape[axis]], None
    if layout.sharding_axes(axis):
        bounds = tuple(offsets[at] for at in layout.partition(axis).offsets)
    return resize_axis(layout, axis, length, bounds)


def _own(ranges: Sequence[Range], layout: Layout, axis: int) -> list[Range]:
    """Return which of the ranges lie in this process's block, counted from its start."""
    first, last = layout.own_box[axis]
    found: list[Range] = []
    for start, stop in ranges:
        if start < stop and first <= start < last:
            if found and found[-1][1] == start - first:
                found[-1] = found[-1][0], stop - first
            else:
                found.append((start - first, stop - first))
    return found or [(0, 0)]


def _take(block: Buffer, axis: int, ranges: Sequence[Range]) -> Buffer:
    """Return stretches of a block along an axis, as a view where they are one."""
    if len(ranges) == 1:
        return block[_slice(axis, *ranges[0])]
    width = sum(stop - start for start, stop in ranges)
    shape = (*block.shape[:axis], width, *block.shape[axis + 1 :])
    taken = _memory.empty(shape, block.dtype, _backend.device_of(block))
    at = 0
    for start, stop in ranges:
        taken[_slice(axis, at, at + stop - start)] = block[_slice(axis, start, stop)]
        at += stop - start
    return taken


def _slice(axis: int, start: int, stop: int) -> tuple[slice, ...]:
    return (*(slice(None),) * axis, slice(start, stop))


def _block_bytes(layout: Layout, dtype: np.dtype[Any]) -> int:
    """Return the bytes of the largest block."""
    return dtype.itemsize * layout.largest_block
