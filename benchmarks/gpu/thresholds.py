"""From which size on a kernel of ours is worth its launch: for constants not measured so far.

Run by the driver as ``python -m benchmarks.gpu.thresholds``. Times are those of a call, many right
after each other: where they do not grow with the size they are the host's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.gpu.device import Clock, Work, filled, library
from benchmarks.gpu.part import Part
from distarray.comm.cuda import _copies, _launch, _reductions
from distarray.comm.cuda._copies import copied
from distarray.comm.kernels import _blocks

CALLS = 100
SIZES = tuple(1 << n for n in range(10, 23, 2))
BOXES = (1, 2, 3, 4, 6, 8, 16)
CONSTANTS = "Constants"


def main() -> None:
    """Measure each constant that decides between a kernel and CuPy."""
    part = Part()
    cupy = library(part.rehearsal)
    clock = Clock(cupy, part.rehearsal)
    sizes = SIZES[:2] if part.rehearsal else SIZES
    part.note(
        "Thresholds",
        "Microseconds of a call among many. A table of boxes is kept for the next call; 'new "
        "table' makes and uploads it every time, as for arrays that are new.",
    )
    before = _copies.LEAST_BYTES, _copies.LEAST_BOXES, _reductions.LEAST_BYTES
    _copies.LEAST_BYTES = _copies.LEAST_BOXES = _reductions.LEAST_BYTES = 0
    for name, now, measure in (
        ("_device_copies.LEAST_BYTES", before[0], lambda: _of_one_box(part, cupy, clock, sizes)),
        ("_device_copies.LEAST_BOXES", before[1], lambda: _of_boxes(part, cupy, clock)),
        ("_device_reduce.LEAST_BYTES", before[2], lambda: _of_reductions(part, cupy, clock, sizes)),
    ):
        found = part.attempt("Thresholds", name, measure)
        if found is not None:
            _tell(part, f"distarray.comm.{name}", now, found)
    part.close("Thresholds")


def _tell(part: Part, constant: str, now: int, found: dict[str, int | None]) -> None:
    suggested = {name: "never" if at is None else at for name, at in found.items()}
    part.row(CONSTANTS, constant, now=("n", now), **{k: ("n", v) for k, v in suggested.items()})


def _of_one_box(
    part: Part, cupy: Any, clock: Clock, sizes: tuple[int, ...]
) -> dict[str, int | None]:
    """Compare copies of one box of rows of 256 bytes."""
    rows = []
    for nbytes in sizes:
        block = filled(cupy, (nbytes // 256, 128), "float32")
        out = cupy.empty((nbytes // 256, 64), "float32")
        pairs = [(out, block[:, :64])]
        rows.append((nbytes, *_row(part, clock, f"copy of {nbytes} bytes", pairs)))
    return _crossings(rows)


def _of_boxes(part: Part, cupy: Any, clock: Clock) -> dict[str, int | None]:
    """Compare one launch for small boxes with one for each of them."""
    rows = []
    for count in BOXES:
        blocks = [filled(cupy, (16, 64), "float32") for _ in range(count)]
        outs = [cupy.empty((16, 32), "float32") for _ in range(count)]
        pairs = [(out, block[:, :32]) for out, block in zip(outs, blocks, strict=True)]
        told = f"{count} {'boxes' if count > 1 else 'box'} of 2 KiB"
        rows.append((count, *_row(part, clock, told, pairs)))
    return _crossings(rows)


def _of_reductions(
    part: Part, cupy: Any, clock: Clock, sizes: tuple[int, ...]
) -> dict[str, int | None]:
    """Compare sums of two blocks."""
    rows = []
    for nbytes in sizes:
        sources = [cupy.ones(nbytes // 4, "float32") for _ in range(2)]
        out = cupy.empty(nbytes // 4, "float32")

        def ours(out: Any = out, sources: Any = sources) -> bool:
            return _reductions.reduced([(out, sources)], "f4", "sum", 1)

        def theirs(out: Any = out, sources: Any = sources) -> None:
            _blocks._by_numpy(out, sources, "sum", False)

        rows.append((nbytes, *_compared(part, clock, f"sum of {nbytes} bytes", ours, theirs)))
    return _crossings(rows)


def _row(
    part: Part, clock: Clock, told: str, pairs: list[Any]
) -> tuple[float | None, float | None, float]:
    def theirs() -> None:
        for dst, src in pairs:
            dst[...] = src

    return _compared(part, clock, told, lambda: copied(pairs), theirs)


def _compared(
    part: Part, clock: Clock, told: str, ours: Callable[[], bool], theirs: Work
) -> tuple[float | None, float | None, float]:
    """Return seconds of a call with a table that is kept, with a new one, and by CuPy."""

    def anew() -> None:
        _launch._tables.clear()
        ours()

    warm = fresh = None
    if ours():
        warm, fresh = (clock.seconds(work, calls=CALLS) for work in (ours, anew))
    by_cupy = clock.seconds(theirs, calls=CALLS)
    part.row(
        "Thresholds",
        told,
        kernel=None if warm is None else ("s", warm),
        new_table=None if fresh is None else ("s", fresh),
        **{"CuPy's own": ("s", by_cupy), "of the host": ("s", _on_host(ours))},
    )
    return warm, fresh, by_cupy


def _on_host(work: Work) -> float:
    """Return what the host spends on a call."""
    begun = time.perf_counter()
    for _ in range(CALLS):
        work()
    return (time.perf_counter() - begun) / CALLS


def _crossings(rows: list[tuple[int, float | None, float | None, float]]) -> dict[str, int | None]:
    """Return from where on kernels are faster for good, with tables kept and anew."""
    found: dict[str, int | None] = {}
    for column, name in ((1, "suggested"), (2, "with new tables")):
        faster = [row[column] is not None and row[column] <= row[3] for row in rows]
        first = len(rows) - int(np.argmin(faster[::-1])) if not all(faster) else 0
        found[name] = rows[first][0] if first < len(rows) else None
    return found


if __name__ == "__main__":
    main()
