"""Whether two arrays of a checkpoint, that one array or tensor is to be filled from, are the same.

So it is where weights are tied here, and were not, or were written twice, where they were saved.
"""

from __future__ import annotations

import numpy as np

from distarray.checkpoint._manifest import Entry
from distarray.checkpoint._reading import Reader
from distarray.layout import box as boxes
from distarray.typing import Box

_BYTES_AT_ONCE = 8 << 20


def differ(reader: Reader, first: Entry, second: Entry, rank: int, size: int) -> bool:
    """Tell whether two arrays differ, in this rank's share of their rows.

    Parameters
    ----------
    rank, size
        This rank, and how many compare.
    """
    if first is second:
        return False
    if first.shape != second.shape or first.spec != second.spec:
        return True
    whole: Box = tuple((0, n) for n in first.shape)
    if boxes.is_empty(whole):
        return False
    if not whole:
        return rank == 0 and _differ_in(reader, first, second, whole)
    rows = first.shape[0]
    start, stop = rows * rank // size, rows * (rank + 1) // size
    row_bytes = boxes.volume(whole) // rows * first.dtype.itemsize
    step = max(1, _BYTES_AT_ONCE // row_bytes)
    return any(
        _differ_in(reader, first, second, ((low, min(low + step, stop)), *whole[1:]))
        for low in range(start, stop, step)
    )


def _differ_in(reader: Reader, first: Entry, second: Entry, box: Box) -> bool:
    found = []
    for entry in (first, second):
        values = np.empty(boxes.shape(box), entry.dtype)
        reader.read(entry, box, values)
        found.append(values.tobytes())
    return found[0] != found[1]
