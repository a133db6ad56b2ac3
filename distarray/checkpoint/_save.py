"""Saving of a state: files, manifest, and the one step that makes them visible."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from distarray.checkpoint import _agreement, _background
from distarray.checkpoint._agreement import (
    check_flags,
    check_path,
    compare,
    digest,
)
from distarray.checkpoint._save_plan import HeldArray, SavePlan, plan_writes
from distarray.checkpoint.storage import _files
from distarray.checkpoint.storage._chunks import Part, plan_parts, write_parts
from distarray.checkpoint.storage._directory import (
    MANIFEST,
    Place,
    check_newest,
    check_step_options,
    remove_steps,
    step_path,
)
from distarray.checkpoint.storage._manifest import chunk_row, compose_manifest, header
from distarray.checkpoint.storage._values import Node, children_of, join_name
from distarray.comm import Communicator, as_communicator

_HINT = ", and wrap values that differ in da.checkpoint.PerRank"


def save(
    path: str | os.PathLike[str],
    state: Any,
    *,
    step: int | None = None,
    keep_last: int | None = None,
    remove_later: bool = False,
    async_op: bool = False,
    check: bool = True,
    comm: Any = None,
) -> _background.Handle | None:
    """Write a checkpoint, which any number of ranks can load in any layout (collective).

    Every rank writes what it holds, once: what several ranks hold is shared out among them. The
    files are on the device, and known to be whole on all ranks, before they get their name by one
    step: at every moment the previous checkpoint of that name or the new one is there, whole.

    Parameters
    ----------
    path
        A directory, on a file system that all ranks share. One that has a checkpoint is replaced.
    state
        A tree of dictionaries, lists and tuples, the same on every rank, of distributed arrays,
        NumPy arrays, numbers, text, bytes, None, random generators, objects with ``state_dict()``
        and ``load_state_dict()``, and, once `distarray.torch` is imported, tensors, modules and
        optimizers, parallelized or not. Plain arrays and tensors must be the same on every rank;
        `PerRank` holds values that are not. What is ``Partial`` is reduced first.
    step
        Save as one of several checkpoints: to ``path/step-00000100`` for 100. One of the same step
        is replaced. Where the directory has one of a later step the call raises, since `load`
        would take that one: of an earlier run, mostly, or of one that has gone back.
    keep_last
        With ``step``: how many checkpoints, those of the largest steps, stay; older ones are
        removed after the new one is there.
    remove_later
        With ``step``: instead of raising, remove the checkpoints of later steps after the new one
        is there.
    async_op
        Return a handle with ``wait()`` and ``test()`` as soon as the values are copied; the files
        are written in the background. A further save waits for it, and raises its error unless
        ``wait()`` did. Where MPI was started without ``MPI_THREAD_MULTIPLE`` the save is complete
        on return.
    check
        Compare plain arrays and tensors between the ranks, by one pass over all of them on every
        rank. Otherwise those of the first rank count.
    comm
        The ranks that take part, as for meshes. Default: all.

    Returns
    -------
    Handle or None
        None unless ``async_op``.

    Raises
    ------
    CheckpointError
        A rank could not write (a full disk, say), on all ranks; what was written is removed, and
        the previous checkpoint is there.
    MismatchError
        The ranks pass different states.
    ArgumentError
        There are checkpoints of later steps, and not ``remove_later``; or with ``step`` one
        without, or the other way round. Nothing has been written.
    ArgumentTypeError
        The state has something in it that cannot be saved.

    Notes
    -----
    Memory: 8 MiB for writing; with ``async_op`` also a copy of what this rank writes, that is of
    its blocks, and of its share of what is replicated, until the save is complete.

    Examples
    --------
    >>> import distarray as da
    >>> da.checkpoint.save("ckpt", {"x": da.arange(4), "epoch": 3})
    >>> da.checkpoint.load("ckpt")["epoch"]
    3
    """
    base = as_communicator(comm)
    _background.finish(base)

    def options() -> dict[str, Any]:
        found = os.path.abspath(check_path(path))
        check_step_options(step, keep_last, remove_later)
        check_flags(async_op=async_op, check=check)
        if base.rank == 0:
            check_newest(found, step, remove_later)
        return {
            "path": found,
            "step": step,
            "keep_last": keep_last,
            "remove_later": remove_later,
            "async_op": async_op,
            "check": check,
        }

    where = _agreement.begin(base, "da.checkpoint.save", options)["path"]
    plan = SavePlan(state)
    tree = collect_tree(plan, lambda: plan.node(state, ""), base)
    writes = plan_writes(plan, check, base)
    parts = _agreement.run_on_all(base, lambda: plan_parts(plan.blocks, writes.mine, async_op))

    def remove_old() -> None:
        if step is not None:
            remove_steps(where, step, keep_last, remove_later)

    place = Place(where) if step is None else Place(step_path(where, step), numbered=True)
    prepared = PreparedSave(place, tree, writes.arrays, parts, remove_old)
    if async_op:
        return _background.start(base, where, prepared.write)
    prepared.write(base)
    return None


class PreparedSave(NamedTuple):
    """What is left to do of a save, for which no more of the state is needed."""

    place: Place
    tree: Node
    arrays: dict[str, HeldArray]
    parts: list[Part]
    remove_old: Callable[[], None]

    def write(self, comm: Communicator) -> None:
        """Write, together with the other ranks, and give the directory its name."""
        id = _agreement.call_on_first(comm, lambda: secrets.token_hex(8))
        made = _agreement.call_on_first(comm, lambda: self.place.prepare(id))
        try:
            tables = _agreement.call_on_all(comm, lambda: self._write_data(made, id, comm.rank))
            _agreement.call_on_first(comm, lambda: self._publish(made, id, tables))
        except BaseException:
            if comm.rank == 0 and os.path.isdir(made):
                _files.remove_tree(made)  # not whole, or what it has replaced
            raise
        _agreement.call_on_first(comm, self.remove_old)

    def _write_data(self, made: str, id: str, rank: int) -> list[Any]:
        if not self.parts:
            return []
        name = f"data-{id}-{rank:05d}.safetensors"
        return [name, *write_parts(os.path.join(made, name), self.parts, id)]

    def _publish(self, made: str, id: str, tables: list[list[Any]]) -> None:
        arrays: dict[str, dict[str, Any]] = {
            name: {
                "dtype": told.spec,
                "shape": list(told.shape),
                "layout": told.layout,
                "chunks": [],
            }
            for name, told in self.arrays.items()
        }
        files: list[list[Any]] = []
        for name, size, chunks in filter(None, tables):
            for array, offset, box, sums in chunks:
                arrays[array]["chunks"].append(chunk_row(len(files), offset, box, sums))
            files.append([name, size])
        told = {**header(id, len(tables)), "files": files, "arrays": arrays, "tree": self.tree}
        path = os.path.join(made, MANIFEST)
        with _files.new_file(path) as file:
            _files.write_at(file, compose_manifest(told), 0, path)
        self.place.publish(made)


def collect_tree(
    plan: SavePlan,
    node: Callable[[], Node],
    comm: Communicator,
) -> Node:
    """Return the tree of a state, the same on all ranks, with the values of each in it."""

    def make() -> tuple[Node, tuple[bytes, list[Node]]]:
        made = node()
        return made, (digest(made), plan.own)

    tree, everyone = _agreement.call_and_gather(comm, make)
    digests, own = zip(*everyone, strict=True)
    if len(set(digests)) > 1:
        trees = _agreement.call_on_all(comm, lambda: tree)
        compare("names or values", _first_difference(trees), digests, comm, _HINT)
    for reduce in plan.later:
        reduce()
    return _with_own(tree, own) if any(own) else tree


def _first_difference(trees: Sequence[Node], name: str = "") -> list[str]:
    """Return what each of some trees has where they first differ, with its name."""
    children = [dict(children_of(tree)) for tree in trees]
    if all(list(one) == list(children[0]) for one in children):
        for key, first in children[0].items():
            if any(one[key] != first for one in children):
                return _first_difference([one[key] for one in children], join_name(name, key))
    shown = [
        f"with {', '.join(map(str, one)) or 'nothing'}" if any(children) else repr(tree)
        for one, tree in zip(children, trees, strict=True)
    ]
    return [f"{name or 'the state'} {one}"[:200] for one in shown]


def _with_own(tree: Node, own: tuple[list[Node], ...]) -> Node:
    """Return a tree with the values of all ranks where each has its own."""
    if isinstance(tree, dict):
        if "per_rank" in tree and len(tree) == 1:
            return {"per_rank": [values[tree["per_rank"]] for values in own]}
        return {key: _with_own(value, own) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_with_own(value, own) for value in tree]
    return tree
