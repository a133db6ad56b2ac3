"""The pool keeps at most half of what the job may use on a node, shared by the node's ranks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from distarray.comm import _launcher
from distarray.comm.shared_memory import _arena, _node

GIBIBYTE = 1 << 30
PHYSICAL = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, 1),
        ({"MPI_LOCALNRANKS": "4"}, 4),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "3", "PMI_SIZE": "9"}, 3),
        ({"PMI_SIZE": "9"}, 9),
        ({"PMI_SIZE": "9", "SLURM_STEP_TASKS_PER_NODE": "3(x3)"}, 3),
        ({"SLURM_STEP_TASKS_PER_NODE": "4", "SLURM_TASKS_PER_NODE": "8"}, 4),
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x2)", "SLURM_NODEID": "1"}, 4),
        ({"SLURM_STEP_TASKS_PER_NODE": "2,3(x2)", "SLURM_NODEID": "0"}, 2),
        ({"SLURM_STEP_TASKS_PER_NODE": "2,3(x2)", "SLURM_NODEID": "2"}, 3),
        ({"SLURM_TASKS_PER_NODE": "2(x3),5,1", "SLURM_NODEID": "4"}, 1),
        ({"SLURM_TASKS_PER_NODE": "2(x3),5,1"}, 5),
        ({"SLURM_TASKS_PER_NODE": "2(x3),5", "SLURM_NODEID": "7"}, 5),
        ({"SLURM_TASKS_PER_NODE": "nonsense", "PMI_SIZE": "2"}, 2),
        ({"SLURM_TASKS_PER_NODE": "2(x3),nonsense"}, 1),
        ({"MPI_LOCALNRANKS": "0"}, 1),
    ],
)
def test_ranks_of_the_node_are_what_the_launcher_says(environment, expected):
    assert _launcher.count_local_ranks(environment) == expected


def group(
    root: Path, line: str, limits: dict[str, int | str], used: int = 0, cached: int = 0
) -> None:
    """Write the files of a process in a control group, and the limits of some of those above."""
    v2 = line.startswith("0:")
    mount = root / "sys/fs/cgroup" / ("" if v2 else "memory")
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    with (root / "proc/self/cgroup").open("a") as told:
        told.write(line + "\n")
    for path, limit in limits.items():
        folder = mount / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ("memory.max" if v2 else "memory.limit_in_bytes")).write_text(f"{limit}\n")
        (folder / ("memory.current" if v2 else "memory.usage_in_bytes")).write_text(f"{used}\n")
        name = "inactive_file" if v2 else "total_inactive_file"
        (folder / "memory.stat").write_text(f"anon 1\n{name} {cached}\n")


def test_memory_of_the_job_is_the_least_limit_on_the_way_up(tmp_path):
    step = "system.slice/slurm/job_7/step_0/user/task_1"
    limits = {step: "max", "system.slice/slurm/job_7/step_0": GIBIBYTE}
    limits["system.slice/slurm/job_7"] = GIBIBYTE // 2
    group(tmp_path, f"0::/{step}", limits)
    assert _node.memory(tmp_path) == GIBIBYTE // 2


def test_memory_of_the_job_is_bounded_by_the_first_version_of_control_groups(tmp_path):
    limits = {"slurm/uid_0/job_7": GIBIBYTE, "": 9223372036854771712}
    group(tmp_path, "4:memory:/slurm/uid_0/job_7/step_0/task_1", limits)
    group(tmp_path, "1:cpu,cpuacct:/other", {"other": 1})
    group(tmp_path, "0::/", {})
    assert _node.memory(tmp_path) == GIBIBYTE


def test_memory_of_a_container_that_sees_only_its_own_group_is_bounded(tmp_path):
    group(tmp_path, "0::/docker/5f0a", {"": GIBIBYTE})
    assert _node.memory(tmp_path) == GIBIBYTE


def test_memory_without_limits_is_that_of_the_machine(tmp_path):
    assert _node.memory(tmp_path) == PHYSICAL
    group(tmp_path, "0::/user.slice", {"user.slice": "max", "": "max"})
    assert _node.memory(tmp_path) == PHYSICAL


@pytest.mark.parametrize("line", ["0::/job/step", "4:memory:/job/step"])
def test_available_memory_is_what_the_groups_above_have_left(tmp_path, line):
    limits = {"job/step": 4 * GIBIBYTE, "job": 2 * GIBIBYTE}
    group(tmp_path, line, limits, used=GIBIBYTE, cached=GIBIBYTE // 4)
    assert _node.available(tmp_path) == GIBIBYTE + GIBIBYTE // 4


def test_available_memory_without_limits_is_what_the_system_says(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 900 kB\nMemAvailable: 700 kB\n")
    assert _node.available(tmp_path) == 700 * 1024


def test_pool_keeps_half_of_the_job_s_memory_shared_by_the_ranks_of_the_node(monkeypatch):
    monkeypatch.delenv("DISTARRAY_POOL_LIMIT", raising=False)
    monkeypatch.setattr(_arena, "memory", lambda: 24 * GIBIBYTE)
    monkeypatch.setattr(_arena, "count_local_ranks", lambda: 3)
    assert _arena.Arena().limit == 4 * GIBIBYTE
