"""The launcher: this rank's number, the ranks of its node and the name of the job.

Ranks need this before they have exchanged anything: it comes from what the launcher has put into
the environment, and from the processes above this one. Ranks need not be children of one process: a
launcher may start a script, or a tool, that starts the program.
"""

from __future__ import annotations

import os
import platform
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from distarray.comm._settings import misspelt, setting
from distarray.errors import ArgumentError, DeviceError

_RANKS: Final = (
    ("PMI_RANK", "PMI_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
"""Where launchers say which rank of how many a process is."""

_LOCAL_SIZES: Final = (
    "MPI_LOCALNRANKS",  # MPICH and Intel MPI
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MV2_COMM_WORLD_LOCAL_SIZE",
)
"""Where launchers say how many ranks they started on this node."""

_LOCAL_RANKS: Final = (
    "DISTARRAY_LOCAL_RANK",  # the user's word comes first
    "MPI_LOCALRANKID",  # MPICH and Intel MPI
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "MVP_COMM_WORLD_LOCAL_RANK",
    "PALS_LOCAL_RANKID",  # Cray
    "SLURM_LOCALID",
    "FLUX_TASK_LOCAL_ID",
    "JSM_NAMESPACE_LOCAL_RANK",
)
"""Where launchers say which rank of its node a process is."""

_SLURM_SIZES: Final = ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
"""Where Slurm says it of every node of the step, or of the job: ``2(x3),1`` is 2, 2, 2, 1."""

_WORLD_SIZES: Final = ("PMI_SIZE", "PMIX_SIZE")
"""Where launchers say how many ranks they started in all."""


_LAUNCHERS: Final = frozenset(
    (
        *("hydra_pmi_proxy", "pmi_proxy", "mpispawn", "mpirun_rsh"),  # MPICH and its kin
        *("mpiexec", "mpirun", "mpiexec.hydra", "mpirun.hydra", "mpiexec.gforker"),
        *("orted", "orterun", "prted", "prterun", "prte"),  # Open MPI
        *("slurmstepd", "flux-shell"),
    )
)
"""Processes that start the ranks of one job on a node, or of several that have namespaces."""

_NAMESPACES: Final = ("PMIX_NAMESPACE", "PALS_APID", "JSM_NAMESPACE")
"""Where launchers say which of their jobs this is."""

_STEP: Final = ("SLURM_JOB_ID", "SLURM_STEP_ID")
"""The same where a container, or the system, hides the launcher."""

_STARTED: Final = "_DISTARRAY_STARTED"
"""The variable that tells in which process MPI has started as a rank, and of which job."""

_PROCESS: Final = os.getpid()
"""Where this module was imported: in a process that was forked since, another one."""

_NAME_LENGTH: Final = 15  # the system keeps no more of a process's name
_SHORT = frozenset(name[:_NAME_LENGTH] for name in _LAUNCHERS)


class Place(NamedTuple):
    """Which of several ranks this process is."""

    rank: int
    size: int

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.size}"


def launched_place() -> Place | None:
    """Return which of several ranks the launcher says this is; None where it says nothing."""
    for rank, size in _RANKS:
        told = os.environ.get(rank, ""), os.environ.get(size, "")
        if all(map(str.isdecimal, told)) and int(told[1]) > 1:
            return Place(*map(int, told))
    return None


def warn_of_misspelt_settings() -> None:
    """Warn, on the first rank, of variables whose names are almost those of settings."""
    place = launched_place()
    if place is None or place.rank == 0:
        for name, meant in misspelt().items():
            warnings.warn(f"{name} is no setting; {meant} may be meant", stacklevel=3)


def own_place() -> Place | None:
    """Return which of several ranks this is.

    None where it is the only one, is done with MPI, or was forked from a rank.
    """
    if is_forked():
        return None
    mpi = started_mpi()
    if mpi is not None:
        if mpi.Is_finalized():
            return None
        comm = mpi.COMM_WORLD
        place = Place(comm.Get_rank(), comm.Get_size())
        return place if place.size > 1 else None
    return launched_place() if started_by() is None else None


def is_forked() -> bool:
    """Tell whether this process was forked from one that had imported this."""
    return os.getpid() != _PROCESS


def note_start() -> None:
    """Tell the processes that this one will start that it is a rank, and they are none."""
    os.environ[_STARTED] = f"{os.getpid()} {job()!r}"


def started_by() -> int | None:
    """Return which process is the rank of which this one was started, None where it is itself."""
    if launched_place() is None:
        return None
    if is_forked():
        return _PROCESS
    pools = sys.modules.get("multiprocessing")
    parent = pools.parent_process() if pools is not None else None
    if parent is not None:
        return parent.pid
    process, _, where = os.environ.get(_STARTED, "").partition(" ")
    is_other = process.isdecimal() and int(process) != os.getpid()
    return int(process) if is_other and where == repr(job()) else None


def started_mpi() -> Any:
    """Return ``mpi4py.MPI`` where it has started MPI."""
    mpi: Any = sys.modules.get("mpi4py.MPI")
    return mpi if getattr(mpi, "COMM_WORLD", None) is not None and mpi.Is_initialized() else None


def launched_local_rank() -> int | None:
    """Return which rank of its node this process is, as its launcher says; None where none does."""
    for name in _LOCAL_RANKS:
        value = setting(name)
        if value.isdecimal():
            return int(value)
        if value and name == "DISTARRAY_LOCAL_RANK":
            raise DeviceError(
                f"DISTARRAY_LOCAL_RANK={value!r} is not the number of a rank on its node; set 0, "
                "1, ... or unset it"
            )
    return None


def count_local_ranks(environment: Mapping[str, str] = os.environ) -> int:
    """Return how many ranks the launcher says it started on this node, 1 if it says nothing.

    Where it says less, the number is not too small: the most ranks of any node, or all of them.
    """
    told = [_number(environment.get(name, "")) for name in _LOCAL_SIZES]
    told += [_slurm_entry(environment.get(name, ""), environment) for name in _SLURM_SIZES]
    told += [_number(environment.get(name, "")) for name in _WORLD_SIZES]
    return next(filter(None, told), 1)


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def _slurm_entry(tasks: str, environment: Mapping[str, str]) -> int:
    """Return this node's entry of a list of tasks per node; the largest where it is unknown."""
    sizes: list[int] = []
    for part in tasks.split(","):
        entry = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if entry is None:
            return 0
        sizes += [int(entry[1])] * int(entry[2] or 1)
    node = environment.get("SLURM_NODEID", "")
    here = _number(node)
    return sizes[here] if node.isdecimal() and here < len(sizes) else max(sizes)


def node_name(world_rank: int) -> str:
    """Return what names the node of this process: equal on the ranks that may share memory.

    ``DISTARRAY_RANKS_PER_NODE=k`` makes believe, for tests, that every k consecutive ranks of
    the MPI world are a node.
    """
    # Containers on one machine do not see each other's processes.
    return f"{machine_name(world_rank)} {process_namespace()}"


def machine_name(world_rank: int) -> str:
    """Return what names the machine, or the part of it that passes for a node."""
    pretended = _read_ranks_per_node()
    node = f"{world_rank // pretended} " if pretended else ""
    return node + _or_host(lambda: Path("/proc/sys/kernel/random/boot_id").read_text().strip())


def _read_ranks_per_node() -> int:
    told = setting("DISTARRAY_RANKS_PER_NODE")
    if told and not (told.isdecimal() and int(told)):
        raise ArgumentError(
            f"DISTARRAY_RANKS_PER_NODE={told!r} is not a number of ranks; set a positive "
            "integer, or unset it"
        )
    return int(told or 0)


def local_ranks(world_rank: int, size: int) -> list[int] | None:
    """Return the ranks of this node in the MPI world; None where nobody says which they are."""
    pretended = _read_ranks_per_node()
    if pretended:
        first = world_rank // pretended * pretended
        return list(range(first, min(first + pretended, size)))
    of_slurm = os.environ.get("SLURM_GTIDS", "").split(",")
    is_step = os.environ.get("SLURM_STEP_NUM_TASKS") == str(size)  # not a batch script's mpiexec
    if is_step and all(map(str.isdecimal, of_slurm)):
        return list(map(int, of_slurm))
    return list(range(size)) if count_local_ranks() == size else None


def count_ranks_here(world_rank: int, size: int) -> int:
    """Return how many ranks this node has, or not too few."""
    told = local_ranks(world_rank, size)
    return min(count_local_ranks(), size) if told is None else len(told)


def job() -> tuple[object, ...]:
    """Return what names the job.

    Where nothing tells it, ranks that different processes have started get different names.
    """
    namespaces = tuple(os.environ.get(name) for name in _NAMESPACES)
    launcher = _launcher(os.getppid())
    if launcher is not None:
        return (*namespaces, process_namespace(), *launcher)
    if any(namespaces):
        return namespaces
    step = tuple(os.environ.get(name) for name in _STEP)
    return step if all(step) else (process_namespace(), os.getppid())


def process_namespace() -> str:
    """Return what names the space in which numbers of processes mean something."""
    return _or_host(lambda: os.readlink("/proc/self/ns/pid"))


def _or_host(read: Callable[[], str]) -> str:
    """Return what the system tells, or the name of the host where it has no such file."""
    try:
        return read()
    except OSError:
        return platform.node()


def is_all_of_rank() -> bool:
    """Tell whether this process is all that there will be of its rank: the launcher started it.

    A script that starts it may start another program after it.
    """
    launcher = _launcher(os.getppid())
    return launcher is not None and launcher[0] == os.getppid()


def _launcher(process: int) -> tuple[int, int] | None:
    """Return the launcher nearest to a process, itself or an ancestor, and when it was started."""
    while process > 1:
        try:
            told = Path(f"/proc/{process}/stat").read_bytes()
        except OSError:  # hidden, or a system without such files
            return None
        # "12 (name) S 11 ...": the parent is the 4th field, the start the 22nd; see proc(5).
        name = told[told.index(b"(") + 1 : told.rindex(b")")].decode(errors="replace")
        fields = told[told.rindex(b")") + 1 :].split()
        if name in _SHORT:
            return process, int(fields[19])
        process = int(fields[1])
    return None
