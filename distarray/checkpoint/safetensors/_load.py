"""Reading of safetensors files, such as those of Hugging Face's hub, straight into shards."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from math import prod
from typing import Any

from distarray.checkpoint import _agreement
from distarray.checkpoint._adapters import Finish, Placing
from distarray.checkpoint._agreement import check_flags, check_path, compare
from distarray.checkpoint._fill import fill
from distarray.checkpoint._load_plan import LoadPlan
from distarray.checkpoint.storage._manifest import Entry, Manifest, bare_manifest, chunk_row
from distarray.checkpoint.storage._safetensors import Item, read_header
from distarray.comm import Communicator, DeviceMesh, as_communicator
from distarray.errors import ArgumentError, CheckpointError
from distarray.layout import Layout, Placement
from distarray.layout import box as boxes

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

Names = Mapping[str, str] | Callable[[str], str | None]


def load_safetensors(
    path: str | os.PathLike[str],
    into: Any = None,
    *,
    placements: Sequence[Placement] | Mapping[str, Sequence[Placement]] | None = None,
    mesh: DeviceMesh | None = None,
    names: Names | None = None,
    strict: bool = True,
    cast: bool = False,
    comm: Any = None,
) -> Any:
    """Load a safetensors file, or all files of a model, into shards (collective).

    Each rank reads from the files the bytes of its own shards, straight into their place, or a
    share of what the ranks would read several times over (see `load`). The format has no checksums;
    sizes and offsets are checked.

    Parameters
    ----------
    path
        A ``.safetensors`` file, an index (``model.safetensors.index.json``), or a directory with
        one of these.
    into
        A module, parallelized or not, or a tree of arrays, tensors, layouts and the like, as for
        `load`. Default: a dictionary of distributed arrays is made.
    placements
        Without ``into``: how all arrays are placed, or by patterns of names (``*`` matches
        anything, the first that fits counts). Default: the first axis is sharded. Axes that an
        array lacks are replicated.
    mesh
        Where they are placed. Default: the default mesh.
    names
        From the names in the file to those here: a mapping, in which names may be missing, or a
        function, which returns None for what is to be left out.
    strict, cast, comm
        As for `load`.

    Returns
    -------
    Any
        ``into``, or a dictionary of arrays by name. bfloat16 and float8, which NumPy lacks, are in
        structures that hold their bits.

    Raises
    ------
    CheckpointError
        A file is missing or damaged.
    MismatchError
        The ranks pass different paths or options, or, without ``into``, names or placements.
    StateDictError
        Names, shapes or dtypes do not fit; nothing has been changed.

    Examples
    --------
    >>> import distarray as da
    >>> da.checkpoint.save_safetensors("hub", {"up": da.ones((4, 3)), "down": da.ones((3, 4))})
    ['model.safetensors']
    >>> placements = {"down": [da.Shard(1)], "*": [da.Shard(0)]}
    >>> weights = da.checkpoint.load_safetensors("hub", placements=placements)
    >>> weights["up"].placements, weights["down"].placements
    ((Shard(axis=0),), (Shard(axis=1),))
    """
    base = as_communicator(comm)

    def options() -> dict[str, Any]:
        found = os.path.abspath(check_path(path))
        check_flags(strict=strict, cast=cast)
        return {"path": found, "into": into is not None, "strict": strict, "cast": cast}

    where = _agreement.begin(base, "da.checkpoint.load_safetensors", options)["path"]
    found = _agreement.call_on_first(base, lambda: _read_headers(where))

    def make_plan() -> tuple[tuple[LoadPlan, Finish], list[tuple[Any, str, str]]]:
        manifest = _manifest(where, found, names)
        template, chosen = into, []
        if into is None:
            template = {
                name: _choose_layout(name, entry, placements, mesh)
                for name, entry in manifest.arrays.items()
            }
            chosen = [_describe_layout(name, layout) for name, layout in template.items()]
        plan = LoadPlan(manifest, template, base.rank, base.size, cast)
        finish_state = plan.fit(template)
        plan.check(strict)
        return (plan, finish_state), chosen

    (plan, finish_state), everyone = _agreement.call_and_gather(base, make_plan)
    _compare_chosen(everyone, base)
    fill(plan.targets, plan.manifest, False, base)
    return _agreement.run_on_all(base, finish_state)


def _describe_layout(name: str, layout: Layout) -> tuple[Any, str, str]:
    """Return on which mesh an array is to be, what it is called there, and how it is placed."""
    mesh: Any = layout.mesh
    return (mesh.shape, mesh.axis_names, mesh.flat_ranks), name, str(layout.placements)


def _compare_chosen(everyone: Sequence[list[tuple[Any, str, str]]], comm: Communicator) -> None:
    """Raise where ranks that make arrays on one mesh make different ones."""
    first: dict[Any, list[tuple[Any, str, str]]] = {}
    for chosen in everyone:
        key = chosen[0][0] if chosen else None
        told = first.setdefault(key, chosen)
        if chosen != told or (not chosen and any(everyone)):
            at = next((i for i, (a, b) in enumerate(zip(told, chosen, strict=False)) if a != b), 0)
            shown = [": ".join(one[at][1:]) if one[at:] else "none" for one in everyone]
            compare("names or placements", shown, shown, comm)


def _read_headers(path: str) -> list[tuple[str, int, dict[str, Item]]]:
    """Return the files of a model: their names, sizes, and what is in them."""
    if os.path.isdir(path):
        for name in (INDEX, SINGLE):
            if os.path.exists(os.path.join(path, name)):
                path = os.path.join(path, name)
                break
        else:
            raise CheckpointError(
                f"{path} has neither {INDEX} nor {SINGLE}; pass the path of a file"
            )
    if not path.endswith(".json"):
        return [_read_header(os.path.dirname(path), os.path.basename(path))]
    try:
        with open(path, "rb") as file:
            told = json.load(file)["weight_map"]
        files = sorted(set(told.values()))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be opened: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} is no index of safetensors files: {error!r}") from None
    for name in files:
        if not isinstance(name, str) or os.path.basename(name) != name:
            raise CheckpointError(f"{path} names a file {name!r} outside of its directory")
    found = [_read_header(os.path.dirname(path), name) for name in files]
    held = {os.path.basename(file): items for file, _, items in found}
    for name, file in told.items():
        if name not in held[file]:
            raise CheckpointError(f"{path} says that {name!r} is in {file}, where it is not")
    seen: dict[str, str] = {}
    for base, items in held.items():
        for name in [name for name in items if told.get(name, base) != base]:
            del items[name]  # the index takes that of another file
        for name in items:
            if seen.setdefault(name, base) != base:
                raise CheckpointError(
                    f"{seen[name]} and {base} both have {name!r}, and {path} does not say which "
                    "counts; add it to its weight_map"
                )
    return found


def _read_header(directory: str, name: str) -> tuple[str, int, dict[str, Item]]:
    path = os.path.join(directory, name)
    items, _ = read_header(path)
    return path, os.stat(path).st_size, items


def _manifest(
    path: str, files: list[tuple[str, int, dict[str, Item]]], names: Names | None
) -> Manifest:
    """Return what a manifest would say of the files."""
    arrays: dict[str, Any] = {}
    for number, (_, _, items) in enumerate(files):
        for told, item in items.items():
            name = _rename(told, names)
            if name is None:
                continue
            if name in arrays:
                raise ArgumentError(f"names= makes two tensors of {path} {name!r}; rename one")
            row = chunk_row(number, item.start, boxes.whole(item.shape), "")
            arrays[name] = {
                "dtype": item.spec,
                "shape": list(item.shape),
                "chunks": [row] if prod(item.shape) else [],
            }
    return bare_manifest(path, [(name, size) for name, size, _ in files], arrays)


def _rename(name: str, names: Names | None) -> str | None:
    if names is None:
        return name
    if callable(names):
        return names(name)
    return names.get(name, name)


def _choose_layout(name: str, entry: Entry, placements: Any, mesh: DeviceMesh | None) -> Layout:
    chosen = placements
    if isinstance(placements, Mapping):
        chosen = next((p for pattern, p in placements.items() if fnmatchcase(name, pattern)), None)
        if chosen is None:
            raise ArgumentError(
                f"placements has no pattern that {name!r} fits; add one, such as '*': [da.Shard(0)]"
            )
    return Placing(mesh, chosen).layout(entry.shape, fitting=True)
