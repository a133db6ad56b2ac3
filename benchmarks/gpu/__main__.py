"""Prove and measure everything on a GPU, in one command: ``python -m benchmarks.gpu --out DIR``.

Parts run one after the other, the most telling first, each in processes of its own that are ended
at a deadline: what crashes or hangs takes nothing else with it. After each, what is known stands in
``DIR/gpu.md`` and ``DIR/gpu.json``, and what it has printed in ``DIR/gpu.log``. ``--check`` only
lists what the machine lacks; ``--rehearse`` runs everything without a GPU, at tiny sizes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu import check, job, report

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
STAND_IN = ROOT / "tests" / "cupy_stand_in"
MARGIN_SECONDS = 8.0
"""Before a deadline: a part begins nothing more."""
NOT_SHARED = {"DISTARRAY_SHARED_MEMORY": "0"}
IN_PLACE, STAGED, DIRECT = (
    {"DISTARRAY_TIMEOUT": "40", "DISTARRAY_CUDA_AWARE": aware} | shared
    for aware, shared in (("0", {}), ("0", NOT_SHARED), ("1", NOT_SHARED))
)
"""A rank that waits in vain gives up before its job is ended, and says where it waited."""


@dataclass
class Step:
    """A part of the run.

    Attributes
    ----------
    group
        By which it is chosen (``--parts``).
    module
        That is run.
    ranks
        On how many; 0 for a process without MPI.
    share
        Of the time that is left, at most.
    told
        Whether its output is on the page.
    """

    name: str
    group: str
    module: str
    ranks: int
    share: float
    arguments: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    told: bool = False


STEPS = (
    Step("machine", "here", "benchmarks.gpu.here", 0, 0.1),
    Step("python -m distarray info", "info", "distarray", 2, 0.2, ["info"], told=True),
    Step("kernels", "kernels", "benchmarks.gpu.kernels", 0, 0.25),
    Step("moves in place", "moves", "benchmarks.gpu.moves", 2, 0.2, ["--way=in place"], IN_PLACE),
    Step(
        "steps of models", "torch", "benchmarks.gpu.steps", 2, 0.3, [], {"DISTARRAY_TIMEOUT": "40"}
    ),
    Step("moves, staged", "moves", "benchmarks.gpu.moves", 2, 0.25, ["--way=staged"], STAGED),
    Step("moves, direct", "moves", "benchmarks.gpu.moves", 2, 0.15, ["--way=direct"], DIRECT),
    Step("suite", "suite", "benchmarks.gpu.suite", 0, 1.0),
)
GROUPS = tuple(dict.fromkeys(step.group for step in STEPS))


def main(arguments: list[str] | None = None) -> int:
    """Run the parts asked for; return 0 where no promise is broken and some hold."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for gpu.md and gpu.json")
    parser.add_argument("--seconds", type=float, default=560.0, help="for everything")
    parser.add_argument("--ranks", default="1,2,4", help="on how many the suite runs")
    parser.add_argument("--parts", default=",".join(GROUPS), help="some of %(default)s")
    parser.add_argument("--mpiexec", help="the launcher, where it is not found by itself")
    parser.add_argument("--rehearse", action="store_true", help="tiny, without a GPU")
    parser.add_argument("--check", action="store_true", help="only list what is missing")
    options = parser.parse_args(arguments)
    ends = time.monotonic() + options.seconds
    chosen = options.parts.split(",")
    if unknown := sorted({*chosen} - {*GROUPS}):
        parser.error(f"no such parts: {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    if options.rehearse and options.out.resolve() == RESULTS:
        parser.error("a rehearsal measures nothing: give it a folder of its own by --out")
    mpiexec = check.launcher(options.mpiexec)
    environment = _environment(mpiexec, options.rehearse)
    if options.check or not options.rehearse:
        lacking = check.missing(mpiexec, environment)
        print("\n".join(f"missing: {one}" for one in lacking) or "nothing is missing", flush=True)
        if options.check:
            return 1 if lacking else 0
        if any(one.startswith("a GPU ") for one in lacking):
            print("there is nothing to measure without a GPU; --rehearse runs all of it")
            return 1
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "gpu.log").write_text("")
    parts: list[dict[str, Any]] = []
    for step in (step for step in STEPS if step.group in chosen):
        parts.append(_performed(step, mpiexec, environment, ends, options, parts))
        report.write(
            options.out, parts, options.rehearse, [int(n) for n in options.ranks.split(",")]
        )
        told = parts[-1]["why"] or f"{parts[-1]['seconds']:.0f} s"
        print(f"{step.name}: {told}", flush=True)
    print((options.out / "gpu.md").read_text())
    holds = [row["holds"] for part in parts for row in part["rows"] if "promise" in row]
    return 1 if False in holds or not (True in holds or options.rehearse) else 0


def _environment(mpiexec: str | None, rehearsal: bool) -> dict[str, str]:
    """Return what all parts find in their environment."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
    path = [str(ROOT), *([str(STAND_IN)] if rehearsal else [])]
    path += [folder for folder in (os.environ.get("PYTHONPATH"),) if folder]
    found = {
        **os.environ,
        **dict.fromkeys(names, "1"),
        "PYTHONPATH": os.pathsep.join(path),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }
    # All ranks share one GPU: the first that this process sees.
    seen = os.environ.get("CUDA_VISIBLE_DEVICES") or "0"
    found["CUDA_VISIBLE_DEVICES"] = "" if rehearsal else seen.split(",")[0]
    if rehearsal:
        found["CUPY_STAND_IN_DEVICES"] = "1"
    return check.with_library(found, mpiexec)


def _performed(
    step: Step,
    mpiexec: str | None,
    environment: dict[str, str],
    ends: float,
    options: argparse.Namespace,
    before: list[dict[str, Any]],
) -> dict[str, Any]:
    """Run one part, and return what it has found, or why it has not run."""
    why = _hindrance(step, mpiexec, before, options.rehearse)
    found: dict[str, Any] = {"name": step.name, "seconds": 0.0, "why": why}
    found |= {"output": "", "rows": []}
    left = ends - time.monotonic()
    if not found["why"] and left < 2 * MARGIN_SECONDS:
        found["why"] = "not run: no time was left"
    if found["why"]:
        return found
    seconds = left if step.share == 1 else max(step.share * left, 2 * MARGIN_SECONDS)
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.jsonl"
        command = [sys.executable, "-m", step.module, *step.arguments]
        if step.module.startswith("benchmarks"):
            command += ["--rows", str(rows), "--seconds", str(seconds - MARGIN_SECONDS)]
            command += ["--rehearse"] * options.rehearse
        if step.group == "suite":
            command += ["--ranks", options.ranks, "--mpiexec", mpiexec or ""]
        if step.ranks and mpiexec:
            command = [mpiexec, "-n", str(step.ranks), *command]
        ended = job.run(
            command, environment | step.environment, seconds, options.out / "gpu.log", ROOT
        )
        if rows.exists():
            found["rows"] = [json.loads(line) for line in rows.read_text().splitlines()]
    found["seconds"] = ended.seconds
    if ended.why:
        found["why"] = f"{ended.why}; what it had found by then stands below"
        found["output"] = ended.last_lines
    elif step.told:
        found["output"] = ended.output
    return found


def _hindrance(
    step: Step, mpiexec: str | None, before: list[dict[str, Any]], rehearsal: bool
) -> str:
    """Say why a part cannot run, where that is known beforehand."""
    if step.ranks and mpiexec is None:
        return f"not run: there is no mpiexec; {check.REMEDY}"
    if step.environment is DIRECT and not rehearsal:
        told = "\n".join(part["output"] for part in before)
        if not re.search(r"CUDA-aware\s+yes", told):
            return "not run: this MPI does not take device memory, or that was not found out"
    return ""


if __name__ == "__main__":
    sys.exit(main())
