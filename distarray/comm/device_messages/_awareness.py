"""CUDA-awareness: whether MPI takes addresses of device memory, found out without risk to the job.

``DISTARRAY_CUDA_AWARE`` decides where it is set to 1 (it does: nothing is tried) or 0. Else three
steps, of which each is taken only if none before said no: what the library says of itself
(`ask`); a child process on each node, which sends device memory to itself (`_selftest`) and may
crash; a ring of messages between the ranks, checked, with a deadline.
The answer is one for all of these ranks, found in their first collective of device memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from distarray.comm import _backend, _settings
from distarray.comm._agreement import Failure, attempt, by_answer, raise_alike
from distarray.comm._collectives import OWN_TAG
from distarray.comm._launcher import node_name
from distarray.comm._log import pause_logs
from distarray.errors import ArgumentError, MismatchError

if TYPE_CHECKING:
    from distarray.comm._communicator import Communicator

VARIABLE: Final = "DISTARRAY_CUDA_AWARE"
CHILD_SECONDS: Final = 60.0
"""How long the child may take: to load CuPy from a busy file system, for the most part."""

RING_SECONDS: Final = 20.0
"""How long two messages around the ranks may take, on a busy node."""
RING_BYTES: Final = (1 << 10, 4 << 20)
"""As in `_selftest`: what goes at once, and what the two sides first agree on."""
_TRUST: Final = f"set {VARIABLE}=1 if you know that it does"

_OF_LAUNCHERS: Final = re.compile(
    r"PMI|PRTE|PRRTE|ORTE_|OMPI_(?!MCA_)|HYDI|HYDRA|MPI_LOCAL|MPIEXEC|MPIRUN|SLURM|PALS_|"
    r"ALPS_|FLUX_|JSM_|I_MPI_(HYDRA|MPIRUN|PMI|PIN|INFO)|MV2_COMM_WORLD|MVP_COMM_WORLD|"
    r"OMPI_MCA_(ess|orte|prte|pmix|plm|ras|rmaps|odls|routed|grpcomm|iof|schizo|state|errmgr)"
)
"""Beginnings of the names of variables that make a process a rank of a job."""


class Finding(NamedTuple):
    """What one step found out: whether device memory can be passed to MPI, and why, in a sentence.

    The answer is None where the step cannot tell.
    """

    step: str
    answer: bool | None
    text: str


class Verdict(NamedTuple):
    """Whether device memory is passed to MPI, and what was found out."""

    direct: bool
    findings: tuple[Finding, ...]


class _Settings(NamedTuple):
    """What a rank tells the others first."""

    setting: str | Failure
    node: str
    library: Finding
    child: Finding | None


_child: Finding | None = None  # what the child of this node has found


def setting() -> str:
    """Return ``DISTARRAY_CUDA_AWARE``: "auto", "1" or "0"; an ArgumentError for anything else."""
    told = _settings.setting(VARIABLE, "auto")
    if told not in ("auto", "1", "0"):
        raise ArgumentError(
            f"{VARIABLE}={told!r} is not known; set auto (find out), 1 (MPI takes device memory) "
            "or 0 (it does not), the same on all ranks"
        )
    return told


def verdict(communicator: Communicator) -> Verdict:
    """Return whether these ranks pass device memory to MPI; the first call is collective.

    Settings that are not known, or differ, are the same error on every rank.
    """
    if not communicator.verdicts:
        communicator.verdicts.append(_decide(communicator))
    known: Verdict = communicator.verdicts[0]
    return known


def _decide(communicator: Communicator) -> Verdict:
    everyone = _compare_settings(communicator)
    chosen = everyone[0].setting
    if chosen != "auto":
        answer = chosen == "1"
        return Verdict(answer, (Finding("setting", answer, f"{VARIABLE}={chosen}"),))
    found = [_first_no([told.library for told in everyone])]
    if found[-1].answer is not False:
        found.append(_first_no(_run_children(communicator, everyone)))
        if found[-1].answer:
            found.append(_ring(communicator))
    return Verdict(found[-1].answer is True, tuple(found))


def _compare_settings(communicator: Communicator) -> list[_Settings]:
    """Return what all ranks tell; the same error on all where the settings are wrong."""
    chosen, error = attempt(setting, VARIABLE)
    node, library = (
        "",
        Finding("library", False, "these ranks are threads of one process, without MPI"),
    )
    if communicator.mpi is not None:
        from mpi4py import MPI

        node, library = node_name(MPI.COMM_WORLD.Get_rank()), ask()
    mine = _Settings(chosen, node, library, _child)
    everyone = _gather(communicator, mine)
    answers = [told.setting for told in everyone]
    raise_alike(answers, error, communicator.world_ranks, communicator.size)
    if len(set(answers)) > 1:
        told = by_answer(answers, communicator.world_ranks)
        raise MismatchError(f"{VARIABLE} differs ({told}); set it alike on all ranks")
    return everyone


def _gather(communicator: Communicator, mine: Any) -> list[Any]:
    """Return what all ranks say; not recorded, because no program asked for it."""
    with pause_logs():
        return communicator.all_gather_object(mine)


def _first_no(findings: list[Finding]) -> Finding:
    """Return what counts: the first no, else the first that cannot tell, else yes."""
    return min(findings, key=lambda found: (False, None, True).index(found.answer))


# --- the library ---------------------------------------------------------------------------------

_CUDA: Final = 0  # MPIX_GPU_SUPPORT_CUDA in MPICH's mpi.h

_SWITCHES: Final = (
    ("Open MPI", "OMPI_MCA_opal_cuda_support=true", "conda-forge's build has it off"),
    ("CRAY MPICH", "MPICH_GPU_SUPPORT_ENABLED=1", "and mpi4py must bring libmpi_gtl_cuda"),
    ("Intel(R) MPI", "I_MPI_OFFLOAD=1", "from version 2021.11; it crashes without a GPU"),
    ("MVAPICH2", "MV2_USE_CUDA=1", "of MVAPICH2-GDR; preload its libmpi.so"),
    ("MVAPICH Version", "MVP_USE_CUDA=1", "of a build for CUDA"),
)
"""What is in ``MPI_Get_library_version``, and the switch for GPUs that is off in usual builds.

Nothing is set for the user: each of these can end ``MPI_Init`` where the library or the machine
lacks what it asks for. docs/gpu.md has the sources.
"""


def find_switch(told: str) -> tuple[str, str] | None:
    """Return the switch, and a note on it, of what ``MPI_Get_library_version`` tells of."""
    return next(((switch, note) for name, switch, note in _SWITCHES if name in told), None)


def ask() -> Finding:
    """Return what the library says of itself, by the function that it has for it; MPI runs."""
    for path in _find_libraries("libmpi"):
        try:
            loaded = ctypes.CDLL(path)
        except OSError:
            continue
        if hasattr(loaded, "MPIX_GPU_query_support"):
            flag = ctypes.c_int(0)
            failed = loaded.MPIX_GPU_query_support(_CUDA, ctypes.byref(flag))
            function, answer = "MPIX_GPU_query_support", not failed and bool(flag.value)
        elif hasattr(loaded, "MPIX_Query_cuda_support"):
            function, answer = "MPIX_Query_cuda_support", loaded.MPIX_Query_cuda_support() == 1
        else:
            continue
        said = "takes device memory" if answer else "was not built for CUDA, or has it switched off"
        return Finding("library", answer, f"MPI {said}, says {function}")
    return Finding("library", None, "MPI has no function that tells")


def _find_libraries(beginning: str) -> list[str]:
    """Return the files of this process's libraries whose names begin so."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    paths = dict.fromkeys(line[line.index("/") :] for line in lines if "/" in line)
    return [path for path in paths if os.path.basename(path).startswith(beginning)]


# --- the child -----------------------------------------------------------------------------------


def _run_children(communicator: Communicator, everyone: list[_Settings]) -> list[Finding]:
    """Return what the child of every node has found; started where none has been before."""
    global _child
    nodes = [told.node for told in everyone]
    known = {told.node: told.child for told in everyone if told.child is not None}
    mine = nodes[communicator.rank]
    found = None
    if mine not in known and nodes.index(mine) == communicator.rank:
        found = child(_backend.module("cuda").cuda.Device().id)
    heard = zip(nodes, _gather(communicator, found), strict=True)
    known |= {node: finding for node, finding in heard if finding is not None}
    _child = known[mine]
    return list(known.values())


def child(device: int) -> Finding:
    """Return what a process of its own finds, which sends memory of a GPU to itself."""
    import subprocess
    import tempfile

    if not sys.executable:
        return _untold("this program does not know its Python")
    program = Path(__file__).with_name("_selftest.py")
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", str(program), str(device)],
                env=_without_launcher(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,  # so that what it starts can be ended with it
            )
        except OSError as error:
            return _untold(f"it does not start: {error}")
        try:
            status = process.wait(CHILD_SECONDS)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        said, complaints = (_read(file) for file in (out, err))
    return _interpret_exit(status, said.split(), complaints)


def _interpret_exit(status: int | None, said: list[str], complaints: str) -> Finding:
    """Return what it means how a child ended, and what it had said before."""
    if "right" in said:
        return Finding("child", True, "a process has sent device memory to itself")
    if "wrong" in said:
        return Finding("child", False, "a process has sent itself device memory: WRONG VALUES")
    last = next(reversed(complaints.strip().splitlines()), f"status {status}")
    if "device" not in said:
        if status is None:
            return _untold(f"nothing came of it in {CHILD_SECONDS:g} s")
        where = "the GPU" if "mpi" in said else "MPI, without a launcher,"
        return _untold(f"{where} does not start there: {last}")
    if status is None:
        end = f"did not end within {CHILD_SECONDS:g} s"
    elif status < 0:
        end = f"was ended by {signal.Signals(-status).name}"
    else:
        end = f"failed: {last}"
    return Finding("child", False, f"a process that sent device memory to itself {end}")


def _untold(why: str) -> Finding:
    return Finding("child", None, f"a process to try it in tells nothing ({why}); {_TRUST}")


def _without_launcher(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which a process is a program of one rank."""
    return {k: v for k, v in environment.items() if not _OF_LAUNCHERS.match(k)}


def _read(file: Any) -> str:
    file.seek(0)
    return str(file.read().decode(errors="replace"))


# --- the ring ------------------------------------------------------------------------------------


def _ring(communicator: Communicator) -> Finding:
    """Return whether device memory arrives at the next rank; collective."""
    copy = communicator.duplicate()
    try:
        mine = _pass_around(copy)
    except Exception as error:
        rank = copy.world_ranks[copy.rank]
        mine = Finding("ring", False, f"rank {rank} failed: {type(error).__name__}: {error}")
    found = _first_no(_gather(communicator, mine))
    if found.answer:
        copy.free()
    # Else messages may be under way for ever: what they write to stays.
    return found


def _pass_around(communicator: Communicator) -> Finding:
    xp = _backend.module("cuda")
    rank, n = communicator.rank, communicator.size
    before, after = (rank - 1) % n, (rank + 1) % n
    here, sender = communicator.world_ranks[rank], communicator.world_ranks[before]
    limit = time.monotonic() + RING_SECONDS
    right = True
    for nbytes in RING_BYTES:
        sent, received = xp.empty(nbytes, np.uint8), xp.empty(nbytes, np.uint8)
        sent.set(_values(nbytes, rank))
        received.set(np.zeros(nbytes, np.uint8))
        xp.cuda.get_current_stream().synchronize()
        requests = [
            communicator._recv(received, before, OWN_TAG, False),
            communicator._send(sent, after, OWN_TAG, False),
        ]
        while requests := [request for request in requests if not request.test()]:
            if time.monotonic() > limit:
                told = f"what rank {sender} sends to rank {here} has not come in {RING_SECONDS:g} s"
                return Finding("ring", False, told)
            time.sleep(0)
        right = right and (received.get() == _values(nbytes, before)).all()
    if not right:  # said at the end: the others wait for what this rank sends
        return Finding("ring", False, f"rank {here} got WRONG VALUES from rank {sender}")
    return Finding("ring", True, "device memory has gone around the ranks of the job")


def _values(nbytes: int, rank: int) -> np.ndarray:
    values: np.ndarray = (np.arange(nbytes, dtype=np.uint32) * 7 + rank).astype(np.uint8)
    return values
