"""Loading of a checkpoint, on however many ranks, in whatever layout."""

from __future__ import annotations

import os
from typing import Any

from distarray.checkpoint import _agreement
from distarray.checkpoint._adapters import Finish
from distarray.checkpoint._agreement import check_flags, check_path, check_step
from distarray.checkpoint._background import finish
from distarray.checkpoint._fill import fill
from distarray.checkpoint._load_plan import LoadPlan
from distarray.checkpoint.storage._chunks import check_size
from distarray.checkpoint.storage._directory import MANIFEST, Place, latest, step_path, steps
from distarray.checkpoint.storage._manifest import Manifest
from distarray.comm import as_communicator, list_first
from distarray.core import warn
from distarray.errors import ArgumentError, CheckpointError


def load(
    path: str | os.PathLike[str],
    state: Any = None,
    *,
    step: int | None = None,
    strict: bool = True,
    cast: bool = False,
    verify: bool = True,
    comm: Any = None,
) -> Any:
    """Load a checkpoint that any number of ranks saved in any layout (collective).

    Every rank reads what it needs, from the files that have it, straight into its place. What the
    ranks of a mesh would read several times over, such as columns of what was saved by rows, they
    read once, each a share, and exchange.

    Parameters
    ----------
    path
        As passed to `save`. Of several steps the newest whole one is taken.
    state
        A tree like the one that was saved, or some keys of its outermost dictionary. Distributed
        arrays, NumPy arrays, tensors, modules, optimizers, generators and objects with
        ``load_state_dict()`` are filled in place, whatever their layout; a `Layout` or a `Placing`
        asks for a new array that is placed so; anything else, such as numbers, None, or lists of
        them, is replaced by what was saved. What was saved as one kind of array may be loaded into
        another: names count, with the keys on the way joined by points, so that ``{"model":
        {"weight": x}}`` is loaded into a module under ``"model"``. Without a state everything
        is returned as it was saved, with distributed arrays in the default placements on the
        default mesh.
    step
        Which of several steps.
    strict
        Whether names must match exactly. Otherwise what both have is loaded, and a warning lists
        the rest.
    cast
        Whether numbers may be converted to the dtype that the state has.
    verify
        Compare checksums. Where little of a block of 1 MiB is needed this reads more than is
        needed.
    comm
        The ranks that take part. Default: all.

    Returns
    -------
    Any
        The state, with the same objects in it where they were filled.

    Raises
    ------
    CheckpointError
        There is none, or it is damaged: the message says which file, and what is wrong.
    StateDictError
        Names, shapes or dtypes do not fit; what is to be filled cannot be written to, or has items
        that share memory; or two names are one tensor here, as of tied weights, and were saved
        with different values (with ``strict=False`` the first counts). Nothing has been changed.
    MismatchError
        The ranks pass different paths, steps or options.
    ArgumentError, ArgumentTypeError
        These are not what they can be.

    Notes
    -----
    Memory beside the result: 8 MiB for reading, the manifest, and 16 MiB with ``cast``; for arrays
    that are read together a share of one array and what comes from the others, 128 MiB each or one
    block. Where a file turns out to be damaged some values may have been replaced already.

    Examples
    --------
    >>> import distarray as da
    >>> da.checkpoint.save("ckpt", {"x": da.arange(4), "epoch": 3})
    >>> state = {"x": da.zeros(4, int), "epoch": 0}
    >>> state = da.checkpoint.load("ckpt", state)
    >>> print(state["x"], state["epoch"])
    [0 1 2 3] 3
    """
    base = as_communicator(comm)
    finish(base)

    def options() -> dict[str, Any]:
        found = os.path.abspath(check_path(path))
        check_step(step)
        check_flags(strict=strict, cast=cast, verify=verify)
        return {"path": found, "step": step, "strict": strict, "cast": cast, "verify": verify}

    where = _agreement.begin(base, "da.checkpoint.load", options)["path"]
    directory, text = _agreement.call_on_first(base, lambda: _find_manifest(where, step))

    def make_plan() -> tuple[LoadPlan, Finish, tuple[list[str], list[str]]]:
        plan = LoadPlan(Manifest(directory, text), state, base.rank, base.size, cast)
        finish_state = plan.fit(state)
        return plan, finish_state, plan.check(strict)

    plan, finish_state, (missing, unexpected) = _agreement.run_on_all(base, make_plan)
    fill(plan.targets, plan.manifest, verify, base)
    result = _agreement.run_on_all(base, finish_state)
    if base.rank == 0 and (missing or unexpected):
        parts = [f"it lacks {list_first(missing)}"] if missing else []
        if unexpected:
            parts.append(f"nothing asked for its {list_first(unexpected)}")
        warn(f"{directory} was loaded in part: {'; '.join(parts)}")
    return result


def _find_manifest(path: str, step: int | None) -> tuple[str, bytes]:
    """Return the directory to read, and its manifest."""
    if step is not None:
        return _read(Place(step_path(path, step)).found())
    directory = Place(path).found()
    if os.path.lexists(os.path.join(directory, MANIFEST)):
        return _read(directory)
    numbers = steps(path)[::-1]
    if not numbers:
        raise CheckpointError(
            f"there is no checkpoint at {path}: it has neither a {MANIFEST} nor directories "
            "step-<number>; check the path, or save one first"
        )
    failures = []
    for number in numbers:
        try:
            found = _read(Place(step_path(path, number)).found())
            manifest = Manifest(*found)
            for name, size in manifest.files:
                check_size(os.path.join(manifest.directory, name), size)
        except CheckpointError as error:
            failures.append(error)
            continue
        if failures:
            warn(
                f"step {number} is loaded in the place of a newer one: {failures[0]}; a save of "
                "a step before that one needs remove_later=True"
            )
        return found
    raise failures[0]


def _read(directory: str) -> tuple[str, bytes]:
    path = os.path.join(directory, MANIFEST)
    try:
        with open(path, "rb") as file:
            return directory, file.read()
    except FileNotFoundError:
        raise CheckpointError(f"there is no checkpoint at {directory}: {path} is missing") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None


def read_manifest(path: str | os.PathLike[str], step: int | None = None) -> Manifest:
    """Return the manifest of a checkpoint; no rank but this takes part."""
    check_step(step)
    path = check_path(path)
    if step is not None and latest(path) is None:
        raise ArgumentError(f"{path} has no steps, and step={step} was given")
    return Manifest(*_find_manifest(path, step))
