"""Saving of a state: files, manifest, and the one step that makes them visible."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from distarray.checkpoint import _agreement, _background, _files
from distarray.checkpoint._agreement import (
    agree_on_options,
    check_flags,
    check_path,
    compare,
    digest,
)
from distarray.checkpoint._chunks import Part, parts_of, write_parts
from distarray.checkpoint._directory import (
    MANIFEST,
    Place,
    check_newest,
    check_step_options,
    remove_steps,
    step_path,
)
from distarray.checkpoint._manifest import chunk_row, compose_manifest, header
from distarray.checkpoint._save_plan import HeldArray, SavePlan, plan_writes
from distarray.checkpoint._values import Node, children_of, join_name
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
    """
    base = as_communicator(comm)
    _background.finish(base)
    _agreement.begin(base, "da.checkpoint.save")
    options = _Options(path, step, keep_last, remove_later, async_op, check)
    request = _prepare(options, state, base)
    if async_op:
        return _background.start(base, request.options.path, request.run)
    request.run(base)
    return None


class _Options(NamedTuple):
    """The arguments of a save, but for the state."""

    path: Any
    step: Any
    keep_last: Any
    remove_later: Any
    async_op: Any
    check: Any

    def checked(self) -> _Options:
        """Return them with the whole path; raise unless they are what they can be."""
        path = check_path(self.path)
        check_step_options(self.step, self.keep_last, self.remove_later)
        check_flags(async_op=self.async_op, check=self.check)
        return self._replace(path=os.path.abspath(path))


@dataclass
class SaveRequest:
    """A save of which only the writing is left; it needs no more of the state."""

    options: _Options
    tree: Node
    arrays: dict[str, HeldArray]
    parts: list[Part]

    def run(self, comm: Communicator) -> None:
        """Write, together with the other ranks."""
        path, step = self.options[:2]
        target = path if step is None else step_path(path, step)
        place = Place(target, numbered=step is not None)
        id = _agreement.call_on_first(comm, lambda: secrets.token_hex(8))
        made = _agreement.call_on_first(comm, lambda: place.prepare(id))
        try:
            table = _agreement.run_on_all(comm, lambda: self._write(made, id, comm))
            tables = _agreement.gather_bytes(comm, table)
            _agreement.call_on_first(comm, lambda: self._publish(place, made, id, tables))
        except BaseException:
            if comm.rank == 0 and os.path.isdir(made):
                _files.remove_tree(made)  # not whole, or what it has replaced
            raise
        _agreement.call_on_first(comm, self._remove_old)

    def _write(self, made: str, id: str, comm: Communicator) -> bytes:
        if not self.parts:
            return b"[]"
        name = f"data-{id}-{comm.rank:05d}.safetensors"
        size, chunks = write_parts(os.path.join(made, name), self.parts, id)
        return json.dumps([name, size, chunks]).encode()

    def _publish(self, place: Place, made: str, id: str, tables: list[bytes]) -> None:
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
        for table in map(json.loads, tables):
            if not table:
                continue
            name, size, chunks = table
            for array, offset, box, sums in chunks:
                arrays[array]["chunks"].append(chunk_row(len(files), offset, box, sums))
            files.append([name, size])
        told = {**header(id, len(tables)), "files": files, "arrays": arrays, "tree": self.tree}
        path = os.path.join(made, MANIFEST)
        with _files.new_file(path) as file:
            _files.write(file, compose_manifest(told), path)
        place.publish(made)

    def _remove_old(self) -> None:
        path, step, keep_last, remove_later = self.options[:4]
        if step is not None:
            remove_steps(path, step, keep_last, remove_later)


# --- before anything is written ------------------------------------------------------------------


def _prepare(options: _Options, state: Any, comm: Communicator) -> SaveRequest:
    """Return what is to be written, once all ranks have found that they save the same."""

    def check() -> dict[str, Any]:
        found = options.checked()
        if comm.rank == 0:
            check_newest(found.path, found.step, found.remove_later)
        return found._asdict()

    options = _Options(**agree_on_options(comm, check))
    plan = SavePlan(state)
    tree = collect_tree(plan, lambda: plan.node(state, ""), comm)
    writes = plan_writes(plan, options.check, comm)
    parts = _agreement.run_on_all(
        comm, lambda: parts_of(plan.blocks, writes.mine, options.async_op)
    )
    return SaveRequest(options, tree, writes.arrays, parts)


def collect_tree(
    plan: SavePlan,
    node: Callable[[], Node],
    comm: Communicator,
) -> Node:
    """Return the tree of a state, the same on all ranks, with the values of each in it."""
    tree: Node = None

    def say() -> tuple[Any, ...]:
        nonlocal tree
        tree = node()
        return digest(tree), plan.own

    trees, own = zip(*_agreement.call_on_all(comm, say), strict=True)
    if len(set(trees)) > 1:
        all_trees = _agreement.call_on_all(comm, lambda: tree)
        compare("names or values", _first_difference(all_trees), trees, comm, _HINT)
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
