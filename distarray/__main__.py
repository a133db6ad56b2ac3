"""The command line: what the library finds on a machine, and what a plan would do.

``python -m distarray info``, also under mpiexec, tells versions, the MPI library, whether the ranks
can read each other's memory, which GPUs they have and how values move between these. ``python -m
distarray bench``, under mpiexec on one node, measures its speeds, by which plans tell how long they
take, and prints them with the kernels that were chosen. ``python -m distarray plan 8192x8192 4 S0
S1`` prints how an array would move, and ``python -m distarray layout 10x6 2x2 S0,R`` who would hold
it; both without MPI. ``python -m distarray port script.py`` tells
which functions of NumPy a script uses, which of them are there, and what they send; the exit status
is 0 if all are there, 1 if some are not, 2 if the script cannot be read.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

import distarray as da
from distarray import _bench, _port
from distarray.comm import Communicator, _gpu_info, _memory, world
from distarray.comm._launcher import node_name
from distarray.comm.kernels import choices
from distarray.comm.mpi._start import import_mpi
from distarray.comm.shared_memory import _node
from distarray.layout import bytes_text, seconds_text, table
from distarray.redistribute import CostModel, look_up

_OPTIONAL = ("cupy", "torch", "h5py", "zarr", "matplotlib")
_THREAD_LEVELS = ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")
_RANKS_SHOWN = 64
_BUSY = 0.1
"""Part of the processors' time that other programs may take, and times still be true."""

Lines = list[tuple[str, str]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status."""
    about = (__doc__ or "").split("\n")[0]  # nothing, with `python -OO`
    parser = argparse.ArgumentParser(prog="python -m distarray", description=about)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("info", help="versions, MPI, memory, GPUs, optional packages")
    commands.add_parser("bench", help="how fast this node copies, reduces and exchanges")
    plan = commands.add_parser("plan", help="how an array would move from one layout to another")
    layout = commands.add_parser("layout", help="who would hold what")
    for command in (plan, layout):
        command.add_argument("shape", help="lengths of the array's axes, as in 8192x8192")
        command.add_argument("mesh", help="lengths of the mesh's axes, as in 4 or 2x4")
        command.add_argument("placements", help="one per mesh axis, as in S0,R or P or P(max)")
    plan.add_argument("target", help="the placements to move to")
    plan.add_argument("--dtype", default="float64", help="of the values (default: %(default)s)")
    plan.add_argument(
        "--rank", type=int, default=0, help="whose part is told (default: %(default)s)"
    )
    plan.add_argument("--max-bytes", type=int, help="bound on the scratch memory of a rank")
    plan.add_argument("--ranks-per-node", type=int, default=64, help="default: %(default)s")
    plan.add_argument(
        "--network", type=float, default=12.5e9, help="bytes a second of a node (default: 100 Gb/s)"
    )
    port = commands.add_parser("port", help="what a NumPy script uses, and what becomes of it")
    port.add_argument("script", help="is parsed, and not run")
    options = parser.parse_args(arguments)
    if options.command == "info":
        info()
        return 0
    try:
        if options.command == "bench":
            bench()
            return 0
        if options.command == "port":
            text, is_complete = _port.report(options.script)
            print(text)
            return 0 if is_complete else 1
        source = _layout(options.shape, options.mesh, options.placements)
        if options.command == "layout":
            da.visualize(source)
            return 0
        target = _layout(options.shape, options.mesh, options.target)
        model = _model(source.mesh.size, options.ranks_per_node, options.network)
        moves = da.plan(source, target, options.dtype, max_bytes=options.max_bytes, model=model)
        told = moves.explain(rank=options.rank)
    except da.errors.DistArrayError as error:
        parser.error(str(error))
    print(told)
    return 0


# --- layouts from text ---------------------------------------------------------------------------


def _layout(shape: str, mesh: str, placements: str) -> da.Layout:
    placed = [_placement(one) for one in placements.replace(";", ",").split(",")]
    return da.Layout(da.AbstractMesh(_lengths(mesh)), placed, _lengths(shape))


def _lengths(text: str) -> tuple[int, ...]:
    parts = [] if text in ("", "scalar") else re.split("[x,]", text)
    if not all(part.strip().isdecimal() for part in parts):
        raise da.errors.ArgumentError(
            f"{text!r} is no shape; write lengths with x between them, as in 8192x8192, or scalar"
        )
    return tuple(map(int, parts))


def _placement(text: str) -> da.Placement:
    found = re.fullmatch(r"\s*(?:S\(?(-?\d+)\)?|(R)|P(?:\((\w+)\))?)\s*", text)
    if found is None:
        raise da.errors.PlacementError(
            f"{text!r} is no placement; write S0 for Shard(0), R for Replicate(), P or P(max) for "
            "Partial, with a comma between those of several mesh axes"
        )
    axis, replicate, op = found.groups()
    if axis is not None:
        return da.Shard(int(axis))
    return da.Replicate() if replicate else da.Partial(op or "sum")


def _model(ranks: int, per_node: int, network: float) -> CostModel:
    """Return the cost model of ranks on nodes that are as fast as their network."""
    if per_node < 1 or network <= 0:
        raise da.errors.ArgumentError(
            f"--ranks-per-node={per_node} --network={network}: both must be positive"
        )
    if ranks <= per_node:
        return CostModel()
    return CostModel(ranks_per_node=per_node, bandwidth_far=network / per_node)


# --- bench ---------------------------------------------------------------------------------------


def bench() -> None:
    """Measure the speeds of this node, keep and print them; collective over all ranks."""
    comm = world()
    ranks = f"{comm.size} rank{'s' * (comm.size > 1)} on this node"
    if comm.rank == 0:
        print(
            f"measuring {ranks}: some ten seconds, and up to two minutes where ranks "
            "share cores or kernels are compiled"
        )
        sys.stdout.flush()
    model, path, others, unsteady = _bench.measure_and_keep()
    if comm.rank:
        return
    print(f"{ranks}, all at once\n")
    moves = {
        "copy own": model.cut,
        "copy others'": model.exchange,
        "reduce": model.reduce,
        "all-reduce": model.all_reduce,
    }
    header = ("bytes", *moves, *(f"{name}, runs of 72" for name in list(moves)[:3]))
    rows = []
    for n, _ in model.fill[-1][1][-1][1]:
        times = [look_up(grids, model.ranks, n, 0.0) for grids in moves.values()]
        times += [look_up(grids, model.ranks, n, 72.0) for grids in list(moves.values())[:3]]
        rows.append((bytes_text(n), *map(seconds_text, times)))
    print(table(header, rows))
    limits = []
    for name, grids in (("copy", model.cut), ("read, to reduce", model.reduce)):
        nbytes, seconds = grids[-1][1][-1][1][-1]  # of whole blocks, the largest
        limits.append((name, f"{nbytes / seconds / 1e9:.1f} GB/s"))
    limits.append(
        ("an exchange", seconds_text(look_up(model.exchange_small, model.ranks, 1.0, 0.0)))
    )
    print()
    _print("limits of a rank", limits)
    chosen = sorted(choices().items())
    _print("kernels chosen", chosen or [("none yet", "they are chosen while programs run")])
    print(f"kept in {path}" if path else "not kept: no folder can be written")
    if comm.size == 1:
        print("of one rank alone, which exchanges nothing; mpiexec -n 4 measures four of them")
    print(f"{unsteady:.0%} of the times were half as long again, or more, in another round")
    if others > _BUSY:
        print(
            f"other programs took {others:.0%} of the processors meanwhile: these times may be too "
            "long; measure again when the node is idle"
        )
    sys.stdout.flush()


# --- info ----------------------------------------------------------------------------------------


def info() -> None:
    """Print what the library finds here, on rank 0; collective over all ranks."""
    try:
        mpi: Any = import_mpi()
    except da.errors.CommunicationError as error:
        _print("MPI", [("", str(error))])
        _print("versions", _versions())
        return
    comm = world()
    places = comm.all_gather_object(
        (
            node_name(mpi.COMM_WORLD.Get_rank()),
            platform.node(),
            os.getpid(),
            len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            bytes_text(_memory.stats().limit or 0),
        )
    )
    shared = _shared_memory(comm)
    gpus = _gpu_info.gather(comm)
    of_gpus = _gpu_info.lines(comm, gpus)
    if comm.rank:
        return
    _print("versions", _versions())
    _print("MPI", _mpi(mpi))
    nodes = len({place[0] for place in places})
    _print(
        "ranks",
        [
            ("ranks", f"{comm.size} on {nodes} node{'s' * (nodes > 1)}"),
            ("shared memory", shared),
            ("available memory", f"{bytes_text(_node.available())} here"),
        ],
    )
    header = ["rank", "host", "process", "cores", "idle memory kept up to"]
    rows = [[rank, *place[1:]] for rank, place in enumerate(places[:_RANKS_SHOWN])]
    if any(here.gpus for here in gpus):
        header.append("GPU")
        for row, here in zip(rows, gpus, strict=False):
            row.append(here.own)
    print(table(header, rows))
    if comm.size > _RANKS_SHOWN:
        print(f"and {comm.size - _RANKS_SHOWN} more")
    print()
    _print("GPUs", of_gpus)
    _print("optional packages", [(name, _imports(name)) for name in _OPTIONAL])
    ours = sorted((k, v) for k, v in os.environ.items() if k.startswith("DISTARRAY_"))
    if ours:
        _print("environment", ours)
    sys.stdout.flush()


def _print(title: str, lines: Lines) -> None:
    print(title)
    width = max(len(name) for name, _ in lines)
    for name, text in lines:
        print(f"  {name:<{width}}  {text}".rstrip())
    print()


def _versions() -> Lines:
    return [
        ("distarray", da.__version__),
        ("Python", f"{platform.python_version()} ({platform.machine()}, {platform.system()})"),
        ("NumPy", np.__version__),
        *((name, _version(name)) for name in ("mpi4py", "numba")),
    ]


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _mpi(mpi: Any) -> Lines:
    library = " ".join(mpi.Get_library_version().replace("\0", "").split("\n")[0].split())
    name, version = mpi.get_vendor()
    levels = {getattr(mpi, f"THREAD_{level}"): level for level in _THREAD_LEVELS}
    level = levels.get(mpi.Query_thread(), "unknown")
    without = "" if level == "MULTIPLE" else "; async_op=True then works in the foreground"
    return [
        ("library", library),
        ("vendor", f"{name} {'.'.join(map(str, version))}"),
        ("standard", ".".join(map(str, mpi.Get_version()))),
        ("thread level", level + without),
    ]


def _shared_memory(comm: Communicator) -> str:
    """Find out whether ranks of a node read each other's memory; collective."""
    if comm.size == 1:
        return "there is one rank, and nobody to share with"
    block = np.full(4, comm.rank)
    with comm.views(block, 0, "info") as views:
        right = all((view == peer).all() for peer, view in enumerate(views) if view is not None)
        read = sum(view is not None for view in views) - 1
    answers = comm.all_gather_object((right, read))
    if not all(right for right, _ in answers):
        return "WRONG VALUES were read: set DISTARRAY_SHARED_MEMORY=0, and please report this"
    least, most = (f(read for _, read in answers) for f in (min, max))
    if least == comm.size - 1:
        return "works: every rank reads every other rank's memory"
    if most:
        return f"works: a rank reads the memory of {least} to {most} other ranks, on its node"
    return "none: ranks exchange messages (other nodes, or the system does not allow it)"


def _imports(name: str) -> str:
    """Return the version of a package that imports, or why it does not."""
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        return "not installed" if error.name == name else f"does not import: {error}"
    except Exception as error:
        return f"does not import: {type(error).__name__}: {error}"
    return str(getattr(module, "__version__", "imports"))


if __name__ == "__main__":
    sys.exit(main())
