"""Jobs whose ranks wait in vain for each other's first call end with an error, and no others."""

from __future__ import annotations

import pytest

from tests.test_abort import SECONDS_TO_END, assert_ended_by, launch

MESH = """
import sys, threading, time
import distarray as da
mesh = da.init_device_mesh((3,))
first = da.DeviceMesh([0, 1])
rank = mesh.rank
def meet(mesh): return float(da.ones(12, mesh=mesh).sum())
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "program",
    [
        "if rank == 0: meet(mesh)",
        "import os; os.environ['DISTARRAY_SHARED_MEMORY'] = '0'\nif rank == 0: meet(mesh)",
        "if rank == 0: meet(first)",
        "if rank == 0: mesh.communicator().barrier()",
        "if rank == 0: mesh.comm()",
        "if rank == 0: mesh.communicator().broadcast(__import__('numpy').ones(3))",
        "if rank == 2: sys.exit(0)\nmeet(mesh)",
    ],
)
def test_a_first_call_without_a_rank_at_its_end_is_an_error(program):
    ended = launch(f"{MESH}\n{program}\nprint('at its end', rank)")
    assert_ended_by(ended, "CommunicationError: rank 0 waits for ranks [")
    assert "the first call of ranks 0, 1" in ended.said
    assert "<string>" in ended.said, ended.said


@pytest.mark.timeout(120)
def test_a_first_call_that_was_interrupted_is_an_error_from_then_on():
    program = (
        "import signal\n"
        "def interrupt(*_): raise ValueError('interrupted')\n"
        "signal.signal(signal.SIGALRM, interrupt)\n"
        "if rank == 1: signal.setitimer(signal.ITIMER_REAL, 0.2)\n"
        "else: time.sleep(1)\n"
        "try: meet(mesh)\n"
        "except ValueError: meet(mesh)\n"
    )
    ended = launch(f"{MESH}\n{program}\nprint('at its end')", DISTARRAY_SHARED_MEMORY="1")
    assert ended.status != 0, ended.said
    assert "the first call of ranks 0, 1, 2 together ended on this rank by ValueError" in ended.said
    assert "at its end" not in ended.said
    assert ended.seconds < SECONDS_TO_END


@pytest.mark.timeout(120)
@pytest.mark.parametrize("before", ["", "meet(mesh); rank < 2 and meet(first)"])
def test_ranks_that_wait_for_each_other_on_different_meshes_get_an_error(before):
    ended = launch(f"{MESH}\n{before}\nmeet(first if rank == 1 else mesh)\nprint('at its end')")
    assert_ended_by(ended, "neither will come")
    assert "rank 0 waits for rank 1 (" in ended.said
    assert "rank 1 waits for rank 0 (" in ended.said
    assert "at its end" not in ended.said


@pytest.mark.timeout(120)
@pytest.mark.parametrize("shared", ["0", "1"])
def test_ranks_that_are_late_or_soon_at_their_end_are_waited_for(shared):
    program = (
        "if rank == 1: time.sleep(2.5)\n"
        "rank < 2 and meet(first)\n"
        "if rank == 2: time.sleep(4.5)\n"
        "mesh.communicator().barrier()\n"  # ranks 0 and 1 wait for long, then end at once
    )
    ended = launch(f"{MESH}\n{program}", DISTARRAY_SHARED_MEMORY=shared)
    assert ended.status == 0, ended.said
    assert ended.said == ""


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("daemon", "before"), [(False, "meet(mesh)"), (True, "meet(mesh)"), (True, "")]
)
def test_a_thread_may_make_the_call_that_others_wait_for(daemon, before):
    program = (
        f"{before}\n"
        "if rank == 0:\n"
        "    later = threading.Timer(2, meet, [first])\n"
        f"    later.daemon = {daemon}\n"
        "    later.start()\n"
        "    meet(mesh); later.join()\n"
        "else:\n"
        "    rank == 1 and meet(first)\n"
        "    meet(mesh)\n"
        "print('at its end')\n"
    )
    ended = launch(f"{MESH}\n{program}")
    assert ended.status == 0, ended.said
    assert ended.said.count("at its end") == 3


BEHIND = """
x = da.ones((6, 6), mesh=mesh)
def begun(): return x.redistribute([da.Shard(1)], async_op=True)
begun().wait()
meet(mesh)
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("alone", [0, 1])
def test_a_rank_that_waits_for_its_background_is_waited_for_in_vain_as_well(alone):
    program = f"{BEHIND}\nif rank == {alone}: meet(mesh)\nbegun().wait()\nprint('at its end')"
    ended = launch(f"{MESH}\n{program}")
    assert_ended_by(ended, "will come")
    assert "at its end" not in ended.said


@pytest.mark.timeout(120)
def test_what_is_on_its_way_in_the_background_is_waited_for():
    program = (
        "if rank == 0:\n"
        "    handle = begun()\n"  # the others join it late, one after the other
        "    meet(mesh)\n"
        "    handle.wait()\n"
        "else:\n"
        "    time.sleep(1.5 * rank)\n"
        "    begun().wait()\n"
        "    time.sleep(1.5)\n"
        "    meet(mesh)\n"
        "print('at its end')\n"
    )
    ended = launch(f"{MESH}\n{BEHIND}\n{program}")
    assert ended.status == 0, ended.said
    assert ended.said.count("at its end") == 3


@pytest.mark.timeout(120)
@pytest.mark.parametrize("before", ["", "for one in own: meet(one)"])
def test_three_ranks_that_wait_in_a_circle_get_an_error(before):
    program = (
        "meshes = [da.DeviceMesh(ranks) for ranks in ([0, 1], [1, 2], [0, 2])]\n"
        "own = [one for one in meshes if one.coordinate is not None]\n"
        f"{before}\n"
        "meet(meshes[rank])\n"  # 0 waits for 1, 1 for 2, and 2 for 0
        "print('at its end')\n"
    )
    ended = launch(f"{MESH}\n{program}")
    assert_ended_by(ended, "none of them will come")
    for rank in range(3):
        assert f"rank {rank} waits for rank {(rank + 1) % 3} (" in ended.said, ended.said
    assert "at its end" not in ended.said


SCRIPT = """
import os, subprocess, sys
done = subprocess.run([sys.executable, "-c", {program!r}], close_fds=False)
sys.exit(done.returncode)
"""


@pytest.mark.timeout(120)
def test_ranks_that_a_script_starts_know_of_each_other_and_of_no_other_job(tmp_path):
    program = f"{MESH}\nfrom pathlib import Path\nfrom distarray.comm._launcher import job\n"
    names = []
    for attempt in range(2):
        told = [tmp_path / f"{attempt} {rank}" for rank in range(3)]
        say = f"Path({str(tmp_path)!r}, f'{attempt} {{rank}}').write_text(str(job()))"
        ended = launch(SCRIPT.format(program=program + say))
        assert ended.status == 0, ended.said
        found = [file.read_text() for file in told]
        assert len(set(found)) == 1, found
        names.append(found[0])
    assert names[0] != names[1]
    ended = launch(SCRIPT.format(program=f"{MESH}\nif rank == 0: meet(mesh)"))
    assert ended.status != 0
    assert "rank 0 waits for ranks [1, 2] (the first call of ranks 0, 1, 2" in ended.said
