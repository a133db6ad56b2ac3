"""Options of the measuring programs, and the file they leave."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from mpi4py import MPI

from benchmarks import machine


def options() -> argparse.Namespace:
    """Read what the driver passes on."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True, help="file for the numbers (JSON)")
    parser.add_argument("--quick", action="store_true", help="small and few, to see that it runs")
    parser.add_argument("--without", default="", help="contenders to leave out: heat,dtensor,dask")
    parser.add_argument("--seed", type=int, default=7, help="of what is drawn at random")
    return parser.parse_args()


def say(comm: MPI.Comm, row: dict) -> None:
    """Tell on rank 0 how one case went."""
    if comm.rank == 0:
        times = ", ".join(f"{k} {v['median'] * 1e6:.5g}" for k, v in row["seconds"].items())
        print(f"{row['ranks']} ranks  {row['size']:>14}  {row['case']:24}  us: {times}", flush=True)


def write(comm: MPI.Comm, path: Path, suite: str, rows: list[dict], absent: dict[str, str]) -> None:
    """Write everything from rank 0."""
    if comm.rank == 0:
        content = {"suite": suite, "machine": machine.facts(), "absent": absent, "rows": rows}
        path.write_text(json.dumps(content, indent=1) + "\n")
