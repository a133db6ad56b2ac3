"""Measure everything and write tables and plots: ``python -m benchmarks``.

Each suite runs under mpiexec with all contenders in the same processes, taking turns. Peers that
are not installed are left out, and the table says so.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import machine, memory_report, report
from distarray.comm.kernels import _machine

SUITES = {
    "redistribution": (2, 4),
    "overhead": (1, 2),
    "large": (2,),
    "selections": (2,),
    "transforms": (2,),
    "factorizations": (2,),
    "diffusion": (2,),
    "overlap": (2,),
    "transformer": (2,),
    "fsdp": (2,),
    "fsdp_memory": (1, 2, 3, 4),
    "checkpoint": (1, 2),
    "first_calls": (2,),
    "prediction": (1, 2, 3, 4, 8),
}
BUSY = 0.1
"""Of all cores' time: where others use more of it, nothing is recorded."""
ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Run the suites asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("suites", nargs="*", choices=[[], *SUITES], help="default: all")
    parser.add_argument("--ranks", help="rank counts instead of the suites' own, such as 2,4")
    parser.add_argument("--quick", action="store_true", help="only see that everything runs")
    parser.add_argument("--without", default="", help="contenders to leave out: heat,dtensor,dask")
    parser.add_argument("--seed", help="of the random plans whose times are predicted")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "benchmarks" / "results" / _machine.label()
    )
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    refused = 0
    for suite in options.suites or SUITES:
        ranks = [int(n) for n in options.ranks.split(",")] if options.ranks else SUITES[suite]
        others = machine.Others()
        parts = [_run(suite, count, options) for count in ranks]
        writer = memory_report if suite == "fsdp_memory" else report
        print(writer.tables(suite, parts))
        if not options.quick and (share := others.share()) > BUSY:
            print(f"{suite}: not recorded; other programs have used {share:.0%} of the processor")
            refused += 1
            continue
        (options.out / f"{suite}.json").write_text(json.dumps(parts, indent=1) + "\n")
        (options.out / f"{suite}.md").write_text(writer.tables(suite, parts))
        writer.plot(suite, parts, options.out / f"{suite}.png")
    return 1 if refused else 0


def _run(suite: str, ranks: int, options: argparse.Namespace) -> dict:
    """Run one suite on `ranks` ranks, one thread each, and read what it measured."""
    beside = Path(sys.executable).parent / "mpiexec"
    launcher = str(beside) if beside.exists() else shutil.which("mpiexec")
    if launcher is None:
        raise SystemExit("no mpiexec; install an MPI (the extra 'mpich') or load the site's")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "numbers.json"
        command = [launcher, "-n", str(ranks), sys.executable, "-m", f"benchmarks.{suite}"]
        if suite == "first_calls":  # it starts fresh ranks for each call
            command = [*command[3:], "--ranks", str(ranks), "--launcher", launcher]
        command += ["--out", str(out), *(["--quick"] if options.quick else [])]
        command += ["--without", options.without]
        command += ["--seed", options.seed] if suite == "prediction" and options.seed else []
        threads = dict.fromkeys(
            ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
        )
        environment = {**os.environ, **threads, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=ROOT, env=environment, check=False)
        if not out.exists():
            raise SystemExit(f"{suite} on {ranks} ranks ended with status {done.returncode}")
        return json.loads(out.read_text())  # written last; some peers then stumble on the way out


if __name__ == "__main__":
    sys.exit(main())
