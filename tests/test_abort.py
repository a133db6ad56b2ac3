"""Whole programs under mpiexec: a rank that fails ends all of them soon, and says why once.

What each way of failing does while the others wait at a barrier stands in
comm/failures/test_on_error.py; here the others are busy with arrays.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.rank_programs import without_code

pytestmark = pytest.mark.timeout(120)

ROOT = Path(__file__).resolve().parents[1]
SECONDS_TO_END = 20.0
"""Much more than it takes, for a machine that has other work."""

ARRAYS = """
import os, signal, sys, threading, time
import numpy as np
import distarray as da

mesh = da.init_device_mesh((3,))
rank = mesh.rank
small = da.distribute_array(np.arange(12.0).reshape(3, 4), mesh, [da.Shard(0)])
large = da.ones((1536, 1024), mesh=mesh, placements=[da.Shard(0)])
assert float(da.sum(large)) == 1536 * 1024
"""
MEMORY_FILES = """
for line in open("/proc/self/maps"):
    if "/dev/shm/mpich" in line:
        print("memory file", line.split()[-1])
"""
BACKGROUND = """
large.redistribute([da.Shard(1)], async_op=True).wait()
if rank == 1:
    handle = large.redistribute([da.Shard(1)], async_op=True)
"""


@dataclass
class Ended:
    """How a job ended."""

    status: int
    said: str
    seconds: float


def launch(program: str, **environment: str) -> Ended:
    """Run a program on three ranks."""
    beside = Path(sys.executable).parent / "mpiexec"
    mpiexec = str(beside) if beside.exists() else shutil.which("mpiexec")
    if mpiexec is None:
        pytest.skip("no mpiexec beside this Python nor on PATH")
    # Not under this process's own MPI, where there is one.
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "HYDI", "HYDRA"))}
    started = time.monotonic()
    done = subprocess.run(
        [mpiexec, "-n", "3", sys.executable, "-c", program],
        cwd=ROOT,
        env=clean | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | environment,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    said = without_code(done.stdout + done.stderr, program)
    return Ended(done.returncode, said, time.monotonic() - started)


BY_A_SCRIPT = """
import subprocess, sys, time
done = subprocess.run([sys.executable, "-c", {program!r}], close_fds=False)
if done.returncode <= 0:
    time.sleep(60)
sys.exit(done.returncode)
"""
"""Lets the launcher not notice that a rank is killed: Slurm's lets the others wait."""


def assert_ended_by(ended: Ended, error: str, tracebacks: int = 1) -> None:
    """Check that a job ended soon, by this error, told once."""
    assert ended.status != 0, ended.said
    assert ended.said.count("Traceback (most recent call last)") == tracebacks, ended.said
    assert ended.said.count(error) == 1, ended.said
    assert "came to its end" not in ended.said
    assert ended.seconds < SECONDS_TO_END


@pytest.mark.parametrize(
    "others",
    [
        "small.redistribute([da.Shard(1)])",
        "large.redistribute([da.Shard(1)])",
        "float(da.sum(small * small))",
        "da.std(large).item()",
        "while True: small + small",
        "large.redistribute([da.Shard(1)], async_op=True).wait()",
        "da.distribute_array(np.ones(3), mesh)",
    ],
)
def test_exception_ends_ranks_that_are_inside(others: str) -> None:
    ended = launch(
        f"{ARRAYS}\nif rank == 1:\n    time.sleep(0.3)\n    raise ValueError('on purpose')\n"
        f"{others}\nprint('came to its end')"
    )
    assert_ended_by(ended, "ValueError: on purpose")
    assert "rank 1 of 3 failed" in ended.said


def test_exception_ends_ranks_that_wait_for_another_node() -> None:
    ended = launch(
        f"{ARRAYS}\nprint(f'said by {{rank}}')\n{MEMORY_FILES}\n"
        "if rank == 1:\n    raise ValueError('on purpose')\n"
        "large.redistribute([da.Shard(1)])\nprint('came to its end')",
        DISTARRAY_SHARED_MEMORY="0",
        PYTHONUNBUFFERED="",
    )
    assert_ended_by(ended, "ValueError: on purpose")
    for rank in range(3):
        assert f"said by {rank}" in ended.said
    left = [line.split()[2] for line in ended.said.splitlines() if line.startswith("memory file ")]
    assert not any(map(os.path.exists, left)), left


@pytest.mark.parametrize("call", ["float(da.sum(small))", "large.redistribute([da.Shard(1)])"])
def test_two_threads_that_wait_at_once_end_the_job(call: str) -> None:
    ended = launch(
        f"{ARRAYS}\nif rank == 0:\n"
        "    threading.Thread(target=lambda: float(da.sum(small)), daemon=True).start()\n"
        f"    time.sleep(0.3)\n    {call}\n"
        "time.sleep(30)\nprint('came to its end')"
    )
    assert_ended_by(ended, "another thread of this rank waits for other ranks")
    assert "rank 0 of 3 failed" in ended.said


FORKS = """
for how, status in (
    ("sys.exit()", 0),
    ("sys.exit(3)", 3),
    ("raise ValueError('of a child')", 1),
    ("float(da.sum(small))", 1),
    ("started = threading.Thread(target=lambda: 1 / 0); started.start(); started.join()", 0),
    ("os._exit(4)", 4),
    ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
):
    if rank == 0:
        child = os.fork()
        if child == 0:
            exec(how)
            sys.exit()
        found = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert found == status, (how, found)
    assert float(da.sum(large)) == 1536 * 1024
"""


LONE = """
import os, sys
import distarray as da

x = da.ones(5)
child = os.fork()
assert float(x.sum()) == 5
if child == 0:
    sys.exit(3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
assert float(da.ones(7).sum()) == 7
"""


def test_forked_process_ends_by_itself() -> None:
    ended = launch(f"{ARRAYS}{FORKS}print('came to its end')")
    assert ended.status == 0, ended.said
    assert ended.said.count("came to its end") == 3
    assert "ending all ranks" not in ended.said


def test_forked_process_computes_on_its_block_with_the_check_on() -> None:
    ended = launch(
        f"{ARRAYS}\nchild = os.fork()\n"
        "if child == 0:\n"
        "    np.testing.assert_array_equal((small + 1).to_local(), small.to_local() + 1)\n"
        "    sys.exit()\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0\n"
        "assert float(da.sum(small)) == 66\nprint('came to its end')",
        DISTARRAY_CHECK="1",
    )
    assert ended.status == 0, ended.said
    assert ended.said.count("came to its end") == 3


def test_forked_process_of_a_program_without_a_launcher_ends_by_itself() -> None:
    done = subprocess.run(
        # Python 3.12 and later warn where a process that has threads is forked.
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", LONE],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_processes_started_before_the_first_mesh_are_no_ranks() -> None:
    ended = launch(
        "import multiprocessing\nimport distarray as da\n"
        "from distarray.errors import CommunicationError\n"
        "for method in ('fork', 'spawn', 'forkserver'):\n"
        "    with multiprocessing.get_context(method).Pool(1) as pool:\n"
        "        assert pool.apply(eval, ['3 + 4']) == 7\n"
        "        try:\n"
        "            pool.apply(eval, [\"__import__('distarray').ones(3)\"])\n"
        "        except CommunicationError as error:\n"
        "            assert 'was started by process' in str(error)\n"
        "            print('was told')\n"
        "assert float(da.ones(6).sum()) == 6"
    )
    assert ended.status == 0, ended.said
    assert ended.said.count("was told") == 9


def test_exception_ends_ranks_while_the_failing_one_has_background_work() -> None:
    ended = launch(
        f"{ARRAYS}{BACKGROUND}"
        "    raise ValueError('on purpose')\n"
        "mesh.communicator().barrier()\nprint('came to its end')"
    )
    assert_ended_by(ended, "ValueError: on purpose")


def test_exit_status_ends_ranks_while_the_leaving_one_has_background_work() -> None:
    ended = launch(
        f"{ARRAYS}{BACKGROUND}"
        "    sys.exit(3)\n"
        "mesh.communicator().barrier()\nprint('came to its end')"
    )
    assert ended.status != 0, ended.said
    assert "rank 1 of 3 left with exit status 3 at <string>, line 15: ending" in ended.said
    assert ended.seconds < SECONDS_TO_END


def test_interrupt_of_one_rank_ends_all() -> None:
    ended = launch(
        f"{ARRAYS}\nif rank == 2:\n"
        "    kill = lambda: os.kill(os.getpid(), signal.SIGINT)\n"
        "    threading.Timer(0.5, kill).start()\n"
        "if rank > 0:\n    small.redistribute([da.Shard(1)])\n"
        "while True: time.sleep(0.1)"
    )
    assert_ended_by(ended, "KeyboardInterrupt")


def test_error_that_all_ranks_raise_is_told_once() -> None:
    ended = launch(f"{ARRAYS}\nda.sum(small, axis=5)\nprint('came to its end')")
    assert_ended_by(ended, "axis 5 of an array with 2 axes")


def test_ranks_that_make_different_calls_end_with_one_report_of_it() -> None:
    ended = launch(
        f"{ARRAYS}\nsmall.redistribute([da.Shard(1) if rank else da.Replicate()])\n"
        "print('came to its end')"
    )
    assert_ended_by(ended, "MismatchError: ranks are about to do different things together")


def test_exception_before_mpi_runs_ends_the_others() -> None:
    ended = launch(
        "import os\nimport distarray as da\n"
        "rank = int(os.environ.get('PMI_RANK', os.environ.get('OMPI_COMM_WORLD_RANK', '0')))\n"
        "if rank == 1:\n    raise ValueError('on purpose')\n"
        "da.ones(3).full_array()\nprint('came to its end')"
    )
    assert_ended_by(ended, "ValueError: on purpose")


def test_error_of_all_ranks_before_mpi_runs_is_told_once() -> None:
    ended = launch("import distarray as da\nda.Shard('x')\nprint('came to its end')")
    assert_ended_by(ended, "the axis must be an integer")


STARTS = """
import os, sys, time
rank = int(os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0")))
if rank == 1 and {before}: raise ValueError("on purpose")
import distarray as da
if rank == 1: {leaves}
time.sleep(0.5)  # so that nobody is there yet who could be told
da.ones(3).full_array()
print("came to its end")
"""


@pytest.mark.parametrize(
    ("before", "leaves", "told"),
    [
        (False, "sys.exit(0)", r"rank 0 waits for ranks \[1\] \(the start of MPI\), and they have"),
        (False, "os._exit(0)", r"rank 0 waits for ranks \[1\] \(the start|rank 1 of 3 left by os"),
        (False, "sys.exit(3)", "rank 1 of 3 left with exit status 3 at <string>, line 6"),
        (
            True,
            "",
            r"for rank 1 at <string>, line 8 \(the start of MPI: 1 of this node has",
        ),
    ],
)
def test_rank_that_does_not_start_mpi_is_told_and_ends_the_others(
    before: bool, leaves: str, told: str
) -> None:
    limit = "1" if before else "15"  # a rank that leaves may need long to come there
    ended = launch(STARTS.format(before=before, leaves=leaves or "pass"), DISTARRAY_TIMEOUT=limit)
    assert ended.status != 0, ended.said
    assert re.search(told, ended.said), ended.said
    assert "came to its end" not in ended.said
    assert ended.seconds < SECONDS_TO_END


def test_exception_before_the_first_mesh_ends_the_others() -> None:
    ended = launch(
        "from mpi4py import MPI\nimport distarray as da\n"
        "if MPI.COMM_WORLD.rank == 1:\n    raise ValueError('on purpose')\n"
        "da.ones(3).full_array()\nprint('came to its end')"
    )
    assert_ended_by(ended, "ValueError: on purpose")


def test_call_of_one_rank_alone_ends_with_an_error_once_the_others_are_through() -> None:
    ended = launch(f"{ARRAYS}\nif rank == 0:\n    print(small)")
    assert_ended_by(ended, "CommunicationError: rank 0 waits for ranks [")  # those already gone
    assert "(all-gather" in ended.said


@pytest.mark.parametrize(
    ("dies", "told"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "rank 1 has died, as rank 0 of the same node"),
        (
            "os._exit(0)",
            "left by os._exit(0) without MPI.Finalize() at <string>, line 13",
        ),
        ("os.abort()", 'File "rank 1 of 3", line 1'),
    ],
)
def test_rank_that_dies_ends_the_others(dies: str, told: str) -> None:
    program = (
        f"{ARRAYS}\nif rank == 1:\n    {dies}\n"
        "small.redistribute([da.Shard(1)])\nprint('came to its end')"
    )
    ended = launch(BY_A_SCRIPT.format(program=program))
    assert ended.status != 0, ended.said
    assert told in ended.said, ended.said
    assert "came to its end" not in ended.said
    assert ended.seconds < SECONDS_TO_END


def test_program_without_errors_ends_with_status_zero_and_all_it_said() -> None:
    ended = launch(
        f"{ARRAYS}\nhandle = large.redistribute([da.Shard(1)], async_op=True)\n"
        "try:\n    da.sum(small, axis=5)\nexcept da.errors.AxisError:\n    pass\n"
        "assert handle.wait().shape == (1536, 1024)\n"
        "print(f'rank {rank} came to its end', flush=True)"
    )
    assert ended.status == 0, ended.said
    assert ended.said.count("came to its end") == 3
    assert "ending all ranks" not in ended.said
    assert "Traceback" not in ended.said
