"""Kill random ranks at random moments of saves: ``python tests/checkpoint/kills.py --kills 200``.

A job saves one state after the other to the same place, filled with 1, 2, 3, ... One rank is ended
by SIGKILL at some moment. Afterwards the place must have a checkpoint that is whole: the last one
whose save had returned, or the next. Then another job goes on from there.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RANKS = 3

PROGRAM = """
import os, sys, time
import numpy as np
import distarray as da
from distarray.checkpoint.storage import _files

path, folder, first, way = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
if "renames" in way:
    _files._renameat2 = lambda: None
rank = da.default_mesh().rank
with open(f"{folder}/pid{rank}", "w") as file:
    file.write(str(os.getpid()))
for value in range(first, first + 10_000):
    state = {
        "rows": da.full((1000, 300), float(value)),
        "columns": da.full((300, 1000), float(value), placements=[da.Shard(1)]),
        "everywhere": da.full((400, 1000), float(value), placements=[da.Replicate()]),
        "plain": np.full(1000, value),
        "value": value,
    }
    options = {"step": value, "keep_last": 2} if "steps" in way else {}
    handle = da.checkpoint.save(path, state, async_op="async" in way, **options)
    if handle is not None:
        while not handle.test():
            state["rows"] += 1
        handle.wait()
    if rank == 0:
        with open(f"{folder}/saved", "a") as file:
            file.write(f"{value}\\n")
"""

WAYS = ("plain", "renames", "steps", "async", "async steps", "async renames")


def whole_value(path: Path) -> int:
    """Return the number that the checkpoint is filled with; 0 if there is none.

    Raises
    ------
    AssertionError
        It is not of one save.
    """
    import distarray as da

    try:
        found = da.checkpoint.load(path)
    except da.errors.CheckpointError as error:
        if "there is no checkpoint" in str(error):
            return 0
        raise
    value = found["value"]
    assert (found["plain"] == value).all()
    for name in ("rows", "columns", "everywhere"):
        assert (found[name].full_array() == value).all(), (name, value)
    return int(value)


def last_saved(folder: Path) -> int:
    """Return the number of the last save that has returned; 0 before the first."""
    lines = (folder / "saved").read_text().splitlines() if (folder / "saved").exists() else []
    return int(lines[-1]) if lines else 0


def kill_once(path: Path, first: int, way: str, chance: random.Random) -> tuple[int, int]:
    """Run a job until a rank is killed; return the last value saved, and the one that is there."""
    with tempfile.TemporaryDirectory(prefix="distarray-kills-") as name:
        folder = Path(name)
        mpiexec = Path(sys.executable).parent / "mpiexec"
        command = [str(mpiexec) if mpiexec.exists() else shutil.which("mpiexec") or "mpiexec"]
        command += ["-n", str(RANKS), sys.executable, "-c", PROGRAM]
        command += [str(path), name, str(first), way]
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "HYDI", "HYDRA"))}
        clean |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        job = subprocess.Popen(
            command, env=clean, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            limit = time.monotonic() + 60
            started = 0.0
            while last_saved(folder) < first and time.monotonic() < limit:
                assert job.poll() is None, "the job ended by itself"
                started = time.monotonic()
                time.sleep(0.002)
            assert last_saved(folder) >= first, "nothing was saved in a minute"
            duration = max(time.monotonic() - started, 0.05)
            time.sleep(chance.uniform(0, 4 * duration))
            victim = int((folder / f"pid{chance.randrange(RANKS)}").read_text())
            os.kill(victim, signal.SIGKILL)
            job.wait(timeout=60)
        finally:
            if job.poll() is None:
                job.kill()
                job.wait()
        time.sleep(0.05)
        return last_saved(folder), whole_value(path)


def kill_often(kills: int, seed: int = 0) -> Counter[str]:
    """Kill so many jobs; return how often the new or the old checkpoint was there, and leftovers.

    Raises
    ------
    AssertionError
        What was there was neither.
    """
    chance = random.Random(seed)
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="distarray-kills-") as name:
        values = dict.fromkeys(WAYS, 0)
        for number in range(kills):
            way = WAYS[number % len(WAYS)]
            path = Path(name) / way.replace(" ", "-") / "ckpt"
            path.parent.mkdir(exist_ok=True)
            saved, there = kill_once(path, values[way] + 1, way, chance)
            assert saved <= there <= saved + 1, f"{way}: {saved} was saved, {there} is there"
            found["the next was there" if there > saved else "the last was there"] += 1
            around = path if "steps" in way else path.parent
            hidden = [p for p in around.iterdir() if p.name.startswith(".")]
            found["something was left behind"] += bool(hidden)
            values[way] = there
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    began = time.monotonic()
    counts = kill_often(options.kills, options.seed)
    print(f"{options.kills} kills, {options.kills} whole checkpoints: {dict(counts)}")
    print(f"{time.monotonic() - began:.0f} s")
