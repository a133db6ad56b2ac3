"""Compact text of shapes, layouts and tables."""

from __future__ import annotations

from collections.abc import Sequence

from distarray.layout._placements import Placement
from distarray.typing import Shape


def shape_text(shape: Shape) -> str:
    """Return a shape as ``512x64``, that of a 0-d array as ``scalar``."""
    return "x".join(map(str, shape)) if shape else "scalar"


def layout_text(
    shape: Shape,
    axis_names: Sequence[str],
    placements: Sequence[Placement],
    shard_order: Sequence[int] | None = None,
    split_axes: Sequence[int] = (),
) -> str:
    """Return a layout as ``512x64 [dp:S(0), tp:R]``.

    Parameters
    ----------
    shape, axis_names, placements
        Of the layout.
    shard_order : sequence of int, optional
        Mesh axes that cut out of mesh order; shown as ``order tp>dp``.
    split_axes : sequence of int, optional
        Array axes with boundaries of their own; shown as ``split 0,1``.
    """
    held = ", ".join(f"{n}:{p}" for n, p in zip(axis_names, placements, strict=True))
    order = f" order {'>'.join(axis_names[i] for i in shard_order)}" if shard_order else ""
    split = f" split {','.join(map(str, split_axes))}" if split_axes else ""
    return f"{shape_text(shape)} [{held}]{order}{split}"


def bytes_text(count: float) -> str:
    """Return a number of bytes with a unit: ``512 B``, ``1.5 KiB``, ``3.2 GiB``."""
    if abs(count) < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        count /= 1024
        if abs(count) < 1023.95:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:.1f} PiB"


def seconds_text(seconds: float) -> str:
    """Return a duration with a unit: ``3.1 us``, ``12.0 ms``, ``1.5 s``."""
    for factor, unit in ((1e9, "ns"), (1e6, "us"), (1e3, "ms")):
        if round(abs(seconds) * factor, 1) < 1000:
            return f"{seconds * factor:.1f} {unit}"
    return f"{seconds:.1f} s"


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return rows under a header in aligned columns, numbers to the right.

    Parameters
    ----------
    header : sequence of str
        One title per column.
    rows : sequence of sequences
        Cells, shown by `str`; as many as there are columns.
    """
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [
        max(len(title), *(len(row[i]) for row in cells)) if cells else len(title)
        for i, title in enumerate(header)
    ]
    right = [
        bool(rows) and all(isinstance(row[i], (int, float)) for row in rows)
        for i in range(len(header))
    ]

    def line(row: Sequence[str]) -> str:
        """Return one row, padded."""
        padded = (
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        )
        return "  ".join(padded).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "\n".join([line(header), rule, *map(line, cells)])
