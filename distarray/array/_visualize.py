"""Drawing who holds what, as text or with matplotlib: layout arithmetic, no communication."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice, product
from typing import Any

from distarray.comm import DeviceMesh
from distarray.core import BaseArray
from distarray.errors import ArgumentError, ArgumentTypeError
from distarray.layout import Layout, Partial, Shard, bytes_text, shape_text, table
from distarray.layout import box as boxes

_CELLS = 12  # blocks drawn along an axis, and ranks named in a cell
_ROWS = 32  # ranks in a table


class Drawing(str):
    """The text of a drawing; at a prompt it is not shown a second time."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<drawing of {len(self.splitlines())} lines>"


def visualize(x: BaseArray | Layout, *, ax: Any = None) -> Any:
    """Draw which ranks hold which part of an array.

    Parameters
    ----------
    x : DistArray or Layout
        A layout may be on an abstract mesh, with no processes behind it.
    ax : matplotlib.axes.Axes, optional
        Draw there, blocks in proportion to their sizes; for arrays of up to two axes. Default: as
        text, printed by the first process of the mesh.

    Returns
    -------
    str or matplotlib.axes.Axes
        The text, on every process, or `ax`.

    Notes
    -----
    Nothing is communicated. Ranks in one cell separated by spaces hold copies of the same block;
    `sum(0, 1)` says that the blocks of ranks 0 and 1 add up to the values. Arrays of more than two
    axes become a table with one line per rank.

    Examples
    --------
    >>> import distarray as da
    >>> mesh = da.AbstractMesh((2, 2), axis_names=("dp", "tp"))
    >>> text = da.visualize(da.Layout(mesh, [da.Shard(0), da.Replicate()], (10, 6)))
    10x6 [dp:S(0), tp:R]
         0:6
         +-----+
    0:5  | 0 1 |
         +-----+
    5:10 | 2 3 |
         +-----+
    """
    layout = x._layout if isinstance(x, BaseArray) else x
    if not isinstance(layout, Layout):
        raise ArgumentTypeError(
            f"visualize draws a DistArray or a Layout, not {type(x).__name__}; for a plain array, "
            "draw Layout(mesh, placements, array.shape)"
        )
    if ax is not None:
        return _plot(layout, ax)
    text = Drawing(f"{layout}\n{_grid(layout) if layout.ndim <= 2 else draw_table(layout)}")
    mesh = layout.mesh
    if not isinstance(mesh, DeviceMesh) or mesh.rank == mesh.flat_ranks[0]:
        print(text, flush=True)
    return text


# --- who holds a block ---------------------------------------------------------------------------


def _holders(layout: Layout, block: Sequence[int]) -> str:
    """Return the ranks that hold a block, given by its index along every array axis."""
    mesh = layout.mesh
    place = [0] * mesh.ndim
    for axis, index in enumerate(block):
        for m in reversed(layout.sharding_axes(axis)):
            index, place[m] = divmod(index, mesh.shape[m])
    kept = [m for m, p in enumerate(layout.placements) if type(p) not in (Shard, Partial)]
    parts = [
        _ranks(layout, list(part), kept) for part in _places(layout, place, layout.partial_axes)
    ]
    if not layout.has_partial:
        return parts[0]
    ops = {p.op for p in layout.placements if type(p) is Partial}
    return f"{'/'.join(sorted(ops))}({', '.join(parts)})"


def _places(layout: Layout, place: list[int], axes: Sequence[int]) -> Iterator[list[int]]:
    """Yield the coordinates that differ from `place` along some mesh axes, a few of many."""
    for digits in islice(product(*(range(layout.mesh.shape[m]) for m in axes)), _CELLS):
        for m, digit in zip(axes, digits, strict=True):
            place[m] = digit
        yield place


def _ranks(layout: Layout, place: list[int], axes: Sequence[int]) -> str:
    count = math.prod(layout.mesh.shape[m] for m in axes)
    named = [str(layout.mesh.rank_at(tuple(one))) for one in _places(layout, place, axes)]
    return " ".join([*named, f"(+{count - len(named)})"] if count > len(named) else named)


# --- text ----------------------------------------------------------------------------------------


_Line = tuple[str, tuple[int | None, ...]]
"""Label and index of the blocks along an axis; None stands for blocks left out."""


def _lines(layout: Layout, axis: int) -> list[_Line]:
    """Return the blocks of an axis that are drawn."""
    partition = layout.partition(axis)
    drawn: list[_Line] = []
    for i in range(partition.count):
        if partition.count <= _CELLS or i < _CELLS - 2 or i == partition.count - 1:
            start, stop = partition.bounds(i)
            drawn.append((f"{start}:{stop}", (i,)))
        elif i == _CELLS - 2:
            drawn.append(("...", (None,)))
    return drawn


def draw_cells(layout: Layout) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Return the heads of columns, and rows: their labels, and who holds each block.

    Rows are along the first of two axes; an array of one axis, or none, is one row.
    """
    rows = _lines(layout, 0) if layout.ndim == 2 else [("", ())]
    columns = _lines(layout, layout.ndim - 1) if layout.ndim else [("", ())]
    heads = [label for label, _ in columns]
    return heads, [
        (label, [_cell(layout, (*row, *column)) for _, column in columns]) for label, row in rows
    ]


def _grid(layout: Layout) -> str:
    heads, lines = draw_cells(layout)
    cells = [line for _, line in lines]
    widths = [max(len(line[j]) for line in [heads, *cells]) for j in range(len(heads))]
    margin = max(len(label) + 1 for label, _ in lines) if layout.ndim == 2 else 0
    rule = " " * margin + "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    head = " ".join(f"{text:<{width + 2}}" for text, width in zip(heads, widths, strict=True))
    drawn = [(" " * margin + head).rstrip(), rule] if layout.ndim else [rule]
    for label, line in lines:
        body = " | ".join(f"{text:<{width}}" for text, width in zip(line, widths, strict=True))
        drawn += [f"{label:<{margin}}| {body} |", rule]
    return "\n".join(drawn)


def _cell(layout: Layout, block: tuple[int | None, ...]) -> str:
    known = [i for i in block if i is not None]
    return "..." if len(known) < len(block) else _holders(layout, known)


def draw_table(layout: Layout, itemsize: int | None = None) -> str:
    """Return one line per rank, in the order of the mesh; with the bytes of items of a size."""
    mesh = layout.mesh
    header = ["rank", *mesh.axis_names, *(f"axis {axis}" for axis in range(layout.ndim)), "shape"]
    if itemsize is not None:
        header.append("bytes")
    rows = []
    for place in islice(product(*map(range, mesh.shape)), _ROWS):
        box = layout.local_box(place) or ()
        spans = [f"{start}:{stop}" for start, stop in box]
        row = [mesh.rank_at(place), *place, *spans, shape_text(boxes.shape(box))]
        if itemsize is not None:
            row.append(bytes_text(boxes.volume(box) * itemsize))
        rows.append(row)
    more = [f"and {mesh.size - _ROWS} more ranks"] if mesh.size > _ROWS else []
    return "\n".join([table(header, rows), *more])


# --- matplotlib ----------------------------------------------------------------------------------


def _plot(layout: Layout, ax: Any) -> Any:
    """Draw blocks as rectangles, coloured by their place, with the ranks that hold them."""
    if layout.ndim > 2:
        raise ArgumentError(
            f"visualize(ax=) draws arrays of up to two axes, not {layout.shape}; leave ax out for "
            "a table"
        )
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    shape = (1,) * (2 - layout.ndim) + layout.shape
    counts = [layout.partition(axis).count for axis in range(layout.ndim)]
    total = math.prod(counts)
    colours = colormaps["tab20"]
    for number, block in enumerate(product(*map(range, counts))):
        spans = [layout.partition(axis).bounds(i) for axis, i in enumerate(block)]
        (top, bottom), (left, right) = [(0, 1)] * (2 - layout.ndim) + spans
        if top == bottom or left == right:
            continue
        colour = colours(number % 20)
        size = (right - left, bottom - top)
        ax.add_patch(Rectangle((left, top), *size, facecolor=colour, edgecolor="black", alpha=0.6))
        if total <= _CELLS * _CELLS:
            middle = ((left + right) / 2, (top + bottom) / 2)
            ax.text(*middle, _holders(layout, block), ha="center", va="center", clip_on=True)
    ax.set_xlim(0, max(shape[1], 1))
    ax.set_ylim(max(shape[0], 1), 0)
    ax.set_title(str(layout))
    if layout.ndim == 2:
        ax.set_ylabel("axis 0")
    else:
        ax.set_yticks([])
    ax.set_xlabel(f"axis {max(layout.ndim - 1, 0)}")
    return ax
