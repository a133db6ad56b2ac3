"""The kernels that copy, reduce and fill boxes of device memory, as a share of a device copy.

Run by the driver as ``python -m benchmarks.gpu.kernels``. Every result is compared with that of
CuPy's own functions, which are timed beside it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

from benchmarks.gpu.device import Clock, copy_seconds, library, same_bytes
from benchmarks.gpu.kernel_cases import DTYPES, PACK, Case, cases
from benchmarks.gpu.part import MOST_TOLD, Part
from distarray.comm.cuda import _boxes
from distarray.random import _blocks

PROMISED = 0.8


class Launches:
    """Counts kernels of this library: CuPy serves where none is launched."""

    def __init__(self) -> None:
        self.count = 0
        for module in (_boxes, _blocks):
            module.launch = self._counted(module.launch)

    def _counted(self, launch: Callable[..., bool]) -> Callable[..., bool]:
        def call(*arguments: Any) -> bool:
            runs = launch(*arguments)
            self.count += runs
            return runs

        return call


def main() -> None:
    """Measure the copy first, then all cases while there is time."""
    part = Part()
    cupy = library(part.rehearsal)
    clock = Clock(cupy, part.rehearsal)
    nbytes = 1 << 14 if part.rehearsal else 1 << 29
    unit = 2 * nbytes / copy_seconds(cupy, clock, nbytes)
    small = nbytes >> 3
    half = 2 * small / copy_seconds(cupy, clock, small)
    part.row(
        "Device copy",
        "cudaMemcpyAsync",
        bytes=("n", nbytes),
        read_and_written=("B/s", unit),
        of_an_eighth=("B/s", half),
    )
    launches = Launches()
    shares: dict[str, float] = {}
    wrong: list[str] = []
    done = 0
    for case in cases(cupy, nbytes, DTYPES[:1] if part.rehearsal else DTYPES):
        name = f"{case.table}: {case.name}"
        if not part.has_time(name):
            continue
        try:
            share = _measured(part, clock, case, unit, launches)
        except Exception as error:
            part.failed(case.table, case.name, error)
            share = 0.0
            wrong.append(name)
        done += 1
        if share is not None:
            shares[name] = share
        del case
        gc.collect()
    _judge(part, shares)
    text = f"{done} cases, {len(wrong)} wrong or failed"
    text += f": {', '.join(wrong[:MOST_TOLD])}" * bool(wrong)
    part.verdict("values", False if wrong else None if part.rehearsal else True, text)
    part.close("Kernels")


def _measured(
    part: Part, clock: Clock, case: Case, unit: float, launches: Launches
) -> float | None:
    """Check and time a case; return its share of the unit where a kernel of ours did it."""
    before = launches.count
    case.ours()
    by_kernel = launches.count > before
    try:
        case.theirs()
    except Exception as error:  # CuPy has no such function for these items, or none at all
        theirs: tuple[str, Any] = "", type(error).__name__
    else:
        if case.results is not None and not same_bytes(*case.results()):
            raise ValueError("WRONG VALUES")
        theirs = "s", clock.seconds(case.theirs)
    ours = clock.seconds(case.ours)
    share = case.nbytes / ours / unit
    part.row(
        case.table,
        case.name,
        by=("", "kernel" if by_kernel else "CuPy"),
        distarray=("s", ours),
        share_of_a_copy=("share", share),
        **{"CuPy's own": theirs},
        **({"CuPy's share": ("share", case.nbytes / theirs[1] / unit)} if theirs[0] else {}),
    )
    return share if by_kernel else None


def _judge(part: Part, shares: dict[str, float]) -> None:
    packs = {name: share for name, share in shares.items() if name.startswith(PACK)}
    if not packs:
        part.verdict("pack", None if part.rehearsal else False, "no kernel ran: CuPy served")
        return
    worst = min(packs, key=lambda name: packs[name])
    text = f"{len(packs)} cases, {100 * packs[worst]:.0f} % at least ({worst})"
    part.verdict("pack", None if part.rehearsal else packs[worst] >= PROMISED, text)


if __name__ == "__main__":
    main()
