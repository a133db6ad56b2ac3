"""What each MPI library says of GPU memory, and the switches that it has for it.

Nothing here is set for the user: a switch is read in ``MPI_Init``, and each of them can end it
where the library or the machine lacks what it asks for. Intel MPI with ``I_MPI_OFFLOAD=1`` crashes
on a machine without a GPU, and Cray MPICH ends a program that does not bring its GPU library.

Sources: the manual pages MPIX_Query_cuda_support(3) of Open MPI and MPIX_GPU_query_support(3) of
MPICH; MPICH's control variable MPIR_CVAR_ENABLE_GPU; "GPU Support" in the Intel MPI Library
Developer Reference for Linux (of 2021.10: Intel GPUs only; of 2021.14: Intel and NVIDIA); the
pages on Cray MPICH of NERSC and CSCS; MVAPICH's source, in which the query tells how the library
was built and not whether it was switched on; the MVAPICH2-GDR user guide; conda-forge's notes on
its Open MPI.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

_CUDA: Final = 0  # MPIX_GPU_SUPPORT_CUDA in MPICH's mpi.h
_INTEL_SINCE: Final = (2021, 11)


class Finding(NamedTuple):
    """What one step found out.

    Attributes
    ----------
    step
        Which.
    answer
        Whether device memory can be passed to MPI; None where the step cannot tell.
    text
        Why, in a sentence.
    """

    step: str
    answer: bool | None
    text: str


class Switch(NamedTuple):
    """A variable of the environment that an MPI library reads in ``MPI_Init``.

    Attributes
    ----------
    name, value
        What to set.
    needed
        Whether the library takes no device memory without it; False where it is on unless turned
        off, None where that depends on how the library was built.
    note
        What else there is to it.
    """

    name: str
    value: str
    needed: bool | None
    note: str

    def is_on(self, environment: Mapping[str, str]) -> bool:
        """Tell whether it is set so that device memory may be passed."""
        told = environment.get(self.name)
        if told is None:
            return not self.needed
        return told.strip().lower() not in ("", "0", "n", "no", "off", "false", "disable")


class Library(NamedTuple):
    """An MPI library.

    Attributes
    ----------
    name
        One of `SWITCHES`.
    version
        Its numbers.
    """

    name: str
    version: tuple[int, ...]


SWITCHES: Final[dict[str, tuple[Switch, ...]]] = {
    "Open MPI": (
        Switch(
            "OMPI_MCA_opal_cuda_support",
            "true",
            None,
            "needed where the build has CUDA switched off, as conda-forge's has",
        ),
    ),
    "MPICH": (Switch("MPIR_CVAR_ENABLE_GPU", "1", False, "on unless set to 0"),),
    "Cray MPICH": (
        Switch(
            "MPICH_GPU_SUPPORT_ENABLED",
            "1",
            True,
            "and mpi4py must bring the library libmpi_gtl_cuda: build it with the module "
            "craype-accel-nvidia80 (or 90) loaded, or preload the library",
        ),
    ),
    "Intel MPI": (
        Switch("I_MPI_OFFLOAD", "1", True, "NVIDIA GPUs from version 2021.11; only where one is"),
    ),
    "MVAPICH2": (
        Switch(
            "MV2_USE_CUDA",
            "1",
            True,
            "of a build for CUDA (MVAPICH2-GDR); Python must preload its libmpi.so",
        ),
    ),
    "MVAPICH": (
        Switch("MVP_USE_CUDA", "1", True, "of a build for CUDA; MVAPICH-Plus has MVP_ENABLE_GPU"),
    ),
    "MVAPICH-Plus": (Switch("MVP_ENABLE_GPU", "1", False, "on unless set to 0"),),
    "": (),
}
"""By library; the last stands for all others."""

_NAMES: Final = (
    # The first that is found: those made from MPICH say so too.
    ("Open MPI", r"Open MPI v?([\d.]+)"),
    ("Cray MPICH", r"CRAY MPICH version\s+([\d.]+)"),
    ("Intel MPI", r"Intel\(R\) MPI Library ([\d.]+)"),
    ("MVAPICH-Plus", r"MVAPICH-Plus\D*([\d.]+)"),
    ("MVAPICH2", r"MVAPICH2\D*([\d.]+)"),
    ("MVAPICH", r"MVAPICH\D*([\d.]+)"),
    ("MPICH", r"MPICH Version:\s*([\d.]+)"),
)


def library(told: str) -> Library:
    """Return which library ``MPI_Get_library_version`` tells of."""
    for name, pattern in _NAMES:
        found = re.search(pattern, told, re.IGNORECASE)
        if found is not None:
            return Library(name, tuple(int(part) for part in found[1].split(".") if part))
    return Library("", ())


def ask(told: str, environment: Mapping[str, str] = os.environ) -> Finding:
    """Return what the library says of itself; MPI runs.

    Parameters
    ----------
    told
        What ``MPI_Get_library_version`` returns.
    environment
        In which MPI was started.
    """
    found = library(told)
    name = found.name or "this MPI library"
    off = [switch for switch in SWITCHES[found.name] if not switch.is_on(environment)]
    if off:
        switch = off[0]
        return Finding(
            "library",
            False,
            f"{name} takes no device memory without {switch.name}={switch.value} ({switch.note})",
        )
    if found.name == "Intel MPI":
        if found.version < _INTEL_SINCE:
            shown = ".".join(map(str, found.version))
            return Finding("library", False, f"Intel MPI {shown} knows no NVIDIA GPUs")
        return Finding("library", None, "Intel MPI has I_MPI_OFFLOAD on, and says no more")
    if found.name == "Cray MPICH" and not _loaded("libmpi_gtl_cuda"):
        return Finding("library", False, "Cray MPICH runs without its library libmpi_gtl_cuda")
    return _query(name)


def _query(name: str) -> Finding:
    """Ask the function that the library has for it."""
    for path in _loaded("libmpi"):
        try:
            loaded = ctypes.CDLL(path)
        except OSError:
            continue
        if hasattr(loaded, "MPIX_GPU_query_support"):
            flag = ctypes.c_int(0)
            failed = loaded.MPIX_GPU_query_support(_CUDA, ctypes.byref(flag))
            return _answered("MPIX_GPU_query_support", not failed and bool(flag.value), name)
        if hasattr(loaded, "MPIX_Query_cuda_support"):
            answer = loaded.MPIX_Query_cuda_support() == 1
            return _answered("MPIX_Query_cuda_support", answer, name)
    return Finding("library", None, f"{name} has no function that tells")


def _answered(function: str, answer: bool, name: str) -> Finding:
    said = "takes device memory" if answer else "was not built for CUDA, or has it switched off"
    return Finding("library", answer, f"{name} {said}, says {function}")


def _loaded(beginning: str) -> list[str]:
    """Return the files of the libraries in this process whose names begin so."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    paths = dict.fromkeys(line[line.index("/") :] for line in lines if "/" in line)
    return [path for path in paths if os.path.basename(path).startswith(beginning)]
