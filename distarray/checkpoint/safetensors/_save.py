"""Writing of safetensors files that other programs read, by all ranks at once."""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from distarray.checkpoint import _agreement
from distarray.checkpoint._agreement import check_flags, check_path
from distarray.checkpoint._save import collect_tree
from distarray.checkpoint._save_plan import SavePlan, WritePlan, plan_writes
from distarray.checkpoint._whole_arrays import WholeFile, write_files
from distarray.checkpoint.safetensors._load import INDEX, SINGLE
from distarray.checkpoint.storage import _files
from distarray.checkpoint.storage._blocks import Block
from distarray.checkpoint.storage._dtypes import code_of, describe, dtype_of_spec
from distarray.checkpoint.storage._safetensors import compose_header
from distarray.checkpoint.storage._values import is_array, is_container, walk
from distarray.comm import Communicator, as_communicator
from distarray.errors import ArgumentError, ArgumentTypeError, DTypeError

_SIZE = re.compile(r"(\d+\.?\d*(?:E\d\d?)?) *(|KB|MB|GB|TB)")
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def save_safetensors(
    path: str | os.PathLike[str],
    state: Any,
    *,
    max_shard_size: int | str | None = None,
    metadata: Mapping[str, str] | None = None,
    check: bool = True,
    comm: Any = None,
) -> list[str]:
    """Write a module or a tree of arrays as safetensors files (collective).

    The files are those that one process would write: whole tensors under their names, in one file
    or in several with an index, as Hugging Face's libraries read and write them. Every rank writes
    what it holds to its place in them.

    Parameters
    ----------
    path
        A directory, for ``model.safetensors``, or files of at most ``max_shard_size`` with
        ``model.safetensors.index.json``; or the path of one file, with suffix ``.safetensors``.
    state
        A module, or a tree of arrays and tensors, whose keys are joined by points. Of tensors with
        several names (tied weights) the first is written.
    max_shard_size
        In bytes, or such as "5GB". Default: one file.
    metadata
        Of each file. Default: ``{"format": "pt"}``, which transformers wants.
    check, comm
        As for `save`.

    Returns
    -------
    list of str
        The names of the files of tensors.

    Raises
    ------
    DTypeError
        The format lacks a dtype.
    ArgumentTypeError
        The state has values that are no arrays; the metadata is not text by text.
    MismatchError
        The ranks pass different states, paths or options.
    CheckpointError
        A rank could not write; then no file has been changed.

    Notes
    -----
    Each file appears by one step, when all are whole, and the index last: a directory in which
    this was interrupted has none, and does not load. Files of the model that was there before, as
    its index names them, are removed after that; others stay. Memory: 8 MiB.

    Examples
    --------
    >>> import distarray as da
    >>> da.checkpoint.save_safetensors("hub", {"up": {"weight": da.ones((2, 3))}})
    ['model.safetensors']
    >>> da.checkpoint.load_safetensors("hub")["up.weight"].shape
    (2, 3)
    """
    base = as_communicator(comm)

    def options() -> dict[str, Any]:
        found = check_path(path)
        limit = _parse_size(max_shard_size)
        if found.endswith(".safetensors") and limit:
            raise ArgumentError(
                f"path={found!r} is one file, and max_shard_size={max_shard_size!r} may need "
                "several; pass a directory"
            )
        check_flags(check=check)
        return {
            "path": os.path.abspath(found),
            "max_shard_size": limit,
            "metadata": _check_metadata(metadata),
            "check": check,
        }

    agreed = _agreement.begin(base, "da.checkpoint.save_safetensors", options)
    where, limit, told, check = agreed.values()
    plan = SavePlan(state)

    def node() -> Any:
        tree = plan.node(state, "")
        _check(plan, tree)
        return tree

    collect_tree(plan, node, base)
    writes = plan_writes(plan, check, base)
    single = where.endswith(".safetensors")
    directory = os.path.dirname(where) if single else where
    shards = _split_into_files(plan.blocks, limit)
    count = len(shards)
    names = [f"model-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)]
    names = [SINGLE] if count == 1 else names
    if single:
        names = [os.path.basename(where)]
    kind = "file" if single else "shards" if len(shards) > 1 else "model"
    _write(directory, names, shards, plan, writes, told, base, kind)
    return names


def _write(
    directory: str,
    names: Sequence[str],
    shards: Sequence[Sequence[str]],
    plan: SavePlan,
    writes: WritePlan,
    metadata: dict[str, str],
    comm: Communicator,
    kind: str,
) -> None:
    """Write hidden files, by all ranks, and give them their names when they are whole."""

    def prepare() -> str:
        _files.ensure_directory(directory)
        return secrets.token_hex(8)

    id = _agreement.call_on_first(comm, prepare)
    arrays = writes.arrays
    files = []
    for file, shard in zip(names, shards, strict=True):
        items = [(name, arrays[name].spec, arrays[name].shape) for name in shard]
        first, offsets = compose_header(items, metadata)
        size = len(first) + sum(prod(s) * dtype_of_spec(spec).itemsize for _, spec, s in items)
        hidden = os.path.join(directory, f".{file}.tmp-{id}")
        files.append(WholeFile(hidden, first, dict(zip(shard, offsets, strict=True)), size))

    def publish() -> None:
        before = set() if kind == "file" else _files_in_index(directory)
        for stale in (INDEX, SINGLE) if kind != "file" else ():
            _files.remove_file(os.path.join(directory, stale))
        for file, name in zip(files, names, strict=True):
            _files.rename(file.path, os.path.join(directory, name))
        if kind == "shards":
            _write_index(directory, names, shards, arrays, id)
        for stale in sorted(before.difference(names)):
            _files.remove_file(os.path.join(directory, stale))
        _files.sync_directory(directory)

    write_files(files, plan.blocks, writes.mine, publish, comm)


def _write_index(
    directory: str,
    names: Sequence[str],
    shards: Sequence[Sequence[str]],
    arrays: Mapping[str, Any],
    id: str,
) -> None:
    total = sum(prod(told.shape) * dtype_of_spec(told.spec).itemsize for told in arrays.values())
    weights = {name: file for file, shard in zip(names, shards, strict=True) for name in shard}
    told = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weights.items()))}
    hidden = os.path.join(directory, f".{INDEX}.tmp-{id}")
    with _files.new_file(hidden) as file:
        _files.write_at(file, json.dumps(told, indent=2).encode(), 0, hidden)
    _files.rename(hidden, os.path.join(directory, INDEX))


def _files_in_index(directory: str) -> set[str]:
    """Return the files in a directory that its index says its model consists of."""
    try:
        with open(os.path.join(directory, INDEX), "rb") as file:
            names = set(json.load(file)["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return set()  # none, or one that does not tell
    return {
        name
        for name in names
        if isinstance(name, str)
        and os.path.basename(name) == name
        and name.endswith(".safetensors")
        and os.path.isfile(os.path.join(directory, name))
    }


def _check(plan: SavePlan, tree: Any) -> None:
    """Raise unless there are arrays only, of dtypes that the format has."""
    for name, block in plan.blocks.items():
        if code_of(block.spec) is None:
            raise DTypeError(
                f"{name} has dtype {describe(block.spec)}, which safetensors files lack; convert it"
            )
    for name, node in walk(tree):
        if not is_array(node) and not is_container(node):
            raise ArgumentTypeError(
                f"a safetensors file has tensors alone, and the state has {str(node)[:80]!r} at "
                f"{name or 'its top'}; leave it out, or use da.checkpoint.save"
            )


def _split_into_files(blocks: Mapping[str, Block], limit: int) -> list[list[str]]:
    """Return which arrays go to which file; within one, those of large items first."""
    shards: list[list[str]] = [[]]
    filled = 0
    for name, block in blocks.items():
        nbytes = prod(block.shape) * dtype_of_spec(block.spec).itemsize
        if limit and shards[-1] and filled + nbytes > limit:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += nbytes
    return [
        sorted(shard, key=lambda n: -dtype_of_spec(blocks[n].spec).itemsize) for shard in shards
    ]


def _check_metadata(metadata: object) -> dict[str, str]:
    """Return what the header says of a file; the format has text by text alone."""
    if metadata is None:
        return {"format": "pt"}
    if not isinstance(metadata, Mapping):
        raise ArgumentTypeError(
            f"metadata={metadata!r} is of type {type(metadata).__name__}; pass a dictionary of text"
        )
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise ArgumentTypeError(
                f"metadata has {key!r}: {value!r}, and safetensors files take text alone; pass "
                f"{str(key)!r}: {str(value)!r}"
            )
    return dict(metadata)


def _parse_size(size: int | str | None) -> int:
    if size is None:
        return 0
    found: Any = size
    if isinstance(size, str):
        match = _SIZE.fullmatch(size.strip().upper())
        found = int(float(match[1]) * _UNITS[match[2]]) if match else 0
    if isinstance(found, bool) or not isinstance(found, int) or found < 1:
        raise ArgumentError(
            f"max_shard_size={size!r}: must be bytes, or text such as '5GB', or None"
        )
    return found
