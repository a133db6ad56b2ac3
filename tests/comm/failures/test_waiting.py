"""A rank that waits in vain says where, and does not wait for ever where a limit is set."""

from __future__ import annotations

import math
import re

import pytest

from distarray.comm._agreement import mismatch_error
from distarray.comm.failures import _watchdog
from distarray.errors import ArgumentError
from tests.test_abort import launch

pytestmark = pytest.mark.timeout(120)

ARRAY = """
import sys, time
import distarray as da
from distarray.comm.failures import _watchdog as _waiting

x = da.arange(6.0)
rank = x.mesh.rank
"""


@pytest.mark.parametrize("before", ["", "float(x.sum())"], ids=["first call", "later call"])
@pytest.mark.parametrize("shared", ["0", "1"])
def test_a_call_that_one_rank_makes_alone_ends_all_ranks_at_the_limit(before, shared):
    program = f"{ARRAY}\n{before}\nif rank == 0:\n    print(x)\n"
    # On the same node they would say that they have gone.
    nodes = {} if before else {"DISTARRAY_RANKS_PER_NODE": "1"}
    ended = launch(program, DISTARRAY_TIMEOUT="2", DISTARRAY_SHARED_MEMORY=shared, **nodes)
    assert ended.status != 0
    if before:
        assert "rank 0 waits for ranks [" in ended.said, ended.said
    else:
        assert "rank 0 of 3 has waited" in ended.said, ended.said
        assert "line 11" in ended.said, ended.said
        assert "for ever" not in ended.said, ended.said


def test_a_long_wait_is_told_once_and_ends_well():
    program = (
        f"{ARRAY}\n_waiting.SECONDS = 0.5\nfloat(x.sum())\n"
        "if rank == 0:\n    time.sleep(4.5)\n"
        "sys.stdout.write(f'{float(x.max())} at its end\\n')\n"
    )
    ended = launch(program)
    assert ended.status == 0, ended.said
    assert ended.said.count("5.0 at its end") == 3
    for rank in (1, 2):
        assert ended.said.count(f"rank {rank} of 3 has waited") == 1, ended.said
    assert "rank 0 of 3 has waited" not in ended.said


def test_a_rank_without_free_descriptors_is_watched_again_once_it_has_some():
    program = (
        f"{ARRAY}\nimport os, resource, threading\nfloat(x.sum())\n"
        "limits = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "if rank == 1:\n"
        "    taken = []\n"
        "    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))\n"
        "    try:\n"
        "        while True: taken.append(open('/dev/null'))\n"
        "    except OSError:\n"
        "        time.sleep(3)\n"
        "    del taken\n"
        "watched = any(thread.name == 'distarray waits' for thread in threading.enumerate())\n"
        "print(f'{float(x.max())} at its end, watched: {watched}')"
    )
    ended = launch(program)
    assert ended.status == 0, ended.said
    assert ended.said.count("5.0 at its end, watched: True") == 3, ended.said
    assert "xception" not in ended.said


@pytest.mark.parametrize(("told", "seconds"), [("", 1800), ("0", math.inf), ("none", math.inf)])
def test_there_is_a_limit_unless_it_is_turned_off(told, seconds, monkeypatch):
    monkeypatch.setenv("DISTARRAY_TIMEOUT", told)
    assert _watchdog.timeout() == seconds


def test_a_rank_of_another_node_is_waited_for_in_every_call_of_mpi():
    program = (
        f"{ARRAY}\nimport numpy as np\nfrom distarray.comm import world\n"
        "_waiting.SECONDS = 0.2\n"
        "comm = world()\ncomm.barrier()\nif rank == 0:\n    time.sleep(1.5)\n"
        "comm.all_gather(np.ones(9000), np.ones(27000))\n"
        "if rank == 0:\n    time.sleep(1.5)\n"
        "comm.start_all_gather(np.ones(9000), np.ones(27000)).wait()\n"
    )
    ended = launch(program, DISTARRAY_SHARED_MEMORY="0")
    assert ended.status == 0, ended.said
    for rank in (1, 2):
        for line in (16, 19):
            told = f"rank {rank} of 3 has waited [0-9]+ s for rank 0 at <string>, line {line}"
            assert re.search(told, ended.said), ended.said


@pytest.mark.parametrize("wrong", ["soon", "-1", "nan"])
def test_a_limit_that_is_no_time_is_refused(wrong, monkeypatch):
    monkeypatch.setenv("DISTARRAY_TIMEOUT", wrong)
    with pytest.raises(ArgumentError, match="DISTARRAY_TIMEOUT"):
        _watchdog.timeout()


def test_a_rank_that_is_elsewhere_is_named_at_the_limit():
    program = f"{ARRAY}\nfloat(x.sum())\nif rank == 0:\n    print(x)\ntime.sleep(60)\n"
    ended = launch(program, DISTARRAY_TIMEOUT="2")
    assert ended.status != 0
    assert "rank 0 has waited 2 s for ranks 1, 2 at <string>, line 11" in ended.said, ended.said
    assert "Ranks 1, 2: at <string>, line 12" in ended.said, ended.said


def test_calls_that_do_not_look_like_such_are_named_only_where_arrays_may_make_them():
    move = "all-reduce of float32: 8 [a:P(sum)] -> 8 [a:R]"
    assert "print(x)" in str(mismatch_error([move, f"of a tensor: {move}"], [0, 1]))
    assert "print(x)" not in str(
        mismatch_error([f"layers.0: of a tensor: {move}", f"of a tensor: {move}"], [0, 1])
    )


CHAIN = f"""{ARRAY}
def on(*ranks):
    mesh = da.DeviceMesh(ranks)
    if rank in ranks:
        ones = da.ones(4, mesh=mesh, placements=[da.Shard(0)])
        float(ones.sum())
        return ones

first, second = on(0, 1), on(2, 1)
if rank == 0:
    float(first.sum())
elif rank == 1:
    time.sleep(0.5)
    float(second.sum())
else:
    time.sleep(30)
"""


def line_of(program: str, text: str) -> str:
    """Return how messages name the line of a program that has a text."""
    (number,) = [i for i, line in enumerate(program.splitlines(), 1) if text in line]
    return f"at <string>, line {number}"


@pytest.mark.parametrize("shared", ["1", "0"])
def test_the_last_of_a_chain_is_blamed_at_the_limit_with_its_line(shared):
    ended = launch(CHAIN, DISTARRAY_TIMEOUT="1.5", DISTARRAY_SHARED_MEMORY=shared)
    assert ended.status != 0
    told = next(line for line in ended.said.splitlines() if "for rank 1, and in the end" in line)
    here, between, last = (line_of(CHAIN, text) for text in ("(first.", "(second.", "(30)"))
    assert re.search(rf"rank 0 .* and in the end for (at least )?rank 2, {here} \(all-red", told)
    assert f"Rank 2: {last}; rank 1: waits for rank 2 {between} (all-reduce of" in told


def test_a_rank_that_has_given_up_a_moment_before_is_not_blamed_itself():
    later = CHAIN.replace("    float(first.", "    time.sleep(1)\n    float(first.")
    ended = launch(later, DISTARRAY_TIMEOUT="1.5")
    assert ended.status != 0
    assert "in the end for rank 1" not in ended.said
    if "rank 0 has waited" not in ended.said:  # the other one has ended the job before
        assert "rank 1 has waited 1.5 s for rank 2" in ended.said, ended.said
    else:
        assert "rank 0 has waited 1.5 s for rank 1, and in the end for rank 2," in ended.said, (
            ended.said
        )
        assert f"Rank 2: {line_of(later, '(30)')}; rank 1: waits for rank 2 at" in ended.said


def test_a_rank_of_another_node_is_not_known_to_be_late():
    ended = launch(CHAIN, DISTARRAY_TIMEOUT="1.5", DISTARRAY_RANKS_PER_NODE="2")
    assert ended.status != 0
    assert "for rank 1, and in the end for at least rank 2, at" in ended.said, ended.said
    assert "Rank 2: does not answer" in ended.said


def test_messages_between_two_ranks_are_waited_for_by_name():
    program = (
        f"{ARRAY}\nimport numpy as np\nfrom distarray.comm import world\n"
        "ours = world().subgroup([2, 1])\n"
        "if ours is not None:\n    ours.barrier()\n"
        "_waiting.SECONDS = 0.5\n"
        "if rank == 1:\n    ours.recv(np.empty(3), 0)\n"
        "if rank == 2:\n    time.sleep(2)\n    ours.send(np.ones(3), 1)\n"
    )
    ended = launch(program)
    assert ended.status == 0, ended.said
    there, here = line_of(program, "sleep"), line_of(program, ".recv")
    told = rf"rank 1 of 3 has waited \d+ s for rank 2 {here} \(recv of 3 float64 with rank 2\)"
    assert re.search(told, ended.said), ended.said
    assert f"Rank 2: {there}. If" in ended.said
