"""GPUs of a job, in words: which there are, who uses them, how values move between them."""

from __future__ import annotations

import importlib
import os
import platform
from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from distarray.comm import _memory
from distarray.comm._communicator import Communicator
from distarray.comm._device_mesh import init_device_mesh
from distarray.comm.cuda import _device, _launch
from distarray.comm.device_messages import _awareness
from distarray.errors import ArgumentError, DeviceError, MismatchError
from distarray.layout import bytes_text

Lines = list[tuple[str, str]]


class Gpu(NamedTuple):
    """One GPU that a rank sees."""

    bus: str
    name: str
    memory: int
    uuid: bytes = b""

    @property
    def identity(self) -> object:
        """What no other GPU of the node has; instances (MIG) of one share its place on the bus."""
        return self.uuid or self.bus


class RankGpus(NamedTuple):
    """What one rank sees of GPUs; ``none`` says why it has none.

    ``bound`` is the number of its own one, None where that cannot be told, which ``trouble``
    explains; ``lacking`` says why our kernels do not run on it.
    """

    host: str
    none: str = ""
    gpus: tuple[Gpu, ...] = ()
    versions: str = ""
    bound: int | None = None
    trouble: str = ""
    lacking: str = ""

    @property
    def own(self) -> str:
        """The GPU that the rank is bound to, in words."""
        return "none" if self.bound is None else f"{self.bound} ({self.gpus[self.bound].bus})"


def gather(communicator: Communicator) -> list[RankGpus]:
    """Return what each rank sees; collective. Ranks are bound to their GPUs."""
    return communicator.all_gather_object(_describe_rank(communicator.size))


def lines(communicator: Communicator, everyone: list[RankGpus]) -> Lines:
    """Return what there is to tell, line by line; collective."""
    without = [rank for rank, here in enumerate(everyone) if here.none]
    if len(without) == len(everyone):
        return [("GPUs", f"none: {everyone[0].none}")]
    told = _of_nodes(everyone)
    if without:
        rank = without[0]
        first = f"rank {rank} on {everyone[rank].host}: {everyone[rank].none}"
        told.append(("trouble", f"{len(without)} of {len(everyone)} ranks have none; {first}"))
    troubles = [("trouble", here.trouble) for here in everyone if here.trouble][:1]
    if without or troubles:
        return told + troubles
    lacking = dict.fromkeys(here.lacking for here in everyone if here.lacking)
    told += [("kernels", f"CuPy's own, which are slower: {why}") for why in lacking]
    return told + _describe_idle(everyone) + _describe_moves(communicator)


def _describe_rank(size: int) -> RankGpus:
    host = platform.node()
    try:
        cupy: Any = importlib.import_module("cupy")
        have = _device.count()
    except DeviceError as error:
        return RankGpus(host, str(error))
    except Exception as error:
        return RankGpus(host, _device.missing_cupy(error))
    runtime = cupy.cuda.runtime
    gpus = []
    for number in range(have):
        told = runtime.getDeviceProperties(number)
        name = told["name"].decode(errors="replace")
        bus, uuid = runtime.deviceGetPCIBusId(number), bytes(told.get("uuid", b""))
        gpus.append(Gpu(bus, name, told["totalGlobalMem"], uuid))
    driver, library = (
        f"{number // 1000}.{number % 1000 // 10}"
        for number in (runtime.driverGetVersion(), runtime.runtimeGetVersion())
    )
    versions = f"CUDA {driver} driver, CUDA {library} runtime, CuPy {cupy.__version__}"
    try:
        init_device_mesh((size,), device="cuda")
        lacking = _launch.find_hindrance(_memory.empty((1,), np.int64, "cuda"))
        return RankGpus(host, "", tuple(gpus), versions, _device.number_of("cuda"), "", lacking)
    except DeviceError as error:
        return RankGpus(host, "", tuple(gpus), versions, None, str(error))


def _of_nodes(everyone: list[RankGpus]) -> Lines:
    """Tell which GPUs nodes have; nodes that are alike are one line."""
    nodes: dict[str, dict[object, Gpu]] = {}
    for here in everyone:
        nodes.setdefault(here.host, {}).update({gpu.identity: gpu for gpu in here.gpus})
    alike: dict[str, list[str]] = {}
    for host, gpus in nodes.items():
        count = Counter(f"{gpu.name}, {bytes_text(gpu.memory)}" for gpu in gpus.values())
        text = "; ".join(f"{n} x {words}" for words, n in count.items()) or "none"
        alike.setdefault(text, []).append(host)
    versions = dict.fromkeys(here.versions for here in everyone if here.versions)
    return [("versions", text) for text in versions] + [
        ("GPUs", f"{text} on {hosts[0]}{f' and {len(hosts) - 1} more' * (len(hosts) > 1)}")
        for text, hosts in alike.items()
    ]


def _describe_idle(everyone: list[RankGpus]) -> Lines:
    """Tell of the first node whose ranks share GPUs while they see others that none uses."""
    for host in dict.fromkeys(here.host for here in everyone):
        ranks = [here for here in everyone if here.host == host]
        seen = {gpu.identity for here in ranks for gpu in here.gpus}
        used = {here.gpus[here.bound].identity for here in ranks if here.bound is not None}
        if len(used) < min(len(seen), len(ranks)):
            text = (
                f"the {len(ranks)} ranks on {host} use {len(used)} of the {len(seen)} GPUs they see"
            )
            return [("trouble", f"{text}; is DISTARRAY_LOCAL_RANK the same on several?")]
    return []


def _describe_moves(communicator: Communicator) -> Lines:
    """Tell how values move between GPUs; collective."""
    from mpi4py import MPI

    try:
        found = _awareness.verdict(communicator)
    except (ArgumentError, MismatchError) as error:  # on every rank
        return [("CUDA-aware", "not known"), ("trouble", str(error))]
    told = [("CUDA-aware", "yes" if found.direct else "no")]
    told += [(f"  {step}", text) for step, _, text in found.findings]
    if communicator.size > 1:
        how_many = "no rank reads another's blocks in place"
        if communicator.reaches_all("cuda"):
            how_many = "blocks are read in place (CUDA's inter-process handles)"
        elif communicator.reaches_some("cuda"):
            how_many = "some ranks read others' blocks in place (CUDA's handles)"
        way = "as it is, by MPI" if found.direct else "through pinned host memory, in chunks"
        told += [("in a node", how_many), ("elsewhere", f"device memory goes {way}")]
    switch = _awareness.find_switch(MPI.Get_library_version())
    if switch and not found.direct and switch[0].partition("=")[0] not in os.environ:
        told.append(("not set", f"{switch[0]} ({switch[1]})"))
    return told
