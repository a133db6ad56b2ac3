"""Descriptions of who holds what of an array: text, a table, its rows here; nothing is sent."""

from __future__ import annotations

import math
from typing import Any

from distarray.array._visualize import draw_cells, draw_table
from distarray.core import BaseArray, check_distributed
from distarray.errors import AxisError
from distarray.layout import Layout, bytes_text, shape_text


class Text(str):
    """Text of several lines, which a prompt shows as they are."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def local_rows(x: Any) -> range:
    """Return which rows, items of the first axis, this process holds (no communication).

    Parameters
    ----------
    x : DistArray
        Of at least one axis, in any layout.

    Returns
    -------
    range
        Of global indices: row `rows[i]` of `x` is row `i` of `x.to_local()`. Blocks are contiguous,
        whatever the shard order. Empty where this process holds none, as outside the mesh.

    Raises
    ------
    AxisError
        If the array has no axes.

    Examples
    --------
    >>> import distarray as da
    >>> x = da.zeros((6, 4))
    >>> rows = da.local_rows(x)
    >>> rows  # on one process
    range(0, 6)
    >>> for row, i in zip(x.to_local(), rows):  # fill what is here
    ...     row[:] = i
    """
    check_distributed("local_rows", x)
    if not x.ndim:
        raise AxisError("local_rows of an array of shape (): it has no rows; x.item() is its value")
    box = x.layout.local_box()
    return range(0) if box is None else range(*box[0])


def describe(x: BaseArray) -> Text:
    """Return what `DistArray.describe` says."""
    facts = "\n".join(f"{name:<7} {fact}" for name, fact in _list_facts(x))
    shape = shape_text(x.shape)
    table = draw_table(x.layout, x.itemsize)
    first = f"DistArray of shape {shape}, {x.dtype}, {bytes_text(x.nbytes)}"
    return Text(f"{first}\n{facts}\n\n{table}")


def draw_html(x: BaseArray) -> str:
    """Return a table of facts and, of up to two axes, one of blocks with the ranks that hold them.

    There are at most a dozen blocks in each direction.
    """
    facts = [("dtype", f"{x.dtype}, {bytes_text(x.nbytes)}"), *_list_facts(x)]
    told = [_row("th", name) + _row("td", fact) for name, fact in facts]
    parts = [_table(told)]
    if x.ndim <= 2:
        heads, lines = draw_cells(x.layout)
        rows = [_row("th", "", *heads)] if x.ndim else []
        rows += [_row("th", label) + _row("td", *cells) for label, cells in lines]
        parts.append(_table(rows))
    return f"<div>{''.join(parts)}</div>"


def _list_facts(x: BaseArray) -> list[tuple[str, str]]:
    layout: Layout = x.layout
    mesh: Any = layout.mesh
    plural = "es" if mesh.size > 1 else ""
    return [
        ("layout", str(layout)),
        ("mesh", f"{mesh.size} process{plural}, on {mesh.device}"),
        ("blocks", _blocks(layout, x.itemsize)),
    ]


def _blocks(layout: Layout, itemsize: int) -> str:
    """Return how many blocks there are, how large, on how many ranks, and how they are cut."""
    partitions = [layout.partition(axis) for axis in range(layout.ndim)]
    largest = tuple(partition.largest for partition in partitions)
    count = math.prod(partition.count for partition in partitions)
    size = bytes_text(math.prod(largest) * itemsize)
    told = [
        str(count),
        f"{'of' if layout.is_even else 'at most'} {shape_text(largest)}, {size}",
    ]
    copies = math.prod(layout.mesh.shape[m] for m in layout.replicated_axes)
    if copies > 1:
        told.append(f"each on {copies} processes")
    summands = math.prod(layout.mesh.shape[m] for m in layout.partial_axes)
    if summands > 1:
        told.append(f"each in {summands} parts still to be reduced")
    if layout.boundaries is not None:
        told.append(
            "boundaries that follow from values" if layout.is_counted else "boundaries of its own"
        )
    return ", ".join(told)


def _table(rows: list[str]) -> str:
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def _row(tag: str, *cells: str) -> str:
    import html

    return "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells)
