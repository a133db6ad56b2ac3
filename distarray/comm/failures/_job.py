"""What names the job of this process on its node: alike on its ranks there, and no other job's.

Ranks need such a name before they have exchanged anything. They need not be children of one
process: a launcher may start a script, or a tool, that starts the program.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final

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

_NAME_LENGTH: Final = 15  # the system keeps no more of a process's name
_SHORT = frozenset(name[:_NAME_LENGTH] for name in _LAUNCHERS)


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
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return socket.gethostname()


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
