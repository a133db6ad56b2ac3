"""Directories that appear, are replaced and go away by one step each, whatever happens meanwhile.

A checkpoint is written into a hidden sibling, ``.name.tmp-<id>``. When all of it is on the device
the sibling gets the name. Where a checkpoint has that name already the two are exchanged by one
system call. A file system that cannot do so (NFS, some versions of Lustre and GPFS) has the old one
renamed to ``.name.old-<id>`` first; should the program end between the two steps, the name is
missing, and readers take the old one from there (`found`), until the next save gives it the name
back.
"""

from __future__ import annotations

import os
import re
import secrets
from contextlib import suppress

from distarray.checkpoint._agreement import check_path, check_step
from distarray.checkpoint.storage import _files
from distarray.errors import ArgumentError, CheckpointError

MANIFEST = "manifest.json"
_STEP = re.compile(r"step-(\d{8,})")
_HIDDEN = re.compile(r"\.(?P<name>.+)\.(?P<kind>tmp|old|gone)-[0-9a-f]+")


class Place:
    """Where one checkpoint goes.

    Parameters
    ----------
    path
        The name that it is to have.
    numbered
        Whether it is one of several steps: `prepare` looks after what was left of all of them.
    """

    def __init__(self, path: str, numbered: bool = False) -> None:
        self.path = os.path.realpath(path)  # a link stays, and what it leads to is replaced
        self.parent, self._name = os.path.split(self.path)
        self._numbered = numbered

    def prepare(self, id: str) -> str:
        """Return a new empty directory beside the place; remove what crashed saves left there."""
        if (
            os.path.lexists(self.path)
            and not _is_checkpoint(self.path)
            and not _is_empty(self.path)
        ):
            raise CheckpointError(
                f"{self.path} exists and is no checkpoint, which a save could replace; choose "
                "another name, or remove it"
            )
        _files.ensure_directory(self.parent)
        for name, kind, hidden in self._leftovers():
            if kind == "old" and not os.path.lexists(name):
                _files.rename(hidden, name)
            else:
                _files.remove_tree(hidden)
        made = self._sibling("tmp", id)
        _files.make_directory(made)
        return made

    def publish(self, made: str) -> None:
        """Give a prepared directory, which is complete, the name."""
        _files.sync_directory(made)
        old = None
        if not os.path.lexists(self.path):
            _files.rename(made, self.path)
        elif _files.exchange(made, self.path):
            old = made
        else:
            old = self._sibling("old", secrets.token_hex(4))
            _files.rename(self.path, old)
            try:
                _files.sync_directory(self.parent)
                _files.rename(made, self.path)
            except OSError:
                _files.rename(old, self.path)
                raise
        try:
            _files.sync_directory(self.parent)
        finally:
            if old is not None:
                _files.remove_tree(old)

    def remove(self) -> None:
        """Remove the checkpoint: it is there whole, or not at all."""
        gone = self._sibling("gone", secrets.token_hex(4))
        _files.rename(self.path, gone)
        _files.remove_tree(gone)

    def found(self) -> str:
        """Return the directory to read, see the description of this module."""
        if not os.path.lexists(self.path):
            for name, kind, hidden in self._leftovers():
                if kind == "old" and name == self.path:
                    return hidden
        return self.path

    def _sibling(self, kind: str, id: str) -> str:
        return os.path.join(self.parent, f".{self._name}.{kind}-{id}")

    def _leftovers(self) -> list[tuple[str, str, str]]:
        """Return hidden siblings: the name that each was to have, its kind and its path."""
        found = []
        for entry in _entries(self.parent):
            match = _HIDDEN.fullmatch(entry)
            if match is None:
                continue
            name = match["name"]
            if name == self._name or (self._numbered and _STEP.fullmatch(name)):
                path = os.path.join(self.parent, entry)
                found.append((os.path.join(self.parent, name), match["kind"], path))
        return found


def _entries(path: str) -> list[str]:
    with suppress(FileNotFoundError, NotADirectoryError):
        return sorted(os.listdir(path))
    return []


def _is_checkpoint(path: str) -> bool:
    return os.path.isfile(os.path.join(path, MANIFEST))


def _is_empty(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path) and not os.listdir(path)


# --- numbered steps ------------------------------------------------------------------------------


def step_path(path: str, step: int) -> str:
    """Return where the checkpoint of a step is."""
    return os.path.join(path, f"step-{step:08d}")


def steps(path: str | os.PathLike[str]) -> list[int]:
    """Return the steps of which there is a checkpoint, in increasing order.

    Parameters
    ----------
    path
        As passed to `save` together with ``step=``.

    Examples
    --------
    >>> import distarray as da
    >>> for step in (10, 20):
    ...     da.checkpoint.save("run", {"x": da.arange(3)}, step=step)
    >>> da.checkpoint.steps("run")
    [10, 20]
    """
    path = check_path(path)
    found = set()
    for entry in _entries(path):
        match = _HIDDEN.fullmatch(entry)
        name = match["name"] if match is not None and match["kind"] == "old" else entry
        step = _STEP.fullmatch(name)
        if step is not None and _is_checkpoint(os.path.join(path, entry)):
            found.add(int(step[1]))
    return sorted(found)


def latest(path: str | os.PathLike[str]) -> int | None:
    """Return the largest step of which there is a checkpoint; None without any.

    Examples
    --------
    >>> import distarray as da
    >>> for step in (10, 20):
    ...     da.checkpoint.save("run", {"x": da.arange(3)}, step=step)
    >>> da.checkpoint.latest("run")
    20
    """
    found = steps(path)
    return found[-1] if found else None


def check_newest(path: str, step: int | None, remove_later: bool) -> None:
    """Raise where a load would not take what is about to be saved, but what is there already."""
    there = steps(path)
    if step is None:
        if there:
            raise ArgumentError(
                f"{path} has checkpoints of steps, up to {there[-1]}, and no step= was given; pass "
                "one, or choose another path"
            )
        return
    if _is_checkpoint(path):
        raise ArgumentError(
            f"step={step}: {path} has a checkpoint that was saved without step=, which load() "
            "would go on taking; choose another path, or remove it"
        )
    later = [one for one in there if one > step]
    if not later or remove_later:
        return
    shown = ", ".join(map(str, later[:5])) + (", ..." if len(later) > 5 else "")
    raise ArgumentError(
        f"step={step}: {path} has checkpoints of later steps, {shown}, and load() would go on "
        f"taking that of step {later[-1]}. For a new run choose another directory; where this one "
        f"has gone back to an earlier step pass remove_later=True, which removes those after "
        f"step {step} as soon as the new one is there"
    )


def remove_steps(path: str, saved: int, keep_last: int | None, remove_later: bool) -> None:
    """Remove later checkpoints than the one just saved, if asked to, and then the older ones.

    Those of the ``keep_last`` largest steps stay, and the one just saved in any case.
    """
    there = steps(path)
    if remove_later:
        for step in [step for step in there if step > saved]:
            _remove(path, step)
        there = [step for step in there if step <= saved]
    if keep_last is not None:
        kept = {saved, *[step for step in there if step != saved][::-1][: keep_last - 1]}
        for step in there:
            if step not in kept:
                _remove(path, step)


def _remove(path: str, step: int) -> None:
    Place(step_path(path, step), numbered=True).remove()


def check_step_options(step: object, keep_last: object, remove_later: object) -> None:
    """Raise unless a step, and which others stay, are what they can be."""
    check_step(step)
    if not isinstance(remove_later, bool):
        raise ArgumentError(f"remove_later={remove_later!r}: must be True or False")
    if remove_later and step is None:
        raise ArgumentError(
            "remove_later=True removes the checkpoints of later steps, and no step= was given"
        )
    if keep_last is None:
        return
    if isinstance(keep_last, bool) or not isinstance(keep_last, int) or keep_last < 1:
        raise ArgumentError(f"keep_last={keep_last!r}: must be an integer, 1 or more, or None")
    if step is None:
        raise ArgumentError(
            f"keep_last={keep_last} keeps the checkpoints of so many steps, and no step= was given"
        )
