"""What all ranks of a mesh must say alike before values move, and errors that reach all of them.

Some calls take arguments that nothing else would compare: the blocks of `from_local`, the value of
one rank in `distribute_array`. Each rank checks its own, then all tell each other what they have,
or what is wrong with it: a rank that fails by itself would leave the others waiting for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from distarray.comm._mismatch import differing, mismatch
from distarray.errors import CommunicationError, DistArrayError

__all__ = ["differing", "gathered"]

Said = TypeVar("Said")


class _Failure(NamedTuple):
    """What went wrong on a rank, in a form that travels."""

    kind: type[DistArrayError]
    message: str


def gathered(mesh: Any, call: str, say: Callable[[], Said]) -> list[Said]:
    """Return what `say()` returns on every process of the mesh, by position in it.

    Collective over the mesh, which holds this process.

    Parameters
    ----------
    mesh : DeviceMesh
    call : str
        The public call, for messages.
    say : callable
        Checks this rank's arguments and describes them by a small object.

    Raises
    ------
    DistArrayError
        What `say()` raises on all ranks, or the first of them: everywhere the same.
    CommunicationError
        If it raises anything else on a rank; that rank raises its own.
    MismatchError
        If the ranks make different calls, or on different meshes.
    """
    failed: Exception | None = None
    mine: Said | _Failure
    try:
        mine = say()
    except DistArrayError as error:
        failed, mine = error, _Failure(type(error), str(error))
    except Exception as error:
        failed = error
        mine = _Failure(CommunicationError, f"{call} failed there: {type(error).__name__}: {error}")
    comm = mesh.communicator()
    calls, everyone = zip(*comm.all_gather_object((f"{call} on {mesh}", mine)), strict=True)
    if len(set(calls)) > 1:
        raise mismatch(calls, comm.world_ranks)
    failures = {
        rank: said
        for rank, said in zip(comm.world_ranks, everyone, strict=True)
        if isinstance(said, _Failure)
    }
    if not failures:
        return list(everyone)
    alike = len(failures) == comm.size and len(set(failures.values())) == 1
    if failed is not None and (alike or not isinstance(failed, DistArrayError)):
        raise failed
    rank, first = next(iter(failures.items()))
    raise first.kind(f"on rank {rank}: {first.message}") from failed
