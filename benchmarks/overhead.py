"""What one operation costs on blocks so small that the work itself is nothing.

Run by the driver as ``mpiexec -n RANKS python -m benchmarks.overhead``. Every rank has a block of
16 x 16 float64; NumPy does the same on the block alone. `x[i]` and `x[i:]` are turns of a loop over
a long array of one axis: no cache knows the next one. Whoever writes messages by hand needs those
of the last rows for what the ranks exchange: one of them, of a few bytes.
"""

from __future__ import annotations

import gc
import itertools
from typing import Any

import numpy as np
from mpi4py import MPI

import distarray as da
from benchmarks import by_distarray, by_hand, cases, contenders, measure, small_by_hand

BASELINE = "NumPy"


def main() -> None:
    """Measure every small operation with every contender."""
    names = (*cases.SMALL_OPERATIONS, *cases.SMALL_FUNCTIONS, *MESSAGES)
    contenders.measure_all("overhead", lambda *_: names, _measure)


MESSAGES = ("all-reduce", "all-gather of objects")


def _put(x: Any, key: Any, value: Any) -> None:
    x[key] = value


def _function(name: str, blocks: list[np.ndarray], xp: Any) -> measure.Work:
    """Return a call of NumPy's, or the library's, function of blocks, or arrays made of them."""
    x, y, r = blocks
    rng: Any = np.random.default_rng(1)
    b = x
    if xp is da:
        x, y, r = by_distarray.arrays(x, y, r)
        rng, b = da.random.default_rng(1), x.full_array()
    names = {"np": np, "xp": xp, "x": x, "y": y, "r": r, "b": b, "rng": rng, "put": _put}
    work: measure.Work = eval(f"lambda: {name}", {**names, "turns": itertools.count(3)})
    return work


def _messages(name: str, comm: MPI.Comm, x: np.ndarray) -> dict[str, measure.Work]:
    """Return a message by hand, where a copy stands for NumPy."""
    line, total = x[0].copy(), np.empty(len(x))
    works: dict[str, measure.Work] = {
        "all-reduce": lambda: comm.Allreduce(line, total),
        "all-gather of objects": lambda: comm.allgather(("call", x.shape)),
    }
    return {BASELINE: line.copy, "by hand": works[name]}


def _numpy(name: str, x: np.ndarray, y: np.ndarray, r: np.ndarray) -> measure.Work:
    line, turns = np.arange(float(cases.LINE_SIZE)), itertools.cycle(range(cases.LINE_SIZE))
    works: dict[str, measure.Work] = {
        "x + y": lambda: x + y,
        "x * 2 + y": lambda: x * 2 + y,
        "x.T": lambda: x.T,
        "x[:, 3]": lambda: x[:, 3],
        "x @ R": lambda: x @ r,
        "float(x.sum())": lambda: float(x.sum()),
        "S0 -> S1": x.copy,
        "x[i]": lambda: line[next(turns)],
        "x[i:]": lambda: line[next(turns) :],
        "map_blocks": lambda: np.negative(x),
        "halo": lambda: x,
    }
    return works[name]


def _compare(name: str, result: Any, expected: Any) -> None:
    """Raise if the library's block is not what the messages by hand give."""
    block = by_distarray.local(result) if isinstance(result, da.DistArray) else result
    if np.shape(block) != np.shape(expected) or not np.allclose(block, expected, rtol=1e-12):
        raise ValueError(f"{by_distarray.NAME}: {name} is not what it is by hand")


def _measure(comm: MPI.Comm, name: str, running: list, quick: bool) -> dict:
    """Measure one operation; check every contender's result first."""
    random = np.random.default_rng(comm.rank)
    rows = cases.SMALL_ROWS
    x, y = random.random((rows, rows)), random.random((rows, rows))
    r = np.random.default_rng(100).random((rows, rows))
    if name in MESSAGES:
        works = _messages(name, comm, x)
    elif name in cases.SMALL_FUNCTIONS:
        works = {BASELINE: _function(name, [x, y, r], np)}
        works[by_distarray.NAME] = _function(name, [x, y, r], da)
        by_messages = small_by_hand.work(name, x, y, itertools.count(3))
        if by_messages is not None:
            works[by_hand.NAME] = by_messages
            _compare(name, works[by_distarray.NAME](), by_messages())
    else:
        works = {BASELINE: _numpy(name, x, y, r)}
    is_short = len(works) > 1  # one of many rows
    expected = works[BASELINE]()
    if name == "float(x.sum())":
        expected = comm.allreduce(expected)
    for module in [] if is_short else running:
        work = module.operation(name, x, y, r)
        if work is not None:
            result = work()
            if name not in ("S0 -> S1", "x[i:]"):
                result = result if isinstance(result, float) else module.local(result)
                if not np.allclose(result, expected, rtol=1e-12):
                    raise ValueError(f"{module.NAME}: wrong value of {name}")
            works[module.NAME] = work
    gc.collect()
    repeats, batch_seconds = (5, 0.005) if quick or is_short else (21, 0.02)
    samples = measure.in_turn(comm, works, repeats=repeats, batch_seconds=batch_seconds)
    return {
        "ranks": comm.size,
        "case": name,
        "size": f"{rows} x {rows} a rank",
        "seconds": {key: measure.summary(values) for key, values in samples.items()},
    }


if __name__ == "__main__":
    main()
